//! Sectors encrypted as dm-crypt's `aes-xts-plain64` does, with a key of 512 bits.
//!
//! ```text
//!   pieces   [first sector 8, 3 sectors] [first sector 96, 1 sector] ...     in place, or from one
//!                │                            │                              buffer to another
//!                ▼ IVs, as dm-crypt numbers   ▼              (format)
//!           a sector at a time, by AWS-LC's loops in assembler   (xts)
//! ```
//!
//! One call takes a whole batch: the sectors of a piece follow each other, pieces need not. What
//! comes out is what Linux, `cryptsetup` and `qemu-img` read and write. There is no checksum in it:
//! whoever changes a block changes 16 bytes of what is read, and nobody notices here.
//!
//! The key is in locked memory and nowhere else ([`Key`]). Nothing here calls libc or has
//! thread-local storage; memory is mapped when a key is made, and never after. It takes a processor
//! with AES-NI, and is twice to three times as fast with VAES and AVX-512.
#![no_std]

#[cfg(test)]
extern crate std;

mod format;
mod key;
mod xts;

pub use format::{Format, FormatError, Sector, SectorSize};
pub use key::{KEY_BYTES, Key, KeyError};

use core::marker::PhantomData;
use octavo_sys::secret::Secret;
use xts::{Loops, Schedule, Way};

/// Sectors that follow each other: where they are, and their bytes.
///
/// Both buffers are named by where they are, since in place they are the same.
pub struct Piece<'i, 'o> {
    first: Sector,
    from: *const u8,
    to: *mut u8,
    len: usize,
    borrows: PhantomData<(&'i [u8], &'o mut [u8])>,
}

impl<'a> Piece<'a, 'a> {
    /// The sectors from `first` on, changed where they are.
    #[must_use]
    pub fn in_place(first: Sector, bytes: &'a mut [u8]) -> Self {
        let (to, len) = (bytes.as_mut_ptr(), bytes.len());
        Self { first, from: to, to, len, borrows: PhantomData }
    }
}

impl<'i, 'o> Piece<'i, 'o> {
    /// The sectors from `first` on, read from `from` and written to `to`.
    ///
    /// # Panics
    /// When the lengths differ.
    #[must_use]
    pub fn between(first: Sector, from: &'i [u8], to: &'o mut [u8]) -> Self {
        assert_eq!(from.len(), to.len(), "sectors of the same length");
        let (to, len) = (to.as_mut_ptr(), to.len());
        Self { first, from: from.as_ptr(), to, len, borrows: PhantomData }
    }

    /// Where to read and to write, and how many bytes. The two are the same or do not overlap, and
    /// are this piece's for as long as it lives.
    fn buffers(&mut self) -> (*const u8, *mut u8, usize) {
        (self.from, self.to, self.len)
    }
}

/// A key in use, and how sectors are numbered. May be used by many threads at once.
pub struct Crypt {
    schedule: Secret<Schedule>,
    format: Format,
}

impl Crypt {
    /// Expands `key`, which is then zeroed.
    ///
    /// # Errors
    /// When there is no memory that may be locked, or the processor has no AES.
    pub fn new(key: Key, format: Format) -> Result<Self, KeyError> {
        let loops = Loops::fastest().ok_or(KeyError::NoAes)?;
        let schedule = Secret::new(|| Schedule::new(key.bytes(), loops));
        let schedule = schedule.map_err(KeyError::NoMemory)?;
        Ok(Self { schedule, format })
    }

    /// How sectors are numbered.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Has children inherit the key, as of [`Secret::leave_to_children`].
    pub fn leave_to_children(&self) {
        self.schedule.leave_to_children();
    }

    /// Locks the key in memory, in a child that has inherited it.
    ///
    /// # Errors
    /// When the memory must not be locked.
    pub fn lock(&self) -> Result<(), KeyError> {
        self.schedule.lock().map_err(KeyError::NoMemory)
    }

    /// Encrypts every sector of `pieces`.
    ///
    /// # Panics
    /// When a piece is no whole number of sectors, or begins in the middle of one.
    pub fn encrypt(&self, pieces: &mut [Piece<'_, '_>]) {
        self.pass(pieces, Way::Encrypt);
    }

    /// Decrypts every sector of `pieces`.
    ///
    /// # Panics
    /// As of [`encrypt`](Self::encrypt).
    pub fn decrypt(&self, pieces: &mut [Piece<'_, '_>]) {
        self.pass(pieces, Way::Decrypt);
    }

    fn pass(&self, pieces: &mut [Piece<'_, '_>], way: Way) {
        for Piece { first, len, .. } in &*pieces {
            assert!(len.is_multiple_of(self.format.sector_bytes()), "{len} bytes of sectors");
            assert!(self.format.begins(*first), "no sector begins at {}", first.get());
        }
        self.schedule.pass(&self.format, pieces, way);
    }
}
