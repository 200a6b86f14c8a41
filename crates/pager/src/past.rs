//! How soon a page came back, the last times it left: what tells hot pages from cold ones.
//!
//! No accessed bit reaches user space: that a page is in use shows only when it is away and a fault asks for it.
//! So each page that was touched would count as much as any other. What does tell them apart is how long they were
//! away, the refault distance of the kernel's workingset, counted here in rounds of the sweep that evicts:
//!
//! ```text
//!   leaves ── age 0 ──the sweep comes by──► age 1 ──► age 2 ──► age 3, or more
//!                │                            │          │         │
//!   comes back:  count + 1, 3 at most         count - 1  count - 2 count - 3, 0 at least
//! ```
//! The count is its heat: so many rounds the sweep then passes it over. A page that is wanted in each round is soon
//! the hottest; one that is wanted seldom, as in a walk through everything, goes when the sweep comes by.
//!
//! One byte a page, `age(2) count(2)`. All of it is a hint: a change lost to another one costs nothing.

use octavo_page::sync::atomic::{AtomicU8, Ordering};

const COUNT: u8 = 0b11;
const AGE: u8 = 0b1100;
const ROUND: u8 = 0b100;

/// The past of one page.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a>(pub(crate) &'a AtomicU8);

impl Past<'_> {
    fn replace(self, byte: u8) {
        self.0.store(byte, Ordering::Relaxed);
    }

    fn get(self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes that the page leaves.
    pub fn leave(self) {
        self.replace(self.get() & COUNT);
    }

    /// Notes that the sweep came by: what is away has been so for a round more.
    pub fn pass(self) {
        let byte = self.get();
        if byte & AGE != AGE {
            self.replace(byte + ROUND);
        }
    }

    /// Notes that the page is back because it was asked for, and gives its heat.
    #[must_use]
    pub fn come_back(self) -> u32 {
        let byte = self.get();
        let count = match (byte & AGE) / ROUND {
            0 => (byte & COUNT).saturating_add(1).min(COUNT),
            age => (byte & COUNT).saturating_sub(age),
        };
        self.replace(count);
        u32::from(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The heat of a page that was away for so many rounds.
    fn heat_after(past: Past<'_>, rounds: u32) -> u32 {
        past.leave();
        (0..rounds).for_each(|_| past.pass());
        past.come_back()
    }

    #[test]
    fn who_is_back_within_a_round_gets_hotter_and_who_is_not_cools_by_the_rounds() {
        let byte = AtomicU8::new(0);
        let past = Past(&byte);
        let heats = [0, 0, 0, 0, 1, 0, 2, 0, 9, 9, 0].map(|rounds| heat_after(past, rounds));
        assert_eq!(heats, [1, 2, 3, 3, 2, 3, 1, 2, 0, 0, 1]);
    }

    #[test]
    fn rounds_while_it_is_there_do_not_count() {
        let byte = AtomicU8::new(0);
        let past = Past(&byte);
        assert_eq!(heat_after(past, 0), 1);
        (0..5).for_each(|_| past.pass());
        assert_eq!(heat_after(past, 0), 2);
    }
}
