//! What the pager knows of each page: one word a page, found by address.
//!
//! ```text
//!   address  47 ........ 24 | 23 ...... 12 | 11 .. 0
//!                root index |   leaf index | in the page
//!
//!   root  one word for 16 MiB of addresses: the number of its leaf, or 0
//!   leaf  4096 words, one a page
//!   word  tag(2) heat(2) dense(1) number(27)
//!           00 Fresh    nothing is kept: present, or it reads as zeros
//!              Leaving  the same (number 1), but a discard of it may still be under way
//!           01 Stored   its contents lie in a slot, and nowhere else
//!           10 Kept     present, and a slot holds what it was when it came back
//!           11 Parked   taken out, uncompressed, in a place of the staging area
//! ```
//! Beside each word is a byte for the page's [past](crate::past).
//!
//! Root and leaves are reserved at start and cost memory only where they are touched. Words change
//! by compare-and-swap, since a server that brings a page back and an evictor that stores it may
//! finish at the same time; the one who comes second sees that and undoes its own part.

use crate::past::Past;
use alloc::boxed::Box;
use core::ops::Range;
use octavo_page::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use octavo_page::zeroed::ZeroAtomic;
use octavo_page::{PAGE_SHIFT, PAGE_SIZE, SlotId};

const LEAF_SHIFT: u32 = 24;
const LEAF_PAGES: usize = 1 << (LEAF_SHIFT - PAGE_SHIFT);
const ROOT_LEN: usize = 1 << (47 - LEAF_SHIFT);

const TAG: u32 = 0b11 << 30;
const TAG_STORED: u32 = 0b01 << 30;
const TAG_KEPT: u32 = 0b10 << 30;
const TAG_PARKED: u32 = 0b11 << 30;
const HEAT_SHIFT: u32 = 28;
const HEAT: u32 = 0b11 << HEAT_SHIFT;
const DENSE: u32 = 1 << 27;
const NUMBER: u32 = DENSE - 1;
const LEAVING: u32 = 1;

/// The heat of a page of which no more is known than that it was used.
pub const WARM: u32 = 1;

/// The heat of the hottest pages.
pub const HOTTEST: u32 = 0b11;

/// The largest number of slots that a word can name.
pub const MAX_SLOTS: usize = NUMBER as usize;

/// Where a page's contents are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the program, or it reads as zeros.
    Fresh,
    /// In the program, if it is there at all, and perhaps about to be discarded: what is found
    /// there now may be old contents that nobody is to see again. Not to be taken.
    Leaving,
    /// In a slot only.
    Stored(SlotId),
    /// In the program; the slot has what it was when it came back.
    Kept(SlotId),
    /// In this place of the staging area.
    Parked(u32),
}

/// The word of one page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(u32);

impl Word {
    /// A page of which nothing is known.
    pub const FRESH: Self = Self(0);

    /// A page at `place`, neither hot nor dense.
    #[must_use]
    pub fn new(place: Place) -> Self {
        let (tag, number) = match place {
            Place::Fresh => (0, 0),
            Place::Leaving => (0, LEAVING),
            Place::Stored(slot) => (TAG_STORED, slot.get()),
            Place::Kept(slot) => (TAG_KEPT, slot.get()),
            Place::Parked(at) => (TAG_PARKED, at),
        };
        assert!(number <= NUMBER, "a number past what a page's word can hold");
        Self(tag | number)
    }

    /// Where the contents are.
    #[must_use]
    pub fn place(self) -> Place {
        let number = self.0 & NUMBER;
        match self.0 & TAG {
            TAG_STORED => Place::Stored(SlotId::new(number)),
            TAG_KEPT => Place::Kept(SlotId::new(number)),
            TAG_PARKED => Place::Parked(number),
            _ if number == LEAVING => Place::Leaving,
            _ => Place::Fresh,
        }
    }

    /// The same page with this heat: so many rounds of the sweep pass it over.
    #[must_use]
    pub const fn heated(self, heat: u32) -> Self {
        Self(self.0 & !HEAT | heat << HEAT_SHIFT & HEAT)
    }

    /// The same page, marked as one that does not compress.
    #[must_use]
    pub const fn dense(self) -> Self {
        Self(self.0 | DENSE)
    }

    /// The same page after one more round.
    #[must_use]
    pub const fn cooled(self) -> Self {
        self.heated(self.heat().saturating_sub(1))
    }

    /// The same page, no longer marked as one that does not compress.
    #[must_use]
    pub const fn compressible(self) -> Self {
        Self(self.0 & !DENSE)
    }

    /// Rounds of the sweep that are still to pass it over.
    #[must_use]
    pub const fn heat(self) -> u32 {
        (self.0 & HEAT) >> HEAT_SHIFT
    }

    /// Did not compress when it was last tried.
    #[must_use]
    pub const fn is_dense(self) -> bool {
        self.0 & DENSE != 0
    }
}

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}+{}", self.place(), self.heat())?;
        if self.is_dense() { f.write_str("+dense") } else { Ok(()) }
    }
}

/// The cell that holds one page's word, and the page's past.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    word: &'a AtomicU32,
    past: &'a AtomicU8,
}

impl<'a> Cell<'a> {
    /// How soon the page came back, the last times.
    #[must_use]
    pub const fn past(self) -> Past<'a> {
        Past(self.past)
    }

    /// The word.
    #[must_use]
    pub fn load(self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Replaces `from` by `to`; the word found instead, when there is another.
    ///
    /// # Errors
    /// The word that was found.
    pub fn change(self, from: Word, to: Word) -> Result<(), Word> {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.word.compare_exchange(from.0, to.0, order.0, order.1).map(|_| ()).map_err(Word)
    }

    /// Puts `to` in place of whatever is there, and gives that.
    pub fn replace(self, to: Word) -> Word {
        Word(self.word.swap(to.0, Ordering::AcqRel))
    }
}

/// No leaf is left for another 16 MiB of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableFull;

/// The words of all pages.
#[derive(Debug)]
pub struct Table {
    /// Number of the leaf plus one, or 0.
    root: Box<[AtomicU32]>,
    leaves: Box<[AtomicU32]>,
    pasts: Box<[AtomicU8]>,
    next: AtomicU32,
}

impl Table {
    /// A table with leaves for `max_leaves` times 16 MiB of addresses.
    #[must_use]
    pub fn new(max_leaves: usize) -> Self {
        Self {
            root: AtomicU32::table(ROOT_LEN),
            leaves: AtomicU32::table(max_leaves * LEAF_PAGES),
            pasts: AtomicU8::table(max_leaves * LEAF_PAGES),
            next: AtomicU32::new(0),
        }
    }

    /// The cell of the page at `address`, if anything was ever noted near it.
    #[must_use]
    pub fn get(&self, address: usize) -> Option<Cell<'_>> {
        let at = self.index(address)?;
        Some(Cell { word: self.leaves.get(at)?, past: self.pasts.get(at)? })
    }

    fn index(&self, address: usize) -> Option<usize> {
        let leaf = self.root.get(address >> LEAF_SHIFT)?.load(Ordering::Acquire).checked_sub(1)?;
        Some(leaf as usize * LEAF_PAGES + leaf_index(address))
    }

    /// The word of the page at `address`.
    #[must_use]
    pub fn word(&self, address: usize) -> Word {
        self.get(address).map_or(Word::FRESH, Cell::load)
    }

    /// The cell of the page at `address`, made if need be.
    ///
    /// # Errors
    /// When all leaves are in use.
    pub fn get_or_make(&self, address: usize) -> Result<Cell<'_>, TableFull> {
        if self.get(address).is_none() {
            let root = self.root.get(address >> LEAF_SHIFT).ok_or(TableFull)?;
            let leaf = self.next.fetch_add(1, Ordering::Relaxed) as usize;
            if (leaf + 1) * LEAF_PAGES > self.leaves.len() {
                self.next.fetch_sub(1, Ordering::Relaxed);
                return Err(TableFull);
            }
            // Whoever loses this race leaves one leaf unused; only evictors make leaves, a few.
            let _ = root.compare_exchange(0, leaf as u32 + 1, Ordering::AcqRel, Ordering::Acquire);
        }
        self.get(address).ok_or(TableFull)
    }

    /// Calls `each` with the address and cell of every page of `span` that has a leaf.
    pub fn for_each(&self, span: Range<usize>, mut each: impl FnMut(usize, Cell<'_>)) {
        let mut at = span.start & !(PAGE_SIZE - 1);
        while at < span.end {
            match self.get(at) {
                Some(cell) => {
                    each(at, cell);
                    at += PAGE_SIZE;
                }
                None => at = ((at >> LEAF_SHIFT) + 1) << LEAF_SHIFT,
            }
        }
    }

    /// Notes that the sweep came by all pages of `span`.
    pub fn pass(&self, span: Range<usize>) {
        let mut at = span.start;
        while at < span.end {
            let next = (((at >> LEAF_SHIFT) + 1) << LEAF_SHIFT).min(span.end);
            if let Some(first) = self.index(at) {
                let pages = (next - at).div_ceil(PAGE_SIZE);
                self.pasts[first..first + pages].iter().for_each(|past| Past(past).pass());
            }
            at = next;
        }
    }

    /// The whole address space, for [`Table::for_each`].
    #[must_use]
    pub const fn everywhere() -> Range<usize> {
        0..ROOT_LEN << LEAF_SHIFT
    }
}

const fn leaf_index(address: usize) -> usize {
    (address >> PAGE_SHIFT) & (LEAF_PAGES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_word() -> impl Strategy<Value = Word> {
        let place = prop_oneof![
            Just(Place::Fresh),
            Just(Place::Leaving),
            (0..=NUMBER).prop_map(|n| Place::Stored(SlotId::new(n))),
            (0..=NUMBER).prop_map(|n| Place::Kept(SlotId::new(n))),
            (0..=NUMBER).prop_map(Place::Parked),
        ];
        (place, 0u32..=HOTTEST, any::<bool>()).prop_map(|(place, heat, dense)| {
            let word = Word::new(place).heated(heat);
            if dense { word.dense() } else { word }
        })
    }

    proptest! {
        #[test]
        fn a_word_keeps_its_place_whatever_its_marks(word in any_word()) {
            prop_assert_eq!(Word::new(word.place()), word.heated(0).compressible());
            prop_assert_eq!(word.dense().place(), word.place());
            prop_assert!(word.dense().is_dense());
            for heat in 0..=HOTTEST {
                prop_assert_eq!(word.heated(heat).place(), word.place());
                prop_assert_eq!(word.heated(heat).heat(), heat);
                prop_assert_eq!(word.heated(heat).cooled().heat(), heat.saturating_sub(1));
            }
        }

        #[test]
        fn what_was_put_at_an_address_is_found_there_and_only_there(
            pages in proptest::collection::btree_map(0usize..1 << 35, any_word(), 1..40)
        ) {
            let table = Table::new(64);
            for (page, word) in &pages {
                let cell = table.get_or_make(page << PAGE_SHIFT).expect("64 leaves suffice");
                cell.replace(*word);
            }
            let mut found = std::collections::BTreeMap::new();
            table.for_each(Table::everywhere(), |at, cell| {
                if cell.load() != Word::FRESH {
                    found.insert(at >> PAGE_SHIFT, cell.load());
                }
            });
            let noted: std::collections::BTreeMap<_, _> =
                pages.iter().filter(|p| *p.1 != Word::FRESH).map(|(p, w)| (*p, *w)).collect();
            prop_assert_eq!(found, noted);
        }

        #[test]
        fn the_sweep_passes_just_the_pages_of_a_span(
            pages in proptest::collection::btree_set(0usize..1 << 14, 1..40), span in (0usize..1 << 14, 0usize..1 << 14)
        ) {
            let table = Table::new(8);
            let past =
                |page: &usize| table.get_or_make(page << PAGE_SHIFT).expect("8 leaves suffice").past();
            pages.iter().for_each(|page| past(page).leave());
            let span = span.0.min(span.1)..span.0.max(span.1);
            table.pass(span.start << PAGE_SHIFT..span.end << PAGE_SHIFT);
            for page in &pages {
                let heat = past(page).come_back();
                prop_assert_eq!(heat == 0, span.contains(page), "page {}", page);
            }
        }
    }

    #[test]
    fn a_change_sees_what_came_between() {
        let table = Table::new(1);
        let cell = table.get_or_make(0x1000).expect("a leaf");
        let parked = Word::new(Place::Parked(7));
        assert_eq!(cell.change(Word::FRESH, parked), Ok(()));
        assert_eq!(cell.change(Word::FRESH, parked), Err(parked));
        assert_eq!(table.word(0x1fff), parked);
        assert_eq!(table.word(0x2000), Word::FRESH);
    }

    #[test]
    fn a_full_table_says_so() {
        let table = Table::new(1);
        assert!(table.get_or_make(0).is_ok());
        assert_eq!(table.get_or_make(1 << LEAF_SHIFT).err(), Some(TableFull));
        assert!(table.get_or_make(1 << 12).is_ok());
        assert_eq!(table.get_or_make(usize::MAX).err(), Some(TableFull));
    }
}
