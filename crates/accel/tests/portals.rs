//! Portals without devices: a file stands for the page of a dedicated queue, a pipe for a queue that
//! cannot be mapped.

mod rig;

use octavo_accel::iaa::fleet::Fleet;
use octavo_accel::iaa::portals::Portals;
use octavo_accel::iaa::wire::{Descriptor, Places};
use octavo_accel::iaa::{Machine, Refused};
use octavo_sys::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use zerocopy::IntoBytes;

fn descriptor() -> Descriptor {
    let places = Places {
        completion: 0x1000,
        source: 0x2000,
        source_size: 4096,
        destination: 0x3000,
        destination_size: 4000,
    };
    Descriptor::compress(places, 0x4000)
}

#[test]
fn commands_reach_what_stands_for_queues() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name| directory.path().join(name);
    fs::write(at("wq1.0"), [0; 4096]).expect("a page");
    let made = std::process::Command::new("mkfifo").arg(at("wq1.1")).status();
    assert!(made.is_ok_and(|status| status.success()), "a pipe");
    let flags = 0o4000; // O_NONBLOCK: nobody writes yet
    let mut pipe =
        File::options().read(true).write(true).custom_flags(flags).open(at("wq1.1")).expect("it");

    let fleet = Fleet::new(&rig::found(1, 2, 2, 16, true));
    let path = directory.path().to_str().expect("a path of letters");
    let (portals, failed) = Portals::open(path, &fleet);
    assert_eq!(failed, [(2, Errno::ENOENT), (3, Errno::ENOENT)]);

    let descriptor = descriptor();
    assert_eq!(portals.submit(0, &descriptor), Ok(()));
    let page = fs::read(at("wq1.0")).expect("the page");
    assert_eq!(&page[..64], descriptor.as_bytes());
    assert_eq!(portals.submit(1, &descriptor), Ok(()));
    let mut command = [0; 64];
    pipe.read_exact(&mut command).expect("a command");
    assert_eq!(command, descriptor.as_bytes());

    // What is not there is gone.
    assert_eq!(portals.submit(2, &descriptor), Err(Refused::Gone));
    assert_eq!(portals.submit(99, &descriptor), Err(Refused::Gone));
    let begin = portals.now();
    portals.pause();
    assert!(portals.now() >= begin);
}
