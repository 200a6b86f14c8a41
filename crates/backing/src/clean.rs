//! Cleaning: what lives in a segment is moved to where others of its age are, and the segment is free.
//!
//! A segment is worth cleaning when little lives in it, and the more so the longer it was let alone, for
//! what has lived long goes on to live: of two equally empty ones the old one stays as empty, the young
//! one empties by itself. That is the cost-benefit rule of Rosenblum and Ousterhout (1992):
//!
//! ```text
//!   benefit     free space gained x age      (1 - u) x age
//!   ─────── = ─────────────────────────── = ───────────────      u = what lives / size
//!    cost      read all + write what lives       1 + u
//! ```
//! When to clean is decided by two lines. While what is closed takes more than [`MOST`] of what lives, the
//! best segment is cleaned, whatever it costs: the bound on the file. Above [`EAGER`] one is cleaned as long
//! as that is cheap, with at most [`CHEAP`] of it alive. Where everything dies alike nothing is ever
//! that empty, and the file goes to the first line; where most dies young it stays at the second.

use crate::Backing;
use crate::Owners;
use crate::device::Device;
use crate::errors::WriteError;
use crate::geometry::SECTOR;
use crate::log::{GENERATIONS, Log, Meta, Purpose, RESERVE, State};
use crate::place::{GRANULE, Segment};
use crate::read::Reader;
use crate::record::{Record, View};
use core::ops::ControlFlow;

/// What closed segments may take, in percent of what lives.
const MOST: u64 = 144;

/// From where on they are cleaned when that is cheap.
const EAGER: u64 = 115;

/// What may live in a segment that is cheap to clean, in percent.
const CHEAP: u64 = 20;

/// The part of a segment that has to be dead for it to be worth cleaning, whatever the lines say: cleaning
/// what is packed as well as it gets would go on for ever.
const LEAST_GAIN: u64 = 16;

/// What a call of the cleaner did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cleaned {
    /// A segment was cleaned, of which so many objects live elsewhere now.
    Segment {
        /// How many.
        moved: usize,
    },
    /// There is nothing to be cleaned.
    Nothing,
    /// There is, but nowhere to put what lives.
    Refused(WriteError),
}

impl<D: Device> Backing<D> {
    /// Whether [`clean`](Self::clean) would do something.
    #[must_use]
    pub fn wants_cleaning(&self) -> bool {
        let mut log = self.log.lock();
        self.collect(&mut log);
        self.victim(&log).is_some()
    }

    /// Cleans a segment, if one is worth it, and gives back room that is free. `owners` are asked what lives,
    /// and told where it is; nothing of this backing is locked then.
    ///
    /// Several threads may clean at once, each with a reader of its own.
    pub fn clean(&self, reader: &mut Reader, owners: &impl Owners) -> Cleaned {
        while self.punch_one() {}
        let Some((segment, end, generation)) = self.take_victim() else { return Cleaned::Nothing };
        let moved = self.move_all(reader, owners, segment, end, generation);
        let mut log = self.log.lock();
        let meta = &mut log.metas[segment.index()];
        (meta.state, meta.left) = (State::Closed, self.table.live(segment) as u32);
        log.tally.cleaned += u64::from(moved.is_ok());
        self.collect(&mut log);
        match moved {
            Ok(moved) => Cleaned::Segment { moved },
            Err(why) => Cleaned::Refused(why),
        }
    }

    /// Chooses a segment and has the cleaner be at it: which, its bytes, and the generation to move to.
    fn take_victim(&self) -> Option<(Segment, usize, usize)> {
        let mut log = self.log.lock();
        self.poll(&mut log);
        self.collect(&mut log);
        let segment = self.victim(&log)?;
        let meta = &mut log.metas[segment.index()];
        meta.state = State::Cleaned;
        let generation = (usize::from(meta.generation) + 1).min(GENERATIONS - 1);
        Some((segment, meta.end as usize, generation))
    }

    /// The segment that is to be cleaned: one that could not be written, or the best, if any is worth it.
    fn victim(&self, log: &Log) -> Option<Segment> {
        let room = log.free(self.clock);
        if room == 0 {
            return None;
        }
        let stuck = log.stuck().find(|segment| self.may_clean(log, *segment).is_some());
        let size = self.geometry.segment_bytes() as u64;
        let (closed, alive) = (log.closed_bytes(size), self.table.live_bytes());
        let must = room <= RESERVE + 1 || closed > alive / 100 * MOST;
        if stuck.is_some() || !must && closed <= alive / 100 * EAGER {
            return stuck;
        }
        let most = if must { size } else { size / 100 * CHEAP };
        let worth = (0..).map(Segment).zip(&*log.metas).filter_map(|(segment, meta)| {
            let live = self.may_clean(log, segment)?;
            (live <= most && gain(meta, live, size) >= size / LEAST_GAIN).then_some((segment, live))
        });
        let age =
            |segment: Segment| u64::from(log.closed - log.metas[segment.index()].closed_at) + 1;
        let benefit =
            |(segment, live): &(Segment, u64)| (size - live) * age(*segment) / (size + live);
        worth.max_by_key(benefit).map(|(segment, _)| segment)
    }

    /// Bytes that live in a segment, if that is closed, and was not cleaned in vain.
    fn may_clean(&self, log: &Log, segment: Segment) -> Option<u64> {
        let (meta, live) = (&log.metas[segment.index()], self.table.live(segment) as u64);
        (meta.state == State::Closed && live < u64::from(meta.left)).then_some(live)
    }

    /// Moves what lives in a segment; how many objects that were.
    fn move_all(
        &self,
        reader: &mut Reader,
        owners: &impl Owners,
        segment: Segment,
        end: usize,
        generation: usize,
    ) -> Result<usize, WriteError> {
        let binding = self.binding(segment);
        let (mut at, mut moved) = (0, 0);
        while at < end {
            let first = at / SECTOR;
            let sectors = end.div_ceil(SECTOR);
            let view = self.load_what_is_left(reader, segment, binding, first, sectors);
            let base = first * SECTOR;
            let is_last = base + view.bytes.len() >= sectors * SECTOR;
            let limit = (end - base).min(view.bytes.len());
            let stop = walk(&view, at - base, limit, is_last, |record| {
                match self.move_one(owners, &view, record, generation) {
                    Ok(was_moved) => {
                        moved += usize::from(was_moved);
                        ControlFlow::Continue(())
                    }
                    Err(why) => ControlFlow::Break(why),
                }
            });
            match stop {
                ControlFlow::Continue(stop) => at = base + stop,
                ControlFlow::Break(why) => return Err(why),
            }
        }
        Ok(moved)
    }

    /// Moves an object, if it lives; whether it did.
    fn move_one(
        &self,
        owners: &impl Owners,
        view: &View<'_>,
        record: &Record,
        generation: usize,
    ) -> Result<bool, WriteError> {
        let Record { owner, place: from, object } = record;
        if !owners.lives(*owner, *from) {
            return Ok(false);
        }
        let object = &view.bytes[object.clone()];
        let to = {
            let mut log = self.log.lock();
            let to = self.append(&mut log, generation, *owner, object, Purpose::Clean)?;
            log.tally.moved_objects += 1;
            log.tally.moved_bytes += object.len() as u64;
            to
        };
        let was_moved = owners.moved(*owner, *from, to);
        self.free(&[if was_moved { *from } else { to }]);
        Ok(was_moved)
    }
}

/// Calls `each` for the records from `at` on that begin before `limit`; where to go on, which is `limit`
/// or a record that the view has not all of.
fn walk<B>(
    view: &View<'_>,
    mut at: usize,
    limit: usize,
    is_last: bool,
    mut each: impl FnMut(&Record) -> ControlFlow<B>,
) -> ControlFlow<B, usize> {
    while at < limit {
        if let Some(record) = view.record(at) {
            each(&record)?;
            at = record.end();
            continue;
        }
        // Damage, or the rest of a chunk that was sent early, or a record that goes on. A view has room for
        // any record that begins in its first sector.
        let goes_on = view.end_of(at).is_some_and(|end| end > view.bytes.len());
        if goes_on && !is_last && at >= SECTOR {
            return ControlFlow::Continue(at);
        }
        at += GRANULE;
    }
    ControlFlow::Continue(limit.max(at))
}

/// Bytes that cleaning a segment frees: what died there, and what was left empty where more would have
/// fitted, since it was flushed.
fn gain(meta: &Meta, live: u64, size: u64) -> u64 {
    let end = u64::from(meta.end);
    let empty = if end <= size / 2 { size - end } else { 0 };
    u64::from(meta.stored) - live + empty
}
