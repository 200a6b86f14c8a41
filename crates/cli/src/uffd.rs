//! What the kernel gives this process: asked for exactly as the pager will ask.
//!
//! [`probe`] opens one userfaultfd with everything in [`REQUIRED`], as the pager does, and one for
//! each feature by itself, because a refusal of the whole names no part. [`verdict`] is a pure
//! function of the answers: what is missing, and what grants it. [`mappings`] asks for the list of
//! mappings, which is newer than all features.

use memmap2::MmapMut;
use octavo_sys::Errno;
use octavo_sys::file::{Watch, poll};
use octavo_sys::maps::Maps;
use octavo_sys::task::{self, CpuSet};
use octavo_sys::uffd::{Event, Span, Uffd, Waiters, feature};
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
}

/// The first Linux release that has all we need: `UFFDIO_MOVE` came with 6.8, `PROCMAP_QUERY` with this.
pub const LINUX: &str = "6.11";

/// What the pager asks for.
pub const REQUIRED: [Feature; 6] = [
    Feature { bit: feature::FORK, name: "EVENT_FORK" },
    Feature { bit: feature::REMAP, name: "EVENT_REMAP" },
    Feature { bit: feature::REMOVE, name: "EVENT_REMOVE" },
    Feature { bit: feature::UNMAP, name: "EVENT_UNMAP" },
    Feature { bit: feature::THREAD_ID, name: "THREAD_ID" },
    Feature { bit: feature::MOVE, name: "MOVE" },
];

/// What came of asking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// A descriptor with all of [`REQUIRED`].
    pub granted: Result<(), Errno>,
    /// One with each of them alone. `EINVAL` says that the kernel has it not; any other refusal
    /// says nothing of the kernel.
    pub alone: [Result<(), Errno>; REQUIRED.len()],
}

/// What this process may do, as far as it bears on userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// CAP_SYS_PTRACE is in the effective set.
    pub ptrace: bool,
    /// CAP_SYS_NICE is in the effective set: a server may be given time again that was put behind everybody.
    pub nice: bool,
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
        "userfaultfd: this kernel was built without it; use Linux {LINUX} or later with \
         CONFIG_USERFAULTFD=y"
    )]
    Kernel,
    /// The kernel is too old.
    #[error("userfaultfd: this kernel has no {}; use Linux {LINUX} or later", .0.join(", "))]
    Features(Vec<&'static str>),
    /// A seccomp filter stands before it.
    #[error(
        "userfaultfd: forbidden by a seccomp filter; start the container with \
         `docker run --cap-add SYS_PTRACE --cap-add SYS_NICE \
         --security-opt seccomp=unconfined ...` \
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
         --inh-caps +sys_ptrace,+sys_nice --ambient-caps +sys_ptrace,+sys_nice \
         octavo run ...`, \
         or in a container with `docker run --cap-add SYS_PTRACE --cap-add SYS_NICE ...`"
    )]
    Capability,
    /// Refused for a reason we know no remedy for.
    #[error("userfaultfd: refused ({0}); look for a security module's denial with `dmesg`")]
    Other(Errno),
    /// The kernel is too old to list mappings one by one.
    #[error("PROCMAP_QUERY: this kernel cannot list mappings by it; use Linux {LINUX} or later")]
    Query,
    /// There is no list of mappings.
    #[error("/proc/self/maps: cannot be read ({0}); mount /proc")]
    Mappings(Errno),
}

/// Whether the pager would get what it needs.
pub fn verdict(probe: &Probe, rights: Rights) -> Result<(), Missing> {
    let Err(why) = probe.granted else { return Ok(()) };
    let features = REQUIRED.into_iter().zip(probe.alone);
    let absent = features.filter(|(_, alone)| *alone == Err(Errno::EINVAL));
    let absent: Vec<_> = absent.map(|(feature, _)| feature.name).collect();
    if !absent.is_empty() {
        return Err(Missing::Features(absent));
    }
    let opens = probe.alone.iter().any(Result::is_ok);
    Err(match why {
        Errno::EPERM | Errno::ENOSYS if rights.seccomp && !opens => Missing::Seccomp,
        Errno::ENOSYS => Missing::Kernel,
        Errno::EPERM if !rights.ptrace => Missing::Capability,
        Errno::EPERM if !rights.initial_namespace => Missing::UserNamespace,
        why => Missing::Other(why),
    })
}

/// Whether the pager can learn what of the address space is memory.
pub fn mappings() -> Result<(), Missing> {
    Maps::open().and_then(|maps| maps.writable_from(0)).map(drop).map_err(|why| match why {
        Errno::ENOTTY => Missing::Query,
        why => Missing::Mappings(why),
    })
}

/// Asks the kernel.
#[must_use]
pub fn probe() -> Probe {
    let open = |features| Uffd::open(features).map(drop);
    let all = REQUIRED.iter().fold(0, |all, feature| all | feature.bit);
    Probe { granted: open(all), alone: REQUIRED.map(|feature| open(feature.bit)) }
}

/// What this process may do. Unreadable facts count as the unprivileged case.
#[must_use]
pub fn rights() -> Rights {
    const CAP_SYS_PTRACE: u32 = 19;
    const CAP_SYS_NICE: u32 = 23;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = |key| status.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
    let effective = value("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let namespace = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    Rights {
        ptrace: effective >> CAP_SYS_PTRACE & 1 == 1,
        nice: effective >> CAP_SYS_NICE & 1 == 1,
        initial_namespace: namespace.split_ascii_whitespace().eq(["0", "0", "4294967295"]),
        seccomp: value("Seccomp:") == Some("2"),
    }
}

/// Where the thread runs that answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answerer {
    /// On the processor of the thread that faults.
    SameCpu,
    /// Wherever the kernel puts it.
    AnyCpu,
}

/// Time of a first touch of `unit` bytes, answered by copying from another thread: the median of
/// `count`.
///
/// # Errors
/// When userfaultfd cannot be had, or memory, or a thread.
pub fn fault_cost(unit: usize, count: usize, answerer: Answerer) -> io::Result<Duration> {
    let uffd = Uffd::open(0).map_err(to_io)?;
    let source = vec![0x5A; unit];
    let target = MmapMut::map_anon(unit * count)?;
    let start = target.as_ptr() as usize;
    let span = start..start + target.len();
    uffd.register(span.clone()).map_err(to_io)?;
    thread::scope(|scope| {
        let faults = thread::Builder::new().spawn_scoped(scope, || {
            if answerer == Answerer::SameCpu {
                CpuSet::only(task::cpu()).bind(task::id());
            }
            // A thread inherits the processors of the one that starts it.
            let answers = thread::Builder::new().spawn_scoped(scope, || {
                let done = answer_all(&uffd, span, &source, count);
                done.map_err(to_io)
            })?;
            let times = touch_each(&target, unit);
            answers.join().map_err(|_| io::Error::other("the answering thread ended"))??;
            Ok(times)
        })?;
        let ended = faults.join();
        let mut times =
            ended.unwrap_or_else(|_| Err(io::Error::other("the faulting thread ended")))?;
        times.sort_unstable();
        Ok(times[count / 2])
    })
}

/// Reads the first byte of every unit, and says how long each took.
fn touch_each(target: &MmapMut, unit: usize) -> Vec<Duration> {
    let starts = (0..target.len()).step_by(unit);
    let touch = |start: usize| {
        let begin = Instant::now();
        black_box(target[start]);
        begin.elapsed()
    };
    starts.map(touch).collect()
}

/// Answers `count` faults in `span`, each on the first byte of a unit. Whoever still waits when
/// something fails goes on with zeros: without that, a failure would be a hang.
fn answer_all(uffd: &Uffd, span: Span, source: &[u8], count: usize) -> Result<(), Errno> {
    let mut answered = 0;
    let mut answer = || {
        let mut events = [const { None }; 4];
        poll(&mut [Watch::readable(uffd.fd())], None)?;
        for event in uffd.read(&mut events)?.iter().flatten() {
            let Event::Fault { address, .. } = event else { return Err(Errno::EINVAL) };
            let unit = address - (address - span.start) % source.len();
            uffd.copy(unit, source, Waiters::Wake).map_err(|stopped| stopped.errno)?;
            answered += 1;
        }
        Ok(answered < count)
    };
    let done = loop {
        match answer() {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(why) => break Err(why),
        }
    };
    uffd.unregister(span).and(done)
}

fn to_io(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.into_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Rights =
        Rights { ptrace: true, nice: true, initial_namespace: true, seccomp: false };
    const USER: Rights = Rights { ptrace: false, ..ROOT };

    fn refused(why: Errno, alone: Result<(), Errno>) -> Probe {
        Probe { granted: Err(why), alone: [alone; REQUIRED.len()] }
    }

    #[test]
    fn what_is_missing_is_named() {
        let granted = Probe { granted: Ok(()), ..refused(Errno::EPERM, Ok(())) };
        assert_eq!(verdict(&granted, USER), Ok(()));
        let mut old = refused(Errno::EINVAL, Ok(()));
        old.alone[5] = Err(Errno::EINVAL);
        assert_eq!(verdict(&old, ROOT), Err(Missing::Features(vec!["MOVE"])));
        old.alone[4] = Err(Errno::EINVAL);
        assert_eq!(verdict(&old, ROOT), Err(Missing::Features(vec!["THREAD_ID", "MOVE"])));
        let filtered = Rights { seccomp: true, ..ROOT };
        let nested = Rights { initial_namespace: false, ..ROOT };
        for (rights, why, alone, missing) in [
            (USER, Errno::EPERM, Err(Errno::EPERM), Missing::Capability),
            (USER, Errno::EPERM, Ok(()), Missing::Capability),
            (USER, Errno::ENOSYS, Err(Errno::ENOSYS), Missing::Kernel),
            (filtered, Errno::EPERM, Err(Errno::EPERM), Missing::Seccomp),
            (filtered, Errno::ENOSYS, Err(Errno::ENOSYS), Missing::Seccomp),
            (Rights { ptrace: false, ..filtered }, Errno::EPERM, Ok(()), Missing::Capability),
            (nested, Errno::EPERM, Ok(()), Missing::UserNamespace),
            (ROOT, Errno::EPERM, Err(Errno::EPERM), Missing::Other(Errno::EPERM)),
        ] {
            assert_eq!(verdict(&refused(why, alone), rights), Err(missing));
        }
    }

    /// Whatever this machine allows, the answers fit together.
    #[test]
    fn a_probe_agrees_with_itself() {
        let probe = probe();
        if probe.granted.is_ok() {
            assert_eq!(probe.alone, [Ok(()); REQUIRED.len()]);
        } else {
            assert!(verdict(&probe, rights()).is_err());
        }
    }

    #[test]
    fn a_fault_is_answered() {
        for answerer in [Answerer::SameCpu, Answerer::AnyCpu] {
            match fault_cost(64 << 10, 4, answerer) {
                Ok(time) => assert!(time > Duration::ZERO),
                Err(why) => eprintln!("no userfaultfd here: {why}"),
            }
        }
    }
}
