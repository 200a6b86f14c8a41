//! Any unit through our encoder, in every mode: we get it back, zlib gets it back from the streams
//! that are deflate, and the limit is exact.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_codec::deflate::{Deflate, GENERAL, GENERAL_IDS, Inflate, Inflated, Level, TableSet};
use octavo_codec::{Codec, DeflateMode, DoesNotFit, Parts, Workspace};
use octavo_fuzz::{Guarded, Input, by_zlib, with_header};
use octavo_page::Unit;
use std::cell::RefCell;

const LEVELS: [Level; 3] = [Level::L1, Level::L6, Level::L9];

struct Coders {
    deflate: Deflate,
    inflate: Inflate,
    tables: TableSet,
    workspace: Workspace,
}

thread_local!(static CODERS: RefCell<Coders> = RefCell::new(Coders {
    deflate: Deflate::new(),
    inflate: Inflate::new(),
    tables: TableSet::new(GENERAL_IDS, 32768, &GENERAL).expect("the tables that ship"),
    workspace: Workspace::new(&Codec::all().collect::<Vec<_>>()),
}));

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let kind = usize::from(input.byte());
    let unit = input.unit(Unit::ALL[kind % 3].bytes());
    let level = LEVELS[kind / 3 % 3];
    let parts = Parts::by(1 << (kind / 9 % 7)).expect("a power of two to 64");
    CODERS.with_borrow_mut(|coders| {
        streams(coders, level, &unit);
        canned(coders, level, &unit);
        by_n(coders, level, parts, &unit);
    });
});

/// The fixed and the dynamic stream of the unit.
fn streams(coders: &mut Coders, level: Level, unit: &[u8]) {
    let Coders { deflate, inflate, .. } = coders;
    for dynamic in [false, true] {
        let mut encode = |out: &mut [u8]| match dynamic {
            false => deflate.fixed(level, unit, out),
            true => deflate.dynamic(level, unit, out),
        };
        let mut stream = Guarded::new(unit.len() * 9 / 8 + 100);
        let length = encode(stream.room()).expect("room for the worst");
        let stream = &stream.checked()[..length];
        let mut short = Guarded::new(length - 1);
        assert_eq!(encode(short.room()), Err(DoesNotFit));
        let _ = short.checked();

        let mut out = Guarded::new(unit.len());
        let inflated = inflate.inflate(stream, out.room());
        assert_eq!(inflated, Ok(Inflated { consumed: length, written: unit.len() }));
        assert!(out.checked() == unit, "another unit, dynamic: {dynamic}");
        let zlib = by_zlib(stream, unit.len());
        assert!(zlib.accepted && zlib.consumed == length && zlib.out == unit, "zlib differs");
    }
}

/// The canned body, alone and with its header.
fn canned(coders: &mut Coders, level: Level, unit: &[u8]) {
    let Coders { deflate, tables, .. } = coders;
    let mut body = Guarded::new(unit.len() * 2 + 100);
    let (size, table) = deflate.canned(level, tables, unit, body.room()).expect("room enough");
    let body = &body.checked()[..size];
    let mut short = Guarded::new(size - 1);
    assert!(deflate.canned(level, tables, unit, short.room()).is_err());
    let _ = short.checked();

    let mut out = Guarded::new(unit.len());
    assert_eq!(table.decompress(body, out.room()), Ok(()));
    assert!(out.checked() == unit, "another unit");
    let zlib = by_zlib(&with_header(table, body), unit.len());
    assert!(zlib.accepted && zlib.out == unit, "zlib differs");
}

/// The unit in parts.
fn by_n(coders: &mut Coders, level: Level, parts: Parts, unit: &[u8]) {
    for mode in [DeflateMode::Fixed, DeflateMode::Dynamic, DeflateMode::CannedGeneral] {
        let codec = Codec::Deflate { mode, level, parts };
        let mut bytes = Guarded::new(unit.len() * 2 + 64 * 100);
        let size = coders.workspace.compress(codec, unit, bytes.room()).expect("room enough");
        let mut out = Guarded::new(unit.len());
        let said = coders.workspace.decompress(codec, &bytes.checked()[..size], out.room());
        assert_eq!(said, Ok(()), "{codec}");
        assert!(out.checked() == unit, "{codec}: another unit");
    }
}
