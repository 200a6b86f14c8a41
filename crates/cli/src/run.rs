//! `octavo run`: everything that can be checked is checked, then `octavo` becomes the program.
//!
//! ```text
//! arguments ─► limit ─► program ─► our object ─► the kernel ─► what is limited ─► execve
//!                 each step may refuse: one line, exit 125 (126, 127 for the program)
//! ```
//!
//! The program gets two environment variables more, `LD_PRELOAD` with our object before the user's
//! own, and `OCTAVO_RUN` with all the object has to know; the object takes both out again, and gives
//! them to what the program starts. Nothing else of the process changes: its id, terminal,
//! descriptors and signals stay as they were.

use crate::backing::{self, BackingName, BackingRefusal, Lent};
use crate::keeper::{self, Report};
use crate::program::{self, ProgramError, SHELL, Start};
use crate::uffd::{self, Missing};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use nix::errno::Errno;
use octavo_accel::{Engines, Unusable};
use octavo_bench::codec::train::{self, TableError};
use octavo_bench::files::FileIdentity;
use octavo_bench::host;
use octavo_codec::Codec;
use octavo_page::config::{PAGER_DESCRIPTORS, RunConfig, Text, VARIABLE, reserve_bytes};
use octavo_page::{ByteSize, ChainLength, EngineKind, PAGE_SIZE, Unit};
use octavo_sys::task;
use rustix::process::{Resource, getpid, getrlimit};
use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// The file name of the object that is loaded into the program.
const OBJECT: &str = "liboctavo_preload.so";

/// The variable of the dynamic loader that brings it in.
const LD_PRELOAD: &str = "LD_PRELOAD";

/// The least `--memory`: below, our tables and the pages a program needs at once fill it.
pub const FLOOR: ByteSize = ByteSize::mib(16);

/// Run a program in a limited amount of memory, its cold memory compressed.
///
/// Exits with the program's own status: 126 when it cannot be executed, 127 when it is not found,
/// 125 when Octavo refuses or fails.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// What the program may occupy, compressed memory and all of Octavo's own counted; at least
    /// 16M. Without it: nine tenths of what is left, which is the least of the machine's
    /// MemAvailable and, for each memory cgroup around this process, limit less usage (inactive
    /// file cache not counted as usage)
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    memory: Option<ByteSize>,

    /// End the program with 137 instead of going on over the limit: by 1M for half a second, or by 16M with nothing
    /// left to give
    #[arg(long)]
    strict: bool,

    /// How memory is compressed: lz4, zstd:LEVEL with a level of -7 to -1 or 1 to 9, as in zstd:1, or
    /// deflate-MODE:LEVEL with a level of 1, 6 or 9: deflate-fixed:1, deflate-dynamic:6,
    /// deflate-canned:1 (tables learnt from the program while it runs), deflate-canned:1:general
    /// (tables that suit most). Behind deflate :by_N, N = 1, 2, 4 ... 64, has each unit in so many
    /// parts, which an accelerator does at once.
    /// Without it: chosen while running
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    codec: Option<Codec>,

    /// The tables of deflate-canned:LEVEL, as `octavo codec train` makes them; then none are learnt
    #[arg(long, value_name = "FILE", requires = "codec")]
    table: Option<PathBuf>,

    /// How much is compressed at once: 4K, 16K or 64K. Without it: chosen while running
    #[arg(long, value_name = "SIZE")]
    unit: Option<Unit>,

    /// The longest zspage of the pool, in units: 1 to 16. Without it: 16, which packs best
    #[arg(long, value_name = "N")]
    chain: Option<ChainLength>,

    /// What compresses: auto, cpu, iaa (Intel's accelerator; deflate codecs only, the CPU stands in
    /// for others) or model (that accelerator in software, for tests). auto: iaa where it can be used
    #[arg(long, value_name = "NAME", default_value = "auto")]
    engine: EngineChoice,

    /// Write the oldest compressed memory to FILE when it takes most of the limit, encrypted: a new
    /// file on a disk, sparse and without a name from the start, or a block device, of which
    /// everything is lost. May be given up to 8 times; those of the highest N are used first, equals
    /// in turn. Each process of the job has a file of its own there; of a device one process has all
    #[arg(long, value_name = "FILE[,prio=N]", value_parser = OsStringValueParser::new().try_map(BackingName::parse))]
    backing: Vec<BackingName>,

    /// How large such a file may get, as in 8G; of a device, how much of it is used. At least 8M
    #[arg(long, value_name = "SIZE", requires = "backing")]
    backing_size: Option<ByteSize>,

    /// The share of the limit, in percent, that compressed memory may take before the oldest is
    /// written, as zswap's max_pool_percent. With less, more of the limit is left to the program,
    /// and more of what it misses has to be read from the file
    #[arg(long, value_name = "PERCENT", requires = "backing", default_value_t = 72, value_parser = clap::value_parser!(u8).range(1..=100))]
    max_pool_percent: u8,

    /// Encrypt with the key in FILE, 64 bytes, as dm-crypt's aes-xts-plain64 does in sectors of 4096.
    /// Without it: a random key in each process, which nobody else ever has
    #[arg(long, value_name = "FILE", requires = "backing")]
    backing_key: Option<PathBuf>,

    /// Let the file keep its name, and stay; then one process of the job has it
    #[arg(long, requires = "backing")]
    backing_keep: bool,

    /// Print a table of counters to stderr at the end
    #[arg(long)]
    stats: bool,

    /// Write the counters to FILE at the end, as one JSON object
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,

    /// The program: a path, or a name that is on PATH
    #[arg(value_name = "PROGRAM")]
    program: OsString,

    /// Its arguments
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// What is to compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineChoice {
    /// Devices where there are some to use, else the CPU.
    Auto,
    /// This, or the program is not run.
    Only(EngineKind),
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Only).map_err(|why| format!("{why}, or auto"))
    }
}

impl EngineChoice {
    /// What it comes to on this machine.
    fn kind(self) -> Result<EngineKind, Unusable> {
        let iaa = || Engines::open(EngineKind::Iaa);
        match self {
            Self::Auto => Ok(iaa().map_or(EngineKind::Cpu, |engines| engines.kind())),
            Self::Only(EngineKind::Iaa) => iaa().map(|engines| engines.kind()),
            Self::Only(kind) => Ok(kind),
        }
    }
}

/// A size that can be a limit.
pub fn memory_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|e| format!("{e}"))?;
    if size < FLOOR {
        return Err(format!("the least that tables and a program need is {FLOOR}"));
    }
    Ok(size)
}

/// Why the program is not run.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The program itself.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The memory that is left is less than the floor.
    #[error("{} leaves {bytes}, less than {FLOOR}; free memory, or give --memory SIZE", by.display())]
    NoRoom {
        /// What leaves the least.
        by: PathBuf,
        /// What would be the limit.
        bytes: ByteSize,
    },
    /// It cannot be known what is left.
    #[error("/proc/meminfo: cannot be read; mount /proc, or give --memory SIZE")]
    NoMeminfo,
    /// Our object is nowhere.
    #[error("{OBJECT}: not found in {}; install it there, or build it with `cargo build --release`", list(.0))]
    NoObject(Vec<PathBuf>),
    /// A place the loader cannot be told of.
    #[error("{}: a path with a space, a colon or a newline cannot be preloaded; install Octavo elsewhere", .0.display())]
    ObjectPath(PathBuf),
    /// What the kernel is to give is not to be had.
    #[error(transparent)]
    Kernel(#[from] Missing),
    /// A limit on address space is too low.
    #[error(
        "{}: the limit is {have}, but --memory {limit} reserves {need} of address space, most of which \
         is never touched; raise it with `ulimit {} unlimited`", space.name(), space.option()
    )]
    AddressSpace {
        /// Which limit.
        space: Space,
        /// The limit.
        have: ByteSize,
        /// What we reserve.
        need: ByteSize,
        /// For this limit on memory.
        limit: ByteSize,
    },
    /// The limit on the length of files is too low.
    #[error(
        "RLIMIT_FSIZE: no file may get longer than {have}, but the job's takes {need}; raise it with \
         `ulimit -f unlimited`"
    )]
    FileSize {
        /// The limit.
        have: ByteSize,
        /// The longest file that we make.
        need: ByteSize,
    },
    /// No such engine.
    #[error("--engine iaa: {0}")]
    Engine(#[from] Unusable),
    /// A file of tables.
    #[error("--table {}: {why}", file.display())]
    Table {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: TableError,
    },
    /// A codec that takes no tables.
    #[error("--table: {0} takes none; deflate-canned:LEVEL does")]
    NoTables(Codec),
    /// Where memory is to be written back to.
    #[error(transparent)]
    Backing(#[from] BackingRefusal),
    /// Too few descriptors.
    #[error(
        "RLIMIT_NOFILE: {have} descriptors are too few: {TO_START} must be free, and a process's pager \
         takes {PAGER_DESCRIPTORS}; raise ulimit -n, 64 will do where few are in use"
    )]
    Descriptors {
        /// How many there may be.
        have: u64,
    },
    /// The process beside the job.
    #[error("the job's keeper cannot be started: {}", io::Error::from_raw_os_error(.0.into_raw()))]
    Keeper(octavo_sys::Errno),
    /// The file for the counters.
    #[error("--stats-json {}: cannot be written: {why}; name a regular file in a directory of yours", file.display())]
    StatsFile {
        /// The file.
        file: PathBuf,
        /// What stands in the way.
        why: io::Error,
    },
    /// The file for the counters is one that is read, or written back to.
    #[error("--stats-json {}: {used_by} has that file, too; name another", file.display())]
    StatsTwice {
        /// The file.
        file: PathBuf,
        /// The other option.
        used_by: &'static str,
    },
    /// A word with a zero byte, which no program can be given.
    #[error("{0:?}: contains a zero byte; leave that out")]
    ZeroByte(OsString),
}

impl Refusal {
    /// The exit status that says this.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Program(ProgramError::NotFound(_) | ProgramError::NoInterpreter { .. }) => 127,
            Self::Program(ProgramError::CannotExecute { .. }) => 126,
            _ => 125,
        }
    }
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
    names.join(" or ")
}

/// Becomes the program, or says why not.
pub fn run(args: &RunArgs) -> Result<Infallible, Refusal> {
    let limit = args.memory.map_or_else(default_limit, Ok)?;
    let path = env::var_os("PATH");
    let file = program::find(&args.program, path.as_deref())?;
    let start = program::check(&file, path.as_deref())?;
    let object = find_object()?;
    uffd::verdict(&uffd::probe(), uffd::rights())?;
    uffd::mappings()?;
    Space::BOTH.into_iter().try_for_each(|space| check_address_space(space, limit))?;
    let backed = args.backing_size.filter(|_| !args.backing.is_empty());
    check_file_size(backed)?;
    let engine = args.engine.kind()?;
    let tables = args.table.as_deref().map(|file| tables(file, args.codec)).transpose()?;
    args.stats_json.as_deref().map_or(Ok(()), |file| check_is_apart(file, args))?;
    let stats_json = args.stats_json.as_deref().map(writable_file).transpose()?;
    let options = backing::Options {
        size: args.backing_size,
        max_pool_percent: args.max_pool_percent,
        key: args.backing_key.as_deref(),
        keep: args.backing_keep,
    };
    let backing = backing::check(&args.backing, options)?;
    check_descriptors()?;

    let first = getpid().as_raw_nonzero().get();
    let (backing, lent) = backing.map(|Lent { config, files }| (config, files)).unzip();
    let lent = lent.unwrap_or_default();
    let report = Report { table: args.stats, json: stats_json, strict: args.strict, engine, lent };
    let (keeper, ledger) = start_keeper(first, limit, report).map_err(Refusal::Keeper)?;
    let codec = args.codec.map(|c| c.to_string());
    let preload = env::var_os(LD_PRELOAD);
    let config = RunConfig {
        pid: first.unsigned_abs(),
        keeper: keeper.unsigned_abs(),
        ledger: ledger.unsigned_abs(),
        limit,
        strict: args.strict,
        codec: codec.as_ref().map(|name| Text::new(name.as_bytes())),
        tables: tables.as_deref().map(Text::new),
        unit: args.unit,
        chain: args.chain,
        engine: Some(engine),
        backing,
    };
    execute(&file, start, args, &environment(&object, preload.as_deref(), &config))
}

/// The bytes of a file of tables for `codec`.
fn tables(file: &Path, codec: Option<Codec>) -> Result<Vec<u8>, Refusal> {
    if let Some(codec) = codec.filter(|codec| !codec.learns()) {
        return Err(Refusal::NoTables(codec));
    }
    let refuse = |why| Refusal::Table { file: file.to_path_buf(), why };
    Ok(train::read(file).map_err(refuse)?.to_bytes())
}

/// Starts the keeper of a job; gives its process id and the ledger's descriptor there.
fn start_keeper(first: i32, limit: ByteSize, report: Report) -> octavo_sys::Result<(i32, i32)> {
    let memory = octavo_ledger::create(limit.bytes() / PAGE_SIZE as u64)?;
    let first = task::pidfd(first)?;
    match task::fork_aside()? {
        Some(keeper) => Ok((keeper, memory.raw())),
        None => keeper::keep(octavo_ledger::open(&memory)?, &memory, &first, report),
    }
}

/// Nine tenths of what is left, in whole pages.
pub fn default_limit() -> Result<ByteSize, Refusal> {
    let room = host::room().ok_or(Refusal::NoMeminfo)?;
    let bytes = (room.bytes.bytes() - room.bytes.bytes() / 10) & !(PAGE_SIZE as u64 - 1);
    let limit = ByteSize::new(bytes);
    if limit < FLOOR {
        return Err(Refusal::NoRoom { by: room.source, bytes: limit });
    }
    Ok(limit)
}

/// Our object: beside this executable, as cargo builds it, or where an installation has it.
pub fn find_object() -> Result<PathBuf, Refusal> {
    let exe = env::current_exe().unwrap_or_default();
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let places = vec![dir.join(OBJECT), dir.join("../lib/octavo").join(OBJECT)];
    let Some(object) = places.iter().find(|file| file.is_file()) else {
        return Err(Refusal::NoObject(places));
    };
    let splits = |byte: &u8| byte.is_ascii_whitespace() || *byte == b':';
    if object.as_os_str().as_bytes().iter().any(splits) {
        return Err(Refusal::ObjectPath(object.clone()));
    }
    Ok(object.clone())
}

/// What a process may reserve is limited twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// All addresses.
    All,
    /// Those of private writable memory.
    Data,
}

impl Space {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::All, Self::Data];

    /// The limit's name in the manual.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "RLIMIT_AS",
            Self::Data => "RLIMIT_DATA",
        }
    }

    const fn option(self) -> &'static str {
        match self {
            Self::All => "-v",
            Self::Data => "-d",
        }
    }

    /// The limit of this process; `None`: there is none.
    pub fn limit(self) -> Option<ByteSize> {
        let resource = match self {
            Self::All => Resource::As,
            Self::Data => Resource::Data,
        };
        getrlimit(resource).current.map(ByteSize::new)
    }
}

/// Whether this process may reserve what a limit takes.
pub fn check_address_space(space: Space, limit: ByteSize) -> Result<(), Refusal> {
    let need = ByteSize::new(reserve_bytes(limit));
    match space.limit() {
        Some(have) if have < need => Err(Refusal::AddressSpace { space, have, need, limit }),
        _ => Ok(()),
    }
}

/// Whether this process may make files as long as the job's: what its processes share, which is one to the
/// kernel, and one that memory is written back to, of `backed` bytes. Else the kernel would end us.
pub fn check_file_size(backed: Option<ByteSize>) -> Result<(), Refusal> {
    let need = ByteSize::new(octavo_ledger::BYTES).max(backed.unwrap_or_default());
    match file_size_limit() {
        Some(have) if have < need => Err(Refusal::FileSize { have, need }),
        _ => Ok(()),
    }
}

/// The limit on the length of files that this process makes; `None`: there is none.
pub fn file_size_limit() -> Option<ByteSize> {
    getrlimit(Resource::Fsize).current.map(ByteSize::new)
}

/// Descriptors that starting a job's keeper takes here: of the ledger, of this process, and a pipe.
const TO_START: usize = 4;

/// Whether the keeper can be started from here, and pagers have the descriptors they need.
pub fn check_descriptors() -> Result<(), Refusal> {
    let own = getpid().as_raw_nonzero().get();
    let free = (0..TO_START).map(|_| task::pidfd(own)).collect::<Result<Vec<_>, _>>();
    free.map_err(|why| match why {
        octavo_sys::Errno::EMFILE => Refusal::Descriptors { have: descriptor_limit() },
        why => Refusal::Keeper(why),
    })?;
    match task::most_descriptors() {
        have if have < PAGER_DESCRIPTORS => Err(Refusal::Descriptors { have }),
        _ => Ok(()),
    }
}

/// How many descriptors this process may have.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// That the counters do not go where another option has a file: they would overwrite it.
fn check_is_apart(stats: &Path, args: &RunArgs) -> Result<(), Refusal> {
    let backing = args.backing.iter().map(|name| ("--backing", name.file.as_path()));
    let key = args.backing_key.iter().map(|file| ("--backing-key", file.as_path()));
    let table = args.table.iter().map(|file| ("--table", file.as_path()));
    let counters = FileIdentity::of(stats);
    match backing.chain(key).chain(table).find(|(_, file)| FileIdentity::of(file) == counters) {
        Some((used_by, _)) => Err(Refusal::StatsTwice { file: stats.to_path_buf(), used_by }),
        None => Ok(()),
    }
}

/// A file that can be written, emptied so that nobody takes an older job's figures for this one's, and
/// its name. No pipe and no device: it is rewritten when more comes.
fn writable_file(file: &Path) -> Result<(fs::File, PathBuf), Refusal> {
    let refuse = |why| Refusal::StatsFile { file: file.to_path_buf(), why };
    let is_regular = |meta: fs::Metadata| meta.is_file();
    if !fs::metadata(file).map_or(true, is_regular) {
        return Err(refuse(io::Error::other("is no regular file")));
    }
    Ok((fs::File::create(file).map_err(refuse)?, file.to_path_buf()))
}

/// The program's environment: this one's, with our two variables.
fn environment(
    object: &Path,
    preload: Option<&OsStr>,
    config: &RunConfig<'_>,
) -> Vec<(OsString, OsString)> {
    let mut ours = OsString::from(object);
    // Set to nothing is not the same as unset: then a colon says so.
    if let Some(theirs) = preload {
        ours.push(":");
        ours.push(theirs);
    }
    let mut word = String::new();
    config.encode(&mut word).expect("a String takes everything");
    let mut variables: Vec<_> =
        env::vars_os().filter(|(name, _)| name != LD_PRELOAD && name != VARIABLE).collect();
    variables.push((LD_PRELOAD.into(), ours));
    variables.push((VARIABLE.into(), word.into()));
    variables
}

/// Replaces this process by the program.
fn execute(
    file: &Path,
    start: Start,
    args: &RunArgs,
    environment: &[(OsString, OsString)],
) -> Result<Infallible, Refusal> {
    // A script without #! is started as the shell's argument, as execvp does it.
    let (image, first) = match start {
        Start::Itself => (file, vec![args.program.clone()]),
        Start::Shell => (Path::new(SHELL), vec![SHELL.into(), file.into()]),
    };
    let words = first.into_iter().chain(args.args.iter().cloned());
    let words = words.map(c_string).collect::<Result<Vec<_>, _>>()?;
    let variables = environment.iter().map(|(name, value)| {
        let mut variable = name.clone();
        variable.push("=");
        variable.push(value);
        c_string(variable)
    });
    let variables = variables.collect::<Result<Vec<_>, _>>()?;
    let errno = match nix::unistd::execve(&c_string(image.into())?, &words, &variables) {
        Ok(never) => match never {},
        Err(errno) => errno,
    };
    let image = image.to_path_buf();
    Err(Refusal::Program(match errno {
        Errno::ENOENT => ProgramError::NotFound(image),
        errno => ProgramError::CannotExecute { file: image, why: errno.into() },
    }))
}

fn c_string(word: OsString) -> Result<CString, Refusal> {
    CString::new(word.into_vec()).map_err(|e| Refusal::ZeroByte(OsString::from_vec(e.into_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_page::config::TABLE_RESERVE;

    #[test]
    fn limits_that_can_be_kept() {
        assert_eq!(memory_size("32M"), Ok(ByteSize::mib(32)));
        assert_eq!(memory_size("16M"), Ok(FLOOR));
        for (text, says) in [("15M", "16M"), ("0", "16M"), ("many", "whole number")] {
            let error = memory_size(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn the_users_preload_comes_after_ours() {
        let config = RunConfig {
            pid: 1,
            keeper: 2,
            ledger: 3,
            limit: FLOOR,
            strict: false,
            codec: None,
            tables: None,
            unit: None,
            chain: None,
            engine: None,
            backing: None,
        };
        let get = |preload: Option<&str>, name: &str| {
            let variables = environment(Path::new("/o.so"), preload.map(OsStr::new), &config);
            let mut found = variables.into_iter().filter(|(n, _)| n == name).map(|(_, v)| v);
            let value = found.next().expect("a variable of ours");
            assert_eq!(found.next(), None, "{name} only once");
            value
        };
        assert_eq!(get(Some("a.so b.so"), LD_PRELOAD), "/o.so:a.so b.so");
        assert_eq!(get(Some(""), LD_PRELOAD), "/o.so:");
        assert_eq!(get(None, LD_PRELOAD), "/o.so");
        assert!(
            get(None, VARIABLE)
                .to_string_lossy()
                .starts_with("v=2;pid=1;keeper=2;ledger=3;limit=16777216;")
        );
    }

    #[test]
    fn the_reserve_of_any_limit_is_a_number() {
        assert_eq!(reserve_bytes(ByteSize::mib(512)), TABLE_RESERVE as u64 + (3 << 30));
        assert_eq!(reserve_bytes(ByteSize::new(u64::MAX)), u64::MAX);
    }
}
