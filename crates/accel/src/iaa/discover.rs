//! Devices, their queues, and which processors are near them, out of sysfs.
//!
//! ```text
//!   ROOT/bus/dsa/devices/iaxN/            numa_node, state, pasid_enabled
//!   ROOT/bus/dsa/devices/wqN.M/           state, mode, type, size
//!   ROOT/devices/system/cpu/possible      0-111
//!   ROOT/devices/system/cpu/cpuC/topology/physical_package_id
//!   ROOT/devices/system/node/nodeK/cpulist
//! ```
//!
//! What is near a device is a *package*, not a NUMA node: with sub-NUMA clusters a package has
//! several nodes, and only some of them have devices. A device belongs to the package of the
//! processors of its node.
//!
//! A tree may be damaged or odd. What can be used is used; what was missed is said ([`Note`]).

use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use octavo_sys::file::{Fd, Text};

/// Numbers of devices that are looked for: those of both kinds of accelerator are counted together.
pub const MAX_DEVICES: u16 = 256;
/// Queues of a device.
pub const MAX_QUEUES: u8 = 8;
/// Processors that are looked for.
pub const MAX_CPUS: usize = 4096;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// Devices with a queue to use, in order of number.
    pub devices: Vec<Device>,
    /// The package of each processor, by its number; `None` for those that are not there.
    pub cpus: Vec<Option<u32>>,
    /// What is odd.
    pub notes: Vec<Note>,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// N of `iaxN`.
    pub number: u16,
    /// The package it belongs to, if that can be told.
    pub package: Option<u32>,
    /// Queues that are enabled for user space, in order of number.
    pub queues: Vec<Queue>,
}

/// A work queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queue {
    /// M of `wqN.M`.
    pub number: u8,
    /// Commands it holds.
    pub size: u32,
    /// Whether one process has it alone.
    pub is_dedicated: bool,
}

/// What is odd about a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// No device at all.
    NoDevices,
    /// This device is not enabled.
    DeviceDisabled(u16),
    /// This device has no queue that is enabled for user space.
    NoQueues(u16),
    /// This queue is left out: not enabled.
    QueueDisabled(u16, u8),
    /// This queue is left out: it belongs to the kernel.
    QueueOfKernel(u16, u8),
    /// This queue is left out: its size or mode cannot be read.
    QueueUnreadable(u16, u8),
    /// It cannot be told which package this device belongs to: processors of all use it.
    NoPackage(u16),
    /// No processor's package can be read: all count as one.
    NoPackages,
    /// This package has no device: its processors use those of all packages.
    PackageWithoutDevice(u32),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevices => f.write_str("no IAA device; the CPU does the work"),
            Self::DeviceDisabled(n) => {
                write!(f, "iax{n} is not enabled; 'accel-config enable-device iax{n}' enables it")
            }
            Self::NoQueues(n) => write!(
                f,
                "iax{n} has no work queue enabled for user space; \
                 'accel-config config-wq' and 'accel-config enable-wq' make one"
            ),
            Self::QueueDisabled(n, m) => write!(
                f,
                "wq{n}.{m} is not enabled; 'accel-config enable-wq iax{n}/wq{n}.{m}' enables it"
            ),
            Self::QueueOfKernel(n, m) => {
                write!(f, "wq{n}.{m} belongs to the kernel; its type must be 'user' to be used")
            }
            Self::QueueUnreadable(n, m) => {
                write!(f, "wq{n}.{m} has a size or mode that cannot be read; it is left out")
            }
            Self::NoPackage(n) => write!(
                f,
                "iax{n} does not say which processors are near it; those of all packages use it"
            ),
            Self::NoPackages => {
                f.write_str("packages of processors cannot be read; all count as one")
            }
            Self::PackageWithoutDevice(n) => write!(
                f,
                "package {n} has no IAA device; its processors use those of the other packages"
            ),
        }
    }
}

/// Looks at the tree under `root`, which is `/sys` but for tests. Allocates.
#[must_use]
pub fn discover(root: &str) -> Found {
    let sysfs = Sysfs { root };
    let mut found = Found { cpus: packages(sysfs), ..Found::default() };
    let mut is_any_there = false;
    for number in 0..MAX_DEVICES {
        let read = |name: &str| sysfs.read(format_args!("bus/dsa/devices/iax{number}/{name}"));
        let state = read("state");
        if state.as_str().is_empty() {
            continue;
        }
        is_any_there = true;
        if state.as_str() != "enabled" {
            found.notes.push(Note::DeviceDisabled(number));
            continue;
        }
        let queues = queues(sysfs, number, &mut found.notes);
        if queues.is_empty() {
            found.notes.push(Note::NoQueues(number));
            continue;
        }
        let package =
            read("numa_node").as_str().parse().ok().and_then(|n| package_of(sysfs, n, &found.cpus));
        if package.is_none() {
            found.notes.push(Note::NoPackage(number));
        }
        found.devices.push(Device { number, package, queues });
    }
    if !is_any_there {
        found.notes.push(Note::NoDevices);
    }
    note_packages(&mut found);
    found
}

/// What is odd about the packages, where there are devices.
fn note_packages(found: &mut Found) {
    if found.devices.is_empty() {
        return;
    }
    let mut packages: Vec<u32> = found.cpus.iter().copied().flatten().collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        found.notes.push(Note::NoPackages);
    }
    let is_without =
        |package: &u32| !found.devices.iter().any(|d| d.package.is_none_or(|p| p == *package));
    let without = packages.into_iter().filter(is_without).map(Note::PackageWithoutDevice);
    found.notes.extend(without.collect::<Vec<_>>());
}

fn queues(sysfs: Sysfs<'_>, device: u16, notes: &mut Vec<Note>) -> Vec<Queue> {
    let mut queues = Vec::new();
    for number in 0..MAX_QUEUES {
        let read =
            |name: &str| sysfs.read(format_args!("bus/dsa/devices/wq{device}.{number}/{name}"));
        let state = read("state");
        if state.as_str().is_empty() {
            continue;
        }
        if state.as_str() != "enabled" {
            notes.push(Note::QueueDisabled(device, number));
            continue;
        }
        if read("type").as_str() == "kernel" {
            notes.push(Note::QueueOfKernel(device, number));
            continue;
        }
        let is_dedicated = match read("mode").as_str() {
            "dedicated" => Some(true),
            "shared" => Some(false),
            _ => None,
        };
        let size = read("size").as_str().parse().ok().filter(|size| (1..=1024).contains(size));
        match (size, is_dedicated) {
            (Some(size), Some(is_dedicated)) => queues.push(Queue { number, size, is_dedicated }),
            _ => notes.push(Note::QueueUnreadable(device, number)),
        }
    }
    queues
}

/// The package of each processor.
fn packages(sysfs: Sysfs<'_>) -> Vec<Option<u32>> {
    let possible = sysfs.read("devices/system/cpu/possible");
    let last = numbers(possible.as_str()).max().unwrap_or(0);
    let package = |cpu| {
        let id =
            sysfs.read(format_args!("devices/system/cpu/cpu{cpu}/topology/physical_package_id"));
        id.as_str().parse().ok()
    };
    (0..=last).map(package).collect()
}

/// The package of the processors of a NUMA node.
fn package_of(sysfs: Sysfs<'_>, node: i32, cpus: &[Option<u32>]) -> Option<u32> {
    let node = u32::try_from(node).ok()?;
    let list = sysfs.read(format_args!("devices/system/node/node{node}/cpulist"));
    numbers(list.as_str()).find_map(|cpu| cpus.get(cpu).copied().flatten())
}

/// The numbers of a list such as `0-3,8`; what is no number is passed over.
fn numbers(list: &str) -> impl Iterator<Item = usize> {
    list.split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.trim().parse::<usize>().ok().zip(last.trim().parse::<usize>().ok());
        range.map_or(0..0, |(first, last)| first..last.saturating_add(1).min(MAX_CPUS))
    })
}

/// The tree.
#[derive(Clone, Copy)]
struct Sysfs<'a> {
    root: &'a str,
}

impl Sysfs<'_> {
    fn open(self, path: impl fmt::Display) -> Option<Fd> {
        let mut whole = Text::<512>::new();
        write!(whole, "{}/{path}", self.root).ok()?;
        Fd::open(whole.as_c_str()?).ok()
    }

    /// What a file says, without the end of its line; nothing where there is no such file.
    fn read(self, path: impl fmt::Display) -> Words {
        let mut words = Words { bytes: [0; WORDS], len: 0 };
        if let Some(file) = self.open(path) {
            words.len = file.read(&mut words.bytes).unwrap_or(0);
        }
        words
    }
}

/// Bytes of a file that are read: a list of processors may be long.
const WORDS: usize = 1024;

/// What a file says.
struct Words {
    bytes: [u8; WORDS],
    len: usize,
}

impl Words {
    fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or(&[]);
        core::str::from_utf8(bytes).unwrap_or("").trim()
    }
}
