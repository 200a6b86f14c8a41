//! Compaction: the zspage that wins most by a move is emptied into the holes of the others, of other lanes too
//! ([`others`](super::others)).
//!
//! Which one that is depends on which of its objects will find holes. Who calls for compaction has time for a
//! trial ([`trial`](super::trial)): each zspage that may be worth it is walked, and its blocks look for holes without
//! being moved. Others guess by what a zspage wastes.
//!
//! Nothing new is put into this *victim*: its holes leave the bins. Its objects are moved one by one,
//! best fit; pages come free as holes close, and in the end the zspage goes back. An object that
//! somebody reads stays, and then the victim's holes return to the bins. After a trial the largest objects are moved
//! first, as it tried them: what is small finds a hole later, too.
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

use super::trial::{Gain, TRIED};
use super::{HOLE, Held, INDEX, Reach, Run, block_words};
use crate::ground::PAGE_WORDS;
use crate::handles::{NIL, Object, Word};
use crate::zspages::Kind;
use crate::{AllocError, Arena};
use octavo_page::sync::atomic::Ordering;

/// Descriptors looked at to choose a zspage to empty, under one hold of the lock.
const LOOK_ZSPAGES: u32 = 4096;
/// Blocks tried in the time that a move takes, or nearly.
const BLOCKS_A_MOVE: usize = 4;
/// Trying a zspage may show that it wins so many times what it wastes: most blocks find holes.
const HOPE: u32 = 32;
/// Of so few all may find holes that fit, even where the zspage wastes nothing.
const FEW: u32 = 16;
/// Words that a move has to win in the first sweep; in each other less by a part.
const FIRST_BAR: u32 = PAGE_WORDS;
const BAR_PART: u32 = 64;
/// A lane that wastes less, in pages and as a part of what fills it, does not ask new objects to pay.
const OWED: usize = if cfg!(all(test, not(loom))) { 1 } else { 16 };
const OWED_PART: usize = 80;
/// The same where objects take more than half a page: a move costs hardly more than one of a small object, and wins more.
const OWED_PART_LARGE: usize = 128;
/// Moves that a new object pays which had the lane grow.
const PAID: usize = 16;
/// Zspages emptied without a page won, after which a lane counts as dense.
const ROUND: u32 = 8;

/// For what there is compaction. Each rests by itself: what is not worth it to one may be to the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Somebody asked for it.
    Asked,
    /// Growth is to be kept in bounds.
    Owed,
    /// Somebody has a moment beside other work.
    Beside,
}

impl Why {
    /// Words that emptying a zspage is to win by a move, to be worth it: a page may cost so many moves.
    const fn least(self) -> u32 {
        let moves = match self {
            Self::Asked => 12,
            Self::Owed => 512,
            Self::Beside => 8,
        };
        PAGE_WORDS / moves
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

// A smaller bar would lose nothing from sweep to sweep, and they would not end.
const _: () = assert!(Why::Asked.least() >= BAR_PART);

/// What a step of compaction did.
#[derive(Default)]
pub(crate) struct Step {
    pub moved: usize,
    /// Blocks that were tried.
    tried: usize,
    /// There is nothing worth doing in this lane now.
    pub dense: bool,
    /// Pages won, in all lanes whose locks were held.
    pub won: isize,
    /// Words that a move has to win in this lane now: its turn comes when no other lane's has to win more.
    pub turn: u32,
}

/// How far trials came. A first sweep notes of each zspage what it would win were each of its blocks to find a hole;
/// each sweep then tries those that may win most, the next one those that win less. What a trial finds is noted
/// instead. As holes fill up a zspage hardly ever gets better: so it is tried, and tried again, only when it is its
/// turn, and the holes are those that are left by then.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    /// Words to be won by a move.
    bar: u32,
    /// The most that a zspage left for later wins. A bar between the two would find nothing that this one does not.
    below: u32,
    /// Zspages still to be looked at: those with lower numbers.
    left: u32,
    /// Words that those win together which win no page alone. Before it is a page they are left as they are: what is
    /// moved for a part of a page is moved in vain where nobody comes to share it.
    shared: u32,
}

impl Sweep {
    /// Before the first.
    pub(super) const NEW: Self = Self { bar: u32::MAX, below: u32::MAX, left: 0, shared: 0 };

    fn next(self, zspages: u32) -> Self {
        let lower = |bar: u32| if bar == u32::MAX { FIRST_BAR } else { bar - bar / BAR_PART };
        let mut bar = lower(self.bar);
        while bar > self.below && bar >= BAR_PART {
            bar = lower(bar);
        }
        Self { bar, below: 0, left: zspages, shared: 0 }
    }

    /// Notes what a zspage wins; whether that is too little for now.
    fn leaves(&mut self, gain: u32) -> bool {
        let leaves = gain < self.bar;
        if leaves {
            self.below = self.below.max(gain);
        }
        leaves
    }

    fn is_first(self) -> bool {
        self.bar == FIRST_BAR
    }

    /// Whether a zspage that wins so much is to be emptied now. Those that were left before are looked at again as soon
    /// as they win a page together.
    fn takes(&mut self, gain: Gain, blocks: u32, zspages: u32) -> bool {
        if self.leaves(gain.by_move) {
            return false;
        }
        if gain.is_page || self.shared >= PAGE_WORDS {
            return true;
        }
        self.shared += gain.by_move * blocks;
        if self.shared >= PAGE_WORDS {
            self.left = zspages;
        }
        self.shared >= PAGE_WORDS
    }
}

/// What a look for a zspage to empty found.
enum Choice {
    Victim(u32),
    /// There are others to be tried at.
    Later,
    /// None is worth it.
    Nothing,
}

impl Step {
    /// What it took, in moves.
    pub(crate) const fn cost(&self) -> usize {
        self.moved + self.tried / BLOCKS_A_MOVE
    }
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
        self.step(moves, Why::Asked)
    }

    /// Moves up to `moves` objects where that pays beside other work, and keeps the stock.
    pub(crate) fn tidy(&mut self, moves: usize) -> Step {
        self.step(moves, Why::Beside)
    }

    fn step(&mut self, moves: usize, why: Why) -> Step {
        let (before, victim) = (self.pages(), self.lane.victim);
        let mut step = self.work_off(moves, why);
        if why == Why::Asked && (step.moved > 0 || victim != NIL) {
            self.clear_stock(0..u32::MAX);
        }
        (step.won, step.turn) = (before - self.pages(), self.lane.sweep.bar);
        step
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
        let count = &self.lane.count;
        let part = if count.are_large() { OWED_PART_LARGE } else { OWED_PART };
        let is_much = count.freeable() >= OWED && count.waste() > count.packed_words / part;
        let wasteful = is_much && !is_settled;
        if wasteful != self.lane.wasteful {
            self.lane.wasteful = wasteful;
            self.ground.wasteful.fetch_xor(1 << self.number, Ordering::Relaxed);
        }
    }

    /// Moves up to `moves` objects out of zspages that are worth it.
    fn work_off(&mut self, moves: usize, why: Why) -> Step {
        self.bury();
        let mut step = Step { dense: self.is_settled(why), ..Step::default() };
        if step.dense {
            return step;
        }
        self.check_victim(why);
        while step.moved < moves && !step.dense {
            if self.lane.victim == NIL {
                match self.choose_victim(why, &mut step.tried) {
                    Choice::Victim(zspage) => self.open_victim(zspage, why),
                    Choice::Later => break,
                    Choice::Nothing => {
                        step.dense = true;
                        break;
                    }
                }
            }
            let (victim, before) = (self.lane.victim, self.packed_pages());
            let evacuated = self.evacuate(victim, moves - step.moved);
            self.lane.won += before - self.packed_pages();
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

    /// Leaves a zspage that somebody began to empty to whom less is worth it.
    fn check_victim(&mut self, why: Why) {
        let victim = self.lane.victim;
        if victim != NIL && !self.goes_on(why) {
            self.end_victim(victim);
        }
    }

    /// Lets new objects into the victim's holes again.
    fn end_victim(&mut self, victim: u32) {
        self.lane.victim = NIL;
        self.for_holes(victim, Self::link);
    }

    /// Whether there is no more waste than compaction could not help last time.
    fn is_settled(&mut self, why: Why) -> bool {
        let waste = self.lane.count.waste();
        let settled = &mut self.lane.settled[why as usize];
        *settled = waste.min(*settled);
        let more = self.lane.count.packed_words >> why.rest_shift();
        let is_settled = waste < *settled + more;
        is_settled && !self.goes_on(why)
    }

    /// Whether a zspage is being emptied for somebody to whom no less is worth it. One that is emptied for less can wait
    /// as it is: to leave it, and to take it up again, is to walk through all of it.
    fn goes_on(&self, why: Why) -> bool {
        self.lane.victim != NIL && self.lane.victim_for.least() >= why.least()
    }

    /// Looks for a zspage to empty, if the lane wastes enough for the trouble.
    fn choose_victim(&mut self, why: Why, tried: &mut usize) -> Choice {
        match why {
            _ if !self.wastes_a_page() => Choice::Nothing,
            Why::Asked => self.choose_by_trial(why.least(), tried),
            Why::Owed | Why::Beside => self.choose_by_guess(why.least()),
        }
    }

    /// Of some zspages the one that wins most by a move, were all its objects to fill a fresh one.
    fn choose_by_guess(&mut self, least: u32) -> Choice {
        let (zspages, used) = (&self.ground.zspages, self.ground.zspages.used());
        // Words won by a move, in parts of 2^16.
        let (mut choice, mut most) = (Choice::Nothing, u64::from(least) << 16);
        for _ in 0..used.min(LOOK_ZSPAGES) {
            self.lane.hand = if self.lane.hand + 1 < used { self.lane.hand + 1 } else { 0 };
            let zspage = self.lane.hand;
            if !self.may_be_emptied(zspage) {
                continue;
            }
            let waste = zspages.pages(zspage) * PAGE_WORDS - zspages.fill(zspage);
            let gain = (u64::from(waste) << 16) / u64::from(zspages.blocks(zspage));
            if gain > most {
                (choice, most) = (Choice::Victim(zspage), gain);
            }
        }
        choice
    }

    /// Looks on for a zspage whose turn it is, with what it wins by a move; not for long.
    fn choose_by_trial(&mut self, least: u32, tried: &mut usize) -> Choice {
        let zspages = &self.ground.zspages;
        let (mut sweep, enough) = (self.lane.sweep, *tried + TRIED);
        let mut choice = Choice::Later;
        for _ in 0..LOOK_ZSPAGES {
            if sweep.left == 0 {
                sweep = sweep.next(zspages.used());
                if sweep.bar < least {
                    (sweep, choice) = (Sweep::NEW, Choice::Nothing);
                }
                // It may be another lane's turn.
                break;
            }
            sweep.left -= 1;
            let zspage = sweep.left;
            // The one that is being filled, too: what a trial finds is won now.
            if !zspages.is(zspage, self.number, Kind::Packed) {
                continue;
            }
            if sweep.is_first() {
                zspages.set_gain(zspage, self.hope(zspage, least));
            }
            if sweep.leaves(zspages.gain(zspage)) {
                continue;
            }
            let gain = self.gain(zspage, least, tried);
            zspages.set_gain(zspage, gain.by_move);
            if sweep.takes(gain, zspages.blocks(zspage), zspages.used()) {
                choice = Choice::Victim(zspage);
                break;
            }
            if *tried >= enough {
                break;
            }
        }
        self.lane.sweep = sweep;
        choice
    }

    /// Whether it is a zspage of ours with objects to be moved, and not the one that is being filled: of that there
    /// has to be more to win.
    fn may_be_emptied(&self, zspage: u32) -> bool {
        let zspages = &self.ground.zspages;
        if !zspages.is(zspage, self.number, Kind::Packed) {
            return false;
        }
        let room = zspages.pages(zspage) * PAGE_WORDS;
        let waste = room - zspages.fill(zspage);
        zspage != self.lane.open || waste >= (room >> 2).max(2 * PAGE_WORDS)
    }

    /// Words that emptying a zspage wins by a move if each block finds a hole; none when it wastes so little, and has so
    /// many of them, that this is not worth a trial.
    fn hope(&self, zspage: u32, least: u32) -> u32 {
        let zspages = &self.ground.zspages;
        let (room, blocks) = (zspages.pages(zspage) * PAGE_WORDS, zspages.blocks(zspage));
        let waste = room.saturating_sub(zspages.fill(zspage));
        if blocks <= FEW || waste * HOPE >= blocks * least { room / blocks } else { 0 }
    }

    /// Lets go of a zspage that is not empty yet.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn let_go(&mut self) {
        if self.lane.victim != NIL {
            self.end_victim(self.lane.victim);
        }
    }

    /// Moves one object, as growth pays for it, and gives the zspage that is being emptied then.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn owe(&mut self) -> Option<u32> {
        self.work_off(1, Why::Owed);
        self.victim()
    }

    /// The zspage that is being emptied.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn victim(&self) -> Option<u32> {
        Some(self.lane.victim).filter(|victim| *victim != NIL)
    }

    /// Empties a zspage, as compaction does, of which none is being emptied; how many objects were moved.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn empty(&mut self, zspage: u32) -> usize {
        self.open_victim(zspage, Why::Asked);
        let (Evacuated::Budget(moved) | Evacuated::End(moved)) = self.evacuate(zspage, usize::MAX);
        self.close_victim(zspage);
        moved
    }

    /// Begins to empty a zspage.
    fn open_victim(&mut self, zspage: u32, why: Why) {
        self.for_holes(zspage, Self::unlink);
        self.lane.next.clear();
        (self.lane.victim, self.lane.victim_for) = (zspage, why);
        if self.lane.round == 0 {
            self.lane.won = 0;
        }
    }

    /// Opens the victim again if it is still there. True when the lane counts as dense.
    fn close_victim(&mut self, victim: u32) -> bool {
        if self.lane.victim == victim {
            self.end_victim(victim);
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

    /// Moves up to `moves` objects out of a zspage.
    fn evacuate(&mut self, victim: u32, moves: usize) -> Evacuated {
        let mut moved = 0;
        while moved < moves {
            let Some(at) = self.next_to_move(victim) else { return Evacuated::End(moved) };
            let (word, block) = self.named(at);
            if !self.relocate(word, block) {
                return Evacuated::End(moved);
            }
            moved += 1;
            if self.release_block(block).is_none() {
                return Evacuated::End(moved);
            }
        }
        Evacuated::Budget(moved)
    }

    /// The next block of the victim that can be moved. After a trial the largest one, otherwise the first one.
    fn next_to_move(&mut self, victim: u32) -> Option<u32> {
        let next = self.lane.next.take();
        next.or_else(|| {
            self.note_next(victim);
            self.lane.next.take()
        })
    }

    /// Notes blocks of the victim that can be moved.
    fn note_next(&mut self, victim: u32) {
        self.lane.next.clear();
        let by_size = self.lane.victim_for == Why::Asked;
        let whole = self.whole(victim);
        let mut at = whole.at;
        while at - whole.at < whole.words && (by_size || !self.lane.next.is_full()) {
            if self.tag(at) & HOLE != 0 {
                at = self.hole(at).end();
                continue;
            }
            let (word, block) = self.named(at);
            if word.movable().is_some() {
                let words = if by_size { block_words(word.object().len) } else { 0 };
                self.lane.next.note(words, at);
            }
            at = block.end();
        }
    }

    /// A place for a block that is moved: where its trial saw it, if there was one.
    fn place_moved(&mut self, words: u32, index: u32) -> Result<u32, AllocError> {
        if self.lane.victim_for != Why::Asked {
            return self.place_packed(words, index, Reach::Grow);
        }
        let Some(hole) = self.find_for_move(words) else { return self.open(words, index) };
        self.lane_at(hole.at).carve(hole, words, index, true)?;
        Ok(hole.at + 1)
    }

    /// Copies a block's object elsewhere and says so in its handle. False when it has to stay.
    fn relocate(&mut self, word: Word, block: Run) -> bool {
        let index = self.tag(block.at) & INDEX;
        let Some(object) = word.movable() else { return false };
        let words = block_words(object.len);
        let Ok(place) = self.place_moved(words, index) else { return false };
        // SAFETY: this lane's lock keeps the old block from being released, even if its handle is
        // freed now; the new block was carved for it this moment.
        unsafe { self.ground.copy(object, place) };
        let is_moved = self.handles.relocate(index, word, place);
        if is_moved {
            self.hand_over(place, object.len);
        } else {
            let copy = self.block_of(Object { place, len: object.len });
            self.lane_at(place).release_block(copy);
        }
        is_moved
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Count;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// The order in which zspages are emptied that win so much, of one block each. `by_steps`: with each bar there is.
    fn order(gains: &[(u32, bool)], least: u32, by_steps: bool) -> Vec<u32> {
        let (mut sweep, mut left) = (Sweep::NEW, gains.to_vec());
        let mut taken = Vec::new();
        loop {
            if sweep.left == 0 {
                sweep = sweep.next(gains.len() as u32);
                if sweep.bar < least {
                    return taken;
                }
                sweep.below = if by_steps { u32::MAX } else { 0 };
            }
            sweep.left -= 1;
            let zspage = sweep.left;
            let (by_move, is_page) = left[zspage as usize];
            if sweep.leaves(by_move) {
                continue;
            }
            if sweep.takes(Gain { by_move, is_page }, 1, gains.len() as u32) {
                taken.push(zspage);
                left[zspage as usize].0 = 0;
            }
        }
    }

    proptest! {
        #[test]
        fn bars_with_nothing_between_them_are_passed_over_and_the_order_stays(
            gains in proptest::collection::vec((0..2 * FIRST_BAR, any::<bool>()), 1..20),
            least in BAR_PART..FIRST_BAR,
        ) {
            prop_assert_eq!(order(&gains, least, false), order(&gains, least, true));
        }
    }

    #[test]
    fn a_lane_where_little_can_be_won_is_swept_once_for_each_bar_that_finds_something() {
        let mut sweep = Sweep::NEW.next(3);
        assert!(sweep.is_first());
        assert!([90, 500, 90].into_iter().all(|gain| sweep.leaves(gain)));
        sweep = sweep.next(3);
        assert!((493..=500).contains(&sweep.bar));
        assert!([90, 90].into_iter().all(|gain| sweep.leaves(gain)) && !sweep.leaves(500));
        sweep = sweep.next(3);
        assert!((89..=90).contains(&sweep.bar) && !sweep.leaves(90));
        assert!(sweep.next(3).bar < BAR_PART);
    }

    #[test]
    fn objects_are_large_that_take_more_than_half_a_page_on_average() {
        let of = |objects: usize, packed_words: usize, huge_pages: usize| {
            Count { objects, packed_words, huge_pages, ..Count::default() }.are_large()
        };
        assert!(!of(0, 0, 0) && !of(4, 2 * 1024, 0) && of(4, 2 * 1024 + 1, 0));
        assert!(of(2, 1500, 0) && !of(2 + 3, 1500, 3), "three of them are huge");
    }
}
