//! Real devices: a portal for each queue of a fleet.
//!
//! None has been at hand so far: this file is checked by reading alone. All above it runs on the
//! model, unchanged.

use super::fleet::Fleet;
use super::wire::Descriptor;
use super::{Machine, Refused};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::Write as _;
use octavo_sys::Errno;
use octavo_sys::device::{Command, Portal};
use octavo_sys::file::Text;
use octavo_sys::task;

/// The portals of a fleet's queues, in its order.
#[derive(Debug)]
pub struct Portals(Box<[Option<Portal>]>);

impl Portals {
    /// Opens `DIRECTORY/wqN.M` for each queue; the directory is `/dev/iax` but for tests. Gives the
    /// queues that cannot be opened, by their places, and why. Allocates.
    #[must_use]
    pub fn open(directory: &str, fleet: &Fleet) -> (Self, Vec<(usize, Errno)>) {
        let mut failed = Vec::new();
        let portals = fleet.queues().iter().enumerate().map(|(place, queue)| {
            let mut path = Text::<256>::new();
            let _ = write!(path, "{directory}/wq{}.{}", queue.device, queue.number);
            let path = path.as_c_str().ok_or(Errno::ENAMETOOLONG);
            path.and_then(|path| Portal::open(path, queue.is_dedicated))
                .map_err(|error| failed.push((place, error)))
                .ok()
        });
        (Self(portals.collect()), failed)
    }
}

impl Machine for Portals {
    fn submit(&self, queue: usize, descriptor: &Descriptor) -> Result<(), Refused> {
        let portal = self.0.get(queue).and_then(Option::as_ref).ok_or(Refused::Gone)?;
        portal.submit(&Command(zerocopy::transmute!(*descriptor)))
    }

    fn now(&self) -> u64 {
        task::now().as_nanos() as u64
    }

    fn pause(&self) {
        core::hint::spin_loop();
    }
}
