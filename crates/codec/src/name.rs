//! What codecs are called: by people (`zstd:-1`), and by the store beside each object (one byte).

use core::fmt;
use core::str::FromStr;

/// How a unit is compressed. Prints as, and is read from, the name used on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Codec {
    /// LZ4 blocks, `lz4`: the fastest.
    Lz4,
    /// zstd frames without magic number, `zstd:LEVEL`: smaller, and slower, with the level.
    Zstd(ZstdLevel),
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

impl Codec {
    /// The byte that stands for this codec. Ids live as long as the process, not on disk.
    #[must_use]
    pub const fn id(self) -> CodecId {
        CodecId(match self {
            Self::Lz4 => ID_LZ4,
            Self::Zstd(level) => (ID_ZSTD + level.0 as i16) as u8,
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
            _ => None,
        }
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
}

impl fmt::Display for ParseCodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Family => "no such codec; use lz4 or zstd:LEVEL, as in zstd:1",
            Self::ZstdLevel => "a level of zstd is -7 to -1 or 1 to 9, as in zstd:-1",
        })
    }
}

impl core::error::Error for ParseCodecError {}

impl FromStr for Codec {
    type Err = ParseCodecError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s.split_once(':') {
            None if s == "lz4" => Ok(Self::Lz4),
            Some(("zstd", level)) => {
                // A number has one way to be written, so that a name has: no `+1`, no `01`.
                (ZstdLevel::MIN.0..=ZstdLevel::MAX.0)
                    .filter_map(ZstdLevel::new)
                    .find(|l| level_is_written(level, l.0))
                    .map(Self::Zstd)
                    .ok_or(ParseCodecError::ZstdLevel)
            }
            _ => Err(ParseCodecError::Family),
        }
    }
}

/// Whether `text` is the number `n` (of one digit) as Display writes it.
fn level_is_written(text: &str, n: i8) -> bool {
    let digit = b'0' + n.unsigned_abs();
    if n < 0 { text.as_bytes() == [b'-', digit] } else { text.as_bytes() == [digit] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn names_and_ids_read_back() {
        let all: Vec<Codec> = Codec::all().collect();
        assert_eq!(all.len(), 1 + 16);
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
    }
}
