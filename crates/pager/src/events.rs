//! What happens to ranges: discarded, unmapped, moved.
//!
//! The thread of the program that makes such a call waits until its event is read, and while one is
//! unread every MOVE and COPY of ours fails. So an event is read and applied with the gate shut:
//! whoever takes pages or answers faults sees the table from before, and fails, or from after.
//!
//! A discard is told *before* it happens, and no delay is long enough to be sure that it has. So
//! its pages that are present are marked `Leaving`: they are not taken until they were seen absent
//! or a fault brought new contents.
//!
//! Moves and unmaps of several threads may be told in another order than they happened in:
//! [`crate::changes`] finds the true one.

use crate::changes::{Changes, Memory, Move, Told};
use crate::heir;
use crate::pager::{Pager, Worker};
use crate::regions::Span;
use crate::serve::Fault;
use crate::start;
use crate::table::{Cell, Place, Word};
use octavo_page::PAGE_SIZE;
use octavo_sys::scan::Is;
use octavo_sys::uffd::Event;

/// When memory that was moved is listed as memory to evict from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    Now,
    /// By the watch, when it finds it there: the move was only guessed to be the next.
    Later,
}

impl Pager {
    /// Reads once what there is to read: applies events, queues faults. What was read may be
    /// behind something unread; then the answer to it fails, and `catch_up` reads on.
    pub fn read_events(&self, worker: &mut Worker) {
        let mut events = [const { None }; 16];
        if start::REST.is_wanted() && !self.program.has_events() {
            return;
        }
        // Before anything is read: who waits for that goes on then.
        let _change = heir::change();
        let _gate = self.gate.write();
        let mut changes = self.changes.lock();
        loop {
            let Ok(read) = self.program.read(&mut events) else {
                self.die("the userfaultfd cannot be read")
            };
            for event in read.iter().flatten() {
                self.hear(worker, &mut changes, event);
            }
            while let Some(told) = changes.next(self) {
                self.follow_told(worker, told, Listed::Now);
            }
            // Nobody may look while something that was told is not followed.
            if changes.is_empty() {
                return;
            }
            if self.program.is_settled() {
                while let Some(told) = changes.next_of_all(self) {
                    self.follow_told(worker, told, Listed::Later);
                }
                return;
            }
            worker.backoff.pause();
        }
    }

    /// While an event is unread nothing goes on, nor before the thread that waited for its reading
    /// has run: whoever reads events does, and everybody lets others run.
    pub(crate) fn catch_up(&self, worker: &mut Worker) {
        if worker.is_server() {
            self.read_events(worker);
        }
        worker.backoff.pause();
    }

    fn hear(&self, worker: &mut Worker, changes: &mut Changes, event: &Event) {
        let told = match event {
            Event::Fault { address, write, thread } => {
                let page = address & !(PAGE_SIZE - 1);
                worker.faults.push(Fault { page, write: *write, thread: *thread });
                return;
            }
            Event::Remove(span) => Told::Removed(span.clone()),
            Event::Unmap(span) => Told::Unmapped(span.clone()),
            Event::Remap { from, to, len } => Told::Moved(Move { from: *from, to: *to, len: *len }),
            Event::Fork { uffd } => Told::Forked(*uffd),
        };
        self.counters.events.add(1);
        worker.backoff.renew();
        while changes.is_full()
            && let Some(told) = changes.next_of_all(self)
        {
            self.follow_told(worker, told, Listed::Later);
        }
        changes.hear(told, self);
    }

    fn follow_told(&self, worker: &mut Worker, told: Told, listed: Listed) {
        let is_elsewhere = matches!(&told, Told::Removed(span) if !worker.has_decoded(span));
        if !is_elsewhere {
            worker.decoded = None; // it may not be the page's any more
        }
        match told {
            Told::Removed(span) => {
                self.give_span_first(worker, &span);
                self.removed(&span);
            }
            Told::Unmapped(span) => self.unmapped(worker, &span),
            Told::Moved(what) => {
                if listed == Listed::Later {
                    // What is known there, if anything, is memory that is gone: else the move would wait.
                    self.unmapped(worker, &what.target());
                }
                self.give_span_first(worker, &what.source());
                self.moved(what);
                // A full list only means that these pages are evicted no more.
                if listed == Listed::Later || !self.regions.lock().add(what.target()) {
                    self.note_unlisted(what.target());
                }
            }
            Told::Forked(uffd) => self.forked(worker, uffd),
        }
    }

    fn unmapped(&self, worker: &mut Worker, span: &Span) {
        self.give_span_first(worker, span);
        self.leave_ranges(span);
        self.forget_span(span);
    }

    /// What is stored of `span` is nobody's any more.
    pub(crate) fn forget_span(&self, span: &Span) {
        self.table.for_each(span.clone(), |_, cell| self.forget(cell));
    }

    /// The contents of `span` are nobody's any more.
    fn removed(&self, span: &Span) {
        self.forget_span(span);
        let marked = self.program.list(Is::There, span.clone(), |page| {
            match self.table.get_or_make(page) {
                Ok(cell) => drop(cell.replace(Word::new(Place::Leaving))),
                // What cannot be marked must not be taken at all.
                Err(_) => self.regions.lock().remove(page..page + PAGE_SIZE),
            }
        });
        if marked.is_err() {
            self.regions.lock().remove(span.clone());
        }
    }

    pub(crate) fn forget(&self, cell: Cell<'_>) {
        match cell.replace(Word::FRESH).place() {
            Place::Stored(slot) => self.store.free(&[slot]),
            Place::Kept(slot) => {
                self.budget.copies(-1);
                self.store.free(&[slot]);
            }
            Place::Fresh | Place::Leaving | Place::Parked(_) => {}
        }
    }

    /// Notes that `span` is registered, or part of it, though it is not in the list: events tell of it.
    pub(crate) fn note_unlisted(&self, span: Span) {
        // Where the list is full an event may be taken for another's, as it was before there was a list.
        let _ = self.unlisted.lock().add(span);
    }

    /// `span` is not the program's any more, or what is there now is not registered.
    fn leave_ranges(&self, span: &Span) {
        self.regions.lock().remove(span.clone());
        self.unlisted.lock().remove(span.clone());
        self.have_listed_again(span);
    }

    /// Has the watch list mappings again, some of which `span` may have become.
    pub(crate) fn have_listed_again(&self, span: &Span) {
        self.unmapped.add((span.len() / PAGE_SIZE) as u64);
    }

    /// What we know of pages moves after them, to where nothing is known.
    fn moved(&self, what: Move) {
        let Move { from, to, len } = what;
        let mut lost = false;
        self.table.for_each(from..from + len, |at, cell| {
            let word = cell.load();
            if word == Word::FRESH {
                return;
            }
            let address = at - from + to;
            let Ok(target) = self.table.get_or_make(address) else {
                lost = true;
                return;
            };
            self.give_zeros_first(address);
            self.move_word(cell, target, word, address);
        });
        if lost {
            self.die("no table is left for the addresses that memory was moved to");
        }
        // Of the place that it left we are told once more, unless that stays mapped.
        self.regions.lock().remove(what.source());
        self.note_unlisted(what.source());
        self.have_listed_again(&what.source());
    }

    /// Moves `word` from one cell to another. An evictor may be settling a parked page at this
    /// moment: it looks at the old cell, then for the page's address, then at the new cell. So the
    /// new cell is right before the address says so, and both are before the old cell is cleared.
    fn move_word(&self, from: Cell<'_>, to: Cell<'_>, mut word: Word, address: usize) {
        loop {
            to.replace(word);
            if let Place::Parked(at) = word.place() {
                self.note_parked_address(at, address);
            }
            match from.change(word, Word::FRESH) {
                Ok(()) => return,
                Err(found) => word = found,
            }
        }
    }
}

impl Memory for Pager {
    fn is_known(&self, span: &Span) -> bool {
        let mut known = self.regions.lock().overlaps(span) || self.unlisted.lock().overlaps(span);
        if !known {
            self.table.for_each(span.clone(), |_, cell| known |= cell.load() != Word::FRESH);
        }
        known
    }

    fn is_mapped(&self, span: &Span) -> bool {
        // Where that cannot be known, it may be.
        let mapping = self.maps.any_from(span.start);
        mapping.map_or(true, |mapping| mapping.is_some_and(|mapping| mapping.span.start < span.end))
    }
}
