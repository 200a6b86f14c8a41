//! Trials: what emptying a zspage would win, found out without moving anything.
//!
//! Its blocks, the largest first as they are moved, look for their places with the very search that moves use. A
//! *sketch* says how the holes differ from those in the bins by then:
//!
//! ```text
//!   bins   ──► ▭ ▭ ▣ ▭ ...      ▣ taken by a block that was tried before: skipped
//!   sketch ──► ▭ ▭              rests of those, and of fresh zspages: looked at first, the newest first, as
//!                               they would be the heads of their lists
//! ```
//!
//! So a trial finds the pages that would be backed for the moved, and wins no page that emptying does not. Only what
//! goes to the end of a zspage, where no page is backed yet, is charged by its words: others share that page
//! later, and without them hardly any zspage would win a page alone. An end that takes none of the blocks that are
//! left is charged up to the next border of a page: where all are nearly as large, nobody will fill it.
//!
//! Of more than [`TRIED`] blocks the first by their addresses are tried, and the others count as finding no hole; a
//! block that is being read counts, though it is not moved: in both cases the gain is a guess.

use super::{HOLE, HOLE_FRONT, Held, MIN_HOLE, Run, block_words, first_vacant};
use crate::Arena;
use crate::bins::bin_of;
use crate::ground::PAGE_WORDS;
use crate::handles::NIL;

/// Blocks tried of one zspage: its lane's lock is held meanwhile.
pub(crate) const TRIED: usize = 256;
/// Holes looked at in the bin where some may be too small, and in one where all are large enough.
/// Sizes repeat, and a bin may hold many holes that are all a little too small.
const NEAR: usize = 1024;
const FAR: usize = 256;

/// What is left of a hole.
#[derive(Clone, Copy)]
struct Rest {
    run: Run,
    /// Whether a block there is charged by its words, not by the pages that it needs.
    by_words: bool,
}

/// How holes differ from those in the bins.
struct Sketch {
    /// Where the holes begin that were taken.
    taken: [u32; TRIED],
    taken_count: usize,
    /// Oldest first.
    rests: [Rest; TRIED],
    rest_count: usize,
}

/// All holes are as they are in the bins.
static UNCHANGED: Sketch = Sketch::new();

/// What emptying a zspage wins.
#[derive(Clone, Copy, Default)]
pub(crate) struct Gain {
    /// Words by a move.
    pub(crate) by_move: u32,
    /// Whether a page comes free by this alone. If not, what is won is a part of a page taken for the moved blocks,
    /// which others have to share before there is a page less.
    pub(crate) is_page: bool,
}

/// What a block costs where it is moved.
struct Cost {
    /// What it is charged.
    words: u32,
    /// Pages that are backed for it.
    pages: u32,
}

/// Words of what is left of a zspage's end up to the first border of a page.
fn begun(rest: Run) -> u32 {
    rest.words.min(rest.at.next_multiple_of(PAGE_WORDS) - rest.at)
}

/// A place for a block.
enum Found {
    /// A hole in the bins.
    Hole(Run),
    /// A rest, by its number.
    Rest(usize),
}

impl Sketch {
    const fn new() -> Self {
        let none = Rest { run: Run { at: 0, words: 0 }, by_words: false };
        Self { taken: [0; TRIED], taken_count: 0, rests: [none; TRIED], rest_count: 0 }
    }

    fn rests(&self) -> &[Rest] {
        &self.rests[..self.rest_count]
    }

    fn has_taken(&self, hole: u32) -> bool {
        self.taken[..self.taken_count].contains(&hole)
    }

    /// There is room: each block takes one hole at most.
    fn take(&mut self, hole: u32) {
        self.taken[self.taken_count] = hole;
        self.taken_count += 1;
    }

    fn put_rest(&mut self, rest: Rest) {
        self.rests[self.rest_count] = rest;
        self.rest_count += 1;
    }

    fn take_rest(&mut self, number: usize) -> Rest {
        let rest = self.rests[number];
        self.rests.copy_within(number + 1..self.rest_count, number);
        self.rest_count -= 1;
        rest
    }

    /// Charges what was begun of the ends of zspages, as if nobody filled them: words.
    fn charge_ends(&mut self) -> u32 {
        let ends = self.rests[..self.rest_count].iter_mut().filter(|rest| rest.by_words);
        ends.map(|end| {
            end.by_words = false;
            begun(end.run)
        })
        .sum()
    }

    /// The first bin from `from` on that a rest would be in.
    fn next_filled(&self, from: usize) -> Option<usize> {
        let bins = self.rests().iter().map(|rest| bin_of(rest.run.words));
        bins.filter(|&bin| bin >= from).min()
    }
}

/// The best of some holes that are looked at one by one.
struct Best {
    found: Option<Found>,
    words: u32,
    left: usize,
}

impl Best {
    const fn of(most: usize) -> Self {
        Self { found: None, words: u32::MAX, left: most }
    }

    fn look(&mut self, found: Found, words: u32, least: u32) {
        self.left -= 1;
        if words >= least && words < self.words {
            (self.found, self.words) = (Some(found), words);
        }
    }

    /// Whether there is nothing better to be found for `least` words, or enough was looked at.
    const fn is_done(&self, least: u32) -> bool {
        self.left == 0 || self.words == least
    }
}

impl<A: Arena> Held<'_, A> {
    /// The hole for a block that is moved.
    pub(super) fn find_for_move(&self, words: u32) -> Option<Run> {
        match self.search(words, NIL, &UNCHANGED)? {
            Found::Hole(hole) => Some(hole),
            Found::Rest(_) => None,
        }
    }

    /// What emptying a zspage wins, nothing when that is less than `least` words by a move. Adds up the blocks tried.
    pub(crate) fn gain(&self, zspage: u32, least: u32, tried: &mut usize) -> Gain {
        let zspages = &self.ground.zspages;
        let (blocks, mut untried) = (zspages.blocks(zspage), zspages.fill(zspage));
        let mut won = zspages.pages(zspage) * PAGE_WORDS;
        let (mut sizes, mut sketch) = ([0; TRIED], Sketch::new());
        let sizes = self.sizes(zspage, &mut sizes);
        // Nothing smaller is placed in what is left of a hole.
        let smallest = sizes.last().copied().unwrap_or(0);
        let mut backed = 0;
        for &words in sizes {
            if won < blocks * least {
                return Gain::default();
            }
            *tried += 1;
            untried -= words;
            let cost = self.sketch_block(words, zspage, smallest, &mut sketch);
            won = won.saturating_sub(cost.words);
            backed += cost.pages;
        }
        won = won.saturating_sub(untried);
        backed += untried.div_ceil(PAGE_WORDS);
        if won < blocks * least {
            return Gain::default();
        }
        Gain { by_move: won / blocks, is_page: backed < zspages.pages(zspage) }
    }

    /// The words of a zspage's first blocks, the largest first.
    fn sizes<'s>(&self, zspage: u32, sizes: &'s mut [u32; TRIED]) -> &'s [u32] {
        let (whole, mut count) = (self.whole(zspage), 0);
        let mut at = whole.at;
        while at - whole.at < whole.words && count < TRIED {
            if self.tag(at) & HOLE != 0 {
                at = self.hole(at).end();
                continue;
            }
            let (word, block) = self.named(at);
            sizes[count] = block_words(word.object().len);
            count += 1;
            at = block.end();
        }
        let sizes = &mut sizes[..count];
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes
    }

    /// Sketches that a block of `zspage` goes to its place, and what this costs. Rests in smaller bins than a block of
    /// `smallest` words are nobody's place.
    fn sketch_block(&self, words: u32, zspage: u32, smallest: u32, sketch: &mut Sketch) -> Cost {
        let found = self.search(words, zspage, sketch);
        // The tags of what is left of the end of a zspage may need one more page than its blocks.
        let tags = if matches!(found, Some(Found::Rest(_))) { 0 } else { HOLE_FRONT };
        // Of a fresh zspage the first page is backed, too; nothing that is as large fits the ends of others.
        let (first, lost) = if found.is_none() { (1, sketch.charge_ends()) } else { (0, 0) };
        let Rest { run, by_words } = match found {
            Some(Found::Rest(number)) => sketch.take_rest(number),
            Some(Found::Hole(hole)) => {
                sketch.take(hole.at);
                let is_end = self.ground.shape.is_border(hole.end());
                Rest { run: hole, by_words: is_end && !self.vacant(hole).is_empty() }
            }
            // Where a fresh one lies makes no difference.
            None => Rest { run: self.whole(0), by_words: true },
        };
        let rest = Run { at: run.at + words, words: run.words - words };
        let is_place = rest.words >= MIN_HOLE && bin_of(rest.words) >= bin_of(smallest);
        if is_place {
            sketch.put_rest(Rest { run: rest, by_words });
        }
        let pages = first + self.newly_backed(run, rest);
        let charged = match (by_words, is_place) {
            (true, true) => words + tags,
            (true, false) => words + tags + begun(rest),
            (false, _) => pages * PAGE_WORDS,
        };
        Cost { words: charged + lost, pages }
    }

    /// Pages to be backed so that of a hole only `rest` is left.
    fn newly_backed(&self, hole: Run, rest: Run) -> u32 {
        let vacant = self.vacant(hole);
        let is_hole = rest.words >= MIN_HOLE;
        let end = if is_hole { first_vacant(rest).min(vacant.end) } else { vacant.end };
        end.saturating_sub(vacant.start)
    }

    /// The place for a block: of some holes of its bin that which fits best, else of the next bin that has any. None
    /// in `zspage`.
    fn search(&self, words: u32, zspage: u32, sketch: &Sketch) -> Option<Found> {
        let near = bin_of(words);
        let (mut bin, mut look) = (near, NEAR);
        loop {
            let holes = self.lanes().filter_map(|lane| lane.bins.next_filled(bin));
            bin = holes.chain(sketch.next_filled(bin)).min()?;
            if bin > near {
                look = FAR;
            }
            let found = self.search_bin(bin, words, look, zspage, sketch);
            if found.is_some() {
                return found;
            }
            bin += 1;
        }
    }

    fn search_bin(
        &self,
        bin: usize,
        words: u32,
        look: usize,
        zspage: u32,
        sketch: &Sketch,
    ) -> Option<Found> {
        let mut best = Best::of(look);
        for (number, rest) in sketch.rests().iter().enumerate().rev() {
            if best.is_done(words) {
                break;
            }
            if bin_of(rest.run.words) == bin {
                best.look(Found::Rest(number), rest.run.words, words);
            }
        }
        for lane in self.lanes() {
            let mut at = lane.bins.head(bin);
            while at != NIL && !best.is_done(words) {
                if self.ground.shape.zspage_of(at) != zspage && !sketch.has_taken(at) {
                    let hole = self.hole(at);
                    best.look(Found::Hole(hole), hole.words, words);
                }
                at = self.tag(at + 1);
            }
        }
        best.found
    }
}
