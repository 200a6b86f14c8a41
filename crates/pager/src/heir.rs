//! A child whose fork was announced makes a pager of its own from what it has inherited.
//!
//! ```text
//!   forking thread       before   our helpers rest, and what is ours may be inherited
//!                        ═ fork ══════════════════════════════════════════════════════════════
//!                        after    they go on, and it may not any more
//!
//!   the child's thread   is its copy whole? then it makes a helper, and waits for its word
//!     its helper         rings    the parent's server names the userfaultfd, and we take that
//!                                 opens the other descriptors, each under the number it had
//!                        rings    the parent's server lets go: from now on we answer
//!                                 what the child has not inherited is forgotten
//! ```
//! The parent's server answers the child's faults all the while (see `fork.rs`). Whatever goes wrong
//! on the way, the child refuses, gets everything copied, and is an ordinary process.
#![allow(unsafe_code)] // the copy of the pager that nobody else uses

use crate::condense::Condenser;
use crate::evict::Bell;
use crate::fork::{Letter, NURSERY, Wiped};
use crate::gate::Gate;
use crate::mapped::ASKS;
use crate::pager::Pager;
use crate::placement::Placement;
use crate::populate;
use crate::program::{self, Ring};
use crate::regions::{Regions, Span};
use crate::sharing;
use crate::shrink::{self, Shrinker};
use crate::start::{self, REST};
use crate::table::{Place, Table, Word};
use core::time::Duration;
use octavo_page::rest::Work;
use octavo_page::sync::Mutex;
use octavo_page::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use octavo_sys::proc::Statm;
use octavo_sys::task::{self, Kinship, SignalMask};
use octavo_sys::uffd::Uffd;
use octavo_sys::{Errno, Result, memory};

/// Waits of a forking thread until our helpers rest, at most.
const PATIENCE: u32 = 5000;

/// The thread whose fork is announced; 0 where there is none.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// The signals which that thread had blocked before: during the fork it blocks all, since a handler may fork too.
static BLOCKED: AtomicU64 = AtomicU64::new(NOBODY);

/// No thread's: SIGKILL cannot be blocked.
const NOBODY: u64 = u64::MAX;

/// When the last announced fork was over, in microseconds of the clock.
static FORKED_AT: AtomicU64 = AtomicU64::new(0);

/// A fork waits so long at most until the program has given what is too much, and looks so often.
const GIVES_FIRST: Duration = Duration::from_millis(50);
const GIVES_STEP: Duration = Duration::from_micros(500);

/// Whether what is ours may be inherited at present, and makes sense.
static READY: AtomicBool = AtomicBool::new(false);

/// What is known of the next child.
static EXPECTED: AtomicU8 = AtomicU8::new(Expected::Nothing as u8);

/// What was announced of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Expected {
    /// Nothing: it is none of libc's, and runs on at once.
    Nothing,
    /// It waits until everything is brought, and then zeroes what children get as zeros.
    Filled,
    /// It makes a pager of its own, or waits as the others do.
    Managed,
}

impl Expected {
    const ALL: [Self; 3] = [Self::Nothing, Self::Filled, Self::Managed];

    fn note(self) {
        EXPECTED.store(self as u8, Ordering::Release);
    }
}

/// What was announced of the child that was just made; asked once for each. Where a fork fails, the child
/// after that may be taken for the one that was announced.
pub(crate) fn expected() -> Expected {
    let expected = EXPECTED.swap(Expected::Nothing as u8, Ordering::AcqRel);
    Expected::ALL[usize::from(expected)]
}

/// Whether the thread whose fork was announced still exists; if there is none, one may be about to.
pub(crate) fn is_forking() -> bool {
    match FORKING.load(Ordering::Acquire) {
        0 => true,
        thread => start::has_thread(thread),
    }
}

/// The server gives way to a fork for so long, at most.
const GIVES_WAY: Duration = Duration::from_millis(100);

/// Looks at a thread of which the kernel does not tell where it waits, at most: most often it has just gone on.
const UNKNOWN: u32 = 2;

/// Begins a change of the server's, which waits while a thread forks: what is done for others meanwhile may be in
/// halves in the copy. Not while that thread sleeps, on its way there: for a page of its own, or for who holds a lock
/// and waits for one.
pub(crate) fn change() -> Work<'static> {
    REST.try_work().unwrap_or_else(|| {
        let (until, mut unknown) = (task::now() + GIVES_WAY, 0);
        loop {
            let given = REST.is_given();
            let goes_on = start::goes_on(FORKING.load(Ordering::Acquire));
            unknown += u32::from(goes_on.is_none());
            if task::now() < until && goes_on.unwrap_or(unknown <= UNKNOWN) {
                let word = REST.word();
                task::futex_wait(word, word.load(Ordering::Relaxed), start::LOOK);
            } else if given {
                return REST.change();
            }
            // Was it given since, the thread is not where it was then.
            if let Some(work) = REST.try_change() {
                return work;
            }
        }
    })
}

/// Announces that the calling thread is about to fork. Followed by [`after_fork_in_parent`] or, in the
/// child, [`after_fork_in_child`].
pub fn before_fork() {
    let thread = task::id() as u32;
    if !start::is_managed() {
        if start::has_parent() {
            // A copy by a bare clone: what it has of an announced fork was of another thread's.
            READY.store(false, Ordering::Release);
            BLOCKED.store(NOBODY, Ordering::Release);
        }
        return;
    }
    give_first();
    BLOCKED.store(take_turn(thread).into_raw(), Ordering::Release);
    let ready = leave_everything();
    READY.store(ready, Ordering::Release);
    // Last, since the child of another thread's bare clone would be taken for this one. Before there is a
    // pager nothing is registered, and no fork is told.
    if program::answers_children() {
        if ready { Expected::Managed } else { Expected::Filled }.note();
    }
}

/// Has a program that is near its limit, or past it, give before it forks, for as long as it ran since the last fork and
/// [`GIVES_FIRST`] at most. What a child has too is not free when it is taken: who forks all the while has, between
/// one child's end and the next fork, a few milliseconds to give what it took in since, and fell ever further behind.
fn give_first() {
    let Some(pager) = start::pager() else { return };
    let now = task::now();
    let ran = now.saturating_sub(Duration::from_micros(FORKED_AT.load(Ordering::Relaxed)));
    let end = now + ran.min(GIVES_FIRST);
    start::look_again();
    while pager.budget.wants_eviction() && task::now() < end {
        pager.bell.ring();
        task::sleep(GIVES_STEP);
    }
}

/// Leaves the child what it takes to make a pager of its own; false where that would not make sense.
fn leave_everything() -> bool {
    if !start::pager().is_none_or(shrink::recall) || !has_rest_and_room() {
        return false;
    }
    // Between the two something may have been written, but not since: whoever writes rests.
    if start::pager().is_some_and(Pager::has_away) {
        return false;
    }
    let left = memory::bequeath(true).is_ok();
    if !left {
        // Fails only where it succeeded before.
        let _ = memory::bequeath(false);
    } else if let Some(pager) = start::pager() {
        pager.store.note_fork();
    }
    left
}

/// Has our helpers rest while there is room for one more child; one that has neither will be filled.
fn has_rest_and_room() -> bool {
    // Twice: at first the server may have been about to admit the child before.
    for _ in 0..2 {
        NURSERY.wait_for_room();
        let rests = REST.begin(PATIENCE, |word, value| task::futex_wait(word, value, start::LOOK));
        if !rests || !NURSERY.is_full() {
            return rests;
        }
        end_rest();
    }
    false
}

fn end_rest() {
    REST.end();
    task::futex_wake(REST.word());
}

/// One thread forks at a time, and no signal's handler within that; gives the signals that were blocked before.
fn take_turn(thread: u32) -> SignalMask {
    loop {
        let before = SignalMask::block_all();
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match FORKING.compare_exchange(0, thread, order.0, order.1) {
            Ok(_) => return before,
            Err(owner) => {
                before.restore();
                task::futex_wait(&FORKING, owner, start::LOOK);
            }
        }
    }
}

/// Lets the next thread fork; gives the signals to be put back, if this was announced.
fn end_turn() -> Option<SignalMask> {
    // The next one's from then on.
    let before = BLOCKED.swap(NOBODY, Ordering::AcqRel);
    FORKING.store(0, Ordering::Release);
    task::futex_wake(&FORKING);
    (before != NOBODY).then(|| SignalMask::from_raw(before))
}

/// The fork is over, in the parent.
pub fn after_fork_in_parent() {
    if FORKING.load(Ordering::Acquire) != task::id() as u32 {
        return;
    }
    if READY.swap(false, Ordering::AcqRel) {
        if start::pager().is_some() {
            sharing::note_fork()
        } else {
            sharing::note_shared()
        }
        // Fails only where it succeeded before.
        let _ = memory::bequeath(false);
    }
    shrink::end_recall();
    end_rest();
    start::look_again();
    FORKED_AT.store(task::now().as_micros() as u64, Ordering::Relaxed);
    if let Some(before) = end_turn() {
        before.restore();
    }
}

/// The fork is over, in the child: makes it a managed process, if it can be.
pub fn after_fork_in_child() {
    let before = end_turn();
    if start::has_parent() {
        begin_child();
    }
    if let Some(before) = before {
        before.restore();
    }
}

fn begin_child() {
    let ready = READY.swap(false, Ordering::AcqRel);
    let whole = REST.was_whole();
    Expected::Nothing.note();
    shrink::end_recall();
    REST.forget();
    // SAFETY: this is the only task of the process.
    unsafe { NURSERY.forget() };
    if !ready {
        await_filling();
        start::note_unmanaged(1);
        memory::disown();
        start::be_alone();
    } else if memory::inherit().is_err() || !whole {
        refuse();
    } else {
        sharing::be_child();
        populate::be_child();
        ASKS.forget();
        start::start_in_child();
    }
}

/// Has the parent's server bring everything, and gives back what was inherited. Nobody of ours is in
/// this process, unless it is the caller.
pub(crate) fn refuse() {
    await_filling();
    start::note_unmanaged(1);
    start::be_alone();
    // SAFETY: nothing of ours is reached without a pager.
    unsafe { memory::renounce() };
}

/// Waits until the parent's server has brought everything; then what children get as zeros is zeroed.
fn await_filling() {
    let Some(page) = program::ring(Ring::Refuse) else { return };
    if Letter::read(page).what() != Letter::FILLED {
        start::end_child("the pager of the parent was lost before this child had its memory");
    }
    let listed = WIPED.lock().list();
    if listed.is_err() && !list_aside() {
        start::end_child(Wiped::UNLISTED);
    }
    zero_wiped();
}

/// Has a task with descriptors of its own list those ranges: this process may have no number left for one, or no
/// `/proc`. Whether it could.
fn list_aside() -> bool {
    LISTED.store(false, Ordering::Relaxed);
    let before = SignalMask::block_all();
    let made = task::spawn(Kinship::Vfork, lister, 0).and_then(task::reap);
    before.restore();
    made.is_ok() && LISTED.load(Ordering::Acquire)
}

/// Whether [`lister`] has listed them.
static LISTED: AtomicBool = AtomicBool::new(false);

extern "C" fn lister(_: usize) -> ! {
    if start::begin_descriptors().is_ok() {
        LISTED.store(WIPED.lock().list().is_ok(), Ordering::Release);
    }
    task::exit(0)
}

/// What this process, a forked child, was to get as zeros, where that is not certain to be so.
static WIPED: Mutex<Wiped> = Mutex::new(Wiped::NONE);

/// Has those ranges be zeros. Nobody but this child knows for sure which they were when it was made: so
/// the parent's server gives it what the parent had there.
pub(crate) fn zero_wiped() {
    let mut wiped = WIPED.lock();
    for span in wiped.spans() {
        // SAFETY: it is what the child was to find there, and it has not gone on.
        if unsafe { memory::discard(span.clone()) }.is_err() {
            start::end_child("a range that a forked child gets as zeros could not be zeroed");
        }
    }
    wiped.clear();
}

impl Pager {
    /// Makes a child's copy of its parent's pager that of process `target`, which is about to run on.
    ///
    /// # Errors
    /// What could not be opened; `ECANCELED` when everything was brought already.
    pub(crate) fn inherit(&mut self, target: i32) -> Result<()> {
        // Its file is the parent's, and so is what is there; a child of which something is there is none
        // that may inherit.
        if !self.store.forget_backing() {
            return Err(Errno::ECANCELED);
        }
        self.target.become_like(task::pidfd(target)?)?;
        self.maps.become_like(octavo_sys::maps::Maps::open()?)?;
        self.statm.become_like(Statm::open()?)?;
        self.store.arena().inherit()?;
        let engines = self.config.engines();
        // The descriptors they would close are not ours.
        core::mem::forget(core::mem::replace(&mut self.engines, engines));
        let (raw, process) = self.letter(Ring::Come)?.uffd();
        let uffd = task::borrow_fd(&task::pidfd(process)?, raw)?;
        let areas: alloc::vec::Vec<_> = self.areas.iter().map(|area| &area.staging).collect();
        self.program.inherit(Uffd::own(uffd.leak()), &areas)?;
        self.member = start::join_ledger(self.ledger, target)?;
        self.counters = &self.member.counters;
        self.wake_up();
        let last = self.letter(Ring::Have)?;
        // The parent has just begun to count that much less.
        self.budget.halve();
        self.member.say(self.budget.used(), self.budget.floor());
        self.program.silence(&self.areas[0].staging);
        self.reconcile(&last);
        Ok(())
    }

    /// What the parent's server answers to `ring`.
    fn letter(&self, ring: Ring) -> Result<Letter> {
        start::LETTERS.fetch_add(1, Ordering::AcqRel);
        let letter = Letter::read(self.program.ring(ring));
        start::LETTERS.fetch_add(1, Ordering::AcqRel);
        match letter.what() {
            Letter::YOURS => Ok(letter),
            Letter::FILLED => Err(Errno::ECANCELED),
            _ => self.die("the pager of the parent was lost before this child had its own"),
        }
    }

    /// What was the server's alone, who may have been anywhere.
    fn wake_up(&mut self) {
        self.owned.set(0);
        self.condenser = Mutex::new(Condenser::default());
        self.shrinker = Mutex::new(Shrinker::default());
        self.keeps_raw = AtomicBool::new(self.config.backing.is_some());
        self.gate = Gate::new();
        self.bell = Bell::default();
        self.placement = Placement::new();
        for list in [&mut self.regions, &mut self.unlisted] {
            let ranges = core::mem::replace(list.get_mut(), Regions::new(0));
            *list = Mutex::new(ranges);
        }
        // Of what was moved away we would have been told, as the parent is.
        self.unlisted.get_mut().remove(Table::everywhere());
        self.changes = Mutex::new(crate::changes::Changes::new());
    }

    /// Forgets what the child does not have: what it discarded since the fork, and what children do not get
    /// at all. What they get as zeros is listed where it may not be zeros: its thread waits, and discards it.
    fn reconcile(&mut self, letter: &Letter) {
        for span in letter.gone() {
            self.forget_span(&span);
        }
        let (mut at, mut may_be_wiped) = (0, letter.given());
        while let Some(region) = self.region_from(at) {
            let mapping = match self.maps.any_from(region.start) {
                Ok(mapping) => mapping.map_or(region.end..region.end, |mapping| mapping.span),
                Err(_) => self.die("the mappings of a forked child could not be listed"),
            };
            let start = mapping.start.clamp(region.start, region.end);
            let end = mapping.end.clamp(start, region.end);
            if start > region.start {
                self.lose_region(region.start..start);
            }
            if start < end && !self.program.has(start) {
                self.lose_region(start..end);
            }
            may_be_wiped |= self.settle_region(start..end);
            at = end.max(start + 1);
        }
        if may_be_wiped && WIPED.lock().list().is_err() {
            self.die(Wiped::UNLISTED);
        }
    }

    /// Nobody is in the middle of a discard here. Whether pages of `span` are stored and none is present:
    /// then the child may have got it as zeros. The list of ranges that tells takes the kernel long.
    fn settle_region(&self, span: Span) -> bool {
        let mut stored = false;
        self.table.for_each(span.clone(), |_, cell| match cell.load().place() {
            Place::Leaving => drop(cell.replace(Word::FRESH)),
            Place::Stored(_) | Place::Parked(_) => stored = true,
            Place::Fresh | Place::Kept(_) => {}
        });
        stored && self.program.first_present(span).is_none()
    }

    fn region_from(&self, address: usize) -> Option<Span> {
        self.regions.lock().at_or_after(address)
    }

    fn lose_region(&self, span: Span) {
        self.forget_span(&span);
        self.regions.lock().remove(span);
    }
}
