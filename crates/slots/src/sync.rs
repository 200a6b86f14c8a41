//! The locks, and what waiting for them took.
//!
//! Our clusters have a [`LockWord`], those of the twins and the twins' devices a [`Mutex`].

#[cfg(not(loom))]
pub(crate) use crate::lock_word::LockWord;
#[cfg(loom)]
pub(crate) use crate::lock_word::model::LockWord;
pub(crate) use octavo_page::sync::{Mutex, MutexGuard};

// Figures order nothing, so a model need not explore them.
use core::sync::atomic::{AtomicU64, Ordering};

/// How often and how long threads waited for the locks of an allocator.
pub(crate) struct Waits {
    clock: fn() -> u64,
    count: AtomicU64,
    ns: AtomicU64,
}

impl Waits {
    pub(crate) fn new(clock: fn() -> u64) -> Self {
        Self { clock, count: AtomicU64::new(0), ns: AtomicU64::new(0) }
    }

    /// Takes a lock. The clock is read only where another thread holds it.
    #[inline]
    pub(crate) fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        mutex.try_lock().unwrap_or_else(|| self.wait(|| mutex.lock()))
    }

    /// Takes a state out of its word, likewise.
    #[inline]
    pub(crate) fn take(&self, word: &LockWord) -> u64 {
        word.try_take().unwrap_or_else(|| self.wait(|| word.take()))
    }

    #[cold]
    fn wait<R>(&self, wait: impl FnOnce() -> R) -> R {
        let begin = (self.clock)();
        let got = wait();
        self.ns.fetch_add((self.clock)().saturating_sub(begin), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        got
    }

    /// Waits since the start, and the nanoseconds of all of them together.
    pub(crate) fn so_far(&self) -> (u64, u64) {
        (self.count.load(Ordering::Relaxed), self.ns.load(Ordering::Relaxed))
    }
}
