//! One folio after the other, one unit after the other: the plain twin of `put.rs` and `get.rs`, which
//! tests and benchmarks compare them with.

use crate::get::Page;
use crate::put::{Kept, Weight, note_fills, note_object, order_of, refused};
use crate::scratch::Scratch;
use crate::stats::Tally;
use crate::word::{Object, RAW, Word};
use crate::{GetError, How, PutError, Store};
use octavo_accel::{Engine, Io};
use octavo_backing::Device;
use octavo_page::{PAGE_SIZE, SlotId};
use octavo_pool::Arena;

impl<A: Arena, D: Device> Store<A, D> {
    /// As [`Store::put`], unit by unit: each is compressed and put into the pool before the next one is
    /// looked at, and each folio gets its slots by itself.
    ///
    /// # Panics
    /// As [`Store::put`].
    pub fn put_one_by_one<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        how: How,
        folios: &[&[u8]],
        out: &mut [Result<SlotId, PutError>],
    ) {
        assert_eq!(folios.len(), out.len(), "a result for each folio");
        let mut tally = Tally::default();
        for (folio, out) in folios.iter().zip(out) {
            *out = self.put_folio(scratch, how, folio);
            let pages = folio.len() / PAGE_SIZE;
            match out {
                Ok(_) => tally.count_put(&scratch.words[..pages]),
                Err(_) => tally.count_refused(pages, *out),
            }
        }
        self.counters.add(&tally);
    }

    /// Stores one folio: objects first, then slots, then the words that join the two.
    fn put_folio<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        how: How,
        folio: &[u8],
    ) -> Result<SlotId, PutError> {
        let order = order_of(folio, how);
        let mut weight = Weight::default();
        let mut at = 0;
        for unit in folio.chunks_exact(how.unit.bytes()) {
            if let Err(error) = self.put_unit(scratch, how, (unit, at), order.pages(), &mut weight)
            {
                self.unstage(&scratch.words[..at], how);
                return Err(error);
            }
            at += how.unit.pages();
        }
        let words = &scratch.words[..at];
        let lane = self.lane(how, words);
        let Some(first) = self.slots.alloc(order, lane.cpu) else {
            self.unstage(words, how);
            return Err(PutError::OutOfSlots);
        };
        self.table.publish(first, how.unit, words, &scratch.hashes[..at]);
        self.ages.note(&[first], lane.goes_first);
        Ok(first)
    }

    /// Puts the object of one unit, which begins with page `at` of a folio of `pages` pages, into the
    /// pool, and leaves its pages' words and hashes in `scratch`.
    fn put_unit<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        how: How,
        (unit, at): (&[u8], usize),
        pages: usize,
        weight: &mut Weight,
    ) -> Result<(), PutError> {
        let room = self.room(how);
        let tables = self.hold_tables(&mut scratch.engine, how);
        let Scratch { engine, work, bytes, words, hashes, .. } = scratch;
        let words = &mut words[at..at + how.unit.pages()];
        if note_fills(unit, words) {
            return Ok(());
        }
        let outcome = engine.run(&mut Io::compress(how.codec, unit, &mut bytes[..room]));
        self.note_outcome(work, outcome);
        let (bytes, codec, tables) = match weight.add(how, pages, outcome.result)? {
            Kept::Compressed(len) => (&bytes[..len], how.codec.id(), tables.as_ref()),
            Kept::Raw => (unit, RAW, None),
        };
        let handle = self.pool.store(bytes).map_err(refused)?;
        let learnt = self.keep_tables(tables, || 1);
        for (n, page) in unit.chunks_exact(PAGE_SIZE).enumerate() {
            if words[n] == Word::Empty {
                hashes[at + n] = self.hash(page);
            }
        }
        note_object(words, Object { handle, codec, learnt, forks: self.forks(), unit: how.unit });
        Ok(())
    }

    /// As [`Store::get`], unit by unit.
    ///
    /// # Errors
    /// As [`Store::get`].
    ///
    /// # Panics
    /// As [`Store::get`].
    pub fn get_one_by_one<E: Engine>(
        &self,
        scratch: &mut Scratch<E>,
        slot: SlotId,
        out: &mut [u8],
    ) -> Result<(), GetError> {
        let (mut pages, rest): (&mut [Page], _) = out.as_chunks_mut();
        assert!(rest.is_empty(), "a whole number of pages is read");
        let mut slot = slot;
        while !pages.is_empty() {
            let done = self.get_span(scratch, slot, pages)?;
            pages = &mut pages[done..];
            slot = slot.offset(done as u32);
        }
        Ok(())
    }
}
