//! What goes to stdout: a result, for people or as JSON. A full disk there is an error as any other.

use crate::{REFUSED, refuse};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};

/// Prints what was found, as one JSON object or for people; gives the exit status.
pub fn print(found: &(impl Serialize + Display), json: bool) -> i32 {
    status(if json {
        let object = serde_json::to_string_pretty(found).expect("plain data");
        writeln!(io::stdout(), "{object}")
    } else {
        writeln!(io::stdout(), "{found}")
    })
}

/// Prints what was found, or says why nothing was; gives the exit status.
pub fn print_or_refuse(found: Result<impl Serialize + Display, impl Display>, json: bool) -> i32 {
    match found {
        Ok(found) => print(&found, json),
        Err(why) => refuse(&why, REFUSED),
    }
}

/// The exit status of a command that wrote to stdout.
pub fn status(written: io::Result<()>) -> i32 {
    match written.and_then(|()| io::stdout().flush()) {
        Ok(()) => 0,
        Err(why) => refuse(&format!("stdout: cannot be written: {why}"), REFUSED),
    }
}
