//! A store with a backing file: whatever is written back, cleaned and brought back meanwhile, it is the
//! store it would be without.

mod common;
#[path = "../../backing/tests/rig/mod.rs"]
mod rig;

use common::{Random, TestArena, codecs, folio, page, scratch};
use octavo_backing::{Backing, Cleaned, Geometry, WriteError};
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{BackError, Config, GetError, How, PutError, Scratch, Store};
use octavo_sys::Errno;
use proptest::prelude::*;
use rig::{Call, Disk, Mishap, config, member, pass};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

type Backed = Store<TestArena, Disk>;

/// A store of `pages` slots over a disk of `segments` segments of 256 KiB, and a scratch for it.
fn backed(pages: usize, segments: usize) -> (Backed, Disk, Scratch) {
    let arena = TestArena::new(4 * pages);
    let pool = octavo_pool::Config {
        chain: octavo_pool::ChainLength::new(8).expect("a length"),
        max_object: Unit::MAX.bytes(),
        max_objects: 2 * pages,
    };
    let disk = Disk::new(segments << 18, 7);
    let geometry = Geometry::new(1 << 18, 1 << 17).expect("powers of two");
    let backing = Backing::new(vec![member(disk.clone(), 0)], config(geometry)).expect("a backing");
    let config = Config { capacity_pages: pages, pool, cpus: 2, seed: 1 };
    let store = Store::backed(arena, config).expect("a valid size");
    store.attach(backing);
    (store, disk, scratch())
}

fn put(store: &Backed, scratch: &mut Scratch, unit: Unit, data: &[u8]) -> Result<SlotId, PutError> {
    let codec = codecs()[data[9] as usize % 3];
    let mut out = [Err(PutError::OutOfSlots)];
    let fits_in = unit.bytes();
    let refusal_bytes = PAGE_SIZE; // what does not fit is kept raw
    store.put(scratch, How { codec, unit, cpu: 0, fits_in, refusal_bytes }, &[data], &mut out);
    out[0]
}

fn get(
    store: &Backed,
    scratch: &mut Scratch,
    slot: SlotId,
    pages: usize,
) -> Result<Vec<u8>, GetError> {
    let mut out = vec![0xaa; pages * PAGE_SIZE];
    store.get(scratch, slot, &mut out).map(|()| out)
}

/// Writes back until nothing more is taken; why.
fn write_all(store: &Backed) -> Option<WriteError> {
    loop {
        let done = store.write_back();
        if done.nothing || done.stopped.is_some() {
            return done.stopped;
        }
    }
}

fn file(store: &Backed) -> octavo_backing::Stats {
    store.backing().expect("a backing").stats()
}

#[test]
fn what_was_written_back_reads_as_before_in_every_unit() {
    let (store, _, mut scratch) = backed(2048, 32);
    let mut all = Vec::new();
    for unit in Unit::ALL {
        for n in 0..8 {
            let data = folio(n, 32, true);
            all.push((put(&store, &mut scratch, unit, &data).expect("room"), data));
        }
    }
    let before = store.stats();
    assert_eq!(write_all(&store), None);
    let after = store.stats();
    assert_eq!((after.objects, after.compressed_bytes), (0, 0), "all is in the file");
    assert_eq!(after.stored_pages, before.stored_pages);
    assert_eq!(file(&store).live_bytes, before.compressed_bytes as u64);
    for (slot, data) in &all {
        assert!(get(&store, &mut scratch, *slot, 32).expect("there") == *data);
        assert!(store.matches(slot.offset(7), &data[7 * PAGE_SIZE..8 * PAGE_SIZE]));
        for n in [0, 3, 13, 31] {
            let one = get(&store, &mut scratch, slot.offset(n), 1).expect("there");
            assert!(one == data[n as usize * PAGE_SIZE..][..PAGE_SIZE]);
        }
    }
    for (slot, _) in &all {
        store.free_run(*slot, 32, u64::MAX);
    }
    assert_eq!(file(&store).live_bytes, 0, "what is freed is freed there");
    assert_eq!(store.stats().stored_pages, 0);
}

/// Stores pages one by one, those that do not compress as they are.
fn put_pages(store: &Backed, scratch: &mut Scratch, pages: &[Vec<u8>]) -> Vec<SlotId> {
    let (codec, unit, refusal_bytes) = (codecs()[0], Unit::K4, PAGE_SIZE + 1);
    let how = How { codec, unit, cpu: 0, fits_in: unit.bytes() / 8 * 7, refusal_bytes };
    let folios: Vec<_> = pages.iter().map(Vec::as_slice).collect();
    let mut out = vec![Err(PutError::OutOfSlots); folios.len()];
    store.put(scratch, how, &folios, &mut out);
    out.into_iter().map(|slot| slot.expect("room")).collect()
}

#[test]
fn what_does_not_compress_goes_first() {
    let (store, _, mut scratch) = backed(8192, 64);
    assert!(!store.has_raw());
    // Some of each kind by turns, of those that compress more than a cluster.
    let noise: Vec<_> = (0..300).map(|n| page(8 * n + 2)).collect();
    let others: Vec<_> = (0..700).map(|n| page(8 * n + 5)).collect();
    let (mut raw, mut rest) = (Vec::new(), Vec::new());
    for (noise, others) in noise.chunks(30).zip(others.chunks(70)) {
        rest.extend(put_pages(&store, &mut scratch, others));
        raw.extend(put_pages(&store, &mut scratch, noise));
    }
    while store.has_raw() {
        assert!(store.write_back().stopped.is_none());
    }
    assert!(raw.iter().all(|slot| store.is_away(*slot)));
    assert!(!rest.iter().any(|slot| store.is_away(*slot)));
    assert_eq!(file(&store).live_bytes, (noise.len() * PAGE_SIZE) as u64);
    // What is freed makes room for others of its kind, which go first again.
    store.free(&raw[..20]);
    raw.splice(..20, put_pages(&store, &mut scratch, &noise[..20]));
    assert!(store.has_raw());
    assert_eq!(write_all(&store), None);
    for (slot, page) in raw.iter().chain(&rest).zip(noise.iter().chain(&others)) {
        assert!(
            store.is_away(*slot) && get(&store, &mut scratch, *slot, 1).expect("there") == *page
        );
    }
}

#[test]
fn the_oldest_go_first_and_what_comes_back_is_as_new() {
    let (store, _, mut scratch) = backed(8192, 64);
    let slots: Vec<_> = (0..12)
        .map(|n| {
            let data = folio(n, 512, true);
            (put(&store, &mut scratch, Unit::K16, &data).expect("room"), data)
        })
        .collect();
    for n in 0..12 {
        while !store.is_away(slots[n].0.offset(508)) && !store.is_away(slots[n].0.offset(509)) {
            assert!(!store.write_back().nothing);
        }
        // Up to a batch, none of the next cluster.
        assert!(slots[n + 1..].iter().all(|(slot, _)| !store.is_away(slot.offset(500))));
    }
    assert_eq!(write_all(&store), None);
    let mut from = Some(0);
    while let Some(at) = from {
        from = store.bring_back_from(&mut scratch, at).expect("room");
    }
    assert_eq!(file(&store).live_bytes, 0);
    assert!(slots.iter().all(|(slot, _)| !store.is_away(*slot)));
    for (slot, data) in &slots {
        assert!(get(&store, &mut scratch, *slot, 512).expect("there") == *data);
    }
    assert_eq!(write_all(&store), None);
    assert_eq!(store.stats().objects, 0, "all is away again");
    for (slot, _) in &slots {
        let rest: Vec<_> = (0..512).map(|n| slot.offset(n)).collect();
        store.free(&rest);
    }
}

#[test]
fn a_file_that_is_full_takes_no_more_until_there_is_room() {
    let (store, _, mut scratch) = backed(8192, 10);
    let mut all = Vec::new();
    let mut n = 0;
    let why = loop {
        let data = folio(n, 16, true);
        all.push((put(&store, &mut scratch, Unit::K4, &data).expect("room"), data));
        n += 1;
        if n % 8 == 0
            && let Some(why) = write_all(&store)
        {
            break why;
        }
    };
    assert_eq!(why, WriteError::NoRoom);
    for (slot, data) in &all {
        assert!(get(&store, &mut scratch, *slot, 16).expect("there") == *data);
    }
    for (slot, _) in all.iter().step_by(2) {
        store.free_run(*slot, 16, u64::MAX);
    }
    while store.clean(&mut scratch) != Cleaned::Nothing {}
    let before = file(&store).live_bytes;
    let _ = write_all(&store);
    assert!(file(&store).live_bytes > before, "there is room again");
    for (slot, data) in all.iter().skip(1).step_by(2) {
        assert!(get(&store, &mut scratch, *slot, 16).expect("there") == *data);
    }
}

#[test]
fn a_page_that_the_disk_has_lost_is_an_error_and_no_other_is() {
    let (store, disk, mut scratch) = backed(1024, 16);
    let data = folio(5, 64, true);
    let slot = put(&store, &mut scratch, Unit::K4, &data).expect("room");
    assert_eq!(write_all(&store), None);
    store.backing().expect("one").flush();
    disk.tamper(|bytes| bytes[4096..8192].fill(0x55));
    let mut lost = 0;
    for n in 0..64 {
        match get(&store, &mut scratch, slot.offset(n), 1) {
            Ok(found) => assert!(found == data[n as usize * PAGE_SIZE..][..PAGE_SIZE]),
            Err(GetError::Lost { slot: which, lost: at }) => {
                assert_eq!(which, slot.offset(n));
                assert!(at.offset < 8192, "{at}");
                lost += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!((1..64).contains(&lost), "{lost} lost");
    store.free_run(slot, 64, u64::MAX);
    assert_eq!(file(&store).live_bytes, 0);
}

/// What one step of the model does.
#[derive(Clone, Debug)]
enum Step {
    Put { size: usize, unit: usize, seed: u64 },
    Free { which: usize, mask: u16 },
    Get { which: usize, from: usize, pages: usize },
    Write { times: usize },
    Back { which: usize },
    Clean,
    Compact,
    Fail { writes: u64, whole: bool },
    Pass,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 0..3_usize, any::<u64>())
            .prop_map(|(size, unit, seed)| Step::Put { size, unit, seed: seed >> 8 }),
        3 => (any::<usize>(), any::<u16>()).prop_map(|(which, mask)| Step::Free { which, mask }),
        4 => (any::<usize>(), 0..64_usize, 1..20_usize)
            .prop_map(|(which, from, pages)| Step::Get { which, from, pages }),
        3 => (1..4_usize).prop_map(|times| Step::Write { times }),
        1 => any::<usize>().prop_map(|which| Step::Back { which }),
        1 => Just(Step::Clean),
        1 => Just(Step::Compact),
        1 => (0..3_u64, any::<bool>()).prop_map(|(writes, whole)| Step::Fail { writes, whole }),
        1 => Just(Step::Pass),
    ]
}

/// Pages by slot, and the first slot and length of each folio that was put.
#[derive(Default)]
struct Model {
    pages: BTreeMap<u32, Vec<u8>>,
    folios: Vec<(SlotId, usize)>,
}

impl Model {
    fn folio(&self, which: usize) -> Option<(SlotId, usize)> {
        (!self.folios.is_empty()).then(|| self.folios[which % self.folios.len()])
    }

    fn check(&self, store: &Backed, scratch: &mut Scratch, slot: SlotId, pages: usize) {
        let wanted: Option<Vec<_>> =
            (0..pages as u32).map(|n| self.pages.get(&(slot.get() + n))).collect();
        match (get(store, scratch, slot, pages), wanted) {
            (Ok(found), Some(wanted)) => {
                assert!(found.chunks(PAGE_SIZE).eq(wanted.into_iter().map(|page| &page[..])));
            }
            (Err(GetError::Empty { slot }), None) => {
                assert!(!self.pages.contains_key(&slot.get()));
            }
            (found, wanted) => panic!("{:?} and {}", found.map(drop), wanted.is_some()),
        }
    }
}

fn run(steps: &[Step]) {
    let (store, disk, mut scratch) = backed(2048, 12);
    let mut model = Model::default();
    for step in steps {
        match *step {
            Step::Put { size, unit, seed } => {
                let unit = Unit::ALL[unit];
                let pages = unit.pages().max([1, 16, 64][size]);
                let data = folio(seed, pages, false);
                if let Ok(slot) = put(&store, &mut scratch, unit, &data) {
                    for (n, page) in (slot.get()..).zip(data.chunks(PAGE_SIZE)) {
                        assert!(model.pages.insert(n, page.to_vec()).is_none());
                    }
                    model.folios.push((slot, pages));
                }
            }
            Step::Free { which, mask } => {
                let Some((slot, pages)) = model.folio(which) else { continue };
                for n in (0..pages as u32).filter(|n| mask >> (n % 16) & 1 == 1) {
                    store.free(&[slot.offset(n)]);
                    model.pages.remove(&(slot.get() + n));
                }
            }
            Step::Get { which, from, pages } => {
                let Some((slot, all)) = model.folio(which) else { continue };
                let slot = slot.offset((from % all) as u32);
                model.check(&store, &mut scratch, slot, pages);
            }
            Step::Write { times } => (0..times).for_each(|_| {
                store.write_back();
            }),
            Step::Back { which } => {
                let Some((slot, _)) = model.folio(which) else { continue };
                let back = store.bring_back(&mut scratch, slot);
                assert!(matches!(back, Ok(_) | Err(BackError::NoRoom)));
            }
            Step::Clean => drop(store.clean(&mut scratch)),
            Step::Compact => drop(store.compact(100)),
            Step::Fail { writes, whole } => disk.set_fate(move |call, n| {
                let fails = call == Call::Write && n < writes;
                let why = if whole { Errno::ENOSPC } else { Errno::EIO };
                fails.then_some(Mishap::Fail(why))
            }),
            Step::Pass => pass(20),
        }
    }
    let slots: Vec<_> = model.pages.keys().copied().collect();
    slots.iter().for_each(|slot| model.check(&store, &mut scratch, SlotId::new(*slot), 1));
    let stats = store.stats();
    assert_eq!(stats.stored_pages, model.pages.len());
    let slots: Vec<_> = slots.into_iter().map(SlotId::new).collect();
    store.free(&slots);
    let stats = store.stats();
    assert_eq!((stats.objects, stats.compressed_bytes, stats.stored_pages), (0, 0, 0));
    assert_eq!(file(&store).live_bytes, 0, "nothing stays in the file");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn it_is_a_map_from_slots_to_pages(steps in proptest::collection::vec(step(), 1..120)) {
        run(&steps);
    }
}

/// One writes back, one cleans, one brings back; others put, read and free.
#[test]
fn pages_are_read_and_freed_while_they_go_and_come() {
    let (store, _, _) = backed(2048, 24);
    let (ends, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for seed in 1..=2 {
            let (store, done, mut scratch) = (&store, &done, scratch());
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut mine: Vec<(SlotId, Vec<u8>)> = Vec::new();
                for _ in 0..400 {
                    let unit = Unit::ALL[random.below(3)];
                    let data = folio(random.next(), 16, true);
                    if let Ok(slot) = put(store, &mut scratch, unit, &data) {
                        mine.push((slot, data));
                    }
                    for _ in 0..4 {
                        let (slot, data) = &mine[random.below(mine.len())];
                        let (from, pages) = (random.below(16), 1 + random.below(4));
                        let pages = pages.min(16 - from);
                        let found = get(store, &mut scratch, slot.offset(from as u32), pages);
                        let wanted = &data[from * PAGE_SIZE..][..pages * PAGE_SIZE];
                        assert!(found.expect("it is there") == wanted);
                    }
                    if mine.len() > 30 {
                        let (slot, _) = mine.swap_remove(random.below(mine.len()));
                        // In two goes, so that units are partly gone for a while.
                        let mask = random.next() & 0xffff;
                        store.free_run(slot, 16, mask);
                        store.free_run(slot, 16, !mask & 0xffff);
                    }
                }
                mine.iter().for_each(|(slot, _)| store.free_run(*slot, 16, 0xffff));
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let (store, ends) = (&store, &ends);
        let (mut reading, mut cleaning) = (scratch(), scratch());
        scope.spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                store.write_back();
                std::thread::yield_now();
            }
        });
        scope.spawn(move || {
            let mut at = 0;
            while !ends.load(Ordering::Relaxed) {
                store.clean(&mut cleaning);
                at = store.bring_back_from(&mut cleaning, at).expect("room").unwrap_or(0);
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        while done.load(Ordering::Relaxed) < 2 {
            // Beside the others, a reader of whatever is there.
            let mut out = vec![0; PAGE_SIZE];
            for n in (0..2048).step_by(37) {
                match store.get(&mut reading, SlotId::new(n), &mut out) {
                    Ok(()) | Err(GetError::Empty { .. }) => {}
                    Err(why) => panic!("{why}"),
                }
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    let stats = store.stats();
    assert_eq!((stats.objects, stats.stored_pages), (0, 0));
    assert_eq!(file(&store).live_bytes, 0);
    assert!(file(&store).objects > 0, "some were written back");
}
