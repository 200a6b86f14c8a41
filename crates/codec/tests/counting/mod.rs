//! libc's allocator, replaced for the whole of a program, C libraries included, by one that counts and
//! passes on, or, once it is told to, has no memory for anybody: Rust's code aborts then.
#![allow(unsafe_code)] // Stands in for C functions.
#![allow(dead_code)] // Not every test has it refuse.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static CALLS: AtomicUsize = AtomicUsize::new(0);
static REFUSES: AtomicBool = AtomicBool::new(false);

const ENOMEM: c_int = 12;

/// Calls so far.
pub fn calls() -> usize {
    CALLS.load(Ordering::Relaxed)
}

/// Whether nothing is to be had from now on.
pub fn refuse(refuses: bool) {
    REFUSES.store(refuses, Ordering::SeqCst);
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

/// Counts a call; whether it gets memory.
fn count() -> bool {
    CALLS.fetch_add(1, Ordering::Relaxed);
    !REFUSES.load(Ordering::SeqCst)
}

// SAFETY: passes on to the function of the same name and contract, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    if !count() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_malloc(size) }
}

// SAFETY: see `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(n: usize, size: usize) -> *mut c_void {
    if !count() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_calloc(n, size) }
}

// SAFETY: see `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    if !count() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_realloc(old, size) }
}

// SAFETY: as the function of this name: what is at `to` is changed where there is memory. It is what Rust calls
// for more than usual alignment.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !count() {
        return ENOMEM;
    }
    // SAFETY: the caller's promises are the callee's.
    let memory = unsafe { __libc_memalign(align, size) };
    if memory.is_null() {
        return ENOMEM;
    }
    // SAFETY: the caller says where it is to be.
    unsafe { *to = memory };
    0
}

// SAFETY: see `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut c_void) {
    count();
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_free(old) }
}
