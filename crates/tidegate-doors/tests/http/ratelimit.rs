//! `/json` and `/healthcheck`: Envoy's rate limit service for people with curl.

use crate::server::{Server, check, check_response};
use std::io::Write as _;
use std::net::TcpStream;
use tidegate_doors::http::HttpSettings;
use tidegate_doors::ratelimit::{HeaderNames, RateLimitSettings};
use tidegate_testkit::eventually;

#[test]
fn a_request_is_answered_with_its_statuses() {
    check(
        &Server::start(),
        r#"
        POST /json {"domain":"login","descriptors":[{"entries":[{"key":"user","value":"a"}]}]} -> 200 {"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"login-user","requestsPerUnit":2,"unit":"MINUTE"},"durationUntilReset":"60s","limitRemaining":1}]}
        POST /json {"domain":"login","hits_addend":2,"descriptors":[{"entries":[{"key":"user","value":"a"}]},{"entries":[{"key":"other"}]}]} -> 429 "overallCode":"OVER_LIMIT" & "code":"OVER_LIMIT" & {"code":"OK","limitRemaining":0} & "rawBody":"eyJ & {"key":"content-type","value":"application/problem+json"} & !dynamicMetadata
        POST /json {"domain":"login","descriptors":[{"entries":[{"key":"user","value":"a"}],"isNegativeHits":true}]} -> 200 "limitRemaining":2
        POST /json {"domain":"brought","descriptors":[{"entries":[{"key":"user","value":"a"}],"limit":{"requestsPerUnit":9,"unit":"HOUR"}}]} -> 200 "requestsPerUnit":9,"unit":"HOUR"} & "limitRemaining":8 & !unitMultiplier
        POST /json {"domain":"brought","descriptors":[{"entries":[{"key":"user","value":"b"}],"limit":{"requests_per_unit":9,"unit":3,"unit_multiplier":2}}]} -> 200 "requestsPerUnit":9,"unit":"HOUR","unitMultiplier":2}
        POST /json {"domain":"login","descriptors":[{"entries":[{"key":"user","value":"c"}],"limit":{"requestsPerUnit":9,"unit":"HOUR"}}]} -> 200 "requestsPerUnit":2,"unit":"MINUTE"}"#,
    );
}

#[test]
fn what_is_no_request_is_refused() {
    check(
        &Server::start(),
        r#"
        POST /json {"descriptors":[{"entries":[{"key":"a"}]}]} -> 400 the request has no domain
        POST /json {"domain":"login"} -> 400 the request has no descriptors
        POST /json [] -> 400 the body must be an object
        POST /json {"domain":"login","descriptors":[{"entries":[{"key":"a"}],"limits":{}}]} -> 400 a descriptor has no \"limits\"; leave it out
        POST /json {"domain":"login","descriptors":[{"entries":[{"key":"a"}],"limit":{"unit":"FORTNIGHT"}}]} -> 400 unit of a limit must be one of SECOND, MINUTE
        POST /json {"domain":"login","descriptors":[{"entries":[{"key":"a"}],"limit":{"requestsPerUnit":4294967296}}]} -> 400 requestsPerUnit of a limit must be at most 4294967295
        POST /json {"domain":"login","descriptors":[{"entries":[{"key":"a"}],"limit":{"count":1}}]} -> 400 a limit has no \"count\"
        POST /json {"domain":"login","descriptors":[{"entries":[{"key":"a"}],"limit":5}]} -> 400 a limit must be an object"#,
    );
}

#[test]
fn fields_and_metadata_are_shown_where_they_are_wanted() {
    let headers = HeaderNames { limit: Some("RateLimit-Limit".to_owned()), ..HeaderNames::default() };
    let ratelimit = RateLimitSettings { headers, dynamic_metadata: true, shadow: false };
    let server = Server::with(HttpSettings { ratelimit, ..HttpSettings::default() });
    check(
        &server,
        r#"
        POST /json {"domain":"brought","hitsAddend":2,"descriptors":[{"entries":[{"key":"user","value":"a"}],"hitsAddend":3}]} -> 200 "responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"5"}] & "dynamicMetadata":{"descriptors":[{"entries":["user=a"],"hitsAddend":3}],"domain":"brought","hitsAddend":2,"metadata":{"of":[1,true,null],"team":"a"}} & !rawBody
        POST /json {"domain":"brought","descriptors":[{"entries":[{"key":"user","value":"a"}],"hitsAddend":3}]} -> 429 "dynamicMetadata":{"descriptors":[{"entries":["user=a"],"hitsAddend":3}],"domain":"brought"} & {"key":"RateLimit-Limit","value":"5"}"#,
    );
}

/// Less than a fifth of the limit is left; a look, a denial and what nobody limits are not near it.
#[test]
fn what_is_near_its_limit_unmatched_or_shadowed_is_counted() {
    let ratelimit = RateLimitSettings { shadow: true, ..RateLimitSettings::default() };
    let server = Server::with(HttpSettings { ratelimit, ..HttpSettings::default() });
    let ask =
        |descriptors: &str| server.ask(&format!(r#"POST /json {{"domain":"brought","descriptors":[{descriptors}]}}"#));
    let user = |cost: u32| format!(r#"{{"entries":[{{"key":"user","value":"a"}}],"hitsAddend":{cost}}}"#);
    let counted = |near: Option<u64>, unmatched: u64, shadowed: u64| {
        let page = server.ask("GET /metrics").body;
        let near = near.map(|near| format!("tidegate_near_limit_total{{limiter=\"brought\"}} {near}"));
        let lines = near.iter().cloned().chain([
            format!("tidegate_grpc_unmatched_descriptors_total {unmatched}"),
            format!("tidegate_grpc_shadowed_total {shadowed}"),
        ]);
        lines.for_each(|line| assert!(page.lines().any(|own| own == line), "{line}"));
        assert_eq!(page.contains("tidegate_near_limit_total{"), near.is_some());
    };
    ask(&user(4));
    counted(None, 0, 0);
    ask(&format!(r#"{},{{"entries":[{{"key":"other"}}]}}"#, user(1)));
    counted(Some(1), 1, 0);
    ask(&user(0));
    let over = ask(&user(1));
    check_response(
        "in shadow mode",
        &over,
        r#"200 {"overallCode":"OK" & "code":"OVER_LIMIT" & !rawBody & !responseHeadersToAdd"#,
    );
    counted(Some(1), 1, 2);
}

#[test]
fn a_healthcheck_says_that_the_door_closes() {
    let mut server = Server::start();
    check(&server, "GET /healthcheck -> 200 OK & content-type: text/plain; charset=utf-8");
    let mut client = server.connect();
    client.stream.write_all(b"GET /healthcheck HTTP/1.1\r\nhost: localhost\r\n").unwrap();
    server.ask("GET /livez");
    server.stop();
    eventually("the end of accepting", || TcpStream::connect(server.address).is_err());
    client.stream.write_all(b"\r\n").unwrap();
    check_response("while it closes", &client.response().unwrap(), "503 \"code\":\"draining\" & ask another replica");
    server.ended();
}
