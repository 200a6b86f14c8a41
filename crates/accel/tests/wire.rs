//! Descriptors against the table in `testdata/`, and the model's answers to every operation, flag
//! and field.

mod rig;

use octavo_accel::iaa::wire::{
    Completion, CompressAecs, DECOMPRESS_AECS, Descriptor, Places, compress, decompress, flag,
    opcode, status,
};
use octavo_accel::iaa::{Machine, Region};
use octavo_accel::model::Model;
use rig::{Rig, config, found};
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// Names and bytes in a table of `testdata/`.
fn table(name: &str) -> BTreeMap<String, Vec<u8>> {
    let path = format!("{}/../../testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("the table that ships with the source");
    let mut table: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut at = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if line.starts_with(' ') {
            let bytes = line.split_whitespace().map(|b| u8::from_str_radix(b, 16).expect("hex"));
            table.entry(at.clone()).or_default().extend(bytes);
        } else {
            at = line.into();
        }
    }
    table
}

#[test]
fn descriptors_are_those_of_the_table() {
    let at = |source_size, destination_size| Places {
        completion: 0x7f00_0000_1000,
        source: 0x7f00_0000_2000,
        source_size,
        destination: 0x7f00_0000_3000,
        destination_size,
    };
    let aecs = 0x7f00_0000_0620;
    let ours = [
        ("compress", Descriptor::compress(at(4096, 4000), aecs)),
        ("count", Descriptor::count(at(4096, 1280))),
        ("decompress", Descriptor::decompress(at(1200, 4096), None)),
        ("decompress-canned", Descriptor::decompress(at(1200, 4096), Some(aecs))),
        ("read-header", Descriptor::read_header(at(83, 4096), 5, aecs)),
    ];
    let table = table("iaa-descriptors.txt");
    assert_eq!(table.len(), ours.len());
    for (name, descriptor) in ours {
        assert_eq!(table[name], descriptor.as_bytes(), "{name}");
    }
}

#[test]
fn the_fixed_codes_stand_where_a_device_looks_for_them() {
    let aecs = CompressAecs::fixed();
    let bytes = aecs.as_bytes();
    assert_eq!(bytes.len(), 0x620);
    let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("a word"));
    assert_eq!((word(28), bytes[32]), (3, 0b011));
    // RFC 1951, 3.2.6: literals 0 and 144, the end of the block, length 280, a distance.
    for (at, code, length) in [
        (288, 0b0011_0000, 8),
        (288 + 4 * 144, 0b1_1001_0000, 9),
        (288 + 4 * 256, 0, 7),
        (288 + 4 * 280, 0b1100_0000, 8),
        (1440, 0, 5),
        (1440 + 4 * 29, 29, 5),
    ] {
        assert_eq!(word(at), length << 15 | code, "at {at}");
    }
}

/// A device and a page of its memory for everything.
struct Bench {
    model: Arc<Model>,
    memory: Region,
    _rig: Rig,
}

const COMPLETION: usize = 0;
const AECS: usize = 4096;
const SOURCE: usize = 16384;
const DESTINATION: usize = 32768;

impl Bench {
    fn new() -> Self {
        let rig = Rig::new(&found(1, 1, 1, 16, true), config());
        let memory = rig::memory();
        rig.model.share(&memory);
        memory.write(AECS, CompressAecs::fixed().as_bytes());
        Self { model: rig.model.clone(), memory, _rig: rig }
    }

    fn places(&self, source_size: u32, destination_size: u32) -> Places {
        Places {
            completion: self.memory.address(COMPLETION),
            source: self.memory.address(SOURCE),
            source_size,
            destination: self.memory.address(DESTINATION),
            destination_size,
        }
    }

    fn compress(&self, source_size: u32, destination_size: u32) -> Descriptor {
        let places = self.places(source_size, destination_size);
        Descriptor::compress(places, self.memory.address(AECS))
    }

    /// What the device says to a command; `None` when it says nothing.
    fn run(&self, descriptor: &Descriptor) -> Option<Completion> {
        self.memory.write(COMPLETION, Completion::new_zeroed().as_bytes());
        self.model.submit(0, descriptor).expect("room in the queue");
        self.model.spend(10_000_000);
        self.model.pause();
        let mut completion = Completion::new_zeroed();
        self.memory.read(COMPLETION, completion.as_mut_bytes());
        (completion.status != status::PENDING).then_some(completion)
    }

    fn status(&self, descriptor: &Descriptor) -> u8 {
        self.run(descriptor).expect("an answer").status
    }
}

#[test]
fn operations_and_their_flags() {
    let bench = Bench::new();
    bench.memory.write(SOURCE, &[7; 4096]);
    let compress = bench.compress(4096, 4096);
    assert_eq!(bench.status(&compress), status::SUCCESS);
    let with =
        |opcode, flags| Descriptor { operation: Descriptor::operation(opcode, flags), ..compress };
    for opcode in 0..=255 {
        let expected = match opcode {
            opcode::COMPRESS => status::SUCCESS,
            // The flags of a compression are none of these.
            opcode::NOOP | opcode::DECOMPRESS => status::BAD_CODEC_FLAGS,
            _ => status::BAD_OPCODE,
        };
        let flags = if opcode == opcode::NOOP { 0xc } else { compress.flags() };
        assert_eq!(bench.status(&with(opcode, flags)), expected, "operation {opcode:#x}");
    }
    for bit in 0..24 {
        let flags = compress.flags() | 1 << bit;
        let known = compress.flags() | flag::BLOCK_ON_FAULT;
        let done = bench.run(&with(opcode::COMPRESS, flags)).expect("an answer");
        let good = flags & !known == 0;
        let expected = if good { status::SUCCESS } else { status::BAD_FLAGS };
        assert_eq!(done.status, expected, "flag {bit}");
        assert_eq!(done.bad_flags.get(), u64::from(flags & !known));
    }
    // Without an address for it, or without wanting it, there is no record.
    for flags in [flag::COMPLETION, flag::COMPLETION_VALID, 0] {
        let flags = flags | flag::READ_AECS;
        assert_eq!(bench.run(&with(opcode::COMPRESS, flags)), None);
    }
    let noop = Descriptor {
        operation: Descriptor::operation(opcode::NOOP, 0xc),
        completion: compress.completion,
        ..Descriptor::new_zeroed()
    };
    assert_eq!(bench.status(&noop), status::SUCCESS);
}

#[test]
fn reserved_fields_sizes_and_places() {
    let bench = Bench::new();
    bench.memory.write(SOURCE, &[7; 4096]);
    let good = bench.compress(4096, 4096);
    let u32 = U32::new;
    for (descriptor, expected) in [
        (Descriptor { pasid: u32(0xfffff), ..good }, status::SUCCESS),
        (Descriptor { pasid: u32(1 << 20), ..good }, status::RESERVED),
        (Descriptor { pasid: u32(1 << 30), ..good }, status::RESERVED),
        (Descriptor { interrupt: U16::new(1), ..good }, status::RESERVED),
        (Descriptor { filter_flags: u32(1), ..good }, status::RESERVED),
        (Descriptor { filter_inputs: u32(1), ..good }, status::RESERVED),
        (Descriptor { source_size: u32(0), ..good }, status::BAD_SIZE),
        (Descriptor { source_size: u32(3 << 20), ..good }, status::BAD_SIZE),
        (Descriptor { destination_size: u32(0), ..good }, status::BAD_SIZE),
        (Descriptor { aecs_size: u32(0x600), ..good }, status::BAD_SIZE),
        (Descriptor { aecs_size: u32(0), ..good }, status::BAD_SIZE),
        (Descriptor { aecs: U64::new(good.aecs.get() + 16), ..good }, status::MISALIGNED),
        (Descriptor { destination: good.source, ..good }, status::OVERLAP),
        (Descriptor { destination: U64::new(good.source.get() + 4095), ..good }, status::OVERLAP),
        (Descriptor { destination: U64::new(good.source.get() + 4096), ..good }, status::SUCCESS),
        (Descriptor { source: U64::new(4096), ..good }, status::PAGE_FAULT),
        (Descriptor { destination: U64::new(4096), ..good }, status::PAGE_FAULT),
        (Descriptor { aecs: U64::new(4096), ..good }, status::PAGE_FAULT),
    ] {
        let done = bench.run(&descriptor).expect("an answer");
        assert_eq!(done.status, expected, "{descriptor:?}");
        assert_eq!(done.fault_address.get() == 4096, expected == status::PAGE_FAULT);
    }
    let unaligned = Descriptor { completion: U64::new(good.completion.get() + 32), ..good };
    assert_eq!(bench.run(&unaligned), None);
    let elsewhere = Descriptor { completion: U64::new(4096), ..good };
    assert_eq!(bench.run(&elsewhere), None);
}

#[test]
fn flags_of_the_codec() {
    let bench = Bench::new();
    let page: Vec<u8> = (0..4096u32).map(|i| (i % 50) as u8).collect();
    bench.memory.write(SOURCE, &page);
    let good = bench.compress(4096, 4096);
    let compress = |flags| Descriptor { codec_flags: U16::new(flags), ..good };
    for flags in 0..=u16::MAX {
        let known = compress::STATISTICS | compress::FLUSH | compress::END_FINAL_STORED;
        let works = flags & (compress::STATISTICS | compress::FLUSH) != 0;
        let expected = flags & !known == 0 && works;
        // Few are right; of the others a sample is enough.
        if expected || flags % 61 == 0 {
            let status = bench.status(&compress(flags));
            let bad = status::BAD_CODEC_FLAGS;
            assert_eq!(status, if expected { status::SUCCESS } else { bad }, "{flags:#x}");
        }
    }
    for end in [compress::END_OF_BLOCK, compress::END_STORED, compress::END_FINAL_STORED] {
        let done = bench.run(&compress(compress::FLUSH | end)).expect("an answer");
        let mut stream = vec![0; done.output_size.get() as usize];
        bench.memory.read(DESTINATION, &mut stream);
        let mut out = vec![0; 4096];
        let inflated = octavo_codec::deflate::Inflate::new().inflate(&stream, &mut out);
        assert!(inflated.is_ok() && out == page, "{end:#x}");
    }

    let done = bench.run(&good).expect("an answer");
    let mut gzip = flate2::Crc::new();
    gzip.update(&page);
    assert_eq!(done.crc.get(), gzip.sum());
    assert_eq!(done.bytes_completed.get(), 4096);
    // What was compressed, back: all flags of the kernel, and with each one of ours.
    let size = done.output_size.get();
    let mut stream = vec![0; size as usize];
    bench.memory.read(DESTINATION, &mut stream);
    bench.memory.write(SOURCE, &stream);
    let decompress = |flags, size| Descriptor {
        codec_flags: U16::new(flags),
        ..Descriptor::decompress(bench.places(size, 4096), None)
    };
    let kernel = 0xf;
    for flags in [kernel, kernel | decompress::LAST_BLOCK, decompress::ENABLE | decompress::FLUSH] {
        let done = bench.run(&decompress(flags, size)).expect("an answer");
        assert_eq!((done.status, done.output_size.get()), (status::SUCCESS, 4096), "{flags:#x}");
        assert_eq!(done.crc.get(), gzip.sum());
        let mut out = vec![0; 4096];
        bench.memory.read(DESTINATION, &mut out);
        assert!(out == page);
    }
    for flags in [0, kernel & !decompress::ENABLE, kernel | 1 << 5, kernel | 1 << 10] {
        assert_eq!(bench.status(&decompress(flags, size)), status::BAD_CODEC_FLAGS, "{flags:#x}");
    }
    let done = bench.run(&decompress(kernel | decompress::SUPPRESS, size)).expect("an answer");
    assert_eq!((done.crc.get(), done.output_size.get()), (gzip.sum(), 0));
    // The end is missing.
    let cut = bench.run(&decompress(kernel, size - 1)).expect("an answer");
    assert_eq!((cut.status, cut.error), (status::ANALYTICS, 15));
    let full = Descriptor { destination_size: U32::new(4095), ..decompress(kernel, size) };
    assert_eq!(bench.status(&full), status::OUTPUT_OVERFLOW);
    // A state that is none.
    let canned = Descriptor {
        operation: Descriptor::operation(opcode::DECOMPRESS, 0x1010c),
        aecs: U64::new(bench.memory.address(AECS)),
        aecs_size: U32::new(DECOMPRESS_AECS as u32),
        ..decompress(kernel, size)
    };
    let none = bench.run(&canned).expect("an answer");
    assert_eq!((none.status, none.error), (status::ANALYTICS, 22));
}

#[test]
fn what_does_not_fit_is_told_and_a_byte_more_is_enough() {
    let bench = Bench::new();
    let page: Vec<u8> = (0..4096u32).map(|i| ((i * i) >> 5) as u8).collect();
    bench.memory.write(SOURCE, &page);
    let done = bench.run(&bench.compress(4096, 8192)).expect("an answer");
    let size = done.output_size.get();
    assert_eq!(bench.status(&bench.compress(4096, size)), status::SUCCESS);
    let done = bench.run(&bench.compress(4096, size - 1)).expect("an answer");
    assert_eq!((done.status, done.error), (status::ANALYTICS, 25));
    // A code that is missing.
    let mut aecs = CompressAecs::fixed();
    aecs.codes.litlen[usize::from(page[0])] = U32::ZERO;
    bench.memory.write(AECS, aecs.as_bytes());
    let done = bench.run(&bench.compress(4096, 8192)).expect("an answer");
    assert_eq!((done.status, done.error), (status::ANALYTICS, 30));
}

/// Commands that are right but for some fields, over memory of noise: each is answered, or lost
/// because there is nowhere to answer to.
#[test]
fn whatever_a_command_says_the_device_stands() {
    let bench = Bench::new();
    let mut random = rig::Random(11);
    let noise: Vec<u8> = (0..8192).map(|_| random.next() as u8).collect();
    let good = [
        bench.compress(1024, 4096),
        Descriptor::count(bench.places(1024, 1280)),
        Descriptor::decompress(bench.places(600, 4096), None),
        Descriptor::read_header(bench.places(90, 64), 3, bench.memory.address(AECS)),
        Descriptor::decompress(bench.places(600, 4096), Some(bench.memory.address(AECS))),
    ];
    let mut answered = 0;
    for round in 0..2000usize {
        bench.memory.write(SOURCE, &noise[round % 4096..][..1024]);
        if round.is_multiple_of(3) {
            // An AECS with some words of noise, in reach of the checks.
            let mut aecs = CompressAecs::fixed();
            let at = random.below(1500) as usize;
            aecs.as_mut_bytes()[at..at + 8].copy_from_slice(&noise[round..round + 8]);
            bench.memory.write(AECS, aecs.as_bytes());
        }
        let mut descriptor = good[round % good.len()];
        for _ in 0..random.below(3) {
            let at = random.below(64) as usize;
            descriptor.as_mut_bytes()[at] ^= 1 << random.below(8);
        }
        let is_same = descriptor.completion == good[0].completion;
        let done = bench.run(&descriptor);
        assert!(done.is_some() || !is_same || descriptor.flags() & 0xc != 0xc);
        answered += u32::from(done.is_some());
    }
    assert!(answered > 1000, "{answered}");
}
