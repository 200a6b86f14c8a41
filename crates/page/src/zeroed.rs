//! Tables of atomics that cost only what is touched.
//!
//! A table is sized for the most that may ever be held, which is much more than usually is. The
//! allocator hands out zero pages that no frame backs yet, so the table is born without a single
//! write. In a model (`--cfg loom`) atomics are made one by one.

use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use alloc::boxed::Box;

/// An atomic whose zero is all zero bits.
pub trait ZeroAtomic: Sized {
    /// `len` zeros.
    ///
    /// # Panics
    /// When there is no address space for them.
    #[must_use]
    fn table(len: usize) -> Box<[Self]>;
}

macro_rules! zero_atomic {
    ($($atomic:ty),*) => {$(
        impl ZeroAtomic for $atomic {
            #[cfg(not(loom))]
            fn table(len: usize) -> Box<[Self]> {
                match zerocopy::FromZeros::new_box_zeroed_with_elems(len) {
                    Ok(table) => table,
                    Err(_) => panic!("no memory for a table of {len} words"),
                }
            }

            #[cfg(loom)]
            fn table(len: usize) -> Box<[Self]> {
                (0..len).map(|_| Self::new(0)).collect()
            }
        }
    )*};
}

zero_atomic!(AtomicU8, AtomicU32, AtomicU64);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::atomic::Ordering;

    #[test]
    fn a_table_is_zeros() {
        assert!(AtomicU64::table(0).is_empty());
        let table = AtomicU32::table(1000);
        assert_eq!(table.len(), 1000);
        assert!(table.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
}
