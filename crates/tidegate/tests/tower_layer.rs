//! The tower layer in a real axum server on port 0, asked by a real TCP client.

#![expect(clippy::unwrap_used, reason = "the harness is test code too")]

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tidegate::layer::{Attributes, Question, RateLimitLayer};
use tidegate::{Algorithm, Clock, Door, Gate, LimiterSpec, Micros, Policy, Rules};
use tidegate_testkit::http;
#[cfg(feature = "redis")]
use tidegate_testkit::servers;
use tokio::runtime::Runtime;

struct Server {
    address: SocketAddr,
    gate: Gate,
    /// How often the inner service was called.
    calls: Arc<AtomicUsize>,
    _runtime: Runtime,
}

fn policy() -> Policy {
    let limiter = |name, limits: &[&str]| {
        let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
        LimiterSpec::new(name, Rules::new(Algorithm::SlidingLog, &limits).unwrap())
    };
    Policy::new(vec![
        limiter("api", &["2 per minute", "500 per hour"]),
        limiter("login-user", &["1 per minute"]).by(Some("login"), &["user"]),
        limiter("login-ip", &["2 per minute"]).by(Some("login"), &["ip"]),
    ])
    .unwrap()
}

fn gate() -> Gate {
    Gate::with_clock(policy(), Clock::manual(Micros::from_secs(1_000)))
}

fn start(layers: impl Fn(&Gate) -> Vec<RateLimitLayer>) -> Server {
    start_on(gate(), Runtime::new().unwrap(), layers)
}

fn start_on(gate: Gate, runtime: Runtime, layers: impl Fn(&Gate) -> Vec<RateLimitLayer>) -> Server {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let handler = move || async move {
        counter.fetch_add(1, Relaxed);
        "hello"
    };
    let routes = Router::new().route("/", get(handler));
    let router = layers(&gate).into_iter().fold(routes, |router, layer| router.layer(layer));
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    runtime.spawn(async { axum::serve(listener, service).await });
    Server { address, gate, calls, _runtime: runtime }
}

fn by_api_key(gate: &Gate) -> RateLimitLayer {
    RateLimitLayer::new(gate.clone(), |request| {
        let cost = request.headers.get("x-cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap());
        Some(Question::limiter("api", request.headers.get("x-api-key")?.as_bytes()).cost(cost))
    })
}

fn by_login(gate: &Gate, trusted_hops: usize) -> RateLimitLayer {
    let attributes =
        Attributes::of_domain("login").header("user", "x-user").client_address("ip", trusted_hops, |request| {
            request.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip())
        });
    RateLimitLayer::by_attributes(gate.clone(), attributes)
}

/// Lines of header fields, separated by semicolons, then the status and parts of the response;
/// `!PART` must not be there. `at SECONDS` sets the clock.
#[track_caller]
fn check(server: &Server, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(seconds) = line.strip_prefix("at ") {
            server.gate.clock().set(Micros::from_secs(seconds.parse().unwrap()));
            continue;
        }
        let (fields, expected) = line.split_once("-> ").unwrap();
        let fields: String =
            fields.split(';').map(|f| f.trim()).filter(|f| !f.is_empty()).map(|f| format!("{f}\r\n")).collect();
        let response = ask(server, &fields);
        let (status, parts) = expected.split_once(' ').unwrap_or((expected, ""));
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{line}\n   but got {response}");
        for part in parts.split(" & ").filter(|part| !part.is_empty()) {
            let (part, wanted) = part.strip_prefix('!').map_or((part, true), |part| (part, false));
            assert_eq!(response.contains(part), wanted, "{line}\n   part {part} in {response}");
        }
    }
}

fn ask(server: &Server, fields: &str) -> String {
    http::get(server.address, "/", fields).unwrap()
}

#[test]
fn allowed_requests_reach_the_service_and_denied_ones_do_not() {
    let server = start(|gate| vec![by_api_key(gate)]);
    check(
        &server,
        r#"
        x-api-key: k1 -> 200 hello & ratelimit-policy: "api";q=2;w=60, "api-2";q=500;w=3600 & ratelimit: "api";r=1;t=60
        x-api-key: k1 -> 200 hello & ratelimit: "api";r=0;t=60 & !retry-after
        x-api-key: k1 -> 429 !hello & retry-after: 60 & ratelimit: "api";r=0;t=60 & content-type: application/problem+json & "type":"https://iana.org/assignments/http-problem-types#quota-exceeded" & "violated-policies":["api"] & "retry_after_ms":60000
        x-api-key: k2 -> 200 hello
        at 1060
        x-api-key: k1 -> 200 hello
        x-api-key: k3; x-cost: 3 -> 429 "reason":"cost_above_limit" & !retry-after"#,
    );
    assert_eq!(server.calls.load(Relaxed), 4);
}

#[test]
fn a_request_without_a_question_passes_unasked() {
    let server = start(|gate| vec![by_api_key(gate)]);
    check(&server, "-> 200 hello & !ratelimit\n-> 200\n-> 200");
}

#[test]
fn a5_user_and_address_are_charged_together_or_not_at_all() {
    let server = start(|gate| vec![by_login(gate, 0)]);
    check(
        &server,
        r#"
        x-user: u1 -> 200 ratelimit: "login-user";r=0;t=60
        x-user: u1 -> 429 "limiter":"login-user"
        -> 200 ratelimit: "login-ip";r=0;t=60
        x-user: u2 -> 429 "limiter":"login-ip"
        x-user: -> 429 "limiter":"login-ip"
        x-forwarded-for: 192.0.2.1 -> 429 "limiter":"login-ip""#,
    );
}

#[test]
fn the_client_is_found_behind_trusted_hops_only() {
    let server = start(|gate| vec![by_login(gate, 1)]);
    check(
        &server,
        r#"
        x-forwarded-for: 192.0.2.1 -> 200
        x-forwarded-for: 6.6.6.6, 192.0.2.1 -> 200
        x-forwarded-for: 7.7.7.7, 192.0.2.1 -> 429
        x-forwarded-for: 192.0.2.2 -> 200
        x-forwarded-for: 2001:db8::1 -> 200
        x-forwarded-for: 2001:db8::2 -> 200
        x-forwarded-for: 2001:db8::3 -> 429
        x-forwarded-for: 2001:db8:0:1::3 -> 200"#,
    );
}

#[test]
fn nested_layers_each_say_their_part() {
    let server = start(|gate| vec![by_login(gate, 0), by_api_key(gate)]);
    check(&server, r#"x-user: u1; x-api-key: k1 -> 200 ratelimit: "login-user";r=0;t=60 & ratelimit: "api";r=1;t=60"#);
}

#[test]
fn s1_bad_keys_are_refused_and_a_missing_limiter_is_no_admission() {
    let server = start(|gate| vec![by_api_key(gate)]);
    let long = format!("x-api-key: {} -> 400 \"code\":\"bad_key\" & 513 bytes, more than 512", "k".repeat(513));
    check(&server, &long);
    let server = start(|gate| vec![RateLimitLayer::new(gate.clone(), |_| Some(Question::limiter("gone", "k")))]);
    check(&server, r#"-> 500 "code":"limiter_failed" & !gone"#);
    assert_eq!(server.calls.load(Relaxed), 0);
}

#[test]
fn a_hundred_at_once_at_limit_two_are_exactly_two() {
    let server = start(|gate| vec![by_api_key(gate)]);
    let allowed = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..100).map(|_| scope.spawn(|| ask(&server, "x-api-key: k1\r\n"))).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).filter(|r| r.contains("200 OK")).count()
    });
    assert_eq!((allowed, server.calls.load(Relaxed)), (2, 2));
}

/// The same layer on a gate whose states are in Redis: the request waits for the answer.
#[cfg(feature = "redis")]
#[test]
fn a_store_elsewhere_is_waited_for_before_the_service_is_called() {
    let redis = servers::Server::redis(&[]);
    let runtime = Runtime::new().unwrap();
    let settings =
        tidegate::StoreSettings { deadline: std::time::Duration::from_secs(5), ..tidegate::StoreSettings::default() };
    let url = redis.url().parse().unwrap();
    let gate = runtime.block_on(Gate::connect(&policy(), url, settings, Clock::manual(Micros::from_secs(1_000))));
    let server = start_on(gate, runtime, |gate| vec![by_api_key(gate)]);
    for expected in ["200", "200", "429"] {
        let response = ask(&server, "x-api-key: k\r\n");
        assert!(response.starts_with(&format!("HTTP/1.1 {expected}")), "{response}");
        assert!(response.contains("ratelimit-policy: \"api\""), "{response}");
    }
    assert_eq!(server.calls.load(Relaxed), 2);
}

/// A candidate that would deny everything changes neither a status nor a header, and is counted.
#[test]
fn a12_a_candidate_changes_nothing_behind_the_layer() {
    let tried = |limit: &str| Rules::new(Algorithm::SlidingLog, &[limit.parse().unwrap(); 2]).ok();
    let with_candidates = || {
        let mut limiters: Vec<LimiterSpec> = policy().limiters().iter().map(|spec| LimiterSpec::clone(spec)).collect();
        limiters[0].candidate_rules = tried("0 per minute");
        Gate::with_clock(Policy::new(limiters).unwrap(), Clock::manual(Micros::from_secs(1_000)))
    };
    let serve = |gate| start_on(gate, Runtime::new().unwrap(), |gate| vec![by_api_key(gate)]);
    let (with, without) = (serve(with_candidates()), serve(gate()));
    let fields = ["x-api-key: a\r\n", "x-api-key: a\r\n", "x-api-key: a\r\n", "x-api-key: b\r\nx-cost: 9\r\n", ""];
    for fields in fields {
        let undated = |answer: String| {
            answer.lines().filter(|line| !line.starts_with("date: ")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(undated(ask(&with, fields)), undated(ask(&without, fields)), "{fields:?}");
    }
    let info = with.gate.limiter_info("api").unwrap();
    let (enforced, candidate) = (info.counts.by_door.at(Door::Library), info.candidate.unwrap());
    assert_eq!((enforced.allowed, enforced.denied), (2, 2));
    assert_eq!((candidate.allowed, candidate.denied), (0, 4));
}
