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

use super::bits::{Reader, Writer};
use super::encode::{Chooser, Codes, Header, Histogram, LAST_DYNAMIC, Lengths};
use super::huffman;
use super::inflate::{Inflate, InflateError, Tables, body};
use super::symbols::{DISTANCE_CLASSES, DISTANCES, LITLENS};
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
            Self::Header(error) => write!(f, "the header is no dynamic block's: {error}"),
        }
    }
}

impl core::error::Error for BadTable {}

/// The code of canned blocks, prepared for encoding and decoding. About 22 KiB.
pub struct Table {
    id: u8,
    window: usize,
    lengths: Lengths,
    codes: Codes,
    tables: Tables<4096>,
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
        let classes = lengths.distance.iter().zip(&DISTANCE_CLASSES);
        let wrong = |(&n, class): (&u8, &super::symbols::Class)| {
            (usize::from(class.base) <= window) != (n != 0)
        };
        if let Some(class) = { classes }.position(wrong) {
            return Err(BadTable::Distance(class));
        }
        let mut tables = Tables::new();
        tables.build(&lengths.litlen, &lengths.distance).map_err(|_| BadTable::Code)?;
        tables.pair_literals();
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
        let header = Header::new(&self.lengths);
        let mut writer = Writer::new(out);
        writer.put_bits(LAST_DYNAMIC, 3);
        header.write(&mut writer)?;
        writer.finish()?;
        Ok(3 + header.cost() as usize)
    }

    /// Decodes a canned body: the whole of `bytes` into the whole of `out`.
    ///
    /// # Errors
    /// [`InflateError`] when `bytes` is no body of this table that gives exactly `out.len()` bytes
    /// and ends where its input ends.
    pub fn decompress(&self, bytes: &[u8], out: &mut [u8]) -> Result<(), InflateError> {
        let mut reader = Reader::new(bytes);
        let result = body(&mut reader, &self.tables, out, 0);
        match result {
            _ if reader.overran() => Err(InflateError::InputEnds),
            Err(error) => Err(error),
            Ok(written) if written != out.len() => Err(InflateError::OutputShort),
            Ok(_) if !reader.ended() => Err(InflateError::InputLeft),
            Ok(_) => Ok(()),
        }
    }
}

/// Tables to choose from for each unit: one to four, with the ids 0, 1, 2, 3 and one window.
pub struct TableSet {
    tables: Box<[Table]>,
    chooser: Chooser,
}

impl fmt::Debug for TableSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.tables).finish()
    }
}

impl TableSet {
    /// The most tables in a set.
    pub const MAX: usize = 4;

    /// A set of tables for matches at most `window` bytes back; a table's id is its place.
    ///
    /// # Errors
    /// [`BadTable`] when one of them is none.
    ///
    /// # Panics
    /// When there are no tables, or more than [`TableSet::MAX`].
    pub fn new(window: usize, lengths: &[Lengths]) -> Result<Self, BadTable> {
        let chooser = Chooser::new(&lengths.iter().collect::<Vec<_>>());
        let tables = (0..).zip(lengths).map(|(id, l)| Table::new(id, window, l));
        Ok(Self { tables: tables.collect::<Result<_, _>>()?, chooser })
    }

    /// The table with this id, if there is one.
    #[must_use]
    pub fn get(&self, id: u8) -> Option<&Table> {
        self.tables.get(usize::from(id))
    }

    /// The tables in order of id.
    #[must_use]
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    pub(super) fn window(&self) -> usize {
        self.tables[0].window
    }

    pub(super) fn chooser(&self) -> &Chooser {
        &self.chooser
    }
}

/// Makes code lengths for at most `tables` tables out of what was counted in single units: units
/// that code alike share one. Every symbol that can occur in `window` has a codeword. Takes time
/// in proportion to units, tables and a few rounds; allocates; not for the hot path.
#[must_use]
pub fn train(units: &[Histogram], tables: usize, window: usize) -> Vec<Lengths> {
    const ROUNDS: usize = 12;
    // Begin with groups of units that lie apart in how dense their symbols are, then give each
    // unit to the table that codes it shortest, and make each table anew from its units.
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|&i| units[i].litlen.iter().sum::<u32>());
    let mut group: Box<[usize]> = alloc::vec![0; units.len()].into_boxed_slice();
    for (place, &unit) in order.iter().enumerate() {
        group[unit] = place * tables / units.len();
    }
    let mut lengths = Vec::new();
    for _ in 0..ROUNDS {
        lengths = (0..tables)
            .map(|table| {
                let members = units.iter().zip(&group).filter(|(_, g)| **g == table);
                total(members.map(|(unit, _)| unit), window).lengths()
            })
            .collect();
        for (unit, group) in units.iter().zip(&mut group) {
            let costs = lengths.iter().map(|l| unit.cost(l));
            *group = costs.enumerate().min_by_key(|(_, cost)| *cost).map_or(0, |(i, _)| i);
        }
    }
    lengths
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
