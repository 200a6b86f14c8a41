//! `octavo bench crypt`: the arguments; the work is in `octavo_bench::crypt`.

use crate::print::print_or_refuse;
use clap::Args;
use octavo_bench::crypt::{self, Options};
use std::path::PathBuf;

/// Encrypted writes with pages from a reserve: one at a time, in bulk, ready-made.
///
/// Writes of 4 KiB to 1 MiB into memory, or into a new file that is removed at the end, or over a block
/// device, and AES-XTS alone beside; and what a page of the reserve costs. Ends within five minutes.
#[derive(Args, Debug)]
pub struct CryptArgs {
    /// A new file to write to, or a block device, whose contents are lost, instead of memory
    #[arg(long, value_name = "FILE")]
    backing: Option<PathBuf>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Compares, prints, and gives the exit status.
pub fn bench(args: CryptArgs) -> i32 {
    let CryptArgs { backing, json } = args;
    print_or_refuse(crypt::compare(&Options { backing }), json)
}
