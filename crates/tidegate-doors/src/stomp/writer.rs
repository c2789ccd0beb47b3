//! The writing half of a session: a bounded queue, heart-beats, and an eye on clients that do not read.

use super::words;
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

/// Chunks that wait for the socket. A subscription's chunk has about 64 KiB; a key frame is one chunk.
pub(super) const QUEUE: usize = 8;
/// A client that takes no byte for so long, while there are some for it, is stalled.
const STALL: Duration = Duration::from_secs(10);
/// How long a client may take to read why it is cut.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(10);

/// What is to be written.
pub(super) enum Out {
    /// Bytes, in parts that are shared with others.
    Parts(Vec<Bytes>),
    /// Bytes after which nothing comes.
    Last(Bytes),
    /// From now on something at least this often.
    Beat(Duration),
}

/// Writes until the queue ends, the socket fails, or the last words are said.
pub(super) async fn run(mut io: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Out>) {
    let mut beat = Beat::default();
    loop {
        let written = match beat.or(queue.recv()).await {
            None => write(&mut io, vec![words::heart_beat()]).await,
            Some(Some(Out::Parts(parts))) => write(&mut io, parts).await,
            Some(Some(Out::Beat(every))) => {
                beat = Beat { every: Some(every), last: Instant::now() };
                continue;
            }
            Some(Some(Out::Last(last))) => return end(&mut io, vec![last]).await,
            Some(None) => return,
        };
        beat.last = Instant::now();
        match written {
            Ok(()) => {}
            Err(Failed::Stalled(mut rest)) => {
                let seconds = STALL.as_secs();
                let detail =
                    format!("nothing was read for {seconds} s; read faster, and subscribe again with from-clock");
                rest.push(words::last("too slow", &detail, None, 1008));
                return end(&mut io, rest).await;
            }
            Err(Failed::Gone) => return,
        }
    }
}

/// When something must be said again, if heart-beats were agreed on.
struct Beat {
    every: Option<Duration>,
    last: Instant,
}

impl Default for Beat {
    fn default() -> Beat {
        Beat { every: None, last: Instant::now() }
    }
}

impl Beat {
    /// What comes first: the work, or (`None`) the time for a heart-beat. Without heart-beats there is no timer.
    async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match self.every {
            Some(every) => timeout_at(self.last + every, work).await.ok(),
            None => Some(work.await),
        }
    }
}

enum Failed {
    /// What was not written yet.
    Stalled(Vec<Bytes>),
    Gone,
}

async fn write(io: &mut (impl AsyncWrite + Unpin), mut parts: Vec<Bytes>) -> Result<(), Failed> {
    for at in 0..parts.len() {
        while !parts[at].is_empty() {
            match timeout(STALL, io.write(&parts[at])).await {
                Err(_) => return Err(Failed::Stalled(parts.split_off(at))),
                Ok(Ok(written @ 1..)) => drop(parts[at].split_to(written)),
                Ok(_) => return Err(Failed::Gone),
            }
        }
    }
    io.flush().await.map_err(|_| Failed::Gone)
}

/// Says the last words, and closes; a client that still does not read is left to itself.
async fn end(io: &mut (impl AsyncWrite + Unpin), parts: Vec<Bytes>) {
    let farewell = async {
        for part in &parts {
            io.write_all(part).await?;
        }
        io.flush().await?;
        io.shutdown().await?;
        io::Result::Ok(())
    };
    let _ = timeout(LAST_WORDS, farewell).await;
}
