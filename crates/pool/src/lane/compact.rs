//! Compaction: the zspage that wins most by a move is emptied into the holes of the others.
//!
//! Nothing new is put into this *victim*: its holes leave the bins. Its objects are moved one by one,
//! best fit; pages come free as holes close, and in the end the zspage goes back. An object that
//! somebody reads stays, and then the victim's holes return to the bins.
//!
//! When only holes are left that fit nothing, emptying a zspage is copying it to a fresh one, densely:
//! still worth it, but dearer the less is wasted. So zspages are emptied in rounds, and a round
//! that won no page ends the work until there is more waste than it left.
//!
//! Who calls for compaction gets it; who has other work too gets what costs little (`tidy`), and keeps the stock,
//! since what is emptied beside other work is soon filled again. Besides, growth pays: a new object for which pages are taken, while so
//! much is wasted, moves a few others. So churn fills no small pool with holes, and what is only freed, or
//! finds a hole, costs nothing more.
#![allow(unsafe_code)] // copies objects in raw memory

use super::{HOLE, Held, INDEX, Reach, Run, block_words};
use crate::Arena;
use crate::ground::PAGE_WORDS;
use crate::handles::{NIL, Object, Word};
use crate::zspages::Kind;
use octavo_page::sync::atomic::Ordering;

/// Descriptors looked at to choose a zspage to empty.
const LOOK_VICTIM: u32 = 4096;
/// A lane that wastes less, in pages and as a part of what fills it, does not ask new objects to pay.
const OWED: usize = if cfg!(all(test, not(loom))) { 1 } else { 16 };
const OWED_PART: usize = 80;
/// Moves that a new object pays which had the lane grow.
const PAID: usize = 16;
/// Zspages emptied without a page won, after which a lane counts as dense.
const ROUND: u32 = 8;

/// For what there is compaction. Each rests by itself: what is not worth it to one may be to the other.
#[derive(Clone, Copy)]
enum Why {
    /// Somebody asked for it.
    Asked,
    /// Growth is to be kept in bounds.
    Owed,
    /// Somebody has a moment beside other work.
    Beside,
}

impl Why {
    /// A zspage is worth emptying when that costs so many moves for a page at most, were its objects to fill
    /// a fresh one.
    const fn worth(self) -> u32 {
        match self {
            Self::Asked => 32,
            Self::Owed => 512,
            Self::Beside => 8,
        }
    }

    /// A lane that rests takes up its work again when there is so much more waste: a part of what fills it, as a
    /// power of two.
    const fn rest_shift(self) -> u32 {
        match self {
            Self::Asked | Self::Owed => 8,
            Self::Beside => 6,
        }
    }
}

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
    /// Moves up to `moves` objects out of the zspage that wins most by a move, and goes on with the next. Gives
    /// up the stock.
    pub(crate) fn compact(&mut self, moves: usize) -> Step {
        let before = self.lane.victim;
        let step = self.work_off(moves, Why::Asked);
        if step.moved > 0 || before != NIL {
            self.clear_stock(0..u32::MAX);
        }
        step
    }

    /// Moves up to `moves` objects where that pays beside other work, and keeps the stock.
    pub(crate) fn tidy(&mut self, moves: usize) -> Step {
        self.work_off(moves, Why::Beside)
    }

    /// What a new object pays that had a lane grow, where compaction could have won the pages.
    pub(crate) fn pay(&mut self) {
        if self.lane.wasteful {
            self.work_off(PAID, Why::Owed);
        }
    }

    /// Notes whether growth is to be paid for.
    pub(super) fn note_waste(&mut self) {
        let is_settled = self.is_settled(Why::Owed);
        let is_much = self.lane.count.freeable() >= OWED
            && self.lane.count.waste() > self.lane.count.packed_words / OWED_PART;
        let wasteful = is_much && !is_settled;
        if wasteful != self.lane.wasteful {
            self.lane.wasteful = wasteful;
            self.ground.wasteful.fetch_xor(1 << self.number, Ordering::Relaxed);
        }
    }

    /// Moves up to `moves` objects out of zspages that are worth it.
    fn work_off(&mut self, moves: usize, why: Why) -> Step {
        self.bury();
        let mut step = Step { moved: 0, dense: self.is_settled(why) };
        if step.dense {
            return step;
        }
        while step.moved < moves && !step.dense {
            if self.lane.victim == NIL && !self.choose_victim(why.worth()) {
                step.dense = true;
                break;
            }
            let (victim, before) = (self.lane.victim, self.lane.count.packed_pages);
            let evacuated = self.evacuate(victim, moves - step.moved);
            self.lane.won += before.cast_signed() - self.lane.count.packed_pages.cast_signed();
            match evacuated {
                Evacuated::Budget(moved) => step.moved += moved,
                Evacuated::End(moved) => {
                    step.moved += moved;
                    step.dense = self.close_victim(victim);
                }
            }
        }
        if step.dense {
            self.lane.round = 0;
            let settled = &mut self.lane.settled[why as usize];
            *settled = self.lane.count.waste().max(*settled);
        }
        self.note_waste();
        step
    }

    /// Whether there is no more waste than compaction could not help last time.
    fn is_settled(&mut self, why: Why) -> bool {
        let waste = self.lane.count.waste();
        let settled = &mut self.lane.settled[why as usize];
        *settled = waste.min(*settled);
        let more = self.lane.count.packed_words >> why.rest_shift();
        self.lane.victim == NIL && waste < *settled + more
    }

    /// Of some zspages the one that wins most by a move, if the lane wastes enough for the trouble.
    fn choose_victim(&mut self, worth: u32) -> bool {
        if self.lane.count.freeable() == 0 {
            return false;
        }
        let (zspages, used) = (&self.ground.zspages, self.ground.zspages.used());
        // Words won by a move, in parts of 2^16.
        let (mut victim, mut most) = (NIL, u64::from(PAGE_WORDS / worth) << 16);
        for _ in 0..used.min(LOOK_VICTIM) {
            self.lane.hand = if self.lane.hand + 1 < used { self.lane.hand + 1 } else { 0 };
            let zspage = self.lane.hand;
            if !zspages.is(zspage, self.number, Kind::Packed) {
                continue;
            }
            let room = zspages.pages(zspage) * PAGE_WORDS;
            let waste = room - zspages.fill(zspage);
            let gain = (u64::from(waste) << 16) / u64::from(zspages.blocks(zspage));
            // The open one is still being filled, so there has to be more to win.
            let is_filling = zspage == self.lane.open && waste < (room >> 2).max(2 * PAGE_WORDS);
            if gain > most && !is_filling {
                (victim, most) = (zspage, gain);
            }
        }
        if victim == NIL {
            return false;
        }
        self.for_holes(victim, Self::unlink);
        self.lane.victim = victim;
        if self.lane.round == 0 {
            self.lane.won = 0;
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
        self.lane.won <= 0
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
