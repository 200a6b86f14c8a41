//! Huffman codes as deflate has them: a code is told by the lengths of its codewords.
//!
//! Codewords are dealt out in order of length, then of symbol, counting upwards (*canonical*). In
//! the stream a codeword comes highest bit first while everything else comes lowest bit first, so
//! tables are indexed by the codeword reversed.
//!
//! Decoding looks up the next few bits in a table. A codeword no longer than that fills every
//! entry that begins with it; a longer one has no entry and is found by walking the code bit by
//! bit. Such codewords are rare by construction: of 2^-10 and less.

use super::symbols::MAX_BITS;

/// Why lengths make no code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadCode;

/// How many codewords have each length, and whether that makes a code.
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
    /// What a reversed codeword stands for; 0 where it is too long for the table, or none.
    table: [u32; N],
    /// The bits to look up: as many as the longest codeword has, if the table is that large.
    mask: u64,
    /// For the walk: codewords of each length, and symbols in order of codeword.
    count: [u16; MAX_BITS + 1],
    sorted: [u16; 288],
}

/// An entry of a [`Decoder`], made from a symbol by the alphabet: the low byte is free for the
/// length of the codeword, which the decoder adds, and the rest must not be 0.
pub type Meaning = fn(symbol: usize) -> u32;

impl<const N: usize> Decoder<N> {
    pub const fn new() -> Self {
        assert!(N.is_power_of_two() && N >= 2);
        Self { table: [0; N], mask: 1, count: [0; MAX_BITS + 1], sorted: [0; 288] }
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
        let longest = (1..=MAX_BITS).rev().find(|&n| self.count[n] != 0).unwrap_or(1);
        let bits = longest.min(N.trailing_zeros() as usize);
        self.mask = (1 << bits) - 1;
        self.table[..2].fill(0);
        let (mut codeword, mut at) = (0u32, 0);
        for length in 1..=bits {
            for _ in 0..self.count[length] {
                let reversed = (codeword.reverse_bits() >> (32 - length)) as usize;
                self.table[reversed] = meaning(usize::from(self.sorted[at])) + length as u32;
                codeword += 1;
                at += 1;
            }
            if length < bits {
                self.table.copy_within(..1 << length, 1 << length);
                codeword <<= 1;
            }
        }
    }

    /// The entry for the codeword at the front of `bits`, 0 if it is not in the table.
    #[inline(always)]
    pub fn look_up(&self, bits: u64) -> u32 {
        self.table[(bits & self.mask) as usize & (N - 1)]
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
