//! Storing a batch of folios together.
//!
//! ```text
//!   a round: folios of up to 512 pages together
//!
//!   folios │  f0   │ f1 │      f2      │ ...
//!   units  │ u │ u │ u  │ u │ u │ u │ u│        filled with one value: a word, and no unit
//!            └───┴───┬────┴───┘   └──── the next group
//!                  group: up to 32 units, of whichever folios
//!                    ├─ engine     all at once, or one by one in the caller; ends in any order
//!                    ├─ in order   a unit that does not fit: raw, or its folio is refused
//!                    └─ pool       one call for all of them ─► handles ─► words
//!   then   slots    one call for all folios of an order in a row; the words are published
//! ```
//!
//! # Invariants
//!
//! - What happens to a folio changes nothing for the others. One that is refused leaves nothing: its
//!   objects are freed before anything of the next folio is stored, its units that are not begun are
//!   not compressed, its slots are not taken.
//! - So a batch ends as its folios would one by one ([`Store::put_one_by_one`]), in the same slots,
//!   as long as not both frames and slots run out in it.

use crate::scratch::Scratch;
use crate::stats::Tally;
use crate::word::{Fill, Object, RAW, Word};
use crate::{How, Lane, PutError, Store};
use core::ops::Range;
use octavo_accel::{Batch, Engine, Failure, Io, Operation, Outcome, Request, Work};
use octavo_backing::Device;
use octavo_codec::deflate::Hold;
use octavo_page::{Handle, MAX_FOLIO_PAGES, Order, PAGE_SIZE, SlotId};
use octavo_pool::{AllocError, Arena, Limit};

/// Units that are compressed and put into the pool together: twice as many as engines on devices have in
/// flight for a worker, and so many that a codec with a way for many seldom has too few.
pub(crate) const GROUP: usize = 32;

/// Pages in a group that is compressed in the caller: what waits for the pool stays in its cache.
const PAGES_AT_HAND: usize = 16;

/// Folios that get their slots together.
const FOLIOS_AT_ONCE: usize = 16;

/// What a folio gets that nothing has happened to yet, and what it keeps when there are no slots.
const NO_SLOTS_YET: Result<SlotId, PutError> = Err(PutError::OutOfSlots);

/// A unit that is to be compressed.
#[derive(Clone, Copy, Default)]
struct Pending<'f> {
    bytes: &'f [u8],
    /// Its folio, by its place in the round.
    folio: u32,
    /// Pages of the round before it.
    at: u32,
}

impl Pending<'_> {
    const fn folio(&self) -> usize {
        self.folio as usize
    }

    /// Its pages, by their places in the round.
    const fn pages(&self) -> Range<usize> {
        let at = self.at as usize;
        at..at + self.bytes.len() / PAGE_SIZE
    }
}

/// What is kept of a unit.
#[derive(Clone, Copy)]
pub(crate) enum Kept {
    /// So many bytes of what the engine made of it.
    Compressed(usize),
    /// The unit itself.
    Raw,
}

/// Units on their way into the pool, in order, all of folios that are not refused.
struct Group<'b> {
    /// What the pool is to keep of each.
    objects: [&'b [u8]; GROUP],
    units: [Pending<'b>; GROUP],
    len: usize,
}

impl<'b> Group<'b> {
    fn new() -> Self {
        Self { objects: [&[]; GROUP], units: [Pending::default(); GROUP], len: 0 }
    }

    /// Adds a unit, of which this is kept: of what the engine made of it, or itself.
    fn push(&mut self, unit: Pending<'b>, kept: Kept, made: &'b [u8]) {
        self.objects[self.len] = match kept {
            Kept::Compressed(len) => &made[..len],
            Kept::Raw => unit.bytes,
        };
        self.units[self.len] = unit;
        self.len += 1;
    }

    /// Leaves out what it has of a folio: that of the last unit, if of any.
    fn leave_out(&mut self, folio: u32) {
        while self.len > 0 && self.units[self.len - 1].folio == folio {
            self.len -= 1;
        }
    }

    /// Whether a unit is kept as it is.
    fn is_raw(&self, n: usize) -> bool {
        core::ptr::eq(self.objects[n], self.units[n].bytes)
    }

    /// The units that are kept compressed.
    fn compressed(&self) -> impl Iterator<Item = &'b [u8]> {
        (0..self.len).filter(|n| !self.is_raw(*n)).map(|n| self.units[n].bytes)
    }
}

/// What the objects of a folio take, and whether units of it did not fit.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weight {
    bytes: usize,
    is_partly_raw: bool,
}

impl Weight {
    /// Adds what is kept of a unit of a folio of `pages` pages.
    ///
    /// # Errors
    /// [`PutError::DoesNotFit`] when it is better to refuse the folio.
    pub(crate) fn add(
        &mut self,
        how: How,
        pages: usize,
        outcome: Result<usize, Failure>,
    ) -> Result<Kept, PutError> {
        let (kept, bytes) = match outcome {
            Ok(bytes) => (Kept::Compressed(bytes), bytes),
            Err(_) => (Kept::Raw, how.unit.bytes()),
        };
        self.bytes += bytes;
        // One that came back wrong from a device may fit as well as any other.
        self.is_partly_raw |= matches!(outcome, Err(Failure::DoesNotFit | Failure::Corrupt));
        if self.is_partly_raw && self.bytes >= how.refusal_bytes * pages {
            return Err(PutError::DoesNotFit);
        }
        Ok(kept)
    }
}

/// Folios that are stored together, and how far that is.
struct Round<'r, 'f> {
    how: How,
    folios: &'r [&'f [u8]],
    /// What became of each. [`NO_SLOTS_YET`] while all is well.
    results: &'r mut [Result<SlotId, PutError>],
    words: &'r mut [Word],
    hashes: &'r mut [u64],
    /// The folio that is gone through, and how many pages of it are done, and of the round.
    folio: usize,
    done: usize,
    at: usize,
    /// Of the folio whose units are weighed.
    weighed: usize,
    weight: Weight,
}

impl<'f> Round<'_, 'f> {
    fn is_refused(&self, folio: usize) -> bool {
        self.results[folio] != NO_SLOTS_YET
    }

    fn is_over(&self) -> bool {
        self.folio == self.folios.len()
    }

    /// The next unit that needs an object, in order. Notes what its pages are as far as that is known
    /// without; passes over units that need none, and what is left of folios that were refused.
    // Inlined: a unit that is returned is written to the stack in pieces and read back whole.
    #[inline(always)]
    fn next(&mut self) -> Option<Pending<'f>> {
        loop {
            // None is refused of which nothing is done.
            if self.done > 0 && self.is_refused(self.folio) {
                self.pass(self.folios[self.folio].len() / PAGE_SIZE - self.done);
                continue;
            }
            let bytes = &self.folios.get(self.folio)?[self.done * PAGE_SIZE..];
            let bytes = &bytes[..self.how.unit.bytes()];
            let pages = self.how.unit.pages();
            let (folio, at) = (self.folio as u32, self.at);
            self.pass(pages);
            if !note_fills(bytes, &mut self.words[at..at + pages]) {
                return Some(Pending { bytes, folio, at: at as u32 });
            }
        }
    }

    /// Goes on by so many pages, to the next folio when it is the last of this.
    fn pass(&mut self, pages: usize) {
        self.at += pages;
        self.done += pages;
        if self.done * PAGE_SIZE == self.folios[self.folio].len() {
            (self.folio, self.done) = (self.folio + 1, 0);
        }
    }

    /// Weighs what became of a unit; of units in order. The folio is refused when that is better.
    fn weigh(&mut self, unit: Pending<'_>, outcome: Outcome) -> Result<Kept, PutError> {
        if self.weighed != unit.folio() {
            (self.weighed, self.weight) = (unit.folio(), Weight::default());
        }
        let pages = self.folios[unit.folio()].len() / PAGE_SIZE;
        self.weight.add(self.how, pages, outcome.result)
    }

    /// The words of a folio, as far as they are noted.
    fn words_of(&self, folio: usize) -> &[Word] {
        let pages = |folio: &&[u8]| folio.len() / PAGE_SIZE;
        let at: usize = self.folios[..folio].iter().map(pages).sum();
        let noted = if folio == self.folio { self.done } else { pages(&self.folios[folio]) };
        &self.words[at..][..noted]
    }
}

/// Notes which pages of a unit are filled with one value, and that the others have no word yet;
/// whether all are filled.
pub(crate) fn note_fills(unit: &[u8], words: &mut [Word]) -> bool {
    let mut all = true;
    for (page, word) in unit.chunks_exact(PAGE_SIZE).zip(words) {
        *word = Fill::of_page(page).map_or(Word::Empty, Word::Filled);
        all &= *word != Word::Empty;
    }
    all
}

/// The order of a folio.
///
/// # Panics
/// When it is no power of two of pages up to 2 MiB, or no whole number of units: bugs of the caller.
pub(crate) fn order_of(folio: &[u8], how: How) -> Order {
    let pages = folio.len() / PAGE_SIZE;
    let order = Order::of_pages(pages).filter(|order| order.pages() * PAGE_SIZE == folio.len());
    let order = order.expect("a folio is a power of two of pages");
    let is_whole = pages.is_multiple_of(how.unit.pages());
    assert!(is_whole, "a folio of {pages} pages in units of {}", how.unit);
    order
}

/// Folios from the first on that fill a round.
fn round_of(folios: &[&[u8]], how: How) -> usize {
    let mut pages = 0;
    let fits = |folio: &&&[u8]| {
        pages += order_of(folio, how).pages();
        pages <= MAX_FOLIO_PAGES
    };
    folios.iter().take_while(fits).count()
}

impl<A: Arena, D: Device> Store<A, D> {
    /// Stores a batch of folios, whose units go through the engine of `scratch` together. Each folio
    /// gets an aligned run of slots, page by page, or its own error in `out`; what happens to one
    /// changes nothing for the others.
    ///
    /// # Panics
    /// When a folio is no power of two of pages up to 2 MiB, or no whole number of units, or `out`
    /// is not as long as `folios`: bugs of the caller.
    pub fn put<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        how: How,
        folios: &[&[u8]],
        out: &mut [Result<SlotId, PutError>],
    ) {
        assert_eq!(folios.len(), out.len(), "a result for each folio");
        let mut tally = Tally::default();
        let (mut folios, mut out) = (folios, out);
        while !folios.is_empty() {
            let (now, later) = folios.split_at(round_of(folios, how));
            let (results, others) = out.split_at_mut(now.len());
            self.put_round(scratch, how, now, results, &mut tally);
            (folios, out) = (later, others);
        }
        self.counters.add(&tally);
    }

    fn put_round<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        how: How,
        folios: &[&[u8]],
        results: &mut [Result<SlotId, PutError>],
        tally: &mut Tally,
    ) {
        results.fill(NO_SLOTS_YET);
        let Scratch { engine, work, bytes, words, hashes, offered, .. } = scratch;
        // Until the objects are counted.
        let tables = self.hold_tables(engine, how);
        let tables = tables.as_ref();
        let mut round = Round {
            how,
            folios,
            results,
            words,
            hashes,
            folio: 0,
            done: 0,
            at: 0,
            weighed: 0,
            weight: Weight::default(),
        };
        let room = self.room(how);
        let is_batched = engine.batches(Operation::Compress, how.codec, how.unit.bytes());
        while !round.is_over() {
            let group = if is_batched {
                self.compress_together(engine, work, &mut round, bytes, room)
            } else {
                self.compress_in_turn(engine, work, &mut round, bytes, room)
            };
            if let Some(offered) = offered.as_mut().filter(|_| how.codec.learns()) {
                group.compressed().for_each(|unit| self.offer(offered, unit));
            }
            self.store_group(&mut round, &group, tables);
        }
        self.give_slots(&mut round, tally);
    }

    /// The most bytes that an object of a unit may have when it is compressed.
    pub(crate) fn room(&self, how: How) -> usize {
        how.fits_in.min(self.largest_object).min(how.unit.bytes())
    }

    /// Compresses the units of a group in the caller, one after the other.
    fn compress_in_turn<'b, 'f: 'b, E: Engine>(
        &self,
        engine: &mut E,
        work: &mut Work,
        round: &mut Round<'_, 'f>,
        bytes: &'b mut [u8],
        room: usize,
    ) -> Group<'b> {
        let mut group = Group::new();
        let units = PAGES_AT_HAND / round.how.unit.pages();
        for out in bytes.chunks_exact_mut(room.max(1)).take(units) {
            let Some(unit) = round.next() else { break };
            let made = &mut out[..room];
            let outcome = engine.run(&mut Io::compress(round.how.codec, unit.bytes, made));
            if let Some(kept) = self.judge(work, round, &mut group, unit, outcome) {
                self.hash_unit(round, unit);
                group.push(unit, kept, made);
            }
        }
        group
    }

    /// Compresses the units of a group all at once, and hashes their pages meanwhile.
    fn compress_together<'b, 'f: 'b, E: Engine>(
        &self,
        engine: &mut E,
        work: &mut Work,
        round: &mut Round<'_, 'f>,
        bytes: &'b mut [u8],
        room: usize,
    ) -> Group<'b> {
        let mut units = [Pending::default(); GROUP];
        let mut count = 0;
        while count < GROUP
            && let Some(unit) = round.next()
        {
            units[count] = unit;
            count += 1;
        }
        let mut regions = bytes.chunks_exact_mut(room.max(1));
        let mut requests: [Request<'_>; GROUP] = core::array::from_fn(|n| {
            let out = regions.next().expect("a region for each unit of a group");
            Request::compress(round.how.codec, units[n].bytes, &mut out[..room])
        });
        let mut batch = Batch::new(engine, &mut requests[..count]);
        batch.submit();
        units[..count].iter().for_each(|unit| self.hash_unit(round, *unit));
        batch.finish();
        drop(batch);
        let outcomes = requests.map(|request| request.outcome());
        let mut group = Group::new();
        let regions = bytes.chunks_exact(room.max(1));
        for ((unit, outcome), made) in units.into_iter().zip(outcomes).zip(regions).take(count) {
            let outcome = outcome.expect("the batch is finished");
            if let Some(kept) = self.judge(work, round, &mut group, unit, outcome) {
                group.push(unit, kept, made);
            }
        }
        group
    }

    /// What is kept of a unit; nothing when its folio is refused, of which the group then has nothing either.
    fn judge(
        &self,
        work: &mut Work,
        round: &mut Round<'_, '_>,
        group: &mut Group<'_>,
        unit: Pending<'_>,
        outcome: Outcome,
    ) -> Option<Kept> {
        self.note_outcome(work, outcome);
        if round.is_refused(unit.folio()) {
            return None;
        }
        let kept = round.weigh(unit, outcome);
        let refused = |error| {
            self.refuse(round, unit.folio(), error);
            group.leave_out(unit.folio);
        };
        kept.map_err(refused).ok()
    }

    /// Counts a compression: who did it, and whether it came back wrong.
    pub(crate) fn note_outcome(&self, work: &mut Work, outcome: Outcome) {
        work.note(outcome.by);
        if outcome.result == Err(Failure::Unverified) {
            self.counters.note_unverified();
        }
    }

    /// Hashes the pages of a unit that will have an object.
    fn hash_unit(&self, round: &mut Round<'_, '_>, unit: Pending<'_>) {
        let (words, hashes) = (&round.words[unit.pages()], &mut round.hashes[unit.pages()]);
        for ((bytes, word), hash) in unit.bytes.chunks_exact(PAGE_SIZE).zip(words).zip(hashes) {
            if *word == Word::Empty {
                *hash = self.hash(bytes);
            }
        }
    }

    /// Refuses a folio, and takes back what is stored of it.
    #[cold]
    fn refuse(&self, round: &mut Round<'_, '_>, folio: usize, error: PutError) {
        round.results[folio] = Err(error);
        self.unstage(round.words_of(folio), round.how);
    }

    /// Takes back the objects of a folio that will not be stored after all.
    pub(crate) fn unstage(&self, words: &[Word], how: How) {
        for unit in words.chunks(how.unit.pages()) {
            let object = unit.iter().find_map(|word| match word {
                Word::Compressed(object) => Some(*object),
                _ => None,
            });
            if let Some(object) = object {
                self.free_object(object.handle);
                self.forget_tables(object);
            }
        }
    }

    /// Puts the objects of a group into the pool, in order. A folio whose object is not taken is refused,
    /// and the others go on.
    fn store_group(&self, round: &mut Round<'_, '_>, group: &Group<'_>, tables: Option<&Hold<'_>>) {
        let (mut next, forks) = (0, self.forks());
        while next < group.len {
            let mut handles = [Handle::from_bits(0); GROUP];
            let objects = &group.objects[next..group.len];
            let (stored, refusal) = self.pool.store_many(objects, &mut handles[..objects.len()]);
            let end = next + stored;
            let compressed = || (next..end).filter(|n| !group.is_raw(*n)).count();
            let learnt = self.keep_tables(tables, compressed);
            for (n, handle) in (next..end).zip(handles) {
                let (codec, learnt) =
                    if group.is_raw(n) { (RAW, None) } else { (round.how.codec.id(), learnt) };
                let object = Object { handle, codec, learnt, forks, unit: round.how.unit };
                note_object(&mut round.words[group.units[n].pages()], object);
            }
            let Err(error) = refusal else { return };
            let folio = group.units[end].folio;
            self.refuse(round, folio as usize, refused(error));
            let rest = &group.units[end..group.len];
            next = end + rest.iter().take_while(|unit| unit.folio == folio).count();
        }
    }

    /// Takes slots for all folios that are whole, those of an order in a row together, and publishes
    /// them.
    fn give_slots(&self, round: &mut Round<'_, '_>, tally: &mut Tally) {
        let mut row = Row::default();
        let mut at = 0;
        for (n, folio) in round.folios.iter().enumerate() {
            let order = order_of(folio, round.how);
            if round.is_refused(n) {
                tally.count_refused(order.pages(), round.results[n]);
            } else {
                let lane = self.lane(round.how, &round.words[at..at + order.pages()]);
                if !row.goes_on(n, order, lane) {
                    self.publish(round, row, tally);
                    row = Row { order, lane, folio: n, at, len: 0 };
                }
                row.len += 1;
            }
            at += order.pages();
        }
        self.publish(round, row, tally);
    }

    /// Takes slots for the folios of a row, and publishes them there: those that come to lie side by side,
    /// as one.
    fn publish(&self, round: &mut Round<'_, '_>, row: Row, tally: &mut Tally) {
        let mut firsts = [SlotId::new(0); FOLIOS_AT_ONCE];
        let firsts = &mut firsts[..row.len];
        let given = self.slots.alloc_many(row.order, row.lane.cpu, firsts);
        let (pages, results) = (row.order.pages(), &mut round.results[row.folio..]);
        results.iter_mut().zip(&firsts[..given]).for_each(|(result, first)| *result = Ok(*first));
        let is_next = |a: &SlotId, b: &SlotId| a.offset(pages as u32) == *b;
        let mut at = row.at;
        for side_by_side in firsts[..given].chunk_by(is_next) {
            let end = at + side_by_side.len() * pages;
            let (words, hashes) = (&round.words[at..end], &round.hashes[at..end]);
            self.table.publish(side_by_side[0], round.how.unit, words, hashes);
            tally.count_put(words);
            at = end;
        }
        for n in given..row.len {
            self.unstage(&round.words[row.at + n * pages..][..pages], round.how);
        }
        self.ages.note(&firsts[..given], row.lane.goes_first);
    }
}

/// Folios of one order and lane, one behind the other in the round, that get their slots together.
#[derive(Clone, Copy)]
struct Row {
    order: Order,
    lane: Lane,
    /// The first of them, and pages of the round before it.
    folio: usize,
    at: usize,
    len: usize,
}

impl Row {
    /// Whether this folio comes next.
    fn goes_on(&self, folio: usize, order: Order, lane: Lane) -> bool {
        self.len < FOLIOS_AT_ONCE
            && self.folio + self.len == folio
            && (self.order, self.lane) == (order, lane)
    }
}

impl Default for Row {
    fn default() -> Self {
        Self { order: Order::PAGE, lane: Lane::default(), folio: 0, at: 0, len: 0 }
    }
}

/// Notes the object of a unit at those of its pages that are not filled.
pub(crate) fn note_object(words: &mut [Word], object: Object) {
    for word in words.iter_mut().filter(|word| **word == Word::Empty) {
        *word = Word::Compressed(object);
    }
}

/// Why the pool did not take a unit.
pub(crate) fn refused(error: AllocError) -> PutError {
    match error {
        AllocError::OutOfFrames | AllocError::Full(Limit::Pages(_)) => PutError::OutOfFrames,
        AllocError::Full(Limit::Objects(_)) => PutError::OutOfObjects,
        AllocError::Zero | AllocError::TooLarge { .. } => PutError::DoesNotFit,
    }
}
