//! How often a folio of 64 KiB finds no place: `cargo run --release -p octavo-slots --example mix`.
//!
//! Processes come, grow and exit on a device of 256 Ki slots that is 90% full on average. A growing
//! process stores folios of 64 KiB and single pages, and gets single pages back at random. A folio
//! that finds no place is stored as sixteen single pages. All designs get the same requests.

use octavo_page::{Order, SlotId};
use octavo_slots::twins::{Allocator, OneLock, Series};
use octavo_slots::{Config, Slots};

const CAPACITY: usize = 1 << 18;
const CPUS: usize = 4;
const STEPS: usize = 300_000;
const SEEDS: u64 = 4;
/// The least and the most pages that a process grows to.
const SIZES: (usize, usize) = (1 << 10, 1 << 14);

fn main() {
    for (folios, refaults) in [(6, 5), (20, 3), (50, 2), (50, 3)] {
        println!("of 100 steps {folios} store a folio; of 100 pages stored {refaults} come back");
        let twin = seeds::<OneLock>(folios, refaults);
        for (name, (failures, attempts, fill)) in [
            (OneLock::NAME, twin),
            (Series::NAME, seeds::<Series>(folios, refaults)),
            (Slots::NAME, seeds::<Slots>(folios, refaults)),
        ] {
            println!(
                "  {name:8} {failures:7} of {attempts} failed, {:5.2}%, {:.2} of one-lock; {:.0}% full",
                failures as f64 / attempts as f64 * 100.0,
                failures as f64 / twin.0 as f64,
                fill * 100.0,
            );
        }
    }
}

/// The sums over some seeds: near the point where folios begin to fail, single runs differ much.
fn seeds<A: Allocator>(folios: usize, refaults: usize) -> (usize, usize, f64) {
    (0..SEEDS)
        .map(|seed| run::<A>(seed, folios, refaults))
        .fold((0, 0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2 / SEEDS as f64))
}

#[derive(Default)]
struct Process {
    cpu: usize,
    size: usize,
    stored: usize,
    /// Pages taken so far; those that came back are not among them.
    pages: Vec<SlotId>,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// Failures, attempts, and how full the device was on average.
fn run<A: Allocator>(seed: u64, folios: usize, refaults: usize) -> (usize, usize, f64) {
    let slots = A::new(Config { capacity: CAPACITY, cpus: CPUS }).expect("a valid size");
    let mut random = Random(seed);
    let mut live: Vec<Process> = Vec::new();
    let (mut taken, mut failures, mut attempts, mut filled) = (0, 0, 0, 0.0);
    let (mut growing, mut limit): (Vec<usize>, usize) = (Vec::new(), CAPACITY * 9 / 10);
    let folio = Order::new(4).expect("an order");
    for _ in 0..STEPS {
        while taken + folio.pages() > limit && !live.is_empty() {
            let process = live.swap_remove(random.below(live.len()));
            taken -= process.pages.len();
            slots.free_many(&process.pages).expect("its own slots");
            growing = (0..live.len()).filter(|n| live[*n].stored < live[*n].size).collect();
            limit = CAPACITY * (85 + random.below(14)) / 100;
        }
        if growing.len() < 2 * CPUS {
            let size = SIZES.0 + random.below(SIZES.1 - SIZES.0);
            growing.push(live.len());
            live.push(Process { cpu: random.below(CPUS), size, ..Process::default() });
        }
        let chosen = random.below(growing.len());
        let process = &mut live[growing[chosen]];
        let pages = if random.below(100) < folios { folio.pages() } else { 1 };
        let run = (pages > 1).then(|| slots.alloc(folio, process.cpu)).flatten();
        attempts += usize::from(pages > 1);
        failures += usize::from(pages > 1 && run.is_none());
        let before = process.pages.len();
        match run {
            Some(first) => process.pages.extend((0..pages as u32).map(|n| first.offset(n))),
            None => process
                .pages
                .extend((0..pages).map_while(|_| slots.alloc(Order::PAGE, process.cpu))),
        }
        process.stored += pages;
        for _ in 0..pages {
            if random.below(100) < refaults && !process.pages.is_empty() {
                let at = random.below(process.pages.len());
                slots.free(process.pages.swap_remove(at), 1).expect("its own slot");
            }
        }
        taken = taken + process.pages.len() - before;
        if process.stored >= process.size {
            growing.swap_remove(chosen);
        }
        filled += taken as f64 / CAPACITY as f64;
    }
    (failures, attempts, filled / STEPS as f64)
}
