//! How long connecting may take: little at first, and more each time that it was not enough.
//!
//! A fixed bound below a slow network's round trips would keep a process from its store for ever, though the store answers
//! in time over a connection that stands. Within a longer time a new attempt begins every half second beside those under
//! way, so that a store that returns is found at once, whatever became of the attempts before. Callers do not wait for it:
//! their own deadlines hold.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::{Instant, interval_at, sleep};

/// At first, and after every outcome that came within it; and between two attempts.
pub(crate) const CONNECT_TIME_MIN: Duration = Duration::from_millis(500);
/// However often it ran out of time.
pub(crate) const CONNECT_TIME_MAX: Duration = Duration::from_secs(8);

/// The time that connecting has.
#[derive(Debug)]
pub(crate) struct ConnectTime(AtomicU64);

impl Default for ConnectTime {
    fn default() -> ConnectTime {
        ConnectTime(AtomicU64::new(millis(CONNECT_TIME_MIN)))
    }
}

impl ConnectTime {
    pub(crate) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed))
    }

    /// The outcome of the first attempt that has one. `None`: the time was too short for that, and will be longer next time.
    pub(crate) async fn race<F: Future>(&self, attempt: impl Fn() -> F) -> Option<F::Output> {
        let since = Instant::now();
        let mut attempts = FuturesUnordered::from_iter([attempt()]);
        let mut again = interval_at(Instant::now() + CONNECT_TIME_MIN, CONNECT_TIME_MIN);
        let mut over = std::pin::pin!(sleep(self.get()));
        loop {
            tokio::select! {
                Some(outcome) = attempts.next() => {
                    // Also a refusal: time was not what it lacked. Where it took longer, the next one will, too.
                    if since.elapsed() < CONNECT_TIME_MIN {
                        self.reset();
                    }
                    return Some(outcome);
                }
                () = &mut over => {
                    self.grow();
                    return None;
                }
                _ = again.tick() => attempts.push(attempt()),
            }
        }
    }

    fn reset(&self) {
        self.0.store(millis(CONNECT_TIME_MIN), Relaxed);
    }

    fn grow(&self) {
        self.0.store(millis((self.get() * 2).min(CONNECT_TIME_MAX)), Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_its_bound_and_begins_anew() {
        let time = ConnectTime::default();
        let mut seen = Vec::new();
        for _ in 0..6 {
            seen.push(time.get().as_millis());
            time.grow();
        }
        assert_eq!(seen, [500, 1_000, 2_000, 4_000, 8_000, 8_000]);
        time.reset();
        assert_eq!(time.get(), CONNECT_TIME_MIN);
    }

    /// A slow way stays slow: each connection but the first of several would have had too little time again.
    #[tokio::test(start_paused = true)]
    async fn stays_grown_where_connecting_takes_long() {
        let time = ConnectTime::default();
        let takes = |ms| move || sleep(Duration::from_millis(ms));
        assert_eq!(time.race(takes(700)).await, None);
        assert_eq!((time.race(takes(700)).await, time.get()), (Some(()), CONNECT_TIME_MIN * 2));
        assert_eq!((time.race(takes(10)).await, time.get()), (Some(()), CONNECT_TIME_MIN));
    }
}
