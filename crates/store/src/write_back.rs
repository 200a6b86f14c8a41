//! The oldest objects out to a backing file, and back into the pool.
//!
//! ```text
//!   ages ── oldest cluster ── its units that are in the pool, in order of slot
//!              │ a batch: each cell busy, its word looked at once more, its object pinned
//!              └─ backing::write ── a place for each ── cell: place ── object freed
//!                                     └─ none: cell as before, stop
//! ```
//! Nobody who reads or frees waits for any of this: see `home.rs`. What is in the file is what was in the
//! pool, byte for byte; the word says which codec made it and the hash of each page is in its table as ever.
//!
//! A unit goes whole, whatever is left of it. Same-filled pages have no object and stay. Units that are kept
//! as they are go first ([`Store::has_raw`]): they lie in clusters of their own (`lib.rs`, `Lane`).

use crate::age::{CLUSTER, Oldest};
use crate::home::{Home, owner};
use crate::word::{Object, Word};
use crate::{BackError, Scratch, Store};
use alloc::sync::Arc;
use octavo_backing::{
    self as backing, Backing, Cleaned, Device, Place, ReadError, Reader, WriteError,
};
use octavo_page::sync::Mutex;
use octavo_page::sync::atomic::Ordering;
use octavo_page::{Handle, SlotId, Unit};
use octavo_pool::{Arena, Pinned};

/// Objects written in one call of the backing.
const BATCH: usize = 16;

/// Bytes of one call, about: what a fork, and others who want to write, wait for.
const BATCH_BYTES: usize = 128 << 10;

/// What one step of writing back came to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WrittenBack {
    /// Objects that are in the file now.
    pub objects: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Why no more are taken at the moment.
    pub stopped: Option<WriteError>,
    /// Whether there is nothing that could be written.
    pub nothing: bool,
}

/// How far the cluster that is gone through is.
#[derive(Default)]
pub(crate) struct Writer {
    at: Option<(Oldest, usize)>,
}

/// Objects that are about to be written.
struct Batch<'a, A: Arena> {
    units: [Option<Leaving<'a, A>>; BATCH],
    len: usize,
    bytes: usize,
}

/// A unit whose cell is busy.
struct Leaving<'a, A: Arena> {
    slot: SlotId,
    unit: Unit,
    from: Home,
    handle: Handle,
    object: Pinned<'a, A>,
}

impl<A: Arena> Batch<'_, A> {
    const fn new() -> Self {
        Self { units: [const { None }; BATCH], len: 0, bytes: 0 }
    }

    const fn is_full(&self) -> bool {
        self.len == BATCH || self.bytes >= BATCH_BYTES
    }
}

impl<A: Arena, D: Device> Store<A, D> {
    /// Whether there are units that are kept as they are, and were not gone through to be written back.
    #[must_use]
    pub fn has_raw(&self) -> bool {
        self.ages.first(self.slots.touched()).is_some()
    }

    /// Writes a batch of the oldest objects back. Nothing when there is no backing, or another thread is
    /// at it.
    pub fn write_back(&self) -> WrittenBack {
        let mut done = WrittenBack::default();
        let (Some(backing), Some(mut writer)) = (self.backing(), self.writer.try_lock()) else {
            return done;
        };
        let batch = self.gather_oldest(&mut writer);
        if batch.len == 0 {
            return WrittenBack { nothing: true, ..done };
        }
        let leaving = || batch.units.iter().flatten();
        let none = backing::Object { owner: owner(SlotId::new(0), Unit::K4), bytes: &[] };
        let (mut objects, mut places) = ([none; BATCH], [Err(WriteError::NoRoom); BATCH]);
        for (to, unit) in objects.iter_mut().zip(leaving()) {
            *to = backing::Object { owner: owner(unit.slot, unit.unit), bytes: &unit.object };
        }
        backing.write(&objects[..batch.len], &mut places[..batch.len]);
        for (unit, place) in leaving().zip(places) {
            let Leaving { slot, unit, from, handle, object } = unit;
            match place {
                Err(why) => {
                    self.homes.abandon(*slot, *unit, *from);
                    // One that is too long stays; the others need not.
                    let is_for_all = !matches!(why, WriteError::TooLong { .. });
                    done.stopped = done.stopped.or(is_for_all.then_some(why));
                }
                Ok(place) => {
                    self.away.fetch_add(1, Ordering::Relaxed);
                    if self.homes.finish(*slot, *unit, *from, place) {
                        self.free_object(*handle);
                        (done.objects, done.bytes) = (done.objects + 1, done.bytes + object.len());
                    } else {
                        // The unit was freed meanwhile, and its object with it.
                        self.free_away(place);
                    }
                }
            }
        }
        if done.stopped.is_some() {
            // What was not taken is still the oldest.
            writer.at = None;
        }
        done
    }

    /// The oldest objects that are in the pool, each held and its cell busy.
    fn gather_oldest(&self, writer: &mut Writer) -> Batch<'_, A> {
        let mut batch = Batch::new();
        // Every cluster that is gone through has one stamp fewer; those that get new ones are put to.
        for _ in 0..=self.table.len() / CLUSTER {
            let at = writer.at.or_else(|| Some((self.ages.oldest(self.slots.touched())?, 0)));
            let Some((oldest, from)) = at else { break };
            let next = self.gather_from(oldest.first, from, &mut batch);
            writer.at = (next < CLUSTER).then_some((oldest, next));
            if writer.at.is_none() {
                self.ages.done(oldest);
            }
            if batch.len > 0 {
                break;
            }
        }
        batch
    }

    /// Adds the units of a cluster from slot number `at` of it on; where it came to.
    fn gather_from<'a>(&'a self, first: SlotId, mut at: usize, batch: &mut Batch<'a, A>) -> usize {
        while at < CLUSTER && !batch.is_full() {
            let slot = first.offset(at as u32);
            let Word::Compressed(object) = self.word(slot) else {
                at += 1;
                continue;
            };
            at = (at / object.unit.pages() + 1) * object.unit.pages();
            if let Some(leaving) = self.hold(slot, object) {
                batch.bytes += leaving.object.len();
                batch.units[batch.len] = Some(leaving);
                batch.len += 1;
            }
        }
        at
    }

    /// Begins to write back the object of the unit that `slot` is in.
    fn hold(&self, slot: SlotId, object: Object) -> Option<Leaving<'_, A>> {
        let unit = object.unit;
        let from = self.homes.begin(slot, unit)?;
        let handle = from.of_words(object.handle).ok()?;
        // The unit may have been freed before the cell was busy, and another be there.
        let pinned =
            self.table.still(slot, Word::Compressed(object)).then(|| self.pool.pin(handle));
        match pinned {
            Some(Ok(object)) => Some(Leaving { slot, unit, from, handle, object }),
            _ => {
                self.homes.abandon(slot, unit, from);
                None
            }
        }
    }

    /// Brings the object of `slot`'s unit back into the pool, as it is; false when it is not away.
    ///
    /// # Errors
    /// When the object is lost, or the pool has no room: then it stays away.
    pub fn bring_back<E>(&self, scratch: &mut Scratch<E>, slot: SlotId) -> Result<bool, BackError> {
        let Word::Compressed(object) = self.word(slot) else { return Ok(false) };
        let unit = (slot, object.unit);
        while let Home::Away(place) = self.homes.home(slot, object.unit) {
            let store = |bytes: &[u8]| self.pool.store(bytes);
            let handle = match self.read_away(&mut scratch.reader, unit, place, store) {
                Err(ReadError::Gone) => continue,
                Err(ReadError::Lost(lost)) => return Err(BackError::Lost(lost)),
                Ok(handle) => handle.map_err(|_| BackError::NoRoom)?,
            };
            if self.homes.bring_back(slot, object.unit, place, handle) {
                self.ages.note(&[slot], false);
                self.free_away(place);
                return Ok(true);
            }
            self.free_object(handle);
        }
        Ok(false)
    }

    /// Brings back what is away of a cluster of slots, that of number `from`; where to go on, or `None`
    /// when that was the last. What is lost stays.
    ///
    /// # Errors
    /// When the pool has no room.
    pub fn bring_back_from<E>(
        &self,
        scratch: &mut Scratch<E>,
        from: usize,
    ) -> Result<Option<usize>, BackError> {
        let all = self.slots.touched().min(self.table.len());
        let end = (from + CLUSTER).min(all);
        for slot in (from..end).map(|n| SlotId::new(n as u32)) {
            match self.bring_back(scratch, slot) {
                Ok(_) | Err(BackError::Lost(_)) => {}
                Err(BackError::NoRoom) => return Err(BackError::NoRoom),
            }
        }
        Ok((end < all).then_some(end))
    }

    /// Cleans one segment of the backing, if one is worth it, and goes on with what rests there.
    pub fn clean<E>(&self, scratch: &mut Scratch<E>) -> Cleaned {
        let Some(backing) = self.backing() else { return Cleaned::Nothing };
        backing.tend();
        backing.clean(&mut scratch.reader, &self.homes)
    }

    /// Whether the object of a page is in the file at this moment.
    #[must_use]
    pub fn is_away(&self, slot: SlotId) -> bool {
        let Word::Compressed(object) = self.word(slot) else { return false };
        matches!(self.homes.home(slot, object.unit), Home::Away(_))
    }

    /// Objects that are in the file now.
    #[must_use]
    pub fn away_objects(&self) -> usize {
        self.away.load(Ordering::Relaxed)
    }

    /// Has objects be written back to `backing` from now on.
    ///
    /// # Panics
    /// When there is one, or the store was not made for any: a bug of the caller.
    pub fn attach(&self, backing: Backing<D>) {
        assert!(self.homes.are_there(), "a store that was made to write nothing back");
        let before = self.backing.lock().replace(Arc::new(backing));
        assert!(before.is_none(), "a store has one backing");
    }

    /// In a forked child: forgets the backing, which is the parent's. False when something is away there, of
    /// which the child has nothing.
    #[must_use]
    pub fn forget_backing(&mut self) -> bool {
        // A thread of the parent's may have had the locks.
        core::mem::forget(core::mem::take(&mut self.backing));
        self.writer = Mutex::default();
        self.away_objects() == 0
    }

    /// Where objects are written back to.
    pub fn backing(&self) -> Option<Arc<Backing<D>>> {
        self.backing.lock().clone()
    }

    /// What there is for who knows that something is away.
    fn there(&self) -> Arc<Backing<D>> {
        self.backing().expect("what is away has a backing")
    }

    /// Frees an object that was away.
    pub(crate) fn free_away(&self, place: Place) {
        self.away.fetch_sub(1, Ordering::Relaxed);
        self.there().free(&[place]);
    }

    /// Calls `f` with the bytes of the object of `slot`'s unit, which is at `place`.
    pub(crate) fn read_away<R>(
        &self,
        reader: &mut Reader,
        (slot, unit): (SlotId, Unit),
        place: Place,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, ReadError> {
        let backing = self.there();
        let found = backing.read(reader, &self.homes, owner(slot, unit), place)?;
        Ok(f(found.bytes()))
    }
}
