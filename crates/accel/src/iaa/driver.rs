//! The engine: requests into lanes, descriptors into queues, completion records back into outcomes.
//!
//! ```text
//!   start: unit ─copy─► lane ─ descriptor ─► a queue                    none takes it: compressions
//!                                                                       wait in their lane or are
//!   check: record still 0? ── time over? ── lane lost, software ──┐     refused, decompressions are
//!          done ── next step of this request? ── submit again     ├─►   done by software
//!               ── output ─copy─► caller ── lane idle             │  outcome
//!               ── wrong ── software ─────────────────────────────┘
//! ```
//!
//! | request | steps |
//! |---|---|
//! | fixed, canned | compress |
//! | dynamic | count symbols; the code and its header made here; compress |
//! | with `verify` | and decompress: is it as long, with the same checksum? |
//! | decompress | decompress |
//! | any of them with `:by_N` | the same for each part (`parts`) |
//!
//! Invariants:
//! - A lane that was submitted holds one place of its queue until its completion record was seen.
//! - What a device says is doubted: sizes are checked against what was asked before they are used.
//! - `Full` is answered only while a lane of this engine is busy, and a busy lane ends by its
//!   deadline: so whoever waits for room gets it.

mod parts;

pub use parts::MAX_UNITS;

use super::aecs::best_lengths;
use super::fleet::{Fleet, Queue};
use super::lanes::{Lanes, Step, Use, lane_bytes, room_bytes};
use super::tables::{TABLE_BYTES, TABLES, Tables};
use super::wire::{Completion, CompressAecs, Descriptor, error, status};
use super::{Machine, Refused, Region};
use crate::cpu::Cpu;
use crate::request::{
    By, Capabilities, Engine, Failure, Full, Io, Operation, Outcome, Ticket, Why,
};
use alloc::sync::Arc;
use core::fmt;
use octavo_codec::deflate::{GENERAL, GENERAL_IDS, Generation, Generations, Lengths, TableSet};
use octavo_codec::{Codec, DeflateMode};
use octavo_page::{PAGE_SIZE, Unit};
use parts::Units;

/// How an engine is to work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The longest unit, or part of one, that devices get; longer ones are done by software.
    pub unit: Unit,
    /// Whether what a device compressed is decompressed again, and the checksums compared.
    pub verify: bool,
    /// Nanoseconds after which a request is given up and done by software.
    pub timeout_ns: u64,
    /// The processor that the engine works for.
    pub cpu: usize,
}

impl Config {
    /// For units of 4 KiB, not verified, at most 10 ms a request: a full queue of the largest units
    /// takes a device less than 2.
    pub const DEFAULT: Self =
        Self { unit: Unit::K4, verify: false, timeout_ns: 10_000_000, cpu: 0 };
}

/// Why there is no engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewError {
    /// There is no queue of any device.
    NoQueues,
    /// The memory for lanes has this many bytes, which is none for a single one.
    TooLittleMemory(usize),
}

impl fmt::Display for NewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQueues => {
                f.write_str("no IAA work queue can be used; 'octavo doctor' says why")
            }
            Self::TooLittleMemory(bytes) => {
                write!(f, "{bytes} bytes are too few for a single lane of an IAA engine")
            }
        }
    }
}

impl core::error::Error for NewError {}

/// What an engine has done so far, in requests; each part of a unit is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Done by devices.
    pub by_device: u64,
    /// Done by software because the devices do not do such.
    pub not_taken: u64,
    /// Done by software because queues were full, or none was left.
    pub no_room: u64,
    /// Done by software because a device did not answer in time.
    pub timed_out: u64,
    /// Done by software because a device answered with an error, what cannot be, or what is wrong.
    pub failed: u64,
    /// Compressed by a device to something else.
    pub unverified: u64,
}

/// An engine on devices. Owns its lanes; shares the queues.
pub struct Driver<M> {
    machine: M,
    fleet: Arc<Fleet>,
    config: Config,
    lanes: Lanes,
    units: Units,
    tables: Tables,
    software: Cpu,
    /// Where the next compression goes, among the queues for that.
    turn: usize,
    /// The canned table for compressions: general, learnt.
    canned: [usize; 2],
    /// The learnt generation whose tables devices have.
    generation: Option<Generation>,
    stats: Stats,
}

/// No queue takes a command now: there is one that will, or not.
enum Unsubmitted {
    Full,
    NoQueue,
}

/// A request to a device: all of one, or a part.
#[derive(Clone, Copy)]
struct Job<'a> {
    operation: Operation,
    mode: DeflateMode,
    input: &'a [u8],
    /// Bytes that its output may take.
    room: usize,
}

/// How a request begins.
struct Plan {
    step: Step,
    table: Option<u8>,
}

/// How a request ended: its output lies in the lane, or there is none.
enum End {
    Made(u16),
    Failed(Failure, u16),
    Instead(Why),
}

impl<M: Machine> Driver<M> {
    /// Bytes of memory for `lanes` requests at once.
    #[must_use]
    pub const fn memory_for(lanes: usize, unit: Unit) -> usize {
        let lanes = lanes * lane_bytes(unit.bytes());
        TABLE_BYTES.next_multiple_of(PAGE_SIZE) + lanes.next_multiple_of(PAGE_SIZE)
    }

    /// An engine for requests with these codecs, on the queues of `fleet` at `machine`, that works
    /// in `memory`: nothing else may ever use it, as a device may be late. Has a device prepare the
    /// canned tables, if `codecs` want any. Allocates.
    ///
    /// # Errors
    /// [`NewError`].
    pub fn new(
        machine: M,
        fleet: Arc<Fleet>,
        memory: &Region,
        codecs: &[Codec],
        config: Config,
    ) -> Result<Self, NewError> {
        if fleet.queues().is_empty() {
            return Err(NewError::NoQueues);
        }
        let start = TABLE_BYTES.next_multiple_of(PAGE_SIZE);
        let Some(rest) =
            memory.len().checked_sub(start).filter(|rest| *rest >= lane_bytes(config.unit.bytes()))
        else {
            return Err(NewError::TooLittleMemory(memory.len()));
        };
        let lanes = Lanes::new(memory.part(start, rest), config.unit.bytes());
        let mut driver = Self {
            machine,
            lanes,
            units: Units::new(),
            tables: Tables::new(memory.part(0, start)),
            software: Cpu::new(codecs),
            // Engines begin apart, so that a few requests of each are spread, too.
            turn: config.cpu,
            fleet,
            config,
            canned: [0; 2],
            generation: None,
            stats: Stats::default(),
        };
        if codecs.iter().any(Codec::is_canned) {
            driver.set_tables(0, GENERAL_IDS, GENERAL.iter());
        }
        Ok(driver)
    }

    /// The engine works for this processor from now on.
    pub fn move_to(&mut self, cpu: usize) {
        self.config.cpu = cpu;
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Whether devices are done with its memory: none is late with anything.
    pub fn is_idle(&mut self) -> bool {
        self.find_lost();
        self.lanes.lanes.iter().all(|lane| lane.usage == Use::Idle)
    }

    /// Puts tables into the half of places from `first` on and has a device prepare them. One that
    /// no device prepares is for compression only; software decompresses.
    fn set_tables<'a>(&mut self, first: usize, id: u8, lengths: impl Iterator<Item = &'a Lengths>) {
        (first..first + TABLES / 2).for_each(|place| self.tables.clear(place));
        for (n, lengths) in lengths.enumerate() {
            self.tables.set(first + n, id + n as u8, lengths);
            self.prepare(first + n, lengths);
        }
    }

    /// Has a device read the header that a table implies.
    fn prepare(&mut self, place: usize, lengths: &Lengths) {
        let mut header = [0; 300];
        let Ok(bits) = lengths.header(&mut header) else { return };
        let Some(state) = self.tables.state_to_be(place) else { return };
        let Some(lane) = self.idle_lane() else { return };
        self.lanes.set_source(lane, &header[..bits.div_ceil(8)]);
        self.lanes.lanes[lane].destination = self.config.unit.bytes() as u32;
        let at = self.lanes.places(lane, Step::Decompress);
        let unused = bits.next_multiple_of(8) - bits;
        let descriptor = Descriptor::read_header(at, unused, state);
        let Ok(queue) = self.hand_over(lane, Step::Decompress, &descriptor) else { return };
        let deadline = self.machine.now() + self.config.timeout_ns;
        while self.lanes.status(lane) == status::PENDING {
            if self.machine.now() > deadline {
                self.lanes.lanes[lane].usage = Use::Lost(queue);
                self.fleet.queues()[usize::from(queue)].strike();
                self.tables.spoil(place);
                return;
            }
            self.machine.pause();
        }
        self.fleet.queues()[usize::from(queue)].give_back();
        if self.lanes.status(lane) == status::SUCCESS {
            self.tables.found_state(place);
        }
    }

    /// What a request needs of a device; `None` for what devices do not do.
    fn plan(&self, job: &Job<'_>) -> Option<Plan> {
        let unit_bytes = self.config.unit.bytes();
        let is_short = match job.operation {
            Operation::Compress => job.input.len() <= unit_bytes,
            Operation::Decompress => {
                job.input.len() <= room_bytes(unit_bytes) && job.room <= unit_bytes
            }
        };
        if !is_short || job.input.is_empty() {
            return None;
        }
        match job.operation {
            Operation::Compress => {
                let step = match job.mode {
                    DeflateMode::Dynamic => Step::Count,
                    _ => Step::Compress,
                };
                let place = match job.mode {
                    DeflateMode::CannedGeneral => Some(self.canned[0]),
                    DeflateMode::Canned => Some(self.canned[1]),
                    DeflateMode::Fixed | DeflateMode::Dynamic => None,
                };
                // One byte of a canned unit says which table it is.
                let least = 1 + usize::from(place.is_some());
                let has_table = place.is_none_or(|place| self.tables.compress(place).is_some());
                (job.room >= least && has_table)
                    .then_some(Plan { step, table: place.map(|place| place as u8) })
            }
            Operation::Decompress => {
                let table = match (job.mode.is_canned(), job.input) {
                    (false, _) => None,
                    (true, [id, _, ..]) => {
                        let place = self.tables.find(*id).filter(|place| self.is_good(*place))?;
                        self.tables.state(place)?;
                        Some(place as u8)
                    }
                    (true, _) => return None,
                };
                Some(Plan { step: Step::Decompress, table })
            }
        }
    }

    /// Whether the table in `place` is still what its id stands for: of learnt ones there may be others.
    fn is_good(&self, place: usize) -> bool {
        place < TableSet::MAX
            || self.software.learnt().zip(self.generation).is_some_and(|(all, g)| all.is_there(g))
    }

    fn idle_lane(&mut self) -> Option<usize> {
        self.find_lost();
        self.lanes.idle()
    }

    fn find_lost(&mut self) {
        let Self { lanes, fleet, .. } = self;
        lanes.find_lost().for_each(|queue| fleet.queues()[usize::from(queue)].give_back());
    }

    /// Puts a request into a lane.
    fn load(&mut self, lane: usize, job: &Job<'_>, plan: &Plan) {
        let table_byte = usize::from(plan.table.is_some());
        let (source, room) = match job.operation {
            Operation::Compress => {
                (job.input, (job.room - table_byte).min(room_bytes(self.config.unit.bytes())))
            }
            Operation::Decompress => (&job.input[table_byte..], job.room),
        };
        self.lanes.set_source(lane, source);
        let place = plan.table.map(usize::from);
        let aecs = place.and_then(|place| self.tables.compress(place)).map(|(_, aecs)| aecs);
        let books = &mut self.lanes.lanes[lane];
        books.destination = room as u32;
        books.table = plan.table;
        books.aecs = aecs.unwrap_or(self.tables.fixed());
        books.looks = 0;
        books.deadline = None;
    }

    /// Submits the step of a lane.
    fn submit(&mut self, lane: usize, step: Step) -> Result<(), Unsubmitted> {
        let at = self.lanes.places(lane, step);
        let books = &self.lanes.lanes[lane];
        let state = || books.table.and_then(|place| self.tables.state(place.into()));
        let descriptor = match step {
            Step::Count => Descriptor::count(at),
            Step::Compress => Descriptor::compress(at, books.aecs),
            Step::Verify | Step::Decompress => Descriptor::decompress(at, state()),
        };
        let queue = self.hand_over(lane, step, &descriptor)?;
        self.lanes.lanes[lane].usage = Use::Submitted(step, queue);
        Ok(())
    }

    /// Hands a descriptor to a queue for such steps.
    fn hand_over(
        &mut self,
        lane: usize,
        step: Step,
        descriptor: &Descriptor,
    ) -> Result<u16, Unsubmitted> {
        self.lanes.clear(lane);
        let is_compression = matches!(step, Step::Count | Step::Compress);
        let cpu = self.config.cpu;
        let (queues, first) = if is_compression {
            let queues = self.fleet.compress(cpu);
            (queues, self.turn % queues.len().max(1))
        } else {
            self.fleet.decompress(cpu)
        };
        let mut none = Unsubmitted::NoQueue;
        for n in 0..queues.len() {
            let place = (first + n) % queues.len();
            let number = queues[place];
            let queue = &self.fleet.queues()[usize::from(number)];
            if !queue.is_alive() {
                continue;
            }
            if self.machine_takes(queue, number, descriptor) {
                queue.count(is_compression);
                if is_compression {
                    self.turn = place + 1;
                }
                return Ok(number);
            }
            if queue.is_alive() {
                none = Unsubmitted::Full;
                // A processor's decompressions go to its own queue as long as that is alive.
                if !is_compression {
                    break;
                }
            }
        }
        Err(none)
    }

    fn machine_takes(&self, queue: &Queue, number: u16, descriptor: &Descriptor) -> bool {
        if !queue.take() {
            return false;
        }
        let taken = self.machine.submit(number.into(), descriptor);
        if taken.is_err() {
            queue.give_back();
        }
        if taken == Err(Refused::Gone) {
            queue.give_up();
        }
        taken.is_ok()
    }

    /// Takes a request of one piece on.
    fn start_job(&mut self, job: &Job<'_>) -> Result<Ticket, Full> {
        let Some(plan) = self.plan(job) else {
            return Ok(Ticket::Software(By::CpuInstead(Why::NotTaken)));
        };
        let Some(lane) = self.idle_lane() else {
            return if self.lanes.is_any_busy() {
                Err(Full)
            } else {
                // All are lost.
                Ok(Ticket::Software(By::CpuInstead(Why::NoQueue)))
            };
        };
        self.load(lane, job, &plan);
        match self.submit(lane, plan.step) {
            Ok(()) => Ok(Ticket::Lane(lane as u16)),
            Err(Unsubmitted::Full) => self.crowded(job.operation, Why::QueueFull),
            Err(Unsubmitted::NoQueue) => self.crowded(job.operation, Why::NoQueue),
        }
    }

    /// No queue for a new request: told, if room will come of itself, else done here.
    fn crowded(&self, operation: Operation, why: Why) -> Result<Ticket, Full> {
        let waits = operation == Operation::Compress && why != Why::NoQueue;
        if waits && self.lanes.is_any_busy() {
            return Err(Full);
        }
        Ok(Ticket::Software(By::CpuInstead(why)))
    }

    /// Looks after a lane, until its request has ended.
    fn look(&mut self, lane: usize) -> Option<End> {
        match self.lanes.lanes[lane].usage {
            Use::Waiting(step) => match self.submit(lane, step) {
                Ok(()) => None,
                Err(Unsubmitted::Full) => self.is_late(lane).then(|| {
                    self.lanes.lanes[lane].usage = Use::Idle;
                    End::Instead(Why::QueueFull)
                }),
                Err(Unsubmitted::NoQueue) => {
                    self.lanes.lanes[lane].usage = Use::Idle;
                    Some(End::Instead(Why::NoQueue))
                }
            },
            Use::Submitted(step, queue) => {
                if self.lanes.status(lane) != status::PENDING {
                    return self.answered(lane, step, queue);
                }
                self.is_late(lane).then(|| {
                    self.lanes.lanes[lane].usage = Use::Lost(queue);
                    self.fleet.queues()[usize::from(queue)].strike();
                    End::Instead(Why::TimedOut)
                })
            }
            Use::Idle | Use::Made | Use::Lost(_) => unreachable!("a ticket that is void"),
        }
    }

    /// Whether a lane's time is over. Reading the clock costs as much as many looks, so time begins
    /// when some have found nothing.
    fn is_late(&mut self, lane: usize) -> bool {
        let books = &mut self.lanes.lanes[lane];
        books.looks = books.looks.wrapping_add(1);
        if !books.looks.is_multiple_of(16) {
            return false;
        }
        let now = self.machine.now();
        now > *books.deadline.get_or_insert(now + self.config.timeout_ns)
    }

    /// A step is done: the next one, or the end.
    fn answered(&mut self, lane: usize, step: Step, queue: u16) -> Option<End> {
        let completion = self.lanes.completion(lane);
        let books = &self.fleet.queues()[usize::from(queue)];
        books.give_back();
        self.lanes.lanes[lane].usage = Use::Idle;
        if completion.status.wrapping_sub(status::HARDWARE) < 3 {
            books.strike();
        } else {
            books.answered();
        }
        match self.after(lane, step, &completion) {
            Next::Step(step) => {
                self.lanes.lanes[lane].usage = Use::Waiting(step);
                self.look(lane)
            }
            Next::Made => {
                self.lanes.lanes[lane].usage = Use::Made;
                self.stats.by_device += 1;
                Some(End::Made(queue))
            }
            Next::Failed(failure) => {
                self.stats.by_device += 1;
                self.stats.unverified += u64::from(failure == Failure::Unverified);
                Some(End::Failed(failure, queue))
            }
            Next::Instead(why) => Some(End::Instead(why)),
        }
    }

    /// What a completed step leads to.
    fn after(&mut self, lane: usize, step: Step, done: &Completion) -> Next {
        let wrong = Next::Instead(Why::Status(done.status, done.error));
        let is_good = done.status == status::SUCCESS;
        let books = &self.lanes.lanes[lane];
        match step {
            Step::Count if is_good => self.counted(lane),
            Step::Compress if is_good => self.compressed(lane, done),
            Step::Compress if does_not_fit(done) => Next::Failed(Failure::DoesNotFit),
            // Not the checksum alone: zeros behind four bytes of ones leave that as it is.
            Step::Verify
                if is_good
                    && done.crc.get() == books.crc
                    && done.output_size.get() == books.source =>
            {
                Next::Made
            }
            Step::Verify if is_good || is_bad_stream(done) => Next::Failed(Failure::Unverified),
            Step::Decompress if is_good && done.output_size.get() == books.destination => {
                Next::Made
            }
            Step::Decompress if is_good => Next::Instead(Why::Implausible),
            _ => wrong,
        }
    }

    /// Symbols are counted: the code that suits them.
    fn counted(&mut self, lane: usize) -> Next {
        let lengths = best_lengths(&self.lanes.histogram(lane).counted());
        // A header too long for a device is no better than none.
        let aecs = lengths.and_then(|lengths| CompressAecs::dynamic(&lengths).ok());
        if let Some(aecs) = aecs {
            self.lanes.lanes[lane].aecs = self.lanes.set_aecs(lane, &aecs);
        }
        Next::Step(Step::Compress)
    }

    fn compressed(&mut self, lane: usize, done: &Completion) -> Next {
        let books = &mut self.lanes.lanes[lane];
        let size = done.output_size.get();
        if size == 0 || size > books.destination {
            return Next::Instead(Why::Implausible);
        }
        books.destination = size;
        books.crc = done.crc.get();
        if !self.config.verify {
            return Next::Made;
        }
        // A canned body that no device can read cannot be verified.
        let has_state = books.table.is_none_or(|place| self.tables.state(place.into()).is_some());
        if has_state { Next::Step(Step::Verify) } else { Next::Instead(Why::NotTaken) }
    }

    /// Gives the caller what was made, and the lane back.
    ///
    /// # Errors
    /// [`Failure::DoesNotFit`] when there is less room than there was at first.
    fn deliver(&mut self, lane: usize, io: &mut Io<'_>) -> Result<usize, Failure> {
        self.lanes.lanes[lane].usage = Use::Idle;
        let books = &self.lanes.lanes[lane];
        let place = books.table.filter(|_| io.operation == Operation::Compress);
        let id = place.and_then(|place| self.tables.compress(place.into())).map(|(id, _)| id);
        let id = id.as_slice();
        let size = id.len() + books.destination as usize;
        let output = io.output.get_mut(..size).ok_or(Failure::DoesNotFit)?;
        let (first, rest) = output.split_at_mut(id.len());
        first.copy_from_slice(id);
        self.lanes.destination(lane, rest);
        Ok(size)
    }

    /// Does a request by software.
    fn instead(&mut self, io: &mut Io<'_>, why: Why) -> Outcome {
        let count = match why {
            Why::NotTaken => &mut self.stats.not_taken,
            Why::QueueFull | Why::NoQueue => &mut self.stats.no_room,
            Why::TimedOut => &mut self.stats.timed_out,
            Why::Status(..) | Why::Implausible | Why::Doubted => &mut self.stats.failed,
        };
        *count += 1;
        self.software.run_as(By::CpuInstead(why), io)
    }
}

/// What a completed step leads to.
enum Next {
    Step(Step),
    Made,
    Failed(Failure),
    Instead(Why),
}

/// Whether what was to be decompressed is at fault.
fn is_bad_stream(done: &Completion) -> bool {
    matches!(done.status, status::ANALYTICS | status::OUTPUT_OVERFLOW)
}

/// Whether a compression ended because its output was full.
fn does_not_fit(done: &Completion) -> bool {
    done.status == status::OUTPUT_OVERFLOW
        || done.status == status::ANALYTICS && done.error == error::DOES_NOT_FIT
}

impl<M: Machine> Engine for Driver<M> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            depth: self.lanes.lanes.len(),
            unit_bytes: self.config.unit.bytes(),
            is_asynchronous: true,
        }
    }

    fn takes(&self, _: Operation, codec: Codec) -> bool {
        matches!(codec, Codec::Deflate { .. })
    }

    fn start(&mut self, io: &Io<'_>) -> Result<Ticket, Full> {
        // What was taken on comes first, or it might never have a lane.
        if self.units.is_any_waiting() {
            return Err(Full);
        }
        let Codec::Deflate { mode, parts, .. } = io.codec else {
            return Ok(Ticket::Software(By::CpuInstead(Why::NotTaken)));
        };
        match parts.count() {
            Some(n) => self.start_unit(io, mode, n),
            None => {
                let Io { operation, input, ref output, .. } = *io;
                self.start_job(&Job { operation, mode, input, room: output.len() })
            }
        }
    }

    fn check(&mut self, ticket: Ticket, io: &mut Io<'_>) -> Option<Outcome> {
        match ticket {
            Ticket::Software(By::CpuInstead(why)) => Some(self.instead(io, why)),
            Ticket::Software(_) => unreachable!("a ticket of another engine"),
            Ticket::Lane(lane) => {
                let lane = lane.into();
                Some(match self.look(lane)? {
                    End::Made(queue) => {
                        Outcome { result: self.deliver(lane, io), by: By::Queue(queue) }
                    }
                    End::Failed(failure, queue) => {
                        Outcome { result: Err(failure), by: By::Queue(queue) }
                    }
                    End::Instead(why) => self.instead(io, why),
                })
            }
            Ticket::Unit(place) => self.check_unit(place.into(), io),
        }
    }

    fn abandon(&mut self, ticket: Ticket) {
        match ticket {
            Ticket::Software(_) => {}
            Ticket::Lane(lane) => self.lanes.give_up(lane.into()),
            Ticket::Unit(place) => self.give_unit_up(place.into()),
        }
    }

    fn pause(&mut self) {
        self.machine.pause();
    }

    fn set_learnt(&mut self, learnt: &Arc<Generations>) {
        self.software.set_learnt(learnt);
    }

    /// Devices get the first table of the generation, software any; both are read by all of them.
    fn compress_with(&mut self, generation: Generation) {
        self.software.compress_with(generation);
        let learnt = self.software.learnt().filter(|_| self.generation != Some(generation));
        let Some(learnt) = learnt.cloned() else { return };
        let is_idle = !self.lanes.is_any_busy() && self.units.is_empty();
        debug_assert!(is_idle, "tables are changed between batches");
        let Some(tables) = learnt.tables(generation.place()) else { return };
        let lengths = tables.tables().iter().map(|table| table.lengths());
        self.set_tables(TableSet::MAX, generation.first_id(), lengths);
        (self.canned[1], self.generation) = (TableSet::MAX, Some(generation));
    }

    fn run_again(&mut self, io: &mut Io<'_>) -> Outcome {
        self.instead(io, Why::Doubted)
    }
}

impl<M> fmt::Debug for Driver<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("config", &self.config)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
