//! What can go wrong, and what would do.

use core::fmt;
use octavo_backing::Lost;
use octavo_page::SlotId;

/// A store that cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewError {
    /// The slots cannot be of that size.
    Slots(octavo_slots::ConfigError),
    /// The pool cannot be of that size.
    Pool(octavo_pool::ConfigError),
}

impl fmt::Display for NewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slots(error) => error.fmt(f),
            Self::Pool(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for NewError {}

/// A folio that was not stored. Nothing of it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutError {
    /// A unit of it does not compress as far as asked; it is left to the caller.
    DoesNotFit,
    /// The pool got no frames for it; freeing, compacting or a larger arena would do.
    OutOfFrames,
    /// The pool has as many objects as it can name; freeing would do.
    OutOfObjects,
    /// There is no aligned run of free slots for it; freeing or a smaller folio would do.
    OutOfSlots,
}

impl fmt::Display for PutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DoesNotFit => "a unit of the folio does not compress enough; keep it as it is",
            Self::OutOfFrames => "no frames for the compressed folio; free or compact first",
            Self::OutOfObjects => "the pool holds as many objects as it can; free some first",
            Self::OutOfSlots => {
                "no aligned run of slots for the folio; free some or store less at once"
            }
        })
    }
}

impl core::error::Error for PutError {}

/// A page that was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GetError {
    /// The slot holds no page, or does not exist.
    Empty {
        /// That slot.
        slot: SlotId,
    },
    /// What is kept of the page is not what was stored: it is lost.
    Damaged {
        /// Its slot.
        slot: SlotId,
    },
    /// What was written back of the page cannot be had any more: it is lost.
    Lost {
        /// Its slot.
        slot: SlotId,
        /// Where it was, and what is wrong there.
        lost: Lost,
    },
    /// The page was declared lost before.
    Poisoned {
        /// Its slot.
        slot: SlotId,
    },
}

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { slot } => write!(f, "{slot} holds no page"),
            Self::Damaged { slot } => write!(f, "the page in {slot} is damaged and lost"),
            Self::Lost { slot, lost } => write!(f, "the page in {slot} is lost: {lost}"),
            Self::Poisoned { slot } => write!(f, "the page in {slot} was lost before"),
        }
    }
}

impl core::error::Error for GetError {}

/// An object that stays in the backing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackError {
    /// It is lost, which whoever wants its pages will be told.
    Lost(Lost),
    /// The pool has no room for it.
    NoRoom,
}

impl fmt::Display for BackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(lost) => lost.fmt(f),
            Self::NoRoom => f.write_str("the pool has no frames for it; free or compact first"),
        }
    }
}

impl core::error::Error for BackError {}
