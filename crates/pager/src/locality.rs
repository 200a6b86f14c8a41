//! Whether what lies beside a page that is wanted is wanted soon as well.
//!
//! Pages compress better together, and a unit that is decoded for one of them has the others for next
//! to nothing. That pays while a program goes through its memory; where it jumps, each page that comes
//! along takes the room of another, and has to be compressed once more. Nobody tells us which pages were
//! touched, so now and then we try: the pages beside one that is wanted are held back, and for as long
//! as they would have stayed in memory we see which of them are asked for.
//!
//! ```text
//!     64 KiB of addresses    . S S . S P S S . . S S S S . S     S: stored   P: wanted
//!     held back                  x x   x   x x     x x x x   x
//!     asked for within a life        x     x                        2 of 11: the program jumps here
//! ```
//! A reader that goes on in order is one for whom what follows is wanted: that needs no trial. Nor does one that goes on
//! in steps, for whom what lies between is not.
//!
//! # Invariants
//!
//! - A trial is judged when it has lasted a life, not before: a short look would find too few.
//! - At most [`TRIALS`] windows are held back, so a trial costs a bounded number of faults.

use octavo_page::{PAGE_SIZE, Unit};

/// Pages whose fate is looked at together: as many as the largest unit has.
const WINDOW: usize = Unit::MAX.pages();

/// Windows tried at once.
const TRIALS: usize = 8;

/// Faults from one trial to the next, at least.
const PAUSE: u64 = 32;

/// Stored pages beside the wanted one without which a window tells nothing.
const LEAST: u32 = 4;

/// The score where all that lay beside was wanted.
const ALL: u32 = 1 << 16;

/// Of a score, what a trial changes, and what a reader in order does for each run of his.
const TRIAL_PART: u32 = 4;
const STREAM_PART: u32 = 64;

/// Below two fifths the program jumps, above three fifths it does not: there a page that comes along
/// costs what a fault would.
const JUMPS_BELOW: u32 = ALL / 5 * 2;
const RUNS_ABOVE: u32 = ALL / 5 * 3;

/// Pages held back around one that was wanted.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Address of the window.
    window: usize,
    held: u16,
    asked: u16,
    /// When it has lasted a life.
    until: u64,
}

/// How a program goes about its memory.
#[derive(Debug)]
pub struct Locality {
    trials: [Option<Trial>; TRIALS],
    /// Counts pages that came back: the time in which others leave.
    clock: u64,
    next_trial: u64,
    score: u32,
    jumps: bool,
    /// Until when somebody goes on in steps, as far as that is to be expected.
    steps_until: u64,
}

impl Default for Locality {
    fn default() -> Self {
        Self {
            trials: [None; TRIALS],
            clock: 0,
            next_trial: 0,
            score: ALL,
            jumps: false,
            steps_until: 0,
        }
    }
}

impl Locality {
    /// Whether the program jumps: what lies beside a wanted page is seldom wanted soon.
    pub const fn jumps(&self) -> bool {
        self.jumps || self.clock < self.steps_until
    }

    /// Notes that this page was asked for; says whether a trial holds it back.
    pub fn note_asked(&mut self, page: usize) -> bool {
        let (window, now) = (window_of(page), self.clock);
        let mut trials = self.trials.iter_mut().flatten();
        let Some(trial) = trials.find(|trial| trial.window == window && trial.until > now) else {
            return false;
        };
        trial.asked |= trial.held & bit_of(page);
        true
    }

    /// Notes that `pages` came back.
    pub fn note_back(&mut self, pages: usize) {
        self.clock += pages as u64;
    }

    /// Notes that a reader went on in order.
    pub fn note_stream(&mut self) {
        self.count(ALL, STREAM_PART);
    }

    /// Notes that a reader went on in steps of several pages: what is stored together would come apart, and what is left
    /// of it keep its room. He is expected to do so again until `life` pages have come back, in order or not.
    pub const fn note_steps(&mut self, life: u64) {
        self.steps_until = self.clock + life;
    }

    /// Begins a trial of the pages beside `page`, if it is time for one; `is_stored` says which can be held
    /// back, and a page that comes back now stays for as long as `life` others do. False when none begins.
    pub fn try_beside(
        &mut self,
        page: usize,
        life: u64,
        is_stored: impl Fn(usize) -> bool,
    ) -> bool {
        if self.clock < self.next_trial {
            return false;
        }
        self.judge();
        let Some(free) = self.trials.iter_mut().find(|trial| trial.is_none()) else { return false };
        let window = window_of(page);
        let held = (0..WINDOW)
            .map(|n| window + n * PAGE_SIZE)
            .filter(|at| *at != page && is_stored(*at))
            .fold(0, |held, at| held | bit_of(at));
        self.next_trial = self.clock + PAUSE;
        if held.count_ones() < LEAST {
            return false;
        }
        *free = Some(Trial { window, held, asked: 0, until: self.clock + life });
        true
    }

    /// Ends the trials that have lasted a life, and counts what they found.
    fn judge(&mut self) {
        for n in 0..TRIALS {
            let Some(trial) = self.trials[n].take_if(|trial| trial.until <= self.clock) else {
                continue;
            };
            self.count(ALL * trial.asked.count_ones() / trial.held.count_ones(), TRIAL_PART);
        }
    }

    fn count(&mut self, found: u32, part: u32) {
        self.score = self.score - self.score / part + found / part;
        let edge = if self.jumps { RUNS_ABOVE } else { JUMPS_BELOW };
        self.jumps = self.score < edge;
    }
}

const fn window_of(page: usize) -> usize {
    page & !(WINDOW * PAGE_SIZE - 1)
}

const fn bit_of(page: usize) -> u16 {
    1 << (page / PAGE_SIZE % WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: u64 = 1000;

    /// Faults on the pages of `touched` windows, all pages beside them stored, `asked` of each window's
    /// pages in all; with the pages that then came back one by one.
    fn go_through(locality: &mut Locality, windows: core::ops::Range<usize>, asked: usize) {
        for window in windows {
            for n in 0..asked {
                let page = (window * WINDOW + n) * PAGE_SIZE;
                if !locality.note_asked(page) {
                    locality.try_beside(page, LIFE, |_| true);
                }
                locality.note_back(1);
            }
        }
    }

    #[test]
    fn who_asks_for_one_page_of_a_window_jumps_and_who_asks_for_all_does_not() {
        let mut locality = Locality::default();
        go_through(&mut locality, 0..20_000, 1);
        assert!(locality.jumps());
        go_through(&mut locality, 20_000..22_000, WINDOW);
        assert!(!locality.jumps());
        go_through(&mut locality, 30_000..40_000, 3);
        assert!(locality.jumps());
        (0..200).for_each(|_| locality.note_stream());
        assert!(!locality.jumps());
    }

    #[test]
    fn steps_are_remembered_for_a_while_whoever_reads_in_order_meanwhile() {
        let mut locality = Locality::default();
        locality.note_steps(LIFE);
        (0..LIFE).for_each(|_| {
            assert!(locality.jumps());
            locality.note_stream();
            locality.note_back(1);
        });
        assert!(!locality.jumps());
    }

    #[test]
    fn what_is_asked_for_after_a_life_does_not_count() {
        let mut locality = Locality::default();
        for round in 0..64 {
            assert!(locality.try_beside(round * WINDOW * PAGE_SIZE, LIFE, |_| true));
            locality.note_back(LIFE as usize);
            (1..WINDOW).for_each(|n| {
                assert!(!locality.note_asked((round * WINDOW + n) * PAGE_SIZE));
            });
        }
        assert!(locality.jumps());
    }

    #[test]
    fn few_windows_are_held_back_at_once() {
        let mut locality = Locality::default();
        for n in 0..1000 {
            locality.try_beside(n * WINDOW * PAGE_SIZE, u64::MAX / 2, |_| true);
            locality.note_back(PAUSE as usize);
        }
        let held = (0..1000).filter(|n| locality.note_asked(n * WINDOW * PAGE_SIZE)).count();
        assert_eq!(held, TRIALS);
    }

    #[test]
    fn a_window_of_which_little_is_stored_tells_nothing() {
        let mut locality = Locality::default();
        assert!(!locality.try_beside(0, LIFE, |at| at <= 3 * PAGE_SIZE));
        locality.note_back(PAUSE as usize);
        assert!(locality.try_beside(0, LIFE, |at| at <= 4 * PAGE_SIZE));
    }
}
