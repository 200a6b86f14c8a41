//! Where objects lie in memory whose data the pager itself uses, so that it does not manage them:
//! this one, and libc, whose `memcpy` reads tuning variables of its own.
#![allow(unsafe_code)] // walks the loader's list of objects

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use octavo_page::PAGE_SIZE;

/// `struct dl_phdr_info`, as far as it is read.
#[repr(C)]
struct Object {
    base: usize,
    name: *const c_char,
    segments: *const Segment,
    count: u16,
}

/// A program header.
#[repr(C)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        each: extern "C" fn(*const Object, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
}

struct Search {
    address: usize,
    found: Range<usize>,
    /// The initialised part of what can be written, whole words.
    data: Range<usize>,
    name: &'static CStr,
}

/// The addresses of this object, its zeroed data included.
pub fn ours() -> Range<usize> {
    find(ours as fn() -> Range<usize> as usize).found
}

/// The path by which the loader found this object.
pub fn path() -> &'static CStr {
    find(ours as fn() -> Range<usize> as usize).name
}

/// The addresses of the object that has `memcpy`.
pub fn libc() -> Range<usize> {
    find_libc().found
}

/// The initialised data of that object.
pub fn libc_data() -> &'static [AtomicUsize] {
    let Range { start, end } = find_libc().data;
    if start == end {
        return &[];
    }
    // SAFETY: the loader has mapped it, at an address of words, for as long as the process runs; what the object
    // itself changes, it changes word by word.
    unsafe {
        core::slice::from_raw_parts(
            core::ptr::with_exposed_provenance(start),
            (end - start) / size_of::<usize>(),
        )
    }
}

fn find_libc() -> Search {
    find(memcpy as unsafe extern "C" fn(_, _, _) -> _ as usize)
}

fn find(address: usize) -> Search {
    let mut search = Search { address, found: address..address + 1, data: 0..0, name: c"" };
    // SAFETY: `look` gets the search, which outlives the call.
    unsafe { dl_iterate_phdr(look, (&raw mut search).cast()) };
    search
}

extern "C" fn look(object: *const Object, _size: usize, search: *mut c_void) -> c_int {
    const LOAD: u32 = 1;
    const WRITABLE: u32 = 2;
    // SAFETY: the loader passes an object of its list with that many program headers, and the
    // pointer that we gave it.
    let (object, search, segments) = unsafe {
        let segments = core::slice::from_raw_parts((*object).segments, (*object).count as usize);
        (&*object, &mut *search.cast::<Search>(), segments)
    };
    let loaded = segments.iter().filter(|s| s.kind == LOAD);
    let data = loaded.clone().find(|s| s.flags & WRITABLE != 0);
    let start = loaded.clone().map(|s| s.address as usize).min().unwrap_or(0);
    let end = loaded.map(|s| (s.address + s.memory_size) as usize).max().unwrap_or(0);
    let span = object.base + start..(object.base + end).next_multiple_of(PAGE_SIZE);
    if !span.contains(&search.address) {
        return 0;
    }
    search.found = span;
    search.data = data.map_or(0..0, |s| {
        let start = object.base + s.address as usize;
        let words = size_of::<usize>();
        start.next_multiple_of(words)..(start + s.file_size as usize) / words * words
    });
    // SAFETY: the loader's own string, which lives as long as the object.
    search.name = unsafe { CStr::from_ptr(object.name) };
    1
}
