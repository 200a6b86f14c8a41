//! Storing anew, more densely, what was stored in haste.
//!
//! Pages are stored one by one with a fast codec as long as there is room: they come back soonest
//! that way. When the store takes much of the limit, the sweep here goes through the stored pages
//! and compresses those that lie side by side again, several as one.
//!
//! ```text
//!   read      the pages of one unit, from their slots          gate open
//!   store     them as one object                               gate open
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
use octavo_page::{PAGE_SIZE, SlotId};
use octavo_store::{Form, PutError};
use octavo_sys::task;

/// After a round in which nothing could be condensed, nobody looks for so long.
const REST: Duration = Duration::from_millis(500);

/// Where the sweep is.
#[derive(Debug, Default)]
pub struct Condenser {
    at: usize,
    /// Pages condensed in this round.
    condensed: usize,
    rests_until: Duration,
}

/// Pages side by side, and where each is stored.
struct Block {
    start: usize,
    slots: [SlotId; RUN],
    pages: usize,
}

impl Pager {
    /// Looks through the next megabyte, while the budget wants it; false when there is nothing to
    /// do, or somebody else is at it.
    pub(crate) fn condense_step(&self, worker: &mut Worker) -> bool {
        let density = self.budget.density();
        if density == 0 {
            return false;
        }
        let tier = self.config.tiers[density];
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
        let unit = tier.unit.bytes();
        let end = region.end.min(region.start + BATCH * PAGE_SIZE);
        let mut start = region.start.next_multiple_of(unit);
        while start + unit <= end {
            condenser.condensed += self.condense(worker, tier, start);
            start += unit;
        }
        condenser.at = end;
        true
    }

    /// Condenses the unit of pages at `start`, if all are stored and not as `tier` would; gives how
    /// many were.
    fn condense(&self, worker: &mut Worker, tier: Tier, start: usize) -> usize {
        let Some(block) = self.block_at(start, tier.unit.pages()) else { return 0 };
        let gains = block.slots().iter().any(|slot| {
            self.store.unit_of(*slot).is_some_and(|unit| match unit.form {
                Form::SameFilled => false,
                Form::Compressed(codec) if codec == tier.codec => unit.pages < block.pages,
                Form::Compressed(_) | Form::Raw => true,
            })
        });
        if !gains {
            return 0;
        }
        let Worker { run, scratch, .. } = worker;
        let bytes = &mut run[..block.pages * PAGE_SIZE];
        let mut rest = &mut bytes[..];
        for row in block.slots().chunk_by(|slot, next| slot.offset(1) == *next) {
            let (pages, behind) = rest.split_at_mut(row.len() * PAGE_SIZE);
            if self.store.get(scratch, row[0], pages).is_err() {
                return 0; // freed meanwhile, or damaged, which its own fault will tell
            }
            rest = behind;
        }
        let mut stored = [Err(PutError::OutOfSlots)];
        self.store.put(scratch, self.how(tier), &[bytes], &mut stored);
        let Ok(first) = stored[0] else { return 0 };
        self.exchange(&block, first, bytes)
    }

    /// The pages at `start`, if all of them are stored.
    fn block_at(&self, start: usize, pages: usize) -> Option<Block> {
        let mut block = Block { start, slots: [SlotId::new(0); RUN], pages };
        for (n, slot) in block.slots[..pages].iter_mut().enumerate() {
            let Place::Stored(stored) = self.table.word(start + n * PAGE_SIZE).place() else {
                return None;
            };
            *slot = stored;
        }
        Some(block)
    }

    /// Has the words of `block` name the slots from `first` on, where nothing has changed; gives how
    /// many do.
    fn exchange(&self, block: &Block, first: SlotId, bytes: &[u8]) -> usize {
        let mut freed = [SlotId::new(0); RUN];
        let mut exchanged = 0;
        let gate = self.gate.write();
        for (n, page) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
            let (old, new) = (block.slots[n], first.offset(n as u32));
            let cell = self.table.get(block.start + n * PAGE_SIZE);
            let same = |word: Word| word.place() == Place::Stored(old);
            let unchanged = cell.filter(|cell| same(cell.load()) && self.store.matches(old, page));
            if let Some(cell) = unchanged {
                cell.replace(Word::new(Place::Stored(new)));
                exchanged += 1;
            }
            freed[n] = if unchanged.is_some() { old } else { new };
        }
        drop(gate);
        self.store.free(&freed[..block.pages]);
        self.counters.condensed.add(exchanged as u64);
        exchanged
    }
}

impl Block {
    fn slots(&self) -> &[SlotId] {
        &self.slots[..self.pages]
    }
}
