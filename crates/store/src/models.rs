//! Every interleaving of a few threads at the tables.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p octavo-store --lib models`

use crate::table::Table;
use crate::word::{Object, Word};
use loom::thread;
use octavo_codec::CodecId;
use octavo_page::sync::atomic::{AtomicU64, Ordering};
use octavo_page::{Handle, SlotId, Unit};
use std::sync::Arc;

fn object(handle: u32, unit: Unit) -> Object {
    Object { handle: Handle::from_bits(handle), codec: CodecId::from_bits(1), unit }
}

const SLOT: SlotId = SlotId::new(0);

/// What the store does to free a page: true when the object is to be freed.
fn free(table: &Table, slot: SlotId) -> bool {
    match table.take(slot) {
        Word::Compressed(object) => table.unwant(slot, object),
        _ => false,
    }
}

fn poison(table: &Table, slot: SlotId) -> bool {
    match table.poison(slot) {
        Some(Word::Compressed(object)) => table.unwant(slot, object),
        _ => false,
    }
}

#[test]
fn one_of_two_threads_frees_the_last_page() {
    loom::model(|| {
        let table = Arc::new(Table::new(16));
        let word = Word::Compressed(object(7, Unit::K16));
        table.publish(SLOT, &[word, word, Word::Empty, Word::Empty], &[1, 2, 3, 4]);
        let other = Arc::clone(&table);
        // Both threads free both pages, in opposite order.
        let handle = thread::spawn(move || {
            let last = free(&other, SLOT.offset(1));
            u32::from(last) + u32::from(free(&other, SLOT))
        });
        let last = free(&table, SLOT);
        let frees = u32::from(last) + u32::from(free(&table, SLOT.offset(1)));
        assert_eq!(frees + handle.join().unwrap(), 1, "the object is freed exactly once");
    });
}

#[test]
fn poisoning_and_freeing_let_go_once() {
    loom::model(|| {
        let table = Arc::new(Table::new(16));
        table.publish(SLOT, &[Word::Compressed(object(7, Unit::K4))], &[1]);
        let other = Arc::clone(&table);
        let handle = thread::spawn(move || u32::from(poison(&other, SLOT)));
        let frees = u32::from(free(&table, SLOT));
        assert_eq!(frees + handle.join().unwrap(), 1);
        // The slot is empty, or poisoned after it was freed by nobody: never poisoned when freed.
        assert_eq!(table.word(SLOT), Word::Empty);
    });
}

/// A slot is freed and filled again while it is read, and the pool puts the new bytes where the old
/// ones were. The reader may get the old page with the old word, and no other.
#[test]
fn a_reader_gets_the_page_of_the_word_it_saw() {
    loom::model(|| {
        let table = Arc::new(Table::new(16));
        let place = Arc::new(AtomicU64::new(1));
        let (old, new) = (object(1, Unit::K4), object(2, Unit::K4));
        // A page's hash is the page itself here.
        table.publish(SLOT, &[Word::Compressed(old)], &[1]);
        let (other, there) = (Arc::clone(&table), Arc::clone(&place));
        let writer = thread::spawn(move || {
            assert!(free(&other, SLOT));
            there.store(2, Ordering::Relaxed);
            other.publish(SLOT, &[Word::Compressed(new)], &[2]);
        });
        let word = table.word(SLOT);
        if let Word::Compressed(object) = word {
            let page = place.load(Ordering::Relaxed);
            let good = page == table.hash(SLOT);
            if good && table.still(SLOT, word) {
                assert_eq!(page, u64::from(object.handle.bits()), "the page of another word");
            }
        }
        writer.join().unwrap();
    });
}

/// A 16K unit comes to lie where a 64K unit is partly gone, while the rest of that one goes.
#[test]
fn units_of_two_sizes_share_a_group() {
    loom::model(|| {
        let table = Arc::new(Table::new(16));
        let large = Word::Compressed(object(1, Unit::K64));
        let small = Word::Compressed(object(2, Unit::K16));
        let mut words = [Word::Empty; 16];
        words[15] = large;
        words[0] = large;
        table.publish(SLOT, &words, &[0; 16]);
        assert!(!free(&table, SLOT));
        let other = Arc::clone(&table);
        let handle = thread::spawn(move || free(&other, SLOT.offset(15)));
        table.publish(SLOT, &[small, Word::Empty, Word::Empty, small], &[0; 4]);
        assert_eq!(table.wanted(SLOT, object(2, Unit::K16)), 0b1001);
        assert!(!free(&table, SLOT.offset(3)));
        assert!(free(&table, SLOT));
        assert!(handle.join().unwrap());
    });
}
