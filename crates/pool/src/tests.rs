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
