//! The moves that compaction would need, were it to see everything at once.
//!
//! A greedy oracle is given where all objects lie before compaction. It always empties the zspage that wins
//! most pages by a move: each is tried, its objects, the largest first, put into the holes that fit best,
//! wherever these are, and into a fresh zspage where none does; then the trial is undone, or kept. It goes on
//! until it has as few pages as the pool's own compaction came down to, and tells its moves.
//!
//! Trials are dear, and as holes fill up a zspage hardly ever gets better. So the zspages wait in a
//! heap by what they last promised, and only the first is tried again: when it still is the first, it is it.
//!
//! A zspage hardly ever wins a whole page alone, but several do that share a fresh one. So what is put into a
//! fresh zspage counts in bytes, everything else in pages.
//!
//! The oracle needs no tags in holes, and knows nothing of lanes: it may come out lower than any pool could.

use octavo_page::PAGE_SIZE;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A page in bytes, as places are counted here.
const PAGE: u64 = PAGE_SIZE as u64;

/// The smallest hole that is one.
const MIN_HOLE: u64 = 16;

/// Objects and where they lie, with what belongs to each.
#[derive(Clone, Debug)]
pub struct Layout {
    zspage_bytes: u64,
    /// Of each zspage its blocks: where each begins there, and its bytes.
    zspages: Vec<BTreeMap<u64, u64>>,
}

/// A hole: its bytes, its zspage, and where it begins there. So ordered, the first that is large enough is the
/// one that fits best.
type Hole = (u64, usize, u64);

/// What emptying a zspage brings: bytes by 2^16 moves.
type Gain = i64;

impl Layout {
    /// Blocks by their place in an address space that is cut into zspages of so many bytes, and their bytes.
    pub fn new(zspage_bytes: usize, blocks: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut layout = Self { zspage_bytes: zspage_bytes as u64, zspages: Vec::new() };
        for (at, bytes) in blocks {
            let (zspage, at) = (at / zspage_bytes, at % zspage_bytes);
            if layout.zspages.len() <= zspage {
                layout.zspages.resize(zspage + 1, BTreeMap::new());
            }
            layout.zspages[zspage].insert(at as u64, bytes as u64);
        }
        layout
    }

    /// Pages that a block touches.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.zspages.iter().map(pages_of).sum()
    }

    /// The moves with which the oracle wins so many pages; those of the last zspage in proportion.
    /// `None` when it does not.
    #[must_use]
    pub fn least_moves(&self, pages: usize) -> Option<usize> {
        let mut state = State::new(self);
        let mut heap: BinaryHeap<(Gain, usize)> =
            (0..self.zspages.len()).map(|zspage| (Gain::MAX, zspage)).collect();
        let (mut wanted, mut moves) = ((pages * PAGE_SIZE) as i64, 0);
        while wanted > 0 {
            let (_, zspage) = heap.pop()?;
            let trial = state.empty(zspage);
            let gain = trial.gain();
            if heap.peek().is_some_and(|&(next, _)| gain < next) || gain <= 0 {
                state.undo(trial);
                if gain > 0 {
                    heap.push((gain, zspage));
                }
                continue;
            }
            let share = wanted.min(trial.won) as usize;
            moves += (trial.moves.len() * share).div_ceil(trial.won as usize);
            wanted -= trial.won;
        }
        Some(moves)
    }
}

fn pages_of(blocks: &BTreeMap<u64, u64>) -> usize {
    let mut pages = 0;
    let mut seen = 0;
    for (at, bytes) in blocks {
        let (first, end) = ((at / PAGE).max(seen), (at + bytes).div_ceil(PAGE));
        pages += end.saturating_sub(first);
        seen = seen.max(end);
    }
    pages as usize
}

/// What the oracle has made of a layout.
struct State {
    layout: Layout,
    holes: BTreeSet<Hole>,
    /// Zspages from this one on are fresh.
    fresh: usize,
}

/// A zspage that was emptied.
struct Trial {
    zspage: usize,
    blocks: BTreeMap<u64, u64>,
    /// Into which hole each block went, and its bytes.
    moves: Vec<(Hole, u64)>,
    /// Zspages there were before.
    zspages: usize,
    /// Bytes.
    won: i64,
}

impl Trial {
    /// Zero of a zspage that is empty.
    fn gain(&self) -> Gain {
        (self.won << 16).checked_div(self.moves.len() as i64).unwrap_or(0)
    }
}

impl State {
    fn new(layout: &Layout) -> Self {
        let (layout, fresh) = (layout.clone(), layout.zspages.len());
        let mut state = Self { layout, holes: BTreeSet::new(), fresh };
        (0..fresh).for_each(|zspage| state.holes.extend(state.holes_of(zspage)));
        state
    }

    /// The holes of a zspage that holds anything.
    fn holes_of(&self, zspage: usize) -> Vec<Hole> {
        let blocks = &self.layout.zspages[zspage];
        let ends = [0].into_iter().chain(blocks.iter().map(|(at, bytes)| at + bytes));
        let starts = blocks.keys().copied().chain([self.layout.zspage_bytes]);
        let holes = ends.zip(starts).map(|(from, to)| (to - from, zspage, from));
        holes.filter(|&(bytes, ..)| bytes >= MIN_HOLE && !blocks.is_empty()).collect()
    }

    fn empty(&mut self, zspage: usize) -> Trial {
        for hole in self.holes_of(zspage) {
            self.holes.remove(&hole);
        }
        let zspages = self.layout.zspages.len();
        let blocks = std::mem::take(&mut self.layout.zspages[zspage]);
        let won = (pages_of(&blocks) * PAGE_SIZE) as i64;
        let mut trial = Trial { zspage, blocks, moves: Vec::new(), zspages, won };
        let mut sizes: Vec<u64> = trial.blocks.values().copied().collect();
        sizes.sort_unstable();
        for bytes in sizes.into_iter().rev() {
            let hole = self.best(bytes);
            self.holes.remove(&hole);
            self.holes.extend(rest(hole, bytes));
            self.layout.zspages[hole.1].insert(hole.2, bytes);
            trial.won -= self.cost(hole, bytes) as i64;
            trial.moves.push((hole, bytes));
        }
        trial
    }

    /// The hole that fits best, in a fresh zspage if need be.
    fn best(&mut self, bytes: u64) -> Hole {
        self.holes.range((bytes, 0, 0)..).next().copied().unwrap_or_else(|| {
            self.layout.zspages.push(BTreeMap::new());
            (self.layout.zspage_bytes, self.layout.zspages.len() - 1, 0)
        })
    }

    /// Bytes that a block costs at the front of a hole.
    fn cost(&self, hole: Hole, block: u64) -> u64 {
        if hole.1 < self.fresh { newly_backed(hole, block) * PAGE } else { block }
    }

    fn undo(&mut self, trial: Trial) {
        for (hole, bytes) in trial.moves.into_iter().rev() {
            self.layout.zspages[hole.1].remove(&hole.2);
            if let Some(rest) = rest(hole, bytes) {
                self.holes.remove(&rest);
            }
            // What was opened for it is gone.
            if hole.0 < self.layout.zspage_bytes {
                self.holes.insert(hole);
            }
        }
        self.layout.zspages.truncate(trial.zspages);
        self.layout.zspages[trial.zspage] = trial.blocks;
        self.holes.extend(self.holes_of(trial.zspage));
    }
}

/// What a block at the front of a hole leaves of it.
fn rest((bytes, zspage, at): Hole, block: u64) -> Option<Hole> {
    let rest = (bytes - block, zspage, at + block);
    (rest.0 >= MIN_HOLE).then_some(rest)
}

/// Pages that no block touched before there was one at the front of the hole.
fn newly_backed((bytes, _, at): Hole, block: u64) -> u64 {
    let vacant = at.div_ceil(PAGE)..(at + bytes) / PAGE;
    let end = (at + block).div_ceil(PAGE).min(vacant.end);
    end.saturating_sub(vacant.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ZSPAGE: usize = 4 * PAGE_SIZE;

    #[test]
    fn of_two_halves_the_one_with_fewer_objects_moves() {
        // Two objects of half a page in each page; two large ones in the other zspage.
        let small = (0..4).map(|n| (n * 2048, 2048));
        let large = (0..2).map(|n| (ZSPAGE + n * 4096, 4096));
        let layout = Layout::new(ZSPAGE, small.chain(large));
        assert_eq!(layout.pages(), 4);
        assert_eq!(layout.least_moves(0), Some(0));
        assert_eq!(layout.least_moves(1), None, "there is no waste");

        // A quarter of a page is left in each: with 6 moves two zspages of 4 pages become one of 6.
        let blocks = |zspage: usize, n: usize| {
            (0..n).map(move |at| (zspage * ZSPAGE + at * PAGE_SIZE, PAGE_SIZE / 4))
        };
        let layout = Layout::new(ZSPAGE, blocks(0, 4).chain(blocks(1, 3)));
        assert_eq!(layout.pages(), 7);
        assert_eq!(layout.least_moves(3), Some(3), "the three into the holes of the four");
        assert_eq!(layout.least_moves(2), Some(2), "in proportion");
        assert_eq!(layout.least_moves(7), None);
    }

    #[test]
    fn a_fresh_zspage_is_taken_where_no_hole_fits() {
        // Holes of 1,200 bytes among blocks of 2,896: pages win nothing alone, only together.
        let blocks = (0..4).map(|n| (n * PAGE_SIZE, 2896));
        let layout = Layout::new(ZSPAGE, blocks);
        assert_eq!((layout.pages(), layout.least_moves(1)), (4, Some(4)));
    }

    proptest! {
        /// Undone, everything is as it was; kept, no block is lost and none lies on another.
        #[test]
        fn trials_keep_every_block(
            blocks in prop::collection::vec((0..8_usize, 0..64_usize, 4..256_usize), 0..200),
            order in prop::collection::vec((0..8_usize, any::<bool>()), 0..12),
        ) {
            // Blocks of up to a 64th of a zspage each at a place of its own.
            let blocks: BTreeMap<_, _> = blocks
                .into_iter()
                .map(|(zspage, at, bytes)| (zspage * ZSPAGE + at * ZSPAGE / 64, bytes))
                .collect();
            let layout =
                Layout::new(ZSPAGE, blocks.iter().map(|(&at, &bytes)| (at, bytes)));
            let (mut state, count) = (State::new(&layout), layout.zspages.len());
            let used = |layout: &Layout| {
                let (old, fresh) = layout.zspages.split_at(count);
                let pages: usize = old.iter().map(pages_of).sum();
                (pages * PAGE_SIZE) as i64 + fresh.iter().flat_map(|z| z.values()).sum::<u64>() as i64
            };
            for (zspage, keep) in order {
                if zspage >= count {
                    continue; // the oracle empties no fresh ones
                }
                let (before, holes) = (state.layout.clone(), state.holes.clone());
                let trial = state.empty(zspage);
                prop_assert_eq!(trial.won, used(&before) - used(&state.layout));
                if !keep {
                    state.undo(trial);
                    prop_assert_eq!(&state.layout.zspages, &before.zspages);
                    prop_assert_eq!(&state.holes, &holes);
                }
                let mut sizes: Vec<u64> =
                    state.layout.zspages.iter().flat_map(|z| z.values().copied()).collect();
                let mut stored: Vec<u64> = blocks.values().map(|&bytes| bytes as u64).collect();
                sizes.sort_unstable();
                stored.sort_unstable();
                prop_assert_eq!(sizes, stored);
                for zspage in &state.layout.zspages {
                    let mut end = 0;
                    for (&at, &bytes) in zspage {
                        prop_assert!(at >= end && at + bytes <= ZSPAGE as u64);
                        end = at + bytes;
                    }
                }
            }
        }
    }
}
