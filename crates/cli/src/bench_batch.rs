//! `octavo bench batch`: the arguments; the work is in `octavo_bench::batch`.

use crate::bench::once;
use crate::print::print_or_refuse;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use octavo_bench::batch::{self, Options};
use octavo_bench::host;
use octavo_codec::Codec;
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

    /// What compresses
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_values = batch::CODECS, value_parser = codec())]
    codec: Vec<Codec>,

    /// Numbers of threads at once, each on a CPU of its own [default: 1, and 2 where there are two]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = cpus)]
    cpus: Vec<usize>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

fn codec() -> impl TypedValueParser<Value = Codec> {
    PossibleValuesParser::new(batch::CODECS).map(|name| name.parse().expect("a codec"))
}

fn cpus(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(cpus @ 1..=batch::MAX_THREADS) if cpus <= host::cpus() => Ok(cpus),
        Ok(1..=batch::MAX_THREADS) => Err(format!(
            "no more than this process may use, here {}; taskset or a cpuset may allow it more",
            host::cpus()
        )),
        _ => Err(format!("a whole number from 1 to {}", batch::MAX_THREADS)),
    }
}

/// What is measured when nothing was asked for.
fn standard() -> Vec<usize> {
    (1..=host::cpus().min(2)).collect()
}

/// Compares, prints, and gives the exit status.
pub fn bench(args: BatchArgs) -> i32 {
    let BatchArgs { pages, codec, cpus, json } = args;
    let cpus = if cpus.is_empty() { standard() } else { cpus };
    let options = Options { pages, codecs: once(codec), cpus: once(cpus) };
    print_or_refuse(batch::compare(&options), json)
}
