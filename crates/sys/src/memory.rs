//! Ranges of our own: reserved at start, backed when touched, given back by discarding.
//!
//! None of them is dumped, none reaches a child (`MADV_DONTFORK`), but for those that are left to it
//! ([`Reserve::leave_to_children`]) around a fork that we were told of, or whatever fork it is
//! ([`Reserve::leave_to_every_child`]), and none uses huge pages, but for those that are to
//! ([`Reserve::enlarge`]), once nearly all of such a page is used.
#![allow(unsafe_code)] // makes and discards mappings that only this project knows

use crate::file::Fd;
use crate::scan::{Is, PageMap, Run};
use crate::{Errno, Result};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use octavo_page::PAGE_SIZE;
use syscalls::{Sysno, syscall};

/// Parts given back at once, at most.
pub const PARTS: usize = 64;

/// A private anonymous range of our own, mapped until the address space ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve(Range<usize>);

impl Reserve {
    /// Reserves `len` bytes, whole pages, readable and writable, named `name` in `/proc/PID/maps`.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is limited (`RLIMIT_AS`) or full.
    pub fn new(len: usize, name: &core::ffi::CStr) -> Result<Self> {
        let len = len.next_multiple_of(PAGE_SIZE);
        let reserve = Self(map(place(len), len, NO_ACCESS)?);
        OURS.note(&reserve.0);
        for advice in [advice::DONTFORK, advice::DONTDUMP, advice::NOHUGEPAGE] {
            advise(reserve.span(), advice)?;
        }
        set_name(&reserve.0, name);
        // Only now: whoever looks for the program's memory passes over what nobody can write.
        protect(&reserve.0, READ_WRITE)?;
        Ok(reserve)
    }

    /// A part of it, `span`.
    ///
    /// # Panics
    /// When that is not inside.
    #[must_use]
    pub fn part(&self, span: Range<usize>) -> Self {
        assert!(self.0.start <= span.start && span.end <= self.0.end, "a part outside a reserve");
        Self(span)
    }

    /// Has children inherit it, whenever [`bequeath`] says that they may inherit anything.
    pub fn leave_to_children(&self) {
        OURS.leave(self.0.start, Left::WhenBequeathed);
    }

    /// Has children inherit it, those too that nobody was told of: its addresses are never their own memory.
    ///
    /// # Errors
    /// As of [`bequeath`].
    pub fn leave_to_every_child(&self) -> Result<()> {
        advise(self.span(), advice::DOFORK)?;
        OURS.leave(self.0.start, Left::Always);
        Ok(())
    }

    /// Has it use huge pages where [`collapse`] finds that this costs hardly any memory.
    pub fn enlarge(&self) {
        OURS.enlarge(self.0.start);
    }

    /// Its addresses.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.0.clone()
    }

    /// First address.
    #[must_use]
    pub const fn start(&self) -> usize {
        self.0.start
    }

    /// Backs every page of a part with memory, so that touching it neither waits nor fails.
    ///
    /// # Errors
    /// As of `madvise(2)` with `MADV_POPULATE_WRITE`: `ENOMEM` when there is none.
    ///
    /// # Panics
    /// When the part is not inside.
    pub fn populate(&self, part: Range<usize>) -> Result<()> {
        assert!(self.0.start <= part.start && part.end <= self.0.end, "populate outside a reserve");
        advise(part, advice::POPULATE_WRITE)
    }

    /// Backs all of it, and has it stay in memory. A child does not inherit that, and may ask anew.
    ///
    /// # Errors
    /// As of `mlock(2)`: `ENOMEM` or `EPERM` where `RLIMIT_MEMLOCK` is too low.
    pub fn lock(&self) -> Result<()> {
        // SAFETY: a range of ours; nothing changes but that it stays.
        unsafe { syscall!(Sysno::mlock, self.0.start, self.0.len()) }.map(|_| ())
    }

    /// Unmaps all of it.
    ///
    /// # Safety
    /// Nobody uses any of it any more, or knows of it by a part or a clone.
    pub unsafe fn unmap(&self) {
        let _ = protect(&self.0, NO_ACCESS); // fails only for the program's own limits, and then it stays ours
        OURS.forget(|span, _| span.start == self.0.start);
        // SAFETY: ours, and of no use any more by the caller's promise.
        let _ = unsafe { syscall!(Sysno::munmap, self.0.start, self.0.len()) };
    }

    /// Gives the memory of a part back; it reads as zeros afterwards.
    ///
    /// # Panics
    /// When the part is not inside.
    ///
    /// # Safety
    /// Nobody may hold a reference into the part.
    pub unsafe fn discard(&self, part: Range<usize>) {
        assert!(self.0.start <= part.start && part.end <= self.0.end, "discard outside a reserve");
        // The range is ours and mapped: this fails only when locked by mlockall, and then the
        // memory merely stays.
        let _ = advise(part, advice::DONTNEED);
    }

    /// As [`Reserve::discard`] for each of `parts`, at most [`PARTS`], with one TLB flush for all
    /// where the kernel can (6.13 and later). `me` is a descriptor of the calling process.
    ///
    /// # Panics
    /// When a part is not inside, or there are too many.
    ///
    /// # Safety
    /// As of [`Reserve::discard`].
    pub unsafe fn discard_all(&self, me: &Fd, parts: impl Iterator<Item = Range<usize>> + Clone) {
        let (mut vector, mut n) = ([[0usize; 2]; PARTS], 0);
        for part in parts.clone() {
            let inside = self.0.start <= part.start && part.end <= self.0.end;
            assert!(inside, "discard outside a reserve");
            vector[n] = [part.start, part.len()];
            n += 1;
        }
        let (at, bytes) = (vector.as_ptr(), vector.iter().map(|[_, len]| len).sum());
        // SAFETY: the kernel reads `n` parts, which are ours, and the caller's promise.
        let done =
            unsafe { syscall!(Sysno::process_madvise, me.raw(), at, n, advice::DONTNEED, 0usize) };
        if done != Ok(bytes) {
            // SAFETY: the caller's promise.
            parts.for_each(|part| unsafe { self.discard(part) });
        }
    }
}

/// A copy of `parts`, one behind the other, that nobody can write, and that children have too.
///
/// # Errors
/// `ENOMEM` when the address space is limited or full.
pub fn keep(parts: &[&[u8]], name: &core::ffi::CStr) -> Result<&'static [u8]> {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut room = Scratch::new(len.max(1))?;
    set_name(&room.0, name);
    for (to, from) in room.bytes().iter_mut().zip(parts.iter().copied().flatten()) {
        *to = *from;
    }
    let span = room.0.clone();
    core::mem::forget(room);
    protect(&span, READ)?;
    // SAFETY: our own mapping, which stays from here on, and nobody writes it any more.
    Ok(unsafe { core::slice::from_raw_parts(span.start as *const u8, len) })
}

/// Memory for a moment, or address space for ranges to come; given back when dropped. Not in the list of
/// ours: threads of the program use it as they use their own, any number of them at once, and what a child
/// of vfork maps stays when it execs. Helpers use none once there may be a watch.
#[derive(Debug)]
pub struct Scratch(Range<usize>);

impl Scratch {
    /// Maps at least `len` bytes, which are zeros.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is limited or full.
    pub fn new(len: usize) -> Result<Self> {
        map(ANYWHERE, len.next_multiple_of(PAGE_SIZE), READ_WRITE).map(Self)
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped readable and writable for as long as `self` lives, and only known to it.
        unsafe { core::slice::from_raw_parts_mut(self.0.start as *mut u8, self.0.len()) }
    }

    /// All of it, by words.
    pub fn words(&mut self) -> &mut [usize] {
        let len = self.0.len() / size_of::<usize>();
        // SAFETY: as in `bytes`; a mapping begins at a page.
        unsafe { core::slice::from_raw_parts_mut(self.0.start as *mut usize, len) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which nobody holds a reference any more.
        let _ = unsafe { syscall!(Sysno::munmap, self.0.start, self.0.len()) };
    }
}

/// Names only help whoever reads the maps; kernels without them refuse, harmlessly.
fn set_name(span: &Range<usize>, name: &core::ffi::CStr) {
    const PR_SET_VMA: usize = 0x5356_4d41;
    let (start, len) = (span.start, span.len());
    // SAFETY: names a range of ours; the kernel copies the string.
    let _ = unsafe { syscall!(Sysno::prctl, PR_SET_VMA, 0usize, start, len, name.as_ptr()) };
}

const NO_ACCESS: usize = 0;
const READ: usize = 1;
const READ_WRITE: usize = 3;

fn protect(span: &Range<usize>, protection: usize) -> Result<()> {
    // SAFETY: a range of ours, which nobody uses while that is not allowed.
    unsafe { syscall!(Sysno::mprotect, span.start, span.len(), protection) }.map(|_| ())
}

/// Below this the next reserve is to lie; 0 before the first.
static BELOW: AtomicUsize = AtomicUsize::new(0);

/// How far reserves are from where the kernel puts objects, and what programs ask it for.
const FAR: usize = 4 << 40;

const ANYWHERE: usize = 0;

/// Where a reserve of `len` bytes is to lie, if that is free. Not among the program's: in a forked child the kernel
/// would choose the hole of what its parent had advised `MADV_DONTFORK` for, and which the child may mean to fill. A page
/// between two stays free: who runs off a stack finds nothing there.
fn place(len: usize) -> usize {
    let first = (&raw const BELOW as usize).saturating_sub(FAR);
    let align = if len < HUGE_PAGE { PAGE_SIZE } else { HUGE_PAGE };
    let next = |below: usize| {
        let below = if below == 0 { first } else { below };
        below.saturating_sub(len + PAGE_SIZE) & !(align - 1)
    };
    let before = BELOW.update(Ordering::Relaxed, Ordering::Relaxed, next);
    next(before)
}

fn map(place: usize, len: usize, protection: usize) -> Result<Range<usize>> {
    const PRIVATE_ANONYMOUS_NORESERVE: usize = 0x2 | 0x20 | 0x4000;
    let flags = PRIVATE_ANONYMOUS_NORESERVE;
    // SAFETY: a new mapping where nothing is, which is the kernel's choice, touches nobody's memory.
    let start = unsafe { syscall!(Sysno::mmap, place, len, protection, flags, -1isize, 0) }?;
    Ok(start..start + len)
}

/// Whether `address` lies in a [`Reserve`].
#[must_use]
pub fn is_ours(address: usize) -> bool {
    OURS.spans().any(|(span, _)| span.contains(&address))
}

/// Bytes of address space that all reserves take.
#[must_use]
pub fn reserved() -> usize {
    OURS.spans().map(|(span, _)| span.len()).sum()
}

/// From now on children inherit what is left to them, or nothing of ours any more.
///
/// # Errors
/// As of `madvise(2)`: `ENOMEM` when there are too many mappings.
pub fn bequeath(anything: bool) -> Result<()> {
    let advice = if anything { advice::DOFORK } else { advice::DONTFORK };
    let mut left = OURS.spans().filter(|(_, left)| *left == Left::WhenBequeathed);
    left.try_for_each(|(span, _)| advise(span, advice))
}

/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Pages used of a huge one before it becomes one.
const NEARLY_FULL: usize = HUGE_PAGE / PAGE_SIZE / 16 * 15;

/// Puts what is nearly full of the reserves that want it into huge pages, one at most; whether there was one.
/// A look at a table at random then costs one miss of the TLB and its page walk less, which in a virtual
/// machine is as long as the look itself. Takes some milliseconds, in which the kernel empties its lists of
/// pages on every CPU.
///
/// # Errors
/// As of the scan, and of `madvise(2)`: `EINVAL` where there are no huge pages, `ENOMEM` when none is left.
pub fn collapse(page_map: &PageMap) -> Result<bool> {
    for span in OURS.enlarged() {
        if let Some(piece) = nearly_full(page_map, span)? {
            advise(piece.clone(), advice::HUGEPAGE)?;
            advise(piece, advice::COLLAPSE)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first place for a huge page of `span` that is nearly full of small ones.
fn nearly_full(page_map: &PageMap, span: Range<usize>) -> Result<Option<Range<usize>>> {
    let (mut at, mut piece, mut full) = (span.start, 0, 0);
    while at < span.end {
        let mut runs = [Run::default(); 32];
        let (found, end) = page_map.list(Is::Small, at..span.end, &mut runs)?;
        for mut run in found.iter().map(Run::span) {
            while !run.is_empty() {
                let start = run.start / HUGE_PAGE * HUGE_PAGE;
                let part = run.start..run.end.min(start + HUGE_PAGE);
                if start != piece {
                    (piece, full) = (start, 0);
                }
                full += part.len() / PAGE_SIZE;
                let whole = piece..piece + HUGE_PAGE;
                if full >= NEARLY_FULL && span.start <= whole.start && whole.end <= span.end {
                    return Ok(Some(whole));
                }
                run.start = part.end;
            }
        }
        at = end;
    }
    Ok(None)
}

/// In a child to which they were left: forgets the other reserves, which it does not have; gives up those
/// it has to the same rule as before.
///
/// # Errors
/// As of [`bequeath`].
pub fn inherit() -> Result<()> {
    OURS.forget(|_, left| left == Left::Never);
    bequeath(false)
}

/// In a child to which nothing was left: forgets all reserves. Where they were it may have memory of its
/// own by now.
pub fn disown() {
    OURS.forget(|_, _| true);
}

/// In a child that has no use for what was left to it: gives that back, but for what every child inherits.
///
/// # Safety
/// Nobody uses any of it any more.
pub unsafe fn renounce() {
    for (span, _) in OURS.spans().filter(|(_, left)| *left == Left::WhenBequeathed) {
        // SAFETY: ours, and of no use any more by the caller's promise.
        let _ = unsafe { syscall!(Sysno::munmap, span.start, span.len()) };
    }
    disown();
}

/// All reserves of this address space, so that none is taken for the program's memory.
static OURS: List = List([const { Entry::free() }; 128]);

struct List([Entry; 128]);

/// Which children inherit a reserve.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Left {
    Never,
    /// Those of forks that we were told of.
    WhenBequeathed,
    Always,
}

impl Left {
    const ALL: [Self; 3] = [Self::Never, Self::WhenBequeathed, Self::Always];
}

/// One reserve; free when it starts at 0.
struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    left_to_children: AtomicU8,
    enlarged: AtomicBool,
}

impl Entry {
    /// The start of an entry that is being filled in.
    const TAKEN: usize = 1;

    const fn free() -> Self {
        let (start, end) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let left_to_children = AtomicU8::new(Left::Never as u8);
        let enlarged = AtomicBool::new(false);
        Self { start, end, left_to_children, enlarged }
    }

    fn take(&self) -> bool {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        self.start.compare_exchange(0, Self::TAKEN, order.0, order.1).is_ok()
    }

    fn left(&self) -> Left {
        Left::ALL[usize::from(self.left_to_children.load(Ordering::Relaxed))]
    }

    fn span(&self) -> Option<Range<usize>> {
        let start = self.start.load(Ordering::Acquire);
        (start > Self::TAKEN).then(|| start..self.end.load(Ordering::Relaxed))
    }
}

impl List {
    fn note(&self, span: &Range<usize>) {
        // A fixed handful of reserves is made.
        let entry = self.0.iter().find(|entry| entry.take()).expect("room for one more reserve");
        entry.left_to_children.store(Left::Never as u8, Ordering::Relaxed);
        entry.enlarged.store(false, Ordering::Relaxed);
        entry.end.store(span.end, Ordering::Relaxed);
        entry.start.store(span.start, Ordering::Release);
    }

    fn leave(&self, start: usize, left: Left) {
        self.entry(start).left_to_children.store(left as u8, Ordering::Relaxed);
    }

    fn enlarge(&self, start: usize) {
        self.entry(start).enlarged.store(true, Ordering::Relaxed);
    }

    fn entry(&self, start: usize) -> &Entry {
        let entry = self.0.iter().find(|entry| entry.start.load(Ordering::Acquire) == start);
        entry.expect("a reserve is in the list")
    }

    /// Those that are to use huge pages.
    fn enlarged(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().filter(|entry| entry.enlarged.load(Ordering::Relaxed)).filter_map(Entry::span)
    }

    /// All of them, and which children they are left to.
    fn spans(&self) -> impl Iterator<Item = (Range<usize>, Left)> {
        self.0.iter().filter_map(|entry| Some((entry.span()?, entry.left())))
    }

    /// Forgets those of which `gone` says so, from where they are and which children they are left to.
    fn forget(&self, gone: impl Fn(&Range<usize>, Left) -> bool) {
        for entry in &self.0 {
            if entry.span().is_some_and(|span| gone(&span, entry.left())) {
                entry.start.store(0, Ordering::Release);
            }
        }
    }
}

/// Has the page at `address`, which is present, be this address space's own, with the contents it has:
/// after a fork it is shared until then.
///
/// # Safety
/// The page is mapped, writable and present.
pub unsafe fn own(address: usize) {
    // By hand: a compiler that sees that nothing changes makes a read of it.
    // SAFETY: the caller's promise; the contents stay the same.
    unsafe { core::arch::asm!("lock or byte ptr [{}], 0", in(reg) address, options(nostack)) };
}

/// Has `span` read as zeros.
///
/// # Errors
/// As of `madvise(2)`.
///
/// # Safety
/// What is there may be lost.
pub unsafe fn discard(span: Range<usize>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::madvise, span.start, span.len(), advice::DONTNEED) }.map(drop)
}

/// Has every page of `span` be this address space's own and present, as if it had been written, with
/// the contents it has: after a fork pages are shared until then. Waits where a page is missing and a
/// userfaultfd answers for it.
///
/// # Errors
/// As of `madvise(2)`, where `span` cannot be written or is not mapped: then a part of it may be as it was.
pub fn unshare(span: Range<usize>) -> Result<()> {
    // SAFETY: no content changes, and nothing is mapped or unmapped.
    unsafe { syscall!(Sysno::madvise, span.start, span.len(), advice::POPULATE_WRITE) }.map(drop)
}

/// Advices of `madvise(2)`.
pub mod advice {
    /// Discard the contents.
    pub const DONTNEED: usize = 4;
    /// Not in children.
    pub const DONTFORK: usize = 10;
    /// In children, as if never said otherwise.
    pub const DOFORK: usize = 11;
    /// Huge pages.
    pub const HUGEPAGE: usize = 14;
    /// No huge pages.
    pub const NOHUGEPAGE: usize = 15;
    /// Not in core dumps.
    pub const DONTDUMP: usize = 16;
    /// Back with memory of this address space's own, as if written.
    pub const POPULATE_WRITE: usize = 23;
    /// Put into huge pages.
    pub const COLLAPSE: usize = 25;
}

/// Gives the kernel `advice` about a range of ours. `EINVAL` for advices it was built without.
fn advise(span: Range<usize>, advice: usize) -> Result<()> {
    // SAFETY: private to this module; only ranges that `Reserve` made, and for DONTNEED its caller
    // promised that nobody looks.
    match unsafe { syscall!(Sysno::madvise, span.start, span.len(), advice) } {
        Err(Errno::EINVAL) if advice == self::advice::NOHUGEPAGE => Ok(()),
        other => other.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `reserve` has at the start of each page.
    fn contents(reserve: &Reserve, pages: usize) -> impl Iterator<Item = u64> {
        let start = reserve.start();
        // SAFETY: in the reserve, which is mapped and ours, and not written meanwhile.
        (0..pages).map(move |n| unsafe { ((start + n * PAGE_SIZE) as *const u64).read() })
    }

    #[test]
    fn what_is_nearly_full_is_put_into_a_huge_page_as_it_is() {
        const HUGE: usize = HUGE_PAGE / PAGE_SIZE;
        let page_map = PageMap::open().expect("a page map");
        let reserve = Reserve::new(4 * HUGE_PAGE, c"octavo test").expect("memory");
        reserve.enlarge();
        // Two places for huge pages at least: one nearly full, the next half.
        let first = (reserve.start().next_multiple_of(HUGE_PAGE) - reserve.start()) / PAGE_SIZE;
        let write = |n: usize| {
            // SAFETY: in the reserve, which is mapped and ours.
            unsafe { ((reserve.start() + n * PAGE_SIZE) as *mut u64).write(n as u64 + 1) };
        };
        (first..first + NEARLY_FULL - 1).for_each(write);
        (first + HUGE..first + HUGE + HUGE / 2).for_each(write);
        assert_eq!(collapse(&page_map), Ok(false));
        write(first + HUGE - 1);
        let before: std::vec::Vec<_> = contents(&reserve, 4 * HUGE).collect();
        assert_eq!(collapse(&page_map), Ok(true), "are huge pages allowed here?");
        assert_eq!(collapse(&page_map), Ok(false), "it is one now");
        assert!(contents(&reserve, 4 * HUGE).eq(before));
    }
}
