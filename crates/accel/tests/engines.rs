//! Engines as a process opens them: each kind compresses so that the others read it, one request alone is
//! a batch of one, and what is missing is named.

mod rig;

use octavo_accel::{
    AnyEngine, By, Engine, Engines, Failure, Io, Operation, Outcome, Unusable, Work,
};
use octavo_codec::Codec;
use octavo_page::{EngineKind, Unit};
use octavo_sys::Errno;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A tree with one device of one queue, in this state.
fn tree(state: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a new directory");
        fs::write(path, text).expect("a new file");
    };
    write("bus/dsa/devices/iax1/state", state);
    write("bus/dsa/devices/iax1/numa_node", "0");
    let wq = [("state", "enabled"), ("mode", "dedicated"), ("type", "user"), ("size", "16")];
    wq.iter().for_each(|(name, text)| write(&format!("bus/dsa/devices/wq1.0/{name}"), text));
    dir
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

fn compress(engine: &mut AnyEngine, codec: Codec, unit: &[u8]) -> (Outcome, Vec<u8>) {
    let mut out = vec![0; unit.len()];
    let outcome = engine.run(&mut Io::compress(codec, unit, &mut out));
    out.truncate(outcome.result.unwrap_or(0));
    (outcome, out)
}

#[test]
fn what_one_kind_makes_the_others_read() {
    let codecs = rig::codecs();
    let mut engines = [Engines::cpu(), Engines::model()].map(|e| e.engine(&codecs, Unit::K4, 0));
    let mut work = Work::default();
    for codec in &codecs {
        for page in rig::pages() {
            for one in 0..2 {
                let (outcome, bytes) = compress(&mut engines[one], *codec, &page);
                work.note(outcome.by);
                let expected = one == 1 && engines[1].takes(Operation::Compress, *codec);
                assert!(expected == matches!(outcome.by, By::Queue(_)), "{codec}: {outcome:?}");
                let Ok(len) = outcome.result else {
                    assert_eq!(outcome.result, Err(Failure::DoesNotFit));
                    continue;
                };
                assert!(len == bytes.len() && len < 4096);
                for other in &mut engines {
                    let mut back = vec![0; 4096];
                    let outcome = other.run(&mut Io::decompress(*codec, &bytes, &mut back));
                    assert_eq!(outcome.result, Ok(4096), "{codec}");
                    assert!(back == page, "{codec}");
                    let mut front = vec![0; 4096];
                    let mut io = Io::decompress_prefix(*codec, &bytes, &mut front, 100);
                    assert!(other.run(&mut io).result.is_ok());
                    assert!(front[..100] == page[..100], "{codec}");
                }
            }
        }
    }
    let pages = rig::pages().len() as u64;
    let by_device = 4 * pages;
    assert_eq!(work.by_cpu, codecs.len() as u64 * pages);
    assert_eq!((work.by_devices, work.by_cpu_instead), (by_device, work.by_cpu - by_device));
}

#[test]
fn devices_ask_for_batches_and_the_cpu_where_many_are_better() {
    let codecs = rig::codecs();
    let cpu = Engines::cpu().engine(&codecs, Unit::K4, 0);
    let model = Engines::model().engine(&codecs, Unit::K4, 0);
    let asks = |engine: &AnyEngine, codec, unit: Unit| {
        engine.batches(Operation::Compress, codec, unit.bytes())
    };
    assert!(!asks(&cpu, rig::FIXED, Unit::K4));
    let learnt: Codec = "deflate-canned:1".parse().expect("a codec");
    assert!(asks(&cpu, learnt, Unit::K4) && !asks(&cpu, learnt, Unit::K16));
    assert!(!cpu.batches(Operation::Decompress, learnt, 4096));
    assert!(asks(&model, rig::FIXED, Unit::K4));
    assert!(!asks(&model, rig::FIXED, Unit::K16), "longer than its lanes");
    assert!(!asks(&model, Codec::Lz4, Unit::K4), "none that devices do");
    assert_eq!(model.capabilities().depth, 16);
    let large = Engines::model().engine(&codecs, Unit::K64, 0);
    assert!(asks(&large, rig::FIXED, Unit::K64) && large.capabilities().depth == 8);
}

#[test]
fn parts_of_a_unit_are_requests_to_devices_and_counted_each() {
    let unit = rig::pages()[..16].concat();
    for (n, pages, lanes) in [(1, 16, 8), (4, 4, 32), (4, 16, 20), (16, 16, 64), (64, 1, 64)] {
        let (codec, unit) = (rig::by(n, rig::CANNED), &unit[..pages * 4096]);
        let longest = Unit::of_pages(pages).expect("a unit");
        let mut model = Engines::model().engine(&[codec], longest, 0);
        assert!(model.batches(Operation::Compress, codec, unit.len()));
        // As many as all parts of a few units, in some MiB at most.
        assert_eq!(model.capabilities().depth, lanes, "by_{n} of {longest}");
        let mut cpu = Engines::cpu().engine(&[codec], longest, 0);
        let mut work = Work::default();
        let (outcome, bytes) = compress(&mut model, codec, unit);
        work.note(outcome.by);
        let mut back = vec![0; unit.len()];
        let outcome = cpu.run(&mut Io::decompress(codec, &bytes, &mut back));
        work.note(outcome.by);
        assert!(outcome.result == Ok(unit.len()) && back == unit, "by_{n}");
        let (_, bytes) = compress(&mut cpu, codec, unit);
        back.fill(0);
        let outcome = model.run(&mut Io::decompress(codec, &bytes, &mut back));
        work.note(outcome.by);
        assert!(outcome.result == Ok(unit.len()) && back == unit, "by_{n}");
        // Longer parts that software compressed may look back further than a device does.
        let is_near = unit.len() / n <= 4096;
        assert!(work.by_cpu == 1 && (!is_near || work.by_cpu_instead == 0), "by_{n}: {work:?}");
        assert_eq!(work.by_devices + work.by_cpu_instead, 2 * n as u64, "by_{n} of {longest}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let empty = tempfile::tempdir().expect("a directory");
    let nothing = text(empty.path());
    let why = |sysfs: &str| Engines::iaa(sysfs, nothing).expect_err("no portals are there");
    assert_eq!(why(nothing), Unusable::NoDevice);
    let closed = tree("enabled");
    let error = why(text(closed.path()));
    assert_eq!(error, Unusable::Closed { device: 1, queue: 0, why: Errno::ENOENT });
    let disabled = tree("disabled");
    let error = why(text(disabled.path()));
    assert!(matches!(error, Unusable::Odd(_)));
    for (why, does) in [
        (Unusable::NoDevice, "sudo modprobe idxd"),
        (error, "accel-config enable-device iax1"),
        (
            Unusable::Closed { device: 1, queue: 0, why: Errno::EACCES },
            "sudo chmod a+rw /dev/iax/wq1.0",
        ),
        (Unusable::Closed { device: 1, queue: 0, why: Errno::EBUSY }, "--mode=shared"),
        (Unusable::Closed { device: 1, queue: 0, why: Errno::ENOENT }, "enable-wq iax1/wq1.0"),
    ] {
        let said = why.to_string();
        assert!(said.contains(does) && !said.contains('\n'), "{said}");
    }
    assert_eq!(Engines::open(EngineKind::Cpu).map(|e| e.kind()).ok(), Some(EngineKind::Cpu));
}

/// A file stands for the page of a queue: what is written there nobody does.
#[test]
fn a_device_that_never_answers_costs_time_and_nothing_else() {
    let (sysfs, portals) = (tree("enabled"), tempfile::tempdir().expect("a directory"));
    fs::write(portals.path().join("wq1.0"), [0; 4096]).expect("a page");
    let engines = Engines::iaa(text(sysfs.path()), text(portals.path())).expect("a queue");
    assert_eq!(engines.kind(), EngineKind::Iaa);
    let mut engine = engines.engine(&[rig::FIXED], Unit::K4, 0);
    let page = &rig::pages()[0];
    for _ in 0..5 {
        let (outcome, bytes) = compress(&mut engine, rig::FIXED, page);
        assert!(matches!(outcome.by, By::CpuInstead(_)) && outcome.result.is_ok(), "{outcome:?}");
        let mut back = vec![0; 4096];
        let outcome = engine.run(&mut Io::decompress(rig::FIXED, &bytes, &mut back));
        assert!(outcome.result.is_ok() && back == *page);
    }
}
