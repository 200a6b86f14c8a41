//! The C entry point of the command.
//!
//! Rust's own would set SIGPIPE aside before `main`, and the program that `octavo run` becomes would
//! inherit that: `octavo run -- yes | head` would end otherwise than `yes | head`, and what the
//! signal was before cannot be known any more.
//!
//! `unsafe` is reopened because naming the entry point is an unsafe attribute; there is no block.
#![allow(unsafe_code)]

// SAFETY: the name is the C runtime's for the entry of a program, and a program has one.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    // Not by returning: this writes out what stdout still holds.
    std::process::exit(crate::command())
}
