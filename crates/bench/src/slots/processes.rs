//! Who finds room for folios: processes come, grow and exit.
//!
//! A machine of [`CPUS`] CPUs, each with one process that grows: it stores folios of 64 KiB and single
//! pages, and gets some of its pages back one by one. A process that has its size sleeps; when the
//! device is fuller than it should be, any process exits and gives back what it has, and the next one
//! on its CPU begins. A folio that finds no place is stored as sixteen single pages, which is what the
//! kernel does. All allocators get the same requests.

use super::{Pattern, Row, round};
use crate::random::Random;
use octavo_page::{Order, SlotId};
use octavo_slots::twins::Allocator;
use octavo_slots::{Config, no_clock};

const CAPACITY: usize = 1 << 18;
const CPUS: usize = 8;

/// Pages that are stored after the device was full for the first time.
const PAGES: usize = 8 * CAPACITY;

/// Near the point where folios begin to fail, single runs differ much.
const SEEDS: u64 = 4;

/// The share of the slots that may be taken when a process is to exit: drawn anew for each.
const FULL: (f64, f64) = (0.85, 0.95);

/// The least and the most pages that a process grows to.
const SIZES: (usize, usize) = (1 << 9, 1 << 13);

/// How processes use their memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    pub name: &'static str,
    /// Of 100 things that a process stores, these are folios of 64 KiB, the others single pages.
    folios: usize,
    /// Of 100 pages that were stored, these come back while the process lives.
    back: usize,
}

/// Folios are a third, half, three quarters and nearly all of the pages. In the second no allocator has
/// room: so many pages come back one by one that few runs are whole.
pub(super) const MIXES: [Mix; 4] = [
    Mix { name: "few folios", folios: 3, back: 12 },
    Mix { name: "no room", folios: 6, back: 10 },
    Mix { name: "some folios", folios: 15, back: 5 },
    Mix { name: "many folios", folios: 50, back: 3 },
];

/// One allocator under one mix, over all seeds.
pub(super) fn row<A: Allocator>(mix: &Mix) -> Row {
    let (mut failures, mut attempts, mut full, mut work) = (0, 0, 0.0, [0.0; 3]);
    for seed in 0..SEEDS {
        let mut machine = Machine::<A>::new(seed);
        machine.run(mix);
        failures += machine.counts.failures;
        attempts += machine.counts.attempts;
        full += machine.counts.full / machine.counts.steps as f64 / SEEDS as f64;
        let done = machine.slots.shared_work();
        for (sum, n) in work.iter_mut().zip([done.acquisitions, done.moves, done.waits]) {
            *sum += n as f64 * 1000.0 / machine.operations as f64 / SEEDS as f64;
        }
    }
    Row {
        allocator: A::NAME,
        pattern: Pattern::Processes,
        mix: Some(mix.name),
        order: FOLIO.get(),
        fill_percent: round(full * 100.0),
        threads: 1,
        alloc_free_per_s: None,
        alloc_free_per_cpu_s: None,
        speed_vs_one_lock: None,
        failures,
        attempts,
        failures_vs_one_lock: None,
        device_locks_per_1000_ops: round(work[0]),
        moves_per_1000_ops: round(work[1]),
        waits_per_1000_ops: round(work[2]),
        waited_percent: None,
    }
}

const FOLIO: Order = Order::new(4).expect("an order");

struct Process {
    size: usize,
    stored: usize,
    /// What it has stored and not got back.
    pages: Vec<SlotId>,
}

struct Machine<A> {
    slots: A,
    random: Random,
    growing: [Process; CPUS],
    sleeping: Vec<Process>,
    taken: usize,
    limit: usize,
    /// Slots given and taken back since the start, a folio being one.
    operations: u64,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    steps: u64,
    failures: u64,
    attempts: u64,
    /// Sum over the steps of the share of slots that are taken.
    full: f64,
}

impl<A: Allocator> Machine<A> {
    fn new(seed: u64) -> Self {
        let config = Config { capacity: CAPACITY, cpus: CPUS, discards: false, clock: no_clock };
        let mut random = Random::new(seed);
        let growing = std::array::from_fn(|_| Process::new(&mut random));
        let limit = limit(&mut random);
        Self {
            slots: A::new(config).expect("a device of a valid size"),
            random,
            growing,
            sleeping: Vec::new(),
            taken: 0,
            limit,
            operations: 0,
            counts: Counts::default(),
        }
    }

    /// Fills the device, which no figure counts but those of work, and goes on from there.
    fn run(&mut self, mix: &Mix) {
        while self.taken + FOLIO.pages() <= self.limit {
            self.step(mix);
        }
        self.counts = Counts::default();
        let mut stored = 0;
        while stored < PAGES {
            stored += self.step(mix);
        }
    }

    /// One process stores something and gets something back; how many pages it stored.
    fn step(&mut self, mix: &Mix) -> usize {
        while self.taken + FOLIO.pages() > self.limit && !self.sleeping.is_empty() {
            self.exit();
        }
        let cpu = self.random.below(CPUS);
        let stored =
            if self.random.below(100) < mix.folios { self.folio(cpu) } else { self.page(cpu) };
        for _ in 0..stored {
            if self.random.below(100) < mix.back {
                self.get_back(cpu);
            }
        }
        if self.growing[cpu].stored >= self.growing[cpu].size {
            let next = Process::new(&mut self.random);
            self.sleeping.push(std::mem::replace(&mut self.growing[cpu], next));
        }
        self.counts.full += self.taken as f64 / CAPACITY as f64;
        self.counts.steps += 1;
        stored
    }

    fn exit(&mut self) {
        let process = self.sleeping.swap_remove(self.random.below(self.sleeping.len()));
        self.slots.free_many(&process.pages).expect("its own slots");
        self.taken -= process.pages.len();
        self.operations += process.pages.len() as u64;
        self.limit = limit(&mut self.random);
    }

    /// Stores a folio, or its pages where it finds no place, and says how many pages.
    fn folio(&mut self, cpu: usize) -> usize {
        self.counts.attempts += 1;
        self.operations += 1;
        let Some(first) = self.slots.alloc(FOLIO, cpu) else {
            self.counts.failures += 1;
            return (0..FOLIO.pages()).map(|_| self.page(cpu)).sum();
        };
        let process = &mut self.growing[cpu];
        process.pages.extend((0..FOLIO.pages() as u32).map(|n| first.offset(n)));
        process.stored += FOLIO.pages();
        self.taken += FOLIO.pages();
        FOLIO.pages()
    }

    fn page(&mut self, cpu: usize) -> usize {
        self.operations += 1;
        let slot = self.slots.alloc(Order::PAGE, cpu).expect("the device is never full");
        let process = &mut self.growing[cpu];
        process.pages.push(slot);
        process.stored += 1;
        self.taken += 1;
        1
    }

    fn get_back(&mut self, cpu: usize) {
        let process = &mut self.growing[cpu];
        if process.pages.is_empty() {
            return;
        }
        let at = self.random.below(process.pages.len());
        self.slots.free(process.pages.swap_remove(at), 1).expect("its own slot");
        self.taken -= 1;
        self.operations += 1;
    }
}

impl Process {
    fn new(random: &mut Random) -> Self {
        let size = SIZES.0 + random.below(SIZES.1 - SIZES.0);
        Self { size, stored: 0, pages: Vec::new() }
    }
}

fn limit(random: &mut Random) -> usize {
    (CAPACITY as f64 * (FULL.0 + (FULL.1 - FULL.0) * random.unit())) as usize
}
