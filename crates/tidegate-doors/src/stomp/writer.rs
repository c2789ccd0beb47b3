//! The writing half of a session: a bounded queue, heart-beats, and an eye on clients that do not read.

use super::words;
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Chunks that wait for the socket. A subscription's chunk has about 64 KiB; a key frame is one chunk.
pub(super) const QUEUE: usize = 8;
/// A client that takes no byte for so long, while there are some for it, is stalled.
const STALL: Duration = Duration::from_secs(10);
/// How long a client may take to read why it is cut.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(10);
/// As good as never.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

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
    let mut beat = NEVER;
    loop {
        let written = match timeout(beat, queue.recv()).await {
            Err(_) => write(&mut io, vec![words::heart_beat()]).await,
            Ok(Some(Out::Parts(parts))) => write(&mut io, parts).await,
            Ok(Some(Out::Beat(every))) => {
                beat = every;
                continue;
            }
            Ok(Some(Out::Last(last))) => return end(&mut io, vec![last]).await,
            Ok(None) => return,
        };
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
