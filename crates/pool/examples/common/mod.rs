//! What the examples share.
#![allow(unsafe_code)] // an arena of its own

use octavo_page::PAGE_SIZE;
use octavo_pool::{Arena, OutOfFrames};
use std::alloc::{Layout, alloc_zeroed};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Address space from the allocator; the operating system backs it as it is touched.
pub struct Space {
    base: NonNull<u8>,
    pages: usize,
    /// Times that pages were asked for, and given back.
    pub calls: [AtomicUsize; 2],
}

// SAFETY: the pointer is to memory that is never given back.
unsafe impl Send for Space {}
// SAFETY: as above.
unsafe impl Sync for Space {}

// SAFETY: the memory is aligned to pages, of this size, and nobody else knows it.
unsafe impl Arena for Space {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn pages(&self) -> usize {
        self.pages
    }

    fn commit(&self, _: usize, _: usize) -> Result<(), OutOfFrames> {
        self.calls[0].fetch_add(1, Relaxed);
        Ok(())
    }

    fn decommit(&self, _: &[Range<u32>]) {
        self.calls[1].fetch_add(1, Relaxed);
    }
}

/// Space for `pages` pages.
pub fn space(pages: usize) -> Space {
    let layout = Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).expect("a layout");
    // SAFETY: the size is not zero.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("address space");
    Space { base, pages, calls: [const { AtomicUsize::new(0) }; 2] }
}

/// xorshift64.
pub fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}
