//! by_n: a unit cut into N equal parts, each a stream of its own.
//!
//! ```text
//!   ┌───┬──────────┬─────────┬────────┬────────┬─ ─ ─┐
//!   │ N │ start 1  │ start 2 │  ...   │ part 0 │ ... │
//!   └───┴──────────┴─────────┴────────┴────────┴─ ─ ─┘
//!    N words of 32 bits, little-endian  ▲ at 4 N
//! ```
//!
//! The words are byte offsets from the beginning; a part ends where the next begins, the last one
//! where the bytes end. Parts know nothing of each other, so that an accelerator can do them all
//! at once ([`set_start`] and [`part`] are for who does that); the price is a header, and matches that
//! do not reach into the part before. A part that does not fit fails the whole.

use crate::{Corrupt, DoesNotFit};

/// Bytes in front of the parts.
#[must_use]
pub const fn header_bytes(n: usize) -> usize {
    4 * n
}

/// Writes into the header that part `i` of `n` begins at byte `start`.
///
/// # Panics
/// When `out` is shorter than the header.
pub fn set_start(n: usize, i: usize, start: usize, out: &mut [u8]) {
    let word = if i == 0 { n } else { start };
    out[4 * i..][..4].copy_from_slice(&(word as u32).to_le_bytes());
}

/// The bytes of part `i` of `n`.
///
/// # Errors
/// [`Corrupt`] when the header says that there is none.
pub fn part(n: usize, i: usize, bytes: &[u8]) -> Result<&[u8], Corrupt> {
    let word = |i: usize| -> Result<usize, Corrupt> {
        let word = bytes.get(4 * i..).and_then(<[u8]>::first_chunk).ok_or(Corrupt::Damaged)?;
        Ok(u32::from_le_bytes(*word) as usize)
    };
    if word(0)? != n {
        return Err(Corrupt::Damaged);
    }
    let start = if i == 0 { header_bytes(n) } else { word(i)? };
    let end = if i + 1 == n { bytes.len() } else { word(i + 1)? };
    bytes.get(start..end).ok_or(Corrupt::Damaged)
}

/// Compresses each of `n` parts of `unit` with `one`, into the front of `out`.
///
/// # Panics
/// When `unit` cannot be cut into `n` equal parts.
pub(crate) fn compress(
    n: usize,
    unit: &[u8],
    out: &mut [u8],
    mut one: impl FnMut(&[u8], &mut [u8]) -> Result<usize, DoesNotFit>,
) -> Result<usize, DoesNotFit> {
    assert_parts(n, unit.len());
    let mut end = header_bytes(n);
    if out.len() < end {
        return Err(DoesNotFit);
    }
    for (i, part) in unit.chunks_exact(unit.len() / n).enumerate() {
        set_start(n, i, end, out);
        end += one(part, &mut out[end..])?;
    }
    Ok(end)
}

/// A part's bytes, and where what they give goes.
pub(crate) type Part<'a> = (&'a [u8], &'a mut [u8]);

/// Decompresses the `n` parts of `bytes` into the whole of `out`: hands them to `some` one by one,
/// or, where there are more, two by two.
///
/// # Panics
/// When `out` cannot be cut into `n` equal parts.
pub(crate) fn decompress(
    n: usize,
    bytes: &[u8],
    out: &mut [u8],
    mut some: impl FnMut(Part<'_>, Option<Part<'_>>) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    assert_parts(n, out.len());
    let part_bytes = out.len() / n;
    let part = |(i, out)| -> Result<Part<'_>, Corrupt> { Ok((part(n, i, bytes)?, out)) };
    let mut parts = out.chunks_exact_mut(part_bytes).enumerate().map(part);
    while let Some(part) = parts.next() {
        some(part?, parts.next().transpose()?)?;
    }
    Ok(())
}

fn assert_parts(n: usize, bytes: usize) {
    assert!(bytes.is_multiple_of(n), "{bytes} bytes in {n} equal parts");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A codec that leaves bytes as they are, or refuses parts that begin with 9.
    fn keep(part: &[u8], out: &mut [u8]) -> Result<usize, DoesNotFit> {
        if part[0] == 9 {
            return Err(DoesNotFit);
        }
        out.get_mut(..part.len()).ok_or(DoesNotFit)?.copy_from_slice(part);
        Ok(part.len())
    }

    fn kept(one: Part<'_>, other: Option<Part<'_>>) -> Result<(), Corrupt> {
        for (bytes, part) in [one].into_iter().chain(other) {
            if bytes.len() != part.len() {
                return Err(Corrupt::Damaged);
            }
            part.copy_from_slice(bytes);
        }
        Ok(())
    }

    #[test]
    fn the_header_is_the_rfc_s() {
        let mut out = [0xee; 32];
        assert_eq!(compress(2, &[1, 2, 3, 4], &mut out, keep), Ok(12));
        assert_eq!(out[..13], [2, 0, 0, 0, 10, 0, 0, 0, 1, 2, 3, 4, 0xee]);
        let mut back = [0; 4];
        assert_eq!(decompress(2, &out[..12], &mut back, kept), Ok(()));
        assert_eq!(back, [1, 2, 3, 4]);
    }

    #[test]
    fn one_part_that_does_not_fit_fails_the_whole() {
        let mut out = [0; 32];
        assert_eq!(compress(2, &[1, 2, 9, 4], &mut out, keep), Err(DoesNotFit));
        assert_eq!(compress(2, &[1, 2, 3, 4], &mut out[..11], keep), Err(DoesNotFit));
        assert_eq!(compress(2, &[1, 2, 3, 4], &mut out[..7], keep), Err(DoesNotFit));
    }

    #[test]
    fn a_damaged_header_is_corrupt() {
        let whole = [2, 0, 0, 0, 10, 0, 0, 0, 1, 2, 3, 4];
        let mut back = [0; 4];
        for end in 0..12 {
            assert_eq!(decompress(2, &whole[..end], &mut back, kept), Err(Corrupt::Damaged));
        }
        for (at, value) in [(0, 1), (0, 4), (4, 7), (4, 9), (4, 13), (7, 0xff)] {
            let mut damaged = whole;
            damaged[at] = value;
            assert_eq!(decompress(2, &damaged, &mut back, kept), Err(Corrupt::Damaged));
        }
    }
}
