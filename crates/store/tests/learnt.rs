//! Tables learnt from what is stored: whatever is learnt while pages are put, read and freed, each page
//! reads as it was put, and no tables are kept for nobody.

mod common;

use common::{Random, TestArena, folio, put_one, store};
use octavo_codec::Codec;
use octavo_codec::deflate::{GENERAL, Generations, Learner, Level};
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{GetError, How, PutError, Scratch, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const CODECS: [&str; 4] =
    ["deflate-canned:1", "deflate-canned:6:by_4", "deflate-canned:1:general", "lz4"];

fn codec(n: usize) -> Codec {
    CODECS[n].parse().expect("a codec")
}

fn scratch(store: &Store<TestArena>) -> Scratch {
    let mut scratch = Scratch::new(&[0, 1, 2, 3].map(codec));
    store.tell_tables(&mut scratch);
    scratch
}

fn how(codec: Codec, unit: Unit) -> How {
    How { codec, unit, cpu: 0, fits_in: unit.bytes(), refusal_bytes: PAGE_SIZE }
}

/// Threads put, read and free folios of their own by any codec, while another writes a new generation over
/// an old one as soon as one is free.
#[test]
fn pages_read_as_they_were_put_while_generations_are_replaced() {
    let (mut store, _) = store(8192);
    let all = Arc::new(Generations::new());
    store.set_tables(Arc::clone(&all));
    let (store, ended) = (&store, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..2).map(|seed| scope.spawn(move || put_get_free(store, seed))).collect();
        let learner = scope.spawn(|| {
            let mut random = Random::new(9);
            let (mut made, mut in_use) = (0, 0);
            while !ended.load(Ordering::Relaxed) {
                let first = random.below(6);
                match all.replace(32768, &GENERAL[first..first + 2]).expect("tables") {
                    Some(_) => made += 1,
                    None => in_use += 1,
                }
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
            (made, in_use)
        });
        workers.into_iter().for_each(|worker| worker.join().expect("pages are right"));
        ended.store(true, Ordering::Relaxed);
        let (made, _) = learner.join().expect("the learner ends");
        assert!(made > Generations::MAX, "{made} generations, none of them a second one's place");
    });
    let stats = store.stats();
    assert_eq!((stats.objects, stats.learnt.objects), (0, 0), "nobody uses tables any more");
}

fn put_get_free(store: &Store<TestArena>, seed: u64) {
    let mut scratch = scratch(store);
    let mut random = Random::new(seed);
    let mut kept: Vec<(SlotId, Vec<u8>)> = Vec::new();
    for n in 0..1500 {
        // Now and then nothing is kept, so that every generation can be replaced.
        let most = if n % 100 < 50 { 24 } else { 0 };
        while kept.len() > most {
            let (slot, data) = kept.swap_remove(random.below(kept.len()));
            read(store, &mut scratch, slot, &data);
            store.free_run(slot, data.len() / PAGE_SIZE, u64::MAX);
            assert_eq!(
                store.get(&mut scratch, slot, &mut [0; PAGE_SIZE]),
                Err(GetError::Empty { slot })
            );
        }
        let unit = Unit::ALL[random.below(3)];
        let data = folio(random.next(), unit.pages(), random.below(8) > 0);
        let how = how(codec(random.below(CODECS.len())), unit);
        if let Ok(slot) = put_one(store, &mut scratch, how, &data) {
            kept.push((slot, data));
        }
        if let Some((slot, data)) = kept.first() {
            read(store, &mut scratch, *slot, data);
        }
    }
    for (slot, data) in kept {
        read(store, &mut scratch, slot, &data);
        // Some go one by one, and one of them is lost.
        store.poison(slot);
        (0..data.len() / PAGE_SIZE).for_each(|n| store.free(&[slot.offset(n as u32)]));
    }
}

fn read(store: &Store<TestArena>, scratch: &mut Scratch, slot: SlotId, data: &[u8]) {
    let mut out = vec![0xaa; data.len()];
    assert_eq!(store.get(scratch, slot, &mut out), Ok(()));
    assert!(out == data, "{slot}: other bytes");
}

/// A store learns from what is offered, and what is put then is smaller than by general tables.
#[test]
fn a_store_learns_from_what_is_put() {
    let (mut store, _) = store(1 << 15);
    store.set_learner(Learner::new(Level::L1, PAGE_SIZE));
    let (mut scratch, mut silent) = (scratch(&store), scratch(&store));
    scratch.offer_units();
    let how = how(codec(0), Unit::K4);
    let page = |n: u64| -> Vec<u8> {
        let mut random = Random::new(n);
        (0..PAGE_SIZE).map(|_| b"etaoin"[random.below(6).min(random.below(6))]).collect()
    };
    let general = put_one(&store, &mut silent, how, &page(0)).expect("room");
    let by_general = store.stats().compressed_bytes;
    let mut n = 0;
    while !store.learn() {
        let from: &mut Scratch = if n % 2 == 0 { &mut scratch } else { &mut silent };
        let slot = put_one(&store, from, how, &page(n)).expect("room");
        store.free(&[slot]);
        n += 1;
        assert!(n < 1 << 16, "never learnt");
    }
    assert_eq!(store.stats().learnt.objects, 0);
    let learnt = put_one(&store, &mut silent, how, &page(0)).expect("room");
    let stats = store.stats();
    assert_eq!(stats.learnt.objects, 1);
    assert!(stats.learnt.bytes > 0 && stats.compressed_bytes < 2 * by_general);
    for slot in [general, learnt] {
        read(&store, &mut scratch, slot, &page(0));
        store.free(&[slot]);
    }
    assert_eq!(store.stats().learnt.objects, 0);
}

/// A batch leaves the users of tables that its folios leave one by one, also where folios are refused.
#[test]
fn a_batch_counts_as_its_folios_do() {
    let tables = || Arc::new(Generations::with(32768, &GENERAL[..3]).expect("tables"));
    let ((mut one, some_frames), (mut other, other_frames)) = (store(512), store(512));
    one.set_tables(tables());
    other.set_tables(tables());
    for frames in [512, 40] {
        some_frames.set_frames_left(frames);
        other_frames.set_frames_left(frames);
        for unit in Unit::ALL {
            let folios: Vec<_> = (0..24).map(|n| folio(n, 16, n % 3 > 0)).collect();
            let folios: Vec<&[u8]> = folios.iter().map(Vec::as_slice).collect();
            let how = How { refusal_bytes: 0, ..how(codec(0), unit) };
            let mut out =
                [vec![Err(PutError::OutOfSlots); 24], vec![Err(PutError::OutOfSlots); 24]];
            one.put(&mut scratch(&one), how, &folios, &mut out[0]);
            other.put_one_by_one(&mut scratch(&other), how, &folios, &mut out[1]);
            for (store, out) in [(&one, &out[0]), (&other, &out[1])] {
                let stats = store.stats();
                assert_eq!(stats.learnt.objects, stats.objects);
                for slot in out.iter().flatten() {
                    store.free_run(*slot, 16, u64::MAX);
                }
                assert_eq!((store.stats().objects, store.stats().learnt.objects), (0, 0));
            }
        }
    }
}
