//! The codes that are known before a unit is: fixed, and those of canned tables; in memory that
//! devices read.
//!
//! A device decompresses a canned body from a state that it has left itself, after reading the
//! header that the body implies. Where it puts that state when it reads none (first half or second
//! half of two) its documents leave open: both halves are there, and the one that was written counts.
//! A place whose state came too late is *spoilt*: a device may still write one there, over that of
//! another table, so it never has a state again.

use super::Region;
use super::wire::{CompressAecs, DECOMPRESS_AECS};
use octavo_codec::deflate::{Lengths, TableSet};
use zerocopy::IntoBytes;

/// Tables there is room for: general ones and learnt ones.
pub const TABLES: usize = 2 * TableSet::MAX;

const COMPRESS: usize = size_of::<CompressAecs>();
const ONE: usize = COMPRESS + 2 * DECOMPRESS_AECS;

/// Bytes of all tables.
pub const TABLE_BYTES: usize = COMPRESS + TABLES * ONE;

/// What is known of a canned table.
#[derive(Clone, Copy, Debug)]
struct Canned {
    id: u8,
    /// Where the state is that a decompression begins with, if a device has made one.
    state: Option<u64>,
}

/// The tables of an engine.
#[derive(Debug)]
pub struct Tables {
    region: Region,
    canned: [Option<Canned>; TABLES],
    spoilt: [bool; TABLES],
}

impl Tables {
    /// No canned tables yet.
    pub fn new(region: Region) -> Self {
        region.write(0, CompressAecs::fixed().as_bytes());
        Self { region, canned: [None; TABLES], spoilt: [false; TABLES] }
    }

    /// The address of the AECS of a fixed block.
    pub const fn fixed(&self) -> u64 {
        self.region.address(0)
    }

    /// Puts a canned table into `place`, without a state as yet.
    pub fn set(&mut self, place: usize, id: u8, lengths: &Lengths) {
        self.region.write(Self::at(place), CompressAecs::canned(lengths).as_bytes());
        self.region.write(Self::at(place) + COMPRESS, &[0; 2 * DECOMPRESS_AECS]);
        self.canned[place] = Some(Canned { id, state: None });
    }

    /// Takes what is in `place` away.
    pub fn clear(&mut self, place: usize) {
        self.canned[place] = None;
    }

    /// The address at which a device is to leave the state of `place`; `None` if that is spoilt.
    pub fn state_to_be(&self, place: usize) -> Option<u64> {
        (!self.spoilt[place]).then(|| self.region.address(Self::at(place) + COMPRESS))
    }

    /// A device may write the state of `place` at any time from now on.
    pub fn spoil(&mut self, place: usize) {
        self.spoilt[place] = true;
    }

    /// A device has read the header of `place`: its state is where something was written.
    pub fn found_state(&mut self, place: usize) {
        let half = |second: usize| {
            let at = Self::at(place) + COMPRESS + second * DECOMPRESS_AECS;
            let mut bytes = [0; DECOMPRESS_AECS];
            self.region.read(at, &mut bytes);
            bytes.iter().any(|b| *b != 0).then(|| self.region.address(at))
        };
        let state = half(0).or_else(|| half(1));
        if let Some(canned) = &mut self.canned[place] {
            canned.state = state;
        }
    }

    /// The id of the table in `place`, and the address of its AECS for a compression.
    pub fn compress(&self, place: usize) -> Option<(u8, u64)> {
        let canned = self.canned.get(place)?.as_ref()?;
        Some((canned.id, self.region.address(Self::at(place))))
    }

    /// The place of the table with this id.
    pub fn find(&self, id: u8) -> Option<usize> {
        self.canned.iter().position(|canned| canned.is_some_and(|canned| canned.id == id))
    }

    /// The address of the state that a decompression with the table in `place` begins with.
    pub fn state(&self, place: usize) -> Option<u64> {
        self.canned.get(place)?.as_ref()?.state
    }

    const fn at(place: usize) -> usize {
        COMPRESS + place * ONE
    }
}
