//! Keys: what is one, and that there is no trace of it elsewhere.

use octavo_crypt::{Crypt, Format, Key, KeyError, Piece, Sector};
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn read(path: &Path) -> Result<Key, KeyError> {
    Key::read(&CString::new(OsStr::as_bytes(path.as_ref())).expect("no zero byte"))
}

/// What a key of these bytes in a file is refused for.
fn refusal(bytes: &[u8]) -> Option<KeyError> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), bytes).expect("room");
    read(file.path()).err()
}

#[test]
fn a_key_file_has_64_bytes_and_two_keys() {
    let key: Vec<u8> = (0..64).collect();
    assert_eq!(refusal(&key), None);
    assert_eq!(refusal(&[]), Some(KeyError::TooShort { found: 0 }));
    assert_eq!(refusal(&key[..32]), Some(KeyError::TooShort { found: 32 }));
    assert_eq!(refusal(&[&key[..], b"\n"].concat()), Some(KeyError::TooLong));
    assert_eq!(refusal(&[7; 64]), Some(KeyError::EqualHalves));
    for path in ["/nowhere/at/all", "/"] {
        assert!(matches!(read(Path::new(path)), Err(KeyError::Unreadable(_))), "{path}");
    }
    let said = read(Path::new("/nowhere/at/all")).err().map(|why| why.to_string());
    assert_eq!(said.as_deref(), Some("the key cannot be read (No such file or directory)"));
}

#[test]
fn a_refusal_names_what_was_found_and_what_would_do() {
    let said = KeyError::TooShort { found: 32 }.to_string();
    assert_eq!(said, "a key has 64 bytes, this one 32; make one by: head -c 64 /dev/urandom >FILE");
    assert!(KeyError::TooLong.to_string().contains("no line break"));
}

#[test]
fn a_key_from_a_file_is_that_key_and_an_ephemeral_one_is_no_other() {
    let bytes: [u8; 64] = std::array::from_fn(|i| i as u8);
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), bytes).expect("room");
    let sector_by = |key: Key| {
        let mut sector = [0; 4096];
        let crypt = Crypt::new(key, Format::PAGES).expect("locked memory");
        crypt.encrypt(&mut [Piece::in_place(Sector::new(0), &mut sector)]);
        sector
    };
    let of_file = sector_by(read(file.path()).expect("a key"));
    assert!(of_file == sector_by(Key::new(&bytes).expect("a key")));
    let ephemeral = || sector_by(Key::ephemeral().expect("a key"));
    assert!(ephemeral() != ephemeral());
}

/// What the mappings of this process that can be written are, as `smaps` has them.
fn mappings() -> Vec<String> {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("proc");
    let mut mappings: Vec<String> = Vec::new();
    for line in smaps.lines() {
        let is_head = line.split(' ').next().is_some_and(|word| word.contains('-'));
        match mappings.last_mut() {
            Some(last) if !is_head => last.push_str(&format!("\n{line}")),
            _ => mappings.push(line.to_owned()),
        }
    }
    mappings.retain(|mapping| mapping.split(' ').nth(1).is_some_and(|mode| mode.starts_with("rw")));
    mappings
}

/// The contents of a mapping, each bit turned round, so that no copy is found by a later search.
/// `None` for what is no memory, or more than anybody touches here.
fn turned_contents(mapping: &str) -> Option<Vec<u8>> {
    let (start, end) = mapping.split(' ').next()?.split_once('-')?;
    let [start, end] = [start, end].map(|n| u64::from_str_radix(n, 16).expect("an address"));
    let mut bytes = vec![0; usize::try_from(end - start).ok().filter(|len| *len < 1 << 28)?];
    File::open("/proc/self/mem").expect("proc").read_exact_at(&mut bytes, start).ok()?;
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    Some(bytes)
}

/// Mappings that have either half of a key in them, of which the turned bytes are `turned`. The round
/// keys of AES begin with the key, so an expanded key is found, too. What was read is wiped: turned bytes
/// left in the heap would be turned once more in a copy of the heap, and that left there, too.
fn with_key(turned: &[u8; 64]) -> Vec<String> {
    let [data, tweak] = [&turned[..32], &turned[32..]];
    let has_key = |mapping: &String| {
        let mut contents = turned_contents(mapping).unwrap_or_default();
        let found = contents.windows(32).any(|window| window == data || window == tweak);
        contents.fill(0);
        std::hint::black_box(&mut contents);
        found
    };
    mappings().into_iter().filter(has_key).collect()
}

#[test]
fn a_key_in_use_is_in_locked_memory_only_and_gone_after() {
    let mut bytes = [0; 64];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).expect("random");
    let key = Key::new(&bytes).expect("a key");
    let turned = std::array::from_fn(|i| !bytes[i]);
    bytes.fill(0);
    std::hint::black_box(&mut bytes);
    let crypt = Crypt::new(key, Format::PAGES).expect("locked memory");
    let mut sector = [0; 4096];
    crypt.encrypt(&mut [Piece::in_place(Sector::new(0), &mut sector)]);

    let found = with_key(&turned);
    assert_eq!(found.len(), 1, "{found:#?}");
    let flags = found[0].lines().find(|line| line.contains("VmFlags")).expect("flags");
    for flag in ["lo", "dd", "dc"] {
        assert!(flags.split(' ').any(|word| word == flag), "{flag} of {flags}");
    }
    drop(crypt);
    assert_eq!(with_key(&turned), [""; 0]);
}
