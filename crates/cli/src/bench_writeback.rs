//! `octavo bench writeback`: the arguments; the work is in `octavo_bench::writeback`.

use crate::print::print_or_refuse;
use clap::Args;
use octavo_bench::writeback::{self, Options};
use std::path::PathBuf;

/// Compressed objects out to a file, encrypted, and back, beside the bare disk and the bare processor.
///
/// Speed of writing and reading, what is written for what is stored, what the file takes for what lives
/// while objects come and go, and how long a read of one takes. What is on a block device is lost. Ends
/// within five minutes.
#[derive(Args, Debug)]
pub struct WritebackArgs {
    /// A new file on the disk that is meant, or a block device, instead of a file in the directory for
    /// temporary ones
    #[arg(long, value_name = "FILE")]
    backing: Option<PathBuf>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Compares, prints, and gives the exit status.
pub fn bench(args: WritebackArgs) -> i32 {
    let WritebackArgs { backing, json } = args;
    print_or_refuse(writeback::compare(&Options { backing }), json)
}
