//! The writing half of a session: its subscriptions write to the socket themselves, one after another.
//!
//! There is no queue and no task between a subscription and the socket: what a subscriber has not read yet
//! lies in its stream's log, and waking a second task would cost as much as the write.
//!
//! The lock is the subscriptions' turn at their client's socket, and is held while one of them waits for the client to read: frames
//! must not mix. It is an asynchronous one, so that no thread waits, and only the client's own subscriptions ever do. The listener ends
//! the wait when the client does not read.
//! Invariant: frames are whole. A writer that is dropped half-way leaves its rest here, and it goes out first.

use super::words;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

/// How long a client may take to read why it is cut.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Most parts of one write.
const PARTS_MAX: usize = 16;

/// A socket that several tasks write to.
pub(super) struct Writer<W>(Mutex<Half<W>>);

struct Half<W> {
    io: W,
    unwritten: VecDeque<Bytes>,
    /// When something was written last.
    last: Instant,
}

/// Nothing more can be written: the client is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gone;

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(super) fn new(io: W) -> Writer<W> {
        Writer(Mutex::new(Half { io, unwritten: VecDeque::new(), last: Instant::now() }))
    }

    /// Writes these parts, and whatever another has left.
    pub(super) async fn write(&self, parts: impl IntoIterator<Item = Bytes>) -> Result<(), Gone> {
        self.take().await.write(parts).await
    }

    /// Waits until no other writes. What is to be written is best made then: a hundred subscriptions of a client that does not read
    /// would otherwise keep a hundred texts.
    pub(super) async fn take(&self) -> Taken<'_, W> {
        Taken(self.0.lock().await)
    }

    /// Writes a heart-beat unless there was something within that time, or is now. Gives when it is to be asked
    /// again.
    pub(super) async fn beat(&self, every: Duration) -> Result<Instant, Gone> {
        let Ok(mut half) = self.0.try_lock() else { return Ok(Instant::now() + every) };
        if half.last.elapsed() >= every {
            half.unwritten.push_back(words::heart_beat());
            half.flush().await?;
        }
        Ok(half.last + every)
    }

    /// Says the last words, and closes; a client that still does not read is left to itself.
    pub(super) async fn end(&self, last: Bytes) {
        let farewell = async {
            let mut half = self.0.lock().await;
            half.unwritten.push_back(last);
            while !half.unwritten.is_empty() {
                half.write_some().await?;
            }
            half.io.flush().await?;
            half.io.shutdown().await
        };
        let _ = timeout(LAST_WORDS, farewell).await;
    }
}

/// The socket, while no other writes.
pub(super) struct Taken<'w, W>(MutexGuard<'w, Half<W>>);

impl<W: AsyncWrite + Unpin> Taken<'_, W> {
    /// Writes these parts, after whatever another has left.
    pub(super) async fn write(mut self, parts: impl IntoIterator<Item = Bytes>) -> Result<(), Gone> {
        self.0.unwritten.extend(parts);
        self.0.flush().await
    }
}

impl<W: AsyncWrite + Unpin> Half<W> {
    async fn flush(&mut self) -> Result<(), Gone> {
        while !self.unwritten.is_empty() {
            self.write_some().await.map_err(|_| Gone)?;
        }
        self.last = Instant::now();
        self.io.flush().await.map_err(|_| Gone)
    }

    /// One write. Dropped before its end, it has written nothing.
    async fn write_some(&mut self) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); PARTS_MAX];
        for (slice, part) in slices.iter_mut().zip(&self.unwritten) {
            *slice = IoSlice::new(part);
        }
        let count = self.unwritten.len().min(PARTS_MAX);
        let mut written = self.io.write_vectored(&slices[..count]).await?;
        if written == 0 && !self.unwritten.iter().all(Bytes::is_empty) {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while let Some(part) = self.unwritten.front_mut() {
            if written < part.len() {
                drop(part.split_to(written));
                break;
            }
            written -= part.len();
            self.unwritten.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    fn parts(texts: &[&'static str]) -> Vec<Bytes> {
        texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect()
    }

    #[tokio::test]
    async fn what_a_dropped_writer_left_goes_out_first() {
        let (near, mut far) = tokio::io::duplex(4);
        let writer = Writer::new(near);
        let half_way = timeout(Duration::from_millis(10), writer.write(parts(&["one ", "", "two "]))).await;
        assert!(half_way.is_err(), "the other side has not read");
        let mut heard = String::new();
        let (written, _) = tokio::join!(
            async {
                writer.write(parts(&["three"])).await.unwrap();
                writer.end(Bytes::from_static(b".")).await;
            },
            far.read_to_string(&mut heard)
        );
        assert_eq!((written, heard.as_str()), ((), "one two three."));
    }

    #[tokio::test]
    async fn a_client_that_is_gone_is_noticed() {
        let (near, far) = tokio::io::duplex(4);
        drop(far);
        assert_eq!(Writer::new(near).write(parts(&["x"])).await, Err(Gone));
    }

    #[tokio::test(start_paused = true)]
    async fn heart_beats_fill_silences_only() {
        let (near, mut far) = tokio::io::duplex(64);
        let (writer, second) = (Writer::new(near), Duration::from_secs(1));
        writer.write(parts(&["x"])).await.unwrap();
        let written = Instant::now();
        tokio::time::advance(second / 2).await;
        assert_eq!(writer.beat(second).await, Ok(written + second), "there was something half a second ago");
        tokio::time::advance(second / 2).await;
        assert_eq!(writer.beat(second).await, Ok(written + 2 * second));
        let mut heard = [0; 4];
        far.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard[..], [b"x", &words::heart_beat()[..]].concat());
    }
}
