//! What can go wrong, and what would do.

use crate::device::{DeviceId, MAX_DEVICES};
use crate::place::MAX_BYTES;
use core::fmt;
use octavo_mempool::MempoolError;
use octavo_page::ByteSize;
use octavo_sys::{Errno, reason};

/// Why there is no backing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewError {
    /// No devices, or too many.
    Devices {
        /// How many.
        found: usize,
    },
    /// A device is too small to clean it.
    TooSmall {
        /// Which.
        device: DeviceId,
        /// Its bytes.
        bytes: u64,
        /// Bytes that it takes.
        least: u64,
    },
    /// The devices are larger than places can name.
    TooLarge {
        /// Bytes of all of them.
        bytes: u64,
    },
    /// Too few or too many chunks in memory.
    Buffers {
        /// How many.
        found: usize,
        /// The fewest that do.
        least: usize,
        /// The most.
        most: usize,
    },
    /// No memory for chunks or for reading.
    NoMemory(MempoolError),
    /// No address space for it.
    NoSpace(Errno),
    /// No random number for the checks.
    NoRandom(Errno),
}

impl fmt::Display for NewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Devices { found } => {
                write!(f, "{found} backing files; it takes 1 to {MAX_DEVICES}")
            }
            Self::TooSmall { device, bytes, least } => {
                let [bytes, least] = [bytes, least].map(|bytes| ByteSize::new(*bytes));
                write!(f, "{device} has room for {bytes} bytes; it takes at least {least}")
            }
            Self::TooLarge { bytes } => {
                let [bytes, most] = [*bytes, MAX_BYTES].map(ByteSize::new);
                write!(
                    f,
                    "the backing files have {bytes} bytes together; at most {most} can be used"
                )
            }
            Self::Buffers { found, least, most } => {
                write!(f, "{found} chunks in memory; it takes {least} to {most}")
            }
            Self::NoMemory(why) => why.fmt(f),
            Self::NoSpace(why) => {
                write!(f, "no address space for what is to be written ({})", reason(*why))
            }
            Self::NoRandom(why) => {
                write!(f, "the kernel has no random number for checks ({})", reason(*why))
            }
        }
    }
}

impl core::error::Error for NewError {}

/// Why an object was not taken. The caller keeps it; nothing of it is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// It is larger than an object may be.
    TooLong {
        /// Its bytes.
        len: usize,
        /// The most there may be.
        most: usize,
    },
    /// Every segment is in use: cleaning may make room, and freeing does.
    NoRoom,
    /// The devices take nothing at the moment; it is tried again later. What was written before is safe.
    Stopped,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { len, most } => {
                write!(f, "an object of {len} bytes; a backing file takes up to {most}")
            }
            Self::NoRoom => f.write_str("the backing files have no room; larger ones would do"),
            Self::Stopped => {
                f.write_str("the backing files take nothing now; it is tried again later")
            }
        }
    }
}

impl core::error::Error for WriteError {}

/// Why an object could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// It is not there any more: moved or freed while it was read. Whoever asks its owner knows.
    Gone,
    /// It is lost.
    Lost(Lost),
}

/// An object that cannot be had, and where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// The device it is on.
    pub device: DeviceId,
    /// The byte of the device from which on it should be.
    pub offset: u64,
    /// What is wrong.
    pub why: Fault,
}

/// What is wrong with what was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The device does not give it.
    Unreadable(Errno),
    /// The device ends before it.
    CutOff,
    /// It is something else than was written.
    Damaged,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(why) => f.write_str(reason(*why)),
            Self::CutOff => f.write_str("the file ends before it"),
            Self::Damaged => f.write_str("the checksum is wrong"),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, offset, why } = self;
        write!(f, "{device}, byte {offset}: {why}")
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the object was moved or freed meanwhile"),
            Self::Lost(lost) => lost.fmt(f),
        }
    }
}

impl core::error::Error for ReadError {}

/// A device takes no writes for a while. Told once, until it has taken one again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// Which.
    pub device: DeviceId,
    /// The byte at which a write failed.
    pub offset: u64,
    /// Why it did.
    pub why: Errno,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, offset, why } = self;
        write!(f, "{device}, byte {offset}: {}; ", reason(*why))?;
        f.write_str("nothing is lost, and writing is tried again from time to time")
    }
}
