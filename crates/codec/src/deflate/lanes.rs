//! The matcher's way with many pages: three at a time, and no branch that cannot be predicted.
//!
//! What costs time in finding matches is waiting: for the length of one, which says where the next can
//! begin, and for branches that were guessed wrong. A page alone cannot do without either. Pages know
//! nothing of each other, so here each *lane* has one, and a step of a lane is a fixed row of
//! instructions, of which a processor overlaps those of all lanes:
//!
//! ```text
//!   at      ── hash of 5 bytes ──► the last two places ──► 32 bytes compared ─┐
//!   at + 1  ── hash of 5 bytes ──► the last two places ──► 32 bytes compared ─┴► the longest
//!
//!   5 bytes and more: a sequence is kept, and at = its end; fewer: at += 2, chosen without a branch
//! ```
//!
//! A sequence is written at each step, and overwritten by the next where it is not kept. Only a match of
//! all 32 bytes, a twentieth of them, is a branch, and the end of a page.
//!
//! What a page becomes depends on the page alone: not on the others, nor on their number.
//!
//! # Invariants
//!
//! - A table holds places before `at`, or zeros, which are a place, too: whatever it says is compared.
//! - The bytes behind a page are zeros. A match may run into them while it is found; it is cut at the end.
#![allow(unsafe_code)] // Vector instructions, and loads without bounds checks.

use super::matcher::{self, MIX, Sequence, in_pieces};
use crate::cpu;
use alloc::boxed::Box;
use core::arch::x86_64::{
    _MM_HINT_T0, _mm_prefetch, _mm256_cmpeq_epi8, _mm256_cmpneq_epi8_mask, _mm256_loadu_si256,
    _mm256_movemask_epi8,
};
use core::hint::select_unpredictable;

/// Bytes in the units that lanes take.
pub const PAGE: usize = 4096;
/// Pages at a time: with more they no longer fit the nearest cache.
const LANES: usize = 3;
/// Bytes that are compared at once.
const LOOK: usize = 32;
/// The shortest match that is taken; so many bytes are hashed.
const SHORTEST: usize = 5;
/// Where no match begins any more.
const LAST: usize = PAGE - SHORTEST + 1;
/// Binary logarithm of a table's length.
const TABLE: u32 = 10;
/// No kept sequence begins less than three bytes after the one before; one more is written and not kept.
const SEQUENCES: usize = PAGE / 3 + 2;

/// A page, and what is known of it.
#[repr(C, align(64))]
#[derive(Clone)]
struct Lane {
    /// And zeros behind it.
    page: [u8; PAGE + 2 * LOOK],
    /// By the hash of 5 bytes, the last two places where they were, the later one first.
    table: [[u16; 2]; 1 << TABLE],
    sequences: [Sequence; SEQUENCES],
}

/// How far a lane is.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    /// Sequences kept.
    kept: usize,
}

/// Pages to find matches in, and what becomes of them.
pub trait Pages {
    /// How many there are.
    fn count(&self) -> usize;
    /// Page `i`, [`PAGE`] bytes.
    fn page(&self, i: usize) -> &[u8];
    /// Takes what was found in page `i`, which is here, too. In any order.
    fn found(&mut self, i: usize, page: &[u8], sequences: &[Sequence]);
}

/// The memory of all lanes.
pub struct Lanes {
    lanes: Box<[Lane]>,
}

/// Whether this processor has what lanes need.
#[inline]
pub fn can() -> bool {
    cpu::has_avx2()
}

impl Lanes {
    pub fn new() -> Self {
        let lanes = Box::new_zeroed_slice(LANES);
        // SAFETY: a lane is whole numbers, and those may be zeros.
        Self { lanes: unsafe { lanes.assume_init() } }
    }

    /// Finds the matches in all pages. The sequences of a page are those it has alone.
    ///
    /// # Panics
    /// When this processor cannot ([`can`]), or a page is none.
    pub fn find(&mut self, pages: &mut impl Pages) {
        assert!(can(), "a processor with AVX2");
        let mut at_work = pages.count().min(LANES);
        let mut next = at_work;
        let mut page_of: [usize; LANES] = core::array::from_fn(|lane| lane);
        let mut places = [Place { at: 0, kept: 0 }; LANES];
        for (i, (lane, place)) in self.lanes.iter_mut().zip(&mut places).take(at_work).enumerate() {
            *place = lane.begin(pages.page(i));
        }
        while at_work > 0 {
            let lanes = self.lanes.first_chunk_mut().expect("all lanes");
            let ended = run(lanes, &mut places, at_work);
            let lane = &mut self.lanes[ended];
            let (page, sequences) = lane.ended(places[ended].kept);
            pages.found(page_of[ended], page, sequences);
            if next < pages.count() {
                (page_of[ended], next) = (next, next + 1);
                places[ended] = lane.begin(pages.page(page_of[ended]));
                if next < pages.count() {
                    fetch(pages.page(next));
                }
            } else {
                // Those at work are the first ones.
                at_work -= 1;
                if ended < at_work {
                    let (before, last) = self.lanes.split_at_mut(at_work);
                    before[ended].clone_from(&last[0]);
                    (places[ended], page_of[ended]) = (places[at_work], page_of[at_work]);
                }
            }
        }
    }
}

impl Lane {
    /// Begins a page.
    fn begin(&mut self, page: &[u8]) -> Place {
        self.page[..PAGE].copy_from_slice(page);
        self.table.fill([0; 2]);
        Place { at: 1, kept: 0 }
    }

    /// A page that is done and its sequences, of which the last is cut where the page ends: it begins far enough
    /// before.
    fn ended(&mut self, kept: usize) -> (&[u8], &[Sequence]) {
        const { assert!(LAST + 3 <= PAGE) };
        if let Some(last) = self.sequences[..kept].last_mut() {
            last.length = last.length.min(PAGE as u16 - last.at);
        }
        (&self.page[..PAGE], &self.sequences[..kept])
    }

    /// Keeps a match of [`LOOK`] bytes and more, and says where it is at then.
    #[cold]
    #[inline(never)]
    fn keep_long(&mut self, mut kept: usize, begin: usize, from: usize) -> Place {
        let page = &self.page[..PAGE];
        let length = LOOK + matcher::common(page, from + LOOK, begin + LOOK);
        in_pieces(begin, length, begin - from, |piece| {
            self.sequences[kept] = piece;
            kept += 1;
        });
        Place { at: begin + length, kept }
    }
}

/// Has a page brought to the nearest cache, for when it is begun.
#[inline(always)]
fn fetch(page: &[u8]) {
    for line in page.chunks(64) {
        // SAFETY: it reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// Works on the first `count` lanes until one is at its end, and says which.
fn run(lanes: &mut [Lane; LANES], places: &mut [Place; LANES], count: usize) -> usize {
    const { assert!(LANES == 3) };
    match (count, cpu::has_avx512()) {
        // SAFETY: the processor was asked, here and below by [`can`], and has what the function wants.
        (3, true) => unsafe { with_avx512::<3>(lanes, places) },
        // SAFETY: as above.
        (2, true) => unsafe { with_avx512::<2>(lanes, places) },
        // SAFETY: as above.
        (_, true) => unsafe { with_avx512::<1>(lanes, places) },
        // SAFETY: as above.
        (3, false) => unsafe { with_avx2::<3>(lanes, places) },
        // SAFETY: as above.
        (2, false) => unsafe { with_avx2::<2>(lanes, places) },
        // SAFETY: as above.
        (_, false) => unsafe { with_avx2::<1>(lanes, places) },
    }
}

#[inline(never)]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
fn with_avx2<const N: usize>(lanes: &mut [Lane; LANES], places: &mut [Place; LANES]) -> usize {
    steps::<N, false>(lanes, places)
}

#[inline(never)]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,avx512f,avx512bw,avx512vl")]
fn with_avx512<const N: usize>(lanes: &mut [Lane; LANES], places: &mut [Place; LANES]) -> usize {
    steps::<N, true>(lanes, places)
}

/// `N` lanes, of which each makes a step in turns. `MASKS`: whether vectors are compared to masks.
#[inline(always)]
fn steps<const N: usize, const MASKS: bool>(
    lanes: &mut [Lane; LANES],
    places: &mut [Place; LANES],
) -> usize {
    let [mut a, mut b, mut c] = *places;
    let ended = loop {
        a = step::<MASKS>(&mut lanes[0], a);
        if a.at >= LAST {
            break 0;
        }
        if N > 1 {
            b = step::<MASKS>(&mut lanes[1], b);
            if b.at >= LAST {
                break 1;
            }
        }
        if N > 2 {
            c = step::<MASKS>(&mut lanes[2], c);
            if c.at >= LAST {
                break 2;
            }
        }
    };
    *places = [a, b, c];
    ended
}

/// One step of a lane whose place is before [`LAST`].
#[inline(always)]
fn step<const MASKS: bool>(lane: &mut Lane, Place { at, kept }: Place) -> Place {
    debug_assert!(0 < at && at < LAST && kept < SEQUENCES - 1);
    let Lane { page, table, sequences } = lane;
    let (page, table, sequences) = (page.as_ptr(), table.as_mut_ptr(), sequences.as_mut_ptr());
    let seen = |at: usize| {
        // SAFETY: places are less than the page's length, and there are 64 bytes behind it.
        let word = unsafe { page.add(at).cast::<u64>().read_unaligned().to_le() };
        // SAFETY: a hash has as many bits as count the table's entries.
        let entry = unsafe { &mut *table.add(hash(word)) };
        let [late, early] = *entry;
        *entry = [at as u16, late];
        [usize::from(late), usize::from(early)]
    };
    // SAFETY: as for the word: 32 bytes from places before the page's end.
    let same = |from: usize, at: usize| unsafe { common::<MASKS>(page.add(from), page.add(at)) };
    let (here, next) = (seen(at), seen(at + 1));
    let best = |[late, early]: [usize; 2], at: usize| {
        let (late_length, early_length) = (same(late, at), same(early, at));
        let is_early = early_length > late_length;
        (late_length.max(early_length), select_unpredictable(is_early, early, late))
    };
    let (length, from) = best(here, at);
    let (next_length, next_from) = best(next, at + 1);
    let is_next = next_length > length;
    let begin = at + usize::from(is_next);
    let length = select_unpredictable(is_next, next_length, length);
    let from = select_unpredictable(is_next, next_from, from);
    if length as usize == LOOK {
        return lane.keep_long(kept, begin, from);
    }
    let (at_16, length_16, distance) = (begin as u16, length as u16, (begin - from) as u16);
    // SAFETY: no more sequences are kept than have room, and one more has.
    unsafe { *sequences.add(kept) = Sequence { at: at_16, length: length_16, distance } };
    let is_match = length as usize >= SHORTEST;
    Place {
        at: select_unpredictable(is_match, begin + length as usize, at + 2),
        kept: kept + usize::from(is_match),
    }
}

/// The hash of the first bytes of a word.
#[inline(always)]
fn hash(word: u64) -> usize {
    // The shift is the factor's: one instruction less.
    (word.wrapping_mul(MIX << (64 - 8 * SHORTEST)) >> (64 - TABLE)) as usize
}

/// How many bytes at the front of 32 are the same.
///
/// # Safety
/// There are 32 bytes at both places, and the processor compares vectors of 32 bytes, to masks if it is to.
#[inline(always)]
unsafe fn common<const MASKS: bool>(a: *const u8, b: *const u8) -> u32 {
    // SAFETY: as the caller says.
    unsafe {
        let (a, b) = (_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast()));
        let differ = if MASKS {
            _mm256_cmpneq_epi8_mask(a, b)
        } else {
            !_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)) as u32
        };
        differ.trailing_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::super::matcher::tests::played;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// What a step does, one page after the other and one byte after the other.
    fn plain(page: &[u8]) -> Vec<Sequence> {
        let padded = [page, &[0; 2 * LOOK]].concat();
        let mut table = [[0u16; 2]; 1 << TABLE];
        let mut kept = Vec::new();
        let mut at = 1;
        while at < LAST {
            let mut candidates = Vec::new();
            for at in [at, at + 1] {
                let word = u64::from_le_bytes(*padded[at..].first_chunk().expect("a word"));
                let entry = &mut table[hash(word)];
                candidates.extend(entry.map(|from| (at, usize::from(from))));
                *entry = [at as u16, entry[0]];
            }
            let (mut length, mut begin, mut from) = (0, at, 0);
            for (at, place) in candidates {
                let here = padded[at..at + LOOK].iter().zip(&padded[place..]);
                let n = here.take_while(|(a, b)| a == b).count();
                if n > length {
                    (length, begin, from) = (n, at, place);
                }
            }
            if length < SHORTEST {
                at += 2;
                continue;
            }
            while length >= LOOK
                && begin + length < PAGE
                && page[begin + length] == page[from + length]
            {
                length += 1;
            }
            at = begin + length;
            in_pieces(begin, length, begin - from, |piece| kept.push(piece));
        }
        if let Some(last) = kept.last_mut() {
            last.length = last.length.min(PAGE as u16 - last.at);
        }
        kept
    }

    /// Pages, and what is found in each.
    struct Found<'p> {
        pages: &'p [Vec<u8>],
        sequences: Vec<Option<Vec<Sequence>>>,
    }

    impl Pages for Found<'_> {
        fn count(&self) -> usize {
            self.pages.len()
        }

        fn page(&self, i: usize) -> &[u8] {
            &self.pages[i]
        }

        fn found(&mut self, i: usize, page: &[u8], sequences: &[Sequence]) {
            assert!(page == self.pages[i], "another page");
            let before = self.sequences[i].replace(sequences.to_vec());
            assert!(before.is_none(), "page {i} twice");
        }
    }

    fn find(lanes: &mut Lanes, pages: &[Vec<u8>]) -> Vec<Vec<Sequence>> {
        let mut found = Found { pages, sequences: std::vec![None; pages.len()] };
        lanes.find(&mut found);
        found.sequences.into_iter().map(|sequences| sequences.expect("each page")).collect()
    }

    /// Runs of what repeats, cut or filled up to a page.
    fn page() -> impl Strategy<Value = Vec<u8>> {
        let run = (proptest::collection::vec(any::<u8>(), 1..12), 1usize..80);
        proptest::collection::vec(run, 1..200).prop_map(|runs| {
            let mut page: Vec<u8> = runs.into_iter().flat_map(|(v, n)| v.repeat(n)).collect();
            page.resize(PAGE, 7);
            page
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn together_is_one_by_one(pages in proptest::collection::vec(page(), 0..9)) {
            let mut lanes = Lanes::new();
            // What the pages before left changes nothing.
            for _ in 0..2 {
                for (page, sequences) in pages.iter().zip(find(&mut lanes, &pages)) {
                    prop_assert!(sequences == plain(page), "not as one by one");
                    prop_assert!(played(&sequences, page, PAGE) == *page, "another page");
                }
            }
        }

        #[test]
        fn masks_say_what_bytes_say(pages in proptest::collection::vec(page(), 3)) {
            assert!(can(), "tests want a processor with AVX2");
            if !cpu::has_avx512() {
                return Ok(());
            }
            let mut lanes = [Lanes::new(), Lanes::new()];
            let mut ended = [0; 2];
            for (masks, (lanes, ended)) in lanes.iter_mut().zip(&mut ended).enumerate() {
                let mut places = [Place { at: 0, kept: 0 }; LANES];
                for (i, page) in pages.iter().enumerate() {
                    places[i] = lanes.lanes[i].begin(page);
                }
                let lanes = lanes.lanes.first_chunk_mut().expect("all lanes");
                // SAFETY: the processor was asked.
                *ended = unsafe {
                    if masks == 1 { with_avx512::<3>(lanes, &mut places) } else { with_avx2::<3>(lanes, &mut places) }
                };
            }
            prop_assert_eq!(ended[0], ended[1]);
            let [plain, masks] = lanes;
            for (a, b) in plain.lanes.iter().zip(&masks.lanes) {
                prop_assert!(a.table == b.table && a.sequences == b.sequences);
            }
        }
    }

    #[test]
    fn a_match_ends_where_its_page_does() {
        let mut lanes = Lanes::new();
        for end in 0..40 {
            // Zeros at the end, which go on behind it; before them nothing repeats.
            let mut page: Vec<u8> =
                (0..PAGE as u32).map(|i| (i.wrapping_mul(i * 7919) >> 7) as u8 | 1).collect();
            page[PAGE - end..].fill(0);
            page[20..60].fill(0);
            let sequences = find(&mut lanes, &[page.clone()]).remove(0);
            assert_eq!(played(&sequences, &page, PAGE), page, "{end} zeros");
            assert_eq!(sequences, plain(&page));
        }
    }
}
