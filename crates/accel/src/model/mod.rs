//! A machine with IAA devices, in software, at the level of descriptors.
//!
//! ```text
//!   submit ─► queue (as many entries as sysfs says) ─► one of 8 engines ─ time passes ─► execute:
//!              full: refused, or lost if dedicated                          read memory, write memory,
//!                                                                          completion record last
//! ```
//!
//! It has no thread: whoever submits, or pauses, moves the devices on to the present. Time is that
//! of a clock, or virtual: then a pause leaps to the next thing that
//! happens, a microsecond at most, and a submission takes
//! the time that it takes a processor. Or it is told ([`Clock::Told`]): who simulates several processors
//! keeps their times. Devices see the memory they were given ([`Model::share`]) and
//! fault anywhere else.
//!
//! What it writes is real: streams that any inflate reads, with the codes of the AECS, statistics,
//! checksums. It searches for matches as `codec` does at level 1, in a window of 4 KiB; a real
//! device finds others. Times come from a table ([`Latency`]).
//!
//! Things go wrong on demand ([`Mishap`]).

mod bits;
mod checksum;
mod execute;
mod inflate;
mod symbols;

use crate::iaa::fleet::Fleet;
use crate::iaa::wire::{self, Completion, Descriptor, status};
use crate::iaa::{Machine, Refused, Region};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use execute::Executor;
use octavo_page::sync::{Mutex, MutexGuard};

/// How long a command takes, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latency {
    /// Of the processor, to prepare and submit it.
    pub submit: f64,
    /// On the way: to the engine that does it, and back to whoever looks at the completion record.
    pub way: f64,
    /// Of an engine, to compress a KiB.
    pub compress_kib: f64,
    /// Of an engine, to decompress to a KiB.
    pub decompress_kib: f64,
    /// Engines of a device that compress at the same time, at most; all of them decompress. A
    /// compression that must wait for another keeps what is behind it in its queue waiting, too.
    pub compressors: usize,
}

impl Latency {
    /// Of Sapphire Rapids at 2.5 GHz, from the table of the by_n patches; `octavo sim by-n` says which
    /// cells, and predicts the others.
    pub const BY_N: Self = Self {
        submit: 239.4,
        way: 2454.0,
        compress_kib: 496.8,
        decompress_kib: 252.3,
        compressors: wire::DEVICE_ENGINES,
    };

    /// Nanoseconds of an engine.
    fn work(&self, descriptor: &Descriptor) -> u64 {
        let (kib, bytes) = match descriptor.opcode() {
            wire::opcode::COMPRESS => (self.compress_kib, descriptor.source_size.get()),
            // The room for a unit is as large as the unit.
            wire::opcode::DECOMPRESS => (self.decompress_kib, descriptor.destination_size.get()),
            _ => (0.0, 0),
        };
        // What is longer is refused.
        let bytes = bytes.min(wire::MAX_TRANSFER as u32);
        (kib * f64::from(bytes) / 1024.0) as u64
    }
}

/// What goes wrong with a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mishap {
    /// The queue refuses it.
    Full,
    /// The device is taken away, with all that is in it.
    Gone,
    /// Its completion never comes.
    Silent,
    /// Its completion comes so many nanoseconds later.
    Late(u64),
    /// It ends with this status and error code; the output is spoilt.
    Status(u8, u8),
    /// The checksum in the completion record is wrong.
    WrongCrc,
    /// A byte of the output is wrong, and the completion record knows nothing of it.
    WrongByte,
    /// The completion record tells of more output than there was room for.
    WrongSize,
}

/// Decides what goes wrong, from the place of the queue and the command.
pub type Fate = Box<dyn FnMut(usize, &Descriptor) -> Option<Mishap> + Send>;

/// What time it is.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// What this clock says, in nanoseconds.
    Real(fn() -> u64),
    /// What the model says.
    Virtual,
    /// What [`Model::advance`] was told last; a submission or a pause takes no time.
    Told,
}

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Commands that a queue took.
    pub taken: u64,
    /// Completion records written.
    pub completed: u64,
    /// Commands lost because a dedicated queue was full, or their completion record could not be
    /// written: bugs of the driver.
    pub lost: u64,
}

/// The devices of a fleet.
pub struct Model {
    clock: Clock,
    latency: Latency,
    state: Mutex<State>,
}

struct State {
    /// Virtual time.
    now: u64,
    queues: Box<[WorkQueue]>,
    devices: Box<[Device]>,
    memory: Vec<Region>,
    executor: Executor,
    fate: Option<Fate>,
    tally: Tally,
}

struct WorkQueue {
    device: usize,
    size: usize,
    is_dedicated: bool,
    entries: VecDeque<Entry>,
}

struct Entry {
    /// When an engine can begin.
    ready: u64,
    descriptor: Descriptor,
    mishap: Option<Mishap>,
}

struct Device {
    is_gone: bool,
    engines: [Option<Job>; wire::DEVICE_ENGINES],
    free_since: [u64; wire::DEVICE_ENGINES],
    /// The queue whose turn it is.
    turn: usize,
    queues: Box<[usize]>,
    /// Engines that compress now, and when one last ended.
    compressing: usize,
    compressed: u64,
    /// What happens next, and when: found anew whenever something has happened, as whoever polls asks
    /// much more often.
    next: Option<(u64, Event)>,
}

/// What happens in a device, by the place of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// It begins a command.
    Begin(usize),
    /// It ends the one that it has.
    End(usize),
}

struct Job {
    entry: Entry,
    done: u64,
}

impl Model {
    /// The devices that a fleet's queues belong to. Allocates.
    #[must_use]
    pub fn new(fleet: &Fleet, clock: Clock, latency: Latency) -> Self {
        let mut numbers: Vec<u16> = fleet.queues().iter().map(|queue| queue.device).collect();
        numbers.dedup();
        let place = |number| numbers.iter().position(|n| *n == number).expect("a device listed");
        let queues: Box<[WorkQueue]> = fleet
            .queues()
            .iter()
            .map(|queue| WorkQueue {
                device: place(queue.device),
                size: queue.size() as usize,
                is_dedicated: queue.is_dedicated,
                entries: VecDeque::with_capacity(queue.size() as usize),
            })
            .collect();
        let device = |n: usize| Device {
            is_gone: false,
            engines: [const { None }; wire::DEVICE_ENGINES],
            free_since: [0; wire::DEVICE_ENGINES],
            turn: 0,
            queues: (0..queues.len()).filter(|q| queues[*q].device == n).collect(),
            compressing: 0,
            compressed: 0,
            next: None,
        };
        let devices = (0..numbers.len()).map(device).collect();
        let state = State {
            now: 0,
            queues,
            devices,
            memory: Vec::with_capacity(MAX_REGIONS),
            executor: Executor::new(),
            fate: None,
            tally: Tally::default(),
        };
        Self { clock, latency, state: Mutex::new(state) }
    }

    /// Lets the devices see this memory.
    ///
    /// # Panics
    /// When they see 64 regions already.
    pub fn share(&self, memory: &Region) {
        let regions = &mut self.lock().memory;
        assert!(regions.len() < MAX_REGIONS, "the model's devices see {MAX_REGIONS} regions");
        regions.push(memory.clone());
    }

    /// From now on this decides what goes wrong.
    pub fn set_fate(&self, fate: Option<Fate>) {
        self.lock().fate = fate;
    }

    /// What happened so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.lock().tally
    }

    /// Has a processor be busy for this long, in virtual time.
    pub fn spend(&self, ns: u64) {
        self.lock().now += ns;
    }

    /// Moves told time on to `now`, if it is not past that, and has the devices do what happens until then.
    /// `ended` gets the address of the completion record of each command that ends, device by
    /// device.
    pub fn advance(&self, now: u64, mut ended: impl FnMut(u64)) {
        let mut state = self.lock();
        state.now = state.now.max(now);
        let now = state.now;
        state.advance(now, &self.latency, &mut ended);
    }

    /// When the next thing happens in any of the devices; `None` when nothing is on its way.
    #[must_use]
    pub fn next_event(&self) -> Option<u64> {
        self.lock().next_event()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn time(&self, state: &State) -> u64 {
        match self.clock {
            Clock::Real(clock) => clock(),
            Clock::Virtual | Clock::Told => state.now,
        }
    }
}

/// Regions that devices see.
const MAX_REGIONS: usize = 64;

/// Virtual time that passes in a pause, at most, in nanoseconds.
const LONGEST_PAUSE: u64 = 1000;

impl Machine for Model {
    fn submit(&self, queue: usize, descriptor: &Descriptor) -> Result<(), Refused> {
        let mut state = self.lock();
        let state = &mut *state;
        if matches!(self.clock, Clock::Virtual) {
            state.now += self.latency.submit as u64;
        }
        let now = self.time(state);
        state.advance(now, &self.latency, &mut |_| {});
        let mishap = state.fate.as_mut().and_then(|fate| fate(queue, descriptor));
        let into = &mut state.queues[queue];
        let device = &mut state.devices[into.device];
        if mishap == Some(Mishap::Gone) {
            device.take_away();
            device.queues.iter().for_each(|n| state.queues[*n].entries.clear());
        }
        let into = &mut state.queues[queue];
        if state.devices[into.device].is_gone {
            return Err(Refused::Gone);
        }
        if mishap == Some(Mishap::Full) || into.entries.len() == into.size && !into.is_dedicated {
            return Err(Refused::Full);
        }
        if into.entries.len() == into.size {
            // Nobody tells: the store went to a device that had no room for it.
            state.tally.lost += 1;
            return Ok(());
        }
        let ready = now + self.latency.way as u64;
        into.entries.push_back(Entry { ready, descriptor: *descriptor, mishap });
        let device = into.device;
        state.find_next(device, &self.latency);
        state.tally.taken += 1;
        Ok(())
    }

    fn now(&self) -> u64 {
        self.time(&self.lock())
    }

    fn pause(&self) {
        let mut state = self.lock();
        let now = self.time(&state);
        state.advance(now, &self.latency, &mut |_| {});
        if matches!(self.clock, Clock::Virtual) {
            let next = state.next_event().unwrap_or(u64::MAX);
            state.now = next.clamp(now + 1, now + LONGEST_PAUSE);
            let now = state.now;
            state.advance(now, &self.latency, &mut |_| {});
        }
    }
}

impl Device {
    fn take_away(&mut self) {
        self.is_gone = true;
        self.engines = [const { None }; wire::DEVICE_ENGINES];
        self.compressing = 0;
        self.next = None;
    }

    /// When an entry at the head of a queue can begin, as far as the device's engines for
    /// compressions go; `None` while it must wait for one of them.
    fn ready(&self, entry: &Entry, latency: &Latency) -> Option<u64> {
        if !is_compression(&entry.descriptor) {
            return Some(entry.ready);
        }
        // What was ready while an engine could compress has begun: this one waited for the last end.
        (self.compressing < latency.compressors).then(|| entry.ready.max(self.compressed))
    }
}

fn is_compression(descriptor: &Descriptor) -> bool {
    descriptor.opcode() == wire::opcode::COMPRESS
}

impl State {
    /// Does all that happens until `now`, device by device, in order of time.
    fn advance(&mut self, now: u64, latency: &Latency, ended: &mut dyn FnMut(u64)) {
        for device in 0..self.devices.len() {
            while let Some((time, event)) = self.devices[device].next.filter(|(at, _)| *at <= now) {
                match event {
                    Event::Begin(engine) => self.begin(device, engine, time, latency),
                    Event::End(engine) => self.end(device, engine, ended),
                }
                self.find_next(device, latency);
            }
        }
    }

    /// Finds what happens next in a device. Of a beginning and an end at the same time the beginning.
    fn find_next(&mut self, device: usize, latency: &Latency) {
        let begin = self.first_begin(device, latency);
        let done = self.first_done(device);
        self.devices[device].next = match (begin, done) {
            (Some((engine, time)), done) if done.is_none_or(|(_, end)| time <= end) => {
                Some((time, Event::Begin(engine)))
            }
            (_, done) => done.map(|(engine, time)| (time, Event::End(engine))),
        };
    }

    /// The idle engine that begins next, and when.
    fn first_begin(&self, device: usize, latency: &Latency) -> Option<(usize, u64)> {
        let device = &self.devices[device];
        let Device { engines, free_since, queues, .. } = device;
        let idle = (0..engines.len()).filter(|n| engines[*n].is_none());
        let engine = idle.min_by_key(|n| free_since[*n])?;
        let heads = queues.iter().filter_map(|queue| self.queues[*queue].entries.front());
        let ready = heads.filter_map(|entry| device.ready(entry, latency)).min()?;
        Some((engine, ready.max(free_since[engine])))
    }

    /// Gives an engine what is ready at this time, the queues in turn.
    fn begin(&mut self, device: usize, engine: usize, time: u64, latency: &Latency) {
        let device = &mut self.devices[device];
        for n in 0..device.queues.len() {
            let place = (device.turn + n) % device.queues.len();
            let entries = &mut self.queues[device.queues[place]].entries;
            let is_ready =
                |entry: &mut Entry| device.ready(entry, latency).is_some_and(|ready| ready <= time);
            let Some(entry) = entries.pop_front_if(is_ready) else { continue };
            device.turn = place + 1;
            device.compressing += usize::from(is_compression(&entry.descriptor));
            let late = if let Some(Mishap::Late(ns)) = entry.mishap { ns } else { 0 };
            let work = latency.work(&entry.descriptor);
            device.engines[engine] = Some(Job { done: time + work + late, entry });
            return;
        }
    }

    fn first_done(&self, device: usize) -> Option<(usize, u64)> {
        let engines = self.devices[device].engines.iter().enumerate();
        let done = engines.filter_map(|(n, job)| job.as_ref().map(|job| (n, job.done)));
        done.min_by_key(|(_, done)| *done)
    }

    fn next_event(&self) -> Option<u64> {
        self.devices.iter().filter_map(|device| device.next.map(|(time, _)| time)).min()
    }

    /// Executes the command of an engine and writes its completion record.
    fn end(&mut self, device: usize, engine: usize, ended: &mut dyn FnMut(u64)) {
        let device = &mut self.devices[device];
        let Some(Job { entry, done }) = device.engines[engine].take() else { return };
        device.free_since[engine] = done;
        let descriptor = &entry.descriptor;
        if is_compression(descriptor) {
            device.compressing -= 1;
            device.compressed = done;
        }
        let mut completion = self.executor.execute(descriptor, &self.memory);
        if entry.mishap == Some(Mishap::Silent) {
            return;
        }
        if let Some(mishap) = entry.mishap {
            spoil(&mut completion, mishap, descriptor, &self.memory);
        }
        match self.executor.complete(descriptor, &completion, &self.memory) {
            true => self.tally.completed += 1,
            false => self.tally.lost += 1,
        }
        ended(descriptor.completion.get());
    }
}

/// What a mishap does to a command that was executed.
fn spoil(done: &mut Completion, mishap: Mishap, descriptor: &Descriptor, memory: &[Region]) {
    match mishap {
        Mishap::Status(status, error) => {
            *done = Completion { status, error, ..Completion::default() };
            flip(descriptor, memory, 0);
        }
        Mishap::WrongCrc => done.crc = (!done.crc.get()).into(),
        Mishap::WrongByte if done.status == status::SUCCESS => {
            flip(descriptor, memory, done.output_size.get() / 2);
        }
        Mishap::WrongSize => done.output_size = (descriptor.destination_size.get() + 1).into(),
        _ => {}
    }
}

/// Changes a byte of the destination.
fn flip(descriptor: &Descriptor, memory: &[Region], offset: u32) {
    let address = descriptor.destination.get() + u64::from(offset);
    if offset < descriptor.destination_size.get()
        && let Some((region, at)) =
            memory.iter().find_map(|region| Some((region, region.find(address, 1)?)))
    {
        region.store(at, region.load(at) ^ 0x10);
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("clock", &self.clock)
            .field("latency", &self.latency)
            .finish_non_exhaustive()
    }
}
