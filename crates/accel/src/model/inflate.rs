//! A decoder of deflate, the plain way: bit by bit, code by code, as RFC 1951 says it. It keeps the
//! device's rules: a window of 4 KiB, its error codes, where it may stop, and a state that is
//! written down and taken up again.

use super::bits::Reader;
use super::symbols::{
    DISTANCES, END_OF_BLOCK, FIXED_DISTANCES, FIXED_LITLENS, LITLENS, distance_class, length_class,
};
use crate::iaa::wire::{WINDOW, decompress, error};

/// The codes of a block that has been begun.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    pub is_last: bool,
    pub litlen: [u8; FIXED_LITLENS],
    pub distance: [u8; FIXED_DISTANCES],
}

/// Why decoding ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// This error of [`error`].
    Error(u8),
    /// The output is full.
    Full,
}

/// How far decoding came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// Bytes of output.
    pub written: usize,
    /// Bytes of input.
    pub taken: usize,
    /// The block that the input ended in.
    pub state: Option<State>,
}

/// The symbols of a code in order of codeword, and how many codewords there are of each length.
struct Code {
    count: [usize; 16],
    sorted: [u16; FIXED_LITLENS],
}

impl Code {
    /// `None` when the lengths are too many for a code, or too few; a code of one codeword, or none,
    /// may have too few.
    fn new(lengths: &[u8]) -> Option<Self> {
        let mut code = Self { count: [0; 16], sorted: [0; FIXED_LITLENS] };
        let mut n = 0;
        for length in 1..16 {
            for (symbol, _) in
                lengths.iter().enumerate().filter(|(_, l)| usize::from(**l) == length)
            {
                code.sorted[n] = symbol as u16;
                code.count[length] += 1;
                n += 1;
            }
        }
        let used: usize = (1..16).map(|length| code.count[length] << (15 - length)).sum();
        (used == 1 << 15 || n <= 1 && used <= 1 << 14).then_some(code)
    }

    /// The next symbol: `Ok(None)` when the input ends before it does.
    fn symbol(&self, reader: &mut Reader<'_>) -> Result<Option<usize>, NoCode> {
        let (mut code, mut first, mut at) = (0, 0, 0);
        for length in 1..16 {
            let Some(bit) = reader.bit() else { return Ok(None) };
            code = code << 1 | bit as usize;
            if code - first < self.count[length] {
                return Ok(Some(self.sorted[at + code - first].into()));
            }
            at += self.count[length];
            first = (first + self.count[length]) << 1;
        }
        Err(NoCode)
    }
}

struct NoCode;

/// Decodes from `reader` into `out`, from the middle of a block if there is a `state`, as far as
/// `flags` say.
pub fn inflate(
    reader: &mut Reader<'_>,
    mut state: Option<State>,
    flags: u16,
    out: &mut [u8],
) -> Result<Decoded, Stop> {
    let mut written = 0;
    let is_checked = flags & decompress::CHECK != 0;
    loop {
        let block = match state.take() {
            Some(state) => state,
            None if reader.is_at_end() && !is_checked => {
                return Ok(Decoded { written, taken: reader.bytes_taken(), state: None });
            }
            None => {
                let (is_last, state) = begin(reader, out, &mut written)?;
                match state {
                    Some(state) => state,
                    None if ends(flags, is_last) => {
                        return Ok(Decoded { written, taken: reader.bytes_taken(), state: None });
                    }
                    None => continue,
                }
            }
        };
        let is_ended = symbols(reader, &block, is_checked, out, &mut written)?;
        if !is_ended || ends(flags, block.is_last) {
            let state = (!is_ended).then_some(block);
            return Ok(Decoded { written, taken: reader.bytes_taken(), state });
        }
    }
}

/// Whether decoding stops at the end of a block.
fn ends(flags: u16, is_last: bool) -> bool {
    is_last || flags & decompress::STOP != 0 && flags & decompress::LAST_BLOCK == 0
}

/// Whether the next block is the last, and its codes; a stored block, which has none, is copied.
fn begin(
    reader: &mut Reader<'_>,
    out: &mut [u8],
    written: &mut usize,
) -> Result<(bool, Option<State>), Stop> {
    let ends = Stop::Error(error::HEADER_ENDS);
    let is_last = reader.take(1).ok_or(ends)? == 1;
    let state = match reader.take(2).ok_or(ends)? {
        0 => {
            stored(reader, out, written)?;
            None
        }
        1 => Some(fixed(is_last)),
        2 => Some(header(reader, is_last)?),
        _ => return Err(Stop::Error(error::BLOCK_TYPE)),
    };
    Ok((is_last, state))
}

fn fixed(is_last: bool) -> State {
    let length = |symbol| match symbol {
        144..256 => 9,
        256..280 => 7,
        _ => 8,
    };
    State { is_last, litlen: core::array::from_fn(length), distance: [5; FIXED_DISTANCES] }
}

fn stored(reader: &mut Reader<'_>, out: &mut [u8], written: &mut usize) -> Result<(), Stop> {
    let ends = Stop::Error(error::HEADER_ENDS);
    reader.align();
    let (length, complement) = (reader.take(16).ok_or(ends)?, reader.take(16).ok_or(ends)?);
    if length != !complement & 0xffff {
        return Err(Stop::Error(error::STORED_LENGTH));
    }
    for _ in 0..length {
        let byte = reader.take(8).ok_or(Stop::Error(error::NO_END))?;
        push(out, written, byte as u8)?;
    }
    Ok(())
}

fn push(out: &mut [u8], written: &mut usize, byte: u8) -> Result<(), Stop> {
    *out.get_mut(*written).ok_or(Stop::Full)? = byte;
    *written += 1;
    Ok(())
}

/// The code lengths of a dynamic block.
fn header(reader: &mut Reader<'_>, is_last: bool) -> Result<State, Stop> {
    const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    let ends = Stop::Error(error::HEADER_ENDS);
    let mut take = |n| reader.take(n).ok_or(ends);
    let litlens = 257 + take(5)? as usize;
    let distances = 1 + take(5)? as usize;
    let listed = 4 + take(4)? as usize;
    if litlens > LITLENS {
        return Err(Stop::Error(error::TOO_MANY_LITERALS));
    }
    if distances > DISTANCES {
        return Err(Stop::Error(error::TOO_MANY_DISTANCES));
    }
    let mut lengths = [0; 19];
    for place in &ORDER[..listed] {
        lengths[*place] = take(3)? as u8;
    }
    // Of the code-length alphabet even a code of one codeword is refused.
    let used: u32 = lengths.iter().filter(|n| **n > 0).map(|n| 1 << (7 - n)).sum();
    let precode = Code::new(&lengths).filter(|_| used == 1 << 7);
    let precode = precode.ok_or(Stop::Error(error::BAD_PRECODE))?;

    let mut all = [0; LITLENS + DISTANCES];
    let wanted = litlens + distances;
    let mut n = 0;
    while n < wanted {
        let symbol = precode.symbol(reader);
        let symbol = symbol.map_err(|NoCode| Stop::Error(error::BAD_PRECODE))?.ok_or(ends)?;
        let mut take = |n| reader.take(n).ok_or(ends);
        let (length, times) = match symbol {
            16 if n == 0 => return Err(Stop::Error(error::REPEAT_FIRST)),
            16 => (all[n - 1], 3 + take(2)? as usize),
            17 => (0, 3 + take(3)? as usize),
            18 => (0, 11 + take(7)? as usize),
            length => (length as u8, 1),
        };
        if n + times > wanted {
            return Err(Stop::Error(error::TOO_MANY_LENGTHS));
        }
        all[n..n + times].fill(length);
        n += times;
    }
    let mut state = State { is_last, litlen: [0; FIXED_LITLENS], distance: [0; FIXED_DISTANCES] };
    state.litlen[..litlens].copy_from_slice(&all[..litlens]);
    state.distance[..distances].copy_from_slice(&all[litlens..wanted]);
    let is_code = Code::new(&state.litlen).is_some() && state.litlen[END_OF_BLOCK] != 0;
    if !is_code {
        return Err(Stop::Error(error::BAD_LITERAL_LENGTHS));
    }
    if Code::new(&state.distance).is_none() {
        return Err(Stop::Error(error::BAD_DISTANCE_LENGTHS));
    }
    Ok(state)
}

/// Decodes the symbols of a block; whether it ended, or the input did.
fn symbols(
    reader: &mut Reader<'_>,
    state: &State,
    is_checked: bool,
    out: &mut [u8],
    written: &mut usize,
) -> Result<bool, Stop> {
    let no_end = Stop::Error(error::NO_END);
    let litlen = Code::new(&state.litlen).ok_or(Stop::Error(error::BAD_AECS))?;
    let distance = Code::new(&state.distance).ok_or(Stop::Error(error::BAD_AECS))?;
    loop {
        if reader.is_at_end() && !is_checked {
            return Ok(false);
        }
        let symbol = litlen.symbol(reader);
        let symbol = symbol.map_err(|NoCode| Stop::Error(error::BAD_LITERAL))?.ok_or(no_end)?;
        if symbol < END_OF_BLOCK {
            push(out, written, symbol as u8)?;
            continue;
        }
        if symbol == END_OF_BLOCK {
            return Ok(true);
        }
        let (least, extra) = length_class(symbol).ok_or(Stop::Error(error::BAD_LITERAL))?;
        let length = least + reader.take(extra).ok_or(no_end)? as usize;
        let symbol = distance.symbol(reader);
        let symbol =
            symbol.map_err(|NoCode| Stop::Error(error::BAD_DISTANCE_CODE))?.ok_or(no_end)?;
        let (least, extra) = distance_class(symbol).ok_or(Stop::Error(error::BAD_DISTANCE_CODE))?;
        let distance = least + reader.take(extra).ok_or(no_end)? as usize;
        if distance > WINDOW {
            return Err(Stop::Error(error::BAD_DISTANCE));
        }
        if distance > *written {
            return Err(Stop::Error(error::BEFORE_START));
        }
        for _ in 0..length {
            let byte = out[*written - distance];
            push(out, written, byte)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_codec::deflate::{Deflate, GENERAL, Inflate, Level};
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const KERNEL: u16 =
        decompress::ENABLE | decompress::FLUSH | decompress::STOP | decompress::CHECK;

    fn plainly(stream: &[u8], room: usize) -> Result<(usize, Vec<u8>), Stop> {
        let mut out = vec![0; room];
        let decoded = inflate(&mut Reader::new(stream, 0), None, KERNEL, &mut out)?;
        out.truncate(decoded.written);
        Ok((decoded.taken, out))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn it_agrees_with_the_codec_on_streams_good_and_bad(
            runs in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 1..30), 1usize..60), 1..30),
            level in prop_oneof![Just(Level::L1), Just(Level::L6)],
            is_dynamic in any::<bool>(),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut unit: Vec<u8> = runs.into_iter().flat_map(|(v, n)| v.repeat(n)).collect();
            unit.truncate(WINDOW);
            let mut stream = vec![0; unit.len() * 2 + 100];
            let mut deflate = Deflate::new();
            let size = if is_dynamic {
                deflate.dynamic(level, &unit, &mut stream)
            } else {
                deflate.fixed(level, &unit, &mut stream)
            };
            stream.truncate(size.expect("room enough"));
            if damage.is_empty() {
                prop_assert_eq!(plainly(&stream, unit.len()), Ok((stream.len(), unit.clone())));
            }
            for (at, value) in damage {
                let at = at.index(stream.len());
                stream[at] = value;
            }
            // In room for no more than a window no distance is refused by one alone.
            let mut out = vec![0; unit.len()];
            let codec = Inflate::new().inflate(&stream, &mut out);
            match (plainly(&stream, unit.len()), codec) {
                (Ok((taken, bytes)), Ok(inflated)) => {
                    prop_assert_eq!((taken, bytes.len()), (inflated.consumed, inflated.written));
                    prop_assert!(bytes == out[..inflated.written]);
                }
                (Err(_), Err(_)) => {}
                // A damaged block may no longer be the last: the model stops behind it all the same.
                (Ok(_), Err(_)) if stream[0] & 1 == 0 => {}
                (plain, codec) => prop_assert!(false, "{plain:?}, {codec:?}"),
            }
        }
    }

    #[test]
    fn it_stops_and_goes_on_where_it_is_told_to() {
        let mut header = [0; 300];
        let bits = GENERAL[0].header(&mut header).expect("room enough");
        let unused = bits.next_multiple_of(8) - bits;
        let flags = decompress::ENABLE | decompress::SUPPRESS;
        let mut reader = Reader::new(&header[..bits.div_ceil(8)], unused);
        let decoded = inflate(&mut reader, None, flags, &mut []).expect("a header");
        let state = decoded.state.expect("the block begun");
        assert_eq!((decoded.written, state.is_last), (0, true));
        assert_eq!(state.litlen[..LITLENS], GENERAL[0].litlen);
        assert_eq!(state.distance[..DISTANCES], GENERAL[0].distance);
        // Without its last bit it is none.
        let mut reader = Reader::new(&header[..bits.div_ceil(8)], unused + 1);
        let cut = inflate(&mut reader, None, flags, &mut []);
        assert_eq!(cut, Err(Stop::Error(error::HEADER_ENDS)));

        // Two stored blocks, each with an end: all, or the first alone.
        let stream = [0, 1, 0, 0xfe, 0xff, 7, 1, 1, 0, 0xfe, 0xff, 8];
        let mut out = [0; 4];
        let mut run = |flags| {
            inflate(&mut Reader::new(&stream, 0), None, flags, &mut out)
                .map(|d| (d.written, d.taken))
        };
        assert_eq!(run(decompress::ENABLE), Ok((2, 12)));
        assert_eq!(run(KERNEL), Ok((1, 6)));
        assert_eq!(run(KERNEL | decompress::LAST_BLOCK), Ok((2, 12)));
    }
}
