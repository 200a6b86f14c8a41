//! Storing anew, more densely, what was stored in haste.
//!
//! Pages are stored one by one with a fast codec as long as there is room: they come back soonest
//! that way. When the store takes much of the limit, the sweep here goes through the stored pages
//! and compresses those that lie side by side again, several as one.
//!
//! ```text
//!   read      the pages of whole units, from their slots       gate open
//!   store     each unit as one object                          gate open
//!   exchange  each word that still names the old slot, whose
//!             page is still that page, names the new one       gate shut
//!   free      the slots that no word names
//! ```
//! Between reading and exchanging, a page may have come back, changed and been stored again, in the
//! very slot it had: so the hash of what is there is compared, not the number alone.

use crate::pager::{Pager, Tier, Worker};
use crate::program::BATCH;
use crate::serve::RUN;
use crate::table::{Place, Word};
use core::time::Duration;
use octavo_accel::AnyEngine;
use octavo_page::sync::atomic::Ordering;
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{Form, PutError, Scratch};
use octavo_sys::task;

/// After a round in which nothing could be condensed, nobody looks for so long.
const REST: Duration = Duration::from_millis(500);

/// Pages of a block, one in so many, that must be stored in another way for the block to be worth it: a
/// page that comes back and leaves again all the time would have those beside it stored anew each time.
const WORTH: usize = 4;

/// Where the sweep is.
#[derive(Debug, Default)]
pub struct Condenser {
    at: usize,
    /// Pages condensed in this round.
    condensed: usize,
    rests_until: Duration,
}

/// Pages side by side, and where those are stored that are to be stored anew: whole units.
struct Block {
    start: usize,
    slots: [Option<SlotId>; RUN],
}

impl Block {
    /// Leaves out the units of which a page is missing.
    fn keep_whole(&mut self, unit: Unit) {
        for slots in self.slots.chunks_exact_mut(unit.pages()) {
            if slots.iter().any(Option::is_none) {
                slots.fill(None);
            }
        }
    }
}

impl Pager {
    /// Looks through the next megabyte, while the budget wants it; false when there is nothing to
    /// do, or somebody else is at it.
    pub(crate) fn condense_step(&self, worker: &mut Worker) -> bool {
        let density = self.budget.density();
        if density == 0 {
            return false;
        }
        let tier = self.tier_at(density);
        let Some(mut condenser) = self.condenser.try_lock() else { return false };
        if task::now() < condenser.rests_until {
            return false;
        }
        let Some(region) = self.regions.lock().at_or_after(condenser.at) else {
            let idle = condenser.condensed == 0;
            if idle {
                condenser.rests_until = task::now() + REST;
            }
            (condenser.at, condenser.condensed) = (0, 0);
            return !idle;
        };
        let end = region.end.min(region.start + BATCH * PAGE_SIZE);
        let mut start = region.start / Unit::MAX.bytes() * Unit::MAX.bytes();
        while start < end {
            condenser.condensed += self.condense(worker, tier, start);
            start += Unit::MAX.bytes();
        }
        condenser.at = start; // whole blocks are done, also where the last one goes on behind `end`
        true
    }

    /// Condenses the units at `start`, as long as the largest one, that are worth it; gives how many pages.
    fn condense(&self, worker: &mut Worker, tier: Tier, start: usize) -> usize {
        let mut block = self.block_at(start, tier);
        let Worker { run, scratch, .. } = worker;
        self.read(scratch, &mut block, run);
        block.keep_whole(tier.unit);
        let (mut folios, mut at) = ([&[][..]; RUN], [0; RUN]);
        let mut count = 0;
        for (n, unit) in run.chunks_exact(tier.unit.bytes()).enumerate() {
            let first = n * tier.unit.pages();
            if block.slots[first].is_some() {
                (folios[count], at[count]) = (unit, first);
                count += 1;
            }
        }
        if count == 0 {
            return 0;
        }
        let mut stored = [Err(PutError::OutOfSlots); RUN];
        self.store.put(scratch, self.how(tier), &folios[..count], &mut stored[..count]);
        let mut to = [None; RUN];
        for (first, stored) in at.into_iter().zip(stored).take(count) {
            for n in 0..tier.unit.pages() {
                to[first + n] = stored.ok().map(|slot| slot.offset(n as u32));
            }
        }
        self.exchange(&block, &to, run)
    }

    /// The units at `start` that are stored, and not as `tier` would.
    fn block_at(&self, start: usize, tier: Tier) -> Block {
        let mut block = Block { start, slots: [None; RUN] };
        for (n, slot) in block.slots.iter_mut().enumerate() {
            if let Place::Stored(stored) = self.table.word(start + n * PAGE_SIZE).place()
                && !self.store.is_away(stored)
            {
                *slot = Some(stored);
            }
        }
        // What a file is to take as it is leaves soon.
        let raw_leaves = self.keeps_raw.load(Ordering::Relaxed);
        let is_stray = |slot: &SlotId| {
            self.store.unit_of(*slot).is_some_and(|unit| match unit.form {
                Form::SameFilled => false,
                Form::Compressed(codec) if codec == tier.codec => unit.pages < tier.unit.pages(),
                Form::Compressed(_) => true,
                Form::Raw => !raw_leaves,
            })
        };
        for slots in block.slots.chunks_exact_mut(tier.unit.pages()) {
            let strays = slots.iter().flatten().filter(|slot| is_stray(slot)).count();
            if strays == 0 || strays * WORTH < slots.len() {
                slots.fill(None);
            }
        }
        block.keep_whole(tier.unit);
        block
    }

    /// Reads the pages of `block`, each to its place in `bytes`; those of a run that cannot be read, since one
    /// of them is freed by now, or damaged, which its own fault will tell, are left out.
    fn read(&self, scratch: &mut Scratch<AnyEngine>, block: &mut Block, bytes: &mut [u8]) {
        let follows = |slot: &Option<SlotId>, next: &Option<SlotId>| {
            slot.is_some() && slot.map(|slot| slot.offset(1)) == *next
        };
        let mut at = 0;
        for slots in block.slots.chunk_by_mut(follows) {
            let pages = &mut bytes[at * PAGE_SIZE..][..slots.len() * PAGE_SIZE];
            at += slots.len();
            if let Some(first) = slots[0]
                && self.store.get(scratch, first, pages).is_err()
            {
                slots.fill(None);
            }
        }
    }

    /// Has the words of `block` name the slots in `to`, where nothing has changed; gives how many do.
    fn exchange(&self, block: &Block, to: &[Option<SlotId>; RUN], bytes: &[u8]) -> usize {
        let mut freed = [SlotId::new(0); RUN];
        let (mut count, mut exchanged) = (0, 0);
        let gate = self.gate.write();
        for (n, page) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
            let (Some(old), Some(new)) = (block.slots[n], to[n]) else { continue };
            let cell = self.table.get(block.start + n * PAGE_SIZE);
            let same = |word: Word| word.place() == Place::Stored(old);
            let unchanged = cell.filter(|cell| same(cell.load()) && self.store.matches(old, page));
            if let Some(cell) = unchanged {
                cell.replace(Word::new(Place::Stored(new)));
                exchanged += 1;
            }
            freed[count] = if unchanged.is_some() { old } else { new };
            count += 1;
        }
        drop(gate);
        self.store.free(&freed[..count]);
        self.counters.condensed.add(exchanged as u64);
        exchanged
    }
}
