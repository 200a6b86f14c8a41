//! The store on the driver and the model of devices, while these go wrong: pages come back as they were put.

mod common;

use common::{TestArena, folio, store};
use octavo_accel::iaa::discover::{Device, Found, Queue};
use octavo_accel::iaa::fleet::Fleet;
use octavo_accel::iaa::wire::{Descriptor, opcode, status};
use octavo_accel::iaa::{Config, Driver, Region};
use octavo_accel::model::{Clock, Fate, Latency, Mishap, Model};
use octavo_codec::Codec;
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{How, PutError, Scratch, Store};
use std::sync::Arc;

type Iaa = Driver<Arc<Model>>;

const CODECS: [&str; 2] = ["deflate-fixed", "deflate-dynamic"];

/// Lanes of the engine: a group's.
const LANES: usize = 16;

fn codecs() -> [Codec; 2] {
    CODECS.map(|name| name.parse().expect("a codec"))
}

/// A scratch on four devices, and their model. The memory they share stays for good.
fn devices(verify: bool) -> (Arc<Model>, Arc<Fleet>, Scratch<Iaa>) {
    let queue = |number| Queue { number, size: 32, is_dedicated: true };
    let device = |n| Device { number: n, package: Some(0), queues: [queue(0), queue(1)].into() };
    let found =
        Found { devices: (0..4).map(device).collect(), cpus: vec![Some(0); 4], ..Found::default() };
    let fleet = Arc::new(Fleet::new(&found));
    let model = Arc::new(Model::new(&fleet, Clock::Virtual, Latency::BY_N));
    let bytes = Iaa::memory_for(LANES, Unit::K4);
    let memory: &Region = Box::leak(Box::new(Region::new(bytes, c"octavo test").expect("memory")));
    model.share(memory);
    let config = Config { unit: Unit::K4, timeout_ns: 1_000_000, verify, ..Config::DEFAULT };
    let engine = Driver::new(model.clone(), fleet.clone(), memory, &codecs(), config);
    (model, fleet, Scratch::with(engine.expect("an engine")))
}

/// Puts folios in one batch, and reads them back.
fn through(
    store: &Store<TestArena>,
    scratch: &mut Scratch<Iaa>,
    codec: Codec,
    folios: &[Vec<u8>],
) -> Vec<SlotId> {
    let (unit, fits_in) = (Unit::K4, PAGE_SIZE / 8 * 7);
    let how = How { codec, unit, cpu: 0, fits_in, refusal_bytes: PAGE_SIZE + 1 };
    let slices: Vec<&[u8]> = folios.iter().map(Vec::as_slice).collect();
    let mut out = vec![Err(PutError::OutOfSlots); folios.len()];
    store.put(scratch, how, &slices, &mut out);
    let slots = out.into_iter().map(|slot| slot.expect("there is room"));
    let slots: Vec<SlotId> = slots.collect();
    for (folio, slot) in folios.iter().zip(&slots) {
        let mut back = vec![0xaa; folio.len()];
        assert_eq!(store.get(scratch, *slot, &mut back), Ok(()));
        assert!(back == *folio, "{codec}, {slot}: other bytes");
    }
    slots
}

/// Every so many commands `mishap`, from the sixth on; where `compressions`, of those that write streams, and
/// none of the others.
fn every(period: u32, mishap: Mishap, compressions: bool) -> Fate {
    let mut n = 0_u32;
    Box::new(move |_, descriptor: &Descriptor| {
        let writes = descriptor.opcode() == opcode::COMPRESS && descriptor.codec_flags.get() == 6;
        if compressions && !writes {
            return None;
        }
        n += 1;
        (n > 5 && n.is_multiple_of(period)).then_some(mishap)
    })
}

#[test]
fn pages_come_back_whatever_devices_do() {
    let folios: Vec<Vec<u8>> = (0..6).map(|n| folio(40 + n, 16, true)).collect();
    for codec in codecs() {
        for (mishap, period) in [
            (Mishap::Silent, 7),
            (Mishap::Late(20_000_000), 5),
            (Mishap::Full, 2),
            (Mishap::Status(status::PAGE_FAULT, 0), 3),
            (Mishap::Status(status::HARDWARE, 0), 8),
            (Mishap::Status(status::ANALYTICS, 17), 8),
            (Mishap::WrongSize, 4),
        ] {
            let (store, _) = store(4096);
            let (model, _, mut scratch) = devices(false);
            model.set_fate(Some(every(period, mishap, false)));
            through(&store, &mut scratch, codec, &folios);
            let work = scratch.take_work();
            assert!(work.by_devices > 0, "{codec}, {mishap:?}: {work:?}");
            assert!(work.by_cpu_instead > 0 || mishap == Mishap::Full, "{codec}, {mishap:?}");
            assert_eq!(store.stats().unverified_units, 0);
            model.set_fate(None);
            through(&store, &mut scratch, codec, &folios);
        }
    }
}

#[test]
fn a_device_that_decompresses_to_something_else_loses_no_page() {
    let folios: Vec<Vec<u8>> = (0..3).map(|n| folio(20 + n, 16, true)).collect();
    for codec in codecs() {
        let (store, _) = store(4096);
        let (model, _, mut scratch) = devices(false);
        model.set_fate(Some(Box::new(|_, descriptor| {
            (descriptor.opcode() == opcode::DECOMPRESS).then_some(Mishap::WrongByte)
        })));
        through(&store, &mut scratch, codec, &folios);
        let work = scratch.take_work();
        assert!(work.by_devices > 0 && work.by_cpu_instead > 0, "{codec}: {work:?}");
    }
}

#[test]
fn devices_taken_away_in_the_middle_of_a_batch() {
    let folios: Vec<Vec<u8>> = (0..6).map(|n| folio(60 + n, 16, true)).collect();
    for codec in codecs() {
        // One of them, and all.
        for gone in [2, 8] {
            let (store, _) = store(4096);
            let (model, fleet, mut scratch) = devices(false);
            let before = through(&store, &mut scratch, codec, &folios);
            let mut n = 0;
            model.set_fate(Some(Box::new(move |queue, _| {
                n += 1;
                (n > 40 && queue < gone).then_some(Mishap::Gone)
            })));
            scratch.take_work();
            through(&store, &mut scratch, codec, &folios);
            let work = scratch.take_work();
            assert!(work.by_devices > 0 && work.by_cpu_instead > 0, "{codec}: {work:?}");
            // What was put before is read all the same, and the next batch waits for nobody.
            for (folio, slot) in folios.iter().zip(before) {
                let mut back = vec![0xaa; folio.len()];
                assert_eq!(store.get(&mut scratch, slot, &mut back), Ok(()));
                assert!(back == *folio);
            }
            through(&store, &mut scratch, codec, &folios);
            let alive = fleet.queues().iter().filter(|queue| queue.is_alive()).count();
            assert!(alive >= fleet.queues().len() - gone, "{codec}: {alive} are left");
        }
    }
}

#[test]
fn what_is_not_verified_is_kept_raw_and_counted() {
    let folios: Vec<Vec<u8>> = (0..6).map(|n| folio(80 + n, 16, true)).collect();
    for codec in codecs() {
        for mishap in [Mishap::WrongByte, Mishap::WrongCrc] {
            let (store, _) = store(4096);
            let (model, _, mut scratch) = devices(true);
            model.set_fate(Some(every(9, mishap, true)));
            let slots = through(&store, &mut scratch, codec, &folios);
            let stats = store.stats();
            assert!(stats.unverified_units > 0, "{codec}, {mishap:?}");
            assert_eq!(stats.raw_pages, stats.unverified_units, "{codec}, {mishap:?}");
            for slot in slots {
                store.free_run(slot, 16, 0xffff);
            }
            assert_eq!(store.stats().stored_pages, 0);
        }
    }
}
