//! No allocation once engines, devices and requests are made.
//!
//! The allocator of this program counts. One thread, no test harness.
#![allow(unsafe_code)] // Stands in for the allocator.

mod rig;

use octavo_accel::model::Mishap;
use octavo_accel::{Batch, Engine, Request};
use rig::{MODES, Rig, config, found};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static CALLS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: passes on to the system's allocator, whose contract is the same.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Compresses pages and decompresses them; calls of the allocator meanwhile.
fn calls(engine: &mut impl Engine, pages: &[Vec<u8>]) -> usize {
    let mut before = usize::MAX;
    let mut calls = 0;
    for codec in MODES.into_iter().chain(MODES.map(|codec| rig::by(4, codec))) {
        let mut outputs = vec![vec![0; 4096]; pages.len()];
        let mut back = outputs.clone();
        let mut requests: Vec<Request<'_>> =
            pages.iter().zip(&mut outputs).map(|(p, o)| Request::compress(codec, p, o)).collect();
        before = CALLS.load(Ordering::Relaxed);
        Batch::new(engine, &mut requests).finish();
        calls += CALLS.load(Ordering::Relaxed) - before;
        let mut requests: Vec<Request<'_>> = requests
            .iter()
            .zip(&mut back)
            .filter_map(|(r, b)| Some(Request::decompress(codec, r.bytes()?, b)))
            .collect();
        before = CALLS.load(Ordering::Relaxed);
        Batch::new(engine, &mut requests).finish();
        calls += CALLS.load(Ordering::Relaxed) - before;
        assert!(requests.iter().all(|r| r.outcome().is_some_and(|o| o.result == Ok(4096))));
    }
    assert!(before > 0, "the allocator is not watched");
    calls
}

fn main() {
    let pages = rig::pages();
    let mut cpu = octavo_accel::Cpu::new(&rig::codecs());
    assert_eq!(calls(&mut cpu, &pages), 0, "calls of the allocator by the CPU engine");
    let mut rig = Rig::new(&found(1, 2, 2, 8, true), config());
    assert_eq!(calls(rig.engine(), &pages), 0, "calls of the allocator by driver or model");
    let mut n = 0;
    rig.model.set_fate(Some(Box::new(move |_, _| {
        n += 1;
        (n % 5 == 0).then_some(Mishap::Status(0x20, 0))
    })));
    assert_eq!(calls(rig.engine(), &pages), 0, "calls of the allocator when things go wrong");
    println!(
        "{} pages, {} modes, whole and in parts, no call of the allocator",
        pages.len(),
        MODES.len()
    );
}
