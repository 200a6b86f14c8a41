//! What becomes of the pages of a batch: stored, or back where they were.
//!
//! A server may bring a parked page back meanwhile, and an event may discard or move it. Whoever
//! changes the word from `Parked` owns the outcome.

use crate::evict::Batch;
use crate::pager::{Pager, Tier, Worker};
use crate::program::Brought;
use crate::start;
use crate::table::{Place, WARM, Word};
use octavo_page::sync::atomic::Ordering;
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{How, PutError};
use octavo_sys::Errno;

/// Folios handed to the store in one call, at most, and the pages in them: a fork waits for no more.
const PUT_AT_ONCE: usize = 32;
const PAGES_AT_ONCE: usize = 32;

impl Pager {
    /// Stores the pages of `batch`, or puts them back: first the units whose pages are all there,
    /// then page by page what is left, also of units that do not compress as a whole. False when a fork
    /// wants rest: then it can be gone on with later.
    pub(crate) fn store_batch(&self, worker: &mut Worker, batch: &mut Batch<'_>) -> bool {
        self.settle_clean(batch);
        let Tier { codec, unit: largest } = self.tier();
        let mut units = Unit::ALL.into_iter().rev().filter(|unit| *unit <= largest);
        if !units.all(|unit| self.store_units(worker, batch, Tier { codec, unit })) {
            return false;
        }
        self.put_back_refused(worker, batch);
        true
    }

    fn store_units(&self, worker: &mut Worker, batch: &mut Batch<'_>, tier: Tier) -> bool {
        let unit = tier.unit;
        let how = How { refusal_bytes: self.refusal_bytes(unit), ..self.how(tier) };
        let staging = batch.staging;
        let mut at = 0;
        while at < batch.pages() {
            if start::REST.is_wanted() {
                return false;
            }
            let mut first = [0usize; PUT_AT_ONCE];
            let mut folios: [&[u8]; PUT_AT_ONCE] = [&[]; PUT_AT_ONCE];
            let mut n = 0;
            while at < batch.pages() && n < PAGES_AT_ONCE / unit.pages() {
                if batch.has_unit(at, unit) {
                    (first[n], folios[n]) = (at, self.staged(staging, at, unit.pages()));
                    n += 1;
                    at += unit.pages();
                } else {
                    at += 1;
                }
            }
            let mut outcomes = [Err(PutError::OutOfSlots); PUT_AT_ONCE];
            self.store.put(&mut worker.scratch, how, &folios[..n], &mut outcomes[..n]);
            for (first, outcome) in first.into_iter().zip(outcomes).take(n) {
                match outcome {
                    Ok(slot) => self.settle_stored(batch, first, unit, slot),
                    Err(why) if unit == Unit::K4 => {
                        batch.note(first, None);
                        batch.note_refused(first, Some(why));
                    }
                    Err(_) => {}
                }
            }
        }
        true
    }

    /// What it costs, in bytes a page, when the store refuses a unit that does not compress: nothing, for its
    /// pages stay in the program. But where a file takes them as they are, they need not stay; by single
    /// pages, of which those that do compress are not written.
    fn refusal_bytes(&self, unit: Unit) -> usize {
        let may_be_raw = unit == Unit::K4 && self.keeps_raw.load(Ordering::Relaxed);
        if may_be_raw { PAGE_SIZE + 1 } else { 0 }
    }

    /// Pages that came back and were not written since: their slot is good again.
    fn settle_clean(&self, batch: &mut Batch<'_>) {
        for at in 0..batch.pages() {
            let Some(Place::Kept(slot) | Place::Stored(slot)) = batch.was(at) else { continue };
            if !self.store.matches(slot, self.staged(batch.staging, at, 1)) {
                self.store.free(&[slot]);
                batch.note(at, Some(Place::Fresh));
                continue;
            }
            batch.note(at, None);
            batch.note_freed(1);
            if self.settle(batch, at, Word::new(Place::Stored(slot))) {
                self.counters.clean_evictions.add(1);
            } else {
                self.store.free(&[slot]);
            }
        }
    }

    fn settle_stored(&self, batch: &mut Batch<'_>, first: usize, unit: Unit, slot: SlotId) {
        batch.note_freed(unit.pages());
        for page in 0..unit.pages() {
            let slot = slot.offset(page as u32);
            batch.note(first + page, None);
            if self.settle(batch, first + page, Word::new(Place::Stored(slot))) {
                self.counters.evictions.add(1);
            } else {
                self.store.free(&[slot]);
            }
        }
    }

    /// Changes the word of a parked page to `to`; false when it is parked no more. A page that is
    /// moved meanwhile (see [`crate::events`]) is looked for at its new address.
    fn settle(&self, batch: &Batch<'_>, at: usize, to: Word) -> bool {
        let mut address = batch.staging.address_of(at);
        loop {
            let cell = self.table.get(address);
            if cell.is_some_and(|cell| cell.change(batch.parked(at), to).is_ok()) {
                return true;
            }
            let now = batch.staging.address_of(at);
            if now == address {
                return false;
            }
            address = now;
        }
    }

    /// What the store did not take goes back where it was, in runs: the kernel flushes TLBs once for
    /// each.
    fn put_back_refused(&self, worker: &mut Worker, batch: &mut Batch<'_>) {
        let mut at = 0;
        while at < batch.pages() {
            let refused = |at: &usize| batch.refused(*at).is_some();
            let run = (at..batch.pages()).take_while(refused).count();
            at += if run == 0 { 1 } else { self.put_back_run(worker, batch, at, run) };
        }
    }

    /// Puts back the first of `pages` pages from number `at` on, as many as can go together; gives how
    /// many are done with.
    fn put_back_run(
        &self,
        worker: &mut Worker,
        batch: &Batch<'_>,
        at: usize,
        pages: usize,
    ) -> usize {
        // Shut: a server that found a page parked may be copying out of staging.
        let gate = self.gate.write();
        let address = batch.staging.address_of(at);
        let still = |n: &usize| {
            let address = address + n * PAGE_SIZE;
            let same = batch.staging.address_of(at + n) == address;
            same && self.table.word(address) == batch.parked(at + n)
        };
        let pages = (0..pages).take_while(still).count();
        if pages == 0 {
            return 1; // brought back by a server, or discarded
        }
        for n in 0..pages {
            self.give_first(address + n * PAGE_SIZE, self.staged(batch.staging, at + n, 1));
        }
        let (done, stopped) = self.program.put_back(batch.staging, at..at + pages, address);
        (at..at + done).for_each(|at| self.settle_back(batch, at));
        let brought = match stopped {
            None => return done,
            Some(Errno::EAGAIN) => Brought::Stale,
            // Nobody else brings it with the gate shut: it went with those before it.
            Some(Errno::EEXIST) => Brought::All,
            // The range may have become read-only, where only a copy can go.
            Some(_) => {
                let page = self.staged(batch.staging, at + done, 1);
                self.program.bring(address + done * PAGE_SIZE, page)
            }
        };
        match brought {
            Brought::All => self.settle_back(batch, at + done),
            Brought::Stale | Brought::NoMemory => {
                drop(gate);
                self.catch_up(worker);
                return done;
            }
            // There: a server is just bringing it. Gone: so is the process.
            Brought::There(_) | Brought::Gone => {}
        }
        done + 1
    }

    fn settle_back(&self, batch: &Batch<'_>, at: usize) {
        let dense = batch.refused(at) == Some(PutError::DoesNotFit);
        let back = if dense { Word::FRESH.dense() } else { Word::FRESH.heated(WARM) };
        self.settle(batch, at, back);
        self.counters.put_back.add(1);
    }
}
