//! Whether the program leaves what is stored alone.
//!
//! ```text
//!   moves   ....|.|||||.|....................|.....      pages that come or go
//!   looks   ^         ^         ^         ^         ^    half a second apart
//!   calm    no        no        yes       yes       yes  fewer than 32 since the look before
//! ```
//! A page that has not been asked for in a time in which hardly any were is cold, whatever is known of it: then
//! there is time to store it densely, and none to lose by it soon.

use core::time::Duration;

/// From one look that counts to the next.
const BETWEEN: Duration = Duration::from_millis(500);

/// Pages that may come or go between two looks: what a program touches that waits and now and then has a look.
const FEW: u64 = 32;

/// The last look that counted, and what it saw.
#[derive(Debug, Default)]
pub struct Calm {
    at: Duration,
    moved: u64,
    is_calm: bool,
}

impl Calm {
    /// Whether hardly any page came or went of late; `moved` have until `now`.
    pub fn look(&mut self, now: Duration, moved: u64) -> bool {
        let since = moved.saturating_sub(self.moved);
        if since >= FEW {
            self.is_calm = false;
        }
        if now.saturating_sub(self.at) >= BETWEEN {
            self.is_calm = since < FEW && !self.at.is_zero();
            (self.at, self.moved) = (now, moved);
        }
        self.is_calm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calm_is_half_a_second_in_which_hardly_a_page_moves() {
        let mut calm = Calm::default();
        let mut look = |ms, moved| calm.look(Duration::from_millis(ms), moved);
        assert!(!look(9_010, 1_000), "nothing is known yet");
        assert!(!look(9_500, 1_000));
        assert!(look(9_510, 1_031));
        assert!(look(9_600, 1_062));
        assert!(!look(9_700, 1_063), "at once");
        assert!(!look(9_800, 1_063));
        assert!(!look(10_010, 1_063), "not in the half second before");
        assert!(look(10_510, 1_063));
    }
}
