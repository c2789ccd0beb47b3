//! The one message of a call: bounded in size and in time.

use super::MESSAGE_BYTES_MAX;
use crate::access::Caller;
use crate::budget::account;
use crate::http::body::discard;
use crate::http::bounds::BODY_DISCARD_MAX;
use crate::listener::{Account, Census, Place};
use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tidegate_wire::grpc::{Code, PREFIX_LEN, Status, message_len};
use tokio::time::timeout;

/// The message, without its prefix. One that came with the head, as nearly all do, is not copied, and takes neither a timer nor a place
/// among the calls that wait.
pub(super) async fn read(
    places: &Arc<Census>,
    (peer, caller): (IpAddr, &Caller),
    body: &mut Incoming,
    within: Duration,
) -> Result<Bytes, Status> {
    let mut reading = pin!(collect(body));
    if let Poll::Ready(outcome) = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
        return outcome;
    }
    let _place = enter(places, &account(peer, caller))?;
    timeout(within, reading).await.unwrap_or_else(|_| {
        let message = format!("the message did not come within {} ms; send it at once", within.as_millis());
        Err(Status::new(Code::DeadlineExceeded, message))
    })
}

/// A place among the calls that wait.
pub(super) fn enter(places: &Arc<Census>, account: &Account) -> Result<Place, Status> {
    places.enter(account).map_err(|taken| {
        let most = places.caps().all;
        let message = format!("calls that wait: {taken} ({most} in all); end some, and try again");
        Status::new(Code::Unavailable, message)
    })
}

/// How long a message that is not read, and not longer than 1 MiB, may go on coming: a client whose stream is reset while it sends may not see its answer.
const DISCARD_WITHIN: Duration = Duration::from_secs(1);

fn told_len([_, length @ ..]: [u8; PREFIX_LEN]) -> usize {
    usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX)
}

async fn collect(body: &mut Incoming) -> Result<Bytes, Status> {
    let mut came = Bytes::new();
    let mut joined = BytesMut::new();
    let mut length = None;
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|_| Status::new(Code::InvalidArgument, "the call broke off in its message"))?;
        let Ok(data) = frame.into_data() else { continue };
        if came.is_empty() && joined.is_empty() {
            came = data;
        } else {
            if joined.is_empty() {
                joined.extend_from_slice(&came);
            }
            joined.extend_from_slice(&data);
        }
        let so_far = if joined.is_empty() { &came[..] } else { &joined[..] };
        // As soon as there is a prefix: what is too long is not waited for.
        if let (None, Some(prefix)) = (length, so_far.first_chunk()) {
            let told = message_len(*prefix, MESSAGE_BYTES_MAX);
            if told.is_err() && told_len(*prefix) <= BODY_DISCARD_MAX {
                discard(body, DISCARD_WITHIN).await;
            }
            length = Some(told?);
        }
        if length.is_some_and(|length| so_far.len() > PREFIX_LEN + length) {
            return Err(Status::new(Code::Unimplemented, "the call has more than one message; this method takes one"));
        }
    }
    let mut whole = if joined.is_empty() { came } else { joined.freeze() };
    match length {
        Some(length) if whole.len() == PREFIX_LEN + length => {
            whole.advance(PREFIX_LEN);
            Ok(whole)
        }
        _ => Err(Status::new(Code::InvalidArgument, "the call ended before its message did")),
    }
}
