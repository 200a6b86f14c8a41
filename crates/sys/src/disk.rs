//! Files and block devices that hold blocks: made, sized, read and written at offsets, emptied.
//!
//! A transfer takes a list of pieces of memory, as `pwritev(2)` does. Pieces that lie side by side
//! become one, so pages got together are mostly a single piece, and a ring with registered memory
//! ([`crate::uring`]) can take them as such.
#![allow(unsafe_code)] // bare system calls on buffers that the callers lend

use crate::file::{CURRENT, Fd, Text};
use crate::{Errno, Result, task};
use core::ffi::CStr;
use core::fmt::Write as _;
use core::marker::PhantomData;
use core::ops::Range;
use syscalls::{Sysno, syscall};

/// Pieces of a list at most: the pages of a megabyte, none beside another.
pub const PIECES: usize = 256;

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Part {
    start: usize,
    len: usize,
}

/// Where the pieces of a list lie.
struct Parts {
    parts: [Part; PIECES],
    len: usize,
    bytes: usize,
}

impl Parts {
    const fn new() -> Self {
        Self { parts: [Part { start: 0, len: 0 }; PIECES], len: 0, bytes: 0 }
    }

    fn push(&mut self, start: usize, len: usize) {
        self.bytes += len;
        match self.len.checked_sub(1).map(|last| &mut self.parts[last]) {
            Some(last) if last.start + last.len == start => last.len += len,
            _ => {
                assert!(self.len < PIECES, "more than {PIECES} pieces of memory");
                self.parts[self.len] = Part { start, len };
                self.len += 1;
            }
        }
    }
}

/// Bytes to be written, from several pieces of memory.
pub struct Gather<'a>(Parts, PhantomData<&'a [u8]>);

/// Room to be read into, in several pieces of memory.
pub struct Scatter<'a>(Parts, PhantomData<&'a mut [u8]>);

impl<'a> Gather<'a> {
    /// These pieces, in this order.
    ///
    /// # Panics
    /// When there are more than [`PIECES`] that do not lie side by side.
    pub fn new(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut parts = Parts::new();
        pieces
            .into_iter()
            .for_each(|piece| parts.push(piece.as_ptr().expose_provenance(), piece.len()));
        Self(parts, PhantomData)
    }

    /// Bytes in all pieces.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Where the pieces lie, when they are one.
    #[must_use]
    pub fn as_one(&self) -> Option<Range<usize>> {
        let [Part { start, len }] = self.0.parts[..self.0.len] else { return None };
        Some(start..start + len)
    }

    /// Address and number of the pieces, as `struct iovec`.
    pub(crate) fn raw(&self) -> (usize, usize) {
        (self.0.parts.as_ptr().expose_provenance(), self.0.len)
    }
}

impl<'a> Scatter<'a> {
    /// These pieces, in this order.
    ///
    /// # Panics
    /// As of [`Gather::new`].
    pub fn new(pieces: impl IntoIterator<Item = &'a mut [u8]>) -> Self {
        let mut parts = Parts::new();
        for piece in pieces {
            parts.push(piece.as_mut_ptr().expose_provenance(), piece.len());
        }
        Self(parts, PhantomData)
    }
}

/// What a name or a descriptor stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A block device.
    Device,
    /// Something else: a pipe, a terminal, `/dev/full`.
    Other,
}

/// What is known of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// What it is.
    pub kind: Kind,
    /// Its length in bytes; 0 for a device.
    pub bytes: u64,
    /// Bytes of the disk that it takes: less where it has holes.
    pub allocated: u64,
}

/// `struct stat` of x86-64, as far as it is read.
#[repr(C)]
struct Stat {
    device_inode_links: [u64; 3],
    mode: u32,
    owner_group_pad: [u32; 3],
    rdev: u64,
    size: u64,
    block_size: u64,
    blocks: u64,
    times_and_rest: [u64; 9],
}

const _: () = assert!(size_of::<Stat>() == 144);

fn status(dir: i32, path: &CStr, flags: usize) -> Result<Status> {
    let mut stat = Stat {
        device_inode_links: [0; 3],
        mode: 0,
        owner_group_pad: [0; 3],
        rdev: 0,
        size: 0,
        block_size: 0,
        blocks: 0,
        times_and_rest: [0; 9],
    };
    let at = core::ptr::from_mut(&mut stat);
    // SAFETY: the kernel fills a `struct stat`, which has this size, and reads a live string.
    unsafe { syscall!(Sysno::newfstatat, dir, path.as_ptr(), at, flags) }?;
    let kind = match stat.mode & 0o170_000 {
        0o100_000 => Kind::File,
        0o040_000 => Kind::Directory,
        0o060_000 => Kind::Device,
        _ => Kind::Other,
    };
    Ok(Status { kind, bytes: stat.size, allocated: stat.blocks * 512 })
}

/// What `path` is; a link is what it leads to.
///
/// # Errors
/// As of `stat(2)`.
pub fn status_of(path: &CStr) -> Result<Status> {
    status(CURRENT, path, 0)
}

/// Removes the name `path`; what it stood for stays while it is open.
///
/// # Errors
/// As of `unlink(2)`.
pub fn unlink(path: &CStr) -> Result<()> {
    // SAFETY: `path` is a live string that ends in a zero byte.
    unsafe { syscall!(Sysno::unlinkat, CURRENT, path.as_ptr(), 0usize) }.map(|_| ())
}

const READ_WRITE_CLOEXEC: usize = 0o2 | 0o2_000_000;
const CREATE: usize = 0o100;
const EXCLUSIVE: usize = 0o200;

fn open(path: &CStr, flags: usize) -> Result<Fd> {
    open_from(CURRENT, path, flags)
}

fn open_in(dir: &Fd, path: &CStr, flags: usize) -> Result<Fd> {
    open_from(dir.raw(), path, flags)
}

fn open_from(dir: i32, path: &CStr, flags: usize) -> Result<Fd> {
    const OWNER_ONLY: usize = 0o600;
    // SAFETY: `path` is a live string that ends in a zero byte.
    unsafe { syscall!(Sysno::openat, dir, path.as_ptr(), flags, OWNER_ONLY) }
        .map(|raw| Fd::own(raw as i32))
}

impl Fd {
    /// Makes the file `path`, which must not be there, for reading and writing by its owner alone.
    ///
    /// # Errors
    /// As of `openat(2)`: `EEXIST` when there is anything of that name.
    pub fn create_private(path: &CStr) -> Result<Self> {
        open(path, READ_WRITE_CLOEXEC | CREATE | EXCLUSIVE)
    }

    /// Makes a file without a name in the directory `dir`, for its owner alone; it is gone when it is closed.
    ///
    /// # Errors
    /// As of `openat(2)`.
    pub fn create_nameless(dir: &Self) -> Result<Self> {
        const NAMELESS: usize = 0o20_200_000;
        match open_in(dir, c".", READ_WRITE_CLOEXEC | NAMELESS) {
            // File systems without: a name that nobody else takes, for a moment.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT) => {
                let mut name = Text::<64>::new();
                let (process, now) = (task::pid(), task::now().as_nanos());
                let written = write!(name, ".octavo-{process}-{now}\0");
                let name = CStr::from_bytes_until_nul(name.as_bytes());
                let name = written.ok().and(name.ok()).ok_or(Errno::ENAMETOOLONG)?;
                let file = open_in(dir, name, READ_WRITE_CLOEXEC | CREATE | EXCLUSIVE)?;
                // SAFETY: `name` is a live string that ends in a zero byte.
                unsafe { syscall!(Sysno::unlinkat, dir.raw(), name.as_ptr(), 0usize) }?;
                Ok(file)
            }
            made => made,
        }
    }

    /// Opens the directory `path` for what is to be opened or made in it.
    ///
    /// # Errors
    /// As of `openat(2)`.
    pub fn open_directory(path: &CStr) -> Result<Self> {
        const PATH_DIRECTORY_CLOEXEC: usize = 0o10_000_000 | 0o200_000 | 0o2_000_000;
        open(path, PATH_DIRECTORY_CLOEXEC)
    }

    /// Opens `path` for reading and writing; a block device so that nobody else has it that way.
    ///
    /// # Errors
    /// As of `openat(2)`: `EBUSY` for a device that is mounted, or claimed by another.
    pub fn open_claimed(path: &CStr) -> Result<Self> {
        open(path, READ_WRITE_CLOEXEC | EXCLUSIVE)
    }

    /// What it is.
    ///
    /// # Errors
    /// As of `fstat(2)`.
    pub fn status(&self) -> Result<Status> {
        const EMPTY_PATH: usize = 0x1000;
        status(self.raw(), c"", EMPTY_PATH)
    }

    /// Where it ends; for a device its size.
    ///
    /// # Errors
    /// As of `lseek(2)`.
    pub fn end(&self) -> Result<u64> {
        const SEEK_END: usize = 2;
        // SAFETY: moves a position that nobody uses.
        unsafe { syscall!(Sysno::lseek, self.raw(), 0usize, SEEK_END) }.map(|end| end as u64)
    }

    /// Whether a block device takes no writes. Opened for writing it may be all the same.
    ///
    /// # Errors
    /// As of `ioctl(2)`: `ENOTTY` for what is no block device.
    pub fn is_read_only(&self) -> Result<bool> {
        const BLKROGET: usize = 0x125e;
        let mut read_only = 0i32;
        let at = core::ptr::from_mut(&mut read_only);
        // SAFETY: the kernel writes one number.
        unsafe { syscall!(Sysno::ioctl, self.raw(), BLKROGET, at) }.map(|_| read_only != 0)
    }

    /// Makes it `bytes` long; what is added is a hole.
    ///
    /// # Errors
    /// As of `ftruncate(2)`.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        // SAFETY: sets the length of a file.
        unsafe { syscall!(Sysno::ftruncate, self.raw(), bytes) }.map(|_| ())
    }

    /// Lets its owner alone read and write it.
    ///
    /// # Errors
    /// As of `fchmod(2)`.
    pub fn make_private(&self) -> Result<()> {
        // SAFETY: sets the mode of a file.
        unsafe { syscall!(Sysno::fchmod, self.raw(), 0o600usize) }.map(|_| ())
    }

    /// Whether transfers are to pass the page cache by.
    ///
    /// # Errors
    /// As of `fcntl(2)`: `EINVAL` where that does not go.
    pub fn set_direct(&self, direct: bool) -> Result<()> {
        const GET_FLAGS: usize = 3;
        const SET_FLAGS: usize = 4;
        const DIRECT: usize = 0o40_000;
        // SAFETY: reads the flags of a descriptor.
        let flags = unsafe { syscall!(Sysno::fcntl, self.raw(), GET_FLAGS, 0usize) }?;
        let flags = if direct { flags | DIRECT } else { flags & !DIRECT };
        // SAFETY: sets the flags of a descriptor.
        unsafe { syscall!(Sysno::fcntl, self.raw(), SET_FLAGS, flags) }.map(|_| ())
    }

    /// Makes a hole of `len` bytes from `offset` on, which reads as zeros; a device discards them.
    ///
    /// # Errors
    /// As of `fallocate(2)`: `EOPNOTSUPP` where there are no holes.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        const KEEP_SIZE: usize = 1;
        const PUNCH_HOLE: usize = 2;
        // SAFETY: changes a file that the caller has open for writing.
        unsafe { syscall!(Sysno::fallocate, self.raw(), KEEP_SIZE | PUNCH_HOLE, offset, len) }
            .map(|_| ())
    }

    /// Writes at `offset`; how many bytes that became.
    ///
    /// # Errors
    /// As of `pwritev(2)`.
    pub fn write_gathered(&self, from: &Gather<'_>, offset: u64) -> Result<usize> {
        let (parts, len) = from.raw();
        // SAFETY: the kernel reads pieces that the caller lends, and their list.
        unsafe { syscall!(Sysno::pwritev, self.raw(), parts, len, offset, 0usize) }
    }

    /// Reads from `offset`; how many bytes that were. 0 is the end.
    ///
    /// # Errors
    /// As of `preadv(2)`.
    pub fn read_scattered(&self, to: &mut Scatter<'_>, offset: u64) -> Result<usize> {
        let Parts { parts, len, .. } = &to.0;
        // SAFETY: the kernel writes into pieces that the caller lends exclusively, and reads their
        // list.
        unsafe { syscall!(Sysno::preadv, self.raw(), parts.as_ptr(), *len, offset, 0usize) }
    }
}

/// Whether an error means that there is no more room, and not that something is broken.
#[must_use]
pub fn is_full(why: Errno) -> bool {
    matches!(why, Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)
}
