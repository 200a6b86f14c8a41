//! Compaction: the zspage that wastes most is emptied into the holes of the others.
//!
//! Nothing new is put into this *victim*: its holes leave the bins. Its objects are moved one by one,
//! best fit; pages come free as holes close, and in the end the zspage goes back. An object that
//! somebody reads stays, and then the victim's holes return to the bins.
//!
//! When only holes are left that fit nothing, emptying a zspage is copying it to a fresh one, densely:
//! still worth it, but dearer the less is wasted. So zspages are emptied in rounds, and a round
//! that won no page ends the work until there is more waste than it left.
#![allow(unsafe_code)] // copies objects in raw memory

use super::{HOLE, Held, INDEX, Reach, Run, block_words};
use crate::Arena;
use crate::ground::PAGE_WORDS;
use crate::handles::{NIL, Object, Word};
use crate::zspages::Kind;

/// Descriptors looked at to choose a zspage to empty.
const LOOK_VICTIM: u32 = 4096;
/// A zspage is worth emptying when a 128th of its pages is waste.
const WORTH_SHIFT: u32 = 7;
/// Zspages emptied without a page won, after which a lane counts as dense.
const ROUND: u32 = 8;

/// What a step of compaction did.
pub(crate) struct Step {
    pub moved: usize,
    /// There is nothing worth doing in this lane now.
    pub dense: bool,
}

/// How far emptying a zspage came.
enum Evacuated {
    /// The moves are used up.
    Budget(usize),
    /// Every object that can be moved was.
    End(usize),
}

impl<A: Arena> Held<'_, A> {
    /// Moves up to `moves` objects out of the zspage that wastes most, and goes on with the next.
    pub(crate) fn compact(&mut self, moves: usize) -> Step {
        self.bury();
        let mut step = Step { moved: 0, dense: self.is_settled() };
        if step.dense {
            return step;
        }
        while step.moved < moves && !step.dense {
            if self.lane.victim == NIL && !self.choose_victim() {
                step.dense = true;
                break;
            }
            let victim = self.lane.victim;
            match self.evacuate(victim, moves - step.moved) {
                Evacuated::Budget(moved) => step.moved += moved,
                Evacuated::End(moved) => {
                    step.moved += moved;
                    step.dense = self.close_victim(victim);
                }
            }
        }
        self.clear_stock(0..u32::MAX);
        if step.dense {
            self.lane.round = 0;
            self.lane.settled = self.lane.settled.max(self.lane.count.waste());
        }
        step
    }

    /// Whether there is no more waste than compaction could not help last time.
    fn is_settled(&mut self) -> bool {
        let waste = self.lane.count.waste();
        self.lane.settled = self.lane.settled.min(waste);
        self.lane.victim == NIL
            && waste < self.lane.settled + (self.lane.count.packed_words >> WORTH_SHIFT)
    }

    /// The emptiest zspage of some, if the lane wastes enough for the trouble.
    fn choose_victim(&mut self) -> bool {
        if self.lane.count.freeable() == 0 {
            return false;
        }
        let (zspages, used) = (&self.ground.zspages, self.ground.zspages.used());
        let mut best: Option<(u32, u32)> = None;
        for _ in 0..used.min(LOOK_VICTIM) {
            self.lane.hand = if self.lane.hand + 1 < used { self.lane.hand + 1 } else { 0 };
            let zspage = self.lane.hand;
            if !zspages.is(zspage, self.number, Kind::Packed) {
                continue;
            }
            let room = zspages.pages(zspage) * PAGE_WORDS;
            let waste = room - zspages.fill(zspage);
            // Parts in 2^16 of its pages that it fills.
            let fullness = (u64::from(zspages.fill(zspage)) << 16).div_euclid(u64::from(room));
            // The open one is still being filled, so there has to be more to win.
            let worth = if zspage == self.lane.open {
                waste >= (room >> 2).max(2 * PAGE_WORDS)
            } else {
                waste >= room >> WORTH_SHIFT
            };
            if worth && best.is_none_or(|(_, least)| (fullness as u32) < least) {
                best = Some((zspage, fullness as u32));
            }
        }
        let Some((victim, _)) = best else { return false };
        self.for_holes(victim, Self::unlink);
        self.lane.victim = victim;
        if self.lane.round == 0 {
            self.lane.round_pages = self.lane.count.packed_pages;
        }
        true
    }

    /// Opens the victim again if it is still there. True when the lane counts as dense.
    fn close_victim(&mut self, victim: u32) -> bool {
        if self.lane.victim == victim {
            self.lane.victim = NIL;
            self.for_holes(victim, Self::link);
        }
        self.lane.round += 1;
        if self.lane.round < ROUND {
            return false;
        }
        self.lane.round = 0;
        self.lane.count.packed_pages >= self.lane.round_pages
    }

    pub(super) fn for_holes(&mut self, zspage: u32, mut each: impl FnMut(&mut Self, Run)) {
        let whole = self.whole(zspage);
        let mut at = whole.at;
        while at - whole.at < whole.words {
            if self.tag(at) & HOLE != 0 {
                let hole = self.hole(at);
                each(self, hole);
                at = hole.end();
            } else {
                at = self.named(at).1.end();
            }
        }
    }

    /// The handle's word and the extent of the block at `at`.
    pub(super) fn named(&self, at: u32) -> (Word, Run) {
        let word = self.handles.load(self.tag(at) & INDEX);
        (word, self.block(at, word.object().len))
    }

    fn evacuate(&mut self, victim: u32, moves: usize) -> Evacuated {
        let whole = self.whole(victim);
        let (mut at, mut moved) = (whole.at, 0);
        while at - whole.at < whole.words {
            if self.tag(at) & HOLE != 0 {
                at = self.hole(at).end();
                continue;
            }
            if moved == moves {
                return Evacuated::Budget(moved);
            }
            let (word, block) = self.named(at);
            if !self.relocate(word, block) {
                at = block.end();
                continue;
            }
            moved += 1;
            match self.release_block(block) {
                Some(hole) => at = hole.end(),
                None => break,
            }
        }
        Evacuated::End(moved)
    }

    /// Copies a block's object elsewhere and says so in its handle. False when it has to stay.
    fn relocate(&mut self, word: Word, block: Run) -> bool {
        let index = self.tag(block.at) & INDEX;
        let Some(object) = word.movable() else { return false };
        let Ok(place) = self.place_packed(block_words(object.len), index, Reach::Grow) else {
            return false;
        };
        // SAFETY: this lane's lock keeps the old block from being released, even if its handle is
        // freed now; the new block was carved for it this moment.
        unsafe { self.ground.copy(object, place) };
        if self.handles.relocate(index, word, place) {
            return true;
        }
        let copy = self.block_of(Object { place, len: object.len });
        self.release_block(copy);
        false
    }
}
