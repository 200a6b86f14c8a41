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
//! Were the helper lost while the program lives, evicted pages would read as zeros. So a crash of
//! the helper kills the program first, and a guard, which shares the helper's descriptors and
//! keeps the userfaultfd open, kills it when the helper is killed.
#![allow(unsafe_code)] // entry points of new tasks take their argument as an address

use crate::arena::PoolArena;
use crate::budget::Budget;
use crate::fork::{MAX_CHILDREN, NURSERY};
use crate::heir;
use crate::outpost::Outpost;
use crate::pager::{Config, MAX_EVICTORS, Pager, Parts, Worker};
use crate::placement::Follower;
use crate::presence::Presence;
use crate::regions::Span;
use crate::table::MAX_SLOTS;
use crate::watch::Watch;
use alloc::boxed::Box;
use core::fmt::Write as _;
use core::mem::ManuallyDrop;
use core::time::Duration;
use octavo_ledger::{Ledger, Member, Owner};
use octavo_page::PAGE_SIZE;
use octavo_page::pins::Pins;
use octavo_page::rest::{Rest, Work};
use octavo_page::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use octavo_pool::ChainLength;
use octavo_store::Store;
use octavo_sys::file::{self, Fd, Text};
use octavo_sys::task::{self, Crash, Kinship, SignalMask};
use octavo_sys::{Errno, Result, shared};

/// What the preloaded object hands over.
#[derive(Debug)]
pub struct Job {
    /// How to run.
    pub config: Config,
    /// Addresses that are never managed: our image, libc, whose data we use, and the main stack.
    pub excluded: [Span; 3],
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
}

static CONTROL: Control =
    Control { started: AtomicU32::new(0), ended: AtomicU32::new(0), process: AtomicI64::new(0) };

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
/// that is killed on its way to a fork wants it for ever.
pub(crate) fn work() -> Work<'static> {
    REST.work(|word, value| {
        task::futex_wait(word, value, Duration::from_millis(20));
        let target = TARGET.load(Ordering::Acquire);
        target < 0 || !ManuallyDrop::new(Fd::own(target as i32)).is_readable()
    })
}

/// Starts the pager for this process. Called once, before the program's own code.
///
/// # Errors
/// What the helper could not get: `EPERM` without the privilege for userfaultfd, `EINVAL` on a
/// kernel without its features, `ENOMEM` when the address space is limited.
pub fn start(job: Job) -> Result<()> {
    JOB.store(Box::into_raw(Box::new(job)), Ordering::Release);
    make_helper().and_then(|()| wait_for_helper())
}

/// Starts the pager of a forked child, from what it has inherited; a child that cannot have one goes
/// on without.
pub(crate) fn start_in_child() {
    GUARD.store(0, Ordering::Relaxed);
    TARGET.store(-1, Ordering::Relaxed);
    LEFT.store(0, Ordering::Relaxed);
    CONTROL.ended.store(0, Ordering::Relaxed);
    // The thread has another id than its block was pinned for.
    pin_thread();
    if make_helper().and_then(|()| wait_for_helper()).is_err() {
        heir::refuse();
    }
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

fn wait_for_helper() -> Result<()> {
    loop {
        match CONTROL.started.load(Ordering::Acquire) {
            0 | STARTING => task::futex_wait(&CONTROL.started, STARTING, Duration::from_secs(1)),
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

/// Notes programs that this process has started without our object; negative: that it has not after
/// all.
pub fn note_unmanaged(programs: i64) {
    let ledger = LEDGER.load(Ordering::Acquire);
    // SAFETY: null, or a ledger that stays mapped, in forked children too.
    if let Some(ledger) = unsafe { ledger.as_ref() } {
        ledger.note_unmanaged(programs);
    }
}

/// Whether this process is managed, or about to be.
#[must_use]
pub fn is_managed() -> bool {
    matches!(CONTROL.started.load(Ordering::Acquire), STARTING | RUNNING)
        && CONTROL.process.load(Ordering::Relaxed) == i64::from(task::pid())
}

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
        PINS.pin(page, thread, task::yield_now);
    }
}

/// Whether the managed process has this thread.
pub(crate) fn has_thread(thread: u32) -> bool {
    task::has_thread(CONTROL.process.load(Ordering::Relaxed) as i32, thread)
}

/// Whether `bytes` more at once would come near the limit.
#[must_use]
pub fn is_tight(bytes: usize) -> bool {
    let room = ROOM.load(Ordering::Relaxed);
    (bytes / PAGE_SIZE) as u64 * 2 > room
}

/// Pages left until everything must be registered, as last measured.
static ROOM: AtomicU64 = AtomicU64::new(0);

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
    let image = &job.excluded[0];
    IMAGE[0].store(image.start as u64, Ordering::Relaxed);
    IMAGE[1].store(image.end as u64, Ordering::Relaxed);
    task::on_crash(crashed);
    task::detach();
    task::set_name(c"octavo-pager");
    if let Err(error) = file::close_range(0, u32::MAX) {
        answer_error(error);
    }
    let pager = PAGER.load(Ordering::Acquire);
    if pager.is_null() {
        stand(job, process as i32)
    } else {
        // SAFETY: leaked by `run` in the parent; this process's copy has no other task of ours.
        take_over(unsafe { &mut *pager }, job, process as i32)
    }
}

/// The life of a helper from the start of its program.
fn stand(job: &'static Job, process: i32) -> ! {
    let mut post = Outpost::new(job, process).unwrap_or_else(|error| answer_error(error));
    TARGET.store(i64::from(post.target_fd.raw()), Ordering::Release);
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
    let store = store(config.limit as usize, config.cpus);
    let pager = store.and_then(|store| {
        let parts = Parts { program, maps, store, target: target_fd, ledger, member };
        Pager::new(config, parts)
    });
    let pager: &Pager = match pager {
        Ok(pager) => Box::leak(Box::new(pager)),
        Err(error) => give_up(error),
    };
    PAGER.store(core::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    if let Err(error) = start_others(pager, job, presence) {
        give_up(error);
    }
    drop(work);
    serve(pager, target)
}

fn serve(pager: &'static Pager, process: i32) -> ! {
    pager.run_server(worker(0, &pager.config), process);
    leave()
}

/// The worker with this number, made by the first process that needs it; its children have it too.
fn worker(number: usize, config: &Config) -> &'static mut Worker {
    static WORKERS: [AtomicPtr<Worker>; MAX_EVICTORS + 1] =
        [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_EVICTORS + 1];
    let place = &WORKERS[number];
    if place.load(Ordering::Acquire).is_null() {
        place.store(Box::into_raw(Box::new(Worker::new(number, config))), Ordering::Release);
    }
    // SAFETY: just leaked, or in the parent; each number has one task in each process.
    let worker = unsafe { &mut *place.load(Ordering::Acquire) };
    worker.begin_anew();
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
    for number in 1..=job.config.evictors() {
        spawn_thread(evictor, Box::new((pager, number)))?;
    }
    let watch = Watch::new(pager, job.excluded.clone(), presence);
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
    pager.run_evictor(worker(number, &pager.config))
}

extern "C" fn watcher(argument: usize) -> ! {
    // SAFETY: `start_others` made this box for us alone.
    let (watch, pager) =
        *unsafe { Box::from_raw(argument as *mut (Watch<'static>, &'static Pager)) };
    task::set_name(c"octavo-watch");
    pager.placement.note_helper();
    watch.run(|time| pause(&pager.budget, pager.ledger, pager.member, time))
}

/// Waits for `time`, unless the program is about to end.
pub(crate) fn pause(budget: &Budget, ledger: &Ledger, member: &Member, time: Duration) {
    ROOM.store(budget.until_armed(), Ordering::Relaxed);
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
/// are told.
fn end(ledger: &Ledger, member: &Member) {
    let told = ledger.told().load(Ordering::Acquire);
    member.end();
    ledger.ring();
    if ledger.members().all(Member::ends) {
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
        task::tell(target, b"octavo: the pager was killed; the program is ended\n");
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
    // Before its memory is given back: what it shared will count with who keeps it.
    // SAFETY: null, or in the ledger, which stays mapped.
    if let Some(member) = unsafe { MEMBER.load(Ordering::Acquire).as_ref() } {
        member.say(0, 0);
    }
    let guard = GUARD.load(Ordering::Acquire) as i32;
    if let Ok(guard) = task::pidfd(guard) {
        let _ = task::kill(&guard);
    }
    let _ = task::reap(guard);
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
    // SAFETY: null, or a ledger that stays mapped, in forked children too.
    if let Some(ledger) = unsafe { LEDGER.load(Ordering::Acquire).as_ref() } {
        return Ok(ledger);
    }
    let memory = task::borrow_fd(&task::pidfd(keeper)?, ledger)?;
    let ledger = octavo_ledger::open(&memory)?;
    LEDGER.store(core::ptr::from_ref(ledger).cast_mut(), Ordering::Release);
    Ok(ledger)
}

/// A place in `ledger` for the process `target`.
pub(crate) fn join_ledger(ledger: &'static Ledger, target: i32) -> Result<&'static Member> {
    let mut path = Text::<64>::new();
    let _ = write!(path, "/proc/{target}/comm");
    let mut name = [0; 16];
    let _ = Fd::open(path.as_c_str().unwrap_or(c""))?.read(&mut name);
    let owner = Owner { program: target, pager: task::pid() };
    let member = ledger.join(owner, name).ok_or(Errno::EUSERS)?;
    MEMBER.store(core::ptr::from_ref(member).cast_mut(), Ordering::Release);
    ledger.ring();
    Ok(member)
}

/// A store for a job of `limit` bytes: room for what 64 times that compresses to nothing.
fn store(limit: usize, cpus: usize) -> Result<Store<PoolArena>> {
    let capacity = (limit.saturating_mul(64) / PAGE_SIZE).clamp(1 << 21, MAX_SLOTS / 4);
    let arena = PoolArena::new(limit.saturating_mul(4).max(1 << 30))?;
    let pool = octavo_pool::Config {
        chain: ChainLength::default(),
        max_object: octavo_page::Unit::MAX.bytes(),
        max_objects: capacity * 2,
    };
    let seed = task::now().as_nanos() as u64;
    let config = octavo_store::Config { capacity_pages: capacity, pool, cpus, seed };
    Store::new(arena, config).map_err(|_| Errno::ENOMEM)
}

impl Pager {
    /// The life of the server: answers faults until the program is gone.
    fn run_server(&self, worker: &mut Worker, target: i32) {
        self.placement.note_server();
        let mut follower = Follower::new(target);
        loop {
            self.read_events(worker);
            let nurses = !NURSERY.is_empty();
            if nurses {
                self.nurse(worker);
            }
            let slept = worker.faults.is_empty();
            if slept {
                if self.wait(nurses) {
                    self.fill_children(worker);
                    return;
                }
                self.read_events(worker);
            }
            while let Some(fault) = worker.faults.pop() {
                self.answer(worker, fault);
                follower.answered(self, fault.thread, slept);
            }
        }
    }

    /// Waits until there is something for the server to do; whether that is to leave.
    fn wait(&self, nurses: bool) -> bool {
        const FIXED: usize = 2;
        let mut watches = [file::Watch::readable(&self.target); FIXED + MAX_CHILDREN];
        watches[1] = file::Watch::readable(self.program.fd());
        let (mut n, mut timeout) = (FIXED, SERVER_LOOK);
        if nurses {
            timeout = NURSE_LOOK;
            NURSERY.each_fd(|child| {
                watches[n] = file::Watch::readable(child);
                n += 1;
            });
        }
        let _ = file::poll(&mut watches[..n], Some(timeout));
        watches[0].fired()
    }
}

/// The server looks again after this time, whatever it waits for.
const SERVER_LOOK: Duration = Duration::from_millis(200);

/// The same while it answers for children.
const NURSE_LOOK: Duration = Duration::from_millis(10);
