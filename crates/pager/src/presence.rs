//! What the program uses, and whether it is still in this address space.
//!
//! After exec it is not. The kernel tells by `kcmp`. Where it does not, the sizes of both are compared, again and
//! again: while the program maps and unmaps, one space has two sizes at two moments.

use crate::populate;
use crate::sharing::Sharing;
use core::time::Duration;
use octavo_ledger::{Ledger, Member};
use octavo_sys::Result;
use octavo_sys::file::Fd;
use octavo_sys::proc::{self, Statm};
use octavo_sys::task;

/// Memory appears at 4 GB/s at most: what comes within a millisecond, in pages.
const PAGES_PER_MS: u64 = 1024;

/// Between two looks, with the limit near.
pub const NEAR: Duration = Duration::from_millis(1);

/// Between two looks, with the limit far.
pub const FAR: Duration = Duration::from_millis(20);

/// So many looks in a row prove that the program is elsewhere.
const SURELY: u32 = 100;

/// When to look again, with `left` pages left.
pub fn until_next_look(left: u64) -> Duration {
    Duration::from_millis(left / PAGES_PER_MS / 2).clamp(NEAR, FAR)
}

/// What a look at the program found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Pages that it uses.
    pub used: u64,
    /// Pages of mapped memory that is private and writable.
    pub data: u64,
    /// Pages that had been brought at once when it began.
    pub populated: u64,
}

/// Looks at a program.
#[derive(Debug)]
pub struct Presence {
    ours: Fd,
    theirs: Fd,
    target: i32,
    sharing: Sharing,
    /// Looks in a row that seemed to find another address space.
    strangers: u32,
}

impl Presence {
    /// Looks at the program `target`.
    ///
    /// # Errors
    /// As of `openat(2)` in `/proc`.
    pub fn new(target: i32) -> Result<Self> {
        Ok(Self {
            ours: Statm::open()?,
            theirs: proc::open(target, "statm")?,
            target,
            sharing: Sharing::new(target)?,
            strangers: 0,
        })
    }

    /// What this address space uses, of whose process `member` is the place in `ledger`; `owned` pages so
    /// far were made its own by us.
    pub fn look(&mut self, ledger: &Ledger, member: &Member, owned: u64) -> Option<Look> {
        let populated = populate::begin_look();
        let ours = self.compare()?;
        let resident = ours.anonymous();
        let used = self.sharing.used_of(resident, ledger, member, owned);
        Some(Look { used, data: ours.data, populated })
    }

    /// Tells others what the last look found of what is shared with them; false, without that, when it does
    /// not hold any more.
    pub(crate) fn tell(&self, member: &Member) -> bool {
        let holds = self.sharing.is_current();
        if holds {
            self.sharing.tell(member);
        }
        holds
    }

    /// Looks at ours, and whether it is the program's.
    fn compare(&mut self) -> Option<Statm> {
        let ours = Statm::read(&self.ours)?;
        self.strangers = match task::shares_memory_with(self.target) {
            Ok(true) => 0,
            // So it is too when only the first thread has ended: then it is in no other.
            Ok(false) if self.size_of_theirs().is_some() => SURELY,
            Err(_) if self.seems_elsewhere(&ours) => self.strangers + 1,
            _ => 0,
        };
        Some(ours)
    }

    /// The size of the program's address space; `None` where it has none, or that cannot be known.
    fn size_of_theirs(&self) -> Option<u64> {
        Statm::read(&self.theirs).map(|theirs| theirs.size).filter(|size| *size > 0)
    }

    /// Whether the program's address space has another size than `ours`, which has that before and after.
    fn seems_elsewhere(&self, ours: &Statm) -> bool {
        let theirs = self.size_of_theirs();
        let stayed = Statm::read(&self.ours).is_some_and(|now| now.size == ours.size);
        stayed && theirs.is_some_and(|size| size != ours.size)
    }

    /// Whether the program is still in this address space; looks until that is sure.
    pub fn is_here(&mut self) -> bool {
        while self.compare().is_some() && self.strangers > 0 {
            if self.is_elsewhere() {
                return false;
            }
        }
        true
    }

    /// Whether the program has another address space since exec.
    #[must_use]
    pub const fn is_elsewhere(&self) -> bool {
        self.strangers >= SURELY
    }
}
