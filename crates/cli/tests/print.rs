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

#[test]
fn a_full_disk_is_one_line_and_125() {
    let commands: [&[&str]; 5] = [
        &["sim", "slots"],
        &["sim", "slots", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["run", "--help"],
    ];
    for words in commands {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let output = octavo(words).stdout(full).output().expect("octavo starts");
        assert_eq!(output.status.code(), Some(125), "{words:?}: {output:?}");
        let said = said(&output);
        assert!(
            said.starts_with("octavo: stdout: ") && said.lines().count() == 1,
            "{words:?}: {said}"
        );
    }
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

#[test]
fn a_codec_that_is_suggested_is_taken() {
    for name in ["deflate-canned", "deflate-canned:9", "deflate-canned:6:by_4"] {
        let refused = said(&octavo(&["run", "--codec", name, "--", "true"]).output().unwrap());
        let (_, suggested) = refused.split_once("yet; ").expect("a suggestion");
        let suggested = suggested.split(' ').next().unwrap();
        // Refused later, if at all: for what the machine lacks, not for the codec.
        let taken =
            said(&octavo(&["run", "--codec", suggested, "--", "/nowhere"]).output().unwrap());
        assert!(!taken.contains("--codec"), "{suggested}: {taken}");
    }
}
