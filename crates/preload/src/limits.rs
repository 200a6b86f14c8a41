//! Limits on address space, as the program means them: without what we have reserved.
//!
//! What the kernel is told is larger by that, and what it tells is smaller, so that the program finds
//! what it has set. A child inherits the larger limit.
#![allow(unsafe_code)] // C functions, called by other people's programs

use crate::interpose::answer;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use octavo_page::ByteSize;
use octavo_page::config::reserve_bytes;
use octavo_sys::task::{self, Limit, RLIMIT_AS, RLIMIT_DATA};
use syscalls::{Errno, Sysno, syscall};

const INFINITY: u64 = u64::MAX;

/// A limit, whose type has also the name `struct rlimit64`, with both numbers changed, unless there is none.
fn adjusted(limit: Limit, change: impl Fn(u64) -> u64) -> Limit {
    let one = |limit| if limit == INFINITY { INFINITY } else { change(limit) };
    Limit { soft: one(limit.soft), hard: one(limit.hard) }
}

/// Bytes that the limit on `resource` of process `pid` counts and that are ours.
fn ours(pid: c_int, resource: c_int) -> u64 {
    let is_this = pid == 0 || pid == task::pid();
    let counts = matches!(resource as usize, RLIMIT_AS | RLIMIT_DATA);
    if is_this && counts { RESERVED.load(Ordering::Relaxed) } else { 0 }
}

/// Whether what we reserve is within the limits of this process.
pub fn have_room(limit: ByteSize) -> bool {
    [RLIMIT_AS, RLIMIT_DATA].into_iter().all(|resource| {
        let found = task::limit(resource).map_or(INFINITY, |limit| limit.soft);
        found >= reserve_bytes(limit)
    })
}

/// Bytes of address space that are ours, or will be when the limit comes near; in a forked child, that
/// will be those of the program which it execs.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// Notes that this process belongs to a job of `limit`.
pub fn note(limit: ByteSize) {
    RESERVED.store(reserve_bytes(limit), Ordering::Relaxed);
}

/// # Safety
/// As of prlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: c_int,
    resource: c_int,
    new: *const Limit,
    old: *mut Limit,
) -> c_int {
    let ours = ours(pid, resource);
    // SAFETY: the caller passes limits, or null.
    let new = unsafe { new.as_ref() };
    let raised = new.map(|new| adjusted(*new, |limit| limit.saturating_add(ours)));
    let new = raised.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: the caller's own call, with a limit of ours.
    let outcome = unsafe { syscall!(Sysno::prlimit64, pid, resource, new, old) };
    // SAFETY: the kernel has just written there, if anything.
    if let (Ok(_), Some(old)) = (outcome, unsafe { old.as_mut() }) {
        *old = adjusted(*old, |limit| limit.saturating_sub(ours));
    }
    answer(outcome, |_| 0, -1)
}

/// # Safety
/// As of prlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: c_int,
    resource: c_int,
    new: *const Limit,
    old: *mut Limit,
) -> c_int {
    // SAFETY: the same call by its other name.
    unsafe { prlimit(pid, resource, new, old) }
}

/// # Safety
/// As of setrlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_int, new: *const Limit) -> c_int {
    if new.is_null() {
        return answer(Err(Errno::EFAULT), |_| 0, -1);
    }
    // SAFETY: the caller's own limit.
    unsafe { prlimit(0, resource, new, core::ptr::null_mut()) }
}

/// # Safety
/// As of setrlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_int, new: *const Limit) -> c_int {
    // SAFETY: the same call by its other name.
    unsafe { setrlimit(resource, new) }
}

/// # Safety
/// As of getrlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(resource: c_int, old: *mut Limit) -> c_int {
    if old.is_null() {
        return answer(Err(Errno::EFAULT), |_| 0, -1);
    }
    // SAFETY: the caller's own place for it.
    unsafe { prlimit(0, resource, core::ptr::null(), old) }
}

/// # Safety
/// As of getrlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit64(resource: c_int, old: *mut Limit) -> c_int {
    // SAFETY: the same call by its other name.
    unsafe { getrlimit(resource, old) }
}
