//! Every codec: what goes in comes out, what does not fit says so, and damage stays inside the
//! slices.

use octavo_codec::deflate::{Generations, Level, TableSet, learn};
use octavo_codec::{Codec, Corrupt, DoesNotFit, Job, MAX_UNIT, Workspace};
use proptest::prelude::*;
use std::sync::Arc;

const UNITS: [usize; 3] = [4096, 16384, 65536];

fn sample(program: &str) -> Vec<u8> {
    let path = format!("{}/../../testdata/{program}.pages", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).expect("the sample pages that ship with the source")
}

/// Codecs that differ in more than how long they search.
fn codecs() -> Vec<Codec> {
    [
        "lz4",
        "zstd:-7",
        "zstd:-1",
        "zstd:1",
        "zstd:3",
        "zstd:9",
        "deflate-fixed:1",
        "deflate-dynamic:1",
        "deflate-dynamic:6",
        "deflate-canned:1:general",
        "deflate-canned:9:general",
    ]
    .map(|name| name.parse().expect("a codec"))
    .to_vec()
}

fn workspace() -> Workspace {
    Workspace::new(&Codec::all().collect::<Vec<_>>())
}

/// Compresses and decompresses; the compressed bytes, or None when they need more than `limit`.
fn round_trip(w: &mut Workspace, codec: Codec, unit: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0xee; limit + 64];
    let result = w.compress(codec, unit, &mut bytes[..limit]);
    assert!(bytes[limit..].iter().all(|&b| b == 0xee), "{codec} wrote behind its limit");
    let size = match result {
        Ok(size) => size,
        Err(DoesNotFit) => return None,
    };
    assert!(size <= limit);
    bytes.truncate(size);
    let mut back = vec![0xdd; unit.len()];
    w.decompress(codec, &bytes, &mut back).expect("our own bytes");
    assert!(back == unit, "{codec} gives another unit back");
    Some(bytes)
}

#[test]
fn sample_pages_come_back() {
    let mut w = workspace();
    for program in ["gcc", "python", "redis", "rustc", "sqlite"] {
        let pages = sample(program);
        for codec in codecs() {
            for unit_bytes in UNITS {
                let fits = pages
                    .chunks_exact(unit_bytes)
                    .step_by(7)
                    .filter(|unit| round_trip(&mut w, codec, unit, unit_bytes).is_some())
                    .count();
                assert!(fits > 0, "{codec} shrinks nothing of {program}");
            }
        }
    }
}

/// Every level on every kind of length: the context never runs out of memory.
#[test]
fn every_level_takes_every_length() {
    let mut w = workspace();
    let pages = sample("redis");
    for codec in Codec::all() {
        for length in [1, 2, 7, 100, 4095, 4096, 5000, 8192, 12288, 32768, 40000, MAX_UNIT] {
            let parts = match codec {
                Codec::Deflate { parts, .. } => parts.count().unwrap_or(1),
                _ => 1,
            };
            if length % parts == 0 {
                round_trip(&mut w, codec, &pages[65536..][..length], length * 2 + 512)
                    .expect("room enough for anything");
            }
        }
    }
}

#[test]
fn the_limit_is_exact_or_nearly() {
    let mut w = workspace();
    let pages = sample("python");
    for codec in codecs() {
        for unit in pages.chunks_exact(4096).filter(|u| u.iter().any(|b| *b != u[0])).take(20) {
            let Some(bytes) = round_trip(&mut w, codec, unit, 8192) else { unreachable!() };
            // zstd wants a little more room than it ends up using.
            assert!(round_trip(&mut w, codec, unit, bytes.len() + 32).is_some(), "{codec}");
            assert!(round_trip(&mut w, codec, unit, bytes.len() - 1).is_none(), "{codec}");
            assert!(round_trip(&mut w, codec, unit, 0).is_none(), "{codec}");
        }
    }
}

#[test]
fn random_bytes_do_not_fit() {
    let mut w = workspace();
    let mut state = 1u64;
    let unit: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(MAX_UNIT)
    .collect();
    for codec in codecs() {
        for length in UNITS {
            assert_eq!(round_trip(&mut w, codec, &unit[..length], length), None, "{codec}");
        }
    }
}

#[test]
fn truncated_bytes_are_corrupt() {
    let mut w = workspace();
    let pages = sample("rustc");
    let mut back = vec![0; 4096];
    for codec in codecs() {
        for unit in pages.chunks_exact(4096).step_by(16) {
            let Some(bytes) = round_trip(&mut w, codec, unit, 8192) else { unreachable!() };
            for cut in (0..bytes.len()).step_by(7) {
                let result = w.decompress(codec, &bytes[..cut], &mut back);
                assert_eq!(
                    result,
                    Err(Corrupt::Damaged),
                    "{codec} cut at {cut} of {}",
                    bytes.len()
                );
            }
        }
    }
}

/// A page made like those of real programs.
fn page() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        4 => Just(0u64),
        3 => (0u64..1 << 20).prop_map(|offset| 0x7f3a_5c00_0000 + offset * 16),
        2 => 0u64..256,
        1 => any::<u64>(),
        1 => Just(u64::from_le_bytes(*b"the page")),
    ];
    let run = (word, 1usize..64, 0u64..3);
    proptest::collection::vec(run, 1..300).prop_map(|runs| {
        let words = runs.into_iter().flat_map(|(word, count, step)| {
            (0..count as u64).map(move |i| word.wrapping_add(i * step * 8))
        });
        let mut page: Vec<u8> = words.flat_map(u64::to_le_bytes).take(4096).collect();
        page.resize(4096, 0);
        page
    })
}

proptest! {
    #[test]
    fn any_page_comes_back(page in page(), limit in 0usize..5000) {
        let mut w = workspace();
        for codec in codecs() {
            round_trip(&mut w, codec, &page, limit);
        }
    }

    #[test]
    fn many_at_once_come_back(
        pages in proptest::collection::vec((page(), 0usize..5000), 0..8),
        length in prop_oneof![4 => Just(4096usize), 1 => 1usize..4096],
    ) {
        let mut w = workspace();
        let samples = pages.iter().map(|(page, _)| &page[..]);
        let tables = Generations::with(4096, &learn(Level::L1, 4096, TableSet::MAX, samples));
        w.set_learnt(Arc::new(tables.expect("what is learnt is a table")));
        let learnt = "deflate-canned:1".parse().expect("a codec");
        for codec in codecs().into_iter().chain([learnt]) {
            // One of them may be no page.
            let unit = |i: usize| &pages[i].0[..if i == 1 { length } else { 4096 }];
            let mut rooms: Vec<Vec<u8>> = pages.iter().map(|(_, limit)| vec![0xee; limit + 64]).collect();
            let mut jobs: Vec<Job<'_>> = rooms
                .iter_mut()
                .enumerate()
                .map(|(i, room)| Job::new(unit(i), &mut room[..pages[i].1]))
                .collect();
            w.compress_all(codec, &mut jobs);
            let sizes: Vec<_> = jobs.iter().map(|job| job.size).collect();
            for (i, (size, room)) in sizes.into_iter().zip(&rooms).enumerate() {
                prop_assert!(room[pages[i].1..].iter().all(|&b| b == 0xee), "behind the limit");
                let Ok(size) = size else { continue };
                let mut back = vec![0xdd; unit(i).len()];
                w.decompress(codec, &room[..size], &mut back).expect("our own bytes");
                prop_assert!(back == unit(i), "{} gives another unit back", codec);
            }
        }
    }

    #[test]
    fn any_bytes_stay_inside(unit in proptest::collection::vec(any::<u8>(), 1..3000)) {
        let mut w = workspace();
        for codec in codecs() {
            round_trip(&mut w, codec, &unit, unit.len() * 2 + 512).expect("room enough");
        }
    }

    #[test]
    fn damage_stays_inside(
        page in page(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in 1usize..5000,
        wanted in any::<prop::sample::Index>(),
    ) {
        let mut w = workspace();
        for codec in codecs() {
            let mut bytes = round_trip(&mut w, codec, &page, 8192).expect("room enough");
            for (at, value) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            // Into a buffer of the right or of any other length, with a guard behind it.
            for length in [4096, length] {
                let mut back = vec![0xee; length + 64];
                let _ = w.decompress(codec, &bytes, &mut back[..length]);
                prop_assert!(back[length..].iter().all(|&b| b == 0xee));
                let wanted = wanted.index(length) + 1;
                let _ = w.decompress_prefix(codec, &bytes, &mut back[..length], wanted);
                prop_assert!(back[length..].iter().all(|&b| b == 0xee));
            }
        }
    }

    #[test]
    fn a_prefix_is_the_beginning(page in page(), wanted in 1usize..=4096) {
        let mut w = workspace();
        for codec in codecs() {
            let bytes = round_trip(&mut w, codec, &page, 8192).expect("room enough");
            let mut back = vec![0; 4096];
            w.decompress_prefix(codec, &bytes, &mut back, wanted).expect("our own bytes");
            prop_assert!(back[..wanted] == page[..wanted]);
        }
    }

    #[test]
    fn arbitrary_bytes_stay_inside(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        let mut w = workspace();
        for codec in codecs() {
            let mut back = vec![0xee; 4096 + 64];
            let _ = w.decompress(codec, &bytes, &mut back[..4096]);
            prop_assert!(back[4096..].iter().all(|&b| b == 0xee));
        }
    }
}
