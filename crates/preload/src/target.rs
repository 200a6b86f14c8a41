//! Looks at the file of a program that is about to be started: is it one to give our object to?
//!
//! The look is taken before the real call is made, by the same rules, and decides nothing but the
//! environment: whether the call succeeds, and with which error it fails, is the kernel's to say. A
//! file that cannot be looked at gets nothing of ours.

use core::ffi::CStr;
use octavo_image::{self as image, MAX_SCRIPTS, SCRIPT_LINE, SHELL, Script, Source};
use octavo_sys::file::{self, Access, CURRENT, Fd, Text};

/// Paths that are longer the kernel refuses.
type Path = Text<4096>;

/// What is about to be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A program that takes our object.
    Fit,
    /// One that does not, or of which that cannot be said.
    Unfit,
    /// Nothing that can be started, as it seems.
    Absent,
}

/// What becomes of a file that is neither ELF nor names an interpreter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Otherwise {
    /// It fails.
    Fail,
    /// The shell runs it, as of `execvp`.
    Shell,
}

/// Looks at `path`, from the directory `dir` on.
pub fn at(dir: i32, path: &CStr, otherwise: Otherwise) -> Target {
    let mut script = Text::<SCRIPT_LINE>::new();
    let mut found = look(dir, path, &mut script);
    for _ in 0..MAX_SCRIPTS {
        match found {
            Found::Target(target) => return target,
            Found::Other => break,
            Found::Script => {}
        }
        let interpreter = script;
        script = Text::new();
        let Some(interpreter) = interpreter.as_c_str() else { return Target::Unfit };
        found = match look(CURRENT, interpreter, &mut script) {
            // The kernel does not run such an interpreter.
            Found::Other => return Target::Unfit,
            found => found,
        };
    }
    match (found, otherwise) {
        (Found::Target(target), _) => target,
        (Found::Other, Otherwise::Shell) => shell(),
        (Found::Other | Found::Script, _) => Target::Unfit,
    }
}

/// Looks at an open file, whatever it was opened for.
pub fn open(file: i32) -> Target {
    use core::fmt::Write as _;
    let mut path = Text::<32>::new();
    let _ = write!(path, "/proc/self/fd/{file}");
    path.as_c_str().map_or(Target::Unfit, |path| at(CURRENT, path, Otherwise::Fail))
}

/// Looks at the file that `name` means: a name with a slash is a path, another is looked for on `path`,
/// the value of `PATH`.
pub fn on_path(name: &CStr, path: Option<&[u8]>, otherwise: Otherwise) -> Target {
    let name_bytes = name.to_bytes();
    if name_bytes.is_empty() || name_bytes.contains(&b'/') {
        return at(CURRENT, name, otherwise);
    }
    let found = path.unwrap_or(b"/bin:/usr/bin").split(|b| *b == b':').map(|dir| {
        let slash: &[u8] = if dir.is_empty() { b"" } else { b"/" };
        let mut path = Path::new();
        let whole = dir.iter().chain(slash).chain(name_bytes).try_for_each(|b| path.push(*b));
        let path = path.as_c_str().filter(|_| whole.is_some());
        path.map_or(Target::Absent, |path| at(CURRENT, path, otherwise))
    });
    let mut found = found.skip_while(|target| *target == Target::Absent);
    found.next().unwrap_or(Target::Absent)
}

/// Looks at the shell of `system` and `popen`.
pub fn shell() -> Target {
    let mut path = Text::<16>::new();
    let whole = SHELL.bytes().try_for_each(|b| path.push(b));
    match path.as_c_str().filter(|_| whole.is_some()) {
        Some(path) => at(CURRENT, path, Otherwise::Fail),
        None => Target::Unfit,
    }
}

/// What one file is.
enum Found {
    Target(Target),
    /// A `#!` line, with the interpreter's path.
    Script,
    /// Something else: a script without that line, or what the kernel has a handler for.
    Other,
}

/// Looks at one file; the interpreter that it names goes to `script`.
fn look(dir: i32, path: &CStr, script: &mut Text<SCRIPT_LINE>) -> Found {
    if file::may(Access::Execute, dir, path).is_err() {
        return Found::Target(Target::Absent);
    }
    let Ok((file, mode)) = Fd::open_regular(dir, path) else {
        // A directory, or a program that may be executed and not read.
        return Found::Target(Target::Unfit);
    };
    let mut head = [0; SCRIPT_LINE];
    let len = Contents(&file).read_at(&mut head, 0);
    let head = &head[..len];
    if head.starts_with(image::MAGIC) {
        let is_plain = image::privileged(mode, file.has_capabilities()).is_none();
        let is_fit = is_plain && image::check(&Contents(&file)).is_ok();
        return Found::Target(if is_fit { Target::Fit } else { Target::Unfit });
    }
    let Some(line) = Script::parse(head) else { return Found::Other };
    let whole = line.interpreter.iter().try_for_each(|b| script.push(*b));
    // One that is cut short is no path.
    if whole.is_some() { Found::Script } else { Found::Target(Target::Unfit) }
}

struct Contents<'a>(&'a Fd);

impl Source for Contents<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> usize {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty())
            && let Ok(n) = self.0.read_at(rest, offset.saturating_add(filled as u64))
            && n > 0
        {
            filled += n;
        }
        filled
    }
}
