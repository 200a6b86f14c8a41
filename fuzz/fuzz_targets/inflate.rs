//! Any bytes as a deflate stream: we and zlib accept the same streams, with the same output and the
//! same input used, whatever room there is. A decoder that decoded something else before says the
//! same again.
//!
//! Headers of dynamic blocks are a narrow gate for bytes by chance. So there is a second way in: the
//! input lists symbols and the lengths of their codewords, and the header is written from that.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_codec::deflate::{Inflate, Inflated};
use octavo_fuzz::{Guarded, Input, by_zlib};

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let room = input.number();
    // The topmost room is as good as the rest: it says which way.
    if room < 0xf000 { agree(input.rest(), room) } else { agree(&listed(input), room) }
});

/// A dynamic block whose code lengths the input lists, and then the input's bits.
fn listed(mut input: Input<'_>) -> Vec<u8> {
    let (mut litlen, mut distance) = ([0; 286], [0; 30]);
    let count = input.byte();
    for _ in 0..count & 15 {
        let symbol = input.number() % 286;
        litlen[symbol] = input.byte() & 15;
    }
    // Without this one nothing is accepted.
    litlen[256] = 1 + (input.byte() & 7);
    for _ in 0..count >> 5 {
        let symbol = input.byte() % 30;
        distance[usize::from(symbol)] = input.byte() & 15;
    }
    let mut bits = Vec::new();
    let mut put = |value: usize, n: usize| bits.extend((0..n).map(|i| value >> i & 1 == 1));
    put(0b101, 3);
    put(286 - 257, 5);
    put(30 - 1, 5);
    put(19 - 4, 4);
    // Lengths as they are, each a codeword of 4 bits; no repeats, which stand first in this order.
    (0..19).for_each(|place| put(if place < 3 { 0 } else { 4 }, 3));
    let reversed = |length: u8| usize::from(length.reverse_bits() >> 4);
    litlen.iter().chain(&distance).for_each(|length| put(reversed(*length), 4));
    input.rest().iter().for_each(|byte| put((*byte).into(), 8));
    bits.chunks(8)
        .map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
        .collect()
}

fn agree(stream: &[u8], room: usize) {
    let zlib = by_zlib(stream, room);
    let mut inflate = Inflate::new();
    for _ in 0..2 {
        let mut out = Guarded::new(room);
        let inflated = inflate.inflate(stream, out.room());
        let out = out.checked();
        match inflated {
            Ok(Inflated { consumed, written }) => {
                assert!(zlib.accepted, "only we accept it: {consumed} bytes into {written}");
                assert_eq!((consumed, written), (zlib.consumed, zlib.out.len()));
                assert!(out[..written] == zlib.out, "zlib's output differs");
            }
            Err(error) => assert!(!zlib.accepted, "only zlib accepts it, we say {error}"),
        }
    }
}
