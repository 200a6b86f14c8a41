//! `make allmodconfig` with 32 jobs in a cgroup of 2 GB, in tmpfs.
//!
//! ```text
//!   32 jobs:  a unit ── folio ── fault ── user's work ── touch some older pages ──┐
//!               │         └────────────────── until it has its size ◄────────────┘
//!               └── free everything ── the next unit
//! ```
//!
//! A job compiles one unit after the other. A unit grows to its size while it works, and touches pages
//! that it has had for a while; one that went out comes back, alone, and is a single page from then on.
//! Contents are pages of gcc. The size of units and the mix of folios are given; how much is
//! allocated for a second of user's work and how often old pages are touched is fitted to what zstd's column stores and
//! loads, and what else the kernel does to its seconds.
//!
//! The memory is an eighth of the series'. Of the time a part is simulated, once units differ in age;
//! what it counts is for so much of the user's work as was done in it.

use super::costs::{Build, Page as Costs};
use super::machine::CPUS;
use super::memory::{Contents, Counters, Group, Limit, Process};
use super::rig::{Calls, Rig};
use super::turns::Nanos;
use super::zswap::Zswap;
use crate::random::Random;
use octavo_page::{Order, PAGE_SIZE};
use std::rc::Rc;

const JOBS: usize = 32;
/// Pages that are faulted in by folios of one size, or one by one.
const BLOCK: usize = 16;
const LIMIT: u64 = 2 << 30;

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub rig: Rig,
    pub costs: Costs,
    pub build: Build,
    /// The memory is this part of the series'.
    pub scale: u64,
    /// Virtual time until units differ in age, and then until the end.
    pub warm: Nanos,
    pub span: Nanos,
    pub seed: u64,
    /// As for usemem.
    pub check_every: usize,
}

/// What came of it, for the whole build.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Outcome {
    /// Seconds.
    pub real: f64,
    /// Seconds, of all jobs.
    pub sys: f64,
    pub counters: Counters,
    pub calls: Vec<Calls>,
    /// Pages read back and compared, in this run.
    pub checked: u64,
    /// Pages left in the store when all have ended.
    pub left: usize,
    /// Requests that software did in place of a device.
    pub by_software: u64,
}

/// Pages of gcc, any of them anywhere.
struct Sample {
    pages: Vec<[u8; PAGE_SIZE]>,
}

impl Sample {
    fn new() -> Self {
        let bytes = include_bytes!("../../../../../testdata/gcc.pages");
        Self { pages: bytes.as_chunks().0.to_vec() }
    }
}

impl Contents for Sample {
    fn write(&self, serial: u32, first: usize, pages: &mut [u8]) {
        for (n, page) in (first..).zip(pages.as_chunks_mut::<PAGE_SIZE>().0) {
            let mixed = (u64::from(serial) << 32 | n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *page = self.pages[(mixed >> 33) as usize % self.pages.len()];
        }
    }
}

/// What became of a job.
struct Life {
    done: Done,
    checked: u64,
    by_software: u64,
}

/// What a job had done at some moment.
#[derive(Clone, Copy, Default)]
struct Done {
    user: f64,
    worked: Nanos,
    counters: Counters,
}

/// Runs a case.
///
/// # Panics
/// As usemem's.
pub(super) fn run(case: &Case) -> Outcome {
    let limit = LIMIT / case.scale;
    let capacity = 16 * (limit as usize / PAGE_SIZE);
    let zswap = Zswap::new(capacity, CPUS, case.rig.system.codec());
    let group = Rc::new(Group::new(
        zswap,
        case.costs,
        Sample::new(),
        Limit::Max(limit),
        JOBS,
        case.check_every,
    ));
    let (lives, calls) = {
        let case = case.clone();
        case.rig.clone().live(&group, move |process| Job::new(&case, process).live())
    };

    let user: f64 = lives.iter().map(|life| life.done.user).sum();
    let times = case.build.user_s * 1e9 / user;
    let worked: Nanos = lives.iter().map(|life| life.done.worked).sum();
    let counters = lives.iter().fold(Counters::default(), |sum, life| sum.plus(life.done.counters));
    // Queues count from the beginning on.
    let all = case.warm as f64 / (case.warm + case.span) as f64;
    Outcome {
        real: case.span as f64 / 1e9 * times,
        sys: (worked as f64 - user) / 1e9 * times,
        counters: counters.times(times),
        calls: calls.into_iter().map(|calls| calls.times(times * (1.0 - all))).collect(),
        checked: lives.iter().map(|life| life.checked).sum(),
        left: group.zswap.pages(),
        by_software: lives.iter().map(|life| life.by_software).sum(),
    }
}

struct Job<'c, 'p, 's> {
    case: &'c Case,
    process: &'p mut Process<'s, Sample>,
    random: Random,
    user: f64,
    /// Touches that are due.
    due: f64,
    /// Of the folios of this block.
    order: Order,
}

impl<'c, 'p, 's> Job<'c, 'p, 's> {
    fn new(case: &'c Case, process: &'p mut Process<'s, Sample>) -> Self {
        let random = Random::new(case.seed + process.id() as u64);
        Self { case, process, random, user: 0.0, due: 0.0, order: Order::PAGE }
    }

    /// Until the end; what was done counts once units differ in age.
    fn live(mut self) -> Life {
        let mut before = None;
        let (warm, end) = (self.case.warm, self.case.warm + self.case.span);
        let mean = self.case.build.unit_pages / self.case.scale as f64;
        // The first unit of a job is of any size, as if it had begun before.
        let mut size = mean * self.random.unit();
        'job: loop {
            let pages = (size as usize).max(1).next_multiple_of(BLOCK);
            self.process.begin(pages);
            let mut first = 0;
            while first < pages {
                if before.is_none() && self.process.seat.time() >= warm {
                    before = Some(self.done());
                }
                if self.process.seat.time() >= end {
                    break 'job;
                }
                first += self.step(first);
            }
            self.process.end();
            size = mean * (0.5 + self.random.unit());
        }
        let done = self.done().since(before.unwrap_or_default());
        self.process.end();
        let (checked, work) = (self.process.checked(), self.process.take_work());
        Life { done, checked, by_software: work.by_cpu_instead }
    }

    /// One folio more; its pages.
    fn step(&mut self, first: usize) -> usize {
        let Build { user_page_ns, system_share, touches, .. } = self.case.build;
        if first.is_multiple_of(BLOCK) {
            self.order = self.draw();
        }
        let pages = self.order.pages();
        self.process.fault(first, self.order);
        let user = user_page_ns * pages as f64;
        self.user += user;
        self.process.seat.spend((user * (1.0 + system_share)) as Nanos);
        self.due += touches * pages as f64;
        while self.due >= 1.0 {
            self.due -= 1.0;
            let page = self.random.below(first + pages);
            self.process.touch(page);
        }
        pages
    }

    /// The folios that a block gets.
    fn draw(&mut self) -> Order {
        let mut draw = self.random.unit();
        let order = self.case.build.mix.iter().find(|(_, share)| {
            draw -= share;
            draw < 0.0
        });
        order.map_or(Order::PAGE, |(order, _)| *order)
    }

    fn done(&self) -> Done {
        let (worked, counters) = (self.process.seat.worked(), self.process.counters());
        Done { user: self.user, worked, counters }
    }
}

impl Done {
    fn since(self, before: Self) -> Self {
        Self {
            user: self.user - before.user,
            worked: self.worked - before.worked,
            counters: self.counters.since(before.counters),
        }
    }
}
