//! What the program uses, and whether it is still in this address space.

use core::fmt::Write as _;
use core::time::Duration;
use octavo_sys::Result;
use octavo_sys::file::{Fd, Text};

/// Memory appears at 4 GB/s at most: what comes within a millisecond, in pages.
const PAGES_PER_MS: u64 = 1024;

/// Between two looks, with the limit near.
pub const NEAR: Duration = Duration::from_millis(1);

/// Between two looks, with the limit far.
pub const FAR: Duration = Duration::from_millis(20);

/// When to look again, with `left` pages left.
pub fn until_next_look(left: u64) -> Duration {
    Duration::from_millis(left / PAGES_PER_MS / 2).clamp(NEAR, FAR)
}

/// What `statm` says, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statm {
    size: u64,
    resident: u64,
    shared: u64,
    /// Mapped memory that is private and writable.
    pub data: u64,
}

impl Statm {
    fn read(from: &Fd) -> Option<Self> {
        let mut buffer = [0u8; 128];
        let n = from.read_at(&mut buffer, 0).ok()?;
        Self::parse(core::str::from_utf8(buffer.get(..n)?).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(|n| n.parse().ok());
        let mut next = || numbers.next().flatten();
        let (size, resident, shared) = (next()?, next()?, next()?);
        let (_text, _lib, data) = (next()?, next()?, next()?);
        Some(Self { size, resident, shared, data })
    }

    /// Resident anonymous pages.
    #[must_use]
    pub const fn anonymous(self) -> u64 {
        self.resident.saturating_sub(self.shared)
    }
}

/// Looks at a program.
#[derive(Debug)]
pub struct Presence {
    ours: Fd,
    theirs: Fd,
    /// Looks in a row that found another address space.
    strangers: u32,
}

impl Presence {
    /// Looks at the program `target`.
    ///
    /// # Errors
    /// As of `openat(2)` in `/proc`.
    pub fn new(target: i32) -> Result<Self> {
        let mut path = Text::<64>::new();
        let _ = write!(path, "/proc/{target}/statm");
        let theirs = Fd::open(path.as_c_str().unwrap_or(c""))?;
        Ok(Self { ours: Fd::open(c"/proc/self/statm")?, theirs, strangers: 0 })
    }

    /// What this address space uses.
    pub fn look(&mut self) -> Option<Statm> {
        let ours = Statm::read(&self.ours)?;
        // Zeros are no proof of an end: so it looks when only the first thread has ended.
        let same = Statm::read(&self.theirs).is_none_or(|t| t.size == ours.size || t.size == 0);
        self.strangers = if same { 0 } else { self.strangers + 1 };
        Some(ours)
    }

    /// Whether the program has another address space since exec.
    #[must_use]
    pub const fn is_elsewhere(&self) -> bool {
        self.strangers > 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statm_is_read() {
        let statm = Statm::parse("2741 1045 900 26 0 311 0\n").expect("a statm");
        assert_eq!((statm.size, statm.anonymous(), statm.data), (2741, 145, 311));
        assert_eq!(Statm::parse("1 2"), None);
    }
}
