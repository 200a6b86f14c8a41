//! A buffer that is a chunk for a while, and has its name then.
//!
//! ```text
//!   begin: content, then name          reader: name? ──► lock ──► name still? ──► content
//!   end:   name off, then content                └─ no ────────────────└─ no ──► the device
//! ```
//! A chunk's name is set before anybody is told of a place in it, and taken off after the device has all of
//! it, so who finds no name finds the device. Names are looked for without a lock, and looked at again under
//! the lock of the one buffer: chunks come and go meanwhile.

use crate::place::Chunk;
use octavo_page::sync::atomic::{AtomicU64, Ordering};
use octavo_page::sync::{Mutex, MutexGuard};

/// Something that may be a chunk.
pub(crate) struct Named<C> {
    name: AtomicU64,
    content: Mutex<C>,
}

const NOBODY: u64 = 0;

/// A chunk's name, never [`NOBODY`].
const fn name(chunk: Chunk) -> u64 {
    ((chunk.segment.0 as u64) << 32) | (chunk.number as u64 + 1)
}

impl<C> Named<C> {
    pub(crate) fn new(content: C) -> Self {
        Self { name: AtomicU64::new(NOBODY), content: Mutex::new(content) }
    }

    /// Has it be a chunk from now on, when `make` has made it that.
    pub(crate) fn begin(&self, chunk: Chunk, make: impl FnOnce(&mut C)) {
        let mut content = self.content.lock();
        make(&mut content);
        self.name.store(name(chunk), Ordering::Release);
    }

    /// Has it be no chunk any more, and then `unmake` it.
    pub(crate) fn end(&self, unmake: impl FnOnce(&mut C)) {
        let mut content = self.content.lock();
        self.name.store(NOBODY, Ordering::Release);
        unmake(&mut content);
    }

    /// Whether it is this chunk, at this moment.
    pub(crate) fn is(&self, chunk: Chunk) -> bool {
        self.name.load(Ordering::Acquire) == name(chunk)
    }

    /// What it has, if it is this chunk.
    pub(crate) fn get(&self, chunk: Chunk) -> Option<MutexGuard<'_, C>> {
        if !self.is(chunk) {
            return None;
        }
        let content = self.content.lock();
        self.is(chunk).then_some(content)
    }

    /// What it has, for who knows which chunk it is.
    pub(crate) fn content(&self) -> MutexGuard<'_, C> {
        self.content.lock()
    }
}
