//! Rest: before a fork our helpers come to a place where a copy of our memory makes sense.
//!
//! A child inherits everything of ours by copy-on-write, as the kernel finds it while it copies. What
//! a helper is in the middle of changing at that moment, the child would have in halves. So the thread
//! that is about to fork asks for rest: evictors and watch stop between two pieces of work. The server
//! goes on, since the thread may touch evicted memory on its way to the fork; it is counted only while
//! it changes something.
//!
//! ```text
//!   word    wanted │ given │ how many are at work
//!
//!   evictor, watch     work ──► at work ──► done        waits while rest is wanted
//!   server             change ─► at work ─► done        gives way to the fork, while that goes on
//!   forking thread     begin: wanted, wait for 0 ─► given ─► fork ─────► end
//!   child              is it 0? then its copy is whole
//! ```
//! Until rest is given, a change may begin, and is waited for. The server may change something after all
//! while it is. It is one task: what it writes, the child has up to some moment and not beyond, since its
//! next write to a page that was copied already waits for the end of the copying. If that moment lies in
//! the middle of a change, the child finds the server at work in its copy of the word, and does not use
//! the rest.

use crate::sync::atomic::{AtomicU32, Ordering};

/// See the module.
#[derive(Debug)]
pub struct Rest(AtomicU32);

const WANTED: u32 = 1 << 31;
const GIVEN: u32 = 1 << 30;

impl Rest {
    /// Nobody works, nobody wants rest.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Begins a piece of work; waits, by `wait`, while rest is wanted and that says that there still is
    /// somebody who wants it.
    pub fn work(&self, wait: impl Fn(&AtomicU32, u32) -> bool) -> Work<'_> {
        loop {
            if let Some(work) = self.try_work() {
                return work;
            }
            let word = self.0.load(Ordering::Relaxed);
            if word & WANTED != 0 && !wait(&self.0, word) {
                return self.change();
            }
        }
    }

    /// Begins a piece of work, unless rest is wanted.
    pub fn try_work(&self) -> Option<Work<'_>> {
        self.begin_unless(WANTED)
    }

    /// Begins a change, unless rest is given: who wants it waits for the end of this.
    pub fn try_change(&self) -> Option<Work<'_>> {
        self.begin_unless(GIVEN)
    }

    fn begin_unless(&self, set: u32) -> Option<Work<'_>> {
        let more = |word: u32| (word & set == 0).then_some(word + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok().map(|_| Work(self))
    }

    /// Begins a change that cannot wait.
    pub fn change(&self) -> Work<'_> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Work(self)
    }

    /// Goes on with a change that another task has begun, and forgotten ([`core::mem::forget`]).
    pub const fn go_on(&self) -> Work<'_> {
        Work(self)
    }

    /// Asks for rest; whether everybody rests after `patience` waits by `wait`. Either way
    /// [`Rest::end`] has to follow. One thread at a time.
    pub fn begin(&self, patience: u32, wait: impl Fn(&AtomicU32, u32)) -> bool {
        self.0.fetch_or(WANTED, Ordering::AcqRel);
        let give =
            || self.0.compare_exchange(WANTED, WANTED | GIVEN, Ordering::AcqRel, Ordering::Acquire);
        for _ in 0..patience {
            match give() {
                Ok(_) => return true,
                Err(word) => wait(&self.0, word),
            }
        }
        give().is_ok()
    }

    /// Whether rest is wanted at present.
    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WANTED != 0
    }

    /// Whether it is given.
    pub fn is_given(&self) -> bool {
        self.0.load(Ordering::Acquire) & GIVEN != 0
    }

    /// Ends the rest; who waits for that has still to be woken, at [`Rest::word`].
    pub fn end(&self) {
        self.0.fetch_and(!(WANTED | GIVEN), Ordering::AcqRel);
    }

    /// In a child: forgets whoever is counted, who are all in the parent.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// In a child: whether its copy is whole. The rest is then still given, in the copy.
    pub fn was_whole(&self) -> bool {
        self.0.load(Ordering::Acquire) == WANTED | GIVEN
    }

    /// Where helpers wait for the end of the rest, and the forking thread for its beginning.
    pub const fn word(&self) -> &AtomicU32 {
        &self.0
    }

    fn done(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(not(loom))]
impl Default for Rest {
    fn default() -> Self {
        Self::new()
    }
}

/// While this lives, somebody is at work.
#[derive(Debug)]
pub struct Work<'a>(&'a Rest);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.done();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_changes_is_seen_in_the_copy() {
        let rest = Rest::new();
        assert!(rest.begin(0, |_, _| {}));
        assert!(rest.was_whole() && rest.try_work().is_none() && rest.try_change().is_none());
        let change = rest.change();
        assert!(!rest.was_whole());
        drop(change);
        assert!(rest.was_whole());
        rest.end();
        let work = rest.try_work();
        assert!(work.is_some() && !rest.begin(3, |_, _| {}));
    }

    #[test]
    fn who_wants_rest_waits_for_changes() {
        let rest = Rest::new();
        let first = rest.change();
        assert!(!rest.begin(3, |_, _| {}) && !rest.is_given());
        let second = rest.try_change();
        drop(first);
        assert!(second.is_some() && !rest.begin(3, |_, _| {}));
        drop(second);
        assert!(rest.begin(0, |_, _| {}) && rest.is_given());
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p octavo-page --release models`
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::atomic::AtomicU32;
    use loom::sync::Arc;
    use loom::thread;

    /// A fork finds what a helper changes whole, and the helper goes on afterwards.
    #[test]
    fn a_fork_finds_no_work_half_done() {
        loom::model(|| {
            let rest = Arc::new(Rest(AtomicU32::new(0)));
            let halves = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let helper = {
                let (rest, halves) = (rest.clone(), halves.clone());
                thread::spawn(move || {
                    for n in 0..2 {
                        let work = || {
                            rest.work(|_, _| {
                                thread::yield_now();
                                true
                            })
                        };
                        let _work = rest.try_change().filter(|_| n > 0).unwrap_or_else(work);
                        halves.iter().for_each(|half| drop(half.fetch_add(1, Ordering::Relaxed)));
                    }
                })
            };
            if rest.begin(2, |_, _| thread::yield_now()) {
                let [one, other] =
                    [&halves[0], &halves[1]].map(|half| half.load(Ordering::Relaxed));
                assert_eq!(one, other);
            }
            rest.end();
            helper.join().expect("the helper ends");
        });
    }
}
