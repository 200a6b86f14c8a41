//! libc's allocator, replaced for the whole of a program, C libraries included, by one that counts and
//! passes on.
#![allow(unsafe_code)] // Stands in for C functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Calls so far.
pub fn calls() -> usize {
    CALLS.load(Ordering::Relaxed)
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: passes on to the function of the same name and contract, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    count();
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_malloc(size) }
}

// SAFETY: see `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(n: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_calloc(n, size) }
}

// SAFETY: see `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    count();
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_realloc(old, size) }
}

// SAFETY: see `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut c_void) {
    count();
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_free(old) }
}
