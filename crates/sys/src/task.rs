//! Helpers that share the address space without being threads of the program.
//!
//! ```text
//!   program (its own pid, threads, descriptors)        helper (another pid)
//!        \________________ one address space ________________/
//! ```
//! A helper is made with `CLONE_VM` alone: it has its own descriptor table, signal handlers and
//! process id. It does not appear in the program's `/proc/self/task`, its descriptors cannot be
//! closed by the program, and made by way of a parent that ends at once it is nobody's child that
//! `wait(-1)` could find. It never uses libc: its thread-local storage is a page of zeros.
#![allow(unsafe_code)] // clone, signals, and the first instructions on a new stack

use crate::file::{self, Fd};
use crate::memory::Reserve;
use crate::{Errno, Result};
use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use octavo_page::PAGE_SIZE;
use syscalls::{Sysno, syscall};

/// Bytes of stack of a helper; it runs small functions with buffers elsewhere.
pub const STACK_SIZE: usize = 256 << 10;

/// Bytes on both sides of a helper's thread pointer: below for static thread-local storage that
/// nobody uses, above for the header that compilers read (the stack protector's canary).
const TLS_HALF: usize = 2 * PAGE_SIZE;

/// What a new helper is to the task that makes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kinship {
    /// A process of its own that shares the address space; the maker waits until it ends or execs.
    Vfork,
    /// A process of its own that shares the address space.
    Process,
    /// Another thread of the helper process.
    Thread,
    /// A process of its own that shares the address space and the maker's descriptors.
    Guard,
}

impl Kinship {
    const fn flags(self) -> usize {
        const VM: usize = 0x100;
        const FS: usize = 0x200;
        const FILES: usize = 0x400;
        const SIGHAND: usize = 0x800;
        const VFORK: usize = 0x4000;
        const THREAD: usize = 0x10000;
        const SYSVSEM: usize = 0x40000;
        const SETTLS: usize = 0x80000;
        match self {
            Self::Vfork => VM | VFORK | SETTLS,
            Self::Process => VM | SETTLS,
            Self::Guard => VM | FILES | SETTLS,
            Self::Thread => VM | FS | FILES | SIGHAND | THREAD | SYSVSEM | SETTLS,
        }
    }
}

/// Starts `entry` as a new task on a stack of its own; gives its id.
///
/// The stack is never given back: a job starts a handful of helpers, each for its whole life.
///
/// # Errors
/// As of `clone(2)`, or `ENOMEM` for the stack.
pub fn spawn(kinship: Kinship, entry: extern "C" fn(usize) -> !, argument: usize) -> Result<i32> {
    let reserve = Reserve::new(STACK_SIZE + 2 * TLS_HALF, c"octavo stack")?;
    let thread_pointer = reserve.start() + STACK_SIZE + TLS_HALF;
    let top = reserve.start() + STACK_SIZE - 2 * size_of::<usize>();
    // SAFETY: the reserve is fresh, ours and large enough; the thread pointer's first word must
    // hold its own address (x86-64 ABI), the stack's top the argument and the entry point.
    unsafe {
        (thread_pointer as *mut usize).write(thread_pointer);
        (top as *mut usize).write(argument);
        (top as *mut usize).add(1).write(entry as usize);
    }
    let outcome: isize;
    // SAFETY: the child starts on its own stack, takes argument and entry from it and never
    // returns here; the parent sees an ordinary system call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rdi",
            "pop rax",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") Sysno::clone as isize => outcome,
            in("rdi") kinship.flags(),
            in("rsi") top,
            in("rdx") 0,
            in("r10") 0,
            in("r8") thread_pointer,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    Errno::from_ret(outcome as usize).map(|pid| pid as i32)
}

/// Copies the calling process, which has one thread, as fork(2) does, but as nobody's child: neither
/// `wait(-1)` nor a signal ever tells of its end. `None` in the copy; else its id.
///
/// # Errors
/// As of `clone(2)`.
pub fn fork_aside() -> Result<Option<i32>> {
    const SIGCHLD: usize = 17;
    if gets_orphans() {
        return fork(0);
    }
    // Its parent ends at once, and tells the id by a pipe.
    let (from, to) = file::pipe()?;
    let Some(between) = fork(SIGCHLD)? else {
        let made = fork(0);
        if let Ok(None) = made {
            return Ok(None);
        }
        let _ = to.write_all(&made.ok().flatten().unwrap_or(0).to_ne_bytes());
        exit_group(0)
    };
    drop(to);
    let mut id = [0; 4];
    let read = from.read(&mut id)?;
    reap(between)?;
    match i32::from_ne_bytes(id) {
        0 => Err(Errno::EAGAIN),
        _ if read < id.len() => Err(Errno::EAGAIN),
        id => Ok(Some(id)),
    }
}

fn fork(signal: usize) -> Result<Option<i32>> {
    // SAFETY: the copy has a stack of its own, copied, and goes on like this one; there is one thread,
    // so no lock is left held by another.
    let made = unsafe { syscall!(Sysno::clone, signal, 0usize, 0usize, 0usize, 0usize) }?;
    Ok((made != 0).then_some(made as i32))
}

/// Ends the calling task alone.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { syscall!(Sysno::exit, status) };
    }
}

/// Ends the calling process with all its threads.
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { syscall!(Sysno::exit_group, status) };
    }
}

const SIGKILL: usize = 9;

/// Process id of the calling task.
#[must_use]
pub fn pid() -> i32 {
    // SAFETY: reads a number.
    unsafe { syscall!(Sysno::getpid) }.unwrap_or(0) as i32
}

/// Id of the calling task, which for a first thread is that of its process.
#[must_use]
pub fn id() -> i32 {
    // SAFETY: reads a number.
    unsafe { syscall!(Sysno::gettid) }.unwrap_or(0) as i32
}

/// Whether `process` has a thread with this id; one that cannot be told of counts as there.
#[must_use]
pub fn has_thread(process: i32, thread: u32) -> bool {
    // SAFETY: signal 0 is not sent.
    let outcome = unsafe { syscall!(Sysno::tgkill, process, thread, 0usize) };
    outcome != Err(Errno::ESRCH)
}

/// Whether the first thread of `process` is in the calling task's address space. One that has ended is in none.
///
/// # Errors
/// `EPERM` where the process may not be looked into, as one that made itself undumpable may not; `ENOSYS` on a
/// kernel without `kcmp(2)`; `ESRCH` when there is no such process.
pub fn shares_memory_with(process: i32) -> Result<bool> {
    const VM: usize = 1;
    // SAFETY: compares two pointers of the kernel's.
    let order = unsafe { syscall!(Sysno::kcmp, id(), process, VM, 0usize, 0usize) }?;
    Ok(order == 0)
}

/// Where the head of the calling task's list of robust locks lies; `None` without one.
#[must_use]
pub fn robust_list() -> Option<core::ops::Range<usize>> {
    let (mut head, mut len) = (0usize, 0usize);
    let to = (core::ptr::from_mut(&mut head), core::ptr::from_mut(&mut len));
    // SAFETY: the kernel writes a word to each.
    unsafe { syscall!(Sysno::get_robust_list, 0usize, to.0, to.1) }.ok()?;
    (head != 0).then(|| head..head + len)
}

/// Does nothing for `time`.
pub fn sleep(time: Duration) {
    let request = [time.as_secs(), u64::from(time.subsec_nanos())];
    // SAFETY: the kernel reads a timespec of two words; waking early is allowed.
    let _ = unsafe { syscall!(Sysno::nanosleep, request.as_ptr(), 0usize) };
}

/// Whether processes whose parent ends become children of this one.
#[must_use]
pub fn gets_orphans() -> bool {
    const PR_GET_CHILD_SUBREAPER: usize = 37;
    let mut is_reaper = 0i32;
    let at = core::ptr::from_mut(&mut is_reaper);
    // SAFETY: the kernel writes one word.
    let _ = unsafe { syscall!(Sysno::prctl, PR_GET_CHILD_SUBREAPER, at) };
    is_reaper != 0 || pid() == 1
}

/// Waits until the child `pid` ended, of whatever kind it is.
///
/// # Errors
/// As of `wait4(2)`.
pub fn reap(pid: i32) -> Result<()> {
    const WALL: usize = 0x4000_0000;
    loop {
        // SAFETY: no status, no usage asked for.
        match unsafe { syscall!(Sysno::wait4, pid, 0usize, WALL, 0usize) } {
            Err(Errno::EINTR) => {}
            other => return other.map(|_| ()),
        }
    }
}

/// Ends the child `pid`, which nobody has reaped so far, and reaps it. Needs no descriptor.
pub fn end_child(pid: i32) {
    assert!(pid > 0, "{pid} is no child's id");
    send_sigkill(pid);
    let _ = reap(pid);
}

/// Ends the calling process as by SIGKILL.
pub fn end_self() -> ! {
    send_sigkill(pid());
    exit_group(128 + SIGKILL as i32)
}

fn send_sigkill(pid: i32) {
    // SAFETY: sends a signal, to this process or a child of it.
    let _ = unsafe { syscall!(Sysno::kill, pid, SIGKILL) };
}

/// A descriptor that becomes readable when process `pid` ends.
///
/// # Errors
/// `ESRCH` when there is none; `EMFILE` and `ENFILE` when it is not known.
pub fn pidfd(pid: i32) -> Result<Fd> {
    // SAFETY: makes a descriptor.
    unsafe { syscall!(Sysno::pidfd_open, pid, 0usize) }.map(|n| Fd::own(n as i32))
}

/// Sends SIGKILL to the process behind `pidfd`.
///
/// # Errors
/// `ESRCH` when it is gone.
pub fn kill(pidfd: &Fd) -> Result<()> {
    // SAFETY: sends a signal to the process we were made for.
    unsafe { syscall!(Sysno::pidfd_send_signal, pidfd.raw(), SIGKILL, 0usize, 0usize) }.map(|_| ())
}

/// A copy, in this task's table, of descriptor `raw` of the process behind `pidfd`.
///
/// # Errors
/// As of `pidfd_getfd(2)`.
pub fn borrow_fd(pidfd: &Fd, raw: i32) -> Result<Fd> {
    // SAFETY: makes a descriptor.
    unsafe { syscall!(Sysno::pidfd_getfd, pidfd.raw(), raw, 0usize) }.map(|n| Fd::own(n as i32))
}

/// Writes a line to the standard error of the process behind `pidfd`, if that takes it at once.
pub fn tell(pidfd: &Fd, line: &[u8]) {
    const STDERR: i32 = 2;
    if let Ok(stderr) = borrow_fd(pidfd, STDERR)
        && stderr.is_writable()
    {
        let _ = stderr.write_all(line);
    }
}

/// `struct rlimit` of getrlimit(2).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Limit {
    /// What counts.
    pub soft: u64,
    /// How far that can be raised.
    pub hard: u64,
}

/// Limit on private memory that can be written, in bytes of address space.
pub const RLIMIT_DATA: usize = 2;

/// Limit on address space, in bytes.
pub const RLIMIT_AS: usize = 9;

/// The calling process's limit on a resource, one of the `RLIMIT_` numbers.
///
/// # Errors
/// As of `prlimit(2)`.
pub fn limit(resource: usize) -> Result<Limit> {
    let mut found = Limit { soft: 0, hard: 0 };
    let to = &raw mut found;
    // SAFETY: the kernel writes one limit, of this process.
    unsafe { syscall!(Sysno::prlimit64, 0usize, resource, 0usize, to) }.map(|_| found)
}

fn set_limit(resource: usize, limit: Limit) -> Result<()> {
    let from = &raw const limit;
    // SAFETY: the kernel reads one limit, for this process, which is none that memory safety rests on.
    unsafe { syscall!(Sysno::prlimit64, 0usize, resource, from, 0usize) }.map(|_| ())
}

/// Lets the calling process, which must not be the program, have as many descriptors as it may: what limits
/// the program's own, and was inherited from it, is not meant for ours. Needs `CAP_SYS_RESOURCE` only
/// where the program's hard limit is less than 256.
pub fn allow_descriptors() {
    let Ok(Limit { hard, .. }) = limit(RLIMIT_NOFILE) else { return };
    let allow = |most| set_limit(RLIMIT_NOFILE, Limit { soft: most, hard: most });
    if allow(hard.max(FEW_DESCRIPTORS)).is_err() {
        let _ = allow(hard);
    }
}

/// How many descriptors [`allow_descriptors`] allows where this process's limit is inherited.
#[must_use]
pub fn most_descriptors() -> u64 {
    let Ok(Limit { soft, hard }) = limit(RLIMIT_NOFILE) else { return 0 };
    // Only trying shows whether the limit may be passed over.
    let raised = Limit { soft, hard: FEW_DESCRIPTORS };
    if hard >= FEW_DESCRIPTORS || set_limit(RLIMIT_NOFILE, raised).is_err() {
        return hard;
    }
    let _ = set_limit(RLIMIT_NOFILE, Limit { soft, hard });
    FEW_DESCRIPTORS
}

const RLIMIT_NOFILE: usize = 7;

/// So many are enough for the helper of any program; see `allow_descriptors`.
const FEW_DESCRIPTORS: u64 = 256;

/// Leaves the process group of the program, and its working directory. It stays in the session:
/// the scheduler treats sessions as groups, and weighs policies only within one.
pub fn detach() {
    // SAFETY: changes only this task; each call may fail without harm.
    unsafe {
        let _ = syscall!(Sysno::setpgid, 0usize, 0usize);
        let _ = syscall!(Sysno::chdir, c"/".as_ptr());
    }
}

/// Sets the name that `ps` shows for the calling task, at most 15 bytes.
pub fn set_name(name: &core::ffi::CStr) {
    const PR_SET_NAME: usize = 15;
    // SAFETY: the kernel copies the string.
    let _ = unsafe { syscall!(Sysno::prctl, PR_SET_NAME, name.as_ptr()) };
}

/// The signals of faults: SIGILL, SIGBUS, SIGFPE, SIGSEGV.
const FAULTS: [usize; 4] = [4, 7, 8, 11];

/// Those in a mask of signals.
const FAULT_MASK: u64 = {
    let [ill, bus, fpe, segv] = FAULTS;
    1 << (ill - 1) | 1 << (bus - 1) | 1 << (fpe - 1) | 1 << (segv - 1)
};

/// Signals a task has blocked.
#[derive(Clone, Copy, Debug)]
pub struct SignalMask(u64);

impl SignalMask {
    /// Blocks every signal that can be blocked; gives what was blocked before.
    #[must_use]
    pub fn block_all() -> Self {
        let mut before = 0u64;
        set_mask(u64::MAX, &mut before);
        Self(before)
    }

    /// Blocks all but the signals of faults, which a helper answers with [`on_crash`].
    pub fn block_all_but_faults() {
        set_mask(!FAULT_MASK, &mut 0);
    }

    /// The mask that [`SignalMask::into_raw`] gave.
    #[must_use]
    pub const fn from_raw(mask: u64) -> Self {
        Self(mask)
    }

    /// The mask: signal n is bit n - 1.
    #[must_use]
    pub const fn into_raw(self) -> u64 {
        self.0
    }

    /// Puts the mask back.
    pub fn restore(self) {
        set_mask(self.0, &mut 0);
    }
}

fn set_mask(mask: u64, before: &mut u64) {
    const SIG_SETMASK: usize = 2;
    let (to, from) = (core::ptr::from_mut(before), core::ptr::from_ref(&mask));
    // SAFETY: both masks are eight bytes and live.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, SIG_SETMASK, from, to, 8usize) };
}

/// What is known of a fault of this process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Crash {
    /// The signal's number.
    pub signal: i32,
    /// Why it was sent: `si_code` of sigaction(2).
    pub code: i32,
    /// The address that was touched; 0 where the kernel does not tell it.
    pub address: usize,
    /// The instruction that did.
    pub instruction: usize,
    /// The addresses at the top of the stack, among them where the function returns to.
    pub stack: [usize; 16],
}

/// Has `handler` called when this process faults. A fault within the handler, such as where the program has
/// unmapped our data, ends the process: called again and again it would run off its stack, into memory of the
/// program's.
pub fn on_crash(handler: extern "C" fn(&Crash) -> !) {
    #[repr(C)]
    struct Action {
        handler: usize,
        flags: u64,
        restorer: usize,
        mask: u64,
    }
    const SA_SIGINFO_RESTORER: u64 = 4 | 0x0400_0000;
    CRASH.store(handler as usize, Ordering::Relaxed);
    let action = Action {
        handler: crashed as extern "C" fn(i32, *const SigInfo, *const u64) as usize,
        flags: SA_SIGINFO_RESTORER,
        restorer: crash_returned as extern "C" fn() as usize,
        // A fault whose signal is blocked ends the process.
        mask: FAULT_MASK,
    };
    for signal in FAULTS {
        let at = core::ptr::from_ref(&action);
        // SAFETY: `action` is laid out as the kernel's sigaction; the handler never returns.
        let _ = unsafe { syscall!(Sysno::rt_sigaction, signal, at, 0usize, 8usize) };
    }
}

static CRASH: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// The head of the kernel's `siginfo_t`.
#[repr(C)]
struct SigInfo {
    head: [i32; 4],
    address: usize,
}

extern "C" fn crashed(signal: i32, info: *const SigInfo, context: *const u64) {
    /// Places of the stack and the instruction pointer in the kernel's ucontext, in words.
    const RSP: usize = 5 + 15;
    const RIP: usize = 5 + 16;
    // SAFETY: the kernel passes a siginfo and a ucontext, both on this stack.
    let (code, address) = unsafe { ((*info).head[2], (*info).address) };
    // SAFETY: as above.
    let (top, instruction) = unsafe { (*context.add(RSP) as usize, *context.add(RIP) as usize) };
    let mut stack = [0; 16];
    if top.is_multiple_of(size_of::<usize>()) {
        // SAFETY: helpers have stacks of their own with more than that above every frame; a broken
        // stack pointer faults once more, and then the kernel ends us.
        stack = unsafe { *(top as *const [usize; 16]) };
    }
    let handler = CRASH.load(Ordering::Relaxed);
    // SAFETY: `on_crash` stored a function of this type before the signal could come.
    let handler: extern "C" fn(&Crash) -> ! = unsafe { core::mem::transmute(handler) };
    handler(&Crash { signal, code, address, instruction, stack })
}

extern "C" fn crash_returned() {
    exit_group(125)
}

/// CPUs a task may run on, up to [`CpuSet::MAX`] of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuSet([u64; Self::MAX / 64]);

impl CpuSet {
    /// The largest CPU number plus one.
    pub const MAX: usize = 1024;

    /// The CPUs the calling task may run on.
    #[must_use]
    pub fn of_this_task() -> Self {
        let mut set = Self([0; Self::MAX / 64]);
        let at = set.0.as_mut_ptr();
        // SAFETY: the kernel writes at most that many bytes.
        let _ = unsafe { syscall!(Sysno::sched_getaffinity, 0usize, Self::MAX / 8, at) };
        set
    }

    /// One CPU alone.
    #[must_use]
    pub fn only(cpu: usize) -> Self {
        let mut set = Self([0; Self::MAX / 64]);
        if let Some(word) = set.0.get_mut(cpu / 64) {
            *word = 1 << (cpu % 64);
        }
        set
    }

    /// These CPUs but one; all of them if that would leave none.
    #[must_use]
    pub fn without(&self, cpu: usize) -> Self {
        let mut set = *self;
        if let Some(word) = set.0.get_mut(cpu / 64) {
            *word &= !(1 << (cpu % 64));
        }
        if set.count() == 0 { *self } else { set }
    }

    /// How many CPUs it holds.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Binds task `id` to these CPUs. Without effect when it may run on none of them.
    pub fn bind(&self, id: i32) {
        let at = self.0.as_ptr();
        // SAFETY: the kernel reads that many bytes.
        let _ = unsafe { syscall!(Sysno::sched_setaffinity, id, Self::MAX / 8, at) };
    }
}

/// How the scheduler treats a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Like everybody.
    Normal = 0,
    /// Behind everybody (`SCHED_IDLE`): a CPU that runs only such tasks counts as idle.
    Idle = 5,
}

impl Policy {
    /// That of the calling task.
    #[must_use]
    pub fn of_this_task() -> Self {
        // SAFETY: no memory is passed.
        let policy = unsafe { syscall!(Sysno::sched_getscheduler, 0usize) };
        if policy == Ok(Self::Idle as usize) { Self::Idle } else { Self::Normal }
    }
}

/// Sets the policy of task `id`, with a slice as everybody has. Without effect where the system forbids it.
pub fn set_policy(id: i32, policy: Policy) {
    let priority = 0i32;
    let at = core::ptr::from_ref(&priority);
    // SAFETY: the kernel reads one word.
    let _ = unsafe { syscall!(Sysno::sched_setscheduler, id, policy as usize, at) };
}

/// Has task `id`, 0 is the calling one, run soon when it wakes, and give the CPU back soon: its slice is the shortest
/// that `sched_setattr(2)` allows, Linux 6.12 and later. Nobody's share changes, but while it is ready to run all on
/// that CPU take turns as short. Not for a task of policy "idle". Without effect elsewhere.
pub fn shorten_slice(id: i32) {
    const SLICE: u64 = 100_000; // ns
    let mut attr = [0u64; 7];
    let size = size_of_val(&attr);
    // SAFETY: the kernel writes at most `size` bytes.
    let got = unsafe { syscall!(Sysno::sched_getattr, id, attr.as_mut_ptr(), size, 0usize) };
    if got.is_ok() {
        // Size and policy; flags; nice and priority; then the slice.
        attr[3] = SLICE;
        // SAFETY: the kernel reads as many bytes as the first word says, which it has written.
        let _ = unsafe { syscall!(Sysno::sched_setattr, id, attr.as_ptr(), 0usize) };
    }
}

/// Has the calling task sleep no longer than it asks for; others do for up to 50 us more.
pub fn sleep_exactly() {
    const PR_SET_TIMERSLACK: usize = 29;
    // SAFETY: no memory is passed.
    let _ = unsafe { syscall!(Sysno::prctl, PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}

/// The CPU the calling task runs on.
#[must_use]
pub fn cpu() -> usize {
    let mut cpu = 0u32;
    let at = core::ptr::from_mut(&mut cpu);
    // SAFETY: the kernel writes one word.
    let _ = unsafe { syscall!(Sysno::getcpu, at, 0usize, 0usize) };
    cpu as usize
}

/// Waits while `word` holds `value`, until woken or `timeout` is over.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Duration) {
    const WAIT_PRIVATE: usize = 128;
    let limit = [timeout.as_secs(), u64::from(timeout.subsec_nanos())];
    // SAFETY: the word is live; a spurious return is allowed.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), WAIT_PRIVATE, value, limit.as_ptr()) };
}

/// Wakes everybody who waits on `word`.
pub fn futex_wake(word: &AtomicU32) {
    const WAKE_PRIVATE: usize = 129;
    // SAFETY: the word is live.
    let _ = unsafe { syscall!(Sysno::futex, word.as_ptr(), WAKE_PRIVATE, i32::MAX) };
}

/// Time since boot on the monotonic clock.
#[must_use]
pub fn now() -> Duration {
    clock(1)
}

/// CPU time of the calling process, all its threads.
#[must_use]
pub fn cpu_time() -> Duration {
    clock(2)
}

fn clock(id: usize) -> Duration {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes a timespec of two words.
    let _ = unsafe { syscall!(Sysno::clock_gettime, id, time.as_mut_ptr()) };
    Duration::new(time[0], time[1] as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    static CRASHES: AtomicU32 = AtomicU32::new(0);

    extern "C" fn crashes(_argument: usize) -> ! {
        SignalMask::block_all_but_faults();
        on_crash(crashes_again);
        // SAFETY: an instruction that there is not.
        unsafe { asm!("ud2", options(noreturn)) }
    }

    extern "C" fn crashes_again(_crash: &Crash) -> ! {
        CRASHES.fetch_add(1, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { asm!("ud2", options(noreturn)) }
    }

    #[test]
    fn a_crash_within_the_handler_ends_the_helper() {
        let helper = spawn(Kinship::Process, crashes, 0).expect("a helper");
        // One that ended already has no descriptor.
        let ended = || pidfd(helper).map_or(true, |helper| helper.is_readable());
        let mut looks = 0..10_000;
        while !ended() {
            assert!(looks.next().is_some(), "it goes on");
            sleep(Duration::from_millis(1));
        }
        assert_eq!(CRASHES.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_program_that_is_started_is_elsewhere_and_one_that_ended_is_nowhere() {
        assert_eq!(shares_memory_with(pid()), Ok(true));
        let mut other = Command::new("cat").stdin(std::process::Stdio::piped()).spawn();
        let other = other.as_mut().expect("cat starts");
        let its = other.id() as i32;
        assert_eq!(shares_memory_with(its), Ok(false));
        drop(other.stdin.take());
        other.wait().expect("cat ends");
        assert_eq!(shares_memory_with(its), Err(Errno::ESRCH));
    }
}
