//! One call, from its head to its answer: is it gRPC, which method, who asks, by when, and the message.

use super::connection::Client;
use super::metrics::Method;
use super::reply::{Reply, Unread, message, not_grpc, refusal};
use super::{health, message as messages};
use crate::access::{Caller, Refusal, Scope};
use crate::listener::{Census, ticks};
use crate::ratelimit::{self, Purpose};
use http::header::{CONTENT_TYPE, HeaderMap};
use http::request::Parts;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate::panic_point;
use tidegate_wire::grpc::{Code, Message, Status, framed, read, timeout};

/// Answers one call and notes it.
pub(super) async fn answer(client: &Client, request: Request<Incoming>) -> Reply {
    panic_point("grpc");
    let door = &client.door;
    let started = door.gate.now();
    let (parts, body) = request.into_parts();
    if let Some(status) = is_no_call(&parts) {
        return not_grpc(status);
    }
    let (method, needs) = Method::of(parts.uri.path());
    let answered = match admit(client, needs, &parts.headers) {
        Ok(caller) => act(client, method, &caller, &parts, body).await,
        Err(status) => Err(status),
    };
    let code = answered.as_ref().map_or_else(|status| status.code, |_| Code::Ok);
    door.settings.metrics.note(method, code, door.gate.now().saturating_sub(started));
    let mut reply = answered.unwrap_or_else(|status| refusal(&status));
    let timeout = client.connection.idle_timeout(ticks(door.settings.write_timeout));
    reply.body_mut().watch(Unread { timeout, cut: client.cut.clone() });
    reply
}

/// What HTTP says to a request that is no call.
fn is_no_call(parts: &Parts) -> Option<StatusCode> {
    if parts.method != http::Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let kind = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let is_grpc =
        kind.strip_prefix(b"application/grpc").is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')));
    (!is_grpc).then_some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

/// Who calls, if it may: a method that needs a scope counts the connection for whoever has shown a token or a certificate.
fn admit(client: &Client, needs: Option<Scope>, headers: &HeaderMap) -> Result<Caller, Status> {
    let (door, peer) = (&client.door, client.connection.peer().ip());
    let Some(scope) = needs else { return Ok(Caller::address(peer)) };
    let caller = {
        let rules = door.settings.access.load();
        rules.admit_call(scope, headers, peer, &client.known, door.gate.now())?
    };
    let connections = &door.settings.metrics.connections;
    client.holder.count(connections, &caller).map_err(|taken| {
        let most = connections.caps().per_token;
        Status::new(
            Code::ResourceExhausted,
            format!("connections: {taken}, {most}; close some, and keep connections open between calls"),
        )
    })?;
    client.connection.note_admitted();
    Ok(caller)
}

async fn act(client: &Client, method: Method, caller: &Caller, parts: &Parts, body: Incoming) -> Result<Reply, Status> {
    let (door, within) = (&client.door, time_limit(&parts.headers)?);
    match method {
        Method::ShouldRateLimit => rate_limit(client, Purpose::Decide, caller, body, within).await,
        Method::CheckRateLimit => rate_limit(client, Purpose::Check, caller, body, within).await,
        Method::Report => rate_limit(client, Purpose::Report, caller, body, within).await,
        Method::HealthCheck => {
            let request = asked(client, &door.settings.metrics.waiting_for_health, caller, body, within).await?;
            health::check(door, &request).map(|response| message(framed(&response)))
        }
        Method::HealthWatch => {
            let request = asked(client, &door.settings.metrics.waiting_for_health, caller, body, within).await?;
            health::watch(client, &request)
        }
        Method::Unknown => {
            let path: String = parts.uri.path().chars().take(128).flat_map(char::escape_debug).collect();
            let text = format!("there is no method {path}; this server has {}", Method::known());
            Err(Status::new(Code::Unimplemented, text))
        }
    }
}

/// A call of the rate limit service.
async fn rate_limit(
    client: &Client,
    purpose: Purpose,
    caller: &Caller,
    body: Incoming,
    within: Option<Duration>,
) -> Result<Reply, Status> {
    let (door, came) = (&client.door, Instant::now());
    let settings = (&door.settings.ratelimit, &*door.settings.ratelimit_counters);
    let request = match asked(client, &door.settings.metrics.waiting, caller, body, within).await {
        // Long values of a client's fields make long messages: as an error, one such field would pass every limit of a proxy that fails open.
        Err(status) if status.code == Code::ResourceExhausted => {
            return Ok(message(framed(&ratelimit::unread(settings, &status.message))));
        }
        asked => asked?,
    };
    // A client that says how long it waits has begun to; for the others time begins when the question is there.
    let store_within = within.map_or(ENVOYS_TIMEOUT * 3 / 5, |within| (within * 3 / 5).saturating_sub(came.elapsed()));
    let response = ratelimit::answer(&door.gate, caller, settings, purpose, &request, store_within).await?;
    Ok(message(framed(&response)))
}

/// How long Envoy waits for an answer unless told otherwise. Three fifths of what a client waits are the store's; the rest is for the way.
const ENVOYS_TIMEOUT: Duration = Duration::from_millis(20);

/// The call's message.
async fn asked<M: Message + Default>(
    client: &Client,
    places: &Arc<Census>,
    caller: &Caller,
    mut body: Incoming,
    within: Option<Duration>,
) -> Result<M, Status> {
    let (longest, peer) = (client.door.settings.message_timeout, client.connection.peer().ip());
    let within = within.map_or(longest, |within| within.min(longest));
    let bytes = messages::read(places, (peer, caller), &mut body, within).await?;
    read(bytes)
}

/// How long the client waits for its answer.
fn time_limit(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(field) = headers.get("grpc-timeout") else { return Ok(None) };
    match timeout(field.as_bytes()) {
        Some(Duration::ZERO) => {
            Err(Status::new(Code::DeadlineExceeded, "grpc-timeout is 0: nobody waits for the answer"))
        }
        Some(within) => Ok(Some(within)),
        None => {
            let message = "grpc-timeout is 1 to 8 digits and one of H M S m u n, such as 20m for 20 milliseconds";
            Err(Status::new(Code::InvalidArgument, message))
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let code = if refusal.status == 401 { Code::Unauthenticated } else { Code::PermissionDenied };
        Status::new(code, refusal.detail)
    }
}
