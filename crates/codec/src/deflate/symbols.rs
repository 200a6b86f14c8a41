//! The alphabets of deflate: which symbol stands for which length and distance.
//!
//! One alphabet holds the 256 literals, the end of the block and 29 classes of match lengths;
//! another holds 30 classes of distances. A class is a base and a number of extra bits behind the
//! code that say how far above the base.

/// Literals, the end of the block, and the classes of lengths that exist.
pub const LITLENS: usize = 286;
/// Classes of distances that exist.
pub const DISTANCES: usize = 30;
/// The longest code of either alphabet, in bits.
pub const MAX_BITS: usize = 15;
/// The symbol that ends a block.
pub const END_OF_BLOCK: usize = 256;
/// The first class of lengths.
pub const FIRST_LENGTH: usize = 257;
/// The longest match.
pub const MAX_MATCH: usize = 258;
/// How far back a match can reach.
pub const MAX_DISTANCE: usize = 32768;

/// A class of lengths or distances.
#[derive(Clone, Copy)]
pub struct Class {
    /// The smallest length or distance of the class.
    pub base: u16,
    /// Bits behind the code, to be added to the base.
    pub extra: u8,
}

/// Classes of lengths: symbol [`FIRST_LENGTH`] and on.
pub const LENGTH_CLASSES: [Class; 29] = {
    let mut classes = [Class { base: 0, extra: 0 }; 29];
    let (mut base, mut i) = (3, 0);
    while i < 28 {
        // Eight classes without extra bits, then four classes for each number of extra bits.
        let extra = if i < 8 { 0 } else { (i as u8 - 4) / 4 };
        classes[i] = Class { base, extra };
        base += 1 << extra;
        i += 1;
    }
    // The longest match has a class of its own; the last regular class loses its last value.
    classes[28] = Class { base: MAX_MATCH as u16, extra: 0 };
    classes
};

/// Classes of distances: symbol 0 and on.
pub const DISTANCE_CLASSES: [Class; DISTANCES] = {
    let mut classes = [Class { base: 0, extra: 0 }; DISTANCES];
    let (mut base, mut i) = (1, 0);
    while i < DISTANCES {
        let extra = if i < 4 { 0 } else { (i as u8 - 2) / 2 };
        classes[i] = Class { base, extra };
        base += 1 << extra;
        i += 1;
    }
    classes
};

/// Code lengths of a fixed block: 288 and 32 symbols have codes, though not all exist.
pub const FIXED_LITLEN: [u8; 288] = {
    let mut lengths = [8; 288];
    let mut i = 144;
    while i < 280 {
        lengths[i] = if i < 256 { 9 } else { 7 };
        i += 1;
    }
    lengths
};
/// See [`FIXED_LITLEN`].
pub const FIXED_DISTANCE: [u8; 32] = [5; 32];

/// The order in which a dynamic header lists the code lengths of its code-length alphabet.
pub const PRECODE_ORDER: [u8; 19] =
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_are_the_rfc_s() {
        // RFC 1951, 3.2.5: a few from each end of its tables.
        let length = |symbol: usize| LENGTH_CLASSES[symbol - FIRST_LENGTH];
        for (symbol, base, extra) in
            [(257, 3, 0), (264, 10, 0), (265, 11, 1), (269, 19, 2), (284, 227, 5), (285, 258, 0)]
        {
            assert_eq!((length(symbol).base, length(symbol).extra), (base, extra), "{symbol}");
        }
        for (symbol, base, extra) in [(0, 1, 0), (3, 4, 0), (4, 5, 1), (29, 24577, 13)] {
            let class = DISTANCE_CLASSES[symbol];
            assert_eq!((class.base, class.extra), (base, extra), "{symbol}");
        }
    }
}
