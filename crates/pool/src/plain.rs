//! An arena of ordinary memory, for benchmarks and examples: what a pool costs, without what a system takes
//! for giving memory and taking it back.
#![allow(unsafe_code)] // Implements an unsafe trait, on memory of the allocator.

use crate::{Arena, OutOfFrames};
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use octavo_page::PAGE_SIZE;

/// See the module.
pub struct Plain {
    /// What was allocated, and how.
    memory: NonNull<u8>,
    layout: Layout,
    /// Where its pages begin, there or in the page behind.
    base: NonNull<u8>,
    pages: usize,
}

impl Plain {
    /// An arena of so many pages, at least one; `None` where there is not so much memory. All of it is
    /// there from the start and stays.
    #[must_use]
    pub fn new(pages: usize) -> Option<Self> {
        // The allocator fills with zeros itself what is to be aligned so.
        Self::with(pages, Layout::from_size_align(bytes_of(pages)?, PAGE_SIZE).ok()?)
    }

    /// As [`Plain::new`], but the system gives each page when it is first written to: for simulations, in
    /// which nobody's time counts and most pages stay unused.
    #[must_use]
    pub fn sparse(pages: usize) -> Option<Self> {
        // What needs no such alignment comes from the system, which has it filled with zeros.
        let bytes = bytes_of(pages)?.checked_add(PAGE_SIZE)?;
        Self::with(pages, Layout::from_size_align(bytes, align_of::<u64>()).ok()?)
    }

    fn with(pages: usize, layout: Layout) -> Option<Self> {
        // SAFETY: the layout is of at least a page.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let before = memory.align_offset(PAGE_SIZE);
        // SAFETY: less than a page, and where that is not none the layout has a page more.
        let base = unsafe { memory.add(before) };
        Some(Self { memory, layout, base, pages })
    }
}

fn bytes_of(pages: usize) -> Option<usize> {
    pages.max(1).checked_mul(PAGE_SIZE)
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: allocated in `with` with this layout, and given back once.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain").field("pages", &self.pages).finish_non_exhaustive()
    }
}

// SAFETY: it owns its memory alone, as a box would.
unsafe impl Send for Plain {}
// SAFETY: it only tells where the memory is; who touches which of it is the pool's affair.
unsafe impl Sync for Plain {}

// SAFETY: page aligned, of the stated size, there as long as `self` is, and given to one pool.
unsafe impl Arena for Plain {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn pages(&self) -> usize {
        self.pages
    }

    fn commit(&self, _first: usize, _pages: usize) -> Result<(), OutOfFrames> {
        Ok(())
    }

    fn decommit(&self, _runs: &[Range<u32>]) {}
}
