//! `/v1/hit`, `/v1/allowed` and peeks: the decisions and how they are told.

use crate::server::{Server, check};

#[test]
fn a1_the_sliding_log_of_the_design_note() {
    check(
        &Server::start(),
        r#"
        at 0
        POST /v1/hit {"limiter":"api","key":"u1"} -> 200 {"allowed":true,"limiter":"api","limit":3,"remaining":2,"retry_after_ms":null,"reset_after_ms":60000,"reason":"ok"} & content-type: application/json
        at 30
        POST /v1/hit {"limiter":"api","key":"u1"} -> 200 "remaining":1
        at 59
        POST /v1/hit {"limiter":"api","key":"u1"} -> 200 "remaining":0
        POST /v1/hit {"limiter":"api","key":"u1"} -> 429 "allowed":false & "retry_after_ms":1000
        POST /v1/hit {"limiter":"api","key":"u2"} -> 200 "remaining":2
        at 60
        POST /v1/hit {"limiter":"api","key":"u1"} -> 200 "remaining":0
        at 61
        POST /v1/hit {"limiter":"api","key":"u1"} -> 429 "reason":"limited"
        at 90
        POST /v1/hit {"limiter":"api","key":"u1"} -> 200 "remaining":0"#,
    );
}

#[test]
fn a_denial_is_the_answer_and_a_problem_with_the_fields_of_the_draft() {
    check(
        &Server::start(),
        r#"
        POST /v1/hit {"limiter":"two","key":"u1","cost":2} -> 200 ratelimit-policy: "two";q=2;w=60, "two-2";q=3;w=3600 & ratelimit: "two";r=0;t=60 & !retry-after
        POST /v1/hit {"limiter":"two","key":"u1"} -> 429 content-type: application/problem+json & retry-after: 60 & ratelimit: "two";r=0;t=60 & "type":"https://iana.org/assignments/http-problem-types#quota-exceeded" & "title":"Request cannot & "status":429 & "violated-policies":["two"] & "detail":"limiter two allows 2 per 1m; try again in 60000 ms"
        at 1060
        POST /v1/hit {"limiter":"two","key":"u1","cost":2} -> 429 retry-after: 3540 & ratelimit: "two-2";r=1;t=3540 & "violated-policies":["two-2"] & !explanation & "limit":3,"remaining":1
        POST /v1/hit {"limiter":"burst","key":"u1"} -> 200 ratelimit-policy: "burst";q=20;w=60 & "limit":40,"remaining":39 & ratelimit: "burst";r=39;t=3
        POST /v1/hit {"limiter":"never","key":"u1"} -> 429 "reason":"cost_above_limit" & "retry_after_ms":null & !retry-after: & ratelimit: "never";r=0"#,
    );
}

#[test]
fn a5_costs_are_charged_whole_or_not_at_all() {
    check(
        &Server::start(),
        r#"
        POST /v1/hit {"limiter":"api","key":"u1","cost":0} -> 200 "remaining":3
        POST /v1/hit {"limiter":"api","key":"u1","cost":4} -> 429 "reason":"cost_above_limit" & "remaining":3 & !retry-after: & waiting does not help
        POST /v1/hit {"limiter":"api","key":"u1","cost":4294967295} -> 429 "reason":"cost_above_limit"
        POST /v1/hit {"limiter":"api","key":"u1","cost":2.0} -> 200 "remaining":1
        POST /v1/hit {"limiter":"api","key":"u1","cost":2} -> 429 "reason":"limited" & "remaining":1
        POST /v1/hit {"limiter":"api","key":"u1","peek":true} -> 200 "remaining":1
        POST /v1/hit {"limiter":"api","key":"u1"} -> 200 "remaining":0
        POST /v1/hit {"limiter":"api","key":"u1","peek":true} -> 429 "reason":"limited""#,
    );
}

#[test]
fn a5_user_and_address_are_charged_together_or_not_at_all() {
    check(
        &Server::start(),
        r#"
        POST /v1/hit {"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"}} -> 200 "limiter":"login-user" & "remaining":1
        POST /v1/hit {"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"}} -> 200 "remaining":0
        POST /v1/hit {"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"}} -> 429 "limiter":"login-user"
        POST /v1/hit {"domain":"login","attributes":{"ip":"192.0.2.1"}} -> 200 "limiter":"login-ip" & "remaining":0
        POST /v1/hit {"domain":"login","attributes":{"user":"u2","ip":"192.0.2.1"}} -> 429 "limiter":"login-ip"
        POST /v1/hit {"domain":"login","attributes":{"user":"u2"},"peek":true} -> 200 "remaining":2
        POST /v1/hit {"domain":"login","attributes":{"tenant":"t"}} -> 200 {"allowed":true,"limiter":null,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null,"reason":"ok"} & !ratelimit
        POST /v1/hit {"domain":"other","attributes":{"user":"u1"}} -> 200 "limiter":null
        POST /v1/hit {"attributes":{"ip":"192.0.2.1"}} -> 200 "limiter":"anywhere" & "remaining":3"#,
    );
}

#[test]
fn an_explanation_names_every_limiter_that_matched() {
    let server = Server::start();
    check(
        &server,
        r#"
        POST /v1/hit {"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"},"explain":true} -> 200 "explanation":[{"limiter":"login-user","key":"u1","role":"enforced","enabled":true,"decided":true,"sketched":false,"unlimited":false,"match":null,"override":false,"blocked_until":null,"limits":[{"rule":"2 per 1m","allowed":true,"limit":2,"remaining":1,"retry_after_ms":null,"reset_after_ms":60000}]},{"limiter":"login-ip","key":"192.0.2.1"
        POST /v1/hit {"domain":"other","attributes":{"user":"u1"},"explain":true} -> 200 "explanation":[]
        POST /v1/hit {"limiter":"api","key":"u1"} -> 200 !explanation
        GET /v1/limiters/two/keys/u1 -> 200 "remaining":2 & {"rule":"3 per 1h","allowed":true
        GET /v1/limiters/two/keys/u1?cost=3 -> 429 "reason":"cost_above_limit" & {"rule":"3 per 1h","allowed":true
        POST /v1/hit {"limiter":"strict","key":"u1"} -> 200
        POST /v1/hit {"limiter":"strict","key":"u1"} -> 429 "retry_after_ms":600000
        GET /v1/limiters/strict/keys/u1 -> 429 "reason":"blocked" & "blocked_until":1600 & limiter strict blocks this key; try again in 600000 ms"#,
    );
    let body = server.ask(r#"POST /v1/hit {"limiter":"api","key":"u1","explain":true}"#).json();
    assert_eq!(body["explanation"][0]["limits"][0]["remaining"], 1);
}

/// Only the one that decided was named.
#[test]
fn violated_policies_names_every_limit_that_denies() {
    let server = Server::start();
    let login = r#"{"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"}}"#;
    let other = r#"{"domain":"login","attributes":{"user":"u2","ip":"192.0.2.1"}}"#;
    check(
        &server,
        &format!(
            r#"
        POST /v1/hit {login} -> 200 !violated
        POST /v1/hit {login} -> 200
        POST /v1/hit {login} -> 429 "violated-policies":["login-user"] & !explanation
        POST /v1/hit {other} -> 200
        POST /v1/hit {login} -> 429 "violated-policies":["login-user","login-ip"]
        POST /v1/hit {other} -> 429 "violated-policies":["login-ip"]
        GET /v1/allowed?domain=login&user=u1&ip=192.0.2.1 -> 429 "violated-policies":["login-user","login-ip"] & !explanation
        POST /v1/hit {{"limiter":"two","key":"u1","cost":2}} -> 200
        POST /v1/hit {{"limiter":"two","key":"u1"}} -> 429 "violated-policies":["two"]
        POST /v1/hit {{"limiter":"two","key":"u1","cost":2}} -> 429 "violated-policies":["two","two-2"]
        PUT /v1/limiters/login-user/keys/u3/block {{"for":"10m"}} -> 200
        GET /v1/allowed?domain=login&user=u3&ip=192.0.2.1 -> 429 "reason":"blocked" & "violated-policies":["login-user","login-ip"]
        GET /v1/allowed?domain=login&user=u3&ip=192.0.2.9 -> 429 "violated-policies":["login-user"]"#
        ),
    );
}

/// Counted whole, whoever has a /64 has 2^64 addresses.
#[test]
fn s2_ipv6_addresses_count_by_their_network() {
    let server = Server::start();
    check(
        &server,
        r#"
        GET /v1/allowed?domain=login&ip=2001:db8:1:2::1 -> 200 "remaining":2
        GET /v1/allowed?domain=login&ip=2001%3Adb8%3A1%3A2%3Affff%3A%3A -> 200 "remaining":1
        POST /v1/hit {"domain":"login","attributes":{"ip":"[2001:db8:1:2::3]:4711"}} -> 200 "remaining":0
        POST /v1/hit {"limiter":"login-ip","key":"2001:db8:1:2::4"} -> 429
        POST /v1/hit {"limiter":"login-ip","key":"2001:db8:1:2::/64","explain":true} -> 429 "key":"2001:db8:1:2::/64"
        GET /v1/limiters/login-ip/keys/2001:db8:1:2::5 -> 429
        GET /v1/allowed?domain=login&ip=2001:db8:1:3::1 -> 200 "remaining":2
        GET /v1/allowed?domain=login&ip=::ffff:192.0.2.1 -> 200 "remaining":2
        GET /v1/allowed?domain=login&ip=192.0.2.1 -> 200 "remaining":1
        GET /v1/limiters/login-ip/keys -> 200 {"keys":["192.0.2.1","2001:db8:1:2::/64","2001:db8:1:3::/64"],"next":null}
        PUT /v1/limiters/login-ip/keys/2001:db8:9::1/block {"for":"10m"} -> 200
        GET /v1/allowed?domain=login&ip=2001:db8:9::2 -> 429 "reason":"blocked"
        DELETE /v1/limiters/login-ip/keys/2001:db8:9::3/block -> 200 {"unblocked":true}
        GET /v1/limiters/login-ip -> 200 "by":["ip"],"ipv6_prefix":64
        GET /v1/limiters/login-user -> 200 !ipv6_prefix
        POST /v1/hit {"limiter":"api","key":"2001:db8::1"} -> 200 "remaining":2
        POST /v1/hit {"limiter":"api","key":"2001:db8::2"} -> 200 "remaining":2"#,
    );
}

#[test]
fn the_design_notes_question_by_query() {
    check(
        &Server::start(),
        r#"
        GET /v1/allowed?user=u1&ip=192.0.2.1&domain=login -> 200 "limiter":"login-user" & "remaining":1
        GET /v1/allowed?user=u1&ip=192.0.2.1&domain=login -> 200
        GET /v1/allowed?user=u1&ip=192.0.2.1&domain=login -> 429 "status":429 & retry-after: 60
        GET /v1/allowed?user=u1&domain=login&deny_status=403 -> 403 "status":403 & "allowed":false & retry-after: 60
        GET /v1/allowed?user=u1&domain=login&deny_status=401 -> 401
        GET /v1/allowed?user=&ip=192.0.2.1&domain=login -> 200 "limiter":"login-ip" & "remaining":0
        GET /v1/allowed?ip=192.0.2.1&domain=login -> 429 "limiter":"login-ip"
        GET /v1/allowed?ip=192.0.2.9 -> 200 "limiter":"anywhere"
        GET /v1/allowed?user=%FF%00&domain=login -> 200 "limiter":"login-user"
        GET /v1/limiters/login-user/keys/%ff%00 -> 200 "remaining":1 & "binary_key":"%FF%00"
        GET /v1/allowed?user=a+b&domain=login -> 200
        GET /v1/limiters/login-user/keys/a%20b -> 200 "remaining":1
        GET /v1/allowed -> 400 "code":"missing_field" & both \"user\" and \"ip\" are missing
        GET /v1/allowed?user=&ip= -> 400 "code":"missing_field""#,
    );
}

#[test]
fn a5_a_hundred_at_once_at_limit_ten_are_exactly_ten() {
    let server = Server::start();
    for round in 0..5 {
        let request = format!(r#"POST /v1/hit {{"limiter":"ten","key":"round-{round}"}}"#);
        let allowed = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..100).map(|_| scope.spawn(|| server.ask(&request).status)).collect();
            asking
                .into_iter()
                .filter(|_| true)
                .map(|asked| asked.join().unwrap())
                .filter(|status| *status == 200)
                .count()
        });
        assert_eq!(allowed, 10, "round {round}");
    }
}

/// Of the limiter `tiers`: `gold*` has other limits, `free` none, and addresses of 10.0.0.0/8 are denied.
#[test]
fn a11_answers_fields_and_explanations_print_the_limits_that_hold_for_the_key() {
    check(
        &Server::start(),
        r#"
        POST /v1/hit {"limiter":"tiers","key":"u1"} -> 200 ratelimit-policy: "tiers";q=2;w=60 & "limit":2,"remaining":1
        POST /v1/hit {"limiter":"tiers","key":"gold-1","explain":true} -> 200 ratelimit-policy: "tiers";q=20;w=60 & ratelimit: "tiers";r=19;t=60 & "limit":20,"remaining":19 & "match":1 & "rule":"20 per 1m"
        GET /v1/limiters/tiers/keys/gold-1 -> 200 "limit":20,"remaining":19 & "match":1
        POST /v1/hit {"limiter":"tiers","key":"free","cost":1000,"explain":true} -> 200 {"allowed":true,"limiter":"tiers","limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null,"reason":"ok" & "unlimited":true,"match":2 & !ratelimit
        POST /v1/hit {"limiter":"tiers","key":"bad"} -> 429 "limit":0,"remaining":0 & "reason":"blocked" & "retry_after_ms":null & ratelimit: "tiers";r=0 & !retry-after: & limiter tiers blocks this key; waiting does not help & "violated-policies":["tiers"]
        GET /v1/allowed?user=u1&ip=10.1.2.3&domain=tiers -> 429 "limiter":"tiers-ip" & "reason":"blocked" & "violated-policies":["tiers-ip"]
        GET /v1/allowed?user=u1&ip=11.1.2.3&domain=tiers -> 200 "limiter":"tiers-user" & "remaining":1
        PUT /v1/limiters/tiers/keys/gold-1/block {"for":"10m"} -> 200 "blocked_until"
        POST /v1/hit {"limiter":"tiers","key":"gold-1"} -> 429 "limit":20 & "reason":"blocked"
        GET /v1/limiters/tiers -> 200 "counts":{"allowed":3,"denied":2,"peeked":1"#,
    );
}
