//! Counting, once for each batch.

use crate::errors::PutError;
use crate::word::{RAW, Word};
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
    /// Pages held as they are, because their unit did not fit and its folio was not refused, or came
    /// back wrong.
    pub raw_pages: usize,
    /// Units that a device compressed to something else since the start, as its checksum told.
    pub unverified_units: usize,
    /// Bytes of the objects in the pool.
    pub compressed_bytes: usize,
    /// Bytes that all of this takes: frames, handles and descriptors of the pool, and the tables of
    /// the slots as far as they were ever used.
    pub pool_bytes: usize,
    /// Objects in the pool.
    pub objects: usize,
    /// What is learnt, in `pool_bytes` too.
    pub learnt: LearntStats,
}

/// Tables that were learnt from what was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LearntStats {
    /// Objects that were made with learnt tables and are kept, and workers that are making some.
    pub objects: usize,
    /// Bytes that tables and learning take.
    pub bytes: usize,
}

/// Counters that all threads share. Each wraps on its own; a difference is exact.
#[derive(Default)]
pub(crate) struct Counters {
    stored: AtomicUsize,
    same_filled: AtomicUsize,
    incompressible: AtomicUsize,
    raw: AtomicUsize,
    unverified: AtomicUsize,
}

/// What one batch changes.
#[derive(Default)]
pub(crate) struct Tally {
    stored: isize,
    same_filled: isize,
    incompressible: isize,
    raw: isize,
}

impl Tally {
    /// Counts a folio that is held now.
    pub(crate) fn count_put(&mut self, words: &[Word]) {
        self.stored += words.len() as isize;
        words.iter().for_each(|word| self.count_form(*word, 1));
    }

    /// Counts a folio that was refused.
    pub(crate) fn count_refused(&mut self, pages: usize, result: Result<SlotId, PutError>) {
        if result == Err(PutError::DoesNotFit) {
            self.incompressible += pages as isize;
        }
    }

    /// Counts a page that is held in this form, or (-1) is not any more.
    fn count_form(&mut self, word: Word, change: isize) {
        match word {
            Word::Filled(_) => self.same_filled += change,
            Word::Compressed(object) if object.codec == RAW => self.raw += change,
            Word::Compressed(_) | Word::Empty | Word::Poisoned => {}
        }
    }

    /// Counts a page that was held and is not any more. A poisoned one was counted when it was lost.
    pub(crate) fn count_freed(&mut self, word: Word) {
        self.stored -= isize::from(matches!(word, Word::Filled(_) | Word::Compressed(_)));
        self.count_form(word, -1);
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
        add(&self.raw, tally.raw);
    }

    /// Counts a unit that came back wrong.
    #[cold]
    pub(crate) fn note_unverified(&self) {
        self.unverified.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Stats {
        Stats {
            stored_pages: self.stored.load(Ordering::Relaxed),
            same_filled_pages: self.same_filled.load(Ordering::Relaxed),
            incompressible_pages: self.incompressible.load(Ordering::Relaxed),
            raw_pages: self.raw.load(Ordering::Relaxed),
            unverified_units: self.unverified.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }
}
