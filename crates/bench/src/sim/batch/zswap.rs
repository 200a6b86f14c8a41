//! The store, as zswap uses it: pages of 4 KiB, one object each; a page that does not get shorter is
//! refused, and its folio with it.

use octavo_accel::{Engine, Work};
use octavo_codec::Codec;
use octavo_page::{ChainLength, PAGE_SIZE, SlotId, Unit};
use octavo_pool::Plain;
use octavo_store::{Config, How, PutError, Scratch, Store};

/// Pages of address space that the pool has beside those it fills: zspages of each lane are long.
const SLACK: usize = 1 << 14;

/// The store of one group.
pub(super) struct Zswap {
    store: Store<Plain>,
    codec: Codec,
}

/// What one process needs to put and to get.
pub(super) struct Room<'s> {
    scratch: Scratch<Box<dyn Engine + 's>>,
    /// To look at pages without a device, in no time.
    looks: Scratch,
    cpu: usize,
}

/// Why a folio was not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// There is no run of slots for it.
    Slots,
    /// A page of it does not get shorter.
    DoesNotFit,
}

impl<'s> Room<'s> {
    /// For a process on processor `cpu` with this engine.
    pub(super) fn new(zswap: &Zswap, engine: Box<dyn Engine + 's>, cpu: usize) -> Self {
        Self { scratch: Scratch::with(engine), looks: Scratch::new(&[zswap.codec]), cpu }
    }

    /// Who did the requests so far.
    pub(super) fn take_work(&mut self) -> Work {
        self.scratch.take_work()
    }
}

impl Zswap {
    /// A store for so many pages, and memory for as many that do not get shorter.
    ///
    /// # Panics
    /// When there is no memory for it.
    pub(super) fn new(pages: usize, cpus: usize, codec: Codec) -> Self {
        let arena = Plain::sparse(pages + SLACK).expect("memory for the store");
        let pool = octavo_pool::Config {
            chain: ChainLength::MAX,
            max_object: Unit::MAX.bytes(),
            max_objects: pages,
        };
        // Slots are ample, so that folios find runs as on a device of the series' size.
        let config = Config { capacity_pages: 2 * pages, pool, cpus, seed: 1 };
        let store = Store::new(arena, config).expect("a store of a valid size");
        Self { store, codec }
    }

    /// Stores a folio, compressed by the process's engine.
    ///
    /// # Errors
    /// [`Refused`].
    ///
    /// # Panics
    /// When there is no memory for it.
    pub(super) fn put(&self, room: &mut Room<'_>, folio: &[u8]) -> Result<SlotId, Refused> {
        let how = How {
            codec: self.codec,
            unit: Unit::K4,
            cpu: room.cpu,
            fits_in: PAGE_SIZE - 1,
            refusal_bytes: 0,
        };
        let mut out = [Err(PutError::OutOfSlots)];
        self.store.put(&mut room.scratch, how, &[folio], &mut out);
        out[0].map_err(|error| match error {
            PutError::OutOfSlots => Refused::Slots,
            PutError::DoesNotFit => Refused::DoesNotFit,
            PutError::OutOfFrames | PutError::OutOfObjects => panic!("{error}"),
        })
    }

    /// Reads a page, decompressed by the process's engine.
    ///
    /// # Panics
    /// When it is not there, or damaged.
    pub(super) fn get(&self, room: &mut Room<'_>, slot: SlotId, page: &mut [u8; PAGE_SIZE]) {
        self.store.get(&mut room.scratch, slot, page).expect("a page that was stored");
    }

    /// Reads a page without any engine of the machine.
    ///
    /// # Panics
    /// As [`Zswap::get`].
    pub(super) fn look(&self, room: &mut Room<'_>, slot: SlotId, page: &mut [u8; PAGE_SIZE]) {
        self.store.get(&mut room.looks, slot, page).expect("a page that was stored");
    }

    /// Frees a page.
    pub(super) fn free(&self, slot: SlotId) {
        self.store.free(&[slot]);
    }

    /// Bytes of all objects.
    pub(super) fn compressed_bytes(&self) -> u64 {
        self.store.stats().compressed_bytes as u64
    }

    /// Pages held.
    pub(super) fn pages(&self) -> usize {
        self.store.stats().stored_pages
    }
}
