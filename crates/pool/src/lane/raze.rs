//! Zspages that one call empties: given back whole, without a look at what lies in them.
//!
//! A program that ends frees everything. To make a hole of each block, joined with the holes beside it,
//! would be to touch all that memory only to give it back. So a call that frees many goes over its
//! objects twice:
//!
//! ```text
//!   first    each handle dies; its zspage counts the words that are doomed. When those are all it
//!            has, it is razed: its pages go back, its holes leave their bins. Nobody gets it yet.
//!   second   of objects in razed zspages only the handle is left to retire; the others are freed as
//!            ever. Then razed zspages can be taken again.
//! ```
//!
//! One call at a time does this, so that what is doomed in a zspage is its own. What others freed
//! and have not buried counts as filled, and as not doomed: such a zspage is not razed.

use core::ops::Range;

use super::{Held, RUNS, Run, block_words};
use crate::Arena;
use crate::ground::Ground;
use crate::handles::{NIL, Object};

/// Pages on their way back to the arena, many at once.
pub(crate) struct Runs {
    runs: [Range<u32>; RUNS],
    count: usize,
}

impl Runs {
    pub(crate) const fn new() -> Self {
        Self { runs: [const { 0..0 }; RUNS], count: 0 }
    }

    fn put<A: Arena>(&mut self, run: Range<u32>, ground: &Ground<A>) {
        if run.is_empty() {
            return;
        }
        if self.count == RUNS {
            self.flush(ground);
        }
        self.runs[self.count] = run;
        self.count += 1;
    }

    /// Gives them all back.
    pub(crate) fn flush<A: Arena>(&mut self, ground: &Ground<A>) {
        ground.decommit(&self.runs[..self.count]);
        self.count = 0;
    }
}

impl<A: Arena> Held<'_, A> {
    /// Counts a dead object's words as doomed, and razes its zspage when it has no others.
    pub(crate) fn doom(&mut self, object: Object, runs: &mut Runs) {
        if self.is_huge(object.len) {
            return;
        }
        let zspages = &self.ground.zspages;
        let zspage = self.ground.shape.zspage_of(object.place);
        let doomed = zspages.doomed(zspage) + block_words(object.len);
        zspages.set_doomed(zspage, doomed);
        if doomed == zspages.fill(zspage) {
            self.raze(zspage, runs);
        }
    }

    /// Frees an object that was doomed.
    pub(crate) fn take_doomed(&mut self, index: u32, object: Object) {
        if self.is_huge(object.len) {
            return self.take_dead(index, object);
        }
        let zspages = &self.ground.zspages;
        let zspage = self.ground.shape.zspage_of(object.place);
        if zspages.is_razed(zspage) {
            self.lane.count.objects -= 1;
            self.lane.count.bytes -= object.len;
            self.handles.retire(index, &mut self.lane.free);
        } else {
            zspages.set_doomed(zspage, zspages.doomed(zspage) - block_words(object.len));
            self.take_dead(index, object);
        }
    }

    fn raze(&mut self, zspage: u32, runs: &mut Runs) {
        let (ground, whole) = (self.ground, self.whole(zspage));
        let (zspages, pages) = (&ground.zspages, self.pages_of(whole));
        let mut from = pages.start;
        let mut each = |held: &mut Self, hole: Run| {
            held.unlink(hole);
            let vacant = held.vacant(hole);
            if !vacant.is_empty() {
                runs.put(from..vacant.start, ground);
                from = vacant.end;
            }
        };
        if zspages.holes(zspage) > 0 {
            self.for_holes(zspage, each);
        } else if zspages.tail(zspage) != NIL {
            let tail = self.hole(zspages.tail(zspage));
            each(self, tail);
        }
        runs.put(from..pages.end, ground);
        self.clear_stock(pages);
        if self.lane.victim == zspage {
            self.lane.victim = NIL;
        }
        self.lane.count.packed_words -= zspages.fill(zspage) as usize;
        self.lane.count.packed_pages -= zspages.pages(zspage) as usize;
        zspages.set_fill(zspage, 0);
        zspages.set_pages(zspage, 0);
        zspages.set_blocks(zspage, 0);
        zspages.raze(zspage);
        zspages.link(&mut self.lane.razed, zspage);
    }

    /// Lets razed zspages be taken again. Their pages have gone back.
    pub(crate) fn give_razed(&mut self) {
        while self.lane.razed != NIL {
            let zspage = self.lane.razed;
            self.ground.zspages.unlink(&mut self.lane.razed, zspage);
            self.ground.zspages.give(zspage);
        }
        if self.lane.count.objects == 0 {
            self.bury();
        }
        self.note_waste();
    }
}
