//! Where pages come from before the reserve is touched.
#![allow(unsafe_code)] // Pages of address space that comes and goes.

use crate::{Ground, Page, Wait};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use octavo_page::PAGE_SIZE;
use octavo_page::sync::Mutex;
use octavo_sys::memory::Reserve;

/// Gives pages while it has any. It may fail at any time: that is what the reserve is for.
///
/// What is given back and what is taken is ordered, as by one lock: a `give` whose pages a `take` missed sees
/// what its thread wrote before.
pub trait Source: Sync {
    /// Fills `places`, which are empty, from the first on, with as many pages as it can, and gives
    /// their number. With [`Wait::Yes`] it may take its time, but must not wait for pages to be
    /// given back: that is for the reserve to do.
    fn take(&self, places: &mut [Option<Page>], wait: Wait) -> usize;

    /// Takes back every page in `places`; they came from here.
    fn give(&self, places: &mut [Option<Page>]);
}

/// No source: all there is lies in the reserve. For who must not ask anybody for memory.
#[derive(Debug, Default)]
pub struct NoSource;

impl Source for NoSource {
    fn take(&self, _places: &mut [Option<Page>], _wait: Wait) -> usize {
        0
    }

    fn give(&self, places: &mut [Option<Page>]) {
        assert!(places.iter().all(Option::is_none), "a page of another reserve");
    }
}

/// Pages that somebody has over, last in first out. Holds what it was given, and makes none.
pub struct Recycler {
    pages: Mutex<Vec<Page>>,
    capacity: usize,
}

impl Recycler {
    /// Room for `capacity` pages, empty.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { pages: Mutex::new(Vec::with_capacity(capacity)), capacity }
    }

    /// Puts in every page of `ground`.
    ///
    /// # Panics
    /// When there is not that much room.
    pub fn stock(&self, ground: Ground) {
        let mut places: Vec<_> = ground.into_pages().1.into_iter().map(Some).collect();
        self.give(&mut places);
    }
}

impl Source for Recycler {
    fn take(&self, places: &mut [Option<Page>], _wait: Wait) -> usize {
        let mut pages = self.pages.lock();
        let count = places.len().min(pages.len());
        let from = pages.len() - count;
        places.iter_mut().zip(pages.drain(from..)).for_each(|(place, page)| *place = Some(page));
        count
    }

    fn give(&self, places: &mut [Option<Page>]) {
        let mut pages = self.pages.lock();
        for page in places.iter_mut().filter_map(Option::take) {
            assert!(pages.len() < self.capacity, "more pages than the recycler has room for");
            pages.push(page);
        }
    }
}

/// The operating system: pages of a range of addresses, backed when they are taken, unbacked when
/// they are given back. Pages that lie side by side cost one call together.
pub struct System {
    space: Reserve,
    /// A bit for each page that nobody has.
    free: Mutex<Box<[u64]>>,
}

/// Pages in a word of a bitmap, the most that one call backs.
const WORD: usize = u64::BITS as usize;

impl System {
    /// Takes pages from `ground`, of which whole words of 64 pages are used.
    #[must_use]
    pub fn new(ground: Ground) -> Self {
        let space = ground.into_memory();
        let words = space.span().len() / PAGE_SIZE / WORD;
        Self { space, free: Mutex::new(alloc::vec![u64::MAX; words].into()) }
    }

    /// Sets aside a run of free pages, at most `most`.
    fn set_aside(&self, most: usize) -> Option<Range<usize>> {
        let mut free = self.free.lock();
        let word = free.iter().position(|word| *word != 0)?;
        let start = free[word].trailing_zeros() as usize;
        let len = ((free[word] >> start).trailing_ones() as usize).min(most);
        free[word] &= !run_mask(start, len);
        Some(word * WORD + start..word * WORD + start + len)
    }

    fn release(&self, run: Range<usize>) {
        let mut free = self.free.lock();
        for page in run {
            let bit = 1 << (page % WORD);
            assert!(free[page / WORD] & bit == 0, "a page given back twice");
            free[page / WORD] |= bit;
        }
    }

    fn span(&self, run: &Range<usize>) -> Range<usize> {
        let at = |page| self.space.start() + page * PAGE_SIZE;
        at(run.start)..at(run.end)
    }

    fn number(&self, page: &Page) -> usize {
        assert!(self.space.span().contains(&page.address()), "a page of another source");
        (page.address() - self.space.start()) / PAGE_SIZE
    }
}

/// `len` bits from `start` on; `len` is at least 1.
const fn run_mask(start: usize, len: usize) -> u64 {
    (u64::MAX >> (WORD - len)) << start
}

impl Source for System {
    fn take(&self, places: &mut [Option<Page>], _wait: Wait) -> usize {
        let mut taken = 0;
        while taken < places.len() {
            let Some(run) = self.set_aside(places.len() - taken) else { break };
            let span = self.span(&run);
            if self.space.populate(span.clone()).is_err() {
                // Part of it may be backed.
                // SAFETY: set aside a moment ago, and no page was made of it.
                unsafe { self.space.discard(span) };
                self.release(run);
                break;
            }
            for (place, address) in places[taken..].iter_mut().zip(span.step_by(PAGE_SIZE)) {
                // SAFETY: mapped until the process ends, and nobody else sets it aside until the page
                // was given back.
                *place = Some(unsafe { Page::at(address) });
            }
            taken += run.len();
        }
        taken
    }

    fn give(&self, places: &mut [Option<Page>]) {
        let mut pages = places.iter_mut().filter_map(Option::take).map(|page| self.number(&page));
        let Some(first) = pages.next() else { return };
        let mut run = first..first + 1;
        let discard = |run: Range<usize>| {
            // SAFETY: these pages were given back: nobody has them any more.
            unsafe { self.space.discard(self.span(&run)) };
            self.release(run);
        };
        for page in pages {
            if page == run.end {
                run.end += 1;
            } else {
                discard(core::mem::replace(&mut run, page..page + 1));
            }
        }
        discard(run);
    }
}
