//! An arena that trusts nobody: it notices a page committed or decommitted twice, spoils pages that
//! come and go, and runs out of frames when told to.
#![allow(unsafe_code)] // an arena for tests

use crate::{Arena, OutOfFrames, RUNS};
use core::ops::Range;
use core::ptr::NonNull;
use octavo_page::PAGE_SIZE;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Mutex;
use std::vec::Vec;

pub(crate) struct TestArena {
    base: NonNull<u8>,
    state: Mutex<State>,
}

struct State {
    backed: Vec<bool>,
    /// Pages that can still be committed.
    frames: usize,
}

// SAFETY: the pointer is to memory that the arena owns; the state has its lock.
unsafe impl Send for TestArena {}
// SAFETY: as above.
unsafe impl Sync for TestArena {}

impl TestArena {
    pub(crate) fn new(pages: usize) -> Self {
        // SAFETY: the layout has a size that is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout(pages)) }).expect("memory");
        let state = State { backed: std::vec![false; pages], frames: usize::MAX };
        Self { base, state: Mutex::new(state) }
    }

    #[cfg(not(loom))]
    /// From now on `frames` pages can be committed before decommits make room for more.
    pub(crate) fn set_frames(&self, frames: usize) {
        self.state.lock().expect("lock").frames = frames;
    }

    pub(crate) fn committed(&self) -> usize {
        self.state.lock().expect("lock").backed.iter().filter(|&&b| b).count()
    }

    fn fill(&self, first: usize, pages: usize, byte: u8) {
        // SAFETY: the run is in the arena, and the pool touches it only between commit and
        // decommit, which both come here first.
        unsafe { self.base.add(first * PAGE_SIZE).write_bytes(byte, pages * PAGE_SIZE) }
    }
}

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).expect("a layout")
}

impl Drop for TestArena {
    fn drop(&mut self) {
        let pages = self.state.lock().expect("lock").backed.len();
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), layout(pages)) }
    }
}

// SAFETY: the memory is aligned to pages by its layout, owned until the drop, and always readable
// and writable.
unsafe impl Arena for TestArena {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn pages(&self) -> usize {
        self.state.lock().expect("lock").backed.len()
    }

    fn commit(&self, first: usize, pages: usize) -> Result<(), OutOfFrames> {
        assert!(pages > 0);
        let mut state = self.state.lock().expect("lock");
        for page in &state.backed[first..first + pages] {
            assert!(!page, "committed twice");
        }
        state.frames = state.frames.checked_sub(pages).ok_or(OutOfFrames)?;
        state.backed[first..first + pages].fill(true);
        self.fill(first, pages, 0xa5);
        Ok(())
    }

    fn decommit(&self, runs: &[Range<u32>]) {
        assert!((1..=RUNS).contains(&runs.len()));
        let mut state = self.state.lock().expect("lock");
        for run in runs {
            assert!(!run.is_empty());
            let (first, pages) = (run.start as usize, run.len());
            self.fill(first, pages, 0xdb);
            for page in &mut state.backed[first..first + pages] {
                assert!(*page, "decommitted twice");
                *page = false;
            }
            state.frames = state.frames.saturating_add(pages);
        }
    }
}
