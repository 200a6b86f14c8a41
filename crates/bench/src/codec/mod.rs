//! `octavo bench codec`: our codecs and their peers over the same units of real memory.
//!
//! ```text
//!   page files ── units ─┬─ same-filled: counted, left out (a store keeps them as one word)
//!                        ├─ every 16th of a program: tables and dictionaries are learnt from it
//!                        └─ the rest: measured
//!
//!   for each of five passes
//!     for each codec: compress all units, decompress all units, compare
//! ```
//!
//! Codecs take turns, so that what else the machine does falls on all of them; the best of the
//! passes counts. Every codec gets the same units on one thread, and may use all but one byte of a
//! unit's length: a unit that does not fit counts whole. Units are handed over 32 at a time, as the
//! store does: a codec that has no way with many takes them one by one. What comes of them is copied,
//! one behind the other, to a store that was touched before. Decompression is one by one, as faults are. What is learnt from a program is used for that program only.
//!
//! `peers` has the codecs, [`latency`] the two tables of the canned series.

pub mod latency;
mod peers;
mod streams;
pub mod train;

use crate::host::{self, Machine, cpu_time};
use crate::table::table;
use octavo_codec::deflate::Level;
use octavo_codec::{Codec, DeflateMode, Job, Parts};
use octavo_page::Unit;
use peers::{Contestant, Trained};
use rustix::time::ClockId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use train::TableError;

pub use streams::StreamRow;

/// Passes over all codecs, of which the best counts.
const PASSES: usize = 5;
/// Units that are handed over at once.
const TOGETHER: usize = 32;
/// Of so many units of a program one is learnt from.
const LEARNT_FROM: usize = 16;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Files of raw pages, each of one program.
    pub pages: Vec<PathBuf>,
    /// Bytes in a unit.
    pub unit: Unit,
    /// Only codecs and peers of these names; empty: all of them.
    pub codecs: Vec<String>,
    /// Fill the tables of latencies, too.
    pub latency: bool,
    /// The tables of canned deflate, of a file; without: learnt from each program's own units.
    pub table: Option<PathBuf>,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum CodecError {
    /// A page file cannot be read.
    #[error("--pages {}: {why}; name files of raw memory pages", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What stands in the way.
        why: io::Error,
    },
    /// Too little in a file to learn from and measure.
    #[error("--pages {}: {units} units of {unit} that are not same-filled; {LEARNT_FROM} are the least", file.display())]
    TooShort {
        /// The file.
        file: PathBuf,
        /// Units found.
        units: usize,
        /// Bytes in each.
        unit: Unit,
    },
    /// A file of tables.
    #[error("--table {}: {why}", file.display())]
    Table {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: TableError,
    },
    /// A name that is no codec and no peer.
    #[error("--codec {name}: not measured at {unit}; measured are {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The unit.
        unit: Unit,
        /// All names.
        known: String,
    },
    /// A codec gave back another unit, or refused its own bytes.
    #[error("{codec}: a unit of {} came back wrong; do not use it, and report it", file.display())]
    Wrong {
        /// The codec's name.
        codec: String,
        /// The file of the unit.
        file: PathBuf,
    },
    /// A peer's library failed to set up.
    #[error("{codec}: {why}")]
    Peer {
        /// The peer's name.
        codec: String,
        /// What its library says.
        why: String,
    },
}

/// The units of one program.
pub(crate) struct Program {
    file: PathBuf,
    bytes: Vec<u8>,
    same_filled: usize,
    /// Where the units to learn from begin, and those to measure.
    learnt_from: Vec<usize>,
    measured: Vec<usize>,
}

impl Program {
    fn read(file: &Path, unit: Unit) -> Result<Self, CodecError> {
        let failed = |why| CodecError::Read { file: file.to_path_buf(), why };
        // A device may have no end.
        if !std::fs::metadata(file).map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("no regular file")));
        }
        let bytes = std::fs::read(file).map_err(failed)?;
        let starts = (0..bytes.len() / unit.bytes()).map(|i| i * unit.bytes());
        let (same, kept): (Vec<_>, Vec<_>) =
            starts.partition(|&at| same_filled(&bytes[at..][..unit.bytes()]));
        if kept.len() < LEARNT_FROM {
            return Err(CodecError::TooShort { file: file.to_path_buf(), units: kept.len(), unit });
        }
        let place = |i: &usize| i.is_multiple_of(LEARNT_FROM);
        let learnt_from = (0..kept.len()).filter(place).map(|i| kept[i]).collect();
        let measured = (0..kept.len()).filter(|i| !place(i)).map(|i| kept[i]).collect();
        Ok(Self { file: file.to_path_buf(), bytes, same_filled: same.len(), learnt_from, measured })
    }

    fn unit(&self, at: usize, unit: Unit) -> &[u8] {
        &self.bytes[at..][..unit.bytes()]
    }

    /// The units to learn from.
    fn samples(&self, unit: Unit) -> Vec<&[u8]> {
        self.learnt_from.iter().map(|&at| self.unit(at, unit)).collect()
    }
}

/// The figures as `--json` prints them.
#[derive(Debug, Serialize)]
pub struct Comparison {
    bench: &'static str,
    machine: Machine,
    /// Units measured, learnt from, and left out because all their words are the same.
    units: usize,
    units_learnt_from: usize,
    units_same_filled: usize,
    rows: Vec<Row>,
    /// Whole files of raw deflate, for decoders alone.
    streams: Vec<StreamRow>,
    /// The tables of latencies, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<latency::Tables>,
}

/// One codec.
#[derive(Debug, Serialize)]
struct Row {
    codec: String,
    unit: String,
    /// Bytes in over bytes out; a unit that does not fit counts whole.
    ratio: f64,
    compress_mb_s: f64,
    decompress_mb_s: f64,
    /// Units that do not fit.
    does_not_fit: usize,
    /// No other row is better in one of the three figures and as good in the others.
    front: bool,
    /// Ratio of each program by itself, by the name of its file.
    programs: BTreeMap<String, f64>,
}

/// Measures.
///
/// # Errors
/// [`CodecError`] when a file or a name is wrong, or a codec is.
pub fn compare(options: &Options) -> Result<Comparison, CodecError> {
    let unit = options.unit;
    let programs: Vec<Program> =
        options.pages.iter().map(|file| Program::read(file, unit)).collect::<Result<_, _>>()?;
    let given = options
        .table
        .as_ref()
        .map(|file| train::read(file).map_err(|why| CodecError::Table { file: file.clone(), why }));
    let given = given.transpose()?;
    let trained = Trained::new(&programs, unit, given.as_ref());
    let mut contestants = chosen(peers::all(&trained, unit)?, options)?;
    let mut rows: Vec<Measured> = contestants.iter().map(|_| Measured::default()).collect();
    let units: usize = programs.iter().map(|p| p.measured.len()).sum();
    let mut store = vec![1; units * unit.bytes()];
    for _ in 0..PASSES {
        for (contestant, row) in contestants.iter_mut().zip(&mut rows) {
            row.better_of(measure(contestant, &programs, unit, &mut store)?);
        }
    }
    let mut rows: Vec<Row> = contestants
        .iter()
        .zip(&rows)
        .map(|(contestant, measured)| measured.row(contestant.name.clone(), &programs, unit))
        .collect();
    mark_front(&mut rows);
    let streams = if options.codecs.is_empty() { streams::compare(&programs)? } else { Vec::new() };
    Ok(Comparison {
        bench: "codec",
        machine: host::machine(),
        units,
        units_learnt_from: programs.iter().map(|p| p.learnt_from.len()).sum(),
        units_same_filled: programs.iter().map(|p| p.same_filled).sum(),
        rows,
        streams,
        latency: options
            .latency
            .then(|| latency::measure(&options.pages, given.as_ref()))
            .transpose()?,
    })
}

/// The names of our codecs that are measured at `unit`, fastest families first.
fn ours(unit: Unit) -> Vec<Codec> {
    let deflate = |mode, level, parts| Codec::Deflate { mode, level, parts };
    let mut codecs = vec![Codec::Lz4];
    codecs.extend(
        ["zstd:-3", "zstd:-1", "zstd:1", "zstd:3"].map(|n| n.parse::<Codec>().expect("a codec")),
    );
    codecs.push(deflate(DeflateMode::Fixed, Level::L1, Parts::WHOLE));
    for mode in [DeflateMode::Dynamic, DeflateMode::Canned, DeflateMode::CannedGeneral] {
        codecs.extend(Level::ALL.map(|level| deflate(mode, level, Parts::WHOLE)));
    }
    if unit == Unit::K64 {
        let by = (0..7).filter_map(|log| Parts::by(1 << log));
        codecs.extend(by.map(|parts| deflate(DeflateMode::Canned, Level::L1, parts)));
    }
    codecs
}

/// Those that were asked for.
fn chosen<'a>(
    all: Vec<Contestant<'a>>,
    options: &Options,
) -> Result<Vec<Contestant<'a>>, CodecError> {
    let names: Vec<String> = all.iter().map(|c| c.name.clone()).collect();
    if let Some(name) = options.codecs.iter().find(|name| !names.contains(name)) {
        let (name, known) = (name.clone(), names.join(", "));
        return Err(CodecError::Unknown { name, unit: options.unit, known });
    }
    let wanted = |c: &Contestant<'_>| options.codecs.is_empty() || options.codecs.contains(&c.name);
    Ok(all.into_iter().filter(wanted).collect())
}

/// One pass of one codec, or the best of some.
#[derive(Default)]
struct Measured {
    /// By program.
    bytes_out: Vec<usize>,
    does_not_fit: usize,
    compress: Option<Duration>,
    decompress: Option<Duration>,
}

impl Measured {
    fn better_of(&mut self, new: Self) {
        let less = |a: Option<Duration>, b: Option<Duration>| a.into_iter().chain(b).min();
        let (compress, decompress) =
            (less(self.compress, new.compress), less(self.decompress, new.decompress));
        *self = Self { compress, decompress, ..new };
    }

    fn row(&self, codec: String, programs: &[Program], unit: Unit) -> Row {
        let bytes_in = |p: &Program| (p.measured.len() * unit.bytes()) as f64;
        let all: f64 = programs.iter().map(bytes_in).sum();
        let speed =
            |time: Option<Duration>| round(all / 1e6 / time.unwrap_or_default().as_secs_f64(), 1.0);
        let name = |p: &Program| {
            p.file.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
        };
        let ratios = programs.iter().zip(&self.bytes_out);
        Row {
            codec,
            unit: unit.to_string(),
            ratio: round(all / self.bytes_out.iter().sum::<usize>() as f64, 1000.0),
            compress_mb_s: speed(self.compress),
            decompress_mb_s: speed(self.decompress),
            does_not_fit: self.does_not_fit,
            front: false,
            programs: ratios
                .map(|(p, &out)| (name(p), round(bytes_in(p) / out as f64, 1000.0)))
                .collect(),
        }
    }
}

/// `value`, no finer than one part in `parts`.
fn round(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

/// Compresses all units one after another, then decompresses them all, then compares.
fn measure(
    contestant: &mut Contestant<'_>,
    programs: &[Program],
    unit: Unit,
    store: &mut [u8],
) -> Result<Measured, CodecError> {
    let units = |program: usize| {
        let program: &Program = &programs[program];
        program.measured.iter().map(|&at| program.unit(at, unit))
    };
    let mut sizes = Vec::with_capacity(store.len() / unit.bytes());
    let mut measured = Measured::default();
    let mut end = 0;
    let mut rooms = vec![1; TOGETHER * unit.bytes()];
    let start = cpu_time(ClockId::ThreadCPUTime);
    for (i, program) in programs.iter().enumerate() {
        let begin = end;
        for some in program.measured.chunks(TOGETHER) {
            let mut rooms = rooms.chunks_exact_mut(unit.bytes());
            let mut jobs: [Job<'_>; TOGETHER] = core::array::from_fn(|k| {
                let Some(&at) = some.get(k) else { return Job::new(&[], &mut []) };
                let room = rooms.next().expect("a room for each");
                Job::new(program.unit(at, unit), &mut room[..unit.bytes() - 1])
            });
            contestant.coder.compress_all(i, &mut jobs[..some.len()]);
            for Job { out, size, .. } in &jobs[..some.len()] {
                if let Ok(size) = *size {
                    store[end..][..size].copy_from_slice(&out[..size]);
                }
                end += size.unwrap_or(unit.bytes());
                measured.does_not_fit += usize::from(size.is_err());
                sizes.push(size.ok());
            }
        }
        measured.bytes_out.push(end - begin);
    }
    measured.compress = Some(cpu_time(ClockId::ThreadCPUTime) - start);

    let mut back = vec![0; unit.bytes()];
    for compare in [false, true] {
        let (mut at, mut sizes) = (0, sizes.iter());
        let start = cpu_time(ClockId::ThreadCPUTime);
        for (program, file) in programs.iter().enumerate() {
            for (unit, size) in units(program).zip(&mut sizes) {
                let Some(size) = *size else {
                    at += unit.len();
                    continue;
                };
                let fine = contestant.coder.decompress(program, &store[at..][..size], &mut back);
                if !fine || compare && back != *unit {
                    let (codec, file) = (contestant.name.clone(), file.file.clone());
                    return Err(CodecError::Wrong { codec, file });
                }
                at += size;
            }
        }
        if !compare {
            measured.decompress = Some(cpu_time(ClockId::ThreadCPUTime) - start);
        }
    }
    Ok(measured)
}

fn same_filled(unit: &[u8]) -> bool {
    unit[..unit.len() - 8] == unit[8..]
}

fn mark_front(rows: &mut [Row]) {
    let figures: Vec<[f64; 3]> =
        rows.iter().map(|r| [r.ratio, r.compress_mb_s, r.decompress_mb_s]).collect();
    for (row, own) in rows.iter_mut().zip(&figures) {
        let beats = |other: &&[f64; 3]| {
            *other != own && other.iter().zip(own).all(|(other, own)| other >= own)
        };
        row.front = figures.iter().find(beats).is_none();
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows =
            table(&["codec", "unit", "ratio", "comp MB/s", "decomp MB/s", "no fit", "front"], 1..);
        for row in &self.rows {
            rows.add_row([
                row.codec.clone(),
                row.unit.clone(),
                format!("{:.3}", row.ratio),
                format!("{:.0}", row.compress_mb_s),
                format!("{:.0}", row.decompress_mb_s),
                row.does_not_fit.to_string(),
                if row.front { "*" } else { "" }.to_owned(),
            ]);
        }
        writeln!(f, "{rows}")?;
        write!(
            f,
            "{} units; {} to learn from and {} same-filled left out",
            self.units, self.units_learnt_from, self.units_same_filled
        )?;
        if !self.streams.is_empty() {
            write!(f, "\n\n{}", streams::table(&self.streams))?;
        }
        if let Some(latency) = &self.latency {
            write!(f, "\n\n{latency}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ratio: f64, compress_mb_s: f64, decompress_mb_s: f64) -> Row {
        Row {
            codec: "lz4".to_owned(),
            unit: "4K".to_owned(),
            ratio,
            compress_mb_s,
            decompress_mb_s,
            does_not_fit: 0,
            front: false,
            programs: BTreeMap::new(),
        }
    }

    #[test]
    fn the_front_is_what_nothing_beats() {
        let mut rows = [row(2.0, 700.0, 900.0), row(3.0, 400.0, 900.0), row(2.0, 600.0, 900.0)];
        mark_front(&mut rows);
        assert_eq!(rows.map(|r| r.front), [true, true, false]);
    }

    fn pages(name: &str) -> PathBuf {
        format!("{}/../../testdata/{name}.pages", env!("CARGO_MANIFEST_DIR")).into()
    }

    /// The names of all that is measured at `unit`, as the error for another name tells them.
    fn names(unit: Unit) -> String {
        let (pages, codecs) = (vec![pages("gcc")], vec!["zstd:19".to_owned()]);
        let options = Options { pages, unit, codecs, latency: false, table: None };
        let said = compare(&options).expect_err("unknown").to_string();
        let start = format!("--codec zstd:19: not measured at {unit}; measured are lz4, ");
        assert!(said.starts_with(&start), "{said}");
        said
    }

    #[test]
    fn peers_are_measured_too() {
        for name in ["zstd:1:dict", "libdeflate:1", "zlib-rs:1", "deflate-canned:9:general"] {
            assert!(names(Unit::K4).contains(name), "{name} is missing");
        }
        let cut = |codec: &Codec| codec.to_string() == "deflate-canned:1:by_64";
        assert!(ours(Unit::K64).iter().any(cut) && !ours(Unit::K4).iter().any(cut));
    }

    #[test]
    fn what_is_measured_adds_up() {
        let codecs = ["lz4", "zstd:-1:dict", "libdeflate:1", "zlib-rs:1", "deflate-canned:1"];
        let options = Options {
            pages: vec![pages("gcc"), pages("redis")],
            unit: Unit::K16,
            codecs: codecs.map(str::to_owned).into(),
            latency: false,
            table: None,
        };
        let comparison = compare(&options).expect("a comparison");
        let units = |file: &PathBuf| {
            std::fs::metadata(file).expect("a file").len() as usize / Unit::K16.bytes()
        };
        let counted =
            comparison.units + comparison.units_learnt_from + comparison.units_same_filled;
        assert_eq!(counted, options.pages.iter().map(units).sum::<usize>());
        assert_eq!(comparison.rows.len(), codecs.len());
        for row in &comparison.rows {
            assert!(row.ratio > 1.0 && row.compress_mb_s > 0.0 && row.programs.len() == 2);
        }
    }
}
