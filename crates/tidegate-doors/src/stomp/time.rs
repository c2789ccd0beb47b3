//! `/topic/time`: twenty times of this server, 50 ms apart, for clients that set their clocks by it.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tidegate::Gate;
use tokio::sync::broadcast;

/// Times of a round.
pub(crate) const FRAMES: u32 = 20;
/// Time between two of them.
pub(crate) const APART: Duration = Duration::from_millis(50);
/// More than all frames of a round: a subscriber that misses some has stopped reading.
const QUEUE: usize = 64;

/// The subscribers, and how many frames are still to come.
pub(crate) struct TimeTopic {
    gate: Gate,
    sender: broadcast::Sender<Bytes>,
    left: AtomicU32,
}

impl TimeTopic {
    pub(crate) fn new(gate: Gate) -> TimeTopic {
        TimeTopic { gate, sender: broadcast::Sender::new(QUEUE), left: AtomicU32::new(0) }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Bytes> {
        self.sender.subscribe()
    }

    /// Begins a round. One at a time: asked again, it begins anew.
    pub(crate) fn begin(self: &Arc<TimeTopic>) {
        if self.left.swap(FRAMES, Relaxed) > 0 {
            return;
        }
        let topic = Arc::clone(self);
        // It ends by itself after the last frame.
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(APART);
            loop {
                ticks.tick().await;
                let now_ms = topic.gate.now().get() / 1_000;
                // An error: there is no subscriber.
                let _ = topic.sender.send(now_ms.to_string().into());
                if topic.left.fetch_sub(1, Relaxed) == 1 {
                    return;
                }
            }
        });
    }
}
