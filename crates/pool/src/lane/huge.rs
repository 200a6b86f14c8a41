//! Huge objects: a slot of whole pages each, no tag, never moved.
//!
//! The slots of a zspage are as many as the chain is long, and a bit of its descriptor says which
//! are taken. Zspages with a free slot are in a list, so that new ones are filled first.

use core::ops::Range;

use super::{Held, Reach};
use crate::ground::PAGE_WORDS;
use crate::handles::{NIL, Object};
use crate::zspages::Kind;
use crate::{AllocError, Arena, OutOfFrames};
use octavo_page::PAGE_SIZE;

impl<A: Arena> Held<'_, A> {
    pub(super) fn place_huge(&mut self, len: usize, reach: Reach) -> Result<u32, AllocError> {
        let shape = self.ground.shape;
        let zspages = &self.ground.zspages;
        let known = self.lane.huge;
        let zspage = match (known, reach) {
            (NIL, Reach::Grow) => zspages.take(self.number, Kind::Huge).ok_or(self.no_room())?,
            (NIL, _) => return Err(self.no_room()),
            _ => known,
        };
        let fill = zspages.fill(zspage);
        let slot = fill.trailing_ones();
        let place = shape.start(zspage) + slot * shape.slot_pages * PAGE_WORDS;
        let pages = huge_pages(place, len);
        if let Err(error) = self.commit_huge(zspage, pages) {
            if known == NIL {
                zspages.give(zspage);
            }
            return Err(error.into());
        }
        let fill = fill | 1 << slot;
        zspages.set_fill(zspage, fill);
        let full = fill.count_ones() == shape.slots;
        match (known == NIL, full) {
            (true, false) => zspages.link(&mut self.lane.huge, zspage),
            (false, true) => zspages.unlink(&mut self.lane.huge, zspage),
            _ => {}
        }
        Ok(place)
    }

    fn commit_huge(&mut self, zspage: u32, pages: Range<u32>) -> Result<(), OutOfFrames> {
        let count = pages.end - pages.start;
        self.ground.arena.commit(pages.start as usize, count as usize)?;
        let zspages = &self.ground.zspages;
        zspages.set_pages(zspage, zspages.pages(zspage) + count);
        self.lane.count.huge_pages += count as usize;
        Ok(())
    }

    pub(super) fn release_huge(&mut self, object: Object) {
        let shape = self.ground.shape;
        let zspages = &self.ground.zspages;
        let zspage = shape.zspage_of(object.place);
        let slot = (object.place - shape.start(zspage)) / (shape.slot_pages * PAGE_WORDS);
        let pages = huge_pages(object.place, object.len);
        let count = pages.end - pages.start;
        self.ground.arena.decommit(pages.start as usize, count as usize);
        zspages.set_pages(zspage, zspages.pages(zspage) - count);
        self.lane.count.huge_pages -= count as usize;

        let before = zspages.fill(zspage);
        let after = before & !(1 << slot);
        zspages.set_fill(zspage, after);
        let was_full = before.count_ones() == shape.slots;
        match (was_full, after == 0) {
            (true, true) => zspages.give(zspage),
            (true, false) => zspages.link(&mut self.lane.huge, zspage),
            (false, true) => {
                zspages.unlink(&mut self.lane.huge, zspage);
                zspages.give(zspage);
            }
            (false, false) => {}
        }
    }
}

fn huge_pages(place: u32, len: usize) -> Range<u32> {
    let first = place / PAGE_WORDS;
    first..first + len.div_ceil(PAGE_SIZE) as u32
}
