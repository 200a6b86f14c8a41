//! The limit, and how much of it is used.
//!
//! ```text
//!   0 ............ arm_at ....... evict_to .. evict_at ... wait_at . limit
//!                  register       evictors    evictors     a fault   never,
//!                  everything     stop        start        waits     but said
//! ```
//! The limit is the job's, less what other processes of it use, or what this one was told is its
//! share where there is not enough for all: so it moves.
//!
//! Used is the resident anonymous memory of the whole address space: the program's pages and
//! everything of ours (pool, tables, pages in hand), since we live in it. The watch measures it;
//! between two measurements it is kept up by adding and subtracting what we do ourselves.

use crate::sharing::Shared;
use octavo_ledger::ask::Ask;
use octavo_ledger::{Ledger, Member};
use octavo_page::PAGE_SIZE;
use octavo_page::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use octavo_sys::task;

/// Pages of 1 MiB.
const MIB: u64 = (1 << 20) / PAGE_SIZE as u64;

/// Pages that stay resident whatever the limit: some 4 MiB of the program's, since with less than what a
/// few calls touch it would hardly make progress; and what is counted but is none of those: our tables
/// and staging, and memory that is not managed (relocated data, stacks), some 4 MiB together.
pub const FLOOR: u64 = 8 * MIB;

/// The same while the memory is asked for ([`Ask`]): what is none of the program's, and enough of that for an
/// instruction or a call to have its pages all at once.
pub const FLOOR_OF_GIVING: u64 = 6 * MIB;

/// What of these is none of the program's.
const OURS: u64 = 4 * MIB;

/// Pages that evictors are ahead of the need for them, at least, and once they stop: what a program takes in the time
/// of a batch, so that a fault seldom has to wait for one. Of a small limit a slack is less than that.
const LEAD: u64 = MIB;
const MOST_LEAD: u64 = LEAD + LEAD / 2;

/// Pages beside the store from which on evictors are as far ahead as they should be. Where there are fewer they are as
/// much less so: what they keep free would be most of what the program could have.
const AMPLE: u64 = 24 * MIB;

/// Ways to compress, from fast to dense.
pub const TIERS: usize = 4;

/// Shares of the limit, in percent, past which the store compresses more densely.
const DENSER_AT: [u64; TIERS - 1] = [65, 80, 88];

/// The same for a program that only passes through its memory in order: more room would have it fault no less, so the
/// store is dense only so that it fits. Of a small limit they are lower, so that [`FLOOR`] is left beside the store:
/// a matrix that just fits so without being dense is gone through in half the time. Past the second of them it does not
/// fit so: then the store is as dense as for all others, until it fills less than their first mark.
const DENSER_IN_PASSING_AT: [u64; TIERS - 1] = [87, 91, 94];

/// Pages of a unit, one in so many, that must be stored in another way for it to be worth storing anew, the
/// store being within the limit: a page that comes back and leaves again all the time would have those beside
/// it stored anew each time. Then past it; and past it by two slacks or more.
const WORTH: [usize; 3] = [4, 8, 16];

/// Share of the limit up to which it keeps copies of pages that came back.
const COPIES: u64 = 58;

/// Share of the limit that copies may take where the store takes more than that without any, for a program that only
/// passes through its memory in order: room for pages is worth nothing to it, and there is little. Where there is
/// more, the copies would be in its way for long, once it turns to other ways; and of a small limit they would take what
/// keeps it going.
const COPIES_IN_PASSING: u64 = 6;

/// What there is beside the store at least where it is shrunk: what stays resident, and as much again as
/// keeps the program going, and the memory that is written from.
const BESIDE: u64 = FLOOR + 4 * MIB;

/// Pages that one page of the store holds, for all that is known before it holds some.
const RATIO: u64 = 3;

/// The levels, all in pages.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    slack: u64,
    used: AtomicI64,
    stored: AtomicU64,
    /// Pages of the store that count in other processes, which have them too.
    stored_elsewhere: AtomicU64,
    /// Pages that count here of those that other processes have too and that are not worth taking.
    shared: AtomicU64,
    held: AtomicU64,
    copies: AtomicI64,
    aside: AtomicI64,
    /// What stays resident whatever the limit.
    least: AtomicU64,
    /// Whether the program only passes through its memory in order, as far as is known: while it is filled, too.
    only_passes: AtomicBool,
    /// Whether the store was past the second of the marks for such a program, and not below the first of all since.
    is_tight: AtomicBool,
}

impl Budget {
    /// A budget of `limit` pages.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        let slack = match limit / 128 {
            s if s < MIB / 2 => MIB / 2,
            s if s > 16 * MIB => 16 * MIB,
            s => s,
        };
        Self {
            limit: AtomicU64::new(limit),
            slack,
            used: AtomicI64::new(0),
            stored: AtomicU64::new(0),
            stored_elsewhere: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            held: AtomicU64::new(0),
            copies: AtomicI64::new(0),
            aside: AtomicI64::new(0),
            least: AtomicU64::new(FLOOR),
            only_passes: AtomicBool::new(true),
            is_tight: AtomicBool::new(false),
        }
    }

    /// What this process may use at present.
    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Says in the ledger what this process uses, `floor` of which it cannot give, and reads what the
    /// others leave.
    pub fn publish(&self, ledger: &Ledger, member: &Member, floor: u64) {
        member.say(self.used(), floor);
        let others = ledger.used_beside(member);
        ledger.note_used(others + self.used());
        self.heed(member.asked.at(task::now));
        let left = ledger.limit().saturating_sub(others);
        self.allow(member.share().map_or(left, |share| share.min(left)));
    }

    /// Notes what this process may use from now on.
    fn allow(&self, pages: u64) {
        self.limit.store(pages.max(self.least.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Notes what is asked of this process.
    fn heed(&self, ask: Ask) {
        let least = if ask == Ask::Nothing { FLOOR } else { FLOOR_OF_GIVING };
        self.least.store(least, Ordering::Relaxed);
    }

    /// Pages that this process cannot give.
    #[must_use]
    pub fn floor(&self) -> u64 {
        let [shared, least] =
            [&self.shared, &self.least].map(|pages| pages.load(Ordering::Relaxed));
        self.stored_here() + least.max(shared + OURS)
    }

    /// Pages of the program that are resident, about.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.used().saturating_sub(self.stored_here())
    }

    /// Pages used.
    #[must_use]
    pub fn used(&self) -> u64 {
        u64::try_from(self.used.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Notes a measurement.
    pub fn measured(&self, pages: u64) {
        self.used.store(pages as i64, Ordering::Relaxed);
    }

    /// Notes pages that we took from the kernel (or gave back, when negative).
    pub fn took(&self, pages: i64) {
        self.used.fetch_add(pages, Ordering::Relaxed);
    }

    /// Notes that half of everything counts here and half elsewhere: in a forked child.
    pub fn halve(&self) {
        self.measured(self.used() / 2);
        self.stored_elsewhere.fetch_add(self.stored_here() / 2, Ordering::Relaxed);
    }

    /// Notes how many pages count here that other processes have too and that are not worth taking.
    pub fn keeps_shared(&self, pages: u64) {
        self.shared.store(pages, Ordering::Relaxed);
    }

    /// Whether other processes have a good part of the store too: a 16th of it counts there.
    #[must_use]
    pub fn shares_store(&self) -> bool {
        16 * self.stored_elsewhere.load(Ordering::Relaxed) > self.stored.load(Ordering::Relaxed)
    }

    /// Pages of the store that count here.
    fn stored_here(&self) -> u64 {
        let elsewhere = self.stored_elsewhere.load(Ordering::Relaxed);
        self.stored.load(Ordering::Relaxed).saturating_sub(elsewhere)
    }

    /// Notes that the store occupies `pages`, of which so many count `elsewhere`, and holds `held` pages in
    /// them.
    pub fn stores(&self, pages: u64, elsewhere: u64, held: u64) {
        self.stored.store(pages, Ordering::Relaxed);
        self.stored_elsewhere.store(elsewhere, Ordering::Relaxed);
        self.held.store(held, Ordering::Relaxed);
        self.note_tight();
    }

    /// Pages that the store holds.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Notes copies of pages that are in the program, more of them or (negative) fewer.
    pub fn copies(&self, more: i64) {
        self.copies.fetch_add(more, Ordering::Relaxed);
    }

    /// Notes pages that were taken and are still to be stored, more of them or (negative) fewer: they
    /// are used until then, but need no eviction any more.
    pub fn set_aside(&self, more: i64) {
        self.aside.fetch_add(more, Ordering::Relaxed);
    }

    /// Pages of the store past which it is more dense: for any program, and for one that only passes through its memory.
    fn marks(&self) -> [[u64; TIERS - 1]; 2] {
        let limit = self.limit();
        let marks = DENSER_AT.map(|percent| limit * percent / 100);
        let missing = FLOOR.saturating_sub(beside_in_passing(limit));
        let in_passing = DENSER_IN_PASSING_AT.map(|percent| limit * percent / 100);
        let in_passing =
            core::array::from_fn(|n| marks[n].max(in_passing[n].saturating_sub(missing)));
        [marks, in_passing]
    }

    /// Notes whether the store is past the second mark for who only passes, or not even at the first of all.
    fn note_tight(&self) {
        let ([marks, in_passing], essential) = (self.marks(), self.essential());
        if essential > in_passing[1] {
            self.is_tight.store(true, Ordering::Relaxed);
        } else if essential < marks[0] {
            self.is_tight.store(false, Ordering::Relaxed);
        }
    }

    /// Notes whether the program only passes through its memory in order.
    pub fn only_passes(&self, passes: bool) {
        self.only_passes.store(passes, Ordering::Relaxed);
    }

    /// Whether there are pages that were taken and are still to be stored.
    #[must_use]
    pub fn has_aside(&self) -> bool {
        self.aside() > 0
    }

    fn aside(&self) -> u64 {
        u64::try_from(self.aside.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Whether it frees memory in the end to take `shared` pages: each of those who have one stores a copy
    /// of its own, and the page is free when the last of them has. Until then it costs, so only a clear
    /// gain is one: a quarter.
    #[must_use]
    pub fn gains_by(&self, shared: Shared) -> bool {
        let (stored, held) =
            (self.stored.load(Ordering::Relaxed), self.held.load(Ordering::Relaxed));
        let (stored, held) = if held < MIB { (1, RATIO) } else { (stored, held) };
        4 * shared.pages * stored <= 3 * shared.part * held
    }

    /// What the store would occupy without copies of pages that are in the program.
    fn essential(&self) -> u64 {
        let held = self.held.load(Ordering::Relaxed).max(1);
        let copies = u64::try_from(self.copies.load(Ordering::Relaxed)).unwrap_or(0).min(held);
        self.stored_here() * (held - copies) / held
    }

    /// How dense new objects are to be: the number of the tier.
    #[must_use]
    pub fn density(&self) -> usize {
        let ([marks, in_passing], essential) = (self.marks(), self.essential());
        let [passes, is_tight] =
            [&self.only_passes, &self.is_tight].map(|is| is.load(Ordering::Relaxed));
        let marks = if passes && !is_tight { in_passing } else { marks };
        marks.iter().filter(|mark| essential > **mark).count()
    }

    /// Pages of a unit, one in so many, that must be stored less densely for it to be worth storing anew.
    #[must_use]
    pub fn worth_condensing(&self) -> usize {
        let over = self.used().saturating_sub(self.limit());
        let [within, past, far] = WORTH;
        match over {
            0 => within,
            over if over < 2 * self.slack => past,
            _ => far,
        }
    }

    /// Whether the store fills the limit: nothing can be taken any more, and the limit is passed.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.until_limit() == 0 && !self.above_floor()
    }

    /// Whether the store, which takes `stored` pages and may take `percent` of the limit, is to be shrunk; it
    /// `is` being so.
    #[must_use]
    pub fn wants_shrinking(&self, stored: u64, percent: u8, is: bool) -> bool {
        let limit = self.limit();
        let from = (limit * u64::from(percent) / 100).min(limit.saturating_sub(BESIDE));
        stored > if is { from - from / 12 } else { from }
    }

    /// Whether there is room for compressed copies of pages that are in the program.
    #[must_use]
    pub fn has_room_for_copies(&self) -> bool {
        let (limit, stored) = (self.limit(), self.stored_here());
        let of_limit = |percent: u64| limit * percent / 100;
        if stored < of_limit(COPIES) {
            return true;
        }
        let essential = self.essential();
        let most = (essential + of_limit(COPIES_IN_PASSING)).min(limit.saturating_sub(BESIDE));
        self.only_passes.load(Ordering::Relaxed)
            && beside_in_passing(limit) >= BESIDE
            && essential > of_limit(COPIES)
            && stored < most
    }

    /// Whether the program has more resident than what stays.
    #[must_use]
    pub fn above_floor(&self) -> bool {
        self.used() > self.floor()
    }

    /// Pages left until everything must be registered; 0 when it is time.
    #[must_use]
    pub fn until_armed(&self) -> u64 {
        self.limit().saturating_sub(self.reserve() + self.used())
    }

    /// Pages left until what that takes must be there; 0 when it is time. A program that has less than
    /// half of what stays resident anyway has nothing to give. To make it takes many calls that change
    /// mappings, and each waits for whoever is reading the list of them: so it begins early.
    #[must_use]
    pub fn until_prepared(&self) -> u64 {
        let left = (self.limit() / 2).saturating_sub(self.used());
        left.max((FLOOR / 2).saturating_sub(self.used()))
    }

    fn reserve(&self) -> u64 {
        let limit = self.limit();
        (limit / 8).max(8 * MIB).min(limit / 2)
    }

    /// Pages left until the limit.
    #[must_use]
    pub fn until_limit(&self) -> u64 {
        self.limit().saturating_sub(self.used())
    }

    /// Whether the limit is passed, by what could be given.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.used() > self.limit() && self.above_floor()
    }

    /// Whether less than a slack, and `slacks` more and `pages` ahead of need, would be free once what was taken is
    /// stored.
    fn is_short_of(&self, slacks: u64, pages: u64) -> bool {
        let beside = self.limit().saturating_sub(self.stored_here() + OURS);
        let ahead = (slacks * self.slack + pages) * beside.min(AMPLE) / AMPLE;
        self.used() + self.slack + ahead > self.limit() + self.aside()
    }

    /// Whether evictors should start.
    #[must_use]
    pub fn wants_eviction(&self) -> bool {
        self.is_short_of(1, LEAD) && self.above_floor()
    }

    /// Whether evictors should go on, and the server begin to set batches aside.
    #[must_use]
    pub fn wants_more_eviction(&self) -> bool {
        self.is_short_of(2, MOST_LEAD) && self.above_floor()
    }

    /// Whether the server should go on to set batches aside.
    #[must_use]
    pub fn wants_batches(&self) -> bool {
        self.is_short_of(4, MOST_LEAD)
    }

    /// Whether `pages` more have to wait for an eviction.
    #[must_use]
    pub fn must_wait(&self, pages: u64) -> bool {
        self.used() + pages + self.slack > self.limit()
    }

    /// Growth that may stay unregistered, in pages: registering every small step would leave a
    /// mapping for each.
    #[must_use]
    pub fn unregistered_allowance(&self) -> u64 {
        (self.limit() / 128).max(MIB)
    }
}

/// Pages that a limit leaves beside the store at the first mark for who only passes.
const fn beside_in_passing(limit: u64) -> u64 {
    limit - limit * DENSER_IN_PASSING_AT[0] / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_are_in_order_at_every_limit() {
        for limit in (0..30).map(|n| (32 * MIB) << n.min(16)) {
            let budget = Budget::new(limit);
            let first = |reached: &dyn Fn(&Budget) -> bool| {
                let (mut low, mut high) = (0, limit);
                while low < high {
                    let middle = (low + high) / 2;
                    budget.measured(middle);
                    if reached(&budget) { high = middle } else { low = middle + 1 }
                }
                low
            };
            let prepared = first(&|b| b.until_prepared() == 0);
            let arm = first(&|b| b.until_armed() == 0);
            let to = first(&Budget::wants_more_eviction);
            let at = first(&Budget::wants_eviction);
            let wait = first(&|b| b.must_wait(0));
            assert!(prepared < arm && arm <= to && to < at && at < wait && wait < limit, "{limit}");
        }
    }

    #[test]
    fn beside_a_store_that_fills_the_limit_evictors_keep_little_free() {
        let budget = Budget::new(64 * MIB);
        let kept_free = |stored: u64| {
            budget.stores(stored * MIB, 0, 100 * MIB);
            let is_kept = |free: &u64| {
                budget.measured(64 * MIB - free);
                budget.wants_more_eviction()
            };
            (0..4 * MIB).rev().find(is_kept).unwrap_or(0)
        };
        let all = 3 * budget.slack + MOST_LEAD - 1;
        assert_eq!((kept_free(0), kept_free(36)), (all, all));
        assert_eq!(kept_free(48), budget.slack + (all - budget.slack) / 2);
    }

    #[test]
    fn what_the_store_takes_is_not_the_programs() {
        let budget = Budget::new(32 * MIB);
        budget.only_passes(false);
        budget.measured(20 * MIB);
        budget.stores(10 * MIB, 0, 100 * MIB);
        assert!(budget.above_floor() && budget.density() == 0);
        budget.stores(22 * MIB, 0, 100 * MIB);
        assert!(!budget.above_floor() && budget.density() == 1);
    }

    #[test]
    fn for_a_program_that_only_passes_the_store_is_dense_later_and_keeps_copies_for_longer() {
        let budget = Budget::new(512 * MIB);
        let at = |stored: u64, passes| {
            budget.only_passes(passes);
            budget.stores(stored * MIB, 0, 2000 * MIB);
            (budget.density(), budget.has_room_for_copies())
        };
        assert_eq!([at(290, false), at(290, true)], [(0, true), (0, true)]);
        assert_eq!([at(350, false), at(350, true)], [(1, false), (0, true)]);
        assert_eq!([at(430, false), at(430, true)], [(2, false), (0, true)]);
        assert_eq!([at(450, true), at(495, true)], [(1, true), (3, true)]);
        // Which was not enough: it is dense until it would not be so for any program.
        assert_eq!([at(430, true), at(350, true), at(330, true)].map(|is| is.0), [2, 1, 0]);
        assert_eq!(at(430, true).0, 0);
        // Of 350 MiB so many are copies: 24 are less than 6% of the limit, 35 are more.
        budget.copies(140 * MIB as i64);
        assert_eq!(at(350, true), (0, true));
        budget.copies(60 * MIB as i64);
        assert_eq!(at(350, true), (0, false));
        // Of a small limit a floor is left beside the store, and no room for more copies.
        let small = Budget::new(48 * MIB);
        let at = |stored: u64| {
            small.stores(stored * MIB, 0, 100 * MIB);
            (small.density(), small.has_room_for_copies())
        };
        assert_eq!(
            [at(27), at(28), at(40), at(41)],
            [(0, true), (0, false), (0, false), (1, false)]
        );
    }

    #[test]
    fn what_others_have_too_of_the_store_is_no_reason_to_keep_more_of_the_program() {
        let budget = Budget::new(60 * MIB);
        budget.measured(40 * MIB);
        budget.stores(24 * MIB, 0, 80 * MIB);
        assert!(!budget.shares_store());
        assert_eq!((budget.floor(), budget.in_use()), (24 * MIB + FLOOR, 16 * MIB));
        budget.halve();
        assert!(budget.shares_store());
        assert_eq!((budget.floor(), budget.in_use()), (12 * MIB + FLOOR, 8 * MIB));
        // Ten have it.
        budget.stores(25 * MIB, 21 * MIB, 80 * MIB);
        assert_eq!(budget.floor(), 4 * MIB + FLOOR);
        // What of the program stays, since others have it too, is of what stays anyway; and more than that stays.
        budget.keeps_shared(3 * MIB);
        assert_eq!(budget.floor(), 4 * MIB + FLOOR);
        budget.keeps_shared(9 * MIB);
        assert_eq!(budget.floor(), 4 * MIB + OURS + 9 * MIB);
        // Next to nothing is left elsewhere.
        budget.stores(24 * MIB, MIB, 80 * MIB);
        assert!(!budget.shares_store());
    }

    #[test]
    fn a_store_that_fills_the_limit_is_condensed_the_harder_the_further_it_is_past() {
        let budget = Budget::new(512 * MIB);
        let at = |used: u64, stored: u64| {
            budget.measured(used * MIB);
            budget.stores(stored * MIB, 0, 2000 * MIB);
            (budget.is_full(), budget.worth_condensing())
        };
        assert_eq!(at(511, 511), (false, 4), "within the limit");
        assert_eq!(at(513, 400), (false, 8), "there are pages to take");
        assert_eq!(at(513, 506), (true, 8));
        assert_eq!(at(521, 514), (true, 16));
    }

    #[test]
    fn the_store_is_shrunk_past_the_first_of_two_marks_and_down_to_the_second() {
        // Of a large limit a share; of a small one what leaves the program enough.
        for (limit, percent, from) in [(1600, 72, 1152), (1600, 3, 48), (24, 72, 12)] {
            let budget = Budget::new(limit * MIB);
            let wants = |at: u64, is| budget.wants_shrinking(at, percent, is);
            let (from, to) = (from * MIB, from * MIB / 12 * 11);
            assert!(!wants(from, false) && wants(from + 1, false));
            assert!(wants(to + 1, true) && !wants(to, true));
        }
    }

    #[test]
    fn what_many_share_is_taken_only_if_it_compresses_well() {
        let budget = Budget::new(32 * MIB);
        let of = |processes: u64| Shared { pages: 60_000, part: 60_000 / processes };
        let gains = |budget: &Budget| [2, 3, 5, 6].map(|processes| budget.gains_by(of(processes)));
        assert_eq!(gains(&budget), [true, false, false, false]);
        budget.stores(10 * MIB, 0, 70 * MIB);
        assert_eq!(gains(&budget), [true, true, true, false]);
        budget.stores(10 * MIB, 0, 20 * MIB);
        assert_eq!(gains(&budget), [false; 4]);
    }

    #[test]
    fn the_limit_moves_but_not_below_what_a_program_needs_at_once() {
        let budget = Budget::new(32 * MIB);
        budget.measured(20 * MIB);
        assert!(!budget.must_wait(0));
        budget.allow(19 * MIB);
        assert!(budget.must_wait(0) && budget.until_limit() == 0);
        budget.allow(0);
        assert_eq!(budget.limit(), FLOOR);
    }
}
