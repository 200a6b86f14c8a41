//! Other designs of the same thing, to test and to measure [`Slots`] against.

pub use crate::one_lock::OneLock;
pub use crate::series::Series;

use crate::cluster::Cluster;
use crate::{Config, ConfigError, FreeError, Slots};
use octavo_page::{Order, SlotId};

/// What all slot allocators do; [`Slots`] says what each call means.
pub trait Allocator: Sync + Sized {
    /// What benchmarks call it.
    const NAME: &'static str;

    /// See [`Slots::new`].
    ///
    /// # Errors
    /// See there.
    fn new(config: Config) -> Result<Self, ConfigError>;
    /// See [`Slots::capacity`].
    fn capacity(&self) -> usize;
    /// See [`Slots::taken`].
    fn taken(&self) -> usize;
    /// See [`Slots::alloc`].
    fn alloc(&self, order: Order, cpu: usize) -> Option<SlotId>;
    /// See [`Slots::free`].
    ///
    /// # Errors
    /// See there.
    fn free(&self, first: SlotId, pages: usize) -> Result<(), FreeError>;
    /// See [`Slots::free_many`].
    ///
    /// # Errors
    /// See there.
    fn free_many(&self, slots: &[SlotId]) -> Result<(), FreeError>;
    /// See [`Slots::next_taken`].
    fn next_taken(&self, from: SlotId) -> Option<SlotId>;
    /// See [`Slots::check`].
    fn check(&self);
    /// Work since the start on what all CPUs share.
    fn shared_work(&self) -> SharedWork;
}

/// Work on what all CPUs share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SharedWork {
    /// Times a lock over the whole device was taken.
    pub acquisitions: u64,
    /// Times a cluster was put on a list or taken off one, or changed its state.
    pub moves: u64,
    /// Times a thread found a lock held and waited for it.
    pub waits: u64,
    /// Nanoseconds of all these waits together, by the clock of [`Config`].
    pub waited_ns: u64,
}

impl Allocator for Slots {
    const NAME: &'static str = "octavo";

    fn new(config: Config) -> Result<Self, ConfigError> {
        Self::new(config)
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }

    fn taken(&self) -> usize {
        self.taken()
    }

    #[inline]
    fn alloc(&self, order: Order, cpu: usize) -> Option<SlotId> {
        self.alloc(order, cpu)
    }

    #[inline]
    fn free(&self, first: SlotId, pages: usize) -> Result<(), FreeError> {
        self.free(first, pages)
    }

    fn free_many(&self, slots: &[SlotId]) -> Result<(), FreeError> {
        self.free_many(slots)
    }

    fn next_taken(&self, from: SlotId) -> Option<SlotId> {
        self.next_taken(from)
    }

    fn check(&self) {
        self.check();
    }

    fn shared_work(&self) -> SharedWork {
        let (waits, waited_ns) = self.waits.so_far();
        let moves = self.clusters.iter().map(Cluster::moves).sum();
        SharedWork { acquisitions: 0, moves, waits, waited_ns }
    }
}
