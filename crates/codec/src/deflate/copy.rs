//! Copying a match: bytes from further up in the same buffer, which may overlap what they become.
//!
//! ```text
//!   distance 3, length 7:   a b c │ a b c a b c a
//! ```
//!
//! The plain way is byte by byte. The fast way writes words, past the end of the match where it is
//! not a whole number of them, over bytes that are decoded later; it wants 32 bytes of room there.

/// Bytes that may be written behind a match.
const ROOM: usize = 32;

/// Appends to the `at` bytes of `out` the `length` bytes from `distance` back, and returns their
/// end; `None` when `out` is too short. Repeats itself where it overlaps itself.
///
/// # Panics
/// When `distance` is 0 or more than `at`.
#[inline(always)]
pub fn copy_match(out: &mut [u8], at: usize, length: usize, distance: usize) -> Option<usize> {
    let end = at + length;
    if end + ROOM > out.len() {
        return copy_plain(out, at, length, distance);
    }
    let from = at - distance;
    if distance >= 16 {
        // A piece never overlaps the one it becomes. The first two without asking for the length:
        // nine of ten matches are no longer. Pairs begin before the end, so they end in the room.
        let mut done = 0;
        loop {
            copy::<16>(out, from + done, at + done);
            copy::<16>(out, from + done + 16, at + done + 16);
            done += 32;
            if done >= length {
                break;
            }
        }
    } else if distance >= 8 {
        let mut done = 0;
        while done < length {
            copy::<8>(out, from + done, at + done);
            copy::<8>(out, from + done + 8, at + done + 8);
            done += 16;
        }
    } else {
        // A word full of what repeats, put down at whole numbers of its period.
        let word = repeated(load8(out, from), distance);
        let step = 8 - 8 % distance;
        store8(out, at, word);
        store8(out, at + step, word);
        let mut done = 2 * step;
        while done < length {
            store8(out, at + done, word);
            done += step;
        }
    }
    Some(end)
}

#[inline(always)]
fn load8(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("room was asked for"))
}

#[inline(always)]
fn store8(bytes: &mut [u8], at: usize, word: u64) {
    *bytes[at..].first_chunk_mut().expect("room was asked for") = word.to_le_bytes();
}

#[inline(always)]
fn copy<const N: usize>(bytes: &mut [u8], from: usize, to: usize) {
    let piece: [u8; N] = *bytes[from..].first_chunk().expect("room was asked for");
    *bytes[to..].first_chunk_mut().expect("room was asked for") = piece;
}

/// The lowest `period` bytes of a word, 1 to 7, again and again.
#[inline(always)]
pub fn repeated(word: u64, period: usize) -> u64 {
    (word & (u64::MAX >> (64 - 8 * period))).wrapping_mul(REPEAT[period & 7])
}

/// What to multiply the lowest `n` bytes of a word by to fill the word with them, again and again.
const REPEAT: [u64; 8] = {
    let mut repeat = [0; 8];
    let mut n = 1;
    while n < 8 {
        let mut at = 0;
        while at < 8 {
            repeat[n] |= 1 << (8 * at);
            at += n;
        }
        n += 1;
    }
    repeat
};

/// The plain way, for the end of the buffer.
#[cold]
#[inline(never)]
fn copy_plain(out: &mut [u8], at: usize, length: usize, distance: usize) -> Option<usize> {
    let end = at + length;
    if end > out.len() {
        return None;
    }
    for to in at..end {
        out[to] = out[to - distance];
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn the_fast_way_does_what_the_plain_way_does() {
        for distance in 1..40 {
            for length in 3..=258 {
                for room in [0, ROOM - 1, ROOM, 100] {
                    let at = 45;
                    let mut fast: Vec<u8> = (0..at + length + room).map(|i| i as u8).collect();
                    let mut plain = fast.clone();
                    let end = copy_match(&mut fast, at, length, distance);
                    assert_eq!(end, copy_plain(&mut plain, at, length, distance));
                    assert_eq!(end, Some(at + length));
                    assert_eq!(fast[..at + length], plain[..at + length], "{distance} {length}");
                    // Behind the room that it may use nothing changes.
                    let behind = fast.len().min(at + length + ROOM);
                    assert_eq!(fast[behind..], plain[behind..]);
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(copy_match(&mut [1; 10], 4, 7, 1), None);
        assert_eq!(copy_match(&mut [1; 10], 4, 6, 4), Some(10));
    }
}
