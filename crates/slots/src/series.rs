//! The allocator of the kernel series "mm, swap: rework of swap allocator locks": the twin that
//! [`crate::Slots`] is measured against.
//!
//! Clusters wait on lists:
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
//! in which something was freed since, so they are searched first. An allocation tries, in this
//! order: the CPU's current cluster; `nonfull` of its order; `free`; one of `frag` of its order; and,
//! for a single page, what is left in clusters of other orders.
//!
//! Each cluster has a lock over its bits, its order and the name of its list. One *device lock* lies
//! over the links of the lists. **Cluster lock first, then device lock**, and the device lock only
//! to move a cluster from one list to another. Who looks for a cluster on a list holds the device
//! lock and therefore only tries cluster locks and skips those that are held.
//!
//! Where the device is to be told of emptied clusters, these wait on the list `discard` for
//! [`Series::discard`] instead of on `free`, or until an allocation finds `free` empty. A rotating disk is one
//! CPU to this allocator, and several devices are [`crate::devices`]. On a device that is full,
//! [`Series::reclaim`] frees what only copies lie in. Other than there, free clusters are taken last
//! freed first, and what calls for a discard or a reclaim is not the allocation itself.

use crate::bitmap::{Bitmap, CLUSTER_SLOTS};
use crate::devices::Device;
use crate::lists::{List, Lists};
use crate::sync::{Mutex, MutexGuard, Waits};
use crate::twins::{Allocator, SharedWork};
use crate::{
    Config, ConfigError, FreeError, ORDERS, Run, free_by_cluster, join, next_taken, split,
};
use alloc::boxed::Box;
use octavo_page::sync::atomic::{AtomicU32, Ordering};
use octavo_page::{Order, SlotId};

/// No current cluster.
const NO_HINT: u32 = u32::MAX;

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

/// Clusters on lists, and their locks.
pub struct Series {
    clusters: Box<[Cluster]>,
    /// The device lock.
    device: Mutex<Lists>,
    /// A bit for each list that has a cluster. Written under the device lock, read without, so
    /// that nobody takes the lock to find a list empty, and "full" is said without any lock.
    occupied: AtomicU32,
    current: Box<[Current]>,
    discards: bool,
    waits: Waits,
}

/// A cluster whose lock is held.
struct Locked<'a> {
    number: u32,
    state: MutexGuard<'a, State>,
}

impl Series {
    /// The current cluster, from where the last allocation stopped.
    fn alloc_in_current(&self, order: Order, current: &AtomicU32) -> Option<SlotId> {
        let hint = current.load(Ordering::Relaxed);
        if hint == NO_HINT {
            return None;
        }
        let (number, offset) = split(SlotId::new(hint));
        let cluster = self.lock_cluster(number);
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

    /// Puts a cluster in which something was freed on the list it belongs to now.
    fn settle_after_free(&self, mut cluster: Locked<'_>) {
        let list = match cluster.state.count {
            0 if self.discards => List::Discard,
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

    /// See [`crate::Slots::discard`].
    ///
    /// # Errors
    /// See there.
    pub fn discard<D: Device>(&self, device: &D, budget: usize) -> Result<usize, D::Error> {
        for done in 0..budget {
            let Some(mut cluster) = self.isolate(List::Discard) else { return Ok(done) };
            let told = device.discard(join(cluster.number, 0), CLUSTER_SLOTS);
            let list = if told.is_ok() { List::Free } else { List::Discard };
            self.move_to(&mut cluster, list);
            told?;
        }
        Ok(budget)
    }

    /// Frees, in the full cluster that has waited longest, the slots of pages of which there is
    /// another copy, as `is_copy` says. How many.
    pub fn reclaim(&self, is_copy: impl Fn(SlotId) -> bool) -> usize {
        let Some(mut cluster) = self.isolate(List::Full) else { return 0 };
        let number = cluster.number;
        for offset in (0..CLUSTER_SLOTS).filter(|offset| is_copy(join(number, *offset))) {
            let cleared = cluster.state.taken.clear(offset, 1);
            debug_assert_eq!(cleared, Ok(()), "the cluster was full");
            cluster.state.count -= 1;
        }
        let freed = CLUSTER_SLOTS - usize::from(cluster.state.count);
        match freed {
            0 => self.move_to(&mut cluster, List::Full),
            _ => self.settle_after_free(cluster),
        }
        freed
    }

    fn lock_cluster(&self, number: u32) -> Locked<'_> {
        Locked { number, state: self.waits.lock(&self.clusters[number as usize].0) }
    }

    fn lock_device(&self) -> MutexGuard<'_, Lists> {
        let mut device = self.waits.lock(&self.device);
        device.work.acquisitions += 1;
        device
    }
}

impl Allocator for Series {
    const NAME: &'static str = "series";

    fn new(config: Config) -> Result<Self, ConfigError> {
        let clusters = config.clusters()?;
        Ok(Self {
            clusters: (0..clusters).map(|_| Cluster(Mutex::new(State::new()))).collect(),
            device: Mutex::new(Lists::new(clusters)),
            occupied: AtomicU32::new(List::Free.bit()),
            current: (0..config.cpus)
                .map(|_| Current(core::array::from_fn(|_| AtomicU32::new(NO_HINT))))
                .collect(),
            discards: config.discards,
            waits: Waits::new(config.clock),
        })
    }

    fn capacity(&self) -> usize {
        self.clusters.len() * CLUSTER_SLOTS
    }

    fn taken(&self) -> usize {
        self.clusters.iter().map(|c| usize::from(c.0.lock().count)).sum()
    }

    fn shared_work(&self) -> SharedWork {
        let (waits, waited_ns) = self.waits.so_far();
        SharedWork { waits, waited_ns, ..self.device.lock().work }
    }

    #[inline]
    fn alloc(&self, order: Order, cpu: usize) -> Option<SlotId> {
        let current = &self.current[cpu % self.current.len()].0[usize::from(order.get())];
        if let Some(slot) = self.alloc_in_current(order, current) {
            return Some(slot);
        }
        // A nonfull cluster in which no run is found moves to frag, so the search ends by itself;
        // the bound is for other threads that free as fast as this one searches.
        self.alloc_from(List::Nonfull(order), order, current, self.clusters.len())
            .or_else(|| self.alloc_from(List::Free, order, current, 1))
            .or_else(|| self.alloc_from(List::Discard, order, current, 1))
            .or_else(|| self.alloc_from(List::Frag(order), order, current, 1))
            .or_else(|| if order == Order::PAGE { self.steal(current) } else { None })
    }

    #[inline]
    fn free(&self, first: SlotId, pages: usize) -> Result<(), FreeError> {
        let run = Run::new(first, pages, self.capacity())?;
        if pages == 0 {
            return Ok(());
        }
        let mut cluster = self.lock_cluster(run.cluster);
        run.free_in(&cluster.state.taken)?;
        cluster.state.count -= pages as u16;
        self.settle_after_free(cluster);
        Ok(())
    }

    fn free_many(&self, slots: &[SlotId]) -> Result<(), FreeError> {
        free_by_cluster(slots, |group| {
            let mut cluster = self.lock_cluster(Run::new(group[0], 1, self.capacity())?.cluster);
            let before = cluster.state.count;
            let mut first_error = Ok(());
            for slot in group {
                let run = Run { cluster: cluster.number, offset: split(*slot).1, pages: 1 };
                let result = run.free_in(&cluster.state.taken);
                cluster.state.count -= u16::from(result.is_ok());
                first_error = first_error.and(result);
            }
            if cluster.state.count != before {
                self.settle_after_free(cluster);
            }
            first_error
        })
    }

    fn next_taken(&self, from: SlotId) -> Option<SlotId> {
        next_taken(from, self.clusters.len() as u32, |number, offset| {
            self.lock_cluster(number).state.taken.first_taken(offset)
        })
    }

    fn check(&self) {
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
                List::Free | List::Discard => assert_eq!(count, 0, "cluster {number} is not free"),
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
        Self { taken: Bitmap::empty(), count: 0, order: Order::PAGE, list: Some(List::Free) }
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
