//! `octavo run` from outside: what it refuses and how, and what a program sees of it.
//!
//! The pager is not needed: an installation is laid out in a directory with this very executable
//! and, as the object to preload, a copy of a library that every Rust program has loaded.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// `bin/octavo` and `lib/octavo/liboctavo_preload.so` in a directory of their own.
struct Installation {
    dir: TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// Held by each test: a process that one test forks has, for a moment, the file open that another
/// is writing, and a file open for writing cannot be executed.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl Installation {
    fn new() -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("a directory");
        let (bin, lib) = (dir.path().join("bin"), dir.path().join("lib/octavo"));
        fs::create_dir_all(&bin).expect("bin");
        fs::create_dir_all(&lib).expect("lib");
        fs::copy(env!("CARGO_BIN_EXE_octavo"), bin.join("octavo")).expect("octavo");
        fs::copy(some_library(), lib.join("liboctavo_preload.so")).expect("object");
        Self { dir, _alone: alone }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    fn octavo(&self) -> Command {
        let mut command = Command::new(self.path("bin/octavo"));
        command.env_remove("LD_PRELOAD");
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.octavo().args(["run", "--memory", "64M"]).args(words).output().expect("octavo starts")
    }

    fn script(&self, name: &str, text: &str) -> String {
        let file = self.path(name);
        fs::write(&file, text).expect("script");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("chmod");
        file.display().to_string()
    }
}

/// A small shared library that is loaded here, so that loading it again elsewhere does no harm.
fn some_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let file = maps.split_whitespace().find(|word| word.contains("/libgcc_s.so"));
    PathBuf::from(file.expect("Rust programs load libgcc_s"))
}

/// Exit status and the one line on stderr.
fn refusal(output: &Output) -> (i32, String) {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(line.starts_with("octavo: ") && line.ends_with('\n'), "{line:?}");
    assert_eq!(line.lines().count(), 1, "one line: {line:?}");
    assert!(output.stdout.is_empty(), "nothing on stdout");
    (output.status.code().expect("an exit status"), line)
}

/// Whether programs can be run at all here; where not, why not is on stderr.
fn allowed(octavo: &Installation) -> bool {
    let output = octavo.run(&["true"]);
    if output.status.success() {
        return true;
    }
    let (status, line) = refusal(&output);
    assert!(status == 125 && line.contains("userfaultfd"), "{line}");
    eprintln!("left out: {line}");
    false
}

#[test]
fn bad_arguments_are_named_in_one_line() {
    let octavo = Installation::new();
    for (words, says) in [
        (&["--memory", "12X", "true"][..], &["'12X'", "--memory", "512M"][..]),
        (&["--memory", "1M", "true"], &["'1M'", "16M"]),
        (&["--memory", "99999999999T", "true"], &["64 bits"]),
        (&["--codec", "zip", "true"], &["'zip'", "lz4", "zstd:1"]),
        (&["--unit", "8K", "true"], &["'8K'", "4K, 16K, 64K"]),
        (&["--colour", "true"], &["--colour"]),
        (&[], &["PROGRAM"]),
    ] {
        let output = octavo.octavo().arg("run").args(words).output().expect("octavo starts");
        let (status, line) = refusal(&output);
        assert_eq!(status, 125, "{words:?}: {line}");
        assert!(says.iter().all(|part| line.contains(part)), "{words:?}: {line}");
    }
    for words in [&[][..], &["walk"]] {
        let output = octavo.octavo().args(words).output().expect("octavo starts");
        assert_eq!(refusal(&output).0, 125, "{words:?}");
    }
}

#[test]
fn a_program_that_cannot_be_started() {
    let octavo = Installation::new();
    let plain = octavo.path("plain");
    fs::write(&plain, "text").expect("a file");
    let no_interpreter = octavo.script("no-interpreter", "#!/no/such/shell\n");
    let no_env = octavo.script("no-env", "#!/usr/bin/env no-such-program\n");
    for (program, status, says) in [
        ("no-such-program", 127, "not found"),
        ("/no/such/program", 127, "not found"),
        ("", 127, "not found"),
        (plain.to_str().expect("a name"), 126, "denied"),
        ("/", 126, "directory"),
        (&no_interpreter, 127, "/no/such/shell"),
        (&no_env, 127, "no-such-program"),
    ] {
        let (code, line) = refusal(&octavo.run(&["--", program]));
        assert_eq!(code, status, "{program}: {line}");
        assert!(line.contains(says), "{program}: {line}");
    }
}

#[test]
fn scripts_are_followed_to_their_interpreter() {
    let octavo = Installation::new();
    let mut script = octavo.script("s0", "#!/bin/sh\nexit 7\n");
    for depth in 1..5 {
        script = octavo.script(&format!("s{depth}"), &format!("#!{script}\n"));
    }
    let (status, line) = refusal(&octavo.run(&[&script]));
    assert_eq!(status, 125, "{line}");
    assert!(line.contains("#!"), "{line}");
    if allowed(&octavo) {
        let plain = octavo.script("plain", "exit 9\n");
        let by_env = octavo.script("by-env", "#!/usr/bin/env sh\nexit 8\n");
        let no_slash = octavo.path("s0");
        for (script, status) in [(&*plain, 9), (&by_env, 8), (&no_slash.to_string_lossy(), 7)] {
            assert_eq!(octavo.run(&[script]).status.code(), Some(status), "{script}");
        }
    }
}

#[test]
fn programs_that_cannot_be_managed() {
    let octavo = Installation::new();
    let copy = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read("/bin/sh").expect("a program");
        change(&mut bytes);
        let file = octavo.path(name);
        fs::write(&file, bytes).expect("a program");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("chmod");
        file
    };
    let arm = copy("arm", &|elf| elf[18] = 183);
    let short = copy("short", &|elf| elf.truncate(70));
    let empty_headers = copy("static", &|elf| elf[56..58].fill(0)); // no program headers
    let musl = copy("musl", &|elf| {
        let from = b"/lib64/ld-linux-x86-64.so.2\0";
        let to = b"/lib/ld-musl-x86_64.so.1\0\0\0\0";
        let at = elf.windows(from.len()).position(|w| w == from).expect("a loader");
        elf[at..at + from.len()].copy_from_slice(to);
    });
    let suid = copy("suid", &|_| {});
    fs::set_permissions(&suid, fs::Permissions::from_mode(0o4755)).expect("chmod");
    for (file, says) in [
        (arm, "64-bit Arm"),
        (short, "damaged"),
        (empty_headers, "statically linked"),
        (musl, "ld-musl-x86_64.so.1"),
        (suid, "set-user-id"),
    ] {
        let (status, line) = refusal(&octavo.run(&[file.to_str().expect("a name")]));
        assert_eq!(status, 125, "{line}");
        assert!(line.contains(says), "{line}");
    }
}

/// Compiles a C program, unless there is no compiler or what it links is not installed.
fn compiled(octavo: &Installation, name: &str, flags: &[&str]) -> Option<String> {
    let (source, file) = (octavo.path("main.c"), octavo.path(name));
    fs::write(&source, "int main(void) { return 0; }\n").expect("source");
    let gcc = Command::new("gcc").args(flags).arg(&source).arg("-o").arg(&file).output();
    gcc.is_ok_and(|o| o.status.success()).then(|| file.display().to_string())
}

#[test]
fn sanitizers_and_static_builds_are_recognised() {
    let octavo = Installation::new();
    for (flags, says) in [
        (&["-fsanitize=address"][..], "AddressSanitizer"),
        (&["-fsanitize=address", "-static-libasan"], "AddressSanitizer"),
        (&["-fsanitize=thread"], "ThreadSanitizer"),
        (&["-static"], "statically linked"),
        (&["-static-pie"], "statically linked"),
    ] {
        let Some(program) = compiled(&octavo, "built", flags) else {
            eprintln!("left out: gcc {flags:?}");
            continue;
        };
        let (status, line) = refusal(&octavo.run(&[&program]));
        assert_eq!(status, 125, "{line}");
        assert!(line.contains(says), "{flags:?}: {line}");
    }
}

#[test]
fn what_our_side_lacks_is_named() {
    let octavo = Installation::new();
    let (status, line) = refusal(&octavo.run(&["--stats-json", "/no/such/dir/file", "true"]));
    if line.contains("userfaultfd") {
        return eprintln!("left out: {line}");
    }
    assert_eq!(status, 125, "{line}");
    assert!(line.contains("/no/such/dir/file"), "{line}");

    let limited = format!(
        "ulimit -v 500000; exec {} run --memory 64M true",
        octavo.path("bin/octavo").display()
    );
    let output = Command::new("sh").args(["-c", &limited]).output().expect("sh");
    let (status, line) = refusal(&output);
    assert_eq!(status, 125, "{line}");
    assert!(line.contains("RLIMIT_AS") && line.contains("ulimit -v"), "{line}");

    let limited = format!("ulimit -f 100; exec {} run true", octavo.path("bin/octavo").display());
    let output = Command::new("sh").args(["-c", &limited]).output().expect("sh");
    let (status, line) = refusal(&output);
    assert_eq!(status, 125, "{line}");
    assert!(line.contains("RLIMIT_FSIZE") && line.contains("ulimit -f"), "{line}");

    fs::remove_file(octavo.path("lib/octavo/liboctavo_preload.so")).expect("remove");
    let (status, line) = refusal(&octavo.run(&["true"]));
    assert_eq!(status, 125, "{line}");
    assert!(line.contains("liboctavo_preload.so") && line.contains("bin"), "{line}");
}

/// Whether `octavo run` works in a shell whose limits are set so; doctor says the same.
fn agree(octavo: &Installation, limits: &str) -> bool {
    let under = |words: &str| {
        let shell = format!("{limits}; exec {} {words}", octavo.path("bin/octavo").display());
        Command::new("bash").args(["-c", &shell]).env_remove("LD_PRELOAD").output().expect("bash")
    };
    let (doctor, run) = (under("doctor"), under("run true"));
    assert_eq!(doctor.status.success(), run.status.success(), "{limits}: {doctor:?} {run:?}");
    if !run.status.success() {
        let (_, line) = refusal(&run);
        let (why, report) = (&line["octavo: ".len()..], String::from_utf8_lossy(&doctor.stdout));
        assert!(report.contains(why), "{limits}: {why} in {report}");
    }
    run.status.success()
}

#[test]
fn doctor_and_run_agree() {
    let octavo = Installation::new();
    agree(&octavo, ":");
    for too_little in ["ulimit -f 100", "ulimit -n 4", "ulimit -n 6"] {
        assert!(!agree(&octavo, too_little), "{too_little}");
    }
    // Whether a hard limit of less than 16 is too little depends on the right to raise it.
    for little in ["-n 9", "-n 15", "-n 16", "-Sn 6", "-Sn 9"] {
        agree(&octavo, &format!("ulimit {little}"));
    }
    fs::remove_file(octavo.path("lib/octavo/liboctavo_preload.so")).expect("remove");
    assert!(!agree(&octavo, ":"));
}

#[test]
fn the_program_is_what_it_would_be_alone() {
    let octavo = Installation::new();
    if !allowed(&octavo) {
        return;
    }
    for status in [0, 1, 125, 255] {
        let output =
            octavo.run(&["--", "sh", "-c", &format!("echo out; echo err >&2; exit {status}")]);
        assert_eq!(output.status.code(), Some(status));
        assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
    }
    let killed = octavo.run(&["sh", "-c", "kill -USR1 $$"]);
    assert_eq!(killed.status.signal(), Some(10));

    // The same id, name, arguments, descriptors and signals.
    let mut child = octavo.octavo();
    child.args(["run", "sh", "-c", "echo $$ $0 $*", "zero", "one", "--", "-x"]);
    let child = child.stdout(std::process::Stdio::piped()).spawn().expect("octavo starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{pid} zero one -- -x\n"));
    for (setting, ignored) in [("trap '' PIPE USR1", true), (":", false)] {
        let shell = format!("{setting}; exec \"$0\" run grep SigIgn /proc/self/status");
        let output =
            Command::new("sh").args(["-c", &shell]).arg(octavo.path("bin/octavo")).output();
        let text = String::from_utf8(output.expect("sh").stdout).expect("text");
        let mask = text.split_whitespace().nth(1).expect("a mask");
        let mask = u64::from_str_radix(mask, 16).expect("hexadecimal");
        let (usr1, pipe) = (1 << 9, 1 << 12);
        assert_eq!(mask & (usr1 | pipe) == usr1 | pipe, ignored, "{text}");
    }
    let descriptors = octavo.run(&["ls", "/proc/self/fd"]);
    let alone = Command::new("ls").arg("/proc/self/fd").output().expect("ls");
    assert_eq!(descriptors.stdout, alone.stdout);
}

#[test]
fn the_program_gets_two_variables() {
    let octavo = Installation::new();
    if !allowed(&octavo) {
        return;
    }
    let (object, theirs) =
        (octavo.path("lib/octavo/liboctavo_preload.so"), octavo.path("theirs;=.so"));
    fs::copy(&object, &theirs).expect("a library");
    let variables = |command: &mut Command| {
        let output = command.args(["--", "env", "-0"]).output().expect("octavo starts");
        let mut lines: Vec<_> = output.stdout.split(|b| *b == 0).map(<[u8]>::to_vec).collect();
        lines.retain(|l| l.starts_with(b"LD_PRELOAD=") || l.starts_with(b"OCTAVO_RUN="));
        lines.sort();
        let texts: Vec<_> =
            lines.into_iter().map(|l| String::from_utf8(l).expect("ASCII")).collect();
        texts.try_into().unwrap_or_else(|l| panic!("two variables: {l:?}"))
    };
    let canonical = |preload: &str| {
        let first = preload.split(['=', ':']).nth(1).expect("our object").to_owned();
        fs::canonicalize(first).expect("our object")
    };

    let [preload, word]: [String; 2] = variables(
        octavo
            .octavo()
            .args(["run", "--memory", "64M", "--engine", "cpu"])
            .env("OCTAVO_RUN", "stale"),
    );
    assert_eq!(canonical(&preload), fs::canonicalize(&object).expect("our object"));
    assert!(word.starts_with("OCTAVO_RUN=v=2;pid="), "{word}");
    assert!(word.ends_with(";limit=67108864;strict=0;engine=cpu"), "{word}");

    let stats = octavo.path("a;b.json");
    let [preload, word]: [String; 2] = variables(
        octavo
            .octavo()
            .args(["run", "--memory", "64M", "--strict", "--codec", "zstd:-1", "--unit", "16K"])
            .args(["--engine", "cpu", "--stats", "--stats-json", "a;b.json"])
            .current_dir(octavo.dir.path())
            .env("LD_PRELOAD", &theirs),
    );
    assert!(preload.ends_with(&format!(":{}", theirs.display())), "{preload}");
    let expected = ";limit=67108864;strict=1;unit=16K;engine=cpu;codec=zstd:-1";
    assert!(word.ends_with(expected), "{word}");
    assert!(stats.is_file(), "the file is known to be writable");
}

#[test]
fn arguments_need_not_be_text() {
    let octavo = Installation::new();
    if !allowed(&octavo) {
        return;
    }
    let bytes = std::ffi::OsStr::from_bytes(b"\xFF\xFE");
    let output = octavo.octavo().args(["run", "printf", "%s"]).arg(bytes).output().expect("octavo");
    assert_eq!(output.stdout, b"\xFF\xFE");
}

#[test]
fn an_engine_that_is_not_there_is_refused_with_what_would_do() {
    let octavo = Installation::new();
    let output = octavo.run(&["--engine", "gpu", "true"]);
    let (status, line) = refusal(&output);
    assert!(status == 125 && line.contains("'gpu'") && line.contains("model"), "{line}");
    if fs::exists("/sys/bus/dsa/devices").expect("/sys") || !allowed(&octavo) {
        return;
    }
    let (status, line) = refusal(&octavo.run(&["--engine", "iaa", "true"]));
    assert_eq!(status, 125);
    assert!(line.contains("--engine iaa") && line.contains("modprobe idxd"), "{line}");
    for engine in ["auto", "cpu", "model"] {
        assert!(octavo.run(&["--engine", engine, "true"]).status.success(), "{engine}");
    }
}
