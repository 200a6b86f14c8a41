//! The encoder: sequences to bits.
#![allow(unsafe_code)] // Calls of functions compiled for processors that have BMI2.

use super::bits::{Codeword, MAX_CODEWORD, Writer, with_extra};
use super::canned::{Table, TableSet};
use super::huffman;
use super::lanes::{self, Lanes, PAGE, Pages};
use super::matcher::{Level, Matcher, Sequence};
use super::probe::Short;
use super::symbols::{
    DISTANCE_CLASSES, DISTANCES, END_OF_BLOCK, FIRST_LENGTH, FIXED_DISTANCE, FIXED_LITLEN,
    LENGTH_CLASSES, LITLENS, MAX_DISTANCE, PRECODE_ORDER,
};
use crate::{DoesNotFit, Job, MAX_UNIT, cpu};
use core::fmt;

/// The longest codewords in blocks of ours: of literals and lengths, of distances, which have up to 13 extra
/// bits behind them. Deflate has longer ones, for symbols so rare that it gains nothing.
const OUR_MAX_BITS: [u32; 2] = [14, MAX_CODEWORD - 13];

/// Which symbol a match length has, less [`FIRST_LENGTH`]; by length less 3.
const CLASS_OF_LENGTH: [u8; 256] = {
    let mut classes = [0; 256];
    let mut class = 0;
    while class < 29 {
        let base = LENGTH_CLASSES[class].base as usize - 3;
        let mut i = base;
        while i < 256 && i < base + (1 << LENGTH_CLASSES[class].extra) {
            classes[i] = class as u8;
            i += 1;
        }
        class += 1;
    }
    classes
};

/// Which symbol a distance has, and the extra bits behind it with their number. Two symbols for each
/// power of two, told apart by the bit below the top, which are what is left above the extra bits;
/// without a branch, as short distances and long ones take turns.
#[inline(always)]
fn class_of_distance(distance: u16) -> (usize, u32, u32) {
    let above = u32::from(distance) - 1;
    let extra = (above | 2).ilog2() - 1;
    let class = 2 * extra + (above >> extra);
    (class as usize, above & ((1 << extra) - 1), extra)
}

/// The codewords of a block, ready to be written.
pub struct Codes {
    literal: [Codeword; 256],
    /// By match length less 3, extra bits and all.
    length: [Codeword; 256],
    /// Two more than there are, so that five bits need no check.
    distance: [Codeword; 32],
    end: Codeword,
}

impl Codes {
    pub fn new(litlen: &[u8], distance: &[u8]) -> Self {
        let mut codes = Self { literal: [0; 256], length: [0; 256], distance: [0; 32], end: 0 };
        codes.set(litlen, distance);
        codes
    }

    /// Makes these the codes with the lengths given.
    fn set(&mut self, litlen: &[u8], distance: &[u8]) {
        let mut words = [0; 288];
        huffman::codewords(litlen, &mut words);
        self.literal.copy_from_slice(&words[..256]);
        self.end = words[END_OF_BLOCK];
        for (class, word) in LENGTH_CLASSES.iter().zip(&words[FIRST_LENGTH..]) {
            // The class of the longest match comes last and takes its place from the one before.
            let base = usize::from(class.base) - 3;
            let end = (base + (1 << class.extra)).min(256);
            for (extra, out) in self.length[base..end].iter_mut().enumerate() {
                *out = with_extra(*word, extra as u32, class.extra.into());
            }
        }
        self.distance = [0; 32];
        huffman::codewords(distance, &mut self.distance);
    }

    /// Writes the symbols of a unit and the end of the block, and finishes the stream.
    ///
    /// Codewords are gathered first and written together. How many literals precede a match
    /// cannot be predicted, so a branch on it costs more than the detour: literals are put down in
    /// groups, and what was too much of a group is overwritten by what comes next.
    #[inline(always)]
    fn write(
        &self,
        mut writer: Writer<'_>,
        gathered: &mut Codewords,
        unit: &[u8],
        sequences: &[Sequence],
    ) -> Result<usize, DoesNotFit> {
        let (mut end, mut count) = (0, 0);
        for sequence in sequences {
            let literals = usize::from(sequence.at) - end;
            count = self.literals(&mut writer, gathered, count, &unit[end..], literals)?;
            end = sequence.end();
            let (class, above, extra) = class_of_distance(sequence.distance);
            let room = gathered[count..].first_chunk_mut::<OF_MATCH>().expect("room");
            *room = [
                self.length[usize::from((sequence.length - 3) as u8)],
                with_extra(self.distance[class % 32], above, extra),
            ];
            count += OF_MATCH;
        }
        let rest = &unit[end..];
        count = self.literals(&mut writer, gathered, count, rest, rest.len())?;
        gathered[count] = self.end;
        writer.put_all(&gathered[..count + 1])?;
        writer.finish()
    }

    /// Gathers the first `n` bytes of `bytes` as literals behind the `count` codewords that there are, and
    /// returns how many there are then: there is room left for a match.
    #[inline(always)]
    fn literals(
        &self,
        writer: &mut Writer<'_>,
        gathered: &mut Codewords,
        mut count: usize,
        mut bytes: &[u8],
        mut n: usize,
    ) -> Result<usize, DoesNotFit> {
        loop {
            if count > CODEWORDS - GROUP - OF_MATCH {
                writer.put_all(&gathered[..count])?;
                count = 0;
            }
            let room = gathered[count..].first_chunk_mut::<GROUP>().expect("room");
            match bytes.first_chunk::<GROUP>() {
                Some(group) => *room = group.map(|byte| self.literal[usize::from(byte)]),
                None => self.literals_at_end(room, bytes),
            }
            if n <= GROUP {
                return Ok(count + n);
            }
            count += GROUP;
            bytes = &bytes[GROUP..];
            n -= GROUP;
        }
    }

    /// A group of which some bytes are missing.
    #[cold]
    #[inline(never)]
    fn literals_at_end(&self, room: &mut [Codeword; GROUP], bytes: &[u8]) {
        for (room, &byte) in room.iter_mut().zip(bytes) {
            *room = self.literal[usize::from(byte)];
        }
    }
}

/// Codewords that are gathered before they are written.
const CODEWORDS: usize = 1024;
/// The most that are added at once: literals, and what a match has.
const GROUP: usize = 4;
const OF_MATCH: usize = 2;

/// Codewords of a unit on their way to the stream.
type Codewords = [Codeword; CODEWORDS];

/// Guesses which of up to eight codes suits a unit best, from some of its symbols.
///
/// What a symbol costs in each code lies side by side in a word, so the cost in all codes is one addition a
/// symbol. What is looked at lies all over the unit, and of a match with all literals
/// before it: the first of a run are not like the others.
pub struct Chooser {
    /// No cost from 256 on, where no literals are.
    literal: [Costs; 512],
    /// By match length less 3.
    length: [Costs; 256],
    distance: [Costs; DISTANCES],
}

/// Costs in bits in each of [`Chooser::CODES`] codes, a byte for each: those of a few symbols.
type Costs = u64;

impl Chooser {
    /// The most codes to choose from.
    const CODES: usize = 8;
    /// One in so many sequences is looked at; in more of them if that would be fewer than the least, in fewer
    /// if more than the most.
    const ONE_IN: usize = 12;
    const LEAST: usize = 16;
    const MOST: usize = 200;
    /// Groups of literals looked at of a run.
    const GROUPS: usize = 4;
    /// Sequences of a unit in which what is behind the last counts, too.
    const FEW: usize = 16;
    /// Literals looked at there.
    const LITERALS: usize = 450;

    pub fn new(codes: &[&Lengths]) -> Self {
        assert!(!codes.is_empty() && codes.len() <= Self::CODES, "{} codes", codes.len());
        let side_by_side = |cost: &dyn Fn(&Lengths) -> u8| {
            // Places without a code: the last code stands in for them and never wins.
            let code = |i: usize| codes.get(i).unwrap_or(&codes[codes.len() - 1]);
            Costs::from_le_bytes(core::array::from_fn(|i| cost(code(i))))
        };
        let mut chooser = Self { literal: [0; 512], length: [0; 256], distance: [0; DISTANCES] };
        for (i, costs) in chooser.literal[..256].iter_mut().enumerate() {
            *costs = side_by_side(&|code| code.litlen[i]);
        }
        for (costs, class) in chooser.length.iter_mut().zip(CLASS_OF_LENGTH) {
            *costs = side_by_side(&|code| code.litlen[FIRST_LENGTH + usize::from(class)]);
        }
        for (i, costs) in chooser.distance.iter_mut().enumerate() {
            *costs = side_by_side(&|code| code.distance[i]);
        }
        chooser
    }

    /// The place of the code that makes what is looked at of `unit` shortest.
    #[inline(always)]
    pub fn choose(&self, unit: &[u8], sequences: &[Sequence]) -> usize {
        const {
            // That many, and a part of the step that divides them.
            let most = Self::MOST + Self::MOST / Self::ONE_IN;
            assert!(most * (Self::GROUPS * GROUP + 2) * 15 <= u16::MAX as usize);
            assert!(
                (Self::FEW * (Self::GROUPS * GROUP + 2) + Self::LITERALS) * 15 <= u16::MAX as usize
            );
        }
        // Of the codes with even numbers, and of those with odd ones, 16 bits for each.
        let (mut even, mut odd) = (0, 0);
        let mut add = |costs: Costs| {
            even += costs & EVEN;
            odd += costs >> 8 & EVEN;
        };
        let n = sequences.len();
        let step = (n / Self::LEAST).clamp(1, Self::ONE_IN).max(n / Self::MOST);
        let mut i = 0;
        while let Some(sequence) = sequences.get(i) {
            let end = if i == 0 { 0 } else { sequences[i - 1].end() };
            let mut literals = (usize::from(sequence.at) - end).min(Self::GROUPS * GROUP);
            let mut rest = &unit[end..];
            loop {
                let [a, b, c, d] = group_of(rest, literals).map(|literal| self.literal[literal]);
                add(a + b + c + d);
                if literals <= GROUP {
                    break;
                }
                rest = &rest[GROUP..];
                literals -= GROUP;
            }
            let distance = self.distance[class_of_distance(sequence.distance).0];
            add(self.length[usize::from(sequence.length) - 3] + distance);
            i += step;
        }
        if sequences.len() < Self::FEW {
            let rest = &unit[sequences.last().map_or(0, |last| last.end())..];
            for &literal in &rest[..rest.len().min(Self::LITERALS)] {
                add(self.literal[usize::from(literal)]);
            }
        }
        let cost = |i: &usize| [even, odd][i % 2] >> (i / 2 * 16) & 0xffff;
        (0..Self::CODES).min_by_key(cost).expect("a code")
    }
}

/// Every second byte of a word.
const EVEN: u64 = 0x00ff_00ff_00ff_00ff;

/// What makes no literal of the places of a group behind the first `n`.
const NONE_BEHIND: [u64; GROUP + 1] =
    [0x0100_0100_0100_0100, 0x0100_0100_0100_0000, 0x0100_0100_0000_0000, 0x0100_0000_0000_0000, 0];

/// Hands the first `n` bytes of `bytes` to `take` in groups of four.
#[inline(always)]
fn in_groups(mut bytes: &[u8], mut n: usize, mut take: impl FnMut([usize; GROUP])) {
    loop {
        take(group_of(bytes, n));
        if n <= GROUP {
            return;
        }
        bytes = &bytes[GROUP..];
        n -= GROUP;
    }
}

/// The first `n` bytes of `bytes`, four at most. How many there are between two matches cannot be predicted,
/// so a branch on it costs more than a few places that hold none: those have a number from 256 on.
#[inline(always)]
fn group_of(bytes: &[u8], n: usize) -> [usize; GROUP] {
    let group = match bytes.first_chunk::<GROUP>() {
        Some(group) => u32::from_le_bytes(*group),
        None => group_at_end(bytes),
    };
    let group = u64::from(group);
    let group = (group | group << 16) & 0x0000_ffff_0000_ffff;
    let group = (group | group << 8) & 0x00ff_00ff_00ff_00ff;
    let group = group | NONE_BEHIND[n.min(GROUP)];
    [0, 16, 32, 48].map(|shift| ((group >> shift) & 511) as usize)
}

/// A group of which some bytes are missing.
#[cold]
#[inline(never)]
fn group_at_end(bytes: &[u8]) -> u32 {
    let mut group = [0; GROUP];
    group[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(group)
}

/// Code lengths of both alphabets; 0 for a symbol without a codeword.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lengths {
    /// Literals, end of block, lengths.
    pub litlen: [u8; LITLENS],
    /// Distances.
    pub distance: [u8; DISTANCES],
}

/// How often each symbol occurs.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Literals, end of block, lengths.
    pub litlen: [u32; LITLENS],
    /// Distances.
    pub distance: [u32; DISTANCES],
}

impl Histogram {
    /// Nothing counted yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { litlen: [0; LITLENS], distance: [0; DISTANCES] }
    }

    /// Adds the symbols of a unit that was cut into these sequences ([`Deflate::sequences`]).
    ///
    /// # Panics
    /// When they are no sequences of that unit.
    #[inline(always)]
    pub fn add(&mut self, unit: &[u8], sequences: &[Sequence]) {
        // What is no literal comes behind those.
        let mut counted = [0; 512];
        let mut count = |bytes, n| {
            in_groups(bytes, n, |group| {
                group.into_iter().for_each(|literal| counted[literal] += 1);
            });
        };
        let mut end = 0;
        for sequence in sequences {
            count(&unit[end..], usize::from(sequence.at) - end);
            end = sequence.end();
            let class = CLASS_OF_LENGTH[usize::from(sequence.length) - 3];
            self.litlen[FIRST_LENGTH + usize::from(class)] += 1;
            self.distance[class_of_distance(sequence.distance).0] += 1;
        }
        count(&unit[end..], unit.len() - end);
        self.litlen.iter_mut().zip(&counted[..256]).for_each(|(sum, n)| *sum += n);
        self.litlen[END_OF_BLOCK] += 1;
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Self) {
        let pairs = self.litlen.iter_mut().zip(&other.litlen);
        pairs.chain(self.distance.iter_mut().zip(&other.distance)).for_each(|(a, b)| *a += b);
    }

    /// The lengths of the best codes for these symbols, no codeword longer than 14 bits, or 13 of distances.
    #[must_use]
    pub fn lengths(&self) -> Lengths {
        let [litlen, distance] = OUR_MAX_BITS;
        self.lengths_within(litlen, distance)
    }

    /// As [`Histogram::lengths`], no codeword longer than so many bits: of literals and lengths, of
    /// distances.
    #[must_use]
    pub fn lengths_within(&self, litlen: u32, distance: u32) -> Lengths {
        let mut lengths = Lengths { litlen: [0; LITLENS], distance: [0; DISTANCES] };
        huffman::lengths(&self.litlen, litlen as usize, &mut lengths.litlen);
        huffman::lengths(&self.distance, distance as usize, &mut lengths.distance);
        lengths
    }

    /// Bits of the symbols, extra bits left out, in the code with these lengths.
    #[must_use]
    #[inline(always)]
    pub fn cost(&self, lengths: &Lengths) -> u32 {
        let words = |frequencies: &[u32], lengths: &[u8]| -> u32 {
            frequencies.iter().zip(lengths).map(|(f, &n)| f * u32::from(n)).sum()
        };
        words(&self.litlen, &lengths.litlen) + words(&self.distance, &lengths.distance)
    }

    /// Extra bits behind the symbols, the same in any code.
    fn extra(&self) -> u32 {
        let lengths = self.litlen[FIRST_LENGTH..].iter().zip(&LENGTH_CLASSES);
        let distances = self.distance.iter().zip(&DISTANCE_CLASSES);
        lengths.chain(distances).map(|(f, c)| f * u32::from(c.extra)).sum()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Lengths {
    /// Those of a fixed block, as far as the symbols exist.
    pub const FIXED: Self = {
        let mut fixed = Self { litlen: [0; LITLENS], distance: [5; DISTANCES] };
        let mut i = 0;
        while i < LITLENS {
            fixed.litlen[i] = FIXED_LITLEN[i];
            i += 1;
        }
        fixed
    };

    /// Writes the beginning of a stream of one dynamic block with these lengths to the front of
    /// `out`, from the bit that says "last block" to the last code length, and returns its length
    /// in bits. A stream is these bits and then those of the symbols.
    ///
    /// # Errors
    /// [`DoesNotFit`] when `out` is too short; 300 bytes always suffice.
    pub fn header(&self, out: &mut [u8]) -> Result<usize, DoesNotFit> {
        let header = Header::new(self);
        let mut writer = Writer::new(out);
        writer.put_bits(LAST_DYNAMIC, 3);
        header.write(&mut writer)?;
        writer.finish()?;
        Ok(3 + header.cost() as usize)
    }
}

/// The header of a dynamic block: its code lengths, run-length coded and then Huffman coded.
pub struct Header {
    /// Symbols of the code-length alphabet; the extra bits of repeats above the lowest byte.
    items: [u16; LITLENS + DISTANCES + SHORT_RUN],
    count: usize,
    precode: [u8; 19],
    litlens: usize,
    distances: usize,
    /// Code lengths of the code-length alphabet that are listed.
    listed: usize,
}

/// Code lengths from which on a run of them is told by a repeat: of zeros one less.
const SHORT_RUN: usize = 4;

/// Extra bits behind a symbol of the code-length alphabet.
fn repeat_bits(symbol: u16) -> u32 {
    match symbol {
        16 => 2,
        17 => 3,
        18 => 7,
        _ => 0,
    }
}

impl Header {
    pub fn new(lengths: &Lengths) -> Self {
        let Lengths { litlen, distance } = lengths;
        let used = |lengths: &[u8]| lengths.iter().rposition(|&n| n != 0).map_or(0, |i| i + 1);
        let litlens = used(litlen).max(257);
        let distances = used(distance).max(1);
        let mut header = Self {
            items: [0; LITLENS + DISTANCES + SHORT_RUN],
            count: 0,
            precode: [0; 19],
            litlens,
            distances,
            listed: 0,
        };
        // Behind the last one what is no length.
        let mut lengths = [u8::MAX; LITLENS + DISTANCES + 1];
        lengths[..litlens].copy_from_slice(&litlen[..litlens]);
        lengths[litlens..][..distances].copy_from_slice(&distance[..distances]);
        let places = (1..).zip(lengths[..=litlens + distances].windows(2));
        let mut ends = [0u16; LITLENS + DISTANCES];
        let mut at = 0;
        for &end in huffman::kept(places.map(|(end, two)| (end, two[0] != two[1])), &mut ends) {
            let end = usize::from(end);
            header.push_run(lengths[at], end - at);
            at = end;
        }
        let mut frequencies = [0; 19];
        for item in &header.items[..header.count] {
            frequencies[usize::from(item & 0xff)] += 1;
        }
        huffman::lengths(&frequencies, 7, &mut header.precode);
        let last = PRECODE_ORDER.iter().rposition(|&s| header.precode[usize::from(s)] != 0);
        header.listed = last.map_or(4, |i| (i + 1).max(4));
        header
    }

    /// Appends `length`, `n` times.
    fn push_run(&mut self, length: u8, mut n: usize) {
        // Most runs are short, and of how many cannot be predicted: what is too much is written over.
        let short = &mut self.items[self.count..][..SHORT_RUN];
        short.fill(length.into());
        if n < SHORT_RUN && (length != 0 || n < 3) {
            self.count += n;
            return;
        }
        if length != 0 {
            // A repeat repeats what comes before it.
            self.count += 1;
            n -= 1;
        }
        while n >= 3 {
            let (symbol, least, most) = match length {
                0 if n >= 11 => (18, 11, 138),
                0 => (17, 3, 10),
                _ => (16, 3, 6),
            };
            let piece = n.min(most);
            self.push(symbol, piece - least);
            n -= piece;
        }
        for _ in 0..n {
            self.push(length.into(), 0);
        }
    }

    fn push(&mut self, symbol: u16, extra: usize) {
        self.items[self.count] = symbol | (extra as u16) << 8;
        self.count += 1;
    }

    /// Bits that [`Header::write`] writes.
    pub fn cost(&self) -> u32 {
        let items = self.items[..self.count].iter().map(|item| {
            let symbol = item & 0xff;
            u32::from(self.precode[usize::from(symbol)]) + repeat_bits(symbol)
        });
        5 + 5 + 4 + 3 * self.listed as u32 + items.sum::<u32>()
    }

    #[inline(always)]
    pub fn write(&self, writer: &mut Writer<'_>) -> Result<(), DoesNotFit> {
        writer.put_bits(self.litlens as u64 - 257, 5);
        writer.put_bits(self.distances as u64 - 1, 5);
        writer.put_bits(self.listed as u64 - 4, 4);
        for &symbol in &PRECODE_ORDER[..self.listed] {
            writer.flush()?;
            writer.put_bits(self.precode[usize::from(symbol)].into(), 3);
        }
        let mut words = [0; 19];
        huffman::codewords(&self.precode, &mut words);
        let mut items = [0; LITLENS + DISTANCES + SHORT_RUN];
        for (out, item) in items.iter_mut().zip(&self.items[..self.count]) {
            let symbol = item & 0xff;
            let word = words[usize::from(symbol)];
            *out = with_extra(word, u32::from(item >> 8), repeat_bits(symbol));
        }
        writer.put_all(&items[..self.count])
    }
}

/// An encoder of deflate and the memory it needs.
pub struct Deflate {
    matcher: Matcher,
    lanes: Lanes,
    blocks: Blocks,
}

impl Default for Deflate {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Deflate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deflate").finish_non_exhaustive()
    }
}

/// Bits of a block's first field: last block or not, and its type.
const LAST_FIXED: u64 = 0b011;
pub const LAST_DYNAMIC: u64 = 0b101;

impl Deflate {
    /// An encoder.
    #[must_use]
    pub fn new() -> Self {
        Self { matcher: Matcher::new(), lanes: Lanes::new(), blocks: Blocks::new() }
    }

    /// Compresses `unit` to a stream of one fixed block at the front of `out` and returns its
    /// length in bytes.
    ///
    /// # Errors
    /// [`DoesNotFit`] when `out` is too short.
    ///
    /// # Panics
    /// When the unit is longer than [`MAX_UNIT`].
    pub fn fixed(
        &mut self,
        level: Level,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        assert!(unit.len() <= MAX_UNIT, "a unit of {} bytes", unit.len());
        self.matcher.find(level, unit, MAX_DISTANCE, Short::Four);
        self.blocks.fixed(unit, self.matcher.found(), out)
    }

    /// Compresses `unit` to the body of a block whose header one of `tables` implies, at the front
    /// of `out`, and returns its length in bytes and the table: the one that suits the unit best.
    ///
    /// # Errors
    /// [`DoesNotFit`] when `out` is too short.
    ///
    /// # Panics
    /// When the unit is longer than [`MAX_UNIT`].
    pub fn canned<'t>(
        &mut self,
        level: Level,
        tables: &'t TableSet,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<(usize, &'t Table), DoesNotFit> {
        assert!(unit.len() <= MAX_UNIT, "a unit of {} bytes", unit.len());
        let ask = tables.ask();
        // A function for each, as two loops in one make both slower.
        match (cpu::has_avx2(), ask) {
            // SAFETY: the processor was asked and has what the function wants.
            (true, Short::Four) => unsafe { self.four_with_avx2(level, tables, unit, out) },
            // SAFETY: as above.
            (true, Short::Five) => unsafe { self.five_with_avx2(level, tables, unit, out) },
            (false, _) => self.canned_anywhere(level, ask, tables, unit, out),
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn four_with_avx2<'t>(
        &mut self,
        level: Level,
        tables: &'t TableSet,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<(usize, &'t Table), DoesNotFit> {
        self.canned_anywhere(level, Short::Four, tables, unit, out)
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn five_with_avx2<'t>(
        &mut self,
        level: Level,
        tables: &'t TableSet,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<(usize, &'t Table), DoesNotFit> {
        self.canned_anywhere(level, Short::Five, tables, unit, out)
    }

    #[inline(always)]
    fn canned_anywhere<'t>(
        &mut self,
        level: Level,
        ask: Short,
        tables: &'t TableSet,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<(usize, &'t Table), DoesNotFit> {
        self.matcher.find(level, unit, tables.window(), ask);
        self.blocks.canned(tables, unit, self.matcher.found(), out)
    }

    /// Compresses `unit` to a stream of one block with codes of its own at the front of `out` and
    /// returns its length in bytes. Where the fixed codes do better, the block is a fixed one.
    ///
    /// # Errors
    /// [`DoesNotFit`] when `out` is too short.
    ///
    /// # Panics
    /// When the unit is longer than [`MAX_UNIT`].
    pub fn dynamic(
        &mut self,
        level: Level,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        assert!(unit.len() <= MAX_UNIT, "a unit of {} bytes", unit.len());
        if cpu::has_avx2() {
            // SAFETY: the processor was asked and has what the function wants.
            unsafe { self.dynamic_with_avx2(level, unit, out) }
        } else {
            self.dynamic_anywhere(level, unit, out)
        }
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn dynamic_with_avx2(
        &mut self,
        level: Level,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        self.dynamic_anywhere(level, unit, out)
    }

    #[inline(always)]
    fn dynamic_anywhere(
        &mut self,
        level: Level,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        self.matcher.find(level, unit, MAX_DISTANCE, Short::Four);
        self.blocks.dynamic(unit, self.matcher.found(), out)
    }

    /// Whether units of so many bytes are better compressed many at once at this level, if tables were learnt.
    #[must_use]
    pub fn is_better_together(level: Level, unit_bytes: usize) -> bool {
        level == Level::L1 && unit_bytes == PAGE && lanes::can()
    }

    /// As [`TableSet::compress`] of each job's unit, for units for which [`Deflate::is_better_together`].
    ///
    /// # Panics
    /// When a unit is no such one.
    pub fn canned_together(&mut self, tables: &TableSet, jobs: &mut [Job<'_>]) {
        if tables.ask() == Short::Four {
            // General tables want the matches of 4 bytes, which lanes do not look for.
            for Job { unit, out, size } in jobs {
                *size = tables.compress(self, Level::L1, unit, out);
            }
            return;
        }
        assert!(tables.window() >= PAGE, "a window over a page");
        let Self { lanes, blocks, .. } = self;
        lanes.find(&mut Canned { tables, blocks, jobs });
    }

    /// Cuts `unit` into literals and matches no further back than `window` bytes, at most
    /// [`MAX_DISTANCE`]; the bytes behind the last sequence are literals.
    ///
    /// # Panics
    /// When the unit is longer than [`MAX_UNIT`].
    pub fn sequences(&mut self, level: Level, unit: &[u8], window: usize) -> &[Sequence] {
        assert!(unit.len() <= MAX_UNIT, "a unit of {} bytes", unit.len());
        self.matcher.find(level, unit, window.min(MAX_DISTANCE), Short::Four);
        self.matcher.found()
    }

    /// Adds the symbols that `unit` becomes at `level` to `histogram`, to train tables on.
    ///
    /// # Panics
    /// When the unit is longer than [`MAX_UNIT`].
    pub fn count(&mut self, level: Level, unit: &[u8], histogram: &mut Histogram) {
        self.count_asked(level, Short::Four, unit, histogram);
    }

    /// As [`Deflate::count`], with what the fast way asks for.
    pub(super) fn count_asked(
        &mut self,
        level: Level,
        ask: Short,
        unit: &[u8],
        histogram: &mut Histogram,
    ) {
        assert!(unit.len() <= MAX_UNIT, "a unit of {} bytes", unit.len());
        if ask == Short::Five && Self::is_better_together(level, unit.len()) {
            self.lanes.find(&mut Counted { unit, histogram });
            return;
        }
        self.matcher.find(level, unit, MAX_DISTANCE, ask);
        histogram.add(unit, self.matcher.found());
    }
}

/// What writes blocks of sequences, and its memory.
struct Blocks {
    histogram: Histogram,
    fixed: Codes,
    /// Those of the block being written.
    codes: Codes,
    /// Those on their way to the stream.
    gathered: Codewords,
}

impl Blocks {
    fn new() -> Self {
        Self {
            histogram: Histogram::new(),
            fixed: Codes::new(&FIXED_LITLEN, &FIXED_DISTANCE),
            codes: Codes::new(&FIXED_LITLEN, &FIXED_DISTANCE),
            gathered: [0; CODEWORDS],
        }
    }

    fn fixed(
        &mut self,
        unit: &[u8],
        sequences: &[Sequence],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        let mut writer = Writer::new(out);
        writer.put_bits(LAST_FIXED, 3);
        self.fixed.write(writer, &mut self.gathered, unit, sequences)
    }

    #[inline(always)]
    fn dynamic(
        &mut self,
        unit: &[u8],
        sequences: &[Sequence],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        self.histogram = Histogram::new();
        self.histogram.add(unit, sequences);
        let lengths = self.histogram.lengths();
        let header = Header::new(&lengths);
        let cost = header.cost() + self.histogram.cost(&lengths);
        if self.histogram.cost(&Lengths::FIXED) <= cost {
            return self.fixed(unit, sequences, out);
        }
        if (3 + cost + self.histogram.extra()).div_ceil(8) as usize > out.len() {
            return Err(DoesNotFit);
        }
        self.codes.set(&lengths.litlen, &lengths.distance);
        let mut writer = Writer::new(out);
        writer.put_bits(LAST_DYNAMIC, 3);
        header.write(&mut writer)?;
        self.codes.write(writer, &mut self.gathered, unit, sequences)
    }

    #[inline(always)]
    fn canned<'t>(
        &mut self,
        tables: &'t TableSet,
        unit: &[u8],
        sequences: &[Sequence],
        out: &mut [u8],
    ) -> Result<(usize, &'t Table), DoesNotFit> {
        let table = tables.choose(unit, sequences);
        let size = table.codes().write(Writer::new(out), &mut self.gathered, unit, sequences)?;
        Ok((size, table))
    }

    // A function of its own, which has all registers.
    #[inline(never)]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn canned_with_avx2(
        &mut self,
        tables: &TableSet,
        unit: &[u8],
        sequences: &[Sequence],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        let (id, body) = out.split_first_mut().ok_or(DoesNotFit)?;
        let (size, table) = self.canned(tables, unit, sequences, body)?;
        *id = table.id();
        Ok(1 + size)
    }
}

/// Pages that become canned bodies.
struct Canned<'b, 'j, 'a> {
    tables: &'b TableSet,
    blocks: &'b mut Blocks,
    jobs: &'j mut [Job<'a>],
}

impl Pages for Canned<'_, '_, '_> {
    fn count(&self) -> usize {
        self.jobs.len()
    }

    fn page(&self, i: usize) -> &[u8] {
        self.jobs[i].unit
    }

    fn found(&mut self, i: usize, page: &[u8], sequences: &[Sequence]) {
        let Job { out, size, .. } = &mut self.jobs[i];
        // SAFETY: a processor that has lanes has what the function wants.
        *size = unsafe { self.blocks.canned_with_avx2(self.tables, page, sequences, out) };
    }
}

/// A page whose symbols are counted.
struct Counted<'c> {
    unit: &'c [u8],
    histogram: &'c mut Histogram,
}

impl Pages for Counted<'_> {
    fn count(&self) -> usize {
        1
    }

    fn page(&self, _: usize) -> &[u8] {
        self.unit
    }

    fn found(&mut self, _: usize, page: &[u8], sequences: &[Sequence]) {
        self.histogram.add(page, sequences);
    }
}

#[cfg(test)]
mod tests {
    use super::super::general::GENERAL;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn in_groups_is_one_by_one(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            for n in 0..=bytes.len() {
                let mut taken = Vec::new();
                in_groups(&bytes, n, |group| taken.extend(group.into_iter().filter(|&i| i < 256)));
                prop_assert!(taken.iter().copied().eq(bytes[..n].iter().map(|&b| usize::from(b))));
            }
        }

        #[test]
        fn a_header_tells_its_lengths(runs in proptest::collection::vec((0u8..15, 1usize..150), 1..40)) {
            let mut runs = runs.into_iter().flat_map(|(length, n)| core::iter::repeat_n(length, n));
            let mut lengths = Lengths { litlen: [0; LITLENS], distance: [0; DISTANCES] };
            lengths.litlen.fill_with(|| runs.next().unwrap_or(0));
            lengths.distance.fill_with(|| runs.next().unwrap_or(0));
            let header = Header::new(&lengths);
            let mut told: Vec<u8> = Vec::new();
            for item in &header.items[..header.count] {
                let extra = usize::from(item >> 8);
                match item & 0xff {
                    16 => told.extend(core::iter::repeat_n(told[told.len() - 1], 3 + extra)),
                    17 => told.extend(core::iter::repeat_n(0, 3 + extra)),
                    18 => told.extend(core::iter::repeat_n(0, 11 + extra)),
                    length => told.push(length as u8),
                }
            }
            prop_assert_eq!(&told[..header.litlens], &lengths.litlen[..header.litlens]);
            prop_assert_eq!(&told[header.litlens..], &lengths.distance[..header.distances]);
        }
    }

    #[test]
    fn the_code_chosen_is_the_cheapest() {
        let chooser = Chooser::new(&GENERAL.iter().collect::<Vec<_>>());
        let mut chosen = [0; GENERAL.len()];
        for seed in 0..400u32 {
            // Alphabets of all sizes, a match now and then.
            let mask = (1 << (seed % 9)) - 1;
            let unit: Vec<u8> =
                (0..256u32).map(|i| ((i * i * (seed + 77)) >> 6 & mask) as u8).collect();
            // No more literals than are looked at.
            let length = 3 + seed as u16 % 9;
            let sequences: [_; 16] = core::array::from_fn(|i| {
                let at = 4 + i as u16 * (4 + length);
                Sequence { at, length, distance: 20 }
            });
            if let Some(last) = sequences[..seed as usize % 17].last() {
                let sequences = &sequences[..seed as usize % 17];
                // What is behind is not always looked at: leave none.
                let end = last.end();
                let place = chooser.choose(&unit[..end], sequences);
                let mut histogram = Histogram::new();
                histogram.add(&unit[..end], sequences);
                histogram.litlen[END_OF_BLOCK] = 0;
                let best = GENERAL.iter().map(|code| histogram.cost(code)).min();
                assert_eq!(Some(histogram.cost(&GENERAL[place])), best);
                chosen[place] += 1;
            }
        }
        assert!(chosen.iter().filter(|&&n| n > 0).count() > 1, "always the same: {chosen:?}");
    }
}
