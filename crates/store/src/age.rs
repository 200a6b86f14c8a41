//! In which order pages were stored, about.
//!
//! Slots are given out cluster by cluster, so what lies in one cluster was stored at about one time. A
//! cluster has one *stamp*: when a folio was last put there. The oldest stamp is the cluster to write back
//! next; one that was gone through has none until something is put there again.
//!
//! ```text
//!   put ──► stamp of its cluster: the time, which goes on with every row of folios
//!   write back: the cluster with the least stamp ── gone through ──► no stamp, unless it got a new one
//! ```
//! What is kept as it is gains nothing in memory, and goes before all else: its clusters get a stamp that is
//! half of all time old.
//!
//! A list of all objects, oldest first, would be exact, and cost two links an object and a lock to change
//! them. This costs four bytes for 512 slots and one store for each folio; to find the oldest is a walk
//! over the clusters that were ever used, one for each 512 slots that are written back. What it gets
//! wrong: old pages in a cluster that is filled up again count as young until that cluster comes.

use alloc::boxed::Box;
use octavo_page::SlotId;
use octavo_page::sync::atomic::{AtomicU32, Ordering};
use octavo_page::zeroed::ZeroAtomic;

/// Slots with one stamp.
pub(crate) const CLUSTER: usize = 512;

/// No stamp: nothing there that was not gone through.
const NONE: u32 = 0;

/// An age that no cluster reaches by getting old: it goes first.
const FIRST: u32 = 1 << 31;

/// When each cluster was last put to.
pub(crate) struct Ages {
    stamps: Box<[AtomicU32]>,
    now: AtomicU32,
}

/// A cluster that is gone through, and its stamp when that began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Oldest {
    pub(crate) first: SlotId,
    stamp: u32,
}

impl Ages {
    /// Stamps for `slots` slots, no memory touched; none at all for none.
    pub(crate) fn new(slots: usize) -> Self {
        Self { stamps: AtomicU32::table(slots.div_ceil(CLUSTER)), now: AtomicU32::new(NONE) }
    }

    /// Notes that folios were put at these slots, after their words were published; whether they are to
    /// go before all others.
    pub(crate) fn note(&self, firsts: &[SlotId], goes_first: bool) {
        if self.stamps.is_empty() {
            return;
        }
        let now = self.now.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let stamp = if goes_first { now.wrapping_sub(FIRST) } else { now }.max(1);
        for first in firsts {
            // Whoever finds the stamp finds the words.
            self.stamps[first.index() / CLUSTER].store(stamp, Ordering::Release);
        }
    }

    /// A cluster, of those of the first `slots` slots, that goes before all others.
    pub(crate) fn first(&self, slots: usize) -> Option<Oldest> {
        self.oldest(slots).filter(|oldest| self.age(oldest.stamp) >= FIRST)
    }

    fn age(&self, stamp: u32) -> u32 {
        self.now.load(Ordering::Relaxed).wrapping_sub(stamp)
    }

    /// The cluster that was put to the longest time ago, of the first `slots` slots.
    pub(crate) fn oldest(&self, slots: usize) -> Option<Oldest> {
        let stamps = self.stamps.iter().take(slots.div_ceil(CLUSTER)).enumerate();
        let stamps = stamps.map(|(n, stamp)| (n, stamp.load(Ordering::Acquire)));
        let (cluster, stamp) =
            stamps.filter(|(_, stamp)| *stamp != NONE).max_by_key(|(_, stamp)| self.age(*stamp))?;
        Some(Oldest { first: SlotId::new((cluster * CLUSTER) as u32), stamp })
    }

    /// Notes that a cluster was gone through: it is not the oldest any more, unless it was put to since.
    pub(crate) fn done(&self, oldest: Oldest) {
        let stamp = &self.stamps[oldest.first.index() / CLUSTER];
        let order = Ordering::Relaxed;
        let _ = stamp.compare_exchange(oldest.stamp, NONE, order, order);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn slot(cluster: usize) -> SlotId {
        SlotId::new((cluster * CLUSTER + 5) as u32)
    }

    #[test]
    fn the_oldest_is_who_was_put_to_first_and_not_since() {
        let ages = Ages::new(8 * CLUSTER);
        assert_eq!(ages.oldest(8 * CLUSTER), None);
        [3, 1, 2, 3].into_iter().for_each(|cluster| ages.note(&[slot(cluster)], false));
        assert_eq!(in_order(&ages), [1, 2, 3]);
    }

    #[test]
    fn what_goes_first_is_older_than_what_is_old() {
        let ages = Ages::new(8 * CLUSTER);
        [1, 4, 2, 5].into_iter().for_each(|cluster| ages.note(&[slot(cluster)], cluster > 3));
        assert_eq!(ages.first(8 * CLUSTER).map(|first| first.first), Some(SlotId::new(4 * 512)));
        assert_eq!(in_order(&ages), [4, 5, 1, 2]);
        ages.note(&[slot(1)], false);
        assert_eq!(ages.first(8 * CLUSTER), None);
    }

    fn in_order(ages: &Ages) -> Vec<usize> {
        let next = || ages.oldest(8 * CLUSTER).inspect(|oldest| ages.done(*oldest));
        core::iter::from_fn(next).map(|oldest| oldest.first.index() / CLUSTER).collect()
    }

    #[test]
    fn who_is_put_to_meanwhile_comes_again() {
        let ages = Ages::new(CLUSTER);
        ages.note(&[slot(0)], false);
        let oldest = ages.oldest(CLUSTER).expect("one");
        ages.note(&[slot(0)], false);
        ages.done(oldest);
        assert!(ages.oldest(CLUSTER).is_some());
    }

    #[test]
    fn time_goes_round() {
        let ages = Ages::new(2 * CLUSTER);
        ages.now.store(u32::MAX - 1, Ordering::Relaxed);
        [0, 1, 0].into_iter().for_each(|cluster| ages.note(&[slot(cluster)], false));
        assert_eq!(ages.oldest(2 * CLUSTER).map(|oldest| oldest.first), Some(SlotId::new(512)));
    }
}
