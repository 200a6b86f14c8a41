//! What commands print, and say when they cannot: `/dev/full` for a disk that is full.

use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

fn octavo(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command.args(words);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const PRINTING: [&[&str]; 6] = [
    &["sim", "slots"],
    &["sim", "slots", "--json"],
    &["doctor"],
    &["doctor", "--json"],
    &["run", "--help"],
    &["--version"],
];

/// That a command which could not print said so.
fn refused(words: &[&str], output: &Output) {
    assert_eq!(output.status.code(), Some(125), "{words:?}: {output:?}");
    let said = said(output);
    assert!(said.starts_with("octavo: stdout: ") && said.lines().count() == 1, "{words:?}: {said}");
}

#[test]
fn a_full_disk_is_one_line_and_125() {
    for words in PRINTING {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        refused(words, &octavo(words).stdout(full).output().expect("octavo starts"));
    }
}

#[test]
fn so_is_stdout_that_is_closed_or_for_reading() {
    for words in PRINTING {
        for how in [">&-", "1</dev/null"] {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec \"$0\" \"$@\" {how}"), env!("CARGO_BIN_EXE_octavo")]);
            refused(words, &shell.args(words).output().expect("sh"));
        }
    }
}

#[test]
fn more_cpus_than_there_are_are_refused() {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpu = allowed.and_then(|list| list.trim().split([',', '-']).next()).expect("a CPU");
    let mut command = Command::new("taskset");
    command.args(["-c", cpu, env!("CARGO_BIN_EXE_octavo"), "bench", "batch", "--cpus", "2"]);
    let output = command.output().expect("taskset");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    let said = said(&output);
    assert!(said.contains("'2'") && said.contains("may use, here 1;"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_mistake_names_the_command_that_has_help() {
    let cases: [(&[&str], &str); 5] = [
        (&["bench", "slots", "--threads", "0"], "octavo bench slots --help"),
        (&["bench", "nothing"], "octavo bench --help"),
        (&["run", "--memory", "1X", "true"], "octavo run --help"),
        (&["--nothing", "run"], "octavo --help"),
        (&[], "octavo --help"),
    ];
    for (words, help) in cases {
        let output = octavo(words).output().expect("octavo starts");
        assert_eq!(output.status.code(), Some(125), "{words:?}");
        let said = said(&output);
        assert!(said.ends_with(&format!("see `{help}`\n")), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_word_that_is_no_text_is_no_panic() {
    let mut command = octavo(&["bench"]);
    command.arg(std::ffi::OsStr::from_bytes(b"\xff"));
    let output = command.output().expect("octavo starts");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}
