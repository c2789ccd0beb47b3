//! Every route against every kind of caller, as one table: who gets what, and that a refusal changes and charges nothing.

use crate::server::{Response, Server, check_response};
use crate::state::{changed, filled, state};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate::Micros;
use tidegate_doors::access::{Access, Grant, Hash, Pattern, Rules, Scope, Token, Tokens};
use tidegate_doors::http::HttpSettings;
use tidegate_events::{Mode, StreamSpec};

/// What a narrowed token has to do with a row.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum About {
    /// It names a limiter, a domain or a stream.
    Named,
    /// It lists what there is, and leaves out what the caller may not see.
    Listing,
    /// It is about no limiter and no stream.
    Free,
    /// It tells everything at once.
    Everything,
}
use About::{Everything, Free, Listing, Named};

/// A request (`{n}` is another number each time, `{r}` a reservation of `api` that is open), the scope that it needs (`-`: none; `session`: its commands need some), the status
/// of its success, and what it is about. A new route fails [`s5_every_route_is_a_row_of_the_table`] until it has a row.
#[rustfmt::skip]
pub(super) const ROWS: [(&str, &str, u16, About); 41] = [
    ("POST /v1/hit {\"limiter\":\"api\",\"key\":\"k{n}\"}", "check", 200, Named),
    ("POST /v1/hit {\"domain\":\"login\",\"attributes\":{\"user\":\"u{n}\"}}", "check", 200, Named),
    ("POST /v1/hits {\"requests\":[{\"limiter\":\"api\",\"key\":\"h{n}\"}],\"together\":true}", "check", 200, Named),
    ("POST /v1/reserve {\"limiter\":\"api\",\"key\":\"r{n}\"}", "check", 200, Named),
    ("POST /v1/reservations/{r}/commit {\"cost\":0}", "check", 200, Named),
    ("DELETE /v1/reservations/{r}", "check", 200, Named),
    ("GET /v1/allowed?user=a{n}&domain=login", "check", 200, Named),
    ("POST /json {\"domain\":\"login\",\"descriptors\":[{\"entries\":[{\"key\":\"user\",\"value\":\"j{n}\"}]}]}", "check", 200, Named),
    ("GET /v1/limiters", "read", 200, Listing),
    ("GET /v1/limiters/api", "read", 200, Named),
    ("POST /v1/limiters/api/disable", "operate", 200, Named),
    ("POST /v1/limiters/api/enable", "operate", 200, Named),
    ("GET /v1/limiters/api/keys", "read", 200, Named),
    ("GET /v1/limiters/api/top", "read", 200, Named),
    ("GET /v1/limiters/api/keys/k", "read", 200, Named),
    ("PUT /v1/limiters/api/keys/b{n}/block {\"for\":\"10m\"}", "operate", 200, Named),
    ("DELETE /v1/limiters/api/keys/b{n}/block", "operate", 200, Named),
    ("PUT /v1/limiters/api/keys/b{n}/limits {\"limits\":[\"9 per minute\"]}", "operate", 200, Named),
    ("DELETE /v1/limiters/api/keys/b{n}/limits", "operate", 200, Named),
    ("DELETE /v1/limiters/api/blocks", "operate", 200, Named),
    ("POST /v1/limiters/notify/keys/k/increment {\"count\":9}", "count", 200, Named),
    ("POST /v1/limiters/notify/keys/k/analyze", "count", 200, Named),
    ("GET /v1/limiters/notify/keys/k/decisions", "read", 200, Named),
    ("GET /v1/live", "read", 200, Listing),
    ("GET /v1/audit", "read", 200, Everything),
    ("GET /v1/streams", "read", 200, Listing),
    ("POST /v1/streams/orders/events e{n}", "publish", 201, Named),
    ("GET /v1/streams/orders", "read", 200, Named),
    ("GET /v1/streams/orders/feed", "subscribe", 200, Named),
    ("POST /only-once-event e{n}", "publish", 201, Named),
    ("POST /strictly-once-event s{n}", "publish", 201, Named),
    ("POST /time-sync", "publish", 200, Free),
    ("GET /ws", "session", 426, Free),
    ("GET /livez", "-", 200, Free),
    ("GET /readyz", "-", 200, Free),
    ("GET /healthcheck", "-", 200, Free),
    ("GET /metrics", "read", 200, Everything),
    ("GET /openapi.json", "-", 200, Free),
    ("GET /dashboard.js", "-", 200, Free),
    ("GET /dashboard.css", "-", 200, Free),
    ("GET /", "-", 200, Free),
];

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Who {
    NoToken,
    /// An Authorization that is no valid token.
    Wrong(&'static str),
    Expired,
    Scope(Scope),
    /// For the limiters, the domain and the streams of the table.
    Narrowed(Scope),
    /// For others.
    Elsewhere(Scope),
}

impl Who {
    pub(super) fn all() -> Vec<Who> {
        let wrong = ["Bearer tg_nobody", "Bearer ", "Basic dGc6dGc=", "Bearer tg_check tg_check"];
        let mut all = vec![Who::NoToken, Who::Expired];
        all.extend(wrong.map(Who::Wrong));
        all.extend(
            Scope::ALL.into_iter().flat_map(|scope| [Who::Scope(scope), Who::Narrowed(scope), Who::Elsewhere(scope)]),
        );
        all
    }

    fn header(self) -> String {
        match self {
            Who::NoToken => String::new(),
            Who::Wrong(field) => format!("authorization: {field}\r\n"),
            Who::Expired => "authorization: Bearer tg_expired\r\n".to_owned(),
            Who::Scope(scope) => format!("authorization: Bearer tg_{}\r\n", scope.name()),
            Who::Narrowed(scope) => format!("authorization: Bearer tg_narrowed-{}\r\n", scope.name()),
            Who::Elsewhere(scope) => format!("authorization: Bearer tg_elsewhere-{}\r\n", scope.name()),
        }
    }

    /// 200: what the row's success is.
    pub(super) fn expected(self, needs: &str, about: About) -> u16 {
        match (self, needs) {
            (_, "-") | (Who::NoToken, "session") => 200,
            (Who::NoToken | Who::Wrong(_) | Who::Expired, _) => 401,
            (_, "session") => 200,
            (Who::Scope(scope) | Who::Narrowed(scope) | Who::Elsewhere(scope), needs) if scope.name() != needs => 403,
            (Who::Narrowed(_), _) if about == Everything => 403,
            (Who::Elsewhere(_), _) if matches!(about, Named | Everything) => 403,
            _ => 200,
        }
    }
}

pub(super) fn grant(scopes: &[Scope], narrow: Option<[&[&str]; 3]>) -> Grant {
    let patterns = |list: &[&str]| list.iter().map(|text| text.parse::<Pattern>().unwrap()).collect::<Vec<_>>();
    let [limiters, domains, streams] = narrow.unwrap_or_default().map(patterns);
    Grant { scopes: scopes.iter().copied().collect(), limiters, domains, streams }
}

fn token(name: &str, scopes: &[Scope], narrow: Option<[&[&str]; 3]>, expires: Option<Micros>) -> Token {
    let grant = grant(scopes, narrow);
    Token { name: name.to_owned(), hash: Hash::of(format!("tg_{name}").as_bytes()), grant, expires }
}

pub(super) const MINE: [&[&str]; 3] = [&["ap*", "notify"], &["login"], &["orders", "first"]];
pub(super) const OTHERS: [&[&str]; 3] = [&["other"], &["other"], &["other"]];

fn rules() -> Rules {
    let mut tokens = vec![
        token("all", &Scope::ALL, None, None),
        token("expired", &Scope::ALL, None, Some(Micros::from_secs(1_000))),
    ];
    for scope in Scope::ALL {
        let name = scope.name();
        // Not yet expired.
        tokens.push(token(name, &[scope], None, Some(Micros::from_secs(1_001))));
        tokens.push(token(&format!("narrowed-{name}"), &[scope], Some(MINE), None));
        tokens.push(token(&format!("elsewhere-{name}"), &[scope], Some(OTHERS), None));
    }
    let origins = vec!["https://app.example".parse().unwrap()];
    Rules { tokens: Some(Tokens::new(tokens, Vec::new()).unwrap()), origins, hosts: Vec::new() }
}

fn server(rules: Rules) -> (Server, Arc<Access>) {
    let access = Arc::new(Access::new(rules));
    let settings = HttpSettings { access: Arc::clone(&access), ..HttpSettings::default() };
    (with_streams(settings), access)
}

/// A door with the streams of the table.
pub(super) fn with_streams(settings: HttpSettings) -> Server {
    let mut orders = StreamSpec::new("orders", Mode::StrictlyOnce);
    let mut first = StreamSpec::new("first", Mode::OnlyOnce);
    for spec in [&mut orders, &mut first] {
        (spec.rules.duration_ms, spec.rules.max_events, spec.rules.snapshot_every_ms) = (3_600_000, 10_000, 3_600_000);
    }
    Server::with_streams_and(vec![orders, first], settings)
}

const ALL: &str = "authorization: Bearer tg_all\r\n";

/// What is compared, asked with the token that may do everything, on one connection.
fn state_of(server: &Server) -> Vec<String> {
    let mut client = server.connect();
    state(|request| {
        client.send(request, ALL);
        client.response().unwrap().body
    })
}

/// What a caller's answer to a row must be.
pub(super) fn check_row(request: &str, who: Who, (needs, success, about): (&str, u16, About), response: &Response) {
    let expected = who.expected(needs, about);
    let status = if expected == 200 { success } else { expected };
    assert_eq!(response.status, status, "{request} by {who:?}: {}", response.body);
    let unauthorized = "401 \"code\":\"unauthorized\" & www-authenticate: Bearer & problem+json";
    match expected {
        401 => check_response(request, response, unauthorized),
        403 => check_response(request, response, "403 \"code\":\"forbidden\" & problem+json"),
        _ => {}
    }
    assert!(!response.body.contains("tg_"), "{request} by {who:?} shows a token: {}", response.body);
}

#[test]
fn s5_every_route_refuses_whom_it_should_and_a_refusal_changes_nothing() {
    let (server, _) = server(rules());
    let mut number = 0;
    for (row, needs, success, about) in ROWS {
        for who in Who::all() {
            number += 1;
            let request = filled(row, number, |reserve| server.ask_with(reserve, ALL).body);
            let before = (who.expected(needs, about) != 200).then(|| state_of(&server));
            let response = server.ask_with(&request, &who.header());
            check_row(&request, who, (needs, success, about), &response);
            if let Some(before) = before {
                let changed = changed(&before, state_of(&server));
                assert!(changed.is_empty(), "{request} by {who:?} was refused, and changed {changed:#?}");
            }
        }
    }
}

/// The state that was compared had neither overrides nor reservations, counters of keys or the audit in it: a change by somebody who was
/// refused could have passed unseen. So every row that changes or charges something must change it.
#[test]
fn s5_whatever_a_route_changes_is_in_the_state_that_is_compared() {
    let (server, _) = server(rules());
    for ((row, needs, success, _), number) in ROWS.into_iter().zip(1..) {
        let request = filled(row, number, |reserve| server.ask_with(reserve, ALL).body);
        let before = state_of(&server);
        assert_eq!(server.ask_with(&request, ALL).status, success, "{request}");
        // The times go to whoever listens, and are kept nowhere.
        let changes = !matches!(needs, "read" | "subscribe" | "session" | "-") && !row.contains("/time-sync");
        let changed = changed(&before, state_of(&server));
        assert_eq!(!changed.is_empty(), changes, "{request}: {changed:#?}");
    }
}

#[test]
fn s5_every_route_is_a_row_of_the_table() {
    let document: Value = serde_json::from_str(include_str!("../../src/http/openapi.json")).unwrap();
    let templates = document["paths"].as_object().unwrap();
    let routes: BTreeSet<(String, String)> = templates
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().keys().filter(|name| *name != "parameters");
            methods.map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
        })
        .collect();
    let rows: BTreeSet<(String, String)> = ROWS
        .iter()
        .map(|(request, ..)| {
            let (method, rest) = request.split_once(' ').unwrap();
            let path: Vec<&str> = rest.split([' ', '?']).next().unwrap().split('/').collect();
            let fits = |template: &&String| {
                let pieces: Vec<&str> = template.split('/').collect();
                pieces.len() == path.len()
                    && pieces.iter().zip(&path).all(|(one, other)| one.starts_with('{') || one == other)
            };
            (method.to_owned(), templates.keys().find(fits).unwrap_or_else(|| panic!("{request} is no route")).clone())
        })
        .collect();
    assert_eq!(rows, routes);
}

#[test]
fn s5_listings_show_what_a_token_may_see() {
    let (server, _) = server(rules());
    let read =
        |path: &str, who: &str| server.ask_with(&format!("GET {path}"), &format!("authorization: Bearer tg_{who}\r\n"));
    let narrowed = read("/v1/limiters", "narrowed-read");
    check_response("limiters", &narrowed, "200 \"name\":\"api\" & \"name\":\"notify\" & !\"name\":\"two\" & !login");
    assert_eq!(read("/v1/limiters", "elsewhere-read").body, "{\"limiters\":[]}");
    check_response("streams", &read("/v1/streams", "narrowed-read"), "200 \"orders\" & \"first\"");
    assert_eq!(read("/v1/streams", "elsewhere-read").body, "{\"streams\":[]}");
    // Whether there is such a limiter, a token for others is not told.
    for path in ["/v1/limiters/two", "/v1/limiters/none", "/v1/limiters/%74wo", "/v1/streams/none"] {
        assert_eq!(read(path, "narrowed-read").status, 403, "{path}");
    }
    assert_eq!(read("/v1/limiters/%61pi", "narrowed-read").status, 200);
}

/// Attributes are matched by limiters that the caller does not name, so that a token for limiters could charge any.
#[test]
fn s5_a_token_for_limiters_does_not_ask_by_attributes() {
    let (server, access) = server(rules());
    let limiters = token("limiters", &[Scope::Check], Some([&["login-*"], &[], &[]]), None);
    let domain = token("domain", &[Scope::Check], Some([&[], &["login"], &[]]), None);
    access
        .replace(Rules { tokens: Some(Tokens::new(vec![limiters, domain], Vec::new()).unwrap()), ..Rules::default() });
    let named = r#"POST /v1/hit {"limiter":"login-ip","key":"k"}"#;
    let domain = r#"POST /v1/hit {"domain":"login","attributes":{"ip":"192.0.2.1"}}"#;
    let none = r#"POST /v1/hit {"attributes":{"ip":"192.0.2.1"}}"#;
    for (who, request, status) in [
        ("limiters", named, 200),
        ("limiters", domain, 403),
        ("limiters", none, 403),
        ("domain", named, 403),
        ("domain", domain, 200),
        ("domain", none, 403),
        ("domain", "GET /v1/allowed?ip=192.0.2.1", 403),
        ("domain", "GET /v1/allowed?ip=192.0.2.1&domain=login", 200),
    ] {
        let response = server.ask_with(request, &format!("authorization: Bearer tg_{who}\r\n"));
        assert_eq!(response.status, status, "{who} {request}: {}", response.body);
    }
}

#[test]
fn s5_tokens_expire_by_the_gates_clock_and_are_replaced_under_way() {
    let (server, access) = server(rules());
    let mut client = server.connect();
    let mut ask = |header: &str| {
        client.send("GET /v1/limiters/api", header);
        client.response().unwrap().status
    };
    let read = "authorization: Bearer tg_read\r\n";
    assert_eq!(
        (ask(read), ask(read), ask(""), ask(ALL), ask(read)),
        (200, 200, 401, 200, 200),
        "one connection, many callers"
    );
    server.gate.clock().set(Micros::from_secs(1_001));
    assert_eq!(ask(read), 401);
    assert_eq!(ask(ALL), 200);
    access.replace(Rules { tokens: Some(Tokens::default()), ..Rules::default() });
    assert_eq!(ask(ALL), 401, "revoked");
    access.replace(Rules::default());
    assert_eq!(ask(""), 200, "tokens are not asked for any more");
}

#[test]
fn s5_a_feed_ends_before_its_next_message_when_its_token_is_revoked() {
    let (server, access) = server(rules());
    let mut feed = server.connect();
    feed.send("GET /v1/streams/orders/feed", "authorization: Bearer tg_narrowed-subscribe\r\n");
    let mut read = |until: &str| {
        let mut text = String::from_utf8_lossy(&feed.buffer).into_owned();
        while !text.contains(until) {
            let mut chunk = [0; 4096];
            let count = std::io::Read::read(&mut feed.stream, &mut chunk).unwrap();
            assert!(count > 0, "ended without {until}: {text}");
            text += &String::from_utf8_lossy(&chunk[..count]);
        }
        text
    };
    read("KEY_FRAME");
    assert_eq!(server.ask_with("POST /v1/streams/orders/events first", ALL).status, 201);
    read("\"first\"");
    let tokens = Tokens::new(vec![token("all", &Scope::ALL, None, None)], Vec::new()).unwrap();
    access.replace(Rules { tokens: Some(tokens), ..Rules::default() });
    assert_eq!(server.ask_with("POST /v1/streams/orders/events secret", ALL).status, 201);
    let last = read("was revoked or has expired");
    assert!(last.contains("event: error") && !last.contains("secret"), "{last}");
}

/// `/v1/live` listed for the caller as it was admitted: a token that was narrowed went on seeing everything.
#[test]
fn s5_what_a_live_feed_tells_narrows_with_its_token_and_ends_when_it_is_revoked() {
    let (server, access) = server(rules());
    let mut live = server.connect();
    live.send("GET /v1/live", "authorization: Bearer tg_read\r\n");
    let mut text = String::from_utf8_lossy(&live.buffer).into_owned();
    let mut next = || {
        while !text.contains("\n\n") {
            let mut chunk = [0; 4096];
            let count = std::io::Read::read(&mut live.stream, &mut chunk).unwrap();
            assert!(count > 0, "ended: {text}");
            text += &String::from_utf8_lossy(&chunk[..count]);
        }
        let (event, rest) = text.split_once("\n\n").map(|(event, rest)| (event.to_owned(), rest.to_owned())).unwrap();
        text = rest;
        event
    };
    let all = std::iter::from_fn(|| Some(next())).find(|event| event.contains("data: {")).unwrap();
    assert!(all.contains("\"name\":\"two\"") && all.contains("\"table\""), "{all}");
    let replace = |read: Vec<Token>| {
        access.replace(Rules { tokens: Some(Tokens::new(read, Vec::new()).unwrap()), ..Rules::default() });
    };
    replace(vec![token("read", &[Scope::Read], Some(MINE), None)]);
    // One may have been on its way.
    let (_, narrowed) = (next(), next());
    assert!(narrowed.contains("\"name\":\"api\"") && narrowed.contains("\"orders\""), "{narrowed}");
    assert!(!narrowed.contains("\"name\":\"two\"") && !narrowed.contains("\"table\""), "{narrowed}");
    replace(vec![token("read", &[Scope::Check], None, None)]);
    let refused = std::iter::from_fn(|| Some(next())).find(|event| event.contains("event: error")).unwrap();
    assert!(refused.contains("this needs the scope read"), "{refused}");
}

fn to_host(server: &Server, host: &str, request: &str, headers: &str) -> Response {
    let mut client = server.connect();
    client.send_to(host, request, headers);
    client.response().unwrap()
}

/// DNS rebinding reached reads, charges and streams: only changes looked at the Host.
#[test]
fn s6_without_tokens_no_route_answers_under_a_name_that_somebody_else_chose() {
    let hosts = vec!["gate.example".parse().unwrap()];
    let (server, _) = server(Rules { hosts, ..Rules::default() });
    let before = state_of(&server);
    for (request, needs, success, _) in ROWS {
        // Of the key `k` of `api`, and not open.
        let request = request.replace("{n}", "1").replace("{r}", "AAAAAAAAAAAAAAAAAAAAAANhcGlr");
        let rebound = to_host(
            &server,
            "evil.example:7400",
            &request,
            "origin: http://evil.example:7400\r\nsec-fetch-site: same-origin\r\n",
        );
        let elsewhere = server.ask_with(&request, "sec-fetch-site: cross-site\r\n");
        let neighbour = server.ask_with(&request, "origin: http://localhost:3000\r\nsec-fetch-site: same-site\r\n");
        if needs == "-" {
            assert_eq!((rebound.status, elsewhere.status, neighbour.status), (success, success, success), "{request}");
        } else {
            check_response(&request, &rebound, "403 \"code\":\"unknown_host\" & \"field\":\"Host\" & [access] hosts");
            check_response(&request, &elsewhere, "403 \"code\":\"cross_origin\" & \"field\":\"Sec-Fetch-Site\"");
            check_response(
                &request,
                &neighbour,
                "403 \"code\":\"cross_origin\" & \"field\":\"Origin\" & allowed_origins",
            );
        }
    }
    assert_eq!(changed(&before, state_of(&server)), Vec::<String>::new());
    for host in ["gate.example", "192.0.2.7:7400", "[2001:db8::1]"] {
        assert_eq!(to_host(&server, host, "GET /v1/limiters", "").status, 200, "{host}");
    }
}

#[test]
fn s6_pages_of_allowed_origins_may_ask_and_read() {
    let (server, _) = server(Rules { tokens: None, ..rules() });
    let app = "origin: https://app.example\r\nsec-fetch-site: cross-site\r\n";
    let evil = "origin: https://evil.example\r\nsec-fetch-site: cross-site\r\n";
    let preflight = "access-control-request-method: POST\r\naccess-control-request-headers: authorization\r\n";
    let hit = r#"POST /v1/hit {"limiter":"api","key":"k"}"#;
    check_response(
        "hit",
        &server.ask_with(hit, app),
        "200 access-control-allow-origin: https://app.example & access-control-expose-headers: ratelimit & vary: origin",
    );
    check_response("hit", &server.ask_with(hit, evil), "403 !access-control-allow-origin & vary: origin");
    let asked = server
        .ask_with("OPTIONS /v1/hit", &format!("{app}{preflight}access-control-request-private-network: true\r\n"));
    check_response(
        "preflight",
        &asked,
        "204 access-control-allow-origin: https://app.example & access-control-allow-methods: POST & access-control-allow-headers: authorization & access-control-allow-private-network: true",
    );
    check_response(
        "preflight",
        &server.ask_with("OPTIONS /v1/hit", &format!("{evil}{preflight}")),
        "403 \"code\":\"cross_origin\" & !access-control-allow",
    );
    check_response("no preflight", &server.ask_with("OPTIONS /v1/hit", app), "405 allow: POST");
    check_response("nowhere", &server.ask_with("OPTIONS /v1/none", &format!("{app}{preflight}")), "404");
    // With tokens a page shows one, and may read why it was refused.
    let (server, _) = self::server(rules());
    check_response("no token", &server.ask_with(hit, app), "401 access-control-allow-origin: https://app.example");
    check_response("token", &server.ask_with(hit, &format!("{app}{ALL}")), "200 access-control-allow-origin");
    check_response("preflight", &server.ask_with("OPTIONS /v1/hit", &format!("{app}{preflight}")), "204");
}
