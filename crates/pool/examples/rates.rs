//! How fast the pool is: objects of 1 KiB, `cargo run --release --example rates -- LIVE_MIB`.
//!
//! `pairs`: alloc, write and free, over and over, one and two threads, next to nothing else live.
//! `replace`: a random one of LIVE_MIB of objects freed, another stored. `free_many`: all of them,
//! in random order, in one call. `read`: random objects copied out, beside copies from plain memory.
#![allow(unsafe_code)] // An arena is raw memory.

use octavo_page::Handle;
use octavo_pool::{ChainLength, Config, Pool};
use std::thread;
use std::time::Instant;

mod common;
use common::{Space, random, space};

const LEN: usize = 1024;

fn main() {
    let mib = std::env::args().nth(1).map_or(256, |arg| arg.parse().expect("a number of MiB"));
    let objects: usize = mib << 10;
    let config = Config { chain: ChainLength::MAX, max_object: 4096, max_objects: objects + 1000 };
    let pool = Pool::new(space((mib + 64) << 8), config).expect("a pool");

    rate("pairs, 1 thread", 4_000_000, || pairs(&pool, 4_000_000));
    rate("pairs, 2 threads", 8_000_000, || {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| pairs(&pool, 4_000_000));
            }
        });
    });

    let mut live: Vec<Handle> =
        (0..objects).map(|n| pool.store(&[n as u8; LEN]).expect("room")).collect();
    let mut state = 1;
    rate("replace", 2_000_000, || {
        for _ in 0..2_000_000 {
            let at = random(&mut state) % live.len();
            pool.free(live[at]).expect("live");
            live[at] = pool.store(&[1; LEN]).expect("room");
        }
    });

    let plain = vec![1_u8; objects * LEN];
    let mut out = [0; LEN];
    rate("copy from memory", 4_000_000, || {
        for _ in 0..4_000_000 {
            let at = random(&mut state) % objects * LEN;
            out.copy_from_slice(&plain[at..at + LEN]);
            std::hint::black_box(&mut out);
        }
    });
    rate("read", 4_000_000, || {
        for _ in 0..4_000_000 {
            let handle = live[random(&mut state) % objects];
            pool.read(handle, |bytes| out.copy_from_slice(bytes)).expect("live");
            std::hint::black_box(&mut out);
        }
    });

    for at in (1..live.len()).rev() {
        live.swap(at, random(&mut state) % (at + 1));
    }
    rate("free_many", objects, || assert_eq!(pool.free_many(&live).objects, objects));
}

fn pairs(pool: &Pool<Space>, count: usize) {
    let bytes = [0x5a; LEN];
    let mut kept = [None; 16];
    for n in 0..count {
        let new = pool.store(&bytes).expect("room");
        if let Some(old) = kept[n % 16].replace(new) {
            pool.free(old).expect("live");
        }
    }
    for handle in kept.into_iter().flatten() {
        pool.free(handle).expect("live");
    }
}

fn rate(what: &str, count: usize, work: impl FnOnce()) {
    let (since, cpu) = (Instant::now(), cpu_ns());
    work();
    let each = since.elapsed().as_nanos() as f64 / count as f64;
    let cpu = (cpu_ns() - cpu) as f64 / count as f64;
    println!("{what:20} {each:8.1} ns each, {:6.2} million a second, {cpu:8.1} ns CPU", 1e3 / each);
}

/// CPU time of this thread alone: other work on the machine counts less in it.
fn cpu_ns() -> u64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number")
}
