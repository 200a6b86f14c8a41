//! `octavo sim by-n`: a folio of 64 KiB in N parts on IAA, by the real driver and the model.
//!
//! The published table is of the by_n patches for the kernel (May 2024; Sapphire Rapids at 2.5 GHz,
//! medians): compression in canned mode is fastest in 8 parts, where submitting more of them begins to
//! cost more than engines working side by side save.
//!
//! Only time is simulated. The driver cuts the folio, submits its parts, polls and joins them; the
//! model executes each, for as long as [`Latency::BY_N`] says. A submission's cost on the processor, the
//! way to an engine and back, and an engine's time to compress a KiB are fitted to the compressions in
//! 1, 8 and 64 parts. An engine's time to decompress is not fitted to any decompression: it comes from
//! reading the whole folio through zram, less what zram added to writing it. Copies between the caller
//! and the lanes are not counted: the kernel's driver makes none.

use super::{Parameter, Report, Row};
use octavo_accel::iaa::discover::{Device, Found, Queue};
use octavo_accel::iaa::fleet::Fleet;
use octavo_accel::iaa::{Config, Driver, Machine, Region};
use octavo_accel::model::{Clock, Latency, Model};
use octavo_accel::{Engine, Io};
use octavo_codec::deflate::Level;
use octavo_codec::{Codec, DeflateMode, Parts};
use octavo_page::Unit;
use std::sync::Arc;

/// Parts; nanoseconds of a compression, of a decompression.
const PUBLISHED: [(usize, f64, f64); 7] = [
    (1, 34_493.0, 20_038.0),
    (2, 18_830.0, 11_888.0),
    (4, 11_364.0, 8_146.0),
    (8, 8_344.0, 6_342.0),
    (16, 8_837.0, 6_549.0),
    (32, 11_153.0, 9_641.0),
    (64, 18_272.0, 16_696.0),
];

/// The compressions that three costs are fitted to.
const FITTED: [usize; 3] = [1, 8, 64];

const COMPRESSIONS: &str = "compressions of IAA by_1, by_8 and by_64 in the by_n patches";
const ZRAM: &str = "zram, IAA by_1 in the by_n patches: read 24,478 ns, less write 40,130 over compress \
                    34,493, submission and way";

/// Four devices of two queues, as a socket of the machine has.
fn found() -> Found {
    let queue = |number| Queue { number, size: 64, is_dedicated: true };
    let device = |number| Device { number, package: Some(0), queues: [0, 1].map(queue).to_vec() };
    Found { devices: [1, 3, 5, 7].map(device).to_vec(), cpus: vec![Some(0)], notes: vec![] }
}

/// A folio of words, every part of which gets shorter.
fn folio() -> Vec<u8> {
    let words = (0u64..).map(|i| (i % 37) * 0x0101 + (i / 64) * 4096);
    words.flat_map(u64::to_le_bytes).take(Unit::K64.bytes()).collect()
}

/// Runs it.
///
/// # Panics
/// When there is no memory for the lanes of 64 requests, or a page comes back changed.
#[must_use]
pub fn report() -> Report {
    let fleet = Arc::new(Fleet::new(&found()));
    let model = Arc::new(Model::new(&fleet, Clock::Virtual, Latency::BY_N));
    let bytes = Driver::<Arc<Model>>::memory_for(Parts::MAX, Unit::K64);
    let memory = Region::new(bytes, c"octavo sim").expect("memory for lanes");
    model.share(&memory);
    let codec =
        |parts| Codec::Deflate { mode: DeflateMode::CannedGeneral, level: Level::L1, parts };
    let config = Config { unit: Unit::K64, ..Config::DEFAULT };
    let mut engine = Driver::new(model.clone(), fleet, &memory, &[codec(Parts::WHOLE)], config)
        .expect("there are queues");

    let folio = folio();
    let (mut back, mut out) = (vec![0; folio.len()], vec![0; folio.len()]);
    let mut rows = Vec::new();
    for (n, compress_ns, decompress_ns) in PUBLISHED {
        let row = |what: &str, ns, published| {
            let is_fitted = what == "compress" && FITTED.contains(&n);
            let case = format!("by_{n}-{what}");
            Row::new(case, "iaa", ns as f64, Some(published), is_fitted)
        };
        let codec = codec(Parts::by(n).expect("a power of two"));
        let begin = model.now();
        let size = engine.run(&mut Io::compress(codec, &folio, &mut out)).result;
        rows.push(row("compress", model.now() - begin, compress_ns));
        let size = size.expect("the folio compresses");
        let begin = model.now();
        let read = engine.run(&mut Io::decompress(codec, &out[..size], &mut back)).result;
        rows.push(row("decompress", model.now() - begin, decompress_ns));
        assert!(read == Ok(folio.len()) && back == folio, "by_{n}: another folio came back");
    }
    let stats = engine.stats();
    let requests: u64 = PUBLISHED.iter().map(|(n, ..)| 2 * *n as u64).sum();
    assert_eq!(stats.by_device, requests, "software stood in: {stats:?}");
    Report::new(parameters(), rows)
}

fn parameters() -> Vec<Parameter> {
    let Latency { submit, way, compress_kib, decompress_kib, .. } = Latency::BY_N;
    let parameter = |name: &str, value, fitted, source| Parameter {
        name: name.to_owned(),
        value,
        fitted,
        source,
    };
    vec![
        parameter("submission ns", submit, true, COMPRESSIONS),
        parameter("way ns", way, true, COMPRESSIONS),
        parameter("compression ns a KiB", compress_kib, true, COMPRESSIONS),
        parameter("decompression ns a KiB", decompress_kib, false, ZRAM),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_published_is_predicted() {
        for row in report().rows {
            let limit = if row.case.ends_with("-compress") { 8.0 } else { 15.0 };
            let error = row.error_percent.expect("all cells are published");
            assert!(error.abs() <= limit, "{}: {error}%", row.case);
        }
    }
}
