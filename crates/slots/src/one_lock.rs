//! One lock and a first-fit search: what came before clusters had locks, and the plainest twin.
//!
//! Each order goes on in the cluster where it found room last, and otherwise takes the first cluster
//! from there on that serves its order, or none, and has a run. A single page takes any free slot in
//! the end. The rule that a cluster serves one order, and the search by bits, are those of the
//! others, so that a comparison shows what locks and lists do.

use crate::bitmap::{Bitmap, CLUSTER_SLOTS};
use crate::sync::{Mutex, MutexGuard, Waits};
use crate::twins::{Allocator, SharedWork};
use crate::{
    Config, ConfigError, FreeError, ORDERS, Run, free_by_cluster, join, next_taken, split,
};
use alloc::boxed::Box;
use octavo_page::{Order, SlotId};

/// Everything under one lock.
pub struct OneLock {
    device: Mutex<Device>,
    waits: Waits,
}

struct Device {
    clusters: Box<[Cluster]>,
    /// For each order the slot at which to go on.
    next: [SlotId; ORDERS],
    work: SharedWork,
}

struct Cluster {
    taken: Bitmap,
    count: usize,
    order: Order,
}

impl OneLock {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, Device> {
        let mut device = self.waits.lock(&self.device);
        device.work.acquisitions += 1;
        device
    }
}

impl Device {
    /// The first run that `fits` the cluster it is in, from where this order found room last.
    #[inline]
    fn find(&self, order: Order, fits: impl Fn(&Cluster) -> bool) -> Option<SlotId> {
        let (start, offset) = split(self.next[usize::from(order.get())]);
        let clusters = self.clusters.len() as u32;
        // The first cluster comes again at the end, for the slots before the offset.
        (start..=start + clusters).enumerate().find_map(|(n, number)| {
            let number = number % clusters;
            let cluster = &self.clusters[number as usize];
            if CLUSTER_SLOTS - cluster.count < order.pages() || !fits(cluster) {
                return None;
            }
            let from = if n == 0 { offset } else { 0 };
            cluster.taken.free_run(order, from).map(|first| join(number, first))
        })
    }

    #[inline]
    fn take(&mut self, order: Order, first: SlotId) {
        let (number, offset) = split(first);
        let cluster = &mut self.clusters[number as usize];
        if cluster.count == 0 {
            cluster.order = order;
        }
        cluster.taken.set(offset, order.pages());
        cluster.count += order.pages();
        let end = offset + order.pages();
        let next = if end < CLUSTER_SLOTS { end } else { 0 };
        self.next[usize::from(order.get())] = join(number, next);
    }

    #[inline]
    fn free(&mut self, run: Run) -> Result<(), FreeError> {
        let cluster = &mut self.clusters[run.cluster as usize];
        run.free_in(&cluster.taken)?;
        cluster.count -= run.pages;
        Ok(())
    }

    fn capacity(&self) -> usize {
        self.clusters.len() * CLUSTER_SLOTS
    }
}

impl Allocator for OneLock {
    const NAME: &'static str = "one-lock";

    fn new(config: Config) -> Result<Self, ConfigError> {
        let clusters = config.clusters()? as usize;
        let cluster = |_| Cluster { taken: Bitmap::empty(), count: 0, order: Order::PAGE };
        let device = Mutex::new(Device {
            clusters: (0..clusters).map(cluster).collect(),
            next: [SlotId::new(0); ORDERS],
            work: SharedWork::default(),
        });
        Ok(Self { device, waits: Waits::new(config.clock) })
    }

    fn capacity(&self) -> usize {
        self.device.lock().capacity()
    }

    fn taken(&self) -> usize {
        self.device.lock().clusters.iter().map(|cluster| cluster.count).sum()
    }

    #[inline]
    fn alloc(&self, order: Order, _cpu: usize) -> Option<SlotId> {
        let mut device = self.lock();
        let first = device
            .find(order, |cluster| cluster.order == order || cluster.count == 0)
            .or_else(|| (order == Order::PAGE).then(|| device.find(order, |_| true)).flatten())?;
        device.take(order, first);
        Some(first)
    }

    #[inline]
    fn free(&self, first: SlotId, pages: usize) -> Result<(), FreeError> {
        let mut device = self.lock();
        let run = Run::new(first, pages, device.capacity())?;
        if pages == 0 { Ok(()) } else { device.free(run) }
    }

    fn free_many(&self, slots: &[SlotId]) -> Result<(), FreeError> {
        let mut device = self.lock();
        free_by_cluster(slots, |group| {
            let mut first_error = Ok(());
            for slot in group {
                let result = Run::new(*slot, 1, device.capacity()).and_then(|run| device.free(run));
                first_error = first_error.and(result);
            }
            first_error
        })
    }

    fn next_taken(&self, from: SlotId) -> Option<SlotId> {
        let device = self.lock();
        next_taken(from, device.clusters.len() as u32, |number, offset| {
            device.clusters[number as usize].taken.first_taken(offset)
        })
    }

    fn check(&self) {
        for (number, cluster) in self.device.lock().clusters.iter().enumerate() {
            assert_eq!(cluster.taken.count(), cluster.count, "cluster {number} miscounts");
        }
    }

    fn shared_work(&self) -> SharedWork {
        let (waits, waited_ns) = self.waits.so_far();
        SharedWork { waits, waited_ns, ..self.device.lock().work }
    }
}
