//! How a device is divided.
//!
//! ```text
//!   device   │ segment 0         │ segment 1         │ ...      cleaned, emptied and punched as one
//!            │ chunk │ chunk │ … │                              filled in memory, written as one
//!   sectors  │▪▪▪▪▪▪▪│▪▪▪▪▪▪▪│                                  4 KiB, encrypted as one, written once
//!   records  │──┼────┼──┼──────┼─│                              back to back, over sectors and chunks
//! ```
//! Segments are large, so that few objects meet an end; chunks are what stays in memory, so they are as
//! small as the disk lets them be. No record is longer than a chunk, so it lies in two at most.

use crate::place::{Address, Chunk, MAX_OBJECT, Segment};
use crate::record::{self, HEADER};
use core::fmt;
use core::ops::Range;
use octavo_mempool::MAX_BULK;
use octavo_page::PAGE_SIZE;

/// Bytes that are encrypted and verified as one by the device: a sector here is always a page.
pub(crate) const SECTOR: usize = PAGE_SIZE;

/// Sizes of segments and chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    segment: usize,
    chunk: usize,
}

/// Sizes that make no geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GeometryError {
    /// Bytes of a segment.
    pub segment: usize,
    /// Bytes of a chunk.
    pub chunk: usize,
}

impl fmt::Display for GeometryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, chunk } = self;
        write!(
            f,
            "segments of {segment} bytes in chunks of {chunk}; it takes powers of two, chunks of 4 KiB to 1 \
             MiB, and segments of 1 to 128 chunks"
        )
    }
}

impl core::error::Error for GeometryError {}

impl Geometry {
    /// Segments of 1 MiB, written 256 KiB at a time.
    pub const USUAL: Self = Self { segment: 1 << 20, chunk: 256 << 10 };

    /// Segments of `segment` bytes, written `chunk` bytes at a time.
    ///
    /// # Errors
    /// [`GeometryError`] when they are no powers of two, or too small or large.
    pub const fn new(segment: usize, chunk: usize) -> Result<Self, GeometryError> {
        let powers = segment.is_power_of_two() && chunk.is_power_of_two();
        let fits = chunk >= SECTOR && chunk <= MAX_BULK * SECTOR && segment >= chunk;
        if powers && fits && segment / chunk <= 128 {
            Ok(Self { segment, chunk })
        } else {
            Err(GeometryError { segment, chunk })
        }
    }

    /// Bytes of a segment.
    #[must_use]
    pub const fn segment_bytes(&self) -> usize {
        self.segment
    }

    /// Bytes of a chunk.
    #[must_use]
    pub const fn chunk_bytes(&self) -> usize {
        self.chunk
    }

    /// Bytes of the largest object: its record fits a chunk.
    #[must_use]
    pub const fn max_object(&self) -> usize {
        let fits = self.chunk - HEADER;
        if fits < MAX_OBJECT { fits } else { MAX_OBJECT }
    }

    /// Sectors that the longest record may touch.
    pub(crate) const fn record_sectors(&self) -> usize {
        record::bytes(self.max_object()).div_ceil(SECTOR) + 1
    }

    pub(crate) const fn chunk_pages(&self) -> usize {
        self.chunk / SECTOR
    }

    pub(crate) const fn segment_sectors(&self) -> usize {
        self.segment / SECTOR
    }

    /// The segment that an address lies in, and where in it.
    pub(crate) const fn locate(&self, at: Address) -> (Segment, usize) {
        let segment = at.0 / self.segment as u64;
        (Segment(segment as u32), (at.0 % self.segment as u64) as usize)
    }

    /// Byte `offset` of a segment.
    pub(crate) const fn address(&self, segment: Segment, offset: usize) -> Address {
        Address(segment.0 as u64 * self.segment as u64 + offset as u64)
    }

    /// The chunk of a segment in which byte `offset` lies.
    pub(crate) const fn chunk_of(&self, segment: Segment, offset: usize) -> Chunk {
        Chunk { segment, number: offset / self.chunk }
    }

    /// The bytes of its segment that are a chunk's.
    pub(crate) const fn span(&self, chunk: Chunk) -> Range<usize> {
        chunk.number * self.chunk..(chunk.number + 1) * self.chunk
    }
}

/// The sectors that some bytes touch.
pub(crate) const fn sectors_of(bytes: &Range<usize>) -> Range<usize> {
    bytes.start / SECTOR..bytes.end.div_ceil(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_do_not_fit_together_are_refused() {
        assert_eq!(Geometry::new(1 << 20, 256 << 10), Ok(Geometry::USUAL));
        for (segment, chunk) in [(3 << 19, 1 << 18), (1 << 20, 2 << 20), (1 << 12, 1 << 11)] {
            assert_eq!(Geometry::new(segment, chunk), Err(GeometryError { segment, chunk }));
        }
        assert!(Geometry::new(1 << 20, 1 << 12).is_err(), "too many chunks");
    }

    #[test]
    fn an_address_is_found_again() {
        let geometry = Geometry::USUAL;
        let at = geometry.address(Segment(7), 300_000);
        assert_eq!(geometry.locate(at), (Segment(7), 300_000));
        let chunk = geometry.chunk_of(Segment(7), 300_000);
        assert_eq!(geometry.span(chunk), 256 << 10..512 << 10);
        assert_eq!(geometry.max_object(), MAX_OBJECT);
        assert_eq!(geometry.record_sectors(), 18);
    }
}
