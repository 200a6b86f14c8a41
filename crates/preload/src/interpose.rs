//! The functions of libc that this object stands in for. See the table in the crate's page.
#![allow(unsafe_code)] // C functions, called by other people's programs

use crate::exec::Real;
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use octavo_pager::mapped;
use octavo_pager::populate::populate;
use octavo_pager::start;
use syscalls::{Errno, Sysno, syscall};

const MADV_DONTNEED: c_int = 4;
const MADV_FREE: c_int = 8;
const MADV_WILLNEED: c_int = 3;
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;
const MAP_POPULATE: c_int = 0x8000;
const MAP_SHARED: c_int = 1;
const MAP_ANONYMOUS: c_int = 0x20;
const PROT_WRITE: c_int = 2;
const PROT_EXEC: c_int = 4;
const MAP_FAILED: *mut c_void = usize::MAX as *mut c_void;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
    fn malloc(bytes: usize) -> *mut c_void;
    fn free(block: *mut c_void);
}

/// What a C function returns: the value, or `failed` with `errno` set.
pub fn answer<T>(outcome: Result<usize, Errno>, value: impl Fn(usize) -> T, failed: T) -> T {
    match outcome {
        Ok(n) => value(n),
        Err(error) => {
            // SAFETY: libc's own place for it, in the calling thread.
            unsafe { *__errno_location() = error.into_raw() };
            failed
        }
    }
}

/// # Safety
/// As of madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    let populates = matches!(advice, MADV_POPULATE_READ | MADV_POPULATE_WRITE);
    let populating = populates.then(|| populate(len));
    let advice = match advice {
        MADV_FREE if start::is_managed() => MADV_DONTNEED,
        _ if matches!(populating, Some(None)) => MADV_WILLNEED,
        other => other,
    };
    // SAFETY: the caller's own call.
    let outcome = unsafe { syscall!(Sysno::madvise, start, len, advice) };
    answer(outcome, |_| 0, -1)
}

/// # Safety
/// As of mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let populating = (flags & MAP_POPULATE != 0).then(|| populate(len));
    let flags = if matches!(populating, Some(None)) { flags & !MAP_POPULATE } else { flags };
    // SAFETY: the caller's own call.
    let outcome = unsafe { syscall!(Sysno::mmap, start, len, protection, flags, fd, offset) };
    if let Ok(at) = outcome
        && is_untouched_memory(protection, flags)
    {
        mapped::wait_until_registered(at);
    }
    answer(outcome, |at| at as *mut c_void, MAP_FAILED)
}

/// Whether what `mmap` makes with these can be managed, and was not touched by being made.
const fn is_untouched_memory(protection: c_int, flags: c_int) -> bool {
    let untouched = flags & (MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE) == MAP_ANONYMOUS;
    untouched && protection & (PROT_WRITE | PROT_EXEC) == PROT_WRITE
}

/// # Safety
/// As of mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    start: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the same call by its other name.
    unsafe { mmap(start, len, protection, flags, fd, offset) }
}

/// # Safety
/// As of mlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if start::is_managed() {
        return 0;
    }
    // SAFETY: the caller's own call.
    let outcome = unsafe { syscall!(Sysno::mlockall, flags) };
    answer(outcome, |_| 0, -1)
}

/// # Safety
/// As of _exit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    start::before_end();
    octavo_sys::task::exit_group(status)
}

/// # Safety
/// As of _Exit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: the same call by its other name.
    unsafe { _exit(status) }
}

type Create = unsafe extern "C" fn(*mut c_void, *const c_void, StartRoutine, *mut c_void) -> c_int;
type StartRoutine = extern "C" fn(*mut c_void) -> *mut c_void;

// SAFETY: the type of pthread.h.
static CREATE: Real<Create> = unsafe { Real::new(c"pthread_create") };

/// What a new thread is to run.
#[repr(C)]
struct Begin {
    start: usize,
    argument: *mut c_void,
}

/// # Safety
/// As of pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: StartRoutine,
    argument: *mut c_void,
) -> c_int {
    let Some(create) = CREATE.get() else { return Errno::ENOSYS.into_raw() };
    if !start::is_managed() {
        // SAFETY: the caller's own call.
        return unsafe { create(thread, attributes, start, argument) };
    }
    // The program's own heap: ours gives nothing back.
    // SAFETY: an ordinary allocation.
    let begin = unsafe { malloc(size_of::<Begin>()) }.cast::<Begin>();
    if begin.is_null() {
        return Errno::EAGAIN.into_raw();
    }
    // SAFETY: the block is fresh and large enough; the thread frees it, or we when there is none.
    unsafe {
        begin.write(Begin { start: start as usize, argument });
        let error = create(thread, attributes, begin_thread, begin.cast());
        if error != 0 {
            free(begin.cast());
        }
        error
    }
}

/// A thread's first function: it leaves no frame behind, so that `pthread_exit` unwinds, and a
/// debugger sees, the program's own frames alone.
#[unsafe(naked)]
extern "C" fn begin_thread(begin: *mut c_void) -> *mut c_void {
    naked_asm!(
        "sub rsp, 8",
        "call {enter}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        enter = sym enter_thread,
    )
}

/// Pins the thread's block; gives what to run, in `rax` and `rdx`.
extern "C" fn enter_thread(begin: *mut Begin) -> Begin {
    start::pin_thread();
    // SAFETY: made by `pthread_create` for this thread alone.
    unsafe {
        let what = begin.read();
        free(begin.cast());
        what
    }
}
