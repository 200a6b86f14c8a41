//! Processes of a group on the machine, each with an engine of its own.

use super::machine::{CPUS, Memory, PACKAGES, Software, System};
use super::memory::{Contents, Group, Process, times};
use super::turns::{Nanos, Seat, side_by_side};
use crate::random::Random;
use octavo_accel::iaa::Region;
use octavo_accel::iaa::fleet::Fleet;
use octavo_accel::model::{Clock, Latency, Model};
use std::rc::Rc;
use std::sync::Arc;

/// What compresses, and what that costs.
#[derive(Clone, Debug)]
pub(super) struct Rig {
    pub system: System,
    /// Entries of each queue of a device.
    pub queues: &'static [u32],
    pub latency: Latency,
    pub software: Software,
    /// Where processes run.
    pub cpus: Cpus,
}

/// Where processes run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cpus {
    /// Process n on processor n.
    Bound,
    /// Each on any of its own, by this seed, the packages in turn: a new process goes where least is
    /// to be done.
    Anywhere(u64),
}

impl Cpus {
    fn list(self) -> Vec<usize> {
        let mut cpus: Vec<usize> = (0..CPUS).collect();
        if let Self::Anywhere(seed) = self {
            let mut random = Random::new(seed);
            let mut packages: Vec<Vec<usize>> =
                cpus.chunks(CPUS / PACKAGES).map(<[usize]>::to_vec).collect();
            packages.iter_mut().for_each(|cpus| random.shuffle(cpus));
            cpus = (0..CPUS).map(|n| packages[n % PACKAGES][n / PACKAGES]).collect();
        }
        cpus
    }
}

/// Calls of one queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Calls {
    /// As in `wq1.0`.
    pub queue: String,
    pub compress: u64,
    pub decompress: u64,
}

impl Calls {
    /// Those of a run that is so many times as large.
    pub(super) fn times(self, scale: f64) -> Self {
        let Self { queue, compress, decompress } = self;
        Self { queue, compress: times(compress, scale), decompress: times(decompress, scale) }
    }
}

impl Rig {
    /// Has all processes of `group` live, side by side in virtual time; what became of each, and
    /// what the queues were asked.
    ///
    /// # Panics
    /// When one of them fails, or there is no memory for lanes.
    pub(super) fn live<C: Contents, T: 'static>(
        &self,
        group: &Rc<Group<C>>,
        live: impl Fn(&mut Process<'_, C>) -> T + 'static,
    ) -> (Vec<T>, Vec<Calls>) {
        let fleet = Arc::new(Fleet::new(&self.system.found(self.queues)));
        let model = Rc::new(Model::new(&fleet, Clock::Told, self.latency));
        let memory = Memory::take();
        model.share(memory.all());
        let lanes: Rc<[Region]> =
            (0..group.processes()).map(|id| memory.of(id, self.system)).collect();
        let lives = {
            let (rig, group, fleet, lanes) =
                (self.clone(), group.clone(), fleet.clone(), lanes.clone());
            let cpus = rig.cpus.list();
            move |id: usize, seat: &Seat<'_>| {
                let engine = rig.system.engine(seat, &fleet, &lanes[id], cpus[id], rig.software);
                live(&mut Process::new(group.clone(), seat, engine, id, cpus[id]))
            }
        };
        let submit_ns = self.latency.submit as Nanos;
        (side_by_side(&model, &lanes, submit_ns, lives), calls(&fleet))
    }
}

/// The queues that were asked anything.
fn calls(fleet: &Fleet) -> Vec<Calls> {
    let calls = fleet.queues().iter().map(|queue| {
        let (compress, decompress) = queue.calls();
        Calls { queue: format!("wq{}.{}", queue.device, queue.number), compress, decompress }
    });
    calls.filter(|calls| calls.compress + calls.decompress > 0).collect()
}
