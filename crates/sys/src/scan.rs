//! Which pages are present: `PAGEMAP_SCAN` on `/proc/self/pagemap` (kernel 6.7).
#![allow(unsafe_code)] // one ioctl

use crate::file::Fd;
use crate::{Errno, Result, proc};
use core::ops::Range;
use octavo_page::PAGE_SIZE;
use syscalls::{Sysno, syscall};

/// The page map of this address space.
#[derive(Debug)]
pub struct PageMap(Fd);

/// A run of present pages, as the kernel fills it in (`struct page_region`).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

impl Run {
    /// Addresses of the run.
    #[must_use]
    pub const fn span(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

#[repr(C)]
struct Arg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: usize = 0xC060_6610;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZEROS: u64 = 1 << 5;
const HUGE: u64 = 1 << 6;

/// What a page is to be, to be listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Is {
    /// In its place, where it can be used at once.
    Present,
    /// There at all: present, swapped out, or on the way to another frame, as the kernel moves pages
    /// when it makes room for large ones. Only what is not even that has no contents.
    There,
    /// Present with a frame of its own, which is no part of a huge page.
    Small,
}

impl Is {
    /// What a page has one of.
    const fn mask(self) -> u64 {
        match self {
            Self::Present | Self::Small => PRESENT,
            Self::There => PRESENT | SWAPPED,
        }
    }

    /// What a page does not have.
    const fn without(self) -> u64 {
        match self {
            Self::Present | Self::There => 0,
            Self::Small => HUGE | ZEROS,
        }
    }
}

impl PageMap {
    /// Opens the page map of the calling task.
    ///
    /// # Errors
    /// As of `openat(2)`.
    pub fn open() -> Result<Self> {
        proc::open("self", "pagemap").map(Self)
    }

    /// Has this number be what `with` is.
    ///
    /// # Errors
    /// As of [`Fd::become_like`].
    pub fn become_like(&self, with: Self) -> Result<()> {
        self.0.become_like(with.0)
    }

    /// The runs of pages of `span` that are as wanted, in order, as many as `runs` holds, and where the
    /// walk ended.
    ///
    /// # Errors
    /// As of the ioctl; `ENOTTY` before kernel 6.7.
    pub fn list<'a>(
        &self,
        is: Is,
        span: Range<usize>,
        runs: &'a mut [Run],
    ) -> Result<(&'a [Run], usize)> {
        self.scan(is, span, runs, 0)
    }

    /// The first present page of `span`.
    ///
    /// # Errors
    /// As of [`PageMap::list`].
    pub fn first_present(&self, span: Range<usize>) -> Result<Option<usize>> {
        let mut runs = [Run::default(); 1];
        let (found, _) = self.scan(Is::Present, span, &mut runs, 1)?;
        Ok(found.first().map(|run| run.span().start))
    }

    /// Reads the words of the pages from `address` on, as proc(5) has them.
    ///
    /// # Errors
    /// As of `pread64(2)`; `EIO` when it ends early.
    pub fn read(&self, address: usize, words: &mut [u64]) -> Result<()> {
        let (at, len) = (words.as_mut_ptr(), size_of_val(words));
        let offset = address / PAGE_SIZE * size_of::<u64>();
        // SAFETY: the kernel writes at most `len` bytes into `words`, for which any bytes are right.
        let read = unsafe { syscall!(Sysno::pread64, self.0.raw(), at, len, offset) }?;
        if read == len { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Whether a page with this word is present and mapped more than once.
    #[must_use]
    pub const fn is_shared(word: u64) -> bool {
        const HERE: u64 = 1 << 63;
        const MAPPED_ONCE: u64 = 1 << 56;
        word & (HERE | MAPPED_ONCE) == HERE
    }

    /// As [`PageMap::list`], but ends after `max_pages` pages, unless that is 0.
    fn scan<'a>(
        &self,
        is: Is,
        span: Range<usize>,
        runs: &'a mut [Run],
        max_pages: u64,
    ) -> Result<(&'a [Run], usize)> {
        let mut arg = Arg {
            size: size_of::<Arg>() as u64,
            flags: 0,
            start: span.start as u64,
            end: span.end as u64,
            walk_end: 0,
            vec: runs.as_mut_ptr() as u64,
            vec_len: runs.len() as u64,
            max_pages,
            category_inverted: is.without(),
            category_mask: is.without(),
            category_anyof_mask: is.mask(),
            return_mask: is.mask(),
        };
        let at = core::ptr::from_mut(&mut arg);
        // SAFETY: the kernel writes at most `vec_len` regions into `runs`, and `arg` itself.
        let n = unsafe { syscall!(Sysno::ioctl, self.0.raw(), PAGEMAP_SCAN, at) }?;
        Ok((runs.get(..n).unwrap_or(&[]), arg.walk_end as usize))
    }
}
