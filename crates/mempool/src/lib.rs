//! A reserve of pages that makes allocation certain, one page or many at a time.
//!
//! Who needs memory in order to free memory must never be refused any. A *reserve* is taken at
//! start, backed and locked. It is not the first to be asked: pages come from a [`Source`] while
//! that has some. Many pages are got in four steps, each for all that are missing together:
//!
//! ```text
//!    ┌─────────────┐ short ┌─────────────┐ short ┌──────────────────┐ short ┌─────────────────────┐
//!    │ 1. source   │──────►│ 2. reserve  │──────►│ 3. give back, and│──────►│ 4. stand in a queue │
//!    │    in bulk  │       │    the rest │       │    again: source │       │    until both have  │
//!    └─────────────┘       └─────────────┘       │    may wait      │       │    enough together  │
//!                              a taker that      └──────────────────┘       └─────────────────────┘
//!                         may not wait ends here,                            pages that come back
//!                           with what there was                               pile up for the head
//! ```
//!
//! The steps are those of the kernel series "mempool: page bulk allocator" for dm-crypt, with its
//! page-at-a-time form as the plain twin ([`Mempool::alloc_one_by_one`]).
//!
//! # Why nobody waits for ever
//!
//! - Who is about to wait gives back first what it holds of this call. So two half-filled takers
//!   never wait for each other.
//! - The queue is in order of arrival, and while there is one, only its head takes from the reserve.
//!   So many small takers do not keep a large one waiting.
//! - Pages in the caches of CPUs count as free: who comes up short empties the caches, and while
//!   somebody waits nothing is put into them.
//! - The head is woken under the lock under which it looked. So no wake-up is lost.
//!
//! What the caller promises for that: it waits for no pages while it has others of an earlier call.
//!
//! # Locks
//!
//! The lock of a cache and that of the reserve are never held together, and nothing else is called
//! under either. Nothing allocates after construction.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod cache;
#[cfg(test)]
#[cfg(loom)]
mod models;
mod page;
mod shelf;
pub mod source;
mod stats;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use page::{Ground, Page};
pub use source::Source;
pub use stats::{Stats, Step};

use alloc::boxed::Box;
use cache::{BATCH, CACHE, Cache};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::{array, fmt, slice};
use octavo_page::PAGE_SIZE;
use octavo_page::sync::atomic::AtomicU64;
use octavo_page::sync::{Condvar, Mutex};
use octavo_sys::{Errno, reason};
use page::Land;
use shelf::Shelf;
use stats::Counters;

/// Pages of one call at most: 1 MiB.
pub const MAX_BULK: usize = 256;

/// Conditions to wait on: a turn has that of its number modulo this. Where two turns share one,
/// both wake, and one goes back to sleep.
const BEDS: usize = if cfg!(loom) { 2 } else { 16 };

/// Whether a taker may wait until there are pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// It takes what there is.
    No,
    /// It gets all that it asks for.
    Yes,
}

/// How a reserve is to be.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// CPUs with a cache for single pages; `cpu` in [`Mempool::alloc`] counts below this.
    pub cpus: usize,
    /// Nanoseconds since any moment: times what is waited.
    pub clock: fn() -> u64,
}

/// Why there is no reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MempoolError {
    /// Memory of no page.
    NoPages,
    /// No CPUs.
    NoCpus,
    /// The memory could not be backed.
    NoMemory {
        /// What was to be backed.
        pages: usize,
        /// Why not.
        why: Errno,
    },
}

impl fmt::Display for MempoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPages => f.write_str("a reserve of 0 pages; it takes at least 1"),
            Self::NoCpus => f.write_str("a reserve for 0 CPUs; it takes at least 1"),
            Self::NoMemory { pages, why } => {
                let why = reason(*why);
                write!(f, "no memory for a reserve of {pages} pages ({why}); a smaller one may do")
            }
        }
    }
}

impl core::error::Error for MempoolError {}

/// A reserve over a source.
pub struct Mempool<S> {
    land: Land,
    is_locked: bool,
    source: S,
    shelf: Mutex<Shelf>,
    beds: [Condvar; BEDS],
    /// Takers in the queue. Written under the shelf's lock.
    waiting: AtomicU64,
    caches: Box<[Cache]>,
    clock: fn() -> u64,
    counters: Counters,
}

impl<S: Source> Mempool<S> {
    /// A reserve of all pages of `ground`, which is backed, and locked if that is allowed
    /// ([`is_locked`](Self::is_locked)), over `source`.
    ///
    /// # Errors
    /// When there is no memory, or nothing to make a reserve of.
    pub fn new(ground: Ground, source: S, config: Config) -> Result<Self, MempoolError> {
        if config.cpus == 0 {
            return Err(MempoolError::NoCpus);
        }
        let (land, pages) = ground.into_pages();
        if pages.is_empty() {
            return Err(MempoolError::NoPages);
        }
        let no_memory = |why| MempoolError::NoMemory { pages: pages.len(), why };
        land.memory.populate(land.memory.span()).map_err(no_memory)?;
        Ok(Self {
            is_locked: land.memory.lock().is_ok(),
            land,
            source,
            shelf: Mutex::new(Shelf::new(pages)),
            beds: array::from_fn(|_| Condvar::new()),
            waiting: AtomicU64::new(0),
            caches: (0..config.cpus).map(|_| Cache::new()).collect(),
            clock: config.clock,
            counters: Counters::default(),
        })
    }

    /// Whether the reserve stays in memory, whatever the system needs: not where `RLIMIT_MEMLOCK` is
    /// lower than its size, nor in a child that inherited it.
    #[must_use]
    pub const fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Has the reserve stay in memory, in a child that has inherited it.
    ///
    /// # Errors
    /// Where `RLIMIT_MEMLOCK` is lower than its size.
    pub fn lock(&self) -> octavo_sys::Result<()> {
        self.land.memory.lock()
    }

    /// Where the reserve lies, for who tells a device of it. Pages of a source are elsewhere.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.land.memory.span()
    }

    /// Pages in the reserve, those that are out included.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.land.memory.span().len() / PAGE_SIZE
    }

    /// Fills `places`, which are empty, from the first on, and gives the number of pages: all of
    /// them, if it may wait.
    ///
    /// # Panics
    /// When a place has a page, when there are more than [`MAX_BULK`], or when it may wait for more
    /// than the reserve has.
    pub fn alloc_bulk(&self, places: &mut [Option<Page>], wait: Wait) -> usize {
        self.check(places, wait);
        let taken = self.attempt(places, wait);
        self.finish(places, taken, wait)
    }

    /// The plain twin of [`alloc_bulk`](Self::alloc_bulk): each page goes through the first two steps
    /// by itself.
    ///
    /// # Panics
    /// As of [`alloc_bulk`](Self::alloc_bulk).
    pub fn alloc_one_by_one(&self, places: &mut [Option<Page>], wait: Wait) -> usize {
        self.check(places, wait);
        let got = |place: &mut _| self.attempt(slice::from_mut(place), wait) == 1;
        let taken = places.iter_mut().position(|place| !got(place)).unwrap_or(places.len());
        self.finish(places, taken, wait)
    }

    /// As [`alloc_bulk`](Self::alloc_bulk) for `count` pages, which `consume` gets one after the
    /// other, and not before they are certain: a taker that waits holds none.
    ///
    /// # Panics
    /// As of [`alloc_bulk`](Self::alloc_bulk).
    pub fn alloc_each(&self, count: usize, wait: Wait, consume: impl FnMut(Page)) -> usize {
        assert!(count <= MAX_BULK, "{count} pages at once; at most {MAX_BULK}");
        let mut places = [const { None }; MAX_BULK];
        let taken = self.alloc_bulk(&mut places[..count], wait);
        places.into_iter().flatten().for_each(consume);
        taken
    }

    /// One page, from the cache of CPU `cpu` if that has any; `None` only if it may not wait.
    ///
    /// # Panics
    /// When there is no such CPU.
    pub fn alloc(&self, cpu: usize, wait: Wait) -> Option<Page> {
        let page = self.caches[cpu].take().or_else(|| self.refill(cpu));
        if page.is_some() || wait == Wait::No {
            return page;
        }
        let mut place = [None];
        self.finish(&mut place, 0, wait);
        let [page] = place;
        page
    }

    /// Gives one page back, into the cache of CPU `cpu` if that has room.
    ///
    /// # Panics
    /// When there is no such CPU.
    pub fn free(&self, cpu: usize, page: Page) {
        let mut place = [Some(page)];
        self.caches[cpu].put(&mut place, &self.waiting);
        if let [Some(page)] = place {
            self.spill(cpu, page);
        }
    }

    /// Gives every page in `places` back.
    pub fn free_bulk(&self, places: &mut [Option<Page>]) {
        // Relaxed: who waits made `waiting` nonzero before it asked the source, whose lock orders the two
        // ([`Source`]): either it got these pages, or it is seen here.
        if self.put_back(places) && self.waiting.load(Relaxed) > 0 {
            let mut shelf = self.shelf.lock();
            if shelf.queued() > 0 {
                shelf.gifts += 1;
                self.bed(shelf.served()).notify_all();
            }
        }
    }

    /// What has happened so far, and what there is.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let cached = self.caches.iter().map(Cache::count);
        let (cached, hits) = cached.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let (free, short, reserve) = {
            let shelf = self.shelf.lock();
            (shelf.len(), shelf.short, shelf.taken)
        };
        let counted = self.counters.stats();
        let source = counted.source + short;
        Stats { free, cached, from_caches: hits, source, reserve, ..counted }
    }

    fn check(&self, places: &[Option<Page>], wait: Wait) {
        let (len, most) = (places.len(), self.capacity());
        assert!(len <= MAX_BULK, "{len} pages at once; at most {MAX_BULK}");
        assert!(wait == Wait::No || len <= most, "to wait for {len} pages of a reserve of {most}");
        assert!(places.iter().all(Option::is_none), "a place that has a page");
    }

    /// Steps 1 and 2. When that is too little, what the caches of CPUs have goes back to where it is
    /// from, and both are asked once more.
    fn attempt(&self, places: &mut [Option<Page>], wait: Wait) -> usize {
        let taken = self.take_from_both(places, wait);
        if taken == places.len() || !self.empty_caches() {
            return taken;
        }
        taken + self.take_from_both(&mut places[taken..], wait)
    }

    fn take_from_both(&self, places: &mut [Option<Page>], wait: Wait) -> usize {
        let taken = self.source.take(places, Wait::No);
        let rest = &mut places[taken..];
        if rest.is_empty() {
            self.counters.source.add(taken);
            return taken;
        }
        let mut shelf = self.shelf.lock();
        shelf.short.came(taken);
        let from_reserve = shelf.take_unless_queued(rest, wait);
        shelf.taken.came(from_reserve);
        taken + from_reserve
    }

    /// Steps 3 and 4, for who has got `taken` pages so far.
    fn finish(&self, places: &mut [Option<Page>], taken: usize, wait: Wait) -> usize {
        if taken == places.len() || wait == Wait::No {
            return taken;
        }
        self.hand_back(&mut places[..taken]);
        let taken = self.again(places);
        if taken < places.len() {
            self.hand_back(&mut places[..taken]);
            self.stand_in_queue(places);
        }
        places.len()
    }

    /// Step 3.
    fn again(&self, places: &mut [Option<Page>]) -> usize {
        let mut taken = self.source.take(places, Wait::Yes);
        if taken < places.len() {
            taken += self.shelf.lock().take_unless_queued(&mut places[taken..], Wait::Yes);
        }
        self.counters.again.add(taken);
        taken
    }

    /// Gives back what a call has got that is about to wait.
    fn hand_back(&self, places: &mut [Option<Page>]) {
        self.counters.handed_back.fetch_add(places.len() as u64, Relaxed);
        self.free_bulk(places);
    }

    /// Step 4.
    fn stand_in_queue(&self, places: &mut [Option<Page>]) {
        let begin = (self.clock)();
        let turn = self.shelf.lock().queue(&self.waiting);
        self.empty_caches();
        let mut shelf = self.shelf.lock();
        while shelf.served() != turn {
            shelf = self.bed(turn).wait(shelf);
        }
        drop(shelf);
        self.take_at_head(places, turn);
        self.counters.waited(places.len(), (self.clock)().saturating_sub(begin));
    }

    /// Fills `places` for the head of the queue, which then leaves it. Source and reserve are asked
    /// together, again whenever one of them may have enough.
    fn take_at_head(&self, places: &mut [Option<Page>], turn: u64) {
        let mut shelf = self.shelf.lock();
        loop {
            let gifts = shelf.gifts;
            drop(shelf);
            let taken = self.source.take(places, Wait::Yes);
            shelf = self.shelf.lock();
            if shelf.len() >= places.len() - taken {
                shelf.take(&mut places[taken..]);
                shelf.leave(&self.waiting);
                self.bed(shelf.served()).notify_all();
                return;
            }
            drop(shelf);
            self.put_back(&mut places[..taken]);
            shelf = self.shelf.lock();
            shelf.wanted = places.len();
            while shelf.len() < shelf.wanted && shelf.gifts == gifts {
                shelf = self.bed(turn).wait(shelf);
            }
        }
    }

    /// What a turn waits on.
    fn bed(&self, turn: u64) -> &Condvar {
        &self.beds[turn as usize % BEDS]
    }

    /// Gives every page in `places` to whom it came from: the reserve, of which the head of the queue
    /// is told, or the source, of which the caller has to tell. Whether the source got any.
    fn put_back(&self, places: &mut [Option<Page>]) -> bool {
        let span = self.land.memory.span();
        let is_ours = |page: &mut Page| span.contains(&page.address());
        let mut ours = places.iter_mut().filter_map(|place| place.take_if(is_ours)).peekable();
        if ours.peek().is_some() {
            let mut shelf = self.shelf.lock();
            ours.for_each(|page| shelf.put(page));
            if shelf.queued() > 0 && shelf.len() >= shelf.wanted {
                self.bed(shelf.served()).notify_all();
            }
        }
        let others = places.iter().any(Option::is_some);
        if others {
            self.source.give(places);
        }
        others
    }

    /// One page, and a batch for the empty cache of a CPU.
    #[cold]
    fn refill(&self, cpu: usize) -> Option<Page> {
        let mut places = [const { None }; BATCH];
        let taken = self.attempt(&mut places, Wait::No);
        let page = places[..taken].last_mut().and_then(Option::take);
        self.caches[cpu].put(&mut places, &self.waiting);
        self.free_bulk(&mut places);
        page
    }

    /// Gives back a page for which the cache of a CPU has no room, and half of that cache.
    #[cold]
    fn spill(&self, cpu: usize, page: Page) {
        let mut places = [const { None }; 1 + BATCH];
        places[0] = Some(page);
        self.caches[cpu].empty(&mut places[1..]);
        self.free_bulk(&mut places);
    }

    /// Gives back what all caches have; whether that was anything.
    #[cold]
    fn empty_caches(&self) -> bool {
        let mut places = [const { None }; CACHE];
        self.caches.iter().fold(false, |any, cache| {
            let got = cache.empty(&mut places);
            self.free_bulk(&mut places);
            any | got
        })
    }
}

/// The memory goes, unless somebody still has a page of it.
impl<S> Drop for Mempool<S> {
    fn drop(&mut self) {
        let mut cached = [const { None }; CACHE];
        let mut shelf = self.shelf.lock();
        for cache in &self.caches {
            cache.empty(&mut cached);
            let is_ours = |page: &Page| self.land.memory.span().contains(&page.address());
            let pages = cached.iter_mut().filter_map(Option::take);
            pages.filter(is_ours).for_each(|page| shelf.put(page));
        }
        self.land.leave(shelf.pages());
    }
}
