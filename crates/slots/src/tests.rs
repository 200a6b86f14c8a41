use super::*;
use crate::twins::{Allocator, OneLock, Series, SharedWork};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::string::ToString;
use std::sync::atomic::AtomicU8;
use std::vec::Vec;

fn slots<A: Allocator>(capacity: usize, cpus: usize) -> A {
    A::new(Config { capacity, cpus, discards: false, clock: no_clock }).unwrap()
}

fn order(n: u8) -> Order {
    Order::new(n).unwrap()
}

fn sizes_that_cannot_be_are_refused<A: Allocator>() {
    let error =
        |capacity, cpus| A::new(Config { capacity, cpus, discards: false, clock: no_clock }).err();
    assert_eq!(error(0, 1), Some(ConfigError::NoSlots));
    assert_eq!(error(1, 0), Some(ConfigError::NoCpus));
    let capacity = MAX_SLOTS + 1;
    assert_eq!(error(capacity, 1), Some(ConfigError::TooManySlots { capacity }));
    assert!(ConfigError::TooManySlots { capacity }.to_string().contains(&capacity.to_string()));
    assert_eq!(slots::<A>(513, 1).capacity(), 1024);
}

fn one_page_after_another_fills_the_device<A: Allocator>() {
    let slots = slots::<A>(1024, 2);
    let taken: BTreeSet<_> = (0..1024).map(|_| slots.alloc(Order::PAGE, 0).unwrap()).collect();
    assert_eq!(taken.len(), 1024);
    assert_eq!(slots.alloc(Order::PAGE, 0), None);
    assert_eq!(slots.alloc(Order::PAGE, 1), None);
    slots.check();
    slots.free(SlotId::new(700), 1).unwrap();
    assert_eq!(slots.alloc(Order::PAGE, 1), Some(SlotId::new(700)));
    slots.check();
}

#[test]
fn neighbours_get_neighbouring_slots() {
    let slots = slots::<Slots>(4096, 2);
    let first: Vec<_> = (0..100).map(|_| slots.alloc(Order::PAGE, 0).unwrap().get()).collect();
    assert!(first.is_sorted_by(|a, b| a + 1 == *b));
    let other = slots.alloc(Order::PAGE, 1).unwrap();
    assert_ne!(split(other).0, split(SlotId::new(first[0])).0, "CPUs keep to their own clusters");
}

fn a_folio_is_aligned_and_whole<A: Allocator>() {
    let slots = slots::<A>(8192, 1);
    for n in 0..=9 {
        let first = slots.alloc(order(n), 0).unwrap();
        assert_eq!(first.index() % order(n).pages(), 0);
        slots.check();
    }
    assert_eq!(slots.taken(), 1023);
}

fn the_last_single_pages_come_from_clusters_of_folios<A: Allocator>() {
    let slots = slots::<A>(512, 1);
    let folio = slots.alloc(order(4), 0).unwrap();
    for _ in 0..496 {
        slots.alloc(Order::PAGE, 0).unwrap();
        slots.check();
    }
    assert_eq!(slots.alloc(Order::PAGE, 0), None);
    assert_eq!(slots.alloc(order(4), 0), None);
    slots.free(folio, 16).unwrap();
    assert!(slots.alloc(order(4), 0).is_some());
    slots.check();
}

fn a_bad_free_is_an_error_and_changes_nothing<A: Allocator>() {
    let slots = slots::<A>(1024, 1);
    let first = slots.alloc(order(4), 0).unwrap();
    let slot = |n| SlotId::new(first.get() + n);
    slots.free(slot(3), 1).unwrap();
    for (bad, pages, error) in [
        (slot(3), 1, FreeError::NotTaken { slot: slot(3) }),
        (slot(0), 16, FreeError::NotTaken { slot: slot(3) }),
        (slot(15), 2, FreeError::NotTaken { slot: slot(16) }),
        (
            SlotId::new(1000),
            25,
            FreeError::PastTheEnd { first: SlotId::new(1000), pages: 25, capacity: 1024 },
        ),
        (
            SlotId::new(u32::MAX),
            1,
            FreeError::PastTheEnd { first: SlotId::new(u32::MAX), pages: 1, capacity: 1024 },
        ),
        (
            slot(0),
            usize::MAX,
            FreeError::PastTheEnd { first: slot(0), pages: usize::MAX, capacity: 1024 },
        ),
        (SlotId::new(510), 4, FreeError::SpansClusters { first: SlotId::new(510), pages: 4 }),
    ] {
        assert_eq!(slots.free(bad, pages), Err(error));
        assert_eq!(slots.taken(), 15);
        slots.check();
    }
    assert_eq!(slots.free(SlotId::new(1024), 0), Ok(()));
    let text = FreeError::NotTaken { slot: slot(3) }.to_string();
    assert!(text.contains("slot 3"), "{text}");
}

fn many_are_freed_and_the_first_bad_one_is_named<A: Allocator>() {
    let slots = slots::<A>(2048, 1);
    let taken: Vec<_> = (0..1500).map(|_| slots.alloc(Order::PAGE, 0).unwrap()).collect();
    let beyond = SlotId::new(5000);
    let list: Vec<_> = [taken[7], beyond, taken[7], taken[1400]].to_vec();
    let error = FreeError::PastTheEnd { first: beyond, pages: 1, capacity: 2048 };
    assert_eq!(slots.free_many(&list), Err(error));
    assert_eq!(slots.taken(), 1498);
    slots.check();
    assert_eq!(slots.free_many(&taken[7..8]), Err(FreeError::NotTaken { slot: taken[7] }));
    let rest: Vec<_> =
        taken.iter().copied().filter(|s| *s != taken[7] && *s != taken[1400]).collect();
    assert_eq!(slots.free_many(&rest), Ok(()));
    assert_eq!(slots.taken(), 0);
    slots.check();
}

#[test]
fn clusters_that_were_used_are_used_again_before_new_ones() {
    let slots = slots::<Slots>(1 << 20, 1);
    for _ in 0..100 {
        let taken: Vec<_> = (0..600).map(|_| slots.alloc(Order::PAGE, 0).unwrap()).collect();
        slots.free_many(&taken).unwrap();
    }
    assert!(slots.touched() <= 3 * CLUSTER_SLOTS, "{} slots touched", slots.touched());
}

/// A device that notes what it is told, and refuses when it is to.
#[derive(Default)]
struct Told {
    discarded: RefCell<Vec<SlotId>>,
    refuses: bool,
}

impl Device for Told {
    type Error = &'static str;

    fn discard(&self, first: SlotId, slots: usize) -> Result<(), Self::Error> {
        assert_eq!(slots, CLUSTER_SLOTS);
        if self.refuses {
            return Err("no holes here");
        }
        self.discarded.borrow_mut().push(first);
        Ok(())
    }
}

/// Clusters that were emptied are discarded once, off the path of who frees, and not when they are
/// taken again before.
fn a_device_is_told_of_emptied_clusters<A: Allocator>(
    discard: impl Fn(&A, &Told, usize) -> Result<usize, &'static str>,
) {
    let config = Config { capacity: 2048, cpus: 1, discards: true, clock: no_clock };
    let slots = A::new(config).unwrap();
    let told = Told::default();
    let taken: Vec<_> = (0..4).map(|_| slots.alloc(Order::MAX, 0).unwrap()).collect();
    assert_eq!(discard(&slots, &told, 9), Ok(0));
    taken[..3].iter().for_each(|first| slots.free(*first, 512).unwrap());
    assert!(told.discarded.borrow().is_empty());
    assert_eq!(
        discard(&slots, &Told { refuses: true, ..Told::default() }, 9),
        Err("no holes here")
    );
    slots.check();
    assert_eq!(discard(&slots, &told, 2), Ok(2));
    slots.check();
    let again: Vec<_> = (0..3).map(|_| slots.alloc(Order::MAX, 0).unwrap()).collect();
    assert_eq!(discard(&slots, &told, 9), Ok(0), "the third was taken before");
    assert_eq!(told.discarded.borrow().len(), 2);
    again.iter().for_each(|first| slots.free(*first, 512).unwrap());
    assert_eq!(discard(&slots, &told, 9), Ok(3));
    assert_eq!(slots.taken(), 512);
    slots.check();
}

#[test]
fn our_device_is_told_of_emptied_clusters() {
    a_device_is_told_of_emptied_clusters::<Slots>(|slots, told, budget| {
        slots.discard(told, budget)
    });
}

#[test]
fn the_series_device_is_told_of_emptied_clusters() {
    a_device_is_told_of_emptied_clusters::<Series>(|slots, told, budget| {
        slots.discard(told, budget)
    });
}

#[test]
fn copies_in_a_full_cluster_are_reclaimed() {
    let slots = slots::<Series>(512, 1);
    assert_eq!(slots.reclaim(|_| true), 0, "nothing is full");
    while slots.alloc(Order::PAGE, 0).is_some() {}
    assert_eq!(slots.reclaim(|_| false), 0);
    assert_eq!(slots.reclaim(|slot| slot.get() % 8 == 3), 64);
    slots.check();
    assert_eq!(slots.alloc(Order::PAGE, 0), Some(SlotId::new(3)));
    assert_eq!(slots.taken(), 449);
}

/// With one CPU, as a rotating disk wants it, whoever stores goes on behind who stored last.
#[test]
fn a_rotating_disk_is_written_in_order() {
    let slots = slots::<Slots>(4096, 1);
    let turns = (0..1000).map(|n| slots.alloc(Order::PAGE, n % 7).unwrap().get());
    assert!(turns.collect::<Vec<_>>().is_sorted_by(|a, b| a + 1 == *b));
}

fn the_next_taken_slot_is_found<A: Allocator>() {
    let slots = slots::<A>(2048, 1);
    assert_eq!(slots.next_taken(SlotId::new(0)), None);
    let mut taken: BTreeSet<_> = (0..1500).map(|_| slots.alloc(Order::PAGE, 0).unwrap()).collect();
    for slot in taken.iter().copied().filter(|slot| slot.get() % 3 != 0).collect::<Vec<_>>() {
        slots.free(slot, 1).unwrap();
        taken.remove(&slot);
    }
    for from in [0, 1, 511, 512, 1400, 1499, 2047, 9999].map(SlotId::new) {
        assert_eq!(slots.next_taken(from), taken.range(from..).next().copied(), "from {from}");
    }
}

/// Frees and takes in turns, half full, in random order: `batch` slots are freed, then taken.
fn churn<A: Allocator>(batch: usize) -> SharedWork {
    let slots = slots::<A>(1 << 16, 1);
    let mut taken: Vec<_> = (0..1 << 15).map(|_| slots.alloc(Order::PAGE, 0).unwrap()).collect();
    let mut random = 1_u64;
    let mut turn = |pairs: usize| {
        for _ in 0..pairs / batch {
            for _ in 0..batch {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let victim = (random >> 33) as usize % taken.len();
                slots.free(taken.swap_remove(victim), 1).unwrap();
            }
            taken.extend((0..batch).map(|_| slots.alloc(Order::PAGE, 0).unwrap()));
        }
        slots.shared_work()
    };
    let before = turn(200_000);
    let after = turn(100_000);
    SharedWork {
        acquisitions: after.acquisitions - before.acquisitions,
        moves: after.moves - before.moves,
        ..after
    }
}

#[test]
fn the_device_lock_is_taken_only_to_move_a_cluster() {
    let work = churn::<Series>(4096);
    assert!(work.acquisitions <= work.moves, "{work:?}");
    assert!(work.acquisitions < 200_000 / 20, "{work:?} in 200,000 operations");
}

#[test]
fn a_cluster_changes_its_state_seldom() {
    for batch in [1, 64, 4096] {
        let work = churn::<Slots>(batch);
        assert_eq!(work.acquisitions, 0);
        assert!(work.moves < 200_000 / 40, "{work:?} in 200,000 operations, batch {batch}");
    }
}

/// What a test does to an allocator and to the model beside it.
#[derive(Clone, Debug)]
enum Step {
    Alloc {
        order: u8,
        cpu: usize,
    },
    /// Frees one of the folios, whole.
    Free {
        which: usize,
    },
    /// Frees one page of one of the folios.
    FreePage {
        which: usize,
        page: usize,
    },
    /// Frees several folios in one call.
    FreeMany {
        from: usize,
        folios: usize,
    },
    /// Frees any range at all.
    FreeRange {
        first: u32,
        pages: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop_oneof![5 => 0..=0_u8, 3 => 1..=4_u8, 1 => 5..=9_u8], 0..3_usize)
            .prop_map(|(order, cpu)| Step::Alloc { order, cpu }),
        3 => any::<usize>().prop_map(|which| Step::Free { which }),
        2 => any::<(usize, usize)>().prop_map(|(which, page)| Step::FreePage { which, page }),
        1 => (any::<usize>(), 0..50_usize)
            .prop_map(|(from, folios)| Step::FreeMany { from, folios }),
        1 => (0..2100_u32, 0..520_usize)
            .prop_map(|(first, pages)| Step::FreeRange { first, pages }),
    ]
}

/// The plain twin: a set of taken slots, and the folios as they were given out.
#[derive(Default)]
struct Model {
    taken: BTreeSet<u32>,
    folios: Vec<(SlotId, usize)>,
}

impl Model {
    fn pages_left(&self, folio: (SlotId, usize)) -> Vec<SlotId> {
        let (first, pages) = folio;
        let range = first.get()..first.get() + pages as u32;
        self.taken.range(range).map(|n| SlotId::new(*n)).collect()
    }

    fn step(&mut self, slots: &impl Allocator, step: &Step) {
        match *step {
            Step::Alloc { order, cpu } => {
                let order = Order::new(order).unwrap();
                let Some(first) = slots.alloc(order, cpu) else {
                    assert!(order != Order::PAGE || self.taken.len() == slots.capacity());
                    return;
                };
                assert_eq!(first.index() % order.pages(), 0);
                assert!(first.index() + order.pages() <= slots.capacity());
                self.take(first, order);
            }
            Step::Free { which } if !self.folios.is_empty() => {
                let folio = self.folios.swap_remove(which % self.folios.len());
                let whole = self.pages_left(folio).len() == folio.1;
                assert_eq!(slots.free(folio.0, folio.1).is_ok(), whole);
                if whole {
                    self.forget(folio.0.get()..folio.0.get() + folio.1 as u32);
                } else {
                    self.folios.push(folio);
                }
            }
            Step::FreePage { which, page } if !self.folios.is_empty() => {
                let folio = self.folios[which % self.folios.len()];
                let slot = folio.0.offset((page % folio.1) as u32);
                assert_eq!(slots.free(slot, 1).is_ok(), self.taken.remove(&slot.get()));
            }
            Step::FreeMany { from, folios } if !self.folios.is_empty() => {
                let from = from % self.folios.len();
                let until = (from + folios).min(self.folios.len());
                let list: Vec<_> = self
                    .folios
                    .drain(from..until)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .flat_map(|folio| self.pages_left(folio))
                    .collect();
                // A slot freed by hand may belong to two folios by now: name it once.
                let list: BTreeSet<_> = list.into_iter().collect();
                let list: Vec<_> = list.into_iter().collect();
                assert_eq!(slots.free_many(&list), Ok(()));
                list.iter().for_each(|slot| assert!(self.taken.remove(&slot.get())));
            }
            Step::FreeRange { first, pages } => {
                let range = first..first + pages as u32;
                let good = pages == 0 && first as usize <= slots.capacity()
                    || pages > 0
                        && range.end as usize <= slots.capacity()
                        && first / 512 == (range.end - 1) / 512
                        && self.taken.range(range.clone()).count() == pages;
                assert_eq!(slots.free(SlotId::new(first), pages).is_ok(), good);
                if good {
                    self.forget(range);
                }
            }
            _ => {}
        }
    }

    fn take(&mut self, first: SlotId, order: Order) {
        for n in first.get()..first.get() + order.pages() as u32 {
            assert!(self.taken.insert(n), "slot {n} given twice");
        }
        self.folios.push((first, order.pages()));
    }

    fn forget(&mut self, range: core::ops::Range<u32>) {
        range.for_each(|n| assert!(self.taken.remove(&n)));
    }
}

/// Runs of slots that are asked for together are those that would be given one after the other, and
/// leave the allocator as that would.
fn many_are_as_one_after_the_other(steps: &[Step], folios: &[(u8, usize, usize)]) {
    let (many, single) = (slots::<Slots>(2048, 3), slots::<Slots>(2048, 3));
    let (mut model, mut twin) = (Model::default(), Model::default());
    let mut steps = steps.chunks(8);
    for &(n, cpu, count) in folios {
        for step in steps.next().unwrap_or(&[]) {
            model.step(&many, step);
            twin.step(&single, step);
        }
        let mut given = std::vec![SlotId::new(u32::MAX); count];
        let got = many.alloc_many(order(n), cpu, &mut given);
        many.check();
        for first in &given[..got] {
            assert_eq!(single.alloc(order(n), cpu), Some(*first));
            model.take(*first, order(n));
            twin.take(*first, order(n));
        }
        assert!(got == count || single.alloc(order(n), cpu).is_none());
        assert_eq!(many.taken(), single.taken());
    }
}

fn behaves_as_a_set_of_slots<A: Allocator>(steps: &[Step]) {
    let slots = slots::<A>(2048, 3);
    let mut model = Model::default();
    for step in steps {
        model.step(&slots, step);
        slots.check();
        assert_eq!(slots.taken(), model.taken.len());
    }
}

/// Threads take and free slots at random; each slot carries the mark of its owner.
fn threads_never_share_a_slot<A: Allocator>(seed: u64, steps: usize) {
    const THREADS: usize = 4;
    let slots = slots::<A>(8 * CLUSTER_SLOTS, THREADS);
    let owner: Vec<AtomicU8> = (0..slots.capacity()).map(|_| AtomicU8::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (slots, owner) = (&slots, &owner);
            scope.spawn(move || torture(slots, owner, thread, seed, steps));
        }
    });
    slots.check();
    assert_eq!(slots.taken(), 0);
}

/// Threads take and free slots while another tells the device of what they emptied: of what is
/// taken it is never told.
fn nothing_taken_is_discarded(seed: u64, steps: usize) {
    const THREADS: usize = 3;
    let capacity = 8 * CLUSTER_SLOTS;
    let config = Config { capacity, cpus: THREADS, discards: true, clock: no_clock };
    let slots = Slots::new(config).unwrap();
    let owner: Vec<AtomicU8> = (0..capacity).map(|_| AtomicU8::new(0)).collect();
    let device = Owned(&owner);
    std::thread::scope(|scope| {
        let work: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (slots, owner) = (&slots, &owner);
                scope.spawn(move || torture(slots, owner, thread, seed, steps))
            })
            .collect();
        while work.iter().any(|thread| !thread.is_finished()) {
            slots.discard(&device, usize::MAX).unwrap();
        }
    });
    slots.check();
    assert_eq!(slots.taken(), 0);
}

/// A device that knows whose its slots are.
struct Owned<'a>(&'a [AtomicU8]);

impl Device for Owned<'_> {
    type Error = core::convert::Infallible;

    fn discard(&self, first: SlotId, slots: usize) -> Result<(), Self::Error> {
        for owner in &self.0[first.index()..first.index() + slots] {
            assert_eq!(owner.load(Ordering::Relaxed), 0, "a slot of {first} on is in use");
        }
        Ok(())
    }
}

#[test]
fn what_threads_hold_is_not_discarded() {
    nothing_taken_is_discarded(1, 10_000);
}

/// The soak: `SLOTS_STRESS_SECONDS=600 cargo test --release -p octavo-slots stress -- --ignored`.
#[test]
#[ignore = "takes minutes; the soak runs it"]
fn stress() {
    let seconds = std::env::var("SLOTS_STRESS_SECONDS").map_or(10, |text| text.parse().unwrap());
    let end = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    for seed in (0..).take_while(|_| std::time::Instant::now() < end) {
        threads_never_share_a_slot::<Slots>(seed, 500_000);
        nothing_taken_is_discarded(seed, 500_000);
        threads_never_share_a_slot::<Series>(seed, 100_000);
        threads_never_share_a_slot::<OneLock>(seed, 100_000);
    }
}

fn torture(slots: &impl Allocator, owner: &[AtomicU8], thread: usize, seed: u64, steps: usize) {
    let mark = thread as u8 + 1;
    let mut random = 0x9e37_79b9_u64.wrapping_mul(thread as u64 + 1).wrapping_add(seed << 32);
    let mut held: Vec<(SlotId, usize)> = Vec::new();
    let claim = |folio: (SlotId, usize), from: u8, to: u8| {
        for slot in &owner[folio.0.index()..folio.0.index() + folio.1] {
            assert_eq!(slot.swap(to, Ordering::Relaxed), from, "{} changed hands", folio.0);
        }
    };
    for _ in 0..steps {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let dice = (random >> 40) as usize;
        let order = order([0, 0, 0, 2, 4, 9][dice % 6]);
        if dice & 0x100 == 0 {
            if let Some(first) = slots.alloc(order, thread) {
                claim((first, order.pages()), 0, mark);
                held.push((first, order.pages()));
            }
        } else if !held.is_empty() {
            let folio = held.swap_remove(dice % held.len());
            claim(folio, mark, 0);
            slots.free(folio.0, folio.1).unwrap();
        }
    }
    for folio in held {
        claim(folio, mark, 0);
        let list: Vec<_> = (0..folio.1 as u32).map(|n| folio.0.offset(n)).collect();
        slots.free_many(&list).unwrap();
    }
}

macro_rules! tests_of {
    ($($module:ident: $design:ty),*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn sizes_that_cannot_be_are_refused() {
                super::sizes_that_cannot_be_are_refused::<$design>();
            }

            #[test]
            fn one_page_after_another_fills_the_device() {
                super::one_page_after_another_fills_the_device::<$design>();
            }

            #[test]
            fn a_folio_is_aligned_and_whole() {
                super::a_folio_is_aligned_and_whole::<$design>();
            }

            #[test]
            fn the_last_single_pages_come_from_clusters_of_folios() {
                super::the_last_single_pages_come_from_clusters_of_folios::<$design>();
            }

            #[test]
            fn a_bad_free_is_an_error_and_changes_nothing() {
                super::a_bad_free_is_an_error_and_changes_nothing::<$design>();
            }

            #[test]
            fn many_are_freed_and_the_first_bad_one_is_named() {
                super::many_are_freed_and_the_first_bad_one_is_named::<$design>();
            }

            #[test]
            fn the_next_taken_slot_is_found() {
                super::the_next_taken_slot_is_found::<$design>();
            }

            #[test]
            fn threads_never_share_a_slot() {
                super::threads_never_share_a_slot::<$design>(0, 20_000);
            }

            proptest! {
                #[test]
                fn behaves_as_a_set_of_slots(steps in prop::collection::vec(step(), 0..400)) {
                    super::behaves_as_a_set_of_slots::<$design>(&steps);
                }
            }
        }
    )*};
}

tests_of! { octavo: Slots, series: Series, one_lock: OneLock }

proptest! {
    #[test]
    fn runs_for_many_folios_are_those_for_one_after_the_other(
        steps in prop::collection::vec(step(), 0..200),
        folios in prop::collection::vec(
            (prop_oneof![5 => 0..=0_u8, 3 => 1..=4_u8, 1 => 5..=9_u8], 0..3_usize, 0..70_usize),
            1..25,
        ),
    ) {
        many_are_as_one_after_the_other(&steps, &folios);
    }
}
