//! Every interleaving of a reader, a freer and compaction, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p octavo-pool --lib models`
//!
//! loom does not see the arena's raw memory. What it lets happen there shows in the bytes: the
//! arena spoils pages that come and go, and each object is filled with a byte of its own.

use crate::tests::{TestArena, store_in};
use crate::{ChainLength, Config, Handle, Pool};
use loom::sync::Arc;
use loom::thread;

const LEN: usize = 1500;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

fn pool() -> Arc<Pool<TestArena>> {
    let config = Config { chain: ChainLength::MIN, max_object: 4096, max_objects: 6 };
    Arc::new(Pool::new(TestArena::new(4), config).expect("a pool"))
}

fn store(pool: &Pool<TestArena>, byte: u8) -> Handle {
    pool.store(&[byte; LEN]).expect("room")
}

/// Two zspages with one object each, so that compaction moves the first, filled with 1, beside the
/// second, filled with 2.
fn two_zspages(pool: &Pool<TestArena>) -> (Handle, Handle) {
    let objects = [1, 0, 2, 0].map(|byte| store(pool, byte));
    pool.free(objects[1]).expect("live");
    pool.free(objects[3]).expect("live");
    assert_eq!(pool.stats().pages, 2);
    (objects[0], objects[2])
}

/// Two lanes with one object each, so that compaction moves one of them, filled with 1 and 2, beside the other.
fn two_lanes(pool: &Pool<TestArena>) -> (Handle, Handle) {
    let [first, second] =
        [(0, 1), (1, 2)].map(|(lane, byte)| store_in(pool, lane, &[byte; LEN]).expect("room"));
    assert_eq!(pool.stats().pages, 2);
    (first, second)
}

/// Reads and looks twice, with a step between that depends on what the others do, so that loom
/// tries them before it and after. False when the handle names nothing.
fn reads(pool: &Pool<TestArena>, handle: Handle, byte: u8) -> bool {
    let look = |bytes: &[u8]| {
        assert!(bytes.len() == LEN && bytes.iter().all(|&b| b == byte));
        pool.freeable_pages();
        assert!(bytes.iter().all(|&b| b == byte));
    };
    pool.read(handle, look).is_ok()
}

/// A thread that frees an object, once.
fn frees(pool: &Arc<Pool<TestArena>>, handle: Handle) -> thread::JoinHandle<()> {
    let pool = pool.clone();
    thread::spawn(move || assert_eq!(pool.free(handle), Ok(LEN)))
}

#[test]
fn read_beside_free_and_reuse() {
    explore(|| {
        let pool = pool();
        let handle = store(&pool, 1);
        let reader = {
            let pool = pool.clone();
            thread::spawn(move || reads(&pool, handle, 1))
        };
        assert_eq!(pool.free(handle), Ok(LEN));
        let next = store(&pool, 2);
        reader.join().expect("no wrong byte");
        assert!(reads(&pool, next, 2));
        assert_eq!(pool.free(next), Ok(LEN));
        pool.check();
        assert_eq!(pool.arena().committed(), 0);
    });
}

/// Of two objects on a page each, which compaction may bring together, the first is read meanwhile.
fn reads_beside_compaction(objects: fn(&Pool<TestArena>) -> (Handle, Handle)) {
    explore(move || {
        let pool = pool();
        let (first, second) = objects(&pool);
        let reader = {
            let pool = pool.clone();
            thread::spawn(move || assert!(reads(&pool, first, 1)))
        };
        let done = pool.compact(10);
        reader.join().expect("the object is there all the time");
        assert_eq!(pool.stats().pages, 2 - done.pages_freed);
        assert!(reads(&pool, first, 1) && reads(&pool, second, 2));
        pool.check();
    });
}

#[test]
fn read_beside_compaction() {
    reads_beside_compaction(two_zspages);
}

#[test]
fn free_beside_compaction() {
    explore(|| {
        let pool = pool();
        let (first, second) = two_zspages(&pool);
        let freer = frees(&pool, first);
        pool.compact(10);
        freer.join().expect("freed once");
        assert!(!reads(&pool, first, 1) && reads(&pool, second, 2));
        assert_eq!(pool.stats().pages, 1);
        pool.check();
    });
}

#[test]
fn read_beside_free_beside_compaction() {
    explore(|| {
        let pool = pool();
        let (first, second) = two_zspages(&pool);
        let reader = {
            let pool = pool.clone();
            thread::spawn(move || reads(&pool, first, 1))
        };
        let freer = frees(&pool, first);
        pool.compact(10);
        reader.join().expect("no wrong byte");
        freer.join().expect("freed once");
        assert!(reads(&pool, second, 2));
        assert_eq!(pool.stats().pages, 1);
        pool.check();
    });
}

#[test]
fn read_beside_a_move_to_another_lane() {
    reads_beside_compaction(two_lanes);
}

#[test]
fn free_beside_a_move_to_another_lane() {
    explore(|| {
        let pool = pool();
        let (first, second) = two_lanes(&pool);
        let freer = frees(&pool, first);
        pool.compact(10);
        freer.join().expect("freed once");
        assert!(!reads(&pool, first, 1) && reads(&pool, second, 2));
        assert_eq!((pool.stats().objects, pool.stats().pages), (1, 1));
        pool.check();
        assert_eq!(pool.free(second), Ok(LEN));
        pool.check();
        assert_eq!(pool.arena().committed(), 0);
    });
}

#[test]
fn two_compact_lanes_of_each_other() {
    explore(|| {
        let pool = pool();
        let (first, second) = two_lanes(&pool);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.compact(10).moved)
        };
        pool.compact(10);
        other.join().expect("an answer");
        assert!(reads(&pool, first, 1) && reads(&pool, second, 2));
        assert_eq!(pool.stats().pages, pool.arena().committed());
        pool.check();
    });
}

#[test]
fn store_beside_a_move_to_another_lane() {
    explore(|| {
        let pool = pool();
        let (first, second) = two_lanes(&pool);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || store(&pool, 3))
        };
        pool.compact(10);
        let third = other.join().expect("room");
        assert!(reads(&pool, first, 1) && reads(&pool, second, 2) && reads(&pool, third, 3));
        pool.check();
    });
}

#[test]
fn frees_beside_who_holds_the_lane() {
    explore(|| {
        let pool = pool();
        let (first, second) = two_zspages(&pool);
        let freer = frees(&pool, first);
        let other = frees(&pool, second);
        // Holds the lanes one after the other.
        pool.freeable_pages();
        freer.join().expect("freed once");
        other.join().expect("freed once");
        assert_eq!(pool.stats().objects, 0);
        pool.check();
        assert_eq!(pool.arena().committed(), 0);
    });
}

#[test]
fn two_frees_of_one_object() {
    explore(|| {
        let pool = pool();
        let handle = store(&pool, 1);
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.free(handle).is_ok())
        };
        let here = pool.free(handle).is_ok();
        assert!(here != other.join().expect("an answer"), "exactly one of them");
        pool.check();
        assert_eq!(pool.arena().committed(), 0);
    });
}

#[test]
fn read_beside_free_many_and_reuse() {
    explore(|| {
        let pool = pool();
        let handles = [1, 2].map(|byte| store(&pool, byte));
        let reader = {
            let pool = pool.clone();
            thread::spawn(move || reads(&pool, handles[0], 1))
        };
        assert_eq!(pool.free_many(&handles).objects, 2);
        let next = store(&pool, 3);
        reader.join().expect("no wrong byte");
        assert!(reads(&pool, next, 3) && !reads(&pool, handles[1], 2));
        assert_eq!(pool.free(next), Ok(LEN));
        pool.tidy(100);
        pool.check();
        assert_eq!(pool.arena().committed(), 0);
    });
}

#[test]
fn two_calls_free_the_same() {
    explore(|| {
        let pool = pool();
        let handles = [1, 2].map(|byte| store(&pool, byte));
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.free_many(&handles).objects)
        };
        let here = pool.free_many(&[handles[1], handles[0], handles[1]]).objects;
        assert_eq!(here + other.join().expect("an answer"), 2);
        pool.tidy(100);
        pool.check();
        assert_eq!(pool.arena().committed(), 0);
    });
}

#[test]
fn two_calls_share_a_zspage() {
    explore(|| {
        let pool = pool();
        let handles = [1, 2].map(|byte| store(&pool, byte));
        let other = {
            let pool = pool.clone();
            thread::spawn(move || pool.free_many(&handles[..1]).objects)
        };
        assert_eq!(pool.free_many(&handles[1..]).objects, 1);
        // May find a razed zspage before the other thread has retired its handle.
        pool.tidy(100);
        let next = store(&pool, 3);
        assert_eq!(other.join().expect("an answer"), 1);
        assert!(reads(&pool, next, 3));
        assert_eq!(pool.free(next), Ok(LEN));
        pool.tidy(100);
        pool.check();
        assert_eq!(pool.arena().committed(), 0);
    });
}

#[test]
fn two_threads_store() {
    explore(|| {
        let pool = pool();
        let other = {
            let pool = pool.clone();
            thread::spawn(move || {
                let handle = store(&pool, 1);
                assert!(reads(&pool, handle, 1));
                handle
            })
        };
        let here = store(&pool, 2);
        let there = other.join().expect("stored");
        assert!(here != there && reads(&pool, here, 2) && reads(&pool, there, 1));
        pool.check();
    });
}

#[test]
fn many_are_stored_beside_one() {
    explore(|| {
        let pool = pool();
        let other = {
            let pool = pool.clone();
            thread::spawn(move || store(&pool, 3))
        };
        let mut handles = [Handle::from_bits(0); 2];
        let objects: [&[u8]; 2] = [&[1; LEN], &[2; LEN]];
        assert_eq!(pool.store_many(&objects, &mut handles), (2, Ok(())));
        let there = other.join().expect("stored");
        assert!(reads(&pool, handles[0], 1) && reads(&pool, handles[1], 2));
        assert!(reads(&pool, there, 3));
        pool.check();
    });
}

#[test]
fn an_object_is_held_beside_free_and_reuse() {
    explore(|| {
        let pool = pool();
        let handle = store(&pool, 1);
        let reader = {
            let pool = pool.clone();
            thread::spawn(move || {
                let Ok(held) = pool.pin(handle) else { return };
                pool.freeable_pages();
                assert!(held.len() == LEN && held.iter().all(|&b| b == 1));
            })
        };
        assert_eq!(pool.free(handle), Ok(LEN));
        let next = store(&pool, 2);
        reader.join().expect("no wrong byte");
        assert!(reads(&pool, next, 2));
        assert_eq!(pool.free(next), Ok(LEN));
        pool.check();
        assert_eq!(pool.arena().committed(), 0);
    });
}
