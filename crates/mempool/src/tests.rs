//! The four steps one by one, the twin, and threads.
#![allow(unsafe_code)] // Grounds that are used again by the next case.

use crate::source::{NoSource, Recycler, Source, System};
use crate::stats::Step;
use crate::{Config, Ground, MAX_BULK, Mempool, MempoolError, Page, Stats, Wait};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use octavo_page::PAGE_SIZE;
use octavo_sys::memory::Reserve;
use proptest::prelude::*;
use std::collections::{HashSet, VecDeque};
use std::format;
use std::sync::{Arc, Mutex};
use std::thread;
use std::vec::Vec;

fn memory(pages: usize) -> Reserve {
    Reserve::new(pages * PAGE_SIZE, c"test").expect("room")
}

/// A part of `memory`, in pages.
///
/// # Safety
/// No page of it is in use.
unsafe fn part(memory: &Reserve, pages: core::ops::Range<usize>) -> Ground {
    let at = |page| memory.start() + page * PAGE_SIZE;
    // SAFETY: the caller's promise.
    unsafe { Ground::again(memory.part(at(pages.start)..at(pages.end))) }
}

fn ground(pages: usize) -> Ground {
    Ground::new(pages, c"test").expect("room")
}

fn places(count: usize) -> Vec<Option<Page>> {
    (0..count).map(|_| None).collect()
}

/// Each call is a nanosecond later than the one before.
fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    NOW.fetch_add(1, Ordering::Relaxed)
}

const CONFIG: Config = Config { cpus: 2, clock };

/// A source that gives less than it has, as it is told, and remembers how it was asked.
struct Unwilling {
    pages: Mutex<Vec<Page>>,
    /// What the next calls get at most; those after them get all.
    most: Mutex<VecDeque<usize>>,
    asked: Mutex<Vec<Wait>>,
}

impl Unwilling {
    fn new(ground: Ground) -> Self {
        let pages = Mutex::new(ground.into_pages().1);
        Self { pages, most: Mutex::default(), asked: Mutex::default() }
    }

    fn will_give(&self, most: &[usize]) {
        self.most.lock().unwrap().extend(most);
    }

    fn was_asked(&self) -> Vec<Wait> {
        core::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Source for &Unwilling {
    fn take(&self, places: &mut [Option<Page>], wait: Wait) -> usize {
        self.asked.lock().unwrap().push(wait);
        let most = self.most.lock().unwrap().pop_front().unwrap_or(usize::MAX);
        let mut pages = self.pages.lock().unwrap();
        let count = places.len().min(most).min(pages.len());
        places[..count].iter_mut().for_each(|place| *place = pages.pop());
        count
    }

    fn give(&self, places: &mut [Option<Page>]) {
        self.pages.lock().unwrap().extend(places.iter_mut().filter_map(Option::take));
    }
}

fn step(calls: u64, pages: u64) -> Step {
    Step { calls, pages }
}

#[test]
fn the_four_steps_are_taken_in_order() {
    let source = Unwilling::new(ground(4));
    let pool = Mempool::new(ground(8), &source, CONFIG).expect("memory");
    let bulk = |count, wait| {
        let mut pages = places(count);
        let taken = pool.alloc_bulk(&mut pages, wait);
        assert!(pages[..taken].iter().all(Option::is_some));
        assert!(pages[taken..].iter().all(Option::is_none));
        pages
    };

    // 1: the source has enough.
    let mut first = bulk(3, Wait::No);
    let stats = pool.stats();
    assert_eq!((stats.source, stats.reserve, stats.free), (step(1, 3), step(0, 0), 8));

    // 2: one from the source, the rest from the reserve; who may not wait gets what there is.
    let mut second = bulk(6, Wait::Yes);
    let stats = pool.stats();
    assert_eq!((stats.source, stats.reserve, stats.free), (step(2, 4), step(1, 5), 3));
    let mut rest = bulk(5, Wait::No);
    let stats = pool.stats();
    assert_eq!((stats.source, stats.reserve, stats.free), (step(3, 4), step(2, 8), 0));
    assert_eq!(rest.iter().flatten().count(), 3);
    assert_eq!(source.was_asked(), [Wait::No; 3]);
    assert_eq!((stats.again, stats.queue, stats.handed_back), (step(0, 0), step(0, 0), 0));

    // 3: the source gives one, and when it may take its time, three; the reserve has one.
    pool.free_bulk(&mut first);
    pool.free_bulk(&mut rest[..1]);
    source.will_give(&[1, 3]);
    let mut third = bulk(4, Wait::Yes);
    let stats = pool.stats();
    assert_eq!((stats.source, stats.reserve), (step(4, 5), step(3, 8)));
    assert_eq!((stats.again, stats.handed_back, stats.free), (step(1, 4), 1, 0));
    assert_eq!(source.was_asked(), [Wait::No, Wait::Yes]);

    // 4: the source gives nothing twice; the queue gets what comes back.
    source.will_give(&[0, 0, 0]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| bulk(5, Wait::Yes));
        while source.asked.lock().unwrap().len() < 3 {
            thread::yield_now();
        }
        pool.free_bulk(&mut second);
        pool.free_bulk(&mut waiter.join().expect("no panic"));
    });
    let stats = pool.stats();
    assert_eq!((stats.source, stats.reserve), (step(5, 5), step(4, 8)));
    assert_eq!((stats.again, stats.queue), (step(2, 4), step(1, 5)));
    assert_eq!(source.was_asked()[..3], [Wait::No, Wait::Yes, Wait::Yes]);
    assert!(stats.waited_ns > 0 && stats.longest_wait_ns == stats.waited_ns);

    pool.free_bulk(&mut third);
    pool.free_bulk(&mut rest);
    assert_eq!((pool.stats().free, source.pages.lock().unwrap().len()), (8, 4));
}

/// What a pool is asked for, in turn.
#[derive(Clone, Debug)]
enum Op {
    /// So many pages.
    Take(usize),
    /// One page, by the cache of a CPU.
    TakeOne(usize),
    /// So many of the pages that were taken, from a place on.
    Give(usize, usize),
    /// One of them, by the cache of a CPU.
    GiveOne(usize, usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        (0..40_usize).prop_map(Op::Take),
        (0..2_usize).prop_map(Op::TakeOne),
        (any::<usize>(), 0..40_usize).prop_map(|(from, count)| Op::Give(from, count)),
        (any::<usize>(), 0..2_usize).prop_map(|(which, cpu)| Op::GiveOne(which, cpu)),
    ];
    prop::collection::vec(op, 0..60)
}

/// A pool and what was taken from it.
struct Held<'a> {
    pool: Mempool<&'a Unwilling>,
    pages: Vec<Page>,
}

impl Held<'_> {
    fn apply(&mut self, op: &Op, take: fn(&Mempool<&Unwilling>, &mut [Option<Page>]) -> usize) {
        match *op {
            Op::Take(count) => {
                let mut pages = places(count);
                take(&self.pool, &mut pages);
                self.pages.extend(pages.into_iter().flatten());
            }
            Op::TakeOne(cpu) => self.pages.extend(self.pool.alloc(cpu, Wait::No)),
            Op::Give(from, count) => {
                let from = from % (self.pages.len() + 1);
                let to = (from + count).min(self.pages.len());
                let mut pages: Vec<_> = self.pages.drain(from..to).map(Some).collect();
                self.pool.free_bulk(&mut pages);
                assert!(pages.iter().all(Option::is_none));
            }
            Op::GiveOne(which, cpu) => {
                if !self.pages.is_empty() {
                    let page = self.pages.remove(which % self.pages.len());
                    self.pool.free(cpu, page);
                }
            }
        }
    }

    /// How many pages there are, and where; how they were got.
    fn summary(&self) -> (usize, usize, usize, [u64; 3]) {
        let distinct: HashSet<_> = self.pages.iter().map(Page::address).collect();
        assert_eq!(distinct.len(), self.pages.len(), "a page given twice");
        let Stats { free, cached, source, reserve, from_caches, .. } = self.pool.stats();
        (self.pages.len(), free, cached, [source.pages, reserve.pages, from_caches])
    }
}

#[test]
fn in_bulk_is_as_one_by_one() {
    const RESERVE: usize = 24;
    const SOURCE: usize = 16;
    let memory = memory(2 * (RESERVE + SOURCE));
    proptest!(|(ops in ops(), reserve in 1..=RESERVE, stock in 0..=SOURCE)| {
        // SAFETY: all pages of the case before are gone.
        let ground = |from, pages| unsafe { part(&memory, from..from + pages) };
        let sources = [0, SOURCE].map(|from| Unwilling::new(ground(from, stock)));
        let pool = |at: usize| {
            let ground = ground(2 * SOURCE + at * RESERVE, reserve);
            let pool = Mempool::new(ground, &sources[at], CONFIG).expect("memory");
            Held { pool, pages: Vec::new() }
        };
        let (mut bulk, mut plain) = (pool(0), pool(1));
        for op in &ops {
            bulk.apply(op, |pool, places| pool.alloc_bulk(places, Wait::No));
            plain.apply(op, |pool, places| pool.alloc_one_by_one(places, Wait::No));
            prop_assert_eq!(bulk.summary(), plain.summary(), "after {:?}", op);
        }
    });
}

/// Threads that take many and one, in bulk and through caches, with more taken at a time than there
/// is. Each page carries the number of who has it.
#[test]
fn threads_get_pages_of_their_own_and_all_of_them_end() {
    const PAGES: usize = 48;
    let source = Recycler::new(8);
    source.stock(ground(8));
    let pool = Mempool::new(ground(PAGES), source, CONFIG).expect("memory");
    let own = |pages: &mut [Option<Page>], mark: u8| {
        pages.iter_mut().flatten().for_each(|page| page.bytes_mut().fill(mark));
        thread::yield_now();
        let is_own = |page: &Page| page.bytes().iter().all(|byte| *byte == mark);
        assert!(pages.iter().flatten().all(is_own), "a page that somebody else has, too");
    };
    thread::scope(|scope| {
        for number in 0..6_usize {
            let (pool, own) = (&pool, &own);
            scope.spawn(move || {
                for round in 0..300 {
                    let mut pages = places((number * 17 + round) % PAGES + 1);
                    match number {
                        0 => pool.alloc_one_by_one(&mut pages, Wait::Yes),
                        1..4 => pool.alloc_bulk(&mut pages, Wait::Yes),
                        _ => {
                            pages.truncate(1);
                            pages[0] = pool.alloc(number % 2, Wait::Yes);
                            1
                        }
                    };
                    own(&mut pages, number as u8 + 1);
                    match pages.len() {
                        1 => pool.free(number % 2, pages[0].take().expect("it may wait")),
                        _ => pool.free_bulk(&mut pages),
                    }
                }
            });
        }
    });
    let stats = pool.stats();
    let mut rest = places(MAX_BULK);
    assert_eq!(pool.alloc_bulk(&mut rest, Wait::No), PAGES + 8, "{stats:?}");
    pool.free_bulk(&mut rest);
    assert!(stats.queue.calls > 0, "nobody waited: {stats:?}");
}

/// Who asked first for much is served before who asked later for little.
#[test]
fn nobody_overtakes_the_queue() {
    let pool = Arc::new(Mempool::new(ground(4), NoSource, CONFIG).expect("memory"));
    let mut all = places(4);
    pool.alloc_bulk(&mut all, Wait::Yes);
    let queued = |count| {
        while pool.waiting.load(Ordering::Relaxed) < count {
            thread::yield_now();
        }
    };
    let done = Arc::new(AtomicBool::new(false));
    let (large_pool, large_done) = (Arc::clone(&pool), Arc::clone(&done));
    let large = thread::spawn(move || {
        let mut pages = places(4);
        large_pool.alloc_bulk(&mut pages, Wait::Yes);
        large_done.store(true, Ordering::SeqCst);
        large_pool.free_bulk(&mut pages);
    });
    queued(1);
    let (small_pool, small_done) = (Arc::clone(&pool), Arc::clone(&done));
    let small = thread::spawn(move || {
        let page = small_pool.alloc(0, Wait::Yes).expect("it may wait");
        assert!(small_done.load(Ordering::SeqCst), "overtook the queue");
        small_pool.free(0, page);
    });
    queued(2);
    // Three are back, and nobody may have them but the head, who needs a fourth.
    pool.free_bulk(&mut all[..3]);
    assert!(pool.alloc(1, Wait::No).is_none());
    assert_eq!(pool.alloc_bulk(&mut places(1), Wait::No), 0);
    pool.free(1, all[3].take().expect("held"));
    large.join().expect("no panic");
    small.join().expect("no panic");
}

#[test]
fn pages_in_caches_are_there_for_everybody() {
    let pool = Mempool::new(ground(8), NoSource, CONFIG).expect("memory");
    let one = pool.alloc(0, Wait::No).expect("the reserve is full");
    assert!(pool.stats().cached > 0, "a cache takes more than it is asked for");
    pool.free(1, one);
    let mut all = places(8);
    assert_eq!(pool.alloc_bulk(&mut all, Wait::No), 8);
    assert!(pool.alloc(0, Wait::No).is_none());
    all.drain(..).flatten().for_each(|page| pool.free(0, page));
    assert_eq!(pool.stats().cached, 8);
    let last: Vec<_> = core::iter::from_fn(|| pool.alloc(1, Wait::No)).collect();
    assert_eq!(last.len(), 8, "they are found in another CPU's cache");
    pool.free_bulk(&mut last.into_iter().map(Some).collect::<Vec<_>>());
}

#[test]
fn a_callback_gets_what_an_array_would() {
    let pool = Mempool::new(ground(8), NoSource, CONFIG).expect("memory");
    let mut got = Vec::new();
    assert_eq!(pool.alloc_each(5, Wait::Yes, |page| got.push(Some(page))), 5);
    assert_eq!(got.len(), 5);
    assert_eq!(pool.alloc_each(5, Wait::No, |page| got.push(Some(page))), 3);
    pool.free_bulk(&mut got);
    assert_eq!(pool.stats().free, 8);
}

#[test]
fn the_system_backs_what_is_taken_and_nothing_else() {
    const SPACE: usize = 256;
    let space = memory(SPACE);
    let span = space.span();
    // SAFETY: fresh memory.
    let source = System::new(unsafe { Ground::again(space) });
    let pool = Mempool::new(ground(8), source, CONFIG).expect("memory");
    let mut pages = places(200);
    assert_eq!(pool.alloc_bulk(&mut pages, Wait::No), 200);
    assert_eq!(pool.stats().free, 8, "the source has more than that");
    pages.iter_mut().flatten().for_each(|page| page.bytes_mut().fill(7));
    let mut more = places(100);
    assert_eq!(pool.alloc_bulk(&mut more, Wait::No), SPACE - 200 + 8);
    assert!(more.iter().flatten().take(56).all(|page| span.contains(&page.address())));

    // In an order in which no two lie side by side, then in another.
    let (even, odd): (Vec<_>, Vec<_>) =
        pages.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
    for half in [even, odd] {
        let mut half: Vec<_> = half.into_iter().map(|(_, page)| page).collect();
        pool.free_bulk(&mut half);
    }
    pool.free_bulk(&mut more);
    let mut pages = places(200);
    assert_eq!(pool.alloc_bulk(&mut pages, Wait::No), 200);
    let is_zero = |page: &Page| page.bytes().iter().all(|byte| *byte == 0);
    assert!(pages.iter().flatten().all(is_zero), "given back to the system");
    pool.free_bulk(&mut pages);
}

/// By what the kernel says of it.
#[test]
fn a_reserve_is_locked_where_that_is_allowed() {
    const PAGES: usize = 8;
    let read = |name| std::fs::read_to_string(name).expect("the kernel tells");
    let limits = read("/proc/self/limits");
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let limit = limit.and_then(|limit| limit.split_whitespace().next()).expect("it has one");
    // What is not a number is no limit. Other tests have reserves too, and may have all of it for a while.
    let is_allowed = limit.parse().map_or(true, |bytes: usize| bytes >= 64 * PAGES * PAGE_SIZE);
    for _ in 0..1000 {
        let pool = Mempool::new(ground(PAGES), NoSource, CONFIG).expect("memory");
        let at = pool.span().start;
        let mut inside = false;
        let flags = read("/proc/self/smaps").lines().find_map(|line| {
            let ends = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let number = |end| usize::from_str_radix(end, 16);
            if let Some((Ok(start), Ok(end))) = ends.map(|(a, b)| (number(a), number(b))) {
                inside = (start..end).contains(&at);
            }
            line.strip_prefix("VmFlags:").filter(|_| inside).map(std::string::String::from)
        });
        let flags = flags.expect("it is mapped");
        assert_eq!(flags.split_whitespace().any(|flag| flag == "lo"), pool.is_locked(), "{flags}");
        if pool.is_locked() || !is_allowed {
            return;
        }
        thread::sleep(core::time::Duration::from_millis(10));
    }
    panic!("{limit} bytes may be locked, and {PAGES} pages are not");
}

#[test]
fn what_is_no_reserve_is_said() {
    let no_cpus = Config { cpus: 0, clock };
    let error = |pages, config| {
        Mempool::new(ground(pages), NoSource, config).err().map(|error| format!("{error}"))
    };
    assert_eq!(error(1, no_cpus).as_deref(), Some("a reserve for 0 CPUs; it takes at least 1"));
    assert_eq!(error(1, CONFIG), None);
    // SAFETY: no page at all.
    let nothing = unsafe { part(&memory(1), 0..0) };
    assert_eq!(Mempool::new(nothing, NoSource, CONFIG).err(), Some(MempoolError::NoPages));
}

#[test]
#[should_panic(expected = "to wait for 9 pages of a reserve of 8")]
fn nobody_waits_for_more_than_there_is() {
    let pool = Mempool::new(ground(8), NoSource, CONFIG).expect("memory");
    pool.alloc_bulk(&mut places(9), Wait::Yes);
}
