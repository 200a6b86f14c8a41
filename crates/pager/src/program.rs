//! The program's memory: how pages leave it and how they come back.
//!
//! This is the seam to the machine. What is decided about pages lies elsewhere; whoever wants other
//! ways for a page to leave (copy and discard) or for a fault to arrive replaces this file.
//!
//! ```text
//!   program's range ──MOVE──► staging ──MOVE──► bin ──discard──► kernel
//!        ▲                       │
//!        └───COPY (a restore) or MOVE (a page nobody could store)
//! ```
//! Taken pages are the program's own frames, which somebody may still hold by other means (a pipe
//! after `vmsplice`). So they are read, and then given back to the kernel; they are never written.
//!
//! Staging is registered with the program's userfaultfd, so that a MOVE out fails while an event is
//! unread. The bin is registered with another one that has no events, so that discarding it does
//! not wait for ourselves.
#![allow(unsafe_code)] // moves page tables, and reads memory by address

use crate::backoff::Backoff;
use crate::regions::Span;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use octavo_page::PAGE_SIZE;
use octavo_sys::file::Fd;
use octavo_sys::memory::{self, Reserve};
use octavo_sys::scan::{Is, PageMap, Run};
use octavo_sys::uffd::{Event, Stopped, Uffd, Waiters, feature};
use octavo_sys::{Errno, Result, uring};

/// Pages taken out at once, at most: 1 MiB. One MOVE costs one TLB shootdown whatever its length.
pub const BATCH: usize = 256;

/// What must be there for a program to be managed.
pub const FEATURES: u64 = feature::FORK
    | feature::REMAP
    | feature::REMOVE
    | feature::UNMAP
    | feature::THREAD_ID
    | feature::POISON
    | feature::MOVE;

/// What came of bringing a page back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Brought {
    /// All of it is there now.
    All,
    /// This many pages; then one was there already.
    There(usize),
    /// An event is unread: what we know may be out of date. Read it, then look again.
    Stale,
    /// The range is no longer registered, or the process is gone.
    Gone,
    /// The kernel has no memory for it.
    NoMemory,
}

impl Brought {
    fn of(outcome: core::result::Result<(), Stopped>) -> Self {
        match outcome {
            Ok(()) => Self::All,
            Err(Stopped { done, errno: Errno::EEXIST }) => Self::There(done / PAGE_SIZE),
            Err(Stopped { errno: Errno::EAGAIN, .. }) => Self::Stale,
            Err(Stopped { errno: Errno::ENOMEM, .. }) => Self::NoMemory,
            Err(_) => Self::Gone,
        }
    }
}

/// The program's memory.
#[derive(Debug)]
pub struct Program {
    uffd: Uffd,
    bin: Uffd,
    page_map: PageMap,
    /// A page that is registered and present, and behind it those that children ring with, which each of them
    /// inherits: what is brought there is never written over memory of their own.
    probe: Reserve,
}

/// Where the probe is of a process that answers for its children, in each of those too; 0 before.
static PROBE: AtomicUsize = AtomicUsize::new(0);

const fn bell(probe: usize, ring: Ring) -> usize {
    probe + ring as usize * PAGE_SIZE
}

fn read(bell: usize) -> [u64; PAGE_SIZE / 8] {
    // SAFETY: a page of the probe, which nobody writes; where it is missing this waits until it is not.
    unsafe { (bell as *const [u64; PAGE_SIZE / 8]).read_volatile() }
}

/// As [`Program::ring`], where there may be no pager: `None` where the parent had none either.
#[must_use]
pub fn ring(ring: Ring) -> Option<[u64; PAGE_SIZE / 8]> {
    answers_children().then(|| read(bell(PROBE.load(Ordering::Acquire), ring)))
}

/// Whether children of this process are to ring.
#[must_use]
pub fn answers_children() -> bool {
    PROBE.load(Ordering::Acquire) != 0
}

/// What a forked child tells whoever answers for it: each is a page that it touches, and it goes on
/// when that page is brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ring {
    /// Its pager is there, and asks for the userfaultfd.
    Come = 1,
    /// Its pager has that, and answers from now on.
    Have = 2,
    /// It will have no pager: everything is to be brought.
    Refuse = 3,
}

impl Ring {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Come, Self::Have, Self::Refuse];
}

impl Program {
    /// Opens what it takes.
    ///
    /// # Errors
    /// As of [`Uffd::open`] and [`PageMap::open`].
    pub fn open() -> Result<Self> {
        let uffd = Uffd::open(FEATURES)?;
        let probe = Reserve::new((1 + Ring::ALL.len()) * PAGE_SIZE, c"octavo probe")?;
        uffd.register(probe.span())?;
        let page = probe.start()..probe.start() + PAGE_SIZE;
        uffd.zero(page, Waiters::Leave).map_err(|stopped| stopped.errno)?;
        Ok(Self { uffd, bin: Uffd::open(feature::MOVE)?, page_map: PageMap::open()?, probe })
    }

    /// Whether no event is unread, nor still to be told by a thread in the middle of a call.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let page = self.probe.start()..self.probe.start() + PAGE_SIZE;
        let present = self.uffd.zero(page, Waiters::Leave);
        present.is_err_and(|stopped| stopped.errno == Errno::EEXIST)
    }

    /// The page that a child touches for `ring`.
    #[must_use]
    pub const fn bell(&self, ring: Ring) -> usize {
        bell(self.probe.start(), ring)
    }

    /// What it means that a child touches `page`, if that.
    #[must_use]
    pub fn ring_at(&self, page: usize) -> Option<Ring> {
        Ring::ALL.into_iter().find(|ring| self.bell(*ring) == page)
    }

    /// In a forked child, rings; gives the page that was brought for that.
    #[must_use]
    pub fn ring(&self, ring: Ring) -> [u64; PAGE_SIZE / 8] {
        read(self.bell(ring))
    }

    /// Has the children of this process ring from now on, also those to whom no pager is left. Before,
    /// nobody would read of a fork.
    ///
    /// # Errors
    /// As of [`Reserve::leave_to_every_child`].
    pub fn hang_bells(&self) -> Result<()> {
        self.probe.leave_to_every_child()?;
        PROBE.store(self.probe.start(), Ordering::Release);
        Ok(())
    }

    /// In a forked child, makes the descriptors that its copy of this names.
    ///
    /// # Errors
    /// As of [`Uffd::open`], [`Uffd::register`] and [`PageMap::open`].
    pub fn inherit(&self, uffd: Uffd, areas: &[&Staging]) -> Result<()> {
        self.uffd.become_like(uffd)?;
        self.bin.become_like(Uffd::open(feature::MOVE)?)?;
        self.page_map.become_like(PageMap::open()?)?;
        areas.iter().try_for_each(|area| self.bin.register(area.bin.span()))
    }

    /// In a forked child that has its answers, makes the pages that it rings with missing again, for its
    /// own children.
    pub fn silence(&self, staging: &Staging) {
        let bells = self.bell(Ring::Come)..self.probe.span().end;
        let bin = staging.bin.start()..staging.bin.start() + bells.len();
        // SAFETY: nobody reads these pages any more.
        let moved = unsafe { self.bin.move_pages(bells, bin.start) };
        assert!(moved.is_ok(), "the answers could not be put away: {moved:?}");
        // SAFETY: nobody looks into the bin.
        unsafe { staging.bin.discard(bin) };
    }

    /// Has what is registered stay so until the program's memory is gone. Where the kernel allows no rings
    /// the descriptors of the helper and its guard have to do.
    pub fn hold(&self) {
        let _ = uring::hold(self.uffd.fd());
    }

    /// Whether the memory at `address` is registered; waits until that can be told.
    #[must_use]
    pub fn has(&self, address: usize) -> bool {
        let mut backoff = Backoff::NEW;
        loop {
            if let Some(answer) = self.uffd.has(address) {
                return answer;
            }
            backoff.pause();
        }
    }

    /// Readable when there is something to [`Program::read`].
    #[must_use]
    pub const fn fd(&self) -> &Fd {
        self.uffd.fd()
    }

    /// Whether there is something to [`Program::read`].
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.fd().is_readable()
    }

    /// Faults and events, oldest faults first; empty when there is nothing.
    ///
    /// # Errors
    /// None but bugs.
    pub fn read<'a>(&self, events: &'a mut [Option<Event>]) -> Result<&'a [Option<Event>]> {
        self.uffd.read(events)
    }

    /// Has faults of `span` come to us from now on.
    ///
    /// # Errors
    /// As of [`Uffd::register`].
    pub fn register(&self, span: Span) -> Result<()> {
        self.uffd.register(span)
    }

    /// Copies `from` to the missing pages at `to`. Who waits there has still to be woken, without a
    /// lock held: a woken thread may take the CPU from us at once, for as long as it likes.
    pub fn bring(&self, to: usize, from: &[u8]) -> Brought {
        Brought::of(self.uffd.copy(to, from, Waiters::Leave))
    }

    /// Makes the missing page at `address` one that raises SIGBUS; wakes nobody.
    pub fn poison(&self, address: usize) -> Brought {
        Brought::of(self.uffd.poison(address..address + PAGE_SIZE, Waiters::Leave))
    }

    /// Wakes who waits for pages of `span`; they look again.
    pub fn wake(&self, span: Span) {
        // Fails only when the range is gone, and then nobody waits.
        let _ = self.uffd.wake(span);
    }

    /// Takes the pages `from` out of the program into empty `staging`, to the places from number `at`
    /// on. Gives how many places were gone through, and why no more; those of absent pages stay empty.
    pub fn take(&self, from: Span, staging: &Staging, at: usize) -> (usize, Option<Errno>) {
        let pages = from.len() / PAGE_SIZE;
        assert!(at + pages <= BATCH, "more than a batch");
        // SAFETY: the range is registered (the caller's regions say so, and EAGAIN says when they
        // may be out of date), so whoever misses a page faults, and the caller serves it from
        // staging or from where it puts the contents.
        how_far(pages, unsafe { self.uffd.move_pages(from, staging.address(at)) })
    }

    /// Puts the taken pages with the numbers `run` of `staging` back to where `address` is, frames and
    /// all. Gives how many were, and why no more.
    pub fn put_back(
        &self,
        staging: &Staging,
        run: Range<usize>,
        address: usize,
    ) -> (usize, Option<Errno>) {
        let from = staging.address(run.start)..staging.address(run.end);
        // SAFETY: the pages came from there and nobody else knows them in staging.
        how_far(run.len(), unsafe { self.uffd.move_pages(from, address) })
    }

    /// Calls `each` with the number of every page that `staging` holds among its first `pages`.
    ///
    /// # Errors
    /// As of the scan.
    pub fn taken(
        &self,
        staging: &Staging,
        pages: usize,
        mut each: impl FnMut(usize),
    ) -> Result<()> {
        let start = staging.pages.start();
        let span = start..start + pages * PAGE_SIZE;
        self.list(Is::There, span, |page| each((page - start) / PAGE_SIZE))
    }

    /// Whether the page at `address` is there, present or not; so it is when that cannot be known.
    #[must_use]
    pub fn is_there(&self, address: usize) -> bool {
        let mut found = false;
        let listed = self.list(Is::There, address..address + PAGE_SIZE, |_| found = true);
        found || listed.is_err()
    }

    /// The first present page of `span`.
    #[must_use]
    pub fn first_present(&self, span: Span) -> Option<usize> {
        self.page_map.first_present(span).ok()?
    }

    /// Whether the pages of `span` lie in stretches shorter than `pages` on average, as far as a few
    /// dozen of them tell.
    #[must_use]
    pub fn is_scattered(&self, span: &Span, pages: usize) -> bool {
        let mut runs = [Run::default(); 32];
        self.page_map.list(Is::Present, span.clone(), &mut runs).is_ok_and(|(found, _)| {
            let present: usize = found.iter().map(|run| run.span().len() / PAGE_SIZE).sum();
            present < found.len() * pages
        })
    }

    /// Puts a piece of our tables into a huge page, where one is nearly full; whether there was one.
    pub fn enlarge_tables(&self) -> bool {
        memory::collapse(&self.page_map).unwrap_or(false)
    }

    /// Calls `each` with the number of every page of `span`, at most a batch, that another process may
    /// have too.
    pub fn each_shared(&self, span: Span, mut each: impl FnMut(usize)) {
        let mut words = [0u64; BATCH];
        let words = &mut words[..span.len() / PAGE_SIZE];
        if self.page_map.read(span.start, words).is_ok() {
            let shared = words.iter().enumerate().filter(|(_, word)| PageMap::is_shared(**word));
            shared.for_each(|(n, _)| each(n));
        }
    }

    /// Pages of `span` that another process may have too.
    #[must_use]
    pub fn count_shared(&self, span: Span) -> u64 {
        let mut count = 0;
        for start in span.clone().step_by(BATCH * PAGE_SIZE) {
            let end = span.end.min(start + BATCH * PAGE_SIZE);
            self.each_shared(start..end, |_| count += 1);
        }
        count
    }

    /// Calls `each` with the address of every page of `span` that is as wanted.
    ///
    /// # Errors
    /// As of the scan.
    pub fn list(&self, is: Is, span: Span, mut each: impl FnMut(usize)) -> Result<()> {
        let mut at = span.start;
        while at < span.end {
            let mut runs = [Run::default(); 64];
            let (found, walked) = self.page_map.list(is, at..span.end, &mut runs)?;
            found.iter().flat_map(|run| run.span().step_by(PAGE_SIZE)).for_each(&mut each);
            at = if found.len() < runs.len() { span.end } else { walked };
        }
        Ok(())
    }

    /// Gives whatever `staging` still holds among its first `pages` back to the kernel. A page that the
    /// kernel itself is just moving to another frame has to be waited for, and one that a child has
    /// inherited is made our own; and where it stops, more may have been moved than it says, so the bin
    /// is emptied before the next attempt. Why it stopped is told only to who begins there: behind what was
    /// moved, or was not there, it is `EAGAIN` whatever the reason.
    pub fn empty(&self, staging: &Staging, pages: usize) {
        let len = pages * PAGE_SIZE;
        let (from, to) = (staging.pages.start(), staging.bin.start());
        let mut at = 0;
        let mut backoff = Backoff::NEW;
        loop {
            // SAFETY: the caller holds staging alone, so these contents are nobody's any more.
            let moved = unsafe { self.bin.move_pages(from + at..from + len, to + at) };
            // SAFETY: nobody looks into the bin.
            unsafe { staging.bin.discard(to..to + len) };
            let Err(stopped) = moved else { return };
            at += stopped.done;
            match stopped.errno {
                Errno::EBUSY => {
                    backoff.pause();
                    self.own(staging, pages);
                }
                Errno::EAGAIN | Errno::EEXIST => backoff.pause(),
                errno => panic!("staging could not be emptied: {errno:?}"),
            }
        }
    }

    /// Has what `staging` holds be nobody's but ours.
    fn own(&self, staging: &Staging, pages: usize) {
        let listed = self.taken(staging, pages, |at| {
            // SAFETY: mapped, writable and there, as listed; whoever else holds the frame keeps it.
            unsafe { memory::own(staging.address(at)) };
        });
        assert!(listed.is_ok(), "staging could not be listed: {listed:?}");
    }

    /// Makes `n` staging areas.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is limited.
    pub fn staging(&self, n: usize) -> Result<impl Iterator<Item = Staging> + use<>> {
        const LEN: usize = BATCH * PAGE_SIZE;
        let pages = Reserve::new(n * LEN, c"octavo staging")?;
        let bin = Reserve::new(n * LEN, c"octavo bin")?;
        self.uffd.register(pages.span())?;
        self.bin.register(bin.span())?;
        [&pages, &bin].into_iter().for_each(Reserve::leave_to_children);
        Ok((0..n).map(move |at| {
            let part = |of: &Reserve| of.part(of.start() + at * LEN..of.start() + (at + 1) * LEN);
            let addresses = [const { AtomicUsize::new(0) }; BATCH];
            Staging { pages: part(&pages), bin: part(&bin), addresses }
        }))
    }
}

/// How many of `pages` pages were moved, and why no more.
fn how_far(pages: usize, moved: core::result::Result<(), Stopped>) -> (usize, Option<Errno>) {
    match moved {
        Ok(()) => (pages, None),
        Err(Stopped { done, errno }) => (done / PAGE_SIZE, Some(errno)),
    }
}

/// Where the pages of one batch are that were taken and not yet stored.
#[derive(Debug)]
pub struct Staging {
    pages: Reserve,
    bin: Reserve,
    /// Where each taken page belongs in the program.
    addresses: [AtomicUsize; BATCH],
}

impl Staging {
    /// The contents of taken page number `at`.
    ///
    /// # Safety
    /// The page is present and stays so: the caller has the batch and has seen it in
    /// [`Program::taken`], or found it parked in the table and keeps the gate shut against
    /// [`Program::empty`].
    #[must_use]
    pub unsafe fn page(&self, at: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { self.run(at, 1) }
    }

    /// The contents of `pages` taken pages side by side from number `at`.
    ///
    /// # Safety
    /// As of [`Staging::page`], for each of them.
    #[must_use]
    pub unsafe fn run(&self, at: usize, pages: usize) -> &[u8] {
        assert!(at + pages <= BATCH, "past the staging area");
        // SAFETY: inside the reserve; present by the caller's promise; written by nobody.
        unsafe { core::slice::from_raw_parts(self.address(at) as *const u8, pages * PAGE_SIZE) }
    }

    /// Where taken page number `at` belongs in the program.
    #[must_use]
    pub fn address_of(&self, at: usize) -> usize {
        self.addresses[at].load(Ordering::Acquire)
    }

    /// Notes where taken page number `at` belongs.
    pub fn note_address(&self, at: usize, address: usize) {
        self.addresses[at].store(address, Ordering::Release);
    }

    const fn address(&self, at: usize) -> usize {
        self.pages.start() + at * PAGE_SIZE
    }
}

impl crate::pager::Pager {
    /// The contents of a page taken by the evictor that owns `staging`, which has seen it there.
    pub(crate) fn staged<'a>(&self, staging: &'a Staging, at: usize, pages: usize) -> &'a [u8] {
        // SAFETY: evictors ask only for pages that `taken` has listed, and empty the area last.
        unsafe { staging.run(at, pages) }
    }

    /// The contents of a page found parked; the caller holds the gate.
    pub(crate) fn parked_page(&self, at: u32) -> &[u8] {
        let (area, at) = (at as usize / BATCH, at as usize % BATCH);
        // SAFETY: the word said so with the gate held, and staging is emptied only after the gate
        // was shut once more.
        unsafe { self.areas[area].staging.page(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use octavo_sys::task;

    /// A copy of this process that stands still; gives its number when it is there.
    fn copy_of_us(program: &Program) -> i32 {
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                loop {
                    let mut events = [const { None }];
                    if let Ok([Some(Event::Fork { uffd })]) = program.read(&mut events) {
                        return drop(Uffd::own(*uffd));
                    }
                    task::sleep(Duration::from_millis(1));
                }
            });
            let Some(copy) = task::fork_aside().expect("a copy") else {
                task::sleep(Duration::from_secs(60));
                task::exit_group(1)
            };
            reader.join().expect("the fork was told");
            copy
        })
    }

    /// Needs root, or `vm.unprivileged_userfaultfd`.
    #[test]
    fn what_a_copy_has_too_is_given_back_wherever_it_begins() {
        let program = Program::open().expect("a userfaultfd");
        for first in [0, 1, 3] {
            let staging = program.staging(1).expect("room").next().expect("an area");
            let pages = [7; 2 * PAGE_SIZE];
            assert_eq!(program.bring(staging.address(first), &pages), Brought::All);
            memory::bequeath(true).expect("few mappings");
            let copy = copy_of_us(&program);
            program.empty(&staging, first + 2);
            let mut left = 0;
            program.taken(&staging, BATCH, |_| left += 1).expect("a scan");
            assert_eq!(left, 0, "from place {first} on");
            task::kill(&task::pidfd(copy).expect("the copy")).expect("it is there");
        }
    }
}
