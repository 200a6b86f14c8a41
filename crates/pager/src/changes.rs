//! In which order moves and unmaps happened, when they are told in another.
//!
//! A call of the program changes its mappings under the kernel's lock and tells of it afterwards, one
//! thing at a time, the next when the one before was read. Other threads get in between:
//!
//! ```text
//!   thread A   mremap Y to X ─ told "Y moved to X" ─ read ─ waits for a CPU ─ told "Y unmapped"
//!   thread B                                              mremap Z to Y ─ told "Z moved to Y"
//!   thread C   munmap Y ──────────── waits for a CPU ─────────────────────── told "Y unmapped"
//! ```
//! Taken by its word, the last line of A, or of C, would lose what B has moved to Y. But no memory
//! comes to lie where other memory still is, so the true order can be told:
//!
//! - After "Y moved to X" we know that Y is left: the "unmapped" that says so once more is
//!   [expected](Changes::expects) and changes nothing.
//! - When something is moved to where we still know other memory, that was told too soon, and is
//!   held until we are told that the other memory is gone ([`Changes::release`]).
//!
//! So memory has to be known from the moment it is registered: what could not be listed, because
//! something was still to be told just then, is noted apart.
//!
//! One order is out of reach: memory that was moved, and then moved on or unmapped, while a thread
//! stood still that had not told anything of its own call yet. It would have to stand just behind the
//! kernel's lock while others make two calls with the same addresses.
//!
//! While anything is still to be told, no page can be taken or brought (`EAGAIN`); once one can, all
//! has been, and what was expected is not coming (`MREMAP_DONTUNMAP` leaves the old place mapped).

use crate::regions::Span;

/// Threads that are in the middle of a call at once, at most.
const MAX: usize = 1024;

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

/// More threads than a thousand were in the middle of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooMany;

/// What is still to be told, and what was told too soon.
#[derive(Debug)]
pub struct Changes {
    expected: List<Span>,
    held: List<Move>,
}

impl Changes {
    /// Nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { expected: List::new(), held: List::new() }
    }

    /// Whether anything is expected or held.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.expected.len == 0 && !self.has_held()
    }

    /// Whether a move is held.
    #[must_use]
    pub const fn has_held(&self) -> bool {
        self.held.len > 0
    }

    /// Whether "`span` unmapped" is what was expected; then it is so no longer.
    pub fn expects(&mut self, span: &Span) -> bool {
        self.expected.remove(|expected| expected == span).is_some()
    }

    /// Notes a move: that its source is left will be told once more. When it was told too soon it is
    /// held as well, until [`Changes::release`] gives it.
    ///
    /// # Errors
    /// When too much is still to be told.
    pub fn moved(&mut self, what: Move, too_soon: bool) -> Result<(), TooMany> {
        self.expected.push(what.source())?;
        if too_soon { self.held.push(what) } else { Ok(()) }
    }

    /// Takes out the first move that is held and of which `ready` says that it can be followed now.
    pub fn release(&mut self, ready: impl Fn(Move) -> bool) -> Option<Move> {
        self.held.remove(|what| ready(*what))
    }

    /// All has been told.
    pub fn settle(&mut self) {
        self.expected.len = 0;
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self::new()
    }
}

/// A few things in order.
#[derive(Debug)]
struct List<T> {
    items: [Option<T>; MAX],
    len: usize,
}

impl<T> List<T> {
    const fn new() -> Self {
        Self { items: [const { None }; MAX], len: 0 }
    }

    fn push(&mut self, item: T) -> Result<(), TooMany> {
        *self.items.get_mut(self.len).ok_or(TooMany)? = Some(item);
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        let items = &mut self.items[..self.len];
        let at = items.iter().position(|item| item.as_ref().is_some_and(&is_it))?;
        let item = items[at].take();
        items[at..].rotate_left(1);
        self.len -= 1;
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::vec::Vec;

    const Y: Span = 0x1000..0x2000;
    const FROM_Y: Move = Move { from: Y.start, to: 0x8000, len: 0x1000 };

    #[test]
    fn what_a_move_left_is_told_once_more_and_only_once() {
        let mut changes = Changes::new();
        for settled in [false, true] {
            changes.moved(FROM_Y, false).expect("room");
            assert_eq!(changes.release(|_| true), None);
            if settled {
                changes.settle();
            } else {
                assert!(!changes.expects(&(0x1000..0x3000)) && changes.expects(&Y));
            }
            assert!(!changes.expects(&Y) && changes.is_empty());
        }
    }

    #[test]
    fn a_list_that_is_full_says_so() {
        let mut changes = Changes::new();
        assert!((0..MAX).all(|n| changes.moved(FROM_Y, n % 2 == 0).is_ok()));
        assert_eq!(changes.moved(FROM_Y, false), Err(TooMany));
    }

    /// What the program does: moves the memory at an address, or unmaps it.
    #[derive(Clone, Copy, Debug)]
    enum Call {
        Move { thread: usize, from: usize, to: usize },
        Unmap { thread: usize, at: usize },
        Map { at: usize },
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let (thread, at) = (0usize..4, 0usize..6);
        let call = prop_oneof![
            4 => (thread.clone(), at.clone(), at.clone())
                .prop_map(|(thread, from, to)| Call::Move { thread, from, to }),
            1 => (thread, at.clone()).prop_map(|(thread, at)| Call::Unmap { thread, at }),
            2 => at.prop_map(|at| Call::Map { at }),
        ];
        proptest::collection::vec(call, 1..40)
    }

    #[derive(Clone, Copy, Debug)]
    enum Told {
        Moved(usize, usize),
        Unmapped(usize),
    }

    /// The kernel: what lies where, and what each thread has still to tell.
    #[derive(Default)]
    struct Kernel {
        lies: HashMap<usize, u32>,
        telling: [Vec<Told>; 4],
        /// Where the call that each thread is in has moved memory to.
        in_flight: [Option<usize>; 4],
        /// Where memory was moved to since the thread made a call of which it has told nothing yet.
        silent: [Option<[bool; 6]>; 4],
        made: u32,
    }

    impl Kernel {
        /// Whether the program knows of the memory at `place`, the call that moved it there being done;
        /// and nobody stood still, without a word, since before that call.
        fn is_known(&self, place: usize) -> bool {
            let moved_lately = self.silent.iter().flatten().any(|moved| moved[place]);
            !self.in_flight.contains(&Some(place)) && !moved_lately
        }

        /// Does what can be done: a thread makes no call while it has something to tell, memory goes
        /// only where there is none.
        fn call(&mut self, call: Call) -> Option<(usize, u32)> {
            match call {
                Call::Move { thread, from, to }
                    if self.telling[thread].is_empty()
                        && self.is_known(from)
                        && !self.lies.contains_key(&to) =>
                {
                    let what = self.lies.remove(&from)?;
                    self.lies.insert(to, what);
                    self.telling[thread] = vec![Told::Unmapped(from), Told::Moved(from, to)];
                    self.in_flight[thread] = Some(to);
                    self.silent.iter_mut().flatten().for_each(|moved| moved[to] = true);
                    self.silent[thread] = Some([false; 6]);
                }
                Call::Unmap { thread, at }
                    if self.telling[thread].is_empty() && self.is_known(at) =>
                {
                    self.lies.remove(&at)?;
                    self.telling[thread] = vec![Told::Unmapped(at)];
                    self.silent[thread] = Some([false; 6]);
                }
                // Only what is registered is known to us, and nothing is while something is untold.
                Call::Map { at }
                    if self.telling.iter().all(Vec::is_empty) && !self.lies.contains_key(&at) =>
                {
                    self.made += 1;
                    self.lies.insert(at, self.made);
                    return Some((at, self.made));
                }
                _ => {}
            }
            None
        }

        /// What the thread has to tell next.
        fn tell(&mut self, thread: usize) -> Option<Told> {
            let told = self.telling[thread].pop();
            self.silent[thread] = None;
            if self.telling[thread].is_empty() {
                self.in_flight[thread] = None;
            }
            told
        }
    }

    /// What we make of it.
    #[derive(Default)]
    struct Known {
        lies: HashMap<usize, u32>,
        changes: Changes,
    }

    impl Known {
        fn hear(&mut self, told: Told) {
            match told {
                Told::Unmapped(at) => {
                    if !self.changes.expects(&(at..at + 1)) {
                        self.lies.remove(&at);
                    }
                }
                Told::Moved(from, to) => {
                    let what = Move { from, to, len: 1 };
                    let too_soon = self.lies.contains_key(&to);
                    self.changes.moved(what, too_soon).expect("room");
                    if !too_soon {
                        self.follow(what);
                    }
                }
            }
            while let Some(what) = self.changes.release(|what| !self.lies.contains_key(&what.to)) {
                self.follow(what);
            }
        }

        fn follow(&mut self, Move { from, to, .. }: Move) {
            let moved = self.lies.remove(&from).expect("known memory moves");
            self.lies.insert(to, moved);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_told_late_nothing_is_lost_once_all_is_told(
            calls in calls(), order in proptest::collection::vec(0usize..4, 200)
        ) {
            let (mut kernel, mut known) = (Kernel::default(), Known::default());
            let mut order = order.into_iter().cycle();
            for call in calls {
                if let Some((at, what)) = kernel.call(call) {
                    known.changes.settle();
                    known.lies.insert(at, what);
                }
                // A thread in the middle may tell the next thing now, or later.
                if let Some(told) = kernel.tell(order.next().unwrap_or(0)) {
                    known.hear(told);
                }
            }
            while let Some(told) = (0..4).find_map(|thread| kernel.tell(thread)) {
                known.hear(told);
            }
            prop_assert!(!known.changes.has_held());
            prop_assert_eq!(known.lies, kernel.lies);
        }
    }
}
