//! Finds the program and says whether our object can be loaded into it.
//!
//! The dynamic loader of glibc brings our object in, and only where nothing else claims the memory.
//! A program that ignores `LD_PRELOAD` would run unmanaged, one with a sanitizer would abort: both
//! are refused before anything has happened.
//!
//! ```text
//! name ── PATH ──► file ── #! ──► interpreter ── #! ──► ... ──► ELF ── checks
//!                                    └─ env NAME ── PATH ──► file ...
//! ```

use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection};
use octavo_image::{self as image, LOADER, MAX_SCRIPTS, SCRIPT_LINE, Script};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What runs a file that is neither ELF nor names an interpreter.
pub const SHELL: &str = image::SHELL;

/// How a file that was found has to be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// The kernel starts it: an ELF file, or a script that names its interpreter.
    Itself,
    /// A script without `#!`: the shell starts it.
    Shell,
}

/// Why a program is not run.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// Nothing of that name.
    #[error("{}: not found; give a path, or a name that is on PATH", .0.display())]
    NotFound(PathBuf),
    /// The interpreter of a script does not exist.
    #[error("{}: its interpreter {} is not found; install it or correct the #! line", script.display(), interpreter.display())]
    NoInterpreter {
        /// The script.
        script: PathBuf,
        /// What its `#!` line names.
        interpreter: PathBuf,
    },
    /// It exists and cannot be executed.
    #[error("{}: cannot be executed: {why}", file.display())]
    CannotExecute {
        /// The file.
        file: PathBuf,
        /// What stands in the way.
        why: io::Error,
    },
    /// More `#!` lines than are followed.
    #[error("{}: more than {MAX_SCRIPTS} #! lines lead on from it; name the interpreter itself", .0.display())]
    TooManyScripts(PathBuf),
    /// Not something our object can be loaded into.
    #[error("{}: {why}", file.display())]
    Unfit {
        /// The ELF file.
        file: PathBuf,
        /// What it is.
        why: Unfit,
    },
}

/// A kind of program that cannot be managed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Unfit {
    /// Broken ELF.
    #[error("is a damaged ELF file ({0}); install the program again")]
    Damaged(&'static str),
    /// Another class or machine.
    #[error("is built for {0}; Octavo runs 64-bit x86-64 programs only")]
    Machine(String),
    /// No dynamic loader: nothing can be loaded into it.
    #[error("is statically linked, so nothing can be loaded into it; use a dynamic build")]
    Static,
    /// Likewise, and says how with Go.
    #[error(
        "is a static Go program, so nothing can be loaded into it; build it with CGO_ENABLED=1 \
         and a package that uses cgo"
    )]
    StaticGo,
    /// The loader of musl or of something else.
    #[error("uses the loader {0}, but Octavo needs glibc's {LOADER}; use a glibc build")]
    Loader(String),
    /// The loader ignores `LD_PRELOAD` for it.
    #[error("is {0}, and the loader ignores LD_PRELOAD for such; run a copy without that")]
    Privileged(&'static str),
    /// Brings a runtime that must be the first object and owns the address space.
    #[error("is built with {0}, which does not bear another preloaded object; use a plain build")]
    Sanitizer(&'static str),
}

/// The file that `name` means, by the rules of `execvp`: a name with a slash is a path, another is
/// looked for on `path` (the value of `PATH`).
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    if name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match executable(&file) {
            Ok(()) => Ok(file),
            Err(why) if is_absent(&why) => Err(ProgramError::NotFound(file)),
            Err(why) => Err(ProgramError::CannotExecute { file, why }),
        };
    }
    let mut refused = None;
    if !name.is_empty() {
        for dir in std::env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
            let file = if dir.as_os_str().is_empty() { Path::new(".") } else { &dir }.join(name);
            match executable(&file) {
                Ok(()) => return Ok(file),
                Err(why) if is_absent(&why) => {}
                Err(why) => {
                    refused.get_or_insert(ProgramError::CannotExecute { file, why });
                }
            }
        }
    }
    Err(refused.unwrap_or_else(|| ProgramError::NotFound(name.into())))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Whether this process may execute `file`.
fn executable(file: &Path) -> io::Result<()> {
    let meta = fs::metadata(file)?;
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(rustix::fs::access(file, rustix::fs::Access::EXEC_OK)?)
}

/// Follows `file` to the ELF that the kernel will load and checks that. `path` is for `env NAME`.
pub fn check(file: &Path, path: Option<&OsStr>) -> Result<Start, ProgramError> {
    let mut image = file.to_path_buf();
    for depth in 0..=MAX_SCRIPTS {
        let head = head(&image)?;
        if head.starts_with(image::MAGIC) {
            return check_elf(&image).map(|()| Start::Itself);
        }
        let Some(line) = Script::parse(&head) else {
            // Only the file itself may lack a `#!`; the kernel does not run such an interpreter.
            if depth > 0 {
                let why = io::Error::from(rustix::io::Errno::NOEXEC);
                return Err(ProgramError::CannotExecute { file: image, why });
            }
            return check(Path::new(SHELL), path).map(|_| Start::Shell);
        };
        if depth == MAX_SCRIPTS {
            break;
        }
        image = next_image(&image, &line, path)?;
    }
    Err(ProgramError::TooManyScripts(file.to_path_buf()))
}

/// The first bytes of a file, enough for its `#!` line. A program may be executable and not
/// readable: then nothing can be said about it, and that is a refusal.
fn head(file: &Path) -> Result<Vec<u8>, ProgramError> {
    let mut head = Vec::with_capacity(SCRIPT_LINE);
    File::open(file)
        .and_then(|f| f.take(SCRIPT_LINE as u64).read_to_end(&mut head))
        .map_err(|why| ProgramError::CannotExecute { file: file.to_path_buf(), why })?;
    Ok(head)
}

/// What a script leads to: its interpreter, and where that is `env`, the program `env` will find.
fn next_image(
    script: &Path,
    line: &Script<'_>,
    path: Option<&OsStr>,
) -> Result<PathBuf, ProgramError> {
    let interpreter = match find(&with_slash(line.interpreter), path) {
        Err(ProgramError::NotFound(interpreter)) => {
            return Err(ProgramError::NoInterpreter { script: script.into(), interpreter });
        }
        found => found?,
    };
    let Some(name) = name_for_env(*line) else { return Ok(interpreter) };
    match find(name, path) {
        Err(ProgramError::NotFound(interpreter)) => {
            Err(ProgramError::NoInterpreter { script: script.into(), interpreter })
        }
        found => found,
    }
}

/// The interpreter as a path: the kernel looks for a bare name in the current directory.
fn with_slash(interpreter: &[u8]) -> OsString {
    let name = OsStr::from_bytes(interpreter);
    if interpreter.contains(&b'/') { name.into() } else { Path::new(".").join(name).into() }
}

/// The program that `#!/usr/bin/env NAME` or `env -S NAME ARGS` will start; `None` when it is no
/// `env`, or is told more than we follow: then only `env` itself is checked.
fn name_for_env(line: Script<'_>) -> Option<&OsStr> {
    let Script { interpreter, argument } = line;
    if Path::new(OsStr::from_bytes(interpreter)).file_name() != Some(OsStr::new("env")) {
        return None;
    }
    let split = argument.strip_prefix(b"-S");
    let mut words = split
        .unwrap_or(argument)
        .split(|b| b.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .skip_while(|word| split.is_some() && word.contains(&b'='));
    let name = words.next()?;
    // Without -S the kernel passes everything as one word, so a second one is part of the name.
    let plain = split.is_some() || words.next().is_none();
    (plain && !name.contains(&b'=') && !name.starts_with(b"-")).then(|| OsStr::from_bytes(name))
}

/// Checks an ELF file.
fn check_elf(file: &Path) -> Result<(), ProgramError> {
    let unfit = |why| ProgramError::Unfit { file: file.to_path_buf(), why };
    let cannot = |why| ProgramError::CannotExecute { file: file.to_path_buf(), why };
    let opened = File::open(file).map_err(cannot)?;
    let mode = opened.metadata().map_err(cannot)?.mode();
    if let Some(kind) = image::privileged(mode, has_capabilities(&opened)) {
        return Err(unfit(Unfit::Privileged(kind)));
    }
    check_image(&opened).map_err(unfit)
}

fn has_capabilities(file: &File) -> bool {
    let mut value = [0; 64];
    rustix::fs::fgetxattr(file, "security.capability", &mut value[..]).is_ok_and(|len| len > 0)
}

struct Contents<'a>(&'a File);

impl image::Source for Contents<'_> {
    fn read_at(&self, mut buffer: &mut [u8], mut offset: u64) -> usize {
        let room = buffer.len();
        while let Ok(n) = self.0.read_at(buffer, offset)
            && n > 0
        {
            (buffer, offset) = (&mut buffer[n..], offset + n as u64);
        }
        room - buffer.len()
    }
}

/// Checks the contents of an ELF file.
fn check_image(file: &File) -> Result<(), Unfit> {
    image::check(&Contents(file)).map_err(|why| match why {
        image::Unfit::Static if is_go(file) => Unfit::StaticGo,
        other => other.into(),
    })
}

impl From<image::Unfit> for Unfit {
    fn from(unfit: image::Unfit) -> Self {
        match unfit {
            image::Unfit::Damaged(why) => Self::Damaged(why),
            image::Unfit::Machine { wide, number } => Self::Machine(machine(wide, number)),
            image::Unfit::Static => Self::Static,
            image::Unfit::Loader(name) => {
                Self::Loader(String::from_utf8_lossy(name.as_bytes()).into_owned())
            }
            image::Unfit::Sanitizer(name) => Self::Sanitizer(name),
        }
    }
}

/// What people call a machine.
fn machine(wide: bool, number: u16) -> String {
    match (wide, number) {
        (false, 3) => "32-bit x86".into(),
        (false, 62) => "x86-64 with x32".into(),
        (_, 183) => "64-bit Arm".into(),
        (_, 243) => "RISC-V".into(),
        _ => format!("a {}-bit machine with ELF number {number}", if wide { 64 } else { 32 }),
    }
}

fn is_go(file: &File) -> bool {
    let cache = ReadCache::new(file);
    let parsed = ElfFile64::<Endianness, _>::parse(&cache);
    parsed.is_ok_and(|elf| {
        elf.sections().any(|s| matches!(s.name(), Ok(".go.buildinfo" | ".note.go.buildid")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn env_leads_on_to_what_it_starts() {
        for (interpreter, argument, name) in [
            ("/usr/bin/env", "python3", Some("python3")),
            ("/usr/bin/env", "-S python3 -u", Some("python3")),
            ("/usr/bin/env", "-S A=1 B=2 python3", Some("python3")),
            ("/usr/bin/env", "-Spython3", Some("python3")),
            ("/usr/bin/env", "python3 -u", None), // env looks for "python3 -u"
            ("/usr/bin/env", "-i", None),
            ("/usr/bin/env", "-S -i python3", None),
            ("/usr/bin/env", "", None),
            ("/bin/sh", "env", None),
        ] {
            let (interpreter, argument) = (interpreter.as_bytes(), argument.as_bytes());
            let line = Script { interpreter, argument };
            assert_eq!(name_for_env(line), name.map(OsStr::new), "{line:?}");
        }
    }

    #[test]
    fn path_is_searched_as_execvp_does() {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        for (dir, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(dir).expect("a directory");
            fs::write(dir.join("tool"), "").expect("a file");
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(dir.join("tool"), mode).expect("chmod");
        }
        let both = std::env::join_paths([&first, &second]).expect("a path");
        let tool = OsStr::new("tool");
        assert_eq!(find(tool, Some(&both)).expect("found"), second.join("tool"));
        let only_first = find(tool, Some(first.as_os_str()));
        assert!(matches!(only_first, Err(ProgramError::CannotExecute { .. })), "{only_first:?}");
        for name in ["no-such-tool", "", "./no/such", "/etc/passwd/x"] {
            let found = find(OsStr::new(name), Some(&both));
            assert!(matches!(found, Err(ProgramError::NotFound(_))), "{name}: {found:?}");
        }
        let dir = find(first.as_os_str(), None);
        assert!(matches!(dir, Err(ProgramError::CannotExecute { .. })), "{dir:?}");
    }

    #[test]
    fn machines_have_names() {
        assert_eq!(machine(false, 3), "32-bit x86");
        assert_eq!(machine(true, 183), "64-bit Arm");
        assert_eq!(machine(true, 21), "a 64-bit machine with ELF number 21");
    }
}
