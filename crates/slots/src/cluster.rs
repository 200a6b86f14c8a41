//! A cluster: its bits, and one word that is its state and its lock at once.
//!
//! ```text
//!   63   54 53  44 43       35   34    33     32   31   24 23   16 15    0
//!   [ runs ][limit][ unused  ][stale][lent][owned][ place ][ order ][ count ]
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
/// With so many free runs, or more, it belongs in other sets.
const LIMIT: Field = Field { shift: 44, mask: 0x3ff };
/// Free runs of its order, so that nobody counts bits to learn where it belongs. Means as much as the
/// order. At the top, where it takes no mask.
const RUNS: Field = Field { shift: 54, mask: 0x3ff };

/// A limit that no cluster comes to.
const NO_LIMIT: u64 = LIMIT.mask;

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

    /// Counts a change of its place. Nobody else writes the figure while the lock is held.
    pub(crate) fn count_move(&self) {
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves.wrapping_add(1), Ordering::Relaxed);
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

    /// Takes an aligned free run of its own order, the first at `from` or later, if there is one.
    #[inline]
    pub(crate) fn take_run(&mut self, order: Order, from: usize) -> Option<usize> {
        debug_assert!(self.state.serves(order), "a run of another order: {:?}", self.state);
        let first = self.taken().take_run(order, from)?;
        self.state.run_taken(order.pages());
        Some(first)
    }

    /// Takes aligned free runs of its own order, side by side, up to `most`: the first at `from` or later if there
    /// is one. That, and how many.
    #[inline]
    pub(crate) fn take_row(
        &mut self,
        order: Order,
        from: usize,
        most: usize,
    ) -> Option<(usize, usize)> {
        debug_assert!(self.state.serves(order), "runs of another order: {:?}", self.state);
        let row = self.taken().take_row(order, from, most);
        let (first, runs) = row.or_else(|| self.taken().take_row(order, 0, most))?;
        self.state.runs_taken(runs, order.pages());
        Some((first, runs))
    }

    /// Takes the slots `first..first + pages`, all of which are free.
    pub(crate) fn take(&mut self, first: usize, pages: usize) {
        self.taken().set(first, pages);
        if self.state.is_run(first, pages) {
            self.state.run_taken(pages);
        } else {
            self.state.set(COUNT, (self.state.count() + pages) as u64);
            self.state.recount(&self.cluster.taken);
        }
    }

    /// Frees the slots `first..first + pages`, or none of them: then the first that is free. It may belong
    /// in other sets then, where [`State::may_move`] says so.
    #[inline]
    pub(crate) fn free(&mut self, first: usize, pages: usize) -> Result<(), usize> {
        self.taken().clear(first, pages)?;
        if self.state.is_run(first, pages) {
            self.state.run_freed(pages);
        } else {
            self.state = self.state.part_freed(pages, self.taken());
        }
        Ok(())
    }

    /// An aligned free run, the first at `from` or later if there is one.
    #[inline]
    pub(crate) fn find(&self, order: Order, from: usize) -> Option<usize> {
        self.taken().free_run(order, from).or_else(|| self.taken().free_run(order, 0))
    }
}

impl Field {
    /// What a field that is one larger adds to the word.
    const fn one(self) -> u64 {
        1 << self.shift
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

    #[inline]
    pub(crate) fn is_full(self) -> bool {
        self.count() == CLUSTER_SLOTS
    }

    pub(crate) fn order(self) -> Order {
        Order::new(self.get(ORDER) as u8).expect("it was set to an order")
    }

    /// Whether [`State::order`] is this one.
    #[inline]
    pub(crate) fn serves(self, order: Order) -> bool {
        self.get(ORDER) == u64::from(order.get())
    }

    /// Free runs of its order.
    #[inline]
    pub(crate) fn runs(self) -> usize {
        self.get(RUNS) as usize
    }

    /// A run that it serves was taken.
    #[inline]
    fn run_taken(&mut self, pages: usize) {
        self.runs_taken(1, pages);
    }

    /// So many runs that it serves were taken.
    #[inline]
    fn runs_taken(&mut self, runs: usize, pages: usize) {
        self.0 = self.0 + (runs * pages) as u64 - runs as u64 * RUNS.one();
    }

    /// A run that it serves was freed.
    #[inline]
    fn run_freed(&mut self, pages: usize) {
        self.0 = self.0 - pages as u64 + RUNS.one();
    }

    /// So many slots that are not one of its runs were freed. The runs do not tell any more whether it may
    /// move, so it may.
    // By value, so that a guard stays in registers.
    #[cold]
    fn part_freed(mut self, pages: usize, taken: &Bitmap) -> Self {
        self.set(COUNT, (self.count() - pages) as u64);
        self.recount(taken);
        self.set(LIMIT, 0);
        self
    }

    /// Counts the free runs of its order, where they did not change by one.
    fn recount(&mut self, taken: &Bitmap) {
        self.set(RUNS, taken.free_runs(self.order()) as u64);
    }

    /// Whether these slots are one of the runs that it serves.
    #[inline]
    fn is_run(self, first: usize, pages: usize) -> bool {
        pages as u64 == 1 << self.get(ORDER) && first & (pages - 1) == 0
    }

    /// The first slots of a cluster are about to be taken, for folios of this order.
    #[inline]
    pub(crate) fn begin(&mut self, order: Order, stale: bool) {
        self.set(RUNS, (CLUSTER_SLOTS >> order.get()) as u64);
        self.set(ORDER, order.get().into());
        self.set(LENT, 0);
        self.set(STALE, stale.into());
    }

    /// The sets that it is in.
    pub(crate) fn place(self) -> Place {
        Place::of_code(self.get(PLACE) as u8)
    }

    /// The sets that it belongs to.
    pub(crate) fn due(self) -> Place {
        match self.count() {
            0 if !self.is_owned() && self.is_stale() => Place::Emptied,
            0 if !self.is_owned() => Place::Free,
            CLUSTER_SLOTS => Place::Full,
            _ => Place::Partly { order: self.order(), room: self.room() },
        }
    }

    fn room(self) -> Room {
        match self.runs() {
            0 => Room::None,
            runs if self.is_owned() || runs < self.enough() => Room::Spare,
            _ => Room::Enough,
        }
    }

    /// Free runs with which it is roomy.
    fn enough(self) -> usize {
        ((CLUSTER_SLOTS / ROOMY) >> self.order().get()).max(1)
    }

    /// The free runs with which it no longer belongs where it does now.
    pub(crate) fn limit(self) -> usize {
        match self.due() {
            Place::Free | Place::Emptied => NO_LIMIT as usize,
            _ if self.runs() == 0 => 1,
            _ if self.is_owned() => NO_LIMIT as usize,
            _ if self.runs() < self.enough() => self.enough(),
            _ => CLUSTER_SLOTS >> self.order().get(),
        }
    }

    /// Whether [`State::limit`] is noted as this.
    pub(crate) fn has_limit(self, limit: usize) -> bool {
        self.get(LIMIT) == limit as u64
    }

    /// It is where it belongs now: there.
    #[inline]
    pub(crate) fn settle(&mut self) -> Place {
        let due = self.due();
        self.set(PLACE, due.code().into());
        self.set(LIMIT, self.limit() as u64);
        due
    }

    /// Whether it may belong elsewhere, after runs of it were freed and none was taken. One comparison in
    /// place of [`State::due`]: of the clusters that are freed in some have room enough and some not, and
    /// which of them is next nothing predicts.
    #[inline]
    pub(crate) fn may_move(self) -> bool {
        self.get(RUNS) >= self.get(LIMIT)
    }

    /// Whether a CPU has it for folios of this order, and it stays where it is when a run of them is taken.
    #[inline]
    pub(crate) fn has_next(self, order: Order) -> bool {
        let fields = ORDER.mask << ORDER.shift | OWNED.mask << OWNED.shift;
        let current = u64::from(order.get()) << ORDER.shift | OWNED.one();
        self.0 & fields == current && self.get(RUNS) > 1
    }

    /// [`State::place`] is this one.
    #[inline]
    pub(crate) fn is_at(self, place: Place) -> bool {
        self.get(PLACE) == u64::from(place.code())
    }

    /// Whether nothing of it is taken and no CPU has it.
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
            .field("runs", &self.runs())
            .field("limit", &self.get(LIMIT))
            .field("order", &self.order())
            .field("place", &self.place())
            .field("owned", &self.is_owned())
            .field("lent", &self.is_lent())
            .field("stale", &self.is_stale())
            .finish()
    }
}

/// The code of a place where there are free slots, but no run of order 0.
const PARTLY: u8 = 0x30;

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
            Self::Partly { order, room } => PARTLY + ((room as u8) << 4) + order.get(),
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

    #[test]
    fn each_place_has_a_code_of_its_own() {
        let orders = (0..=Order::MAX.get()).filter_map(Order::new);
        let partly = orders.flat_map(|order| {
            [Room::None, Room::Spare, Room::Enough].map(|room| Place::Partly { order, room })
        });
        for place in [Place::Free, Place::Emptied, Place::Full].into_iter().chain(partly) {
            assert_eq!(Place::of_code(place.code()), place);
        }
    }

    /// The two shortcuts against what they stand for: the limit, while runs are freed, and the next run,
    /// while they are taken.
    #[test]
    fn a_cluster_moves_when_it_belongs_elsewhere_and_only_then() {
        let orders = (0..=Order::MAX.get()).filter_map(Order::new);
        for (order, owned) in orders.flat_map(|order| [(order, false), (order, true)]) {
            let cluster = Cluster::free();
            let mut locked = cluster.try_lock(7).unwrap();
            locked.state.begin(order, false);
            locked.state.set_owned(owned);
            locked.state.settle();
            let runs = CLUSTER_SLOTS / order.pages();
            assert_eq!(locked.state.runs(), runs);
            for run in 0..runs {
                let stays = locked.state.has_next(order);
                assert_eq!(stays, owned && run + 1 < runs);
                assert_eq!(locked.take_run(order, run * order.pages()), Some(run * order.pages()));
                let state = locked.state;
                assert!(
                    !stays || state.is_at(state.due()) && state.has_limit(state.limit()),
                    "{state:?}"
                );
                locked.state.settle();
            }
            assert!(locked.state.is_full() && locked.take_run(order, 0).is_none());
            for run in 0..runs {
                assert_eq!(locked.free(run * order.pages(), order.pages()), Ok(()));
                let state = locked.state;
                assert_eq!(state.may_move(), !state.is_at(state.due()), "{state:?}");
                if state.may_move() {
                    locked.state.settle();
                }
            }
            assert_eq!(locked.state.is_nobodys(), !owned);
        }
    }

    proptest! {
        #[test]
        fn a_state_says_what_the_cluster_holds_and_where_it_belongs(
            (count, less) in (0..=CLUSTER_SLOTS).prop_flat_map(|n| (Just(n), 0..=n)),
            order in order(),
            (owned, lent, stale) in any::<(bool, bool, bool)>(),
        ) {
            let cluster = Cluster::free();
            let mut locked = cluster.try_lock(7).unwrap();
            prop_assert!(cluster.try_lock(7).is_none());
            locked.state.set_owned(!owned);
            locked.state.begin(order, stale);
            locked.state.set_owned(owned);
            if lent {
                locked.state.set_lent();
            }
            (0..count).for_each(|slot| locked.take(slot, 1));
            for slot in 0..less {
                prop_assert_eq!(locked.free(slot, 1), Ok(()));
                prop_assert_eq!(locked.free(slot, 1), Err(slot));
            }
            locked.state.settle();
            drop(locked);
            let locked = cluster.try_lock(7).unwrap();
            let mut state = locked.state;
            prop_assert_eq!(state.count(), count - less);
            prop_assert_eq!(state.runs(), locked.taken().free_runs(order));
            prop_assert_eq!(state.is_full(), count - less == CLUSTER_SLOTS);
            prop_assert_eq!(state.order(), order);
            prop_assert_eq!((state.is_owned(), state.is_lent(), state.is_stale()), (owned, lent, stale));
            let place = state.due();
            prop_assert!(state.is_at(place) && state.has_limit(state.limit()));
            prop_assert_eq!(state.place(), place);
            prop_assert_eq!(state.is_nobodys(), matches!(place, Place::Free | Place::Emptied));
            prop_assert!(state.0 >> 35 & 0x1ff == 0, "no state is the word of a lock that is held");
            state.set_told();
            prop_assert!(!state.is_stale() && state.is_lent() == lent && state.is_owned() == owned);
        }
    }
}
