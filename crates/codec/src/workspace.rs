//! The memory of encoders and decoders, made once for a thread.

use crate::by_n::{self, Part};
use crate::deflate::{
    Deflate, GENERAL, GENERAL_IDS, Inflate, Level, MAX_DISTANCE, Table, TableSet,
};
use crate::{Codec, Corrupt, DeflateMode, DoesNotFit, MAX_UNIT, ZstdLevel, lz4, zstd};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;

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
    /// Once they are learnt; until then canned units have the general ones.
    learnt: Option<Arc<TableSet>>,
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
        let tables = match mode {
            DeflateMode::Fixed => return self.deflate.fixed(level, unit, out),
            DeflateMode::Dynamic => return self.deflate.dynamic(level, unit, out),
            DeflateMode::CannedGeneral => None,
            DeflateMode::Canned => self.learnt.as_deref(),
        };
        let tables = tables.or(self.general.as_ref()).expect("a workspace made for canned");
        tables.compress(&mut self.deflate, level, unit, out)
    }

    fn decompress(
        &mut self,
        mode: DeflateMode,
        bytes: &[u8],
        out: &mut [u8],
    ) -> Result<(), Corrupt> {
        if mode.is_canned() {
            let (table, body) = self.table(bytes)?;
            return table.decompress(body, out).map_err(|_| Corrupt);
        }
        let inflated = self.inflate.inflate(bytes, out).map_err(|_| Corrupt)?;
        let whole = inflated.consumed == bytes.len() && inflated.written == out.len();
        if whole { Ok(()) } else { Err(Corrupt) }
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
            let (a, b) = (self.table(bytes)?, self.table(other_bytes)?);
            let bodies = [(a.0, a.1, out), (b.0, b.1, other_out)];
            return Table::decompress_two(bodies).map_err(|_| Corrupt);
        }
        self.decompress(mode, bytes, out)?;
        self.decompress(mode, other_bytes, other_out)
    }

    /// The table of a canned unit, told by the id that it begins with, and the body.
    fn table<'a>(&'a self, bytes: &'a [u8]) -> Result<(&'a Table, &'a [u8]), Corrupt> {
        let (id, body) = bytes.split_first().ok_or(Corrupt)?;
        let sets = self.learnt.as_deref().into_iter().chain(&self.general);
        Ok(({ sets }.find_map(|set| set.get(*id)).ok_or(Corrupt)?, body))
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
        let canned =
            |codec: &Codec| matches!(codec, Codec::Deflate { mode, .. } if mode.is_canned());
        let zstd: Option<(ZstdLevel, ZstdLevel)> = levels().min().zip(levels().max());
        Self {
            lz4: codecs.contains(&Codec::Lz4).then(lz4::Encoder::new),
            zstd: zstd.map(|levels| (zstd::Encoder::new(levels), zstd::Decoder::new())),
            deflate: codecs
                .iter()
                .find(deflate)
                .map(|_| Box::new(OurDeflate::new(codecs.iter().any(canned)))),
        }
    }

    /// From now on canned units get one of these tables, and are read by them or by the general
    /// ones. The bytes begin with the table's id: whoever keeps units that were made with other
    /// learnt tables keeps those tables, and sets them again to read them.
    ///
    /// # Panics
    /// When the workspace was not made for a canned codec.
    pub fn set_learnt(&mut self, tables: Arc<TableSet>) {
        let deflate = self.deflate.as_mut().filter(|deflate| deflate.general.is_some());
        deflate.expect("a workspace made for canned").learnt = Some(tables);
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
