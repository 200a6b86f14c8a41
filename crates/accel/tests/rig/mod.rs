//! Machines with devices for tests: made of numbers, on the model, in virtual time.
#![allow(dead_code)] // Each test uses some of it.

use octavo_accel::iaa::discover::{Device, Found, Queue};
use octavo_accel::iaa::fleet::Fleet;
use octavo_accel::iaa::wire::status;
use octavo_accel::iaa::{Config, Driver, Region};
use octavo_accel::model::{Clock, Latency, Mishap, Model};
use octavo_accel::{Batch, By, Engine, Outcome, Request, Why};
use octavo_codec::{Codec, DeflateMode, Parts, deflate::Level};
use octavo_page::Unit;
use std::sync::{Arc, Mutex};

/// Lanes of the engines of tests.
pub const LANES: usize = 16;
pub const UNIT: Unit = Unit::K16;

pub type Iaa = Driver<Arc<Model>>;

/// Memory for engines, used again once the model that could write to it is gone.
static MEMORY: Mutex<Vec<Region>> = Mutex::new(Vec::new());

pub fn memory() -> Region {
    let free = MEMORY.lock().expect("no test panics with it").pop();
    free.unwrap_or_else(|| {
        Region::new(Iaa::memory_for(LANES, UNIT), c"octavo test").expect("memory for lanes")
    })
}

/// `packages` packages of 4 processors and `devices` devices each, with `queues` queues of `size`.
pub fn found(packages: u32, devices: u16, queues: u8, size: u32, is_dedicated: bool) -> Found {
    let queue = |number| Queue { number, size, is_dedicated };
    let device = |n: u16| Device {
        number: 1 + 2 * n,
        package: Some(u32::from(n / devices)),
        queues: (0..queues).map(queue).collect(),
    };
    Found {
        devices: (0..devices * packages as u16).map(device).collect(),
        cpus: (0..packages * 4).map(|cpu| Some(cpu / 4)).collect(),
        notes: vec![],
    }
}

/// Devices, an engine on them, and the memory they share.
pub struct Rig {
    pub model: Arc<Model>,
    pub fleet: Arc<Fleet>,
    pub engine: Option<Iaa>,
    memory: Vec<Region>,
}

impl Rig {
    pub fn new(found: &Found, config: Config) -> Self {
        let fleet = Arc::new(Fleet::new(found));
        let model = Arc::new(Model::new(&fleet, Clock::Virtual, Latency::BY_N));
        let mut rig = Self { model, fleet, engine: None, memory: Vec::new() };
        rig.engine = Some(rig.another(config));
        rig
    }

    /// One more engine on the same devices, in memory of its own.
    pub fn another(&mut self, config: Config) -> Iaa {
        let memory = memory();
        self.model.share(&memory);
        let engine =
            Driver::new(self.model.clone(), self.fleet.clone(), &memory, &codecs(), config);
        self.memory.push(memory);
        engine.expect("an engine")
    }

    pub fn engine(&mut self) -> &mut Iaa {
        self.engine.as_mut().expect("an engine")
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.engine = None;
        if Arc::strong_count(&self.model) == 1 {
            MEMORY.lock().expect("no test panics with it").append(&mut self.memory);
        }
    }
}

pub fn config() -> Config {
    // Long enough for what the model does; shorter than the default, so that less time is waited.
    Config { unit: UNIT, timeout_ns: 1_000_000, ..Config::DEFAULT }
}

pub const fn deflate(mode: DeflateMode) -> Codec {
    Codec::Deflate { mode, level: Level::L1, parts: Parts::WHOLE }
}

pub const FIXED: Codec = deflate(DeflateMode::Fixed);
pub const DYNAMIC: Codec = deflate(DeflateMode::Dynamic);
pub const CANNED: Codec = deflate(DeflateMode::CannedGeneral);
pub const MODES: [Codec; 3] = [FIXED, DYNAMIC, CANNED];

/// What a device may answer to one command in place of what was asked, and what becomes of that.
pub const ANSWERS: [(Mishap, Why); 5] = [
    (Mishap::Status(status::PAGE_FAULT, 0), Why::Status(status::PAGE_FAULT, 0)),
    (Mishap::Status(status::HARDWARE, 0), Why::Status(status::HARDWARE, 0)),
    (Mishap::Status(status::ANALYTICS, 17), Why::Status(status::ANALYTICS, 17)),
    (Mishap::Status(0xee, 0xdd), Why::Status(0xee, 0xdd)),
    (Mishap::WrongSize, Why::Implausible),
];

/// Whether a device did it, or devices did all parts of it.
pub fn is_by_device(outcome: &Outcome) -> bool {
    matches!(outcome.by, By::Queue(_) | By::Parts { by_cpu_instead: 0, .. })
}

/// The codec for units in `n` parts.
pub fn by(n: usize, codec: Codec) -> Codec {
    match codec {
        Codec::Deflate { mode, level, .. } => {
            Codec::Deflate { mode, level, parts: Parts::by(n).expect("a power of two") }
        }
        other => other,
    }
}

/// What devices do, and some of what they do not.
pub fn codecs() -> Vec<Codec> {
    let mut codecs = MODES.to_vec();
    codecs.extend([deflate(DeflateMode::Canned), Codec::Lz4]);
    codecs
}

/// Pages of real programs, and two that are hard.
pub fn pages() -> Vec<Vec<u8>> {
    let mut pages = Vec::new();
    for program in ["gcc", "python", "redis", "rustc", "sqlite"] {
        let path = format!("{}/../../testdata/{program}.pages", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).expect("the sample pages that ship with the source");
        pages.extend(bytes.chunks_exact(4096).step_by(5).map(<[u8]>::to_vec));
    }
    let mut random = Random(7);
    pages.push((0..4096).map(|_| random.next() as u8).collect());
    pages.push(vec![0; 4096]);
    pages
}

/// Compresses units, all in one batch; outcomes and bytes.
pub fn compress<E: Engine>(
    engine: &mut E,
    codec: Codec,
    units: &[Vec<u8>],
) -> Vec<(Outcome, Vec<u8>)> {
    let mut outputs: Vec<Vec<u8>> = units.iter().map(|unit| vec![0xdd; unit.len()]).collect();
    let mut requests: Vec<Request<'_>> = units
        .iter()
        .zip(&mut outputs)
        .map(|(unit, output)| Request::compress(codec, unit, output))
        .collect();
    Batch::new(engine, &mut requests).finish();
    let done = |request: &Request<'_>| {
        (request.outcome().expect("done"), request.bytes().unwrap_or(&[]).to_vec())
    };
    requests.iter().map(done).collect()
}

/// Decompresses one unit.
pub fn decompress<E: Engine>(
    engine: &mut E,
    codec: Codec,
    bytes: &[u8],
    unit_bytes: usize,
) -> (Outcome, Vec<u8>) {
    let mut unit = vec![0xdd; unit_bytes];
    let mut requests = [Request::decompress(codec, bytes, &mut unit)];
    Batch::new(engine, &mut requests).finish();
    let outcome = requests[0].outcome().expect("done");
    (outcome, unit)
}

/// Numbers that look random (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    pub fn below(&mut self, n: u32) -> u32 {
        self.next() % n
    }
}
