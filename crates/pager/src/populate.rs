//! Memory that the program asks for at once, with `MAP_POPULATE` or `MADV_POPULATE_WRITE`.
//!
//! The kernel brings it in one go, past any limit, and nobody is told. It is a hint; so it is heeded only
//! while there is room for twice as much. How much room there is the watch has measured, a moment ago or,
//! where others keep the CPUs, longer: what was let pass since then is taken off.
//!
//! ```text
//!   let pass ──► under way ──► done since the last look began ──look──► measured
//! ```

use crate::start;
use octavo_page::PAGE_SIZE;
use octavo_page::sync::atomic::{AtomicU64, Ordering};

/// Pages left until everything must be registered, as last measured.
static ROOM: AtomicU64 = AtomicU64::new(0);

/// Pages that are being brought.
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);

/// Pages that were brought since the last look began.
static DONE: AtomicU64 = AtomicU64::new(0);

/// While this lives, memory is being brought.
#[derive(Debug)]
pub struct Populating(u64);

/// Lets `bytes` more be brought at once; `None` where that would come near the limit of a managed program.
#[must_use]
pub fn populate(bytes: usize) -> Option<Populating> {
    if !start::is_managed() {
        return Some(Populating(0));
    }
    let asked = (bytes / PAGE_SIZE) as u64;
    let before = UNDER_WAY.fetch_add(asked, Ordering::AcqRel);
    let all = before + asked + DONE.load(Ordering::Acquire);
    if all * 2 > ROOM.load(Ordering::Acquire) {
        UNDER_WAY.fetch_sub(asked, Ordering::AcqRel);
        return None;
    }
    Some(Populating(asked))
}

impl Drop for Populating {
    fn drop(&mut self) {
        DONE.fetch_add(self.0, Ordering::AcqRel);
        UNDER_WAY.fetch_sub(self.0, Ordering::AcqRel);
    }
}

/// In a forked child: other threads, which may have been at it, are not here.
pub(crate) fn be_child() {
    UNDER_WAY.store(0, Ordering::Relaxed);
}

/// A look at the program begins, which measures what is done by now.
pub(crate) fn begin_look() -> u64 {
    DONE.load(Ordering::Acquire)
}

/// The look that began when `done` was done has left so many pages of room.
pub(crate) fn end_look(done: u64, room: u64) {
    ROOM.store(room, Ordering::Release);
    DONE.fetch_sub(done, Ordering::AcqRel);
}
