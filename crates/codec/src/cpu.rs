//! What this processor has beyond plain x86-64.
#![allow(unsafe_code)] // Asks which registers the kernel keeps.

use core::sync::atomic::{AtomicU8, Ordering};

/// Vector registers that can be used, each kind with those before it, from [`UNKNOWN`] on.
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const AVX2: u8 = 2;
const AVX512: u8 = 3;

/// Whether there are shifts and bit counts that take one step (BMI1, BMI2 and LZCNT) and vectors of
/// 32 bytes (AVX2); every processor with one of them has all.
#[inline]
pub fn has_avx2() -> bool {
    known() >= AVX2
}

/// Whether such vectors can also be compared to masks (AVX-512 with its BW and VL).
#[inline]
pub fn has_avx512() -> bool {
    known() >= AVX512
}

/// What there is. Asked once: in a virtual machine the question itself takes longer than a page.
#[inline]
fn known() -> u8 {
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    let known = KNOWN.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known;
    }
    let has = asked();
    KNOWN.store(has, Ordering::Relaxed);
    has
}

#[cfg(target_arch = "x86_64")]
fn asked() -> u8 {
    use core::arch::x86_64::__cpuid_count;
    let (basic, extended) = (__cpuid_count(0, 0).eax, __cpuid_count(0x8000_0000, 0).eax);
    if basic < 7 || extended < 0x8000_0001 {
        return NONE;
    }
    let all = |word: u32, bits: &[u32]| bits.iter().all(|bit| word & 1 << bit != 0);
    // AVX, and the registers that the kernel keeps for a thread.
    if !all(__cpuid_count(1, 0).ecx, &[27, 28]) {
        return NONE;
    }
    // SAFETY: bit 27 says that there is the instruction.
    let kept = unsafe { saved() };
    let (seven, more) = (__cpuid_count(7, 0).ebx, __cpuid_count(0x8000_0001, 0).ecx);
    if kept & 0x06 != 0x06 || !all(seven, &[3, 5, 8]) || !all(more, &[5]) {
        return NONE;
    }
    // Masks and the longer registers are of the same kind.
    let masks = kept & 0xe6 == 0xe6 && all(seven, &[16, 30, 31]);
    if masks { AVX512 } else { AVX2 }
}

/// Which registers the kernel keeps for a thread.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "xsave")]
fn saved() -> u64 {
    // SAFETY: there is a register 0.
    unsafe { core::arch::x86_64::_xgetbv(0) }
}

#[cfg(not(target_arch = "x86_64"))]
fn asked() -> u8 {
    NONE
}
