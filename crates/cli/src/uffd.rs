//! What userfaultfd gives this process: asked for exactly as the pager will ask.
//!
//! [`probe`] opens one descriptor with everything in [`REQUIRED`], as the pager does, and one for
//! each feature by itself, because a refusal of the whole names no part. [`verdict`] is a pure
//! function of the answers: what is missing, and what grants it.

use memmap2::MmapMut;
use octavo_sys::Errno;
use octavo_sys::file::{Watch, poll};
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
    /// The Linux release that brought it.
    pub since: &'static str,
}

/// What the pager asks for.
pub const REQUIRED: [Feature; 6] = [
    Feature { bit: feature::FORK, name: "EVENT_FORK", since: "4.11" },
    Feature { bit: feature::REMAP, name: "EVENT_REMAP", since: "4.11" },
    Feature { bit: feature::REMOVE, name: "EVENT_REMOVE", since: "4.11" },
    Feature { bit: feature::UNMAP, name: "EVENT_UNMAP", since: "4.11" },
    Feature { bit: feature::THREAD_ID, name: "THREAD_ID", since: "4.14" },
    Feature { bit: feature::MOVE, name: "MOVE", since: "6.8" },
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
        "userfaultfd: this kernel was built without it; use Linux 6.8 or later with \
         CONFIG_USERFAULTFD=y"
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
    let absent = || {
        let features = REQUIRED.into_iter().zip(probe.alone);
        features.filter(|(_, alone)| *alone == Err(Errno::EINVAL)).map(|(feature, _)| feature)
    };
    if let Some(newest) = absent().max_by_key(|feature| release(feature.since)) {
        let names = absent().map(|feature| feature.name).collect();
        return Err(Missing::Features { names, since: newest.since });
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

/// A release as numbers, so that 6.8 comes before 6.10.
fn release(text: &str) -> Vec<u32> {
    text.split('.').map_while(|part| part.parse().ok()).collect()
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

    const ROOT: Rights = Rights { ptrace: true, initial_namespace: true, seccomp: false };
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
        let missing = Missing::Features { names: vec!["MOVE"], since: "6.8" };
        assert_eq!(verdict(&old, ROOT), Err(missing));
        old.alone[4] = Err(Errno::EINVAL);
        let missing = Missing::Features { names: vec!["THREAD_ID", "MOVE"], since: "6.8" };
        assert_eq!(verdict(&old, ROOT), Err(missing));
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

    #[test]
    fn releases_compare_as_numbers() {
        assert!(release("6.8") < release("6.10") && release("4.14") < release("6.8"));
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
