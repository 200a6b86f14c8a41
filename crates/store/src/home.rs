//! Where the object of a unit is, once that may be elsewhere than its pages' words say.
//!
//! ```text
//!   63   62   61      56 55                                    0
//!   │busy│ 1 │    0     │        0          │     handle      │   in the pool, under another handle
//!   │ 0  │ 0 │    0     │               place                 │   written back
//!   │busy│ 0 │    0     │                 0                   │   in the pool, as the words say
//! ```
//! The pages of a unit have up to sixteen words, and all name the object. Were they to name its place in a
//! file instead, they would be changed one after the other, and the last page of a unit that is freed
//! meanwhile would not know what to free. So the words stay as they were put, and a unit has one *cell*
//! beside them that says where its object is: whatever happens to the object is one atomic step.
//!
//! ```text
//!   write back   0 ──begin──► busy ── is the unit still there? ── written ── finish ──► place
//!   clean        place ──moved──► place
//!   bring back   place ──return──► other handle
//!   last free    anything ──leave──► 0      whoever leaves frees what was named
//! ```
//! # Invariants
//!
//! - A cell belongs to a unit from the moment its first word is published until the last of its pages was
//!   freed, and is 0 before and after: units of one size do not overlap, and slots are given out again
//!   after the cell was left.
//! - *Busy* is for one writer at a time. It marks the unit that was there when the writer looked at its
//!   word again: a free takes it away, so that a later unit of the same slots is not told that its object
//!   is where the former one's was written.
//! - Whoever changes a cell owns what it named before, and frees that.
//!
//! Each size of unit has a table of its own, untouched where nothing was written back, and empty where
//! nothing ever can be.

use crate::table::first_of_unit;
use alloc::boxed::Box;
use octavo_backing::{Owner, Owners, Place};
use octavo_page::sync::atomic::{AtomicU64, Ordering};
use octavo_page::zeroed::ZeroAtomic;
use octavo_page::{Handle, SlotId, Unit};

/// Where an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// In the pool, under the handle that its pages' words have.
    Pool,
    /// In the pool, under this handle: it was away.
    Other(Handle),
    /// In a backing file.
    Away(Place),
}

const BUSY: u64 = 1 << 63;
const OTHER: u64 = 1 << 62;

impl Home {
    /// The handle in the pool of an object whose words have `handle`, or its place elsewhere.
    pub(crate) fn of_words(self, handle: Handle) -> Result<Handle, Place> {
        match self {
            Self::Pool => Ok(handle),
            Self::Other(handle) => Ok(handle),
            Self::Away(place) => Err(place),
        }
    }

    fn bits(self) -> u64 {
        match self {
            Self::Pool => 0,
            Self::Other(handle) => OTHER | u64::from(handle.bits()),
            Self::Away(place) => place.bits(),
        }
    }

    fn of(bits: u64) -> Self {
        let bits = bits & !BUSY;
        if bits & OTHER != 0 {
            return Self::Other(Handle::from_bits(bits as u32));
        }
        Place::from_bits(bits).map_or(Self::Pool, Self::Away)
    }
}

/// The cells of all units.
pub(crate) struct Homes([Box<[AtomicU64]>; Unit::ALL.len()]);

impl Homes {
    /// Cells for `slots` slots, no memory touched.
    pub(crate) fn new(slots: usize) -> Self {
        Self(Unit::ALL.map(|unit| AtomicU64::table(slots.div_ceil(unit.pages()))))
    }

    /// Whether anything can be written back.
    pub(crate) fn are_there(&self) -> bool {
        !self.0[0].is_empty()
    }

    /// The cell of the unit in which `slot` lies; none where nothing is ever written back.
    fn cell(&self, slot: SlotId, unit: Unit) -> Option<&AtomicU64> {
        self.0[size_of_unit(unit)].get(slot.index() / unit.pages())
    }

    /// Where the object of a unit is. Everything that was done before it came there is seen after this.
    pub(crate) fn home(&self, slot: SlotId, unit: Unit) -> Home {
        let cell = self.cell(slot, unit);
        cell.map_or(Home::Pool, |cell| Home::of(cell.load(Ordering::Acquire)))
    }

    /// Begins to write back the object of a unit that is in the pool: where, or nothing when it is away.
    /// One thread at a time, which goes on with [`finish`](Self::finish) or [`abandon`](Self::abandon),
    /// and looks at the unit's word once more first: it may have been freed before.
    pub(crate) fn begin(&self, slot: SlotId, unit: Unit) -> Option<Home> {
        let cell = self.cell(slot, unit)?;
        let bits = cell.load(Ordering::Acquire);
        let home = Home::of(bits);
        if matches!(home, Home::Away(_)) || !exchange(cell, bits, bits | BUSY) {
            return None;
        }
        Some(home)
    }

    /// Says that the object of a unit is at `place` from now on. False when the unit was freed meanwhile:
    /// then nobody will hear of the place again.
    #[must_use]
    pub(crate) fn finish(&self, slot: SlotId, unit: Unit, from: Home, place: Place) -> bool {
        let cell = self.cell(slot, unit);
        cell.is_some_and(|cell| exchange(cell, from.bits() | BUSY, Home::Away(place).bits()))
    }

    /// Says that the object of a unit will not be written back now.
    pub(crate) fn abandon(&self, slot: SlotId, unit: Unit, from: Home) {
        if let Some(cell) = self.cell(slot, unit) {
            exchange(cell, from.bits() | BUSY, from.bits());
        }
    }

    /// Says that the object of a unit, which is at `place`, is in the pool as `handle` from now on. False
    /// when it was moved or freed meanwhile.
    #[must_use]
    pub(crate) fn bring_back(
        &self,
        slot: SlotId,
        unit: Unit,
        place: Place,
        handle: Handle,
    ) -> bool {
        let cell = self.cell(slot, unit);
        let to = Home::Other(handle).bits();
        cell.is_some_and(|cell| exchange(cell, place.bits(), to))
    }

    /// Where the object of a unit was, whose last page was freed: the caller frees the object.
    pub(crate) fn leave(&self, slot: SlotId, unit: Unit) -> Home {
        let cell = self.cell(slot, unit);
        cell.map_or(Home::Pool, |cell| Home::of(cell.swap(0, Ordering::AcqRel)))
    }
}

fn exchange(cell: &AtomicU64, from: u64, to: u64) -> bool {
    cell.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// The place of a size among all sizes.
fn size_of_unit(unit: Unit) -> usize {
    match unit {
        Unit::K4 => 0,
        Unit::K16 => 1,
        Unit::K64 => 2,
    }
}

/// Bits of an owner's number that say how large its unit is.
const UNIT_BITS: u32 = 2;

/// Whose the object of a unit is, for the backing file.
pub(crate) fn owner(slot: SlotId, unit: Unit) -> Owner {
    let first = u64::from(first_of_unit(slot, unit).get());
    let number = first << UNIT_BITS | size_of_unit(unit) as u64;
    Owner::new(number).expect("a slot's number has 32 bits")
}

/// The first slot and the size of the unit that an owner is, if it is one.
fn unit_of(owner: Owner) -> Option<(SlotId, Unit)> {
    let number = owner.get();
    let unit = Unit::ALL.get((number & ((1 << UNIT_BITS) - 1)) as usize)?;
    Some((SlotId::new(u32::try_from(number >> UNIT_BITS).ok()?), *unit))
}

impl Owners for Homes {
    fn lives(&self, owner: Owner, place: Place) -> bool {
        unit_of(owner).is_some_and(|(slot, unit)| self.home(slot, unit) == Home::Away(place))
    }

    fn moved(&self, owner: Owner, from: Place, to: Place) -> bool {
        let cell = unit_of(owner).and_then(|(slot, unit)| self.cell(slot, unit));
        cell.is_some_and(|cell| exchange(cell, from.bits(), to.bits()))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_home_reads_back_as_it_was_written(
            handle: u32, len in 1_u64..=64 << 10, at in 0_u64..1 << 39, busy: bool
        ) {
            let place = Place::from_bits(at << 17 | len).expect("the bits of a place");
            let handle = Handle::from_bits(handle);
            for home in [Home::Pool, Home::Other(handle), Home::Away(place)] {
                let busy = if busy { BUSY } else { 0 };
                prop_assert_eq!(Home::of(home.bits() | busy), home);
            }
        }

        #[test]
        fn an_owner_is_the_unit_it_was_made_of(slot: u32, size in 0..3_usize) {
            let unit = Unit::ALL[size];
            let slot = SlotId::new(slot);
            prop_assert_eq!(unit_of(owner(slot, unit)), Some((first_of_unit(slot, unit), unit)));
        }
    }

    #[test]
    fn where_nothing_is_written_back_every_object_is_in_the_pool() {
        let none = Homes::new(0);
        let (slot, unit) = (SlotId::new(7), Unit::K16);
        assert_eq!(none.home(slot, unit), Home::Pool);
        assert_eq!(none.leave(slot, unit), Home::Pool);
        assert_eq!(none.begin(slot, unit), None);
    }
}
