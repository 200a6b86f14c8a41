//! An engine as devices are: several requests in flight, done in any order, refused while there is no
//! room; and what it is to get wrong, it does.

use super::{Random, codecs};
use octavo_accel::{By, Capabilities, Cpu, Engine, Failure, Full, Io, Operation, Outcome, Ticket};
use octavo_codec::{Codec, MAX_UNIT};
use std::collections::BTreeSet;

/// Requests that it has in flight, at most.
const DEPTH: usize = 5;

pub struct Device {
    cpu: Cpu,
    random: Random,
    in_flight: BTreeSet<u16>,
    /// Compressions started so far, by lane, and what becomes of one of them.
    started: Vec<(Operation, usize)>,
    counts: [usize; 2],
    pub wrong: Option<(Operation, usize, Failure)>,
}

impl Device {
    pub fn new(seed: u64) -> Self {
        let cpu = Cpu::new(&codecs());
        let started = vec![(Operation::Compress, 0); DEPTH];
        let (random, in_flight) = (Random::new(seed), BTreeSet::new());
        Self { cpu, random, in_flight, started, counts: [0; 2], wrong: None }
    }

    /// Requests of this kind so far.
    pub fn count(&self, operation: Operation) -> usize {
        self.counts[usize::from(operation == Operation::Decompress)]
    }
}

impl Engine for Device {
    fn capabilities(&self) -> Capabilities {
        Capabilities { depth: DEPTH, unit_bytes: MAX_UNIT, is_asynchronous: true }
    }

    fn takes(&self, _: Operation, _: Codec) -> bool {
        true
    }

    fn start(&mut self, io: &Io<'_>) -> Result<Ticket, Full> {
        let free = (0..DEPTH as u16).find(|lane| !self.in_flight.contains(lane));
        let lane = free.filter(|_| self.in_flight.is_empty() || self.random.below(4) > 0);
        let lane = lane.ok_or(Full)?;
        self.in_flight.insert(lane);
        self.started[usize::from(lane)] = (io.operation, self.count(io.operation));
        self.counts[usize::from(io.operation == Operation::Decompress)] += 1;
        Ok(Ticket::Lane(lane))
    }

    fn check(&mut self, ticket: Ticket, io: &mut Io<'_>) -> Option<Outcome> {
        let Ticket::Lane(lane) = ticket else { panic!("a ticket of another engine") };
        assert!(self.in_flight.contains(&lane), "a ticket that is void");
        if self.random.below(3) > 0 {
            return None;
        }
        self.in_flight.remove(&lane);
        let by = By::Queue(lane);
        let (operation, number) = self.started[usize::from(lane)];
        assert_eq!(operation, io.operation, "another request's ticket");
        if let Some((of, at, failure)) = self.wrong
            && (of, at) == (operation, number)
        {
            io.output.fill(0xee);
            return Some(Outcome { result: Err(failure), by });
        }
        Some(Outcome { by, ..self.cpu.run(io) })
    }

    fn abandon(&mut self, ticket: Ticket) {
        if let Ticket::Lane(lane) = ticket {
            self.in_flight.remove(&lane);
        }
    }

    fn pause(&mut self) {}
}
