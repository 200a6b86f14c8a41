//! The checksums that a device takes of what is not compressed.

/// The CRC-32 of gzip of `bytes` behind what has the CRC `before`, 0 for nothing.
pub fn crc32(before: u32, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new_with_initial(before);
    crc.update(bytes);
    crc.finalize()
}

/// The exclusive or of 16-bit words, little endian; a last byte counts as a word.
pub fn xor16(before: u16, bytes: &[u8]) -> u16 {
    let (pairs, last) = bytes.as_chunks();
    let sum = pairs.iter().fold(before, |sum, pair| sum ^ u16::from_le_bytes(*pair));
    last.iter().fold(sum, |sum, byte| sum ^ u16::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_gzip_s() {
        let bytes: std::vec::Vec<u8> = (0..1000u32).map(|i| ((i * i) >> 3) as u8).collect();
        let mut gzip = flate2::Crc::new();
        gzip.update(&bytes);
        assert_eq!(crc32(crc32(0, &bytes[..77]), &bytes[77..]), gzip.sum());
        assert_eq!(xor16(0, &[1, 2, 3]), 0x0201 ^ 3);
    }
}
