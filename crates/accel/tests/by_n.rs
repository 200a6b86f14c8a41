//! Parts as requests against the codec's own by_N.

mod rig;

use octavo_accel::{Cpu, Failure, by_n};
use octavo_codec::{Codec, Parts, Workspace};
use rig::{MODES, Rig, config, found};

fn with_parts(codec: Codec, n: usize) -> Codec {
    match codec {
        Codec::Deflate { mode, level, .. } => {
            Codec::Deflate { mode, level, parts: Parts::by(n).expect("a power of two") }
        }
        other => other,
    }
}

#[test]
fn parts_at_once_are_the_parts_of_the_codec() {
    let mut rig = Rig::new(&found(1, 4, 2, 16, true), config());
    let mut cpu = Cpu::new(&rig::codecs());
    let mut workspace = Workspace::new(&rig::codecs());
    let unit = rig::pages()[..16].concat();
    let (mut room, mut out) = (vec![0; unit.len()], vec![0; 2 * unit.len()]);
    let (mut theirs, mut back) = (out.clone(), unit.clone());
    for codec in MODES {
        for n in [1, 2, 4, 8, 16, 32, 64] {
            let whole = with_parts(codec, n);
            // On the CPU it is the same to the byte.
            let size = by_n::compress(&mut cpu, codec, n, &unit, &mut room, &mut out);
            let direct = workspace.compress(whole, &unit, &mut theirs).expect("it fits");
            assert_eq!(size, Ok(direct));
            assert!(out[..direct] == theirs[..direct], "{whole}");
            // Devices do parts no longer than their units; either reads what the other wrote.
            let size = by_n::compress(rig.engine(), codec, n, &unit, &mut room, &mut out);
            let size = size.expect("it fits");
            workspace.decompress(whole, &out[..size], &mut back).expect("its own bytes");
            assert!(back == unit, "{whole}");
            back.fill(0);
            let read = by_n::decompress(rig.engine(), codec, n, &theirs[..direct], &mut back);
            assert_eq!(read, Ok(()));
            assert!(back == unit, "{whole}");

            let short =
                by_n::compress(&mut cpu, codec, n, &unit, &mut room, &mut out[..direct - 1]);
            assert_eq!(short, Err(Failure::DoesNotFit));
            for cut in [0, 3, 4 * n - 1, direct / 2, direct - 1] {
                let read = by_n::decompress(&mut cpu, codec, n, &theirs[..cut], &mut back);
                assert_eq!(read, Err(Failure::Corrupt), "{whole} cut at {cut}");
            }
        }
    }
    assert!(rig.engine().stats().by_device > 0);
}
