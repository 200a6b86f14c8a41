//! Any calls of the store, frames running out between them, against a plain map from slots to pages.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use octavo_fuzz::common::{TestArena, codecs, scratch, store};
use octavo_fuzz::page;
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{Form, GetError, How, PutError, Scratch, Store};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

/// More slots than there are, so that some calls are for none.
const SLOTS: u32 = 520;
const CAPACITY: usize = 512;

#[derive(Arbitrary, Debug)]
enum Step {
    Put {
        codec: u8,
        unit: u8,
        fits_in: u8,
        folios: Vec<Folio>,
    },
    Get {
        slot: u16,
        pages: u8,
    },
    Matches {
        slot: u16,
        other: u8,
    },
    Free {
        slots: Vec<u16>,
    },
    /// A run, from the beginning of a unit or from anywhere: some of its pages, or all but those.
    FreeRun {
        slot: u16,
        aligned: bool,
        pages: u8,
        some: [u8; 2],
        others: bool,
    },
    Poison {
        slot: u16,
    },
    Compact {
        budget: u8,
    },
    Frames {
        left: u8,
    },
}

/// Each page by the seed of its kind, again and again.
#[derive(Arbitrary, Debug)]
struct Folio {
    order: u8,
    seeds: [u8; 5],
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::new(scratch()));

fuzz_target!(|steps: Vec<Step>| {
    SCRATCH.with_borrow_mut(|scratch| {
        let (store, arena) = store(CAPACITY);
        let mut run = Run { store, arena, scratch, model: BTreeMap::new(), objects: 0 };
        for step in steps.iter().take(100) {
            run.step(step);
            run.check();
        }
        run.finish();
    });
});

/// What a slot holds: a page, by its seed, or one that is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Filled(u8),
    Compressed { seed: u8, object: usize },
    Poisoned,
}

impl Held {
    fn page(&self) -> Option<&'static [u8]> {
        match self {
            Self::Filled(seed) | Self::Compressed { seed, .. } => Some(page(*seed)),
            Self::Poisoned => None,
        }
    }
}

struct Run<'a> {
    store: Store<TestArena>,
    arena: TestArena,
    scratch: &'a mut Scratch,
    model: BTreeMap<u32, Held>,
    /// Objects ever made.
    objects: usize,
}

impl Run<'_> {
    /// A slot that holds something, by its place among them; one time in eight any slot.
    fn slot(&self, n: u16) -> SlotId {
        let place = usize::from(n / 8);
        let held = self.model.keys().nth(place % self.model.len().max(1));
        let any = place as u32 % SLOTS;
        SlotId::new(held.filter(|_| !n.is_multiple_of(8)).copied().unwrap_or(any))
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Put { codec, unit, fits_in, folios } => {
                let unit = Unit::ALL[usize::from(*unit) % 3];
                let codec = codecs()[usize::from(*codec) % 3];
                let fits_in = unit.bytes() / 256 * (1 + usize::from(*fits_in));
                // Too little to keep anything raw, or more.
                let (cpu, refusal_bytes) = (folios.len() % 2, fits_in % PAGE_SIZE);
                let how = How { codec, unit, cpu, fits_in, refusal_bytes };
                self.put(how, &folios[..folios.len().min(4)]);
            }
            Step::Get { slot: n, pages } => self.get(self.slot(*n), 1 + usize::from(pages % 70)),
            Step::Matches { slot: n, other } => {
                let slot = self.slot(*n);
                let held = self.model.get(&slot.get()).and_then(Held::page);
                let other = page(*other);
                assert_eq!(self.store.matches(slot, other), held == Some(other));
                assert!(held.is_none_or(|page| self.store.matches(slot, page)));
            }
            Step::Free { slots } => {
                let slots: Vec<_> = slots.iter().map(|n| self.slot(*n)).collect();
                self.store.free(&slots);
                slots.iter().for_each(|slot| _ = self.model.remove(&slot.get()));
            }
            Step::FreeRun { slot: n, aligned, pages, some, others } => {
                let slot = self.slot(*n).get();
                let first = SlotId::new(if *aligned { slot & !15 } else { slot });
                let pages = u32::from(pages % 65);
                let some =
                    some.iter().fold(0, |mask, n| mask | 1 << (u32::from(*n) % pages.max(1)));
                let mask: u64 = if *others { !some } else { some };
                self.store.free_run(first, pages as usize, mask);
                for n in (0..pages).filter(|n| mask >> n & 1 == 1) {
                    self.model.remove(&first.offset(n).get());
                }
            }
            Step::Poison { slot: n } => {
                let slot = self.slot(*n);
                self.store.poison(slot);
                self.model.entry(slot.get()).and_modify(|held| *held = Held::Poisoned);
            }
            Step::Compact { budget } => {
                let moved = self.store.compact((*budget).into()).moved;
                assert!(moved <= usize::from(*budget));
            }
            Step::Frames { left } => self.arena.set_frames_left((*left).into()),
        }
    }

    fn put(&mut self, how: How, folios: &[Folio]) {
        let seeds: Vec<Vec<u8>> = folios
            .iter()
            .map(|folio| {
                let pages = (1 << (folio.order % 8)).max(how.unit.pages());
                folio.seeds.iter().copied().cycle().take(pages).collect()
            })
            .collect();
        let data: Vec<Vec<u8>> = seeds
            .iter()
            .map(|seeds| seeds.iter().map(|s| page(*s)).collect::<Vec<_>>().concat())
            .collect();
        let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut out = vec![Err(PutError::OutOfSlots); data.len()];
        self.store.put(self.scratch, how, &slices, &mut out);
        // A later folio may only find what the earlier ones left.
        for (seeds, out) in seeds.iter().zip(out) {
            let pages = seeds.len();
            match out {
                Ok(first) => self.keep(first, how.unit, seeds),
                Err(PutError::OutOfSlots) => {
                    let mut runs = (0..CAPACITY / pages).map(|n| n * pages..(n + 1) * pages);
                    let free = |at| !self.model.contains_key(&(at as u32));
                    assert!(!runs.any(|mut run| run.all(free)), "a run of {pages} was free");
                }
                Err(PutError::DoesNotFit | PutError::OutOfFrames | PutError::OutOfObjects) => {}
            }
        }
    }

    fn keep(&mut self, first: SlotId, unit: Unit, seeds: &[u8]) {
        let pages = seeds.len();
        assert!(first.index().is_multiple_of(pages), "{first} for {pages} pages");
        assert!(first.index() + pages <= CAPACITY, "{first} for {pages} pages");
        for (n, &seed) in seeds.iter().enumerate() {
            let slot = first.offset(n as u32);
            let object = self.objects + n / unit.pages();
            let held = match filled(page(seed)) {
                true => Held::Filled(seed),
                false => Held::Compressed { seed, object },
            };
            assert!(self.model.insert(slot.get(), held).is_none(), "{slot} is given twice");
        }
        self.objects += pages;
    }

    fn get(&mut self, first: SlotId, pages: usize) {
        let mut out = vec![0xaa; pages * PAGE_SIZE];
        let said = self.store.get(self.scratch, first, &mut out);
        for (n, got) in out.chunks(PAGE_SIZE).enumerate() {
            let slot = first.offset(n as u32);
            match self.model.get(&slot.get()) {
                None => return assert_eq!(said, Err(GetError::Empty { slot })),
                Some(Held::Poisoned) => return assert_eq!(said, Err(GetError::Poisoned { slot })),
                Some(held) => assert!(said.is_err() || held.page() == Some(got), "{slot} is wrong"),
            }
        }
        assert_eq!(said, Ok(()));
    }

    fn check(&self) {
        let stats = self.store.stats();
        assert_eq!(stats.stored_pages, self.model.values().filter_map(Held::page).count());
        let filled = self.model.values().filter(|held| matches!(held, Held::Filled(_)));
        assert_eq!(stats.same_filled_pages, filled.count());
        let objects = self.model.values().filter_map(|held| match held {
            Held::Compressed { object, .. } => Some(object),
            _ => None,
        });
        assert_eq!(stats.objects, objects.collect::<HashSet<_>>().len());
    }

    /// Everything is still there; then nothing is.
    fn finish(mut self) {
        let mut next = 0;
        while next < SLOTS {
            let good = |n: &u32| self.model.get(n).is_some_and(|held| *held != Held::Poisoned);
            let pages = (next..SLOTS).take_while(good).count().max(1);
            self.get(SlotId::new(next), pages);
            next += pages as u32;
        }
        for n in 0..SLOTS {
            let info = self.store.unit_of(SlotId::new(n));
            let held = self.model.get(&n).filter(|held| **held != Held::Poisoned);
            assert_eq!(info.is_some(), held.is_some());
            if let Some(info) = info {
                assert_eq!(info.form == Form::SameFilled, matches!(held, Some(Held::Filled(_))));
                assert_eq!(info.wanted >> (n - info.first.get()) & 1, 1);
            }
        }
        let slots: Vec<_> = (0..SLOTS).map(SlotId::new).collect();
        self.store.free(&slots);
        self.model.clear();
        self.check();
        assert_eq!(self.store.stats().compressed_bytes, 0);
    }
}

/// Whether a page is one value over and over that a word of the table holds.
fn filled(page: &[u8]) -> bool {
    let (words, _) = page.as_chunks::<8>();
    let value = i64::from_le_bytes(words[0]);
    words.iter().all(|word| *word == words[0]) && (-(1 << 60)..1 << 60).contains(&value)
}
