//! `octavo bench swap` from outside: its rows, and that nothing stays behind however it ends.
//!
//! The kernel's side takes root and zram. Where they are missing these tests say so and pass.

use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// One megabyte of pages that compress.
fn pages(dir: &TempDir) -> PathBuf {
    let file = dir.path().join("pages");
    let words = (0..1u32 << 17).flat_map(|i| [i, 7]);
    fs::write(&file, words.flat_map(u32::to_le_bytes).collect::<Vec<_>>()).expect("written");
    file
}

fn bench(dir: &TempDir, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command.args(["bench", "swap", "--memory", "16M", "--json", "--pages"]).arg(pages(dir));
    command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Processes, by command and id, that a benchmark of ours has started.
fn children(of: &Child, kind: &str) -> Vec<u32> {
    let file = format!("/proc/{0}/task/{0}/children", of.id());
    let ids = fs::read_to_string(file).unwrap_or_default();
    let ids = ids.split_whitespace().filter_map(|id| id.parse().ok());
    ids.filter(|id: &u32| {
        fs::read(format!("/proc/{id}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(kind))
    })
    .collect()
}

fn signal(name: &str, id: u32) {
    let status = Command::new("kill").args([name, &id.to_string()]).status();
    assert!(status.expect("kill").success());
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "waited for: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// The cgroup that a keeper makes has its process id in its name.
fn left_behind(keeper: u32) -> bool {
    let cgroup = format!("octavo-bench-{keeper}");
    ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"]
        .iter()
        .any(|root| PathBuf::from(root).join(&cgroup).exists())
}

fn zram_devices() -> usize {
    let devices = fs::read_dir("/sys/block").expect("sysfs").flatten();
    devices.filter(|d| d.file_name().to_string_lossy().starts_with("zram")).count()
}

/// Whether the kernel's side can be had here and now.
fn peer_allowed(dir: &TempDir) -> bool {
    let words = ["--size", "1M", "--against", "zram:lz4", "--rounds", "1"];
    let output = bench(dir, &words).output().expect("octavo starts");
    if !output.stdout.is_empty() {
        return true;
    }
    eprintln!("left out: {}", String::from_utf8_lossy(&output.stderr));
    false
}

#[test]
fn bad_arguments_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    for (words, says) in [
        (&["--size", "1K"][..], "4K"),
        (&["--size", "1M", "--threads", "0"], "from 1 on"),
        (&["--size", "1M", "--against", "zswap"], "zram:lz4"),
        (&["--size", "1M", "--pages", "/no/such/file"], "/no/such/file"),
    ] {
        let output = bench(&dir, words).output().expect("octavo starts");
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{line}");
        assert!(line.starts_with("octavo: ") && line.contains(says), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

/// One test, because two would see each other's devices.
#[test]
fn the_kernels_side_is_measured_and_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    if !peer_allowed(&dir) {
        return;
    }
    let devices = zram_devices();
    let words = ["--size", "24M", "--against", "zram:lz4", "--rounds", "2", "--threads", "1,2"];
    let output = bench(&dir, &words).output().expect("octavo starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(report["bench"], "swap");
    let rows = report["rows"].as_array().expect("rows");
    let kernel: Vec<_> = rows.iter().filter(|row| row["system"] == "zram:lz4").collect();
    assert_eq!(kernel.len(), 2, "one for each number of threads");
    for row in kernel {
        for key in ["fill_mb_s", "seq_read_mb_s", "rand_read_us", "rand_write_us", "ratio"] {
            assert!(row[key].as_f64().is_some_and(|value| value > 0.0), "{key} in {row}");
        }
        let bytes = |key: &str| row[key].as_u64().expect(key);
        assert!(bytes("pool_bytes") > 1 << 20, "some of it was swapped: {row}");
        assert_eq!(bytes("total_memory_bytes"), (16 << 20) + bytes("pool_bytes"));
        assert!(bytes("anon_bytes") < 18 << 20, "the limit held: {row}");
    }
    assert_eq!(zram_devices(), devices);

    let words = ["--size", "512M", "--against", "zram:lz4", "--rounds", "1"];
    for (whom, how, status) in [
        ("driver", "-INT", Some(130)),
        ("driver", "-TERM", Some(130)),
        ("driver", "-KILL", None),
        ("worker", "-KILL", Some(125)),
    ] {
        let mut driver = bench(&dir, &words).spawn().expect("octavo starts");
        let mut keeper = 0;
        let mut worker = 0;
        until("a worker that is filling", || {
            keeper = children(&driver, "bench-swap-peer").first().copied().unwrap_or(0);
            worker = children(&driver, "bench-swap-worker").first().copied().unwrap_or(0);
            let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap_or_default();
            status.lines().any(|l| l.starts_with("VmSwap:") && !l.ends_with(" 0 kB"))
        });
        assert!(left_behind(keeper), "the cgroup is found while it is there");
        signal(how, if whom == "driver" { driver.id() } else { worker });
        assert_eq!(driver.wait().expect("it ends").code(), status, "{whom} {how}");
        until("everything removed", || !left_behind(keeper) && zram_devices() == devices);
        let swaps = fs::read_to_string("/proc/swaps").expect("swaps");
        assert!(!swaps.contains("32767"), "{swaps}");
        // A zombie waits for whoever inherited it, and holds nothing.
        let state = fs::read_to_string(format!("/proc/{worker}/status")).unwrap_or_default();
        assert!(state.is_empty() || state.contains("State:\tZ"), "the worker is gone: {state}");
    }
}
