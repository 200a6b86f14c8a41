//! The learnt tables of a process, which all its workers share.
//!
//! ```text
//!   newest ──► a place and its serial number
//!   places     0   │ tables, ids 16 to 23 │ users: objects that were made with them, and who makes some
//!              1   │ tables, ids 24 to 31 │ users
//!              ...
//! ```
//! What a program keeps in memory changes, and with it the tables that suit it; but an object can be
//! read with the table only that it was made with. So tables come in *generations*, each with ids that
//! no other living one has. A place has a generation after the other: the next one is written over it
//! when nothing uses it any more, so that no memory is taken while the program runs.
//!
//! # Invariants
//!
//! - A generation is replaced only while it has no user and is not the newest. Users come by
//!   [`Generations::hold`] alone, which gives the newest.
//! - Whoever compresses holds its generation until the objects it made are counted
//!   ([`Generations::kept`]); whoever frees one takes it back after nobody can find it any more
//!   ([`Generations::freed`]).
//! - A reader needs no count: what it reads has one. It may be freed meanwhile, and its tables replaced;
//!   then the reader gets other bytes or an error, and its caller looks at the object's word again.
//!
//! A holder counts itself and then looks at `newest` once more; a learner marks a place closed in the same
//! word in which users are counted. Of the two, one sees the other.

use super::canned::{BadTable, LEARNT_IDS, TableSet};
use super::encode::Lengths;
use super::file::TableFile;
use super::probe::Short;
use core::fmt;
use octavo_page::sync::atomic::{AtomicU32, Ordering};
use octavo_page::sync::{RwLock, RwLockReadGuard};

/// Which tables a unit was made with: a generation, for as long as it is used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Generation(u32);

/// Bits of a generation that say where it is; the others are its number among all there were, from 1 on.
const PLACE_BITS: u32 = 2;

impl Generation {
    fn new(place: usize, serial: u32) -> Self {
        Self(serial << PLACE_BITS | place as u32)
    }

    /// Its place: no two that live have the same.
    #[must_use]
    pub const fn place(self) -> usize {
        (self.0 % (1 << PLACE_BITS)) as usize
    }

    /// The id of its first table.
    #[must_use]
    pub const fn first_id(self) -> u8 {
        LEARNT_IDS + (self.place() * TableSet::MAX) as u8
    }
}

/// Users of a place that is being written.
const CLOSED: u32 = 1 << 31;

struct Place<T> {
    content: RwLock<T>,
    users: AtomicU32,
    /// The generation there, 0 before the first.
    here: AtomicU32,
}

/// Places and who uses them, whatever is there.
struct Places<T> {
    places: [Place<T>; Generations::MAX],
    /// A [`Generation`]'s bits; 0: there is none yet.
    newest: AtomicU32,
}

impl<T> Places<T> {
    fn new(empty: impl Fn() -> T) -> Self {
        let place = |_| Place {
            content: RwLock::new(empty()),
            users: AtomicU32::new(0),
            here: AtomicU32::new(0),
        };
        Self { places: core::array::from_fn(place), newest: AtomicU32::new(0) }
    }

    fn newest(&self) -> Option<Generation> {
        let bits = self.newest.load(Ordering::Acquire);
        (bits != 0).then_some(Generation(bits))
    }

    /// Becomes a user of the newest generation.
    fn hold(&self) -> Option<Generation> {
        loop {
            let generation = self.newest()?;
            let users = &self.places[generation.place()].users;
            users.fetch_add(1, Ordering::AcqRel);
            // If it was closed before this was counted, there was a newer one by then.
            if self.newest() == Some(generation) {
                return Some(generation);
            }
            users.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn is_there(&self, generation: Generation) -> bool {
        self.places[generation.place()].here.load(Ordering::Acquire) == generation.0
    }

    /// Has `write` write a new generation at a place that nobody uses, and makes it the newest. One thread
    /// at a time.
    fn replace<E>(
        &self,
        write: impl FnOnce(&mut T, Generation) -> Result<(), E>,
    ) -> Result<Option<Generation>, E> {
        let newest = self.newest();
        let serial = newest.map_or(1, |newest| (newest.0 >> PLACE_BITS) + 1);
        for (n, place) in self.places.iter().enumerate() {
            let close = || {
                let order = (Ordering::AcqRel, Ordering::Relaxed);
                place.users.compare_exchange(0, CLOSED, order.0, order.1).is_ok()
            };
            if newest.is_some_and(|newest| newest.place() == n) || !close() {
                continue;
            }
            // Somebody may still be reading what was freed.
            let Some(mut content) = place.content.try_write() else {
                place.users.fetch_sub(CLOSED, Ordering::AcqRel);
                continue;
            };
            let generation = Generation::new(n, serial);
            place.here.store(generation.0, Ordering::Release);
            let written = write(&mut content, generation);
            drop(content);
            // Those who tried to hold what was here before take themselves back.
            place.users.fetch_sub(CLOSED, Ordering::AcqRel);
            written?;
            self.newest.store(generation.0, Ordering::Release);
            return Ok(Some(generation));
        }
        Ok(None)
    }

    fn users(&self) -> usize {
        let users = |place: &Place<T>| (place.users.load(Ordering::Relaxed) & !CLOSED) as usize;
        self.places.iter().map(users).sum()
    }
}

/// See the module.
pub struct Generations(Places<TableSet>);

impl Default for Generations {
    fn default() -> Self {
        Self::new()
    }
}

impl Generations {
    /// The most generations at a time.
    pub const MAX: usize = 1 << PLACE_BITS;

    /// None yet. Reserves memory for all, some 800 KiB, which is untouched until it is needed.
    #[must_use]
    pub fn new() -> Self {
        Self(Places::new(TableSet::with_room))
    }

    /// One generation that is there from the start: `lengths` of tables for matches at most `window` bytes
    /// back.
    ///
    /// # Errors
    /// [`BadTable`] when one of them is none.
    ///
    /// # Panics
    /// When there are no tables, or more than [`TableSet::MAX`].
    pub fn with(window: usize, lengths: &[Lengths]) -> Result<Self, BadTable> {
        let all = Self::new();
        all.replace(window, lengths)?;
        Ok(all)
    }

    /// The tables of a file, as [`Generations::with`].
    #[must_use]
    pub fn of_file(file: &TableFile) -> Self {
        let all = Self::with(file.window(), file.lengths());
        all.expect("they were looked at when the file was read or made")
    }

    /// The newest generation, if there is one.
    #[must_use]
    pub fn newest(&self) -> Option<Generation> {
        self.0.newest()
    }

    /// Holds the newest generation, to make objects with it.
    pub fn hold(&self) -> Option<Hold<'_>> {
        self.0.hold().map(|generation| Hold { all: self, generation })
    }

    /// Counts objects that were made with a generation that is held.
    pub fn kept(&self, generation: Generation, objects: u32) {
        self.0.places[generation.place()].users.fetch_add(objects, Ordering::AcqRel);
    }

    /// Takes back what [`Generations::kept`] counted: an object of the generation at `place` is freed.
    ///
    /// # Panics
    /// When there is no such place.
    pub fn freed(&self, place: usize) {
        let before = self.0.places[place].users.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(
            before & !CLOSED != 0,
            "an object of place {place} freed that was never kept"
        );
    }

    /// Whether a generation is still there: while an object that was made with it is kept, it is.
    #[must_use]
    pub fn is_there(&self, generation: Generation) -> bool {
        self.0.is_there(generation)
    }

    /// The tables at a place, of which those of an id are to be looked up.
    pub fn tables(&self, place: usize) -> Option<RwLockReadGuard<'_, TableSet>> {
        // Who writes there holds the lock for some hundred microseconds, and nothing is read there
        // then that is still wanted.
        Some(self.0.places.get(place)?.content.read())
    }

    /// The place of the tables with this id.
    pub(crate) const fn place_of(id: u8) -> Option<usize> {
        match id.checked_sub(LEARNT_IDS) {
            Some(n) if (n as usize) < Self::MAX * TableSet::MAX => Some(n as usize / TableSet::MAX),
            _ => None,
        }
    }

    /// Writes a new generation where one is that nobody uses, and makes it the newest. `None` when all are
    /// in use. One thread at a time. Allocates nothing, and takes some hundred microseconds.
    ///
    /// # Errors
    /// [`BadTable`] when one of the tables is none; then that place has none.
    ///
    /// # Panics
    /// When there are no tables, or more than [`TableSet::MAX`].
    pub fn replace(
        &self,
        window: usize,
        lengths: &[Lengths],
    ) -> Result<Option<Generation>, BadTable> {
        self.0.replace(|tables, generation| {
            tables.set(generation.first_id(), window, Short::Five, lengths)
        })
    }

    /// Objects that are kept, and who is making some.
    #[must_use]
    pub fn users(&self) -> usize {
        self.0.users()
    }

    /// Bytes that the generations there are take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let used = |place: &&Place<TableSet>| place.here.load(Ordering::Relaxed) != 0;
        self.0.places.iter().filter(used).count() * TableSet::BYTES
    }
}

impl fmt::Debug for Generations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generations")
            .field("newest", &self.newest())
            .field("users", &self.users())
            .finish_non_exhaustive()
    }
}

/// Holds a generation: it is not replaced as long as this lives.
#[derive(Debug)]
pub struct Hold<'a> {
    all: &'a Generations,
    /// Which it is.
    pub generation: Generation,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.all.freed(self.generation.place());
    }
}

/// `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p octavo-codec --release --lib models`
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Writes a generation that is its own name.
    fn learn(places: &Places<u32>) -> Option<Generation> {
        let write = |content: &mut u32, generation: Generation| {
            *content = generation.0;
            Ok::<_, ()>(())
        };
        places.replace(write).expect("nothing goes wrong")
    }

    /// Who makes an object while others are learnt, as many as come round to where it began, makes it with
    /// tables that stay until it is freed.
    #[test]
    fn what_is_held_or_kept_is_not_replaced() {
        loom::model(|| {
            let places = Arc::new(Places::new(|| 0));
            let first = learn(&places);
            assert_eq!(first, places.newest());
            let worker = {
                let places = places.clone();
                thread::spawn(move || {
                    let generation = places.hold().expect("a generation");
                    let place = &places.places[generation.place()];
                    assert_eq!(*place.content.read(), generation.0);
                    // One object more, and no hold.
                    place.users.fetch_add(1, Ordering::AcqRel);
                    place.users.fetch_sub(1, Ordering::AcqRel);
                    assert_eq!(*place.content.read(), generation.0);
                    assert!(places.is_there(generation));
                    place.users.fetch_sub(1, Ordering::AcqRel);
                })
            };
            for _ in 0..=Generations::MAX {
                let made = learn(&places);
                assert!(made.is_none() || made == places.newest());
            }
            worker.join().expect("the worker ends");
            assert_eq!(places.users(), 0);
            assert!(learn(&places).is_some());
        });
    }
}
