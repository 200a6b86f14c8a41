//! `octavo doctor` from outside: its JSON is one object. That it agrees with `octavo run` stands in `run.rs`.

use serde_json::Value;
use std::process::{Command, Output};

fn octavo(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octavo")).args(words).output().expect("octavo starts")
}

#[test]
fn every_line_is_ok_or_says_what_would_do() {
    let output = octavo(&["doctor", "--json"]);
    assert!(output.stderr.is_empty());
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let checks = report["checks"].as_array().expect("checks");
    let names: Vec<_> = checks.iter().map(|c| c["check"].as_str().expect("a name")).collect();
    for name in [
        "kernel",
        "userfaultfd MOVE",
        "userfaultfd",
        "PROCMAP_QUERY",
        "RLIMIT_AS",
        "RLIMIT_FSIZE",
        "RLIMIT_NOFILE",
        "preloaded object",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    for check in checks {
        assert!(check["ok"] == true || check["mend"].is_string(), "{check}");
    }
    let ok = checks.iter().all(|check| check["ok"] == true);
    assert_eq!(report["ok"], ok);
    assert_eq!(output.status.code(), Some(i32::from(!ok)));
}
