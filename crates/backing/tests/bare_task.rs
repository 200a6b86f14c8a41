//! The way of writeback on a task that libc knows nothing of: objects written to a file through a ring,
//! read, moved by the cleaner, freed. No thread-local storage, and no call of libc's allocator from the
//! first object to the last.
//!
//! The allocator is replaced for the whole of this program by one that counts and passes on. No
//! test harness: whatever is counted is ours.
#![allow(unsafe_code)] // A task that shares this one's memory.

#[path = "../../codec/tests/counting/mod.rs"]
mod counting;

use octavo_backing::file::{FileDevice, Options};
use octavo_backing::{
    Backing, Cleaned, Config, Geometry, Member, Object, Owner, Owners, Place, Reader, WriteError,
};
use octavo_crypt::{Crypt, Format, Key};
use octavo_sys::task::{self, Kinship};
use std::ffi::CString;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const OWNERS: usize = 600;
const BATCH: usize = 30;
const LEN: usize = 1500;
const ROUNDS: u8 = 12;

/// Owners by number, each with the bits of its place.
struct Table([AtomicU64; OWNERS]);

impl Table {
    fn place(&self, n: usize) -> Option<Place> {
        Place::from_bits(self.0[n].load(Ordering::Acquire))
    }
}

impl Owners for Table {
    fn lives(&self, owner: Owner, place: Place) -> bool {
        self.place(owner.get() as usize) == Some(place)
    }

    fn moved(&self, owner: Owner, from: Place, to: Place) -> bool {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let word = &self.0[owner.get() as usize];
        word.compare_exchange(from.bits(), to.bits(), order.0, order.1).is_ok()
    }
}

/// What the task works with, and how far it is.
struct Job {
    backing: Backing<FileDevice>,
    reader: Reader,
    owners: Table,
    /// The round in which each owner's object was written.
    rounds: [u8; OWNERS],
    state: AtomicUsize,
}

const RIGHT: usize = 1;
const WRONG: usize = 2;

fn owner(n: usize) -> Owner {
    Owner::new(n as u64).expect("a small number")
}

/// Byte `at` of what owner `n` has in a round.
fn byte(n: usize, round: u8, at: usize) -> u8 {
    (n as u8).wrapping_mul(31) ^ round.wrapping_mul(77) ^ (at as u8).wrapping_mul(13)
}

fn write(job: &mut Job, first: usize, round: u8) -> bool {
    job.rounds[first..first + BATCH].fill(round);
    let bytes: [[u8; LEN]; BATCH] =
        std::array::from_fn(|n| std::array::from_fn(|at| byte(first + n, round, at)));
    let objects: [Object; BATCH] =
        std::array::from_fn(|n| Object { owner: owner(first + n), bytes: &bytes[n] });
    let mut places = [Err(WriteError::NoRoom); BATCH];
    job.backing.write(&objects, &mut places);
    for (n, place) in (first..).zip(places) {
        let Ok(place) = place else { return false };
        let before = job.owners.0[n].swap(place.bits(), Ordering::AcqRel);
        Place::from_bits(before).into_iter().for_each(|before| job.backing.free(&[before]));
    }
    true
}

fn reads(job: &mut Job, n: usize) -> bool {
    let round = job.rounds[n];
    let Some(place) = job.owners.place(n) else { return false };
    let found = job.backing.read(&mut job.reader, &job.owners, owner(n), place);
    found.is_ok_and(|found| (0..LEN).all(|at| found.bytes()[at] == byte(n, round, at)))
}

/// Writes, reads and cleans; whether all was as it should be.
fn work(job: &mut Job) -> bool {
    let mut cleaned = 0;
    for round in 0..ROUNDS {
        // All of them at first, then some, so that what is old and what is new lie side by side.
        let some = |first: &usize| round == 0 || (first / BATCH * 7 + usize::from(round)) % 5 < 2;
        for first in (0..OWNERS).step_by(BATCH).filter(some) {
            if !write(job, first, round) || !reads(job, first) {
                return false;
            }
        }
        while let Cleaned::Segment { .. } = job.backing.clean(&mut job.reader, &job.owners) {
            cleaned += 1;
        }
    }
    job.backing.flush();
    let right = (0..OWNERS).all(|n| reads(job, n));
    let stats = job.backing.stats();
    right && cleaned > 0 && stats.lost_reads == 0 && stats.failed_writes == 0
}

extern "C" fn begin(job: usize) -> ! {
    // SAFETY: the main thread keeps the job, and leaves it alone, until this has said how it ended.
    let job = unsafe { &mut *(job as *mut Job) };
    let state = if work(job) { RIGHT } else { WRONG };
    job.state.store(state, Ordering::SeqCst);
    task::exit(0)
}

fn main() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = place.path().join("file");
    let path = CString::new(path.into_os_string().into_encoded_bytes()).expect("no zero byte");
    let geometry = Geometry::new(64 << 10, 16 << 10).expect("powers of two");
    let options = Options { size: Some(2 << 20), ..Options::default() };
    let device = FileDevice::open(&path, options).expect("a file");
    let crypt = Crypt::new(Key::ephemeral().expect("a key"), Format::PAGES).expect("locked memory");
    let config = Config { geometry, buffers: 8, readers: 1, clock: || 1 };
    let backing = Backing::new(vec![Member { device, crypt, priority: 0 }], config);
    let backing = backing.expect("a backing");
    let reader = Reader::default();
    let owners = Table(std::array::from_fn(|_| AtomicU64::new(0)));
    let mut job =
        black_box(Job { backing, reader, owners, rounds: [0; OWNERS], state: AtomicUsize::new(0) });
    assert!(counting::calls() > 0, "the allocator is not watched");

    let before = counting::calls();
    let address = (&raw mut job).expose_provenance();
    task::spawn(Kinship::Process, begin, address).expect("a task");
    let state = &raw const job.state;
    let mut left = 60_000;
    // SAFETY: the job lives on this stack; its state is an atomic.
    while unsafe { &*state }.load(Ordering::SeqCst) == 0 {
        assert!(left > 0, "the task does not end");
        left -= 1;
        task::sleep(Duration::from_millis(1));
    }
    let calls = counting::calls() - before;
    assert_eq!(job.state.load(Ordering::SeqCst), RIGHT, "{:?}", job.backing.stats());
    assert_eq!(calls, 0, "calls of the allocator");
    let ways = job.backing.ways().next().expect("one device");
    println!("{:?}\n{ways:?}\nno call of the allocator", job.backing.stats());
}
