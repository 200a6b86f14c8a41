//! Canned deflate: a block whose header both sides know.
//!
//! ```text
//!   dynamic stream:   1 10 │ header: code lengths │ codes ... end of block │ 000
//!   canned body:                                  │ codes ... end of block │ 000
//! ```
//!
//! A canned body is what is left of a stream of one dynamic block when its header is taken away
//! and the rest begins at a byte. What is taken away is the [`Table`]: put its header in front and
//! any inflate decodes the body. For a page the header is a twentieth of the stream and making its
//! tables a good part of the time; a table is prepared once.
//!
//! A table must have a codeword for everything that can occur, so that it takes any unit.

use super::bits::{MAX_CODEWORD, Reader};
use super::encode::{Chooser, Codes, Deflate, Histogram, Lengths};
use super::huffman;
use super::inflate::{Block, DISTANCE_LOOK_UP, Inflate, InflateError, Tables, side_by_side};
use super::matcher::{Level, Sequence};
use super::probe::Short;
use super::symbols::{DISTANCE_CLASSES, DISTANCES, LITLENS, MAX_DISTANCE};
use crate::DoesNotFit;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Why lengths make no table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadTable {
    /// The window is none of 4 KiB, 8 KiB, 16 KiB, 32 KiB; the number of bytes asked for.
    Window(usize),
    /// The lengths make no complete prefix code.
    Code,
    /// This literal or length (its symbol in deflate) has no codeword.
    Symbol(usize),
    /// This class of distances (its symbol) has no codeword though the window reaches it, or has
    /// one though it does not.
    Distance(usize),
    /// This class of distances (its symbol) has a codeword of more than 26 bits with its extra bits.
    Long(usize),
    /// The header that should tell the lengths is none.
    Header(InflateError),
}

impl fmt::Display for BadTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Window(n) => {
                write!(f, "a window of {n} bytes; it is one of 4096, 8192, 16384, 32768")
            }
            Self::Code => f.write_str("the code lengths make no complete prefix code"),
            Self::Symbol(n) => write!(f, "literal or length {n} has no codeword; each needs one"),
            Self::Distance(n) => {
                write!(f, "distances of class {n} have a codeword and need none, or the reverse")
            }
            Self::Long(n) => {
                write!(f, "distances of class {n} take more than {MAX_CODEWORD} bits")
            }
            Self::Header(error) => write!(f, "the header is no dynamic block's: {error}"),
        }
    }
}

impl core::error::Error for BadTable {}

/// Entries of the table in which literals and lengths are looked up.
const LOOK_UP: usize = 4096;

/// The code of canned blocks, prepared for encoding and decoding. About 22 KiB.
pub struct Table {
    id: u8,
    window: usize,
    lengths: Lengths,
    codes: Codes,
    tables: Tables<LOOK_UP>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("id", &self.id)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// The table that `id` will stand for, for matches at most `window` bytes back.
    ///
    /// # Errors
    /// [`BadTable`] when the lengths are no code for everything that can occur in that window.
    #[inline(never)]
    pub fn new(id: u8, window: usize, lengths: &Lengths) -> Result<Self, BadTable> {
        if !matches!(window, 4096 | 8192 | 16384 | 32768) {
            return Err(BadTable::Window(window));
        }
        for code in [&lengths.litlen[..], &lengths.distance[..]] {
            // A length of 16 and more is as wrong as too many short ones.
            if code.iter().any(|&n| n > 15)
                || huffman::missing(&huffman::count_lengths(code)) != Ok(0)
            {
                return Err(BadTable::Code);
            }
        }
        if let Some(symbol) = lengths.litlen.iter().position(|&n| n == 0) {
            return Err(BadTable::Symbol(symbol));
        }
        for (i, (&n, class)) in lengths.distance.iter().zip(&DISTANCE_CLASSES).enumerate() {
            if (usize::from(class.base) <= window) != (n != 0) {
                return Err(BadTable::Distance(i));
            }
            if u32::from(n) + u32::from(class.extra) > MAX_CODEWORD {
                return Err(BadTable::Long(i));
            }
        }
        let mut tables = Tables::new();
        tables.build(&lengths.litlen, &lengths.distance).map_err(|_| BadTable::Code)?;
        tables.pair();
        let codes = Codes::new(&lengths.litlen, &lengths.distance);
        Ok(Self { id, window, lengths: *lengths, codes, tables })
    }

    /// The table whose lengths are told by `header`, the beginning of a stream of one dynamic
    /// block, as [`Table::header`] writes it.
    ///
    /// # Errors
    /// [`BadTable`] when it is no such header, or as [`Table::new`].
    pub fn from_header(id: u8, window: usize, header: &[u8]) -> Result<Self, BadTable> {
        let lengths = Inflate::new().dynamic_lengths(header).map_err(BadTable::Header)?;
        Self::new(id, window, &lengths)
    }

    /// What stands for this table.
    #[must_use]
    pub const fn id(&self) -> u8 {
        self.id
    }

    /// How far back matches reach, in bytes.
    #[must_use]
    pub const fn window(&self) -> usize {
        self.window
    }

    /// The code lengths.
    #[must_use]
    pub const fn lengths(&self) -> &Lengths {
        &self.lengths
    }

    pub(super) fn codes(&self) -> &Codes {
        &self.codes
    }

    /// Writes the implied header to the front of `out`, from the bit that says "last block" on,
    /// and returns its length in bits. A stream is these bits and then those of the body.
    ///
    /// # Errors
    /// [`DoesNotFit`] when `out` is too short; 300 bytes always suffice.
    pub fn header(&self, out: &mut [u8]) -> Result<usize, DoesNotFit> {
        self.lengths.header(out)
    }

    /// Decodes a canned body: the whole of `bytes` into the whole of `out`.
    ///
    /// # Errors
    /// [`InflateError`] when `bytes` is no body of this table that gives exactly `out.len()` bytes
    /// and ends where its input ends.
    pub fn decompress(&self, bytes: &[u8], out: &mut [u8]) -> Result<(), InflateError> {
        let mut block = self.block(bytes, out);
        let result = block.run();
        ended(&block, result)
    }

    /// Decodes two canned bodies, each of its table, in turns: on one thread that takes less time
    /// than one after the other.
    ///
    /// # Errors
    /// As [`Table::decompress`]; of the first body, if both are wrong.
    pub fn decompress_two(bodies: [(&Self, &[u8], &mut [u8]); 2]) -> Result<(), InflateError> {
        let [mut a, mut b] = bodies.map(|(table, bytes, out)| table.block(bytes, out));
        let results = side_by_side(&mut a, &mut b);
        ended(&a, results.0)?;
        ended(&b, results.1)
    }

    #[inline(always)]
    fn block<'a>(&'a self, bytes: &'a [u8], out: &'a mut [u8]) -> Block<'a, 'a, LOOK_UP> {
        Block::new(Reader::new(bytes), &self.tables, out, 0)
    }
}

/// What became of a block that should have been all of its input and its output.
#[inline(always)]
fn ended(
    block: &Block<'_, '_, LOOK_UP>,
    result: Result<(), InflateError>,
) -> Result<(), InflateError> {
    match result {
        _ if block.reader.overran() => Err(InflateError::InputEnds),
        Err(error) => Err(error),
        Ok(()) if block.room() != 0 => Err(InflateError::OutputShort),
        Ok(()) if !block.reader.ended() => Err(InflateError::InputLeft),
        Ok(()) => Ok(()),
    }
}

/// The id of the first general table.
pub const GENERAL_IDS: u8 = 0;
/// The id of the first table that was learnt.
pub const LEARNT_IDS: u8 = 16;

/// Tables to choose from for each unit: one to eight, with ids that follow each other and one
/// window.
pub struct TableSet {
    first: u8,
    /// Has room for [`TableSet::MAX`] from the start.
    tables: Vec<Table>,
    /// In memory of its own, as are the tables: helpers have small stacks, on which sets are made.
    chooser: Box<Chooser>,
    /// What the tables were trained on.
    ask: Short,
}

impl fmt::Debug for TableSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.tables).finish()
    }
}

impl TableSet {
    /// The most tables in a set.
    pub const MAX: usize = 8;

    /// Bytes that a set takes.
    pub const BYTES: usize =
        size_of::<Self>() + size_of::<Chooser>() + Self::MAX * size_of::<Table>();

    /// A set of tables with the ids `first` and on, for matches at most `window` bytes back.
    ///
    /// # Errors
    /// [`BadTable`] when one of them is none.
    ///
    /// # Panics
    /// When there are no tables, or more than [`TableSet::MAX`].
    pub fn new(first: u8, window: usize, lengths: &[Lengths]) -> Result<Self, BadTable> {
        let mut set = Self::with_room();
        set.set(first, window, Short::Four, lengths)?;
        Ok(set)
    }

    /// No tables, and room for all, which is untouched so far.
    #[inline(never)]
    pub(super) fn with_room() -> Self {
        Self {
            first: 0,
            tables: Vec::with_capacity(Self::MAX),
            chooser: Box::new(Chooser::new(&[&Lengths::FIXED])),
            ask: Short::Four,
        }
    }

    /// Makes it a set of other tables, as [`TableSet::new`], for units in which `ask` is asked. Allocates
    /// nothing. With an error there are no tables.
    #[inline(never)]
    pub(super) fn set(
        &mut self,
        first: u8,
        window: usize,
        ask: Short,
        lengths: &[Lengths],
    ) -> Result<(), BadTable> {
        assert!(!lengths.is_empty() && lengths.len() <= Self::MAX, "{} tables", lengths.len());
        (self.first, self.ask) = (first, ask);
        self.tables.clear();
        for (id, lengths) in (first..).zip(lengths) {
            match Table::new(id, window, lengths) {
                Ok(table) => self.tables.push(table),
                Err(error) => {
                    self.tables.clear();
                    return Err(error);
                }
            }
        }
        let mut codes = [&lengths[0]; Self::MAX];
        codes.iter_mut().zip(lengths).for_each(|(code, lengths)| *code = lengths);
        *self.chooser = Chooser::new(&codes[..lengths.len()]);
        Ok(())
    }

    /// Compresses `unit` to the id of a table and a canned body at the front of `out`, and returns
    /// their length in bytes.
    ///
    /// # Errors
    /// [`DoesNotFit`] when `out` is too short.
    ///
    /// # Panics
    /// When the unit is longer than [`MAX_UNIT`](crate::MAX_UNIT).
    pub fn compress(
        &self,
        deflate: &mut Deflate,
        level: Level,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        let (id, body) = out.split_first_mut().ok_or(DoesNotFit)?;
        let (size, table) = deflate.canned(level, self, unit, body)?;
        *id = table.id();
        Ok(1 + size)
    }

    /// The table with this id, if it is one of these.
    #[must_use]
    pub fn get(&self, id: u8) -> Option<&Table> {
        self.tables.get(usize::from(id.checked_sub(self.first)?))
    }

    /// The tables in order of id.
    #[must_use]
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    pub(super) fn ask(&self) -> Short {
        self.ask
    }

    pub(super) fn window(&self) -> usize {
        self.tables[0].window
    }

    /// The table that probably makes `unit`, which begins with `sequences`, shortest.
    #[inline(always)]
    pub(super) fn choose(&self, unit: &[u8], sequences: &[Sequence]) -> &Table {
        match &self.tables[..] {
            [table] => table,
            tables => &tables[self.chooser.choose(unit, sequences)],
        }
    }
}

/// The window of tables for units of at most `unit_bytes` bytes: no match reaches further back than the
/// unit, so no farther distance needs a codeword.
#[must_use]
pub fn window_of(unit_bytes: usize) -> usize {
    unit_bytes.next_power_of_two().clamp(4096, MAX_DISTANCE)
}

/// Counts the symbols of a unit as learnt tables will code them.
#[must_use]
pub fn count(deflate: &mut Deflate, level: Level, unit: &[u8]) -> Histogram {
    let mut histogram = Histogram::new();
    deflate.count_asked(level, Short::Five, unit, &mut histogram);
    histogram
}

/// At most `most` tables, of one window, that suit these samples of a program's units of `unit_bytes` bytes
/// at this level. Allocates and takes some times as long as compressing the samples.
///
/// # Panics
/// When `most` is 0, or a sample is longer than [`MAX_UNIT`](crate::MAX_UNIT).
#[must_use]
pub fn learn<'a>(
    level: Level,
    unit_bytes: usize,
    most: usize,
    samples: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<Lengths> {
    let mut deflate = Deflate::new();
    let counted = samples.into_iter().map(|sample| count(&mut deflate, level, sample));
    train(&counted.collect::<Vec<_>>(), most, window_of(unit_bytes))
}

/// Makes code lengths for at most `tables` tables out of what was counted in single units: units
/// that code alike share one. Every symbol that can occur in `window` has a codeword. Takes time
/// in proportion to units, tables and a few rounds; allocates; not for the hot path.
///
/// # Panics
/// When `tables` is 0.
#[must_use]
pub fn train(units: &[Histogram], tables: usize, window: usize) -> Vec<Lengths> {
    let mut trainer = Trainer::new(units.len(), tables, window);
    while !trainer.is_done() {
        trainer.round(units);
    }
    trainer.lengths
}

/// Training, round by round: begins with groups of units that lie apart in how dense their symbols are,
/// then gives each unit to the table that codes it shortest, and makes each table anew from its units.
pub(super) struct Trainer {
    tables: usize,
    window: usize,
    rounds: usize,
    order: Vec<u32>,
    /// The table of each unit.
    group: Vec<u32>,
    pub lengths: Vec<Lengths>,
    /// What the units of the last round take in bits, each in its table.
    pub cost: u64,
}

impl Trainer {
    const ROUNDS: usize = 12;

    /// For at most `units` units: nothing is allocated later.
    pub fn new(units: usize, tables: usize, window: usize) -> Self {
        assert!(tables > 0, "no tables are trained");
        Self {
            tables,
            window,
            rounds: 0,
            order: Vec::with_capacity(units),
            group: Vec::with_capacity(units),
            lengths: Vec::with_capacity(tables),
            cost: 0,
        }
    }

    /// Begins anew, with other units.
    pub fn begin(&mut self) {
        self.rounds = 0;
    }

    pub const fn is_done(&self) -> bool {
        self.rounds == Self::ROUNDS
    }

    /// One round over `units`, the same in each.
    pub fn round(&mut self, units: &[Histogram]) {
        let tables = self.tables.min(units.len().max(1));
        if self.rounds == 0 {
            self.order.clear();
            self.order.extend(0..units.len() as u32);
            let symbols = |unit: u32| units[unit as usize].litlen.iter().sum::<u32>();
            self.order.sort_unstable_by_key(|&unit| (symbols(unit), unit));
            self.group.clear();
            self.group.resize(units.len(), 0);
            for (place, &unit) in self.order.iter().enumerate() {
                self.group[unit as usize] = (place * tables / units.len()) as u32;
            }
        }
        self.lengths.clear();
        for table in 0..tables as u32 {
            let members = units.iter().zip(&self.group).filter(|(_, group)| **group == table);
            let total = total(members.map(|(unit, _)| unit), self.window);
            // No codeword is longer than what is looked up at once: it would be walked.
            self.lengths.push(total.lengths_within(LOOK_UP.ilog2(), DISTANCE_LOOK_UP.ilog2()));
        }
        self.cost = 0;
        for (unit, group) in units.iter().zip(&mut self.group) {
            let costs = (0..).zip(&self.lengths).map(|(table, l)| (unit.cost(l), table));
            let (cost, table) = costs.min().unwrap_or_default();
            self.cost += u64::from(cost);
            *group = table;
        }
        self.rounds += 1;
    }
}

/// The sum of histograms, scaled so that a symbol never seen still counts a little.
fn total<'a>(units: impl Iterator<Item = &'a Histogram>, window: usize) -> Histogram {
    let (mut litlen, mut distance) = ([0u64; LITLENS], [0u64; DISTANCES]);
    for unit in units {
        litlen.iter_mut().zip(&unit.litlen).for_each(|(sum, n)| *sum += u64::from(*n));
        distance.iter_mut().zip(&unit.distance).for_each(|(sum, n)| *sum += u64::from(*n));
    }
    let scale = litlen.iter().sum::<u64>().div_ceil(1 << 20).max(1);
    let scaled = |n: u64| (n / scale) as u32 + 1;
    let mut total = Histogram::new();
    total.litlen.iter_mut().zip(litlen).for_each(|(out, n)| *out = scaled(n));
    for ((out, n), class) in total.distance.iter_mut().zip(distance).zip(&DISTANCE_CLASSES) {
        *out = if usize::from(class.base) <= window { scaled(n) } else { 0 };
    }
    total
}

#[cfg(test)]
mod tests {
    use super::super::general::GENERAL;
    use super::super::sprint::anywhere;
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    type Outcome = (Result<(), InflateError>, Vec<u8>);

    /// What `decode` makes of a body, in room for `bytes` bytes.
    fn outcome(
        table: &Table,
        body: &[u8],
        bytes: usize,
        decode: impl Fn(&mut Block<'_, '_, LOOK_UP>) -> Result<(), InflateError>,
    ) -> Outcome {
        let mut out = vec![0xee; bytes];
        let mut block = table.block(body, &mut out);
        let result = decode(&mut block);
        let (result, written) = (ended(&block, result), block.at);
        out.truncate(written);
        (result, out)
    }

    /// With every check.
    fn by_steps(block: &mut Block<'_, '_, LOOK_UP>) -> Result<(), InflateError> {
        while !block.step()? {}
        Ok(())
    }

    /// As ever.
    fn by_all(block: &mut Block<'_, '_, LOOK_UP>) -> Result<(), InflateError> {
        block.run()
    }

    /// The fast loop as any processor can run it.
    fn by_sprints(block: &mut Block<'_, '_, LOOK_UP>) -> Result<(), InflateError> {
        while anywhere(block) {
            if block.step()? {
                return Ok(());
            }
        }
        by_steps(block)
    }

    proptest! {
        #[test]
        fn every_way_of_decoding_gives_the_same(
            runs in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 1..30), 1usize..60), 1..40),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            room in prop_oneof![Just(0isize), -300isize..300],
        ) {
            let mut unit: Vec<u8> = runs.into_iter().flat_map(|(v, n)| v.repeat(n)).collect();
            unit.truncate(crate::MAX_UNIT);
            let tables = TableSet::new(GENERAL_IDS, MAX_DISTANCE, &GENERAL).expect("tables");
            let mut body = vec![0; unit.len() * 2 + 100];
            let (size, table) =
                Deflate::new().canned(Level::L1, &tables, &unit, &mut body).expect("room enough");
            body.truncate(size);
            for (at, value) in damage {
                let at = at.index(size);
                body[at] = value;
            }
            let room = unit.len().saturating_add_signed(room);
            let plain = outcome(table, &body, room, by_steps);
            prop_assert!(outcome(table, &body, room, by_sprints) == plain);
            prop_assert!(outcome(table, &body, room, by_all) == plain);

            // Beside another body, in either place.
            let other = &tables.tables()[0];
            let mut sound = vec![0; unit.len() * 2 + 100];
            let one = TableSet::new(GENERAL_IDS, MAX_DISTANCE, &GENERAL[..1]).expect("a table");
            let (size, _) =
                Deflate::new().canned(Level::L6, &one, &unit, &mut sound).expect("room enough");
            let (mut out, mut other_out) = (vec![0xee; room], vec![0; unit.len()]);
            let both = Table::decompress_two([
                (table, &body, &mut out), (other, &sound[..size], &mut other_out),
            ]);
            prop_assert_eq!(both, plain.0);
            prop_assert!(other_out == unit);
            prop_assert!(out[..plain.1.len()] == plain.1);
            let both = Table::decompress_two([
                (other, &sound[..size], &mut other_out), (table, &body, &mut out),
            ]);
            prop_assert_eq!(both, plain.0);
        }
    }
}
