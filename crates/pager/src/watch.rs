//! The watch: measures what is used, and finds memory that nobody announced.
//!
//! No event tells of mmap, brk or mprotect. So the watch looks: at `statm` every millisecond or
//! two when the limit is near, seldom when it is far; and at the list of mappings when memory
//! appeared that is not registered. While the job is far from its limit nothing is registered, and
//! huge pages stay whole. Once it comes near, everything is, and from then on what appears.
//!
//! Registering every small step of growth would leave a mapping for each, so growth waits until
//! enough has come together or a second has passed. What a thread asks about ([`crate::mapped`]) is registered
//! at once, before it is touched: it becomes one with its neighbours.

use crate::backoff::Backoff;
use crate::excluded::Excluded;
use crate::fork::NURSERY;
use crate::heap::HeapStep;
use crate::mapped;
use crate::pager::Pager;
use crate::placement::Starvation;
use crate::populate;
use crate::presence::{FAR, Look, NEAR, Presence};
use crate::regions::{Regions, Span};
use crate::sharing::{self, TELLING};
use crate::start::{self, leave};
use core::fmt::Write as _;
use core::time::Duration;
use octavo_ledger::Once;
use octavo_page::ByteSize;
use octavo_page::PAGE_SIZE;
use octavo_page::sync::MutexGuard;
use octavo_sys::file::Text;
use octavo_sys::maps::Mapping;
use octavo_sys::task;

/// Growth waits this long to be registered at most.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who asks for memory to be registered waits this long while changes keep coming that are still to be told.
const PATIENCE_WITH_CHANGES: Duration = Duration::from_millis(50);

/// More than this over the limit is said at once where nothing can be evicted; less may pass, and the keeper says it
/// where it lasts.
const AT_ONCE: ByteSize = ByteSize::mib(16);

/// The keeper has this long to end a job that is over its limit.
const PATIENCE_FOR_KEEPER: Duration = Duration::from_millis(200);

/// The server has this long to leave after the program.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// One look in so many counts the classes of the pool, which takes a walk over its descriptors.
const LOOKS_AT_CLASSES: u32 = 16;

/// What the watch remembers from one look to the next.
pub struct Watch<'a> {
    pager: &'a Pager,
    presence: Presence,
    /// What is not to be managed.
    excluded: Excluded,
    heap_step: HeapStep,
    /// Data that there were, and the pages unmapped, when mappings were last listed.
    listed: (u64, u64),
    listed_at: Duration,
    /// When the program was first seen to have ended.
    ended_at: Option<Duration>,
    /// Whether the program shared pages at the last look.
    shared: bool,
    starvation: Starvation,
    looks: u32,
    /// Since when nothing that is asked for can be registered.
    unsettled: Option<Duration>,
}

impl<'a> Watch<'a> {
    /// A watch over the program that `presence` looks at.
    #[must_use]
    pub fn new(
        pager: &'a Pager,
        excluded: Excluded,
        heap_step: HeapStep,
        presence: Presence,
    ) -> Self {
        Self {
            pager,
            presence,
            excluded,
            heap_step,
            listed: (0, 0),
            listed_at: Duration::ZERO,
            ended_at: None,
            shared: false,
            starvation: Starvation::default(),
            looks: 0,
            unsettled: None,
        }
    }

    /// Watches until the program is gone from this address space; `pause` waits between looks.
    pub fn run(mut self, pause: impl Fn(Duration)) -> ! {
        loop {
            let work = start::work();
            let time = self.look();
            drop(work);
            self.wait(time, &pause);
        }
    }

    /// Waits for `time`, or until there is another reason to look, and answers meanwhile what is asked.
    fn wait(&mut self, time: Duration, pause: &impl Fn(Duration)) {
        let end = task::now() + time;
        let mut backoff = Backoff::NEW;
        loop {
            if !mapped::ASKS.is_any() {
                self.unsettled = None; // who asked may have gone on
                pause(end.saturating_sub(task::now()));
                if !mapped::ASKS.is_any() {
                    return;
                }
            }
            let work = start::work();
            self.register_asked();
            drop(work);
            if task::now() >= end {
                return;
            }
            if mapped::ASKS.is_any() {
                backoff.pause(); // something has to be told first
            }
        }
    }

    /// Looks once; gives the time to the next look.
    fn look(&mut self) -> Duration {
        let pager = self.pager;
        let owned = pager.owned.get();
        let shared_store = || pager.program.count_shared(pager.store.reach());
        let look = self.presence.look(pager.ledger, pager.member, owned, shared_store);
        let Some(look) = look else { return NEAR };
        self.leave_after_the_program();
        let telling = TELLING.lock();
        if !self.presence.tell(pager.member) {
            return Duration::ZERO;
        }
        pager.publish(look);
        populate::end_look(look.populated, pager.budget.until_armed());
        drop(telling);
        if core::mem::replace(&mut self.shared, sharing::shares()) && !self.shared {
            pager.try_again();
        }
        if pager.store.learn() {
            pager.counters.generations.add(1);
        }
        if self.looks.is_multiple_of(LOOKS_AT_CLASSES) {
            pager.publish_classes();
        }
        self.looks = self.looks.wrapping_add(1);
        if !pager.is_armed() {
            let left = pager.budget.until_armed();
            if left > 0 {
                return self.presence.until_next_look(look.used, pager.budget.until_limit(), left);
            }
            self.register_new(look);
            pager.arm();
            self.heap_step.widen();
        }
        if self.wants_listing(look) {
            self.register_new(look);
        }
        if pager.wants_evictors() {
            pager.bell.ring();
        }
        self.say_exceeded();
        self.starvation.look(pager);
        if !pager.budget.above_floor() {
            // Nothing can be given, unless a child has just ended.
            return if self.presence.has_forked() { sharing::ASKED_THEN } else { FAR };
        }
        let left = pager.budget.until_limit();
        self.presence.until_next_look(look.used, left, left)
    }

    /// After exec the program has another address space, and nobody needs this one. When it ended,
    /// the server leaves; should it hang, this does.
    fn leave_after_the_program(&mut self) {
        self.ended_at = self.pager.has_ended().then(|| self.ended_at.unwrap_or_else(task::now));
        let hangs = |ended_at| task::now().saturating_sub(ended_at) > LAST_WORDS;
        let gone = self.presence.is_elsewhere() || self.ended_at.is_some_and(hangs);
        // The server has children to fill first.
        if gone && NURSERY.is_empty() {
            leave();
        }
    }

    fn wants_listing(&self, look: Look) -> bool {
        let unmapped = self.pager.unmapped.get();
        let grown = look.data.abs_diff(self.listed.0) + (unmapped - self.listed.1);
        let waited = task::now().saturating_sub(self.listed_at) > PATIENCE;
        grown > self.pager.budget.unregistered_allowance() || (grown > 0 && waited)
    }

    /// Registers every mapping that can be managed and is not yet.
    fn register_new(&mut self, look: Look) {
        self.listed = (look.data, self.pager.unmapped.get());
        self.listed_at = task::now();
        let mut at = 0;
        while let Ok(Some(mapping)) = self.pager.maps.writable_from(at) {
            at = mapping.span.end;
            if let Some(theirs) = self.excluded.theirs(&mapping)
                && !self.pager.regions_soon().covers(&theirs)
            {
                self.pager.manage(&theirs, &self.excluded);
            }
            // Of tens of thousands of mappings the list takes longer than a thread is to wait.
            if mapped::ASKS.is_any() {
                self.register_asked();
            }
        }
    }

    /// Registers what threads wait for. What cannot be registered yet is asked again for a while, or found when
    /// mappings are listed.
    fn register_asked(&mut self) {
        mapped::ASKS.answer(|address| self.register_at(address), task::futex_wake);
    }

    /// Registers the mapping that has `address`; false when that is worth another try.
    fn register_at(&mut self, address: usize) -> bool {
        let mapping = self.pager.mapping_at(address);
        let Some(theirs) = mapping.and_then(|mapping| self.excluded.theirs(&mapping)) else {
            return true;
        };
        match self.pager.manage(&theirs, &self.excluded) {
            Managed::Now => {
                self.note_listed((theirs.len() / PAGE_SIZE) as u64);
                self.unsettled = None;
                true
            }
            Managed::Unchanged => {
                self.unsettled = None;
                true
            }
            Managed::Later => {
                let since = *self.unsettled.get_or_insert_with(task::now);
                task::now().saturating_sub(since) > PATIENCE_WITH_CHANGES
            }
        }
    }

    /// Notes that `pages` that were unmapped, or never there, are listed as they are.
    fn note_listed(&mut self, pages: u64) {
        let (data, unmapped) = &mut self.listed;
        let anew = pages.min(self.pager.unmapped.get() - *unmapped);
        *unmapped += anew;
        *data += pages - anew;
    }

    /// Says once that the limit is exceeded by far, or ends a strict job.
    fn say_exceeded(&mut self) {
        let ledger = self.pager.ledger;
        let exceeded = ledger.over() * PAGE_SIZE as u64;
        let limit = self.pager.config.limit;
        if exceeded < AT_ONCE.bytes()
            || !self.pager.is_stuck()
            || !ledger.says_first(Once::Exceeded)
        {
            return;
        }
        let mib = exceeded.div_ceil(1 << 20);
        let limit = ByteSize::new(limit);
        let mut line = Text::<256>::new();
        let end = if self.pager.config.strict {
            "--strict ends the job"
        } else {
            "what is left does not compress or is in use; going on"
        };
        let _ = writeln!(line, "octavo: the limit of {limit} is exceeded by {mib}M so far: {end}");
        self.pager.say(line.as_bytes());
        if self.pager.config.strict {
            // The keeper ends all, this program's parents first.
            ledger.forbid();
            task::sleep(PATIENCE_FOR_KEEPER);
            let _ = task::kill(&self.pager.target);
        }
    }
}

/// What has become of memory that can be managed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Managed {
    /// It was registered.
    Now,
    /// It was before, or cannot be.
    Unchanged,
    /// It changes, or something does that has still to be told.
    Later,
}

impl Pager {
    /// Says what this process uses and what is stored in that, and reads what the others leave.
    fn publish(&self, look: Look) {
        let store = self.store.stats();
        self.measured(look.used, task::now());
        let stored = (store.pool_bytes / PAGE_SIZE) as u64;
        self.budget.stores(stored, look.store_elsewhere, store.stored_pages as u64);
        self.budget.keeps_shared(self.kept_shared().map_or(0, |shared| shared.part));
        let stored = &self.member.stored;
        stored.compressed_bytes.set(store.compressed_bytes as u64);
        stored.pool_bytes.set(store.pool_bytes as u64);
        stored.pages.set(store.stored_pages as u64);
        stored.same_filled.set(store.same_filled_pages as u64);
        stored.raw.set(store.raw_pages as u64);
        stored.unverified.set(store.unverified_units as u64);
        stored.learnt_objects.set(store.learnt.objects as u64);
        stored.table_bytes.set(store.learnt.bytes as u64);
        self.counters.cpu_us.set(task::cpu_time().as_micros() as u64);
        self.budget.publish(self.ledger, self.member, self.budget.floor());
    }

    /// Says how the pool's zspages are filled.
    fn publish_classes(&self) {
        for (told, class) in self.member.stored.classes.iter().zip(self.store.classes()) {
            told.0.iter().zip(class.numbers()).for_each(|(told, number)| told.set(number as u64));
        }
    }

    /// Registers what was listed as `span`, if it still is the program's, and evicts from it from now on. What
    /// cannot be registered (another userfaultfd has it) is left alone.
    fn manage(&self, span: &Span, excluded: &Excluded) -> Managed {
        // Shut, so that an event that unmaps the range comes after it is in the list.
        let _gate = self.placement.patiently(|| self.gate.try_write());
        // Nor is a change still to be told that would seem to be one of what is registered now.
        let mapping = if self.program.is_settled() { self.mapping_at(span.start) } else { None };
        // It may have grown since: one that is registered in part is two mappings from then on.
        match mapping.and_then(|mapping| excluded.theirs(&mapping)) {
            // What was read of changes is followed by now, as it may not be before the gate.
            Some(theirs) if self.regions_soon().covers(&theirs) => Managed::Unchanged,
            Some(theirs) => self.register(theirs),
            None => {
                self.have_listed_again(span);
                Managed::Later
            }
        }
    }

    /// Registers and lists `span`, which is or ends a mapping, with the gate shut.
    fn register(&self, span: Span) -> Managed {
        if self.program.register(span.clone()).is_err() {
            return Managed::Unchanged;
        }
        // The range may have changed even so, without an event, since it was not registered; and
        // registering passes over holes. What is mapped into a hole later would be
        // listed without being registered. One mapping over the whole range cannot be part ours:
        // what is registered merges only with its like. And a change that is not told yet would be
        // told after the range is listed as it is since that change.
        let is_one = self.mapping_at(span.start).is_some_and(|m| span.end <= m.span.end);
        if !(is_one && self.program.is_settled()) {
            self.note_mapped(&span);
            self.have_listed_again(&span);
            return Managed::Later;
        }
        if self.regions_soon().add(span.clone()) {
            self.unlisted.lock().remove(span);
        } else {
            self.counters.unlisted.add(1);
        }
        Managed::Now
    }

    /// The regions. Who holds them may be the server, which starves.
    fn regions_soon(&self) -> MutexGuard<'_, Regions> {
        self.placement.patiently(|| self.regions.try_lock())
    }

    /// Notes what there is in `span`, which may be registered, as known.
    fn note_mapped(&self, span: &Span) {
        let mut at = span.start;
        while let Ok(Some(mapping)) = self.maps.any_from(at)
            && mapping.span.start < span.end
        {
            self.note_unlisted(mapping.span.start.max(at)..mapping.span.end.min(span.end));
            at = mapping.span.end;
        }
    }

    /// The writable mapping that has `address`, if there is one.
    fn mapping_at(&self, address: usize) -> Option<Mapping> {
        let mapping = self.maps.writable_from(address).ok().flatten();
        mapping.filter(|mapping| mapping.span.contains(&address))
    }
}
