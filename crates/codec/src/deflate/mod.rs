//! Deflate (RFC 1951) for units that fit the cache.
//!
//! ```text
//!   unit ──► matches: "go back d bytes, take n"      ┐ tokens
//!            literals: the bytes between matches     ┘
//!                 │
//!                 ▼ each token is one or two symbols, each symbol a Huffman code
//!   block = header that tells the code lengths ── codes ── end-of-block code
//! ```
//!
//! A stream is a row of blocks; ours have one. What differs between modes is only where the code
//! lengths come from: written down in the RFC (*fixed*), in the block's header (*dynamic*), or in a
//! table that both sides have (*canned*).
//!
//! - `symbols`: which symbol stands for which length and distance
//! - `huffman`: codes from lengths, lengths from frequencies
//! - `bits`: the bit stream, both ways
//! - `matcher`: tokens from a unit
//! - `probe`: its fast way
//! - `lanes`: its way with many pages
//! - `encode`: bits from tokens
//! - `canned`: tables, and training them
//! - `learner`: training them while a program runs
//! - `learnt`: what was learnt, for all who use it
//! - `file`: tables in a file
//! - `general`: tables that suit most programs
//! - `copy`: copying a match
//! - `inflate`: the decoder, of any deflate
//! - `sprint`: its loop where nothing can go wrong

mod bits;
mod canned;
mod copy;
mod encode;
mod file;
mod general;
mod huffman;
mod inflate;
mod lanes;
mod learner;
mod learnt;
mod matcher;
mod probe;
mod sprint;
mod symbols;

pub use canned::{
    BadTable, GENERAL_IDS, LEARNT_IDS, Table, TableSet, count, learn, train, window_of,
};
pub use encode::{Deflate, Histogram, Lengths};
pub use file::{BadFile, TableFile};
pub use general::GENERAL;
pub use inflate::{Inflate, InflateError, Inflated};
pub use learner::{Learner, Step};
pub use learnt::{Generation, Generations, Hold};
pub use matcher::{Level, Sequence};
pub use symbols::MAX_DISTANCE;
