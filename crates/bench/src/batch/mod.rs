//! `octavo bench batch`: what a page costs on its way into the store and out of it, in batches and one
//! by one.
//!
//! ```text
//!   pages, in folios ── put ──► store: engine, pool, slots, index ── get ──► pages
//!             single   folio by folio, unit by unit: the plain twin
//!             batch    sixteen pages of whatever folios, or one larger folio, in a call
//! ```
//! Both modes take turns within a round, 64 pages each, the same pages as often, on one store: what a
//! round has put is read in another order than it lies, and freed. A figure is the median of the rounds, a
//! ratio that of the ratios in each round, so that what else the machine does falls on both sides, with how far
//! it may be off: a difference below that is none. Time is that of the threads on the CPU, so a thread that waits
//! for it is not charged; a lock that is waited for is.
//!
//! *Bookkeeping* is what slots, pool and index take. It is measured in pairs, with an engine that compresses
//! nothing (`work::Instant`) and objects of the sizes that the codec gave them:
//!
//! ```text
//!   turn    64 pages through the store ── the same 64 plainly: fills, hashes, copies ──► difference
//!   turn    the next 64, in the other mode                                           ──► difference
//! ```
//! What is done plainly goes through as many pages together as the store does in that mode, and copies to memory
//! that is as large, and as long not used, as the pool's; for a batch the beginnings of all objects are fetched
//! first, as the pool does, so that what this wins in the copying is not counted as won by the books. Either is first
//! in half of the turns: who comes second finds the pages in the cache. The figure of a round is the sum of its
//! differences. It is measured in several stores one after the other, because a copy takes more or less time by
//! the frames it goes to; and a few of them after each folio's rounds with the codec, because a machine of which others have a
//! part is slower for some seconds at a time.

mod work;

use crate::host::{self, Machine};
use crate::progress::Progress;
use crate::table::table;
use octavo_accel::Engines;
use octavo_codec::Codec;
use octavo_page::{ByteSize, EngineKind, PAGE_SIZE};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fmt, io};
use thiserror::Error;
use work::{Bench, Cell, Mode, Op, Pages, Times};

/// Pages of a folio.
const FOLIOS: [usize; 4] = [1, 4, 16, 512];

/// Codecs, the fastest first. What is stored compresses with each of them.
pub const CODECS: [&str; 6] = [
    "lz4",
    "zstd:-1",
    "zstd:1",
    "deflate-fixed:1",
    "deflate-dynamic:1",
    "deflate-canned:1:general",
];

/// The most threads at once, each with an engine and pages of its own.
pub const MAX_THREADS: usize = 64;

/// Rounds with the codec, at most.
const ROUNDS: usize = 99;

/// Lots of rounds for bookkeeping alone, at most, of each folio after each folio's rounds with the codec.
const BOOK_LOTS: usize = 4;

/// When so much time is gone, a cell has no further rounds: all has to end within five minutes.
const BUDGET: Duration = Duration::from_secs(240);

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Files of raw pages; without any, the pages of this executable.
    pub pages: Vec<PathBuf>,
    /// Of [`CODECS`].
    pub codecs: Vec<Codec>,
    /// Numbers of threads at once, up to [`MAX_THREADS`], each measured by itself.
    pub cpus: Vec<usize>,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum BatchError {
    /// A page file cannot be read.
    #[error("--pages {}: {why}; name files of raw memory pages", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What stands in the way.
        why: io::Error,
    },
    /// Too little to measure with.
    #[error("--pages: {pages} pages that are not of one word; {least} are the least")]
    TooFew {
        /// Pages found.
        pages: usize,
        /// Pages needed.
        least: usize,
    },
    /// Fewer threads are allowed than asked for.
    #[error(
        "one of {threads} threads cannot be started: {why}; allow more (`ulimit -u`, `ulimit -v`), or ask for fewer with --cpus"
    )]
    Thread {
        /// So many were to run.
        threads: usize,
        /// What stands in the way.
        why: io::Error,
    },
    /// No memory for the store.
    #[error("no memory for the store: {0}; free some")]
    Memory(String),
    /// A page came back wrong.
    #[error("{codec}: a page came back wrong; do not use it, and report it")]
    Wrong {
        /// What compressed it.
        codec: Codec,
    },
}

/// What was measured: one object for `--json`; prints as a table.
#[derive(Debug, Serialize)]
pub struct Comparison {
    bench: &'static str,
    machine: Machine,
    /// Different pages that were stored, over and over.
    pages: usize,
    /// Bytes of these over the bytes of their objects, with `ratio_codec`.
    ratio: f64,
    ratio_codec: String,
    /// Rounds of the cell that had the fewest: with the codec, and for bookkeeping alone.
    rounds: usize,
    book_rounds: usize,
    rows: Vec<Row>,
}

/// One operation in one mode.
#[derive(Clone, Debug, Serialize)]
struct Row {
    op: Op,
    codec: String,
    engine: &'static str,
    /// Threads at once, each on a CPU of its own where there are as many.
    cpus: usize,
    folio: String,
    mode: Mode,
    /// CPU time of a page.
    page_ns: f64,
    /// Of that, slots, pool and index.
    bookkeeping_ns: f64,
    /// Both over those of single, in the rows of batches.
    page_vs_single: Option<f64>,
    page_vs_single_error: Option<f64>,
    bookkeeping_vs_single: Option<f64>,
}

/// Measures everything.
///
/// # Errors
/// When the pages cannot be had, or come back wrong.
pub fn compare(options: &Options) -> Result<Comparison, BatchError> {
    let machine = host::machine();
    let begin = Instant::now();
    let pages = Pages::read(&options.pages)?;
    let mut kinds = vec![Engines::cpu()];
    kinds.extend(Engines::open(EngineKind::Iaa));
    let cells = options.codecs.len() * kinds.len() * options.cpus.len() * FOLIOS.len();
    let progress = Progress::of("bench batch", cells);
    let (mut rows, mut ratio) = (Vec::new(), None);
    let (mut rounds, mut book_rounds) = (usize::MAX, usize::MAX);
    for codec in options.codecs.iter().copied() {
        let sized = pages.sized(codec);
        ratio.get_or_insert_with(|| (round(sized.ratio()), codec.to_string()));
        let threads = |kind| options.cpus.iter().map(move |threads| (kind, *threads));
        for (engines, threads) in kinds.iter().flat_map(threads) {
            let mut bench = Bench::new(&sized, engines, threads)?;
            let group = FOLIOS.map(|folio| Cell { folio, threads });
            let (mut wholes, mut books) = (Vec::new(), group.map(|_| Times::new()));
            for cell in group {
                let share =
                    BUDGET.saturating_sub(begin.elapsed()) / (cells - progress.steps()) as u32;
                wholes.push(bench.whole(cell, ROUNDS, share * 3 / 4)?);
                for (cell, books) in group.into_iter().zip(&mut books) {
                    let time = share / 4 / FOLIOS.len() as u32;
                    books.extend(work::books(&sized, engines, cell, BOOK_LOTS, time)?);
                }
                progress.step();
            }
            for ((cell, whole), books) in group.into_iter().zip(&wholes).zip(&books) {
                rounds = rounds.min(whole.rounds());
                book_rounds = book_rounds.min(books.rounds());
                rows.extend(rows_of(codec, engines.kind(), cell, whole, books));
            }
        }
    }
    let (ratio, ratio_codec) = ratio.unwrap_or_default();
    let pages = pages.len();
    Ok(Comparison { bench: "batch", machine, pages, ratio, ratio_codec, rounds, book_rounds, rows })
}

/// The four rows of a cell.
fn rows_of(codec: Codec, engine: EngineKind, cell: Cell, whole: &Times, books: &Times) -> Vec<Row> {
    let row = |(op, mode)| {
        let is_batch = mode == Mode::Batch;
        Row {
            op,
            codec: codec.to_string(),
            engine: engine.name(),
            cpus: cell.threads,
            folio: ByteSize::new((cell.folio * PAGE_SIZE) as u64).to_string(),
            mode,
            page_ns: whole.median(op, mode).round(),
            bookkeeping_ns: round(books.median(op, mode)),
            page_vs_single: is_batch.then(|| round(whole.ratio(op))),
            page_vs_single_error: is_batch.then(|| round(whole.ratio_error(op))),
            bookkeeping_vs_single: is_batch.then(|| round(books.ratio(op))),
        }
    };
    Op::ALL.into_iter().flat_map(|op| Mode::ALL.map(|mode| (op, mode))).map(row).collect()
}

/// Three digits are more than a machine repeats.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "op",
            "codec",
            "engine",
            "folio",
            "mode",
            "cpus",
            "ns a page",
            "of single",
            "+-",
            "bookkeeping",
            "of single",
        ];
        let mut table = table(&heads, 5..);
        for row in &self.rows {
            table.add_row(cells(row));
        }
        writeln!(f, "{}", table.trim_fmt())?;
        write!(
            f,
            "\n{} different pages in units of 4 KiB, x{:.2} with {}; CPU time, medians of {} rounds \
             and more, bookkeeping of {}; load {:.1} at the start",
            self.pages,
            self.ratio,
            self.ratio_codec,
            self.rounds,
            self.book_rounds,
            self.machine.load_1m.unwrap_or(0.0)
        )
    }
}

/// A row as the table shows it.
fn cells(row: &Row) -> Vec<String> {
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("x{ratio:.3}"));
    vec![
        row.op.name().to_owned(),
        row.codec.clone(),
        row.engine.to_owned(),
        row.folio.clone(),
        row.mode.name().to_owned(),
        row.cpus.to_string(),
        format!("{:.0}", row.page_ns),
        ratio(row.page_vs_single),
        row.page_vs_single_error.map_or("-".to_owned(), |error| format!("{error:.3}")),
        format!("{:.1}", row.bookkeeping_ns),
        ratio(row.bookkeeping_vs_single),
    ]
}
