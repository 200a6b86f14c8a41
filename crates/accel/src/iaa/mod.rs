//! Intel's In-Memory Analytics Accelerator, from user space.
//!
//! - `wire`: what a device reads and writes, byte by byte
//! - `aecs`: the codes of a block as a device wants them
//! - `discover`: devices, queues and processors, out of sysfs
//! - `fleet`: the queues of all devices, and which a processor uses
//! - `lanes`: memory that devices work in
//! - `tables`: the codes of fixed and canned blocks in such memory
//! - `driver`: the engine
//! - `portals`: real devices
//!
//! The same driver runs on real devices ([`portals::Portals`]) and on the model
//! ([`crate::model::Model`]): what it needs of either is a [`Machine`].

pub mod aecs;
pub mod discover;
mod driver;
pub mod fleet;
mod lanes;
#[cfg(all(test, loom))]
mod models;
pub mod portals;
mod tables;
pub mod wire;

pub use driver::{Config, Driver, MAX_UNITS, NewError, Stats};
pub use octavo_sys::device::{Refused, Region};

use alloc::sync::Arc;
use wire::Descriptor;

/// Devices, and the time.
pub trait Machine {
    /// Hands a descriptor to the queue in this place of the fleet's table.
    ///
    /// # Errors
    /// [`Refused`].
    fn submit(&self, queue: usize, descriptor: &Descriptor) -> Result<(), Refused>;

    /// Nanoseconds of a clock that never goes back.
    fn now(&self) -> u64;

    /// A moment's pause.
    fn pause(&self);
}

impl<M: Machine> Machine for Arc<M> {
    fn submit(&self, queue: usize, descriptor: &Descriptor) -> Result<(), Refused> {
        (**self).submit(queue, descriptor)
    }

    fn now(&self) -> u64 {
        (**self).now()
    }

    fn pause(&self) {
        (**self).pause();
    }
}
