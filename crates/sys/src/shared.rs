//! Memory that several processes share, held by a descriptor of one of them.
#![allow(unsafe_code)] // makes descriptors and mappings

use crate::Result;
use crate::file::Fd;
use core::sync::atomic::AtomicU32;
use core::time::Duration;
use syscalls::{Sysno, syscall};

/// New shared memory of `len` bytes, all zeros; nobody else has it yet.
///
/// # Errors
/// As of `memfd_create(2)`.
pub fn create(name: &core::ffi::CStr, len: usize) -> Result<Fd> {
    const CLOEXEC: usize = 1;
    // SAFETY: the kernel copies the name; makes a descriptor.
    let made = unsafe { syscall!(Sysno::memfd_create, name.as_ptr(), CLOEXEC) }?;
    let memory = Fd::own(made as i32);
    // SAFETY: sets the length of a file of ours.
    unsafe { syscall!(Sysno::ftruncate, memory.raw(), len) }?;
    Ok(memory)
}

/// Maps `len` bytes of `memory`, for as long as the address space lasts; gives the address.
///
/// # Errors
/// As of `mmap(2)`.
pub fn map(memory: &Fd, len: usize) -> Result<usize> {
    const READ_WRITE: usize = 3;
    const SHARED: usize = 1;
    // SAFETY: a new mapping at an address of the kernel's choice touches nobody's memory.
    unsafe { syscall!(Sysno::mmap, 0usize, len, READ_WRITE, SHARED, memory.raw(), 0usize) }
}

/// Waits while `word`, in memory that processes share, holds `value`, until woken or `timeout` is over.
pub fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    const WAIT: usize = 0;
    let limit = [timeout.as_secs(), u64::from(timeout.subsec_nanos())];
    // SAFETY: the word is live; a spurious return is allowed.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), WAIT, value, limit.as_ptr()) };
}

/// Wakes everybody, of whatever process, who waits on `word`.
pub fn wake(word: &AtomicU32) {
    const WAKE: usize = 1;
    // SAFETY: the word is live.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), WAKE, i32::MAX) };
}
