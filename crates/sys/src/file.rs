//! Descriptors of ours: read, write, poll, close.
#![allow(unsafe_code)] // bare system calls on buffers that the callers own

use crate::Result;
use core::fmt;
use core::time::Duration;
use syscalls::{Errno, Sysno, syscall};

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// Takes over the open descriptor `raw`.
    #[must_use]
    pub const fn own(raw: i32) -> Self {
        Self(raw)
    }

    /// The number of the descriptor.
    #[must_use]
    pub const fn raw(&self) -> i32 {
        self.0
    }

    /// Opens `path`, which ends in a zero byte, for reading, closed on exec.
    ///
    /// # Errors
    /// As of `openat(2)`.
    pub fn open(path: &core::ffi::CStr) -> Result<Self> {
        Self::open_in(CURRENT, path)
    }

    /// As [`Fd::open`], from the directory `dir` on.
    ///
    /// # Errors
    /// As of `openat(2)`.
    pub fn open_in(dir: i32, path: &core::ffi::CStr) -> Result<Self> {
        const RDONLY_CLOEXEC: usize = 0o2_000_000;
        open_at(dir, path, RDONLY_CLOEXEC, 0)
    }

    /// Opens `path` for reading and writing, as a device is, closed on exec.
    ///
    /// # Errors
    /// As of `openat(2)`.
    pub fn open_device(path: &core::ffi::CStr) -> Result<Self> {
        const RDWR_CLOEXEC: usize = 0o2_000_000 | 0o2;
        open(path, RDWR_CLOEXEC, 0)
    }

    /// Opens the regular file `path`, from the directory `dir` on, for reading, closed on exec;
    /// nothing else is opened, since that may wait or have effects. Gives its mode, too.
    ///
    /// # Errors
    /// As of `openat(2)`; `EACCES` for what is no regular file.
    pub fn open_regular(dir: i32, path: &core::ffi::CStr) -> Result<(Self, u32)> {
        const RDONLY_NOCTTY_NONBLOCK_CLOEXEC: usize = 0o2_000_000 | 0o400 | 0o4000;
        if !is_regular(mode(dir, path, 0)?) {
            return Err(Errno::EACCES);
        }
        let file = open_at(dir, path, RDONLY_NOCTTY_NONBLOCK_CLOEXEC, 0)?;
        const EMPTY_PATH: usize = 0x1000;
        let mode = mode(file.0, c"", EMPTY_PATH)?;
        if is_regular(mode) { Ok((file, mode)) } else { Err(Errno::EACCES) }
    }

    /// Whether the file gives capabilities to who executes it.
    #[must_use]
    pub fn has_capabilities(&self) -> bool {
        let name = c"security.capability".as_ptr();
        // SAFETY: with no room for it the kernel tells the length of the value only.
        unsafe { syscall!(Sysno::fgetxattr, self.0, name, 0usize, 0usize) }.is_ok_and(|len| len > 0)
    }

    /// Opens `path` for writing, made new or cut to nothing, with mode 0644.
    ///
    /// # Errors
    /// As of `openat(2)`.
    pub fn create(path: &core::ffi::CStr) -> Result<Self> {
        const WRONLY_CREAT_TRUNC_CLOEXEC: usize = 0o2_000_000 | 0o1 | 0o100 | 0o1000;
        open(path, WRONLY_CREAT_TRUNC_CLOEXEC, 0o644)
    }

    /// Reads into `buffer`; 0 is the end.
    ///
    /// # Errors
    /// As of `read(2)`; `EAGAIN` on a non-blocking descriptor with nothing to read.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes into a buffer we hold exclusively.
        unsafe { syscall!(Sysno::read, self.0, buffer.as_mut_ptr(), buffer.len()) }
    }

    /// Reads into `buffer` from `offset`.
    ///
    /// # Errors
    /// As of `pread64(2)`.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        // SAFETY: as in `read`.
        unsafe { syscall!(Sysno::pread64, self.0, buffer.as_mut_ptr(), buffer.len(), offset) }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// As of `write(2)`, other than `EINTR`.
    pub fn write_all(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            // SAFETY: the kernel reads at most `bytes.len()` bytes of a live slice.
            match unsafe { syscall!(Sysno::write, self.0, bytes.as_ptr(), bytes.len()) } {
                Ok(n) => bytes = bytes.get(n..).unwrap_or(&[]),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether a small write would be taken without waiting.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        const POLLOUT: i16 = 4;
        let mut watch = [Watch { fd: self.0, events: POLLOUT, found: 0 }];
        poll(&mut watch, Some(Duration::ZERO)).is_ok() && watch[0].found == POLLOUT
    }

    /// Whether there is something to read, or an end to learn of, without waiting.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        poll(&mut [Watch::readable(self)], Some(Duration::ZERO)).is_ok_and(|n| n > 0)
    }

    /// Has this number be what `with` is, whatever it was before, open or not.
    ///
    /// # Errors
    /// As of `dup3(2)`.
    pub fn become_like(&self, with: Self) -> Result<()> {
        const CLOEXEC: usize = 0o2_000_000;
        if with.0 == self.0 {
            core::mem::forget(with);
            return Ok(());
        }
        // SAFETY: what this number was is closed, and it is ours.
        unsafe { syscall!(Sysno::dup3, with.0, self.0, CLOEXEC) }.map(|_| ())
    }

    /// Gives the number away; the descriptor stays open.
    #[must_use]
    pub fn leak(self) -> i32 {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }
}

/// A pipe: what is written to the second comes out of the first.
///
/// # Errors
/// As of `pipe2(2)`.
pub fn pipe() -> Result<(Fd, Fd)> {
    const CLOEXEC: usize = 0o2_000_000;
    let mut ends = [0i32; 2];
    // SAFETY: the kernel writes two numbers.
    unsafe { syscall!(Sysno::pipe2, ends.as_mut_ptr(), CLOEXEC) }?;
    Ok((Fd::own(ends[0]), Fd::own(ends[1])))
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours, and nobody uses its number after this.
        let _ = unsafe { syscall!(Sysno::close, self.0) };
    }
}

/// The current directory, where a directory is asked for.
pub const CURRENT: i32 = -100;

fn open(path: &core::ffi::CStr, flags: usize, mode: usize) -> Result<Fd> {
    open_at(CURRENT, path, flags, mode)
}

fn open_at(dir: i32, path: &core::ffi::CStr, flags: usize, mode: usize) -> Result<Fd> {
    // SAFETY: `path` is a live string that ends in a zero byte.
    unsafe { syscall!(Sysno::openat, dir, path.as_ptr(), flags, mode) }.map(|n| Fd(n as i32))
}

/// What one may want to do with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Execute it, or search it.
    Execute = 1,
    /// Read it.
    Read = 4,
}

/// Whether this process may use `path`, from the directory `dir` on, by its effective ids.
///
/// # Errors
/// As of `faccessat2(2)`.
pub fn may(access: Access, dir: i32, path: &core::ffi::CStr) -> Result<()> {
    const EFFECTIVE: usize = 0x200;
    // SAFETY: `path` is a live string that ends in a zero byte.
    unsafe { syscall!(Sysno::faccessat2, dir, path.as_ptr(), access as usize, EFFECTIVE) }
        .map(|_| ())
}

/// `st_mode` of a file.
fn mode(dir: i32, path: &core::ffi::CStr, flags: usize) -> Result<u32> {
    /// `struct stat`, as far as it is read.
    #[repr(C)]
    struct Stat {
        device_inode_links: [u64; 3],
        mode: u32,
        rest: [u32; 29],
    }
    const _: () = assert!(size_of::<Stat>() == 144);
    let mut stat = Stat { device_inode_links: [0; 3], mode: 0, rest: [0; 29] };
    let at = core::ptr::from_mut(&mut stat);
    // SAFETY: the kernel fills a `struct stat`, which has this size, and reads a live string.
    unsafe { syscall!(Sysno::newfstatat, dir, path.as_ptr(), at, flags) }?;
    Ok(stat.mode)
}

const fn is_regular(mode: u32) -> bool {
    mode & 0o170_000 == 0o100_000
}

/// One descriptor to wait for, as in `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    fd: i32,
    events: i16,
    found: i16,
}

impl Watch {
    /// Waits until `fd` can be read.
    #[must_use]
    pub const fn readable(fd: &Fd) -> Self {
        const POLLIN: i16 = 1;
        Self { fd: fd.0, events: POLLIN, found: 0 }
    }

    /// What the last [`poll`] found is more than nothing.
    #[must_use]
    pub const fn fired(&self) -> bool {
        self.found != 0
    }
}

/// Waits until one of `watches` fires or `timeout` is over; `None` waits for ever.
///
/// # Errors
/// As of `ppoll(2)`; `EINTR` is an empty answer.
pub fn poll(watches: &mut [Watch], timeout: Option<Duration>) -> Result<usize> {
    let limit = timeout.map(|t| [t.as_secs(), u64::from(t.subsec_nanos())]);
    let limit_at = limit.as_ref().map_or(core::ptr::null(), |t| t.as_ptr());
    let (at, n) = (watches.as_mut_ptr(), watches.len());
    // SAFETY: `watches` is laid out as `struct pollfd`, `limit` as `struct timespec`; both outlive
    // the call.
    match unsafe { syscall!(Sysno::ppoll, at, n, limit_at, 0usize, 8usize) } {
        Err(Errno::EINTR) => Ok(0),
        other => other,
    }
}

/// Closes every descriptor in `first..=last` of this task's table.
///
/// # Errors
/// As of `close_range(2)`.
pub fn close_range(first: i32, last: u32) -> Result<()> {
    // SAFETY: called only where the table is ours alone (a helper after clone).
    unsafe { syscall!(Sysno::close_range, first, last, 0usize) }.map(|_| ())
}

/// A small text in a buffer of its own, for messages and paths; what does not fit is cut.
#[derive(Clone, Debug)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// An empty text.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Adds one byte, whatever it is, if there is room.
    pub fn push(&mut self, byte: u8) -> Option<()> {
        *self.bytes.get_mut(self.len).filter(|_| self.len + 1 < N)? = byte;
        self.len += 1;
        Some(())
    }

    /// What was written.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// What was written, with a zero byte behind it; `None` when that did not fit.
    #[must_use]
    pub fn as_c_str(&self) -> Option<&core::ffi::CStr> {
        core::ffi::CStr::from_bytes_until_nul(self.bytes.get(..=self.len)?).ok()
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = N - 1 - self.len;
        let n = s.len().min(room);
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(s.bytes().take(n)) {
            *to = from;
        }
        self.len += n;
        Ok(())
    }
}
