//! Turns of both modes, and how they are timed.

use super::BatchError;
use crate::host::cpu_time;
use crate::random::Random;
use octavo_accel::{
    AnyEngine, By, Capabilities, Engine, Engines, Full, Io, Operation, Outcome, Ticket,
};
use octavo_codec::{Codec, Workspace};
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_pool::{ChainLength, Config as PoolConfig, Plain};
use octavo_store::{Config, How, PutError, Scratch, Store};
use rustix::time::ClockId;
use serde::Serialize;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant as Clock};
use std::{env, fs, thread};
use xxhash_rust::xxh3::xxh3_64;

/// Different pages, as many as the largest folio has.
const PAGES: usize = 512;

/// Pages that a thread stores in a turn: these, several times.
const TURN: usize = 8 * PAGES;

/// Pages in one call, where folios are smaller.
const BATCH: usize = 16;

/// The most bytes of a compressed page.
const FITS_IN: usize = PAGE_SIZE / 8 * 7;

/// Into the store or out of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    Put,
    Get,
}

impl Op {
    pub(super) const ALL: [Self; 2] = [Self::Put, Self::Get];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
        }
    }
}

/// How pages go there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    Single,
    Batch,
}

impl Mode {
    pub(super) const ALL: [Self; 2] = [Self::Single, Self::Batch];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Batch => "batch",
        }
    }
}

/// What is measured at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    /// Pages of a folio.
    pub(super) folio: usize,
    pub(super) threads: usize,
}

/// [`PAGES`] pages, none of one word, which compress with every codec.
pub(super) struct Pages(Vec<u8>);

impl Pages {
    /// The pages of `files`, or of this executable, as many as are used, from all over.
    pub(super) fn read(files: &[PathBuf]) -> Result<Self, BatchError> {
        let exe = env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
        let files = if files.is_empty() { vec![exe] } else { files.to_vec() };
        let mut bytes = Vec::new();
        for file in files {
            let more = fs::read(&file).map_err(|why| BatchError::Read { file, why })?;
            bytes.extend_from_slice(&more[..more.len() / PAGE_SIZE * PAGE_SIZE]);
        }
        let codecs = super::CODECS.map(|name| name.parse::<Codec>().expect("a codec"));
        let mut workspace = Workspace::new(&codecs);
        let mut room = vec![0; FITS_IN];
        let mut compresses = |page: &&[u8]| {
            page[8..] != page[..PAGE_SIZE - 8]
                && codecs.iter().all(|codec| workspace.compress(*codec, page, &mut room).is_ok())
        };
        let all: Vec<&[u8]> =
            bytes.chunks_exact(PAGE_SIZE).filter(|page| compresses(page)).collect();
        if all.len() < PAGES {
            return Err(BatchError::TooFew { pages: all.len(), least: PAGES });
        }
        let step = all.len() / PAGES;
        Ok(Self(all.into_iter().step_by(step).take(PAGES).flatten().copied().collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len() / PAGE_SIZE
    }

    /// The same with the sizes that `codec` gives them.
    pub(super) fn sized(&self, codec: Codec) -> SizedPages<'_> {
        let mut workspace = Workspace::new(&[codec]);
        let mut room = vec![0; FITS_IN];
        let size = |page: &[u8]| workspace.compress(codec, page, &mut room).expect("it did before");
        let sizes = self.0.chunks_exact(PAGE_SIZE).map(size).collect();
        SizedPages { bytes: &self.0, codec, sizes }
    }
}

/// Pages, and how long each is when compressed.
pub(super) struct SizedPages<'a> {
    bytes: &'a [u8],
    codec: Codec,
    sizes: Vec<usize>,
}

impl SizedPages<'_> {
    /// Bytes in over bytes out.
    pub(super) fn ratio(&self) -> f64 {
        self.bytes.len() as f64 / self.sizes.iter().sum::<usize>() as f64
    }

    /// The pages of folio number `n`, over and over.
    fn folio(&self, cell: Cell, n: usize) -> std::ops::Range<usize> {
        let start = n * cell.folio * PAGE_SIZE % self.bytes.len();
        start..start + cell.folio * PAGE_SIZE
    }
}

/// An engine that is done at once: what a unit compresses to it knows before, and what it decompresses
/// is there already.
pub(super) struct Instant<'a> {
    sizes: &'a [usize],
    next: usize,
}

impl Engine for Instant<'_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { depth: 1, unit_bytes: PAGE_SIZE, is_asynchronous: false }
    }

    fn takes(&self, _: Operation, _: Codec) -> bool {
        true
    }

    fn start(&mut self, _: &Io<'_>) -> Result<Ticket, Full> {
        Ok(Ticket::Software(By::Cpu))
    }

    fn check(&mut self, _: Ticket, io: &mut Io<'_>) -> Option<Outcome> {
        Some(self.run(io))
    }

    fn abandon(&mut self, _: Ticket) {}

    fn pause(&mut self) {}

    fn run(&mut self, io: &mut Io<'_>) -> Outcome {
        let bytes = match io.operation {
            Operation::Decompress => io.wanted,
            Operation::Compress => {
                self.next += 1;
                self.sizes[(self.next - 1) % self.sizes.len()]
            }
        };
        Outcome { result: Ok(bytes), by: By::Cpu }
    }
}

/// Nanoseconds a page, round by round: of both operations, of both modes.
pub(super) struct Times([[Vec<f64>; 2]; 2]);

impl Times {
    fn new() -> Self {
        Self([const { [Vec::new(), Vec::new()] }; 2])
    }

    pub(super) fn rounds(&self) -> usize {
        self.0[0][0].len()
    }

    pub(super) fn median(&self, op: Op, mode: Mode) -> f64 {
        median(self.0[op as usize][mode as usize].clone())
    }

    /// Of batches over single ones: the median of each round's.
    pub(super) fn ratio(&self, op: Op) -> f64 {
        let [single, batch] = &self.0[op as usize];
        median(single.iter().zip(batch).map(|(single, batch)| batch / single).collect())
    }

    fn push(&mut self, mode: Mode, times: [f64; 2]) {
        for (op, time) in times.into_iter().enumerate() {
            self.0[op][mode as usize].push(time);
        }
    }
}

/// A store, and all that turns on it need.
pub(super) struct Bench<'a> {
    pages: &'a SizedPages<'a>,
    engines: &'a Engines,
    store: Store<Plain>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        pages: &'a SizedPages<'a>,
        engines: &'a Engines,
        threads: usize,
    ) -> Result<Self, BatchError> {
        let no_memory = |why: &dyn std::fmt::Display| BatchError::Memory(why.to_string());
        let capacity_pages = 2 * threads * TURN;
        let pool = PoolConfig {
            chain: ChainLength::MAX,
            max_object: Unit::MAX.bytes(),
            max_objects: 2 * capacity_pages,
        };
        let arena = Plain::new(capacity_pages).ok_or_else(|| no_memory(&"its arena"))?;
        let config = Config { capacity_pages, pool, cpus: threads, seed: 1 };
        let store = Store::new(arena, config).map_err(|why| no_memory(&why))?;
        Ok(Self { pages, engines, store })
    }

    /// Everything, with the codec.
    pub(super) fn whole(
        &mut self,
        cell: Cell,
        rounds: usize,
        time: Duration,
    ) -> Result<Times, BatchError> {
        let codec = self.pages.codec;
        let engine = |cpu| self.engines.engine(&[codec], Unit::K4, cpu);
        let mut workers: Vec<Worker<AnyEngine>> =
            (0..cell.threads).map(|n| Worker::new(self.pages, cell, n, engine(n))).collect();
        self.turn(&mut workers, Mode::Batch);
        let is_right = workers.iter().all(|worker| worker.out == self.pages.bytes);
        if !is_right {
            return Err(BatchError::Wrong { codec });
        }
        let mut times = Times::new();
        let begin = Clock::now();
        while times.rounds() < rounds && (times.rounds() == 0 || begin.elapsed() < time) {
            for mode in Mode::ALL {
                times.push(mode, self.turn(&mut workers, mode));
            }
        }
        Ok(times)
    }

    /// Slots, pool and index alone.
    pub(super) fn books(
        &mut self,
        cell: Cell,
        rounds: usize,
        time: Duration,
    ) -> Result<Times, BatchError> {
        let engine = || Instant { sizes: &self.pages.sizes, next: 0 };
        let mut workers: Vec<Worker<Instant<'_>>> =
            (0..cell.threads).map(|n| Worker::new(self.pages, cell, n, engine())).collect();
        self.turn(&mut workers, Mode::Batch);
        let mut times = Times::new();
        let begin = Clock::now();
        while times.rounds() < rounds && (times.rounds() == 0 || begin.elapsed() < time) {
            for mode in Mode::ALL {
                let all = self.turn(&mut workers, mode);
                let others = at_once(&mut workers, |worker| worker.others(mode));
                times.push(mode, [all[0] - others[0], all[1] - others[1]]);
            }
        }
        Ok(times)
    }

    /// A turn of all threads: nanoseconds a page.
    fn turn<E: Engine + Send>(&self, workers: &mut [Worker<'_, E>], mode: Mode) -> [f64; 2] {
        at_once(workers, |worker| worker.turn(&self.store, mode))
    }
}

/// Has all workers begin at the same time; the mean of what they tell.
fn at_once<'p, E: Engine + Send>(
    workers: &mut [Worker<'p, E>],
    work: impl Fn(&mut Worker<'p, E>) -> [f64; 2] + Sync,
) -> [f64; 2] {
    let count = workers.len();
    let (barrier, work) = (Barrier::new(count), &work);
    let times: Vec<[f64; 2]> = thread::scope(|scope| {
        let begin = |worker| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                work(worker)
            })
        };
        let threads: Vec<_> = workers.iter_mut().map(begin).collect();
        threads.into_iter().map(|thread| thread.join().expect("a worker ended")).collect()
    });
    [0, 1].map(|op| times.iter().map(|time| time[op]).sum::<f64>() / count as f64)
}

/// What one thread needs.
struct Worker<'p, E> {
    pages: &'p SizedPages<'p>,
    cell: Cell,
    how: How,
    scratch: Scratch<E>,
    slots: Vec<Result<SlotId, PutError>>,
    /// The order in which folios are read: groups of them, in none.
    order: Vec<usize>,
    /// Where pages are read to: each where it lies in `pages`.
    out: Vec<u8>,
    /// Where compressed bytes are copied from and to, when they are copied and nothing else.
    staged: Vec<u8>,
    copies: Vec<u8>,
}

impl<'p, E: Engine> Worker<'p, E> {
    fn new(pages: &'p SizedPages<'p>, cell: Cell, number: usize, engine: E) -> Self {
        let folios = TURN / cell.folio;
        let mut order: Vec<usize> = (0..folios / Self::folios_at_once(cell)).collect();
        Random::new(number as u64 + 1).shuffle(&mut order);
        let copies = pages.sizes.iter().sum::<usize>() * (TURN / PAGES);
        Self {
            pages,
            cell,
            how: How {
                codec: pages.codec,
                unit: Unit::K4,
                cpu: number,
                fits_in: FITS_IN,
                refusal_bytes: 0,
            },
            scratch: Scratch::with(engine),
            slots: vec![Err(PutError::OutOfSlots); folios],
            order,
            out: pages.bytes.to_vec(),
            staged: vec![1; BATCH * FITS_IN],
            copies: vec![0; copies],
        }
    }

    /// Folios in one call.
    fn folios_at_once(cell: Cell) -> usize {
        (BATCH / cell.folio).max(1)
    }

    /// Stores the pages, reads them, frees them: nanoseconds a page of the first two.
    fn turn(&mut self, store: &Store<Plain>, mode: Mode) -> [f64; 2] {
        let start = cpu_time(ClockId::ThreadCPUTime);
        self.put(store, mode);
        let stored = cpu_time(ClockId::ThreadCPUTime);
        self.get(store, mode);
        let read = cpu_time(ClockId::ThreadCPUTime);
        for slot in &self.slots {
            let first = slot.expect("there is room, and every page compresses");
            for at in (0..self.cell.folio).step_by(64) {
                store.free_run(first.offset(at as u32), self.cell.folio.min(64), u64::MAX);
            }
        }
        [stored - start, read - stored].map(a_page)
    }

    fn put(&mut self, store: &Store<Plain>, mode: Mode) {
        let at_once = Self::folios_at_once(self.cell);
        let mut folios: [&[u8]; BATCH] = [&[]; BATCH];
        for (n, slots) in self.slots.chunks_mut(at_once).enumerate() {
            let folios = &mut folios[..slots.len()];
            for (i, folio) in folios.iter_mut().enumerate() {
                *folio = &self.pages.bytes[self.pages.folio(self.cell, n * at_once + i)];
            }
            match mode {
                Mode::Batch => store.put(&mut self.scratch, self.how, folios, slots),
                Mode::Single => folios.iter().zip(slots).for_each(|(folio, slot)| {
                    let slot = std::slice::from_mut(slot);
                    store.put_one_by_one(&mut self.scratch, self.how, &[folio], slot);
                }),
            }
        }
    }

    fn get(&mut self, store: &Store<Plain>, mode: Mode) {
        let at_once = Self::folios_at_once(self.cell);
        for &group in &self.order {
            let folios = group * at_once..(group + 1) * at_once;
            let first = self.slots[folios.start].expect("stored");
            let pages = self.cell.folio as u32;
            let is_row = (0..)
                .zip(&self.slots[folios.clone()])
                .all(|(n, slot)| *slot == Ok(first.offset(n * pages)));
            let start = self.pages.folio(self.cell, folios.start).start;
            if mode == Mode::Batch && is_row {
                let out = &mut self.out[start..][..folios.len() * self.cell.folio * PAGE_SIZE];
                store.get(&mut self.scratch, first, out).expect("stored");
                continue;
            }
            for folio in folios {
                let slot = self.slots[folio].expect("stored");
                let out = &mut self.out[self.pages.folio(self.cell, folio)];
                match mode {
                    Mode::Batch => store.get(&mut self.scratch, slot, out),
                    Mode::Single => store.get_one_by_one(&mut self.scratch, slot, out),
                }
                .expect("stored");
            }
        }
    }

    /// What a turn does beside slots, pool, index and codec, in the same order: looks for fills, hashes,
    /// copies, of so many pages together; hashes again.
    fn others(&mut self, mode: Mode) -> [f64; 2] {
        let together = if mode == Mode::Batch { BATCH } else { 1 };
        let start = cpu_time(ClockId::ThreadCPUTime);
        let mut rest = &mut self.copies[..];
        for first in (0..TURN).step_by(together) {
            for n in first..first + together {
                let page = &self.pages.bytes[n % PAGES * PAGE_SIZE..][..PAGE_SIZE];
                black_box(page[8..] == page[..PAGE_SIZE - 8]);
                black_box(xxh3_64(page));
            }
            for n in 0..together {
                let size = self.pages.sizes[(first + n) % PAGES];
                let (to, behind) = rest.split_at_mut(size);
                to.copy_from_slice(&self.staged[n * FITS_IN..][..size]);
                rest = behind;
            }
        }
        let stored = cpu_time(ClockId::ThreadCPUTime);
        let at_once = Self::folios_at_once(self.cell);
        for &group in &self.order {
            for folio in group * at_once..(group + 1) * at_once {
                let folio = &self.out[self.pages.folio(self.cell, folio)];
                folio.chunks_exact(PAGE_SIZE).for_each(|page| _ = black_box(xxh3_64(page)));
            }
        }
        let read = cpu_time(ClockId::ThreadCPUTime);
        [stored - start, read - stored].map(a_page)
    }
}

fn a_page(time: Duration) -> f64 {
    time.as_nanos() as f64 / TURN as f64
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
