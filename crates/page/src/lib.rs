//! The words everyone uses.
//!
//! A *page* is 4 KiB. A *unit* is what one compress request takes (4, 16 or 64 KiB). A *folio* is a
//! run of pages that is evicted and restored together. A *slot* is the number of one page's place
//! in the store; a *handle* names an object in the pool. One concept has one type here, so that a
//! slot cannot be passed where a handle is meant, nor bytes where pages are.
//!
//! Nothing here needs `std`, and nothing but tables ([`zeroed`]) allocates: these words are spoken
//! inside other people's programs, by threads that own neither thread-local storage nor a libc.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod asks;
mod bytes;
pub mod config;
pub mod pins;
pub mod rest;
pub mod sync;
pub mod zeroed;

pub use bytes::{ByteSize, ParseByteSizeError};

use core::fmt;
use core::str::FromStr;

/// Bytes in a page, the only page size Octavo manages.
pub const PAGE_SIZE: usize = 4096;

/// Binary logarithm of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// Pages in the largest folio (2 MiB, as in the kernel).
pub const MAX_FOLIO_PAGES: usize = 1 << Order::MAX.get();

/// The number of one page's place in the store. Slot 0 is a real slot; "no slot" is an `Option`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct SlotId(u32);

impl SlotId {
    /// The slot with number `n`.
    #[must_use]
    pub const fn new(n: u32) -> Self {
        Self(n)
    }

    /// The number of this slot.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of this slot as an index into a table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The slot `pages` places further on.
    ///
    /// # Panics
    /// When the number would not fit; slots are handed out below `u32::MAX`, so that is a bug.
    #[must_use]
    pub const fn offset(self, pages: u32) -> Self {
        match self.0.checked_add(pages) {
            Some(n) => Self(n),
            None => panic!("slot number past the end"),
        }
    }
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

/// Names an object in the pool. Opaque outside it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Handle(u32);

impl Handle {
    /// The handle with this bit pattern.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bit pattern of this handle.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Binary logarithm of a number of pages: the size of a folio. 0 is a single page, 9 is 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Order(u8);

impl Order {
    /// A single page.
    pub const PAGE: Self = Self(0);
    /// The largest order, a folio of 2 MiB.
    pub const MAX: Self = Self(9);

    /// The order `n`, if there are folios of it.
    #[must_use]
    pub const fn new(n: u8) -> Option<Self> {
        if n <= Self::MAX.0 { Some(Self(n)) } else { None }
    }

    /// The order of a folio of exactly `pages` pages, if there are such folios.
    #[must_use]
    pub const fn of_pages(pages: usize) -> Option<Self> {
        if pages.is_power_of_two() { Self::new(pages.trailing_zeros() as u8) } else { None }
    }

    /// The binary logarithm itself.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Pages in a folio of this order.
    #[must_use]
    pub const fn pages(self) -> usize {
        1 << self.0
    }
}

/// What one compress request takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    /// One page.
    K4,
    /// Four pages.
    K16,
    /// Sixteen pages.
    K64,
}

impl Unit {
    /// Every unit, smallest first.
    pub const ALL: [Self; 3] = [Self::K4, Self::K16, Self::K64];
    /// The largest unit.
    pub const MAX: Self = Self::K64;

    /// Bytes in this unit.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.pages() * PAGE_SIZE
    }

    /// Pages in this unit.
    #[must_use]
    pub const fn pages(self) -> usize {
        match self {
            Self::K4 => 1,
            Self::K16 => 4,
            Self::K64 => 16,
        }
    }

    /// The unit of exactly `pages` pages, if there is one.
    #[must_use]
    pub const fn of_pages(pages: usize) -> Option<Self> {
        match pages {
            1 => Some(Self::K4),
            4 => Some(Self::K16),
            16 => Some(Self::K64),
            _ => None,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::K4 => "4K",
            Self::K16 => "16K",
            Self::K64 => "64K",
        })
    }
}

/// A word that is no unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseUnitError;

impl fmt::Display for ParseUnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a unit is one of 4K, 16K, 64K")
    }
}

impl core::error::Error for ParseUnitError {}

impl FromStr for Unit {
    type Err = ParseUnitError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Unit::ALL
            .into_iter()
            .find(|u| s.parse::<ByteSize>().is_ok_and(|b| b.bytes() == u.bytes() as u64))
            .ok_or(ParseUnitError)
    }
}

/// The longest run of side by side pages that objects of the pool share, as zsmalloc counts it: in
/// units of the largest object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChainLength(u8);

impl ChainLength {
    /// The shortest chain.
    pub const MIN: Self = Self(1);
    /// The longest chain, and what packs best.
    pub const MAX: Self = Self(16);

    /// A chain of `n` units, if there is one: 1 to 16.
    #[must_use]
    pub const fn new(n: usize) -> Option<Self> {
        if matches!(n, 1..=16) { Some(Self(n as u8)) } else { None }
    }

    /// The number of units.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl Default for ChainLength {
    fn default() -> Self {
        Self::MAX
    }
}

impl fmt::Display for ChainLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A word that is no chain length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseChainLengthError;

impl fmt::Display for ParseChainLengthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a chain length is a whole number from 1 to 16")
    }
}

impl core::error::Error for ParseChainLengthError {}

impl FromStr for ChainLength {
    type Err = ParseChainLengthError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        s.parse().ok().and_then(Self::new).ok_or(ParseChainLengthError)
    }
}

/// What does the work of compressing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EngineKind {
    /// The codecs, on the CPU.
    #[default]
    Cpu,
    /// Intel's In-Memory Analytics Accelerator.
    Iaa,
    /// A model of that, in software: for tests of everything else.
    Model,
}

impl EngineKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Iaa, Self::Model];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Iaa => "iaa",
            Self::Model => "model",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that is no kind of engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseEngineError;

impl fmt::Display for ParseEngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an engine is one of cpu, iaa, model")
    }
}

impl core::error::Error for ParseEngineError {}

impl FromStr for EngineKind {
    type Err = ParseEngineError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|kind| kind.name() == s).ok_or(ParseEngineError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn engines_read_back_as_they_print() {
        for kind in EngineKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("auto".parse::<EngineKind>(), Err(ParseEngineError));
    }

    #[test]
    fn units_read_back_as_they_print() {
        for unit in Unit::ALL {
            assert_eq!(unit.to_string().parse(), Ok(unit));
            assert_eq!(Unit::of_pages(unit.pages()), Some(unit));
        }
        assert_eq!("8K".parse::<Unit>(), Err(ParseUnitError));
        assert_eq!("".parse::<Unit>(), Err(ParseUnitError));
    }

    #[test]
    fn chain_lengths_read_back_as_they_print() {
        for n in 1..=16 {
            let chain = ChainLength::new(n).expect("a valid length");
            assert_eq!((chain.get(), chain.to_string().parse()), (n, Ok(chain)));
        }
        for word in ["0", "17", "", "four", "-1"] {
            assert_eq!(word.parse::<ChainLength>(), Err(ParseChainLengthError), "{word}");
        }
    }

    #[test]
    fn an_order_knows_its_pages() {
        for n in 0..=Order::MAX.get() {
            let order = Order::new(n).expect("a valid order");
            assert_eq!(Order::of_pages(order.pages()), Some(order));
        }
        assert_eq!(Order::new(10), None);
        assert_eq!(Order::of_pages(3), None);
        assert_eq!(Order::of_pages(0), None);
        assert_eq!(Order::of_pages(1024), None);
    }
}
