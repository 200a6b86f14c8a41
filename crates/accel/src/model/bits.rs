//! The bit stream of deflate.

/// Reads bits, the lowest of a byte first.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    /// All bits of `bytes` but the last `unused`.
    pub fn new(bytes: &'a [u8], unused: usize) -> Self {
        Self { bytes, at: 0, end: (bytes.len() * 8).saturating_sub(unused) }
    }

    /// The next 57 bits or more, the first the lowest; what is behind the last of [`Reader::left`] is
    /// anything.
    #[inline]
    pub fn peek(&self) -> u64 {
        let rest = self.bytes.get(self.at / 8..).unwrap_or(&[]);
        let word = rest.first_chunk().copied().unwrap_or_else(|| {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            word
        });
        u64::from_le_bytes(word) >> (self.at % 8)
    }

    /// Bits that are left.
    #[inline]
    pub fn left(&self) -> usize {
        self.end - self.at
    }

    /// Passes over `n` bits, of those that are left.
    #[inline]
    pub fn skip(&mut self, n: usize) {
        debug_assert!(n <= self.left());
        self.at += n;
    }

    /// The next bit, if there is one.
    pub fn bit(&mut self) -> Option<u32> {
        self.take(1)
    }

    /// The next `n` bits, at most 32, as a number, the first the lowest.
    #[inline]
    pub fn take(&mut self, n: u32) -> Option<u32> {
        let number = self.peek() & ((1 << n) - 1);
        (n as usize <= self.left()).then(|| {
            self.skip(n as usize);
            number as u32
        })
    }

    /// The rest of the current byte is passed over.
    pub fn align(&mut self) {
        self.at = self.at.next_multiple_of(8).min(self.end);
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.end
    }

    /// Bytes of which at least one bit was taken.
    pub fn bytes_taken(&self) -> usize {
        self.at.div_ceil(8)
    }
}

/// What is written is longer than the room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// Writes bits: gathers them in a word, and stores it by halves.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    /// Bytes stored.
    at: usize,
    /// Bits that are not stored, and how many: less than 32 between two calls.
    bits: u64,
    count: u32,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0, bits: 0, count: 0 }
    }

    /// Appends the lowest `n` bits of a number, at most 32, the lowest first. The others must be 0.
    #[inline]
    pub fn put(&mut self, number: u32, n: u32) -> Result<(), NoRoom> {
        debug_assert!(u64::from(number) >> n == 0);
        self.bits |= u64::from(number) << self.count;
        self.count += n;
        if self.count >= 32 {
            let room = self.out.get_mut(self.at..).and_then(<[u8]>::first_chunk_mut);
            *room.ok_or(NoRoom)? = (self.bits as u32).to_le_bytes();
            self.at += 4;
            self.bits >>= 32;
            self.count -= 32;
        }
        Ok(())
    }

    /// Fills the last byte with zeros.
    pub fn align(&mut self) -> Result<(), NoRoom> {
        self.put(0, self.count.next_multiple_of(8) - self.count)
    }

    /// Stores all of it, the last byte filled with zeros; bytes written.
    pub fn finish(mut self) -> Result<usize, NoRoom> {
        self.align()?;
        let bytes = self.count as usize / 8;
        let room = self.out.get_mut(self.at..self.at + bytes).ok_or(NoRoom)?;
        room.copy_from_slice(&self.bits.to_le_bytes()[..bytes]);
        Ok(self.at + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// A number of so many bits.
    fn numbers() -> impl Strategy<Value = (u32, u32)> {
        (0..=32u32, any::<u32>())
            .prop_map(|(n, number)| ((u64::from(number) & ((1 << n) - 1)) as u32, n))
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_bit_by_bit_and_number_by_number(
            numbers in proptest::collection::vec(numbers(), 0..50),
            unused in 0usize..40,
        ) {
            let bits: usize = numbers.iter().map(|(_, n)| *n as usize).sum();
            let mut out = vec![0xff; bits.div_ceil(8)];
            let write = |out: &mut [u8]| {
                let mut writer = Writer::new(out);
                numbers.iter().try_for_each(|(number, n)| writer.put(*number, *n))?;
                writer.finish()
            };
            prop_assert_eq!(write(&mut out), Ok(out.len()));
            if !out.is_empty() {
                let short = out.len() - 1;
                prop_assert_eq!(write(&mut out.clone()[..short]), Err(NoRoom));
            }

            let plain: Vec<u32> =
                numbers.iter().flat_map(|(number, n)| (0..*n).map(move |i| number >> i & 1)).collect();
            let mut reader = Reader::new(&out, 0);
            prop_assert!(plain.iter().all(|bit| reader.bit() == Some(*bit)));

            // What is unused is not there.
            let mut reader = Reader::new(&out, unused);
            let mut left = (out.len() * 8).saturating_sub(unused);
            for (number, n) in &numbers {
                let there = *n as usize <= left;
                prop_assert_eq!(reader.take(*n), there.then_some(*number));
                left -= if there { *n as usize } else { break };
                prop_assert_eq!(reader.left(), left);
            }
        }
    }
}
