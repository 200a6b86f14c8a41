//! The pool's memory: one reserved range, whose pages the kernel gives when they are touched.
#![allow(unsafe_code)] // implements an unsafe trait and discards memory

use core::ptr::NonNull;
use octavo_page::PAGE_SIZE;
use octavo_pool::{Arena, OutOfFrames};
use octavo_sys::Result;
use octavo_sys::memory::Reserve;

/// See the module.
#[derive(Debug)]
pub struct PoolArena(Reserve);

impl PoolArena {
    /// Reserves `bytes` of address space.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is limited.
    pub fn new(bytes: usize) -> Result<Self> {
        Reserve::new(bytes, c"octavo pool").map(Self)
    }

    fn part(&self, first: usize, pages: usize) -> core::ops::Range<usize> {
        let start = self.0.start() + first * PAGE_SIZE;
        start..start + pages * PAGE_SIZE
    }
}

// SAFETY: the reserve is page aligned, as long as `pages` says, mapped as long as the address
// space, and known to nobody else; untouched and discarded pages read as zeros.
unsafe impl Arena for PoolArena {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.0.start() as *mut u8).unwrap_or(NonNull::dangling())
    }

    fn pages(&self) -> usize {
        self.0.span().len() / PAGE_SIZE
    }

    fn commit(&self, _first: usize, _pages: usize) -> core::result::Result<(), OutOfFrames> {
        Ok(())
    }

    fn decommit(&self, first: usize, pages: usize) {
        // SAFETY: the pool does not look at these pages until it commits them again.
        unsafe { self.0.discard(self.part(first, pages)) };
    }
}
