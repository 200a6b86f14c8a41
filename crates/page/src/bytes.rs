//! Sizes as people write them: `4K`, `512M`, `2G`, powers of 1024, a plain number is bytes.

use core::fmt;
use core::str::FromStr;

/// A number of bytes. Reads `512M`, `2G`, `4096`; prints the largest exact unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteSize(u64);

impl ByteSize {
    /// This many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// This many MiB.
    #[must_use]
    pub const fn mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The number of whole pages in it.
    #[must_use]
    pub const fn pages(self) -> u64 {
        self.0 >> crate::PAGE_SHIFT
    }
}

const SUFFIXES: [(u8, u32); 4] = [(b'K', 10), (b'M', 20), (b'G', 30), (b'T', 40)];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (letter, shift) in SUFFIXES.into_iter().rev() {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{}", self.0 >> shift, letter as char);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// A word that is no size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseByteSizeError {
    /// Not digits and at most one unit.
    NotASize,
    /// A size, but past 2^64 bytes.
    TooLarge,
}

impl fmt::Display for ParseByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotASize => "a size is a whole number with an optional K, M, G or T, as in 512M",
            Self::TooLarge => "that size does not fit 64 bits; a size is written as in 512M or 2G",
        })
    }
}

impl core::error::Error for ParseByteSizeError {}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    /// Digits, then nothing or one of K, M, G, T in either case, then optionally `iB` or `B`.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let digits = s.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = s.split_at(digits);
        if number.is_empty() {
            return Err(ParseByteSizeError::NotASize);
        }
        let shift = shift_of(rest).ok_or(ParseByteSizeError::NotASize)?;
        let number: u64 = number.parse().map_err(|_| ParseByteSizeError::TooLarge)?;
        number.checked_mul(1 << shift).map(Self).ok_or(ParseByteSizeError::TooLarge)
    }
}

/// The power of two that a suffix stands for; nothing and `B` are bytes.
fn shift_of(suffix: &str) -> Option<u32> {
    let mut letters = suffix.chars();
    let (Some(first), rest) = (letters.next(), letters.as_str()) else { return Some(0) };
    if suffix == "B" {
        return Some(0);
    }
    let (_, shift) = SUFFIXES.iter().find(|(l, _)| first.eq_ignore_ascii_case(&(*l as char)))?;
    matches!(rest, "" | "B" | "b" | "iB" | "ib").then_some(*shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4K", 4096),
            ("4k", 4096),
            ("512M", 512 << 20),
            ("2G", 2 << 30),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
            ("64B", 64),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize::new(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_so() {
        for text in ["", "M", "-1M", "1.5G", "512 M", "512Q", "0x10", "1MM", "1Bi", "1é"] {
            assert_eq!(text.parse::<ByteSize>(), Err(ParseByteSizeError::NotASize), "{text}");
        }
        for text in ["18446744073709551616", "99999999999T"] {
            assert_eq!(text.parse::<ByteSize>(), Err(ParseByteSizeError::TooLarge), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_size_reads_back_as_it_prints(bytes: u64) {
            let size = ByteSize::new(bytes);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn any_text_is_answered(text in "\\PC*") {
            let _ = text.parse::<ByteSize>();
        }
    }
}
