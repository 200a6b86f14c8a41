//! A round: both modes in turns, and how they are timed.

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
use std::ops::Range;
use std::path::PathBuf;
use std::sync::RwLock;
use std::time::{Duration, Instant as Clock};
use std::{env, fs, thread};
use xxhash_rust::xxh3::xxh3_64;

/// Different pages, as many as the largest folio has.
const PAGES: usize = 512;

/// Pages that a thread stores in a round: these, as often with the one mode as with the other.
const ROUND: usize = 8 * PAGES;

/// Pages that a mode has in a turn, or one larger folio: it lasts half a millisecond, so that what else
/// the machine does falls on both.
const TURN: usize = 64;

/// Rounds of a lot, in which bookkeeping is measured by itself.
const LOT_ROUNDS: usize = 7;

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

impl Cell {
    /// Folios in one call.
    fn at_once(self) -> usize {
        (BATCH / self.folio).max(1)
    }

    /// The mode of call number `n`: turn by turn another, and the next time with the same pages too.
    fn mode(self, n: usize) -> Mode {
        let pages = TURN.max(self.folio);
        let turn = n * self.at_once() * self.folio / pages;
        let turns = PAGES / pages;
        Mode::ALL[(turn % turns + turn / turns) % Mode::ALL.len()]
    }

    /// Calls in a round, and in a turn of it.
    fn calls(self) -> usize {
        ROUND / self.folio / self.at_once()
    }

    fn calls_in_turn(self) -> usize {
        (TURN / self.folio / self.at_once()).max(1)
    }

    /// Calls in the order in which they read: in none, but turn by turn the same mode.
    fn order(self, seed: u64) -> Vec<usize> {
        let mut random = Random::new(seed);
        let [single, batch] = Mode::ALL.map(|mode| {
            let mut of: Vec<usize> = (0..self.calls()).filter(|n| self.mode(*n) == mode).collect();
            random.shuffle(&mut of);
            of
        });
        let calls = self.calls_in_turn();
        let turns = single.chunks(calls).zip(batch.chunks(calls));
        turns.flat_map(|(single, batch)| [single, batch]).flatten().copied().collect()
    }
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
    fn folio(&self, cell: Cell, n: usize) -> Range<usize> {
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
    pub(super) fn new() -> Self {
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
        median(self.ratios(op))
    }

    /// How far that may be off: the middle half of the rounds spans so much, over the root of their number.
    pub(super) fn ratio_error(&self, op: Op) -> f64 {
        let mut ratios = self.ratios(op);
        ratios.sort_by(f64::total_cmp);
        let quarter = ratios.len() / 4;
        let span = ratios[ratios.len() - 1 - quarter] - ratios[quarter];
        span / (ratios.len() as f64).sqrt()
    }

    fn ratios(&self, op: Op) -> Vec<f64> {
        let [single, batch] = &self.0[op as usize];
        single.iter().zip(batch).map(|(single, batch)| batch / single).collect()
    }

    pub(super) fn extend(&mut self, more: Self) {
        for (all, more) in self.0.iter_mut().flatten().zip(more.0.into_iter().flatten()) {
            all.extend(more);
        }
    }

    /// One more round.
    fn push(&mut self, round: Round) {
        for (all, times) in self.0.iter_mut().zip(round) {
            all.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        }
    }
}

/// Slots, pool and index alone, in `lots` stores one after the other, if there is `time`. What a copy takes
/// depends on which frames it goes to, by as much as is to be measured; so a lot has other frames, for the
/// store and for what is done plainly.
pub(super) fn books(
    pages: &SizedPages<'_>,
    engines: &Engines,
    cell: Cell,
    lots: usize,
    time: Duration,
) -> Result<Times, BatchError> {
    let mut times = Times::new();
    let begin = Clock::now();
    for lot in 0..lots {
        if lot > 0 && begin.elapsed() > time {
            break;
        }
        let bench = Bench::new(pages, engines, cell.threads)?;
        times.extend(bench.books(cell, LOT_ROUNDS)?);
    }
    Ok(times)
}

/// What a round takes, nanoseconds a page: of both operations, of both modes.
type Round = [[f64; 2]; 2];

/// What some work takes of this thread's time on the CPU, in nanoseconds.
fn timed(work: impl FnOnce()) -> f64 {
    let begin = cpu_time(ClockId::ThreadCPUTime);
    work();
    (cpu_time(ClockId::ThreadCPUTime) - begin).as_nanos() as f64
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
        let capacity_pages = 2 * threads * ROUND;
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
        self.round(&mut workers)?;
        let is_right = workers.iter().all(|worker| worker.out == self.pages.bytes);
        if !is_right {
            return Err(BatchError::Wrong { codec });
        }
        let mut times = Times::new();
        let begin = Clock::now();
        while times.rounds() < rounds && (times.rounds() == 0 || begin.elapsed() < time) {
            times.push(self.round(&mut workers)?);
        }
        Ok(times)
    }

    /// Slots, pool and index alone: some rounds, of a store of their own, and of copies of their own.
    fn books(&self, cell: Cell, rounds: usize) -> Result<Times, BatchError> {
        let engine = || Instant { sizes: &self.pages.sizes, next: 0 };
        let mut workers: Vec<_> = (0..cell.threads)
            .map(|n| {
                let worker = Worker::new(self.pages, cell, n, engine());
                (worker, Plainly::new(self.pages, engine()))
            })
            .collect();
        let mut times = Times::new();
        for round in 0..=rounds {
            let time = at_once(&mut workers, |(worker, plainly)| {
                worker.books(plainly, &self.store, round)
            })?;
            // In the first, memory is touched for the first time.
            if round > 0 {
                times.push(time);
            }
        }
        Ok(times)
    }

    /// A round of all threads.
    fn round<E: Engine + Send>(&self, workers: &mut [Worker<'_, E>]) -> Result<Round, BatchError> {
        at_once(workers, |worker| worker.round(&self.store))
    }
}

/// A round, figure by figure.
fn each(figure: impl Fn(usize, usize) -> f64) -> Round {
    [0, 1].map(|op| [0, 1].map(|mode| figure(op, mode)))
}

/// Has all workers begin at the same time; the mean of what they tell.
///
/// # Errors
/// When a thread cannot be had; those that were do nothing then.
fn at_once<W: Send>(
    workers: &mut [W],
    work: impl Fn(&mut W) -> Round + Sync,
) -> Result<Round, BatchError> {
    let count = workers.len();
    // Shut until all are there; whether they are.
    let (gate, work) = (RwLock::new(false), &work);
    let times: Vec<Round> = thread::scope(|scope| {
        let mut all = gate.write().expect("nobody panics with it");
        let begin = |worker| {
            let gate = &gate;
            let wait_and_work = move || {
                let all = *gate.read().expect("nobody panics with it");
                all.then(|| work(worker))
            };
            let thread = thread::Builder::new().spawn_scoped(scope, wait_and_work);
            thread.map_err(|why| BatchError::Thread { threads: count, why })
        };
        let threads: Vec<_> = workers.iter_mut().map(begin).collect::<Result<_, _>>()?;
        *all = true;
        drop(all);
        let times = threads.into_iter().map(|thread| thread.join().expect("a worker ended"));
        Ok::<_, BatchError>(times.map(|time| time.expect("all were there")).collect())
    })?;
    Ok(each(|op, mode| times.iter().map(|time| time[op][mode]).sum::<f64>() / count as f64))
}

/// What one thread needs.
struct Worker<'p, E> {
    pages: &'p SizedPages<'p>,
    cell: Cell,
    how: How,
    scratch: Scratch<E>,
    slots: Vec<Result<SlotId, PutError>>,
    /// The orders in which calls put and get.
    orders: [Vec<usize>; 2],
    /// Where pages are read to: each where it lies in `pages`.
    out: Vec<u8>,
}

impl<'p, E: Engine> Worker<'p, E> {
    fn new(pages: &'p SizedPages<'p>, cell: Cell, number: usize, engine: E) -> Self {
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
            slots: vec![Err(PutError::OutOfSlots); ROUND / cell.folio],
            orders: [(0..cell.calls()).collect(), cell.order(number as u64 + 1)],
            out: pages.bytes.to_vec(),
        }
    }

    /// Stores the pages, reads them, frees them: what the first two take.
    fn round(&mut self, store: &Store<Plain>) -> Round {
        let round =
            self.in_turns(|worker, op, _, turn, mode| timed(|| worker.work(store, op, turn, mode)));
        self.free(store);
        round
    }

    /// The same, less what the pages of each turn take without slots, pool and index: right before it or
    /// right after it, as often the one as the other.
    fn books(&mut self, plainly: &mut Plainly<'p, E>, store: &Store<Plain>, round: usize) -> Round {
        let cell = self.cell;
        let round = self.in_turns(|worker, op, n, turn, mode| {
            let mut rest = || timed(|| plainly.work(cell, op, turn, mode));
            let mut less = 0.0;
            let is_before = is_plain_first(n, round);
            if is_before {
                less = rest();
            }
            let all = timed(|| worker.work(store, op, turn, mode));
            if !is_before {
                less = rest();
            }
            all - less
        });
        self.free(store);
        round
    }

    /// Has all turns done, of both operations, by `turn`, which tells what each took: given the operation,
    /// the number of the turn, its calls and their mode.
    fn in_turns(
        &mut self,
        mut turn: impl FnMut(&mut Self, Op, usize, &[usize], Mode) -> f64,
    ) -> Round {
        let orders = std::mem::take(&mut self.orders);
        let round = Op::ALL.map(|op| {
            let mut times = [0.0; 2];
            let turns = orders[op as usize].chunks(self.cell.calls_in_turn());
            for (n, calls) in turns.enumerate() {
                let mode = self.cell.mode(calls[0]);
                times[mode as usize] += turn(self, op, n, calls, mode);
            }
            // Each mode has half of the pages.
            times.map(|time| time / (ROUND / 2) as f64)
        });
        self.orders = orders;
        round
    }

    fn work(&mut self, store: &Store<Plain>, op: Op, calls: &[usize], mode: Mode) {
        for call in calls {
            match op {
                Op::Put => self.put(store, *call, mode),
                Op::Get => self.get(store, *call, mode),
            }
        }
    }

    /// The folios of a call.
    fn folios(&self, call: usize) -> Range<usize> {
        call * self.cell.at_once()..(call + 1) * self.cell.at_once()
    }

    fn put(&mut self, store: &Store<Plain>, call: usize, mode: Mode) {
        let which = self.folios(call);
        let mut folios: [&[u8]; BATCH] = [&[]; BATCH];
        let folios = &mut folios[..which.len()];
        for (n, folio) in which.clone().zip(&mut *folios) {
            *folio = &self.pages.bytes[self.pages.folio(self.cell, n)];
        }
        let slots = &mut self.slots[which];
        match mode {
            Mode::Batch => store.put(&mut self.scratch, self.how, folios, slots),
            Mode::Single => folios.iter().zip(slots).for_each(|(folio, slot)| {
                let slot = std::slice::from_mut(slot);
                store.put_one_by_one(&mut self.scratch, self.how, &[folio], slot);
            }),
        }
    }

    fn get(&mut self, store: &Store<Plain>, call: usize, mode: Mode) {
        let folios = self.folios(call);
        let first = self.slots[folios.start].expect("stored");
        let pages = self.cell.folio as u32;
        let is_row = (0..)
            .zip(&self.slots[folios.clone()])
            .all(|(n, slot)| *slot == Ok(first.offset(n * pages)));
        let start = self.pages.folio(self.cell, folios.start).start;
        if mode == Mode::Batch && is_row {
            let out = &mut self.out[start..][..folios.len() * self.cell.folio * PAGE_SIZE];
            store.get(&mut self.scratch, first, out).expect("stored");
            return;
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

    fn free(&self, store: &Store<Plain>) {
        for slot in &self.slots {
            let first = slot.expect("there is room, and every page compresses");
            for at in (0..self.cell.folio).step_by(64) {
                store.free_run(first.offset(at as u32), self.cell.folio.min(64), u64::MAX);
            }
        }
    }
}

/// Does with pages what a store does, without slots, pool and index: looks for fills, compresses, hashes, and
/// copies each object to where it is to lie.
struct Plainly<'p, E> {
    pages: &'p SizedPages<'p>,
    engine: E,
    /// Compressed bytes, before they are copied.
    staged: Vec<u8>,
    /// The objects of a round, each in its place, as a pool would have them.
    objects: Vec<u8>,
    /// Where those of the first [`PAGES`] pages begin, and end.
    places: Vec<usize>,
    /// Where pages are read to.
    out: Vec<u8>,
}

impl<'p, E: Engine> Plainly<'p, E> {
    fn new(pages: &'p SizedPages<'p>, engine: E) -> Self {
        let mut places = vec![0];
        for size in &pages.sizes {
            places.push(places[places.len() - 1] + size.next_multiple_of(4) + 4);
        }
        Self {
            pages,
            engine,
            staged: vec![1; BATCH * FITS_IN],
            objects: vec![0; places[PAGES] * (ROUND / PAGES)],
            places,
            out: pages.bytes.to_vec(),
        }
    }

    /// The pages of these calls: so many together as the store puts there.
    fn work(&mut self, cell: Cell, op: Op, calls: &[usize], mode: Mode) {
        let pages = cell.at_once() * cell.folio;
        let together = if mode == Mode::Batch { BATCH } else { 1 };
        for call in calls {
            for first in (call * pages..(call + 1) * pages).step_by(together) {
                match op {
                    Op::Put => self.put(first..first + together),
                    Op::Get => (first..first + together).for_each(|page| self.get(page)),
                }
            }
        }
    }

    fn put(&mut self, pages: Range<usize>) {
        let mut sizes = [0; BATCH];
        for ((n, staged), size) in
            pages.clone().zip(self.staged.chunks_exact_mut(FITS_IN)).zip(&mut sizes)
        {
            let page = &self.pages.bytes[n % PAGES * PAGE_SIZE..][..PAGE_SIZE];
            black_box(page[8..] == page[..PAGE_SIZE - 8]);
            let outcome = self.engine.run(&mut Io::compress(self.pages.codec, page, staged));
            black_box(xxh3_64(page));
            *size = outcome.result.expect("it did before");
        }
        if pages.len() > 1 {
            // All at once, as the pool begins to fetch where objects of a batch will lie.
            pages.clone().for_each(|page| _ = black_box(self.objects[self.at(page)]));
        }
        for ((n, staged), size) in pages.zip(self.staged.chunks_exact(FITS_IN)).zip(sizes) {
            let at = self.at(n);
            self.objects[at..][..size].copy_from_slice(&staged[..size]);
        }
    }

    fn get(&mut self, n: usize) {
        let at = self.at(n);
        let object = &self.objects[at..][..self.pages.sizes[n % PAGES]];
        let page = &mut self.out[n % PAGES * PAGE_SIZE..][..PAGE_SIZE];
        let outcome = self.engine.run(&mut Io::decompress(self.pages.codec, object, page));
        outcome.result.expect("it was made of a page");
        black_box(xxh3_64(page));
    }

    /// Where the object of a page of the round begins.
    fn at(&self, page: usize) -> usize {
        page / PAGES * self.places[PAGES] + self.places[page % PAGES]
    }
}

/// Whether the pages of this turn of this round go plainly first: in half of the turns of each mode, and in every
/// second round.
fn is_plain_first(turn: usize, round: usize) -> bool {
    (turn / Mode::ALL.len() + round).is_multiple_of(2)
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_has_each_page_as_often_as_the_other() {
        for folio in super::super::FOLIOS {
            let cell = Cell { folio, threads: 1 };
            let call = cell.at_once() * folio;
            let order = cell.order(1);
            let mut calls = order.clone();
            calls.sort_unstable();
            assert!(calls.into_iter().eq(0..ROUND / call), "all calls read, folios of {folio}");
            let mut had = vec![[0; 2]; PAGES];
            for n in order {
                (n * call..(n + 1) * call)
                    .for_each(|page| had[page % PAGES][cell.mode(n) as usize] += 1);
            }
            assert!(had.iter().all(|had| *had == [ROUND / PAGES / 2; 2]), "folios of {folio}");
        }
    }

    #[test]
    fn whoever_is_second_is_so_in_half_of_the_turns_of_each_mode() {
        for folio in super::super::FOLIOS {
            let cell = Cell { folio, threads: 1 };
            for order in [(0..cell.calls()).collect(), cell.order(1)] {
                let mut plain_first = [0_isize; 2];
                for (n, calls) in order.chunks(cell.calls_in_turn()).enumerate() {
                    assert!(calls.iter().all(|call| cell.mode(*call) == cell.mode(calls[0])));
                    assert_ne!(is_plain_first(n, 0), is_plain_first(n, 1));
                    let change = if is_plain_first(n, 0) { 1 } else { -1 };
                    plain_first[cell.mode(calls[0]) as usize] += change;
                }
                assert_eq!(plain_first, [0; 2], "folios of {folio}");
            }
        }
    }
}
