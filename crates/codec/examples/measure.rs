//! Ratio and speed of codecs over files of memory pages, as a table for `docs/codec.md`.
//!
//!     cargo run --release -p octavo-codec --example measure -- 4K,16K,64K lz4,zstd:-1 FILE...
//!
//! Units whose words are all the same are left out and counted: the store keeps them as one word.
//! Passes over all codecs alternate, the best of five counts, every unit is compared. Ratio is
//! total bytes in over total bytes out, a unit that does not shrink counts whole. Time is the thread's
//! own CPU time, which other programs disturb less than they disturb a clock.

use octavo_codec::{Codec, Workspace};
use octavo_page::Unit;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::time::Duration;

const PASSES: usize = 5;

/// One codec's figures for one unit length.
#[derive(Clone, Default)]
struct Row {
    bytes_out: usize,
    does_not_fit: usize,
    compress: Duration,
    decompress: Duration,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [units, codecs, files @ ..] = &arguments[..] else {
        return Err("arguments: UNIT,... CODEC,... FILE...".into());
    };
    let units: Vec<Unit> = units.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let codecs: Vec<Codec> = codecs.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let files: Vec<Vec<u8>> = files.iter().map(std::fs::read).collect::<Result<_, _>>()?;
    let mut workspace = Workspace::new(&codecs);

    println!("| unit | codec | ratio | compress MB/s | decompress MB/s | does not fit |");
    println!("|---|---|---|---|---|---|");
    for unit in units {
        let kept: Vec<&[u8]> = files
            .iter()
            .flat_map(|file| file.chunks_exact(unit.bytes()))
            .filter(|unit| !same_filled(unit))
            .collect();
        let mut rows = vec![Row::default(); codecs.len()];
        for pass in 0..PASSES {
            for (codec, row) in codecs.iter().zip(&mut rows) {
                let new = measure(&mut workspace, *codec, unit, &kept);
                *row = if pass == 0 { new } else { best(row, &new) };
            }
        }
        let bytes_in = kept.len() * unit.bytes();
        for (codec, row) in codecs.iter().zip(&rows) {
            let speed = |time: Duration| bytes_in as f64 / 1e6 / time.as_secs_f64();
            println!(
                "| {unit} | {codec} | {:.3} | {:.0} | {:.0} | {:.2}% |",
                bytes_in as f64 / row.bytes_out as f64,
                speed(row.compress),
                speed(row.decompress),
                100.0 * row.does_not_fit as f64 / kept.len() as f64,
            );
        }
    }
    for (path, file) in arguments[2..].iter().zip(&files) {
        let pages = file.chunks_exact(4096);
        let all = pages.len();
        let same = pages.filter(|page| same_filled(page)).count();
        println!("{path}: {same} of {all} pages same-filled");
    }
    Ok(())
}

/// CPU time this thread has had.
fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Compresses all units one after another, then decompresses them all, then compares.
fn measure(workspace: &mut Workspace, codec: Codec, unit: Unit, units: &[&[u8]]) -> Row {
    let mut row = Row::default();
    // Touched, so that the first write to each page is not part of what is timed.
    let mut store = vec![1; units.len() * unit.bytes()];
    let mut sizes = Vec::with_capacity(units.len());
    let start = now();
    for unit in units {
        let room = &mut store[row.bytes_out..][..unit.len() - 1];
        let size = workspace.compress(codec, unit, room).ok();
        row.bytes_out += size.unwrap_or(unit.len());
        row.does_not_fit += usize::from(size.is_none());
        sizes.push(size);
    }
    row.compress = now() - start;

    let mut back = vec![0; unit.bytes()];
    for compare in [false, true] {
        let start = now();
        let mut at = 0;
        for (unit, size) in units.iter().zip(&sizes) {
            if let Some(size) = size {
                let result = workspace.decompress(codec, &store[at..][..*size], &mut back);
                assert!(result.is_ok(), "{codec} refuses its own bytes");
                assert!(!compare || back == *unit, "{codec} gives another unit back");
            }
            at += size.unwrap_or(unit.len());
        }
        if !compare {
            row.decompress = now() - start;
        }
    }
    row
}

fn best(a: &Row, b: &Row) -> Row {
    Row {
        compress: a.compress.min(b.compress),
        decompress: a.decompress.min(b.decompress),
        ..a.clone()
    }
}

fn same_filled(unit: &[u8]) -> bool {
    unit[..unit.len() - 8] == unit[8..]
}
