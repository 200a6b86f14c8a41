//! Engines that compress and decompress units in batches.
//!
//! ```text
//!   requests ── submit ──► engine ── poll, wait ──► each request: its own result, and who did it
//!                            │
//!                            ├─ cpu     the codecs of `codec`, in the caller
//!                            └─ iaa     lanes ── queues ── portals ── devices
//!                                                             └────── or the model of one
//! ```
//!
//! A [`Batch`] lends an [`Engine`] a row of [`Request`]s for as long as it lives. The engine takes
//! as many as it has room for, and finishes them in any order; the others wait for the next
//! [`Batch::submit`]. A request has a result of its own ([`Outcome`]): that one of eight fails
//! changes nothing for the other seven. No call waits longer than an engine's time-out, and what a
//! device did not do, or did wrong, software does: an engine that exists serves.
//!
//! A unit compressed by one engine is decompressed by any: the bytes are those that the codec's
//! name promises, whoever made them.
//!
//! # Invariants
//!
//! - A device never gets an address of the caller's memory. It works in *lanes*, memory of the
//!   engine's own that stays mapped, so a device that is late, or that goes on after its time was
//!   over, writes where nobody looks.
//! - Every started request ends in an outcome, at the latest when its time is over.
//! - The parts of a unit (`:by_N`) are requests to devices each, and one request to the caller.
//! - Nothing is allocated after an engine was made, and no lock is taken between two of them.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod batch;
mod cpu;
mod engines;
pub mod iaa;
pub mod model;
mod request;

pub use batch::Batch;
pub use cpu::Cpu;
pub use engines::{AnyEngine, Engines, Unusable};
pub use request::{
    By, Capabilities, Engine, Failure, Full, Io, Operation, Outcome, Request, Ticket, Why, Work,
};
