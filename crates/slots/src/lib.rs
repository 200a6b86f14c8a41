//! The slot allocator: gives out numbers for the places of pages, almost without shared locks.
//!
//! The device is cut into *clusters* of 512 slots. A cluster serves folios of one order, that of
//! its first allocation, so that large folios keep finding aligned room. Each CPU keeps, for each
//! order, a note of the cluster it took from last and where it stopped. Clusters wait on lists:
//!
//! ```text
//!             first slot taken              last free slot taken
//!     free ───────────────────► frag[order] ────────────────────► full
//!      ▲                          │    ▲                            │
//!      │                a slot    │    │ searched                   │ a slot
//!      │                is freed  ▼    │                            │ is freed
//!      └───────────────────── nonfull[order] ◄──────────────────────┘
//!        last slot freed
//! ```
//!
//! `frag` holds clusters that are somebody's current one or were searched in vain, `nonfull` those
//! in which something was freed since, so they are searched first.
//!
//! An allocation tries, in this order: the CPU's current cluster; `nonfull` of its order; `free`;
//! one of `frag` of its order; and, for a single page, what is left in clusters of other orders.
//! It is the design of the kernel series "mm, swap: rework of swap allocator locks".
//!
//! # Locks
//!
//! Each cluster has a lock over its bits, its order and the name of its list. One *device lock*
//! lies over the links of the lists. **Cluster lock first, then device lock**, and the device lock
//! only to move a cluster from one list to another. Who looks for a cluster on a list holds the
//! device lock and therefore only tries cluster locks and skips those that are held.
//!
//! # Invariants
//!
//! Whenever no cluster lock is held:
//! - a cluster is on exactly one list, the one it names;
//! - no slot taken ⇔ `free`; every slot taken ⇔ `full`; a partly taken one is on `nonfull` or
//!   `frag` of its own order;
//! - slots given out and not freed are exactly the set bits.
//!
//! Nothing here allocates after construction, waits, or calls the operating system except to wait
//! for a lock.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bitmap;
mod lists;
mod sync;

pub use lists::DeviceCounts;

use alloc::boxed::Box;
use bitmap::{Bitmap, CLUSTER_SLOTS};
use core::fmt;
use lists::{List, Lists};
use octavo_page::sync::atomic::{AtomicU32, Ordering};
use octavo_page::{Order, SlotId};
use sync::{Mutex, MutexGuard};

const ORDERS: usize = Order::MAX.get() as usize + 1;

/// No current cluster.
const NO_HINT: u32 = u32::MAX;

/// The most slots an allocator can have: every number and every end of a range fits 32 bits.
pub const MAX_SLOTS: usize = (u32::MAX as usize / CLUSTER_SLOTS) * CLUSTER_SLOTS;

/// How large an allocator is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Slots, rounded up to whole clusters of 512.
    pub capacity: usize,
    /// CPUs that allocate at once; `cpu` in [`Slots::alloc`] counts below this.
    pub cpus: usize,
}

/// A size that no allocator has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// No slots.
    NoSlots,
    /// More slots than 32 bits can number.
    TooManySlots {
        /// What was asked for.
        capacity: usize,
    },
    /// No CPUs.
    NoCpus,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlots => f.write_str("a slot allocator of 0 slots; it takes at least 1"),
            Self::TooManySlots { capacity } => {
                write!(f, "a slot allocator of {capacity} slots; it takes at most {MAX_SLOTS}")
            }
            Self::NoCpus => f.write_str("a slot allocator for 0 CPUs; it takes at least 1"),
        }
    }
}

impl core::error::Error for ConfigError {}

/// A free that was refused. The slots it names are as they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// The slot was not given out, or was freed before.
    NotTaken {
        /// The first such slot.
        slot: SlotId,
    },
    /// The range reaches past the last slot.
    PastTheEnd {
        /// The first slot of the range.
        first: SlotId,
        /// How many slots the range has.
        pages: usize,
        /// How many slots there are.
        capacity: usize,
    },
    /// The range covers more than one cluster, so it is no folio and no part of one.
    SpansClusters {
        /// The first slot of the range.
        first: SlotId,
        /// How many slots the range has.
        pages: usize,
    },
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTaken { slot } => write!(f, "{slot} is freed but was not taken"),
            Self::PastTheEnd { first, pages, capacity } => {
                write!(f, "{pages} slots from {first} on are freed but there are only {capacity}")
            }
            Self::SpansClusters { first, pages } => {
                write!(f, "{pages} slots from {first} on are freed at once but are no folio")
            }
        }
    }
}

impl core::error::Error for FreeError {}

/// A cluster on cache lines of its own, so that CPUs in different clusters do not disturb each
/// other.
#[repr(align(128))]
struct Cluster(Mutex<State>);

/// What the cluster lock protects.
struct State {
    taken: Bitmap,
    count: u16,
    /// Means something while `count` is not 0.
    order: Order,
    /// The list it is on; `None` only while somebody who holds the lock has it off its list.
    list: Option<List>,
}

/// For each order the slot at which this CPU goes on, or [`NO_HINT`]. Only a note: whoever follows
/// it takes the cluster lock and looks.
#[repr(align(128))]
struct Current([AtomicU32; ORDERS]);

/// Numbers for the places of pages.
pub struct Slots {
    clusters: Box<[Cluster]>,
    /// The device lock.
    device: Mutex<Lists>,
    /// A bit for each list that has a cluster. Written under the device lock, read without, so
    /// that nobody takes the lock to find a list empty, and "full" is said without any lock.
    occupied: AtomicU32,
    current: Box<[Current]>,
}

/// A cluster whose lock is held.
struct Locked<'a> {
    number: u32,
    state: MutexGuard<'a, State>,
}

impl Slots {
    /// An allocator with every slot free.
    ///
    /// # Errors
    /// [`ConfigError`] when there would be no slots, no CPUs, or more slots than have numbers.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let Config { capacity, cpus } = config;
        if capacity == 0 {
            return Err(ConfigError::NoSlots);
        }
        if capacity > MAX_SLOTS {
            return Err(ConfigError::TooManySlots { capacity });
        }
        if cpus == 0 {
            return Err(ConfigError::NoCpus);
        }
        let clusters = capacity.div_ceil(CLUSTER_SLOTS) as u32;
        Ok(Self {
            clusters: (0..clusters).map(|_| Cluster(Mutex::new(State::new()))).collect(),
            device: Mutex::new(Lists::new(clusters)),
            occupied: AtomicU32::new(List::Free.bit()),
            current: (0..cpus)
                .map(|_| Current(core::array::from_fn(|_| AtomicU32::new(NO_HINT))))
                .collect(),
        })
    }

    /// How many slots there are, taken or free.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.clusters.len() * CLUSTER_SLOTS
    }

    /// How many slots are taken. Walks the clusters; exact when nobody allocates or frees.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.clusters.iter().map(|c| usize::from(c.0.lock().count)).sum()
    }

    /// Slots below this number may have been given out; from it on none ever was.
    #[must_use]
    pub fn touched(&self) -> usize {
        self.device.lock().touched() * CLUSTER_SLOTS
    }

    /// Bytes of the allocator's own tables. They were all written when it was made.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        size_of_val(&*self.clusters)
            + size_of_val(&*self.current)
            + Lists::bytes(self.clusters.len())
    }

    /// Work done under the device lock since the start.
    #[must_use]
    pub fn device_counts(&self) -> DeviceCounts {
        self.device.lock().counts
    }

    /// Takes an aligned run of slots for a folio of `order` and returns its first.
    ///
    /// `cpu` is where the caller runs, or about: callers with different numbers stay out of each
    /// other's way, a stale number costs time only.
    ///
    /// `None` when no aligned run was found. A single page finds the last free slot there is,
    /// unless another thread holds the lock of its cluster at that moment; a larger folio is
    /// refused earlier and may be stored in smaller parts.
    #[must_use]
    pub fn alloc(&self, order: Order, cpu: usize) -> Option<SlotId> {
        let current = &self.current[cpu % self.current.len()].0[usize::from(order.get())];
        if let Some(slot) = self.alloc_in_current(order, current) {
            return Some(slot);
        }
        // A nonfull cluster in which no run is found moves to frag, so the search ends by itself;
        // the bound is for other threads that free as fast as this one searches.
        self.alloc_from(List::Nonfull(order), order, current, self.clusters.len())
            .or_else(|| self.alloc_from(List::Free, order, current, 1))
            .or_else(|| self.alloc_from(List::Frag(order), order, current, 1))
            .or_else(|| if order == Order::PAGE { self.steal(current) } else { None })
    }

    /// The current cluster, from where the last allocation stopped.
    fn alloc_in_current(&self, order: Order, current: &AtomicU32) -> Option<SlotId> {
        let hint = current.load(Ordering::Relaxed);
        if hint == NO_HINT {
            return None;
        }
        let (number, offset) = split(SlotId::new(hint));
        let cluster = Locked { number, state: self.clusters[number as usize].0.lock() };
        if cluster.state.count != 0 && cluster.state.order != order {
            return None; // it was emptied and serves another order now
        }
        self.alloc_in(cluster, order, offset, current)
    }

    /// Searches up to `tries` clusters of `list`.
    fn alloc_from(
        &self,
        list: List,
        order: Order,
        current: &AtomicU32,
        tries: usize,
    ) -> Option<SlotId> {
        for _ in 0..tries {
            let cluster = self.isolate(list)?;
            if let Some(slot) = self.alloc_in(cluster, order, 0, current) {
                return Some(slot);
            }
        }
        None
    }

    /// A single page in a cluster that serves larger folios: first where large folios were
    /// searched for in vain.
    fn steal(&self, current: &AtomicU32) -> Option<SlotId> {
        let orders = || (1..ORDERS as u8).filter_map(Order::new);
        orders()
            .map(List::Frag)
            .chain(orders().map(List::Nonfull))
            .find_map(|list| self.alloc_from(list, Order::PAGE, current, 1))
    }

    /// Takes the first free cluster of `list` that nobody holds off the list, and its lock.
    fn isolate(&self, list: List) -> Option<Locked<'_>> {
        if self.occupied.load(Ordering::Relaxed) & list.bit() == 0 {
            return None;
        }
        let mut device = self.lock_device();
        let (number, mut state) = device
            .iter(list)
            .find_map(|n| self.clusters[n as usize].0.try_lock().map(|state| (n, state)))?;
        debug_assert_eq!(state.list, Some(list));
        device.unlink(list, number);
        self.occupied.store(device.occupied(), Ordering::Relaxed);
        state.list = None;
        Some(Locked { number, state })
    }

    /// Takes a run at or after `from` in a cluster, notes where to go on, and puts the cluster on
    /// the list it belongs to now.
    fn alloc_in(
        &self,
        mut cluster: Locked<'_>,
        order: Order,
        from: usize,
        current: &AtomicU32,
    ) -> Option<SlotId> {
        let state = &mut *cluster.state;
        let found = state.taken.free_run(order, from);
        let mut hint = NO_HINT;
        if let Some(first) = found {
            if state.count == 0 {
                state.order = order;
            }
            state.taken.set(first, order.pages());
            state.count += order.pages() as u16;
            let next = first + order.pages();
            if next < CLUSTER_SLOTS && usize::from(state.count) < CLUSTER_SLOTS {
                hint = join(cluster.number, next).get();
            }
        }
        let list = state.list_after_search();
        self.move_to(&mut cluster, list);
        drop(cluster.state);
        current.store(hint, Ordering::Relaxed);
        found.map(|first| join(cluster.number, first))
    }

    /// Gives back `pages` slots from `first` on: a folio or a part of one.
    ///
    /// # Errors
    /// [`FreeError`] when any of them is not taken or does not exist, or when they lie in several
    /// clusters. Then nothing was freed.
    pub fn free(&self, first: SlotId, pages: usize) -> Result<(), FreeError> {
        if pages > self.capacity() || first.index() > self.capacity() - pages {
            return Err(FreeError::PastTheEnd { first, pages, capacity: self.capacity() });
        }
        if pages == 0 {
            return Ok(());
        }
        let (number, offset) = split(first);
        if offset + pages > CLUSTER_SLOTS {
            return Err(FreeError::SpansClusters { first, pages });
        }
        let mut cluster = Locked { number, state: self.clusters[number as usize].0.lock() };
        cluster.free(offset, pages)?;
        self.settle_after_free(cluster);
        Ok(())
    }

    /// Gives back many slots. Neighbours in the list that lie in one cluster share one lock.
    ///
    /// # Errors
    /// [`FreeError`] for the first slot that was not taken or does not exist. All others in the
    /// list are freed all the same; a slot named twice is freed once.
    pub fn free_many(&self, slots: &[SlotId]) -> Result<(), FreeError> {
        let mut first_error = Ok(());
        for group in slots.chunk_by(|a, b| split(*a).0 == split(*b).0) {
            let result = self.free_group(group);
            first_error = first_error.and(result);
        }
        first_error
    }

    /// [`Self::free_many`] for slots of one cluster.
    fn free_group(&self, group: &[SlotId]) -> Result<(), FreeError> {
        let number = split(group[0]).0;
        let Some(cluster) = self.clusters.get(number as usize) else {
            let capacity = self.capacity();
            return Err(FreeError::PastTheEnd { first: group[0], pages: 1, capacity });
        };
        let mut cluster = Locked { number, state: cluster.0.lock() };
        let before = cluster.state.count;
        let mut first_error = Ok(());
        for slot in group {
            let result = cluster.free(split(*slot).1, 1);
            first_error = first_error.and(result);
        }
        if cluster.state.count != before {
            self.settle_after_free(cluster);
        }
        first_error
    }

    /// Puts a cluster in which something was freed on the list it belongs to now.
    fn settle_after_free(&self, mut cluster: Locked<'_>) {
        let list = match cluster.state.count {
            0 => List::Free,
            _ => List::Nonfull(cluster.state.order),
        };
        self.move_to(&mut cluster, list);
    }

    /// Moves a cluster from the list it is on, if any, to `list`, under the device lock; does
    /// nothing when it is there.
    fn move_to(&self, cluster: &mut Locked<'_>, list: List) {
        let Locked { number, state } = cluster;
        let from = state.list;
        if from == Some(list) {
            return;
        }
        let mut device = self.lock_device();
        if let Some(from) = from {
            device.unlink(from, *number);
        }
        match list {
            List::Free => device.push_free(*number),
            _ => device.push(list, *number),
        }
        self.occupied.store(device.occupied(), Ordering::Relaxed);
        state.list = Some(list);
    }

    fn lock_device(&self) -> MutexGuard<'_, Lists> {
        let mut device = self.device.lock();
        device.counts.acquisitions += 1;
        device
    }

    /// Compares every table with every other and panics with the first difference. For tests and
    /// checks: it holds all locks.
    ///
    /// # Panics
    /// When an invariant of this module does not hold.
    pub fn check(&self) {
        let states: alloc::vec::Vec<_> = self.clusters.iter().map(|c| c.0.lock()).collect();
        let device = self.device.lock();
        let mut listed = 0;
        for list in Lists::all() {
            assert!(device.is_sound(list), "the links of {list:?} are damaged");
            for number in device.iter(list) {
                let named = states[number as usize].list;
                assert_eq!(named, Some(list), "cluster {number} is on another list than it says");
                listed += 1;
            }
        }
        assert_eq!(listed, states.len(), "a cluster is on no list");
        for (number, state) in states.iter().enumerate() {
            let count = usize::from(state.count);
            assert_eq!(state.taken.count(), count, "cluster {number} miscounts");
            let list = state.list.expect("on the list it was found on");
            match list {
                List::Free => assert_eq!(count, 0, "cluster {number} is not free"),
                List::Full => assert_eq!(count, CLUSTER_SLOTS, "cluster {number} is not full"),
                List::Nonfull(order) | List::Frag(order) => {
                    assert!(count != 0 && count != CLUSTER_SLOTS, "cluster {number}: {list:?}");
                    assert_eq!(order, state.order, "cluster {number} is on the list of an order");
                }
            }
        }
        let occupied = self.occupied.load(Ordering::Relaxed);
        assert_eq!(occupied, device.occupied(), "a list was filled or emptied unseen");
    }
}

impl State {
    fn new() -> Self {
        Self { taken: Bitmap::EMPTY, count: 0, order: Order::PAGE, list: Some(List::Free) }
    }

    /// Where a cluster belongs after a search in it, whether or not a run was found.
    fn list_after_search(&self) -> List {
        match usize::from(self.count) {
            0 => List::Free,
            CLUSTER_SLOTS => List::Full,
            _ => List::Frag(self.order),
        }
    }
}

impl Locked<'_> {
    /// Clears the bits of a range inside the cluster, or none of them.
    fn free(&mut self, offset: usize, pages: usize) -> Result<(), FreeError> {
        if let Some(free) = self.state.taken.first_free(offset, pages) {
            return Err(FreeError::NotTaken { slot: join(self.number, free) });
        }
        self.state.taken.clear(offset, pages);
        self.state.count -= pages as u16;
        Ok(())
    }
}

/// The cluster of a slot and its place in it.
fn split(slot: SlotId) -> (u32, usize) {
    (slot.get() / CLUSTER_SLOTS as u32, slot.index() % CLUSTER_SLOTS)
}

/// The slot at this place of this cluster.
fn join(cluster: u32, offset: usize) -> SlotId {
    SlotId::new(cluster * CLUSTER_SLOTS as u32 + offset as u32)
}

#[cfg(test)]
#[cfg(loom)]
mod models;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
