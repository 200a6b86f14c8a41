//! The matcher's fast way: one look at the place where the next 8 bytes were last seen, or else at
//! the place where the next 4 or 5 were.
//!
//! ```text
//!   long:  hash of 8 bytes ──► where they were      here ──► 8 the same? ─► 4 the same? ─► go on
//!   short: hash of 4 or 5  ──► where they were                   └── match ◄────┘
//! ```
//!
//! What cannot be predicted is computed for both cases: a branch that is guessed wrong costs more
//! than a look-up.
#![allow(unsafe_code)] // Loads without bounds checks: half of the time.

use super::matcher::{MAX_TABLE, Row, common, hash, push};
use core::hint::select_unpredictable;

/// Bytes that are looked at where a match may begin.
const LOOK: usize = 16;
/// Binary logarithm of the table for units of up to as many bytes that the window reaches over.
const SMALL_TABLE: u32 = 12;

/// How many bytes the short table is asked for. Where it is [`Short::Five`], matches of 4 are still
/// taken, but few are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Short {
    /// The smallest streams, in codes of their own and in general ones.
    Four,
    /// A little faster both ways: for learnt codes, in which 4 bytes cost about as much as a match.
    Five,
}

/// Finds matches at most `window` bytes back, with the memory of two tables of 2^[`MAX_TABLE`]
/// entries, and appends them to an empty `row`.
#[inline(always)]
pub fn bytes(
    unit: &[u8],
    window: usize,
    ask: Short,
    long: &mut [u16],
    short: &mut [u16],
    row: &mut Row<'_>,
) {
    // Two ways and no more: each is a loop of its own in whoever calls, and many make all slower.
    let small = unit.len() <= 1 << SMALL_TABLE && unit.len() <= window;
    let bits = if small { SMALL_TABLE } else { MAX_TABLE };
    let (long, short) = (&mut long[..1 << bits], &mut short[..1 << bits]);
    // 0 is a place, too: whatever a table says is looked at.
    long.fill(0);
    short.fill(0);
    match (small, ask) {
        (true, Short::Four) => go::<4, SMALL_TABLE, true>(unit, window, long, short, row),
        (true, Short::Five) => go::<5, SMALL_TABLE, true>(unit, window, long, short, row),
        (false, Short::Four) => go::<4, MAX_TABLE, false>(unit, window, long, short, row),
        (false, Short::Five) => go::<5, MAX_TABLE, false>(unit, window, long, short, row),
    }
}

/// `N` is how many bytes the short table is asked for, `B` the binary logarithm of the tables' length,
/// `NEAR` whether the window is the unit. Invariant: what the tables hold is less than `at`.
#[inline(always)]
fn go<const N: usize, const B: u32, const NEAR: bool>(
    unit: &[u8],
    window: usize,
    long: &mut [u16],
    short: &mut [u16],
    row: &mut Row<'_>,
) {
    assert!(long.len() == 1 << B && short.len() == 1 << B);
    let Some(last) = unit.len().checked_sub(LOOK + 1) else { return };
    let (start, long, short) = (unit.as_ptr(), long.as_mut_ptr(), short.as_mut_ptr());
    // SAFETY: called with places up to `last + 1`, of which 16 bytes follow, and with lesser ones.
    let load = |at: usize| unsafe { start.add(at).cast::<u64>().read_unaligned().to_le() };
    // SAFETY: a hash has `B` bits, and the table as many entries as that can count.
    let swap = |table: *mut u16, hash: usize, at: usize| unsafe {
        let entry = table.add(hash);
        usize::from(entry.replace(at as u16))
    };
    // Puts a place into both tables, and says what they had there for these 8 bytes.
    let put = |word: u64, at: usize| {
        let from_long = swap(long, hash(word, B), at);
        (from_long, swap(short, hash(word << (64 - 8 * N), B), at))
    };
    let near = |at: usize, from: usize| NEAR || at - from <= window;
    let (mut at, mut tail) = (1, 0);
    while at < last {
        let word = load(at);
        let (from_long, from_short) = put(word, at);
        let (begin, from, mut length);
        if load(from_long) == word && near(at, from_long) {
            // No longer one is looked for.
            put(load(at + 1), at + 1);
            (begin, from) = (at, from_long);
            length = 8 + same(load(from + 8) ^ load(begin + 8));
        } else {
            let differ = load(from_short) ^ word;
            if differ as u32 != 0 || !near(at, from_short) {
                at += 1 + ((at - tail) >> 6);
                continue;
            }
            // The match one byte on, if it is longer.
            let next = load(at + 1);
            let (next_long, next_short) = put(next, at + 1);
            let is_long = load(next_long) == next && near(at + 1, next_long);
            let next_from = select_unpredictable(is_long, next_long, next_short);
            let next_differ = if near(at + 1, next_from) { load(next_from) ^ next } else { 1 };
            let better = same(next_differ) > same(differ);
            begin = at + usize::from(better);
            from = select_unpredictable(better, next_from, from_short);
            let differ = select_unpredictable(better, next_differ, differ);
            let more = same(load(from + 8) ^ load(begin + 8));
            length = same(differ) + select_unpredictable(differ == 0, more, 0);
        }
        if length == LOOK {
            length += common(unit, from + LOOK, begin + LOOK);
        }
        push(row, begin, length, begin - from);
        tail = begin + length;
        at = tail;
        // Places to be found again, near the end of the match: one, or three for the smallest streams.
        if at < last {
            for back in if N == 4 { 1..=3 } else { 2..=2 } {
                put(load(at - back), at - back);
            }
        }
    }
}

/// Bytes at the front that do not differ.
#[inline(always)]
fn same(differ: u64) -> usize {
    (differ.trailing_zeros() / 8) as usize
}
