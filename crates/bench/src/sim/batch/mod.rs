//! `octavo sim batch`: the machine of the zswap IAA batching series, in virtual time.
//!
//! ```text
//!   usemem, build ── fault, touch ──► memory ── oldest folios ──► zswap: the store ── engine ─┐
//!    (30, 32 processes: turns)         a group's limit             slots, pool, hashes         │
//!                                                                                             ▼
//!   costs: what each step takes a processor, a device            the driver ── model of the devices
//! ```
//!
//! Only time is simulated. The store puts and gets folios, the driver submits, polls and copies, the
//! model executes each descriptor at the time that its queue, its engines and those before it allow,
//! and every page is there with its contents until its process ends. What the kernel does around them
//! costs what `costs.rs` says.
//!
//! What limits each system, by the arithmetic of those costs before anything was run:
//!
//! - *one by one, v4*: processes on all 8 devices, some 4 at each: a page waits for its own submission,
//!   way and compression, a fifth of what storing it takes. The processors limit.
//! - *batches, v4*: the same but for that fifth, of which a seventh is left.
//! - *one by one, v8 and v14*: 14 processes at one device, which compresses two pages at a time: the
//!   device limits, and processors poll.
//! - *batches, v8 and v14*: four devices have room for what 30 processors can store, just.
//! - *zstd*: the processors.
//! - Slots take one lock a folio, and limit nothing.

mod build;
mod costs;
mod machine;
mod madvise;
mod memory;
mod published;
mod report;
mod rig;
#[cfg(test)]
mod tests;
mod turns;
mod usemem;
mod zswap;

use super::{Report, Row};
use crate::progress::Progress;
use machine::{Software, System};
use octavo_accel::model::Latency;
use octavo_page::Order;
use report::row;
use rig::{Cpus, Rig};
use std::sync::Mutex;
use std::thread;

/// The memory of usemem is this part of the series', and of the runs that show linearity.
const SCALE: u64 = 32;
const HALF: u64 = 2 * SCALE;

/// Of so many stored pages one is read back and compared, in runs of this size.
const CHECK_EVERY: usize = 61;

const SEED: u64 = 1;

const K64: Order = order(4);
const M2: Order = Order::MAX;

const fn order(n: u8) -> Order {
    match Order::new(n) {
        Some(order) => order,
        None => panic!("no such order"),
    }
}

/// Which letters' machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Letters {
    /// Processes anywhere; with the series two queues a device.
    V4,
    /// Processes bound to one package; one queue a device.
    V8,
}

const SOFTWARE: Software =
    Software { compress: costs::ZSTD_COMPRESS, decompress: costs::ZSTD_DECOMPRESS };

impl Letters {
    fn rig(self, system: System, latency: Latency) -> Rig {
        let queues: &[u32] = match self {
            Self::V4 if system.is_spread() => &[64, 64],
            _ => &[128],
        };
        let cpus = match self {
            Self::V4 => Cpus::Anywhere(SEED),
            Self::V8 => Cpus::Bound,
        };
        let submit = match self {
            Self::V4 => costs::SUBMIT_V4,
            Self::V8 => latency.submit,
        };
        let latency = Latency { submit, ..latency };
        Rig { system, queues, latency, software: SOFTWARE, cpus }
    }

    fn usemem(self, system: System, order: Order, scale: u64) -> usemem::Case {
        let costs = match self {
            Self::V4 => costs::V4,
            Self::V8 => costs::BOUND,
        };
        let rig = self.rig(system, costs::USEMEM);
        usemem::Case { rig, order, costs, scale, check_every: CHECK_EVERY }
    }
}

fn build_case(system: System) -> build::Case {
    build::Case {
        rig: Letters::V4.rig(system, costs::CORPUS),
        costs: costs::V4,
        build: costs::BUILD,
        scale: 8,
        warm: 2_000_000_000,
        span: 2_000_000_000,
        seed: SEED,
        check_every: CHECK_EVERY,
    }
}

/// Runs a case for each system, on as many threads as there are processors.
fn run_all<C: Sync, O: Send>(cases: &[C], run: impl Fn(&C) -> O + Sync) -> Vec<O> {
    let progress = Progress::of("sim batch", cases.len());
    let next = Mutex::new(0..cases.len());
    let outcomes: Vec<_> = cases.iter().map(|_| Mutex::new(None)).collect();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let take = || next.lock().expect("nobody fails with it").next();
        while let Some(n) = take() {
            let outcome = run(&cases[n]);
            *outcomes[n].lock().expect("nobody fails with it") = Some(outcome);
            progress.step();
        }
    };
    thread::scope(|scope| {
        // Where no more threads are allowed, those that there are do the work.
        for _ in 1..threads.min(cases.len()) {
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    let take = |outcome: Mutex<Option<O>>| outcome.into_inner().ok().flatten();
    outcomes.into_iter().map(|outcome| take(outcome).expect("all cases ran")).collect()
}

/// Something to run: all of them share the processors.
enum Case {
    Usemem(usemem::Case),
    Build(build::Case),
}

enum Outcome {
    Usemem(usemem::Outcome),
    Build(build::Outcome),
}

fn run(case: &Case) -> Outcome {
    match case {
        Case::Usemem(case) => Outcome::Usemem(usemem::run(case)),
        Case::Build(case) => Outcome::Build(build::run(case)),
    }
}

/// The tables of usemem that are run: whose machine, folios, systems.
const TABLES: [(Letters, Order, &[System]); 4] = [
    (Letters::V4, K64, &[System::ZSTD, System::IAA, System::BATCH, System::OCTAVO]),
    (Letters::V8, K64, &[System::ZSTD, System::IAA, System::BATCH, System::OCTAVO]),
    (Letters::V4, M2, &[System::ZSTD, System::IAA, System::BATCH]),
    (Letters::V8, M2, &[System::ZSTD, System::IAA, System::BATCH]),
];

/// Runs it.
///
/// # Panics
/// When a page comes back changed, software stood in for a device, or there is no memory for it.
#[must_use]
pub fn report() -> Report {
    let usemem_cases = TABLES.iter().flat_map(|(letters, order, systems)| {
        systems.iter().map(|system| Case::Usemem(letters.usemem(*system, *order, SCALE)))
    });
    let halves = [System::IAA, System::BATCH];
    let half = |system| Case::Usemem(Letters::V4.usemem(system, K64, HALF));
    let builds = [System::ZSTD, System::IAA, System::BATCH];
    let mut cases: Vec<Case> = usemem_cases.collect();
    cases.extend(halves.map(half));
    cases.extend(builds.map(|system| Case::Build(build_case(system))));

    let mut outcomes = run_all(&cases, run).into_iter();
    let mut usemem = |systems: &[System]| -> Vec<(System, usemem::Outcome)> {
        let next = |system: &System| match outcomes.next() {
            Some(Outcome::Usemem(outcome)) => (*system, outcome),
            _ => unreachable!("an outcome for each case, in order"),
        };
        systems.iter().map(next).collect()
    };
    let tables = TABLES.map(|(_, _, systems)| usemem(systems));
    let halves = usemem(&halves);
    let builds: Vec<(System, build::Outcome)> = builds
        .into_iter()
        .zip(outcomes)
        .map(|(system, outcome)| match outcome {
            Outcome::Build(outcome) => (system, outcome),
            Outcome::Usemem(_) => unreachable!("an outcome for each case, in order"),
        })
        .collect();

    let all = tables.iter().flatten().chain(&halves);
    assert!(all.into_iter().all(|(_, outcome)| outcome.by_software == 0), "software stood in");
    assert!(builds.iter().all(|(_, outcome)| outcome.by_software == 0), "software stood in");

    let [v4_64k, v8_64k, v4_2m, v8_2m] = &tables;
    let mut rows = store_rows();
    let mut table = |name: &str, order, published, outcomes, fitted| {
        let columns = report::columns(published, outcomes);
        rows.extend(report::usemem(name, order, &columns, fitted));
    };
    table("usemem-64K-v4", K64, &published::V4_64K, v4_64k, costs::FITTED_V4_64K);
    table("usemem-2M-v4", M2, &published::V4_2M, v4_2m, costs::FITTED_V4_2M);
    table("usemem-64K-v8", K64, &published::V8_64K, v8_64k, costs::FITTED_V8_64K);
    table("usemem-2M-v8", M2, &published::V8_2M, v8_2m, costs::FITTED_V8_2M);
    // Of the same runs; Octavo's own batches stand in v8's table.
    table("usemem-64K-v14", K64, &published::V14_64K, &v8_64k[..3], &[]);
    table("usemem-2M-v14", M2, &published::V14_2M, v8_2m, &[]);
    rows.extend(report::build(&builds, costs::FITTED_BUILD));
    rows.extend(linearity(&v4_64k[1..3], &halves));
    Report::new(costs::parameters(), rows)
}

/// Latencies of one process alone.
fn store_rows() -> Vec<Row> {
    let systems = [System::IAA, System::mapped(8), System::BATCH];
    let rows = systems.into_iter().zip(published::STORE).map(|(system, ns)| {
        let case = "store-64K-v9-page-ns".to_owned();
        row(case, system.name, madvise::page_ns(system), Some(ns), true)
    });
    let at_once = published::AT_ONCE.into_iter().map(|(pages, ns)| {
        let system = System::mapped(pages);
        let case = format!("store-64K-at-once-{pages}-page-ns");
        row(case, system.name, madvise::page_ns(system), Some(ns), false)
    });
    rows.chain(at_once).collect()
}

/// The same at half the size, beside the whole as if that had been published.
fn linearity(whole: &[(System, usemem::Outcome)], half: &[(System, usemem::Outcome)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for ((system, whole), (_, half)) in whole.iter().zip(half) {
        for (what, whole, half) in [
            ("throughput-kb-s", whole.throughput, half.throughput),
            ("elapsed-s", whole.elapsed, half.elapsed),
            ("sys-s", whole.sys, half.sys),
            ("zswpout", whole.counters.zswpout as f64, half.counters.zswpout as f64),
        ] {
            let name = |scale: u64| format!("usemem-64K-v4-at-1-{scale}-{what}");
            rows.push(row(name(SCALE), system.name, whole, None, false));
            rows.push(row(name(HALF), system.name, half, None, false));
        }
    }
    rows
}
