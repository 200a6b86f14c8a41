//! Discovery on trees that are made: whole ones of all shapes, and damaged ones.

use octavo_accel::iaa::discover::{Note, discover};
use octavo_accel::iaa::fleet::Fleet;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A machine to be: `nodes` NUMA nodes in each package, 4 processors in each node.
struct Shape {
    packages: u32,
    nodes: u32,
    devices: u16,
    queues: u8,
}

impl Shape {
    fn cpus(&self) -> u32 {
        self.packages * self.nodes * 4
    }

    /// Devices are dealt out to the first nodes of each package, as far as they go.
    fn node_of(&self, device: u16) -> u32 {
        let package = u32::from(device / self.devices);
        package * self.nodes + u32::from(device % self.devices) % self.nodes
    }
}

fn write(root: &Path, path: impl AsRef<Path>, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a directory")).expect("a new directory");
    fs::write(path, format!("{text}\n")).expect("a new file");
}

fn tree(shape: &Shape) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path();
    let cpus = shape.cpus();
    write(root, "devices/system/cpu/possible", &format!("0-{}", cpus - 1));
    for cpu in 0..cpus {
        let package = cpu / 4 / shape.nodes;
        let path = format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        write(root, path, &package.to_string());
    }
    for node in 0..shape.packages * shape.nodes {
        // Threads of the same cores come in a second half of numbers on real machines; here the
        // list is written in two pieces.
        let list = format!("{}-{},{}-{}", 4 * node, 4 * node + 1, 4 * node + 2, 4 * node + 3);
        write(root, format!("devices/system/node/node{node}/cpulist"), &list);
    }
    for n in 0..shape.devices * shape.packages as u16 {
        // Numbers are shared with the other kind of accelerator.
        let number = 2 * n + 1;
        let device = format!("bus/dsa/devices/iax{number}");
        write(root, format!("{device}/state"), "enabled");
        write(root, format!("{device}/numa_node"), &shape.node_of(n).to_string());
        for queue in 0..shape.queues {
            let queue = format!("bus/dsa/devices/wq{number}.{queue}");
            let size = (128 / u32::from(shape.queues)).to_string();
            for (name, text) in
                [("state", "enabled"), ("mode", "dedicated"), ("type", "user"), ("size", &size)]
            {
                write(root, format!("{queue}/{name}"), text);
            }
        }
    }
    dir
}

fn path(dir: &TempDir) -> &str {
    dir.path().to_str().expect("a path of letters")
}

#[test]
fn machines_of_all_shapes() {
    for packages in [1, 2, 4] {
        for nodes in [1, 3] {
            for devices in [1, 2, 3, 5, 8] {
                for queues in [1, 2] {
                    let shape = Shape { packages, nodes, devices, queues };
                    check(&shape);
                }
            }
        }
    }
}

fn check(shape: &Shape) {
    let dir = tree(shape);
    let found = discover(path(&dir));
    assert_eq!(found.notes, []);
    let fleet = Fleet::new(&found);
    let devices = usize::from(shape.devices);
    assert_eq!(fleet.queues().len(), devices * usize::from(shape.queues) * shape.packages as usize);
    let per_package = shape.nodes as usize * 4;
    let mut mapped = vec![0; fleet.queues().len()];
    for cpu in 0..shape.cpus() as usize {
        let package = cpu / per_package;
        let ours = |queue: u16| {
            let device = fleet.queues()[usize::from(queue)].device;
            usize::from((device - 1) / 2) / devices == package
        };
        // Compressions: one queue of every device of the package, the second if there are two.
        let compress = fleet.compress(cpu);
        assert_eq!(compress.len(), devices);
        for queue in compress {
            assert!(ours(*queue));
            assert_eq!(fleet.queues()[usize::from(*queue)].number, shape.queues - 1);
        }
        let (decompress, own) = fleet.decompress(cpu);
        assert_eq!(decompress.len(), devices);
        assert!(decompress.iter().all(|q| ours(*q)));
        assert_eq!(fleet.queues()[usize::from(decompress[own])].number, 0);
        mapped[usize::from(decompress[own])] += 1;
    }
    // Processors are spread evenly over the devices of their package.
    let used: Vec<usize> = mapped.into_iter().filter(|n| *n > 0).collect();
    assert_eq!(used.len(), devices.min(per_package) * shape.packages as usize);
    let (most, least) = (used.iter().max(), used.iter().min());
    assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{used:?}");
}

const SMALL: Shape = Shape { packages: 2, nodes: 1, devices: 1, queues: 2 };

#[test]
fn a_machine_without_devices() {
    let dir = tree(&Shape { devices: 0, ..SMALL });
    let found = discover(path(&dir));
    assert_eq!((found.notes, found.devices.len()), (vec![Note::NoDevices], 0));
    assert_eq!(discover("/nowhere/at/all").notes, [Note::NoDevices]);
    assert_eq!(discover(&"/long".repeat(200)).notes, [Note::NoDevices]);
}

/// What is said of a tree after something in it was changed, and how many queues are left.
fn damaged(changes: &[(&str, &str)]) -> (Vec<Note>, usize) {
    let dir = tree(&SMALL);
    for (path, text) in changes {
        write(dir.path(), path, text);
    }
    looked_at(&dir)
}

/// What is said of a tree, and how many queues it has. Whatever it is: each processor has queues, or there
/// are none.
fn looked_at(dir: &TempDir) -> (Vec<Note>, usize) {
    let found = discover(path(dir));
    let fleet = Fleet::new(&found);
    for cpu in [0, 7, 8, 9999] {
        let has = !fleet.queues().is_empty();
        assert_eq!(
            (!fleet.compress(cpu).is_empty(), !fleet.decompress(cpu).0.is_empty()),
            (has, has)
        );
    }
    (found.notes, fleet.queues().len())
}

/// What stands in the place of a file.
#[derive(Clone, Debug)]
enum Odd {
    Nothing,
    Directory,
    /// A link to itself.
    Loop,
    Bytes(Vec<u8>),
}

fn odd() -> impl Strategy<Value = Odd> {
    const TEXTS: [&str; 10] = [
        "",
        "0",
        "-1",
        "2-0",
        "0-",
        "0-4294967296",
        "99999999999999999999",
        "enabled",
        "shared",
        "user",
    ];
    prop_oneof![
        Just(Odd::Nothing),
        Just(Odd::Directory),
        Just(Odd::Loop),
        prop::sample::select(&TEXTS[..]).prop_map(|text| Odd::Bytes(text.into())),
        prop::collection::vec(any::<u8>(), 0..3000).prop_map(Odd::Bytes),
    ]
}

/// The files of a tree, in order.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path) }
    }
    all.sort();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_stands_in_a_tree_is_used_as_far_as_it_goes(
        changes in prop::collection::vec((any::<prop::sample::Index>(), odd()), 1..12),
    ) {
        let dir = tree(&SMALL);
        let files = files(dir.path());
        let mut changed = BTreeSet::new();
        for (which, odd) in changes {
            let path = which.get(&files);
            if !changed.insert(path) {
                continue;
            }
            fs::remove_file(path).expect("it was there");
            match odd {
                Odd::Nothing => {}
                Odd::Directory => fs::create_dir(path).expect("a new directory"),
                Odd::Loop => symlink(path, path).expect("a new link"),
                Odd::Bytes(bytes) => fs::write(path, bytes).expect("a new file"),
            }
        }
        let (notes, queues) = looked_at(&dir);
        prop_assert!(queues <= 4);
        let is_of_a_queue = |note: &Note| {
            matches!(note, Note::QueueDisabled(..) | Note::QueueOfKernel(..) | Note::QueueUnreadable(..))
        };
        let left_out = notes.iter().filter(|note| is_of_a_queue(note)).count();
        prop_assert!(queues + left_out <= 4, "{notes:?}, {queues} queues");
        notes.iter().for_each(|note| assert!(!note.to_string().is_empty()));
    }
}

#[test]
fn damaged_trees_are_used_as_far_as_they_go() {
    const BUS: &str = "bus/dsa/devices";
    let at = |path: &str| format!("{BUS}/{path}");
    let one = |path: &str, text: &str| damaged(&[(&at(path), text)]);
    assert_eq!(one("iax1/numa_node", "-1"), (vec![Note::NoPackage(1)], 4));
    assert_eq!(one("iax1/numa_node", "77"), (vec![Note::NoPackage(1)], 4));
    assert_eq!(one("iax1/numa_node", "?"), (vec![Note::NoPackage(1)], 4));
    let without = Note::PackageWithoutDevice(0);
    assert_eq!(one("iax1/state", "disabled"), (vec![Note::DeviceDisabled(1), without], 2));
    assert_eq!(one("wq1.0/state", "disabled"), (vec![Note::QueueDisabled(1, 0)], 3));
    assert_eq!(one("wq1.1/type", "kernel"), (vec![Note::QueueOfKernel(1, 1)], 3));
    for (name, text) in
        [("size", "0"), ("size", "many"), ("size", "-1"), ("size", "99999"), ("mode", "odd")]
    {
        let odd = one(&format!("wq3.1/{name}"), text);
        assert_eq!(odd, (vec![Note::QueueUnreadable(3, 1)], 3), "{name} {text}");
    }
    let both = [(at("wq1.0/state"), "disabled"), (at("wq1.1/size"), "\u{1}")];
    let both = both.each_ref().map(|(path, text)| (path.as_str(), *text));
    let notes = vec![
        Note::QueueDisabled(1, 0),
        Note::QueueUnreadable(1, 1),
        Note::NoQueues(1),
        Note::PackageWithoutDevice(0),
    ];
    assert_eq!(damaged(&both), (notes, 2));
    // Only the first processor is known then, and it is in package 0.
    let nothing = [("devices/system/cpu/possible", "")];
    assert_eq!(damaged(&nothing), (vec![Note::NoPackage(3)], 4));
}

#[test]
fn packages_that_cannot_be_read_are_one() {
    let dir = tree(&SMALL);
    fs::remove_dir_all(dir.path().join("devices")).expect("it was there");
    let found = discover(path(&dir));
    assert_eq!(found.notes, [Note::NoPackage(1), Note::NoPackage(3), Note::NoPackages]);
    let fleet = Fleet::new(&found);
    assert_eq!(fleet.compress(5).len(), 2);
}

#[test]
fn a_package_without_a_device_uses_those_of_the_others() {
    let dir = tree(&SMALL);
    write(dir.path(), "bus/dsa/devices/iax1/numa_node", "1");
    let found = discover(path(&dir));
    assert_eq!(found.notes, [Note::PackageWithoutDevice(0)]);
    let fleet = Fleet::new(&found);
    assert_eq!((fleet.compress(0), fleet.compress(5)), (&[1, 3][..], &[1, 3][..]));
}

#[test]
fn notes_say_what_would_do() {
    for (note, word) in [
        (Note::NoDevices, "the CPU does the work"),
        (Note::DeviceDisabled(1), "enable-device iax1"),
        (Note::NoQueues(3), "enable-wq"),
        (Note::QueueDisabled(1, 2), "enable-wq iax1/wq1.2"),
        (Note::QueueOfKernel(1, 0), "'user'"),
        (Note::QueueUnreadable(1, 0), "left out"),
        (Note::NoPackage(1), "all packages"),
        (Note::NoPackages, "count as one"),
        (Note::PackageWithoutDevice(1), "other packages"),
    ] {
        assert!(note.to_string().contains(word), "{note}");
    }
}
