//! What goes to stdout: a result, for people or as JSON. A full disk there is an error as any other.

use crate::{REFUSED, refuse};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};

/// Prints what was found, as one JSON object or for people; gives the exit status.
pub fn print(found: &(impl Serialize + Display), json: bool) -> i32 {
    if json { text(serde_json::to_string_pretty(found).expect("plain data")) } else { text(found) }
}

/// Prints lines for people, and the end of the last; gives the exit status.
pub fn text(lines: impl Display) -> i32 {
    status(writeln!(io::stdout(), "{lines}"))
}

/// The exit status of a command that wrote to stdout.
pub fn status(written: io::Result<()>) -> i32 {
    match written.and_then(|()| io::stdout().flush()) {
        Ok(()) => 0,
        Err(why) => refuse(&format!("stdout: cannot be written: {why}"), REFUSED),
    }
}
