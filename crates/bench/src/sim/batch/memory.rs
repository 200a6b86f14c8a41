//! A control group's memory: pages of its processes, resident or in zswap, and a limit on both.
//!
//! ```text
//!            fault                     reclaim: the oldest folios, of whomever
//!   absent ────────► resident ───────────────────────────────────► stored
//!      ▲                │  ▲                       refused: on disk     │
//!      └── end of it ───┘  └───────────── touched: one page comes back ─┘
//! ```
//!
//! Resident pages and compressed bytes count against the limit together, as the kernel counts zswap's.
//! Whoever charges pages past it ([`Limit`]) stores the oldest folios for them; a folio touched since it was last looked at goes round once more. A page
//! that comes back is a folio of its own from then on, so what was read back goes out again page by
//! page.
//!
//! Processes take turns ([`super::turns`]), so what they share is borrowed and not locked, and never
//! while a process may wait for its turn.

use super::costs::Page as Costs;
use super::turns::{Nanos, Seat};
use super::zswap::{Refused, Room, Zswap};
use crate::random::Random;
use octavo_accel::{Engine, Work};
use octavo_page::{Order, PAGE_SIZE, SlotId};
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;

/// Pages that the kernel charges at once, and a process past the limit stores for it. In v8's and
/// v9's tables there are 64.0 `zswpout` for each `memcg_high`.
const CHARGE: usize = 64;

/// Pages that a process stores each time when that was not enough (`SWAP_CLUSTER_MAX`).
const RETRY: usize = 32;

/// How far past `memory.high` a group may be before its processes do more than pay for what they
/// charge: a part of the limit. There a delay would be 10 ms (`mem_cgroup_handle_over_high`: the
/// square of the excess in parts of 2^20, over 2^34, in seconds), and the kernel reclaims once more
/// rather than that.
const SLACK: u64 = 80;

/// What happens to who goes past the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Limit {
    /// `memory.high`: it stores as much as it charges, and more when that is not enough.
    High(u64),
    /// `memory.max`: it stores until there is room.
    Max(u64),
}

impl Limit {
    /// What is never exceeded for long.
    const fn hard(self) -> u64 {
        match self {
            Self::High(bytes) => bytes + bytes / SLACK,
            Self::Max(bytes) => bytes,
        }
    }
}

/// Pages that are freed before others go on.
const PIECE: usize = 64;

/// Orders of folios that are counted: 4 KiB to 2 MiB.
const ORDERS: usize = Order::MAX.get() as usize + 1;

/// What lies in the pages of a process.
pub(super) trait Contents: 'static {
    /// Writes the pages from `first` on of memory number `serial`, as the process left them.
    fn write(&self, serial: u32, first: usize, pages: &mut [u8]);
}

/// The kernel's counters, in pages but for those of folios.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counters {
    pub zswpout: u64,
    pub zswpin: u64,
    pub pswpout: u64,
    /// Folios stored whole, by order.
    pub zswpout_folios: [u64; ORDERS],
    /// Folios that no run of slots was found for, by order.
    pub swpout_fallback: [u64; ORDERS],
}

impl Counters {
    fn both(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let folios = |ours: [u64; ORDERS], theirs: [u64; ORDERS]| {
            std::array::from_fn(|order| of(ours[order], theirs[order]))
        };
        Self {
            zswpout: of(self.zswpout, other.zswpout),
            zswpin: of(self.zswpin, other.zswpin),
            pswpout: of(self.pswpout, other.pswpout),
            zswpout_folios: folios(self.zswpout_folios, other.zswpout_folios),
            swpout_fallback: folios(self.swpout_fallback, other.swpout_fallback),
        }
    }

    /// Those of both.
    pub(super) fn plus(self, other: Self) -> Self {
        self.both(other, |ours, theirs| ours + theirs)
    }

    /// What was counted since they were `before`.
    pub(super) fn since(self, before: Self) -> Self {
        self.both(before, |now, before| now - before)
    }

    /// Those of a run that is so many times as large.
    pub(super) fn times(self, scale: f64) -> Self {
        let times = |n: u64| times(n, scale);
        Self {
            zswpout: times(self.zswpout),
            zswpin: times(self.zswpin),
            pswpout: times(self.pswpout),
            zswpout_folios: self.zswpout_folios.map(times),
            swpout_fallback: self.swpout_fallback.map(times),
        }
    }
}

/// A count of a run that is so many times as large.
pub(super) fn times(n: u64, scale: f64) -> u64 {
    (n as f64 * scale).round() as u64
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Absent,
    Resident {
        is_touched: bool,
    },
    /// Somebody is storing it.
    Leaving,
    Stored(SlotId),
    OnDisk,
}

/// The memory of one process, or of one after the other.
#[derive(Default)]
struct Memory {
    serial: u32,
    places: Vec<Place>,
}

/// Pages that go out together.
#[derive(Clone, Copy)]
struct Folio {
    owner: usize,
    serial: u32,
    first: usize,
    order: Order,
}

/// See the module.
pub(super) struct Group<C> {
    pub zswap: Zswap,
    pub costs: Costs,
    contents: C,
    limit: Limit,
    /// Of so many stored pages one is read back and compared before it is freed.
    check_every: usize,
    state: RefCell<State>,
}

struct State {
    resident_pages: u64,
    /// Resident folios, the oldest first, and some that are gone.
    old: VecDeque<Folio>,
    memories: Box<[Memory]>,
}

impl<C: Contents> Group<C> {
    /// A group of so many processes.
    pub(super) fn new(
        zswap: Zswap,
        costs: Costs,
        contents: C,
        limit: Limit,
        processes: usize,
        check_every: usize,
    ) -> Self {
        let memories = (0..processes).map(|_| Memory::default()).collect();
        let old = VecDeque::new();
        let state = State { resident_pages: 0, old, memories };
        Self { zswap, costs, contents, limit, check_every, state: RefCell::new(state) }
    }

    /// How many processes it has.
    pub(super) fn processes(&self) -> usize {
        self.state().memories.len()
    }

    fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Bytes that count against the limit.
    fn used(&self) -> u64 {
        self.state().resident_pages * PAGE_SIZE as u64 + self.zswap.compressed_bytes()
    }
}

impl State {
    /// Takes the oldest folios off the list, at least so many pages if there are as many.
    fn take_old(&mut self, least: usize) -> Vec<Folio> {
        let (mut taken, mut pages) = (Vec::new(), 0);
        let mut looks = self.old.len();
        while pages < least && looks > 0 {
            let Some(folio) = self.old.pop_front() else { break };
            looks -= 1;
            let memory = &mut self.memories[folio.owner];
            if memory.serial != folio.serial {
                continue;
            }
            let places = &mut memory.places[folio.first..][..folio.order.pages()];
            if places.iter().any(|place| !matches!(place, Place::Resident { .. })) {
                continue;
            }
            if places.contains(&Place::Resident { is_touched: true }) {
                places.fill(Place::Resident { is_touched: false });
                self.old.push_back(folio);
                continue;
            }
            places.fill(Place::Leaving);
            pages += places.len();
            taken.push(folio);
        }
        taken
    }

    fn places(&mut self, folio: Folio) -> &mut [Place] {
        &mut self.memories[folio.owner].places[folio.first..][..folio.order.pages()]
    }
}

/// A process of a group.
pub(super) struct Process<'s, C> {
    group: Rc<Group<C>>,
    pub seat: &'s Seat<'s>,
    room: Room<'s>,
    id: usize,
    /// A folio's bytes.
    bytes: Vec<u8>,
    /// Pages that it was charged for and has not paid.
    charged: usize,
    counters: Counters,
    checked: u64,
    random: Random,
}

/// Time for so many pages.
fn of_pages(ns: f64, pages: usize) -> Nanos {
    (ns * pages as f64) as Nanos
}

impl<'s, C: Contents> Process<'s, C> {
    /// Process `id` on processor `cpu`.
    pub(super) fn new(
        group: Rc<Group<C>>,
        seat: &'s Seat<'s>,
        engine: Box<dyn Engine + 's>,
        id: usize,
        cpu: usize,
    ) -> Self {
        let room = Room::new(&group.zswap, engine, cpu);
        let random = Random::new(id as u64);
        Self {
            group,
            seat,
            room,
            id,
            bytes: Vec::new(),
            charged: 0,
            counters: Counters::default(),
            checked: 0,
            random,
        }
    }

    /// Begins a new, empty memory of so many pages.
    pub(super) fn begin(&mut self, pages: usize) {
        let memory = &mut self.group.state().memories[self.id];
        memory.serial += 1;
        memory.places.clear();
        memory.places.resize(pages, Place::Absent);
    }

    /// Its number in the group.
    pub(super) fn id(&self) -> usize {
        self.id
    }

    /// What it has stored and loaded so far.
    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// Who did its compressions and decompressions since this was last asked.
    pub(super) fn take_work(&mut self) -> Work {
        self.room.take_work()
    }

    /// Pages read back and compared.
    pub(super) fn checked(&self) -> u64 {
        self.checked
    }

    /// Gets a folio of zeroed pages.
    pub(super) fn fault(&mut self, first: usize, order: Order) {
        self.seat.spend(of_pages(self.group.costs.fault, order.pages()));
        self.charge(first, order);
        self.reclaim();
    }

    fn charge(&mut self, first: usize, order: Order) {
        self.seat.meet();
        let mut state = self.group.state();
        let folio = Folio { owner: self.id, serial: state.memories[self.id].serial, first, order };
        state.places(folio).fill(Place::Resident { is_touched: false });
        state.resident_pages += order.pages() as u64;
        state.old.push_back(folio);
        drop(state);
        self.charged += order.pages();
    }

    /// Stores what the limit asks of who charges.
    fn reclaim(&mut self) {
        let Group { limit, .. } = *self.group;
        if let Limit::High(high) = limit {
            if self.charged < CHARGE {
                return;
            }
            let charged = std::mem::take(&mut self.charged);
            if self.group.used() > high {
                self.store_old(charged);
            }
        }
        while self.group.used() > limit.hard() && self.store_old(RETRY) {}
    }

    /// Stores the oldest folios, so many pages; false when there is none.
    fn store_old(&mut self, pages: usize) -> bool {
        let old = self.group.state().take_old(pages);
        old.iter().for_each(|folio| self.store(*folio));
        !old.is_empty()
    }

    fn store(&mut self, folio: Folio) {
        let pages = folio.order.pages();
        let Costs { store, store_folio, .. } = self.group.costs;
        // Half to one and a half times as long: processes that all took the same would fall into step,
        // and those that look when others are done would store less than their share to the end.
        let by_chance = 0.5 + self.random.unit();
        self.seat.spend(of_pages(by_chance * (store + store_folio / pages as f64), pages));
        self.bytes.resize(pages * PAGE_SIZE, 0);
        self.group.contents.write(folio.serial, folio.first, &mut self.bytes);
        let put = self.group.zswap.put(&mut self.room, &self.bytes);
        self.seat.meet();
        let mut state = self.group.state();
        match put {
            Ok(slot) => {
                self.counters.zswpout += pages as u64;
                self.counters.zswpout_folios[usize::from(folio.order.get())] += 1;
                for (n, place) in (0..).zip(state.places(folio)) {
                    *place = Place::Stored(slot.offset(n));
                }
            }
            Err(Refused::Slots) if pages > 1 => {
                self.counters.swpout_fallback[usize::from(folio.order.get())] += 1;
                drop(state);
                let page = |n| Folio { first: folio.first + n, order: Order::PAGE, ..folio };
                (0..pages).for_each(|n| self.store(page(n)));
                return;
            }
            Err(Refused::Slots | Refused::DoesNotFit) => {
                self.counters.pswpout += pages as u64;
                state.places(folio).fill(Place::OnDisk);
            }
        }
        state.resident_pages -= pages as u64;
    }

    /// Uses a page that was faulted in before.
    pub(super) fn touch(&mut self, page: usize) {
        self.seat.meet();
        let mut state = self.group.state();
        let memory = &mut state.memories[self.id];
        let (place, serial) = (&mut memory.places[page], memory.serial);
        match *place {
            Place::Absent => unreachable!("a page that was never there"),
            Place::Resident { .. } => *place = Place::Resident { is_touched: true },
            // It is found on its way out, and goes out all the same.
            Place::Leaving => {}
            Place::OnDisk => {
                drop(state);
                self.seat.spend(of_pages(self.group.costs.load, 1));
                self.back(page);
            }
            Place::Stored(slot) => {
                drop(state);
                self.load(serial, page, slot);
            }
        }
    }

    fn load(&mut self, serial: u32, page: usize, slot: SlotId) {
        self.seat.spend(of_pages(self.group.costs.load, 1));
        let mut bytes = [0; PAGE_SIZE];
        self.group.zswap.get(&mut self.room, slot, &mut bytes);
        self.compare(serial, page, &bytes);
        self.group.zswap.free(slot);
        self.counters.zswpin += 1;
        self.back(page);
    }

    fn back(&mut self, page: usize) {
        self.charge(page, Order::PAGE);
        self.reclaim();
    }

    fn compare(&mut self, serial: u32, page: usize, bytes: &[u8; PAGE_SIZE]) {
        let mut was = [0; PAGE_SIZE];
        self.group.contents.write(serial, page, &mut was);
        assert!(was == *bytes, "page {page} of memory {serial} came back changed");
        self.checked += 1;
    }

    /// Frees everything.
    pub(super) fn end(&mut self) {
        let pages = self.group.state().memories[self.id].places.len();
        let mut page = 0;
        while page < pages {
            self.seat.meet();
            let mut state = self.group.state();
            let memory = &mut state.memories[self.id];
            let serial = memory.serial;
            let piece = &mut memory.places[page..pages.min(page + PIECE)];
            if piece.contains(&Place::Leaving) {
                drop(state);
                self.seat.sleep(1_000);
                continue;
            }
            let places = piece.to_vec();
            piece.fill(Place::Absent);
            let is_resident = |place: &&Place| matches!(place, Place::Resident { .. });
            let resident = places.iter().filter(is_resident).count();
            state.resident_pages -= resident as u64;
            drop(state);
            self.seat.spend(of_pages(self.group.costs.zap, resident));
            self.free(serial, page, &places);
            page += places.len();
        }
    }

    /// Frees what is stored of these pages.
    fn free(&mut self, serial: u32, first: usize, places: &[Place]) {
        let mut stored = 0;
        for (page, place) in (first..).zip(places) {
            let Place::Stored(slot) = *place else { continue };
            if page.is_multiple_of(self.group.check_every) {
                let mut bytes = [0; PAGE_SIZE];
                self.group.zswap.look(&mut self.room, slot, &mut bytes);
                self.compare(serial, page, &bytes);
            }
            self.group.zswap.free(slot);
            stored += 1;
        }
        self.seat.spend(of_pages(self.group.costs.free, stored));
    }
}
