//! What the letters of the series say.
//!
//! - v4: "zswap IAA compress batching", 22 November 2024.
//! - v8: the same, 3 March 2025: the last whose tables have counters and whose zstd is of the age of the
//!   published time for a page of zstd.
//! - v14: "zswap compression batching with optimized iaa_crypto driver", 24 January 2026, patch 26: no
//!   counters.

/// One column of usemem's table; counters where they were given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usemem {
    /// KB a second, in total.
    pub throughput: f64,
    pub elapsed: f64,
    pub sys: f64,
    pub counters: Option<Counters>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Counters {
    pub zswpout: f64,
    pub pswpout: f64,
    /// `ZSWPOUT-64kB` or `ZSWPOUT-2048kB`.
    pub folios: f64,
    /// `64kB_swpout_fallback` or `thp_swpout_fallback`.
    pub fallback: f64,
}

/// Before (zstd, IAA one by one) and with the series (IAA batched): one table.
pub(super) type Table = [Usemem; 3];

const fn column(throughput: f64, elapsed: f64, sys: f64) -> Usemem {
    Usemem { throughput, elapsed, sys, counters: None }
}

const fn counted(column: Usemem, zswpout: f64, folios: f64, fallback: f64) -> Usemem {
    let counters = Some(Counters { zswpout, pswpout: 0.0, folios, fallback });
    Usemem { counters, ..column }
}

pub(super) const V4_64K: Table = [
    counted(column(6_284_634.0, 107.64, 2_566.69), 48_931_670.0, 3_057_203.0, 1_040.0),
    counted(column(7_149_906.0, 84.38, 1_844.32), 55_520_017.0, 3_467_400.0, 2_734.0),
    counted(column(8_392_830.0, 79.88, 1_592.02), 57_467_487.0, 3_589_487.0, 2_330.0),
];

pub(super) const V4_2M: Table = [
    counted(column(6_466_700.0, 106.80, 2_420.88), 48_892_828.0, 95_442.0, 44.0),
    counted(column(7_245_936.0, 84.44, 1_753.41), 57_701_156.0, 112_515.0, 139.0),
    counted(column(9_107_731.0, 74.37, 1_450.21), 59_051_023.0, 114_996.0, 182.0),
];

pub(super) const V8_64K: Table = [
    counted(column(6_920_374.0, 94.62, 2_387.50), 48_917_234.0, 3_055_153.0, 2_190.0),
    counted(column(6_025_001.0, 100.25, 2_414.12), 58_338_296.0, 3_645_190.0, 941.0),
    counted(column(10_220_686.0, 68.48, 1_630.42), 64_507_786.0, 4_031_585.0, 125.0),
];

pub(super) const V8_2M: Table = [
    counted(column(7_655_965.0, 86.52, 2_030.63), 48_091_648.0, 93_921.0, 8.0),
    counted(column(6_374_303.0, 87.04, 2_012.30), 59_471_372.0, 116_131.0, 24.0),
    counted(column(10_720_261.0, 65.80, 1_522.93), 64_509_017.0, 125_781.0, 222.0),
];

pub(super) const V14_64K: Table = [
    column(6_032_326.0, 97.52, 2_415.40),
    column(6_226_967.0, 99.19, 2_356.19),
    column(10_551_714.0, 67.45, 1_580.47),
];

pub(super) const V14_2M: Table = [
    column(6_570_404.0, 89.17, 2_126.69),
    column(6_347_201.0, 88.14, 2_025.53),
    column(11_315_500.0, 63.37, 1_455.23),
];

/// One column of the table of the kernel build, v4, folios of 16, 32 and 64 KiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Build {
    pub real: f64,
    pub sys: f64,
    pub zswpout: f64,
    pub zswpin: f64,
    pub pswpout: f64,
    /// `ZSWPOUT-16kB`, `-32kB` and `-64kB`.
    pub folios: [f64; 3],
    /// `16kB_swpout_fallback` and so on.
    pub fallback: [f64; 3],
}

pub(super) const BUILD: [Build; 3] = [
    Build {
        real: 783.15,
        sys: 5_198.29,
        zswpout: 88_824_270.0,
        zswpin: 25_371_781.0,
        pswpout: 121.0,
        folios: [1_246_641.0, 675_242.0, 2_886_860.0],
        fallback: [0.0, 0.0, 924.0],
    },
    Build {
        real: 792.78,
        sys: 4_215.74,
        zswpout: 109_828_718.0,
        zswpin: 32_647_096.0,
        pswpout: 360.0,
        folios: [1_499_293.0, 865_310.0, 3_596_899.0],
        fallback: [0.0, 0.0, 19_203.0],
    },
    Build {
        real: 789.65,
        sys: 3_930.92,
        zswpout: 109_402_157.0,
        zswpin: 32_174_520.0,
        pswpout: 297.0,
        folios: [1_469_160.0, 827_968.0, 3_638_188.0],
        fallback: [0.0, 0.0, 5_206.0],
    },
];

/// Pages at once, and nanoseconds a page, of a report in Intel's memory-usage-analyzer
/// (madvise_tracepoints, 10 February 2025, cores at 2.0 GHz, one device): compressions.
pub(super) const AT_ONCE: [(usize, f64); 4] =
    [(1, 3_571.0), (2, 1_971.0), (4, 1_568.0), (8, 1_378.0)];

/// Nanoseconds a page of a 64 KiB folio in `zswap_store`, p50, of the series' v9: one by one, eight
/// at once on one device, eight at once on all of the package.
pub(super) const STORE: [f64; 3] = [3_503.0, 1_356.0, 706.0];
