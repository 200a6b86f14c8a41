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
//! - `alloc`, `free` and `compact` take the lock of one lane for the bookkeeping. The bytes are
//!   written outside it. Threads that store at the same time use different lanes.
//! - Lock order: a thread holds at most one lane's lock, and takes no other lock of the pool while
//!   it does; the arena is called with a lane's lock held, so the arena must not call the pool.
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
pub mod reference;
mod stats;
mod zspages;

pub use error::{AllocError, BadHandle, ChainLengthError, ConfigError, Limit, OutOfFrames};
pub use lane::RUNS;
pub use stats::Stats;

use alloc::boxed::Box;
use core::ops::Range;
use core::ptr::NonNull;
use octavo_page::sync::Mutex;
use octavo_page::{Handle, Unit};

use ground::{Ground, Shape};
use handles::{Handles, Object};
use lane::{Held, Lane, Placed, Reach};
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

/// The longest run of side by side pages that objects share, as zsmalloc counts it: in units, so
/// that a zspage has this many times the pages of the largest object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChainLength(u8);

impl ChainLength {
    /// The shortest chain.
    pub const MIN: Self = Self(1);
    /// The longest chain, and what packs best.
    pub const MAX: Self = Self(16);

    /// A chain of `n` units.
    ///
    /// # Errors
    /// `n` is not 1 to 16.
    pub const fn new(n: usize) -> Result<Self, ChainLengthError> {
        if matches!(n, 1..=16) { Ok(Self(n as u8)) } else { Err(ChainLengthError(n)) }
    }

    /// The number of units.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl Default for ChainLength {
    fn default() -> Self {
        Self::MAX
    }
}

/// What a pool is made for.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The length of zspages.
    pub chain: ChainLength,
    /// The largest object in bytes, a unit: at most 64 KiB.
    pub max_object: usize,
    /// The most objects at one time. Only those there were cost memory, 8 bytes each.
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
}

/// Objects by handle in an arena.
pub struct Pool<A> {
    ground: Ground<A>,
    handles: Handles,
    lanes: Box<[Padded]>,
}

/// A lane's lock on cache lines of its own.
#[repr(align(128))]
struct Padded(Mutex<Lane>);

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
            ground: Ground { arena, shape, zspages: Zspages::new(zspages) },
            handles: Handles::new(config.max_objects),
            lanes: (0..LANES).map(|_| Padded(Mutex::new(Lane::new()))).collect(),
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
        let max = self.ground.shape.max_object;
        match len {
            0 => return Err(AllocError::Zero),
            _ if len > max => return Err(AllocError::TooLarge { len, max }),
            _ => {}
        }
        let Placed { handle, index, object } = self.place(len)?;
        // SAFETY: a reserved object stays where it is, and its handle names nothing yet, so nobody
        // else can come by its bytes.
        write(unsafe { self.ground.bytes_mut(object) });
        self.handles.publish(index);
        Ok(handle)
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

    /// Frees many objects, faster than one by one.
    pub fn free_many(&self, handles: &[Handle]) -> Freed {
        let mut freed = Freed::default();
        for some in handles.chunks(FREES_AT_ONCE) {
            self.free_some(some, &mut freed);
        }
        freed
    }

    /// Frees up to [`FREES_AT_ONCE`] objects step by step, each step fetching into the cache what
    /// the next one needs: objects freed in no order lie all over memory.
    fn free_some(&self, handles: &[Handle], freed: &mut Freed) {
        for &handle in handles {
            self.handles.prefetch(handle);
        }
        let mut unread = [(0, 0, Object { place: 0, len: 0 }); FREES_AT_ONCE];
        let mut count = 0;
        for &handle in handles {
            let Ok(killed) = self.handles.kill(handle) else {
                freed.refused += 1;
                continue;
            };
            freed.objects += 1;
            freed.bytes += killed.object.len;
            if killed.unread {
                self.ground.prefetch_ends(killed.object);
                unread[count] = (self.lane_of(killed.object), killed.index, killed.object);
                count += 1;
            }
        }
        let unread = &mut unread[..count];
        unread.sort_unstable_by_key(|&(lane, ..)| lane);
        for same in unread.chunk_by(|a, b| a.0 == b.0) {
            self.locked(same[0].0, |mut lane| lane.release_all(same));
        }
    }

    /// Moves up to `max_moves` objects so that whole pages come free, lane by lane, and stops when
    /// nothing worth it is left. Runs beside everything else.
    pub fn compact(&self, max_moves: usize) -> Compacted {
        let mut done = Compacted::default();
        let mut won = 0_isize;
        for number in 0..LANES {
            let mut dense = false;
            while !dense && done.moved < max_moves {
                let moves = MOVES_AT_ONCE.min(max_moves - done.moved);
                self.locked(number, |mut lane| {
                    let before = lane.lane.count.pages();
                    let step = lane.compact(moves);
                    won += before.cast_signed() - lane.lane.count.pages().cast_signed();
                    done.moved += step.moved;
                    dense = step.dense;
                });
            }
        }
        done.pages_freed = won.max(0).cast_unsigned();
        done
    }

    /// The arena.
    pub fn arena(&self) -> &A {
        &self.ground.arena
    }

    /// A place: in the home lane's holes, in another lane's hole of just this size, in a new zspage
    /// of the home lane, and, when that lane has no handle left, of another.
    fn place(&self, len: usize) -> Result<Placed, AllocError> {
        let home = home_lane();
        for step in 0..LANES {
            let number = (home + step) % LANES;
            let reach = if step == 0 { Reach::Hole } else { Reach::Tight };
            let Some(mut lane) = self.lanes[number].0.try_lock() else { continue };
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

    fn release(&self, index: u32, object: Object) {
        self.locked(self.lane_of(object), |mut lane| lane.release(index, object));
    }

    /// The lane of an object that is still there: its zspage cannot change hands.
    fn lane_of(&self, object: Object) -> usize {
        self.ground.zspages.lane(self.ground.shape.zspage_of(object.place))
    }

    fn locked<R>(&self, number: usize, work: impl FnOnce(Held<'_, A>) -> R) -> R {
        work(self.held(number, &mut self.lanes[number].0.lock()))
    }

    fn held<'a>(&'a self, number: usize, lane: &'a mut Lane) -> Held<'a, A> {
        Held { ground: &self.ground, handles: &self.handles, number, lane }
    }

    /// Walks everything and panics where an invariant does not hold. Nobody else may be at work.
    #[cfg(test)]
    fn check(&self) {
        for number in 0..LANES {
            self.locked(number, |mut lane| lane.check());
        }
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

/// The lane that this thread tries first. Threads have no storage of their own here, but each has
/// its own stack, so where that lies tells them apart well enough.
#[cfg(not(loom))]
fn home_lane() -> usize {
    let on_the_stack = 0_u8;
    let region = (&raw const on_the_stack).addr() >> 16;
    region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - LANES.ilog2())
}

#[cfg(loom)]
fn home_lane() -> usize {
    0
}

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod tests;
