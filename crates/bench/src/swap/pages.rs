//! Real pages, made distinct, each known by a checksum before it was ever written.
//!
//! The page files are repeated as often as it takes. Page number `n` of the workload is source page
//! `n % count` with `n` xored into its last eight bytes, or, where all words of the source page are
//! equal, into every word: a page that costs almost nothing stays one that costs almost nothing.
//! Compressors begin with what is in front and end with literals, so a few other bytes at the end
//! cost at most what they are. Writing to a page xors a version above the number.
//!
//! ```text
//! source   | w0 | w1 | ...              | w511       |
//! page n   | w0 | w1 | ...              | w511 ^ n   |        sum = Σ wi * (2i + 1)
//! written  | w0 | w1 | ...              | w511 ^ n ^ version << 40 |
//! ```
//!
//! The sum is linear, so the sum of every page and version follows from its source page's: nothing
//! has to be kept for a page but one byte, its version. The weights are odd and differ, so a word
//! that is wrong, or stands at another place, shows.
//!
//! The files are read in small runs into a buffer that stays in the processor's cache: source pages
//! held in memory would be memory that has to be compressed, too.

use octavo_page::PAGE_SIZE;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// One page.
pub type Page = [u8; PAGE_SIZE];

const WORDS: usize = PAGE_SIZE / 8;

/// The place of the version above the page number, which stays below 2^40.
const VERSION_SHIFT: u32 = 40;

/// Page files that cannot be used.
#[derive(Debug, Error)]
pub enum PagesError {
    /// Cannot be read.
    #[error("--pages {}: cannot be read: {why}; name files of raw memory pages", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What stands in the way.
        why: io::Error,
    },
    /// Became shorter, or unreadable, after it was opened.
    #[error("--pages: reading again: {0}; leave the files as they are meanwhile")]
    Changed(#[from] io::Error),
    /// Not a single page among them.
    #[error("--pages: the files hold no whole page of {PAGE_SIZE} bytes; name larger ones")]
    Empty,
}

/// What is known of a source page.
#[derive(Clone, Copy)]
struct Source {
    sum: u64,
    last: u64,
    same_filled: bool,
}

/// The pages of some files.
pub struct Pages {
    files: Vec<PageFile>,
    sources: Vec<Source>,
}

/// A file, and how many whole pages it has.
struct PageFile {
    file: File,
    pages: usize,
}

/// Pages that are read at once.
const RUN: usize = 16;

/// A buffer for [`Pages::fill`].
pub struct Buffer(Box<[Page; RUN]>);

impl Default for Buffer {
    fn default() -> Self {
        Self(Box::new([[0; PAGE_SIZE]; RUN]))
    }
}

impl PageFile {
    /// Reads pages from number `first` on, as many as there are and the buffer holds.
    fn read<'b>(&self, first: usize, buffer: &'b mut Buffer) -> io::Result<&'b [Page]> {
        let run = &mut buffer.0[..RUN.min(self.pages - first)];
        self.file.read_exact_at(run.as_flattened_mut(), (first * PAGE_SIZE) as u64)?;
        Ok(run)
    }
}

impl Pages {
    /// Looks through the files, in their order; what is less than a page at an end is left out.
    ///
    /// # Errors
    /// When a file cannot be read, or there is no page in any.
    pub fn open(files: &[impl AsRef<Path>]) -> Result<Self, PagesError> {
        let mut pages = Self { files: Vec::new(), sources: Vec::new() };
        for file in files {
            let file = file.as_ref();
            pages.add(file).map_err(|why| PagesError::Read { file: file.to_path_buf(), why })?;
        }
        if pages.sources.is_empty() { Err(PagesError::Empty) } else { Ok(pages) }
    }

    fn add(&mut self, path: &Path) -> io::Result<()> {
        let file = File::open(path)?;
        let pages = file.metadata()?.len() as usize / PAGE_SIZE;
        let file = PageFile { file, pages };
        let mut buffer = Buffer::default();
        for first in (0..pages).step_by(RUN) {
            self.sources.extend(file.read(first, &mut buffer)?.iter().map(source));
        }
        self.files.push(file);
        Ok(())
    }

    /// Writes the pages from number `first` on into `memory`, in order.
    ///
    /// # Errors
    /// When a file cannot be read any more.
    pub fn fill(
        &self,
        first: u64,
        mut memory: &mut [Page],
        buffer: &mut Buffer,
    ) -> Result<(), PagesError> {
        let mut number = first;
        while !memory.is_empty() {
            let (file, index) = self.place(number);
            let run = file.read(index, buffer)?;
            let (now, later) = memory.split_at_mut(run.len().min(memory.len()));
            for (page, bytes) in now.iter_mut().zip(run) {
                page.copy_from_slice(bytes);
                self.stamp(number, page);
                number += 1;
            }
            memory = later;
        }
        Ok(())
    }

    /// Makes a source page page `number`.
    fn stamp(&self, number: u64, page: &mut Page) {
        if self.source(number).same_filled {
            page.as_chunks_mut().0.iter_mut().for_each(|word| xor(word, number));
        } else {
            xor(last(page), number);
        }
    }

    /// The sum of page `number` after `version` writes.
    #[must_use]
    pub fn sum(&self, number: u64, version: u8) -> u64 {
        let source = self.source(number);
        let filled = source.last ^ number;
        let sum = if source.same_filled {
            filled.wrapping_mul((WORDS * WORDS) as u64) // the sum of the first odd numbers
        } else {
            exchange(source.sum, source.last, filled)
        };
        exchange(sum, filled, filled ^ stamp(version))
    }

    fn source(&self, number: u64) -> Source {
        self.sources[(number % self.sources.len() as u64) as usize]
    }

    /// The file, and the number of the page in it, that page `number` is made of.
    fn place(&self, number: u64) -> (&PageFile, usize) {
        let mut index = (number % self.sources.len() as u64) as usize;
        for file in &self.files {
            if index < file.pages {
                return (file, index);
            }
            index -= file.pages;
        }
        unreachable!("there is a page for every source");
    }
}

fn source(page: &Page) -> Source {
    let words = page.as_chunks().0;
    let same_filled = words.iter().all(|word| *word == words[0]);
    Source { sum: sum(page), last: u64::from_le_bytes(words[WORDS - 1]), same_filled }
}

/// The sum of what a page holds.
#[must_use]
pub fn sum(page: &Page) -> u64 {
    let words = page.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    words.zip(0..).fold(0, |sum, (word, i)| sum.wrapping_add(word.wrapping_mul(2 * i + 1)))
}

/// The sum after the last word went from `old` to `new`.
fn exchange(sum: u64, old: u64, new: u64) -> u64 {
    sum.wrapping_add(new.wrapping_sub(old).wrapping_mul(2 * WORDS as u64 - 1))
}

/// Writes to a page: version `from` becomes version `to`.
pub fn rewrite(page: &mut Page, from: u8, to: u8) {
    xor(last(page), stamp(from) ^ stamp(to));
}

fn stamp(version: u8) -> u64 {
    u64::from(version) << VERSION_SHIFT
}

fn last(page: &mut Page) -> &mut [u8; 8] {
    page.last_chunk_mut().expect("a page has a last word")
}

fn xor(word: &mut [u8; 8], with: u64) {
    *word = (u64::from_le_bytes(*word) ^ with).to_le_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// Two files: a page of equal words and one of text; a page of noise and a part of one.
    fn pages() -> (tempfile::TempDir, Pages) {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        let noise =
            (0..PAGE_SIZE as u32 + 100).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
        let mut file = File::create(&first).expect("a file");
        file.write_all(&[7; PAGE_SIZE]).expect("written");
        file.write_all(&b"a line of text. "[..].repeat(PAGE_SIZE / 16)).expect("written");
        File::create(&second).and_then(|mut f| f.write_all(&noise.collect::<Vec<_>>())).expect("2");
        let pages = Pages::open(&[first, second]).expect("pages");
        (dir, pages)
    }

    proptest! {
        #[test]
        fn the_sum_of_a_page_is_known_before_it_is_written(
            number in 0u64..1 << 40,
            versions in proptest::collection::vec(any::<u8>(), 0..4),
        ) {
            let (_dir, pages) = pages();
            let mut page = page(&pages, number);
            let mut version = 0;
            prop_assert_eq!(sum(&page), pages.sum(number, version));
            for next in versions {
                rewrite(&mut page, version, next);
                version = next;
                prop_assert_eq!(sum(&page), pages.sum(number, version));
            }
        }

        #[test]
        fn a_wrong_word_or_place_shows(number in 0u64..1 << 40, at in 0..WORDS, other: u64) {
            let (_dir, pages) = pages();
            let mut page = page(&pages, number);
            prop_assume!(other != 0);
            xor(&mut page.as_chunks_mut().0[at], other);
            prop_assert_ne!(sum(&page), pages.sum(number, 0));
        }
    }

    fn page(pages: &Pages, number: u64) -> Page {
        let mut page = [[0; PAGE_SIZE]];
        pages.fill(number, &mut page, &mut Buffer::default()).expect("filled");
        page[0]
    }

    #[test]
    fn a_run_is_the_pages_one_by_one() {
        let (_dir, pages) = pages();
        for (first, count) in [(0, 1), (1, 70), (5, 3), (1 << 30, 40)] {
            let mut run = vec![[0; PAGE_SIZE]; count];
            pages.fill(first, &mut run, &mut Buffer::default()).expect("filled");
            for (bytes, number) in run.iter().zip(first..) {
                assert!(*bytes == page(&pages, number), "page {number} of the run from {first}");
            }
        }
    }

    #[test]
    fn pages_are_distinct_and_keep_what_they_cost() {
        let (_dir, pages) = pages();
        let mut seen = std::collections::HashSet::new();
        for number in 0..3_000 {
            let page = page(&pages, number);
            assert!(seen.insert(page), "page {number} is another one's twin");
            assert_eq!(source(&page).same_filled, number % 3 == 0, "page {number}");
        }
        assert_eq!(pages.sources.len(), 3, "what is less than a page is left out");
    }

    #[test]
    fn files_that_cannot_be_used() {
        let missing = Pages::open(&["/no/such/file"]).map(drop).expect_err("missing").to_string();
        assert!(missing.contains("/no/such/file"), "{missing}");
        let none: [&Path; 0] = [];
        assert!(matches!(Pages::open(&none), Err(PagesError::Empty)));
    }
}
