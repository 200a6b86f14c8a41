//! One process that has folios of 64 KiB stored, and nobody else: what a page takes.
//!
//! Three latencies that the series' v9 gives are what the costs of a device are made of; what a report
//! of Intel's memory-usage-analyzer gives for fewer pages at once is predicted.

use super::costs;
use super::machine::{Software, System};
use super::memory::{Group, Limit};
use super::rig::{Cpus, Rig};
use super::usemem::Counting;
use super::zswap::Zswap;
use octavo_page::Order;
use std::rc::Rc;

const FOLIO: Order = match Order::new(4) {
    Some(order) => order,
    None => panic!("an order"),
};
const FOLIOS: usize = 64;

/// Nanoseconds a page.
pub(super) fn page_ns(system: System) -> f64 {
    let rig = Rig {
        system,
        queues: &[128],
        latency: costs::CORPUS,
        software: Software { compress: costs::ZSTD_COMPRESS, decompress: costs::ZSTD_DECOMPRESS },
        cpus: Cpus::Bound,
    };
    let zswap = Zswap::new(FOLIOS * FOLIO.pages(), 1, system.codec());
    let group = Rc::new(Group::new(zswap, costs::NOTHING, Counting, Limit::Max(0), 1, 1));
    let (times, _) = rig.live(&group, |process| {
        process.begin(FOLIOS * FOLIO.pages());
        // The group's limit is nothing, so each folio goes out at once.
        (0..FOLIOS).for_each(|n| process.fault(n * FOLIO.pages(), FOLIO));
        let time = process.seat.time();
        process.end();
        time
    });
    times[0] as f64 / (FOLIOS * FOLIO.pages()) as f64
}
