//! Reading pages: whole units in batches, and what is left of a unit by itself.
//!
//! ```text
//!   words  │ u0 │ u1 │ filled │   u2   │ u3 (partly gone) ...
//!            └────┴──────┬────────┴─ a group: up to 16 whole units in a row, their objects pinned
//!                        │
//!                     engine ── pages ── hash agrees? ── word as before? ──► out
//!                        │                                     no: by itself, below
//!   u3 ── pool::read ── engine ── the pages that are wanted of it ──► out
//! ```
//!
//! Groups are for engines with hardware of their own, which decompress all units of one at once. An
//! engine that works in the caller has nothing to share between units, and goes straight to the last
//! line, as does a fault, which reads one page.

use crate::home::Home;
use crate::put::GROUP;
use crate::scratch::Scratch;
use crate::word::{Forks, Object, RAW, Word};
use crate::{GetError, Store};
use octavo_accel::{Batch, Engine, Io, Operation, Request, Work};
use octavo_backing::{Device, Lost, ReadError};
use octavo_codec::Codec;
use octavo_page::{Handle, PAGE_SIZE, SlotId, Unit};
use octavo_pool::{Arena, Pinned};

pub(crate) type Page = [u8; PAGE_SIZE];

/// How reading pages from an object went.
enum Read {
    /// This many pages are as they were put.
    Good(usize),
    /// A page was freed meanwhile.
    Changed,
    /// The page of this slot is not as it was put.
    Doubtful(SlotId),
    /// The backing file does not give the object of this slot any more.
    Lost(SlotId, Lost),
}

/// Whole units in a row, to be read together.
struct Group {
    /// The object of each, and which page of those that are asked for is its first.
    units: [(Object, usize); GROUP],
    len: usize,
    /// Pages in the row; those that are no unit's are filled, and written already.
    pages: usize,
}

impl<A: Arena, D: Device> Store<A, D> {
    /// Reads the pages in `out.len() / 4096` slots from `slot` on. A unit of which several pages are
    /// wanted is decompressed once; whole units are decompressed in batches.
    ///
    /// A slot that another thread frees meanwhile gives its page or [`GetError::Empty`].
    ///
    /// # Errors
    /// [`GetError`] for the first slot that has no page, or a page that is lost; what is in `out` is
    /// then undefined.
    ///
    /// # Panics
    /// When `out` is no whole number of pages, or the engine of `scratch` was not made for the codec
    /// that the pages were put with: bugs of the caller.
    pub fn get<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        slot: SlotId,
        out: &mut [u8],
    ) -> Result<(), GetError> {
        let (mut pages, rest) = out.as_chunks_mut();
        assert!(rest.is_empty(), "a whole number of pages is read");
        let mut slot = slot;
        while !pages.is_empty() {
            let mut done = 0;
            if pages.len() > 1 && self.is_batched(&scratch.engine, slot) {
                done = self.get_group(scratch, slot, pages);
            }
            if done == 0 {
                done = self.get_span(scratch, slot, pages)?;
            }
            pages = &mut pages[done..];
            slot = slot.offset(done as u32);
        }
        Ok(())
    }

    /// Whether units such as that of `slot` are best decompressed many at once.
    fn is_batched<E: Engine>(&self, engine: &E, slot: SlotId) -> bool {
        let Word::Compressed(object) = self.word(slot) else { return false };
        let batches = |codec| engine.batches(Operation::Decompress, codec, object.unit.bytes());
        Codec::from_id(object.codec).is_some_and(batches)
    }

    /// Reads the whole units in a row from `slot` on, and filled pages between them, as far as all is
    /// well; how many pages.
    fn get_group<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        slot: SlotId,
        pages: &mut [Page],
    ) -> usize {
        let group = self.gather(slot, pages);
        let units = &group.units[..group.len];
        let pages = &mut pages[..group.pages];
        let mut pins = [const { None }; GROUP];
        let pins = &mut pins[..group.len];
        let handles = group.units.map(|(object, _)| object.handle);
        self.pool.pin_many(&handles[..group.len], pins);
        let Scratch { engine, work, .. } = scratch;
        let decoded = decode_together(engine, work, units, pins, pages);
        for ((object, at), is_decoded) in units.iter().zip(decoded) {
            let unit = &mut pages[*at..][..object.unit.pages()];
            if !is_decoded || !self.is_good(slot.offset(*at as u32), *object, unit) {
                return *at;
            }
        }
        group.pages
    }

    /// Up to [`GROUP`] whole units in a row from `slot` on, as far as pages are asked for. Writes the
    /// pages that are filled and no part of a larger unit.
    fn gather(&self, slot: SlotId, pages: &mut [Page]) -> Group {
        let none = Object {
            handle: Handle::from_bits(0),
            codec: RAW,
            learnt: None,
            forks: Forks(0),
            unit: Unit::K4,
        };
        let mut group = Group { units: [(none, 0); GROUP], len: 0, pages: 0 };
        while group.pages < pages.len() {
            let at = group.pages;
            match self.word(slot.offset(at as u32)) {
                Word::Filled(fill) => {
                    fill.write(&mut pages[at]);
                    group.pages += 1;
                }
                Word::Compressed(object)
                    if group.len < GROUP
                        && self.is_whole(slot.offset(at as u32), object, pages.len() - at) =>
                {
                    group.units[group.len] = (object, at);
                    group.len += 1;
                    group.pages += object.unit.pages();
                }
                Word::Compressed(_) | Word::Empty | Word::Poisoned => break,
            }
        }
        group
    }

    /// Whether `slot` begins a unit of whose pages none is gone, and all are among the `pages` from
    /// there on.
    fn is_whole(&self, slot: SlotId, object: Object, pages: usize) -> bool {
        let unit_pages = object.unit.pages();
        slot.index().is_multiple_of(unit_pages)
            && self.homes.home(slot, object.unit) == Home::Pool
            && unit_pages <= pages
            && (1..unit_pages as u32).all(|n| comes_with(object, self.word(slot.offset(n))))
    }

    /// Whether the pages that were decoded from `object`, which is pinned, are those of the slots from
    /// `slot` on. Writes those of them that are filled.
    fn is_good(&self, slot: SlotId, object: Object, pages: &mut [Page]) -> bool {
        (0..).map(|n| slot.offset(n)).zip(pages).all(|(slot, page)| match self.word(slot) {
            Word::Filled(fill) => {
                fill.write(page);
                true
            }
            word => {
                word == Word::Compressed(object)
                    && self.hash(page) == self.table.hash(slot)
                    && self.table.still(slot, word)
            }
        })
    }

    /// Reads at least one page from `slot` on, as many as one object gives, and says how many.
    pub(crate) fn get_span<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        slot: SlotId,
        pages: &mut [Page],
    ) -> Result<usize, GetError> {
        let mut doubts = 0;
        loop {
            let object = match self.word(slot) {
                Word::Empty => return Err(GetError::Empty { slot }),
                Word::Poisoned => return Err(GetError::Poisoned { slot }),
                Word::Filled(fill) => {
                    fill.write(&mut pages[0]);
                    return Ok(1);
                }
                Word::Compressed(object) => object,
            };
            // In doubt the page is read alone, and by software: neither what is asked with it nor a device
            // can make it unreadable.
            let reach = if doubts == 0 { pages.len() } else { 1 };
            match self.get_from_object(scratch, slot, object, &mut pages[..reach], doubts > 0) {
                Read::Good(pages) => return Ok(pages),
                // The page was freed while it was read. Another thread got on, so this ends.
                Read::Changed => {}
                // Or the slot was freed and filled again to the very same word: look twice.
                Read::Doubtful(_) if doubts == 0 => doubts += 1,
                Read::Doubtful(slot) => return Err(GetError::Damaged { slot }),
                Read::Lost(slot, lost) => return Err(GetError::Lost { slot, lost }),
            }
        }
    }

    /// Reads the pages of one object: `slot`'s and those behind it that are next to it in the unit
    /// and asked for. `again` when what an engine made of it was wrong.
    fn get_from_object<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        slot: SlotId,
        object: Object,
        pages: &mut [Page],
        again: bool,
    ) -> Read {
        let unit_pages = object.unit.pages();
        let offset = slot.index() % unit_pages;
        let mut words = [Word::Compressed(object); Unit::MAX.pages()];
        let mut span = 1;
        while span < pages.len().min(unit_pages - offset) {
            let word = self.word(slot.offset(span as u32));
            if !comes_with(object, word) {
                break;
            }
            words[span] = word;
            span += 1;
        }
        let pages = &mut pages[..span];

        let whole = span == unit_pages;
        let Scratch { engine, work, unit, reader, reads, .. } = scratch;
        let room = if whole { pages.as_flattened_mut() } else { &mut unit[..object.unit.bytes()] };
        let decode = |bytes: &[u8]| {
            decode_prefix((engine, work), object, bytes, room, (offset + span) * PAGE_SIZE, again)
        };
        let home = self.homes.home(slot, object.unit);
        let decoded = match home.of_words(object.handle) {
            Ok(handle) => self.pool.read(handle, decode) == Ok(true),
            Err(place) => {
                *reads += 1;
                match self.read_away(reader, (slot, object.unit), place, decode) {
                    Ok(decoded) => decoded,
                    Err(ReadError::Gone) => return Read::Changed,
                    Err(ReadError::Lost(lost)) => return Read::Lost(slot, lost),
                }
            }
        };
        for (n, page) in pages.iter_mut().enumerate() {
            let slot = slot.offset(n as u32);
            if let Word::Filled(fill) = words[n] {
                fill.write(page);
                continue;
            }
            if !whole {
                page.copy_from_slice(&unit[(offset + n) * PAGE_SIZE..][..PAGE_SIZE]);
            }
            let good = decoded && self.hash(page) == self.table.hash(slot);
            if !self.table.still(slot, words[n]) {
                return Read::Changed;
            }
            if !good {
                // It may have gone to the file, or come from there, while it was read.
                let is_elsewhere = self.homes.home(slot, object.unit) != home;
                return if is_elsewhere { Read::Changed } else { Read::Doubtful(slot) };
            }
        }
        Read::Good(span)
    }
}

/// Whether a word is that of a page which comes with the others of `object`.
fn comes_with(object: Object, word: Word) -> bool {
    matches!(word, Word::Filled(_)) || word == Word::Compressed(object)
}

/// Makes a unit of what is kept of it, or as much as has the first `wanted` bytes, the second time if
/// `again`; whether that went well.
fn decode_prefix<E: Engine>(
    (engine, work): (&mut E, &mut Work),
    object: Object,
    bytes: &[u8],
    unit: &mut [u8],
    wanted: usize,
    again: bool,
) -> bool {
    let Some(codec) = Codec::from_id(object.codec) else {
        return restore(bytes, unit);
    };
    let io = &mut Io::decompress_prefix(codec, bytes, unit, wanted);
    let outcome = if again { engine.run_again(io) } else { engine.run(io) };
    work.note(outcome.by);
    outcome.result.is_ok()
}

/// A unit that is kept raw.
fn restore(bytes: &[u8], unit: &mut [u8]) -> bool {
    let is_whole = bytes.len() == unit.len();
    if is_whole {
        unit.copy_from_slice(bytes);
    }
    is_whole
}

/// Decodes the units of a group as one batch of requests; which of them went well.
fn decode_together<E: Engine, A: Arena>(
    engine: &mut E,
    work: &mut Work,
    units: &[(Object, usize)],
    pins: &[Option<Pinned<'_, A>>],
    pages: &mut [Page],
) -> [bool; GROUP] {
    let mut decoded = [false; GROUP];
    let mut requests: [Request<'_>; GROUP] =
        core::array::from_fn(|_| Request::compress(Codec::Lz4, &[], &mut []));
    let (mut count, mut unit_of) = (0, [0; GROUP]);
    let (mut rest, mut end) = (pages, 0);
    for (n, ((object, at), pin)) in units.iter().zip(pins).enumerate() {
        let from = &mut core::mem::take(&mut rest)[*at - end..];
        let (unit, behind) = from.split_at_mut(object.unit.pages());
        (rest, end) = (behind, *at + object.unit.pages());
        let (Some(bytes), unit) = (pin, unit.as_flattened_mut()) else { continue };
        match Codec::from_id(object.codec) {
            Some(codec) => {
                requests[count] = Request::decompress(codec, bytes, unit);
                unit_of[count] = n;
                count += 1;
            }
            None => decoded[n] = restore(bytes, unit),
        }
    }
    Batch::new(engine, &mut requests[..count]).finish();
    for (request, n) in requests[..count].iter().zip(unit_of) {
        let outcome = request.outcome().expect("the batch is finished");
        work.note(outcome.by);
        decoded[n] = outcome.result.is_ok();
    }
    decoded
}
