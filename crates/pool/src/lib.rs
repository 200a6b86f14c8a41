//! The dense pool: compressed objects of any size up to a unit, back to back, named by handles,
//! movable.
//!
//! # The idea
//!
//! zsmalloc rounds each object up to a size class and fills zspages with objects of one class. That
//! wastes what the rounding adds, and, in a small pool, half a zspage for each of many classes. This
//! pool needs no classes: a zspage is address space that frames back page by page, so objects of
//! all sizes lie in it back to back and a page that no object touches costs nothing.
//!
//! ```text
//!   Handle ──► handle table ──► place, length        one atomic word an object   (handles.rs)
//!                                 │
//!              zspage  ┌──────────▼───────────────┐  chain × the largest object's pages
//!                      │ object object  hole  obj │                        (lane.rs, ground.rs)
//!                      └──────────────────────────┘
//!              lane: some zspages, their holes by size, one lock           (lane.rs, bins.rs)
//! ```
//!
//! # Who may do what at once
//!
//! - `read` takes no lock. It pins the object in its handle's word; a pinned object is neither moved
//!   nor is its space reused. Freeing a pinned object ends its handle at once; the space goes back
//!   with the last pin.
//! - `alloc` and `compact` take the lock of one lane for the bookkeeping. The bytes are written outside
//!   it. Threads that store at the same time use different lanes.
//! - `free` takes it if nobody has it, and otherwise leaves the dead object to whoever takes it next: it
//!   waits for nobody.
//! - A thread waits for a lane's lock only while it holds none, and there are no other locks; the arena is called with
//!   a lane's lock held, so the arena must not call the pool. Only compaction holds several, those that nobody had.
//!
//! Nothing is allocated after [`Pool::new`], so freeing never needs memory.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bins;
pub mod classes;
mod error;
mod ground;
mod handles;
mod lane;
mod left;
mod many;
mod pinned;
mod plain;
pub mod reference;
mod stats;
mod zspages;

pub use error::{AllocError, BadHandle, ConfigError, Limit, OutOfFrames};
pub use lane::RUNS;
pub use octavo_page::{ChainLength, ParseChainLengthError};
pub use pinned::Pinned;
pub use plain::Plain;
pub use stats::Stats;

use alloc::boxed::Box;
#[cfg(not(loom))]
use core::arch::x86_64::__rdtscp;
use core::array;
use core::hint::spin_loop;
use core::ops::Range;
use core::ptr::NonNull;
use octavo_page::sync::Mutex;
use octavo_page::sync::atomic::{AtomicU32, Ordering};
use octavo_page::{Handle, PAGE_SIZE, Unit};

use ground::{Ground, Shape};
use handles::{DOOMING, Handles, Killed, Object};
use lane::{Held, Lane, Placed, Reach, Step};
use left::Left;
use zspages::Zspages;

/// Most objects a pool can be made for.
pub const MAX_OBJECTS: usize = handles::MAX_OBJECTS;

/// Lanes of a pool: threads that can change it at the same time.
#[cfg(not(loom))]
const LANES: usize = 8;
#[cfg(loom)]
const LANES: usize = 2;

/// Moves of compaction under one hold of a lane's lock.
const MOVES_AT_ONCE: usize = 8;
/// Handles that `free_many` works on together.
const FREES_AT_ONCE: usize = 32;
/// Pages given back in the time that a move takes.
const PAGES_A_MOVE: usize = 4;
/// How often a thread looks whether a lane is free before it sleeps: some microseconds, while a lane is
/// held for less.
const SPINS: usize = if cfg!(loom) { 0 } else { 64 };
/// So many handles in one call may well be all there are of a zspage.
const MANY: usize = if cfg!(loom) {
    1
} else if cfg!(test) {
    10
} else {
    1024
};

/// One range of address space, backed page by page on demand; the pool decides which pages of it
/// are backed.
///
/// `commit` and `decommit` are called with a lane of the pool locked: they must not call the pool.
///
/// # Safety
/// The implementation promises: `base` is aligned to a page and never changes; `pages()` pages of
/// address space from there belong to the arena as long as it lives and nobody but the pool reads
/// or writes them; after `commit` of a run succeeded, the run is readable and writable until its
/// pages are decommitted.
#[allow(unsafe_code)] // The pool puts its objects where the arena says.
pub unsafe trait Arena: Send + Sync {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;

    /// Pages of address space.
    fn pages(&self) -> usize;

    /// Backs `pages` pages from page `first` on; none of them is backed now. Their contents may be
    /// anything.
    ///
    /// # Errors
    /// There are not that many frames; nothing has changed.
    fn commit(&self, first: usize, pages: usize) -> Result<(), OutOfFrames>;

    /// Takes the frames of the pages in `runs`, disjoint, not empty, at most [`RUNS`] of them, all
    /// backed now. The pool does not touch them until the next commit. A run may be part of one
    /// commit or of several.
    fn decommit(&self, runs: &[Range<u32>]);
}

/// What a pool is made for.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The length of zspages: so many times the pages of the largest object.
    pub chain: ChainLength,
    /// The largest object in bytes, a unit: at most 64 KiB.
    pub max_object: usize,
    /// The most objects at one time. Only those there were cost memory, 8 bytes each, and up to 63 more in each lane.
    pub max_objects: usize,
}

/// How many objects a call freed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Freed {
    /// Objects freed.
    pub objects: usize,
    /// Their bytes, as they were stored.
    pub bytes: usize,
    /// Handles that named no object.
    pub refused: usize,
}

/// What a call of compaction did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Compacted {
    /// Pages given back to the arena, those taken for the moved objects subtracted; 0 when a call
    /// ended with objects moved out of a zspage that is not empty yet.
    pub pages_freed: usize,
    /// Objects moved.
    pub moved: usize,
    /// Nothing worth it is left. Otherwise what the call was allowed is used up, by moves or by the search for
    /// what to move.
    pub dense: bool,
}

/// Objects by handle in an arena.
pub struct Pool<A> {
    ground: Ground<A>,
    handles: Handles,
    lanes: Box<[Padded]>,
    /// A bit for each call that may raze zspages now.
    razing: AtomicU32,
}

/// A lane's lock, and what was left to its next holder, on cache lines of their own.
#[repr(align(128))]
struct Padded {
    lock: Mutex<Lane>,
    left: Left,
    /// Words that a move has to win in this lane, as compaction came down to last: who compacts goes where that is
    /// most. Not loom's: it decides what is done first, and nothing else.
    turn: core::sync::atomic::AtomicU32,
}

impl Padded {
    fn new() -> Self {
        let turn = core::sync::atomic::AtomicU32::new(u32::MAX);
        Self { lock: Mutex::new(Lane::new()), left: Left::new(), turn }
    }
}

impl<A: Arena> Pool<A> {
    /// An empty pool in `arena`. Tables are sized here for the capacity and touched as it is used.
    ///
    /// # Errors
    /// A number of `config` is out of range, or the arena too small for one zspage. Of an arena
    /// over 16 GiB the rest is not used.
    pub fn new(arena: A, config: Config) -> Result<Self, ConfigError> {
        if !(1..=Unit::MAX.bytes()).contains(&config.max_object) {
            return Err(ConfigError::MaxObject(config.max_object));
        }
        if !(1..=MAX_OBJECTS).contains(&config.max_objects) {
            return Err(ConfigError::MaxObjects(config.max_objects));
        }
        let shape = Shape::new(&config);
        let zspages = shape.zspages_in(arena.pages());
        if zspages == 0 {
            let zspage = shape.pages() as usize;
            return Err(ConfigError::Arena { pages: arena.pages(), zspage });
        }
        Ok(Self {
            ground: Ground {
                arena,
                shape,
                zspages: Zspages::new(zspages),
                wasteful: AtomicU32::new(0),
                razed: AtomicU32::new(0),
            },
            handles: Handles::new(config.max_objects),
            lanes: (0..LANES).map(|_| Padded::new()).collect(),
            razing: AtomicU32::new(0),
        })
    }

    /// Stores a copy of `bytes`.
    ///
    /// # Errors
    /// See [`AllocError`]; the pool is as it was.
    pub fn store(&self, bytes: &[u8]) -> Result<Handle, AllocError> {
        self.alloc(bytes.len(), |to| to.copy_from_slice(bytes))
    }

    /// Stores an object of `len` bytes that `write` fills; what it leaves alone may be anything.
    /// The space of an object whose `write` panics is lost.
    ///
    /// # Errors
    /// See [`AllocError`]; the pool is as it was.
    #[allow(unsafe_code)] // The object lies in raw memory.
    pub fn alloc(&self, len: usize, write: impl FnOnce(&mut [u8])) -> Result<Handle, AllocError> {
        self.check_len(len)?;
        let Placed { handle, index, object, grew } = self.place(len)?;
        // SAFETY: a reserved object stays where it is, and its handle names nothing yet, so nobody
        // else can come by its bytes.
        write(unsafe { self.ground.bytes_mut(object) });
        // Once its handle names it, it may be moved.
        let grown = grew.then(|| self.lane_of(object));
        self.handles.publish(index);
        if let Some(lane) = grown {
            self.pay(lane);
        }
        Ok(handle)
    }

    /// What a new object pays for which pages were taken: where compaction could have won them, a few moves
    /// in its lane, and in one other lane, whose own thread may work elsewhere now. Where a call that freed many left
    /// pages to be given back, those of a zspage.
    fn pay(&self, number: usize) {
        let razed = self.ground.razed.load(Ordering::Relaxed);
        if razed != 0 {
            self.give_back(razed.trailing_zeros() as usize, 1);
        }
        let wasteful = self.ground.wasteful.load(Ordering::Relaxed);
        for some in [wasteful & 1 << number, wasteful & !(1 << number)] {
            let number = some.trailing_zeros() as usize;
            if let Some(mut lane) = self.lanes.get(number).and_then(|lane| lane.lock.try_lock()) {
                self.held(number, &mut lane).pay();
            }
        }
    }

    fn check_len(&self, len: usize) -> Result<(), AllocError> {
        let max = self.ground.shape.max_object;
        match len {
            0 => Err(AllocError::Zero),
            _ if len > max => Err(AllocError::TooLarge { len, max }),
            _ => Ok(()),
        }
    }

    /// Calls `f` with the bytes of an object, where they lie. Waits for nobody, and keeps nobody
    /// waiting but the reuse of this object's space.
    ///
    /// # Errors
    /// The handle names no object.
    #[allow(unsafe_code)] // The object lies in raw memory.
    pub fn read<R>(&self, handle: Handle, f: impl FnOnce(&[u8]) -> R) -> Result<R, BadHandle> {
        let (index, object) = self.handles.pin(handle)?;
        let _pin = Pin { pool: self, index };
        // SAFETY: `_pin` holds the object where it is until `f` has returned.
        Ok(f(unsafe { self.ground.bytes(object) }))
    }

    /// Ends an object; its bytes, as they were stored. When it is being read, its space is given
    /// back as soon as the last reader is done.
    ///
    /// # Errors
    /// The handle names no object: it was freed before, or never came from this pool.
    pub fn free(&self, handle: Handle) -> Result<usize, BadHandle> {
        let killed = self.handles.kill(handle)?;
        if killed.unread {
            self.release(killed.index, killed.object);
        }
        Ok(killed.object.len)
    }

    /// Frees many objects, faster than one by one, and fastest where that leaves nothing in a zspage. The pages of
    /// such zspages are given back later, by [`tidy`](Self::tidy) and [`compact`](Self::compact), where frames run
    /// out, and as new objects take pages; until then they count as spare.
    pub fn free_many(&self, handles: &[Handle]) -> Freed {
        let mut freed = Freed::default();
        let caller = if handles.len() < MANY { None } else { self.begin_razing() };
        if let Some(caller) = caller {
            self.raze(handles, &mut freed, caller);
            self.razing.fetch_and(!(1 << caller), Ordering::Release);
        } else {
            self.in_batches(handles, |some, dead| {
                self.kill(some, &mut freed, dead, Handles::kill);
                self.by_lane(dead, |lane, index, object| lane.take_dead(index, object));
            });
        }
        freed
    }

    /// A number for a call that may raze zspages, unless there are as many as may be.
    fn begin_razing(&self) -> Option<u32> {
        let mut now = self.razing.load(Ordering::Relaxed);
        loop {
            let caller = Some(now.trailing_ones()).filter(|&free| free < DOOMING)?;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match self.razing.compare_exchange_weak(now, now | 1 << caller, order.0, order.1) {
                Ok(_) => return Some(caller),
                Err(other) => now = other,
            }
        }
    }

    /// Calls `each` with some handles at a time, whose words are being fetched since the call before, and
    /// with an empty batch.
    fn in_batches(&self, handles: &[Handle], mut each: impl FnMut(&[Handle], &mut Batch)) {
        let mut batch = Batch::new();
        let fetch = |handles: &[Handle]| {
            let some = &handles[..handles.len().min(FREES_AT_ONCE)];
            some.iter().for_each(|&handle| self.handles.prefetch(handle));
        };
        fetch(handles);
        for (n, some) in handles.chunks(FREES_AT_ONCE).enumerate() {
            fetch(&handles[n * FREES_AT_ONCE + some.len()..]);
            batch.count = 0;
            each(some, &mut batch);
        }
    }

    /// Frees many objects in two passes, see `lane/raze.rs`. No other call has the number `caller`.
    fn raze(&self, handles: &[Handle], freed: &mut Freed, caller: u32) {
        self.in_batches(handles, |some, doomed| {
            self.kill(some, freed, doomed, |handles, handle| handles.doom(handle, caller));
            self.by_lane(doomed, |lane, _, object| lane.doom(object));
        });
        self.in_batches(handles, |some, dead| {
            let ours = some.iter().filter_map(|&handle| self.handles.claim(handle, caller));
            ours.for_each(|(index, object)| dead.put(index, object));
            self.by_lane(dead, |lane, index, object| lane.take_doomed(index, object));
        });
    }

    /// Gives back the pages of up to `most` razed zspages of a lane; how many. Its lock is not held meanwhile.
    fn give_back(&self, number: usize, most: usize) -> usize {
        let mut razed = self.locked(number, |mut lane| lane.take_razed(most));
        if razed.len() == 0 {
            return 0;
        }
        razed.give(&self.ground);
        self.locked(number, |mut lane| lane.gave_back(&razed))
    }

    /// Gives back the pages of razed zspages, as many as it takes `moves` moves' time; how many. And whether there
    /// are more.
    fn give_razed_back(&self, moves: usize) -> (usize, bool) {
        let (most, mut done) = (moves.saturating_mul(PAGES_A_MOVE), 0);
        loop {
            let razed = self.ground.razed.load(Ordering::Relaxed);
            if razed == 0 || done >= most {
                return (done, razed != 0);
            }
            let zspages = (most - done).div_ceil(self.ground.shape.pages() as usize);
            done += self.give_back(razed.trailing_zeros() as usize, zspages);
        }
    }

    /// Ends the lives of some objects in the way of `end`; those that nobody reads come into `dead`.
    fn kill(
        &self,
        handles: &[Handle],
        freed: &mut Freed,
        dead: &mut Batch,
        end: impl Fn(&Handles, Handle) -> Result<Killed, BadHandle>,
    ) {
        for &handle in handles {
            let Ok(killed) = end(&self.handles, handle) else {
                freed.refused += 1;
                continue;
            };
            freed.objects += 1;
            freed.bytes += killed.object.len;
            if killed.unread {
                dead.put(killed.index, killed.object);
            }
        }
    }

    /// Does `work` with each object, holding its lane.
    fn by_lane(&self, batch: &mut Batch, mut work: impl FnMut(&mut Held<'_, A>, u32, Object)) {
        let entries = &mut batch.entries[..batch.count];
        for (lane, _, object) in &mut *entries {
            *lane = self.lane_of(*object);
        }
        entries.sort_unstable_by_key(|&(lane, ..)| lane);
        for same in entries.chunk_by(|a, b| a.0 == b.0) {
            self.locked(same[0].0, |mut lane| {
                same.iter().for_each(|&(_, index, object)| work(&mut lane, index, object));
            });
        }
    }

    /// Moves up to `max_moves` objects so that whole pages come free, lane by lane, and stops when
    /// nothing worth it is left. To find out what is worth it counts as moves that take as long, and so does to
    /// give back what [`free_many`](Self::free_many) left. Runs beside everything else.
    pub fn compact(&self, max_moves: usize) -> Compacted {
        self.compact_by(max_moves, |number, moves| {
            self.locked_with_others(number, |mut lane| lane.compact(moves))
        })
    }

    /// The same for who has other work too: stops when a page costs more than a few moves, and keeps what it
    /// emptied for the next objects, as far as the stock goes.
    pub fn tidy(&self, max_moves: usize) -> Compacted {
        self.compact_by(max_moves, |number, moves| self.locked(number, |mut lane| lane.tidy(moves)))
    }

    fn compact_by(&self, max_moves: usize, work: impl Fn(usize, usize) -> Step) -> Compacted {
        let (given, more) = self.give_razed_back(max_moves);
        let mut done = Compacted::default();
        let (mut won, mut spent) = (given.cast_signed(), given / PAGES_A_MOVE);
        // None of a lane in which there is nothing more to do.
        let mut turns =
            array::from_fn(|number| Some(self.lanes[number].turn.load(Ordering::Relaxed)));
        while spent < max_moves {
            let Some(number) = next_turn(&turns) else { break };
            let step = work(number, MOVES_AT_ONCE.min(max_moves - spent));
            won += step.won;
            spent += step.cost();
            done.moved += step.moved;
            self.lanes[number].turn.store(step.turn, Ordering::Relaxed);
            turns[number] = (!step.dense).then_some(step.turn);
        }
        done.dense = !more && next_turn(&turns).is_none();
        done.pages_freed = won.max(0).cast_unsigned();
        done
    }

    /// The arena.
    pub fn arena(&self) -> &A {
        &self.ground.arena
    }

    /// The addresses of the arena up to the end of the last zspage that was ever used.
    #[must_use]
    pub fn reach(&self) -> Range<usize> {
        let start = self.ground.arena.base().addr().get();
        let pages = self.ground.zspages.used() as usize * self.ground.shape.pages() as usize;
        start..start + pages * PAGE_SIZE
    }

    /// A place for a new object. Where frames have run out and some are still to be given back, looks again once
    /// they are.
    fn place(&self, len: usize) -> Result<Placed, AllocError> {
        match self.place_now(len) {
            Err(AllocError::OutOfFrames) if self.give_razed_back(usize::MAX).0 > 0 => {
                self.place_now(len)
            }
            placed => placed,
        }
    }

    /// A place: in the home lane's holes, in another lane's hole of just this size, or of any size
    /// where that lane wastes much, in a new zspage of the home lane, and, when that lane has no handle
    /// left, of another.
    fn place_now(&self, len: usize) -> Result<Placed, AllocError> {
        let home = home_lane();
        for step in 0..LANES {
            let number = (home + step) % LANES;
            let Some(mut lane) = self.lanes[number].lock.try_lock() else { continue };
            let reach = if step == 0 || lane.wastes() { Reach::Hole } else { Reach::Tight };
            if let Ok(placed) = self.held(number, &mut lane).place(len, reach) {
                return Ok(placed);
            }
        }
        let mut refused = AllocError::Full(Limit::Objects(self.handles.capacity()));
        for step in 0..LANES {
            let number = (home + step) % LANES;
            let out_of_frames = refused == AllocError::OutOfFrames;
            let reach = if out_of_frames { Reach::Hole } else { Reach::Grow };
            match self.locked(number, |mut lane| lane.place(len, reach)) {
                Ok(placed) => return Ok(placed),
                Err(_) if out_of_frames => {}
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// Gives back the space of an object that is dead and that nobody reads, or has that done.
    fn release(&self, index: u32, object: Object) {
        let number = self.lane_of(object);
        match self.lanes[number].lock.try_lock() {
            Some(mut lane) => self.held(number, &mut lane).take_dead(index, object),
            None => self.lanes[number].left.push(&self.ground, index, object),
        }
    }

    /// The lane of an object that is still there: its zspage cannot change hands.
    fn lane_of(&self, object: Object) -> usize {
        self.ground.zspages.lane(self.zspage_of(object))
    }

    fn zspage_of(&self, object: Object) -> u32 {
        self.ground.shape.zspage_of(object.place)
    }

    fn locked<R>(&self, number: usize, work: impl FnOnce(Held<'_, A>) -> R) -> R {
        let lane = &self.lanes[number].lock;
        let spun = (0..SPINS).find_map(|_| {
            let taken = lane.try_lock();
            if taken.is_none() {
                spin_loop();
            }
            taken
        });
        work(self.held(number, &mut spun.unwrap_or_else(|| lane.lock())))
    }

    /// As [`locked`](Self::locked), with the locks of those others that nobody has. A thread waits for a lane only
    /// while it holds none.
    fn locked_with_others<R>(&self, number: usize, work: impl FnOnce(Held<'_, A>) -> R) -> R {
        self.locked(number, |held| {
            let mut guards: [_; LANES] = array::from_fn(|other| {
                let lane = &self.lanes[other].lock;
                if other == number { None } else { lane.try_lock() }
            });
            for (other, lane) in guards.iter_mut().enumerate() {
                lane.iter_mut().for_each(|lane| self.held(other, lane).bury());
            }
            let mut others = guards
                .each_mut()
                .map(|lane| lane.as_deref_mut().filter(|lane| lane.count.packed_pages > 0));
            work(Held { others: &mut others, lane: held.lane, ..held })
        })
    }

    /// A lane whose lock was taken, with what was left there taken in.
    fn held<'a>(&'a self, number: usize, lane: &'a mut Lane) -> Held<'a, A> {
        let mut held =
            Held { ground: &self.ground, handles: &self.handles, number, lane, others: &mut [] };
        self.lanes[number].left.take(&self.ground, &self.handles, |index, object| {
            held.take_dead(index, object);
        });
        held
    }

    /// Walks everything and panics where an invariant does not hold. Nobody else may be at work.
    #[cfg(test)]
    fn check(&self) {
        for number in 0..LANES {
            self.locked(number, |mut lane| lane.check());
        }
    }
}

/// Whose turn it is: the lane that is to win most by a move, the first of those that do.
fn next_turn(turns: &[Option<u32>; LANES]) -> Option<usize> {
    let most = turns.iter().max()?.as_ref()?;
    turns.iter().position(|turn| turn.as_ref() == Some(most))
}

/// Some objects, each with its lane, once that is looked up, and its handle's index.
struct Batch {
    entries: [(usize, u32, Object); FREES_AT_ONCE],
    count: usize,
}

impl Batch {
    const fn new() -> Self {
        Self { entries: [(0, 0, Object { place: 0, len: 0 }); FREES_AT_ONCE], count: 0 }
    }

    fn put(&mut self, index: u32, object: Object) {
        self.entries[self.count] = (0, index, object);
        self.count += 1;
    }
}

/// A pin on an object; the last one of a freed object gives its space back.
struct Pin<'a, A: Arena> {
    pool: &'a Pool<A>,
    index: u32,
}

impl<A: Arena> Drop for Pin<'_, A> {
    fn drop(&mut self) {
        if let Some(object) = self.pool.handles.unpin(self.index) {
            self.pool.release(self.index, object);
        }
    }
}

/// The lane that this thread tries first: that of the CPU it runs on, so that threads that run at the same
/// time have different ones. It may be elsewhere the moment after, and then meets somebody.
#[cfg(not(loom))]
#[allow(unsafe_code)] // The instruction that tells the CPU is an intrinsic.
fn home_lane() -> usize {
    let mut cpu = 0;
    // SAFETY: every x86-64 processor that runs Linux 6.11 has RDTSCP; it writes to `cpu` alone.
    unsafe { __rdtscp(&raw mut cpu) };
    // Linux keeps the number of the CPU in the lower 12 bits, its node above.
    cpu as usize % LANES
}

#[cfg(loom)]
fn home_lane() -> usize {
    0
}

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod tests;
