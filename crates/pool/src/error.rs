//! What the pool refuses, and why.

use core::fmt;
use octavo_page::Handle;

/// The owner of the frames has none to give. The pool is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfFrames;

impl fmt::Display for OutOfFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no free frame for the pool; evict to a backing file, or raise the limit")
    }
}

impl core::error::Error for OutOfFrames {}

/// Which limit of the pool is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Objects the pool was made for.
    Objects(usize),
    /// Pages of address space that its arena has.
    Pages(usize),
}

/// An object was not stored. The pool is as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// An object has at least one byte.
    Zero,
    /// The object is larger than the pool was made for.
    TooLarge {
        /// Bytes asked for.
        len: usize,
        /// Bytes of the largest object.
        max: usize,
    },
    /// The arena could not commit a page.
    OutOfFrames,
    /// A capacity given when the pool was made is used up.
    Full(Limit),
}

impl From<OutOfFrames> for AllocError {
    fn from(OutOfFrames: OutOfFrames) -> Self {
        Self::OutOfFrames
    }
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("an object of 0 bytes; the pool takes 1 byte or more"),
            Self::TooLarge { len, max } => {
                write!(f, "an object of {len} bytes; this pool takes at most {max}")
            }
            Self::OutOfFrames => OutOfFrames.fmt(f),
            Self::Full(Limit::Objects(n)) => {
                write!(f, "the pool holds the {n} objects it was made for; free some")
            }
            Self::Full(Limit::Pages(n)) => {
                write!(f, "the pool's {n} pages of address space are given out; free or compact")
            }
        }
    }
}

impl core::error::Error for AllocError {}

/// The handle names no object: it was freed, or it never came from this pool. A handle that came from another
/// pool, or whose entry was used again 16 to 256 times, may by chance name an object instead: docs/pool.md says
/// when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadHandle(pub Handle);

impl fmt::Display for BadHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0.bits();
        write!(f, "handle {bits:#010x} names no object: freed before, or of another pool")
    }
}

impl core::error::Error for BadHandle {}

/// A pool cannot be made so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// `max_object` is not 1 to 65,536 bytes.
    MaxObject(usize),
    /// `max_objects` is not 1 to 2^28 - 1.
    MaxObjects(usize),
    /// The arena has fewer pages than one zspage.
    Arena {
        /// Pages it has.
        pages: usize,
        /// Pages of a zspage.
        zspage: usize,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MaxObject(n) => {
                write!(f, "a largest object of {n} bytes; 1 to 65536 will do")
            }
            Self::MaxObjects(n) => {
                write!(f, "a capacity of {n} objects; 1 to {} will do", crate::MAX_OBJECTS)
            }
            Self::Arena { pages, zspage } => {
                write!(f, "an arena of {pages} pages; one zspage alone takes {zspage}")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
