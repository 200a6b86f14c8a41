//! zsmalloc by the book, as a count: which zspage each object would lie in, and no bytes.
//!
//! What the pool is measured against, and plain on purpose. An object goes to the fullest zspage of
//! its class that is not full, fullness in steps of 10%; compaction takes the objects of the
//! emptiest zspages of a class to the fullest ones while that frees a whole zspage.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use octavo_page::PAGE_SIZE;

use crate::ChainLength;
use crate::classes::{ClassRow, ClassTable};

/// Bytes of the word that names an object to its owner.
const SLOT_BYTES: usize = 8;
/// Bytes of the descriptor of a zspage.
const DESCRIPTOR_BYTES: usize = 64;
/// Steps of fullness.
const GROUPS: usize = 10;

/// Names an object in a [`Reference`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ref(usize);

/// A pool of the series, counted.
pub struct Reference {
    table: ClassTable,
    classes: Vec<ClassState>,
    objects: Vec<Place>,
    unused: Vec<usize>,
    compressed: usize,
}

#[derive(Clone, Copy)]
struct Place {
    class: usize,
    zspage: usize,
    len: usize,
}

#[derive(Default)]
struct ClassState {
    /// The objects in each zspage.
    zspages: Vec<Vec<usize>>,
    /// Those that are neither full nor empty, by fullness group.
    partial: BTreeSet<(usize, usize)>,
    unused: Vec<usize>,
}

impl Reference {
    /// An empty pool with zspages of at most `chain` units of `max_object` bytes, whole pages.
    #[must_use]
    pub fn new(chain: ChainLength, max_object: usize) -> Self {
        let table = ClassTable::new(chain, max_object);
        let classes = table.classes().iter().map(|_| ClassState::default()).collect();
        Self { table, classes, objects: Vec::new(), unused: Vec::new(), compressed: 0 }
    }

    /// Stores an object of `len` bytes, 1 to the largest.
    pub fn store(&mut self, len: usize) -> Ref {
        let class = self.table.class_of(len);
        let object = self.unused.pop().unwrap_or_else(|| {
            self.objects.push(Place { class: 0, zspage: 0, len: 0 });
            self.objects.len() - 1
        });
        let per_zspage = self.table.classes()[class].objects;
        let zspage = self.classes[class].put(object, per_zspage);
        self.objects[object] = Place { class, zspage, len };
        self.compressed += len;
        Ref(object)
    }

    /// Frees an object.
    ///
    /// # Panics
    /// It was freed before.
    pub fn free(&mut self, object: Ref) {
        let place = self.objects[object.0];
        let per_zspage = self.table.classes()[place.class].objects;
        self.classes[place.class].take(object.0, place.zspage, per_zspage);
        self.unused.push(object.0);
        self.compressed -= place.len;
    }

    /// Compacts every class as far as it goes; the objects moved.
    pub fn compact(&mut self) -> usize {
        let mut moved = 0;
        for (state, class) in self.classes.iter_mut().zip(self.table.classes()) {
            while state.freeable(class.objects) > 0 {
                let Some(&(_, from)) = state.partial.first() else { break };
                while let Some(&object) = state.zspages[from].last() {
                    state.take(object, from, class.objects);
                    // Out of the way, so that the object does not come back.
                    let home = (group(state.zspages[from].len(), class.objects), from);
                    let held = state.partial.remove(&home);
                    self.objects[object].zspage = state.put(object, class.objects);
                    if held {
                        state.partial.insert(home);
                    }
                    moved += 1;
                }
            }
        }
        moved
    }

    /// Bytes of the objects.
    #[must_use]
    pub const fn compressed_bytes(&self) -> usize {
        self.compressed
    }

    /// Pages of all zspages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.rows().map(|row| row.pages_used).sum()
    }

    /// Bytes used: pages, slots, descriptors.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let zspages: usize = self.classes.iter().map(ClassState::in_use).sum();
        let objects = self.objects.len() - self.unused.len();
        self.pages() * PAGE_SIZE + objects * SLOT_BYTES + zspages * DESCRIPTOR_BYTES
    }

    /// The classes, smallest first.
    pub fn rows(&self) -> impl Iterator<Item = ClassRow> {
        let smallest = self.table.classes().first().map_or(0, |class| class.size);
        let step = self.table.step();
        self.classes.iter().zip(self.table.classes()).map(move |(state, class)| {
            let zspages = state.in_use();
            let used: usize = state.zspages.iter().map(Vec::len).sum();
            let nearly =
                |zspage: &&(usize, usize)| 4 * state.zspages[zspage.1].len() >= 3 * class.objects;
            let almost_full = state.partial.iter().filter(nearly).count();
            ClassRow {
                class: (class.size - smallest) / step,
                size: class.size,
                almost_full,
                almost_empty: state.partial.len() - almost_full,
                obj_allocated: zspages * class.objects,
                obj_used: used,
                pages_used: zspages * class.pages,
                pages_per_zspage: class.pages,
                freeable: state.freeable(class.objects) * class.pages,
            }
        })
    }
}

impl ClassState {
    fn in_use(&self) -> usize {
        self.zspages.len() - self.unused.len()
    }

    /// Zspages that the objects would not need.
    fn freeable(&self, per_zspage: usize) -> usize {
        let used: usize = self.partial.iter().map(|&(_, zspage)| self.zspages[zspage].len()).sum();
        self.partial.len() - used.div_ceil(per_zspage)
    }

    fn put(&mut self, object: usize, per_zspage: usize) -> usize {
        let zspage = match self.partial.pop_last() {
            Some((_, zspage)) => zspage,
            None => self.unused.pop().unwrap_or_else(|| {
                self.zspages.push(Vec::new());
                self.zspages.len() - 1
            }),
        };
        self.zspages[zspage].push(object);
        self.file(zspage, per_zspage);
        zspage
    }

    fn take(&mut self, object: usize, zspage: usize, per_zspage: usize) {
        let held = self.zspages[zspage].len();
        let at = self.zspages[zspage].iter().position(|&o| o == object).expect("freed once");
        self.partial.remove(&(group(held, per_zspage), zspage));
        self.zspages[zspage].swap_remove(at);
        self.file(zspage, per_zspage);
    }

    fn file(&mut self, zspage: usize, per_zspage: usize) {
        match self.zspages[zspage].len() {
            0 => self.unused.push(zspage),
            held if held < per_zspage => {
                self.partial.insert((group(held, per_zspage), zspage));
            }
            _ => {}
        }
    }
}

fn group(held: usize, per_zspage: usize) -> usize {
    held * GROUPS / per_zspage
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn objects_of_1568_bytes_take_5_pages_or_6() {
        for (chain, pages) in [(4, 6), (8, 5)] {
            let mut pool = Reference::new(ChainLength::new(chain).expect("valid"), PAGE_SIZE);
            for _ in 0..13 {
                pool.store(1568 - crate::classes::HANDLE_BYTES);
            }
            assert_eq!(pool.pages(), pages, "chain {chain}");
        }
    }

    proptest! {
        #[test]
        fn compaction_leaves_one_partial_zspage_a_class_at_most(
            chain in 1..=16_usize,
            lens in prop::collection::vec(1..=4096_usize, 1..300),
            keep in 1..5_usize,
        ) {
            let mut pool = Reference::new(ChainLength::new(chain).expect("valid"), PAGE_SIZE);
            let refs: Vec<_> = lens.iter().map(|&len| pool.store(len)).collect();
            for (n, object) in refs.iter().enumerate() {
                if n % keep != 0 {
                    pool.free(*object);
                }
            }
            let freeable: usize = pool.rows().map(|row| row.freeable).sum();
            let before = pool.pages();
            pool.compact();
            prop_assert_eq!(pool.pages(), before - freeable);
            for (state, class) in pool.classes.iter().zip(pool.table.classes()) {
                prop_assert_eq!(state.freeable(class.objects), 0);
            }
            for row in pool.rows() {
                prop_assert!(row.obj_allocated - row.obj_used < row.obj_allocated.max(1));
                prop_assert_eq!(row.freeable, 0);
            }
        }
    }
}
