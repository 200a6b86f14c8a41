//! The descriptors of zspages, and the stack of those that nobody uses.
//!
//! A zspage is a run of pages side by side in the arena. A lane takes one when it has no hole that
//! fits, and gives it back when the last object is gone. The fields of a zspage in use belong to
//! its lane's lock (the atomics are there so that the table can be shared, not to order anything);
//! the stack of spares is a Treiber stack with a count against ABA, so no lock stands between lanes.

use alloc::boxed::Box;
use octavo_page::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::handles::NIL;
use octavo_page::zeroed::ZeroAtomic;

/// What a zspage holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Blocks of any size, back to back.
    Packed,
    /// Slots of the largest object's pages, one object each.
    Huge,
}

/// Fields of one zspage, in the order they lie in the table: a line of the cache has two zspages ([`descriptor`]).
const FIELDS: usize = 8;
const OWNER: usize = 0;
const FILL: usize = 1;
const PAGES: usize = 2;
const NEXT: usize = 3;
const PREV: usize = 4;
/// Of one that is packed, which is in no list.
const GAIN: usize = PREV;
const HOLES: usize = 5;
const TAIL: usize = 6;
const DOOMED: usize = 7;

/// Zspages of whose descriptors the order is changed, a page of the table; and how many with numbers side by side
/// are kept apart.
const GROUP: usize = 4096 / DESCRIPTOR_BYTES;
const APART: usize = 8;

/// Bits of [`PAGES`] that count pages, 256 at most; those above count blocks.
const PAGES_BITS: u32 = 9;

/// What the lowest bits of an owner say; 0 of a spare.
const STATE: u32 = 3;
const PACKED: u32 = 1;
const RAZED: u32 = 2;
const HUGE: u32 = 3;

/// Bytes of one descriptor.
pub(crate) const DESCRIPTOR_BYTES: usize = FIELDS * size_of::<u32>();

/// The table of all zspages of an arena.
pub(crate) struct Zspages {
    fields: Box<[AtomicU32]>,
    count: u32,
    /// Zspages that were used at least once.
    used: AtomicU32,
    /// Top of the stack of spares: its number plus 1 below, a count of changes above.
    spares: AtomicU64,
}

impl Zspages {
    /// Descriptors for `count` zspages.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            fields: AtomicU32::table(count.next_multiple_of(GROUP) * FIELDS),
            count: count as u32,
            used: AtomicU32::new(0),
            spares: AtomicU64::new(0),
        }
    }

    /// The number of zspages there can be.
    pub(crate) fn capacity(&self) -> u32 {
        self.count
    }

    /// Zspages that were used at least once; all others are past these.
    pub(crate) fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    /// A zspage that nobody uses, for `lane`; `None` when the arena is given out.
    pub(crate) fn take(&self, lane: usize, kind: Kind) -> Option<u32> {
        let zspage = self.pop().or_else(|| self.fresh())?;
        self.set(zspage, FILL, 0);
        self.set(zspage, PAGES, 0);
        self.set(zspage, HOLES, 0);
        self.set(zspage, TAIL, NIL);
        self.set(zspage, DOOMED, 0);
        self.set(zspage, GAIN, 0);
        self.set(zspage, OWNER, owner(lane, kind));
        Some(zspage)
    }

    /// Gives an empty zspage back.
    pub(crate) fn give(&self, zspage: u32) {
        debug_assert_eq!((self.fill(zspage), self.get(zspage, PAGES)), (0, 0), "given back empty");
        self.set(zspage, OWNER, 0);
        let mut top = self.spares.load(Ordering::Relaxed);
        loop {
            self.set(zspage, NEXT, top as u32);
            let new = count_up(top) | u64::from(zspage + 1);
            let done = (Ordering::AcqRel, Ordering::Relaxed);
            match self.spares.compare_exchange_weak(top, new, done.0, done.1) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    fn pop(&self) -> Option<u32> {
        let mut top = self.spares.load(Ordering::Acquire);
        loop {
            let zspage = (top as u32).checked_sub(1)?;
            let new = count_up(top) | u64::from(self.get(zspage, NEXT));
            let done = (Ordering::AcqRel, Ordering::Acquire);
            match self.spares.compare_exchange_weak(top, new, done.0, done.1) {
                Ok(_) => return Some(zspage),
                Err(now) => top = now,
            }
        }
    }

    fn fresh(&self) -> Option<u32> {
        let mut used = self.used();
        while used < self.capacity() {
            let done = (Ordering::AcqRel, Ordering::Acquire);
            match self.used.compare_exchange_weak(used, used + 1, done.0, done.1) {
                Ok(zspage) => return Some(zspage),
                Err(now) => used = now,
            }
        }
        None
    }

    /// The lane that a zspage in use belongs to.
    pub(crate) fn lane(&self, zspage: u32) -> usize {
        (self.get(zspage, OWNER) >> 2) as usize
    }

    /// What the zspage holds, if it is in use.
    pub(crate) fn kind(&self, zspage: u32) -> Option<Kind> {
        match self.get(zspage, OWNER) & STATE {
            PACKED => Some(Kind::Packed),
            HUGE => Some(Kind::Huge),
            _ => None,
        }
    }

    /// Whether `lane` holds the zspage, for `kind`.
    pub(crate) fn is(&self, zspage: u32, lane: usize, kind: Kind) -> bool {
        self.get(zspage, OWNER) == owner(lane, kind)
    }

    /// Makes a packed zspage one that holds nothing, but is not to be used again yet: its pages are still backed,
    /// and its blocks are handles that are still to be retired.
    pub(crate) fn raze(&self, zspage: u32) {
        self.set(zspage, OWNER, self.get(zspage, OWNER) & !STATE | RAZED);
    }

    /// Whether the zspage was razed and not given back since.
    pub(crate) fn is_razed(&self, zspage: u32) -> bool {
        self.get(zspage, OWNER) & STATE == RAZED
    }

    /// Holes of a packed zspage, the one at its end not counted.
    pub(crate) fn holes(&self, zspage: u32) -> u32 {
        self.get(zspage, HOLES)
    }

    pub(crate) fn set_holes(&self, zspage: u32, holes: u32) {
        self.set(zspage, HOLES, holes);
    }

    /// The hole at the end of a packed zspage; of one that was razed its last hole with pages that are not backed.
    /// `NIL` when there is none.
    pub(crate) fn tail(&self, zspage: u32) -> u32 {
        self.get(zspage, TAIL)
    }

    pub(crate) fn set_tail(&self, zspage: u32, at: u32) {
        self.set(zspage, TAIL, at);
    }

    /// Packed: words, of those that blocks fill, whose objects are freed by a call that is not done.
    pub(crate) fn doomed(&self, zspage: u32) -> u32 {
        self.get(zspage, DOOMED)
    }

    pub(crate) fn set_doomed(&self, zspage: u32, words: u32) {
        self.set(zspage, DOOMED, words);
    }

    /// Packed: words that blocks fill, slack left out. Huge: a bit for each slot that holds an object.
    pub(crate) fn fill(&self, zspage: u32) -> u32 {
        self.get(zspage, FILL)
    }

    pub(crate) fn set_fill(&self, zspage: u32, fill: u32) {
        self.set(zspage, FILL, fill);
    }

    /// Pages that are backed by frames.
    pub(crate) fn pages(&self, zspage: u32) -> u32 {
        self.get(zspage, PAGES) & ((1 << PAGES_BITS) - 1)
    }

    pub(crate) fn set_pages(&self, zspage: u32, pages: u32) {
        self.set(zspage, PAGES, self.blocks(zspage) << PAGES_BITS | pages);
    }

    /// Blocks of a packed zspage.
    pub(crate) fn blocks(&self, zspage: u32) -> u32 {
        self.get(zspage, PAGES) >> PAGES_BITS
    }

    pub(crate) fn set_blocks(&self, zspage: u32, blocks: u32) {
        self.set(zspage, PAGES, blocks << PAGES_BITS | self.pages(zspage));
    }

    /// Packed: what emptying it would win at most, as compaction found it last.
    pub(crate) fn gain(&self, zspage: u32) -> u32 {
        self.get(zspage, GAIN)
    }

    pub(crate) fn set_gain(&self, zspage: u32, gain: u32) {
        self.set(zspage, GAIN, gain);
    }

    /// Puts the zspage first in the list `head`.
    pub(crate) fn link(&self, head: &mut u32, zspage: u32) {
        self.set(zspage, NEXT, *head);
        self.set(zspage, PREV, NIL);
        if *head != NIL {
            self.set(*head, PREV, zspage);
        }
        *head = zspage;
    }

    /// Takes the zspage out of the list `head`.
    pub(crate) fn unlink(&self, head: &mut u32, zspage: u32) {
        let (next, prev) = (self.get(zspage, NEXT), self.get(zspage, PREV));
        if prev == NIL {
            *head = next
        } else {
            self.set(prev, NEXT, next)
        }
        if next != NIL {
            self.set(next, PREV, prev);
        }
    }

    /// The one behind it in its list.
    #[cfg(test)]
    pub(crate) fn next(&self, zspage: u32) -> u32 {
        self.get(zspage, NEXT)
    }

    fn get(&self, zspage: u32, field: usize) -> u32 {
        self.fields[descriptor(zspage) * FIELDS + field].load(Ordering::Relaxed)
    }

    fn set(&self, zspage: u32, field: usize, value: u32) {
        self.fields[descriptor(zspage) * FIELDS + field].store(value, Ordering::Relaxed);
    }
}

/// Where in the table the descriptor of a zspage stands. Those that are taken one after the other, by threads that
/// then change them all the time, are in one page of the table not in one line of the cache, nor in two side by side,
/// which processors fetch together.
const fn descriptor(zspage: u32) -> usize {
    let (zspage, group) = (zspage as usize, zspage as usize % GROUP);
    zspage - group + group % APART * (GROUP / APART) + group / APART
}

const fn owner(lane: usize, kind: Kind) -> u32 {
    let state = match kind {
        Kind::Packed => PACKED,
        Kind::Huge => HUGE,
    };
    (lane as u32) << 2 | state
}

const fn count_up(top: u64) -> u64 {
    ((top >> 32) + 1) << 32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn neighbours_have_descriptors_apart() {
        let all: HashSet<usize> = (0..4 * GROUP as u32).map(descriptor).collect();
        assert!(all.len() == 4 * GROUP && all.iter().all(|&at| at < 4 * GROUP));
        for zspage in 0..1000 {
            let left_of_group = GROUP as u32 - 1 - zspage % GROUP as u32;
            for next in 1..=left_of_group.min(APART as u32 - 1) {
                let apart = descriptor(zspage).abs_diff(descriptor(zspage + next));
                assert!(apart * DESCRIPTOR_BYTES > 2 * 64, "{zspage} and {next} behind it");
            }
        }
    }
}
