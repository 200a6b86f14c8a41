//! Counting, once for each batch.

use crate::errors::PutError;
use crate::word::Word;
use octavo_page::SlotId;
use octavo_page::sync::atomic::{AtomicUsize, Ordering};

/// What a store holds and what it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Pages held, same-filled ones included.
    pub stored_pages: usize,
    /// Pages held as one word.
    pub same_filled_pages: usize,
    /// Pages refused since the start because they did not fit, each time they were offered.
    pub incompressible_pages: usize,
    /// Bytes of the objects in the pool.
    pub compressed_bytes: usize,
    /// Bytes that all of this takes: frames, handles and descriptors of the pool, and the tables of
    /// the slots as far as they were ever used.
    pub pool_bytes: usize,
    /// Objects in the pool.
    pub objects: usize,
}

/// Counters that all threads share. Each wraps on its own; a difference is exact.
#[derive(Default)]
pub(crate) struct Counters {
    stored: AtomicUsize,
    same_filled: AtomicUsize,
    incompressible: AtomicUsize,
}

/// What one batch changes.
#[derive(Default)]
pub(crate) struct Tally {
    stored: isize,
    same_filled: isize,
    incompressible: isize,
}

impl Tally {
    pub(crate) fn count_put(&mut self, words: &[Word], result: Result<SlotId, PutError>) {
        match result {
            Ok(_) => {
                self.stored += words.len() as isize;
                let filled = words.iter().filter(|word| matches!(word, Word::Filled(_)));
                self.same_filled += filled.count() as isize;
            }
            Err(PutError::DoesNotFit) => self.incompressible += words.len() as isize,
            Err(_) => {}
        }
    }

    /// Counts a page that was held and is not any more. A poisoned one was counted when it was lost.
    pub(crate) fn count_freed(&mut self, word: Word) {
        self.stored -= isize::from(matches!(word, Word::Filled(_) | Word::Compressed(_)));
        self.same_filled -= isize::from(matches!(word, Word::Filled(_)));
    }
}

impl Counters {
    pub(crate) fn add(&self, tally: &Tally) {
        let add = |counter: &AtomicUsize, change: isize| {
            if change != 0 {
                counter.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
            }
        };
        add(&self.stored, tally.stored);
        add(&self.same_filled, tally.same_filled);
        add(&self.incompressible, tally.incompressible);
    }

    pub(crate) fn read(&self) -> Stats {
        Stats {
            stored_pages: self.stored.load(Ordering::Relaxed),
            same_filled_pages: self.same_filled.load(Ordering::Relaxed),
            incompressible_pages: self.incompressible.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }
}
