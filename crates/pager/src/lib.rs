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

pub mod arena;
mod backoff;
pub mod budget;
pub mod calm;
pub mod changes;
pub mod condense;
pub mod events;
pub mod evict;
pub mod excluded;
mod fork;
pub mod gate;
pub mod heap;
pub mod heir;
mod locality;
pub mod mapped;
mod outpost;
pub mod pager;
pub mod past;
pub mod placement;
pub mod populate;
pub mod presence;
pub mod program;
pub mod regions;
pub mod serve;
mod settle;
pub mod sharing;
mod shrink;
pub mod start;
pub mod stream;
pub mod table;
pub mod watch;
