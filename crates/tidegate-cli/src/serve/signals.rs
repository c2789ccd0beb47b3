//! Signals: SIGHUP reloads, SIGTERM and SIGINT stop, a second one ends at once.

use std::io;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    Reload,
    Stop(&'static str),
}

/// The exit code after a second signal to stop.
pub(crate) const ENDED_AT_ONCE: i32 = 130;

/// The signals that we catch.
pub(crate) struct Signals {
    hangup: Stream,
    terminate: Stream,
    interrupt: Stream,
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Signals> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.terminate.recv() => Signal::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Signal::Stop("SIGINT"),
        }
    }

    /// The next signal that asks for a stop.
    pub(crate) async fn second_stop(&mut self) {
        while self.next().await == Signal::Reload {}
    }
}
