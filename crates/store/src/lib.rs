//! The page store: folios in, slots out.
//!
//! It joins the slot allocator, the codec and the pool, and owns the one word that says what a slot
//! holds. It knows nothing of processes, faults or addresses: a page is bytes, a place is a slot.
//!
//! ```text
//!   put: folios ─┬─ page filled with one value ───────────────────────► word
//!                └─ units ── engine ── bytes ── pool ── handles ──────► word of each other page
//!                                                                       hash of each other page
//!        then aligned runs of slots ── the words are published in them
//!
//!   get: words ── handles ── pool ── bytes ── engine ── pages ── hash agrees? ── word unchanged? ──► out
//!
//!   free: word taken (by one thread) ── wanted bit cleared ── last of its unit? ── object freed
//!         └─ then the slot number may be given out again
//! ```
//!
//! A *unit* (4, 16 or 64 KiB) is compressed as one object; the pages in it are freed one by one and
//! the object goes with the last. `table.rs` states the protocol by which threads that get, free and
//! put at once keep out of each other's way, without locks.
//!
//! Units go through an engine in batches: those of a call, of whichever folios, fill one batch
//! (`put.rs`, `get.rs`). Objects and slots are taken for many at once. `one_by_one.rs` does the same
//! unit by unit: the plain twin.
//!
//! Codecs whose tables are learnt have those in common with whoever reads the store: `learnt.rs`.
//!
//! A store may have a backing file: the objects that lie longest (`age.rs`) go there (`write_back.rs`), and a
//! cell for each unit says so (`home.rs`). Reading, freeing and everything else is the same for them.
//!
//! # Invariants
//!
//! - What [`Store::get`] gives is the page that was put, byte for byte: its hash was compared. A page
//!   whose object is damaged is an error, never other bytes.
//! - A folio that was refused leaves nothing behind: no slot, no object.
//! - Every object in the pool or the file has at least one wanted page, whose word or cell names it.
//! - Nothing is allocated after construction.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod age;
mod errors;
mod get;
mod home;
mod learnt;
#[cfg(test)]
#[cfg(loom)]
mod models;
mod one_by_one;
mod put;
mod scratch;
mod stats;
mod table;
mod word;
mod write_back;

pub use errors::{BackError, GetError, NewError, PutError};
pub use octavo_pool::Arena;
pub use scratch::Scratch;
pub use stats::{LearntStats, Stats};
pub use write_back::WrittenBack;

use age::Ages;
use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;
use home::Homes;
use learnt::Learnt;
use octavo_backing::file::FileDevice;
use octavo_backing::{Backing, Device};
use octavo_codec::Codec;
use octavo_page::sync::Mutex;
use octavo_page::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use octavo_page::{Handle, PAGE_SIZE, SlotId, Unit};
use octavo_pool::Pool;
use octavo_slots::Slots;
use stats::{Counters, Tally};
use table::{Table, first_of_unit};
use word::{Fill, Forks, RAW, Word};
use write_back::Writer;
use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// How large a store is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// Pages it can hold, compressed or filled: the number of slots.
    pub capacity_pages: usize,
    /// The pool under it. Its `max_objects` should not be below `capacity_pages`.
    pub pool: octavo_pool::Config,
    /// CPUs that put at once; [`How::cpu`] counts below this.
    pub cpus: usize,
    /// Anything: makes the hashes of this store differ from another's.
    pub seed: u64,
}

/// How a batch is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    /// What compresses it.
    pub codec: Codec,
    /// What is compressed as one object.
    pub unit: Unit,
    /// Where the caller runs, or about; see [`Slots::alloc`].
    pub cpu: usize,
    /// The most bytes that a unit may compress to: one that takes more does not fit.
    pub fits_in: usize,
    /// What it costs the caller, in bytes for each page, when a folio is refused because units of it
    /// do not fit. Such units are kept raw while all objects of their folio together take less. With 0
    /// a folio is refused with the first of them; with more than a page none is.
    pub refusal_bytes: usize,
}

/// The unit in which a page was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitInfo {
    /// The slot of its first page, whether or not that page is still wanted.
    pub first: SlotId,
    /// Pages in it.
    pub pages: usize,
    /// The pages that are still wanted and come with it: bit 0 is the first. Same-filled pages are
    /// not among them.
    pub wanted: u16,
    /// What is kept of it.
    pub form: Form,
}

/// What is kept of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// One value: the unit is one page filled with it, and there is no object.
    SameFilled,
    /// Itself.
    Raw,
    /// What this codec made of it.
    Compressed(Codec),
}

/// Pages, compressed, each under its slot. Any number of threads may use it at once.
pub struct Store<A: Arena, D: Device = FileDevice> {
    table: Table,
    homes: Homes,
    ages: Ages,
    slots: Slots,
    pool: Pool<A>,
    secret: [u8; 192],
    largest_object: usize,
    counters: Counters,
    /// The CPU of the slots for what is kept raw, beside those of [`Config::cpus`].
    raw_cpu: usize,
    away: AtomicUsize,
    forks: AtomicU32,
    backing: Mutex<Option<Arc<Backing<D>>>>,
    writer: Mutex<Writer>,
    learnt: Option<Learnt>,
}

impl<A: Arena> Store<A> {
    /// An empty store over `arena`, which keeps everything there.
    ///
    /// # Errors
    /// [`NewError`] when the slots or the pool cannot be of such a size.
    pub fn new(arena: A, config: Config) -> Result<Self, NewError> {
        Self::make(arena, config, false)
    }
}

impl<A: Arena, D: Device> Store<A, D> {
    /// An empty store over `arena` that can write back, once a backing is [`attach`](Self::attach)ed.
    ///
    /// # Errors
    /// As of [`new`](Store::new).
    pub fn backed(arena: A, config: Config) -> Result<Self, NewError> {
        Self::make(arena, config, true)
    }

    fn make(arena: A, config: Config, is_backed: bool) -> Result<Self, NewError> {
        let Config { capacity_pages, pool, cpus, seed } = config;
        let slots = octavo_slots::Config {
            capacity: capacity_pages,
            cpus: cpus + usize::from(is_backed),
            discards: false,
            clock: octavo_slots::no_clock,
        };
        let slots = Slots::new(slots).map_err(NewError::Slots)?;
        let largest_object = pool.max_object;
        let backed = if is_backed { slots.capacity() } else { 0 };
        Ok(Self {
            table: Table::new(slots.capacity()),
            homes: Homes::new(backed),
            ages: Ages::new(backed),
            slots,
            pool: Pool::new(arena, pool).map_err(NewError::Pool)?,
            secret: const_custom_default_secret(seed),
            largest_object,
            counters: Counters::default(),
            raw_cpu: cpus,
            away: AtomicUsize::new(0),
            forks: AtomicU32::new(0),
            backing: Mutex::default(),
            writer: Mutex::default(),
            learnt: None,
        })
    }

    /// What lies under it.
    pub fn arena(&self) -> &A {
        self.pool.arena()
    }

    /// The addresses behind which it has no objects.
    #[must_use]
    pub fn reach(&self) -> Range<usize> {
        self.pool.reach()
    }

    /// Pages it can hold.
    #[must_use]
    pub fn capacity_pages(&self) -> usize {
        self.table.len()
    }

    /// The unit in which the page of a slot was stored; `None` when there is no page.
    ///
    /// While other threads free pages the answer is of the moment.
    #[must_use]
    pub fn unit_of(&self, slot: SlotId) -> Option<UnitInfo> {
        let object = match self.word(slot) {
            Word::Empty | Word::Poisoned => return None,
            Word::Filled(_) => {
                let form = Form::SameFilled;
                return Some(UnitInfo { first: slot, pages: 1, wanted: 1, form });
            }
            Word::Compressed(object) => object,
        };
        let wanted = self.table.wanted(slot, object);
        self.table.still(slot, Word::Compressed(object)).then(|| UnitInfo {
            first: first_of_unit(slot, object.unit),
            pages: object.unit.pages(),
            wanted,
            form: object.form(),
        })
    }

    /// Whether the page of a slot is this page, so that storing it again would gain nothing. Nothing
    /// is decompressed: the hashes are compared.
    ///
    /// # Panics
    /// When `page` is not one page long.
    #[must_use]
    pub fn matches(&self, slot: SlotId, page: &[u8]) -> bool {
        assert_eq!(page.len(), PAGE_SIZE, "one page is compared");
        let word = self.word(slot);
        match word {
            Word::Empty | Word::Poisoned => false,
            Word::Filled(fill) => Fill::of_page(page) == Some(fill),
            Word::Compressed(_) => {
                self.hash(page) == self.table.hash(slot) && self.table.still(slot, word)
            }
        }
    }

    /// Notes that the process forks, nobody putting meanwhile: whose copy is a store too, and has what is stored
    /// so far together with this one as long as neither frees it.
    pub fn note_fork(&self) {
        self.forks.fetch_add(1, Ordering::Relaxed);
    }

    fn forks(&self) -> Forks {
        Forks(self.forks.load(Ordering::Relaxed) as u16)
    }

    /// Whether the object of a slot was stored before the last fork; of 65,536 forks one is taken for another.
    #[must_use]
    pub fn is_older_than_fork(&self, slot: SlotId) -> bool {
        matches!(self.word(slot), Word::Compressed(object) if object.forks != self.forks())
    }

    /// Frees the pages of these slots and the slots. A slot that is empty stays so.
    pub fn free(&self, slots: &[SlotId]) {
        let mut freed = Freed::new(self);
        slots.iter().for_each(|slot| freed.free(*slot));
        freed.finish();
    }

    /// Frees of the `pages` slots from `first` on those whose bit in `mask` is set, bit 0 the first.
    ///
    /// # Panics
    /// When there are more pages than `mask` has bits.
    pub fn free_run(&self, first: SlotId, pages: usize, mask: u64) {
        assert!(pages <= u64::BITS as usize, "a run of {pages} pages and a mask of 64 bits");
        let mut freed = Freed::new(self);
        for n in (0..pages as u32).filter(|n| mask >> n & 1 == 1) {
            freed.free(first.offset(n));
        }
        freed.finish();
    }

    /// Declares the page of a slot lost: reading it gives [`GetError::Poisoned`] until it is freed.
    /// An empty slot stays empty.
    pub fn poison(&self, slot: SlotId) {
        if slot.index() >= self.table.len() {
            return;
        }
        let Some(word) = self.table.poison(slot) else { return };
        self.drop_page(slot, word);
        let mut tally = Tally::default();
        tally.count_freed(word);
        self.counters.add(&tally);
    }

    /// Gathers objects so that frames become free; moves at most about `budget` of them.
    pub fn compact(&self, budget: usize) -> octavo_pool::Compacted {
        self.pool.compact(budget)
    }

    /// The same as far as it costs little, for who has other work too.
    pub fn tidy(&self, budget: usize) -> octavo_pool::Compacted {
        self.pool.tidy(budget)
    }

    /// The classes of the pool, packed objects and huge ones.
    #[must_use]
    pub fn classes(&self) -> [octavo_pool::classes::ClassRow; 2] {
        self.pool.classes()
    }

    /// What is stored and what it takes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let pool = self.pool.stats();
        let learnt = self.learnt_stats();
        Stats {
            objects: pool.objects,
            compressed_bytes: pool.compressed_bytes,
            pool_bytes: pool.used_bytes
                + Table::bytes_for(self.slots.touched())
                + self.slots.table_bytes()
                + learnt.bytes,
            learnt,
            ..self.counters.read()
        }
    }

    /// What a slot holds; nothing past the end.
    fn word(&self, slot: SlotId) -> Word {
        if slot.index() < self.table.len() { self.table.word(slot) } else { Word::Empty }
    }

    /// Lets go of the object of a page whose word was taken away.
    fn drop_page(&self, slot: SlotId, word: Word) {
        if let Word::Compressed(object) = word
            && self.table.unwant(slot, object)
        {
            match self.homes.leave(slot, object.unit).of_words(object.handle) {
                Ok(handle) => self.free_object(handle),
                Err(place) => self.free_away(place),
            }
            self.forget_tables(object);
        }
    }

    fn free_object(&self, handle: Handle) {
        let freed = self.pool.free(handle);
        debug_assert!(freed.is_ok(), "the pool lost {handle:?}");
    }

    /// For which CPU a folio gets its slots, and whether it is to be written back before others: one that
    /// is kept as it is, of which each page takes a page, where there is a file for it. Such folios have
    /// clusters of their own.
    fn lane(&self, how: How, words: &[Word]) -> Lane {
        let is_raw = |word: &Word| matches!(word, Word::Compressed(object) if object.codec == RAW);
        if self.homes.are_there() && words.iter().all(is_raw) {
            Lane { cpu: self.raw_cpu, goes_first: true }
        } else {
            Lane { cpu: how.cpu, goes_first: false }
        }
    }

    fn hash(&self, page: &[u8]) -> u64 {
        xxh3_64_with_secret(page, &self.secret)
    }
}

impl<A: Arena, D: Device> fmt::Debug for Store<A, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("stats", &self.counters.read()).finish_non_exhaustive()
    }
}

/// In which clusters a folio gets its slots.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Lane {
    cpu: usize,
    goes_first: bool,
}

/// Slots on their way back: emptied, not yet to be given out again.
struct Freed<'a, A: Arena, D: Device> {
    store: &'a Store<A, D>,
    slots: [SlotId; FREE_BATCH],
    len: usize,
    tally: Tally,
}

const FREE_BATCH: usize = 64;

impl<'a, A: Arena, D: Device> Freed<'a, A, D> {
    fn new(store: &'a Store<A, D>) -> Self {
        Self { store, slots: [SlotId::new(0); FREE_BATCH], len: 0, tally: Tally::default() }
    }

    /// Empties a slot. Of several threads that free it one comes past the test.
    fn free(&mut self, slot: SlotId) {
        let Self { store, .. } = self;
        if slot.index() >= store.table.len() {
            return;
        }
        let word = store.table.take(slot);
        if word == Word::Empty {
            return;
        }
        store.drop_page(slot, word);
        self.tally.count_freed(word);
        self.slots[self.len] = slot;
        self.len += 1;
        if self.len == FREE_BATCH {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        let freed = self.store.slots.free_many(&self.slots[..self.len]);
        debug_assert_eq!(freed, Ok(()), "a slot that held a page was not taken");
        self.len = 0;
    }

    fn finish(mut self) {
        self.give_back();
        self.store.counters.add(&self.tally);
    }
}
