//! What of the address space is anonymous: `PROCMAP_QUERY` on `/proc/self/maps` (kernel 6.11).
#![allow(unsafe_code)] // one ioctl

use crate::file::Fd;
use crate::{Errno, Result, proc};
use core::ops::Range;
use syscalls::{Sysno, syscall};

/// One mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub span: Range<usize>,
    /// Private, anonymous, readable, writable, not executable: memory that can be managed.
    pub manageable: bool,
}

/// The mappings of this address space.
#[derive(Debug)]
pub struct Maps(Fd);

#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const PROCMAP_QUERY: usize = 0xC068_6611;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
const COVERING_OR_NEXT: u64 = 0x10;

impl Maps {
    /// Opens the list of mappings of the calling task.
    ///
    /// # Errors
    /// As of `openat(2)`, for one when `/proc` is not mounted.
    pub fn open() -> Result<Self> {
        proc::open("self", "maps").map(Self)
    }

    /// Has this number be what `with` is.
    ///
    /// # Errors
    /// As of [`Fd::become_like`].
    pub fn become_like(&self, with: Self) -> Result<()> {
        self.0.become_like(with.0)
    }

    /// The first writable mapping that covers `address` or lies behind it.
    ///
    /// # Errors
    /// `ENOTTY` before kernel 6.11.
    pub fn writable_from(&self, address: usize) -> Result<Option<Mapping>> {
        self.query(address, COVERING_OR_NEXT | WRITABLE)
    }

    /// The first mapping of any kind that covers `address` or lies behind it.
    ///
    /// # Errors
    /// As of [`Maps::writable_from`].
    pub fn any_from(&self, address: usize) -> Result<Option<Mapping>> {
        self.query(address, COVERING_OR_NEXT)
    }

    fn query(&self, address: usize, flags: u64) -> Result<Option<Mapping>> {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags,
            addr: address as u64,
            ..Query::default()
        };
        let at = core::ptr::from_mut(&mut query);
        // SAFETY: the kernel fills the query, whose size it was told.
        match unsafe { syscall!(Sysno::ioctl, self.0.raw(), PROCMAP_QUERY, at) } {
            Ok(_) => Ok(Some(query.mapping())),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Calls `each` with every range that children get as zeros (`MADV_WIPEONFORK`), as `smaps` shows
/// it; slow, since the kernel counts all pages on the way.
///
/// # Errors
/// As of reading `/proc/self/smaps`.
pub fn wiped_on_fork(mut each: impl FnMut(Range<usize>)) -> Result<()> {
    let smaps = proc::open("self", "smaps")?;
    // Small: a thread that forks may have a small stack.
    let mut buffer = [0u8; 2048];
    let (mut filled, mut span) = (0, 0..0);
    loop {
        let read = smaps.read(&mut buffer[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        let mut rest = &buffer[..filled];
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            let line = core::str::from_utf8(&rest[..end]).unwrap_or("");
            rest = &rest[end + 1..];
            if let Some(found) = span_of(line) {
                span = found;
            } else if line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "wf") {
                each(span.clone());
            }
        }
        let left = rest.len();
        buffer.copy_within(filled - left..filled, 0);
        // A line longer than the buffer holds nothing that is looked for.
        filled = if left == buffer.len() { 0 } else { left };
    }
}

/// The addresses that a line of `smaps` starts with, if it starts a mapping.
#[must_use]
pub fn span_of(line: &str) -> Option<Range<usize>> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

impl Query {
    fn mapping(&self) -> Mapping {
        let anonymous = self.inode == 0 && self.dev == [0, 0];
        let rights = self.vma_flags & (READABLE | WRITABLE | EXECUTABLE | SHARED);
        Mapping {
            span: self.start as usize..self.end as usize,
            manageable: anonymous && rights == READABLE | WRITABLE,
        }
    }
}
