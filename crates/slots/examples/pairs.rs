//! How fast slots are taken and given back: `cargo run --release -p octavo-slots --example pairs`.
//!
//! A device of 1 Mi slots is filled to a share with single pages; then each thread frees one of its
//! own and takes another, again and again, either in random order or oldest first.

use octavo_page::{Order, SlotId};
use octavo_slots::twins::{Allocator, OneLock, Series};
use octavo_slots::{Config, Slots};
use std::time::Instant;

const CAPACITY: usize = 1 << 20;
const PAIRS: usize = 1_000_000;

fn main() {
    for order in [0, 4, 9].map(|n| Order::new(n).expect("an order")) {
        for fill in [10, 50, 90, 99] {
            for random in [true, false] {
                for threads in [1, 2, 8] {
                    run::<Slots>(order, fill, random, threads);
                    run::<Series>(order, fill, random, threads);
                    run::<OneLock>(order, fill, random, threads);
                }
            }
        }
    }
}

/// Seconds that this thread has run, so that other programs count less.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let first = stat.split_whitespace().next().and_then(|n| n.parse::<f64>().ok());
    first.expect("nanoseconds") / 1e9
}

fn run<A: Allocator>(order: Order, fill: usize, random: bool, threads: usize) {
    let slots = A::new(Config { capacity: CAPACITY, cpus: threads }).expect("a valid size");
    let each = CAPACITY / order.pages() * fill / 100 / threads;
    let mut held: Vec<Vec<SlotId>> = (0..threads).map(|_| Vec::new()).collect();
    // Taken in turns and, where the order is random, shuffled once, as after a long life.
    for _ in 0..each {
        for (cpu, held) in held.iter_mut().enumerate() {
            held.extend(slots.alloc(order, cpu));
        }
    }
    let before = slots.shared_work();
    let pairs = PAIRS / threads;
    let start = Instant::now();
    let done: Vec<(usize, f64)> = std::thread::scope(|scope| {
        let work = held.iter_mut().enumerate().map(|(cpu, held)| {
            let slots = &slots;
            scope.spawn(move || pairs_of(slots, order, cpu, held, pairs, random))
        });
        let work: Vec<_> = work.collect();
        work.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let failures: usize = done.iter().map(|(failures, _)| failures).sum();
    // As if each thread had a CPU to itself.
    let busy: f64 = done.iter().map(|(_, seconds)| pairs as f64 / seconds).sum();
    let after = slots.shared_work();
    let per_1000 = |n: u64| n as f64 / (2 * pairs * threads) as f64 * 1000.0;
    println!(
        "{:8} order {} fill {fill:2}% {} threads {threads}: {:6.1} M pairs/s ({:6.1} by CPU time), device lock {:6.2} and list moves {:6.2} per 1000, {failures} failures",
        A::NAME,
        order.get(),
        if random { "random    " } else { "sequential" },
        (pairs * threads) as f64 / seconds / 1e6,
        busy / 1e6,
        per_1000(after.acquisitions - before.acquisitions),
        per_1000(after.moves - before.moves),
    );
}

fn pairs_of(
    slots: &impl Allocator,
    order: Order,
    cpu: usize,
    held: &mut Vec<SlotId>,
    pairs: usize,
    random: bool,
) -> (usize, f64) {
    let start = cpu_seconds();
    let mut failures = 0;
    let mut state = cpu as u64 + 1;
    for turn in 0..pairs {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let at = if random { (state >> 33) as usize % held.len() } else { turn % held.len() };
        slots.free(held[at], order.pages()).expect("its own slot");
        match slots.alloc(order, cpu) {
            Some(slot) => held[at] = slot,
            None => {
                failures += 1;
                held.swap_remove(at);
            }
        }
    }
    (failures, cpu_seconds() - start)
}
