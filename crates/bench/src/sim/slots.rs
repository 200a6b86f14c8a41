//! `octavo sim slots`: what the series did to a kernel build on 96 CPUs, from what it did on few.
//!
//! The published tables are of the kernel series "mm, swap: rework of swap allocator locks": before it
//! (`one-lock`, here) every batch of slots took the device lock, after it (`series`) only a cluster
//! that changes its list does.
//!
//! # The build
//!
//! N jobs of `make` swap, because each has only so much memory. What they do all together (`Build`):
//!
//! - user seconds, the same whatever the memory;
//! - system seconds outside of the device lock, in proportion to what is swapped, which is taken to be
//!   in inverse proportion to the memory a job;
//! - batches of slots that take the device lock, in the same proportion. For how long each holds it,
//!   found free or handed on, comes from the published profile and from a single thread.
//!
//! These three are fitted to the rows -j6 to -j24; the first two come from the cells after the series
//! and the third from those before. The queue (`queue.rs`) then says how long all takes with
//! any number of jobs, on 48 cores of two hardware threads.
//!
//! For the series and for Octavo the time for which the lock is held is what it is for one-lock, less
//! by as much as it is taken seldomer and shorter: how often is counted, by running the allocators.
//!
//! # usemem
//!
//! 31 threads, each fault reads a page back and stores another: two operations on slots. With folios of
//! 64 KiB the storing is one operation for sixteen pages, while pages come back one by one; in order of
//! address both go by batches of 64, as the kernel's caches of slots have it. The time between faults
//! is taken from the cells after the series, the time for which the lock is held from one cell before.
//!
//! # The rotating disk
//!
//! A fault takes a seek, and there were fewer: the time for one is taken from before.

use super::queue::{Load, Outcome, Processors, run};
use super::{Parameter, Report, Row};
use crate::slots::device_locks_per_op;
use octavo_slots::Slots;
use octavo_slots::twins::{Allocator, OneLock, Series};

/// The build machine of the tables.
const MACHINE: Processors = Processors { cores: 48, two_on_a_core: 1.25 };
const TWO_ON_A_CORE: &str = "throughput of two hardware threads over one; Marr and others, Intel \
                             Technology Journal 6(1), 2002, measured 1.16 to 1.28 on servers";

/// Slots in a batch of the kernel before the series.
const BATCH: f64 = 64.0;

/// Seconds for which a batch holds the lock that it was handed: in 3 s of the published profile there
/// were 71,450 waits for a lock that was never free.
const CONTENDED: f64 = 3.0 / 71_450.0;

/// Seconds for which it holds one that it found free, at most: what the series saved a single thread
/// that stored 4 GiB.
const FREE: f64 = (3.359_304 - 3.347_511) * BATCH / (1 << 20) as f64;

/// For how long a cluster's change of lists holds the lock, over what a batch did before the series:
/// unlinking and linking is some 0.1 us.
const MOVE_OVER_BATCH: f64 = 0.1e-6 / CONTENDED;

/// One row of the published table: system and total seconds, before and after.
struct Published {
    jobs: usize,
    memory_mib: f64,
    sys: [f64; 2],
    total: [f64; 2],
}

const fn published(jobs: usize, memory_mib: f64, sys: [f64; 2], total: [f64; 2]) -> Published {
    Published { jobs, memory_mib, sys, total }
}

const BUILD_4K: [Published; 5] = [
    published(6, 192.0, [1533.0, 1522.0], [1420.0, 1414.0]),
    published(12, 256.0, [2275.0, 2226.0], [758.0, 742.0]),
    published(24, 384.0, [3596.0, 3154.0], [476.0, 422.0]),
    published(48, 768.0, [8159.0, 3605.0], [330.0, 221.0]),
    published(96, 1536.0, [18541.0, 6462.0], [283.0, 180.0]),
];

const BUILD_64K: [Published; 3] = [
    published(24, 512.0, [3585.0, 3469.0], [293.0, 290.0]),
    published(48, 1024.0, [8173.0, 3607.0], [251.0, 158.0]),
    published(96, 2048.0, [16305.0, 7791.0], [226.0, 144.0]),
];

/// The most jobs of a row that parameters are fitted to.
const FITTED: usize = 24;

impl Published {
    /// What is swapped, over what is with 16 MiB a job.
    fn traffic(&self) -> f64 {
        16.0 * self.jobs as f64 / self.memory_mib
    }
}

/// What a build takes, in seconds of CPU, with 16 MiB a job.
#[derive(Clone, Copy, Debug)]
struct Build {
    user: f64,
    sys: f64,
    batches: f64,
}

/// System seconds and total seconds of a build.
struct Times {
    sys: f64,
    total: f64,
}

impl Build {
    /// Fits the three parameters to the rows of up to [`FITTED`] jobs.
    fn fitted(table: &[Published]) -> Self {
        let rows: Vec<_> = table.iter().filter(|row| row.jobs <= FITTED).collect();
        let mean = |of: &dyn Fn(&Published) -> f64| {
            rows.iter().map(|row| of(row)).sum::<f64>() / rows.len() as f64
        };
        let user = mean(&|row| row.total[1] * row.jobs as f64 - row.sys[1]);
        let sys = mean(&|row| row.sys[1] / row.traffic());
        let error = |batches: f64| {
            let build = Self { user, sys, batches };
            let squares = rows.iter().map(|row| {
                let times = build.times(row, 1.0);
                let sys = times.sys / row.sys[0] - 1.0;
                let total = times.total / row.total[0] - 1.0;
                sys * sys + total * total
            });
            squares.sum::<f64>()
        };
        let batches = least(error, 0.0, table[0].total[0] / CONTENDED);
        Self { user, sys, batches }
    }

    /// How long a row's build takes when the lock is held for `share` of what it is held with one-lock.
    fn times(self, row: &Published, share: f64) -> Times {
        let sys = self.sys * row.traffic();
        let work = self.user + sys;
        let batches = self.batches * row.traffic() * share;
        let (held, held_contended) = (batches * FREE, batches * CONTENDED);
        let Outcome { elapsed, working, at_lock } =
            run(MACHINE, Load { jobs: row.jobs, work, held, held_contended });
        Times { sys: working * sys / work + at_lock, total: elapsed }
    }
}

/// Where `f`, which falls and then rises, is least between two numbers: golden section.
fn least(f: impl Fn(f64) -> f64, low: f64, high: f64) -> f64 {
    let golden = (5.0_f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (low, high);
    for _ in 0..24 {
        let (left, right) = (high - golden * (high - low), low + golden * (high - low));
        if f(left) < f(right) { high = right } else { low = left }
    }
    low.midpoint(high)
}

/// A design, and its share of the time for which one-lock holds the device lock.
struct Design {
    name: &'static str,
    /// Its column in the published tables.
    column: Option<usize>,
    share: f64,
}

fn designs() -> [Design; 3] {
    let share = |locks_per_op: f64| locks_per_op * BATCH * MOVE_OVER_BATCH;
    [
        Design { name: OneLock::NAME, column: Some(0), share: 1.0 },
        Design {
            name: Series::NAME,
            column: Some(1),
            share: share(device_locks_per_op::<Series>()),
        },
        Design { name: Slots::NAME, column: None, share: share(device_locks_per_op::<Slots>()) },
    ]
}

/// Runs every model.
#[must_use]
pub fn report() -> Report {
    let designs = designs();
    let mut parameters = vec![
        given("batch_us_contended", CONTENDED * 1e6, "3 s of the profile of -j64 over its waits"),
        given("batch_us_free", FREE * 1e6, "what storing 4 GiB by one thread gained, at most"),
        given("two_on_a_core", MACHINE.two_on_a_core, TWO_ON_A_CORE),
        given(
            "move_over_batch",
            MOVE_OVER_BATCH,
            "time of a list move over that of a batch of 64 slots",
        ),
    ];
    let shares = designs.iter().map(|design| {
        let source = "time the device lock is held over one-lock's, by counted acquisitions";
        given(&format!("lock_share_{}", design.name), design.share, source)
    });
    parameters.extend(shares);
    let mut rows = Vec::new();
    for (pages, table) in [("4K", &BUILD_4K[..]), ("64K", &BUILD_64K[..])] {
        let build = Build::fitted(table);
        for (name, value) in
            [("user_s", build.user), ("sys_s", build.sys), ("batches", build.batches)]
        {
            let name = format!("build_{pages}_{name}");
            parameters.push(Parameter { name, value, fitted: true, source: "rows up to -j24" });
        }
        table.iter().for_each(|row| rows.extend(build_rows(pages, &build, row, &designs)));
    }
    rows.extend(usemem(&designs, &mut parameters));
    rows.extend(rotating_disk());
    Report::new(parameters, rows)
}

fn given(name: &str, value: f64, source: &'static str) -> Parameter {
    Parameter { name: name.to_owned(), value, fitted: false, source }
}

fn build_rows(pages: &str, build: &Build, row: &Published, designs: &[Design]) -> Vec<Row> {
    let mut rows = Vec::new();
    for design in designs {
        let times = build.times(row, design.share);
        for (what, value, published) in
            [("sys", times.sys, row.sys), ("total", times.total, row.total)]
        {
            let published = design.column.map(|column| published[column]);
            let calibrated = row.jobs <= FITTED && published.is_some();
            let case = format!("build-{pages}-j{}-{what}", row.jobs);
            rows.push(Row::new(case, design.name, value, published, calibrated));
        }
    }
    rows
}

/// Threads of usemem, on 32 CPUs.
const THREADS: usize = 31;

/// KB a second before and after, and operations on slots that a page takes.
const USEMEM: [(&str, [f64; 2], f64); 3] = [
    ("usemem-4K-random", [69_937.11, 369_816.17], 2.0),
    ("usemem-64K-random", [123_442.83, 216_379.00], 1.0 + 1.0 / 16.0),
    ("usemem-4K-sequential", [6_313_909.83, 6_419_860.66], 2.0 / BATCH),
];

fn usemem(designs: &[Design], parameters: &mut Vec<Parameter>) -> Vec<Row> {
    let pages_per_s = |kb_per_s: f64| kb_per_s / 4.0;
    // A lock that is never free: what it is held for is what a page takes.
    let held_per_op = 1.0 / pages_per_s(USEMEM[0].1[0]) / USEMEM[0].2;
    parameters.push(Parameter {
        name: "usemem_lock_held_us".to_owned(),
        value: held_per_op * 1e6,
        fitted: true,
        source: "usemem-4K-random, one-lock; an operation on a slot",
    });
    let mut rows = Vec::new();
    for (case, published, ops) in USEMEM {
        let machine = Processors { cores: 32, ..MACHINE };
        // Seconds for a million pages.
        let work = THREADS as f64 / pages_per_s(published[1]) * 1e6;
        for design in designs {
            let held_contended = held_per_op * ops * design.share * 1e6;
            let held = held_contended * FREE / CONTENDED;
            let load = Load { jobs: THREADS, work, held, held_contended };
            let elapsed = run(machine, load).elapsed;
            let value = 4.0 * 1e6 / elapsed;
            let calibrated =
                design.column == Some(1) || design.column == Some(0) && case == USEMEM[0].0;
            let published = design.column.map(|column| published[column]);
            rows.push(Row::new(format!("{case}-kb-s"), design.name, value, published, calibrated));
        }
        let gain = rows[rows.len() - 3].value;
        let gain = (rows[rows.len() - 2].value / gain - 1.0) * 100.0;
        let said = (published[1] / published[0] - 1.0) * 100.0;
        let case = format!("{case}-gain-percent");
        let fitted = case.starts_with(USEMEM[0].0);
        rows.push(Row::new(case, Series::NAME, gain, Some(said), fitted));
    }
    rows
}

/// Major faults, and seconds elapsed, before and after.
const DISK: [(f64, f64); 2] = [(238_877.0, 2_382.90), (235_471.0, 2_291.77)];

fn rotating_disk() -> Vec<Row> {
    let [(faults, elapsed), (fewer, after)] = DISK;
    let fault = elapsed / faults;
    let case = || "tinyconfig-disk-elapsed".to_owned();
    vec![
        Row::new(case(), OneLock::NAME, fault * faults, Some(elapsed), true),
        Row::new(case(), Series::NAME, fault * fewer, Some(after), false),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_found() {
        assert!((least(|x| (x - 3.0) * (x - 3.0), 0.0, 10.0) - 3.0).abs() < 0.01);
    }

    /// A table that the model itself made is fitted by the parameters that made it.
    #[test]
    fn parameters_are_found_again() {
        let made = Build { user: 7000.0, sys: 3000.0, batches: 7e6 };
        let table = [6, 12, 24].map(|jobs| {
            let row = published(jobs, 16.0 * jobs as f64, [0.0; 2], [0.0; 2]);
            let (before, after) = (made.times(&row, 1.0), made.times(&row, 0.0));
            Published { sys: [before.sys, after.sys], total: [before.total, after.total], ..row }
        });
        let Build { user, sys, batches } = Build::fitted(&table);
        assert!((user / made.user - 1.0).abs() < 0.02, "{user}");
        assert!((sys / made.sys - 1.0).abs() < 0.02, "{sys}");
        // Chains of waiters are few and long in a run of this length, so this one is found less exactly.
        assert!((batches / made.batches - 1.0).abs() < 0.1, "{batches}");
    }
}
