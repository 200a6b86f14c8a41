//! Counters, and how they are told: a table for people, one JSON object for programs.

use crate::pager::Pager;
use core::fmt;
use core::time::Duration;
use octavo_page::PAGE_SIZE;
use octavo_page::sync::atomic::{AtomicU64, Ordering};
use octavo_sys::task;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds one; gives the number before.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// The number so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Times in buckets: eight to each doubling, from 1 ns to over a minute; each is known to 12%.
#[derive(Debug)]
pub struct Times([AtomicU64; Self::BUCKETS]);

impl Times {
    const BUCKETS: usize = 8 * 38;

    /// No times yet.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; Self::BUCKETS])
    }

    /// Notes one time.
    pub fn note(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(8);
        let doubling = ns.ilog2();
        let eighth = (ns >> (doubling - 3)) & 7;
        let bucket = ((doubling - 3) * 8) as usize + eighth as usize;
        self.0[bucket.min(Self::BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// The time that `share` (0 to 1) of all times stay below; zero when there are none.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let total: u64 = self.0.iter().map(|b| b.load(Ordering::Relaxed)).sum();
        let mut left = (total as f64 * share) as u64;
        for (bucket, count) in self.0.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if left < count {
                let (doubling, eighth) = (bucket as u32 / 8, bucket as u64 % 8);
                return Duration::from_nanos((8 + eighth) << doubling);
            }
            left -= count;
        }
        Duration::ZERO
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

/// What the pager counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Faults answered.
    pub faults: Counter,
    /// Faults on pages that were never there or were discarded.
    pub fresh_faults: Counter,
    /// Pages stored by compressing them.
    pub evictions: Counter,
    /// Pages evicted at no cost, because the stored copy was still good.
    pub clean_evictions: Counter,
    /// Pages that were taken, did not compress and went back.
    pub put_back: Counter,
    /// Pages brought back because a neighbour was asked for.
    pub neighbours: Counter,
    /// Faults that had to make room first.
    pub waited: Counter,
    /// Pages stored anew, more densely.
    pub condensed: Counter,
    /// Events read.
    pub events: Counter,
    /// Mappings registered but never evicted from, because the list of regions was full.
    pub unlisted: Counter,
    /// Pages lost to damage.
    pub lost: Counter,
    /// From reading a fault to its answer, of one fault in eight.
    pub fault_time: Times,
}

/// One row of the report.
struct Row {
    key: &'static str,
    value: Value,
}

enum Value {
    Count(u64),
    Bytes(u64),
    Micros(Duration),
    Seconds(Duration),
}

impl Pager {
    fn rows(&self) -> [Row; 22] {
        let (counters, store) = (&self.counters, self.store.stats());
        let bytes = |pages: u64| Value::Bytes(pages * PAGE_SIZE as u64);
        let row = |key, value| Row { key, value };
        [
            row("limit_bytes", bytes(self.budget.limit())),
            row("peak_bytes", bytes(self.budget.peak())),
            row("resident_bytes", bytes(self.budget.used())),
            row("exceeded_bytes", bytes(self.budget.exceeded())),
            row("compressed_bytes", Value::Bytes(store.compressed_bytes as u64)),
            row("pool_bytes", Value::Bytes(store.pool_bytes as u64)),
            row("stored_pages", Value::Count(store.stored_pages as u64)),
            row("same_filled_pages", Value::Count(store.same_filled_pages as u64)),
            row("incompressible_pages", Value::Count(counters.put_back.get())),
            row("faults", Value::Count(counters.faults.get())),
            row("fresh_faults", Value::Count(counters.fresh_faults.get())),
            row("evictions", Value::Count(counters.evictions.get())),
            row("clean_evictions", Value::Count(counters.clean_evictions.get())),
            row("neighbour_pages", Value::Count(counters.neighbours.get())),
            row("waited_faults", Value::Count(counters.waited.get())),
            row("condensed_pages", Value::Count(counters.condensed.get())),
            row("events", Value::Count(counters.events.get())),
            row("lost_pages", Value::Count(counters.lost.get())),
            row("fault_p50_us", Value::Micros(counters.fault_time.quantile(0.5))),
            row("fault_p99_us", Value::Micros(counters.fault_time.quantile(0.99))),
            row("pager_cpu_s", Value::Seconds(task::cpu_time())),
            row("processes", Value::Count(1)),
        ]
    }

    /// Writes the report as one JSON object.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, out: &mut impl fmt::Write) -> fmt::Result {
        out.write_str("{")?;
        for (n, Row { key, value }) in self.rows().iter().enumerate() {
            write!(out, "{}\"{key}\": ", if n == 0 { "" } else { ", " })?;
            match value {
                Value::Count(n) | Value::Bytes(n) => write!(out, "{n}")?,
                Value::Micros(t) => write!(out, "{:.1}", t.as_nanos() as f64 / 1e3)?,
                Value::Seconds(t) => write!(out, "{:.3}", t.as_secs_f64())?,
            }
        }
        out.write_str("}\n")
    }

    /// Writes the report as a table.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_table(&self, out: &mut impl fmt::Write) -> fmt::Result {
        for Row { key, value } in self.rows() {
            let name = key.trim_end_matches("_bytes").trim_end_matches("_us");
            let name = name.trim_end_matches("_s");
            match value {
                Value::Count(n) => writeln!(out, "octavo: {name:<21}{n:>12}")?,
                Value::Bytes(n) => {
                    writeln!(out, "octavo: {name:<21}{:>12.1} MiB", n as f64 / f64::from(1 << 20))?;
                }
                Value::Micros(t) => {
                    writeln!(out, "octavo: {name:<21}{:>12.1} us", t.as_nanos() as f64 / 1e3)?;
                }
                Value::Seconds(t) => {
                    writeln!(out, "octavo: {name:<21}{:>12.2} s", t.as_secs_f64())?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_known_to_an_eighth() {
        let times = Times::new();
        assert_eq!(times.quantile(0.5), Duration::ZERO);
        for us in 1..=1000 {
            times.note(Duration::from_micros(us));
        }
        for (share, us) in [(0.5, 500.0), (0.99, 990.0)] {
            let found = times.quantile(share).as_nanos() as f64 / 1e3;
            assert!((found / us - 1.0).abs() < 0.13, "{share}: {found} us");
        }
        times.note(Duration::from_secs(100_000));
        assert!(times.quantile(1.0 - 1e-9) > Duration::from_secs(60));
    }
}
