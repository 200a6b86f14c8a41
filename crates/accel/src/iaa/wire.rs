//! What a device reads and writes, byte by byte; little endian throughout.
//!
//! ```text
//!   Descriptor                                         Completion
//!    0  PASID 19:0 │ privileged 31                      0  status       1  error code
//!    4  flags 23:0 │ opcode 31:24                       4  bytes of input taken
//!    8  address of the completion record                8  address of a fault
//!   16  address of source 1                            16  flags that were wrong
//!   24  address of destination                         24  bytes of output
//!   32  bytes of source 1   36 interrupt │ 38 flags    28  bits in the last of them
//!   40  address of source 2: the AECS                  30  xor of 16-bit words   32  CRC-32
//!   48  bytes of destination  52 bytes of source 2     36  reserved, and for filters
//!   56  filter flags          60  inputs of a filter
//! ```
//!
//! An *AECS* (analytics engine configuration and state) tells a compression its codes and the bits
//! to begin with, and takes the state of a decompression from one operation to the next.
//!
//! Sources: the kernel's uapi header `linux/idxd.h`, and the headers of Intel's query processing
//! library (MIT) for the AECS and the error codes. The tables in `testdata/` are checked against these types.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A command of 64 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Descriptor {
    /// Whose addresses these are, and privilege: 0, the portal fills it in.
    pub pasid: U32,
    /// [`opcode`] above 24 bits of [`flag`]s.
    pub operation: U32,
    /// Where the [`Completion`] goes, aligned to 64 bytes.
    pub completion: U64,
    /// What is read.
    pub source: U64,
    /// What is written.
    pub destination: U64,
    /// Bytes that are read.
    pub source_size: U32,
    /// Interrupts are not used here: 0.
    pub interrupt: U16,
    /// [`compress`] or [`decompress`] flags.
    pub codec_flags: U16,
    /// The AECS, aligned to 32 bytes.
    pub aecs: U64,
    /// Bytes that may be written.
    pub destination_size: U32,
    /// Bytes of the AECS.
    pub aecs_size: U32,
    /// Filters are not used here: 0.
    pub filter_flags: U32,
    /// Filters are not used here: 0.
    pub filter_inputs: U32,
}

/// What every command of ours asks for: a completion record, and output in the cache.
const FLAGS_OF_ALL: u32 = flag::COMPLETION_VALID | flag::COMPLETION | flag::CACHE;

/// Where a command reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// The completion record.
    pub completion: u64,
    /// What is read.
    pub source: u64,
    /// Bytes of that.
    pub source_size: u32,
    /// What is written.
    pub destination: u64,
    /// Bytes that may be written.
    pub destination_size: u32,
}

/// What became of a command, 64 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Completion {
    /// [`status`]; 0 until the device is done.
    pub status: u8,
    /// [`error`], for some statuses.
    pub error: u8,
    /// What the fault was.
    pub fault_info: u8,
    /// Reserved.
    pub reserved: u8,
    /// Bytes of input taken.
    pub bytes_completed: U32,
    /// Where the fault was.
    pub fault_address: U64,
    /// For [`status::BAD_FLAGS`]: which.
    pub bad_flags: U64,
    /// Bytes of output.
    pub output_size: U32,
    /// Bits that count in the last of them; 0 for all.
    pub output_bits: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// Exclusive or of the 16-bit words of what is not compressed.
    pub xor: U16,
    /// CRC-32 of what is not compressed.
    pub crc: U32,
    /// Reserved, and for filters.
    pub rest: [u8; 28],
}

const _: () = assert!(size_of::<Descriptor>() == 64 && size_of::<Completion>() == 64);

impl Descriptor {
    /// Opcode and flags as they stand in the descriptor.
    #[must_use]
    pub const fn operation(opcode: u8, flags: u32) -> U32 {
        U32::new((opcode as u32) << 24 | flags)
    }

    /// To compress `source` with the codes of an AECS, to a stream or body that ends with its block.
    #[must_use]
    pub const fn compress(at: Places, aecs: u64) -> Self {
        Self {
            codec_flags: U16::new(compress::FLUSH | compress::END_OF_BLOCK),
            aecs: U64::new(aecs),
            aecs_size: U32::new(size_of::<CompressAecs>() as u32),
            ..Self::new(opcode::COMPRESS, flag::READ_AECS, at)
        }
    }

    /// To count the symbols that `source` would become, as a [`Histogram`] in `destination`.
    #[must_use]
    pub const fn count(at: Places) -> Self {
        Self {
            codec_flags: U16::new(compress::STATISTICS | compress::END_OF_BLOCK),
            ..Self::new(opcode::COMPRESS, 0, at)
        }
    }

    /// To decompress the block in `source`: with its header, or a canned body with the state that
    /// [`Descriptor::read_header`] left.
    #[must_use]
    pub const fn decompress(at: Places, aecs: Option<u64>) -> Self {
        const FLAGS: u16 =
            decompress::ENABLE | decompress::FLUSH | decompress::STOP | decompress::CHECK;
        let (flags, aecs, aecs_size) = match aecs {
            Some(aecs) => (flag::READ_AECS, aecs, DECOMPRESS_AECS as u32),
            None => (0, 0, 0),
        };
        Self {
            codec_flags: U16::new(FLAGS),
            aecs: U64::new(aecs),
            aecs_size: U32::new(aecs_size),
            ..Self::new(opcode::DECOMPRESS, flags, at)
        }
    }

    /// To read the header of a block in `source`, of which the last `unused` bits are none of it, and
    /// leave the state behind it in an AECS.
    #[must_use]
    pub const fn read_header(at: Places, unused: usize, aecs: u64) -> Self {
        let ignored = decompress::ignore_end_bits(unused);
        Self {
            codec_flags: U16::new(decompress::ENABLE | decompress::SUPPRESS | ignored),
            aecs: U64::new(aecs),
            aecs_size: U32::new(DECOMPRESS_AECS as u32),
            ..Self::new(opcode::DECOMPRESS, flag::WRITE_AECS, at)
        }
    }

    const fn new(opcode: u8, flags: u32, at: Places) -> Self {
        Self {
            pasid: U32::ZERO,
            operation: Self::operation(opcode, FLAGS_OF_ALL | flags),
            completion: U64::new(at.completion),
            source: U64::new(at.source),
            destination: U64::new(at.destination),
            source_size: U32::new(at.source_size),
            interrupt: U16::ZERO,
            codec_flags: U16::ZERO,
            aecs: U64::ZERO,
            destination_size: U32::new(at.destination_size),
            aecs_size: U32::ZERO,
            filter_flags: U32::ZERO,
            filter_inputs: U32::ZERO,
        }
    }

    /// The opcode.
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        (self.operation.get() >> 24) as u8
    }

    /// The flags of the operation.
    #[must_use]
    pub const fn flags(&self) -> u32 {
        self.operation.get() & 0xff_ffff
    }
}

/// Operations.
pub mod opcode {
    /// Nothing.
    pub const NOOP: u8 = 0;
    /// Decompress.
    pub const DECOMPRESS: u8 = 0x42;
    /// Compress.
    pub const COMPRESS: u8 = 0x43;
    /// CRC-64, which we do not use.
    pub const CRC64: u8 = 0x44;
}

/// Flags of operations.
pub mod flag {
    /// Wait for the commands before it in a batch of the hardware's own, which we do not use.
    pub const FENCE: u32 = 1;
    /// On a fault wait until the page is there.
    pub const BLOCK_ON_FAULT: u32 = 2;
    /// There is an address for the completion record.
    pub const COMPLETION_VALID: u32 = 4;
    /// Write a completion record.
    pub const COMPLETION: u32 = 8;
    /// Interrupt.
    pub const INTERRUPT: u32 = 0x10;
    /// Output goes to the cache.
    pub const CACHE: u32 = 0x100;
    /// Source 2 is an AECS to begin with.
    pub const READ_AECS: u32 = 0x1_0000;
    /// Write an AECS in the end.
    pub const WRITE_AECS: u32 = 0x4_0000;
    /// Write an AECS when the output is full.
    pub const WRITE_AECS_ON_OVERFLOW: u32 = 0x8_0000;
}

/// Flags of a compression.
pub mod compress {
    /// Count symbols and write a [`super::Histogram`] in place of a stream.
    pub const STATISTICS: u16 = 1;
    /// Write the last bits, too.
    pub const FLUSH: u16 = 2;
    /// End with the end-of-block code.
    pub const END_OF_BLOCK: u16 = 1 << 2;
    /// End with the end-of-block code and an empty stored block.
    pub const END_STORED: u16 = 2 << 2;
    /// End with the end-of-block code and an empty stored block, the last one.
    pub const END_FINAL_STORED: u16 = 3 << 2;
}

/// Flags of a decompression.
pub mod decompress {
    /// Decompress.
    pub const ENABLE: u16 = 1;
    /// Write the last bytes, too.
    pub const FLUSH: u16 = 2;
    /// Stop at the end of a block.
    pub const STOP: u16 = 4;
    /// Fail when the input ends elsewhere.
    pub const CHECK: u16 = 8;
    /// For the two above: the last block, not any.
    pub const LAST_BLOCK: u16 = 0x10;
    /// How many bits at the end of the input are no input, in place.
    pub const fn ignore_end_bits(bits: usize) -> u16 {
        assert!(bits < 8);
        (bits as u16) << 6
    }
    /// Write nothing.
    pub const SUPPRESS: u16 = 0x200;
}

/// What a completion says.
pub mod status {
    /// Not done yet.
    pub const PENDING: u8 = 0;
    /// Done.
    pub const SUCCESS: u8 = 1;
    /// A page was not there.
    pub const PAGE_FAULT: u8 = 4;
    /// The data is wrong: [`super::error`] says how.
    pub const ANALYTICS: u8 = 0x0a;
    /// The output is full.
    pub const OUTPUT_OVERFLOW: u8 = 0x0b;
    /// No such operation.
    pub const BAD_OPCODE: u8 = 0x10;
    /// No such flag for this operation.
    pub const BAD_FLAGS: u8 = 0x11;
    /// A reserved field is not 0.
    pub const RESERVED: u8 = 0x12;
    /// A size that cannot be.
    pub const BAD_SIZE: u8 = 0x13;
    /// Source and destination overlap.
    pub const OVERLAP: u8 = 0x16;
    /// The AECS is not aligned.
    pub const MISALIGNED: u8 = 0x1c;
    /// The hardware broke; two more like it follow.
    pub const HARDWARE: u8 = 0x20;
    /// No such compress or decompress flag.
    pub const BAD_CODEC_FLAGS: u8 = 0x30;
}

/// What is wrong with the data.
pub mod error {
    /// The input ends inside a header.
    pub const HEADER_ENDS: u8 = 1;
    /// Code lengths of the code-length alphabet that make no code.
    pub const BAD_PRECODE: u8 = 2;
    /// The first code length repeats what is before it.
    pub const REPEAT_FIRST: u8 = 3;
    /// Code lengths run past the end of their alphabet.
    pub const TOO_MANY_LENGTHS: u8 = 6;
    /// Code lengths of literals and lengths that make no code.
    pub const BAD_LITERAL_LENGTHS: u8 = 9;
    /// Code lengths of distances that make no code.
    pub const BAD_DISTANCE_LENGTHS: u8 = 10;
    /// Bits that are no code of a literal or length.
    pub const BAD_LITERAL: u8 = 11;
    /// Bits that are no code of a distance.
    pub const BAD_DISTANCE_CODE: u8 = 12;
    /// A block of the type that does not exist.
    pub const BLOCK_TYPE: u8 = 13;
    /// A stored block whose length and complement disagree.
    pub const STORED_LENGTH: u8 = 14;
    /// The input ends and no block does.
    pub const NO_END: u8 = 15;
    /// A distance beyond the window of 4 KiB.
    pub const BAD_DISTANCE: u8 = 17;
    /// A match from before the beginning.
    pub const BEFORE_START: u8 = 18;
    /// An AECS that is none.
    pub const BAD_AECS: u8 = 22;
    /// The output would not fit: what compresses too little ends like this.
    pub const DOES_NOT_FIT: u8 = 25;
    /// A symbol without a code.
    pub const NO_CODE: u8 = 30;
    /// More literals and lengths than there are.
    pub const TOO_MANY_LITERALS: u8 = 35;
    /// More distances than there are.
    pub const TOO_MANY_DISTANCES: u8 = 36;
}

/// What a compression begins with, 0x620 bytes.
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CompressAecs {
    /// The CRC to go on from.
    pub crc: U32,
    /// The exclusive or to go on from.
    pub xor: U32,
    /// Reserved.
    pub reserved: [U32; 5],
    /// Bits in the accumulator.
    pub accumulated_bits: U32,
    /// Bits that precede the first code.
    pub accumulator: [u8; 256],
    /// The codes.
    pub codes: Histogram,
}

/// A word for each symbol: how often it occurs, or its code: the code itself in bits 14:0, the first
/// bit highest, its length in bits 18:15.
#[derive(Clone, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Histogram {
    /// Literals, end of block, lengths.
    pub litlen: [U32; 286],
    /// Reserved.
    pub reserved: [U32; 2],
    /// Distances.
    pub distance: [U32; 30],
    /// Reserved.
    pub reserved_1: [U32; 2],
}

const _: () = {
    assert!(size_of::<CompressAecs>() == 0x620 && size_of::<Histogram>() == 1280);
    assert!(core::mem::offset_of!(CompressAecs, accumulated_bits) == 28);
    assert!(core::mem::offset_of!(CompressAecs, codes) == 288);
    assert!(core::mem::offset_of!(Histogram, distance) == 1440 - 288);
};

/// Bytes of the state of a decompression. What is in it is the device's own affair.
pub const DECOMPRESS_AECS: usize = 0x1500;

/// Alignment of an AECS.
pub const AECS_ALIGN: usize = 32;

/// Bytes of a match's reach: the devices look back no further.
pub const WINDOW: usize = 4096;

/// Entries in the queues of a device, all of them together.
pub const QUEUE_ENTRIES: usize = 128;

/// Commands a device works on at once.
pub const DEVICE_ENGINES: usize = 8;

/// Bytes in the longest input.
pub const MAX_TRANSFER: usize = 2 << 20;
