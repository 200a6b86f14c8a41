//! The invariants of a lane, walked: the plain twin of its bookkeeping.

use std::collections::HashMap;

use super::{AFTER_HOLE, Count, HOLE, Held, MIN_HOLE, bin_of};
use crate::Arena;
use crate::ground::PAGE_WORDS;
use crate::handles::NIL;
use crate::zspages::Kind;

impl<A: Arena> Held<'_, A> {
    /// Walks the lane and panics where an invariant does not hold.
    pub(crate) fn check(&mut self) {
        let mut binned = self.binned();
        let mut count = Count::default();
        let zspages = &self.ground.zspages;
        for zspage in 0..zspages.used() {
            if zspages.is(zspage, self.number, Kind::Packed) {
                self.check_packed(zspage, &mut binned, &mut count);
            } else if zspages.is(zspage, self.number, Kind::Huge) {
                assert_ne!(zspages.fill(zspage), 0, "an empty zspage goes back");
                count.objects += zspages.fill(zspage).count_ones() as usize;
                count.huge_pages += zspages.pages(zspage) as usize;
            }
        }
        assert!(binned.is_empty(), "bins hold only holes: {binned:?}");
        self.check_razed();
        let known = &self.lane.count;
        assert_eq!(known.objects + self.lane.dead.objects().len(), count.objects);
        assert_eq!(known.packed_words, count.packed_words);
        assert_eq!(known.packed_pages, count.packed_pages);
        assert_eq!(known.huge_pages, count.huge_pages);
    }

    fn check_razed(&self) {
        let (zspages, mut at, mut pages) = (&self.ground.zspages, self.lane.razed, 0);
        while at != NIL {
            assert!(zspages.is_razed(at) && zspages.lane(at) == self.number);
            assert_eq!((zspages.fill(at), zspages.blocks(at)), (0, 0), "its handles are retired");
            pages += zspages.pages(at) as usize;
            at = zspages.next(at);
        }
        assert_eq!(self.lane.count.razed_pages, pages);
    }

    /// All holes in the bins, by place.
    fn binned(&self) -> HashMap<u32, u32> {
        let mut holes = HashMap::new();
        let mut bin = 0;
        while let Some(filled) = self.lane.bins.next_filled(bin) {
            let mut at = self.lane.bins.head(filled);
            let mut prev = NIL;
            while at != NIL {
                let hole = self.hole(at);
                assert_eq!(bin_of(hole.words), filled, "in the bin of its size");
                assert_eq!(self.tag(at + 2), prev);
                assert_eq!(holes.insert(at, hole.words), None, "in one bin, once");
                (prev, at) = (at, self.tag(at + 1));
            }
            bin = filled + 1;
        }
        holes
    }

    fn check_packed(&self, zspage: u32, binned: &mut HashMap<u32, u32>, count: &mut Count) {
        let whole = self.whole(zspage);
        let (mut at, mut after_hole, mut fill, mut backed) =
            (whole.at, false, 0, whole.words / PAGE_WORDS);
        let (mut blocks, mut holes, mut tail) = (0, 0, NIL);
        while at < whole.end() {
            if self.tag(at) & HOLE != 0 {
                let hole = self.hole(at);
                assert!(!after_hole, "two holes never touch");
                assert!(hole.words >= MIN_HOLE && hole != whole);
                if hole.end() < whole.end() {
                    assert_eq!(self.tag(hole.end() - 1), hole.words);
                    holes += 1;
                } else {
                    tail = hole.at;
                }
                let expected = (zspage != self.lane.victim).then_some(hole.words);
                assert_eq!(binned.remove(&at), expected, "in its bin");
                backed -= self.vacant(hole).len() as u32;
                (at, after_hole) = (hole.end(), true);
            } else {
                let (word, block) = self.named(at);
                assert_eq!(self.tag(at) & AFTER_HOLE != 0, after_hole);
                let is_dead = self.lane.dead.objects().iter().any(|(_, o)| o.place == at + 1);
                assert_eq!(word.movable().is_none(), is_dead, "unread, alive or dead");
                assert_eq!(word.object().place, at + 1);
                fill += block.words - self.slack(at);
                blocks += 1;
                count.objects += 1;
                (at, after_hole) = (block.end(), false);
            }
        }
        assert_eq!(at, whole.end(), "blocks and holes fill the zspage");
        let zspages = &self.ground.zspages;
        assert_eq!((zspages.holes(zspage), zspages.tail(zspage)), (holes, tail));
        assert_eq!((zspages.fill(zspage), zspages.doomed(zspage)), (fill, 0));
        assert_eq!((zspages.pages(zspage), zspages.blocks(zspage)), (backed, blocks));
        count.packed_words += fill as usize;
        count.packed_pages += backed as usize;
    }
}
