//! The pager: keeps a program's cold memory compressed, from inside its address space.
//!
//! ```text
//!                    the program's threads
//!                      │ fault         │ mmap, munmap, madvise, mremap, fork
//!   ┌──────────────────▼───────────────▼─────────────────────── helper process ──┐
//!   │  serve     reads userfaultfd, answers faults                               │
//!   │  events    what happens to ranges                                          │
//!   │  evict     takes cold pages, stores them              table: a word a page │
//!   │  watch     measures, registers new memory             regions: what is ours│
//!   └───────────────────────────────────┬────────────────────────────────────────┘
//!                                       ▼
//!                                     store
//! ```
//! All of it runs in a process of its own that shares the program's address space ([`start`]), so
//! that the program finds no thread and no descriptor more than it had.
//!
//! | rule | why |
//! |---|---|
//! | what is not in [`regions`] is never taken | only there a fault reaches us |
//! | events are applied with the gate shut | a discarded page must not be stored, nor an old one served |
//! | a page's word leaves `Parked` once | whoever changes it owns the outcome |
//! | nothing of ours is managed | a server that faults waits for itself |
#![cfg_attr(not(test), no_std)]

extern crate alloc;

// Built for the model checker, the crate is `pins` alone: the rest makes system calls.
#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod budget;
#[cfg(not(loom))]
pub mod condense;
#[cfg(not(loom))]
pub mod events;
#[cfg(not(loom))]
pub mod evict;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
pub mod gate;
#[cfg(not(loom))]
pub mod pager;
pub mod pins;
#[cfg(not(loom))]
pub mod placement;
#[cfg(not(loom))]
pub mod program;
#[cfg(not(loom))]
pub mod regions;
#[cfg(not(loom))]
pub mod serve;
#[cfg(not(loom))]
mod settle;
#[cfg(not(loom))]
pub mod start;
#[cfg(not(loom))]
pub mod stats;
#[cfg(not(loom))]
pub mod table;
#[cfg(not(loom))]
pub mod watch;
