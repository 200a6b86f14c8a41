//! Every interleaving of two takers and one who gives, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p octavo-mempool --lib models`
//!
//! loom finds a deadlock by itself, and a wake-up that was lost as one. That nothing is given twice
//! the takers see by marks.
#![allow(unsafe_code)] // One range of memory is the ground of every interleaving.

use crate::source::{NoSource, Recycler, Source};
use crate::{Config, Ground, Mempool, Page, Wait};
use core::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use octavo_page::PAGE_SIZE;
use octavo_sys::memory::Reserve;
use std::sync::{Arc, LazyLock};
use std::vec::Vec;

/// Pages of all reserves and sources.
const PAGES: usize = 4;

static MEMORY: LazyLock<Reserve> =
    LazyLock::new(|| Reserve::new(2 * PAGES * PAGE_SIZE, c"model").expect("room"));

/// The models share the memory, so they run one after the other.
static ONE_MODEL: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn ground(pages: core::ops::Range<usize>) -> Ground {
    let at = |page| MEMORY.start() + page * PAGE_SIZE;
    // SAFETY: one interleaving runs at a time, and each has grounds that do not overlap.
    unsafe { Ground::again(MEMORY.part(at(pages.start)..at(pages.end))) }
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let _one = ONE_MODEL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A pool, and who has which page of it.
struct Marked<S> {
    pool: Mempool<S>,
    taken: [AtomicBool; 2 * PAGES],
    /// What takers have not given back.
    kept: std::sync::Mutex<Vec<Option<Page>>>,
}

impl<S: Source> Marked<S> {
    /// With a reserve of `pages`.
    fn new(pages: usize, source: S) -> Arc<Self> {
        let config = Config { cpus: 1, clock: || 0 };
        let pool = Mempool::new(ground(0..pages), source, config).expect("memory");
        Arc::new(Self { pool, taken: Default::default(), kept: Default::default() })
    }

    fn mark(&self, page: &Page, taken: bool) {
        let number = (page.address() - MEMORY.start()) / PAGE_SIZE;
        let before = self.taken[number].swap(taken, Ordering::Relaxed);
        assert_ne!(before, taken, "page {number} given twice");
    }

    /// Takes `count` pages, which it waits for.
    fn take(&self, count: usize) -> Vec<Option<Page>> {
        let mut places: Vec<_> = (0..count).map(|_| None).collect();
        assert_eq!(self.pool.alloc_bulk(&mut places, Wait::Yes), count);
        places.iter().flatten().for_each(|page| self.mark(page, true));
        places
    }

    fn give(&self, mut places: Vec<Option<Page>>) {
        places.iter().flatten().for_each(|page| self.mark(page, false));
        self.pool.free_bulk(&mut places);
    }

    fn take_one(&self) -> Page {
        let page = self.pool.alloc(0, Wait::Yes).expect("it may wait");
        self.mark(&page, true);
        page
    }

    fn give_one(&self, page: Page) {
        self.mark(&page, false);
        self.pool.free(0, page);
    }

    /// Has two takers run beside `giver`, and looks how much of the reserve is back at the end.
    fn race(self: &Arc<Self>, takers: [fn(&Self); 2], giver: impl FnOnce(&Self), back: usize)
    where
        S: Send + 'static,
    {
        let takers = takers.map(|taker| {
            let pool = Arc::clone(self);
            thread::spawn(move || taker(&pool))
        });
        giver(self);
        takers.into_iter().for_each(|taker| taker.join().expect("no panic"));
        let stats = self.pool.stats();
        assert_eq!(stats.free + stats.cached, back);
    }
}

/// Two takers of the whole reserve, which comes back page by page.
#[test]
fn two_takers_of_all() {
    explore(|| {
        let pool = Marked::new(2, NoSource);
        let mut all = pool.take(2);
        let taker = |pool: &Marked<_>| pool.give(pool.take(2));
        let giver = |pool: &Marked<_>| {
            pool.give(std::vec![all.pop().flatten()]);
            pool.give(all);
        };
        pool.race([taker, taker], giver, 2);
    });
}

/// A taker of all among single pages that go through the cache of a CPU: it does not starve.
#[test]
fn a_large_taker_among_single_pages() {
    explore(|| {
        let pool = Marked::new(2, NoSource);
        let one = pool.take_one();
        let large = |pool: &Marked<_>| pool.give(pool.take(2));
        let small = |pool: &Marked<_>| pool.give_one(pool.take_one());
        pool.race([large, small], |pool| pool.give_one(one), 2);
    });
}

/// Both takers get a part from the source: neither keeps it while it waits.
#[test]
fn two_half_filled_takers() {
    explore(|| {
        let source = Recycler::new(2);
        source.stock(ground(PAGES..PAGES + 2));
        let pool = Marked::new(3, source);
        let of_source = pool.take(2);
        let reserve = pool.take(3);
        pool.give(of_source);
        let taker = |pool: &Marked<_>| pool.give(pool.take(3));
        pool.race([taker, taker], |pool| pool.give(reserve), 3);
    });
}

/// What comes back to the source is told to who waits: the reserve does not come back before.
#[test]
fn gifts_to_the_source() {
    explore(|| {
        let source = Recycler::new(2);
        source.stock(ground(PAGES..PAGES + 2));
        let pool = Marked::new(2, source);
        let of_source = pool.take(2);
        let of_reserve = pool.take(2);
        let taker = |pool: &Marked<_>| pool.give(pool.take(2));
        pool.race([taker, taker], |pool| pool.give(of_source), 0);
        pool.give(of_reserve);
    });
}

/// A gift that is enough for two: who is served first wakes the next, and gives nothing back before.
#[test]
fn two_waiters_and_one_gift() {
    explore(|| {
        let pool = Marked::new(2, NoSource);
        let all = pool.take(2);
        let taker = |pool: &Marked<_>| {
            let page = pool.take(1);
            pool.kept.lock().unwrap().extend(page);
        };
        pool.race([taker, taker], |pool| pool.give(all), 0);
        pool.give(core::mem::take(&mut pool.kept.lock().unwrap()));
    });
}
