//! `octavo bench slots`: the slot allocator and its twins, side by side.
//!
//! ```text
//! for each pattern, order, fill and number of threads          a cell
//!   fill a device of 1 Mi slots, once for each allocator
//!   for each round:  octavo ── series ── one-lock              pairs of free and alloc, [pairs]
//!
//! for each mix of processes                                    who finds room for folios, [processes]
//!   octavo ── series ── one-lock                               the same requests
//! ```
//!
//! In a cell the allocators take turns, so that what else the machine does falls on all of them;
//! figures are medians over the rounds.

mod pairs;
mod processes;

use crate::host::{self, Machine};
use crate::progress::Progress;
use crate::table::table;
use octavo_page::Order;
use octavo_slots::Slots;
use octavo_slots::twins::{Allocator, OneLock, Series};
use serde::Serialize;
use std::{fmt, io};
use thiserror::Error;

/// Slots of the device: 4 GiB of pages.
const CAPACITY: usize = 1 << 20;

/// The most threads: each has enough folios of 2 MiB, at 10% full, to choose from.
pub const MAX_THREADS: usize = 64;

/// Percents of the slots that are taken.
const FILLS: [usize; 4] = [10, 50, 90, 99];

/// Single pages, 64 KiB and 2 MiB.
const ORDERS: [u8; 3] = [0, 4, 9];

/// In which order folios are given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Pattern {
    /// Oldest first.
    Sequential,
    /// Any of them.
    Random,
    /// One of the two, by chance.
    Mixed,
    /// As processes come, grow and exit.
    Processes,
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Numbers of threads, each measured by itself.
    pub threads: Vec<usize>,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum SlotsError {
    /// Fewer threads are allowed than asked for.
    #[error(
        "one of {threads} threads cannot be started: {why}; allow more (`ulimit -u`, `ulimit -v`), or ask for fewer"
    )]
    Thread {
        /// So many were to run.
        threads: usize,
        /// What stands in the way.
        why: io::Error,
    },
}

/// What was measured: one object for `--json`; prints as a table.
#[derive(Debug, Serialize)]
pub struct Comparison {
    bench: &'static str,
    machine: Machine,
    slots: usize,
    rounds: usize,
    rows: Vec<Row>,
}

/// One allocator in one cell.
#[derive(Clone, Debug, Serialize)]
struct Row {
    allocator: &'static str,
    pattern: Pattern,
    /// The mix of processes, where the pattern is that.
    #[serde(skip_serializing_if = "Option::is_none")]
    mix: Option<&'static str>,
    order: u8,
    fill_percent: f64,
    threads: usize,
    /// Of all threads together. Nothing for processes, which are not timed.
    alloc_free_per_s: Option<f64>,
    /// For each second that a thread had a processor: where others want the processors too, this says
    /// more.
    alloc_free_per_cpu_s: Option<f64>,
    /// `alloc_free_per_s` over that of one-lock.
    speed_vs_one_lock: Option<f64>,
    failures: u64,
    attempts: u64,
    /// Failures over those of one-lock.
    failures_vs_one_lock: Option<f64>,
    /// A pair of free and alloc is two operations.
    device_locks_per_1000_ops: f64,
    moves_per_1000_ops: f64,
    waits_per_1000_ops: f64,
    /// Time waited for locks, of the time that all threads ran or wanted to.
    waited_percent: Option<f64>,
}

/// Measures everything.
///
/// # Errors
/// When so many threads cannot run.
pub fn compare(options: &Options) -> Result<Comparison, SlotsError> {
    let machine = host::machine();
    let patterns = [Pattern::Sequential, Pattern::Random, Pattern::Mixed];
    let cells = patterns.len() * ORDERS.len() * FILLS.len() * options.threads.len();
    let progress = Progress::of("bench slots", cells + processes::MIXES.len());
    let mut rows = Vec::new();
    for pattern in patterns {
        for order in ORDERS.map(|n| Order::new(n).expect("an order")) {
            for fill in FILLS {
                for &threads in &options.threads {
                    let plan = pairs::Plan { capacity: CAPACITY, pattern, order, fill, threads };
                    rows.extend(with_ratios(pairs::cell(&plan)?));
                    progress.step();
                }
            }
        }
    }
    for mix in &processes::MIXES {
        rows.extend(with_ratios([
            processes::row::<Slots>(mix),
            processes::row::<Series>(mix),
            processes::row::<OneLock>(mix),
        ]));
        progress.step();
    }
    Ok(Comparison { bench: "slots", machine, slots: CAPACITY, rounds: pairs::ROUNDS, rows })
}

/// How often an operation on slots takes the device lock while processes come, grow and exit: counted.
#[must_use]
pub fn device_locks_per_op<A: Allocator>() -> f64 {
    processes::row::<A>(&processes::MIXES[0]).device_locks_per_1000_ops / 1000.0
}

/// The rows of a cell, compared with the last, one-lock's.
fn with_ratios(mut rows: [Row; 3]) -> [Row; 3] {
    let peer = rows[2].clone();
    for row in &mut rows[..2] {
        let speeds = row.alloc_free_per_s.zip(peer.alloc_free_per_s);
        row.speed_vs_one_lock = speeds.map(|(ours, theirs)| round(ours / theirs));
        if peer.failures > 0 {
            row.failures_vs_one_lock = Some(round(row.failures as f64 / peer.failures as f64));
        }
    }
    rows
}

/// Three digits are more than a machine repeats.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "pattern",
            "order",
            "full",
            "threads",
            "allocator",
            "M pairs/s",
            "per CPU s",
            "over one-lock",
            "device locks",
            "moves",
            "waits",
            "waited",
            "failed",
            "of",
            "over one-lock",
        ];
        let mut table = table(&heads, 5..);
        for row in &self.rows {
            table.add_row(cells(row));
        }
        writeln!(f, "{}", table.trim_fmt())?;
        write!(
            f,
            "\n{} Mi slots, a pair is one free and one alloc, medians of {} rounds; device locks, moves of \
             clusters and waits per 1,000 operations; load {:.1} at the start",
            self.slots >> 20,
            self.rounds,
            self.machine.load_1m.unwrap_or(0.0)
        )
    }
}

/// A row as the table shows it.
fn cells(row: &Row) -> Vec<String> {
    let millions = |n: Option<f64>| n.map_or("-".to_owned(), |n| format!("{:.1}", n / 1e6));
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("x{ratio:.2}"));
    let pattern = match (row.mix, row.pattern) {
        (Some(mix), _) => format!("processes, {mix}"),
        (None, pattern) => format!("{pattern:?}").to_lowercase(),
    };
    vec![
        pattern,
        row.order.to_string(),
        format!("{:.0}%", row.fill_percent),
        row.threads.to_string(),
        row.allocator.to_owned(),
        millions(row.alloc_free_per_s),
        millions(row.alloc_free_per_cpu_s),
        ratio(row.speed_vs_one_lock),
        format!("{:.2}", row.device_locks_per_1000_ops),
        format!("{:.2}", row.moves_per_1000_ops),
        format!("{:.3}", row.waits_per_1000_ops),
        row.waited_percent.map_or("-".to_owned(), |percent| format!("{percent:.2}%")),
        row.failures.to_string(),
        row.attempts.to_string(),
        ratio(row.failures_vs_one_lock),
    ]
}
