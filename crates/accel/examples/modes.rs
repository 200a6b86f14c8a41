//! What the driver and its model make of pages, beside the codecs: ratios, what a request takes on the
//! model (its work and the driver's: virtual time waits for nothing) and on the CPU, and what it costs
//! the processor beside the device's work.
//!
//!     cargo run --release -p octavo-accel --example modes -- PAGES...
//!
//! The model's matches are those of our encoder at level 1 in a window of 4 KiB; a device finds
//! others. Units of 4 KiB; one that does not fit counts whole.

use octavo_accel::iaa::discover::{Device, Found, Queue};
use octavo_accel::iaa::fleet::Fleet;
use octavo_accel::iaa::wire::{Completion, Descriptor};
use octavo_accel::iaa::{Config, Driver, Machine, Refused, Region};
use octavo_accel::model::{Clock, Latency, Model};
use octavo_accel::{Batch, Cpu, Engine, Request};
use octavo_codec::Codec;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::IntoBytes;

const UNIT: usize = 4096;
const LANES: usize = 16;

fn main() {
    let pages: Vec<u8> = std::env::args()
        .skip(1)
        .flat_map(|path| std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}")))
        .collect();
    let units: Vec<&[u8]> = pages.chunks_exact(UNIT).collect();
    let codecs = ["deflate-fixed", "deflate-dynamic", "deflate-canned:1:general"]
        .map(|name| name.parse::<Codec>().expect("a codec"));
    let fleet = Arc::new(Fleet::new(&found()));
    let model = Arc::new(Model::new(&fleet, Clock::Virtual, Latency::BY_N));
    let memory = region();
    model.share(&memory);
    let mut iaa = Driver::new(model, fleet.clone(), &memory, &codecs, Config::DEFAULT)
        .expect("there are queues");
    let mut cpu = Cpu::new(&codecs);
    println!(
        "{} units; CPU, driver on the model: ratio, ns to compress, ns to decompress",
        units.len()
    );
    for codec in codecs {
        let ratios = [ratio(&mut cpu, codec, &units), ratio(&mut iaa, codec, &units)];
        let compress = [
            best(units.len(), || ratio(&mut cpu, codec, &units)),
            best(units.len(), || ratio(&mut iaa, codec, &units)),
        ];
        let compressed = compressed(&mut cpu, codec, &units);
        let decompress = [
            best(compressed.len(), || decompress(&mut cpu, codec, &compressed)),
            best(compressed.len(), || decompress(&mut iaa, codec, &compressed)),
        ];
        println!("{codec:26} {ratios:.3?} {compress:.0?} {decompress:.0?}");
    }
    driver_alone(fleet, &units);
}

fn found() -> Found {
    let queue = |number| Queue { number, size: 64, is_dedicated: true };
    let device = |number| Device { number, package: Some(0), queues: [0, 1].map(queue).to_vec() };
    Found { devices: [1, 3, 5, 7].map(device).to_vec(), cpus: vec![Some(0)], notes: vec![] }
}

fn region() -> Region {
    let bytes = Driver::<Arc<Model>>::memory_for(LANES, octavo_page::Unit::K4);
    Region::new(bytes, c"octavo example").expect("memory for lanes")
}

/// Bytes in over bytes out.
fn ratio(engine: &mut impl Engine, codec: Codec, units: &[&[u8]]) -> f64 {
    let mut taken = 0;
    for units in units.chunks(LANES) {
        let mut outputs = [[0; UNIT]; LANES];
        let mut requests: Vec<Request<'_>> =
            units.iter().zip(&mut outputs).map(|(u, o)| Request::compress(codec, u, o)).collect();
        Batch::new(engine, &mut requests).finish();
        taken += requests.iter().map(|r| r.bytes().map_or(UNIT, <[u8]>::len)).sum::<usize>();
    }
    (units.len() * UNIT) as f64 / taken as f64
}

/// Nanoseconds that each of `n` things takes, the best of some times all.
fn best<T>(n: usize, mut all: impl FnMut() -> T) -> f64 {
    let time = |_| {
        let begin = Instant::now();
        all();
        begin.elapsed().as_nanos() as f64 / n as f64
    };
    (0..21).map(time).fold(f64::INFINITY, f64::min)
}

/// What the units that fit become.
fn compressed(engine: &mut impl Engine, codec: Codec, units: &[&[u8]]) -> Vec<Vec<u8>> {
    let compress = |unit: &&[u8]| {
        let mut output = [0; UNIT];
        let mut requests = [Request::compress(codec, unit, &mut output)];
        Batch::new(engine, &mut requests).finish();
        requests[0].bytes().map(<[u8]>::to_vec)
    };
    units.iter().filter_map(compress).collect()
}

fn decompress(engine: &mut impl Engine, codec: Codec, compressed: &[Vec<u8>]) {
    for inputs in compressed.chunks(LANES) {
        let mut outputs = [[0; UNIT]; LANES];
        let mut requests: Vec<Request<'_>> = inputs
            .iter()
            .zip(&mut outputs)
            .map(|(i, o)| Request::decompress(codec, i, o))
            .collect();
        Batch::new(engine, &mut requests).finish();
        assert!(requests.iter().all(|r| r.bytes().is_some()));
    }
}

/// A device that is done at once, with 1,280 bytes of whatever lay there: what is left is the driver.
struct Instantly {
    memory: Region,
    clock: Cell<u64>,
}

impl Machine for Instantly {
    fn submit(&self, _: usize, descriptor: &Descriptor) -> Result<(), Refused> {
        let at = self.memory.find(descriptor.completion.get(), 64).expect("our memory");
        let done = Completion { status: 1, output_size: 1280.into(), ..Completion::default() };
        self.memory.write(at, done.as_bytes());
        Ok(())
    }

    fn now(&self) -> u64 {
        self.clock.replace(self.clock.get() + 1)
    }

    fn pause(&self) {}
}

fn driver_alone(fleet: Arc<Fleet>, units: &[&[u8]]) {
    let codec: Codec = "deflate-fixed".parse().expect("a codec");
    let memory = region();
    let machine = Instantly { memory: memory.clone(), clock: Cell::new(0) };
    let mut engine =
        Driver::new(machine, fleet, &memory, &[codec], Config::DEFAULT).expect("there are queues");
    let ns = best(units.len(), || ratio(&mut engine, codec, units));
    println!("driver alone: {ns:.0} ns a compression, copies of 4096 and 1280 bytes in it");
}
