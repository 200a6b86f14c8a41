//! `octavo doctor`: what this machine allows, and the command that mends what it does not.
//!
//! A line is `ok`, or `missing` and then what to do stands below the table, or it is a fact that is
//! neither. The missing ones are exactly the reasons for which `octavo run` would refuse: both ask
//! the same functions.

use crate::print::print;
use crate::run::{self, FLOOR, Refusal, Space};
use crate::uffd::{self, Answerer, Feature, LINUX, Missing, Probe, REQUIRED, Rights};
use clap::Args;
use comfy_table::{Table, presets};
use octavo_accel::Engines;
use octavo_accel::iaa::discover::{Note, discover};
use octavo_bench::host::{self, Machine};
use octavo_page::EngineKind;
use octavo_sys::Errno;
use rustix::fs::Access;
use serde::Serialize;
use std::fmt::{self, Display};
use std::path::Path;

/// Say what this machine allows, and the command that mends what it does not.
///
/// Exits with 0 when `octavo run` would work, with 1 otherwise.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Fewer mappings than the kernel allows by default are too few for large programs.
const DEFAULT_MAP_COUNT: u64 = 65_530;

/// Faults measured for one figure.
const FAULTS: usize = 200;

/// One line.
#[derive(Serialize)]
struct Check {
    check: String,
    value: String,
    ok: bool,
    /// What would do, where it is not ok or could be better.
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
    /// Nothing that could be wrong by itself.
    #[serde(skip)]
    fact: bool,
}

/// Everything, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    doctor: &'static str,
    ok: bool,
    machine: Machine,
    checks: Vec<Check>,
}

impl Check {
    fn good(check: impl Into<String>, value: impl Display) -> Self {
        Self { check: check.into(), value: value.to_string(), ok: true, mend: None, fact: false }
    }

    fn bad(check: impl Into<String>, value: impl Display, mend: impl Display) -> Self {
        Self { ok: false, mend: Some(mend.to_string()), ..Self::good(check, value) }
    }

    fn fact(check: impl Into<String>, value: impl Display) -> Self {
        Self { fact: true, ..Self::good(check, value) }
    }

    fn status(&self) -> &'static str {
        match (self.ok, self.fact) {
            (false, _) => "missing",
            (true, false) => "ok",
            (true, true) => "",
        }
    }
}

/// Prints the report and gives the exit status.
pub fn doctor(args: &DoctorArgs) -> i32 {
    let checks = checks();
    let ok = checks.iter().all(|check| check.ok);
    let machine = host::machine();
    let report = Report { doctor: env!("CARGO_PKG_VERSION"), ok, machine, checks };
    match print(&report, args.json) {
        0 => i32::from(!ok),
        failed => failed,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        for check in &self.checks {
            table.add_row([&check.check, &check.value, check.status()]);
        }
        writeln!(f, "{}\n", table.trim_fmt())?;
        for mend in self.checks.iter().filter_map(|check| check.mend.as_ref()) {
            writeln!(f, "{mend}")?;
        }
        f.write_str(if self.ok { "octavo run works here" } else { "octavo run does not work here" })
    }
}

/// All lines, in the order in which a machine is set up.
fn checks() -> Vec<Check> {
    let (probe, rights) = (uffd::probe(), uffd::rights());
    let mut checks = vec![Check::fact("kernel", host::kernel_release())];
    let features = REQUIRED.into_iter().zip(probe.alone);
    checks.extend(features.map(|(feature, alone)| feature_check(feature, alone)));
    checks.push(verdict_check(&probe, rights));
    checks.extend(privileges(rights));
    checks.push(match uffd::mappings() {
        Ok(()) => Check::good("PROCMAP_QUERY", "present"),
        Err(missing) => Check::bad("PROCMAP_QUERY", "absent", missing),
    });
    checks.extend(memory());
    checks.extend(limits());
    checks.push(Check::fact("processors", host::cpus()));
    checks.extend(host::huge_pages().map(|setting| Check::fact("huge pages", setting)));
    checks.push(accelerators());
    checks.extend(map_count());
    checks.push(object());
    for answerer in [Answerer::SameCpu, Answerer::AnyCpu] {
        checks.extend([4, 64].map(|kib| fault(kib, answerer)));
    }
    checks
}

/// A feature the kernel must have; another refusal than "no such feature" is another line's matter.
fn feature_check(feature: Feature, alone: Result<(), Errno>) -> Check {
    let name = format!("userfaultfd {}", feature.name);
    match alone {
        Ok(()) => Check::good(name, "present"),
        Err(Errno::EINVAL) => Check::bad(name, "absent", format!("use Linux {LINUX} or later")),
        Err(_) => Check::fact(name, "not known"),
    }
}

/// Whether userfaultfd is granted with all that the pager asks for.
fn verdict_check(probe: &Probe, rights: Rights) -> Check {
    let name = "userfaultfd";
    match (uffd::verdict(probe, rights), probe.granted) {
        (Ok(()), _) => Check::good(name, "granted"),
        // The lines of the features have said it already.
        (Err(Missing::Features(_)), _) => Check::fact(name, "see its features"),
        (Err(missing), Err(why)) => Check::bad(name, why, missing),
        (Err(missing), Ok(())) => Check::bad(name, "refused", missing),
    }
}

/// The facts behind the verdict.
fn privileges(rights: Rights) -> Vec<Check> {
    let setting = host::number_in(Path::new("/proc/sys/vm/unprivileged_userfaultfd"));
    let namespace = if rights.initial_namespace { "" } else { ", in a user namespace" };
    let nice = if rights.nice { "yes" } else { "no; beside other work faults may wait" };
    let device = match rustix::fs::access(uffd::DEVICE, Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => "can be opened".to_owned(),
        Err(why) => why.to_string(),
    };
    let mut facts = vec![
        Check::fact("  CAP_SYS_PTRACE", format!("{}{namespace}", yes(rights.ptrace))),
        Check::fact("  CAP_SYS_NICE", nice),
        Check::fact(format!("  {}", uffd::DEVICE), device),
        Check::fact("  seccomp filter", yes(rights.seccomp)),
    ];
    facts.extend(setting.map(|s| Check::fact("  vm.unprivileged_userfaultfd", s)));
    facts
}

fn yes(fact: bool) -> &'static str {
    if fact { "yes" } else { "no" }
}

/// What is left for a program, and of what.
fn memory() -> Vec<Check> {
    let mut checks: Vec<_> = host::memory_cgroups()
        .into_iter()
        .filter_map(|cgroup| {
            let value = format!("{} of {} left", mib(cgroup.room()?), mib(cgroup.limit()?));
            Some(Check::fact(format!("memory cgroup {}", cgroup.dir.display()), value))
        })
        .collect();
    if checks.is_empty() {
        checks.push(Check::fact("memory cgroups", "no limit"));
    }
    let limit = run::default_limit();
    checks.push(match &limit {
        Ok(limit) => Check::good("limit without --memory", mib(limit.bytes())),
        Err(refusal) => Check::bad("limit without --memory", "too small", refusal),
    });
    let limit = limit.unwrap_or(FLOOR);
    checks.extend(Space::BOTH.map(|space| {
        let have = space.limit().map_or("unlimited".to_owned(), |have| mib(have.bytes()));
        match run::check_address_space(space, limit) {
            Ok(()) => Check::good(space.name(), have),
            Err(refusal) => Check::bad(space.name(), have, refusal),
        }
    }));
    checks
}

/// What else may be limited too low.
fn limits() -> [Check; 2] {
    let file = run::file_size_limit().map_or("unlimited".to_owned(), |have| have.to_string());
    let check = |name, have: String, checked: Result<(), Refusal>| match checked {
        Ok(()) => Check::good(name, have),
        Err(refusal) => Check::bad(name, have, refusal),
    };
    [
        check("RLIMIT_FSIZE", file, run::check_file_size(None)),
        check("RLIMIT_NOFILE", run::descriptor_limit().to_string(), run::check_descriptors()),
    ]
}

/// A size to look at, not to compute with.
fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Devices that could compress, and what is odd about them.
fn accelerators() -> Check {
    let found = discover("/sys");
    let value = match found.devices.len() {
        0 => "none; the processor does the work".to_owned(),
        n => {
            let queues: usize = found.devices.iter().map(|device| device.queues.len()).sum();
            let usable = match Engines::open(EngineKind::Iaa) {
                Ok(_) => "used for deflate codecs".to_owned(),
                Err(why) => format!("not usable: {why}"),
            };
            format!("{n} IAA devices with {queues} work queues; {usable}")
        }
    };
    let mut check = Check::fact("accelerators", value);
    let notes = found.notes.iter().filter(|note| **note != Note::NoDevices);
    let notes: Vec<String> = notes.map(Note::to_string).collect();
    check.mend = (!notes.is_empty()).then(|| notes.join("\n"));
    check
}

fn map_count() -> Option<Check> {
    let count = host::number_in(Path::new("/proc/sys/vm/max_map_count"))?;
    let mut check = Check::good("vm.max_map_count", count);
    if count < DEFAULT_MAP_COUNT {
        check.mend = Some(format!("sudo sysctl vm.max_map_count={DEFAULT_MAP_COUNT}"));
    }
    Some(check)
}

fn object() -> Check {
    let name = "preloaded object";
    match run::find_object() {
        Ok(file) => Check::good(name, file.display()),
        Err(refusal @ Refusal::ObjectPath(_)) => Check::bad(name, "unusable", refusal),
        Err(refusal) => Check::bad(name, "not found", refusal),
    }
}

/// What a fault costs here. Slow is not wrong, and without userfaultfd another line says why.
fn fault(kib: usize, answerer: Answerer) -> Check {
    let place = match answerer {
        Answerer::SameCpu => "the same",
        Answerer::AnyCpu => "any",
    };
    let name = format!("fault of {kib} KiB, answered on {place} processor");
    match uffd::fault_cost(kib << 10, FAULTS, answerer) {
        Ok(time) => Check::fact(name, format!("{:.1} us", time.as_secs_f64() * 1e6)),
        Err(why) => Check::fact(name, format!("not measured: {why}")),
    }
}
