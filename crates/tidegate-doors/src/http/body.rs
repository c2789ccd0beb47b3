//! Request bodies: bounded in size and in time.

use super::bounds::BODY_DISCARD_MAX;
use super::problem::Problem;
use bytes::Bytes;
use http::header::EXPECT;
use http::request::Parts;
use http::{HeaderMap, Version};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

/// The whole body. One that came with the head, as nearly all do, is not copied.
pub(crate) async fn read(
    headers: &HeaderMap,
    mut body: Incoming,
    max: usize,
    within: Duration,
) -> Result<Bytes, Problem> {
    if body.size_hint().lower() > max as u64 {
        // A client that waits for "100 Continue" has sent nothing yet.
        if !headers.contains_key(EXPECT) {
            discard(&mut body, within).await;
        }
        return Err(too_large(max));
    }
    match collect_within(&mut body, max, within).await {
        Some(Ok(Collected::Whole(bytes))) => Ok(bytes),
        Some(Ok(Collected::TooLarge)) => {
            discard(&mut body, within).await;
            Err(too_large(max))
        }
        Some(Err(_)) => Err(Problem::new(400, "bad_body", "the body broke off or is not framed as HTTP says").close()),
        None => {
            let detail = format!("the body did not come within {} ms; send it at once", within.as_millis());
            Err(Problem::new(408, "body_timeout", detail).field("body").close())
        }
    }
}

/// Reads the body of a request of HTTP/2 that is refused, and throws it away: an answer to a request whose body nobody reads is followed by the
/// reset of its stream, and a client that is still sending may take that for all it gets.
pub(crate) async fn throw_away(parts: &Parts, mut body: Incoming, within: Duration) {
    let is_sent = !body.is_end_stream() && !parts.headers.contains_key(EXPECT);
    if parts.version == Version::HTTP_2 && is_sent {
        discard(&mut body, within).await;
    }
}

/// A timer is made only for a body that is not there yet.
async fn collect_within(body: &mut Incoming, max: usize, within: Duration) -> Option<Result<Collected, hyper::Error>> {
    let mut collecting = pin!(collect(body, max));
    match poll_fn(|cx| Poll::Ready(collecting.as_mut().poll(cx))).await {
        Poll::Ready(collected) => Some(collected),
        Poll::Pending => timeout(within, collecting).await.ok(),
    }
}

enum Collected {
    Whole(Bytes),
    TooLarge,
}

async fn collect(body: &mut Incoming, max: usize) -> Result<Collected, hyper::Error> {
    let mut whole = Bytes::new();
    let mut parts = Vec::new();
    // Not asked for more than it says it has.
    while !body.is_end_stream()
        && let Some(frame) = body.frame().await
    {
        let Ok(data) = frame?.into_data() else { continue };
        if whole.is_empty() && parts.is_empty() {
            whole = data;
            continue;
        }
        if parts.is_empty() {
            parts.extend_from_slice(&whole);
        }
        if parts.len() + data.len() > max {
            return Ok(Collected::TooLarge);
        }
        parts.extend_from_slice(&data);
    }
    let whole = if parts.is_empty() { whole } else { parts.into() };
    Ok(if whole.len() > max { Collected::TooLarge } else { Collected::Whole(whole) })
}

/// How long a body that will be refused is read, so that its sender gets to see the answer.
const DISCARD_TIME: Duration = Duration::from_secs(1);

async fn discard(body: &mut Incoming, within: Duration) {
    let mut left = BODY_DISCARD_MAX;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let read = frame.data_ref().map_or(0, Bytes::len);
            left = left.saturating_sub(read);
            if left == 0 {
                break;
            }
        }
    };
    // However it ends, the answer is the same; a client that only announced a body should not wait for it.
    let _ = timeout(within.min(DISCARD_TIME), reading).await;
}

fn too_large(max: usize) -> Problem {
    let detail =
        format!("the body has more than {max} bytes; a key has at most {}, so send less", tidegate::KEY_LEN_MAX);
    Problem::new(413, "body_too_large", detail).field("body").close()
}
