//! In which order changes of the program's mappings happened, when they are told in another.
//!
//! A call of the program changes its mappings under the kernel's lock and tells of it afterwards, one
//! thing at a time, the next when the one before was read. Other threads get in between:
//!
//! ```text
//!   thread A   mremap Y to X ─ told "X unmapped" ─ read ─ waits for a CPU ─ told "Y moved to X"
//!   thread B      mremap Z to Y ─ told "Z moved to Y" ─ read ─ munmap Y ─ told "Y unmapped"
//!   thread C   munmap Y' ─────────── waits for a CPU ─────────────────────── told "Y' unmapped"
//! ```
//! Taken by its word, what B tells would be taken for a change of A's memory, and what A, or C, tells
//! last for one of what B has moved there. But no memory comes to lie where other memory still is:
//!
//! - Memory is *known* from its registration until it is told that it was unmapped; what was moved away
//!   leaves its place known until that is told too (never, after `MREMAP_DONTUNMAP`, and rightly).
//! - What is told waits as long as it does not fit. A move waits while other memory is known at its
//!   target. Once a move waits, what is told later of its source is of what came there since, and waits
//!   behind it. Of what is told of its target, that which reaches beyond is older, and is followed at
//!   once; what lies within is the mover's next call if that may have been made by now, and waits.
//! - When nothing is left to be told, and something still waits, then of what lies within a move's target
//!   something was older after all: the shortest, since it freed no more than it had to.
//!
//! Out of reach is who frees no more than the place that another thread moves to, and tells of it after that
//! thread's next call; and a late "unmapped" of more than there was, where something has moved since. And
//! memory that has grown is known only when the watch finds it.

use crate::regions::Span;

/// Changes that wait at once, at most. To find the next takes some steps for each pair of them.
const MAX: usize = 64;

/// `len` bytes have moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// Where they were.
    pub from: usize,
    /// Where they are.
    pub to: usize,
    /// How many.
    pub len: usize,
}

impl Move {
    /// The addresses that were left.
    pub const fn source(self) -> Span {
        self.from..self.from + self.len
    }

    /// The addresses that are taken now.
    pub const fn target(self) -> Span {
        self.to..self.to + self.len
    }
}

/// What the program's memory is like as far as we know, or can look up.
pub trait Memory {
    /// Whether memory is known that lies in `span`.
    fn is_known(&self, span: &Span) -> bool;
    /// Whether something is mapped in `span` at this moment.
    fn is_mapped(&self, span: &Span) -> bool;
}

/// What a thread tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// Memory was moved.
    Moved(Move),
    /// A range was unmapped.
    Unmapped(Span),
    /// A range is about to be discarded.
    Removed(Span),
    /// A child was made, which has this userfaultfd.
    Forked(i32),
}

impl Told {
    /// What was changed; nothing, of a fork.
    fn span(&self) -> Span {
        match self {
            Self::Moved(what) => what.source(),
            Self::Unmapped(span) | Self::Removed(span) => span.clone(),
            Self::Forked(_) => 0..0,
        }
    }

    const fn as_move(&self) -> Option<Move> {
        if let Self::Moved(what) = self { Some(*what) } else { None }
    }

    const fn frees(&self) -> bool {
        matches!(self, Self::Moved(_) | Self::Unmapped(_))
    }

    /// Whether this frees addresses of `span`, and no others.
    fn frees_within(&self, span: &Span) -> bool {
        self.frees() && within(&self.span(), span)
    }

    /// Whether this frees addresses of `span`, and others.
    fn reaches_beyond(&self, span: &Span) -> bool {
        self.frees() && overlap(&self.span(), span) && !within(&self.span(), span)
    }
}

pub(crate) const fn overlap(one: &Span, other: &Span) -> bool {
    one.start < other.end && other.start < one.end
}

fn common(one: &Span, other: &Span) -> Span {
    one.start.max(other.start)..one.end.min(other.end)
}

const fn within(one: &Span, other: &Span) -> bool {
    other.start <= one.start && one.end <= other.end
}

/// What was told and is not followed yet, in the order in which it was told.
#[derive(Debug)]
pub struct Changes {
    told: [Option<Heard>; MAX],
    len: usize,
}

/// What was told, and of a move whether its source was still mapped then.
type Heard = (Told, bool);

impl Changes {
    /// Nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { told: [const { None }; MAX], len: 0 }
    }

    /// Whether everything was followed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether so much waits that something has to be followed, as if nothing were left to be told.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.len == MAX
    }

    /// Notes what is told, unless this is full.
    pub fn hear(&mut self, told: Told, memory: &impl Memory) {
        let stays = told.as_move().is_some_and(|what| memory.is_mapped(&what.source()));
        self.told[self.len] = Some((told, stays));
        self.len += 1;
    }

    /// What can be followed next; more may still be told.
    pub fn next(&mut self, memory: &impl Memory) -> Option<Told> {
        let at = (0..self.len).find(|at| self.fits(*at, memory))?;
        self.take(at)
    }

    /// What is followed next when nothing is left to be told; `None` when everything was.
    pub fn next_of_all(&mut self, memory: &impl Memory) -> Option<Told> {
        if let Some(next) = self.next(memory) {
            return Some(next);
        }
        if self.is_empty() {
            return None;
        }
        let older = self.moves(self.len).find_map(|(n, what)| self.older(n, what, memory));
        // The first waits for nothing that was told before: it is a move.
        self.take(older.unwrap_or(0))
    }

    /// Of what lies within the target of the move `what`, number `n`, and was told later, that which may well
    /// be older.
    fn older(&self, n: usize, what: Move, memory: &impl Memory) -> Option<usize> {
        let later = self.each(self.len).skip(n + 1);
        let may_be = later.filter(|(at, told)| {
            told.frees_within(&what.target())
                && memory.is_known(&told.span())
                && told.as_move().is_none_or(|other| !memory.is_known(&other.target()))
                && !self.moves(*at).any(|(_, other)| **told == Told::Unmapped(other.source()))
        });
        let shortest =
            may_be.min_by_key(|(at, told)| (told.span().len(), told.as_move().is_none(), *at));
        shortest.map(|(at, _)| at)
    }

    /// The first `n` that wait.
    fn each(&self, n: usize) -> impl Iterator<Item = (usize, &Told)> {
        self.told[..n].iter().enumerate().filter_map(|(at, told)| Some((at, &told.as_ref()?.0)))
    }

    fn take(&mut self, at: usize) -> Option<Told> {
        let told = self.told[at].take();
        self.told[at..self.len].rotate_left(1);
        self.len -= 1;
        told.map(|(told, _)| told)
    }

    /// Whether number `at` can be followed.
    fn fits(&self, at: usize, memory: &impl Memory) -> bool {
        let Some((told, _)) = &self.told[at] else { return false };
        match told {
            Told::Forked(_) => at == 0,
            _ if self.overtakes_a_fork(at, told) => false,
            Told::Moved(what) if memory.is_known(&what.target()) => false,
            _ => !self.moves(at).any(|(n, earlier)| self.waits_behind(told, n, earlier, memory)),
        }
    }

    /// Whether `told`, number `at`, would be followed before a fork that was told before it, and which waits
    /// for a move that this cannot be what that waits for.
    fn overtakes_a_fork(&self, at: usize, told: &Told) -> bool {
        let fork = self.each(at).find(|(_, earlier)| matches!(earlier, Told::Forked(_)));
        let frees = |what: Move| told.frees() && overlap(&told.span(), &what.target());
        fork.is_some_and(|(fork, _)| !self.moves(fork).any(|(_, what)| frees(what)))
    }

    /// The moves among the first `n`.
    fn moves(&self, n: usize) -> impl Iterator<Item = (usize, Move)> {
        self.each(n).filter_map(|(n, told)| Some((n, told.as_move()?)))
    }

    /// Whether `told` waits behind `earlier`, a move with number `n`.
    fn waits_behind(&self, told: &Told, n: usize, earlier: Move, memory: &impl Memory) -> bool {
        let (span, target) = (told.span(), earlier.target());
        let is_older = |came: &Span| told.reaches_beyond(came) && within(&earlier.source(), came);
        match told {
            Told::Removed(_) if overlap(&span, &target) => true,
            Told::Moved(what) if overlap(&what.target(), &target) => true,
            // Of what the move has moved away, or of what came there since.
            _ if overlap(&span, &earlier.source()) => {
                !self.moves(n).any(|(_, before)| is_older(&before.target()))
            }
            // Nothing was there before.
            _ if overlap(&span, &target) && !memory.is_known(&common(&span, &target)) => true,
            _ => told.frees_within(&target) && self.may_have_gone_on(n, earlier),
        }
    }

    /// Whether the thread that made the move `what`, number `n`, may have made another call since: it has
    /// told that the source is unmapped, or will not, if that was still mapped then.
    fn may_have_gone_on(&self, n: usize, what: Move) -> bool {
        let last = Told::Unmapped(what.source());
        self.told[n].as_ref().is_some_and(|(_, stays)| *stays)
            || self.each(self.len).skip(n).any(|(_, told)| *told == last)
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, HashMap};
    use std::vec::Vec;

    const UNITS: usize = 14;
    const THREADS: usize = 4;

    /// Memory that was never written.
    const BLANK: u32 = 0;

    /// How memory is moved: to where nothing is, over whatever is there, or leaving its place mapped.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Way {
        Free,
        Over,
        Leave,
    }

    /// What the program does, with `len` units of memory.
    #[derive(Clone, Copy, Debug)]
    enum Call {
        Move { thread: usize, from: usize, to: usize, len: usize, way: Way },
        Unmap { thread: usize, at: usize, len: usize },
        Map { at: usize, len: usize },
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let (thread, at, len) = (0..THREADS, 0..UNITS, 1usize..5);
        let way = prop_oneof![Just(Way::Free), Just(Way::Over), Just(Way::Leave)];
        let call = prop_oneof![
            5 => (thread.clone(), at.clone(), at.clone(), len.clone(), way)
                .prop_map(|(thread, from, to, len, way)| Call::Move { thread, from, to, len, way }),
            2 => (thread, at.clone(), len.clone())
                .prop_map(|(thread, at, len)| Call::Unmap { thread, at, len }),
            2 => (at, len).prop_map(|(at, len)| Call::Map { at, len }),
        ];
        proptest::collection::vec(call, 1..60)
    }

    /// The kernel: what lies where, and what each thread has still to tell.
    #[derive(Default)]
    struct Kernel {
        lies: HashMap<usize, u32>,
        telling: [Vec<Told>; THREADS],
        /// What the call that a thread is in changes.
        in_flight: [Vec<Span>; THREADS],
        /// Where memory was moved to since all was told, and what was freed.
        came: Vec<Span>,
        freed: Vec<Span>,
        made: u32,
    }

    impl Kernel {
        fn is_free(&self, span: &Span) -> bool {
            span.clone().all(|at| !self.lies.contains_key(&at))
        }

        fn is_whole(&self, span: &Span) -> bool {
            span.clone().all(|at| self.lies.contains_key(&at))
        }

        /// Whether the program may change `span`: no other thread is in the middle of a call with memory
        /// that is there now, nor has one still to tell what would be taken for this change.
        fn may_change(&self, thread: usize, span: &Span) -> bool {
            let busy = (0..THREADS).filter(|other| *other != thread);
            let mut busy = busy.flat_map(|other| &self.in_flight[other]);
            let mut older = self.freed.iter().filter(|older| overlap(older, span));
            !busy.any(|other| overlap(other, span))
                && older.all(|older| {
                    let gone = |at: usize| older.contains(&at) && !self.lies.contains_key(&at);
                    if span.clone().any(gone) {
                        return false; // who frees it may not have returned
                    }
                    let mut came = self.came.iter().filter(|came| overlap(came, span));
                    came.all(|came| within(span, came) && !within(older, came))
                })
        }

        fn call(&mut self, call: Call) -> Option<(usize, usize)> {
            match call {
                Call::Move { thread, from, to, len, way } => {
                    let what = Move { from, to, len };
                    self.do_move(thread, what, way);
                }
                Call::Unmap { thread, at, len } => {
                    let span = at..at + len;
                    if self.telling[thread].is_empty()
                        && self.is_whole(&span)
                        && self.may_change(thread, &span)
                    {
                        self.lies.retain(|at, _| !span.contains(at));
                        self.freed.push(span.clone());
                        self.telling[thread] = vec![Told::Unmapped(span)];
                    }
                }
                // Only what is registered is known to us, and nothing is while something is untold.
                Call::Map { at, len } => {
                    let span = at..at + len;
                    if self.telling.iter().all(Vec::is_empty) && self.is_free(&span) {
                        for at in span {
                            self.made += 1;
                            self.lies.insert(at, self.made);
                        }
                        return Some((at, len));
                    }
                }
            }
            None
        }

        fn do_move(&mut self, thread: usize, what: Move, way: Way) {
            let (source, target) = (what.source(), what.target());
            let fits = self.is_free(&target) || (way == Way::Over && self.is_whole(&target));
            if !self.telling[thread].is_empty()
                || !self.is_whole(&source)
                || !fits
                || overlap(&source, &target)
                || !self.may_change(thread, &source)
                || (!self.is_free(&target) && !self.may_change(thread, &target))
            {
                return;
            }
            // Told from the end.
            if way != Way::Leave {
                self.freed.push(source.clone());
                self.telling[thread].push(Told::Unmapped(source.clone()));
            }
            self.telling[thread].push(Told::Moved(what));
            if !self.is_free(&target) {
                self.freed.push(target.clone());
                self.telling[thread].push(Told::Unmapped(target.clone()));
            }
            for (from, to) in source.clone().zip(target.clone()) {
                let moved = self.lies.remove(&from).expect("whole");
                self.lies.insert(to, moved);
                if way == Way::Leave {
                    self.lies.insert(from, BLANK);
                }
            }
            self.came.push(target.clone());
            self.in_flight[thread] = vec![target];
            if way == Way::Leave {
                self.in_flight[thread].push(source);
            }
        }

        /// What the thread has to tell next.
        fn tell(&mut self, thread: usize) -> Option<Told> {
            let told = self.telling[thread].pop();
            if self.telling[thread].is_empty() {
                self.in_flight[thread].clear();
            }
            if self.telling.iter().all(Vec::is_empty) {
                self.came.clear();
                self.freed.clear();
            }
            told
        }
    }

    /// What we make of it.
    #[derive(Default)]
    struct Known {
        lies: HashMap<usize, u32>,
        known: BTreeSet<usize>,
        mapped: BTreeSet<usize>,
    }

    impl Memory for Known {
        fn is_known(&self, span: &Span) -> bool {
            span.clone().any(|at| self.known.contains(&at))
        }

        fn is_mapped(&self, span: &Span) -> bool {
            span.clone().any(|at| self.mapped.contains(&at))
        }
    }

    impl Known {
        fn forget(&mut self, span: &Span) {
            for at in span.clone() {
                self.lies.remove(&at);
                self.known.remove(&at);
            }
        }

        fn follow(&mut self, told: Told) {
            match told {
                Told::Moved(what) => {
                    self.forget(&what.target());
                    for (from, to) in what.source().zip(what.target()) {
                        self.known.insert(to);
                        if let Some(moved) = self.lies.remove(&from) {
                            self.lies.insert(to, moved);
                        }
                    }
                }
                Told::Unmapped(span) => self.forget(&span),
                Told::Removed(_) | Told::Forked(_) => {}
            }
        }

        fn follow_what_fits(&mut self, changes: &mut Changes) {
            while let Some(told) = changes.next(self) {
                self.follow(told);
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_told_late_nothing_is_lost_once_all_is_told(
            calls in calls(), order in proptest::collection::vec(0..THREADS, 300)
        ) {
            let (mut kernel, mut known) = (Kernel::default(), Known::default());
            let mut changes = Changes::new();
            let mut order = order.into_iter().cycle();
            let tell = |kernel: &mut Kernel, known: &mut Known, changes: &mut Changes, thread| {
                if let Some(told) = kernel.tell(thread) {
                    known.mapped = kernel.lies.keys().copied().collect();
                    changes.hear(told, known);
                    known.follow_what_fits(changes);
                }
                if kernel.telling.iter().all(Vec::is_empty) {
                    while let Some(told) = changes.next_of_all(known) {
                        known.follow(told);
                    }
                }
            };
            for call in calls {
                if let Some((at, len)) = kernel.call(call) {
                    for at in at..at + len {
                        known.known.insert(at);
                        known.lies.insert(at, kernel.lies[&at]);
                    }
                }
                // A thread in the middle may tell the next thing now, or later.
                let thread = order.next().unwrap_or(0);
                tell(&mut kernel, &mut known, &mut changes, thread);
            }
            for thread in (0..THREADS).cycle().take(THREADS * 4) {
                tell(&mut kernel, &mut known, &mut changes, thread);
            }
            prop_assert!(changes.is_empty(), "{changes:?}");
            kernel.lies.retain(|_, what| *what != BLANK);
            prop_assert_eq!(known.lies, kernel.lies);
        }
    }

    const PAGE: Move = Move { from: 0x9000, to: 0x3000, len: 0x1000 };

    /// Nothing is known but a range, nothing is mapped but another.
    struct Only(Span, Span);

    impl Memory for Only {
        fn is_known(&self, span: &Span) -> bool {
            overlap(&self.0, span)
        }

        fn is_mapped(&self, span: &Span) -> bool {
            overlap(&self.1, span)
        }
    }

    fn hear(told: &[Told], memory: &Only) -> Changes {
        let mut changes = Changes::new();
        told.iter().for_each(|told| changes.hear(told.clone(), memory));
        changes
    }

    #[test]
    fn the_next_call_of_who_moved_waits_for_what_was_there_before() {
        // The move left its source mapped: nothing more is told of it.
        let larger = Move { from: 0x1000, to: 0x20000, len: 0x3000 };
        let next = Told::Unmapped(PAGE.target());
        let memory = Only(0x1000..0x4000, PAGE.source());
        let mut changes = hear(&[Told::Moved(PAGE), next.clone()], &memory);
        assert_eq!(changes.next(&memory), None);
        changes.hear(Told::Moved(larger), &memory);
        assert_eq!(changes.next(&memory), Some(Told::Moved(larger)));
        let gone = Told::Unmapped(larger.source());
        changes.hear(gone.clone(), &memory);
        assert_eq!(changes.next(&memory), Some(gone));
        let memory = Only(0..0, PAGE.source());
        assert_eq!(changes.next(&memory), Some(Told::Moved(PAGE)));
        assert_eq!(changes.next(&memory), Some(next));
        assert!(changes.is_empty());
    }

    #[test]
    fn who_is_still_telling_of_a_move_has_made_no_other_call() {
        let older = Told::Unmapped(PAGE.target());
        let memory = Only(PAGE.target(), 0..0);
        let mut changes = hear(&[Told::Moved(PAGE), older.clone()], &memory);
        assert_eq!(changes.next(&memory), Some(older));
    }

    #[test]
    fn what_changes_where_a_move_is_waited_for_waits_too_and_so_does_a_fork() {
        let later = [
            Told::Removed(0..0x4000),
            Told::Unmapped(PAGE.source()),
            Told::Forked(3),
            Told::Moved(Move { from: 0x40000, to: PAGE.to, len: 0x1000 }),
        ];
        let memory = Only(PAGE.target(), 0..0);
        let mut changes = hear(&[Told::Moved(PAGE)], &memory);
        later.iter().for_each(|told| changes.hear(told.clone(), &memory));
        assert_eq!(changes.next(&memory), None);
        // Nobody tells anything more: the move is followed, whatever is known there.
        assert_eq!(changes.next_of_all(&memory), Some(Told::Moved(PAGE)));
        for told in later {
            assert_eq!(changes.next(&Only(0..0, 0..0)), Some(told));
        }
    }

    #[test]
    fn what_is_told_elsewhere_is_followed_at_once_unless_a_fork_waits() {
        let (memory, elsewhere) = (Only(PAGE.target(), 0..0), Told::Removed(0x70000..0x71000));
        let mut changes = hear(&[Told::Moved(PAGE), elsewhere.clone()], &memory);
        assert_eq!(changes.next(&memory), Some(elsewhere.clone()));
        let older = Told::Unmapped(PAGE.target());
        let told = [Told::Moved(PAGE), Told::Forked(3), elsewhere.clone(), older.clone()];
        let mut changes = hear(&told, &memory);
        assert_eq!(changes.next(&memory), Some(older));
        for told in &told[..3] {
            assert_eq!(changes.next(&Only(0..0, 0..0)).as_ref(), Some(told));
        }
    }

    #[test]
    fn a_list_that_is_full_says_so() {
        let (mut changes, nothing) = (Changes::new(), Only(0..0, 0..0));
        while !changes.is_full() {
            changes.hear(Told::Moved(PAGE), &nothing);
        }
        assert_eq!(changes.next_of_all(&nothing), Some(Told::Moved(PAGE)));
        assert!(!changes.is_full());
    }
}
