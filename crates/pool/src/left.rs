//! Dead objects that were left to the next holder of a lane's lock.
//!
//! ```text
//!   left ──► index ──► index ──► NIL        the link of each: the first word of its own, dead object
//!     ▲ push: one step, by anybody
//!     └ take: all of them, by who holds the lock
//! ```
//! Who frees does not wait for a lane: its holder may be a compressing thread on another processor, and to
//! wake a thread there takes longer than all else that a fault needs. Frees that found their lane held were
//! one in twenty under random reads, and each slept (`docs/pool.md`).
//!
//! # Invariants
//!
//! - An object on the list is dead and nobody reads it: its bytes are the list's until it is taken off. Its
//!   handle's word says where it lies, and does not change meanwhile.
//! - Only whole lists are taken off, so an index that comes twice is no danger to a push.
//! - It is taken in whenever the lane's lock is taken: what is left there is what was freed while the
//!   lock was held last.
#![allow(unsafe_code)] // Links lie in the bytes of dead objects.

use crate::Arena;
use crate::ground::Ground;
use crate::handles::{Handles, NIL, Object};
use octavo_page::sync::atomic::{AtomicU32, Ordering};

/// The list of a lane: the index of its first handle.
pub(crate) struct Left(AtomicU32);

impl Left {
    /// With nothing on it.
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(NIL))
    }

    /// Adds an object that is dead and that nobody reads.
    pub(crate) fn push<A: Arena>(&self, ground: &Ground<A>, index: u32, object: Object) {
        let mut first = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: the object is the caller's, as it was the last to have anything to do with it.
            unsafe { ground.link(object).write(first) };
            let order = (Ordering::Release, Ordering::Relaxed);
            match self.0.compare_exchange_weak(first, index, order.0, order.1) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// Takes everything off; for who holds the lane's lock.
    pub(crate) fn take<A: Arena>(
        &self,
        ground: &Ground<A>,
        handles: &Handles,
        mut each: impl FnMut(u32, Object),
    ) {
        if self.0.load(Ordering::Relaxed) == NIL {
            return;
        }
        let mut index = self.0.swap(NIL, Ordering::Acquire);
        while index != NIL {
            let object = handles.load(index).object();
            // SAFETY: what was on the list is ours alone until `each` gives it back.
            let next = unsafe { ground.link(object).read() };
            each(index, object);
            index = next;
        }
    }
}
