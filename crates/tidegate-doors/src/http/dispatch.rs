//! From a request to its response: bounds, route, action, metrics.

use super::access::admit;
use super::bounds::{BATCH_BODY_BYTES_MAX, BODY_BYTES_MAX, HEADER_BYTES_MAX, HEADER_FIELDS_MAX};
use super::client::Client;
use super::json::shorten;
use super::live::Live;
use super::operate::{self, Operation};
use super::problem::Problem;
use super::reply::{Reply, feed_reply, json_reply, text_reply};
use super::reply_body::ReplyBody;
use super::routes::{Action, Found, Part, ROUTES, Route, find};
use super::{
    allowed, body, cors, counting, dashboard, decisions, health, hit, hits, host, http2, keys, limiters, openapi,
    overrides, ratelimit, reserve, streams, top,
};
use crate::access::{Caller, Needs, Rules};
use crate::listener::Place;
use crate::metrics::Format;
use crate::turns::in_turns;
use http::request::Parts;
use hyper::Request;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use std::sync::Arc;
use tidegate::{Micros, panic_point};
use tidegate_events::Mode;

/// Answers one request and notes it. `place` is its own among the requests of HTTP/2, which is charged to whoever asks.
pub(crate) async fn dispatch(client: &Arc<Client>, request: Request<Incoming>, place: Option<&mut Place>) -> Reply {
    panic_point("http");
    let door = &*client.door;
    let started = door.gate.now();
    let (mut parts, body) = request.into_parts();
    let upgrade = parts.extensions.remove::<OnUpgrade>();
    let found = find(&parts.method, parts.uri.path());
    let (entered, page) = {
        let rules = door.settings.access.load();
        (enter(client, &rules, &parts, &found, started, place), cors::Page::of(&rules, &parts))
    };
    let (reply, caller) = match entered {
        Ok(Entered::Route(route, caller)) => {
            let act = act(client, route, &caller, &parts, &found, body, upgrade);
            // Decisions wait for nobody; all else takes turns, so that pages and listings cannot lock them out.
            let reply = match route.part {
                Part::Reserved => act.await,
                Part::Shared => Box::pin(in_turns(act)).await,
            };
            (reply, Some(caller))
        }
        Ok(Entered::Preflight(methods)) => (Ok(cors::preflight_reply(&parts, methods)), None),
        Err(problem) => {
            Box::pin(body::throw_away(&parts, body, door.settings.body_timeout)).await;
            (Err(problem), None)
        }
    };
    let mut reply = reply.unwrap_or_else(Problem::into_reply);
    client.bound(&mut reply, caller.as_ref()).unwrap_or_else(|problem| reply = problem.into_reply());
    if let Some(page) = page {
        page.open(&mut reply);
    }
    let index = if let Found::Route { index, .. } = found { Some(index) } else { None };
    door.metrics.note(index, reply.status().as_u16(), door.gate.now().saturating_sub(started));
    reply
}

/// What a request that may ask is.
enum Entered<'f> {
    Route(&'static Route, Caller),
    /// A browser's question whether a page may ask, for a path with these methods.
    Preflight(&'f str),
}

/// The route and the caller of a request, before anything is read or done.
fn enter<'f>(
    client: &Client,
    rules: &Arc<Rules>,
    parts: &Parts,
    found: &'f Found<'_>,
    now: Micros,
    place: Option<&mut Place>,
) -> Result<Entered<'f>, Problem> {
    check_head(parts)?;
    if let Found::Route { index, limiter, .. } = *found {
        let route = &ROUTES[index];
        host::check(parts, route.needs)?;
        let caller = admit(client, rules, route, parts, limiter, now)?;
        if let Some(place) = place {
            place.charge(&client.account(&caller)).map_err(http2::too_many)?;
        }
        return Ok(Entered::Route(route, caller));
    }
    host::check(parts, Needs::Nothing)?;
    match found {
        Found::OtherMethods(methods) if cors::is_preflight(parts) => {
            cors::check_preflight(rules, parts).map(|()| Entered::Preflight(methods))
        }
        _ => Err(nowhere(parts, found)),
    }
}

async fn act(
    client: &Arc<Client>,
    route: &Route,
    caller: &Caller,
    parts: &Parts,
    found: &Found<'_>,
    body: Incoming,
    upgrade: Option<OnUpgrade>,
) -> Result<Reply, Problem> {
    let (limiter, key) = if let Found::Route { limiter, key, .. } = *found { (limiter, key) } else { ("", "") };
    let door = &*client.door;
    let query = parts.uri.query();
    let max = if route.action == Action::Hits { BATCH_BODY_BYTES_MAX } else { BODY_BYTES_MAX };
    let body = body::read(&parts.headers, body, max, door.settings.body_timeout);
    match route.action {
        Action::Hit => hit::answer(door, caller, &body.await?).await,
        Action::Hits => hits::answer(door, caller, &body.await?).await,
        Action::Reserve => reserve::reserve(client, caller, &body.await?).await,
        Action::Commit => reserve::commit(door, limiter, &body.await?).await,
        Action::Cancel => reserve::cancel(door, limiter).await,
        Action::Allowed => allowed::answer(door, caller, query, &parts.headers).await,
        Action::RateLimit => ratelimit::answer(door, caller, &body.await?).await,
        Action::Limiters => Ok(limiters::list(door, caller)),
        Action::Limiter => limiters::get(door, limiter),
        Action::Enable => operate::run(client, caller, &parts.headers, Operation::Enable, limiter, key).await,
        Action::Disable => operate::run(client, caller, &parts.headers, Operation::Disable, limiter, key).await,
        Action::Keys => keys::list(door, limiter, query).await,
        Action::Top => top::answer(door, limiter, query),
        Action::UnblockAll => operate::run(client, caller, &parts.headers, Operation::UnblockAll, limiter, key).await,
        Action::Key => keys::peek(door, limiter, key, query).await,
        Action::Block => {
            let block = Operation::Block(keys::read_block(&body.await?)?);
            operate::run(client, caller, &parts.headers, block, limiter, key).await
        }
        Action::Unblock => operate::run(client, caller, &parts.headers, Operation::Unblock, limiter, key).await,
        Action::Override => {
            let limits = Operation::Override(overrides::read(&body.await?)?);
            operate::run(client, caller, &parts.headers, limits, limiter, key).await
        }
        Action::ClearOverride => {
            operate::run(client, caller, &parts.headers, Operation::ClearOverride, limiter, key).await
        }
        Action::Audit => operate::audit(client, query),
        Action::Decisions => decisions::answer(door, limiter, key, query),
        Action::Live => Ok(feed_reply(ReplyBody::Live(Box::new(Live::new(client, caller.clone())?)))),
        Action::Increment => counting::increment(door, limiter, key, &body.await?).await,
        Action::Analyze => counting::analyze(door, limiter, key).await,
        Action::Streams => Ok(streams::list(door, caller)),
        Action::Stream => streams::get(door, limiter).await,
        Action::Submit => streams::submit(door, streams::named(door, limiter)?, &body.await?).await,
        Action::Feed => streams::feed(client, caller.clone(), limiter, query, &parts.headers).await,
        Action::OnlyOnce => {
            let stream = streams::first_of(door, caller, Mode::OnlyOnce)?;
            streams::submit(door, stream, &body.await?).await
        }
        Action::StrictlyOnce => {
            let stream = streams::first_of(door, caller, Mode::StrictlyOnce)?;
            streams::submit(door, stream, &body.await?).await
        }
        Action::TimeSync => Ok(streams::time_sync(door)),
        Action::WebSocket => streams::websocket(client, caller.clone(), &parts.headers, upgrade),
        Action::Livez => Ok(json_reply("{\"status\":\"ok\"}".to_owned())),
        Action::Readyz => health::readyz(door),
        Action::Healthcheck => ratelimit::healthcheck(door),
        Action::Metrics => {
            let format = Format::of(&parts.headers);
            Ok(text_reply(format.content_type(), door.registry.text(format)))
        }
        Action::OpenApi => Ok(json_reply(openapi::text())),
        Action::Script => Ok(dashboard::script()),
        Action::Style => Ok(dashboard::style()),
        Action::Index if dashboard::is_wanted(&parts.headers) => Ok(dashboard::page()),
        Action::Index => Ok(text_reply("text/plain; charset=utf-8", index_page())),
    }
}

/// The head's size is known only after it was read; hyper's own, larger bounds come before.
fn check_head(parts: &Parts) -> Result<(), Problem> {
    let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let target = parts.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let bytes = fields.sum::<usize>() + target;
    if bytes <= HEADER_BYTES_MAX && parts.headers.len() <= HEADER_FIELDS_MAX {
        return Ok(());
    }
    let detail = format!(
        "the path and header fields have {bytes} bytes in {} fields; at most {HEADER_BYTES_MAX} bytes in {HEADER_FIELDS_MAX} fields are read",
        parts.headers.len()
    );
    Err(Problem::new(431, "headers_too_large", detail).close())
}

fn nowhere(parts: &Parts, found: &Found<'_>) -> Problem {
    let path = shorten(parts.uri.path());
    match found {
        Found::OtherMethods(methods) => {
            let detail = format!("{path} takes {methods}, not {}", shorten(parts.method.as_str()));
            Problem::new(405, "method_not_allowed", detail).allow(methods.clone())
        }
        _ => Problem::new(404, "not_found", format!("there is nothing at {path}; GET / lists what there is")),
    }
}

fn index_page() -> String {
    let mut text = format!("Tidegate {}\n\n", env!("CARGO_PKG_VERSION"));
    for route in &ROUTES {
        text.push_str(&format!("{:<7}{:<46} {}\n", route.method, route.template, route.does));
    }
    text
}
