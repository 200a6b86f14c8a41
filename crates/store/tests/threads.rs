//! Many threads at one store: a page that is read is the page that was put, or there is none.

mod common;

use common::{Random, TestArena, codecs, scratch, store};
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{GetError, How, PutError, Scratch, Store};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A page that says which it is, in its first word, and is nothing else than that word says.
fn numbered(id: u64, page: &mut [u8]) {
    let mut random = Random::new(id);
    for word in page.as_chunks_mut::<8>().0 {
        *word = (random.next() >> 58).to_ne_bytes();
    }
    page[..8].copy_from_slice(&id.to_ne_bytes());
}

fn is_numbered(page: &[u8]) -> bool {
    let mut expected = [0; PAGE_SIZE];
    let id = u64::from_ne_bytes(*page.first_chunk().expect("a page"));
    numbered(id, &mut expected);
    page == expected
}

fn put(
    store: &Store<TestArena>,
    scratch: &mut Scratch,
    unit: Unit,
    cpu: usize,
    folio: &[u8],
) -> Result<SlotId, PutError> {
    let codec = codecs()[cpu % 3];
    let mut out = [Err(PutError::OutOfSlots)];
    let how = How { codec, unit, cpu, fits_in: unit.bytes(), refusal_bytes: 0 };
    store.put(scratch, how, &[folio], &mut out);
    out[0]
}

/// Some threads free pages, some read them and their neighbours, one compacts. Nobody puts, so a
/// page reads as it was put until it is freed and never again after.
#[test]
fn pages_are_read_while_their_neighbours_are_freed() {
    for round in 0..6_u64 {
        let (store, _) = store(1024);
        let mut scratch = scratch();
        let unit = Unit::ALL[round as usize % 3];
        let mut data = vec![0; 16 * PAGE_SIZE];
        let first: Vec<_> = (0..64_u64)
            .map(|n| {
                for (at, page) in data.chunks_mut(PAGE_SIZE).enumerate() {
                    numbered(n << 8 | at as u64, page);
                }
                put(&store, &mut scratch, unit, round as usize, &data).expect("room")
            })
            .collect();
        let turn = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (store, first, turn) = (&store, &first, &turn);
                scope.spawn(move || free_all(store, first, turn));
                scope.spawn(move || read_all(store, first, turn, thread));
            }
            while turn.load(Ordering::Relaxed) < 1024 {
                store.compact(10);
            }
        });
        let stats = store.stats();
        assert_eq!((stats.stored_pages, stats.objects, stats.compressed_bytes), (0, 0, 0));
    }
}

/// The `n`-th page that is freed: neighbours soon after each other, by different threads.
fn victim(first: &[SlotId], n: usize) -> (SlotId, u64) {
    let (folio, page) = (n / 16, n * 7 % 16);
    (first[folio].offset(page as u32), (folio as u64) << 8 | page as u64)
}

fn free_all(store: &Store<TestArena>, first: &[SlotId], turn: &AtomicUsize) {
    loop {
        let n = turn.fetch_add(1, Ordering::Relaxed);
        if n >= 1024 {
            return;
        }
        let (slot, _) = victim(first, n);
        store.free(&[slot]);
        assert_eq!(store.unit_of(slot), None);
        // Time for the readers to come near.
        (0..200).for_each(|_| std::hint::spin_loop());
    }
}

fn read_all(store: &Store<TestArena>, first: &[SlotId], turn: &AtomicUsize, seed: u64) {
    let mut scratch = scratch();
    let mut random = Random::new(seed);
    let (mut out, mut expected) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
    loop {
        let now = turn.load(Ordering::Relaxed);
        if now >= 1024 {
            return;
        }
        let n = (now + random.below(24)).min(1023);
        let (slot, id) = victim(first, n);
        numbered(id, &mut expected);
        match store.get(&mut scratch, slot, &mut out) {
            Ok(()) => assert!(out == expected, "{slot}: other bytes"),
            Err(error) => {
                assert_eq!(error, GetError::Empty { slot });
                assert!(turn.load(Ordering::Relaxed) > n, "{slot} lost before it was freed");
            }
        }
        if let Some(info) = store.unit_of(slot) {
            assert_eq!(info.wanted >> (slot.get() - info.first.get()) & 1, 1);
        }
        let matches = store.matches(slot, &expected);
        assert!(matches || turn.load(Ordering::Relaxed) > n, "{slot} is not itself");
    }
}

/// Every thread puts, frees and reads its own folios, which read exactly, and reads slots of
/// others, which give some page that was put or none.
#[test]
fn threads_put_get_and_free_at_once() {
    let (store, arena) = store(2048);
    arena.set_frames_left(700);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || churn(store, thread));
        }
    });
    let stats = store.stats();
    assert_eq!((stats.stored_pages, stats.objects, stats.compressed_bytes), (0, 0, 0));
}

fn churn(store: &Store<TestArena>, thread: usize) {
    let mut scratch = scratch();
    let mut random = Random::new(thread as u64 + 1);
    let mut held: Vec<(SlotId, usize, u64)> = Vec::new();
    let mut data = vec![0; 16 * PAGE_SIZE];
    for turn in 0..1500_u64 {
        let id = (thread as u64) << 56 | turn << 8;
        match random.below(4) {
            0 => {
                let unit = Unit::ALL[random.below(3)];
                let pages = unit.pages().max(1 << random.below(5));
                let folio = &mut data[..pages * PAGE_SIZE];
                for (n, page) in folio.chunks_mut(PAGE_SIZE).enumerate() {
                    numbered(id | n as u64, page);
                }
                match put(store, &mut scratch, unit, thread, folio) {
                    Ok(slot) => held.push((slot, pages, id)),
                    Err(PutError::OutOfFrames | PutError::OutOfSlots) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            1 if !held.is_empty() => {
                let (slot, pages, _) = held.swap_remove(random.below(held.len()));
                let half = 0x5555 & ((1 << pages) - 1);
                store.free_run(slot, pages, half);
                store.free_run(slot, pages, !half);
            }
            2 if !held.is_empty() => {
                let (slot, pages, id) = held[random.below(held.len())];
                let out = &mut data[..pages * PAGE_SIZE];
                store.get(&mut scratch, slot, out).expect("its own pages");
                for (n, page) in out.chunks(PAGE_SIZE).enumerate() {
                    assert!(page.starts_with(&(id | n as u64).to_ne_bytes()));
                    assert!(is_numbered(page));
                }
            }
            _ => {
                let slot = SlotId::new(random.below(store.capacity_pages()) as u32);
                match store.get(&mut scratch, slot, &mut data[..PAGE_SIZE]) {
                    Ok(()) => assert!(is_numbered(&data[..PAGE_SIZE]), "{slot}: other bytes"),
                    Err(error) => assert_eq!(error, GetError::Empty { slot }),
                }
                store.compact(2);
            }
        }
    }
    for (slot, pages, _) in held {
        store.free_run(slot, pages, u64::MAX);
    }
}
