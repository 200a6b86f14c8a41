//! What userfaultfd gives this process: asked for exactly as the pager will ask.
//!
//! ```text
//! userfaultfd(2) ─┐                  UFFDIO_API with all of REQUIRED
//!                 ├─► a descriptor ─────────────► granted, EPERM or EINVAL
//! /dev/userfaultfd┘                  UFFDIO_API with nothing
//!                                    ─────────────► the features this kernel has
//! ```
//!
//! A descriptor takes one handshake, so every question opens its own. [`probe`] gathers the
//! answers, [`verdict`] is a pure function of them.
//!
//! `unsafe` is reopened here because the handshake and the measurement are ioctls on raw addresses.
#![allow(unsafe_code)]

use memmap2::MmapMut;
use rustix::fd::{AsFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, Updater, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::ffi::c_void;
use std::fs;
use std::hint::black_box;
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The device that hands out descriptors to whoever may open it (Linux 6.1).
pub const DEVICE: &str = "/dev/userfaultfd";

/// A feature of userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feature {
    /// Its bit in the handshake.
    pub bit: u64,
    /// Its name without `UFFD_FEATURE_`.
    pub name: &'static str,
    /// The Linux release that brought it.
    pub since: &'static str,
}

/// What the pager asks for.
pub const REQUIRED: [Feature; 6] = [
    Feature { bit: 1 << 1, name: "EVENT_FORK", since: "4.11" },
    Feature { bit: 1 << 2, name: "EVENT_REMAP", since: "4.11" },
    Feature { bit: 1 << 3, name: "EVENT_REMOVE", since: "4.11" },
    Feature { bit: 1 << 6, name: "EVENT_UNMAP", since: "4.11" },
    Feature { bit: 1 << 8, name: "THREAD_ID", since: "4.14" },
    Feature { bit: 1 << 16, name: "MOVE", since: "6.8" },
];

/// What came of asking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The system call, for faults of user and kernel.
    pub syscall: Result<(), Errno>,
    /// The same through [`DEVICE`].
    pub device: Result<(), Errno>,
    /// The features this kernel has; `None` when nothing could be opened at all.
    pub offered: Option<u64>,
    /// The handshake with all of [`REQUIRED`].
    pub granted: Result<(), Errno>,
}

/// What this process may do, as far as it bears on userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// CAP_SYS_PTRACE is in the effective set.
    pub ptrace: bool,
    /// The machine's own user namespace: only there capabilities count for userfaultfd.
    pub initial_namespace: bool,
    /// A seccomp filter is installed.
    pub seccomp: bool,
}

/// What is missing, and what grants it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Missing {
    /// The kernel has no userfaultfd.
    #[error(
        "userfaultfd: this kernel was built without it; use Linux 6.8 or later with CONFIG_USERFAULTFD=y"
    )]
    Kernel,
    /// The kernel is too old.
    #[error("userfaultfd: this kernel has no {}; use Linux {since} or later", names.join(", "))]
    Features {
        /// Names of what is missing.
        names: Vec<&'static str>,
        /// The first release that has all of it.
        since: &'static str,
    },
    /// A seccomp filter stands before it.
    #[error(
        "userfaultfd: forbidden by a seccomp filter; start the container with \
         `docker run --cap-add SYS_PTRACE --security-opt seccomp=unconfined ...` \
         or a profile that allows userfaultfd"
    )]
    Seccomp,
    /// Capabilities of a user namespace do not count.
    #[error(
        "userfaultfd: CAP_SYS_PTRACE of a user namespace does not count; run `octavo` outside of it"
    )]
    UserNamespace,
    /// Not privileged.
    #[error(
        "userfaultfd: CAP_SYS_PTRACE is missing; grant it with \
         `sudo setpriv --reuid $(id -u) --regid $(id -g) --init-groups \
         --inh-caps +sys_ptrace --ambient-caps +sys_ptrace octavo run ...`, \
         or in a container with `docker run --cap-add SYS_PTRACE ...`"
    )]
    Capability,
    /// Refused for a reason we know no remedy for.
    #[error("userfaultfd: refused ({0}); look for a security module's denial with `dmesg`")]
    Other(Errno),
}

/// Whether the pager would get what it needs.
pub fn verdict(probe: &Probe, rights: Rights) -> Result<(), Missing> {
    let Err(why) = probe.granted else { return Ok(()) };
    let lacking = probe.offered.map_or_else(Vec::new, lacking);
    let newest = lacking.iter().map(|f| f.since).max_by_key(|since| release(since));
    if let Some(since) = newest {
        let names = lacking.iter().map(|f| f.name).collect();
        return Err(Missing::Features { names, since });
    }
    Err(match why {
        Errno::NOSYS => Missing::Kernel,
        Errno::PERM if rights.ptrace && !rights.initial_namespace => Missing::UserNamespace,
        Errno::PERM if rights.seccomp && probe.offered.is_none() => Missing::Seccomp,
        Errno::PERM if !rights.ptrace => Missing::Capability,
        why => Missing::Other(why),
    })
}

/// What of [`REQUIRED`] is not among `offered`.
fn lacking(offered: u64) -> Vec<Feature> {
    REQUIRED.into_iter().filter(|f| offered & f.bit == 0).collect()
}

/// A release as numbers, so that 6.8 comes before 6.10.
fn release(text: &str) -> Vec<u32> {
    text.split('.').map_while(|part| part.parse().ok()).collect()
}

/// Asks the kernel.
#[must_use]
pub fn probe() -> Probe {
    let (syscall, device) = (open_by_syscall(full()), open_by_device());
    let door = match (&syscall, &device) {
        (Err(_), Ok(_)) => open_by_device,
        _ => || open_by_syscall(full()),
    };
    let required = REQUIRED.iter().fold(0, |all, f| all | f.bit);
    let any = door().or_else(|_| open_by_syscall(user_only()));
    Probe {
        syscall: syscall.map(drop),
        device: device.map(drop),
        offered: any.and_then(|fd| handshake(&fd, 0)).ok(),
        granted: door().and_then(|fd| handshake(&fd, required)).map(drop),
    }
}

fn full() -> UserfaultfdFlags {
    UserfaultfdFlags::CLOEXEC
}

/// For the faults of user mode only: granted to everybody (UFFD_USER_MODE_ONLY, Linux 5.11).
fn user_only() -> UserfaultfdFlags {
    full() | UserfaultfdFlags::from_bits_retain(1)
}

fn open_by_syscall(flags: UserfaultfdFlags) -> Result<OwnedFd, Errno> {
    // SAFETY: the descriptor manages nothing until a range is registered with it.
    unsafe { userfaultfd(flags) }
}

fn open_by_device() -> Result<OwnedFd, Errno> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: `New` passes the kernel an integer and nothing else.
    unsafe { ioctl::ioctl(device, New) }
}

/// `USERFAULTFD_IOC_NEW`: a descriptor from the device.
struct New;

// SAFETY: the argument is a flag word, no pointer, and the result is a descriptor that the kernel
// made for us alone.
unsafe impl Ioctl for New {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(GROUP, 0x00)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(full().bits() as usize)
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: a successful call returns a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

const GROUP: u8 = 0xAA;
const API_VERSION: u64 = 0xAA;
const REGISTER_MISSING: u64 = 1;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

const API: Opcode = opcode::read_write::<Api>(GROUP, 0x3F);
const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0x00);
const UNREGISTER: Opcode = opcode::read::<Range>(GROUP, 0x01);
const COPY: Opcode = opcode::read_write::<Copy>(GROUP, 0x03);

/// Asks for `features` and gets all that the kernel has.
fn handshake(fd: &impl AsFd, features: u64) -> Result<u64, Errno> {
    let mut api = Api { api: API_VERSION, features, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one `uffdio_api`, which `Api` mirrors.
    unsafe { ioctl::ioctl(fd, Updater::<API, Api>::new(&mut api)) }?;
    Ok(api.features)
}

/// What this process may do. Unreadable facts count as the unprivileged case.
#[must_use]
pub fn rights() -> Rights {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = |key| status.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
    let effective = value("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let namespace = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    Rights {
        ptrace: effective >> CAP_SYS_PTRACE & 1 == 1,
        initial_namespace: namespace.split_ascii_whitespace().eq(["0", "0", "4294967295"]),
        seccomp: value("Seccomp:") == Some("2"),
    }
}

/// Time of one first touch of `unit` bytes, answered by copying from another thread: the median
/// of `count`. Uses whatever descriptor can be had, user-mode-only where nothing else can.
///
/// # Errors
/// When no descriptor can be had, or memory, or a thread.
pub fn fault_cost(unit: usize, count: usize) -> io::Result<Duration> {
    let any = open_by_syscall(full())
        .or_else(|_| open_by_device())
        .or_else(|_| open_by_syscall(user_only()))?;
    handshake(&any, 0)?;
    let target = MmapMut::map_anon(unit * count)?;
    let mut source = MmapMut::map_anon(unit)?;
    source.fill(0x5A);
    let range = Range { start: target.as_ptr() as u64, len: target.len() as u64 };
    let mut register = Register { range, mode: REGISTER_MISSING, ioctls: 0 };
    // SAFETY: the range is the mapping `target`, which outlives the descriptor's use below; its
    // pages are absent, so a touch waits for `answer`, which fills it or unregisters it.
    unsafe { ioctl::ioctl(&any, Updater::<REGISTER, Register>::new(&mut register)) }?;
    thread::scope(|scope| {
        let answers = thread::Builder::new().spawn_scoped(scope, || {
            let done = (0..count).try_for_each(|_| answer(&any, &source));
            // Whoever still waits goes on with zeros; without that, a failure would be a hang.
            unregister(&any, range).and(done)
        })?;
        let mut times = Vec::with_capacity(count);
        for start in (0..target.len()).step_by(unit) {
            let begin = Instant::now();
            black_box(target[start]);
            times.push(begin.elapsed());
        }
        answers.join().map_err(|_| io::Error::other("the answering thread ended"))??;
        times.sort_unstable();
        Ok(times[count / 2])
    })
}

/// Reads one fault and copies `source` over the unit in which it lies; units are touched at
/// their first byte.
fn answer(fd: &OwnedFd, source: &MmapMut) -> io::Result<()> {
    const PAGEFAULT: u8 = 0x12;
    const ADDRESS: usize = 16;
    let mut message = [0; 32];
    let read = rustix::io::read(fd, &mut message)?;
    if read != message.len() || message[0] != PAGEFAULT {
        return Err(io::Error::other("an event that is no fault"));
    }
    let address: [u8; 8] = std::array::from_fn(|i| message[ADDRESS + i]);
    let page = u64::from_ne_bytes(address) & !(octavo_page::PAGE_SIZE as u64 - 1);
    let len = source.len() as u64;
    let mut copy = Copy { dst: page, src: source.as_ptr() as u64, len, mode: 0, copied: 0 };
    // SAFETY: `dst` lies at the start of a unit inside the registered range, whose contents no
    // reference has seen yet; `src` is a whole mapping of `len` bytes.
    unsafe { ioctl::ioctl(fd, Updater::<COPY, Copy>::new(&mut copy)) }?;
    Ok(())
}

fn unregister(fd: &OwnedFd, mut range: Range) -> io::Result<()> {
    // SAFETY: UFFDIO_UNREGISTER reads one `uffdio_range`; pages keep their contents.
    unsafe { ioctl::ioctl(fd, Updater::<UNREGISTER, Range>::new(&mut range)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 0x1FFFF;
    const ROOT: Rights = Rights { ptrace: true, initial_namespace: true, seccomp: false };
    const USER: Rights = Rights { ptrace: false, ..ROOT };

    fn refused(offered: Option<u64>, why: Errno) -> Probe {
        Probe { syscall: Err(why), device: Err(Errno::ACCESS), offered, granted: Err(why) }
    }

    #[test]
    fn what_is_missing_is_named() {
        let granted = Probe { granted: Ok(()), ..refused(Some(ALL), Errno::PERM) };
        assert_eq!(verdict(&granted, USER), Ok(()));
        let old = verdict(&refused(Some(ALL & !(1 << 16)), Errno::INVAL), ROOT);
        assert_eq!(old, Err(Missing::Features { names: vec!["MOVE"], since: "6.8" }));
        let older = verdict(&refused(Some(0xFF & !(1 << 16)), Errno::INVAL), ROOT);
        let names = vec!["THREAD_ID", "MOVE"];
        assert_eq!(older, Err(Missing::Features { names, since: "6.8" }));
        for (rights, offered, why, missing) in [
            (USER, Some(ALL), Errno::PERM, Missing::Capability),
            (USER, None, Errno::NOSYS, Missing::Kernel),
            (Rights { seccomp: true, ..USER }, None, Errno::PERM, Missing::Seccomp),
            (Rights { seccomp: true, ..ROOT }, None, Errno::PERM, Missing::Seccomp),
            (Rights { seccomp: true, ..USER }, Some(ALL), Errno::PERM, Missing::Capability),
            (
                Rights { initial_namespace: false, ..ROOT },
                Some(ALL),
                Errno::PERM,
                Missing::UserNamespace,
            ),
            (ROOT, None, Errno::PERM, Missing::Other(Errno::PERM)),
        ] {
            assert_eq!(verdict(&refused(offered, why), rights), Err(missing));
        }
    }

    #[test]
    fn releases_compare_as_numbers() {
        assert!(release("6.8") < release("6.10") && release("4.14") < release("6.8"));
    }

    /// Whatever this machine allows, the answers fit together.
    #[test]
    fn a_probe_agrees_with_itself() {
        let probe = probe();
        if probe.granted.is_ok() {
            assert!(probe.syscall.is_ok() || probe.device.is_ok());
            assert!(probe.offered.is_some_and(|o| lacking(o).is_empty()));
        } else {
            assert!(verdict(&probe, rights()).is_err());
        }
    }

    #[test]
    fn a_fault_is_answered() {
        match fault_cost(64 << 10, 4) {
            Ok(time) => assert!(time > Duration::ZERO),
            Err(why) => eprintln!("no userfaultfd here: {why}"),
        }
    }
}
