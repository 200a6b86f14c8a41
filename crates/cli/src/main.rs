//! The command `octavo`: runs programs in less memory, says what a machine allows, measures.
//!
//! Exit status: what the command says itself, or 125 when Octavo refuses or fails, with one line on
//! stderr that names the thing, the value and what would do.
#![cfg_attr(not(test), no_main)]

mod backing;
mod bench;
mod bench_batch;
mod bench_crypt;
mod bench_pool;
mod bench_writeback;
mod codec;
mod doctor;
#[cfg(not(test))]
mod entry;
mod keeper;
mod print;
mod program;
mod run;
mod sim;
mod slots;
mod turns;
mod uffd;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// Octavo refused or failed.
const REFUSED: i32 = 125;

/// Runs unmodified programs in a fraction of the memory they ask for.
#[derive(Parser, Debug)]
#[command(name = "octavo", version, about, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Run(run::RunArgs),
    Doctor(doctor::DoctorArgs),
    Codec(codec::CodecArgs),
    Bench(bench::BenchArgs),
    Sim(sim::SimArgs),
    #[command(hide = true)]
    BenchSwapWorker(bench::WorkerArgs),
    #[command(hide = true)]
    BenchSwapPeer(bench::PeerArgs),
    #[command(hide = true)]
    BenchPoolWorker(bench_pool::WorkerArgs),
    #[command(hide = true)]
    BenchPoolDevice(bench_pool::DeviceArgs),
}

/// Does what the arguments ask for and gives the exit status.
#[cfg_attr(test, allow(dead_code))]
fn command() -> i32 {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    // What its program does with stdout is the program's.
    let prints = !matches!(cli.command, Command::Run(_));
    if prints && let Err(why) = print::ready() {
        return print::status(Err(why));
    }
    match cli.command {
        Command::Run(args) => match run::run(&args) {
            Ok(never) => match never {},
            Err(refusal) => refuse(&refusal, refusal.exit_code()),
        },
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Codec(args) => codec::codec(args),
        Command::Bench(args) => bench::bench(args),
        Command::Sim(args) => sim::sim(args),
        Command::BenchSwapWorker(args) => bench::swap_worker(args),
        Command::BenchSwapPeer(args) => bench::swap_peer(args),
        Command::BenchPoolWorker(args) => bench_pool::worker(args),
        Command::BenchPoolDevice(args) => bench_pool::device(&args),
    }
}

/// One line on stderr, and the status.
fn refuse(why: &dyn std::fmt::Display, status: i32) -> i32 {
    eprintln!("octavo: {why}");
    status
}

/// Help and version as clap prints them; a mistake as one line.
fn usage(error: &clap::Error) -> i32 {
    let said = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            return print::status(print::ready().and_then(|()| error.print()));
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "no command given".to_owned(),
        _ => {
            let text = error.render().to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            let words: Vec<_> = first.split_whitespace().filter(|w| *w != "error:").collect();
            words.join(" ")
        }
    };
    refuse(&format!("{said}; see `{} --help`", named()), REFUSED)
}

/// The command that the arguments name, as far as there is such a one: `octavo bench slots`.
fn named() -> String {
    let whole = Cli::command();
    let (mut command, mut name) = (&whole, "octavo".to_owned());
    for word in std::env::args_os().skip(1) {
        let Some(next) = command.find_subcommand(&word) else { break };
        name = format!("{name} {}", next.get_name());
        command = next;
    }
    name
}
