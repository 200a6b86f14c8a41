//! Units in N parts (`:by_N`): every part is a request to a device, and all of them are under way at
//! once.
//!
//! ```text
//!   unit    │ part 0 │ part 1 │ part 2 │ part 3 │ part 4 │        lanes: 3
//!             done     lane 0   lane 1   lane 2   waits for a lane
//!                      working  made     working
//!   ──────────────────►│                         │
//!             delivered                          started
//! ```
//!
//! Parts are started in order, as there are lanes. They end in any order and are delivered in order:
//! where a part of what is compressed begins is known when all before it are there. One that is made
//! waits in its lane. What no device does, or did wrong, software does when its turn comes, straight
//! into the caller's memory; the other parts stand.
//!
//! The first part that does not fit fails the unit: parts that are with devices are given up, their
//! lanes *lost* until the devices say that they are done, so nobody waits and nobody is written over.
//!
//! Invariants:
//! - Parts from `delivered` to `started` have a lane each, or a reason why software does them; no
//!   other part has anything. So the first of them never waits for a lane, and units that share lanes
//!   all end.
//! - While a part of a unit waits for a lane the engine takes nothing new on.
//! - The caller's memory is written in a check, and in no other call.

use super::{Driver, End, Job};
use crate::iaa::Machine;
use crate::iaa::lanes::Use;
use crate::request::{By, Failure, Full, Io, Operation, Outcome, Ticket, Why};
use alloc::boxed::Box;
use octavo_codec::{DeflateMode, Parts, by_n};

/// Units in parts that an engine has in flight at once, at most: a batch of the kernel's. Of their
/// parts as many as there are lanes.
pub const MAX_UNITS: usize = 8;

/// The books on a unit.
#[derive(Clone, Copy)]
struct Unit {
    mode: DeflateMode,
    /// Parts it is cut into, and the first ones that are wanted.
    n: u8,
    wanted: u8,
    started: u8,
    delivered: u8,
    by_devices: u8,
    by_cpu_instead: u8,
    /// Bytes of output so far, the header counted.
    end: u32,
    tickets: [Ticket; Parts::MAX],
}

/// Units that are in flight.
pub(super) struct Units {
    places: Box<[Option<Unit>]>,
    taken: usize,
}

impl Units {
    /// No unit as yet.
    pub(super) fn new() -> Self {
        Self { places: alloc::vec![None; MAX_UNITS].into(), taken: 0 }
    }

    fn take(&mut self, unit: Unit) -> Option<usize> {
        let place = self.places.iter().position(Option::is_none)?;
        self.places[place] = Some(unit);
        self.taken += 1;
        Some(place)
    }

    fn give_back(&mut self, place: usize) {
        self.places[place] = None;
        self.taken -= 1;
    }

    fn at(&mut self, place: usize) -> &mut Unit {
        self.places[place].as_mut().expect("a ticket that is void")
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Whether parts wait for a lane.
    pub(super) fn is_any_waiting(&self) -> bool {
        let waits = |unit: &Unit| unit.started < unit.wanted;
        self.taken > 0 && self.places.iter().flatten().any(waits)
    }
}

impl<M: Machine> Driver<M> {
    /// Takes a unit of `n` parts on, and starts those that there are lanes for.
    pub(super) fn start_unit(
        &mut self,
        io: &Io<'_>,
        mode: DeflateMode,
        n: usize,
    ) -> Result<Ticket, Full> {
        let Some(part_bytes) = part_bytes(io, n).filter(|bytes| *bytes <= self.config.unit.bytes())
        else {
            return Ok(Ticket::Software(By::CpuInstead(Why::NotTaken)));
        };
        let (wanted, end) = match io.operation {
            Operation::Compress => (n, by_n::header_bytes(n)),
            Operation::Decompress => (io.wanted.div_ceil(part_bytes), 0),
        };
        let unit = Unit {
            mode,
            n: n as u8,
            wanted: wanted as u8,
            started: 0,
            delivered: 0,
            by_devices: 0,
            by_cpu_instead: 0,
            end: end as u32,
            tickets: [Ticket::Software(By::Cpu); Parts::MAX],
        };
        let place = self.units.take(unit).ok_or(Full)?;
        self.start_parts(place, io);
        Ok(Ticket::Unit(place as u16))
    }

    /// Looks after a unit.
    pub(super) fn check_unit(&mut self, place: usize, io: &mut Io<'_>) -> Option<Outcome> {
        let result = self.advance_unit(place, io).transpose()?;
        let Unit { by_devices, by_cpu_instead, .. } = *self.units.at(place);
        self.give_unit_up(place);
        Some(Outcome { result, by: By::Parts { by_devices, by_cpu_instead } })
    }

    /// Gives a unit up, with what devices have of it.
    pub(super) fn give_unit_up(&mut self, place: usize) {
        let unit = self.units.at(place);
        for ticket in &unit.tickets[unit.delivered.into()..unit.started.into()] {
            if let Ticket::Lane(lane) = *ticket {
                self.lanes.give_up(lane.into());
            }
        }
        self.units.give_back(place);
    }

    /// Does what can be done for a unit now; the bytes of its output, once all of it is there.
    fn advance_unit(&mut self, place: usize, io: &mut Io<'_>) -> Result<Option<usize>, Failure> {
        self.look_at_parts(place)?;
        self.deliver_parts(place, io)?;
        self.start_parts(place, io);
        let unit = self.units.at(place);
        Ok((unit.delivered == unit.wanted).then_some(unit.end as usize))
    }

    /// Looks after the parts that are in lanes.
    fn look_at_parts(&mut self, place: usize) -> Result<(), Failure> {
        let Unit { delivered, started, .. } = *self.units.at(place);
        for i in usize::from(delivered)..usize::from(started) {
            let Ticket::Lane(lane) = self.units.at(place).tickets[i] else { continue };
            let is_made = self.lanes.lanes[usize::from(lane)].usage == Use::Made;
            let Some(end) = (!is_made).then(|| self.look(lane.into())).flatten() else { continue };
            let unit = self.units.at(place);
            match end {
                End::Made(_) => unit.by_devices += 1,
                End::Failed(failure, _) => {
                    unit.by_devices += 1;
                    return Err(failure);
                }
                End::Instead(why) => unit.tickets[i] = Ticket::Software(By::CpuInstead(why)),
            }
        }
        Ok(())
    }

    /// Gives the caller the next parts, as far as they are made, or software makes them.
    fn deliver_parts(&mut self, place: usize, io: &mut Io<'_>) -> Result<(), Failure> {
        loop {
            let Unit { n, delivered, started, end, ref tickets, .. } = *self.units.at(place);
            if delivered == started {
                return Ok(());
            }
            let (n, i, end) = (usize::from(n), usize::from(delivered), end as usize);
            let ticket = tickets[i];
            let mut part = part(io, n, i, end);
            let result = match ticket {
                Ticket::Lane(lane) if self.lanes.lanes[usize::from(lane)].usage == Use::Made => {
                    self.deliver(lane.into(), &mut part)
                }
                Ticket::Lane(_) => return Ok(()),
                Ticket::Software(By::CpuInstead(why)) => {
                    self.units.at(place).by_cpu_instead += 1;
                    self.instead(&mut part, why).result
                }
                Ticket::Software(_) | Ticket::Unit(_) => unreachable!("no part has such a ticket"),
            };
            let size = result?;
            if io.operation == Operation::Compress {
                by_n::set_start(n, i, end, io.output);
            }
            let unit = self.units.at(place);
            unit.delivered += 1;
            unit.end += size as u32;
        }
    }

    /// Starts parts until there is no lane.
    fn start_parts(&mut self, place: usize, io: &Io<'_>) {
        loop {
            let Unit { mode, n, wanted, started, end, .. } = *self.units.at(place);
            if started == wanted {
                return;
            }
            let (n, i, operation) = (usize::from(n), usize::from(started), io.operation);
            let room = match operation {
                // The parts before it take at least as much.
                Operation::Compress => io.output.len() - end as usize,
                Operation::Decompress => io.output.len() / n,
            };
            let job = Job { operation, mode, input: input(io, n, i), room };
            let Ok(ticket) = self.start_job(&job) else { return };
            let unit = self.units.at(place);
            unit.tickets[i] = ticket;
            unit.started += 1;
        }
    }
}

/// Bytes in each part of a unit; `None` where there are no such parts.
fn part_bytes(io: &Io<'_>, n: usize) -> Option<usize> {
    let (unit_bytes, has_parts) = match io.operation {
        Operation::Compress => (io.input.len(), io.output.len() > by_n::header_bytes(n)),
        Operation::Decompress => {
            (io.output.len(), (0..n).all(|i| by_n::part(n, i, io.input).is_ok()))
        }
    };
    (has_parts && unit_bytes > 0 && unit_bytes.is_multiple_of(n)).then_some(unit_bytes / n)
}

/// What part `i` is made of.
fn input<'a>(io: &Io<'a>, n: usize, i: usize) -> &'a [u8] {
    match io.operation {
        Operation::Compress => {
            let part_bytes = io.input.len() / n;
            &io.input[i * part_bytes..][..part_bytes]
        }
        // A unit was taken on because it has all of its parts.
        Operation::Decompress => by_n::part(n, i, io.input).unwrap_or(&[]),
    }
}

/// Part `i` of a unit of which `end` bytes of output are there, as a request.
fn part<'p>(io: &'p mut Io<'_>, n: usize, i: usize, end: usize) -> Io<'p> {
    let (codec, input) = (io.codec.of_part(), input(io, n, i));
    match io.operation {
        Operation::Compress => Io::compress(codec, input, &mut io.output[end..]),
        Operation::Decompress => {
            let part_bytes = io.output.len() / n;
            Io::decompress(codec, input, &mut io.output[i * part_bytes..][..part_bytes])
        }
    }
}
