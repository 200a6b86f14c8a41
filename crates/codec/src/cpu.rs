//! What this processor has beyond plain x86-64.
#![allow(unsafe_code)] // Asks which registers the kernel keeps.

use core::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// Whether there are shifts and bit counts that take one step (BMI1, BMI2 and LZCNT) and vectors of
/// 32 bytes (AVX2); every processor with one of them has all. Asked once: in a virtual machine the
/// question itself takes longer than a page.
#[inline]
pub fn has_avx2() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    let known = KNOWN.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known == YES;
    }
    let has = asked();
    KNOWN.store(if has { YES } else { NO }, Ordering::Relaxed);
    has
}

#[cfg(target_arch = "x86_64")]
fn asked() -> bool {
    use core::arch::x86_64::__cpuid_count;
    let (basic, extended) = (__cpuid_count(0, 0).eax, __cpuid_count(0x8000_0000, 0).eax);
    if basic < 7 || extended < 0x8000_0001 {
        return false;
    }
    let all = |word: u32, bits: &[u32]| bits.iter().all(|bit| word & 1 << bit != 0);
    // AVX, and a kernel that keeps its registers.
    let vectors = all(__cpuid_count(1, 0).ecx, &[27, 28]) && {
        // SAFETY: bit 27 says that there is the instruction.
        unsafe { saved() & 6 == 6 }
    };
    let (seven, more) = (__cpuid_count(7, 0).ebx, __cpuid_count(0x8000_0001, 0).ecx);
    vectors && all(seven, &[3, 5, 8]) && all(more, &[5])
}

/// Which registers the kernel keeps for a thread.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "xsave")]
fn saved() -> u64 {
    // SAFETY: there is a register 0.
    unsafe { core::arch::x86_64::_xgetbv(0) }
}

#[cfg(not(target_arch = "x86_64"))]
fn asked() -> bool {
    false
}
