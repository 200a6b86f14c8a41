//! Whose turn it is, where several processes at work need more memory than there is.
//!
//! ```text
//!   shared out    A ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒    both have half of what they need,
//!                 B ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒    and do next to nothing but wait for pages
//!
//!   by turns      A ▓▓▓▓▓▓▓▓      ▓▓▓▓▓▓▓▓      ▓▓    one has all it needs, the other is stored
//!                 B         ▓▓▓▓▓▓        ▓▓▓▓▓▓      densely, and its faults wait
//! ```
//! The load control of old (P. J. Denning, "Thrashing: its causes and prevention", 1968), or the token of S. Jiang and
//! X. Zhang ("Token-ordered LRU", 2005), with the difference that what a turn costs, to store the memory of one and to
//! bring back the other's, is some 100 ms for 30 MiB: it may change every second.
//!
//! # Rules
//!
//! - Turns are taken where several processes fault all the time and get next to nothing done: what counts is their
//!   own time on CPUs, in user mode. If that does not grow by it, nobody takes turns for a while.
//! - Whoever takes part has faulted much. One that does not fault any more, since it sleeps, or has what it needs,
//!   leaves, and so does everybody when all would fit.
//! - A turn ends with its time, or at once when its holder neither runs nor faults: it may wait for one of the others,
//!   whose threads go on meanwhile, slowly.
//!
//! All of it is a function of figures, so that tests drive it.

use octavo_ledger::ask::Ask;
use std::time::Duration;

/// Faults a look from which on a process takes part.
const HOT: u64 = 100;

/// The same below which it has what it needs, and below which it has no use for memory at present.
const WARM: u64 = HOT / 4;
const COLD: u64 = 1;

/// Time on CPUs that processes get done together, as a share of one CPU, below which they take turns.
const SLOW: f64 = 0.3;

/// What it has to grow by, at least, while they do; and from what, where it was nothing.
const GAIN: f64 = 1.25;
const NOTHING: f64 = 0.02;

/// And a holder's memory, as a multiple of what it was, where that still faults much at the end of its turn.
const MORE: f64 = 1.25;

/// It is measured for so long before turns are taken, when they have faulted for a while, and again and again while
/// they are.
const LEAD: Duration = Duration::from_millis(400);
const BEFORE: Duration = Duration::from_millis(600);
const CHECKED: Duration = Duration::from_secs(3);

/// After such a time all have their share again, to see whether they get on by now.
const AGAIN: Duration = Duration::from_secs(30);

/// A turn lasts so many times what it took its holder to get the memory, at least so long, and at most so that nobody
/// waits for longer than this, if that is possible.
const LONGER: u32 = 6;
const SHORTEST: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(3);

/// Looks without a fault after which somebody who waits does not wait for memory.
const QUIET: u32 = 10;

/// The same after which a holder may be idle, which is judged over this time: it runs for less than a quarter of it.
const PAUSE: u32 = 3;
const IDLE: Duration = Duration::from_millis(60);

/// When only one is left, it has its turn for so long still.
const ALONE: Duration = Duration::from_secs(1);

/// After turns were of no use nobody takes any for so long: twice as long each time.
const REST: Duration = Duration::from_secs(2);
const LONGEST_REST: Duration = Duration::from_secs(160);

/// What is known of a process at a look.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Who it is.
    pub id: i32,
    /// Faults since the last look.
    pub faults: u64,
    /// The same, averaged over some looks.
    pub heat: u64,
    /// Pages used.
    pub used: u64,
}

/// Time on CPUs that a process has had so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct Spent {
    /// In user mode.
    pub user: Duration,
    /// In all.
    pub all: Duration,
}

/// Says what a process has spent; `None` when it is gone.
pub type Spending<'a> = &'a mut dyn FnMut(i32) -> Option<Spent>;

/// Whose turn it is, and what is asked of each process.
#[derive(PartialEq, Eq, Debug)]
pub struct Turn {
    /// Who has it, by its place among those seen.
    pub holder: usize,
    /// Whether it wants more memory.
    pub wants: bool,
    /// For each that was seen.
    pub asks: Vec<Ask>,
}

/// What was decided so far.
#[derive(Debug)]
pub struct Turns {
    state: State,
    /// How long nobody takes turns the next time that they are of no use.
    rest: Duration,
    /// Turns that began so far.
    begun: u64,
}

#[derive(Debug)]
enum State {
    /// Nobody does; who faults much, and what they get done meanwhile.
    Free(Option<Sharing>),
    /// They are of no use, until then.
    Resting(Duration),
    Taken(Taken),
}

/// Processes that fault much and have their share each.
#[derive(Debug)]
struct Sharing {
    since: Duration,
    /// Measured after a while.
    progress: Option<Progress>,
    ids: Vec<i32>,
}

#[derive(Debug)]
struct Taken {
    began: Duration,
    /// In the order of their turns; the first has it.
    takers: Vec<Taker>,
    since: Duration,
    /// When the holder's memory last grew, and how much that was at most.
    grown: Duration,
    most: u64,
    /// What the holder had spent, and when.
    spent: (Duration, Duration),
    /// What all got done, as a share of a CPU, before.
    before: f64,
    /// And what they do.
    progress: Progress,
    alone_since: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Taker {
    id: i32,
    /// Pages that it used when it was among all others.
    shared: u64,
    /// Looks without a fault.
    quiet: u32,
}

impl Taker {
    const fn new(seen: &Seen) -> Self {
        Self { id: seen.id, shared: seen.used, quiet: 0 }
    }
}

/// What some processes get done, from a moment on.
#[derive(Debug)]
struct Progress {
    since: Duration,
    user: Vec<(i32, Duration)>,
}

impl Progress {
    fn start(now: Duration, ids: impl Iterator<Item = i32>, spent: Spending<'_>) -> Self {
        let user = ids.filter_map(|id| Some((id, spent(id)?.user))).collect();
        Self { since: now, user }
    }

    /// The share of a CPU that those of them have had who are still there.
    fn share(&self, now: Duration, spent: Spending<'_>) -> f64 {
        let of = |(id, before): &(i32, Duration)| Some(spent(*id)?.user.saturating_sub(*before));
        let done: Duration = self.user.iter().filter_map(of).sum();
        done.as_secs_f64() / (now - self.since).as_secs_f64().max(1e-3)
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self { state: State::Free(None), rest: REST, begun: 0 }
    }
}

impl Turns {
    /// Turns that began so far.
    pub const fn begun(&self) -> u64 {
        self.begun
    }

    /// Looks at the processes `seen`, in the order in which they came, the memory for which is `short` or not. `None`:
    /// nobody takes turns.
    pub fn look(
        &mut self,
        now: Duration,
        seen: &[Seen],
        short: bool,
        spent: Spending<'_>,
    ) -> Option<Turn> {
        if !short {
            self.state = State::Free(None);
            return None;
        }
        match &mut self.state {
            State::Resting(until) if now < *until => return None,
            State::Resting(_) => self.state = State::Free(None),
            State::Free(sharing) => {
                let hot: Vec<_> = seen.iter().filter(|seen| seen.heat >= HOT).copied().collect();
                if let Some(taken) = Taken::begin(now, &hot, sharing, spent) {
                    self.state = State::Taken(taken);
                }
            }
            State::Taken(taken) => match taken.look(now, seen, spent) {
                Verdict::GoesOn => {}
                Verdict::Helps => self.rest = REST,
                Verdict::Over => self.state = State::Free(None),
                Verdict::IsOfNoUse => {
                    self.state = State::Resting(now + self.rest);
                    self.rest = (2 * self.rest).min(LONGEST_REST);
                }
            },
        }
        let State::Taken(taken) = &self.state else { return None };
        self.begun += u64::from(taken.since == now);
        taken.turn(seen)
    }
}

/// What is to become of turns.
enum Verdict {
    GoesOn,
    /// They were measured, and help.
    Helps,
    /// Nobody needs any.
    Over,
    IsOfNoUse,
}

impl Taken {
    /// Has the processes `hot` take turns, if they got little done for long enough.
    fn begin(
        now: Duration,
        hot: &[Seen],
        sharing: &mut Option<Sharing>,
        spent: Spending<'_>,
    ) -> Option<Self> {
        let ids = hot.iter().map(|seen| seen.id);
        if hot.len() < 2 {
            *sharing = None;
            return None;
        }
        let Some(same) = sharing.as_mut().filter(|same| same.ids.iter().copied().eq(ids.clone()))
        else {
            *sharing = Some(Sharing { since: now, progress: None, ids: ids.collect() });
            return None;
        };
        if now - same.since < LEAD {
            return None;
        }
        let Some(progress) = &same.progress else {
            same.progress = Some(Progress::start(now, ids, spent));
            return None;
        };
        if now - progress.since < BEFORE {
            return None;
        }
        let before = progress.share(now, spent);
        let anew = Progress::start(now, ids, spent);
        if before >= SLOW {
            same.progress = Some(anew);
            return None;
        }
        let mut taken = Self {
            began: now,
            takers: hot.iter().map(Taker::new).collect(),
            since: now,
            grown: now,
            most: 0,
            spent: (now, Duration::ZERO),
            before: before.max(NOTHING),
            progress: anew,
            alone_since: None,
        };
        taken.start_turn(now, spent);
        Some(taken)
    }

    fn start_turn(&mut self, now: Duration, spent: Spending<'_>) {
        (self.since, self.grown, self.most) = (now, now, 0);
        let holder = self.takers.first_mut();
        let all = holder.and_then(|holder| {
            holder.quiet = 0;
            spent(holder.id)
        });
        self.spent = (now, all.unwrap_or_default().all);
    }

    fn look(&mut self, now: Duration, seen: &[Seen], spent: Spending<'_>) -> Verdict {
        let before = self.takers.first().map(|holder| holder.id);
        self.note(seen);
        let Some(holder) = self.takers.first().copied() else { return Verdict::Over };
        if self.takers.len() > 1 {
            self.alone_since = None;
        } else if now - *self.alone_since.get_or_insert(now) > ALONE {
            return Verdict::Over;
        }
        let found = seen.iter().find(|seen| seen.id == holder.id);
        let (used, is_hot) = found.map_or((0, false), |seen| (seen.used, seen.heat >= HOT));
        if used > self.most + self.most / 16 {
            (self.most, self.grown) = (used, now);
        }
        let longest = PATIENCE / (self.takers.len() as u32 - 1).max(1);
        let lasts = ((self.grown - self.since) * LONGER).min(longest).max(SHORTEST);
        if before != Some(holder.id) {
            self.start_turn(now, spent);
        } else if now - self.since >= lasts || self.is_idle(now, holder, spent) {
            if is_hot && (self.most as f64) < holder.shared as f64 * MORE {
                return Verdict::IsOfNoUse;
            }
            self.takers.rotate_left(1);
            if let Some(last) = self.takers.last_mut() {
                last.quiet = 0;
            }
            self.start_turn(now, spent);
        }
        self.judge(now, spent)
    }

    /// Notes who takes part: those who did, as long as they fault or it is their turn, and who faults much by now.
    fn note(&mut self, seen: &[Seen]) {
        let holder = self.takers.first().map(|holder| holder.id);
        self.takers.retain_mut(|taker| {
            let Some(seen) = seen.iter().find(|seen| seen.id == taker.id) else { return false };
            taker.quiet = if seen.faults > 0 { 0 } else { taker.quiet + 1 };
            taker.quiet < QUIET || holder == Some(taker.id)
        });
        for hot in seen.iter().filter(|seen| seen.heat >= HOT) {
            if self.takers.iter().all(|taker| taker.id != hot.id) {
                self.takers.push(Taker::new(hot));
            }
        }
    }

    /// Whether the holder neither faults nor runs.
    fn is_idle(&mut self, now: Duration, holder: Taker, spent: Spending<'_>) -> bool {
        let (since, before) = self.spent;
        if now - since < IDLE {
            return false;
        }
        let all = spent(holder.id).unwrap_or_default().all;
        self.spent = (now, all);
        holder.quiet >= PAUSE && all.saturating_sub(before) * 4 < now - since
    }

    /// Whether turns help, where it is time to see that.
    fn judge(&mut self, now: Duration, spent: Spending<'_>) -> Verdict {
        if now - self.progress.since < CHECKED || self.takers.len() < 2 {
            return Verdict::GoesOn;
        }
        let share = self.progress.share(now, spent);
        self.progress = Progress::start(now, self.takers.iter().map(|taker| taker.id), spent);
        if share < self.before * GAIN {
            Verdict::IsOfNoUse
        } else if now - self.began > AGAIN {
            Verdict::Over
        } else {
            Verdict::Helps
        }
    }

    fn turn(&self, seen: &[Seen]) -> Option<Turn> {
        let place = |id| seen.iter().position(|seen| seen.id == id);
        let holder = place(self.takers.first()?.id)?;
        let ask = |seen: &Seen| match seen.heat {
            ..COLD => Ask::Give,
            _ => Ask::Nothing,
        };
        let mut asks: Vec<_> = seen.iter().map(ask).collect();
        self.takers.iter().filter_map(|taker| place(taker.id)).for_each(|at| asks[at] = Ask::Wait);
        asks[holder] = Ask::Nothing;
        Some(Turn { holder, wants: seen[holder].heat >= WARM, asks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_ledger::shares::{self, Look};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const LOOK: Duration = Duration::from_millis(20);
    const ROOM: u64 = 100_000;
    /// Pages that a process cannot give.
    const FLOOR: u64 = 5_000;
    /// Faults a look of one that has nothing of what it needs.
    const MISSES: u64 = 800;

    /// A process that needs so much, and runs all the time where it has that.
    struct Process {
        needs: u64,
        /// Whether it sleeps.
        asleep: bool,
        used: u64,
        faults: u64,
        heat: u64,
        spent: Spent,
        share: u64,
    }

    struct Job {
        turns: Turns,
        now: Duration,
        processes: BTreeMap<i32, Process>,
    }

    impl Job {
        fn new(needs: &[u64]) -> Self {
            let process = |needs: &u64| {
                let (used, spent) = (FLOOR, Spent::default());
                Process { needs: *needs, asleep: false, used, faults: 0, heat: 0, spent, share: 0 }
            };
            let processes = (1..).zip(needs.iter().map(process)).collect();
            Self { turns: Turns::default(), now: Duration::from_secs(9), processes }
        }

        /// One look, and what comes of it until the next.
        fn look(&mut self) -> Option<(i32, Vec<(i32, Ask)>)> {
            self.now += LOOK;
            let see = |(id, p): (&i32, &Process)| Seen {
                id: *id,
                faults: p.faults,
                heat: p.heat,
                used: p.used,
            };
            let seen: Vec<_> = self.processes.iter().map(see).collect();
            let short = self.processes.values().map(|p| p.needs).sum::<u64>() > ROOM;
            let processes = &self.processes;
            let mut spent = |id: i32| processes.get(&id).map(|p| p.spent);
            let turn = self.turns.look(self.now, &seen, short, &mut spent);
            let look = |p: &Process| Look { used: p.used, floor: FLOOR, heat: p.heat };
            let looks: Vec<_> = self.processes.values().map(look).collect();
            let mut given: Vec<_> = self.processes.values().map(|p| p.share).collect();
            match &turn {
                None => shares::rebalance(ROOM, &looks, &mut given),
                Some(Turn { holder, wants, asks }) => {
                    shares::by_turns(ROOM, &looks, asks, (*holder, *wants), &mut given);
                }
            }
            let none = vec![Ask::Nothing; seen.len()];
            let asks = turn.as_ref().map_or(&none, |turn| &turn.asks);
            for ((p, share), ask) in self.processes.values_mut().zip(given).zip(asks) {
                p.share = share;
                p.go_on(*ask);
            }
            let ids = seen.iter().map(|seen| seen.id);
            turn.map(|turn| (seen[turn.holder].id, ids.zip(turn.asks).collect()))
        }

        /// Who had its turn in the next looks, each as often as in how many of them.
        fn turns(&mut self, looks: usize) -> BTreeMap<Option<i32>, usize> {
            let mut turns = BTreeMap::new();
            for _ in 0..looks {
                let holder = self.look().map(|(holder, _)| holder);
                *turns.entry(holder).or_default() += 1;
            }
            turns
        }

        fn user(&self) -> Duration {
            self.processes.values().map(|p| p.spent.user).sum()
        }
    }

    impl Process {
        /// Runs until the next look: what it has not it asks for, one page after the other.
        fn go_on(&mut self, ask: Ask) {
            let has = self.used.min(self.needs);
            let missing = (self.needs - has) as f64 / self.needs.max(1) as f64;
            let waits = if ask == Ask::Wait { 0.01 } else { 1.0 };
            let runs = if self.asleep { 0.0 } else { (1.0 - missing).powi(8) * waits };
            self.faults = if self.asleep { 0 } else { (MISSES as f64 * missing * waits) as u64 };
            self.heat = self.heat - self.heat.div_ceil(8) + self.faults / 8;
            self.spent.user += LOOK.mul_f64(runs);
            self.spent.all += LOOK.mul_f64(if self.asleep { 0.0 } else { waits });
            // Memory moves at this speed.
            let wanted = if self.asleep { self.used.min(self.share) } else { self.share };
            let most = self.used + 5 * self.faults;
            self.used =
                wanted.min(self.needs).min(most).max(self.used.saturating_sub(6_000)).max(FLOOR);
        }
    }

    #[test]
    fn who_all_need_most_of_the_memory_have_it_one_after_the_other() {
        let mut job = Job::new(&[70_000, 70_000, 70_000]);
        job.turns(200);
        let before = job.user();
        let turns = job.turns(3_000);
        for id in 1..=3 {
            let looks = turns.get(&Some(id)).copied().unwrap_or(0);
            assert!((700..1300).contains(&looks), "{turns:?}");
        }
        let share = (job.user() - before).as_secs_f64() / (3_000 * LOOK).as_secs_f64();
        assert!(share > 0.3, "{share}: {turns:?}");
    }

    #[test]
    fn nobody_takes_turns_where_all_get_on() {
        // But for the beginning, when each must get its memory.
        let mut job = Job::new(&[52_000, 52_000]);
        job.turns(2_000);
        assert_eq!(job.turns(4_000), BTreeMap::from([(None, 4_000)]));
        let mut job = Job::new(&[40_000, 40_000]);
        assert_eq!(job.turns(1_000), BTreeMap::from([(None, 1_000)]));
        let mut job = Job::new(&[300_000]);
        assert_eq!(job.turns(1_000), BTreeMap::from([(None, 1_000)]));
    }

    #[test]
    fn nobody_takes_turns_for_long_where_even_everything_is_not_enough() {
        let mut job = Job::new(&[400_000, 400_000]);
        let turns = job.turns(10_000);
        assert!(turns[&None] > 8_800, "{turns:?}");
    }

    #[test]
    fn a_holder_that_waits_for_another_gives_up_its_turn_at_once() {
        let mut job = Job::new(&[70_000, 70_000]);
        job.turns(300);
        let (holder, _) = job.look().expect("a turn");
        job.processes.get_mut(&holder).expect("it is there").asleep = true;
        let turns = job.turns(12);
        assert!(turns.contains_key(&Some(3 - holder)), "{turns:?}");
        // And nobody waits for who sleeps, nor sleeps who is alone.
        job.turns(20 + (ALONE.as_millis() / LOOK.as_millis()) as usize);
        assert_eq!(job.look(), None);
        job.processes.get_mut(&holder).expect("it is there").asleep = false;
        assert!(job.turns(200).len() > 1);
    }

    #[test]
    fn who_comes_takes_part_and_who_goes_is_waited_for_no_more() {
        let mut job = Job::new(&[70_000, 70_000]);
        job.turns(300);
        let more = Job::new(&[70_000]).processes.remove(&1).expect("one");
        job.processes.insert(3, more);
        assert!(job.turns(600).contains_key(&Some(3)));
        let (holder, _) = job.look().expect("a turn");
        job.processes.remove(&holder);
        let (next, asks) = job.look().expect("a turn");
        assert!(next != holder && asks.len() == 2);
        job.processes.remove(&next);
        assert!(job.turns(200).contains_key(&None));
    }

    proptest! {
        #[test]
        fn one_has_its_turn_and_nobody_else_is_held_up_that_does_not_fault(
            seen in proptest::collection::vec(
                proptest::collection::btree_map(1..6i32, (0u64..900, 0u64..900, 0u64..50_000), 0..5),
                1..400,
            ),
            fits in any::<u64>(),
        ) {
            let mut turns = Turns::default();
            let mut now = Duration::from_secs(1);
            let mut faulted = BTreeMap::new();
            for (n, seen) in seen.into_iter().enumerate() {
                now += LOOK * 5;
                let see = |(id, (faults, heat, used))| Seen { id, faults, heat, used };
                let seen: Vec<_> = seen.into_iter().map(see).collect();
                for seen in &seen {
                    let hot = seen.heat >= HOT;
                    *faulted.entry(seen.id).or_insert(hot) |= hot;
                }
                let is_there = |id| seen.iter().any(|seen| seen.id == id);
                let user = Duration::from_millis(n as u64);
                let mut spent = |id| is_there(id).then_some(Spent { user, all: user });
                let short = fits >> (n % 64) & 15 != 0;
                let turn = turns.look(now, &seen, short, &mut spent);
                let Some(Turn { holder, asks, .. }) = turn else { continue };
                prop_assert!(short && asks.len() == seen.len());
                prop_assert_eq!(asks[holder], Ask::Nothing);
                for (seen, ask) in seen.iter().zip(asks) {
                    prop_assert!(ask != Ask::Wait || faulted[&seen.id]);
                    prop_assert!(ask != Ask::Give || seen.heat < COLD);
                }
            }
        }
    }
}
