//! The ranges that are registered, in order, merged where they touch.
//!
//! Only what stands here is ever evicted, since only a fault in a registered range reaches us. The
//! list changes under the gate (see [`crate::gate`]) when the program unmaps or moves a range, and
//! when the watch registers one. Its length is bounded: what does not fit is not managed.

use alloc::vec::Vec;
use core::ops::Range;

/// A range of addresses, in bytes.
pub type Span = Range<usize>;

/// Ranges in order of address, neither empty nor touching.
#[derive(Debug)]
pub struct Regions {
    spans: Vec<Span>,
}

impl Regions {
    /// An empty list with room for `max` ranges; it never grows past them.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { spans: Vec::with_capacity(max) }
    }

    /// Adds `span`; false when the list is full and nothing was added.
    #[must_use]
    pub fn add(&mut self, span: Span) -> bool {
        let first = self.spans.partition_point(|s| s.end < span.start);
        let last = self.spans.partition_point(|s| s.start <= span.end);
        if first == last {
            if self.spans.len() == self.spans.capacity() {
                return false;
            }
            self.spans.insert(first, span);
            return true;
        }
        let start = span.start.min(self.spans[first].start);
        let end = span.end.max(self.spans[last - 1].end);
        self.spans[first] = start..end;
        self.spans.drain(first + 1..last);
        true
    }

    /// Takes `span` out of whatever ranges it cuts. When cutting a range in two would pass the
    /// bound, the upper part is forgotten: it stays registered, but is evicted no more.
    pub fn remove(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        let first = self.spans.partition_point(|s| s.end <= span.start);
        let last = self.spans.partition_point(|s| s.start < span.end);
        if first >= last {
            return;
        }
        let below = self.spans[first].start..span.start;
        let above = span.end..self.spans[last - 1].end;
        self.spans.drain(first..last);
        let mut at = first;
        for part in [below, above] {
            if !part.is_empty() && self.spans.len() < self.spans.capacity() {
                self.spans.insert(at, part);
                at += 1;
            }
        }
    }

    /// The first range, cut to what lies at or behind `address`.
    #[must_use]
    pub fn at_or_after(&self, address: usize) -> Option<Span> {
        let first = self.spans.partition_point(|s| s.end <= address);
        self.spans.get(first).map(|s| s.start.max(address)..s.end)
    }

    /// What is in the list of the `len` bytes from `address` on, up to the first that is not.
    #[must_use]
    pub fn run_from(&self, address: usize, len: usize) -> Span {
        let range = self.at_or_after(address).filter(|range| range.start == address);
        range.map_or(address..address, |range| address..range.end.min(address + len))
    }

    /// Whether the whole of `span` is in the list.
    #[must_use]
    pub fn covers(&self, span: &Span) -> bool {
        self.at_or_after(span.start).is_some_and(|s| s.start == span.start && s.end >= span.end)
    }

    /// Whether any of `span` is in the list.
    #[must_use]
    pub fn overlaps(&self, span: &Span) -> bool {
        self.at_or_after(span.start).is_some_and(|s| s.start < span.end)
    }

    /// Bytes in all ranges together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.spans.iter().map(ExactSizeIterator::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The twin: one flag for each address.
    struct Flags([bool; 64]);

    impl Flags {
        fn spans(&self) -> Vec<Span> {
            let mut spans: Vec<Span> = Vec::new();
            for at in (0..64).filter(|at| self.0[*at]) {
                match spans.last_mut() {
                    Some(s) if s.end == at => s.end += 1,
                    _ => spans.push(at..at + 1),
                }
            }
            spans
        }
    }

    proptest! {
        #[test]
        fn the_list_holds_what_flags_would(
            steps in proptest::collection::vec((any::<bool>(), 0usize..64, 1usize..20), 1..60)
        ) {
            let (mut regions, mut flags) = (Regions::new(64), Flags([false; 64]));
            for (add, start, len) in steps {
                let span = start..(start + len).min(64);
                flags.0[span.clone()].fill(add);
                if add {
                    prop_assert!(regions.add(span));
                } else {
                    regions.remove(span);
                }
                prop_assert_eq!(&regions.spans, &flags.spans());
            }
            for at in 0..64 {
                prop_assert_eq!(regions.covers(&(at..at + 1)), flags.0[at]);
                let end = (at + 5).min(64);
                prop_assert_eq!(regions.overlaps(&(at..end)), flags.0[at..end].contains(&true));
                let run = flags.0[at..end].iter().take_while(|there| **there).count();
                prop_assert_eq!(regions.run_from(at, 5), at..at + run);
            }
        }
    }

    #[test]
    fn a_full_list_refuses_and_forgets_rather_than_grow() {
        let mut regions = Regions::new(2);
        assert!(regions.add(0..10) && regions.add(20..30));
        assert!(!regions.add(40..50));
        assert!(regions.add(30..35));
        regions.remove(3..5);
        assert_eq!(regions.spans, [0..3, 20..35]);
    }
}
