//! Any bytes as the table of canned blocks and any bytes as a body for it: what is accepted as a
//! table reads back from its own header, takes any unit, and zlib, given the header, agrees on every
//! body.
//!
//! Few headers are a table, so two more ways lead to one: frequencies, and the tables that ship.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_codec::deflate::{
    Deflate, GENERAL, GENERAL_IDS, Generations, Histogram, InflateError, Level, Table, TableSet,
    train,
};
use octavo_codec::{Codec, Job, Workspace};
use octavo_fuzz::{Guarded, Input, by_zlib, with_header};
use std::cell::RefCell;
use std::sync::Arc;

const ROOM: usize = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let kind = input.byte();
    let window = 4096 << (kind >> 6);
    let head_bytes = input.number() % 320;
    let head = input.take(head_bytes);
    let table = match kind % 4 {
        0 | 1 => Table::from_header(kind, window, head),
        2 => Table::new(kind, window, &train(&[histogram(head)], 1, window)[0]),
        _ => Table::new(kind, window, &GENERAL[usize::from(kind / 4) % GENERAL.len()]),
    };
    let Ok(table) = table else {
        assert_ne!(kind % 4, 2, "what was trained is no table");
        return;
    };
    reads_back(&table);
    body(&table, input.rest());
    unit(&table, input.rest());
    if window == 4096 {
        pages(&table, input.rest());
    }
});

fn histogram(head: &[u8]) -> Histogram {
    let mut histogram = Histogram::new();
    let counts = histogram.distance.iter_mut().chain(&mut histogram.litlen);
    // Up to what no code of 15 bits does justice to.
    counts.zip(head).for_each(|(n, b)| *n = u32::from(b >> 5) << (b & 15));
    histogram
}

fn reads_back(table: &Table) {
    let mut header = Guarded::new(300);
    let bits = table.header(header.room()).expect("300 bytes always suffice");
    let header = &header.checked()[..bits.div_ceil(8)];
    let again = Table::from_header(table.id(), table.window(), header).expect("its own header");
    assert_eq!(again.lengths(), table.lengths());
    assert!(table.header(&mut vec![0; header.len() - 1]).is_err(), "a byte less did");
}

/// Any bytes as a body.
fn body(table: &Table, body: &[u8]) {
    let stream = with_header(table, body);
    let zlib = by_zlib(&stream, ROOM);
    // The body's last byte lies in the last two of the stream.
    let left = stream.len() - zlib.consumed;
    let mut out = Guarded::new(zlib.out.len());
    let said = table.decompress(body, out.room());
    let out = out.checked();
    match said {
        Ok(()) => assert!(zlib.accepted && left <= 1 && out == zlib.out, "zlib differs"),
        // zlib does not mind what is behind the stream, nor what fills its last byte.
        Err(InflateError::InputLeft) => assert!(zlib.accepted, "we say that it ended"),
        // The header ends inside a byte, so up to eight zeros stand behind the body in the stream.
        Err(InflateError::InputEnds) if zlib.accepted => {
            let mut out = vec![0; zlib.out.len()];
            assert_eq!(table.decompress(&[body, &[0]].concat(), &mut out), Ok(()));
            assert!(left == 0 && out == zlib.out, "zlib differs");
        }
        Err(error) => assert!(!zlib.accepted, "only zlib accepts it, we say {error}"),
    }
}

/// The bytes as pages, each a few hundred and zeros behind them or the same again, that are compressed together,
/// in turn with room for all and with little.
fn pages(table: &Table, bytes: &[u8]) {
    thread_local! {
        static WORKSPACE: RefCell<Workspace> = RefCell::new(Workspace::new(&[learnt()]));
    }
    let page = |(i, some): (usize, &[u8])| {
        let mut page = some.repeat(if i % 2 == 0 { 1 } else { 4096 / some.len() });
        page.resize(4096, 0);
        page
    };
    let pages: Vec<Vec<u8>> = bytes.chunks(700).enumerate().map(page).collect();
    let room = |i: usize| if i % 4 == 3 { 100 * i } else { 8292 };
    let mut rooms: Vec<Guarded> = (0..pages.len()).map(|i| Guarded::new(room(i))).collect();
    let tables = Generations::with(4096, &[*table.lengths()]).expect("a table");
    WORKSPACE.with_borrow_mut(|workspace| {
        workspace.set_learnt(Arc::new(tables));
        let mut jobs: Vec<Job<'_>> =
            pages.iter().zip(&mut rooms).map(|(page, room)| Job::new(page, room.room())).collect();
        workspace.compress_all(learnt(), &mut jobs);
        let sizes: Vec<_> = jobs.iter().map(|job| job.size).collect();
        for (i, (page, size)) in pages.iter().zip(sizes).enumerate() {
            let made = rooms[i].checked();
            let Ok(size) = size else {
                assert!(room(i) < 8292, "a codeword has 15 bits at most");
                continue;
            };
            let mut out = Guarded::new(4096);
            let said = workspace.decompress(learnt(), &made[..size], out.room());
            assert_eq!(said, Ok(()));
            assert!(out.checked() == *page, "another page");
        }
    });
}

fn learnt() -> Codec {
    "deflate-canned:1".parse().expect("a codec")
}

/// The bytes as a unit.
fn unit(table: &Table, unit: &[u8]) {
    let tables = TableSet::new(GENERAL_IDS, table.window(), &[*table.lengths()]).expect("a table");
    let mut bytes = Guarded::new(unit.len() * 2 + 100);
    let made = Deflate::new().canned(Level::L1, &tables, unit, bytes.room());
    let (size, table) = made.expect("a codeword has 15 bits at most");
    let mut out = Guarded::new(unit.len());
    assert_eq!(table.decompress(&bytes.checked()[..size], out.room()), Ok(()));
    assert!(out.checked() == unit, "another unit");
}
