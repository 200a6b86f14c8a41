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

pub mod counters;
#[cfg(all(test, loom))]
mod models;
pub mod shares;

use core::fmt;
use counters::{Counter, Counters};
use octavo_page::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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
    /// 1 once somebody has said that the limit is exceeded.
    said: AtomicU32,
    /// 1 when all members are to be ended, because the limit is exceeded and that is forbidden.
    forbidden: AtomicU32,
    /// Places that were ever taken.
    taken: AtomicU32,
    /// Grows when the keeper is to look at once; it waits here.
    bell: AtomicU32,
    /// How often the keeper has told the statistics; who waits for that waits here.
    told: AtomicU32,
    /// Members so far.
    processes: Counter,
    /// Members that are gone.
    left: Counter,
    /// Programs started that do not take our object.
    unmanaged: AtomicU64,
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
    /// Pages that it shared with others after a fork and has made its own, so far.
    unshared: AtomicU64,
    /// 1 when the program is about to end.
    ends: AtomicU32,
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
}

/// Whose place it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The program.
    pub program: i32,
    /// Its pager.
    pub pager: i32,
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
    pub fn join(&self, owner: Owner, name: [u8; 16]) -> Option<&Member> {
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
        // After exec the same process comes again; who was there before it is on the way out.
        let same = |other: &Owner| other.program == owner.program;
        for other in self.members().filter(|other| !core::ptr::eq(*other, member)) {
            if other.owner().as_ref().is_some_and(same) {
                other.end();
            }
        }
        self.processes.add(1);
        Some(member)
    }

    /// The members at present.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        let taken = self.taken.load(Ordering::Acquire) as usize;
        self.members.iter().take(taken).filter(|member| member.owner().is_some())
    }

    /// Says what the keeper uses itself, in pages.
    pub fn keep(&self, pages: u64) {
        self.kept.store(pages, Ordering::Relaxed);
    }

    /// Pages that all use together.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.members().map(Member::used).sum::<u64>() + self.kept.load(Ordering::Relaxed)
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

    /// Clears the place of a process that is gone; what it counted goes to the others that are.
    pub fn clear(&self, member: &Member) {
        self.gone.take_over(&member.counters);
        self.left.add(1);
        for word in [&member.used, &member.floor, &member.share, &member.unshared] {
            word.store(0, Ordering::Relaxed);
        }
        member.ends.store(0, Ordering::Relaxed);
        let Stored { compressed_bytes, pool_bytes, pages, same_filled } = &member.stored;
        [compressed_bytes, pool_bytes, pages, same_filled].iter().for_each(|gauge| gauge.set(0));
        member.owner.store(0, Ordering::Release);
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

    /// Whether the caller is the first to say that the limit is exceeded.
    #[must_use]
    pub fn says_first(&self) -> bool {
        self.said.swap(1, Ordering::AcqRel) == 0
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

    /// Processes that were members so far.
    #[must_use]
    pub fn processes(&self) -> u64 {
        self.processes.get()
    }

    /// Processes that were members and are gone.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.get()
    }

    /// Pages that all but `member` shared after a fork and have made their own.
    #[must_use]
    pub fn unshared_beside(&self, member: &Member) -> u64 {
        let all = self.members().map(|other| other.unshared.load(Ordering::Relaxed)).sum::<u64>();
        all.saturating_sub(member.unshared.load(Ordering::Relaxed))
    }

    /// Notes programs that were started and are not managed; negative: that were not started after all.
    pub fn note_unmanaged(&self, programs: i64) {
        self.unmanaged.fetch_add(programs as u64, Ordering::Relaxed);
    }

    /// Programs that were started and are not managed.
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
    /// Says how many pages that it shared after a fork this process has made its own.
    pub fn note_unshared(&self, pages: u64) {
        self.unshared.store(pages, Ordering::Relaxed);
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

    #[test]
    fn what_members_say_adds_up_until_they_are_cleared() {
        let ledger = ledger();
        let name = *b"python3\0\0\0\0\0\0\0\0\0";
        let one = ledger.join(owner(10), name).expect("a place");
        let two = ledger.join(owner(20), name).expect("a place");
        one.say(300, 10);
        two.say(500, 20);
        assert_eq!((ledger.used_beside(one), ledger.used_beside(two)), (500, 300));
        assert_eq!((one.owner(), one.name(), two.floor()), (Some(owner(10)), name, 20));
        two.counters.faults.add(5);
        two.give(Some(7));
        ledger.clear(two);
        assert_eq!((ledger.used_beside(one), ledger.members().count()), (0, 1));
        let three = ledger.join(owner(30), name).expect("a place");
        assert_eq!((three.used(), three.share(), three.counters.faults.get()), (0, None, 0));
        let total = Counters::default();
        ledger.count(&total);
        assert_eq!((total.faults.get(), ledger.processes()), (5, 3));
    }

    #[test]
    fn who_comes_again_after_exec_takes_the_place_of_who_was_there() {
        let ledger = ledger();
        let [first, other] = [10, 20].map(|id| ledger.join(owner(id), [0; 16]).expect("a place"));
        let again = Owner { program: 10, pager: 77 };
        let second = ledger.join(again, [0; 16]).expect("a place");
        assert!(first.ends() && !other.ends() && !second.ends());
    }

    #[test]
    fn two_mappings_show_the_same_ledger() {
        let memory = create(1000).expect("memory");
        let [here, there] = [0, 1].map(|_| open(&memory).expect("a mapping"));
        let member = here.join(owner(10), [0; 16]).expect("a place");
        member.say(42, 0);
        assert_eq!(there.members().map(Member::used).sum::<u64>(), 42);
        assert_eq!((there.limit(), there.peak()), (1000, 0));
        here.note_used(1200);
        assert_eq!((there.peak(), there.exceeded()), (1200, 200));
        assert!(here.says_first() && !there.says_first());
    }

    #[test]
    fn a_place_is_taken_once_and_a_full_ledger_has_none() {
        let ledger = ledger();
        let takers = (0..4).map(|t| {
            thread::spawn(move || {
                let join = |n: usize| ledger.join(owner((t * 1000 + n * 2) as i32 + 1), [0; 16]);
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
