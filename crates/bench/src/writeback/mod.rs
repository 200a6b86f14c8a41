//! `octavo bench writeback`: compressed objects out to a file, encrypted, and back.
//!
//! Speeds are what passes on the clock, beside what the disk does with the same bytes as they are, and what
//! the processor could do (`speed`); room and cleaning are counted, not timed (`churn`).

mod churn;
mod speed;
mod target;

use crate::host::{self, Machine};
use crate::progress::Progress;
use crate::table::table;
use churn::{Churned, LIVE, Lifetimes, churn};
use octavo_backing::file::OpenError;
use octavo_backing::{Geometry, NewError, ReadError, Ways, WriteError};
use octavo_crypt::KeyError;
use octavo_mempool::MempoolError;
use octavo_sys::{Errno, reason};
use serde::Serialize;
use speed::{Round, Speed};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use target::{Owned, Target};
use thiserror::Error;

/// How often speeds are measured, at most.
const ROUNDS: usize = 5;

/// No further round is begun after this: a slow disk gets fewer.
const BUDGET: Duration = Duration::from_secs(90);

/// Bytes that the file of churn may get to.
const CHURN_FILE: u64 = 2 * LIVE as u64;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// A new file to write to, or a block device; a file in the directory for temporary ones when there is
    /// none.
    pub backing: Option<PathBuf>,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum WritebackError {
    /// The target cannot be made.
    #[error("--backing {}: {why}", path.display())]
    Target {
        /// What was asked for.
        path: PathBuf,
        /// What is wrong with it.
        why: OpenError,
    },
    /// The target has no name that the kernel takes.
    #[error("--backing {}: a name with a zero byte; it takes the name of a new file", .0.display())]
    Name(PathBuf),
    /// The target cannot be used.
    #[error(transparent)]
    Backing(#[from] NewError),
    /// An object could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An object could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A transfer without a backing failed.
    #[error("the target: {}", .0.map_or("a transfer was cut short", reason))]
    Raw(Option<Errno>),
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
    /// What the target does: `O_DIRECT`, `ring`, `registered`, `holes`.
    target: Vec<&'static str>,
    rounds: usize,
    rows: Vec<Row>,
}

/// One direction.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    /// `write`, `write-1M` (in chunks of a whole segment), `read`, `fault`, `churn-uniform`, `churn-generations`.
    direction: &'static str,
    mb_s: Option<f64>,
    /// Bytes that the device wrote.
    bytes_written: u64,
    /// Bytes of objects that were given.
    bytes_stored: u64,
    /// A read of one object at random, to the decompressed unit.
    fault_us: Option<f64>,
    /// The same of the device without us.
    raw_mb_s: Option<f64>,
    aes_mb_s: Option<f64>,
    checksum_mb_s: Option<f64>,
    memcpy_mb_s: Option<f64>,
    raw_us: Option<f64>,
    decrypt_us: Option<f64>,
    decompress_us: Option<f64>,
    /// Of the bound that its issue sets: speed over the smaller of disk and processor; a fault over its bare
    /// parts.
    vs_bound: Option<f64>,
    /// Speed by processor time of who writes, and that over what the processor allows.
    cpu_mb_s: Option<f64>,
    cpu_vs_bound: Option<f64>,
    /// Bytes written over bytes stored.
    written_over_stored: Option<f64>,
    /// The most that the file took, over what lived.
    file_over_live: Option<f64>,
    /// Bytes that the cleaner moved, over new bytes.
    cleaning_over_new: Option<f64>,
}

/// Measures everything.
///
/// # Errors
/// When there is no target, no memory or no key, or the target fails.
pub fn compare(options: &Options) -> Result<Comparison, WritebackError> {
    let machine = host::machine();
    let target = Target::new(options.backing.clone());
    let mut speed = Speed::new(target::objects(Speed::objects()))?;
    let progress = Progress::of("bench writeback", ROUNDS + 2);
    let (mut rounds, begin) = (Vec::new(), Instant::now());
    while rounds.len() < ROUNDS && (rounds.is_empty() || begin.elapsed() < BUDGET) {
        rounds.push(speed.round(&target)?);
        progress.step();
    }
    let mut rows = rows_of(&rounds);
    let (ways, row) = churn_row(&target, Lifetimes::Uniform, "churn-uniform")?;
    rows.push(row);
    progress.step();
    rows.push(churn_row(&target, Lifetimes::Generations, "churn-generations")?.1);
    let target = names(ways);
    Ok(Comparison { bench: "writeback", machine, target, rounds: rounds.len(), rows })
}

fn names(ways: Ways) -> Vec<&'static str> {
    let Ways { direct, ring, registered, holes } = ways;
    let all = [(direct, "O_DIRECT"), (ring, "ring"), (registered, "registered"), (holes, "holes")];
    all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
}

fn churn_row(
    target: &Target,
    lifetimes: Lifetimes,
    direction: &'static str,
) -> Result<(Ways, Row), WritebackError> {
    let backing = target.backing(CHURN_FILE, Geometry::USUAL)?;
    let owned = Owned::new(LIVE);
    let churned = churn(&backing, &owned, lifetimes)?;
    let Churned { file_over_live, cleaning, new_bytes, written_bytes } = churned;
    let row = Row {
        direction,
        bytes_written: written_bytes,
        bytes_stored: new_bytes,
        file_over_live: Some(round(file_over_live)),
        cleaning_over_new: Some(round(cleaning)),
        ..Row::default()
    };
    Ok((backing.ways().next().expect("one device"), row))
}

/// The rows of speeds: medians of all rounds.
fn rows_of(rounds: &[Round]) -> Vec<Row> {
    let of = |value: fn(&Round) -> f64| Some(round(median(rounds.iter().map(value).collect())));
    let last = rounds.last().expect("at least one round");
    let (bytes_written, bytes_stored) = (last.bytes_written, last.bytes_stored);
    let write = Row {
        direction: "write",
        mb_s: of(|round| round.write_mb_s),
        raw_mb_s: of(|round| round.raw_write_mb_s),
        aes_mb_s: of(|round| round.aes_mb_s),
        checksum_mb_s: of(|round| round.checksum_mb_s),
        memcpy_mb_s: of(|round| round.memcpy_mb_s),
        vs_bound: of(|round| round.write_mb_s / round.bound()),
        cpu_mb_s: of(|round| round.write_cpu_mb_s),
        cpu_vs_bound: of(|round| round.write_cpu_mb_s / round.processor_bound()),
        written_over_stored: of(|round| round.bytes_written as f64 / round.bytes_stored as f64),
        bytes_written,
        bytes_stored,
        ..Row::default()
    };
    let wide = Row {
        direction: "write-1M",
        mb_s: of(|round| round.wide_write_mb_s),
        vs_bound: of(|round| round.wide_write_mb_s / round.bound()),
        ..write.clone()
    };
    let wide = Row { cpu_mb_s: None, cpu_vs_bound: None, ..wide };
    let read = Row {
        direction: "read",
        mb_s: of(|round| round.read_mb_s),
        raw_mb_s: of(|round| round.raw_read_mb_s),
        bytes_stored,
        ..Row::default()
    };
    let fault = Row {
        direction: "fault",
        fault_us: of(|round| round.fault_us),
        raw_us: of(|round| round.raw_us),
        decrypt_us: of(|round| round.decrypt_us),
        decompress_us: of(|round| round.decompress_us),
        vs_bound: of(|round| round.fault_us / round.least_us()),
        bytes_stored,
        ..Row::default()
    };
    vec![write, wide, read, fault]
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "direction",
            "MB/s",
            "raw",
            "AES",
            "checksum",
            "memcpy",
            "us",
            "raw",
            "decrypt",
            "decompress",
            "of bound",
            "by CPU",
            "of bound",
            "written/stored",
            "file/live",
            "cleaning/new",
        ];
        let mut table = table(&heads, 1..);
        for row in &self.rows {
            table.add_row(cells(row));
        }
        writeln!(f, "{}", table.trim_fmt())?;
        write!(
            f,
            "\ntarget: {}; medians of {} rounds; load {:.1} at the start",
            self.target.join(", "),
            self.rounds,
            self.machine.load_1m.unwrap_or(0.0)
        )
    }
}

/// A row as the table shows it.
fn cells(row: &Row) -> Vec<String> {
    let show = |value: Option<f64>, digits: usize| {
        value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let speeds = [row.mb_s, row.raw_mb_s, row.aes_mb_s, row.checksum_mb_s, row.memcpy_mb_s];
    let times = [row.fault_us, row.raw_us, row.decrypt_us, row.decompress_us];
    let ratios =
        [row.cpu_vs_bound, row.written_over_stored, row.file_over_live, row.cleaning_over_new];
    let mut cells = vec![row.direction.to_owned()];
    cells.extend(speeds.map(|value| show(value, 0)));
    cells.extend(times.map(|value| show(value, 1)));
    cells.extend([show(row.vs_bound, 3), show(row.cpu_mb_s, 0)]);
    cells.extend(ratios.map(|value| show(value, 3)));
    cells
}

/// MB a second since `begin`.
fn mb_s(bytes: usize, begin: Instant) -> f64 {
    bytes as f64 / 1e6 / begin.elapsed().as_secs_f64()
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Three digits are more than a machine repeats.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
