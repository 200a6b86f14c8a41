//! Huffman codes as deflate has them: a code is told by the lengths of its codewords.
//!
//! Codewords are dealt out in order of length, then of symbol, counting upwards (*canonical*). In
//! the stream a codeword comes highest bit first while everything else comes lowest bit first, so
//! tables are indexed by the codeword reversed.
//!
//! Decoding looks up the next few bits in a table. A codeword no longer than that fills every
//! entry that begins with it; a longer one has no entry and is found by walking the code bit by
//! bit. Such codewords are rare by construction: of 2^-10 and less.
#![allow(unsafe_code)] // Look-ups without a bounds check, which stands in the way of the next one.

use super::bits::{Codeword, codeword};
use super::symbols::MAX_BITS;

/// Why lengths make no code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadCode;

/// How many codewords have each length.
pub fn count_lengths(lengths: &[u8]) -> [u16; MAX_BITS + 1] {
    let mut count = [0; MAX_BITS + 1];
    for &length in lengths {
        count[usize::from(length)] += 1;
    }
    count[0] = 0;
    count
}

/// Codewords that are missing for the code to be complete, in units of the longest codeword.
/// An error when there are codewords too many.
pub fn missing(count: &[u16; MAX_BITS + 1]) -> Result<u32, BadCode> {
    let used: u32 = (1..=MAX_BITS).map(|n| u32::from(count[n]) << (MAX_BITS - n)).sum();
    (1u32 << MAX_BITS).checked_sub(used).ok_or(BadCode)
}

/// What to do with a code in which codewords are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incomplete {
    /// Refuse it.
    Refuse,
    /// Accept it if it is one codeword of one bit, or none at all, as zlib does.
    AcceptOneOrNone,
}

/// A look-up table for one alphabet; `N` entries, a power of two.
pub struct Decoder<const N: usize> {
    /// What the bits stand for that a reversed codeword begins; 0 where it is too long for the table, or none.
    table: [u32; N],
    /// For the walk: codewords of each length, and symbols in order of codeword.
    count: [u16; MAX_BITS + 1],
    sorted: [u16; 288],
}

/// An entry of a [`Decoder`], made from a symbol by the alphabet: the low byte is free for the
/// length of the codeword, which the decoder adds, and the rest must not be 0.
pub type Meaning = fn(symbol: usize) -> u32;

impl<const N: usize> Decoder<N> {
    /// How many bits are looked up.
    const BITS: usize = N.ilog2() as usize;

    pub const fn new() -> Self {
        assert!(N.is_power_of_two() && N >= 2 && Self::BITS <= MAX_BITS);
        Self { table: [0; N], count: [0; MAX_BITS + 1], sorted: [0; 288] }
    }

    /// Makes this the decoder of the code with these lengths.
    pub fn build(
        &mut self,
        lengths: &[u8],
        meaning: Meaning,
        incomplete: Incomplete,
    ) -> Result<(), BadCode> {
        let count = count_lengths(lengths);
        if missing(&count)? != 0 {
            let one_or_none = count[1] <= 1 && count[2..].iter().all(|&n| n == 0);
            if incomplete == Incomplete::Refuse || !one_or_none {
                return Err(BadCode);
            }
        }
        self.sort(lengths, &count);
        self.count = count;
        self.fill(meaning);
        Ok(())
    }

    /// Puts the symbols in order of codeword.
    fn sort(&mut self, lengths: &[u8], count: &[u16; MAX_BITS + 1]) {
        let mut next = [0u16; MAX_BITS + 1];
        for n in 1..MAX_BITS {
            next[n + 1] = next[n] + count[n];
        }
        for (symbol, &length) in lengths.iter().enumerate() {
            if length != 0 {
                let place = &mut next[usize::from(length)];
                self.sorted[usize::from(*place)] = symbol as u16;
                *place += 1;
            }
        }
    }

    /// Fills the table for codewords of one bit, copies it behind itself, adds those of two bits,
    /// and so on: each entry is written about twice, whatever the code.
    fn fill(&mut self, meaning: Meaning) {
        self.table[..2].fill(0);
        let (mut codeword, mut at) = (0u32, 0);
        for length in 1..=Self::BITS {
            for _ in 0..self.count[length] {
                let reversed = (codeword.reverse_bits() >> (32 - length)) as usize;
                self.table[reversed] = meaning(usize::from(self.sorted[at])) + length as u32;
                codeword += 1;
                at += 1;
            }
            if length < Self::BITS {
                self.table.copy_within(..1 << length, 1 << length);
                codeword <<= 1;
            }
        }
    }

    /// Replaces entries by what `join` makes of them, of the entry that follows in the stream, and
    /// of the table's number of bits; it knows whether both codewords fit.
    pub fn pair(&mut self, join: impl Fn(u32, u32, u32) -> Option<u32>) {
        let bits = Self::BITS as u32;
        // What follows entry `i` is entry `i >> length`, a lower one and not yet replaced.
        for i in (0..N).rev() {
            let first = self.table[i];
            let second = self.table[i >> (first & 0xff).min(bits)];
            if first != 0 && second != 0 {
                self.table[i] = join(first, second, bits).unwrap_or(first);
            }
        }
    }

    /// The entry for the codeword at the front of `bits`, 0 if it is not in the table.
    #[inline(always)]
    pub fn look_up(&self, bits: u64) -> u32 {
        self.table[bits as usize & (N - 1)]
    }

    /// The symbol of the codeword at the front of `bits`, and its length: bit by bit, for any
    /// codeword. `None` when no codeword begins like that.
    #[cold]
    #[inline(never)]
    pub fn walk(&self, bits: u64) -> Option<(usize, u32)> {
        let (mut codeword, mut first, mut at) = (0u32, 0u32, 0u32);
        for length in 1..=MAX_BITS {
            codeword = codeword << 1 | (bits >> (length - 1)) as u32 & 1;
            let count = u32::from(self.count[length]);
            if codeword - first < count {
                let symbol = self.sorted[(at + codeword - first) as usize];
                return Some((symbol.into(), length as u32));
            }
            at += count;
            first = (first + count) << 1;
        }
        None
    }
}

/// Writes the items to be kept to the front of `room`, which has a place for each item, and returns them.
/// Which they are cannot be predicted: no branch.
#[inline(always)]
pub fn kept<T: Copy>(items: impl Iterator<Item = (T, bool)>, room: &mut [T]) -> &[T] {
    let mut n = 0;
    for (item, keep) in items {
        room[n] = item;
        n += usize::from(keep);
    }
    &room[..n]
}

/// Writes the codewords of the canonical code with these lengths; symbols without one keep what they had.
pub fn codewords(lengths: &[u8], out: &mut [Codeword]) {
    // Only those with one: counting the others at one place after another would take most of the time.
    let mut used = [0u16; SYMBOLS];
    let used = kept((0..).zip(lengths).map(|(symbol, &length)| (symbol, length != 0)), &mut used);
    let used = used.iter().map(|&symbol| (usize::from(symbol), lengths[usize::from(symbol)]));
    let mut next = [0u32; MAX_BITS + 2];
    for (_, length) in used.clone() {
        next[usize::from(length) + 1] += 1;
    }
    for n in 1..=MAX_BITS {
        next[n + 1] = (next[n] + next[n + 1]) << 1;
    }
    for (symbol, length) in used {
        let word = &mut next[usize::from(length)];
        let reversed = word.reverse_bits() >> (32 - u32::from(length));
        *word += 1;
        out[symbol] = codeword(reversed, length.into());
    }
}

/// The most symbols an alphabet can have here.
const SYMBOLS: usize = 288;

/// Writes the lengths of the best prefix code for these frequencies in which no codeword is longer
/// than `limit`; 0 for symbols that do not occur. A single symbol gets a codeword of one bit.
///
/// The code is Huffman's. If it is too deep, codewords that are too long are cut to the limit and
/// others lengthened until they are a code again: not always the best one, but near.
pub fn lengths(frequencies: &[u32], limit: usize, out: &mut [u8]) {
    debug_assert!(frequencies.len() == out.len() && out.len() <= SYMBOLS);
    // With room of its own for the small alphabets: what is cleared takes longer than the tree.
    if out.len() <= 30 {
        lengths_in::<32>(frequencies, limit, out);
    } else {
        lengths_in::<{ SYMBOLS + 2 }>(frequencies, limit, out);
    }
}

/// [`lengths`] of an alphabet of at most `ROOM - 2` symbols.
fn lengths_in<const ROOM: usize>(frequencies: &[u32], limit: usize, out: &mut [u8]) {
    out.fill(0);
    let mut leaves = [0u32; ROOM];
    let n = sorted_leaves(frequencies, &mut leaves);
    let leaves = &leaves[..n];
    match *leaves {
        [] => return,
        [leaf] => {
            out[symbol(leaf)] = 1;
            return;
        }
        _ => {}
    }
    let mut depths = [0u8; ROOM];
    depths_of(leaves, &mut depths);
    // The rarest symbols come first and have the longest codewords.
    if usize::from(depths[0]) <= limit {
        for (&leaf, &depth) in leaves.iter().zip(&depths) {
            out[symbol(leaf)] = depth;
        }
        return;
    }
    let count = limited(&depths[..n], limit);
    let mut leaves = leaves.iter();
    for length in (1..=limit).rev() {
        for &leaf in leaves.by_ref().take(count[length].into()) {
            out[symbol(leaf)] = length as u8;
        }
    }
}

/// The symbol of a leaf, below its frequency. Nine bits hold it; a unit has fewer symbols than the other
/// 23 can count.
fn symbol(leaf: u32) -> usize {
    (leaf & 511) as usize
}

/// Writes the symbols that occur in order of frequency and then of symbol, each below its frequency, and
/// returns how many they are. Most frequencies are small, and are counted out; the others are sorted.
fn sorted_leaves<const ROOM: usize>(frequencies: &[u32], leaves: &mut [u32; ROOM]) -> usize {
    const COUNTED: usize = 64;
    let place = |leaf: u32| ((leaf >> 9) as usize).min(COUNTED - 1);
    let all = (0..).zip(frequencies).map(|(symbol, &frequency)| {
        debug_assert!(frequency < 1 << 23);
        (frequency << 9 | symbol, frequency != 0)
    });
    let mut occurring = [0u32; ROOM];
    let occurring = kept(all, &mut occurring);
    let mut starts = [0u16; COUNTED + 1];
    for &leaf in occurring {
        starts[place(leaf) + 1] += 1;
    }
    for i in 1..=COUNTED {
        starts[i] += starts[i - 1];
    }
    let last = usize::from(starts[COUNTED - 1]);
    for &leaf in occurring {
        let start = &mut starts[place(leaf)];
        leaves[usize::from(*start)] = leaf;
        *start += 1;
    }
    leaves[last..occurring.len()].sort_unstable();
    occurring.len()
}

/// Writes how deep in Huffman's tree each of these leaves is, which are sorted by frequency: none deeper
/// than the one before. Depths beyond 63 are written as 63.
///
/// Joins the two lightest of the leaves and of the nodes already made, again and again: both are in order of
/// weight, so those two are among the first two of each row.
///
/// ```text
///   leaves  l m ...     m no heavier than n: l and m
///   nodes   n o ...     o lighter than l:    n and o      else: l and n
/// ```
///
/// Which of the three cannot be predicted: no branch. Behind the end of a row all is heavier than anything.
fn depths_of<const ROOM: usize>(leaves: &[u32], depths: &mut [u8; ROOM]) {
    let mut weight = [[u32::MAX; ROOM]; 2];
    let mut parent = [[0u16; ROOM]; 2];
    let (weight, parent) = (weight.as_flattened_mut(), parent.as_flattened_mut());
    for (weight, leaf) in weight.iter_mut().zip(leaves) {
        *weight = leaf >> 9;
    }
    let (mut leaf, mut node) = (0, ROOM);
    for made in 0..leaves.len() - 1 {
        let (first, second) = (weight[leaf], weight[leaf + 1]);
        let (first_node, second_node) = (weight[node], weight[node + 1]);
        let (has_node, has_two) = (first_node < second, second_node < first);
        weight[ROOM + made] = second.min(first_node) + first.min(second_node);
        parent[if has_node { node } else { leaf + 1 }] = made as u16;
        parent[if has_two { node + 1 } else { leaf }] = made as u16;
        let nodes = usize::from(has_node) + usize::from(has_two);
        node += nodes;
        leaf += 2 - nodes;
    }
    // The last node is the root; every node lies behind its children.
    let mut depth = [0u8; ROOM];
    for node in (0..leaves.len() - 2).rev() {
        depth[node] = (depth[usize::from(parent[ROOM + node])] + 1).min(62);
    }
    for (out, &parent) in depths.iter_mut().zip(&parent[..leaves.len()]) {
        *out = depth[usize::from(parent)] + 1;
    }
}

/// How many codewords have each length when those deeper than `limit` are none longer.
fn limited(depths: &[u8], limit: usize) -> [u16; MAX_BITS + 1] {
    let mut count = [0; MAX_BITS + 1];
    for &depth in depths {
        count[usize::from(depth).min(limit)] += 1;
    }
    let used: u32 = (1..=limit).map(|n| u32::from(count[n]) << (limit - n)).sum();
    for _ in 1 << limit..used {
        // A leaf one level down makes room for a sibling, which comes from the limit.
        let from = (1..limit).rev().find(|&n| count[n] != 0).expect("a shorter codeword");
        count[from] -= 1;
        count[from + 1] += 2;
        count[limit] -= 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// The cost of the best code, by joining the two smallest again and again.
    fn best_cost(frequencies: &[u32]) -> u32 {
        let mut weights: Vec<u32> = frequencies.iter().copied().filter(|&f| f != 0).collect();
        let mut cost = 0;
        while weights.len() > 1 {
            weights.sort_unstable_by(|a, b| b.cmp(a));
            let sum = weights.pop().expect("one") + weights.pop().expect("two");
            cost += sum;
            weights.push(sum);
        }
        cost
    }

    fn cost(frequencies: &[u32], lengths: &[u8]) -> u32 {
        frequencies.iter().zip(lengths).map(|(f, &l)| f * u32::from(l)).sum()
    }

    proptest! {
        #[test]
        fn lengths_make_the_best_code(frequencies in proptest::collection::vec(
            prop_oneof![Just(0u32), 1u32..5, 1u32..1000, Just(60_000)], 2..SYMBOLS,
        )) {
            let mut out = vec![0xff; frequencies.len()];
            lengths(&frequencies, MAX_BITS, &mut out);
            let used = frequencies.iter().filter(|&&f| f != 0).count();
            for (f, l) in frequencies.iter().zip(&out) {
                prop_assert_eq!(*f == 0, *l == 0);
            }
            if used >= 2 {
                prop_assert_eq!(missing(&count_lengths(&out)), Ok(0));
                let (ours, best) = (cost(&frequencies, &out), best_cost(&frequencies));
                // At the limit the code may be worse, but not by much.
                let limited = out.iter().any(|&l| usize::from(l) == MAX_BITS);
                prop_assert!(ours == best || limited && ours - best < best / 100);
            }
        }

        #[test]
        fn a_limit_is_kept(
            frequencies in proptest::collection::vec(0u32..1 << 20, 2..SYMBOLS),
            skew in 0u32..20,
        ) {
            let frequencies: Vec<u32> =
                frequencies.iter().enumerate().map(|(i, f)| f >> (i as u32 % 20).min(skew)).collect();
            let mut out = vec![0; frequencies.len()];
            lengths(&frequencies, 9, &mut out);
            prop_assert!(out.iter().all(|&l| l <= 9));
            if frequencies.iter().filter(|&&f| f != 0).count() >= 2 {
                prop_assert_eq!(missing(&count_lengths(&out)), Ok(0));
            }
        }

        #[test]
        fn codewords_decode(frequencies in proptest::collection::vec(0u32..100, 2..SYMBOLS)) {
            let mut out = vec![0; frequencies.len()];
            lengths(&frequencies, MAX_BITS, &mut out);
            let mut words = vec![0; out.len()];
            codewords(&out, &mut words);
            let mut decoder = Decoder::<64>::new();
            let meaning = |symbol| (symbol as u32 + 1) << 16;
            prop_assume!(decoder.build(&out, meaning, Incomplete::AcceptOneOrNone).is_ok());
            for (symbol, &word) in words.iter().enumerate() {
                if word == 0 { continue; }
                // Noise behind the codeword changes nothing.
                let length = word & 63;
                let bits = u64::from(word >> 6) | 0x5a5a_5a5a << length;
                prop_assert_eq!(decoder.walk(bits), Some((symbol, length)));
                let entry = decoder.look_up(bits);
                if length <= 6 {
                    prop_assert_eq!(entry, (symbol as u32 + 1) << 16 | length);
                } else {
                    prop_assert_eq!(entry, 0);
                }
            }
        }
    }
}
