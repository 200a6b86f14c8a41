//! A page of memory that somebody owns, and the ground that pages are made of.
#![allow(unsafe_code)] // A page is made of an address.

use alloc::vec::Vec;
use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
use core::ffi::CStr;
use core::fmt;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use octavo_page::PAGE_SIZE;
use octavo_sys::memory::Reserve;

/// Four KiB of memory, aligned, that its holder alone may use. It is never copied and never freed:
/// it goes back to where it came from, or is lost to it.
#[must_use = "a page that is dropped is lost to the reserve it came from"]
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page(NonNull<[u8; PAGE_SIZE]>);

// SAFETY: whoever has a page is the only one who has its memory.
unsafe impl Send for Page {}
// SAFETY: a shared page only gives shared bytes.
unsafe impl Sync for Page {}

impl Page {
    /// The page at `address`.
    ///
    /// # Panics
    /// When no page begins there.
    ///
    /// # Safety
    /// The page is mapped, readable and writable, for as long as the process lives, or has an owner
    /// that unmaps nothing that it has not got back; and nobody else uses its memory.
    pub unsafe fn at(address: usize) -> Self {
        assert!(address.is_multiple_of(PAGE_SIZE), "no page begins there");
        Self(NonNull::new(with_exposed_provenance_mut(address)).expect("no page is at 0"))
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// Its contents, which whoever had it before has left.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; PAGE_SIZE] {
        // SAFETY: mapped, and ours alone, by the promise to `at`; any byte will do for a `u8`.
        unsafe { self.0.as_ref() }
    }

    /// Its contents, to be written.
    #[must_use]
    pub const fn bytes_mut(&mut self) -> &mut [u8; PAGE_SIZE] {
        // SAFETY: as in `bytes`.
        unsafe { self.0.as_mut() }
    }

    /// Fills it with `from` past the caches: for what is next read by a device. Where other caches have its
    /// lines, as those have of who read them for a device, they are not brought here before they are written.
    pub fn stream(&mut self, from: &[u8; PAGE_SIZE]) {
        const STEP: usize = size_of::<__m128i>();
        let (from, to) = (from.as_ptr(), self.0.as_ptr().cast::<u8>());
        for at in (0..PAGE_SIZE).step_by(STEP) {
            // SAFETY: 16 bytes inside of a page each, which is aligned, mapped, ours alone, and not `from`;
            // every x86-64 has these stores.
            unsafe { _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast())) }
        }
        // SAFETY: every x86-64 has it. Such stores are in no order with others until here; from here on they are as
        // any that were made before.
        unsafe { _mm_sfence() };
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({:#x})", self.0.as_ptr() as usize)
    }
}

/// Memory that nobody uses yet, to be cut into pages.
#[derive(Debug)]
pub struct Ground {
    memory: Reserve,
    /// Whether it goes when its pages do.
    is_whole: bool,
}

impl Ground {
    /// Address space for `pages` pages, named `name` in `/proc/PID/maps`.
    ///
    /// # Errors
    /// As of [`Reserve::new`].
    pub fn new(pages: usize, name: &CStr) -> octavo_sys::Result<Self> {
        let memory = Reserve::new(pages * PAGE_SIZE, name)?;
        Ok(Self { memory, is_whole: true })
    }

    /// All of `memory`, which another model or case may have used before.
    ///
    /// # Safety
    /// Nobody uses any of it while this, or a page of it, is there.
    #[cfg(test)]
    pub(crate) unsafe fn again(memory: Reserve) -> Self {
        Self { memory, is_whole: false }
    }

    /// Has children inherit it, as of [`Reserve::leave_to_children`].
    pub fn leave_to_children(&self) {
        self.memory.leave_to_children();
    }

    pub(crate) fn into_memory(self) -> Reserve {
        self.memory
    }

    /// Every page of it, and the land they are on.
    pub(crate) fn into_pages(self) -> (Land, Vec<Page>) {
        // SAFETY: a reserve of ours alone stays mapped for as long as the process lives, or until all of
        // these pages are given to `Land::leave`; and each is made once, as `self` ends here.
        let page = |address| unsafe { Page::at(address) };
        let pages = self.memory.span().step_by(PAGE_SIZE).map(page).collect();
        (Land { memory: self.memory, is_whole: self.is_whole }, pages)
    }
}

/// Memory that was cut into pages.
pub(crate) struct Land {
    pub(crate) memory: Reserve,
    is_whole: bool,
}

impl Land {
    /// Gives the memory back, if these are all of its pages, so that nobody has one any more.
    pub(crate) fn leave(&self, pages: impl Iterator<Item = Page>) {
        let span = self.memory.span();
        let home = pages.filter(|page| span.contains(&page.address())).count();
        if self.is_whole && home == span.len() / PAGE_SIZE {
            // SAFETY: each page was made once, is never copied, and all of them ended here; of the
            // memory itself nobody else knows but by addresses.
            unsafe { self.memory.unmap() };
        }
    }
}
