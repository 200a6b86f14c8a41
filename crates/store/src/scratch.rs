//! What one thread needs to put and to get, made once.

use crate::word::Word;
use alloc::boxed::Box;
use octavo_codec::{Codec, Workspace};
use octavo_page::{MAX_FOLIO_PAGES, Unit};

/// Memory for one worker: encoders, decoders, and room for one folio's words. Some hundreds of KiB,
/// of which only what the work needs is touched. Nothing is allocated after it was made.
pub struct Scratch {
    pub(crate) workspace: Workspace,
    /// A unit of which only some pages are wanted.
    pub(crate) unit: Box<[u8]>,
    /// The compressed bytes of a unit, before the pool has them.
    pub(crate) bytes: Box<[u8]>,
    /// The words and hashes of the folio that is being put.
    pub(crate) words: Box<[Word]>,
    pub(crate) hashes: Box<[u64]>,
}

impl Scratch {
    /// A scratch for putting with any of `codecs` and getting what was put with any of them.
    #[must_use]
    pub fn new(codecs: &[Codec]) -> Self {
        Self {
            workspace: Workspace::new(codecs),
            unit: alloc::vec![0; Unit::MAX.bytes()].into(),
            bytes: alloc::vec![0; Unit::MAX.bytes()].into(),
            words: alloc::vec![Word::Empty; MAX_FOLIO_PAGES].into(),
            hashes: alloc::vec![0; MAX_FOLIO_PAGES].into(),
        }
    }
}
