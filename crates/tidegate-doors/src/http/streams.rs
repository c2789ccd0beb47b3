//! `/v1/streams`: events in, what incubates, and the feed out.

use super::client::{Client, Upgrade};
use super::door::Door;
use super::feed::Feed;
use super::json::shorten;
use super::percent::{Plus, decode};
use super::problem::Problem;
use super::query;
use super::reply::{Reply, created_reply, feed_reply, json_reply, shared_json_reply, switching_reply};
use super::reply_body::ReplyBody;
use crate::access::{Caller, Scope, What};
use crate::budget::{Budget, Holder};
use crate::listener::{Place, Taken};
use crate::pace::Paced;
use crate::stomp::{SessionPlaces, handshake, time};
use http::HeaderMap;
use hyper::upgrade::OnUpgrade;
use std::sync::Arc;
use tidegate::Micros;
use tidegate_events::{Epoch, Mode, Outcome, Seen, Stream, SubmitError, Unavailable};

/// The streams that the caller may read, with their rules and how they stand.
pub(crate) fn list(door: &Door, caller: &Caller) -> Reply {
    json_reply(format!("{{\"streams\":{}}}", array(door, caller)))
}

pub(crate) fn array(door: &Door, caller: &Caller) -> String {
    let shown = |stream: &&Arc<Stream>| caller.may(Scope::Read, What::Stream(&stream.spec().name));
    let streams: Vec<String> = door.settings.streams.all().iter().filter(shown).map(|stream| listed(stream)).collect();
    format!("[{}]", streams.join(","))
}

fn listed(stream: &Stream) -> String {
    let (spec, counts) = (stream.spec(), stream.counts());
    format!(
        "{{\"name\":\"{}\",\"mode\":\"{}\",\"duration_ms\":{},\"snapshot_every_ms\":{},\"max_events\":{},\"events\":{},\"subscribers\":{},\"failing\":{}}}",
        spec.name,
        word(spec.rules.mode),
        spec.rules.duration_ms,
        spec.rules.snapshot_every_ms,
        spec.rules.max_events,
        stream.len(),
        counts.subscribers,
        stream.failure().is_some()
    )
}

fn word(mode: Mode) -> &'static str {
    match mode {
        Mode::OnlyOnce => "only-once",
        Mode::StrictlyOnce => "strictly-once",
    }
}

/// The stream of a path's piece.
pub(crate) fn named<'d>(door: &'d Door, piece: &str) -> Result<&'d Arc<Stream>, Problem> {
    let name = decode(piece, Plus::Plus, "stream")?;
    let name = String::from_utf8_lossy(&name);
    door.settings.streams.get(&name).ok_or_else(|| {
        let known: Vec<&str> =
            door.settings.streams.all().iter().map(|stream| stream.spec().name.as_str()).take(10).collect();
        let remedy = match known.as_slice() {
            [] => "the configuration has none; add a [[stream]]".to_owned(),
            known => format!("there are: {}", known.join(", ")),
        };
        let detail = format!("no stream is named \"{}\"; {remedy}", shorten(&name));
        Problem::new(404, "unknown_stream", detail).field("stream").value(shorten(&name))
    })
}

/// The first stream of a mode, if the caller may publish there.
pub(crate) fn first_of<'d>(door: &'d Door, caller: &Caller, mode: Mode) -> Result<&'d Arc<Stream>, Problem> {
    let word = word(mode);
    let stream = door.settings.streams.first_of(mode).ok_or_else(|| {
        let detail = format!("no stream has the mode {word}; add a [[stream]] with mode = \"{word}\"");
        Problem::new(404, "unknown_stream", detail)
    })?;
    caller.check(Scope::Publish, What::Stream(&stream.spec().name))?;
    Ok(stream)
}

/// Takes an event: 201, 409 with when the next attempt could succeed, 507 or 503.
pub(crate) async fn submit(door: &Door, stream: &Stream, event: &[u8]) -> Result<Reply, Problem> {
    let name = &stream.spec().name;
    match stream.submit(event).await {
        Ok(Outcome::Submitted { clock }) => {
            Ok(created_reply(format!("{{\"stream\":\"{name}\",\"status\":\"submitted\",\"clock\":{clock}}}")))
        }
        Ok(Outcome::Conflict { next }) => {
            let wait = next.saturating_sub(door.gate.now());
            let detail = format!(
                "the same event came less than {} ago; the next attempt could succeed in {} ms",
                Micros::from_millis(stream.spec().rules.duration_ms),
                wait.as_millis_ceil()
            );
            Err(Problem::new(409, "conflict", detail).retry_after(wait))
        }
        Ok(Outcome::Full { next }) => {
            let detail = format!(
                "stream \"{name}\" remembers {} events, the most; try again later, or raise its max_events",
                stream.spec().rules.max_events
            );
            Err(Problem::new(507, "full", detail).retry_after(next.saturating_sub(door.gate.now())))
        }
        Err(SubmitError::Event(message)) => Err(Problem::new(400, "bad_event", message).field("event")),
        Err(SubmitError::Unavailable { what, .. }) => {
            let detail = format!("{what}; whether the event was taken is not known; try again");
            Err(Problem::new(503, "unavailable", detail).retry_after(Micros::from_secs(1)))
        }
    }
}

/// The snapshot, as subscribers get it.
pub(crate) async fn get(door: &Door, piece: &str) -> Result<Reply, Problem> {
    let snapshot = named(door, piece)?.snapshot().await.map_err(unavailable)?;
    Ok(shared_json_reply(snapshot.body))
}

/// Server-sent events, from `Last-Event-ID` or `?from_clock=N&epoch=E` on.
pub(crate) async fn feed(
    client: &Arc<Client>,
    caller: Caller,
    piece: &str,
    text: Option<&str>,
    headers: &HeaderMap,
) -> Result<Reply, Problem> {
    let stream = named(&client.door, piece)?;
    let [clock, epoch] = query::read(text, ["from_clock", "epoch"])?;
    // A browser that comes back asks for the same address, with the id of the last message that it has since.
    let from = match (headers.get("last-event-id"), clock) {
        (Some(id), _) => Some(seen_by_id(id.as_bytes())?),
        (None, Some(clock)) => {
            let epoch = epoch.map(|epoch| epoch_value("epoch", &epoch)).transpose()?;
            Some(Seen { clock: clock_value("from_clock", &clock)?, epoch })
        }
        (None, None) => None,
    };
    let places = feed_places(client, &caller)?;
    let subscription = Paced::subscribe(stream, from).await.map_err(unavailable)?;
    Ok(feed_reply(ReplyBody::Feed(Box::new(Feed::new(client, caller, stream, subscription, places)))))
}

/// A feed is one of the connections that stay, and one of the subscriptions.
fn feed_places(client: &Client, caller: &Caller) -> Result<[Place; 2], Problem> {
    let budget = &client.door.budget;
    let lasting = lasting_place(client, caller)?;
    let subscription = budget.subscriptions.enter(&client.account(caller)).map_err(|taken| {
        let most = budget.limits.subscriptions;
        let detail =
            format!("subscriptions and feeds: {taken} ({most} in all); end some, or raise [limits] subscriptions");
        Problem::new(503, "too_many_subscriptions", detail).retry_after(Micros::from_secs(1))
    })?;
    Ok([lasting, subscription])
}

/// One of the connections that stay.
pub(crate) fn lasting_place(client: &Client, caller: &Caller) -> Result<Place, Problem> {
    let budget = &client.door.budget;
    budget.lasting.enter(&client.account(caller)).map_err(|taken| too_many_lasting(budget, taken))
}

fn too_many_lasting(budget: &Budget, taken: Taken) -> Problem {
    let (most, left) = (budget.lasting.caps().all, budget.limits.reserved());
    let detail = format!(
        "feeds and sessions: {taken} ({most} in all; {left} connections are for requests); end some, or raise [limits] connections"
    );
    Problem::new(503, "too_many_sessions", detail).retry_after(Micros::from_secs(1))
}

/// 503: the cause is for the log, not for clients.
fn unavailable(unavailable: Unavailable) -> Problem {
    let detail = format!("{}; nothing can be shown until it does; try again", unavailable.what);
    Problem::new(503, "unavailable", detail).retry_after(Micros::from_secs(1))
}

pub(crate) fn time_sync(door: &Door) -> Reply {
    door.time.begin();
    json_reply(format!("{{\"frames\":{},\"apart_ms\":{}}}", time::FRAMES, time::APART.as_millis()))
}

/// `/ws`: answers 101, and leaves the rest to the connection.
pub(crate) fn websocket(
    client: &Client,
    caller: Caller,
    headers: &HeaderMap,
    upgrade: Option<OnUpgrade>,
) -> Result<Reply, Problem> {
    let fields = handshake::accept(headers).map_err(|detail| Problem::new(426, "not_a_websocket", detail))?;
    let upgrade = upgrade.ok_or_else(|| Problem::new(426, "not_a_websocket", "this connection cannot be upgraded"))?;
    let places = session_places(client, &caller)?;
    client.go_over_to(Upgrade { on: upgrade, caller, places });
    Ok(switching_reply(fields))
}

/// A session is one of the connections that stay, and has no subscription yet.
fn session_places(client: &Client, caller: &Caller) -> Result<SessionPlaces, Problem> {
    let budget = &client.door.budget;
    let lasting = lasting_place(client, caller)?;
    let idle = budget.idle_sessions.enter(&client.account(caller)).map_err(|taken| {
        let most = budget.limits.idle_sessions;
        let detail = format!(
            "sessions without a subscription: {taken} ({most} in all); subscribe in those that are open or end them, or raise \
             [limits] idle_sessions"
        );
        Problem::new(503, "too_many_sessions", detail).retry_after(Micros::from_secs(1))
    })?;
    Ok(SessionPlaces { lasting, idle: Some(idle), holder: Holder::default() })
}

/// What an id of a feed stands for: the clock value, and the epoch behind a dash. Ids of servers that knew of no epochs are
/// clock values alone.
fn seen_by_id(id: &[u8]) -> Result<Seen, Problem> {
    let field = "Last-Event-ID";
    match id.iter().position(|byte| *byte == b'-') {
        Some(at) => {
            let epoch = epoch_value(field, &id[at + 1..])?;
            Ok(Seen { clock: clock_value(field, &id[..at])?, epoch: Some(epoch) })
        }
        None => Ok(clock_value(field, id)?.into()),
    }
}

fn epoch_value(field: &'static str, bytes: &[u8]) -> Result<Epoch, Problem> {
    let parsed = std::str::from_utf8(bytes).unwrap_or_default().parse();
    parsed.map_err(|error| {
        let problem = Problem::new(400, "bad_epoch", format!("{field}: {error}"));
        problem.field(field).value(super::percent::shown(bytes))
    })
}

fn clock_value(field: &'static str, bytes: &[u8]) -> Result<u64, Problem> {
    let number = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let detail = format!("{field} must be a clock value, the id of the last message that was seen");
        Problem::new(400, "bad_clock", detail).field(field).value(super::percent::shown(bytes))
    })
}
