//! What goes to stdout: a result, for people or as JSON. A full disk there is an error as any other, and
//! so is a descriptor that is closed: `std` takes what is written to one for written, and a file that is
//! opened may get its number. So it is looked at before anything is opened.

use crate::{REFUSED, refuse};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
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

/// Whether stdout is open for writing.
///
/// # Errors
/// What writing there would say.
pub fn ready() -> io::Result<()> {
    let flags = fcntl_getfl(io::stdout())?;
    let is_for_reading = flags & OFlags::RWMODE == OFlags::RDONLY;
    if is_for_reading { Err(Errno::BADF.into()) } else { Ok(()) }
}

/// The exit status of a command that wrote to stdout.
pub fn status(written: io::Result<()>) -> i32 {
    match written.and_then(|()| io::stdout().flush()) {
        Ok(()) => 0,
        Err(why) => refuse(&format!("stdout: cannot be written: {why}"), REFUSED),
    }
}
