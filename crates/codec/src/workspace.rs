//! The memory of encoders and decoders, made once for a thread.

use crate::by_n::{self, Part};
use crate::deflate::{
    Deflate, GENERAL, GENERAL_IDS, Generation, Generations, Inflate, Level, MAX_DISTANCE, Table,
    TableSet,
};
use crate::{Codec, Corrupt, DeflateMode, DoesNotFit, Job, MAX_UNIT, ZstdLevel, lz4, zstd};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use octavo_page::sync::RwLockReadGuard;

/// Encoders and decoders for the codecs a thread will use. Everything it needs is taken when it is
/// made; nothing is ever taken or given back afterwards.
pub struct Workspace {
    lz4: Option<lz4::Encoder>,
    zstd: Option<(zstd::Encoder, zstd::Decoder)>,
    deflate: Option<Box<OurDeflate>>,
}

/// Encoder and decoder of deflate, and the tables of canned units.
struct OurDeflate {
    deflate: Deflate,
    inflate: Inflate,
    /// If a codec asked for is canned.
    general: Option<TableSet>,
    /// Once they are told; until a generation is there, canned units have the general ones.
    learnt: Option<Seen>,
}

/// Learnt tables, and the generation that units are compressed with.
struct Seen {
    all: Arc<Generations>,
    compress: Option<Generation>,
}

impl OurDeflate {
    fn new(canned: bool) -> Self {
        let general = || {
            let (first, window) = (GENERAL_IDS, MAX_DISTANCE);
            TableSet::new(first, window, &GENERAL).expect("the tables that ship are tables")
        };
        Self {
            deflate: Deflate::new(),
            inflate: Inflate::new(),
            general: canned.then(general),
            learnt: None,
        }
    }

    fn compress(
        &mut self,
        mode: DeflateMode,
        level: Level,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        match mode {
            DeflateMode::Fixed => self.deflate.fixed(level, unit, out),
            DeflateMode::Dynamic => self.deflate.dynamic(level, unit, out),
            DeflateMode::CannedGeneral | DeflateMode::Canned => {
                self.with_tables(mode, |deflate, tables| tables.compress(deflate, level, unit, out))
            }
        }
    }

    /// Does something with the encoder and the tables that canned units are made with.
    fn with_tables<R>(
        &mut self,
        mode: DeflateMode,
        what: impl FnOnce(&mut Deflate, &TableSet) -> R,
    ) -> R {
        let Self { deflate, general, learnt, .. } = self;
        let learnt = learnt.as_ref().filter(|_| mode == DeflateMode::Canned);
        let newest =
            learnt.and_then(|Seen { all, compress }| all.tables(compress.as_ref()?.place()));
        match newest {
            Some(tables) => what(deflate, &tables),
            None => what(deflate, general.as_ref().expect("a workspace made for canned")),
        }
    }

    fn decompress(
        &mut self,
        mode: DeflateMode,
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<(), Corrupt> {
        if mode.is_canned() {
            let (id, body) = split(bytes)?;
            let set = self.set_of(id);
            return set.table(id)?.decompress(body, out).map_err(|_| Corrupt::Damaged);
        }
        let inflated = self.inflate.inflate(bytes, out).map_err(|_| Corrupt::Damaged)?;
        let whole = inflated.consumed == bytes.len() && inflated.written == out.len();
        if whole { Ok(()) } else { Err(Corrupt::Damaged) }
    }

    /// A part of a unit, and the one after it if there is one.
    fn decompress_parts(
        &mut self,
        mode: DeflateMode,
        (bytes, out): Part<'_>,
        other: Option<Part<'_>>,
    ) -> Result<(), Corrupt> {
        let Some((other_bytes, other_out)) = other else {
            return self.decompress(mode, bytes, out);
        };
        if mode.is_canned() {
            let ((a, body), (b, other_body)) = (split(bytes)?, split(other_bytes)?);
            let (set, other_set) = (self.set_of(a), self.set_of(b));
            let bodies = [(set.table(a)?, body, out), (other_set.table(b)?, other_body, other_out)];
            return Table::decompress_two(bodies).map_err(|_| Corrupt::Damaged);
        }
        self.decompress(mode, bytes, out)?;
        self.decompress(mode, other_bytes, other_out)
    }

    /// The tables among which `id` may be.
    fn set_of(&self, id: u8) -> Set<'_> {
        let learnt = || {
            let all = &self.learnt.as_ref()?.all;
            all.tables(Generations::place_of(id)?)
        };
        learnt().map_or(Set::General(self.general.as_ref()), Set::Learnt)
    }
}

/// The id of the table that a canned unit begins with, and the body.
fn split(bytes: &[u8]) -> Result<(u8, &[u8]), Corrupt> {
    let (id, body) = bytes.split_first().ok_or(Corrupt::Damaged)?;
    Ok((*id, body))
}

/// Tables that are read with.
enum Set<'a> {
    General(Option<&'a TableSet>),
    Learnt(RwLockReadGuard<'a, TableSet>),
}

impl Set<'_> {
    fn table(&self, id: u8) -> Result<&Table, Corrupt> {
        let table = match self {
            Self::General(set) => set.and_then(|set| set.get(id)),
            Self::Learnt(set) => set.get(id),
        };
        table.ok_or(Corrupt::UnknownTable(id))
    }
}

impl Workspace {
    /// The memory for `codecs`, for units up to [`MAX_UNIT`] bytes. Some tens to hundreds of KiB,
    /// of which a codec that is not used touches next to nothing.
    #[must_use]
    pub fn new(codecs: &[Codec]) -> Self {
        let levels = || {
            codecs.iter().filter_map(|codec| match codec {
                Codec::Zstd(level) => Some(*level),
                _ => None,
            })
        };
        let deflate = |codec: &&Codec| matches!(codec, Codec::Deflate { .. });
        let zstd: Option<(ZstdLevel, ZstdLevel)> = levels().min().zip(levels().max());
        Self {
            lz4: codecs.contains(&Codec::Lz4).then(lz4::Encoder::new),
            zstd: zstd.map(|levels| (zstd::Encoder::new(levels), zstd::Decoder::new())),
            deflate: codecs
                .iter()
                .find(deflate)
                .map(|_| Box::new(OurDeflate::new(codecs.iter().any(Codec::is_canned)))),
        }
    }

    /// From now on canned units are made with the newest generation of these tables, if there is one, and
    /// read with any that is there, or with the general ones. Bytes begin with the id of their table.
    ///
    /// # Panics
    /// When the workspace was not made for a canned codec.
    pub fn set_learnt(&mut self, all: Arc<Generations>) {
        let deflate = self.deflate.as_mut().filter(|deflate| deflate.general.is_some());
        let compress = all.newest();
        deflate.expect("a workspace made for canned").learnt = Some(Seen { all, compress });
    }

    /// The learnt tables, if it has any.
    #[must_use]
    pub fn learnt(&self) -> Option<&Arc<Generations>> {
        Some(&self.deflate.as_ref()?.learnt.as_ref()?.all)
    }

    /// From now on canned units are made with `generation` of the learnt tables: the caller holds it while
    /// it compresses.
    pub fn compress_with(&mut self, generation: Generation) {
        if let Some(learnt) = self.deflate.as_mut().and_then(|deflate| deflate.learnt.as_mut()) {
            learnt.compress = Some(generation);
        }
    }

    /// Compresses `unit` into the front of `out` and returns how many bytes it took. What lies in
    /// `out` behind them, or when it did not fit, is undefined.
    ///
    /// # Errors
    /// [`DoesNotFit`] when more than `out.len()` bytes would be needed; `out` may be shorter than
    /// the unit, to say from which size on the unit is better kept raw.
    ///
    /// # Panics
    /// When the workspace was not made for `codec`, or the unit is empty, longer than [`MAX_UNIT`]
    /// or not to be cut into as many equal parts as the codec wants: a bug of the caller.
    pub fn compress(
        &mut self,
        codec: Codec,
        unit: &[u8],
        out: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        assert_unit(unit.len());
        match codec {
            Codec::Lz4 => {
                let encoder = self.lz4.as_mut().expect("a workspace made for lz4");
                encoder.compress(unit, out)
            }
            Codec::Zstd(level) => {
                let (encoder, _) = self.zstd.as_mut().expect("a workspace made for zstd");
                encoder.compress(level, unit, out)
            }
            Codec::Deflate { mode, level, parts } => {
                let deflate = self.deflate.as_mut().expect("a workspace made for deflate");
                match parts.count() {
                    None => deflate.compress(mode, level, unit, out),
                    Some(n) => by_n::compress(n, unit, out, |part, out| {
                        deflate.compress(mode, level, part, out)
                    }),
                }
            }
        }
    }

    /// Whether units of so many bytes are compressed in less time many at once, by
    /// [`Workspace::compress_all`], than one by one.
    #[must_use]
    pub fn is_better_together(codec: Codec, unit_bytes: usize) -> bool {
        let Codec::Deflate { mode: DeflateMode::Canned, level, parts } = codec else {
            return false;
        };
        parts.count().is_none() && Deflate::is_better_together(level, unit_bytes)
    }

    /// Compresses the unit of each job, and notes in it what became of that. Each is as one by one, but where
    /// that [`Workspace::is_better_together`] the bytes may be others, which give the same unit.
    ///
    /// # Panics
    /// As [`Workspace::compress`].
    pub fn compress_all(&mut self, codec: Codec, jobs: &mut [Job<'_>]) {
        let together = |job: &Job<'_>| Self::is_better_together(codec, job.unit.len());
        if let Codec::Deflate { mode, .. } = codec
            && jobs.iter().all(together)
        {
            let ours = self.deflate.as_mut().expect("a workspace made for deflate");
            ours.with_tables(mode, |deflate, tables| deflate.canned_together(tables, jobs));
            return;
        }
        for job in jobs {
            job.size = self.compress(codec, job.unit, job.out);
        }
    }

    /// Decompresses the whole of `bytes`, which must give exactly `out.len()` bytes.
    ///
    /// # Errors
    /// [`Corrupt`] when they do not; what lies in `out` is then undefined. Damage that happens to
    /// give another unit of the right length is not seen here.
    ///
    /// # Panics
    /// As [`Workspace::compress`].
    pub fn decompress(
        &mut self,
        codec: Codec,
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<(), Corrupt> {
        assert_unit(out.len());
        match codec {
            Codec::Lz4 => lz4::decompress(bytes, out),
            Codec::Zstd(_) => {
                let (_, decoder) = self.zstd.as_mut().expect("a workspace made for zstd");
                decoder.decompress(bytes, out)
            }
            Codec::Deflate { mode, parts, .. } => {
                let deflate = self.deflate.as_mut().expect("a workspace made for deflate");
                match parts.count() {
                    None => deflate.decompress(mode, bytes, out),
                    Some(n) => by_n::decompress(n, bytes, out, |part, other| {
                        deflate.decompress_parts(mode, part, other)
                    }),
                }
            }
        }
    }

    /// Decompresses at least the first `wanted` bytes of a unit of `out.len()` bytes; the rest of
    /// `out` is undefined. Where the codec can, it stops there: one page of a larger unit costs
    /// less than the unit. Bytes behind the place where it stops are not looked at.
    ///
    /// # Errors
    /// [`Corrupt`] when the bytes looked at are damaged.
    ///
    /// # Panics
    /// As [`Workspace::compress`], and when `wanted` is 0 or more than `out.len()`.
    pub fn decompress_prefix(
        &mut self,
        codec: Codec,
        bytes: &[u8],
        out: &mut [u8],
        wanted: usize,
    ) -> Result<(), Corrupt> {
        assert!(0 < wanted && wanted <= out.len(), "wanted {wanted} of {} bytes", out.len());
        assert_unit(out.len());
        match codec {
            Codec::Lz4 if wanted < out.len() => lz4::decompress_prefix(bytes, &mut out[..wanted]),
            _ => self.decompress(codec, bytes, out),
        }
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspace")
            .field("lz4", &self.lz4.is_some())
            .field("zstd", &self.zstd.is_some())
            .field("deflate", &self.deflate.is_some())
            .finish()
    }
}

fn assert_unit(bytes: usize) {
    assert!(0 < bytes && bytes <= MAX_UNIT, "a unit of {bytes} bytes");
}
