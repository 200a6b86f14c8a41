//! From where pages came, how often and how long somebody waited.

use core::ops::Add;
// Figures order nothing, so a model need not explore them.
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What came of one of the four steps.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Step {
    /// How often it was taken.
    pub calls: u64,
    /// Pages that came of it.
    pub pages: u64,
}

/// What has happened to a reserve so far, and what it has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Single pages that were in the cache of a CPU.
    pub from_caches: u64,
    /// Step 1: from the source. What fills the caches of CPUs counts, too.
    pub source: Step,
    /// Step 2: from the reserve.
    pub reserve: Step,
    /// Step 3: from the source, which might take its time, and the reserve. A call that came up
    /// short gave back what it had got.
    pub again: Step,
    /// Step 4: in the queue.
    pub queue: Step,
    /// Pages that were given back because the call that had got them was about to wait.
    pub handed_back: u64,
    /// Nanoseconds that all waits took together, from joining the queue to having all pages.
    pub waited_ns: u64,
    /// Nanoseconds of the longest of them.
    pub longest_wait_ns: u64,
    /// Pages of the reserve that are free now, those in the caches of CPUs not counted.
    pub free: usize,
    /// Pages in the caches of CPUs now, of the reserve or the source.
    pub cached: usize,
}

impl Step {
    /// It was taken once more, and gave `pages`.
    pub(crate) fn came(&mut self, pages: usize) {
        self.calls += 1;
        self.pages += pages as u64;
    }
}

impl Add for Step {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, pages: self.pages + other.pages }
    }
}

/// A [`Step`] that is counted outside of locks.
#[derive(Default)]
pub(crate) struct StepCounter {
    calls: AtomicU64,
    pages: AtomicU64,
}

impl StepCounter {
    pub(crate) fn add(&self, pages: usize) {
        self.calls.fetch_add(1, Relaxed);
        self.pages.fetch_add(pages as u64, Relaxed);
    }

    fn get(&self) -> Step {
        Step { calls: self.calls.load(Relaxed), pages: self.pages.load(Relaxed) }
    }
}

/// What is counted outside of locks.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) source: StepCounter,
    pub(crate) again: StepCounter,
    queue: StepCounter,
    pub(crate) handed_back: AtomicU64,
    waited_ns: AtomicU64,
    longest_wait_ns: AtomicU64,
}

impl Counters {
    /// A wait in the queue for `pages` has ended.
    pub(crate) fn waited(&self, pages: usize, ns: u64) {
        self.queue.add(pages);
        self.waited_ns.fetch_add(ns, Relaxed);
        self.longest_wait_ns.fetch_max(ns, Relaxed);
    }

    /// All but what the shelf and the caches know.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            source: self.source.get(),
            again: self.again.get(),
            queue: self.queue.get(),
            handed_back: self.handed_back.load(Relaxed),
            waited_ns: self.waited_ns.load(Relaxed),
            longest_wait_ns: self.longest_wait_ns.load(Relaxed),
            ..Stats::default()
        }
    }
}
