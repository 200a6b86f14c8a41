//! What of the program's memory is another process's as well, since a fork.
//!
//! Such pages are to be counted once: the kernel knows each process's part (`Pss_Anon`), but walks all
//! pages to tell it. So it is asked seldom, and between two answers the part is estimated from what is
//! cheap to know.
//!
//! ```text
//!   used = resident - elsewhere
//!
//!   a fork        in the parent everything counts on, until the child says that it counts half of it;
//!                 what the parent makes its own meanwhile is more than there was
//!   asked         elsewhere = resident - part
//!   since then    a page of one's own, by a minor fault or by us: less is elsewhere
//!                 a page that others have made their own: likewise
//!                 another process has ended: ask; until then the ledger counts what it left
//! ```
//! Of a page that several processes have, each counts a part, `w`, and all parts are 1. Who makes it his
//! own counts `1 - w` more, and the others `w` between them, each after its own part: `w/(1 - w)` of it.
//! So this is what a process tells the others of each such page. Its `w` is the mean over what it shares:
//! what is counted here of that, when the kernel was asked, and half of it after a fork.

use core::time::Duration;
use octavo_ledger::{Ledger, Member};
use octavo_page::PAGE_SIZE;
use octavo_page::sync::Mutex;
use octavo_page::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use octavo_sys::file::Fd;
use octavo_sys::proc::{self, Rollup, Stat};
use octavo_sys::{Result, task};

/// How often pages became two processes' since the kernel said that hardly any are; 0 when none may be. Only the
/// watch sets it to 0, and only where no fork came since it asked.
static SHARES: AtomicU32 = AtomicU32::new(0);

/// Forks after which the child is to count its part.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Children of those that do, or never will.
static COME: AtomicU32 = AtomicU32::new(0);

/// Pages that are elsewhere, as the last look estimated; a child begins with what its parent had.
static ELSEWHERE: AtomicI64 = AtomicI64::new(0);

/// Pages that are counted here and will be elsewhere when children have come.
static PENDING: AtomicI64 = AtomicI64::new(0);

/// Pages of the program that others have too, and what is counted of them here, as was last known.
static SHARED: AtomicU64 = AtomicU64::new(0);
static SHARED_PART: AtomicU64 = AtomicU64::new(0);

/// Locked by who says in the ledger what this process uses, and by who notes that a child has come.
pub(crate) static TELLING: Mutex<()> = Mutex::new(());

/// Whether the program may have pages that another process has too.
#[must_use]
pub fn shares() -> bool {
    SHARES.load(Ordering::Relaxed) > 0
}

/// Pages that this process has together with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shared {
    /// All of them.
    pub pages: u64,
    /// What is counted here: of a page that `k` processes have, `1/k`.
    pub part: u64,
}

/// What this process had together with others when the kernel was asked last; `None` before that.
pub(crate) fn shared() -> Option<Shared> {
    let [pages, part] = [&SHARED, &SHARED_PART].map(|word| word.load(Ordering::Relaxed));
    (shares() && pages > 0).then_some(Shared { pages, part })
}

/// Notes that a fork has made pages be two processes', which are all counted here so far.
pub(crate) fn note_shared() {
    SHARES.fetch_add(1, Ordering::Release);
}

/// As [`note_shared`]; [`note_come`] follows.
pub(crate) fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    note_shared();
}

/// Forks of those that are reckoned with in [`PENDING`].
static PENDING_FORKS: AtomicU32 = AtomicU32::new(0);

/// Pages, of `used` ones, that a child which is about to come will count.
pub(crate) fn part_of_child(used: u64) -> i64 {
    if PENDING_FORKS.load(Ordering::Acquire) == FORKS.load(Ordering::Relaxed) {
        PENDING.load(Ordering::Relaxed)
    } else {
        used as i64 / 2
    }
}

/// Notes that a child counts its part from now on, or is one of whom nobody will.
pub(crate) fn note_come() {
    COME.fetch_add(1, Ordering::Release);
}

/// In a forked child: half of what was its parent's part is its own.
pub(crate) fn be_child() {
    FORKS.store(1, Ordering::Relaxed);
    COME.store(1, Ordering::Relaxed);
    PENDING_FORKS.store(0, Ordering::Relaxed);
    note_shared();
}

/// Pages that are shared elsewhere and are not worth counting.
const FEW: u64 = (1 << 20) / PAGE_SIZE as u64;

/// The kernel is asked at most so often, and for these shares of the time: while little changes, and
/// when much may have.
const ASKED: Duration = Duration::from_millis(20);
const ASKING: u32 = 20;
const ASKING_MUCH: u32 = 4;

/// Who forked so lately may fork all the while: when its child has ended all is its own, and it has until the next
/// fork to give some of that.
const LATELY: Duration = Duration::from_millis(100);

/// Looked at is it at most so often then where it has nothing to give, and the kernel asked when a process has ended.
pub(crate) const ASKED_THEN: Duration = Duration::from_millis(4);

/// When nothing has changed that we know of; who shares with us may not be managed.
const ASKED_ANYHOW: Duration = Duration::from_secs(1);

/// A child has this long to come.
const PATIENCE: Duration = Duration::from_secs(1);

/// What has changed since a process began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Changes {
    /// Pages that became the process's own.
    own: u64,
    /// What others told of pages that became theirs: this much of its part each process counts more, in
    /// [`ONE`]s.
    others: u64,
    /// Processes that have ended.
    left: u64,
}

/// Parts of one.
const ONE: i64 = 1024;

/// How many pages are elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Estimate {
    /// Pages that others have too and pages elsewhere, as was last known, and what had changed by then.
    shared: i64,
    elsewhere: i64,
    then: Changes,
    /// Pages that will be elsewhere when children have come.
    pending: i64,
}

impl Estimate {
    /// What is known now for sure.
    const fn know(&mut self, shared: i64, elsewhere: i64, now: Changes) {
        (self.shared, self.elsewhere, self.then) = (shared, elsewhere, now);
    }

    /// There was a fork, with this many pages resident.
    fn fork(&mut self, resident: i64, now: Changes) {
        self.know(resident, self.at(now), now);
        self.pending += (resident - self.elsewhere - self.pending).max(0) / 2;
    }

    /// The children have come.
    fn come(&mut self, now: Changes) {
        let elsewhere = self.at(now) + core::mem::take(&mut self.pending);
        self.know(self.shared, elsewhere, now);
    }

    /// What counts here of a page that others have too, in [`ONE`]s: half of it at most.
    fn part(&self) -> i64 {
        (ONE - self.elsewhere * ONE / self.shared.max(1)).clamp(1, ONE / 2)
    }

    /// What to tell the others of a page that became this process's own: see [`Changes::others`].
    fn told(&self) -> i64 {
        self.part() * ONE / (ONE - self.part())
    }

    /// Pages elsewhere; fewer than none where more is used than is resident here.
    fn at(&self, now: Changes) -> i64 {
        let own = now.own.saturating_sub(self.then.own) as i64;
        let others = now.others.saturating_sub(self.then.others) as i64;
        if self.pending > 0 {
            return self.elsewhere - own;
        }
        let part = self.part();
        (self.elsewhere - (own * (ONE - part) + others * part / ONE) / ONE).max(0)
    }
}

/// How much of what is resident is counted elsewhere.
#[derive(Debug)]
pub(crate) struct Sharing {
    rollup: Fd,
    stat: Fd,
    estimate: Estimate,
    /// Pages of the store that are elsewhere, as was last known.
    store_elsewhere: u64,
    /// Pages that had become its own at the last look, if it shared any then.
    own: Option<u64>,
    /// What the others are told of pages that became its own while it shared some.
    unshared: u64,
    /// Forks, and children that have come, that are reckoned with.
    forks: u32,
    come: u32,
    forked_at: Duration,
    asked_at: Duration,
    /// Processes that had ended when the kernel was asked.
    asked_left: u64,
    cost: Duration,
}

impl Sharing {
    /// What the program `target` shares, which is in this address space.
    ///
    /// # Errors
    /// As of `openat(2)` in `/proc`.
    pub fn new(target: i32) -> Result<Self> {
        Ok(Self {
            rollup: proc::open("self", "smaps_rollup")?,
            stat: proc::open(target, "stat")?,
            estimate: Estimate::default(),
            store_elsewhere: 0,
            own: None,
            unshared: 0,
            forks: 0,
            come: 0,
            forked_at: Duration::ZERO,
            asked_at: Duration::ZERO,
            asked_left: 0,
            cost: Duration::ZERO,
        })
    }

    /// Pages that the program uses, of `resident` ones. `owned` pages so far were made its own by us;
    /// `shared_store` counts those of the store that others have too.
    pub fn used_of(
        &mut self,
        resident: u64,
        ledger: &Ledger,
        member: &Member,
        owned: u64,
        shared_store: impl Fn() -> u64,
    ) -> u64 {
        let elsewhere = if shares() && resident > FEW {
            let own = Stat::MinorFaults.read::<u64>(&self.stat).unwrap_or(0) + owned;
            let others = ledger.unshared_beside(member);
            let now = Changes { own, others, left: ledger.left() };
            // What became its own while nothing was shared concerns nobody.
            let before = self.own.replace(own).unwrap_or_else(|| {
                let inherited = ELSEWHERE.load(Ordering::Relaxed);
                self.estimate.know(resident as i64, inherited, now);
                own
            });
            self.unshared += own.saturating_sub(before) * self.estimate.told() as u64;
            self.look(resident, now, shared_store)
        } else {
            self.come = COME.load(Ordering::Acquire);
            (self.own, self.store_elsewhere) = (None, 0);
            0
        };
        ELSEWHERE.store(elsewhere, Ordering::Relaxed);
        PENDING.store(self.estimate.pending, Ordering::Relaxed);
        PENDING_FORKS.store(self.forks, Ordering::Release);
        resident.saturating_add_signed(-elsewhere)
    }

    /// Pages of the store that are elsewhere.
    pub const fn store_elsewhere(&self) -> u64 {
        self.store_elsewhere
    }

    /// Tells the others what the last look found.
    pub fn tell(&self, member: &Member) {
        member.note_unshared(self.unshared);
        let elsewhere = ELSEWHERE.load(Ordering::Relaxed);
        member.note_common(u64::try_from(elsewhere).unwrap_or(0), self.asked_left);
    }

    /// Whether it has forked lately, or was forked.
    pub fn has_forked(&self) -> bool {
        task::now().saturating_sub(self.forked_at) < LATELY
    }

    /// Whether no child has come since the last look.
    pub fn is_current(&self) -> bool {
        self.come == COME.load(Ordering::Acquire)
    }

    fn look(&mut self, resident: u64, now: Changes, shared_store: impl Fn() -> u64) -> i64 {
        let shares = SHARES.load(Ordering::Acquire);
        let (come, forks) = (COME.load(Ordering::Acquire), FORKS.load(Ordering::Relaxed));
        if core::mem::replace(&mut self.forks, forks) != forks {
            if self.has_somebody_ended(now) {
                // Most likely a child of the forks before, and all it had in common is ours again. Who forks faster
                // than the kernel is asked would have less and less, and nothing to give.
                self.estimate.know(resident as i64, 0, now);
            }
            self.estimate.fork(resident as i64, now);
            self.forked_at = task::now();
        }
        if core::mem::replace(&mut self.come, come) != come {
            self.estimate.come(now);
            self.part_store(shared_store());
            // What is known now is about as good as asked, unless somebody has ended since.
            if !self.has_somebody_ended(now) {
                self.asked_at = task::now();
            }
        }
        if self.is_due(now)
            && let Some((Rollup { anonymous, part, shared }, shared_store)) = self.ask(shared_store)
            // A fork meanwhile may be in the answer, and is reckoned with by the next look.
            && SHARES.load(Ordering::Relaxed) == shares
        {
            let elsewhere = anonymous.saturating_sub(part);
            let pages = |bytes: u64| bytes / PAGE_SIZE as u64;
            let shared = pages(shared.min(anonymous));
            self.estimate.know(shared as i64, pages(elsewhere) as i64, now);
            self.part_store(shared_store);
            self.estimate.pending = 0;
            self.asked_left = now.left;
            if self.estimate.elsewhere < FEW as i64 {
                let _ = SHARES.compare_exchange(shares, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        self.estimate.at(now)
    }

    /// Whether a process has ended since the kernel was asked.
    const fn has_somebody_ended(&self, now: Changes) -> bool {
        now.left != self.asked_left
    }

    fn is_due(&self, now: Changes) -> bool {
        let Estimate { elsewhere, then, pending, .. } = self.estimate;
        if pending > 0 && task::now().saturating_sub(self.forked_at) < PATIENCE {
            return false; // the kernel reckons with a child that does not count itself
        }
        let ended = self.has_somebody_ended(now);
        let much = ended || elsewhere - self.estimate.at(now) > 4 * FEW as i64;
        let pause = match () {
            () if ended && self.has_forked() => ASKED_THEN.max(self.cost * ASKING_MUCH),
            () if much => ASKED.max(self.cost * ASKING_MUCH),
            () if now != then => ASKED.max(self.cost * ASKING),
            () => ASKED_ANYHOW,
        };
        task::now().saturating_sub(self.asked_at) > pause
    }

    /// Tells the store, of which others have `pages` too, from the program. Of each page of either counts the
    /// same here, on the mean.
    fn part_store(&mut self, pages: u64) {
        let part_of = |pages: u64| pages * self.estimate.part() as u64 / ONE as u64;
        self.store_elsewhere = pages - part_of(pages);
        let of_program = (self.estimate.shared as u64).saturating_sub(pages);
        SHARED.store(of_program, Ordering::Relaxed);
        SHARED_PART.store(part_of(of_program), Ordering::Relaxed);
    }

    fn ask(&mut self, shared_store: impl Fn() -> u64) -> Option<(Rollup, u64)> {
        let begin = task::now();
        let told = Rollup::read(&self.rollup).map(|told| (told, shared_store()));
        self.asked_at = task::now();
        self.cost = self.asked_at.saturating_sub(begin);
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 200;

    /// Who has which page: processes that fork, write and end, and what each of them counts.
    struct Family {
        /// For each process that lives, which copy of each page it has.
        has: Vec<Vec<u64>>,
        counts: Vec<Estimate>,
        own: Vec<u64>,
        told: Vec<u64>,
        copies: u64,
    }

    impl Family {
        fn new() -> Self {
            let mut first = Estimate::default();
            first.know(PAGES as i64, 0, Changes::default());
            let has = vec![(0..PAGES as u64).collect()];
            Self { has, counts: vec![first], own: vec![0], told: vec![0], copies: PAGES as u64 }
        }

        fn changes(&self, who: usize) -> Changes {
            let others = self.told.iter().sum::<u64>() - self.told[who];
            Changes { own: self.own[who], others, left: 0 }
        }

        /// The child comes after its parent has written `meanwhile`.
        fn fork(&mut self, who: usize, meanwhile: &[usize]) {
            let now = self.changes(who);
            self.counts[who].fork(PAGES as i64, now);
            self.has.push(self.has[who].clone());
            self.own.push(0);
            self.told.push(0);
            let elsewhere = self.counts[who].elsewhere;
            self.counts.push(Estimate::default());
            meanwhile.iter().for_each(|page| self.write(who, *page));
            let now = self.changes(who);
            self.counts[who].come(now);
            let child = self.counts.len() - 1;
            let now = self.changes(child);
            self.counts[child].know(PAGES as i64, elsewhere, now);
            self.counts[child].fork(PAGES as i64, now);
            self.counts[child].come(now);
        }

        fn write(&mut self, who: usize, page: usize) {
            let copy = self.has[who][page];
            if self.has.iter().filter(|has| has[page] == copy).count() > 1 {
                self.has[who][page] = self.copies;
                self.copies += 1;
            }
            self.own[who] += 1; // a fault in either case
            self.told[who] += self.counts[who].told() as u64;
        }

        fn really(&self) -> usize {
            let mut all: Vec<_> = self.has.iter().flatten().collect();
            all.sort_unstable();
            all.dedup();
            all.len()
        }

        fn counted(&self) -> i64 {
            let used = |who: usize| PAGES as i64 - self.counts[who].at(self.changes(who));
            (0..self.has.len()).map(used).sum()
        }
    }

    #[test]
    fn two_count_what_they_have_together() {
        let mut family = Family::new();
        family.fork(0, &[1, 2, 3]);
        assert_eq!((family.really(), family.counted()), (PAGES + 3, PAGES as i64 + 3));
        (10..190).for_each(|page| family.write(page % 2, page));
        let off = family.counted() - family.really() as i64;
        assert!(off.abs() < 5, "{off}");
    }

    proptest! {
        // That each page is had by as many as the mean is an assumption: it costs up to a tenth until the
        // kernel is asked again.
        #[test]
        fn a_family_never_counts_much_less_than_it_has(
            steps in proptest::collection::vec((0usize..5, 0usize..PAGES, 0usize..60), 1..60),
        ) {
            let mut family = Family::new();
            for (who, page, writes) in steps {
                let who = who % family.has.len();
                if writes < 10 && family.has.len() < 5 {
                    let meanwhile: Vec<_> = (0..writes).map(|n| (page + n) % PAGES).collect();
                    family.fork(who, &meanwhile);
                }
                (0..writes).for_each(|n| family.write(who, (page + n) % PAGES));
                let (counted, really) = (family.counted(), family.really() as i64);
                prop_assert!(counted * 10 >= really * 9, "{counted} of {really}");
            }
        }
    }
}
