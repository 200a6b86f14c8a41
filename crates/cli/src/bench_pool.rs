//! `octavo bench pool`: the arguments; the work is in `octavo_bench::pool`.

use clap::Args;
use octavo_bench::pool::{self, Job, Options, SystemName, Task};
use octavo_bench::swap::peer;
use octavo_codec::Codec;
use octavo_page::{ByteSize, ChainLength, Unit};
use std::env;
use std::path::PathBuf;

use crate::bench::{once, whole_pages};
use crate::print::print_or_refuse;

/// Our pool beside the kernel's zsmalloc and beside allocators, with the objects of real pages.
///
/// Compresses the pages, stores the objects, replaces them at random until what they take is
/// steady, and compacts; then measures speed. The kernel's side is a throw-away zram device, which takes
/// root. jemalloc and mimalloc are preloaded where they are installed. Ends within five minutes.
#[derive(Args, Debug)]
pub struct PoolArgs {
    /// Files of raw memory pages
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pages: Vec<PathBuf>,

    /// The longest chains of zspages, each measured by itself: 1 to 16
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "4,8,16")]
    chain: Vec<ChainLength>,

    /// Pages to store: those of the files, over and over
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = whole_pages)]
    size: ByteSize,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// What the driver starts for each system.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    #[arg(long)]
    system: SystemName,
    #[arg(long, requires = "unit", allow_hyphen_values = true)]
    codec: Option<Codec>,
    #[arg(long)]
    unit: Option<Unit>,
    #[arg(long)]
    size: ByteSize,
    #[arg(long, value_delimiter = ',')]
    chain: Vec<ChainLength>,
    #[arg(long, num_args = 1..)]
    pages: Vec<PathBuf>,
}

/// What keeps the kernel's side.
#[derive(Args, Debug)]
pub struct DeviceArgs {
    #[arg(long)]
    algorithm: String,
    #[arg(long)]
    disk: ByteSize,
}

/// Compares, prints, and gives the exit status. `octavo` is this executable.
pub fn bench(octavo: PathBuf, args: PoolArgs) -> i32 {
    let PoolArgs { pages, chain, size, json } = args;
    print_or_refuse(pool::compare(&Options { octavo, pages, size, chains: once(chain) }), json)
}

/// Is one system's worker.
pub fn worker(args: WorkerArgs) -> i32 {
    let WorkerArgs { system, codec, unit, size, chain, pages } = args;
    let Ok(octavo) = env::current_exe() else {
        return crate::refuse(&"/proc/self/exe: cannot be read; mount /proc", crate::REFUSED);
    };
    let task = codec.zip(unit).map_or(Task::Rates, |(codec, unit)| Task::Phases(codec, unit));
    let job = Job { system, task, options: Options { octavo, pages, size, chains: chain } };
    match job.work() {
        Ok(()) => 0,
        Err(why) => crate::refuse(&why, crate::REFUSED),
    }
}

/// Keeps the kernel's side.
pub fn device(args: &DeviceArgs) -> i32 {
    match peer::keep_device(&args.algorithm, args.disk) {
        Ok(()) => 0,
        Err(why) => crate::refuse(&why, crate::REFUSED),
    }
}
