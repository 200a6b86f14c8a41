//! Once store, file and workspaces are made nothing needs an allocator: all that a store does with pages is done
//! while there is no memory to be had, and every page reads as it was put.
//!
//! The allocator is replaced for the whole of this program, C libraries included, by one that refuses from then
//! on. No pass before warms anything up. No test harness: whatever is refused is ours.

mod common;
#[path = "../../codec/tests/counting/mod.rs"]
mod counting;

use common::{TestArena, folio, page};
use octavo_backing::file::{FileDevice, Options};
use octavo_backing::{Backing, Cleaned, Config, Geometry, Member};
use octavo_codec::Codec;
use octavo_codec::deflate::{Learner, Level};
use octavo_crypt::{Crypt, Format, Key};
use octavo_page::{Handle, PAGE_SIZE, SlotId, Unit};
use octavo_pool::{ChainLength, Pool};
use octavo_store::{GetError, How, PutError, Scratch, Store};
use std::ffi::CString;
use std::hint::black_box;

const CODECS: [&str; 4] = ["lz4", "zstd:1", "deflate-canned:1", "deflate-dynamic:1"];
/// The one of them that learns tables from what is put.
const LEARNS: usize = 2;

/// Slots, and as many frames: more than the folios need at any time.
const PAGES: usize = 8192;
/// Pages of a folio, folios of a call, calls.
const FOLIO: usize = 16;
const BATCH: usize = 4;
const CALLS: usize = 60;

/// Stops the test; says why, for which there is memory again.
fn check(holds: bool, what: &str) {
    if !holds {
        counting::refuse(false);
        panic!("{what}");
    }
}

/// A store, what is to be put there, and where it is then.
struct Job {
    store: Store<TestArena>,
    arena: TestArena,
    /// As an evictor has it, and as the server.
    scratches: [Scratch; 2],
    codecs: [Codec; CODECS.len()],
    folios: Vec<Vec<u8>>,
    slots: Vec<Option<SlotId>>,
    room: Vec<u8>,
}

fn pool_config() -> octavo_pool::Config {
    let chain = ChainLength::new(8).expect("a length");
    octavo_pool::Config { chain, max_object: Unit::MAX.bytes(), max_objects: 2 * PAGES }
}

impl Job {
    fn new() -> Self {
        let arena = TestArena::new(4 * PAGES);
        arena.set_frames_left(PAGES);
        let config =
            octavo_store::Config { capacity_pages: PAGES, pool: pool_config(), cpus: 2, seed: 1 };
        let mut store = Store::backed(arena.clone(), config).expect("a valid size");
        store.set_learner(Learner::new(Level::L1, Unit::MAX.bytes()));
        let codecs = CODECS.map(|name| name.parse().expect("a codec"));
        let scratches = [true, false].map(|offers| {
            let mut scratch = Scratch::new(&codecs);
            store.tell_tables(&mut scratch);
            if offers {
                scratch.offer_units();
            }
            scratch
        });
        let folios = (0..BATCH * CALLS).map(|n| folio(n as u64, FOLIO, false)).collect();
        let slots = vec![None; BATCH * CALLS];
        let room = vec![0; FOLIO * PAGE_SIZE];
        Self { store, arena, scratches, codecs, folios, slots, room }
    }

    fn attach(&self, device: FileDevice) {
        let crypt =
            Crypt::new(Key::ephemeral().expect("a key"), Format::PAGES).expect("locked memory");
        let geometry = Geometry::new(256 << 10, 128 << 10).expect("powers of two");
        let config = Config { geometry, buffers: 8, readers: 2, clock: || 1 };
        let members = vec![Member { device, crypt, priority: 0 }];
        self.store.attach(Backing::new(members, config).expect("a backing"));
    }

    /// Puts the folios that are nowhere, each call by another codec in another unit; what does not fit is kept as
    /// it is.
    fn put(&mut self) {
        for call in 0..CALLS {
            let (codec, unit) = (self.codecs[call % CODECS.len()], Unit::ALL[call % 3]);
            let how = How {
                codec,
                unit,
                cpu: call % 2,
                fits_in: unit.bytes() / 8 * 7,
                refusal_bytes: PAGE_SIZE + 1,
            };
            let of_call = call * BATCH..(call + 1) * BATCH;
            let slots = &mut self.slots[of_call.clone()];
            if slots.iter().any(Option::is_some) {
                continue;
            }
            let folios: [&[u8]; BATCH] =
                std::array::from_fn(|n| &self.folios[of_call.start + n][..]);
            let mut out = [Err(PutError::OutOfSlots); BATCH];
            self.store.put(&mut self.scratches[0], how, &folios, &mut out);
            for (slot, put) in slots.iter_mut().zip(out) {
                *slot = put.ok();
                check(slot.is_some(), "a folio found no room");
            }
        }
    }

    /// Has tables be learnt from folios that are put and freed again.
    fn learn(&mut self) {
        let (codec, unit, refusal_bytes) = (self.codecs[LEARNS], Unit::K4, PAGE_SIZE + 1);
        let how = How { codec, unit, cpu: 0, fits_in: unit.bytes(), refusal_bytes };
        let mut left = 2000;
        while !self.store.learn() {
            check(left > 0, "no tables are learnt");
            left -= 1;
            let folio = &self.folios[left % self.folios.len()];
            let mut out = [Err(PutError::OutOfSlots)];
            self.store.put(&mut self.scratches[0], how, &[folio], &mut out);
            match out {
                [Ok(slot)] => self.store.free_run(slot, FOLIO, u64::MAX),
                [Err(_)] => check(false, "a folio to learn from found no room"),
            }
        }
    }

    /// Reads each folio whole, and a page of it alone; looks at what it is.
    fn read(&mut self) {
        let Self { store, scratches, folios, slots, room, .. } = self;
        for (n, (folio, slot)) in folios.iter().zip(slots).enumerate() {
            let Some(slot) = *slot else { continue };
            check(store.get(&mut scratches[1], slot, room) == Ok(()), "a folio is not there");
            check(room == folio, "a folio reads as another");
            let n = n % FOLIO;
            let (page, wanted) = (&mut room[..PAGE_SIZE], &folio[n * PAGE_SIZE..][..PAGE_SIZE]);
            let at = slot.offset(n as u32);
            check(store.get(&mut scratches[1], at, page) == Ok(()), "a page is not there");
            check(page == wanted, "a page reads as another");
            check(store.matches(at, wanted) && store.unit_of(at).is_some(), "a page is none");
        }
    }

    /// Writes back until nothing is left to write; how many objects went.
    fn write_back(&self) -> usize {
        let mut objects = 0;
        loop {
            let done = self.store.write_back();
            check(done.stopped.is_none(), "the file takes no more");
            objects += done.objects;
            if done.nothing {
                return objects;
            }
        }
    }

    /// Cleans while something is worth it; how many segments.
    fn clean(&mut self) -> usize {
        let mut cleaned = 0;
        while let Cleaned::Segment { .. } = self.store.clean(&mut self.scratches[0]) {
            cleaned += 1;
        }
        cleaned
    }

    /// Frees most folios, each in one of three ways.
    fn free_most(&mut self) {
        for (n, slot) in self.slots.iter_mut().enumerate() {
            if (n / BATCH).is_multiple_of(4) {
                continue;
            }
            let Some(first) = slot.take() else { continue };
            let all: [SlotId; FOLIO] = std::array::from_fn(|n| first.offset(n as u32));
            match n % 3 {
                0 => self.store.free(&all),
                1 => all.iter().for_each(|slot| self.store.free(&[*slot])),
                _ => self.store.free_run(first, FOLIO, u64::MAX),
            }
            let read = self.store.get(&mut self.scratches[1], first, &mut self.room[..PAGE_SIZE]);
            check(read == Err(GetError::Empty { slot: first }), "a page was freed and is there");
        }
    }

    fn bring_back(&mut self) {
        let mut from = Some(0);
        while let Some(at) = from {
            from = self.store.bring_back_from(&mut self.scratches[0], at).unwrap_or_else(|_| {
                check(false, "no room for what comes back");
                None
            });
        }
        check(self.store.away_objects() == 0, "something stays away");
    }

    fn compact(&self) {
        while !self.store.tidy(64).dense {}
        while !self.store.compact(64).dense {}
    }

    /// Puts noise until there are no frames, which is an error like others.
    fn fill_up(&mut self, noise: &[u8]) {
        let (codec, unit) = (self.codecs[0], Unit::K4);
        let how = How { codec, unit, cpu: 0, fits_in: 4000, refusal_bytes: 0 };
        let mut out = [Ok(SlotId::new(0)); 1];
        self.store.put(&mut self.scratches[0], how, &[noise], &mut out);
        check(out == [Err(PutError::DoesNotFit)], "what does not fit is taken");
        self.arena.set_frames_left(0);
        let how = How { refusal_bytes: PAGE_SIZE + 1, ..how };
        let slot = loop {
            self.store.put(&mut self.scratches[0], how, &[noise], &mut out);
            match out {
                [Ok(slot)] => self.store.poison(slot),
                _ => break out,
            }
        };
        check(slot == [Err(PutError::OutOfFrames)], "another error");
        self.arena.set_frames_left(PAGES);
    }
}

/// All that a store does, with the file and without.
fn work(job: &mut Job, noise: &[u8]) -> (usize, usize) {
    job.put();
    job.learn();
    job.read();
    job.compact();
    job.read();
    let written = job.write_back();
    check(written > 0, "nothing was written back");
    job.read();
    job.free_most();
    let cleaned = job.clean();
    job.read();
    job.put();
    job.read();
    job.bring_back();
    job.read();
    job.free_most();
    job.compact();
    job.read();
    job.write_back();
    job.fill_up(noise);
    job.read();
    let backing = job.store.backing();
    let backing = backing.as_ref().expect("it was attached");
    backing.flush();
    backing.tend();
    job.read();
    let stats = backing.stats();
    check(stats.lost_reads == 0 && stats.failed_writes == 0, "the file has failed");
    check(backing.trouble().is_none(), "the file has trouble");
    (written, cleaned)
}

/// The calls of the pool that a store does without: many objects freed at once.
fn free_many(pool: &Pool<TestArena>, objects: &[Vec<u8>], handles: &mut [Handle]) {
    for (some, handles) in objects.chunks(16).zip(handles.chunks_mut(16)) {
        let mut bytes = [&[][..]; 16];
        bytes.iter_mut().zip(some).for_each(|(to, object)| *to = object);
        let stored = pool.store_many(&bytes[..some.len()], handles);
        check(stored == (some.len(), Ok(())), "an object found no room");
    }
    let read = |handles: &[Handle], objects: &[Vec<u8>]| {
        pool.read_many(handles, |n, bytes| check(bytes == Ok(&objects[n]), "another object"));
    };
    read(handles, objects);
    let half = handles.len() / 2;
    let freed = pool.free_many(&handles[..half]);
    check((freed.objects, freed.refused) == (half, 0), "a handle was refused");
    while !pool.compact(64).dense {}
    read(&handles[half..], &objects[half..]);
    let freed = pool.free_many(handles);
    check((freed.objects, freed.refused) == (handles.len() - half, half), "freed twice");
    while !pool.tidy(64).dense {}
    check(pool.stats().objects == 0, "an object is left");
}

fn main() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = place.path().join("file");
    let path = CString::new(path.into_os_string().into_encoded_bytes()).expect("no zero byte");
    let options = Options { size: Some(48 << 20), ..Options::default() };
    let device = FileDevice::open(&path, options).expect("a file");
    let mut job = Job::new();
    job.attach(device);
    let noise = page(2);
    let pool = Pool::new(TestArena::new(4 * PAGES), pool_config()).expect("a pool");
    let objects: Vec<_> = (0..6000).map(|n| vec![n as u8; 1 + n * 7919 % 3000]).collect();
    let mut handles = vec![Handle::from_bits(0); objects.len()];

    assert!(counting::calls() > 0, "the allocator is not watched");
    counting::refuse(true);
    let given = black_box(Vec::<u8>::new()).try_reserve_exact(1);
    check(given.is_err(), "the allocator has memory all the same");
    let before = counting::calls();
    let (written, cleaned) = work(&mut job, &noise);
    free_many(&pool, &objects, &mut handles);
    counting::refuse(false);
    let calls = counting::calls() - before;
    assert_eq!(calls, 0, "calls of the allocator");
    assert!(cleaned > 0, "nothing was cleaned");
    println!(
        "{} folios, {written} objects written back, {cleaned} segments cleaned, no memory asked for",
        job.folios.len()
    );
}
