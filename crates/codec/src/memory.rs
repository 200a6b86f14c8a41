//! Memory lent to a C library for as long as its owner lives.
#![allow(unsafe_code)] // Owned by a raw pointer, so that pointers the library keeps stay valid.

use alloc::boxed::Box;
use core::ffi::c_void;
use core::ptr::NonNull;

/// A block of zeroed memory, aligned to 8 bytes, that never moves. Untouched parts cost nothing.
///
/// Not a `Box`: moving one tells the compiler that no other pointer into it is in use, and the
/// library keeps such pointers.
pub struct Memory(NonNull<[u64]>);

// SAFETY: it owns the block alone, as a box would.
unsafe impl Send for Memory {}

impl Memory {
    /// A block of at least `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        let block = alloc::vec![0; bytes.div_ceil(8)].into_boxed_slice();
        Self(NonNull::from(Box::leak(block)))
    }

    /// Where the block begins.
    pub fn start(&mut self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    /// Bytes in the block.
    pub fn bytes(&self) -> usize {
        self.0.len() * 8
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made from a box in `new`, and given back once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
