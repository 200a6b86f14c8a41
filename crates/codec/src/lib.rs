//! Turns a unit of memory into bytes, or says that it does not fit.
//!
//! ```text
//!   unit (4 to 64 KiB) ── compress ──► bytes ──┐
//!                              │               │  the store keeps the bytes and the CodecId
//!                         DoesNotFit           │
//!                       (kept raw by the store)▼
//!   unit, exactly as it was ◄── decompress ── bytes + CodecId
//! ```
//!
//! A [`Codec`] is a name: `lz4`, `zstd:1`. A [`Workspace`] is the memory that encoders and decoders
//! need, made once per worker thread for the codecs that this thread will use.
//!
//! Invariants:
//! - After [`Workspace::new`] nothing here allocates, frees or touches thread-local storage: a worker calls
//!   it while the program's own allocator may be locked by the thread it serves. The one lock is that of
//!   learnt tables, a reader's, kept while a unit is worked on: who replaces a set waits for its readers.
//!   `tests/no_malloc.rs` watches libc's allocator while everything below runs.
//! - The bytes say nothing about themselves: neither which codec made them nor how long the unit
//!   was. The store knows both, so every unit is shorter by that much.
//! - Bytes come from our own memory, yet they are not trusted: damage gives [`Corrupt`], or other
//!   bytes of the same length, and never an access outside the slices given. Telling other bytes
//!   from the right ones is a checksum's work, and the store's.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod by_n;
mod cpu;
pub mod deflate;
mod lz4;
mod memory;
mod name;
mod workspace;
mod zstd;

pub use name::{Codec, CodecId, DeflateMode, ParseCodecError, Parts, ZstdLevel};
pub use workspace::Workspace;

use core::fmt;
use octavo_page::Unit;

/// Bytes in the longest unit that a [`Workspace`] takes.
pub const MAX_UNIT: usize = Unit::MAX.bytes();

/// The compressed form is longer than the room offered: a normal outcome, the unit is kept raw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DoesNotFit;

impl fmt::Display for DoesNotFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the unit does not compress into the room offered; keep it as it is")
    }
}

impl core::error::Error for DoesNotFit {}

/// A unit to be compressed, one of many.
#[derive(Debug)]
pub struct Job<'a> {
    /// What is to be compressed.
    pub unit: &'a [u8],
    /// Where to, from the front on.
    pub out: &'a mut [u8],
    /// How many bytes it took; before it is done, that it does not fit.
    pub size: Result<usize, DoesNotFit>,
}

impl<'a> Job<'a> {
    /// To compress `unit` into the front of `out`.
    #[must_use]
    pub fn new(unit: &'a [u8], out: &'a mut [u8]) -> Self {
        Self { unit, out, size: Err(DoesNotFit) }
    }
}

/// The bytes are not what the codec made of a unit of the wanted length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corrupt {
    /// They are damaged.
    Damaged,
    /// They begin with the id of a table that is not there.
    UnknownTable(u8),
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged => f.write_str("the compressed bytes are damaged; the page is lost"),
            Self::UnknownTable(id) => {
                write!(
                    f,
                    "there is no table {id}, which the compressed bytes want; the page is lost"
                )
            }
        }
    }
}

impl core::error::Error for Corrupt {}
