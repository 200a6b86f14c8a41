//! Everything goes wrong at random, and there is a model of every page: no wrong byte, nothing
//! lost, no hang. `ACCEL_SEEDS` says how many seeds (200); the soak has thousands.

mod rig;

use octavo_accel::iaa::wire::{opcode, status};
use octavo_accel::iaa::{Config, Machine};
use octavo_accel::model::{Fate, Mishap};
use octavo_accel::{Batch, Engine, Failure, Request};
use octavo_codec::Codec;
use rig::{Iaa, MODES, Random, Rig, found};

/// Short, so that there are many of them a second.
const UNIT_BYTES: usize = 512;

/// Virtual time that one round may take: every request, one after the other, until it is given up.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A unit, and what it was compressed to.
struct Stored {
    unit: usize,
    codec: Codec,
    bytes: Vec<u8>,
}

fn fate(mut random: Random, one_in: u32, is_verified: bool) -> Fate {
    Box::new(move |_, descriptor| {
        if random.below(one_in) != 0 {
            return None;
        }
        let writes = descriptor.opcode() == opcode::COMPRESS && descriptor.codec_flags.get() == 6;
        Some(match random.below(12) {
            0 => Mishap::Full,
            1 if random.below(20) == 0 => Mishap::Gone,
            2 => Mishap::Silent,
            3 => Mishap::Late(u64::from(random.below(4_000_000))),
            4 => Mishap::Status(status::PAGE_FAULT, 0),
            5 => Mishap::Status(status::HARDWARE + random.below(3) as u8, 0),
            6 => Mishap::Status(status::ANALYTICS, random.below(40) as u8),
            7 => Mishap::Status(random.below(255) as u8 + 1, random.next() as u8),
            8 => Mishap::WrongSize,
            9 => Mishap::WrongCrc,
            // Only who verifies can know of it; a page that was decompressed is checked by its hash.
            10 if is_verified && writes => Mishap::WrongByte,
            _ => Mishap::Late(u64::from(random.below(30_000))),
        })
    })
}

/// Whether a device may have said, untruly, that it succeeded: then bytes are what they are.
fn lies(mishap: &Mishap) -> bool {
    matches!(mishap, Mishap::Status(status::SUCCESS, _))
}

/// Runs requests of several engines side by side until all are done.
fn run(
    engines: &mut [Iaa],
    requests: &mut [Vec<Request<'_>>],
    machine: &impl Machine,
    random: &mut Random,
) {
    let begin = machine.now();
    let mut batches: Vec<_> =
        engines.iter_mut().zip(requests).map(|(e, r)| Batch::new(e, r)).collect();
    loop {
        let mut busy = false;
        for batch in &mut batches {
            batch.submit();
            for _ in 0..random.below(4) {
                batch.poll();
            }
            batch.submit();
            busy |= batch.started() > 0;
        }
        if !busy {
            break;
        }
        machine.pause();
        assert!(machine.now() - begin < PATIENCE_NS, "a hang");
    }
}

fn pick(random: &mut Random, n: usize) -> usize {
    random.below(n as u32) as usize
}

/// One that devices do, for whole units or in up to eight parts.
fn codec(random: &mut Random) -> Codec {
    let codec = MODES[pick(random, 3)];
    if random.below(2) == 0 { codec } else { rig::by(1 << random.below(4), codec) }
}

/// Rooms for outputs, one for each of what every engine is asked for.
fn rooms<T>(asked: &[Vec<T>]) -> Vec<Vec<Vec<u8>>> {
    asked.iter().map(|each| vec![vec![0xdd; UNIT_BYTES]; each.len()]).collect()
}

/// The requests that `make` makes of what every engine is asked for.
fn requests<'a, T>(
    asked: &[Vec<T>],
    rooms: &'a mut [Vec<Vec<u8>>],
    make: impl Fn(&T, &'a mut [u8]) -> Request<'a>,
) -> Vec<Vec<Request<'a>>> {
    let each = |(asked, rooms): (&Vec<T>, &'a mut Vec<Vec<u8>>)| {
        asked.iter().zip(rooms).map(|(what, room)| make(what, room)).collect()
    };
    asked.iter().zip(rooms).map(each).collect()
}

fn one(seed: u64, units: &[Vec<u8>]) {
    let mut random = Random(seed * 2 + 1);
    let (devices, queues) = (1 + random.below(4) as u16, 1 + random.below(2) as u8);
    let shape =
        found(1, devices, queues, [2, 8, 64][random.below(3) as usize], random.below(2) == 0);
    let verify = random.below(2) == 0;
    let config = |cpu| Config { verify, cpu, ..rig::config() };
    let mut rig = Rig::new(&shape, config(0));
    let mut engines = vec![rig.engine.take().expect("an engine")];
    for cpu in 1..=random.below(2) as usize {
        engines.push(rig.another(config(cpu)));
    }
    let one_in = [3, 20, 200][random.below(3) as usize];
    let mut inner = fate(Random(random.next().into()), one_in, verify);
    rig.model.set_fate(Some(Box::new(move |queue, descriptor| {
        inner(queue, descriptor).filter(|mishap| !lies(mishap))
    })));

    let mut stored: Vec<Stored> = Vec::new();
    for _ in 0..2 {
        // Some units in, by every engine.
        let mut some = |_: &Iaa| -> Vec<(usize, Codec)> {
            let n = 1 + random.below(20);
            (0..n).map(|_| (pick(&mut random, units.len()), codec(&mut random))).collect()
        };
        let plan: Vec<_> = engines.iter().map(&mut some).collect();
        let mut outputs = rooms(&plan);
        let mut compress = requests(&plan, &mut outputs, |(n, codec), out| {
            Request::compress(*codec, &units[*n], out)
        });
        run(&mut engines, &mut compress, &rig.model, &mut random);
        for (plan, requests) in plan.iter().zip(&compress) {
            for ((unit, codec), request) in plan.iter().zip(requests) {
                let outcome = request.outcome().expect("done");
                match request.bytes() {
                    Some(bytes) => {
                        stored.push(Stored { unit: *unit, codec: *codec, bytes: bytes.to_vec() })
                    }
                    None => assert!(
                        matches!(outcome.result, Err(Failure::DoesNotFit | Failure::Unverified)),
                        "{outcome:?}"
                    ),
                }
            }
        }
        // Some of all pages out, by any engine.
        let mut some = |_: &Iaa| -> Vec<usize> {
            let n = if stored.is_empty() { 0 } else { random.below(20) };
            (0..n).map(|_| pick(&mut random, stored.len())).collect()
        };
        let wanted: Vec<_> = engines.iter().map(&mut some).collect();
        let mut outputs = rooms(&wanted);
        let mut decompress = requests(&wanted, &mut outputs, |n, out| {
            Request::decompress(stored[*n].codec, &stored[*n].bytes, out)
        });
        run(&mut engines, &mut decompress, &rig.model, &mut random);
        for (wanted, requests) in wanted.iter().zip(&decompress) {
            for (n, request) in wanted.iter().zip(requests) {
                assert_eq!(request.outcome().expect("done").result, Ok(UNIT_BYTES));
                assert!(
                    request.bytes() == Some(&units[stored[*n].unit][..]),
                    "seed {seed}: a wrong unit"
                );
            }
        }
    }
    assert_eq!(rig.model.tally().lost, 0, "seed {seed}: a queue was overfilled");
    // Once nothing goes wrong any more, every place that was not swallowed comes back.
    rig.model.set_fate(None);
    rig.model.spend(1_000_000_000);
    engines[0].pause();
    let held: u32 = rig.fleet.queues().iter().map(|queue| queue.in_flight()).sum();
    let idle = engines.iter_mut().all(Iaa::is_idle);
    let after: u32 = rig.fleet.queues().iter().map(|queue| queue.in_flight()).sum();
    assert!(after <= held && (!idle || after == 0), "seed {seed}: places are gone");
    drop(engines);
}

#[test]
fn whatever_goes_wrong() {
    let seeds = std::env::var("ACCEL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let units: Vec<Vec<u8>> =
        rig::pages().iter().flat_map(|p| p.chunks_exact(UNIT_BYTES)).map(<[u8]>::to_vec).collect();
    for seed in 0..seeds {
        one(seed, &units);
    }
}
