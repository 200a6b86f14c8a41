//! The CPU engine against the codecs called directly.

mod rig;

use octavo_accel::{Batch, By, Cpu, Engine, Failure, Operation, Outcome, Request};
use octavo_codec::deflate::{Generations, Level, TableSet, learn};
use octavo_codec::{Codec, Workspace};
use proptest::prelude::*;
use std::sync::Arc;

fn codecs() -> Vec<Codec> {
    ["lz4", "zstd:-1", "zstd:1", "deflate-fixed", "deflate-dynamic", "deflate-canned:1:general"]
        .iter()
        .chain(&["deflate-canned:by_4"])
        .map(|name| name.parse().expect("a codec"))
        .collect()
}

/// What the codec says, as an engine would.
fn directly(
    workspace: &mut Workspace,
    codec: Codec,
    unit: &[u8],
    room: usize,
) -> (Outcome, Vec<u8>) {
    let mut out = vec![0; room];
    let result = workspace.compress(codec, unit, &mut out).map_err(|_| Failure::DoesNotFit);
    out.truncate(result.unwrap_or(0));
    (Outcome { result, by: By::Cpu }, out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_batch_is_what_the_codecs_do(
        units in proptest::collection::vec(
            (0usize..7, prop_oneof![Just(4096usize), Just(16384)], any::<u32>(), 0u32..9,
             prop_oneof![Just(1.0f64), 0.0..1.0]), 1..20),
        at_once in 1usize..20,
    ) {
        let codecs = codecs();
        let mut workspace = Workspace::new(&codecs);
        let mut engine = Cpu::new(&codecs);
        let made: Vec<(Codec, Vec<u8>, usize)> = units.into_iter().map(|(codec, bytes, seed, bits, room)| {
            let mut random = rig::Random(u64::from(seed) + 1);
            let unit: Vec<u8> = (0..bytes).map(|_| (random.next() & ((1 << bits) - 1)) as u8).collect();
            (codecs[codec], unit, (bytes as f64 * room) as usize)
        }).collect();
        let expected: Vec<_> =
            made.iter().map(|(codec, unit, room)| directly(&mut workspace, *codec, unit, *room)).collect();

        // A few places that are filled again whenever one is done.
        let mut outputs: Vec<Vec<u8>> = made.iter().map(|(_, _, room)| vec![0; *room]).collect();
        let mut more = made.iter().zip(&mut outputs).enumerate()
            .map(|(n, ((codec, unit, _), out))| (n, Request::compress(*codec, unit, out)));
        let (mut places, mut requests): (Vec<usize>, Vec<Request<'_>>) =
            more.by_ref().take(at_once).unzip();
        let mut batch = Batch::new(&mut engine, &mut requests);
        let mut seen = 0;
        prop_assert_eq!(batch.submit(), places.len());
        while let Some(place) = batch.wait() {
            let n = places[place];
            prop_assert_eq!(batch.get(place).outcome(), Some(expected[n].0));
            prop_assert_eq!(batch.get(place).bytes().unwrap_or(&[]), &expected[n].1[..]);
            seen += 1;
            if let Some((n, request)) = more.next() {
                places[place] = n;
                batch.set(place, request);
                prop_assert_eq!(batch.submit(), 1);
            }
        }
        prop_assert_eq!(seen, made.len());
        drop(batch);
        drop(requests);

        for ((codec, unit, _), (outcome, bytes)) in made.iter().zip(&expected) {
            if outcome.result.is_ok() {
                let (outcome, back) = rig::decompress(&mut engine, *codec, bytes, unit.len());
                prop_assert_eq!(outcome, Outcome { result: Ok(unit.len()), by: By::Cpu });
                prop_assert!(&back == unit);
                let (outcome, _) = rig::decompress(&mut engine, *codec, &bytes[..bytes.len() - 1], unit.len());
                prop_assert_eq!(outcome.result, Err(Failure::Corrupt));
            }
        }
    }
}

/// An engine with tables learnt from pages, and the codec that has them.
fn with_learnt(pages: &[Vec<u8>]) -> (Cpu, Codec) {
    let codec = "deflate-canned:1".parse().expect("a codec");
    let mut engine = Cpu::new(&[codec, Codec::Lz4]);
    let samples = pages.iter().map(|page| &page[..]);
    let lengths = learn(Level::L1, 4096, TableSet::MAX, samples);
    engine.set_learnt(&Arc::new(Generations::with(4096, &lengths).expect("tables")));
    (engine, codec)
}

#[test]
fn pages_that_are_done_together_are_told_one_by_one() {
    let pages: Vec<Vec<u8>> = rig::pages().into_iter().cycle().take(75).collect();
    let (mut engine, codec) = with_learnt(&pages);
    // Others in between, and some that have too little room.
    let kind = |n: usize| {
        (if n % 7 == 3 { Codec::Lz4 } else { codec }, if n % 5 == 1 { 40 } else { 4095 })
    };
    let mut outputs = vec![vec![0; 4095]; pages.len()];
    let mut requests: Vec<Request<'_>> = pages
        .iter()
        .zip(&mut outputs)
        .enumerate()
        .map(|(n, (page, out))| Request::compress(kind(n).0, page, &mut out[..kind(n).1]))
        .collect();

    // Dropped after some were told: the others are new again, and done again.
    let mut batch = Batch::new(&mut engine, &mut requests);
    assert_eq!(batch.submit(), pages.len());
    let early: Vec<usize> = (0..10).map(|_| batch.poll().expect("one at each poll")).collect();
    assert_eq!(batch.started(), pages.len() - early.len());
    drop(batch);
    for (n, request) in requests.iter().enumerate() {
        assert_eq!(request.outcome().is_some(), early.contains(&n), "request {n}");
    }
    let mut told = early;
    let mut batch = Batch::new(&mut engine, &mut requests);
    batch.submit();
    while let Some(place) = batch.wait() {
        assert!(batch.get(place).outcome().is_some_and(|outcome| outcome.by == By::Cpu));
        told.push(place);
    }
    drop(batch);
    told.sort_unstable();
    assert!(told.into_iter().eq(0..pages.len()), "each once");

    for (n, (request, page)) in requests.iter().zip(&pages).enumerate() {
        let (codec, room) = kind(n);
        if room == 40 {
            assert_eq!(request.outcome().map(|o| o.result), Some(Err(Failure::DoesNotFit)), "{n}");
            continue;
        }
        let bytes = request.bytes().expect("a page that compresses");
        let (outcome, back) = rig::decompress(&mut engine, codec, bytes, page.len());
        assert_eq!(outcome.result, Ok(page.len()));
        assert!(back == *page, "another page than {n}");
    }
}

#[test]
fn it_takes_any_codec_and_any_number() {
    let engine = Cpu::new(&codecs());
    assert_eq!(engine.capabilities().depth, usize::MAX);
    for codec in codecs() {
        assert!(engine.takes(Operation::Compress, codec));
    }
}

#[test]
fn a_batch_that_is_dropped_leaves_its_requests_new() {
    let mut engine = Cpu::new(&codecs());
    let (unit, mut out) = (vec![3; 4096], vec![0; 4096]);
    let mut requests = [Request::compress(Codec::Lz4, &unit, &mut out)];
    assert_eq!(Batch::new(&mut engine, &mut requests).submit(), 1);
    assert_eq!(requests[0].outcome(), None);
    Batch::new(&mut engine, &mut requests).finish();
    assert!(requests[0].outcome().is_some_and(|outcome| outcome.result.is_ok()));
}
