//! Where the server runs: beside the one thread that faults, or anywhere when there are several.
//!
//! A wake-up across CPUs costs many times a switch on one. So the server stays on the CPU of the
//! thread that faults, and the evictors stay away from it. The scheduler would move the thread
//! to an idle CPU each time the server wakes it, since its own is busy with the server; as a task of
//! policy "idle" the server does not make it busy. Where others are busy on that CPU, such a server
//! would starve: it is normal again for a while when a fault was left waiting, or the watch for a lock.
//! And where others keep the evictors' CPUs, memory outgrows them: they may run anywhere for a while when
//! the limit is passed, and so take time from the thread that writes.
//!
//! ```text
//!   together   thread ──fault──► server ──wake──► thread      the server never sleeps: the thread
//!                                                             takes the CPU from it, and gives it back
//!   apart      the server sleeps, and a fault wakes it        it looks where the thread runs,
//!                                                             and moves there
//! ```
//! The server itself follows, at once; the watch only sees to it that it does not starve.

use crate::pager::{MAX_EVICTORS, Pager};
use core::time::Duration;
use octavo_page::sync::Mutex;
use octavo_page::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use octavo_sys::proc::Stat;
use octavo_sys::task::{self, CpuSet, Policy};

/// Faults for which a second thread is remembered.
const CROWD: u32 = 1000;

/// After so many faults a server that happens to be beside the thread is bound there.
const SETTLED: u32 = 64;

/// For so long a fault may wait before the server counts as starved.
const PATIENCE: Duration = Duration::from_millis(10);

/// Pause between two attempts to take what the server may hold.
const SHORT: Duration = Duration::from_micros(100);

/// For so long a server that was left waiting stays normal.
const RECOVERY: Duration = Duration::from_secs(1);

/// Where the helpers are bound.
#[derive(Debug)]
pub struct Placement {
    all: CpuSet,
    /// The policy that the program has, and so has who is not bound: one that was started behind all
    /// others stays there.
    usual: Policy,
    server: AtomicU32,
    /// Task ids of the evictors; 0 where there is none.
    evictors: [AtomicU32; MAX_EVICTORS],
    bound: Mutex<Bound>,
    /// Whether the server is beside a lone thread.
    lone: AtomicBool,
}

#[derive(Debug, Default)]
struct Bound {
    /// The CPU of the server; `None` while it may run anywhere.
    cpu: Option<usize>,
    /// Before this time the server is not bound again.
    free_until: Duration,
}

impl Placement {
    /// Everybody may run anywhere, on the CPUs of the calling task and with its policy.
    #[must_use]
    pub fn new() -> Self {
        Self {
            all: CpuSet::of_this_task(),
            usual: Policy::of_this_task(),
            server: AtomicU32::new(0),
            evictors: [const { AtomicU32::new(0) }; MAX_EVICTORS],
            bound: Mutex::new(Bound::default()),
            lone: AtomicBool::new(false),
        }
    }

    /// Notes the calling task as the server.
    pub fn note_server(&self) {
        self.server.store(task::id() as u32, Ordering::Relaxed);
        task::shorten_slice(0);
    }

    /// Notes the calling task as an evictor.
    pub fn note_evictor(&self) {
        let free = |id: &&AtomicU32| id.load(Ordering::Relaxed) == 0;
        let id = task::id() as u32;
        let _ = self.evictors.iter().filter(free).any(|evictor| {
            evictor.compare_exchange(0, id, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
    }

    /// Whether the server is beside the one thread that faults.
    #[must_use]
    pub fn is_lone(&self) -> bool {
        self.lone.load(Ordering::Relaxed)
    }

    /// Frees helpers that get no time where they are.
    pub(crate) fn relieve(&self) {
        let Some(mut bound) = self.bound.try_lock() else {
            // The server itself has it, most likely, and would have it for ever as an idle task beside others that
            // are busy. As a normal one it lets go of it soon; who finds it starving then binds it anew.
            let server = self.server.load(Ordering::Relaxed) as i32;
            task::set_policy(server, self.usual);
            task::shorten_slice(server);
            return;
        };
        bound.free_until = task::now() + RECOVERY;
        self.bind(&mut bound, None);
    }

    /// For the watch: takes what the server may hold, which frees a server that starves with it, as often as
    /// that takes. Nobody else would: faults may not even be waiting, while memory grows that is not registered.
    pub fn patiently<T>(&self, try_to: impl Fn() -> Option<T>) -> T {
        let begin = task::now();
        loop {
            if let Some(taken) = try_to() {
                return taken;
            }
            if task::now().saturating_sub(begin) > PATIENCE {
                self.relieve();
            }
            task::sleep(SHORT);
        }
    }

    fn bind(&self, bound: &mut Bound, cpu: Option<usize>) {
        if bound.cpu == cpu {
            return;
        }
        bound.cpu = cpu;
        self.lone.store(cpu.is_some(), Ordering::Relaxed);
        let (server, others) = match cpu {
            Some(cpu) => (CpuSet::only(cpu), self.all.without(cpu)),
            None => (self.all, self.all),
        };
        let id = |id: &AtomicU32| id.load(Ordering::Relaxed) as i32;
        // As an idle one it would wait for those that are still to leave its new CPU.
        task::set_policy(id(&self.server), self.usual);
        self.evictors.iter().map(id).filter(|id| *id != 0).for_each(|id| others.bind(id));
        server.bind(id(&self.server));
        match cpu {
            Some(_) => task::set_policy(id(&self.server), Policy::Idle),
            None => task::shorten_slice(id(&self.server)),
        }
    }
}

impl Default for Placement {
    fn default() -> Self {
        Self::new()
    }
}

/// What the server remembers of the threads that fault.
#[derive(Debug)]
pub struct Follower {
    target: i32,
    last: u32,
    /// Faults until a lone thread is believed to be alone.
    crowd: u32,
    faults: u32,
}

impl Follower {
    /// For the threads of process `target`.
    #[must_use]
    pub const fn new(target: i32) -> Self {
        Self { target, last: 0, crowd: 0, faults: 0 }
    }

    /// A fault of `thread` was answered by a server that had slept before it, or not.
    pub fn answered(&mut self, pager: &Pager, thread: u32, slept: bool) {
        let placement = &pager.placement;
        self.crowd = self.crowd.saturating_sub(1);
        if core::mem::replace(&mut self.last, thread) != thread {
            if self.crowd == 0 {
                placement.bind(&mut placement.bound.lock(), None);
            }
            self.crowd = CROWD;
        }
        self.faults = self.faults.wrapping_add(1);
        let due = slept || (self.faults.is_multiple_of(SETTLED) && !placement.is_lone());
        if self.crowd > 0 || !due {
            return;
        }
        let mut bound = placement.bound.lock();
        // The look into /proc costs most, so it comes last.
        if task::now() > bound.free_until
            && let Some(cpu) = Stat::Cpu.of_thread(self.target, thread)
        {
            placement.bind(&mut bound, Some(cpu));
        }
    }
}

/// Whether faults are left waiting.
#[derive(Debug, Default)]
pub struct Starvation {
    faults: u64,
    since: Option<Duration>,
}

impl Starvation {
    /// Looks; frees a server that is bound to a CPU where it gets no time.
    pub fn look(&mut self, pager: &Pager) {
        let faults = pager.counters.faults.get();
        if core::mem::replace(&mut self.faults, faults) != faults || !pager.program.has_events() {
            self.since = None;
            return;
        }
        let now = task::now();
        let since = *self.since.get_or_insert(now);
        if now.saturating_sub(since) > PATIENCE {
            pager.placement.relieve();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// It became an idle task while it held the lock, and got no time since.
    #[test]
    fn a_server_that_starves_with_the_lock_is_an_idle_task_no_more() {
        let placement = Placement::new();
        let has_lock = AtomicBool::new(false);
        let until = task::now() + Duration::from_secs(20);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                placement.note_server();
                let _bound = placement.bound.lock();
                task::set_policy(task::id(), Policy::Idle);
                assert!(Policy::of_this_task() == Policy::Idle);
                has_lock.store(true, Ordering::Release);
                while Policy::of_this_task() == Policy::Idle && task::now() < until {
                    task::sleep(SHORT);
                }
                Policy::of_this_task() == placement.usual
            });
            while !has_lock.load(Ordering::Acquire) {
                task::sleep(SHORT);
            }
            placement.relieve();
            assert!(server.join().expect("no panic"));
        });
        placement.relieve();
        assert!(!placement.is_lone());
    }
}
