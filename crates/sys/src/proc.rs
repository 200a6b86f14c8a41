//! What `/proc` tells of a process, in numbers.
//!
//! A program may leave the root directory it had (`chroot`), and its forked children's helpers begin without a
//! `/proc`. So a helper keeps the directory open, and a child's helper takes it from its parent's.

use crate::file::{Fd, Text};
use crate::{Errno, Result, task};
use core::fmt::{Display, Write as _};
use core::mem::ManuallyDrop;
use core::str::{self, FromStr};
use core::sync::atomic::{AtomicI32, Ordering};

/// The number of `/proc` in the table of [`KEEPER`], and of helpers to come in forked children; -1 before the first.
static DIRECTORY: AtomicI32 = AtomicI32::new(-1);

/// The process that has it open. Any other, which is the program or a child before it has a helper, goes by the path.
static KEEPER: AtomicI32 = AtomicI32::new(0);

/// Keeps `/proc` open from now on in the calling process: that of process `parent`, which keeps it, if that can be
/// had.
pub fn keep(parent: Option<i32>) {
    let number = DIRECTORY.load(Ordering::Acquire);
    let theirs = |parent| task::borrow_fd(&task::pidfd(parent)?, number);
    let inherited = parent.and_then(|parent| theirs(parent).ok());
    let Some(found) = inherited.or_else(|| Fd::open_directory(c"/proc").ok()) else { return };
    if number < 0 {
        DIRECTORY.store(found.leak(), Ordering::Release);
    } else if ManuallyDrop::new(Fd::own(number)).become_like(found).is_err() {
        return;
    }
    KEEPER.store(task::pid(), Ordering::Release);
}

/// Opens `/proc/PROCESS/NAME`; `self` is the calling process.
///
/// # Errors
/// As of `openat(2)`.
pub fn open(process: impl Display, name: impl Display) -> Result<Fd> {
    let keeps = KEEPER.load(Ordering::Acquire) == task::pid();
    let mut path = Text::<64>::new();
    let _ = write!(path, "{}{process}/{name}", if keeps { "" } else { "/proc/" });
    // For a path from the root on, the directory is none that matters.
    Fd::open_in(DIRECTORY.load(Ordering::Acquire), path.as_c_str().ok_or(Errno::ENAMETOOLONG)?)
}

/// All that `from` tells now, as far as it fits.
fn text<'a>(from: &Fd, buffer: &'a mut [u8]) -> Option<&'a str> {
    let n = from.read_at(buffer, 0).ok()?;
    str::from_utf8(buffer.get(..n)?).ok()
}

/// Fields of `/proc/PID/stat`, by their numbers in `proc_pid_stat(5)`.
#[derive(Clone, Copy, Debug)]
pub enum Stat {
    /// What it does, as a letter: `R` runs or could, `S` sleeps, `D` waits for the kernel itself.
    State = 3,
    /// Faults that were answered without waiting.
    MinorFaults = 10,
    /// Time spent in user mode, in ticks of 10 ms.
    UserTime = 14,
    /// And in the kernel.
    SystemTime = 15,
    /// The CPU last run on.
    Cpu = 39,
}

impl Stat {
    /// This field of the open `stat`.
    #[must_use]
    pub fn read<T: FromStr>(self, stat: &Fd) -> Option<T> {
        let mut buffer = [0; 1024];
        self.find(text(stat, &mut buffer)?)
    }

    /// This field of a thread now; `None` where there is no such thread.
    #[must_use]
    pub fn of_thread<T: FromStr>(self, process: i32, thread: u32) -> Option<T> {
        self.read(&open(process, format_args!("task/{thread}/stat")).ok()?)
    }

    fn find<T: FromStr>(self, text: &str) -> Option<T> {
        // The name, which is the second, may hold anything.
        let (_, behind) = text.rsplit_once(')')?;
        behind.split_ascii_whitespace().nth(self as usize - 3)?.parse().ok()
    }
}

/// What `look` says of the function of the kernel that a thread waits in, as `/proc/PID/wchan` names it: `0` for none,
/// and where that is not told. `None` where there is no such thread.
#[must_use]
pub fn waits_in<R>(process: i32, thread: u32, look: impl FnOnce(&[u8]) -> Option<R>) -> Option<R> {
    let mut name = [0; 64];
    let place = open(process, format_args!("task/{thread}/wchan")).ok()?;
    let read = place.read(&mut name).ok()?;
    look(&name[..read])
}

/// What `statm` says, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statm {
    /// Mapped.
    pub size: u64,
    resident: u64,
    shared: u64,
    /// Mapped memory that is private and writable.
    pub data: u64,
}

impl Statm {
    /// The `statm` of the calling process.
    ///
    /// # Errors
    /// As of `openat(2)`.
    pub fn open() -> Result<Fd> {
        self::open("self", "statm")
    }

    /// What the open `statm` says now.
    #[must_use]
    pub fn read(statm: &Fd) -> Option<Self> {
        Self::parse(text(statm, &mut [0; 128])?)
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

/// Bytes of anonymous memory, as `smaps_rollup` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rollup {
    /// Resident.
    pub anonymous: u64,
    /// The same, of each page the part that falls to one of those who have it.
    pub part: u64,
    /// Resident memory that others have too and that was written: anonymous, but for what is mapped shared.
    pub shared: u64,
}

impl Rollup {
    /// What the open `smaps_rollup` says now; `None` from a kernel that does not tell (before 5.9).
    #[must_use]
    pub fn read(rollup: &Fd) -> Option<Self> {
        Self::parse(text(rollup, &mut [0; 2048])?)
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = |name| Some(kilobytes(text, name)? * 1024);
        let (anonymous, part) = (bytes("Anonymous:")?, bytes("Pss_Anon:")?);
        Some(Self { anonymous, part, shared: bytes("Shared_Dirty:")? })
    }
}

/// The number that a line of `text` has behind `name`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
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

    #[test]
    fn lines_are_found_by_their_whole_name() {
        let text = "Pss:  9 kB\nPss_Anon:    12 kB\nShared_Dirty: 30 kB\nAnonymous:     40 kB\n";
        let rollup = Rollup { anonymous: 40 << 10, part: 12 << 10, shared: 30 << 10 };
        assert_eq!(Rollup::parse(text), Some(rollup));
        assert_eq!(Rollup::parse("Pss:  9 kB\n"), None);
    }

    #[test]
    fn fields_are_counted_behind_a_name_of_any_shape() {
        let text = "7 (a) b) (c) S 4 5 6 7 8 9 10 11 12";
        assert_eq!(Stat::MinorFaults.find(text), Some(10));
        assert_eq!(Stat::Cpu.find::<u64>(text), None);
    }
}
