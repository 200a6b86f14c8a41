//! Files to write to, what is known of objects in them, and objects.

use super::WritebackError;
use octavo_backing::file::{FileDevice, OpenError, Options};
use octavo_backing::{Backing, Config, Geometry, Member, Owner, Owners, Place};
use octavo_codec::{Codec, Workspace, ZstdLevel};
use octavo_crypt::{Crypt, Format, Key};
use octavo_page::Unit;
use octavo_sys::disk::unlink;
use octavo_sys::file::Fd;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::random::Random;

/// Writes under way at once, at most: of a backing as of the raw disk.
pub(super) const UNDER_WAY: usize = 8;

/// Chunks in memory: besides those, one that is filled, and one that is kept for a cleaner.
const BUFFERS: usize = UNDER_WAY + 2;

/// Where files are made, one after the other, each gone when it is closed.
pub(super) struct Target {
    path: PathBuf,
}

impl Target {
    pub(super) fn new(backing: Option<PathBuf>) -> Self {
        let name = format!("octavo-bench-{}", std::process::id());
        let path = backing.unwrap_or_else(|| std::env::temp_dir().join(name));
        Self { path }
    }

    /// A file that may get to `bytes`, or as much of the device.
    pub(super) fn open(&self, bytes: u64) -> Result<FileDevice, WritebackError> {
        let options = Options { size: Some(bytes), ..Options::default() };
        FileDevice::open(&self.name()?, options).map_err(|why| self.refused(why))
    }

    /// A file that `fill` has written, to be read as it is; of a device, which is open already, what is on it.
    pub(super) fn raw(
        &self,
        bytes: u64,
        fill: impl FnOnce(&FileDevice) -> Result<f64, WritebackError>,
    ) -> Result<Fd, WritebackError> {
        let path = self.name()?;
        let is_device = self.path.exists();
        if !is_device {
            let options = Options { size: Some(bytes), keep: true, ..Options::default() };
            let filled = FileDevice::open(&path, options).map_err(|why| self.refused(why));
            let filled = filled.and_then(|device| fill(&device));
            if let Err(why) = filled {
                let _ = unlink(&path);
                return Err(why);
            }
        }
        let raw = Fd::open(&path).map_err(|why| WritebackError::Raw(Some(why)));
        if !is_device {
            let _ = unlink(&path);
        }
        raw.inspect(|raw| {
            // Where that does not go, neither side has it.
            let _ = raw.set_direct(true);
        })
    }

    fn name(&self) -> Result<CString, WritebackError> {
        let name = CString::new(self.path.as_os_str().as_bytes());
        name.map_err(|_| WritebackError::Name(self.path.clone()))
    }

    fn refused(&self, why: OpenError) -> WritebackError {
        WritebackError::Target { path: self.path.clone(), why }
    }

    /// A backing of such a file, with chunks of this size.
    pub(super) fn backing(
        &self,
        bytes: u64,
        geometry: Geometry,
    ) -> Result<Backing<FileDevice>, WritebackError> {
        let crypt = Crypt::new(Key::ephemeral()?, Format::PAGES)?;
        let member = Member { device: self.open(bytes)?, crypt, priority: 0 };
        let config = Config { geometry, buffers: BUFFERS, readers: 1, clock };
        Ok(Backing::new(vec![member], config)?)
    }
}

/// Nanoseconds since the first call.
pub(super) fn clock() -> u64 {
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Where the object of each owner is.
pub(super) struct Owned(Vec<AtomicU64>);

impl Owned {
    pub(super) fn new(owners: usize) -> Self {
        Self((0..owners).map(|_| AtomicU64::new(0)).collect())
    }

    fn word(&self, owner: Owner) -> &AtomicU64 {
        &self.0[owner.get() as usize]
    }

    pub(super) fn place(&self, owner: Owner) -> Option<Place> {
        Place::from_bits(self.word(owner).load(Ordering::Acquire))
    }

    /// Notes a place, and gives what was there before.
    pub(super) fn put(&self, owner: Owner, place: Place) -> Option<Place> {
        Place::from_bits(self.word(owner).swap(place.bits(), Ordering::AcqRel))
    }
}

impl Owners for Owned {
    fn lives(&self, owner: Owner, place: Place) -> bool {
        self.place(owner) == Some(place)
    }

    fn moved(&self, owner: Owner, from: Place, to: Place) -> bool {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        self.word(owner).compare_exchange(from.bits(), to.bits(), order.0, order.1).is_ok()
    }
}

/// What compresses the objects, and in which unit: what a store does that is about to be full.
pub(super) const CODEC: Codec = Codec::Zstd(ZstdLevel::new(1).expect("a level"));
pub(super) const UNIT: Unit = Unit::K16;

/// Units of memory that look like a program's, compressed: words that come again, numbers that are
/// near each other, some noise.
pub(super) fn objects(count: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(9);
    let mut workspace = Workspace::new(&[CODEC]);
    let mut unit = vec![0_u8; UNIT.bytes()];
    let mut room = vec![0_u8; UNIT.bytes()];
    let mut objects = Vec::with_capacity(count);
    while objects.len() < count {
        let noisy = 1 + random.below(12);
        let base = random.below(1 << 30) as u64;
        for word in unit.as_chunks_mut::<8>().0 {
            *word = match random.below(16) {
                n if n < noisy => random.below(1 << 30) as u64,
                13.. => 0,
                _ => base + 64 * random.below(40) as u64,
            }
            .to_le_bytes();
        }
        if let Ok(len) = workspace.compress(CODEC, &unit, &mut room) {
            objects.push(room[..len].to_vec());
        }
    }
    objects
}
