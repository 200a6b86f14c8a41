//! Forks are announced to the pager, so that children are managed too.
//!
//! Handlers of `pthread_atfork` are called by everything in libc that forks: fork, forkpty, daemon.
//! Those registered first come last before a fork, and first after it; ours are registered by our
//! constructor. A child made by a bare system call has none of it, and is unmanaged.
#![allow(unsafe_code)] // a function of libc

use core::ffi::{c_int, c_void};
use octavo_pager::heir;

unsafe extern "C" {
    fn __register_atfork(
        before: extern "C" fn(),
        in_parent: extern "C" fn(),
        in_child: extern "C" fn(),
        object: *mut c_void,
    ) -> c_int;
}

/// Has forks be announced from now on.
pub fn announce() {
    // SAFETY: the handlers live as long as the process; without an object they are never taken out.
    // Where libc has no memory for them, children are unmanaged.
    let _ = unsafe { __register_atfork(before, in_parent, in_child, core::ptr::null_mut()) };
}

extern "C" fn before() {
    heir::before_fork();
}

extern "C" fn in_parent() {
    heir::after_fork_in_parent();
}

extern "C" fn in_child() {
    heir::after_fork_in_child();
}
