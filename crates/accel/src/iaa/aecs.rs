//! The codes of a block as a device wants them.

use super::wire::{CompressAecs, Histogram};
use octavo_codec::deflate::{self, Lengths};
use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

/// The bits that a stream of one fixed block begins with: last block, type 1.
const LAST_FIXED: u8 = 0b011;

/// Why codes make no AECS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderTooLong;

impl CompressAecs {
    /// For a stream of one fixed block.
    #[must_use]
    pub fn fixed() -> Self {
        // Two lengths that do not exist have codes, too, which come before longer ones.
        let mut litlen = [8; 288];
        litlen[..286].copy_from_slice(&Lengths::FIXED.litlen);
        let mut aecs = Self::new_zeroed();
        set_codes(&litlen, &mut aecs.codes.litlen);
        set_codes(&Lengths::FIXED.distance, &mut aecs.codes.distance);
        aecs.accumulated_bits = U32::new(3);
        aecs.accumulator[0] = LAST_FIXED;
        aecs
    }

    /// For a body whose header is implied.
    #[must_use]
    pub fn canned(lengths: &Lengths) -> Self {
        let mut aecs = Self::new_zeroed();
        set_codes(&lengths.litlen, &mut aecs.codes.litlen);
        set_codes(&lengths.distance, &mut aecs.codes.distance);
        aecs
    }

    /// For a stream of one dynamic block.
    ///
    /// # Errors
    /// [`HeaderTooLong`] when the header has more bits than the accumulator.
    pub fn dynamic(lengths: &Lengths) -> Result<Self, HeaderTooLong> {
        let mut aecs = Self::canned(lengths);
        let mut header = [0; 300];
        let bits = lengths.header(&mut header).map_err(|_| HeaderTooLong)?;
        let bytes = header.get(..bits.div_ceil(8)).ok_or(HeaderTooLong)?;
        aecs.accumulator.get_mut(..bytes.len()).ok_or(HeaderTooLong)?.copy_from_slice(bytes);
        aecs.accumulated_bits = U32::new(bits as u32);
        Ok(aecs)
    }
}

/// Canonical codes: counted upwards in order of length and then of symbol.
fn set_codes(lengths: &[u8], words: &mut [U32]) {
    let mut code = 0u32;
    for length in 1..=15u8 {
        for (symbol, _) in lengths.iter().enumerate().filter(|(_, n)| **n == length) {
            if let Some(word) = words.get_mut(symbol) {
                *word = U32::new(u32::from(length) << 15 | code);
            }
            code += 1;
        }
        code <<= 1;
    }
}

impl Histogram {
    /// What a device counted, with the end of the block, which occurs once whether it was counted
    /// or not.
    #[must_use]
    pub fn counted(&self) -> deflate::Histogram {
        const END_OF_BLOCK: usize = 256;
        // A unit has fewer symbols; what a device says is bounded all the same.
        let count = |word: &U32| word.get().min(1 << 16);
        let mut counted = deflate::Histogram::new();
        for (to, from) in counted.litlen.iter_mut().zip(&self.litlen) {
            *to = count(from);
        }
        for (to, from) in counted.distance.iter_mut().zip(&self.distance) {
            *to = count(from);
        }
        counted.litlen[END_OF_BLOCK] = 1;
        counted
    }
}

/// The lengths of the code that suits these symbols, or `None` where the fixed code is shorter,
/// header counted.
#[must_use]
pub fn best_lengths(counted: &deflate::Histogram) -> Option<Lengths> {
    let lengths = counted.lengths();
    let header_bits = lengths.header(&mut [0; 300]).ok()?;
    let cost = counted.cost(&lengths) as usize + header_bits;
    (cost < counted.cost(&Lengths::FIXED) as usize + 3).then_some(lengths)
}
