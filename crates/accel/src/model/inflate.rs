//! A decoder of deflate that keeps the device's rules: a window of 4 KiB, its error codes, where it may
//! stop, and a state that is written down and taken up again.
//!
//! A codeword is read bit by bit, as RFC 1951 says it ([`Code::walk`]); those of a block's symbols are
//! looked up first, by the bits that come next ([`Table`]), and walked where that does not tell: the
//! codeword is longer, there is none, or the input ends.

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
        lengths.iter().for_each(|length| code.count[usize::from(*length)] += 1);
        code.count[0] = 0;
        let mut next = [0; 16];
        (1..15).for_each(|length| next[length + 1] = next[length] + code.count[length]);
        for (symbol, length) in lengths.iter().enumerate().filter(|(_, length)| **length > 0) {
            let place = &mut next[usize::from(*length)];
            code.sorted[*place] = symbol as u16;
            *place += 1;
        }
        let n: usize = code.count.iter().sum();
        let used: usize = (1..16).map(|length| code.count[length] << (15 - length)).sum();
        (used == 1 << 15 || n <= 1 && used <= 1 << 14).then_some(code)
    }

    /// The next symbol: `Ok(None)` when the input ends before it does.
    fn walk(&self, reader: &mut Reader<'_>) -> Result<Option<usize>, NoCode> {
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NoCode;

/// Codewords longer than this are not looked up.
const LOOK_UP_BITS: usize = 10;

/// A code, and what the next bits of the input stand for.
struct Table {
    code: Code,
    /// The symbol, and the length of its codeword in the lowest four bits; 0 for those that are walked.
    entries: [u16; 1 << LOOK_UP_BITS],
}

impl Table {
    fn new(lengths: &[u8]) -> Option<Self> {
        let code = Code::new(lengths)?;
        let mut entries = [0; 1 << LOOK_UP_BITS];
        let (mut codeword, mut symbols) = (0u32, code.sorted.iter());
        for length in 1..=LOOK_UP_BITS {
            for symbol in symbols.by_ref().take(code.count[length]) {
                // In the input the highest bit of a codeword comes first.
                let begin = (codeword.reverse_bits() >> (32 - length)) as usize;
                for entry in entries[begin..].iter_mut().step_by(1 << length) {
                    *entry = symbol << 4 | length as u16;
                }
                codeword += 1;
            }
            codeword <<= 1;
        }
        Some(Self { code, entries })
    }

    /// As [`Code::walk`].
    #[inline]
    fn symbol(&self, reader: &mut Reader<'_>) -> Result<Option<usize>, NoCode> {
        let entry = self.entries[reader.peek() as usize % self.entries.len()];
        let length = usize::from(entry & 15);
        if length == 0 || length > reader.left() {
            return self.code.walk(reader);
        }
        reader.skip(length);
        Ok(Some(usize::from(entry >> 4)))
    }
}

/// The tables of a block.
struct Tables {
    /// The code lengths that they are of.
    litlens: [u8; FIXED_LITLENS],
    distances: [u8; FIXED_DISTANCES],
    litlen: Table,
    distance: Table,
}

impl Tables {
    fn new(state: &State) -> Option<Self> {
        Some(Self {
            litlens: state.litlen,
            distances: state.distance,
            litlen: Table::new(&state.litlen)?,
            distance: Table::new(&state.distance)?,
        })
    }

    fn are_of(&self, state: &State) -> bool {
        (&self.litlens, &self.distances) == (&state.litlen, &state.distance)
    }
}

/// A decoder. It keeps the tables of the last block: most have the codes of the one before.
pub struct Inflate {
    tables: Tables,
}

impl Inflate {
    pub fn new() -> Self {
        Self { tables: Tables::new(&fixed(true)).expect("the fixed codes") }
    }

    /// Decodes from `reader` into `out`, from the middle of a block if there is a `state`, as far as
    /// `flags` say.
    pub fn inflate(
        &mut self,
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
                            let taken = reader.bytes_taken();
                            return Ok(Decoded { written, taken, state: None });
                        }
                        None => continue,
                    }
                }
            };
            if !self.tables.are_of(&block) {
                self.tables = Tables::new(&block).ok_or(Stop::Error(error::BAD_AECS))?;
            }
            let is_ended = symbols(reader, &self.tables, is_checked, out, &mut written)?;
            if !is_ended || ends(flags, block.is_last) {
                let state = (!is_ended).then_some(block);
                return Ok(Decoded { written, taken: reader.bytes_taken(), state });
            }
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
        let symbol = precode.walk(reader);
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
    tables: &Tables,
    is_checked: bool,
    out: &mut [u8],
    written: &mut usize,
) -> Result<bool, Stop> {
    let no_end = Stop::Error(error::NO_END);
    let Tables { litlen, distance, .. } = tables;
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
        repeat(out, written, length, distance)?;
    }
}

/// Appends `length` bytes that repeat the last `distance` ones, as many at a time as are there.
fn repeat(out: &mut [u8], written: &mut usize, length: usize, distance: usize) -> Result<(), Stop> {
    let from = *written - distance;
    let end = *written + length;
    if end > out.len() {
        return Err(Stop::Full);
    }
    while *written < end {
        let n = (*written - from).min(end - *written);
        out.copy_within(from..from + n, *written);
        *written += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_codec::deflate::{self, Deflate, GENERAL, Level};
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const KERNEL: u16 =
        decompress::ENABLE | decompress::FLUSH | decompress::STOP | decompress::CHECK;

    fn plainly(stream: &[u8], room: usize) -> Result<(usize, Vec<u8>), Stop> {
        let mut out = vec![0; room];
        let decoded =
            Inflate::new().inflate(&mut Reader::new(stream, 0), None, KERNEL, &mut out)?;
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
            let codec = deflate::Inflate::new().inflate(&stream, &mut out);
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

    proptest! {
        #[test]
        fn what_is_looked_up_is_what_is_walked(
            frequencies in proptest::collection::vec(0u32..300, 2..FIXED_LITLENS),
            input in proptest::collection::vec(any::<u8>(), 0..200),
            unused in 0usize..30,
        ) {
            let mut lengths = [0; FIXED_LITLENS];
            lengths[..frequencies.len()].copy_from_slice(&code_lengths(&frequencies));
            let table = Table::new(&lengths).expect("a code");
            let mut looked_up = Reader::new(&input, unused);
            let mut walked = looked_up;
            loop {
                let symbol = table.symbol(&mut looked_up);
                prop_assert_eq!(symbol, table.code.walk(&mut walked));
                prop_assert_eq!(looked_up.left(), walked.left());
                if !matches!(symbol, Ok(Some(_))) {
                    break;
                }
            }
        }

        #[test]
        fn a_match_repeats_byte_by_byte(
            begin in proptest::collection::vec(any::<u8>(), 1..40),
            distance in any::<prop::sample::Index>(),
            length in 3usize..259,
            room in 0usize..300,
        ) {
            let distance = 1 + distance.index(begin.len());
            let mut out = begin.clone();
            out.resize(begin.len() + room, 0);
            let mut written = begin.len();
            let repeated = repeat(&mut out, &mut written, length, distance);
            if length > room {
                prop_assert_eq!(repeated, Err(Stop::Full));
                return Ok(());
            }
            let mut plain = begin;
            (0..length).for_each(|_| plain.push(plain[plain.len() - distance]));
            prop_assert_eq!(written, plain.len());
            prop_assert!(out[..written] == plain);
        }
    }

    /// Lengths of a code for these frequencies: any code will do, this has long codewords for small ones.
    fn code_lengths(frequencies: &[u32]) -> Vec<u8> {
        let mut histogram = deflate::Histogram::new();
        histogram.litlen.iter_mut().zip(frequencies).for_each(|(to, from)| *to = *from);
        let lengths = histogram.lengths().litlen;
        lengths.into_iter().chain([0; 2]).take(frequencies.len()).collect()
    }

    #[test]
    fn codes_that_change_from_block_to_block_are_taken() {
        let unit = b"abcabcabcabc, and on it goes, abcabc".repeat(20);
        let mut inflate = Inflate::new();
        let mut deflate = Deflate::new();
        for is_dynamic in [true, false, true, true] {
            let mut stream = [0; 1000];
            let (level, out) = (Level::L1, &mut stream);
            let size = match is_dynamic {
                true => deflate.dynamic(level, &unit, out),
                false => deflate.fixed(level, &unit, out),
            };
            let size = size.expect("room enough");
            let mut bytes = vec![0; unit.len()];
            let mut reader = Reader::new(&stream[..size], 0);
            let decoded = inflate.inflate(&mut reader, None, KERNEL, &mut bytes).expect("a stream");
            assert_eq!((decoded.written, decoded.taken), (unit.len(), size));
            assert!(bytes == unit);
        }
    }

    #[test]
    fn it_stops_and_goes_on_where_it_is_told_to() {
        let mut header = [0; 300];
        let bits = GENERAL[0].header(&mut header).expect("room enough");
        let unused = bits.next_multiple_of(8) - bits;
        let flags = decompress::ENABLE | decompress::SUPPRESS;
        let mut reader = Reader::new(&header[..bits.div_ceil(8)], unused);
        let decoded = Inflate::new().inflate(&mut reader, None, flags, &mut []).expect("a header");
        let state = decoded.state.expect("the block begun");
        assert_eq!((decoded.written, state.is_last), (0, true));
        assert_eq!(state.litlen[..LITLENS], GENERAL[0].litlen);
        assert_eq!(state.distance[..DISTANCES], GENERAL[0].distance);
        // Without its last bit it is none.
        let mut reader = Reader::new(&header[..bits.div_ceil(8)], unused + 1);
        let cut = Inflate::new().inflate(&mut reader, None, flags, &mut []);
        assert_eq!(cut, Err(Stop::Error(error::HEADER_ENDS)));

        // Two stored blocks, each with an end: all, or the first alone.
        let stream = [0, 1, 0, 0xfe, 0xff, 7, 1, 1, 0, 0xfe, 0xff, 8];
        let mut out = [0; 4];
        let mut run = |flags| {
            Inflate::new()
                .inflate(&mut Reader::new(&stream, 0), None, flags, &mut out)
                .map(|d| (d.written, d.taken))
        };
        assert_eq!(run(decompress::ENABLE), Ok((2, 12)));
        assert_eq!(run(KERNEL), Ok((1, 6)));
        assert_eq!(run(KERNEL | decompress::LAST_BLOCK), Ok((2, 12)));
    }
}
