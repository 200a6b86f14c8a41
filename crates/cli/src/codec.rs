//! `octavo codec`: the arguments; the work is in `octavo_bench::codec::train`.

use crate::print::print_or_refuse;
use clap::{Args, Subcommand};
use octavo_bench::codec::train::{self, Options};
use octavo_page::Unit;
use std::path::PathBuf;

/// Make tables for the codec deflate-canned.
#[derive(Args, Debug)]
pub struct CodecArgs {
    #[command(subcommand)]
    codec: Codec,
}

#[derive(Subcommand, Debug)]
enum Codec {
    Train(TrainArgs),
}

/// Train tables for deflate-canned:1 on memory pages, and say what they give.
///
/// Same-filled units are left out, and every 16th of a file is held out: the ratio there is that of
/// units that the tables have not seen. `octavo run --table` and `octavo bench codec --table` use them.
#[derive(Args, Debug)]
struct TrainArgs {
    /// Files of raw memory pages
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    pages: Vec<PathBuf>,

    /// What one request will take: 4K, 16K or 64K
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    unit: Unit,

    /// Tables to choose from for each unit, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=8))]
    tables: u8,

    /// Where the tables go
    #[arg(long, short, value_name = "TABLE")]
    out: PathBuf,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Does what is asked, prints, and gives the exit status.
pub fn codec(args: CodecArgs) -> i32 {
    let Codec::Train(TrainArgs { pages, unit, tables, out, json }) = args.codec;
    let options = Options { pages, unit, tables: tables.into(), out };
    print_or_refuse(train::train(&options), json)
}
