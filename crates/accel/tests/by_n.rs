//! Units in parts: all parts at once against one part after the other, and against the codec's own.

mod rig;

use octavo_accel::iaa::{Config, MAX_UNITS, Machine};
use octavo_accel::model::{Fate, Mishap};
use octavo_accel::{Batch, By, Cpu, Engine, Failure, Io, Outcome, Request, Why};
use octavo_codec::{Codec, DoesNotFit, Parts, Workspace, by_n};
use proptest::prelude::*;
use rig::{
    ANSWERS, CANNED, DYNAMIC, FIXED, Iaa, LANES, MODES, Random, Rig, UNIT, by, config, found,
};

/// Every number of parts there is.
const PARTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The plain twin: one part after the other, each a request of its own.
fn one_by_one(
    engine: &mut impl Engine,
    codec: Codec,
    n: usize,
    unit: &[u8],
    out: &mut [u8],
) -> Result<usize, Failure> {
    let mut end = by_n::header_bytes(n);
    if out.len() < end {
        return Err(Failure::DoesNotFit);
    }
    for (i, part) in unit.chunks_exact(unit.len() / n).enumerate() {
        by_n::set_start(n, i, end, out);
        end += engine.run(&mut Io::compress(codec, part, &mut out[end..])).result?;
    }
    Ok(end)
}

/// Compresses a unit into as much room; the outcome, and the bytes.
fn compress(
    engine: &mut impl Engine,
    codec: Codec,
    unit: &[u8],
    room: usize,
) -> (Outcome, Vec<u8>) {
    let mut out = vec![0xdd; room];
    let outcome = engine.run(&mut Io::compress(codec, unit, &mut out));
    out.truncate(outcome.result.unwrap_or(0));
    (outcome, out)
}

fn parts(by_devices: usize, by_cpu_instead: usize) -> By {
    By::Parts { by_devices: by_devices as u8, by_cpu_instead: by_cpu_instead as u8 }
}

/// Units of four different pages each, all of which compress.
fn units() -> Vec<Vec<u8>> {
    let mut workspace = Workspace::new(&[FIXED]);
    let is_easy = |page: &Vec<u8>| workspace.compress(FIXED, page, &mut [0; 3000]).is_ok();
    let pages: Vec<Vec<u8>> = rig::pages().into_iter().filter(is_easy).collect();
    pages.chunks_exact(4).map(<[Vec<u8>]>::concat).collect()
}

/// Whether all is as before the first request, once devices are done with what was given up.
fn settles(rig: &mut Rig) -> bool {
    let begin = rig.model.now();
    while !rig.engine().is_idle() && rig.model.now() - begin < 1_000_000 {
        rig.engine().pause();
    }
    rig.engine().is_idle() && rig.fleet.queues().iter().all(|queue| queue.in_flight() == 0)
}

#[test]
fn parts_at_once_are_the_parts_one_by_one_and_the_codec_reads_them() {
    let mut rig = Rig::new(&found(1, 4, 2, 16, true), config());
    let mut cpu = Cpu::new(&rig::codecs());
    let mut workspace = Workspace::new(&rig::codecs());
    let unit = rig::pages()[..16].concat();
    for codec in MODES {
        for n in PARTS {
            let whole = by(n, codec);
            let (outcome, bytes) = compress(rig.engine(), whole, &unit, unit.len());
            let is_taken = unit.len() / n <= UNIT.bytes();
            let who = if is_taken { parts(n, 0) } else { By::CpuInstead(Why::NotTaken) };
            assert_eq!(outcome, Outcome { result: Ok(bytes.len()), by: who }, "{whole}");
            if is_taken {
                let mut twin = vec![0; unit.len()];
                let size = one_by_one(rig.engine(), codec, n, &unit, &mut twin);
                assert_eq!(size, Ok(bytes.len()));
                assert!(twin[..bytes.len()] == bytes, "{whole}");
            }
            // Either reads what the other wrote.
            let mut back = vec![0; unit.len()];
            workspace.decompress(whole, &bytes, &mut back).expect("its own bytes");
            assert!(back == unit, "{whole}");
            let (outcome, theirs) = compress(&mut cpu, whole, &unit, unit.len());
            assert_eq!(outcome, Outcome { result: Ok(theirs.len()), by: By::Cpu });
            for bytes in [&bytes, &theirs] {
                let (outcome, back) = rig::decompress(rig.engine(), whole, bytes, unit.len());
                assert_eq!(outcome.result, Ok(unit.len()));
                assert!(back == unit, "{whole}");
                // What software compressed may look back further than a device does.
                let is_near = !std::ptr::eq(bytes, &theirs) || n >= 16;
                assert!(!is_near || outcome.by == who, "{whole}: {outcome:?}");
            }
            let (outcome, _) = compress(rig.engine(), whole, &unit, bytes.len() - 1);
            assert_eq!(outcome.result, Err(Failure::DoesNotFit));
            for cut in [0, 3, 4 * n - 1, bytes.len() / 2, bytes.len() - 1] {
                let (outcome, _) = rig::decompress(rig.engine(), whole, &bytes[..cut], unit.len());
                assert_eq!(outcome.result, Err(Failure::Corrupt), "{whole} cut at {cut}");
            }
        }
    }
    assert!(settles(&mut rig));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn batches_of_units_are_what_the_twin_makes(
        units in proptest::collection::vec(
            (0usize..3, 0usize..7, prop_oneof![Just(4096usize), Just(16384)], any::<u32>(),
             prop_oneof![Just(1.0f64), 0.0..1.1]), 1..20),
        devices in 1u16..4,
        size in prop_oneof![Just(2u32), Just(64)],
        verify in any::<bool>(),
    ) {
        let mut rig = Rig::new(&found(1, devices, 2, size, true), Config { verify, ..config() });
        let mut workspace = Workspace::new(&rig::codecs());
        // Every page is as hard as chance has it.
        let made: Vec<(Codec, usize, Vec<u8>, usize)> = units.into_iter().map(|(codec, log, bytes, seed, room)| {
            let mut random = Random(u64::from(seed) + 1);
            let page = |random: &mut Random| -> Vec<u8> {
                let bits = random.below(9);
                (0..4096).map(|_| (random.next() & ((1 << bits) - 1)) as u8).collect()
            };
            let unit: Vec<u8> = (0..bytes / 4096).flat_map(|_| page(&mut random)).collect();
            (MODES[codec], 1 << log, unit, (bytes as f64 * room) as usize)
        }).collect();
        let expected: Vec<_> = made.iter().map(|(codec, n, unit, room)| {
            let mut out = vec![0; *room];
            let result = one_by_one(rig.engine(), *codec, *n, unit, &mut out);
            out.truncate(result.unwrap_or(0));
            (result, out)
        }).collect();

        let mut outputs: Vec<Vec<u8>> = made.iter().map(|(_, _, _, room)| vec![0xdd; *room]).collect();
        let mut requests: Vec<Request<'_>> = made.iter().zip(&mut outputs)
            .map(|((codec, n, unit, _), out)| Request::compress(by(*n, *codec), unit, out))
            .collect();
        Batch::new(rig.engine(), &mut requests).finish();
        for (((codec, n, unit, _), request), (result, bytes)) in made.iter().zip(&requests).zip(&expected) {
            let outcome = request.outcome().expect("done");
            if rig::is_by_device(&outcome) {
                prop_assert_eq!(outcome.result, *result);
                prop_assert!(request.bytes().unwrap_or(&[]) == bytes);
                continue;
            }
            // Parts that were given up may fill a small queue: then software does some, its own way. And devices
            // are not asked for what cannot be.
            let is_hopeless = outcome.result == Err(Failure::DoesNotFit);
            prop_assert!(size == 2 || is_hopeless, "{:?}", outcome);
            if let Some(bytes) = request.bytes() {
                let mut back = vec![0xdd; unit.len()];
                workspace.decompress(by(*n, *codec), bytes, &mut back).expect("its own bytes");
                prop_assert!(&back == unit);
            }
        }
        // All that fitted, at once: whole, and as far as some of it is wanted.
        let fitted = || made.iter().zip(&expected).filter(|(_, (result, _))| result.is_ok());
        for ((codec, n, unit, _), (_, bytes)) in fitted() {
            let mut back = vec![0xdd; unit.len()];
            workspace.decompress(by(*n, *codec), bytes, &mut back).expect("its own bytes");
            prop_assert!(&back == unit);
            let wanted = 1 + bytes.len() % unit.len();
            let mut io = Io::decompress_prefix(by(*n, *codec), bytes, &mut back, wanted);
            let outcome = rig.engine().run(&mut io);
            prop_assert!(outcome.result.is_ok_and(|size| size >= wanted));
            prop_assert!(back[..wanted] == unit[..wanted]);
        }
        let mut rooms: Vec<Vec<u8>> = fitted().map(|((_, _, unit, _), _)| vec![0xdd; unit.len()]).collect();
        let mut requests: Vec<Request<'_>> = fitted().zip(&mut rooms)
            .map(|(((codec, n, _, _), (_, bytes)), room)| Request::decompress(by(*n, *codec), bytes, room))
            .collect();
        Batch::new(rig.engine(), &mut requests).finish();
        drop(requests);
        prop_assert!(fitted().zip(&rooms).all(|(((_, _, unit, _), _), room)| unit == room));
        prop_assert!(settles(&mut rig));
    }
}

#[test]
fn a_part_that_does_not_fit_fails_the_unit_and_nothing_is_written_afterwards() {
    let mut random = Random(3);
    let noise: Vec<u8> = (0..4096).map(|_| random.next() as u8).collect();
    for codec in MODES {
        for bad in 0..4 {
            let mut rig = Rig::new(&found(1, 2, 2, 16, true), config());
            let mut unit = units().remove(0);
            unit[bad * 4096..][..4096].copy_from_slice(&noise);
            // The part would fit where there is room for the whole, as software says, too.
            let (outcome, bytes) = compress(rig.engine(), by(4, codec), &unit, unit.len());
            let theirs =
                Workspace::new(&[codec]).compress(by(4, codec), &unit, &mut vec![0; 16384]);
            assert!(codec == CANNED || outcome.result.is_ok() && theirs.is_ok(), "{codec}");
            assert_eq!(outcome.result.is_ok(), !bytes.is_empty());
            let mut out = vec![0xdd; 4000];
            let mut requests = [Request::compress(by(4, codec), &unit, &mut out)];
            let mut batch = Batch::new(rig.engine(), &mut requests);
            batch.submit();
            assert_eq!(batch.wait(), Some(0));
            drop(batch);
            let outcome = requests[0].outcome().expect("done");
            assert_eq!(outcome.result, Err(Failure::DoesNotFit), "{codec}");
            assert!(matches!(outcome.by, By::Parts { by_cpu_instead: 0, .. }), "{outcome:?}");
            let before = out.clone();
            assert!(settles(&mut rig), "{codec}");
            assert!(out == before, "{codec}: written to after it was given back");
            let (outcome, _) = compress(rig.engine(), by(4, codec), &units()[0], 16384);
            assert_eq!(outcome.by, parts(4, 0));
        }
    }
}

#[test]
fn nobody_waits_for_a_silent_part_of_a_unit_that_failed() {
    let mut random = Random(5);
    let noise: Vec<u8> = (0..16384).map(|_| random.next() as u8).collect();
    let mut rig = Rig::new(&found(1, 1, 2, 64, true), config());
    let mut n = 0;
    rig.model.set_fate(Some(Box::new(move |_, _| {
        n += 1;
        (n > 1).then_some(Mishap::Silent)
    })));
    let begin = rig.model.now();
    let (outcome, _) = compress(rig.engine(), by(4, FIXED), &noise, 4096);
    assert_eq!(outcome, Outcome { result: Err(Failure::DoesNotFit), by: parts(1, 0) });
    assert!(rig.model.now() - begin < config().timeout_ns);
    // What the device still has keeps its lanes and its places.
    assert!(!rig.engine().is_idle());
    assert_eq!(rig.fleet.queues()[1].in_flight(), 3);
}

/// The command in this place of the row ends so.
fn nth(place: usize, mishap: Mishap) -> Option<Fate> {
    let mut n = 0;
    Some(Box::new(move |_, _| {
        n += 1;
        (n == place + 1).then_some(mishap)
    }))
}

#[test]
fn a_part_that_goes_wrong_is_redone_alone() {
    let unit = &units()[0];
    let late = 5 * config().timeout_ns;
    let mishaps = ANSWERS.map(|(mishap, _)| mishap).into_iter();
    for mishap in mishaps.chain([Mishap::Silent, Mishap::Late(late)]) {
        for codec in MODES {
            // Of the dynamic ones the first commands count.
            for bad in 0..if codec == DYNAMIC { 8 } else { 4 } {
                let mut rig = Rig::new(&found(1, 4, 2, 16, true), config());
                rig.model.set_fate(nth(bad, mishap));
                let (outcome, bytes) = compress(rig.engine(), by(4, codec), unit, unit.len());
                // How long the counts are nobody needs to be told.
                let is_unseen = codec == DYNAMIC && bad < 4 && mishap == Mishap::WrongSize;
                let by_cpu = usize::from(!is_unseen);
                let expected = Outcome { result: Ok(bytes.len()), by: parts(4 - by_cpu, by_cpu) };
                assert_eq!(outcome, expected, "{codec}, {mishap:?}, {bad}");
                assert_eq!(rig.engine().stats().by_device, 4 - by_cpu as u64);
                if bad < 4 {
                    rig.model.set_fate(nth(bad, mishap));
                    let (outcome, back) =
                        rig::decompress(rig.engine(), by(4, codec), &bytes, unit.len());
                    assert_eq!(outcome, Outcome { result: Ok(unit.len()), by: parts(3, 1) });
                    assert!(&back == unit);
                }
                rig.model.set_fate(None);
                rig.model.spend(2 * late);
                assert!(
                    mishap == Mishap::Silent || settles(&mut rig),
                    "{codec}, {mishap:?}, {bad}"
                );
            }
        }
    }
}

#[test]
fn a_checksum_that_differs_fails_the_unit() {
    let unit = &units()[0];
    for codec in MODES {
        let mut rig = Rig::new(&found(1, 2, 2, 16, true), Config { verify: true, ..config() });
        let (outcome, bytes) = compress(rig.engine(), by(4, codec), unit, unit.len());
        assert_eq!(outcome, Outcome { result: Ok(bytes.len()), by: parts(4, 0) });
        let mut n = 0;
        rig.model.set_fate(Some(Box::new(move |_, descriptor| {
            let writes = descriptor.codec_flags.get() == 6;
            n += u32::from(writes);
            (writes && n == 3).then_some(Mishap::WrongByte)
        })));
        let (outcome, _) = compress(rig.engine(), by(4, codec), unit, unit.len());
        assert_eq!(outcome.result, Err(Failure::Unverified), "{codec}");
        assert_eq!(rig.engine().stats().unverified, 1);
        assert!(settles(&mut rig));
        // Found wrong by the caller: software, the whole.
        let mut back = vec![0; unit.len()];
        let mut io = Io::decompress(by(4, codec), &bytes, &mut back);
        let outcome = rig.engine().run_again(&mut io);
        assert_eq!(outcome.by, By::CpuInstead(Why::Doubted));
        assert!(&back == unit);
    }
}

#[test]
fn a_full_queue_at_every_point() {
    let unit = &units()[0];
    for codec in MODES {
        for verify in [false, true] {
            for (first, times) in
                (0..14).flat_map(|first| [1, 3, 100_000].map(|times| (first, times)))
            {
                let mut rig = Rig::new(&found(1, 2, 2, 4, false), Config { verify, ..config() });
                let mut n = 0;
                rig.model.set_fate(Some(Box::new(move |_, _| {
                    n += 1;
                    (n > first && n - first <= times).then_some(Mishap::Full)
                })));
                let (outcome, bytes) = compress(rig.engine(), by(8, codec), unit, unit.len());
                assert!(outcome.result.is_ok(), "{codec}, {first}, {times}: {outcome:?}");
                let (outcome, back) =
                    rig::decompress(rig.engine(), by(8, codec), &bytes, unit.len());
                assert_eq!(outcome.result, Ok(unit.len()));
                assert!(&back == unit, "{codec}, {first}, {times}: {outcome:?}");
                assert!(settles(&mut rig) && rig.model.tally().lost == 0);
                assert!(rig.fleet.queues().iter().all(|queue| queue.is_alive()));
            }
        }
    }
}

#[test]
fn a_device_taken_away_in_the_middle_of_units() {
    for codec in MODES {
        let mut rig = Rig::new(&found(1, 2, 2, 64, true), config());
        let mut n = 0;
        rig.model.set_fate(Some(Box::new(move |queue, _| {
            n += 1;
            (n > 5 && queue < 2).then_some(Mishap::Gone)
        })));
        for _ in 0..3 {
            let made = rig::compress(rig.engine(), by(8, codec), &units()[..4]);
            for (unit, (outcome, bytes)) in units().iter().zip(made) {
                assert_eq!(outcome.result, Ok(bytes.len()));
                let (outcome, back) =
                    rig::decompress(rig.engine(), by(8, codec), &bytes, unit.len());
                assert_eq!(outcome.result, Ok(unit.len()));
                assert!(&back == unit, "{codec}");
            }
        }
        let stats = rig.engine().stats();
        assert!(stats.by_device > 100 && stats.timed_out > 0, "{stats:?}");
    }
}

#[test]
fn parts_are_spread_as_requests_are() {
    for (devices, queues) in [(1, 1), (1, 2), (4, 1), (4, 2)] {
        let mut rig = Rig::new(&found(1, devices, queues, 32, true), config());
        let units = units();
        // Of the canned tables.
        let before = rig.fleet.queues()[0].calls().1;
        for (unit, (_, bytes)) in
            units.iter().zip(rig::compress(rig.engine(), by(4, FIXED), &units))
        {
            assert!(&rig::decompress(rig.engine(), by(4, FIXED), &bytes, unit.len()).1 == unit);
        }
        let calls: Vec<(u64, u64)> = rig.fleet.queues().iter().map(|queue| queue.calls()).collect();
        let each = calls.chunks_exact(queues.into());
        let compressed: Vec<u64> =
            each.clone().map(|device| device[usize::from(queues) - 1].0).collect();
        let (most, least) =
            (compressed.iter().max().expect("one"), compressed.iter().min().expect("one"));
        assert!(*most as f64 <= *least as f64 * 1.05, "{devices} devices: {calls:?}");
        assert_eq!(compressed.iter().sum::<u64>(), 4 * units.len() as u64);
        // Decompressions go to the one device that the processor is mapped to.
        assert_eq!(calls[0].1 - before, 4 * units.len() as u64);
        if queues == 2 {
            assert!(
                each.into_iter().all(|device| device[0].0 == 0 && device[1].1 == 0),
                "{calls:?}"
            );
        }
    }
}

#[test]
fn units_and_parts_in_flight_are_bounded_and_what_was_taken_comes_first() {
    let mut rig = Rig::new(&found(1, 4, 2, 64, true), config());
    let units: Vec<Vec<u8>> = units().into_iter().cycle().take(20).collect();
    let in_flight =
        |rig: &Rig| rig.fleet.queues().iter().map(|queue| queue.in_flight()).sum::<u32>();
    for (n, taken, started) in
        [(1, MAX_UNITS, 8), (2, MAX_UNITS, 16), (4, 5, LANES), (64, 1, LANES)]
    {
        let mut outputs: Vec<Vec<u8>> = units.iter().map(|unit| vec![0; unit.len()]).collect();
        let mut requests: Vec<Request<'_>> = units
            .iter()
            .zip(&mut outputs)
            .map(|(unit, out)| Request::compress(by(n, FIXED), unit, out))
            .collect();
        let mut engine = rig.engine.take().expect("an engine");
        let mut batch = Batch::new(&mut engine, &mut requests);
        assert_eq!((batch.submit(), in_flight(&rig)), (taken, started as u32), "by_{n}");
        assert_eq!(batch.submit(), 0);
        batch.finish();
        drop(batch);
        rig.engine = Some(engine);
        for request in &requests {
            assert!(request.outcome().is_some_and(|outcome| rig::is_by_device(&outcome)));
        }
    }
    // Whole ones and cut ones in one row, more than there is room for.
    let codecs = [by(64, CANNED), FIXED, by(4, DYNAMIC), CANNED];
    let mut outputs: Vec<Vec<u8>> = units.iter().map(|unit| vec![0; unit.len()]).collect();
    let mut requests: Vec<Request<'_>> = units
        .iter()
        .zip(&mut outputs)
        .zip(codecs.iter().cycle())
        .map(|((unit, out), codec)| Request::compress(*codec, unit, out))
        .collect();
    Batch::new(rig.engine(), &mut requests).finish();
    let mut cpu = Cpu::new(&rig::codecs());
    for ((unit, request), codec) in units.iter().zip(&requests).zip(codecs.iter().cycle()) {
        let Some(bytes) = request.bytes() else {
            assert_eq!(request.outcome().expect("done").result, Err(Failure::DoesNotFit));
            continue;
        };
        assert!(&rig::decompress(&mut cpu, *codec, bytes, unit.len()).1 == unit, "{codec}");
    }
    assert!(settles(&mut rig));
}

#[test]
fn a_batch_of_units_that_is_dropped_gives_all_back_when_devices_are_done() {
    for polls in 0..40 {
        let mut rig = Rig::new(&found(1, 2, 2, 128, true), config());
        let units = &units()[..3];
        let mut outputs = vec![vec![0xdd; 16384]; 3];
        let mut requests: Vec<Request<'_>> = units
            .iter()
            .zip(&mut outputs)
            .map(|(unit, out)| Request::compress(by(8, DYNAMIC), unit, out))
            .collect();
        let mut engine: Iaa = rig.engine.take().expect("an engine");
        let mut batch = Batch::new(&mut engine, &mut requests);
        batch.submit();
        for _ in 0..polls {
            batch.poll();
            rig.model.pause();
        }
        drop(batch);
        drop(requests);
        rig.engine = Some(engine);
        let before = outputs.clone();
        assert!(settles(&mut rig));
        assert!(outputs == before, "written to after the batch was dropped");
        let made = rig::compress(rig.engine(), by(8, DYNAMIC), units);
        assert!(made.iter().all(|(outcome, _)| outcome.by == parts(8, 0)));
    }
}

#[test]
fn a_prefix_is_done_by_the_parts_that_have_it() {
    let mut rig = Rig::new(&found(1, 2, 2, 16, true), config());
    let unit = &units()[0];
    let (_, bytes) = compress(rig.engine(), by(8, CANNED), unit, unit.len());
    for (wanted, n) in [(1, 1), (2048, 1), (2049, 2), (4096, 2), (16383, 8), (16384, 8)] {
        let mut back = vec![0xdd; unit.len()];
        let mut io = Io::decompress_prefix(by(8, CANNED), &bytes, &mut back, wanted);
        let outcome = rig.engine().run(&mut io);
        assert_eq!(outcome, Outcome { result: Ok(n * 2048), by: parts(n, 0) });
        assert!(
            back[..n * 2048] == unit[..n * 2048] && back[n * 2048..].iter().all(|b| *b == 0xdd)
        );
    }
}

#[test]
fn room_for_little_or_nothing() {
    let mut rig = Rig::new(&found(1, 2, 2, 16, true), config());
    let unit = &units()[0];
    for codec in MODES {
        for n in PARTS {
            for room in [0, 1, 4 * n - 1, 4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 100] {
                let (outcome, _) = compress(rig.engine(), by(n, codec), unit, room);
                let theirs =
                    Workspace::new(&[codec]).compress(by(n, codec), unit, &mut vec![0; room]);
                assert_eq!((outcome.result, theirs), (Err(Failure::DoesNotFit), Err(DoesNotFit)));
            }
        }
    }
    assert_eq!(Parts::MAX, PARTS[6]);
    assert!(settles(&mut rig));
}
