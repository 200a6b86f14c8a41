//! Our inflate against zlib's: the same streams accepted, the same output, the same input used.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use octavo_codec::deflate::{Inflate, InflateError};
use proptest::prelude::*;

/// zlib's raw deflate of `data`.
fn deflated(data: &[u8], level: u32) -> Vec<u8> {
    let mut out = vec![0; data.len() * 2 + 100];
    let mut zlib = Compress::new(Compression::new(level), false);
    let status = zlib.compress(data, &mut out, FlushCompress::Finish).expect("zlib compresses");
    assert_eq!(status, Status::StreamEnd);
    out.truncate(zlib.total_out() as usize);
    out
}

/// What zlib makes of `stream`: bytes consumed and the output, or `None` when it refuses it or the
/// output does not fit.
fn by_zlib(stream: &[u8], room: usize) -> Option<(usize, Vec<u8>)> {
    let mut out = vec![0; room];
    let mut zlib = Decompress::new(false);
    match zlib.decompress(stream, &mut out, FlushDecompress::Finish) {
        Ok(Status::StreamEnd) => {
            out.truncate(zlib.total_out() as usize);
            Some((zlib.total_in() as usize, out))
        }
        _ => None,
    }
}

/// What we make of it, the same way.
fn by_us(stream: &[u8], room: usize) -> Result<(usize, Vec<u8>), InflateError> {
    let mut out = vec![0xee; room + 64];
    let result = Inflate::new().inflate(stream, &mut out[..room]);
    assert!(out[room..].iter().all(|&b| b == 0xee), "written behind the output");
    result.map(|inflated| {
        out.truncate(inflated.written);
        (inflated.consumed, out)
    })
}

fn agree(stream: &[u8], room: usize) {
    let (us, zlib) = (by_us(stream, room), by_zlib(stream, room));
    if us.clone().ok() != zlib {
        panic!(
            "we say {:?}, zlib {:?}: {stream:02x?} into {room}",
            us.map(|(n, out)| (n, out.len())),
            zlib.map(|(n, out)| (n, out.len())),
        );
    }
}

/// Bytes like those of real memory and files: words, text, runs, noise.
fn data() -> impl Strategy<Value = Vec<u8>> {
    let run = prop_oneof![
        (any::<u8>(), 1usize..600).prop_map(|(byte, n)| vec![byte; n]),
        proptest::collection::vec(any::<u8>(), 1..40),
        (proptest::collection::vec(any::<u8>(), 1..20), 1usize..60).prop_map(|(v, n)| v.repeat(n)),
        (0u64..1 << 16, 1usize..20).prop_map(|(low, n)| {
            (0..n as u64).flat_map(|i| (0x7f00_1234_0000 + low + 16 * i).to_le_bytes()).collect()
        }),
    ];
    proptest::collection::vec(run, 0..60).prop_map(|runs| runs.concat())
}

#[test]
fn the_sample_pages_made_by_zlib() {
    for program in ["gcc", "python", "redis", "rustc", "sqlite"] {
        let path = format!("{}/../../testdata/{program}.pages", env!("CARGO_MANIFEST_DIR"));
        let pages = std::fs::read(path).expect("the sample pages that ship with the source");
        for level in [0, 1, 6, 9] {
            let stream = deflated(&pages, level);
            let (consumed, out) = by_us(&stream, pages.len()).expect("zlib's own stream");
            assert!(consumed == stream.len() && out == pages, "{program} at level {level}");
        }
    }
}

#[test]
fn every_error_has_its_stream() {
    let cases: [(&[u8], InflateError); 9] = [
        (&[], InflateError::InputEnds),
        (&[0b010], InflateError::InputEnds),
        (&[0b111, 0], InflateError::BlockType),
        (&[0b001, 1, 0, 0xff, 0xff, 0], InflateError::StoredLength),
        (&[0b001, 2, 0, 0xfd, 0xff, 0], InflateError::InputEnds),
        (&[0xfd, 0xff, 0xff], InflateError::Header),
        // Dynamic, and all code lengths of the code-length alphabet that are listed are 7: too few.
        (&[0b0000_0101, 0, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], InflateError::Code),
        // Fixed, and a match of distance 1 before anything else.
        (&[0b0000_0011, 0b0000_0010, 0, 0, 0, 0], InflateError::Distance),
        // Fixed, and distance symbol 30.
        (&[0b0000_0011, 0b0011_1110, 0, 0, 0, 0], InflateError::Symbol),
    ];
    for (stream, error) in cases {
        assert_eq!(by_zlib(stream, 4096), None, "{error}");
        assert_eq!(by_us(stream, 4096), Err(error), "{stream:02x?}");
    }
    assert_eq!(by_us(&[0b001, 1, 0, 0xfe, 0xff, 7], 0), Err(InflateError::OutputFull));
    assert_eq!(by_us(&[0b001, 1, 0, 0xfe, 0xff, 7, 9], 1), Ok((6, vec![7])));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn streams_of_zlib(data in data(), level in 0u32..10, behind in 0usize..20, less in 0usize..2) {
        let mut stream = deflated(&data, level);
        stream.resize(stream.len() + behind, 0xa5);
        agree(&stream, data.len().saturating_sub(less));
    }

    #[test]
    fn cut_streams(data in data(), level in 0u32..10, at in any::<prop::sample::Index>()) {
        let stream = deflated(&data, level);
        agree(&stream[..at.index(stream.len())], data.len());
    }

    #[test]
    fn damaged_streams(
        data in data(),
        level in 0u32..10,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        // Most of the damage that matters is in the first block's header.
        head in proptest::collection::vec((0usize..60, any::<u8>()), 0..3),
    ) {
        let mut stream = deflated(&data, level);
        for (at, value) in damage {
            let at = at.index(stream.len());
            stream[at] = value;
        }
        for (at, value) in head {
            if let Some(byte) = stream.get_mut(at) {
                *byte = value;
            }
        }
        agree(&stream, data.len() + 1000);
    }

    #[test]
    fn arbitrary_bytes(stream in proptest::collection::vec(any::<u8>(), 0..400), room in 0usize..5000) {
        agree(&stream, room);
        let mut stream = stream;
        if let Some(first) = stream.first_mut() {
            *first = *first & !6 | 4; // a dynamic block
            agree(&stream, room);
        }
    }
}
