//! Any calls of a backing, and a disk that is changed behind its back and fails, against a map from owners
//! to objects: whatever is read was written, by this owner, at this time.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use octavo_backing::{Backing, Reader};
use octavo_fuzz::backing::{Disk, Mishap, Model, SECTOR, config, member, pass, small};
use octavo_sys::Errno;

const SEGMENTS: usize = 10;

#[derive(Arbitrary, Debug)]
enum Step {
    Write {
        first: u8,
        lens: Vec<u16>,
    },
    Free {
        owner: u8,
    },
    Read {
        owner: u8,
    },
    Clean,
    Flush,
    Rest {
        seconds: u8,
    },
    /// A byte of the disk becomes another.
    Change {
        at: u32,
        by: u8,
    },
    /// A sector becomes a copy of another.
    Copy {
        from: u8,
        to: u8,
    },
    /// The next call but some has a mishap.
    Fail {
        after: u8,
        how: u8,
    },
}

fuzz_target!(|steps: Vec<Step>| {
    let disk = Disk::new(SEGMENTS * small().segment_bytes(), 1);
    let backing = Backing::new(vec![member(disk.clone(), 0)], config(small())).expect("a backing");
    let model = Model::default();
    let mut reader = Reader::default();
    for (version, step) in (0..).zip(steps.iter().take(60)) {
        match step {
            Step::Write { first, lens } => {
                let batch: Vec<_> = (u64::from(*first)..)
                    .zip(lens.iter().take(12))
                    .map(|(owner, len)| (owner, version, 1 + usize::from(*len) % 16_368))
                    .collect();
                model.write(&backing, &batch);
            }
            Step::Free { owner } => model.free(&backing, (*owner).into()),
            Step::Read { owner } if model.get((*owner).into()).is_some() => {
                // It may be lost. It is not anything else: the model compares.
                let _ = model.read(&backing, &mut reader, (*owner).into());
            }
            Step::Read { .. } => {}
            Step::Clean => drop(backing.clean(&mut reader, &model)),
            Step::Flush => backing.flush(),
            Step::Rest { seconds } => {
                pass((*seconds).into());
                backing.tend();
            }
            Step::Change { at, by } => disk.tamper(|bytes| {
                let at = *at as usize % bytes.len();
                bytes[at] ^= by;
            }),
            Step::Copy { from, to } => disk.tamper(|bytes| {
                let [from, to] =
                    [from, to].map(|n| usize::from(*n) % (bytes.len() / SECTOR) * SECTOR);
                bytes.copy_within(from..from + SECTOR, to);
            }),
            Step::Fail { after, how } => {
                let (after, how) = (u64::from(*after % 16), *how);
                disk.set_fate(move |_, n| (n == after).then(|| mishap(how)));
            }
        }
        assert_eq!(backing.stats().live_bytes, model.bytes());
    }
    backing.flush();
});

fn mishap(how: u8) -> Mishap {
    match how % 6 {
        0 => Mishap::Fail(Errno::EIO),
        1 => Mishap::Fail(Errno::ENOSPC),
        2 => Mishap::Torn(usize::from(how / 6) % 4, Errno::EIO),
        3 => Mishap::Short(usize::from(how) * 100),
        4 => Mishap::Flip(u64::from(how) * 997),
        _ => Mishap::Zeros,
    }
}
