//! Every interleaving of two engines at the places of a queue.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p octavo-accel --release --lib models`

use super::discover::{Device, Found, Queue};
use super::fleet::Fleet;
use loom::thread;
use std::sync::Arc;
use std::vec;

fn fleet(size: u32) -> Arc<Fleet> {
    let queues = vec![Queue { number: 0, size, is_dedicated: true }];
    let devices = vec![Device { number: 1, package: None, queues }];
    Arc::new(Fleet::new(&Found { devices, ..Found::default() }))
}

/// Takes a place if there is one and gives it back; whether there was one.
fn use_once(fleet: &Fleet, size: u32) -> bool {
    let queue = &fleet.queues()[0];
    let taken = queue.take();
    assert!(queue.in_flight() <= size, "more commands than places");
    if taken {
        queue.give_back();
    }
    taken
}

#[test]
fn a_queue_is_never_overfilled_and_one_of_two_gets_the_last_place() {
    loom::model(|| {
        let fleet = fleet(1);
        let other = Arc::clone(&fleet);
        let two = thread::spawn(move || use_once(&other, 1));
        let one = use_once(&fleet, 1);
        assert!(two.join().unwrap() || one);
        assert_eq!(fleet.queues()[0].in_flight(), 0);
    });
}
