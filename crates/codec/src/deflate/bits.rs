//! The bit stream of deflate: the first bit is the lowest of the first byte.
#![allow(unsafe_code)] // Vector instructions.

use crate::DoesNotFit;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::__m256i;

/// Writes bits into a slice.
///
/// Bits are gathered in a word and stored eight bytes at a time; what lies behind the last bit is
/// overwritten by the next store.
pub struct Writer<'a> {
    out: &'a mut [u8],
    /// Bytes complete and stored.
    at: usize,
    bits: u64,
    /// Bits in the word, in the lowest six bits; what is above has no meaning.
    count: u32,
}

/// A codeword with its extra bits, as a [`Writer`] takes it: their number in the lowest six bits,
/// the bits above.
pub type Codeword = u32;

/// The most bits that a [`Codeword`] can have.
pub const MAX_CODEWORD: u32 = 26;

/// The [`Codeword`] of `count` bits.
pub const fn codeword(bits: u32, count: u32) -> Codeword {
    debug_assert!(bits >> count == 0 && count <= MAX_CODEWORD);
    bits << 6 | count
}

/// A codeword with `count` extra bits behind it.
#[inline(always)]
pub const fn with_extra(word: Codeword, extra: u32, count: u32) -> Codeword {
    debug_assert!(extra >> count == 0 && (word & 63) + count <= MAX_CODEWORD);
    word + (extra << 6 << (word & 63)) + count
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0, bits: 0, count: 0 }
    }

    /// Adds bits to the word. After a [`Writer::flush`] there is room for 56.
    #[inline(always)]
    pub fn put(&mut self, codeword: Codeword) {
        debug_assert!((self.count & 63) + (codeword & 63) <= 63);
        self.bits |= u64::from(codeword >> 6) << (self.count & 63);
        self.count = self.count.wrapping_add(codeword);
    }

    /// Adds `count` bits, the others being 0.
    #[inline(always)]
    pub fn put_bits(&mut self, bits: u64, count: u32) {
        debug_assert!((self.count & 63) + count <= 63 && bits >> count == 0);
        self.bits |= bits << (self.count & 63);
        self.count = self.count.wrapping_add(count);
    }

    /// Stores the complete bytes of the word.
    #[inline(always)]
    pub fn flush(&mut self) -> Result<(), DoesNotFit> {
        let bytes = (self.count & 63) as usize / 8;
        match self.out.get_mut(self.at..).and_then(<[u8]>::first_chunk_mut) {
            Some(chunk) => *chunk = self.bits.to_le_bytes(),
            None => store_at_end(self.out, self.at, self.bits, bytes)?,
        }
        self.at += bytes;
        self.bits >>= self.count & 56;
        self.count &= 7;
        Ok(())
    }

    /// Writes codewords, one after another: any two have 56 bits at most.
    #[inline(always)]
    pub fn put_all(&mut self, codewords: &[Codeword]) -> Result<(), DoesNotFit> {
        #[cfg(target_arch = "x86_64")]
        if crate::cpu::has_avx2() {
            // SAFETY: the processor was asked and has what the function wants.
            return unsafe { self.put_all_joined(codewords) };
        }
        self.put_all_anywhere(codewords)
    }

    /// As [`Writer::put_all`]: joins four codewords to one before it is put.
    ///
    /// ```text
    ///   a b c d e f g h    eight codewords, 32 bits each: bits and their number
    ///   a+b c+d e+f g+h    b goes above a, in 64 bits
    ///   abcd    efgh       put, unless either has more than 56 bits
    /// ```
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn put_all_joined(&mut self, codewords: &[Codeword]) -> Result<(), DoesNotFit> {
        use core::arch::x86_64::{
            _mm256_add_epi64, _mm256_and_si256, _mm256_extract_epi64, _mm256_or_si256,
            _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_sllv_epi64, _mm256_srli_epi32,
            _mm256_srli_epi64, _mm256_unpackhi_epi64,
        };
        const { assert!(size_of::<Codeword>() == 4) };
        let mut writer = Writer { out: &mut *self.out, ..*self };
        writer.flush()?;
        let eights = codewords.as_chunks::<8>();
        for eight in eights.0 {
            // SAFETY: 32 bytes either way, and any bits make a vector.
            let words = unsafe { core::mem::transmute::<[Codeword; 8], __m256i>(*eight) };
            let bits = _mm256_srli_epi32(words, 6);
            let counts = _mm256_and_si256(words, _mm256_set1_epi32(63));
            let low = _mm256_set1_epi64x(0xffff_ffff);
            // Two at a time: the second above the first.
            let first = _mm256_and_si256(counts, low);
            let second = _mm256_sllv_epi64(_mm256_srli_epi64(bits, 32), first);
            let bits = _mm256_or_si256(_mm256_and_si256(bits, low), second);
            let counts = _mm256_add_epi64(first, _mm256_srli_epi64(counts, 32));
            // The second pair above the first; what is in the other half of the lanes is not used.
            let second = _mm256_sllv_epi64(_mm256_unpackhi_epi64(bits, bits), counts);
            let bits = _mm256_or_si256(bits, second);
            let counts = _mm256_add_epi64(counts, _mm256_unpackhi_epi64(counts, counts));
            let (a, b) = (_mm256_extract_epi64(counts, 0), _mm256_extract_epi64(counts, 2));
            let (a, b) = (a as u32, b as u32);
            let room = writer.out.get_mut(writer.at..).and_then(<[u8]>::first_chunk_mut);
            let (Some(room), true) = (room, a.max(b) <= 56) else {
                writer.put_all_anywhere(eight)?;
                continue;
            };
            let room: &mut [u8; 16] = room;
            writer.bits |= (_mm256_extract_epi64(bits, 0) as u64) << (writer.count & 63);
            writer.count += a;
            room[..8].copy_from_slice(&writer.bits.to_le_bytes());
            let bytes = (writer.count >> 3 & 7) as usize;
            writer.bits >>= writer.count & 56;
            writer.count &= 7;
            writer.bits |= (_mm256_extract_epi64(bits, 2) as u64) << writer.count;
            writer.count += b;
            room[bytes..bytes + 8].copy_from_slice(&writer.bits.to_le_bytes());
            writer.at += bytes + (writer.count >> 3 & 7) as usize;
            writer.bits >>= writer.count & 56;
            writer.count &= 7;
        }
        (self.at, self.bits, self.count) = (writer.at, writer.bits, writer.count);
        self.put_all_anywhere(eights.1)
    }

    /// [`Writer::put_all`] on any processor.
    #[inline(always)]
    fn put_all_anywhere(&mut self, codewords: &[Codeword]) -> Result<(), DoesNotFit> {
        // In registers, not through `self`: what is stored in `out` might be a field of it.
        let mut writer = Writer { out: &mut *self.out, ..*self };
        const { assert!(2 * MAX_CODEWORD <= 56) };
        for two in codewords.chunks(2) {
            two.iter().for_each(|&codeword| writer.put(codeword));
            writer.flush()?;
        }
        (self.at, self.bits, self.count) = (writer.at, writer.bits, writer.count);
        Ok(())
    }

    /// Fills the last byte with zeros and returns how many bytes there are.
    pub fn finish(mut self) -> Result<usize, DoesNotFit> {
        self.count = (self.count & 63).next_multiple_of(8);
        self.flush()?;
        Ok(self.at)
    }
}

/// Stores the first `n` bytes of `bits` where there is no room for all eight.
///
/// Not a method, here and in [`Reader`]: a call with the address of the whole would keep its
/// fields out of registers everywhere else.
#[cold]
#[inline(never)]
fn store_at_end(out: &mut [u8], at: usize, bits: u64, n: usize) -> Result<(), DoesNotFit> {
    let room = out.get_mut(at..at + n).ok_or(DoesNotFit)?;
    room.copy_from_slice(&bits.to_le_bytes()[..n]);
    Ok(())
}

/// Reads bits. Behind the end there are zeros without end; [`Reader::overran`] tells whether any
/// of them was taken, so that the hot path need not ask at every step.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    pub(super) input: &'a [u8],
    /// The next byte to load. Past the end it counts the zero bytes made up.
    pub(super) at: usize,
    /// Loaded and not yet taken: at least `count` bits. Higher bits are either zero or what the
    /// next load will put there anyway.
    pub(super) bits: u64,
    pub(super) count: u32,
}

impl<'a> Reader<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        Self { input, at: 0, bits: 0, count: 0 }
    }

    /// Loads until at least 56 bits are there to be taken.
    #[inline(always)]
    pub fn refill(&mut self) {
        if let Some(Some(chunk)) = self.input.get(self.at..).map(<[u8]>::first_chunk) {
            self.bits |= u64::from_le_bytes(*chunk) << self.count;
            self.at += ((63 - self.count) / 8) as usize;
            self.count |= 56;
        } else {
            let bytes = ((63 - self.count) / 8) as usize;
            self.bits |= load_at_end(self.input, self.at, bytes) << self.count;
            self.at += bytes;
            self.count |= 56;
        }
    }

    /// The loaded bits; those beyond the count loaded are not to be trusted.
    #[inline(always)]
    pub fn peek(&self) -> u64 {
        self.bits
    }

    /// Drops `n` loaded bits.
    #[inline(always)]
    pub fn consume(&mut self, n: u32) {
        debug_assert!(n <= self.count, "{n} bits of {} taken", self.count);
        self.bits >>= n;
        self.count -= n;
    }

    /// Takes `n` bits, at most 32, loading as needed.
    #[inline(always)]
    pub fn take(&mut self, n: u32) -> u32 {
        self.refill();
        let bits = self.bits & ((1 << n) - 1);
        self.consume(n);
        bits as u32
    }

    /// Whether exactly the input was taken, but for zeros that fill its last byte.
    pub fn ended(&self) -> bool {
        let rest = self.bits & ((1 << (self.count % 8)) - 1);
        self.position() == self.input.len() && rest == 0
    }

    /// Whether bits from behind the end were taken.
    pub fn overran(&self) -> bool {
        self.position() > self.input.len()
    }

    /// Bytes of which at least one bit was taken.
    pub fn position(&self) -> usize {
        self.at - (self.count / 8) as usize
    }

    /// Drops the rest of the current byte and returns all bytes after it.
    pub fn align(&mut self) -> &'a [u8] {
        self.input.get(self.position()..).unwrap_or(&[])
    }

    /// Goes on reading `bytes` bytes after [`Reader::position`], at the start of a byte.
    pub fn skip(&mut self, bytes: usize) {
        self.at = self.position() + bytes;
        self.bits = 0;
        self.count = 0;
    }
}

/// The `n` bytes from `at` on as a little-endian number, zeros behind the end of `input`.
#[cold]
#[inline(never)]
fn load_at_end(input: &[u8], at: usize, n: usize) -> u64 {
    let mut bytes = [0; 8];
    let rest = input.get(at..).unwrap_or(&[]);
    let n = n.min(rest.len());
    bytes[..n].copy_from_slice(&rest[..n]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Literals, lengths with extra bits and distances with theirs, as long as they can be.
    fn codewords() -> impl Strategy<Value = Vec<Codeword>> {
        let one = |most: u32| {
            (0..=most, any::<u32>()).prop_map(|(n, bits)| codeword(bits & ((1 << n) - 1), n))
        };
        let literal = one(15).prop_map(|word| [word].to_vec());
        let sequence = (one(20), one(MAX_CODEWORD)).prop_map(|(a, b)| [a, b].to_vec());
        proptest::collection::vec(prop_oneof![literal, sequence], 0..60)
            .prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn together_is_one_by_one(before in 0u32..8, words in codewords(), room in 0usize..300) {
            let (mut plain, mut fast) = ([0xee; 300], [0xee; 300]);
            let write = |out, all: bool| {
                let mut writer = Writer::new(out);
                writer.put_bits(0, before);
                if all {
                    writer.put_all(&words)?;
                } else {
                    for &word in &words {
                        writer.put(word);
                        writer.flush()?;
                    }
                }
                writer.finish()
            };
            let size = write(&mut plain[..room], false);
            prop_assert_eq!(write(&mut fast[..room], true), size);
            if let Ok(size) = size {
                prop_assert_eq!(&fast[..size], &plain[..size]);
            }
        }
    }
}
