//! Stand-ins for the functions that start programs: what they start gets our object too.
//!
//! Each looks at the target, builds the environment, and has libc's own function do the rest, so that
//! searching `PATH`, falling back to the shell, file actions and errors are as they were.
//!
//! | the program calls | libc's is called |
//! |---|---|
//! | `execve`, `fexecve`, `execveat` | the same |
//! | `execv`, `execl`, `execle` | `execve` |
//! | `execvp`, `execvpe`, `execlp` | `execvpe` |
//! | `posix_spawn`, `posix_spawnp` | the same |
//! | `system`, `popen` | the same, with a command that has the shell start another one with our variables |
//!
//! A target that does not take our object is started as the program said, and counted. All but `system`
//! and `popen` may be called in a signal handler, in a forked child and in one of vfork: no heap, no
//! lock, nothing shared. What they call was found when the program began.
//!
//! A program whose environment and arguments come near the kernel's limit might not start with our
//! variables in it: then it is started without.
#![allow(unsafe_code)] // C functions, called by other people's programs

use crate::environ::{self, Environment, Ours};
use crate::interpose::answer;
use crate::target::{self, Otherwise, Target};
use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::marker::PhantomData;
use core::ptr;
use octavo_page::sync::atomic::{AtomicUsize, Ordering};
use octavo_pager::start::note_unmanaged;
use octavo_sys::file::CURRENT;
use octavo_sys::memory::Scratch;
use syscalls::Errno;

type Arguments = *const *const c_char;
type Execve = unsafe extern "C" fn(*const c_char, Arguments, Environment) -> c_int;
type Fexecve = unsafe extern "C" fn(c_int, Arguments, Environment) -> c_int;
type Execveat = unsafe extern "C" fn(c_int, *const c_char, Arguments, Environment, c_int) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut c_int,
    *const c_char,
    *const c_void,
    *const c_void,
    Arguments,
    Environment,
) -> c_int;
type System = unsafe extern "C" fn(*const c_char) -> c_int;
type Popen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// A function of libc that one of ours stands in for, of type `F`.
pub struct Real<F> {
    name: &'static CStr,
    found: AtomicUsize,
    is: PhantomData<F>,
}

impl<F: Copy> Real<F> {
    /// # Safety
    /// `F` is a function pointer, of the type that the function of that name has.
    pub const unsafe fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicUsize::new(0), is: PhantomData }
    }

    /// The function, if libc has it. Looked for once, when the program begins.
    pub fn get(&self) -> Option<F> {
        const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        let mut found = self.found.load(Ordering::Relaxed);
        if found == 0 {
            // SAFETY: the name is a string.
            found = unsafe { dlsym(RTLD_NEXT, self.name.as_ptr()) } as usize;
            self.found.store(found, Ordering::Relaxed);
        }
        // SAFETY: by the promise of `new`, an address of this function is an `F`.
        (found != 0).then(|| unsafe { core::mem::transmute_copy(&found) })
    }
}

// SAFETY: these are the types of unistd.h, spawn.h, stdlib.h and stdio.h.
static EXECVE: Real<Execve> = unsafe { Real::new(c"execve") };
// SAFETY: as above.
static EXECVPE: Real<Execve> = unsafe { Real::new(c"execvpe") };
// SAFETY: as above.
static FEXECVE: Real<Fexecve> = unsafe { Real::new(c"fexecve") };
// SAFETY: as above.
static EXECVEAT: Real<Execveat> = unsafe { Real::new(c"execveat") };
// SAFETY: as above.
static POSIX_SPAWN: Real<Spawn> = unsafe { Real::new(c"posix_spawn") };
// SAFETY: as above.
static POSIX_SPAWNP: Real<Spawn> = unsafe { Real::new(c"posix_spawnp") };
// SAFETY: as above.
static SYSTEM: Real<System> = unsafe { Real::new(c"system") };
// SAFETY: as above.
static POPEN: Real<Popen> = unsafe { Real::new(c"popen") };

/// Finds libc's functions, since looking for one later may take a lock.
pub fn find_all() {
    let _ = (EXECVE.get(), EXECVPE.get(), FEXECVE.get(), EXECVEAT.get());
    let _ = (POSIX_SPAWN.get(), POSIX_SPAWNP.get(), SYSTEM.get(), POPEN.get());
}

/// Starts something by `call`, which gives 0 or an error number, with what environment `target` is to
/// have: `theirs`, or that with our variables.
///
/// # Safety
/// `theirs` is an environment.
unsafe fn start(
    target: impl FnOnce() -> Target,
    theirs: Environment,
    call: impl Fn(Environment) -> c_int,
) -> c_int {
    let Some(ours) = Ours::get() else { return call(theirs) };
    let with_ours = match target() {
        // SAFETY: the caller's promise.
        Target::Fit if ours.can_be_loaded() => unsafe { ours.add_to(theirs, &call) },
        Target::Fit | Target::Unfit => None,
        Target::Absent => return call(theirs),
    };
    match with_ours {
        None => {}
        Some(error) if error == Errno::E2BIG.into_raw() => {}
        Some(outcome) => return outcome,
    }
    // Before the call: a success may not come back.
    note_unmanaged(1);
    let outcome = call(theirs);
    if outcome != 0 {
        note_unmanaged(-1);
    }
    outcome
}

/// As [`start`], for functions that return only when they fail, with -1 and `errno`.
///
/// # Safety
/// As of `start`.
unsafe fn replace<F: Copy>(
    real: &Real<F>,
    target: impl FnOnce() -> Target,
    theirs: Environment,
    call: impl Fn(F, Environment) -> c_int,
) -> c_int {
    let Some(real) = real.get() else { return answer(Err(Errno::ENOSYS), |_| 0, -1) };
    // SAFETY: the caller's promise; libc's own place for errors, in the calling thread.
    unsafe {
        start(target, theirs, |environment| {
            call(real, environment);
            *__errno_location()
        });
    }
    -1
}

/// What a path leads to; a null the kernel refuses.
///
/// # Safety
/// `path` is a string or null.
unsafe fn look(path: *const c_char, by: impl FnOnce(&CStr) -> Target) -> Target {
    if path.is_null() {
        return Target::Absent;
    }
    // SAFETY: the caller's promise.
    by(unsafe { CStr::from_ptr(path) })
}

/// The caller's `PATH`.
///
/// # Safety
/// As of `getenv`.
unsafe fn path() -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
    unsafe { environ::variable(b"PATH") }
}

/// # Safety
/// As of execve(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Arguments,
    environment: Environment,
) -> c_int {
    // SAFETY: the caller's own strings and lists.
    unsafe {
        let target = || look(path, |path| target::at(CURRENT, path, Otherwise::Fail));
        replace(&EXECVE, target, environment, |real, environment| {
            real(path, arguments, environment)
        })
    }
}

/// # Safety
/// As of execv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the caller's own call.
    unsafe { execve(path, arguments, environ::current()) }
}

/// # Safety
/// As of execvpe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: Arguments,
    environment: Environment,
) -> c_int {
    // SAFETY: the caller's own strings and lists.
    unsafe {
        let target = || look(file, |file| target::on_path(file, path(), Otherwise::Shell));
        replace(&EXECVPE, target, environment, |real, environment| {
            real(file, arguments, environment)
        })
    }
}

/// # Safety
/// As of execvp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the caller's own call.
    unsafe { execvpe(file, arguments, environ::current()) }
}

/// # Safety
/// As of fexecve(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(
    file: c_int,
    arguments: Arguments,
    environment: Environment,
) -> c_int {
    // SAFETY: the caller's own lists.
    unsafe {
        replace(
            &FEXECVE,
            || target::open(file),
            environment,
            |real, environment| real(file, arguments, environment),
        )
    }
}

/// # Safety
/// As of execveat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    arguments: Arguments,
    environment: Environment,
    flags: c_int,
) -> c_int {
    const AT_EMPTY_PATH: c_int = 0x1000;
    let by = |path: &CStr| match path.is_empty() && flags & AT_EMPTY_PATH != 0 {
        true => target::open(dir),
        false => target::at(dir, path, Otherwise::Fail),
    };
    // SAFETY: the caller's own strings and lists.
    unsafe {
        replace(
            &EXECVEAT,
            || look(path, by),
            environment,
            |real, environment| real(dir, path, arguments, environment, flags),
        )
    }
}

/// Begins a function with any number of arguments that come in registers and on the stack, of which all
/// but the first are a list that ends in a null. It pushes the registers under the return address's
/// place, so that the list is in one piece, and calls `$with`, a function of the first argument and
/// the list. (Rust defines no such functions; a C file would be one more tool to build with.)
macro_rules! with_list {
    ($name:ident, $manual:literal, $with:ident) => {
        #[doc = concat!("# Safety\nAs of ", $manual, ".")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(_first: *const c_char) -> c_int {
            naked_asm!(
                "pop r10", // where to return to: the list's later part begins right behind
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r10", // six words less one that was there: aligned for a call
                "call {with}",
                "pop r10",
                "add rsp, 40",
                "push r10",
                "ret",
                with = sym $with,
            )
        }
    };
}

with_list!(execl, "execl(3)", execv);
with_list!(execlp, "execlp(3)", execvp);
with_list!(execle, "execle(3)", exec_list_and_environment);

/// # Safety
/// `list` ends in a null, behind which is an environment.
unsafe extern "C" fn exec_list_and_environment(path: *const c_char, list: Arguments) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let mut end = list;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, list, (*end.add(1)).cast())
    }
}

/// # Safety
/// As of `posix_spawn`, for which `real` is.
unsafe fn spawn(
    real: &Real<Spawn>,
    target: impl FnOnce() -> Target,
    child: *mut c_int,
    path: *const c_char,
    [actions, attributes]: [*const c_void; 2],
    arguments: Arguments,
    environment: Environment,
) -> c_int {
    let Some(real) = real.get() else { return Errno::ENOSYS.into_raw() };
    // SAFETY: the caller's own call.
    unsafe {
        start(target, environment, |environment| {
            real(child, path, actions, attributes, arguments, environment)
        })
    }
}

/// # Safety
/// As of posix_spawn(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    child: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Arguments,
    environment: Environment,
) -> c_int {
    let both = [actions, attributes];
    // SAFETY: the caller's own call.
    unsafe {
        let target = || look(path, |path| target::at(CURRENT, path, Otherwise::Fail));
        spawn(&POSIX_SPAWN, target, child, path, both, arguments, environment)
    }
}

/// # Safety
/// As of posix_spawnp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    child: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Arguments,
    environment: Environment,
) -> c_int {
    let both = [actions, attributes];
    // SAFETY: the caller's own call.
    unsafe {
        let target = || look(file, |file| target::on_path(file, path(), Otherwise::Fail));
        spawn(&POSIX_SPAWNP, target, child, file, both, arguments, environment)
    }
}

/// # Safety
/// As of system(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    let Some(real) = SYSTEM.get() else { return answer(Err(Errno::ENOSYS), |_| 0, -1) };
    // SAFETY: the caller's own call.
    unsafe { through_shell(command, |command| real(command)) }
}

/// # Safety
/// As of popen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    let Some(real) = POPEN.get() else {
        return answer(Err(Errno::ENOSYS), |_| ptr::null_mut(), ptr::null_mut());
    };
    // SAFETY: the caller's own call.
    unsafe { through_shell(command, |command| real(command, kind)) }
}

/// Calls `call` with a command that does what `command` does, in a shell with our variables:
///
/// ```sh
/// LD_PRELOAD='/o.so' OCTAVO_RUN='...' exec /bin/sh -c -- 'command' sh
/// ```
///
/// libc gives the shell the program's own environment, and one that is changed for a moment would be
/// seen by other threads. The last word is the shell's name for itself, as in its messages.
///
/// # Safety
/// `command` is a string or null.
unsafe fn through_shell<R>(command: *const c_char, call: impl FnOnce(*const c_char) -> R) -> R {
    /// What one argument may take, its zero byte included.
    const MAX_ARGUMENT: usize = 128 << 10;
    let Some(ours) = Ours::get().filter(|_| !command.is_null()) else { return call(command) };
    // SAFETY: not null, so a string.
    let text = unsafe { CStr::from_ptr(command) }.to_bytes();
    // SAFETY: the value is used only here, as libc's own function uses the environment.
    let theirs = unsafe { environ::variable(b"LD_PRELOAD") }.and_then(|list| ours.theirs(list));
    let colon: &[u8] = if theirs.is_some() { b":" } else { b"" };
    let list = [ours.object(), colon, theirs.unwrap_or_default()];
    let (word, text) = ([ours.word()], [text]);
    let words = quoted(b"LD_PRELOAD=", &list)
        .chain(quoted(b" OCTAVO_RUN=", &word))
        .chain(quoted(b" exec /bin/sh -c -- ", &text))
        .chain(b" sh\0".iter().copied());
    let len = words.clone().count();
    let scratch = match target::shell() {
        Target::Fit if len <= MAX_ARGUMENT && ours.can_be_loaded() => Scratch::new(len).ok(),
        _ => None,
    };
    let Some(mut scratch) = scratch else {
        note_unmanaged(1);
        return call(command);
    };
    scratch.bytes().iter_mut().zip(words).for_each(|(to, from)| *to = from);
    call(scratch.bytes().as_ptr().cast())
}

/// `name` as it is, then `parts` in quotes as one word of the shell.
fn quoted<'a>(name: &'a [u8], parts: &'a [&'a [u8]]) -> impl Iterator<Item = u8> + Clone + 'a {
    let escaped = |byte: &'a u8| match byte {
        b'\'' => b"'\\''",
        _ => core::slice::from_ref(byte),
    };
    let inside = parts.iter().copied().flatten().flat_map(escaped);
    name.iter().chain(b"'").chain(inside).chain(b"'").copied()
}
