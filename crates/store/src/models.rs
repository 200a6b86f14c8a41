//! Every interleaving of a few threads at the tables.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p octavo-store --lib models`

use crate::home::{Home, Homes, owner};
use crate::table::Table;
use crate::word::{Forks, Object, Word};
use loom::thread;
use octavo_backing::{Owners, Place};
use octavo_codec::CodecId;
use octavo_page::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use octavo_page::{Handle, SlotId, Unit};
use std::sync::Arc;

fn object(handle: u32, unit: Unit) -> Object {
    Object {
        handle: Handle::from_bits(handle),
        codec: CodecId::from_bits(1),
        learnt: None,
        forks: Forks(0),
        unit,
    }
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
        table.publish(SLOT, Unit::K16, &[word, word, Word::Empty, Word::Empty], &[1, 2, 3, 4]);
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
        table.publish(SLOT, Unit::K4, &[Word::Compressed(object(7, Unit::K4))], &[1]);
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
        table.publish(SLOT, Unit::K4, &[Word::Compressed(old)], &[1]);
        let (other, there) = (Arc::clone(&table), Arc::clone(&place));
        let writer = thread::spawn(move || {
            assert!(free(&other, SLOT));
            there.store(2, Ordering::Relaxed);
            other.publish(SLOT, Unit::K4, &[Word::Compressed(new)], &[2]);
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
        table.publish(SLOT, Unit::K64, &words, &[0; 16]);
        assert!(!free(&table, SLOT));
        let other = Arc::clone(&table);
        let handle = thread::spawn(move || free(&other, SLOT.offset(15)));
        table.publish(SLOT, Unit::K16, &[small, Word::Empty, Word::Empty, small], &[0; 4]);
        assert_eq!(table.wanted(SLOT, object(2, Unit::K16)), 0b1001);
        assert!(!free(&table, SLOT.offset(3)));
        assert!(free(&table, SLOT));
        assert!(handle.join().unwrap());
    });
}

fn place(n: u64) -> Place {
    Place::from_bits(n << 17 | 100).expect("the bits of a place")
}

/// A table with cells, and how often each thing was freed.
struct Backed {
    table: Table,
    homes: Homes,
    in_pool: AtomicU32,
    in_file: AtomicU32,
}

impl Backed {
    fn new(words: &[Word]) -> Arc<Self> {
        let table = Table::new(16);
        let Word::Compressed(object) = words[0] else { panic!("a unit that has an object") };
        table.publish(SLOT, object.unit, words, &alloc::vec![1; words.len()]);
        let (in_pool, in_file) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { table, homes: Homes::new(16), in_pool, in_file })
    }

    fn note(&self, freed: Home) {
        let count = if matches!(freed, Home::Away(_)) { &self.in_file } else { &self.in_pool };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// What the store does to free a page.
    fn free(&self, slot: SlotId) {
        if let Word::Compressed(object) = self.table.take(slot)
            && self.table.unwant(slot, object)
        {
            self.note(self.homes.leave(slot, object.unit));
        }
    }

    /// What it does to write the object of a word back; whether the unit has it at `to` now.
    fn write_back(&self, object: Object, to: Place) -> Option<bool> {
        let from = self.homes.begin(SLOT, object.unit)?;
        if !self.table.still(SLOT, Word::Compressed(object)) {
            self.homes.abandon(SLOT, object.unit, from);
            return None;
        }
        let finished = self.homes.finish(SLOT, object.unit, from, to);
        self.note(if finished { from } else { Home::Away(to) });
        Some(finished)
    }

    fn freed(&self) -> (u32, u32) {
        (self.in_pool.load(Ordering::Relaxed), self.in_file.load(Ordering::Relaxed))
    }
}

#[test]
fn a_unit_that_is_written_back_while_it_is_freed_leaves_nothing() {
    loom::model(|| {
        let object = object(7, Unit::K16);
        let word = Word::Compressed(object);
        let store = Backed::new(&[word, word, Word::Empty, Word::Empty]);
        let other = Arc::clone(&store);
        let freeing = thread::spawn(move || {
            other.free(SLOT.offset(1));
            other.free(SLOT);
        });
        let was_written = store.write_back(object, place(1)).is_some();
        freeing.join().unwrap();
        assert_eq!(store.freed(), (1, u32::from(was_written)), "each is freed once");
        assert_eq!(store.homes.home(SLOT, Unit::K16), Home::Pool, "the cell is left");
    });
}

/// A unit is freed, and another comes to lie in its slots, while the former one is written back.
#[test]
fn a_unit_does_not_come_by_the_place_of_the_one_before_it() {
    loom::model(|| {
        let (old, new) = (object(1, Unit::K4), object(2, Unit::K4));
        let store = Backed::new(&[Word::Compressed(old)]);
        let other = Arc::clone(&store);
        let replacing = thread::spawn(move || {
            other.free(SLOT);
            other.table.publish(SLOT, Unit::K4, &[Word::Compressed(new)], &[2]);
        });
        store.write_back(old, place(1));
        replacing.join().unwrap();
        assert_eq!(store.homes.home(SLOT, Unit::K4), Home::Pool);
        // Nor is it kept from being written back itself.
        assert_eq!(store.write_back(new, place(2)), Some(true));
    });
}

#[test]
fn an_object_that_is_moved_while_it_is_freed_is_freed_at_both_places() {
    loom::model(|| {
        let object = object(7, Unit::K4);
        let store = Backed::new(&[Word::Compressed(object)]);
        assert_eq!(store.write_back(object, place(1)), Some(true));
        let other = Arc::clone(&store);
        let freeing = thread::spawn(move || other.free(SLOT));
        // The cleaner frees the one or the other, the last free what the cell named then.
        let moved = store.homes.moved(owner(SLOT, Unit::K4), place(1), place(2));
        store.note(Home::Away(if moved { place(1) } else { place(2) }));
        freeing.join().unwrap();
        assert_eq!(store.freed(), (1, 2));
        assert!(!store.homes.lives(owner(SLOT, Unit::K4), place(2)));
    });
}

/// Brought back into the pool, while the cleaner moves it.
#[test]
fn an_object_that_is_moved_while_it_is_brought_back_is_in_one_place() {
    loom::model(|| {
        let object = object(7, Unit::K4);
        let store = Backed::new(&[Word::Compressed(object)]);
        assert_eq!(store.write_back(object, place(1)), Some(true));
        let other = Arc::clone(&store);
        let cleaner =
            thread::spawn(move || other.homes.moved(owner(SLOT, Unit::K4), place(1), place(2)));
        let handle = Handle::from_bits(9);
        let back = store.homes.bring_back(SLOT, Unit::K4, place(1), handle);
        let moved = cleaner.join().unwrap();
        let home = if back { Home::Other(handle) } else { Home::Away(place(2)) };
        assert!(back != moved);
        assert_eq!(store.homes.home(SLOT, Unit::K4), home);
    });
}

/// What is read from where a cell says, and is not the page, has a cell that says something else by now:
/// so who looks again finds it.
#[test]
fn a_reader_finds_where_an_object_went() {
    loom::model(|| {
        let object = object(7, Unit::K4);
        let store = Backed::new(&[Word::Compressed(object)]);
        // What lies in the pool, at the first place and at the second; the page is 1.
        let there = Arc::new([1, 0, 0].map(AtomicU64::new));
        let (other, lies) = (Arc::clone(&store), Arc::clone(&there));
        let writer = thread::spawn(move || {
            lies[1].store(1, Ordering::Relaxed);
            if other.write_back(object, place(1)) == Some(true) {
                lies[0].store(5, Ordering::Release); // freed, and something else is there
            }
            lies[2].store(1, Ordering::Relaxed);
            if other.homes.moved(owner(SLOT, Unit::K4), place(1), place(2)) {
                lies[1].store(6, Ordering::Release);
            }
        });
        let home = store.homes.home(SLOT, Unit::K4);
        let page = match home {
            Home::Pool | Home::Other(_) => there[0].load(Ordering::Acquire),
            Home::Away(at) => there[if at == place(1) { 1 } else { 2 }].load(Ordering::Acquire),
        };
        if page != 1 {
            assert_ne!(store.homes.home(SLOT, Unit::K4), home, "a page that is lost");
        }
        writer.join().unwrap();
    });
}
