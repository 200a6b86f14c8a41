//! Our encoder against zlib's inflate and ours: what went in comes out, from streams that end
//! where they end.

use flate2::{Decompress, FlushDecompress, Status};
use octavo_codec::deflate::{Deflate, Inflate, Inflated, Level};
use octavo_codec::{DoesNotFit, MAX_UNIT};
use proptest::prelude::*;

const LEVELS: [Level; 3] = [Level::L1, Level::L6, Level::L9];

fn by_zlib(stream: &[u8], room: usize) -> (usize, Vec<u8>) {
    let mut out = vec![0; room];
    let mut zlib = Decompress::new(false);
    let status = zlib.decompress(stream, &mut out, FlushDecompress::Finish).expect("a deflate");
    assert_eq!(status, Status::StreamEnd);
    out.truncate(zlib.total_out() as usize);
    (zlib.total_in() as usize, out)
}

struct Coders {
    deflate: Deflate,
    inflate: Inflate,
}

impl Coders {
    fn new() -> Self {
        Self { deflate: Deflate::new(), inflate: Inflate::new() }
    }

    /// Every mode and level; returns the lengths of the streams.
    fn round_trips(&mut self, unit: &[u8]) -> Vec<usize> {
        let mut lengths = Vec::new();
        for level in LEVELS {
            for dynamic in [false, true] {
                let mut encode = |out: &mut [u8]| {
                    if dynamic {
                        self.deflate.dynamic(level, unit, out)
                    } else {
                        self.deflate.fixed(level, unit, out)
                    }
                };
                let mut stream = vec![0xee; unit.len() * 9 / 8 + 100];
                let length = encode(&mut stream).expect("room for the worst");
                stream.truncate(length);

                // The limit is exact, and nothing is written behind it.
                let mut again = vec![0xee; length + 20];
                assert_eq!(encode(&mut again[..length]), Ok(length));
                assert!(again[..length] == stream, "{level:?}: not the same again");
                assert!(again[length..].iter().all(|&b| b == 0xee), "written behind the limit");
                assert_eq!(encode(&mut again[..length - 1]), Err(DoesNotFit));

                assert!(by_zlib(&stream, unit.len()) == (length, unit.to_vec()), "zlib differs");
                let mut back = vec![0xdd; unit.len()];
                let inflated = self.inflate.inflate(&stream, &mut back);
                assert_eq!(inflated, Ok(Inflated { consumed: length, written: unit.len() }));
                assert!(back == unit, "{level:?}: another unit");
                lengths.push(length);
            }
        }
        lengths
    }
}

#[test]
fn the_sample_pages() {
    let mut coders = Coders::new();
    for program in ["gcc", "python", "redis", "rustc", "sqlite"] {
        let path = format!("{}/../../testdata/{program}.pages", env!("CARGO_MANIFEST_DIR"));
        let pages = std::fs::read(path).expect("the sample pages that ship with the source");
        let mut sums = vec![0; 6];
        for unit_bytes in [4096, 16384, 65536] {
            for unit in pages.chunks_exact(unit_bytes).step_by(11) {
                let lengths = coders.round_trips(unit);
                sums.iter_mut().zip(lengths).for_each(|(sum, n)| *sum += n);
            }
        }
        // A better level and codes of its own make it smaller.
        let [f1, d1, f6, d6, f9, d9] = sums[..] else { unreachable!() };
        assert!(f1 > f6 && f6 >= f9 && d1 > d6 && d6 >= d9, "{program}: {sums:?}");
        assert!(f1 > d1 && f6 > d6 && f9 > d9, "{program}: {sums:?}");
    }
}

#[test]
fn the_extremes() {
    let mut coders = Coders::new();
    coders.round_trips(&[]);
    coders.round_trips(&[7]);
    coders.round_trips(&[0; MAX_UNIT]);
    let noise: Vec<u8> = (0..MAX_UNIT as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(i | 1) >> 56) as u8)
        .collect();
    coders.round_trips(&noise);
    // Frequencies like Fibonacci's, whose code is too deep.
    let mut deep = Vec::new();
    let (mut a, mut b) = (1usize, 1usize);
    for byte in 0..23u8 {
        deep.extend(
            std::iter::repeat_n(byte, a)
                .enumerate()
                .map(|(i, b)| b.wrapping_add(if i % 2 == 0 { 0 } else { 100 })),
        );
        (a, b) = (b, a + b);
    }
    deep.truncate(MAX_UNIT);
    coders.round_trips(&deep);
}

proptest! {
    #[test]
    fn any_unit(
        runs in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 1..12), 1usize..200), 1..60),
    ) {
        let mut unit: Vec<u8> = runs.into_iter().flat_map(|(v, n)| v.repeat(n)).collect();
        unit.truncate(MAX_UNIT);
        Coders::new().round_trips(&unit);
    }
}
