//! Waiting for what nobody tells us of: a thread of the program that is to run on from an event that was read.
//!
//! ```text
//!   its thread   ..waits──┐  runs, may make the next event ..waits──┐
//!   ours          read ───┘ try try try ── nap ── try ── nap ── read ┘
//! ```
//! Until that thread runs, MOVE and COPY are refused; once it does, the time may be short until it makes another
//! event. So it is tried again at once for as long as an idle CPU takes to wake it, and that many times only: beside
//! others it may need our CPU. Then we sleep, and never yield: who yields gives up the time that he would have had
//! (Linux 6.18), and comes after all others, tens of milliseconds later beside a load of thirty, with the thread in
//! its next event by then; who wakes from sleep runs soon, and takes the CPU from that thread where it is.

use core::hint;
use core::time::Duration;
use octavo_sys::task;

/// How often something is tried again at once.
const TRIES: u32 = 16;

/// Naps are of 1 to 128 us, by turns: of one length they could miss each time what comes at the same time after.
const LENGTHS: u32 = 8;

/// Pauses between attempts.
#[derive(Debug)]
pub struct Backoff {
    tries: u32,
}

impl Backoff {
    /// Nothing was tried yet.
    pub const NEW: Self = Self { tries: 0 };

    /// Something was achieved, or has changed: what is next is tried at once again.
    pub const fn renew(&mut self) {
        self.tries = 0;
    }

    /// Comes back when it is time to try again.
    pub fn pause(&mut self) {
        self.tries = self.tries.wrapping_add(1);
        if self.tries <= TRIES {
            hint::spin_loop();
        } else {
            task::sleep(Duration::from_micros(1 << (self.tries % LENGTHS)));
        }
    }
}
