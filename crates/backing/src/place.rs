//! What names an object: whose it is, and where it lies.
//!
//! ```text
//!   Place   63     56 55                           17 16            0
//!           ├── 0 ──┼─ granule of all devices, 39 bits ┼─ bytes, 17 ─┤     never 0
//!   Owner   63           47 46                                      0
//!           ├────── 0 ──────┼──────────── anything ─────────────────┤
//! ```
//! A place has what a read takes: nothing has to be looked up to know which sectors those are. It fits 56
//! bits, so that a word of a table may hold it with a tag beside.

use core::fmt;
use core::num::NonZeroU64;

/// Objects begin at multiples of this many bytes.
pub(crate) const GRANULE: usize = 8;

/// The largest object, in bytes: a unit of 64 KiB that did not compress.
pub const MAX_OBJECT: usize = 64 << 10;

const LEN_BITS: u32 = 17;
const GRANULE_BITS: u32 = 39;
const OWNER_BITS: u32 = 47;

const _: () = assert!(MAX_OBJECT < 1 << LEN_BITS && OWNER_BITS + LEN_BITS == u64::BITS);

/// Bytes that all devices together may have: 4 TiB.
pub(crate) const MAX_BYTES: u64 = (GRANULE as u64) << GRANULE_BITS;

/// Whose an object is: a number that whoever wrote it knows it by, and that the cleaner asks for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner(u64);

impl Owner {
    /// The owner with number `n`, which is below 2^47.
    #[must_use]
    pub const fn new(n: u64) -> Option<Self> {
        if n >> OWNER_BITS == 0 { Some(Self(n)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Where an object lies, and how many bytes it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Place(NonZeroU64);

impl Place {
    /// The place of `len` bytes whose record begins at `at`.
    pub(crate) const fn new(at: Address, len: usize) -> Self {
        assert!(len > 0 && len <= MAX_OBJECT && at.0 < MAX_BYTES, "an object that has no place");
        let bits = ((at.0 / GRANULE as u64) << LEN_BITS) | len as u64;
        Self(NonZeroU64::new(bits).expect("an object has bytes"))
    }

    /// Its 56 bits, of which one is set.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0.get()
    }

    /// The place with these bits, if they are those of one.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        let Some(place) = NonZeroU64::new(bits) else { return None };
        let len = bits & ((1 << LEN_BITS) - 1);
        let fits = len > 0 && len <= MAX_OBJECT as u64 && bits >> (LEN_BITS + GRANULE_BITS) == 0;
        if fits { Some(Self(place)) } else { None }
    }

    /// Bytes of the object.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no object is empty")]
    pub const fn len(self) -> usize {
        (self.0.get() & ((1 << LEN_BITS) - 1)) as usize
    }

    /// Where its record begins.
    pub(crate) const fn at(self) -> Address {
        Address((self.0.get() >> LEN_BITS) * GRANULE as u64)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}", self.len(), self.at().0)
    }
}

/// A byte of the space that all devices make together, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Address(pub(crate) u64);

/// The number of a segment among those of all devices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Segment(pub(crate) u32);

impl Segment {
    /// As an index into a table.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A chunk of a segment: what is written at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub(crate) segment: Segment,
    /// Its number inside of the segment.
    pub(crate) number: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_place_reads_back_from_its_bits(granule in 0_u64..1 << 39, len in 1_usize..=MAX_OBJECT) {
            let at = Address(granule * GRANULE as u64);
            let place = Place::new(at, len);
            prop_assert_eq!((place.at(), place.len()), (at, len));
            prop_assert_eq!(Place::from_bits(place.bits()), Some(place));
            prop_assert_eq!(place.bits() >> 56, 0);
        }

        #[test]
        fn bits_of_no_place_are_refused(bits: u64) {
            let len = bits & 0x1_ffff;
            let is_place = len > 0 && len <= MAX_OBJECT as u64 && bits >> 56 == 0;
            prop_assert_eq!(Place::from_bits(bits).is_some(), is_place);
        }
    }

    #[test]
    fn an_owner_has_47_bits() {
        assert_eq!(Owner::new((1 << 47) - 1).map(Owner::get), Some((1 << 47) - 1));
        assert_eq!(Owner::new(1 << 47), None);
    }
}
