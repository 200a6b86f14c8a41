//! A cluster: its bits, and one word that is its state and its lock at once.
//!
//! ```text
//!   63          35   34    33     32   31   24 23   16 15    0
//!   [   unused   ][stale][lent][owned][ place ][ order ][ count ]
//!
//!   state ── taken out: one swap ──► HELD ── put back: one store ──► state
//! ```
//!
//! Who takes the word out has the lock, and puts the new state in when done (`lock_word.rs`). The bits
//! are reached only through [`Locked`], which has the state meanwhile. The word and all but an eighth of
//! the bits share a cache line.

use crate::bitmap::{Bitmap, CLUSTER_SLOTS};
use crate::marks::Set;
use crate::sync::{LockWord, Waits};
use core::fmt;
// A figure orders nothing, so a model need not explore it.
use core::sync::atomic::{AtomicU32, Ordering};
use octavo_page::Order;

/// A cluster is roomy when one in this many of its runs is free.
const ROOMY: usize = 4;

/// On cache lines of its own, so that CPUs in different clusters do not disturb each other.
#[repr(C, align(128))]
pub(crate) struct Cluster {
    state: LockWord,
    taken: Bitmap,
    /// How often it changed its place. Written under the lock, so that it takes no locked instruction.
    moves: AtomicU32,
}

const _: () = assert!(size_of::<Cluster>() == 128 || cfg!(loom));

/// What the lock protects beside the bits: a word of fields, so that it stays in a register between
/// taking and leaving the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(u64);

/// A field of [`State`]: its lowest bit, and its bits when shifted down.
#[derive(Clone, Copy)]
struct Field {
    shift: u32,
    mask: u64,
}

/// Slots that are taken.
const COUNT: Field = Field { shift: 0, mask: 0xffff };
/// What it serves. Means nothing while the count is 0 and nobody owns it.
const ORDER: Field = Field { shift: 16, mask: 0xff };
/// The sets that it is in.
const PLACE: Field = Field { shift: 24, mask: 0xff };
/// It is the current cluster of some CPU, which others leave alone while there is another.
const OWNED: Field = Field { shift: 32, mask: 1 };
/// Single pages of it were taken although it serves larger folios.
const LENT: Field = Field { shift: 33, mask: 1 };
/// The device holds what was stored in it before and is to be told.
const STALE: Field = Field { shift: 34, mask: 1 };

/// The sets that a cluster is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// No slot is taken and no CPU has it.
    Free,
    /// The same, and the device does not know yet.
    Emptied,
    /// Every slot is taken.
    Full,
    /// It has a free slot: in `partly` of this order, and in another set if there is room in it.
    Partly { order: Order, room: Room },
}

/// Whether an allocation should come to a partly taken cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// It has no run for a folio of its order.
    None,
    /// It has a run, but is a CPU's own or has few: searched when others are not.
    Spare,
    /// It has runs enough to make it one's own.
    Enough,
}

/// A cluster whose lock is held, until this is dropped.
pub(crate) struct Locked<'a> {
    pub number: u32,
    pub state: State,
    cluster: &'a Cluster,
}

impl Cluster {
    /// Nothing of it is taken.
    pub(crate) fn free() -> Self {
        Self {
            state: LockWord::new(State::FREE.0),
            taken: Bitmap::empty(),
            moves: AtomicU32::new(0),
        }
    }

    /// Takes the lock of the cluster, which has this number.
    #[inline]
    pub(crate) fn lock(&self, number: u32, waits: &Waits) -> Locked<'_> {
        Locked { number, state: State(waits.take(&self.state)), cluster: self }
    }

    /// Takes the lock, unless somebody has it.
    #[inline]
    pub(crate) fn try_lock(&self, number: u32) -> Option<Locked<'_>> {
        let word = self.state.try_take()?;
        Some(Locked { number, state: State(word), cluster: self })
    }

    /// How often it changed its place since the start.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed).into()
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cluster.state.put(self.state.0);
    }
}

impl Locked<'_> {
    /// Which of its slots are taken.
    #[inline]
    pub(crate) fn taken(&self) -> &Bitmap {
        &self.cluster.taken
    }

    /// The place that the contents ask for.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        match self.state.count() {
            0 if !self.state.is_owned() && self.state.is_stale() => Place::Emptied,
            0 if !self.state.is_owned() => Place::Free,
            CLUSTER_SLOTS => Place::Full,
            _ => Place::Partly { order: self.state.order(), room: self.room() },
        }
    }

    /// Notes that the cluster is in these sets now.
    pub(crate) fn moved(&mut self, place: Place) {
        self.state.set(PLACE, place.code().into());
        // Nobody else writes it while the lock is held.
        let moves = self.cluster.moves.load(Ordering::Relaxed);
        self.cluster.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn room(&self) -> Room {
        match self.state.order() {
            Order::PAGE => self.room_for(Order::PAGE, CLUSTER_SLOTS - self.state.count()),
            order => self.room_for(order, self.taken().free_runs(order)),
        }
    }

    /// What so many free runs of its order make.
    #[inline]
    fn room_for(&self, order: Order, runs: usize) -> Room {
        let enough = ((CLUSTER_SLOTS / ROOMY) >> order.get()).max(1);
        match runs {
            0 => Room::None,
            _ if self.state.is_owned() || runs < enough => Room::Spare,
            _ => Room::Enough,
        }
    }

    /// An aligned free run, the first at `from` or later if there is one.
    #[inline]
    pub(crate) fn find(&self, order: Order, from: usize) -> Option<usize> {
        self.taken().free_run(order, from).or_else(|| self.taken().free_run(order, 0))
    }
}

impl State {
    /// Of a cluster that was never used.
    const FREE: Self = Self(0);

    #[inline]
    fn get(self, field: Field) -> u64 {
        self.0 >> field.shift & field.mask
    }

    #[inline]
    fn set(&mut self, field: Field, value: u64) {
        debug_assert!(value <= field.mask, "{value} does not fit {:#x}", field.mask);
        self.0 = self.0 & !(field.mask << field.shift) | value << field.shift;
    }

    #[inline]
    pub(crate) fn count(self) -> usize {
        self.get(COUNT) as usize
    }

    /// So many more slots are taken.
    #[inline]
    pub(crate) fn add(&mut self, slots: usize) {
        self.set(COUNT, (self.count() + slots) as u64);
    }

    /// So many of the slots that were taken are free.
    #[inline]
    pub(crate) fn sub(&mut self, slots: usize) {
        self.set(COUNT, (self.count() - slots) as u64);
    }

    #[inline]
    pub(crate) fn is_full(self) -> bool {
        self.count() == CLUSTER_SLOTS
    }

    #[inline]
    pub(crate) fn order(self) -> Order {
        Order::new(self.get(ORDER) as u8).expect("it was set to an order")
    }

    /// The first slots of a cluster are taken, for folios of this order.
    #[inline]
    pub(crate) fn begin(&mut self, order: Order, stale: bool) {
        self.set(ORDER, order.get().into());
        self.set(LENT, 0);
        self.set(STALE, stale.into());
    }

    pub(crate) fn place(self) -> Place {
        Place::of_code(self.get(PLACE) as u8)
    }

    /// [`State::place`] is this one.
    #[inline]
    pub(crate) fn is_at(self, place: Place) -> bool {
        self.get(PLACE) == u64::from(place.code())
    }

    /// Nothing of it is taken and no CPU has it.
    #[inline]
    pub(crate) fn is_nobodys(self) -> bool {
        self.is_at(Place::Free) || self.is_at(Place::Emptied)
    }

    #[inline]
    pub(crate) fn is_owned(self) -> bool {
        self.get(OWNED) != 0
    }

    #[inline]
    pub(crate) fn set_owned(&mut self, owned: bool) {
        self.set(OWNED, owned.into());
    }

    #[inline]
    pub(crate) fn is_lent(self) -> bool {
        self.get(LENT) != 0
    }

    pub(crate) fn set_lent(&mut self) {
        self.set(LENT, 1);
    }

    #[inline]
    fn is_stale(self) -> bool {
        self.get(STALE) != 0
    }

    /// The device was told.
    pub(crate) fn set_told(&mut self) {
        self.set(STALE, 0);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("count", &self.count())
            .field("order", &self.order())
            .field("place", &self.place())
            .field("owned", &self.is_owned())
            .field("lent", &self.is_lent())
            .field("stale", &self.is_stale())
            .finish()
    }
}

impl Place {
    /// The sets that a cluster at this place is in. The first of two changes seldom.
    pub(crate) fn sets(self) -> [Option<Set>; 2] {
        match self {
            Self::Free => [Some(Set::Free), None],
            Self::Emptied => [Some(Set::Emptied), None],
            Self::Full => [None, None],
            Self::Partly { order, room } => {
                let second = match room {
                    Room::None => None,
                    Room::Spare => Some(Set::Spare(order)),
                    Room::Enough => Some(Set::Roomy(order)),
                };
                [Some(Set::Partly(order)), second]
            }
        }
    }

    /// A byte for each place.
    #[inline]
    fn code(self) -> u8 {
        match self {
            Self::Free => 0x00,
            Self::Emptied => 0x10,
            Self::Full => 0x20,
            Self::Partly { order, room: Room::None } => 0x30 | order.get(),
            Self::Partly { order, room: Room::Spare } => 0x40 | order.get(),
            Self::Partly { order, room: Room::Enough } => 0x50 | order.get(),
        }
    }

    #[inline]
    fn of_code(code: u8) -> Self {
        let room = match code >> 4 {
            0 => return Self::Free,
            1 => return Self::Emptied,
            2 => return Self::Full,
            3 => Room::None,
            4 => Room::Spare,
            _ => Room::Enough,
        };
        Self::Partly { order: Order::new(code & 0xf).expect("packed from an order"), room }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order() -> impl Strategy<Value = Order> {
        (0..=Order::MAX.get()).prop_map(|n| Order::new(n).unwrap())
    }

    fn place() -> impl Strategy<Value = Place> {
        let room = prop_oneof![Just(Room::None), Just(Room::Spare), Just(Room::Enough)];
        prop_oneof![
            Just(Place::Free),
            Just(Place::Emptied),
            Just(Place::Full),
            (order(), room).prop_map(|(order, room)| Place::Partly { order, room }),
        ]
    }

    proptest! {
        #[test]
        fn the_fields_of_a_state_keep_apart(
            (count, less) in (0..=CLUSTER_SLOTS).prop_flat_map(|n| (Just(n), 0..=n)),
            order in order(),
            place in place(),
            (owned, lent, stale) in any::<(bool, bool, bool)>(),
        ) {
            let cluster = Cluster::free();
            let mut locked = cluster.try_lock(7).unwrap();
            prop_assert!(cluster.try_lock(7).is_none());
            let state = &mut locked.state;
            state.add(count);
            state.set_owned(!owned);
            state.begin(order, stale);
            state.set_owned(owned);
            if lent {
                state.set_lent();
            }
            state.sub(less);
            locked.moved(place);
            drop(locked);
            prop_assert_eq!(cluster.moves(), 1);
            let mut state = cluster.try_lock(7).unwrap().state;
            prop_assert_eq!(state.count(), count - less);
            prop_assert_eq!(state.is_full(), count - less == CLUSTER_SLOTS);
            prop_assert_eq!((state.order(), state.place()), (order, place));
            prop_assert_eq!((state.is_owned(), state.is_lent(), state.is_stale()), (owned, lent, stale));
            prop_assert!(state.is_at(place) && (place == Place::Full || !state.is_at(Place::Full)));
            prop_assert_eq!(state.is_nobodys(), matches!(place, Place::Free | Place::Emptied));
            prop_assert!(state.0 >> 35 == 0, "no state is the word of a lock that is held");
            state.set_told();
            prop_assert!(!state.is_stale() && state.is_lent() == lent && state.is_owned() == owned);
        }
    }
}
