//! Every interleaving of those who free, close and collect, and of a reader and a chunk that goes.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p octavo-backing --lib models`

use crate::named::Named;
use crate::place::{Chunk, Segment};
use crate::table::Table;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use std::sync::Arc;

const ONE: Segment = Segment(0);

fn emptied(table: &Table) -> usize {
    let mut found = 0;
    table.take_emptied(|_| found += 1);
    found
}

#[test]
fn the_last_free_or_the_closing_notes_a_segment_once() {
    loom::model(|| {
        let table = Arc::new(Table::new(1));
        table.open(ONE, 1);
        table.add(ONE, 5);
        table.add(ONE, 7);
        let free = |len| {
            let table = Arc::clone(&table);
            thread::spawn(move || table.free(ONE, len))
        };
        let threads = [free(5), free(7)];
        table.close(ONE);
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(emptied(&table), 1);
        assert_eq!((table.live(ONE), table.live_bytes()), (0, 0));
    });
}

#[test]
fn who_collects_gets_an_emptied_segment_once() {
    loom::model(|| {
        let table = Arc::new(Table::new(1));
        table.open(ONE, 1);
        table.add(ONE, 5);
        table.close(ONE);
        let other = Arc::clone(&table);
        let freeing = thread::spawn(move || other.free(ONE, 5));
        let other = Arc::clone(&table);
        let collecting = thread::spawn(move || emptied(&other));
        let found = emptied(&table);
        freeing.join().expect("no panic");
        let found = found + collecting.join().expect("no panic");
        assert_eq!(found + emptied(&table), 1);
    });
}

/// A chunk is sealed, written, and its buffer is another chunk's; a reader gets what was in it, from
/// the buffer or from the device.
#[test]
fn a_chunk_that_goes_is_read_from_one_or_the_other() {
    const PLAIN: u32 = 7;
    const SEALED: u32 = 8;
    const OTHERS: u32 = 9;
    let [first, second] = [0, 1].map(|number| Chunk { segment: ONE, number });
    loom::model(move || {
        let buffer = Arc::new(Named::new(0));
        let device = Arc::new(AtomicU32::new(0));
        buffer.begin(first, |content| *content = PLAIN);
        let (its_buffer, its_device) = (Arc::clone(&buffer), Arc::clone(&device));
        let writer = thread::spawn(move || {
            *its_buffer.content() = SEALED;
            its_device.store(PLAIN, Ordering::Relaxed);
            its_buffer.end(|content| *content = 0);
            its_buffer.begin(second, |content| *content = OTHERS);
        });
        let read = buffer.get(first).map(|content| *content);
        let read = read.unwrap_or_else(|| device.load(Ordering::Relaxed));
        assert!(read == PLAIN || read == SEALED, "{read}");
        writer.join().expect("no panic");
        assert_eq!(buffer.get(first).map(|content| *content), None);
        assert_eq!(buffer.get(second).map(|content| *content), Some(OTHERS));
    });
}
