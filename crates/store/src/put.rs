//! Storing a batch of folios together.
//!
//! ```text
//!   a round: folios of up to 512 pages together
//!
//!   folios │  f0   │ f1 │      f2      │ ...
//!   units  │ u │ u │ u  │ u │ u │ u │ u│        filled with one value: a word, and no unit
//!            └───┴───┬────┴───┘   └──── the next group
//!                  group: up to 16 units, of whichever folios
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

/// Units that are compressed and put into the pool together: as many as engines on devices have in
/// flight for a worker.
pub(crate) const GROUP: usize = 16;

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
    /// Pages of the round before it, and before its folio.
    at: u32,
    folio_at: u32,
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

/// A unit on its way into the pool.
#[derive(Clone, Copy, Default)]
struct Staged<'f> {
    unit: Pending<'f>,
    /// Which of the scratch's regions has what was made of it, and how many bytes; [`Self::RAW`]: the unit
    /// itself is kept.
    region: u32,
    len: u32,
}

impl<'f> Staged<'f> {
    /// The length of no object.
    const RAW: u32 = 0;

    fn new(unit: Pending<'f>, kept: Kept, region: usize) -> Self {
        let len = match kept {
            Kept::Compressed(len) => len as u32,
            Kept::Raw => Self::RAW,
        };
        Self { unit, region: region as u32, len }
    }

    /// What the pool is to keep; compressed units lie in `bytes`, a region of `room` for each.
    fn object<'a>(&self, bytes: &'a [u8], room: usize) -> &'a [u8]
    where
        'f: 'a,
    {
        match self.len {
            Self::RAW => self.unit.bytes,
            len => &bytes[self.region as usize * room..][..len as usize],
        }
    }
}

/// Units on their way into the pool.
struct Group<'f> {
    staged: [Staged<'f>; GROUP],
    len: usize,
}

impl<'f> Group<'f> {
    fn new() -> Self {
        Self { staged: [Staged::default(); GROUP], len: 0 }
    }

    /// The units that are kept compressed.
    fn units(&self) -> impl Iterator<Item = &'f [u8]> {
        let staged = self.staged[..self.len].iter();
        staged.filter(|staged| staged.len != Staged::RAW).map(|staged| staged.unit.bytes)
    }

    fn push(&mut self, staged: Staged<'f>) {
        self.staged[self.len] = staged;
        self.len += 1;
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
    /// The folio that is gone through, its place, and how many pages of it are done.
    folio: usize,
    folio_at: usize,
    done: usize,
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
            let folio = *self.folios.get(self.folio)?;
            let at = self.folio_at + self.done;
            let rest = &folio[self.done * PAGE_SIZE..];
            if rest.is_empty() || self.is_refused(self.folio) {
                self.folio_at += folio.len() / PAGE_SIZE;
                (self.folio, self.done) = (self.folio + 1, 0);
                continue;
            }
            let bytes = &rest[..self.how.unit.bytes()];
            let pages = self.how.unit.pages();
            self.done += pages;
            if !note_fills(bytes, &mut self.words[at..at + pages]) {
                let (folio, at, folio_at) = (self.folio as u32, at as u32, self.folio_at as u32);
                return Some(Pending { bytes, folio, at, folio_at });
            }
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

    /// The words of a unit's folio, as far as they are noted.
    fn words_of(&self, unit: Pending<'_>) -> &[Word] {
        let pages = self.folios[unit.folio()].len() / PAGE_SIZE;
        let noted = if unit.folio() == self.folio { self.done } else { pages };
        &self.words[unit.folio_at as usize..][..noted]
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
            folio_at: 0,
            done: 0,
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
                group.units().for_each(|unit| self.offer(offered, unit));
            }
            self.store_group(&mut round, (&group, tables), bytes, room);
        }
        self.give_slots(&mut round, tally);
    }

    /// The most bytes that an object of a unit may have when it is compressed.
    pub(crate) fn room(&self, how: How) -> usize {
        how.fits_in.min(self.largest_object).min(how.unit.bytes())
    }

    /// Compresses the units of a group in the caller, one after the other.
    fn compress_in_turn<'f, E: Engine>(
        &self,
        engine: &mut E,
        work: &mut Work,
        round: &mut Round<'_, 'f>,
        bytes: &mut [u8],
        room: usize,
    ) -> Group<'f> {
        let mut group = Group::new();
        let units = PAGES_AT_HAND / round.how.unit.pages();
        for (region, out) in bytes.chunks_exact_mut(room.max(1)).take(units).enumerate() {
            let Some(unit) = round.next() else { break };
            let outcome =
                engine.run(&mut Io::compress(round.how.codec, unit.bytes, &mut out[..room]));
            if let Some(kept) = self.judge(work, round, unit, outcome) {
                self.hash_unit(round, unit);
                group.push(Staged::new(unit, kept, region));
            }
        }
        group
    }

    /// Compresses the units of a group all at once, and hashes their pages meanwhile.
    fn compress_together<'f, E: Engine>(
        &self,
        engine: &mut E,
        work: &mut Work,
        round: &mut Round<'_, 'f>,
        bytes: &mut [u8],
        room: usize,
    ) -> Group<'f> {
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
        let mut group = Group::new();
        for (region, unit) in units.into_iter().enumerate().take(count) {
            let outcome = requests[region].outcome().expect("the batch is finished");
            if let Some(kept) = self.judge(work, round, unit, outcome) {
                group.push(Staged::new(unit, kept, region));
            }
        }
        group
    }

    /// What is kept of a unit; nothing when its folio is refused.
    fn judge(
        &self,
        work: &mut Work,
        round: &mut Round<'_, '_>,
        unit: Pending<'_>,
        outcome: Outcome,
    ) -> Option<Kept> {
        self.note_outcome(work, outcome);
        if round.is_refused(unit.folio()) {
            return None;
        }
        let kept = round.weigh(unit, outcome);
        kept.map_err(|error| self.refuse(round, unit, error)).ok()
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
    fn refuse(&self, round: &mut Round<'_, '_>, unit: Pending<'_>, error: PutError) {
        round.results[unit.folio()] = Err(error);
        self.unstage(round.words_of(unit), round.how);
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
    fn store_group(
        &self,
        round: &mut Round<'_, '_>,
        (group, tables): (&Group<'_>, Option<&Hold<'_>>),
        bytes: &[u8],
        room: usize,
    ) {
        let mut rest = &group.staged[..group.len];
        while !rest.is_empty() {
            let mut objects: [&[u8]; GROUP] = [&[]; GROUP];
            let mut places = [0; GROUP];
            let mut count = 0;
            for (place, staged) in rest.iter().enumerate() {
                if !round.is_refused(staged.unit.folio()) {
                    (objects[count], places[count]) = (staged.object(bytes, room), place);
                    count += 1;
                }
            }
            let mut handles = [Handle::from_bits(0); GROUP];
            let (stored, refusal) = self.pool.store_many(&objects[..count], &mut handles[..count]);
            let compressed =
                places[..stored].iter().filter(|place| rest[**place].len != Staged::RAW);
            let learnt = self.keep_tables(tables, compressed.count());
            for (handle, place) in handles.into_iter().zip(places).take(stored) {
                let Staged { unit, len, .. } = rest[place];
                let (codec, learnt) = match len {
                    Staged::RAW => (RAW, None),
                    _ => (round.how.codec.id(), learnt),
                };
                let object = Object { handle, codec, learnt, unit: round.how.unit };
                note_object(&mut round.words[unit.pages()], object);
            }
            let Err(error) = refusal else { return };
            self.refuse(round, rest[places[stored]].unit, refused(error));
            rest = &rest[places[stored] + 1..];
        }
    }

    /// Takes slots for all folios that are whole, those of an order in a row together, and publishes
    /// them.
    fn give_slots(&self, round: &mut Round<'_, '_>, tally: &mut Tally) {
        let mut row = Row::default();
        let mut at = 0;
        for (n, folio) in round.folios.iter().enumerate() {
            let order = Order::of_pages(folio.len() / PAGE_SIZE).unwrap_or(Order::PAGE);
            if round.is_refused(n) {
                tally.count_refused(order.pages(), round.results[n]);
            } else {
                let lane = self.lane(round.how, &round.words[at..at + order.pages()]);
                if row.len == FOLIOS_AT_ONCE || (row.order, row.lane) != (order, lane) {
                    self.publish(round, &row, tally);
                    row = Row { order, lane, ..Row::default() };
                }
                row.folios[row.len] = (n, at);
                row.len += 1;
            }
            at += order.pages();
        }
        self.publish(round, &row, tally);
    }

    /// Takes slots for the folios of a row, and publishes them there: those that lie side by side in the round
    /// and come to lie so in the slots, as one.
    fn publish(&self, round: &mut Round<'_, '_>, row: &Row, tally: &mut Tally) {
        let mut firsts = [SlotId::new(0); FOLIOS_AT_ONCE];
        let given = self.slots.alloc_many(row.order, row.lane.cpu, &mut firsts[..row.len]);
        let pages = row.order.pages();
        let mut n = 0;
        while n < given {
            let (_, at) = row.folios[n];
            let first = firsts[n];
            let mut end = 0;
            while n < given && (firsts[n], row.folios[n].1) == (first.offset(end as u32), at + end)
            {
                round.results[row.folios[n].0] = Ok(firsts[n]);
                (n, end) = (n + 1, end + pages);
            }
            let words = &round.words[at..at + end];
            self.table.publish(first, words, &round.hashes[at..at + end]);
            tally.count_put(words);
        }
        for (_, at) in &row.folios[given..row.len] {
            self.unstage(&round.words[*at..*at + pages], round.how);
        }
        self.ages.note(&firsts[..given], row.lane.goes_first);
    }
}

/// Folios of one order and lane that get their slots together.
struct Row {
    order: Order,
    lane: Lane,
    /// The place of each in the round, and pages before it.
    folios: [(usize, usize); FOLIOS_AT_ONCE],
    len: usize,
}

impl Default for Row {
    fn default() -> Self {
        let lane = Lane::default();
        Self { order: Order::PAGE, lane, folios: [(0, 0); FOLIOS_AT_ONCE], len: 0 }
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
