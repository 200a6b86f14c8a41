//! One object as it lies in a segment.
//!
//! ```text
//!   0                8                                16                        16 + len
//!   ├──── check ─────┼─ owner, 47 bits ─┼─ len, 17 ───┼──────── the object ─────────┤ to a multiple of 8
//! ```
//! The check is a hash of the object, of owner and length, of the place that names it, of the number
//! that its segment got when it was last opened, and of a number that nobody else knows. So what was
//! there before, what belongs elsewhere, and what an earlier run has left is no record, as little as one
//! that was damaged.
//!
//! Records are found from a boundary on, each by the length of the one before. Behind damage every granule
//! is tried.

use crate::place::{Address, GRANULE, Owner, Place};
use core::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes in front of an object.
pub(crate) const HEADER: usize = 16;

const LEN_BITS: u32 = 17;

/// Bytes that the record of `len` bytes takes.
pub(crate) const fn bytes(len: usize) -> usize {
    (HEADER + len).next_multiple_of(GRANULE)
}

/// What a record is bound to, besides its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    /// A random number, for the life of a backing.
    pub(crate) secret: u64,
    /// The number of its segment, counted by openings.
    pub(crate) sequence: u32,
}

impl Binding {
    fn check(self, place: Place, word: u64, object: &[u8]) -> u64 {
        let parts = [xxh3_64(object), word, place.bits(), self.sequence.into(), self.secret];
        let mut bytes = [0; 40];
        for (to, part) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(parts) {
            *to = part.to_le_bytes();
        }
        xxh3_64(&bytes)
    }

    /// What stands in front of an object.
    pub(crate) fn header(self, place: Place, owner: Owner, object: &[u8]) -> [u8; HEADER] {
        let word = owner.get() << LEN_BITS | object.len() as u64;
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&self.check(place, word, object).to_le_bytes());
        header[8..].copy_from_slice(&word.to_le_bytes());
        header
    }
}

/// A record that was found and verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) owner: Owner,
    pub(crate) place: Place,
    /// Where its object is in the bytes that were looked at.
    pub(crate) object: Range<usize>,
}

impl Record {
    /// Where the next record begins, if there is one.
    pub(crate) const fn end(&self) -> usize {
        self.object.start - HEADER + bytes(self.place.len())
    }
}

/// Some bytes of a segment, decrypted.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) bytes: &'a [u8],
    /// Where the first of them lies.
    pub(crate) start: Address,
    pub(crate) binding: Binding,
    /// The longest object there is.
    pub(crate) max_object: usize,
}

impl View<'_> {
    /// Owner and length that stand at `at`, if they may be those of a record.
    fn word(&self, at: usize) -> Option<(u64, usize)> {
        let word = u64::from_le_bytes(*self.bytes.get(at + 8..at + HEADER)?.as_array()?);
        let len = (word & ((1 << LEN_BITS) - 1)) as usize;
        (1..=self.max_object).contains(&len).then_some((word, len))
    }

    /// Where the record that might begin at `at` would end, whether or not that is inside.
    pub(crate) fn end_of(&self, at: usize) -> Option<usize> {
        self.word(at).map(|(_, len)| at + bytes(len))
    }

    /// The record at `at`, if there is a whole one.
    pub(crate) fn record(&self, at: usize) -> Option<Record> {
        let (word, len) = self.word(at)?;
        let object = at + HEADER..at + HEADER + len;
        let bytes = self.bytes.get(object.clone())?;
        let check = u64::from_le_bytes(*self.bytes.get(at..at + 8)?.as_array()?);
        let place = Place::new(Address(self.start.0 + at as u64), len);
        let owner = Owner::new(word >> LEN_BITS).expect("47 bits are left");
        (check == self.binding.check(place, word, bytes)).then_some(Record { owner, place, object })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const BINDING: Binding = Binding { secret: 0x1234_5678, sequence: 9 };
    const START: Address = Address(1 << 20);

    fn view(bytes: &[u8]) -> View<'_> {
        View { bytes, start: START, binding: BINDING, max_object: 4096 }
    }

    /// Objects one behind the other, and their places.
    fn packed(objects: &[Vec<u8>]) -> (Vec<u8>, Vec<Place>) {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        for (n, object) in objects.iter().enumerate() {
            let place = Place::new(Address(START.0 + bytes.len() as u64), object.len());
            let owner = Owner::new(n as u64).expect("a small number");
            bytes.extend(BINDING.header(place, owner, object));
            bytes.extend(object);
            bytes.resize(bytes.len().next_multiple_of(GRANULE), 0);
            places.push(place);
        }
        (bytes, places)
    }

    fn objects() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let object = prop::collection::vec(any::<u8>(), 1..600);
        prop::collection::vec(object, 1..20)
    }

    /// The first record from `at` on.
    fn next(view: &View<'_>, at: usize) -> Option<Record> {
        (at..view.bytes.len()).step_by(GRANULE).find_map(|at| view.record(at))
    }

    /// The owners that a walk from `at` on finds.
    fn walk(view: &View<'_>, mut at: usize) -> Vec<u64> {
        let mut found = Vec::new();
        while let Some(record) = next(view, at) {
            found.push(record.owner.get());
            at = record.end();
        }
        found
    }

    proptest! {
        #[test]
        fn what_was_packed_is_found(objects in objects()) {
            let (bytes, places) = packed(&objects);
            let view = view(&bytes);
            prop_assert_eq!(walk(&view, 0), (0..objects.len() as u64).collect::<Vec<_>>());
            for (place, object) in places.iter().zip(&objects) {
                let record = view.record((place.at().0 - START.0) as usize).expect("a record");
                prop_assert_eq!((record.place, &bytes[record.object]), (*place, &object[..]));
            }
        }

        #[test]
        fn damage_costs_the_record_it_is_in(objects in objects(), at: prop::sample::Index, bit in 0..8) {
            let (mut bytes, places) = packed(&objects);
            let at = at.index(bytes.len());
            bytes[at] ^= 1_u8 << bit;
            let hit = places.iter().rposition(|place| (place.at().0 - START.0) as usize <= at).expect("one");
            let padding = at >= (places[hit].at().0 - START.0) as usize + HEADER + places[hit].len();
            let expected = (0..objects.len()).filter(|n| padding || *n != hit).map(|n| n as u64);
            prop_assert_eq!(walk(&view(&bytes), 0), expected.collect::<Vec<_>>());
        }

        #[test]
        fn another_place_or_number_is_no_record(objects in objects(), moved in 1_u64..100) {
            let (bytes, _) = packed(&objects);
            let here = view(&bytes);
            let there = View { start: Address(START.0 + moved * GRANULE as u64), ..here };
            let later = View { binding: Binding { sequence: 10, ..BINDING }, ..here };
            let other = View { binding: Binding { secret: 1, ..BINDING }, ..here };
            for view in [there, later, other] {
                prop_assert!(next(&view, 0).is_none());
            }
        }
    }
}
