//! Limiters, their switch, their keys and blocks.

use crate::server::{Server, check, check_response};
use std::collections::BTreeSet;
use tidegate::{Micros, Request};
use tidegate_doors::http::HttpSettings;

#[test]
fn limiters_tell_what_they_are_and_how_it_went() {
    let server = Server::start();
    check(
        &server,
        r#"
        POST /v1/hit {"limiter":"api","key":"u1","cost":3} -> 200
        POST /v1/hit {"limiter":"api","key":"u1"} -> 429
        GET /v1/limiters/api/keys/u1 -> 429
        GET /v1/limiters/api -> 200 {"name":"api","enabled":true,"algorithm":"sliding-log","aligned":false,"limits":["3 per 1m"],"domain":null,"by":[],"names":true,"honour_disable":true,"entries":1, & "counts":{"allowed":1,"denied":1,"peeked":1,"sketched_allowed":0,"sketched_denied":0}
        GET /v1/limiters/never -> 200 "algorithm":"fixed-window","aligned":true
        GET /v1/limiters/login-ip -> 200 "domain":"login","by":["ip"]
        HEAD /v1/limiters/api -> 200"#,
    );
    let names: Vec<String> = server.ask("GET /v1/limiters").json()["limiters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limiter| limiter["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names[..3], ["api", "two", "burst"]);
    assert_eq!(names.len(), 15);
}

#[test]
fn the_keys_that_come_first_are_told_with_their_error() {
    check(
        &Server::start(),
        r#"
        POST /v1/hit {"limiter":"strict","key":"<img src=x onerror=alert(1)>"} -> 200
        POST /v1/hit {"limiter":"strict","key":"<img src=x onerror=alert(1)>"} -> 429
        POST /v1/hit {"limiter":"strict","key":"u1"} -> 200
        POST /v1/hit {"limiter":"strict","key":"u2","peek":true} -> 200
        GET /v1/limiters/strict/top -> 200 {"by":"hits","since":1000,"keys":[{"key":"<img src=x onerror=alert(1)>","count":2,"error":0},{"key":"u1","count":1,"error":0}]}
        GET /v1/limiters/strict/top?by=hits&n=1 -> 200 "keys":[{"key":"<img src=x onerror=alert(1)>","count":2,"error":0}]}
        GET /v1/limiters/strict/top?by=denials -> 200 {"by":"denials","since":1000,"keys":[{"key":"<img src=x onerror=alert(1)>","count":1,"error":0}]}
        PUT /v1/limiters/strict/keys/%FF/block {"for":"10m"} -> 200
        PUT /v1/limiters/strict/keys/b/block {"for":"20m"} -> 200
        GET /v1/limiters/strict/top?by=blocked -> 200 {"by":"blocked","keys":[{"key":"b","blocked_until":2200},{"key":"<img src=x onerror=alert(1)>","blocked_until":1600},{"binary_key":"%FF","blocked_until":1600}]}
        at 1700
        GET /v1/limiters/strict/top?by=hits -> 200 {"by":"hits","since":1700,"keys":[]}
        GET /v1/limiters/strict/top?by=cost -> 400 "code":"bad_by" & hits, denials or blocked
        GET /v1/limiters/strict/top?n=0 -> 400 "field":"n"
        GET /v1/limiters/strict/top?n=101 -> 400 "field":"n"
        GET /v1/limiters/none/top -> 404 "code":"unknown_limiter""#,
    );
}

#[test]
fn the_latest_decisions_on_a_key_are_its_story() {
    check(
        &Server::start(),
        r#"
        GET /v1/limiters/notify/keys/u1/decisions -> 200 {"decisions":[]}
        POST /v1/hit {"limiter":"notify","key":"u1","cost":5} -> 200
        at 1002
        POST /v1/hit {"limiter":"notify","key":"u1"} -> 429
        POST /v1/hit {"limiter":"notify","key":"u2"} -> 200
        GET /v1/limiters/notify/keys/u1/decisions -> 200 {"decisions":[{"at":1002,"allowed":false,"reason":"limited","cost":1,"limit":5,"remaining":0,"retry_after_ms":40000},{"at":1000,"allowed":true,"reason":"ok","cost":5,"limit":5,"remaining":0,"retry_after_ms":null}]}
        GET /v1/limiters/notify/keys/u1/decisions?n=1 -> 200 !"at":1000
        GET /v1/limiters/notify/keys/u1/decisions?n=1000 -> 400 "field":"n"
        GET /v1/limiters/api/keys/u1/decisions -> 501 "code":"not_kept" & last_decisions = 1000"#,
    );
}

#[test]
fn a_disabled_limiter_allows_everything_and_counts_nothing() {
    check(
        &Server::start(),
        r#"
        POST /v1/hit {"limiter":"strict","key":"u1"} -> 200 "remaining":0
        POST /v1/limiters/strict/disable -> 200 {"limiter":"strict","enabled":false}
        POST /v1/hit {"limiter":"strict","key":"u1"} -> 200 {"allowed":true,"limiter":"strict","limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null,"reason":"disabled"} & !ratelimit
        POST /v1/hit {"limiter":"strict","key":"u1","explain":true} -> 200 "enabled":false,"decided":false & "limits":[]
        GET /v1/limiters/strict -> 200 "enabled":false
        POST /v1/limiters/strict/enable -> 200 {"limiter":"strict","enabled":true}
        POST /v1/hit {"limiter":"strict","key":"u1"} -> 429
        POST /v1/limiters/none/enable -> 404 "code":"unknown_limiter""#,
    );
}

#[test]
fn a10_blocks_last_their_time_and_unblock_holds_at_once() {
    check(
        &Server::start(),
        r#"
        PUT /v1/limiters/api/keys/u1/block {"for":"10m"} -> 200 {"blocked_until":1600}
        PUT /v1/limiters/api/keys/u3/block {"for":"1500ms"} -> 200 {"blocked_until":1001.5}
        POST /v1/hit {"limiter":"api","key":"u1"} -> 429 "reason":"blocked" & retry-after: 600 & "retry_after_ms":600000
        GET /v1/limiters/api/keys?state=blocked -> 200 {"keys":["u1","u3"],"next":null}
        DELETE /v1/limiters/api/keys/u1/block -> 200 {"unblocked":true}
        DELETE /v1/limiters/api/keys/u1/block -> 200 {"unblocked":false}
        POST /v1/hit {"limiter":"api","key":"u1"} -> 200 "remaining":2
        PUT /v1/limiters/api/keys/u1/block {"for":"10m"} -> 200
        PUT /v1/limiters/api/keys/u2/block {"for":"20m"} -> 200
        at 1002
        DELETE /v1/limiters/api/blocks -> 200 {"unblocked":2}
        DELETE /v1/limiters/api/blocks -> 200 {"unblocked":0}
        POST /v1/hit {"limiter":"api","key":"u2"} -> 200
        PUT /v1/limiters/api/keys/u2/block {"for":"1m"} -> 200 {"blocked_until":1062}
        at 1062
        POST /v1/hit {"limiter":"api","key":"u2"} -> 200"#,
    );
}

#[test]
fn keys_are_any_bytes_and_never_look_alike() {
    let server = Server::start();
    // Each of these must be a key of its own: bytes that are no UTF-8, their percent code as a
    // text, a slash, a quote, an escape.
    let keys = ["%FF%FE", "%25FF%25FE", "a%2Fb", "%22%5C%0A", "caf%C3%A9", "+", "%20", "%00"];
    for key in keys {
        let response = server.ask(&format!(r#"PUT /v1/limiters/api/keys/{key}/block {{"for":"10m"}}"#));
        assert_eq!(response.status, 200, "{key}: {}", response.body);
    }
    let page = server.ask("GET /v1/limiters/api/keys?state=blocked").json();
    let texts: BTreeSet<&str> = page["keys"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
    assert_eq!(texts, BTreeSet::from(["%FF%FE", "a/b", "\"\\\n", "café", "+", " ", "\0"]));
    assert_eq!(page["binary_keys"], serde_json::json!(["%FF%FE"]));
    for key in keys {
        assert_eq!(
            server.ask(&format!("DELETE /v1/limiters/api/keys/{key}/block")).body,
            r#"{"unblocked":true}"#,
            "{key}"
        );
    }
}

#[test]
fn pages_follow_each_other_to_the_end() {
    let server = Server::start();
    for i in 0..300 {
        assert!(server.gate.hit("api", format!("key-{i:03}")).unwrap().allowed);
    }
    let mut seen = BTreeSet::new();
    let mut after = String::new();
    let mut pages = 0;
    loop {
        let page = server.ask(&format!("GET /v1/limiters/api/keys?state=tracked&most=50{after}")).json();
        for key in page["keys"].as_array().unwrap() {
            assert!(seen.insert(key.as_str().unwrap().to_owned()), "{key} twice");
        }
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 300);
    assert!(pages > 1, "all came in one page");
}

#[test]
fn m2_a_full_table_limits_on_and_has_no_place_for_a_block() {
    let server = Server::with_memory(HttpSettings::default(), 4 << 20);
    // Parts of the table fill at different times: go on until there is no place for this very key.
    let new = Request::hit("api", b"new").peek().explained();
    let live = (0..400_000).find(|i| {
        let _ = server.gate.hit("api", format!("key-{i}")).unwrap();
        server.gate.decide(&new).unwrap().explanation[0].sketched
    });
    assert!(live.is_some(), "the table never filled");
    // One shard is full first, and hashes are seeded: a key that finds its own shard full is looked for.
    let refused = |i: &u32| {
        let key = format!("new-{i}").into_bytes();
        server.gate.at_once(server.gate.block("api", &key, Micros::from_secs(600))).is_err()
    };
    let new = format!("new-{}", (0..10_000).find(refused).unwrap());
    let script = r#"
        PUT /v1/limiters/api/keys/new/block {"for":"10m"} -> 507 "code":"full" & raise [store] max_memory
        PUT /v1/limiters/api/keys/key-0/block {"for":"10m"} -> 200
        POST /v1/hit {"limiter":"api","key":"new","cost":3,"explain":true} -> 200 "sketched":true
        POST /v1/hit {"limiter":"api","key":"new"} -> 429
        GET /v1/limiters/api/keys/new -> 429 "sketched":true
        GET /metrics -> 200 !tidegate_sketched_decisions_total{limiter="api",role="enforced",verdict="denied"} 0"#;
    check(&server, &script.replace("keys/new", &format!("keys/{new}")).replace("\"new\"", &format!("\"{new}\"")));
}

#[test]
fn s2_only_this_machine_and_no_web_page_changes_things() {
    let server = Server::start();
    let changes = [
        "POST /v1/limiters/api/enable",
        "POST /v1/limiters/api/disable",
        "DELETE /v1/limiters/api/blocks",
        r#"PUT /v1/limiters/api/keys/u1/block {"for":"10m"}"#,
        "DELETE /v1/limiters/api/keys/u1/block",
    ];
    for change in changes {
        let from_page = server.ask_with(change, "origin: http://evil.example\r\n");
        check_response(change, &from_page, "403 \"code\":\"cross_origin\" & \"field\":\"Origin\"");
        let from_proxy = server.ask_with(change, "x-forwarded-for: 192.0.2.1\r\n");
        check_response(change, &from_proxy, "403 \"code\":\"not_loopback\"");
        check_response(change, &server.ask(change), "200");
    }
    let hit = server.ask_with(r#"POST /v1/hit {"limiter":"ten","key":"u1"}"#, "x-forwarded-for: 192.0.2.1\r\n");
    check_response("a hit changes nothing of this kind", &hit, "200");
}

#[test]
fn a11_overrides_are_set_shown_listed_and_cleared() {
    check(
        &Server::start(),
        r#"
        POST /v1/hit {"limiter":"api","key":"vip","cost":3} -> 200 "remaining":0
        PUT /v1/limiters/api/keys/vip/limits {"limits":["9 per minute"],"for":"1h","reason":"ticket \"7\""} -> 200 {"until":4600}
        POST /v1/hit {"limiter":"api","key":"vip","explain":true} -> 200 ratelimit-policy: "api";q=9;w=60 & "limit":9,"remaining":5 & "override":true,"override_until":4600,"override_reason":"ticket \"7\"" & "rule":"9 per 1m"
        GET /v1/limiters/api/keys/vip -> 200 "limit":9,"remaining":5 & "override":true
        GET /v1/limiters/api/keys?state=overridden -> 200 {"keys":["vip"],"overrides":[{"key":"vip","limits":["9 per 1m"],"until":4600,"reason":"ticket \"7\"","fits":true}],"next":null}
        PUT /v1/limiters/api/keys/%FF/limits {"limits":["4 per minute"]} -> 200 {"until":null}
        GET /v1/limiters/api/keys?state=overridden -> 200 "binary_key":"%FF","limits":["4 per 1m"],"until":null,"reason":null,"fits":true
        PUT /v1/limiters/api/keys/vip/limits {"limits":["9 per minute","8 per hour"]} -> 400 "code":"bad_limits" & 2 limits cannot stand in for the limiter's 1
        PUT /v1/limiters/api/keys/vip/limits {"limits":[]} -> 400 "code":"bad_limits" & 1 to 8, and has 0
        PUT /v1/limiters/api/keys/vip/limits {"limits":["9 per moon"]} -> 400 "code":"bad_limits" & "value":"9 per moon"
        PUT /v1/limiters/api/keys/vip/limits {"limits":[9]} -> 400 "code":"wrong_type"
        PUT /v1/limiters/api/keys/vip/limits {"limits":"9 per minute"} -> 400 "code":"wrong_type"
        PUT /v1/limiters/api/keys/vip/limits {"for":"1h"} -> 400 "code":"missing_field"
        PUT /v1/limiters/none/keys/vip/limits {"limits":["9 per minute"]} -> 404
        DELETE /v1/limiters/api/keys/vip/limits -> 200 {"cleared":true}
        DELETE /v1/limiters/api/keys/vip/limits -> 200 {"cleared":false}
        POST /v1/hit {"limiter":"api","key":"vip","explain":true} -> 429 "limit":3 & "override":false"#,
    );
}
