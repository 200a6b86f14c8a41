//! Tables that are learnt from what is stored.
//!
//! ```text
//!   put      the newest generation is held ── units are made with it ── objects counted ── let go
//!            └─ one of sixteen units of a scratch that offers them ─► learner (only tried)
//!   learn    a step of the learner; a new generation is there for the next put
//!   free     object freed ── its generation has one user fewer
//! ```
//! The word of each page of an object says where the tables are that it was made with, so that an object
//! that is in a file is uncounted without being read, too.

use crate::stats::LearntStats;
use crate::word::{LearntPlace, Object};
use crate::{How, Scratch, Store};
use alloc::sync::Arc;
use octavo_accel::Engine;
use octavo_backing::Device;
use octavo_codec::deflate::{Generations, Hold, Learner, Step};
use octavo_page::sync::Mutex;
use octavo_pool::Arena;

/// The learnt tables of a store, and who learns more.
pub(crate) struct Learnt {
    all: Arc<Generations>,
    learner: Option<Mutex<Learner>>,
}

/// Of so many units that are compressed one is offered.
const OFFER_EVERY: usize = Learner::OFFERED_OF;

impl<A: Arena, D: Device> Store<A, D> {
    /// Has `deflate-canned:LEVEL` learn its tables from what is stored, by [`learn`](Self::learn). Until the
    /// first are learnt it has the general ones.
    pub fn set_learner(&mut self, learner: Learner) {
        let all = Arc::clone(learner.generations());
        self.learnt = Some(Learnt { all, learner: Some(Mutex::new(learner)) });
    }

    /// Has `deflate-canned:LEVEL` use these tables, and learn none.
    pub fn set_tables(&mut self, tables: Arc<Generations>) {
        self.learnt = Some(Learnt { all: tables, learner: None });
    }

    /// Tells the engine of `scratch` where the learnt tables are: before it is used with this store, if that
    /// has any.
    pub fn tell_tables<E: Engine>(&self, scratch: &mut Scratch<E>) {
        if let Some(learnt) = &self.learnt {
            scratch.engine.set_learnt(&learnt.all);
        }
    }

    /// Learns a little, if there is something to learn: less than a millisecond of work. Whoever offers
    /// units meanwhile does not wait. True when there is a new generation of tables.
    pub fn learn(&self) -> bool {
        let learner = self.learnt.as_ref().and_then(|learnt| learnt.learner.as_ref());
        let learner = learner.and_then(Mutex::try_lock);
        learner.is_some_and(|mut learner| matches!(learner.step(), Step::Learnt(_)))
    }

    /// Offers one of some units that were compressed to the learner. `offered` counts them.
    pub(crate) fn offer(&self, offered: &mut usize, unit: &[u8]) {
        *offered += 1;
        if offered.is_multiple_of(OFFER_EVERY)
            && let Some(learner) = self.learnt.as_ref().and_then(|learnt| learnt.learner.as_ref())
            && let Some(mut learner) = learner.try_lock()
        {
            learner.offer(unit);
        }
    }

    /// Holds the generation that units stored like this are made with, if there is one, and tells the
    /// engine.
    pub(crate) fn hold_tables<E: Engine>(&self, engine: &mut E, how: How) -> Option<Hold<'_>> {
        let learnt = self.learnt.as_ref().filter(|_| how.codec.learns())?;
        let hold = learnt.all.hold()?;
        engine.compress_with(hold.generation);
        Some(hold)
    }

    /// Counts objects that were made with the tables that are held; where those are.
    pub(crate) fn keep_tables(
        &self,
        hold: Option<&Hold<'_>>,
        objects: impl FnOnce() -> usize,
    ) -> Option<LearntPlace> {
        let generation = hold?.generation;
        self.learnt.as_ref()?.all.kept(generation, objects() as u32);
        Some(LearntPlace::of(generation))
    }

    /// The object is freed: its tables have one user fewer.
    pub(crate) fn forget_tables(&self, object: Object) {
        if let (Some(place), Some(learnt)) = (object.learnt, &self.learnt) {
            learnt.all.freed(place.index());
        }
    }

    pub(crate) fn learnt_stats(&self) -> LearntStats {
        self.learnt.as_ref().map_or(LearntStats::default(), |learnt| LearntStats {
            objects: learnt.all.users(),
            bytes: learnt.all.bytes() + learnt.learner.as_ref().map_or(0, |_| Learner::TAKES),
        })
    }
}
