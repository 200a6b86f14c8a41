//! Classes of lengths and distances (RFC 1951, 3.2.5), counted out rather than listed.

/// Literals, the end of the block, and lengths.
pub const LITLENS: usize = 286;
/// Distances.
pub const DISTANCES: usize = 30;
/// Literals and lengths of a fixed block, of which the last do not exist but have codes.
pub const FIXED_LITLENS: usize = 288;
/// Distances of a fixed block.
pub const FIXED_DISTANCES: usize = 32;
/// The symbol that ends a block.
pub const END_OF_BLOCK: usize = 256;

/// The least length of a symbol, and its extra bits.
pub fn length_class(symbol: usize) -> Option<(usize, u32)> {
    match symbol.checked_sub(END_OF_BLOCK + 1)? {
        n @ 0..8 => Some((n + 3, 0)),
        n @ 8..28 => {
            let extra = n as u32 / 4 - 1;
            Some((((4 + n % 4) << extra) + 3, extra))
        }
        28 => Some((258, 0)),
        _ => None,
    }
}

/// The least distance of a symbol, and its extra bits.
pub fn distance_class(symbol: usize) -> Option<(usize, u32)> {
    match symbol {
        0..4 => Some((symbol + 1, 0)),
        4..DISTANCES => {
            let extra = symbol as u32 / 2 - 1;
            Some((((2 + symbol % 2) << extra) + 1, extra))
        }
        _ => None,
    }
}

/// The symbol of a length, what is above the least of its class, and its extra bits.
pub fn length_symbol(length: usize) -> (usize, usize, u32) {
    if length == 258 {
        return (LITLENS - 1, 0, 0);
    }
    let (class, rest, extra) = class_of(length - 3, 4);
    (END_OF_BLOCK + 1 + class, rest, extra)
}

/// The symbol of a distance, what is above the least of its class, and its extra bits.
pub fn distance_symbol(distance: usize) -> (usize, usize, u32) {
    class_of(distance - 1, 2)
}

/// Values from 0 on in classes: twice so many of one value, then so many of two, of four, and so on.
/// The class of a value, what is above its least, and the bits that takes.
fn class_of(value: usize, so_many: usize) -> (usize, usize, u32) {
    let extra = (value / so_many).checked_ilog2().unwrap_or(0);
    (so_many * extra as usize + (value >> extra), value & ((1 << extra) - 1), extra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_distance_has_a_symbol_that_gives_it_back() {
        for length in 3..=258 {
            let (symbol, rest, extra) = length_symbol(length);
            assert!(symbol < LITLENS && rest < 1 << extra);
            assert_eq!(length_class(symbol).map(|(least, _)| least + rest), Some(length));
        }
        for distance in 1..=32768 {
            let (symbol, rest, extra) = distance_symbol(distance);
            assert!(symbol < DISTANCES && rest < 1 << extra);
            assert_eq!(distance_class(symbol).map(|(least, _)| least + rest), Some(distance));
        }
        assert_eq!((length_symbol(258), distance_symbol(32768)), ((285, 0, 0), (29, 8191, 13)));
    }
}
