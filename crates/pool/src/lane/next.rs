//! Blocks of the victim that are moved next.
//!
//! To find out which those are is to walk a zspage from its beginning to its end, a look at a handle for each block: of a
//! zspage of a megabyte that costs as much as the few moves that are made under one hold of the lock. So a walk
//! notes more blocks than that, and the next hold goes on with them.
//!
//! ```text
//!   walk ──► the largest, in order  ▣ ▣ ▣ ▣ ▣ ▣ ▣      one hold of the lock moves MOVES_AT_ONCE of them
//!                                   ▲ next
//!   a block that is freed meanwhile is forgotten; nothing new is put into the victim
//! ```

/// Blocks noted by one walk.
#[cfg(not(loom))]
const NOTED: usize = 64;
#[cfg(loom)]
const NOTED: usize = 2;

/// Blocks of one zspage, each by its words and where it begins.
pub(super) struct Next {
    blocks: [(u32, u32); NOTED],
    /// Those before this one were taken.
    taken: usize,
    count: usize,
}

impl Next {
    pub(super) const fn new() -> Self {
        Self { blocks: [(0, 0); NOTED], taken: 0, count: 0 }
    }

    /// Forgets them all.
    pub(super) fn clear(&mut self) {
        (self.taken, self.count) = (0, 0);
    }

    pub(super) const fn is_full(&self) -> bool {
        self.count == NOTED
    }

    /// Notes the block at `at` behind those that are at least as large; of more than there is room for the last ones
    /// are left out.
    pub(super) fn note(&mut self, words: u32, at: u32) {
        let place = self.blocks[..self.count].partition_point(|&(other, _)| other >= words);
        if place < NOTED {
            self.count = NOTED.min(self.count + 1);
            self.blocks[place..self.count].rotate_right(1);
            self.blocks[place] = (words, at);
        }
    }

    /// Takes the next one: where it begins.
    pub(super) fn take(&mut self) -> Option<u32> {
        let &(_, at) = self.blocks[..self.count].get(self.taken)?;
        self.taken += 1;
        Some(at)
    }

    /// Notes that there is no block at `at` any more.
    pub(super) fn forget(&mut self, at: u32) {
        let left = &self.blocks[self.taken..self.count];
        if let Some(found) = left.iter().position(|&(_, other)| other == at) {
            self.blocks.copy_within(self.taken..self.taken + found, self.taken + 1);
            self.taken += 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn the_largest_come_first_and_what_is_forgotten_does_not(
            words in proptest::collection::vec(1_u32..20, 0..3 * NOTED),
            forgotten in proptest::collection::vec(0..3 * NOTED as u32, 0..20),
            before in 0_usize..10,
        ) {
            let mut next = Next::new();
            words.iter().zip(0..).for_each(|(words, at)| next.note(*words, at));
            let mut plain: Vec<u32> = (0..words.len() as u32).collect();
            plain.sort_by_key(|at| core::cmp::Reverse(words[*at as usize]));
            plain.truncate(NOTED);
            prop_assert_eq!(next.is_full(), plain.len() == NOTED);
            let (taken, left) = plain.split_at(before.min(plain.len()));
            for at in taken {
                prop_assert_eq!(next.take(), Some(*at));
            }
            forgotten.iter().for_each(|at| next.forget(*at));
            for at in left.iter().filter(|at| !forgotten.contains(at)) {
                prop_assert_eq!(next.take(), Some(*at));
            }
            prop_assert_eq!(next.take(), None);
        }
    }
}
