//! Filling segments: heads, chunks on their way, and segments that come and go. All under one lock.
//!
//! ```text
//!   new objects ──► head 0 ─┐                          a head is an open segment and the chunk of it
//!   moved once  ──► head 1 ─┼─► chunk full ─► sealed ─► under way ─► written: buffer idle
//!   moved again ──► head 2 ─┘                              │ failed: stuck, read from memory,
//!                                                          └─ tried again later, or moved elsewhere
//!
//!   segment   free ──► open ──► closed ──► nothing lives in it ──► free, dirty ──► free, punched
//!                                 └─ cleaned: what lives is moved ─┘
//! ```
//! What survives cleaning is older than what is new, and dies later: generations have heads of their own,
//! so that what dies together lies together.
//!
//! # Failure
//!
//! A chunk that could not be written keeps its buffer, so nothing that was taken is ever lost to a write.
//! Where it is a matter of room, or too much has failed, the device rests for [`PATIENCE_NS`], and its
//! stuck chunks are tried again then. Anything else spoils the segment: no more is written to it, the
//! cleaner moves what lives in it, and it is retired.
//!
//! One buffer is left to the cleaner, and so are some segments: so it always can go on.

use crate::Backing;
use crate::buffers::{Buffer, Cipher, Sealing};
use crate::device::{Device, DeviceId, Tag, Transfer};
use crate::errors::{Trouble, WriteError};
use crate::geometry::SECTOR;
use crate::place::{Chunk, GRANULE, Owner, Place, Segment};
use crate::record::{self, HEADER};
use crate::route::Routes;
use alloc::boxed::Box;
use octavo_sys::Errno;
use octavo_sys::disk::is_full;

/// Generations of objects: new, moved once, moved again.
pub(crate) const GENERATIONS: usize = 3;

/// Segments that only the cleaner takes: one for each of its heads, and one to begin with.
pub(crate) const RESERVE: u32 = GENERATIONS as u32;

/// The fewest buffers: one a head, one more where a record goes over the end of a chunk, one under way, and
/// the cleaner's.
pub(crate) const MIN_BUFFERS: usize = GENERATIONS + 3;

/// How long a device rests that took no writes.
pub(crate) const PATIENCE_NS: u64 = 10_000_000_000;

/// How often a write is begun again that was cut short or interrupted.
const TRIES: u8 = 16;

/// Failures in a row after which a device rests.
const FAILURES: u32 = 3;

/// Who wants room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Something new.
    New,
    /// What the cleaner moves.
    Clean,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Free,
    Open,
    Closed,
    /// The cleaner is at it.
    Cleaned,
    Retired,
}

/// No segment: the end of a list.
const NONE: u32 = u32::MAX;

/// What is known of a segment, besides what lives in it.
#[derive(Clone, Copy)]
pub(crate) struct Meta {
    pub(crate) state: State,
    pub(crate) generation: u8,
    /// Chunks of it that are under way or stuck.
    pub(crate) pending: u8,
    /// Whether one of them failed.
    pub(crate) is_spoiled: bool,
    /// The next in the list of free segments.
    next: u32,
    /// Bytes of it that were filled.
    pub(crate) end: u32,
    /// Bytes of all objects that were put there.
    pub(crate) stored: u32,
    /// Segments that had been closed when this one was.
    pub(crate) closed_at: u32,
    /// Bytes that lived in it when the cleaner last left it; it comes again when there are fewer.
    pub(crate) left: u32,
}

impl Meta {
    const FREE: Self = Self {
        state: State::Free,
        generation: 0,
        pending: 0,
        is_spoiled: false,
        next: NONE,
        end: 0,
        stored: 0,
        closed_at: 0,
        left: u32::MAX,
    };
}

/// An open segment.
struct Head {
    segment: Segment,
    /// Bytes that are filled.
    at: usize,
    /// Where the chunk that is filled lies.
    buffer: Option<Buffer>,
    /// Where the one after it will: got before a record is begun that needs it.
    next: Option<Buffer>,
}

/// Sectors of a segment that are written together.
#[derive(Clone, Copy)]
struct Job {
    segment: Segment,
    first: usize,
    sectors: usize,
    done: usize,
}

#[derive(Clone, Copy)]
enum Flight {
    Idle,
    /// Belongs to a head.
    Filling,
    UnderWay(Job, u8),
    /// Failed; tried again when the clock says so.
    Stuck(Job, u64),
}

/// A list of free segments, last in first out.
#[derive(Clone, Copy)]
pub(crate) struct List {
    first: u32,
    pub(crate) len: u32,
}

impl List {
    const EMPTY: Self = Self { first: NONE, len: 0 };

    fn push(&mut self, metas: &mut [Meta], segment: Segment) {
        metas[segment.index()].next = self.first;
        *self = Self { first: segment.0, len: self.len + 1 };
    }

    fn pop(&mut self, metas: &[Meta]) -> Option<Segment> {
        let segment = (self.first != NONE).then_some(Segment(self.first))?;
        *self = Self { first: metas[segment.index()].next, len: self.len - 1 };
        Some(segment)
    }
}

/// What is known of a device.
pub(crate) struct Disk {
    base: u32,
    segments: u32,
    /// Segments from here on were never used.
    frontier: u32,
    /// Free ones that the file system still holds.
    pub(crate) dirty: List,
    /// Free ones that it does not.
    punched: List,
    /// Nanoseconds of the clock until which nothing new is put here.
    rests_until: u64,
    failures: u32,
    under_way: u32,
    trouble: Option<Trouble>,
    was_told: bool,
}

impl Disk {
    fn new(base: u32, segments: u32) -> Self {
        Self {
            base,
            segments,
            frontier: 0,
            dirty: List::EMPTY,
            punched: List::EMPTY,
            rests_until: 0,
            failures: 0,
            under_way: 0,
            trouble: None,
            was_told: false,
        }
    }

    /// Whether nothing new is put here at the moment. The clock is read only where it may matter.
    fn rests(&self, clock: fn() -> u64) -> bool {
        self.rests_until > 0 && clock() < self.rests_until
    }

    fn free(&self) -> u32 {
        self.segments - self.frontier + self.dirty.len + self.punched.len
    }

    fn take(&mut self, metas: &[Meta]) -> Option<Segment> {
        self.dirty.pop(metas).or_else(|| self.punched.pop(metas)).or_else(|| {
            let next =
                (self.frontier < self.segments).then_some(Segment(self.base + self.frontier))?;
            self.frontier += 1;
            Some(next)
        })
    }
}

/// What is counted under the lock; see [`crate::Stats`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) objects: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) moved_objects: u64,
    pub(crate) moved_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) cleaned: u64,
    pub(crate) punched: u64,
    pub(crate) retired: u64,
    pub(crate) failed: u64,
    pub(crate) waits: u64,
}

/// Everything that filling segments takes.
pub(crate) struct Log {
    heads: [Option<Head>; GENERATIONS],
    pub(crate) metas: Box<[Meta]>,
    flights: Box<[Flight]>,
    routes: Routes,
    pub(crate) disks: Box<[Disk]>,
    /// Devices by priority, the highest first; equals together.
    ranks: Box<[Box<[DeviceId]>]>,
    /// Segments that were opened, which says whose turn it is among equals.
    opened: u32,
    /// Segments that were closed: the time by which segments age.
    pub(crate) closed: u32,
    pub(crate) tally: Tally,
}

impl Log {
    /// An empty log over devices of so many segments each.
    pub(crate) fn new(
        segments: impl Iterator<Item = u32>,
        ranks: Box<[Box<[DeviceId]>]>,
        buffers: usize,
    ) -> Self {
        let mut base = 0;
        let disk = |segments| {
            let disk = Disk::new(base, segments);
            base += segments;
            disk
        };
        let disks = segments.map(disk).collect();
        Self {
            heads: [const { None }; GENERATIONS],
            metas: alloc::vec![Meta::FREE; base as usize].into(),
            flights: alloc::vec![Flight::Idle; buffers].into(),
            routes: Routes::new(),
            disks,
            ranks,
            opened: 0,
            closed: 0,
            tally: Tally::default(),
        }
    }

    /// Segments that can be opened on devices that do not rest.
    pub(crate) fn free(&self, clock: fn() -> u64) -> u32 {
        self.disks.iter().filter(|disk| !disk.rests(clock)).map(Disk::free).sum()
    }

    /// Bytes of segments that are closed, of `size` each; what is being punched counts.
    pub(crate) fn closed_bytes(&self, size: u64) -> u64 {
        let free: u32 = self.disks.iter().map(|disk| disk.dirty.len).sum();
        let open = self.heads.iter().flatten().count() as u64;
        (u64::from(self.held() - free) - open - self.tally.retired) * size
    }

    /// Bytes of memory that it takes for so many segments.
    pub(crate) const fn bytes(segments: usize) -> usize {
        segments * size_of::<Meta>()
    }

    /// Segments that the file systems hold: in use, or free and not given back.
    pub(crate) fn held(&self) -> u32 {
        self.disks.iter().map(|disk| disk.frontier - disk.punched.len).sum()
    }

    /// Segments of which a chunk could not be written, and is here.
    pub(crate) fn stuck(&self) -> impl Iterator<Item = Segment> {
        self.flights.iter().filter_map(|flight| match flight {
            Flight::Stuck(job, _) => Some(job.segment),
            _ => None,
        })
    }

    /// The device of the highest priority that has a segment and does not rest; equals take turns.
    fn choose(&self, clock: fn() -> u64) -> Option<DeviceId> {
        let has = |id: &DeviceId| {
            let disk = &self.disks[id.get()];
            disk.free() > 0 && !disk.rests(clock)
        };
        self.ranks.iter().find_map(|rank| {
            let turn = self.opened as usize % rank.len();
            rank[turn..].iter().chain(&rank[..turn]).copied().find(has)
        })
    }

    fn idle(&self) -> impl Iterator<Item = Buffer> {
        let flights = (0..).zip(&self.flights);
        flights.filter(|(_, flight)| matches!(flight, Flight::Idle)).map(|(n, _)| Buffer(n))
    }
}

impl<D: Device> Backing<D> {
    /// Adds an object to the head of a generation.
    pub(crate) fn append(
        &self,
        log: &mut Log,
        generation: usize,
        owner: Owner,
        object: &[u8],
        purpose: Purpose,
    ) -> Result<Place, WriteError> {
        let (len, most) = (object.len(), self.geometry.max_object());
        assert!(len > 0, "an object of no bytes");
        if len > most {
            return Err(WriteError::TooLong { len, most });
        }
        let whole = record::bytes(len);
        let (segment, at) = self.make_room(log, generation, whole, purpose)?;
        let place = Place::new(self.geometry.address(segment, at), len);
        let header = self.binding(segment).header(place, owner, object);
        self.table.add(segment, len);
        log.metas[segment.index()].stored += len as u32;
        self.put(log, generation, &header);
        self.put(log, generation, object);
        self.put(log, generation, &[0; GRANULE][..whole - HEADER - len]);
        Ok(place)
    }

    /// Sees to it that a head has a segment with room for a record, and buffers for it. Where it begins.
    fn make_room(
        &self,
        log: &mut Log,
        generation: usize,
        whole: usize,
        purpose: Purpose,
    ) -> Result<(Segment, usize), WriteError> {
        loop {
            let Some(Head { segment, at, buffer, next }) = &log.heads[generation] else {
                self.open_head(log, generation, purpose)?;
                continue;
            };
            let (segment, at) = (*segment, *at);
            let (has_buffer, has_next) = (buffer.is_some(), next.is_some());
            let crosses = at % self.geometry.chunk_bytes() + whole > self.geometry.chunk_bytes();
            if at + whole > self.geometry.segment_bytes() {
                self.close_head(log, generation);
            } else if self.disk(log, segment).rests(self.clock) {
                // What is in the chunk stays there, or goes to the place where it is tried again.
                log.choose(self.clock).ok_or(WriteError::Stopped)?;
                self.close_head(log, generation);
            } else if !has_buffer {
                self.add_buffer(log, generation, self.geometry.chunk_of(segment, at), purpose)?;
            } else if crosses && !has_next {
                let chunk = self.geometry.chunk_of(segment, at);
                let chunk = Chunk { number: chunk.number + 1, ..chunk };
                self.add_buffer(log, generation, chunk, purpose)?;
            } else {
                return Ok((segment, at));
            }
        }
    }

    /// Gets a buffer for a chunk of a head, whose segment may be closed meanwhile: then it gets none.
    fn add_buffer(
        &self,
        log: &mut Log,
        generation: usize,
        chunk: Chunk,
        purpose: Purpose,
    ) -> Result<(), WriteError> {
        let buffer = self.acquire(log, purpose)?;
        let head = log.heads[generation].as_mut().filter(|head| head.segment == chunk.segment);
        let Some(head) = head else { return Ok(()) };
        let place = if head.buffer.is_none() { &mut head.buffer } else { &mut head.next };
        *place = Some(buffer);
        log.flights[buffer.index()] = Flight::Filling;
        self.buffers.begin(buffer, chunk, log.routes.choose());
        Ok(())
    }

    /// A buffer that is idle, waiting for one that is under way.
    fn acquire(&self, log: &mut Log, purpose: Purpose) -> Result<Buffer, WriteError> {
        let left = usize::from(purpose == Purpose::New);
        loop {
            if let Some(buffer) = log.idle().nth(left) {
                return Ok(buffer);
            }
            if !self.reap(log, false) {
                log.tally.waits += 1;
                if !self.reap(log, true) {
                    return Err(WriteError::Stopped);
                }
            }
        }
    }

    /// Opens a segment for a head.
    fn open_head(
        &self,
        log: &mut Log,
        generation: usize,
        purpose: Purpose,
    ) -> Result<(), WriteError> {
        self.collect(log);
        let scarce = log.free(self.clock) <= if purpose == Purpose::New { RESERVE } else { 0 };
        let device = log.choose(self.clock).filter(|_| !scarce);
        let Some(device) = device else {
            let rests = log.disks.iter().any(|disk| disk.rests(self.clock));
            return Err(if rests { WriteError::Stopped } else { WriteError::NoRoom });
        };
        let Log { disks, metas, .. } = log;
        let segment = disks[device.get()].take(metas).expect("the device has one");
        log.opened += 1;
        log.metas[segment.index()] =
            Meta { state: State::Open, generation: generation as u8, ..Meta::FREE };
        self.table.open(segment, log.opened);
        log.heads[generation] = Some(Head { segment, at: 0, buffer: None, next: None });
        Ok(())
    }

    /// Ends a head: what is in its chunk is sent, and its segment is closed.
    fn close_head(&self, log: &mut Log, generation: usize) {
        let Some(head) = &log.heads[generation] else { return };
        if !head.at.is_multiple_of(self.geometry.chunk_bytes()) {
            self.send(log, generation);
        }
        let Some(Head { segment, at, buffer, next }) = log.heads[generation].take() else {
            return;
        };
        for buffer in [buffer, next].into_iter().flatten() {
            self.release(log, buffer);
        }
        log.closed += 1;
        let meta = &mut log.metas[segment.index()];
        (meta.state, meta.end, meta.closed_at) = (State::Closed, at as u32, log.closed);
        self.table.close(segment);
    }

    /// Ends all heads and waits for everything that is under way.
    pub(crate) fn flush_log(&self, log: &mut Log) {
        (0..GENERATIONS).for_each(|generation| self.close_head(log, generation));
        while self.reap(log, true) {}
    }

    fn release(&self, log: &mut Log, buffer: Buffer) {
        log.flights[buffer.index()] = Flight::Idle;
        self.buffers.end(buffer);
    }

    /// Puts a part of a record where a head is; room was made for it.
    fn put(&self, log: &mut Log, generation: usize, mut part: &[u8]) {
        let chunk = self.geometry.chunk_bytes();
        while !part.is_empty() {
            let head = log.heads[generation].as_mut().expect("room was made");
            let buffer = head.buffer.expect("room was made");
            let (now, later) = part.split_at(part.len().min(chunk - head.at % chunk));
            let sealing = self.sealing(self.geometry.chunk_of(head.segment, head.at));
            self.buffers.content(buffer).put(now, sealing);
            head.at += now.len();
            part = later;
            if head.at.is_multiple_of(chunk) {
                self.send(log, generation);
            }
        }
    }

    /// How sectors of a chunk are sealed.
    fn sealing(&self, chunk: Chunk) -> Sealing<'_> {
        let first = self.geometry.span(chunk).start / SECTOR;
        Sealing { cipher: self.cipher(chunk.segment), first, clock: self.clock }
    }

    /// Seals the chunk of a head and sends it on its way.
    fn send(&self, log: &mut Log, generation: usize) {
        let head = log.heads[generation].as_mut().expect("a head");
        let buffer = head.buffer.take().expect("a head that has bytes has a buffer");
        head.buffer = head.next.take();
        let (segment, end) = (head.segment, head.at);
        let chunk = self.geometry.chunk_of(segment, end - 1);
        let sealing = self.sealing(chunk);
        let first = sealing.first;
        let mut content = self.buffers.content(buffer);
        let sectors = content.seal(sealing);
        if let Some((route, ns)) = content.took() {
            log.routes.note(route, ns);
        }
        drop(content);
        log.metas[segment.index()].pending += 1;
        self.begin(log, buffer, Job { segment, first, sectors, done: 0 }, 0);
    }

    /// Begins to write what is missing of a chunk.
    fn begin(&self, log: &mut Log, buffer: Buffer, job: Job, tries: u8) {
        let Job { segment, first, sectors, done } = job;
        let in_chunk = first % self.geometry.chunk_pages();
        let Cipher { base, .. } = self.cipher(segment);
        log.flights[buffer.index()] = Flight::UnderWay(job, tries);
        self.disk_mut(log, segment).under_way += 1;
        let content = self.buffers.content(buffer);
        let pages = content.sectors(in_chunk + done..in_chunk + sectors);
        let offset = base + ((first + done) * SECTOR) as u64;
        self.member(segment).device.write(Tag(buffer.0), offset, pages);
    }

    /// Takes outcomes of writes, at most one a device; with `wait` at least one. Whether there were any.
    fn reap(&self, log: &mut Log, wait: bool) -> bool {
        let mut any = false;
        for n in 0..log.disks.len() {
            // With several devices the first is waited for; the others' outcomes wait for us.
            let wait = wait && !any;
            if log.disks[n].under_way > 0
                && let Some((tag, outcome)) = self.members[n].device.reap(wait)
            {
                any = true;
                log.disks[n].under_way -= 1;
                self.conclude(log, Buffer(tag.0), outcome);
            }
        }
        any
    }

    /// Takes all outcomes there are, and tries again what has rested long enough.
    pub(crate) fn poll(&self, log: &mut Log) {
        while self.reap(log, false) {}
        let now = (self.clock)();
        for n in 0..log.flights.len() {
            match log.flights[n] {
                Flight::Stuck(job, until) if until <= now => {
                    self.begin(log, Buffer(n as u8), job, 0);
                }
                _ => {}
            }
        }
    }

    /// A write has ended, one way or another.
    fn conclude(&self, log: &mut Log, buffer: Buffer, outcome: Transfer) {
        let Flight::UnderWay(job, tries) = log.flights[buffer.index()] else {
            panic!("{buffer:?} has ended and was not under way");
        };
        let written = outcome.map_or(0, |bytes| bytes / SECTOR).min(job.sectors - job.done);
        log.tally.written_bytes += (written * SECTOR) as u64;
        let job = Job { done: job.done + written, ..job };
        match outcome {
            Ok(_) if job.done == job.sectors => {
                self.release(log, buffer);
                log.metas[job.segment.index()].pending -= 1;
                let disk = self.disk_mut(log, job.segment);
                (disk.failures, disk.rests_until, disk.was_told) = (0, 0, false);
            }
            Ok(_) if written > 0 => self.begin(log, buffer, job, 0),
            Ok(_) | Err(Errno::EINTR | Errno::EAGAIN) if tries < TRIES => {
                self.begin(log, buffer, job, tries + 1);
            }
            Ok(_) => self.fail(log, buffer, job, Errno::EIO),
            Err(why) => self.fail(log, buffer, job, why),
        }
    }

    /// A chunk could not be written, and stays in its buffer.
    fn fail(&self, log: &mut Log, buffer: Buffer, job: Job, why: Errno) {
        let until = (self.clock)() + PATIENCE_NS;
        log.flights[buffer.index()] = Flight::Stuck(job, until);
        log.tally.failed += 1;
        let offset = self.cipher(job.segment).base + ((job.first + job.done) * SECTOR) as u64;
        let trouble = Trouble { device: self.device_of(job.segment), offset, why };
        let disk = self.disk_mut(log, job.segment);
        disk.failures += 1;
        if is_full(why) || disk.failures >= FAILURES {
            disk.rests_until = until;
            if !disk.was_told {
                disk.trouble = Some(trouble);
                disk.was_told = true;
            }
        }
        if !is_full(why) {
            log.metas[job.segment.index()].is_spoiled = true;
            let is_it = |head: &Head| head.segment == job.segment;
            if let Some(generation) = log.heads.iter().position(|h| h.as_ref().is_some_and(is_it)) {
                self.close_head(log, generation);
            }
        }
    }

    /// Has segments in which nothing lives any more be free.
    pub(crate) fn collect(&self, log: &mut Log) {
        self.table.take_emptied(|segment| {
            self.drop_stuck(log, segment);
            let meta = log.metas[segment.index()];
            if meta.pending > 0 || meta.state != State::Closed {
                // Once the device is done with it, or the cleaner.
                self.table.note_emptied(segment);
            } else if meta.is_spoiled {
                log.metas[segment.index()].state = State::Retired;
                log.tally.retired += 1;
            } else {
                log.metas[segment.index()].state = State::Free;
                let Log { disks, metas, .. } = log;
                disks[self.device_of(segment).get()].dirty.push(metas, segment);
            }
        });
    }

    /// Gives up what could not be written and nobody wants any more.
    fn drop_stuck(&self, log: &mut Log, segment: Segment) {
        for n in 0..log.flights.len() {
            if matches!(log.flights[n], Flight::Stuck(job, _) if job.segment == segment) {
                self.release(log, Buffer(n as u8));
                log.metas[segment.index()].pending -= 1;
            }
        }
    }

    /// Gives the room of a free segment back, if more are dirty than will be needed soon. Whether it did.
    pub(crate) fn punch_one(&self) -> bool {
        let mut log = self.log.lock();
        self.collect(&mut log);
        let wants = |(n, disk): (usize, &Disk)| {
            disk.dirty.len > RESERVE && self.members[n].device.ways().holes
        };
        let Some(n) = log.disks.iter().enumerate().position(wants) else { return false };
        let Log { disks, metas, .. } = &mut *log;
        let Some(segment) = disks[n].dirty.pop(metas) else { return false };
        drop(log);
        // Nobody else knows the segment while it is in no list.
        let len = self.geometry.segment_bytes() as u64;
        let punched = self.members[n].device.punch(self.cipher(segment).base, len).is_ok();
        let mut log = self.log.lock();
        let Log { disks, metas, tally, .. } = &mut *log;
        let list = if punched { &mut disks[n].punched } else { &mut disks[n].dirty };
        list.push(metas, segment);
        tally.punched += u64::from(punched);
        punched
    }

    /// The oldest trouble that was not told yet.
    pub(crate) fn next_trouble(&self, log: &mut Log) -> Option<Trouble> {
        log.disks.iter_mut().find_map(|disk| disk.trouble.take())
    }

    fn disk<'a>(&self, log: &'a Log, segment: Segment) -> &'a Disk {
        &log.disks[self.device_of(segment).get()]
    }

    fn disk_mut<'a>(&self, log: &'a mut Log, segment: Segment) -> &'a mut Disk {
        &mut log.disks[self.device_of(segment).get()]
    }
}
