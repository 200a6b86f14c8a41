//! The workload: a plain program that wants more memory than it is given.
//!
//! It maps anonymous memory, fills it with distinct pages, reads all in order, reads at random,
//! writes at random, and at the end looks once more at every page it wrote. Every page that is read
//! is verified. It knows nothing of who makes room for it.
//!
//! It talks to the driver in lines: before each phase it reads one from stdin (so that the driver
//! can place it in a cgroup, or look at it, while it stands still), after it writes one [`Report`]
//! to stdout. Without a driver, stdin at its end, it goes quietly.

use super::pages::{self, Buffer, Page, Pages, PagesError};
use memmap2::MmapMut;
use octavo_page::{ByteSize, PAGE_SIZE};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};
use std::mem;
use std::path::PathBuf;
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;
use thiserror::Error;

/// What the worker is to do.
#[derive(Clone, Debug)]
pub struct Job {
    /// Memory to fill, in bytes; whole pages of it are used.
    pub size: ByteSize,
    /// Files of raw pages.
    pub pages: Vec<PathBuf>,
    /// Threads, each with its own part of the memory.
    pub threads: usize,
}

/// A part of the workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Every page is written for the first time.
    Fill,
    /// Every page is read in order.
    SeqRead,
    /// Pages are read at random.
    RandRead,
    /// Pages are written at random.
    RandWrite,
    /// Every page that was written at random is read in order.
    Verify,
}

impl Phase {
    /// All of them in their order.
    pub const ALL: [Self; 5] =
        [Self::Fill, Self::SeqRead, Self::RandRead, Self::RandWrite, Self::Verify];
}

/// What the worker says after a phase.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The phase that ended.
    pub phase: Phase,
    /// Its wall time.
    pub seconds: f64,
    /// Pages it touched, all threads together.
    pub pages: u64,
    /// Address of the memory.
    pub at: usize,
}

/// Why the worker stopped.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The page files.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// No memory, or no pipe.
    #[error("worker: {0}")]
    Io(#[from] io::Error),
    /// Fewer threads are allowed than asked for.
    #[error(
        "worker: a thread cannot be started: {0}; allow more (`ulimit -u`), or ask for fewer with --threads"
    )]
    Thread(io::Error),
    /// A page that is not what was stored: the one thing that must never happen.
    #[error("worker: page {number} (written {version} times) reads as something else")]
    Mismatch {
        /// Its number.
        number: u64,
        /// How often it was written.
        version: u8,
    },
}

/// Does the job, told by `stdin` when, and says so on `stdout`.
///
/// # Errors
/// When memory or files fail, and when a page is not what was stored.
pub fn work(job: &Job) -> Result<(), WorkerError> {
    // Nobody else would end us if the driver were killed while a phase runs.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    let pages = Pages::open(&job.pages)?;
    let mut memory = MmapMut::map_anon(job.size.pages().max(1) as usize * PAGE_SIZE)?;
    let mut versions = vec![0; memory.len() / PAGE_SIZE];
    let mut go = io::stdin().lock().lines();
    for phase in Phase::ALL {
        if go.next().transpose()?.is_none() {
            return Ok(());
        }
        let begin = Instant::now();
        let touched =
            run_phase(phase, &pages, job.threads, memory.as_chunks_mut().0, &mut versions)?;
        let seconds = begin.elapsed().as_secs_f64();
        let report = Report { phase, seconds, pages: touched, at: memory.as_ptr() as usize };
        let line = serde_json::to_string(&report).map_err(io::Error::from)?;
        writeln!(io::stdout(), "{line}")?;
    }
    // Octavo's counters are those at the end: they should find the memory in use.
    mem::forget(memory);
    Ok(())
}

/// One phase on all threads; gives the pages touched.
fn run_phase(
    phase: Phase,
    pages: &Pages,
    threads: usize,
    memory: &mut [Page],
    versions: &mut [u8],
) -> Result<u64, WorkerError> {
    let share = memory.len().div_ceil(threads.max(1));
    let parts = memory.chunks_mut(share).zip(versions.chunks_mut(share)).enumerate();
    thread::scope(|scope| {
        let running: Vec<_> = parts
            .map(|(i, (memory, versions))| {
                let mut part = Part { pages, first: (i * share) as u64, memory, versions };
                let thread = thread::Builder::new();
                thread.spawn_scoped(scope, move || part.run(phase)).map_err(WorkerError::Thread)
            })
            .collect();
        let join = |part: ScopedJoinHandle<_>| part.join().expect("a thread panics never quietly");
        running.into_iter().map(|part| part.and_then(join)).sum()
    })
}

/// One thread's part of the memory.
struct Part<'a> {
    pages: &'a Pages,
    /// Number of the first page in it.
    first: u64,
    memory: &'a mut [Page],
    versions: &'a mut [u8],
}

impl Part<'_> {
    /// Does a phase and gives the pages touched.
    fn run(&mut self, phase: Phase) -> Result<u64, WorkerError> {
        let all = 0..self.memory.len();
        match phase {
            Phase::Fill => {
                self.pages.fill(self.first, self.memory, &mut Buffer::default())?;
                Ok(self.memory.len() as u64)
            }
            Phase::SeqRead => self.each(all, Self::check),
            Phase::RandRead => self.each(self.random(1), Self::check),
            Phase::RandWrite => self.each(self.random(2), Self::write),
            Phase::Verify => {
                let written: Vec<_> = all.filter(|i| self.versions[*i] != 0).collect();
                self.each(written.into_iter(), Self::check)
            }
        }
    }

    fn each(
        &mut self,
        pages: impl Iterator<Item = usize>,
        mut act: impl FnMut(&mut Self, usize) -> Result<(), WorkerError>,
    ) -> Result<u64, WorkerError> {
        let mut touched = 0;
        for page in pages {
            act(self, page)?;
            touched += 1;
        }
        Ok(touched)
    }

    fn check(&mut self, i: usize) -> Result<(), WorkerError> {
        let (number, version) = (self.first + i as u64, self.versions[i]);
        if pages::sum(&self.memory[i]) == self.pages.sum(number, version) {
            Ok(())
        } else {
            Err(WorkerError::Mismatch { number, version })
        }
    }

    /// Writes first and checks afterwards, so that it is the write that meets an absent page.
    fn write(&mut self, i: usize) -> Result<(), WorkerError> {
        let (old, new) = (self.versions[i], self.versions[i].wrapping_add(1));
        pages::rewrite(&mut self.memory[i], old, new);
        self.versions[i] = new;
        self.check(i)
    }

    /// Pages at random, as many as an eighth of the part, the same in every run.
    fn random(&self, phase: u64) -> impl Iterator<Item = usize> + use<> {
        let len = self.memory.len() as u64;
        let mut state = phase << 32 ^ self.first;
        (0..len.div_ceil(8)).map(move |_| (splitmix(&mut state) % len) as usize)
    }
}

/// Sebastiano Vigna's SplitMix64: every state gives another number.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_pages() -> Pages {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("pages");
        std::fs::write(&file, b"0123456789abcde\n".repeat(3 * PAGE_SIZE / 16)).expect("written");
        Pages::open(&[file]).expect("pages")
    }

    #[test]
    fn all_phases_pass_on_memory_that_keeps_what_it_is_given() {
        let pages = some_pages();
        for (threads, count) in [(1, 1), (1, 100), (2, 101), (3, 2)] {
            let mut memory = vec![[0; PAGE_SIZE]; count];
            let mut versions = vec![0; count];
            for phase in Phase::ALL {
                let touched = run_phase(phase, &pages, threads, &mut memory, &mut versions);
                let touched = touched.expect("every page as stored") as usize;
                match phase {
                    Phase::Fill | Phase::SeqRead => assert_eq!(touched, count),
                    _ => assert!(touched > 0 && touched <= count.div_ceil(8) + threads),
                }
            }
        }
    }

    #[test]
    fn a_page_that_was_lost_is_noticed() {
        let pages = some_pages();
        let mut memory = vec![[0; PAGE_SIZE]; 50];
        let mut versions = vec![0; 50];
        let mut run =
            |memory: &mut Vec<Page>, phase| run_phase(phase, &pages, 2, memory, &mut versions);
        run(&mut memory, Phase::Fill).expect("filled");
        run(&mut memory, Phase::RandWrite).expect("written");
        memory[17] = [0; PAGE_SIZE];
        let lost = run(&mut memory, Phase::SeqRead).expect_err("a page of zeros");
        assert!(matches!(lost, WorkerError::Mismatch { number: 17, .. }), "{lost}");
    }
}
