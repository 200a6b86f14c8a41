//! Which program files can be managed, by what stands in them.
//!
//! The dynamic loader of glibc brings our object in, and only where nothing else claims the memory.
//! The command asks before it becomes a program, the preloaded object each time the program starts
//! another, in the middle of somebody else's process. So nothing here allocates, and nothing is kept
//! in memory but a piece of the file.
//!
//! ```text
//! head of the file ─┬─ #! line ─► interpreter, looked at in turn
//!                   └─ ELF ─► machine ─► PT_INTERP: glibc's loader?
//!                                └─ names in .dynstr and .strtab: a sanitizer?
//! ```
//!
//! A sanitizer shows in the names: its runtime is a library that the program needs, or is linked in,
//! and then its entry stands in a symbol table, unless that was stripped.
#![no_std]

use core::fmt;
use memchr::{memchr, memmem, memrchr};

/// `#!` lines that are followed; the kernel follows as many.
pub const MAX_SCRIPTS: usize = 4;

/// Bytes of a `#!` line that the kernel looks at.
pub const SCRIPT_LINE: usize = 256;

/// What runs a file that is neither ELF nor names an interpreter, as `execvp` does it.
pub const SHELL: &str = "/bin/sh";

/// The loader that knows `LD_PRELOAD` as our object expects it.
pub const LOADER: &str = "ld-linux-x86-64.so.2";

/// The bytes an ELF file begins with.
pub const MAGIC: &[u8] = b"\x7fELF";

/// The bytes of a file.
pub trait Source {
    /// Reads into `buffer` from `offset`; how many bytes there were, 0 behind the end or after an error.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> usize;
}

impl Source for [u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> usize {
        let from = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or(&[]);
        let n = from.len().min(buffer.len());
        buffer[..n].copy_from_slice(&from[..n]);
        n
    }
}

/// A kind of program file that cannot be managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// Broken ELF, and what is wrong.
    Damaged(&'static str),
    /// Another class or machine.
    Machine {
        /// Of 64 bits.
        wide: bool,
        /// The number of the machine.
        number: u16,
    },
    /// No dynamic loader: nothing can be loaded into it.
    Static,
    /// The loader of musl or of something else.
    Loader(Name),
    /// Brings a runtime that must be the first object and owns the address space.
    Sanitizer(&'static str),
}

/// A name out of a file, in a buffer of its own; what does not fit is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; Self::LEN],
    len: u8,
}

impl Name {
    const LEN: usize = 110;

    fn new(name: &[u8]) -> Self {
        let mut bytes = [0; Self::LEN];
        let len = name.len().min(Self::LEN);
        bytes[..len].copy_from_slice(&name[..len]);
        Self { bytes, len: len as u8 }
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

/// The privilege a file gives by its mode or its capabilities, if any: the loader ignores
/// `LD_PRELOAD` for such.
#[must_use]
pub const fn privileged(mode: u32, capabilities: bool) -> Option<&'static str> {
    const SET_USER: u32 = 0o4000;
    const SET_GROUP: u32 = 0o2010; // without the group's x bit it means something else
    if mode & SET_USER != 0 {
        Some("set-user-id")
    } else if mode & SET_GROUP == SET_GROUP {
        Some("set-group-id")
    } else if capabilities {
        Some("given file capabilities")
    } else {
        None
    }
}

/// A `#!` line in parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Script<'a> {
    /// A path.
    pub interpreter: &'a [u8],
    /// All that follows the interpreter; the kernel passes it as one argument.
    pub argument: &'a [u8],
}

impl<'a> Script<'a> {
    /// The `#!` line at the head of a file, if there is one that names something.
    #[must_use]
    pub fn parse(head: &'a [u8]) -> Option<Self> {
        let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?.trim_ascii();
        let end = line.iter().position(|b| matches!(b, b' ' | b'\t')).unwrap_or(line.len());
        let (interpreter, argument) = line.split_at(end);
        (!interpreter.is_empty()).then(|| Self { interpreter, argument: argument.trim_ascii() })
    }
}

/// Checks the contents of an ELF file.
///
/// # Errors
/// What about it is unfit.
pub fn check<S: Source + ?Sized>(source: &S) -> Result<(), Unfit> {
    let cut_short = Unfit::Damaged("cut short");
    let ident: [u8; 20] = bytes(source, 0).ok_or(cut_short)?;
    if !is_our_machine(&ident) {
        return Err(Unfit::Machine { wide: ident[4] == 2, number: machine(&ident) });
    }
    let header = Header::read(source).ok_or(cut_short)?;
    let (mut loader, mut dynamic) = (None, None);
    for segment in header.segments(source) {
        let segment = segment.ok_or(Unfit::Damaged("its program headers lie behind its end"))?;
        match segment.kind {
            Segment::INTERP if loader.is_none() => loader = Some(segment),
            Segment::DYNAMIC if dynamic.is_none() => dynamic = Some(segment),
            _ => {}
        }
    }
    let mut buffer = [0; 256];
    let loader = loader.ok_or(Unfit::Static)?.name(source, &mut buffer);
    let loader = loader.ok_or(Unfit::Damaged("names no loader"))?;
    if loader.rsplit(|b| *b == b'/').next() != Some(LOADER.as_bytes()) {
        return Err(Unfit::Loader(Name::new(loader)));
    }
    let of_loader = dynamic.and_then(|segment| header.dynamic_names(source, &segment));
    let of_symbols = header.symbol_names(source);
    let names = [of_loader, of_symbols].into_iter().flatten();
    names
        .filter_map(|table| table.sanitizer(source))
        .map(Unfit::Sanitizer)
        .next()
        .map_or(Ok(()), Err)
}

fn is_our_machine(ident: &[u8; 20]) -> bool {
    const BITS64_LITTLE_ENDIAN: [u8; 2] = [2, 1];
    const X86_64: u16 = 62;
    ident[4..6] == BITS64_LITTLE_ENDIAN && machine(ident) == X86_64
}

/// The machine's number, which stands at the same place in every ELF file, in the file's own order.
fn machine(ident: &[u8; 20]) -> u16 {
    let number = [ident[18], ident[19]];
    if ident[5] == 2 { u16::from_be_bytes(number) } else { u16::from_le_bytes(number) }
}

/// `N` bytes at `offset`, if they are there.
fn bytes<const N: usize, S: Source + ?Sized>(source: &S, offset: u64) -> Option<[u8; N]> {
    let mut buffer = [0; N];
    (source.read_at(&mut buffer, offset) == N).then_some(buffer)
}

/// A number of an entry of a table.
fn word<const N: usize>(entry: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..N].copy_from_slice(&entry[at..at + N]);
    u64::from_le_bytes(bytes)
}

/// Where the tables of an ELF file lie.
struct Header {
    segments_at: u64,
    segments: u64,
    sections_at: u64,
    sections: u64,
}

impl Header {
    fn read<S: Source + ?Sized>(source: &S) -> Option<Self> {
        let header: [u8; 64] = bytes(source, 0)?;
        Some(Self {
            segments_at: word::<8>(&header, 32),
            segments: word::<2>(&header, 56),
            sections_at: word::<8>(&header, 40),
            sections: word::<2>(&header, 60),
        })
    }

    fn segments<S: Source + ?Sized>(&self, source: &S) -> impl Iterator<Item = Option<Segment>> {
        (0..self.segments).map(|n| {
            let at = self.segments_at.checked_add(n * Segment::LEN)?;
            let entry: [u8; Segment::LEN as usize] = bytes(source, at)?;
            Some(Segment {
                kind: word::<4>(&entry, 0),
                offset: word::<8>(&entry, 8),
                address: word::<8>(&entry, 16),
                size: word::<8>(&entry, 32),
            })
        })
    }

    /// The names that the loader goes by: libraries and dynamic symbols.
    fn dynamic_names<S: Source + ?Sized>(&self, source: &S, dynamic: &Segment) -> Option<Names> {
        const ENTRY: u64 = 16;
        const MAX_ENTRIES: u64 = 1024;
        const END: u64 = 0;
        const STRINGS: u64 = 5;
        const STRINGS_LEN: u64 = 10;
        let (mut address, mut len) = (None, None);
        for n in 0..(dynamic.size / ENTRY).min(MAX_ENTRIES) {
            let entry: [u8; ENTRY as usize] =
                bytes(source, dynamic.offset.checked_add(n * ENTRY)?)?;
            let value = word::<8>(&entry, 8);
            match word::<8>(&entry, 0) {
                END => break,
                STRINGS => address = Some(value),
                STRINGS_LEN => len = Some(value),
                _ => {}
            }
        }
        let address = address?;
        let mut loaded = self.segments(source).flatten().filter(|s| s.kind == Segment::LOAD);
        let segment = loaded
            .find(|s| address.checked_sub(s.address).is_some_and(|distance| distance < s.size))?;
        let offset = segment.offset.checked_add(address - segment.address)?;
        Some(Names { offset, len: len? })
    }

    /// The names that linkers and debuggers go by, where they were not stripped.
    fn symbol_names<S: Source + ?Sized>(&self, source: &S) -> Option<Names> {
        const ENTRY: u64 = 64;
        const SYMBOLS: u64 = 2;
        let section = |n: u64| -> Option<[u8; ENTRY as usize]> {
            bytes(source, self.sections_at.checked_add(n.checked_mul(ENTRY)?)?)
        };
        let symbols = (0..self.sections).map_while(section).find(|s| word::<4>(s, 4) == SYMBOLS)?;
        let strings = section(word::<4>(&symbols, 40))?;
        Some(Names { offset: word::<8>(&strings, 24), len: word::<8>(&strings, 32) })
    }
}

/// A program header.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

impl Segment {
    const LEN: u64 = 56;
    const LOAD: u64 = 1;
    const DYNAMIC: u64 = 2;
    const INTERP: u64 = 3;

    /// The string that the segment is, read into `buffer`.
    fn name<'a, S: Source + ?Sized>(&self, source: &S, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let room = usize::try_from(self.size).unwrap_or(usize::MAX).min(buffer.len());
        let read = source.read_at(&mut buffer[..room], self.offset);
        buffer[..read].split(|b| *b == 0).next().filter(|name| !name.is_empty())
    }
}

/// A table of names, each with a zero behind it.
struct Names {
    offset: u64,
    len: u64,
}

/// A sanitizer, how its library's name begins, and the name of its entry.
const SANITIZERS: [(&str, &[u8], &[u8]); 5] = [
    ("AddressSanitizer", b"libasan.", b"__asan_init"),
    ("HWAddressSanitizer", b"libhwasan.", b"__hwasan_init"),
    ("ThreadSanitizer", b"libtsan.", b"__tsan_init"),
    ("MemorySanitizer", b"libmsan.", b"__msan_init"),
    ("LeakSanitizer", b"liblsan.", b"__lsan_init"),
];

impl Names {
    /// Names of larger programs are looked through as far as this; it takes four milliseconds.
    const MAX: u64 = 16 << 20;

    /// The sanitizer that is among the names.
    fn sanitizer<S: Source + ?Sized>(&self, source: &S) -> Option<&'static str> {
        let mut buffer = [0; 1024]; // on the stack of a signal handler, it may be
        let end = self.len.min(Self::MAX);
        let (mut done, mut kept) = (0, 0);
        while done < end {
            let room = (buffer.len() - kept).min((end - done) as usize);
            let at = self.offset.checked_add(done)?;
            let read = source.read_at(&mut buffer[kept..kept + room], at);
            if read == 0 {
                return None;
            }
            done += read as u64;
            let filled = &buffer[..kept + read];
            let whole = memrchr(0, filled).map_or(0, |last| last + 1);
            if let Some(found) = sanitizer_among(&filled[..whole]) {
                return Some(found);
            }
            // The name at the end goes on; one that fills the buffer is none of those looked for.
            let rest = filled.len() - whole;
            kept = if rest == buffer.len() { 0 } else { rest };
            buffer.copy_within(whole..whole + kept, 0);
        }
        None
    }
}

/// The sanitizer to which one of `names` belongs, each with a zero behind it. A compiler of C exports a
/// megabyte of them, so only those are looked at that have what all have that are looked for.
fn sanitizer_among(names: &[u8]) -> Option<&'static str> {
    memmem::find_iter(names, b"san").find_map(|at| {
        let start = memrchr(0, &names[..at]).map_or(0, |before| before + 1);
        let end = memchr(0, &names[at..]).map_or(names.len(), |behind| at + behind);
        sanitizer(&names[start..end])
    })
}

/// The sanitizer to which a name belongs.
fn sanitizer(name: &[u8]) -> Option<&'static str> {
    if !(name.starts_with(b"lib") || name.starts_with(b"__")) {
        return None;
    }
    let known =
        |(_, library, entry): &&(&str, &[u8], &[u8])| name.starts_with(library) || name == *entry;
    SANITIZERS.iter().find(known).map(|(what, ..)| *what)
}

#[cfg(test)]
extern crate std;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;
    use std::{fs, vec};

    #[test]
    fn script_lines() {
        for (head, parsed) in [
            ("#!/bin/sh\nexit", Some(("/bin/sh", ""))),
            ("#! /usr/bin/perl -w -T\n", Some(("/usr/bin/perl", "-w -T"))),
            ("#!/bin/sh", Some(("/bin/sh", ""))),
            ("#!\t./run\t \n", Some(("./run", ""))),
            ("#!\n/bin/sh", None),
            ("#", None),
            ("", None),
            ("echo hello", None),
        ] {
            let parsed = parsed.map(|(interpreter, argument): (&str, &str)| Script {
                interpreter: interpreter.as_bytes(),
                argument: argument.as_bytes(),
            });
            assert_eq!(Script::parse(head.as_bytes()), parsed, "{head:?}");
        }
    }

    #[test]
    fn a_file_gives_privileges_by_mode_or_capability() {
        assert_eq!(privileged(0o755, false), None);
        assert_eq!(privileged(0o4755, false), Some("set-user-id"));
        assert_eq!(privileged(0o2755, false), Some("set-group-id"));
        assert_eq!(privileged(0o2745, false), None);
        assert_eq!(privileged(0o755, true), Some("given file capabilities"));
    }

    #[test]
    fn heads_of_other_machines() {
        let elf = |class: u8, order: u8, machine: u16| {
            let mut head = vec![0; 64];
            head[..4].copy_from_slice(MAGIC);
            (head[4], head[5]) = (class, order);
            let number = if order == 2 { machine.to_be_bytes() } else { machine.to_le_bytes() };
            head[18..20].copy_from_slice(&number);
            head
        };
        for (class, order, number) in [(1, 1, 3), (1, 1, 62), (2, 1, 183), (2, 2, 21)] {
            let unfit = Unfit::Machine { wide: class == 2, number };
            assert_eq!(check(&*elf(class, order, number)), Err(unfit));
        }
        assert!(matches!(check(MAGIC), Err(Unfit::Damaged(_))));
        assert_eq!(check(&*elf(2, 1, 62)), Err(Unfit::Static));
    }

    #[test]
    fn names_that_do_not_fit_into_one_piece() {
        for before in [0, 1, 1000, 1010, 1020, 1024, 5000] {
            for (name, found) in [
                (&b"__tsan_init"[..], Some("ThreadSanitizer")),
                (b"libasan.so.8", Some("AddressSanitizer")),
                (b"__tsan_init_not", None),
                (b"x__tsan_init", None),
            ] {
                let table = [&vec![b'n'; before][..], b"\0", name, b"\0after\0"].concat();
                let names = Names { offset: 0, len: table.len() as u64 };
                assert_eq!(names.sanitizer(&table[..]), found, "{before} {name:?}");
                let (short, table) = (table.len() - 10, &table[..]);
                assert_eq!(Names { offset: 0, len: short as u64 }.sanitizer(table), None);
            }
        }
    }

    /// Pieces of names, put together to names that are looked for, and nearly.
    fn names() -> impl Strategy<Value = Vec<u8>> {
        const PIECES: [&[u8]; 11] = [
            b"\0", b"\0lib", b"\0__", b"a", b"t", b"hwa", b"san", b"sa", b".so.8\0", b"_init\0",
            b"_init_",
        ];
        let piece = prop::sample::select(&PIECES[..]);
        prop::collection::vec(piece, 0..64).prop_map(|pieces| pieces.concat())
    }

    /// What is changed in a file: a byte, a word of a table, or where it ends.
    #[derive(Clone, Debug)]
    enum Change {
        /// A byte of the ELF header or of the program headers behind it.
        Head(usize, u8),
        /// A byte of the section headers, at the end of the file.
        Tail(usize, u8),
        /// Any byte.
        Byte(prop::sample::Index, u8),
        /// Any aligned word becomes one that an offset or a length should not be.
        Word(prop::sample::Index, u64),
        Cut(prop::sample::Index),
    }

    fn change() -> impl Strategy<Value = Change> {
        let word = prop_oneof![Just(u64::MAX), Just(1 << 63), Just(0), 0..1u64 << 20, any::<u64>()];
        prop_oneof![
            4 => (0..1024_usize, any::<u8>()).prop_map(|(at, byte)| Change::Head(at, byte)),
            2 => (0..2048_usize, any::<u8>()).prop_map(|(at, byte)| Change::Tail(at, byte)),
            1 => any::<(prop::sample::Index, u8)>().prop_map(|(at, byte)| Change::Byte(at, byte)),
            4 => (any::<prop::sample::Index>(), word).prop_map(|(at, word)| Change::Word(at, word)),
            1 => any::<prop::sample::Index>().prop_map(Change::Cut),
        ]
    }

    fn apply(file: &mut Vec<u8>, change: Change) {
        let len = file.len().max(1);
        let (at, with) = match change {
            Change::Head(at, byte) => (at, vec![byte]),
            Change::Tail(at, byte) => (len.saturating_sub(1 + at), vec![byte]),
            Change::Byte(at, byte) => (at.index(len), vec![byte]),
            // The tables are where words matter: half of them hit those at the front.
            Change::Word(at, word) if word % 2 == 0 => {
                (at.index(128) * 8, word.to_le_bytes().into())
            }
            Change::Word(at, word) => (at.index(len) / 8 * 8, word.to_le_bytes().into()),
            Change::Cut(at) => return file.truncate(at.index(len)),
        };
        file.iter_mut().skip(at).zip(with).for_each(|(to, from)| *to = from);
    }

    proptest! {
        #[test]
        fn a_sanitizer_is_found_as_by_looking_at_every_name(names in names()) {
            let one_by_one = names.split(|b| *b == 0).find_map(sanitizer);
            prop_assert_eq!(sanitizer_among(&names), one_by_one);
        }

        /// A shell, damaged: whatever it is now, there is an answer.
        #[test]
        fn a_damaged_program_is_answered(changes in prop::collection::vec(change(), 1..6)) {
            let mut bytes = fs::read(SHELL).expect("a shell");
            prop_assert_eq!(check(&bytes[..]), Ok(()));
            changes.into_iter().for_each(|change| apply(&mut bytes, change));
            let _ = check(&bytes[..]);
        }
    }
}
