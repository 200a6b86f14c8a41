//! LZ4 blocks, by the C library, on memory of ours.
//!
//! The library's encoder wants a hash table (16 KiB), which the caller may provide; its decoder
//! wants nothing. A block ends where its bytes end, and does not say how long the unit was.
#![allow(unsafe_code)] // Calls into C; each gets the bounds of the slices it may touch.

use crate::memory::Memory;
use crate::{Corrupt, DoesNotFit};
use core::ffi::{c_char, c_int, c_void};

// `lz4_sys` brings the library in, but declares only some of it.
use lz4_sys::LZ4_decompress_safe;

unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        target_output_size: c_int,
        dst_capacity: c_int,
    ) -> c_int;
}

/// The encoder's hash table.
pub struct Encoder(Memory);

impl Encoder {
    pub fn new() -> Self {
        // SAFETY: a pure function; it returns a constant of the library.
        let bytes = unsafe { LZ4_sizeofState() };
        Self(Memory::new(usize::try_from(bytes).expect("the size of the state is a size")))
    }

    /// Compresses `unit` into the front of `out` and returns how many bytes that took.
    pub fn compress(&mut self, unit: &[u8], out: &mut [u8]) -> Result<usize, DoesNotFit> {
        // SAFETY: the state is as large and aligned as the library wants and no other call uses it
        // (`&mut self`); it reads `unit.len()` bytes and writes at most `out.len()`, or returns 0.
        let written = unsafe {
            LZ4_compress_fast_extState(
                self.0.start(),
                unit.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                length(unit),
                length(out),
                1,
            )
        };
        match usize::try_from(written) {
            Ok(written) if written > 0 => Ok(written),
            _ => Err(DoesNotFit),
        }
    }
}

/// Decompresses the whole of `bytes` into the whole of `out`.
pub fn decompress(bytes: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    // SAFETY: the library reads within `bytes`, writes within `out`, and trusts neither content.
    let written = unsafe {
        LZ4_decompress_safe(
            bytes.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            length(bytes),
            length(out),
        )
    };
    if usize::try_from(written) == Ok(out.len()) { Ok(()) } else { Err(Corrupt::Damaged) }
}

/// Decompresses the beginning of `bytes` until `out` is full.
pub fn decompress_prefix(bytes: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
    // SAFETY: as in `decompress`.
    let written = unsafe {
        LZ4_decompress_safe_partial(
            bytes.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            length(bytes),
            length(out),
            length(out),
        )
    };
    if usize::try_from(written) == Ok(out.len()) { Ok(()) } else { Err(Corrupt::Damaged) }
}

/// The length of a slice as C counts. A longer slice is offered up to what C can count, which is
/// more than any unit: `Workspace` has refused longer units.
fn length(slice: &[u8]) -> c_int {
    c_int::try_from(slice.len()).unwrap_or(c_int::MAX)
}
