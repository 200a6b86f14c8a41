//! An arena of ordinary memory, for benchmarks and examples: what a pool costs, without what a system takes
//! for giving memory and taking it back.
#![allow(unsafe_code)] // Implements an unsafe trait, on memory of the allocator.

use crate::{Arena, OutOfFrames};
use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use octavo_page::PAGE_SIZE;

/// See the module. All of it is there from the start and stays.
pub struct Plain {
    base: NonNull<u8>,
    pages: usize,
}

impl Plain {
    /// An arena of so many pages, at least one; `None` where there is not so much memory.
    #[must_use]
    pub fn new(pages: usize) -> Option<Self> {
        let layout = Self::layout(pages)?;
        // SAFETY: the layout is of at least a page.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { base, pages })
    }

    fn layout(pages: usize) -> Option<Layout> {
        let bytes = pages.max(1).checked_mul(PAGE_SIZE)?;
        Layout::from_size_align(bytes, PAGE_SIZE).ok()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let layout = Self::layout(self.pages).expect("the arena was made with it");
        // SAFETY: allocated in `new` with this layout, and given back once.
        unsafe { dealloc(self.base.as_ptr(), layout) }
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
