//! What the processes of one job know of each other: a few pages of memory that all of them share.
//!
//! ```text
//!   keeper  holds the memory, hears of deaths, sets shares, tells the statistics
//!      │
//!      ▼
//!   ledger  limit, peak, what was said      member 0: who, used, floor, share, counters
//!      ▲                                    member 1: ...
//!      │
//!   pager of each process: says what it uses, reads what the others use
//! ```
//! There is no lock and no common sum that could be left wrong by a process that is killed in the
//! middle: each member writes what is its own, whoever wants to know the sum adds up, and when a
//! process is gone the keeper clears its place, all of it. A place is taken by compare-and-swap.
//!
//! All of it is atomics, for which all zeros are right: so fresh shared memory is an empty ledger.
#![cfg_attr(not(any(test, loom)), no_std)]
#![allow(unsafe_code)] // a view of shared memory

pub mod ask;
pub mod counters;
#[cfg(all(test, loom))]
mod models;
pub mod shares;

use ask::Asked;
use core::fmt;
use core::time::Duration;
use counters::{Counter, Counters};
use octavo_page::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use octavo_pool::classes::ClassRow;
#[cfg(not(loom))]
use octavo_sys::{Result, file::Fd, shared};

/// Processes that are managed at once, at most; one more runs as it would alone.
pub const MAX_MEMBERS: usize = if cfg!(loom) { 1 } else { 512 };

/// The ledger of a job.
#[repr(C)]
pub struct Ledger {
    /// The limit, in pages.
    limit: AtomicU64,
    /// The most that all members used together, in pages.
    peak: AtomicU64,
    /// The most that was past the limit, in pages.
    exceeded: AtomicU64,
    /// Pages that the keeper uses itself.
    kept: AtomicU64,
    /// What somebody has said, a bit for each of [`Once`].
    said: AtomicU32,
    /// 1 when all members are to be ended, because the limit is exceeded and that is forbidden.
    forbidden: AtomicU32,
    /// Places that were ever taken.
    taken: AtomicU32,
    /// Grows when the keeper is to look at once; it waits here.
    bell: AtomicU32,
    /// How often the keeper has told the statistics; who waits for that waits here.
    told: AtomicU32,
    /// Members that leave or are gone, and that are gone.
    leaving: Counter,
    left: Counter,
    /// Pages that they had in common with members which have not asked the kernel since.
    bequeathed: AtomicU64,
    /// Programs started that do not take our object.
    unmanaged: AtomicU64,
    /// Backing files that a process has for itself, a bit each.
    claimed: AtomicU32,
    /// What some backing file does not do, see [`Lacks`].
    lacks: AtomicU32,
    /// What members that are gone have counted.
    gone: Counters,
    members: [Member; MAX_MEMBERS],
}

/// One process.
#[repr(C, align(64))]
pub struct Member {
    /// Process ids of the program, in the low half, and of its pager; 0 where there is no member.
    owner: AtomicU64,
    /// Pages used, as last measured.
    used: AtomicU64,
    /// Pages of those that it cannot give.
    floor: AtomicU64,
    /// What it may use, in pages; 0: whatever is free.
    share: AtomicU64,
    /// What it tells the others of pages that it has made its own since a fork, so far.
    unshared: AtomicU64,
    /// Pages that it has and others count, and how many members had gone when it was last known.
    common: AtomicU64,
    known: AtomicU64,
    /// When the program began, on the monotonic clock; 0 where that is not known yet.
    began: AtomicU64,
    /// 1 when the program is about to end.
    ends: AtomicU32,
    /// 1 when the place is about to be nobody's.
    leaves: AtomicU32,
    /// 1 when the program cannot go on without its pager.
    depends: AtomicU32,
    /// What the keeper asks of it beside its share.
    pub asked: Asked,
    /// The program's name, as the kernel has it: up to 15 bytes.
    name: [AtomicU64; 2],
    /// What it counts.
    pub counters: Counters,
    /// What it has stored at present.
    pub stored: Stored,
}

/// What a process has stored, as last looked at.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Stored {
    /// Bytes of all objects.
    pub compressed_bytes: Counter,
    /// Bytes that they take.
    pub pool_bytes: Counter,
    /// Pages stored.
    pub pages: Counter,
    /// Of those, pages that are one word.
    pub same_filled: Counter,
    /// And pages that are kept as they are.
    pub raw: Counter,
    /// Units that devices compressed to something else.
    pub unverified: Counter,
    /// Objects made with learnt tables.
    pub learnt_objects: Counter,
    /// Bytes that tables and learning take.
    pub table_bytes: Counter,
    /// Bytes of the objects that are in its backing files.
    pub away_bytes: Counter,
    /// Bytes that those files take.
    pub file_bytes: Counter,
    /// The pool's classes: packed objects, huge ones.
    pub classes: [PoolClass; 2],
}

impl Stored {
    fn each(&self) -> impl Iterator<Item = &Counter> {
        let Self { compressed_bytes, pool_bytes, pages, same_filled, raw, unverified, .. } = self;
        let Self { learnt_objects, table_bytes, away_bytes, file_bytes, classes, .. } = self;
        let sums = [compressed_bytes, pool_bytes, pages, same_filled, raw, unverified];
        let later = [learnt_objects, table_bytes, away_bytes, file_bytes];
        let sums = sums.into_iter().chain(later);
        sums.chain(classes.iter().flat_map(|class| &class.0))
    }
}

/// What is said once in a job, by whichever process finds it first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Once {
    /// The limit is exceeded.
    Exceeded,
    /// A process has no backing file.
    NoBacking,
    /// The backing files are as large as they may get.
    FilesFull,
    /// The file system that one is on is full.
    DiskFull,
}

/// What a backing file does not do.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lacks {
    /// Pass the page cache by.
    pub direct: bool,
    /// Give room back.
    pub holes: bool,
    /// Take writes that go on by themselves.
    pub ring: bool,
}

impl Lacks {
    const USED: u32 = 1;

    fn bits(self) -> u32 {
        let Self { direct, holes, ring } = self;
        Self::USED | u32::from(direct) << 1 | u32::from(holes) << 2 | u32::from(ring) << 3
    }

    fn of(bits: u32) -> Option<Self> {
        let lacks = |n: u32| bits >> n & 1 == 1;
        (bits & Self::USED != 0).then(|| Self { direct: lacks(1), holes: lacks(2), ring: lacks(3) })
    }
}

/// A class of the pool: a number for each of [`ClassRow::COLUMNS`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct PoolClass(pub [Counter; ClassRow::COLUMNS.len()]);

/// What a program is told whose pager was killed: by its guard, or where that is gone, by the keeper.
pub const LOST: &[u8] = b"octavo: the pager was killed; the program is ended\n";

/// Whose place it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The program.
    pub program: i32,
    /// Its pager.
    pub pager: i32,
}

/// Who comes.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer {
    /// Whose place it will be.
    pub owner: Owner,
    /// The program's name, as the kernel has it, filled with zeros.
    pub name: [u8; 16],
    /// When the program began, on the monotonic clock.
    pub began: Duration,
}

impl Owner {
    const fn word(self) -> u64 {
        (self.pager as u32 as u64) << 32 | self.program as u32 as u64
    }

    const fn of(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self { program: word as u32 as i32, pager: (word >> 32) as u32 as i32 })
    }
}

/// Bytes of a ledger.
pub const BYTES: u64 = size_of::<Ledger>() as u64;

/// The descriptor that holds a new, empty ledger for a job of `limit` pages.
///
/// # Errors
/// As of `memfd_create(2)` and `mmap(2)`.
#[cfg(not(loom))]
pub fn create(limit: u64) -> Result<Fd> {
    let memory = shared::create(c"octavo-ledger", size_of::<Ledger>())?;
    open(&memory)?.limit.store(limit, Ordering::Release);
    Ok(memory)
}

/// The ledger in `memory`, for as long as the address space lasts.
///
/// # Errors
/// As of `mmap(2)`.
#[cfg(not(loom))]
pub fn open(memory: &Fd) -> Result<&'static Ledger> {
    let address = shared::map(memory, size_of::<Ledger>())?;
    // SAFETY: mapped, page aligned and as long as a ledger; all of a ledger is atomics, for which any
    // bytes are right and which others may change; it is never unmapped.
    Ok(unsafe { &*(address as *const Ledger) })
}

impl Ledger {
    /// The limit, in pages.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// A place for a process; `None` when all are taken.
    #[must_use]
    pub fn join(&self, newcomer: &Newcomer) -> Option<&Member> {
        let Newcomer { owner, name, began } = *newcomer;
        let place = self.members.iter().enumerate().find(|(_, member)| {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            member.owner.compare_exchange(0, owner.word(), order.0, order.1).is_ok()
        });
        let (at, member) = place?;
        self.taken.fetch_max(at as u32 + 1, Ordering::AcqRel);
        let (low, high) = name.split_at(8);
        for (word, bytes) in member.name.iter().zip([low, high]) {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        let began = began.as_nanos() as u64;
        member.began.store(began, Ordering::Release);
        // After exec the same process comes again; who was there before it is on the way out.
        let same = |other: &Owner| other.program == owner.program;
        for other in self.members().filter(|other| other.owner().as_ref().is_some_and(same)) {
            match other.began.load(Ordering::Acquire) {
                0 => {} // It looks at us when it knows.
                theirs if theirs < began => other.end(),
                theirs if theirs > began => member.end(),
                _ => {}
            }
        }
        Some(member)
    }

    /// The members at present.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        let taken = self.taken.load(Ordering::Acquire) as usize;
        self.members.iter().take(taken).filter(|member| member.owner().is_some())
    }

    /// Has a process have backing file number `n` for itself; false when another has, or had.
    #[must_use]
    pub fn claim(&self, n: usize) -> bool {
        self.claimed.fetch_or(1 << n, Ordering::AcqRel) & 1 << n == 0
    }

    /// Notes that a process writes to a backing file, which lacks this.
    pub fn note_backing(&self, lacks: Lacks) {
        self.lacks.fetch_or(lacks.bits(), Ordering::Relaxed);
    }

    /// What some backing file lacks; `None` before one was used.
    #[must_use]
    pub fn backing_lacks(&self) -> Option<Lacks> {
        Lacks::of(self.lacks.load(Ordering::Relaxed))
    }

    /// Bytes that the backing files of all members take.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.members().map(|member| member.stored.file_bytes.get()).sum()
    }

    /// Says what the keeper uses itself, in pages.
    pub fn keep(&self, pages: u64) {
        self.kept.store(pages, Ordering::Relaxed);
    }

    /// Pages that all use together.
    #[must_use]
    pub fn used(&self) -> u64 {
        let kept = self.kept.load(Ordering::Relaxed) + self.bequeathed();
        self.members().map(Member::used).sum::<u64>() + kept
    }

    /// Pages past the limit at present.
    #[must_use]
    pub fn over(&self) -> u64 {
        self.used().saturating_sub(self.limit())
    }

    /// Pages that all but `member` use; asked by that member, who alone says what it uses.
    #[must_use]
    pub fn used_beside(&self, member: &Member) -> u64 {
        self.used().saturating_sub(member.used())
    }

    /// Says that `member`, who is leaving, uses nothing any more; what others have too falls to them.
    pub fn leave(&self, member: &Member) {
        if member.leaves.swap(1, Ordering::AcqRel) == 0 {
            // First, so that nobody finds what is bequeathed settled.
            self.leaving.add(1);
            let common = member.common.swap(0, Ordering::Relaxed).min(member.used());
            self.bequeathed.fetch_add(common, Ordering::AcqRel);
            member.say(0, 0);
        }
    }

    /// Clears the place of a process that is gone; what it counted goes to the others that are.
    pub fn clear(&self, member: &Member) {
        self.leave(member);
        self.left.add(1);
        self.gone.take_over(&member.counters);
        let Member { share, unshared, known, began, .. } = member;
        for word in [share, unshared, known, began] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&member.ends, &member.leaves, &member.depends] {
            word.store(0, Ordering::Relaxed);
        }
        member.asked.clear();
        member.stored.each().for_each(|gauge| gauge.set(0));
        member.owner.store(0, Ordering::Release);
    }

    /// Pages that members which leave or are gone had in common with others, who have not all asked what
    /// is theirs since those were gone.
    #[must_use]
    pub fn bequeathed(&self) -> u64 {
        self.owed(self.bequeathed.load(Ordering::Acquire))
    }

    /// What of `all` that was bequeathed is not settled.
    fn owed(&self, all: u64) -> u64 {
        if all == 0 {
            return 0;
        }
        let leaving = self.leaving.get();
        let heirs = self.members().filter(|member| member.known.load(Ordering::Relaxed) < leaving);
        all.min(heirs.map(|heir| heir.common.load(Ordering::Relaxed)).sum())
    }

    /// Forgets what members that are gone had in common with others, once those count it, or `in_any_case`.
    pub fn settle(&self, in_any_case: bool) {
        let all = self.bequeathed.load(Ordering::Acquire);
        if in_any_case || self.owed(all) == 0 {
            self.bequeathed.fetch_sub(all, Ordering::AcqRel);
        }
    }

    /// Notes what all members use together, in pages.
    pub fn note_used(&self, pages: u64) {
        self.peak.fetch_max(pages, Ordering::Relaxed);
        self.exceeded.fetch_max(pages.saturating_sub(self.limit()), Ordering::Relaxed);
    }

    /// The most that was used, in pages.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The most that was past the limit, in pages.
    #[must_use]
    pub fn exceeded(&self) -> u64 {
        self.exceeded.load(Ordering::Relaxed)
    }

    /// Whether the caller is the first to say this.
    #[must_use]
    pub fn says_first(&self, what: Once) -> bool {
        let bit = 1 << what as u32;
        self.said.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Has the keeper end all members.
    #[cfg(not(loom))]
    pub fn forbid(&self) {
        self.forbidden.store(1, Ordering::Release);
        self.ring();
    }

    /// Whether all members are to be ended.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.forbidden.load(Ordering::Acquire) == 1
    }

    /// Processes that were members and are gone.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.get()
    }

    /// What all but `member` have told ([`Member::note_unshared`]).
    #[must_use]
    pub fn unshared_beside(&self, member: &Member) -> u64 {
        let all = self.members().map(|other| other.unshared.load(Ordering::Relaxed)).sum::<u64>();
        all.saturating_sub(member.unshared.load(Ordering::Relaxed))
    }

    /// Notes programs that were started, and forked children, that are not managed; negative: that were not
    /// started after all.
    pub fn note_unmanaged(&self, programs: i64) {
        self.unmanaged.fetch_add(programs as u64, Ordering::Relaxed);
    }

    /// Programs that were started, and forked children, that are not managed.
    #[must_use]
    pub fn unmanaged(&self) -> u64 {
        self.unmanaged.load(Ordering::Relaxed)
    }

    /// Adds what members have counted, present and gone, to `total`.
    pub fn count(&self, total: &Counters) {
        total.add_all(&self.gone);
        self.members().for_each(|member| total.add_all(&member.counters));
    }

    /// Says that the statistics were told.
    #[cfg(not(loom))]
    pub fn tell(&self) {
        self.told.fetch_add(1, Ordering::AcqRel);
        shared::wake(&self.told);
    }

    /// Has the keeper look at once.
    #[cfg(not(loom))]
    pub fn ring(&self) {
        self.bell.fetch_add(1, Ordering::AcqRel);
        shared::wake(&self.bell);
    }

    /// The word that grows when the keeper is to look.
    #[must_use]
    pub const fn bell(&self) -> &AtomicU32 {
        &self.bell
    }

    /// The word that grows when the statistics were told.
    #[must_use]
    pub const fn told(&self) -> &AtomicU32 {
        &self.told
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a ledger of {} pages, {} members", self.limit(), self.members().count())
    }
}

impl Member {
    /// Tells those that had pages together with this process after a fork what to count more of them, in a
    /// unit of theirs: the sum over all pages that it has made its own so far.
    pub fn note_unshared(&self, told: u64) {
        self.unshared.store(told, Ordering::Relaxed);
    }

    /// Says how many pages it has that others count, and how many members had gone when that was asked for.
    pub fn note_common(&self, pages: u64, left: u64) {
        self.common.store(pages, Ordering::Relaxed);
        self.known.store(left, Ordering::Relaxed);
    }

    /// Says that others count `pages` more that it has.
    pub fn note_more_common(&self, pages: u64) {
        self.common.fetch_add(pages, Ordering::Relaxed);
    }

    /// Whose it is; `None` when it is nobody's.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        Owner::of(self.owner.load(Ordering::Acquire))
    }

    /// Pages used.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Says what this process uses, and what of it it cannot give, in pages.
    pub fn say(&self, used: u64, floor: u64) {
        self.used.store(used, Ordering::Relaxed);
        self.floor.store(floor, Ordering::Relaxed);
    }

    /// Pages that it cannot give.
    #[must_use]
    pub fn floor(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    /// Says that the program is about to end.
    pub fn end(&self) {
        self.ends.store(1, Ordering::Release);
    }

    /// Whether the program is about to end.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire) == 1
    }

    /// Says that the program cannot go on without its pager from now on: its memory will be registered.
    pub fn depend(&self) {
        self.depends.store(1, Ordering::Release);
    }

    /// Whether the program cannot go on without its pager, which did not leave by its own will.
    #[must_use]
    pub fn depends(&self) -> bool {
        self.depends.load(Ordering::Acquire) == 1 && self.leaves.load(Ordering::Acquire) == 0
    }

    /// What it may use, in pages; `None`: whatever is free.
    #[must_use]
    pub fn share(&self) -> Option<u64> {
        let share = self.share.load(Ordering::Relaxed);
        (share > 0).then_some(share)
    }

    /// Sets what it may use; `None`: whatever is free.
    pub fn give(&self, share: Option<u64>) {
        self.share.store(share.unwrap_or(0), Ordering::Relaxed);
    }

    /// The program's name, as the kernel has it, filled with zeros.
    #[must_use]
    pub fn name(&self) -> [u8; 16] {
        let mut name = [0; 16];
        for (bytes, word) in name.chunks_exact_mut(8).zip(&self.name) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        name
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::thread;

    fn ledger() -> &'static Ledger {
        open(&create(1000).expect("memory")).expect("a mapping")
    }

    fn owner(program: i32) -> Owner {
        Owner { program, pager: program + 1 }
    }

    /// A process that began with second `began`.
    fn from_then(owner: Owner, began: u64) -> Newcomer {
        Newcomer { owner, name: *b"python3\0\0\0\0\0\0\0\0\0", began: Duration::from_secs(began) }
    }

    fn newcomer(program: i32) -> Newcomer {
        from_then(owner(program), 1)
    }

    #[test]
    fn what_members_say_adds_up_until_they_are_cleared() {
        let ledger = ledger();
        let name = newcomer(10).name;
        let one = ledger.join(&newcomer(10)).expect("a place");
        let two = ledger.join(&newcomer(20)).expect("a place");
        one.say(300, 10);
        two.say(500, 20);
        assert_eq!((ledger.used_beside(one), ledger.used_beside(two)), (500, 300));
        assert_eq!((one.owner(), one.name(), two.floor()), (Some(owner(10)), name, 20));
        two.counters.faults.add(5);
        two.stored.each().for_each(|gauge| gauge.set(3));
        assert_eq!(two.stored.each().count() * size_of::<Counter>(), size_of::<Stored>());
        two.give(Some(7));
        ledger.clear(two);
        assert_eq!((ledger.used_beside(one), ledger.members().count()), (0, 1));
        let three = ledger.join(&newcomer(30)).expect("a place");
        assert_eq!((three.used(), three.share(), three.counters.faults.get()), (0, None, 0));
        assert!(three.stored.each().all(|gauge| gauge.get() == 0));
        let total = Counters::default();
        ledger.count(&total);
        assert_eq!(total.faults.get(), 5);
    }

    #[test]
    fn who_began_last_takes_the_place_of_who_was_there_before_exec() {
        let ledger = ledger();
        let [first, other] = [10, 20].map(|id| ledger.join(&newcomer(id)).expect("a place"));
        let join = |pager, began| {
            let newcomer = from_then(Owner { program: 10, pager }, began);
            ledger.join(&newcomer).expect("a place")
        };
        let second = join(77, 2);
        assert!(first.ends() && !other.ends() && !second.ends());
        // A pager of the first may come last.
        let late = join(88, 1);
        assert!(late.ends() && !other.ends() && !second.ends());
    }

    #[test]
    fn what_was_common_counts_until_the_others_have_asked() {
        let ledger = ledger();
        let [parent, child] = [10, 20].map(|id| ledger.join(&newcomer(id)).expect("a place"));
        for member in [parent, child] {
            member.say(50, 0);
            member.note_common(50, 0);
        }
        child.say(70, 0); // of which 20 are its own
        ledger.clear(child);
        assert_eq!((ledger.used(), ledger.bequeathed()), (100, 50));
        // Each page that the parent makes its own is one less that may fall to it.
        parent.say(60, 0);
        parent.note_common(40, 0);
        assert_eq!(ledger.used(), 100);
        parent.say(95, 0);
        parent.note_common(0, 1);
        assert_eq!(ledger.used(), 95);
    }

    #[test]
    fn two_mappings_show_the_same_ledger() {
        let memory = create(1000).expect("memory");
        let [here, there] = [0, 1].map(|_| open(&memory).expect("a mapping"));
        let member = here.join(&newcomer(10)).expect("a place");
        member.say(42, 0);
        assert_eq!(there.members().map(Member::used).sum::<u64>(), 42);
        assert_eq!((there.limit(), there.peak()), (1000, 0));
        here.note_used(1200);
        assert_eq!((there.peak(), there.exceeded()), (1200, 200));
        for what in [Once::Exceeded, Once::NoBacking, Once::FilesFull, Once::DiskFull] {
            assert!(here.says_first(what) && !there.says_first(what));
        }
    }

    #[test]
    fn a_backing_file_is_claimed_once_and_what_any_lacks_is_known() {
        let ledger = ledger();
        assert_eq!(ledger.backing_lacks(), None);
        assert!(ledger.claim(0) && ledger.claim(3) && !ledger.claim(0));
        ledger.note_backing(Lacks { holes: true, ..Lacks::default() });
        ledger.note_backing(Lacks::default());
        let lacks = Lacks { direct: false, holes: true, ring: false };
        assert_eq!(ledger.backing_lacks(), Some(lacks));
        let member = ledger.join(&newcomer(10)).expect("a place");
        member.stored.file_bytes.set(7);
        assert_eq!(ledger.file_bytes(), 7);
    }

    #[test]
    fn a_place_is_taken_once_and_a_full_ledger_has_none() {
        let ledger = ledger();
        let takers = (0..4).map(|t| {
            thread::spawn(move || {
                let join = |n: usize| ledger.join(&newcomer((t * 1000 + n * 2) as i32 + 1));
                let places = (0..200).filter_map(join);
                places.map(|place| core::ptr::from_ref(place) as usize).collect::<Vec<_>>()
            })
        });
        let takers: Vec<_> = takers.collect();
        let places: Vec<_> = takers.into_iter().flat_map(|t| t.join().expect("a taker")).collect();
        assert_eq!(places.len(), MAX_MEMBERS);
        assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), MAX_MEMBERS);
    }
}
