//! zsmalloc by the book, as the series has it: what the pool is measured against, plain on purpose.
//!
//! ```text
//!   Ref ──► place: class, zspage, slot, length
//!             class ──► zspages, the partly filled ones by tenths of fullness
//!                         zspage: a chain of pages, cut into slots of the class's size
//! ```
//!
//! An object goes to the fullest zspage of its class that is not full, fullness in steps of 10%;
//! compaction takes the objects of the emptiest zspages of a class to the fullest ones while that
//! frees a whole zspage. One owner, no locks. A kernel's pages stand scattered; a zspage is one
//! piece of memory here, which changes nothing that is counted.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use octavo_page::PAGE_SIZE;

use crate::classes::{Class, ClassRow, ClassTable, HANDLE_BYTES};
use crate::{AllocError, ChainLength};

/// Bytes of the word that names an object to its owner.
const SLOT_BYTES: usize = 8;
/// Bytes of the descriptor of a zspage.
const DESCRIPTOR_BYTES: usize = 64;
/// Steps of fullness.
const GROUPS: usize = 10;

/// Names an object in a [`Reference`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ref {
    object: u32,
    generation: u32,
}

/// The name is of no object: it was freed, or is of another pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadRef(pub Ref);

impl fmt::Display for BadRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ref { object, generation } = self.0;
        write!(f, "object {object}.{generation} is not there: freed before, or of another pool")
    }
}

impl core::error::Error for BadRef {}

/// A pool of the series.
pub struct Reference {
    table: ClassTable,
    max_object: usize,
    classes: Vec<ClassState>,
    objects: Vec<Place>,
    unused: Vec<u32>,
    compressed: usize,
}

/// Where an object is. An entry that is not used has a length of 0.
#[derive(Clone, Copy)]
struct Place {
    class: usize,
    zspage: usize,
    slot: usize,
    len: usize,
    generation: u32,
}

#[derive(Default)]
struct ClassState {
    zspages: Vec<Zspage>,
    /// Those that are neither full nor empty, by fullness group.
    partial: BTreeSet<(usize, usize)>,
    unused: Vec<usize>,
}

/// A chain of pages; without any while it is not used.
#[derive(Default)]
struct Zspage {
    memory: Vec<u8>,
    /// The objects, and the slot of each.
    objects: Vec<(u32, usize)>,
    free: Vec<usize>,
}

impl Reference {
    /// An empty pool with zspages of at most `chain` units of `max_object` bytes, whole pages.
    #[must_use]
    pub fn new(chain: ChainLength, max_object: usize) -> Self {
        let table = ClassTable::new(chain, max_object);
        let classes = table.classes().iter().map(|_| ClassState::default()).collect();
        let (objects, unused) = (Vec::new(), Vec::new());
        Self { table, max_object, classes, objects, unused, compressed: 0 }
    }

    /// Stores a copy of `bytes`.
    ///
    /// # Errors
    /// There are none, or more than the largest object has.
    pub fn store(&mut self, bytes: &[u8]) -> Result<Ref, AllocError> {
        match (bytes.len(), self.max_object) {
            (0, _) => return Err(AllocError::Zero),
            (len, max) if len > max => return Err(AllocError::TooLarge { len, max }),
            _ => {}
        }
        let class = self.table.class_of(bytes.len());
        let object = self.unused.pop().unwrap_or_else(|| {
            self.objects.push(Place { class: 0, zspage: 0, slot: 0, len: 0, generation: 0 });
            self.objects.len() as u32 - 1
        });
        let shape = self.table.classes()[class];
        let (zspage, slot) = self.classes[class].put(object, bytes, shape);
        let place = &mut self.objects[object as usize];
        *place = Place { class, zspage, slot, len: bytes.len(), ..*place };
        self.compressed += bytes.len();
        Ok(Ref { object, generation: place.generation })
    }

    /// The bytes of an object.
    ///
    /// # Errors
    /// The name is of no object.
    pub fn read(&self, name: Ref) -> Result<&[u8], BadRef> {
        let place = self.place(name)?;
        let from = self.table.classes()[place.class].bytes_before(place.slot);
        Ok(&self.classes[place.class].zspages[place.zspage].memory[from..][..place.len])
    }

    /// Frees an object; its bytes.
    ///
    /// # Errors
    /// The name is of no object.
    pub fn free(&mut self, name: Ref) -> Result<usize, BadRef> {
        let place = self.place(name)?;
        let shape = self.table.classes()[place.class];
        self.classes[place.class].take(name.object, place.zspage, shape);
        let entry = &mut self.objects[name.object as usize];
        (entry.len, entry.generation) = (0, entry.generation.wrapping_add(1));
        self.unused.push(name.object);
        self.compressed -= place.len;
        Ok(place.len)
    }

    fn place(&self, name: Ref) -> Result<Place, BadRef> {
        let place = self
            .objects
            .get(name.object as usize)
            .filter(|place| place.len > 0 && place.generation == name.generation);
        place.copied().ok_or(BadRef(name))
    }

    /// Compacts every class as far as it goes; the objects moved.
    pub fn compact(&mut self) -> usize {
        let mut moved = 0;
        for (state, &shape) in self.classes.iter_mut().zip(self.table.classes()) {
            while state.freeable(shape.objects) > 0 {
                let Some(&(_, from)) = state.partial.first() else { break };
                // Out of the way, so that no object comes back.
                let home = (group(state.zspages[from].objects.len(), shape.objects), from);
                state.partial.remove(&home);
                let emptied = core::mem::take(&mut state.zspages[from]);
                state.unused.push(from);
                for &(object, slot) in &emptied.objects {
                    let place = &mut self.objects[object as usize];
                    let bytes = &emptied.memory[shape.bytes_before(slot)..][..place.len];
                    (place.zspage, place.slot) = state.put(object, bytes, shape);
                }
                moved += emptied.objects.len();
            }
        }
        moved
    }

    /// Objects there are.
    #[must_use]
    pub const fn objects(&self) -> usize {
        self.objects.len() - self.unused.len()
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
        self.pages() * PAGE_SIZE + self.objects() * SLOT_BYTES + zspages * DESCRIPTOR_BYTES
    }

    /// The classes, smallest first.
    pub fn rows(&self) -> impl Iterator<Item = ClassRow> {
        let smallest = self.table.classes().first().map_or(0, |class| class.size);
        let step = self.table.step();
        self.classes.iter().zip(self.table.classes()).map(move |(state, class)| {
            let zspages = state.in_use();
            let used: usize = state.zspages.iter().map(|zspage| zspage.objects.len()).sum();
            let nearly = |zspage: &&(usize, usize)| {
                4 * state.zspages[zspage.1].objects.len() >= 3 * class.objects
            };
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

impl Class {
    /// Bytes of a zspage before the object in `slot`. What is huge has its handle elsewhere.
    const fn bytes_before(&self, slot: usize) -> usize {
        if self.is_huge() { 0 } else { slot * self.size + HANDLE_BYTES }
    }
}

impl ClassState {
    fn in_use(&self) -> usize {
        self.zspages.len() - self.unused.len()
    }

    /// Zspages that the objects would not need.
    fn freeable(&self, per_zspage: usize) -> usize {
        let held = |&(_, zspage): &(usize, usize)| self.zspages[zspage].objects.len();
        let used: usize = self.partial.iter().map(held).sum();
        self.partial.len() - used.div_ceil(per_zspage)
    }

    /// Puts an object into the fullest zspage, else a new one; its zspage and slot.
    fn put(&mut self, object: u32, bytes: &[u8], shape: Class) -> (usize, usize) {
        let at = match self.partial.pop_last() {
            Some((_, zspage)) => zspage,
            None => {
                let at = self.unused.pop().unwrap_or(self.zspages.len());
                if at == self.zspages.len() {
                    self.zspages.push(Zspage::default());
                }
                self.zspages[at] = Zspage::new(shape);
                at
            }
        };
        let slot = self.zspages[at].put(object, bytes, shape);
        self.file(at, shape);
        (at, slot)
    }

    fn take(&mut self, object: u32, at: usize, shape: Class) {
        let zspage = &mut self.zspages[at];
        self.partial.remove(&(group(zspage.objects.len(), shape.objects), at));
        let held = zspage.objects.iter().position(|&(o, _)| o == object);
        let (_, slot) = zspage.objects.swap_remove(held.expect("an object is in its zspage"));
        zspage.free.push(slot);
        if zspage.objects.is_empty() {
            self.zspages[at] = Zspage::default();
            self.unused.push(at);
        }
        self.file(at, shape);
    }

    /// Notes how full a zspage is.
    fn file(&mut self, at: usize, shape: Class) {
        let held = self.zspages[at].objects.len();
        if (1..shape.objects).contains(&held) {
            self.partial.insert((group(held, shape.objects), at));
        }
    }
}

impl Zspage {
    fn new(shape: Class) -> Self {
        let memory = vec![0; shape.pages * PAGE_SIZE];
        Self { memory, objects: Vec::new(), free: (0..shape.objects).rev().collect() }
    }

    fn put(&mut self, object: u32, bytes: &[u8], shape: Class) -> usize {
        let slot = self.free.pop().expect("a zspage that is not full");
        self.memory[shape.bytes_before(slot)..][..bytes.len()].copy_from_slice(bytes);
        self.objects.push((object, slot));
        slot
    }
}

fn group(held: usize, per_zspage: usize) -> usize {
    held * GROUPS / per_zspage
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(chain: usize, unit: usize) -> Reference {
        Reference::new(ChainLength::new(chain).expect("valid"), unit)
    }

    #[test]
    fn objects_of_1568_bytes_take_5_pages_or_6() {
        for (chain, pages) in [(4, 6), (8, 5)] {
            let mut pool = pool(chain, PAGE_SIZE);
            for _ in 0..13 {
                pool.store(&[1; 1568 - HANDLE_BYTES]).expect("a size");
            }
            assert_eq!(pool.pages(), pages, "chain {chain}");
        }
    }

    #[test]
    fn what_cannot_be_stored_is_refused() {
        let mut pool = pool(4, PAGE_SIZE);
        assert_eq!(pool.store(&[]), Err(AllocError::Zero));
        let error = AllocError::TooLarge { len: 4097, max: 4096 };
        assert_eq!(pool.store(&[0; 4097]), Err(error));
    }

    proptest! {
        /// Against a list of names and bytes.
        #[test]
        fn what_is_stored_is_read(
            chain in 1..=16_usize,
            pages in prop::sample::select(vec![1_usize, 4, 16]),
            ops in prop::collection::vec((0..8_u8, any::<usize>()), 0..300),
        ) {
            let mut pool = pool(chain, pages * PAGE_SIZE);
            let (mut live, mut stale): (Vec<(Ref, Vec<u8>)>, Vec<Ref>) = Default::default();
            for (op, n) in ops {
                match op {
                    0..=4 => {
                        let bytes = vec![n as u8; 1 + n % (pages * PAGE_SIZE)];
                        live.push((pool.store(&bytes).expect("a size"), bytes));
                    }
                    5 | 6 if !live.is_empty() => {
                        let (name, bytes) = live.swap_remove(n % live.len());
                        prop_assert_eq!(pool.free(name), Ok(bytes.len()));
                        stale.push(name);
                    }
                    7 => {
                        let (before, used) = (pool.pages(), pool.used_bytes());
                        let freeable: usize = pool.rows().map(|row| row.freeable).sum();
                        pool.compact();
                        prop_assert_eq!(pool.pages(), before - freeable);
                        prop_assert!(pool.used_bytes() <= used);
                        prop_assert!(pool.rows().all(|row| row.freeable == 0));
                    }
                    _ => {}
                }
            }
            for (name, bytes) in &live {
                prop_assert_eq!(pool.read(*name), Ok(&bytes[..]));
            }
            for name in stale {
                prop_assert_eq!(pool.read(name), Err(BadRef(name)));
                prop_assert_eq!(pool.free(name), Err(BadRef(name)));
            }
            prop_assert_eq!(pool.objects(), live.len());
            prop_assert_eq!(pool.rows().map(|row| row.obj_used).sum::<usize>(), live.len());
            let bytes: usize = live.iter().map(|(_, bytes)| bytes.len()).sum();
            prop_assert_eq!(pool.compressed_bytes(), bytes);
            for (name, _) in live {
                pool.free(name).expect("live");
            }
            prop_assert_eq!(pool.used_bytes(), 0);
        }
    }
}
