//! The one word that says what a slot holds.
//!
//! ```text
//!   63                            32 31   16 15    8 7       5 4  3 2   0
//!   ├──────────── handle ───────────┼ forks ┼ codec ┼ learnt ┼unit┼ tag ┤  an object; codec 0: raw
//!   ├───────────────── value, 61 bits, sign extended ─────────────┼ tag ┤  filled
//!   ├────────────────────────────── 0 ────────────────────────────┼ tag ┤  empty, poisoned
//! ```
//!
//! A word of zero is an empty slot, so that a table of untouched memory is a table of empty slots.

use crate::Form;
use octavo_codec::deflate::{Generation, Generations};
use octavo_codec::{Codec, CodecId};
use octavo_page::{Handle, Unit};

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Word {
    /// Nothing.
    Empty,
    /// A page that is this value over and over.
    Filled(Fill),
    /// A page inside an object of the pool.
    Compressed(Object),
    /// A page that is lost.
    Poisoned,
}

/// A unit in the pool: which of its pages a slot is follows from the slot's number, for units are
/// aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Object {
    pub(crate) handle: Handle,
    /// What compressed it, or [`RAW`].
    pub(crate) codec: CodecId,
    /// Where the learnt tables are that it was made with, if with any: counted among their users.
    pub(crate) learnt: Option<LearntPlace>,
    /// Forks before it was stored.
    pub(crate) forks: Forks,
    pub(crate) unit: Unit,
}

/// A number of forks, modulo 2^16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Forks(pub(crate) u16);

/// A place of learnt tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LearntPlace(u8);

impl LearntPlace {
    pub(crate) fn of(generation: Generation) -> Self {
        Self(generation.place() as u8)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The id that is never a codec's: the unit is kept as it is.
pub(crate) const RAW: CodecId = CodecId::from_bits(0);

impl Object {
    /// What is kept of the unit.
    pub(crate) fn form(self) -> Form {
        if self.codec == RAW {
            return Form::Raw;
        }
        Form::Compressed(Codec::from_id(self.codec).expect("a word has the id of a codec"))
    }
}

const TAG_BITS: u32 = 3;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const EMPTY: u64 = 0;
const FILLED: u64 = 1;
const COMPRESSED: u64 = 2;
const POISONED: u64 = 3;

const UNIT_SHIFT: u32 = TAG_BITS;
const UNIT_MASK: u64 = 3;
/// 0 where no learnt tables are needed, else one more than their place.
const LEARNT_SHIFT: u32 = 5;
const LEARNT_MASK: u64 = 7;
const _: () = assert!(Generations::MAX <= LEARNT_MASK as usize, "every place has a number");
const CODEC_SHIFT: u32 = 8;
const CODEC_MASK: u64 = 0xff;
const FORKS_SHIFT: u32 = 16;
const FORKS_MASK: u64 = 0xffff;
const HANDLE_SHIFT: u32 = 32;

impl Word {
    /// The 64 bits kept in the table.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Self::Empty => EMPTY,
            Self::Filled(fill) => (fill.0 as u64) << TAG_BITS | FILLED,
            Self::Compressed(Object { handle, codec, learnt, forks, unit }) => {
                let learnt = learnt.map_or(0, |place| u64::from(place.0) + 1);
                u64::from(handle.bits()) << HANDLE_SHIFT
                    | learnt << LEARNT_SHIFT
                    | u64::from(forks.0) << FORKS_SHIFT
                    | u64::from(codec.bits()) << CODEC_SHIFT
                    | unit_bits(unit) << UNIT_SHIFT
                    | COMPRESSED
            }
            Self::Poisoned => POISONED,
        }
    }

    /// What 64 bits made by [`Self::bits`] mean.
    pub(crate) fn of(bits: u64) -> Self {
        match bits & TAG_MASK {
            EMPTY => Self::Empty,
            FILLED => Self::Filled(Fill(bits.cast_signed() >> TAG_BITS)),
            COMPRESSED => Self::Compressed(Object {
                handle: Handle::from_bits((bits >> HANDLE_SHIFT) as u32),
                codec: CodecId::from_bits((bits >> CODEC_SHIFT & CODEC_MASK) as u8),
                learnt: ((bits >> LEARNT_SHIFT & LEARNT_MASK) as u8)
                    .checked_sub(1)
                    .map(LearntPlace),
                forks: Forks((bits >> FORKS_SHIFT & FORKS_MASK) as u16),
                unit: unit_of(bits >> UNIT_SHIFT & UNIT_MASK),
            }),
            tag => {
                debug_assert_eq!(tag, POISONED, "a word of no kind: {bits:#x}");
                Self::Poisoned
            }
        }
    }
}

const fn unit_bits(unit: Unit) -> u64 {
    match unit {
        Unit::K4 => 0,
        Unit::K16 => 1,
        Unit::K64 => 2,
    }
}

const fn unit_of(bits: u64) -> Unit {
    match bits {
        0 => Unit::K4,
        1 => Unit::K16,
        _ => Unit::K64,
    }
}

/// The value of a same-filled page, where it fits 61 bits with its sign: zeros, small numbers, all
/// ones, addresses. Pages filled with another value compress to some dozens of bytes instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fill(i64);

impl Fill {
    /// The value that `page` is filled with, if it is filled with one that has a word.
    pub(crate) fn of_page(page: &[u8]) -> Option<Self> {
        let (first, _) = page.split_first_chunk::<8>()?;
        // Equal to itself moved on by a value: every value equals the one before. memcmp ends at
        // the first difference, which in most pages is near.
        let same = page[8..] == page[..page.len() - 8];
        same.then(|| Self::of_value(u64::from_ne_bytes(*first))).flatten()
    }

    fn of_value(value: u64) -> Option<Self> {
        let value = value.cast_signed();
        (value << TAG_BITS >> TAG_BITS == value).then_some(Self(value))
    }

    /// Fills `page` with the value.
    pub(crate) fn write(self, page: &mut [u8]) {
        page.as_chunks_mut().0.fill(self.0.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_page::PAGE_SIZE;
    use proptest::prelude::*;

    fn word() -> impl Strategy<Value = Word> {
        prop_oneof![
            Just(Word::Empty),
            Just(Word::Poisoned),
            any::<i64>().prop_map(|v| Word::Filled(Fill(v >> TAG_BITS))),
            (any::<u32>(), any::<u8>(), 0..5_u8, any::<u16>(), 0..3_usize).prop_map(
                |(handle, codec, place, forks, unit)| {
                    Word::Compressed(Object {
                        handle: Handle::from_bits(handle),
                        codec: CodecId::from_bits(codec),
                        learnt: place.checked_sub(1).map(LearntPlace),
                        forks: Forks(forks),
                        unit: Unit::ALL[unit],
                    })
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn a_word_reads_back_as_it_was_written(word in word()) {
            prop_assert_eq!(Word::of(word.bits()), word);
            prop_assert_eq!(word.bits() == 0, word == Word::Empty);
        }

        #[test]
        fn a_fill_has_a_word_or_none(value: u64) {
            for value in [value, value >> 3, !(value >> 4), value & 1] {
                let mut page = [0; PAGE_SIZE];
                page.as_chunks_mut().0.fill(value.to_ne_bytes());
                let fill = Fill::of_page(&page);
                let short = value >> 60 == 0 || value >> 60 == 15;
                prop_assert_eq!(fill.is_some(), short);
                if let Some(fill) = fill {
                    let mut copy = [1; PAGE_SIZE];
                    fill.write(&mut copy);
                    prop_assert_eq!(copy, page);
                }
            }
        }
    }

    #[test]
    fn one_odd_byte_is_no_fill() {
        for at in [0, 7, 8, 9, 2048, PAGE_SIZE - 9, PAGE_SIZE - 8, PAGE_SIZE - 1] {
            let mut page = [0; PAGE_SIZE];
            page[at] = 1;
            assert_eq!(Fill::of_page(&page), None, "odd byte {at}");
        }
    }
}
