//! The lists on which clusters wait, and the one lock over them: the device lock.
//!
//! Links are kept apart from the clusters they link, because they belong to another lock: a
//! cluster's contents and the name of its list belong to the cluster lock, its neighbours on that
//! list to the device lock. Lock order: cluster, then device. Under the device lock a cluster is
//! only ever *tried*, never waited for.

use crate::twins::SharedWork;
use alloc::boxed::Box;
use octavo_page::Order;

const ORDERS: usize = Order::MAX.get() as usize + 1;
const LISTS: usize = 3 + 2 * ORDERS;

const _: () = assert!(LISTS <= u32::BITS as usize);

/// No cluster: the end of a list.
const NONE: u32 = u32::MAX;

/// The list that a cluster is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum List {
    /// No slot taken, no order.
    Free,
    /// Some slots of this order were freed since it was last searched: worth a search.
    Nonfull(Order),
    /// Partly taken, and searched since the last free, or some CPU's current cluster.
    Frag(Order),
    /// Every slot taken.
    Full,
    /// No slot taken, and the device has still to be told.
    Discard,
}

impl List {
    const fn index(self) -> usize {
        match self {
            Self::Free => 0,
            Self::Full => 1,
            Self::Discard => 2,
            Self::Nonfull(order) => 3 + order.get() as usize,
            Self::Frag(order) => 3 + ORDERS + order.get() as usize,
        }
    }

    /// This list's bit in [`Lists::occupied`].
    pub(crate) const fn bit(self) -> u32 {
        1 << self.index()
    }
}

#[derive(Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
}

/// Every list, and the links of every cluster. Lives under the device lock.
pub(crate) struct Lists {
    ends: [Ends; LISTS],
    links: Box<[Link]>,
    /// A bit for each list that has a cluster.
    occupied: u32,
    pub(crate) work: SharedWork,
}

impl Lists {
    /// All of `clusters` clusters on the free list, lowest number first.
    pub(crate) fn new(clusters: u32) -> Self {
        let mut lists = Self {
            ends: [Ends { head: NONE, tail: NONE }; LISTS],
            links: (0..clusters).map(|_| Link { prev: NONE, next: NONE }).collect(),
            occupied: 0,
            work: SharedWork::default(),
        };
        (0..clusters).for_each(|cluster| lists.push(List::Free, cluster));
        lists.work = SharedWork::default();
        lists
    }

    /// A bit for each list that has a cluster.
    pub(crate) fn occupied(&self) -> u32 {
        self.occupied
    }

    /// Takes `cluster` off `list`, on which it is.
    pub(crate) fn unlink(&mut self, list: List, cluster: u32) {
        let Link { prev, next } = self.links[cluster as usize];
        let ends = &mut self.ends[list.index()];
        match prev {
            NONE => ends.head = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => ends.tail = prev,
            next => self.links[next as usize].prev = prev,
        }
        if ends.head == NONE {
            self.occupied &= !list.bit();
        }
        self.work.moves += 1;
    }

    /// Puts `cluster`, which is on no list, on `list`: at its tail, so that the longest waiting is
    /// searched first.
    pub(crate) fn push(&mut self, list: List, cluster: u32) {
        self.work.moves += 1;
        self.occupied |= list.bit();
        let ends = &mut self.ends[list.index()];
        let prev = ends.tail;
        ends.tail = cluster;
        match prev {
            NONE => ends.head = cluster,
            prev => self.links[prev as usize].next = cluster,
        }
        self.links[cluster as usize] = Link { prev, next: NONE };
    }

    /// Puts `cluster`, which is on no list, first on the free list: what describes its slots
    /// was written before.
    pub(crate) fn push_free(&mut self, cluster: u32) {
        self.work.moves += 1;
        self.occupied |= List::Free.bit();
        let ends = &mut self.ends[List::Free.index()];
        let next = ends.head;
        ends.head = cluster;
        match next {
            NONE => ends.tail = cluster,
            next => self.links[next as usize].prev = cluster,
        }
        self.links[cluster as usize] = Link { prev: NONE, next };
    }

    /// The clusters of `list` in order, each at most once.
    pub(crate) fn iter(&self, list: List) -> impl Iterator<Item = u32> {
        let mut next = self.ends[list.index()].head;
        core::iter::from_fn(move || {
            let cluster = (next != NONE).then_some(next)?;
            next = self.links[cluster as usize].next;
            Some(cluster)
        })
        .take(self.links.len())
    }

    /// Whether a list links forth and back the same way and ends where it says.
    pub(crate) fn is_sound(&self, list: List) -> bool {
        let mut prev = NONE;
        for cluster in self.iter(list) {
            if self.links[cluster as usize].prev != prev {
                return false;
            }
            prev = cluster;
        }
        let occupied = self.occupied & list.bit() != 0;
        self.ends[list.index()].tail == prev && occupied == (prev != NONE)
    }

    /// Every list there is.
    pub(crate) fn all() -> impl Iterator<Item = List> {
        let orders = || (0..ORDERS as u8).filter_map(Order::new);
        [List::Free, List::Full, List::Discard]
            .into_iter()
            .chain(orders().map(List::Nonfull))
            .chain(orders().map(List::Frag))
    }
}
