//! A row of requests and the engine that does them.
//!
//! ```text
//!   new ── submit ──► started ── poll, wait ──► done
//!    ▲                   │                        │
//!    └───────── set ─────│────────────────────────┘      dropped: what is started is given up
//! ```

use crate::request::{Engine, Request, State};

/// Requests that an engine works on, as long as this lives.
///
/// Any number of them: the engine takes what it has room for, and more with each
/// [`Batch::submit`]. Once a request is done its place can have another ([`Batch::set`]), so a few
/// places keep an engine busy for as long as there is work. Waiting for one request at a time is a
/// batch of one. A batch that is neither finished nor dropped (forgotten) keeps its lanes for good.
pub struct Batch<'e, 'r, 'a, E: Engine + ?Sized> {
    engine: &'e mut E,
    requests: &'r mut [Request<'a>],
    /// No request before it is new.
    next: usize,
    started: usize,
    /// Where the next look begins.
    cursor: usize,
}

impl<'e, 'r, 'a, E: Engine + ?Sized> Batch<'e, 'r, 'a, E> {
    /// A batch of these requests, none of them started.
    pub fn new(engine: &'e mut E, requests: &'r mut [Request<'a>]) -> Self {
        debug_assert!(!requests.iter().any(Request::is_started));
        Self { engine, requests, next: 0, started: 0, cursor: 0 }
    }

    /// Starts new requests, the first ones first, until the engine has no room; says how many.
    pub fn submit(&mut self) -> usize {
        let before = self.started;
        while let Some(request) = self.requests.get_mut(self.next) {
            if request.state == State::New {
                let Ok(ticket) = self.engine.start(&request.io) else { break };
                request.state = State::Started(ticket);
                self.started += 1;
            }
            self.next += 1;
        }
        self.started - before
    }

    /// The place of a request that got done, if one did by now. Each is told once. An engine that
    /// works in the caller does one now, or all of them where that is better.
    pub fn poll(&mut self) -> Option<usize> {
        if self.started == 0 {
            return None;
        }
        self.engine.check_together(self.requests);
        for _ in 0..self.requests.len() {
            let place = self.cursor;
            self.cursor = if place + 1 == self.requests.len() { 0 } else { place + 1 };
            let request = &mut self.requests[place];
            let outcome = match request.state {
                State::Started(ticket) => self.engine.check(ticket, &mut request.io),
                State::Ready(outcome) => Some(outcome),
                State::New | State::Done(_) => None,
            };
            if let Some(outcome) = outcome {
                request.state = State::Done(outcome);
                self.started -= 1;
                return Some(place);
            }
        }
        None
    }

    /// As [`Batch::poll`], and waits until one gets done; `None` when none is started. Waits no
    /// longer than the engine's time-out.
    pub fn wait(&mut self) -> Option<usize> {
        while self.started > 0 {
            if let Some(place) = self.poll() {
                return Some(place);
            }
            self.engine.pause();
        }
        None
    }

    /// Starts all requests and waits until all are done.
    pub fn finish(&mut self) {
        loop {
            self.submit();
            if self.wait().is_none() {
                // An engine says that it has no room only while it is at work.
                debug_assert_eq!(self.next, self.requests.len());
                return;
            }
        }
    }

    /// Requests that are started and not done.
    #[must_use]
    pub fn started(&self) -> usize {
        self.started
    }

    /// The request in `place`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn get(&self, place: usize) -> &Request<'a> {
        &self.requests[place]
    }

    /// Puts another request into `place`, and gives what was there.
    ///
    /// # Panics
    /// When there is no such place, or its request is started and not done.
    pub fn set(&mut self, place: usize, request: Request<'a>) -> Request<'a> {
        let there = &mut self.requests[place];
        assert!(!there.is_started(), "a request that is with an engine");
        self.next = self.next.min(place);
        core::mem::replace(there, request)
    }
}

impl<E: Engine + ?Sized> Drop for Batch<'_, '_, '_, E> {
    fn drop(&mut self) {
        if self.started == 0 {
            return;
        }
        for request in &mut *self.requests {
            if let State::Started(ticket) = request.state {
                self.engine.abandon(ticket);
            }
            if request.is_started() {
                request.state = State::New;
            }
        }
    }
}

impl<E: Engine + ?Sized> core::fmt::Debug for Batch<'_, '_, '_, E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Batch")
            .field("requests", &self.requests.len())
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}
