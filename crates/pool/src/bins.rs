//! Which list a hole of a given size waits in.
//!
//! Each power of two is cut into 64 equal bins, so the sizes in a bin differ by at most 2%, and the
//! smallest sizes have a bin each. A bitmap finds the next bin that holds anything.

use crate::handles::NIL;

/// Binary logarithm of the bins that a power of two is cut into.
const CUT: u32 = 6;
/// Sizes below this have a bin each.
const LINEAR: u32 = 1 << (CUT + 1);
/// Bins for sizes up to 2^18 words (1 MiB).
const BINS: usize = (18 - CUT as usize + 1) << CUT;

/// The bin of a hole of `words` words. Larger holes have no smaller bin.
pub(crate) const fn bin_of(words: u32) -> usize {
    if words < LINEAR {
        return words as usize;
    }
    let shift = words.ilog2() - CUT;
    let bin = ((shift << CUT) + (words >> shift)) as usize;
    if bin < BINS { bin } else { BINS - 1 }
}

/// Words of the bitmap.
const WORDS: usize = BINS.div_ceil(64);

/// The heads of the lists, and which of them are not empty.
pub(crate) struct Bins {
    heads: [u32; BINS],
    filled: [u64; WORDS],
    /// A bit for each word of `filled` that is not zero: a lane with few holes is searched as fast as one
    /// with many.
    words: u32,
}

const _: () = assert!(WORDS < u32::BITS as usize);

impl Bins {
    pub(crate) const fn new() -> Self {
        Self { heads: [NIL; BINS], filled: [0; WORDS], words: 0 }
    }

    pub(crate) fn head(&self, bin: usize) -> u32 {
        self.heads[bin]
    }

    pub(crate) fn set_head(&mut self, bin: usize, hole: u32) {
        self.heads[bin] = hole;
        let (word, bit) = (&mut self.filled[bin / 64], 1 << (bin % 64));
        if hole == NIL {
            *word &= !bit;
        } else {
            *word |= bit;
        }
        let is_filled = u32::from(*word != 0);
        self.words = self.words & !(1 << (bin / 64)) | is_filled << (bin / 64);
    }

    /// The first bin from `bin` on that holds a hole.
    pub(crate) fn next_filled(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let here = *self.filled.get(word)? & (u64::MAX << (bin % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let behind = self.words & (u32::MAX << word << 1);
        let word = behind.trailing_zeros() as usize;
        let bits = self.filled.get(word)?;
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_holes_have_no_smaller_bin_and_a_bin_is_narrow() {
        let mut low = 4;
        for words in 5..=1 << 18 {
            assert!(bin_of(words) >= bin_of(words - 1), "{words}");
            assert!(bin_of(words) < BINS);
            if bin_of(words) != bin_of(low) {
                low = words;
            }
            assert!(words - low <= low / 64 || words == 1 << 18, "{low}..{words}");
        }
    }

    #[test]
    fn the_next_filled_bin_is_found_across_words() {
        let mut bins = Bins::new();
        assert_eq!(bins.next_filled(0), None);
        bins.set_head(130, 7);
        assert_eq!((bins.next_filled(0), bins.next_filled(130)), (Some(130), Some(130)));
        assert_eq!((bins.next_filled(131), bins.next_filled(BINS + 100)), (None, None));
        bins.set_head(BINS - 1, 8);
        bins.set_head(129, 9);
        assert_eq!((bins.next_filled(0), bins.next_filled(130)), (Some(129), Some(130)));
        assert_eq!((bins.next_filled(131), bins.next_filled(BINS)), (Some(BINS - 1), None));
        bins.set_head(130, NIL);
        assert_eq!((bins.next_filled(128), bins.next_filled(130)), (Some(129), Some(BINS - 1)));
        bins.set_head(129, NIL);
        assert_eq!(bins.next_filled(0), Some(BINS - 1));
        bins.set_head(BINS - 1, NIL);
        assert_eq!(bins.next_filled(0), None);
    }
}
