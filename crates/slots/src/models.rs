//! Every interleaving of a few threads at a few clusters.
//!
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p octavo-slots --release models`

use super::*;
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;

const HALF: Order = Order::new(8).expect("an order");

fn slots(clusters: usize, cpus: usize) -> Arc<Slots> {
    let capacity = clusters * CLUSTER_SLOTS;
    Arc::new(Slots::new(Config { capacity, cpus }).unwrap())
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

#[test]
fn isolate_against_free() {
    loom::model(|| {
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
    loom::model(|| {
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
    loom::model(|| {
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
    loom::model(|| {
        let slots = slots(1, 2);
        let _first = slots.alloc(HALF, 0).unwrap();
        let (one, two) = race(&slots, |s| s.alloc(HALF, 0), |s| s.alloc(HALF, 1));
        assert!(one.is_none() || one != two);
        let got: Vec<_> = [one, two].into_iter().flatten().collect();
        assert_eq!(got.len(), 1, "one of them, and only one");
    });
}

#[test]
fn two_frees_of_one_folio() {
    loom::model(|| {
        let slots = slots(1, 1);
        let first = slots.alloc(HALF, 0).unwrap();
        let (one, two) = race(&slots, move |s| s.free(first, 256), move |s| s.free_many(&[first]));
        assert!(one.is_ok() != two.is_ok() || two.is_ok(), "{one:?} {two:?}");
        assert_eq!(slots.taken(), if one.is_ok() { 0 } else { 255 });
    });
}
