//! Every path of the door, as one table: the router, the access rules, the metrics' labels, the index page and the
//! check of the OpenAPI text all read it.

use crate::access::Needs::{self, Nothing, Session};
use crate::access::Scope::{Check, Count, Operate, Publish, Read, Subscribe};
use Part::{Reserved, Shared};
use http::Method;

/// What a route does; the file of the same name says how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Hit,
    Hits,
    Reserve,
    Commit,
    Cancel,
    Allowed,
    RateLimit,
    Limiters,
    Limiter,
    Enable,
    Disable,
    Keys,
    Top,
    UnblockAll,
    Key,
    Block,
    Unblock,
    Override,
    ClearOverride,
    Decisions,
    Increment,
    Analyze,
    Live,
    Audit,
    Streams,
    Stream,
    Submit,
    Feed,
    OnlyOnce,
    StrictlyOnce,
    TimeSync,
    WebSocket,
    Livez,
    Readyz,
    Healthcheck,
    Metrics,
    OpenApi,
    Script,
    Style,
    Index,
}

/// Which part of the processors answers a route. Every route says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// The one that is kept for decisions: somebody waits with a user's request in hand, or asks whether there is a server at all.
    Reserved,
    /// The other, in turns.
    Shared,
}

/// A method and a path; `{limiter}` (or `{stream}`, `{reservation}`) and `{key}` stand for one segment each.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    pub(crate) template: &'static str,
    /// What it asks of its caller: a scope, or nothing.
    pub(crate) needs: Needs,
    pub(crate) part: Part,
    pub(crate) action: Action,
    pub(crate) does: &'static str,
}

const fn route(
    method: &'static str,
    template: &'static str,
    needs: Needs,
    part: Part,
    action: Action,
    does: &'static str,
) -> Route {
    Route { method, template, needs, part, action, does }
}

pub(crate) const ROUTE_COUNT: usize = 40;

/// The most asked first.
#[rustfmt::skip]
pub(crate) static ROUTES: [Route; ROUTE_COUNT] = [
    route("POST",   "/v1/hit", Needs::Scope(Check), Reserved, Action::Hit, "may this happen now? {\"limiter\",\"key\"} or {\"domain\",\"attributes\"}"),
    route("POST",   "/v1/hits", Needs::Scope(Check), Reserved, Action::Hits, "many at once: {\"requests\":[as /v1/hit],\"together\":false}"),
    route("POST",   "/v1/reserve", Needs::Scope(Check), Reserved, Action::Reserve, "a charge that can be given back: {\"limiter\",\"key\",\"cost\",\"for\":\"30s\"}"),
    route("POST",   "/v1/reservations/{reservation}/commit", Needs::Scope(Check), Reserved, Action::Commit, "its real cost: {\"cost\":3}"),
    route("DELETE", "/v1/reservations/{reservation}", Needs::Scope(Check), Reserved, Action::Cancel, "give all of it back"),
    route("GET",    "/v1/allowed", Needs::Scope(Check), Reserved, Action::Allowed, "the same as a query: ?user=U&ip=I[&domain=D][&deny_status=403], or user_header=FIELD"),
    route("POST",   "/json", Needs::Scope(Check), Reserved, Action::RateLimit, "Envoy's rate limit request as JSON: {\"domain\",\"descriptors\"}"),
    route("GET",    "/v1/limiters", Needs::Scope(Read), Shared, Action::Limiters, "all limiters"),
    route("GET",    "/v1/limiters/{limiter}", Needs::Scope(Read), Shared, Action::Limiter, "one limiter"),
    route("POST",   "/v1/limiters/{limiter}/enable", Needs::Scope(Operate), Shared, Action::Enable, "limits apply"),
    route("POST",   "/v1/limiters/{limiter}/disable", Needs::Scope(Operate), Shared, Action::Disable, "everything is allowed and nothing counted"),
    route("GET",    "/v1/limiters/{limiter}/keys", Needs::Scope(Read), Shared, Action::Keys, "its keys: ?state=tracked|blocked|overridden[&most=N][&after=CURSOR]"),
    route("GET",    "/v1/limiters/{limiter}/top", Needs::Scope(Read), Shared, Action::Top, "the keys that come first: ?by=hits|denials|blocked[&n=20]"),
    route("DELETE", "/v1/limiters/{limiter}/blocks", Needs::Scope(Operate), Shared, Action::UnblockAll, "unblock all its keys"),
    route("GET",    "/v1/limiters/{limiter}/keys/{key}", Needs::Scope(Read), Shared, Action::Key, "peek, with an explanation"),
    route("PUT",    "/v1/limiters/{limiter}/keys/{key}/block", Needs::Scope(Operate), Shared, Action::Block, "block: {\"for\":\"10m\"}"),
    route("DELETE", "/v1/limiters/{limiter}/keys/{key}/block", Needs::Scope(Operate), Shared, Action::Unblock, "unblock"),
    route("PUT",    "/v1/limiters/{limiter}/keys/{key}/limits", Needs::Scope(Operate), Shared, Action::Override, "other limits for one key: {\"limits\":[\"100 per minute\"],\"for\":\"1h\",\"reason\":\"…\"}"),
    route("DELETE", "/v1/limiters/{limiter}/keys/{key}/limits", Needs::Scope(Operate), Shared, Action::ClearOverride, "the limiter's own again"),
    route("GET",    "/v1/limiters/{limiter}/keys/{key}/decisions", Needs::Scope(Read), Shared, Action::Decisions, "its latest decisions: [?n=20] (last_decisions)"),
    route("POST",   "/v1/limiters/{limiter}/keys/{key}/increment", Needs::Scope(Count), Reserved, Action::Increment, "count: {\"count\":1,\"timestamp\":SECONDS} (buckets)"),
    route("POST",   "/v1/limiters/{limiter}/keys/{key}/analyze", Needs::Scope(Count), Reserved, Action::Analyze, "has it reached a limit? then it is blocked (buckets)"),
    route("GET",    "/v1/live", Needs::Scope(Read), Shared, Action::Live, "how everything stands, once a second, as server-sent events"),
    route("GET",    "/v1/audit", Needs::Scope(Read), Shared, Action::Audit, "who changed what, newest first: ?most=N[&before=NUMBER]"),
    route("GET",    "/v1/streams", Needs::Scope(Read), Shared, Action::Streams, "all streams"),
    route("POST",   "/v1/streams/{stream}/events", Needs::Scope(Publish), Shared, Action::Submit, "an event, as raw text"),
    route("GET",    "/v1/streams/{stream}", Needs::Scope(Read), Shared, Action::Stream, "the events that incubate, at a clock value"),
    route("GET",    "/v1/streams/{stream}/feed", Needs::Scope(Subscribe), Shared, Action::Feed, "its messages as server-sent events"),
    route("POST",   "/only-once-event", Needs::Scope(Publish), Shared, Action::OnlyOnce, "an event for the first stream of that mode"),
    route("POST",   "/strictly-once-event", Needs::Scope(Publish), Shared, Action::StrictlyOnce, "an event for the first stream of that mode"),
    route("POST",   "/time-sync", Needs::Scope(Publish), Shared, Action::TimeSync, "20 times on /topic/time, 50 ms apart"),
    route("GET",    "/ws", Session, Shared, Action::WebSocket, "STOMP 1.2 over WebSocket: /topic/STREAM, /app/STREAM, /topic/time"),
    route("GET",    "/livez", Nothing, Reserved, Action::Livez, "the process lives"),
    route("GET",    "/readyz", Nothing, Reserved, Action::Readyz, "it takes requests"),
    route("GET",    "/healthcheck", Nothing, Reserved, Action::Healthcheck, "the same as text, as envoyproxy/ratelimit has it"),
    route("GET",    "/metrics", Needs::Scope(Read), Shared, Action::Metrics, "Prometheus"),
    route("GET",    "/openapi.json", Nothing, Shared, Action::OpenApi, "all of this as OpenAPI 3.1"),
    route("GET",    "/dashboard.js", Nothing, Shared, Action::Script, "the dashboard's script"),
    route("GET",    "/dashboard.css", Nothing, Shared, Action::Style, "the dashboard's style"),
    route("GET",    "/", Nothing, Shared, Action::Index, "this page; in a browser: the dashboard"),
];

/// What a method and a path lead to. `limiter` (or the stream) and `key` are still percent-encoded.
#[derive(Debug, PartialEq)]
pub(crate) enum Found<'p> {
    Route {
        index: usize,
        limiter: &'p str,
        key: &'p str,
    },
    /// The path is there; these are its methods.
    OtherMethods(String),
    Nothing,
}

/// Looks a request up. HEAD is a GET whose body hyper leaves out.
pub(crate) fn find<'p>(method: &Method, path: &'p str) -> Found<'p> {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let mut others = Vec::new();
    for (index, route) in ROUTES.iter().enumerate() {
        match matches(route.template, path) {
            Some([limiter, key]) if route.method == method => return Found::Route { index, limiter, key },
            Some(_) => others.push(route.method),
            None => {}
        }
    }
    if others.contains(&"GET") {
        others.push("HEAD");
    }
    if others.is_empty() { Found::Nothing } else { Found::OtherMethods(others.join(", ")) }
}

/// The limiter and key of the path, if it is of this shape.
fn matches<'p>(template: &str, path: &'p str) -> Option<[&'p str; 2]> {
    if !template.contains('{') {
        return (template == path).then_some(["", ""]);
    }
    let mut found = ["", ""];
    let mut pieces = path.split('/');
    for expected in template.split('/') {
        let piece = pieces.next()?;
        match expected {
            "{limiter}" | "{stream}" | "{reservation}" => found[0] = piece,
            "{key}" => found[1] = piece,
            _ if expected == piece => {}
            _ => return None,
        }
    }
    pieces.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, path: &str, expected: Result<(&str, &str, &str), &str>) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        match (find(&method, path), expected) {
            (Found::Route { index, limiter, key }, Ok((template, l, k))) => {
                assert_eq!((ROUTES[index].template, limiter, key), (template, l, k), "{method} {path}");
            }
            (Found::OtherMethods(methods), Err(allow)) => assert_eq!(methods, allow, "{method} {path}"),
            (Found::Nothing, Err("")) => {}
            (got, _) => panic!("{method} {path}: {got:?}"),
        }
    }

    /// The scopes by what a route looks like, beside those that the table states.
    #[test]
    fn s5_every_route_needs_the_scope_that_its_kind_needs() {
        for route in &ROUTES {
            let ends = |end: &str| route.template.ends_with(end);
            let expected = match route.method {
                _ if matches!(
                    route.template,
                    "/livez" | "/readyz" | "/healthcheck" | "/openapi.json" | "/dashboard.js" | "/dashboard.css" | "/"
                ) =>
                {
                    Nothing
                }
                _ if ends("/ws") => Session,
                _ if ends("/hit") || ends("/hits") || ends("/allowed") || ends("/json") => Needs::Scope(Check),
                _ if route.template.starts_with("/v1/reserv") => Needs::Scope(Check),
                _ if ends("/feed") => Needs::Scope(Subscribe),
                "GET" => Needs::Scope(Read),
                "PUT" | "DELETE" => Needs::Scope(Operate),
                _ if ends("/increment") || ends("/analyze") => Needs::Scope(Count),
                _ if ends("able") => Needs::Scope(Operate),
                _ => Needs::Scope(Publish),
            };
            assert_eq!(route.needs, expected, "{} {}", route.method, route.template);
        }
    }

    /// `/v1/hits` and `/json` are decisions, and stood in line behind listings.
    #[test]
    fn m6_every_decision_and_health_check_has_the_reserved_part() {
        for route in &ROUTES {
            let decides = matches!(route.needs, Needs::Scope(Check | Count));
            let is_health = matches!(route.template, "/livez" | "/readyz" | "/healthcheck");
            let expected = if decides || is_health { Reserved } else { Shared };
            assert_eq!(route.part, expected, "{} {}", route.method, route.template);
        }
    }

    #[test]
    fn paths_lead_where_the_table_says() {
        check("POST", "/v1/hit", Ok(("/v1/hit", "", "")));
        check("HEAD", "/livez", Ok(("/livez", "", "")));
        check("GET", "/v1/limiters/a", Ok(("/v1/limiters/{limiter}", "a", "")));
        check("GET", "/v1/limiters/a/keys/%2F", Ok(("/v1/limiters/{limiter}/keys/{key}", "a", "%2F")));
        check("PUT", "/v1/limiters/a/keys/k/block", Ok(("/v1/limiters/{limiter}/keys/{key}/block", "a", "k")));
        check("GET", "/v1/limiters/a/keys/", Ok(("/v1/limiters/{limiter}/keys/{key}", "a", "")));
        check("DELETE", "/v1/reservations/r", Ok(("/v1/reservations/{reservation}", "r", "")));
        check("POST", "/v1/reservations/r", Err("DELETE"));
        check("GET", "/v1/hit", Err("POST"));
        check("POST", "/v1/limiters/a/keys/k/block", Err("PUT, DELETE"));
        check("DELETE", "/v1/limiters", Err("GET, HEAD"));
        check("GET", "/v1/hit/", Err(""));
        check("GET", "/v1/limiters/a/keys/k/block/x", Err(""));
        check("GET", "", Err(""));
    }
}
