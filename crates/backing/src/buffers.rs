//! Chunks that are not on a device yet: being filled, or encrypted and on their way.
//!
//! ```text
//!   idle ──► filled, sector by sector ──► sealed ──► on the device: idle again
//!             │ open sector, plain          └─ failed: stays, and is read from here
//!             └─ full: sealed, its ciphertext goes to its page
//! ```
//! A sector is sealed as soon as it is full, while it is in the nearest cache; on its way to its page it takes
//! one of two routes ([`Route`]).
//!
//! A reader first looks here, and goes to the device where it finds nothing ([`Named`]).
//!
//! Pages come from a reserve in whole chunks only, so that those of a chunk stay side by side; those of open
//! sectors are taken before, and stay.

use crate::geometry::{Geometry, SECTOR};
use crate::named::Named;
use crate::place::{Chunk, Segment};
use crate::route::Route;
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

    /// Decrypts pages to `out`, of which the first is sector `first` of the segment.
    pub(crate) fn decrypt(&self, first: usize, pages: &[Option<Page>], out: &mut [u8]) {
        let sectors = pages.iter().flatten().zip(out.chunks_exact_mut(SECTOR));
        for (n, (page, out)) in (first..).zip(sectors) {
            self.crypt.decrypt(&mut [Piece::between(self.sector(n), page.bytes(), out)]);
        }
    }
}

/// How full sectors of a chunk are sealed.
#[derive(Clone, Copy)]
pub(crate) struct Sealing<'a> {
    pub(crate) cipher: Cipher<'a>,
    /// The number of the chunk's first sector in its segment.
    pub(crate) first: usize,
    pub(crate) clock: fn() -> u64,
}

/// One of so many sectors is timed.
const TIMED: usize = 8;

/// A chunk in memory.
pub(crate) struct Content {
    /// All there or none. Those of sealed sectors have ciphertext.
    pages: Box<[Option<Page>]>,
    /// The sector that is being filled, in plain; behind what was put, whatever was there.
    open: Option<Page>,
    /// Bytes that were put.
    end: usize,
    /// Sectors that are sealed, and whether that is all there will be.
    sealed: usize,
    is_sealed: bool,
    /// How they got to their pages, and the nanoseconds that this took for those that were timed.
    route: Route,
    took: u64,
}

impl Content {
    fn new(geometry: &Geometry, open: Option<Page>) -> Self {
        let pages = (0..geometry.chunk_pages()).map(|_| None).collect();
        Self { pages, open, end: 0, sealed: 0, is_sealed: false, route: Route::Cached, took: 0 }
    }

    /// Puts `bytes` behind what was put before. A sector that is full is sealed.
    pub(crate) fn put(&mut self, mut bytes: &[u8], sealing: Sealing<'_>) {
        assert!(!self.is_sealed, "a chunk that is sealed is not written");
        while !bytes.is_empty() {
            let at = self.end % SECTOR;
            let (now, later) = bytes.split_at(bytes.len().min(SECTOR - at));
            self.open_mut()[at..][..now.len()].copy_from_slice(now);
            self.end += now.len();
            if self.end.is_multiple_of(SECTOR) {
                self.seal_sector(sealing);
            }
            bytes = later;
        }
    }

    /// Seals what there is, to the end of a sector; gives the number of sectors.
    pub(crate) fn seal(&mut self, sealing: Sealing<'_>) -> usize {
        let at = self.end % SECTOR;
        if at > 0 {
            self.open_mut()[at..].fill(0);
            self.seal_sector(sealing);
        }
        self.is_sealed = true;
        self.sealed
    }

    /// Seals the sector that is being filled.
    fn seal_sector(&mut self, sealing: Sealing<'_>) {
        let is_timed = self.sealed.is_multiple_of(TIMED);
        let begin = if is_timed { (sealing.clock)() } else { 0 };
        let sector = sealing.cipher.sector(sealing.first + self.sealed);
        let page = self.pages[self.sealed].as_mut().expect("a chunk has its pages");
        let open = self.open.as_mut().expect("a buffer has a sector to fill").bytes_mut();
        let crypt = sealing.cipher.crypt;
        match self.route {
            Route::Cached => crypt.encrypt(&mut [Piece::between(sector, open, page.bytes_mut())]),
            Route::Streamed => {
                crypt.encrypt(&mut [Piece::in_place(sector, open)]);
                page.stream(open);
            }
        }
        self.sealed += 1;
        if is_timed {
            self.took += (sealing.clock)() - begin;
        }
    }

    fn open_mut(&mut self) -> &mut [u8; SECTOR] {
        self.open.as_mut().expect("a buffer has a sector to fill").bytes_mut()
    }

    /// Reads sectors of it, of which the first is sector `first` of the segment. Behind what was put are zeros.
    fn read(&self, sectors: Range<usize>, first: usize, cipher: Cipher<'_>, out: &mut [u8]) {
        let sealed = sectors.start.min(self.sealed)..sectors.end.min(self.sealed);
        let (done, open) = out.split_at_mut(sealed.len() * SECTOR);
        cipher.decrypt(first, &self.pages[sealed], done);
        open.fill(0);
        if sectors.contains(&self.sealed)
            && let Some(page) = &self.open
        {
            let used = self.end.saturating_sub(self.sealed * SECTOR);
            open[..used].copy_from_slice(&page.bytes()[..used]);
        }
    }

    /// How its sectors got to their pages, and the nanoseconds that one took.
    pub(crate) fn took(&self) -> Option<(Route, u64)> {
        let timed = self.sealed.div_ceil(TIMED) as u64;
        self.took.checked_div(timed).map(|ns| (self.route, ns))
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
        let slot = |_| {
            let mut open = [None];
            pool.alloc_bulk(&mut open, Wait::No);
            let [open] = open;
            assert!(open.is_some(), "a reserve has a page for each buffer's open sector");
            Named::new(Content::new(&geometry, open))
        };
        Self { geometry, slots: (0..count).map(slot).collect(), pool }
    }

    /// Pages that so many buffers take.
    pub(crate) const fn pages(geometry: &Geometry, count: usize) -> usize {
        count * (geometry.chunk_pages() + 1)
    }

    /// Has an idle buffer be this chunk, whose sectors get to their pages by `route`.
    pub(crate) fn begin(&self, buffer: Buffer, chunk: Chunk, route: Route) {
        self.slots[buffer.index()].begin(chunk, |content| {
            (content.end, content.sealed, content.is_sealed) = (0, 0, false);
            (content.route, content.took) = (route, 0);
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
        let of_chunk = sectors.start - first..sectors.end - first;
        content.read(of_chunk, sectors.start, cipher, out);
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
        for slot in &self.slots {
            let mut content = slot.content();
            self.pool.free_bulk(&mut content.pages);
            self.pool.free_bulk(&mut [content.open.take()]);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use octavo_crypt::{Format, Key};
    use octavo_mempool::{Config, Ground};
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const CHUNK: Chunk = Chunk { segment: Segment(0), number: 1 };
    const BUFFER: Buffer = Buffer(0);

    fn clock() -> u64 {
        0
    }

    /// What sectors of the chunk hold, as a reader gets them.
    fn read(buffers: &Buffers, sectors: Range<usize>, cipher: Cipher<'_>) -> Vec<u8> {
        let mut out = vec![1; sectors.len() * SECTOR];
        let first = CHUNK.number * buffers.geometry.chunk_pages();
        let sectors = first + sectors.start..first + sectors.end;
        assert!(buffers.read(CHUNK.segment, sectors, cipher, &mut out));
        out
    }

    proptest! {
        /// The twin is the bytes that were put, one behind the other, with zeros behind them.
        #[test]
        fn a_chunk_has_what_was_put_at_any_time(
            lens in prop::collection::vec((1..9000_usize, 0..4_usize, 0..4_usize), 1..12),
            streamed: bool,
            seed: u8,
        ) {
            let geometry = Geometry::new(1 << 16, 4 * SECTOR).expect("powers of two");
            let pages = Buffers::pages(&geometry, 1);
            let ground = Ground::new(pages, c"octavo-test").expect("room");
            let pool = Mempool::new(ground, NoSource, Config { cpus: 1, clock }).expect("memory");
            let buffers = Buffers::new(geometry, 1, pool);
            let key = Key::ephemeral().expect("a key");
            let crypt = Crypt::new(key, Format::PAGES).expect("a cipher");
            let cipher = Cipher { crypt: &crypt, base: 1 << 20 };
            let sealing = Sealing { cipher, first: geometry.chunk_pages(), clock };
            let route = if streamed { Route::Streamed } else { Route::Cached };
            let mut twin = Vec::new();
            let padded = |twin: &[u8]| {
                let mut twin = twin.to_vec();
                twin.resize(geometry.chunk_bytes(), 0);
                twin
            };
            // What an earlier chunk has left is nobody's.
            for _ in 0..2 {
                buffers.begin(BUFFER, CHUNK, route);
                twin.clear();
                for (len, a, b) in &lens {
                    let len = (*len).min(geometry.chunk_bytes() - twin.len());
                    let part: Vec<_> = (0..len).map(|n| (n * 7) as u8 ^ seed).collect();
                    buffers.content(BUFFER).put(&part, sealing);
                    twin.extend(part);
                    let sectors = *a.min(b)..a.max(b) + 1;
                    let bytes = sectors.start * SECTOR..sectors.end * SECTOR;
                    let found = read(&buffers, sectors, cipher);
                    prop_assert!(found == padded(&twin)[bytes]);
                }
                let sectors = buffers.content(BUFFER).seal(sealing);
                prop_assert_eq!(sectors, twin.len().div_ceil(SECTOR));
                prop_assert!(read(&buffers, 0..4, cipher) == padded(&twin));
                let mut plain = vec![0; sectors * SECTOR];
                let content = buffers.content(BUFFER);
                cipher.decrypt(sealing.first, content.sectors(0..sectors), &mut plain);
                prop_assert!(plain == padded(&twin)[..plain.len()], "what the device gets");
                drop(content);
                buffers.end(BUFFER);
            }
        }
    }
}
