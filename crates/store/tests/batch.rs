//! Batches against the plain twin, through an engine that works in the caller and through one that works
//! as devices do; and what goes wrong in the middle of one.

mod common;
#[path = "common/engine.rs"]
mod engine;

use common::{Random, TestArena, codecs, folio, page, scratch, store};
use engine::Device;
use octavo_accel::{Engine, Failure, Operation, Work};
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{Arena, Form, How, PutError, Scratch, Stats, Store};
use octavo_sys::task::{self, CpuSet};
use proptest::prelude::*;

fn how(unit: Unit, refusal_bytes: usize) -> How {
    How { codec: codecs()[0], unit, cpu: 0, fits_in: unit.bytes() / 8 * 7, refusal_bytes }
}

/// The pool's lanes belong to CPUs: who compares two pools stays on one.
fn stay_on_one_cpu() {
    CpuSet::only(task::cpu()).bind(0);
}

/// Folios of so many units, with incompressible pages here and there, and some filled with one value.
fn folios(seed: u64, unit: Unit, sizes: &[(u8, bool)]) -> Vec<Vec<u8>> {
    let one = |(n, &(order, fits)): (usize, &(u8, bool))| {
        let pages = (unit.pages() << order).min(128);
        folio(seed ^ (n as u64) << 20, pages, fits)
    };
    sizes.iter().enumerate().map(one).collect()
}

fn put<E: Engine>(
    store: &Store<TestArena>,
    scratch: &mut Scratch<E>,
    how: How,
    folios: &[Vec<u8>],
) -> Vec<Result<SlotId, PutError>> {
    let slices: Vec<&[u8]> = folios.iter().map(Vec::as_slice).collect();
    let mut out = vec![Err(PutError::OutOfObjects); folios.len()];
    store.put(scratch, how, &slices, &mut out);
    out
}

/// All that is told to be stored is there, however it is read.
fn holds<E: Engine>(
    store: &Store<TestArena>,
    scratch: &mut Scratch<E>,
    folios: &[Vec<u8>],
    out: &[Result<SlotId, PutError>],
) {
    for (folio, slot) in folios.iter().zip(out) {
        let Ok(slot) = *slot else { continue };
        let mut back = vec![0xaa; folio.len()];
        assert_eq!(store.get(scratch, slot, &mut back), Ok(()));
        assert!(back == *folio, "{slot}: other bytes");
        back.fill(0xaa);
        assert_eq!(store.get_one_by_one(scratch, slot, &mut back), Ok(()));
        assert!(back == *folio, "{slot}: other bytes one by one");
    }
}

/// Frees all that is stored, and finds that nothing is left.
fn leaves_nothing(store: &Store<TestArena>, folios: &[Vec<u8>], out: &[Result<SlotId, PutError>]) {
    for (folio, slot) in folios.iter().zip(out) {
        let pages = (folio.len() / PAGE_SIZE) as u32;
        let slots = slot.iter().flat_map(|slot| (0..pages).map(|n| slot.offset(n)));
        store.free(&slots.collect::<Vec<_>>());
    }
    let left = store.stats();
    let Stats { pool_bytes, incompressible_pages, unverified_units, .. } = left;
    let nothing = Stats { pool_bytes, incompressible_pages, unverified_units, ..Stats::default() };
    assert_eq!(left, nothing);
}

/// What runs short in a batch.
#[derive(Clone, Copy, Debug)]
enum Short {
    Nothing,
    Frames(usize),
    Slots,
}

fn short() -> impl Strategy<Value = Short> {
    prop_oneof![
        2 => Just(Short::Nothing),
        3 => (0..100_usize).prop_map(Short::Frames),
        1 => Just(Short::Slots),
    ]
}

/// A store in which that runs short, and nothing else.
fn store_short_of(short: Short) -> Store<TestArena> {
    let (store, arena) = match short {
        Short::Slots => store(512),
        Short::Nothing | Short::Frames(_) => store(8192),
    };
    match short {
        Short::Frames(frames) => arena.set_frames_left(frames),
        Short::Slots | Short::Nothing => arena.set_frames_left(arena.pages()),
    }
    store
}

/// The statistics; what they take only where nothing was refused, since the twin has touched memory for
/// what was refused later.
fn stats(store: &Store<TestArena>, out: &[Result<SlotId, PutError>]) -> Stats {
    let stats = store.stats();
    let pool_bytes = if out.iter().all(Result::is_ok) { stats.pool_bytes } else { 0 };
    Stats { pool_bytes, ..stats }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_batch_is_its_folios_one_by_one(
        seed: u64,
        sizes in prop::collection::vec((0..7_u8, any::<bool>()), 1..20),
        unit in 0..3_usize,
        refusal in prop_oneof![Just(0), Just(PAGE_SIZE), 0..PAGE_SIZE],
        short in short(),
    ) {
        stay_on_one_cpu();
        let how = how(Unit::ALL[unit], refusal);
        let is_short = matches!(short, Short::Frames(_));
        // What is refused by the codec in a batch never came to the pool, and so left no holes there.
        let sizes: Vec<_> = sizes.iter().map(|&(order, fits)| (order, fits || is_short)).collect();
        let folios = folios(seed, how.unit, &sizes);
        let mut scratch = scratch();
        let single = store_short_of(short);
        let slices: Vec<&[u8]> = folios.iter().map(Vec::as_slice).collect();
        let mut expected = vec![Err(PutError::OutOfObjects); folios.len()];
        single.put_one_by_one(&mut scratch, how, &slices, &mut expected);
        holds(&single, &mut scratch, &folios, &expected);

        let in_caller = store_short_of(short);
        prop_assert_eq!(&put(&in_caller, &mut scratch, how, &folios), &expected);
        prop_assert_eq!(stats(&in_caller, &expected), stats(&single, &expected));
        holds(&in_caller, &mut scratch, &folios, &expected);

        let mut devices = Scratch::with(Device::new(seed));
        let by_device = store_short_of(short);
        prop_assert_eq!(&put(&by_device, &mut devices, how, &folios), &expected);
        prop_assert_eq!(stats(&by_device, &expected), stats(&single, &expected));
        holds(&by_device, &mut devices, &folios, &expected);
        for store in [&single, &in_caller, &by_device] {
            leaves_nothing(store, &folios, &expected);
        }
    }

    /// Pages of a folio are freed and lost; what is read of the rest is the same either way.
    #[test]
    fn a_run_reads_as_its_units_one_by_one(
        seed: u64,
        sizes in prop::collection::vec((0..7_u8, any::<bool>()), 1..12),
        unit in 0..3_usize,
        gone in prop::collection::vec((any::<u16>(), any::<bool>()), 0..6),
        reads in prop::collection::vec((any::<u16>(), 1..70_usize), 1..20),
    ) {
        let how = how(Unit::ALL[unit], PAGE_SIZE);
        let folios = folios(seed, how.unit, &sizes);
        let (store, _) = store(8192);
        let (mut scratch, mut devices) = (scratch(), Scratch::with(Device::new(seed)));
        let out = put(&store, &mut scratch, how, &folios);
        let pages: usize = folios.iter().map(|folio| folio.len() / PAGE_SIZE).sum();
        for (at, is_freed) in gone {
            let slot = SlotId::new((usize::from(at) % pages) as u32);
            if is_freed { store.free(&[slot]) } else { store.poison(slot) }
        }
        for (at, pages_read) in reads {
            let slot = SlotId::new((usize::from(at) % pages) as u32);
            let bytes = pages_read * PAGE_SIZE;
            let (mut a, mut b, mut c) = (vec![1; bytes], vec![2; bytes], vec![3; bytes]);
            let expected = store.get_one_by_one(&mut scratch, slot, &mut a);
            prop_assert_eq!(store.get(&mut scratch, slot, &mut b), expected);
            prop_assert_eq!(store.get(&mut devices, slot, &mut c), expected);
            prop_assert!(expected.is_err() || (a == b && a == c));
        }
        leaves_nothing(&store, &folios, &out);
    }
}

/// Folios of 16 pages that all compress; the device gets one compression after the other wrong.
#[test]
fn one_request_that_goes_wrong_changes_nothing_for_the_other_folios() {
    for unit in Unit::ALL {
        let folios: Vec<_> = (0..4).map(|n| folio(77 + n, 16, true)).collect();
        for (failure, number) in [Failure::DoesNotFit, Failure::Corrupt, Failure::Unverified]
            .into_iter()
            .flat_map(|f| (0..64 / unit.pages()).map(move |n| (f, n)))
        {
            let (store, _) = store(8192);
            let mut device = Device::new(number as u64);
            device.wrong = Some((Operation::Compress, number, failure));
            let mut scratch = Scratch::with(device);
            let out = put(&store, &mut scratch, how(unit, 0), &folios);
            let requests = scratch.engine().count(Operation::Compress);
            let refused = out.iter().filter(|slot| **slot == Err(PutError::DoesNotFit)).count();
            let stats = store.stats();
            if failure == Failure::Unverified {
                assert!(out.iter().all(Result::is_ok), "{out:?}");
                let is_hit = usize::from(number < requests);
                assert_eq!(stats.unverified_units, is_hit);
                assert_eq!(stats.raw_pages > 0, is_hit > 0);
            } else {
                assert_eq!(refused, usize::from(number < requests), "{out:?}");
                assert_eq!(out.iter().filter(|slot| slot.is_ok()).count(), 4 - refused);
                assert_eq!(stats.incompressible_pages, 16 * refused);
                assert_eq!((stats.raw_pages, stats.unverified_units), (0, 0));
            }
            holds(&store, &mut scratch, &folios, &out);
            leaves_nothing(&store, &folios, &out);
        }
    }
}

#[test]
fn frames_that_run_out_at_any_object_leave_the_folios_before_it() {
    stay_on_one_cpu();
    let folios: Vec<_> = (0..5).map(|n| folio(31 + n, 16, true)).collect();
    for unit in Unit::ALL {
        let mut whole = 0;
        for frames in 0..60 {
            let (store, arena) = store(8192);
            arena.set_frames_left(frames);
            let mut scratch = Scratch::with(Device::new(frames as u64));
            let out = put(&store, &mut scratch, how(unit, 0), &folios);
            let good = out.iter().filter(|slot| slot.is_ok()).count();
            assert!(out.iter().all(|slot| matches!(slot, Ok(_) | Err(PutError::OutOfFrames))));
            assert!(good >= whole, "{good} folios in {frames} frames, {whole} in fewer");
            whole = good;
            holds(&store, &mut scratch, &folios, &out);
            leaves_nothing(&store, &folios, &out);
            assert!(store.stats().pool_bytes > 0 && arena.committed() <= frames);
        }
        assert_eq!(whole, 5, "60 frames hold them all");
    }
}

#[test]
fn slots_that_run_out_leave_the_folios_before() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let folios: Vec<_> = (0..40).map(|n| folio(n, 16, true)).collect();
    let out = put(&store, &mut scratch, how(Unit::K4, 0), &folios);
    assert!(out[..32].iter().all(Result::is_ok));
    assert!(out[32..].iter().all(|slot| *slot == Err(PutError::OutOfSlots)));
    assert_eq!(store.stats().stored_pages, 512);
    holds(&store, &mut scratch, &folios, &out);
    leaves_nothing(&store, &folios, &out);
}

/// A random page, of which nothing can be made.
fn noise(seed: u64) -> Vec<u8> {
    page(8 * seed + 2)
}

#[test]
fn a_unit_that_does_not_fit_is_kept_raw_where_that_beats_a_refusal() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let good = folio(1, 15, true);
    let mixed = [vec![[good, noise(1)].concat()], vec![noise(2)]].concat();
    for refusal_bytes in [0, PAGE_SIZE] {
        let out = put(&store, &mut scratch, how(Unit::K4, refusal_bytes), &mixed);
        assert_eq!(out[1], Err(PutError::DoesNotFit), "a page by itself is refused");
        assert_eq!(out[0].is_ok(), refusal_bytes > 0);
        if let Ok(slot) = out[0] {
            assert_eq!(store.stats().raw_pages, 1);
            let raw = store.unit_of(slot.offset(15)).expect("a page");
            assert_eq!((raw.form, raw.pages, raw.wanted), (Form::Raw, 1, 1));
            assert_eq!(store.unit_of(slot).map(|unit| unit.form == Form::Raw), Some(false));
            assert!(store.matches(slot.offset(15), &noise(1)));
        }
        holds(&store, &mut scratch, &mixed, &out);
        leaves_nothing(&store, &mixed, &out);
    }
    // Where nothing compresses, raw is no better than refused, unless the caller says that it is.
    let bad = vec![(0..16).flat_map(noise).collect::<Vec<u8>>(), noise(16)];
    let out = put(&store, &mut scratch, how(Unit::K4, PAGE_SIZE), &bad);
    assert_eq!(out, [Err(PutError::DoesNotFit); 2]);
    leaves_nothing(&store, &bad, &out);
    let out = put(&store, &mut scratch, how(Unit::K4, PAGE_SIZE + 1), &bad);
    assert!(out.iter().all(Result::is_ok));
    assert_eq!(store.stats().raw_pages, 17);
    holds(&store, &mut scratch, &bad, &out);
    leaves_nothing(&store, &bad, &out);
}

#[test]
fn a_raw_unit_of_many_pages_goes_with_its_last() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let bad: Vec<u8> = (0..4).flat_map(noise).collect();
    let data = vec![[folio(1, 12, true), bad].concat()];
    let out = put(&store, &mut scratch, how(Unit::K16, PAGE_SIZE), &data);
    let slot = out[0].expect("three of four units compress");
    assert_eq!(store.stats().raw_pages, 4);
    let mut page = vec![0; PAGE_SIZE];
    for n in 12..16 {
        assert_eq!(store.get(&mut scratch, slot.offset(n), &mut page), Ok(()));
        assert!(page == data[0][n as usize * PAGE_SIZE..][..PAGE_SIZE]);
    }
    store.free_run(slot.offset(12), 4, 0b0111);
    assert_eq!((store.stats().raw_pages, store.stats().objects), (1, 4));
    assert_eq!(store.get(&mut scratch, slot.offset(15), &mut page), Ok(()));
    assert!(page == data[0][15 * PAGE_SIZE..]);
    leaves_nothing(&store, &data, &out);
}

#[test]
fn a_decompression_that_goes_wrong_is_done_again_by_itself() {
    let folio = folio(5, 64, true);
    let (store, _) = store(512);
    let mut scratch = scratch();
    let out = put(&store, &mut scratch, how(Unit::K4, 0), std::slice::from_ref(&folio));
    let slot = out[0].expect("stored");
    for number in 0..70 {
        let mut device = Device::new(number as u64);
        device.wrong = Some((Operation::Decompress, number, Failure::Corrupt));
        let mut scratch = Scratch::with(device);
        let mut back = vec![0; folio.len()];
        assert_eq!(store.get(&mut scratch, slot, &mut back), Ok(()));
        assert!(back == folio);
    }
}

#[test]
fn single_pages_of_many_folios_fill_one_batch() {
    let pages: Vec<_> = (0..32).map(|n| page(8 * n + 3)).collect();
    let (store, _) = store(512);
    let mut scratch = Scratch::with(Device::new(9));
    let out = put(&store, &mut scratch, how(Unit::K4, 0), &pages);
    assert!(out.iter().all(Result::is_ok));
    assert_eq!(scratch.engine().count(Operation::Compress), 32);
    assert_eq!(scratch.take_work(), Work { by_devices: 32, ..Work::default() });
    assert_eq!(scratch.take_work(), Work::default());
    holds(&store, &mut scratch, &pages, &out);
    leaves_nothing(&store, &pages, &out);
}

#[test]
fn threads_put_and_get_in_batches_at_once() {
    let (store, _) = store(8192);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = &store;
            scope.spawn(move || {
                let mut random = Random::new(thread + 1);
                let mut device = Scratch::with(Device::new(thread));
                for _ in 0..60 {
                    let unit = Unit::ALL[random.below(3)];
                    let sizes: Vec<_> =
                        (0..1 + random.below(12)).map(|_| (random.below(3) as u8, true)).collect();
                    let folios = folios(random.next(), unit, &sizes);
                    let out = put(store, &mut device, how(unit, 0), &folios);
                    holds(store, &mut device, &folios, &out);
                    for (folio, slot) in folios.iter().zip(out) {
                        let pages = (folio.len() / PAGE_SIZE) as u32;
                        let slots = slot.iter().flat_map(|slot| (0..pages).map(|n| slot.offset(n)));
                        store.free(&slots.collect::<Vec<_>>());
                    }
                }
            });
        }
    });
    assert_eq!((store.stats().stored_pages, store.stats().objects), (0, 0));
}
