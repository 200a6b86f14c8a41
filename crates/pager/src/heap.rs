//! glibc's heap, which grows in small steps that nobody announces.
//!
//! ```text
//!   registered ─────────────────────────│ one step, 132 KiB: touched before the watch has seen it
//!   registered ─────────────────────────│ one step, 4 MiB: registered before most is touched     │
//! ```
//! A thread that touches fresh registered memory waits for room; in a step that is small it has touched all of
//! it before the watch looks, and passes the limit by what it fills until evictors get a processor. So once
//! memory is registered, the heap grows in larger steps. They take address space, not memory.
//!
//! That is `M_TOP_PAD` of `mallopt(3)`, which would also end the adjustment of `M_MMAP_THRESHOLD`, and with
//! it the reuse of large blocks; so the variable behind it is set instead.

use core::sync::atomic::{AtomicUsize, Ordering};
use octavo_page::ByteSize;
use octavo_sys::task::{self, RLIMIT_AS, RLIMIT_DATA};

/// What is asked of the kernel beyond what malloc needs.
const STEP: ByteSize = ByteSize::mib(4);

/// 128 KiB: what glibc begins with.
const INITIAL: usize = 0x2_0000;

/// What lies side by side in glibc 2.26 and later (`struct malloc_par`) unless the user or the program set
/// any of it: trim threshold, top pad, mmap threshold, arenas to begin with on 64 bits.
const SIGNATURE: [usize; 4] = [INITIAL, INITIAL, INITIAL, 8];

/// The place of the top pad among those.
const TOP_PAD: usize = 1;

/// By how much the heap grows, where that is known.
#[derive(Debug, Clone, Copy)]
pub struct HeapStep(Option<&'static AtomicUsize>);

impl HeapStep {
    /// Finds it in the initialised `data` of libc: nowhere, if another libc, another release or a setting of the user's
    /// has it otherwise.
    #[must_use]
    pub fn find(data: &'static [AtomicUsize]) -> Self {
        let is_there = |words: &&[AtomicUsize]| {
            words.iter().map(|word| word.load(Ordering::Relaxed)).eq(SIGNATURE)
        };
        let mut found = data.windows(SIGNATURE.len()).filter(is_there);
        match (found.next(), found.next()) {
            (Some(words), None) => Self(words.get(TOP_PAD)),
            _ => Self(None),
        }
    }

    /// Has the heap grow in larger steps, unless the program chose other ones, or may not have all the address
    /// space that it wants.
    pub(crate) fn widen(self) {
        let is_free = |resource| task::limit(resource).is_ok_and(|limit| limit.soft == u64::MAX);
        if let Some(pad) = self.0
            && [RLIMIT_DATA, RLIMIT_AS].into_iter().all(is_free)
        {
            let step = STEP.bytes() as usize;
            let _ = pad.compare_exchange(INITIAL, step, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[usize]) -> Option<usize> {
        let words: Vec<AtomicUsize> = words.iter().copied().map(AtomicUsize::new).collect();
        let words: &'static [AtomicUsize] = words.leak();
        let HeapStep(found) = HeapStep::find(words);
        found.and_then(|found| words.iter().position(|word| core::ptr::eq(word, found)))
    }

    #[test]
    fn it_is_found_once_or_not_at_all() {
        let [trim, pad, mmap, arenas] = SIGNATURE;
        assert_eq!(found(&[1, trim, pad, mmap, arenas, 0]), Some(2));
        assert_eq!(found(&[trim, pad, mmap, arenas, trim, pad, mmap, arenas]), None);
        assert_eq!(found(&[trim, 2 * pad, mmap, arenas]), None);
        assert_eq!(found(&[trim, pad]), None);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn what_the_program_chose_stays() {
        for (before, after) in [(INITIAL, 4 << 20), (0, 0), (64 << 20, 64 << 20)] {
            let pad = Box::leak(Box::new(AtomicUsize::new(before)));
            HeapStep(Some(pad)).widen();
            assert_eq!(pad.load(Ordering::Relaxed), after);
        }
    }
}
