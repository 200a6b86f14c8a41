//! The pool against a map from handle to bytes.
#![allow(unsafe_code)] // The arena of the tests is raw memory too.

mod arena;
#[cfg(not(loom))]
mod cases;
#[cfg(not(loom))]
mod model;
#[cfg(not(loom))]
mod stress;
#[cfg(not(loom))]
mod trials;

pub(crate) use arena::TestArena;

use crate::lane::Reach;
use crate::{AllocError, Handle, Pool};

/// Stores a copy of `bytes` in this lane, as a thread would whose home it is.
pub(crate) fn store_in(
    pool: &Pool<TestArena>,
    lane: usize,
    bytes: &[u8],
) -> Result<Handle, AllocError> {
    let placed = pool.locked(lane, |mut held| held.place(bytes.len(), Reach::Grow))?;
    // SAFETY: a reserved object stays where it is, and its handle names nothing yet.
    unsafe { pool.ground.bytes_mut(placed.object) }.copy_from_slice(bytes);
    pool.handles.publish(placed.index);
    Ok(placed.handle)
}
