//! S7: every change by hand is in the audit, once, with who, what, when and why; what was refused is not.

use crate::server::{Server, check};
use serde_json::Value;

/// Every route that changes something by hand, as a request that succeeds.
const CHANGES: [(&str, &str); 7] = [
    (
        "override",
        r#"PUT /v1/limiters/api/keys/u%201/limits {"limits":["9 per minute"],"for":"1h","reason":"ticket 5"}"#,
    ),
    ("clear-override", "DELETE /v1/limiters/api/keys/u%201/limits"),
    ("block", r#"PUT /v1/limiters/api/keys/u%201/block {"for":"10m","reason":"ticket 5"}"#),
    ("unblock", "DELETE /v1/limiters/api/keys/u%201/block"),
    ("unblock-all", "DELETE /v1/limiters/api/blocks"),
    ("disable", "POST /v1/limiters/api/disable"),
    ("enable", "POST /v1/limiters/api/enable"),
];

fn entries(server: &Server) -> Vec<Value> {
    server.ask("GET /v1/audit").json()["entries"].as_array().unwrap().clone()
}

#[test]
fn s7_every_change_by_hand_is_noted_once() {
    let server = Server::start();
    for (index, (what, request)) in CHANGES.iter().enumerate() {
        let answered = server.ask_with(request, "Tidegate-Reason: caf%C3%A9 100%25\r\n");
        assert_eq!(answered.status, 200, "{request}: {}", answered.body);
        let all = entries(&server);
        assert_eq!(all.len(), index + 1, "{request}");
        let entry = &all[0];
        assert_eq!(entry["what"], *what);
        assert_eq!((&entry["number"], &entry["at"]), (&Value::from(index + 1), &Value::from(1_000)), "{entry}");
        assert_eq!((&entry["who"], &entry["limiter"]), (&Value::from("127.0.0.1"), &Value::from("api")), "{entry}");
        let key = if what.ends_with("block") || what.ends_with("override") { Value::from("u 1") } else { Value::Null };
        assert_eq!(entry["key"], key, "{entry}");
        let why = if ["block", "override"].contains(what) { "ticket 5" } else { "café 100%" };
        assert_eq!(entry["why"], why, "the body's before the header's: {entry}");
    }
    let details: Vec<Value> = entries(&server).iter().map(|entry| entry["detail"].clone()).collect();
    assert_eq!(
        details,
        [
            Value::Null,
            Value::Null,
            "unblocked: 0".into(),
            "unblocked: true".into(),
            "for 10m".into(),
            "cleared: true".into(),
            "9 per 1m for 1h".into()
        ]
    );
}

/// Every route whose access rule is that of a change is in the list above: a new one is forgotten here and noted nowhere.
#[test]
fn s7_every_route_that_changes_is_in_the_test() {
    let page = Server::start().ask("GET /openapi.json").json();
    let mut changing = 0;
    // A client that ends its own reservation changes nothing by hand.
    let by_hand = |path: &str| !path.starts_with("/v1/reservations/");
    for (path, methods) in page["paths"].as_object().unwrap().iter().filter(|(path, _)| by_hand(path)) {
        for method in methods.as_object().unwrap().keys() {
            let is_switch = method == "post" && path.ends_with("able");
            changing += usize::from(is_switch || ["put", "delete"].contains(&method.as_str()));
        }
    }
    assert_eq!(changing, CHANGES.len(), "add the new one to CHANGES");
}

#[test]
fn s7_what_is_refused_is_not_noted() {
    let server = Server::start();
    let long = "x".repeat(513);
    check(
        &server,
        &format!(
            r#"
        PUT /v1/limiters/none/keys/u1/block {{"for":"10m"}} -> 404
        PUT /v1/limiters/api/keys/u1/block {{"for":"soon"}} -> 400
        PUT /v1/limiters/api/keys/u1/block {{"for":"10m","reason":5}} -> 400 "code":"wrong_type"
        PUT /v1/limiters/api/keys/u1/block {{"for":"10m","reason":"{long}"}} -> 400 "code":"bad_reason" & at most 512
        DELETE /v1/limiters/none/blocks -> 404
        POST /v1/limiters/none/disable -> 404
        GET /v1/audit -> 200 {{"kept":false,"entries":[],"next":null}}"#
        ),
    );
    for (reason, part) in [("%zz", "bad_percent_encoding"), ("%ff", "bad_reason"), (&long, "bad_reason")] {
        let refused = server.ask_with("POST /v1/limiters/api/disable", &format!("Tidegate-Reason: {reason}\r\n"));
        assert!(refused.status == 400 && refused.body.contains(part), "{reason}: {}", refused.body);
    }
    for (_, request) in CHANGES {
        let refused = server.ask_with(request, "Origin: http://evil.example\r\n");
        assert_eq!(refused.status, 403, "{request}");
    }
    assert_eq!(entries(&server), Vec::<Value>::new());
    check(&server, r#"POST /v1/hit {"limiter":"api","key":"u1"} -> 200"#);
    assert_eq!(entries(&server), Vec::<Value>::new(), "a decision is no change by hand");
}

#[test]
fn pages_go_back_in_time() {
    let server = Server::start();
    for _ in 0..3 {
        assert_eq!(server.ask("POST /v1/limiters/api/enable").status, 200);
    }
    check(
        &server,
        r#"
        GET /v1/audit?most=2 -> 200 {"kept":false,"entries":[{"number":3, & "next":2}
        GET /v1/audit?most=2&before=2 -> 200 "entries":[{"number":1, & "next":null}
        GET /v1/audit?before=0 -> 400 "code":"bad_number"
        GET /v1/audit?most=1001 -> 400
        GET /v1/audit?after=1 -> 400 "code":"unknown_field"
        DELETE /v1/audit -> 405"#,
    );
}
