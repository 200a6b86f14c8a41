//! No call of libc's allocator while units are compressed and decompressed, nor while tables are learnt
//! from them and written over older ones.
//!
//! The allocator is replaced for the whole of this program, C libraries included, by one that
//! counts and passes on. One thread, no test harness: whatever is counted is the codecs'.

mod counting;

use octavo_codec::deflate::{Generations, Learner, Level, Step};
use octavo_codec::{Codec, Job, Workspace};
use std::sync::Arc;

fn main() {
    let pages = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/gcc.pages"))
        .expect("the sample pages that ship with the source");
    let codecs: Vec<Codec> = Codec::all().collect();
    let (mut bytes, mut back) = (vec![0; 65536], vec![0; 65536]);
    let mut workspace = Workspace::new(&codecs);
    let mut learner = Learner::new(Level::L1, 65536);
    workspace.set_learnt(Arc::clone(learner.generations()));
    assert!(counting::calls() > 0, "the allocator is not watched");

    let before = counting::calls();
    let mut units = 0;
    for &codec in &codecs {
        for unit_bytes in [4096, 16384, 65536] {
            for unit in pages[..131_072].chunks_exact(unit_bytes) {
                let out = &mut bytes[..unit_bytes];
                let Ok(size) = workspace.compress(codec, unit, out) else { continue };
                let back = &mut back[..unit_bytes];
                workspace.decompress(codec, &bytes[..size], back).expect("our own bytes");
                assert!(unit == back, "{codec} gives another unit back");
                assert!(workspace.decompress(codec, &bytes[..size - 1], back).is_err());
                units += 1;
            }
        }
    }
    let learnt = learn(&mut learner, &pages);
    assert!(
        learnt > Generations::MAX,
        "{learnt} generations, none of them in an older one's place"
    );
    // Many at once, with the newest tables.
    let codec = "deflate-canned:1".parse().expect("a codec");
    workspace.compress_with(learner.generations().newest().expect("a generation"));
    let mut rooms = bytes.chunks_exact_mut(4096);
    let mut jobs: [Job<'_>; 16] = std::array::from_fn(|i| {
        Job::new(&pages[4096 * i..][..4096], rooms.next().expect("a room for each"))
    });
    workspace.compress_all(codec, &mut jobs);
    let compressed = jobs.iter().filter(|job| job.size.is_ok()).count();
    assert!(compressed > 8, "{compressed} of 16 pages");
    let calls = counting::calls() - before;
    assert_eq!(calls, 0, "calls of the allocator");
    println!("{units} units, {} codecs, no call of the allocator", codecs.len());
}

/// Learns from pages that are in turn as they are and changed; how many generations.
fn learn(learner: &mut Learner, pages: &[u8]) -> usize {
    let mut learnt = 0;
    let mut changed = [0; 4096];
    for turn in 0..8 {
        for page in pages.chunks_exact(4096).cycle() {
            changed.copy_from_slice(page);
            changed.iter_mut().for_each(|byte| *byte ^= 0x55 * (turn % 2));
            learner.offer(&changed);
            match learner.step() {
                Step::Waits | Step::Trains => {}
                Step::Learnt(_) => break,
                step => panic!("{step:?}"),
            }
        }
        learnt += 1;
    }
    learnt
}
