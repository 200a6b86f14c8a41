//! The page store: folios in, slots out.
//!
//! It joins the slot allocator, the codec and the pool, and owns the one word that says what a slot
//! holds. It knows nothing of processes, faults or addresses: a page is bytes, a place is a slot.
//!
//! ```text
//!   put: folio ─┬─ page filled with one value ───────────────────────► word
//!               └─ unit ── codec ── bytes ── pool ── handle ─────────► word of each other page
//!                                                                      hash of each other page
//!        then an aligned run of slots ── the words are published in it
//!
//!   get: word ── handle ── pool ── bytes ── codec ── page ── hash agrees? ── word unchanged? ──► out
//!
//!   free: word taken (by one thread) ── wanted bit cleared ── last of its unit? ── object freed
//!         └─ then the slot number may be given out again
//! ```
//!
//! A *unit* (4, 16 or 64 KiB) is compressed as one object; the pages in it are freed one by one and
//! the object goes with the last. `table.rs` states the protocol by which threads that get, free and
//! put at once keep out of each other's way, without locks.
//!
//! # Invariants
//!
//! - What [`Store::get`] gives is the page that was put, byte for byte: its hash was compared. A page
//!   whose object is damaged is an error, never other bytes.
//! - A folio that was refused leaves nothing behind: no slot, no object.
//! - Every object in the pool has at least one wanted page, whose word names it.
//! - Nothing is allocated after construction.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod errors;
#[cfg(test)]
#[cfg(loom)]
mod models;
mod scratch;
mod stats;
mod table;
mod word;

pub use errors::{GetError, NewError, PutError};
pub use octavo_pool::Arena;
pub use scratch::Scratch;
pub use stats::Stats;

use core::fmt;
use octavo_codec::Codec;
use octavo_page::{Handle, Order, PAGE_SIZE, SlotId, Unit};
use octavo_pool::{AllocError, Limit, Pool};
use octavo_slots::Slots;
use stats::{Counters, Tally};
use table::{Table, first_of_unit};
use word::{Fill, Object, Word};
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
    /// What compressed it; `None` for a same-filled page, which is a unit by itself.
    pub codec: Option<Codec>,
}

impl UnitInfo {
    /// Whether this is one page filled with one value, with no object behind it.
    #[must_use]
    pub const fn same_filled(&self) -> bool {
        self.codec.is_none()
    }
}

/// Pages, compressed, each under its slot. Any number of threads may use it at once.
pub struct Store<A: Arena> {
    table: Table,
    slots: Slots,
    pool: Pool<A>,
    secret: [u8; 192],
    largest_object: usize,
    counters: Counters,
}

impl<A: Arena> Store<A> {
    /// An empty store over `arena`.
    ///
    /// # Errors
    /// [`NewError`] when the slots or the pool cannot be of such a size.
    pub fn new(arena: A, config: Config) -> Result<Self, NewError> {
        let Config { capacity_pages, pool, cpus, seed } = config;
        let slots = octavo_slots::Config {
            capacity: capacity_pages,
            cpus,
            discards: false,
            clock: octavo_slots::no_clock,
        };
        let slots = Slots::new(slots).map_err(NewError::Slots)?;
        let largest_object = pool.max_object;
        Ok(Self {
            table: Table::new(slots.capacity()),
            slots,
            pool: Pool::new(arena, pool).map_err(NewError::Pool)?,
            secret: const_custom_default_secret(seed),
            largest_object,
            counters: Counters::default(),
        })
    }

    /// What lies under it.
    pub fn arena(&self) -> &A {
        self.pool.arena()
    }

    /// Pages it can hold.
    #[must_use]
    pub fn capacity_pages(&self) -> usize {
        self.table.len()
    }

    /// Stores a batch of folios. Each gets an aligned run of slots, page by page, or its own error
    /// in `out`; what happens to one changes nothing for the others.
    ///
    /// # Panics
    /// When a folio is no power of two of pages up to 2 MiB, or no whole number of units, or `out`
    /// is not as long as `folios`: bugs of the caller.
    pub fn put(
        &self,
        scratch: &mut Scratch,
        how: How,
        folios: &[&[u8]],
        out: &mut [Result<SlotId, PutError>],
    ) {
        assert_eq!(folios.len(), out.len(), "a result for each folio");
        let mut tally = Tally::default();
        for (folio, out) in folios.iter().zip(out) {
            *out = self.put_folio(scratch, how, folio);
            tally.count_put(&scratch.words[..folio.len() / PAGE_SIZE], *out);
        }
        self.counters.add(&tally);
    }

    /// Stores one folio: objects first, then slots, then the words that join the two.
    fn put_folio(&self, scratch: &mut Scratch, how: How, folio: &[u8]) -> Result<SlotId, PutError> {
        let pages = folio.len() / PAGE_SIZE;
        let order = Order::of_pages(pages).filter(|order| order.pages() * PAGE_SIZE == folio.len());
        let order = order.expect("a folio is a power of two of pages");
        let unit_pages = how.unit.pages();
        assert!(
            pages.is_multiple_of(unit_pages),
            "a folio of {pages} pages in units of {}",
            how.unit
        );

        let staged = folio.chunks_exact(how.unit.bytes()).enumerate().try_for_each(|(n, unit)| {
            let put = self.put_unit(scratch, how, unit, n * unit_pages);
            put.map_err(|error| (n * unit_pages, error))
        });
        if let Err((done, error)) = staged {
            self.unstage(&scratch.words[..done], unit_pages);
            return Err(error);
        }
        let Some(first) = self.slots.alloc(order, how.cpu) else {
            self.unstage(&scratch.words[..pages], unit_pages);
            return Err(PutError::OutOfSlots);
        };
        self.table.publish(first, &scratch.words[..pages], &scratch.hashes[..pages]);
        Ok(first)
    }

    /// Puts the object of one unit into the pool and leaves its pages' words and hashes in
    /// `scratch`, from `at` on.
    fn put_unit(
        &self,
        scratch: &mut Scratch,
        how: How,
        unit: &[u8],
        at: usize,
    ) -> Result<(), PutError> {
        let words = &mut scratch.words[at..at + how.unit.pages()];
        let mut filled = 0;
        for (page, word) in unit.chunks_exact(PAGE_SIZE).zip(&mut *words) {
            *word = Fill::of_page(page).map_or(Word::Empty, Word::Filled);
            filled += usize::from(*word != Word::Empty);
        }
        if filled == words.len() {
            return Ok(());
        }
        let room = how.fits_in.min(self.largest_object).min(unit.len());
        let bytes = &mut scratch.bytes[..room];
        let len = scratch
            .workspace
            .compress(how.codec, unit, bytes)
            .map_err(|octavo_codec::DoesNotFit| PutError::DoesNotFit)?;
        let handle = self.pool.store(&bytes[..len]).map_err(refused)?;
        let object = Object { handle, codec: how.codec.id(), unit: how.unit };
        let hashes = &mut scratch.hashes[at..];
        for ((page, word), hash) in unit.chunks_exact(PAGE_SIZE).zip(words).zip(hashes) {
            if *word == Word::Empty {
                *word = Word::Compressed(object);
                *hash = self.hash(page);
            }
        }
        Ok(())
    }

    /// Takes back the objects of a folio that will not be stored after all.
    fn unstage(&self, words: &[Word], unit_pages: usize) {
        for unit in words.chunks(unit_pages) {
            let object = unit.iter().find_map(|word| match word {
                Word::Compressed(object) => Some(object.handle),
                _ => None,
            });
            object.into_iter().for_each(|handle| self.free_object(handle));
        }
    }

    /// Reads the pages in `out.len() / 4096` slots from `slot` on. A unit of which several pages are
    /// wanted is decompressed once.
    ///
    /// A slot that another thread frees meanwhile gives its page or [`GetError::Empty`].
    ///
    /// # Errors
    /// [`GetError`] for the first slot that has no page, or a page that is lost; what is in `out` is
    /// then undefined.
    ///
    /// # Panics
    /// When `out` is no whole number of pages, or `scratch` was not made for the codec that the
    /// pages were put with: bugs of the caller.
    pub fn get(&self, scratch: &mut Scratch, slot: SlotId, out: &mut [u8]) -> Result<(), GetError> {
        let (mut pages, rest) = out.as_chunks_mut();
        assert!(rest.is_empty(), "a whole number of pages is read");
        let mut slot = slot;
        while !pages.is_empty() {
            let done = self.get_span(scratch, slot, pages)?;
            pages = &mut pages[done..];
            slot = slot.offset(done as u32);
        }
        Ok(())
    }

    /// Reads at least one page from `slot` on, as many as one object gives, and says how many.
    fn get_span(
        &self,
        scratch: &mut Scratch,
        slot: SlotId,
        pages: &mut [Page],
    ) -> Result<usize, GetError> {
        let mut doubts = 0;
        loop {
            let object = match self.word(slot) {
                Word::Empty => return Err(GetError::Empty { slot }),
                Word::Poisoned => return Err(GetError::Poisoned { slot }),
                Word::Filled(fill) => {
                    fill.write(&mut pages[0]);
                    return Ok(1);
                }
                Word::Compressed(object) => object,
            };
            // In doubt the page is read alone: what is asked with it cannot make it unreadable.
            let reach = if doubts == 0 { pages.len() } else { 1 };
            match self.get_from_object(scratch, slot, object, &mut pages[..reach]) {
                Read::Good(pages) => return Ok(pages),
                // The page was freed while it was read. Another thread got on, so this ends.
                Read::Changed => {}
                // Or the slot was freed and filled again to the very same word: look twice.
                Read::Doubtful(_) if doubts == 0 => doubts += 1,
                Read::Doubtful(slot) => return Err(GetError::Damaged { slot }),
            }
        }
    }

    /// Reads the pages of one object: `slot`'s and those behind it that are next to it in the unit
    /// and asked for.
    fn get_from_object(
        &self,
        scratch: &mut Scratch,
        slot: SlotId,
        object: Object,
        pages: &mut [Page],
    ) -> Read {
        let unit_pages = object.unit.pages();
        let offset = slot.index() % unit_pages;
        let mut words = [Word::Compressed(object); Unit::MAX.pages()];
        let mut span = 1;
        while span < pages.len().min(unit_pages - offset) {
            let word = self.word(slot.offset(span as u32));
            if !matches!(word, Word::Filled(_)) && word != Word::Compressed(object) {
                break;
            }
            words[span] = word;
            span += 1;
        }
        let pages = &mut pages[..span];

        let whole = span == unit_pages;
        let Scratch { workspace, unit, .. } = scratch;
        let room = if whole { pages.as_flattened_mut() } else { &mut unit[..object.unit.bytes()] };
        let decoded = self.pool.read(object.handle, |bytes| {
            let codec = Codec::from_id(object.codec)?;
            let wanted = (offset + span) * PAGE_SIZE;
            workspace.decompress_prefix(codec, bytes, room, wanted).ok()
        });
        let decoded = matches!(decoded, Ok(Some(())));
        for (n, page) in pages.iter_mut().enumerate() {
            let slot = slot.offset(n as u32);
            if let Word::Filled(fill) = words[n] {
                fill.write(page);
                continue;
            }
            if !whole {
                page.copy_from_slice(&unit[(offset + n) * PAGE_SIZE..][..PAGE_SIZE]);
            }
            let good = decoded && self.hash(page) == self.table.hash(slot);
            if !self.table.still(slot, words[n]) {
                return Read::Changed;
            }
            if !good {
                return Read::Doubtful(slot);
            }
        }
        Read::Good(span)
    }

    /// The unit in which the page of a slot was stored; `None` when there is no page.
    ///
    /// While other threads free pages the answer is of the moment.
    #[must_use]
    pub fn unit_of(&self, slot: SlotId) -> Option<UnitInfo> {
        let object = match self.word(slot) {
            Word::Empty | Word::Poisoned => return None,
            Word::Filled(_) => {
                let codec = None;
                return Some(UnitInfo { first: slot, pages: 1, wanted: 1, codec });
            }
            Word::Compressed(object) => object,
        };
        let wanted = self.table.wanted(slot, object);
        self.table.still(slot, Word::Compressed(object)).then(|| UnitInfo {
            first: first_of_unit(slot, object.unit),
            pages: object.unit.pages(),
            wanted,
            codec: Codec::from_id(object.codec),
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

    /// The classes of the pool, packed objects and huge ones.
    #[must_use]
    pub fn classes(&self) -> [octavo_pool::classes::ClassRow; 2] {
        self.pool.classes()
    }

    /// What is stored and what it takes.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let pool = self.pool.stats();
        Stats {
            objects: pool.objects,
            compressed_bytes: pool.compressed_bytes,
            pool_bytes: pool.used_bytes
                + Table::bytes_for(self.slots.touched())
                + self.slots.table_bytes(),
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
            self.free_object(object.handle);
        }
    }

    fn free_object(&self, handle: Handle) {
        let freed = self.pool.free(handle);
        debug_assert!(freed.is_ok(), "the pool lost {handle:?}");
    }

    fn hash(&self, page: &[u8]) -> u64 {
        xxh3_64_with_secret(page, &self.secret)
    }
}

impl<A: Arena> fmt::Debug for Store<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("stats", &self.counters.read()).finish_non_exhaustive()
    }
}

type Page = [u8; PAGE_SIZE];

/// How reading pages from an object went.
enum Read {
    /// This many pages are as they were put.
    Good(usize),
    /// A page was freed meanwhile.
    Changed,
    /// The page of this slot is not as it was put.
    Doubtful(SlotId),
}

/// Why the pool did not take a unit.
fn refused(error: AllocError) -> PutError {
    match error {
        AllocError::OutOfFrames | AllocError::Full(Limit::Pages(_)) => PutError::OutOfFrames,
        AllocError::Full(Limit::Objects(_)) => PutError::OutOfObjects,
        AllocError::Zero | AllocError::TooLarge { .. } => PutError::DoesNotFit,
    }
}

/// Slots on their way back: emptied, not yet to be given out again.
struct Freed<'a, A: Arena> {
    store: &'a Store<A>,
    slots: [SlotId; FREE_BATCH],
    len: usize,
    tally: Tally,
}

const FREE_BATCH: usize = 64;

impl<'a, A: Arena> Freed<'a, A> {
    fn new(store: &'a Store<A>) -> Self {
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
