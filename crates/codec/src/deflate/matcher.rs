//! Finds what is repeated.
//!
//! A unit becomes a row of sequences, each a match: from `at` on `length` bytes are those from `distance`
//! back. What lies between two matches, before the first and behind the last, are literals.
//!
//! ```text
//!   literals │ match │ literals │ match │ match │ ... │ literals
//!            at ─────► end      at      at
//! ```
//!
//! The fast way looks at one place only, where the next 8 bytes were last seen, or else where the
//! next 4 or 5 were; it steps faster the longer it finds nothing. The thorough way follows chains of all
//! places where the next 3 bytes were seen. Both look whether the match one byte on is longer before
//! they take one.
//!
//! Tables hold positions and begin as zeros, which is a position too: whatever they say is checked
//! against the unit's bytes, so a table cannot be wrong, only useless.

use super::probe::{Short, bytes};
use super::symbols::MAX_MATCH;
use crate::MAX_UNIT;
use alloc::boxed::Box;

/// A match, and that what lies between it and the one before are literals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(align(8))] // What an address can be scaled by.
pub struct Sequence {
    /// Where in the unit the match begins.
    pub at: u16,
    /// 3 to 258.
    pub length: u16,
    /// 1 to 32768.
    pub distance: u16,
}

impl Sequence {
    /// Where the match ends.
    #[must_use]
    #[inline(always)]
    pub const fn end(self) -> usize {
        self.at as usize + self.length as usize
    }
}

/// How hard to look.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// One look.
    L1,
    /// Chains of up to 24 places.
    L6,
    /// Chains of up to 512 places.
    L9,
}

impl Level {
    /// Every level, fastest first.
    pub const ALL: [Self; 3] = [Self::L1, Self::L6, Self::L9];

    /// The number the level is called by.
    #[must_use]
    pub const fn get(self) -> u8 {
        match self {
            Self::L1 => 1,
            Self::L6 => 6,
            Self::L9 => 9,
        }
    }
}

/// A match has three bytes at least, so a unit has no more sequences than this.
const MAX_SEQUENCES: usize = MAX_UNIT / 3;

/// Binary logarithm of the largest table.
pub const MAX_TABLE: u32 = 14;

/// Tables and the sequences of one unit. About 360 KiB, of which a 4 KiB unit touches 30.
pub struct Matcher {
    /// Where 8 bytes were last seen, by their hash; for chains, where 3 bytes were.
    long: Box<[u16]>,
    /// Where 4 or 5 bytes were last seen, by their hash.
    short: Box<[u16]>,
    /// For each position, where the same 3 bytes were seen before: the chains.
    before: Box<[u16]>,
    sequences: Box<[Sequence]>,
    count: usize,
}

fn zeros<T: Clone + Default>(n: usize) -> Box<[T]> {
    alloc::vec![T::default(); n].into_boxed_slice()
}

#[inline(always)]
fn load64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes from there"))
}

#[inline(always)]
fn load32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("four bytes from there"))
}

/// An odd number whose bits are mixed: 2^64 over the golden ratio.
pub const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies by [`MIX`] and keeps the highest `bits`: those depend on all the others.
#[inline(always)]
pub fn hash(word: u64, bits: u32) -> usize {
    (word.wrapping_mul(MIX) >> (64 - bits)) as usize
}

/// A row of sequences.
pub struct Row<'a> {
    sequences: &'a mut [Sequence],
    count: usize,
}

impl<'a> Row<'a> {
    fn new(sequences: &'a mut [Sequence]) -> Self {
        Self { sequences, count: 0 }
    }

    #[inline(always)]
    fn put(&mut self, sequence: Sequence) {
        self.sequences[self.count] = sequence;
        self.count += 1;
    }
}

/// Puts down a match of any length.
#[inline(always)]
pub fn push(row: &mut Row<'_>, at: usize, length: usize, distance: usize) {
    in_pieces(at, length, distance, |piece| row.put(piece));
}

/// Cuts a match of any length into pieces that deflate has.
#[inline(always)]
pub fn in_pieces(mut at: usize, mut length: usize, distance: usize, mut put: impl FnMut(Sequence)) {
    let distance = distance as u16;
    while length > MAX_MATCH {
        // What is left must be long enough for a match.
        let piece = if length >= MAX_MATCH + 3 { MAX_MATCH } else { length - 3 };
        put(Sequence { at: at as u16, length: piece as u16, distance });
        at += piece;
        length -= piece;
    }
    put(Sequence { at: at as u16, length: length as u16, distance });
}

impl Matcher {
    pub fn new() -> Self {
        Self {
            long: zeros(1 << MAX_TABLE),
            short: zeros(1 << MAX_TABLE),
            before: zeros(MAX_UNIT),
            sequences: zeros(MAX_SEQUENCES + 1),
            count: 0,
        }
    }

    /// The sequences of the last unit.
    pub fn found(&self) -> &[Sequence] {
        &self.sequences[..self.count]
    }

    /// Finds matches in `unit` no further back than `window`; `ask` is for the fast way.
    #[inline(always)]
    pub fn find(&mut self, level: Level, unit: &[u8], window: usize, ask: Short) {
        let (depth, enough) = match level {
            Level::L1 => {
                let Self { long, short, sequences, .. } = self;
                let mut row = Row::new(sequences);
                bytes(unit, window, ask, long, short, &mut row);
                self.count = row.count;
                return;
            }
            Level::L6 => (24, 64),
            Level::L9 => (512, MAX_MATCH),
        };
        self.count = self.find_in_chains(unit, window, depth, enough);
    }

    fn find_in_chains(&mut self, unit: &[u8], window: usize, depth: usize, enough: usize) -> usize {
        let Some(last) = unit.len().checked_sub(4) else { return 0 };
        self.long.fill(0);
        let Self { long, before, sequences, .. } = self;
        let mut chains = Chains { heads: long, before, next: 0 };
        let mut row = Row::new(sequences);
        let mut at = 0;
        let (mut length, mut distance) = (0, 0);
        while at <= last {
            let (mut new_length, mut new_distance) = (0, 0);
            if length < enough {
                chains.insert(unit, at);
                (new_length, new_distance) =
                    chains.longest(unit, at, window, depth, enough, length);
            }
            if length >= 3 && length >= new_length {
                // The match that began one byte ago is the better one.
                let end = at - 1 + length;
                push(&mut row, at - 1, length, distance);
                chains.insert(unit, (end - 1).min(last));
                (length, distance) = (0, 0);
                at = end;
            } else {
                (length, distance) = (new_length, new_distance);
                at += 1;
            }
        }
        if length >= 3 {
            push(&mut row, at - 1, length, distance);
        }
        row.count
    }
}

/// For each position, the one before it where the same 3 bytes are.
struct Chains<'a> {
    /// The last position for each hash.
    heads: &'a mut [u16],
    before: &'a mut [u16],
    /// The first position that is in no chain.
    next: usize,
}

impl Chains<'_> {
    /// Puts the positions to `to` into their chains.
    fn insert(&mut self, unit: &[u8], to: usize) {
        while self.next <= to {
            let word = u64::from(load32(unit, self.next)) << 40;
            let head = &mut self.heads[hash(word, MAX_TABLE)];
            self.before[self.next] = *head;
            *head = self.next as u16;
            self.next += 1;
        }
    }

    /// The longest match at `at` that is longer than `beat`, or lengths that are none.
    fn longest(
        &self,
        unit: &[u8],
        at: usize,
        window: usize,
        depth: usize,
        enough: usize,
        beat: usize,
    ) -> (usize, usize) {
        let most = (unit.len() - at).min(MAX_MATCH);
        let (mut length, mut distance) = (beat.max(2), 0);
        let mut from = at;
        for _ in 0..depth {
            // A chain leads back; where it does not, it has ended.
            let before = usize::from(self.before[from]);
            if before >= from || at - before > window || length >= most {
                break;
            }
            from = before;
            if unit[from + length] != unit[at + length] {
                continue;
            }
            let n = common(unit, from, at).min(most);
            // Three bytes from afar cost more than three literals.
            if n > length && (n > 3 || at - from <= 4096) {
                (length, distance) = (n, at - from);
                if n >= enough {
                    break;
                }
            }
        }
        if distance == 0 { (0, 0) } else { (length, distance) }
    }
}

/// How many bytes are the same from `a` and from `b` on, `a < b`.
#[inline(always)]
pub fn common(unit: &[u8], a: usize, b: usize) -> usize {
    let mut n = 0;
    while b + n + 8 <= unit.len() {
        let differ = load64(unit, a + n) ^ load64(unit, b + n);
        if differ != 0 {
            return n + (differ.trailing_zeros() / 8) as usize;
        }
        n += 8;
    }
    while b + n < unit.len() && unit[a + n] == unit[b + n] {
        n += 1;
    }
    n
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const WAYS: [(Level, Short); 4] = [
        (Level::L1, Short::Four),
        (Level::L1, Short::Five),
        (Level::L6, Short::Four),
        (Level::L9, Short::Four),
    ];

    /// Puts the sequences together again.
    pub fn played(sequences: &[Sequence], unit: &[u8], window: usize) -> Vec<u8> {
        let mut out: Vec<u8> = Vec::new();
        for s in sequences {
            let (length, distance) = (usize::from(s.length), usize::from(s.distance));
            out.extend(&unit[out.len()..usize::from(s.at)]);
            assert!((3..=MAX_MATCH).contains(&length), "a match of {length}");
            assert!((1..=window.min(out.len())).contains(&distance), "from {distance} back");
            for _ in 0..length {
                out.push(out[out.len() - distance]);
            }
            assert_eq!(out.len(), s.end());
        }
        out.extend(&unit[out.len()..]);
        out
    }

    proptest! {
        #[test]
        fn sequences_give_the_unit(
            runs in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 1..12), 1usize..200), 1..40),
            window in 1usize..40000,
        ) {
            let mut unit: Vec<u8> = runs.into_iter().flat_map(|(v, n)| v.repeat(n)).collect();
            unit.truncate(MAX_UNIT);
            let mut matcher = Matcher::new();
            for (level, ask) in WAYS {
                matcher.find(level, &unit, window.min(32768), ask);
                prop_assert!(played(matcher.found(), &unit, window) == unit, "{level:?}, {ask:?}");
            }
        }
    }

    #[test]
    fn the_shortest_units_have_no_matches_or_right_ones() {
        let mut matcher = Matcher::new();
        for n in 1..40 {
            let unit: Vec<u8> = (0..n).map(|i| i / 20).collect();
            for (level, ask) in WAYS {
                matcher.find(level, &unit, 32768, ask);
                assert_eq!(played(matcher.found(), &unit, 32768), unit);
            }
        }
    }
}
