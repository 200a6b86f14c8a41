//! What lies under a backing: the seam where tests put something that fails.
//!
//! Writes are begun, and reaped when they have ended, so that a disk works while the next chunk is filled.
//! A device that cannot do that writes at once, and keeps the outcome until it is asked for.

use core::fmt;
use core::ops::Range;
use octavo_mempool::Page;
use octavo_sys::Errno;

/// The number of a device, in the order in which they were named.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(pub(crate) u8);

impl DeviceId {
    /// Its number, from 0 on.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backing file {}", self.0)
    }
}

/// Devices of a backing at most.
pub const MAX_DEVICES: usize = 32;

/// Writes that are under way on one device at most.
pub const MAX_UNDER_WAY: usize = 64;

/// Tells the writes that are under way apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag(pub(crate) u8);

impl Tag {
    /// Its number, below [`MAX_UNDER_WAY`].
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// The tag with this number.
    #[must_use]
    pub const fn new(n: usize) -> Option<Self> {
        if n < MAX_UNDER_WAY { Some(Self(n as u8)) } else { None }
    }
}

/// What a transfer came to: bytes, perhaps fewer than asked for, or why there are none.
pub type Transfer = Result<usize, Errno>;

/// How a device does its work, for statistics.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ways {
    /// Transfers pass the page cache by.
    pub direct: bool,
    /// Writes go on by themselves, through a ring.
    pub ring: bool,
    /// The ring knows the memory that it writes from.
    pub registered: bool,
    /// Holes can be made.
    pub holes: bool,
}

/// Blocks that are kept. Offsets and lengths are whole sectors of 4 KiB.
pub trait Device: Sync {
    /// Bytes it has room for.
    fn bytes(&self) -> u64;

    /// Says where the pages of all writes will lie, before the first.
    fn adopt(&self, memory: Range<usize>);

    /// Begins to write pages to `offset`; the outcome is told by [`reap`](Self::reap). The pages stay what
    /// and where they are until then. No other write of this tag is under way, and none to a sector that
    /// another is under way to.
    fn write(&self, tag: Tag, offset: u64, pages: &[Option<Page>]);

    /// The outcome of a write that has ended; `None` when none has, and with `wait` only when none is
    /// under way.
    fn reap(&self, wait: bool) -> Option<(Tag, Transfer)>;

    /// Reads into pages from `offset` on; 0 bytes are the end.
    ///
    /// # Errors
    /// As the device has them.
    fn read(&self, offset: u64, pages: &mut [Option<Page>]) -> Transfer;

    /// Gives back the room of `len` bytes from `offset` on, of which nothing is read before it is written
    /// again.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where that does not go; nothing depends on it.
    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno>;

    /// How it does its work.
    fn ways(&self) -> Ways;
}
