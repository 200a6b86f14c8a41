//! A word of state that is its own lock.
//!
//! ```text
//!               take: swap HELD in             put: store
//!   a state ─────────────────────────► HELD ───────────────► a state
//!                                      │  ▲
//!                                      └──┘ the swap of another thread, which gets HELD out and waits
//! ```
//!
//! Who gets a state out has the lock; who stores the new state leaves it. That is one locked
//! instruction. A mutex needs a second one when it is left, to learn whether somebody sleeps; here
//! nobody is woken.
//!
//! # Invariants
//!
//! - A state is in the word or in the hands of one thread: never both, never neither. A swap that got
//!   HELD out changed nothing, wherever the holder's store comes: nothing lies between what a swap reads
//!   and what it writes, so the store is before both or after both.
//! - Who takes a state sees all that was written before it was put in: the swap acquires what the store
//!   releases. What the lock guards may therefore be read and written as if there were no other threads.
//! - No state is [`HELD`].
//!
//! # Waiting
//!
//! Who finds the word taken out looks again for some microseconds, many times as long as anybody has it
//! who runs. After that the holder is one that does not run, or it is telling a device something, and
//! neither ends sooner for a wake-up: the waiter sleeps for a moment and looks again. It sleeps rather
//! than yields, so that a holder of a lower priority, or of none, gets on.

#[cfg(any(not(loom), test))]
use octavo_page::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use rustix::thread::{Timespec, futex};

/// Stands in the word while its state is taken out.
const HELD: u64 = u64::MAX;

/// Looks at a word that is taken out, each 20 to 50 ns after the other, before the waiter sleeps: as many
/// as the futex mutex takes.
#[cfg(not(loom))]
const SPINS: u32 = 100;

/// Such a sleep; the kernel adds about as much.
#[cfg(not(loom))]
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// A word of state that is its own lock.
#[cfg(any(not(loom), test))]
pub(crate) struct LockWord(AtomicU64);

#[cfg(any(not(loom), test))]
impl LockWord {
    pub(crate) fn new(state: u64) -> Self {
        Self(AtomicU64::new(state))
    }

    /// Takes the state out, unless somebody has it.
    #[inline]
    pub(crate) fn try_take(&self) -> Option<u64> {
        let state = self.0.swap(HELD, Ordering::Acquire);
        (state != HELD).then_some(state)
    }

    /// Takes the state out when whoever has it has put it back.
    #[cold]
    pub(crate) fn take(&self) -> u64 {
        loop {
            self.rest();
            if let Some(state) = self.try_take() {
                return state;
            }
        }
    }

    /// Puts a state in. Only who took one out may, and once.
    #[inline]
    pub(crate) fn put(&self, state: u64) {
        debug_assert_ne!(state, HELD, "no state");
        debug_assert_eq!(self.0.load(Ordering::Relaxed), HELD, "put in by who did not take it");
        self.0.store(state, Ordering::Release);
    }

    /// [`Self::put`] for models in which no state may be lost. Loom 0.7 lets a store come between what a
    /// swap read and what it wrote ("RMW Atomicity" is left open in its `rt/atomic.rs`), so the HELD of
    /// a thread that waits may cover the state that is put in; a swap it knows to come last.
    #[cfg(loom)]
    pub(crate) fn put_last(&self, state: u64) {
        let before = self.0.swap(state, Ordering::Release);
        assert_eq!(before, HELD, "put in by who did not take it");
    }

    /// Lets time pass, less if the state is put back.
    #[cfg(not(loom))]
    fn rest(&self) {
        for _ in 0..SPINS {
            if self.0.load(Ordering::Relaxed) != HELD {
                return;
            }
            core::hint::spin_loop();
        }
        // The system call that other locks wait with, so that programs which forbid themselves most calls
        // need to allow no other. A signal ends it early, which is as well.
        let nobody_wakes = core::sync::atomic::AtomicU32::new(0);
        let _ = futex::wait(&nobody_wakes, futex::Flags::PRIVATE, 0, Some(&NAP));
    }

    #[cfg(loom)]
    fn rest(&self) {
        loom::thread::yield_now();
    }
}

/// The word as models of clusters see it: who waits sleeps until it is woken, because threads that look
/// again and again are more than loom can explore. The word itself has models of its own.
#[cfg(loom)]
pub(crate) mod model {
    use super::HELD;
    use core::mem::replace;
    use octavo_page::sync::{Condvar, Mutex};

    /// A [`super::LockWord`] under a mutex that is held for a moment only, and never tried: loom 0.7
    /// blocks a thread that is about to *try* a mutex when another thread takes it, and then finds a
    /// deadlock where there is none (`rt::Mutex::post_acquire` blocks every thread whose next operation is
    /// on that mutex).
    pub(crate) struct LockWord {
        word: Mutex<u64>,
        was_put: Condvar,
    }

    impl LockWord {
        pub(crate) fn new(state: u64) -> Self {
            Self { word: Mutex::new(state), was_put: Condvar::new() }
        }

        pub(crate) fn try_take(&self) -> Option<u64> {
            let state = replace(&mut *self.word.lock(), HELD);
            (state != HELD).then_some(state)
        }

        pub(crate) fn take(&self) -> u64 {
            let mut word = self.word.lock();
            while *word == HELD {
                word = self.was_put.wait(word);
            }
            replace(&mut word, HELD)
        }

        pub(crate) fn put(&self, state: u64) {
            assert_ne!(state, HELD, "no state");
            let before = replace(&mut *self.word.lock(), state);
            assert_eq!(before, HELD, "put in by who did not take it");
            self.was_put.notify_all();
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::time::Duration;
    use std::vec::Vec;

    /// The holder sleeps far longer than a waiter spins.
    #[test]
    fn who_waits_for_a_state_gets_what_is_put_in() {
        let word = LockWord::new(3);
        assert_eq!(word.try_take(), Some(3));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| word.take());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished() && word.try_take().is_none());
            word.put(4);
            assert_eq!(waiter.join().unwrap(), 4);
        });
        assert_eq!(word.try_take(), None);
    }

    /// Two words that are written under the lock are never seen apart, and no turn is lost.
    #[test]
    fn what_the_lock_guards_is_one_threads_at_a_time() {
        const THREADS: u64 = 4;
        const TURNS: u64 = 20_000;
        let word = LockWord::new(0);
        let beside = [const { AtomicU64::new(0) }; 2];
        let turn = || {
            let state = word.try_take().unwrap_or_else(|| word.take());
            for guarded in &beside {
                assert_eq!(guarded.load(Ordering::Relaxed), state);
                guarded.store(state + 1, Ordering::Relaxed);
            }
            word.put(state + 1);
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..THREADS).map(|_| scope.spawn(|| (0..TURNS).for_each(|_| turn()))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(word.try_take(), Some(THREADS * TURNS));
    }
}
