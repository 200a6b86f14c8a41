//! Every cost that `octavo sim batch` is given, where it comes from, and whose it is.
//!
//! Two machines, as the letters of the series describe them, of the same hardware (2 packages of 56
//! cores and 4 devices, 2.5 GHz):
//!
//! - *v4* (November 2024): processes run where the scheduler puts them, on both packages.
//! - *v8 to v14* (March 2025 to January 2026): `usemem -b 1` binds process n to processor n, so all
//!   30 are on package 0. One by one a processor uses the device that it is mapped to, so 14 processes
//!   share one device, 14 another, and 2 the third. v8 has counters, and its zstd is of the age of the
//!   published time for a page of zstd; v14's figures for IAA are within 6% of v8's.
//!
//! What one page costs a device is known from latencies that the letters give for one process alone.
//! What the rest of a swapped page costs a processor (the list of old pages, unmapping, the slot, the
//! entry, the tree, the charge, the pool) nobody published: it is fitted, once for each machine.
//! No cost is chosen by the cell that it predicts; the fitted ones name their cell.

use super::report::Fitted;
use crate::sim::Parameter;
use octavo_accel::model::Latency;
use octavo_page::Order;

/// Nanoseconds.
type Ns = f64;

/// Of a device and its driver, from three latencies of the series' patch "New architecture for IAA
/// device WQ comp/decomp usage & core mapping" (v9), a page of a 64 KiB folio in `zswap_store`, one
/// process, p50: one by one 3,503 = submit + way + compress; eight at once on one device 1,356 * 8 =
/// 2 submit + way + 4 compress; eight at once on four devices 706 * 8 = 8 submit + way + compress.
///
/// That a device compresses two pages at the same time, not eight, is what a report of Intel's
/// memory-usage-analyzer shows (madvise_tracepoints, February 2025): batches of 1, 2, 4 and 8 pages
/// take 3,571, 3,942, 6,272 and 11,024 ns, so the second page is nearly free and then each pair costs
/// 2,350. Its latency of one decompression, 2,999, gives the time to decompress.
pub(super) const CORPUS: Latency = Latency {
    submit: 306.0,
    way: 851.0,
    compress_kib: 2_346.0 / 4.0,
    decompress_kib: (2_999.0 - 306.0 - 851.0) / 4.0,
    compressors: 2,
};

/// The same for a page that usemem writes, numbers that count up: it takes a device longer than one
/// of the corpus, as 14 processes at one device show.
pub(super) const USEMEM: Latency = Latency { compress_kib: USEMEM_COMPRESS / 4.0, ..CORPUS };

/// v4's driver takes longer to submit: preparing and submitting eight pages takes it 5.5 us.
pub(super) const SUBMIT_V4: Ns = 5_500.0 / 8.0;

/// Fitted to the throughput of IAA one by one with 64 KiB folios in v8: then two devices are what
/// limits it, and nothing else.
const USEMEM_COMPRESS: Ns = 4_350.0;

/// zstd, 64 KiB page by page, over 16: 251,820 and 90,878 ns in the by_n patches (May 2024, 2.5 GHz).
pub(super) const ZSTD_COMPRESS: Ns = 251_820.0 / 16.0;
pub(super) const ZSTD_DECOMPRESS: Ns = 90_878.0 / 16.0;

/// What a page costs beside its compression.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// usemem, to write it.
    pub write: Ns,
    /// The kernel, to give it, zeroed, in a folio.
    pub fault: Ns,
    /// To take it out and put it into the store.
    pub store: Ns,
    /// The same for each folio.
    pub store_folio: Ns,
    /// To free it when it is in the store.
    pub free: Ns,
    /// To free it when it is resident.
    pub zap: Ns,
    /// To bring it back.
    pub load: Ns,
}

/// Where only compression is looked at.
pub(super) const NOTHING: Page =
    Page { write: 0.0, fault: 0.0, store: 0.0, store_folio: 0.0, free: 0.0, zap: 0.0, load: 0.0 };

/// Of v4's machine.
pub(super) const V4: Page = Page { store: 18_050.0, store_folio: 8_400.0, free: 11_200.0, ..TOUCH };

/// Of v8's and v14's: what zstd's column of v8, 64 KiB, leaves of a stored page, by its rate and
/// `zswpout` (30.5 us), when its compression is taken away. What a folio and a free cost is v4's.
pub(super) const BOUND: Page = Page { store: 14_160.0, ..V4 };

/// usemem's loop over new memory of 2 MiB pages, on the machine where Octavo is built (November
/// 2026, medians of user and system time); freeing and a fault on a page that is stored are estimates,
/// and count for little.
const TOUCH: Page = Page { write: 200.0, fault: 350.0, zap: 100.0, load: 2_000.0, ..NOTHING };

/// The kernel build.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build {
    /// Seconds of the user's work.
    pub user_s: f64,
    /// Pages of a unit at its largest, on average.
    pub unit_pages: f64,
    /// Folios that faults get, and their share of pages; the rest are single pages.
    pub mix: [(Order, f64); 3],
    /// User's work for each page allocated.
    pub user_page_ns: f64,
    /// Touches of older pages for each page allocated.
    pub touches: f64,
    /// What the kernel does beside faults and swapping, over the user's work.
    pub system_share: f64,
}

/// Of v4's table.
pub(super) const BUILD: Build = Build {
    // zstd's column.
    user_s: 15_763.86,
    // What the defconfig build uses without a limit is 3.4 GiB (v14), by 32 jobs; a unit grows evenly,
    // so it comes to twice the mean.
    unit_pages: 2.0 * 3.4 * 262_144.0 / 32.0,
    // zstd's column: ZSWPOUT-64kB, -32kB and -16kB, in pages, of all that went out less those that had
    // come back before: 46.2, 5.4 and 5.0 of 63.5 million.
    mix: [(order(4), 0.728), (order(3), 0.085), (order(2), 0.079)],
    user_page_ns: 206_000.0,
    touches: 0.807,
    system_share: 0.07,
};

const fn order(n: u8) -> Order {
    match Order::new(n) {
        Some(order) => order,
        None => panic!("no such order"),
    }
}

/// All of them, for the report.
pub(super) fn parameters() -> Vec<Parameter> {
    let Latency { submit, way, compress_kib, decompress_kib, compressors } = CORPUS;
    let given = |name: &str, value, source| parameter(name, value, false, source);
    let fitted = |name: &str, value, source| parameter(name, value, true, source);
    let latencies = "both: latencies of one process in the series' v9";
    let report = "both: a report of Intel's memory-usage-analyzer, February 2025";
    let by_n = "both: zstd in the by_n patches, 64 KiB over 16";
    let loop_here = "both: usemem's loop on the machine where Octavo is built";
    let mut all = vec![
        given("submit_ns", submit, "v8, v14: latencies of one process in the series' v9"),
        given("submit_ns_v4", SUBMIT_V4, "v4: preparing and submitting eight pages, 5.5 us"),
        given("way_ns", way, latencies),
        given("device_compress_page_ns", 4.0 * compress_kib, latencies),
        given("device_compresses_at_once", compressors as f64, report),
        given("device_decompress_page_ns", 4.0 * decompress_kib, report),
        fitted(
            "device_compress_usemem_page_ns",
            USEMEM_COMPRESS,
            "both: usemem-64K-v8, iaa, throughput",
        ),
        given("zstd_compress_page_ns", ZSTD_COMPRESS, by_n),
        given("zstd_decompress_page_ns", ZSTD_DECOMPRESS, by_n),
        given("write_page_ns", TOUCH.write, loop_here),
        given("fault_page_ns", TOUCH.fault, loop_here),
        given("free_resident_page_ns", TOUCH.zap, "both: an estimate"),
        given("load_page_ns", TOUCH.load, "both: an estimate"),
    ];
    for (name, value, cell) in [
        ("store_page_ns_v4", V4.store, "v4: usemem-64K-v4, iaa, throughput"),
        (
            "store_page_ns_bound",
            BOUND.store,
            "v8, v14: usemem-64K-v8, zstd, throughput over zswpout",
        ),
        ("store_folio_ns", V4.store_folio, "both: usemem-2M-v4, iaa, throughput"),
        ("free_stored_page_ns", V4.free, "both: usemem-64K-v4, iaa, elapsed"),
    ] {
        all.push(fitted(name, value, cell));
    }
    let Build { user_s, unit_pages, mix, user_page_ns, touches, system_share } = BUILD;
    all.push(given("build_user_s", user_s, "v4: build-allmodconfig, zstd, user_sec"));
    all.push(given(
        "build_unit_pages",
        unit_pages,
        "v14: 3.4 GiB in use by 32 jobs; a unit grows to twice the mean",
    ));
    for (order, share) in mix {
        let name = format!("build_folios_{}K", 4 * order.pages());
        all.push(given(&name, share, "v4: zstd's ZSWPOUT by size; of pages"));
    }
    all.push(fitted("build_user_page_ns", user_page_ns, "v4: build-allmodconfig, zstd, zswpout"));
    all.push(fitted("build_touches_a_page", touches, "v4: build-allmodconfig, zstd, zswpin"));
    all.push(fitted("build_system_share", system_share, "v4: build-allmodconfig, zstd, sys"));
    all
}

fn parameter(name: &str, value: f64, fitted: bool, source: &'static str) -> Parameter {
    Parameter { name: name.to_owned(), value, fitted, source }
}

/// The cells that costs are fitted to, by system and what, in usemem's tables and the build's.
pub(super) const FITTED_V4_64K: Fitted = &[("iaa", "throughput-kb-s"), ("iaa", "elapsed-s")];
pub(super) const FITTED_V4_2M: Fitted = &[("iaa", "throughput-kb-s")];
pub(super) const FITTED_V8_64K: Fitted =
    &[("zstd", "throughput-kb-s"), ("zstd", "zswpout"), ("iaa", "throughput-kb-s")];
pub(super) const FITTED_V8_2M: Fitted = &[];
pub(super) const FITTED_BUILD: Fitted =
    &[("zstd", "zswpout"), ("zstd", "zswpin"), ("zstd", "sys-s")];
