//! XTS (IEEE 1619) by AWS-LC's assembler: AES with a tweak that says where a block stands.
//!
//! ```text
//!   T(0) = AES(tweak key, IV of the sector)        T(j+1) = T(j) * x   in GF(2^128)
//!
//!   block j  ──xor T(j)──►  AES(data key)  ──xor T(j)──►  the same block in the file
//! ```
//! The loops are the library's, one for processors with VAES and AVX-512 and one for all with AES-NI,
//! and so is the expansion of keys. They are called directly, without the library's contexts, which
//! would be allocated by malloc and hold the keys. What the loops touch is what they are given: no
//! thread-local storage, no global state but a word of processor features that nobody sets here.
//!
//! The names are not of the library's documented interface and carry its version. Therefore the
//! version is fixed in `Cargo.toml`; with another one, linking fails until the names are changed.
#![allow(unsafe_code)] // Functions in assembler.

use crate::{Format, Piece};
use aws_lc_sys::AES_KEY;
use core::mem::MaybeUninit;

/// Bytes of one of the two keys, and their bits.
const HALF: usize = 32;
const HALF_BITS: i32 = 256;

/// XTS on one sector, `from` to `to`, which are the same or do not overlap. `len` is a multiple of 16.
type Loop = unsafe extern "C" fn(
    from: *const u8,
    to: *mut u8,
    len: usize,
    data: *const AES_KEY,
    tweak: *const AES_KEY,
    iv: *const [u8; 16],
);

unsafe extern "C" {
    #[link_name = "aws_lc_0_47_0_aes_hw_set_encrypt_key"]
    fn set_encrypt_key(key: *const u8, bits: i32, to: *mut AES_KEY) -> i32;
    #[link_name = "aws_lc_0_47_0_aes_hw_set_decrypt_key"]
    fn set_decrypt_key(key: *const u8, bits: i32, to: *mut AES_KEY) -> i32;
    #[link_name = "aws_lc_0_47_0_aes_hw_xts_encrypt"]
    fn encrypt(
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: *const AES_KEY,
        _: *const AES_KEY,
        _: *const [u8; 16],
    );
    #[link_name = "aws_lc_0_47_0_aes_hw_xts_decrypt"]
    fn decrypt(
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: *const AES_KEY,
        _: *const AES_KEY,
        _: *const [u8; 16],
    );
    #[link_name = "aws_lc_0_47_0_aes_hw_xts_encrypt_avx512"]
    fn encrypt_avx512(
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: *const AES_KEY,
        _: *const AES_KEY,
        _: *const [u8; 16],
    );
    #[link_name = "aws_lc_0_47_0_aes_hw_xts_decrypt_avx512"]
    fn decrypt_avx512(
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: *const AES_KEY,
        _: *const AES_KEY,
        _: *const [u8; 16],
    );
}

// Without AES-NI there are no loops; the others need what AWS-LC asks for before it takes them.
cpufeatures::new!(aes_ni, "aes", "ssse3");
cpufeatures::new!(
    vaes,
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512vbmi2",
    "vaes",
    "vpclmulqdq"
);

/// The loops of a processor.
#[derive(Clone, Copy)]
pub(crate) struct Loops {
    encrypt: Loop,
    decrypt: Loop,
}

impl Loops {
    const VAES: Self = Self { encrypt: encrypt_avx512, decrypt: decrypt_avx512 };
    const AES_NI: Self = Self { encrypt, decrypt };

    /// All that this processor can run, fastest first.
    fn all() -> impl Iterator<Item = Self> {
        let [vaes, aes_ni] = [vaes::get() && aes_ni::get(), aes_ni::get()];
        vaes.then_some(Self::VAES).into_iter().chain(aes_ni.then_some(Self::AES_NI))
    }

    /// The fastest that this processor can run; none without AES-NI.
    pub(crate) fn fastest() -> Option<Self> {
        Self::all().next()
    }
}

/// The keys, expanded.
pub(crate) struct Schedule {
    encrypt: AES_KEY,
    decrypt: AES_KEY,
    tweak: AES_KEY,
    loops: Loops,
}

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Encrypt,
    Decrypt,
}

impl Schedule {
    /// Expands the data key and the tweak key that follows it.
    pub(crate) fn new(key: &[u8; 2 * HALF], loops: Loops) -> Self {
        let (data, tweak) = key.split_at(HALF);
        Self {
            encrypt: expand(set_encrypt_key, data),
            decrypt: expand(set_decrypt_key, data),
            tweak: expand(set_encrypt_key, tweak),
            loops,
        }
    }

    /// Encrypts or decrypts all sectors of `pieces`, which are whole.
    pub(crate) fn pass(&self, format: &Format, pieces: &mut [Piece<'_, '_>], way: Way) {
        let (function, data) = match way {
            Way::Encrypt => (self.loops.encrypt, &self.encrypt),
            Way::Decrypt => (self.loops.decrypt, &self.decrypt),
        };
        let sector = format.sector_bytes();
        for piece in pieces {
            let (from, to, len) = piece.buffers();
            for at in (0..len / sector).map(|n| n * sector) {
                let iv = format.iv(piece.first, at);
                // SAFETY: a piece's buffers are valid for `len` bytes, which this sector lies in,
                // and are the same or do not overlap; a sector is a multiple of 16 bytes; the keys
                // were expanded for this, and this processor has the instructions (`Loops::all`).
                unsafe { function(from.add(at), to.add(at), sector, data, &self.tweak, &iv) };
            }
        }
    }
}

/// A key expanded by a function of the library.
fn expand(by: unsafe extern "C" fn(*const u8, i32, *mut AES_KEY) -> i32, key: &[u8]) -> AES_KEY {
    assert_eq!(key.len(), HALF);
    let mut expanded = MaybeUninit::<AES_KEY>::zeroed();
    // SAFETY: as many bytes as bits are asked for, and room for a key; AES-NI was found.
    let failed = unsafe { by(key.as_ptr(), HALF_BITS, expanded.as_mut_ptr()) };
    assert_eq!(failed, 0, "256 bits are a key");
    // SAFETY: integers, which were zeroed, and then written.
    unsafe { expanded.assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sector, SectorSize};
    use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
    use aes::{Aes256, Block};
    use proptest::prelude::*;
    use std::vec::Vec;

    const KEY: [u8; 64] = *b"first the key of the data 01234 then the key of the tweaks 56789";

    /// XTS of one sector as the standard writes it, a block at a time, with another library's AES.
    fn plain(iv: [u8; 16], sector: &mut [u8], way: Way) {
        let [data, tweak] = [&KEY[..HALF], &KEY[HALF..]];
        let [data, tweak] = [data, tweak].map(|key| Aes256::new_from_slice(key).unwrap());
        let mut first = Block::from(iv);
        tweak.encrypt_block(&mut first);
        let mut tweak = u128::from_le_bytes(first.into());
        for bytes in sector.chunks_exact_mut(16) {
            let xor = |block: u128| Block::from((block ^ tweak).to_le_bytes());
            let mut block = xor(u128::from_le_bytes(bytes.try_into().unwrap()));
            match way {
                Way::Encrypt => data.encrypt_block(&mut block),
                Way::Decrypt => data.decrypt_block(&mut block),
            }
            bytes.copy_from_slice(&xor(u128::from_le_bytes(block.into())));
            // Times x, of which the polynomial is x^128 + x^7 + x^2 + x + 1.
            tweak = tweak << 1 ^ if tweak >> 127 == 1 { 0x87 } else { 0 };
        }
    }

    fn formats() -> impl Strategy<Value = Format> {
        let size = prop_oneof![Just(SectorSize::B512), Just(SectorSize::B4096)];
        (size, any::<bool>(), any::<u64>()).prop_map(|(size, large, offset)| {
            Format::new(size, large, offset & !7).expect("whole sectors")
        })
    }

    /// First sectors, and how many follow each other.
    fn runs() -> impl Strategy<Value = Vec<(u64, usize)>> {
        prop::collection::vec((any::<u64>().prop_map(|first| first & !7), 0..9_usize), 0..6)
    }

    proptest! {
        #[test]
        fn a_batch_is_its_sectors(
            format in formats(),
            runs in runs(),
            seed: u8,
            decrypts: bool,
        ) {
            let way = if decrypts { Way::Decrypt } else { Way::Encrypt };
            let sector = format.sector_bytes();
            let byte = |i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed;
            let from: Vec<Vec<u8>> =
                runs.iter().map(|(_, n)| (0..n * sector).map(byte).collect()).collect();
            let mut expected = from.clone();
            for ((first, _), bytes) in runs.iter().zip(&mut expected) {
                for (n, bytes) in bytes.chunks_exact_mut(sector).enumerate() {
                    plain(format.iv(Sector::new(*first), n * sector), bytes, way);
                }
            }
            let firsts = || runs.iter().map(|(first, _)| Sector::new(*first));
            for loops in Loops::all() {
                let keys = Schedule::new(&KEY, loops);
                let mut to: Vec<_> = from.iter().map(|bytes| std::vec![0; bytes.len()]).collect();
                let pieces = firsts().zip(&from).zip(&mut to);
                let mut pieces: Vec<_> =
                    pieces.map(|((first, from), to)| Piece::between(first, from, to)).collect();
                keys.pass(&format, &mut pieces, way);
                prop_assert!(to == expected, "from one buffer to another");

                let mut to = from.clone();
                let pieces = firsts().zip(&mut to);
                let mut pieces: Vec<_> =
                    pieces.map(|(first, bytes)| Piece::in_place(first, bytes)).collect();
                keys.pass(&format, &mut pieces, way);
                prop_assert!(to == expected, "in place");
            }
        }
    }
}
