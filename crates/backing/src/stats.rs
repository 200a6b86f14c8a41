//! What has happened so far, and what there is.

// Figures order nothing, so a model need not explore them.
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a backing has done and has. Bytes of objects are without their headers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Objects that were taken.
    pub objects: u64,
    /// Their bytes.
    pub stored_bytes: u64,
    /// Objects that the cleaner moved.
    pub moved_objects: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Bytes that devices have written.
    pub written_bytes: u64,
    /// Segments that were cleaned.
    pub cleaned_segments: u64,
    /// Segments whose room was given back to the file system.
    pub punched_segments: u64,
    /// Segments that are not used any more, since they could not be written.
    pub retired_segments: u64,
    /// Writes that failed, those that succeeded later included.
    pub failed_writes: u64,
    /// How often somebody who writes waited for a device.
    pub waits: u64,
    /// Reads that took a device.
    pub device_reads: u64,
    /// Bytes they read.
    pub read_bytes: u64,
    /// Reads of what was read before with something else.
    pub window_reads: u64,
    /// Reads of objects that are lost.
    pub lost_reads: u64,
    /// Bytes that live now.
    pub live_bytes: u64,
    /// Bytes that the files take now, sealed or not: segments in use, and those that are free and not
    /// given back.
    pub file_bytes: u64,
    /// Bytes of segments that can be used for something new now.
    pub free_bytes: u64,
    /// Bytes of memory, reserves and tables together.
    pub memory_bytes: u64,
    /// Whether the memory for what is written stays in memory, whatever the system needs.
    pub is_locked: bool,
}

/// What is counted outside of the log's lock.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) device_reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) window_reads: AtomicU64,
    pub(crate) lost_reads: AtomicU64,
}

impl Counters {
    /// All that is counted here.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            device_reads: self.device_reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            window_reads: self.window_reads.load(Relaxed),
            lost_reads: self.lost_reads.load(Relaxed),
            ..Stats::default()
        }
    }

    pub(crate) fn device_read(&self, bytes: usize) {
        self.device_reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Relaxed);
    }
}
