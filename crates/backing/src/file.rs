//! The real device: a file or a block device, through a ring where the kernel lets us have one.
//!
//! ```text
//!   regular file   made new, mode 0600, as long as it may get, all of it a hole; its name is taken away
//!   block device   claimed, so that nobody mounts it meanwhile; used as far as it goes
//!
//!   write ──► ring, registered memory, O_DIRECT        each of the three where that goes
//!         └─► pwritev, whose outcome waits until it is asked for: the plain twin
//!   read  ──► preadv
//! ```
//! What does not go is left out and told ([`Ways`]): a file system without O_DIRECT or holes, a kernel or a
//! sandbox without rings, a limit on locked memory. A transfer that is refused for O_DIRECT only later has
//! it switched off, and is begun again.

use crate::device::{Device, MAX_UNDER_WAY, Tag, Transfer, Ways};
use alloc::boxed::Box;
use core::ffi::CStr;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use octavo_mempool::Page;
use octavo_page::ByteSize;
use octavo_page::sync::Mutex;
use octavo_sys::disk::{self, Gather, Kind, Scatter};
use octavo_sys::file::Fd;
use octavo_sys::uring::Ring;
use octavo_sys::{Errno, reason};

/// How a file is to be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes that may be used, at most; of a device all when there is no bound.
    pub size: Option<u64>,
    /// Whether a file keeps its name, and stays when nobody has it open any more.
    pub keep: bool,
    /// Whether a ring may be used.
    pub ring: bool,
    /// Whether O_DIRECT may be used.
    pub direct: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { size: None, keep: false, ring: true, direct: true }
    }
}

/// Why a name cannot be a backing file. Whoever prints it says which name it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// It cannot be made or opened.
    Refused(Errno),
    /// It is a directory.
    Directory,
    /// It is something else that keeps nothing.
    NoStorage,
    /// It is a block device that takes no writes.
    ReadOnly,
    /// It is a file that has something in it.
    NotEmpty {
        /// Its bytes.
        bytes: u64,
    },
    /// It is a file, and nobody said how large it may get.
    NoSize,
    /// It cannot be as long as it may get.
    TooLong {
        /// The bytes it was to have.
        bytes: u64,
        /// Why not.
        why: Errno,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(Errno::EBUSY) => {
                f.write_str(
                    "the device is in use: it is mounted, or a job has it, as it does for a second after \
                     its end; it takes one that nobody has",
                )
            }
            Self::Refused(why) => write!(
                f,
                "{}; it takes the name of a new file where one may be made, or a block device",
                reason(*why)
            ),
            Self::Directory => f.write_str("a directory; name a new file in it"),
            Self::NoStorage => {
                f.write_str("neither a file nor a block device; name a new file on a disk")
            }
            Self::ReadOnly => f.write_str(
                "the device is read-only; name one that can be written, or a new file on a disk",
            ),
            Self::NotEmpty { bytes } => {
                write!(f, "there is a file of {bytes} bytes, which would be lost; name a new one")
            }
            Self::NoSize => f.write_str("a file takes a size that it may get to, as in 8G"),
            Self::TooLong { bytes, why } => {
                let bytes = ByteSize::new(*bytes);
                write!(f, "a file of {bytes} bytes: {}; a smaller size may do", reason(*why))
            }
        }
    }
}

impl core::error::Error for OpenError {}

/// A file or a block device.
pub struct FileDevice {
    file: Fd,
    bytes: u64,
    /// Whether O_DIRECT was on at first, and is.
    was_direct: bool,
    direct: AtomicBool,
    holes: AtomicBool,
    writes: Mutex<Writes>,
}

/// Writes that are under way, or whose outcome nobody asked for yet.
struct Writes {
    ring: Option<Ring>,
    outcomes: Box<[Outcome]>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    None,
    /// The ring has it.
    Awaited,
    Known(Transfer),
}

impl FileDevice {
    /// Makes the file `path`, or opens a block device or an empty file of that name.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong with it.
    pub fn open(path: &CStr, options: Options) -> Result<Self, OpenError> {
        let (file, is_new) = make_or_claim(path)?;
        let status = file.status().map_err(OpenError::Refused)?;
        let bytes = match status.kind {
            Kind::Directory => return Err(OpenError::Directory),
            Kind::Other => return Err(OpenError::NoStorage),
            Kind::File => size_file(&file, status.bytes, options.size).inspect_err(|_| {
                if is_new {
                    let _ = disk::unlink(path); // it takes no room
                }
            })?,
            Kind::Device if file.is_read_only().map_err(OpenError::Refused)? => {
                return Err(OpenError::ReadOnly);
            }
            Kind::Device => {
                let end = file.end().map_err(OpenError::Refused)?;
                options.size.map_or(end, |size| size.min(end))
            }
        };
        if status.kind == Kind::File && !options.keep {
            disk::unlink(path).map_err(OpenError::Refused)?;
        }
        Ok(Self::of(file, bytes, options))
    }

    /// A file or device that is open, of which `bytes` are used. What is there is lost.
    #[must_use]
    pub fn of(file: Fd, bytes: u64, options: Options) -> Self {
        let direct = options.direct && file.set_direct(true).is_ok();
        let ring = options.ring.then(|| Ring::new(MAX_UNDER_WAY as u32).ok()).flatten();
        let outcomes = alloc::vec![Outcome::None; MAX_UNDER_WAY].into();
        Self {
            file,
            bytes,
            was_direct: direct,
            direct: AtomicBool::new(direct),
            holes: AtomicBool::new(true),
            writes: Mutex::new(Writes { ring, outcomes }),
        }
    }

    /// A file without a name in the directory `dir`, that may get to `bytes`, and is gone with this process.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn nameless(dir: &Fd, bytes: u64) -> Result<Self, OpenError> {
        let file = Fd::create_nameless(dir).map_err(OpenError::Refused)?;
        file.set_len(bytes).map_err(|why| OpenError::TooLong { bytes, why })?;
        Ok(Self::of(file, bytes, Options::default()))
    }

    /// Gives up everything but the descriptor, for whoever is to have the file.
    #[must_use]
    pub fn into_file(self) -> Fd {
        self.file
    }

    /// Bytes of the disk that a file takes at the moment.
    ///
    /// # Errors
    /// As of `fstat(2)`.
    pub fn allocated(&self) -> Result<u64, Errno> {
        self.file.status().map(|status| status.allocated)
    }

    /// Whether a transfer is to be begun again, since it was refused for O_DIRECT, which is off now.
    fn is_without_direct_now(&self, outcome: Transfer) -> bool {
        if outcome != Err(Errno::EINVAL) || !self.was_direct {
            return false;
        }
        self.direct.store(false, Relaxed);
        self.file.set_direct(false).is_ok()
    }
}

/// The descriptor of a new file, of a device nobody else has, or of what else there is; and whether it
/// was made.
fn make_or_claim(path: &CStr) -> Result<(Fd, bool), OpenError> {
    match Fd::create_private(path) {
        Err(Errno::EEXIST) => {}
        made => return made.map(|file| (file, true)).map_err(refusal),
    }
    let claim = || Fd::open_claimed(path).map(|file| (file, false));
    match disk::status_of(path).map_err(OpenError::Refused)?.kind {
        Kind::Directory => Err(OpenError::Directory),
        Kind::Other => Err(OpenError::NoStorage),
        Kind::File => claim().map_err(refusal),
        // Some drivers say at once that a device takes no writes, others only when they are asked.
        Kind::Device => claim()
            .map_err(|why| if why == Errno::EROFS { OpenError::ReadOnly } else { refusal(why) }),
    }
}

fn refusal(why: Errno) -> OpenError {
    if why == Errno::EISDIR { OpenError::Directory } else { OpenError::Refused(why) }
}

/// Makes an empty file as long as it may get, for its owner alone.
fn size_file(file: &Fd, found: u64, size: Option<u64>) -> Result<u64, OpenError> {
    if found > 0 {
        return Err(OpenError::NotEmpty { bytes: found });
    }
    let bytes = size.ok_or(OpenError::NoSize)?;
    file.make_private().map_err(OpenError::Refused)?;
    file.set_len(bytes).map_err(|why| OpenError::TooLong { bytes, why })?;
    Ok(bytes)
}

fn gather(pages: &[Option<Page>]) -> Gather<'_> {
    Gather::new(pages.iter().flatten().map(|page| &page.bytes()[..]))
}

impl Device for FileDevice {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn adopt(&self, memory: Range<usize>) {
        if let Some(ring) = &mut self.writes.lock().ring {
            // Without it, memory is looked up at every write; `ways` tells.
            let _ = ring.register(memory);
        }
    }

    fn write(&self, tag: Tag, offset: u64, pages: &[Option<Page>]) {
        let from = gather(pages);
        let mut writes = self.writes.lock();
        let Writes { ring, outcomes } = &mut *writes;
        let begun =
            ring.as_mut().map(|ring| ring.write(&self.file, &from, offset, tag.get() as u64));
        outcomes[tag.get()] = match begun {
            Some(Ok(())) => Outcome::Awaited,
            // No ring, or none that takes anything at the moment.
            Some(Err(_)) | None => {
                let mut outcome = self.file.write_gathered(&from, offset);
                if self.is_without_direct_now(outcome) {
                    outcome = self.file.write_gathered(&from, offset);
                }
                Outcome::Known(outcome)
            }
        };
    }

    fn reap(&self, wait: bool) -> Option<(Tag, Transfer)> {
        let mut writes = self.writes.lock();
        let Writes { ring, outcomes } = &mut *writes;
        let known = (0..).map(Tag).zip(&mut **outcomes).find_map(|(tag, outcome)| match *outcome {
            Outcome::Known(transfer) => {
                *outcome = Outcome::None;
                Some((tag, transfer))
            }
            _ => None,
        });
        if known.is_some() {
            return known;
        }
        let found = match ring.as_mut()?.reap(wait) {
            Ok(found) => found,
            Err(why) => {
                // The ring is gone, and with it what it had.
                *ring = None;
                let awaited = outcomes.iter_mut().filter(|outcome| **outcome == Outcome::Awaited);
                awaited.for_each(|outcome| *outcome = Outcome::Known(Err(why)));
                drop(writes);
                return self.reap(wait);
            }
        };
        let (tag, outcome) = found?;
        let tag = Tag::new(tag as usize).expect("a tag that was given");
        outcomes[tag.get()] = Outcome::None;
        // Whoever began it begins it again.
        let again = self.is_without_direct_now(outcome);
        Some((tag, if again { Err(Errno::EAGAIN) } else { outcome }))
    }

    fn read(&self, offset: u64, pages: &mut [Option<Page>]) -> Transfer {
        let mut read = || {
            let room = pages.iter_mut().flatten().map(|page| &mut page.bytes_mut()[..]);
            self.file.read_scattered(&mut Scatter::new(room), offset)
        };
        let outcome = read();
        if self.is_without_direct_now(outcome) { read() } else { outcome }
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let punched = self.file.punch(offset, len);
        if let Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) = punched {
            self.holes.store(false, Relaxed);
        }
        punched
    }

    fn ways(&self) -> Ways {
        let writes = self.writes.lock();
        Ways {
            direct: self.direct.load(Relaxed),
            ring: writes.ring.is_some(),
            registered: writes.ring.as_ref().is_some_and(Ring::is_registered),
            holes: self.holes.load(Relaxed),
        }
    }
}
