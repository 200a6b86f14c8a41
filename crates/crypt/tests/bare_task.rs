//! The way of writeback, on a task that libc knows nothing of: pages of a reserve, waited for, and
//! sectors in them. No thread-local storage, and no call of libc's allocator from the making of a key
//! to the last page.
//!
//! The allocator is replaced for the whole of this program by one that counts and passes on. No
//! test harness: whatever is counted is ours.
#![allow(unsafe_code)] // A task that shares this one's memory.

#[path = "../../codec/tests/counting/mod.rs"]
mod counting;

use octavo_crypt::{Crypt, Format, Key, Piece, Sector};
use octavo_mempool::source::NoSource;
use octavo_mempool::{Config, Ground, Mempool, Wait};
use octavo_page::PAGE_SIZE;
use octavo_sys::task::{self, Kinship};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Pages that are written at once.
const PAGES: usize = 64;

/// What the task works on, and how far it is.
struct Job {
    pool: Mempool<NoSource>,
    crypt: Crypt,
    plain: Vec<u8>,
    state: AtomicUsize,
}

const WAITS: usize = 1;
const RIGHT: usize = 2;
const WRONG: usize = 3;

/// Gets pages, for which it has to wait, encrypts into them, and looks whether they come back.
extern "C" fn write_back(job: usize) -> ! {
    // SAFETY: the main thread keeps the job until this has said how it ended.
    let job = unsafe { &*(job as *const Job) };
    let mut places = [const { None }; PAGES];
    job.state.store(WAITS, Ordering::SeqCst);
    job.pool.alloc_bulk(&mut places, Wait::Yes);
    {
        let mut pages = places.iter_mut().flatten().zip(job.plain.chunks_exact(PAGE_SIZE));
        let mut pieces: [Piece; PAGES] = std::array::from_fn(|n| {
            let (page, plain) = pages.next().expect("a page for each");
            Piece::between(at(n), plain, page.bytes_mut())
        });
        job.crypt.encrypt(&mut pieces);
    }
    let mut is_right = true;
    let pages = places.iter_mut().flatten().zip(job.plain.chunks_exact(PAGE_SIZE));
    for (n, (page, plain)) in pages.enumerate() {
        is_right &= page.bytes() != plain;
        job.crypt.decrypt(&mut [Piece::in_place(at(n), page.bytes_mut())]);
        is_right &= page.bytes() == plain;
    }
    job.pool.free_bulk(&mut places);
    job.state.store(if is_right { RIGHT } else { WRONG }, Ordering::SeqCst);
    task::exit(0)
}

/// The sector of page `n`.
fn at(n: usize) -> Sector {
    Sector::at((n * PAGE_SIZE) as u64)
}

/// Waits until the task is in a state after `state`, and gives that.
fn state_after(job: &Job, state: usize) -> usize {
    for _ in 0..20_000 {
        let now = job.state.load(Ordering::SeqCst);
        if now > state {
            return now;
        }
        task::sleep(Duration::from_millis(1));
    }
    panic!("the task does not get beyond state {state}");
}

fn main() {
    let plain: Vec<u8> = (0..PAGES * PAGE_SIZE).map(|i| (i / 7) as u8).collect();
    let ground = Ground::new(PAGES, c"test").expect("room");
    let config = Config { cpus: 1, clock: || 0 };
    let pool = Mempool::new(ground, NoSource, config).expect("memory");
    let mut places = black_box([const { None }; PAGES]);
    assert!(counting::calls() > 0, "the allocator is not watched");

    let before = counting::calls();
    let key = Key::ephemeral().expect("a key");
    let crypt = Crypt::new(key, Format::PAGES).expect("locked memory");
    let job = Job { pool, crypt, plain, state: AtomicUsize::new(0) };
    job.pool.alloc_bulk(&mut places, Wait::Yes);
    let address = (&raw const job).expose_provenance();
    task::spawn(Kinship::Process, write_back, address).expect("a task");
    state_after(&job, 0);
    places.into_iter().flatten().for_each(|page| job.pool.free(0, page));
    assert_eq!(state_after(&job, WAITS), RIGHT, "the task got something else back");
    let calls = counting::calls() - before;
    assert_eq!(calls, 0, "calls of the allocator");
    println!("{PAGES} pages written and read by a bare task, no call of the allocator");
}
