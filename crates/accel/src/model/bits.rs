//! The bit stream of deflate, the plain way: read one bit at a time, written one number at a time.

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

    /// The next bit, if there is one.
    pub fn bit(&mut self) -> Option<u32> {
        (self.at < self.end).then(|| {
            let bit = self.bytes[self.at / 8] >> (self.at % 8) & 1;
            self.at += 1;
            u32::from(bit)
        })
    }

    /// The next `n` bits as a number, the first the lowest.
    pub fn take(&mut self, n: u32) -> Option<u32> {
        (0..n).try_fold(0, |number, place| Some(number | self.bit()? << place))
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

/// Writes bits.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0 }
    }

    /// Appends the lowest `n` bits of a number, the lowest first.
    pub fn put(&mut self, number: u32, n: u32) -> Result<(), NoRoom> {
        let (begin, shift) = (self.at / 8, self.at % 8);
        let end = self.at + n as usize;
        let bytes = self.out.get_mut(begin..end.div_ceil(8)).ok_or(NoRoom)?;
        let kept = bytes.first().map_or(0, |first| u64::from(*first) & ((1 << shift) - 1));
        let mut bits = (u64::from(number) & ((1 << n) - 1)) << shift | kept;
        for byte in bytes {
            *byte = bits as u8;
            bits >>= 8;
        }
        self.at = end;
        Ok(())
    }

    /// Appends a code of 1 to 32 bits, its highest bit first.
    pub fn put_code(&mut self, code: u32, length: u32) -> Result<(), NoRoom> {
        self.put(code.reverse_bits() >> (32 - length), length)
    }

    /// Fills the last byte with zeros.
    pub fn align(&mut self) -> Result<(), NoRoom> {
        self.put(0, (self.at.next_multiple_of(8) - self.at) as u32)
    }

    /// Bytes written.
    pub fn bytes(&self) -> usize {
        self.at.div_ceil(8)
    }
}
