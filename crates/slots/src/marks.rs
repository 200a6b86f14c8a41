//! One bit for each cluster, for finding a cluster with some property without asking them all.
//!
//! A cluster's bits change only under its lock, so who holds the lock sees them as they are. Who
//! looks for a cluster reads them without, takes the lock and looks again.

use alloc::boxed::Box;
use octavo_page::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const BITS: usize = 64;

/// A set of clusters.
pub(crate) struct Marks {
    words: Box<[AtomicU64]>,
    /// How many members there are, so that nobody searches an empty set.
    len: AtomicU32,
}

impl Marks {
    /// A set of clusters below `clusters` that has none of them.
    pub(crate) fn none(clusters: usize) -> Self {
        let words = (0..clusters.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        Self { words, len: AtomicU32::new(0) }
    }

    /// Bytes of the set.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Puts a cluster into the set, in which it is not.
    pub(crate) fn insert(&self, cluster: u32) {
        let (word, bit) = self.place(cluster);
        let before = word.fetch_or(bit, Ordering::Relaxed);
        debug_assert_eq!(before & bit, 0, "cluster {cluster} is put into a set twice");
        self.len.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a cluster out of the set, in which it is.
    pub(crate) fn remove(&self, cluster: u32) {
        let (word, bit) = self.place(cluster);
        let before = word.fetch_and(!bit, Ordering::Relaxed);
        debug_assert_ne!(before & bit, 0, "cluster {cluster} is taken out of a set twice");
        self.len.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many clusters are in the set.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Whether a cluster is in the set.
    pub(crate) fn has(&self, cluster: u32) -> bool {
        let (word, bit) = self.place(cluster);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// The members from `start` on and then those before it, of each 64 clusters those whose bit is
    /// set in `lanes`. Each is given at most once.
    pub(crate) fn from(&self, start: u32, lanes: u64) -> impl Iterator<Item = u32> {
        let len = self.words.len();
        let (first, below) = (start as usize / BITS, (1 << (start as usize % BITS)) - 1);
        // The first word comes twice: its upper part at the beginning, its lower at the end.
        let masks = core::iter::once(!below).chain((1..len).map(|_| u64::MAX)).chain([below]);
        let words = if self.len() == 0 || lanes == 0 { 0 } else { len + 1 };
        (first..first + words).zip(masks).flat_map(move |(index, mask)| {
            let index = index % len;
            let mut left = self.words[index].load(Ordering::Relaxed) & mask & lanes;
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some((index * BITS) as u32 + bit)
            })
        })
    }

    fn place(&self, cluster: u32) -> (&AtomicU64, u64) {
        (&self.words[cluster as usize / BITS], 1 << (cluster as usize % BITS))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn members_come_in_order_from_the_start_and_round(
            set in prop::collection::btree_set(0..200_u32, 0..200),
            out in prop::collection::btree_set(0..200_u32, 0..50),
            start in 0..200_u32,
            lanes in prop_oneof![Just(u64::MAX), any::<u64>()],
        ) {
            let marks = Marks::none(200);
            set.iter().for_each(|n| marks.insert(*n));
            set.intersection(&out).for_each(|n| marks.remove(*n));
            let set: BTreeSet<_> = set.difference(&out).copied().collect();
            prop_assert_eq!(marks.len(), set.len());
            let expected = set.range(start..).chain(set.range(..start)).copied();
            let expected: Vec<_> = expected.filter(|n| lanes >> (n % 64) & 1 == 1).collect();
            prop_assert_eq!(marks.from(start, lanes).collect::<Vec<_>>(), expected);
            prop_assert!((0..200).all(|n| marks.has(n) == set.contains(&n)));
        }
    }
}
