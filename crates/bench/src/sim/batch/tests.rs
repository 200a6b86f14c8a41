//! What holds in every run, on small ones.

use super::memory::Counters;
use super::*;

/// 30 processes of 320 pages.
const SMALL: u64 = 8192;

fn small(letters: Letters, system: System) -> usemem::Case {
    let case = letters.usemem(system, K64, SMALL);
    usemem::Case { check_every: 1, ..case }
}

fn stored_whole(counters: &Counters) -> u64 {
    let folios = counters.zswpout_folios.iter().enumerate();
    folios.map(|(order, folios)| folios << order).sum()
}

#[test]
fn every_page_stored_is_there_with_its_contents_until_it_is_freed() {
    for system in [System::ZSTD, System::IAA, System::BATCH, System::OCTAVO] {
        let outcome = usemem::run(&small(Letters::V8, system));
        // Nothing comes back, so all that went out is compared when its process ends.
        assert_eq!(outcome.checked * SMALL, outcome.counters.zswpout, "{}", system.name);
        assert!(outcome.checked > 0);
        assert_eq!(outcome.left, 0, "{}: pages of processes that have ended", system.name);
    }
}

#[test]
fn counters_add_up() {
    for (letters, system) in [(Letters::V4, System::BATCH), (Letters::V8, System::IAA)] {
        let usemem::Outcome { counters, calls, by_software, .. } =
            usemem::run(&small(letters, system));
        assert_eq!(stored_whole(&counters), counters.zswpout);
        // Each page is one command, and no other pages were compressed.
        assert_eq!(calls.iter().map(|calls| calls.compress).sum::<u64>(), counters.zswpout);
        assert_eq!(calls.iter().map(|calls| calls.decompress).sum::<u64>(), 0);
        assert_eq!((counters.pswpout, counters.zswpin, by_software), (0, 0, 0));
    }
}

#[test]
fn a_run_depends_on_nothing_but_its_case() {
    let case = small(Letters::V4, System::BATCH);
    assert_eq!(usemem::run(&case), usemem::run(&case));
    let mut other = case.clone();
    other.rig.cpus = Cpus::Anywhere(SEED + 1);
    assert_ne!(usemem::run(&other), usemem::run(&case));
}

#[test]
fn twice_the_memory_takes_twice_the_time() {
    let run = |scale| {
        let mut case = small(Letters::V8, System::BATCH);
        (case.scale, case.check_every) = (scale, 64);
        usemem::run(&case)
    };
    // Outcomes are of the series' size, so that they are the same.
    let (whole, half) = (run(SMALL / 2), run(SMALL));
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.1;
    assert!(near(whole.throughput, half.throughput), "{whole:?} {half:?}");
    assert!(near(whole.elapsed, half.elapsed), "{whole:?} {half:?}");
    assert!(near(whole.sys, half.sys), "{whole:?} {half:?}");
    let pages = |outcome: &usemem::Outcome| outcome.counters.zswpout as f64;
    assert!(near(pages(&whole), pages(&half)), "{whole:?} {half:?}");
}

/// With queues of two entries 30 processes find them full all the time: compressions wait their turn
/// or are done by software, and no page is lost.
#[test]
fn a_full_queue_loses_nothing() {
    for system in [System::BATCH, System::OCTAVO] {
        let mut case = small(Letters::V8, system);
        case.rig.queues = &[2];
        let outcome = usemem::run(&case);
        assert_eq!(outcome.checked * SMALL, outcome.counters.zswpout);
        let by_devices: u64 = outcome.calls.iter().map(|calls| calls.compress).sum();
        assert_eq!(by_devices + outcome.by_software * SMALL, outcome.counters.zswpout);
        assert!(outcome.by_software > 0, "queues were never full");
        assert_eq!(outcome.left, 0);
    }
}

/// `wq.1` of all devices of a package take as many compressions each; `wq.0` none.
#[test]
fn batches_are_spread_over_the_devices_of_a_package() {
    let calls = usemem::run(&small(Letters::V4, System::BATCH)).calls;
    assert!(calls.iter().all(|calls| calls.queue.ends_with(".1")), "{calls:?}");
    for package in calls.chunks(4) {
        let most = package.iter().map(|calls| calls.compress).max().expect("a device");
        let least = package.iter().map(|calls| calls.compress).min().expect("a device");
        assert!(most as f64 <= 1.05 * least as f64, "{calls:?}");
    }
}

#[test]
fn a_build_loads_what_it_stored() {
    let mut case = build_case(System::BATCH);
    (case.scale, case.check_every) = (64, 1);
    (case.warm, case.span) = (100_000_000, 100_000_000);
    let outcome = build::run(&case);
    let build::Outcome { counters, by_software, checked, left, .. } = outcome;
    assert!(counters.zswpin > 0 && checked > 0);
    // Counters are those of the whole build, each rounded.
    assert!(stored_whole(&counters).abs_diff(counters.zswpout) < 64, "{counters:?}");
    assert_eq!((by_software, left), (0, 0));
}

#[test]
fn latencies_of_one_process_are_those_of_the_letters() {
    for row in store_rows() {
        let error = row.error_percent.expect("all are published");
        assert!(error.abs() <= 5.0, "{}: {error}%", row.case);
    }
}

#[test]
fn no_table_has_more_than_three_fitted_cells() {
    // A letter's table of usemem has both sizes of folio.
    let tables = [
        [costs::FITTED_V4_64K, costs::FITTED_V4_2M].concat(),
        [costs::FITTED_V8_64K, costs::FITTED_V8_2M].concat(),
        costs::FITTED_BUILD.to_vec(),
    ];
    assert!(tables.iter().all(|table| table.len() <= 3));
}
