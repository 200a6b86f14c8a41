//! The operating system, as far as the pager needs it, and nothing of what is decided with it.
//!
//! Every call here is a bare system call: no libc, no `errno`, no thread-local storage, so that it
//! can be made by a task that libc knows nothing of (see [`task`]). This is one of the few crates
//! where `unsafe` lives; each file that opens it says why.
//!
//! ```text
//!   uffd    who faults, and how pages come and go      userfaultfd(2), UFFDIO_MOVE and its kin
//!   maps    what of the address space is anonymous     PROCMAP_QUERY
//!   scan    which pages are present                    PAGEMAP_SCAN
//!   memory  ranges of our own                          mmap, mprotect, madvise
//!   task    helpers that share the address space       clone, affinity, pidfd, signals
//!   proc    what /proc tells of a process              stat, statm, smaps_rollup
//!   secret  keys, and random bytes for them             mlock, getrandom
//!   file    reads and writes on descriptors of ours    read, write, poll
//!   disk    files that hold blocks                     pwritev, preadv, fallocate
//!   uring   writes that go on by themselves            io_uring
//!   device  memory that a device uses too, portals     mmap, MOVDIR64B, ENQCMD, write
//! ```
#![no_std]

#[cfg(test)]
extern crate std;

pub mod device;
pub mod disk;
pub mod file;
pub mod maps;
pub mod memory;
pub mod proc;
pub mod scan;
pub mod secret;
pub mod shared;
pub mod task;
pub mod uffd;
pub mod uring;

pub use syscalls::Errno;

/// What a system call gives.
pub type Result<T> = core::result::Result<T, Errno>;

/// What an error means, in words, as `No such file or directory`.
#[must_use]
pub fn reason(why: Errno) -> &'static str {
    why.description().unwrap_or("unknown error")
}
