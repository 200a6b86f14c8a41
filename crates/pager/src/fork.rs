//! A child, from its fork until it can do without us.
//!
//! The child starts with what the parent had present, and with holes where pages were evicted. Its
//! userfaultfd came to us with the event, before it could run. What becomes of it:
//!
//! ```text
//!   the fork was announced       the child has inherited everything of ours, and makes a pager of its
//!   (crate::heir)                own from that; until it has, we answer its faults, and what is about
//!                                to change here is given to it first
//!   it was not, or the child     everything stored is copied into it; then its userfaultfd is closed,
//!   refuses, or takes too long   and it is an ordinary process
//! ```
//! The child runs meanwhile, and may discard, unmap or move ranges: it waits until we read that,
//! and copies made afterwards follow it.

use crate::backoff::Backoff;
use crate::heir::Expected;
use crate::pager::{Pager, Worker};
use crate::program::Ring;
use crate::regions::Span;
use crate::sharing::TELLING;
use crate::table::{Place, Table};
use crate::{heir, sharing, start};
use core::time::Duration;
use octavo_page::sync::Mutex;
use octavo_page::sync::atomic::{AtomicU32, Ordering};
use octavo_page::{PAGE_SIZE, SlotId};
use octavo_store::GetError;
use octavo_sys::uffd::{Event, Stopped, Uffd, Waiters};
use octavo_sys::{Errno, maps, task};

/// Calls of the child that are followed; a child that makes more while it is filled is ended.
const MAX_STEPS: usize = 1024;

/// Children of the child that can wait to be filled.
const MAX_WAITING: usize = 256;

/// Ranges with `MADV_WIPEONFORK` that are known, at most.
const MAX_WIPED: usize = 1024;

/// Children that we answer for at once, at most.
pub(crate) const MAX_CHILDREN: usize = 2;

/// A child's pager has this long to come.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a child is told when it rings: a page of words.
///
/// ```text
///   what it is │ its userfaultfd │ the process that has it │ was it given pages │ ranges gone │ their ends...
/// ```
pub(crate) struct Letter([u64; PAGE_SIZE / 8]);

impl Letter {
    /// The userfaultfd is there to be taken, or the child's alone now.
    pub const YOURS: u64 = 0x4f43_5441_564f_0001;
    /// Everything was brought, and nobody answers any more.
    pub const FILLED: u64 = 0x4f43_5441_564f_0002;

    /// Ranges that fit in a letter.
    const RANGES: usize = (PAGE_SIZE / 8 - Self::HEAD) / 2;

    /// Words before them.
    const HEAD: usize = 5;

    fn new<'a>(what: u64, uffd: i32, given: bool, gone: impl Iterator<Item = &'a Span>) -> Self {
        let mut words = [0; PAGE_SIZE / 8];
        let (head, ranges) = words.split_at_mut(Self::HEAD);
        let mut n = 0;
        for (to, span) in ranges.chunks_exact_mut(2).zip(gone) {
            to.copy_from_slice(&[span.start as u64, span.end as u64]);
            n += 1;
        }
        head.copy_from_slice(&[what, uffd as u64, task::pid() as u64, given.into(), n]);
        Self(words)
    }

    /// The letter that `page` holds.
    pub const fn read(page: [u64; PAGE_SIZE / 8]) -> Self {
        Self(page)
    }

    /// What it is; anything else than a letter is none.
    pub const fn what(&self) -> u64 {
        self.0[0]
    }

    /// The number of the userfaultfd, and the process that has it.
    pub const fn uffd(&self) -> (i32, i32) {
        (self.0[1] as i32, self.0[2] as i32)
    }

    /// Whether the child was given pages since the fork: then that some are present says nothing of what it
    /// has inherited.
    pub const fn given(&self) -> bool {
        self.0[3] != 0
    }

    /// Ranges that the child has discarded or unmapped since the fork.
    pub fn gone(&self) -> impl Iterator<Item = Span> + '_ {
        let n = (self.0[4] as usize).min(Self::RANGES);
        self.0[Self::HEAD..].chunks_exact(2).take(n).map(|ends| ends[0] as usize..ends[1] as usize)
    }

    fn page(&self) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        page.chunks_exact_mut(8)
            .zip(self.0)
            .for_each(|(to, w)| to.copy_from_slice(&w.to_ne_bytes()));
        page
    }
}

/// Ranges of which children get zeros (`MADV_WIPEONFORK`), in order of address.
pub(crate) struct Wiped {
    spans: [Span; MAX_WIPED],
    len: usize,
}

impl Wiped {
    pub const NONE: Self = Self { spans: [const { 0..0 }; MAX_WIPED], len: 0 };

    /// What is said where they cannot be listed.
    pub const UNLISTED: &str = "the ranges that a forked child gets as zeros could not be listed";

    /// Lists those of this address space.
    ///
    /// # Errors
    /// As of [`maps::wiped_on_fork`]; `ENOMEM` when there are too many.
    pub fn list(&mut self) -> octavo_sys::Result<()> {
        self.len = 0;
        let mut fits = Ok(());
        maps::wiped_on_fork(|span| fits = fits.and(self.add(span)))?;
        fits
    }

    fn add(&mut self, span: Span) -> octavo_sys::Result<()> {
        match self.spans[..self.len].last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => {
                *self.spans.get_mut(self.len).ok_or(Errno::ENOMEM)? = span;
                self.len += 1;
            }
        }
        Ok(())
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    pub fn spans(&self) -> &[Span] {
        &self.spans[..self.len]
    }

    fn contains(&self, address: usize) -> bool {
        let behind = self.spans().partition_point(|span| span.end <= address);
        self.spans().get(behind).is_some_and(|span| span.contains(&address))
    }
}

/// What the child did to its ranges since the fork.
struct Steps {
    events: [Option<Event>; MAX_STEPS],
    len: usize,
    /// Children that the child itself has made meanwhile, and the number of steps before each.
    waiting: [(i32, usize); MAX_WAITING],
    waits: usize,
    /// What it got as zeros: looked up when the first page is given, since it takes the kernel long to tell,
    /// unless the child finds that out itself.
    wiped: Wiped,
    is_wiped_known: bool,
    /// Whether it was given a page, or lost one.
    given: bool,
    backoff: Backoff,
}

impl Steps {
    const NONE: Self = Self {
        events: [const { None }; MAX_STEPS],
        len: 0,
        waiting: [(-1, 0); MAX_WAITING],
        waits: 0,
        wiped: Wiped::NONE,
        is_wiped_known: false,
        given: false,
        backoff: Backoff::NEW,
    };

    /// As of a child that waits, and finds out itself what it gets as zeros.
    const ANNOUNCED: Self = Self { is_wiped_known: true, ..Self::NONE };

    /// Where the child has the page now that was at `address` when it was made; `None` when it is
    /// gone or discarded.
    fn locate(&self, address: usize) -> Option<usize> {
        if self.wiped.contains(address) {
            return None;
        }
        let mut at = address;
        for event in self.events.iter().take(self.len).flatten() {
            match event {
                Event::Remove(span) | Event::Unmap(span) if span.contains(&at) => return None,
                Event::Remap { from, to, len } if (*from..from + len).contains(&at) => {
                    at = at - from + to;
                }
                // Something else has come there.
                Event::Remap { to, len, .. } if (*to..to + len).contains(&at) => return None,
                _ => {}
            }
        }
        Some(at)
    }

    /// What is gone; `None` for what was moved.
    fn gone(&self) -> impl Iterator<Item = Option<&Span>> {
        let removed = self.events.iter().take(self.len).flatten().map(|event| match event {
            Event::Remove(span) | Event::Unmap(span) => Some(span),
            _ => None,
        });
        self.wiped.spans().iter().map(Some).chain(removed)
    }

    /// Whether the child has made no children and moved nothing, and what is gone fits in a letter.
    fn is_simple(&self) -> bool {
        self.waits == 0
            && self.gone().all(|span| span.is_some())
            && self.gone().count() <= Letter::RANGES
    }

    /// The letter that gives the child its userfaultfd.
    fn letter(&self, uffd: i32) -> Option<Letter> {
        self.is_simple()
            .then(|| Letter::new(Letter::YOURS, uffd, self.given, self.gone().flatten()))
    }
}

/// A child that we answer for.
struct Child {
    uffd: Uffd,
    steps: Steps,
    until: Duration,
}

impl Child {
    /// Sees to it that who waits for `page` goes on, which was brought or not; false when the child is
    /// gone.
    fn goes_on(&self, page: usize, brought: Result<(), Stopped>) -> bool {
        match brought.map_err(|stopped| stopped.errno) {
            Ok(()) => true,
            // It looks again, and asks again.
            Err(Errno::EAGAIN | Errno::EEXIST | Errno::ENOENT | Errno::ENOMEM) => {
                self.uffd.wake(page..page + PAGE_SIZE).is_ok()
            }
            Err(_) => false,
        }
    }
}

/// The children that we answer for.
pub(crate) struct Nursery {
    len: AtomicU32,
    children: Mutex<[Option<Child>; MAX_CHILDREN]>,
}

/// Static, since it is large and seldom needed.
pub(crate) static NURSERY: Nursery =
    Nursery { len: AtomicU32::new(0), children: Mutex::new([const { None }; MAX_CHILDREN]) };

impl Nursery {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Whether one more would have to be filled at once.
    pub fn is_full(&self) -> bool {
        self.len.load(Ordering::Acquire) as usize >= MAX_CHILDREN
    }

    /// Waits until there is room for one more: children come within their [`PATIENCE`], or are given up.
    pub fn wait_for_room(&self) {
        let until = task::now() + PATIENCE;
        while self.is_full() && task::now() < until {
            task::futex_wait(&self.len, MAX_CHILDREN as u32, start::LOOK);
        }
    }

    fn admit(&self, uffd: Uffd) -> Result<(), Uffd> {
        let mut children = self.children.lock();
        let Some(place) = children.iter_mut().find(|place| place.is_none()) else {
            return Err(uffd);
        };
        let until = task::now() + PATIENCE;
        *place = Some(Child { uffd, steps: Steps::ANNOUNCED, until });
        self.len.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// In a child: those that its parent answered for are none of its own.
    ///
    /// # Safety
    /// Nobody else uses this copy.
    #[allow(unsafe_code)] // the lock may have been inherited shut
    pub unsafe fn forget(&self) {
        // SAFETY: the caller's promise.
        let children = unsafe { &mut *self.children.data_ptr() };
        // Their descriptors are the parent's.
        children.iter_mut().filter_map(Option::take).for_each(core::mem::forget);
        if self.children.is_locked() {
            // SAFETY: whoever holds it is not in this process.
            unsafe { self.children.force_unlock() };
        }
        self.len.store(0, Ordering::Release);
    }

    /// Calls `each` with the descriptor of every child.
    pub fn each_fd(&self, mut each: impl FnMut(&octavo_sys::file::Fd)) {
        self.children.lock().iter().flatten().for_each(|child| each(child.uffd.fd()));
    }
}

/// What becomes of a child that was looked after.
enum Tended {
    Stays,
    /// It has a pager of its own.
    Left,
    /// It is to be filled, unless it is gone.
    Fill,
}

/// What a page is to hold.
#[derive(Clone, Copy)]
enum Content<'a> {
    Page(&'a [u8]),
    /// It was never written.
    Zeros,
    /// What was stored of it is damaged.
    Lost,
}

impl Content<'_> {
    /// Has the page at `address` of `child` hold this, and who waits for it go on.
    fn give(self, child: &Uffd, address: usize) -> Result<(), Stopped> {
        let page = address..address + PAGE_SIZE;
        match self {
            Self::Page(bytes) => child.copy(address, bytes, Waiters::Wake),
            Self::Zeros => child.zero(page, Waiters::Wake),
            Self::Lost => child.poison(page, Waiters::Wake),
        }
    }
}

impl Pager {
    /// A child was made, whose userfaultfd is `raw`. The gate is shut.
    pub(crate) fn forked(&self, worker: &mut Worker, raw: i32) {
        let mut uffd = Uffd::own(raw);
        let expected = heir::expected();
        if expected == Expected::Managed {
            match NURSERY.admit(uffd) {
                Ok(()) => return,
                Err(back) => uffd = back,
            }
        } else {
            sharing::note_fork();
        }
        let mut steps = if expected == Expected::Nothing { Steps::NONE } else { Steps::ANNOUNCED };
        self.fill_family(worker, &uffd, &mut steps);
        sharing::note_come();
    }

    fn find_wiped(&self, steps: &mut Steps) {
        if steps.is_wiped_known {
            return;
        }
        if steps.wiped.list().is_err() {
            self.die(Wiped::UNLISTED);
        }
        steps.is_wiped_known = true;
    }

    /// Looks after the children that we answer for.
    pub(crate) fn nurse(&self, worker: &mut Worker) {
        let _change = heir::change();
        let _gate = self.gate.write();
        let mut children = NURSERY.children.lock();
        for place in children.iter_mut() {
            let Some(child) = place else { continue };
            match self.tend(worker, child) {
                Tended::Stays => continue,
                Tended::Left => {}
                Tended::Fill => {
                    self.fill_family(worker, &child.uffd, &mut child.steps);
                    sharing::note_come();
                }
            }
            *place = None;
            NURSERY.len.fetch_sub(1, Ordering::Release);
        }
    }

    fn tend(&self, worker: &mut Worker, child: &mut Child) -> Tended {
        loop {
            if !child.steps.is_simple() {
                // Its addresses are not ours any more.
                return Tended::Fill;
            }
            let mut event = [const { None }];
            let Ok(read) = child.uffd.read(&mut event) else { return Tended::Fill };
            let page = match read.first().cloned().flatten() {
                None => break,
                Some(Event::Fault { address, .. }) => address & !(PAGE_SIZE - 1),
                Some(event) => {
                    self.note_step(&mut child.steps, event);
                    continue;
                }
            };
            let good = match self.program.ring_at(page) {
                None => self.answer_child(worker, child, page),
                Some(Ring::Refuse) => return Tended::Fill,
                Some(ring) => match child.steps.letter(child.uffd.fd().raw()) {
                    None => return Tended::Fill,
                    Some(letter) => {
                        if ring == Ring::Have {
                            self.count_less();
                        }
                        match self.tell(child, page, &letter) {
                            Ok(true) if ring == Ring::Have => return Tended::Left,
                            told => told.is_ok(),
                        }
                    }
                },
            };
            if !good {
                return Tended::Fill;
            }
        }
        if task::now() < child.until { Tended::Stays } else { Tended::Fill }
    }

    /// Has what is a child's not count here any more: it will there, when it has our letter.
    fn count_less(&self) {
        let _telling = TELLING.lock();
        let pages = sharing::part_of_child(self.budget.used());
        sharing::note_come();
        self.budget.took(-pages);
        self.member.note_more_common(u64::try_from(pages).unwrap_or(0));
        self.member.say(self.budget.used(), self.budget.floor());
    }

    /// Answers a fault of a child from what is stored; false when the child is gone. Whatever had
    /// changed here since the fork, it was given before.
    fn answer_child(&self, worker: &mut Worker, child: &mut Child, page: usize) -> bool {
        let place = self.table.word(page).place();
        let here = child.steps.locate(page).is_some();
        let content = match place {
            Place::Stored(slot) if here => self.read_stored(worker, slot),
            Place::Parked(at) if here => Content::Page(self.parked_page(at)),
            _ => Content::Zeros,
        };
        child.steps.given = true;
        child.goes_on(page, content.give(&child.uffd, page))
    }

    /// Brings a child the answer to its ring, or has it ring again; an error when it is gone.
    fn tell(&self, child: &Child, page: usize, letter: &Letter) -> Result<bool, ()> {
        let told = child.uffd.copy(page, &letter.page(), Waiters::Wake);
        if child.goes_on(page, told) { Ok(told.is_ok()) } else { Err(()) }
    }

    fn read_stored<'a>(&self, worker: &'a mut Worker, slot: SlotId) -> Content<'a> {
        match self.store.get(&mut worker.scratch, slot, &mut worker.page) {
            Ok(()) => Content::Page(&worker.page),
            Err(GetError::Damaged { .. } | GetError::Lost { .. } | GetError::Poisoned { .. }) => {
                Content::Lost
            }
            Err(GetError::Empty { .. }) => self.die("a stored page is missing for a fork"),
        }
    }

    /// Gives the children that we answer for the pages `bytes` from `address` on, which are about to
    /// change here. The gate is held.
    pub(crate) fn give_first(&self, address: usize, bytes: &[u8]) {
        if NURSERY.is_empty() {
            return;
        }
        for (n, page) in bytes.chunks_exact(PAGE_SIZE).enumerate() {
            self.give_content_first(address + n * PAGE_SIZE, Content::Page(page));
        }
    }

    /// As [`Pager::give_first`], of a page of which nothing is stored, and now will be: a child that has not
    /// inherited it has zeros there. What is written here, mapped or moved to there is not the child's.
    pub(crate) fn give_zeros_first(&self, address: usize) {
        if !NURSERY.is_empty() {
            self.give_content_first(address, Content::Zeros);
        }
    }

    /// As [`Pager::give_first`], of a page that is lost.
    pub(crate) fn lose_first(&self, address: usize) {
        if !NURSERY.is_empty() {
            self.give_content_first(address, Content::Lost);
        }
    }

    fn give_content_first(&self, address: usize, content: Content<'_>) {
        for child in NURSERY.children.lock().iter_mut().flatten() {
            self.fill(&child.uffd, &mut child.steps, address, content);
        }
    }

    /// As [`Pager::give_first`], of all that is stored of `span`.
    pub(crate) fn give_span_first(&self, worker: &mut Worker, span: &Span) {
        if NURSERY.is_empty() {
            return;
        }
        for child in NURSERY.children.lock().iter_mut().flatten() {
            self.fill_span(worker, &child.uffd, &mut child.steps, span.clone());
        }
    }

    /// Gives a child everything it would have had, and lets go of it; then the children it made
    /// meanwhile. The last made is filled first: its history is the longest, and that of those before
    /// it is a part of it.
    fn fill_family(&self, worker: &mut Worker, child: &Uffd, steps: &mut Steps) {
        self.fill_span(worker, child, steps, Table::everywhere());
        self.let_go(child, steps);
        while let Some(last) = steps.waits.checked_sub(1) {
            steps.waits = last;
            let (raw, before) = steps.waiting[last];
            steps.len = before;
            let child = Uffd::own(raw);
            self.fill_span(worker, &child, steps, Table::everywhere());
            self.let_go(&child, steps);
        }
    }

    /// Tells a child that it has everything: its userfaultfd is about to be closed. Its helper may be about
    /// to ring, with a copy of that, and would wait for ever. Every child has the pages to ring with, unless it
    /// unmapped or moved them.
    fn let_go(&self, child: &Uffd, steps: &mut Steps) {
        let page = Letter::new(Letter::FILLED, -1, true, [].iter()).page();
        for bell in Ring::ALL.map(|ring| self.program.bell(ring)) {
            while steps.locate(bell).is_some() {
                match child.copy(bell, &page, Waiters::Wake).map_err(|stopped| stopped.errno) {
                    Err(Errno::EAGAIN | Errno::ENOMEM) => self.follow(child, steps),
                    _ => break,
                }
            }
            let _ = child.wake(bell..bell + PAGE_SIZE);
        }
    }

    fn fill_span(&self, worker: &mut Worker, child: &Uffd, steps: &mut Steps, span: Span) {
        let mut alive = true;
        self.table.for_each(span, |address, cell| {
            if !alive {
                return;
            }
            let content = match cell.load().place() {
                Place::Stored(slot) => self.read_stored(worker, slot),
                Place::Parked(at) => Content::Page(self.parked_page(at)),
                Place::Fresh | Place::Leaving | Place::Kept(_) => return,
            };
            alive = self.fill(child, steps, address, content);
        });
    }

    /// Copies one page into the child, wherever it has it now; false when the child is gone.
    fn fill(&self, child: &Uffd, steps: &mut Steps, address: usize, content: Content<'_>) -> bool {
        self.find_wiped(steps);
        steps.given = true;
        loop {
            let Some(at) = steps.locate(address) else { return true };
            let brought = content.give(child, at).or_else(|stopped| match stopped.errno {
                // Nothing is there; or the child was moving it away while we waited for its mappings,
                // and will tell. Until that is read every call is refused, before it looks.
                Errno::ENOENT => content.give(child, at),
                _ => Err(stopped),
            });
            match brought.map_err(|stopped| stopped.errno) {
                Ok(()) | Err(Errno::EEXIST | Errno::ENOENT) => return true,
                Err(Errno::EAGAIN) => self.follow(child, steps),
                Err(Errno::ENOMEM) => steps.backoff.pause(),
                Err(_) => return false,
            }
        }
    }

    /// Reads what the child did.
    fn follow(&self, child: &Uffd, steps: &mut Steps) {
        let mut events = [const { None }; 16];
        let Ok(read) = child.read(&mut events) else { return };
        for event in read.iter().flatten() {
            if let Event::Fault { address, .. } = event {
                // It looks again, and asks again.
                let _ = child.wake(address & !(PAGE_SIZE - 1)..(address | (PAGE_SIZE - 1)) + 1);
            } else {
                self.note_step(steps, event.clone());
            }
        }
        if read.is_empty() {
            steps.backoff.pause();
        } else {
            steps.backoff.renew();
        }
    }

    fn note_step(&self, steps: &mut Steps, event: Event) {
        if let Event::Fork { uffd } = event {
            let Some(waiting) = steps.waiting.get_mut(steps.waits) else {
                self.die("a forked child made children faster than they could be filled")
            };
            *waiting = (uffd, steps.len);
            steps.waits += 1;
            return;
        }
        let Some(step) = steps.events.get_mut(steps.len) else {
            self.die("a forked child changed its mappings faster than it could be filled")
        };
        *step = Some(event);
        steps.len += 1;
    }
}
