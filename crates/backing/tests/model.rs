//! A backing against a map: everything that lives is read as it was written, through churn and cleaning,
//! from memory and from the disk.

mod rig;

use octavo_backing::{
    Backing, Cleaned, Config, Geometry, NewError, Owner, Place, ReadError, Reader, WriteError,
};
use proptest::prelude::*;
use rig::{Disk, Model, Random, SECTOR, config, member, small};

fn backing(segments: usize) -> (Backing<Disk>, Disk) {
    let disk = Disk::new(segments * small().segment_bytes(), 1);
    let backing = Backing::new(vec![member(disk.clone(), 0)], config(small())).expect("a backing");
    (backing, disk)
}

#[derive(Clone, Debug)]
enum Op {
    Write(Vec<(u64, usize)>),
    Free(u64),
    Read(u64),
    Clean,
    Flush,
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1..3000_usize, 1 => 3000..16_368_usize, 1 => Just(16_368_usize)]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let owner = 0..40_u64;
    let op = prop_oneof![
        6 => prop::collection::vec((owner.clone(), len()), 1..12).prop_map(Op::Write),
        2 => owner.clone().prop_map(Op::Free),
        4 => owner.prop_map(Op::Read),
        4 => Just(Op::Clean),
        1 => Just(Op::Flush),
    ];
    prop::collection::vec(op, 1..120)
}

proptest! {
    #[test]
    fn what_lives_is_what_was_written(ops in ops()) {
        let (backing, _) = backing(20);
        let mut reader = Reader::default();
        let model = Model::default();
        let mut version = 0;
        for op in ops {
            match op {
                Op::Write(batch) => {
                    version += 1;
                    let mut batch: Vec<_> = batch.into_iter().map(|(o, len)| (o, version, len)).collect();
                    batch.sort_unstable();
                    batch.dedup_by_key(|(owner, ..)| *owner);
                    for place in model.write(&backing, &batch) {
                        prop_assert!(matches!(place, Ok(_) | Err(WriteError::NoRoom)), "{place:?}");
                    }
                }
                Op::Free(owner) => model.free(&backing, owner),
                Op::Read(owner) if model.get(owner).is_some() => {
                    prop_assert_eq!(model.read(&backing, &mut reader, owner), Ok(()));
                }
                Op::Read(_) => {}
                Op::Clean => {
                    let cleaned = backing.clean(&mut reader, &model);
                    prop_assert!(!matches!(cleaned, Cleaned::Refused(_)), "{cleaned:?}");
                }
                Op::Flush => backing.flush(),
            }
            prop_assert_eq!(backing.stats().live_bytes, model.bytes());
        }
        let owners: Vec<_> = model.known().keys().copied().collect();
        for owner in owners {
            prop_assert_eq!(model.read(&backing, &mut reader, owner), Ok(()));
            model.free(&backing, owner);
        }
        backing.flush();
        prop_assert_eq!(backing.stats().live_bytes, 0);
        let all = 20 * small().segment_bytes() as u64;
        prop_assert_eq!(backing.stats().free_bytes, all, "every segment is free again");
    }
}

/// Replaces owners' objects at random until `bytes` were written, cleaning whenever that is wanted.
fn churn(backing: &Backing<Disk>, model: &Model, owners: u64, bytes: usize) {
    let mut reader = Reader::default();
    let (mut random, mut written) = (Random(7), 0);
    for version in 0.. {
        if written >= bytes {
            break;
        }
        let batch: Vec<_> =
            (0..8).map(|_| (random.below(owners), 100 + random.below(2000) as usize)).collect();
        for (owner, len) in batch {
            assert!(model.write(backing, &[(owner, version, len)])[0].is_ok(), "there is room");
            written += len;
        }
        while backing.wants_cleaning() {
            assert!(matches!(backing.clean(&mut reader, model), Cleaned::Segment { .. }));
        }
    }
}

#[test]
fn churn_goes_on_for_ever_in_a_file_that_is_nearly_full() {
    let (backing, _) = backing(40);
    let model = Model::default();
    // 1,500 objects of 1,100 bytes in 40 segments of 64 KiB: two thirds.
    churn(&backing, &model, 1500, 30 << 20);
    let mut reader = Reader::default();
    for owner in 0..1500 {
        if model.get(owner).is_some() {
            assert_eq!(model.read(&backing, &mut reader, owner), Ok(()));
        }
    }
    let stats = backing.stats();
    assert!(stats.cleaned_segments > 100 && stats.moved_objects > 1000, "{stats:?}");
    assert_eq!(stats.lost_reads, 0);
}

#[test]
fn room_that_is_free_is_given_back() {
    let (backing, _) = backing(64);
    let model = Model::default();
    let batch: Vec<_> = (0..300).map(|owner| (owner, 0, 8000)).collect();
    assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
    backing.flush();
    let full = backing.stats().file_bytes;
    (0..300).for_each(|owner| model.free(&backing, owner));
    assert_eq!(backing.clean(&mut Reader::default(), &model), Cleaned::Nothing);
    let stats = backing.stats();
    assert!(stats.punched_segments > 20, "{stats:?}");
    assert!(
        stats.file_bytes <= 4 * small().segment_bytes() as u64 && full > 2_400_000,
        "{stats:?}"
    );
}

/// A backing with `count` objects of 1,000 bytes on its disk, four to a sector.
fn filled(count: u64) -> (Backing<Disk>, Disk, Model) {
    let (backing, disk) = backing(64);
    let model = Model::default();
    let batch: Vec<_> = (0..count).map(|owner| (owner, 0, 1000)).collect();
    assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
    backing.flush();
    disk.set_fate(|_, _| None);
    (backing, disk, model)
}

#[test]
fn what_lies_in_the_same_sectors_comes_with_an_object() {
    let (backing, disk, model) = filled(12);
    let mut reader = Reader::default();
    // Records of 1016 bytes: the fifth begins in the first sector and ends in the second.
    for owner in [4, 0, 1, 2, 3, 5, 6, 7] {
        assert_eq!(model.read(&backing, &mut reader, owner), Ok(()));
    }
    assert_eq!(disk.calls(), 1);
}

#[test]
fn what_lies_around_objects_comes_with_them_where_it_is_wanted_later() {
    let (backing, disk, model) = filled(2000);
    let mut random = Random(7);
    let mut reader = Reader::default();
    // Objects that are wanted together lie within some four sectors; each time one, and others between them.
    let groups: Vec<_> = (0..400).map(|_| random.below(124)).collect();
    for last in 3..groups.len() {
        for n in 0..4 {
            let owner = 16 * groups[last - n] + 4 * n as u64 + random.below(4);
            assert_eq!(model.read(&backing, &mut reader, owner), Ok(()));
        }
    }
    let together = disk.calls();
    assert!(together < 400 * 5 / 2, "{together} reads of 400 groups of four objects");

    // Where nothing is wanted a second time only trials read more.
    let stats = backing.stats();
    let mut reader = Reader::default();
    for _ in 0..1600 {
        assert_eq!(model.read(&backing, &mut reader, random.below(2000)), Ok(()));
    }
    let after = backing.stats();
    let reads = after.device_reads - stats.device_reads;
    let bytes = after.read_bytes - stats.read_bytes;
    assert!(bytes < reads * SECTOR as u64 * 9 / 4, "{bytes} bytes in {reads} reads");
}

#[test]
fn reads_in_order_are_read_ahead() {
    let (backing, disk) = backing(20);
    let model = Model::default();
    let batch: Vec<_> = (0..400).map(|owner| (owner, 0, 1000)).collect();
    assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
    backing.flush();
    disk.set_fate(|_, _| None);
    let mut reader = Reader::default();
    for owner in 0..400 {
        assert_eq!(model.read(&backing, &mut reader, owner), Ok(()));
    }
    let in_order = disk.calls();
    // 100 sectors, of which a segment of 64 KiB takes a few reads.
    assert!(in_order < 40, "{in_order} reads of 400 objects");
    let stats = backing.stats();
    assert_eq!(stats.device_reads, in_order);
    assert!(stats.window_reads >= 360, "{stats:?}");
}

#[test]
fn readers_in_order_do_not_disturb_each_other() {
    const READERS: u64 = 3;
    const EACH: u64 = 700;
    let read_by_turns = |readers: u64| {
        let disk = Disk::new(16 << 20, 1);
        let backing = Backing::new(vec![member(disk, 0)], config(Geometry::USUAL)).expect("room");
        let model = Model::default();
        let batch: Vec<_> = (0..READERS * EACH).map(|owner| (owner, 0, 1000)).collect();
        assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
        backing.flush();
        let mut reader = Reader::default();
        for owner in (0..EACH).flat_map(|n| (0..readers).map(move |of| of * EACH + n)) {
            assert_eq!(model.read(&backing, &mut reader, owner), Ok(()));
        }
        backing.stats().device_reads
    };
    let (alone, by_turns) = (read_by_turns(1), read_by_turns(READERS));
    // All but one of them have small windows.
    assert!(by_turns <= READERS * alone * 3, "{alone} reads of one, {by_turns} of {READERS}");
}

#[test]
fn a_place_that_was_freed_or_moved_is_gone() {
    let (backing, _) = backing(20);
    let model = Model::default();
    let place = model.write(&backing, &[(1, 0, 500)])[0].expect("room");
    model.free(&backing, 1);
    let owner = Owner::new(1).expect("small");
    backing.flush();
    // Other objects take the segment.
    for version in 1..60 {
        let batch: Vec<_> = (2..10).map(|owner| (owner, version, 15_000)).collect();
        let _ = model.write(&backing, &batch);
    }
    let outcome = backing.read(&mut Reader::default(), &model, owner, place).map(drop);
    assert_eq!(outcome.err(), Some(ReadError::Gone));
}

#[test]
fn what_is_too_long_is_refused_by_itself() {
    let (backing, _) = backing(20);
    let model = Model::default();
    let places = model.write(&backing, &[(1, 0, 100), (2, 0, 16_369), (3, 0, 16_368)]);
    assert_eq!(places[1], Err(WriteError::TooLong { len: 16_369, most: 16_368 }));
    assert!(places[0].is_ok() && places[2].is_ok());
    assert_eq!(backing.stats().objects, 2);
}

#[test]
fn a_full_backing_refuses_and_keeps_what_it_has() {
    let (backing, _) = backing(10);
    let model = Model::default();
    let mut reader = Reader::default();
    let mut refused = 0;
    for owner in 0..100 {
        let outcome = model.write(&backing, &[(owner, 0, 10_000)])[0];
        refused += usize::from(outcome == Err(WriteError::NoRoom));
        assert!(matches!(outcome, Ok(_) | Err(WriteError::NoRoom)));
    }
    assert!(refused > 30, "{refused} of 100 refused");
    let owners: Vec<_> = model.known().keys().copied().collect();
    assert!(owners.len() > 30, "{} taken", owners.len());
    for owner in &owners {
        assert_eq!(model.read(&backing, &mut reader, *owner), Ok(()));
    }
    owners.iter().for_each(|owner| model.free(&backing, *owner));
    assert!(model.write(&backing, &[(0, 1, 10_000)])[0].is_ok(), "there is room again");
}

#[test]
fn the_highest_priority_is_filled_first_and_equals_take_turns() {
    let size = small().segment_bytes();
    let disks = [10, 10, 12].map(|segments| Disk::new(segments * size, 1));
    let members = disks.iter().zip([1, 5, 5]).map(|(disk, n)| member(disk.clone(), n));
    let backing = Backing::new(members.collect(), config(small())).expect("a backing");
    let model = Model::default();
    let mut writes = vec![];
    for owner in 0..60 {
        assert!(model.write(&backing, &[(owner, 0, 16_000)])[0].is_ok());
        backing.tend();
        writes.push(disks.each_ref().map(Disk::calls));
    }
    backing.flush();
    let calls = disks.each_ref().map(Disk::calls);
    assert_eq!(calls[0], 0, "the lowest is not touched while others have room");
    assert!(calls[1].abs_diff(calls[2]) <= 8, "{calls:?}");
    for owner in 60..110 {
        assert!(model.write(&backing, &[(owner, 0, 16_000)])[0].is_ok());
    }
    backing.flush();
    assert!(disks[0].calls() > 0, "the others are full");
    let mut reader = Reader::default();
    (0..110).for_each(|owner| assert_eq!(model.read(&backing, &mut reader, owner), Ok(())));
}

#[test]
fn what_cannot_be_a_backing_is_said() {
    let size = small().segment_bytes();
    let refusal = |disks: Vec<Disk>, config: Config| {
        Backing::new(disks.into_iter().map(|disk| member(disk, 0)).collect(), config).err()
    };
    assert_eq!(refusal(vec![], config(small())), Some(NewError::Devices { found: 0 }));
    let tiny = Disk::new(7 * size + SECTOR, 1);
    let why = refusal(vec![tiny], config(small())).expect("too small");
    assert!(matches!(why, NewError::TooSmall { least, .. } if least == 8 * size as u64));
    assert_eq!(why.to_string(), "backing file 0 has room for 452K bytes; it takes at least 512K");
    let few = Config { buffers: 2, ..config(small()) };
    let why = refusal(vec![Disk::new(20 * size, 1)], few).expect("too few");
    assert_eq!(why.to_string(), "2 chunks in memory; it takes 6 to 64");
}

#[test]
#[should_panic(expected = "no place of this backing")]
fn a_place_of_another_backing_is_a_bug() {
    let (backing, _) = backing(10);
    let place = Place::from_bits(u64::MAX >> 8 & !0xffff | 5).or(Place::from_bits((1 << 50) | 5));
    backing.free(&[place.expect("bits of a place")]);
}

#[test]
fn threads_write_read_free_and_clean_at_once() {
    let (backing, _) = backing(60);
    let model = Model::default();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (backing, model) = (&backing, &model);
            scope.spawn(move || {
                let mut reader = Reader::default();
                let mut random = Random(thread);
                for version in 0..1500 {
                    let owner = thread * 100 + random.below(100);
                    match random.below(4) {
                        0 | 1 => drop(model.write(
                            backing,
                            &[(owner, version, 100 + random.below(4000) as usize)],
                        )),
                        2 => model.free(backing, owner),
                        _ => {
                            // Its place may change while it is read, and then it is read again.
                            while model.get(owner).is_some() {
                                match model.read(backing, &mut reader, owner) {
                                    Ok(()) => break,
                                    Err(ReadError::Gone) => {}
                                    Err(why) => panic!("{why}"),
                                }
                            }
                        }
                    }
                }
            });
        }
        let (backing, model) = (&backing, &model);
        scope.spawn(move || {
            let mut reader = Reader::default();
            for _ in 0..3000 {
                backing.clean(&mut reader, model);
            }
        });
    });
    backing.flush();
    let mut reader = Reader::default();
    let owners: Vec<_> = model.known().keys().copied().collect();
    for owner in owners {
        assert_eq!(model.read(&backing, &mut reader, owner), Ok(()));
    }
    assert_eq!(backing.stats().live_bytes, model.bytes());
}
