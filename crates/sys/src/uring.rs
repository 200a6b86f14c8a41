//! A ring of the kernel's (`io_uring(7)`) for writes that go on while their maker does something else.
//!
//! ```text
//!   write ──► submission queue ──► kernel ──► completion queue ──► reap
//!             ours: tail           ours: head of the one, tail of the other
//! ```
//! Memory that is registered is looked up and pinned once instead of at every write. Queues are
//! mapped from the ring, not inherited by children, and unmapped at the end.
//!
//! A write is begun by a thread of the kernel's, aside: to hand it to the disk takes a processor as well, and under a
//! hypervisor that may last as long as the copy that its side makes. The maker encrypts the next one meanwhile. The
//! kernel makes at most four such threads a CPU; where it may make none, writes are begun by the maker.
//!
//! The well-known library for this, `io-uring`, takes `std`, maps by libc and tells errors by `errno`:
//! nothing for tasks that have no thread-local storage, which make rings, too. What of it is needed
//! here are three system calls and three structures.
#![allow(unsafe_code)] // maps queues that the kernel shares, and names memory that it reads

use crate::disk::Gather;
use crate::file::Fd;
use crate::{Errno, Result};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use octavo_page::PAGE_SIZE;
use syscalls::{Sysno, syscall};

/// `struct io_sqring_offsets`, and with other names `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    /// Flags of the submission queue; overflow of the other.
    fifth: u32,
    /// Dropped entries of the submission queue; entries of the other.
    sixth: u32,
    /// Array of the submission queue; flags of the other.
    seventh: u32,
    reserved: u32,
    user_address: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Params {
    submissions: u32,
    completions: u32,
    flags: u32,
    thread: [u32; 2],
    features: u32,
    rest: [u32; 4],
    submission: Offsets,
    completion: Offsets,
}

const _: () = assert!(size_of::<Params>() == 120);

/// `struct io_uring_sqe` for reads and writes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    file: i32,
    offset: u64,
    address: u64,
    len: u32,
    how: u32,
    tag: u64,
    buffer: u16,
    personality: u16,
    rest: [u32; 5],
}

const _: () = assert!(size_of::<Submission>() == 64);

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    tag: u64,
    result: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Completion>() == 16);

/// A mapping of the ring's.
struct Mapping(Range<usize>);

impl Mapping {
    fn new(ring: &Fd, len: usize, offset: usize) -> Result<Self> {
        const READ_WRITE: usize = 3;
        const SHARED_POPULATE: usize = 0x1 | 0x8000;
        const DONTFORK: usize = 10;
        let len = len.next_multiple_of(PAGE_SIZE);
        // SAFETY: a new mapping at an address of the kernel's choice touches nobody's memory.
        let start = unsafe {
            syscall!(Sysno::mmap, 0usize, len, READ_WRITE, SHARED_POPULATE, ring.raw(), offset)
        }?;
        // SAFETY: a mapping of ours; a child without the ring has no use for it.
        let _ = unsafe { syscall!(Sysno::madvise, start, len, DONTFORK) };
        Ok(Self(start..start + len))
    }

    /// The word `offset` bytes in.
    fn word(&self, offset: u32) -> &AtomicU32 {
        let at = self.0.start + offset as usize;
        assert!(at.is_multiple_of(4) && at + 4 <= self.0.end, "a word outside of a ring");
        // SAFETY: mapped for as long as `self` lives, aligned, and shared as an atomic by both sides.
        unsafe { AtomicU32::from_ptr(core::ptr::with_exposed_provenance_mut(at)) }
    }

    /// The address of entry `n` of entries of `size` bytes that begin `offset` bytes in.
    fn entry(&self, offset: u32, n: u32, size: usize) -> usize {
        let at = self.0.start + offset as usize + n as usize * size;
        assert!(at + size <= self.0.end, "an entry outside of a ring");
        at
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which nobody holds a reference any more.
        let _ = unsafe { syscall!(Sysno::munmap, self.0.start, self.0.len()) };
    }
}

/// Has the file of `fd` stay open until this address space ends, whoever closes descriptors or is killed: a
/// ring has it, and a mapping has the ring. Children do not inherit that.
///
/// # Errors
/// As of [`Ring::new`], and of `io_uring_register(2)`.
pub fn hold(fd: &Fd) -> Result<()> {
    const FILES: usize = 2;
    let Ring { fd: ring, queues, .. } = Ring::new(1)?;
    let files = [fd.raw()];
    // SAFETY: the kernel reads one descriptor's number.
    unsafe { syscall!(Sysno::io_uring_register, ring.raw(), FILES, files.as_ptr(), 1usize) }?;
    core::mem::forget(queues);
    Ok(())
}

/// A ring. What is under way when it is dropped may still be done.
pub struct Ring {
    fd: Fd,
    queues: Mapping,
    submissions: Mapping,
    params: Params,
    registered: Range<usize>,
    under_way: u32,
    /// Whether writes are begun aside.
    aside: bool,
}

impl Ring {
    /// A ring for `entries` writes at once.
    ///
    /// # Errors
    /// As of `io_uring_setup(2)`: `EPERM` or `ENOSYS` where rings are not allowed; `ENOSYS`, too, before
    /// Linux 5.5.
    pub fn new(entries: u32) -> Result<Self> {
        /// One mapping for both queues, completions that are never dropped, and lists of pieces that
        /// may change once submitted.
        const NEEDED: u32 = 0b111;
        const SUBMISSIONS: usize = 0x1000_0000;
        let mut params = Params::default();
        let to = core::ptr::from_mut(&mut params);
        // SAFETY: the kernel reads and fills a `struct io_uring_params`; makes a descriptor.
        let fd = unsafe { syscall!(Sysno::io_uring_setup, entries, to) }?;
        let fd = Fd::own(fd as i32);
        if params.features & NEEDED != NEEDED {
            return Err(Errno::ENOSYS);
        }
        let array = params.submission.seventh as usize + params.submissions as usize * 4;
        let completions = params.completions as usize * size_of::<Completion>();
        let queues = array.max(params.completion.sixth as usize + completions);
        Ok(Self {
            queues: Mapping::new(&fd, queues, 0)?,
            submissions: Mapping::new(
                &fd,
                params.submissions as usize * size_of::<Submission>(),
                SUBMISSIONS,
            )?,
            fd,
            params,
            registered: 0..0,
            under_way: 0,
            aside: true,
        })
    }

    /// Has the kernel pin `memory`, which stays mapped until the address space ends.
    ///
    /// # Errors
    /// As of `io_uring_register(2)`: `ENOMEM` where `RLIMIT_MEMLOCK` is too low.
    pub fn register(&mut self, memory: Range<usize>) -> Result<()> {
        const BUFFERS: usize = 0;
        let part = [memory.start, memory.len()];
        // SAFETY: the kernel reads one `struct iovec`, and pins memory; it changes none.
        unsafe {
            syscall!(Sysno::io_uring_register, self.fd.raw(), BUFFERS, part.as_ptr(), 1usize)
        }?;
        self.registered = memory;
        Ok(())
    }

    /// Whether memory is registered.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        !self.registered.is_empty()
    }

    /// Writes that were begun and not reaped.
    #[must_use]
    pub const fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Begins to write to `file` at `offset`. The kernel reads the pieces at some time until the write is
    /// reaped: whoever changes them before has the one or the other on the disk, and harms nobody else.
    ///
    /// # Errors
    /// As of `io_uring_enter(2)`; then nothing was begun.
    ///
    /// # Panics
    /// When as many writes are under way as the ring has entries.
    pub fn write(&mut self, file: &Fd, from: &Gather<'_>, offset: u64, tag: u64) -> Result<()> {
        assert!(self.under_way < self.params.submissions, "more writes than the ring has entries");
        let mut entry = Submission {
            opcode: WRITE_GATHERED,
            flags: if self.aside { ASIDE } else { 0 },
            priority: 0,
            file: file.raw(),
            offset,
            address: from.raw().0 as u64,
            len: from.raw().1 as u32,
            how: 0,
            tag,
            buffer: 0,
            personality: 0,
            rest: [0; 5],
        };
        if let Some(one) = from.as_one().filter(|one| self.covers(one)) {
            entry.opcode = WRITE_REGISTERED;
            (entry.address, entry.len) = (one.start as u64, one.len() as u32);
        }
        self.submit(&entry)?;
        self.under_way += 1;
        Ok(())
    }

    fn covers(&self, piece: &Range<usize>) -> bool {
        self.registered.start <= piece.start && piece.end <= self.registered.end
    }

    /// Puts an entry into the queue, and has the kernel take it.
    fn submit(&mut self, entry: &Submission) -> Result<()> {
        let Params { submission, .. } = self.params;
        let tail = self.queues.word(submission.tail).load(Ordering::Relaxed);
        let slot = tail & self.queues.word(submission.mask).load(Ordering::Relaxed);
        let to = self.submissions.entry(0, slot, size_of::<Submission>());
        // SAFETY: inside of the mapped entries, and the kernel reads none before the tail says so.
        unsafe { core::ptr::with_exposed_provenance_mut::<Submission>(to).write(*entry) };
        self.queues.word(submission.seventh + slot * 4).store(slot, Ordering::Relaxed);
        self.queues.word(submission.tail).store(tail.wrapping_add(1), Ordering::Release);
        loop {
            let outcome = self.enter(1, 0);
            let head = self.queues.word(submission.head).load(Ordering::Acquire);
            if head == tail.wrapping_add(1) {
                return Ok(());
            }
            match outcome {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(why) => {
                    // Taken back: the kernel looks at the tail only when it is entered.
                    self.queues.word(submission.tail).store(tail, Ordering::Release);
                    return Err(why);
                }
            }
        }
    }

    /// A write that has ended: its tag, and how many bytes were written. `None` when there is none; with
    /// `wait` only when none is under way. Of one that could not be begun the outcome is `EAGAIN`.
    ///
    /// # Errors
    /// As of `io_uring_enter(2)`, when the ring itself is gone: `EBADF` when somebody closed it.
    pub fn reap(&mut self, wait: bool) -> Result<Option<(u64, Result<usize>)>> {
        loop {
            if let Some(completion) = self.completion() {
                self.under_way -= 1;
                let result = match completion.result {
                    n @ 0.. => Ok(n as usize),
                    why => Err(self.failure(Errno::new(-why))),
                };
                return Ok(Some((completion.tag, result)));
            }
            if !wait || self.under_way == 0 {
                return Ok(None);
            }
            match self.enter(0, 1) {
                Ok(_) | Err(Errno::EINTR | Errno::EAGAIN | Errno::EBUSY) => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// What a write that failed comes to: where there was no thread to begin it, since its user has too many tasks
    /// already, it is to be begun again.
    fn failure(&mut self, why: Errno) -> Errno {
        if why != Errno::ECANCELED {
            return why;
        }
        self.aside = false;
        Errno::EAGAIN
    }

    fn completion(&self) -> Option<Completion> {
        let Params { completion, .. } = self.params;
        let head = self.queues.word(completion.head).load(Ordering::Relaxed);
        if head == self.queues.word(completion.tail).load(Ordering::Acquire) {
            return None;
        }
        let slot = head & self.queues.word(completion.mask).load(Ordering::Relaxed);
        let at = self.queues.entry(completion.sixth, slot, size_of::<Completion>());
        // SAFETY: inside of the mapped entries, and written by the kernel before it moved the tail.
        let found = unsafe { core::ptr::with_exposed_provenance::<Completion>(at).read() };
        self.queues.word(completion.head).store(head.wrapping_add(1), Ordering::Release);
        Some(found)
    }

    fn enter(&self, submit: usize, wait_for: usize) -> Result<usize> {
        const GET_EVENTS: usize = 1;
        let flags = if wait_for > 0 { GET_EVENTS } else { 0 };
        let fd = self.fd.raw();
        // SAFETY: the kernel reads entries that are whole, and memory that they name.
        unsafe { syscall!(Sysno::io_uring_enter, fd, submit, wait_for, flags, 0usize, 0usize) }
    }
}

/// `IOSQE_ASYNC`
const ASIDE: u8 = 1 << 4;

const WRITE_GATHERED: u8 = 2;
const WRITE_REGISTERED: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_found_no_thread_is_begun_again_by_its_maker() {
        let mut ring = Ring::new(1).expect("rings are allowed here");
        assert_eq!(ring.failure(Errno::EIO), Errno::EIO);
        assert!(ring.aside);
        assert_eq!(ring.failure(Errno::ECANCELED), Errno::EAGAIN);
        assert!(!ring.aside);
    }
}
