//! What the program uses, and whether it is still in this address space.
//!
//! Resident anonymous pages are counted at every look. After a fork many of them are another process's
//! as well, and are to be counted once: the kernel knows each process's part (`Pss_Anon`), but walks all
//! pages to tell it. So it is asked seldom, and between two answers each minor fault counts as a page
//! that has become the program's own.
//!
//! ```text
//!   used = resident - shared elsewhere       at a fork: half of what is one's own, on both sides
//!                                            asked: resident - part, now and then
//!                                            each minor fault since: one page less
//!                                            each page that others have made their own: half a page
//!                                            another process has ended: asked
//! ```

use core::fmt::Write as _;
use core::time::Duration;
use octavo_ledger::{Ledger, Member};
use octavo_page::PAGE_SIZE;
use octavo_page::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use octavo_sys::file::{Fd, Text};
use octavo_sys::{Result, task};

/// Whether the program may have pages that another process has too.
static SHARES: AtomicBool = AtomicBool::new(false);

/// Forks so far, the one that made this process included.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Notes that a fork has made pages be two processes'; called in both.
pub(crate) fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    SHARES.store(true, Ordering::Release);
}

/// Whether the program may have pages that another process has too.
#[must_use]
pub fn shares() -> bool {
    SHARES.load(Ordering::Relaxed)
}

/// Pages that are shared elsewhere and are not worth counting.
const FEW: u64 = (1 << 20) / PAGE_SIZE as u64;

/// The kernel is asked at most so often, and for these shares of the time: while little changes, and
/// when much may have.
const ASKED: Duration = Duration::from_millis(20);
const ASKING: u32 = 20;
const ASKING_MUCH: u32 = 4;

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

/// What a look at the program found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Pages that it uses.
    pub used: u64,
    /// Pages of mapped memory that is private and writable.
    pub data: u64,
}

/// Looks at a program.
#[derive(Debug)]
pub struct Presence {
    ours: Fd,
    theirs: Fd,
    sharing: Sharing,
    /// Looks in a row that found another address space.
    strangers: u32,
}

impl Presence {
    /// Looks at the program `target`.
    ///
    /// # Errors
    /// As of `openat(2)` in `/proc`.
    pub fn new(target: i32) -> Result<Self> {
        Ok(Self {
            ours: Fd::open(c"/proc/self/statm")?,
            theirs: open_of(target, "statm")?,
            sharing: Sharing {
                parts: Fd::open(c"/proc/self/smaps_rollup")?,
                faults: open_of(target, "stat")?,
                forks: 0,
                elsewhere: 0,
                then: Changes::default(),
                asked_at: Duration::ZERO,
                cost: Duration::ZERO,
            },
            strangers: 0,
        })
    }

    /// What this address space uses, of whose process `member` is the place in `ledger`; `owned` pages so
    /// far were made its own by us.
    pub fn look(&mut self, ledger: &Ledger, member: &Member, owned: u64) -> Option<Look> {
        let ours = Statm::read(&self.ours)?;
        // Zeros are no proof of an end: so it looks when only the first thread has ended.
        let same = Statm::read(&self.theirs).is_none_or(|t| t.size == ours.size || t.size == 0);
        self.strangers = if same { 0 } else { self.strangers + 1 };
        let resident = ours.anonymous();
        let elsewhere = if shares() {
            let own = self.sharing.minor_faults() + owned;
            member.note_unshared(own);
            let changes =
                Changes { own, others: ledger.unshared_beside(member), left: ledger.left() };
            self.sharing.look(resident, changes)
        } else {
            0
        };
        Some(Look { used: resident.saturating_sub(elsewhere), data: ours.data })
    }

    /// Whether the program has another address space since exec.
    #[must_use]
    pub const fn is_elsewhere(&self) -> bool {
        self.strangers > 3
    }
}

/// Opens `/proc/TARGET/NAME`.
fn open_of(target: i32, name: &str) -> Result<Fd> {
    let mut path = Text::<64>::new();
    let _ = write!(path, "/proc/{target}/{name}");
    Fd::open(path.as_c_str().unwrap_or(c""))
}

/// How much of what is resident is to be counted elsewhere.
#[derive(Debug)]
struct Sharing {
    parts: Fd,
    faults: Fd,
    /// Forks that are reckoned with.
    forks: u32,
    /// Pages, as the kernel said, and what was counted then.
    elsewhere: u64,
    then: Changes,
    asked_at: Duration,
    cost: Duration,
}

/// What has changed since a process began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Changes {
    /// Pages that became the process's own.
    own: u64,
    /// Pages that became others' own.
    others: u64,
    /// Processes that have ended.
    left: u64,
}

impl Sharing {
    /// Pages that are to be counted elsewhere.
    fn look(&mut self, resident: u64, now: Changes) -> u64 {
        let forks = FORKS.load(Ordering::Relaxed);
        if core::mem::replace(&mut self.forks, forks) != forks {
            let elsewhere = self.estimate(now);
            self.elsewhere = elsewhere + resident.saturating_sub(elsewhere) / 2;
            (self.then, self.asked_at) = (now, task::now());
        } else if self.is_due(now)
            && let Some(elsewhere) = self.ask()
        {
            (self.elsewhere, self.then) = (elsewhere, now);
            if elsewhere < FEW {
                SHARES.store(false, Ordering::Relaxed);
            }
        }
        self.estimate(now)
    }

    fn estimate(&self, now: Changes) -> u64 {
        let own = now.own.saturating_sub(self.then.own);
        let others = now.others.saturating_sub(self.then.others);
        self.elsewhere.saturating_sub(own + others / 2)
    }

    fn is_due(&self, now: Changes) -> bool {
        let much = now.left != self.then.left || self.elsewhere - self.estimate(now) > 4 * FEW;
        let times = if much { ASKING_MUCH } else { ASKING };
        task::now().saturating_sub(self.asked_at) > ASKED.max(self.cost * times)
    }

    /// Asks the kernel; `None` from one that does not tell.
    fn ask(&mut self) -> Option<u64> {
        let mut buffer = [0u8; 2048];
        let begin = task::now();
        let n = self.parts.read_at(&mut buffer, 0).ok()?;
        self.asked_at = task::now();
        self.cost = self.asked_at.saturating_sub(begin);
        let text = core::str::from_utf8(buffer.get(..n)?).ok()?;
        let (all, part) = (kilobytes(text, "Anonymous:")?, kilobytes(text, "Pss_Anon:")?);
        Some(all.saturating_sub(part) * 1024 / PAGE_SIZE as u64)
    }

    fn minor_faults(&self) -> u64 {
        /// Its place in `/proc/PID/stat`, counted behind the name.
        const FIELD: usize = 10 - 3;
        let mut buffer = [0u8; 512];
        let n = self.faults.read_at(&mut buffer, 0).unwrap_or(0);
        let text = core::str::from_utf8(&buffer[..n]).unwrap_or("");
        let behind = text.rsplit_once(')').map_or("", |(_, behind)| behind);
        behind.split_ascii_whitespace().nth(FIELD).and_then(|n| n.parse().ok()).unwrap_or(0)
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
        let text = "Pss:  9 kB\nPss_Anon:    12 kB\nAnonymous:     40 kB\n";
        assert_eq!(kilobytes(text, "Anonymous:"), Some(40));
        assert_eq!(kilobytes(text, "Pss_Anon:"), Some(12));
        assert_eq!(kilobytes(text, "Swap:"), None);
    }
}
