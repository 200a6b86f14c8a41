//! How the pager gets into a program, and how it leaves.
//!
//! ```text
//!   program's first thread                     (before main)
//!     └─ clone VM, VFORK ─► go-between
//!                             └─ clone VM ─► helper ── guard
//!                             ends              ├─ server (the first thread)
//!     reaps the go-between                      ├─ evictors
//!     waits for the helper's word               └─ watch
//! ```
//! At first the helper is one task (`outpost`); the rest is made when it is needed.
//!
//! The go-between ends at once, so the helper becomes init's child: the program's `wait(-1)` never
//! finds it. Where the program itself is who orphans go to, the helper is its child from the start,
//! of the kind that tells nothing at its end and that `wait` passes over; an orphan would be one of
//! the ordinary kind. The helper has its own descriptors; the program can neither see nor close them.
//!
//! A forked child goes the same way ([`crate::heir`]); where the parent had the rest, the child's helper
//! makes its own of the copy.
//!
//! Were the helper lost while the program lives, and the userfaultfd with it, evicted pages would read as
//! zeros. So a crash of the helper kills the program first, and a guard, which shares the helper's
//! descriptors, kills it when the helper is killed. When both are, as everybody in a cgroup is, one after
//! the other, a mapping in the program's memory still holds the userfaultfd (`octavo_sys::uring::hold`): its
//! threads wait for their pages until they are killed themselves, by the keeper if by nobody else.
#![allow(unsafe_code)] // entry points of new tasks take their argument as an address

use crate::arena::PoolArena;
use crate::excluded::Excluded;
use crate::fork::{MAX_CHILDREN, NURSERY};
use crate::heap::HeapStep;
use crate::heir;
use crate::outpost::Outpost;
use crate::pager::{Config, MAX_EVICTORS, Pager, Parts, Worker};
use crate::placement::Follower;
use crate::presence::Presence;
use crate::sharing::TELLING;
use crate::table::MAX_SLOTS;
use crate::watch::Watch;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::Cell;
use core::fmt::Write as _;
use core::mem::ManuallyDrop;
use core::time::Duration;
use octavo_codec::deflate::{Generations, Learner};
use octavo_ledger::{Ledger, Member, Newcomer, Owner};
use octavo_page::config::{PAGER_DESCRIPTORS, reserve_bytes};
use octavo_page::pins::Pins;
use octavo_page::rest::{Rest, Work};
use octavo_page::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use octavo_page::{ByteSize, PAGE_SIZE};
use octavo_store::Store;
use octavo_sys::file::{self, Fd, Text};
use octavo_sys::memory::{self, Reserve};
use octavo_sys::proc::{self, Stat};
use octavo_sys::task::{self, Crash, Kinship, SignalMask};
use octavo_sys::{Errno, Result, shared};

/// What the preloaded object hands over.
#[derive(Debug)]
pub struct Job {
    /// How to run.
    pub config: Config,
    /// What is never managed: our image, libc, whose data we use, and the main stack.
    pub excluded: Excluded,
    /// By how much the program's heap grows.
    pub heap_step: HeapStep,
    /// The process that keeps the job's ledger, and its descriptor there.
    pub keeper: (i32, i32),
}

/// The talk between the program's threads and the helper.
#[derive(Debug)]
pub struct Control {
    /// What has become of the start: 0 none, 1 running, 2 under way, else an error number plus 3.
    started: AtomicU32,
    /// What has become of the end: 0 not near, 1 the program is about to end, 2 all is written.
    ended: AtomicU32,
    /// The process that is managed. A forked child has a copy of this and is not it.
    process: AtomicI64,
    /// When that process began this program, in nanoseconds of the monotonic clock.
    began: AtomicU64,
}

static CONTROL: Control = Control {
    started: AtomicU32::new(0),
    ended: AtomicU32::new(0),
    process: AtomicI64::new(0),
    began: AtomicU64::new(0),
};

/// The keeper has this long to tell the statistics.
const LAST_WORDS: Duration = Duration::from_millis(1500);

const RUNNING: u32 = 1;
const STARTING: u32 = 2;
const FAILED: u32 = 3;
const ENDING: u32 = 1;
const WRITTEN: u32 = 2;

/// What is to be run, which forked children have too; null before the start, and where nothing was
/// inherited.
static JOB: AtomicPtr<Job> = AtomicPtr::new(core::ptr::null_mut());

/// Everything that evicts and restores, made when it is needed; null before that.
static PAGER: AtomicPtr<Pager> = AtomicPtr::new(core::ptr::null_mut());

/// The rest before a fork.
pub(crate) static REST: Rest = Rest::new();

/// How long a thread that waits for others sleeps before it looks again.
pub(crate) const LOOK: Duration = Duration::from_micros(200);

/// Begins a piece of work of a helper; waits while a fork wants rest, and the program lives: a thread
/// that is killed on its way to a fork, with its process or by another's exec, wants it for ever.
pub(crate) fn work() -> Work<'static> {
    REST.work(|word, value| {
        task::futex_wait(word, value, Duration::from_millis(20));
        let target = TARGET.load(Ordering::Acquire);
        let lives = target < 0 || !ManuallyDrop::new(Fd::own(target as i32)).is_readable();
        lives && heir::is_forking()
    })
}

/// Starts the pager for this process. Called once, before the program's own code.
///
/// # Errors
/// What the helper could not get: `EPERM` without the privilege for userfaultfd, `EINVAL` on a
/// kernel without its features, `ENOMEM` when the address space is limited.
pub fn start(job: Job) -> Result<()> {
    JOB.store(Box::into_raw(Box::new(job)), Ordering::Release);
    make_helper().and_then(|()| wait_for_helper(|| {}))
}

/// Starts the pager of a forked child, from what it has inherited; a child that cannot have one goes
/// on without. Where nothing is registered so far nobody needs to wait for that.
pub(crate) fn start_in_child() {
    GUARD.store(0, Ordering::Relaxed);
    TARGET.store(-1, Ordering::Relaxed);
    LEFT.store(0, Ordering::Relaxed);
    CONTROL.ended.store(0, Ordering::Relaxed);
    LETTERS.store(0, Ordering::Relaxed);
    // The thread has another id than its block was pinned for.
    pin_thread();
    let parent = member().and_then(Member::owner);
    let looks = Cell::new(0);
    let wait =
        || wait_for_helper(|| parent.into_iter().for_each(|parent| end_if_lost(parent, &looks)));
    if make_helper().and_then(|()| if pager().is_some() { wait() } else { Ok(()) }).is_err() {
        heir::refuse();
    } else {
        heir::zero_wiped();
    }
}

/// Letters that this process's helper has asked its parent's server for, and those it has got: odd while
/// it waits for one.
pub(crate) static LETTERS: AtomicU32 = AtomicU32::new(0);

/// So many looks in a row at a helper that waits for a pager that is gone prove that it waits in vain.
const LOST_AFTER: u32 = 5;

/// Ends this process, a forked child, if the pager of its `parent` is lost, for whose last letter the helper
/// would wait for ever. `looks` counts looks in a row that found it so.
fn end_if_lost(parent: Owner, looks: &Cell<u32>) {
    let waits = LETTERS.load(Ordering::Acquire) % 2 == 1;
    let gone = match task::pidfd(parent.pager) {
        Ok(pager) => pager.is_readable(),
        // Not known with any other, such as that the program has no descriptor left.
        Err(error) => error == Errno::ESRCH,
    };
    looks.set(if waits && gone { looks.get() + 1 } else { 0 });
    if looks.get() == LOST_AFTER {
        end_child("the pager of the parent was lost before this child had its own");
    }
}

/// Ends this process, a forked child without a pager, which cannot have the memory that it should have.
pub(crate) fn end_child(why: &str) -> ! {
    let mut line = Text::<128>::new();
    let _ = writeln!(line, "octavo: {why}");
    if let Ok(program) = task::pidfd(task::pid()) {
        task::tell(&program, line.as_bytes());
    }
    task::end_self()
}

/// Has this process, a forked child, be unmanaged.
pub(crate) fn be_alone() {
    CONTROL.started.store(0, Ordering::Release);
    PAGER.store(core::ptr::null_mut(), Ordering::Release);
    JOB.store(core::ptr::null_mut(), Ordering::Release);
}

/// Whether this process is a forked child of a managed one, and not managed itself so far.
pub(crate) fn has_parent() -> bool {
    CONTROL.process.load(Ordering::Relaxed) != i64::from(task::pid())
        && matches!(CONTROL.started.load(Ordering::Acquire), STARTING | RUNNING)
}

/// The pager of this process, or in a forked child the copy of its parent's.
pub(crate) fn pager() -> Option<&'static Pager> {
    // SAFETY: null, or leaked by `run`, and mapped as long as it is not null.
    unsafe { PAGER.load(Ordering::Acquire).as_ref() }
}

/// Makes the helper, which is at work until it has answered.
fn make_helper() -> Result<()> {
    let before = SignalMask::block_all();
    let process = task::pid();
    CONTROL.process.store(i64::from(process), Ordering::Relaxed);
    CONTROL.began.store(task::now().as_nanos() as u64, Ordering::Relaxed);
    CONTROL.started.store(STARTING, Ordering::Release);
    core::mem::forget(REST.change());
    let made = if task::gets_orphans() {
        task::spawn(Kinship::Process, helper, process as usize).map(|_| ())
    } else {
        task::spawn(Kinship::Vfork, go_between, process as usize).and_then(task::reap)
    };
    if made.is_err() {
        drop(REST.go_on());
    }
    before.restore();
    made
}

/// Waits for the helper's word, and calls `meanwhile` now and then.
fn wait_for_helper(meanwhile: impl Fn()) -> Result<()> {
    loop {
        match CONTROL.started.load(Ordering::Acquire) {
            0 | STARTING => {
                task::futex_wait(&CONTROL.started, STARTING, Duration::from_millis(200));
                meanwhile();
            }
            RUNNING => return Ok(()),
            error => return Err(Errno::new((error - FAILED) as i32)),
        }
    }
}

/// Has the keeper told before the program ends, and the statistics, should it be the last of its job,
/// written; waits at most two seconds.
pub fn before_end() {
    // One that ends before its helper was up leaves nothing to be told.
    if !is_managed() || CONTROL.started.load(Ordering::Acquire) != RUNNING {
        return;
    }
    CONTROL.ended.store(ENDING, Ordering::Release);
    task::futex_wake(&CONTROL.ended);
    for _ in 0..20 {
        if CONTROL.ended.load(Ordering::Acquire) == WRITTEN {
            return;
        }
        task::futex_wait(&CONTROL.ended, ENDING, Duration::from_millis(100));
    }
}

/// The job's ledger, which forked children have too; null where there is none.
static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());

/// The job's ledger, if this process or a parent of it has opened it.
fn ledger() -> Option<&'static Ledger> {
    // SAFETY: null, or a ledger that stays mapped, in forked children too.
    unsafe { LEDGER.load(Ordering::Acquire).as_ref() }
}

/// This process's place in the ledger, or in a forked child its parent's.
fn member() -> Option<&'static Member> {
    // SAFETY: null, or in the ledger, which stays mapped.
    unsafe { MEMBER.load(Ordering::Acquire).as_ref() }
}

/// Notes programs that this process has started without our object, or that it is a forked child that is not
/// managed; negative: that it has not started them after all.
pub fn note_unmanaged(programs: i64) {
    if let Some(ledger) = ledger() {
        ledger.note_unmanaged(programs);
    }
}

/// Whether this process is managed, or about to be.
#[must_use]
pub fn is_managed() -> bool {
    matches!(CONTROL.started.load(Ordering::Acquire), STARTING | RUNNING)
        && CONTROL.process.load(Ordering::Relaxed) == i64::from(task::pid())
}

/// A taking of pages is over in about this time.
const TAKING: Duration = Duration::from_micros(100);

/// Where the kernel writes when a thread of this process has ended.
pub(crate) static PINS: Pins = Pins::new();

/// Has the calling thread's block stay where the kernel finds it at the thread's end. Called by
/// each thread first of all.
pub fn pin_thread() {
    /// libc has the thread's id, which is cleared at its end, in the 16 bytes before its list of
    /// robust locks: so has glibc since 2.4, by the layout that its debugger interface knows.
    const ID_BEFORE: usize = 16;
    let Some(list) = task::robust_list() else { return };
    let thread = task::id() as u32;
    let first = (list.start - ID_BEFORE) & !(PAGE_SIZE - 1);
    for page in (first..list.end).step_by(PAGE_SIZE) {
        // Who only lets others run would keep the evictor waiting that it waits for.
        PINS.pin(page, thread, || task::sleep(TAKING));
    }
}

/// Whether the managed process has this thread.
pub(crate) fn has_thread(thread: u32) -> bool {
    task::has_thread(CONTROL.process.load(Ordering::Relaxed) as i32, thread)
}

/// Whether this thread of the managed process goes on without us: it neither sleeps, nor is stopped, nor waits in the
/// kernel until we have read an event. `None` where that cannot be told, as of one that went on while we looked.
pub(crate) fn goes_on(thread: u32) -> Option<bool> {
    let process = CONTROL.process.load(Ordering::Relaxed) as i32;
    match Stat::State.of_thread(process, thread) {
        Some('R') => Some(true),
        Some('D') => proc::waits_in(process, thread, |place| {
            (place != b"0").then(|| !place.starts_with(b"userfaultfd"))
        }),
        _ => Some(false),
    }
}

extern "C" fn go_between(process: usize) -> ! {
    if let Err(error) = task::spawn(Kinship::Process, helper, process) {
        answer(error.into_raw() as u32 + FAILED);
    }
    task::exit(0)
}

/// Says what has become of the start.
fn answer(word: u32) {
    drop(REST.go_on());
    CONTROL.started.store(word, Ordering::Release);
    task::futex_wake(&CONTROL.started);
}

/// Says that the helper could not start.
fn answer_error(error: Errno) -> ! {
    answer(error.into_raw() as u32 + FAILED);
    task::exit_group(0)
}

extern "C" fn helper(process: usize) -> ! {
    // SAFETY: `start` leaked this, and a child that has not inherited it makes no helper.
    let job = unsafe { &*JOB.load(Ordering::Acquire) };
    SignalMask::block_all_but_faults();
    let image = &job.excluded.objects[0];
    IMAGE[0].store(image.start as u64, Ordering::Relaxed);
    IMAGE[1].store(image.end as u64, Ordering::Relaxed);
    task::on_crash(crashed);
    task::detach();
    task::allow_descriptors();
    task::set_name(c"octavo-pager");
    if let Err(error) = begin_descriptors() {
        answer_error(error);
    }
    let pager = PAGER.load(Ordering::Acquire);
    if !pager.is_null() {
        // SAFETY: leaked by `run` in the parent; this process's copy has no other task of ours.
        take_over(unsafe { &mut *pager }, job, process as i32)
    }
    let target = task::pidfd(process as i32).unwrap_or_else(|error| answer_error(error));
    TARGET.store(i64::from(target.raw()), Ordering::Release);
    if ledger().is_some() {
        drop(REST.go_on());
        wait_for_exec(&target, process as i32);
        core::mem::forget(work());
    }
    stand(job, process as i32, target)
}

/// Has the calling task, which has a table of its own, none of the program's descriptors any more, but `/proc`; a
/// forked child's from its parent's pager, since the child may see another one, or none.
///
/// # Errors
/// As of `close_range(2)`.
pub(crate) fn begin_descriptors() -> Result<()> {
    file::close_range(0, u32::MAX)?;
    proc::keep(member().and_then(Member::owner).map(|parent| parent.pager));
    Ok(())
}

/// A child that was forked most often begins another program, or ends, within this time: then nobody
/// needs us here.
const EXECS_WITHIN: Duration = Duration::from_millis(3);

/// Waits whether the child does; then leaves.
fn wait_for_exec(target: &Fd, process: i32) {
    let gone = file::poll(&mut [file::Watch::readable(target)], Some(EXECS_WITHIN));
    if gone != Ok(0) || !Presence::new(process).is_ok_and(|mut program| program.is_here()) {
        task::exit_group(0);
    }
}

/// The life of a helper from the start of its program.
fn stand(job: &'static Job, process: i32, target: Fd) -> ! {
    // Fewer would show only later: at a fork.
    if task::most_descriptors() < PAGER_DESCRIPTORS {
        answer_error(Errno::EMFILE);
    }
    let post = Outpost::new(job, process, target);
    let mut post = post.unwrap_or_else(|error| answer_error(error));
    answer(RUNNING);
    let work = post.stand();
    run(post, work)
}

/// The life of a helper in a forked child.
fn take_over(pager: &'static mut Pager, job: &Job, process: i32) -> ! {
    TARGET.store(i64::from(pager.target.raw()), Ordering::Release);
    if let Err(error) = pager.inherit(process) {
        answer_error(error);
    }
    let pager: &'static Pager = pager;
    let others = Presence::new(process).and_then(|presence| start_others(pager, job, presence));
    if others.is_err() {
        pager.die("the pager of a forked child could not be made");
    }
    answer(RUNNING);
    serve(pager, process)
}

/// Makes the rest of us, and becomes the server. There is no rest for a fork meanwhile.
fn run(post: Outpost, work: Work<'_>) -> ! {
    let Outpost { job, target, target_fd, program, maps, ledger, member, presence, space } = post;
    drop(space);
    let config = job.config;
    let store = store(&config);
    let pager = store.and_then(|store| {
        let keeper = job.keeper.0;
        let parts = Parts { program, maps, store, target: target_fd, ledger, member, keeper };
        Pager::new(config, parts)
    });
    let pager: &Pager = match pager {
        Ok(pager) => Box::leak(Box::new(pager)),
        Err(error) => give_up(error),
    };
    PAGER.store(core::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    if let Err(error) = start_others(pager, job, presence).and_then(|()| pager.program.hang_bells())
    {
        give_up(error);
    }
    reserve_rest(ByteSize::new(config.limit));
    drop(work);
    serve(pager, target)
}

/// Reserves what is left of what was said to be ours, so that a limit on address space which the program sets for
/// itself, and which is raised by that, means what it did. Without it the limit is only wider.
fn reserve_rest(limit: ByteSize) {
    let rest = (reserve_bytes(limit) as usize).saturating_sub(memory::reserved());
    if let Ok(rest) = Reserve::new(rest, c"octavo rest") {
        rest.leave_to_children();
    }
}

fn serve(pager: &'static Pager, process: i32) -> ! {
    pager.run_server(worker(0, pager), process);
    leave()
}

/// The worker with this number, made by the first process that needs it; its children have it too.
fn worker(number: usize, pager: &Pager) -> &'static mut Worker {
    static WORKERS: [AtomicPtr<Worker>; MAX_EVICTORS + 1] =
        [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_EVICTORS + 1];
    let place = &WORKERS[number];
    let inherited = place.load(Ordering::Acquire);
    if inherited.is_null() {
        let worker = Box::leak(Box::new(Worker::new(number, pager)));
        place.store(worker, Ordering::Release);
        return worker;
    }
    // SAFETY: leaked in the parent; each number has one task in each process.
    let worker = unsafe { &mut *inherited };
    worker.begin_anew(pager);
    worker
}

/// What is needed to keep the limit could not be made; nothing is managed yet.
fn give_up(error: Errno) -> ! {
    let mut line = Text::<128>::new();
    let number = error.into_raw();
    let _ = writeln!(line, "octavo: the pager could not be made: error {number}; going on without");
    task::tell(&Fd::own(TARGET.load(Ordering::Acquire) as i32), line.as_bytes());
    leave()
}

fn start_others(pager: &'static Pager, job: &Job, presence: Presence) -> Result<()> {
    pager.program.hold();
    pager.member.depend();
    for number in 1..=job.config.evictors() {
        spawn_thread(evictor, Box::new((pager, number)))?;
    }
    let watch = Watch::new(pager, job.excluded.clone(), job.heap_step, presence);
    spawn_thread(watcher, Box::new((watch, pager)))?;
    let helper = task::pidfd(task::pid())?;
    let guard_of = Box::new((helper, &pager.target));
    let guard = task::spawn(Kinship::Guard, guard, Box::into_raw(guard_of) as usize)?;
    GUARD.store(i64::from(guard), Ordering::Release);
    Ok(())
}

fn spawn_thread<T>(entry: extern "C" fn(usize) -> !, argument: Box<T>) -> Result<()> {
    task::spawn(Kinship::Thread, entry, Box::into_raw(argument) as usize).map(|_| ())
}

extern "C" fn evictor(argument: usize) -> ! {
    // SAFETY: `start_others` made this box for us alone.
    let (pager, number) = *unsafe { Box::from_raw(argument as *mut (&'static Pager, usize)) };
    task::set_name(c"octavo-evict");
    pager.run_evictor(worker(number, pager))
}

extern "C" fn watcher(argument: usize) -> ! {
    // SAFETY: `start_others` made this box for us alone.
    let (watch, pager) =
        *unsafe { Box::from_raw(argument as *mut (Watch<'static>, &'static Pager)) };
    task::set_name(c"octavo-watch");
    task::shorten_slice(0);
    watch.run(|time| pause(pager.ledger, pager.member, time))
}

/// Waits for `time`, unless the program is about to end.
pub(crate) fn pause(ledger: &Ledger, member: &Member, time: Duration) {
    match CONTROL.ended.load(Ordering::Acquire) {
        0 => task::futex_wait(&CONTROL.ended, 0, time),
        ENDING => {
            end(ledger, member);
            CONTROL.ended.store(WRITTEN, Ordering::Release);
            task::futex_wake(&CONTROL.ended);
        }
        _ => task::sleep(time),
    }
}

/// Has the watch look at once.
pub(crate) fn look_again() {
    task::futex_wake(&CONTROL.ended);
}

/// Tells the keeper that the program is about to end; where it is the last, waits until the statistics
/// are told. Who was killed may have its place still.
fn end(ledger: &Ledger, member: &Member) {
    let told = ledger.told().load(Ordering::Acquire);
    member.end();
    ledger.ring();
    let lives = |owner: Owner| task::pidfd(owner.program).is_ok_and(|fd| !fd.is_readable());
    if ledger.members().all(|other| other.ends() || !other.owner().is_some_and(lives)) {
        shared::wait(ledger.told(), told, LAST_WORDS);
    }
}

/// Waits for the end of the helper; a program that still lives then must not go on.
extern "C" fn guard(argument: usize) -> ! {
    // SAFETY: `start_others` made this box for us alone.
    let (helper, target) = *unsafe { Box::from_raw(argument as *mut (Fd, &'static Fd)) };
    task::set_name(c"octavo-guard");
    while file::poll(&mut [file::Watch::readable(&helper)], None).unwrap_or(0) == 0 {}
    if LEFT.load(Ordering::Acquire) == 0 {
        task::tell(target, octavo_ledger::LOST);
        let _ = task::kill(target);
    }
    task::exit_group(0)
}

/// 1 when the helper leaves by its own will, because the program is gone.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// The guard's process id; 0 before there is one.
static GUARD: AtomicI64 = AtomicI64::new(0);

/// Ends the helper because the program is gone, from this address space at least; the guard before
/// it, or that would be an orphan, which the program's new image may be who gets.
pub(crate) fn leave() -> ! {
    LEFT.store(1, Ordering::Release);
    // Before its memory is given back. Nobody says anything else after that.
    core::mem::forget(TELLING.lock());
    if let (Some(ledger), Some(member)) = (ledger(), member()) {
        ledger.leave(member);
    }
    let guard = GUARD.load(Ordering::Acquire) as i32;
    if guard != 0 {
        task::end_child(guard);
    }
    task::exit_group(0)
}

/// The helper's descriptor of the program, for a crash; -1 before there is one.
static TARGET: AtomicI64 = AtomicI64::new(-1);

extern "C" fn crashed(crash: &Crash) -> ! {
    let target = TARGET.load(Ordering::Acquire);
    if target >= 0 {
        let target = Fd::own(target as i32);
        let mut line = Text::<1024>::new();
        let _ = write_crash(&mut line, crash);
        task::tell(&target, line.as_bytes());
        let _ = task::kill(&target);
    }
    task::exit_group(125)
}

/// Where our image lies, for a crash: what is there is told as an offset, which `addr2line` takes.
static IMAGE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

fn write_crash(line: &mut impl core::fmt::Write, crash: &Crash) -> core::fmt::Result {
    let Crash { signal, code, address, instruction, stack } = *crash;
    let [start, end] = [&IMAGE[0], &IMAGE[1]].map(|at| at.load(Ordering::Relaxed) as usize);
    let offset = |at: usize| (start..end).contains(&at).then(|| at - start);
    write!(line, "octavo: the pager crashed (signal {signal}, code {code}, at ")?;
    match offset(instruction) {
        Some(offset) => write!(line, "+{offset:#x}")?,
        None => write!(line, "{instruction:#x}, image at {start:#x}")?,
    }
    write!(line, ", address {address:#x}, stack")?;
    for offset in stack.into_iter().filter_map(offset).take(8) {
        write!(line, " +{offset:#x}")?;
    }
    writeln!(line, "); the program is ended")
}

/// This process's place in the ledger; null before it has one.
static MEMBER: AtomicPtr<Member> = AtomicPtr::new(core::ptr::null_mut());

/// The ledger that the process `keeper` holds; a forked child has its parent's.
pub(crate) fn open_ledger((keeper, ledger): (i32, i32)) -> Result<&'static Ledger> {
    if let Some(ledger) = self::ledger() {
        return Ok(ledger);
    }
    let memory = task::borrow_fd(&task::pidfd(keeper)?, ledger)?;
    let ledger = octavo_ledger::open(&memory)?;
    LEDGER.store(core::ptr::from_ref(ledger).cast_mut(), Ordering::Release);
    Ok(ledger)
}

/// A place in `ledger` for the process `target`.
pub(crate) fn join_ledger(ledger: &'static Ledger, target: i32) -> Result<&'static Member> {
    let mut name = [0; 16];
    let _ = proc::open(target, "comm")?.read(&mut name);
    let newcomer = Newcomer {
        owner: Owner { program: target, pager: task::pid() },
        name,
        began: Duration::from_nanos(CONTROL.began.load(Ordering::Relaxed)),
    };
    let member = ledger.join(&newcomer).ok_or(Errno::EUSERS)?;
    MEMBER.store(core::ptr::from_ref(member).cast_mut(), Ordering::Release);
    ledger.ring();
    Ok(member)
}

/// A store for a job: room for 64 times its limit, should that compress to nothing.
fn store(config: &Config) -> Result<Store<PoolArena>> {
    let (limit, cpus) = (config.limit as usize, config.cpus);
    let capacity = (limit.saturating_mul(64) / PAGE_SIZE).clamp(1 << 21, MAX_SLOTS / 4);
    let arena = PoolArena::new(limit.saturating_mul(4).max(1 << 30))?;
    let pool = octavo_pool::Config {
        chain: config.chain,
        max_object: octavo_page::Unit::MAX.bytes(),
        max_objects: capacity * 2,
    };
    let seed = task::now().as_nanos() as u64;
    let stored = octavo_store::Config { capacity_pages: capacity, pool, cpus, seed };
    let store = match config.backing {
        Some(_) => Store::backed(arena, stored),
        None => Store::new(arena, stored),
    };
    let mut store = store.map_err(|_| Errno::ENOMEM)?;
    match (config.learns(), config.tables) {
        (None, _) => {}
        (Some((level, unit)), None) => store.set_learner(Learner::new(level, unit.bytes())),
        (Some(_), Some(file)) => {
            store.set_tables(Arc::new(Generations::of_file(&file)));
        }
    }
    Ok(store)
}

impl Pager {
    /// The life of the server: answers faults until the program is gone.
    fn run_server(&self, worker: &mut Worker, target: i32) {
        self.placement.note_server();
        task::sleep_exactly();
        let mut follower = Follower::new(target);
        let mut later_since = None;
        loop {
            self.read_events(worker);
            let nurses = Nurses::now(&mut later_since);
            if nurses == Nurses::Some {
                self.nurse(worker);
            }
            let slept = worker.faults.is_empty();
            if slept {
                // Where a fork wants rest, that can wait.
                if let Some(_work) = REST.try_work() {
                    self.free_left(worker);
                }
                if self.wait(nurses) {
                    return;
                }
                self.read_events(worker);
            }
            if !worker.faults.is_empty() {
                self.member.asked.wait(task::now, UNTIL_ITS_TURN);
            }
            while let Some(fault) = worker.faults.pop() {
                self.answer(worker, fault);
                follower.answered(self, fault.thread, slept);
            }
            if let Some(span) = worker.faults.left_out() {
                self.program.wake(span);
            }
            self.note_work(worker);
        }
    }

    /// Waits until there is something for the server to do; whether that is to leave. Not while it
    /// answers for children: they come, or are given up, in a moment.
    fn wait(&self, nurses: Nurses) -> bool {
        let mut watches = [file::Watch::readable(self.program.fd()); 1 + MAX_CHILDREN];
        let mut n = 1;
        let mut watch = |fd: &Fd| {
            watches[n] = file::Watch::readable(fd);
            n += 1;
        };
        let look = match nurses {
            Nurses::None => {
                watch(&self.target);
                SERVER_LOOK
            }
            Nurses::Some => {
                NURSERY.each_fd(watch);
                NURSE_LOOK
            }
            Nurses::Later => LATER,
        };
        let _ = file::poll(&mut watches[..n], Some(look));
        nurses == Nurses::None && watches[1].fired()
    }
}

/// Whether the server answers for children. While a fork wants rest they wait: what it does for them is
/// of many changes, and in the middle of one the next child's copy would not be whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nurses {
    None,
    Some,
    Later,
}

impl Nurses {
    /// How it is now; children have been waiting for a fork since `since`. Not for ever, as a thread may be
    /// killed on its way to a fork, or stopped.
    fn now(since: &mut Option<Duration>) -> Self {
        let before = since.take();
        match () {
            () if NURSERY.is_empty() => Self::None,
            () if !REST.is_wanted() => Self::Some,
            () => {
                let begin = *since.insert(before.unwrap_or_else(task::now));
                let waited = task::now().saturating_sub(begin);
                if waited < LATER_AT_MOST { Self::Later } else { Self::Some }
            }
        }
    }
}

/// What faults of a process whose turn it is not are slowed down to; events are read as often.
const UNTIL_ITS_TURN: Duration = Duration::from_millis(4);

/// The server looks again after this time, whatever it waits for.
const SERVER_LOOK: Duration = Duration::from_millis(200);

/// The same while it answers for children.
const NURSE_LOOK: Duration = Duration::from_millis(10);

/// The same while children wait for the end of a fork, and how long they do.
const LATER: Duration = Duration::from_millis(1);
const LATER_AT_MOST: Duration = Duration::from_millis(500);
