//! Writes what the fuzz targets begin with to `fuzz/corpus`, out of the sample pages: streams,
//! bodies and words that are right, so that the fuzzer need not invent them.
//!
//!     cargo run --manifest-path fuzz/Cargo.toml --no-default-features --example seeds

use flate2::{Compress, Compression, FlushCompress};
use octavo_codec::deflate::{Deflate, GENERAL, GENERAL_IDS, Level, TableSet};
use octavo_codec::{Codec, Workspace};
use octavo_page::config::{
    BackingConfig, BackingFile, BackingKind, MAX_BACKING_FILES, RunConfig, Text,
};
use octavo_page::{ByteSize, ChainLength, EngineKind, PAGE_SIZE, Unit};
use std::fs;
use std::io::Result;
use std::path::Path;

const PROGRAMS: [&str; 5] = ["gcc", "python", "redis", "rustc", "sqlite"];

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (n, program) in PROGRAMS.into_iter().enumerate() {
        let pages = fs::read(root.join(format!("../testdata/{program}.pages")))?;
        for (m, page) in pages.chunks_exact(PAGE_SIZE).step_by(20).enumerate() {
            of_page(&root.join("corpus"), n * 100 + m, page)?;
        }
    }
    words(&root.join("corpus"))
}

fn seed(corpus: &Path, target: &str, n: usize, bytes: &[&[u8]]) -> Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(format!("seed-{n}")), bytes.concat())
}

fn of_page(corpus: &Path, n: usize, page: &[u8]) -> Result<()> {
    let room = (PAGE_SIZE as u16).to_le_bytes();
    for level in [0, 1, 9] {
        seed(corpus, "inflate", 10 * n + level as usize, &[&room, &by_zlib(page, level)])?;
    }
    // Short, and by the way through a list: two literals and the end of the block.
    seed(corpus, "inflate", 10 * n + 2, &[&room, &by_zlib(&page[..100], 9)])?;
    let listed = [2, n as u8, 0, 2, n as u8 / 2, 1, 2, 0];
    seed(corpus, "inflate", 10 * n + 3, &[&[0, 0xff], &listed, &page[..40]])?;
    let tables = TableSet::new(GENERAL_IDS, 32768, &GENERAL).expect("the tables that ship");
    let mut body = vec![0; 2 * PAGE_SIZE];
    let made = Deflate::new().canned(Level::L1, &tables, page, &mut body);
    let (size, table) = made.expect("room enough");
    let mut header = vec![0; 300];
    let bits = table.header(&mut header).expect("300 bytes suffice");
    let header = &header[..bits.div_ceil(8)];
    let head_bytes = (header.len() as u16).to_le_bytes();
    // Bits 6 and 7 of the first byte say how large the window is, bits 0 and 1 what is the header.
    seed(corpus, "canned", n, &[&[3 << 6], &head_bytes, header, &body[..size]])?;
    seed(corpus, "deflate", n, &[&[(n % 63) as u8, 0], page])?;

    let codec = Codec::all().nth(7 * n % Codec::all().count()).expect("one of them");
    let place = Codec::all().position(|c| c == codec).expect("it is there") as u8;
    let mut bytes = vec![0; 2 * PAGE_SIZE];
    let size = Workspace::new(&[codec]).compress(codec, page, &mut bytes).expect("room enough");
    seed(corpus, "codecs", n, &[&[place, 0], &room, &[0; 6], &bytes[..size]])?;
    seed(corpus, "codecs", 1000 + n, &[&[place, 2], &room, &[0; 6], &[0], page])
}

fn by_zlib(page: &[u8], level: u32) -> Vec<u8> {
    let mut out = vec![0; 2 * PAGE_SIZE];
    let mut zlib = Compress::new(Compression::new(level), false);
    zlib.compress(page, &mut out, FlushCompress::Finish).expect("zlib compresses");
    out.truncate(zlib.total_out() as usize);
    out
}

fn words(corpus: &Path) -> Result<()> {
    let text = Some(Text::new(b"a;%\xff"));
    let file = BackingFile { fd: 7, priority: -5, kind: BackingKind::Itself, bytes: 1 << 40 };
    let config = RunConfig {
        pid: 4711,
        keeper: 4710,
        ledger: 3,
        limit: ByteSize::mib(512),
        strict: false,
        codec: text,
        tables: text,
        unit: Some(Unit::K16),
        chain: Some(ChainLength::MAX),
        engine: Some(EngineKind::Model),
        backing: Some(BackingConfig {
            key: Some(9),
            max_pool_percent: 72,
            files: [Some(file); MAX_BACKING_FILES],
        }),
    };
    let mut word = String::new();
    config.encode(&mut word).expect("a String takes everything");
    let others = ["512M", "2GiB", "64K", "7f1234560000-7f1234561000 rw-p 00000000 00:00 0"];
    let codecs = Codec::all().map(|codec| codec.to_string());
    let words = codecs.chain(others.map(str::to_owned)).chain([word]);
    words.enumerate().try_for_each(|(n, word)| seed(corpus, "words", n, &[word.as_bytes()]))
}
