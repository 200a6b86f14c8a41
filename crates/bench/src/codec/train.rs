//! Tables for canned deflate, trained on pages of a program's memory, in a file.
//!
//! Of 16 units that are not same-filled one is held out: the tables have not seen it, and what it gives is
//! what others of its kind will. Every unit is read back with the tables of the file as it was written.

use super::{CodecError, Program, TOGETHER, round};
use crate::files::FileIdentity;
use crate::table::table;
use octavo_codec::deflate::{self, BadFile, Generations, Level, TableFile, window_of};
use octavo_codec::{Codec, DeflateMode, Job, Parts, Workspace};
use octavo_page::Unit;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// What is trained.
#[derive(Clone, Debug)]
pub struct Options {
    /// Files of raw pages.
    pub pages: Vec<PathBuf>,
    /// Bytes in a unit.
    pub unit: Unit,
    /// Tables, 1 to 8.
    pub tables: usize,
    /// Where they go.
    pub out: PathBuf,
}

/// Why a file gives no tables.
#[derive(Debug, Error)]
pub enum TableError {
    /// It cannot be read.
    #[error("{0}; name a file that `octavo codec train` has made")]
    Read(#[from] io::Error),
    /// It has none.
    #[error(transparent)]
    Bad(#[from] BadFile),
}

/// Why nothing was trained.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The pages.
    #[error(transparent)]
    Pages(#[from] CodecError),
    /// The file for the tables has pages that they are made of.
    #[error("--out {}: is one of --pages, and would be lost; name another file", .0.display())]
    OutIsInput(PathBuf),
    /// The file for the tables.
    #[error("--out {}: cannot be written: {why}; name a file in a directory of yours", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// What stands in the way.
        why: io::Error,
    },
    /// The file for the tables, read again.
    #[error("--out {}: {why}", file.display())]
    Out {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: TableError,
    },
}

/// The tables in a file. Reads no more of it than a file of tables has.
///
/// # Errors
/// [`TableError`].
pub fn read(file: &Path) -> Result<TableFile, TableError> {
    let mut bytes = Vec::new();
    fs::File::open(file)?.take(TableFile::MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(TableFile::from_bytes(&bytes)?)
}

/// What came of it, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Trained {
    codec: String,
    unit: String,
    tables: usize,
    window_bytes: usize,
    file_bytes: usize,
    /// Units left out because all their words are the same.
    units_same_filled: usize,
    trained: Part,
    held_out: Part,
    rows: Vec<Row>,
}

/// Units, and what they give.
#[derive(Debug, Default, Serialize)]
struct Part {
    units: usize,
    /// Bytes in over bytes out; a unit that does not fit counts whole.
    ratio: f64,
    does_not_fit: usize,
}

/// The units that one table took, of all.
#[derive(Debug, Clone, Default, Serialize)]
struct Row {
    table: usize,
    units: usize,
    bytes_in: usize,
    bytes_out: usize,
}

/// Trains, writes the file, and says what its tables give.
///
/// # Errors
/// [`TrainError`].
pub fn train(options: &Options) -> Result<Trained, TrainError> {
    let Options { pages, unit, tables, out } = options;
    if pages.iter().any(|file| FileIdentity::of(file) == FileIdentity::of(out)) {
        return Err(TrainError::OutIsInput(out.clone()));
    }
    let programs = pages.iter().map(|file| Program::read(file, *unit));
    let programs: Vec<Program> = programs.collect::<Result<_, _>>()?;
    // What the bench learns from is held out here.
    let units = |are_held_out: bool| -> Vec<&[u8]> {
        let of =
            |p: &'_ Program| if are_held_out { p.learnt_from.clone() } else { p.measured.clone() };
        programs.iter().flat_map(|p| of(p).into_iter().map(|at| p.unit(at, *unit))).collect()
    };
    let (seen, held_out) = (units(false), units(true));
    let lengths = deflate::learn(Level::L1, unit.bytes(), *tables, seen.iter().copied());
    let bytes = TableFile::new(window_of(unit.bytes()), &lengths)
        .expect("what is trained is a table")
        .to_bytes();
    fs::write(out, &bytes).map_err(|why| TrainError::Write { file: out.clone(), why })?;
    let file = read(out).map_err(|why| TrainError::Out { file: out.clone(), why })?;

    let codec = Codec::Deflate { mode: DeflateMode::Canned, level: Level::L1, parts: Parts::WHOLE };
    let mut coder = Coder::new(codec, &file, *unit);
    Ok(Trained {
        codec: codec.to_string(),
        unit: unit.to_string(),
        tables: file.lengths().len(),
        window_bytes: file.window(),
        file_bytes: bytes.len(),
        units_same_filled: programs.iter().map(|p| p.same_filled).sum(),
        trained: coder.part(&seen),
        held_out: coder.part(&held_out),
        rows: coder.rows,
    })
}

/// Compresses units with the tables, reads them back, and counts.
struct Coder {
    codec: Codec,
    workspace: Workspace,
    first_id: u8,
    /// For what comes of units that are compressed together.
    rooms: Vec<u8>,
    back: Vec<u8>,
    rows: Vec<Row>,
}

impl Coder {
    fn new(codec: Codec, file: &TableFile, unit: Unit) -> Self {
        let tables = Arc::new(Generations::of_file(file));
        let first_id = tables.newest().map_or(0, |generation| generation.first_id());
        let mut workspace = Workspace::new(&[codec]);
        workspace.set_learnt(tables);
        let row = |table| Row { table, ..Row::default() };
        let rows = (0..file.lengths().len()).map(row).collect();
        let (rooms, back) = (vec![0; TOGETHER * unit.bytes()], vec![0; unit.bytes()]);
        Self { codec, workspace, first_id, rooms, back, rows }
    }

    fn part(&mut self, units: &[&[u8]]) -> Part {
        let Self { codec, workspace, first_id, rooms, back, rows } = self;
        let mut part = Part { units: units.len(), ..Part::default() };
        let (mut bytes_in, mut bytes_out) = (0, 0);
        for some in units.chunks(TOGETHER) {
            let rooms = rooms.chunks_exact_mut(back.len());
            let jobs = some.iter().zip(rooms).map(|(unit, room)| Job::new(unit, &mut room[1..]));
            let mut jobs: Vec<Job<'_>> = jobs.collect();
            workspace.compress_all(*codec, &mut jobs);
            for Job { unit, out, size } in jobs {
                bytes_in += unit.len();
                let Ok(size) = size else {
                    (part.does_not_fit, bytes_out) =
                        (part.does_not_fit + 1, bytes_out + unit.len());
                    continue;
                };
                bytes_out += size;
                let read = workspace.decompress(*codec, &out[..size], back);
                assert!(read.is_ok() && back == unit, "a unit comes back as it was");
                let row = &mut rows[usize::from(out[0] - *first_id)];
                row.units += 1;
                row.bytes_in += unit.len();
                row.bytes_out += size;
            }
        }
        part.ratio = round(bytes_in as f64 / bytes_out.max(1) as f64, 1000.0);
        part
    }
}

impl fmt::Display for Trained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = table(&["table", "units", "bytes in", "bytes out", "ratio"], ..);
        for Row { table, units, bytes_in, bytes_out } in &self.rows {
            let ratio = *bytes_in as f64 / (*bytes_out).max(1) as f64;
            rows.add_row([
                table.to_string(),
                units.to_string(),
                bytes_in.to_string(),
                bytes_out.to_string(),
                format!("{ratio:.3}"),
            ]);
        }
        writeln!(f, "{}", rows.trim_fmt())?;
        let Self { trained, held_out, unit, file_bytes, .. } = self;
        write!(
            f,
            "ratio {:.3} on {} units of {unit} that were trained on, {:.3} on {} held out; \
             {} same-filled left out; {file_bytes} bytes of tables",
            trained.ratio, trained.units, held_out.ratio, held_out.units, self.units_same_filled,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options as Measured, compare};
    use super::*;

    fn pages(program: &str) -> PathBuf {
        let name = format!("../../testdata/{program}.pages");
        Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
    }

    #[test]
    fn pages_are_not_overwritten_by_their_tables_but_older_tables_are() {
        let dir = tempfile::tempdir().expect("a directory");
        let [pages, out] = ["pages", "tables"].map(|name| dir.path().join(name));
        let bytes: Vec<u8> = (0..64 * 4096_u32).map(|n| (n / 3) as u8).collect();
        fs::write(&pages, &bytes).expect("room");
        fs::write(&out, b"older").expect("room");
        let options = |out| Options { pages: vec![pages.clone()], unit: Unit::K4, tables: 1, out };
        let why = train(&options(dir.path().join("./pages"))).expect_err("they are the pages");
        assert!(matches!(why, TrainError::OutIsInput(_)), "{why}");
        assert_eq!(fs::read(&pages).expect("they are there"), bytes);
        assert!(train(&options(out.clone())).is_ok() && read(&out).is_ok());
    }

    #[test]
    fn what_is_trained_is_what_is_used() {
        let out = std::env::temp_dir().join(format!("octavo-tables-{}", std::process::id()));
        let options =
            Options { pages: vec![pages("gcc"), pages("redis")], unit: Unit::K4, tables: 3, out };
        let trained = train(&options).expect("tables");
        let units: usize = trained.rows.iter().map(|row| row.units).sum();
        let missed = trained.trained.does_not_fit + trained.held_out.does_not_fit;
        assert_eq!(units + missed, trained.trained.units + trained.held_out.units);
        assert_eq!((trained.tables, trained.window_bytes), (3, 4096));
        assert!(trained.held_out.ratio > 1.5 && trained.trained.ratio > 1.5);

        let measured = Measured {
            pages: options.pages.clone(),
            unit: Unit::K4,
            codecs: vec!["deflate-canned:1".to_owned()],
            latency: false,
            table: Some(options.out.clone()),
        };
        let row = &compare(&measured).expect("a comparison").rows[0];
        // Those units are the ones that were trained on.
        assert!((row.ratio - trained.trained.ratio).abs() < 0.002, "{}", row.ratio);

        let good = fs::read(&options.out).expect("the file");
        for (bytes, why) in [
            (&good[..good.len() - 1], "damaged"),
            (&b"text"[..], "no file of tables"),
            (&[good.clone(), vec![0; TableFile::MAX_BYTES]].concat(), "damaged"),
        ] {
            fs::write(&options.out, bytes).expect("the file");
            let said = compare(&measured).expect_err("no tables").to_string();
            assert!(said.starts_with("--table ") && said.contains(why), "{said}");
        }
        fs::remove_file(&options.out).expect("the file");
        assert!(compare(&measured).is_err());
    }
}
