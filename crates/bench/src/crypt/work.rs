//! The writes themselves, and how they are timed.

use super::{Allocation, COST_ROUNDS, CryptError, ROUNDS, Row};
use crate::host;
use octavo_crypt::{Crypt, Format, Key, Piece, Sector};
use octavo_mempool::source::{NoSource, Recycler, Source, System};
use octavo_mempool::{Config, Ground, MAX_BULK, Mempool, Page, Wait};
use octavo_page::PAGE_SIZE;
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::io::pwritev;
use rustix::time::ClockId;
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the target, which is written over and over.
const TARGET: usize = 64 << 20;

/// A source and a size of writes have no further round after this: a slow disk gets fewer.
const BUDGET: Duration = Duration::from_secs(18);

/// Pages that are got in a row when what one costs is measured, and how often in a turn.
const ROW_PAGES: usize = 4096;
const ROW_TIMES: usize = 5;

/// Reserves over each source, and everything else that a write needs.
pub(super) struct Bench {
    target: Target,
    crypt: Crypt,
    plain: Vec<u8>,
    buffer: Vec<u8>,
    by_reserve: Mempool<NoSource>,
    by_recycler: Mempool<Recycler>,
    by_system: Mempool<System>,
}

impl Bench {
    /// Writes to a new file or a device `backing`, or to memory.
    pub(super) fn new(backing: Option<&Path>) -> Result<Self, CryptError> {
        let ground = |pages| Ground::new(pages, c"octavo-bench").map_err(CryptError::Space);
        let config = Config { cpus: 1, clock: || 0 };
        let recycler = Recycler::new(ROW_PAGES);
        recycler.stock(ground(ROW_PAGES)?);
        let system = System::new(ground(ROW_PAGES)?);
        Ok(Self {
            target: Target::new(backing)?,
            crypt: Crypt::new(Key::ephemeral()?, Format::PAGES)?,
            plain: (0..TARGET).map(|i| (i ^ (i >> 12)) as u8).collect(),
            buffer: vec![0; MAX_BULK * PAGE_SIZE],
            by_reserve: Mempool::new(ground(ROW_PAGES)?, NoSource, config)?,
            by_recycler: Mempool::new(ground(MAX_BULK)?, recycler, config)?,
            by_system: Mempool::new(ground(MAX_BULK)?, system, config)?,
        })
    }

    pub(super) fn target(&self) -> &'static str {
        self.target.kind.name()
    }

    pub(super) fn is_locked(&self) -> bool {
        self.by_reserve.is_locked()
    }

    /// All ways with pages of the reserve alone.
    pub(super) fn by_reserve(&mut self, write_bytes: usize) -> Result<Vec<Row>, CryptError> {
        let Self { target, crypt, plain, buffer, by_reserve, .. } = self;
        let writer = Writer { pool: &*by_reserve, target, crypt, plain, buffer };
        cell(writer, "none", write_bytes, &Allocation::ALL)
    }

    /// The ways that allocate, with pages of a recycler.
    pub(super) fn by_recycler(&mut self, write_bytes: usize) -> Result<Vec<Row>, CryptError> {
        let Self { target, crypt, plain, buffer, by_recycler, .. } = self;
        let writer = Writer { pool: &*by_recycler, target, crypt, plain, buffer };
        cell(writer, "recycler", write_bytes, &Allocation::ALL[..3])
    }

    /// The ways that allocate, with pages of the system.
    pub(super) fn by_system(&mut self, write_bytes: usize) -> Result<Vec<Row>, CryptError> {
        let Self { target, crypt, plain, buffer, by_system, .. } = self;
        let writer = Writer { pool: &*by_system, target, crypt, plain, buffer };
        cell(writer, "system", write_bytes, &Allocation::ALL[..3])
    }
}

/// One source, one size of writes.
fn cell<S: Source>(
    mut writer: Writer<'_, S>,
    source: &'static str,
    write_bytes: usize,
    ways: &[Allocation],
) -> Result<Vec<Row>, CryptError> {
    let mut speeds = vec![Vec::new(); ways.len()];
    let mut costs = vec![Vec::new(); ways.len()];
    let begin = Instant::now();
    for round in 0..ROUNDS {
        if round > 0 && begin.elapsed() > BUDGET {
            break;
        }
        for (way, speeds) in ways.iter().zip(&mut speeds) {
            speeds.push(writer.turn(*way, write_bytes)?);
        }
        for (way, costs) in ways.iter().zip(&mut costs).filter(|_| round < COST_ROUNDS) {
            costs.push(writer.page_cost(*way, write_bytes / PAGE_SIZE));
        }
    }
    let at = |way| ways.iter().position(|other| *other == way);
    let over = |values: &[Vec<f64>], own: usize, other: Allocation| {
        let other = at(other).filter(|other| *other != own)?;
        let ratios = values[own].iter().zip(&values[other]).map(|(own, other)| own / other);
        Some(round(median(ratios.collect())))
    };
    Ok((0..ways.len())
        .map(|own| Row {
            allocation: ways[own],
            source,
            write_bytes,
            mb_s: median(speeds[own].clone()).round(),
            vs_ready: over(&speeds, own, Allocation::Ready),
            vs_single: over(&speeds, own, Allocation::Single),
            alloc_ns_per_page: (ways[own] != Allocation::None)
                .then(|| round(median(costs[own].clone()))),
            alloc_vs_single: ways[own]
                .allocates()
                .then(|| over(&costs, own, Allocation::Single))
                .flatten(),
        })
        .collect())
}

/// What one way needs to write.
struct Writer<'a, S> {
    pool: &'a Mempool<S>,
    target: &'a mut Target,
    crypt: &'a Crypt,
    plain: &'a [u8],
    buffer: &'a mut [u8],
}

impl<S: Source> Writer<'_, S> {
    /// Has a way its turn: MB/s.
    fn turn(&mut self, way: Allocation, write_bytes: usize) -> Result<f64, CryptError> {
        let mut places = [const { None }; MAX_BULK];
        let places = &mut places[..write_bytes / PAGE_SIZE];
        if way == Allocation::Ready {
            self.pool.alloc_bulk(places, Wait::Yes);
        }
        let turn = self.target.kind.turn_bytes();
        let begin = self.target.now();
        for number in 0..turn / write_bytes {
            match way {
                Allocation::None => self.encrypt(number, write_bytes),
                Allocation::Ready => self.write(places, number)?,
                _ => {
                    self.alloc(way, places);
                    self.write(places, number)?;
                    self.free(way, places);
                }
            }
        }
        let time = self.target.now() - begin;
        self.pool.free_bulk(places);
        Ok(turn as f64 / 1e6 / time.as_secs_f64())
    }

    fn alloc(&self, way: Allocation, places: &mut [Option<Page>]) {
        match way {
            Allocation::Single => {
                places.iter_mut().for_each(|place| *place = self.pool.alloc(0, Wait::Yes));
            }
            Allocation::OneByOne => {
                self.pool.alloc_one_by_one(places, Wait::Yes);
            }
            _ => {
                self.pool.alloc_bulk(places, Wait::Yes);
            }
        }
    }

    fn free(&self, way: Allocation, places: &mut [Option<Page>]) {
        match way {
            Allocation::Single => {
                places.iter_mut().filter_map(Option::take).for_each(|page| self.pool.free(0, page));
            }
            _ => self.pool.free_bulk(places),
        }
    }

    /// Where write `number` goes, and its plaintext.
    fn job(&self, number: usize, write_bytes: usize) -> (u64, &[u8]) {
        let offset = number * write_bytes % TARGET;
        (offset as u64, &self.plain[offset..offset + write_bytes])
    }

    /// Encrypts into pages and writes them.
    fn write(&self, places: &mut [Option<Page>], number: usize) -> Result<(), CryptError> {
        let (offset, plain) = self.job(number, places.len() * PAGE_SIZE);
        let pieces = places.iter_mut().flatten().zip(plain.chunks_exact(PAGE_SIZE));
        let mut pieces: Vec<_> = (offset..)
            .step_by(PAGE_SIZE)
            .zip(pieces)
            .map(|(at, (page, from))| Piece::between(Sector::at(at), from, page.bytes_mut()))
            .collect();
        self.crypt.encrypt(&mut pieces);
        let slices: Vec<_> =
            places.iter().flatten().map(|page| IoSlice::new(page.bytes())).collect();
        let written = pwritev(&self.target.file, &slices, offset).map_err(io::Error::from);
        match written.map_err(CryptError::Write)? {
            written if written == places.len() * PAGE_SIZE => Ok(()),
            _ => Err(CryptError::Write(io::ErrorKind::WriteZero.into())),
        }
    }

    /// Encrypts into a buffer, and that is all.
    fn encrypt(&mut self, number: usize, write_bytes: usize) {
        let offset = number * write_bytes % TARGET;
        let to = &mut self.buffer[..write_bytes];
        let piece = Piece::between(
            Sector::at(offset as u64),
            &self.plain[offset..offset + write_bytes],
            to,
        );
        self.crypt.encrypt(&mut [piece]);
        black_box(&self.buffer);
    }

    /// Nanoseconds that a page costs when calls for `pages` follow each other: the median of a few
    /// rows of such calls.
    fn page_cost(&self, way: Allocation, pages: usize) -> f64 {
        if !way.allocates() {
            return 0.0;
        }
        let mut places: Vec<_> = (0..ROW_PAGES).map(|_| None).collect();
        let row = |_| {
            let begin = Instant::now();
            places.chunks_exact_mut(pages).for_each(|places| self.alloc(way, places));
            let time = begin.elapsed();
            places.chunks_exact_mut(pages).for_each(|places| self.free(way, places));
            time.as_nanos() as f64 / ROW_PAGES as f64
        };
        median((0..ROW_TIMES).map(row).collect())
    }
}

/// What is written to.
struct Target {
    file: File,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    File,
    Direct,
}

impl Kind {
    /// Bytes that a way writes in its turn.
    const fn turn_bytes(self) -> usize {
        match self {
            Self::Memory => 16 << 20,
            Self::File | Self::Direct => 4 << 20,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::File => "file",
            Self::Direct => "file, O_DIRECT",
        }
    }
}

impl Target {
    fn new(backing: Option<&Path>) -> Result<Self, CryptError> {
        let Some(path) = backing else {
            let memory = memfd_create("octavo-bench", MemfdFlags::CLOEXEC);
            let file = File::from(memory.map_err(|why| CryptError::Memory(why.into()))?);
            return Ok(Self { file, kind: Kind::Memory });
        };
        Self::create(path).map_err(|why| CryptError::Target { path: path.to_owned(), why })
    }

    /// A new file that is gone when it is closed, or a block device, which nobody else may have. Without
    /// the page cache where that goes.
    fn create(path: &Path) -> io::Result<Self> {
        let is_device = fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600);
        if is_device {
            options.custom_flags(OFlags::EXCL.bits() as i32);
        } else {
            options.create_new(true);
        }
        let file = options.open(path)?;
        if !is_device {
            fs::remove_file(path)?;
        }
        let direct = fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::DIRECT).is_ok();
        Ok(Self { file, kind: if direct { Kind::Direct } else { Kind::File } })
    }

    fn now(&self) -> Duration {
        let clock = match self.kind {
            Kind::Memory => ClockId::ThreadCPUTime,
            Kind::File | Kind::Direct => ClockId::Monotonic,
        };
        host::cpu_time(clock)
    }
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Three digits are more than a machine repeats.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
