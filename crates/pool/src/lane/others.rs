//! Several lanes at once: compaction moves objects into the holes of other lanes, too.
//!
//! A thread that is moved to another CPU fills another lane, and leaves holes in both. Were each lane to look only at
//! its own, a zspage would be emptied into holes that fit worse, or stay, and what is left of a lane that nobody uses any
//! more, too. So who compacts a lane takes the locks of the others as well, as far as nobody has them:
//!
//! ```text
//!   lock(own) ──► try_lock(others) ──► a trial, or some moves ──► all given back
//!   waits         waits for none       holes of all of these
//! ```
//!
//! - A thread that holds a lane never waits for another: no order of locks is needed, and two who compact different
//!   lanes both go on, each without the other's holes.
//! - So holes that a trial saw may be out of reach when objects are moved: these go where others fit.
//! - A block that is moved leaves one lane's books for another's under both locks. Its handle's word says where it lies,
//!   at every moment, and its lane is the one that its zspage belongs to: who frees it needs to know nothing of this.
//! - Nothing else reaches over: new objects, `tidy` and what growth pays stay in one lane, and hold one lock.

use core::iter;

use super::{Held, Lane};
use crate::Arena;
use crate::ground::PAGE_WORDS;

impl<A: Arena> Held<'_, A> {
    /// All lanes whose locks are held, this one first.
    pub(super) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        iter::once(&*self.lane).chain(self.others.iter().flatten().map(|lane| &**lane))
    }

    /// The lane of a zspage that one of them has.
    pub(super) fn lane_at(&mut self, at: u32) -> Held<'_, A> {
        let number = self.ground.zspages.lane(self.ground.shape.zspage_of(at));
        let other = self.others.get_mut(number).and_then(Option::as_deref_mut);
        debug_assert_eq!(number == self.number, other.is_none(), "a lane whose lock is held");
        Held {
            ground: self.ground,
            handles: self.handles,
            number,
            lane: other.unwrap_or(self.lane),
            others: &mut [],
        }
    }

    /// Pages that frames back.
    pub(super) fn pages(&self) -> isize {
        self.lanes().map(|lane| lane.count.pages().cast_signed()).sum()
    }

    /// The same of packed zspages.
    pub(super) fn packed_pages(&self) -> isize {
        self.lanes().map(|lane| lane.count.packed_pages.cast_signed()).sum()
    }

    /// Whether perfect packing would need a page less.
    pub(super) fn wastes_a_page(&self) -> bool {
        self.lanes().map(|lane| lane.count.waste()).sum::<usize>() >= PAGE_WORDS as usize
    }

    /// Counts an object of `len` bytes no longer here, but in the lane of `place`.
    pub(super) fn hand_over(&mut self, place: u32, len: usize) {
        self.lane.count.objects -= 1;
        self.lane.count.bytes -= len;
        let there = self.lane_at(place);
        there.lane.count.objects += 1;
        there.lane.count.bytes += len;
    }
}
