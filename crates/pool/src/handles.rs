//! The handle table: where each object lies, and who may look at it.
//!
//! A handle is an index into this table and a generation, so that a stale handle is found out. Generations are
//! counted from another number in each pool, so that a handle of another pool mostly is, too. Its
//! word says everything about the object, and every change to it is one atomic step:
//!
//! ```text
//!   63         56   55   54      48 47          32 31                     0
//!  | generation | live |   pins    | length - 1  |  place, in 4-byte words  |
//!
//!   free    live 0, pins 0   the place is the next free index
//!   new     live 0, pins 1   alloc() is writing it; its handle names nothing yet
//!   live    live 1           read() may pin it, compaction may move it while nobody does
//!   dying   live 0, pins >0  freed while somebody reads; the last reader gives the space back
//!   doomed  live 0, pins of which there are never so many  freed by a call that frees many and will come back to it
//! ```
//!
//! Readers never wait: an object is never changed after it was written, so compaction copies it
//! while it is read, and lets go of the copy when it finds that somebody holds the original.
//! A word that is all zeros is a free entry that was never used: so words count generations from 0, and the
//! pool's first one is added where a handle is made or looked at.

#![allow(unsafe_code)] // Prefetching takes a raw pointer.

use alloc::boxed::Box;
use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use core::hint::spin_loop;
use core::ops::Range;
use octavo_page::Handle;
use octavo_page::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::BadHandle;
use octavo_page::zeroed::ZeroAtomic;

/// The end of a list of indices.
pub(crate) const NIL: u32 = u32::MAX;

/// Most bits of a handle that can be index; what is left is generation.
const MAX_INDEX_BITS: u32 = 28;
/// Most bits of generation a word holds.
const MAX_GENERATION_BITS: u32 = 8;

/// Pools made in this process so far. Not loom's: what number a pool has decides nothing that a model looks at.
static POOLS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
/// How far apart the first generations of two pools are that were made one after the other. It is odd, so no two
/// agree of as many pools as there are generations, and far from 0 whether 256 or 16 are all, so that a few uses of
/// an entry do not make up for it.
const FIRST_GENERATIONS_APART: u32 = 151;

/// Entries side by side that a list takes at once when they are first used, and keeps: so lanes hardly ever write to the
/// same line of the cache.
const FRESH: usize = 64;
/// They are such a part of all entries at most: what one list has no other can take.
const FRESH_PART: usize = 128;

/// Most objects a pool can be made for.
pub(crate) const MAX_OBJECTS: usize = (1 << MAX_INDEX_BITS) - 1;

const LENGTH_SHIFT: u32 = 32;
const PIN: u64 = 1 << 48;
const PINS: u64 = 0x7f << 48;
/// Readers of one object at most; one more waits.
const MAX_PINS: u64 = 119 * PIN;
/// The pins of what is doomed by the first call that may doom.
const DOOMED: u64 = MAX_PINS + PIN;
const LIVE: u64 = 1 << 55;
const GENERATION_SHIFT: u32 = 56;

/// Calls that may doom at a time.
pub(crate) const DOOMING: u32 = ((PINS - MAX_PINS) / PIN) as u32;

/// One entry of the table, as it was at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

impl Word {
    const fn place(self) -> u32 {
        self.0 as u32
    }

    const fn len(self) -> usize {
        ((self.0 >> LENGTH_SHIFT) & 0xffff) as usize + 1
    }

    const fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    const fn live(self) -> bool {
        self.0 & LIVE != 0
    }

    const fn pinned(self) -> bool {
        self.0 & PINS != 0
    }

    /// The object, if compaction may move it now.
    pub(crate) fn movable(self) -> Option<Object> {
        (self.live() && !self.pinned()).then(|| self.object())
    }

    /// Where the object lies; of an object that is dying, where it lay.
    pub(crate) const fn object(self) -> Object {
        Object { place: self.place(), len: self.len() }
    }

    fn with_place(self, place: u32) -> Self {
        Self(self.0 & !u64::from(u32::MAX) | u64::from(place))
    }
}

/// Where the bytes of an object lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Object {
    /// Offset of its first byte in the arena, in words of 4 bytes.
    pub place: u32,
    /// Its bytes, 1 to 65,536.
    pub len: usize,
}

/// What freeing a handle leaves to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Killed {
    pub index: u32,
    pub object: Object,
    /// Nobody reads it: the caller gives the space back. Otherwise the last reader does.
    pub unread: bool,
}

/// All entries of a pool.
pub(crate) struct Handles {
    words: Box<[AtomicU64]>,
    /// Entries that some list took; those from here on are all zeros.
    used: AtomicU32,
    /// So many of those are taken at once.
    fresh: u32,
    index_bits: u32,
    /// The generation in the handles of entries that are used for the first time.
    first_generation: u32,
}

impl Handles {
    /// A table for `max_objects` objects, at most [`MAX_OBJECTS`].
    pub(crate) fn new(max_objects: usize) -> Self {
        assert!((1..=MAX_OBJECTS).contains(&max_objects), "the caller checked");
        let needed = usize::BITS - (max_objects - 1).leading_zeros();
        let number = POOLS.fetch_add(1, Ordering::Relaxed);
        Self {
            words: AtomicU64::table(max_objects),
            used: AtomicU32::new(0),
            fresh: (max_objects / FRESH_PART).clamp(1, FRESH) as u32,
            index_bits: needed.max(u32::BITS - MAX_GENERATION_BITS),
            first_generation: number.wrapping_mul(FIRST_GENERATIONS_APART),
        }
    }

    /// The most objects there can be.
    pub(crate) fn capacity(&self) -> usize {
        self.words.len()
    }

    /// Bytes of the table that were ever touched.
    pub(crate) fn touched_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed) as usize * size_of::<AtomicU64>()
    }

    /// A free entry: from the list that starts at `free`, else one never used; those beside it go on the list.
    pub(crate) fn take(&self, free: &mut u32) -> Option<u32> {
        if *free != NIL {
            let index = *free;
            *free = self.load(index).place();
            return Some(index);
        }
        let fresh = self.take_fresh()?;
        fresh.clone().skip(1).rev().for_each(|index| self.put(index, 0, free));
        Some(fresh.start)
    }

    /// Entries side by side that were never used; `None` when there are none.
    fn take_fresh(&self) -> Option<Range<u32>> {
        let all = self.words.len() as u32;
        let mut used = self.used.load(Ordering::Relaxed);
        while used < all {
            let end = all.min(used + self.fresh);
            let order = (Ordering::Relaxed, Ordering::Relaxed);
            match self.used.compare_exchange_weak(used, end, order.0, order.1) {
                Ok(start) => return Some(start..end),
                Err(now) => used = now,
            }
        }
        None
    }

    /// Puts an entry that [`take`](Self::take) gave, and that names nothing, on the list `free`.
    pub(crate) fn put_back(&self, index: u32, free: &mut u32) {
        self.put(index, self.load(index).generation(), free);
    }

    /// Puts the entry of an object that is gone on the list `free`. Handles made from it before no
    /// longer name anything.
    pub(crate) fn retire(&self, index: u32, free: &mut u32) {
        self.put(index, self.load(index).generation() + 1, free);
    }

    fn put(&self, index: u32, generation: u32, free: &mut u32) {
        let word = u64::from(generation) << GENERATION_SHIFT | u64::from(*free);
        self.words[index as usize].store(word, Ordering::Release);
        *free = index;
    }

    /// Makes a taken entry that of `object`, which is still to be written. The handle names it once
    /// it is [`publish`](Self::publish)ed.
    pub(crate) fn reserve(&self, index: u32, object: Object) -> Handle {
        let before = self.load(index);
        let word = u64::from(before.generation()) << GENERATION_SHIFT
            | PIN
            | ((object.len - 1) as u64) << LENGTH_SHIFT
            | u64::from(object.place);
        self.words[index as usize].store(word, Ordering::Release);
        Handle::from_bits(self.generation_of(before) << self.index_bits | index)
    }

    /// Says that the object of a reserved entry is written.
    pub(crate) fn publish(&self, index: u32) {
        // Nobody else changes a reserved entry.
        let word = self.load(index).0;
        debug_assert_eq!(word & (LIVE | PINS), PIN, "reserved before, published once");
        self.words[index as usize].store(word + LIVE - PIN, Ordering::Release);
    }

    /// Holds the object where it is until [`unpin`](Self::unpin).
    pub(crate) fn pin(&self, handle: Handle) -> Result<(u32, Object), BadHandle> {
        let index = self.index_of(handle)?;
        let word = self.change(index, handle, |word| {
            // So many threads in one object: wait for one of them rather than let the count run over.
            (word.0 & PINS < MAX_PINS).then_some(Word(word.0 + PIN))
        })?;
        Ok((index, word.object()))
    }

    /// Ends one pin. The object, when it was freed meanwhile and this was its last reader: the
    /// caller gives its space back.
    #[must_use]
    pub(crate) fn unpin(&self, index: u32) -> Option<Object> {
        let before = Word(self.words[index as usize].fetch_sub(PIN, Ordering::AcqRel));
        debug_assert!(before.pinned(), "a pin is ended once");
        (!before.live() && before.0 & PINS == PIN).then(|| before.object())
    }

    /// Ends the object's life: from here on no handle names it.
    pub(crate) fn kill(&self, handle: Handle) -> Result<Killed, BadHandle> {
        let index = self.index_of(handle)?;
        let word = self.change(index, handle, |word| Some(Word(word.0 & !LIVE)))?;
        Ok(Killed { index, object: word.object(), unread: !word.pinned() })
    }

    /// As [`kill`](Self::kill); but when nobody reads it, the entry stays the caller's, who is to
    /// [`claim`](Self::claim) it and of whom there is one with this number, below [`DOOMING`].
    pub(crate) fn doom(&self, handle: Handle, caller: u32) -> Result<Killed, BadHandle> {
        let index = self.index_of(handle)?;
        let word = self.change(index, handle, |word| {
            let dead = word.0 & !LIVE;
            Some(Word(if word.pinned() { dead } else { dead + doomed_by(caller) }))
        })?;
        Ok(Killed { index, object: word.object(), unread: !word.pinned() })
    }

    /// Ends the doom of an entry by this caller, once: its index and its dead object. `None` for handles that were
    /// refused, or whose object's last reader sees to it.
    pub(crate) fn claim(&self, handle: Handle, caller: u32) -> Option<(u32, Object)> {
        let index = self.index_of(handle).ok()?;
        let word = self.load(index);
        let doomed = word.0 & (LIVE | PINS) == doomed_by(caller);
        if !doomed || !self.is_of(handle, word) {
            return None;
        }
        // Nobody else changes a doomed entry.
        self.words[index as usize].store(word.0 & !PINS, Ordering::Release);
        Some((index, word.object()))
    }

    /// The entry as it is now.
    pub(crate) fn load(&self, index: u32) -> Word {
        Word(self.words[index as usize].load(Ordering::Acquire))
    }

    /// Starts to fetch a handle's entry into the cache.
    pub(crate) fn prefetch(&self, handle: Handle) {
        if let Ok(index) = self.index_of(handle) {
            let entry = &raw const self.words[index as usize];
            // SAFETY: a prefetch reads nothing and cannot fail, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(entry.cast()) }
        }
    }

    /// Says that the object has moved to `place`, unless somebody pinned or freed it since `seen`.
    #[must_use]
    pub(crate) fn relocate(&self, index: u32, seen: Word, place: u32) -> bool {
        let new = seen.with_place(place).0;
        let entry = &self.words[index as usize];
        entry.compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Replaces the word of a live object by what `next` makes of it, waiting while that is `None`;
    /// gives the word as it was.
    fn change(
        &self,
        index: u32,
        handle: Handle,
        next: impl Fn(Word) -> Option<Word>,
    ) -> Result<Word, BadHandle> {
        let entry = &self.words[index as usize];
        let mut word = self.load(index);
        loop {
            if !self.names(handle, word) {
                return Err(BadHandle(handle));
            }
            let Some(new) = next(word) else {
                spin_loop();
                word = self.load(index);
                continue;
            };
            match entry.compare_exchange_weak(word.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(word),
                Err(now) => word = Word(now),
            }
        }
    }

    fn names(&self, handle: Handle, word: Word) -> bool {
        word.live() && self.is_of(handle, word)
    }

    /// Whether the entry is of the handle's generation.
    fn is_of(&self, handle: Handle, word: Word) -> bool {
        self.generation_of(word) == handle.bits() >> self.index_bits
    }

    /// The generation that handles of this entry have.
    const fn generation_of(&self, word: Word) -> u32 {
        let mask = (1 << (u32::BITS - self.index_bits)) - 1;
        word.generation().wrapping_add(self.first_generation) & mask
    }

    fn index_of(&self, handle: Handle) -> Result<u32, BadHandle> {
        let index = handle.bits() & ((1 << self.index_bits) - 1);
        if (index as usize) < self.words.len() { Ok(index) } else { Err(BadHandle(handle)) }
    }
}

const fn doomed_by(caller: u32) -> u64 {
    DOOMED + caller as u64 * PIN
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_entry_goes_through_its_life(
            max in prop_oneof![1..=100_usize, Just((1 << 24) + 1)],
            place in 0..u32::MAX,
            len in 1..=65536_usize,
            lives in 0..600_usize,
        ) {
            let table = Handles::new(max);
            let mut free = NIL;
            let object = Object { place, len };
            for _ in 0..lives {
                let index = table.take(&mut free).expect("one is free");
                table.retire(index, &mut free);
            }
            let index = table.take(&mut free).expect("one is free");
            let handle = table.reserve(index, object);
            prop_assert_eq!(table.pin(handle), Err(BadHandle(handle)));
            prop_assert_eq!(table.kill(handle), Err(BadHandle(handle)));
            prop_assert_eq!(table.load(index).movable(), None);
            table.publish(index);
            prop_assert_eq!(table.load(index).movable(), Some(object));

            prop_assert_eq!(table.pin(handle), Ok((index, object)));
            prop_assert_eq!(table.pin(handle), Ok((index, object)));
            prop_assert_eq!(table.load(index).movable(), None);
            prop_assert_eq!(table.unpin(index), None);
            let killed = Killed { index, object, unread: false };
            prop_assert_eq!(table.kill(handle), Ok(killed));
            prop_assert_eq!(table.kill(handle), Err(BadHandle(handle)));
            prop_assert_eq!(table.unpin(index), Some(object));

            table.retire(index, &mut free);
            let index = table.take(&mut free).expect("one is free");
            let next = table.reserve(index, object);
            table.publish(index);
            prop_assert_ne!(next, handle);
            prop_assert_eq!(table.kill(handle), Err(BadHandle(handle)));
            let killed = Killed { index, object, unread: true };
            prop_assert_eq!(table.kill(next), Ok(killed));
        }

        #[test]
        fn a_doomed_entry_is_claimed_once(
            place: u32,
            len in 1..=65536_usize,
            read: bool,
            caller in 0..DOOMING,
        ) {
            let table = Handles::new(10);
            let object = Object { place, len };
            let mut free = NIL;
            let index = table.take(&mut free).expect("one is free");
            let handle = table.reserve(index, object);
            prop_assert_eq!(table.claim(handle, caller), None);
            table.publish(index);
            prop_assert_eq!(table.claim(handle, caller), None);
            if read {
                table.pin(handle).expect("live");
            }
            let killed = Killed { index, object, unread: !read };
            prop_assert_eq!(table.doom(handle, caller), Ok(killed));
            prop_assert_eq!(table.doom(handle, caller), Err(BadHandle(handle)));
            prop_assert_eq!(table.kill(handle), Err(BadHandle(handle)));
            prop_assert_eq!(table.pin(handle), Err(BadHandle(handle)));
            prop_assert_eq!(table.load(index).movable(), None);
            if read {
                prop_assert_eq!(table.claim(handle, caller), None);
                prop_assert_eq!(table.unpin(index), Some(object));
            } else {
                prop_assert_eq!(table.claim(handle, (caller + 1) % DOOMING), None);
                prop_assert_eq!(table.claim(handle, caller), Some((index, object)));
                prop_assert_eq!(table.claim(handle, caller), None);
            }
            table.retire(index, &mut free);
            prop_assert_eq!(table.claim(handle, caller), None);
        }

        #[test]
        fn a_move_is_refused_once_somebody_looked(place: u32, to: u32, len in 1..=65536_usize) {
            let table = Handles::new(10);
            let object = Object { place, len };
            let index = table.take(&mut NIL.clone()).expect("one is free");
            let handle = table.reserve(index, object);
            table.publish(index);
            let seen = table.load(index);
            table.pin(handle).expect("live");
            prop_assert!(!table.relocate(index, seen, to));
            prop_assert_eq!(table.unpin(index), None);
            prop_assert!(table.relocate(index, seen, to), "nobody looks any more");
            prop_assert_eq!(table.pin(handle), Ok((index, Object { place: to, len })));
        }
    }
}
