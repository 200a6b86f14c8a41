//! `octavo sim`: the arguments; the models are in `octavo_bench::sim`.

use clap::{Args, Subcommand};
use octavo_bench::sim;

/// Say what machines that are not here would do, in virtual time.
#[derive(Args, Debug)]
pub struct SimArgs {
    #[command(subcommand)]
    sim: Sim,
}

#[derive(Subcommand, Debug)]
enum Sim {
    /// Locks of the slot allocator on up to 96 CPUs, beside the published figures
    Slots(Output),
    /// A folio of 64K in parts on an accelerator, beside the published figures
    ByN(Output),
    /// Batches on the machine of the zswap IAA series, beside the published figures: takes some
    /// seven minutes and 5 GiB
    Batch(Output),
}

#[derive(Args, Debug)]
struct Output {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs a model, prints, and gives the exit status.
pub fn sim(args: SimArgs) -> i32 {
    match args.sim {
        Sim::Slots(Output { json }) => crate::print::print(&sim::slots::report(), json),
        Sim::ByN(Output { json }) => crate::print::print(&sim::by_n::report(), json),
        Sim::Batch(Output { json }) => crate::print::print(&sim::batch::report(), json),
    }
}
