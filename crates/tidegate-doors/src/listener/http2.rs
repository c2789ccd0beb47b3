//! HTTP/2 of every door: its bounds, in one place.

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioTimer};
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

/// How HTTP/2 is spoken, with heads of up to so many bytes.
#[must_use]
pub fn http2(head_bytes_max: u32) -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
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
    http
}
