//! The two tables of the kernel series, filled with our figures beside the published ones: three
//! modes of deflate at three levels on pages, and by_1 to by_64 on folios of 64 KiB.
//!
//! A latency is the time from handing a unit over to having its bytes, on a clock, one unit after
//! another on one thread; the published ones of by_n are medians of the accelerator, whose parts
//! are done at once, ours of one thread that does them all.

use super::peers::{self, Contestant, Trained};
use super::{CodecError, Program, round};
use crate::table::table;
use octavo_codec::deflate::TableFile;
use octavo_page::Unit;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

/// Units of each program that are measured at most: percentiles take no more.
const UNITS: usize = 1000;

/// Published of canned deflate (4,300 pages of SPEC CPU2017, zlib's matcher): ratio by level in
/// dynamic and canned mode.
const RATIOS: [(&str, f64); 6] = [
    ("deflate-dynamic:1", 3.16),
    ("deflate-dynamic:6", 3.35),
    ("deflate-dynamic:9", 3.36),
    ("deflate-canned:1", 2.92),
    ("deflate-canned:6", 3.09),
    ("deflate-canned:9", 3.11),
];

/// Published of by_n (an accelerator, 64 KiB folios): median ns to compress and to decompress, ratio.
const BY_N: [(usize, f64, f64, f64); 7] = [
    (1, 34_493.0, 20_038.0, 2.93),
    (2, 18_830.0, 11_888.0, 2.93),
    (4, 11_364.0, 8_146.0, 2.90),
    (8, 8_344.0, 6_342.0, 2.77),
    (16, 8_837.0, 6_549.0, 2.33),
    (32, 11_153.0, 9_641.0, 2.19),
    (64, 18_272.0, 16_696.0, 1.96),
];

/// Both tables.
#[derive(Debug, Serialize)]
pub struct Tables {
    modes: Vec<Row>,
    by_n: Vec<Row>,
}

/// One codec. Nanoseconds a unit.
#[derive(Debug, Serialize)]
struct Row {
    codec: String,
    unit: String,
    ratio: f64,
    compress_ns_p50: f64,
    compress_ns_p99: f64,
    decompress_ns_p50: f64,
    decompress_ns_p99: f64,
    published_ratio: Option<f64>,
    published_compress_ns: Option<f64>,
    published_decompress_ns: Option<f64>,
}

/// Measures both tables over the files.
///
/// # Errors
/// As [`super::compare`].
pub fn measure(pages: &[PathBuf], given: Option<&TableFile>) -> Result<Tables, CodecError> {
    let is_mode = |name: &str| name.starts_with("deflate-") && !name.contains("general");
    let mut modes = rows(pages, Unit::K4, given, is_mode)?;
    for row in &mut modes {
        let published = RATIOS.iter().find(|(name, _)| *name == row.codec);
        row.published_ratio = published.map(|(_, ratio)| *ratio);
    }
    let mut by_n = rows(pages, Unit::K64, given, |name| name.contains(":by_"))?;
    for (row, (_, compress, decompress, ratio)) in by_n.iter_mut().zip(BY_N) {
        row.published_ratio = Some(ratio);
        row.published_compress_ns = Some(compress);
        row.published_decompress_ns = Some(decompress);
    }
    Ok(Tables { modes, by_n })
}

fn rows(
    pages: &[PathBuf],
    unit: Unit,
    given: Option<&TableFile>,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Row>, CodecError> {
    let programs: Vec<Program> =
        pages.iter().map(|file| Program::read(file, unit)).collect::<Result<_, _>>()?;
    let trained = Trained::new(&programs, unit, given);
    let all = peers::all(&trained, unit)?;
    all.into_iter().filter(|c| wanted(&c.name)).map(|c| row(c, &programs, unit)).collect()
}

fn row(mut codec: Contestant<'_>, programs: &[Program], unit: Unit) -> Result<Row, CodecError> {
    let (mut bytes_in, mut bytes_out) = (0, 0);
    let (mut compress, mut decompress) = (Vec::new(), Vec::new());
    let (mut bytes, mut back) = (vec![1; unit.bytes()], vec![1; unit.bytes()]);
    for (i, program) in programs.iter().enumerate() {
        let step = program.measured.len().div_ceil(UNITS);
        for &at in program.measured.iter().step_by(step) {
            let source = program.unit(at, unit);
            let start = Instant::now();
            let size = codec.coder.compress(i, source, &mut bytes[..source.len() - 1]);
            compress.push(start.elapsed().as_nanos() as u64);
            bytes_in += source.len();
            bytes_out += size.unwrap_or(source.len());
            let Some(size) = size else { continue };
            let start = Instant::now();
            let fine = codec.coder.decompress(i, &bytes[..size], &mut back);
            decompress.push(start.elapsed().as_nanos() as u64);
            if !fine || back != source {
                return Err(CodecError::Wrong { codec: codec.name, file: program.file.clone() });
            }
        }
    }
    Ok(Row {
        codec: codec.name,
        unit: unit.to_string(),
        ratio: round(bytes_in as f64 / bytes_out as f64, 1000.0),
        compress_ns_p50: percentile(&mut compress, 50),
        compress_ns_p99: percentile(&mut compress, 99),
        decompress_ns_p50: percentile(&mut decompress, 50),
        decompress_ns_p99: percentile(&mut decompress, 99),
        published_ratio: None,
        published_compress_ns: None,
        published_decompress_ns: None,
    })
}

/// The value that `n` in a hundred do not exceed; 0 of none.
fn percentile(values: &mut [u64], n: usize) -> f64 {
    values.sort_unstable();
    values
        .get((values.len() * n / 100).min(values.len().saturating_sub(1)))
        .map_or(0.0, |&v| v as f64)
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (title, rows)) in
            [("modes and levels", &self.modes), ("by_n", &self.by_n)].into_iter().enumerate()
        {
            let mut table = table(
                &[
                    title,
                    "unit",
                    "ratio",
                    "comp p50",
                    "p99 ns",
                    "decomp p50",
                    "p99 ns",
                    "published: ratio",
                    "comp ns",
                    "decomp ns",
                ],
                1..,
            );
            let number = |value: f64| format!("{value:.0}");
            let published = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
            for row in rows {
                table.add_row([
                    row.codec.clone(),
                    row.unit.clone(),
                    format!("{:.3}", row.ratio),
                    number(row.compress_ns_p50),
                    number(row.compress_ns_p99),
                    number(row.decompress_ns_p50),
                    number(row.decompress_ns_p99),
                    row.published_ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}")),
                    published(row.published_compress_ns),
                    published(row.published_decompress_ns),
                ]);
            }
            write!(f, "{}{table}", if i == 0 { "" } else { "\n\n" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(percentile(&mut values, 50), 101.0);
        assert_eq!(percentile(&mut values, 99), 199.0);
        assert_eq!(percentile(&mut [7], 99), 7.0);
        assert_eq!(percentile(&mut [], 50), 0.0);
    }
}
