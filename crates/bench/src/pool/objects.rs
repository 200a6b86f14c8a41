//! What the pools are given: the compressed units of page files, over and over.

use memmap2::MmapMut;
use octavo_codec::{Codec, Workspace};
use octavo_page::Unit;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Page files that cannot be used.
#[derive(Debug, Error)]
pub enum ObjectsError {
    /// Cannot be read.
    #[error("--pages {}: cannot be read: {why}; name files of raw memory pages", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What stands in the way.
        why: io::Error,
    },
    /// Nothing to store in them.
    #[error(
        "--pages: the files hold no unit of {0} that is not of one word throughout; name larger ones"
    )]
    Empty(Unit),
}

/// The units of some files. Number `n` is unit `n % count`; one that repeats a single word is none,
/// because no pool gets to see it.
///
/// They lie in a mapping, not in what `malloc` gives: whoever measures that finds nothing of theirs in it.
pub struct Objects {
    bytes: MmapMut,
    /// Where each unit's object lies; empty where there is none.
    places: Vec<Range<usize>>,
    len: usize,
}

impl Objects {
    /// Reads the files and compresses them unit by unit; without a codec they stay as they are. What
    /// is less than a unit at the end of a file is left out. A unit that does not get smaller is
    /// stored as it is.
    ///
    /// # Errors
    /// When a file cannot be read, or there is nothing to store.
    pub fn new(files: &[PathBuf], codec: Option<Codec>, unit: Unit) -> Result<Self, ObjectsError> {
        let failed = |file: &Path| {
            let file = file.to_path_buf();
            move |why| ObjectsError::Read { file, why }
        };
        let size = |file: &PathBuf| Ok(fs::metadata(file).map_err(failed(file))?.len() as usize);
        let sizes: Vec<usize> = files.iter().map(size).collect::<Result<_, ObjectsError>>()?;
        let units = sizes.iter().map(|size| size / unit.bytes()).sum();
        let mut objects = Self::with_room(units, unit.bytes()).ok_or(ObjectsError::Empty(unit))?;
        let mut workspace = codec.map(|codec| (Workspace::new(&[codec]), codec));
        let (mut raw, mut room) = (vec![0; unit.bytes()], vec![0; unit.bytes() - 1]);
        for (file, size) in files.iter().zip(sizes) {
            let mut reader = File::open(file).map_err(failed(file))?;
            for _ in 0..size / unit.bytes() {
                reader.read_exact(&mut raw).map_err(failed(file))?;
                let packed = match &mut workspace {
                    Some((workspace, codec)) => workspace.compress(*codec, &raw, &mut room).ok(),
                    None => None,
                };
                objects.push(if is_same_filled(&raw) {
                    &[]
                } else {
                    packed.map_or(&raw, |len| &room[..len])
                });
            }
        }
        if objects.len == 0 { Err(ObjectsError::Empty(unit)) } else { Ok(objects) }
    }

    fn with_room(units: usize, unit: usize) -> Option<Self> {
        let bytes = MmapMut::map_anon(units * unit).ok()?;
        Some(Self { bytes, places: Vec::with_capacity(units), len: 0 })
    }

    /// These very objects.
    #[cfg(test)]
    pub(crate) fn of(objects: impl Iterator<Item = Vec<u8>>) -> Self {
        let mut all = Self::with_room(1000, 4096).expect("memory");
        objects.for_each(|object| all.push(&object));
        all
    }

    fn push(&mut self, object: &[u8]) {
        let place = self.len..self.len + object.len();
        self.bytes[place.clone()].copy_from_slice(object);
        self.len = place.end;
        self.places.push(place);
    }

    /// Object number `n`, if there is one.
    #[must_use]
    pub fn get(&self, n: usize) -> Option<&[u8]> {
        let place = self.places[n % self.places.len()].clone();
        (!place.is_empty()).then(|| &self.bytes[place])
    }

    /// The first object from number `n` on.
    #[must_use]
    pub fn from(&self, n: usize) -> &[u8] {
        (n..).find_map(|n| self.get(n)).expect("there is one")
    }

    /// The objects of the first `units` units.
    pub fn first(&self, units: usize) -> impl Iterator<Item = &[u8]> {
        (0..units).filter_map(|n| self.get(n))
    }
}

fn is_same_filled(unit: &[u8]) -> bool {
    let words = unit.as_chunks::<8>().0;
    words.iter().all(|word| *word == words[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn units_become_objects_and_equal_words_none() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(4096);
        let text = b"a line of text. ".repeat(256);
        let pages: Vec<u8> = [7; 4096].into_iter().chain(text).chain(noise).chain([1; 9]).collect();
        file.write_all(&pages).expect("written");
        let files = [file.path().to_path_buf()];
        let raw = Objects::new(&files, None, Unit::K4).expect("objects");
        assert_eq!((raw.get(0), raw.get(1)), (None, Some(&pages[4096..8192])));
        assert_eq!((raw.get(5), raw.from(3)), (raw.get(2), &pages[4096..8192]));
        assert_eq!(raw.first(6).count(), 4);
        let packed = Objects::new(&files, Some(Codec::Lz4), Unit::K4).expect("objects");
        let lens = [0, 1, 2].map(|n| packed.get(n).map(<[u8]>::len));
        assert!(matches!(lens, [None, Some(1..100), Some(4096)]), "{lens:?}");
        let none = Objects::new(&files, None, Unit::K64).map(drop).expect_err("too short");
        assert!(none.to_string().contains("64K"), "{none}");
    }
}
