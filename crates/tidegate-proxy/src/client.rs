//! One client's connection: its socket, what it does, and since when.
//!
//! The socket is shared between hyper, which reads and writes, and the request that waits in line,
//! which must know whether anybody is still there. Time limits need no timer: a sweep, about once a
//! second, looks at what each connection noted.

use crate::fields::Hop;
use crate::patience::Patience;
use crate::pool::Pool;
use crate::site::Site;
use crate::strict::Strict;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// A connection that a client opened.
pub(crate) struct Client {
    pub(crate) site: Arc<Site>,
    worker: usize,
    pub(crate) peer: IpAddr,
    pub(crate) hop: Hop,
    socket: Mutex<Socket>,
    /// Requests that are being answered.
    busy: AtomicU32,
    /// The tick at which it became idle, or began to send a head.
    since: AtomicU64,
    /// The tick since which it has not read what we write; 0: it reads.
    stalled: AtomicU64,
    order: AtomicU8,
    pub(crate) ordered: Notify,
}

struct Socket {
    stream: TcpStream,
    strict: Strict,
    /// After the last bytes that came: the time is noted when the first of a head come.
    was_in_head: bool,
}

/// What the proxy tells a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Nothing = 0,
    /// End after the answers under way.
    Finish = 1,
    /// End now.
    Cut = 2,
}

impl Client {
    pub(crate) fn new(site: Arc<Site>, worker: usize, peer: IpAddr, stream: TcpStream) -> Client {
        site.metrics.connections.fetch_add(1, Relaxed);
        let client = Client {
            worker,
            peer,
            hop: Hop::of(peer),
            socket: Mutex::new(Socket { stream, strict: Strict::default(), was_in_head: false }),
            busy: AtomicU32::new(0),
            since: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            order: AtomicU8::new(Order::Nothing as u8),
            ordered: Notify::new(),
            site,
        };
        client.note_time();
        client
    }

    /// The connections to the upstream that its thread has.
    pub(crate) fn pool(&self) -> &Pool {
        &self.site.pools.all[self.worker]
    }

    /// Patience of so many ticks.
    pub(crate) fn patience(&self, limit_ticks: u64) -> Patience {
        Patience::new(Arc::clone(&self.pool().alarms), limit_ticks)
    }

    /// Has it closed its side, or broken off? The kernel knows even while unread bytes stand before the end.
    pub(crate) fn has_left(&self) -> bool {
        let socket = self.socket();
        let mut fds = [PollFd::new(&socket.stream, PollFlags::RDHUP)];
        let asked = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        asked.is_ok() && fds[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// The first bytes that it sent, left where they are.
    pub(crate) async fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut bytes = ReadBuf::new(bytes);
        poll_fn(|cx| self.socket().stream.poll_peek(cx, &mut bytes)).await
    }

    /// What comes next on this connection is no HTTP/1.
    pub(crate) fn switch_protocol(&self) {
        self.socket().strict.switch_off();
    }

    pub(crate) fn give(&self, order: Order) {
        self.order.store(order as u8, Relaxed);
        self.ordered.notify_one();
    }

    pub(crate) fn must_cut(&self) -> bool {
        self.order.load(Relaxed) == Order::Cut as u8
    }

    /// Does it take longer than it may?
    pub(crate) fn overstays(&self) -> bool {
        let (now, limits) = (self.site.tick.load(Relaxed), self.site.tick_limits);
        let longer = |since: u64, limit: u64| now.saturating_sub(since) > limit;
        let stalled = self.stalled.load(Relaxed);
        if stalled > 0 && longer(stalled, limits.client) {
            return true;
        }
        if self.busy.load(Relaxed) > 0 {
            return false;
        }
        let limit = if self.socket().strict.is_in_head() { limits.head } else { limits.idle };
        longer(self.since.load(Relaxed), limit)
    }

    fn note_time(&self) {
        self.since.store(self.site.tick.load(Relaxed), Relaxed);
    }

    fn note_written<T>(&self, written: &Poll<T>) {
        if written.is_ready() {
            if self.stalled.load(Relaxed) > 0 {
                self.stalled.store(0, Relaxed);
            }
        } else if self.stalled.load(Relaxed) == 0 {
            self.stalled.store(self.site.tick.load(Relaxed).max(1), Relaxed);
        }
    }

    fn socket(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.site.metrics.connections.fetch_sub(1, Relaxed);
    }
}

/// A connection that is busy while this lives.
pub(crate) struct Busy(Arc<Client>);

impl Busy {
    pub(crate) fn new(client: Arc<Client>) -> Busy {
        client.busy.fetch_add(1, Relaxed);
        Busy(client)
    }
}

impl Deref for Busy {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.note_time();
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

/// Answers up to this size are copied together: for the kernel one piece is cheaper than several.
const SMALL: usize = 1024;

/// The connection as hyper sees it.
pub(crate) struct ClientIo(pub(crate) Arc<Client>);

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut socket = self.0.socket();
        let before = buf.filled().len();
        let polled = Pin::new(&mut socket.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            socket.strict.look(&mut buf.filled_mut()[before..]);
            let in_head = socket.strict.is_in_head();
            let was_in_head = std::mem::replace(&mut socket.was_in_head, in_head);
            if in_head && !was_in_head {
                self.0.note_time();
            }
        }
        polled
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.0.socket().stream).poll_write(cx, buf);
        self.0.note_written(&written);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.socket().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.socket().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        if length > SMALL {
            let written = Pin::new(&mut self.0.socket().stream).poll_write_vectored(cx, bufs);
            self.0.note_written(&written);
            return written;
        }
        let (mut small, mut at) = ([0; SMALL], 0);
        for buf in bufs {
            small[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        self.poll_write(cx, &small[..at])
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
