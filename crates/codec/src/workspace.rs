//! The memory of encoders and decoders, made once for a thread.

use crate::{Codec, Corrupt, DoesNotFit, MAX_UNIT, ZstdLevel, lz4, zstd};
use core::fmt;

/// Encoders and decoders for the codecs a thread will use. Everything it needs is taken when it is
/// made; nothing is ever taken or given back afterwards.
pub struct Workspace {
    lz4: Option<lz4::Encoder>,
    zstd: Option<(zstd::Encoder, zstd::Decoder)>,
}

impl Workspace {
    /// The memory for `codecs`, for units up to [`MAX_UNIT`] bytes. Some tens to hundreds of KiB,
    /// of which a codec that is not used touches next to nothing.
    #[must_use]
    pub fn new(codecs: &[Codec]) -> Self {
        let levels = || {
            codecs.iter().filter_map(|codec| match codec {
                Codec::Zstd(level) => Some(*level),
                Codec::Lz4 => None,
            })
        };
        let zstd: Option<(ZstdLevel, ZstdLevel)> = levels().min().zip(levels().max());
        Self {
            lz4: codecs.contains(&Codec::Lz4).then(lz4::Encoder::new),
            zstd: zstd.map(|levels| (zstd::Encoder::new(levels), zstd::Decoder::new())),
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
    /// When the workspace was not made for `codec`, or the unit is empty or longer than
    /// [`MAX_UNIT`]: a bug of the caller.
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
            .finish()
    }
}

fn assert_unit(bytes: usize) {
    assert!(0 < bytes && bytes <= MAX_UNIT, "a unit of {bytes} bytes");
}
