//! The STOMP door: event streams pushed over WebSocket, at `/ws` of the HTTP door.
//!
//! `handshake` turns an HTTP request into a WebSocket; `session` is one client from CONNECT to its end;
//! `subscription` brings a stream's messages into frames; `writer` brings frames to the socket and notices
//! who does not read; `time` is the topic of this server's time.
//! Invariant: what a client cannot take is its own affair: nobody else waits for it (promise C4).

pub(crate) mod handshake;
mod session;
mod subscription;
pub(crate) mod time;
mod words;
mod writer;

pub(crate) use session::serve;

use std::sync::Arc;
use tidegate_events::Streams;
use time::TimeTopic;
use tokio::sync::watch;

/// What all sessions share.
#[derive(Clone)]
pub(crate) struct House {
    pub(crate) streams: Arc<Streams>,
    pub(crate) time: Arc<TimeTopic>,
    /// True once the door is closing.
    pub(crate) closing: watch::Receiver<bool>,
}
