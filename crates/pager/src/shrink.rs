//! The shrinker: while the store takes much of the limit, its oldest objects go to a backing file.
//!
//! ```text
//!   0 ........................ stop ......... start ............... limit
//!                                │ the store takes    │
//!                                └── objects written ◄┘       only with --backing
//!
//!   evictor, between two batches:   a few objects out ── pool compacted ── a segment cleaned
//! ```
//! What does not compress goes first, whatever the store takes: kept as it is it frees nothing, and it is
//! taken out of the program only because a file is there for it.
//!
//! It starts long before the limit, so that a fault hardly ever waits for a write: the evictors do it, one of
//! them at a time, as they condense, and give way to a fork between two steps. Only where a program makes what
//! does not compress faster than they write, and the limit is passed, does the server write, and the program
//! waits. What is in the file stays stored: faults read it from there, a child that is filled gets it, and it is
//! freed like the rest.
//!
//! The file is opened when the first object is to be written: most processes of a tree never do. Each
//! process has its own ([`Opened`]); what a parent wrote a forked child cannot read, nor keep the parent from
//! freeing. So a fork that was announced has everything brought back first; where that takes too long, or
//! there is no room, the child is filled by the parent's server, which reads the file, and is an ordinary
//! process ([`crate::heir`]).
//!
//! A file that is full, or fails, stops the shrinker for a while, and is told once: the memory stays, and the
//! limit is exceeded, said and counted as it would be without a file.

use crate::pager::{Pager, Worker};
use crate::start;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use core::time::Duration;
use octavo_backing::file::{FileDevice, OpenError, Options};
use octavo_backing::{Backing, Config, Geometry, Member, NewError, WriteError};
use octavo_crypt::{Crypt, Format, Key, KeyError};
use octavo_ledger::{Lacks, Ledger, Once};
use octavo_page::PAGE_SIZE;
use octavo_page::config::{BackingConfig, BackingFile, BackingKind};
use octavo_page::sync::atomic::{AtomicU32, Ordering};
use octavo_store::WrittenBack;
use octavo_sys::disk::is_full;
use octavo_sys::file::{Fd, Text};
use octavo_sys::{Errno, reason, task};

/// What a process that writes keeps its chunks in, which counts as the job's: memory spent for speed, and little of it
/// where the limit is small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Chunks {
    bytes: usize,
    buffers: usize,
}

impl Chunks {
    /// 2.5 MiB. Eight are under way while two are filled; chunks as usual are what a disk is fastest with.
    const FOR_SPEED: Self = Self { bytes: Geometry::USUAL.chunk_bytes(), buffers: 10 };

    /// 768 KiB.
    const SMALL: Self = Self { bytes: 128 << 10, buffers: 6 };

    /// From this limit on, of which it is a hundredth, speed is worth it.
    const FROM: u64 = 256 << 20;

    /// What suits a job with this `limit`, in bytes.
    const fn for_limit(limit: u64) -> Self {
        if limit >= Self::FROM { Self::FOR_SPEED } else { Self::SMALL }
    }
}

/// Threads that read at once: the server, and an evictor.
const READERS: usize = 2;

/// Bytes that a step writes, about: a fork waits for no more.
const STEP: usize = 256 << 10;

/// Steps that a fault waits for, at most: with as many it brings in far less than they write.
const FOR_A_FAULT: u32 = 8;

/// A fault looks again after this, where somebody else writes.
const SOON: Duration = Duration::from_micros(200);

/// Objects that the pool may move after each step.
const COMPACT_MOVES: usize = 256;

/// After nothing could be written: a file without room, a disk that fails.
const REST: Duration = Duration::from_secs(1);

/// How often it is told what the files hold, when nothing is written.
const TOLD: Duration = Duration::from_millis(100);

/// Whether there is a backing file for this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Opened {
    /// Nothing was to be written so far.
    #[default]
    NotYet,
    Yes,
    /// There is none to be had, which was said.
    Never,
}

/// What came of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shrunk {
    /// Something was written, or brought back for a fork.
    Some,
    /// There is nothing to do, or no way to do it.
    Nothing,
    /// Somebody else is at it.
    Busy,
}

/// What is known from one step to the next.
#[derive(Debug, Default)]
pub(crate) struct Shrinker {
    opened: Opened,
    /// Whether the store is being shrunk.
    is_on: bool,
    rests_until: Duration,
    told_at: Duration,
    /// How far everything is brought back, for a fork.
    back: usize,
}

/// What a thread that is about to fork asks of the shrinker, and is told.
static RECALL: AtomicU32 = AtomicU32::new(NOTHING);
const NOTHING: u32 = 0;
const WANTED: u32 = 1;
const FAILED: u32 = 2;

/// A fork waits so long until everything is back.
const PATIENCE: Duration = Duration::from_secs(2);

/// Has everything that is in the file come back, before a fork; false when something stays there. Nothing is
/// written any more until [`end_recall`].
pub(crate) fn recall(pager: &Pager) -> bool {
    if pager.config.backing.is_none() {
        return true;
    }
    RECALL.store(WANTED, Ordering::Release);
    let until = task::now() + PATIENCE;
    while pager.has_away() && RECALL.load(Ordering::Acquire) == WANTED && task::now() < until {
        pager.bell.ring();
        task::futex_wait(&RECALL, WANTED, start::LOOK);
    }
    !pager.has_away()
}

/// The fork is over, or there is none.
pub(crate) fn end_recall() {
    RECALL.store(NOTHING, Ordering::Release);
}

impl Pager {
    /// Whether something of this process is in a file.
    pub(crate) fn has_away(&self) -> bool {
        self.store.away_objects() > 0
    }

    /// Has a fault wait while the limit is passed and there is something to write: as fast as the program goes
    /// the evictors do not keep up with it.
    pub(crate) fn shrink_for_fault(&self, worker: &mut Worker) {
        if self.config.backing.is_none() {
            return;
        }
        for _ in 0..FOR_A_FAULT {
            if self.budget.until_limit() > 0 {
                return;
            }
            let Some(work) = start::REST.try_work() else { return };
            let shrunk = self.shrink_step(worker);
            drop(work); // a fork need not wait for who sleeps
            match shrunk {
                Shrunk::Some => {}
                Shrunk::Nothing => return,
                Shrunk::Busy => task::sleep(SOON),
            }
            self.measure(task::now());
        }
    }

    /// Writes some of the oldest objects back, while the store takes too much.
    pub(crate) fn shrink_step(&self, worker: &mut Worker) -> Shrunk {
        let Some(BackingConfig { max_pool_percent, .. }) = self.config.backing else {
            return Shrunk::Nothing;
        };
        let Some(mut shrinker) = self.shrinker.try_lock() else { return Shrunk::Busy };
        if RECALL.load(Ordering::Acquire) != NOTHING {
            return self.recall_step(worker, &mut shrinker);
        }
        shrinker.back = 0;
        let now = task::now();
        let stored = (self.store.stats().pool_bytes / PAGE_SIZE) as u64;
        shrinker.is_on = self.budget.wants_shrinking(stored, max_pool_percent, shrinker.is_on);
        let is_wanted = shrinker.is_on || self.store.has_raw();
        if !is_wanted || now < shrinker.rests_until || !self.has_file(&mut shrinker) {
            self.publish_backing(&mut shrinker, now);
            return Shrunk::Nothing;
        }
        let done = self.write_some(shrinker.is_on);
        self.store.compact(COMPACT_MOVES);
        self.store.clean(&mut worker.scratch);
        self.publish_backing(&mut shrinker, now);
        if let Some(why) = done.stopped {
            self.say_stopped(why);
        }
        self.keeps_raw.store(done.stopped.is_none(), Ordering::Relaxed);
        if done.stopped.is_some() {
            shrinker.rests_until = now + REST;
        }
        if done.stopped.is_none() && !done.nothing { Shrunk::Some } else { Shrunk::Nothing }
    }

    /// Writes a few batches: of anything, or only of what does not compress.
    fn write_some(&self, anything: bool) -> WrittenBack {
        if self.is_job_full() {
            let stopped = Some(WriteError::NoRoom);
            return WrittenBack { stopped, ..WrittenBack::default() };
        }
        let (mut bytes, mut last) = (0, WrittenBack::default());
        while bytes < STEP && (anything || self.store.has_raw()) {
            last = self.store.write_back();
            bytes += last.bytes;
            if last.objects == 0 || last.stopped.is_some() {
                break;
            }
        }
        self.counters.written_back.add(bytes as u64);
        last
    }

    /// Brings some objects back, for a fork that waits.
    fn recall_step(&self, worker: &mut Worker, shrinker: &mut Shrinker) -> Shrunk {
        if RECALL.load(Ordering::Acquire) != WANTED || !self.has_away() {
            return Shrunk::Nothing;
        }
        match self.store.bring_back_from(&mut worker.scratch, shrinker.back) {
            Ok(Some(next)) => shrinker.back = next,
            // What is still there is lost, or the pool has no room.
            Ok(None) | Err(_) => {
                let order = (Ordering::AcqRel, Ordering::Relaxed);
                let _ = RECALL.compare_exchange(WANTED, FAILED, order.0, order.1);
            }
        }
        task::futex_wake(&RECALL);
        Shrunk::Some
    }

    /// Whether there is a file to write to; the first time it is opened.
    fn has_file(&self, shrinker: &mut Shrinker) -> bool {
        if shrinker.opened == Opened::NotYet {
            let config = self.config.backing.as_ref();
            let opened =
                config.map(|config| open(config, self.keeper, self.ledger, self.config.limit));
            shrinker.opened = match opened {
                Some(Ok(backing)) => {
                    self.store.attach(backing);
                    Opened::Yes
                }
                Some(Err(why)) => {
                    self.keeps_raw.store(false, Ordering::Relaxed);
                    self.say_once(Once::NoBacking, format_args!("{why}"));
                    Opened::Never
                }
                None => Opened::Never,
            };
        }
        shrinker.opened == Opened::Yes
    }

    /// Whether the files of all processes together take what one's may. Of a process that is alone the file
    /// itself says so.
    fn is_job_full(&self) -> bool {
        let files = self.config.backing.iter().flat_map(BackingConfig::files);
        let most = files.fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
        let (all, own) = (self.ledger.file_bytes(), self.member.stored.file_bytes.get());
        all > own && all >= most
    }

    /// Tells what the files hold, and what went wrong with them.
    fn publish_backing(&self, shrinker: &mut Shrinker, now: Duration) {
        if !shrinker.is_on && now < shrinker.told_at + TOLD {
            return;
        }
        let Some(backing) = self.store.backing() else { return };
        shrinker.told_at = now;
        let stats = backing.stats();
        self.member.stored.away_bytes.set(stats.live_bytes);
        self.member.stored.file_bytes.set(stats.file_bytes);
        for ways in backing.ways() {
            let lacks = Lacks { direct: !ways.direct, holes: !ways.holes, ring: !ways.ring };
            self.ledger.note_backing(lacks);
        }
        match backing.trouble() {
            Some(trouble) if is_full(trouble.why) => {
                self.say_once(Once::DiskFull, format_args!("{trouble}"));
            }
            Some(trouble) => self.say_line(format_args!("{trouble}")),
            None => {}
        }
    }

    /// Says that there is no more room; what else stops it is told as trouble.
    fn say_stopped(&self, why: WriteError) {
        if why == WriteError::NoRoom {
            self.say_once(Once::FilesFull, format_args!("{why}; going on in memory"));
        }
    }

    /// Says what may hold for many processes of the job at a time, unless one of them has.
    fn say_once(&self, what: Once, words: fmt::Arguments<'_>) {
        if self.ledger.says_first(what) {
            self.say_line(words);
        }
    }

    fn say_line(&self, what: fmt::Arguments<'_>) {
        let mut line = Text::<256>::new();
        let _ = writeln!(line, "octavo: {what}");
        self.say(line.as_bytes());
    }
}

/// Why a process has no backing.
enum NoBacking {
    /// The keeper does not give its descriptor.
    NotGiven(Errno),
    Open(OpenError),
    Key(KeyError),
    New(NewError),
    /// Other processes of the job have them all.
    Taken,
}

impl fmt::Display for NoBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a process of the job goes on without a backing file: ")?;
        match self {
            Self::NotGiven(why) => write!(f, "it cannot be had ({})", reason(*why)),
            Self::Open(why) => why.fmt(f),
            Self::Key(why) => why.fmt(f),
            Self::New(why) => why.fmt(f),
            Self::Taken => f.write_str("another one has it"),
        }?;
        f.write_str("; this is said once, for all that have none")
    }
}

/// The backing of the calling process: of each directory a file of its own, and what is there once if nobody
/// else has it.
fn open(
    config: &BackingConfig,
    keeper: i32,
    ledger: &Ledger,
    limit: u64,
) -> Result<Backing<FileDevice>, NoBacking> {
    let keeper = task::pidfd(keeper).map_err(NoBacking::NotGiven)?;
    let lend = |fd: u32| task::borrow_fd(&keeper, fd as i32).map_err(NoBacking::NotGiven);
    let key_file = config.key.map(lend).transpose()?;
    let mut members = Vec::with_capacity(octavo_page::config::MAX_BACKING_FILES);
    for (n, file) in config.files().enumerate() {
        let BackingFile { fd, priority, kind, bytes } = file;
        let device = match kind {
            BackingKind::Directory => {
                FileDevice::nameless(&lend(fd)?, bytes).map_err(NoBacking::Open)?
            }
            BackingKind::Itself if ledger.claim(n) => {
                FileDevice::of(lend(fd)?, bytes, Options::default())
            }
            BackingKind::Itself => continue,
        };
        members.push(Member { device, crypt: crypt(key_file.as_ref())?, priority });
    }
    if members.is_empty() {
        return Err(NoBacking::Taken);
    }
    let chunks = Chunks::for_limit(limit);
    let geometry = Geometry::new(Geometry::USUAL.segment_bytes(), chunks.bytes);
    let geometry = geometry.unwrap_or(Geometry::USUAL);
    let config = Config { geometry, buffers: chunks.buffers, readers: READERS, clock };
    Backing::new(members, config).map_err(NoBacking::New)
}

fn crypt(key_file: Option<&Fd>) -> Result<Crypt, NoBacking> {
    let key = key_file.map_or_else(Key::ephemeral, Key::of_file);
    key.and_then(|key| Crypt::new(key, Format::PAGES)).map_err(NoBacking::Key)
}

fn clock() -> u64 {
    task::now().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_chunks_are_for_who_has_the_memory() {
        for (limit, chunks) in [
            (16 << 20, Chunks::SMALL),
            ((256 << 20) - 1, Chunks::SMALL),
            (256 << 20, Chunks::FOR_SPEED),
            (u64::MAX, Chunks::FOR_SPEED),
        ] {
            assert_eq!(Chunks::for_limit(limit), chunks, "of {limit} bytes");
            let geometry = Geometry::new(Geometry::USUAL.segment_bytes(), chunks.bytes);
            assert!(geometry.is_ok(), "{chunks:?}");
        }
        let taken = |chunks: Chunks| (chunks.bytes * chunks.buffers) as u64;
        assert!(taken(Chunks::FOR_SPEED) * 100 <= Chunks::FROM);
    }
}
