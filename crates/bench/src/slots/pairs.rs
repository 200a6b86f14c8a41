//! Pairs of one free and one alloc, by threads that share a device.
//!
//! The device is filled to a share by all threads in turns, then each thread gives back one of its
//! folios and takes another, again and again, for as long as a round lasts. Which folios go is chosen for
//! some pairs ahead, for all allocators: a thread's list of folios is larger than a cache, and each locked
//! instruction waits for all memory that was asked for before it. So what the list takes is waited for once
//! in so many pairs, and not in the middle of what is measured.

use super::{Pattern, Row, SlotsError, round};
use crate::host::cpu_time;
use crate::random::Random;
use octavo_page::{Order, SlotId};
use octavo_slots::twins::{Allocator, OneLock, Series, SharedWork};
use octavo_slots::{Config, Slots};
use rustix::time::ClockId;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// Rounds that count. One more goes before: it wears the order in off which the device was filled.
pub const ROUNDS: usize = 9;

const ROUND: Duration = Duration::from_millis(25);

/// Pairs between two looks at whether the round is over, which are chosen together.
const STRIDE: usize = 64;

/// A cell of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub capacity: usize,
    pub pattern: Pattern,
    pub order: Order,
    /// Percent of the slots that are taken.
    pub fill: usize,
    pub threads: usize,
}

/// All allocators in one cell, in turns.
pub(super) fn cell(plan: &Plan) -> Result<[Row; 3], SlotsError> {
    let mut octavo = Side::<Slots>::new(plan);
    let mut series = Side::<Series>::new(plan);
    let mut one_lock = Side::<OneLock>::new(plan);
    for counts in (0..=ROUNDS).map(|round| round > 0) {
        octavo.round(plan, counts)?;
        series.round(plan, counts)?;
        one_lock.round(plan, counts)?;
    }
    Ok([octavo.row(plan), series.row(plan), one_lock.row(plan)])
}

/// Nanoseconds since the first call.
pub(super) fn clock() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// One allocator and what its threads hold.
struct Side<A> {
    slots: A,
    threads: Vec<Thread>,
    pairs_per_s: Vec<f64>,
    pairs: u64,
    failures: u64,
    seconds: f64,
    /// Of these, what the threads had a processor.
    cpu_seconds: f64,
    work: SharedWork,
}

/// On cache lines of its own: a thread writes to it with every pair.
#[repr(align(128))]
struct Thread {
    cpu: usize,
    random: Random,
    held: Vec<SlotId>,
    /// The oldest of what is held, in patterns that give it back first.
    oldest: usize,
    pairs: u64,
    failures: u64,
    cpu_time: Duration,
    /// When it ran in the last round, in nanoseconds of [`clock`].
    ran: Range<u64>,
}

impl<A: Allocator> Side<A> {
    fn new(plan: &Plan) -> Self {
        let config = Config { capacity: plan.capacity, cpus: plan.threads, discards: false, clock };
        let slots = A::new(config).expect("a device of a valid size");
        let mut threads: Vec<_> = (0..plan.threads).map(Thread::new).collect();
        for _ in 0..plan.capacity / plan.order.pages() * plan.fill / 100 / plan.threads {
            for thread in &mut threads {
                thread.held.extend(slots.alloc(plan.order, thread.cpu));
            }
        }
        let work = slots.shared_work();
        Self {
            slots,
            threads,
            pairs_per_s: Vec::new(),
            pairs: 0,
            failures: 0,
            seconds: 0.0,
            cpu_seconds: 0.0,
            work,
        }
    }

    fn round(&mut self, plan: &Plan, counts: bool) -> Result<(), SlotsError> {
        let (stop, start) = (AtomicBool::new(false), RwLock::new(()));
        let (stop, start, slots) = (&stop, &start, &self.slots);
        thread::scope(|scope| {
            // Nobody begins while this is held.
            let hold = start.write();
            for thread in &mut self.threads {
                let work = move || {
                    drop(start.read());
                    let (begin, since) = (cpu_time(ClockId::ThreadCPUTime), clock());
                    thread.work(slots, plan, stop);
                    thread.cpu_time = cpu_time(ClockId::ThreadCPUTime) - begin;
                    thread.ran = since..clock();
                };
                if let Err(why) = thread::Builder::new().spawn_scoped(scope, work) {
                    stop.store(true, Ordering::Relaxed);
                    return Err(SlotsError::Thread { threads: plan.threads, why });
                }
            }
            drop(hold);
            thread::sleep(ROUND);
            stop.store(true, Ordering::Relaxed);
            Ok(())
        })?;
        // From the first that began to the last that ended: this thread may itself wait for a processor.
        let first = self.threads.iter().map(|thread| thread.ran.start).min().unwrap_or(0);
        let last = self.threads.iter().map(|thread| thread.ran.end).max().unwrap_or(0);
        let seconds = Duration::from_nanos(last - first).as_secs_f64();
        let pairs: u64 =
            self.threads.iter_mut().map(|thread| std::mem::take(&mut thread.pairs)).sum();
        let failures: u64 =
            self.threads.iter_mut().map(|thread| std::mem::take(&mut thread.failures)).sum();
        if counts {
            self.pairs_per_s.push(pairs as f64 / seconds);
            self.pairs += pairs;
            self.failures += failures;
            self.seconds += seconds * plan.threads as f64;
            let cpu_time: Duration = self.threads.iter().map(|thread| thread.cpu_time).sum();
            self.cpu_seconds += cpu_time.as_secs_f64();
        } else {
            self.work = self.slots.shared_work();
        }
        Ok(())
    }

    fn row(mut self, plan: &Plan) -> Row {
        self.pairs_per_s.sort_by(f64::total_cmp);
        let (before, after) = (self.work, self.slots.shared_work());
        let per_1000 = |n: u64| round(n as f64 * 1000.0 / (2 * self.pairs) as f64);
        let waited = (after.waited_ns - before.waited_ns) as f64 / 1e9;
        Row {
            allocator: A::NAME,
            pattern: plan.pattern,
            mix: None,
            order: plan.order.get(),
            fill_percent: plan.fill as f64,
            threads: plan.threads,
            alloc_free_per_s: Some(self.pairs_per_s[ROUNDS / 2].round()),
            alloc_free_per_cpu_s: Some((self.pairs as f64 / self.cpu_seconds).round()),
            speed_vs_one_lock: None,
            failures: self.failures,
            attempts: self.pairs + self.failures,
            failures_vs_one_lock: None,
            device_locks_per_1000_ops: per_1000(after.acquisitions - before.acquisitions),
            moves_per_1000_ops: per_1000(after.moves - before.moves),
            waits_per_1000_ops: per_1000(after.waits - before.waits),
            waited_percent: Some(round(waited / self.seconds * 100.0)),
        }
    }
}

impl Thread {
    fn new(cpu: usize) -> Self {
        let random = Random::new(cpu as u64 + 1);
        Self {
            cpu,
            random,
            held: Vec::new(),
            oldest: 0,
            pairs: 0,
            failures: 0,
            cpu_time: Duration::ZERO,
            ran: 0..0,
        }
    }

    fn work<A: Allocator>(&mut self, slots: &A, plan: &Plan, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let go: [usize; STRIDE] = std::array::from_fn(|_| self.choose(plan.pattern));
            // Has them in the cache.
            black_box(go.iter().fold(0, |all, at| all ^ self.held[*at].get()));
            for at in go {
                self.pair(slots, plan, at);
            }
            self.pairs += STRIDE as u64;
        }
    }

    /// Gives the folio at this place of the list back and takes another.
    fn pair<A: Allocator>(&mut self, slots: &A, plan: &Plan, at: usize) {
        slots.free(self.held[at], plan.order.pages()).expect("its own folio");
        let got = loop {
            // What it gave back is still there, or another thread just took it and gives back soon.
            match slots.alloc(plan.order, self.cpu) {
                Some(first) => break first,
                None => self.failures += 1,
            }
        };
        self.held[at] = got;
    }

    /// Which of the folios goes after the last that was chosen.
    fn choose(&mut self, pattern: Pattern) -> usize {
        let by_chance = match pattern {
            Pattern::Sequential => false,
            Pattern::Mixed => self.random.below(2) == 0,
            Pattern::Random | Pattern::Processes => true,
        };
        if by_chance {
            return self.random.below(self.held.len());
        }
        self.oldest = if self.oldest + 1 < self.held.len() { self.oldest + 1 } else { 0 };
        self.oldest
    }
}
