//! The decoder: any deflate stream, into a buffer that holds the whole output.
//!
//! The output buffer is also the window, so a match is a copy within it. Copies go 16 or 8 bytes
//! at a time and may write past the match, over bytes that are decoded later; near the end of the
//! buffer they go byte by byte. Input is loaded eight bytes at a time; behind its end come zeros,
//! and whether any was used is asked once for a block: the output bounds how long that can take.

use super::bits::Reader;
use super::copy::copy_match;
use super::encode::{LAST_DYNAMIC, Lengths};
use super::huffman::{BadCode, Decoder, Incomplete};
use super::symbols::{
    DISTANCE_CLASSES, DISTANCES, END_OF_BLOCK, FIRST_LENGTH, FIXED_DISTANCE, FIXED_LITLEN,
    LENGTH_CLASSES, LITLENS, PRECODE_ORDER,
};
use core::fmt;

/// Why a stream is no deflate, or none that gives this output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InflateError {
    /// The input ends before the stream does.
    InputEnds,
    /// The output would be longer than the buffer.
    OutputFull,
    /// A block of the type that does not exist.
    BlockType,
    /// A stored block whose length and its complement disagree.
    StoredLength,
    /// A header with more symbols than exist, a repeat of nothing, or a repeat past the end.
    Header,
    /// Code lengths that make no code.
    Code,
    /// Bits that are no codeword, or a symbol that does not exist.
    Symbol,
    /// A match from before the beginning.
    Distance,
    /// The stream ends and the output is not full (asked for by canned blocks).
    OutputShort,
    /// The stream ends and the input does not (asked for by canned blocks).
    InputLeft,
}

impl fmt::Display for InflateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InputEnds => "the input ends inside the stream",
            Self::OutputFull => "the output is longer than the room for it",
            Self::BlockType => "a block of type 3, which does not exist",
            Self::StoredLength => "a stored block whose length does not agree with its complement",
            Self::Header => "a block header that lists what cannot be",
            Self::Code => "code lengths that make no prefix code",
            Self::Symbol => "bits that stand for no symbol",
            Self::Distance => "a match that begins before the output",
            Self::OutputShort => "the stream ends before the output is full",
            Self::InputLeft => "the stream ends before the input does",
        })
    }
}

impl core::error::Error for InflateError {}

impl From<BadCode> for InflateError {
    fn from(_: BadCode) -> Self {
        Self::Code
    }
}

/// A stream decoded to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inflated {
    /// Bytes of input that the stream took, to the end of the byte with its last bit.
    pub consumed: usize,
    /// Bytes of output.
    pub written: usize,
}

/// Entries of [`Decoder`] for literals, the end of the block, lengths and distances:
///
/// ```text
///   31            16 15   12 11    8 7             0
///   base              MATCH  extra   codeword + extra bits
///   literal(s)      LITERAL  count   codeword(s)
///   0                   END  0       codeword
/// ```
/// The low byte is what to consume; a match's own codeword is that less the extra bits. An entry
/// of a prepared table can hold two literals. 0 stands for a codeword too long for the table.
pub const LITERAL: u32 = 1 << 12;
const MATCH: u32 = 1 << 13;
const END: u32 = 1 << 14;
const INVALID: u32 = 1 << 15;

fn class_meaning(class: Option<&super::symbols::Class>) -> u32 {
    match class {
        Some(c) => u32::from(c.base) << 16 | MATCH | u32::from(c.extra) << 8 | u32::from(c.extra),
        None => INVALID,
    }
}

fn litlen_meaning(symbol: usize) -> u32 {
    match symbol {
        0..END_OF_BLOCK => (symbol as u32) << 16 | LITERAL | 1 << 8,
        END_OF_BLOCK => END,
        _ => class_meaning(LENGTH_CLASSES.get(symbol - FIRST_LENGTH)),
    }
}

fn distance_meaning(symbol: usize) -> u32 {
    class_meaning(DISTANCE_CLASSES.get(symbol))
}

/// The value of an entry whose codeword is at the front of `bits`: base plus extra bits.
#[inline(always)]
fn value(entry: u32, bits: u64) -> usize {
    let extra = entry >> 8 & 15;
    let codeword = (entry & 0xff) - extra;
    (entry >> 16) as usize + (bits >> codeword & ((1 << extra) - 1)) as usize
}

/// The tables of a block, `L` entries for literals and lengths.
pub struct Tables<const L: usize> {
    litlen: Decoder<L>,
    distance: Decoder<256>,
}

impl<const L: usize> Tables<L> {
    pub const fn new() -> Self {
        Self { litlen: Decoder::new(), distance: Decoder::new() }
    }

    pub fn build(&mut self, litlen: &[u8], distance: &[u8]) -> Result<(), BadCode> {
        self.litlen.build(litlen, litlen_meaning, Incomplete::AcceptOneOrNone)?;
        self.distance.build(distance, distance_meaning, Incomplete::AcceptOneOrNone)
    }

    /// Lets an entry stand for two literals where both codewords fit: worth it for tables that
    /// decode many blocks.
    pub fn pair_literals(&mut self) {
        self.litlen.pair(|first, second| {
            let literals = first & second & LITERAL != 0;
            literals.then(|| {
                let consumed = (first & 0xff) + (second & 0xff);
                (first & 0xff_0000) | (second & 0xff_0000) << 8 | LITERAL | 2 << 8 | consumed
            })
        });
    }
}

fn long(found: Option<(usize, u32)>, meaning: fn(usize) -> u32) -> u32 {
    found.map_or(INVALID, |(symbol, length)| meaning(symbol) + length)
}

/// A decoder of deflate and the memory it needs, about 7 KiB.
pub struct Inflate {
    tables: Tables<1024>,
    precode: Decoder<128>,
    /// Whether `tables` are those of a fixed block.
    fixed: bool,
}

impl Default for Inflate {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Inflate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inflate").finish_non_exhaustive()
    }
}

impl Inflate {
    /// A decoder.
    #[must_use]
    pub const fn new() -> Self {
        Self { tables: Tables::new(), precode: Decoder::new(), fixed: false }
    }

    /// Decodes the raw deflate stream at the front of `input` into the front of `out`. What lies
    /// in `out` behind the bytes written, or after an error, is undefined.
    ///
    /// # Errors
    /// [`InflateError`] says what is wrong with the stream, or that `out` is too short for it.
    pub fn inflate(&mut self, input: &[u8], out: &mut [u8]) -> Result<Inflated, InflateError> {
        let mut reader = Reader::new(input);
        let mut written = 0;
        loop {
            let last = reader.take(1) == 1;
            written = match reader.take(2) {
                0 => stored(&mut reader, out, written),
                1 => self.fixed(&mut reader, out, written),
                2 => self.dynamic(&mut reader, out, written),
                _ => Err(InflateError::BlockType),
            }
            // Zeros made up behind the end may have led to any other error.
            .map_err(|error| if reader.overran() { InflateError::InputEnds } else { error })?;
            if reader.overran() {
                return Err(InflateError::InputEnds);
            }
            if last {
                return Ok(Inflated { consumed: reader.position(), written });
            }
        }
    }

    fn fixed(
        &mut self,
        reader: &mut Reader<'_>,
        out: &mut [u8],
        at: usize,
    ) -> Result<usize, InflateError> {
        if !self.fixed {
            self.tables.build(&FIXED_LITLEN, &FIXED_DISTANCE)?;
            self.fixed = true;
        }
        body(reader, &self.tables, out, at)
    }

    /// The code lengths told by the stream at the front of `input`, whose first block is a last
    /// and dynamic one.
    pub(super) fn dynamic_lengths(&mut self, input: &[u8]) -> Result<Lengths, InflateError> {
        let mut reader = Reader::new(input);
        if u64::from(reader.take(3)) != LAST_DYNAMIC {
            return Err(InflateError::BlockType);
        }
        let mut both = [0; LITLENS + DISTANCES];
        let litlens = self.header(&mut reader, &mut both)?;
        if reader.overran() {
            return Err(InflateError::InputEnds);
        }
        let (litlen, distance) = both.split_at(litlens);
        let mut lengths = Lengths { litlen: [0; LITLENS], distance: [0; DISTANCES] };
        lengths.litlen[..litlens].copy_from_slice(litlen);
        lengths.distance.copy_from_slice(&distance[..DISTANCES]);
        Ok(lengths)
    }

    fn dynamic(
        &mut self,
        reader: &mut Reader<'_>,
        out: &mut [u8],
        at: usize,
    ) -> Result<usize, InflateError> {
        self.fixed = false;
        let mut lengths = [0; LITLENS + DISTANCES];
        let litlens = self.header(reader, &mut lengths)?;
        let (litlen, distance) = lengths.split_at(litlens);
        if litlen[END_OF_BLOCK] == 0 {
            return Err(InflateError::Code);
        }
        self.tables.build(litlen, &distance[..DISTANCES.min(distance.len())])?;
        body(reader, &self.tables, out, at)
    }

    /// Reads the code lengths of a dynamic block: those of literals and lengths, as many as
    /// returned, then those of distances, then zeros.
    fn header(
        &mut self,
        reader: &mut Reader<'_>,
        lengths: &mut [u8; LITLENS + DISTANCES],
    ) -> Result<usize, InflateError> {
        let litlens = 257 + reader.take(5) as usize;
        let distances = 1 + reader.take(5) as usize;
        let listed = 4 + reader.take(4) as usize;
        if litlens > LITLENS || distances > DISTANCES {
            return Err(InflateError::Header);
        }
        let mut precode = [0; 19];
        for &symbol in &PRECODE_ORDER[..listed] {
            precode[usize::from(symbol)] = reader.take(3) as u8;
        }
        self.precode.build(
            &precode,
            |symbol| (symbol as u32) << 16 | LITERAL,
            Incomplete::Refuse,
        )?;

        let wanted = &mut lengths[..litlens + distances];
        let mut at = 0;
        while at < wanted.len() {
            reader.refill();
            let entry = self.precode.look_up(reader.peek());
            reader.consume(entry & 0xff);
            let symbol = (entry >> 16) as u8;
            let (length, times) = match symbol {
                0..16 => (symbol, 1),
                16 if at == 0 => return Err(InflateError::Header),
                16 => (wanted[at - 1], 3 + reader.take(2) as usize),
                17 => (0, 3 + reader.take(3) as usize),
                _ => (0, 11 + reader.take(7) as usize),
            };
            let end = at + times;
            wanted.get_mut(at..end).ok_or(InflateError::Header)?.fill(length);
            at = end;
        }
        Ok(litlens)
    }
}

fn stored(reader: &mut Reader<'_>, out: &mut [u8], at: usize) -> Result<usize, InflateError> {
    let rest = reader.align();
    let (header, rest) = rest.split_first_chunk::<4>().ok_or(InflateError::InputEnds)?;
    let length = u16::from_le_bytes([header[0], header[1]]);
    if length != !u16::from_le_bytes([header[2], header[3]]) {
        return Err(InflateError::StoredLength);
    }
    let bytes = rest.get(..length.into()).ok_or(InflateError::InputEnds)?;
    let end = at + bytes.len();
    out.get_mut(at..end).ok_or(InflateError::OutputFull)?.copy_from_slice(bytes);
    reader.skip(4 + bytes.len());
    Ok(end)
}

/// Decodes the symbols of one block into `out` from `at`, and returns where they end.
///
/// A refill gives 56 bits: three entries of literals (12 bits each at most) and then a length (15
/// and 5), or a distance (15 and 13). The next entry is looked up before a match is copied, so
/// that the copy does not wait for it nor it for the copy.
#[inline(always)]
pub fn body<const L: usize>(
    reader: &mut Reader<'_>,
    tables: &Tables<L>,
    out: &mut [u8],
    at: usize,
) -> Result<usize, InflateError> {
    // A copy of its own stays in registers.
    let mut local = *reader;
    let result = symbols(&mut local, tables, out, at);
    *reader = local;
    result
}

#[inline(always)]
fn symbols<const L: usize>(
    reader: &mut Reader<'_>,
    tables: &Tables<L>,
    out: &mut [u8],
    mut at: usize,
) -> Result<usize, InflateError> {
    const { assert!(L <= 1 << 12) };
    reader.refill();
    let mut entry = tables.litlen.look_up(reader.peek());
    loop {
        if entry & LITERAL != 0 {
            at = put(out, at, entry)?;
            reader.consume(entry & 0xff);
            entry = tables.litlen.look_up(reader.peek());
            if entry & LITERAL != 0 {
                at = put(out, at, entry)?;
                reader.consume(entry & 0xff);
                entry = tables.litlen.look_up(reader.peek());
                if entry & LITERAL != 0 {
                    at = put(out, at, entry)?;
                    reader.consume(entry & 0xff);
                    reader.refill();
                    entry = tables.litlen.look_up(reader.peek());
                    continue;
                }
            }
        }
        if entry & MATCH == 0 {
            if entry == 0 {
                entry = long(tables.litlen.walk(reader.peek()), litlen_meaning);
            }
            if entry & MATCH == 0 {
                reader.consume(entry & 0xff);
                if entry & LITERAL == 0 {
                    return if entry & END != 0 { Ok(at) } else { Err(InflateError::Symbol) };
                }
                at = put(out, at, entry)?;
                reader.refill();
                entry = tables.litlen.look_up(reader.peek());
                continue;
            }
        }
        let length = value(entry, reader.peek());
        reader.consume(entry & 0xff);
        reader.refill();
        entry = tables.distance.look_up(reader.peek());
        if entry & MATCH == 0 {
            if entry == 0 {
                entry = long(tables.distance.walk(reader.peek()), distance_meaning);
            }
            if entry & MATCH == 0 {
                return Err(InflateError::Symbol);
            }
        }
        let distance = value(entry, reader.peek());
        reader.consume(entry & 0xff);
        if distance > at {
            return Err(InflateError::Distance);
        }
        reader.refill();
        entry = tables.litlen.look_up(reader.peek());
        at = copy_match(out, at, length, distance).ok_or(InflateError::OutputFull)?;
    }
}

/// Appends the literals of an entry to the `at` bytes of `out`, and returns their end.
#[inline(always)]
fn put(out: &mut [u8], at: usize, entry: u32) -> Result<usize, InflateError> {
    let literals = ((entry >> 16) as u16).to_le_bytes();
    let count = (entry >> 8 & 15) as usize;
    match out.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        // The second byte may be none; then it is written over later.
        Some(room) => *room = literals,
        None => {
            let room = out.get_mut(at..at + count).ok_or(InflateError::OutputFull)?;
            room.copy_from_slice(&literals[..count]);
        }
    }
    Ok(at + count)
}
