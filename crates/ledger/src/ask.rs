//! What the keeper asks of a process beside its share, while processes take turns.
//!
//! ```text
//!   bits 31..2   until when it holds, on the monotonic clock, in units of 4 ms; wraps      1..0   what
//! ```
//! It holds for a moment, and the keeper says it again: were that killed, nobody would take it back.

use core::time::Duration;
use octavo_page::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use octavo_sys::shared;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u32)]
pub enum Ask {
    /// Nothing.
    #[default]
    Nothing = 0,
    /// To give what it has, down to the last page: it has no use for it at present.
    Give = 1,
    /// The same, and to have its threads wait for the pages they ask for: it is another's turn.
    Wait = 2,
}

/// Where it is asked. All zeros ask for nothing.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Asked(AtomicU32);

/// The keeper says it anew at each look, some 20 ms.
const HOLDS: u32 = 500 / UNIT;

/// Milliseconds.
const UNIT: u32 = 4;

const KIND: u32 = 0b11;
const UNTIL: u32 = u32::MAX >> 2;

fn units(now: Duration) -> u32 {
    (now.as_millis() / u128::from(UNIT)) as u32 & UNTIL
}

impl Asked {
    /// Asks for `what` from `now` on, for half a second.
    #[cfg(not(loom))]
    pub fn ask(&self, what: Ask, now: Duration) {
        let word = match what {
            Ask::Nothing => 0,
            _ => ((units(now) + HOLDS) & UNTIL) << 2 | what as u32,
        };
        let before = self.0.swap(word, Ordering::AcqRel);
        if before & KIND == Ask::Wait as u32 && what != Ask::Wait {
            shared::wake(&self.0);
        }
    }

    /// Asks for nothing any more, where nobody is left who could wait.
    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// What is asked at the time that `now` tells, which is not called where nothing is.
    #[must_use]
    pub fn at(&self, now: impl FnOnce() -> Duration) -> Ask {
        Self::read(self.0.load(Ordering::Acquire), now)
    }

    fn read(word: u32, now: impl FnOnce() -> Duration) -> Ask {
        let what = match word & KIND {
            1 => Ask::Give,
            2 => Ask::Wait,
            _ => return Ask::Nothing,
        };
        let left = (word >> 2).wrapping_sub(units(now())) & UNTIL;
        if left <= HOLDS { what } else { Ask::Nothing }
    }

    /// Waits while [`Ask::Wait`] is asked, for `most` at most.
    #[cfg(not(loom))]
    pub fn wait(&self, now: impl FnOnce() -> Duration, most: Duration) {
        let word = self.0.load(Ordering::Acquire);
        if Self::read(word, now) == Ask::Wait {
            shared::wait(&self.0, word, most);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_waits_is_woken_when_that_ends() {
        let asked = Asked::default();
        let now = Duration::from_secs(7);
        asked.ask(Ask::Wait, now);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                while asked.at(|| now) == Ask::Wait {
                    asked.wait(|| now, Duration::from_secs(3600));
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            asked.ask(Ask::Wait, now + Duration::from_millis(20));
            asked.ask(Ask::Give, now);
            waits.join().expect("it was woken");
        });
    }

    proptest! {
        #[test]
        fn it_holds_for_half_a_second_at_any_time(ms in any::<u64>(), later in 0u64..100_000) {
            let (asked, now) = (Asked::default(), Duration::from_millis(ms >> 1));
            prop_assert_eq!(asked.at(|| unreachable!()), Ask::Nothing);
            for what in [Ask::Give, Ask::Wait] {
                asked.ask(what, now);
                let then = asked.at(|| now + Duration::from_millis(later));
                match later {
                    ..=500 => prop_assert_eq!(then, what),
                    504.. => prop_assert_eq!(then, Ask::Nothing),
                    _ => {}
                }
            }
            asked.ask(Ask::Nothing, now);
            prop_assert_eq!(asked.at(|| now), Ask::Nothing);
        }
    }
}
