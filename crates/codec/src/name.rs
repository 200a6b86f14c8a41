//! What codecs are called: by people (`zstd:-1`), and by the store beside each object (one byte).

use crate::deflate::Level;
use core::fmt;
use core::str::FromStr;

/// How a unit is compressed. Prints as, and is read from, the name used on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Codec {
    /// LZ4 blocks, `lz4`: the fastest.
    Lz4,
    /// zstd frames without magic number, `zstd:LEVEL`: smaller, and slower, with the level.
    Zstd(ZstdLevel),
    /// Our own deflate, `deflate-MODE:LEVEL`, in parts with `:by_N` behind it.
    Deflate {
        /// Where the codes come from.
        mode: DeflateMode,
        /// How hard to look for matches.
        level: Level,
        /// Into how many streams the unit is cut.
        parts: Parts,
    },
}

/// Where the codes of a deflate block come from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeflateMode {
    /// From the RFC, `deflate-fixed`.
    Fixed,
    /// From the unit, told in the block's header, `deflate-dynamic`.
    Dynamic,
    /// From the tables that ship with this crate, `deflate-canned:LEVEL:general`.
    CannedGeneral,
    /// From tables learnt from the program's own units, `deflate-canned:LEVEL`.
    Canned,
}

impl DeflateMode {
    /// Whether units begin with the id of a table.
    #[must_use]
    pub const fn is_canned(self) -> bool {
        matches!(self, Self::Canned | Self::CannedGeneral)
    }

    const ALL: [Self; 4] = [Self::Fixed, Self::Dynamic, Self::CannedGeneral, Self::Canned];
}

/// Into how many equal parts a unit is cut, each compressed for itself: see the table in
/// `docs/codec.md` for what that costs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Parts(u8);

impl Parts {
    /// Not cut, and no header that says so.
    pub const WHOLE: Self = Self(0);

    /// The most parts.
    pub const MAX: usize = 64;

    /// Cut into `n` parts, if that is a power of two up to [`Parts::MAX`]; 1 part has the header too.
    #[must_use]
    pub const fn by(n: usize) -> Option<Self> {
        if n.is_power_of_two() && n <= Self::MAX { Some(Self(n as u8)) } else { None }
    }

    /// The number of parts, if the unit is cut.
    #[must_use]
    pub const fn count(self) -> Option<usize> {
        if self.0 == 0 { None } else { Some(self.0 as usize) }
    }

    /// [`Parts::WHOLE`] and then every way of cutting.
    fn all() -> impl Iterator<Item = Self> {
        core::iter::once(Self::WHOLE).chain((0..7).map(|log| Self(1 << log)))
    }
}

/// A level of zstd, from -7 (fast) to 9 (small).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ZstdLevel(i8);

impl ZstdLevel {
    /// The fastest level.
    pub const MIN: Self = Self(-7);
    /// The level that compresses best. Above it zstd takes more time than a page is worth.
    pub const MAX: Self = Self(9);

    /// Level `n`, if it is one of ours. 0 is none: zstd takes it for "default".
    #[must_use]
    pub const fn new(n: i8) -> Option<Self> {
        if n != 0 && Self::MIN.0 <= n && n <= Self::MAX.0 { Some(Self(n)) } else { None }
    }

    /// The number of the level.
    #[must_use]
    pub const fn get(self) -> i8 {
        self.0
    }
}

/// The codec of an object in one byte. 0 is never a codec.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct CodecId(u8);

impl CodecId {
    /// The id with this bit pattern, which may name no codec: [`Codec::from_id`] says.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The bit pattern of this id.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

const ID_LZ4: u8 = 1;
/// Ids of the zstd levels are this plus the level: 9 to 25.
const ID_ZSTD: i16 = 16;
/// Ids of deflate are this plus the place in the order of mode, level, parts: 64 to 159.
const ID_DEFLATE: u8 = 64;

impl Codec {
    /// The byte that stands for this codec. Ids live as long as the process, not on disk.
    #[must_use]
    pub const fn id(self) -> CodecId {
        CodecId(match self {
            Self::Lz4 => ID_LZ4,
            Self::Zstd(level) => (ID_ZSTD + level.0 as i16) as u8,
            Self::Deflate { mode, level, parts } => {
                let parts = if parts.0 == 0 { 0 } else { 1 + parts.0.ilog2() as u8 };
                ID_DEFLATE + (mode as u8 * 3 + level as u8) * 8 + parts
            }
        })
    }

    /// The codec that `id` stands for, if any does.
    #[must_use]
    pub const fn from_id(id: CodecId) -> Option<Self> {
        match id.0 {
            ID_LZ4 => Some(Self::Lz4),
            9..=25 => match ZstdLevel::new((id.0 as i16 - ID_ZSTD) as i8) {
                Some(level) => Some(Self::Zstd(level)),
                None => None,
            },
            ID_DEFLATE..160 => {
                let place = (id.0 - ID_DEFLATE) as usize;
                Some(Self::Deflate {
                    mode: DeflateMode::ALL[place / 24],
                    level: Level::ALL[place / 8 % 3],
                    parts: match place % 8 {
                        0 => Parts::WHOLE,
                        log => Parts(1 << (log - 1)),
                    },
                })
            }
            _ => None,
        }
    }

    /// Into how many parts it cuts a unit.
    #[must_use]
    pub const fn parts(self) -> Parts {
        match self {
            Self::Deflate { parts, .. } => parts,
            Self::Lz4 | Self::Zstd(_) => Parts::WHOLE,
        }
    }

    /// What each part is compressed with, a unit of its own.
    #[must_use]
    pub const fn of_part(self) -> Self {
        match self {
            Self::Deflate { mode, level, .. } => Self::Deflate { mode, level, parts: Parts::WHOLE },
            Self::Lz4 | Self::Zstd(_) => self,
        }
    }

    /// Bytes in the longest piece of a unit of `unit_bytes` bytes that is compressed for itself.
    #[must_use]
    pub const fn part_bytes(self, unit_bytes: usize) -> usize {
        match self.parts().count() {
            Some(n) => unit_bytes.div_ceil(n),
            None => unit_bytes,
        }
    }

    /// Whether its units begin with the id of a table.
    #[must_use]
    pub const fn is_canned(&self) -> bool {
        matches!(self, Self::Deflate { mode, .. } if mode.is_canned())
    }

    /// Whether its tables are learnt from the program's own units.
    #[must_use]
    pub const fn learns(self) -> bool {
        matches!(self, Self::Deflate { mode: DeflateMode::Canned, .. })
    }

    /// Every codec there is, in order of id.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).filter_map(|bits| Self::from_id(CodecId(bits)))
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd:{}", level.0),
            Self::Deflate { mode, level, parts } => {
                let level = level.get();
                match mode {
                    DeflateMode::Fixed => write!(f, "deflate-fixed:{level}")?,
                    DeflateMode::Dynamic => write!(f, "deflate-dynamic:{level}")?,
                    DeflateMode::CannedGeneral => write!(f, "deflate-canned:{level}:general")?,
                    DeflateMode::Canned => write!(f, "deflate-canned:{level}")?,
                }
                parts.count().map_or(Ok(()), |n| write!(f, ":by_{n}"))
            }
        }
    }
}

/// A word that names no codec: how much of it was understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseCodecError {
    /// The part before the colon is no family of codecs.
    Family,
    /// The part after the colon is no level of zstd.
    ZstdLevel,
    /// The parts after the colon are not what deflate takes.
    Deflate,
}

impl fmt::Display for ParseCodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Family => {
                "no such codec; use lz4, zstd:LEVEL, deflate-fixed:LEVEL, deflate-dynamic:LEVEL, \
                 deflate-canned:LEVEL or deflate-canned:LEVEL:general, as in zstd:1"
            }
            Self::ZstdLevel => "a level of zstd is -7 to -1 or 1 to 9, and nothing behind it, as in zstd:-1",
            Self::Deflate => {
                "a level of deflate is 1, 6 or 9; behind it canned may have :general; :by_N may end \
                 the name, N a power of two to 64; as in deflate-canned:1:general:by_4"
            }
        })
    }
}

impl core::error::Error for ParseCodecError {}

impl FromStr for Codec {
    type Err = ParseCodecError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (family, rest) = s.split_once(':').map_or((s, None), |(a, b)| (a, Some(b)));
        match (family, rest) {
            ("lz4", None) => Ok(Self::Lz4),
            ("zstd", Some(level)) => {
                // A number has one way to be written, so that a name has: no `+1`, no `01`.
                (ZstdLevel::MIN.0..=ZstdLevel::MAX.0)
                    .filter_map(ZstdLevel::new)
                    .find(|l| level_is_written(level, l.0))
                    .map(Self::Zstd)
                    .ok_or(ParseCodecError::ZstdLevel)
            }
            ("deflate-fixed", _) => parse_deflate(DeflateMode::Fixed, rest),
            ("deflate-dynamic", _) => parse_deflate(DeflateMode::Dynamic, rest),
            ("deflate-canned", _) => parse_deflate(DeflateMode::Canned, rest),
            _ => Err(ParseCodecError::Family),
        }
    }
}

/// Reads what comes after the family of a deflate codec: `LEVEL`, 1 when left out, `general` where
/// canned has the tables that ship, `by_N` where the unit is cut.
fn parse_deflate(mode: DeflateMode, rest: Option<&str>) -> Result<Codec, ParseCodecError> {
    let mut words = rest.into_iter().flat_map(|rest| rest.split(':')).peekable();
    let level_of =
        |word: &str| Level::ALL.into_iter().find(|l| level_is_written(word, l.get() as i8));
    let level = words.next_if(|word| level_of(word).is_some()).and_then(level_of);
    let general = mode == DeflateMode::Canned && words.next_if_eq(&"general").is_some();
    let mode = if general { DeflateMode::CannedGeneral } else { mode };
    let parts = match words.next() {
        None => Parts::WHOLE,
        Some(word) => Parts::all()
            .find(|parts| {
                parts.count().is_some_and(|n| {
                    word.strip_prefix("by_").is_some_and(|w| number_is_written(w, n))
                })
            })
            .ok_or(ParseCodecError::Deflate)?,
    };
    match words.next() {
        None => Ok(Codec::Deflate { mode, level: level.unwrap_or(Level::L1), parts }),
        Some(_) => Err(ParseCodecError::Deflate),
    }
}

/// Whether `text` is the number `n` (of one or two digits) as Display writes it.
fn number_is_written(text: &str, n: usize) -> bool {
    let (tens, ones) = (b'0' + (n / 10) as u8, b'0' + (n % 10) as u8);
    if n < 10 { text.as_bytes() == [ones] } else { text.as_bytes() == [tens, ones] }
}

/// Whether `text` is the number `n` (of one digit) as Display writes it.
fn level_is_written(text: &str, n: i8) -> bool {
    let text = if n < 0 { text.strip_prefix('-').unwrap_or_default() } else { text };
    number_is_written(text, n.unsigned_abs().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn a_part_is_a_unit_of_the_codec_without_parts() {
        for codec in Codec::all() {
            let n = codec.parts().count().unwrap_or(1);
            assert_eq!(codec.part_bytes(4096), 4096 / n);
            let of_part = codec.of_part();
            assert_eq!((of_part.parts(), of_part.of_part()), (Parts::WHOLE, of_part));
            assert!(codec.to_string().starts_with(&of_part.to_string()));
        }
    }

    #[test]
    fn names_and_ids_read_back() {
        let all: Vec<Codec> = Codec::all().collect();
        assert_eq!(all.len(), 1 + 16 + 4 * 3 * 8);
        for codec in all {
            assert_eq!(codec.to_string().parse(), Ok(codec));
            assert_eq!(Codec::from_id(codec.id()), Some(codec));
            assert_ne!(codec.id().bits(), 0);
        }
    }

    #[test]
    fn other_words_are_refused() {
        for word in ["", "LZ4", "lz4:1", "zstd", "zlib:1", " lz4"] {
            assert_eq!(word.parse::<Codec>(), Err(ParseCodecError::Family), "{word}");
        }
        for word in ["zstd:", "zstd:0", "zstd:10", "zstd:-8", "zstd:+1", "zstd:01", "zstd:1 "] {
            assert_eq!(word.parse::<Codec>(), Err(ParseCodecError::ZstdLevel), "{word}");
        }
        for word in [
            "deflate-fixed:",
            "deflate-fixed:2",
            "deflate-dynamic:1:general",
            "deflate-canned:",
            "deflate-canned:general:1",
            "deflate-canned:1:general:by_3",
            "deflate-canned:1:general:by_128",
            "deflate-canned:1:general:by_4:by_4",
            "deflate-dynamic:1:by_",
            "deflate-dynamic:by_4:1",
        ] {
            assert_eq!(word.parse::<Codec>(), Err(ParseCodecError::Deflate), "{word}");
        }
    }

    #[test]
    fn a_level_left_out_is_the_first() {
        for (short, long) in [
            ("deflate-fixed", "deflate-fixed:1"),
            ("deflate-dynamic:by_8", "deflate-dynamic:1:by_8"),
            ("deflate-canned", "deflate-canned:1"),
            ("deflate-canned:general", "deflate-canned:1:general"),
        ] {
            assert_eq!(short.parse::<Codec>().map(|c| c.to_string()), Ok(long.to_string()));
        }
    }
}
