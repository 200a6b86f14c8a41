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

/// A program that does not grow is looked at so many milliseconds later, at most.
const CALM: u64 = 4;

/// Where something has to be made before the limit is near, it is looked for so soon, in milliseconds.
const SOON: u64 = 8;

/// So many looks in a row prove that the program is elsewhere.
const SURELY: u32 = 100;

/// When to look again.
#[derive(Debug, Default)]
struct Pace {
    /// Pages that were left, pages that the program used, and when.
    left: u64,
    used: u64,
    at: Duration,
}

impl Pace {
    /// With `left` pages left `now`, `step` of them until something is to be done about it, and `used` ones used by
    /// the program: before half of what is left can be gone, and soon where half of the step can be. A program that
    /// does not grow is given a little more; and where pages go fast, it is before a quarter of them is gone.
    fn until_next_look(&mut self, used: u64, left: u64, step: u64, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at).as_millis().max(1) as u64;
        let speed = self.left.saturating_sub(left) / passed;
        let half = |pages: u64| pages / PAGES_PER_MS / 2;
        let calm = if used == self.used { half(left).min(CALM) } else { 0 };
        *self = Self { left, used, at: now };
        let time = (half(left) + calm).min(half(step).max(SOON)).min(left / (4 * speed).max(1));
        Duration::from_millis(time).clamp(NEAR, FAR)
    }
}

/// What a look at the program found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Pages that it uses.
    pub used: u64,
    /// Pages of the store that count elsewhere.
    pub store_elsewhere: u64,
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
    pace: Pace,
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
            pace: Pace::default(),
        })
    }

    /// What this address space uses, of whose process `member` is the place in `ledger`; `owned` pages so
    /// far were made its own by us, and `shared_store` counts those of the store that others have too.
    pub fn look(
        &mut self,
        ledger: &Ledger,
        member: &Member,
        owned: u64,
        shared_store: impl Fn() -> u64,
    ) -> Option<Look> {
        let populated = populate::begin_look();
        let ours = self.compare()?;
        let resident = ours.anonymous();
        let used = self.sharing.used_of(resident, ledger, member, owned, shared_store);
        let store_elsewhere = self.sharing.store_elsewhere();
        Some(Look { used, store_elsewhere, data: ours.data, populated })
    }

    /// When to look again, after one that found `used` pages used, with `left` pages left and `step` until something
    /// is to be done about it.
    pub fn until_next_look(&mut self, used: u64, left: u64, step: u64) -> Duration {
        self.pace.until_next_look(used, left, step, task::now())
    }

    /// Whether the program has forked lately, or was forked: its children may come and go between two looks.
    pub(crate) fn has_forked(&self) -> bool {
        self.sharing.has_forked()
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 256;

    /// Milliseconds to the next look, with `left` MiB left, after one `ago` ms ago that found `before` MiB left.
    fn pause(before: u64, left: u64, step: u64, grown: u64, ago: u64) -> u64 {
        let mut pace = Pace { left: before * MIB, used: 100, at: Duration::from_secs(1) };
        let now = Duration::from_secs(1) + Duration::from_millis(ago);
        let pause = pace.until_next_look(100 + grown, left * MIB, step * MIB, now);
        assert_eq!((pace.left, pace.used, pace.at), (left * MIB, 100 + grown, now));
        u64::try_from(pause.as_millis()).expect("milliseconds")
    }

    #[test]
    fn the_sooner_the_less_is_left() {
        let at = |left| pause(left, left, left, 1, 5);
        assert_eq!([0, 8, 24, 96, 160, 1024].map(at), [1, 1, 3, 12, 20, 20]);
    }

    #[test]
    fn a_little_later_where_it_does_not_grow() {
        assert_eq!(
            [0, 8, 24, 96, 160].map(|left| pause(left, left, left, 0, 5)),
            [1, 2, 6, 12, 20]
        );
    }

    #[test]
    fn soon_where_something_is_to_be_made_first() {
        assert_eq!(
            [(24, 2), (96, 40), (96, 80), (500, 30)]
                .map(|(left, step)| pause(left, left, step, 1, 5)),
            [3, 8, 10, 8]
        );
    }

    #[test]
    fn sooner_where_memory_goes_fast_whoever_takes_it() {
        // 4 MiB a millisecond: 48 MiB are gone in 12.
        assert_eq!([0, 1].map(|grown| pause(88, 48, 48, grown, 10)), [3, 3]);
        // 1 MiB a millisecond: 48 MiB are gone in 48.
        assert_eq!([0, 1].map(|grown| pause(58, 48, 48, grown, 10)), [8, 6]);
        // More is left than was.
        assert_eq!(pause(10, 48, 48, 1, 10), 6);
    }
}
