//! One subscriber's place in a stream's log.

use crate::log::{Log, Message, Read};
use crate::{Seen, Snapshot};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::watch;

/// About so many bytes are taken from the log at once.
const READ_BYTES: usize = 64 << 10;

/// A subscriber that has received everything up to a clock value.
pub struct Subscription {
    log: Arc<Log>,
    growth: watch::Receiver<u64>,
    after: Seen,
    place: u64,
    /// How often the log had begun by then.
    begins: u64,
    /// To be sent first.
    snapshot: Option<Snapshot>,
}

/// Why a subscription ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// The subscriber was too slow: the message after this clock value has left the log.
    Behind(u64),
    /// The store lost something, or may have: what follows this clock value is not what was to follow.
    Anew(u64),
    /// The stream is closing; this clock value was reached.
    Closed(u64),
}

impl std::error::Error for Cut {}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Behind(clock) => write!(
                f,
                "too slow: what follows clock {clock} is no longer kept; read faster, and subscribe again with from-clock:{clock}"
            ),
            Cut::Anew(clock) => write!(
                f,
                "the store may have lost messages, so the stream went on with a higher clock than {clock}; subscribe again, and begin with the snapshot"
            ),
            Cut::Closed(clock) => write!(f, "the server is closing; subscribe again with from-clock:{clock}"),
        }
    }
}

impl Subscription {
    pub(crate) fn after(log: Arc<Log>, seen: Seen) -> Subscription {
        let growth = log.growth();
        let place = log.listeners.fetch_add(1, Relaxed);
        let (begins, epoch) = log.begins();
        let after = Seen { epoch: seen.epoch.or(epoch), ..seen };
        Subscription { log, growth, after, place, begins, snapshot: None }
    }

    pub(crate) fn with(log: Arc<Log>, snapshot: Snapshot) -> Subscription {
        let mut subscription = Subscription::after(log, snapshot.seen());
        subscription.snapshot = Some(snapshot);
        subscription
    }

    /// The clock value that was reached.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.after.clock
    }

    /// How many subscribers there were when this one came: subscribers that come at one time have different numbers.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.place
    }

    /// The next messages, at least one; waits for it. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// When the subscriber was too slow, or there will be no more messages.
    pub async fn next(&mut self) -> Result<Vec<Message>, Cut> {
        if let Some(Snapshot { clock, epoch, body }) = self.snapshot.take() {
            return Ok(vec![Message { clock, epoch, body, is_key_frame: true }]);
        }
        loop {
            self.growth.mark_unchanged();
            match self.log.read(self.after, self.begins, READ_BYTES) {
                Read::Messages(messages) => {
                    self.after = messages.last().map_or(self.after, Message::seen);
                    return Ok(messages);
                }
                Read::Anew => return Err(Cut::Anew(self.after.clock)),
                Read::Behind => {
                    self.log.cut.fetch_add(1, Relaxed);
                    return Err(Cut::Behind(self.after.clock));
                }
                Read::Nothing if self.log.is_closed() => return Err(Cut::Closed(self.after.clock)),
                Read::Nothing => {
                    // The sender lives as long as the log.
                    let _ = self.growth.changed().await;
                }
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.log.listeners.fetch_sub(1, Relaxed);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("after", &self.after).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    const EPOCH: &str = "00000000a1b2c";

    fn message(clock: u64, is_key_frame: bool) -> Message {
        Message { clock, epoch: EPOCH.parse().expect("13 digits"), body: "{}".into(), is_key_frame }
    }

    #[tokio::test]
    async fn c2_c6_a_jump_is_gone_over_and_a_log_that_does_not_lead_on_says_so() {
        let log = Arc::new(Log::new(0, EPOCH.parse().unwrap()));
        log.push((1..=3).map(|clock| message(clock, clock == 1)));
        let mut subscription = Subscription::after(Arc::clone(&log), 2.into());
        log.push([message(1_000_004, true), message(1_000_005, false)]);
        let received = subscription.next().await.unwrap();
        assert_eq!(received, [message(3, false), message(1_000_004, true), message(1_000_005, false)]);
        // A subscriber that stands where the log goes on has missed nothing.
        log.begin(
            1_000_003,
            EPOCH.parse().unwrap(),
            [message(1_000_004, true), message(1_000_005, false), message(1_000_006, false)],
        );
        assert_eq!(subscription.next().await.unwrap(), [message(1_000_006, false)]);
        log.begin(2_000_000, EPOCH.parse().unwrap(), []);
        assert_eq!(subscription.next().await, Err(Cut::Anew(1_000_006)));
        assert_eq!(log.cut.load(Relaxed), 0, "it was not slow");
    }

    /// A subscriber must not wait until a shorter history has come as far as the history before.
    #[tokio::test]
    async fn c2_a_log_that_begins_anew_below_says_so() {
        let log = Arc::new(Log::new(0, EPOCH.parse().unwrap()));
        log.push((1..=30).map(|clock| message(clock, clock == 1)));
        let mut subscription = Subscription::after(Arc::clone(&log), 30.into());
        log.begin(0, EPOCH.parse().unwrap(), [message(1, true)]);
        assert_eq!(subscription.next().await, Err(Cut::Anew(30)));
        // A history that has come as far is not the same history either.
        let mut subscription = Subscription::after(Arc::clone(&log), 1.into());
        let other = Message { epoch: "00000000a1b2d".parse().unwrap(), ..message(1, true) };
        let next = Message { epoch: other.epoch, ..message(2, false) };
        log.begin(0, other.epoch, [other, next]);
        assert_eq!(subscription.next().await, Err(Cut::Anew(1)));
    }
}
