//! Storing anew, more densely, what was stored in haste.
//!
//! Pages are stored one by one with a fast codec as long as there is room: they come back soonest
//! that way. When the store takes much of the limit, the sweep here goes through the stored pages
//! and compresses those that lie side by side again, several as one. Where the program leaves what is stored alone
//! ([`Calm`]), there is time for that with room left as well, page by page: as a page it comes back soonest.
//!
//! ```text
//!   read      the pages of whole units, from their slots       gate open
//!   store     each unit as one object                          gate open
//!   exchange  each word that still names the old slot, whose
//!             page is still that page, names the new one       gate shut
//!   free      the slots that no word names
//! ```
//! What another process has in common with this one is left as it is: stored anew, it would take memory twice.
//!
//! Between reading and exchanging, a page may have come back, changed and been stored again, in the
//! very slot it had: so the hash of what is there is compared, not the number alone.

use crate::calm::Calm;
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

/// The same where there is room: hardly any page comes to be stored meanwhile.
const LONG_REST: Duration = Duration::from_secs(20);

/// Blocks that one step looks through, at most: a megabyte.
const LOOKS: usize = BATCH / RUN;

/// Blocks that one step of an evictor stores anew, at most.
pub(crate) const AT_EASE: usize = LOOKS;

/// Blocks that a fault has stored anew before it goes on, where the store fills the limit: some 0.2 ms each,
/// and one frees more than what a fault brings is going to take.
pub(crate) const FOR_A_FAULT: usize = 2;

/// Where the sweep is.
#[derive(Debug, Default)]
pub struct Condenser {
    at: usize,
    calm: Calm,
    /// Pages condensed in this round.
    condensed: usize,
    rests_until: Duration,
    /// [`Aim::worth`] as it was when nothing was found.
    found_none_worth: usize,
}

/// What the store is to be like.
struct Aim {
    tier: Tier,
    /// Pages of a unit, one in so many, that must be stored in another way for it to be worth storing anew: more
    /// where it is wanted more.
    worth: usize,
    rest: Duration,
}

impl Condenser {
    /// Whether it is too soon to look again: nobody has become less exacting since.
    fn rests(&self, aim: &Aim) -> bool {
        aim.worth <= self.found_none_worth && task::now() < self.rests_until
    }

    /// Ends a round; whether it was of use.
    fn end_round(&mut self, aim: &Aim) -> bool {
        let of_use = self.condensed > 0;
        if !of_use {
            (self.rests_until, self.found_none_worth) = (task::now() + aim.rest, aim.worth);
        }
        (self.at, self.condensed) = (0, 0);
        of_use
    }
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
    /// Looks through the next megabyte, while there is something to aim at, or until `most` blocks were tried;
    /// false when there is nothing to do. Several helpers may be at it, each at blocks of its own.
    pub(crate) fn condense_step(&self, worker: &mut Worker, most: usize) -> bool {
        let Some(aim) = self.aim() else { return false };
        let mut tried = 0;
        for _ in 0..LOOKS {
            let start = match self.next_block(&aim) {
                Ok(start) => start,
                Err(goes_on) => return goes_on,
            };
            let Some(pages) = self.condense(worker, &aim, start) else { continue };
            self.condenser.lock().condensed += pages;
            tried += 1;
            if tried == most {
                break;
            }
        }
        true
    }

    /// What the budget wants, or else what there is time for. Of single pages each is worth it.
    fn aim(&self) -> Option<Aim> {
        let density = self.budget.density();
        if density > 0 {
            let worth = self.budget.worth_condensing();
            return Some(Aim { tier: self.tier_at(density), worth, rest: REST });
        }
        let moved = self.counters.faults.get() + self.counters.evictions.get();
        let is_calm = self.condenser.lock().calm.look(task::now(), moved);
        let tier = self.config.ladders.at_leisure();
        is_calm.then_some(Aim { tier, worth: 1, rest: LONG_REST })
    }

    /// Where the next block begins; where the sweep has gone round, whether to go on.
    fn next_block(&self, aim: &Aim) -> Result<usize, bool> {
        let mut condenser = self.condenser.lock();
        if condenser.rests(aim) {
            return Err(false);
        }
        let Some(region) = self.regions.lock().at_or_after(condenser.at) else {
            return Err(condenser.end_round(aim));
        };
        // Whole blocks, also where one goes on behind a region's end.
        let start = region.start / Unit::MAX.bytes() * Unit::MAX.bytes();
        condenser.at = start + Unit::MAX.bytes();
        Ok(start)
    }

    /// Condenses the units at `start`, as long as the largest one, that are worth it; gives how many pages, or
    /// `None` where nothing is.
    fn condense(&self, worker: &mut Worker, aim: &Aim, start: usize) -> Option<usize> {
        let tier = aim.tier;
        let mut block = self.block_at(start, aim);
        let Worker { run, scratch, decoded, .. } = worker;
        *decoded = None;
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
            return None;
        }
        let mut stored = [Err(PutError::OutOfSlots); RUN];
        self.store.put(scratch, self.how(tier), &folios[..count], &mut stored[..count]);
        let mut to = [None; RUN];
        for (first, stored) in at.into_iter().zip(stored).take(count) {
            for n in 0..tier.unit.pages() {
                to[first + n] = stored.ok().map(|slot| slot.offset(n as u32));
            }
        }
        Some(self.exchange(&block, &to, run))
    }

    /// The units at `start` that are stored, and not as is aimed at: so many of their pages at least as it is
    /// worth it for.
    fn block_at(&self, start: usize, aim: &Aim) -> Block {
        let &Aim { tier, worth, .. } = aim;
        let mut block = Block { start, slots: [None; RUN] };
        for (n, slot) in block.slots.iter_mut().enumerate() {
            if let Place::Stored(stored) = self.table.word(start + n * PAGE_SIZE).place()
                && !self.store.is_away(stored)
                && !self.is_common(stored)
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
            if strays == 0 || strays * worth < slots.len() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_codec::Codec;

    #[test]
    fn who_found_nothing_rests_but_not_from_what_is_wanted_more() {
        let tier = Tier { codec: Codec::Lz4, unit: Unit::K4 };
        let [at_leisure, wanted, wanted_more] =
            [(1, LONG_REST), (4, REST), (8, REST)].map(|(worth, rest)| Aim { tier, worth, rest });
        let mut condenser = Condenser::default();
        assert!(!condenser.rests(&at_leisure));
        condenser.condensed = 1;
        assert!(condenser.end_round(&at_leisure) && !condenser.rests(&at_leisure));
        assert!(!condenser.end_round(&at_leisure) && condenser.rests(&at_leisure));
        assert!(!condenser.rests(&wanted));
        assert!(!condenser.end_round(&wanted));
        assert!(
            condenser.rests(&wanted)
                && condenser.rests(&at_leisure)
                && !condenser.rests(&wanted_more)
        );
    }
}
