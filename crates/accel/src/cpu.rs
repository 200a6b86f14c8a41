//! The engine that every machine has: the codecs, in the caller.
//!
//! A request is done when it is asked for, so that a batch costs what calling the codec costs, and a
//! batch that is dropped costs nothing. Units that the codec compresses better many at once are done
//! together when the first of them is asked for.

use crate::request::{
    By, Capabilities, Engine, Failure, Full, Io, Operation, Outcome, Request, State, Ticket,
};
use alloc::sync::Arc;
use core::fmt;
use octavo_codec::deflate::{Generation, Generations};
use octavo_codec::{Codec, Job, MAX_UNIT, Workspace};

/// Units that are done together, at most.
const TOGETHER: usize = 32;

/// Whether a request is to be done, and better together with others.
fn waits(request: &Request<'_>) -> bool {
    let Io { operation, codec, input, .. } = &request.io;
    request.state == State::Started(Ticket::Software(By::Cpu))
        && *operation == Operation::Compress
        && Workspace::is_better_together(*codec, input.len())
}

/// The CPU as an engine.
pub struct Cpu {
    workspace: Workspace,
    is_canned: bool,
}

impl Cpu {
    /// An engine for requests with these codecs.
    #[must_use]
    pub fn new(codecs: &[Codec]) -> Self {
        Self { workspace: Workspace::new(codecs), is_canned: codecs.iter().any(Codec::is_canned) }
    }

    /// The learnt tables, if it was told of any.
    pub(crate) fn learnt(&self) -> Option<&Arc<Generations>> {
        self.workspace.learnt()
    }

    /// Does a request now, and tells as whom.
    pub(crate) fn run_as(&mut self, by: By, io: &mut Io<'_>) -> Outcome {
        let Io { operation, codec, input, output, wanted } = io;
        let result = match operation {
            Operation::Compress => self
                .workspace
                .compress(*codec, input, output)
                .map_err(|octavo_codec::DoesNotFit| Failure::DoesNotFit),
            Operation::Decompress => self
                .workspace
                .decompress_prefix(*codec, input, output, *wanted)
                .map(|()| *wanted)
                .map_err(|_| Failure::Corrupt),
        };
        Outcome { result, by }
    }
}

impl Engine for Cpu {
    fn capabilities(&self) -> Capabilities {
        Capabilities { depth: usize::MAX, unit_bytes: MAX_UNIT, is_asynchronous: false }
    }

    fn takes(&self, _: Operation, _: Codec) -> bool {
        true
    }

    #[inline]
    fn start(&mut self, _: &Io<'_>) -> Result<Ticket, Full> {
        Ok(Ticket::Software(By::Cpu))
    }

    #[inline]
    fn check(&mut self, ticket: Ticket, io: &mut Io<'_>) -> Option<Outcome> {
        let Ticket::Software(by) = ticket else { unreachable!("a ticket of another engine") };
        Some(self.run_as(by, io))
    }

    fn check_together(&mut self, requests: &mut [Request<'_>]) {
        while let Some(first) = requests.iter().find(|request| waits(request)) {
            let codec = first.io.codec;
            let is_one = |request: &&mut Request<'_>| waits(request) && request.io.codec == codec;
            let mut some = requests.iter_mut().filter(is_one).fuse();
            let mut count = 0;
            let mut jobs: [Job<'_>; TOGETHER] = core::array::from_fn(|_| {
                let Some(request) = some.next() else { return Job::new(&[], &mut []) };
                count += 1;
                Job::new(request.io.input, request.io.output)
            });
            self.workspace.compress_all(codec, &mut jobs[..count]);
            let sizes = jobs.map(|job| job.size);
            for (request, size) in requests.iter_mut().filter(is_one).zip(&sizes[..count]) {
                let result = size.map_err(|octavo_codec::DoesNotFit| Failure::DoesNotFit);
                request.state = State::Ready(Outcome { result, by: By::Cpu });
            }
        }
    }

    fn abandon(&mut self, _: Ticket) {}

    fn pause(&mut self) {}

    #[inline]
    fn run(&mut self, io: &mut Io<'_>) -> Outcome {
        self.run_as(By::Cpu, io)
    }

    fn set_learnt(&mut self, learnt: &Arc<Generations>) {
        if self.is_canned {
            self.workspace.set_learnt(Arc::clone(learnt));
        }
    }

    #[inline]
    fn compress_with(&mut self, generation: Generation) {
        self.workspace.compress_with(generation);
    }

    #[inline]
    fn batches(&self, operation: Operation, codec: Codec, unit_bytes: usize) -> bool {
        operation == Operation::Compress && Workspace::is_better_together(codec, unit_bytes)
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("workspace", &self.workspace).finish()
    }
}
