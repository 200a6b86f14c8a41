//! The engines of a process: what all of them share, and one for each worker.
//!
//! ```text
//!   Engines ─┬─ cpu                           worker ── Cpu
//!            ├─ iaa    queues ── portals ───── worker ── Driver, lanes of its own
//!            └─ model  queues ── a machine ─── worker ── Driver, lanes of its own
//! ```
//!
//! A worker is whoever compresses and decompresses: one thread, and one engine that is its own. The
//! table of queues and the portals are shared. A forked child has neither the lanes nor the portals
//! of its parent, so it opens engines of its own.

use crate::cpu::Cpu;
use crate::iaa::discover::{Device, Found, Note, Queue, discover};
use crate::iaa::fleet::Fleet;
use crate::iaa::portals::Portals;
use crate::iaa::{Config, Driver, MAX_UNITS, Machine, Region};
use crate::model::{Clock, Latency, Model};
use crate::request::Engine;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use octavo_codec::{Codec, Parts};
use octavo_page::{EngineKind, Unit};
use octavo_sys::{Errno, reason, task};

/// An engine of a kind that is chosen while the program runs.
pub type AnyEngine = Box<dyn Engine + Send>;

/// Where sysfs is.
const SYSFS: &str = "/sys";
/// Where the devices are by which queues are opened.
const PORTALS: &str = "/dev/iax";

/// Requests that a worker has in flight with devices: a batch of the store. Of longer units half,
/// as their lanes take four times the memory and more.
const LANES: usize = 16;

/// The model does its work when it is looked at, by threads that may wait for a CPU themselves: it is
/// late only when it is lost.
const MODEL_TIMEOUT_NS: u64 = 1_000_000_000;

/// The engines of a process.
pub struct Engines(Shared);

enum Shared {
    Cpu,
    Iaa { fleet: Arc<Fleet>, portals: Arc<Portals> },
    Model { fleet: Arc<Fleet>, model: Arc<Model> },
}

/// Why there are no engines of a kind, and what would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// There is no device.
    NoDevice,
    /// There is one, and this is why it has no queue to use.
    Odd(Note),
    /// A queue of a device cannot be opened.
    Closed {
        /// N of `wqN.M`.
        device: u16,
        /// M of `wqN.M`.
        queue: u8,
        /// What the kernel said.
        why: Errno,
    },
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str(
                "no IAA device is there (/sys/bus/dsa/devices/iax*); where the processor has one, \
                 'sudo modprobe idxd' brings it; '--engine cpu' does without",
            ),
            Self::Odd(note) => write!(f, "{note}; '--engine cpu' does without"),
            Self::Closed { device, queue, why } => {
                write!(f, "{PORTALS}/wq{device}.{queue}: {}; ", reason(*why))?;
                match *why {
                    Errno::EACCES | Errno::EPERM => {
                        write!(f, "'sudo chmod a+rw {PORTALS}/wq{device}.{queue}' lets everybody use it")
                    }
                    Errno::EBUSY => f.write_str(
                        "another process has this dedicated queue; 'accel-config config-wq --mode=shared' \
                         makes one for all",
                    ),
                    _ => write!(f, "'accel-config enable-wq iax{device}/wq{device}.{queue}' makes it"),
                }
            }
        }
    }
}

impl core::error::Error for Unusable {}

impl Engines {
    /// Engines of this kind. Allocates.
    ///
    /// # Errors
    /// [`Unusable`]: IAA needs devices with a queue that can be opened.
    pub fn open(kind: EngineKind) -> Result<Self, Unusable> {
        match kind {
            EngineKind::Cpu => Ok(Self::cpu()),
            EngineKind::Iaa => Self::iaa(SYSFS, PORTALS),
            EngineKind::Model => Ok(Self::model()),
        }
    }

    /// The codecs on the CPU.
    #[must_use]
    pub const fn cpu() -> Self {
        Self(Shared::Cpu)
    }

    /// The devices in the tree `sysfs`, through the character devices in `portals`. Allocates.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn iaa(sysfs: &str, portals: &str) -> Result<Self, Unusable> {
        let found = discover(sysfs);
        if found.devices.is_empty() {
            let odd = found.notes.iter().find(|note| **note != Note::NoDevices);
            return Err(odd.map_or(Unusable::NoDevice, |note| Unusable::Odd(*note)));
        }
        let fleet = Fleet::new(&found);
        let (portals, failed) = Portals::open(portals, &fleet);
        if let [(place, why), ..] = failed[..]
            && failed.len() == fleet.queues().len()
        {
            let queue = &fleet.queues()[place];
            return Err(Unusable::Closed { device: queue.device, queue: queue.number, why });
        }
        // Queues that are not open are given up with the first command.
        Ok(Self(Shared::Iaa { fleet: Arc::new(fleet), portals: Arc::new(portals) }))
    }

    /// A model of a machine with two devices of two queues each, in real time. Allocates.
    #[must_use]
    pub fn model() -> Self {
        let queue = |number| Queue { number, size: 128, is_dedicated: true };
        let device = |number| Device { number, package: Some(0), queues: [0, 1].map(queue).into() };
        let found =
            Found { devices: [1, 3].map(device).into(), cpus: [Some(0)].into(), notes: [].into() };
        let fleet = Fleet::new(&found);
        let clock = Clock::Real(|| task::now().as_nanos() as u64);
        let model = Model::new(&fleet, clock, Latency::BY_N);
        Self(Shared::Model { fleet: Arc::new(fleet), model: Arc::new(model) })
    }

    /// Which kind they are.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        match self.0 {
            Shared::Cpu => EngineKind::Cpu,
            Shared::Iaa { .. } => EngineKind::Iaa,
            Shared::Model { .. } => EngineKind::Model,
        }
    }

    /// An engine for one worker on processor `cpu`, for requests with these codecs; devices get units
    /// up to `unit`, in parts where the codec cuts them. The CPU where there is no memory for lanes.
    /// Allocates.
    #[must_use]
    pub fn engine(&self, codecs: &[Codec], unit: Unit, cpu: usize) -> AnyEngine {
        let config = Config { unit: longest(codecs, unit), cpu, ..Config::DEFAULT };
        let device = match &self.0 {
            Shared::Cpu => None,
            Shared::Iaa { fleet, portals } => {
                driver(Arc::clone(portals), fleet, codecs, config, |_| {})
            }
            Shared::Model { fleet, model } => {
                let config = Config { timeout_ns: MODEL_TIMEOUT_NS, ..config };
                driver(Arc::clone(model), fleet, codecs, config, |lanes| model.share(lanes))
            }
        };
        device.unwrap_or_else(|| Box::new(Cpu::new(codecs)))
    }
}

/// The longest piece of a unit that devices get.
fn longest(codecs: &[Codec], unit: Unit) -> Unit {
    let deflated = codecs.iter().filter(|codec| matches!(codec, Codec::Deflate { .. }));
    let bytes = deflated.map(|codec| codec.part_bytes(unit.bytes())).max();
    let holds = |unit: &Unit| bytes.is_none_or(|bytes| bytes <= unit.bytes());
    Unit::ALL.into_iter().find(holds).unwrap_or(Unit::MAX)
}

/// Bytes for the lanes of a worker, for pieces up to `unit`. Where units are cut, lanes for all parts of
/// a few units, but no more than those of the most parts there are, of a page each: a MiB.
fn memory_for<M: Machine>(codecs: &[Codec], unit: Unit) -> usize {
    let memory_for = |lanes| Driver::<M>::memory_for(lanes, unit);
    let whole = if unit == Unit::K4 { LANES } else { LANES / 2 };
    let parts = codecs.iter().filter_map(|codec| codec.parts().count()).max();
    let parts = parts.map_or(0, |n| (MAX_UNITS * n).min(Parts::MAX));
    let most = Driver::<M>::memory_for(Parts::MAX, Unit::K4);
    memory_for(whole).max(memory_for(parts).min(most))
}

/// A driver on `machine`, which is told of the memory for its lanes.
fn driver<M: Machine + Send + 'static>(
    machine: M,
    fleet: &Arc<Fleet>,
    codecs: &[Codec],
    config: Config,
    share: impl FnOnce(&Region),
) -> Option<AnyEngine> {
    let memory = memory_for::<M>(codecs, config.unit);
    let memory = Region::new(memory, c"octavo lanes").ok()?;
    share(&memory);
    let driver = Driver::new(machine, Arc::clone(fleet), &memory, codecs, config).ok()?;
    Some(Box::new(driver))
}

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Engines").field(&self.kind()).finish()
    }
}
