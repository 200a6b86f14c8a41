//! Our encoder against zlib's inflate and ours: what went in comes out, from streams that end
//! where they end.

use flate2::{Decompress, FlushDecompress, Status};
use octavo_codec::deflate::{
    BadTable, Deflate, GENERAL, GENERAL_IDS, Histogram, Inflate, InflateError, Inflated, Lengths,
    Level, Table, TableSet, train,
};
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

/// The header of a table and a canned body behind it: a stream for any inflate.
fn with_header(table: &Table, body: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; 300];
    let bits = table.header(&mut stream).expect("room enough");
    stream.truncate(bits / 8 + 1);
    // The body begins in the middle of a byte.
    let shift = bits % 8;
    for &byte in body {
        *stream.last_mut().expect("a byte") |= byte << shift;
        stream.push((u16::from(byte) >> (8 - shift)) as u8);
    }
    stream
}

fn general_tables(window: usize) -> Vec<Lengths> {
    let train_again = |lengths: &Lengths| {
        let mut histogram = Histogram::new();
        // From lengths back to frequencies, for windows that are smaller.
        for (n, length) in histogram.litlen.iter_mut().zip(lengths.litlen) {
            *n = 1 << (15 - length);
        }
        for (n, length) in histogram.distance.iter_mut().zip(lengths.distance) {
            *n = 1 << (15 - length);
        }
        train(&[histogram], 1, window)[0]
    };
    GENERAL.iter().map(train_again).collect()
}

fn canned_round_trip(deflate: &mut Deflate, tables: &TableSet, unit: &[u8]) {
    for level in LEVELS {
        let mut body = vec![0xee; unit.len() * 2 + 100];
        let (size, table) = deflate.canned(level, tables, unit, &mut body).expect("room enough");
        body.truncate(size);
        assert_eq!(deflate.canned(level, tables, unit, &mut vec![0; size]).map(|r| r.0), Ok(size));
        assert!(deflate.canned(level, tables, unit, &mut vec![0; size - 1]).is_err());

        // Ours, into a buffer with a guard behind it.
        let mut back = vec![0xdd; unit.len() + 64];
        assert_eq!(table.decompress(&body, &mut back[..unit.len()]), Ok(()));
        assert!(back[..unit.len()] == *unit && back[unit.len()..].iter().all(|&b| b == 0xdd));
        // zlib's, the header in front. A window of 4 KiB is kept: zlib is not told, we look.
        let stream = with_header(table, &body);
        let (_, out) = by_zlib(&stream, unit.len());
        assert!(out == unit, "zlib differs");

        // Too much, too little.
        let short = &mut vec![0; unit.len().saturating_sub(1)];
        if !unit.is_empty() {
            assert_eq!(table.decompress(&body, short), Err(InflateError::OutputFull));
        }
        let long = &mut vec![0; unit.len() + 1];
        assert_eq!(table.decompress(&body, long), Err(InflateError::OutputShort));
        let mut more = body.clone();
        more.push(0);
        let out = &mut back[..unit.len()];
        assert_eq!(table.decompress(&more, out), Err(InflateError::InputLeft));
        assert!(table.decompress(&body[..size - 1], out).is_err());
    }
}

#[test]
fn canned_pages() {
    let mut deflate = Deflate::new();
    for window in [4096, 32768] {
        let lengths = general_tables(window);
        let tables = TableSet::new(GENERAL_IDS, window, &lengths).expect("tables");
        let one = TableSet::new(GENERAL_IDS, window, &lengths[..1]).expect("a table");
        for program in ["gcc", "python", "redis", "rustc", "sqlite"] {
            let path = format!("{}/../../testdata/{program}.pages", env!("CARGO_MANIFEST_DIR"));
            let pages = std::fs::read(path).expect("the sample pages that ship with the source");
            for unit_bytes in [4096, 16384, 65536] {
                for unit in pages.chunks_exact(unit_bytes).step_by(17) {
                    canned_round_trip(&mut deflate, &tables, unit);
                    canned_round_trip(&mut deflate, &one, unit);
                }
            }
        }
        canned_round_trip(&mut deflate, &tables, &[]);
        canned_round_trip(&mut deflate, &tables, &[9]);
    }
}

#[test]
fn a_table_survives_its_header() {
    for window in [4096, 8192, 16384, 32768] {
        for table in
            TableSet::new(GENERAL_IDS, window, &general_tables(window)).expect("tables").tables()
        {
            let mut header = [0; 300];
            table.header(&mut header).expect("room enough");
            let again = Table::from_header(table.id(), window, &header).expect("its own header");
            assert_eq!(again.lengths(), table.lengths());
            assert!(Table::from_header(0, window, &header[..20]).is_err());
        }
    }
}

#[test]
fn what_is_no_table_is_refused() {
    let good = GENERAL[0];
    let refused = |window, lengths: &Lengths| Table::new(0, window, lengths).expect_err("refused");
    assert_eq!(refused(5000, &good), BadTable::Window(5000));
    assert_eq!(refused(4096, &good), BadTable::Distance(24));
    let mut bad = good;
    // Complete, but with 13 extra bits behind a codeword of 15.
    bad.distance[..4].fill(6);
    bad.distance[4..18].fill(4);
    bad.distance[18..].copy_from_slice(&[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 15]);
    assert_eq!(refused(32768, &bad), BadTable::Long(28));
    let mut bad = good;
    bad.litlen[7] = 1;
    assert_eq!(refused(32768, &bad), BadTable::Code);
    bad.litlen[7] = 200;
    assert_eq!(refused(32768, &bad), BadTable::Code);
    // Complete, but only two symbols.
    bad.litlen = [0; 286];
    (bad.litlen[0], bad.litlen[256]) = (1, 1);
    assert_eq!(refused(32768, &bad), BadTable::Symbol(1));
    assert_eq!(
        refused(32768, &bad).to_string(),
        "literal or length 1 has no codeword; each needs one"
    );
    let mut bad = good;
    bad.distance = [0; 30];
    assert_eq!(refused(32768, &bad), BadTable::Code);
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
        for window in [4096, 32768] {
            let tables = TableSet::new(GENERAL_IDS, window, &general_tables(window)).expect("tables");
            canned_round_trip(&mut Deflate::new(), &tables, &unit);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Damaged and arbitrary bodies: zlib, given the header, agrees on what they give.
    #[test]
    fn canned_bodies_agree_with_zlib(
        unit in proptest::collection::vec(0u8..8, 1..2000),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        arbitrary in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let tables = TableSet::new(GENERAL_IDS, 32768, &GENERAL).expect("tables");
        let mut body = vec![0; unit.len() * 2 + 100];
        let (size, table) =
            Deflate::new().canned(Level::L1, &tables, &unit, &mut body).expect("room enough");
        body.truncate(size);
        for (at, value) in damage {
            let at = at.index(size);
            body[at] = value;
        }
        for body in [body, arbitrary] {
            let stream = with_header(table, &body);
            let mut theirs = vec![0; 4096];
            let mut zlib = Decompress::new(false);
            let status = zlib.decompress(&stream, &mut theirs, FlushDecompress::Finish);
            let length = zlib.total_out() as usize;
            let mut ours = vec![0; length];
            match table.decompress(&body, &mut ours) {
                Ok(()) => {
                    prop_assert_eq!(status.expect("we accept it"), Status::StreamEnd);
                    prop_assert!(ours == theirs[..length]);
                }
                // zlib does not mind what is behind the stream.
                Err(InflateError::InputLeft) => prop_assert_eq!(status.ok(), Some(Status::StreamEnd)),
                // The header ends inside a byte, so some zeros stand behind the body in the stream.
                Err(InflateError::InputEnds) if matches!(status, Ok(Status::StreamEnd)) => {
                    let body = [&body[..], &[0]].concat();
                    prop_assert_eq!(table.decompress(&body, &mut ours), Ok(()));
                    prop_assert!(ours == theirs[..length]);
                }
                Err(_) => prop_assert!(!matches!(status, Ok(Status::StreamEnd))),
            }
        }
    }
}
