//! The memory that a device works in: one lane for each request in flight.
//!
//! ```text
//!   region: │ tables │ lane 0 │ lane 1 │ ...
//!   lane:   │ completion │ AECS │ histogram │ to the page │ source │ destination │
//! ```
//!
//! Source and destination each hold a unit, or a part of one, and somewhat more: a part may get longer
//! where the whole gets shorter.
//!
//! A lane is *idle*, *busy* with a request, or *lost*: given up while a device may still write
//! there. A lost lane is idle again when its completion record says that the device is done, and
//! until then it keeps its place in the queue.

use super::Region;
use super::wire::{Completion, CompressAecs, Histogram, Places};
use alloc::boxed::Box;
use octavo_page::PAGE_SIZE;
use zerocopy::{FromZeros, IntoBytes};

const COMPLETION: usize = 0;
const AECS: usize = 64;
const HISTOGRAM: usize = AECS + size_of::<CompressAecs>();
const SOURCE: usize = PAGE_SIZE;
const _: () = assert!(HISTOGRAM + size_of::<Histogram>() <= SOURCE);

/// What a lane is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Nothing.
    Idle,
    /// A step of a request that no queue has taken yet.
    Waiting(Step),
    /// A step of a request, in this queue.
    Submitted(Step, u16),
    /// A request is done, and its output lies in the destination.
    Made,
    /// Something in this queue that nobody waits for.
    Lost(u16),
}

/// A command on the way of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Count symbols.
    Count,
    /// Compress.
    Compress,
    /// Decompress what was compressed, for its length and checksum.
    Verify,
    /// Decompress.
    Decompress,
}

/// The books on one lane.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub usage: Use,
    /// When its request is given up, once that was reckoned.
    pub deadline: Option<u64>,
    /// Looks at its completion record that found nothing.
    pub looks: u32,
    /// Bytes in the source.
    pub source: u32,
    /// Bytes that may be written to the destination; once it is made, bytes written.
    pub destination: u32,
    /// The address of the AECS for the compression.
    pub aecs: u64,
    /// The canned table, by its place among the tables.
    pub table: Option<u8>,
    /// The checksum of what was compressed.
    pub crc: u32,
}

/// All lanes of an engine.
#[derive(Debug)]
pub struct Lanes {
    region: Region,
    unit_bytes: usize,
    pub lanes: Box<[Lane]>,
    /// Where the next look for an idle one begins.
    cursor: usize,
}

/// Bytes of a lane for units of `unit_bytes` bytes.
pub const fn lane_bytes(unit_bytes: usize) -> usize {
    SOURCE + 2 * room_bytes(unit_bytes)
}

/// Bytes in source and destination each: a fixed block of bytes that do not compress takes nine bits
/// for most of them. Whole lines of the cache.
pub const fn room_bytes(unit_bytes: usize) -> usize {
    unit_bytes + unit_bytes / 8 + 64
}

impl Lanes {
    /// As many lanes as `region` has room for.
    pub fn new(region: Region, unit_bytes: usize) -> Self {
        let lane = Lane {
            usage: Use::Idle,
            deadline: None,
            looks: 0,
            source: 0,
            destination: 0,
            aecs: 0,
            table: None,
            crc: 0,
        };
        let count = (region.len() / lane_bytes(unit_bytes)).min(u16::MAX.into());
        Self { region, unit_bytes, lanes: alloc::vec![lane; count].into(), cursor: 0 }
    }

    /// A lane that does nothing.
    pub fn idle(&mut self) -> Option<usize> {
        for _ in 0..self.lanes.len() {
            let lane = self.cursor;
            self.cursor = if lane + 1 == self.lanes.len() { 0 } else { lane + 1 };
            if self.lanes[lane].usage == Use::Idle {
                return Some(lane);
            }
        }
        None
    }

    /// Whether a request is in any of them.
    pub fn is_any_busy(&self) -> bool {
        let busy = |lane: &Lane| !matches!(lane.usage, Use::Idle | Use::Lost(_));
        self.lanes.iter().any(busy)
    }

    /// Gives a lane up: what a device has of it is lost.
    pub fn give_up(&mut self, lane: usize) {
        let usage = &mut self.lanes[lane].usage;
        *usage = match *usage {
            Use::Submitted(_, queue) => Use::Lost(queue),
            _ => Use::Idle,
        };
    }

    /// Ends what was lost and has been answered since; gives the queues that have a place more.
    pub fn find_lost(&mut self) -> impl Iterator<Item = u16> {
        (0..self.lanes.len()).filter_map(|lane| match self.lanes[lane].usage {
            Use::Lost(queue) if self.status(lane) != 0 => {
                self.lanes[lane].usage = Use::Idle;
                Some(queue)
            }
            _ => None,
        })
    }

    fn base(&self, lane: usize) -> usize {
        lane * lane_bytes(self.unit_bytes)
    }

    fn destination_at(&self) -> usize {
        SOURCE + room_bytes(self.unit_bytes)
    }

    /// The first byte of the completion record, 0 while the device is at work.
    pub fn status(&self, lane: usize) -> u8 {
        self.region.load(self.base(lane) + COMPLETION)
    }

    /// The completion record, once its status says that it is there.
    pub fn completion(&self, lane: usize) -> Completion {
        let mut completion = Completion::new_zeroed();
        self.region.read(self.base(lane) + COMPLETION, completion.as_mut_bytes());
        completion
    }

    /// Empties the completion record.
    pub fn clear(&self, lane: usize) {
        self.region.write(self.base(lane) + COMPLETION, Completion::new_zeroed().as_bytes());
    }

    /// Copies the source in.
    pub fn set_source(&mut self, lane: usize, bytes: &[u8]) {
        self.lanes[lane].source = bytes.len() as u32;
        self.region.write(self.base(lane) + SOURCE, bytes);
    }

    /// Copies out of the destination.
    pub fn destination(&self, lane: usize, bytes: &mut [u8]) {
        self.region.read(self.base(lane) + self.destination_at(), bytes);
    }

    /// Sets the lane's own AECS, and gives its address.
    pub fn set_aecs(&self, lane: usize, aecs: &CompressAecs) -> u64 {
        self.region.write(self.base(lane) + AECS, aecs.as_bytes());
        self.region.address(self.base(lane) + AECS)
    }

    /// What was counted.
    pub fn histogram(&self, lane: usize) -> Histogram {
        let mut histogram = Histogram::new_zeroed();
        self.region.read(self.base(lane) + HISTOGRAM, histogram.as_mut_bytes());
        histogram
    }

    /// Where a step of this lane reads and writes.
    pub fn places(&self, lane: usize, step: Step) -> Places {
        let address = |at| self.region.address(self.base(lane) + at);
        let Lane { source, destination, .. } = self.lanes[lane];
        let (from, to) = (address(SOURCE), address(self.destination_at()));
        let (source, source_size, destination, destination_size) = match step {
            Step::Compress | Step::Decompress => (from, source, to, destination),
            Step::Count => (from, source, address(HISTOGRAM), size_of::<Histogram>() as u32),
            // Over what was compressed, which is in the caller's memory, too.
            Step::Verify => (to, destination, from, source),
        };
        Places {
            completion: address(COMPLETION),
            source,
            source_size,
            destination,
            destination_size,
        }
    }
}
