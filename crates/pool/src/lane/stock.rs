//! Pages that no object needs any more and that are still backed, so that the next objects there
//! cost neither a call for each page given back nor another to get it again.
//!
//! A stock is a few runs, oldest first. It is small, and counted as used: a 256th of the lane's
//! pages at most, and nothing after compaction that moved anything. Runs are disjoint, and vacant in the sense of the lane.

use core::ops::Range;

/// Most runs; so many are given back at once.
pub const RUNS: usize = 64;
/// Most pages in a run that can be taken: those of the largest zspage.
const MASK_BITS: u32 = 256;

/// See the module.
pub(crate) struct Stock {
    runs: [(u32, u32); RUNS],
    count: usize,
    pages: u32,
}

impl Stock {
    pub(crate) const fn new() -> Self {
        Self { runs: [(0, 0); RUNS], count: 0, pages: 0 }
    }

    /// Pages in stock.
    pub(crate) const fn pages(&self) -> usize {
        self.pages as usize
    }

    /// Keeps a run, unless it is longer than `limit` pages by itself. When there is more than `limit`
    /// then, or too many runs, the oldest go to `drop` until about half are left: many at once cost
    /// little more than one.
    pub(crate) fn put(
        &mut self,
        run: Range<u32>,
        limit: usize,
        mut drop: impl FnMut(&[Range<u32>]),
    ) {
        let more = if run.len() > limit { 0 } else { run.len() };
        if self.count == RUNS || self.pages() + more > limit {
            let half = limit.div_ceil(2).max(more);
            let (mut dropped, mut n) = ([const { 0..0 }; RUNS], 0);
            while self.count > RUNS / 2 || (self.count > 0 && self.pages() + more > half) {
                dropped[n] = self.pop_oldest();
                n += 1;
            }
            drop(&dropped[..n]);
        }
        if more > 0 { self.push(run) } else { drop(&[run]) }
    }

    /// Calls `gap` for each part of `run` that is not in stock. When all succeed, takes the others
    /// out; when one does not, calls `undo` for those before it.
    pub(crate) fn take<E>(
        &mut self,
        run: Range<u32>,
        mut gap: impl FnMut(Range<u32>) -> Result<(), E>,
        mut undo: impl FnMut(Range<u32>),
    ) -> Result<(), E> {
        let have = self.mask(&run);
        let mut done = run.start;
        while let Some(part) = next_gap(&have, &run, done) {
            done = part.end;
            if let Err(error) = gap(part.clone()) {
                let mut back = run.start;
                while let Some(before) = next_gap(&have, &run, back).filter(|b| *b != part) {
                    back = before.end;
                    undo(before);
                }
                return Err(error);
            }
        }
        self.remove(&run, undo);
        Ok(())
    }

    /// Takes everything of `range` out of stock and gives it to `drop`. Runs lie all inside it or
    /// all outside.
    pub(crate) fn clear(&mut self, range: Range<u32>, drop: impl FnOnce(&[Range<u32>])) {
        let (mut dropped, mut n) = ([const { 0..0 }; RUNS], 0);
        let mut kept = 0;
        for at in 0..self.count {
            let (start, end) = self.runs[at];
            if range.contains(&start) {
                self.pages -= end - start;
                dropped[n] = start..end;
                n += 1;
            } else {
                self.runs[kept] = (start, end);
                kept += 1;
            }
        }
        self.count = kept;
        drop(&dropped[..n]);
    }

    /// Which pages of `run` are in stock.
    fn mask(&self, run: &Range<u32>) -> [u64; MASK_BITS as usize / 64] {
        debug_assert!(run.end - run.start <= MASK_BITS, "a run lies in one zspage");
        let mut mask = [0; MASK_BITS as usize / 64];
        for &(start, end) in &self.runs[..self.count] {
            for page in start.max(run.start)..end.min(run.end) {
                let bit = page - run.start;
                mask[bit as usize / 64] |= 1 << (bit % 64);
            }
        }
        mask
    }

    /// Cuts `run` out of all runs; what no longer fits the table goes to `drop`.
    fn remove(&mut self, run: &Range<u32>, mut drop: impl FnMut(Range<u32>)) {
        let mut at = 0;
        while at < self.count {
            let (start, end) = self.runs[at];
            if end <= run.start || run.end <= start {
                at += 1;
                continue;
            }
            self.runs.copy_within(at + 1..self.count, at);
            self.count -= 1;
            self.pages -= end - start;
            for rest in [start..run.start.max(start), run.end.min(end)..end] {
                if rest.is_empty() {
                } else if self.count < RUNS {
                    self.push(rest);
                } else {
                    drop(rest);
                }
            }
        }
    }

    fn push(&mut self, run: Range<u32>) {
        self.pages += run.end - run.start;
        self.runs[self.count] = (run.start, run.end);
        self.count += 1;
    }

    fn pop_oldest(&mut self) -> Range<u32> {
        let (start, end) = self.runs[0];
        self.runs.copy_within(1..self.count, 0);
        self.count -= 1;
        self.pages -= end - start;
        start..end
    }
}

/// The first part of `run` from `from` on that is not in `have`.
fn next_gap(have: &[u64], run: &Range<u32>, from: u32) -> Option<Range<u32>> {
    let missing = |page: &u32| {
        let bit = page - run.start;
        have[bit as usize / 64] >> (bit % 64) & 1 == 0
    };
    let start = (from..run.end).find(missing)?;
    let end = (start..run.end).find(|page| !missing(page)).unwrap_or(run.end);
    Some(start..end)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::OutOfFrames;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a set of the pages that are backed.
        #[test]
        fn a_stock_knows_what_it_has(
            ops in prop::collection::vec((0..4_u8, 0..200_u32, 1..40_u32, 0..100_usize), 0..200),
        ) {
            let (mut stock, mut backed, mut used) =
                (Stock::new(), BTreeSet::new(), BTreeSet::new());
            for (op, start, len, limit) in ops {
                let run = start..start + len;
                let free = run.clone().all(|page| !used.contains(&page));
                if op == 3 {
                    stock.clear(0..u32::MAX, |gone| {
                        gone.iter().cloned().flatten().for_each(|p| assert!(backed.remove(&p)));
                    });
                    prop_assert_eq!(&backed, &used);
                } else if op == 2 && free {
                    // Fails when it has to back more than `limit` pages.
                    let mut left = limit;
                    let before = backed.clone();
                    let set = core::cell::RefCell::new(&mut backed);
                    let gap = |gap: Range<u32>| {
                        left = left.checked_sub(gap.len()).ok_or(OutOfFrames)?;
                        gap.for_each(|p| assert!(set.borrow_mut().insert(p)));
                        Ok::<(), OutOfFrames>(())
                    };
                    let undo = |gone: Range<u32>| {
                        gone.for_each(|p| assert!(set.borrow_mut().remove(&p)));
                    };
                    if stock.take(run.clone(), gap, undo).is_ok() {
                        used.extend(run);
                    } else {
                        prop_assert_eq!(&backed, &before);
                    }
                } else if run.clone().all(|page| used.contains(&page)) {
                    run.clone().for_each(|page| assert!(used.remove(&page)));
                    stock.put(run, limit, |gone| {
                        gone.iter().cloned().flatten().for_each(|p| assert!(backed.remove(&p)));
                    });
                    prop_assert!(stock.pages() <= limit);
                }
                prop_assert!(used.is_subset(&backed));
                prop_assert_eq!(stock.pages(), backed.len() - used.len());
            }
        }
    }
}
