//! The sets of clusters: one bit for each cluster in each set, for finding a cluster with some property
//! without asking them all.
//!
//! A cluster's bits change only under its lock, so who holds the lock sees them as they are. Who
//! looks for a cluster reads them without, takes the lock and looks again.
//!
//! The bits lie by *lanes*: blocks of 32 clusters that follow one another are in the lanes by turns, and what
//! is written for one lane shares no cache line with another's, nor with anything else.
//!
//! ```text
//!   lane 0                                                   lane 1
//!   [ members of set 0, 1, .. 31 ][ bits of set 0 ][ of 1 ].. [ members of set 0, ..
//!                                   clusters 0 to 31,           clusters 32 to 63, ..
//!                                   then with two lanes 64 to 95, ..
//! ```
//!
//! A block is what has a page of cluster descriptors: processors that fetch ahead do so within a page, and
//! what they fetch of another lane is taken from the CPU that works there.

use crate::ORDERS;
use alloc::boxed::Box;
use octavo_page::Order;
use octavo_page::sync::atomic::{AtomicU64, Ordering};

const BITS: usize = 64;

/// Most lanes.
const MAX_LANES: usize = 64;

/// Binary logarithm of the clusters in a block, where there are enough for four blocks a lane.
const BLOCK_LOG2: u32 = 5;

/// A set that clusters can be in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Set {
    /// Nothing taken, nobody's, and the device needs not be told.
    Free,
    /// Nothing taken, nobody's, and the device is to be told.
    Emptied,
    /// Serves this order, is nobody's and has room.
    Roomy(Order),
    /// Serves this order and has a run for it, but few, or is some CPU's.
    Spare(Order),
    /// Serves this order and has a free slot.
    Partly(Order),
}

impl Set {
    /// How many sets there are.
    const COUNT: usize = 2 + 3 * ORDERS;

    /// Every set.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let orders = (0..=Order::MAX.get()).filter_map(Order::new);
        let of_orders = orders.flat_map(|n| [Self::Roomy(n), Self::Spare(n), Self::Partly(n)]);
        [Self::Free, Self::Emptied].into_iter().chain(of_orders)
    }

    /// Who looks in vain for a roomy cluster in another lane reads how many there are: not on the line
    /// that changes with every free cluster.
    fn index(self) -> usize {
        match self {
            Self::Roomy(order) => usize::from(order.get()),
            Self::Spare(order) => ORDERS + usize::from(order.get()),
            Self::Partly(order) => 2 * ORDERS + usize::from(order.get()),
            Self::Free => 3 * ORDERS,
            Self::Emptied => 3 * ORDERS + 1,
        }
    }
}

/// Two cache lines: processors fetch them in pairs.
#[repr(align(128))]
struct Line([AtomicU64; Line::WORDS]);

impl Line {
    const WORDS: usize = 16;

    fn zeros() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Which clusters are in which sets.
pub(crate) struct Marks {
    lines: Box<[Line]>,
    /// Binary logarithm of the number of lanes.
    lanes_log2: u32,
    /// Binary logarithm of the clusters in a block.
    block_log2: u32,
    /// Words of a set in a lane.
    set_words: usize,
    /// Words of a lane, whole lines.
    lane_words: usize,
}

impl Marks {
    /// Sets of clusters below `clusters`, all empty, with a lane for each of so many CPUs, or for several
    /// of them.
    pub(crate) fn none(clusters: usize, cpus: usize) -> Self {
        let lanes = cpus.next_power_of_two().min(MAX_LANES);
        let block_log2 = (clusters / lanes / 4).max(1).ilog2().min(BLOCK_LOG2);
        let in_lane = clusters.div_ceil(lanes << block_log2) << block_log2;
        let set_words = in_lane.div_ceil(BITS);
        let lane_words = (Set::COUNT * (1 + set_words)).next_multiple_of(Line::WORDS);
        let lines = (0..lanes * lane_words / Line::WORDS).map(|_| Line::zeros()).collect();
        Self { lines, lanes_log2: lanes.trailing_zeros(), block_log2, set_words, lane_words }
    }

    /// Bytes of all sets.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// How many lanes there are: a power of two.
    pub(crate) fn lanes(&self) -> usize {
        1 << self.lanes_log2
    }

    /// Puts a cluster into the set, in which it is not.
    pub(crate) fn insert(&self, set: Set, cluster: u32) {
        let (word, bit) = self.place(set, cluster);
        let before = word.fetch_or(bit, Ordering::Relaxed);
        debug_assert_eq!(before & bit, 0, "cluster {cluster} is put into a set twice");
        self.members(set, self.lane_of(cluster)).fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a cluster out of the set, in which it is.
    pub(crate) fn remove(&self, set: Set, cluster: u32) {
        let (word, bit) = self.place(set, cluster);
        let before = word.fetch_and(!bit, Ordering::Relaxed);
        debug_assert_ne!(before & bit, 0, "cluster {cluster} is taken out of a set twice");
        self.members(set, self.lane_of(cluster)).fetch_sub(1, Ordering::Relaxed);
    }

    /// How many clusters of a lane are in the set.
    pub(crate) fn len_of_lane(&self, set: Set, lane: usize) -> usize {
        self.members(set, lane).load(Ordering::Relaxed) as usize
    }

    /// How many clusters are in the set, for checks.
    pub(crate) fn len(&self, set: Set) -> usize {
        (0..self.lanes()).map(|lane| self.len_of_lane(set, lane)).sum()
    }

    /// Whether the sets have at least so many clusters together. Looks at this lane first, and at others
    /// only when its own are too few.
    pub(crate) fn have(&self, sets: [Set; 2], clusters: usize, lane: usize) -> bool {
        let mut members = 0;
        (lane..lane + self.lanes()).any(|lane| {
            let lane = lane % self.lanes();
            members += sets.map(|set| self.len_of_lane(set, lane)).iter().sum::<usize>();
            members >= clusters
        })
    }

    /// Whether a cluster is in the set.
    pub(crate) fn has(&self, set: Set, cluster: u32) -> bool {
        let (word, bit) = self.place(set, cluster);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// The members of a set in a lane, from about cluster `start` on and then those before it. Each is
    /// given at most once.
    pub(crate) fn of_lane(&self, set: Set, lane: usize, start: u32) -> impl Iterator<Item = u32> {
        let start = self.in_lane(start);
        let len = self.set_words;
        let (first, below) = (start / BITS, (1 << (start % BITS)) - 1);
        // The first word comes twice: its upper part at the beginning, its lower at the end.
        let masks = core::iter::once(!below).chain((1..len).map(|_| u64::MAX)).chain([below]);
        // Nobody searches an empty set.
        let words = if self.len_of_lane(set, lane) == 0 { 0 } else { len + 1 };
        (first..first + words).zip(masks).flat_map(move |(index, mask)| {
            let index = index % len;
            let mut left = self.word(set, lane, index).load(Ordering::Relaxed) & mask;
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(self.cluster(lane, (index * BITS) as u32 + bit))
            })
        })
    }

    fn lane_of(&self, cluster: u32) -> usize {
        (cluster >> self.block_log2) as usize & (self.lanes() - 1)
    }

    /// How many clusters of its lane come before this one.
    fn in_lane(&self, cluster: u32) -> usize {
        let block = cluster >> self.block_log2 >> self.lanes_log2;
        (block << self.block_log2 | cluster & self.in_block()) as usize
    }

    /// The cluster of a lane before which so many of this lane come.
    fn cluster(&self, lane: usize, in_lane: u32) -> u32 {
        let block = in_lane >> self.block_log2 << self.lanes_log2 | lane as u32;
        block << self.block_log2 | in_lane & self.in_block()
    }

    /// The bits of a cluster's number that say where in its block it is.
    fn in_block(&self) -> u32 {
        (1 << self.block_log2) - 1
    }

    /// The number of members that a set has in a lane.
    fn members(&self, set: Set, lane: usize) -> &AtomicU64 {
        self.at(lane * self.lane_words + set.index())
    }

    /// The bits of a set in a lane.
    fn word(&self, set: Set, lane: usize, index: usize) -> &AtomicU64 {
        self.at(lane * self.lane_words + Set::COUNT + set.index() * self.set_words + index)
    }

    fn at(&self, word: usize) -> &AtomicU64 {
        &self.lines[word / Line::WORDS].0[word % Line::WORDS]
    }

    /// The word and the bit in it of a cluster in a set.
    fn place(&self, set: Set, cluster: u32) -> (&AtomicU64, u64) {
        let in_lane = self.in_lane(cluster);
        (self.word(set, self.lane_of(cluster), in_lane / BITS), 1 << (in_lane % BITS))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn each_set_has_a_place_of_its_own() {
        let places: BTreeSet<_> = Set::all().map(Set::index).collect();
        assert_eq!(places, (0..Set::COUNT).collect());
    }

    proptest! {
        #[test]
        fn members_come_in_order_from_the_start_and_round(
            members in prop::collection::btree_set(0..600_u32, 0..400),
            out in prop::collection::btree_set(0..600_u32, 0..50),
            start in 0..600_u32,
            cpus in prop_oneof![1..8_usize, 1..200_usize],
            which in prop::sample::select(Set::all().collect::<Vec<_>>()),
        ) {
            let marks = Marks::none(600, cpus);
            let lanes = marks.lanes();
            prop_assert!(lanes.is_power_of_two() && (lanes >= cpus || lanes == MAX_LANES));
            members.iter().for_each(|n| marks.insert(which, *n));
            members.intersection(&out).for_each(|n| marks.remove(which, *n));
            let members: BTreeSet<_> = members.difference(&out).copied().collect();
            prop_assert_eq!(marks.len(which), members.len());
            let have = |clusters| marks.have([which, Set::Free], clusters, start as usize % lanes);
            let all = members.len() * if which == Set::Free { 2 } else { 1 };
            prop_assert!(have(0) && have(all) && !have(all + 1));
            for cluster in 0..600 {
                let (lane, in_lane) = (marks.lane_of(cluster), marks.in_lane(cluster));
                prop_assert!(lane < lanes && in_lane < marks.set_words * BITS);
                prop_assert_eq!(marks.cluster(lane, in_lane as u32), cluster);
            }
            for lane in 0..lanes {
                // The first member that counts is the one at this place of the lane's own block.
                let first = marks.cluster(lane, marks.in_lane(start) as u32);
                let expected = members.range(first..).chain(members.range(..first)).copied();
                let expected: Vec<_> = expected.filter(|n| marks.lane_of(*n) == lane).collect();
                prop_assert_eq!(marks.of_lane(which, lane, start).collect::<Vec<_>>(), expected);
            }
            for set in Set::all() {
                prop_assert!((0..600).all(|n| marks.has(set, n) == (set == which && members.contains(&n))));
            }
        }
    }
}
