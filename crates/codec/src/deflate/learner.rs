//! Learning tables while a program runs.
//!
//! ```text
//!   units ── every 16th ──► samples ── full ──► learn ──► a generation: up to eight tables
//!                                                           │ ids of its own
//!   objects begin with an id ── kept, freed ──► a count for each generation
//! ```
//!
//! What a program keeps in memory changes, and with it the tables that suit it; but an object can be
//! read with the table only that it was made with. So tables come in generations, each with ids that
//! no other living one has. Older generations stay for as long as objects made with them are kept:
//! whoever keeps objects counts them here. Then their ids are free for a new one.
//!
//! Invariants:
//! - A generation whose count is not 0, that somebody holds, or that is the newest is never replaced.
//! - Everything is bounded: [`Learner::BYTES`] of samples, [`Learner::GENERATIONS`] generations.

use super::canned::{LEARNT_IDS, TableSet};
use super::matcher::Level;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A set of learnt tables, and how many objects were made with them.
struct Generation {
    tables: Arc<TableSet>,
    objects: AtomicUsize,
}

/// Why nothing was learnt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotLearnt {
    /// There are not enough samples yet.
    Samples,
    /// Every older generation is still in use. The samples stay.
    InUse,
}

impl fmt::Display for NotLearnt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Samples => "not enough units were sampled yet; offer more",
            Self::InUse => "units of every older generation of tables are kept; try again later",
        })
    }
}

impl core::error::Error for NotLearnt {}

/// Samples a program's units and learns tables from them.
pub struct Learner {
    level: Level,
    unit_bytes: usize,
    /// Whole units, one after another, never more than its capacity.
    samples: Vec<u8>,
    offered: usize,
    /// The ids of place `i` begin at [`LEARNT_IDS`] plus `i` times [`TableSet::MAX`].
    generations: [Option<Generation>; Self::GENERATIONS],
    newest: usize,
}

impl fmt::Debug for Learner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learner")
            .field("unit_bytes", &self.unit_bytes)
            .field("samples", &(self.samples.len() / self.unit_bytes))
            .field("newest", &self.newest)
            .finish_non_exhaustive()
    }
}

impl Learner {
    /// The most generations at a time.
    pub const GENERATIONS: usize = 4;
    /// Bytes of samples that are learnt from.
    pub const BYTES: usize = 1 << 20;
    /// Of so many units offered one is a sample: neighbours are alike.
    const EVERY: usize = 16;

    /// A learner for units of `unit_bytes` bytes that will be compressed at `level`.
    ///
    /// # Panics
    /// When a unit is empty or longer than [`MAX_UNIT`](crate::MAX_UNIT).
    #[must_use]
    pub fn new(level: Level, unit_bytes: usize) -> Self {
        assert!(0 < unit_bytes && unit_bytes <= crate::MAX_UNIT, "units of {unit_bytes} bytes");
        Self {
            level,
            unit_bytes,
            samples: Vec::with_capacity(Self::BYTES / unit_bytes * unit_bytes),
            offered: 0,
            generations: [const { None }; Self::GENERATIONS],
            newest: 0,
        }
    }

    /// Looks at a unit that is being compressed: copies one of sixteen until there are enough. One of
    /// another length, a part of a unit, is passed over.
    ///
    /// Allocates nothing.
    pub fn offer(&mut self, unit: &[u8]) {
        if unit.len() != self.unit_bytes || self.is_ready() {
            return;
        }
        if self.offered.is_multiple_of(Self::EVERY) {
            self.samples.extend_from_slice(unit);
        }
        self.offered += 1;
    }

    /// Whether there are samples enough to learn from.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.samples.len() + self.unit_bytes > self.samples.capacity()
    }

    /// Learns a new generation of tables, which becomes the newest, and forgets the samples. Takes
    /// some times as long as compressing them, and allocates.
    ///
    /// # Errors
    /// [`NotLearnt`] says what is missing.
    pub fn learn(&mut self) -> Result<Arc<TableSet>, NotLearnt> {
        if !self.is_ready() {
            return Err(NotLearnt::Samples);
        }
        let place = (0..Self::GENERATIONS).find(|&i| self.is_free(i)).ok_or(NotLearnt::InUse)?;
        let samples = self.samples.chunks_exact(self.unit_bytes);
        let first = LEARNT_IDS + (place * TableSet::MAX) as u8;
        let tables = Arc::new(TableSet::learn_from(
            first,
            self.level,
            self.unit_bytes,
            TableSet::MAX,
            samples,
        ));
        self.samples.clear();
        self.offered = 0;
        self.newest = place;
        let kept = Generation { tables: Arc::clone(&tables), objects: AtomicUsize::new(0) };
        self.generations[place] = Some(kept);
        Ok(tables)
    }

    /// Whether the ids of a place may stand for other tables. Who compresses with a generation holds
    /// it from before the unit is compressed until the object is counted.
    fn is_free(&self, place: usize) -> bool {
        self.generations[place].as_ref().is_none_or(|generation| {
            // Counts change while only `&self` is lent, so now, with `&mut self`, they stand still.
            place != self.newest
                && generation.objects.load(Ordering::Relaxed) == 0
                && Arc::strong_count(&generation.tables) == 1
        })
    }

    /// The tables among which `id` is, the first byte of an object.
    #[must_use]
    pub fn tables(&self, id: u8) -> Option<&Arc<TableSet>> {
        self.generation(id).map(|generation| &generation.tables)
    }

    fn generation(&self, id: u8) -> Option<&Generation> {
        let place = usize::from(id.checked_sub(LEARNT_IDS)?) / TableSet::MAX;
        self.generations.get(place)?.as_ref()
    }

    /// Counts an object that begins with `id` and is kept. Ids that were not learnt are not counted.
    pub fn kept(&self, id: u8) {
        if let Some(generation) = self.generation(id) {
            generation.objects.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes back what [`Learner::kept`] counted: the object is freed.
    pub fn freed(&self, id: u8) {
        if let Some(generation) = self.generation(id) {
            let before = generation.objects.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before != 0, "an object of table {id} freed that was never kept");
        }
    }

    /// Bytes in use: samples and tables.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let tables = self.generations.iter().flatten().map(|g| g.tables.bytes());
        self.samples.capacity() + tables.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deflate::Deflate;
    use std::vec;

    const UNIT: usize = 1 << 16;

    /// Offers units of numbers and of words in turns until there are enough.
    fn fill(learner: &mut Learner, seed: usize) {
        let mut offered = 0;
        while !learner.is_ready() {
            let digit = |i: usize| b'a' + ((i * i + seed * i / 7 + offered) % (5 + seed)) as u8;
            let unit: Vec<u8> = (0..UNIT).map(digit).collect();
            learner.offer(&unit);
            learner.offer(&unit[1..]);
            offered += 1;
            assert!(offered <= Learner::BYTES / UNIT * Learner::EVERY, "never enough");
        }
    }

    #[test]
    fn objects_are_read_with_the_tables_they_were_made_with() {
        let mut learner = Learner::new(Level::L1, UNIT);
        assert_eq!(learner.learn().err(), Some(NotLearnt::Samples));
        let before = learner.bytes();
        let mut deflate = Deflate::new();
        let mut objects = vec![];
        for seed in 0..Learner::GENERATIONS {
            fill(&mut learner, seed);
            let tables = learner.learn().expect("a free place");
            assert!(!learner.is_ready());
            let unit: Vec<u8> = (0..UNIT).map(|i| b'a' + (i * i % (6 + seed)) as u8).collect();
            let mut object = vec![0; UNIT];
            let size = tables.compress(&mut deflate, Level::L1, &unit, &mut object).expect("fits");
            object.truncate(size);
            learner.kept(object[0]);
            objects.push((unit, object));
        }
        assert!(learner.bytes() > before);
        // All places are taken by objects; the samples stay for another time.
        fill(&mut learner, 9);
        assert_eq!(learner.learn().err(), Some(NotLearnt::InUse));
        for (unit, object) in &objects {
            let tables = learner.tables(object[0]).expect("living");
            let mut back = vec![0; UNIT];
            let table = tables.get(object[0]).expect("a table of the generation");
            assert_eq!(table.decompress(&object[1..], &mut back), Ok(()));
            assert!(back == *unit);
        }
        // The second is free once its object is, and it alone gets other tables.
        let ids: Vec<u8> = objects.iter().map(|(_, object)| object[0]).collect();
        learner.freed(ids[1]);
        let held = Arc::clone(learner.tables(ids[1]).expect("living"));
        assert_eq!(learner.learn().err(), Some(NotLearnt::InUse));
        drop(held);
        let newest = learner.learn().expect("a free place");
        assert!(Arc::ptr_eq(learner.tables(ids[1]).expect("the new one"), &newest));
        // The newest stays, used or not.
        drop(newest);
        fill(&mut learner, 3);
        assert_eq!(learner.learn().err(), Some(NotLearnt::InUse));
        learner.freed(ids[3]);
        assert!(learner.learn().is_ok());
    }

    #[test]
    fn ids_of_others_are_none_of_ours() {
        let learner = Learner::new(Level::L1, 4096);
        for id in 0..=u8::MAX {
            assert!(learner.tables(id).is_none());
            learner.kept(id);
            learner.freed(id);
        }
    }
}
