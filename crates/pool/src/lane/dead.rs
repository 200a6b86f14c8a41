//! Objects that are dead, and whose space is still to be given back.
//!
//! Freeing looks at tags before and behind a block, and at the holes there: memory that is hardly
//! ever in the cache. So the dead wait until there are [`MOST`] of them, while their tags are fetched,
//! and are then buried together, step by step, each step fetching what the next one needs. They are also buried when no object lives
//! in the lane any more, when there is no hole for a new one, before compaction, and whenever
//! somebody counts: so their space is never missed.

use super::Held;
use crate::Arena;
use crate::handles::Object;

/// The most that wait in a lane. Under loom nothing waits: what is in a lane has its lock.
#[cfg(not(loom))]
const MOST: usize = if cfg!(test) { 4 } else { 16 };
#[cfg(loom)]
const MOST: usize = 1;

/// Some dead objects, each with its handle's index.
pub(crate) struct Dead {
    objects: [(u32, Object); MOST],
    count: usize,
}

impl Dead {
    pub(crate) const fn new() -> Self {
        Self { objects: [(0, Object { place: 0, len: 0 }); MOST], count: 0 }
    }

    #[cfg(test)]
    pub(crate) fn objects(&self) -> &[(u32, Object)] {
        &self.objects[..self.count]
    }
}

impl<A: Arena> Held<'_, A> {
    /// Takes in an object that is dead and that nobody reads.
    pub(crate) fn take_dead(&mut self, index: u32, object: Object) {
        self.ground.prefetch_ends(object);
        let Dead { objects, count } = &mut self.lane.dead;
        objects[*count] = (index, object);
        *count += 1;
        let full = *count == MOST;
        self.lane.count.objects -= 1;
        self.lane.count.bytes -= object.len;
        if full || self.lane.count.objects == 0 {
            self.bury();
        }
    }

    /// Gives back the space of all the dead.
    pub(crate) fn bury(&mut self) {
        let count = self.lane.dead.count;
        let dead = self.lane.dead.objects;
        let packed = || dead[..count].iter().filter(|(_, object)| !self.is_huge(object.len));
        for &(_, object) in packed() {
            let [left, _] = self.holes_beside(self.block_of(object));
            if let Some(left) = left {
                self.ground.prefetch(left.at);
            }
        }
        for &(_, object) in packed() {
            for hole in self.holes_beside(self.block_of(object)).into_iter().flatten() {
                self.ground.prefetch(self.tag(hole.at + 1).wrapping_add(1));
                self.ground.prefetch(self.tag(hole.at + 2).wrapping_add(1));
            }
        }
        for &(index, object) in &dead[..count] {
            self.release(index, object);
        }
        self.lane.dead.count = 0;
        self.note_waste();
    }
}
