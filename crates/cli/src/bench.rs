//! `octavo bench`: the arguments; the work is in `octavo_bench`.

use crate::print::{print, print_or_refuse};
use clap::{Args, Subcommand};
use octavo_bench::codec;
use octavo_bench::swap::{self, PeerName, SwapError, peer, worker};
use octavo_codec::Codec;
use octavo_page::{ByteSize, Unit};
use std::env;
use std::path::PathBuf;
use std::time::Duration;

/// Interrupted by Ctrl-C, as shells say it.
const INTERRUPTED: i32 = 130;

/// Compare Octavo with its peers.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand, Debug)]
enum Bench {
    Slots(crate::slots::SlotsArgs),
    Codec(CodecArgs),
    Swap(SwapArgs),
    Pool(crate::bench_pool::PoolArgs),
    Crypt(crate::bench_crypt::CryptArgs),
    Batch(crate::bench_batch::BatchArgs),
    Writeback(crate::bench_writeback::WritebackArgs),
}

/// Our codecs and their peers over the same units of real memory, on one thread.
///
/// Same-filled units are left out, and every 16th of a program: tables and dictionaries are learnt
/// from those. Codecs take turns, the best of five passes counts, every unit is compared. A star
/// marks what no other codec beats in ratio, compression and decompression together.
#[derive(Args, Debug)]
struct CodecArgs {
    /// Files of raw memory pages, each of one program
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pages: Vec<PathBuf>,

    /// What one request takes: 4K, 16K or 64K
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    unit: Unit,

    /// Only these codecs and peers
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    codec: Vec<String>,

    /// The tables of deflate-canned:LEVEL, as `octavo codec train` makes them, instead of such that
    /// are learnt from each program
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,

    /// Fill the two tables of latencies of the canned and by_n series, too
    #[arg(long)]
    latency: bool,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// One workload under Octavo and under the kernel's swap, at equal total memory.
///
/// Fills memory with real pages, reads them in order, reads and writes at random, and verifies
/// every page. Each peer runs in a throw-away memory cgroup with a throw-away zram device as swap,
/// which takes root; Octavo gets the cgroup's limit and what zram took. Ends within five minutes,
/// with fewer rounds where it must.
#[derive(Args, Debug)]
struct SwapArgs {
    /// Memory to fill
    #[arg(long, value_name = "SIZE", value_parser = whole_pages)]
    size: ByteSize,

    /// The limit of a peer's cgroup; without --against, Octavo's
    #[arg(long, value_name = "SIZE", value_parser = crate::run::memory_size)]
    memory: ByteSize,

    /// Files of raw memory pages
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pages: Vec<PathBuf>,

    /// Numbers of threads, each measured by itself
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = count)]
    threads: Vec<usize>,

    /// Peers: zram:lz4, zram:lzo-rle or what else zram has here
    #[arg(long, value_name = "PEER,...", value_delimiter = ',')]
    against: Vec<PeerName>,

    /// Rounds at most
    #[arg(long, value_name = "N", default_value = "5", value_parser = count)]
    rounds: usize,

    /// What Octavo compresses with, as in `octavo run`
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    codec: Option<Codec>,

    /// How much it compresses at once, as in `octavo run`
    #[arg(long, value_name = "SIZE")]
    unit: Option<Unit>,

    /// Seconds that both sides rest after the fill; what they then keep is measured once more
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = clap::value_parser!(u64).range(..=60))]
    rest: u64,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// What the driver starts as the workload.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    #[arg(long)]
    size: ByteSize,
    #[arg(long)]
    threads: usize,
    #[arg(long, num_args = 1..)]
    pages: Vec<PathBuf>,
}

/// What the driver starts as the keeper of the kernel's side.
#[derive(Args, Debug)]
pub struct PeerArgs {
    #[arg(long)]
    algorithm: String,
    #[arg(long)]
    disk: ByteSize,
    #[arg(long)]
    memory: ByteSize,
}

pub fn whole_pages(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|e| format!("{e}"))?;
    if size.pages() == 0 { Err("the least is a page, 4K".to_owned()) } else { Ok(size) }
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("a whole number from 1 on".to_owned()),
        Ok(count) => Ok(count),
    }
}

/// Each of what was asked for, once: nobody wants to measure it twice.
pub fn once<T: PartialEq>(asked: Vec<T>) -> Vec<T> {
    let mut each = Vec::new();
    for one in asked {
        if !each.contains(&one) {
            each.push(one);
        }
    }
    each
}

fn bench_codec(args: CodecArgs) -> i32 {
    let CodecArgs { pages, unit, codec, table, latency, json } = args;
    let options = codec::Options { pages, unit, codecs: codec, latency, table };
    print_or_refuse(codec::compare(&options), json)
}

/// Compares, prints, and gives the exit status.
pub fn bench(args: BenchArgs) -> i32 {
    let octavo = match env::current_exe() {
        Ok(octavo) => octavo,
        Err(why) => {
            return crate::refuse(&format!("/proc/self/exe: {why}; mount /proc"), crate::REFUSED);
        }
    };
    match args.bench {
        Bench::Codec(args) => bench_codec(args),
        Bench::Slots(args) => crate::slots::bench(args),
        Bench::Swap(args) => swap(octavo, args),
        Bench::Pool(args) => crate::bench_pool::bench(octavo, args),
        Bench::Crypt(args) => crate::bench_crypt::bench(args),
        Bench::Batch(args) => crate::bench_batch::bench(args),
        Bench::Writeback(args) => crate::bench_writeback::bench(args),
    }
}

fn swap(octavo: PathBuf, args: SwapArgs) -> i32 {
    let SwapArgs { size, memory, pages, threads, against, rounds, codec, unit, rest, json } = args;
    let (threads, against) = (once(threads), once(against));
    let rest = Duration::from_secs(rest);
    let options =
        swap::Options { octavo, size, memory, pages, threads, against, rounds, codec, unit, rest };
    let outcome = match swap::compare(&options) {
        Ok(outcome) => outcome,
        Err(why @ SwapError::Interrupted) => return crate::refuse(&why, INTERRUPTED),
        Err(why) => return crate::refuse(&why, crate::REFUSED),
    };
    let printed = print(&outcome.comparison, json);
    outcome.failed.map_or(printed, |why| crate::refuse(&why, crate::REFUSED))
}

/// Is the workload.
pub fn swap_worker(args: WorkerArgs) -> i32 {
    let WorkerArgs { size, threads, pages } = args;
    match worker::work(&worker::Job { size, pages, threads }) {
        Ok(()) => 0,
        Err(why) => crate::refuse(&why, crate::REFUSED),
    }
}

/// Keeps the kernel's side.
pub fn swap_peer(args: PeerArgs) -> i32 {
    let PeerArgs { algorithm, disk, memory: limit } = args;
    match peer::keep(&peer::Plan { algorithm, disk, limit }) {
        Ok(()) => 0,
        Err(why) => crate::refuse(&why, crate::REFUSED),
    }
}
