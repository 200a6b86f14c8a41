//! `userfaultfd(2)`: who faults, what happens to ranges, and how pages come and go.
//!
//! [`Uffd`] is a descriptor in non-blocking mode. `copy`, `move_pages` and `zero` tell how many
//! bytes were done beside the error that stopped them, because half of a range being done is a
//! normal outcome (a page in the middle may be there already).
#![allow(unsafe_code)] // ioctls that change page tables of the address space we live in

use crate::file::Fd;
use crate::{Errno, Result};
use core::ops::Range;
use octavo_page::PAGE_SIZE;
use syscalls::{Sysno, syscall};

/// A range of addresses, in bytes.
pub type Span = Range<usize>;

/// Features of userfaultfd, bits of `struct uffdio_api`.
pub mod feature {
    /// fork(2) is told, with a descriptor for the child.
    pub const FORK: u64 = 1 << 1;
    /// mremap(2) is told.
    pub const REMAP: u64 = 1 << 2;
    /// madvise(2) with `MADV_DONTNEED`, `MADV_FREE`, `MADV_REMOVE` is told.
    pub const REMOVE: u64 = 1 << 3;
    /// munmap(2) is told.
    pub const UNMAP: u64 = 1 << 6;
    /// The faulting thread is named.
    pub const THREAD_ID: u64 = 1 << 8;
    /// `UFFDIO_POISON`, kernel 6.6.
    pub const POISON: u64 = 1 << 14;
    /// `UFFDIO_MOVE`, kernel 6.8.
    pub const MOVE: u64 = 1 << 16;
}

const API: usize = 0xC018_AA3F;
const REGISTER: usize = 0xC020_AA00;
const UNREGISTER: usize = 0x8010_AA01;
const WAKE: usize = 0x8010_AA02;
const COPY: usize = 0xC028_AA03;
const ZEROPAGE: usize = 0xC020_AA04;
const MOVE: usize = 0xC028_AA05;
const CONTINUE: usize = 0xC020_AA07;
const POISON: usize = 0xC020_AA08;
/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const DEVICE_NEW: usize = 0xAA00;

const CLOEXEC_NONBLOCK: usize = 0o2_000_000 | 0o4000;

/// What a userfaultfd tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Thread `thread` waits for the page at `address`.
    Fault {
        /// Address of the access, within the page.
        address: usize,
        /// The access was a write.
        write: bool,
        /// Thread id, if asked for.
        thread: u32,
    },
    /// The process forked; the descriptor is the child's userfaultfd.
    Fork {
        /// Number of the new descriptor in this task's table.
        uffd: i32,
    },
    /// `len` bytes moved from `from` to `to`, already done.
    Remap {
        /// Where the pages were.
        from: usize,
        /// Where they are.
        to: usize,
        /// Bytes moved.
        len: usize,
    },
    /// The contents of the range are about to be discarded; the range stays mapped.
    Remove(Range<usize>),
    /// The range was unmapped, already done.
    Unmap(Range<usize>),
}

/// `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    arg: [u64; 3],
}

impl Message {
    fn event(self) -> Option<Event> {
        let [a, b, c] = self.arg;
        Some(match self.event {
            0x12 => Event::Fault { address: b as usize, write: a & 1 != 0, thread: c as u32 },
            0x13 => Event::Fork { uffd: a as u32 as i32 },
            0x14 => Event::Remap { from: a as usize, to: b as usize, len: c as usize },
            0x15 => Event::Remove(a as usize..b as usize),
            0x16 => Event::Unmap(a as usize..b as usize),
            _ => return None,
        })
    }
}

/// What becomes of threads that wait for a page when it is brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiters {
    /// They go on.
    Wake = 0,
    /// They wait on, until [`Uffd::wake`].
    Leave = 1,
}

/// Why a copy, move or zero stopped, and how far it had come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// Bytes done from the start of the range.
    pub done: usize,
    /// What stopped it.
    pub errno: Errno,
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Uffd(Fd);

impl Uffd {
    /// Opens one that serves kernel faults too, with exactly `features`: by the system call, else
    /// through `/dev/userfaultfd`.
    ///
    /// # Errors
    /// `EPERM` without the privilege, `ENOSYS` where a seccomp profile or the kernel has none,
    /// `EINVAL` when a feature is missing.
    pub fn open(features: u64) -> Result<Self> {
        // SAFETY: makes a descriptor, touches no memory.
        let made = unsafe { syscall!(Sysno::userfaultfd, CLOEXEC_NONBLOCK) };
        let fd = match made {
            Ok(n) => Fd::own(n as i32),
            Err(e) => Self::through_device().map_err(|_| e)?,
        };
        #[repr(C)]
        struct Api {
            api: u64,
            features: u64,
            ioctls: u64,
        }
        let mut api = Api { api: 0xAA, features, ioctls: 0 };
        ioctl(&fd, API, &mut api)?;
        if api.features & features == features { Ok(Self(fd)) } else { Err(Errno::EINVAL) }
    }

    fn through_device() -> Result<Fd> {
        let device = Fd::open(c"/dev/userfaultfd")?;
        // SAFETY: the argument is flags, no pointer; makes a descriptor.
        let made = unsafe { syscall!(Sysno::ioctl, device.raw(), DEVICE_NEW, CLOEXEC_NONBLOCK) };
        made.map(|n| Fd::own(n as i32))
    }

    /// The userfaultfd with number `raw`, as [`Event::Fork`] gives it.
    #[must_use]
    pub const fn own(raw: i32) -> Self {
        Self(Fd::own(raw))
    }

    /// The descriptor, to wait for.
    #[must_use]
    pub const fn fd(&self) -> &Fd {
        &self.0
    }

    /// Asks for the missing pages of `span`.
    ///
    /// # Errors
    /// `EBUSY` when another userfaultfd has it, `EINVAL` when nothing is mapped there or it is no
    /// memory that can be registered.
    pub fn register(&self, span: Span) -> Result<()> {
        const MISSING: u64 = 1;
        let mut arg = [span.start as u64, span.len() as u64, MISSING, 0];
        ioctl(&self.0, REGISTER, &mut arg)
    }

    /// Takes `span` back out; who waits there is woken.
    ///
    /// # Errors
    /// `EINVAL` when nothing is mapped there.
    pub fn unregister(&self, span: Span) -> Result<()> {
        let mut arg = [span.start as u64, span.len() as u64];
        ioctl(&self.0, UNREGISTER, &mut arg)
    }

    /// Whether the memory at `address`, anonymous if it is any, is registered; `None` while an event is
    /// unread.
    #[must_use]
    pub fn has(&self, address: usize) -> Option<bool> {
        // Of memory that is registered the kernel says that this cannot be done to it.
        let mut arg = [address as u64, PAGE_SIZE as u64, 0, 0];
        match ioctl(&self.0, CONTINUE, &mut arg) {
            Err(Errno::EAGAIN) => None,
            outcome => Some(outcome == Err(Errno::EINVAL)),
        }
    }

    /// Has this number be what `with` is.
    ///
    /// # Errors
    /// As of [`Fd::become_like`].
    pub fn become_like(&self, with: Self) -> Result<()> {
        self.0.become_like(with.0)
    }

    /// Wakes who waits for a page of `span`, without giving one.
    ///
    /// # Errors
    /// None in practice.
    pub fn wake(&self, span: Span) -> Result<()> {
        let mut arg = [span.start as u64, span.len() as u64];
        ioctl(&self.0, WAKE, &mut arg)
    }

    /// Fills the missing pages at `to` with copies of `from`.
    ///
    /// # Errors
    /// `EEXIST` at a page that is there, `EAGAIN` while an event is unread, `ENOENT` where nothing
    /// is registered, `ESRCH` when the process is gone.
    pub fn copy(&self, to: usize, from: &[u8], who: Waiters) -> core::result::Result<(), Stopped> {
        let mut arg = [to as u64, from.as_ptr() as u64, from.len() as u64, who as u64, 0];
        let outcome = ioctl(&self.0, COPY, &mut arg);
        partial(outcome, arg[4] as i64, from.len())
    }

    /// Fills the missing pages of `span` with zeros.
    ///
    /// # Errors
    /// As of [`Uffd::copy`].
    pub fn zero(&self, span: Span, who: Waiters) -> core::result::Result<(), Stopped> {
        let len = span.len();
        let mut arg = [span.start as u64, len as u64, who as u64, 0];
        let outcome = ioctl(&self.0, ZEROPAGE, &mut arg);
        partial(outcome, arg[3] as i64, len)
    }

    /// Moves the present pages of `from` to the same places after `to`, by page table; missing
    /// pages stay missing. The destination is registered here and empty.
    ///
    /// # Errors
    /// `EAGAIN` while an event is unread, `EBUSY` at a page that is pinned or shared after fork,
    /// `EEXIST` at a destination page that is there, `EINVAL` across a mapping's end or between
    /// mappings of unequal protection.
    ///
    /// # Safety
    /// The caller answers for the contents: whoever reads `from` afterwards must find them again
    /// through a fault that the caller serves, or they must be nobody's.
    pub unsafe fn move_pages(&self, from: Span, to: usize) -> core::result::Result<(), Stopped> {
        const ALLOW_SRC_HOLES: u64 = 2;
        let len = from.len();
        let mut arg = [to as u64, from.start as u64, len as u64, ALLOW_SRC_HOLES, 0];
        let outcome = ioctl(&self.0, MOVE, &mut arg);
        partial(outcome, arg[4] as i64, len)
    }

    /// Marks the missing pages of `span` as lost: touching one raises SIGBUS.
    ///
    /// # Errors
    /// As of [`Uffd::copy`].
    pub fn poison(&self, span: Span, who: Waiters) -> core::result::Result<(), Stopped> {
        let len = span.len();
        let mut arg = [span.start as u64, len as u64, who as u64, 0];
        let outcome = ioctl(&self.0, POISON, &mut arg);
        partial(outcome, arg[3] as i64, len)
    }

    /// Reads what is told, up to `events.len()` at once; empty when there is nothing.
    ///
    /// # Errors
    /// As of `read(2)`, other than `EAGAIN`.
    pub fn read<'a>(&self, events: &'a mut [Option<Event>]) -> Result<&'a [Option<Event>]> {
        const AT_ONCE: usize = 16;
        let mut messages = [Message::default(); AT_ONCE];
        let len = events.len().min(AT_ONCE) * size_of::<Message>();
        // SAFETY: the kernel writes whole messages, at most `len` bytes, into `messages`.
        let read = unsafe { syscall!(Sysno::read, self.0.raw(), messages.as_mut_ptr(), len) };
        let n = match read {
            Ok(bytes) => bytes / size_of::<Message>(),
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            Err(e) => return Err(e),
        };
        for (to, from) in events.iter_mut().zip(messages).take(n) {
            *to = from.event();
        }
        Ok(events.get(..n).unwrap_or(&[]))
    }
}

fn partial(outcome: Result<()>, reported: i64, len: usize) -> core::result::Result<(), Stopped> {
    let done = usize::try_from(reported).unwrap_or(0);
    match outcome {
        Ok(()) if done == len => Ok(()),
        Ok(()) => Err(Stopped { done, errno: Errno::EAGAIN }),
        Err(errno) => Err(Stopped { done, errno }),
    }
}

fn ioctl<T>(fd: &Fd, request: usize, arg: &mut T) -> Result<()> {
    // SAFETY: each caller passes the argument that the request number takes, live for the call.
    unsafe { syscall!(Sysno::ioctl, fd.raw(), request, core::ptr::from_mut(arg)) }.map(|_| ())
}
