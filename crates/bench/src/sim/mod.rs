//! `octavo sim`: machines that are not here, in virtual time.
//!
//! A model has few parameters, fitted to some cells of a published table, which are marked; the other
//! cells it predicts. What comes out is a prediction and never a measurement.

pub mod batch;
pub mod by_n;
mod queue;
pub mod slots;

use crate::host::{self, Machine};
use crate::table::table;
use serde::Serialize;
use std::fmt;

/// What a model says, beside what was published: one object for `--json`; prints as a table.
#[derive(Debug, Serialize)]
pub struct Report {
    bench: &'static str,
    /// Where the model ran; no figure depends on it.
    machine: Machine,
    /// Every parameter, by name, and how it was come by.
    parameters: Vec<Parameter>,
    rows: Vec<Row>,
}

/// A number that the model does not make itself.
#[derive(Debug, Serialize)]
pub struct Parameter {
    name: String,
    value: f64,
    /// Fitted to cells of the table, which are marked; or taken from elsewhere.
    fitted: bool,
    source: &'static str,
}

/// One cell of a published table, or one that nobody published.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What, as in `build-4K-j48-sys`.
    case: String,
    /// Which design.
    system: &'static str,
    /// By the model.
    value: f64,
    published: Option<f64>,
    error_percent: Option<f64>,
    /// A parameter was fitted to this cell, so that it is no prediction.
    calibrated: bool,
}

impl Row {
    fn new(
        case: String,
        system: &'static str,
        value: f64,
        published: Option<f64>,
        calibrated: bool,
    ) -> Self {
        let error_percent = published.map(|published| tenths((value / published - 1.0) * 100.0));
        Self { case, system, value: tenths(value), published, error_percent, calibrated }
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

impl Report {
    fn new(parameters: Vec<Parameter>, rows: Vec<Row>) -> Self {
        Self { bench: "sim", machine: host::machine(), parameters, rows }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = table(&["case", "system", "model", "published", "error", ""], 2..5);
        for row in &self.rows {
            let number = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.1}"));
            table.add_row([
                row.case.clone(),
                row.system.to_owned(),
                number(Some(row.value)),
                number(row.published),
                row.error_percent.map_or("-".to_owned(), |e| format!("{e:+.1}%")),
                if row.calibrated { "fitted" } else { "predicted" }.to_owned(),
            ]);
        }
        writeln!(f, "{}\n", table.trim_fmt())?;
        for Parameter { name, value, fitted, source } in &self.parameters {
            let how = if *fitted { "fitted" } else { "given" };
            writeln!(f, "{name} = {value:.4} ({how}: {source})")?;
        }
        write!(f, "\nPredictions of a model in virtual time, not measurements.")
    }
}
