//! Workloads and comparisons, peers included.
//!
//! [`swap`] compares Octavo with the kernel's swap to zram. [`host`] says what machine this is and
//! what memory it leaves.

pub mod host;
pub mod swap;
