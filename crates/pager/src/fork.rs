//! A fork gives a correct, unmanaged child.
//!
//! The child starts with what the parent had present, and with holes where pages were evicted. Its
//! userfaultfd came to us with the event, before it could run. Everything the parent has stored is
//! copied into the child; then its userfaultfd is closed, and the child is an ordinary process.
//!
//! The child runs meanwhile, and may discard, unmap or move ranges: it waits until we read that,
//! and copies made afterwards follow it. The gate stays shut, so that the parent's pages are what
//! they were at the fork.

use crate::pager::{Pager, Worker};
use crate::regions::Span;
use crate::table::{Place, Table};
use octavo_page::PAGE_SIZE;
use octavo_sys::Errno;
use octavo_sys::uffd::{Event, Stopped, Uffd, Waiters};
use octavo_sys::{maps, task};

/// Calls of the child that are followed; a child that makes more while it is filled is ended.
const MAX_STEPS: usize = 1024;

/// Children of the child that can wait to be filled.
const MAX_WAITING: usize = 256;

/// Ranges with `MADV_WIPEONFORK` that are known, at most.
const MAX_WIPED: usize = 1024;

/// What the child did to its ranges since the fork.
struct Steps {
    events: [Option<Event>; MAX_STEPS],
    len: usize,
    /// Children that the child itself has made meanwhile, and the number of steps before each.
    waiting: [(i32, usize); MAX_WAITING],
    waits: usize,
    /// Ranges of which children get zeros (`MADV_WIPEONFORK`), in order of address.
    wiped: [Span; MAX_WIPED],
    wipes: usize,
}

impl Steps {
    /// Where the child has the page now that was at `address` when it was made; `None` when it is
    /// gone or discarded.
    fn locate(&self, address: usize) -> Option<usize> {
        let wiped = &self.wiped[..self.wipes];
        let behind = wiped.partition_point(|span| span.end <= address);
        if wiped.get(behind).is_some_and(|span| span.contains(&address)) {
            return None;
        }
        let mut at = address;
        for event in self.events.iter().take(self.len).flatten() {
            match event {
                Event::Remove(span) | Event::Unmap(span) if span.contains(&at) => return None,
                Event::Remap { from, to, len } if (*from..from + len).contains(&at) => {
                    at = at - from + to;
                }
                _ => {}
            }
        }
        Some(at)
    }
}

impl Pager {
    /// Gives the child whose userfaultfd is `raw` everything it would have had; then the children
    /// it made meanwhile. The last made is filled first: its history is the longest, and that of
    /// those before it is a part of it.
    pub(crate) fn forked(&self, worker: &mut Worker, raw: i32) {
        let mut steps = Steps {
            events: [const { None }; MAX_STEPS],
            len: 0,
            waiting: [(raw, 0); MAX_WAITING],
            waits: 1,
            wiped: [const { 0..0 }; MAX_WIPED],
            wipes: 0,
        };
        self.find_wiped(&mut steps);
        while let Some(last) = steps.waits.checked_sub(1) {
            steps.waits = last;
            let (raw, before) = steps.waiting[last];
            steps.len = before;
            self.fill_child(worker, &Uffd::own(raw), &mut steps);
        }
    }

    fn find_wiped(&self, steps: &mut Steps) {
        let mut n = 0usize;
        let listed = maps::wiped_on_fork(|span| {
            if let Some(last) = n.checked_sub(1).and_then(|last| steps.wiped.get_mut(last))
                && last.end == span.start
            {
                last.end = span.end;
                return;
            }
            if let Some(wiped) = steps.wiped.get_mut(n) {
                *wiped = span;
            }
            n += 1;
        });
        if listed.is_err() || n > MAX_WIPED {
            self.die("the ranges that a forked child gets as zeros could not be listed");
        }
        steps.wipes = n;
    }

    fn fill_child(&self, worker: &mut Worker, child: &Uffd, steps: &mut Steps) {
        let mut alive = true;
        self.table.for_each(Table::everywhere(), |address, cell| {
            if !alive {
                return;
            }
            let page = match cell.load().place() {
                Place::Stored(slot) => {
                    let out = &mut worker.page[..];
                    match self.store.get(&mut worker.scratch, slot, out) {
                        Ok(()) => &worker.page[..],
                        Err(_) => self.die("a stored page could not be read for a fork"),
                    }
                }
                Place::Parked(at) => self.parked_page(at),
                Place::Fresh | Place::Leaving | Place::Kept(_) => return,
            };
            alive = self.fill(child, steps, address, page);
        });
    }

    /// Copies one page into the child, wherever it has it now; false when the child is gone.
    fn fill(&self, child: &Uffd, steps: &mut Steps, address: usize, page: &[u8]) -> bool {
        debug_assert_eq!(page.len(), PAGE_SIZE);
        loop {
            let Some(at) = steps.locate(address) else { return true };
            match child.copy(at, page, Waiters::Wake) {
                Ok(()) | Err(Stopped { errno: Errno::EEXIST | Errno::ENOENT, .. }) => return true,
                Err(Stopped { errno: Errno::EAGAIN, .. }) => self.follow(child, steps),
                Err(Stopped { errno: Errno::ENOMEM, .. }) => task::yield_now(),
                Err(_) => return false,
            }
        }
    }

    /// Reads what the child did.
    fn follow(&self, child: &Uffd, steps: &mut Steps) {
        let mut events = [const { None }; 16];
        let Ok(read) = child.read(&mut events) else { return };
        for event in read.iter().flatten() {
            // Faults need no answer: the page is on its way, or the end of this wakes them all.
            if matches!(event, Event::Fault { .. }) {
                continue;
            }
            if let Event::Fork { uffd } = event {
                let Some(waiting) = steps.waiting.get_mut(steps.waits) else {
                    self.die("a forked child made children faster than they could be filled")
                };
                *waiting = (*uffd, steps.len);
                steps.waits += 1;
                continue;
            }
            let Some(step) = steps.events.get_mut(steps.len) else {
                self.die("a forked child changed its mappings faster than it could be filled")
            };
            *step = Some(event.clone());
            steps.len += 1;
        }
        if read.is_empty() {
            task::yield_now();
        }
    }
}
