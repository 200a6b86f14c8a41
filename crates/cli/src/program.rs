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

use object::elf;
use object::read::elf::{Dyn, ElfFile64, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// `#!` lines that are followed; the kernel follows as many.
const MAX_SCRIPTS: usize = 4;

/// Bytes of a `#!` line that the kernel looks at.
const SCRIPT_LINE: usize = 256;

/// What runs a file that is neither ELF nor names an interpreter, as `execvp` does it.
pub const SHELL: &str = "/bin/sh";

/// The loader that knows `LD_PRELOAD` as our object expects it.
const LOADER: &str = "ld-linux-x86-64.so.2";

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
    Damaged(String),
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
        if head.starts_with(elf::ELFMAG.as_slice()) {
            return check_elf(&image).map(|()| Start::Itself);
        }
        let Some(line) = script_line(&head) else {
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

/// A `#!` line in parts.
#[derive(PartialEq, Eq, Debug)]
struct ScriptLine {
    interpreter: PathBuf,
    /// All that follows the interpreter; the kernel passes it as one argument.
    argument: OsString,
}

/// The `#!` line at the head of a file, if there is one that names something.
fn script_line(head: &[u8]) -> Option<ScriptLine> {
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?.trim_ascii();
    let end = line.iter().position(|b| matches!(b, b' ' | b'\t')).unwrap_or(line.len());
    let (interpreter, argument) = line.split_at(end);
    (!interpreter.is_empty()).then(|| ScriptLine {
        interpreter: OsStr::from_bytes(interpreter).into(),
        argument: OsStr::from_bytes(argument.trim_ascii()).into(),
    })
}

/// What a script leads to: its interpreter, and where that is `env`, the program `env` will find.
fn next_image(
    script: &Path,
    line: &ScriptLine,
    path: Option<&OsStr>,
) -> Result<PathBuf, ProgramError> {
    let interpreter = match find(&with_slash(&line.interpreter), path) {
        Err(ProgramError::NotFound(interpreter)) => {
            return Err(ProgramError::NoInterpreter { script: script.into(), interpreter });
        }
        found => found?,
    };
    let Some(name) = name_for_env(line) else { return Ok(interpreter) };
    match find(name, path) {
        Err(ProgramError::NotFound(interpreter)) => {
            Err(ProgramError::NoInterpreter { script: script.into(), interpreter })
        }
        found => found,
    }
}

/// The interpreter as a path: the kernel looks for a bare name in the current directory.
fn with_slash(interpreter: &Path) -> OsString {
    if interpreter.as_os_str().as_bytes().contains(&b'/') {
        interpreter.into()
    } else {
        Path::new(".").join(interpreter).into()
    }
}

/// The program that `#!/usr/bin/env NAME` or `env -S NAME ARGS` will start; `None` when it is no
/// `env`, or is told more than we follow: then only `env` itself is checked.
fn name_for_env(line: &ScriptLine) -> Option<&OsStr> {
    if line.interpreter.file_name() != Some(OsStr::new("env")) {
        return None;
    }
    let argument = line.argument.as_bytes();
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
    if let Some(kind) = privileged(mode, has_capabilities(&opened)) {
        return Err(unfit(Unfit::Privileged(kind)));
    }
    check_image(&ReadCache::new(opened)).map_err(unfit)
}

/// The privilege a file gives by its mode or its capabilities, if any.
fn privileged(mode: u32, capabilities: bool) -> Option<&'static str> {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010; // without the group's x bit it means something else
    if mode & SET_USER != 0 {
        Some("set-user-id")
    } else if mode & SET_GROUP == SET_GROUP {
        Some("set-group-id")
    } else {
        capabilities.then_some("given file capabilities")
    }
}

fn has_capabilities(file: &File) -> bool {
    let mut value = [0; 64];
    rustix::fs::fgetxattr(file, "security.capability", &mut value[..]).is_ok_and(|len| len > 0)
}

/// Checks the contents of an ELF file.
fn check_image<'d, R: ReadRef<'d>>(data: R) -> Result<(), Unfit> {
    check_machine(data)?;
    let damaged = |why: object::read::Error| Unfit::Damaged(why.to_string());
    let file = ElfFile64::<Endianness, R>::parse(data).map_err(damaged)?;
    let endian = file.endian();
    let mut loader = None;
    for header in file.elf_program_headers() {
        loader = loader.or(header.interpreter(endian, data).map_err(damaged)?);
    }
    match loader {
        None if is_go(&file) => Err(Unfit::StaticGo),
        None => Err(Unfit::Static),
        Some(loader) if !is_glibc(loader) => {
            Err(Unfit::Loader(String::from_utf8_lossy(loader).into_owned()))
        }
        Some(_) => sanitizer(&file, data).map_or(Ok(()), |name| Err(Unfit::Sanitizer(name))),
    }
}

/// Class, byte order and machine, which stand at the same place in every ELF file.
fn check_machine<'d, R: ReadRef<'d>>(data: R) -> Result<(), Unfit> {
    let head = data.read_bytes_at(0, 20).map_err(|()| Unfit::Damaged("cut short".into()))?;
    let (class, order) = (elf::FileClass(head[4]), elf::DataEncoding(head[5]));
    let machine = elf::Machine(match order {
        elf::ELFDATA2MSB => u16::from_be_bytes([head[18], head[19]]),
        _ => u16::from_le_bytes([head[18], head[19]]),
    });
    match (class, order, machine) {
        (elf::ELFCLASS64, elf::ELFDATA2LSB, elf::EM_X86_64) => Ok(()),
        (elf::ELFCLASS32, _, elf::EM_386) => Err(Unfit::Machine("32-bit x86".into())),
        (elf::ELFCLASS32, _, elf::EM_X86_64) => Err(Unfit::Machine("x86-64 with x32".into())),
        (_, _, elf::EM_AARCH64) => Err(Unfit::Machine("64-bit Arm".into())),
        (_, _, elf::EM_RISCV) => Err(Unfit::Machine("RISC-V".into())),
        (class, _, machine) => {
            let bits = if class == elf::ELFCLASS64 { 64 } else { 32 };
            let number = machine.0;
            Err(Unfit::Machine(format!("a {bits}-bit machine with ELF number {number}")))
        }
    }
}

fn is_glibc(loader: &[u8]) -> bool {
    Path::new(OsStr::from_bytes(loader)).file_name() == Some(OsStr::new(LOADER))
}

fn is_go<'d, R: ReadRef<'d>>(file: &ElfFile64<'d, Endianness, R>) -> bool {
    file.sections().any(|s| matches!(s.name(), Ok(".go.buildinfo" | ".note.go.buildid")))
}

/// The sanitizer a program is built with: its runtime is a library the program needs, or linked
/// in, and then its entry stands in a symbol table.
fn sanitizer<'d, R: ReadRef<'d>>(
    file: &ElfFile64<'d, Endianness, R>,
    data: R,
) -> Option<&'static str> {
    const RUNTIMES: [(&str, &[u8], &str); 5] = [
        ("AddressSanitizer", b"libasan.", "__asan_init"),
        ("HWAddressSanitizer", b"libhwasan.", "__hwasan_init"),
        ("ThreadSanitizer", b"libtsan.", "__tsan_init"),
        ("MemorySanitizer", b"libmsan.", "__msan_init"),
        ("LeakSanitizer", b"liblsan.", "__lsan_init"),
    ];
    let needed = needed(file, data).unwrap_or_default();
    let by_library =
        RUNTIMES.iter().find(|(_, library, _)| needed.iter().any(|n| n.starts_with(library)));
    let by_symbol = || {
        file.dynamic_symbols().chain(file.symbols()).find_map(|symbol| {
            let name = symbol.name().ok()?;
            RUNTIMES.iter().find(|(_, _, entry)| *entry == name)
        })
    };
    by_library.or_else(by_symbol).map(|(name, ..)| *name)
}

/// The libraries an ELF file asks for.
fn needed<'d, R: ReadRef<'d>>(
    file: &ElfFile64<'d, Endianness, R>,
    data: R,
) -> Option<Vec<&'d [u8]>> {
    let endian = file.endian();
    let sections = file.elf_section_table();
    let (entries, strings) = sections.dynamic(endian, data).ok()??;
    let strings = sections.strings(endian, data, strings).ok()?;
    let needed = entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED);
    Some(needed.filter_map(|entry| entry.string(endian, strings).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    fn line(interpreter: &str, argument: &str) -> ScriptLine {
        ScriptLine { interpreter: interpreter.into(), argument: argument.into() }
    }

    #[test]
    fn script_lines() {
        for (head, parsed) in [
            ("#!/bin/sh\nexit", Some(line("/bin/sh", ""))),
            ("#! /usr/bin/perl -w -T\n", Some(line("/usr/bin/perl", "-w -T"))),
            ("#!/bin/sh", Some(line("/bin/sh", ""))),
            ("#!\t./run\t \n", Some(line("./run", ""))),
            ("#!\n/bin/sh", None),
            ("#", None),
            ("", None),
            ("echo hello", None),
        ] {
            assert_eq!(script_line(head.as_bytes()), parsed, "{head:?}");
        }
    }

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
            let line = line(interpreter, argument);
            assert_eq!(name_for_env(&line), name.map(OsStr::new), "{interpreter} {argument}");
        }
    }

    #[test]
    fn a_file_gives_privileges_by_mode_or_capability() {
        assert_eq!(privileged(0o755, false), None);
        assert_eq!(privileged(0o4755, false), Some("set-user-id"));
        assert_eq!(privileged(0o2755, false), Some("set-group-id"));
        assert_eq!(privileged(0o2745, false), None);
        assert_eq!(privileged(0o755, true), Some("given file capabilities"));
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
    fn heads_of_other_machines() {
        let elf = |class: u8, order: u8, elf::Machine(machine)| {
            let mut head = vec![0; 64];
            head[..4].copy_from_slice(elf::ELFMAG.as_slice());
            (head[4], head[5]) = (class, order);
            let number = if order == 2 { machine.to_be_bytes() } else { machine.to_le_bytes() };
            head[18..20].copy_from_slice(&number);
            head
        };
        for (class, order, machine, says) in [
            (1, 1, elf::EM_386, "32-bit x86"),
            (1, 1, elf::EM_X86_64, "x32"),
            (2, 1, elf::EM_AARCH64, "64-bit Arm"),
            (2, 2, elf::EM_PPC64, "a 64-bit machine with ELF number 21"),
        ] {
            let error = check_image(&*elf(class, order, machine)).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(matches!(check_image(&b"\x7fELF"[..]), Err(Unfit::Damaged(_))));
        let whole = elf(2, 1, elf::EM_X86_64);
        assert!(matches!(check_image(&whole[..]), Err(Unfit::Damaged(_) | Unfit::Static)));
    }

    /// What is changed in a file: a byte, a word of a table, or where it ends.
    #[derive(Clone, Debug)]
    enum Change {
        /// A byte of the ELF header or of the program headers behind it.
        Head(usize, u8),
        /// A byte of the section headers, at the end of the file.
        Tail(usize, u8),
        /// Any byte.
        Byte(prop::sample::Index, u8),
        /// Any aligned word becomes one that an offset or a length should not be.
        Word(prop::sample::Index, u64),
        Cut(prop::sample::Index),
    }

    fn change() -> impl Strategy<Value = Change> {
        let word = prop_oneof![Just(u64::MAX), Just(1 << 63), Just(0), 0..1u64 << 20, any::<u64>()];
        prop_oneof![
            4 => (0..1024_usize, any::<u8>()).prop_map(|(at, byte)| Change::Head(at, byte)),
            2 => (0..2048_usize, any::<u8>()).prop_map(|(at, byte)| Change::Tail(at, byte)),
            1 => any::<(prop::sample::Index, u8)>().prop_map(|(at, byte)| Change::Byte(at, byte)),
            4 => (any::<prop::sample::Index>(), word).prop_map(|(at, word)| Change::Word(at, word)),
            1 => any::<prop::sample::Index>().prop_map(Change::Cut),
        ]
    }

    fn apply(file: &mut Vec<u8>, change: Change) {
        let len = file.len().max(1);
        let (at, with) = match change {
            Change::Head(at, byte) => (at, vec![byte]),
            Change::Tail(at, byte) => (len.saturating_sub(1 + at), vec![byte]),
            Change::Byte(at, byte) => (at.index(len), vec![byte]),
            // The tables are where words matter: half of them hit those at the front.
            Change::Word(at, word) if word % 2 == 0 => {
                (at.index(128) * 8, word.to_le_bytes().into())
            }
            Change::Word(at, word) => (at.index(len) / 8 * 8, word.to_le_bytes().into()),
            Change::Cut(at) => return file.truncate(at.index(len)),
        };
        file.iter_mut().skip(at).zip(with).for_each(|(to, from)| *to = from);
    }

    proptest! {
        /// A shell, damaged: whatever it is now, there is an answer, and in memory the same one as
        /// from the file.
        #[test]
        fn a_damaged_program_is_answered(changes in prop::collection::vec(change(), 1..6)) {
            let mut bytes = fs::read(SHELL).expect("a shell");
            changes.into_iter().for_each(|change| apply(&mut bytes, change));
            let file = tempfile::NamedTempFile::new().expect("a file");
            fs::write(file.path(), &bytes).expect("written");
            let said = check(file.path(), None);
            if bytes.starts_with(elf::ELFMAG.as_slice()) {
                let of_file = match said {
                    Ok(start) => Ok(start),
                    Err(ProgramError::Unfit { why, .. }) => Err(why),
                    Err(error) => panic!("{error}"),
                };
                prop_assert_eq!(of_file, check_image(&bytes[..]).map(|()| Start::Itself));
            }
        }
    }
}
