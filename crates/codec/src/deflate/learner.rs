//! Learning tables while a program runs.
//!
//! ```text
//!   units ── one of 16 ──► of these each, later one of 16 ──► symbols counted ── enough ──► rounds of
//!                                                                 │ training, a step each
//!                                                                 │ better than those in use?
//!                                                                 ▼
//!                                                               a generation (`learnt`)
//! ```
//! Whoever compresses offers units; whoever has time takes [`Learner::step`]s, each of which takes less than
//! a millisecond. All memory is reserved when the learner is made.
//!
//! After each learning, whatever came of it, half as many units are counted, down to one of 256 that are
//! compressed: what a program keeps changes less and less. A generation is made only where it saves a sixty-fourth, since
//! objects of older ones keep theirs: once all are in use, nothing is learnt until one is free.

use super::canned::{TableSet, Trainer, count, window_of};
use super::encode::{Deflate, Histogram, Lengths};
use super::general::GENERAL;
use super::learnt::{Generation, Generations};
use super::matcher::Level;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// What a step of learning came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// There are not enough samples yet.
    Waits,
    /// More steps are to follow.
    Trains,
    /// This is the newest generation now.
    Learnt(Generation),
    /// The tables in use are about as good; the samples are forgotten.
    AsGood,
    /// Units of every older generation are kept; what was trained waits for one to be free.
    InUse,
}

/// Samples a program's units and learns tables from them.
pub struct Learner {
    level: Level,
    window: usize,
    deflate: Deflate,
    /// What is learnt from: symbols of single units, never more than its capacity.
    counted: Vec<Histogram>,
    counted_bytes: usize,
    offered: usize,
    /// Of so many units offered one is counted.
    every: usize,
    trainer: Trainer,
    /// What was trained is known to be better than the tables in use, and waits for a place.
    is_better: bool,
    /// The tables in use.
    current: Vec<Lengths>,
    all: Arc<Generations>,
}

impl fmt::Debug for Learner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learner")
            .field("counted", &self.counted.len())
            .field("every", &self.every)
            .field("all", &self.all)
            .finish_non_exhaustive()
    }
}

impl Learner {
    /// Units that are learnt from, at most.
    pub const UNITS: usize = 256;
    /// Units that are learnt from at least, however long they are.
    const LEAST_UNITS: usize = 64;
    /// Bytes of units that are enough.
    const BYTES: usize = 1 << 20;
    /// Of so many units that are compressed one should be offered: neighbours are alike.
    pub const OFFERED_OF: usize = 16;
    /// Of so many units offered one is counted at last.
    const EVERY_LAST: usize = 16;

    /// A learner for units of at most `longest` bytes that will be compressed at `level`, and the
    /// generations that it will learn. Allocates all that it will ever need: 1.2 MiB, untouched so far.
    ///
    /// # Panics
    /// When a unit is longer than [`MAX_UNIT`](crate::MAX_UNIT).
    #[must_use]
    pub fn new(level: Level, longest: usize) -> Self {
        assert!(longest <= crate::MAX_UNIT, "units of {longest} bytes");
        let window = window_of(longest);
        let mut current = Vec::with_capacity(TableSet::MAX);
        current.extend_from_slice(&GENERAL);
        Self {
            level,
            window,
            deflate: Deflate::new(),
            counted: Vec::with_capacity(Self::UNITS),
            counted_bytes: 0,
            offered: 0,
            every: 1,
            trainer: Trainer::new(Self::UNITS, TableSet::MAX, window),
            is_better: false,
            current,
            all: Arc::new(Generations::new()),
        }
    }

    /// What it has learnt.
    #[must_use]
    pub const fn generations(&self) -> &Arc<Generations> {
        &self.all
    }

    /// Looks at a unit that was compressed: counts the symbols of one of some, until there are enough.
    ///
    /// Allocates nothing. Takes as long as finding the unit's matches, where it is counted.
    ///
    /// # Panics
    /// When the unit is longer than [`MAX_UNIT`](crate::MAX_UNIT).
    pub fn offer(&mut self, unit: &[u8]) {
        self.offered += 1;
        if self.is_ready() || !self.offered.is_multiple_of(self.every) {
            return;
        }
        self.counted.push(count(&mut self.deflate, self.level, unit));
        self.counted_bytes += unit.len();
    }

    /// Whether there are samples enough to learn from.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.counted.len() == Self::UNITS
            || self.counted_bytes >= Self::BYTES && self.counted.len() >= Self::LEAST_UNITS
    }

    /// Learns a little further. Allocates nothing.
    pub fn step(&mut self) -> Step {
        if !self.is_ready() {
            return Step::Waits;
        }
        if !self.trainer.is_done() {
            self.trainer.round(&self.counted);
            return Step::Trains;
        }
        // Looked at once: whoever waits for a place asks again and again.
        if !self.is_better && self.trainer.cost > self.cost_so_far() / 64 * 63 {
            self.begin_anew();
            return Step::AsGood;
        }
        self.is_better = true;
        let made = self.all.replace(self.window, &self.trainer.lengths);
        let Some(generation) = made.expect("what is trained is a table") else {
            return Step::InUse;
        };
        self.current.clear();
        self.current.extend_from_slice(&self.trainer.lengths);
        self.begin_anew();
        Step::Learnt(generation)
    }

    /// Bits that the samples take with the tables in use, each with the best.
    fn cost_so_far(&self) -> u64 {
        let cost = |unit: &Histogram| self.current.iter().map(|l| unit.cost(l)).min().unwrap_or(0);
        self.counted.iter().map(|unit| u64::from(cost(unit))).sum()
    }

    /// Forgets the samples, and takes others.
    fn begin_anew(&mut self) {
        self.counted.clear();
        (self.counted_bytes, self.offered) = (0, 0);
        self.every = (self.every * 2).min(Self::EVERY_LAST);
        self.trainer.begin();
        self.is_better = false;
    }

    /// Bytes that it takes once it has learnt, beside its generations.
    pub const TAKES: usize = size_of::<Self>()
        + Self::UNITS * size_of::<Histogram>()
        + 2 * TableSet::MAX * size_of::<Lengths>();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Codec;
    use crate::{Corrupt, Workspace};
    use std::vec;

    const UNIT: usize = 4096;

    fn codec() -> Codec {
        "deflate-canned:1".parse().expect("a name")
    }

    /// A unit of letters, other ones for each seed.
    fn unit(seed: usize, n: usize) -> Vec<u8> {
        let letter =
            |i: usize| (b'a' as usize + seed * 23 + (i * i + i / 7 * n) % (5 + seed)) as u8;
        (0..UNIT).map(letter).collect()
    }

    /// Offers units until there are enough, and learns.
    fn learn(learner: &mut Learner, seed: usize) -> Step {
        for n in 0.. {
            if learner.is_ready() {
                break;
            }
            learner.offer(&unit(seed, n));
            assert!(n <= Learner::UNITS * Learner::EVERY_LAST, "never enough");
        }
        loop {
            match learner.step() {
                Step::Trains => {}
                step => return step,
            }
        }
    }

    #[test]
    fn objects_are_read_with_the_tables_they_were_made_with() {
        let mut learner = Learner::new(Level::L1, UNIT);
        assert_eq!(learner.step(), Step::Waits);
        let all = Arc::clone(learner.generations());
        let mut workspace = Workspace::new(&[codec()]);
        workspace.set_learnt(Arc::clone(&all));
        let mut objects = vec![];
        for seed in 0..Generations::MAX {
            let Step::Learnt(generation) = learn(&mut learner, seed) else {
                panic!("nothing learnt from {seed}");
            };
            // What was learnt is as good for the same once more.
            assert_eq!(learn(&mut learner, seed), Step::AsGood);
            let hold = all.hold().expect("a generation");
            assert_eq!(hold.generation, generation);
            workspace.compress_with(generation);
            let unit = unit(seed, 3);
            let mut object = vec![0; UNIT];
            let size = workspace.compress(codec(), &unit, &mut object).expect("fits");
            object.truncate(size);
            assert_eq!(object[0] & !7, generation.first_id());
            all.kept(generation, 1);
            objects.push((generation, unit, object));
        }
        // All places are taken by objects; what was trained stays for another time.
        assert_eq!(learn(&mut learner, 9), Step::InUse);
        assert_eq!(learner.step(), Step::InUse);
        for (_, unit, object) in &objects {
            let mut back = vec![0; UNIT];
            assert_eq!(workspace.decompress(codec(), object, &mut back), Ok(()));
            assert!(back == *unit);
        }
        // The second is free once its object is, and it alone gets other tables.
        let second = objects[1].0;
        all.freed(second.place());
        assert!(all.is_there(second));
        let Step::Learnt(newest) = learner.step() else { panic!("a place is free") };
        assert_eq!(newest.place(), second.place());
        assert!(!all.is_there(second) && all.is_there(objects[2].0));
        // The newest stays, used or not.
        assert_eq!(learn(&mut learner, 5), Step::InUse);
        all.freed(objects[3].0.place());
        assert!(matches!(learner.step(), Step::Learnt(_)));
    }

    #[test]
    fn an_unknown_table_is_named() {
        let mut workspace = Workspace::new(&[codec()]);
        workspace.set_learnt(Arc::new(Generations::new()));
        for id in 8..=u8::MAX {
            let read = workspace.decompress(codec(), &[id, 1, 2, 3], &mut [0; UNIT]);
            assert_eq!(read, Err(Corrupt::UnknownTable(id)));
        }
    }
}
