//! Any bits of the arena flip while pages lie in it: each page is then as it was or known to be
//! damaged, never other bytes; and flipped back, everything is as before.
#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use octavo_fuzz::common::{TestArena, codecs, scratch, store};
use octavo_fuzz::page;
use octavo_page::{PAGE_SIZE, SlotId, Unit};
use octavo_store::{GetError, How, PutError, Scratch, Store};
use std::cell::RefCell;

#[derive(Arbitrary, Debug)]
struct Case {
    /// Folios of 16 pages.
    folios: Vec<Folio>,
    /// Bytes of the arena, from its front, and a bit in each.
    flips: Vec<(u16, u8)>,
    /// What is read: from where, how much.
    reads: Vec<(u8, u8)>,
}

#[derive(Arbitrary, Debug)]
struct Folio {
    codec: u8,
    unit: u8,
    seeds: [u8; 4],
}

thread_local!(static SCRATCH: RefCell<Scratch> = RefCell::new(scratch()));

fuzz_target!(|case: Case| SCRATCH.with_borrow_mut(|scratch| run(scratch, &case)));

fn run(scratch: &mut Scratch, case: &Case) {
    let (store, arena) = store(512);
    let held: Vec<_> =
        case.folios.iter().take(8).filter_map(|folio| put(&store, scratch, folio)).collect();
    let end = arena.committed_bytes();
    if end == 0 {
        return;
    }
    let flip = || {
        case.flips.iter().for_each(|(at, bit)| arena.flip(usize::from(*at) % end, (*bit).into()))
    };
    flip();
    for (slot, data) in &held {
        let reads = case.reads.iter().map(|(first, pages)| (first % 16, pages % 16));
        for (first, pages) in reads.take(16).chain([(0, 15)]) {
            let pages = 1 + pages.min(15 - first);
            read(&store, scratch, *slot, data, first.into(), pages.into());
        }
    }
    flip();
    for (slot, data) in &held {
        let mut out = vec![0; data.len()];
        assert_eq!(store.get(scratch, *slot, &mut out), Ok(()));
        assert!(out == *data, "{slot}: other bytes");
        store.free_run(*slot, 16, u64::MAX);
    }
    let stats = store.stats();
    assert_eq!((stats.objects, stats.stored_pages), (0, 0));
}

fn put(
    store: &Store<TestArena>,
    scratch: &mut Scratch,
    folio: &Folio,
) -> Option<(SlotId, Vec<u8>)> {
    let unit = Unit::ALL[usize::from(folio.unit) % 3];
    let codec = codecs()[usize::from(folio.codec) % 3];
    let pages = folio.seeds.iter().cycle().take(16).map(|seed| page(*seed));
    let data = pages.collect::<Vec<_>>().concat();
    let mut out = [Err(PutError::OutOfSlots)];
    let how = How { codec, unit, cpu: 0, fits_in: unit.bytes(), refusal_bytes: 0 };
    store.put(scratch, how, &[&data], &mut out);
    out[0].ok().map(|slot| (slot, data))
}

/// Reads some pages of a folio, of which any may be damaged.
fn read(
    store: &Store<TestArena>,
    scratch: &mut Scratch,
    folio: SlotId,
    data: &[u8],
    first: usize,
    pages: usize,
) {
    let mut out = vec![0xaa; pages * PAGE_SIZE];
    match store.get(scratch, folio.offset(first as u32), &mut out) {
        Ok(()) => assert!(out == data[first * PAGE_SIZE..][..out.len()], "{folio}: other bytes"),
        Err(GetError::Damaged { slot }) => {
            // The one that is named is lost by itself too.
            let lost = slot.get() - folio.get();
            assert!((first..first + pages).contains(&(lost as usize)));
            let again = store.get(scratch, slot, &mut out[..PAGE_SIZE]);
            assert_eq!(again, Err(GetError::Damaged { slot }));
        }
        Err(error) => panic!("{error}"),
    }
}
