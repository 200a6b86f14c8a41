//! What the store costs beside the codec: `cargo run --release -p octavo-store --example
//! bookkeeping -- testdata/*.pages`.
//!
//! Every page of the files is put, read in order, compared and freed, in folios of 64 KiB; the codec
//! alone does the same work on the same units first. Times are the best of several passes, in
//! nanoseconds a page.

use octavo_codec::{Codec, Workspace};
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_pool::{ChainLength, Plain};
use octavo_store::{Config, How, PutError, Scratch, Store};
use std::time::{Duration, Instant};

const PASSES: usize = 5;
const FOLIO: usize = 16 * PAGE_SIZE;

/// The shortest time of each step, over all passes.
#[derive(Default)]
struct Best(Vec<(&'static str, Duration)>);

impl Best {
    fn time(&mut self, step: &'static str, work: impl FnOnce()) {
        let start = Instant::now();
        work();
        let took = start.elapsed();
        match self.0.iter_mut().find(|(name, _)| *name == step) {
            Some((_, best)) => *best = took.min(*best),
            None => self.0.push((step, took)),
        }
    }

    fn print(&self, what: &str, pages: usize) {
        print!("{what:16}");
        for (step, best) in &self.0 {
            print!("  {step} {:.0}", best.as_nanos() as f64 / pages as f64);
        }
        println!();
    }
}

/// The codec alone: what the store cannot save.
fn codec_alone(best: &mut Best, codec: Codec, unit: Unit, data: &[u8]) {
    let mut workspace = Workspace::new(&[codec]);
    let mut bytes = vec![0; data.len()];
    let mut lens = Vec::with_capacity(data.len() / unit.bytes());
    let chunks = || data.chunks(unit.bytes());
    best.time("compress", || {
        let mut at = 0;
        for unit in chunks() {
            let room = (unit.len() * 7 / 8).min(bytes.len() - at);
            let len = workspace.compress(codec, unit, &mut bytes[at..at + room]).ok();
            at += len.unwrap_or(0);
            lens.push(len);
        }
    });
    let mut out = vec![0; unit.bytes()];
    best.time("decompress", || {
        let mut at = 0;
        for len in lens.iter().flatten() {
            workspace.decompress(codec, &bytes[at..at + len], &mut out).expect("its own bytes");
            at += len;
        }
    });
}

fn store_all(best: &mut Best, codec: Codec, unit: Unit, data: &[u8], batch: usize) {
    let pages = data.len() / PAGE_SIZE;
    let pool = octavo_pool::Config {
        chain: ChainLength::MAX,
        max_object: Unit::MAX.bytes(),
        max_objects: 2 * pages,
    };
    let config = Config { capacity_pages: 2 * pages, pool, cpus: 1, seed: 1 };
    let store = Store::new(Plain::new(4 * pages).expect("memory"), config).expect("a valid size");
    let mut scratch = Scratch::new(&[codec]);
    let how = How { codec, unit, cpu: 0, fits_in: unit.bytes() * 7 / 8, refusal_bytes: 0 };
    let folios: Vec<&[u8]> = data.chunks(FOLIO).collect();
    let mut slots: Vec<Result<SlotId, PutError>> = vec![Err(PutError::OutOfSlots); folios.len()];
    best.time("put", || {
        for (folios, slots) in folios.chunks(batch).zip(slots.chunks_mut(batch)) {
            store.put(&mut scratch, how, folios, slots);
        }
    });
    let held = || folios.iter().zip(&slots).filter_map(|(data, slot)| Some((data, (*slot).ok()?)));
    let mut out = vec![0; FOLIO];
    best.time("get", || {
        held().for_each(|(_, slot)| store.get(&mut scratch, slot, &mut out).expect("a page"));
    });
    best.time("get-one", || {
        for (_, slot) in held() {
            for n in 0..16 {
                let out = &mut out[..PAGE_SIZE];
                store.get(&mut scratch, slot.offset(n), out).expect("a page");
            }
        }
    });
    best.time("matches", || {
        for (data, slot) in held() {
            let mut pages = (0..).zip(data.chunks(PAGE_SIZE));
            assert!(pages.all(|(n, page)| store.matches(slot.offset(n), page)));
        }
    });
    best.time("free", || held().for_each(|(_, slot)| store.free_run(slot, 16, u64::MAX)));
}

fn main() {
    let mut data = Vec::new();
    for file in std::env::args().skip(1) {
        data.extend(std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}")));
    }
    data.truncate(data.len() / FOLIO * FOLIO);
    assert!(!data.is_empty(), "give files of pages");
    let pages = data.len() / PAGE_SIZE;
    let zeros = vec![0; data.len()];
    println!("{pages} pages, ns a page, best of {PASSES}");
    for codec in ["lz4", "zstd:-1"].map(|name| name.parse().expect("a codec")) {
        for unit in Unit::ALL {
            let mut best = Best::default();
            for _ in 0..PASSES {
                codec_alone(&mut best, codec, unit, &data);
                store_all(&mut best, codec, unit, &data, 8);
            }
            best.print(&format!("{codec} {unit}"), pages);
        }
    }
    for batch in [1, 8] {
        let mut best = Best::default();
        (0..PASSES).for_each(|_| {
            store_all(&mut best, "lz4".parse().expect("a codec"), Unit::K4, &zeros, batch)
        });
        best.print(&format!("zeros, batch {batch}"), pages);
    }
}
