//! Reading: the sectors of an object, what lies around it, and what is likely to come next.
//!
//! ```text
//!   sectors      │▪▪▪▪▪▪▪▪│▪▪▪▪▪▪▪▪│▪▪▪▪▪▪▪▪│▪▪▪▪▪▪▪▪│
//!   records      ─┼───┼───┼────┼═════════┼──┼───┼────┼─
//!                     └ neighbours ┘  wanted └ neighbours ┘
//!                 └──────── one transfer ────────┘└ read ahead, when reads go on in order ┘
//! ```
//! A reader keeps what it read lately, decrypted: its *windows*, a large one and several small ones. What is
//! in one is not read again. It is verified at each time anew, and a window whose segment was opened again
//! since is not looked at.
//!
//! Who goes on in order goes on where some window ends, and has farther and farther read ahead into that
//! window. So several readers in order do not disturb each other, as when objects of several kinds, each with
//! pages of its own, are gone through in the order in which they were made. One of them at a time has the large
//! window.
//!
//! Objects that were written together were cold together, and often are wanted together. Whether that is so
//! is found by trial: one jump in sixteen reads its group of sectors whole, and all do as long as what
//! was read around objects is wanted often enough to pay for it.
//!
//! A read is one system call that waits: with a ring it would be one as well, and readers would share it.

use crate::Backing;
use crate::device::Device;
use crate::errors::{Fault, Lost, ReadError};
use crate::geometry::{Geometry, SECTOR, sectors_of};
use crate::place::{Owner, Place, Segment};
use crate::record::{Binding, Record, View};
use crate::{Owners, record};
use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use octavo_mempool::{Page, Wait};
use octavo_sys::Errno;

/// Sectors of the window that is read ahead.
const MOST_AHEAD: usize = 32;

/// Sectors that are read ahead when reads go on in order, at first.
const FIRST_AHEAD: usize = 4;

/// The windows: the first is the large one, for who was long read ahead for, and for what is too long for the
/// others.
const WINDOWS: usize = 9;
const LARGE: usize = 0;

/// Reads after which nobody goes on with the large window.
const LEFT_AFTER: u64 = 64;

/// Sectors of a small window: room for a record over the end of a group.
const SMALL_SECTORS: usize = GROUP + 2;

/// Sectors that are read together, at a multiple of as many. To ask a disk for one is most of what eight cost.
const GROUP: usize = 8;

/// How often a read is begun again that was cut short or interrupted.
const TRIES: usize = 16;

/// Sectors of a segment that are read in one piece, at most.
pub(crate) const fn window_sectors(geometry: &Geometry) -> usize {
    let most = if geometry.segment_sectors() < MOST_AHEAD {
        geometry.segment_sectors()
    } else {
        MOST_AHEAD
    };
    if most > geometry.record_sectors() { most } else { geometry.record_sectors() }
}

/// What one thread reads with, of any backing: 448 KiB, of which only what is read into is touched.
pub struct Reader {
    windows: [Window; WINDOWS],
    /// Reads so far.
    clock: u64,
    around: Around,
}

/// Sectors of a segment, as it was opened then, in a reader's memory.
struct Window {
    plain: Box<[u8]>,
    held: Option<Held>,
    /// When it was used last.
    used: u64,
}

/// What a window has.
struct Held {
    segment: Segment,
    binding: Binding,
    sectors: Range<usize>,
    /// How many were read ahead, for who goes on in order.
    ahead: usize,
    /// Those that were wanted when it was read; others were since.
    asked: Range<usize>,
    helped: bool,
}

/// What is to be read, and into which window.
struct Plan {
    sectors: Range<usize>,
    ahead: usize,
    window: usize,
}

/// Whether it pays to read what lies around objects.
#[derive(Default)]
struct Around {
    score: i32,
    jumps: u32,
}

impl Around {
    /// One jump in so many is a trial.
    const TRIAL: u32 = 16;
    /// What a window that helped is worth, and one that did not costs: a transfer saved against one that takes
    /// a quarter longer.
    const GAIN: i32 = 3;
    const LOSS: i32 = 1;
    const MOST: i32 = 16;

    fn is_wanted(&mut self) -> bool {
        self.jumps = self.jumps.wrapping_add(1);
        self.score > 0 || self.jumps.is_multiple_of(Self::TRIAL)
    }

    fn note(&mut self, has_helped: bool) {
        let change = if has_helped { Self::GAIN } else { -Self::LOSS };
        self.score = (self.score + change).clamp(-Self::MOST, Self::MOST);
    }
}

impl Held {
    /// Whether it was read for what lies around an object.
    fn is_group(&self) -> bool {
        self.ahead == 0 && self.sectors != self.asked
    }
}

impl Window {
    fn new(sectors: usize) -> Self {
        Self { plain: alloc::vec![0; sectors * SECTOR].into(), held: None, used: 0 }
    }

    /// What is in it of a segment as it is opened now.
    fn of(&self, segment: Segment, binding: Binding) -> Option<&Held> {
        let is_it =
            |held: &&Held| held.segment == segment && held.binding.sequence == binding.sequence;
        self.held.as_ref().filter(is_it)
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self {
            windows: core::array::from_fn(|n| {
                Window::new(if n == LARGE { MOST_AHEAD } else { SMALL_SECTORS })
            }),
            clock: 0,
            around: Around::default(),
        }
    }
}

impl Reader {
    /// Forgets what was read: in a forked child that was of another backing.
    pub fn forget(&mut self) {
        self.windows.iter_mut().for_each(|window| window.held = None);
    }

    /// The number of the window that has these sectors of a segment as it is opened now.
    fn holder(
        &mut self,
        segment: Segment,
        binding: Binding,
        sectors: &Range<usize>,
    ) -> Option<usize> {
        self.clock += 1;
        self.windows.iter_mut().enumerate().find_map(|(n, window)| {
            let held = window.of(segment, binding)?;
            let has = held.sectors.start <= sectors.start && sectors.end <= held.sectors.end;
            if !has {
                return None;
            }
            let was_asked = held.asked.start <= sectors.start && sectors.end <= held.asked.end;
            window.held.as_mut()?.helped |= !was_asked;
            window.used = self.clock;
            Some(n)
        })
    }

    /// The number of the small window that was longest not used, and is to have other sectors now.
    fn oldest(&mut self) -> usize {
        let small = self.windows.iter().enumerate().skip(LARGE + 1);
        let oldest = small.min_by_key(|(_, window)| window.used).map_or(LARGE, |(n, _)| n);
        let before = self.windows[oldest].held.take();
        if let Some(before) = before.filter(|before| before.is_group()) {
            self.around.note(before.helped);
        }
        oldest
    }

    /// The window that was read up to these sectors of a segment of `all`, or up to the end of a segment when
    /// they begin one; and how far was read ahead there.
    fn before(
        &self,
        segment: Segment,
        binding: Binding,
        sectors: &Range<usize>,
        all: usize,
    ) -> Option<(usize, usize)> {
        self.windows.iter().enumerate().find_map(|(n, window)| {
            let held = window.held.as_ref()?;
            let ends_there = (held.sectors.end - 1..=held.sectors.end).contains(&sectors.start);
            let goes_on = ends_there && window.of(segment, binding).is_some();
            let turns = sectors.start == 0 && held.sectors.end == all;
            (goes_on || turns).then_some((n, held.ahead))
        })
    }

    /// Where `sectors` of them are to go for who has window `number` so far.
    fn window_for(&self, number: usize, sectors: usize) -> usize {
        let is_left = self.windows[LARGE].used + LEFT_AFTER < self.clock;
        if sectors > SMALL_SECTORS && is_left { LARGE } else { number }
    }

    /// What to read where `wanted` is, of a segment of `all` sectors.
    fn plan(
        &mut self,
        segment: Segment,
        binding: Binding,
        wanted: &Range<usize>,
        all: usize,
    ) -> Plan {
        let before = self.before(segment, binding, wanted, all);
        let ahead = before.map_or(0, |(_, ahead)| (ahead * 2).clamp(FIRST_AHEAD, MOST_AHEAD));
        let is_long = wanted.len() > SMALL_SECTORS;
        if let Some(number) = if is_long { Some(LARGE) } else { before.map(|(number, _)| number) } {
            let window = self.window_for(number, wanted.len() + ahead);
            let room = self.windows[window].plain.len() / SECTOR;
            let end = (wanted.end + ahead).min(all).min(wanted.start + room);
            return Plan { sectors: wanted.start..end.max(wanted.end), ahead, window };
        }
        let mut sectors = wanted.clone();
        if self.around.is_wanted() {
            let group = wanted.start / GROUP * GROUP;
            sectors.end = wanted.end.max(group + GROUP).min(all);
            sectors.start = group.max(sectors.end.saturating_sub(SMALL_SECTORS));
        }
        Plan { sectors, ahead: 0, window: self.oldest() }
    }
}

/// An object that was read.
pub struct Found<'r> {
    view: View<'r>,
    record: Record,
}

impl<'r> Found<'r> {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &'r [u8] {
        &self.view.bytes[self.record.object.clone()]
    }
}

impl<D: Device> Backing<D> {
    /// Reads the object of `owner` at `place`.
    ///
    /// # Errors
    /// [`ReadError::Gone`] when `owners` say that it is not there any more, [`ReadError::Lost`] when they say it
    /// is: then this object is lost, and no other.
    ///
    /// # Panics
    /// When the place is none of this backing.
    pub fn read<'r>(
        &self,
        reader: &'r mut Reader,
        owners: &impl Owners,
        owner: Owner,
        place: Place,
    ) -> Result<Found<'r>, ReadError> {
        let (segment, at) = self.locate(place);
        let sectors = sectors_of(&(at..at + record::bytes(place.len())));
        // A segment may be emptied and filled again while it is read. What lives does not vanish, so
        // two looks that were both too late are as good as impossible.
        let mut why = Fault::Damaged;
        for _ in 0..3 {
            let binding = self.binding(segment);
            let number = match reader.holder(segment, binding, &sectors) {
                Some(number) => {
                    self.counters.window_reads.fetch_add(1, Relaxed);
                    Ok(number)
                }
                None => self.load(reader, segment, binding, &sectors),
            };
            match number {
                Ok(number) => {
                    let is_it = |record: &Record| record.owner == owner && record.place == place;
                    let record = self.find(&reader.windows[number], at).filter(is_it);
                    if let Some(record) = record {
                        let view = self.view(&reader.windows[number]).expect("it was found there");
                        return Ok(Found { view, record });
                    }
                }
                Err(fault) => why = fault,
            }
            // The window may be of a time when this was not there yet.
            reader.forget();
            if !owners.lives(owner, place) {
                return Err(ReadError::Gone);
            }
        }
        self.counters.lost_reads.fetch_add(1, Relaxed);
        let offset = self.cipher(segment).base + at as u64;
        Err(ReadError::Lost(Lost { device: self.device_of(segment), offset, why }))
    }

    /// The record at byte `at` of the segment that a window is of, if it is there.
    fn find(&self, window: &Window, at: usize) -> Option<Record> {
        let held = window.held.as_ref()?;
        self.view(window)?.record(at.checked_sub(held.sectors.start * SECTOR)?)
    }

    /// What is in a window.
    fn view<'r>(&self, window: &'r Window) -> Option<View<'r>> {
        let Held { segment, binding, sectors, .. } = window.held.as_ref()?;
        Some(View {
            bytes: &window.plain[..sectors.len() * SECTOR],
            start: self.geometry.address(*segment, sectors.start * SECTOR),
            binding: *binding,
            max_object: self.geometry.max_object(),
        })
    }

    /// Has a window be these sectors of a segment, and what is read with them; the number of the window.
    fn load(
        &self,
        reader: &mut Reader,
        segment: Segment,
        binding: Binding,
        wanted: &Range<usize>,
    ) -> Result<usize, Fault> {
        let all = self.geometry.segment_sectors();
        let Plan { mut sectors, ahead, window: number } =
            reader.plan(segment, binding, wanted, all);
        let window = &mut reader.windows[number];
        window.held = None;
        if let Err(fault) = self.fetch(segment, sectors.clone(), &mut window.plain) {
            if sectors == *wanted {
                return Err(fault);
            }
            sectors = wanted.clone();
            self.fetch(segment, sectors.clone(), &mut window.plain)?;
        }
        let asked = wanted.clone();
        let held = Held { segment, binding, sectors, ahead, asked, helped: false };
        (window.held, window.used) = (Some(held), reader.clock);
        Ok(number)
    }

    /// Has the large window be sectors of a segment of which some may be lost: those are zeros.
    pub(crate) fn load_what_is_left<'r>(
        &self,
        reader: &'r mut Reader,
        segment: Segment,
        binding: Binding,
        from: usize,
        end: usize,
    ) -> View<'r> {
        let Window { plain, held, .. } = &mut reader.windows[LARGE];
        let sectors = from..end.min(from + plain.len() / SECTOR);
        *held = None;
        if self.fetch(segment, sectors.clone(), plain).is_err() {
            for (n, plain) in sectors.clone().zip(plain.chunks_exact_mut(SECTOR)) {
                if self.fetch(segment, n..n + 1, plain).is_err() {
                    plain.fill(0);
                }
            }
        }
        let start = self.geometry.address(segment, sectors.start * SECTOR);
        let bytes = &plain[..sectors.len() * SECTOR];
        View { bytes, start, binding, max_object: self.geometry.max_object() }
    }

    /// Reads sectors of a segment from where they are, chunk by chunk in memory or on the device.
    fn fetch(&self, segment: Segment, sectors: Range<usize>, out: &mut [u8]) -> Result<(), Fault> {
        let cipher = self.cipher(segment);
        let pages = self.geometry.chunk_pages();
        let end_of_chunk = |at: usize| ((at / pages + 1) * pages).min(sectors.end);
        let mut at = sectors.start;
        while at < sectors.end {
            let mut end = end_of_chunk(at);
            let place = (at - sectors.start) * SECTOR;
            let room = &mut out[place..(end - sectors.start) * SECTOR];
            if !self.buffers.read(segment, at..end, cipher, room) {
                while end < sectors.end
                    && !self.buffers.has(self.geometry.chunk_of(segment, end * SECTOR))
                {
                    end = end_of_chunk(end);
                }
                let room = &mut out[place..(end - sectors.start) * SECTOR];
                self.fetch_from_device(segment, at..end, room)?;
            }
            at = end;
        }
        Ok(())
    }

    fn fetch_from_device(
        &self,
        segment: Segment,
        sectors: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        self.counters.device_read(out.len());
        let cipher = self.cipher(segment);
        let mut places = [const { None }; MOST_AHEAD];
        let pages = &mut places[..sectors.len()];
        self.reads.alloc_bulk(pages, Wait::Yes);
        let offset = cipher.base + (sectors.start * SECTOR) as u64;
        let outcome = read_all(&self.member(segment).device, offset, pages);
        if outcome.is_ok() {
            cipher.decrypt(sectors.start, pages, out);
        }
        self.reads.free_bulk(pages);
        outcome
    }

    /// Where a place is.
    pub(crate) fn locate(&self, place: Place) -> (Segment, usize) {
        let (segment, at) = self.geometry.locate(place.at());
        let is_inside = segment.index() < self.table.segments()
            && at + record::bytes(place.len()) <= self.geometry.segment_bytes();
        assert!(is_inside, "{place} is no place of this backing");
        (segment, at)
    }
}

/// Reads all of `pages`, however short the reads are.
fn read_all(device: &impl Device, offset: u64, pages: &mut [Option<Page>]) -> Result<(), Fault> {
    let (mut done, mut tries) = (0, 0);
    while done < pages.len() {
        let outcome = device.read(offset + (done * SECTOR) as u64, &mut pages[done..]);
        match outcome {
            Ok(0) => return Err(Fault::CutOff),
            Ok(bytes) if bytes >= SECTOR => (done, tries) = (done + bytes / SECTOR, 0),
            Ok(_) | Err(Errno::EINTR | Errno::EAGAIN) if tries < TRIES => tries += 1,
            Ok(_) => return Err(Fault::CutOff),
            Err(why) => return Err(Fault::Unreadable(why)),
        }
    }
    Ok(())
}
