//! `octavo bench batch`: the arguments; the work is in `octavo_bench::batch`.

use crate::print::print_or_refuse;
use clap::Args;
use octavo_bench::batch::{self, Options};
use std::path::PathBuf;

/// What a page costs into the store and out of it: in batches, and one by one.
///
/// Folios of 4 KiB to 2 MiB in units of 4 KiB, every codec, one thread and two; and what slots, pool and
/// index take of that, measured apart. Ends within five minutes.
#[derive(Args, Debug)]
pub struct BatchArgs {
    /// Files of raw memory pages, instead of the pages of this executable
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pages: Vec<PathBuf>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Compares, prints, and gives the exit status.
pub fn bench(args: BatchArgs) -> i32 {
    let BatchArgs { pages, json } = args;
    print_or_refuse(batch::compare(&Options { pages }), json)
}
