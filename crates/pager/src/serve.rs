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
//! | kept | it came back already, for another thread: wake |
//! | parked | copied out of staging |

use crate::evict::Evicted;
use crate::pager::{Pager, Worker};
use crate::program::Brought;
use crate::table::{Place, Word};
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::GetError;
use octavo_sys::task;

/// Fresh pages given at once to a writer that goes on in order, at most.
const AHEAD: usize = 16;

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

/// What came of an attempt to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Done,
    /// An event is unread.
    Stale,
    NoMemory,
    /// The word changed under us: look again.
    Again,
}

impl Pager {
    /// Answers one fault.
    pub fn answer(&self, worker: &mut Worker, fault: Fault) {
        let start = task::now();
        self.counters.faults.add(1);
        self.last_thread.store(fault.thread);
        self.make_room(worker);
        loop {
            let gate = self.gate.read();
            let answer = self.try_answer(worker, fault);
            drop(gate);
            match answer {
                Answer::Done => break,
                Answer::Again => {}
                Answer::Stale => self.catch_up(worker),
                Answer::NoMemory => {
                    if self.evict_step(worker) == Evicted::Stuck {
                        task::yield_now();
                    }
                }
            }
        }
        self.counters.fault_time.note(task::now().saturating_sub(start));
    }

    /// Makes sure that a few pages more stay within the limit, or finds that they cannot.
    fn make_room(&self, worker: &mut Worker) {
        if self.budget.wants_eviction() {
            self.bell.ring();
        }
        if !self.budget.must_wait(AHEAD as u64) {
            return;
        }
        self.counters.waited.add(1);
        while self.budget.must_wait(AHEAD as u64) && self.above_floor() {
            match self.evict_step(worker) {
                Evicted::Pages(_) => {}
                Evicted::Nothing => self.catch_up(worker),
                Evicted::Stuck => break,
            }
        }
    }

    fn try_answer(&self, worker: &mut Worker, fault: Fault) -> Answer {
        match self.table.word(fault.page).place() {
            Place::Fresh => self.give_fresh(worker, fault),
            Place::Leaving => self.give_discarded(worker, fault),
            Place::Stored(slot) => self.give_stored(worker, fault, slot),
            Place::Parked(at) => self.give_parked(fault, at),
            Place::Kept(_) => {
                self.program.wake(fault.page);
                Answer::Done
            }
        }
    }

    /// A fault on a page that was being discarded: it is gone now, and new contents begin.
    fn give_discarded(&self, worker: &mut Worker, fault: Fault) -> Answer {
        let answer = self.give_fresh(worker, fault);
        if answer == Answer::Done
            && let Some(cell) = self.table.get(fault.page)
        {
            let _ = cell.change(Word::new(Place::Leaving), Word::FRESH);
        }
        answer
    }

    fn give_fresh(&self, worker: &mut Worker, fault: Fault) -> Answer {
        self.counters.fresh_faults.add(1);
        if !fault.write {
            return self.brought(fault, self.program.bring_zero(fault.page), 0);
        }
        let pages = self.fresh_ahead(worker, fault.page);
        let zeros = ZEROS.get(..pages * PAGE_SIZE).unwrap_or(&ZEROS);
        let brought = self.program.bring(fault.page, zeros);
        if pages > 1 && brought == Brought::Gone {
            // Past the end of the mapping, perhaps: the page alone.
            return self.brought(fault, self.program.bring(fault.page, &ZEROS[..PAGE_SIZE]), 1);
        }
        self.brought(fault, brought, pages)
    }

    /// Fresh pages to give at `page`: one, or up to the folio's end behind a writer in order.
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
                Answer::Done
            }
            Brought::There(n) => {
                self.budget.took(n as i64);
                self.program.wake(fault.page);
                Answer::Done
            }
            Brought::Stale => Answer::Stale,
            Brought::NoMemory => Answer::NoMemory,
            Brought::Gone => {
                self.program.wake(fault.page);
                Answer::Done
            }
        }
    }

    fn give_parked(&self, fault: Fault, at: u32) -> Answer {
        let parked = Word::new(Place::Parked(at));
        let answer = self.brought(fault, self.program.bring(fault.page, self.parked_page(at)), 1);
        if answer == Answer::Done
            && let Some(cell) = self.table.get(fault.page)
            && cell.change(parked, Word::FRESH.recent()).is_err()
            && let word = cell.load()
            && let Place::Stored(slot) = word.place()
        {
            // The evictor was faster: what it stored is what we brought.
            let _ = cell.change(word, Word::new(Place::Kept(slot)).recent());
        }
        answer
    }

    /// Brings the unit of a stored page: every page of it that lies in the store only, where the
    /// program has it.
    fn give_stored(&self, worker: &mut Worker, fault: Fault, slot: SlotId) -> Answer {
        let Some(unit) = self.store.unit_of(slot) else { return Answer::Again };
        let wanted = (slot.get() - unit.first.get()) as usize;
        let Some(base) = fault.page.checked_sub(wanted * PAGE_SIZE) else { return Answer::Again };
        let along = |n: usize| {
            let word = self.table.word(base + n * PAGE_SIZE);
            word.place() == Place::Stored(unit.first.offset(n as u32))
        };
        let first = (0..wanted).rev().take_while(|n| along(*n)).last().unwrap_or(wanted);
        let end = (wanted + 1..unit.pages).find(|n| !along(*n)).unwrap_or(unit.pages);
        let Worker { scratch, unit: buffer, .. } = worker;
        let Some(out) = buffer.get_mut(..(end - first) * PAGE_SIZE) else { return Answer::Again };
        match self.store.get(scratch, unit.first.offset(first as u32), out) {
            Ok(()) => self.give_run(fault, base + first * PAGE_SIZE, unit.first, first, out),
            Err(GetError::Empty { .. }) => Answer::Again,
            Err(GetError::Damaged { .. } | GetError::Poisoned { .. }) => self.lose(fault, slot),
        }
    }

    /// Gives the decoded pages `out`, which start at `address` and belong to the slots of a unit
    /// from number `first` on.
    fn give_run(
        &self,
        fault: Fault,
        address: usize,
        unit: SlotId,
        first: usize,
        out: &[u8],
    ) -> Answer {
        let pages = out.len() / PAGE_SIZE;
        let brought = self.program.bring(address, out);
        let there = match brought {
            Brought::All => pages,
            Brought::There(n) => n,
            // The unit goes over the end of a mapping: the page alone.
            Brought::Gone if pages > 1 => {
                let at = (fault.page - address) / PAGE_SIZE;
                let page = &out[at * PAGE_SIZE..(at + 1) * PAGE_SIZE];
                return self.give_run(fault, fault.page, unit, first + at, page);
            }
            _ => return self.brought(fault, brought, 0),
        };
        self.budget.took(there as i64);
        self.counters.neighbours.add(there.saturating_sub(1) as u64);
        for n in 0..there {
            let slot = unit.offset((first + n) as u32);
            let kept = Word::new(Place::Kept(slot));
            let at = address + n * PAGE_SIZE;
            let to = if at == fault.page { kept.recent() } else { kept };
            if let Some(cell) = self.table.get(at) {
                let _ = cell.change(Word::new(Place::Stored(slot)), to);
            }
        }
        if fault.page < address + there * PAGE_SIZE {
            return Answer::Done;
        }
        // Stopped at a page that another server has just brought.
        Answer::Again
    }

    /// A page whose stored bytes are damaged: SIGBUS for whoever touches it, never wrong bytes.
    fn lose(&self, fault: Fault, slot: SlotId) -> Answer {
        let answer = self.brought(fault, self.program.poison(fault.page), 0);
        if answer == Answer::Done {
            self.counters.lost.add(1);
            self.store.free(&[slot]);
            if let Some(cell) = self.table.get(fault.page) {
                let _ = cell.change(Word::new(Place::Stored(slot)), Word::FRESH);
            }
            self.say_lost(fault.page);
        }
        answer
    }
}

/// Pages of the largest unit, for the buffer that units are decoded into.
pub const UNIT_BUFFER: usize = Unit::MAX.bytes();
