//! Jobs that work and now and then need one lock, in virtual time.
//!
//! ```text
//!        ┌──────────────── N jobs ────────────────┐
//!        │                                        ▼
//!      work ── as many at once as there are ──► lock ── one at a time, first come first served
//!        ▲         processors for                 │
//!        └────────────────────────────────────────┘
//! ```
//!
//! The times of work and of holding the lock are exponential. Who gets the lock from another's hand holds
//! it longer than who finds it free: what it protects is then in the caches of others. Two jobs on one core (as hardware
//! threads) together do more than one alone, but not twice as much; one that waits for the lock leaves
//! the core to the other.
//!
//! All jobs that run do so at one pace, which depends on how many they are. So events are kept in
//! *work time*, in which every job runs at full pace, and real time is what passes meanwhile.

use crate::random::Random;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Processors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Processors {
    pub cores: usize,
    /// What a core does with two jobs, of what it does with one.
    pub two_on_a_core: f64,
}

/// What the jobs do, all of them together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub jobs: usize,
    /// Seconds of work of one job alone on a core, summed over the jobs.
    pub work: f64,
    /// Seconds for which the lock is held, summed, if it is always found free.
    pub held: f64,
    /// The same if it is never found free.
    pub held_contended: f64,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Outcome {
    /// Real seconds until all is done.
    pub elapsed: f64,
    /// Seconds that jobs spent working, summed.
    pub working: f64,
    /// Seconds that jobs held the lock or waited for it, summed.
    pub at_lock: f64,
}

/// Turns of work and lock that are simulated: enough for a figure good to a percent.
const TURNS: usize = 60_000;

impl Processors {
    /// How fast each of `running` jobs is.
    fn pace(self, running: usize) -> f64 {
        let paired = running.saturating_sub(self.cores).min(self.cores) as f64;
        let alone = running.min(self.cores) as f64 - paired;
        let done = alone + paired * self.two_on_a_core;
        if running == 0 { 1.0 } else { (done / running as f64).min(1.0) }
    }
}

/// Runs a load to its end.
pub(super) fn run(processors: Processors, load: Load) -> Outcome {
    let mut state = State::new(processors, load);
    while state.turns < TURNS {
        state.event();
    }
    state.outcome
}

/// A moment of work time. Ordered as the number it is: none of them is NaN.
#[derive(Clone, Copy, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

struct State {
    processors: Processors,
    random: Random,
    /// Mean seconds of work between two turns of the lock, and of one turn.
    work: f64,
    held: f64,
    held_contended: f64,
    now: f64,
    /// When working jobs will want the lock.
    working: BinaryHeap<Reverse<Moment>>,
    /// When the job that has the lock will be done with it.
    holder: Option<Moment>,
    /// Jobs that wait for the lock; which is which makes no difference.
    waiting: usize,
    turns: usize,
    outcome: Outcome,
}

impl State {
    fn new(processors: Processors, load: Load) -> Self {
        let mut state = Self {
            processors,
            random: Random::new(1),
            work: load.work / TURNS as f64,
            held: load.held / TURNS as f64,
            held_contended: load.held_contended / TURNS as f64,
            now: 0.0,
            working: BinaryHeap::new(),
            holder: None,
            waiting: 0,
            turns: 0,
            outcome: Outcome { elapsed: 0.0, working: 0.0, at_lock: 0.0 },
        };
        (0..load.jobs).for_each(|_| state.work());
        state
    }

    /// What happens next: a job wants the lock, or one is done with it.
    fn event(&mut self) {
        let wants = self.working.peek().map(|Reverse(moment)| *moment);
        match (wants, self.holder) {
            (Some(wants), Some(done)) if wants < done => self.want(wants),
            (_, Some(done)) => self.done(done),
            (Some(wants), None) => self.want(wants),
            (None, None) => unreachable!("a job that does not wait works or holds the lock"),
        }
    }

    fn want(&mut self, moment: Moment) {
        self.pass(moment);
        self.working.pop();
        match self.holder {
            Some(_) => self.waiting += 1,
            None => self.hold(self.held),
        }
    }

    fn done(&mut self, moment: Moment) {
        self.pass(moment);
        self.turns += 1;
        self.holder = None;
        self.work();
        if self.waiting > 0 {
            self.waiting -= 1;
            self.hold(self.held_contended);
        }
    }

    fn work(&mut self) {
        let until = self.now + self.exponential(self.work);
        self.working.push(Reverse(Moment(until)));
    }

    fn hold(&mut self, mean: f64) {
        self.holder = Some(Moment(self.now + self.exponential(mean)));
    }

    /// Time passes until this moment.
    fn pass(&mut self, Moment(moment): Moment) {
        let (working, holding) = (self.working.len(), usize::from(self.holder.is_some()));
        let seconds = (moment - self.now) / self.processors.pace(working + holding);
        self.now = moment;
        self.outcome.elapsed += seconds;
        self.outcome.working += seconds * working as f64;
        self.outcome.at_lock += seconds * (holding + self.waiting) as f64;
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.random.unit()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: Processors = Processors { cores: 1000, two_on_a_core: 1.25 };

    /// Mean value analysis of the same network, which is exact when nothing shares a core.
    fn exact(load: Load) -> f64 {
        let (mut queue, mut cycle) = (0.0, 0.0);
        for jobs in 1..=load.jobs {
            let at_lock = load.held * (1.0 + queue);
            cycle = (load.work + at_lock) / jobs as f64;
            queue = at_lock / cycle;
        }
        cycle
    }

    #[test]
    fn the_model_agrees_with_the_exact_solution() {
        for (jobs, held) in [(1, 0.1), (6, 0.01), (24, 0.03), (48, 0.03), (96, 0.03), (96, 0.0)] {
            let load = Load { jobs, work: 1.0, held, held_contended: held };
            let (ours, exact) = (run(MANY, load).elapsed, exact(load));
            assert!((ours / exact - 1.0).abs() < 0.03, "{load:?}: {ours} and {exact}");
        }
    }

    #[test]
    fn a_shared_core_is_slower_for_each_and_faster_for_both() {
        let processors = Processors { cores: 4, two_on_a_core: 1.25 };
        let run = |jobs| run(processors, Load { jobs, work: 8.0, held: 0.0, held_contended: 0.0 });
        assert!((run(4).elapsed - 2.0).abs() < 0.1);
        assert!((run(8).elapsed - 1.6).abs() < 0.1);
        assert!((run(8).working - 12.8).abs() < 0.5);
    }
}
