//! What the program uses, and whether it is still in this address space.

use crate::populate;
use crate::sharing::Sharing;
use core::time::Duration;
use octavo_ledger::{Ledger, Member};
use octavo_sys::Result;
use octavo_sys::file::Fd;
use octavo_sys::proc::{self, Statm};

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
            ours: Statm::open()?,
            theirs: proc::open(target, "statm")?,
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
        // Zeros are no proof of an end: so it looks when only the first thread has ended.
        let same = Statm::read(&self.theirs).is_none_or(|t| t.size == ours.size || t.size == 0);
        self.strangers = if same { 0 } else { self.strangers + 1 };
        Some(ours)
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
        self.strangers > 3
    }
}
