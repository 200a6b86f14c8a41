//! `octavo bench crypt`: encrypted writes, with pages for the ciphertext from a reserve, as the series
//! "mempool pages bulk allocator" has dm-crypt do it.
//!
//! ```text
//!   plaintext ──encrypt──► pages of the reserve ──pwritev──► target: memory, or a file
//!                            single      one call a page, through the cache of the CPU
//!                            one-by-one  one call, each page by itself: the plain twin
//!                            bulk        one call, all pages together
//!                            ready       no call: the pages are always there
//!   plaintext ──encrypt──► a buffer          none: what the cipher alone would do
//! ```
//! Ways take turns, and a ratio is the median of the ratios in each round, so that what else the
//! machine does falls on both sides. Into memory everything is work of the processor, so time is that
//! of the thread on it; into a file it is what passes.
//!
//! What a page costs is measured apart: rows of calls without a write between, pages given back
//! outside of the time.

mod work;

use crate::host::{self, Machine};
use crate::progress::Progress;
use crate::table::table;
use octavo_crypt::KeyError;
use octavo_mempool::MempoolError;
use octavo_page::ByteSize;
use octavo_sys::{Errno, reason};
use serde::Serialize;
use std::path::PathBuf;
use std::{fmt, io};
use thiserror::Error;
use work::Bench;

/// Bytes of a write.
const WRITES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// How often each way has its turn, at most: turns are short, and a ratio of two is off by some hundredths.
const ROUNDS: usize = 101;

/// In how many of them pages are timed alone, which is a longer turn, and differs less.
const COST_ROUNDS: usize = 15;

/// Where the pages of a write are from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Allocation {
    Single,
    OneByOne,
    Bulk,
    Ready,
    None,
}

impl Allocation {
    const ALL: [Self; 5] = [Self::Single, Self::OneByOne, Self::Bulk, Self::Ready, Self::None];

    const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::OneByOne => "one-by-one",
            Self::Bulk => "bulk",
            Self::Ready => "ready",
            Self::None => "none",
        }
    }

    /// Whether it asks the reserve for pages.
    const fn allocates(self) -> bool {
        matches!(self, Self::Single | Self::OneByOne | Self::Bulk)
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// A file to write to, which must not be there, or a block device; memory when there is none.
    pub backing: Option<PathBuf>,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum CryptError {
    /// The target cannot be made.
    #[error("--backing {}: {why}; it takes the name of a new file on the disk that is meant, or a block device", path.display())]
    Target {
        /// The file that was asked for.
        path: PathBuf,
        /// What is wrong with it.
        why: io::Error,
    },
    /// The target in memory cannot be made.
    #[error("no memory to write to: {0}")]
    Memory(io::Error),
    /// A write failed.
    #[error("writing to the target: {0}")]
    Write(io::Error),
    /// There is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There is no reserve.
    #[error(transparent)]
    Reserve(#[from] MempoolError),
    /// There is no address space for a reserve.
    #[error("no address space for a reserve of pages: {}", reason(*.0))]
    Space(Errno),
}

/// What was measured: one object for `--json`; prints as a table.
#[derive(Debug, Serialize)]
pub struct Comparison {
    bench: &'static str,
    machine: Machine,
    /// `memory`, `file`, or `file, O_DIRECT`.
    target: &'static str,
    /// Whether the reserve was locked in memory.
    locked: bool,
    rounds: usize,
    rows: Vec<Row>,
}

/// One way of one source, with writes of one size.
#[derive(Clone, Debug, Serialize)]
struct Row {
    allocation: Allocation,
    /// What is asked before the reserve: `none`, `recycler`, `system`.
    source: &'static str,
    write_bytes: usize,
    mb_s: f64,
    /// `mb_s` over that of pages that are ready.
    vs_ready: Option<f64>,
    /// `mb_s` over that of single pages.
    vs_single: Option<f64>,
    /// Nothing for `none`, which has no pages.
    alloc_ns_per_page: Option<f64>,
    /// What a page costs, over what a single one costs.
    alloc_vs_single: Option<f64>,
}

/// Measures everything.
///
/// # Errors
/// When there is no target, no memory or no key.
pub fn compare(options: &Options) -> Result<Comparison, CryptError> {
    let machine = host::machine();
    let mut bench = Bench::new(options.backing.as_deref())?;
    let progress = Progress::of("bench crypt", 3 * WRITES.len());
    let mut rows = Vec::new();
    for write_bytes in WRITES {
        rows.extend(bench.by_reserve(write_bytes)?);
        progress.step();
        rows.extend(bench.by_recycler(write_bytes)?);
        progress.step();
        rows.extend(bench.by_system(write_bytes)?);
        progress.step();
    }
    let (target, locked) = (bench.target(), bench.is_locked());
    Ok(Comparison { bench: "crypt", machine, target, locked, rounds: ROUNDS, rows })
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads =
            ["write", "source", "pages", "MB/s", "of ready", "of single", "ns a page", "of single"];
        let mut table = table(&heads, 3..);
        for row in &self.rows {
            table.add_row(cells(row));
        }
        writeln!(f, "{}", table.trim_fmt())?;
        write!(
            f,
            "\ntarget: {}; reserve {}; medians of up to {} rounds; load {:.1} at the start",
            self.target,
            if self.locked { "locked" } else { "not locked (ulimit -l)" },
            self.rounds,
            self.machine.load_1m.unwrap_or(0.0)
        )
    }
}

/// A row as the table shows it.
fn cells(row: &Row) -> Vec<String> {
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("x{ratio:.3}"));
    vec![
        ByteSize::new(row.write_bytes as u64).to_string(),
        row.source.to_owned(),
        row.allocation.name().to_owned(),
        format!("{:.0}", row.mb_s),
        ratio(row.vs_ready),
        ratio(row.vs_single),
        row.alloc_ns_per_page.map_or("-".to_owned(), |ns| format!("{ns:.2}")),
        ratio(row.alloc_vs_single),
    ]
}
