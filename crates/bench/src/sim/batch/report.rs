//! The tables of the letters, cell by cell.

use super::build;
use super::machine::System;
use super::published::{self, Table};
use super::rig::Calls;
use super::usemem::Outcome;
use crate::sim::Row;
use octavo_page::Order;

/// One column of a table: what the model says, and what was published.
pub(super) struct Column<'o> {
    pub system: System,
    pub outcome: &'o Outcome,
    pub published: Option<published::Usemem>,
}

/// The cells of a table that costs are fitted to, by system and what.
pub(super) type Fitted = &'static [(&'static str, &'static str)];

/// The rows of one of usemem's tables; `name` as in `usemem-64K-v4`.
pub(super) fn usemem(name: &str, order: Order, columns: &[Column<'_>], fitted: Fitted) -> Vec<Row> {
    let mut rows = Vec::new();
    for Column { system, outcome, published } in columns {
        let mut push = |what: &str, value: f64, published: Option<f64>| {
            let is_fitted = published.is_some() && fitted.contains(&(system.name, what));
            rows.push(row(format!("{name}-{what}"), system.name, value, published, is_fitted));
        };
        push("throughput-kb-s", outcome.throughput, published.map(|p| p.throughput));
        push("elapsed-s", outcome.elapsed, published.map(|p| p.elapsed));
        push("sys-s", outcome.sys, published.map(|p| p.sys));
        // What was not counted in the letter is counted in another table of the same runs.
        let Some(theirs) = published.map_or(Some(None), |p| p.counters.map(Some)) else { continue };
        let counters = &outcome.counters;
        let at = usize::from(order.get());
        let (folios, fallback) = names(order);
        push("zswpout", counters.zswpout as f64, theirs.map(|c| c.zswpout));
        push("pswpout", counters.pswpout as f64, theirs.map(|c| c.pswpout));
        push(folios, counters.zswpout_folios[at] as f64, theirs.map(|c| c.folios));
        push(fallback, counters.swpout_fallback[at] as f64, theirs.map(|c| c.fallback));
        for Calls { queue, compress, decompress } in &outcome.calls {
            push(&format!("{queue}-compress-calls"), *compress as f64, None);
            push(&format!("{queue}-decompress-calls"), *decompress as f64, None);
        }
    }
    rows.extend(gains(name, columns));
    rows
}

/// The counters of folios of this order.
fn names(order: Order) -> (&'static str, &'static str) {
    match order {
        Order::MAX => ("ZSWPOUT-2048kB", "thp_swpout_fallback"),
        _ => ("ZSWPOUT-64kB", "64kB_swpout_fallback"),
    }
}

/// What batches gain in throughput, in percent, over IAA one by one and over zstd.
fn gains(name: &str, columns: &[Column<'_>]) -> Vec<Row> {
    let of = |system: System| columns.iter().find(|column| column.system == system);
    let gain = |batch: f64, base: f64| (batch / base - 1.0) * 100.0;
    let mut rows = Vec::new();
    for batch in [System::BATCH, System::OCTAVO].into_iter().filter_map(of) {
        for (what, base) in [("gain", System::IAA), ("gain-over-zstd", System::ZSTD)] {
            let Some(base) = of(base) else { continue };
            let value = gain(batch.outcome.throughput, base.outcome.throughput);
            let published = batch.published.zip(base.published);
            let published = published.map(|(b, base)| gain(b.throughput, base.throughput));
            let case = format!("{name}-{what}");
            rows.push(row(case, batch.system.name, value, published, false));
        }
    }
    rows
}

/// The columns of a letter's table, and one that it has not.
pub(super) fn columns<'o>(table: &Table, outcomes: &'o [(System, Outcome)]) -> Vec<Column<'o>> {
    let of = |system: System| {
        let at = [System::ZSTD, System::IAA, System::BATCH].iter().position(|s| *s == system);
        at.map(|at| table[at])
    };
    outcomes
        .iter()
        .map(|(system, outcome)| Column { system: *system, outcome, published: of(*system) })
        .collect()
}

/// The rows of the kernel build.
pub(super) fn build(outcomes: &[(System, build::Outcome)], fitted: Fitted) -> Vec<Row> {
    let mut rows = Vec::new();
    for ((system, outcome), theirs) in outcomes.iter().zip(&published::BUILD) {
        let mut push = |what: &str, value: f64, published: Option<f64>| {
            let is_fitted = fitted.contains(&(system.name, what));
            let case = format!("build-allmodconfig-v4-{what}");
            rows.push(row(case, system.name, value, published, is_fitted));
        };
        let counters = &outcome.counters;
        push("real-s", outcome.real, Some(theirs.real));
        push("sys-s", outcome.sys, Some(theirs.sys));
        push("zswpout", counters.zswpout as f64, Some(theirs.zswpout));
        push("zswpin", counters.zswpin as f64, Some(theirs.zswpin));
        push("pswpout", counters.pswpout as f64, Some(theirs.pswpout));
        for (n, kb) in [16, 32, 64].into_iter().enumerate() {
            let order = n + 2;
            let (stored, fell) = (counters.zswpout_folios[order], counters.swpout_fallback[order]);
            // The mix of folios that faults get is zstd's.
            if *system != System::ZSTD {
                push(&format!("ZSWPOUT-{kb}kB"), stored as f64, Some(theirs.folios[n]));
            }
            push(&format!("{kb}kB_swpout_fallback"), fell as f64, Some(theirs.fallback[n]));
        }
        for Calls { queue, compress, decompress } in &outcome.calls {
            push(&format!("{queue}-compress-calls"), *compress as f64, None);
            push(&format!("{queue}-decompress-calls"), *decompress as f64, None);
        }
    }
    let sys = |at: usize| (outcomes[at].1.sys, published::BUILD[at].sys);
    for (what, base) in [("sys-saved", 1), ("sys-saved-over-zstd", 0)] {
        let saved = |batch: f64, base: f64| (1.0 - batch / base) * 100.0;
        let (ours, theirs) = (saved(sys(2).0, sys(base).0), saved(sys(2).1, sys(base).1));
        let case = format!("build-allmodconfig-v4-{what}-percent");
        rows.push(row(case, System::BATCH.name, ours, Some(theirs), false));
    }
    rows
}

/// A row; where nothing was published to be counted, and nothing is, the error is none.
pub(super) fn row(
    case: String,
    system: &'static str,
    value: f64,
    published: Option<f64>,
    calibrated: bool,
) -> Row {
    let mut row = Row::new(case, system, value, published, calibrated);
    if published == Some(0.0) {
        row.error_percent = (value == 0.0).then_some(0.0);
    }
    row
}
