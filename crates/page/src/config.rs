//! What `octavo run` tells the preloaded object: one environment variable, `OCTAVO_RUN`.
//!
//! ```text
//! OCTAVO_RUN=v=2;pid=4711;keeper=4710;ledger=3;limit=536870912;strict=0;codec=zstd:1
//! ```
//!
//! Pairs `key=value` joined by `;`, each key at most once, the six of [`REQUIRED`] always. Inside
//! a value every byte that is not printable ASCII, and `;`, `%` and `=`, is written `%XX`: the
//! whole word is ASCII whatever bytes a path has.
//!
//! The reader is a thread in somebody else's program that may not allocate. So a [`RunConfig`] read
//! back borrows the word and its texts stay as they were written; [`Text::bytes`] decodes on the
//! way out. Two texts are equal when they mean the same bytes.

use crate::{ByteSize, ChainLength, EngineKind, Unit};
use core::fmt;

/// The name of the environment variable.
pub const VARIABLE: &str = "OCTAVO_RUN";

/// Bytes of address space, not memory, that the preloaded object reserves for its tables, whatever
/// the limit.
pub const TABLE_RESERVE: usize = 16 << 30;

/// Descriptors that a pager takes at most, all its own: 14 around a fork, and a backing file's.
pub const PAGER_DESCRIPTORS: u64 = 16;

/// Address space that is reserved in each process for a job of `limit`: tables, four times the limit for
/// the pool, and room for staging and for the program to start.
#[must_use]
pub const fn reserve_bytes(limit: ByteSize) -> u64 {
    limit.bytes().saturating_mul(4).saturating_add(TABLE_RESERVE as u64 + (1 << 30))
}

/// The version this module writes and the only one it reads.
pub const VERSION: u32 = 2;

/// The keys without which a word is refused.
pub const REQUIRED: [&str; 6] = ["v", "pid", "keeper", "ledger", "limit", "strict"];

/// How a program is to be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunConfig<'a> {
    /// The job's first process: the one that was `octavo` and is now the program. Processes with
    /// another id have inherited the variable and belong to the same job.
    pub pid: u32,
    /// The process that keeps the job's ledger.
    pub keeper: u32,
    /// The ledger's descriptor there.
    pub ledger: u32,
    /// What the job may occupy, everything of ours counted.
    pub limit: ByteSize,
    /// End the job with 137 instead of going over the limit.
    pub strict: bool,
    /// The codec's name; absent: chosen while running.
    pub codec: Option<Text<'a>>,
    /// The bytes of a file of tables for that codec; absent: it learns some.
    pub tables: Option<Text<'a>>,
    /// What one compress request takes; absent: chosen while running.
    pub unit: Option<Unit>,
    /// The chain length of the pool; absent: its default.
    pub chain: Option<ChainLength>,
    /// What compresses; absent: the CPU.
    pub engine: Option<EngineKind>,
    /// Where memory is written back to; absent: nowhere.
    pub backing: Option<BackingConfig>,
}

/// Backing files at most.
pub const MAX_BACKING_FILES: usize = 8;

/// Where memory is written back to.
///
/// ```text
/// backing=KEY:PERCENT:FILE:FILE...   KEY: a descriptor, or - for a random key in each process
///                                    PERCENT: of the limit, in memory at most
///                                    FILE: descriptor,priority,kind,bytes
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackingConfig {
    /// The keeper's descriptor of the key file; none: each process has a random key.
    pub key: Option<u32>,
    /// The share of the limit, in percent, 1 to 100, that the store may take before its oldest objects are
    /// written back.
    pub max_pool_percent: u8,
    /// The files; those there are come first.
    pub files: [Option<BackingFile>; MAX_BACKING_FILES],
}

/// One place to write back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackingFile {
    /// The keeper's descriptor.
    pub fd: u32,
    /// The higher it is, the earlier it is used.
    pub priority: i32,
    /// What the descriptor is.
    pub kind: BackingKind,
    /// Bytes that may be used.
    pub bytes: u64,
}

/// What a process does with the descriptor of a backing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackingKind {
    /// It is a directory, in which each process makes a file without a name.
    Directory,
    /// It is the file or device itself, which one process of the job can have.
    Itself,
}

impl BackingConfig {
    /// The files there are.
    pub fn files(&self) -> impl Iterator<Item = BackingFile> {
        self.files.into_iter().flatten()
    }

    fn encode(&self, out: &mut impl fmt::Write) -> fmt::Result {
        match self.key {
            Some(key) => write!(out, "{key}")?,
            None => out.write_char('-')?,
        }
        write!(out, ":{}", self.max_pool_percent)?;
        self.files().try_for_each(|BackingFile { fd, priority, kind, bytes }| {
            let kind = match kind {
                BackingKind::Directory => 'd',
                BackingKind::Itself => 'i',
            };
            write!(out, ":{fd},{priority},{kind},{bytes}")
        })
    }

    fn decode(value: &str) -> Option<Self> {
        let mut parts = value.split(':');
        let key = match parts.next()? {
            "-" => None,
            key => Some(number(key)?),
        };
        let max_pool_percent = parts.next().and_then(number)?;
        if !(1..=100).contains(&max_pool_percent) {
            return None;
        }
        let mut files = [None; MAX_BACKING_FILES];
        let mut places = files.iter_mut();
        for part in parts {
            let mut words = part.split(',');
            let mut next = || words.next();
            let file = BackingFile {
                fd: number(next()?)?,
                priority: number(next()?)?,
                kind: match next()? {
                    "d" => BackingKind::Directory,
                    "i" => BackingKind::Itself,
                    _ => return None,
                },
                bytes: number(next()?)?,
            };
            if next().is_some() {
                return None;
            }
            *places.next()? = Some(file);
        }
        files[0].map(|_| Self { key, max_pool_percent, files })
    }
}

/// Some bytes, borrowed either as they are or as they stand percent-encoded in the word.
#[derive(Clone, Copy)]
pub struct Text<'a>(Form<'a>);

#[derive(Clone, Copy)]
enum Form<'a> {
    Plain(&'a [u8]),
    /// Checked by [`Text::encoded`]: every `%` is followed by two hexadecimal digits.
    Encoded(&'a [u8]),
}

impl<'a> Text<'a> {
    /// These bytes as they are.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(Form::Plain(bytes))
    }

    /// A value as it stands in the word, if it is one.
    fn encoded(value: &'a str) -> Option<Self> {
        let mut rest = value.as_bytes();
        while let Some((_, after)) = take_byte(rest)? {
            rest = after;
        }
        Some(Self(Form::Encoded(value.as_bytes())))
    }

    /// The bytes that are meant, one by one.
    pub fn bytes(self) -> impl Iterator<Item = u8> + Clone + 'a {
        let (mut rest, encoded) = match self.0 {
            Form::Plain(bytes) => (bytes, false),
            Form::Encoded(bytes) => (bytes, true),
        };
        core::iter::from_fn(move || {
            let (byte, after) = if encoded {
                take_byte(rest).flatten()?
            } else {
                let (&first, after) = rest.split_first()?;
                (first, after)
            };
            rest = after;
            Some(byte)
        })
    }

    fn encode(self, out: &mut impl fmt::Write) -> fmt::Result {
        self.bytes().try_for_each(|byte| {
            if is_plain(byte) { out.write_char(byte as char) } else { write!(out, "%{byte:02X}") }
        })
    }

    /// Writes the bytes to the front of `out` and returns that part; `None` when they do not fit.
    pub fn copy_to(self, out: &mut [u8]) -> Option<&[u8]> {
        let mut length = 0;
        for byte in self.bytes() {
            *out.get_mut(length)? = byte;
            length += 1;
        }
        Some(&out[..length])
    }

    /// Whether the text means exactly `bytes`.
    #[must_use]
    pub fn is(self, bytes: &[u8]) -> bool {
        self.bytes().eq(bytes.iter().copied())
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes().eq(other.bytes())
    }
}

impl Eq for Text<'_> {}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for byte in self.bytes() {
            write!(f, "{}", byte.escape_ascii())?;
        }
        f.write_str("\"")
    }
}

/// The first byte meant by an encoded value and what follows it. `Some(None)` at the end, `None`
/// when the value is no encoding.
fn take_byte(encoded: &[u8]) -> Option<Option<(u8, &[u8])>> {
    match encoded {
        [] => Some(None),
        [b'%', high, low, rest @ ..] => Some(Some((digit(*high)? << 4 | digit(*low)?, rest))),
        [byte, rest @ ..] if is_plain(*byte) => Some(Some((*byte, rest))),
        _ => None,
    }
}

/// The value of a hexadecimal digit.
fn digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|d| d as u8)
}

/// Whether a byte stands for itself inside a value.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b';' | b'%' | b'=')
}

/// A word that is no configuration. Nothing of it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError<'a> {
    /// A part of the word without `=`.
    NotAPair(&'a str),
    /// A key this version does not know.
    UnknownKey(&'a str),
    /// A key that stands twice.
    Repeated(&'a str),
    /// A required key that is not there.
    Missing(&'static str),
    /// A value that the key cannot have.
    BadValue {
        /// The key.
        key: &'a str,
        /// The value, still encoded.
        value: &'a str,
    },
}

impl fmt::Display for ConfigError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VARIABLE)?;
        match self {
            Self::NotAPair(part) => write!(f, ": \"{part}\" is not key=value"),
            Self::UnknownKey(key) => write!(f, ": unknown key \"{key}\""),
            Self::Repeated(key) => write!(f, ": {key} is given twice"),
            Self::Missing(key) => write!(f, ": {key} is missing"),
            Self::BadValue { key: "v", value } => {
                write!(f, ": version {value}, but this object reads version {VERSION}")
            }
            Self::BadValue { key, value } => write!(f, ": {key} cannot be \"{value}\""),
        }?;
        f.write_str("; octavo and its preloaded object must be of one build")
    }
}

impl core::error::Error for ConfigError<'_> {}

impl<'a> RunConfig<'a> {
    /// Writes the value of [`VARIABLE`].
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn encode(&self, out: &mut impl fmt::Write) -> fmt::Result {
        write!(
            out,
            "v={VERSION};pid={};keeper={};ledger={};limit={};strict={}",
            self.pid,
            self.keeper,
            self.ledger,
            self.limit.bytes(),
            u8::from(self.strict),
        )?;
        if let Some(unit) = self.unit {
            write!(out, ";unit={unit}")?;
        }
        if let Some(chain) = self.chain {
            write!(out, ";chain={chain}")?;
        }
        if let Some(engine) = self.engine {
            write!(out, ";engine={engine}")?;
        }
        if let Some(backing) = self.backing {
            out.write_str(";backing=")?;
            backing.encode(out)?;
        }
        if let Some(codec) = self.codec {
            out.write_str(";codec=")?;
            codec.encode(out)?;
        }
        if let Some(tables) = self.tables {
            out.write_str(";tables=")?;
            tables.encode(out)?;
        }
        Ok(())
    }

    /// Reads the value of [`VARIABLE`].
    ///
    /// # Errors
    /// When the word is not exactly what [`encode`](Self::encode) of this version writes, up to the
    /// order of the pairs.
    pub fn decode(word: &'a str) -> Result<Self, ConfigError<'a>> {
        let mut read = Read::default();
        for part in word.split(';') {
            let (key, value) = part.split_once('=').ok_or(ConfigError::NotAPair(part))?;
            read.pair(key, value)?;
        }
        read.version.ok_or(ConfigError::Missing("v"))?;
        Ok(Self {
            pid: read.pid.ok_or(ConfigError::Missing("pid"))?,
            keeper: read.keeper.ok_or(ConfigError::Missing("keeper"))?,
            ledger: read.ledger.ok_or(ConfigError::Missing("ledger"))?,
            limit: read.limit.ok_or(ConfigError::Missing("limit"))?,
            strict: read.strict.ok_or(ConfigError::Missing("strict"))?,
            codec: read.codec,
            tables: read.tables,
            unit: read.unit,
            chain: read.chain,
            engine: read.engine,
            backing: read.backing,
        })
    }
}

/// The pairs seen so far.
#[derive(Default)]
struct Read<'a> {
    version: Option<u32>,
    pid: Option<u32>,
    keeper: Option<u32>,
    ledger: Option<u32>,
    limit: Option<ByteSize>,
    strict: Option<bool>,
    codec: Option<Text<'a>>,
    tables: Option<Text<'a>>,
    unit: Option<Unit>,
    chain: Option<ChainLength>,
    engine: Option<EngineKind>,
    backing: Option<BackingConfig>,
}

impl<'a> Read<'a> {
    /// Takes one pair in.
    fn pair(&mut self, key: &'a str, value: &'a str) -> Result<(), ConfigError<'a>> {
        match key {
            "v" => set(&mut self.version, key, value, |v| number(v).filter(|n| *n == VERSION)),
            "pid" => set(&mut self.pid, key, value, number),
            "keeper" => set(&mut self.keeper, key, value, number),
            "ledger" => set(&mut self.ledger, key, value, number),
            "limit" => set(&mut self.limit, key, value, |v| number(v).map(ByteSize::new)),
            "strict" => set(&mut self.strict, key, value, flag),
            "codec" => set(&mut self.codec, key, value, Text::encoded),
            "tables" => set(&mut self.tables, key, value, Text::encoded),
            "unit" => set(&mut self.unit, key, value, |v| v.parse().ok()),
            "chain" => set(&mut self.chain, key, value, number),
            "engine" => set(&mut self.engine, key, value, |v| v.parse().ok()),
            "backing" => set(&mut self.backing, key, value, BackingConfig::decode),
            _ => Err(ConfigError::UnknownKey(key)),
        }
    }
}

/// Puts what `parse` makes of `value` into an empty place.
fn set<'a, T>(
    place: &mut Option<T>,
    key: &'a str,
    value: &'a str,
    parse: impl FnOnce(&'a str) -> Option<T>,
) -> Result<(), ConfigError<'a>> {
    let parsed = parse(value).ok_or(ConfigError::BadValue { key, value })?;
    match place.replace(parsed) {
        None => Ok(()),
        Some(_) => Err(ConfigError::Repeated(key)),
    }
}

/// A decimal number without a sign.
fn number<T: core::str::FromStr>(value: &str) -> Option<T> {
    if value.starts_with('+') { None } else { value.parse().ok() }
}

/// `0` or `1`.
fn flag(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use std::string::{String, ToString};
    use std::vec::Vec;

    const PLAIN: RunConfig<'static> = RunConfig {
        pid: 4711,
        keeper: 4710,
        ledger: 3,
        limit: ByteSize::mib(512),
        strict: false,
        codec: None,
        tables: None,
        unit: None,
        chain: None,
        engine: None,
        backing: None,
    };

    fn backing(key: Option<u32>, of: &[(u32, i32, bool, u64)]) -> BackingConfig {
        let mut files = [None; MAX_BACKING_FILES];
        for (place, (fd, priority, itself, bytes)) in files.iter_mut().zip(of) {
            let kind = if *itself { BackingKind::Itself } else { BackingKind::Directory };
            *place = Some(BackingFile { fd: *fd, priority: *priority, kind, bytes: *bytes });
        }
        BackingConfig { key, max_pool_percent: 72, files }
    }

    fn word(config: &RunConfig<'_>) -> String {
        let mut word = String::new();
        config.encode(&mut word).expect("a String takes everything");
        word
    }

    #[test]
    fn the_word_is_as_documented() {
        let config = RunConfig {
            codec: Some(Text::new(b"a;b=c%\xff two")),
            unit: Some(Unit::K16),
            chain: Some(ChainLength::MAX),
            engine: Some(EngineKind::Model),
            backing: Some(backing(Some(9), &[(7, 0, false, 4096), (8, -5, true, 1 << 40)])),
            ..PLAIN
        };
        assert_eq!(
            word(&config),
            "v=2;pid=4711;keeper=4710;ledger=3;limit=536870912;strict=0;unit=16K;\
             chain=16;engine=model;backing=9:72:7,0,d,4096:8,-5,i,1099511627776;codec=a%3Bb%3Dc%25%FF two"
        );
    }

    #[test]
    fn what_is_no_word_says_what_is_wrong() {
        use ConfigError::*;
        let whole = word(&PLAIN);
        for (bad, error) in [
            ("", NotAPair("")),
            ("v", NotAPair("v")),
            ("v=2", Missing("pid")),
            ("pid=1;limit=1;strict=0", Missing("v")),
            ("v=1", BadValue { key: "v", value: "1" }),
            ("v=2;v=2", Repeated("v")),
            ("colour=red", UnknownKey("colour")),
            ("pid=+1", BadValue { key: "pid", value: "+1" }),
            ("limit=512M", BadValue { key: "limit", value: "512M" }),
            ("strict=yes", BadValue { key: "strict", value: "yes" }),
            ("unit=8K", BadValue { key: "unit", value: "8K" }),
            ("chain=0", BadValue { key: "chain", value: "0" }),
            ("engine=auto", BadValue { key: "engine", value: "auto" }),
            ("backing=-", BadValue { key: "backing", value: "-" }),
            ("backing=-:72", BadValue { key: "backing", value: "-:72" }),
            ("backing=-:0:1,2,d,3", BadValue { key: "backing", value: "-:0:1,2,d,3" }),
            ("backing=-:101:1,2,d,3", BadValue { key: "backing", value: "-:101:1,2,d,3" }),
            ("backing=-:72:1,2,x,3", BadValue { key: "backing", value: "-:72:1,2,x,3" }),
            ("backing=-:72:1,2,d,3,4", BadValue { key: "backing", value: "-:72:1,2,d,3,4" }),
            ("codec=%4", BadValue { key: "codec", value: "%4" }),
            ("codec=%zz", BadValue { key: "codec", value: "%zz" }),
            ("codec=a=b", BadValue { key: "codec", value: "a=b" }),
        ] {
            assert_eq!(RunConfig::decode(bad), Err(error), "{bad}");
            assert!(error.to_string().starts_with("OCTAVO_RUN: "), "{error}");
        }
        assert_eq!(RunConfig::decode(&(whole + ";")), Err(NotAPair("")));
    }

    #[test]
    fn a_text_is_copied_whole_or_not_at_all() {
        let text = Text::encoded("a%3Bb").expect("an encoding");
        assert_eq!(text.copy_to(&mut [0; 3]), Some(&b"a;b"[..]));
        assert_eq!(text.copy_to(&mut [0; 2]), None);
        assert!(text.is(b"a;b") && !text.is(b"a;") && !text.is(b"a;bc"));
    }

    proptest! {
        #[test]
        fn a_configuration_reads_back_as_written(
            pid: u32, keeper: u32, ledger: u32, limit: u64, strict: bool,
            codec in option::of(vec(any::<u8>(), 0..40)),
            tables in option::of(vec(any::<u8>(), 0..40)),
            unit in option::of(prop::sample::select(&Unit::ALL[..])),
            chain in option::of(1..=16usize),
            engine in option::of(prop::sample::select(&EngineKind::ALL[..])),
            files in vec(any::<(u32, i32, bool, u64)>(), 0..=MAX_BACKING_FILES),
            file_key: Option<u32>,
        ) {
            fn text(bytes: &Option<Vec<u8>>) -> Option<Text<'_>> {
                bytes.as_deref().map(Text::new)
            }
            let config = RunConfig {
                pid, keeper, ledger, limit: ByteSize::new(limit), strict, unit, engine,
                chain: chain.and_then(ChainLength::new),
                codec: text(&codec),
                tables: text(&tables),
                backing: (!files.is_empty()).then(|| backing(file_key, &files)),
            };
            let word = word(&config);
            prop_assert!(word.bytes().all(|b| b.is_ascii_graphic() || b == b' '));
            let read = RunConfig::decode(&word).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(read, config);
            if let (Some(read), Some(codec)) = (read.codec, &codec) {
                prop_assert!(read.is(codec));
            }
        }

        #[test]
        fn any_word_is_answered(word in "[a-z=;%0-9 ]{0,60}|\\PC*") {
            let _ = RunConfig::decode(&word);
        }
    }
}
