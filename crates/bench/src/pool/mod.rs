//! `octavo bench pool`: the compressed objects of page files in our pool, in the series' pool, in the
//! kernel's zsmalloc and in allocators.
//!
//! ```text
//! driver ── spawns, one after the other ──► worker of one system: fills, churns, compacts
//!    │        LD_PRELOAD for an allocator        │    objects  what is stored
//!    │                                           │    work     what is done with a system
//!    └──────────────── rows, one a line ◄────────┘    systems  who stores it
//! ```
//!
//! A system has a process of its own, so that none finds memory that another has left behind, and
//! an allocator can take the place of the C library's. A system that is not to be had here is left
//! out, and that is said.

pub mod objects;
pub mod oracle;
pub mod systems;
pub mod work;

use crate::host::{self, Machine};
use crate::progress::Progress;
use crate::swap::peer::{PeerError, last_words};
use crate::table::table;
use comfy_table::Table;
use objects::{Objects, ObjectsError};
use octavo_codec::{Codec, ZstdLevel};
use octavo_page::{ByteSize, ChainLength, Unit};
use octavo_pool::classes::ClassRow;
use octavo_pool::reference::Reference;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use systems::{Malloc, Octavo, Shared, System, Zram};
use thiserror::Error;
use work::{Rate, State};

/// A system that would begin later than this is left out.
const BUDGET: Duration = Duration::from_secs(230);

/// A system that is not done by then is broken off.
const DEADLINE: Duration = Duration::from_secs(290);

/// Where packages put the allocators.
const LIBRARIES: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/local/lib", "/usr/lib64", "/usr/lib"];

/// What is compared.
#[derive(Clone, Debug)]
pub struct Options {
    /// The executable `octavo`, which also has the hidden commands of workers and keepers.
    pub octavo: PathBuf,
    /// Files of raw pages.
    pub pages: Vec<PathBuf>,
    /// Pages to store: the files', over and over.
    pub size: ByteSize,
    /// The longest chains, each for itself.
    pub chains: Vec<ChainLength>,
}

/// Who stores objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemName {
    /// Our pool.
    Octavo,
    /// The series' pool.
    Reference,
    /// The kernel's, in zram.
    Zsmalloc,
    /// The C library's `malloc`.
    Libc,
    /// jemalloc.
    Jemalloc,
    /// mimalloc.
    Mimalloc,
}

impl SystemName {
    const ALL: [Self; 6] =
        [Self::Octavo, Self::Reference, Self::Zsmalloc, Self::Libc, Self::Jemalloc, Self::Mimalloc];

    const fn name(self) -> &'static str {
        match self {
            Self::Octavo => "octavo",
            Self::Reference => "reference",
            Self::Zsmalloc => "zsmalloc",
            Self::Libc => "libc",
            Self::Jemalloc => "jemalloc",
            Self::Mimalloc => "mimalloc",
        }
    }

    /// The libraries that make an allocator that of a process, newest first, and their package.
    const fn libraries(self) -> Option<(&'static [&'static str], &'static str)> {
        match self {
            Self::Jemalloc => Some((&["libjemalloc.so.2"], "libjemalloc2")),
            Self::Mimalloc => Some((
                &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"],
                "libmimalloc2.0",
            )),
            _ => None,
        }
    }
}

impl fmt::Display for SystemName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SystemName {
    type Err = UnknownSystem;

    fn from_str(s: &str) -> Result<Self, UnknownSystem> {
        Self::ALL.into_iter().find(|system| system.name() == s).ok_or(UnknownSystem)
    }
}

/// A word that names no system.
#[derive(Debug, Error)]
#[error("a system is octavo, reference, zsmalloc, libc, jemalloc or mimalloc")]
pub struct UnknownSystem;

/// What a worker does.
#[derive(Clone, Debug)]
pub enum Task {
    /// Fills, churns and compacts, with units compressed so.
    Phases(Codec, Unit),
    /// Speed.
    Rates,
}

/// What a worker does, and with what.
#[derive(Clone, Debug)]
pub struct Job {
    /// With whom.
    pub system: SystemName,
    /// What.
    pub task: Task,
    /// Files, size, chains.
    pub options: Options,
}

/// Why a comparison, or a worker, ended.
#[derive(Debug, Error)]
pub enum PoolError {
    /// The page files.
    #[error(transparent)]
    Pages(#[from] ObjectsError),
    /// The kernel's side.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// No room for what is to be stored.
    #[error("--size: {0}; take a smaller one")]
    Memory(String),
    /// A worker that failed where nothing may.
    #[error("{system}: the worker failed{}{said}", if said.is_empty() { "" } else { ": " })]
    Worker {
        /// Whose.
        system: SystemName,
        /// Its last line on stderr.
        said: String,
    },
    /// Starting something, or talking to it.
    #[error("{what}: {why}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// What stands in the way.
        why: io::Error,
    },
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> PoolError {
    move |why| PoolError::Io { what, why }
}

/// The comparison as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Comparison {
    bench: &'static str,
    machine: Machine,
    size_bytes: u64,
    rows: Vec<Row>,
    published: [Published; 3],
    /// The size classes of `octavo` and `reference` after the fill.
    class_rows: Vec<ClassOf>,
    left_out: Vec<LeftOut>,
}

/// A system, and what it did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    system: String,
    /// How units are compressed; none where objects of 1 KiB are stored, to measure speed.
    codec: Option<String>,
    unit: Option<String>,
    chain: Option<usize>,
    phase: String,
    threads: usize,
    classes: Option<usize>,
    objects: usize,
    compressed_bytes: usize,
    used_bytes: Option<usize>,
    overhead: Option<f64>,
    overhead_bare: Option<f64>,
    ops_per_s: f64,
    /// CPU time of an operation, of all threads together.
    cpu_ns: Option<f64>,
    /// Of compaction: objects moved, pages that came free, and the moves that an oracle needs.
    moves: Option<usize>,
    pages_freed: Option<usize>,
    moves_oracle: Option<usize>,
}

/// What the series says of a chain length: averages of five kernel builds on zram with lzo-rle.
#[derive(Clone, Copy, Debug, Serialize)]
struct Published {
    chain: usize,
    classes: usize,
    huge_from: usize,
    compressed_bytes: u64,
    used_bytes: u64,
    overhead: f64,
    /// The most memory used, over that of chain 4, less 1.
    saving: f64,
}

impl Published {
    const fn new(chain: usize, classes: usize, huge_from: usize, sums: [u64; 2]) -> Self {
        let [compressed_bytes, used_bytes] = sums;
        let overhead = used_bytes as f64 / compressed_bytes as f64 - 1.0;
        let saving = used_bytes as f64 / Self::OF_CHAIN_4 as f64 - 1.0;
        Self { chain, classes, huge_from, compressed_bytes, used_bytes, overhead, saving }
    }

    const OF_CHAIN_4: u64 = 655_180_595;

    /// The tables of the series' cover letter.
    const ALL: [Self; 3] = [
        Self::new(4, 69, 3264, [628_090_629, Self::OF_CHAIN_4]),
        Self::new(8, 123, 3632, [627_786_860, 641_776_845]),
        Self::new(16, 191, 3840, [627_728_900, 639_658_394]),
    ];
}

/// A size class of one system.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct ClassOf {
    system: String,
    codec: String,
    unit: String,
    chain: usize,
    class: usize,
    /// One for each of [`ClassRow::COLUMNS`].
    #[serde(flatten)]
    numbers: BTreeMap<String, usize>,
}

/// What was not measured, and why.
#[derive(Debug, Serialize)]
struct LeftOut {
    system: String,
    why: String,
}

/// What a worker says, a line each.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Row(Row),
    Class(ClassOf),
}

/// Compares.
///
/// # Errors
/// When the page files cannot be used, or our own pool or the series' fails. A peer that fails is left
/// out.
pub fn compare(options: &Options) -> Result<Comparison, PoolError> {
    Objects::new(&options.pages, None, Unit::K64)?;
    let (begin, progress) = (Instant::now(), Progress::open("bench pool"));
    let mut comparison = Comparison {
        bench: "pool",
        machine: host::machine(),
        size_bytes: options.size.bytes(),
        rows: Vec::new(),
        published: Published::ALL,
        class_rows: Vec::new(),
        left_out: Vec::new(),
    };
    for job in jobs(options) {
        progress.now(job.to_string());
        let done = if begin.elapsed() > BUDGET {
            Err(format!("{} s were over; take a smaller --size", BUDGET.as_secs()))
        } else {
            let left = DEADLINE.saturating_sub(begin.elapsed());
            comparison.run(&job, left).map_err(|why| why.to_string())
        };
        if let Err(why) = done {
            comparison.left_out.push(LeftOut { system: job.to_string(), why });
        }
    }
    Ok(comparison)
}

/// What is measured, the most telling first.
fn jobs(options: &Options) -> Vec<Job> {
    let zstd = Codec::Zstd(ZstdLevel::new(1).expect("a level"));
    let ours = [SystemName::Octavo, SystemName::Reference];
    let mallocs = [SystemName::Libc, SystemName::Jemalloc, SystemName::Mimalloc];
    let phases = |systems: &[SystemName], codec, unit| {
        systems.iter().map(|system| (*system, Task::Phases(codec, unit))).collect::<Vec<_>>()
    };
    let rates = [SystemName::Octavo].iter().chain(&mallocs).map(|system| (*system, Task::Rates));
    [
        phases(&ours, zstd, Unit::K4),
        phases(&ours, Codec::Lz4, Unit::K4),
        phases(&[SystemName::Zsmalloc], Codec::Lz4, Unit::K4),
        phases(&[SystemName::Zsmalloc], zstd, Unit::K4),
        rates.collect(),
        phases(&mallocs, zstd, Unit::K4),
        phases(&ours, zstd, Unit::K16),
        phases(&ours, zstd, Unit::K64),
    ]
    .into_iter()
    .flatten()
    .map(|(system, task)| Job { system, task, options: options.clone() })
    .collect()
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.task {
            Task::Phases(codec, unit) => write!(f, "{}, {codec}, {unit}", self.system),
            Task::Rates => write!(f, "{}, speed", self.system),
        }
    }
}

impl Comparison {
    /// Has a worker do a job within the time `left`, and takes in what it says.
    fn run(&mut self, job: &Job, left: Duration) -> Result<(), PoolError> {
        let mut command = job.command();
        if let Some((names, package)) = job.system.libraries() {
            let Some(library) = find_library(names) else {
                let said = format!("{} is not installed; `apt install {package}`", names[0]);
                return Err(PoolError::Worker { system: job.system, said });
            };
            command.env("LD_PRELOAD", library);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut worker = command.spawn().map_err(io_error("a worker"))?;
        let stdout = worker.stdout.take().expect("piped");
        let (sender, lines) = mpsc::channel();
        // A thread, because reading a pipe cannot look at the clock meanwhile.
        let read = move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.all(|line| sender.send(line).is_ok())
        };
        thread::Builder::new().spawn(read).map_err(io_error("a thread"))?;
        let end = Instant::now() + left;
        loop {
            match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => self.take(&line)?,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    worker.kill().and_then(|()| worker.wait()).map_err(io_error("a worker"))?;
                    let said = "it took too long; take a smaller --size".to_owned();
                    return Err(PoolError::Worker { system: job.system, said });
                }
            }
        }
        match worker.wait().map_err(io_error("a worker"))? {
            status if status.success() => Ok(()),
            _ => Err(PoolError::Worker { system: job.system, said: last_words(&mut worker) }),
        }
    }
}

impl Comparison {
    /// Takes in a line of a worker.
    fn take(&mut self, line: &str) -> Result<(), PoolError> {
        match serde_json::from_str(line).map_err(|why| io_error("a worker")(why.into()))? {
            Line::Row(row) => self.rows.push(row),
            Line::Class(class) => self.class_rows.push(class),
        }
        Ok(())
    }
}

fn find_library(names: &[&str]) -> Option<PathBuf> {
    let paths = names.iter().flat_map(|name| LIBRARIES.map(|dir| Path::new(dir).join(name)));
    paths.into_iter().find(|path| path.exists())
}

impl Job {
    fn command(&self) -> Command {
        let Options { octavo, pages, size, chains } = &self.options;
        let mut command = Command::new(octavo);
        command.arg("bench-pool-worker").args(["--system", self.system.name()]);
        if let Task::Phases(codec, unit) = &self.task {
            command.args(["--codec", &codec.to_string(), "--unit", &unit.to_string()]);
        }
        let chains: Vec<_> = chains.iter().map(|chain| chain.get().to_string()).collect();
        command.args(["--size", &size.to_string(), "--chain", &chains.join(",")]);
        command.arg("--pages").args(pages);
        command
    }

    /// Is the worker: does the job and says each row on stdout as a line.
    ///
    /// # Errors
    /// Whatever stands in the way.
    pub fn work(&self) -> Result<(), PoolError> {
        // Nobody else would end us if the driver were killed.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|why| io_error("a worker")(why.into()))?;
        match &self.task {
            Task::Phases(codec, unit) => self.phases(*codec, *unit),
            Task::Rates => self.rates(),
        }
    }

    fn phases(&self, codec: Codec, unit: Unit) -> Result<(), PoolError> {
        let compressed = (self.system != SystemName::Zsmalloc).then_some(codec);
        let objects = Objects::new(&self.options.pages, compressed, unit)?;
        let units = (self.options.size.bytes() as usize / unit.bytes()).max(1);
        let telling = Telling { system: self.system, codec, unit, chain: None };
        match self.system {
            SystemName::Octavo | SystemName::Reference => {
                self.options.chains.iter().try_for_each(|&chain| {
                    let telling = Telling { chain: Some(chain.get()), ..telling };
                    if self.system == SystemName::Octavo {
                        let sizes = || objects.first(units).map(<[u8]>::len);
                        let (count, bytes) = (sizes().count(), sizes().sum());
                        let mut pool = Octavo::new(chain, unit.bytes(), count, bytes)?;
                        telling.phases(&mut pool, &objects, units)
                    } else {
                        let mut pool = Reference::new(chain, unit.bytes());
                        telling.phases(&mut pool, &objects, units)
                    }
                })
            }
            SystemName::Zsmalloc => {
                let algorithm = codec.to_string();
                let algorithm = algorithm.split(':').next().unwrap_or_default();
                let Options { octavo, size, .. } = &self.options;
                let mut zram = Zram::new(octavo, algorithm, *size)?;
                let telling = Telling { chain: Some(kernel_chain()), ..telling };
                telling.phases(&mut zram, &objects, units)?;
                zram.finish()
            }
            SystemName::Libc | SystemName::Jemalloc | SystemName::Mimalloc => {
                telling.phases(&mut Malloc::new()?, &objects, units)
            }
        }
    }

    /// With 1 GiB of objects, or half of `--size` where that is less.
    fn rates(&self) -> Result<(), PoolError> {
        let bytes = (self.options.size.bytes() / 2).min(1 << 30) as usize;
        let objects = (bytes / work::OBJECT).max(2);
        if self.system == SystemName::Octavo {
            let pool = Octavo::new(ChainLength::MAX, Unit::K4.bytes(), objects, bytes)?;
            self.tell_rates(&pool, objects)
        } else {
            self.tell_rates(&Malloc::new()?, objects)
        }
    }

    fn tell_rates(&self, system: &impl Shared, objects: usize) -> Result<(), PoolError> {
        let mut told = Ok(());
        work::rates(system, objects, |Rate { phase, threads, ops_per_s, cpu_ns }| {
            let row = Row {
                system: self.system.to_string(),
                codec: None,
                unit: None,
                chain: None,
                phase: phase.to_owned(),
                threads,
                classes: None,
                objects,
                compressed_bytes: objects * work::OBJECT,
                used_bytes: None,
                overhead: None,
                overhead_bare: None,
                ops_per_s: ops_per_s.round(),
                cpu_ns: Some(cpu_ns.round()),
                moves: None,
                pages_freed: None,
                moves_oracle: None,
            };
            if told.is_ok() {
                told = say(&Line::Row(row));
            }
        });
        told
    }
}

/// What rows of one pool have in common.
struct Telling {
    system: SystemName,
    codec: Codec,
    unit: Unit,
    chain: Option<usize>,
}

impl Telling {
    fn phases(
        &self,
        system: &mut impl System,
        objects: &Objects,
        units: usize,
    ) -> Result<(), PoolError> {
        work::phases(system, objects, units, |system, state| {
            let classes = system.classes();
            say(&Line::Row(self.row(&state, (!classes.is_empty()).then_some(classes.len()))))?;
            if state.phase == "fill" {
                classes.iter().try_for_each(|class| say(&Line::Class(self.class(class))))?;
            }
            Ok(())
        })
    }

    fn row(&self, state: &State, classes: Option<usize>) -> Row {
        let usage = state.usage;
        Row {
            system: self.system.to_string(),
            codec: Some(self.codec.to_string()),
            unit: Some(self.unit.to_string()),
            chain: self.chain,
            phase: state.phase.to_owned(),
            threads: 1,
            classes,
            objects: state.objects,
            compressed_bytes: usage.compressed,
            used_bytes: Some(usage.used),
            overhead: Some(digits(usage.overhead())),
            overhead_bare: Some(digits(usage.overhead_bare())),
            ops_per_s: state.ops_per_s.round(),
            cpu_ns: None,
            moves: state.compacted.and_then(|done| done.moved),
            pages_freed: state.compacted.map(|done| done.pages),
            moves_oracle: state.compacted.and_then(|done| done.oracle),
        }
    }

    fn class(&self, row: &ClassRow) -> ClassOf {
        let columns = ClassRow::COLUMNS.into_iter().map(str::to_owned);
        ClassOf {
            system: self.system.to_string(),
            codec: self.codec.to_string(),
            unit: self.unit.to_string(),
            chain: self.chain.unwrap_or(0),
            class: row.class,
            numbers: columns.zip(row.numbers()).collect(),
        }
    }
}

fn say(line: &Line) -> Result<(), PoolError> {
    let text = serde_json::to_string(line).expect("plain data");
    writeln!(io::stdout(), "{text}").map_err(io_error("stdout"))
}

/// A share to a hundredth of a percent of a percent: more is noise.
fn digits(share: f64) -> f64 {
    (share * 1e6).round() / 1e6
}

/// The longest chain of this kernel's zsmalloc, as it was built; 8, its default, where nobody says.
fn kernel_chain() -> usize {
    const KEY: &str = "CONFIG_ZSMALLOC_CHAIN_SIZE=";
    let boot = fs::read_to_string(format!("/boot/config-{}", host::kernel_release()));
    let config = boot.unwrap_or_else(|_| {
        let output = Command::new("zcat").arg("/proc/config.gz").output();
        output
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
    });
    config.lines().find_map(|line| line.strip_prefix(KEY)?.parse().ok()).unwrap_or(8)
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.density())?;
        writeln!(f, "{}\n", self.speed())?;
        writeln!(f, "{}\n", self.beside_published())?;
        writeln!(f, "{}\n", self.class_table())?;
        for LeftOut { system, why } in &self.left_out {
            writeln!(f, "left out: {system}: {why}")?;
        }
        let size = ByteSize::new(self.size_bytes);
        let load = self.machine.load_1m.unwrap_or(0.0);
        write!(f, "{size} of pages, load {load:.1} at the start")
    }
}

impl Comparison {
    fn density(&self) -> Table {
        let mut table = table(
            &[
                "system",
                "codec",
                "unit",
                "chain",
                "phase",
                "objects",
                "MB",
                "used MB",
                "overhead %",
                "bare %",
                "ops/s",
                "moves",
                "oracle's",
            ],
            3..,
        );
        for row in self.rows.iter().filter(|row| row.overhead.is_some()) {
            let number = |n: Option<usize>| n.map_or("-".to_owned(), |n| n.to_string());
            let percent =
                |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{:.2}", x * 100.0));
            let mb = |bytes: usize| format!("{:.2}", bytes as f64 / 1e6);
            table.add_row([
                row.system.clone(),
                row.codec.clone().unwrap_or_default(),
                row.unit.clone().unwrap_or_default(),
                number(row.chain),
                row.phase.clone(),
                row.objects.to_string(),
                mb(row.compressed_bytes),
                row.used_bytes.map_or("-".to_owned(), mb),
                percent(row.overhead),
                percent(row.overhead_bare),
                format!("{:.0}", row.ops_per_s),
                number(row.moves),
                number(row.moves_oracle),
            ]);
        }
        table
    }

    fn speed(&self) -> Table {
        let mut table = table(
            &["system", "1 KiB objects", "threads", "live MiB", "million/s", "ns", "CPU ns"],
            2..,
        );
        for row in self.rows.iter().filter(|row| row.codec.is_none()) {
            let threads = row.threads as f64;
            table.add_row([
                row.system.clone(),
                row.phase.clone(),
                row.threads.to_string(),
                (row.compressed_bytes >> 20).to_string(),
                format!("{:.2}", row.ops_per_s / 1e6),
                format!("{:.0}", 1e9 * threads / row.ops_per_s),
                row.cpu_ns.map_or("-".to_owned(), |ns| format!("{ns:.0}")),
            ]);
        }
        table
    }

    /// The series' tables, and what our systems do with lz4, the nearest to the series' lzo-rle.
    fn beside_published(&self) -> Table {
        let mut table = table(
            &[
                "chain",
                "published classes",
                "overhead %",
                "saving %",
                "reference classes",
                "bare %",
                "saving %",
                "octavo bare %",
                "saving %",
            ],
            ..,
        );
        let filled = |system: SystemName, chain: usize| {
            self.rows.iter().find(|row| {
                row.system == system.name()
                    && row.codec.as_deref() == Some("lz4")
                    && (row.chain, &*row.phase) == (Some(chain), "fill")
            })
        };
        for published in &self.published {
            let mut cells = vec![
                published.chain.to_string(),
                published.classes.to_string(),
                format!("{:.2}", published.overhead * 100.0),
                format!("{:.2}", published.saving * 100.0),
            ];
            for system in [SystemName::Reference, SystemName::Octavo] {
                let row = filled(system, published.chain);
                let used = |row: &Row| Some(row.overhead_bare? + 1.0);
                let bare = row.and_then(used);
                let base = filled(system, Published::ALL[0].chain).and_then(used);
                let percent = |x: Option<f64>| {
                    x.map_or("-".to_owned(), |x| format!("{:.2}", (x - 1.0) * 100.0))
                };
                if system == SystemName::Reference {
                    let classes = row.and_then(|row| row.classes);
                    cells.push(classes.map_or("-".to_owned(), |n| n.to_string()));
                }
                cells.push(percent(bare));
                cells.push(percent(bare.zip(base).map(|(bare, base)| bare / base)));
            }
            table.add_row(cells);
        }
        table
    }

    /// Our pool's classes; the series' are many, and stand in the JSON.
    fn class_table(&self) -> Table {
        let heads =
            ["system", "codec", "unit", "chain", "class"].into_iter().chain(ClassRow::COLUMNS);
        let mut table = table(&heads.collect::<Vec<_>>(), 3..);
        for class in self.class_rows.iter().filter(|c| c.system == SystemName::Octavo.name()) {
            let names = [&class.system, &class.codec, &class.unit].map(String::clone);
            let numbers = ClassRow::COLUMNS.map(|column| class.numbers[column]);
            let numbers = [class.chain, class.class].into_iter().chain(numbers);
            table.add_row(names.into_iter().chain(numbers.map(|n| n.to_string())));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::oracle::Layout;
    use super::systems::{Compacted, Usage};
    use super::*;
    use octavo_page::PAGE_SIZE;
    use octavo_sys::task::CpuSet;

    #[test]
    fn systems_read_back_as_they_print() {
        for system in SystemName::ALL {
            assert_eq!(system.to_string().parse::<SystemName>().expect("a name"), system);
        }
        assert!("tcmalloc".parse::<SystemName>().is_err());
    }

    #[test]
    fn what_the_series_published() {
        let percent = |x: f64| (x * 1e4).round() / 1e2;
        let shown = Published::ALL.map(|p| (percent(p.overhead), percent(p.saving)));
        assert_eq!(shown, [(4.31, 0.0), (2.23, -2.05), (1.9, -2.37)]);
    }

    #[test]
    fn the_oracle_counts_the_pages_that_the_pool_has() {
        let mut octavo = Octavo::new(ChainLength::MAX, 4096, 1000, 1 << 20).expect("a pool");
        let store = |octavo: &mut Octavo, n: usize| {
            System::store(octavo, &vec![n as u8; 1 + n * 37 % 3000]).expect("room")
        };
        let mut live: Vec<_> = (0..700).map(|n| store(&mut octavo, n)).collect();
        let agree = |octavo: &Octavo, live: &[_]| {
            let pages = octavo.layout(live).expect("known").pages();
            assert_eq!(pages * PAGE_SIZE, octavo.usage().expect("known").bare);
        };
        agree(&octavo, &live);
        (0..300).for_each(|n| System::free(&mut octavo, live.swap_remove(n)));
        let done = octavo.compact().expect("done").expect("it compacts");
        assert!(done.moved > Some(0), "else pages stay in stock, which hold nothing");
        agree(&octavo, &live);
    }

    /// A pool whose thread changes its CPU every so many stores.
    struct Moved {
        pool: Octavo,
        stored: usize,
        every: usize,
    }

    impl System for Moved {
        type Name = <Octavo as System>::Name;

        fn store(&mut self, bytes: &[u8]) -> Result<Self::Name, PoolError> {
            if self.stored.is_multiple_of(self.every) {
                // Where there is only one, it stays there.
                CpuSet::only(self.stored / self.every % 2).bind(0);
            }
            self.stored += 1;
            System::store(&mut self.pool, bytes)
        }

        fn free(&mut self, name: Self::Name) {
            System::free(&mut self.pool, name);
        }

        fn compact(&mut self) -> Result<Option<Compacted>, PoolError> {
            self.pool.compact()
        }

        fn usage(&self) -> Result<Usage, PoolError> {
            self.pool.usage()
        }

        fn layout(&self, names: &[Self::Name]) -> Option<Layout> {
            self.pool.layout(names)
        }
    }

    /// Compaction needs hardly more moves than the oracle, which knows nothing of lanes, where two of them were filled.
    #[test]
    fn lanes_are_compacted_as_one() {
        let sizes = || (0..900).map(|n| 200 + n * 7919 % 1900);
        let objects = Objects::of(sizes().map(|len| vec![1; len]));
        for every in [2_000, 20_000] {
            let pool = Octavo::new(ChainLength::MAX, 4096, 16_000, 1 << 25).expect("a pool");
            let mut told = None;
            work::phases(&mut Moved { pool, stored: 0, every }, &objects, 16_000, |_, state| {
                told = state.compacted;
                Ok(())
            })
            .expect("done");
            let done = told.expect("it compacts");
            let (moved, oracle) = done.moved.zip(done.oracle).expect("counted");
            assert!(moved > 0 && moved * 10 <= oracle * 11, "{done:?}");
        }
    }

    /// Every system that needs nothing of the machine, with a few pages.
    #[test]
    fn phases_and_rates_of_small_pools() {
        let objects = Objects::of((1..200).map(|n| vec![n as u8; 10 * n]));
        let mut told = Vec::new();
        let mut tell = |state: State| told.push((state.phase, state.usage.compressed > 0));
        let mut octavo = Octavo::new(ChainLength::MAX, 4096, 1000, 1 << 20).expect("a pool");
        work::phases(&mut octavo, &objects, 700, |_, state| {
            tell(state);
            Ok(())
        })
        .expect("done");
        let mut reference = Reference::new(ChainLength::MIN, 4096);
        work::phases(&mut reference, &objects, 700, |_, state| {
            tell(state);
            Ok(())
        })
        .expect("done");
        let phases = ["fill", "churn", "compacted"].map(|phase| (phase, true));
        assert_eq!(told, [phases, phases].concat());
        assert_eq!(reference.used_bytes(), 0, "everything is freed");
    }
}
