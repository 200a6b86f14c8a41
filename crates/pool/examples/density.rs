//! How much the pool takes for objects of given sizes, beside the zsmalloc series by the book.
//!
//! `cargo run --release --example density -- UNIT COPIES < SIZES`: UNIT is the largest object in
//! bytes, SIZES are the sizes of compressed units, one a line; they are stored COPIES times, then
//! each object is replaced by one of another size, at random, four times over, then compacted.
#![allow(unsafe_code)] // An arena is raw memory.

use octavo_page::{Handle, PAGE_SIZE};
use octavo_pool::reference::Reference;
use octavo_pool::{ChainLength, Config, Pool};
use std::io::Read;
use std::time::Instant;

mod common;
use common::{random, space};

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse().expect("a number"));
    let (unit, copies): (usize, usize) = (args.next().expect("UNIT"), args.next().expect("COPIES"));
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).expect("sizes");
    let sizes: Vec<usize> = text.split_whitespace().map(|s| s.parse().expect("a size")).collect();

    println!("system     chain phase      objects compressed_mb used_mb overhead_% bare_%  ops/s");
    for chain in [1, 4, 8, 16] {
        let chain = ChainLength::new(chain).expect("a chain length");
        octavo(chain, unit, &sizes, copies);
        reference(chain, unit, &sizes, copies);
    }
}

struct Row {
    system: &'static str,
    chain: ChainLength,
    objects: usize,
    compressed: usize,
    used: usize,
    pages: usize,
}

fn print(row: &Row, phase: &str, ops: usize, since: Instant) {
    let over = |used: usize| (used as f64 / row.compressed as f64 - 1.0) * 100.0;
    println!(
        "{:10} {:5} {phase:9} {:8} {:13.2} {:7.2} {:10.2} {:6.2} {:9.0}",
        row.system,
        row.chain.get(),
        row.objects,
        row.compressed as f64 / 1e6,
        row.used as f64 / 1e6,
        over(row.used),
        over(row.pages * PAGE_SIZE),
        ops as f64 / since.elapsed().as_secs_f64(),
    );
}

fn octavo(chain: ChainLength, unit: usize, sizes: &[usize], copies: usize) {
    let bytes = vec![0x5a; unit];
    let total: usize = sizes.iter().sum::<usize>() * copies;
    let pages = total / PAGE_SIZE * 2 + (64 << 20) / PAGE_SIZE;
    let config = Config { chain, max_object: unit, max_objects: 2 * sizes.len() * copies };
    let pool = Pool::new(space(pages), config).expect("a pool");
    let store = |len: usize| pool.store(&bytes[..len]).expect("room");
    let report = |phase, ops, since| {
        let s = pool.stats();
        let (objects, compressed) = (s.objects, s.compressed_bytes);
        let row = Row {
            system: "octavo",
            chain,
            objects,
            compressed,
            used: s.used_bytes,
            pages: s.pages,
        };
        print(&row, phase, ops, since);
    };

    let since = Instant::now();
    let mut live: Vec<Handle> = (0..copies).flat_map(|_| sizes.iter().map(|&s| store(s))).collect();
    report("fill", live.len(), since);

    let (since, mut state, ops) = (Instant::now(), 1, 4 * live.len());
    for _ in 0..ops {
        let at = random(&mut state) % live.len();
        pool.free(live[at]).expect("live");
        live[at] = store(sizes[random(&mut state) % sizes.len()]);
    }
    report("churn", ops, since);

    let (since, mut moved) = (Instant::now(), 0);
    loop {
        let step = pool.compact(1000);
        moved += step.moved;
        if step.moved < 1000 {
            break;
        }
    }
    report("compacted", moved, since);
    println!("{:29} {moved} moves", "");

    let since = Instant::now();
    for at in (1..live.len()).rev() {
        live.swap(at, random(&mut state) % (at + 1));
    }
    println!("{:29} shuffled in {:?}", "", since.elapsed());
    let since = Instant::now();
    assert_eq!(pool.free_many(&live).objects, live.len());
    let rate = live.len() as f64 / since.elapsed().as_secs_f64();
    println!("{:29} {:.1} million frees a second", "", rate / 1e6);
}

fn reference(chain: ChainLength, unit: usize, sizes: &[usize], copies: usize) {
    let mut pool = Reference::new(chain, unit);
    let report = |pool: &Reference, objects, phase, ops, since| {
        let row = Row {
            system: "reference",
            chain,
            objects,
            compressed: pool.compressed_bytes(),
            used: pool.used_bytes(),
            pages: pool.pages(),
        };
        print(&row, phase, ops, since);
    };
    let since = Instant::now();
    let mut live: Vec<_> =
        (0..copies).flat_map(|_| sizes.iter()).map(|&size| pool.store(size)).collect();
    report(&pool, live.len(), "fill", live.len(), since);

    let (since, mut state, ops) = (Instant::now(), 1, 4 * live.len());
    for _ in 0..ops {
        let at = random(&mut state) % live.len();
        pool.free(live[at]);
        live[at] = pool.store(sizes[random(&mut state) % sizes.len()]);
    }
    report(&pool, live.len(), "churn", ops, since);
    let since = Instant::now();
    let moved = pool.compact();
    report(&pool, live.len(), "compacted", moved, since);
    println!("{:29} {moved} moves", "");
}
