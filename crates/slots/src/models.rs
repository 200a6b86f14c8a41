//! Every interleaving of a few threads at one lock word, and at a few clusters.
//!
//! The word's own models have the real one, with the atomics of loom, so they say whether its orderings
//! are strong enough. Those of clusters have a word that wakes who waits for it (`lock_word::model`), so
//! that there is little enough to explore.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p octavo-slots --release models`: three minutes

use super::*;
use crate::lock_word::LockWord;
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

/// Every order in which threads are interrupted five times: all orders would be hours.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(5);
    // The checks at the end read all sets of all lanes.
    builder.max_branches = 5_000;
    builder.check(model);
}

const HALF: Order = Order::new(8).expect("an order");
const QUARTER: Order = Order::new(7).expect("an order");

fn slots(clusters: usize, cpus: usize) -> Arc<Slots> {
    let capacity = clusters * CLUSTER_SLOTS;
    Arc::new(Slots::new(Config { capacity, cpus, discards: false, clock: no_clock }).unwrap())
}

/// Runs `work` in two threads, waits for both and checks every table.
fn race<T: 'static>(
    slots: &Arc<Slots>,
    one: impl FnOnce(&Slots) -> T + 'static,
    two: impl FnOnce(&Slots) -> T + 'static,
) -> (T, T) {
    let other = Arc::clone(slots);
    let handle = thread::spawn(move || two(&other));
    let one = one(slots);
    let two = handle.join().unwrap();
    slots.check();
    (one, two)
}

/// A word whose state counts turns, and what it guards.
struct Guarded {
    word: LockWord,
    /// Loom fails when two threads reach it and neither sees that the other is done.
    cell: UnsafeCell<()>,
    /// Turns too, read and written as relaxed as the bits of a cluster.
    beside: AtomicU32,
}

impl Guarded {
    fn new() -> Self {
        let (word, cell) = (LockWord::new(0), UnsafeCell::new(()));
        Self { word, cell, beside: AtomicU32::new(0) }
    }

    /// What is done by who got this state out of the word; the state to put in.
    fn turn(&self, state: u64) -> u64 {
        self.cell.with_mut(|_| ());
        assert_eq!(u64::from(self.beside.load(Ordering::Relaxed)), state);
        self.beside.store(state as u32 + 1, Ordering::Relaxed);
        state + 1
    }
}

/// Runs `work` in this thread and in `others`.
fn share(others: usize, work: fn(&Guarded)) -> loom::sync::Arc<Guarded> {
    let guarded = loom::sync::Arc::new(Guarded::new());
    let others = (0..others).map(|_| {
        let other = guarded.clone();
        thread::spawn(move || work(&other))
    });
    let others: Vec<_> = others.collect();
    work(&guarded);
    others.into_iter().for_each(|thread| thread.join().unwrap());
    guarded
}

/// The word as it is in use, but nobody waits: see [`LockWord::put_last`].
#[test]
fn who_gets_a_state_out_of_a_word_sees_what_was_done_before() {
    explore(|| {
        share(2, |own| {
            for _ in 0..2 {
                if let Some(state) = own.word.try_take() {
                    own.word.put(own.turn(state));
                }
            }
        });
    });
}

/// Two threads only: of two that wait each yields to the other, for ever.
#[test]
fn who_waits_for_a_word_has_its_turn() {
    explore(|| {
        let guarded = share(1, |own| {
            for _ in 0..2 {
                let state = own.word.try_take().unwrap_or_else(|| own.word.take());
                own.word.put_last(own.turn(state));
            }
        });
        assert_eq!(guarded.word.try_take(), Some(4));
        assert_eq!(guarded.word.try_take(), None);
    });
}

#[test]
fn isolate_against_free() {
    explore(|| {
        let slots = slots(1, 2);
        let first = slots.alloc(HALF, 0).unwrap();
        let second = slots.alloc(HALF, 0).unwrap();
        let (freed, got) =
            race(&slots, move |s| s.free(first, 256).err().map(|_| first), |s| s.alloc(HALF, 1));
        assert_eq!(freed, None);
        assert!(got.is_none() || got == Some(first));
        slots.free(second, 256).unwrap();
        assert_eq!(slots.taken(), if got.is_some() { 256 } else { 0 });
    });
}

#[test]
fn last_free_against_allocation_by_the_hint() {
    explore(|| {
        let slots = slots(1, 1);
        let first = slots.alloc(HALF, 0).unwrap();
        let (_, got) = race(
            &slots,
            move |s| {
                s.free(first, 256).unwrap();
                None
            },
            |s| s.alloc(HALF, 0),
        );
        assert!(got.is_some(), "half of the cluster was free all the while");
        assert_eq!(slots.taken(), 256);
    });
}

#[test]
fn last_free_against_allocation_of_another_order() {
    explore(|| {
        let slots = slots(1, 2);
        let first = slots.alloc(HALF, 0).unwrap();
        let (_, got) = race(
            &slots,
            move |s| {
                s.free(first, 256).unwrap();
                None
            },
            |s| s.alloc(Order::MAX, 1),
        );
        assert_eq!(slots.taken(), if got.is_some() { 512 } else { 0 });
    });
}

#[test]
fn two_allocations_for_the_last_run() {
    explore(|| {
        let slots = slots(1, 2);
        let _first = slots.alloc(HALF, 0).unwrap();
        let (one, two) = race(&slots, |s| s.alloc(HALF, 0), |s| s.alloc(HALF, 1));
        assert!(one.is_none() || one != two);
        let got: Vec<_> = [one, two].into_iter().flatten().collect();
        assert_eq!(got.len(), 1, "one of them, and only one");
    });
}

/// The last free, where the allocation needs no more than the next run.
#[test]
fn last_free_against_allocation_of_the_next_run() {
    explore(|| {
        let slots = slots(1, 1);
        let first = slots.alloc(QUARTER, 0).unwrap();
        let (_, got) = race(
            &slots,
            move |s| {
                s.free(first, 128).unwrap();
                None
            },
            |s| s.alloc(QUARTER, 0),
        );
        assert!(got.is_some(), "most of the cluster was free all the while");
        assert_eq!(slots.taken(), 128);
    });
}

/// One of them has only to take the next run, the other fills the cluster.
#[test]
fn two_allocations_for_the_last_two_runs() {
    explore(|| {
        let slots = slots(1, 1);
        let held = [slots.alloc(QUARTER, 0), slots.alloc(QUARTER, 0)];
        let (one, two) = race(&slots, |s| s.alloc(QUARTER, 0), |s| s.alloc(QUARTER, 0));
        // Whoever comes second may find the lock held where it only tries it.
        assert!(one.is_some() || two.is_some());
        assert!(one != two && !held.contains(&one.or(two)));
        let given = 2 + one.iter().count() + two.iter().count();
        assert_eq!(slots.taken(), 128 * given);
    });
}

/// A device that is told, and notes of which cluster.
struct Told(loom::sync::atomic::AtomicU32);

impl devices::Device for Told {
    type Error = core::convert::Infallible;

    fn discard(&self, first: SlotId, _slots: usize) -> Result<(), Self::Error> {
        self.0.fetch_add(1 << split(first).0, Ordering::Relaxed);
        Ok(())
    }
}

/// A cluster is discarded or taken, and what is taken is not discarded any more.
#[test]
fn discard_against_allocation() {
    explore(|| {
        let config = Config { capacity: CLUSTER_SLOTS, cpus: 2, discards: true, clock: no_clock };
        let slots = Arc::new(Slots::new(config).unwrap());
        let first = slots.alloc(Order::MAX, 0).unwrap();
        slots.free(first, 512).unwrap();
        let told = Arc::new(Told(loom::sync::atomic::AtomicU32::new(0)));
        let telling = Arc::clone(&told);
        let (done, got) = race(
            &slots,
            move |s| s.discard(&*telling, 1).unwrap(),
            |s| usize::from(s.alloc(HALF, 1).is_some()),
        );
        assert_eq!(told.0.load(Ordering::Relaxed) as usize, done);
        assert!(done == 1 || got == 1, "a cluster that one of them skips the other has");
        assert_eq!(slots.taken(), 256 * got);
        let more = slots.discard(&*told, 1).unwrap();
        assert_eq!(more, usize::from(done == 0 && got == 0));
    });
}

/// The device of an allocation is taken away: what it got is moved, or it gets another.
#[test]
fn a_device_taken_away_against_an_allocation() {
    explore(|| {
        let device = |capacity| {
            Slots::new(Config { capacity, cpus: 2, discards: false, clock: no_clock }).unwrap()
        };
        // The second has a cluster for each thread: whose lock is held is skipped.
        let list = std::vec![(device(512), 1), (device(1024), 0)];
        let devices = Arc::new(devices::Devices::new(list, 2).unwrap());
        let held = Arc::new(loom::sync::Mutex::new(None));
        let (other, table) = (Arc::clone(&devices), Arc::clone(&held));
        let handle = thread::spawn(move || {
            let mut table = table.lock().unwrap();
            *table = other.alloc(Order::PAGE, 1);
        });
        let closed = devices.close(devices::DeviceId(0), |from, to| {
            let mut held = held.lock().unwrap();
            if *held != Some(from) {
                return devices::Moved::Unknown;
            }
            *held = Some(to);
            devices::Moved::Yes
        });
        handle.join().unwrap();
        let place = held.lock().unwrap().expect("there is room on the other device");
        assert!(closed.is_err() || place.device == devices::DeviceId(1));
        let taken = |n| devices.device(devices::DeviceId(n)).unwrap().taken();
        assert_eq!(taken(0) + taken(1), 1);
        (0..2).for_each(|n| devices.device(devices::DeviceId(n)).unwrap().check());
    });
}

#[test]
fn two_frees_of_one_folio() {
    explore(|| {
        let slots = slots(1, 1);
        let first = slots.alloc(HALF, 0).unwrap();
        let (one, two) = race(&slots, move |s| s.free(first, 256), move |s| s.free_many(&[first]));
        assert!(one.is_ok() != two.is_ok() || two.is_ok(), "{one:?} {two:?}");
        assert_eq!(slots.taken(), if one.is_ok() { 0 } else { 255 });
    });
}

#[test]
fn runs_for_many_folios_against_free() {
    explore(|| {
        let slots = slots(1, 1);
        let first = slots.alloc(HALF, 0).unwrap();
        let (_, got) = race(
            &slots,
            move |s| {
                s.free(first, 256).unwrap();
                0
            },
            |s| s.alloc_many(HALF, 0, &mut [SlotId::new(0); 2]),
        );
        assert!(got > 0, "half of the cluster was free all the while");
        assert_eq!(slots.taken(), 256 * got);
    });
}

#[test]
fn runs_for_many_folios_of_two_threads() {
    explore(|| {
        let slots = slots(2, 2);
        let _ = slots.alloc(HALF, 0).unwrap();
        let take = |cpu| {
            move |s: &Slots| {
                let mut out = [SlotId::new(0); 2];
                let got = s.alloc_many(HALF, cpu, &mut out);
                out[..got].to_vec()
            }
        };
        let (mut one, two) = race(&slots, take(0), take(1));
        one.extend(two);
        let given = one.len();
        one.sort_unstable_by_key(|slot| slot.get());
        one.dedup();
        // Whose lock is held is skipped, so a thread may find one less.
        assert!(one.len() == given && given <= 3 && slots.taken() == 256 * (1 + given), "{one:?}");
    });
}
