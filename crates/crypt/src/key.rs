//! Where the key is from, and where it is kept.
//!
//! A device that nobody else reads has an *ephemeral* key: random, made at start, gone with the
//! process, so what is left on the disk is noise. One that others read has a key file: 64 bytes,
//! 32 for the data, then 32 for the tweaks, as the kernel takes them.
//!
//! Either lies in memory that is locked, left out of core dumps and zeroed at the end.

use core::ffi::CStr;
use core::fmt;
use octavo_sys::file::Fd;
use octavo_sys::secret::{Secret, random};
use octavo_sys::{Errno, Result as SysResult, reason};

/// Bytes of a key.
pub const KEY_BYTES: usize = 64;

/// A key of AES-256-XTS: two different keys of AES-256.
#[derive(Debug)]
pub struct Key(Secret<[u8; KEY_BYTES]>);

impl Key {
    /// A random key.
    ///
    /// # Errors
    /// When there is no memory that may be locked, or the kernel has no random bytes.
    pub fn ephemeral() -> Result<Self, KeyError> {
        Self::fill(|bytes| random(bytes).map_err(KeyError::NoRandom))
    }

    /// The key in the file `path`.
    ///
    /// # Errors
    /// When it cannot be read, or is no key.
    pub fn read(path: &CStr) -> Result<Self, KeyError> {
        Self::of_file(&Fd::open(path).map_err(KeyError::Unreadable)?)
    }

    /// The key in `file`, wherever that is read at present.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    pub fn of_file(file: &Fd) -> Result<Self, KeyError> {
        Self::fill(|bytes| {
            let found = read_full(file, bytes, 0).map_err(KeyError::Unreadable)?;
            if found < KEY_BYTES {
                return Err(KeyError::TooShort { found });
            }
            match read_full(file, &mut [0], KEY_BYTES) {
                Ok(0) => Ok(()),
                Ok(_) => Err(KeyError::TooLong),
                Err(why) => Err(KeyError::Unreadable(why)),
            }
        })
    }

    /// This key, which the caller has to zero where it has it from.
    ///
    /// # Errors
    /// When it is no key, or there is no memory that may be locked.
    pub fn new(key: &[u8; KEY_BYTES]) -> Result<Self, KeyError> {
        Self::fill(|bytes| {
            bytes.copy_from_slice(key);
            Ok(())
        })
    }

    fn fill(
        fill: impl FnOnce(&mut [u8; KEY_BYTES]) -> Result<(), KeyError>,
    ) -> Result<Self, KeyError> {
        let mut key = Secret::new(|| [0; KEY_BYTES]).map_err(KeyError::NoMemory)?;
        fill(&mut key)?;
        let (data, tweak) = key.split_at(KEY_BYTES / 2);
        if data == tweak { Err(KeyError::EqualHalves) } else { Ok(Self(key)) }
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

/// Reads from `at` on until `bytes` is full or the file ends.
fn read_full(file: &Fd, bytes: &mut [u8], at: usize) -> SysResult<usize> {
    let mut found = 0;
    while found < bytes.len() {
        match file.read_at(&mut bytes[found..], (at + found) as u64) {
            Ok(0) => break,
            Ok(n) => found += n,
            Err(Errno::EINTR) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(found)
}

/// Why there is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyError {
    /// No memory that may be locked.
    NoMemory(Errno),
    /// The kernel gives no random bytes.
    NoRandom(Errno),
    /// The file cannot be opened or read.
    Unreadable(Errno),
    /// The file ends too early.
    TooShort {
        /// Its bytes.
        found: usize,
    },
    /// The file goes on after the key.
    TooLong,
    /// Data and tweaks have the same key.
    EqualHalves,
    /// The processor has no AES.
    NoAes,
}

/// What a key is, and how one is made.
const MAKE_ONE: &str = "make one by: head -c 64 /dev/urandom >FILE";

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory(why) => {
                let why = reason(*why);
                write!(f, "a key needs 8 KiB of locked memory ({why}); allow it by: ulimit -l 64")
            }
            Self::NoRandom(why) => {
                write!(f, "the kernel has no random bytes for a key ({})", reason(*why))
            }
            Self::Unreadable(why) => write!(f, "the key cannot be read ({})", reason(*why)),
            Self::TooShort { found } => {
                write!(f, "a key has {KEY_BYTES} bytes, this one {found}; {MAKE_ONE}")
            }
            Self::TooLong => write!(
                f,
                "a key has {KEY_BYTES} bytes, this one more (as raw bytes, not in hexadecimal, and no \
                 line break after them); {MAKE_ONE}"
            ),
            Self::NoAes => {
                f.write_str("encryption takes a processor with AES-NI, and this has none")
            }
            Self::EqualHalves => {
                write!(f, "both halves of the key are equal, which makes XTS weak; {MAKE_ONE}")
            }
        }
    }
}

impl core::error::Error for KeyError {}
