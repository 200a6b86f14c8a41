//! Many threads at once. An object begins with its handle's number in a table, so that bytes of
//! another object are noticed.

use super::cases::pool;
use crate::BadHandle;
use octavo_page::Handle;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::vec::Vec;

const CELLS: usize = 512;
const EMPTY: u64 = u64::MAX;

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn check(bytes: &[u8]) -> u32 {
    let key = u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
    assert_eq!(bytes.len(), len_of(key));
    assert!(bytes[4..].iter().all(|&b| b == key as u8), "one object's bytes");
    key
}

fn len_of(key: u32) -> usize {
    4 + (key.wrapping_mul(0x9e37_79b9) >> 18) as usize
}

/// Each cell holds the key and the handle of an object, or nothing. Whoever swaps a cell owns what
/// was in it. Readers read what a cell names while others free it.
#[test]
fn readers_writers_and_compaction_together() {
    let pool = pool(1 << 13, 4, 1 << 15, 4 * CELLS);
    let cells: Vec<AtomicU64> = (0..CELLS).map(|_| AtomicU64::new(EMPTY)).collect();
    let stop = AtomicBool::new(false);
    let (pool, cells, stop) = (&pool, &cells, &stop);

    thread::scope(|scope| {
        let writers: Vec<_> = (1..=3_u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut random = Random(seed * 0x1234_5678_9abc);
                    for _ in 0..20_000 {
                        let key = random.next() as u32;
                        let write = |to: &mut [u8]| {
                            to.fill(key as u8);
                            to[..4].copy_from_slice(&key.to_le_bytes());
                        };
                        let new = pool.alloc(len_of(key), write).expect("room");
                        let new = u64::from(key) << 32 | u64::from(new.bits());
                        let cell = &cells[random.next() as usize % CELLS];
                        let old = cell.swap(new, Ordering::AcqRel);
                        if old != EMPTY {
                            let handle = Handle::from_bits(old as u32);
                            assert_eq!(pool.read(handle, check), Ok((old >> 32) as u32));
                            assert_eq!(pool.free(handle), Ok(len_of((old >> 32) as u32)));
                        }
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            let mut random = Random(99);
            while !stop.load(Ordering::Relaxed) {
                let seen = cells[random.next() as usize % CELLS].load(Ordering::Acquire);
                if seen == EMPTY {
                    continue;
                }
                // Freed meanwhile: an error, or, the entry used again, another whole object.
                let handle = Handle::from_bits(seen as u32);
                match pool.read(handle, check) {
                    Ok(_) => {}
                    Err(BadHandle(bad)) => assert_eq!(bad, handle),
                }
            }
        });
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                pool.compact(50);
                thread::yield_now();
            }
        });
        for writer in writers {
            writer.join().expect("no writer fails");
        }
        stop.store(true, Ordering::Relaxed);
    });

    pool.check();
    let left: Vec<_> = cells
        .iter()
        .map(|cell| cell.load(Ordering::Acquire))
        .filter(|&cell| cell != EMPTY)
        .map(|cell| Handle::from_bits(cell as u32))
        .collect();
    assert_eq!(pool.stats().objects, left.len());
    assert_eq!(pool.free_many(&left).objects, left.len());
    pool.check();
    pool.tidy(usize::MAX);
    assert_eq!(pool.arena().committed(), 0);
}

/// Threads that free in batches what another one stored, while compaction runs.
#[test]
fn batches_are_freed_by_another_thread() {
    let pool = pool(1 << 13, 16, 4096, 20_000);
    let pool = &pool;
    let stop = &AtomicBool::new(false);
    let write = |key: u32| {
        move |to: &mut [u8]| {
            to.fill(key as u8);
            to[..4].copy_from_slice(&key.to_le_bytes());
        }
    };
    // Keys whose objects fit a page.
    let keys = || (0..u32::MAX).filter(|&key| len_of(key) <= 4096);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let (give, get) = std::sync::mpsc::sync_channel::<Vec<Handle>>(2);
                let stores = scope.spawn(move || {
                    for batch in 0..40 {
                        let some = keys().skip(worker * 999 + batch * 7).step_by(3).take(1500);
                        let store = |key| pool.alloc(len_of(key), write(key)).expect("room");
                        give.send(some.map(store).collect()).expect("the other thread");
                    }
                });
                let frees = scope.spawn(move || {
                    for mut batch in get {
                        for &handle in batch.iter().step_by(5) {
                            pool.read(handle, check).expect("live");
                        }
                        batch.rotate_left(700);
                        let half = batch.len() / 2;
                        batch.extend_from_within(..half);
                        let freed = pool.free_many(&batch);
                        assert_eq!((freed.objects, freed.refused), (2 * half, half));
                    }
                });
                [stores, frees]
            })
            .collect();
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                pool.compact(20);
                pool.classes();
                thread::yield_now();
            }
        });
        for worker in workers.into_iter().flatten() {
            worker.join().expect("no worker fails");
        }
        stop.store(true, Ordering::Relaxed);
    });
    pool.check();
    pool.tidy(usize::MAX);
    assert_eq!(pool.arena().committed(), 0);
    assert_eq!(pool.stats().objects, 0);
}
