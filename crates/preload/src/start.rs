//! The constructor and the destructor.
#![allow(unsafe_code)] // entry points of the dynamic loader

use crate::{environ, exec, fork, image, limits};
use core::ffi::{c_char, c_int};
use core::fmt::Write as _;
use octavo_codec::Codec;
use octavo_codec::deflate::TableFile;
use octavo_page::config::RunConfig;
use octavo_page::{EngineKind, Unit};
use octavo_pager::budget::TIERS;
use octavo_pager::excluded::Excluded;
use octavo_pager::heap::HeapStep;
use octavo_pager::pager::{Config, Ladders, Tier};
use octavo_pager::start::{self, Job};
use octavo_sys::Errno;
use octavo_sys::file::{Fd, Text};
use octavo_sys::task::{self, CpuSet};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = constructor;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

extern "C" fn constructor(_argc: c_int, _argv: *mut *mut c_char, environment: *mut *mut c_char) {
    exec::find_all();
    // SAFETY: the loader calls this once, before the program's own code, with the initial array.
    let (word, first) = match unsafe { environ::take(environment) } {
        Ok(Some((word, first))) => (core::str::from_utf8(word).unwrap_or_default(), first),
        Ok(None) => return,
        Err(error) => refuse(format_args!("{}", Refusal(error))),
    };
    let run = match RunConfig::decode(word) {
        Ok(run) => run,
        Err(error) => refuse(format_args!("{error}")),
    };
    let job = job(&run).unwrap_or_else(|value| refuse(format_args!("{value}")));
    // Before anything is allocated: there our tables would be reserved.
    let started = if limits::have_room(run.limit) {
        limits::note(run.limit);
        fork::announce();
        start::start(job)
    } else {
        Err(Errno::ENOMEM)
    };
    // A process that cannot be managed runs as it would alone, unless all was asked for its sake.
    if let Err(error) = started
        && first == Some(task::pid() as u32)
    {
        refuse(format_args!("{}", Refusal(error)));
    }
}

extern "C" fn destructor() {
    start::before_end();
}

fn job(run: &RunConfig<'_>) -> Result<Job, &'static str> {
    let here = 0u8;
    Ok(Job {
        config: Config {
            limit: run.limit.bytes(),
            strict: run.strict,
            ladders: Ladders { runs: ladder(run, RUNS)?, jumps: ladder(run, JUMPS)? },
            tables: tables(run)?,
            chain: run.chain.unwrap_or_default(),
            cpus: CpuSet::of_this_task().count().max(1),
            engine: run.engine.unwrap_or_default(),
            backing: run.backing,
        },
        excluded: Excluded {
            objects: [image::ours(), image::libc()],
            stack: &raw const here as usize,
        },
        heap_step: HeapStep::find(image::libc_data()),
        keeper: (run.keeper as i32, run.ledger as i32),
    })
}

/// What compresses when nothing else was asked for: single pages while there is room, so that a
/// fault decodes no more than it needs, and long units when density matters. The later the less of a
/// unit is wanted soon.
const RUNS: [(&str, Unit); TIERS] =
    [("lz4", Unit::K4), ("zstd:1", Unit::K16), ("zstd:1", Unit::K64), ("zstd:1", Unit::K64)];
const JUMPS: [(&str, Unit); TIERS] =
    [("lz4", Unit::K4), ("zstd:1", Unit::K4), ("zstd:1", Unit::K16), ("zstd:1", Unit::K64)];

/// The tables that were given.
fn tables(run: &RunConfig<'_>) -> Result<Option<TableFile>, &'static str> {
    let Some(text) = run.tables else { return Ok(None) };
    let mut buffer = [0u8; TableFile::MAX_BYTES];
    let bytes = text.copy_to(&mut buffer).ok_or("the tables are too long")?;
    TableFile::from_bytes(bytes).map(Some).map_err(|_| "the tables are none")
}

/// The codec and unit that were asked for, and those of `standard` where nothing was.
fn ladder(
    run: &RunConfig<'_>,
    standard: [(&str, Unit); TIERS],
) -> Result<[Tier; TIERS], &'static str> {
    let mut buffer = [0u8; 64];
    let asked = match run.codec {
        Some(text) => Some(text.copy_to(&mut buffer).ok_or("the codec's name is too long")?),
        None => None,
    };
    let asked = asked.map(core::str::from_utf8).transpose();
    let asked = asked.map_err(|_| "the codec's name is no text")?;
    let on_device = run.engine.is_some_and(|engine| engine != EngineKind::Cpu);
    let tier = |(codec, unit)| -> Result<Tier, &'static str> {
        let codec = asked.unwrap_or(codec).parse().map_err(|_| "unknown codec")?;
        let by_device = on_device && matches!(codec, Codec::Deflate { .. });
        let unit = if by_device { device_unit(codec) } else { unit };
        Ok(Tier { codec, unit: run.unit.unwrap_or(unit) })
    };
    let [a, b, c, d] = standard;
    Ok([tier(a)?, tier(b)?, tier(c)?, tier(d)?])
}

/// The unit for a device, which looks for matches no further back than a page: a page, or for each part
/// one. More would gain it next to nothing.
fn device_unit(codec: Codec) -> Unit {
    let parts = codec.parts().count().unwrap_or(1);
    let is_one_page_each = |unit: &&Unit| unit.pages() <= parts;
    Unit::ALL.iter().rfind(is_one_page_each).copied().unwrap_or(Unit::K4)
}

/// Why the pager did not start, and what would do.
struct Refusal(Errno);

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Errno::EPERM | Errno::EACCES => f.write_str(
                "userfaultfd with fork events is not permitted; run as root or give the octavo \
                 command CAP_SYS_PTRACE",
            ),
            Errno::ENOSYS => f.write_str("this kernel or its seccomp profile has no userfaultfd"),
            Errno::EINVAL => {
                f.write_str("this kernel's userfaultfd has no UFFDIO_MOVE; use Linux 6.11 or later")
            }
            Errno::ENOTTY => f.write_str(
                "this kernel cannot list mappings (PROCMAP_QUERY); use Linux 6.11 or later",
            ),
            Errno::ENOMEM => {
                f.write_str("the address space is too small for the pager; raise ulimit -v")
            }
            Errno::EMFILE | Errno::ENFILE => f.write_str(
                "too few descriptors are allowed to start the pager; raise ulimit -n, 64 will do",
            ),
            error => write!(f, "the pager could not start: error {}", error.into_raw()),
        }
    }
}

/// Ends the process before the program's own code runs.
fn refuse(why: core::fmt::Arguments<'_>) -> ! {
    let mut line = Text::<512>::new();
    let _ = writeln!(line, "octavo: {why}");
    let stderr = Fd::own(2);
    let _ = stderr.write_all(line.as_bytes());
    task::exit_group(125)
}
