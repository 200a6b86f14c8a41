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

/// Where the bits of a cluster are in all sets.
#[derive(Clone, Copy)]
struct Seat {
    /// The first word of its lane.
    lane: usize,
    /// Of the words of a set, that of its bit.
    word: usize,
    bit: u64,
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
        self.insert_at(set, self.seat(cluster));
    }

    #[inline]
    fn insert_at(&self, set: Set, seat: Seat) {
        let before = self.bits(set, seat).fetch_or(seat.bit, Ordering::Relaxed);
        debug_assert_eq!(before & seat.bit, 0, "a cluster is put into {set:?} twice");
        self.at(seat.lane + set.index()).fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    fn remove_at(&self, set: Set, seat: Seat) {
        let before = self.bits(set, seat).fetch_and(!seat.bit, Ordering::Relaxed);
        debug_assert_ne!(before & seat.bit, 0, "a cluster is taken out of {set:?} twice");
        self.at(seat.lane + set.index()).fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes a cluster out of the sets of `was` and puts it into those of `is`, which has those that both
    /// have at the same places.
    #[inline]
    pub(crate) fn change(&self, cluster: u32, was: [Option<Set>; 2], is: [Option<Set>; 2]) {
        let seat = self.seat(cluster);
        for (was, is) in was.into_iter().zip(is) {
            if was != is {
                // Not first out: who searches must find it in one of the two.
                is.into_iter().for_each(|set| self.insert_at(set, seat));
                was.into_iter().for_each(|set| self.remove_at(set, seat));
            }
        }
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
        let seat = self.seat(cluster);
        self.bits(set, seat).load(Ordering::Relaxed) & seat.bit != 0
    }

    /// The members of a set in a lane, from about cluster `start` on and then those before it. Each is
    /// given at most once.
    pub(crate) fn of_lane(&self, set: Set, lane: usize, start: u32) -> Members<'_> {
        let start = self.in_lane(start);
        let below = (1 << (start % BITS)) - 1;
        let first = self.words(set, lane * self.lane_words);
        let index = start / BITS;
        let mut members = Members { marks: self, lane, first, index, below, left: 0, words: 0 };
        // Nobody searches an empty set.
        if self.len_of_lane(set, lane) > 0 {
            members.left = members.word() & !below;
            members.words = self.set_words;
        }
        members
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

    /// The first of the words with the bits of a set, in the lane whose first word is this.
    #[inline]
    fn words(&self, set: Set, lane: usize) -> usize {
        lane + Set::COUNT + set.index() * self.set_words
    }

    fn at(&self, word: usize) -> &AtomicU64 {
        &self.lines[word / Line::WORDS].0[word % Line::WORDS]
    }

    fn seat(&self, cluster: u32) -> Seat {
        let in_lane = self.in_lane(cluster);
        let lane = self.lane_of(cluster) * self.lane_words;
        Seat { lane, word: in_lane / BITS, bit: 1 << (in_lane % BITS) }
    }

    /// The word of a set that has this seat's bit.
    #[inline]
    fn bits(&self, set: Set, seat: Seat) -> &AtomicU64 {
        self.at(self.words(set, seat.lane) + seat.word)
    }
}

/// The members of a set in a lane.
pub(crate) struct Members<'a> {
    marks: &'a Marks,
    lane: usize,
    /// The first of its words.
    first: usize,
    /// Which of its words `left` is of.
    index: usize,
    /// The bits of the first word that come last.
    below: u64,
    /// Members that were read and not given yet.
    left: u64,
    /// Words to go; the first comes twice, its upper part at the beginning, its lower at the end.
    words: usize,
}

impl Members<'_> {
    fn word(&self) -> u64 {
        self.marks.at(self.first + self.index).load(Ordering::Relaxed)
    }
}

impl Iterator for Members<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.left == 0 {
            self.words = self.words.checked_sub(1)?;
            self.index = if self.index + 1 < self.marks.set_words { self.index + 1 } else { 0 };
            self.left = self.word() & if self.words == 0 { self.below } else { u64::MAX };
        }
        let bit = self.left.trailing_zeros();
        self.left &= self.left - 1;
        Some(self.marks.cluster(self.lane, (self.index * BITS) as u32 + bit))
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
            members.intersection(&out).for_each(|n| marks.change(*n, [Some(which), None], [None; 2]));
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
