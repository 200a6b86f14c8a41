//! Where this object lies in memory, so that the pager does not manage its data.
#![allow(unsafe_code)] // reads our own ELF header

use core::ops::Range;
use octavo_page::PAGE_SIZE;

/// The ELF header of a 64-bit object, as far as it is read.
#[repr(C)]
struct Header {
    ident_to_entry: [u64; 4],
    segments_at: u64,
    sections_at: u64,
    flags: u32,
    size: u16,
    segment_size: u16,
    segments: u16,
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
    /// The linker puts this name at the start of the object, where its ELF header is.
    static __ehdr_start: Header;
}

/// The addresses of this object, its zeroed data included.
pub fn span() -> Range<usize> {
    const LOAD: u32 = 1;
    // SAFETY: the header and the program headers behind it are part of the first loaded segment,
    // mapped and never written.
    let (start, segments) = unsafe {
        let start = &raw const __ehdr_start as usize;
        let first = (start + __ehdr_start.segments_at as usize) as *const Segment;
        (start, core::slice::from_raw_parts(first, __ehdr_start.segments as usize))
    };
    let loaded = segments.iter().filter(|s| s.kind == LOAD);
    let end = loaded.map(|s| (s.address + s.memory_size) as usize).max().unwrap_or(0);
    start..start + end.next_multiple_of(PAGE_SIZE)
}
