//! What the tests of the store share, the fuzz targets too: an arena that trusts nobody, can run dry
//! and be damaged, and pages as programs have them.
#![allow(unsafe_code)] // The arena is raw memory.
#![allow(dead_code)] // Not every test uses all of it.

use octavo_codec::Codec;
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_pool::{Arena, OutOfFrames, RUNS};
use octavo_store::{Config, How, PutError, Scratch, Store};
use std::alloc::Layout;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

/// Memory for a pool. Clones are the same memory.
#[derive(Clone)]
pub struct TestArena(Arc<Memory>);

struct Memory {
    /// What was allocated; the arena begins at the first whole page of it.
    start: NonNull<u8>,
    /// Whether each page is committed.
    backed: Box<[AtomicBool]>,
    frames_left: AtomicIsize,
    /// Frames that were asked for in vain.
    refused: AtomicUsize,
    committed_end: AtomicUsize,
}

// SAFETY: the memory is plain bytes; who may touch which of them is the pool's affair.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// A page more, and aligned to a word: asked for whole pages, the allocator would write all of
    /// the zeros.
    fn layout(pages: usize) -> Layout {
        Layout::from_size_align((pages + 1) * PAGE_SIZE, align_of::<u64>()).expect("a size")
    }

    fn base(&self) -> NonNull<u8> {
        // SAFETY: less than a page on, and there is a page more than the arena has.
        unsafe { self.start.add(self.start.align_offset(PAGE_SIZE)) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `TestArena::new` with this layout, dropped once.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), Self::layout(self.backed.len())) }
    }
}

impl TestArena {
    pub fn new(pages: usize) -> Self {
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(Memory::layout(pages)) };
        let start = NonNull::new(start).expect("memory for a test");
        let frames_left = AtomicIsize::new(pages as isize);
        let backed = (0..pages).map(|_| AtomicBool::new(false)).collect();
        let (refused, committed_end) = Default::default();
        Self(Arc::new(Memory { start, backed, frames_left, refused, committed_end }))
    }

    /// From now on this many more frames can be had.
    pub fn set_frames_left(&self, frames: usize) {
        self.0.frames_left.store(frames as isize, Ordering::Relaxed);
    }

    /// How often no frame was to be had.
    pub fn refused(&self) -> usize {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Flips one bit, while no thread uses the arena.
    pub fn flip(&self, byte: usize, bit: u32) {
        assert!(byte < self.pages() * PAGE_SIZE);
        // SAFETY: inside the arena; the test runs alone.
        unsafe { *self.0.base().as_ptr().add(byte) ^= 1 << (bit % 8) }
    }

    /// Pages that are committed now.
    pub fn committed(&self) -> usize {
        self.0.backed.iter().filter(|page| page.load(Ordering::Relaxed)).count()
    }

    /// Bytes up to the end of the last page that was ever committed.
    pub fn committed_bytes(&self) -> usize {
        self.0.committed_end.load(Ordering::Relaxed) * PAGE_SIZE
    }
}

// SAFETY: page aligned, of the stated size, alive as long as any clone is, used by one pool.
unsafe impl Arena for TestArena {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn pages(&self) -> usize {
        self.0.backed.len()
    }

    fn commit(&self, first: usize, pages: usize) -> Result<(), OutOfFrames> {
        assert!(pages > 0);
        let run = &self.0.backed[first..first + pages];
        let before = self.0.frames_left.fetch_sub(pages as isize, Ordering::Relaxed);
        if before < pages as isize {
            self.0.frames_left.fetch_add(pages as isize, Ordering::Relaxed);
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return Err(OutOfFrames);
        }
        for page in run {
            assert!(!page.swap(true, Ordering::Relaxed), "committed twice");
        }
        self.0.committed_end.fetch_max(first + pages, Ordering::Relaxed);
        Ok(())
    }

    fn decommit(&self, runs: &[Range<u32>]) {
        assert!((1..=RUNS).contains(&runs.len()));
        for run in runs {
            assert!(!run.is_empty());
            for page in &self.0.backed[run.start as usize..run.end as usize] {
                assert!(page.swap(false, Ordering::Relaxed), "decommitted twice");
            }
            // SAFETY: in the arena, and the pool does not touch it now. What reads it all the same
            // shall find rubbish.
            unsafe {
                let start = self.0.base().add(run.start as usize * PAGE_SIZE);
                start.write_bytes(0xdd, run.len() * PAGE_SIZE);
            }
            self.0.frames_left.fetch_add(run.len() as isize, Ordering::Relaxed);
        }
    }
}

/// The codecs that tests use.
pub fn codecs() -> [Codec; 3] {
    ["lz4", "zstd:-1", "zstd:1"].map(|name| name.parse().expect("a codec"))
}

pub fn scratch() -> Scratch {
    Scratch::new(&codecs())
}

/// A store of `pages` slots and as many frames, with address space and handles to spare.
pub fn store(pages: usize) -> (Store<TestArena>, TestArena) {
    let arena = TestArena::new(4 * pages);
    arena.set_frames_left(pages);
    let pool = octavo_pool::Config {
        chain: octavo_pool::ChainLength::new(8).expect("a length"),
        max_object: Unit::MAX.bytes(),
        max_objects: 2 * pages,
    };
    let config = Config { capacity_pages: pages, pool, cpus: 2, seed: 1 };
    (Store::new(arena.clone(), config).expect("a valid size"), arena)
}

/// A generator of numbers, the same for the same seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }
}

/// A page of one of the kinds that programs have, different for each seed.
pub fn page(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut page = vec![0; PAGE_SIZE];
    match seed % 8 {
        0 => {}
        1 => page.as_chunks_mut::<8>().0.fill((random.next() >> 8).to_ne_bytes()),
        2 => random_bytes(&mut page, &mut random),
        3..=4 => words(&mut page, &mut random),
        _ => pointers(&mut page, &mut random),
    }
    page
}

fn random_bytes(page: &mut [u8], random: &mut Random) {
    page.as_chunks_mut::<8>().0.iter_mut().for_each(|w| *w = random.next().to_ne_bytes());
}

fn words(page: &mut [u8], random: &mut Random) {
    const WORDS: [&[u8]; 6] = [b"the ", b"page ", b"of ", b"memory, ", b"cold ", b"kept.\n"];
    let mut at = 0;
    while at < page.len() {
        let word = WORDS[random.below(WORDS.len())];
        let len = word.len().min(page.len() - at);
        page[at..at + len].copy_from_slice(&word[..len]);
        at += len;
    }
}

fn pointers(page: &mut [u8], random: &mut Random) {
    for word in page.as_chunks_mut::<8>().0 {
        let dice = random.next();
        let value = match dice % 3 {
            0 => 0x7f12_3456_0000 + (dice >> 50),
            1 => dice >> 60,
            _ => 0,
        };
        *word = value.to_ne_bytes();
    }
}

/// `pages` pages, each of its own kind; without incompressible ones when `fits`.
pub fn folio(seed: u64, pages: usize, fits: bool) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..pages)
        .flat_map(|_| {
            let mut seed = random.next() >> 8;
            while fits && seed % 8 == 2 {
                seed = random.next() >> 8;
            }
            page(seed)
        })
        .collect()
}

/// Puts one folio.
pub fn put_one<A: Arena>(
    store: &Store<A>,
    scratch: &mut Scratch,
    how: How,
    folio: &[u8],
) -> Result<SlotId, PutError> {
    let mut out = [Err(PutError::OutOfSlots)];
    store.put(scratch, how, &[folio], &mut out);
    out[0]
}
