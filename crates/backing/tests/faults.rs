//! Everything goes wrong, at every call in turn and at random, and there is a model of every object: no
//! wrong byte, nothing lost to a write, nothing else lost with what cannot be read.
//!
//! `BACKING_SEEDS` says how many seeds (40), each of which has four storms; the soak has thousands.

mod rig;

use octavo_backing::{Backing, Cleaned, Fault, ReadError, Reader, WriteError};
use octavo_sys::Errno;
use rig::{Call, Disk, Mishap, Model, Random, SECTOR, config, member, pass, small};

const SEGMENTS: usize = 24;

fn backing_on(disks: &[Disk]) -> Backing<Disk> {
    let members = disks.iter().map(|disk| member(disk.clone(), 0)).collect();
    Backing::new(members, config(small())).expect("a backing")
}

fn disk(seed: u64) -> Disk {
    Disk::new(SEGMENTS * small().segment_bytes(), seed)
}

/// What a seed has go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Weather {
    /// Writes alone.
    Writes,
    /// Writes and reads.
    Both,
    /// No room at times.
    Full,
    /// From some call on nothing goes.
    Vanishes,
}

fn write_mishap(random: &mut Random) -> Mishap {
    let errors =
        [Errno::EIO, Errno::ENOSPC, Errno::ENXIO, Errno::EDQUOT, Errno::ENOMEM, Errno::EROFS];
    match random.below(6) {
        0 => Mishap::Fail(errors[random.below(6) as usize]),
        1 => Mishap::Torn(random.below(4) as usize, Errno::EIO),
        2 => Mishap::Short(random.below(5 * SECTOR as u64) as usize),
        3 => Mishap::Fail(Errno::EINTR),
        4 => Mishap::Fail(Errno::EAGAIN),
        _ => Mishap::Short(0),
    }
}

fn read_mishap(random: &mut Random) -> Mishap {
    match random.below(5) {
        0 => Mishap::Fail(Errno::EIO),
        1 => Mishap::Flip(random.below(SECTOR as u64 * 8)),
        2 => Mishap::Zeros,
        3 => Mishap::Short(random.below(4 * SECTOR as u64) as usize),
        _ => Mishap::Fail(Errno::EINTR),
    }
}

fn fate(weather: Weather, mut random: Random) -> impl FnMut(Call, u64) -> Option<Mishap> + Send {
    let rate = 2 + random.below(12);
    let until = 20 + random.below(150);
    move |call, n| match (weather, call) {
        (Weather::Full, Call::Write) => (n / until % 2 == 1).then_some(Mishap::Fail(Errno::ENOSPC)),
        (Weather::Vanishes, _) => (n > until).then_some(Mishap::Fail(Errno::ENODEV)),
        (Weather::Writes | Weather::Both, Call::Write) => {
            random.one_in(rate).then(|| write_mishap(&mut random))
        }
        (Weather::Both, Call::Read) => random.one_in(rate).then(|| read_mishap(&mut random)),
        (_, Call::Punch) => random.one_in(3).then_some(Mishap::Fail(Errno::EIO)),
        _ => None,
    }
}

/// Whether a read that failed may have failed.
fn check_loss(weather: Weather, why: ReadError) {
    let ReadError::Lost(lost) = why else { panic!("what lives is not gone") };
    match weather {
        Weather::Both => {}
        Weather::Vanishes => assert_eq!(lost.why, Fault::Unreadable(Errno::ENODEV)),
        Weather::Writes | Weather::Full => panic!("{weather:?}: {lost}"),
    }
    assert!(lost.offset < (SEGMENTS * small().segment_bytes()) as u64);
}

fn storm(seed: u64, weather: Weather) {
    let mut random = Random(seed);
    let disks: Vec<_> = (0..1 + random.below(2)).map(|n| disk(seed + n)).collect();
    let backing = backing_on(&disks);
    let model = Model::default();
    let mut reader = Reader::default();
    for (n, disk) in disks.iter().enumerate() {
        disk.set_fate(fate(weather, Random(seed ^ n as u64)));
    }
    let mut troubles = 0;
    for version in 0..150 {
        match random.below(10) {
            0..5 => {
                let first = random.below(200);
                let batch: Vec<_> = (first..first + 1 + random.below(10))
                    .map(|owner| (owner, version, 1 + random.below(6000) as usize))
                    .collect();
                for place in model.write(&backing, &batch) {
                    assert!(matches!(place, Ok(_) | Err(WriteError::NoRoom | WriteError::Stopped)));
                }
            }
            5 => model.free(&backing, random.below(200)),
            6 => drop(backing.clean(&mut reader, &model)),
            7 => pass(random.below(8)),
            8 => {
                backing.tend();
                troubles += usize::from(backing.trouble().is_some());
            }
            _ => {
                let owner = random.below(200);
                if model.get(owner).is_some() {
                    model
                        .read(&backing, &mut reader, owner)
                        .unwrap_or_else(|why| check_loss(weather, why));
                }
            }
        }
        assert_eq!(backing.stats().live_bytes, model.bytes(), "seed {seed}");
    }
    assert!(troubles <= 150);
    // The storm is over: whatever was taken is there, and what could not be written is written now.
    disks.iter().for_each(|disk| disk.set_fate(|_, _| None));
    let owners: Vec<_> = model.known().keys().copied().collect();
    for round in 0..3 {
        for owner in &owners {
            let outcome = model.read(&backing, &mut reader, *owner);
            assert_eq!(outcome, Ok(()), "seed {seed}, {weather:?}, owner {owner}, round {round}");
        }
        pass(20);
        backing.tend();
        while matches!(backing.clean(&mut reader, &model), Cleaned::Segment { .. }) {}
        backing.flush();
    }
    let stats = backing.stats();
    owners.iter().for_each(|owner| model.free(&backing, *owner));
    backing.flush();
    let all = (disks.len() * SEGMENTS * small().segment_bytes()) as u64;
    let retired = backing.stats().retired_segments * small().segment_bytes() as u64;
    assert_eq!(backing.stats().free_bytes + retired, all, "seed {seed}: {stats:?}");
}

fn seeds() -> u64 {
    std::env::var("BACKING_SEEDS").ok().map_or(40, |n| n.parse().expect("a number of seeds"))
}

#[test]
fn storms_cost_no_byte() {
    for seed in 0..seeds() {
        for weather in [Weather::Writes, Weather::Both, Weather::Full, Weather::Vanishes] {
            storm(seed, weather);
        }
    }
}

/// A short life of a backing, in which one call has a mishap. Reads that fail are counted.
fn life(at: u64, mishap: Mishap) -> (u64, u64) {
    let disk = disk(3);
    let backing = backing_on(std::slice::from_ref(&disk));
    let model = Model::default();
    let mut reader = Reader::default();
    disk.set_fate(move |_, n| (n == at).then_some(mishap));
    let mut lost = 0;
    for version in 0..6 {
        let batch: Vec<_> =
            (0..30).map(|owner| (owner, version, 200 + 97 * owner as usize)).collect();
        for places in batch.chunks(7).map(|batch| model.write(&backing, batch)) {
            for place in places {
                assert!(matches!(place, Ok(_) | Err(WriteError::Stopped)), "{place:?}");
            }
        }
        backing.clean(&mut reader, &model);
        let known = |owner: &u64| model.get(*owner).is_some();
        for owner in (0..30).filter(|owner| owner % 3 == version % 3).filter(known) {
            lost += u64::from(model.read(&backing, &mut reader, owner).is_err());
        }
        pass(4);
    }
    backing.flush();
    let owners: Vec<_> = model.known().keys().copied().collect();
    for owner in owners {
        assert_eq!(model.read(&backing, &mut reader, owner), Ok(()), "{mishap:?} at call {at}");
    }
    (disk.calls(), lost)
}

#[test]
fn any_call_may_fail_once() {
    let mishaps = [
        Mishap::Fail(Errno::EIO),
        Mishap::Fail(Errno::ENOSPC),
        Mishap::Fail(Errno::EINTR),
        Mishap::Torn(1, Errno::EIO),
        Mishap::Short(SECTOR),
        Mishap::Short(100),
        Mishap::Flip(9),
        Mishap::Zeros,
    ];
    for mishap in mishaps {
        let mut at = 0;
        while let (calls, lost) = life(at, mishap)
            && at < calls
        {
            assert_eq!(lost, 0, "{mishap:?} at call {at}: a read is tried again");
            at += 1;
        }
        assert!(at > 30, "{at} calls");
    }
}

#[test]
fn a_full_disk_is_told_once_and_tried_again() {
    let disk = disk(1);
    let backing = backing_on(std::slice::from_ref(&disk));
    let model = Model::default();
    disk.set_fate(|call, _| (call == Call::Write).then_some(Mishap::Fail(Errno::ENOSPC)));
    let mut stopped = 0;
    for owner in 0..200 {
        stopped +=
            usize::from(model.write(&backing, &[(owner, 0, 3000)])[0] == Err(WriteError::Stopped));
    }
    assert!(stopped > 100, "{stopped} of 200 refused");
    let trouble = backing.trouble().expect("it is told");
    assert_eq!((trouble.why, trouble.device.get()), (Errno::ENOSPC, 0));
    let said = trouble.to_string();
    assert!(said.starts_with("backing file 0, byte "), "{said}");
    assert!(said.contains("No space left on device; nothing is lost"), "{said}");
    for _ in 0..5 {
        pass(11);
        backing.tend();
        assert_eq!(backing.trouble(), None, "told once");
    }
    let mut reader = Reader::default();
    let taken: Vec<_> = model.known().keys().copied().collect();
    for owner in &taken {
        assert_eq!(model.read(&backing, &mut reader, *owner), Ok(()), "from memory");
    }
    disk.set_fate(|_, _| None);
    for _ in 0..2 {
        // What was begun before fails once more.
        pass(11);
        backing.tend();
    }
    assert!(model.write(&backing, &[(500, 0, 3000)])[0].is_ok());
    backing.flush();
    for owner in &taken {
        assert_eq!(model.read(&backing, &mut reader, *owner), Ok(()), "from the disk");
    }
    disk.set_fate(|call, _| (call == Call::Write).then_some(Mishap::Fail(Errno::ENOSPC)));
    (600..800).for_each(|owner| drop(model.write(&backing, &[(owner, 0, 3000)])));
    assert!(backing.trouble().is_some(), "another episode");
}

#[test]
fn what_a_bad_place_did_not_take_goes_elsewhere() {
    let disk = disk(1);
    let backing = backing_on(std::slice::from_ref(&disk));
    let model = Model::default();
    let mut failed = false;
    disk.set_fate(move |call, _| {
        let fails = call == Call::Write && !std::mem::replace(&mut failed, true);
        fails.then_some(Mishap::Torn(2, Errno::EIO))
    });
    let batch: Vec<_> = (0..60).map(|owner| (owner, 0, 3000)).collect();
    assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
    backing.flush();
    let before = model.get(0).expect("it is there").place;
    let mut reader = Reader::default();
    assert!(matches!(backing.clean(&mut reader, &model), Cleaned::Segment { moved: 1.. }));
    assert_ne!(model.get(0).expect("it is there").place, before);
    backing.flush();
    (0..60).for_each(|owner| assert_eq!(model.read(&backing, &mut reader, owner), Ok(())));
    assert_eq!(backing.stats().retired_segments, 1);
    assert_eq!(backing.trouble(), None, "one bad place is no trouble");
}

#[test]
fn a_damaged_object_is_lost_and_no_other() {
    let disk = disk(1);
    let backing = backing_on(std::slice::from_ref(&disk));
    let model = Model::default();
    let batch: Vec<_> = (0..40).map(|owner| (owner, 0, 6000)).collect();
    assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
    backing.flush();
    // Sector 1 is within the first object alone, and its header is in sector 0.
    disk.tamper(|bytes| bytes[SECTOR + 77] ^= 4);
    let mut reader = Reader::default();
    let lost = model.read(&backing, &mut reader, 0).expect_err("it was damaged");
    assert_eq!(lost.to_string(), "backing file 0, byte 0: the checksum is wrong");
    (1..40)
        .for_each(|owner| assert_eq!(model.read(&backing, &mut reader, owner), Ok(()), "{owner}"));
    // The cleaner finds the others behind the damage, and leaves what cannot be had.
    (1..40).step_by(2).for_each(|owner| model.free(&backing, owner));
    while matches!(backing.clean(&mut reader, &model), Cleaned::Segment { .. }) {}
    (2..40)
        .step_by(2)
        .for_each(|owner| assert_eq!(model.read(&backing, &mut reader, owner), Ok(())));
    assert!(model.read(&backing, &mut reader, 0).is_err());
    assert_eq!(backing.stats().lost_reads, 2);
}

#[test]
fn a_stale_or_misplaced_sector_is_found_out() {
    let disk = disk(1);
    let backing = backing_on(std::slice::from_ref(&disk));
    let model = Model::default();
    let size = small().segment_bytes();
    let mut old = vec![];
    for version in 0..80 {
        let batch: Vec<_> = (0..15).map(|owner| (owner, version, 4072)).collect();
        assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
        backing.flush();
        if version == 0 {
            disk.tamper(|bytes| old = bytes[..size].to_vec());
        }
        let is_first = |owner| {
            model.get(owner).is_some_and(|known| known.place.bits() >> 17 < size as u64 / 8)
        };
        if version > 0 && (0..15).all(is_first) {
            // The same owners, places and lengths as at first: as if the second write had been lost.
            disk.tamper(|bytes| bytes[..size].copy_from_slice(&old));
            let mut reader = Reader::default();
            (0..15).for_each(|owner| assert!(model.read(&backing, &mut reader, owner).is_err()));
            return;
        }
    }
    panic!("the first segment was not used again");
}
