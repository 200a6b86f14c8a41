//! Tables as a file has them, and as a job hands them to its processes.
//!
//! ```text
//!   byte  0   "octavo-t"
//!         8   version, 1
//!         9   tables, 1 to 8
//!        10   window: its logarithm, 12 to 15
//!        11   0
//!        12   each table: bytes of its header (two, little endian), the header that it implies, zero bits
//!             to the byte
//!    at end   CRC-32, as gzip's, of all that is before it (four, little endian)
//! ```
//! What is read is checked whole before anything of it is used: a file that was damaged is told as such,
//! and one that was made to be no table as what it is.

use super::canned::{BadTable, Table, TableSet};
use super::encode::Lengths;
use alloc::vec::Vec;
use core::fmt;
use crc32fast::hash as crc32;

const MAGIC: &[u8; 8] = b"octavo-t";
const VERSION: u8 = 1;
const FIRST_TABLE: usize = 12;

/// Tables that units are compressed with, all of one window.
#[derive(Clone, Copy, Debug)]
pub struct TableFile {
    window: usize,
    lengths: [Lengths; TableSet::MAX],
    count: usize,
}

/// Why bytes are no file of tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadFile {
    /// They do not begin as one.
    Magic,
    /// They are of another version, this.
    Version(u8),
    /// They end too early, or go on after the end.
    Length(usize),
    /// They are not what was written.
    Checksum,
    /// They name so many tables.
    Count(usize),
    /// This table is none.
    Table(usize, BadTable),
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAKE: &str = "make one with `octavo codec train`";
        match self {
            Self::Magic => write!(f, "is no file of tables; {MAKE}"),
            Self::Version(version) => write!(f, "is of version {version}, not {VERSION}; {MAKE}"),
            Self::Length(bytes) => write!(f, "{bytes} bytes are too few or too many; {MAKE} anew"),
            Self::Checksum => write!(f, "is damaged: its checksum is another; {MAKE} anew"),
            Self::Count(n) => write!(f, "has {n} tables; 1 to {} are possible", TableSet::MAX),
            Self::Table(n, why) => write!(f, "table {n}: {why}"),
        }
    }
}

impl core::error::Error for BadFile {}

impl TableFile {
    /// The most bytes of a file.
    pub const MAX_BYTES: usize = FIRST_TABLE + TableSet::MAX * (2 + HEADER_BYTES) + 4;

    /// These tables, for matches at most `window` bytes back.
    ///
    /// # Errors
    /// [`BadFile`] when there are none or too many, or one is no table.
    pub fn new(window: usize, lengths: &[Lengths]) -> Result<Self, BadFile> {
        if lengths.is_empty() || lengths.len() > TableSet::MAX {
            return Err(BadFile::Count(lengths.len()));
        }
        for (n, lengths) in lengths.iter().enumerate() {
            Table::new(0, window, lengths).map_err(|why| BadFile::Table(n, why))?;
        }
        let mut all = [lengths[0]; TableSet::MAX];
        all[..lengths.len()].copy_from_slice(lengths);
        Ok(Self { window, lengths: all, count: lengths.len() })
    }

    /// How far back matches reach, in bytes.
    #[must_use]
    pub const fn window(&self) -> usize {
        self.window
    }

    /// The code lengths of each table.
    #[must_use]
    pub fn lengths(&self) -> &[Lengths] {
        &self.lengths[..self.count]
    }

    /// The bytes of the file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut file = MAGIC.to_vec();
        let window = self.window.ilog2() as u8;
        file.extend_from_slice(&[VERSION, self.count as u8, window, 0]);
        for lengths in self.lengths() {
            let mut header = [0; HEADER_BYTES];
            let bits = lengths.header(&mut header).expect("room for every header");
            let header = &header[..bits.div_ceil(8)];
            file.extend_from_slice(&(header.len() as u16).to_le_bytes());
            file.extend_from_slice(header);
        }
        file.extend_from_slice(&crc32(&file).to_le_bytes());
        file
    }

    /// The tables of a file. Allocates nothing.
    ///
    /// # Errors
    /// [`BadFile`].
    #[inline(never)]
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadFile> {
        if !bytes.starts_with(MAGIC) {
            return Err(BadFile::Magic);
        }
        let ends = BadFile::Length(bytes.len());
        let (content, sum) = bytes.split_last_chunk().ok_or(ends)?;
        let [version, count, window, zero] =
            *content.get(MAGIC.len()..).and_then(<[u8]>::first_chunk).ok_or(ends)?;
        if version != VERSION {
            return Err(BadFile::Version(version));
        }
        if u32::from_le_bytes(*sum) != crc32(content) || zero != 0 {
            return Err(BadFile::Checksum);
        }
        let count = usize::from(count);
        if count == 0 || count > TableSet::MAX {
            return Err(BadFile::Count(count));
        }
        let window = 1usize.checked_shl(window.into()).unwrap_or(0);
        let mut lengths = [Lengths::FIXED; TableSet::MAX];
        let mut rest = &content[FIRST_TABLE..];
        for (n, lengths) in lengths[..count].iter_mut().enumerate() {
            let (bytes, after) = rest.split_first_chunk().ok_or(ends)?;
            let bytes = usize::from(u16::from_le_bytes(*bytes));
            let (header, after) = after.split_at_checked(bytes).ok_or(ends)?;
            let table = Table::from_header(0, window, header);
            *lengths = *table.map_err(|why| BadFile::Table(n, why))?.lengths();
            rest = after;
        }
        if !rest.is_empty() {
            return Err(ends);
        }
        Ok(Self { window, lengths, count })
    }
}

/// Bytes of the longest header.
const HEADER_BYTES: usize = 300;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::general::GENERAL;
    use super::*;
    use proptest::prelude::*;

    /// The file with the checksum of its content.
    fn summed(mut content: Vec<u8>) -> Vec<u8> {
        content.extend_from_slice(&crc32(&content).to_le_bytes());
        content
    }

    #[test]
    fn a_file_reads_back_and_any_damage_is_told() {
        for count in 1..=TableSet::MAX {
            let file = TableFile::new(32768, &GENERAL[..count]).expect("tables");
            let bytes = file.to_bytes();
            assert!(bytes.len() <= TableFile::MAX_BYTES);
            let back = TableFile::from_bytes(&bytes).expect("our own file");
            assert_eq!((back.window(), back.lengths()), (file.window(), file.lengths()));
            for at in 0..bytes.len() {
                assert!(TableFile::from_bytes(&bytes[..at]).is_err());
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << (at % 8);
                assert!(TableFile::from_bytes(&damaged).is_err(), "byte {at} of {count} tables");
            }
        }
        let mut crc = flate2::Crc::new();
        crc.update(b"tables");
        assert_eq!(crc32(b"tables"), crc.sum());
        assert_eq!(TableFile::new(4096, &[]).err(), Some(BadFile::Count(0)));
        let bad = TableFile::new(5000, &GENERAL[..1]).err();
        assert_eq!(bad, Some(BadFile::Table(0, BadTable::Window(5000))));
    }

    proptest! {
        #[test]
        fn whatever_a_file_says_is_answered(
            count: u8, window: u8, damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in option_of_index(), rubbish in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let sound = TableFile::new(32768, &GENERAL).expect("tables").to_bytes();
            let mut content = sound[..sound.len() - 4].to_vec();
            for (at, value) in damage {
                let at = at.index(content.len() - FIRST_TABLE);
                content[FIRST_TABLE + at] = value;
            }
            (content[9], content[10]) = (count % 10, window % 20);
            if let Some(cut) = cut {
                content.truncate(FIRST_TABLE + cut.index(content.len() - FIRST_TABLE));
            }
            // With a checksum that is right: what is read then is a set of tables.
            if let Ok(file) = TableFile::from_bytes(&summed(content)) {
                prop_assert!(TableFile::new(file.window(), file.lengths()).is_ok());
            }
            let _ = TableFile::from_bytes(&rubbish);
            let _ = TableFile::from_bytes(&summed([&MAGIC[..], &rubbish].concat()));
        }
    }

    fn option_of_index() -> impl Strategy<Value = Option<prop::sample::Index>> {
        proptest::option::of(any::<prop::sample::Index>())
    }
}
