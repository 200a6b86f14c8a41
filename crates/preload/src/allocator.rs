//! Memory for the pager's tables: cut from one reserve at start, never given back.
//!
//! The pager allocates while it starts and not afterwards, so there is nothing to free. A fresh
//! reserve reads as zeros, so a large zeroed table costs only the pages that are touched.
#![allow(unsafe_code)] // a global allocator

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use octavo_page::config::TABLE_RESERVE;
use octavo_page::sync::Mutex;
use octavo_sys::memory::{HUGE_PAGE, Reserve};

struct Bump {
    /// What is left of the reserve.
    left: Mutex<Option<core::ops::Range<usize>>>,
}

#[global_allocator]
static ALLOCATOR: Bump = Bump { left: Mutex::new(None) };

// SAFETY: every block is cut from a reserve that lives as long as the address space, once, with
// the alignment asked for; nothing is ever given back, so no block overlaps another.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.cut(layout).map_or(ptr::null_mut(), |start| start as *mut u8)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // Never used before, so still zero.
        self.cut(layout).map_or(ptr::null_mut(), |start| start as *mut u8)
    }

    unsafe fn dealloc(&self, _block: *mut u8, _layout: Layout) {}
}

impl Bump {
    fn cut(&self, layout: Layout) -> Option<usize> {
        let mut left = self.left.lock();
        if left.is_none() {
            let tables = Reserve::new(TABLE_RESERVE, c"octavo tables").ok()?;
            tables.leave_to_children();
            tables.enlarge();
            *left = Some(tables.span());
        }
        let left = left.as_mut()?;
        // What is large begins where a huge page can.
        let align = if layout.size() < HUGE_PAGE { layout.align() } else { HUGE_PAGE };
        let start = left.start.checked_next_multiple_of(align)?;
        let end = start.checked_add(layout.size()).filter(|end| *end <= left.end)?;
        left.start = end;
        Some(start)
    }
}
