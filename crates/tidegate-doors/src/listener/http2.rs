//! HTTP/2 of every door: its bounds, in one place, and how its requests are run.
//!
//! What came on a connection in one read is answered in one write. A task for each request would not do that: tokio runs a task that was
//! woken before those that wait, and each answer wakes its connection, which would write it alone: four system calls instead of one.
//! So requests are begun by their connection's task, all that have come before it writes again; nearly all are answered by then. One that has
//! to wait gets a task of its own.

use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper_util::rt::TokioTimer;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Requests at once on one connection.
pub const STREAMS_MAX: u32 = 100;
/// Bytes that may come on a stream, and on a connection, before anybody reads them.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
/// Requests that a client may take back before they were looked at, and errors that it may make; past either the connection ends.
/// Taking back is as cheap as asking; what it would make us do is not.
const RESETS_MAX: usize = 20;
/// A peer that is gone without a word is noticed after this, and so long.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(20);

/// How one connection of HTTP/2 is spoken, with heads of up to so many bytes; its requests are begun by [`Http2`].
#[must_use]
pub fn http2(head_bytes_max: u32) -> (http2::Builder<Requests>, Requests) {
    let requests = Requests::default();
    let mut http = http2::Builder::new(requests.clone());
    http.timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(CONNECTION_WINDOW as usize)
        .max_header_list_size(head_bytes_max);
    (http, requests)
}

/// The requests of one connection that have come and are not begun yet.
#[derive(Clone, Default)]
pub struct Requests(Arc<Mutex<Vec<Answering>>>);

type Answering = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<Work: Future<Output = ()> + Send + 'static> Executor<Work> for Requests {
    fn execute(&self, answering: Work) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(answering));
    }
}

impl Requests {
    /// Begins all of them, in the order in which they came.
    fn begin(&self) {
        let came = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for mut answering in came {
            // The task that it gets, if it has to wait, asks it once more, with a waker of its own.
            if answering.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                tokio::spawn(answering);
            }
        }
    }
}

/// A connection with its requests.
pub struct Http2<'c, Serving> {
    serving: Pin<&'c mut Serving>,
    requests: Requests,
}

impl<'c, Serving> Http2<'c, Serving> {
    /// `serving` by the builder that came with `requests`.
    #[must_use]
    pub fn new(serving: Pin<&'c mut Serving>, requests: Requests) -> Http2<'c, Serving> {
        Http2 { serving, requests }
    }

    /// The connection alone.
    pub fn serving(&mut self) -> Pin<&mut Serving> {
        self.serving.as_mut()
    }
}

impl<Serving: Future> Future for Http2<'_, Serving> {
    type Output = Serving::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Serving::Output> {
        let polled = self.serving().poll(cx);
        // Their answers wake the connection. Requests that came before its end are charged as those of any other connection.
        self.requests.begin();
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{Empty, Full};
    use hyper::client::conn::http2 as client;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use std::convert::Infallible;
    use std::io;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

    /// Bytes in memory, and how often they were written to.
    struct Counted(DuplexStream, Arc<AtomicUsize>);

    impl AsyncRead for Counted {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Counted {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.1.fetch_add(1, Relaxed);
            Pin::new(&mut self.0).poll_write(cx, buf)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    /// With a task for each request there were as many writes as answers.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn requests_that_came_together_are_answered_together() {
        const REQUESTS: usize = 50;
        let writes = Arc::new(AtomicUsize::new(0));
        let (near, far) = tokio::io::duplex(1 << 20);
        let io = TokioIo::new(Counted(near, Arc::clone(&writes)));
        let serving = tokio::spawn(async move {
            let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
                if request.uri().path() == "/slow" {
                    tokio::task::yield_now().await;
                }
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"answer"))))
            });
            let (http, requests) = http2(16 << 10);
            let serving = pin!(http.serve_connection(io, service));
            Http2::new(serving, requests).await
        });
        let (mut sender, connection) = client::handshake(TokioExecutor::new(), TokioIo::new(far)).await.unwrap();
        let client = tokio::spawn(connection);
        for path in ["/fast", "/slow"] {
            let request = || Request::get(format!("http://door{path}")).body(Empty::<Bytes>::new()).unwrap();
            sender.send_request(request()).await.unwrap();
            let before = writes.load(Relaxed);
            let answers: Vec<_> = (0..REQUESTS).map(|_| sender.send_request(request())).collect();
            for answer in answers {
                assert_eq!(answer.await.unwrap().status(), 200, "{path}");
            }
            let taken = writes.load(Relaxed) - before;
            assert!(path == "/slow" || taken <= REQUESTS / 5, "{taken} writes for {REQUESTS} answers of {path}");
        }
        drop(sender);
        client.await.unwrap().unwrap();
        serving.await.unwrap().unwrap();
    }
}
