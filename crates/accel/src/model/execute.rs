//! What a device does with one command: checks it, reads memory, works, writes memory.
//!
//! The checks come in this order: operation, its flags, reserved fields, flags of the codec, sizes,
//! alignment, overlap. The first that fails ends the command.

use super::bits::{NoRoom, Reader, Writer};
use super::checksum::{crc32, xor16};
use super::inflate::{Decoded, Inflate, State, Stop};
use super::symbols::{
    DISTANCES, END_OF_BLOCK, FIXED_DISTANCES, FIXED_LITLENS, LITLENS, distance_symbol,
    length_symbol,
};
use crate::iaa::Region;
use crate::iaa::wire::{
    AECS_ALIGN, Completion, CompressAecs, DECOMPRESS_AECS, Descriptor, Histogram, WINDOW, compress,
    decompress, error, flag, opcode, status,
};
use alloc::boxed::Box;
use octavo_codec::MAX_UNIT;
use octavo_codec::deflate::{self, Deflate, Level};
use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

/// Bytes that a command of the model reads, or writes, at most; a device takes up to 2 MiB.
const MAX_BYTES: usize = 2 * MAX_UNIT;

/// Flags of an operation that the model knows, and those of them that are about the AECS.
const KNOWN: u32 = flag::BLOCK_ON_FAULT
    | flag::COMPLETION_VALID
    | flag::COMPLETION
    | flag::CACHE
    | flag::READ_AECS
    | flag::WRITE_AECS
    | flag::WRITE_AECS_ON_OVERFLOW;

/// How a command ends: well, or with a status and what belongs to it.
type Outcome = Result<Completion, Completion>;

/// The works of all devices: one command is executed at a time.
pub struct Executor {
    deflate: Deflate,
    inflate: Inflate,
    input: Box<[u8]>,
    output: Box<[u8]>,
}

fn ended(status: u8, error: u8) -> Completion {
    Completion { status, error, ..Completion::default() }
}

impl Executor {
    pub fn new() -> Self {
        let room = || alloc::vec![0; MAX_BYTES].into_boxed_slice();
        let (deflate, inflate) = (Deflate::new(), Inflate::new());
        Self { deflate, inflate, input: room(), output: room() }
    }

    /// Executes a command but for its completion record, which it gives.
    pub fn execute(&mut self, descriptor: &Descriptor, memory: &[Region]) -> Completion {
        let checked = check(descriptor).and_then(|()| match descriptor.opcode() {
            opcode::COMPRESS => self.compress(descriptor, memory),
            opcode::DECOMPRESS => self.decompress(descriptor, memory),
            _ => Ok(ended(status::SUCCESS, 0)),
        });
        checked.unwrap_or_else(|completion| completion)
    }

    /// Writes a completion record, its status last; whether there was one to write, and where.
    pub fn complete(&self, of: &Descriptor, completion: &Completion, memory: &[Region]) -> bool {
        const WANTED: u32 = flag::COMPLETION_VALID | flag::COMPLETION;
        let address = of.completion.get();
        let is_wanted = of.flags() & WANTED == WANTED && address.is_multiple_of(64);
        let Some((region, at)) = find(memory, address, 64).filter(|_| is_wanted) else {
            return false;
        };
        region.write(at + 1, &completion.as_bytes()[1..]);
        region.store(at, completion.status);
        true
    }

    fn compress(&mut self, descriptor: &Descriptor, memory: &[Region]) -> Outcome {
        let source = descriptor.source_size.get() as usize;
        let room = (descriptor.destination_size.get() as usize).min(MAX_BYTES);
        let aecs = read_compress_aecs(descriptor, memory)?;
        read(memory, descriptor.source.get(), &mut self.input[..source])?;
        let unit = &self.input[..source];
        let sequences = self.deflate.sequences(Level::L1, unit, WINDOW);
        let flags = descriptor.codec_flags.get();
        let written = if flags & compress::STATISTICS != 0 {
            let mut counted = deflate::Histogram::new();
            counted.add(unit, sequences);
            let histogram = histogram(&counted);
            let bytes = histogram.as_bytes();
            let to = self.output[..room].get_mut(..bytes.len());
            to.ok_or(ended(status::BAD_SIZE, 0))?.copy_from_slice(bytes);
            bytes.len()
        } else {
            encode(&aecs, unit, sequences, flags, &mut self.output[..room])?
        };
        write(memory, descriptor.destination.get(), &self.output[..written])?;
        Ok(Completion {
            bytes_completed: U32::new(source as u32),
            output_size: U32::new(written as u32),
            crc: crc32(aecs.crc.get(), unit).into(),
            xor: xor16(aecs.xor.get() as u16, unit).into(),
            ..ended(status::SUCCESS, 0)
        })
    }

    fn decompress(&mut self, descriptor: &Descriptor, memory: &[Region]) -> Outcome {
        let source = descriptor.source_size.get() as usize;
        let room = (descriptor.destination_size.get() as usize).min(MAX_BYTES);
        let flags = descriptor.codec_flags.get();
        let state = read_state(descriptor, memory)?;
        read(memory, descriptor.source.get(), &mut self.input[..source])?;
        let unused = usize::from(flags >> 6 & 7);
        let mut reader = Reader::new(&self.input[..source], unused);
        let decoded = self.inflate.inflate(&mut reader, state, flags, &mut self.output[..room]);
        let Decoded { written, taken, state } = decoded.map_err(|stop| match stop {
            Stop::Error(error) => ended(status::ANALYTICS, error),
            Stop::Full => ended(status::OUTPUT_OVERFLOW, 0),
        })?;
        let bytes = &self.output[..written];
        let is_suppressed = flags & decompress::SUPPRESS != 0;
        if !is_suppressed {
            write(memory, descriptor.destination.get(), bytes)?;
        }
        if descriptor.flags() & flag::WRITE_AECS != 0 {
            write(memory, descriptor.aecs.get(), &written_state(state.as_ref()))?;
        }
        Ok(Completion {
            bytes_completed: U32::new(taken as u32),
            output_size: U32::new(if is_suppressed { 0 } else { written as u32 }),
            crc: crc32(0, bytes).into(),
            xor: xor16(0, bytes).into(),
            ..ended(status::SUCCESS, 0)
        })
    }
}

/// Whether a command can be executed at all.
fn check(descriptor: &Descriptor) -> Result<(), Completion> {
    let (flags, codec) = (descriptor.flags(), descriptor.codec_flags.get());
    let (known, known_codec) = match descriptor.opcode() {
        opcode::NOOP => (KNOWN & 0xff, 0),
        opcode::COMPRESS => (
            KNOWN & !(flag::WRITE_AECS | flag::WRITE_AECS_ON_OVERFLOW),
            compress::STATISTICS | compress::FLUSH | compress::END_FINAL_STORED,
        ),
        opcode::DECOMPRESS => (
            KNOWN & !flag::WRITE_AECS_ON_OVERFLOW,
            !(0xfc00 | 1 << 5), // no index, not big-endian
        ),
        _ => return Err(ended(status::BAD_OPCODE, 0)),
    };
    let bad_flags = u64::from(flags & !known).into();
    if flags & !known != 0 {
        return Err(Completion { bad_flags, ..ended(status::BAD_FLAGS, 0) });
    }
    let reserved = [
        descriptor.pasid.get() >> 20 & 0x7ff,
        descriptor.interrupt.get().into(),
        descriptor.filter_flags.get(),
        descriptor.filter_inputs.get(),
    ];
    if reserved != [0; 4] {
        return Err(ended(status::RESERVED, 0));
    }
    if codec & !known_codec != 0 || !is_consistent(descriptor) {
        return Err(ended(status::BAD_CODEC_FLAGS, 0));
    }
    if descriptor.opcode() == opcode::NOOP {
        return Ok(());
    }
    check_places(descriptor)
}

/// Whether the codec's flags go together: what compresses counts, or writes all; what decompresses
/// does.
fn is_consistent(descriptor: &Descriptor) -> bool {
    let flags = descriptor.codec_flags.get();
    match descriptor.opcode() {
        opcode::COMPRESS => {
            let counts = flags & compress::STATISTICS != 0;
            let reads = descriptor.flags() & flag::READ_AECS != 0;
            counts || reads && flags & compress::FLUSH != 0
        }
        opcode::DECOMPRESS => flags & decompress::ENABLE != 0,
        _ => true,
    }
}

/// Sizes, alignment, overlap.
fn check_places(descriptor: &Descriptor) -> Result<(), Completion> {
    let size = descriptor.source_size.get();
    let room = descriptor.destination_size.get();
    let most = match descriptor.opcode() {
        opcode::COMPRESS => MAX_UNIT,
        _ => MAX_BYTES,
    };
    let uses_aecs = descriptor.flags() & (flag::READ_AECS | flag::WRITE_AECS) != 0;
    let aecs_size = match descriptor.opcode() {
        _ if !uses_aecs => 0,
        opcode::COMPRESS => size_of::<CompressAecs>(),
        _ => DECOMPRESS_AECS,
    };
    let is_size = |size: u32, most: usize| size > 0 && size as usize <= most;
    if !is_size(size, most) || room == 0 || descriptor.aecs_size.get() as usize != aecs_size {
        return Err(ended(status::BAD_SIZE, 0));
    }
    if !descriptor.aecs.get().is_multiple_of(AECS_ALIGN as u64) {
        return Err(ended(status::MISALIGNED, 0));
    }
    let (from, to) = (descriptor.source.get(), descriptor.destination.get());
    if from < to.saturating_add(room.into()) && to < from.saturating_add(size.into()) {
        return Err(ended(status::OVERLAP, 0));
    }
    Ok(())
}

fn find(memory: &[Region], address: u64, len: usize) -> Option<(&Region, usize)> {
    memory.iter().find_map(|region| Some((region, region.find(address, len)?)))
}

fn fault(address: u64) -> Completion {
    Completion { fault_address: address.into(), ..ended(status::PAGE_FAULT, 0) }
}

fn read(memory: &[Region], address: u64, bytes: &mut [u8]) -> Result<(), Completion> {
    let (region, at) = find(memory, address, bytes.len()).ok_or(fault(address))?;
    region.read(at, bytes);
    Ok(())
}

fn write(memory: &[Region], address: u64, bytes: &[u8]) -> Result<(), Completion> {
    let (region, at) = find(memory, address, bytes.len()).ok_or(fault(address))?;
    region.write(at, bytes);
    Ok(())
}

fn read_compress_aecs(of: &Descriptor, memory: &[Region]) -> Result<CompressAecs, Completion> {
    let mut aecs = CompressAecs::new_zeroed();
    if of.flags() & flag::READ_AECS != 0 {
        read(memory, of.aecs.get(), aecs.as_mut_bytes())?;
    }
    if aecs.accumulated_bits.get() as usize > aecs.accumulator.len() * 8 {
        return Err(ended(status::ANALYTICS, error::BAD_AECS));
    }
    Ok(aecs)
}

fn histogram(counted: &deflate::Histogram) -> Histogram {
    let mut histogram = Histogram::new_zeroed();
    for (to, from) in histogram.litlen.iter_mut().zip(counted.litlen) {
        *to = from.into();
    }
    for (to, from) in histogram.distance.iter_mut().zip(counted.distance) {
        *to = from.into();
    }
    histogram
}

/// Writes the accumulated bits, the symbols of a unit in the codes of an AECS, and the end; gives
/// bytes.
fn encode(
    aecs: &CompressAecs,
    unit: &[u8],
    sequences: &[deflate::Sequence],
    flags: u16,
    out: &mut [u8],
) -> Result<usize, Cut> {
    let mut coder = Coder { codes: Codes::new(aecs), writer: Writer::new(out) };
    coder.accumulated(aecs)?;
    let mut end = 0;
    for sequence in sequences {
        coder.literals(&unit[end..sequence.at.into()])?;
        coder.matched(sequence)?;
        end = sequence.end();
    }
    coder.literals(&unit[end..])?;
    coder.end(flags)
}

/// Why an output ends early.
#[derive(Clone, Copy)]
enum Cut {
    NoRoom,
    NoCode,
}

impl From<NoRoom> for Cut {
    fn from(_: NoRoom) -> Self {
        Self::NoRoom
    }
}

impl From<Cut> for Completion {
    fn from(cut: Cut) -> Self {
        let error = match cut {
            Cut::NoRoom => error::DOES_NOT_FIT,
            Cut::NoCode => error::NO_CODE,
        };
        ended(status::ANALYTICS, error)
    }
}

/// The codes of an AECS as they are written: a codeword's first bit the lowest.
struct Codes {
    litlen: [Codeword; LITLENS],
    distance: [Codeword; DISTANCES],
}

#[derive(Clone, Copy)]
struct Codeword {
    bits: u16,
    /// 0 where there is none.
    length: u16,
}

impl Codes {
    fn new(aecs: &CompressAecs) -> Self {
        let codeword = |word: U32| {
            let (code, length) = (word.get() as u16 & 0x7fff, (word.get() >> 15) as u16 & 15);
            // A code of more bits than its length has them cut off.
            Codeword { bits: (code << 1).reverse_bits() >> (15 - length), length }
        };
        Self {
            litlen: aecs.codes.litlen.map(codeword),
            distance: aecs.codes.distance.map(codeword),
        }
    }
}

struct Coder<'a> {
    codes: Codes,
    writer: Writer<'a>,
}

impl Coder<'_> {
    fn accumulated(&mut self, aecs: &CompressAecs) -> Result<(), Cut> {
        let bits = aecs.accumulated_bits.get();
        let (whole, rest) = aecs.accumulator.split_at(bits as usize / 8);
        whole.iter().try_for_each(|byte| self.writer.put((*byte).into(), 8))?;
        let last = rest.first().map_or(0, |byte| u32::from(*byte) & ((1 << (bits % 8)) - 1));
        Ok(self.writer.put(last, bits % 8)?)
    }

    #[inline]
    fn code(&mut self, codeword: Codeword) -> Result<(), Cut> {
        if codeword.length == 0 {
            return Err(Cut::NoCode);
        }
        Ok(self.writer.put(codeword.bits.into(), codeword.length.into())?)
    }

    fn literals(&mut self, bytes: &[u8]) -> Result<(), Cut> {
        bytes.iter().try_for_each(|byte| self.code(self.codes.litlen[usize::from(*byte)]))
    }

    fn matched(&mut self, sequence: &deflate::Sequence) -> Result<(), Cut> {
        let (symbol, above, extra) = length_symbol(sequence.length.into());
        self.code(self.codes.litlen[symbol])?;
        self.writer.put(above as u32, extra)?;
        let (symbol, above, extra) = distance_symbol(sequence.distance.into());
        self.code(self.codes.distance[symbol])?;
        Ok(self.writer.put(above as u32, extra)?)
    }

    /// What comes behind the symbols; gives bytes.
    fn end(mut self, flags: u16) -> Result<usize, Cut> {
        let end = flags & compress::END_FINAL_STORED;
        if end != 0 {
            self.code(self.codes.litlen[END_OF_BLOCK])?;
        }
        if end == compress::END_STORED || end == compress::END_FINAL_STORED {
            self.writer.put(u32::from(end == compress::END_FINAL_STORED), 3)?;
            self.writer.align()?;
            self.writer.put(0xffff_0000, 32)?;
        }
        Ok(self.writer.finish()?)
    }
}

/// What the model writes at the beginning of a state, so that it knows its own.
const MARK: [u8; 8] = *b"octavo 1";

/// A state as it stands in an AECS: the mark, in which block it is, code lengths.
fn written_state(state: Option<&State>) -> [u8; DECOMPRESS_AECS] {
    let mut bytes = [0; DECOMPRESS_AECS];
    bytes[..8].copy_from_slice(&MARK);
    if let Some(state) = state {
        bytes[8] = 1 + u8::from(state.is_last);
        bytes[16..][..FIXED_LITLENS].copy_from_slice(&state.litlen);
        bytes[16 + FIXED_LITLENS..][..FIXED_DISTANCES].copy_from_slice(&state.distance);
    }
    bytes
}

fn read_state(of: &Descriptor, memory: &[Region]) -> Result<Option<State>, Completion> {
    if of.flags() & flag::READ_AECS == 0 {
        return Ok(None);
    }
    let mut bytes = [0; DECOMPRESS_AECS];
    read(memory, of.aecs.get(), &mut bytes)?;
    if bytes[..8] != MARK || bytes[8] > 2 {
        return Err(ended(status::ANALYTICS, error::BAD_AECS));
    }
    let mut state = State {
        is_last: bytes[8] == 2,
        litlen: [0; FIXED_LITLENS],
        distance: [0; FIXED_DISTANCES],
    };
    state.litlen.copy_from_slice(&bytes[16..][..FIXED_LITLENS]);
    state.distance.copy_from_slice(&bytes[16 + FIXED_LITLENS..][..FIXED_DISTANCES]);
    if state.litlen.iter().chain(&state.distance).any(|n| *n > 15) {
        return Err(ended(status::ANALYTICS, error::BAD_AECS));
    }
    Ok((bytes[8] != 0).then_some(state))
}
