//! Any bytes handed to any codec as the bytes of a unit: an answer, and nothing written outside of
//! the unit. Then the bytes as a unit: it comes back, its prefix too, and not from damaged bytes
//! without an error or another unit of the same length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_codec::{Codec, Workspace};
use octavo_fuzz::{Guarded, Input};
use octavo_page::Unit;
use std::cell::RefCell;

thread_local! {
    static CODECS: Vec<Codec> = Codec::all().collect();
    static WORKSPACE: RefCell<Workspace> =
        RefCell::new(Workspace::new(&Codec::all().collect::<Vec<_>>()));
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let kind = input.byte();
    let codec = CODECS.with(|codecs| codecs[usize::from(kind) % codecs.len()]);
    let unit = Unit::ALL[usize::from(input.byte()) % 3].bytes();
    let wanted = 1 + input.number() % unit;
    let damage = [input.number(), input.number(), input.number()];
    WORKSPACE.with_borrow_mut(|workspace| {
        stays_inside(workspace, codec, input.rest(), unit, wanted);
        let unit = input.unit(unit);
        let Some(mut bytes) = comes_back(workspace, codec, &unit, wanted) else { return };
        for at in damage {
            let at = at % bytes.len();
            bytes[at] ^= 1 << (at % 8);
        }
        stays_inside(workspace, codec, &bytes, unit.len(), wanted);
    });
});

/// Decompresses whatever these bytes are. An answer is one for good.
fn stays_inside(w: &mut Workspace, codec: Codec, bytes: &[u8], unit: usize, wanted: usize) {
    let mut out = Guarded::new(unit);
    let whole = w.decompress(codec, bytes, out.room());
    let out = out.checked();
    let mut prefix = Guarded::new(unit);
    let part = w.decompress_prefix(codec, bytes, prefix.room(), wanted);
    let prefix = prefix.checked();
    if whole.is_ok() {
        assert_eq!(part, Ok(()), "{codec}: the whole is good, its prefix is not");
        assert!(prefix[..wanted] == out[..wanted], "{codec}: another prefix");
    }
}

/// Compresses and decompresses; the bytes, if the unit fits in its own length.
fn comes_back(w: &mut Workspace, codec: Codec, unit: &[u8], wanted: usize) -> Option<Vec<u8>> {
    let mut bytes = Guarded::new(unit.len());
    let size = w.compress(codec, unit, bytes.room());
    let bytes = &bytes.checked()[..size.ok()?];
    let mut out = Guarded::new(unit.len());
    assert_eq!(w.decompress(codec, bytes, out.room()), Ok(()), "{codec}");
    assert!(out.checked() == unit, "{codec}: another unit");
    let mut prefix = Guarded::new(unit.len());
    assert_eq!(w.decompress_prefix(codec, bytes, prefix.room(), wanted), Ok(()), "{codec}");
    assert!(prefix.checked()[..wanted] == unit[..wanted], "{codec}: another prefix");
    Some(bytes.to_vec())
}
