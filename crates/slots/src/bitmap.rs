//! The 512 slots of a cluster as bits: which are taken, and where an aligned run is free.
//!
//! ```text
//!   word 0            word 1                 word 7
//!   [0 ......... 63][64 ........ 127] ... [448 ....... 511]     1 = taken
//!    |      |
//!    |      a folio of order k starts at a multiple of 2^k, so it never straddles
//!    |      a word (k <= 6) or is made of whole words (k > 6)
//!    bit 0 of word 0 is the cluster's first slot
//! ```
//!
//! The words are atomic only so that who holds the cluster's lock can write them through a shared
//! reference. Nobody touches them without it, so all accesses are relaxed, and cost what plain ones do.

// Not those of a model: the lock orders them, so there is nothing to explore.
use core::sync::atomic::{AtomicU64, Ordering};
use octavo_page::Order;

/// Slots in a cluster: as many as the largest folio has pages.
pub(crate) const CLUSTER_SLOTS: usize = Order::MAX.pages();

const BITS: usize = 64;
const WORDS: usize = CLUSTER_SLOTS / BITS;
/// Binary logarithm of the bits in a word: a run of this order fills one word.
const WORD_ORDER: u8 = 6;

const _: () = assert!(CLUSTER_SLOTS.is_multiple_of(BITS));

/// A bit for each slot of a cluster, set while the slot is taken.
#[derive(Debug)]
pub(crate) struct Bitmap([AtomicU64; WORDS]);

impl Bitmap {
    /// No slot taken.
    pub(crate) const fn empty() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }

    #[inline]
    fn set_word(&self, index: usize, word: u64) {
        self.0[index].store(word, Ordering::Relaxed);
    }

    /// How many slots are taken.
    pub(crate) fn count(&self) -> usize {
        (0..WORDS).map(|index| self.word(index).count_ones() as usize).sum()
    }

    /// The first aligned free run of `order` that starts at `from` or later.
    ///
    /// `from` is a multiple of the run's length.
    #[inline]
    pub(crate) fn free_run(&self, order: Order, from: usize) -> Option<usize> {
        debug_assert!(from.is_multiple_of(order.pages()) && from < CLUSTER_SLOTS);
        if order.get() > WORD_ORDER {
            return self.free_words(order, from);
        }
        let mut below = !(u64::MAX << (from % BITS));
        (from / BITS..WORDS).find_map(|index| {
            let starts = run_starts(self.word(index), order) & !below;
            below = 0;
            (starts != 0).then(|| index * BITS + starts.trailing_zeros() as usize)
        })
    }

    /// [`Self::free_run`] for runs of whole words.
    fn free_words(&self, order: Order, from: usize) -> Option<usize> {
        let step = order.pages() / BITS;
        (from / BITS..WORDS)
            .step_by(step)
            .find(|&first| self.are_free(first, step))
            .map(|first| first * BITS)
    }

    /// Whether nothing of these words is taken.
    fn are_free(&self, first: usize, words: usize) -> bool {
        (first..first + words).all(|index| self.word(index) == 0)
    }

    /// Takes the run that [`Self::free_run`] finds.
    #[inline]
    pub(crate) fn take_run(&self, order: Order, from: usize) -> Option<usize> {
        // Most often the next is in the word of the last.
        if order.get() <= WORD_ORDER {
            let (index, word) = (from / BITS, self.word(from / BITS));
            let starts = run_starts(word, order) & (u64::MAX << (from % BITS));
            if starts != 0 {
                let bit = starts.trailing_zeros() as usize;
                self.set_word(index, word | RUN[usize::from(order.get())] << bit);
                return Some(index * BITS + bit);
            }
        }
        self.take_run_further(order, from)
    }

    /// Takes the run that [`Self::free_run`] finds, and those behind it that are free, up to `most` together as
    /// far as its word goes; the first, and how many.
    #[inline]
    pub(crate) fn take_row(
        &self,
        order: Order,
        from: usize,
        most: usize,
    ) -> Option<(usize, usize)> {
        let first = self.take_run(order, from)?;
        let (index, end) = (first / BITS, first % BITS + order.pages());
        if end >= BITS {
            return Some((first, 1));
        }
        let word = self.word(index);
        let free = ((word >> end).trailing_zeros() as usize).min(BITS - end) >> order.get();
        let more = free.min(most.saturating_sub(1));
        // As the first run is there, these are less than a word.
        self.set_word(index, word | ((1 << (more * order.pages())) - 1) << end);
        Some((first, 1 + more))
    }

    /// [`Self::take_run`], wherever it is.
    #[inline(never)]
    fn take_run_further(&self, order: Order, from: usize) -> Option<usize> {
        let first = self.free_run(order, from)?;
        self.set(first, order.pages());
        Some(first)
    }

    /// How many aligned runs of `order` are free.
    pub(crate) fn free_runs(&self, order: Order) -> usize {
        if order.get() > WORD_ORDER {
            let step = order.pages() / BITS;
            return (0..WORDS).step_by(step).filter(|first| self.are_free(*first, step)).count();
        }
        (0..WORDS).map(|index| run_starts(self.word(index), order).count_ones() as usize).sum()
    }

    /// The first free slot in `first..first + len`, if one is.
    pub(crate) fn first_free(&self, first: usize, len: usize) -> Option<usize> {
        each_word(first, len).find_map(|(index, mask)| {
            let free = mask & !self.word(index);
            (free != 0).then(|| index * BITS + free.trailing_zeros() as usize)
        })
    }

    /// The first taken slot at `from` or later, if one is.
    pub(crate) fn first_taken(&self, from: usize) -> Option<usize> {
        each_word(from, CLUSTER_SLOTS - from).find_map(|(index, mask)| {
            let taken = mask & self.word(index);
            (taken != 0).then(|| index * BITS + taken.trailing_zeros() as usize)
        })
    }

    /// Takes the slots `first..first + len`, all of which are free.
    #[inline]
    pub(crate) fn set(&self, first: usize, len: usize) {
        if let Some((index, mask)) = in_word(first, len) {
            self.set_in_word(index, mask);
        } else {
            self.set_words(first, len);
        }
    }

    /// [`Self::set`] for slots in several words.
    #[inline(never)]
    fn set_words(&self, first: usize, len: usize) {
        each_word(first, len).for_each(|(index, mask)| self.set_in_word(index, mask));
    }

    #[inline]
    fn set_in_word(&self, index: usize, mask: u64) {
        let word = self.word(index);
        debug_assert_eq!(word & mask, 0, "a slot given twice");
        self.set_word(index, word | mask);
    }

    /// Gives back the slots `first..first + len`, or none of them: then the first that is free.
    #[inline]
    pub(crate) fn clear(&self, first: usize, len: usize) -> Result<(), usize> {
        if let Some((index, mask)) = in_word(first, len) {
            let word = self.word(index);
            let free = mask & !word;
            if free != 0 {
                return Err(index * BITS + free.trailing_zeros() as usize);
            }
            self.set_word(index, word & !mask);
            return Ok(());
        }
        self.clear_words(first, len)
    }

    /// [`Self::clear`] for slots in several words.
    #[inline(never)]
    fn clear_words(&self, first: usize, len: usize) -> Result<(), usize> {
        if let Some(free) = self.first_free(first, len) {
            return Err(free);
        }
        for (index, mask) in each_word(first, len) {
            self.set_word(index, self.word(index) & !mask);
        }
        Ok(())
    }
}

/// The bits of `word` at which an aligned run of `order` is free; `order` is at most 6.
#[inline]
fn run_starts(word: u64, order: Order) -> u64 {
    // After step k a bit says whether any of the 2^(k+1) slots from it on is taken.
    let taken = (0..order.get()).fold(word, |taken, k| taken | taken >> (1_u32 << k));
    !taken & ALIGNED[usize::from(order.get())]
}

/// For each order up to 6, the bits at which a run may start.
const ALIGNED: [u64; WORD_ORDER as usize + 1] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// For each order up to 6, the bits of the run that starts at bit 0.
const RUN: [u64; WORD_ORDER as usize + 1] =
    [0x1, 0x3, 0xf, 0xff, 0xffff, 0xffff_ffff, 0xffff_ffff_ffff_ffff];

/// The word that `first..first + len` lies in, and its bits there, unless it is empty or lies in
/// several: all but the largest folios lie in one.
#[inline]
fn in_word(first: usize, len: usize) -> Option<(usize, u64)> {
    let from = first % BITS;
    let inside = len != 0 && from + len <= BITS;
    inside.then(|| (first / BITS, (u64::MAX >> (BITS - len)) << from))
}

/// The words that `first..first + len` touches, each with the bits of it that lie in the range.
fn each_word(first: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = first + len;
    debug_assert!(end <= CLUSTER_SLOTS);
    (first / BITS..end.div_ceil(BITS)).map(move |index| {
        let from = first.max(index * BITS) - index * BITS;
        let until = end.min((index + 1) * BITS) - index * BITS;
        (index, (u64::MAX >> (BITS - (until - from))) << from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// The plain twin of the bitmap.
    fn taken(bits: &[bool]) -> Bitmap {
        let map = Bitmap::empty();
        for (slot, _) in bits.iter().enumerate().filter(|(_, taken)| **taken) {
            map.set(slot, 1);
        }
        map
    }

    fn words(map: &Bitmap) -> [u64; WORDS] {
        core::array::from_fn(|index| map.word(index))
    }

    fn plain_free_run(bits: &[bool], order: Order, from: usize) -> Option<usize> {
        (from..CLUSTER_SLOTS)
            .step_by(order.pages())
            .find(|&first| !bits[first..first + order.pages()].contains(&true))
    }

    /// Mostly empty to mostly full, so that long runs are found and missed.
    fn bits() -> impl Strategy<Value = Vec<bool>> {
        (0.0..1.0_f64).prop_flat_map(|p| {
            prop::collection::vec(prop::bool::weighted(p * p * p), CLUSTER_SLOTS)
        })
    }

    proptest! {
        #[test]
        fn a_free_run_is_where_the_plain_search_finds_it(
            bits in bits(), order in 0..=9_u8, from in 0..CLUSTER_SLOTS,
        ) {
            let order = Order::new(order).unwrap();
            let from = from & !(order.pages() - 1);
            prop_assert_eq!(taken(&bits).free_run(order, from), plain_free_run(&bits, order, from));
            let runs = bits.chunks(order.pages()).filter(|run| !run.contains(&true)).count();
            prop_assert_eq!(taken(&bits).free_runs(order), runs);
            let (with_run, expected) = (taken(&bits), taken(&bits));
            let first = with_run.take_run(order, from);
            prop_assert_eq!(first, expected.free_run(order, from));
            first.into_iter().for_each(|first| expected.set(first, order.pages()));
            prop_assert_eq!(words(&with_run), words(&expected));
        }

        #[test]
        fn a_row_is_the_runs_that_would_be_taken_one_by_one(
            bits in bits(), order in 0..=9_u8, from in 0..CLUSTER_SLOTS, most in 1..40_usize,
        ) {
            let order = Order::new(order).unwrap();
            let from = from & !(order.pages() - 1);
            let (row, expected) = (taken(&bits), taken(&bits));
            let Some((first, runs)) = row.take_row(order, from, most) else {
                prop_assert_eq!(expected.take_run(order, from), None);
                return Ok(());
            };
            prop_assert!((1..=most).contains(&runs));
            let mut next = from;
            for n in 0..runs {
                let run = first + n * order.pages();
                prop_assert_eq!(expected.take_run(order, next), Some(run));
                next = run + order.pages();
            }
            prop_assert_eq!(words(&row), words(&expected));
        }

        #[test]
        fn ranges_are_set_and_cleared_exactly(first in 0..CLUSTER_SLOTS, len in 1..=CLUSTER_SLOTS) {
            let len = len.min(CLUSTER_SLOTS - first);
            let map = Bitmap::empty();
            map.set(first, len);
            prop_assert_eq!(map.count(), len);
            prop_assert_eq!(map.first_free(first, len), None);
            prop_assert_eq!(map.first_taken(0), Some(first));
            prop_assert_eq!(map.first_taken(first + len - 1), Some(first + len - 1));
            let hole = first + len / 2;
            prop_assert_eq!(map.clear(hole, 1), Ok(()));
            prop_assert_eq!(map.clear(hole, 1), Err(hole));
            prop_assert_eq!(map.first_free(first, len), Some(hole));
            let holed = words(&map);
            prop_assert_eq!(map.clear(first, len), Err(hole));
            prop_assert_eq!(words(&map), holed);
            map.set(hole, 1);
            prop_assert_eq!(map.clear(first, len), Ok(()));
            prop_assert_eq!(words(&map), [0; WORDS]);
            prop_assert_eq!(map.first_taken(first), None);
        }
    }
}
