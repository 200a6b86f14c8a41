//! Zspages that one call empties: given back whole, without a look at what lies in them.
//!
//! A program that ends frees everything. To make a hole of each block, joined with the holes beside it,
//! would be to touch all that memory only to give it back. So a call that frees many goes over its
//! objects twice:
//!
//! ```text
//!   first    each handle dies; its zspage counts the words that are doomed. When those are all it
//!            has, it is razed: its holes leave their bins, and nothing is placed in it any more.
//!   second   of objects in razed zspages only the handle is left to retire; the others are freed as
//!            ever.
//!   later    the pages of razed zspages go back, many at once, with no lock held: by who compacts, by
//!            who finds no frame, by who takes new pages.
//! ```
//!
//! To give a page back takes the kernel as long as all else that is done for the objects in it, and more. Who
//! frees need not wait for that; until then those pages count as used.
//!
//! Any number of calls do this at once. What is doomed in a zspage is the sum of what they doomed and did not
//! come back to, and what somebody freed and nobody buried counts as filled, not as doomed: so in a zspage
//! that is razed each block is one that a call will come back to. Whoever retires the last of them, or gives its
//! pages back if that is later, lets it be taken again.

use core::ops::Range;

use super::{Held, RUNS, Run, block_words};
use crate::Arena;
use crate::ground::Ground;
use crate::handles::{NIL, Object};
use octavo_page::sync::atomic::Ordering;

/// Some razed zspages, with their pages on the way back to the arena. Nobody else knows of these pages.
pub(crate) struct Razed {
    zspages: [u32; RUNS],
    len: usize,
    runs: [Range<u32>; RUNS],
    count: usize,
}

impl Razed {
    pub(crate) const fn new() -> Self {
        Self { zspages: [0; RUNS], len: 0, runs: [const { 0..0 }; RUNS], count: 0 }
    }

    fn put<A: Arena>(&mut self, run: Range<u32>, ground: &Ground<A>) {
        if run.is_empty() {
            return;
        }
        if self.count == RUNS {
            self.give(ground);
        }
        self.runs[self.count] = run;
        self.count += 1;
    }

    /// Gives the pages back; no lock is needed.
    pub(crate) fn give<A: Arena>(&mut self, ground: &Ground<A>) {
        ground.decommit(&self.runs[..self.count]);
        self.count = 0;
    }

    /// How many zspages.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

impl<A: Arena> Held<'_, A> {
    /// Counts a dead object's words as doomed, and razes its zspage when it has no others.
    pub(crate) fn doom(&mut self, object: Object) {
        if self.is_huge(object.len) {
            return;
        }
        let zspages = &self.ground.zspages;
        let zspage = self.ground.shape.zspage_of(object.place);
        let doomed = zspages.doomed(zspage) + block_words(object.len);
        zspages.set_doomed(zspage, doomed);
        if doomed == zspages.fill(zspage) {
            self.raze(zspage);
        }
    }

    /// Frees an object that was doomed.
    pub(crate) fn take_doomed(&mut self, index: u32, object: Object) {
        if self.is_huge(object.len) {
            return self.take_dead(index, object);
        }
        let zspages = &self.ground.zspages;
        let zspage = self.ground.shape.zspage_of(object.place);
        if !zspages.is_razed(zspage) {
            zspages.set_doomed(zspage, zspages.doomed(zspage) - block_words(object.len));
            return self.take_dead(index, object);
        }
        self.lane.count.objects -= 1;
        self.lane.count.bytes -= object.len;
        self.handles.retire(index, &mut self.lane.free);
        zspages.set_blocks(zspage, zspages.blocks(zspage) - 1);
        self.end_razed(zspage);
        if self.lane.count.objects == 0 {
            self.bury();
        }
    }

    fn raze(&mut self, zspage: u32) {
        let (zspages, whole) = (&self.ground.zspages, self.whole(zspage));
        // Of the holes those that have pages which are not backed, the last one first.
        let mut gaps = NIL;
        let mut each = |held: &mut Self, hole: Run| {
            held.unlink(hole);
            if !held.vacant(hole).is_empty() {
                held.set_tag(hole.at + 1, gaps);
                gaps = hole.at;
            }
        };
        if zspages.holes(zspage) > 0 {
            self.for_holes(zspage, each);
        } else if zspages.tail(zspage) != NIL {
            let tail = self.hole(zspages.tail(zspage));
            each(self, tail);
        }
        zspages.set_tail(zspage, gaps);
        self.clear_stock(self.pages_of(whole));
        if self.lane.victim == zspage {
            self.lane.victim = NIL;
        }
        let pages = zspages.pages(zspage) as usize;
        self.lane.count.packed_words -= zspages.fill(zspage) as usize;
        self.lane.count.packed_pages -= pages;
        self.lane.count.razed_pages += pages;
        zspages.set_fill(zspage, 0);
        zspages.raze(zspage);
        zspages.link(&mut self.lane.razed, zspage);
        self.ground.razed.fetch_or(1 << self.number, Ordering::Relaxed);
        self.note_waste();
    }

    /// Takes up to `most` razed zspages out of the lane's list, to give their pages back.
    pub(crate) fn take_razed(&mut self, most: usize) -> Razed {
        let (zspages, mut razed) = (&self.ground.zspages, Razed::new());
        while razed.len < most.min(RUNS) && self.lane.razed != NIL {
            let zspage = self.lane.razed;
            zspages.unlink(&mut self.lane.razed, zspage);
            razed.zspages[razed.len] = zspage;
            razed.len += 1;
            let pages = self.pages_of(self.whole(zspage));
            let (mut end, mut gap) = (pages.end, zspages.tail(zspage));
            while gap != NIL {
                let vacant = self.vacant(self.hole(gap));
                let before = self.tag(gap + 1);
                razed.put(vacant.end..end, self.ground);
                (end, gap) = (vacant.start, before);
            }
            razed.put(pages.start..end, self.ground);
        }
        if self.lane.razed == NIL {
            self.ground.razed.fetch_and(!(1 << self.number), Ordering::Relaxed);
        }
        razed
    }

    /// Notes that pages of razed zspages went back; how many.
    pub(crate) fn gave_back(&mut self, razed: &Razed) -> usize {
        let (zspages, mut gone) = (&self.ground.zspages, 0);
        for &zspage in &razed.zspages[..razed.len] {
            gone += zspages.pages(zspage) as usize;
            zspages.set_pages(zspage, 0);
            self.end_razed(zspage);
        }
        self.lane.count.razed_pages -= gone;
        gone
    }

    /// Lets a razed zspage be taken again once its pages are gone and all its handles retired.
    fn end_razed(&self, zspage: u32) {
        let zspages = &self.ground.zspages;
        if zspages.pages(zspage) == 0 && zspages.blocks(zspage) == 0 {
            zspages.give(zspage);
        }
    }
}
