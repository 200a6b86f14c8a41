//! Reading: the sectors of an object, what else is in them, and what is likely to come next.
//!
//! ```text
//!   sectors      │▪▪▪▪▪▪▪▪│▪▪▪▪▪▪▪▪│▪▪▪▪▪▪▪▪│▪▪▪▪▪▪▪▪│
//!   records      ─┼───┼───┼────┼═════════┼──┼───┼────┼─
//!                     └ neighbours ┘  wanted └ neighbours ┘
//!                 └──────── one transfer ────────┘└ read ahead, when reads go on in order ┘
//! ```
//! A reader keeps what it read last, decrypted: its *window*. What is there is not read again, and
//! every object that lies in it whole is the caller's for the asking. It is verified at each time anew, and
//! a window whose segment was opened again since is not looked at.
//!
//! A read is one system call that waits: with a ring it would be one as well, and readers would share it.

use crate::Backing;
use crate::device::Device;
use crate::errors::{Fault, Lost, ReadError};
use crate::geometry::{Geometry, SECTOR, sectors_of};
use crate::place::{GRANULE, Owner, Place, Segment};
use crate::record::{Binding, Chain, Record, View};
use crate::{Owners, record};
use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use octavo_mempool::{Page, Wait};
use octavo_sys::Errno;

/// Sectors of a window that is read ahead.
const MOST_AHEAD: usize = 32;

/// Sectors that are read ahead when reads go on in order, at first.
const FIRST_AHEAD: usize = 4;

/// How often a read is begun again that was cut short or interrupted.
const TRIES: usize = 16;

/// Sectors that a reader has room for.
pub(crate) const fn window_sectors(geometry: &Geometry) -> usize {
    let most = if geometry.segment_sectors() < MOST_AHEAD {
        geometry.segment_sectors()
    } else {
        MOST_AHEAD
    };
    if most > geometry.record_sectors() { most } else { geometry.record_sectors() }
}

/// What one thread reads with.
pub struct Reader {
    plain: Box<[u8]>,
    window: Option<Window>,
    /// Sectors that were read ahead the last time.
    ahead: usize,
}

/// What is in a reader's memory: sectors of a segment, as it was opened then.
#[derive(Clone)]
struct Window {
    segment: Segment,
    binding: Binding,
    sectors: Range<usize>,
}

impl Reader {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let room = alloc::vec![0; window_sectors(geometry) * SECTOR];
        Self { plain: room.into(), window: None, ahead: 0 }
    }

    /// Forgets what was read: in a forked child that was of another backing.
    pub fn forget(&mut self) {
        (self.window, self.ahead) = (None, 0);
    }

    fn sectors(&self) -> usize {
        self.plain.len() / SECTOR
    }

    /// Whether these bytes of a segment are in the window.
    fn holds(&self, segment: Segment, binding: Binding, bytes: &Range<usize>) -> bool {
        let sectors = sectors_of(bytes);
        self.window.as_ref().is_some_and(|window| {
            window.segment == segment
                && window.binding.sequence == binding.sequence
                && window.sectors.start <= sectors.start
                && sectors.end <= window.sectors.end
        })
    }

    /// How far to read beyond sectors of a segment of `all`: farther each time that they follow the window, or
    /// begin a segment after it came to the end of one.
    fn look_ahead(&mut self, segment: Segment, sectors: &Range<usize>, all: usize) -> usize {
        let follows = self.window.as_ref().is_some_and(|window| {
            let end = window.sectors.end;
            let goes_on = window.segment == segment && (end - 1..=end).contains(&sectors.start);
            goes_on || end == all && sectors.start == 0
        });
        self.ahead = if follows { (self.ahead * 2).clamp(FIRST_AHEAD, MOST_AHEAD) } else { 0 };
        self.ahead
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

    /// What else was read with it and is whole: owners, places and bytes, in order of place. Whether they
    /// live is for their owners to say.
    #[must_use]
    pub fn neighbours(&self) -> Neighbours<'r> {
        let begin = self.record.object.start - record::HEADER;
        let chain = Chain::before(&self.view, begin / SECTOR * SECTOR, begin);
        Neighbours { view: self.view, at: chain.first(), chain, begin, end: self.record.end() }
    }
}

/// See [`Found::neighbours`].
pub struct Neighbours<'r> {
    view: View<'r>,
    at: usize,
    chain: Chain,
    /// Where the record begins that these are the neighbours of, and where it ends.
    begin: usize,
    end: usize,
}

impl<'r> Iterator for Neighbours<'r> {
    type Item = (Owner, Place, &'r [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.begin {
            let may_be = self.chain.leads(self.at);
            match may_be.then(|| self.view.record(self.at)).flatten() {
                Some(record) => return Some(self.give(record)),
                None => self.at += GRANULE,
            }
        }
        if self.at == self.begin {
            self.at = self.end;
        }
        let record = self.view.record(self.at)?;
        Some(self.give(record))
    }
}

impl<'r> Neighbours<'r> {
    fn give(&mut self, record: Record) -> (Owner, Place, &'r [u8]) {
        self.at = record.end();
        (record.owner, record.place, &self.view.bytes[record.object])
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
        let bytes = at..at + record::bytes(place.len());
        // A segment may be emptied and filled again while it is read. What lives does not vanish, so
        // two looks that were both too late are as good as impossible.
        let mut why = Fault::Damaged;
        for _ in 0..3 {
            let binding = self.binding(segment);
            if reader.holds(segment, binding, &bytes) {
                self.counters.window_reads.fetch_add(1, Relaxed);
            } else if let Err(fault) = self.load(reader, segment, binding, &bytes) {
                why = fault;
                reader.window = None;
            }
            if let Some(record) =
                self.find(reader, segment, at).filter(|r| r.owner == owner && r.place == place)
            {
                return Ok(Found { view: self.view(reader).expect("it was found there"), record });
            }
            reader.window = None;
            if !owners.lives(owner, place) {
                return Err(ReadError::Gone);
            }
        }
        self.counters.lost_reads.fetch_add(1, Relaxed);
        let offset = self.cipher(segment).base + at as u64;
        Err(ReadError::Lost(Lost { device: self.device_of(segment), offset, why }))
    }

    /// The record at byte `at` of a segment, if it is in the window.
    fn find(&self, reader: &Reader, segment: Segment, at: usize) -> Option<Record> {
        let window = reader.window.as_ref().filter(|window| window.segment == segment)?;
        self.view(reader)?.record(at.checked_sub(window.sectors.start * SECTOR)?)
    }

    /// What is in the window.
    fn view<'r>(&self, reader: &'r Reader) -> Option<View<'r>> {
        let Window { segment, binding, sectors } = reader.window.as_ref()?;
        Some(View {
            bytes: &reader.plain[..sectors.len() * SECTOR],
            start: self.geometry.address(*segment, sectors.start * SECTOR),
            binding: *binding,
            max_object: self.geometry.max_object(),
        })
    }

    /// Has the window be what these bytes of a segment touch, and what comes behind when reads go on in
    /// order.
    fn load(
        &self,
        reader: &mut Reader,
        segment: Segment,
        binding: Binding,
        bytes: &Range<usize>,
    ) -> Result<(), Fault> {
        let wanted = sectors_of(bytes);
        let all = self.geometry.segment_sectors();
        let ahead = reader.look_ahead(segment, &wanted, all);
        let end = (wanted.end + ahead).min(all).min(wanted.start + reader.sectors());
        let more = wanted.start..end.max(wanted.end);
        let more_fails = |fault| if more.end > wanted.end { Ok(()) } else { Err(fault) };
        let mut sectors = more.clone();
        if let Err(fault) = self.fetch(segment, sectors.clone(), &mut reader.plain) {
            more_fails(fault)?;
            sectors = wanted.clone();
            self.fetch(segment, sectors.clone(), &mut reader.plain)?;
        }
        reader.window = Some(Window { segment, binding, sectors });
        Ok(())
    }

    /// Has the window be sectors of a segment of which some may be lost: those are zeros.
    pub(crate) fn load_what_is_left<'r>(
        &self,
        reader: &'r mut Reader,
        segment: Segment,
        binding: Binding,
        from: usize,
        end: usize,
    ) -> View<'r> {
        let sectors = from..end.min(from + reader.sectors());
        reader.window = None;
        if self.fetch(segment, sectors.clone(), &mut reader.plain).is_err() {
            for (n, plain) in sectors.clone().zip(reader.plain.chunks_exact_mut(SECTOR)) {
                if self.fetch(segment, n..n + 1, plain).is_err() {
                    plain.fill(0);
                }
            }
        }
        let start = self.geometry.address(segment, sectors.start * SECTOR);
        let bytes = &reader.plain[..sectors.len() * SECTOR];
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
