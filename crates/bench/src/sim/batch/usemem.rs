//! `usemem --init-time -w -O -s 10 -n 30 10g` in a cgroup whose `memory.high` is 150 GB.
//!
//! ```text
//!   30 processes:  a folio ── fault, past the limit: reclaim ── write it ──┐
//!                     └────────────────────── until all is written ◄──────┘
//!                  sleep 10 s ── free everything ── exit
//! ```
//!
//! Word i of a process's memory is i, so the contents are real. A rate that usemem prints is 9/8 of
//! what was written: to the bytes that it writes it adds one for each word that it allocates.
//!
//! Scaled down, the memory and the sleep are a part of the series'; folios, batches and costs are not.

use super::costs::Page as Costs;
use super::machine::CPUS;
use super::memory::{Contents, Counters, Group, Limit, Process};
use super::rig::{Calls, Rig};
use super::turns::Nanos;
use super::zswap::Zswap;
use octavo_page::{Order, PAGE_SIZE};
use std::rc::Rc;

const PROCESSES: usize = 30;
/// Of one process.
const BYTES: u64 = 10 << 30;
const LIMIT: u64 = 150 << 30;
const SLEEP: Nanos = 10_000_000_000;

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub rig: Rig,
    /// Of the folios.
    pub order: Order,
    pub costs: Costs,
    /// The memory is this part of the series'.
    pub scale: u64,
    /// Of so many stored pages one is read back and compared before it is freed.
    pub check_every: usize,
}

/// What came of it, at the series' scale.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Outcome {
    /// KB a second as usemem prints them, summed.
    pub throughput: f64,
    /// Seconds.
    pub elapsed: f64,
    /// Seconds, of all processes.
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

/// Word i is i.
pub(super) struct Counting;

impl Contents for Counting {
    fn write(&self, _: u32, first: usize, pages: &mut [u8]) {
        let first = (first * PAGE_SIZE / size_of::<u64>()) as u64;
        for (n, word) in (first..).zip(pages.as_chunks_mut().0) {
            *word = n.to_le_bytes();
        }
    }
}

/// What became of a process.
struct Life {
    written: Nanos,
    ended: Nanos,
    sys: Nanos,
    counters: Counters,
    checked: u64,
    by_software: u64,
}

/// Runs a case.
///
/// # Panics
/// When a page comes back changed, or there is no memory for lanes.
pub(super) fn run(case: &Case) -> Outcome {
    let Case { scale, .. } = *case;
    let pages = (BYTES / scale) as usize / PAGE_SIZE;
    let zswap = Zswap::new(PROCESSES * pages, CPUS, case.rig.system.codec());
    let limit = Limit::High(LIMIT / scale);
    let group =
        Rc::new(Group::new(zswap, case.costs, Counting, limit, PROCESSES, case.check_every));
    let (lives, calls) = {
        let case = case.clone();
        case.rig.clone().live(&group, move |process| live(&case, process, pages))
    };

    let counters = lives.iter().fold(Counters::default(), |sum, life| sum.plus(life.counters));
    let seconds = |ns: Nanos| ns as f64 * scale as f64 / 1e9;
    let printed = BYTES as f64 / 1024.0 * 9.0 / 8.0;
    Outcome {
        throughput: lives.iter().map(|life| printed / seconds(life.written)).sum(),
        elapsed: lives.iter().map(|life| seconds(life.ended)).fold(0.0, f64::max),
        sys: lives.iter().map(|life| seconds(life.sys)).sum(),
        counters: counters.times(scale as f64),
        calls: calls.into_iter().map(|calls| calls.times(scale as f64)).collect(),
        checked: lives.iter().map(|life| life.checked).sum(),
        left: group.zswap.pages(),
        by_software: lives.iter().map(|life| life.by_software).sum(),
    }
}

/// One usemem.
fn live<C: Contents>(case: &Case, process: &mut Process<'_, C>, pages: usize) -> Life {
    process.begin(pages);
    let write = (case.costs.write * case.order.pages() as f64) as Nanos;
    let folios = pages / case.order.pages();
    for folio in 0..folios {
        process.fault(folio * case.order.pages(), case.order);
        process.seat.spend(write);
    }
    let written = process.seat.time();
    process.seat.sleep(SLEEP / case.scale);
    process.end();
    let sys = process.seat.worked() - folios as u64 * write;
    let (counters, checked) = (process.counters(), process.checked());
    let by_software = process.take_work().by_cpu_instead;
    Life { written, ended: process.seat.time(), sys, counters, checked, by_software }
}
