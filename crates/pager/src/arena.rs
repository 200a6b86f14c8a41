//! The pool's memory: one reserved range, whose pages the kernel gives when they are touched.
#![allow(unsafe_code)] // implements an unsafe trait and discards memory

use core::ops::Range;
use core::ptr::NonNull;
use octavo_page::PAGE_SIZE;
use octavo_pool::{Arena, OutOfFrames, RUNS};
use octavo_sys::file::Fd;
use octavo_sys::memory::{PARTS, Reserve};
use octavo_sys::{Result, task};

const _: () = assert!(RUNS <= PARTS, "what the pool gives back in one call goes in one call");

/// See the module.
#[derive(Debug)]
pub struct PoolArena {
    reserve: Reserve,
    me: Fd,
}

impl PoolArena {
    /// Reserves `bytes` of address space for the calling process.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is limited.
    pub fn new(bytes: usize) -> Result<Self> {
        let reserve = Reserve::new(bytes, c"octavo pool")?;
        reserve.leave_to_children();
        Ok(Self { reserve, me: task::pidfd(task::pid())? })
    }

    /// In a forked child, makes the descriptor that its copy of this names.
    ///
    /// # Errors
    /// As of `pidfd_open(2)`.
    pub fn inherit(&self) -> Result<()> {
        self.me.become_like(task::pidfd(task::pid())?)
    }
}

// SAFETY: the reserve is page aligned, as long as `pages` says, mapped as long as the address
// space, and known to nobody else; untouched and discarded pages read as zeros.
unsafe impl Arena for PoolArena {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.reserve.start() as *mut u8).unwrap_or(NonNull::dangling())
    }

    fn pages(&self) -> usize {
        self.reserve.span().len() / PAGE_SIZE
    }

    fn commit(&self, _first: usize, _pages: usize) -> core::result::Result<(), OutOfFrames> {
        Ok(())
    }

    fn decommit(&self, runs: &[Range<u32>]) {
        let address = |page: u32| self.reserve.start() + page as usize * PAGE_SIZE;
        let parts = runs.iter().map(|run| address(run.start)..address(run.end));
        // SAFETY: the pool does not look at these pages until it commits them again.
        unsafe { self.reserve.discard_all(&self.me, parts) };
    }
}
