//! What the tests put under a backing and around it: a disk in memory that fails as told, owners that
//! know every object, a clock that is set by hand, numbers that look random.
#![allow(dead_code)] // Each test uses its part.

use octavo_backing::device::{Tag, Transfer};
use octavo_backing::{
    Backing, Config, Device, Geometry, Member, Object, Owner, Owners, Place, Reader, Ways,
    WriteError,
};
use octavo_crypt::{Crypt, Format, Key};
use octavo_mempool::Page;
use octavo_sys::Errno;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Small, so that a test fills and cleans many segments: 64 KiB in chunks of 16.
pub fn small() -> Geometry {
    Geometry::new(64 << 10, 16 << 10).expect("powers of two")
}

pub const SECTOR: usize = 4096;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1) };
}

/// The time of the calling thread.
pub fn clock() -> u64 {
    NOW.get()
}

/// Has so many seconds pass.
pub fn pass(seconds: u64) {
    NOW.set(NOW.get() + seconds * 1_000_000_000);
}

/// Numbers that look random.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A call of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Write,
    Read,
    Punch,
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mishap {
    /// It fails, and nothing happened.
    Fail(Errno),
    /// It fails, and the first so many sectors, and half of the next, were written.
    Torn(usize, Errno),
    /// So many bytes are transferred.
    Short(usize),
    /// A bit of what is read is another.
    Flip(u64),
    /// What is read is zeros, as behind a write that was lost.
    Zeros,
}

pub type Fate = Box<dyn FnMut(Call, u64) -> Option<Mishap> + Send>;

struct Begun {
    tag: Tag,
    offset: usize,
    bytes: Vec<u8>,
    mishap: Option<Mishap>,
}

struct State {
    bytes: Vec<u8>,
    begun: Vec<Begun>,
    order: Random,
    fate: Fate,
    calls: u64,
}

/// A disk in memory. Writes are done when they are reaped, in any order.
#[derive(Clone)]
pub struct Disk {
    state: Arc<Mutex<State>>,
    len: u64,
}

impl Disk {
    pub fn new(len: usize, seed: u64) -> Self {
        let fate: Fate = Box::new(|_, _| None);
        let order = Random(seed);
        let bytes = vec![0; len];
        let state = State { bytes, begun: Vec::new(), order, fate, calls: 0 };
        Self { state: Arc::new(Mutex::new(state)), len: len as u64 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it has the disk")
    }

    /// From now on calls, which are counted from here, have this fate.
    pub fn set_fate(&self, fate: impl FnMut(Call, u64) -> Option<Mishap> + Send + 'static) {
        let mut state = self.state();
        (state.fate, state.calls) = (Box::new(fate), 0);
    }

    /// Calls since the fate was set.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Changes what is on the disk behind everybody's back.
    pub fn tamper(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.state().bytes);
    }
}

impl State {
    fn mishap(&mut self, call: Call) -> Option<Mishap> {
        self.calls += 1;
        (self.fate)(call, self.calls - 1)
    }

    fn finish(&mut self, begun: Begun) -> (Tag, Transfer) {
        let Begun { tag, offset, bytes, mishap } = begun;
        let (written, outcome) = match mishap {
            None | Some(Mishap::Flip(_) | Mishap::Zeros) => (bytes.len(), Ok(bytes.len())),
            Some(Mishap::Fail(why)) => (0, Err(why)),
            Some(Mishap::Torn(sectors, why)) => (sectors * SECTOR + SECTOR / 2, Err(why)),
            Some(Mishap::Short(len)) => (len.min(bytes.len()), Ok(len.min(bytes.len()))),
        };
        let written = written.min(bytes.len());
        self.bytes[offset..offset + written].copy_from_slice(&bytes[..written]);
        (tag, outcome)
    }
}

impl Device for Disk {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn adopt(&self, _memory: Range<usize>) {}

    fn write(&self, tag: Tag, offset: u64, pages: &[Option<Page>]) {
        let bytes: Vec<u8> =
            pages.iter().flat_map(|page| *page.as_ref().expect("a page").bytes()).collect();
        assert!(!bytes.is_empty() && offset + bytes.len() as u64 <= self.len, "a write outside");
        let mut state = self.state();
        let offset = offset as usize;
        let meets = |other: &Begun| {
            other.tag == tag
                || offset < other.offset + other.bytes.len() && other.offset < offset + bytes.len()
        };
        assert!(!state.begun.iter().any(meets), "a write that meets another");
        let mishap = state.mishap(Call::Write);
        state.begun.push(Begun { tag, offset, bytes, mishap });
    }

    fn reap(&self, wait: bool) -> Option<(Tag, Transfer)> {
        let mut state = self.state();
        if state.begun.is_empty() || !wait && state.order.one_in(2) {
            return None;
        }
        let count = state.begun.len() as u64;
        let n = state.order.below(count) as usize;
        let begun = state.begun.swap_remove(n);
        Some(state.finish(begun))
    }

    fn read(&self, offset: u64, pages: &mut [Option<Page>]) -> Transfer {
        let mut state = self.state();
        let mishap = state.mishap(Call::Read);
        let mut at = offset as usize;
        let mut room = match mishap {
            Some(Mishap::Fail(why) | Mishap::Torn(_, why)) => return Err(why),
            Some(Mishap::Short(len)) => len.min(pages.len() * SECTOR),
            _ => pages.len() * SECTOR,
        };
        room = room.min(state.bytes.len().saturating_sub(at));
        for page in pages.iter_mut().flatten() {
            let now = SECTOR.min(room - (at - offset as usize));
            page.bytes_mut()[..now].copy_from_slice(&state.bytes[at..at + now]);
            match mishap {
                Some(Mishap::Flip(bit)) => {
                    page.bytes_mut()[(bit / 8) as usize % SECTOR] ^= 1 << (bit % 8)
                }
                Some(Mishap::Zeros) => page.bytes_mut().fill(0),
                _ => {}
            }
            at += now;
        }
        Ok(room)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let mut state = self.state();
        if let Some(Mishap::Fail(why) | Mishap::Torn(_, why)) = state.mishap(Call::Punch) {
            return Err(why);
        }
        state.bytes[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    fn ways(&self) -> Ways {
        Ways { direct: true, ring: false, registered: false, holes: true }
    }
}

pub fn crypt() -> Crypt {
    Crypt::new(Key::ephemeral().expect("a key"), Format::PAGES).expect("locked memory")
}

pub fn member<D>(device: D, priority: i32) -> Member<D> {
    Member { device, crypt: crypt(), priority }
}

pub fn config(geometry: Geometry) -> Config {
    Config { geometry, buffers: 8, readers: 2, clock }
}

/// The bytes of a version of an owner's object.
pub fn object(owner: u64, version: u64, len: usize) -> Vec<u8> {
    let mut random = Random(owner << 20 ^ version);
    let mut bytes = vec![0; len];
    for chunk in bytes.chunks_mut(64) {
        let word = random.next().to_le_bytes();
        chunk.chunks_mut(8).for_each(|part| part.copy_from_slice(&word[..part.len()]));
    }
    bytes
}

/// What an owner has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    pub place: Place,
    pub version: u64,
}

/// Owners that know where each object is, and what is in it.
#[derive(Default)]
pub struct Model(Mutex<BTreeMap<u64, Known>>);

impl Owners for Model {
    fn lives(&self, owner: Owner, place: Place) -> bool {
        self.known().get(&owner.get()).is_some_and(|known| known.place == place)
    }

    fn moved(&self, owner: Owner, from: Place, to: Place) -> bool {
        let mut known = self.known();
        match known.get_mut(&owner.get()) {
            Some(known) if known.place == from => {
                known.place = to;
                true
            }
            _ => false,
        }
    }
}

impl Model {
    pub fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.0.lock().expect("no test panics while it has the model")
    }

    pub fn get(&self, owner: u64) -> Option<Known> {
        self.known().get(&owner).copied()
    }

    /// Bytes of everything that lives.
    pub fn bytes(&self) -> u64 {
        self.known().values().map(|known| known.place.len() as u64).sum()
    }

    /// Writes a new version of each owner's object, and frees what it had before.
    pub fn write<D: Device>(
        &self,
        backing: &Backing<D>,
        batch: &[(u64, u64, usize)],
    ) -> Vec<Result<Place, WriteError>> {
        let bytes: Vec<_> =
            batch.iter().map(|(owner, version, len)| object(*owner, *version, *len)).collect();
        let objects: Vec<_> = batch
            .iter()
            .zip(&bytes)
            .map(|((owner, ..), bytes)| Object { owner: Owner::new(*owner).expect("small"), bytes })
            .collect();
        let mut places = vec![Err(WriteError::NoRoom); batch.len()];
        backing.write(&objects, &mut places);
        for ((owner, version, _), place) in batch.iter().zip(&places) {
            if let Ok(place) = *place {
                let before = self.known().insert(*owner, Known { place, version: *version });
                before.into_iter().for_each(|before| backing.free(&[before.place]));
            }
        }
        places
    }

    pub fn free<D: Device>(&self, backing: &Backing<D>, owner: u64) {
        let known = self.known().remove(&owner);
        known.into_iter().for_each(|known| backing.free(&[known.place]));
    }

    /// Reads an owner's object: whether it is what it was, or why it is not there.
    pub fn read<D: Device>(
        &self,
        backing: &Backing<D>,
        reader: &mut Reader,
        owner: u64,
    ) -> Result<(), octavo_backing::ReadError> {
        let known = self.get(owner).expect("an owner that has something");
        let owner_id = Owner::new(owner).expect("small");
        let found = backing.read(reader, self, owner_id, known.place)?;
        let right = object(owner, known.version, known.place.len());
        assert!(found.bytes() == right, "owner {owner} got other bytes");
        Ok(())
    }
}
