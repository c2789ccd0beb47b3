//! The pace at which a subscriber is sent messages: deltas at once, a key frame alone a little later.
//!
//! A key frame comes to all subscribers at the same moment and is many times as large as a delta; writing a
//! thousand of them at once would make the next deltas late (promise E3). No subscriber is in a hurry for one: a subscriber
//! that is in sync knows its contents. So a key frame waits for the next delta and goes out with it in one write, or for this
//! subscriber's turn, if there is none. Turns are spread evenly, and the same every time: the time between two key
//! frames is what the stream's rules say, for each subscriber. The order of the clock is never changed.

use std::sync::Arc;
use std::time::Duration;
use tidegate_events::{Cut, Message, Seen, Stream, Subscription, Unavailable};
use tokio::time::timeout;

/// Longest time that a key frame waits; half the time between two, if that is shorter.
const SPREAD_MAX: Duration = Duration::from_secs(1);

/// A subscription that is read at this pace.
pub(crate) struct Paced {
    subscription: Subscription,
    turn: Duration,
    /// Messages taken from the log, and not sent yet.
    held: Vec<Message>,
}

impl Paced {
    /// # Errors
    /// When the stream cannot be read now.
    pub(crate) async fn subscribe(stream: &Arc<Stream>, from: Option<Seen>) -> Result<Paced, Unavailable> {
        let subscription = stream.subscribe(from).await?;
        let every = Duration::from_millis(stream.spec().rules.snapshot_every_ms);
        let turn = turn(subscription.place(), SPREAD_MAX.min(every / 2));
        Ok(Paced { subscription, turn, held: Vec::new() })
    }

    /// The next messages, at least one; waits for it. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// When the subscriber was too slow, or there will be no more messages.
    pub(crate) async fn next(&mut self) -> Result<Vec<Message>, Cut> {
        if self.held.is_empty() {
            let before = self.subscription.clock();
            self.held = self.subscription.next().await?;
            // The snapshot to begin with has no clock value of its own.
            let may_wait = self.subscription.clock() > before && self.held.iter().all(|message| message.is_key_frame);
            if may_wait && let Ok(more) = timeout(self.turn, self.subscription.next()).await {
                self.held.extend(more?);
            }
        }
        Ok(std::mem::take(&mut self.held))
    }
}

/// Spreads neighbours far apart, however many there are: multiples of the golden ratio.
fn turn(place: u64, spread: Duration) -> Duration {
    let fraction = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Duration::from_nanos(u64::try_from((u128::from(fraction) * spread.as_nanos()) >> 32).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_turns_are_spread_evenly() {
        let mut in_each = [0; 50];
        for place in 0..1_000 {
            let turn = turn(place, Duration::from_secs(1));
            in_each[usize::try_from(turn.as_millis() / 20).unwrap()] += 1;
        }
        assert!(in_each.iter().all(|count| (17..=23).contains(count)), "{in_each:?}");
    }
}
