//! What others wrote, we read, and what we write, they read: the published vectors, OpenSSL, and
//! LUKS1 images of `qemu-img`. A program that is missing fails the test; `ci/install` has them.

use octavo_crypt::{Crypt, Format, Key, Piece, Sector, SectorSize};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a command that has to succeed, and gives what it printed.
fn run(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = piped.spawn().unwrap_or_else(|why| {
        panic!("{command:?}: {why}; ci/install installs what the tests need")
    });
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("an end");
    writer.join().expect("no panic").expect("all of it is read");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    output.stdout
}

fn oracle(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle").join(script));
    command
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> [u8; N] {
    assert_eq!(text.len(), 2 * N, "hexadecimal digits");
    std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("digits"))
}

/// Bytes that no two sectors have in common.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

const KEY: [u8; 64] = *b"first the key of the data 01234 then the key of the tweaks 56789";

fn crypt(key: &[u8; 64], format: Format) -> Crypt {
    Crypt::new(Key::new(key).expect("a key"), format).expect("locked memory")
}

fn encrypted(crypt: &Crypt, first: Sector, plain: &[u8]) -> Vec<u8> {
    let mut out = vec![0; plain.len()];
    crypt.encrypt(&mut [Piece::between(first, plain, &mut out)]);
    out
}

fn decrypted(crypt: &Crypt, first: Sector, bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    crypt.decrypt(&mut [Piece::in_place(first, &mut out)]);
    out
}

/// IEEE 1619-2007, annex B: the vectors 10 and 14 of XTS-AES-256. Both encrypt the bytes 0 to 255,
/// twice, with the same key; the data unit is the sector number.
const VECTORS: [(u64, &str); 2] = [
    (
        0xff,
        "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b\
         5d31e276f8fe4a8d66b317f9ac683f44680a86ac35adfc3345befecb4bb188fd\
         5776926c49a3095eb108fd1098baec70aaa66999a72a82f27d848b21d4a741b0\
         c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf1000020887891429ca\
         2a3e7a7d7df7b10355165c8b9a6d0a7de8b062c4500dc4cd120c0f7418dae3d0\
         b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f\
         93ec05c52e0493ef31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec\
         583e9645e07b8d9670655ba5bbcfecc6dc3966380ad8fecb17b6ba02469a020a\
         84e18e8f84252070c13e9f1f289be54fbc481457778f616015e1327a02b140f1\
         505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae\
         9be69a2ffeceb1bec9de244fbe15992b11b77c040f12bd8f6a975a44a0f90c29\
         a9abc3d4d893927284c58754cce294529f8614dcd2aba991925fedc4ae74ffac\
         6e333b93eb4aff0479da9a410e4450e0dd7ae4c6e2910900575da401fc07059f\
         645e8b7e9bfdef33943054ff84011493c27b3429eaedb4ed5376441a77ed4385\
         1ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa\
         773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151",
    ),
    (
        0xff_ffff_ffff,
        "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed23\
         50eae7e96087c8a0db51ad290bd00c1ac1620857635bf246c176ab463be30b80\
         8da548081ac847b158e1264be25bb0910bbc92647108089415d45fab1b3d2604\
         e8a8eff1ae4020cfa39936b66827b23f371b92200be90251e6d73c5f86de5fd4\
         a950781933d79a28272b782a2ec313efdfcc0628f43d744c2dc2ff3dcb66999b\
         50c7ca895b0c64791eeaa5f29499fb1c026f84ce5b5c72ba1083cddb5ce45434\
         631665c333b60b11593fb253c5179a2c8db813782a004856a1653011e93fb6d8\
         76c18366dd8683f53412c0c180f9c848592d593f8609ca736317d356e13e2bff\
         3a9f59cd9aeb19cd482593d8c46128bb32423b37a9adfb482b99453fbe25a41b\
         f6feb4aa0bef5ed24bf73c762978025482c13115e4015aac992e5613a3b5c2f6\
         85b84795cb6e9b2656d8c88157e52c42f978d8634c43d06fea928f2822e465aa\
         6576e9bf419384506cc3ce3c54ac1a6f67dc66f3b30191e698380bc999b05abc\
         e19dc0c6dcc2dd001ec535ba18deb2df1a101023108318c75dc98611a09dc48a\
         0acdec676fabdf222f07e026f059b672b56e5cbc8e1d21bbd867dd9272120546\
         81d70ea737134cdfce93b6f82ae22423274e58a0821cc5502e2d0ab4585e94de\
         6975be5e0b4efce51cd3e70c25a1fbbbd609d273ad5b0d59631c531f6a0a57b9",
    ),
];

#[test]
fn the_vectors_of_ieee_1619() {
    let key = unhex(
        "2718281828459045235360287471352662497757247093699959574966967627\
         3141592653589793238462643383279502884197169399375105820974944592",
    );
    let format = Format::new(SectorSize::B512, false, 0).expect("no offset");
    let crypt = crypt(&key, format);
    let plain: Vec<u8> = (0..512).map(|i| i as u8).collect();
    for (number, expected) in VECTORS {
        let first = Sector::new(number);
        let expected = unhex::<512>(expected);
        assert_eq!(hex(&encrypted(&crypt, first, &plain)), hex(&expected), "sector {number:#x}");
        assert_eq!(hex(&decrypted(&crypt, first, &expected)), hex(&plain), "sector {number:#x}");
    }
}

#[test]
fn openssl_reads_what_we_write_and_writes_what_we_read() {
    let numberings = [
        (SectorSize::B512, false, 0, 1),
        (SectorSize::B512, false, 5, 1),
        (SectorSize::B4096, false, 0, 8),
        (SectorSize::B4096, false, 3, 8),
        (SectorSize::B4096, true, 0, 1),
        (SectorSize::B4096, true, 16, 1),
    ];
    let plain = noise(20 * 4096);
    for (size, large, offset, step) in numberings {
        let format = Format::new(size, large, offset).expect("whole sectors");
        let crypt = crypt(&KEY, format);
        for first in [8, 1 << 40] {
            let counts = if large { (first + offset) / 8 } else { first + offset };
            let theirs = |way: &str, input: &[u8]| {
                let sector = format.sector_bytes().to_string();
                let numbers = [counts.to_string(), step.to_string()];
                run(oracle("xts.py").arg(way).args([hex(&KEY), sector]).args(numbers), input)
            };
            let ours = encrypted(&crypt, Sector::new(first), &plain);
            assert!(ours == theirs("encrypt", &plain), "{format:?} from {first}: our writing");
            assert!(plain == theirs("decrypt", &ours), "{format:?} from {first}: their reading");
            let back = decrypted(&crypt, Sector::new(first), &ours);
            assert!(plain == back, "{format:?} from {first}: our reading");
        }
    }
}

/// Has `qemu-img` convert. It times how long a key takes it, and gives up where the kernel's account of CPU
/// time is too coarse, as it is now and then on a virtual machine.
fn make_luks(dir: &Path, arguments: &[&str]) {
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        let mut command = Command::new("qemu-img");
        let done = command.arg("convert").args(arguments).current_dir(dir).output();
        let done = done.expect("ci/install installs what the tests need");
        let said = String::from_utf8_lossy(&done.stderr);
        if !said.contains("Unable to get accurate CPU usage") {
            assert!(done.status.success(), "{command:?}: {said}");
            return;
        }
    }
    panic!("qemu-img could not time itself in {TRIES} tries");
}

#[test]
fn a_luks1_image_of_qemu_both_ways() {
    const PASSPHRASE: &str = "folded";
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let (raw, image) = (path("raw"), path("image"));
    let plain = noise(1 << 20);
    fs::write(&raw, &plain).expect("room");
    let secret = format!("secret,id=s,data={PASSPHRASE}");
    let qemu = |arguments: &[&str]| {
        run(Command::new("qemu-img").args(arguments).current_dir(dir.path()), &[])
    };

    let options = "key-secret=s,cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain64,\
                   hash-alg=sha256,iter-time=10";
    make_luks(dir.path(), &["--object", &secret, "-O", "luks", "-o", options, "raw", "image"]);
    let found = run(oracle("luks1.py").arg(&image).arg(PASSPHRASE), &[]);
    let found = String::from_utf8(found).expect("text");
    let (key, payload) = found.trim().split_once(' ').expect("a key and a number");
    let payload: usize = payload.parse().expect("a number");

    let format = Format::new(SectorSize::B512, false, 0).expect("no offset");
    let crypt = crypt(&unhex(key), format);
    let mut bytes = fs::read(&image).expect("the image");
    let sectors = &mut bytes[payload..payload + plain.len()];
    assert!(decrypted(&crypt, Sector::new(0), sectors) == plain, "our reading");

    // The reverse, with pieces that do not follow each other.
    let other: Vec<u8> = plain.iter().rev().copied().collect();
    let pieces = other.chunks(4096).zip(sectors.chunks_mut(4096)).enumerate();
    let mut pieces: Vec<_> = pieces
        .map(|(n, (from, to))| Piece::between(Sector::at(n as u64 * 4096), from, to))
        .collect();
    pieces.reverse();
    crypt.encrypt(&mut pieces);
    fs::write(&image, &bytes).expect("room");
    let options = "driver=luks,key-secret=s,file.filename=image";
    qemu(&["convert", "--object", &secret, "--image-opts", options, "-O", "raw", "back"]);
    assert!(fs::read(path("back")).expect("what it read") == other, "their reading");
}
