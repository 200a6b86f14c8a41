//! No call of libc's allocator while units are compressed and decompressed.
//!
//! The allocator is replaced for the whole of this program, C libraries included, by one that
//! counts and passes on. One thread, no test harness: whatever is counted is the codecs'.
#![allow(unsafe_code)] // Stands in for C functions.

use octavo_codec::{Codec, Workspace};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

static CALLS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: passes on to the function of the same name and contract, here and below.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    count();
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_malloc(size) }
}

// SAFETY: see `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(n: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_calloc(n, size) }
}

// SAFETY: see `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, size: usize) -> *mut c_void {
    count();
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_realloc(old, size) }
}

// SAFETY: see `malloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut c_void) {
    count();
    // SAFETY: the caller's promises are the callee's.
    unsafe { __libc_free(old) }
}

fn main() {
    let pages = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/gcc.pages"))
        .expect("the sample pages that ship with the source");
    let codecs: Vec<Codec> = Codec::all().collect();
    let (mut bytes, mut back) = (vec![0; 65536], vec![0; 65536]);
    let mut workspace = Workspace::new(&codecs);
    assert!(CALLS.load(Ordering::Relaxed) > 0, "the allocator is not watched");

    let before = CALLS.load(Ordering::Relaxed);
    let mut units = 0;
    for &codec in &codecs {
        for unit_bytes in [4096, 16384, 65536] {
            for unit in pages[..131_072].chunks_exact(unit_bytes) {
                let out = &mut bytes[..unit_bytes];
                let Ok(size) = workspace.compress(codec, unit, out) else { continue };
                let back = &mut back[..unit_bytes];
                workspace.decompress(codec, &bytes[..size], back).expect("our own bytes");
                assert!(unit == back, "{codec} gives another unit back");
                assert!(workspace.decompress(codec, &bytes[..size - 1], back).is_err());
                units += 1;
            }
        }
    }
    let calls = CALLS.load(Ordering::Relaxed) - before;
    assert_eq!(calls, 0, "calls of the allocator");
    println!("{units} units, {} codecs, no call of the allocator", codecs.len());
}
