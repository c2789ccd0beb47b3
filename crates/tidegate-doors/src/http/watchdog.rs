//! Time limits on connections, without a timer for each.
//!
//! A round once in a while counts a tick up and looks at every open connection; a connection only
//! notes the tick at which its phase began. That is one store a request, where a timer would be
//! armed and disarmed. The price: a limit may be overstayed by up to two ticks.

use super::connections::Connection;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Time between two rounds: an eighth of the shortest limit, within reason.
pub(crate) fn tick_length(limits: [Duration; 2]) -> Duration {
    let shortest = limits[0].min(limits[1]);
    (shortest / 8).clamp(Duration::from_millis(5), Duration::from_secs(1))
}

/// How many ticks a limit is, rounded up.
pub(crate) fn ticks(limit: Duration, tick: Duration) -> u64 {
    u64::try_from(limit.as_nanos().div_ceil(tick.as_nanos())).unwrap_or(u64::MAX)
}

/// A stream that tells its connection when bytes come in.
pub(crate) struct Watched {
    stream: TcpStream,
    connection: Arc<Connection>,
}

impl Watched {
    pub(crate) fn new(stream: TcpStream, connection: Arc<Connection>) -> Watched {
        Watched { stream, connection }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.connection.heard();
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
