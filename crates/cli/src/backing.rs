//! `octavo run --backing`: what memory is written back to is opened before the program starts, so that
//! what cannot be used is refused then.
//!
//! ```text
//!   a new file    made, sized, its name taken away, given up; each process makes one such beside it
//!   a device, or  opened, and kept by the keeper: the first process of the job that writes has it
//!   --backing-keep
//! ```
//! Processes borrow the descriptors from the keeper: the directory, the device, the key's file.

use octavo_backing::file::{FileDevice, OpenError};
use octavo_backing::{Geometry, least_bytes};
use octavo_bench::files::{FileIdentity, dir_of};
use octavo_crypt::{Key, KeyError};
use octavo_page::ByteSize;
use octavo_page::config::{BackingConfig, BackingFile, BackingKind, MAX_BACKING_FILES};
use octavo_sys::file::Fd;
use std::collections::HashSet;
use std::ffi::{CString, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A file to write back to, as it is named on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackingName {
    /// The file.
    pub file: PathBuf,
    /// The higher it is, the earlier it is used.
    pub priority: i32,
}

impl BackingName {
    /// What `FILE[,prio=N]` says.
    pub fn parse(word: OsString) -> Result<Self, String> {
        const PRIO: &[u8] = b",prio=";
        let bytes = word.as_bytes();
        let at = bytes.windows(PRIO.len()).rposition(|part| part == PRIO);
        let (file, priority) = match at {
            None => (bytes, 0),
            Some(at) => {
                let number = std::str::from_utf8(&bytes[at + PRIO.len()..]).ok();
                let number = number.and_then(|number| number.parse().ok());
                let why = "prio= takes a whole number, as in prio=5";
                (&bytes[..at], number.ok_or(why)?)
            }
        };
        if file.is_empty() {
            return Err("a file is missing; name a new one on a disk".to_owned());
        }
        Ok(Self { file: PathBuf::from(OsString::from_vec(file.to_vec())), priority })
    }
}

/// The other options.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// How large a file may get.
    pub size: Option<ByteSize>,
    /// The share of the limit, in percent, that the store may take before it is written back.
    pub max_pool_percent: u8,
    /// The file of the key.
    pub key: Option<&'a Path>,
    /// Whether a file keeps its name.
    pub keep: bool,
}

/// Why it cannot be written back there.
#[derive(Debug, Error)]
pub enum BackingRefusal {
    /// A file or device that cannot be used.
    #[error("--backing {}: {why}{}", file.display(), hint(*why))]
    File {
        /// Which.
        file: PathBuf,
        /// Why not.
        why: OpenError,
    },
    /// One that is too small for its log.
    #[error("--backing {}: {have} are too few; it takes at least {least}, given by --backing-size", file.display())]
    TooSmall {
        /// Which.
        file: PathBuf,
        /// Bytes that it has, or may get to.
        have: ByteSize,
        /// Bytes that it takes.
        least: ByteSize,
    },
    /// Too many of them.
    #[error("--backing is given {0} times; up to {MAX_BACKING_FILES} files can be used")]
    TooMany(usize),
    /// The same one again.
    #[error("--backing {}: given twice; leave one out", .0.display())]
    Twice(PathBuf),
    /// No key.
    #[error("--backing-key {}: {why}", file.display())]
    KeyFile {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: KeyError,
    },
    /// No random key.
    #[error("--backing: {0}")]
    Key(KeyError),
    /// A name with a zero byte, which no file can have.
    #[error("{}: contains a zero byte; leave that out", .0.display())]
    ZeroByte(PathBuf),
}

/// Which option is missing, where one is.
fn hint(why: OpenError) -> &'static str {
    if why == OpenError::NoSize { " by --backing-size" } else { "" }
}

/// What the job's processes borrow, and how they know it.
#[derive(Debug)]
pub struct Lent {
    /// What they are told.
    pub config: BackingConfig,
    /// What the keeper is to keep open.
    pub files: Vec<Fd>,
}

/// Opens everything; nothing when nothing is to be written back.
pub fn check(names: &[BackingName], options: Options<'_>) -> Result<Option<Lent>, BackingRefusal> {
    if names.is_empty() {
        return Ok(None);
    }
    let mut files = Vec::new();
    let key = match options.key {
        None => Key::ephemeral().map(|_| None).map_err(BackingRefusal::Key)?,
        Some(path) => Some(lend(&mut files, open_key(path)?)),
    };
    let Options { max_pool_percent, .. } = options;
    let mut config = BackingConfig { key, max_pool_percent, files: [None; MAX_BACKING_FILES] };
    let places = config.files.len();
    if names.len() > places {
        return Err(BackingRefusal::TooMany(names.len()));
    }
    let mut known = HashSet::new();
    if let Some(name) = names.iter().find(|name| !known.insert(FileIdentity::of(&name.file))) {
        return Err(BackingRefusal::Twice(name.file.clone()));
    }
    for (place, BackingName { file, priority }) in config.files.iter_mut().zip(names) {
        let (fd, kind, bytes) = open(file, options)?;
        let fd = lend(&mut files, fd);
        *place = Some(BackingFile { fd, priority: *priority, kind, bytes });
    }
    Ok(Some(Lent { config, files }))
}

/// Notes that the keeper keeps a descriptor; its number.
fn lend(files: &mut Vec<Fd>, fd: Fd) -> u32 {
    let raw = fd.raw().unsigned_abs();
    files.push(fd);
    raw
}

fn open_key(path: &Path) -> Result<Fd, BackingRefusal> {
    let refuse = |why| BackingRefusal::KeyFile { file: path.to_path_buf(), why };
    let file = Fd::open(&c_string(path)?).map_err(|why| refuse(KeyError::Unreadable(why)))?;
    Key::of_file(&file).map_err(refuse)?;
    Ok(file)
}

/// What processes are to borrow for `path`, and how much of it they may use.
fn open(path: &Path, options: Options<'_>) -> Result<(Fd, BackingKind, u64), BackingRefusal> {
    let refuse = |why| BackingRefusal::File { file: path.to_path_buf(), why };
    let is_device = fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
    let least = least_bytes(&Geometry::USUAL);
    let too_small = |have| BackingRefusal::TooSmall {
        file: path.to_path_buf(),
        have: ByteSize::new(have),
        least: ByteSize::new(least),
    };
    if let Some(size) = options.size.filter(|size| size.bytes() < least) {
        return Err(too_small(size.bytes()));
    }
    let size = options.size.map(ByteSize::bytes);
    let how = octavo_backing::file::Options { size, keep: options.keep, ..Default::default() };
    let device = FileDevice::open(&c_string(path)?, how).map_err(refuse)?;
    let bytes = octavo_backing::Device::bytes(&device);
    if bytes < least {
        return Err(too_small(bytes));
    }
    if is_device || options.keep {
        return Ok((device.into_file(), BackingKind::Itself, bytes));
    }
    let dir = Fd::open_directory(&c_string(dir_of(path))?)
        .map_err(|why| refuse(OpenError::Refused(why)))?;
    FileDevice::nameless(&dir, bytes).map_err(refuse)?;
    Ok((dir, BackingKind::Directory, bytes))
}

fn c_string(path: &Path) -> Result<CString, BackingRefusal> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| BackingRefusal::ZeroByte(path.to_path_buf()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_given_twice_is_not_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let name = |file: &str| BackingName { file: dir.path().join(file), priority: 0 };
        let names = [name("a"), name("b"), name("./a")];
        let options = Options { size: None, max_pool_percent: 50, key: None, keep: true };
        let why = check(&names, options).expect_err("it is there twice").to_string();
        assert!(why.ends_with("./a: given twice; leave one out"), "{why}");
        assert!(!dir.path().join("a").exists());
    }

    #[test]
    fn a_name_may_have_a_priority() {
        let parse = |word: &str| BackingName::parse(word.into());
        let name = |file: &str, priority| BackingName { file: file.into(), priority };
        assert_eq!(parse("a/b"), Ok(name("a/b", 0)));
        assert_eq!(parse("a,b,prio=-7"), Ok(name("a,b", -7)));
        assert!(parse("a,prio=much").is_err_and(|why| why.contains("prio=5")));
        assert!(parse(",prio=1").is_err());
    }
}
