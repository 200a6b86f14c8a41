//! The tables of the store, indexed by slot.
//!
//! | table | per slot | says |
//! |---|---|---|
//! | pairs | 16 bytes | what the slot holds ([`Word`]), and the hash of its page, where that is compressed |
//! | wanted | 2 bits | whether its unit still needs the page |
//!
//! A page that is read needs both of its pair, so they lie side by side: one line fetched from memory.
//! The tables are sized for every slot there may be and born untouched: memory that nothing was written
//! to costs nothing. A cluster of slots is two pages of pairs, so what is given out cluster by
//! cluster is touched page by page.
//!
//! # When a word changes
//!
//! A page's bytes, hash and word are written by the thread that was given its slot and by nobody
//! else, in this order: object, hash, then word. So a reader that sees a word sees the hash and
//! the object that belong to it. The slot is taken from its word to empty by exactly one thread
//! (a swap), and given out again only after that. A reader that found bytes for a word looks at the
//! word once more: unchanged, the bytes were the slot's all the while.
//!
//! # When an object goes
//!
//! The pages of a unit share one object. Each has a *wanted* bit, set before its word is, cleared
//! by the thread that took its word away, after it did. Who clears the last bit of a unit frees the
//! object: the bits of a unit lie in one word of memory, so exactly one thread sees itself last.
//! Same-filled pages of a unit need no object and never have a bit.
//!
//! One `u32` serves sixteen slots: bits 0 to 15 are the pages of a 64K unit, bits 16 to 31 those of
//! four 16K units. The two do not share bits, because a 16K unit may come to lie where a 64K unit
//! is partly gone. Two units of one size never overlap: a unit's slots are given out only when all
//! of them are free, and a slot is freed after its bit was cleared. A 4K unit has no bit: its word
//! is enough.

use crate::word::{Object, Word};
use alloc::boxed::Box;
use octavo_page::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use octavo_page::zeroed::ZeroAtomic;
use octavo_page::{SlotId, Unit};

/// What is known of each slot.
pub(crate) struct Table {
    /// Word and hash of each slot in turn.
    pairs: Box<[AtomicU64]>,
    wanted: Box<[AtomicU32]>,
}

/// Slots whose wanted bits share one `u32`: as many as the largest unit has.
const GROUP: usize = Unit::MAX.pages();

/// Bytes of table behind each 16 slots.
const GROUP_BYTES: usize = GROUP * 2 * size_of::<u64>() + size_of::<u32>();

impl Table {
    /// `slots` empty slots, no memory touched.
    pub(crate) fn new(slots: usize) -> Self {
        Self { pairs: AtomicU64::table(2 * slots), wanted: AtomicU32::table(slots.div_ceil(GROUP)) }
    }

    /// The number of slots.
    pub(crate) fn len(&self) -> usize {
        self.pairs.len() / 2
    }

    /// Bytes of these tables when the first `slots` slots were used.
    pub(crate) fn bytes_for(slots: usize) -> usize {
        slots.div_ceil(GROUP) * GROUP_BYTES
    }

    fn word_cell(&self, slot: SlotId) -> &AtomicU64 {
        &self.pairs[2 * slot.index()]
    }

    fn hash_cell(&self, slot: SlotId) -> &AtomicU64 {
        &self.pairs[2 * slot.index() + 1]
    }

    /// What a slot holds. Everything written before the word was is seen after this.
    pub(crate) fn word(&self, slot: SlotId) -> Word {
        Word::of(self.word_cell(slot).load(Ordering::Acquire))
    }

    /// Whether a slot still holds `word`, of which bytes were read since [`Self::word`] gave it.
    pub(crate) fn still(&self, slot: SlotId, word: Word) -> bool {
        // What was read before is not read after the word is.
        fence(Ordering::Acquire);
        self.word_cell(slot).load(Ordering::Relaxed) == word.bits()
    }

    /// The hash of the page that the slot's object holds.
    pub(crate) fn hash(&self, slot: SlotId) -> u64 {
        self.hash_cell(slot).load(Ordering::Relaxed)
    }

    /// Fills the slots from `first` on, which this thread was given and nobody else knows, with units of this
    /// size.
    pub(crate) fn publish(&self, first: SlotId, unit: Unit, words: &[Word], hashes: &[u64]) {
        // Whoever sees one of these hashes sees that the slot's former word is gone.
        fence(Ordering::Release);
        if unit != Unit::K4 {
            self.want(first, unit, words);
        }
        let (pairs, _) = self.pairs[2 * first.index()..].as_chunks::<2>();
        for (([cell, hash_cell], word), hash) in pairs.iter().zip(words).zip(hashes) {
            debug_assert_eq!(cell.load(Ordering::Relaxed), Word::Empty.bits());
            hash_cell.store(*hash, Ordering::Relaxed);
            cell.store(word.bits(), Ordering::Release);
        }
    }

    /// Says that the pages of these units are wanted, as far as they need an object.
    fn want(&self, first: SlotId, unit: Unit, words: &[Word]) {
        for (n, words) in words.chunks(unit.pages()).enumerate() {
            let slot = first.offset((n * unit.pages()) as u32);
            let has_object = |word: &Word| matches!(word, Word::Compressed(_));
            let pages =
                words.iter().rev().fold(0, |bits, word| bits << 1 | u32::from(has_object(word)));
            if let Some((cell, bit)) = self.wanted_bit(slot, unit).filter(|_| pages != 0) {
                cell.fetch_or(pages * bit, Ordering::Relaxed);
            }
        }
    }

    /// Empties a slot and returns what it held. Of several threads one gets it.
    pub(crate) fn take(&self, slot: SlotId) -> Word {
        Word::of(self.word_cell(slot).swap(Word::Empty.bits(), Ordering::AcqRel))
    }

    /// Puts [`Word::Poisoned`] in the place of a page and returns the page's word, or `None` when
    /// there is none.
    pub(crate) fn poison(&self, slot: SlotId) -> Option<Word> {
        let word = self.word_cell(slot);
        let poisoned = Word::Poisoned.bits();
        let mut bits = word.load(Ordering::Acquire);
        loop {
            if matches!(Word::of(bits), Word::Empty | Word::Poisoned) {
                return None;
            }
            match word.compare_exchange_weak(bits, poisoned, Ordering::AcqRel, Ordering::Acquire) {
                Ok(bits) => return Some(Word::of(bits)),
                Err(now) => bits = now,
            }
        }
    }

    /// Says that a page is not wanted any more, after its word was taken away. True when it was the
    /// last of its object: then the caller frees the object.
    pub(crate) fn unwant(&self, slot: SlotId, object: Object) -> bool {
        let Some((cell, bit)) = self.wanted_bit(slot, object.unit) else {
            return true;
        };
        let unit = unit_mask(slot, object.unit);
        let before = cell.fetch_and(!bit, Ordering::AcqRel);
        debug_assert_ne!(before & bit, 0, "{slot} is unwanted twice");
        before & unit == bit
    }

    /// The pages of this slot's unit that are still wanted, bit 0 the unit's first.
    pub(crate) fn wanted(&self, slot: SlotId, object: Object) -> u16 {
        match self.wanted_bit(slot, object.unit) {
            None => 1,
            Some((cell, _)) => {
                let mask = unit_mask(slot, object.unit);
                ((cell.load(Ordering::Relaxed) & mask) >> mask.trailing_zeros()) as u16
            }
        }
    }

    /// Where the wanted bit of a slot is, if its unit has bits.
    fn wanted_bit(&self, slot: SlotId, unit: Unit) -> Option<(&AtomicU32, u32)> {
        let at = slot.index() % GROUP;
        let bit = match unit {
            Unit::K4 => return None,
            Unit::K16 => 1 << (GROUP + at),
            Unit::K64 => 1 << at,
        };
        Some((&self.wanted[slot.index() / GROUP], bit))
    }
}

/// The bits of all pages of the unit in which `slot` lies.
fn unit_mask(slot: SlotId, unit: Unit) -> u32 {
    let first = first_of_unit(slot, unit).index() % GROUP;
    match unit {
        Unit::K4 | Unit::K16 => ((1 << unit.pages()) - 1) << (GROUP + first),
        Unit::K64 => u32::from(u16::MAX),
    }
}

/// The first slot of the unit in which `slot` lies.
pub(crate) fn first_of_unit(slot: SlotId, unit: Unit) -> SlotId {
    SlotId::new(slot.get() & !(unit.pages() as u32 - 1))
}
