//! What a file takes while objects come and go, and what keeping it small costs.
//!
//! ```text
//!   uniform       any object is as likely as any other to be replaced
//!   generations   9 of 10 objects live a moment, 9 of 100 a hundred times as long, 1 of 100 ten thousand
//!                 times; how long exactly is drawn: to each age, death is as near as ever
//! ```
//! Uniform churn is the worst there is: no segment is ever emptier than chance makes it. In the other
//! nothing tells how long an object will live but how long it has lived.
//!
//! The backing is filled with what such a life has at any moment, the old before the young, goes on until
//! as much again was written, and is measured from then on.

use super::target::Owned;
use crate::random::Random;
use octavo_backing::file::FileDevice;
use octavo_backing::{Backing, Cleaned, Object, Owner, Place, Reader, Stats, WriteError};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How long objects live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lifetimes {
    Uniform,
    Generations,
}

/// What is alive at any moment, in bytes, about.
pub(super) const LIVE: usize = 192 << 20;

/// How much is written before and while it is measured, in times of [`LIVE`].
const SETTLES: usize = 2;
const MEASURED: usize = 3;

/// Bytes of the objects: those of units that were compressed, some better than others.
const LENS: [usize; 8] = [300, 700, 1100, 1600, 2300, 3400, 5200, 9000];
const MEAN: usize = 2950;

/// Generations: of a hundred objects so many, which live so many times as long as the first.
const GENERATIONS: [(usize, f64); 3] = [(90, 1.0), (9, 100.0), (1, 10_000.0)];

/// What churn came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Churned {
    /// The most that the file took for what lived, over all measurements.
    pub(super) file_over_live: f64,
    /// Bytes that the cleaner moved, over new bytes.
    pub(super) cleaning: f64,
    pub(super) new_bytes: u64,
    pub(super) written_bytes: u64,
}

/// A life: who dies next, and what it writes.
struct Life<'a> {
    backing: &'a Backing<FileDevice>,
    owned: &'a Owned,
    reader: Reader,
    random: Random,
    noise: Vec<u8>,
    lifetimes: Lifetimes,
    /// Objects written so far: the time in which lifetimes are counted.
    now: u64,
    deaths: BinaryHeap<Reverse<(u64, u32)>>,
}

/// Has objects come and go in an empty backing, of which `owned` is empty, too.
pub(super) fn churn(
    backing: &Backing<FileDevice>,
    owned: &Owned,
    lifetimes: Lifetimes,
) -> Result<Churned, WriteError> {
    let mut random = Random::new(2026);
    let noise = (0..1 << 20).map(|_| random.below(256) as u8).collect();
    let (reader, deaths) = (Reader::default(), BinaryHeap::new());
    let mut life = Life { backing, owned, reader, random, noise, lifetimes, now: 0, deaths };
    life.fill()?;
    life.go_on(SETTLES * LIVE, |_| {})?;
    let before = backing.stats();
    let mut most = 0.0_f64;
    life.go_on(MEASURED * LIVE, |stats| {
        most = most.max(stats.file_bytes as f64 / stats.live_bytes as f64);
    })?;
    let after = backing.stats();
    let new_bytes = after.stored_bytes - before.stored_bytes;
    Ok(Churned {
        file_over_live: most,
        cleaning: (after.moved_bytes - before.moved_bytes) as f64 / new_bytes as f64,
        new_bytes,
        written_bytes: after.written_bytes - before.written_bytes,
    })
}

impl Life<'_> {
    /// Objects that live at any moment.
    const OBJECTS: usize = LIVE / MEAN;

    /// Writes what lives at any moment, the old first.
    fn fill(&mut self) -> Result<(), WriteError> {
        for owner in 0..Self::OBJECTS as u32 {
            self.write(owner)?;
        }
        if self.lifetimes == Lifetimes::Generations {
            // As many of each as come times as long as they live, which is what there is of them.
            let (total, unit) = (total_life(), Self::OBJECTS as f64);
            let mut owner = 0;
            for (percent, life) in GENERATIONS.into_iter().rev() {
                let count = (unit * percent as f64 * life / total).round() as usize;
                for _ in 0..count.min(Self::OBJECTS - owner as usize) {
                    let left = self.draw(life * first_life());
                    self.deaths.push(Reverse((self.now + left, owner)));
                    owner += 1;
                }
            }
        }
        Ok(())
    }

    /// Writes so many bytes, each object in the place of one that dies.
    fn go_on(&mut self, bytes: usize, mut look: impl FnMut(&Stats)) -> Result<(), WriteError> {
        let mut written = 0;
        while written < bytes {
            for _ in 0..64 {
                let owner = self.next_to_die();
                written += self.write(owner)?;
            }
            while let Cleaned::Segment { .. } = self.backing.clean(&mut self.reader, self.owned) {}
            look(&self.backing.stats());
        }
        Ok(())
    }

    fn next_to_die(&mut self) -> u32 {
        match self.lifetimes {
            Lifetimes::Uniform => self.random.below(Self::OBJECTS) as u32,
            Lifetimes::Generations => {
                let Reverse((_, owner)) = self.deaths.pop().expect("somebody lives");
                let mut which = self.random.below(100);
                let of = GENERATIONS.iter().find(|(percent, _)| {
                    let is_it = which < *percent;
                    which = which.saturating_sub(*percent);
                    is_it
                });
                let left = self.draw(of.expect("they are a hundred").1 * first_life());
                self.deaths.push(Reverse((self.now + left, owner)));
                owner
            }
        }
    }

    /// A lifetime of this mean: whatever has lived so far says nothing of what is left.
    fn draw(&mut self, mean: f64) -> u64 {
        (-(1.0 - self.random.unit()).ln() * mean) as u64 + 1
    }

    /// Writes an object for an owner, in the place of what it had; its bytes.
    fn write(&mut self, owner: u32) -> Result<usize, WriteError> {
        self.now += 1;
        let len = LENS[self.random.below(LENS.len())];
        let at = self.random.below(self.noise.len() - len);
        let bytes = &self.noise[at..at + len];
        let owner = Owner::new(owner.into()).expect("a small number");
        let mut place = [Err(WriteError::NoRoom)];
        self.backing.write(&[Object { owner, bytes }], &mut place);
        let before = self.owned.put(owner, place[0]?);
        before.into_iter().for_each(|before: Place| self.backing.free(&[before]));
        Ok(len)
    }
}

/// Mean lifetime of all objects, in those of the first generation, times a hundred.
fn total_life() -> f64 {
    GENERATIONS.iter().map(|(percent, life)| *percent as f64 * life).sum()
}

/// How long the first generation lives, so that there are as many objects as there are to be.
fn first_life() -> f64 {
    Life::OBJECTS as f64 * 100.0 / total_life()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lens_have_their_mean() {
        assert_eq!(LENS.iter().sum::<usize>() / LENS.len(), MEAN);
        assert_eq!(GENERATIONS.iter().map(|(percent, _)| percent).sum::<usize>(), 100);
    }
}
