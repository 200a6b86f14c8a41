//! How far long work is, on stderr: a bar where that is a terminal, else a plain line now and then.

use indicatif::ProgressBar;
use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Between two lines.
const LINES: Duration = Duration::from_secs(10);

/// The progress of a command, until it is dropped. Threads may share it.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Who tells the lines ends with this.
    _lines: Option<Sender<()>>,
}

impl Progress {
    /// Of work in so many steps.
    pub fn of(command: &'static str, steps: usize) -> Self {
        Self::with(command, ProgressBar::new(steps as u64))
    }

    /// Of work whose end is not known.
    pub fn open(command: &'static str) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(200));
        Self::with(command, bar)
    }

    fn with(command: &'static str, bar: ProgressBar) -> Self {
        let lines = bar.is_hidden().then(|| {
            let (sender, ended) = mpsc::channel();
            let bar = bar.clone();
            // Where no more threads are allowed, there are no lines.
            let _ = thread::Builder::new().spawn(move || tell(command, &bar, &ended));
            sender
        });
        Self { bar, _lines: lines }
    }

    /// A step is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Steps that are done.
    pub fn steps(&self) -> usize {
        self.bar.position() as usize
    }

    /// This begins now.
    pub fn now(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Tells a line now and then, until the work has ended.
fn tell(command: &str, bar: &ProgressBar, ended: &Receiver<()>) {
    let begin = Instant::now();
    while ended.recv_timeout(LINES) == Err(RecvTimeoutError::Timeout) {
        let done = match bar.length() {
            Some(steps) => format!("{} of {steps}", bar.position()),
            None => bar.message(),
        };
        let line = format!("octavo: {command}: {done}, after {} s\n", begin.elapsed().as_secs());
        // Nobody may be there to read it: that is no reason to stop.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}
