//! A lane: zspages, the blocks and holes in them, and one lock around it all.
//!
//! A packed zspage is filled with *blocks* and *holes* back to back, each starting on a word of 4
//! bytes. A block is a tag and an object's bytes; a hole carries its links and its size at both
//! ends, so that a freed block finds the holes on both sides at once:
//!
//! ```text
//!            ┌─────┬──────────────────┬─┬──────┬──────┬──────┬─ ─ ─ ─ ─ ─┬──────┬─────┬─────────
//!   zspage   │ tag │ bytes            │ │ tag  │ next │ prev │           │ size │ tag │ bytes ..
//!            └─────┴──────────────────┴─┴──────┴──────┴──────┴─ ─ ─ ─ ─ ─┴──────┴─────┴─────────
//!             block            0..3 words slack  hole, at least 4 words           block
//!
//!   tag of a block   bit 31: 0   30: a hole lies before it   29..28: words of slack   27..0: handle
//!   tag of a hole    bit 31: 1   30..0: its words
//! ```
//!
//! - Two holes never touch. A hole that ends where its zspage ends has no size at its end.
//! - The pages that a hole covers and that hold none of its tags are not backed by frames, but for
//!   a few in stock: what is backed follows from the blocks, the holes and the stock.
//! - Every hole is in the bin of its size, except those of the *victim*, the zspage that compaction
//!   is emptying: nothing new is put there.
//! - A dead object's block stays a block until its lane *buries* it, with some others at a time: each
//!   needs memory that is not in the cache, and so the waiting for it is shared.
//! - A huge object, one that would leave nothing useful of its pages, has a slot of its own in a
//!   zspage of such slots, no tag, and is not moved: its pages are freed with it.
#![allow(unsafe_code)] // Tags lie in the arena's raw memory.

mod compact;
mod dead;
mod huge;
mod next;
mod others;
mod raze;
mod stock;
mod trial;

#[cfg(test)]
mod check;

use core::ops::Range;

use crate::bins::{Bins, bin_of};
use crate::ground::{Ground, PAGE_WORDS, WORD};
use crate::handles::{Handles, NIL, Object};
use crate::zspages::Kind;
use crate::{AllocError, Arena, Limit, OutOfFrames};
use dead::Dead;
use next::Next;
use octavo_page::Handle;
use stock::Stock;

pub(crate) use compact::Step;
use compact::{Sweep, Why};
pub use stock::RUNS;

const HOLE: u32 = 1 << 31;
const AFTER_HOLE: u32 = 1 << 30;
const SLACK_SHIFT: u32 = 28;
const INDEX: u32 = (1 << SLACK_SHIFT) - 1;

/// Words of the tags at the front of a hole.
const HOLE_FRONT: u32 = 3;
/// The smallest hole: the tags of both ends.
const MIN_HOLE: u32 = HOLE_FRONT + 1;

/// Holes looked at in the bin where some may be too small.
const LOOK_NEAR: usize = 4;
/// Holes looked at in a bin where all are large enough.
const LOOK_FAR: usize = 2;
/// The stock is at most a 256th of a lane's pages; in tests an 8th, to meet it more often.
const SPARE_SHIFT: u32 = if cfg!(test) { 3 } else { 8 };
/// But these pages at least, 128 KiB: a lane of which few pages are in use would back and give back all the time, and
/// each time interrupt whoever runs in this address space.
const SPARE_LEAST: usize = if cfg!(test) { 1 } else { 32 };

/// A lane that wastes so many pages, and more than a 32nd of its pages, is open to all.
const MUCH: usize = 64;
const MUCH_SHIFT: u32 = 5;

/// Words of a block for `len` bytes.
pub(crate) const fn block_words(len: usize) -> u32 {
    let words = 1 + len.div_ceil(WORD) as u32;
    if words < MIN_HOLE { MIN_HOLE } else { words }
}

/// How far an allocation may go for its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// A hole that the object all but fills: asked of lanes that are another thread's home.
    Tight,
    /// Any hole.
    Hole,
    /// Any hole, else a new zspage.
    Grow,
}

/// What a lane holds, in numbers.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Count {
    /// Objects that live.
    pub objects: usize,
    /// Bytes of the objects, as they were asked for.
    pub bytes: usize,
    /// Words of blocks in packed zspages.
    pub packed_words: usize,
    /// Pages of packed zspages that frames back.
    pub packed_pages: usize,
    /// Pages of huge objects.
    pub huge_pages: usize,
    /// Pages in stock.
    pub spare_pages: usize,
    /// Pages of razed zspages, to be given back.
    pub razed_pages: usize,
}

impl Count {
    /// Pages that frames back.
    pub(crate) const fn pages(&self) -> usize {
        self.in_use() + self.empty_pages()
    }

    /// Pages that frames back and that hold nothing.
    pub(crate) const fn empty_pages(&self) -> usize {
        self.spare_pages + self.razed_pages
    }

    /// Pages that hold anything.
    const fn in_use(&self) -> usize {
        self.packed_pages + self.huge_pages
    }

    /// Words that frames back and no block fills.
    const fn waste(&self) -> usize {
        self.packed_pages * PAGE_WORDS as usize - self.packed_words
    }

    /// Whether objects take more than half a page on average. Huge ones are among the objects and not among the words:
    /// beside many of them the others count as small.
    const fn are_large(&self) -> bool {
        2 * self.packed_words > self.objects * PAGE_WORDS as usize
    }

    /// Pages that perfect packing would not need; the stock is not among them.
    pub(crate) const fn freeable(&self) -> usize {
        self.waste() / PAGE_WORDS as usize
    }
}

/// What one lock guards.
pub(crate) struct Lane {
    bins: Bins,
    /// Zspages of huge slots that have a free one.
    huge: u32,
    /// Free entries of the handle table.
    free: u32,
    /// The zspage that is being emptied, or `NIL`.
    victim: u32,
    /// Victims of this round, and the pages that it has won: fewer than none when it took some.
    round: u32,
    won: isize,
    victim_for: Why,
    /// Its blocks that are moved next.
    next: Next,
    /// Where the search for the next one goes on: by guess, by trial.
    hand: u32,
    sweep: Sweep,
    /// The zspage opened last: its end is where new objects go.
    open: u32,
    /// Words of waste that compaction left last time, or fewer when there were fewer since, for each of its
    /// callers.
    settled: [usize; 3],
    /// Whether growth is to be paid for.
    wasteful: bool,
    stock: Stock,
    dead: Dead,
    /// Zspages that a call which frees many has emptied, and whose pages are to be given back.
    razed: u32,
    pub count: Count,
}

impl Lane {
    pub(crate) const fn new() -> Self {
        Self {
            bins: Bins::new(),
            huge: NIL,
            free: NIL,
            victim: NIL,
            round: 0,
            won: 0,
            victim_for: Why::Asked,
            next: Next::new(),
            hand: 0,
            sweep: Sweep::NEW,
            open: NIL,
            settled: [0; 3],
            wasteful: false,
            stock: Stock::new(),
            dead: Dead::new(),
            razed: NIL,
            count: Count {
                objects: 0,
                bytes: 0,
                packed_words: 0,
                packed_pages: 0,
                huge_pages: 0,
                spare_pages: 0,
                razed_pages: 0,
            },
        }
    }
}

impl Lane {
    /// Whether so much is wasted that others had better fill these holes than take new pages: its
    /// thread may work elsewhere now.
    pub(crate) const fn wastes(&self) -> bool {
        let waste = self.count.freeable();
        waste >= MUCH && waste > self.count.in_use() >> MUCH_SHIFT
    }
}

/// A hole or block: a run of words in one zspage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    at: u32,
    words: u32,
}

impl Run {
    const fn end(self) -> u32 {
        self.at + self.words
    }
}

/// The first page behind the tags at the front of a hole.
const fn first_vacant(hole: Run) -> u32 {
    (hole.at + HOLE_FRONT).div_ceil(PAGE_WORDS)
}

/// A hole from whose front objects are carved, one behind the other. From the first of them on until
/// [`Held::close`] it is out of the lane's books, and they are not in its zspage's.
struct Carving {
    /// What is left of it.
    hole: Run,
    /// Whether it is in the books: nothing was carved yet.
    booked: bool,
    /// Where its vacant pages end.
    vacant_end: u32,
    /// Blocks carved, and their words, slack left out.
    blocks: u32,
    words: u32,
}

/// A lane whose lock the caller holds, with what it works on.
pub(crate) struct Held<'a, A> {
    pub ground: &'a Ground<A>,
    pub handles: &'a Handles,
    pub number: usize,
    pub lane: &'a mut Lane,
    /// By their numbers, others whose locks the caller holds too: objects may be moved into their holes.
    pub others: &'a mut [Option<&'a mut Lane>],
}

impl<A: Arena> Held<'_, A> {
    /// Finds a place for `len` bytes and a handle, to be published when they are written. The dead are
    /// buried before it is refused, or a zspage is opened.
    pub(crate) fn place(&mut self, len: usize, reach: Reach) -> Result<Placed, AllocError> {
        if reach == Reach::Grow {
            match self.place_at_once(len, Reach::Hole) {
                Err(_) => self.bury(),
                placed => return placed,
            }
        }
        self.place_at_once(len, reach)
    }

    /// Starts to fetch where the tags of objects of these lengths will stand, if they come to lie one behind
    /// the other: so they mostly do, and memory for new objects is in no cache. Otherwise what changes a
    /// tag and what reads it again wait for each of them in turn.
    pub(crate) fn prefetch_places(&self, mut lens: impl Iterator<Item = usize>) {
        let Some(words) = lens.next().map(block_words) else { return };
        let Some(hole) = self.find(words) else { return };
        let mut at = hole.at + words;
        for len in lens.chain([0]) {
            if at >= hole.end() {
                break;
            }
            self.ground.prefetch(at);
            at += block_words(len);
        }
    }

    /// Places objects of these lengths, each where [`Reach::Hole`] would have it, until one finds no place
    /// there, or is to pay for new pages; gives each to `placed`. Objects that come to lie in one hole, one
    /// behind the other, share the work on its books ([`Carving`]).
    pub(crate) fn place_many(
        &mut self,
        lens: impl Iterator<Item = usize>,
        mut placed: impl FnMut(Placed),
    ) {
        let mut open: Option<Carving> = None;
        for len in lens {
            if self.is_huge(len) {
                break;
            }
            let words = block_words(len);
            if let Some(done) = open.take_if(|open| !self.is_next(open.hole, words)) {
                self.close(done);
            }
            if open.is_none() {
                open = self.find(words).map(|hole| self.begin(hole));
            }
            let Some(carving) = &mut open else { break };
            let Ok(object) = self.carve_off(carving, words, len) else { break };
            if carving.hole.words == 0 {
                open.take().into_iter().for_each(|done| self.close(done));
            }
            let owes = object.grew && self.lane.wasteful;
            placed(object);
            if owes {
                break;
            }
        }
        open.into_iter().for_each(|done| self.close(done));
    }

    /// Whether an object of `words` words comes to lie in `rest`, which is out of the books, when that is
    /// in them, and is the only one of its bin.
    fn is_next(&self, rest: Run, words: u32) -> bool {
        let (bin, least) = (bin_of(rest.words), bin_of(words));
        // Mostly no other hole is as small, and none needs to be looked at.
        bin > least
            && (self.lane.bins.next_filled(least).is_none_or(|first| first > bin)
                || self.find(words).is_none_or(|other| bin_of(other.words) > bin))
    }

    /// A hole in the books, from which objects are to be carved.
    fn begin(&self, hole: Run) -> Carving {
        let vacant_end = self.vacant(hole).end;
        Carving { hole, booked: true, vacant_end, blocks: 0, words: 0 }
    }

    /// Makes the front of what is left of a hole an object's block. Leaves everything as it was when
    /// handles or frames run out.
    fn carve_off(
        &mut self,
        carving: &mut Carving,
        words: u32,
        len: usize,
    ) -> Result<Placed, AllocError> {
        let full = AllocError::Full(Limit::Objects(self.handles.capacity()));
        let index = self.handles.take(&mut self.lane.free).ok_or(full)?;
        let (hole, before) = (carving.hole, self.lane.count.packed_pages);
        let mut rest = Run { at: hole.at + words, words: hole.words - words };
        let all = rest.words < MIN_HOLE;
        // Cut from the front, a hole has its end where it was, and so has what of it is vacant.
        let vacant = first_vacant(hole)..carving.vacant_end;
        let kept = if all { vacant.end } else { first_vacant(rest).min(vacant.end) };
        if let Err(error) = self.commit(hole.at, vacant.start..kept) {
            self.handles.put_back(index, &mut self.lane.free);
            return Err(error.into());
        }
        if core::mem::take(&mut carving.booked) {
            self.end_hole(hole);
        }
        let slack = if all { core::mem::take(&mut rest.words) } else { 0 };
        self.set_tag(hole.at, index | slack << SLACK_SHIFT);
        if all {
            self.set_after_hole(hole.end(), false);
        }
        carving.hole = rest;
        carving.blocks += 1;
        carving.words += words;
        Ok(self.reserve(index, Object { place: hole.at + 1, len }, before))
    }

    /// Brings the books up to date: counts the blocks carved, and what is left is a hole again.
    fn close(&mut self, carving: Carving) {
        let Carving { hole, booked, blocks, words, .. } = carving;
        if blocks > 0 {
            // The word before what is left is one of the blocks'.
            self.count_blocks(hole.at - 1, blocks.cast_signed(), words.cast_signed());
        }
        if !booked && hole.words > 0 {
            self.make_hole(hole);
        }
    }

    /// Counts a new object, and has its handle name it once it is published. `before` it there were so
    /// many packed pages.
    fn reserve(&mut self, index: u32, object: Object, before: usize) -> Placed {
        self.lane.count.objects += 1;
        self.lane.count.bytes += object.len;
        let grew = self.lane.count.packed_pages > before;
        Placed { handle: self.handles.reserve(index, object), index, object, grew }
    }

    fn place_at_once(&mut self, len: usize, reach: Reach) -> Result<Placed, AllocError> {
        let full = AllocError::Full(Limit::Objects(self.handles.capacity()));
        let index = self.handles.take(&mut self.lane.free).ok_or(full)?;
        let before = self.lane.count.packed_pages;
        let place = if self.is_huge(len) {
            self.place_huge(len, reach)
        } else {
            self.place_packed(block_words(len), index, reach)
        };
        match place {
            Ok(place) => Ok(self.reserve(index, Object { place, len }, before)),
            Err(error) => {
                self.handles.put_back(index, &mut self.lane.free);
                Err(error)
            }
        }
    }

    /// Gives back the space and the handle of an object that is dead and that nobody reads.
    fn release(&mut self, index: u32, object: Object) {
        if self.is_huge(object.len) {
            self.release_huge(object);
        } else {
            self.release_block(self.block_of(object));
        }
        self.handles.retire(index, &mut self.lane.free);
    }

    fn is_huge(&self, len: usize) -> bool {
        len > self.ground.shape.max_packed()
    }

    fn place_packed(&mut self, words: u32, index: u32, reach: Reach) -> Result<u32, AllocError> {
        if let Some(hole) = self.find(words)
            && (reach != Reach::Tight || hole.words <= words + words / 8 + MIN_HOLE)
        {
            self.carve(hole, words, index, true)?;
            return Ok(hole.at + 1);
        }
        if reach != Reach::Grow {
            return Err(self.no_room());
        }
        self.open(words, index)
    }

    /// The best hole among the first of its bin, else of the next bin.
    fn find(&self, words: u32) -> Option<Run> {
        let near = bin_of(words);
        self.best_in(near, words, LOOK_NEAR).or_else(|| {
            let far = self.lane.bins.next_filled(near + 1)?;
            self.best_in(far, words, LOOK_FAR)
        })
    }

    fn best_in(&self, bin: usize, words: u32, look: usize) -> Option<Run> {
        let mut best: Option<Run> = None;
        let mut at = self.lane.bins.head(bin);
        for _ in 0..look {
            if at == NIL {
                break;
            }
            let hole = self.hole(at);
            if hole.words >= words && best.is_none_or(|b| hole.words < b.words) {
                best = Some(hole);
            }
            if hole.words == words {
                break;
            }
            at = self.tag(at + 1);
        }
        best
    }

    /// Makes the front of a hole a block. Leaves everything as it was when frames run out. A hole
    /// that is not `binned` is a whole new zspage, no page of which is backed.
    fn carve(
        &mut self,
        hole: Run,
        words: u32,
        index: u32,
        binned: bool,
    ) -> Result<(), OutOfFrames> {
        let old = if binned { self.vacant(hole) } else { self.pages_of(hole) };
        let rest = self.split(hole, words, old)?;
        if binned {
            self.end_hole(hole);
        }
        self.make_block(hole, words, index, rest.is_none());
        rest.into_iter().for_each(|rest| self.make_hole(rest));
        Ok(())
    }

    /// Has the pages backed that are needed when the front of a hole, of which `vacant` are not backed,
    /// becomes a block; gives what is left to be a hole.
    fn split(
        &mut self,
        hole: Run,
        words: u32,
        vacant: Range<u32>,
    ) -> Result<Option<Run>, OutOfFrames> {
        let rest = Run { at: hole.at + words, words: hole.words - words };
        let rest = (rest.words >= MIN_HOLE).then_some(rest);
        let left = rest.map_or(vacant.end..vacant.end, |rest| self.vacant(rest));
        let first_kept = if left.is_empty() { vacant.end } else { left.start };
        self.commit(hole.at, vacant.start..first_kept)?;
        Ok(rest)
    }

    /// Makes the front of a hole a block, or `all` of it: then what the object leaves is slack.
    fn make_block(&mut self, hole: Run, words: u32, index: u32, all: bool) {
        let slack = if all { hole.words - words } else { 0 };
        self.set_tag(hole.at, index | slack << SLACK_SHIFT);
        if all {
            self.set_after_hole(hole.end(), false);
        }
        self.filled(hole.at, words.cast_signed());
    }

    /// Opens a new zspage with a block at its front; gives the object's place.
    fn open(&mut self, words: u32, index: u32) -> Result<u32, AllocError> {
        let zspages = &self.ground.zspages;
        let zspage = zspages.take(self.number, Kind::Packed).ok_or(self.no_room())?;
        let shape = self.ground.shape;
        let whole = Run { at: shape.start(zspage), words: shape.words };
        if let Err(error) = self.carve(whole, words, index, false) {
            zspages.give(zspage);
            return Err(error.into());
        }
        self.lane.open = zspage;
        Ok(whole.at + 1)
    }

    /// Makes a block a hole, joined with the holes beside it, and gives back the pages that it
    /// empties. The hole; `None` when the whole zspage went back.
    fn release_block(&mut self, block: Run) -> Option<Run> {
        let zspage = self.ground.shape.zspage_of(block.at);
        let whole = self.whole(zspage);
        self.filled(block.at, -(block.words - self.slack(block.at)).cast_signed());
        if self.lane.victim == zspage {
            self.lane.next.forget(block.at);
        }

        let [left, right] = self.holes_beside(block);
        for beside in [left, right].into_iter().flatten() {
            self.end_hole(beside);
        }
        let at = left.map_or(block.at, |left| left.at);
        let end = right.map_or(block.end(), Run::end);
        let hole = Run { at, words: end - at };

        // Pages of the holes beside it are given back already.
        let gone = |hole| Some(self.vacant(hole)).filter(|pages| !pages.is_empty());
        let (first, last) = (left.and_then(gone), right.and_then(gone));
        let vacant = if hole == whole { self.pages_of(hole) } else { self.vacant(hole) };
        let keep = hole != whole;
        if let Some(left) = &first {
            self.decommit(hole.at, vacant.start..left.start, keep);
        }
        let from = first.map_or(vacant.start, |left| left.end);
        let to = last.as_ref().map_or(vacant.end, |right| right.start);
        self.decommit(hole.at, from..to, keep);
        if let Some(right) = last {
            self.decommit(hole.at, right.end..vacant.end, keep);
        }

        if hole == whole {
            if self.lane.victim == zspage {
                self.lane.victim = NIL;
            }
            self.clear_stock(self.pages_of(whole));
            self.ground.zspages.give(zspage);
            return None;
        }
        self.make_hole(hole);
        if right.is_none() {
            self.set_after_hole(hole.end(), true);
        }
        Some(hole)
    }

    /// The holes that a block touches, before it and after it.
    fn holes_beside(&self, block: Run) -> [Option<Run>; 2] {
        let left = (self.tag(block.at) & AFTER_HOLE != 0).then(|| {
            let words = self.tag(block.at - 1);
            Run { at: block.at - words, words }
        });
        let inside = !self.ground.shape.is_border(block.end());
        let right = (inside && self.tag(block.end()) & HOLE != 0).then(|| self.hole(block.end()));
        [left, right]
    }

    fn make_hole(&mut self, hole: Run) {
        self.set_tag(hole.at, HOLE | hole.words);
        if !self.ground.shape.is_border(hole.end()) {
            self.set_tag(hole.end() - 1, hole.words);
        }
        self.note_hole(hole, true);
        self.link(hole);
    }

    /// What was a hole is none any more.
    fn end_hole(&mut self, hole: Run) {
        self.note_hole(hole, false);
        self.unlink(hole);
    }

    /// Notes in its zspage's descriptor that a hole is there, or not any more.
    fn note_hole(&mut self, hole: Run, there: bool) {
        let (zspages, shape) = (&self.ground.zspages, self.ground.shape);
        let zspage = shape.zspage_of(hole.at);
        if shape.is_border(hole.end()) {
            zspages.set_tail(zspage, if there { hole.at } else { NIL });
        } else {
            let change = if there { 1 } else { -1 };
            zspages.set_holes(zspage, zspages.holes(zspage).wrapping_add_signed(change));
        }
    }

    /// Puts the hole in its bin, unless nothing may be placed in its zspage.
    fn link(&mut self, hole: Run) {
        if self.ground.shape.zspage_of(hole.at) == self.lane.victim {
            return;
        }
        let bin = bin_of(hole.words);
        let next = self.lane.bins.head(bin);
        self.set_tag(hole.at + 1, next);
        self.set_tag(hole.at + 2, NIL);
        if next != NIL {
            self.set_tag(next + 2, hole.at);
        }
        self.lane.bins.set_head(bin, hole.at);
    }

    fn unlink(&mut self, hole: Run) {
        if self.ground.shape.zspage_of(hole.at) == self.lane.victim {
            return;
        }
        let (next, prev) = (self.tag(hole.at + 1), self.tag(hole.at + 2));
        if prev == NIL {
            self.lane.bins.set_head(bin_of(hole.words), next);
        } else {
            self.set_tag(prev + 1, next);
        }
        if next != NIL {
            self.set_tag(next + 2, prev);
        }
    }

    /// Tells the block at `at`, if the zspage goes on there, what lies before it.
    fn set_after_hole(&mut self, at: u32, yes: bool) {
        if self.ground.shape.is_border(at) {
            return;
        }
        let tag = self.tag(at) & !AFTER_HOLE;
        debug_assert_eq!(tag & HOLE, 0, "two holes never touch");
        self.set_tag(at, if yes { tag | AFTER_HOLE } else { tag });
    }

    /// Pages of a hole that hold none of its tags.
    fn vacant(&self, hole: Run) -> Range<u32> {
        let first = first_vacant(hole);
        let tail = u32::from(!self.ground.shape.is_border(hole.end()));
        let end = (hole.end() - tail) / PAGE_WORDS;
        first..end.max(first)
    }

    /// The pages of a whole zspage.
    fn pages_of(&self, whole: Run) -> Range<u32> {
        let first = whole.at / PAGE_WORDS;
        first..first + whole.words / PAGE_WORDS
    }

    fn whole(&self, zspage: u32) -> Run {
        Run { at: self.ground.shape.start(zspage), words: self.ground.shape.words }
    }

    fn commit(&mut self, at: u32, pages: Range<u32>) -> Result<(), OutOfFrames> {
        if pages.is_empty() {
            return Ok(());
        }
        let count = pages.end - pages.start;
        self.back(pages)?;
        let (zspages, zspage) = (&self.ground.zspages, self.ground.shape.zspage_of(at));
        zspages.set_pages(zspage, zspages.pages(zspage) + count);
        self.lane.count.packed_pages += count as usize;
        Ok(())
    }

    /// Gives pages back; when they are to be kept for a while, into the stock.
    fn decommit(&mut self, at: u32, pages: Range<u32>, keep: bool) {
        if pages.is_empty() {
            return;
        }
        let count = pages.end - pages.start;
        let (zspages, zspage) = (&self.ground.zspages, self.ground.shape.zspage_of(at));
        zspages.set_pages(zspage, zspages.pages(zspage) - count);
        self.lane.count.packed_pages -= count as usize;
        self.unback(pages, keep);
    }

    /// Has pages backed, from the stock as far as it goes. When frames run out, the rest of the
    /// stock is given up for them.
    fn back(&mut self, pages: Range<u32>) -> Result<(), OutOfFrames> {
        let (ground, stock) = (self.ground, &mut self.lane.stock);
        let take = |stock: &mut Stock| {
            let commit = |gap| ground.commit(gap);
            stock.take(pages.clone(), commit, |run| ground.decommit(&[run]))
        };
        let mut done = take(stock);
        if done.is_err() && stock.pages() > 0 {
            stock.clear(0..u32::MAX, |runs| ground.decommit(runs));
            done = take(stock);
        }
        self.lane.count.spare_pages = self.lane.stock.pages();
        done
    }

    fn unback(&mut self, pages: Range<u32>, keep: bool) {
        let ground = self.ground;
        if keep {
            let limit = (self.lane.count.in_use() >> SPARE_SHIFT).max(SPARE_LEAST);
            self.lane.stock.put(pages, limit, |runs| ground.decommit(runs));
        } else {
            ground.decommit(&[pages]);
        }
        self.lane.count.spare_pages = self.lane.stock.pages();
    }

    /// Gives up what is in stock of `pages`.
    fn clear_stock(&mut self, pages: Range<u32>) {
        let ground = self.ground;
        self.lane.stock.clear(pages, |runs| ground.decommit(runs));
        self.lane.count.spare_pages = self.lane.stock.pages();
    }

    /// Counts a block of `words` words; one less when they are negative.
    fn filled(&mut self, at: u32, words: i32) {
        self.count_blocks(at, words.signum(), words);
    }

    /// Counts so many more blocks, of `words` words together, in the zspage of `at`.
    fn count_blocks(&mut self, at: u32, blocks: i32, words: i32) {
        let (zspages, zspage) = (&self.ground.zspages, self.ground.shape.zspage_of(at));
        zspages.set_fill(zspage, zspages.fill(zspage).wrapping_add_signed(words));
        zspages.set_blocks(zspage, zspages.blocks(zspage).wrapping_add_signed(blocks));
        let words = words as isize;
        self.lane.count.packed_words = self.lane.count.packed_words.wrapping_add_signed(words);
    }

    fn hole(&self, at: u32) -> Run {
        Run { at, words: self.tag(at) & !HOLE }
    }

    fn block_of(&self, object: Object) -> Run {
        self.block(object.place - 1, object.len)
    }

    fn block(&self, at: u32, len: usize) -> Run {
        Run { at, words: block_words(len) + self.slack(at) }
    }

    /// Words at the end of a block that its object does not fill.
    fn slack(&self, at: u32) -> u32 {
        self.tag(at) >> SLACK_SHIFT & 3
    }

    fn no_room(&self) -> AllocError {
        let zspages = self.ground.zspages.capacity() as usize;
        AllocError::Full(Limit::Pages(zspages * self.ground.shape.pages() as usize))
    }

    fn tag(&self, at: u32) -> u32 {
        // SAFETY: `self` holds the lane's lock, or it is a hole of one of the others'; the lane's invariants,
        // stated above, say that a tag stands in a committed page of a zspage of this lane.
        unsafe { self.ground.tag(at) }
    }

    fn set_tag(&mut self, at: u32, value: u32) {
        // SAFETY: as in `tag`; tags are words of holes, or the first word of a block, which is no
        // part of its object.
        unsafe { self.ground.set_tag(at, value) }
    }
}

/// A new object.
pub(crate) struct Placed {
    pub handle: Handle,
    pub index: u32,
    pub object: Object,
    /// Whether new pages were taken for it, to be packed.
    pub grew: bool,
}
