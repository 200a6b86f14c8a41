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
use super::sprint::{sprint, sprint_two};
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

/// Entries of [`Decoder`] for literals, the end of the block, and lengths:
///
/// ```text
///   31      24 23    16 15   13  12   11   10   9  8 7               0
///   literal 2  literal  0        0    0    0    1, 2 codeword(s)
///   length - 3 literal  extra    0    0  MATCH  0, 1 codeword(s) + extra bits
///   0          0        0        0   END   0    0    codeword
/// ```
/// and for distances:
///
/// ```text
///   31               16 15   12       10             7               0
///   base                extra       MATCH            codeword + extra bits
/// ```
///
/// The low byte is what to consume. An entry of a prepared table can stand for two literals, or
/// for a literal and the match behind it. 0 stands for a codeword too long for the table.
pub const COUNT: u32 = 3 << 8;
pub const COUNT_SHIFT: u32 = 8;
pub const MATCH: u32 = 1 << 10;
const END: u32 = 1 << 11;
const INVALID: u32 = 1 << 12;
/// Where the number of extra bits of a length stands.
const LENGTH_EXTRA: u32 = 13;
/// Where the number of extra bits of a distance stands.
const DISTANCE_EXTRA: u32 = 12;

fn litlen_meaning(symbol: usize) -> u32 {
    match symbol {
        0..END_OF_BLOCK => (symbol as u32) << 16 | 1 << COUNT_SHIFT,
        END_OF_BLOCK => END,
        _ => LENGTH_CLASSES.get(symbol - FIRST_LENGTH).map_or(INVALID, |class| {
            let extra = u32::from(class.extra);
            u32::from(class.base - 3) << 24 | extra << LENGTH_EXTRA | MATCH | extra
        }),
    }
}

fn distance_meaning(symbol: usize) -> u32 {
    DISTANCE_CLASSES.get(symbol).map_or(INVALID, |class| {
        let extra = u32::from(class.extra);
        u32::from(class.base) << 16 | extra << DISTANCE_EXTRA | MATCH | extra
    })
}

/// The length that an entry and the bits at its front stand for.
#[inline(always)]
pub fn length(entry: u32, bits: u64) -> usize {
    let extra = entry >> LENGTH_EXTRA & 7;
    3 + (entry >> 24) as usize + above(entry, extra, bits)
}

/// The distance that an entry and the bits at its front stand for.
#[inline(always)]
pub fn distance(entry: u32, bits: u64) -> usize {
    let extra = entry >> DISTANCE_EXTRA & 15;
    (entry >> 16) as usize + above(entry, extra, bits)
}

/// The extra bits, the last ones of what is consumed.
#[inline(always)]
fn above(entry: u32, extra: u32, bits: u64) -> usize {
    let codeword = (entry & 0xff) - extra;
    (bits >> (codeword & 63) & ((1 << extra) - 1)) as usize
}

/// Entries of the table in which distances are looked up.
pub const DISTANCE_LOOK_UP: usize = 512;

/// The tables of a block, `L` entries for literals and lengths.
pub struct Tables<const L: usize> {
    pub litlen: Decoder<L>,
    pub distance: Decoder<DISTANCE_LOOK_UP>,
}

impl<const L: usize> Tables<L> {
    pub const fn new() -> Self {
        Self { litlen: Decoder::new(), distance: Decoder::new() }
    }

    pub fn build(&mut self, litlen: &[u8], distance: &[u8]) -> Result<(), BadCode> {
        self.litlen.build(litlen, litlen_meaning, Incomplete::AcceptOneOrNone)?;
        self.distance.build(distance, distance_meaning, Incomplete::AcceptOneOrNone)
    }

    /// Lets an entry stand for a literal and what follows it, a literal or a match, where both
    /// codewords fit: worth it for tables that decode much.
    pub fn pair(&mut self) {
        self.litlen.pair(|first, second, bits| {
            if first & (COUNT | MATCH) != 1 << COUNT_SHIFT {
                return None;
            }
            let both = (first & 0xff) + (second & 0xff);
            if second & MATCH != 0 {
                let extra = second >> LENGTH_EXTRA & 7;
                let fits = both - extra <= bits;
                fits.then_some((first & 0x00ff_0300) | (second & 0xff00_fc00) | both)
            } else {
                let fits = second & COUNT != 0 && both <= bits;
                let literals = (first & 0x00ff_0000) | (second & 0x00ff_0000) << 8;
                fits.then_some(literals | 2 << COUNT_SHIFT | both)
            }
        });
    }
}

fn long(found: Option<(usize, u32)>, meaning: fn(usize) -> u32) -> u32 {
    found.map_or(INVALID, |(symbol, length)| meaning(symbol) + length)
}

/// A decoder of deflate and the memory it needs, about 21 KiB.
pub struct Inflate {
    tables: Tables<1024>,
    /// For blocks that may be long.
    large: Tables<2048>,
    precode: Decoder<128>,
    /// Whether `tables` are those of a fixed block.
    fixed: bool,
}

/// Bytes of output from which on a block is worth tables that take longer to make.
const LONG: usize = 32 << 10;

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
        let (tables, large) = (Tables::new(), Tables::new());
        Self { tables, large, precode: Decoder::new(), fixed: false }
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
        let mut lengths = [0; LITLENS + DISTANCES];
        let litlens = self.header(reader, &mut lengths)?;
        let (litlen, distance) = lengths.split_at(litlens);
        if litlen[END_OF_BLOCK] == 0 {
            return Err(InflateError::Code);
        }
        let distance = &distance[..DISTANCES.min(distance.len())];
        if out.len() - at >= LONG {
            self.large.build(litlen, distance)?;
            self.large.pair();
            return body(reader, &self.large, out, at);
        }
        self.fixed = false;
        self.tables.build(litlen, distance)?;
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
            |symbol| (symbol as u32) << 16 | 1 << COUNT_SHIFT,
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
#[inline(always)]
pub fn body<const L: usize>(
    reader: &mut Reader<'_>,
    tables: &Tables<L>,
    out: &mut [u8],
    at: usize,
) -> Result<usize, InflateError> {
    let mut block = Block::new(*reader, tables, out, at);
    let result = block.run();
    *reader = block.reader;
    result.map(|()| block.at)
}

/// A block whose symbols are being decoded.
///
/// What decides the speed is the way from one entry to the next: shift the bits, look up. So all
/// else stands beside it: bits are loaded after a look-up and not before, as 56 always suffice for
/// the next one (a length takes 20, a distance 28, a look-up 12), and the next entry is looked up
/// before a match is copied.
pub struct Block<'i, 'a, const L: usize> {
    pub reader: Reader<'i>,
    pub tables: &'a Tables<L>,
    pub out: &'a mut [u8],
    /// Where the output goes on.
    pub at: usize,
    /// The next entry. It was looked up and not taken.
    pub entry: u32,
}

impl<'i, 'a, const L: usize> Block<'i, 'a, L> {
    /// The block at the front of `reader`, whose output begins at `at`.
    #[inline(always)]
    pub fn new(
        mut reader: Reader<'i>,
        tables: &'a Tables<L>,
        out: &'a mut [u8],
        at: usize,
    ) -> Self {
        const { assert!(L <= 1 << 12) };
        reader.refill();
        let entry = tables.litlen.look_up(reader.peek());
        Self { reader, tables, out, at, entry }
    }

    /// Bytes of the output that are still to come.
    pub fn room(&self) -> usize {
        self.out.len() - self.at
    }

    /// Decodes to the end of the block.
    #[inline(always)]
    pub fn run(&mut self) -> Result<(), InflateError> {
        while sprint(self) {
            if self.step()? {
                return Ok(());
            }
        }
        while !self.step()? {}
        Ok(())
    }

    /// Decodes the next entry and says whether the block ends with it.
    #[inline(always)]
    pub fn step(&mut self) -> Result<bool, InflateError> {
        let Self { reader, tables, out, at, entry } = self;
        if *entry & (COUNT | MATCH) == 0 {
            if *entry == 0 {
                *entry = long(tables.litlen.walk(reader.peek()), litlen_meaning);
            }
            if *entry & END != 0 {
                reader.consume(*entry & 0xff);
                return Ok(true);
            }
            if *entry & INVALID != 0 {
                return Err(InflateError::Symbol);
            }
        }
        *at = put(out, *at, *entry)?;
        if *entry & MATCH == 0 {
            reader.consume(*entry & 0xff);
            *entry = tables.litlen.look_up(reader.peek());
            reader.refill();
            return Ok(false);
        }
        let length = length(*entry, reader.peek());
        reader.consume(*entry & 0xff);
        *entry = tables.distance.look_up(reader.peek());
        reader.refill();
        if *entry & MATCH == 0 {
            if *entry == 0 {
                *entry = long(tables.distance.walk(reader.peek()), distance_meaning);
            }
            if *entry & MATCH == 0 {
                return Err(InflateError::Symbol);
            }
        }
        let distance = distance(*entry, reader.peek());
        reader.consume(*entry & 0xff);
        if distance > *at {
            return Err(InflateError::Distance);
        }
        *entry = tables.litlen.look_up(reader.peek());
        reader.refill();
        *at = copy_match(out, *at, length, distance).ok_or(InflateError::OutputFull)?;
        Ok(false)
    }
}

/// Decodes two blocks, together where that takes less time.
pub fn side_by_side<const L: usize>(
    a: &mut Block<'_, '_, L>,
    b: &mut Block<'_, '_, L>,
) -> (Result<(), InflateError>, Result<(), InflateError>) {
    loop {
        // At the end of either there are a few entries left; no more turns for those.
        if !sprint_two(a, b) {
            return (a.run(), b.run());
        }
        match a.step() {
            Ok(false) => {}
            ended => return (ended.map(drop), b.run()),
        }
        match b.step() {
            Ok(false) => {}
            ended => return (a.run(), ended.map(drop)),
        }
    }
}

/// Appends the literals of an entry, none to two, to the `at` bytes of `out`, and returns their end.
#[inline(always)]
fn put(out: &mut [u8], at: usize, entry: u32) -> Result<usize, InflateError> {
    let literals = ((entry >> 16) as u16).to_le_bytes();
    let count = ((entry & COUNT) >> COUNT_SHIFT) as usize;
    match out.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        // A byte that is no literal is written over later.
        Some(room) => *room = literals,
        None => {
            let room = out.get_mut(at..at + count).ok_or(InflateError::OutputFull)?;
            room.copy_from_slice(&literals[..count]);
        }
    }
    Ok(at + count)
}
