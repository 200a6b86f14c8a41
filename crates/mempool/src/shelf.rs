//! The reserve's pages, and the queue of those who wait for them. Everything here is under one lock.
//!
//! A turn is a number, given out in order. The turn that is served is the head of the queue: only it
//! takes from the shelf, so nobody overtakes it, and what comes back piles up for it. The others
//! hold nothing. So there is no one for whom the head could wait in vain.

use crate::{Page, Step, Wait};
use alloc::vec::Vec;
use octavo_page::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Shelf {
    /// Never more than there is room for: pages come back where they were taken.
    pages: Vec<Page>,
    capacity: usize,
    /// The turn of who comes next.
    next: u64,
    /// The turn that is served; equal to `next` when nobody waits.
    served: u64,
    /// Pages that the head waits for.
    pub(crate) wanted: usize,
    /// How often the source got pages back while somebody waited.
    pub(crate) gifts: u64,
    /// Step 1 so far, where it gave too little, counted by who comes here for the rest: under this lock that costs
    /// nothing, and outside of it as much as a lock.
    pub(crate) short: Step,
    /// Step 2 so far.
    pub(crate) taken: Step,
}

impl Shelf {
    /// Holds `pages`, and never more than these.
    pub(crate) fn new(pages: Vec<Page>) -> Self {
        let capacity = pages.len();
        Self {
            pages,
            capacity,
            next: 0,
            served: 0,
            wanted: 0,
            gifts: 0,
            short: Step::default(),
            taken: Step::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    #[inline]
    pub(crate) fn put(&mut self, page: Page) {
        assert!(self.pages.len() < self.capacity, "a page was given back twice");
        self.pages.push(page);
    }

    /// All pages that are there.
    pub(crate) fn pages(&mut self) -> impl Iterator<Item = Page> {
        self.pages.drain(..)
    }

    /// Fills the first of `places`, as far as there are pages, and gives their number.
    pub(crate) fn take(&mut self, places: &mut [Option<Page>]) -> usize {
        let count = places.len().min(self.pages.len());
        let from = self.pages.len() - count;
        let pages = self.pages.drain(from..);
        places.iter_mut().zip(pages).for_each(|(place, page)| *place = Some(page));
        count
    }

    /// As [`take`](Self::take) for who has no turn: nothing while there is a queue, and for who may
    /// wait all or nothing.
    #[inline]
    pub(crate) fn take_unless_queued(&mut self, places: &mut [Option<Page>], wait: Wait) -> usize {
        let short = wait == Wait::Yes && self.pages.len() < places.len();
        if short || self.queued() > 0 { 0 } else { self.take(places) }
    }

    /// Stands at the end of the queue, and gives the turn; `waiting` is to have the queue's length.
    pub(crate) fn queue(&mut self, waiting: &AtomicU64) -> u64 {
        self.next += 1;
        waiting.store(self.queued(), Ordering::Relaxed);
        self.next - 1
    }

    /// How many stand in the queue, its head included.
    pub(crate) fn queued(&self) -> u64 {
        self.next - self.served
    }

    /// The turn of the head; of who will be it when nobody waits.
    pub(crate) fn served(&self) -> u64 {
        self.served
    }

    /// The head has what it wanted and leaves the queue.
    pub(crate) fn leave(&mut self, waiting: &AtomicU64) {
        self.served += 1;
        self.wanted = 0;
        waiting.store(self.queued(), Ordering::Relaxed);
    }
}
