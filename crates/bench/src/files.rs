//! Which file a name stands for, so that one that is named twice is found out before anything in it is
//! lost.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file, whatever name leads to it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum FileIdentity {
    /// One that is there.
    Found {
        /// The file system it is on.
        device: u64,
        /// Its number there.
        inode: u64,
    },
    /// One that is to be made: where.
    ToCome(PathBuf),
}

impl FileIdentity {
    /// What `file` stands for at the moment; a link is what it leads to.
    #[must_use]
    pub fn of(file: &Path) -> Self {
        if let Ok(found) = fs::metadata(file) {
            return Self::Found { device: found.dev(), inode: found.ino() };
        }
        let in_dir = |dir: PathBuf| dir.join(file.file_name().unwrap_or_default());
        Self::ToCome(fs::canonicalize(dir_of(file)).map_or_else(|_| file.to_path_buf(), in_dir))
    }
}

/// The directory that a file is in, or will be.
#[must_use]
pub fn dir_of(file: &Path) -> &Path {
    file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_of_one_file_are_the_same_and_others_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |name: &str| FileIdentity::of(&dir.path().join(name));
        fs::write(dir.path().join("a"), b"").expect("room");
        fs::write(dir.path().join("b"), b"").expect("room");
        fs::hard_link(dir.path().join("a"), dir.path().join("hard")).expect("a link");
        symlink("a", dir.path().join("soft")).expect("a link");
        symlink(".", dir.path().join("here")).expect("a link");
        for same in ["./a", "hard", "soft", "here/a"] {
            assert_eq!(of(same), of("a"), "{same}");
        }
        assert_ne!(of("a"), of("b"));
        assert_eq!(of("here/new"), of("new"));
        assert_ne!(of("new"), of("newer"));
        assert_ne!(of("no/such/new"), of("new"));
        assert_eq!(FileIdentity::of(Path::new("new")), FileIdentity::of(Path::new("./new")));
    }
}
