//! Processes side by side in virtual time, each on a processor of its own.
//!
//! ```text
//!   process 0   ──spend──►│meet                     (is ready, at its time)
//!   process 1   ──spend──────────►│meet
//!   process 2   ──submit►│ ..looks for a completion.. (waits)
//!   devices                   ─────────────►│ completion: process 2 is ready
//!                         ▲ whoever is furthest behind goes on
//! ```
//!
//! A process is a coroutine, because what it runs (the store, the driver) waits inside of calls. It
//! has a time of its own ([`Seat`]), which it moves on as it works, and waits for its turn wherever it
//! touches what others touch too: all such moments come in the order of their times, among equals in
//! that of the processes' numbers. So a run depends on nothing but its input.
//!
//! Who waits for a device is woken by the completion that the model writes, at its time: a process's
//! time goes to when the device was done, and the wait counts as work, as the processor polls.

use corosensei::{Coroutine, CoroutineResult, Yielder};
use octavo_accel::iaa::wire::Descriptor;
use octavo_accel::iaa::{Machine, Refused, Region};
use octavo_accel::model::Model;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// Nanoseconds of virtual time.
pub(super) type Nanos = u64;

/// When a process goes on.
enum Until {
    /// Now, when everybody has come as far.
    Time(Nanos),
    /// When a command of its own ends.
    Completion,
}

/// Lets a process live for each of `lanes`, the memory by which its completions are known; gives what
/// became of each. A submission takes a processor `submit_ns`.
///
/// # Panics
/// When a process waits for a device that does nothing.
pub(super) fn side_by_side<T: 'static>(
    model: &Rc<Model>,
    lanes: &[Region],
    submit_ns: Nanos,
    live: impl Fn(usize, &Seat<'_>) -> T + 'static,
) -> Vec<T> {
    let live = Rc::new(live);
    let mut processes: Vec<_> = (0..lanes.len())
        .map(|id| {
            let (live, model) = (live.clone(), model.clone());
            Coroutine::new(move |until: &Yielder<Nanos, Until>, now| {
                let (now, worked) = (Cell::new(now), Cell::new(0));
                live(id, &Seat { until, model: &model, now, worked, submit_ns })
            })
        })
        .collect();
    let mut turns = Turns::new(lanes);
    let mut ended: Vec<Option<T>> = lanes.iter().map(|_| None).collect();
    while let Some((now, id)) = turns.next(model) {
        match processes[id].resume(now) {
            CoroutineResult::Yield(Until::Time(time)) => turns.ready.push(Reverse((time, id))),
            CoroutineResult::Yield(Until::Completion) => turns.waiting[id] = true,
            CoroutineResult::Return(life) => ended[id] = Some(life),
        }
    }
    ended.into_iter().map(|life| life.expect("a device answers")).collect()
}

/// Who goes on next.
struct Turns<'l> {
    lanes: &'l [Region],
    ready: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// Who waits for a device.
    waiting: Box<[bool]>,
}

impl<'l> Turns<'l> {
    fn new(lanes: &'l [Region]) -> Self {
        let ready = (0..lanes.len()).map(|id| Reverse((0, id))).collect();
        Self { lanes, ready, waiting: vec![false; lanes.len()].into() }
    }

    /// Whoever is furthest behind, and its time. The devices are moved on until there.
    fn next(&mut self, model: &Model) -> Option<(Nanos, usize)> {
        loop {
            let first = self.ready.peek().map(|Reverse(first)| *first);
            let event = model.next_event();
            let event = event.filter(|time| first.is_none_or(|(ready, _)| *time <= ready));
            let Some(time) = event else {
                let (now, id) = self.ready.pop()?.0;
                model.advance(now, |_| {});
                return Some((now, id));
            };
            model.advance(time, |completion| self.completed(completion, time));
        }
    }

    /// A command ended: whoever waits for it is ready.
    fn completed(&mut self, completion: u64, time: Nanos) {
        let owner = self.lanes.iter().position(|lanes| lanes.find(completion, 1).is_some());
        if let Some(id) = owner.filter(|id| self.waiting[*id]) {
            self.waiting[id] = false;
            self.ready.push(Reverse((time, id)));
        }
    }
}

/// One process's processor, and its time.
pub(super) struct Seat<'y> {
    until: &'y Yielder<Nanos, Until>,
    model: &'y Model,
    now: Cell<Nanos>,
    worked: Cell<Nanos>,
    submit_ns: Nanos,
}

impl Seat<'_> {
    /// The processor works for this long.
    pub(super) fn spend(&self, ns: Nanos) {
        self.now.set(self.now.get() + ns);
        self.worked.set(self.worked.get() + ns);
    }

    /// The process sleeps for this long.
    pub(super) fn sleep(&self, ns: Nanos) {
        self.now.set(self.now.get() + ns);
    }

    /// Waits until everybody else has come as far.
    pub(super) fn meet(&self) {
        self.until.suspend(Until::Time(self.now.get()));
    }

    /// The processor's work so far, looking for completions included.
    pub(super) fn worked(&self) -> Nanos {
        self.worked.get()
    }

    /// The process's time.
    pub(super) fn time(&self) -> Nanos {
        self.now.get()
    }
}

impl Machine for &Seat<'_> {
    fn submit(&self, queue: usize, descriptor: &Descriptor) -> Result<(), Refused> {
        self.spend(self.submit_ns);
        self.meet();
        self.model.submit(queue, descriptor)
    }

    fn now(&self) -> Nanos {
        self.now.get()
    }

    fn pause(&self) {
        let done = self.until.suspend(Until::Completion);
        self.spend(done.saturating_sub(self.now.get()));
    }
}
