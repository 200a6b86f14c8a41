//! The decoder's loop where nothing can go wrong: far from the ends of input and output, entries
//! that stand in the tables, matches from inside the output.
//!
//! Whatever is else is left to [`Block::step`], which does the same with every check, and which
//! the tests compare this with: the loop ends before such an entry as if it had not seen it.
//!
//! One branch of a turn cannot be predicted: whether there is a match. So how a match is copied is no
//! other one where there are vectors, though near ones repeat what they have not written yet:
//!
//! ```text
//!   distance 3    ...a b c │                      the first 16 bytes are those 3 back, shuffled: a b c a b ...
//!                          │ abcabcabcabcabca │   the next 16 are those 18 back, the first multiple from 16 on
//! ```
#![allow(unsafe_code)] // Loads and stores without bounds checks: a third of the time.

use super::copy::repeated;
use super::inflate::{
    Block, COUNT, COUNT_SHIFT, DISTANCE_LOOK_UP, MATCH, Tables, distance, length,
};
use crate::cpu;

/// Bytes of input that one turn loads. Once is enough: of the 56 bits that are there, an entry takes
/// [`LITLEN_BITS`] and 5, a distance 9 and 13, and the next look-up sees as many as are left.
const INPUT: usize = 8;
/// Bits of the longest look-up of literals and lengths.
const LITLEN_BITS: u32 = 12;
/// Bytes behind the literals of an entry, or behind a match, that may be written.
const ROOM: usize = 32;
/// Literals that one entry can have.
const LITERALS: usize = 2;

/// Decodes as far as nothing can go wrong, and says whether it may again after the next entry.
#[inline(always)]
pub fn sprint<const L: usize>(block: &mut Block<'_, '_, L>) -> bool {
    if cpu::has_avx2() {
        // SAFETY: the processor was asked and has what the function wants.
        unsafe { with_avx2(block) }
    } else {
        anywhere(block)
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
fn with_avx2<const L: usize>(block: &mut Block<'_, '_, L>) -> bool {
    turns::<true, L>(block)
}

/// [`sprint`] on any processor.
#[inline(always)]
pub fn anywhere<const L: usize>(block: &mut Block<'_, '_, L>) -> bool {
    turns::<false, L>(block)
}

/// [`sprint`]; `V` says whether it is compiled for a processor that has AVX2.
#[inline(always)]
fn turns<const V: bool, const L: usize>(block: &mut Block<'_, '_, L>) -> bool {
    let Some(mut lane) = Lane::of(block) else { return false };
    while lane.turn::<V>() {}
    let again = lane.has_room();
    lane.leave(block);
    again
}

/// As [`sprint`] for two blocks in turns, an entry of each, until one of them cannot go on: what
/// one waits for, the other does not.
#[inline(always)]
pub fn sprint_two<const L: usize>(a: &mut Block<'_, '_, L>, b: &mut Block<'_, '_, L>) -> bool {
    if cpu::has_avx2() {
        // SAFETY: the processor was asked and has what the function wants.
        unsafe { two_with_avx2(a, b) }
    } else {
        two_in_turns::<false, L>(a, b)
    }
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
fn two_with_avx2<const L: usize>(a: &mut Block<'_, '_, L>, b: &mut Block<'_, '_, L>) -> bool {
    two_in_turns::<true, L>(a, b)
}

#[inline(always)]
fn two_in_turns<const V: bool, const L: usize>(
    a: &mut Block<'_, '_, L>,
    b: &mut Block<'_, '_, L>,
) -> bool {
    let (Some(mut one), Some(mut other)) = (Lane::of(a), Lane::of(b)) else { return false };
    while one.turn::<V>() && other.turn::<V>() {}
    let again = one.has_room() && other.has_room();
    one.leave(a);
    other.leave(b);
    again
}

/// A block's fields, where they can be kept in registers: few, and places as addresses.
struct Lane<'a, const L: usize> {
    tables: &'a Tables<L>,
    /// What is loaded next.
    from: *const u8,
    /// The last place in the input from where a turn can begin.
    last_from: *const u8,
    bits: u64,
    /// Bits loaded, in the lowest six bits: entries are taken off whole, so what is above has no
    /// meaning.
    count: u32,
    /// The next entry.
    now: u32,
    /// Where the output goes on.
    to: *mut u8,
    /// The last place in the output from where a turn can begin.
    last_to: *mut u8,
    /// Where the output begins.
    out: *mut u8,
}

impl<'a, const L: usize> Lane<'a, L> {
    #[inline(always)]
    fn of(block: &mut Block<'_, 'a, L>) -> Option<Self> {
        const { assert!(2 * LITLEN_BITS + 5 + DISTANCE_LOOK_UP.ilog2() + 13 <= 56) };
        const { assert!(L <= 1 << LITLEN_BITS) };
        let Block { reader, tables, out, at, entry } = block;
        let last_from = reader.input.len().checked_sub(INPUT)?;
        let last_to = out.len().checked_sub(LITERALS + ROOM)?;
        let (input, out) = (reader.input.as_ptr(), out.as_mut_ptr());
        // Behind its end the reader makes up zeros: such a place is never loaded from.
        Some(Self {
            tables,
            from: input.wrapping_add(reader.at),
            last_from: input.wrapping_add(last_from),
            bits: reader.bits,
            count: reader.count,
            now: *entry,
            to: out.wrapping_add(*at),
            last_to: out.wrapping_add(last_to),
            out,
        })
    }

    #[inline(always)]
    fn leave(self, block: &mut Block<'_, '_, L>) {
        let reader = &mut block.reader;
        reader.at = self.from.addr() - reader.input.as_ptr().addr();
        (reader.bits, reader.count) = (self.bits, self.count & 63);
        (block.at, block.entry) = (self.to.addr() - self.out.addr(), self.now);
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.from <= self.last_from && self.to <= self.last_to
    }

    /// Loads eight bytes above the bits that are left when entries of `taken` bits are.
    #[inline(always)]
    fn refill(&mut self, rest: u64, taken: u32) {
        let count = self.count.wrapping_sub(taken);
        // SAFETY: `from` is at most `last_from`: the eight bytes lie in the input.
        let word = unsafe { self.from.cast::<u64>().read_unaligned() };
        self.bits = rest | u64::from_le(word) << (count & 63);
        self.from = self.from.wrapping_add((!count >> 3 & 7) as usize);
        self.count = count | 56;
    }

    /// Decodes an entry, if nothing can go wrong, and says whether it did.
    #[inline(always)]
    fn turn<const V: bool>(&mut self) -> bool {
        if !self.has_room() {
            return false;
        }
        let (now, bits) = (self.now, self.bits);
        let literals = ((now >> 16) as u16).to_le_bytes();
        // SAFETY: `to` is at most `last_to`, from where two bytes lie in the output.
        unsafe { self.to.cast::<[u8; LITERALS]>().write_unaligned(literals) };
        let to = self.to.wrapping_add(((now & COUNT) >> COUNT_SHIFT) as usize);
        let rest = bits >> (now & 63);
        if now & MATCH == 0 {
            if now & COUNT == 0 {
                return false;
            }
            self.now = self.tables.litlen.look_up(rest);
            self.refill(rest, now);
            self.to = to;
            return true;
        }
        let far = self.tables.distance.look_up(rest);
        let length = length(now, bits);
        let distance = distance(far, rest);
        // The match and what is written behind it must lie in the output, what it copies before it.
        let most = self.last_to.addr() + LITERALS - to.addr();
        if far & MATCH == 0 || distance > to.addr() - self.out.addr() || length > most {
            return false;
        }
        let rest = rest >> (far & 63);
        self.now = self.tables.litlen.look_up(rest);
        self.refill(rest, now.wrapping_add(far));
        // SAFETY: `distance` is at most the output before `to`, and at least 1 as every class of distances
        // is; behind the match there are `ROOM` bytes of output. Where `V` is true, there is AVX2.
        unsafe {
            if V { copy_in_vectors(to, distance, length) } else { copy(to, distance, length) }
        };
        self.to = to.wrapping_add(length);
        true
    }
}

/// Writes `length` bytes to `to`, each as the one `distance` before it.
///
/// # Safety
/// From `distance` bytes before `to` to [`ROOM`] bytes behind the match everything is one
/// allocation that nobody else uses, and `distance` is not 0.
#[inline(always)]
unsafe fn copy(to: *mut u8, distance: usize, length: usize) {
    // SAFETY: the caller's word: `from` lies in the allocation. Pieces begin before the end of the
    // match, and reach no further than `ROOM` behind it; each is read before it is written, and a
    // piece that is no longer than the distance does not overlap what it becomes.
    unsafe {
        let from = to.sub(distance).cast_const();
        let mut done = 0;
        if distance >= 16 {
            // Nine of ten matches are no longer than the first two pieces.
            loop {
                piece::<16>(from.add(done), to.add(done));
                piece::<16>(from.add(done + 16), to.add(done + 16));
                done += 32;
                if done >= length {
                    return;
                }
            }
        }
        if distance >= 8 {
            while done < length {
                piece::<8>(from.add(done), to.add(done));
                done += 8;
            }
            return;
        }
        let word = repeated(from.cast::<u64>().read_unaligned(), distance);
        while done < length {
            to.add(done).cast::<u64>().write_unaligned(word);
            done += 8 - 8 % distance;
        }
    }
}

/// For each distance up to 16, which of the bytes from there on the next 16 are.
static REPEATED: [[u8; 16]; 17] = {
    let mut all = [[0; 16]; 17];
    let mut distance = 1;
    while distance <= 16 {
        let mut i = 0;
        while i < 16 {
            all[distance][i] = (i % distance) as u8;
            i += 1;
        }
        distance += 1;
    }
    all
};

/// For each distance up to 16, its least multiple from 16 on.
static FULL: [u8; 17] = {
    let mut all = [0; 17];
    let mut distance = 1;
    while distance <= 16 {
        all[distance] = (distance * 16usize.div_ceil(distance)) as u8;
        distance += 1;
    }
    all
};

/// As [`copy`], without a branch on the distance.
///
/// # Safety
/// As of [`copy`], and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_in_vectors(to: *mut u8, distance: usize, length: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_shuffle_epi8, _mm_storeu_si128};
    let near = distance.min(16);
    let back = distance.max(FULL[near].into());
    // SAFETY: the caller's word. The first 16 bytes from `distance` back on lie before `to` or in the room;
    // those in the room are not used. Then `back` is 16 at least, and what lies between `distance` and
    // `back`, where that is more, was written by the first store: a piece never overlaps what it becomes.
    // Pieces begin in the first 32 bytes or before the end of the match.
    unsafe {
        let bytes = _mm_loadu_si128(to.sub(distance).cast_const().cast());
        let which = _mm_loadu_si128((&raw const REPEATED[near]).cast::<__m128i>());
        _mm_storeu_si128(to.cast(), _mm_shuffle_epi8(bytes, which));
        let mut done = 16;
        loop {
            piece::<16>(to.add(done).sub(back), to.add(done));
            done += 16;
            if done >= length {
                return;
            }
        }
    }
}

/// There are no vectors: nobody says that the processor has them.
///
/// # Safety
/// As of [`copy`].
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn copy_in_vectors(to: *mut u8, distance: usize, length: usize) {
    // SAFETY: the caller's word.
    unsafe { copy(to, distance, length) }
}

/// Copies `N` bytes.
///
/// # Safety
/// `N` bytes can be read from `from` and written to `to`.
#[inline(always)]
unsafe fn piece<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's word.
    unsafe { to.cast::<[u8; N]>().write_unaligned(from.cast::<[u8; N]>().read_unaligned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_copy_is_one_byte_by_byte() {
        for distance in 1..70 {
            for length in 3..=258 {
                let mut plain: Vec<u8> = (1..=distance as u8).collect();
                (0..length).for_each(|i| plain.push(plain[i]));
                for vectors in [false, cpu::has_avx2()] {
                    let mut out = plain[..distance].to_vec();
                    out.resize(distance + length + ROOM, 0);
                    // What lies behind the room is not written.
                    out.extend([0xee; 16]);
                    let to = out[distance..].as_mut_ptr();
                    // SAFETY: `distance` bytes lie before `to`, and the room behind the match.
                    unsafe {
                        if vectors {
                            copy_in_vectors(to, distance, length);
                        } else {
                            copy(to, distance, length);
                        }
                    }
                    assert!(out[..plain.len()] == plain, "{length} from {distance}, {vectors}");
                    assert_eq!(out[plain.len() + ROOM..], [0xee; 16]);
                }
            }
        }
    }
}
