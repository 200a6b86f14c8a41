//! dm-crypt's numbering of sectors: which IV a sector has.
//!
//! ```text
//!   byte of the target        0      512     1024 ...    4096            8192
//!   sector 512:  IV           0       1       2     ...   8               16
//!   sector 4096: IV           0                           8               16
//!     with iv_large_sectors   0                           1               2
//! ```
//! plain64: the IV is that number in 64 bits, little-endian, then zeros. It counts units of 512
//! bytes from the start of the target, `iv_offset` added, whatever the size of a sector; with
//! `iv_large_sectors` it counts sectors. Source: the dm-crypt page of the kernel's documentation,
//! <https://docs.kernel.org/admin-guide/device-mapper/dm-crypt.html>.

use core::fmt;

/// Bytes in the unit in which sectors are numbered.
const UNIT: usize = 512;

/// A place in the target, in units of 512 bytes from its start, whatever the size of a sector.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sector(u64);

impl Sector {
    /// The sector with number `n`.
    #[must_use]
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The sector that begins `bytes` behind the start of the target.
    ///
    /// # Panics
    /// When none begins there.
    #[must_use]
    pub const fn at(bytes: u64) -> Self {
        assert!(bytes.is_multiple_of(UNIT as u64), "no sector begins there");
        Self(bytes / UNIT as u64)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Bytes that are encrypted as one, each with its own IV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectorSize {
    /// 512 bytes, as disks had, and LUKS1 has.
    B512,
    /// 4096 bytes, one IV a page.
    B4096,
}

/// How sectors are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    size: SectorSize,
    iv_large_sectors: bool,
    iv_offset: u64,
}

impl Format {
    /// Sectors of 4096 bytes, numbered as dm-crypt does when nothing else is said.
    pub const PAGES: Self = Self { size: SectorSize::B4096, iv_large_sectors: false, iv_offset: 0 };

    /// Sectors of this size; `iv_large_sectors` counts sectors instead of units of 512 bytes,
    /// `iv_offset` is added to the number, in units of 512 bytes.
    ///
    /// # Errors
    /// When sectors are counted and the offset is no whole number of them.
    pub const fn new(
        size: SectorSize,
        iv_large_sectors: bool,
        iv_offset: u64,
    ) -> Result<Self, FormatError> {
        let format = Self { size, iv_large_sectors, iv_offset };
        let units = format.units();
        if iv_large_sectors && !iv_offset.is_multiple_of(units) {
            return Err(FormatError { iv_offset, units });
        }
        Ok(format)
    }

    /// Bytes of a sector.
    #[must_use]
    pub const fn sector_bytes(&self) -> usize {
        match self.size {
            SectorSize::B512 => 512,
            SectorSize::B4096 => 4096,
        }
    }

    const fn units(&self) -> u64 {
        (self.sector_bytes() / UNIT) as u64
    }

    /// Whether a run of sectors may begin here.
    pub(crate) const fn begins(&self, first: Sector) -> bool {
        first.0.is_multiple_of(self.units())
    }

    /// The IV of the sector that begins `bytes` behind the sector `first`.
    pub(crate) const fn iv(&self, first: Sector, bytes: usize) -> [u8; 16] {
        let number = first.0.wrapping_add((bytes / UNIT) as u64).wrapping_add(self.iv_offset);
        let number = if self.iv_large_sectors { number / self.units() } else { number };
        (number as u128).to_le_bytes()
    }
}

/// An `iv_offset` that `iv_large_sectors` cannot count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatError {
    /// What was asked for, in units of 512 bytes.
    pub iv_offset: u64,
    /// Units of 512 bytes in a sector.
    pub units: u64,
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iv_offset, units } = self;
        write!(f, "iv_offset {iv_offset} with iv_large_sectors; it takes a multiple of {units}")
    }
}

impl core::error::Error for FormatError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(format: &Format, bytes: usize) -> u64 {
        let iv = u128::from_le_bytes(format.iv(Sector::new(0), bytes));
        u64::try_from(iv).expect("64 bits and zeros")
    }

    #[test]
    fn numbers_are_those_of_the_table() {
        let format = |size, large| Format::new(size, large, 0).expect("no offset");
        let small = format(SectorSize::B512, false);
        assert_eq!([0, 512, 1024, 4096].map(|at| number(&small, at)), [0, 1, 2, 8]);
        assert_eq!(number(&format(SectorSize::B512, true), 1024), 2);
        let pages = format(SectorSize::B4096, false);
        assert_eq!([0, 4096, 8192].map(|at| number(&pages, at)), [0, 8, 16]);
        let counted = format(SectorSize::B4096, true);
        assert_eq!([0, 4096, 8192].map(|at| number(&counted, at)), [0, 1, 2]);
    }

    #[test]
    fn an_offset_is_in_units_of_512_bytes() {
        let pages = Format::new(SectorSize::B4096, false, 5).expect("counts units");
        assert_eq!(number(&pages, 4096), 13);
        let counted = Format::new(SectorSize::B4096, true, 16).expect("two sectors");
        assert_eq!(number(&counted, 4096), 3);
        let error = Format::new(SectorSize::B4096, true, 5).expect_err("no whole sector");
        assert_eq!(
            std::format!("{error}"),
            "iv_offset 5 with iv_large_sectors; it takes a multiple of 8"
        );
        assert!(Format::new(SectorSize::B512, true, 5).is_ok());
        // As the kernel's sector numbers do, these wrap.
        let last = Format::new(SectorSize::B512, false, u64::MAX).expect("counts units");
        assert_eq!(number(&last, 512), 0);
    }
}
