//! What this machine is and what it leaves: memory, memory cgroups, processors.
//!
//! Read from `/proc` and `/sys` on every call; nothing is kept. A file that is missing or has
//! another form than expected is no fact, never an error: callers get `None` and say so.

use octavo_page::ByteSize;
use octavo_sys::maps;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Which interface a memory cgroup has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CgroupVersion {
    /// `memory.limit_in_bytes`.
    V1,
    /// `memory.max`.
    V2,
}

impl CgroupVersion {
    /// The file of the hard limit.
    #[must_use]
    pub const fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }

    const fn usage_file(self) -> &'static str {
        match self {
            Self::V1 => "memory.usage_in_bytes",
            Self::V2 => "memory.current",
        }
    }

    /// The key in `memory.stat` of the page cache that is dropped first.
    const fn cache_key(self) -> &'static str {
        match self {
            Self::V1 => "total_inactive_file",
            Self::V2 => "inactive_file",
        }
    }
}

/// A memory cgroup as a directory of this process's view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cgroup {
    /// Its directory.
    pub dir: PathBuf,
    /// Its interface.
    pub version: CgroupVersion,
}

impl Cgroup {
    /// The hard limit in bytes; `None` when there is none.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        let limit = number_in(&self.dir.join(self.version.limit_file()))?;
        // Version 1 says "no limit" with the largest multiple of a page.
        (limit < 1 << 62).then_some(limit)
    }

    /// What the limit leaves: limit, less what is used, inactive page cache not counted as used.
    #[must_use]
    pub fn room(&self) -> Option<u64> {
        let used = number_in(&self.dir.join(self.version.usage_file()))?;
        let stat = fs::read_to_string(self.dir.join("memory.stat")).ok()?;
        let cache = field(&stat, self.version.cache_key()).unwrap_or(0);
        Some(self.limit()?.saturating_sub(used.saturating_sub(cache)))
    }
}

/// The memory cgroups that bound this process: its own, then the ones around it, as far as they
/// are mounted here. Empty when no memory cgroup is mounted.
#[must_use]
pub fn memory_cgroups() -> Vec<Cgroup> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    cgroups_of(&mounts, &own)
}

/// The top of the memory cgroups mounted here.
#[must_use]
pub fn memory_cgroup_root() -> Option<Cgroup> {
    memory_cgroups().pop()
}

/// [`memory_cgroups`] from the text of `mountinfo` and `cgroup`. Version 1 wins where both are
/// mounted, because a controller that version 1 holds is absent in version 2.
fn cgroups_of(mounts: &str, own: &str) -> Vec<Cgroup> {
    let Some((root, mount, version)) = mounts
        .lines()
        .filter_map(memory_mount)
        .min_by_key(|(_, _, version)| *version == CgroupVersion::V2)
    else {
        return Vec::new();
    };
    let controller = match version {
        CgroupVersion::V1 => "memory",
        CgroupVersion::V2 => "",
    };
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let path = parts.next()?;
        controllers.split(',').any(|c| c == controller).then_some(path)
    });
    // A container may have its own cgroup mounted as the root while `cgroup` names the whole path;
    // a path from outside the mount says nothing, so the mount itself has to do.
    let below = Path::new(path.unwrap_or("/")).strip_prefix(root).unwrap_or(Path::new(""));
    let mount = Path::new(mount);
    let own_dir: PathBuf = mount.components().chain(below.components()).collect();
    own_dir
        .ancestors()
        .take_while(|dir| dir.starts_with(mount))
        .map(|dir| Cgroup { dir: dir.to_path_buf(), version })
        .collect()
}

/// Root, mount point and version of a `mountinfo` line that mounts memory cgroups.
fn memory_mount(line: &str) -> Option<(&str, &str, CgroupVersion)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, dir) = (mount.next()?, mount.next()?);
    let mut filesystem = filesystem.split(' ');
    let version = match (filesystem.next()?, filesystem.nth(1)?) {
        ("cgroup", options) if options.split(',').any(|o| o == "memory") => CgroupVersion::V1,
        ("cgroup2", _) => CgroupVersion::V2,
        _ => return None,
    };
    Some((root, dir, version))
}

/// Memory that a new job may take, and who says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes that are left.
    pub bytes: ByteSize,
    /// The directory of the cgroup that leaves the least, or `/proc/meminfo`.
    pub source: PathBuf,
}

/// The least that the machine and the memory cgroups leave; `None` without `/proc/meminfo`.
#[must_use]
pub fn room() -> Option<Room> {
    let mut least = Room { bytes: memory_available()?, source: PathBuf::from("/proc/meminfo") };
    for cgroup in memory_cgroups() {
        match cgroup.room().map(ByteSize::new) {
            Some(bytes) if bytes < least.bytes => least = Room { bytes, source: cgroup.dir },
            _ => {}
        }
    }
    Some(least)
}

/// What new programs can have without swapping (`MemAvailable`).
#[must_use]
pub fn memory_available() -> Option<ByteSize> {
    meminfo("MemAvailable:")
}

/// The machine's memory (`MemTotal`).
#[must_use]
pub fn memory_total() -> Option<ByteSize> {
    meminfo("MemTotal:")
}

fn meminfo(key: &str) -> Option<ByteSize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    field(&text, key).map(|kib| ByteSize::new(kib << 10))
}

/// The number that follows `key` at the start of a line.
pub(crate) fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(key)).then(|| words.next()?.parse().ok())?
    })
}

/// The one number a file holds; `max` is no number.
#[must_use]
pub fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The word in brackets of a file such as `always [madvise] never`.
#[must_use]
pub fn choice_in(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// The setting of transparent huge pages.
#[must_use]
pub fn huge_pages() -> Option<String> {
    choice_in(Path::new("/sys/kernel/mm/transparent_hugepage/enabled"))
}

/// Release of the running kernel, such as `6.18.44`.
#[must_use]
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Processors this process may run on.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The machine as benchmarks report it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Name of the first processor.
    pub cpu: String,
    /// Processors this process may run on.
    pub cpus: usize,
    /// The machine's memory.
    pub memory_bytes: u64,
    /// Release of the running kernel.
    pub kernel: String,
    /// The setting of transparent huge pages.
    pub huge_pages: Option<String>,
    /// Binary logarithm of the pages the kernel's swap reads ahead.
    pub page_cluster: Option<u64>,
    /// Processes that were ready to run when the benchmark began, averaged over a minute.
    pub load_1m: Option<f64>,
}

/// What this machine is, now.
#[must_use]
pub fn machine() -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
    let load = fs::read_to_string("/proc/loadavg").ok();
    Machine {
        cpu: model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned()),
        cpus: cpus(),
        memory_bytes: memory_total().map_or(0, ByteSize::bytes),
        kernel: kernel_release(),
        huge_pages: huge_pages(),
        page_cluster: number_in(Path::new("/proc/sys/vm/page-cluster")),
        load_1m: load.and_then(|l| l.split(' ').next()?.parse().ok()),
    }
}

/// Anonymous memory of a process, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Anonymous {
    /// In the mappings that some range of addresses touches.
    pub inside: u64,
    /// In all others.
    pub outside: u64,
}

/// Where the anonymous memory of `pid` is that is in RAM: in `range` or elsewhere. `None` when the
/// process has ended.
#[must_use]
pub fn anonymous_memory(pid: u32, range: &Range<usize>) -> Option<Anonymous> {
    Some(sum_smaps(&fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?, range))
}

fn sum_smaps(text: &str, range: &Range<usize>) -> Anonymous {
    let (mut sum, mut is_inside) = (Anonymous::default(), false);
    for line in text.lines() {
        if let Some(kib) = field(line, "Anonymous:") {
            *(if is_inside { &mut sum.inside } else { &mut sum.outside }) += kib << 10;
        } else if let Some(mapping) = maps::span_of(line) {
            is_inside = mapping.start < range.end && range.start < mapping.end;
        }
    }
    sum
}

/// CPU time so far: other programs disturb it less than they disturb a clock.
#[must_use]
pub fn cpu_time(of: ClockId) -> Duration {
    let time = clock_gettime(of);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_apart_by_its_address() {
        const SMAPS: &str = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Size:               1024 kB
Anonymous:           100 kB
VmFlags: rd wr
7f0000100000-7f0000200000 rw-p 00000000 00:00 0
Anonymous:             5 kB
7f1000000000-7f1000100000 rw-p 00000000 00:00 0        [heap]
Size:               1024 kB
Anonymous:            40 kB
";
        let sum = |range| sum_smaps(SMAPS, &range);
        let both = Anonymous { inside: 105 << 10, outside: 40 << 10 };
        assert_eq!(sum(0x7f00_0008_0000..0x7f00_0018_0000), both);
        assert_eq!(sum(0..1), Anonymous { inside: 0, outside: 145 << 10 });
    }

    const V1: &str = "\
30 1 0:5 / /proc rw - proc proc rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
    const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";
    const CONTAINER: &str =
        "900 8 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";

    fn dirs(mounts: &str, own: &str) -> Vec<String> {
        cgroups_of(mounts, own).iter().map(|c| c.dir.display().to_string()).collect()
    }

    #[test]
    fn cgroups_are_found_from_our_own_up() {
        let root = "/sys/fs/cgroup/memory";
        assert_eq!(
            dirs(V1, "9:name=systemd:/\n4:memory:/jobs/one\n0::/elsewhere"),
            [format!("{root}/jobs/one"), format!("{root}/jobs"), root.to_owned()]
        );
        assert_eq!(dirs(V2, "0::/user.slice"), ["/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"]);
        assert_eq!(cgroups_of(V2, "0::/")[0].version, CgroupVersion::V2);
    }

    #[test]
    fn a_containers_mount_stands_for_its_root() {
        let root = "/sys/fs/cgroup/memory";
        assert_eq!(dirs(CONTAINER, "4:memory:/docker/abc"), [root]);
        assert_eq!(
            dirs(CONTAINER, "4:memory:/docker/abc/sub"),
            [format!("{root}/sub"), root.to_owned()]
        );
        assert_eq!(dirs(CONTAINER, "4:memory:/other"), [root]);
        assert!(dirs("", "4:memory:/").is_empty());
    }

    #[test]
    fn room_is_the_limit_less_what_is_used() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("write");
        let group = Cgroup { dir: dir.path().to_path_buf(), version: CgroupVersion::V2 };
        write("memory.current", "300\n");
        write("memory.stat", "anon 100\ninactive_file 120\nactive_file 80\n");
        write("memory.max", "max\n");
        assert_eq!((group.limit(), group.room()), (None, None));
        write("memory.max", "1000\n");
        assert_eq!((group.limit(), group.room()), (Some(1000), Some(820)));
        write("memory.current", "5000\n");
        assert_eq!(group.room(), Some(0));
    }

    #[test]
    fn fields_are_whole_words() {
        assert_eq!(field("MemTotalX: 1\nMemTotal: 2 kB\n", "MemTotal:"), Some(2));
        assert_eq!(field("MemTotal:\n", "MemTotal:"), None);
    }
}
