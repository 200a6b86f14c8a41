//! Answering faults.
//!
//! A server reads what the userfaultfd tells. Events come first, with the gate shut (see
//! [`crate::events`]); then each fault, with the gate open for readers: look the page up, bring its
//! contents, change its word. A MOVE or COPY that finds an event unread fails with `EAGAIN`; then
//! what we looked up may be out of date, and the whole answer starts again after reading.
//!
//! | the page is | answer |
//! |---|---|
//! | fresh | zeros: for a write a page of its own, and more ahead of a writer that goes on in order |
//! | stored | its unit is decoded once, and the neighbours that are only there come along |
//! | kept | it came back already, for another thread: wake; or it was discarded since: zeros |
//! | parked | copied out of staging |

use crate::changes::overlap;
use crate::evict::Evicted;
use crate::heir;
use crate::pager::{Left, Pager, Worker};
use crate::program::Brought;
use crate::regions::Span;
use crate::stream::{Ahead, Order};
use crate::table::{Cell, HOTTEST, Place, Word};
use core::ops::RangeInclusive;
use core::time::Duration;
use octavo_backing::Lost;
use octavo_page::sync::atomic::Ordering;
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{Form, GetError, UnitInfo};
use octavo_sys::task;

/// Fresh pages given at once to a writer that goes on in order, at most.
const AHEAD: usize = 16;

/// Batches that a fault evicts before it goes on, at most: far more than it needs, unless hardly
/// anything can be evicted, and then the limit is exceeded rather than the fault left waiting.
const STEPS: u32 = 4;

/// An evictor unshares a batch of pages in some such time.
const UNSHARED_WITHIN: Duration = Duration::from_micros(100);

/// One fault in so many is timed: reading the clock is a system call.
const TIMED: u64 = 8;

static ZEROS: [u8; AHEAD * PAGE_SIZE] = [0; AHEAD * PAGE_SIZE];

/// A fault to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Address of the page.
    pub page: usize,
    /// It was a write.
    pub write: bool,
    /// The thread that waits.
    pub thread: u32,
}

impl Fault {
    /// The page's addresses.
    pub(crate) const fn span(self) -> Span {
        self.page..self.page + PAGE_SIZE
    }
}

/// What came of an attempt to answer.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Answer {
    /// Who waits for these pages can go on: they are there.
    Done(Span),
    /// The page is no memory of ours any more, or an event is unread that says so: nothing was brought.
    Gone,
    /// An event is unread.
    Stale,
    NoMemory,
    /// The word changed under us: look again.
    Again,
}

impl Pager {
    /// Answers one fault. The thread is woken last, with nothing held: beside a lone thread the server
    /// is off its CPU from then on until the next fault.
    pub fn answer(&self, worker: &mut Worker, fault: Fault) {
        let timed = self.counters.faults.next().is_multiple_of(TIMED);
        let start = timed.then(task::now);
        if let Some(now) = start {
            self.measure_if_late(now);
        }
        self.make_room(worker);
        worker.decoded = None;
        worker.backoff.renew();
        // All of it is one piece for a fork, which waits for the end before it begins.
        let change = heir::change();
        let ready = loop {
            if worker.left.is_full() {
                self.free_left(worker);
            }
            let gate = self.gate.read();
            let answer = self.try_answer(worker, fault);
            drop(gate);
            match answer {
                Answer::Done(span) => break span,
                // Whoever still waits looks again.
                Answer::Gone => break fault.span(),
                Answer::Again => {}
                Answer::Stale => self.catch_up(worker),
                Answer::NoMemory => {
                    if self.evict_step(worker) == Evicted::Stuck {
                        worker.backoff.pause();
                    }
                }
            }
        };
        if let Some(start) = start {
            self.counters.fault_time.note(task::now().saturating_sub(start));
        }
        drop(change);
        self.program.wake(ready);
    }

    /// Frees what pages that came back have left in the store. Work, or a change, has begun.
    pub(crate) fn free_left(&self, worker: &mut Worker) {
        self.store.free(worker.left.take());
    }

    /// Makes sure that a few pages more stay within the limit, or finds that they cannot.
    fn make_room(&self, worker: &mut Worker) {
        if self.scattered.load(Ordering::Relaxed) {
            self.set_aside(worker);
        } else if self.budget.wants_eviction() {
            self.bell.ring();
        }
        if !self.budget.must_wait(AHEAD as u64) {
            return;
        }
        self.counters.waited.add(1);
        for _ in 0..STEPS {
            if !self.budget.must_wait(AHEAD as u64) || !self.budget.above_floor() {
                break;
            }
            match self.evict_step(worker) {
                Evicted::Pages(_) => {}
                Evicted::Nothing | Evicted::Busy => self.catch_up(worker),
                Evicted::Shared => task::sleep(UNSHARED_WITHIN),
                Evicted::Stuck | Evicted::Scattered => break,
            }
        }
        if self.budget.is_full() {
            self.condense_for_fault(worker);
        }
        self.shrink_for_fault(worker);
    }

    fn try_answer(&self, worker: &mut Worker, fault: Fault) -> Answer {
        match self.table.word(fault.page).place() {
            Place::Fresh => self.give_fresh(worker, fault),
            Place::Leaving => self.give_discarded(worker, fault),
            Place::Stored(slot) => self.give_stored(worker, fault, slot),
            Place::Parked(at) => self.give_parked(fault, at),
            Place::Kept(_) if self.program.is_there(fault.page) => Answer::Done(fault.span()),
            Place::Kept(_) => self.lose_kept(fault),
        }
    }

    /// A fault on a page that came back and is gone again: a discard that was told before it came back has
    /// happened since.
    fn lose_kept(&self, fault: Fault) -> Answer {
        if let Some(cell) = self.table.get(fault.page) {
            self.forget(cell);
        }
        Answer::Again
    }

    /// A fault on a page that was being discarded: it is gone now, and new contents begin. Or it is still
    /// there, and the fault was of before.
    fn give_discarded(&self, worker: &mut Worker, fault: Fault) -> Answer {
        if self.program.is_there(fault.page) {
            return Answer::Done(fault.span());
        }
        let answer = self.give_fresh(worker, fault);
        if matches!(answer, Answer::Done(_))
            && let Some(cell) = self.table.get(fault.page)
        {
            let _ = cell.change(Word::new(Place::Leaving), Word::FRESH);
        }
        answer
    }

    fn give_fresh(&self, worker: &mut Worker, fault: Fault) -> Answer {
        self.counters.fresh_faults.add(1);
        let pages = self.fresh_ahead(worker, fault.page);
        // To who only reads as well: the page that the kernel has for zeros would cost nothing, but when
        // such memory is written, it grows as fast as it can without a fault that could wait.
        let zeros = ZEROS.get(..pages * PAGE_SIZE).unwrap_or(&ZEROS);
        let brought = self.program.bring(fault.page, zeros);
        if pages > 1 && brought == Brought::Gone {
            // Past the end of the mapping, perhaps: the page alone.
            return self.brought(fault, self.program.bring(fault.page, &ZEROS[..PAGE_SIZE]), 1);
        }
        self.brought(fault, brought, pages)
    }

    /// Fresh pages to give at `page`: one, or up to the folio's end behind who goes on in order.
    fn fresh_ahead(&self, worker: &mut Worker, page: usize) -> usize {
        let in_order = worker.fresh_end == page;
        let to_end = AHEAD - (page / PAGE_SIZE) % AHEAD;
        let wanted = if in_order { to_end } else { 1 };
        let pages = (1..wanted)
            .find(|n| self.table.word(page + n * PAGE_SIZE).place() != Place::Fresh)
            .unwrap_or(wanted);
        worker.fresh_end = page + pages * PAGE_SIZE;
        pages
    }

    fn brought(&self, fault: Fault, brought: Brought, pages: usize) -> Answer {
        match brought {
            Brought::All => {
                self.budget.took(pages as i64);
                Answer::Done(fault.page..fault.page + pages.max(1) * PAGE_SIZE)
            }
            Brought::There(n) => {
                self.budget.took(n as i64);
                Answer::Done(fault.page..fault.page + (n + 1) * PAGE_SIZE)
            }
            Brought::Stale => Answer::Stale,
            Brought::NoMemory => Answer::NoMemory,
            Brought::Gone => Answer::Gone,
        }
    }

    fn give_parked(&self, fault: Fault, at: u32) -> Answer {
        let parked = Word::new(Place::Parked(at));
        let answer = self.brought(fault, self.program.bring(fault.page, self.parked_page(at)), 1);
        self.give_first(fault.page, self.parked_page(at));
        if matches!(answer, Answer::Done(_))
            && let Some(cell) = self.table.get(fault.page)
        {
            // It was in use all the time.
            let _ = cell.past().come_back();
            if cell.change(parked, Word::FRESH.heated(HOTTEST)).is_err()
                && let Place::Stored(slot) = cell.load().place()
            {
                // The evictor was faster: what it stored is what we brought.
                self.keep(cell, slot, HOTTEST);
            }
        }
        answer
    }

    /// Brings a stored page with the rest of its unit, which is decoded anyway; and for a reader
    /// that goes on in order, what lies ahead.
    fn give_stored(&self, worker: &mut Worker, fault: Fault, slot: SlotId) -> Answer {
        if let Some(run) = self.still_decoded(worker, fault.page) {
            return self.give_run(worker, fault, run);
        }
        let Some(unit) = self.store.unit_of(slot) else { return Answer::Again };
        let wanted = (slot.get() - unit.first.get()) as usize;
        let along = |n: &usize| {
            let at = fault.page.checked_sub((wanted - n) * PAGE_SIZE);
            at.is_some_and(|at| {
                self.table.word(at).place() == Place::Stored(unit.first.offset(*n as u32))
            })
        };
        let before = (0..wanted).rev().take_while(along).count();
        let first = fault.page - before * PAGE_SIZE;
        let ahead = worker.stream.follow(first);
        let (start, pages) = if self.comes_alone(worker, fault.page, &unit, ahead) {
            (fault.page, 1..=1)
        } else {
            let run = if ahead.is_run() { ahead.pages } else { 1 };
            (first, run.max(before + 1)..=RUN)
        };
        let mut run = match self.decode_run(worker, start, pages) {
            Ok(run) => run,
            Err(GetError::Empty { .. }) => return Answer::Again,
            Err(_) => return self.give_alone(worker, fault, slot),
        };
        worker.locality.note_back(run.pages);
        let (last, pages) = if ahead.is_run() {
            (run.span().end - PAGE_SIZE, run.pages)
        } else {
            (ahead.behind(fault.page).last().unwrap_or(fault.page), ahead.pages)
        };
        worker.stream.note(last, pages);
        run.order = worker.stream.order();
        self.note_order(worker);
        let answer = self.give_run(worker, fault, run);
        if !ahead.is_run() && matches!(answer, Answer::Done(_)) {
            self.give_steps(worker, fault, ahead);
        }
        answer
    }

    /// Brings what lies ahead of a reader who goes on in steps, as far as that is simple: the rest can wait for its own
    /// fault.
    fn give_steps(&self, worker: &mut Worker, fault: Fault, ahead: Ahead) {
        for page in ahead.behind(fault.page) {
            if worker.left.is_full() {
                self.free_left(worker);
            }
            let Ok(mut run) = self.decode_run(worker, page, 1..=1) else { continue };
            run.order = worker.stream.order();
            let beside = Fault { page, write: false, thread: fault.thread };
            if !matches!(self.give_run(worker, beside, run), Answer::Done(_)) {
                worker.decoded = None;
                break;
            }
            self.counters.neighbours.add(1);
        }
    }

    /// Tells the budget, now and then, whether all that comes back is for who reads in order for long.
    fn note_order(&self, worker: &mut Worker) {
        if let Some(all_long) = worker.stream.is_all_long() {
            self.budget.only_passes(all_long);
        }
    }

    /// What was decoded for `page` and could not be brought: the time between two events may be too short to decode
    /// it in. A page that is still stored has the contents that it had, in whichever slot.
    fn still_decoded(&self, worker: &mut Worker, page: usize) -> Option<Decoded> {
        let is_stored = |run: &Decoded| {
            let mut pages = run.span().step_by(PAGE_SIZE).zip(&run.slots);
            pages.all(|(at, slot)| self.table.word(at).place() == Place::Stored(*slot))
        };
        worker.decoded.take().filter(|run| run.span().contains(&page) && is_stored(run))
    }

    /// Whether this page is to come back without the others of its unit: for a trial, or since the program
    /// jumps. Half of a unit at most is left behind as dead bytes: the page after that takes the rest along.
    fn comes_alone(&self, worker: &mut Worker, page: usize, unit: &UnitInfo, ahead: Ahead) -> bool {
        let streams = ahead.is_orderly();
        let locality = &mut worker.locality;
        let tried = locality.note_asked(page);
        if streams {
            locality.note_stream();
        }
        if ahead.is_stepped() {
            // What is stored until he has come to all of that once more.
            locality.note_steps(2 * self.budget.holds());
        }
        let is_stored = |at| matches!(self.table.word(at).place(), Place::Stored(_));
        let tried =
            tried || (!streams && locality.try_beside(page, self.budget.in_use(), is_stored));
        if self.jumps.load(Ordering::Relaxed) != locality.jumps() {
            self.jumps.store(locality.jumps(), Ordering::Relaxed);
        }
        let rest = (unit.wanted.count_ones() as usize).saturating_sub(1);
        !streams && (tried || (locality.jumps() && 2 * rest >= unit.pages))
    }

    /// Decodes the stored pages from `start` on: as many as `pages` has for the least, and to the end of the
    /// unit that the last of them is in, but no more than it has for the most.
    fn decode_run(
        &self,
        worker: &mut Worker,
        start: usize,
        pages: RangeInclusive<usize>,
    ) -> Result<Decoded, GetError> {
        let mut run =
            Decoded { start, slots: [SlotId::new(0); RUN], pages: 0, order: Order::Jumps };
        let (least, most) = pages.into_inner();
        while run.pages < least {
            let at = start + run.pages * PAGE_SIZE;
            let Place::Stored(slot) = self.table.word(at).place() else { break };
            let Some(unit) = self.store.unit_of(slot) else { break };
            let in_unit = unit.pages - (slot.get() - unit.first.get()) as usize;
            let follows = |n: &usize| {
                let word = self.table.word(at + n * PAGE_SIZE);
                word.place() == Place::Stored(slot.offset(*n as u32))
            };
            // Single pages in slots side by side are decoded together.
            let reach = if unit.pages == 1 { least - run.pages } else { in_unit };
            let mut pages = (0..reach.min(most - run.pages)).take_while(follows).count();
            let Some(out) = worker.run.get_mut(run.pages * PAGE_SIZE..).filter(|_| pages > 0)
            else {
                break;
            };
            let mut read = self.store.get(&mut worker.scratch, slot, &mut out[..pages * PAGE_SIZE]);
            if read.is_err() && unit.pages == 1 && pages > 1 {
                pages = 1;
                read = self.store.get(&mut worker.scratch, slot, &mut out[..PAGE_SIZE]);
            }
            match read {
                Ok(()) => {}
                // What lies ahead can wait for its own fault.
                Err(_) if run.pages > 0 => break,
                Err(error) => return Err(error),
            }
            for n in 0..pages {
                run.slots[run.pages + n] = slot.offset(n as u32);
            }
            run.pages += pages;
        }
        if run.pages == 0 { Err(GetError::Empty { slot: SlotId::new(0) }) } else { Ok(run) }
    }

    /// Gives the pages that were decoded.
    fn give_run(&self, worker: &mut Worker, fault: Fault, run: Decoded) -> Answer {
        let start = run.start;
        let Worker { run: bytes, left, .. } = worker;
        let bytes = &bytes[..run.pages * PAGE_SIZE];
        let (brought, there) = match self.program.bring(start, bytes) {
            Brought::All => (run.pages, run.pages),
            // One was there already: another server has just brought it, or an earlier attempt of
            // ours that an event cut short. It is noted too, or it would stop us for ever.
            Brought::There(n) => (n, n + 1),
            // The run goes over the end of a mapping: the page alone.
            Brought::Gone if run.pages > 1 => {
                let at = (fault.page - start) / PAGE_SIZE;
                let page = &bytes[at * PAGE_SIZE..(at + 1) * PAGE_SIZE];
                return self.give_page(left, fault, run.slots[at], page, run.order);
            }
            Brought::Stale => {
                worker.decoded = Some(run);
                return Answer::Stale;
            }
            other => return self.brought(fault, other, 0),
        };
        self.give_first(start, bytes);
        self.budget.took(brought as i64);
        self.counters.neighbours.add(brought.saturating_sub(1) as u64);
        for (n, slot) in run.slots.iter().enumerate().take(there.min(run.pages)) {
            let at = start + n * PAGE_SIZE;
            self.note_back(left, fault, at, *slot, run.order);
        }
        if fault.page >= start + there * PAGE_SIZE {
            return Answer::Again;
        }
        Answer::Done(start..start + there * PAGE_SIZE)
    }

    fn give_page(
        &self,
        left: &mut Left,
        fault: Fault,
        slot: SlotId,
        page: &[u8],
        order: Order,
    ) -> Answer {
        let brought = self.program.bring(fault.page, page);
        if matches!(brought, Brought::All | Brought::There(_)) {
            self.give_first(fault.page, page);
            self.note_back(left, fault, fault.page, slot, order);
        }
        self.brought(fault, brought, 1)
    }

    /// Notes that the page at `at` came back from `slot`. For who reads in order for long the copy is kept
    /// while there is room, unless the page is about to be written: when it leaves, that costs no compression.
    /// What came back for itself may stay for long, and a copy would take the room of other pages: but not
    /// one that another process has too. To free that frees nothing, and what is stored instead when the
    /// page leaves again is this process's alone.
    fn note_back(&self, left: &mut Left, fault: Fault, at: usize, slot: SlotId, order: Order) {
        let Some(cell) = self.table.get(at) else { return };
        let touched = at == fault.page;
        let is_kept = self.is_common(slot)
            || (order == Order::Long
                && self.budget.has_room_for_copies()
                && !self.is_too_dense(slot));
        let wanted = touched && order == Order::Jumps;
        let heat = if wanted { cell.past().come_back() } else { 0 };
        if is_kept && !(touched && fault.write) {
            self.keep(cell, slot, heat);
            return;
        }
        let back = Word::FRESH.heated(heat);
        if cell.change(Word::new(Place::Stored(slot)), back).is_ok() {
            left.push(slot);
        }
    }

    /// Whether what this slot holds was stored more densely than it would be now.
    fn is_too_dense(&self, slot: SlotId) -> bool {
        let fast = self.tier_at(0).codec;
        let is_denser =
            |unit: UnitInfo| matches!(unit.form, Form::Compressed(codec) if codec != fast);
        self.budget.density() == 0 && self.store.unit_of(slot).is_some_and(is_denser)
    }

    /// Whether another process most likely has what this slot holds too, in the same frames.
    pub(crate) fn is_common(&self, slot: SlotId) -> bool {
        self.budget.shares_store() && self.store.is_older_than_fork(slot)
    }

    fn keep(&self, cell: Cell<'_>, slot: SlotId, heat: u32) {
        let kept = Word::new(Place::Kept(slot)).heated(heat);
        if cell.change(Word::new(Place::Stored(slot)), kept).is_ok() {
            self.budget.copies(1);
        }
    }

    /// Something of the unit is damaged; this page itself may not be.
    fn give_alone(&self, worker: &mut Worker, fault: Fault, slot: SlotId) -> Answer {
        match self.store.get(&mut worker.scratch, slot, &mut worker.page) {
            Ok(()) => {
                let Worker { page, left, .. } = worker;
                self.give_page(left, fault, slot, page, Order::Jumps)
            }
            Err(GetError::Empty { .. }) => Answer::Again,
            Err(GetError::Lost { lost, .. }) => self.lose(fault, slot, Some(lost)),
            Err(GetError::Damaged { .. } | GetError::Poisoned { .. }) => {
                self.lose(fault, slot, None)
            }
        }
    }

    /// A page whose stored bytes are damaged: SIGBUS for whoever touches it, never wrong bytes.
    fn lose(&self, fault: Fault, slot: SlotId, in_file: Option<Lost>) -> Answer {
        let answer = self.brought(fault, self.program.poison(fault.page), 0);
        if matches!(answer, Answer::Done(_)) {
            self.lose_first(fault.page);
            self.counters.lost.add(1);
            self.store.free(&[slot]);
            if let Some(cell) = self.table.get(fault.page) {
                let _ = cell.change(Word::new(Place::Stored(slot)), Word::FRESH);
            }
            self.say_lost(fault.page, in_file);
        }
        answer
    }
}

/// Pages brought back at once, at most: a whole unit of the largest size.
pub const RUN: usize = Unit::MAX.pages();

/// Pages decoded into a worker's buffer, side by side, and the slot of each.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// Address of the first.
    start: usize,
    slots: [SlotId; RUN],
    pages: usize,
    /// How the one reads whom they are for.
    order: Order,
}

impl Decoded {
    const fn span(&self) -> Span {
        self.start..self.start + self.pages * PAGE_SIZE
    }
}

impl Worker {
    /// Whether it has pages of `span` that are still to be brought.
    pub(crate) fn has_decoded(&self, span: &Span) -> bool {
        self.decoded.as_ref().is_some_and(|run| overlap(&run.span(), span))
    }
}
