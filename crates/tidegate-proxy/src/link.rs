//! One connection to the upstream, driven by the task of the request that has it.
//!
//! hyper wants a task for each connection; a second task would cost two wake-ups for every request. So the
//! request's own task drives it, and between requests nobody does: [`Link::is_usable`] looks once, before
//! it is used again, whether the upstream has closed it.

use crate::body::ClientBody;
use crate::upstream::Wire;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

/// A connection and the means to send on it.
pub(crate) struct Link {
    sender: SendRequest<ClientBody>,
    connection: hyper::client::conn::http1::Connection<TokioIo<Wire>, ClientBody>,
    has_ended: bool,
    /// Which upstream it leads to, counted up when the policy names another.
    pub(crate) generation: u64,
    _open: Open,
}

/// Counts a connection while it is open.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Most bytes of an answer's head, and of what is read ahead of a slow client.
const BUFFER_MAX: usize = 64 << 10;

impl Link {
    /// Speaks HTTP/1.1 over a wire; `open` counts the links that there are.
    pub(crate) async fn new(wire: Wire, generation: u64, open: &Arc<AtomicUsize>) -> hyper::Result<Link> {
        let mut http = http1::Builder::new();
        http.max_buf_size(BUFFER_MAX);
        let (sender, connection) = http.handshake(TokioIo::new(wire)).await?;
        open.fetch_add(1, Relaxed);
        Ok(Link { sender, connection, has_ended: false, generation, _open: Open(Arc::clone(open)) })
    }

    /// Sends a request and waits for the head of its answer.
    ///
    /// # Errors
    /// hyper's, when the connection or the client's body breaks.
    pub(crate) async fn send(&mut self, request: Request<ClientBody>) -> hyper::Result<Response<Incoming>> {
        let mut answer = std::pin::pin!(self.sender.try_send_request(request));
        let (connection, has_ended) = (&mut self.connection, &mut self.has_ended);
        let answer = poll_fn(|cx| {
            // First the connection: the answer comes through it.
            drive(connection, has_ended, cx);
            answer.as_mut().poll(cx)
        });
        answer.await.map_err(|error| error.into_error())
    }

    /// Lets the connection go on with what it can.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.connection, &mut self.has_ended, cx);
    }

    /// Can it take a request now?
    pub(crate) fn is_usable(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        !self.has_ended && self.sender.is_ready()
    }

    /// After a 101: what is left is the wire, and bytes that were read too far.
    pub(crate) fn into_wire(self) -> (Wire, bytes::Bytes) {
        let parts = self.connection.into_parts();
        (parts.io.into_inner(), parts.read_buf)
    }
}

fn drive(connection: &mut http1::Connection<TokioIo<Wire>, ClientBody>, has_ended: &mut bool, cx: &mut Context<'_>) {
    // How it ended is told to the request that was under way, if any was.
    if !*has_ended && let Poll::Ready(_) = connection.poll_without_shutdown(cx) {
        *has_ended = true;
    }
}
