//! What lives in each segment: the one part that everybody touches, without a lock.
//!
//! ```text
//!   live      31                                     0
//!             ├ closed ┼────── bytes of objects ─────┤     a segment each
//!   emptied   a bit a segment: closed, and nothing lives in it
//! ```
//! Writing adds to a segment while it is open, freeing takes away at any time. A segment is emptied when
//! it is closed and its bytes are none, which whoever makes the word so sees in what it was before: the
//! last free, or the closing. So it is noted once, and no free waits for anybody.

use crate::place::Segment;
use alloc::boxed::Box;
use octavo_page::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use octavo_page::zeroed::ZeroAtomic;

const CLOSED: u32 = 1 << 31;

/// Words of all segments.
pub(crate) struct Table {
    live: Box<[AtomicU32]>,
    /// How many segments had been opened when this one was.
    sequence: Box<[AtomicU32]>,
    emptied: Box<[AtomicU64]>,
    live_bytes: AtomicU64,
}

impl Table {
    /// `segments` segments that are free.
    pub(crate) fn new(segments: u32) -> Self {
        let len = segments as usize;
        Self {
            live: AtomicU32::table(len),
            sequence: AtomicU32::table(len),
            emptied: AtomicU64::table(len.div_ceil(64)),
            live_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn segments(&self) -> usize {
        self.live.len()
    }

    /// Bytes of memory that `segments` segments take here.
    pub(crate) const fn bytes(segments: usize) -> usize {
        segments * 8 + segments.div_ceil(64) * 8
    }

    /// A free segment is to be filled; `sequence` differs from those of all before it.
    pub(crate) fn open(&self, segment: Segment, sequence: u32) {
        let before = self.live[segment.index()].swap(0, Ordering::Relaxed);
        assert_eq!(before & !CLOSED, 0, "{segment:?} is opened while something lives in it");
        self.sequence[segment.index()].store(sequence, Ordering::Release);
    }

    /// The number a segment got when it was opened last.
    pub(crate) fn sequence(&self, segment: Segment) -> u32 {
        self.sequence[segment.index()].load(Ordering::Acquire)
    }

    /// An object of `len` bytes lives in an open segment from now on.
    pub(crate) fn add(&self, segment: Segment, len: usize) {
        self.live[segment.index()].fetch_add(len as u32, Ordering::Relaxed);
        self.live_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// An object of `len` bytes lives no more.
    pub(crate) fn free(&self, segment: Segment, len: usize) {
        let before = self.live[segment.index()].fetch_sub(len as u32, Ordering::AcqRel);
        assert!(before & !CLOSED >= len as u32, "an object of {segment:?} was freed twice");
        self.live_bytes.fetch_sub(len as u64, Ordering::Relaxed);
        if before == CLOSED | len as u32 {
            self.note_emptied(segment);
        }
    }

    /// Nothing is added to an open segment any more.
    pub(crate) fn close(&self, segment: Segment) {
        let before = self.live[segment.index()].fetch_or(CLOSED, Ordering::AcqRel);
        assert_eq!(before & CLOSED, 0, "{segment:?} is closed twice");
        if before == 0 {
            self.note_emptied(segment);
        }
    }

    /// Notes an emptied segment, also again when it could not be used yet.
    pub(crate) fn note_emptied(&self, segment: Segment) {
        let bit = 1 << (segment.index() % 64);
        self.emptied[segment.index() / 64].fetch_or(bit, Ordering::AcqRel);
    }

    /// Calls `take` for every segment that was emptied since.
    pub(crate) fn take_emptied(&self, mut take: impl FnMut(Segment)) {
        for (n, word) in self.emptied.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                take(Segment(n as u32 * 64 + bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
    }

    /// Bytes that live in a segment.
    pub(crate) fn live(&self, segment: Segment) -> usize {
        (self.live[segment.index()].load(Ordering::Relaxed) & !CLOSED) as usize
    }

    /// Bytes that live in all of them.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn emptied(table: &Table) -> Vec<u32> {
        let mut found = Vec::new();
        table.take_emptied(|segment| found.push(segment.0));
        found
    }

    #[test]
    fn a_segment_is_emptied_when_closed_and_without_bytes() {
        let table = Table::new(130);
        let [a, b] = [Segment(3), Segment(129)];
        table.open(a, 1);
        table.add(a, 100);
        table.free(a, 100);
        assert!(emptied(&table).is_empty(), "it is open");
        table.close(a);
        assert_eq!(emptied(&table), [3]);
        table.open(b, 2);
        table.add(b, 100);
        table.add(b, 50);
        table.close(b);
        table.free(b, 100);
        assert!(emptied(&table).is_empty(), "50 bytes live");
        assert_eq!((table.live(b), table.live_bytes(), table.sequence(b)), (50, 50, 2));
        table.free(b, 50);
        assert_eq!(emptied(&table), [129]);
        table.open(b, 3);
        assert_eq!((table.live(b), table.sequence(b)), (0, 3));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_second_free_is_a_bug() {
        let table = Table::new(1);
        table.open(Segment(0), 1);
        table.add(Segment(0), 8);
        table.free(Segment(0), 8);
        table.free(Segment(0), 8);
    }
}
