//! The machine of the series: 2 packages of 56 cores, each with 4 devices.
//!
//! ```text
//!   before the series: a processor uses the device that it is mapped to     ─┐ a device's processors
//!     CPU 0-13 iax1   14-27 iax3   28-41 iax5   42-55 iax7   56-69 iax9 ...  ─┘ are "a package"
//!   with it: compressions go to all four devices of the package in turn
//! ```
//!
//! The driver is the real one, and knows nothing of this: it has processors and packages, and what
//! the kernel's driver did before the series is a machine whose packages have one device each.

use super::turns::Seat;
use octavo_accel::iaa::discover::{Device, Found, Queue};
use octavo_accel::iaa::fleet::Fleet;
use octavo_accel::iaa::{Config, Driver, Region};
use octavo_accel::{Capabilities, Cpu, Engine, Full, Io, Operation, Outcome, Ticket};
use octavo_codec::deflate::Level;
use octavo_codec::{Codec, DeflateMode, Parts, ZstdLevel};
use octavo_page::Unit;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) const CPUS: usize = 112;
pub(super) const PACKAGES: usize = 2;
const DEVICES: usize = 8;

/// What the kernel's driver does, `deflate-iaa`.
pub(super) const FIXED: Codec =
    Codec::Deflate { mode: DeflateMode::Fixed, level: Level::L1, parts: Parts::WHOLE };

/// What compresses, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct System {
    pub name: &'static str,
    /// How many pages are with devices at once; none where the processor does it.
    lanes: Option<usize>,
    /// Whether the next ones wait until all of them are back.
    is_in_step: bool,
    /// Whether compressions go to all devices of the package.
    is_spread: bool,
}

impl System {
    /// The processor, page by page.
    pub(super) const ZSTD: Self =
        Self { name: "zstd", lanes: None, is_in_step: false, is_spread: false };
    /// The device that the processor is mapped to, page by page.
    pub(super) const IAA: Self =
        Self { name: "iaa", lanes: Some(1), is_in_step: true, is_spread: false };
    /// All devices of the package, eight pages at once, and then the next eight: the series.
    pub(super) const BATCH: Self =
        Self { name: "iaa-batch", lanes: Some(8), is_in_step: true, is_spread: true };
    /// All devices of the package, up to sixteen pages: as the store's batches are.
    pub(super) const OCTAVO: Self =
        Self { name: "octavo", lanes: Some(16), is_in_step: false, is_spread: true };

    /// The device that the processor is mapped to, so many pages at once.
    pub(super) const fn mapped(pages: usize) -> Self {
        Self { name: "iaa-mapped", lanes: Some(pages), is_in_step: true, is_spread: false }
    }

    /// Whether compressions go to all devices of the package.
    pub(super) const fn is_spread(self) -> bool {
        self.is_spread
    }

    pub(super) fn codec(self) -> Codec {
        // The kernel's default level.
        let zstd = || Codec::Zstd(ZstdLevel::new(3).expect("a level of zstd"));
        self.lanes.map_or_else(zstd, |_| FIXED)
    }

    /// The devices and processors as this system's driver sees them. `queues` are those of a device.
    pub(super) fn found(self, queues: &[u32]) -> Found {
        let queues: Vec<Queue> = (0..)
            .zip(queues)
            .map(|(number, size)| Queue { number, size: *size, is_dedicated: true })
            .collect();
        let groups = if self.is_spread { PACKAGES } else { DEVICES };
        let device = |n: usize| Device {
            number: 1 + 2 * n as u16,
            package: Some((n * groups / DEVICES) as u32),
            queues: queues.clone(),
        };
        Found {
            devices: (0..DEVICES).map(device).collect(),
            cpus: (0..CPUS).map(|cpu| Some((cpu * groups / CPUS) as u32)).collect(),
            notes: Vec::new(),
        }
    }

    /// The engine of a process on processor `cpu`.
    pub(super) fn engine<'s>(
        self,
        seat: &'s Seat<'s>,
        fleet: &Arc<Fleet>,
        memory: &Region,
        cpu: usize,
        software: Software,
    ) -> Box<dyn Engine + 's> {
        if self.lanes.is_none() {
            return Box::new(Timed { cpu: Cpu::new(&[self.codec()]), seat, software });
        }
        let config = Config { cpu, ..Config::DEFAULT };
        let driver = Driver::new(seat, fleet.clone(), memory, &[self.codec()], config);
        let driver = driver.expect("there are queues, and a lane");
        if self.is_in_step { Box::new(InStep::new(driver)) } else { Box::new(driver) }
    }
}

/// What a codec costs a processor, ns a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Software {
    pub compress: f64,
    pub decompress: f64,
}

/// The codecs in the caller, in virtual time.
struct Timed<'s> {
    cpu: Cpu,
    seat: &'s Seat<'s>,
    software: Software,
}

impl Engine for Timed<'_> {
    fn capabilities(&self) -> Capabilities {
        self.cpu.capabilities()
    }

    fn takes(&self, operation: Operation, codec: Codec) -> bool {
        self.cpu.takes(operation, codec)
    }

    fn start(&mut self, io: &Io<'_>) -> Result<Ticket, Full> {
        self.cpu.start(io)
    }

    fn check(&mut self, ticket: Ticket, io: &mut Io<'_>) -> Option<Outcome> {
        self.seat.spend(match io.operation {
            Operation::Compress => self.software.compress,
            Operation::Decompress => self.software.decompress,
        } as u64);
        self.cpu.check(ticket, io)
    }

    fn abandon(&mut self, ticket: Ticket) {
        self.cpu.abandon(ticket);
    }

    fn pause(&mut self) {}
}

/// An engine that takes as many requests as it has room for, and more when all of them are done: what
/// the series does.
struct InStep<E> {
    engine: E,
    started: usize,
    is_full: bool,
}

impl<E> InStep<E> {
    fn new(engine: E) -> Self {
        Self { engine, started: 0, is_full: false }
    }

    fn is_back(&mut self) {
        self.started -= 1;
        self.is_full &= self.started > 0;
    }
}

impl<E: Engine> Engine for InStep<E> {
    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn takes(&self, operation: Operation, codec: Codec) -> bool {
        self.engine.takes(operation, codec)
    }

    fn start(&mut self, io: &Io<'_>) -> Result<Ticket, Full> {
        if self.is_full {
            return Err(Full);
        }
        let ticket = self.engine.start(io);
        self.started += usize::from(ticket.is_ok());
        self.is_full = ticket.is_err() && self.started > 0;
        ticket
    }

    fn check(&mut self, ticket: Ticket, io: &mut Io<'_>) -> Option<Outcome> {
        let outcome = self.engine.check(ticket, io)?;
        self.is_back();
        Some(outcome)
    }

    fn abandon(&mut self, ticket: Ticket) {
        self.engine.abandon(ticket);
        self.is_back();
    }

    fn pause(&mut self) {
        self.engine.pause();
    }
}

/// Processes of a run, at most.
const PROCESSES: usize = 32;
/// Lanes of one of them, at most.
const LANES: usize = 16;

/// Memory for the lanes of a run's processes. It stays mapped for good, so it is used by one run after
/// the other.
pub(super) struct Memory(Region);

static FREE: Mutex<Vec<Region>> = Mutex::new(Vec::new());

impl Memory {
    /// # Panics
    /// When there is none.
    pub(super) fn take() -> Self {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let new = || Region::new(PROCESSES * Self::bytes(), c"octavo sim");
        Self(free.unwrap_or_else(|| new().expect("memory for lanes")))
    }

    const fn bytes() -> usize {
        Driver::<&Seat<'_>>::memory_for(LANES, Unit::K4)
    }

    /// That of all processes.
    pub(super) fn all(&self) -> &Region {
        &self.0
    }

    /// That of process `id` on `system`.
    pub(super) fn of(&self, id: usize, system: System) -> Region {
        let bytes = Driver::<&Seat<'_>>::memory_for(system.lanes.unwrap_or(1), Unit::K4);
        self.0.part(id * Self::bytes(), bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0.clone());
    }
}
