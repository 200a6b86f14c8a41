//! What the engine layer costs: a request through a batch on the CPU engine beside the same call of
//! the codec.
//!
//!     cargo run --release -p octavo-accel --example layer
//!
//! The work is as small as work gets (lz4, 64 bytes decompressed), so that what is beside it shows.

use octavo_accel::{Batch, Cpu, Request};
use octavo_codec::{Codec, Workspace};
use std::time::Instant;

const UNIT: usize = 64;
const ROUNDS: usize = 2000;
const PASSES: usize = 21;

fn main() {
    let codec = Codec::Lz4;
    let mut workspace = Workspace::new(&[codec]);
    let mut engine = Cpu::new(&[codec]);
    let unit = [7; UNIT];
    let mut bytes = [0; UNIT];
    let size = workspace.compress(codec, &unit, &mut bytes).expect("it compresses");
    let bytes = &bytes[..size];
    println!(
        "requests  directly ns  batch ns  layer ns    (a request; medians of {PASSES} passes)"
    );
    for requests in [1, 8, 16, 64] {
        let mut out = vec![[0; UNIT]; requests];
        let (mut direct, mut batch) = (Vec::new(), Vec::new());
        for _ in 0..PASSES {
            let begin = Instant::now();
            for _ in 0..ROUNDS {
                for out in &mut out {
                    workspace.decompress(codec, bytes, std::hint::black_box(out)).expect("good");
                }
            }
            direct.push(begin.elapsed().as_nanos() as f64 / (ROUNDS * requests) as f64);
            let begin = Instant::now();
            for _ in 0..ROUNDS {
                round(&mut engine, codec, bytes, &mut out);
            }
            batch.push(begin.elapsed().as_nanos() as f64 / (ROUNDS * requests) as f64);
        }
        let (direct, batch) = (median(direct), median(batch));
        println!("{requests:8} {direct:12.1} {batch:9.1} {:9.1}", batch - direct);
    }
}

/// Batches of as many requests as there are outputs, made anew each time as a store would.
fn round(engine: &mut Cpu, codec: Codec, bytes: &[u8], outs: &mut [[u8; UNIT]]) {
    match outs.len() {
        1 => batch::<1>(engine, codec, bytes, outs),
        8 => batch::<8>(engine, codec, bytes, outs),
        16 => batch::<16>(engine, codec, bytes, outs),
        _ => batch::<64>(engine, codec, bytes, outs),
    }
}

fn batch<const N: usize>(engine: &mut Cpu, codec: Codec, bytes: &[u8], outs: &mut [[u8; UNIT]]) {
    let outs: &mut [[u8; UNIT]; N] = outs.try_into().expect("as many outputs");
    let mut requests =
        outs.each_mut().map(|out| Request::decompress(codec, bytes, std::hint::black_box(out)));
    Batch::new(engine, &mut requests).finish();
    assert!(requests.iter().all(|r| r.outcome().is_some_and(|o| o.result == Ok(UNIT))));
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
