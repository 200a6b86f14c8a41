//! What is asked of an engine, and what it answers.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use octavo_codec::Codec;
use octavo_codec::deflate::{Generation, Generations};

/// What is to be done with a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Input is a unit; output is as long as what the codec makes of it may be.
    Compress,
    /// Input is what the codec made of a unit; output is as long as the unit.
    Decompress,
}

/// One unit to be compressed or decompressed.
#[derive(Debug)]
pub struct Request<'a> {
    pub(crate) io: Io<'a>,
    pub(crate) state: State,
}

/// What a request names.
#[derive(Debug)]
pub struct Io<'a> {
    /// What is to be done.
    pub operation: Operation,
    /// How.
    pub codec: Codec,
    /// What is read.
    pub input: &'a [u8],
    /// What is written.
    pub output: &'a mut [u8],
    /// Bytes at the front of the output that are wanted of a decompression, at least one; whoever
    /// does it may leave the rest undefined.
    pub wanted: usize,
}

impl<'a> Io<'a> {
    /// To compress `unit` into the front of `output`.
    #[must_use]
    pub fn compress(codec: Codec, unit: &'a [u8], output: &'a mut [u8]) -> Self {
        let wanted = output.len();
        Self { operation: Operation::Compress, codec, input: unit, output, wanted }
    }

    /// To decompress the whole of `bytes` into the whole of `unit`.
    #[must_use]
    pub fn decompress(codec: Codec, bytes: &'a [u8], unit: &'a mut [u8]) -> Self {
        let wanted = unit.len();
        Self { operation: Operation::Decompress, codec, input: bytes, output: unit, wanted }
    }

    /// To decompress as much of `bytes` as gives the first `wanted` bytes of `unit`; the rest of
    /// `unit` is undefined.
    ///
    /// # Panics
    /// When the unit has not that many bytes.
    #[must_use]
    pub fn decompress_prefix(
        codec: Codec,
        bytes: &'a [u8],
        unit: &'a mut [u8],
        wanted: usize,
    ) -> Self {
        assert!(0 < wanted && wanted <= unit.len(), "wanted {wanted} of {} bytes", unit.len());
        Self { wanted, ..Self::decompress(codec, bytes, unit) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    New,
    Started(Ticket),
    /// Started and done, and nobody was told.
    Ready(Outcome),
    Done(Outcome),
}

impl<'a> Request<'a> {
    /// A request to compress `unit` into the front of `output`.
    #[must_use]
    pub fn compress(codec: Codec, unit: &'a [u8], output: &'a mut [u8]) -> Self {
        Self::new(Io::compress(codec, unit, output))
    }

    /// A request to decompress the whole of `bytes` into the whole of `unit`.
    #[must_use]
    pub fn decompress(codec: Codec, bytes: &'a [u8], unit: &'a mut [u8]) -> Self {
        Self::new(Io::decompress(codec, bytes, unit))
    }

    fn new(io: Io<'a>) -> Self {
        Self { io, state: State::New }
    }

    /// Whether it belongs to a batch that has not told yet what became of it.
    pub(crate) fn is_started(&self) -> bool {
        matches!(self.state, State::Started(_) | State::Ready(_))
    }

    /// What became of it, once it is done.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        match self.state {
            State::Done(outcome) => Some(outcome),
            State::New | State::Started(_) | State::Ready(_) => None,
        }
    }

    /// The bytes that came of it: `None` unless it is done and went well.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        self.io.output.get(..self.outcome()?.result.ok()?)
    }

    /// What it names, when it is not with an engine.
    ///
    /// # Panics
    /// When it is started and not done: it belongs to a batch that was dropped too early.
    #[must_use]
    pub fn into_io(self) -> Io<'a> {
        assert!(!self.is_started(), "a request that is with an engine");
        self.io
    }
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Bytes of output, or why there are none; what lies in the output is then undefined.
    pub result: Result<usize, Failure>,
    /// Who did it.
    pub by: By,
}

/// Why there is no output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The compressed form is longer than the output: keep the unit as it is.
    DoesNotFit,
    /// The input is not what the codec made of a unit of that length: the page is lost.
    Corrupt,
    /// What a device compressed did not give the unit back (asked for by `verify`): keep the unit
    /// as it is, and doubt the device.
    Unverified,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DoesNotFit => "the unit does not compress into the room offered; keep it raw",
            Self::Corrupt => "the compressed bytes are damaged; the page is lost",
            Self::Unverified => "a device compressed the unit to something else; keep it raw",
        })
    }
}

impl core::error::Error for Failure {}

/// Who did what was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The CPU, as asked.
    Cpu,
    /// The device behind this queue, by its place in the engine's table of queues.
    Queue(u16),
    /// The CPU, in place of a device.
    CpuInstead(Why),
    /// Several: the unit was cut, and each part was a request to devices.
    Parts {
        /// Parts done by devices.
        by_devices: u8,
        /// Parts done by the CPU in place of a device.
        by_cpu_instead: u8,
    },
}

/// Why software stood in for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The devices do not do this: the codec, or a unit too long.
    NotTaken,
    /// No room in the queue of a decompression.
    QueueFull,
    /// No queue is left that answers.
    NoQueue,
    /// The device did not answer in time.
    TimedOut,
    /// The device answered with this status and error code.
    Status(u8, u8),
    /// The device said it was done, and what it tells of its output cannot be.
    Implausible,
    /// The device said it was done, and the caller found that its output was wrong.
    Doubted,
}

/// What an engine can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Requests that it has in flight at once, at most: the largest batch that is taken whole. More
    /// are taken in turns.
    pub depth: usize,
    /// Bytes in the longest unit, or part of one where the codec cuts it, that is done without software
    /// standing in.
    pub unit_bytes: usize,
    /// Whether requests go on while the caller does something else.
    pub is_asynchronous: bool,
}

/// There is no room for one more request until another is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the engine has no room for one more request until another is done")
    }
}

impl core::error::Error for Full {}

/// Stands for a started request, to the engine that started it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ticket {
    /// Software does it when it is asked for.
    Software(By),
    /// It is in this lane.
    Lane(u16),
    /// It is cut, and its parts are looked after in this place.
    Unit(u16),
}

/// Requests done so far, by who did them: that software stood in is told, never hidden. A unit whose
/// parts were requests to devices counts once for each of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// By the CPU, as asked.
    pub by_cpu: u64,
    /// By devices.
    pub by_devices: u64,
    /// By the CPU, in place of a device.
    pub by_cpu_instead: u64,
}

impl Work {
    /// Counts one more.
    #[inline]
    pub fn note(&mut self, by: By) {
        match by {
            By::Cpu => self.by_cpu += 1,
            By::Queue(_) => self.by_devices += 1,
            By::CpuInstead(_) => self.by_cpu_instead += 1,
            By::Parts { by_devices, by_cpu_instead } => {
                self.by_devices += u64::from(by_devices);
                self.by_cpu_instead += u64::from(by_cpu_instead);
            }
        }
    }
}

/// What does requests. Callers use a [`Batch`](crate::Batch), which keeps the rules that these calls
/// have, or [`Engine::run`].
pub trait Engine {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Whether its own hardware does this, so that software need not stand in while all is well.
    fn takes(&self, operation: Operation, codec: Codec) -> bool;

    /// Takes a request on.
    ///
    /// # Errors
    /// [`Full`] when there is no room until a request of this engine, which is started, is done.
    fn start(&mut self, io: &Io<'_>) -> Result<Ticket, Full>;

    /// Looks after a request that was started, with what it was started with, and gives its
    /// outcome once there is one. The ticket is void then.
    fn check(&mut self, ticket: Ticket, io: &mut Io<'_>) -> Option<Outcome>;

    /// Looks after started requests together, where that is better than each by itself: those that are
    /// done then are ready.
    fn check_together(&mut self, _: &mut [Request<'_>]) {}

    /// Gives a started request up; its ticket is void.
    fn abandon(&mut self, ticket: Ticket);

    /// Does what is best when nothing has got done: a moment's pause.
    fn pause(&mut self);

    /// Does one request and waits for it: a batch of one, at no cost to who works in the caller.
    fn run(&mut self, io: &mut Io<'_>) -> Outcome {
        // There is room as soon as what may be in flight is done.
        let ticket = loop {
            match self.start(io) {
                Ok(ticket) => break ticket,
                Err(Full) => self.pause(),
            }
        };
        loop {
            if let Some(outcome) = self.check(ticket, io) {
                return outcome;
            }
            self.pause();
        }
    }

    /// Does once more what came out wrong: not by the hardware that did it, where there is software.
    fn run_again(&mut self, io: &mut Io<'_>) -> Outcome {
        self.run(io)
    }

    /// Where the tables are that are learnt from a program's units; called once, by who learns some. An
    /// engine that was not made for a canned codec ignores it.
    fn set_learnt(&mut self, _: &Arc<Generations>) {}

    /// From now on canned units are made with this generation of the learnt tables, which the caller holds
    /// while they are. Between batches.
    fn compress_with(&mut self, _: Generation) {}

    /// Whether requests of this kind, for units of so many bytes, are best made many at once: its own
    /// hardware does them while the caller does something else, or it does them together in less time.
    fn batches(&self, operation: Operation, codec: Codec, unit_bytes: usize) -> bool {
        let Capabilities { is_asynchronous, unit_bytes: longest, .. } = self.capabilities();
        let is_short = codec.part_bytes(unit_bytes) <= longest;
        is_asynchronous && is_short && self.takes(operation, codec)
    }
}

/// An engine that is chosen while the program runs.
impl<E: Engine + ?Sized> Engine for Box<E> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn takes(&self, operation: Operation, codec: Codec) -> bool {
        (**self).takes(operation, codec)
    }

    fn start(&mut self, io: &Io<'_>) -> Result<Ticket, Full> {
        (**self).start(io)
    }

    fn check(&mut self, ticket: Ticket, io: &mut Io<'_>) -> Option<Outcome> {
        (**self).check(ticket, io)
    }

    fn check_together(&mut self, requests: &mut [Request<'_>]) {
        (**self).check_together(requests);
    }

    fn abandon(&mut self, ticket: Ticket) {
        (**self).abandon(ticket);
    }

    fn pause(&mut self) {
        (**self).pause();
    }

    fn run(&mut self, io: &mut Io<'_>) -> Outcome {
        (**self).run(io)
    }

    fn run_again(&mut self, io: &mut Io<'_>) -> Outcome {
        (**self).run_again(io)
    }

    fn set_learnt(&mut self, learnt: &Arc<Generations>) {
        (**self).set_learnt(learnt);
    }

    fn compress_with(&mut self, generation: Generation) {
        (**self).compress_with(generation);
    }

    fn batches(&self, operation: Operation, codec: Codec, unit_bytes: usize) -> bool {
        (**self).batches(operation, codec, unit_bytes)
    }
}
