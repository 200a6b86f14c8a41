//! The gate: shut while pages are taken and events applied, open while faults are answered.
//!
//! It is shut for tens of microseconds and opened within a few, while to sleep and be woken from
//! another CPU costs more than either on many machines, most of it on the fault path. So whoever
//! waits looks again for a while before it sleeps.

use octavo_page::sync::RwLock;
use octavo_page::sync::lock_api::{RwLockReadGuard, RwLockWriteGuard};

/// Looks before sleeping: some 50 us.
const LOOKS: u32 = 2000;

type Raw = octavo_page::sync::RawRwLock;

/// See the module.
#[derive(Debug)]
pub struct Gate(RwLock<()>);

impl Gate {
    /// An open gate.
    #[must_use]
    pub fn new() -> Self {
        Self(RwLock::new(()))
    }

    /// Keeps the gate open.
    pub fn read(&self) -> RwLockReadGuard<'_, Raw, ()> {
        look(|| self.0.try_read()).unwrap_or_else(|| self.0.read())
    }

    /// Shuts the gate, if it is to be had within the looks of one wait.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, Raw, ()>> {
        look(|| self.0.try_write())
    }

    /// Shuts the gate.
    pub fn write(&self) -> RwLockWriteGuard<'_, Raw, ()> {
        self.try_write().unwrap_or_else(|| self.0.write())
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

fn look<T>(try_now: impl Fn() -> Option<T>) -> Option<T> {
    (0..LOOKS).find_map(|_| {
        let got = try_now();
        if got.is_none() {
            core::hint::spin_loop();
        }
        got
    })
}
