//! Chunks that are not on a device yet: being filled, or encrypted and on their way.
//!
//! ```text
//!   idle ──► filled, plaintext ──► sealed, ciphertext ──► on the device: idle again
//!                                    └─ failed: stays, and is read from here
//! ```
//! A reader first looks here, and goes to the device where it finds nothing ([`Named`]).
//!
//! Pages come from a reserve in whole chunks only, so that those of a chunk stay side by side.

use crate::geometry::{Geometry, SECTOR};
use crate::named::Named;
use crate::place::{Chunk, Segment};
use alloc::boxed::Box;
use core::ops::Range;
use octavo_crypt::{Crypt, Piece, Sector};
use octavo_mempool::source::NoSource;
use octavo_mempool::{Mempool, Page, Wait};
use octavo_page::sync::MutexGuard;

/// The number of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Buffer(pub(crate) u8);

impl Buffer {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where sectors are on their device, and what encrypts them.
#[derive(Clone, Copy)]
pub(crate) struct Cipher<'a> {
    pub(crate) crypt: &'a Crypt,
    /// Where the segment begins on its device.
    pub(crate) base: u64,
}

impl Cipher<'_> {
    /// The sector with number `n` of the segment.
    fn sector(&self, n: usize) -> Sector {
        Sector::at(self.base + (n * SECTOR) as u64)
    }

    /// Encrypts pages in place, of which the first is sector `first` of the segment.
    fn encrypt(&self, first: usize, pages: &mut [Option<Page>]) {
        for (n, page) in (first..).zip(pages.iter_mut().flatten()) {
            self.crypt.encrypt(&mut [Piece::in_place(self.sector(n), page.bytes_mut())]);
        }
    }

    /// Decrypts pages to `out`, of which the first is sector `first` of the segment.
    pub(crate) fn decrypt(&self, first: usize, pages: &[Option<Page>], out: &mut [u8]) {
        let sectors = pages.iter().flatten().zip(out.chunks_exact_mut(SECTOR));
        for (n, (page, out)) in (first..).zip(sectors) {
            self.crypt.decrypt(&mut [Piece::between(self.sector(n), page.bytes(), out)]);
        }
    }
}

/// A chunk in memory.
pub(crate) struct Content {
    /// All there or none.
    pages: Box<[Option<Page>]>,
    is_sealed: bool,
}

impl Content {
    /// Puts `bytes` at byte `at` of the chunk.
    pub(crate) fn put(&mut self, mut at: usize, mut bytes: &[u8]) {
        assert!(!self.is_sealed, "a chunk that is sealed is not written");
        while !bytes.is_empty() {
            let room = SECTOR - at % SECTOR;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            let page = self.pages[at / SECTOR].as_mut().expect("a chunk has its pages");
            page.bytes_mut()[at % SECTOR..][..now.len()].copy_from_slice(now);
            (at, bytes) = (at + now.len(), later);
        }
    }

    /// Zeroes from byte `at` of the chunk to the end of its sector, and gives the sectors until there.
    fn pad(&mut self, at: usize) -> usize {
        if let Some(page) = self.pages.get_mut(at / SECTOR).and_then(Option::as_mut)
            && !at.is_multiple_of(SECTOR)
        {
            page.bytes_mut()[at % SECTOR..].fill(0);
        }
        at.div_ceil(SECTOR)
    }

    /// Encrypts the first `used` bytes, to whole sectors; gives their number.
    pub(crate) fn seal(&mut self, cipher: Cipher<'_>, first: usize, used: usize) -> usize {
        let sectors = self.pad(used);
        cipher.encrypt(first, &mut self.pages[..sectors]);
        self.is_sealed = true;
        sectors
    }

    /// Some sectors of it.
    pub(crate) fn sectors(&self, sectors: Range<usize>) -> &[Option<Page>] {
        &self.pages[sectors]
    }
}

/// All buffers, and the pages for them.
pub(crate) struct Buffers {
    geometry: Geometry,
    slots: Box<[Named<Content>]>,
    pool: Mempool<NoSource>,
}

impl Buffers {
    /// `count` buffers, for which `pool` has the pages.
    pub(crate) fn new(geometry: Geometry, count: usize, pool: Mempool<NoSource>) -> Self {
        let pages = || (0..geometry.chunk_pages()).map(|_| None).collect();
        let slot = |_| Named::new(Content { pages: pages(), is_sealed: false });
        Self { geometry, slots: (0..count).map(slot).collect(), pool }
    }

    /// Has an idle buffer be this chunk.
    pub(crate) fn begin(&self, buffer: Buffer, chunk: Chunk) {
        self.slots[buffer.index()].begin(chunk, |content| {
            content.is_sealed = false;
            let got = self.pool.alloc_bulk(&mut content.pages, Wait::No);
            assert_eq!(got, content.pages.len(), "a reserve has pages for every buffer");
        });
    }

    /// A buffer is idle again: the device has what it had, or nobody wants that any more.
    pub(crate) fn end(&self, buffer: Buffer) {
        self.slots[buffer.index()].end(|content| self.pool.free_bulk(&mut content.pages));
    }

    /// What is in a buffer.
    pub(crate) fn content(&self, buffer: Buffer) -> MutexGuard<'_, Content> {
        self.slots[buffer.index()].content()
    }

    /// Whether a chunk is here, at this moment.
    pub(crate) fn has(&self, chunk: Chunk) -> bool {
        self.slots.iter().any(|slot| slot.is(chunk))
    }

    /// Reads sectors of a segment, all of one chunk, if that is here; whether it is.
    pub(crate) fn read(
        &self,
        segment: Segment,
        sectors: Range<usize>,
        cipher: Cipher<'_>,
        out: &mut [u8],
    ) -> bool {
        let chunk = self.geometry.chunk_of(segment, sectors.start * SECTOR);
        let Some(content) = self.slots.iter().find_map(|slot| slot.get(chunk)) else {
            return false;
        };
        let first = chunk.number * self.geometry.chunk_pages();
        let pages = content.sectors(sectors.start - first..sectors.end - first);
        if content.is_sealed {
            cipher.decrypt(sectors.start, pages, out);
        } else {
            let pages = pages.iter().flatten().zip(out.chunks_exact_mut(SECTOR));
            pages.for_each(|(page, out)| out.copy_from_slice(page.bytes()));
        }
        true
    }

    /// Where all pages lie.
    pub(crate) fn memory(&self) -> Range<usize> {
        self.pool.span()
    }

    /// Whether the pages stay in memory.
    pub(crate) fn is_locked(&self) -> bool {
        self.pool.is_locked()
    }
}

/// The pages of chunks that nobody wants any more go home, and the memory with them.
impl Drop for Buffers {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| self.pool.free_bulk(&mut slot.content().pages));
    }
}
