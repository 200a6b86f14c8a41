//! The driver on the model: what it compresses is real, where it sends what, and what it does when
//! there is no room or no answer.

mod rig;

use flate2::{Decompress, FlushDecompress, Status};
use octavo_accel::iaa::fleet::Fleet;
use octavo_accel::iaa::{Config, Driver, NewError};
use octavo_accel::model::{Clock, Fate, Latency, Mishap, Model};
use octavo_accel::{Batch, By, Cpu, Engine, Failure, Outcome, Request, Why};
use octavo_codec::deflate::{
    self, GENERAL, GENERAL_IDS, Generation, Generations, Level, MAX_DISTANCE, Table,
};
use octavo_codec::{Codec, DeflateMode, MAX_UNIT};
use rig::{
    ANSWERS, CANNED, DYNAMIC, FIXED, Iaa, LANES, MODES, Rig, config, found, is_by_device, pages,
};
use std::sync::Arc;

/// What zlib makes of a raw deflate stream, and how much of it that took.
fn by_zlib(stream: &[u8], room: usize) -> (usize, Vec<u8>) {
    let mut out = vec![0; room + 1];
    let mut zlib = Decompress::new(false);
    let status = zlib.decompress(stream, &mut out, FlushDecompress::Finish).expect("a deflate");
    assert_eq!(status, Status::StreamEnd);
    out.truncate(zlib.total_out() as usize);
    (zlib.total_in() as usize, out)
}

/// The stream of which a canned unit is the body: the header of its table, then the body, shifted.
fn with_header(unit: &[u8]) -> Vec<u8> {
    let lengths = &GENERAL[usize::from(unit[0] - GENERAL_IDS)];
    let table = Table::new(unit[0], MAX_DISTANCE, lengths).expect("a table");
    let mut stream = vec![0; 300];
    let bits = table.header(&mut stream).expect("room enough");
    stream.truncate(bits / 8 + 1);
    for &byte in &unit[1..] {
        *stream.last_mut().expect("a byte") |= byte << (bits % 8);
        stream.push((u16::from(byte) >> (8 - bits % 8)) as u8);
    }
    stream
}

#[test]
fn what_devices_compress_any_inflate_reads_and_the_other_way_round() {
    let mut rig = Rig::new(&found(1, 4, 2, 16, true), config());
    let mut cpu = Cpu::new(&rig::codecs());
    let pages: Vec<Vec<u8>> = pages().into_iter().rev().step_by(4).collect();
    for codec in MODES {
        let made = rig::compress(rig.engine(), codec, &pages);
        let (mut taken, mut software_taken) = (0, 0);
        for (page, (outcome, bytes)) in pages.iter().zip(made) {
            assert!(is_by_device(&outcome), "{codec}: {outcome:?}");
            let Ok(size) = outcome.result else {
                assert_eq!(outcome.result, Err(Failure::DoesNotFit));
                continue;
            };
            assert_eq!(size, bytes.len());
            taken += size;
            let stream = if codec == CANNED { with_header(&bytes) } else { bytes.clone() };
            let (consumed, out) = by_zlib(&stream, page.len());
            assert!(&out == page, "{codec}: zlib has another page");
            assert!(codec == CANNED || consumed == bytes.len());
            // By the device, and by software.
            let (outcome, back) = rig::decompress(rig.engine(), codec, &bytes, page.len());
            assert!(is_by_device(&outcome) && &back == page, "{codec}: {outcome:?}");
            assert!(&rig::decompress(&mut cpu, codec, &bytes, page.len()).1 == page);
            // What software compressed, by the device. A page reaches back no further than 4 KiB.
            let (outcome, bytes) =
                rig::compress(&mut cpu, codec, std::slice::from_ref(page)).remove(0);
            if outcome.result.is_ok() {
                software_taken += bytes.len();
                let (outcome, back) = rig::decompress(rig.engine(), codec, &bytes, page.len());
                assert!(is_by_device(&outcome) && &back == page, "{codec}: {outcome:?}");
            }
        }
        assert!(taken > 0 && taken < software_taken * 5 / 4, "{codec}: {taken}, {software_taken}");
    }
    let tally = rig.model.tally();
    assert_eq!((tally.lost, tally.taken), (0, tally.completed));
}

#[test]
fn units_larger_than_the_window_and_what_software_does_instead() {
    let mut rig = Rig::new(&found(1, 1, 2, 16, true), config());
    let mut cpu = Cpu::new(&rig::codecs());
    let pages = pages();
    let unit = pages[..4].concat();
    for codec in MODES {
        let (outcome, bytes) =
            rig::compress(rig.engine(), codec, std::slice::from_ref(&unit)).remove(0);
        assert!(is_by_device(&outcome) && outcome.result.is_ok(), "{codec}");
        assert!(rig::decompress(&mut cpu, codec, &bytes, unit.len()).1 == unit);
        // Software looks back further: then it must read it, too.
        let (_, bytes) = rig::compress(&mut cpu, codec, std::slice::from_ref(&unit)).remove(0);
        let (outcome, back) = rig::decompress(rig.engine(), codec, &bytes, unit.len());
        assert!(back == unit && outcome.result == Ok(unit.len()), "{codec}");
    }
    let far: Vec<u8> = [&pages[0][..], &[7; 4096], &pages[0][..], &[9; 4096]].concat();
    let (_, bytes) = rig::compress(&mut cpu, FIXED, std::slice::from_ref(&far)).remove(0);
    let (outcome, back) = rig::decompress(rig.engine(), FIXED, &bytes, far.len());
    assert!(back == far);
    assert_eq!(outcome.by, By::CpuInstead(Why::Status(0x0a, 17)));
    // What is not theirs.
    for (codec, bytes) in [(Codec::Lz4, 4096), (FIXED, MAX_UNIT)] {
        let unit = vec![5; bytes];
        let (outcome, bytes) =
            rig::compress(rig.engine(), codec, std::slice::from_ref(&unit)).remove(0);
        assert_eq!(outcome.by, By::CpuInstead(Why::NotTaken));
        let (outcome, back) = rig::decompress(rig.engine(), codec, &bytes, unit.len());
        assert_eq!(outcome, Outcome { result: Ok(unit.len()), by: By::CpuInstead(Why::NotTaken) });
        assert!(back == unit);
    }
    // Damage is damage, whoever looks.
    let (_, bytes) = rig::compress(rig.engine(), DYNAMIC, &pages[..1]).remove(0);
    let (outcome, _) = rig::decompress(rig.engine(), DYNAMIC, &bytes[..bytes.len() / 2], 4096);
    assert_eq!(outcome.result, Err(Failure::Corrupt));
    let (outcome, _) = rig::decompress(rig.engine(), CANNED, &[], 4096);
    assert_eq!(outcome.result, Err(Failure::Corrupt));
}

#[test]
fn learnt_tables_are_prepared_and_used() {
    let canned = rig::deflate(DeflateMode::Canned);
    let mut rig = Rig::new(&found(1, 1, 1, 16, true), config());
    let mut cpu = Cpu::new(&rig::codecs());
    let pages: Vec<Vec<u8>> = pages().into_iter().step_by(8).collect();
    let learnt = Arc::new(Generations::new());
    rig.engine().set_learnt(&learnt);
    cpu.set_learnt(&learnt);
    // Before, canned is by the general tables.
    let before = rig::compress(rig.engine(), canned, &pages);
    let first = learn_more(&learnt, &pages);
    rig.engine().compress_with(first);
    for (page, (_, bytes)) in pages.iter().zip(before) {
        if !bytes.is_empty() {
            let (outcome, back) = rig::decompress(rig.engine(), canned, &bytes, 4096);
            assert!(is_by_device(&outcome) && &back == page);
        }
    }
    for (page, (outcome, bytes)) in pages.iter().zip(rig::compress(rig.engine(), canned, &pages)) {
        if outcome.result.is_ok() {
            let (outcome, back) = rig::decompress(rig.engine(), canned, &bytes, 4096);
            assert!(is_by_device(&outcome) && &back == page);
            assert!(&rig::decompress(&mut cpu, canned, &bytes, 4096).1 == page);
        }
    }
    // Objects of an older generation are read by software, and so are those of the one that devices have
    // once there are others with the same ids.
    let of_first = rig::compress(rig.engine(), canned, &pages);
    rig.engine().compress_with(learn_more(&learnt, &pages[..9]));
    for (page, (_, bytes)) in pages.iter().zip(of_first) {
        if !bytes.is_empty() {
            let (outcome, back) = rig::decompress(rig.engine(), canned, &bytes, 4096);
            assert_eq!(outcome.by, By::CpuInstead(Why::NotTaken));
            assert!(&back == page);
        }
    }
    let of_second = rig::compress(rig.engine(), canned, &pages);
    while learn_more(&learnt, &pages).first_id() != of_second[0].1[0] & !7 {}
    let (outcome, _) = rig::decompress(rig.engine(), canned, &of_second[0].1, 4096);
    assert_eq!(outcome.by, By::CpuInstead(Why::NotTaken));
}

/// A generation of tables that suit these pages.
fn learn_more(learnt: &Generations, pages: &[Vec<u8>]) -> Generation {
    let samples = pages.iter().map(Vec::as_slice);
    let lengths = deflate::learn(Level::L1, 4096, 4, samples);
    learnt.replace(4096, &lengths).expect("tables").expect("nobody uses an older one")
}

#[test]
fn a_state_that_comes_late_is_never_taken_for_another_table_s() {
    let canned = rig::deflate(DeflateMode::Canned);
    let mut rig = Rig::new(&found(1, 2, 1, 16, true), config());
    let pages: Vec<Vec<u8>> = pages().into_iter().step_by(8).collect();
    let (some, others) = pages.split_at(pages.len() / 2);
    let learnt = Arc::new(Generations::new());
    rig.engine().set_learnt(&learnt);
    let late = 5 * config().timeout_ns;
    rig.model.set_fate(Some(Box::new(move |_, _| Some(Mishap::Late(late)))));
    rig.engine().compress_with(learn_more(&learnt, some));
    rig.model.set_fate(None);
    rig.engine().compress_with(learn_more(&learnt, others));
    rig.model.spend(2 * late);
    rig.engine().pause();
    assert!(rig.engine().is_idle(), "all that was late has come");
    for (page, (outcome, bytes)) in pages.iter().zip(rig::compress(rig.engine(), canned, &pages)) {
        if outcome.result.is_ok() {
            let (outcome, back) = rig::decompress(rig.engine(), canned, &bytes, 4096);
            assert_eq!(outcome.by, By::CpuInstead(Why::NotTaken));
            assert!(&back == page);
        }
    }
}

#[test]
fn more_requests_than_lanes_are_taken_in_turns_and_done_in_any_order() {
    let mut rig = Rig::new(&found(1, 4, 2, 16, true), config());
    // One that takes longer comes last.
    rig.model.set_fate(Some(slow_first()));
    let pages: Vec<Vec<u8>> = pages().into_iter().cycle().take(3 * LANES).collect();
    let mut outputs = vec![vec![0; 4096]; pages.len()];
    let mut requests: Vec<Request<'_>> =
        pages.iter().zip(&mut outputs).map(|(p, o)| Request::compress(FIXED, p, o)).collect();
    let mut batch = Batch::new(rig.engine(), &mut requests);
    assert_eq!(batch.submit(), LANES);
    assert_eq!(batch.submit(), 0);
    let mut order = Vec::new();
    while let Some(place) = batch.wait() {
        order.push(place);
        batch.submit();
    }
    assert_ne!(order[0], 0);
    order.sort_unstable();
    assert!(order.into_iter().eq(0..pages.len()));
    drop(batch);
    assert!(requests.iter().all(|r| is_by_device(&r.outcome().expect("done"))));
}

fn slow_first() -> Fate {
    let mut n = 0;
    Box::new(move |_, _| {
        n += 1;
        (n == 1).then_some(Mishap::Late(100_000))
    })
}

#[test]
fn compressions_are_spread_and_decompressions_stay_near() {
    for (devices, queues) in [(1, 1), (1, 2), (4, 1), (4, 2), (8, 2)] {
        let mut rig = Rig::new(&found(2, devices, queues, 32, true), config());
        let pages = pages();
        // Two processors of the second package.
        let mut engines =
            [rig.another(Config { cpu: 4, ..config() }), rig.engine.take().expect("an engine")];
        engines[1].move_to(7);
        let before: Vec<u64> = rig.fleet.queues().iter().map(|q| q.calls().1).collect();
        for engine in &mut engines {
            for (page, (_, bytes)) in pages.iter().zip(rig::compress(engine, FIXED, &pages)) {
                if !bytes.is_empty() {
                    assert!(&rig::decompress(engine, FIXED, &bytes, 4096).1 == page);
                }
            }
        }
        let all = rig.fleet.queues();
        let (near, far): (Vec<_>, Vec<_>) =
            all.iter().zip(before).partition(|(q, _)| q.device > 2 * devices);
        assert!(far.iter().all(|(q, before)| q.calls() == (0, *before)), "the other package");
        let global = |q: &octavo_accel::iaa::fleet::Queue| q.number + 1 == queues;
        let calls: Vec<u64> =
            near.iter().filter(|(q, _)| global(q)).map(|(q, _)| q.calls().0).collect();
        let (most, least) = (calls.iter().max().expect("one"), calls.iter().min().expect("one"));
        assert!(*most as f64 <= *least as f64 * 1.05, "{devices} devices: {calls:?}");
        if queues == 2 {
            assert!(near.iter().all(|(q, _)| global(q) || q.calls().0 == 0), "compressed by wq.0");
            assert!(near.iter().all(|(q, _)| !global(q) || q.calls().1 == 0), "wq.1 decompressed");
        }
        drop(engines);
    }
}

#[test]
fn a_full_queue_at_every_point() {
    // Whatever command a queue refuses, and for however long, all is done in the end.
    for codec in MODES {
        for verify in [false, true] {
            for (first, times) in
                (0..4).flat_map(|first| [1, 3, 100_000].map(|times| (first, times)))
            {
                let mut rig = Rig::new(&found(1, 2, 2, 2, false), Config { verify, ..config() });
                let mut n = 0;
                rig.model.set_fate(Some(Box::new(move |_, _| {
                    n += 1;
                    (n > first && n - first <= times).then_some(Mishap::Full)
                })));
                let pages = &pages()[..4];
                let made = rig::compress(rig.engine(), codec, pages);
                for (page, (outcome, bytes)) in pages.iter().zip(made) {
                    assert!(outcome.result.is_ok(), "{codec}, {first}, {times}: {outcome:?}");
                    let (outcome, back) = rig::decompress(rig.engine(), codec, &bytes, 4096);
                    assert!(&back == page);
                    let instead = outcome.by == By::CpuInstead(Why::QueueFull);
                    assert!(is_by_device(&outcome) || instead, "{outcome:?}");
                }
                assert!(rig.engine().is_idle());
                assert!(rig.fleet.queues().iter().all(|q| q.is_alive() && q.in_flight() == 0));
            }
        }
    }
}

#[test]
fn a_device_that_does_not_answer_is_given_up_and_nobody_waits_for_it_again() {
    let mut rig = Rig::new(&found(1, 1, 2, 128, true), config());
    rig.model.set_fate(Some(Box::new(|_, _| Some(Mishap::Silent))));
    let pages = &pages()[..LANES];
    let begin = octavo_accel::iaa::Machine::now(&rig.model);
    for (outcome, _) in rig::compress(rig.engine(), FIXED, pages) {
        assert_eq!(outcome.by, By::CpuInstead(Why::TimedOut));
        assert!(outcome.result.is_ok());
    }
    let waited = octavo_accel::iaa::Machine::now(&rig.model) - begin;
    assert!(waited < 2 * config().timeout_ns, "all wait at once: {waited}");
    assert!(!rig.fleet.queues()[1].is_alive());
    // Its lanes are lost, and so are the places in the queue; work goes on.
    rig.model.set_fate(None);
    for (page, (outcome, bytes)) in pages.iter().zip(rig::compress(rig.engine(), FIXED, pages)) {
        assert_eq!(outcome.by, By::CpuInstead(Why::NoQueue));
        let (outcome, back) = rig::decompress(rig.engine(), FIXED, &bytes, 4096);
        assert!(outcome.result.is_ok() && &back == page);
    }
    assert_eq!(rig.fleet.queues()[1].in_flight() as usize, LANES);
    assert!(!rig.engine().is_idle());
}

#[test]
fn a_late_answer_is_for_nobody_and_its_lane_comes_back() {
    let mut rig = Rig::new(&found(1, 1, 2, 128, true), config());
    let late = 5 * config().timeout_ns;
    let mut n = 0;
    rig.model.set_fate(Some(Box::new(move |_, _| {
        n += 1;
        (n == 2).then_some(Mishap::Late(late))
    })));
    let pages = &pages()[..LANES];
    let made = rig::compress(rig.engine(), FIXED, pages);
    assert_eq!(made[1].0.by, By::CpuInstead(Why::TimedOut));
    assert_eq!(made.iter().filter(|(outcome, _)| is_by_device(outcome)).count(), LANES - 1);
    assert!(!rig.engine().is_idle());
    for _ in 0..LANES {
        // Other pages go through the other lanes meanwhile.
        let made = rig::compress(rig.engine(), FIXED, &pages[..LANES - 1]);
        assert!(made.iter().all(|(outcome, _)| is_by_device(outcome)));
    }
    rig.model.spend(late);
    rig.engine().pause();
    assert!(rig.engine().is_idle());
    assert!(rig.fleet.queues().iter().all(|queue| queue.in_flight() == 0));
}

#[test]
fn a_device_taken_away_in_the_middle_leaves_the_rest() {
    let mut rig = Rig::new(&found(1, 2, 2, 128, true), config());
    let mut n = 0;
    rig.model.set_fate(Some(Box::new(move |queue, _| {
        n += 1;
        (n > 8 && queue < 2).then_some(Mishap::Gone)
    })));
    let pages = &pages()[..2 * LANES];
    for round in 0..3 {
        for (page, (outcome, bytes)) in pages.iter().zip(rig::compress(rig.engine(), FIXED, pages))
        {
            let is_lost = outcome.by == By::CpuInstead(Why::TimedOut) && round == 0;
            assert!(is_lost || is_by_device(&outcome), "{outcome:?}");
            let (outcome, back) = rig::decompress(rig.engine(), FIXED, &bytes, 4096);
            assert!(outcome.result.is_ok() && &back == page);
        }
    }
    assert!(rig.fleet.queues()[2..].iter().all(|queue| queue.is_alive()));
}

#[test]
fn verification_finds_what_was_compressed_to_something_else() {
    for codec in MODES {
        for mishap in [Mishap::WrongByte, Mishap::WrongCrc] {
            let mut rig = Rig::new(&found(1, 1, 2, 128, true), Config { verify: true, ..config() });
            let mut n = 0;
            rig.model.set_fate(Some(Box::new(move |_, descriptor| {
                let writes = descriptor.codec_flags.get() == 6;
                n += u32::from(writes);
                (writes && n.is_multiple_of(3)).then_some(mishap)
            })));
            let pages = &pages()[..30];
            let mut unverified = 0;
            for (page, (outcome, bytes)) in
                pages.iter().zip(rig::compress(rig.engine(), codec, pages))
            {
                if outcome.result == Err(Failure::Unverified) {
                    unverified += 1;
                } else if outcome.result.is_ok() {
                    assert!(&rig::decompress(rig.engine(), codec, &bytes, 4096).1 == page);
                }
            }
            assert_eq!(unverified, 10, "{codec}, {mishap:?}");
            assert_eq!(rig.engine().stats().unverified, 10);
        }
    }
}

/// Behind four bytes of ones a CRC-32 does not see zeros: with one bit wrong this gives 16 bytes less of
/// them, and the same checksum.
#[test]
fn verification_finds_what_is_shorter_and_has_the_same_checksum() {
    let mut unit = vec![0; 64];
    unit[..4].fill(0xff);
    unit[60] = 2;
    let mut rig = Rig::new(&found(1, 1, 2, 128, true), Config { verify: true, ..config() });
    let good = rig::compress(rig.engine(), FIXED, std::slice::from_ref(&unit)).remove(0);
    assert!(good.0.result.is_ok());
    rig.model.set_fate(Some(Box::new(|_, descriptor| {
        (descriptor.codec_flags.get() == 6).then_some(Mishap::WrongByte)
    })));
    let (outcome, _) = rig::compress(rig.engine(), FIXED, &[unit]).remove(0);
    assert_eq!(outcome.result, Err(Failure::Unverified));
}

#[test]
fn an_error_for_one_request_of_eight_is_its_own() {
    let pages = &pages()[..8];
    for ((mishap, why), bad) in ANSWERS.into_iter().flat_map(|a| (0..8).map(move |n| (a, n))) {
        let mut rig = Rig::new(&found(1, 4, 2, 16, true), config());
        let good = rig::compress(rig.engine(), FIXED, pages);
        assert!(good.iter().all(|(outcome, _)| is_by_device(outcome)));
        let fate = || -> Option<Fate> {
            let mut n = 0;
            Some(Box::new(move |_, _| {
                n += 1;
                (n == bad + 1).then_some(mishap)
            }))
        };
        let is_right = |n: usize, outcome: &Outcome| {
            let instead = outcome.by == By::CpuInstead(why);
            outcome.result.is_ok() && if n == bad { instead } else { is_by_device(outcome) }
        };

        rig.model.set_fate(fate());
        let made = rig::compress(rig.engine(), FIXED, pages);
        for (n, (outcome, bytes)) in made.iter().enumerate() {
            assert!(is_right(n, outcome), "{mishap:?}, {bad}, {n}: {outcome:?}");
            assert!(n == bad || *bytes == good[n].1, "{mishap:?}, {bad}, {n}: other bytes");
        }

        rig.model.set_fate(fate());
        let mut units = vec![vec![0xdd; 4096]; pages.len()];
        let mut requests: Vec<Request<'_>> = made
            .iter()
            .zip(&mut units)
            .map(|((_, bytes), unit)| Request::decompress(FIXED, bytes, unit))
            .collect();
        Batch::new(rig.engine(), &mut requests).finish();
        for (n, request) in requests.iter().enumerate() {
            let outcome = request.outcome().expect("done");
            assert!(is_right(n, &outcome), "{mishap:?}, {bad}, {n}: {outcome:?}");
        }
        assert_eq!(units, pages);
        assert!(rig.engine().is_idle());
        assert!(rig.fleet.queues().iter().all(|queue| queue.is_alive() && queue.in_flight() == 0));
    }
}

#[test]
fn a_batch_that_is_dropped_gives_its_lanes_back_when_devices_are_done() {
    let mut rig = Rig::new(&found(1, 1, 2, 128, true), config());
    let pages = &pages()[..LANES];
    let mut outputs = vec![vec![0; 4096]; pages.len()];
    let mut requests: Vec<Request<'_>> =
        pages.iter().zip(&mut outputs).map(|(p, o)| Request::compress(FIXED, p, o)).collect();
    assert_eq!(Batch::new(rig.engine(), &mut requests).submit(), LANES);
    assert!(!rig.engine().is_idle());
    let made = rig::compress(rig.engine(), FIXED, pages);
    assert!(made.iter().all(|(outcome, _)| outcome.result.is_ok()));
    while !rig.engine().is_idle() {
        rig.engine().pause();
    }
    assert!(rig.fleet.queues().iter().all(|queue| queue.in_flight() == 0));
}

#[test]
fn without_queues_or_memory_there_is_no_engine() {
    let rig = Rig::new(&found(1, 1, 2, 128, true), config());
    let memory = rig::memory();
    let new = |fleet, memory| {
        rig::Iaa::new(rig.model.clone(), fleet, memory, &rig::codecs(), config()).map(drop)
    };
    let none = octavo_accel::iaa::fleet::Fleet::new(&found(2, 0, 2, 128, true));
    assert_eq!(new(Arc::new(none), &memory), Err(NewError::NoQueues));
    let little = memory.part(0, memory.len() / 8);
    let error = NewError::TooLittleMemory(little.len());
    assert_eq!(new(rig.fleet.clone(), &little), Err(error));
}

#[test]
fn in_real_time_two_engines_on_two_threads_share_devices() {
    fn now() -> u64 {
        octavo_sys::task::now().as_nanos() as u64
    }
    let fleet = Arc::new(Fleet::new(&found(1, 2, 2, 8, true)));
    let model = Arc::new(Model::new(&fleet, Clock::Real(now), Latency::BY_N));
    let pages: Vec<Vec<u8>> = pages().into_iter().step_by(16).collect();
    // A machine that has other work may be slow: what is late is done by software.
    let work = |cpu: usize| {
        let memory = rig::memory();
        model.share(&memory);
        let config = Config { cpu, ..Config::DEFAULT };
        let mut engine =
            rig::Iaa::new(model.clone(), fleet.clone(), &memory, &rig::codecs(), config)
                .expect("an engine");
        for codec in MODES {
            for (page, (_, bytes)) in pages.iter().zip(rig::compress(&mut engine, codec, &pages)) {
                if !bytes.is_empty() {
                    assert!(&rig::decompress(&mut engine, codec, &bytes, 4096).1 == page);
                }
            }
        }
        engine.stats().by_device
    };
    let by_devices: u64 = std::thread::scope(|scope| {
        let others: Vec<_> = (0..2)
            .map(|cpu| {
                let work = &work;
                scope.spawn(move || work(cpu))
            })
            .collect();
        others.into_iter().map(|other| other.join().expect("no panic")).sum()
    });
    assert!(by_devices > 0);
    assert_eq!(model.tally().lost, 0);
}

/// A device whose engines compress `compressors` at a time, told the time.
fn told(compressors: usize) -> (Arc<Model>, Iaa, rig::Rig) {
    let rig = Rig::new(&found(1, 1, 1, 16, true), config());
    let fleet = rig.fleet.clone();
    let latency = Latency { compressors, ..Latency::BY_N };
    let model = Arc::new(Model::new(&fleet, Clock::Told, latency));
    let memory = rig::memory();
    model.share(&memory);
    let engine = Driver::new(model.clone(), fleet, &memory, &[FIXED], config()).expect("an engine");
    (model, engine, rig)
}

#[test]
fn a_device_that_is_told_the_time_compresses_so_many_at_once_and_tells_who_ended() {
    let units = rig::pages();
    let work = (Latency::BY_N.compress_kib * 4.0) as u64;
    for compressors in [1, 2, 8] {
        let (model, mut engine, _rig) = told(compressors);
        let mut outputs: Vec<Vec<u8>> = units[..8].iter().map(|unit| vec![0; unit.len()]).collect();
        let requests = units.iter().zip(&mut outputs);
        let mut requests: Vec<Request<'_>> =
            requests.map(|(unit, out)| Request::compress(FIXED, unit, out)).collect();
        let mut batch = Batch::new(&mut engine, &mut requests);
        assert_eq!(batch.submit(), 8);
        let mut ends = Vec::new();
        while let Some(time) = model.next_event() {
            model.advance(time, |completion| {
                assert_ne!(completion, 0);
                ends.push(time - Latency::BY_N.way as u64);
            });
        }
        // All were submitted at time 0: they end in rounds.
        let rounds: Vec<u64> = (0..8).map(|n| (n / compressors as u64 + 1) * work).collect();
        assert_eq!(ends, rounds, "{compressors} at once");
        batch.finish();
        drop(batch);
        assert!(requests.iter().all(|request| is_by_device(&request.outcome().expect("done"))));
    }
}
