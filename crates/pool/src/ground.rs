//! The raw memory under the lanes: an arena cut into zspages, read and written by word.
#![allow(unsafe_code)] // Tags and objects lie in raw memory that comes and goes page by page.

use core::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use core::ops::Range;
use core::ptr::NonNull;
use core::slice;
use octavo_page::PAGE_SIZE;
use octavo_page::sync::atomic::AtomicU32;

use crate::handles::Object;
use crate::zspages::Zspages;
use crate::{Arena, Config, OutOfFrames};

/// Bytes of a word, the grain in which blocks are placed.
pub(crate) const WORD: usize = size_of::<u32>();
/// Words in a page.
pub(crate) const PAGE_WORDS: u32 = (PAGE_SIZE / WORD) as u32;
/// Words in a line of the cache.
const LINE_WORDS: usize = 16;
/// Words of an object that are fetched ahead.
const FETCHED: usize = 1024 / WORD;
/// Bytes that an object has to leave of a slot to be packed.
const HUGE_MARGIN: usize = 16 * WORD;

/// How an arena is cut up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The largest object, in bytes.
    pub max_object: usize,
    /// Pages of the largest object.
    pub slot_pages: u32,
    /// Slots of that size in a zspage: the chain length.
    pub slots: u32,
    /// Words in a zspage.
    pub words: u32,
    /// 2^32 over the pages of a zspage, rounded up: dividing a place by a zspage is on every path.
    inverse: u64,
}

impl Shape {
    pub(crate) const fn new(config: &Config) -> Self {
        let slot_pages = config.max_object.div_ceil(PAGE_SIZE) as u32;
        let slots = config.chain.get() as u32;
        let pages = slots * slot_pages;
        let words = pages * PAGE_WORDS;
        let inverse = (1_u64 << 32).div_ceil(pages as u64);
        Self { max_object: config.max_object, slot_pages, slots, words, inverse }
    }

    /// The largest object, in bytes, that is packed among others; larger ones are huge. What they
    /// leave of their pages is next to nothing.
    pub(crate) fn max_packed(&self) -> usize {
        (self.slot_pages as usize * PAGE_SIZE - HUGE_MARGIN).min(self.max_object)
    }

    /// Zspages in an arena of `pages` pages. Every place in them and one past fits 32 bits.
    pub(crate) fn zspages_in(&self, pages: usize) -> usize {
        (pages / self.pages() as usize).min((u32::MAX / self.words) as usize)
    }

    /// Pages in a zspage.
    pub(crate) const fn pages(&self) -> u32 {
        self.words / PAGE_WORDS
    }

    /// The zspage that the word lies in. Exact, as there are below 2^22 pages in an arena and at
    /// most 2^8 in a zspage: the error of the inverse adds up to less than one part of a page.
    pub(crate) const fn zspage_of(&self, at: u32) -> u32 {
        (((at / PAGE_WORDS) as u64 * self.inverse) >> 32) as u32
    }

    /// Whether a zspage starts or ends here.
    pub(crate) const fn is_border(&self, at: u32) -> bool {
        self.start(self.zspage_of(at)) == at
    }

    /// The first word of a zspage.
    pub(crate) const fn start(&self, zspage: u32) -> u32 {
        zspage * self.words
    }
}

/// The arena and its zspages.
pub(crate) struct Ground<A> {
    pub arena: A,
    pub shape: Shape,
    pub zspages: Zspages,
    /// A bit for each lane that compaction could help: only a hint, as each lane knows for itself.
    pub wasteful: AtomicU32,
    /// A bit for each lane with razed zspages whose pages are to be given back; a hint as well.
    pub razed: AtomicU32,
}

impl<A: Arena> Ground<A> {
    pub(crate) fn commit(&self, pages: Range<u32>) -> Result<(), OutOfFrames> {
        self.arena.commit(pages.start as usize, pages.len())
    }

    pub(crate) fn decommit(&self, runs: &[Range<u32>]) {
        if !runs.is_empty() {
            self.arena.decommit(runs);
        }
    }

    /// Reads a tag.
    ///
    /// # Safety
    /// The page is committed and the caller holds the lock of the lane that owns the zspage.
    pub(crate) unsafe fn tag(&self, at: u32) -> u32 {
        // SAFETY: the arena's contract: a committed page is readable, and only we write it; tags of
        // a zspage are touched by the holder of its lane's lock only.
        unsafe { self.word(at).read() }
    }

    /// Writes a tag.
    ///
    /// # Safety
    /// As [`tag`](Self::tag), and the word belongs to no object.
    pub(crate) unsafe fn set_tag(&self, at: u32, value: u32) {
        // SAFETY: as in `tag`; no object's bytes are borrowed where a tag stands.
        unsafe { self.word(at).write(value) }
    }

    /// The first word of an object that is dead.
    ///
    /// # Safety
    /// Nobody reads the object, and its space was not given back: its bytes are the caller's.
    pub(crate) unsafe fn link(&self, object: Object) -> NonNull<u32> {
        // SAFETY: a block's pages are committed until its space is given back, and it has a word at least.
        unsafe { self.word(object.place) }
    }

    /// Copies the bytes of an object to the words from `to` on.
    ///
    /// # Safety
    /// `object` is published and the lane's lock keeps its block from being reused; the words from
    /// `to` on are a carved block that no handle names yet.
    pub(crate) unsafe fn copy(&self, object: Object, to: u32) {
        // SAFETY: both runs are committed and inside the arena; one is only read by anybody, the
        // other is known to the caller alone, so they do not overlap.
        unsafe {
            let from = self.word(object.place).cast::<u8>();
            self.word(to).cast::<u8>().copy_from_nonoverlapping(from, object.len);
        }
    }

    /// The bytes of an object.
    ///
    /// # Safety
    /// The caller holds a pin on it, so that its block stays as it is while the slice lives.
    pub(crate) unsafe fn bytes(&self, object: Object) -> &[u8] {
        // SAFETY: a block's pages are committed while its object lives or is pinned, and nobody
        // writes the bytes of a written object.
        unsafe { slice::from_raw_parts(self.word(object.place).cast().as_ptr(), object.len) }
    }

    /// The bytes of an object that is being made.
    ///
    /// # Safety
    /// Its entry is reserved and not published yet, and the caller is the one who reserved it.
    #[allow(clippy::mut_from_ref)] // Two calls for one object are against the contract.
    pub(crate) unsafe fn bytes_mut(&self, object: Object) -> &mut [u8] {
        // SAFETY: the block is committed; nobody else has a handle that names it, and what is
        // reserved is not moved.
        unsafe { slice::from_raw_parts_mut(self.word(object.place).cast().as_ptr(), object.len) }
    }

    /// Starts to fetch what lies at a place into the cache.
    pub(crate) fn prefetch(&self, at: u32) {
        self.fetch::<_MM_HINT_T0>(at);
    }

    fn fetch<const HINT: i32>(&self, at: u32) {
        let base = self.arena.base().cast::<u32>().as_ptr();
        // SAFETY: a prefetch reads nothing and cannot fail, wherever it points.
        unsafe { _mm_prefetch::<HINT>(base.wrapping_add(at as usize).cast()) }
    }

    /// Starts to fetch the bytes of an object, as far as the processor does not find out by itself
    /// that it should go on: into the second level, since the first has few buffers for lines on their way, and who
    /// reads another object now wants them.
    pub(crate) fn prefetch_bytes(&self, object: Object) {
        let words = object.len.div_ceil(WORD).min(FETCHED) as u32;
        let first = object.place & !(LINE_WORDS as u32 - 1);
        (first..object.place.saturating_add(words))
            .step_by(LINE_WORDS)
            .for_each(|word| self.fetch::<_MM_HINT_T1>(word));
    }

    /// Starts to fetch the tags before and behind an object.
    pub(crate) fn prefetch_ends(&self, object: Object) {
        self.prefetch(object.place.wrapping_sub(2));
        self.prefetch(object.place.wrapping_add(object.len.div_ceil(WORD) as u32));
    }

    /// # Safety
    /// `at` lies in the arena.
    unsafe fn word(&self, at: u32) -> NonNull<u32> {
        debug_assert!((at as usize) < self.arena.pages() * PAGE_WORDS as usize);
        // SAFETY: inside the arena by the caller's promise; the base is aligned to a page.
        unsafe { self.arena.base().cast::<u32>().add(at as usize) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ChainLength;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_inverse_divides_exactly(chain in 1..=16_usize, pages in 1..=16_usize, at: u32) {
            let chain = ChainLength::new(chain).expect("valid");
            let shape = Shape::new(&Config { chain, max_object: pages * 4096, max_objects: 1 });
            let near = [at / shape.words, (at / shape.words).saturating_sub(1)]
                .map(|zspage| zspage * shape.words);
            for at in [at, near[0], near[1], near[0].wrapping_sub(1), u32::MAX] {
                prop_assert_eq!(shape.zspage_of(at), at / shape.words);
                prop_assert_eq!(shape.is_border(at), at.is_multiple_of(shape.words));
            }
        }
    }
}
