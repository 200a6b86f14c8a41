//! The kernel's side: a throw-away zram device as swap, and a throw-away memory cgroup.
//!
//! Both are kept by a process of their own, the *keeper*, and live exactly as long as a pipe:
//!
//! ```text
//! driver ── spawns ──► keeper: makes device and cgroup, prints a Place, waits
//!    │                    │
//!    └── pipe closes ─────┘   by intent, by Ctrl-C, by a panic, by SIGKILL: it is all the same
//!                         └─► kills what is in the cgroup, swapoff, removes device and cgroup
//! ```
//!
//! So there is one way of cleaning up, and it does not depend on how the driver ends. The keeper
//! takes no notice of the signals a terminal or an operator sends to a whole job.

use crate::host::{self, Cgroup, CgroupVersion};
use octavo_page::ByteSize;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The highest priority there is: the kernel fills this device before it looks at another.
const PRIORITY: &str = "32767";

/// Where zram devices are made and removed.
const CONTROL: &str = "/sys/class/zram-control";

/// How long the kernel may take to let go of a device or a cgroup.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the keeper is to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// zram's name of the algorithm.
    pub algorithm: String,
    /// Size of the device, enough for all that may be swapped.
    pub disk: ByteSize,
    /// Hard limit of the cgroup.
    pub limit: ByteSize,
}

/// What the keeper has made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Directory of the device in sysfs.
    pub device: PathBuf,
    /// Directory of the cgroup.
    pub cgroup: PathBuf,
}

/// What zram says of itself, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZramUse {
    /// Uncompressed size of what is stored.
    pub stored: u64,
    /// The same, compressed.
    pub compressed: u64,
    /// Memory it takes, everything counted.
    pub used: u64,
}

impl ZramUse {
    /// Bytes stored over the bytes that it takes.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.stored as f64 / self.used as f64
    }
}

/// What the zram device with the directory `device` in sysfs holds now.
///
/// # Errors
/// When `mm_stat` cannot be read.
pub fn zram_use(device: &Path) -> Result<ZramUse, PeerError> {
    let file = device.join("mm_stat");
    let text = read(&file)?;
    let numbers: Option<Vec<u64>> =
        text.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
    match numbers.as_deref() {
        Some([stored, compressed, used, ..]) => {
            Ok(ZramUse { stored: *stored, compressed: *compressed, used: *used })
        }
        _ => Err(PeerError::File { file, why: io::ErrorKind::InvalidData.into() }),
    }
}

/// Has a zram device compact its pool.
///
/// # Errors
/// When the kernel refuses.
pub fn compact_zram(device: &Path) -> Result<(), PeerError> {
    write(&device.join("compact"), "1")
}

/// The node of a zram device, to be written to.
#[must_use]
pub fn node_of(device: &Path) -> PathBuf {
    Path::new("/dev").join(device.file_name().unwrap_or_default())
}

impl Place {
    /// Takes a process in.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn take_in(&self, pid: u32) -> Result<(), PeerError> {
        write(&self.cgroup.join("cgroup.procs"), &pid.to_string())
    }
}

/// Why the kernel's side could not be set up, or not be removed.
#[derive(Debug, Error)]
pub enum PeerError {
    /// What a keeper says.
    #[error("{0}")]
    Keeper(String),
    /// No zram in this kernel.
    #[error("{CONTROL}: not there; load the module with `sudo modprobe zram`")]
    NoZram,
    /// The algorithm is not among those zram has.
    #[error("--against zram:{name}: this kernel's zram has {offered}")]
    Algorithm {
        /// What was asked for.
        name: String,
        /// What there is.
        offered: String,
    },
    /// Swapped pages would not come to our device.
    #[error(
        "zswap is on and would take the pages before zram; switch it off with `echo N | sudo tee /sys/module/zswap/parameters/enabled`"
    )]
    Zswap,
    /// Another device of the highest priority.
    #[error(
        "/proc/swaps: another swap area has priority {PRIORITY}; switch it off with `sudo swapoff`"
    )]
    OtherSwap,
    /// No memory cgroup to be had.
    #[error("no memory cgroup is mounted, or its controller is off; mount one, as root")]
    NoCgroup,
    /// A file of the kernel's.
    #[error("{}: {why}; run the comparison as root", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What stands in the way.
        why: io::Error,
    },
    /// A tool of util-linux.
    #[error("{tool} {}: {why}", device.display())]
    Tool {
        /// Its name.
        tool: &'static str,
        /// What it was to act on.
        device: PathBuf,
        /// What it said.
        why: String,
    },
    /// Something that does not go.
    #[error("{}: still there after {} s; remove it by hand", .0.display(), PATIENCE.as_secs())]
    Stuck(PathBuf),
    /// The pipe to the driver.
    #[error("keeper: {0}")]
    Pipe(io::Error),
}

/// Makes what `plan` says, prints a [`Place`] as one line of JSON, and removes everything when
/// stdin ends.
///
/// # Errors
/// When something cannot be made (what was made before is removed) or cannot be removed.
pub fn keep(plan: &Plan) -> Result<(), PeerError> {
    pipe_decides()?;
    let mut made = Made::default();
    let outcome = made.make(plan).and_then(|place| hold(&place));
    outcome.and(made.remove())
}

/// The same for a device of `disk` bytes alone, which nobody swaps to; prints its directory in sysfs.
///
/// # Errors
/// As of [`keep`].
pub fn keep_device(algorithm: &str, disk: ByteSize) -> Result<(), PeerError> {
    pipe_decides()?;
    let mut made = Made::default();
    let outcome = made.make_zram(algorithm, disk).and_then(|device| hold(&device));
    outcome.and(made.remove())
}

/// Interrupt, terminate, hang up: none of them ends a keeper.
fn pipe_decides() -> Result<(), PeerError> {
    let noted = Arc::new(AtomicBool::new(false));
    for signal in [2, 15, 1] {
        signal_hook::flag::register(signal, Arc::clone(&noted)).map_err(PeerError::Pipe)?;
    }
    Ok(())
}

/// Prints what was made and waits for the end of stdin.
fn hold(made: &impl Serialize) -> Result<(), PeerError> {
    let line = serde_json::to_string(made).map_err(|e| PeerError::Pipe(e.into()))?;
    writeln!(io::stdout(), "{line}").map_err(PeerError::Pipe)?;
    let mut rest = Vec::new();
    io::stdin().read_to_end(&mut rest).map_err(PeerError::Pipe)?;
    Ok(())
}

/// What is there and has to go again; filled before the thing is used.
#[derive(Default)]
struct Made {
    zram: Option<u32>,
    swapped_on: bool,
    cgroup: Option<PathBuf>,
    /// A file that got `+memory` and was without it before.
    controllers: Option<PathBuf>,
}

impl Made {
    fn make(&mut self, plan: &Plan) -> Result<Place, PeerError> {
        check_competition()?;
        let cgroup = self.make_cgroup(plan.limit)?;
        let device = self.make_zram(&plan.algorithm, plan.disk)?;
        self.swap_to(&device)?;
        Ok(Place { device, cgroup })
    }

    fn make_cgroup(&mut self, limit: ByteSize) -> Result<PathBuf, PeerError> {
        let Cgroup { dir: root, version } =
            host::memory_cgroup_root().ok_or(PeerError::NoCgroup)?;
        if version == CgroupVersion::V2 {
            let controllers = root.join("cgroup.subtree_control");
            if !read(&controllers)?.split_ascii_whitespace().any(|c| c == "memory") {
                write(&controllers, "+memory").map_err(|_| PeerError::NoCgroup)?;
                self.controllers = Some(controllers);
            }
        }
        let dir = root.join(format!("octavo-bench-{}", process::id()));
        fs::create_dir(&dir).map_err(|why| PeerError::File { file: dir.clone(), why })?;
        self.cgroup = Some(dir.clone());
        write(&dir.join(version.limit_file()), &limit.bytes().to_string())?;
        Ok(dir)
    }

    fn make_zram(&mut self, algorithm: &str, disk: ByteSize) -> Result<PathBuf, PeerError> {
        let control = Path::new(CONTROL);
        if !control.is_dir() {
            // Where this does not help, the next line says what is missing.
            let _ = Command::new("modprobe").arg("zram").output();
        }
        if !control.is_dir() {
            return Err(PeerError::NoZram);
        }
        let add = control.join("hot_add");
        let number = read(&add)?.trim().parse();
        let number = number
            .map_err(|_| PeerError::File { file: add, why: io::ErrorKind::InvalidData.into() })?;
        self.zram = Some(number);
        let device = sysfs(number);
        choose_algorithm(&device, algorithm)?;
        write(&device.join("disksize"), &disk.bytes().to_string())?;
        Ok(device)
    }

    fn swap_to(&mut self, device: &Path) -> Result<(), PeerError> {
        let node = node_of(device);
        tool("mkswap", &[], &node)?;
        tool("swapon", &["-p", PRIORITY], &node)?;
        self.swapped_on = true;
        Ok(())
    }

    /// Removes everything, going on where something does not go, and says what failed first.
    fn remove(&mut self) -> Result<(), PeerError> {
        let processes = self.cgroup.as_deref().map_or(Ok(()), end_processes);
        let off = match self.zram {
            Some(number) if self.swapped_on => tool("swapoff", &[], &node_of(&sysfs(number))),
            _ => Ok(()),
        };
        let device = self.zram.take().map_or(Ok(()), remove_zram);
        let cgroup = self.cgroup.take().map_or(Ok(()), |dir| remove_dir(&dir));
        let controllers = self.controllers.take().map_or(Ok(()), |f| write(&f, "-memory"));
        processes.and(off).and(device).and(cgroup).and(controllers)
    }
}

/// Nothing else may take the pages that are swapped.
fn check_competition() -> Result<(), PeerError> {
    let zswap = fs::read_to_string("/sys/module/zswap/parameters/enabled").unwrap_or_default();
    if zswap.trim() == "Y" {
        return Err(PeerError::Zswap);
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let taken = swaps.lines().skip(1).any(|l| l.split_ascii_whitespace().last() == Some(PRIORITY));
    if taken { Err(PeerError::OtherSwap) } else { Ok(()) }
}

fn choose_algorithm(device: &Path, name: &str) -> Result<(), PeerError> {
    let file = device.join("comp_algorithm");
    let offered = read(&file)?.replace(['[', ']'], "");
    if !offered.split_ascii_whitespace().any(|algorithm| algorithm == name) {
        let offered = offered.split_ascii_whitespace().collect::<Vec<_>>().join(", ");
        return Err(PeerError::Algorithm { name: name.to_owned(), offered });
    }
    write(&file, name)
}

fn sysfs(number: u32) -> PathBuf {
    PathBuf::from(format!("/sys/block/zram{number}"))
}

/// Kills every process of a cgroup and waits until they are gone.
fn end_processes(cgroup: &Path) -> Result<(), PeerError> {
    let file = cgroup.join("cgroup.procs");
    until(cgroup, || {
        let list = read(&file)?;
        for pid in list.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            // One that has ended meanwhile is what we want.
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(list.is_empty())
    })
}

fn remove_zram(number: u32) -> Result<(), PeerError> {
    let device = sysfs(number);
    // Busy as long as somebody, udev for one, has it open.
    until(&device, || Ok(write(&device.join("reset"), "1").is_ok()))?;
    let remove = Path::new(CONTROL).join("hot_remove");
    until(&device, || Ok(write(&remove, &number.to_string()).is_ok()))
}

fn remove_dir(cgroup: &Path) -> Result<(), PeerError> {
    until(cgroup, || Ok(fs::remove_dir(cgroup).is_ok()))
}

/// Tries until it is done.
fn until(thing: &Path, mut done: impl FnMut() -> Result<bool, PeerError>) -> Result<(), PeerError> {
    let begin = Instant::now();
    while !done()? {
        if begin.elapsed() > PATIENCE {
            return Err(PeerError::Stuck(thing.to_path_buf()));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Runs a tool on a device; root's tools may not be on the user's PATH.
fn tool(name: &'static str, arguments: &[&str], device: &Path) -> Result<(), PeerError> {
    let failed = |why: String| PeerError::Tool { tool: name, device: device.to_path_buf(), why };
    let place = Path::new("/usr/sbin").join(name);
    let program = if place.exists() { place.as_os_str() } else { OsStr::new(name) };
    let output = Command::new(program).args(arguments).arg(device).output();
    let output = output.map_err(|why| failed(why.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(said.lines().last().unwrap_or("failed").to_owned()))
}

fn read(file: &Path) -> Result<String, PeerError> {
    fs::read_to_string(file).map_err(|why| PeerError::File { file: file.to_path_buf(), why })
}

fn write(file: &Path, text: &str) -> Result<(), PeerError> {
    fs::write(file, text).map_err(|why| PeerError::File { file: file.to_path_buf(), why })
}

/// A keeper's process, as long as this is held, and what it says that it has made.
pub struct Keeper<T> {
    child: Child,
    pipe: Option<ChildStdin>,
    /// What it has made.
    pub made: T,
}

impl<T: DeserializeOwned> Keeper<T> {
    /// Starts `command`, one of the hidden ones that end in [`keep`] or [`keep_device`].
    ///
    /// # Errors
    /// [`PeerError::Keeper`] with what it says when it cannot make its things.
    pub fn spawn(mut command: Command) -> Result<Self, PeerError> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().map_err(PeerError::Pipe)?;
        let pipe = child.stdin.take();
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(PeerError::Pipe)?;
        }
        match serde_json::from_str(&line) {
            Ok(made) => Ok(Self { child, pipe, made }),
            Err(_) => Err(PeerError::Keeper(last_words(&mut child))),
        }
    }
}

impl<T> Keeper<T> {
    /// Has everything removed and waits for it.
    ///
    /// # Errors
    /// [`PeerError::Keeper`] with what it says when it cannot remove something.
    pub fn finish(mut self) -> Result<(), PeerError> {
        drop(self.pipe.take());
        match self.child.wait().map_err(PeerError::Pipe)? {
            status if status.success() => Ok(()),
            _ => Err(PeerError::Keeper(last_words(&mut self.child))),
        }
    }
}

impl<T> Drop for Keeper<T> {
    /// The same on the way out of an error; waiting for a child again is answered at once.
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.child.wait();
    }
}

/// The last line a child says on stderr before it ends.
pub(crate) fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        // What cannot be read is not said.
        let _ = stderr.read_to_string(&mut text);
    }
    let line = text.lines().last().unwrap_or_default();
    line.strip_prefix("octavo: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mm_stat_is_read_by_its_columns() {
        let dir = tempfile::tempdir().expect("a directory");
        let stat = dir.path().join("mm_stat");
        fs::write(&stat, " 8192 100 4096 0 4096 1 0 0 0\n").expect("written");
        let used = ZramUse { stored: 8192, compressed: 100, used: 4096 };
        assert_eq!(zram_use(dir.path()).expect("read"), used);
        fs::write(&stat, "8192 what\n").expect("written");
        assert!(zram_use(dir.path()).is_err());
    }

    #[test]
    fn what_is_not_there_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("comp_algorithm"), "lzo-rle [lz4]\n").expect("written");
        let error = choose_algorithm(dir.path(), "zstd").expect_err("not offered").to_string();
        assert_eq!(error, "--against zram:zstd: this kernel's zram has lzo-rle, lz4");
        choose_algorithm(dir.path(), "lz4").expect("offered");
        let error = tool("mkswap", &[], Path::new("/no/such/device")).expect_err("no device");
        assert!(error.to_string().contains("/no/such/device"), "{error}");
    }
}
