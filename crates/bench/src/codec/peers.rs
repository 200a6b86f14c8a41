//! Who is measured: our codecs behind a [`Workspace`], and the peers' libraries.
//!
//! Every peer gets what makes it fast here: contexts made once, and for zstd frames as short as
//! ours (no magic number, content size, checksum, dictionary id).

use super::{CodecError, Program, ours};
use libdeflater::{CompressionLvl, Compressor, Decompressor};
use octavo_codec::deflate::{self, Generations, Level, TableFile, TableSet, window_of};
use octavo_codec::{Codec, DeflateMode, DoesNotFit, Job, Workspace};
use octavo_page::Unit;
use std::fmt::Display;
use std::sync::Arc;
use zlib_rs::{Deflate, DeflateFlush, Inflate, InflateFlush, Status};
use zstd::bulk;
use zstd::zstd_safe::{CParameter, DParameter, FrameFormat};

/// Bytes in a dictionary.
const DICTIONARY: usize = 16 << 10;

/// One codec under its name.
pub struct Contestant<'a> {
    pub name: String,
    pub coder: Box<dyn Coder + 'a>,
}

/// What a codec does. Units of one program come one after another.
pub trait Coder {
    /// Compresses a unit of a program, known by its place, into the front of `out`.
    fn compress(&mut self, program: usize, unit: &[u8], out: &mut [u8]) -> Option<usize>;
    /// Compresses units of a program, together if it has a way to.
    fn compress_all(&mut self, program: usize, jobs: &mut [Job<'_>]) {
        for job in jobs {
            job.size = self.compress(program, job.unit, job.out).ok_or(DoesNotFit);
        }
    }
    /// Decompresses into the whole of `out`, and says whether that went well.
    fn decompress(&mut self, program: usize, bytes: &[u8], out: &mut [u8]) -> bool;
}

/// What was learnt from each program's samples.
pub struct Trained {
    /// By level, then by program.
    tables: Vec<Vec<Arc<Generations>>>,
    dictionaries: Vec<Vec<u8>>,
}

impl Trained {
    /// Learns from each program's samples, tables only where none are given.
    pub fn new(programs: &[Program], unit: Unit, given: Option<&TableFile>) -> Self {
        let given = given.map(|file| Arc::new(Generations::of_file(file)));
        let learn = |level| {
            if let Some(given) = &given {
                return programs.iter().map(|_| Arc::clone(given)).collect();
            }
            let learn = |p: &Program| {
                let lengths = deflate::learn(level, unit.bytes(), TableSet::MAX, p.samples(unit));
                let tables = Generations::with(window_of(unit.bytes()), &lengths);
                Arc::new(tables.expect("what is trained is a table"))
            };
            programs.iter().map(learn).collect()
        };
        // Without enough samples zstd learns nothing; then it has no dictionary.
        let dictionary = |p: &Program| {
            zstd::dict::from_samples(&p.samples(unit), DICTIONARY).unwrap_or_default()
        };
        Self {
            tables: Level::ALL.map(learn).into(),
            dictionaries: programs.iter().map(dictionary).collect(),
        }
    }
}

/// All that are measured at `unit`.
pub fn all<'a>(trained: &'a Trained, unit: Unit) -> Result<Vec<Contestant<'a>>, CodecError> {
    let mut all: Vec<Contestant<'a>> = ours(unit)
        .into_iter()
        .map(|codec| Contestant {
            name: codec.to_string(),
            coder: Box::new(Ours::new(codec, trained)),
        })
        .collect();
    for level in [-1, 1] {
        let name = format!("zstd:{level}:dict");
        let coder = Dictionaries::new(level, trained)
            .map_err(|why| CodecError::Peer { codec: name.clone(), why: why.to_string() })?;
        all.push(Contestant { name, coder: Box::new(coder) });
    }
    all.push(Contestant { name: "libdeflate:1".to_owned(), coder: Box::new(Libdeflate::new()?) });
    all.push(Contestant { name: "zlib-rs:1".to_owned(), coder: Box::new(Zlib::new()) });
    Ok(all)
}

/// A codec of `octavo_codec`.
struct Ours<'a> {
    codec: Codec,
    workspace: Workspace,
    /// By program, if the codec has learnt tables.
    tables: Option<&'a [Arc<Generations>]>,
    program: Option<usize>,
}

impl<'a> Ours<'a> {
    fn new(codec: Codec, trained: &'a Trained) -> Self {
        let tables = match codec {
            Codec::Deflate { mode: DeflateMode::Canned, level, .. } => {
                Some(&trained.tables[level as usize][..])
            }
            _ => None,
        };
        Self { codec, workspace: Workspace::new(&[codec]), tables, program: None }
    }

    fn of(&mut self, program: usize) -> &mut Workspace {
        if let (Some(tables), true) = (self.tables, self.program != Some(program)) {
            self.workspace.set_learnt(Arc::clone(&tables[program]));
            self.program = Some(program);
        }
        &mut self.workspace
    }
}

impl Coder for Ours<'_> {
    fn compress(&mut self, program: usize, unit: &[u8], out: &mut [u8]) -> Option<usize> {
        let codec = self.codec;
        self.of(program).compress(codec, unit, out).ok()
    }

    fn compress_all(&mut self, program: usize, jobs: &mut [Job<'_>]) {
        let codec = self.codec;
        self.of(program).compress_all(codec, jobs);
    }

    fn decompress(&mut self, program: usize, bytes: &[u8], out: &mut [u8]) -> bool {
        let codec = self.codec;
        self.of(program).decompress(codec, bytes, out).is_ok()
    }
}

/// zstd with a dictionary for each program.
struct Dictionaries {
    encoders: Vec<bulk::Compressor<'static>>,
    decoders: Vec<bulk::Decompressor<'static>>,
}

impl Dictionaries {
    fn new(level: i32, trained: &Trained) -> std::io::Result<Self> {
        let (mut encoders, mut decoders) = (Vec::new(), Vec::new());
        for dictionary in &trained.dictionaries {
            let mut encoder = bulk::Compressor::with_dictionary(level, dictionary)?;
            encoder.set_parameter(CParameter::Format(FrameFormat::Magicless))?;
            encoder.include_contentsize(false)?;
            encoder.include_checksum(false)?;
            encoder.include_dictid(false)?;
            encoders.push(encoder);
            let mut decoder = bulk::Decompressor::with_dictionary(dictionary)?;
            decoder.set_parameter(DParameter::Format(FrameFormat::Magicless))?;
            decoders.push(decoder);
        }
        Ok(Self { encoders, decoders })
    }
}

impl Coder for Dictionaries {
    fn compress(&mut self, program: usize, unit: &[u8], out: &mut [u8]) -> Option<usize> {
        self.encoders[program].compress_to_buffer(unit, out).ok()
    }

    fn decompress(&mut self, program: usize, bytes: &[u8], out: &mut [u8]) -> bool {
        self.decoders[program].decompress_to_buffer(bytes, out).ok() == Some(out.len())
    }
}

/// libdeflate at its level 1.
struct Libdeflate {
    compressor: Compressor,
    decompressor: Decompressor,
}

impl Libdeflate {
    fn new() -> Result<Self, CodecError> {
        let error = |why: &dyn Display| CodecError::Peer {
            codec: "libdeflate:1".to_owned(),
            why: why.to_string(),
        };
        let level = CompressionLvl::new(1).map_err(|_| error(&"it has no level 1"))?;
        Ok(Self { compressor: Compressor::new(level), decompressor: Decompressor::new() })
    }
}

impl Coder for Libdeflate {
    fn compress(&mut self, _: usize, unit: &[u8], out: &mut [u8]) -> Option<usize> {
        self.compressor.deflate_compress(unit, out).ok()
    }

    fn decompress(&mut self, _: usize, bytes: &[u8], out: &mut [u8]) -> bool {
        self.decompressor.deflate_decompress(bytes, out).is_ok_and(|n| n == out.len())
    }
}

/// zlib in Rust at level 1.
struct Zlib {
    deflate: Deflate,
    inflate: Inflate,
}

/// zlib's largest window, 32 KiB, in bits.
pub const WINDOW_BITS: u8 = 15;

impl Zlib {
    fn new() -> Self {
        Self {
            deflate: Deflate::new(1, false, WINDOW_BITS),
            inflate: Inflate::new(false, WINDOW_BITS),
        }
    }
}

impl Coder for Zlib {
    fn compress(&mut self, _: usize, unit: &[u8], out: &mut [u8]) -> Option<usize> {
        self.deflate.reset();
        let status = self.deflate.compress(unit, out, DeflateFlush::Finish).ok()?;
        (status == Status::StreamEnd).then(|| self.deflate.total_out() as usize)
    }

    fn decompress(&mut self, _: usize, bytes: &[u8], out: &mut [u8]) -> bool {
        self.inflate.reset(false);
        let status = self.inflate.decompress(bytes, out, InflateFlush::Finish);
        matches!(status, Ok(Status::StreamEnd)) && self.inflate.total_out() == out.len() as u64
    }
}
