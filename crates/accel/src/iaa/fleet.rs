//! The queues of all devices, and which of them a processor uses.
//!
//! ```text
//!   package 0: CPUs 0-3                      package 1: CPUs 4-7
//!   iax1: wq.0  wq.1      iax3: wq.0  wq.1   iax5: ...
//!          ▲      ▲              ▲      ▲
//!   CPU 0,1┘      └── all CPUs ──│──────┘    compress: wq.1 of every device of the package in turn
//!   CPU 2,3 ─────────────────────┘           decompress: wq.0 of the device that the CPU is mapped to
//! ```
//!
//! A fault waits for a decompression, and nobody for a compression: queues apart keep the one from
//! waiting behind the other. A device with one queue uses it for both. There is one table of queues
//! for all processors, and engines share it.
//!
//! Of a queue's places each command takes one (*credit*) from before it is submitted until its
//! completion was seen. A dedicated queue that is mapped cannot say that it is full, so the count is
//! what keeps commands from being lost.

use super::discover::Found;
use alloc::boxed::Box;
use alloc::vec::Vec;
use octavo_page::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Commands not answered in time, one after the other, after which a queue is given up.
const STRIKES: u32 = 3;

/// A queue, used by all engines of the process. On a line of its own.
#[repr(align(64))]
#[derive(Debug)]
pub struct Queue {
    /// N of `wqN.M`.
    pub device: u16,
    /// M of `wqN.M`.
    pub number: u8,
    /// Whether the process has it alone.
    pub is_dedicated: bool,
    size: u32,
    in_flight: AtomicU32,
    strikes: AtomicU32,
    compressions: AtomicU64,
    decompressions: AtomicU64,
}

impl Queue {
    fn new(device: u16, queue: &super::discover::Queue) -> Self {
        Self {
            device,
            number: queue.number,
            is_dedicated: queue.is_dedicated,
            size: queue.size,
            in_flight: AtomicU32::new(0),
            strikes: AtomicU32::new(0),
            compressions: AtomicU64::new(0),
            decompressions: AtomicU64::new(0),
        }
    }

    /// Takes one of its places, if one is free.
    pub(crate) fn take(&self) -> bool {
        let more = |n| (n < self.size).then_some(n + 1);
        // Order comes with the portal and the completion record; this only counts.
        self.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives a place back.
    pub(crate) fn give_back(&self) {
        let before = self.in_flight.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a place given back twice");
    }

    /// A command was answered.
    pub(crate) fn answered(&self) {
        if self.strikes.load(Ordering::Relaxed) < STRIKES {
            self.strikes.store(0, Ordering::Relaxed);
        }
    }

    /// A command was not answered in time, or came back broken.
    pub(crate) fn strike(&self) {
        self.strikes.fetch_add(1, Ordering::Relaxed);
    }

    /// Uses it no more.
    pub(crate) fn give_up(&self) {
        self.strikes.store(STRIKES, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, is_compression: bool) {
        let counter = if is_compression { &self.compressions } else { &self.decompressions };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it is in use.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.strikes.load(Ordering::Relaxed) < STRIKES
    }

    /// Commands it holds.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Commands submitted and not seen completed.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Compressions and decompressions submitted so far.
    #[must_use]
    pub fn calls(&self) -> (u64, u64) {
        (self.compressions.load(Ordering::Relaxed), self.decompressions.load(Ordering::Relaxed))
    }
}

/// The queues that the processors of a package use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Package {
    /// For compressions, one a device, in turn.
    pub compress: Box<[u16]>,
    /// For decompressions, one a device; each processor has one of them.
    pub decompress: Box<[u16]>,
}

/// All queues, and who uses which.
#[derive(Debug)]
pub struct Fleet {
    queues: Box<[Queue]>,
    packages: Box<[Package]>,
    /// For each processor its package, and its place in that package's `decompress`.
    cpus: Box<[(u16, u16)]>,
}

impl Fleet {
    /// The table of what was found. Allocates.
    #[must_use]
    pub fn new(found: &Found) -> Self {
        let mut ids: Vec<u32> = found.cpus.iter().copied().flatten().collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            ids.push(0);
        }
        let packages: Box<[Package]> = ids.iter().map(|id| package(found, *id)).collect();
        let devices = found.devices.iter();
        Self {
            queues: devices
                .flat_map(|device| device.queues.iter().map(|q| Queue::new(device.number, q)))
                .collect(),
            cpus: cpus(found, &ids, &packages),
            packages,
        }
    }

    /// All queues.
    #[must_use]
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// The queues for compressions by this processor.
    #[must_use]
    pub fn compress(&self, cpu: usize) -> &[u16] {
        &self.packages[self.place(cpu).0].compress
    }

    /// The queues for decompressions by this processor: all of its package, and which of them is its
    /// own; `None` where there are none.
    #[must_use]
    pub fn decompress(&self, cpu: usize) -> (&[u16], usize) {
        let (package, own) = self.place(cpu);
        (&self.packages[package].decompress, own)
    }

    fn place(&self, cpu: usize) -> (usize, usize) {
        // A processor that was not there when we looked is as good as the first.
        let (package, own) = self.cpus.get(cpu).copied().unwrap_or((0, 0));
        (package.into(), own.into())
    }
}

/// The queues of the devices of package `id`, or of all devices where it has none.
fn package(found: &Found, id: u32) -> Package {
    let is_ours = |package: Option<u32>| package.is_none_or(|p| p == id);
    let has_any = found.devices.iter().any(|device| is_ours(device.package));
    let (mut compress, mut decompress, mut first) = (Vec::new(), Vec::new(), 0);
    for device in &found.devices {
        if !has_any || is_ours(device.package) {
            decompress.push(first);
            compress.push(first + u16::from(device.queues.len() > 1));
        }
        first += device.queues.len() as u16;
    }
    Package { compress: compress.into(), decompress: decompress.into() }
}

/// Spreads the processors of each package evenly over its devices, neighbours together.
fn cpus(found: &Found, ids: &[u32], packages: &[Package]) -> Box<[(u16, u16)]> {
    let place = |id: Option<u32>| id.and_then(|id| ids.iter().position(|i| *i == id)).unwrap_or(0);
    let mut total = alloc::vec![0usize; ids.len()];
    found.cpus.iter().for_each(|id| total[place(*id)] += 1);
    let mut seen = alloc::vec![0usize; ids.len()];
    let one = |id: &Option<u32>| {
        let package = place(*id);
        let own = seen[package] * packages[package].decompress.len() / total[package];
        seen[package] += 1;
        (package as u16, own as u16)
    };
    found.cpus.iter().map(one).collect()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::super::discover::{Device, Queue};
    use super::*;
    use std::vec;

    #[test]
    fn processors_are_spread_over_the_devices_of_their_package() {
        let queue = |number| Queue { number, size: 64, is_dedicated: true };
        let device = |number, package, queues: &[u8]| Device {
            number,
            package: Some(package),
            queues: queues.iter().map(|n| queue(*n)).collect(),
        };
        let found = Found {
            devices: vec![device(1, 0, &[0, 1]), device(3, 0, &[0]), device(5, 7, &[0, 1, 2])],
            cpus: vec![Some(0), Some(7), Some(0), Some(0), None, Some(0), Some(9)],
            notes: vec![],
        };
        let fleet = Fleet::new(&found);
        assert_eq!(fleet.queues().len(), 6);
        assert_eq!(fleet.compress(0), [1, 2]);
        assert_eq!(fleet.compress(1), [4]);
        let own: Vec<usize> = [0, 2, 3, 4, 5].iter().map(|cpu| fleet.decompress(*cpu).1).collect();
        assert_eq!(own, [0, 0, 0, 1, 1]);
        // A package without a device uses all, and an unknown processor the first package.
        assert_eq!(fleet.compress(6), [1, 2, 4]);
        assert_eq!(fleet.decompress(99), (&[0, 2][..], 0));
    }

    #[test]
    fn a_queue_holds_what_it_holds_and_is_given_up_after_strikes() {
        let queue = super::Queue::new(1, &Queue { number: 0, size: 2, is_dedicated: true });
        assert!(queue.take() && queue.take() && !queue.take());
        queue.give_back();
        assert!(queue.take());
        queue.strike();
        queue.strike();
        queue.answered();
        for _ in 0..STRIKES {
            assert!(queue.is_alive());
            queue.strike();
        }
        queue.answered();
        assert!(!queue.is_alive());
    }
}
