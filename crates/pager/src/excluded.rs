//! What is of the kind that can be managed, and never is: the pager would wait for itself.
//!
//! ```text
//!   libc.so  text │ data │ zeroed data │ memory of the program │
//!            excluded ────────────────►
//!                        one mapping: ─────────────────────────►   theirs ──────►
//! ```
//! The kernel joins what a program maps right behind the zeroed data of an object with these, so it is not enough
//! to leave out whole mappings.

use crate::regions::Span;
use octavo_sys::maps::Mapping;
use octavo_sys::memory;

/// See the module.
#[derive(Debug, Clone)]
pub struct Excluded {
    /// Objects whose data the pager itself uses, to the end of their zeroed data; whole pages.
    pub objects: [Span; 2],
    /// An address in the main thread's stack.
    pub stack: usize,
}

impl Excluded {
    /// What of `mapping` is the program's and can be managed.
    pub(crate) fn theirs(&self, mapping: &Mapping) -> Option<Span> {
        let Span { start, end } = mapping.span;
        let object = self.objects.iter().find(|object| object.contains(&start));
        let theirs = object.map_or(start, |object| object.end)..end;
        let apart = |object: &Span| object.end <= theirs.start || theirs.end <= object.start;
        let can_be = mapping.manageable
            && !memory::is_ours(theirs.start)
            && !theirs.contains(&self.stack)
            && self.objects.iter().all(apart);
        (can_be && !theirs.is_empty()).then_some(theirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_zeroed_data_is_theirs() {
        let excluded =
            Excluded { objects: [0x10_000..0x20_000, 0x40_000..0x48_000], stack: 0x90_800 };
        let theirs = |span, manageable| excluded.theirs(&Mapping { span, manageable });
        assert_eq!(theirs(0x1c_000..0x28_000, true), Some(0x20_000..0x28_000));
        assert_eq!(theirs(0x20_000..0x28_000, true), Some(0x20_000..0x28_000));
        assert_eq!(theirs(0x47_000..0x49_000, true), Some(0x48_000..0x49_000));
        assert_eq!(theirs(0x1c_000..0x20_000, true), None); // the zeroed data alone
        assert_eq!(theirs(0x1c_000..0x44_000, true), None); // and another object's
        assert_eq!(theirs(0x3c_000..0x44_000, true), None);
        assert_eq!(theirs(0x90_000..0x91_000, true), None);
        assert_eq!(theirs(0x91_000..0x92_000, true), Some(0x91_000..0x92_000));
        assert_eq!(theirs(0x91_000..0x92_000, false), None);
    }
}
