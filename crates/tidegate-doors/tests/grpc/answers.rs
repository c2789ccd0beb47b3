//! What an answer of the rate limit service carries besides its statuses.

use crate::server::{Server, ask, connect, request};
use tidegate_doors::grpc::GrpcSettings;
use tidegate_doors::ratelimit::{HeaderNames, RateLimitSettings};
use tidegate_wire::grpc::ratelimit::{Kind, RateLimitResponse, ResponseCode, SHOULD_RATE_LIMIT, Struct, Value};

fn server(ratelimit: RateLimitSettings) -> Server {
    Server::with(GrpcSettings { ratelimit, ..GrpcSettings::default() })
}

fn asked(server: &Server, text: &str) -> RateLimitResponse {
    let ended = server
        .runtime
        .block_on(async { ask(&mut connect(server.address).await, SHOULD_RATE_LIMIT, &request(text)).await });
    ended.said()
}

fn fields(response: &RateLimitResponse) -> Vec<String> {
    response.response_headers_to_add.iter().map(|field| format!("{}: {}", field.key, field.value)).collect()
}

#[test]
fn headers_are_there_where_they_are_wanted() {
    let server = server(RateLimitSettings { headers: HeaderNames::standard(), ..RateLimitSettings::default() });
    let allowed = asked(&server, "user=a cost=4 & path=/x");
    assert_eq!(fields(&allowed), ["ratelimit-policy: \"user\";q=5;w=60", "ratelimit: \"user\";r=1;t=60"]);
    assert!(allowed.dynamic_metadata.is_none());
    let denied = asked(&server, "user=a cost=2");
    let expected = [
        "content-type: application/problem+json",
        "ratelimit-policy: \"user\";q=5;w=60",
        "ratelimit: \"user\";r=1;t=60",
        "retry-after: 60",
    ];
    assert_eq!(fields(&denied), expected);
    let body: serde_json::Value = serde_json::from_slice(&denied.raw_body).unwrap();
    assert_eq!((&body["status"], &body["limiter"]), (&serde_json::json!(429), &serde_json::json!("user")));
}

/// The three that envoyproxy/ratelimit has, or any other names.
#[test]
fn headers_have_the_names_that_they_are_given() {
    let name = |name: &str| Some(name.to_owned());
    let headers = HeaderNames {
        limit: name("RateLimit-Limit"),
        remaining: name("RateLimit-Remaining"),
        reset: name("x-wait"),
        ..HeaderNames::default()
    };
    let server = server(RateLimitSettings { headers, ..RateLimitSettings::default() });
    let allowed = asked(&server, "user=a cost=4 & path=/x");
    assert_eq!(fields(&allowed), ["RateLimit-Limit: 5", "RateLimit-Remaining: 1", "x-wait: 60"]);
    let denied = asked(&server, "user=a cost=2");
    let expected =
        ["content-type: application/problem+json", "RateLimit-Limit: 5", "RateLimit-Remaining: 1", "x-wait: 60"];
    assert_eq!(fields(&denied), expected);
    assert!(fields(&asked(&server, "other=a")).is_empty(), "nothing limits it");
}

/// Metadata as JSON's text, of which names are in order.
fn shown(object: &Struct) -> String {
    let value = |value: &Value| match value.kind.as_ref().unwrap() {
        Kind::Null(_) => "null".to_owned(),
        Kind::Bool(is) => is.to_string(),
        Kind::Number(number) => number.to_string(),
        Kind::Text(text) => text.clone(),
        Kind::Object(inner) => shown(inner),
        Kind::List(list) => {
            let items = list.values.iter().map(|item| match item.kind.as_ref().unwrap() {
                Kind::Object(inner) => shown(inner),
                Kind::Text(text) => text.clone(),
                other => format!("{other:?}"),
            });
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
    };
    let fields: Vec<String> = object.fields.iter().map(|(name, of)| format!("{name}: {}", value(of))).collect();
    format!("{{{}}}", fields.join(", "))
}

#[test]
fn metadata_is_the_request_and_the_words_of_those_that_let_it_pass() {
    let server = server(RateLimitSettings { dynamic_metadata: true, ..RateLimitSettings::default() });
    let told = |text: &str| shown(&asked(&server, text).dynamic_metadata.unwrap());
    for (text, expected) in [
        ("other=a", "{descriptors: [{entries: [other=a]}], domain: d}"),
        (
            "hits=3 user=a path=/x & user=b cost=0",
            "{descriptors: [{entries: [user=a, path=/x]}, {entries: [user=b], hitsAddend: 0}], domain: d, hitsAddend: 3}",
        ),
        (
            "brought=a limit=4/30",
            "{descriptors: [{entries: [brought=a], limit: requests_per_unit:4 unit:SECOND unit_multiplier:{value:30}}], domain: d}",
        ),
        (
            "plan=silver",
            "{descriptors: [{entries: [plan=silver]}], domain: d, metadata: {owner: {room: 2, team: plans}, plan: any}}",
        ),
        (
            "plan=gold & plan=tin",
            "{descriptors: [{entries: [plan=gold]}, {entries: [plan=tin]}], domain: d, metadata: {owner: {desk: null, room: 2, team: plans}, plan: gold}}",
        ),
        ("plan=free", "{descriptors: [{entries: [plan=free]}], domain: d}"),
        (
            "plan=iron cost=3 & plan=gold",
            "{descriptors: [{entries: [plan=iron], hitsAddend: 3}, {entries: [plan=gold]}], domain: d, metadata: {owner: {desk: null}, plan: gold}}",
        ),
    ] {
        assert_eq!(told(text), expected, "{text}");
    }
}

#[test]
fn in_shadow_mode_all_is_counted_and_nothing_denied() {
    let settings = RateLimitSettings { shadow: true, headers: HeaderNames::standard(), ..RateLimitSettings::default() };
    let server = server(settings);
    asked(&server, "user=a cost=5");
    let over = asked(&server, "user=a");
    assert_eq!(over.overall_code, i32::from(ResponseCode::Ok));
    assert_eq!(over.statuses[0].code, i32::from(ResponseCode::OverLimit), "statuses stay as they are");
    assert_eq!((over.raw_body.len(), fields(&over)), (0, Vec::new()), "nothing of a denial");
    let denied = server.gate.limiter_info("user").unwrap().counts.denied;
    assert_eq!(denied, 1, "the engine has counted it");
}

/// A client makes keys and messages as long as it likes, and a proxy that fails open takes an error for a yes.
#[test]
fn what_is_too_long_to_be_counted_is_over_the_limit_and_passes_in_shadow_mode() {
    for (shadow, code) in [(false, ResponseCode::OverLimit), (true, ResponseCode::Ok)] {
        let server = server(RateLimitSettings { shadow, ..RateLimitSettings::default() });
        for (length, statuses, word) in
            [(513, 2, "bad_key"), (40_000, 0, "message_too_long"), (700_000, 0, "message_too_long")]
        {
            let value = "a".repeat(length);
            let answer = asked(&server, &format!("user={value} & path={value}"));
            assert_eq!((answer.overall_code, answer.statuses.len()), (code.into(), statuses), "{length} bytes");
            let body = String::from_utf8(answer.raw_body).unwrap();
            assert!(if shadow { body.is_empty() } else { body.contains(word) }, "{length} bytes: {body}");
        }
        assert_eq!(asked(&server, "user=a").overall_code, i32::from(ResponseCode::Ok), "nothing is left of them");
    }
}
