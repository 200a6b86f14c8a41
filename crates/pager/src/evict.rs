//! Taking cold pages out of the program and storing them.
//!
//! ```text
//!   pick    a run of pages that the sweep finds cold              gate shut
//!   take    MOVE them to staging, mark each Parked                gate shut
//!           the server leaves it at that, and an evictor goes on
//!   store   clean ones: their old copy is good again              gate open
//!           others: compressed, in units where all pages are there
//!           what does not compress goes back
//!   empty   frames to the kernel, once no server can be looking   gate shut for an instant
//! ```
//! While pages are parked the program may want one back (a server copies it out of staging and
//! changes its word) or discard it (an event changes its word): whoever changes the word from
//! `Parked` owns the outcome, and an evictor that comes too late frees the slot it has filled.
//!
//! The sweep goes through the registered ranges in order of address, second chance, with faults as
//! the proof of heat. The kernel flushes TLBs once for each stretch it moves. An evictor, for which
//! that is an interrupt on another CPU, takes whole megabytes, cold and hot together, or passes them
//! over. The server beside a lone thread flushes its own CPU alone, while no evictor runs: it chooses
//! page by page, and sets batches aside that evictors store while it takes no others.

use crate::condense::{AT_EASE, FOR_A_FAULT};
use crate::pager::{Pager, Worker};
use crate::program::{BATCH, Staging};
use crate::regions::{Regions, Span};
use crate::sharing::{self, Shared};
use crate::shrink::Shrunk;
use crate::start::{self, PINS};
use crate::table::{Place, WARM, Word};
use core::time::Duration;
use octavo_page::sync::atomic::{AtomicU32, Ordering};
use octavo_page::sync::{Mutex, MutexGuard};
use octavo_page::{PAGE_SIZE, Unit};
use octavo_store::PutError;
use octavo_sys::scan::Is;
use octavo_sys::{Errno, memory, task};

/// Objects that compaction may move after each batch.
const COMPACT_MOVES: usize = 256;

/// Steps of the shrinker after each batch, at most.
const SHRUNK_AT_ONCE: usize = 4;

/// Where the sweep is.
#[derive(Debug, Default)]
pub struct Sweep {
    at: usize,
    /// Bytes gone through since a page was last freed.
    idle: usize,
    /// Whether pages that did not compress are tried again in this round, and since when not.
    retries_dense: bool,
    dense_tried: Duration,
    /// After a round without success: nobody tries before that time, and the pause grows.
    rests_until: Duration,
    rest: Duration,
    /// The page, shared after a fork, that stopped the sweep, and what becomes of that.
    shared: usize,
    unshares: Unshares,
    /// Whether a page was freed in this round.
    succeeded: bool,
    /// Whether this round takes shared pages too: to take one frees nothing as long as the other process
    /// has it, so they come last.
    takes_shared: bool,
}

/// What becomes of pages that have to be unshared before they can be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Unshares {
    /// There are none, or none any more.
    #[default]
    Done,
    /// An evictor is to unshare them.
    Wanted,
    /// One is about it.
    Begun,
}

impl Sweep {
    fn start_round(&mut self, keeps_shared: bool) {
        self.at = 0;
        self.takes_shared = !core::mem::take(&mut self.succeeded) && !keeps_shared;
        let now = task::now();
        self.retries_dense = now.saturating_sub(self.dense_tried) > DENSE_RETRY;
        if self.retries_dense {
            self.dense_tried = now;
        }
    }

    fn succeed(&mut self) {
        self.idle = 0;
        self.succeeded = true;
        self.rest = Duration::ZERO;
    }

    /// Notes that the page at `address` is not ours alone: once unshared it can be taken. False when
    /// that was tried: something else holds it.
    fn stop_at_shared(&mut self, address: usize) -> bool {
        if self.shared == address {
            return false;
        }
        (self.shared, self.unshares, self.at) = (address, Unshares::Wanted, address);
        true
    }

    fn fail(&mut self) {
        self.idle = 0;
        self.rest = (self.rest * 2).clamp(SHORTEST_REST, LONGEST_REST);
        self.rests_until = task::now() + self.rest;
    }
}

/// Pages with heat that make a batch's range hot: an eighth of it.
const HOT: usize = BATCH / 8;

/// How many pages a batch is to have: for each batch there is a flush when it is emptied, and a look at what is left.
#[derive(Clone, Copy)]
struct Fill {
    /// With so many it is full enough.
    enough: usize,
    /// Places that are looked at for it at once, and so the most it has.
    most: usize,
}

impl Fill {
    const FOR_EVICTOR: Self = Self { enough: BATCH / 4 * 3, most: BATCH };
    /// The server has a fault to answer, which waits for all of the batch.
    const FOR_SERVER: Self = Self { enough: BATCH / 16 * 3, most: BATCH / 4 };
    /// The same where pages lie scattered: few of as many places have one.
    const OF_SCATTERED: Self = Self { enough: BATCH / 4, most: BATCH };
}

const _: () = assert!(
    Fill::FOR_EVICTOR.most - Fill::FOR_EVICTOR.enough >= 2 * Unit::MAX.pages(),
    "room for a range that is worth it"
);
const _: () = assert!(
    Fill::FOR_SERVER.most - Fill::FOR_SERVER.enough >= Unit::MAX.pages(),
    "room for a unit"
);

/// Bytes that are looked at for a batch, about: nobody is answered meanwhile.
const FAR: usize = 16 * BATCH * PAGE_SIZE;

/// Pages side by side that are worth a TLB shootdown.
const STRETCH: usize = 16;

/// Pages that did not compress are tried again after this time.
const DENSE_RETRY: Duration = Duration::from_secs(10);

/// Tables are looked through for what can be put into huge pages after this time, or sooner when there was
/// something.
const TABLES_LATER: Duration = Duration::from_secs(1);
const TABLES_SOON: Duration = Duration::from_millis(10);

/// Pauses after the sweep went round for nothing.
const SHORTEST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Bytes that the sweep went over: where it looked for cold pages, and where no page was present.
#[derive(Clone, Copy, Default, Debug)]
struct Swept {
    looked_at: usize,
    passed: usize,
}

impl Swept {
    fn add(&mut self, more: Self) {
        self.looked_at += more.looked_at;
        self.passed = self.passed.saturating_add(more.passed);
    }
}

/// What one step of eviction came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evicted {
    /// This many pages went back to the kernel.
    Pages(usize),
    /// Nothing yet, but there is more to look at.
    Nothing,
    /// Every area is in use: others evict.
    Busy,
    /// The sweep has gone through everything without freeing a page.
    Stuck,
    /// The next pages lie scattered, and are left to the server.
    Scattered,
    /// The next pages are shared after a fork; an evictor unshares them first.
    Shared,
}

/// Pages to take: those of `span`, at most a batch, that do not stay.
struct Pick {
    span: Span,
    stays: [bool; BATCH],
}

impl Pick {
    fn address(&self, at: usize) -> usize {
        self.span.start + at * PAGE_SIZE
    }

    /// The first run of pages to take at or behind page number `at` of the span.
    fn run_from(&self, at: usize) -> Option<core::ops::Range<usize>> {
        let pages = &self.stays[..self.span.len() / PAGE_SIZE];
        let start = at + pages.get(at..)?.iter().position(|stays| !stays)?;
        let len = pages[start..].iter().position(|stays| *stays);
        Some(start..len.map_or(pages.len(), |len| start + len))
    }
}

/// A place for one batch, between being taken and being stored. Whoever works on it has the lock; a
/// batch that was set aside is there without anybody.
#[derive(Debug)]
pub(crate) struct Area {
    pub staging: Staging,
    taken: Mutex<Taken>,
}

impl Area {
    pub fn new(staging: Staging) -> Self {
        let taken = Taken {
            pages: 0,
            was: [None; BATCH],
            count: 0,
            swept: Swept::default(),
            refused: [None; BATCH],
            freed: 0,
        };
        Self { staging, taken: Mutex::new(taken) }
    }
}

/// The pages of a batch.
#[derive(Debug)]
struct Taken {
    /// Places gone through; 0 when the area is empty.
    pages: usize,
    /// What each page was; `None` where there was none, and once it is settled.
    was: [Option<Place>; BATCH],
    /// Pages that were there.
    count: usize,
    /// What the sweep went over to find them.
    swept: Swept,
    /// Why the store did not take a page.
    refused: [Option<PutError>; BATCH],
    /// Pages stored, or back for good.
    freed: usize,
}

/// A batch that somebody works on.
pub(crate) struct Batch<'a> {
    pub staging: &'a Staging,
    /// Number of the first page of the staging area, as in [`Place::Parked`].
    base: u32,
    taken: MutexGuard<'a, Taken>,
}

impl Batch<'_> {
    /// Places gone through; of some the page was gone.
    pub fn pages(&self) -> usize {
        self.taken.pages
    }

    /// What page number `at` was.
    pub fn was(&self, at: usize) -> Option<Place> {
        self.taken.was[at]
    }

    pub fn note(&mut self, at: usize, was: Option<Place>) {
        self.taken.was[at] = was;
    }

    /// Notes that `pages` more are stored.
    pub fn note_freed(&mut self, pages: usize) {
        self.taken.freed += pages;
    }

    /// Why the store did not take page number `at`.
    pub fn refused(&self, at: usize) -> Option<PutError> {
        self.taken.refused[at]
    }

    /// Notes that the store did not take page number `at`, or that this is settled.
    pub fn note_refused(&mut self, at: usize, why: Option<PutError>) {
        self.taken.refused[at] = why;
    }

    /// Whether page number `at` starts a unit whose pages were all taken and are still to be stored.
    pub fn has_unit(&self, at: usize, unit: Unit) -> bool {
        let pages = at..at + unit.pages();
        let start = self.staging.address_of(at);
        pages.end <= self.pages()
            && start.is_multiple_of(unit.bytes())
            && self.taken.was[pages.clone()].iter().all(Option::is_some)
            && pages.zip(0..).all(|(at, n)| self.staging.address_of(at) == start + n * PAGE_SIZE)
    }

    pub fn parked(&self, at: usize) -> Word {
        Word::new(Place::Parked(self.base + at as u32))
    }
}

impl Pager {
    /// Stores a batch that was set aside, or takes one of cold pages out and stores it.
    pub fn evict_step(&self, worker: &mut Worker) -> Evicted {
        // The server does not wait for a fork: the thread that forks may wait for it.
        let Some(_work) = start::REST.try_work() else { return Evicted::Stuck };
        self.store_aside(worker).unwrap_or_else(|| self.take_and_store(worker))
    }

    fn take_and_store(&self, worker: &mut Worker) -> Evicted {
        match self.take_one(worker) {
            Ok(batch) => self.finish(worker, batch),
            Err(evicted) => evicted,
        }
    }

    /// Stores a batch that was set aside, if there is one.
    fn store_aside(&self, worker: &mut Worker) -> Option<Evicted> {
        let batch = self.batch(|taken| taken.pages > 0)?;
        Some(self.finish(worker, batch))
    }

    /// Takes a batch out and leaves it to the evictors: to compress is work for another CPU. Taking
    /// and storing alternate, since the kernel flushes TLBs for each stretch that is taken, and a
    /// flush is an interrupt on every CPU where a helper runs, and next to nothing while they sleep.
    pub(crate) fn set_aside(&self, worker: &mut Worker) {
        let Some(_work) = start::REST.try_work() else { return };
        if !worker.takes {
            worker.takes = self.budget.wants_more_eviction()
                && !self.budget.has_aside()
                && self.bell.is_quiet();
        }
        if worker.takes && (!self.budget.wants_batches() || self.take_one(worker).is_err()) {
            worker.takes = false;
            if self.budget.has_aside() {
                self.bell.ring();
            }
        }
    }

    /// Whether evictors are to be woken for what the budget wants. Where pages lie scattered the server takes them and
    /// rings when it has: woken before that, they would be interrupted for each page.
    pub(crate) fn wants_evictors(&self) -> bool {
        let waits_for_server = self.scattered.load(Ordering::Relaxed) && !self.budget.must_wait(0);
        self.budget.wants_eviction() && !waits_for_server
    }

    /// The first area that nobody has and that holds what is wanted.
    fn batch(&self, wanted: impl Fn(&Taken) -> bool) -> Option<Batch<'_>> {
        self.areas.iter().enumerate().find_map(|(n, area)| {
            let taken = area.taken.try_lock().filter(|taken| wanted(taken))?;
            let base = (n * BATCH) as u32;
            let staging = &area.staging;
            Some(Batch { staging, base, taken })
        })
    }

    /// Takes one batch out.
    fn take_one(&self, worker: &mut Worker) -> Result<Batch<'_>, Evicted> {
        let sweep = self.sweep.lock();
        if self.is_stuck() && task::now() < sweep.rests_until {
            return Err(Evicted::Stuck);
        }
        if sweep.unshares != Unshares::Done {
            self.bell.ring();
            return Err(Evicted::Shared);
        }
        drop(sweep);
        let Some(mut batch) = self.batch(|taken| taken.pages == 0) else {
            return Err(Evicted::Busy);
        };
        let swept = self.take_batch(worker, &mut batch).ok_or(Evicted::Scattered)?;
        if batch.taken.count == 0 {
            batch.taken.pages = 0;
            return Err(self.progress(swept, 0));
        }
        batch.taken.swept = swept;
        self.budget.set_aside(batch.taken.count as i64);
        Ok(batch)
    }

    /// Stores what was taken, and gives the frames back. When a fork wants rest the batch is left as it
    /// is, for whoever finds it afterwards.
    fn finish(&self, worker: &mut Worker, mut batch: Batch<'_>) -> Evicted {
        if !self.store_batch(worker, &mut batch) {
            return Evicted::Nothing;
        }
        drop(self.gate.write()); // whoever found a page parked here is done with it now
        self.program.empty(batch.staging, batch.pages());
        let freed = core::mem::take(&mut batch.taken.freed);
        self.budget.took(-(freed as i64));
        self.budget.set_aside(-(batch.taken.count as i64));
        (batch.taken.pages, batch.taken.count) = (0, 0);
        self.progress(batch.taken.swept, freed)
    }

    /// Has the sweep go on at once, which may have failed since nothing could be taken: now it can.
    pub(crate) fn try_again(&self) {
        self.sweep.lock().succeed();
        self.note_stuck(false);
    }

    fn progress(&self, swept: Swept, freed: usize) -> Evicted {
        let managed = self.regions.lock().bytes();
        let mut sweep = self.sweep.lock();
        // A few pages out of many are the hot ones that come back at once: no progress.
        if freed > 0 && freed * 64 >= swept.looked_at / PAGE_SIZE {
            sweep.succeed();
            self.note_stuck(false);
            return Evicted::Pages(freed);
        }
        sweep.idle = sweep.idle.saturating_add(swept.looked_at + swept.passed);
        // Twice round: the first time may only have cleared marks.
        if sweep.idle > 2 * managed + 2 * BATCH * PAGE_SIZE {
            sweep.fail();
            self.note_stuck(true);
            return Evicted::Stuck;
        }
        Evicted::Nothing
    }

    /// Fills `batch` with the next cold pages, of as many ranges as make it full enough; gives what the sweep
    /// went over. `None` when they are not for this worker.
    fn take_batch(&self, worker: &mut Worker, batch: &mut Batch<'_>) -> Option<Swept> {
        let _gate = self.gate.write();
        let Fill { enough, most } = self.fill_for(worker);
        let mut swept = Swept::default();
        while batch.pages() < enough && swept.looked_at < FAR {
            let Some((pick, more)) = self.next_cold(worker, most - batch.pages()) else {
                if batch.pages() == 0 {
                    return None;
                }
                break;
            };
            swept.add(more);
            if !pick.is_some_and(|pick| self.take_picked(batch, pick, &mut swept)) {
                break;
            }
        }
        if batch.pages() > 0 {
            self.mark_parked(worker, batch);
        }
        Some(swept)
    }

    /// How many pages this worker is to take at once.
    fn fill_for(&self, worker: &Worker) -> Fill {
        if !worker.is_server() {
            Fill::FOR_EVICTOR
        } else if self.scattered.load(Ordering::Relaxed) {
            Fill::OF_SCATTERED
        } else {
            Fill::FOR_SERVER
        }
    }

    /// Adds pages to `batch`; false when that came to a stop, or none could be taken: then others are to have
    /// their turn, as there may be none at all.
    fn take_picked(&self, batch: &mut Batch<'_>, mut pick: Pick, swept: &mut Swept) -> bool {
        let before = batch.pages();
        if self.make_cells(&pick.span).is_err() {
            return false;
        }
        let taking = PINS.begin_taking();
        taking.each_within(&pick.span.clone(), start::has_thread, |page| {
            pick.stays[(page - pick.span.start) / PAGE_SIZE] = true;
        });
        let takes_shared = self.sweep.lock().takes_shared;
        if !self.keep_takeable(&mut pick, takes_shared) {
            return false;
        }
        let mut next = 0;
        while let Some(run) = pick.run_from(next) {
            let from = pick.address(run.start)..pick.address(run.end);
            let (pages, stopped) = self.program.take(from, batch.staging, batch.pages());
            next = run.end;
            // All of the run: what was really moved is seen in staging.
            for n in run.clone() {
                batch.staging.note_address(batch.taken.pages, pick.address(n));
                batch.taken.pages += 1;
            }
            if let Some(why) = stopped {
                let at = pick.address(run.start + pages);
                swept.looked_at -= pick.span.end - at;
                self.stop_sweep(at, why);
                return false;
            }
        }
        batch.pages() > before
    }

    /// Has the sweep go on behind the page at `address`, which could not be taken: it is pinned or
    /// locked. One that a fork has shared is tried again when an evictor has unshared it; and when an
    /// event is unread the caller catches up before the sweep comes here again.
    fn stop_sweep(&self, address: usize, why: Errno) {
        let mut sweep = self.sweep.lock();
        if why == Errno::EBUSY && sweep.stop_at_shared(address) {
            self.bell.ring();
        } else if why != Errno::EAGAIN {
            sweep.at = address + PAGE_SIZE;
        } else {
            sweep.at = address;
        }
    }

    /// Has the pages from the one that stopped the sweep on be ours alone, which takes memory while the
    /// other process lives: so a batch at a time. Nothing is held meanwhile, and the server does not do
    /// it: a page that is gone by now is brought back by the server. What lies behind the range may be memory of
    /// ours, such as staging, where nobody would answer.
    fn unshare(&self) {
        let mut sweep = self.sweep.lock();
        if sweep.unshares != Unshares::Wanted {
            return;
        }
        sweep.unshares = Unshares::Begun;
        let (start, takes_shared) = (sweep.shared, sweep.takes_shared);
        drop(sweep);
        let span = self.regions.lock().run_from(start, BATCH * PAGE_SIZE);
        let mut pick = Pick { span, stays: [false; BATCH] };
        self.keep_takeable(&mut pick, takes_shared);
        let mut next = 0;
        while let Some(run) = pick.run_from(next) {
            if memory::unshare(pick.address(run.start)..pick.address(run.end)).is_ok() {
                self.owned.add(run.len() as u64);
            }
            next = run.end;
        }
        self.sweep.lock().unshares = Unshares::Done;
    }

    /// Whether this worker is the one to take pages of `span`. The kernel flushes TLBs once for each
    /// stretch of pages side by side, and a flush costs little on the CPU of the thread that used
    /// them while that is the only one, but an interrupt and a wait from another. So pages that lie
    /// scattered are taken by the server beside a lone thread, unless memory is short.
    fn is_for(&self, worker: &Worker, span: &Span) -> bool {
        let scattered = self.placement.is_lone() && self.program.is_scattered(span, STRETCH);
        self.scattered.store(scattered, Ordering::Relaxed);
        !scattered || worker.is_server() || self.budget.must_wait(0)
    }

    fn make_cells(&self, span: &Span) -> Result<(), crate::table::TableFull> {
        self.table.get_or_make(span.start)?;
        self.table.get_or_make(span.end - 1).map(|_| ())
    }

    /// Leaves only what is present to be taken, and not shared unless that is wanted: staging is filled
    /// without gaps, since it is emptied with a TLB flush for each stretch. False when nothing is known of
    /// the pages.
    fn keep_takeable(&self, pick: &mut Pick, takes_shared: bool) -> bool {
        let mut present = [false; BATCH];
        let start = pick.span.start;
        let scan = self.program.list(Is::Present, pick.span.clone(), |page| {
            present[(page - start) / PAGE_SIZE] = true
        });
        pick.stays.iter_mut().zip(present).for_each(|(stays, present)| *stays |= !present);
        if sharing::shares() && !takes_shared {
            self.program.each_shared(pick.span.clone(), |n| pick.stays[n] = true);
        }
        scan.is_ok()
    }

    /// Marks what was really there. The gate is shut: no word changes but those we change.
    fn mark_parked(&self, worker: &mut Worker, batch: &mut Batch<'_>) {
        let Batch { staging, base, taken, .. } = batch;
        (taken.was, taken.count, taken.refused) = ([None; BATCH], 0, [None; BATCH]);
        let mut copies = 0;
        let scan = self.program.taken(staging, taken.pages, |at| {
            let address = staging.address_of(at);
            let Some(cell) = self.table.get(address) else { return };
            cell.past().leave();
            match cell.load().place() {
                Place::Fresh | Place::Leaving => self.give_zeros_first(address),
                // Brought back by half: an event came in between.
                Place::Stored(_) => self.give_span_first(worker, &(address..address + PAGE_SIZE)),
                Place::Kept(_) | Place::Parked(_) => {}
            }
            let place = cell.replace(Word::new(Place::Parked(*base + at as u32))).place();
            copies += i64::from(matches!(place, Place::Kept(_)));
            taken.was[at] = Some(place);
            taken.count += 1;
        });
        self.budget.copies(-copies);
        assert!(scan.is_ok(), "the pages taken could not be listed: {scan:?}");
    }

    /// The next pages worth taking, at most `room`, and what was swept on the way. `None` when they
    /// are not for this worker: they keep their heat for the one that takes them.
    fn next_cold(&self, worker: &Worker, room: usize) -> Option<(Option<Pick>, Swept)> {
        let regions = self.regions.lock();
        let mut sweep = self.sweep.lock();
        let mut swept = Swept::default();
        while swept.looked_at < 64 * BATCH * PAGE_SIZE {
            let range = self.next_range(&regions, &mut sweep, &mut swept, room);
            let Some(range) = range else { break };
            if !self.is_for(worker, &range) {
                sweep.at = range.start;
                return None;
            }
            let one_by_one = worker.is_server() || self.budget.must_wait(0);
            let pick = self.cold_part(&range, one_by_one, sweep.retries_dense);
            swept.looked_at += range.len();
            sweep.at = range.end;
            if pick.is_some() {
                return Some((pick, swept));
            }
        }
        // No region at all counts as having gone round.
        if regions.bytes() == 0 {
            swept.passed = usize::MAX / 2;
        }
        Some((None, swept))
    }

    /// The next registered range behind the sweep that can be taken in one go: inside one mapping
    /// that is writable now, at most `room` pages, not across a batch's alignment, and begins with a
    /// page that is present. Adds what it passes over to `swept`.
    fn next_range(
        &self,
        regions: &Regions,
        sweep: &mut Sweep,
        swept: &mut Swept,
        room: usize,
    ) -> Option<Span> {
        for _ in 0..1024 {
            let Some(region) = regions.at_or_after(sweep.at) else {
                if sweep.at == 0 {
                    return None;
                }
                sweep.start_round(self.kept_shared().is_some());
                continue;
            };
            let mapping = self.maps.writable_from(region.start).ok().flatten()?;
            let end = region.end.min(mapping.span.end);
            let start = region.start.max(mapping.span.start);
            let present = if mapping.manageable && start < end {
                self.program.first_present(start..end)
            } else {
                None
            };
            if let Some(start) = present {
                self.pass_over(region.start..start, swept);
                let aligned = (start / (BATCH * PAGE_SIZE) + 1) * BATCH * PAGE_SIZE;
                // Not through a unit.
                let last = (start + room * PAGE_SIZE) & !(Unit::MAX.bytes() - 1);
                return Some(start..end.min(aligned).min(last));
            }
            let passed = if mapping.span.start >= region.end { region.end } else { end };
            sweep.at = passed.max(region.start + PAGE_SIZE);
            self.pass_over(region.start..sweep.at, swept);
        }
        None
    }

    /// Notes that the sweep came by `span`, of which no page is there to be taken.
    fn pass_over(&self, span: Span, swept: &mut Swept) {
        swept.passed += span.len();
        self.table.pass(span);
    }

    /// Pages that other processes have too, where they are not worth taking.
    pub(crate) fn kept_shared(&self) -> Option<Shared> {
        sharing::shared().filter(|shared| !self.budget.gains_by(*shared))
    }

    /// What to take of `range`. Pages with heat cool down and are passed over this time: one by one
    /// where that costs little; else (each stretch that is taken costs a TLB shootdown) the hotter
    /// ones, and the whole range if many are hot, but none that are just warm if few are. Pages
    /// that do not compress, and those still leaving, are always passed over.
    fn cold_part(&self, range: &Span, one_by_one: bool, retry_dense: bool) -> Option<Pick> {
        let mut pick = Pick { span: range.clone(), stays: [false; BATCH] };
        let mut hot = 0;
        let too_hot = if one_by_one { 1 } else { WARM + 1 };
        self.table.for_each(range.clone(), |at, cell| {
            cell.past().pass();
            let word = cell.load();
            if word == Word::FRESH {
                return;
            }
            hot += usize::from(word.heat() > 0);
            let stays = word.heat() >= too_hot || self.must_stay(at, word, retry_dense);
            let cleared = match word.place() {
                Place::Leaving if !stays => Word::FRESH,
                _ if stays => word.cooled(),
                _ => word.cooled().compressible(),
            };
            // A word that changed meanwhile was touched, which is what the mark says anyway.
            let _ = cell.change(word, cleared);
            pick.stays[(at - range.start) / PAGE_SIZE] = stays;
        });
        let all_hot = !one_by_one && hot >= HOT;
        (!all_hot && pick.run_from(0).is_some()).then_some(pick)
    }

    fn must_stay(&self, at: usize, word: Word, retry_dense: bool) -> bool {
        match word.place() {
            // Once it is gone, only a fault that we answer can bring new contents.
            Place::Leaving => self.program.is_there(at),
            _ => word.is_dense() && !retry_dense,
        }
    }

    /// One step of this evictor; `None` when there is nothing for it. The last one is a reserve:
    /// memory that is not yet registered can grow without a fault that could wait, and where that
    /// outruns the others, one more takes CPU time from it.
    fn evict_next(&self, worker: &mut Worker) -> Option<Evicted> {
        let is_reserve = worker.number > 1 && worker.number == self.config.evictors();
        if !self.is_armed() || (is_reserve && !self.budget.must_wait(0)) {
            return None;
        }
        self.store_aside(worker)
            .or_else(|| self.budget.wants_more_eviction().then(|| self.take_and_store(worker)))
    }

    /// The life of an evictor: sleeps until there is something to evict, works until there is not.
    pub fn run_evictor(&self, worker: &mut Worker) -> ! {
        self.placement.note_evictor();
        let mut rung = true;
        loop {
            let idle = self.bell.at_work(|| {
                let idle = self.evict_all(worker);
                self.tidy_at_work(!rung);
                idle
            });
            self.enlarge_tables_at_work(worker);
            // Where nothing can be taken, too: what is stored may be what fills the limit.
            if self.shrink_at_work(worker) {
                continue;
            }
            while idle && self.evict_next_at_work(worker).is_none() && self.condense_at_work(worker)
            {
            }
            rung = self.bell.wait();
        }
    }

    /// Evicts as long as it is wanted; false when there is more, which this evictor cannot do.
    fn evict_all(&self, worker: &mut Worker) -> bool {
        loop {
            match self.evict_next_at_work(worker) {
                Some(Evicted::Pages(_)) => {
                    worker.backoff.renew();
                    // As many as keep up with what one batch adds.
                    let _ = (0..SHRUNK_AT_ONCE).all(|_| self.shrink_at_work(worker));
                    self.condense_at_work(worker);
                    self.tidy_at_work(false);
                }
                Some(Evicted::Nothing | Evicted::Busy | Evicted::Shared) => self.catch_up(worker),
                Some(Evicted::Stuck | Evicted::Scattered) => return false,
                None => return true,
            }
        }
    }

    // Between two of these an evictor rests, if a fork wants that.

    fn evict_next_at_work(&self, worker: &mut Worker) -> Option<Evicted> {
        let _work = start::work();
        self.unshare();
        let evicted = self.evict_next(worker);
        self.note_work(worker);
        evicted
    }

    fn condense_at_work(&self, worker: &mut Worker) -> bool {
        let _work = start::work();
        let condensed = self.condense_step(worker, AT_EASE);
        self.note_work(worker);
        condensed
    }

    /// Has the program wait where the store fills the limit: whatever it brings in is stored in the end, and
    /// as fast as it goes evictors cannot condense.
    pub(crate) fn condense_for_fault(&self, worker: &mut Worker) {
        let Some(_work) = start::REST.try_work() else { return };
        if self.condense_step(worker, FOR_A_FAULT) && !self.budget.shares_store() {
            self.store.compact(COMPACT_MOVES);
        }
    }

    fn shrink_at_work(&self, worker: &mut Worker) -> bool {
        let _work = start::work();
        self.shrink_step(worker) == Shrunk::Some
    }

    /// Has tables that have grown use huge pages: a fault looks into four of them, at random. Not what a
    /// child has too, which would be there twice.
    fn enlarge_tables_at_work(&self, worker: &mut Worker) {
        let _work = start::work();
        let now = task::now();
        if now >= worker.looks_at_tables && !sharing::shares() {
            let pause = if self.program.enlarge_tables() { TABLES_SOON } else { TABLES_LATER };
            worker.looks_at_tables = now + pause;
        }
    }

    /// Compacts the pool a little: without it a job that churns does not fit. More where there is time, or the
    /// store fills the limit.
    fn tidy_at_work(&self, has_time: bool) {
        let _work = start::work();
        // What others have too is not moved: it would be ours alone.
        if !self.budget.wants_eviction() || self.budget.shares_store() {
            return;
        }
        if has_time || self.budget.density() > 0 {
            self.store.compact(COMPACT_MOVES);
        } else {
            self.store.tidy(COMPACT_MOVES);
        }
    }
}

/// Rings when there is work for evictors.
#[derive(Debug, Default)]
pub struct Bell {
    state: AtomicU32,
    /// Evictors that store, or tidy up behind that.
    at_work: AtomicU32,
}

impl Bell {
    const SLEEPING: u32 = 1;

    /// Does what no pages are taken beside, if that can wait.
    fn at_work<R>(&self, work: impl FnOnce() -> R) -> R {
        self.at_work.fetch_add(1, Ordering::Relaxed);
        let done = work();
        self.at_work.fetch_sub(1, Ordering::Relaxed);
        done
    }

    /// Whether no evictor is at work. That may have changed already.
    fn is_quiet(&self) -> bool {
        self.at_work.load(Ordering::Relaxed) == 0
    }

    /// Waits for [`Bell::ring`], at most a while; whether it rang.
    fn wait(&self) -> bool {
        self.state.store(Self::SLEEPING, Ordering::SeqCst);
        task::futex_wait(&self.state, Self::SLEEPING, core::time::Duration::from_millis(20));
        self.state.load(Ordering::SeqCst) != Self::SLEEPING
    }

    /// Wakes whoever sleeps; costs a system call only then.
    pub fn ring(&self) {
        if self.state.swap(0, Ordering::SeqCst) == Self::SLEEPING {
            task::futex_wake(&self.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_are_what_does_not_stay_in_order_and_as_long_as_they_can_be(
            staying in proptest::collection::vec(any::<bool>(), 1..BATCH)
        ) {
            let mut pick = Pick { span: 0..staying.len() * PAGE_SIZE, stays: [false; BATCH] };
            pick.stays[..staying.len()].copy_from_slice(&staying);
            let (mut taken, mut next) = (vec![false; staying.len()], 0);
            while let Some(run) = pick.run_from(next) {
                prop_assert!(run.start >= next && !run.is_empty());
                prop_assert!(run.end == staying.len() || staying[run.end]);
                taken[run.clone()].fill(true);
                next = run.end;
            }
            let leaving: Vec<bool> = staying.iter().map(|stays| !stays).collect();
            prop_assert_eq!(taken, leaving);
        }
    }
}
