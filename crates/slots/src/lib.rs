//! The slot allocator: gives out numbers for the places of pages, without a lock that all share.
//!
//! The device is cut into *clusters* of 512 slots. A cluster serves folios of one order, that of
//! its first allocation, so that large folios keep finding aligned room. Each CPU keeps, for each
//! order, a *current* cluster from which it takes run after run.
//!
//! ```text
//!                a CPU makes it        it is left, full
//!                  its current             or searched
//!      ┌──────┐   ┌─────────┐           ┌────────┐  enough is freed  ┌───────┐
//!      │ free │──►│ current │──────────►│ partly │──────────────────►│ roomy │
//!      └──────┘   └─────────┘           │ or full│                   └───────┘
//!         ▲            ▲                └────────┘                    │     │
//!         │            └──────────────────────────────────────────────┘     │
//!         └─────────────────────────────────────────────────────────────────┘
//!                      everything is freed (from partly, too)
//! ```
//!
//! An allocation tries, in this order: the CPU's current cluster; a *roomy* one of its order; while
//! free clusters are scarce, one of its order with any room, so that the free ones are left to other
//! orders; a *free* one; and when there is none of these, whatever clusters have a hole that is
//! large enough, other CPUs' current ones too. In each set it looks first among the clusters that are
//! its CPU's by their number, its *lane*, and while free ones are not scarce it leaves a few roomy ones
//! to each other lane: so CPUs keep apart, and what one frees is what it takes again.
//!
//! The states and the order of attempts are those of the kernel series "mm, swap: rework of swap
//! allocator locks" ([`twins::Series`]), with two changes. A cluster does not become roomy with the
//! first slot that is freed in it but when the search is worth it: otherwise it wanders between two
//! lists with every slot that is freed and taken again. And the lists with their device lock are
//! gone: a state is one bit a cluster in a set (`marks.rs`), changed under the cluster's own lock,
//! and searched without any. `docs/slots.md` has both measured.
//!
//! # Discard
//!
//! A device may be told that what it holds is no longer wanted: a hole in a file gives its blocks
//! back. That takes a system call, so a cluster whose last slot is freed only becomes *emptied*, and
//! [`Slots::discard`], called off the hot path, tells the device of many and makes them free. An
//! allocation that takes an emptied cluster first spares the device both.
//!
//! # Locks
//!
//! Each cluster has a lock over its slots and its marks (`cluster.rs`). A thread holds at most one. Who
//! searches only tries locks and skips clusters whose lock is held.
//!
//! # Invariants
//!
//! Whenever no cluster lock is held:
//! - the slots given out and not freed are exactly the bits that are set;
//! - the place of a cluster is what `State::due` makes of its state, and its marks are those of its place;
//! - a cluster with a free slot is marked free or partly taken: nothing is lost to the search.
//!
//! Nothing here allocates after construction, waits, or calls the operating system except to wait
//! for a cluster's lock.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bitmap;
mod cluster;
pub mod devices;
mod lists;
mod lock_word;
mod marks;
#[cfg(test)]
#[cfg(loom)]
mod models;
mod one_lock;
mod series;
mod sync;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
pub mod twins;

use alloc::boxed::Box;
use bitmap::{Bitmap, CLUSTER_SLOTS};
use cluster::{Cluster, Locked, Place, State};
use core::fmt;
use devices::Device;
use marks::{Marks, Set};
use octavo_page::sync::atomic::{AtomicU32, Ordering};
use octavo_page::{Order, SlotId};
use sync::Waits;

const ORDERS: usize = Order::MAX.get() as usize + 1;

/// Free clusters are scarce when they are not one in this many.
const SCARCE: usize = 16;

/// A lane keeps one in this many of its clusters from other CPUs, when these are roomy and free clusters are
/// not scarce. Who takes from another's lane mixes what the two hold, and then both write to the same cache
/// lines for as long as that lives; so a few clusters more are in use instead.
const KEPT: usize = 32;

/// Clusters that an allocation of more than one page searches in its last resort, in each set.
const TRIES: usize = 64;

/// The most slots an allocator can have: every number and every end of a range fits 32 bits.
pub const MAX_SLOTS: usize = (u32::MAX as usize / CLUSTER_SLOTS) * CLUSTER_SLOTS;

/// How large an allocator is to be.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Slots, rounded up to whole clusters of 512.
    pub capacity: usize,
    /// CPUs that allocate at once; `cpu` in [`Slots::alloc`] counts below this. 1 for a rotating
    /// disk: what all CPUs store one after another then lies one behind the other.
    pub cpus: usize,
    /// Whether the device under the slots is told of clusters that were emptied, by
    /// [`Slots::discard`].
    pub discards: bool,
    /// Nanoseconds since any moment: times what is waited for locks. [`no_clock`] where nobody asks.
    pub clock: fn() -> u64,
}

/// The clock of an allocator whose waits are counted and not timed.
#[must_use]
pub fn no_clock() -> u64 {
    0
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

impl Config {
    /// The number of clusters, when there can be such an allocator.
    fn clusters(self) -> Result<u32, ConfigError> {
        match self {
            Self { capacity: 0, .. } => Err(ConfigError::NoSlots),
            Self { capacity, .. } if capacity > MAX_SLOTS => {
                Err(ConfigError::TooManySlots { capacity })
            }
            Self { cpus: 0, .. } => Err(ConfigError::NoCpus),
            Self { capacity, .. } => Ok(capacity.div_ceil(CLUSTER_SLOTS) as u32),
        }
    }
}

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

/// A run of slots inside one cluster.
#[derive(Clone, Copy)]
struct Run {
    cluster: u32,
    offset: usize,
    pages: usize,
}

impl Run {
    /// The run that `first` and `pages` name, when all of it exists in one cluster.
    #[inline]
    fn new(first: SlotId, pages: usize, capacity: usize) -> Result<Self, FreeError> {
        if pages > capacity || first.index() > capacity - pages {
            return Err(FreeError::PastTheEnd { first, pages, capacity });
        }
        let (cluster, offset) = split(first);
        if offset + pages > CLUSTER_SLOTS {
            return Err(FreeError::SpansClusters { first, pages });
        }
        Ok(Self { cluster, offset, pages })
    }

    /// Clears the bits of this run in its cluster's bitmap, or none of them.
    #[inline]
    fn free_in(self, taken: &Bitmap) -> Result<(), FreeError> {
        self.freed(taken.clear(self.offset, self.pages))
    }

    /// What came of it, where a slot of the cluster that was not taken stood in the way.
    #[inline]
    fn freed(self, cleared: Result<(), usize>) -> Result<(), FreeError> {
        cleared.map_err(|free| FreeError::NotTaken { slot: join(self.cluster, free) })
    }
}

/// Calls `free` for each group of neighbours in the list that lie in one cluster, and returns the
/// first error.
fn free_by_cluster(
    slots: &[SlotId],
    mut free: impl FnMut(&[SlotId]) -> Result<(), FreeError>,
) -> Result<(), FreeError> {
    let mut first_error = Ok(());
    for group in slots.chunk_by(|a, b| split(*a).0 == split(*b).0) {
        let result = free(group);
        first_error = first_error.and(result);
    }
    first_error
}

/// The first taken slot from `from` on, in a cluster's bitmap by `first_taken(cluster, offset)`.
fn next_taken(
    from: SlotId,
    clusters: u32,
    first_taken: impl Fn(u32, usize) -> Option<usize>,
) -> Option<SlotId> {
    let (first, offset) = split(from);
    (first..clusters).find_map(|number| {
        let from = if number == first { offset } else { 0 };
        first_taken(number, from).map(|offset| join(number, offset))
    })
}

/// The cluster of a slot and its place in it.
#[inline]
fn split(slot: SlotId) -> (u32, usize) {
    (slot.get() / CLUSTER_SLOTS as u32, slot.index() % CLUSTER_SLOTS)
}

/// The slot at this place of this cluster.
#[inline]
fn join(cluster: u32, offset: usize) -> SlotId {
    SlotId::new(cluster * CLUSTER_SLOTS as u32 + offset as u32)
}

/// The slot at which a search goes on that came to this place of a cluster: at its end, its beginning.
#[inline]
fn next_in(cluster: u32, end: usize) -> SlotId {
    join(cluster, end % CLUSTER_SLOTS)
}

/// What a CPU remembers. Only notes: whoever follows one takes the cluster lock and looks.
#[repr(align(128))]
struct Cpu {
    /// For each order the slot at which to go on in the current cluster, or [`NO_CURRENT`].
    current: [AtomicU32; ORDERS],
    /// The cluster that was found last: the next search starts there, so that the clusters behind
    /// gather freed slots meanwhile.
    cursor: AtomicU32,
    /// The lane of clusters that this CPU searches first: so what it freed is what it takes again, and
    /// CPUs write to different clusters.
    lane: usize,
}

/// A slot that does not exist: there is no current cluster.
const NO_CURRENT: u32 = u32::MAX;

/// Numbers for the places of pages.
pub struct Slots {
    clusters: Box<[Cluster]>,
    cpus: Box<[Cpu]>,
    discards: bool,
    marks: Marks,
    /// Clusters below this number were in use at some time.
    touched: AtomicU32,
    waits: Waits,
}

impl Slots {
    /// An allocator with every slot free.
    ///
    /// # Errors
    /// [`ConfigError`] when there would be no slots, no CPUs, or more slots than have numbers.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let clusters = config.clusters()?;
        let marks = Marks::none(clusters as usize, config.cpus);
        (0..clusters).for_each(|cluster| marks.insert(Set::Free, cluster));
        Ok(Self {
            clusters: (0..clusters).map(|_| Cluster::free()).collect(),
            cpus: (0..config.cpus).map(|cpu| Cpu::new(cpu % marks.lanes())).collect(),
            discards: config.discards,
            marks,
            touched: AtomicU32::new(0),
            waits: Waits::new(config.clock),
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
        (0..self.clusters.len() as u32).map(|n| self.lock(n).state.count()).sum()
    }

    /// Slots below this number may have been given out; from it on none ever was.
    #[must_use]
    pub fn touched(&self) -> usize {
        self.touched.load(Ordering::Relaxed) as usize * CLUSTER_SLOTS
    }

    /// Bytes of the allocator's own tables. They were all written when it was made.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        size_of_val(&*self.clusters) + size_of_val(&*self.cpus) + self.marks.bytes()
    }

    /// Takes an aligned run of slots for a folio of `order` and returns its first.
    ///
    /// `cpu` is where the caller runs, or about: callers with different numbers stay out of each
    /// other's way, a stale number costs time only.
    ///
    /// `None` when no aligned run was found. A single page finds the last free slot there is,
    /// unless another thread holds the lock of its cluster at that moment; a larger folio may be
    /// refused earlier and can be stored in smaller parts.
    #[must_use]
    #[inline]
    pub fn alloc(&self, order: Order, cpu: usize) -> Option<SlotId> {
        let cpu = &self.cpus[if cpu < self.cpus.len() { cpu } else { cpu % self.cpus.len() }];
        self.alloc_next(order, cpu).or_else(|| self.alloc_not_next(order, cpu))
    }

    /// The next run in the current cluster, where nothing else has to be done for it.
    #[inline]
    fn alloc_next(&self, order: Order, cpu: &Cpu) -> Option<SlotId> {
        let current = &cpu.current[usize::from(order.get())];
        let (number, offset) = split(SlotId::new(current.load(Ordering::Relaxed)));
        let mut locked = self.clusters.get(number as usize)?.lock(number, &self.waits);
        if !locked.state.has_next(order) {
            return None;
        }
        let first = locked.take_run(order, offset)?;
        current.store(next_in(number, first + order.pages()).get(), Ordering::Relaxed);
        Some(join(number, first))
    }

    /// A run in the current cluster if there is any, or else in another.
    #[cold]
    fn alloc_not_next(&self, order: Order, cpu: &Cpu) -> Option<SlotId> {
        self.alloc_in_current(order, cpu).or_else(|| self.alloc_elsewhere(order, cpu))
    }

    /// A run in another cluster than the current, which it makes the current one.
    fn alloc_elsewhere(&self, order: Order, cpu: &Cpu) -> Option<SlotId> {
        let enough = self.clusters.len().div_ceil(SCARCE);
        let scarce = !self.marks.have([Set::Free, Set::Emptied], enough, cpu.lane);
        let kept = if scarce { 0 } else { self.clusters.len() / self.marks.lanes() / KEPT };
        // While free clusters are scarce, a cluster that has only few runs goes before those: so that they
        // are left to other orders.
        let spare =
            || scarce.then(|| self.search(Set::Spare(order), order, cpu, TRIES, 0)).flatten();
        self.search(Set::Roomy(order), order, cpu, TRIES, kept)
            .or_else(spare)
            .or_else(|| self.alloc_in_free(order, cpu))
            .or_else(|| self.last_resort(order, cpu))
    }

    /// Takes an aligned run for each of many folios of `order`, as [`Slots::alloc`] would one after the
    /// other, and puts their first slots into `out`; how many there were. Runs of one cluster are taken
    /// under one hold of its lock.
    pub fn alloc_many(&self, order: Order, cpu: usize, out: &mut [SlotId]) -> usize {
        let own = &self.cpus[cpu % self.cpus.len()];
        let mut done = 0;
        while done < out.len() {
            done += self.alloc_many_in_current(order, own, &mut out[done..]);
            let Some(left) = out.get_mut(done) else { break };
            // The current cluster has no more: this finds another, and makes that current.
            let Some(first) = self.alloc(order, cpu) else { break };
            *left = first;
            done += 1;
        }
        done
    }

    /// Runs in the current cluster, from where the last allocation stopped, while that serves `order`
    /// and has some; how many.
    fn alloc_many_in_current(&self, order: Order, cpu: &Cpu, out: &mut [SlotId]) -> usize {
        let current = &cpu.current[usize::from(order.get())];
        let (number, mut offset) = split(SlotId::new(current.load(Ordering::Relaxed)));
        if number as usize >= self.clusters.len() {
            return 0;
        }
        let mut locked = self.lock(number);
        if locked.state.is_nobodys() || !locked.state.serves(order) {
            return 0;
        }
        let mut taken = 0;
        while taken < out.len() {
            let most = out.len() - taken;
            let Some((first, runs)) = locked.take_row(order, offset, most) else { break };
            for (n, slot) in out[taken..taken + runs].iter_mut().enumerate() {
                *slot = join(number, first + n * order.pages());
            }
            offset = (first + runs * order.pages()) % CLUSTER_SLOTS;
            taken += runs;
        }
        if taken > 0 {
            let full = locked.state.is_full();
            locked.state.set_owned(!full);
            self.settle(&mut locked);
            let next = if full { NO_CURRENT } else { join(number, offset).get() };
            current.store(next, Ordering::Relaxed);
        }
        taken
    }

    /// A run in the current cluster, from where the last allocation stopped.
    fn alloc_in_current(&self, order: Order, cpu: &Cpu) -> Option<SlotId> {
        let current = &cpu.current[usize::from(order.get())];
        let (number, offset) = split(SlotId::new(current.load(Ordering::Relaxed)));
        if number as usize >= self.clusters.len() {
            return None;
        }
        let mut locked = self.lock(number);
        let state = locked.state;
        let lent = || state.is_lent() && order == Order::PAGE && state.runs() == 0;
        if state.is_nobodys() || !state.serves(order) && !lent() {
            return None; // it was emptied, and is nobody's or serves another order now
        }
        if let Some(first) = locked.find(order, offset) {
            return Some(self.take(&mut locked, order, first, cpu));
        }
        current.store(NO_CURRENT, Ordering::Relaxed);
        if state.serves(order) {
            locked.state.set_owned(false);
            self.settle(&mut locked);
        }
        None
    }

    /// A run in an emptied cluster, which then need not be discarded, or in the free one with the
    /// lowest number: the tables that describe the slots of low clusters were written before, those
    /// of a cluster never used were not and cost no memory yet.
    fn alloc_in_free(&self, order: Order, cpu: &Cpu) -> Option<SlotId> {
        let emptied = self.discards.then_some(Set::Emptied);
        emptied.into_iter().chain([Set::Free]).find_map(|set| {
            self.lanes_from(cpu)
                .find_map(|lane| self.search_in(self.marks.of_lane(set, lane, 0), set, order, cpu))
        })
    }

    /// A run wherever there is one, as far as the search goes: a single page wherever a slot is
    /// free; a larger folio in clusters of its own or a larger order that have room, those of other
    /// CPUs too, then in some clusters of any order, whose holes may have grown together.
    fn last_resort(&self, order: Order, cpu: &Cpu) -> Option<SlotId> {
        let tries = if order == Order::PAGE { usize::MAX } else { TRIES };
        let from = |first: u8| (first..=Order::MAX.get()).filter_map(Order::new);
        let room = from(order.get()).map(Set::Spare).chain(from(order.get()).map(Set::Roomy));
        let mut sets = room.chain(from(0).map(Set::Partly));
        sets.find_map(|set| self.search(set, order, cpu, tries, 0))
    }

    /// Searches up to `tries` clusters of a set, from where this CPU found one last, in its own lane
    /// first and then as many in those of others that have more than they keep.
    fn search(
        &self,
        set: Set,
        order: Order,
        cpu: &Cpu,
        tries: usize,
        kept: usize,
    ) -> Option<SlotId> {
        let start = cpu.cursor.load(Ordering::Relaxed);
        let own = self.marks.of_lane(set, cpu.lane, start).take(tries);
        self.search_in(own, set, order, cpu).or_else(|| {
            let lanes = self.lanes_from(cpu).skip(1);
            let lanes = lanes.filter(|lane| self.marks.len_of_lane(set, *lane) > kept);
            let others = lanes.flat_map(|lane| self.marks.of_lane(set, lane, start));
            self.search_in(others.take(tries), set, order, cpu)
        })
    }

    /// All lanes, a CPU's own first.
    fn lanes_from(&self, cpu: &Cpu) -> impl Iterator<Item = usize> {
        let (own, lanes) = (cpu.lane, self.marks.lanes());
        (own..own + lanes).map(move |lane| lane % lanes)
    }

    /// Searches these clusters of a set.
    fn search_in(
        &self,
        mut clusters: impl Iterator<Item = u32>,
        set: Set,
        order: Order,
        cpu: &Cpu,
    ) -> Option<SlotId> {
        clusters.find_map(|number| {
            let mut locked = self.clusters[number as usize].try_lock(number)?;
            if !self.marks.has(set, number) {
                return None; // another thread was here first
            }
            let first = locked.find(order, 0)?;
            cpu.cursor.store(number, Ordering::Relaxed);
            Some(self.take(&mut locked, order, first, cpu))
        })
    }

    /// Takes the run at `first` of a cluster, which is free, and goes on behind it next time.
    // By reference: a guard that is moved is written to the stack in pieces and read back whole, and that
    // costs as much as its lock.
    fn take(&self, locked: &mut Locked<'_>, order: Order, first: usize, cpu: &Cpu) -> SlotId {
        let number = locked.number;
        if locked.state.count() == 0 {
            locked.state.begin(order, self.discards);
        }
        locked.take(first, order.pages());
        let full = locked.state.is_full();
        if locked.state.serves(order) {
            locked.state.set_owned(!full);
        } else {
            locked.state.set_lent();
        }
        self.settle(locked);
        let next = next_in(number, first + order.pages()).get();
        let next = if full { NO_CURRENT } else { next };
        cpu.current[usize::from(order.get())].store(next, Ordering::Relaxed);
        join(number, first)
    }

    /// Gives back `pages` slots from `first` on: a folio or a part of one.
    ///
    /// # Errors
    /// [`FreeError`] when any of them is not taken or does not exist, or when they lie in several
    /// clusters. Then nothing was freed.
    #[inline]
    pub fn free(&self, first: SlotId, pages: usize) -> Result<(), FreeError> {
        let run = Run::new(first, pages, self.capacity())?;
        if pages == 0 {
            return Ok(());
        }
        let mut locked = self.lock(run.cluster);
        run.freed(locked.free(run.offset, pages))?;
        if locked.state.may_move() {
            self.settle(&mut locked);
        }
        Ok(())
    }

    /// Gives back many slots. Neighbours in the list that lie in one cluster share one lock.
    ///
    /// # Errors
    /// [`FreeError`] for the first slot that was not taken or does not exist. All others in the
    /// list are freed all the same; a slot named twice is freed once.
    pub fn free_many(&self, slots: &[SlotId]) -> Result<(), FreeError> {
        free_by_cluster(slots, |group| {
            let mut locked = self.lock(Run::new(group[0], 1, self.capacity())?.cluster);
            let mut first_error = Ok(());
            for slot in group {
                let run = Run { cluster: locked.number, offset: split(*slot).1, pages: 1 };
                let result = run.freed(locked.free(run.offset, 1));
                first_error = first_error.and(result);
            }
            if locked.state.may_move() {
                self.settle(&mut locked);
            }
            first_error
        })
    }

    /// Tells the device of up to `budget` clusters that were emptied, and makes them free. How many
    /// it was told of.
    ///
    /// # Errors
    /// The device's own. The cluster that it was told of stays emptied.
    pub fn discard<D: Device>(&self, device: &D, budget: usize) -> Result<usize, D::Error> {
        let mut done = 0;
        let lanes = 0..self.marks.lanes();
        let emptied = lanes.flat_map(|lane| self.marks.of_lane(Set::Emptied, lane, 0));
        for number in emptied.take(budget) {
            // Nothing of it is taken, so nobody frees; and who looks for room skips what is locked.
            let Some(mut locked) = self.clusters[number as usize].try_lock(number) else {
                continue;
            };
            if self.marks.has(Set::Emptied, number) {
                device.discard(join(number, 0), CLUSTER_SLOTS)?;
                locked.state.set_told();
                self.settle(&mut locked);
                done += 1;
            }
        }
        Ok(done)
    }

    /// The first slot from `from` on that is taken.
    #[must_use]
    pub fn next_taken(&self, from: SlotId) -> Option<SlotId> {
        next_taken(from, self.clusters.len() as u32, |number, offset| {
            self.lock(number).taken().first_taken(offset)
        })
    }

    #[inline]
    fn lock(&self, number: u32) -> Locked<'_> {
        self.clusters[number as usize].lock(number, &self.waits)
    }

    /// Puts a cluster into the sets where it belongs now.
    #[inline]
    fn settle(&self, locked: &mut Locked<'_>) {
        locked.state = self.settled(locked.number, locked.state);
    }

    /// Puts a cluster, whose lock is held, into the sets where it belongs now, and out of those where it
    /// was. The state that says so.
    // By value, so that a guard stays in registers.
    #[inline(never)]
    fn settled(&self, number: u32, mut state: State) -> State {
        let was = state.place();
        let is = state.settle();
        if was == is {
            return state;
        }
        self.marks.change(number, was.sets(), is.sets());
        if was == Place::Free && self.touched.load(Ordering::Relaxed) <= number {
            self.touched.fetch_max(number + 1, Ordering::Relaxed);
        }
        self.clusters[number as usize].count_move();
        state
    }

    /// Compares every table with every other and panics at the first difference. For tests and
    /// checks: it holds all locks.
    ///
    /// # Panics
    /// When an invariant of this module does not hold.
    pub fn check(&self) {
        let locked: alloc::vec::Vec<_> =
            (0..self.clusters.len() as u32).map(|number| self.lock(number)).collect();
        for locked in &locked {
            let (number, state) = (locked.number, locked.state);
            let count = state.count();
            assert_eq!(locked.taken().count(), count, "cluster {number} miscounts");
            let runs = || locked.taken().free_runs(state.order());
            assert!(state.is_nobodys() || state.runs() == runs(), "cluster {number}: {state:?}");
            assert_eq!(state.place(), state.due(), "cluster {number} is marked wrongly");
            let limit = state.limit();
            assert!(
                state.is_nobodys() || state.has_limit(limit),
                "cluster {number}: {state:?}, {limit}"
            );
            let expected = state.place().sets();
            for set in Set::all() {
                let (has, member) = (self.marks.has(set, number), expected.contains(&Some(set)));
                assert_eq!(has, member, "cluster {number}, {set:?}: {state:?}");
            }
            let touched = self.touched.load(Ordering::Relaxed);
            assert!(number < touched || state.is_at(Place::Free), "cluster {number}");
        }
        for set in Set::all() {
            let lanes = 0..self.marks.lanes();
            let members = lanes.flat_map(|lane| self.marks.of_lane(set, lane, 0)).count();
            assert_eq!(members, self.marks.len(set), "{set:?} miscounts");
        }
    }
}

impl Cpu {
    fn new(lane: usize) -> Self {
        let current = core::array::from_fn(|_| AtomicU32::new(NO_CURRENT));
        Self { current, cursor: AtomicU32::new(0), lane }
    }
}
