//! What this processor has beyond plain x86-64.

use core::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// Whether there are shifts and bit counts that take one step (BMI1, BMI2 and LZCNT). Asked once:
/// in a virtual machine the question itself takes longer than a page.
#[inline]
pub fn has_bmi2() -> bool {
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
    let (seven, more) = (__cpuid_count(7, 0).ebx, __cpuid_count(0x8000_0001, 0).ecx);
    seven & 1 << 3 != 0 && seven & 1 << 8 != 0 && more & 1 << 5 != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn asked() -> bool {
    false
}
