//! Who stores the objects: our pool, the series' pool, a `malloc`, the kernel's zsmalloc in zram.

use super::oracle::Layout;
use super::{PoolError, io_error};
use crate::host;
use crate::swap::peer::{self, Keeper};
use memmap2::MmapMut;
use octavo_page::{ByteSize, ChainLength, Handle, PAGE_SIZE};
use octavo_pager::arena::PoolArena;
use octavo_pool::classes::ClassRow;
use octavo_pool::reference::{Ref, Reference};
use octavo_pool::{Arena, Config, Pool};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes before a packed object of our pool, and its grain.
const TAG: usize = 4;

/// Bytes of its pages that an object has to leave to be packed.
const HUGE_MARGIN: usize = 64;

/// Objects that are read in one call: pages that one folio has.
const AT_ONCE: usize = 64;

/// What a system holds and takes, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Usage {
    /// Bytes of the objects.
    pub compressed: usize,
    /// Memory for them, everything counted.
    pub used: usize,
    /// The same without handles and descriptors.
    pub bare: usize,
}

impl Usage {
    /// What is used over the objects' bytes, less 1.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        self.used as f64 / self.compressed as f64 - 1.0
    }

    /// The same without handles and descriptors.
    #[must_use]
    pub fn overhead_bare(&self) -> f64 {
        self.bare as f64 / self.compressed as f64 - 1.0
    }
}

/// Keeps objects for one thread.
pub trait System {
    /// Names an object.
    type Name;

    /// Stores a copy of `bytes`.
    ///
    /// # Errors
    /// There is no room.
    fn store(&mut self, bytes: &[u8]) -> Result<Self::Name, PoolError>;

    /// Frees an object.
    fn free(&mut self, name: Self::Name);

    /// Gives back what moving objects can win; the objects moved, if that can be known. `None` where
    /// there is no such thing.
    ///
    /// # Errors
    /// Whoever does it failed.
    fn compact(&mut self) -> Result<Option<Compacted>, PoolError> {
        Ok(None)
    }

    /// What it holds and takes now.
    ///
    /// # Errors
    /// It cannot be read.
    fn usage(&self) -> Result<Usage, PoolError>;

    /// The size classes as the kernel's debugfs shows them, where there are some.
    fn classes(&self) -> Vec<ClassRow> {
        Vec::new()
    }

    /// Where the objects lie that compaction may move, where that can be known.
    fn layout(&self, _names: &[Self::Name]) -> Option<Layout> {
        None
    }
}

/// What compaction did.
#[derive(Clone, Copy, Default, Debug)]
pub struct Compacted {
    /// Objects moved; `None` where nobody says.
    pub moved: Option<usize>,
    /// Pages freed.
    pub pages: usize,
    /// Moves that would have been enough, to one who sees everything at once.
    pub oracle: Option<usize>,
}

/// Keeps objects for any number of threads.
pub trait Shared: Sync {
    /// Names an object.
    type Name: Send + Sync;

    /// Stores a copy of `bytes`.
    fn store(&self, bytes: &[u8]) -> Self::Name;

    /// Frees an object.
    fn free(&self, name: Self::Name);

    /// Frees an object, then stores a copy of `bytes` under its name's place.
    fn replace(&self, name: &mut Self::Name, bytes: &[u8]);

    /// Copies objects out, one after the other to the same place.
    fn read(&self, names: &[Self::Name], out: &mut [u8]);

    /// Frees many, in the way that is fastest here.
    fn free_all(&self, names: Vec<Self::Name>);

    /// Has the memory that [`free_all`](Self::free_all) left go back to the system. False where there is no such
    /// thing, and nobody can say when it does.
    fn give_back(&self) -> bool {
        false
    }
}

/// Our pool, in the memory that it has under a program.
pub struct Octavo {
    pool: Pool<PoolArena>,
    zspage_bytes: usize,
    max_object: usize,
}

impl Octavo {
    /// A pool for `objects` objects of `bytes` bytes together, each up to `max_object`.
    ///
    /// # Errors
    /// There is not so much address space.
    pub fn new(
        chain: ChainLength,
        max_object: usize,
        objects: usize,
        bytes: usize,
    ) -> Result<Self, PoolError> {
        // Twice the bytes, because zspages that are hardly filled keep their addresses.
        let arena = PoolArena::new(bytes * 2 + (1 << 30));
        let arena = arena.map_err(|why| PoolError::Memory(why.to_string()))?;
        // Churn makes objects larger and smaller, never more.
        let config = Config { chain, max_object, max_objects: objects + 1000 };
        let pool = Pool::new(arena, config).map_err(|why| PoolError::Memory(why.to_string()))?;
        let zspage_bytes = chain.get() * max_object.next_multiple_of(PAGE_SIZE);
        Ok(Self { pool, zspage_bytes, max_object })
    }
}

impl System for Octavo {
    type Name = Handle;

    fn store(&mut self, bytes: &[u8]) -> Result<Handle, PoolError> {
        self.pool.store(bytes).map_err(|why| PoolError::Memory(why.to_string()))
    }

    fn free(&mut self, name: Handle) {
        self.pool.free(name).expect("live");
    }

    fn compact(&mut self) -> Result<Option<Compacted>, PoolError> {
        let done = self.pool.compact(usize::MAX);
        Ok(Some(Compacted { moved: Some(done.moved), pages: done.pages_freed, oracle: None }))
    }

    fn usage(&self) -> Result<Usage, PoolError> {
        let stats = self.pool.stats();
        let (compressed, bare) = (stats.compressed_bytes, stats.pages * PAGE_SIZE);
        Ok(Usage { compressed, used: stats.used_bytes, bare })
    }

    fn classes(&self) -> Vec<ClassRow> {
        self.pool.classes().to_vec()
    }

    fn layout(&self, names: &[Handle]) -> Option<Layout> {
        let base = self.pool.arena().base().addr().get();
        let place = |name: &Handle| {
            let read = self.pool.read(*name, |bytes| (bytes.as_ptr().addr() - base, bytes.len()));
            let (at, len) = read.expect("live");
            // A tag, and words of 4 bytes; huge objects have none, and are not moved.
            let is_packed = len + HUGE_MARGIN <= self.max_object.next_multiple_of(PAGE_SIZE);
            is_packed.then(|| (at - TAG, (TAG + len).next_multiple_of(TAG).max(4 * TAG)))
        };
        Some(Layout::new(self.zspage_bytes, names.iter().filter_map(place)))
    }
}

impl Shared for Octavo {
    type Name = Handle;

    fn store(&self, bytes: &[u8]) -> Handle {
        self.pool.store(bytes).expect("room")
    }

    fn free(&self, name: Handle) {
        self.pool.free(name).expect("live");
    }

    fn replace(&self, name: &mut Handle, bytes: &[u8]) {
        self.pool.free(*name).expect("live");
        *name = self.pool.store(bytes).expect("room");
    }

    fn read(&self, names: &[Handle], out: &mut [u8]) {
        for some in names.chunks(AT_ONCE) {
            self.pool.read_many(some, |_, bytes| {
                out.copy_from_slice(bytes.expect("live"));
                black_box(&mut *out);
            });
        }
    }

    fn free_all(&self, names: Vec<Handle>) {
        assert_eq!(self.pool.free_many(&names).objects, names.len());
    }

    fn give_back(&self) -> bool {
        self.pool.tidy(usize::MAX);
        let stats = self.pool.stats();
        assert_eq!((stats.objects, stats.pages), (0, 0));
        true
    }
}

impl System for Reference {
    type Name = Ref;

    fn store(&mut self, bytes: &[u8]) -> Result<Ref, PoolError> {
        Reference::store(self, bytes).map_err(|why| PoolError::Memory(why.to_string()))
    }

    fn free(&mut self, name: Ref) {
        Reference::free(self, name).expect("live");
    }

    fn compact(&mut self) -> Result<Option<Compacted>, PoolError> {
        let before = self.pages();
        let moved = Some(Reference::compact(self));
        Ok(Some(Compacted { moved, pages: before - self.pages(), oracle: None }))
    }

    fn usage(&self) -> Result<Usage, PoolError> {
        let (compressed, bare) = (self.compressed_bytes(), self.pages() * PAGE_SIZE);
        Ok(Usage { compressed, used: self.used_bytes(), bare })
    }

    fn classes(&self) -> Vec<ClassRow> {
        self.rows().collect()
    }
}

/// The allocator of this process: the C library's, or one that was preloaded. A name is a pointer,
/// which is its owner's, as a handle of a pool is.
pub struct Malloc {
    compressed: usize,
    /// Anonymous memory of the process before anything was stored.
    before: usize,
}

impl Malloc {
    /// From now on the memory that this process takes is the allocator's.
    ///
    /// # Errors
    /// `/proc` does not say what it takes.
    pub fn new() -> Result<Self, PoolError> {
        Ok(Self { compressed: 0, before: anonymous()? })
    }
}

impl System for Malloc {
    type Name = Box<[u8]>;

    fn store(&mut self, bytes: &[u8]) -> Result<Box<[u8]>, PoolError> {
        self.compressed += bytes.len();
        Ok(bytes.into())
    }

    fn free(&mut self, name: Box<[u8]>) {
        self.compressed -= name.len();
    }

    fn usage(&self) -> Result<Usage, PoolError> {
        let used = anonymous()?.saturating_sub(self.before);
        Ok(Usage { compressed: self.compressed, used, bare: used })
    }
}

impl Shared for Malloc {
    type Name = Box<[u8]>;

    fn store(&self, bytes: &[u8]) -> Box<[u8]> {
        bytes.into()
    }

    fn free(&self, name: Box<[u8]>) {
        drop(name);
    }

    fn replace(&self, name: &mut Box<[u8]>, bytes: &[u8]) {
        *name = Box::default();
        *name = bytes.into();
    }

    fn read(&self, names: &[Box<[u8]>], out: &mut [u8]) {
        for name in names {
            out.copy_from_slice(name);
            black_box(&mut *out);
        }
    }

    fn free_all(&self, names: Vec<Box<[u8]>>) {
        drop(names);
    }
}

/// Anonymous memory of this process that is in RAM, in bytes.
fn anonymous() -> Result<usize, PoolError> {
    let text = fs::read_to_string("/proc/self/smaps_rollup").map_err(io_error("smaps_rollup"))?;
    Ok(host::field(&text, "Anonymous:").unwrap_or(0) as usize * 1024)
}

/// The kernel's zsmalloc: pages written to a throw-away zram device, which compresses them itself.
/// To free is to write something else to the page.
pub struct Zram {
    keeper: Keeper<PathBuf>,
    node: File,
    page: MmapMut,
    free: Vec<u64>,
    next: u64,
}

impl Zram {
    /// A device of `disk` bytes that exists as long as this is held. `octavo` is the command, which
    /// keeps it.
    ///
    /// # Errors
    /// It cannot be made or opened.
    pub fn new(octavo: &Path, algorithm: &str, disk: ByteSize) -> Result<Self, PoolError> {
        let mut command = Command::new(octavo);
        command.args(["bench-pool-device", "--algorithm", algorithm]);
        command.args(["--disk", &disk.to_string()]);
        let keeper = Keeper::<PathBuf>::spawn(command)?;
        let mut how = OpenOptions::new();
        how.write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
        let node = how.open(peer::node_of(&keeper.made)).map_err(io_error("the zram device"))?;
        let page = MmapMut::map_anon(PAGE_SIZE).map_err(io_error("a page"))?;
        Ok(Self { keeper, node, page, free: Vec::new(), next: 0 })
    }

    /// Has the device removed.
    ///
    /// # Errors
    /// It does not go.
    pub fn finish(self) -> Result<(), PoolError> {
        drop(self.node);
        Ok(self.keeper.finish()?)
    }
}

impl System for Zram {
    type Name = u64;

    fn store(&mut self, bytes: &[u8]) -> Result<u64, PoolError> {
        let page = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        // Not from where it lies: what is written past the page cache has to begin at a page.
        self.page.copy_from_slice(bytes);
        let at = page * PAGE_SIZE as u64;
        self.node.write_all_at(&self.page, at).map_err(io_error("the zram device"))?;
        Ok(page)
    }

    fn free(&mut self, name: u64) {
        self.free.push(name);
    }

    fn compact(&mut self) -> Result<Option<Compacted>, PoolError> {
        let before = peer::zram_use(&self.keeper.made)?.used;
        peer::compact_zram(&self.keeper.made)?;
        let freed = before.saturating_sub(peer::zram_use(&self.keeper.made)?.used);
        Ok(Some(Compacted { moved: None, pages: freed as usize / PAGE_SIZE, oracle: None }))
    }

    fn usage(&self) -> Result<Usage, PoolError> {
        let zram = peer::zram_use(&self.keeper.made)?;
        // Its handles and descriptors are the kernel's, and nobody says how much they take.
        let (compressed, used) = (zram.compressed as usize, zram.used as usize);
        Ok(Usage { compressed, used, bare: used })
    }
}
