//! Several devices: by priority, in turns among equals, and one taken away while it is used.
//!
//! ```text
//!   priority 10    a   b      tried first, in turns: a cluster's worth of slots on each
//!   priority  1      c        tried when neither has room
//! ```
//!
//! Each device has an allocator of its own, and nothing is shared on the way to it but notes that are
//! read: whose turn it is, each CPU decides for itself.
//!
//! # Taking a device away
//!
//! [`Devices::close`] first marks the device closed, then goes through its taken slots and has the
//! caller move each to another device. An allocation takes its slot first and then looks whether the
//! device is closed; if so it gives the slot back. Both the taking and the search hold the lock of
//! the slot's cluster: if the taking comes first, the search finds the slot; if the search does, the
//! mark was set before, and the allocation sees it. There is no count of who is inside.

use crate::twins::Allocator;
use crate::{CLUSTER_SLOTS, FreeError};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use octavo_page::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use octavo_page::{Order, SlotId};

/// What the contents of slots lie on.
pub trait Device {
    /// Why it does not do what it is told.
    type Error;

    /// What is in `slots` slots from `first` on is no longer wanted: a hole can be punched there.
    ///
    /// # Errors
    /// The device's own. Then it may hold the contents still, or a part.
    fn discard(&self, first: SlotId, slots: usize) -> Result<(), Self::Error>;
}

/// One of several devices, by its place in the list that [`Devices::new`] got.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceId(pub u8);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.0)
    }
}

/// A slot of one of several devices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The device.
    pub device: DeviceId,
    /// The slot on it.
    pub slot: SlotId,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.slot, self.device)
    }
}

/// The most devices there can be.
pub const MAX_DEVICES: usize = 32;

/// How often [`Devices::close`] looks again for slots that nobody says are theirs: an allocation that
/// is just giving one back takes a moment.
const PASSES: usize = 64;

/// A list of devices that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DevicesError {
    /// How many were given.
    pub devices: usize,
}

impl fmt::Display for DevicesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} devices; it takes 1 to {MAX_DEVICES}", self.devices)
    }
}

impl core::error::Error for DevicesError {}

/// A free that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceError {
    /// There is no such device.
    NoSuchDevice {
        /// What was named.
        device: DeviceId,
    },
    /// The device's allocator refused.
    Refused {
        /// Which device.
        device: DeviceId,
        /// Why.
        error: FreeError,
    },
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchDevice { device } => write!(f, "there is no {device}"),
            Self::Refused { device, error } => write!(f, "{device}: {error}"),
        }
    }
}

impl core::error::Error for PlaceError {}

/// Why a device could not be taken away. It is open again, and what was moved stays moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseError {
    /// There is no such device.
    NoSuchDevice {
        /// What was named.
        device: DeviceId,
    },
    /// It is closed, or being closed by another thread.
    Closed {
        /// Which.
        device: DeviceId,
    },
    /// The other devices have no room for what is left on it.
    NoRoom {
        /// Which.
        device: DeviceId,
        /// Slots that are taken on it still.
        left: usize,
    },
    /// What is in this slot cannot be moved.
    Unmovable {
        /// Which.
        place: Place,
    },
    /// This slot is taken, and whoever was asked does not know it.
    Unclaimed {
        /// Which.
        place: Place,
    },
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchDevice { device } => write!(f, "there is no {device}"),
            Self::Closed { device } => write!(f, "{device} is closed or being closed"),
            Self::NoRoom { device, left } => {
                write!(f, "{device} holds {left} slots for which the other devices have no room")
            }
            Self::Unmovable { place } => write!(f, "{place} cannot be moved"),
            Self::Unclaimed { place } => write!(f, "{place} is taken but not known"),
        }
    }
}

impl core::error::Error for CloseError {}

/// What became of a slot that [`Devices::close`] wants moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moved {
    /// The contents are in the new place, and nobody will name the old one again.
    Yes,
    /// They could not be read or written; they are where they were.
    No,
    /// Nobody knows that slot: it was freed meanwhile, or is not known yet.
    Unknown,
}

/// Allocators of several devices.
pub struct Devices<A> {
    members: Box<[Member<A>]>,
    /// Members by priority, the highest first; equals together.
    ranks: Box<[Box<[DeviceId]>]>,
    turns: Box<[Turn]>,
}

struct Member<A> {
    slots: A,
    closed: AtomicBool,
}

/// Slots that a CPU has taken so far: says whose turn it is among equals. On a cache line of its own.
#[repr(align(128))]
struct Turn(AtomicU32);

impl<A: Allocator> Devices<A> {
    /// These devices, each with its priority, open, for `cpus` CPUs that allocate at once.
    ///
    /// # Errors
    /// [`DevicesError`] when there are none or too many.
    pub fn new(devices: Vec<(A, i32)>, cpus: usize) -> Result<Self, DevicesError> {
        if devices.is_empty() || devices.len() > MAX_DEVICES {
            return Err(DevicesError { devices: devices.len() });
        }
        let mut ids: Vec<_> = (0..).map(DeviceId).zip(devices.iter().map(|(_, p)| *p)).collect();
        ids.sort_by_key(|(_, priority)| core::cmp::Reverse(*priority));
        let equals = ids.chunk_by(|a, b| a.1 == b.1);
        let ranks = equals.map(|rank| rank.iter().map(|(id, _)| *id).collect()).collect();
        let member = |(slots, _)| Member { slots, closed: AtomicBool::new(false) };
        Ok(Self {
            members: devices.into_iter().map(member).collect(),
            ranks,
            turns: (0..cpus.max(1)).map(|_| Turn(AtomicU32::new(0))).collect(),
        })
    }

    /// The allocator of a device.
    #[must_use]
    pub fn device(&self, device: DeviceId) -> Option<&A> {
        self.members.get(usize::from(device.0)).map(|member| &member.slots)
    }

    /// Takes an aligned run of slots for a folio on the device of the highest priority that has room.
    /// See [`crate::Slots::alloc`].
    #[must_use]
    pub fn alloc(&self, order: Order, cpu: usize) -> Option<Place> {
        let turn = &self.turns[cpu % self.turns.len()].0;
        let taken = turn.load(Ordering::Relaxed);
        let start = cpu + taken as usize / CLUSTER_SLOTS;
        let place = self.ranks.iter().find_map(|rank| {
            (0..rank.len()).find_map(|n| self.alloc_on(rank[(start + n) % rank.len()], order, cpu))
        });
        // A turn that another thread of this CPU changes meanwhile is only less even.
        turn.store(taken.wrapping_add(order.pages() as u32), Ordering::Relaxed);
        place
    }

    /// A run on this device, unless it is closed or has none.
    fn alloc_on(&self, device: DeviceId, order: Order, cpu: usize) -> Option<Place> {
        let member = &self.members[usize::from(device.0)];
        if member.closed.load(Ordering::Relaxed) {
            return None;
        }
        let slot = member.slots.alloc(order, cpu)?;
        if !member.closed.load(Ordering::Relaxed) {
            return Some(Place { device, slot });
        }
        let freed = member.slots.free(slot, order.pages());
        debug_assert_eq!(freed, Ok(()), "nobody else knows this folio");
        None
    }

    /// Gives back `pages` slots from `first` on; see [`crate::Slots::free`].
    ///
    /// # Errors
    /// [`PlaceError`]; then nothing was freed.
    pub fn free(&self, first: Place, pages: usize) -> Result<(), PlaceError> {
        let Place { device, slot } = first;
        let slots = self.device(device).ok_or(PlaceError::NoSuchDevice { device })?;
        slots.free(slot, pages).map_err(|error| PlaceError::Refused { device, error })
    }

    /// Gives back many slots of one device; see [`crate::Slots::free_many`].
    ///
    /// # Errors
    /// [`PlaceError`] for the first that is not taken; all others are freed.
    pub fn free_many(&self, device: DeviceId, slots: &[SlotId]) -> Result<(), PlaceError> {
        let on = self.device(device).ok_or(PlaceError::NoSuchDevice { device })?;
        on.free_many(slots).map_err(|error| PlaceError::Refused { device, error })
    }

    /// Takes a device away: nothing is given out on it any more, and what it holds is moved, slot by
    /// slot, by `relocate(from, to)`. How many slots were moved.
    ///
    /// # Errors
    /// [`CloseError`]; then the device is open again, what was moved is moved, and all else is where
    /// it was.
    pub fn close(
        &self,
        device: DeviceId,
        mut relocate: impl FnMut(Place, Place) -> Moved,
    ) -> Result<usize, CloseError> {
        let index = usize::from(device.0);
        let member = self.members.get(index).ok_or(CloseError::NoSuchDevice { device })?;
        if member.closed.swap(true, Ordering::Relaxed) {
            return Err(CloseError::Closed { device });
        }
        let emptied = self.empty(device, &member.slots, &mut relocate);
        if emptied.is_err() {
            member.closed.store(false, Ordering::Relaxed);
        }
        emptied
    }

    /// Gives out slots on a closed device again.
    pub fn open(&self, device: DeviceId) {
        if let Some(member) = self.members.get(usize::from(device.0)) {
            member.closed.store(false, Ordering::Relaxed);
        }
    }

    /// Moves what a closed device holds.
    fn empty(
        &self,
        device: DeviceId,
        slots: &A,
        relocate: &mut impl FnMut(Place, Place) -> Moved,
    ) -> Result<usize, CloseError> {
        let (mut moved, mut unclaimed) = (0, None);
        for _ in 0..PASSES {
            unclaimed = None;
            let mut next = slots.next_taken(SlotId::new(0));
            while let Some(slot) = next {
                let from = Place { device, slot };
                match self.move_one(from, slots, relocate)? {
                    true => moved += 1,
                    false => unclaimed = Some(from),
                }
                next = slots.next_taken(slot.offset(1));
            }
            if unclaimed.is_none() {
                break;
            }
        }
        unclaimed.map_or(Ok(moved), |place| Err(CloseError::Unclaimed { place }))
    }

    /// Moves one slot; whether anybody knew it.
    fn move_one(
        &self,
        from: Place,
        slots: &A,
        relocate: &mut impl FnMut(Place, Place) -> Moved,
    ) -> Result<bool, CloseError> {
        let Some(to) = self.alloc(Order::PAGE, 0) else {
            return Err(CloseError::NoRoom { device: from.device, left: slots.taken() });
        };
        let moved = relocate(from, to);
        let needless = if moved == Moved::Yes { from } else { to };
        let freed = self.free(needless, 1);
        debug_assert_eq!(freed, Ok(()), "of both places one is nobody's");
        match moved {
            Moved::Yes => Ok(true),
            Moved::Unknown => Ok(false),
            Moved::No => Err(CloseError::Unmovable { place: from }),
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{Config, Slots, no_clock};
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::vec;

    fn slots(capacity: usize) -> Slots {
        Slots::new(Config { capacity, cpus: 2, discards: false, clock: no_clock }).unwrap()
    }

    fn pages(devices: &Devices<Slots>, pages: usize, cpu: usize) -> Vec<Place> {
        (0..pages).map_while(|_| devices.alloc(Order::PAGE, cpu)).collect()
    }

    fn on(places: &[Place], device: u8) -> usize {
        places.iter().filter(|place| place.device == DeviceId(device)).count()
    }

    #[test]
    fn a_list_of_none_or_too_many_is_refused() {
        assert_eq!(Devices::<Slots>::new(vec![], 1).err(), Some(DevicesError { devices: 0 }));
        let many = (0..33).map(|_| (slots(512), 0)).collect();
        assert_eq!(Devices::new(many, 1).err(), Some(DevicesError { devices: 33 }));
    }

    #[test]
    fn the_highest_priority_is_filled_first_and_equals_in_turns() {
        let devices = [(slots(2048), 1), (slots(1024), 5), (slots(1024), 5)];
        let devices = Devices::new(devices.into(), 2).unwrap();
        let first = pages(&devices, 1024, 0);
        assert_eq!([0, 1, 2].map(|n| on(&first, n)), [0, 512, 512]);
        let second = pages(&devices, 2000, 1);
        assert_eq!([0, 1, 2].map(|n| on(&second, n)), [976, 512, 512]);
        assert_eq!(pages(&devices, 2000, 0).len(), 1072);
    }

    #[test]
    fn a_slot_of_another_device_is_an_error() {
        let devices = Devices::new(vec![(slots(512), 0), (slots(1024), 1)], 1).unwrap();
        let place = devices.alloc(Order::PAGE, 0).unwrap();
        let error = FreeError::NotTaken { slot: place.slot };
        let refused = PlaceError::Refused { device: DeviceId(0), error };
        assert_eq!(devices.free(Place { device: DeviceId(0), ..place }, 1), Err(refused));
        let device = DeviceId(2);
        let missing = PlaceError::NoSuchDevice { device };
        assert_eq!(devices.free(Place { device, ..place }, 1), Err(missing));
        assert_eq!(devices.free_many(device, &[place.slot]), Err(missing));
        assert_eq!(
            devices.close(device, |_, _| Moved::Yes),
            Err(CloseError::NoSuchDevice { device })
        );
        assert_eq!(devices.free_many(place.device, &[place.slot]), Ok(()));
    }

    #[test]
    fn what_a_closed_device_holds_is_elsewhere() {
        let devices = Devices::new(vec![(slots(1024), 1), (slots(2048), 0)], 1).unwrap();
        let mut held: BTreeMap<_, _> = pages(&devices, 1000, 0).into_iter().zip(0..).collect();
        let closed = DeviceId(0);
        let moved = devices.close(closed, |from, to| {
            let page = held.remove(&from).unwrap();
            held.insert(to, page);
            Moved::Yes
        });
        assert_eq!(moved, Ok(1000));
        assert_eq!(held.len(), 1000);
        assert!(held.keys().all(|place| place.device == DeviceId(1)));
        assert_eq!(devices.device(closed).unwrap().taken(), 0);
        assert_eq!(devices.alloc(Order::PAGE, 0).unwrap().device, DeviceId(1));
        let again = devices.close(closed, |_, _| Moved::Yes);
        assert_eq!(again, Err(CloseError::Closed { device: closed }));
        devices.open(closed);
        assert_eq!(devices.alloc(Order::PAGE, 0).unwrap().device, closed);
    }

    #[test]
    fn a_device_that_cannot_be_emptied_stays() {
        let devices = Devices::new(vec![(slots(1024), 1), (slots(512), 0)], 1).unwrap();
        let held = pages(&devices, 600, 0);
        let device = DeviceId(0);
        let place = held[0];
        let unmovable = devices.close(device, |_, _| Moved::No);
        assert_eq!(unmovable, Err(CloseError::Unmovable { place }));
        let unclaimed = devices.close(device, |_, _| Moved::Unknown);
        assert!(matches!(unclaimed, Err(CloseError::Unclaimed { .. })), "{unclaimed:?}");
        assert_eq!(devices.device(device).unwrap().taken(), 600);
        let full = devices.close(device, |_, _| Moved::Yes);
        assert_eq!(full, Err(CloseError::NoRoom { device, left: 600 - 512 }));
        assert_eq!(devices.alloc(Order::PAGE, 0).unwrap().device, device);
    }

    /// Threads take and free while a device goes and comes; a table knows whose place is whose.
    #[test]
    fn a_device_goes_while_threads_take_and_free() {
        let devices = Devices::new(vec![(slots(2048), 1), (slots(4096), 0)], 2).unwrap();
        let table = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for cpu in 0..2 {
                let (devices, table) = (&devices, &table);
                scope.spawn(move || {
                    for n in 0..20_000_u32 {
                        let place = devices.alloc(Order::PAGE, cpu).unwrap();
                        let mut table = table.lock().unwrap();
                        assert_eq!(table.insert(place, n), None, "{place} given twice");
                        if table.len() > 1500 {
                            let (place, _) = table.pop_first().unwrap();
                            devices.free(place, 1).unwrap();
                        }
                    }
                });
            }
            for _ in 0..50 {
                let closed = devices.close(DeviceId(0), |from, to| {
                    let mut table = table.lock().unwrap();
                    table.remove(&from).map_or(Moved::Unknown, |n| {
                        assert_eq!(table.insert(to, n), None, "{to} given twice");
                        Moved::Yes
                    })
                });
                match closed {
                    Ok(_) => devices.open(DeviceId(0)),
                    // A thread stood between taking a slot and noting it.
                    Err(CloseError::Unclaimed { .. }) => {}
                    Err(why) => panic!("{why}"),
                }
            }
        });
        let table = table.into_inner().unwrap();
        let taken = |n| devices.device(DeviceId(n)).unwrap().taken();
        assert_eq!(taken(0) + taken(1), table.len());
        (0..2).for_each(|n| devices.device(DeviceId(n)).unwrap().check());
    }
}
