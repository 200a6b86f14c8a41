//! The moves that compaction would need, were it to see everything at once.
//!
//! A greedy oracle is given where all objects lie before compaction. It always empties the zspage that wins
//! most pages by a move: each is tried, its objects, the largest first, put into the holes that fit best,
//! wherever these are, and into a fresh zspage where none does; then the trial is undone, or kept. It goes on
//! until it has as few pages as the pool's own compaction came down to, counted as the pool counts them, and tells
//! its moves.
//!
//! Trials are dear, and as holes fill up a zspage hardly ever gets better. So the zspages wait in a
//! heap by what they last promised, and only the first is tried again: when it still is the first, it is it.
//!
//! A zspage hardly ever wins a whole page alone, but several do that share a fresh one. So when it is chosen,
//! what is put into a fresh zspage counts in bytes, everything else in pages; but pages that were only promised so
//! are not won, and the oracle goes on until it really has them. It is asked twice, the second time with what a
//! fresh zspage will leave at its end counted too, and the fewer moves count.
//!
//! It knows nothing of lanes, and looks at every hole: it may come out lower than any pool could.

use octavo_page::PAGE_SIZE;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A page in bytes, as places are counted here.
const PAGE: u64 = PAGE_SIZE as u64;

/// The smallest hole that is one, and bytes of it at its front, and at its end, where its tags stand: they have
/// their pages backed. A hole that ends where its zspage does has none at its end.
const MIN_HOLE: u64 = 16;
const HOLE_FRONT: u64 = 12;
const HOLE_END: u64 = 4;

/// Objects and where they lie, with what belongs to each.
#[derive(Clone, Debug)]
pub struct Layout {
    zspage_bytes: u64,
    /// Of each zspage its blocks: where each begins there, and its bytes.
    zspages: Vec<BTreeMap<u64, u64>>,
}

/// What a fresh zspage leaves at its end: such a part of an object.
const END_PART: u64 = 4;

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

    /// Pages that a block or the tags of a hole touch.
    #[must_use]
    pub fn pages(&self) -> usize {
        (0..self.zspages.len()).map(|zspage| self.pages_of(zspage)).sum()
    }

    fn pages_of(&self, zspage: usize) -> usize {
        let (mut pages, mut seen) = (0, 0);
        let mut touch = |from: u64, to: u64| {
            let (first, end) = ((from / PAGE).max(seen), to.div_ceil(PAGE));
            pages += end.saturating_sub(first);
            seen = seen.max(end);
        };
        let blocks = &self.zspages[zspage];
        let mut end = 0;
        let border = (!blocks.is_empty()).then_some((self.zspage_bytes, 0));
        for (at, bytes) in blocks.iter().map(|(&at, &bytes)| (at, bytes)).chain(border) {
            if at - end >= MIN_HOLE {
                touch(end, end + HOLE_FRONT);
                if at < self.zspage_bytes {
                    touch(at - HOLE_END, at);
                }
            }
            if bytes > 0 {
                touch(at, at + bytes);
            }
            end = at + bytes;
        }
        pages as usize
    }

    /// The moves with which the oracle wins so many pages; those of the last zspage in proportion.
    /// `None` when it does not.
    #[must_use]
    pub fn least_moves(&self, pages: usize) -> Option<usize> {
        [false, true].into_iter().filter_map(|ends| self.moves_to_win(pages, ends)).min()
    }

    fn moves_to_win(&self, pages: usize, ends: bool) -> Option<usize> {
        let mut state = State::new(self, ends);
        let mut heap: BinaryHeap<(Gain, usize)> =
            (0..self.zspages.len()).map(|zspage| (Gain::MAX, zspage)).collect();
        let (wanted, mut won, mut moves) = (pages as i64, 0, 0);
        while won < wanted {
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
            let before = won;
            won = state.won_of_old - state.pages_of_fresh();
            let (share, all) = ((wanted - before).min(won - before), won - before);
            let count = trial.moves.len();
            moves +=
                if share < all { (count * share as usize).div_ceil(all as usize) } else { count };
        }
        Some(moves)
    }
}

/// What the oracle has made of a layout.
struct State {
    layout: Layout,
    holes: BTreeSet<Hole>,
    /// Zspages from this one on are fresh.
    fresh: usize,
    /// Pages of the others that are not needed any more.
    won_of_old: i64,
    /// Whether what a fresh zspage will leave at its end counts as filled.
    ends: bool,
}

/// A zspage that was emptied.
struct Trial {
    zspage: usize,
    blocks: BTreeMap<u64, u64>,
    /// Into which hole each block went, and its bytes.
    moves: Vec<(Hole, u64)>,
    /// Zspages there were before.
    zspages: usize,
    /// Pages of zspages that are not fresh.
    won_of_old: i64,
    /// Bytes that count as won.
    won: i64,
}

impl Trial {
    /// Zero of a zspage that is empty.
    fn gain(&self) -> Gain {
        (self.won << 16).checked_div(self.moves.len() as i64).unwrap_or(0)
    }
}

impl State {
    fn new(layout: &Layout, ends: bool) -> Self {
        let (layout, fresh) = (layout.clone(), layout.zspages.len());
        let mut state = Self { layout, holes: BTreeSet::new(), fresh, won_of_old: 0, ends };
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
        let won_of_old = self.layout.pages_of(zspage) as i64;
        let blocks = std::mem::take(&mut self.layout.zspages[zspage]);
        let mut trial = Trial { zspage, blocks, moves: Vec::new(), zspages, won_of_old, won: 0 };
        let mut sizes: Vec<u64> = trial.blocks.values().copied().collect();
        sizes.sort_unstable();
        let mut fresh = 0;
        for &bytes in sizes.iter().rev() {
            let hole = self.best(bytes);
            self.holes.remove(&hole);
            self.holes.extend(rest(hole, bytes));
            self.layout.zspages[hole.1].insert(hole.2, bytes);
            if hole.1 < self.fresh {
                trial.won_of_old -= self.newly_backed(hole, bytes) as i64;
            } else {
                fresh += bytes;
            }
            trial.moves.push((hole, bytes));
        }
        if self.ends {
            fresh += fresh * mean(&sizes) / END_PART / self.layout.zspage_bytes;
        }
        trial.won = trial.won_of_old * PAGE as i64 - fresh as i64;
        self.won_of_old += trial.won_of_old;
        trial
    }

    /// Pages of fresh zspages.
    fn pages_of_fresh(&self) -> i64 {
        let fresh = self.fresh..self.layout.zspages.len();
        fresh.map(|zspage| self.layout.pages_of(zspage)).sum::<usize>() as i64
    }

    /// The hole that fits best, in a fresh zspage if need be.
    fn best(&mut self, bytes: u64) -> Hole {
        self.holes.range((bytes, 0, 0)..).next().copied().unwrap_or_else(|| {
            self.layout.zspages.push(BTreeMap::new());
            (self.layout.zspage_bytes, self.layout.zspages.len() - 1, 0)
        })
    }

    /// Pages to be backed when there is a block at the front of a hole.
    fn newly_backed(&self, (bytes, _, at): Hole, block: u64) -> u64 {
        let end = at + bytes;
        let last = if end < self.layout.zspage_bytes { end - HOLE_END } else { end };
        let vacant = (at + HOLE_FRONT).div_ceil(PAGE)..last / PAGE;
        let is_hole = bytes - block >= MIN_HOLE;
        let needed = if is_hole { (at + block + HOLE_FRONT).div_ceil(PAGE) } else { vacant.end };
        needed.min(vacant.end).saturating_sub(vacant.start)
    }

    fn undo(&mut self, trial: Trial) {
        self.won_of_old -= trial.won_of_old;
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

fn mean(sizes: &[u64]) -> u64 {
    sizes.iter().sum::<u64>().checked_div(sizes.len() as u64).unwrap_or(0)
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
        assert_eq!(layout.pages(), 6, "one in each for the tags of the hole behind the objects");
        assert_eq!(layout.least_moves(0), Some(0));
        assert_eq!(layout.least_moves(2), Some(2), "the large ones");
        assert_eq!(layout.least_moves(3), None, "there is no waste then");

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
            let (mut state, count) = (State::new(&layout, false), layout.zspages.len());
            let used = |layout: &Layout| {
                let pages: usize = (0..count).map(|zspage| layout.pages_of(zspage)).sum();
                let fresh = layout.zspages[count..].iter().flat_map(|zspage| zspage.values());
                (pages * PAGE_SIZE) as i64 + fresh.sum::<u64>() as i64
            };
            for (zspage, keep) in order {
                if zspage >= count {
                    continue; // the oracle empties no fresh ones
                }
                let (before, holes) = (state.layout.clone(), state.holes.clone());
                let trial = state.empty(zspage);
                prop_assert_eq!(trial.won, used(&before) - used(&state.layout));
                let won = state.won_of_old - state.pages_of_fresh();
                prop_assert_eq!(won, layout.pages() as i64 - state.layout.pages() as i64);
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
