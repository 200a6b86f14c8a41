//! The decoder's loop where nothing can go wrong: far from the ends of input and output, entries
//! that stand in the tables, matches from inside the output.
//!
//! Whatever is else is left to [`Block::step`], which does the same with every check, and which
//! the tests compare this with: the loop ends before such an entry as if it had not seen it.
#![allow(unsafe_code)] // Loads and stores without bounds checks: a third of the time.

use super::copy::repeated;
use super::huffman::LookUp;
use super::inflate::{Block, COUNT, COUNT_SHIFT, DISTANCE_LOOK_UP, MATCH, distance, length};
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
        unsafe { with_bmi2(block) }
    } else {
        anywhere(block)
    }
}

#[target_feature(enable = "bmi1,bmi2,lzcnt")]
fn with_bmi2<const L: usize>(block: &mut Block<'_, '_, L>) -> bool {
    anywhere(block)
}

/// [`sprint`] on any processor.
#[inline(always)]
pub fn anywhere<const L: usize>(block: &mut Block<'_, '_, L>) -> bool {
    let Some(mut lane) = Lane::of(block) else { return false };
    while lane.turn() {}
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
        unsafe { two_with_bmi2(a, b) }
    } else {
        two_anywhere(a, b)
    }
}

#[target_feature(enable = "bmi1,bmi2,lzcnt")]
fn two_with_bmi2<const L: usize>(a: &mut Block<'_, '_, L>, b: &mut Block<'_, '_, L>) -> bool {
    two_anywhere(a, b)
}

#[inline(always)]
fn two_anywhere<const L: usize>(a: &mut Block<'_, '_, L>, b: &mut Block<'_, '_, L>) -> bool {
    let (Some(mut one), Some(mut other)) = (Lane::of(a), Lane::of(b)) else { return false };
    while one.turn() && other.turn() {}
    let again = one.has_room() && other.has_room();
    one.leave(a);
    other.leave(b);
    again
}

/// A block's fields, where they can be kept in registers.
struct Lane<'a, const L: usize> {
    litlen: LookUp<'a, L>,
    distance: LookUp<'a, DISTANCE_LOOK_UP>,
    input: *const u8,
    /// The last place in the input from where a turn can begin.
    input_end: usize,
    room: *mut u8,
    /// The last place in the output from where a turn can begin.
    out_end: usize,
    from: usize,
    bits: u64,
    /// Bits loaded, in the lowest six bits: entries are taken off whole, so what is above has no
    /// meaning.
    count: u32,
    to: usize,
    now: u32,
}

impl<'a, const L: usize> Lane<'a, L> {
    #[inline(always)]
    fn of(block: &mut Block<'_, 'a, L>) -> Option<Self> {
        const { assert!(2 * LITLEN_BITS + 5 + DISTANCE_LOOK_UP.ilog2() + 13 <= 56) };
        const { assert!(L <= 1 << LITLEN_BITS) };
        let Block { reader, tables, out, at, entry } = block;
        Some(Self {
            litlen: tables.litlen.look_up_table(),
            distance: tables.distance.look_up_table(),
            input: reader.input.as_ptr(),
            input_end: reader.input.len().checked_sub(INPUT)?,
            room: out.as_mut_ptr(),
            out_end: out.len().checked_sub(LITERALS + ROOM)?,
            from: reader.at,
            bits: reader.bits,
            count: reader.count,
            to: *at,
            now: *entry,
        })
    }

    #[inline(always)]
    fn leave(self, block: &mut Block<'_, '_, L>) {
        (block.reader.at, block.reader.bits, block.reader.count) =
            (self.from, self.bits, self.count & 63);
        (block.at, block.entry) = (self.to, self.now);
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        self.from <= self.input_end && self.to <= self.out_end
    }

    /// Decodes an entry, if nothing can go wrong, and says whether it did.
    #[inline(always)]
    fn turn(&mut self) -> bool {
        if !self.has_room() {
            return false;
        }
        let Self { litlen, distance: far, input, room, from, bits, count, to, now, .. } = self;
        let input = *input;
        // Loads eight bytes at `from` above the `count` bits that are there.
        let refill = |from: &mut usize, bits: &mut u64, count: &mut u32| {
            // SAFETY: `from` is at most `input_end`: the eight bytes lie in the input.
            let word = unsafe { input.add(*from).cast::<u64>().read_unaligned() };
            *bits |= u64::from_le(word) << (*count & 63);
            *from += (7 - (*count >> 3 & 7)) as usize;
            *count |= 56;
        };
        let literals = ((*now >> 16) as u16).to_le_bytes();
        // SAFETY: `to` is at most `out_end`, from where two bytes lie in the output.
        unsafe { room.add(*to).cast::<[u8; 2]>().write_unaligned(literals) };
        let literals_end = *to + ((*now & COUNT) >> COUNT_SHIFT) as usize;
        let (rest, left) = (*bits >> (*now & 63), count.wrapping_sub(*now));
        if *now & MATCH == 0 {
            if *now & COUNT == 0 {
                return false;
            }
            (*bits, *count, *to) = (rest, left, literals_end);
            *now = litlen.get(*bits);
            refill(from, bits, count);
            return true;
        }
        let far = far.get(rest);
        let length = length(*now, *bits);
        let distance = distance(far, rest);
        // The match and what is written behind it must lie in the output, what it copies before it.
        let most = self.out_end + LITERALS - literals_end;
        if far & MATCH == 0 || distance > literals_end || length > most {
            return false;
        }
        (*bits, *count) = (rest >> (far & 63), left.wrapping_sub(far));
        *now = litlen.get(*bits);
        refill(from, bits, count);
        // SAFETY: `distance` is at most `literals_end`, and at least 1 as every class of distances
        // is; behind the match there are `ROOM` bytes of output.
        unsafe { copy(room.add(literals_end), distance, length) };
        *to = literals_end + length;
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

/// Copies `N` bytes.
///
/// # Safety
/// `N` bytes can be read from `from` and written to `to`.
#[inline(always)]
unsafe fn piece<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's word.
    unsafe { to.cast::<[u8; N]>().write_unaligned(from.cast::<[u8; N]>().read_unaligned()) }
}
