//! The bit stream of deflate, the plain way: one bit at a time.

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
        (0..n).try_for_each(|place| self.bit(number >> place & 1))
    }

    /// Appends a code, its highest bit first.
    pub fn put_code(&mut self, code: u32, length: u32) -> Result<(), NoRoom> {
        (0..length).rev().try_for_each(|place| self.bit(code >> place & 1))
    }

    fn bit(&mut self, bit: u32) -> Result<(), NoRoom> {
        let byte = self.out.get_mut(self.at / 8).ok_or(NoRoom)?;
        *byte = (*byte & ((1 << (self.at % 8)) - 1)) | (bit as u8) << (self.at % 8);
        self.at += 1;
        Ok(())
    }

    /// Fills the last byte with zeros.
    pub fn align(&mut self) -> Result<(), NoRoom> {
        while !self.at.is_multiple_of(8) {
            self.bit(0)?;
        }
        Ok(())
    }

    /// Bytes written.
    pub fn bytes(&self) -> usize {
        self.at.div_ceil(8)
    }
}
