//! The shared object that `octavo run` loads into a program.
//!
//! Its constructor takes `OCTAVO_RUN` out of the environment and starts the pager before the program's
//! own code runs. Of libc's functions it stands in for the few whose effect on memory must not bypass
//! the limit, and for those that start programs:
//!
//! | function | why |
//! |---|---|
//! | `madvise` | `MADV_FREE` leaves pages of which nobody can tell whether they were freed; with `MADV_DONTNEED` instead they are, at once, as the manual allows |
//! | `madvise` | `MADV_POPULATE_READ` and `_WRITE` are only `MADV_WILLNEED` when memory is tight, for the same reason as `MAP_POPULATE` |
//! | `mmap` | `MAP_POPULATE` would bring in everything in one go, past any limit; it is a hint |
//! | `mlockall` | would lock and populate our own reserves; nothing managed leaves RAM anyway |
//! | `setrlimit`, `getrlimit`, `prlimit` | a program that limits its own address space or data means what it uses itself, not what we reserve |
//! | `pthread_create` | a new thread first pins the page in which the kernel notes its end |
//! | `_exit`, `_Exit` | statistics are written before the process is gone |
//! | `execve` and its kin, `posix_spawn`, `system`, `popen` | what is started gets this object too, where it takes it |
//!
//! The pager's own tasks never run this code, nor any of libc's.

mod allocator;
mod environ;
mod exec;
mod fork;
mod image;
mod interpose;
mod limits;
mod start;
mod target;
