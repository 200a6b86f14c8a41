//! What the pool does, case by case.

use super::{TestArena, store_in};
use crate::*;
use std::thread;
use std::vec::Vec;

pub(super) fn pool(
    pages: usize,
    chain: usize,
    max_object: usize,
    max_objects: usize,
) -> Pool<TestArena> {
    let chain = ChainLength::new(chain).expect("a chain length");
    let config = Config { chain, max_object, max_objects };
    Pool::new(TestArena::new(pages), config).expect("a pool")
}

/// `read_many` holds what it reads next: it is what was stored, though freed a moment ago, and its space is free after.
#[test]
fn what_is_read_next_may_be_freed() {
    let pool = pool(64, 4, 4096, 100);
    let handles: Vec<_> = (0..40_u8).map(|n| pool.store(&[n; 1000]).expect("room")).collect();
    // One often, and more often than `read_many` holds objects.
    let wanted: Vec<_> = handles.iter().flat_map(|&handle| [handle, handles[7]]).collect();
    let mut read = 0;
    pool.read_many(&wanted, |n, bytes| {
        let of = if n % 2 == 0 { n as u8 / 2 } else { 7 };
        match bytes {
            Ok(bytes) => assert_eq!(bytes, [of; 1000]),
            Err(error) => assert_eq!(error, BadHandle(wanted[n])),
        }
        read += usize::from(bytes.is_ok());
        if n == 20 {
            handles.iter().for_each(|&handle| assert_eq!(pool.free(handle), Ok(1000)));
        }
    });
    assert_eq!(
        read,
        20 + 1 + 7,
        "all up to the one in whose turn they are freed, and those held by then"
    );
    pool.check();
    pool.tidy(usize::MAX);
    assert_eq!((pool.stats().objects, pool.stats().pages), (0, 0));
}

#[test]
fn all_objects_lie_within_its_reach() {
    let pool = pool(64, 4, 4096, 100);
    assert!(pool.reach().is_empty());
    let handles: Vec<_> = (0..40_u8).map(|n| pool.store(&[n; 1000]).expect("room")).collect();
    let reach = pool.reach();
    for handle in &handles {
        let object = pool.pin(*handle).expect("it lives");
        let bytes = object.as_ptr_range();
        assert!(reach.contains(&bytes.start.addr()) && bytes.end.addr() <= reach.end);
    }
    handles.into_iter().for_each(|handle| assert_eq!(pool.free(handle), Ok(1000)));
    assert_eq!(pool.reach(), reach, "it stays");
}

#[test]
fn what_is_stored_is_read() {
    let pool = pool(64, 4, 4096, 100);
    let lens = [1, 2, 3, 4, 5, 15, 16, 17, 100, 1000, 4000, 4031, 4032, 4033, 4095, 4096];
    let handles: Vec<_> =
        lens.iter().map(|&len| pool.store(&std::vec![len as u8; len]).expect("room")).collect();
    for (&len, &handle) in lens.iter().zip(&handles) {
        pool.read(handle, |bytes| assert_eq!(bytes, std::vec![len as u8; len])).expect("stored");
    }
    pool.check();
    let foreign = Handle::from_bits(u32::MAX);
    let wanted = [&handles[..], &[foreign]].concat();
    pool.read_many(&wanted, |n, bytes| match lens.get(n) {
        Some(&len) => assert_eq!(bytes, Ok(&std::vec![len as u8; len][..])),
        None => assert_eq!(bytes, Err(BadHandle(foreign))),
    });
    let mut pins = [const { None }; 17];
    pool.pin_many(&wanted, &mut pins);
    for (n, pin) in pins.iter().enumerate() {
        let bytes = lens.get(n).map(|&len| std::vec![len as u8; len]);
        assert_eq!(pin.as_deref(), bytes.as_deref());
    }
    drop(pins);
    for (&len, &handle) in lens.iter().zip(&handles) {
        assert_eq!(pool.free(handle), Ok(len));
        assert_eq!(pool.free(handle), Err(BadHandle(handle)));
        assert_eq!(pool.read(handle, <[u8]>::len), Err(BadHandle(handle)));
        pool.check();
    }
    assert_eq!(pool.arena().committed(), 0);
    assert_eq!((pool.stats().pages, pool.stats().objects), (0, 0));
}

#[test]
fn a_size_out_of_range_is_refused() {
    let pool = pool(16, 1, 4096, 10);
    assert_eq!(pool.store(&[]), Err(AllocError::Zero));
    let error = AllocError::TooLarge { len: 4097, max: 4096 };
    assert_eq!(pool.store(&[0; 4097]), Err(error));
}

#[test]
fn a_config_out_of_range_is_refused() {
    let make = |pages, max_object, max_objects| {
        let config = Config { chain: ChainLength::MAX, max_object, max_objects };
        Pool::new(TestArena::new(pages), config).err()
    };
    assert_eq!(make(16, 4096, 1), None);
    assert_eq!(make(15, 4096, 1), Some(ConfigError::Arena { pages: 15, zspage: 16 }));
    assert_eq!(make(16, 0, 1), Some(ConfigError::MaxObject(0)));
    assert_eq!(make(16, 65537, 1), Some(ConfigError::MaxObject(65537)));
    assert_eq!(make(16, 4096, 0), Some(ConfigError::MaxObjects(0)));
    let many = MAX_OBJECTS + 1;
    assert_eq!(make(16, 4096, many), Some(ConfigError::MaxObjects(many)));
}

#[test]
fn handles_of_nowhere_name_nothing() {
    let pool = pool(64, 4, 4096, 1000);
    let handle = pool.store(&[1; 100]).expect("room");
    for bits in (0..=u32::MAX).step_by(65_521).chain([1, 999, 1000, u32::MAX]) {
        let foreign = Handle::from_bits(bits);
        if foreign != handle {
            assert_eq!(pool.free(foreign), Err(BadHandle(foreign)));
        }
    }
    assert_eq!(pool.free(handle), Ok(100));
}

/// Pools side by side that went through the same: their handles would be equal if generations began alike.
#[test]
fn handles_of_another_pool_name_nothing() {
    // The home lane is that of the CPU.
    octavo_sys::task::CpuSet::only(octavo_sys::task::cpu()).bind(0);
    let bytes = |mark: u8, n: usize| std::vec![mark ^ n as u8; 200 + n * 7];
    let filled = |chain, mark| {
        let pool = pool(512, chain, 4096, 1000);
        let mut handles: Vec<_> =
            (0..300).map(|n| pool.store(&bytes(mark, n)).expect("room")).collect();
        for handle in handles.iter().step_by(3) {
            pool.free(*handle).expect("live");
        }
        // Who counts has the dead buried, so that all of their entries are used again.
        assert_eq!(pool.stats().objects, 200);
        for n in (0..300).step_by(3) {
            handles[n] = pool.store(&bytes(mark, n)).expect("room");
        }
        (pool, handles)
    };
    for (chain, other) in [(8, 8), (1, 16), (4, 5)] {
        let one = filled(chain, 0);
        // Other tests make pools meanwhile; every 256th agrees.
        let two = (0..3)
            .map(|_| filled(other, 0x80))
            .find(|(_, handles)| handles.iter().all(|handle| !one.1.contains(handle)));
        let two = two.expect("pools with generations of their own");
        for (pool, foreign) in [(&one.0, &two.1), (&two.0, &one.1)] {
            for handle in foreign {
                assert_eq!(pool.read(*handle, <[u8]>::len), Err(BadHandle(*handle)));
                assert_eq!(pool.pin(*handle).err(), Some(BadHandle(*handle)));
                assert_eq!(pool.free(*handle), Err(BadHandle(*handle)));
            }
            pool.read_many(foreign, |n, bytes| assert_eq!(bytes, Err(BadHandle(foreign[n]))));
            let freed = pool.free_many(foreign);
            assert_eq!((freed.objects, freed.refused), (0, foreign.len()));
        }
        for ((pool, handles), mark) in [(&one, 0), (&two, 0x80)] {
            pool.check();
            for (n, handle) in handles.iter().enumerate() {
                pool.read(*handle, |found| assert_eq!(found, bytes(mark, n))).expect("its own");
            }
            assert_eq!(pool.free_many(handles).objects, 300);
        }
    }
}

#[test]
fn a_reused_entry_does_not_answer_to_old_handles() {
    let pool = pool(64, 4, 4096, 1);
    let old: Vec<_> = (0..200)
        .map(|n| {
            let handle = pool.store(&[n; 10]).expect("room");
            pool.free(handle).expect("live");
            handle
        })
        .collect();
    let now = pool.store(&[255; 10]).expect("room");
    for handle in old {
        assert_eq!(pool.read(handle, <[u8]>::len), Err(BadHandle(handle)));
    }
    assert_eq!(pool.free(now), Ok(10));
}

#[test]
fn a_full_pool_says_which_limit() {
    let by_objects = pool(64, 4, 4096, 3);
    let handles = [(); 3].map(|()| by_objects.store(&[1]).expect("room"));
    assert_eq!(by_objects.store(&[1]), Err(AllocError::Full(Limit::Objects(3))));
    by_objects.free(handles[1]).expect("live");
    by_objects.store(&[1]).expect("room again");

    let by_pages = pool(9, 4, 4096, 1000);
    let full = (0..).find_map(|_| by_pages.store(&[1; 2000]).err());
    assert_eq!(full, Some(AllocError::Full(Limit::Pages(8))));
    assert_eq!(by_pages.stats().objects, 2 * 8);
}

#[test]
fn huge_objects_fill_their_pages_exactly_and_give_them_back() {
    for (unit, chain) in [(4096, 1), (4096, 16), (16384, 4), (65536, 2)] {
        let pool = pool(20 * 32 * 16, chain, unit, 100);
        let handles: Vec<_> =
            (0..20).map(|n| pool.store(&std::vec![n; unit]).expect("room")).collect();
        assert_eq!(pool.stats().pages * 4096, 20 * unit);
        assert_eq!(pool.arena().committed() * 4096, 20 * unit);
        for (n, &handle) in handles.iter().enumerate() {
            pool.check();
            pool.read(handle, |bytes| assert!(bytes.iter().all(|&b| b == n as u8))).expect("live");
            pool.free(handle).expect("live");
            let spare = pool.stats().spare_pages;
            assert!(spare <= ((19 - n) * unit / 4096 / 8).max(1));
            assert_eq!((pool.arena().committed() - spare) * 4096, (19 - n) * unit);
        }
    }
}

#[test]
fn a_freed_object_stays_while_it_is_read() {
    let pool = pool(64, 4, 4096, 100);
    let handle = pool.store(&[7; 3000]).expect("room");
    pool.read(handle, |bytes| {
        assert_eq!(pool.free(handle), Ok(3000));
        assert_eq!(pool.free(handle), Err(BadHandle(handle)));
        let others: Vec<_> = (0..80).map(|_| pool.store(&[8; 300]).expect("room")).collect();
        for other in others.iter().step_by(2) {
            pool.free(*other).expect("live");
        }
        assert!((1..=40).contains(&pool.compact(100).moved), "the others, not this one");
        assert!(bytes.iter().all(|&b| b == 7));
        assert_eq!(pool.stats().objects, 41);
    })
    .expect("live");
    assert_eq!(pool.stats().objects, 40);
    pool.check();
}

#[test]
fn what_many_left_is_spare_until_somebody_needs_it_or_tidies() {
    const LEFT: usize = 40;
    let emptied = || {
        let pool = pool(400, 4, 4096, 1000);
        let live: Vec<_> = (0..4 * LEFT).map(|_| pool.store(&[7; 1000]).expect("room")).collect();
        assert_eq!(pool.free_many(&live).objects, live.len());
        pool.check();
        let stats = pool.stats();
        assert_eq!((stats.objects, stats.pages, stats.spare_pages), (0, LEFT, LEFT));
        assert_eq!(pool.arena().committed(), LEFT);
        pool
    };
    // Bit by bit, as many as are asked for.
    let pool = emptied();
    let done = pool.tidy(2);
    assert_eq!((done.pages_freed, done.moved, done.dense), (8, 0, false));
    assert_eq!(pool.arena().committed(), LEFT - 8);
    assert!(pool.compact(usize::MAX).dense);
    assert_eq!((pool.arena().committed(), pool.stats().pages), (0, 0));
    pool.check();

    // When there are no others.
    let pool = emptied();
    pool.arena().set_frames(0);
    let live: Vec<_> = (0..LEFT).map(|_| pool.store(&[8; 4000]).expect("given back")).collect();
    assert_eq!(pool.store(&[8; 4000]), Err(AllocError::OutOfFrames));
    pool.check();
    assert_eq!(pool.free_many(&live).objects, LEFT);

    // As others are taken.
    let pool = emptied();
    for _ in 0..LEFT {
        pool.store(&[8; 4000]).expect("room");
        pool.check();
        assert!(pool.arena().committed() <= LEFT);
    }
    assert_eq!(pool.stats().spare_pages, 0);
}

/// A pool with all objects in one lane, of every zspage of which a part is freed: all but `stay` of ten objects.
fn after_freeing(stay: usize) -> Pool<TestArena> {
    let pool = pool(4096, 16, 4096, 4000);
    let live: Vec<_> = (0..4000).map(|_| store_in(&pool, 0, &[7; 1000]).expect("room")).collect();
    for (n, handle) in live.into_iter().enumerate() {
        assert!(n % 10 < stay || pool.free(handle).is_ok());
    }
    pool
}

#[test]
fn tidying_leaves_what_growth_has_begun_to_empty() {
    let pool = after_freeing(8);
    assert_eq!(pool.tidy(usize::MAX).moved, 0, "it costs too much");
    let victim = pool.locked(0, |mut held| held.owe());
    assert!(victim.is_some());
    assert_eq!(pool.tidy(usize::MAX).moved, 0);
    assert_eq!(pool.locked(0, |held| held.victim()), victim);
    pool.check();
    // Who asked gets it.
    assert!(pool.compact(usize::MAX).moved > 0);
    pool.check();
}

#[test]
fn tidying_does_what_costs_little() {
    // A page costs four moves, or one.
    for stay in [5, 2] {
        let pool = after_freeing(stay);
        let done = pool.tidy(usize::MAX);
        assert!(done.pages_freed > 0 && done.moved <= 8 * done.pages_freed, "{done:?}");
        pool.check();
    }
    // And here sixteen.
    let pool = after_freeing(8);
    assert_eq!(pool.tidy(usize::MAX).moved, 0);
    assert!(pool.compact(usize::MAX).moved > 0);
}

#[test]
fn compaction_wins_what_it_says_and_keeps_the_bytes() {
    let pool = pool(4096, 16, 4096, 4000);
    let mut live: Vec<_> = (0..4000_usize)
        .map(|n| {
            let bytes = std::vec![n as u8; 300 + n * 7919 % 1500];
            (pool.store(&bytes).expect("room"), bytes)
        })
        .collect();
    let mut n = 0;
    live.retain(|(handle, _)| {
        n += 1;
        n % 3 == 0 || pool.free(*handle).is_err()
    });
    let (before, freeable) = (pool.stats().pages, pool.freeable_pages());
    assert!(freeable > before / 3, "{freeable} of {before}");
    let mut moved = 0;
    loop {
        let step = pool.compact(5);
        assert!(step.moved <= 5);
        moved += step.moved;
        if step.dense {
            break;
        }
    }
    assert!(moved < 2 * live.len(), "{moved} moves for {} objects", live.len());
    pool.check();
    assert_eq!(pool.stats().pages, pool.arena().committed());
    let freed = before - pool.stats().pages;
    assert!(freed * 100 > freeable * 90, "{freed} of {freeable}");
    for (handle, bytes) in live {
        pool.read(handle, |found| assert_eq!(found, bytes)).expect("live");
    }
}

#[test]
fn the_table_of_classes_adds_up() {
    let pool = pool(1024, 4, 4096, 1000);
    for n in 0..300_usize {
        pool.store(&std::vec![1; 100 + n * 37 % 4000]).expect("room");
    }
    for _ in 0..7 {
        pool.store(&[1; 4096]).expect("room");
    }
    let ([packed, huge], stats) = (pool.classes(), pool.stats());
    assert_eq!(packed.obj_used + huge.obj_used, stats.objects);
    assert_eq!(packed.pages_used + huge.pages_used, stats.pages);
    assert_eq!((huge.pages_used, stats.huge_pages), (huge.obj_used, huge.obj_used));
    assert_eq!(huge.obj_used, 7 + (0..300).filter(|n| 100 + n * 37 % 4000 > 4032).count());
    assert_eq!(packed.freeable, pool.freeable_pages());
    let zspages: usize = pool.fullness().iter().sum();
    assert!((stats.pages.div_ceil(4)..=stats.pages).contains(&zspages));
}

/// Objects stored by one thread and replaced by another: the second one fills the holes that it
/// leaves in the first one's lane.
#[test]
fn a_lane_left_behind_is_used_up() {
    let pool = pool(1 << 14, 16, 4096, 40_000);
    let len = |n: usize| 200 + n * 7919 % 2000;
    let store = |n: usize| pool.store(&std::vec![1; len(n)]).expect("room");
    for other in 1..5 {
        thread::scope(|scope| {
            scope.spawn(|| {
                // By another thread, which may run elsewhere and so have another lane.
                let mut live: Vec<_> = thread::scope(|scope| {
                    let first = scope.spawn(|| (0..10_000).map(store).collect());
                    first.join().expect("stored")
                });
                let fill = pool.stats().pages;
                for n in 0..20_000 {
                    let at = n * 6007 % live.len();
                    pool.free(live[at]).expect("live");
                    live[at] = store(n * other);
                }
                let stats = pool.stats();
                let used = stats.pages * 4096;
                assert!(used < stats.compressed_bytes * 120 / 100, "{fill} pages, then {stats:?}");
                pool.free_many(&live);
            });
        });
        pool.check();
    }
}

/// Objects replaced by a thread that moves between two CPUs: what holes it leaves in either lane is moved
/// together before much more memory is taken.
#[test]
fn who_has_the_pool_grow_tidies_it() {
    let pool = pool(1 << 14, 16, 4096, 9_000);
    let store = |n: usize| pool.store(&std::vec![n as u8; 440 + n * 7919 % 800]).expect("room");
    let mut live: Vec<_> = (0..8_000).map(|n| (store(n), n)).collect();
    for n in 8_000..40_000 {
        if n % 2_000 == 0 {
            // Where there is only one, it stays there.
            octavo_sys::task::CpuSet::only(n / 2_000 % 2).bind(0);
        }
        let (handle, _) = live.swap_remove(n * 6007 % live.len());
        pool.free(handle).expect("live");
        live.push((store(n), n));
        if n % 1_000 == 0 {
            let (freeable, pages) = (pool.freeable_pages(), pool.stats().pages);
            assert!(freeable * 40 < pages, "{freeable} of {pages} pages, after {n}");
        }
    }
    pool.check();
    for (handle, n) in live {
        let is_whole = |bytes: &[u8]| bytes.iter().all(|&byte| byte == n as u8);
        assert_eq!(pool.read(handle, is_whole), Ok(true));
    }
}

/// What a thread left in lanes that are not its home any more goes into the holes of the lane that is.
#[test]
fn what_is_left_of_lanes_goes_into_the_holes_of_others() {
    let pool = pool(1 << 10, 4, 4096, 1000);
    let store = |lane, n: u8| store_in(&pool, lane, &[n; 900]).expect("room");
    // Of 63 objects, which fill 14 pages, every eighth goes: its hole wins no page, but takes another one.
    let home: Vec<_> = (0..63).map(|n| store(0, n)).collect();
    let (gone, mut live): (Vec<_>, Vec<_>) =
        home.into_iter().zip(0..).partition(|(_, n)| n % 8 == 0);
    gone.iter().for_each(|(handle, _)| assert_eq!(pool.free(*handle), Ok(900)));
    live.extend((1..LANES as u8).map(|lane| (store(lane.into(), 100 + lane), 100 + lane)));
    let left = LANES - 1;
    let before = pool.stats().pages - pool.stats().spare_pages;
    let done = pool.compact(usize::MAX);
    assert_eq!((done.moved, done.dense), (left, true));
    assert_eq!(pool.stats().pages, before - left);
    pool.check();
    for (handle, n) in live {
        pool.read(handle, |bytes| assert_eq!(bytes, [n; 900])).expect("live");
        assert_eq!(pool.free(handle), Ok(900));
    }
    pool.check();
    assert_eq!(pool.stats().objects, 0);
}

/// Six blocks fill three pages and a part of the fourth: emptied alone their zspage wins no page, two of them win one.
/// Next to them one that wastes enough for compaction to look, and is not worth emptying.
#[test]
fn what_wins_no_page_alone_is_emptied_with_others_or_not_at_all() {
    for (zspages, moved, pages_freed) in [(1, 0, 0), (2, 12, 1)] {
        let pool = pool(64, 4, 4096, 400);
        let store = |len: usize| pool.store(&std::vec![7; len]).expect("room");
        let mut gone = std::vec![store(1700)];
        for _ in 0..240 {
            store(56);
        }
        for _ in 0..6 * zspages {
            gone.push(store(400));
            store(2300);
        }
        for handle in gone {
            pool.free(handle).expect("live");
        }
        let done = pool.compact(usize::MAX);
        assert_eq!((done.moved, done.pages_freed), (moved, pages_freed), "{zspages} of them");
        assert!(done.dense);
        pool.check();
    }
}

#[test]
fn an_object_that_is_held_stays_where_it_is() {
    let pool = pool(64, 4, 4096, 100);
    let handles = [1, 2, 3].map(|n: u8| pool.store(&[n; 1000]).expect("room"));
    let held = pool.pin(handles[1]).expect("stored");
    assert_eq!(pool.free_many(&handles).objects, 3);
    assert_eq!(pool.pin(handles[1]).err(), Some(BadHandle(handles[1])));
    let after = [4, 5, 6].map(|n: u8| pool.store(&[n; 1000]).expect("room"));
    pool.compact(100);
    assert_eq!(*held, [2; 1000]);
    drop(held);
    assert_eq!(pool.free_many(&after).objects, 3);
    pool.check();
    pool.tidy(usize::MAX);
    assert_eq!(pool.arena().committed(), 0);
}

#[test]
fn of_many_objects_those_before_the_first_that_is_refused_are_stored() {
    let pool = pool(64, 4, 4096, 20);
    let (good, long) = ([7; 900], [7; 4097]);
    let mut handles = [Handle::from_bits(0); 30];
    let objects = [&good[..], &good, &long, &good];
    let too_large = AllocError::TooLarge { len: 4097, max: 4096 };
    assert_eq!(pool.store_many(&objects, &mut handles[..4]), (2, Err(too_large)));
    assert_eq!(pool.store_many(&[&[]], &mut handles[2..3]), (0, Err(AllocError::Zero)));
    let full = AllocError::Full(Limit::Objects(20));
    assert_eq!(pool.store_many(&[&good[..]; 28], &mut handles[2..]), (18, Err(full)));
    for handle in &handles[..20] {
        pool.read(*handle, |bytes| assert_eq!(bytes, good)).expect("stored");
    }
    pool.check();
    assert_eq!(pool.free_many(&handles[..20]).objects, 20);
}

proptest::proptest! {
    /// In the very same places, under handles that are all as far apart as the pools' first generations.
    #[test]
    fn many_are_stored_as_one_after_the_other(
        rounds in proptest::collection::vec(
            (proptest::collection::vec(1..=4096_usize, 0..50), proptest::collection::vec(0..200_usize, 0..40)),
            1..20,
        ),
        chain in 1..=16_usize,
        frames in 0..400_usize,
    ) {
        // The home lane is that of the CPU.
        octavo_sys::task::CpuSet::only(octavo_sys::task::cpu()).bind(0);
        let (many, single) = (pool(400, chain, 4096, 150), pool(400, chain, 4096, 150));
        for pool in [&many, &single] {
            pool.arena().set_frames(frames);
        }
        let apart = |of_many: Handle, of_single: Handle| of_many.bits().wrapping_sub(of_single.bits());
        let (mut live, mut first_apart) = (Vec::new(), None);
        for (n, (lens, gone)) in rounds.iter().enumerate() {
            let objects: Vec<_> = lens.iter().map(|len| std::vec![n as u8; *len]).collect();
            let slices: Vec<&[u8]> = objects.iter().map(Vec::as_slice).collect();
            let mut handles = std::vec![Handle::from_bits(0); lens.len()];
            let (stored, refusal) = many.store_many(&slices, &mut handles);
            many.check();
            for (slice, handle) in slices.iter().zip(&handles).take(stored) {
                let twin = single.store(slice).expect("room here too");
                let apart = apart(*handle, twin);
                proptest::prop_assert_eq!(*first_apart.get_or_insert(apart), apart);
                live.push((*handle, twin));
            }
            if let Err(error) = refusal {
                proptest::prop_assert_eq!(single.store(slices[stored]), Err(error));
            }
            proptest::prop_assert_eq!(many.stats(), single.stats());
            for at in gone {
                if !live.is_empty() {
                    let (handle, twin) = live.swap_remove(at % live.len());
                    let freed = many.free(handle).expect("live");
                    proptest::prop_assert_eq!(single.free(twin), Ok(freed));
                }
            }
        }
        for (handle, twin) in live {
            let bytes = many.read(handle, <[u8]>::to_vec).expect("live");
            proptest::prop_assert!(single.read(twin, <[u8]>::to_vec) == Ok(bytes));
        }
    }
}
