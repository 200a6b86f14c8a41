//! Workloads and comparisons, peers included.
//!
//! [`swap`] compares Octavo with the kernel's swap to zram, [`pool`] the pool with other stores of
//! compressed pages, [`slots`] designs of the slot allocator, [`codec`] our codecs with their peers,
//! [`crypt`] ways to get pages for encrypted writes, [`batch`] ways into the store and out of it,
//! [`writeback`] a backing with its disk;
//! [`sim`] has machines that are not here. [`host`] says what machine this is and what memory it leaves,
//! [`files`] which file a name stands for.

pub mod batch;
pub mod codec;
pub mod crypt;
pub mod files;
pub mod host;
pub mod pool;
mod progress;
mod random;
pub mod sim;
pub mod slots;
pub mod swap;
mod table;
pub mod writeback;
