//! zstd frames, by the C library, on memory of ours.
//!
//! The library can be given a block of memory for each context and then never asks an allocator;
//! how large the block must be depends on the level and, because every unit is at most 64 KiB and
//! the library is told its length, stays small. A frame carries no magic number, no length, no
//! checksum and no dictionary id: 2 bytes of frame header, 3 of block header, the block.
#![allow(unsafe_code)] // Calls into C; each gets the bounds of the slices it may touch.

use crate::memory::Memory;
use crate::{Corrupt, DoesNotFit, MAX_UNIT, ZstdLevel};
use core::ptr::NonNull;
use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_setParameter, ZSTD_DCtx, ZSTD_DCtx_setParameter, ZSTD_ErrorCode,
    ZSTD_cParameter as CParameter, ZSTD_compress2, ZSTD_dParameter as DParameter,
    ZSTD_decompressDCtx, ZSTD_estimateCCtxSize_usingCParams, ZSTD_estimateDCtxSize,
    ZSTD_format_e as Format, ZSTD_getCParams, ZSTD_getErrorCode, ZSTD_initStaticCCtx,
    ZSTD_initStaticDCtx, ZSTD_isError,
};

// The library calls these if anybody defines them. Hidden here, only we could, and do not: a
// program with a zstd of its own is not told about ours.
core::arch::global_asm!(
    ".weak ZSTD_trace_compress_begin, ZSTD_trace_compress_end",
    ".hidden ZSTD_trace_compress_begin, ZSTD_trace_compress_end",
    ".weak ZSTD_trace_decompress_begin, ZSTD_trace_decompress_end",
    ".hidden ZSTD_trace_decompress_begin, ZSTD_trace_decompress_end",
);

/// The library's `ZSTD_c_format` and `ZSTD_d_format`, which its header names by number.
const C_FORMAT: CParameter = CParameter::ZSTD_c_experimentalParam2;
const D_FORMAT: DParameter = DParameter::ZSTD_d_experimentalParam1;

/// A compression context inside a block of memory that it shares with nobody.
pub struct Encoder {
    context: NonNull<ZSTD_CCtx>,
    level: ZstdLevel,
    levels: (ZstdLevel, ZstdLevel),
    /// Holds `*context`; kept so that it lives as long.
    _memory: Memory,
}

// SAFETY: the context lies in memory that the encoder owns, and the library ties it to no thread.
unsafe impl Send for Encoder {}

impl Encoder {
    /// An encoder for every level from `levels.0` to `levels.1`.
    pub fn new(levels: (ZstdLevel, ZstdLevel)) -> Self {
        let bytes = (levels.0.get()..=levels.1.get())
            .filter_map(ZstdLevel::new)
            .map(context_bytes)
            .max()
            .expect("a range of levels has its ends");
        let mut memory = Memory::new(bytes);
        // SAFETY: the block is ours, of the length given, aligned to 8, and outlives the context.
        let context = unsafe { ZSTD_initStaticCCtx(memory.start(), memory.bytes()) };
        let context = NonNull::new(context).expect("the library accepts the size it asked for");
        let mut encoder = Self { context, level: levels.0, levels, _memory: memory };
        encoder.set(C_FORMAT, Format::ZSTD_f_zstd1_magicless as i32);
        encoder.set(CParameter::ZSTD_c_contentSizeFlag, 0);
        encoder.set(CParameter::ZSTD_c_checksumFlag, 0);
        encoder.set(CParameter::ZSTD_c_dictIDFlag, 0);
        encoder.set(CParameter::ZSTD_c_compressionLevel, levels.0.get().into());
        encoder
    }

    fn set(&mut self, parameter: CParameter, value: i32) {
        // SAFETY: the context is initialised and nobody else uses it (`&mut self`).
        let code = unsafe { ZSTD_CCtx_setParameter(self.context.as_ptr(), parameter, value) };
        // SAFETY: a pure function of a number.
        assert_eq!(unsafe { ZSTD_isError(code) }, 0, "zstd refuses one of its own parameters");
    }

    /// Compresses `unit` into the front of `out` and returns how many bytes that took.
    pub fn compress(
        &mut self,
        level: ZstdLevel,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        assert!(self.levels.0 <= level && level <= self.levels.1, "no memory for that level");
        if level != self.level {
            self.set(CParameter::ZSTD_c_compressionLevel, level.get().into());
            self.level = level;
        }
        // SAFETY: the context is initialised and nobody else uses it; the library reads
        // `unit.len()` bytes and writes at most `out.len()`.
        let code = unsafe {
            ZSTD_compress2(
                self.context.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                unit.as_ptr().cast(),
                unit.len(),
            )
        };
        check(code).map_err(|error| {
            assert_eq!(error, ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall, "zstd broke");
            DoesNotFit
        })
    }
}

/// A decompression context inside a block of memory that it shares with nobody.
pub struct Decoder {
    context: NonNull<ZSTD_DCtx>,
    /// Holds `*context`; kept so that it lives as long.
    _memory: Memory,
}

// SAFETY: as for `Encoder`.
unsafe impl Send for Decoder {}

impl Decoder {
    pub fn new() -> Self {
        // SAFETY: a pure function; it returns a constant of the library.
        let mut memory = Memory::new(unsafe { ZSTD_estimateDCtxSize() });
        // SAFETY: the block is ours, of the length given, aligned to 8, and outlives the context.
        let context = unsafe { ZSTD_initStaticDCtx(memory.start(), memory.bytes()) };
        let context = NonNull::new(context).expect("the library accepts the size it asked for");
        let magicless = Format::ZSTD_f_zstd1_magicless as i32;
        // SAFETY: the context was initialised above and nobody else has it.
        let code = unsafe { ZSTD_DCtx_setParameter(context.as_ptr(), D_FORMAT, magicless) };
        // SAFETY: a pure function of a number.
        assert_eq!(unsafe { ZSTD_isError(code) }, 0, "zstd refuses its own frame format");
        Self { context, _memory: memory }
    }

    /// Decompresses the whole of `bytes` into the whole of `out`.
    pub fn decompress(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<(), Corrupt> {
        // SAFETY: the context is initialised and nobody else uses it; the library reads within
        // `bytes`, writes within `out`, and trusts neither content.
        let code = unsafe {
            ZSTD_decompressDCtx(
                self.context.as_ptr(),
                out.as_mut_ptr().cast(),
                out.len(),
                bytes.as_ptr().cast(),
                bytes.len(),
            )
        };
        if check(code) == Ok(out.len()) { Ok(()) } else { Err(Corrupt::Damaged) }
    }
}

/// A result of the library: a number of bytes, or an error hidden among the largest numbers.
fn check(code: usize) -> Result<usize, ZSTD_ErrorCode> {
    // SAFETY: pure functions of a number.
    unsafe { if ZSTD_isError(code) == 0 { Ok(code) } else { Err(ZSTD_getErrorCode(code)) } }
}

/// Bytes that a context needs to compress any unit at `level`. The library picks its parameters
/// by level and length; the length only in powers of two, so these are all the cases.
fn context_bytes(level: ZstdLevel) -> usize {
    (0..=MAX_UNIT.ilog2())
        .map(|log| {
            // SAFETY: pure functions of numbers.
            unsafe {
                ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level.get().into(), 1 << log, 0))
            }
        })
        .max()
        .expect("the range of lengths is not empty")
}
