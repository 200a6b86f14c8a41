//! Workloads and comparisons, peers included.
//!
//! [`host`] says what machine this is and what memory it leaves.

pub mod host;
