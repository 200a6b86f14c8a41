//! The size classes of zsmalloc, by the rule of the series that makes the chain length a run-time
//! value: the reference that the pool is measured against.
//!
//! A zspage of a class is a chain of 1 to N pages cut into objects of one size. Each class takes
//! the chain that wastes the least percent at its end; the first such chain wins. Going from the
//! largest class down, a class whose zspages have as many pages and objects as those of the next
//! larger one is merged with it: its objects are stored as if they were of the larger size.
//!
//! For units above a page everything is scaled by the pages of the unit: the largest size, the step
//! between classes (a 256th of it) and the longest chain.

use alloc::vec::Vec;
use octavo_page::PAGE_SIZE;

use crate::ChainLength;

/// Bytes of the handle that zsmalloc keeps in front of each object.
pub const HANDLE_BYTES: usize = 8;
const MIN_SIZE: usize = 32;
const STEPS: usize = 256;

/// One size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// Bytes of an object, its handle included.
    pub size: usize,
    /// Pages in a zspage.
    pub pages: usize,
    /// Objects in a zspage.
    pub objects: usize,
}

impl Class {
    fn new(size: usize, longest: usize) -> Self {
        let shortest = size.div_ceil(PAGE_SIZE);
        let (mut pages, mut best) = (shortest, 0);
        for chain in shortest..=longest {
            let bytes = chain * PAGE_SIZE;
            let used = (bytes - bytes % size) * 100 / bytes;
            if used > best {
                (pages, best) = (chain, used);
            }
        }
        Self { size, pages, objects: pages * PAGE_SIZE / size }
    }

    /// Whether an object shares its pages with no other.
    #[must_use]
    pub const fn is_huge(&self) -> bool {
        self.objects == 1
    }
}

/// A class as the kernel's debugfs shows it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClassRow {
    /// Number of the class: of the series' classes, steps of size from the smallest.
    pub class: usize,
    /// Bytes of its largest object, with what stands before it.
    pub size: usize,
    /// Zspages at least three quarters full, but not full.
    pub almost_full: usize,
    /// Zspages less full, but not empty.
    pub almost_empty: usize,
    /// Objects that there is room for, as far as they are of one size.
    pub obj_allocated: usize,
    /// Objects there are.
    pub obj_used: usize,
    /// Pages of its zspages.
    pub pages_used: usize,
    /// Pages of one zspage.
    pub pages_per_zspage: usize,
    /// Pages that compaction would free.
    pub freeable: usize,
}

impl ClassRow {
    /// The columns behind the class, by zsmalloc's names.
    pub const COLUMNS: [&'static str; 8] = [
        "size",
        "almost_full",
        "almost_empty",
        "obj_allocated",
        "obj_used",
        "pages_used",
        "pages_per_zspage",
        "freeable",
    ];

    /// A number for each of [`Self::COLUMNS`].
    #[must_use]
    pub const fn numbers(&self) -> [usize; Self::COLUMNS.len()] {
        [
            self.size,
            self.almost_full,
            self.almost_empty,
            self.obj_allocated,
            self.obj_used,
            self.pages_used,
            self.pages_per_zspage,
            self.freeable,
        ]
    }

    /// Whether the number in a column is the same for all pools that have the class, rather than to be
    /// added up.
    #[must_use]
    pub fn is_of_class(column: &str) -> bool {
        matches!(column, "size" | "pages_per_zspage")
    }
}

/// The classes of one pool.
#[derive(Clone, Debug)]
pub struct ClassTable {
    /// Smallest first.
    classes: Vec<Class>,
    max_object: usize,
}

impl ClassTable {
    /// The classes for zspages of at most `chain` units and objects of at most `max_object` bytes,
    /// a whole number of pages.
    #[must_use]
    pub fn new(chain: ChainLength, max_object: usize) -> Self {
        assert!(max_object >= PAGE_SIZE && max_object.is_multiple_of(PAGE_SIZE), "whole pages");
        let longest = chain.get() * max_object / PAGE_SIZE;
        let step = max_object / STEPS;
        let mut classes: Vec<Class> = Vec::new();
        let sizes = (MIN_SIZE.div_ceil(step)..=STEPS).map(|n| n * step);
        for class in sizes.rev().map(|size| Class::new(size, longest)) {
            let like = |c: &Class| (c.pages, c.objects) == (class.pages, class.objects);
            if !classes.last().is_some_and(like) {
                classes.push(class);
            }
        }
        classes.reverse();
        Self { classes, max_object }
    }

    /// The classes, smallest first.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Bytes from one class to the next, before classes are merged.
    #[must_use]
    pub const fn step(&self) -> usize {
        self.max_object / STEPS
    }

    /// The class that an object of `len` bytes goes to. A huge one has its handle elsewhere, so
    /// that an object of the largest size fits.
    #[must_use]
    pub fn class_of(&self, len: usize) -> usize {
        assert!(len <= self.max_object, "the caller checked");
        let size = (len + HANDLE_BYTES).min(self.max_object);
        self.classes.partition_point(|class| class.size < size)
    }

    /// The largest size whose objects share pages with others, in bytes.
    #[must_use]
    pub fn huge_from(&self) -> usize {
        self.classes.iter().rev().find(|class| !class.is_huge()).map_or(0, |class| class.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(chain: usize) -> ClassTable {
        ClassTable::new(ChainLength::new(chain).expect("a chain length"), PAGE_SIZE)
    }

    #[test]
    fn the_published_counts_and_watermarks() {
        for (chain, classes, huge) in [(4, 69, 3264), (8, 123, 3632), (16, 191, 3840)] {
            let table = table(chain);
            assert_eq!(table.classes().len(), classes, "chain {chain}");
            assert_eq!(table.huge_from(), huge, "chain {chain}");
        }
    }

    #[test]
    fn the_published_rows_of_order_4() {
        let rows = [
            (3264, 4),
            (3328, 13),
            (3344, 9),
            (3360, 14),
            (3408, 5),
            (3424, 16),
            (3456, 11),
            (3504, 6),
            (3536, 13),
            (3584, 7),
            (3600, 15),
            (3632, 8),
            (3680, 9),
            (3712, 10),
            (3744, 11),
            (3776, 12),
            (3792, 13),
            (3808, 14),
            (3840, 15),
            (4096, 1),
        ];
        let table = table(16);
        let listed = table.classes().iter().filter(|c| c.size >= 3264).map(|c| (c.size, c.pages));
        assert_eq!(listed.collect::<Vec<_>>(), rows);
    }

    #[test]
    fn the_published_rows_of_order_3_and_2() {
        let listed = |chain: usize| {
            let table = table(chain);
            let rows = table.classes().iter().map(|c| (c.size, c.pages));
            rows.filter(|r| r.0 >= 3264).collect::<Vec<_>>()
        };
        assert_eq!(listed(4), [(3264, 4), (4096, 1)]);
        assert_eq!(listed(8), [(3264, 4), (3408, 5), (3504, 6), (3584, 7), (3632, 8), (4096, 1)]);
        let order_2 = [
            (1168, 2),
            (1216, 3),
            (1248, 4),
            (1360, 1),
            (1488, 4),
            (1536, 3),
            (1632, 2),
            (1744, 3),
            (1808, 4),
            (2048, 1),
        ];
        for (size, pages) in order_2 {
            assert!(
                table(4).classes().iter().any(|c| (c.size, c.pages) == (size, pages)),
                "{size} in {pages}"
            );
        }
    }

    #[test]
    fn the_example_of_1568_bytes() {
        assert_eq!(Class::new(1568, 5), Class { size: 1568, pages: 5, objects: 13 });
        let of = |chain| {
            let table = table(chain);
            table.classes()[table.class_of(1568 - HANDLE_BYTES)].size
        };
        assert_eq!((of(4), of(8)), (1632, 1568));
    }

    #[test]
    fn every_object_has_the_smallest_class_that_holds_it() {
        for (chain, unit) in [(1, 4096), (4, 4096), (16, 4096), (4, 16384), (16, 65536)] {
            let table = ClassTable::new(ChainLength::new(chain).expect("valid"), unit);
            for len in 1..=unit {
                let class = table.class_of(len);
                let size = table.classes()[class].size;
                assert!(size >= (len + HANDLE_BYTES).min(unit), "{len} of {unit}");
                assert!(class == 0 || table.classes()[class - 1].size < len + HANDLE_BYTES);
            }
        }
    }
}
