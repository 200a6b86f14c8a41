//! How fast objects go out and come back, beside what the disk and the processor could do at most.
//!
//! ```text
//!   written        objects ──► backing ──► file                        ratio
//!   raw disk       the same bytes, as they are, the same device       ─┐
//!   processor      AES, checksum and copy of them, one after another  ─┴─ the smaller
//! ```
//! All of them take turns, and a ratio is the median of the ratios in each round. What the processor does alone
//! is timed by the thread's time on it, and so is writing, once more: what else the machine does falls on
//! whoever needs a processor, and on a raw disk hardly at all.

use super::target::{CODEC, Owned, Target, UNDER_WAY, UNIT};
use super::{WritebackError, mb_s, median};
use octavo_backing::device::{Device, Tag};
use octavo_backing::file::FileDevice;
use octavo_backing::{Backing, Geometry, Object, Owner, Reader, WriteError};
use octavo_codec::Workspace;
use octavo_crypt::{Crypt, Format, Key, Piece, Sector};
use octavo_mempool::source::NoSource;
use octavo_mempool::{Config, Ground, MAX_BULK, Mempool, Page, Wait};
use octavo_page::PAGE_SIZE;
use octavo_sys::disk::Scatter;
use octavo_sys::file::Fd;
use rustix::time::ClockId;
use std::hint::black_box;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

use crate::host;
use crate::random::Random;

/// Bytes that are written in a round.
const ROUND: usize = 192 << 20;

/// Bytes of the file they go to.
const FILE: u64 = 320 << 20;

/// Chunks as large as segments: four times the memory, a quarter of the writes.
const WIDE: Geometry = match Geometry::new(1 << 20, 1 << 20) {
    Ok(geometry) => geometry,
    Err(_) => panic!("powers of two"),
};

/// Objects that are given at once.
const BATCH: usize = 64;

/// Objects that there are; a round has them over and over.
const OBJECTS: usize = 2000;

/// Reads whose latency is measured in a round.
const FAULTS: usize = 300;

/// Sizes of raw writes, of which the fastest counts, in pages.
const RAW_PAGES: [usize; 2] = [64, 256];

/// Raw reads in order, in pages.
const RAW_READ: usize = 32;

/// What one round found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) write_mb_s: f64,
    /// In chunks of a whole segment.
    pub(super) wide_write_mb_s: f64,
    /// As `write_mb_s`, by the processor time of who writes.
    pub(super) write_cpu_mb_s: f64,
    pub(super) raw_write_mb_s: f64,
    pub(super) aes_mb_s: f64,
    pub(super) checksum_mb_s: f64,
    pub(super) memcpy_mb_s: f64,
    pub(super) read_mb_s: f64,
    pub(super) raw_read_mb_s: f64,
    pub(super) fault_us: f64,
    pub(super) raw_us: f64,
    pub(super) decrypt_us: f64,
    pub(super) decompress_us: f64,
    pub(super) bytes_written: u64,
    pub(super) bytes_stored: u64,
}

impl Round {
    /// The most that the processor allows.
    pub(super) fn processor_bound(&self) -> f64 {
        let each = [self.aes_mb_s, self.checksum_mb_s, self.memcpy_mb_s];
        1.0 / each.iter().map(|mb_s| 1.0 / mb_s).sum::<f64>()
    }

    /// The most that disk and processor allow.
    pub(super) fn bound(&self) -> f64 {
        self.raw_write_mb_s.min(self.processor_bound())
    }

    /// What a read of an object takes at least.
    pub(super) fn least_us(&self) -> f64 {
        self.raw_us + self.decrypt_us + self.decompress_us
    }
}

/// Everything that rounds need.
pub(super) struct Speed {
    objects: Vec<Vec<u8>>,
    pool: Mempool<NoSource>,
    crypt: Crypt,
    workspace: Workspace,
    unit: Vec<u8>,
    random: Random,
}

impl Speed {
    pub(super) fn new(objects: Vec<Vec<u8>>) -> Result<Self, WritebackError> {
        let pages = UNDER_WAY * RAW_PAGES[1];
        let ground = Ground::new(pages, c"octavo-bench").map_err(WritebackError::Space)?;
        let pool = Mempool::new(ground, NoSource, Config { cpus: 1, clock: || 0 })?;
        let crypt = Crypt::new(Key::ephemeral()?, Format::PAGES)?;
        let (workspace, unit) = (Workspace::new(&[CODEC]), vec![0; UNIT.bytes()]);
        Ok(Self { objects, pool, crypt, workspace, unit, random: Random::new(3) })
    }

    /// Objects enough for every round.
    pub(super) const fn objects() -> usize {
        OBJECTS
    }

    /// Everything once.
    pub(super) fn round(&mut self, target: &Target) -> Result<Round, WritebackError> {
        let mut raw_write_mb_s = 0.0_f64;
        for pages in RAW_PAGES {
            raw_write_mb_s = raw_write_mb_s.max(self.raw_write(&target.open(FILE)?, pages)?);
        }
        let [aes_mb_s, checksum_mb_s, memcpy_mb_s] = self.processor();
        let (_, wide_write_mb_s) = self.write(&target.backing(FILE, WIDE)?)?;
        let backing = target.backing(FILE, Geometry::USUAL)?;
        let begin = thread_time();
        let (owned, write_mb_s) = self.write(&backing)?;
        let write_cpu_mb_s = cpu_mb_s(backing.stats().stored_bytes as usize, begin);
        let stats = backing.stats();
        let read_mb_s = self.read(&backing, &owned)?;
        let raw = target.raw(FILE, |device| self.raw_write(device, RAW_PAGES[1]))?;
        let raw_read_mb_s = self.raw_read(&raw)?;
        let [fault_us, raw_us, decrypt_us, decompress_us] =
            self.latencies(&backing, &owned, &raw)?;
        Ok(Round {
            write_mb_s,
            wide_write_mb_s,
            write_cpu_mb_s,
            raw_write_mb_s,
            aes_mb_s,
            checksum_mb_s,
            memcpy_mb_s,
            read_mb_s,
            raw_read_mb_s,
            fault_us,
            raw_us,
            decrypt_us,
            decompress_us,
            bytes_written: stats.written_bytes,
            bytes_stored: stats.stored_bytes,
        })
    }

    fn object(&self, n: usize) -> &[u8] {
        &self.objects[n % self.objects.len()]
    }

    /// Objects of a round.
    fn count(&self) -> usize {
        let bytes: usize = self.objects.iter().map(Vec::len).sum();
        ROUND / (bytes / self.objects.len())
    }

    /// Writes objects until the device has all of them.
    fn write(&self, backing: &Backing<FileDevice>) -> Result<(Owned, f64), WritebackError> {
        let count = self.count();
        let owned = Owned::new(count);
        let mut bytes = 0;
        let begin = Instant::now();
        for first in (0..count).step_by(BATCH) {
            let batch = first..(first + BATCH).min(count);
            let owner = |n: usize| Owner::new(n as u64).expect("a small number");
            let objects: Vec<_> =
                batch.clone().map(|n| Object { owner: owner(n), bytes: self.object(n) }).collect();
            let mut places = vec![Err(WriteError::NoRoom); objects.len()];
            backing.write(&objects, &mut places);
            for (n, place) in batch.zip(places) {
                owned.put(owner(n), place?);
                bytes += self.object(n).len();
            }
        }
        backing.flush();
        Ok((owned, mb_s(bytes, begin)))
    }

    /// Reads everything in the order in which it was written.
    fn read(&self, backing: &Backing<FileDevice>, owned: &Owned) -> Result<f64, WritebackError> {
        let mut reader = Reader::default();
        let (mut bytes, begin) = (0, Instant::now());
        for n in 0..self.count() {
            let owner = Owner::new(n as u64).expect("a small number");
            let place = owned.place(owner).expect("it was written");
            let found = backing.read(&mut reader, owned, owner, place)?;
            bytes += black_box(found.bytes()).len();
        }
        Ok(mb_s(bytes, begin))
    }

    /// Reads objects at random, each to its unit, and the bare parts of such a read from another file, by
    /// turns: microseconds of a whole read, of a raw one, of decryption, of decompression.
    fn latencies(
        &mut self,
        backing: &Backing<FileDevice>,
        owned: &Owned,
        raw: &Fd,
    ) -> Result<[f64; 4], WritebackError> {
        let mut times = [const { Vec::new() }; 4];
        let mut reader = Reader::default();
        for _ in 0..FAULTS {
            let n = self.random.below(self.count());
            let owner = Owner::new(n as u64).expect("a small number");
            let place = owned.place(owner).expect("it was written");
            let begin = Instant::now();
            let found = backing.read(&mut reader, owned, owner, place)?;
            decompress(&mut self.workspace, found.bytes(), &mut self.unit);
            let whole = begin.elapsed();
            let [read, decrypt, decompress] = self.parts(n, raw)?;
            let all = [whole, read, decrypt, decompress];
            times
                .iter_mut()
                .zip(all)
                .for_each(|(times, time)| times.push(time.as_secs_f64() * 1e6));
        }
        Ok(times.map(median))
    }

    /// The bare parts of a read of object `n`: as many sectors from anywhere, their decryption, its
    /// decompression.
    fn parts(&mut self, n: usize, raw: &Fd) -> Result<[Duration; 3], WritebackError> {
        let sectors = self.object(n).len().div_ceil(PAGE_SIZE);
        let mut pages = [const { None }; MAX_BULK];
        let pages = &mut pages[..sectors];
        self.pool.alloc_bulk(pages, Wait::Yes);
        let offset = (self.random.below(ROUND / PAGE_SIZE - sectors) * PAGE_SIZE) as u64;
        let begin = Instant::now();
        let outcome = read(raw, offset, pages);
        let whole = begin.elapsed();
        let begin = Instant::now();
        self.decrypt(offset, pages);
        let decrypt = begin.elapsed();
        self.pool.free_bulk(pages);
        if outcome != Ok(sectors * PAGE_SIZE) {
            return Err(WritebackError::Raw(outcome.err()));
        }
        let begin = Instant::now();
        let object = &self.objects[n % self.objects.len()];
        decompress(&mut self.workspace, object, &mut self.unit);
        Ok([whole, decrypt, begin.elapsed()])
    }

    fn decrypt(&self, offset: u64, pages: &mut [Option<Page>]) {
        for (at, page) in (offset..).step_by(PAGE_SIZE).zip(pages.iter_mut().flatten()) {
            self.crypt.decrypt(&mut [Piece::in_place(Sector::at(at), page.bytes_mut())]);
        }
    }

    /// Writes the bytes of a round as they are, `pages` at a time, as many at once as a backing does.
    fn raw_write(&self, device: &FileDevice, pages: usize) -> Result<f64, WritebackError> {
        device.adopt(self.pool.span());
        let mut places: Vec<_> = (0..UNDER_WAY * pages).map(|_| None).collect();
        for places in places.chunks_mut(pages) {
            self.pool.alloc_bulk(places, Wait::Yes);
        }
        let size = pages * PAGE_SIZE;
        let reap = || match device.reap(true) {
            Some((tag, Ok(bytes))) if bytes == size => Ok(tag),
            Some((_, outcome)) => Err(WritebackError::Raw(outcome.err())),
            None => Err(WritebackError::Raw(None)),
        };
        let mut idle: Vec<_> = (0..UNDER_WAY).filter_map(Tag::new).collect();
        let begin = Instant::now();
        let mut outcome = Ok(());
        for n in 0..ROUND / size {
            let tag = match idle.pop().map_or_else(reap, Ok) {
                Ok(tag) => tag,
                Err(why) => {
                    outcome = Err(why);
                    break;
                }
            };
            device.write(tag, (n * size) as u64, &places[tag.get() * pages..][..pages]);
        }
        while let Some((_, written)) = device.reap(true) {
            if written != Ok(size) && outcome.is_ok() {
                outcome = Err(WritebackError::Raw(written.err()));
            }
        }
        let speed = mb_s(ROUND, begin);
        places.chunks_mut(pages).for_each(|places| self.pool.free_bulk(places));
        outcome.map(|()| speed)
    }

    /// Reads the bytes of a round in order.
    fn raw_read(&self, raw: &Fd) -> Result<f64, WritebackError> {
        let mut pages = [const { None }; RAW_READ];
        self.pool.alloc_bulk(&mut pages, Wait::Yes);
        let size = RAW_READ * PAGE_SIZE;
        let begin = Instant::now();
        let wrong = (0..ROUND / size)
            .map(|n| read(raw, (n * size) as u64, &mut pages))
            .find(|read| *read != Ok(size));
        let speed = mb_s(ROUND, begin);
        self.pool.free_bulk(&mut pages);
        wrong.map_or(Ok(speed), |read| Err(WritebackError::Raw(read.err())))
    }

    /// What the processor alone could do: AES, checksum, copy, each over a part of a round, by its time on it.
    fn processor(&self) -> [f64; 3] {
        const PART: usize = ROUND / 4;
        let mut pages = [const { None }; 64];
        self.pool.alloc_bulk(&mut pages, Wait::Yes);
        let begin = thread_time();
        for n in 0..PART / (64 * PAGE_SIZE) {
            let offsets = ((n * 64 * PAGE_SIZE) as u64..).step_by(PAGE_SIZE);
            for (at, page) in offsets.zip(pages.iter_mut().flatten()) {
                self.crypt.encrypt(&mut [Piece::in_place(Sector::at(at), page.bytes_mut())]);
            }
        }
        let aes = cpu_mb_s(PART, begin);
        let mut bytes = 0;
        let begin = thread_time();
        for n in 0..self.count() / 4 {
            bytes += self.object(n).len();
            black_box(xxh3_64(self.object(n)));
        }
        let checksum = cpu_mb_s(bytes, begin);
        let (mut bytes, mut at) = (0, 0);
        let begin = thread_time();
        for n in 0..self.count() / 4 {
            let object = self.object(n);
            bytes += object.len();
            for part in object.chunks(PAGE_SIZE) {
                let page = pages[at % 64].as_mut().expect("a page");
                page.bytes_mut()[..part.len()].copy_from_slice(part);
                at += 1;
            }
        }
        let memcpy = cpu_mb_s(bytes, begin);
        self.pool.free_bulk(&mut pages);
        [aes, checksum, memcpy]
    }
}

/// Processor time of this thread so far.
fn thread_time() -> Duration {
    host::cpu_time(ClockId::ThreadCPUTime)
}

/// MB a second of processor time since `begin`.
fn cpu_mb_s(bytes: usize, begin: Duration) -> f64 {
    bytes as f64 / 1e6 / (thread_time() - begin).as_secs_f64()
}

fn decompress(workspace: &mut Workspace, object: &[u8], unit: &mut [u8]) {
    workspace.decompress(CODEC, object, unit).expect("what was compressed");
    black_box(unit);
}

fn read(raw: &Fd, offset: u64, pages: &mut [Option<Page>]) -> octavo_sys::Result<usize> {
    let room = pages.iter_mut().flatten().map(|page| &mut page.bytes_mut()[..]);
    raw.read_scattered(&mut Scatter::new(room), offset)
}
