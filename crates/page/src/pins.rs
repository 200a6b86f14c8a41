//! Pages that stay because the kernel writes there once more after a thread has ended.
//!
//! When a thread ends, the kernel clears the thread's id in a word of the program's memory
//! (`CLONE_CHILD_CLEARTID`), which is what `pthread_join` waits for, and walks the list of robust
//! locks beside it. A task that is ending gets no userfaultfd message (kernel, `handle_userfault`):
//! were the page away, the word would not be cleared, and who joins would wait for ever. So the
//! page is pinned from the thread's first step until the thread is gone.
//!
//! ```text
//!   the thread, at its start            an evictor, with the gate shut
//!     publish the pin                     taking is odd
//!     ───────── fence ─────────           ───────── fence ─────────
//!     is a taking under way?              look at the pins, take other pages
//!       wait for its end                  taking is even
//! ```
//! One of the two sees the other: a taking that missed the pin has ended when [`Pins::pin`] is done,
//! and the thread touches the page again before it ends. Neither holds a lock.

use crate::PAGE_SHIFT;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use core::ops::Range;

/// Pins at once, at most. A thread past them may be one whose end nobody is told of.
pub const MAX: usize = if cfg!(loom) { 2 } else { 8192 };

/// Bits of a thread's id; the kernel gives ids below 2^22.
const THREAD_BITS: u32 = 24;

/// The pins of a process. There is one taker at a time.
#[derive(Debug)]
pub struct Pins {
    /// Number of the page and, in the low bits, id of the thread; 0 where there is none.
    entries: [AtomicU64; MAX],
    /// Entries from here on were never used.
    used: AtomicU32,
    /// Odd while pages are taken.
    taking: AtomicU32,
}

#[cfg(not(loom))]
impl Pins {
    /// No pins.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: [const { AtomicU64::new(0) }; MAX],
            used: AtomicU32::new(0),
            taking: AtomicU32::new(0),
        }
    }
}

#[cfg(not(loom))]
impl Default for Pins {
    fn default() -> Self {
        Self::new()
    }
}

impl Pins {
    /// Pins the page at `page` for `thread`: no taking that begins later, and none that goes on when
    /// this returns, takes it. `wait` lets others run. False when there is no room.
    pub fn pin(&self, page: usize, thread: u32, wait: impl Fn()) -> bool {
        let entry = (page >> PAGE_SHIFT << THREAD_BITS) as u64 | u64::from(thread);
        if !self.publish(entry) {
            return false;
        }
        fence(Ordering::SeqCst);
        let taking = self.taking.load(Ordering::Acquire);
        while taking % 2 == 1 && self.taking.load(Ordering::Acquire) == taking {
            wait();
        }
        true
    }

    fn publish(&self, entry: u64) -> bool {
        let page = entry >> THREAD_BITS;
        for (at, cell) in self.entries.iter().enumerate() {
            let found = cell.load(Ordering::Relaxed);
            let fits = found == 0 || found >> THREAD_BITS == page;
            let order = (Ordering::Release, Ordering::Relaxed);
            if fits && cell.compare_exchange(found, entry, order.0, order.1).is_ok() {
                self.used.fetch_max(at as u32 + 1, Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Begins to take pages.
    pub fn begin_taking(&self) -> Taking<'_> {
        self.taking.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        Taking(self)
    }
}

/// While this lives, pages are being taken.
#[derive(Debug)]
pub struct Taking<'a>(&'a Pins);

impl Taking<'_> {
    /// Calls `each` with the address of every pinned page of `span`. Pins of threads that are gone
    /// (`lives` says so) are forgotten instead.
    pub fn each_within(
        &self,
        span: &Range<usize>,
        lives: impl Fn(u32) -> bool,
        mut each: impl FnMut(usize),
    ) {
        let used = self.0.used.load(Ordering::Acquire) as usize;
        for cell in self.0.entries.iter().take(used) {
            let entry = cell.load(Ordering::Acquire);
            let page = (entry >> THREAD_BITS << PAGE_SHIFT) as usize;
            if entry == 0 || !span.contains(&page) {
                continue;
            }
            let thread = (entry & ((1 << THREAD_BITS) - 1)) as u32;
            // A new thread in the same place has changed the entry, and keeps it.
            let forget = |old| {
                !lives(thread)
                    && cell.compare_exchange(old, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            if !forget(entry) {
                each(page);
            }
        }
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.taking.fetch_add(1, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;
    use std::vec::Vec;

    fn pinned(pins: &Pins, span: Range<usize>, lives: impl Fn(u32) -> bool) -> Vec<usize> {
        let mut found = Vec::new();
        pins.begin_taking().each_within(&span, lives, |page| found.push(page));
        found
    }

    #[test]
    fn a_pin_holds_while_its_thread_lives_and_in_its_range() {
        let pins = Pins::new();
        let at = |n: usize| n * PAGE_SIZE;
        for (page, thread) in [(3, 10), (5, 11), (9, 12)] {
            assert!(pins.pin(at(page), thread, || unreachable!("nobody takes")));
        }
        assert_eq!(pinned(&pins, at(3)..at(9), |_| true), [at(3), at(5)]);
        assert_eq!(pinned(&pins, at(0)..at(99), |thread| thread != 11), [at(3), at(9)]);
        // The place is used again, and another thread in the same page takes its entry over.
        assert!(pins.pin(at(7), 13, || ()) && pins.pin(at(3), 14, || ()));
        assert_eq!(pinned(&pins, at(0)..at(99), |thread| thread != 10), [at(3), at(7), at(9)]);
    }

    #[test]
    fn a_full_table_says_so() {
        let pins = Pins::new();
        assert!((1..=MAX).all(|n| pins.pin(n * PAGE_SIZE, n as u32, || ())));
        assert!(!pins.pin((MAX + 1) * PAGE_SIZE, 1, || ()));
    }
}

/// Every interleaving of a thread that starts with an evictor, and with another thread.
///
/// `RUSTFLAGS="--cfg loom" cargo test -p octavo-page --release models`
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::PAGE_SIZE;
    use crate::sync::atomic::AtomicBool;
    use loom::thread;
    use std::sync::Arc;

    const PAGE: usize = PAGE_SIZE;

    fn no_pins() -> Pins {
        Pins {
            entries: core::array::from_fn(|_| AtomicU64::new(0)),
            used: AtomicU32::new(0),
            taking: AtomicU32::new(0),
        }
    }

    fn pinned(pins: &Pins) -> usize {
        let mut found = 0;
        pins.begin_taking().each_within(&(0..4 * PAGE), |_| true, |_| found += 1);
        found
    }

    #[test]
    fn what_is_pinned_and_touched_stays() {
        loom::model(|| {
            let both = Arc::new((no_pins(), AtomicBool::new(false)));
            let evictor = thread::spawn({
                let both = Arc::clone(&both);
                move || {
                    let (pins, away) = &*both;
                    for _ in 0..2 {
                        let mut stays = false;
                        let taking = pins.begin_taking();
                        taking.each_within(&(0..2 * PAGE), |_| true, |_| stays = true);
                        if !stays {
                            away.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
            let (pins, away) = &*both;
            assert!(pins.pin(PAGE, 7, thread::yield_now));
            away.store(false, Ordering::Relaxed); // touched: it comes back
            evictor.join().expect("no panic");
            assert!(!away.load(Ordering::Relaxed), "taken although pinned");
        });
    }

    #[test]
    fn two_threads_at_once_are_both_pinned() {
        loom::model(|| {
            let pins = Arc::new(no_pins());
            let other = Arc::clone(&pins);
            let thread = thread::spawn(move || assert!(other.pin(PAGE, 7, || ())));
            assert!(pins.pin(2 * PAGE, 8, || ()));
            thread.join().expect("no panic");
            assert_eq!(pinned(&pins), 2);
        });
    }
}
