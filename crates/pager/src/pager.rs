//! The pager: everything that its servers, evictors and watch share.
//!
//! Locks, in the order they are taken: the condenser, the shrinker, an area (only ever tried), the gate, the
//! changes, the nursery, the regions or the unlisted ranges, the sweep; and by itself, where helpers are
//! bound. The store and the pool have locks of their own inside, taken after these. Nothing else is held
//! while waiting.

use crate::arena::PoolArena;
use crate::backoff::Backoff;
use crate::budget::{Budget, TIERS};
use crate::changes::Changes;
use crate::condense::Condenser;
use crate::evict::{Area, Bell, Sweep};
use crate::gate::Gate;
use crate::locality::Locality;
use crate::placement::Placement;
use crate::program::{BATCH, Program};
use crate::regions::{Regions, Span};
use crate::serve::{Decoded, Fault, RUN};
use crate::sharing;
use crate::shrink::Shrinker;
use crate::stream::Stream;
use crate::table::Table;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::time::Duration;
use octavo_accel::{AnyEngine, Engines};
use octavo_backing::Lost;
use octavo_codec::deflate::{Level, TableFile};
use octavo_codec::{Codec, DeflateMode};
use octavo_ledger::counters::{Counter, Counters};
use octavo_ledger::{Ledger, Member};
use octavo_page::config::BackingConfig;
use octavo_page::sync::Mutex;
use octavo_page::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use octavo_page::{ChainLength, EngineKind, PAGE_SIZE, SlotId, Unit};
use octavo_store::{How, Scratch, Store};
use octavo_sys::file::{Fd, Text};
use octavo_sys::maps::Maps;
use octavo_sys::proc::Statm;
use octavo_sys::task;

/// Evictors, at most: more than the CPUs would only wait for each other.
pub const MAX_EVICTORS: usize = 4;

/// Batches between being taken and being stored, at most: one for each evictor, one for the server,
/// and as many again that the server has set aside.
const AREAS: usize = 2 * (1 + MAX_EVICTORS);

/// Slots that wait to be freed, at most.
const LEFT: usize = 64;

/// Slots whose pages came back. They are freed many at a time, for which the slot allocator and the counters
/// are gone to once, and not for each fault, which is waited for.
#[derive(Debug)]
pub(crate) struct Left {
    slots: [SlotId; LEFT],
    len: usize,
}

impl Left {
    /// Notes one more; there is room unless this [`is_full`](Self::is_full).
    pub fn push(&mut self, slot: SlotId) {
        self.slots[self.len] = slot;
        self.len += 1;
    }

    /// Whether those of one more run of pages may find no room.
    pub const fn is_full(&self) -> bool {
        self.len + RUN > LEFT
    }

    /// All of them; then there are none.
    pub fn take(&mut self) -> &[SlotId] {
        &self.slots[..core::mem::take(&mut self.len)]
    }
}

impl Default for Left {
    fn default() -> Self {
        Self { slots: [SlotId::new(0); LEFT], len: 0 }
    }
}

/// Faults read and not yet answered, at most: one for each thread that waits.
const QUEUE: usize = 256;

/// How a job is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes that the whole job may occupy.
    pub limit: u64,
    /// End the job rather than go over the limit.
    pub strict: bool,
    /// What pages are compressed with: as long as there is room, when the store takes much of the
    /// limit, and when it takes most of it.
    pub ladders: Ladders,
    /// Tables for canned units that learn theirs, if any were given: then none are learnt.
    pub tables: Option<TableFile>,
    /// The longest zspage of the pool.
    pub chain: ChainLength,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// What does the work. The CPU where there are no such engines in a process.
    pub engine: EngineKind,
    /// Where the oldest pages go, if anywhere.
    pub backing: Option<BackingConfig>,
}

impl Config {
    /// Evictors of the job: one for each CPU, of which the last is a reserve.
    #[must_use]
    pub fn evictors(&self) -> usize {
        self.cpus.clamp(1, MAX_EVICTORS)
    }

    /// The longest unit that devices are to get, if they get any.
    fn device_unit(&self) -> Unit {
        let deflated =
            |tier: Tier| matches!(tier.codec, Codec::Deflate { .. }).then_some(tier.unit);
        self.ladders.tiers().filter_map(deflated).max().unwrap_or(Unit::K4)
    }

    /// At which level tables are to be learnt for canned units, and how long those are at most.
    pub(crate) fn learns(&self) -> Option<(Level, Unit)> {
        let learns = |tier: Tier| match tier.codec {
            Codec::Deflate { mode: DeflateMode::Canned, level, .. } => Some((level, tier.unit)),
            _ => None,
        };
        // The codec that was asked for is that of all tiers.
        self.ladders.tiers().filter_map(learns).max_by_key(|(_, unit)| *unit)
    }

    /// What the engines of this process share; the CPU where what was asked for cannot be opened.
    pub(crate) fn engines(&self) -> Engines {
        Engines::open(self.engine).unwrap_or(Engines::cpu())
    }

    /// An engine for the calling helper.
    fn engine(&self, engines: &Engines) -> AnyEngine {
        engines.engine(&self.ladders.codecs(), self.device_unit(), task::cpu())
    }
}

/// Ways to compress, from fast to dense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ladders {
    /// Where what lies beside a wanted page is wanted soon as well.
    pub runs: [Tier; TIERS],
    /// Where it is not.
    pub jumps: [Tier; TIERS],
}

impl Ladders {
    /// For what is left alone: single pages, which take least time to come back, by the next denser codec.
    pub(crate) const fn at_leisure(&self) -> Tier {
        self.jumps[1]
    }

    fn tiers(&self) -> impl Iterator<Item = Tier> {
        self.runs.into_iter().chain(self.jumps)
    }

    /// What compresses in any of them.
    fn codecs(&self) -> [Codec; 2 * TIERS] {
        let mut codecs = [Codec::Lz4; 2 * TIERS];
        codecs.iter_mut().zip(self.tiers()).for_each(|(codec, tier)| *codec = tier.codec);
        codecs
    }
}

/// A way to compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tier {
    /// What compresses.
    pub codec: Codec,
    /// What is compressed as one.
    pub unit: Unit,
}

/// What all helpers share.
pub struct Pager {
    pub(crate) config: Config,
    pub(crate) program: Program,
    pub(crate) maps: Maps,
    pub(crate) gate: Gate,
    pub(crate) table: Table,
    pub(crate) changes: Mutex<Changes>,
    pub(crate) regions: Mutex<Regions>,
    /// Ranges that are registered as well, or parts of which are, but are not evicted from.
    pub(crate) unlisted: Mutex<Regions>,
    pub(crate) sweep: Mutex<Sweep>,
    pub(crate) condenser: Mutex<Condenser>,
    pub(crate) shrinker: Mutex<Shrinker>,
    pub(crate) store: Store<PoolArena>,
    /// What the workers' engines share. Those of a forked child are its own.
    pub(crate) engines: Engines,
    pub(crate) budget: Budget,
    /// What the processes of the job know of each other, and this one's place in it.
    pub(crate) ledger: &'static Ledger,
    pub(crate) member: &'static Member,
    pub(crate) keeper: i32,
    pub(crate) counters: &'static Counters,
    pub(crate) bell: Bell,
    pub(crate) placement: Placement,
    /// This address space's `statm`, and when it was last looked at, in microseconds.
    pub(crate) statm: Fd,
    looked_at: AtomicU64,
    /// Pages of registered ranges that were unmapped so far.
    pub(crate) unmapped: Counter,
    /// Pages shared with other processes that we have made the program's own.
    pub(crate) owned: Counter,
    stuck: AtomicBool,
    /// Whether the pages that the sweep has come to lie scattered.
    pub(crate) scattered: AtomicBool,
    /// Whether what lies beside a page that is wanted is seldom wanted soon.
    pub(crate) jumps: AtomicBool,
    /// Whether pages that do not compress are stored as they are: a file takes them.
    pub(crate) keeps_raw: AtomicBool,
    pub(crate) areas: Box<[Area]>,
    armed: AtomicBool,
    pub(crate) target: Fd,
}

/// What one helper has for itself: memory to compress and decode in, made once.
pub struct Worker {
    pub(crate) number: usize,
    pub(crate) scratch: Scratch<AnyEngine>,
    /// What a run of stored pages is decoded into.
    pub(crate) run: Box<[u8]>,
    /// What is in there still, since it could not be brought yet.
    pub(crate) decoded: Option<Decoded>,
    pub(crate) backoff: Backoff,
    pub(crate) stream: Stream,
    pub(crate) locality: Locality,
    pub(crate) page: Box<[u8]>,
    pub(crate) faults: Queue,
    /// Slots of pages that came back; in a forked child too, whose store has them as well.
    pub(crate) left: Left,
    /// Whether it is taking batches that others will store.
    pub(crate) takes: bool,
    /// Where the last run of fresh pages ended: a write there goes on in order.
    pub(crate) fresh_end: usize,
    /// When it looks at the tables next, for what can be put into huge pages.
    pub(crate) looks_at_tables: Duration,
}

impl Worker {
    /// The worker with this number, at most [`MAX_EVICTORS`]; number 0 reads the events.
    #[must_use]
    pub fn new(number: usize, pager: &Pager) -> Self {
        let mut scratch = Scratch::with(pager.config.engine(&pager.engines));
        pager.store.tell_tables(&mut scratch);
        if number > 0 {
            scratch.offer_units();
        }
        Self {
            number,
            scratch,
            run: alloc::vec![0; RUN * PAGE_SIZE].into_boxed_slice(),
            decoded: None,
            backoff: Backoff::NEW,
            stream: Stream::default(),
            locality: Locality::default(),
            page: alloc::vec![0; PAGE_SIZE].into_boxed_slice(),
            faults: Queue::default(),
            left: Left::default(),
            takes: false,
            fresh_end: 0,
            looks_at_tables: Duration::ZERO,
        }
    }

    /// Forgets what was under way: in a forked child that was the parent's. So is the memory that devices
    /// work in, and not inherited; the codecs of the CPU are.
    pub(crate) fn begin_anew(&mut self, pager: &Pager) {
        (self.stream, self.faults) = (Stream::default(), Queue::default());
        self.locality = Locality::default();
        (self.takes, self.fresh_end) = (false, 0);
        self.scratch.take_work();
        self.scratch.forget_file();
        if pager.config.engine != EngineKind::Cpu {
            let engine = pager.config.engine(&pager.engines);
            // The descriptors it would close are not ours any more.
            core::mem::forget(core::mem::replace(self.scratch.engine(), engine));
            pager.store.tell_tables(&mut self.scratch);
        }
    }

    /// Whether this is the server, which reads the events.
    pub(crate) const fn is_server(&self) -> bool {
        self.number == 0
    }
}

/// Faults read and not yet answered, in order; and where those were for which there was no room.
#[derive(Debug)]
pub struct Queue {
    faults: [Option<Fault>; QUEUE],
    first: usize,
    len: usize,
    left_out: Option<Span>,
}

impl Default for Queue {
    fn default() -> Self {
        Self { faults: [None; QUEUE], first: 0, len: 0, left_out: None }
    }
}

impl Queue {
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a fault. One that there is no room for waits on, until [`Queue::left_out`] is woken: were
    /// it woken at once, its thread would be back at once, and since the kernel gives faults before
    /// events, an event might never be read.
    pub(crate) fn push(&mut self, fault: Fault) {
        if self.len < QUEUE {
            self.faults[(self.first + self.len) % QUEUE] = Some(fault);
            self.len += 1;
        } else {
            let Span { start, end } = fault.span();
            let before = self.left_out.take().unwrap_or(start..end);
            self.left_out = Some(before.start.min(start)..before.end.max(end));
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Fault> {
        let fault = self.faults[self.first].take()?;
        self.first = (self.first + 1) % QUEUE;
        self.len -= 1;
        Some(fault)
    }

    /// Where threads wait who are to look again, when all faults before theirs are answered.
    pub(crate) fn left_out(&mut self) -> Option<Span> {
        if self.is_empty() { self.left_out.take() } else { None }
    }
}

/// Parts that are made before the pager.
pub struct Parts {
    /// Access to the program's memory.
    pub program: Program,
    /// The list of its mappings.
    pub maps: Maps,
    /// Where pages go.
    pub store: Store<PoolArena>,
    /// The process that is managed.
    pub target: Fd,
    /// The job's ledger.
    pub ledger: &'static Ledger,
    /// This process's place there.
    pub member: &'static Member,
    /// The process that keeps it.
    pub keeper: i32,
}

/// The watch is late when it has not looked for so long: it does each millisecond, near the limit.
const LATE: Duration = Duration::from_millis(3);

/// Registered ranges, at most; the kernel allows a process 65,530 mappings.
const MAX_REGIONS: usize = 32 << 10;

/// Registered ranges that are not listed, at most.
const MAX_UNLISTED: usize = 4 << 10;

/// Leaves of the table: 512 GiB of addresses.
const MAX_LEAVES: usize = 32 << 10;

impl Pager {
    /// A pager that manages nothing yet.
    ///
    /// # Errors
    /// When the staging areas cannot be made.
    pub fn new(config: Config, parts: Parts) -> octavo_sys::Result<Self> {
        let Parts { program, maps, store, target, ledger, member, keeper } = parts;
        let areas: Vec<_> = program.staging(AREAS)?.map(Area::new).collect();
        let statm = Statm::open()?;
        Ok(Self {
            config,
            program,
            maps,
            gate: Gate::new(),
            table: Table::new(MAX_LEAVES),
            changes: Mutex::new(Changes::new()),
            regions: Mutex::new(Regions::new(MAX_REGIONS)),
            unlisted: Mutex::new(Regions::new(MAX_UNLISTED)),
            sweep: Mutex::new(Sweep::default()),
            condenser: Mutex::new(Condenser::default()),
            shrinker: Mutex::new(Shrinker::default()),
            store,
            engines: config.engines(),
            budget: Budget::new(config.limit / PAGE_SIZE as u64),
            ledger,
            member,
            keeper,
            counters: &member.counters,
            bell: Bell::default(),
            placement: Placement::new(),
            statm,
            looked_at: AtomicU64::new(0),
            unmapped: Counter::default(),
            owned: Counter::default(),
            stuck: AtomicBool::new(false),
            scattered: AtomicBool::new(false),
            jumps: AtomicBool::new(false),
            keeps_raw: AtomicBool::new(config.backing.is_some()),
            areas: areas.into_boxed_slice(),
            armed: AtomicBool::new(false),
            target,
        })
    }

    /// Whether everything is registered.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// Notes that the program uses `pages`, as was seen at `now`. Where that is too much, and there is something
    /// to evict, the evictors may take time from it.
    pub(crate) fn measured(&self, pages: u64, now: Duration) {
        self.looked_at.store(now.as_micros() as u64, Ordering::Relaxed);
        self.budget.measured(pages);
        if self.budget.is_passed() && !self.is_stuck() {
            self.placement.relieve();
        }
    }

    /// For the server: measures what is used, if the watch is late.
    pub(crate) fn measure_if_late(&self, now: Duration) {
        let looked_at = Duration::from_micros(self.looked_at.load(Ordering::Relaxed));
        if now.saturating_sub(looked_at) >= LATE {
            self.measure(now);
        }
    }

    /// For the server: measures what is used. What is shared only the watch can tell.
    pub(crate) fn measure(&self, now: Duration) {
        if sharing::shares() {
            return;
        }
        if let Some(statm) = Statm::read(&self.statm) {
            self.measured(statm.anonymous(), now);
        }
    }

    /// Whether the last round of the sweep found nothing to evict.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    pub(crate) fn note_stuck(&self, stuck: bool) {
        self.stuck.store(stuck, Ordering::Relaxed);
    }

    /// Whether the program, all its threads, has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.target.is_readable()
    }

    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::Release);
    }

    pub(crate) fn note_parked_address(&self, parked: u32, address: usize) {
        let area = &self.areas[parked as usize / BATCH];
        area.staging.note_address(parked as usize % BATCH, address);
    }

    /// Counts what the engine of `worker` has done since this was last called.
    pub(crate) fn note_work(&self, worker: &mut Worker) {
        let work = worker.scratch.take_work();
        let counters = [
            (&self.counters.cpu_requests, work.by_cpu),
            (&self.counters.device_requests, work.by_devices),
            (&self.counters.instead_requests, work.by_cpu_instead),
            (&self.counters.file_reads, worker.scratch.take_reads()),
        ];
        let some = counters.into_iter().filter(|(_, requests)| *requests > 0);
        some.for_each(|(counter, requests)| counter.add(requests));
    }

    /// How pages are compressed at present.
    pub(crate) fn tier(&self) -> Tier {
        self.tier_at(self.budget.density())
    }

    /// How they are where the store is to be as dense as that.
    pub(crate) fn tier_at(&self, density: usize) -> Tier {
        let Ladders { runs, jumps } = &self.config.ladders;
        let ladder = if self.jumps.load(Ordering::Relaxed) { jumps } else { runs };
        ladder[density]
    }

    /// How a batch is stored by `codec` in units of `unit`: they must shrink by an eighth.
    pub(crate) fn how(&self, Tier { codec, unit }: Tier) -> How {
        let fits_in = unit.bytes() / 8 * 7;
        let cpu = task::cpu() % self.config.cpus;
        // Folios are units here, and one that does not compress goes back where it was.
        How { codec, unit, cpu, fits_in, refusal_bytes: 0 }
    }

    /// Ends the program and ourselves with a message: going on would mean wrong contents.
    pub(crate) fn die(&self, why: &str) -> ! {
        let mut line = Text::<256>::new();
        let _ = core::fmt::write(&mut line, format_args!("octavo: {why}; the program is ended\n"));
        self.say(line.as_bytes());
        let _ = task::kill(&self.target);
        task::exit_group(125)
    }

    /// Writes a line to the program's standard error, if that takes it without waiting.
    pub(crate) fn say(&self, line: &[u8]) {
        task::tell(&self.target, line);
    }

    pub(crate) fn say_lost(&self, page: usize, in_file: Option<Lost>) {
        const LOST: &str = "the page is lost, and touching it raises SIGBUS";
        let mut line = Text::<256>::new();
        let _ = write!(line, "octavo: the stored copy of the page at {page:#x} ");
        let _ = match in_file {
            None => writeln!(line, "is damaged; {LOST}"),
            Some(lost) => writeln!(line, "cannot be read ({lost}); {LOST}"),
        };
        self.say(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_find_no_room_are_woken_when_all_before_them_are_answered() {
        let fault = |n: usize| Fault { page: n * PAGE_SIZE, write: false, thread: 0 };
        let mut queue = Queue::default();
        (0..QUEUE + 3).map(|n| QUEUE + 3 - n).for_each(|n| queue.push(fault(n)));
        assert_eq!(queue.left_out(), None);
        let queued = core::iter::from_fn(|| queue.pop()).map(|fault| fault.page / PAGE_SIZE);
        assert!(queued.eq((4..QUEUE + 4).rev()));
        assert_eq!(queue.left_out(), Some(PAGE_SIZE..4 * PAGE_SIZE));
        assert_eq!(queue.left_out(), None);
    }
}
