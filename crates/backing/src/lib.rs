//! Objects in files and block devices: packed, encrypted, cleaned, verified.
//!
//! ```text
//!   write ──► log: head, chunk ──seal──► device ──► read: windows ──► object
//!               │ a batch                  │            ▲
//!               └─ places                  │            └─ or out of a chunk that is still here
//!                                          │
//!   free ──► table: bytes that live in a segment ──► none: free, punched
//!                                          └─ few: clean ── asks owners, moves, tells them
//! ```
//! Compressed objects of some 100 bytes to 64 KiB come in with the numbers of their owners, and become
//! *records* back to back in *segments* (`geometry`, `record`). A segment is filled once, chunk by chunk,
//! each encrypted in memory and written as one; nothing is written in place twice before all of it is free.
//! What dies leaves gaps, and the cleaner (`clean`) moves what lives together.
//!
//! Nothing here outlives the process: there is no index on the device, and what was moved need not be there
//! before the old copy is given up. Where something is, its owner knows.
//!
//! # Invariants
//!
//! - What [`Backing::read`] gives is what was written by this owner to this place: a hash over all three was
//!   compared. Anything else is an error, for that object alone.
//! - What was taken is never lost to a write: a chunk stays in memory, and is read from there, until the
//!   device has all of it.
//! - Only ciphertext reaches a device.
//! - Nothing is allocated after construction.
//!
//! # Locks
//!
//! The log, then one buffer, then a device's ring, or the reserve of pages. Reading takes a buffer's, for
//! the time of a copy, and that of the reserve; freeing takes none. Owners are called with none held.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod buffers;
mod clean;
pub mod device;
mod errors;
pub mod file;
mod geometry;
mod log;
#[cfg(test)]
#[cfg(loom)]
mod models;
mod named;
mod place;
mod read;
mod record;
mod route;
mod stats;
mod table;

pub use clean::Cleaned;
pub use device::{Device, DeviceId, Ways};
pub use errors::{Fault, Lost, NewError, ReadError, Trouble, WriteError};
pub use geometry::{Geometry, GeometryError};
pub use place::{MAX_OBJECT, Owner, Place};
pub use read::{Found, Reader};
pub use stats::Stats;

use alloc::boxed::Box;
use alloc::vec::Vec;
use buffers::{Buffers, Cipher};
use device::{MAX_DEVICES, MAX_UNDER_WAY};
use log::{Log, MIN_BUFFERS, Purpose, RESERVE};
use octavo_crypt::Crypt;
use octavo_mempool::source::NoSource;
use octavo_mempool::{Ground, Mempool};
use octavo_page::PAGE_SIZE;
use octavo_page::sync::Mutex;
use octavo_sys::secret::random;
use place::{MAX_BYTES, Segment};
use record::Binding;
use stats::Counters;
use table::Table;

/// Segments that a device has at least: those of the reserve, one for each head, and one that is cleaned.
const MIN_SEGMENTS: u32 = 2 * RESERVE + 2;

/// Bytes that a device of such segments has at least.
#[must_use]
pub const fn least_bytes(geometry: &Geometry) -> u64 {
    MIN_SEGMENTS as u64 * geometry.segment_bytes() as u64
}

/// An object to be written.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// Whose it is.
    pub owner: Owner,
    /// Its bytes, at least one and at most [`Geometry::max_object`].
    pub bytes: &'a [u8],
}

/// Those whose objects lie here. Called with nothing locked; what they answer may change at any time,
/// but for what they say about a place themselves.
pub trait Owners {
    /// Whether the object of `owner` is at `place`.
    fn lives(&self, owner: Owner, place: Place) -> bool;

    /// The object of `owner` has been copied from `from` to `to`. Whether it is at `to` from now on; if not,
    /// for it was freed or replaced, nobody will hear of `to` again. Either way nobody frees the other one.
    fn moved(&self, owner: Owner, from: Place, to: Place) -> bool;
}

/// One of the devices of a backing.
pub struct Member<D> {
    /// The device.
    pub device: D,
    /// Its key. Devices with one key tell who looks at both where they hold the same.
    pub crypt: Crypt,
    /// The higher it is, the earlier the device is used; equals take turns.
    pub priority: i32,
}

/// How a backing is to be.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Sizes of segments and chunks.
    pub geometry: Geometry,
    /// Chunks in memory: those being filled, at most three, and the others under way.
    pub buffers: usize,
    /// Threads that read at once without waiting for each other.
    pub readers: usize,
    /// Nanoseconds since any moment.
    pub clock: fn() -> u64,
}

/// A device, and which segments are on it.
struct Segments<D> {
    device: D,
    crypt: Crypt,
    base: u32,
}

/// Objects on devices. Any number of threads may use it at once.
pub struct Backing<D> {
    geometry: Geometry,
    members: Box<[Segments<D>]>,
    table: Table,
    buffers: Buffers,
    reads: Mempool<NoSource>,
    log: Mutex<Log>,
    secret: u64,
    clock: fn() -> u64,
    counters: Counters,
    memory_bytes: u64,
}

impl<D: Device> Backing<D> {
    /// An empty backing over these devices, of which whole segments are used. What is on them is lost.
    ///
    /// # Errors
    /// [`NewError`] when they are too small, too large or too many, or there is no memory.
    pub fn new(devices: Vec<Member<D>>, config: Config) -> Result<Self, NewError> {
        let Config { geometry, buffers: count, readers, clock } = config;
        check(&devices, &config)?;
        let ranks = ranks(&devices);
        let size = geometry.segment_bytes() as u64;
        let mut base = 0;
        let member = |Member { device, crypt, .. }| {
            let first = base;
            base += (Device::bytes(&device) / size) as u32;
            Segments { device, crypt, base: first }
        };
        let members: Box<[_]> = devices.into_iter().map(member).collect();
        let read_pages = readers.max(1) * read::window_sectors(&geometry);
        let write_pages = Buffers::pages(&geometry, count);
        let buffers = Buffers::new(geometry, count, reserve(write_pages, clock)?);
        members.iter().for_each(|member| member.device.adopt(buffers.memory()));
        let mut secret = [0; 8];
        random(&mut secret).map_err(NewError::NoRandom)?;
        let ends = members.iter().skip(1).map(|member| member.base).chain([base]);
        let counts = members.iter().zip(ends).map(|(member, end)| end - member.base);
        let log = Log::new(counts, ranks, count);
        let tables = Table::bytes(base as usize) + Log::bytes(base as usize);
        Ok(Self {
            geometry,
            members,
            table: Table::new(base),
            buffers,
            reads: reserve(read_pages, clock)?,
            log: Mutex::new(log),
            secret: u64::from_le_bytes(secret),
            clock,
            counters: Counters::default(),
            memory_bytes: ((write_pages + read_pages) * PAGE_SIZE + tables) as u64,
        })
    }

    /// The sizes it has.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Takes a batch of objects: the place of each, or why it has none, in `places`. May wait for a device
    /// that has enough to do; an object that is taken is safe, and may be freed or read at once.
    ///
    /// # Panics
    /// When `places` is not as long as `objects`, or an object has no bytes: bugs of the caller.
    pub fn write(&self, objects: &[Object<'_>], places: &mut [Result<Place, WriteError>]) {
        assert_eq!(objects.len(), places.len(), "a place for each object");
        let mut log = self.log.lock();
        self.poll(&mut log);
        for (Object { owner, bytes }, place) in objects.iter().zip(places) {
            *place = self.append(&mut log, 0, *owner, bytes, Purpose::New);
            if place.is_ok() {
                log.tally.objects += 1;
                log.tally.stored_bytes += bytes.len() as u64;
            }
        }
    }

    /// Frees objects. Whoever calls has seen to it that nobody else frees them, nor the cleaner moves them:
    /// [`Owners`] do not know them any more.
    ///
    /// # Panics
    /// When a place is none of this backing, or more is freed than lives there: bugs of the caller.
    pub fn free(&self, places: &[Place]) {
        for place in places {
            self.table.free(self.locate(*place).0, place.len());
        }
    }

    /// Sends everything on its way that was taken, and waits until the devices have it, or have failed. Leaves
    /// segments that are not full, so it is for the end, or for a long rest.
    pub fn flush(&self) {
        self.flush_log(&mut self.log.lock());
    }

    /// Goes on with what failed or rests, if its time has come: for who writes nothing at the moment.
    pub fn tend(&self) {
        self.poll(&mut self.log.lock());
    }

    /// A trouble that was not told yet. Each episode of a device is told once.
    #[must_use]
    pub fn trouble(&self) -> Option<Trouble> {
        self.next_trouble(&mut self.log.lock())
    }

    /// How each device does its work, in the order in which they were named.
    pub fn ways(&self) -> impl Iterator<Item = Ways> {
        self.members.iter().map(|member| member.device.ways())
    }

    /// What has happened so far, and what there is.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut log = self.log.lock();
        self.collect(&mut log);
        let size = self.geometry.segment_bytes() as u64;
        let tally = log.tally;
        Stats {
            objects: tally.objects,
            stored_bytes: tally.stored_bytes,
            moved_objects: tally.moved_objects,
            moved_bytes: tally.moved_bytes,
            written_bytes: tally.written_bytes,
            cleaned_segments: tally.cleaned,
            punched_segments: tally.punched,
            retired_segments: tally.retired,
            failed_writes: tally.failed,
            waits: tally.waits,
            live_bytes: self.table.live_bytes(),
            file_bytes: u64::from(log.held()) * size,
            free_bytes: u64::from(log.free(self.clock)) * size,
            memory_bytes: self.memory_bytes,
            is_locked: self.buffers.is_locked() && self.reads.is_locked(),
            ..self.counters.stats()
        }
    }

    /// What records of a segment are bound to.
    fn binding(&self, segment: Segment) -> Binding {
        Binding { secret: self.secret, sequence: self.table.sequence(segment) }
    }

    fn device_of(&self, segment: Segment) -> DeviceId {
        let behind = self.members.partition_point(|member| member.base <= segment.0);
        DeviceId(behind as u8 - 1)
    }

    fn member(&self, segment: Segment) -> &Segments<D> {
        &self.members[self.device_of(segment).get()]
    }

    /// The key of a segment, and where it is on its device.
    fn cipher(&self, segment: Segment) -> Cipher<'_> {
        let Segments { crypt, base, .. } = self.member(segment);
        let number = u64::from(segment.0 - base);
        Cipher { crypt, base: number * self.geometry.segment_bytes() as u64 }
    }
}

/// Whether such devices can be used so.
fn check<D: Device>(devices: &[Member<D>], config: &Config) -> Result<(), NewError> {
    if !(1..=MAX_DEVICES).contains(&devices.len()) {
        return Err(NewError::Devices { found: devices.len() });
    }
    if !(MIN_BUFFERS..=MAX_UNDER_WAY).contains(&config.buffers) {
        let (least, most) = (MIN_BUFFERS, MAX_UNDER_WAY);
        return Err(NewError::Buffers { found: config.buffers, least, most });
    }
    let least = least_bytes(&config.geometry);
    for (n, member) in (0..).zip(devices) {
        let bytes = member.device.bytes();
        if bytes < least {
            return Err(NewError::TooSmall { device: DeviceId(n), bytes, least });
        }
    }
    let bytes =
        devices.iter().fold(0, |sum: u64, member| sum.saturating_add(member.device.bytes()));
    if bytes > MAX_BYTES { Err(NewError::TooLarge { bytes }) } else { Ok(()) }
}

/// Devices by priority, the highest first; equals together.
fn ranks<D>(devices: &[Member<D>]) -> Box<[Box<[DeviceId]>]> {
    let mut ids: Vec<_> =
        (0..).map(DeviceId).zip(devices.iter().map(|member| member.priority)).collect();
    ids.sort_by_key(|(_, priority)| core::cmp::Reverse(*priority));
    let equals = ids.chunk_by(|a, b| a.1 == b.1);
    equals.map(|rank| rank.iter().map(|(id, _)| *id).collect()).collect()
}

fn reserve(pages: usize, clock: fn() -> u64) -> Result<Mempool<NoSource>, NewError> {
    let ground = Ground::new(pages, c"octavo-backing").map_err(NewError::NoSpace)?;
    Mempool::new(ground, NoSource, octavo_mempool::Config { cpus: 1, clock })
        .map_err(NewError::NoMemory)
}
