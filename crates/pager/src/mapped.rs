//! Memory that the program maps: registered before the program has it.
//!
//! The kernel joins a mapping with neighbours of the same kind only as long as nothing in it was touched,
//! or touched since they are of one kind. What is registered is another kind than what is not. So memory that
//! is mapped over a part of what is managed, or into a hole of it, would be a mapping of its own for ever, if the
//! watch found it after the program has used it: a collector that gives memory back page by page comes to
//! 65,530 mappings, which are as many as a process may have, and `mremap` refuses to move what is several.
//!
//! ```text
//!   program's thread     mmap ─► ask ─► waits ······► goes on, touches
//!   watch                          looks ─► registers ─┘   (one mapping again)
//! ```
//! Only the `mmap` of our object asks, and only once everything is registered. It waits half a second at
//! most, where others keep the CPUs from the watch, and less while others of its threads change the address space
//! all the time, or a fork has the watch rest: then the memory is registered later.

use crate::pager::Pager;
use crate::start;
use core::time::Duration;
use octavo_page::asks::Asks;
use octavo_sys::task;

/// What the watch is to register at once, by its first address.
pub(crate) static ASKS: Asks = Asks::new();

/// A thread looks so many times for its answer.
const LOOKS: u32 = 250;

/// And waits that long each time, before it has the watch look again.
const LOOK: Duration = Duration::from_millis(2);

/// Waits until memory that the calling thread has just mapped at `address`, of the kind that can be managed,
/// is registered.
pub fn wait_until_registered(address: usize) {
    if !start::is_managed() || !start::pager().is_some_and(Pager::is_armed) {
        return;
    }
    let Some(ask) = ASKS.ask(address) else { return };
    let (word, asked) = ask.word();
    for _ in 0..LOOKS {
        // A fork has the watch rest, and may be what this thread is in the middle of.
        if start::REST.is_wanted() {
            return;
        }
        start::look_again();
        task::futex_wait(word, asked, LOOK);
        if ask.is_answered() {
            return;
        }
    }
}
