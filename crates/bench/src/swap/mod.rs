//! `octavo bench swap`: one workload under Octavo and under the kernel's swap to zram.
//!
//! ```text
//! for each round                          total memory
//!   for each peer
//!     kernel: worker in a cgroup with     limit + what its zram takes right after the fill ─┐
//!             --memory, zram as swap                                                        │
//!     octavo: octavo run -- worker        the same, as --memory ◄───────────────────────────┘
//! ```
//!
//! The pool of the kernel's zram lies outside of its cgroup's limit, Octavo's inside of its own: so
//! Octavo gets the sum, taken from the peer's run of the same round. Sides take turns, so that what
//! else the machine does falls on both; figures are medians over the rounds, with the least and the
//! greatest beside them.
//!
//! [`worker`] is the workload, [`peer`] the kernel's side, [`pages`] what is stored.

pub mod pages;
pub mod peer;
pub mod worker;

use crate::host::{self, Machine};
use crate::progress::Progress;
use crate::table::table;
use octavo_codec::Codec;
use octavo_page::{ByteSize, PAGE_SIZE, Unit};
use pages::{Pages, PagesError};
use peer::{Keeper, PeerError, Place, last_words};
use serde::{Serialize, Serializer};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;
use worker::{Phase, Report};

/// What all rounds together may take; the one that would pass it is not begun, and one that does
/// pass it is broken off.
const BUDGET: Duration = Duration::from_secs(285);

/// What one phase may take before its side counts as stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// Memory of a process that no limit of Octavo's counts: its stack, its libraries' data.
const UNMANAGED: u64 = 16 << 20;

/// After a phase both sides get so long to finish what they are at, before anybody looks.
const SETTLE: Duration = Duration::from_millis(100);

/// How often a wait looks for Ctrl-C.
const GLANCE: Duration = Duration::from_millis(50);

/// A peer by its name: `zram:lz4`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerName {
    algorithm: String,
}

impl FromStr for PeerName {
    type Err = UnknownPeer;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s.split_once(':') {
            Some(("zram", algorithm)) if !algorithm.is_empty() => {
                Ok(Self { algorithm: algorithm.to_owned() })
            }
            _ => Err(UnknownPeer),
        }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zram:{}", self.algorithm)
    }
}

/// A word that names no peer.
#[derive(Debug, Error)]
#[error("a peer is zram:ALGORITHM, as in zram:lz4 or zram:lzo-rle")]
pub struct UnknownPeer;

/// What is compared.
#[derive(Clone, Debug)]
pub struct Options {
    /// The executable `octavo`, which also has the hidden commands of worker and keeper.
    pub octavo: PathBuf,
    /// Memory the workload fills.
    pub size: ByteSize,
    /// The limit of the peers' cgroup; without peers, Octavo's.
    pub memory: ByteSize,
    /// Files of raw pages.
    pub pages: Vec<PathBuf>,
    /// Numbers of threads, each measured by itself.
    pub threads: Vec<usize>,
    /// The peers.
    pub against: Vec<PeerName>,
    /// Rounds at most.
    pub rounds: usize,
    /// What Octavo compresses with; without: what it chooses.
    pub codec: Option<Codec>,
    /// And how much at once.
    pub unit: Option<Unit>,
    /// For how long the worker rests after the fill.
    pub rest: Duration,
}

/// Why there is no comparison.
#[derive(Debug, Error)]
pub enum SwapError {
    /// The kernel's side, seen from here.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A worker that ended before its time.
    #[error("under {side}: the workload ended with {status}{}{said}", if said.is_empty() { "" } else { ": " })]
    Ended {
        /// Under whom.
        side: String,
        /// How.
        status: ExitStatus,
        /// Its last line on stderr.
        said: String,
    },
    /// A worker that does not get on.
    #[error("under {side}: a phase took more than {} s; give it more --memory", PATIENCE.as_secs())]
    Stuck {
        /// Under whom.
        side: String,
    },
    /// The page files.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// Octavo took more than the peer had, so there is nothing to compare.
    #[error("under octavo: the workload held {} MiB of memory where {} MiB were allowed", mib(*.had), mib(*.allowed))]
    OverLimit {
        /// Anonymous memory in RAM, bytes.
        had: u64,
        /// The limit and what no limit counts, bytes.
        allowed: u64,
    },
    /// The time is up before every side ran once.
    #[error("not one round ended within {} s; take a smaller --size, or fewer peers", BUDGET.as_secs())]
    OutOfTime,
    /// Ctrl-C and its like. Everything is removed.
    #[error("interrupted; everything is removed")]
    Interrupted,
    /// Starting something, or talking to it.
    #[error("{what}: {why}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// What stands in the way.
        why: io::Error,
    },
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> SwapError {
    move |why| SwapError::Io { what, why }
}

/// What was measured, and what could not be.
#[derive(Debug)]
pub struct Outcome {
    /// One object for `--json`; prints as a table.
    pub comparison: Comparison,
    /// Why Octavo's side is missing or shorter, if it is.
    pub failed: Option<SwapError>,
}

/// The comparison as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Comparison {
    bench: &'static str,
    machine: Machine,
    size_bytes: u64,
    rounds: usize,
    rows: Vec<Row>,
}

/// One side at one number of threads.
#[derive(Debug, Serialize)]
struct Row {
    system: String,
    /// The peer whose total memory Octavo got.
    against: Option<String>,
    total_memory_bytes: u64,
    threads: usize,
    #[serde(flatten)]
    fill: Figure,
    #[serde(flatten)]
    seq_read: Figure,
    #[serde(flatten)]
    rand_read: Figure,
    #[serde(flatten)]
    rand_write: Figure,
    /// Bytes stored over the bytes of memory that store them, everything counted, after the fill.
    ratio: Option<f64>,
    /// Those bytes of memory.
    pool_bytes: Option<u64>,
    /// The ratio after the rest, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    rested_ratio: Option<f64>,
    /// Anonymous memory of the worker, the most seen between two phases.
    anon_bytes: u64,
    rounds: usize,
}

/// Median, least and greatest of one measure; for Octavo also over the peer's median.
#[derive(Debug)]
struct Figure {
    key: &'static str,
    median: f64,
    least: f64,
    greatest: f64,
    vs_peer: Option<f64>,
}

impl Figure {
    fn new(key: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let values = sorted(values);
        let (least, greatest) = (values[0], values[values.len() - 1]);
        Self { key, median: median(&values), least, greatest, vs_peer: None }
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let named = |suffix| format!("{}{suffix}", self.key);
        serializer.collect_map(
            [
                (named(""), Some(self.median)),
                (named("_min"), Some(self.least)),
                (named("_max"), Some(self.greatest)),
                (named("_vs_peer"), self.vs_peer),
            ]
            .into_iter()
            .filter_map(|(key, value)| Some((key, round(value?)))),
        )
    }
}

/// Three digits are more than a machine repeats.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The middle one, or the mean of the middle two.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { sorted[middle - 1].midpoint(sorted[middle]) }
}

/// One run of the workload.
#[derive(Clone, Debug, Default)]
struct Sample {
    total_memory: u64,
    reports: Vec<Report>,
    ratio: Option<f64>,
    pool_bytes: Option<u64>,
    rested_ratio: Option<f64>,
    anon_bytes: u64,
}

impl Sample {
    fn report(&self, phase: Phase) -> Report {
        *self.reports.iter().find(|r| r.phase == phase).expect("a sample has every phase")
    }

    fn mb_s(&self, phase: Phase) -> f64 {
        let report = self.report(phase);
        (report.pages * PAGE_SIZE as u64) as f64 / 1e6 / report.seconds
    }

    /// Time for which one thread waits for one page.
    fn page_us(&self, phase: Phase, threads: usize) -> f64 {
        let report = self.report(phase);
        report.seconds * 1e6 * threads as f64 / report.pages as f64
    }
}

/// All runs of one side.
struct Side {
    system: &'static str,
    peer: Option<PeerName>,
    threads: usize,
    samples: Vec<Sample>,
}

/// Compares. The figures that could be had are given even when Octavo's side fails.
///
/// # Errors
/// When a peer cannot be set up, cannot be removed or does not finish, and on Ctrl-C.
pub fn compare(options: &Options) -> Result<Outcome, SwapError> {
    // Looked through once here, so that the page cache they take is charged to no peer's cgroup.
    Pages::open(&options.pages)?;
    let mut driver = Driver::new(options)?;
    let mut longest = Duration::ZERO;
    for round in 0..options.rounds {
        let begin = Instant::now();
        if begin + longest > driver.deadline {
            break;
        }
        driver.round = round;
        match driver.round() {
            Err(SwapError::OutOfTime) if round > 0 => break,
            other => other?,
        }
        longest = longest.max(begin.elapsed());
    }
    Ok(driver.outcome())
}

/// Runs the sides in turn and gathers what they say.
struct Driver<'a> {
    options: &'a Options,
    machine: Machine,
    progress: Progress,
    interrupted: Arc<AtomicBool>,
    deadline: Instant,
    round: usize,
    sides: Vec<Side>,
    failed: Option<SwapError>,
}

impl<'a> Driver<'a> {
    fn new(options: &'a Options) -> Result<Self, SwapError> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))
                .map_err(io_error("signals"))?;
        }
        let progress = Progress::open("bench swap");
        let machine = host::machine();
        let mut sides = Vec::new();
        for &threads in &options.threads {
            let peers = options.against.iter().cloned().map(Some);
            for peer in if options.against.is_empty() { vec![None] } else { peers.collect() } {
                if peer.is_some() {
                    let peer = peer.clone();
                    sides.push(Side { system: "kernel", peer, threads, samples: Vec::new() });
                }
                sides.push(Side { system: "octavo", peer, threads, samples: Vec::new() });
            }
        }
        Ok(Self {
            options,
            machine,
            progress,
            interrupted,
            deadline: Instant::now() + BUDGET,
            round: 0,
            sides,
            failed: None,
        })
    }

    /// Every side once, Octavo's after the peer that sets its memory.
    fn round(&mut self) -> Result<(), SwapError> {
        let mut total = self.options.memory.bytes();
        for i in 0..self.sides.len() {
            let Side { system, peer, threads, .. } = &self.sides[i];
            let (threads, peer) = (*threads, peer.clone());
            let sample = match (*system, peer) {
                ("kernel", Some(peer)) => {
                    let sample = self.kernel(&peer, threads)?;
                    total = sample.total_memory;
                    sample
                }
                _ if self.failed.is_some() => continue,
                _ => match self.octavo(total, threads) {
                    Err(why @ (SwapError::Interrupted | SwapError::OutOfTime)) => return Err(why),
                    Err(why) => {
                        self.failed = Some(why);
                        continue;
                    }
                    Ok(sample) => sample,
                },
            };
            self.sides[i].samples.push(sample);
        }
        Ok(())
    }

    /// The workload in a cgroup, with zram as swap.
    fn kernel(&self, peer: &PeerName, threads: usize) -> Result<Sample, SwapError> {
        let keeper = Keeper::<Place>::spawn(self.keeper_command(peer))?;
        let command = self.worker_command(&self.options.octavo, &[], threads);
        let mut worker = Worker::spawn(command, peer.to_string())?;
        keeper.made.take_in(worker.child.id())?;
        let mut sample = Sample::default();
        self.phases(&mut worker, &mut sample, |phase, sample| {
            if phase == Phase::Fill {
                let zram = peer::zram_use(&keeper.made.device)?;
                sample.total_memory = self.options.memory.bytes() + zram.used;
                sample.pool_bytes = Some(zram.used);
                sample.ratio = Some(zram.ratio());
                sample.rested_ratio =
                    self.rested(|| Ok(Some(peer::zram_use(&keeper.made.device)?.ratio())))?;
            }
            Ok(())
        })?;
        worker.finish()?;
        keeper.finish()?;
        Ok(sample)
    }

    /// The workload under Octavo.
    fn octavo(&self, total: u64, threads: usize) -> Result<Sample, SwapError> {
        let memory = total.to_string();
        let octavo = &self.options.octavo;
        let mut before: Vec<PathBuf> = ["run", "--memory", &memory].map(Into::into).into();
        if let Some(codec) = &self.options.codec {
            before.extend(["--codec".into(), codec.to_string().into()]);
        }
        if let Some(unit) = &self.options.unit {
            before.extend(["--unit".into(), unit.to_string().into()]);
        }
        before.extend(["--".into(), octavo.into()]);
        let command = self.worker_command(octavo, &before, threads);
        let mut worker = Worker::spawn(command, "octavo".to_owned())?;
        let mut sample = Sample { total_memory: total, ..Sample::default() };
        let pid = worker.child.id();
        self.phases(&mut worker, &mut sample, |phase, sample| {
            if phase == Phase::Fill {
                // What is not the workload's memory is all Octavo's, but for a megabyte or two.
                let (size, start) = (self.options.size.bytes(), sample.report(phase).at);
                let memory = || host::anonymous_memory(pid, &(start..start + size as usize));
                let ratio =
                    |m: host::Anonymous| size.saturating_sub(m.inside) as f64 / m.outside as f64;
                let filled = memory();
                sample.pool_bytes = filled.map(|m| m.outside);
                sample.ratio = filled.map(ratio);
                sample.rested_ratio = self.rested(|| Ok(memory().map(ratio)))?;
            }
            Ok(())
        })?;
        worker.finish()?;
        let allowed = total + UNMANAGED;
        if sample.anon_bytes > allowed {
            return Err(SwapError::OverLimit { had: sample.anon_bytes, allowed });
        }
        Ok(sample)
    }

    fn worker_command(&self, program: &Path, before: &[PathBuf], threads: usize) -> Command {
        let mut command = Command::new(program);
        command.args(before).arg("bench-swap-worker");
        command.args(["--size", &self.options.size.to_string()]);
        command.args(["--threads", &threads.to_string()]);
        command.arg("--pages").args(&self.options.pages);
        command
    }

    fn keeper_command(&self, peer: &PeerName) -> Command {
        // Room for every page, also where none can be compressed.
        let disk = self.options.size.bytes() + self.options.size.bytes() / 8 + (64 << 20);
        let mut command = Command::new(&self.options.octavo);
        command.arg("bench-swap-peer").args(["--algorithm", &peer.algorithm]);
        command.args(["--disk", &disk.to_string()]);
        command.args(["--memory", &self.options.memory.to_string()]);
        command
    }

    /// Lets the worker do its phases; `look` sees it stand still after each.
    fn phases(
        &self,
        worker: &mut Worker,
        sample: &mut Sample,
        mut look: impl FnMut(Phase, &mut Sample) -> Result<(), SwapError>,
    ) -> Result<(), SwapError> {
        for phase in Phase::ALL {
            let Options { rounds, .. } = self.options;
            let at = self.round + 1;
            self.progress.now(format!("round {at} of {rounds}: {}: {phase:?}", worker.side));
            let report = worker.phase(&self.interrupted, self.deadline)?;
            assert_eq!(report.phase, phase, "driver and worker are of one build");
            sample.reports.push(report);
            sample.anon_bytes = sample.anon_bytes.max(worker.anon_bytes());
            thread::sleep(SETTLE);
            look(phase, sample)?;
        }
        Ok(())
    }

    /// Lets the worker rest, if it is to, and then looks.
    fn rested(
        &self,
        look: impl FnOnce() -> Result<Option<f64>, SwapError>,
    ) -> Result<Option<f64>, SwapError> {
        let rest = self.options.rest;
        if rest.is_zero() {
            return Ok(None);
        }
        self.progress.now(format!("round {}: it rests for {} s", self.round + 1, rest.as_secs()));
        let until = Instant::now() + rest;
        while Instant::now() < until {
            may_go_on(&self.interrupted, self.deadline)?;
            thread::sleep(GLANCE);
        }
        look()
    }

    fn outcome(self) -> Outcome {
        let rounds = self.sides.iter().map(|side| side.samples.len()).max().unwrap_or(0);
        let mut rows: Vec<Row> = Vec::new();
        for side in self.sides.iter().filter(|side| !side.samples.is_empty()) {
            let mut row = side.row();
            // A peer's row stands right before the row of Octavo that is measured against it.
            if let (Some(_), Some(peer)) = (&row.against, rows.last()) {
                row.compare_with(peer);
            }
            rows.push(row);
        }
        let size_bytes = self.options.size.bytes();
        let comparison =
            Comparison { bench: "swap", machine: self.machine, size_bytes, rounds, rows };
        Outcome { comparison, failed: self.failed }
    }
}

impl Side {
    fn row(&self) -> Row {
        let samples = &self.samples;
        let mb_s = |key, phase| Figure::new(key, samples.iter().map(|s| s.mb_s(phase)));
        let us =
            |key, phase| Figure::new(key, samples.iter().map(|s| s.page_us(phase, self.threads)));
        let middle = |value: &dyn Fn(&Sample) -> Option<f64>| {
            let values = sorted(samples.iter().filter_map(value));
            (!values.is_empty()).then(|| median(&values))
        };
        let peer = self.peer.as_ref().map(PeerName::to_string);
        let (system, against) = match (self.system, peer) {
            ("kernel", Some(peer)) => (peer, None),
            (system, peer) => (system.to_owned(), peer),
        };
        Row {
            system,
            against,
            total_memory_bytes: middle(&|s| Some(s.total_memory as f64)).unwrap_or(0.0) as u64,
            threads: self.threads,
            fill: mb_s("fill_mb_s", Phase::Fill),
            seq_read: mb_s("seq_read_mb_s", Phase::SeqRead),
            rand_read: us("rand_read_us", Phase::RandRead),
            rand_write: us("rand_write_us", Phase::RandWrite),
            ratio: middle(&|s| s.ratio).map(round),
            pool_bytes: middle(&|s| Some(s.pool_bytes? as f64)).map(|bytes| bytes as u64),
            rested_ratio: middle(&|s| s.rested_ratio).map(round),
            anon_bytes: samples.iter().map(|s| s.anon_bytes).max().unwrap_or(0),
            rounds: samples.len(),
        }
    }
}

impl Row {
    fn figures(&self) -> [&Figure; 4] {
        [&self.fill, &self.seq_read, &self.rand_read, &self.rand_write]
    }

    fn compare_with(&mut self, peer: &Self) {
        let ours = [&mut self.fill, &mut self.seq_read, &mut self.rand_read, &mut self.rand_write];
        for (ours, theirs) in ours.into_iter().zip(peer.figures()) {
            ours.vs_peer = Some(ours.median / theirs.median);
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = [
            "system",
            "threads",
            "total MiB",
            "fill MB/s",
            "read MB/s",
            "rand read us",
            "rand write us",
            "ratio",
            "pool MiB",
            "rested",
        ];
        let mut table = table(&heads, 1..);
        for row in &self.rows {
            table.add_row(cells(row));
            if row.fill.vs_peer.is_some() {
                table.add_row(ratio_cells(row));
            }
        }
        writeln!(f, "{}", table.trim_fmt())?;
        write!(
            f,
            "\n{} of pages, medians of {} rounds and how far they lie apart, load {:.1} at the start",
            ByteSize::new(self.size_bytes),
            self.rounds,
            self.machine.load_1m.unwrap_or(0.0)
        )
    }
}

fn mib(bytes: u64) -> String {
    (bytes >> 20).to_string()
}

/// A row as the table shows it.
fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.system.clone(), row.threads.to_string(), mib(row.total_memory_bytes)];
    cells.extend(row.figures().map(|figure| {
        let spread = (figure.greatest - figure.least) / 2.0 / figure.median * 100.0;
        if row.rounds == 1 {
            format!("{:.1}", figure.median)
        } else {
            format!("{:.1} ±{spread:.0}%", figure.median)
        }
    }));
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    cells.push(ratio(row.ratio));
    cells.push(row.pool_bytes.map_or("-".to_owned(), mib));
    cells.push(ratio(row.rested_ratio));
    cells
}

/// How Octavo compares: above 1 is more speed in the first two, more time in the others.
fn ratio_cells(row: &Row) -> Vec<String> {
    let against = row.against.as_deref().unwrap_or("peer");
    let mut cells = vec![format!("  over {against}"), String::new(), String::new()];
    let ratios = row.figures().map(|figure| figure.vs_peer.unwrap_or(f64::NAN));
    cells.extend(ratios.map(|ratio| format!("x{ratio:.2}")));
    cells
}

/// Whether nobody pressed Ctrl-C and there is time left.
fn may_go_on(interrupted: &AtomicBool, deadline: Instant) -> Result<(), SwapError> {
    if interrupted.load(Ordering::Relaxed) {
        return Err(SwapError::Interrupted);
    }
    if Instant::now() > deadline { Err(SwapError::OutOfTime) } else { Ok(()) }
}

/// A worker, killed when this goes.
struct Worker {
    side: String,
    child: Child,
    go: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Worker {
    fn spawn(mut command: Command, side: String) -> Result<Self, SwapError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(io_error("the workload"))?;
        let go = child.stdin.take();
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // A thread, because reading a pipe cannot look for Ctrl-C or a deadline meanwhile.
            let read = move || {
                let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
                lines.all(|line| sender.send(line).is_ok())
            };
            thread::Builder::new().spawn(read).map_err(io_error("a thread"))?;
        }
        Ok(Self { side, child, go, lines })
    }

    /// Lets it do its next phase.
    fn phase(&mut self, interrupted: &AtomicBool, deadline: Instant) -> Result<Report, SwapError> {
        let told = self.go.as_mut().map(|go| go.write_all(b"go\n"));
        let begin = Instant::now();
        loop {
            may_go_on(interrupted, deadline)?;
            if begin.elapsed() > PATIENCE {
                return Err(SwapError::Stuck { side: self.side.clone() });
            }
            match self.lines.recv_timeout(GLANCE) {
                Ok(line) if told.as_ref().is_some_and(Result::is_ok) => {
                    let what = "the workload's report";
                    return serde_json::from_str(&line).map_err(|e| io_error(what)(e.into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    /// Waits for its end.
    fn finish(mut self) -> Result<(), SwapError> {
        drop(self.go.take());
        let status = self.child.wait().map_err(io_error("the workload"))?;
        if status.success() { Ok(()) } else { Err(self.ended()) }
    }

    /// How it ended, when it was not asked to.
    fn ended(&mut self) -> SwapError {
        let said = last_words(&mut self.child);
        match self.child.wait() {
            Ok(status) => SwapError::Ended { side: self.side.clone(), status, said },
            Err(why) => io_error("the workload")(why),
        }
    }

    /// Its anonymous memory in RAM; 0 when it has ended.
    fn anon_bytes(&self) -> u64 {
        let file = format!("/proc/{}/smaps_rollup", self.child.id());
        let text = fs::read_to_string(file).unwrap_or_default();
        host::field(&text, "Pss_Anon:").unwrap_or(0) << 10
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64) -> Sample {
        let report = |phase| Report { phase, seconds, pages: 1_000, at: 0 };
        let reports = Phase::ALL.into_iter().map(report).collect();
        Sample { total_memory: 1 << 20, reports, ratio: Some(2.0), ..Sample::default() }
    }

    fn side(system: &'static str, seconds: &[f64]) -> Side {
        let peer = Some(PeerName { algorithm: "lz4".to_owned() });
        Side { system, peer, threads: 2, samples: seconds.iter().map(|s| sample(*s)).collect() }
    }

    #[test]
    fn rows_have_the_keys_of_the_contract() {
        let peer = side("kernel", &[4.0, 1.0, 2.0]).row();
        let mut row = side("octavo", &[1.0]).row();
        row.compare_with(&peer);
        let json = serde_json::to_value(&row).expect("plain data");
        for (key, value) in [
            ("fill_mb_s", 4.096),
            ("seq_read_mb_s_min", 4.096),
            ("rand_read_us", 2_000.0),
            ("rand_write_us_max", 2_000.0),
            ("fill_mb_s_vs_peer", 2.0),
            ("rand_read_us_vs_peer", 0.5),
            ("ratio", 2.0),
        ] {
            assert_eq!(json[key].as_f64(), Some(value), "{key}");
        }
        for (key, value) in [("total_memory_bytes", 1 << 20), ("threads", 2), ("anon_bytes", 0)] {
            assert_eq!(json[key].as_u64(), Some(value), "{key}");
        }
        assert_eq!(
            (json["system"].as_str(), json["against"].as_str()),
            (Some("octavo"), Some("zram:lz4"))
        );
        let json = serde_json::to_value(&peer).expect("plain data");
        assert_eq!((json["system"].as_str(), json["against"].as_str()), (Some("zram:lz4"), None));
        assert_eq!(json["rand_read_us"].as_f64(), Some(4_000.0), "the median of three");
        assert_eq!(json.get("fill_mb_s_vs_peer"), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[1.0]), 1.0);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
        assert_eq!(median(&sorted([9.0, 1.0, 2.0].into_iter())), 2.0);
    }

    #[test]
    fn peers_read_back_as_they_print() {
        for name in ["zram:lz4", "zram:lzo-rle"] {
            assert_eq!(name.parse::<PeerName>().expect(name).to_string(), name);
        }
        for name in ["zram", "zram:", "zswap:lz4", ""] {
            assert!(name.parse::<PeerName>().is_err(), "{name}");
        }
    }
}
