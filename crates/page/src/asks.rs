//! What threads of the program ask of a helper, and wait for a moment.
//!
//! ```text
//!   word    turn │ state                 free ──► filling ──► asked ──► free
//!                                             ask              answer, or withdrawn
//! ```
//! Whoever asks takes a free place, writes what it asks about, and waits at the word until that changes.
//! A helper goes through the places and answers. Nobody has to be there for the other: who asks may have
//! stopped waiting, and then an answer finds another turn and changes nothing; what is not answered in time is
//! withdrawn. So an ask is a wish, never a promise.

use crate::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Asks at once, at most. A thread past them goes on without.
pub const MAX: usize = if cfg!(loom) { 1 } else { 16 };

/// What a word says in its low bits; above them is the turn, which no two asks of a place share for long.
const STATE: u32 = 3;
const FREE: u32 = 0;
const FILLING: u32 = 1;
const ASKED: u32 = 2;
const TURN: u32 = STATE + 1;

/// See the module.
#[derive(Debug)]
pub struct Asks([Place; MAX]);

#[derive(Debug)]
struct Place {
    word: AtomicU32,
    about: AtomicUsize,
}

#[cfg(not(loom))]
impl Asks {
    /// Nothing is asked.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { Place { word: AtomicU32::new(FREE), about: AtomicUsize::new(0) } }; MAX])
    }
}

#[cfg(not(loom))]
impl Default for Asks {
    fn default() -> Self {
        Self::new()
    }
}

impl Asks {
    /// Asks about `about`; `None` when all places are taken.
    pub fn ask(&self, about: usize) -> Option<Ask<'_>> {
        self.0.iter().find_map(|place| place.ask(about))
    }

    /// Whether anything is asked.
    pub fn is_any(&self) -> bool {
        self.0.iter().any(|place| place.word.load(Ordering::Relaxed) & STATE == ASKED)
    }

    /// Has `answer` see whatever is asked; where it says true that is done, and `wake` is to wake who waits.
    pub fn answer(&self, mut answer: impl FnMut(usize) -> bool, wake: impl Fn(&AtomicU32)) {
        for Place { word, about } in &self.0 {
            let asked = word.load(Ordering::Acquire);
            if asked & STATE == ASKED && answer(about.load(Ordering::Relaxed)) && end(word, asked) {
                wake(word);
            }
        }
    }

    /// In a child: forgets what was asked, by threads of the parent.
    pub fn forget(&self) {
        self.0.iter().for_each(|place| place.word.store(FREE, Ordering::Relaxed));
    }
}

impl Place {
    fn ask(&self, about: usize) -> Option<Ask<'_>> {
        let free = self.word.load(Ordering::Relaxed);
        if free & STATE != FREE {
            return None;
        }
        let turn = free.wrapping_add(TURN);
        let order = (Ordering::Acquire, Ordering::Relaxed);
        self.word.compare_exchange(free, turn | FILLING, order.0, order.1).ok()?;
        self.about.store(about, Ordering::Relaxed);
        self.word.store(turn | ASKED, Ordering::Release);
        Some(Ask { word: &self.word, asked: turn | ASKED })
    }
}

/// Ends the ask whose word is `asked`, if it is not over.
fn end(word: &AtomicU32, asked: u32) -> bool {
    let free = asked & !STATE | FREE;
    word.compare_exchange(asked, free, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// An ask, which is withdrawn at the end of this.
#[derive(Debug)]
pub struct Ask<'a> {
    word: &'a AtomicU32,
    asked: u32,
}

impl Ask<'_> {
    /// Whether it was answered.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.word.load(Ordering::Acquire) != self.asked
    }

    /// Where to wait for the answer, and what is there until it comes.
    #[must_use]
    pub const fn word(&self) -> (&AtomicU32, u32) {
        (self.word, self.asked)
    }
}

impl Drop for Ask<'_> {
    fn drop(&mut self) {
        end(self.word, self.asked);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn asked(asks: &Asks) -> Vec<usize> {
        let mut found = Vec::new();
        let note = |about| {
            found.push(about);
            false
        };
        asks.answer(note, |_| unreachable!("nothing is answered"));
        found
    }

    #[test]
    fn what_is_asked_is_there_until_it_is_answered_or_withdrawn() {
        let asks = Asks::new();
        assert!(!asks.is_any());
        let (one, other) = (asks.ask(7).expect("a place"), asks.ask(9).expect("a place"));
        assert_eq!(asked(&asks), [7, 9]);
        asks.answer(|about| about == 9, |word| assert!(core::ptr::eq(word, other.word().0)));
        assert!(other.is_answered() && !one.is_answered());
        let next = asks.ask(11).expect("a place");
        drop(other); // whose place is another's by now
        assert_eq!(asked(&asks), [7, 11]);
        drop((one, next));
        assert!(!asks.is_any());
    }

    #[test]
    fn a_full_table_says_so_and_a_child_has_an_empty_one() {
        let asks = Asks::new();
        let all: Vec<_> = (0..MAX).map_while(|n| asks.ask(n)).collect();
        assert!(all.len() == MAX && asks.ask(0).is_none());
        asks.forget();
        assert!(!asks.is_any() && asks.ask(0).is_some());
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p octavo-page --release models`
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Whatever was answered was done, though what stands in the place before was withdrawn.
    #[test]
    fn what_is_answered_was_done() {
        loom::model(|| {
            let place = Place { word: AtomicU32::new(FREE), about: AtomicUsize::new(0) };
            let both = Arc::new((Asks([place]), [AtomicU32::new(0), AtomicU32::new(0)]));
            let helper = thread::spawn({
                let both = Arc::clone(&both);
                move || {
                    let (asks, done) = &*both;
                    for _ in 0..2 {
                        let does = |about: usize| {
                            done[about].store(1, Ordering::Relaxed);
                            true
                        };
                        asks.answer(does, |_| {});
                    }
                }
            });
            let (asks, done) = &*both;
            for about in 0..2 {
                let ask = asks.ask(about).expect("a place that is free again");
                thread::yield_now();
                if ask.is_answered() {
                    assert_eq!(done[about].load(Ordering::Relaxed), 1, "not done");
                }
            }
            helper.join().expect("no panic");
        });
    }

    /// Two threads never share a place.
    #[test]
    fn a_place_is_one_threads() {
        loom::model(|| {
            let place = Place { word: AtomicU32::new(FREE), about: AtomicUsize::new(0) };
            let asks = Arc::new(Asks([place]));
            let both = Arc::new(AtomicU32::new(0));
            let threads = [(); 2].map(|()| {
                let (asks, both) = (Arc::clone(&asks), Arc::clone(&both));
                thread::spawn(move || {
                    if let Some(ask) = asks.ask(1) {
                        assert_eq!(both.fetch_add(1, Ordering::AcqRel), 0, "two have it");
                        both.fetch_sub(1, Ordering::AcqRel);
                        drop(ask);
                    }
                })
            });
            threads.map(|thread| thread.join().expect("no panic"));
        });
    }
}
