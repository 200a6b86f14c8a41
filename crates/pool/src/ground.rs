//! The raw memory under the lanes: an arena cut into zspages, read and written by word.
#![allow(unsafe_code)] // Tags and objects lie in raw memory that comes and goes page by page.

use core::ptr::NonNull;
use core::slice;
use octavo_page::PAGE_SIZE;

use crate::handles::Object;
use crate::zspages::Zspages;
use crate::{Arena, Config};

/// Bytes of a word, the grain in which blocks are placed.
pub(crate) const WORD: usize = size_of::<u32>();
/// Words in a page.
pub(crate) const PAGE_WORDS: u32 = (PAGE_SIZE / WORD) as u32;
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
}

impl Shape {
    pub(crate) const fn new(config: &Config) -> Self {
        let slot_pages = config.max_object.div_ceil(PAGE_SIZE) as u32;
        let slots = config.chain.get() as u32;
        let words = slots * slot_pages * PAGE_WORDS;
        Self { max_object: config.max_object, slot_pages, slots, words }
    }

    /// Zspages in an arena of `pages` pages. Every place in them and one past fits 32 bits.
    pub(crate) fn zspages_in(&self, pages: usize) -> usize {
        (pages / self.pages() as usize).min((u32::MAX / self.words) as usize)
    }

    /// Pages in a zspage.
    pub(crate) const fn pages(&self) -> u32 {
        self.words / PAGE_WORDS
    }

    /// The zspage that the word lies in.
    pub(crate) const fn zspage_of(&self, at: u32) -> u32 {
        at / self.words
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
}

impl<A: Arena> Ground<A> {
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
    /// As [`bytes`](Self::bytes), and no handle to it was given to anybody yet.
    #[allow(clippy::mut_from_ref)] // Two calls for one object are against the contract.
    pub(crate) unsafe fn bytes_mut(&self, object: Object) -> &mut [u8] {
        // SAFETY: as in `bytes`; nobody else knows the object, and a pinned one is not moved.
        unsafe { slice::from_raw_parts_mut(self.word(object.place).cast().as_ptr(), object.len) }
    }

    /// # Safety
    /// `at` lies in the arena.
    unsafe fn word(&self, at: u32) -> NonNull<u32> {
        debug_assert!((at as usize) < self.arena.pages() * PAGE_WORDS as usize);
        // SAFETY: inside the arena by the caller's promise; the base is aligned to a page.
        unsafe { self.arena.base().cast::<u32>().add(at as usize) }
    }
}
