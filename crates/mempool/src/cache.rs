//! A few pages for one CPU, so that most single pages cost one lock that nobody else takes.
//!
//! A cache takes and gives batches of half its size, and is no place to hide pages in: who comes up
//! short empties all caches, and while somebody waits nothing is put in. For that, who waits makes
//! `waiting` nonzero *before* it empties the caches, and who puts a page in looks at it *under the
//! cache's lock*: either the page was there before the emptying and went with it, or the lock was
//! taken after it, and then the look sees that somebody waits.

use crate::Page;
use octavo_page::sync::Mutex;
use octavo_page::sync::atomic::{AtomicU64, Ordering};

/// Pages that a cache holds at most.
pub(crate) const CACHE: usize = if cfg!(loom) { 2 } else { 32 };

/// Pages that it takes and gives at a time.
pub(crate) const BATCH: usize = CACHE / 2;

/// The pages of one CPU, in lines of the processor's cache of their own.
#[repr(align(128))]
pub(crate) struct Cache(Mutex<Pages>);

struct Pages {
    /// The first `len` places are taken.
    places: [Option<Page>; CACHE],
    len: usize,
    /// Pages that were got from here.
    hits: u64,
}

impl Cache {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Pages { places: [const { None }; CACHE], len: 0, hits: 0 }))
    }

    pub(crate) fn take(&self) -> Option<Page> {
        let mut pages = self.0.lock();
        let last = pages.len.checked_sub(1)?;
        pages.len = last;
        pages.hits += 1;
        pages.places[last].take()
    }

    /// Puts in the pages of `places`, as far as there is room and while nobody waits.
    pub(crate) fn put(&self, places: &mut [Option<Page>], waiting: &AtomicU64) {
        let mut pages = self.0.lock();
        if waiting.load(Ordering::Relaxed) > 0 {
            return;
        }
        let Pages { places: room, len, .. } = &mut *pages;
        let taken = places.iter_mut().filter(|place| place.is_some());
        for (free, place) in room[*len..].iter_mut().zip(taken) {
            *free = place.take();
            *len += 1;
        }
    }

    /// Fills `places` with what is in, last in first out; whether that was anything.
    pub(crate) fn empty(&self, places: &mut [Option<Page>]) -> bool {
        let mut pages = self.0.lock();
        let end = pages.len;
        pages.len -= end.min(places.len());
        let start = pages.len;
        let taken = &mut pages.places[start..end];
        places.iter_mut().zip(taken.iter_mut()).for_each(|(place, page)| *place = page.take());
        end > start
    }

    /// Pages that are in, and that were got from here so far.
    pub(crate) fn count(&self) -> (usize, u64) {
        let pages = self.0.lock();
        (pages.len, pages.hits)
    }
}
