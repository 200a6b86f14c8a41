//! `octavo bench slots`: the arguments; the work is in `octavo_bench::slots`.

use crate::bench::once;
use crate::print::print_or_refuse;
use clap::Args;
use octavo_bench::slots::{self, Options};

/// The slot allocator beside the designs it is compared with.
///
/// Frees and takes slots of single pages, of 64 KiB and of 2 MiB folios, oldest first, at random and
/// mixed, at four degrees of fill; then counts how many folios of 64 KiB find no place while
/// processes come, grow and exit. Ends within five minutes.
#[derive(Args, Debug)]
pub struct SlotsArgs {
    /// Numbers of threads, each measured by itself
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4,8", value_parser = threads)]
    threads: Vec<usize>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=slots::MAX_THREADS) => Ok(threads),
        _ => Err(format!("a whole number from 1 to {}", slots::MAX_THREADS)),
    }
}

/// Compares, prints, and gives the exit status.
pub fn bench(args: SlotsArgs) -> i32 {
    let SlotsArgs { threads, json } = args;
    print_or_refuse(slots::compare(&Options { threads: once(threads) }), json)
}
