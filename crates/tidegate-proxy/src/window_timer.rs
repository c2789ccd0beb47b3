//! Wakes at the end of a window that a request waits for.
//!
//! Nothing depends on its being in time: the first request of a new window turns it as well. The timer is for requests in line
//! that would otherwise wait until another one arrives.

use crate::state::ProxyState;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tidegate::Micros;
use tokio::time::sleep;

/// Longest sleep: the clock may be set ahead meanwhile.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Turns windows until the end of the proxy.
pub(crate) async fn run(state: Arc<ProxyState>) {
    loop {
        let turn = poll_fn(|cx| match state.queue.turn_and_watch(cx.waker()) {
            Some(turn) => Poll::Ready(turn),
            None => Poll::Pending,
        })
        .await;
        sleep(until(turn, state.clock.now()).min(SLEEP_MAX)).await;
        state.clock.follow_wall();
    }
}

/// The time to sleep. Rounded up to the timer's grain by tokio, never down: early is for nothing.
fn until(turn: Micros, now: Micros) -> Duration {
    Duration::from_micros(turn.saturating_sub(now).get())
}
