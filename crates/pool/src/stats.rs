//! What the pool holds, in numbers.

use octavo_page::PAGE_SIZE;

use crate::classes::ClassRow;
use crate::ground::{PAGE_WORDS, WORD};
use crate::lane::Count;
use crate::zspages::{DESCRIPTOR_BYTES, Kind};
use crate::{Arena, LANES, Padded, Pool};

/// What a pool holds now. Read lane by lane, the dead buried before: exact when nobody changes the
/// pool meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Objects.
    pub objects: usize,
    /// Bytes of the objects as they were stored.
    pub compressed_bytes: usize,
    /// Bytes of the frames, and of all descriptors and handles that were ever touched.
    pub used_bytes: usize,
    /// Pages of the arena that are backed.
    pub pages: usize,
    /// Of these, pages of huge objects.
    pub huge_pages: usize,
    /// Of these, pages that hold nothing: kept for the next objects, or still to be given back.
    pub spare_pages: usize,
}

impl<A: Arena> Pool<A> {
    /// What the pool holds now. Takes each lane's lock for a moment.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for count in self.counts() {
            stats.objects += count.objects;
            stats.compressed_bytes += count.bytes;
            stats.pages += count.pages();
            stats.huge_pages += count.huge_pages;
            stats.spare_pages += count.empty_pages();
        }
        stats.used_bytes = stats.pages * PAGE_SIZE
            + self.handles.touched_bytes()
            + self.ground.zspages.used() as usize * DESCRIPTOR_BYTES
            + LANES * size_of::<Padded>();
        stats
    }

    /// Pages that perfect packing would give back: what compaction may at most win.
    pub fn freeable_pages(&self) -> usize {
        self.counts().map(|count| count.freeable()).sum()
    }

    /// The pool's two classes, packed objects of any size and huge ones, with the columns that the
    /// kernel shows. Reads every zspage's descriptor, without a lock: a picture of a moment or two.
    pub fn classes(&self) -> [ClassRow; 2] {
        let objects: usize = self.counts().map(|count| count.objects).sum();
        let shape = self.ground.shape;
        let row = |class, size| ClassRow {
            class,
            size,
            pages_per_zspage: shape.pages() as usize,
            ..ClassRow::default()
        };
        let mut packed = row(0, shape.max_packed() + WORD);
        let mut huge = row(1, shape.max_object);
        for (kind, filled, room, pages) in self.zspages() {
            let row = if kind == Kind::Packed { &mut packed } else { &mut huge };
            row.pages_used += pages;
            if kind == Kind::Huge {
                row.obj_used += filled;
                row.obj_allocated += room;
            }
            match filled {
                _ if filled >= room => {}
                _ if 4 * filled >= 3 * room => row.almost_full += 1,
                _ => row.almost_empty += 1,
            }
        }
        packed.obj_used = objects.saturating_sub(huge.obj_used);
        packed.obj_allocated = packed.obj_used;
        packed.freeable = self.freeable_pages();
        [packed, huge]
    }

    /// Zspages by how full they are, in tenths of their pages that are backed; the last are full.
    pub fn fullness(&self) -> [usize; 11] {
        let mut groups = [0; 11];
        for (_, filled, room, _) in self.zspages().filter(|&(_, _, room, _)| room > 0) {
            groups[(filled * 10 / room).min(10)] += 1;
        }
        groups
    }

    /// For each zspage in use what it holds, what fills it, what would, and its pages. Packed ones
    /// are counted in words, huge ones in slots.
    fn zspages(&self) -> impl Iterator<Item = (Kind, usize, usize, usize)> {
        let (zspages, shape) = (&self.ground.zspages, self.ground.shape);
        (0..zspages.used()).filter_map(move |zspage| {
            let (fill, pages) = (zspages.fill(zspage), zspages.pages(zspage));
            let kind = zspages.kind(zspage)?;
            let (filled, room) = match kind {
                Kind::Packed => (fill, pages * PAGE_WORDS),
                Kind::Huge => (fill.count_ones(), shape.slots),
            };
            Some((kind, filled as usize, room as usize, pages as usize))
        })
    }

    fn counts(&self) -> impl Iterator<Item = Count> {
        (0..LANES).map(|number| {
            self.locked(number, |mut lane| {
                lane.bury();
                lane.lane.count
            })
        })
    }
}
