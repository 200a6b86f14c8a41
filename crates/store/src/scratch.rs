//! What one thread needs to put and to get, made once.

use crate::put::GROUP;
use crate::word::Word;
use alloc::boxed::Box;
use octavo_accel::{Cpu, Engine, Work};
use octavo_backing::Reader;
use octavo_codec::Codec;
use octavo_page::{MAX_FOLIO_PAGES, Unit};

/// An engine and memory for one worker: room for a group of compressed units, for the words of a round, and for
/// what is read from a file. A MiB and a half, and some KiB, of which only what the work needs is touched. Nothing is
/// allocated after it was made.
pub struct Scratch<E = Cpu> {
    pub(crate) engine: E,
    /// What was done by that engine.
    pub(crate) work: Work,
    /// A unit of which only some pages are wanted.
    pub(crate) unit: Box<[u8]>,
    /// The compressed bytes of a group of units, before the pool has them.
    pub(crate) bytes: Box<[u8]>,
    /// The words and hashes of the folios that are being put.
    pub(crate) words: Box<[Word]>,
    pub(crate) hashes: Box<[u64]>,
    /// What reads from a backing file, and how many objects it has read.
    pub(crate) reader: Reader,
    pub(crate) reads: u64,
    /// Units compressed so far, if they are offered to a store that learns tables.
    pub(crate) offered: Option<usize>,
}

impl Scratch {
    /// A scratch for putting with any of `codecs` and getting what was put with any of them, on the
    /// CPU.
    #[must_use]
    pub fn new(codecs: &[Codec]) -> Self {
        Self::with(Cpu::new(codecs))
    }
}

impl<E: Engine> Scratch<E> {
    /// A scratch whose units go through `engine`: with any of the codecs that was made for.
    #[must_use]
    pub fn with(engine: E) -> Self {
        Self {
            engine,
            work: Work::default(),
            unit: alloc::vec![0; Unit::MAX.bytes()].into(),
            bytes: alloc::vec![0; GROUP * Unit::MAX.bytes()].into(),
            words: alloc::vec![Word::Empty; MAX_FOLIO_PAGES].into(),
            hashes: alloc::vec![0; MAX_FOLIO_PAGES].into(),
            reader: Reader::default(),
            reads: 0,
            offered: None,
        }
    }

    /// From now on what is compressed with it is offered to the store's learner, which takes the time of one
    /// compression in each 256. Not for who answers faults.
    pub fn offer_units(&mut self) {
        self.offered = Some(0);
    }

    /// Its engine.
    pub fn engine(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Objects read from a backing file since this was last asked.
    pub fn take_reads(&mut self) -> u64 {
        core::mem::take(&mut self.reads)
    }

    /// Forgets what was read from a file: in a forked child that was its parent's.
    pub fn forget_file(&mut self) {
        self.reads = 0;
        self.reader.forget();
    }

    /// The requests done since this was last asked, by who did them.
    pub fn take_work(&mut self) -> Work {
        core::mem::take(&mut self.work)
    }
}
