//! What the fuzz targets share: input taken apart, units made out of it, room with guards around it,
//! and zlib as the foreign twin of our deflate.
//!
//! A target is a property: it takes any bytes and panics where the property does not hold. The ones
//! that decode compare with a foreign decoder where there is one; the ones that keep things compare
//! with a map.

use flate2::{Decompress, FlushDecompress, Status};
use octavo_codec::deflate::Table;
use std::cell::RefCell;
use std::sync::LazyLock;

/// The arena that notices misuse and can be damaged, and pages as programs have them.
#[allow(missing_docs, clippy::should_implement_trait)] // The words of the store's own tests.
#[path = "../../crates/store/tests/common/mod.rs"]
pub mod common;

/// A disk in memory that fails as told, and owners that know every object.
#[allow(missing_docs, clippy::should_implement_trait)] // The words of the backing's own tests.
#[path = "../../crates/backing/tests/rig/mod.rs"]
pub mod backing;

/// One of 256 pages of the kinds that programs have: a model need only keep the seed.
#[must_use]
pub fn page(seed: u8) -> &'static [u8] {
    static PAGES: LazyLock<Vec<Vec<u8>>> =
        LazyLock::new(|| (0..=u8::MAX).map(|seed| common::page(seed.into())).collect());
    &PAGES[usize::from(seed)]
}

/// The input, taken apart from the front. Behind its end come zeros.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// The whole input.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// The next two bytes as a number.
    pub fn number(&mut self) -> usize {
        usize::from(self.byte()) | usize::from(self.byte()) << 8
    }

    /// The next `n` bytes, or as many as there are.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        front
    }

    /// All that is left.
    #[must_use]
    pub const fn rest(self) -> &'a [u8] {
        self.0
    }

    /// A unit of `bytes` bytes out of all that is left.
    ///
    /// The first byte says whether what follows is the unit itself, or how to make it:
    /// ```text
    ///   00..5f           as many bytes and one more of the input, as they are
    ///   60..df  d d      a copy of 3 to 257 bytes from `d` back
    ///   e0..ff  s        64 to 2048 bytes that do not compress, by the seed `s`
    /// ```
    /// Either way it is repeated until the unit is full, as input is short and units are long.
    #[must_use]
    pub fn unit(mut self, bytes: usize) -> Vec<u8> {
        let mut unit = Vec::with_capacity(bytes);
        if self.byte().is_multiple_of(2) {
            unit.extend(self.rest());
        }
        while unit.len() < bytes && !self.0.is_empty() && unit.len() + self.0.len() <= 2 * bytes {
            let kind = usize::from(self.byte());
            match kind {
                0..0x60 => unit.extend(self.take(kind + 1)),
                0x60..0xe0 if !unit.is_empty() => {
                    let from = unit.len() - 1 - self.number() % unit.len();
                    (from..from + 3 + 2 * (kind - 0x60)).for_each(|at| unit.push(unit[at]));
                }
                _ => {
                    let mut random = common::Random::new(self.byte().into());
                    let words = 8 * (kind.saturating_sub(0xdf)).max(1);
                    unit.extend((0..words).flat_map(|_| random.next().to_le_bytes()));
                }
            }
        }
        unit.truncate(bytes);
        if unit.is_empty() {
            unit.push(0);
        }
        while unit.len() < bytes {
            unit.extend_from_within(..unit.len().min(bytes - unit.len()));
        }
        unit
    }
}

/// Room to write to between two stretches that nobody may write. Code in C, which the address
/// sanitizer does not watch, is held to its bounds too.
#[derive(Debug)]
pub struct Guarded(Vec<u8>);

const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xee;

impl Guarded {
    /// Room for `bytes` bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(vec![UNTOUCHED; bytes + 2 * GUARD])
    }

    /// The room.
    pub fn room(&mut self) -> &mut [u8] {
        let end = self.0.len() - GUARD;
        &mut self.0[GUARD..end]
    }

    /// What is in the room.
    ///
    /// # Panics
    /// When something was written outside of it.
    #[must_use]
    pub fn checked(&self) -> &[u8] {
        let (before, rest) = self.0.split_at(GUARD);
        let (room, behind) = rest.split_at(rest.len() - GUARD);
        assert!(before.iter().all(|&b| b == UNTOUCHED), "written before the room");
        assert!(behind.iter().all(|&b| b == UNTOUCHED), "written behind the room");
        room
    }
}

/// What zlib makes of a raw deflate stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ByZlib {
    /// Whether it is a whole stream whose output fits.
    pub accepted: bool,
    /// Bytes of input that it took.
    pub consumed: usize,
    /// The output, as far as it came.
    pub out: Vec<u8>,
}

/// Inflates `stream` by zlib into at most `room` bytes.
#[must_use]
pub fn by_zlib(stream: &[u8], room: usize) -> ByZlib {
    thread_local!(static ZLIB: RefCell<Decompress> = RefCell::new(Decompress::new(false)));
    ZLIB.with_borrow_mut(|zlib| {
        zlib.reset(false);
        let mut out = vec![0; room];
        let status = zlib.decompress(stream, &mut out, FlushDecompress::Finish);
        out.truncate(zlib.total_out() as usize);
        let accepted = matches!(status, Ok(Status::StreamEnd));
        ByZlib { accepted, consumed: zlib.total_in() as usize, out }
    })
}

/// The header of a table and a canned body behind it: a stream for any inflate.
///
/// # Panics
/// When the header is longer than it can be.
#[must_use]
pub fn with_header(table: &Table, body: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; 300];
    let bits = table.header(&mut stream).expect("a header takes 300 bytes at most");
    stream.truncate(bits / 8 + 1);
    // The body begins in the middle of a byte.
    let shift = bits % 8;
    for &byte in body {
        *stream.last_mut().expect("a byte") |= byte << shift;
        stream.push((u16::from(byte) >> (8 - shift)) as u8);
    }
    stream
}
