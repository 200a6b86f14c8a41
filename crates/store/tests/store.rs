//! The store against a plain model: a map from slots to the bytes put there.

mod common;

use common::{Random, TestArena, codecs, folio, page, put_one, scratch, store};
use octavo_codec::Codec;
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{Form, GetError, How, PutError, Scratch, Stats, Store};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn how(codec: Codec, unit: Unit) -> How {
    How { codec, unit, cpu: 0, fits_in: unit.bytes() / 8 * 7, refusal_bytes: 0 }
}

fn lz4(unit: Unit) -> How {
    how(codecs()[0], unit)
}

fn get_pages(
    store: &Store<TestArena>,
    scratch: &mut Scratch,
    slot: SlotId,
    pages: usize,
) -> Result<Vec<u8>, GetError> {
    let mut out = vec![0xaa; pages * PAGE_SIZE];
    store.get(scratch, slot, &mut out).map(|()| out)
}

#[test]
fn a_folio_comes_back_as_it_went_in_every_unit_and_codec() {
    let (store, _) = store(4096);
    let mut scratch = scratch();
    for codec in codecs() {
        for unit in Unit::ALL {
            for pages in [unit.pages(), 16, 512] {
                let data = folio(pages as u64, pages, true);
                let slot = put_one(&store, &mut scratch, how(codec, unit), &data).unwrap();
                assert_eq!(slot.index() % pages, 0);
                let back = get_pages(&store, &mut scratch, slot, pages).unwrap();
                assert!(back == data, "{codec} {unit} {pages} pages");
                store.free_run(slot, pages.min(64), u64::MAX);
                let rest: Vec<_> = (64..pages as u32).map(|n| slot.offset(n)).collect();
                store.free(&rest);
            }
        }
    }
    let empty = Stats { pool_bytes: store.stats().pool_bytes, ..Stats::default() };
    assert_eq!(store.stats(), empty);
}

#[test]
fn every_part_of_a_unit_reads_the_same() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let data = folio(3, 32, true);
    let slot = put_one(&store, &mut scratch, lz4(Unit::K64), &data).unwrap();
    for first in 0..32 {
        for pages in 1..=32 - first {
            let back = get_pages(&store, &mut scratch, slot.offset(first as u32), pages).unwrap();
            assert!(back == data[first * PAGE_SIZE..][..pages * PAGE_SIZE]);
        }
    }
}

#[test]
fn a_filled_page_takes_no_object() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let data = [page(0), page(8), page(0), page(0)].concat();
    let slot = put_one(&store, &mut scratch, lz4(Unit::K16), &data).unwrap();
    let stats = store.stats();
    assert_eq!((stats.objects, stats.stored_pages, stats.same_filled_pages), (0, 4, 4));
    let info = store.unit_of(slot.offset(1)).unwrap();
    assert_eq!(info.form, Form::SameFilled);
    assert_eq!((info.first, info.pages, info.wanted), (slot.offset(1), 1, 1));
    assert!(store.matches(slot, &page(0)));
    assert!(!store.matches(slot, &page(3)));
}

#[test]
fn an_object_goes_with_its_last_page() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    // Pages 1 and 2 are zeros: the object is there for 0 and 3.
    let data = [page(3), page(0), page(0), page(5)].concat();
    let slot = put_one(&store, &mut scratch, lz4(Unit::K16), &data).unwrap();
    let info = store.unit_of(slot.offset(3)).unwrap();
    assert_eq!((info.first, info.pages, info.wanted), (slot, 4, 0b1001));
    assert_eq!(info.form, Form::Compressed(codecs()[0]));
    store.free(&[slot]);
    assert_eq!(store.unit_of(slot), None);
    assert_eq!(store.unit_of(slot.offset(3)).unwrap().wanted, 0b1000);
    assert_eq!(get_pages(&store, &mut scratch, slot, 1), Err(GetError::Empty { slot }));
    assert_eq!(store.stats().objects, 1);
    store.free(&[slot, slot.offset(1), slot.offset(2)]);
    assert_eq!(store.stats().objects, 1);
    assert!(get_pages(&store, &mut scratch, slot.offset(3), 1).unwrap() == page(5));
    store.free_run(slot, 4, 0b1000);
    assert_eq!(store.stats().objects, 0);
    assert_eq!(store.stats().stored_pages, 0);
}

#[test]
fn a_small_unit_may_lie_where_a_large_one_is_partly_gone() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let fill: Vec<_> = (0..512 / 16)
        .map(|n| {
            let data = folio(n, 16, true);
            (put_one(&store, &mut scratch, lz4(Unit::K64), &data).unwrap(), data)
        })
        .collect();
    let (slot, data) = &fill[5];
    store.free_run(slot.offset(4), 4, 0b1111);
    let small: Vec<_> = (0..4)
        .map(|n| (put_one(&store, &mut scratch, lz4(Unit::K4), &page(3 + 8 * n)).unwrap(), n))
        .collect();
    for (at, n) in small {
        assert!((slot.get() + 4..slot.get() + 8).contains(&at.get()));
        assert!(get_pages(&store, &mut scratch, at, 1).unwrap() == page(3 + 8 * n));
    }
    let rest = get_pages(&store, &mut scratch, slot.offset(8), 8).unwrap();
    assert!(rest == data[8 * PAGE_SIZE..]);
    // A read across both is a read of what is there now.
    let back = get_pages(&store, &mut scratch, *slot, 16).unwrap();
    assert!(back[..4 * PAGE_SIZE] == data[..4 * PAGE_SIZE]);
    assert!(back[8 * PAGE_SIZE..] == data[8 * PAGE_SIZE..]);
}

#[test]
fn what_does_not_fit_is_left_to_the_caller() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let good = folio(1, 16, true);
    // The last unit does not fit: the objects of the first three must go again.
    let bad = [&good[..12 * PAGE_SIZE], &[page(2), page(10), page(18), page(26)].concat()].concat();
    let mut out = [Ok(SlotId::new(0)); 3];
    store.put(&mut scratch, lz4(Unit::K16), &[&good, &bad, &good], &mut out);
    assert_eq!(out[1], Err(PutError::DoesNotFit));
    let stats = store.stats();
    assert_eq!((stats.stored_pages, stats.incompressible_pages), (32, 16));
    for slot in [out[0].unwrap(), out[2].unwrap()] {
        assert!(get_pages(&store, &mut scratch, slot, 16).unwrap() == good);
        store.free_run(slot, 16, u64::MAX);
    }
    assert_eq!(store.stats().objects, 0);
}

#[test]
fn no_slots_no_frames() {
    let (store, arena) = store(512);
    let mut scratch = scratch();
    arena.set_frames_left(0);
    let put = |scratch: &mut Scratch, data: &[u8]| put_one(&store, scratch, lz4(Unit::K4), data);
    assert_eq!(put(&mut scratch, &page(3)), Err(PutError::OutOfFrames));
    assert_eq!(store.stats().objects, 0);
    let zeros = vec![0; 512 * PAGE_SIZE];
    let slot = put(&mut scratch, &zeros).unwrap();
    assert_eq!(put(&mut scratch, &page(0)), Err(PutError::OutOfSlots));
    arena.set_frames_left(10);
    assert_eq!(put(&mut scratch, &page(3)), Err(PutError::OutOfSlots));
    assert_eq!(store.stats().objects, 0);
    store.free(&[slot.offset(77)]);
    assert_eq!(put(&mut scratch, &page(3)), Ok(slot.offset(77)));
}

#[test]
fn a_copy_that_is_still_good_is_known() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let data = folio(9, 16, true);
    let slot = put_one(&store, &mut scratch, lz4(Unit::K64), &data).unwrap();
    for (n, page) in data.chunks(PAGE_SIZE).enumerate() {
        let slot = slot.offset(n as u32);
        assert!(store.matches(slot, page));
        let mut changed = page.to_vec();
        changed[n * 255] ^= 0x10;
        assert!(!store.matches(slot, &changed));
        store.free(&[slot]);
        assert!(!store.matches(slot, page));
    }
    assert!(!store.matches(SlotId::new(u32::MAX), &page(0)));
}

#[test]
fn what_was_stored_before_a_fork_is_known() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let mut put = |data: &[u8]| put_one(&store, &mut scratch, lz4(Unit::K4), data).unwrap();
    let (early, filled) = (put(&page(3)), put(&page(0)));
    assert!(!store.is_older_than_fork(early));
    store.note_fork();
    let late = put(&page(5));
    assert_eq!(
        [early, filled, late].map(|slot| store.is_older_than_fork(slot)),
        [true, false, false]
    );
    assert!(store.matches(early, &page(3)));
    store.note_fork();
    assert!(store.is_older_than_fork(early) && store.is_older_than_fork(late));
    store.free(&[early]);
    assert!(!store.is_older_than_fork(early) && !store.is_older_than_fork(SlotId::new(u32::MAX)));
}

#[test]
fn a_poisoned_page_is_lost_and_its_neighbours_are_not() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let data = [page(3), page(5)].concat();
    let data = [&data[..], &data[..]].concat();
    let slot = put_one(&store, &mut scratch, lz4(Unit::K16), &data).unwrap();
    let lost = slot.offset(1);
    store.poison(lost);
    assert_eq!(get_pages(&store, &mut scratch, slot, 4), Err(GetError::Poisoned { slot: lost }));
    assert_eq!(store.unit_of(lost), None);
    assert!(!store.matches(lost, &page(5)));
    assert_eq!(store.unit_of(slot).unwrap().wanted, 0b1101);
    assert_eq!(store.stats().stored_pages, 3);
    store.free_run(slot, 4, u64::MAX);
    assert_eq!((store.stats().stored_pages, store.stats().objects), (0, 0));
    store.poison(lost);
    store.poison(SlotId::new(u32::MAX));
    assert_eq!(get_pages(&store, &mut scratch, lost, 1), Err(GetError::Empty { slot: lost }));
}

#[test]
fn slots_past_the_end_are_empty() {
    let (store, _) = store(512);
    let mut scratch = scratch();
    let slot = SlotId::new(512);
    assert_eq!(get_pages(&store, &mut scratch, slot, 1), Err(GetError::Empty { slot }));
    assert_eq!(store.unit_of(slot), None);
    store.free(&[slot]);
    assert!(GetError::Empty { slot }.to_string().contains("slot 512"));
}

/// Every bit of the arena may flip: a page is then as it was or known to be damaged, and never
/// other bytes.
#[test]
fn damage_is_seen() {
    let (store, arena) = store(512);
    let mut scratch = scratch();
    let mut held = Vec::new();
    for (n, codec) in codecs().into_iter().enumerate() {
        for unit in Unit::ALL {
            let data = folio(n as u64 + 77, 16, true);
            let slot = put_one(&store, &mut scratch, how(codec, unit), &data).unwrap();
            held.push((slot, data));
        }
    }
    let mut random = Random::new(5);
    let mut seen = 0;
    for _ in 0..400 {
        let (byte, bit) = (random.below(arena.committed_bytes()), random.next() as u32);
        arena.flip(byte, bit);
        for (slot, data) in &held {
            match get_pages(&store, &mut scratch, *slot, 16) {
                Ok(back) => assert!(back == *data, "{slot}: other bytes"),
                Err(GetError::Damaged { slot: lost }) => {
                    seen += 1;
                    let error = get_pages(&store, &mut scratch, lost, 1);
                    assert_eq!(error, Err(GetError::Damaged { slot: lost }));
                }
                Err(error) => panic!("{error}"),
            }
        }
        arena.flip(byte, bit);
    }
    assert!(seen > 0, "no flip hit an object");
}

#[derive(Clone, Debug)]
enum Step {
    Put { seed: u64, folios: Vec<(usize, bool)>, codec: usize, unit: usize },
    GetPages { which: usize, first: usize, pages: usize },
    FreePage { which: usize, page: usize },
    FreeFolio { which: usize },
    Poison { which: usize, page: usize },
    Frames { left: usize },
    Compact,
}

fn step() -> impl Strategy<Value = Step> {
    let folios = prop::collection::vec((0..7_usize, prop::bool::weighted(0.8)), 1..4);
    prop_oneof![
        5 => (any::<u64>(), folios, 0..3_usize, 0..3_usize)
            .prop_map(|(seed, folios, codec, unit)| Step::Put { seed, folios, codec, unit }),
        5 => (any::<usize>(), any::<usize>(), 1..70_usize)
            .prop_map(|(which, first, pages)| Step::GetPages { which, first, pages }),
        4 => (any::<usize>(), any::<usize>())
            .prop_map(|(which, page)| Step::FreePage { which, page }),
        2 => any::<usize>().prop_map(|which| Step::FreeFolio { which }),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(which, page)| Step::Poison { which, page }),
        1 => (0..40_usize).prop_map(|left| Step::Frames { left }),
        1 => Just(Step::Compact),
    ]
}

/// The plain twin: each slot's page, `None` when it is lost.
#[derive(Default)]
struct Model {
    pages: BTreeMap<SlotId, Option<Vec<u8>>>,
    folios: Vec<(SlotId, usize)>,
}

impl Model {
    fn step(&mut self, store: &Store<TestArena>, arena: &TestArena, s: &mut Scratch, step: &Step) {
        let folio_of = |which: usize| self.folios[which % self.folios.len()];
        match step {
            Step::Put { seed, folios, codec, unit } => {
                let unit = Unit::ALL[*unit];
                self.put(store, s, how(codecs()[*codec], unit), *seed, folios);
            }
            Step::Frames { left } => arena.set_frames_left(*left),
            Step::Compact => {
                store.compact(100);
            }
            _ if self.folios.is_empty() => {}
            Step::GetPages { which, first, pages } => {
                let (slot, len) = folio_of(*which);
                let first = first % len;
                let pages = (*pages).min(len - first);
                self.get(store, s, slot.offset(first as u32), pages);
            }
            Step::FreePage { which, page } => {
                let (slot, len) = folio_of(*which);
                let slot = slot.offset((page % len) as u32);
                store.free(&[slot]);
                self.pages.remove(&slot);
            }
            Step::FreeFolio { which } => {
                let (slot, len) = self.folios.swap_remove(which % self.folios.len());
                store.free_run(slot, len, u64::MAX);
                (0..len).for_each(|n| _ = self.pages.remove(&slot.offset(n as u32)));
            }
            Step::Poison { which, page } => {
                let (slot, len) = folio_of(*which);
                let slot = slot.offset((page % len) as u32);
                store.poison(slot);
                self.pages.entry(slot).and_modify(|page| *page = None);
            }
        }
    }

    fn put(
        &mut self,
        store: &Store<TestArena>,
        scratch: &mut Scratch,
        how: How,
        seed: u64,
        folios: &[(usize, bool)],
    ) {
        let data: Vec<_> = folios
            .iter()
            .enumerate()
            .map(|(n, (order, fits))| {
                folio(seed ^ n as u64, (1 << order).max(how.unit.pages()), *fits)
            })
            .collect();
        let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut out = vec![Err(PutError::OutOfSlots); data.len()];
        store.put(scratch, how, &slices, &mut out);
        for (data, out) in data.iter().zip(out) {
            let Ok(first) = out else { continue };
            let pages = data.len() / PAGE_SIZE;
            assert_eq!(first.index() % pages, 0);
            for (n, page) in data.chunks(PAGE_SIZE).enumerate() {
                let former = self.pages.insert(first.offset(n as u32), Some(page.to_vec()));
                assert_eq!(former, None, "a slot given twice");
            }
            self.folios.push((first, pages));
        }
    }

    fn get(&self, store: &Store<TestArena>, scratch: &mut Scratch, slot: SlotId, pages: usize) {
        let expected = (0..pages as u32).map(|n| slot.offset(n)).try_fold(
            Vec::new(),
            |mut bytes: Vec<u8>, slot| {
                let page = self.pages.get(&slot).ok_or(GetError::Empty { slot })?;
                bytes.extend(page.as_ref().ok_or(GetError::Poisoned { slot })?);
                Ok(bytes)
            },
        );
        assert!(get_pages(store, scratch, slot, pages) == expected);
    }

    fn check(&self, store: &Store<TestArena>) {
        let held = self.pages.values().flatten().count();
        let stats = store.stats();
        assert_eq!(stats.stored_pages, held);
        for (slot, page) in &self.pages {
            assert_eq!(store.unit_of(*slot).is_some(), page.is_some());
            assert!(page.as_ref().is_none_or(|page| store.matches(*slot, page)));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn behaves_as_a_map_of_slots(steps in prop::collection::vec(step(), 0..60)) {
        let (store, arena) = store(1024);
        let mut scratch = scratch();
        let mut model = Model::default();
        for step in &steps {
            model.step(&store, &arena, &mut scratch, step);
        }
        model.check(&store);
        let slots: Vec<_> = model.pages.keys().copied().collect();
        for slot in &slots {
            model.get(&store, &mut scratch, *slot, 1);
        }
        store.free(&slots);
        let stats = store.stats();
        prop_assert_eq!((stats.stored_pages, stats.objects, stats.compressed_bytes), (0, 0, 0));
    }
}
