//! Tables of atomics that cost only what is touched.
//!
//! A table is sized for the most the pool may ever hold, which is much more than it usually holds.
//! The allocator hands out zero pages that no frame backs yet, so the table must be born without
//! a single write.
#![allow(unsafe_code)] // Zeroed integers are taken for zeroed atomics.

use alloc::boxed::Box;
use octavo_page::sync::atomic::{AtomicU32, AtomicU64};

/// An atomic whose zero is all zero bits, with the layout of its integer.
pub(crate) trait ZeroAtomic: Sized {
    /// `len` zeros.
    fn table(len: usize) -> Box<[Self]>;
}

#[cfg(not(loom))]
macro_rules! table {
    ($integer:ty) => {
        fn table(len: usize) -> Box<[Self]> {
            const { assert!(size_of::<Self>() == size_of::<$integer>()) };
            const { assert!(align_of::<Self>() == align_of::<$integer>()) };
            let zeros: Box<[$integer]> = alloc::vec![0; len].into_boxed_slice();
            // SAFETY: an atomic has the bit validity of its integer, and, asserted above, its size
            // and alignment; the box is given up for the one made from it.
            unsafe { Box::from_raw(Box::into_raw(zeros) as *mut [Self]) }
        }
    };
}

#[cfg(loom)]
macro_rules! table {
    ($integer:ty) => {
        fn table(len: usize) -> Box<[Self]> {
            (0..len).map(|_| Self::new(0)).collect()
        }
    };
}

impl ZeroAtomic for AtomicU32 {
    table!(u32);
}

impl ZeroAtomic for AtomicU64 {
    table!(u64);
}
