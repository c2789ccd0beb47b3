//! `/topic/time`: twenty times of this server, 50 ms apart, for those who set their clocks by it.

use super::connections::Connection;
use super::reply::{Reply, json_reply};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::broadcast;

const FRAMES: u32 = 20;
const APART: Duration = Duration::from_millis(50);
/// More than all frames of a round: a subscriber that misses some has stopped reading.
const QUEUE: usize = 64;

/// Who listens, and how many frames are still to come.
pub(crate) struct TimeTopic {
    sender: broadcast::Sender<Bytes>,
    left: AtomicU32,
}

impl Default for TimeTopic {
    fn default() -> TimeTopic {
        TimeTopic { sender: broadcast::Sender::new(QUEUE), left: AtomicU32::new(0) }
    }
}

impl TimeTopic {
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Bytes> {
        self.sender.subscribe()
    }
}

pub(crate) fn answer(connection: &Arc<Connection>) -> Reply {
    begin(connection);
    json_reply(format!("{{\"frames\":{FRAMES},\"apart_ms\":{}}}", APART.as_millis()))
}

/// Begins a round. One round at a time: asked again, it begins anew.
pub(crate) fn begin(connection: &Arc<Connection>) {
    let door = Arc::clone(&connection.door);
    if door.time.left.swap(FRAMES, Relaxed) > 0 {
        return;
    }
    // It ends by itself after the last frame.
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(APART);
        loop {
            ticks.tick().await;
            let now_ms = door.gate.now().get() / 1_000;
            // Nobody listens: nobody is told.
            let _ = door.time.sender.send(now_ms.to_string().into());
            if door.time.left.fetch_sub(1, Relaxed) == 1 {
                return;
            }
        }
    });
}
