//! How long a peer may be silent. The timer is made when somebody is first waited for, and only then:
//! most bodies are there already.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Runs out when a peer is silent for too long.
pub(crate) struct Patience {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Patience {
        Patience { limit, timer: None, is_waiting: false }
    }

    /// Something came.
    pub(crate) fn heard(&mut self) {
        self.is_waiting = false;
    }

    /// Nothing is there. Ready: it was silent for too long.
    pub(crate) fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !std::mem::replace(&mut self.is_waiting, true) {
            timer.as_mut().reset(Instant::now() + limit);
        }
        timer.as_mut().poll(cx)
    }
}
