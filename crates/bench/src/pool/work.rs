//! What is done with a system: it is filled, churned and compacted; and how fast it is.

use super::PoolError;
use super::objects::Objects;
use super::systems::{Compacted, Shared, System, Usage};
use crate::host::cpu_time;
use crate::random::Random;
use rustix::time::ClockId;
use std::hint::black_box;
use std::mem;
use std::thread;
use std::time::{Duration, Instant};

/// A round of churn replaces as many objects, at random, as there are: so many rounds at most.
const ROUNDS: usize = 4;

/// Churn ends when a round changed what is used over what is stored by less than this.
const STEADY: f64 = 0.000_5;

/// Bytes of the objects with which speed is measured.
pub const OBJECT: usize = 1024;

/// Objects alive at a time where none lives long.
const FEW: usize = 16;

/// Operations on each thread where speed is measured.
const OPS: usize = 2_000_000;

/// Times that what is compared is measured, in turn; the fastest counts. What disturbs a turn, on a machine
/// that others use too, only ever makes it slower.
const TURNS: usize = 9;

/// A system after something was done with it.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// What was done.
    pub phase: &'static str,
    /// Objects there are.
    pub objects: usize,
    /// What they take.
    pub usage: Usage,
    /// Operations a second: objects stored, replaced, moved.
    pub ops_per_s: f64,
    /// Of compaction.
    pub compacted: Option<Compacted>,
}

/// Fills `system` with the objects of `units` units, replaces them at random until what they take
/// is steady, compacts, and tells after each. In the end all are freed.
///
/// # Errors
/// The system's, and those of `tell`.
pub fn phases<S: System>(
    system: &mut S,
    objects: &Objects,
    units: usize,
    mut tell: impl FnMut(&S, State) -> Result<(), PoolError>,
) -> Result<(), PoolError> {
    let (since, mut random) = (Instant::now(), Random::new(1));
    let stored: Result<Vec<_>, _> = objects.first(units).map(|bytes| system.store(bytes)).collect();
    let mut live = stored?;
    let objects_there = live.len();
    let state = |system: &S, phase, ops: usize, since: Instant| {
        let ops_per_s = ops as f64 / since.elapsed().as_secs_f64();
        let usage = system.usage()?;
        Ok::<_, PoolError>(State {
            phase,
            objects: objects_there,
            usage,
            ops_per_s,
            compacted: None,
        })
    };
    let mut now = state(system, "fill", live.len(), since)?;
    tell(system, now)?;

    let (since, mut ops) = (Instant::now(), 0);
    for _ in 0..ROUNDS {
        for _ in 0..live.len() {
            let at = random.below(live.len());
            let new = objects.from(random.below(units));
            system.free(live.swap_remove(at));
            live.push(system.store(new)?);
        }
        ops += live.len();
        let before = now.usage.overhead();
        now = state(system, "churn", ops, since)?;
        if (now.usage.overhead() - before).abs() < STEADY {
            break;
        }
    }
    tell(system, now)?;

    let (before, since) = (system.layout(&live), Instant::now());
    if let Some(compacted) = system.compact()? {
        let now = state(system, "compacted", compacted.moved.unwrap_or(0), since)?;
        let oracle = before.zip(system.layout(&live)).and_then(|(before, after)| {
            before.least_moves(before.pages().saturating_sub(after.pages()))
        });
        tell(system, State { compacted: Some(Compacted { oracle, ..compacted }), ..now })?;
    }
    live.into_iter().for_each(|name| system.free(name));
    Ok(())
}

/// How fast something is.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// What was done.
    pub phase: &'static str,
    /// By how many threads at once.
    pub threads: usize,
    /// Operations a second, of all threads together.
    pub ops_per_s: f64,
    /// CPU time of an operation in nanoseconds, the kernel's part of it included: it says more where other
    /// work runs beside.
    pub cpu_ns: f64,
}

/// When something began: by the clock, and in CPU time of this process.
#[derive(Clone, Copy)]
struct Begin(Instant, Duration);

impl Begin {
    fn now() -> Self {
        Self(Instant::now(), cpu_time(ClockId::ProcessCPUTime))
    }

    fn rate(self, phase: &'static str, threads: usize, ops: usize) -> Rate {
        let ops_per_s = ops as f64 / self.0.elapsed().as_secs_f64();
        let cpu_ns = (cpu_time(ClockId::ProcessCPUTime) - self.1).as_nanos() as f64 / ops as f64;
        Rate { phase, threads, ops_per_s, cpu_ns }
    }
}

/// How fast `system` is with `objects` objects of [`OBJECT`] bytes, and with few:
///
/// - `pairs`: an object stored, the sixteenth before it freed;
/// - `replace`: of all objects a random one freed, another stored;
/// - `read`: objects copied out in random order, 64 in a call where there is one for many; `copy`: the same out
///   of plain memory;
/// - `free`: all of them, in random order; `given back`: the same, until their memory is the system's again.
///
/// `pairs` with one thread and with two, and `copy` and `read`, are the fastest of nine turns that are taken
/// in turn. Each thread stores, replaces and frees objects of its own.
pub fn rates<S: Shared>(system: &S, objects: usize, mut tell: impl FnMut(Rate)) {
    let of_pairs = in_turn([1, 2], |threads| {
        let begin = Begin::now();
        on_threads(&mut [(); 2][..threads], |_, ()| pairs(system));
        begin.rate("pairs", threads, threads * OPS)
    });
    of_pairs.into_iter().for_each(&mut tell);
    for threads in [1, 2] {
        let mut live: Vec<Vec<S::Name>> = (0..threads).map(|_| Vec::new()).collect();
        let before = (threads == 1).then(|| Plain::half(objects));
        on_threads(&mut live, |_, part| *part = stored(system, objects / threads));
        let begin = Begin::now();
        on_threads(&mut live, |seed, part| replace(system, part, seed));
        tell(begin.rate("replace", threads, threads * OPS));
        if let Some(before) = before {
            let plain = Plain { halves: [before, Plain::half(objects)] };
            read(system, &mut live[0], &plain, &mut tell);
        }
        on_threads(&mut live, |seed, part| Random::new(seed).shuffle(part));
        let begin = Begin::now();
        on_threads(&mut live, |_, part| system.free_all(mem::take(part)));
        let freed = objects / threads * threads;
        tell(begin.rate("free", threads, freed));
        if system.give_back() {
            tell(begin.rate("given back", threads, freed));
        }
    }
}

fn stored<S: Shared>(system: &S, objects: usize) -> Vec<S::Name> {
    (0..objects).map(|_| system.store(&[0x5a; OBJECT])).collect()
}

/// Memory with as many objects as there are of a system, side by side. One half is taken before these are stored, the
/// other after: on a virtual machine what a process gets first may be slower to reach by a quarter, or faster, than what
/// it gets later.
struct Plain {
    halves: [Vec<u8>; 2],
}

impl Plain {
    fn half(objects: usize) -> Vec<u8> {
        vec![1; objects.div_ceil(2) * OBJECT]
    }

    fn object(&self, n: usize) -> &[u8] {
        &self.halves[n % 2][n / 2 * OBJECT..][..OBJECT]
    }
}

/// Names, and numbers of plain objects, are put in the order in which they are read before the clock starts: who reads
/// knows what.
fn read<S: Shared>(system: &S, live: &mut [S::Name], plain: &Plain, tell: &mut impl FnMut(Rate)) {
    let mut out = [0; OBJECT];
    let mut random = Random::new(7);
    random.shuffle(live);
    let mut order: Vec<usize> = (0..live.len()).collect();
    random.shuffle(&mut order);
    let rounds = OPS.div_ceil(live.len());
    let both = in_turn([false, true], |ours| {
        let begin = Begin::now();
        for _ in 0..rounds {
            if ours {
                system.read(live, &mut out);
                continue;
            }
            for &n in &order {
                out.copy_from_slice(plain.object(n));
                black_box(&mut out);
            }
        }
        begin.rate(if ours { "read" } else { "copy" }, 1, rounds * live.len())
    });
    both.into_iter().for_each(tell);
}

/// Measures each of `two` [`TURNS`] times, by turns: the fastest.
fn in_turn<T: Copy>(two: [T; 2], mut measure: impl FnMut(T) -> Rate) -> [Rate; 2] {
    let faster = |a: Rate, b: Rate| if a.ops_per_s < b.ops_per_s { b } else { a };
    (1..TURNS).fold(two.map(&mut measure), |best, _| {
        let turn = two.map(&mut measure);
        [faster(best[0], turn[0]), faster(best[1], turn[1])]
    })
}

/// Does `work` with each of `parts` on a thread of its own; it also gets the part's number.
fn on_threads<T: Send>(parts: &mut [T], work: impl Fn(u64, &mut T) + Sync) {
    thread::scope(|scope| {
        for (n, part) in (0..).zip(parts) {
            let work = &work;
            scope.spawn(move || work(n, part));
        }
    });
}

fn pairs<S: Shared>(system: &S) {
    let bytes = [0x5a; OBJECT];
    let mut kept = [const { None }; FEW];
    for n in 0..OPS {
        if let Some(old) = kept[n % FEW].replace(system.store(&bytes)) {
            system.free(old);
        }
    }
    kept.into_iter().flatten().for_each(|name| system.free(name));
}

fn replace<S: Shared>(system: &S, live: &mut [S::Name], seed: u64) {
    let (bytes, mut random) = ([0x5a; OBJECT], Random::new(seed + 2));
    for _ in 0..OPS {
        let at = random.below(live.len());
        system.replace(&mut live[at], &bytes);
    }
}
