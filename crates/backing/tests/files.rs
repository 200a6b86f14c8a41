//! Real files: what can be one and what is said of what cannot, rings and their plain twin, what is found
//! on the disk, files that others change.

mod rig;

use octavo_backing::file::{FileDevice, OpenError, Options};
use octavo_backing::{Backing, Device, Fault, Geometry, MAX_OBJECT, ReadError, Reader};
use octavo_sys::Errno;
use octavo_sys::file::Fd;
use rig::{Model, Random, config, member, small};
use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

const SIZE: u64 = 4 << 20;

fn options() -> Options {
    Options { size: Some(SIZE), ..Options::default() }
}

fn open(path: &Path, options: Options) -> Result<FileDevice, OpenError> {
    FileDevice::open(&CString::new(path.as_os_str().as_bytes()).expect("no zero byte"), options)
}

fn backing(device: FileDevice) -> Backing<FileDevice> {
    Backing::new(vec![member(device, 0)], config(small())).expect("a backing")
}

/// Where tests put files that are to lie on a disk, and on a file system in memory.
fn places() -> Vec<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let mut places = vec![tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")];
    places.extend(memory.is_dir().then(|| tempfile::tempdir_in(memory).expect("a directory")));
    places
}

/// Fills, reads, replaces, cleans.
fn work(backing: &Backing<FileDevice>) -> Model {
    let model = Model::default();
    let mut reader = Reader::default();
    let mut random = Random(5);
    for version in 0..60 {
        let batch: Vec<_> = (0..20)
            .map(|n| (n * 20 + random.below(20), version, 1 + random.below(5000) as usize))
            .collect();
        assert!(model.write(backing, &batch).iter().all(Result::is_ok));
        backing.clean(&mut reader, &model);
        let owner = batch[3].0;
        assert_eq!(model.read(backing, &mut reader, owner), Ok(()));
    }
    model
}

fn read_all(backing: &Backing<FileDevice>, model: &Model) {
    let mut reader = Reader::default();
    let owners: Vec<_> = model.known().keys().copied().collect();
    for owner in owners {
        assert_eq!(model.read(backing, &mut reader, owner), Ok(()));
    }
}

#[test]
fn a_ring_and_its_plain_twin_keep_what_was_written() {
    for place in places() {
        for (n, (ring, direct)) in
            [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate()
        {
            let path = place.path().join(n.to_string());
            let device = open(&path, Options { ring, direct, ..options() }).expect("a file");
            assert!(!path.exists(), "its name is taken away");
            let backing = backing(device);
            let model = work(&backing);
            backing.flush();
            read_all(&backing, &model);
            let stats = backing.stats();
            assert_eq!((stats.failed_writes, stats.lost_reads), (0, 0), "{stats:?}");
            let ways = backing.ways().next().expect("one device");
            assert!(ring || !ways.ring && !ways.registered);
            assert!(direct || !ways.direct);
        }
    }
}

#[test]
fn the_largest_objects_go_over_chunks_of_the_usual_size() {
    let place = &places()[0];
    let size = Some(16 << 20);
    let device = open(&place.path().join("file"), Options { size, ..options() }).expect("a file");
    let backing =
        Backing::new(vec![member(device, 0)], config(Geometry::USUAL)).expect("a backing");
    let model = Model::default();
    let batch: Vec<_> = (0..100).map(|owner| (owner, 0, MAX_OBJECT - owner as usize)).collect();
    assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
    read_all(&backing, &model);
    backing.flush();
    read_all(&backing, &model);
}

#[test]
fn a_file_that_is_kept_is_sparse_and_private() {
    let place = &places()[0];
    let path = place.path().join("kept");
    fs::write(&path, b"").expect("room");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("ours");
    let device = open(&path, Options { keep: true, ..options() }).expect("an empty file will do");
    let found = fs::metadata(&path).expect("it is kept");
    assert_eq!((found.mode() & 0o7777, found.len()), (0o600, SIZE));
    assert!(found.blocks() * 512 < 64 << 10 && device.allocated() == Ok(found.blocks() * 512));
    let again = open(&path, options()).err();
    assert_eq!(again, Some(OpenError::NotEmpty { bytes: SIZE }));
}

#[test]
fn room_that_is_free_is_a_hole() {
    let place = &places()[0];
    let path = place.path().join("file");
    let device = open(&path, Options { keep: true, ..options() }).expect("a file");
    let backing = backing(device);
    let model = Model::default();
    let batch: Vec<_> = (0..200).map(|owner| (owner, 0, 15_000)).collect();
    assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
    backing.flush();
    let full = fs::metadata(&path).expect("it is kept").blocks() * 512;
    assert!(full > 2 << 20);
    (0..200).for_each(|owner| model.free(&backing, owner));
    backing.clean(&mut Reader::default(), &model);
    let ways = backing.ways().next().expect("one device");
    let empty = fs::metadata(&path).expect("it is kept").blocks() * 512;
    assert!(!ways.holes || empty < 400 << 10, "{empty} of {full} bytes are left");
}

#[test]
fn what_cannot_be_a_file_is_said() {
    let place = tempfile::tempdir().expect("a directory");
    let at = |name: &str| place.path().join(name);
    let said =
        |path: &Path, options| open(path, options).map(drop).expect_err("no file").to_string();
    assert_eq!(said(place.path(), options()), "a directory; name a new file in it");
    let nothing = "neither a file nor a block device; name a new file on a disk";
    assert_eq!(said(Path::new("/dev/full"), options()), nothing);
    assert!(
        said(&at("no/such/file"), options()).starts_with("No such file or directory; it takes")
    );
    fs::write(at("full"), b"something").expect("room");
    let lost = "there is a file of 9 bytes, which would be lost; name a new one";
    assert_eq!(said(&at("full"), options()), lost);
    assert_eq!(fs::read(at("full")).expect("it is there"), b"something");
    let no_size = said(&at("new"), Options { size: None, ..options() });
    assert_eq!(no_size, "a file takes a size that it may get to, as in 8G");
    assert!(!at("new").exists(), "what is refused is not left behind");
    let large = said(&at("large"), Options { size: Some(1 << 62), ..options() });
    assert!(large.ends_with("a smaller size may do"), "{large}");
    let tiny = open(&at("tiny"), Options { size: Some(4096), ..options() }).expect("a file");
    let why = Backing::new(vec![member(tiny, 0)], config(small())).err().expect("too small");
    assert!(why.to_string().contains("it takes at least 512K"), "{why}");
}

#[test]
fn what_may_not_be_opened_is_said() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().join("device");
    fs::write(&path, b"").expect("room");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("ours");
    // Who may do everything sees no refusal.
    match open(&path, options()).map(drop) {
        Ok(()) => {}
        Err(why) => assert_eq!(why, OpenError::Refused(Errno::EACCES)),
    }
}

#[test]
fn a_file_that_was_cut_off_loses_what_was_behind() {
    for place in places() {
        let path = place.path().join("file");
        let device = open(&path, Options { keep: true, ..options() }).expect("a file");
        let backing = backing(device);
        let model = Model::default();
        let batch: Vec<_> = (0..100).map(|owner| (owner, 0, 10_000)).collect();
        assert!(model.write(&backing, &batch).iter().all(Result::is_ok));
        backing.flush();
        let file = fs::OpenOptions::new().write(true).open(&path).expect("it is kept");
        file.set_len(500_000).expect("a shorter file");
        let mut reader = Reader::default();
        let (mut kept, mut lost) = (0, 0);
        for owner in 0..100 {
            match model.read(&backing, &mut reader, owner) {
                Ok(()) => kept += 1,
                Err(ReadError::Lost(error)) => {
                    assert!(matches!(error.why, Fault::CutOff | Fault::Damaged), "{error}");
                    lost += 1;
                }
                Err(ReadError::Gone) => panic!("nobody freed it"),
            }
        }
        assert!(kept > 30 && lost > 40, "{kept} kept, {lost} lost");
        // It goes on with a file that is long again where it is written.
        assert!(model.write(&backing, &[(200, 0, 10_000)])[0].is_ok());
        assert_eq!(model.read(&backing, &mut reader, 200), Ok(()));
    }
}

#[test]
fn a_device_reads_and_writes_the_end_of_what_it_has() {
    let place = &places()[0];
    let device = open(&place.path().join("file"), options()).expect("a file");
    assert_eq!(device.bytes(), SIZE);
    assert_eq!(device.read(SIZE, &mut []), Ok(0));
}

/// What every object of the child has in it.
const SECRET: &[u8] = b"nobody but the owner of this object ever reads these words";

/// Not a test by itself: writes until it is killed. The parent test runs it.
#[test]
fn child_that_writes() {
    let Ok(path) = std::env::var("BACKING_TEST_FILE") else { return };
    let device = open(Path::new(&path), Options { keep: true, ..options() }).expect("a file");
    let backing = backing(device);
    let mut bytes = SECRET.repeat(60);
    println!("begun");
    std::io::stdout().flush().expect("a pipe");
    let mut places = vec![];
    for n in 0_u64.. {
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        let owner = octavo_backing::Owner::new(n).expect("small");
        let mut place = [Err(octavo_backing::WriteError::NoRoom)];
        backing.write(&[octavo_backing::Object { owner, bytes: &bytes }], &mut place);
        places.extend(place.into_iter().flatten());
        if places.len() > 300 {
            backing.free(&places.drain(..150).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_kill_at_any_moment_leaves_nothing_readable() {
    let place = &places()[0];
    let mut random = Random(std::process::id().into());
    for n in 0..8 {
        let path = place.path().join(n.to_string());
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["child_that_writes", "--exact", "--nocapture"])
            .env("BACKING_TEST_FILE", &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut said = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.ends_with("begun\n") {
            assert!(
                std::io::BufRead::read_line(&mut said, &mut line).expect("a pipe") > 0,
                "{line}"
            );
        }
        std::thread::sleep(std::time::Duration::from_micros(random.below(60_000)));
        child.kill().expect("a child of ours");
        child.wait().expect("its end");
        let found = fs::read(&path).expect("it is kept");
        let part = &SECRET[8..24];
        assert!(!found.windows(part.len()).any(|window| window == part), "plaintext on the disk");
        fs::remove_file(&path).expect("ours");
    }
}

#[test]
fn a_file_without_a_name_works_as_one_that_had_one() {
    for place in places() {
        let path = CString::new(place.path().as_os_str().as_bytes()).expect("no zero byte");
        let dir = Fd::open_directory(&path).expect("a directory");
        let file = FileDevice::nameless(&dir, SIZE).expect("a file");
        assert_eq!(file.bytes(), SIZE);
        assert_eq!(fs::read_dir(place.path()).expect("a directory").count(), 0);
        let backing = backing(file);
        let model = work(&backing);
        read_all(&backing, &model);
    }
}
