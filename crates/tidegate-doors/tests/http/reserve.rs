//! `/v1/reserve` and what ends a reservation.

use crate::server::{Server, check, check_response, limited, limiter};
use tidegate::{Algorithm, Clock, Gate, Micros, Policy};
use tidegate_doors::access::{Access, Grant, Hash, Rules, Scope, Token, Tokens};
use tidegate_doors::http::{HttpSettings, Limits};

/// A door whose clock stands at 1,000 s until it is set.
fn door(settings: HttpSettings) -> (Server, Clock) {
    let clock = Clock::manual(Micros::from_secs(1_000));
    let policy = Policy::new(vec![
        limiter("api", Algorithm::SlidingLog, &["3 per minute"]),
        limiter("ten", Algorithm::SlidingLog, &["10 per hour"]),
        limiter("tokens", Algorithm::TokenBucket, &["10 per hour"]),
        limiter("strict", Algorithm::FixedWindow, &["1 per minute block 10m"]),
        limiter("average", Algorithm::LeakyAverage, &["10 per minute"]),
    ]);
    (Server::on(Gate::with_clock(policy.unwrap(), clock.clone()), settings), clock)
}

/// Reserves, and returns the reservation's name.
fn reserve(server: &Server, body: &str) -> String {
    let reply = server.ask(&format!("POST /v1/reserve {body}"));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let told: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    told["reservation"].as_str().unwrap().to_owned()
}

#[test]
fn r1_a_commit_gives_back_or_charges_and_says_so() {
    let (server, clock) = door(HttpSettings::default());
    for limiter in ["ten", "tokens"] {
        let id = reserve(&server, &format!(r#"{{"limiter":"{limiter}","key":"a","cost":6,"for":"30s"}}"#));
        let commit =
            |id: &str, cost: u32| server.ask(&format!("POST /v1/reservations/{id}/commit {{\"cost\":{cost}}}"));
        check_response(
            "less",
            &commit(&id, 2),
            r#"200 "allowed":true & "remaining":8 & "cost":2,"given_back":4,"excess":0 & content-type: application/json"#,
        );
        check_response("twice", &commit(&id, 2), r#"409 "code":"not_reserved" & "field":"reservation""#);
        check_response("and cancelled", &server.ask(&format!("DELETE /v1/reservations/{id}")), "409 not_reserved");
        let id = reserve(&server, &format!(r#"{{"limiter":"{limiter}","key":"a","cost":1}}"#));
        check_response("more", &commit(&id, 5), r#"200 "remaining":3 & "given_back":0,"excess":4"#);
        let id = reserve(&server, &format!(r#"{{"limiter":"{limiter}","key":"a","cost":3}}"#));
        check_response(
            "cancelled",
            &server.ask(&format!("DELETE /v1/reservations/{id}")),
            r#"200 "remaining":3 & "cost":0,"given_back":3,"excess":0"#,
        );
        let id = reserve(&server, &format!(r#"{{"limiter":"{limiter}","key":"b","cost":9,"for":"5s"}}"#));
        let now = server.gate.now();
        clock.set(now.saturating_add(Micros::from_secs(5)));
        check_response("late", &commit(&id, 0), "409 not_reserved & its time is over");
        let left = server.ask(&format!("POST /v1/hit {{\"limiter\":\"{limiter}\",\"key\":\"b\",\"cost\":0}}"));
        check_response("the charge stays", &left, r#"200 "remaining":1"#);
        clock.set(now);
    }
}

#[test]
fn r1_what_cannot_be_reserved_says_why_and_charges_nothing() {
    let (server, _) = door(HttpSettings::default());
    check(
        &server,
        r#"
        POST /v1/reserve {"limiter":"ten","key":"a","cost":11} -> 429 "reservation":null & "reason":"cost_above_limit" & "violated-policies"
        POST /v1/reserve {"limiter":"strict","key":"a"} -> 200 "reservation":"
        POST /v1/reserve {"limiter":"strict","key":"a"} -> 429 "reservation":null & retry-after: 600
        POST /v1/reserve {"limiter":"average","key":"a"} -> 501 not_supported & gives nothing back
        POST /v1/reserve {"limiter":"nobody","key":"a"} -> 404 unknown_limiter
        POST /v1/reserve {"limiter":"ten"} -> 400 "code":"missing_field" & "field":"key"
        POST /v1/reserve {"key":"a"} -> 400 "code":"missing_field" & "field":"limiter"
        POST /v1/reserve {"limiter":"ten","key":"a","cost":-1} -> 400 "code":"bad_cost"
        POST /v1/reserve {"limiter":"ten","key":"a","for":"soon"} -> 400 "code":"bad_duration" & "field":"for"
        POST /v1/reserve {"limiter":"ten","key":"a","for":"25h"} -> 400 "code":"bad_duration" & 1ms to
        POST /v1/reserve {"limiter":"ten","key":"a","peek":true} -> 400 "code":"unknown_field"
        POST /v1/reservations/x/commit {"cost":1} -> 400 "code":"bad_reservation" & "value":"x"
        POST /v1/reservations/AAAAAAAAAAAAAAAAAAAAAANhcGlr/commit {} -> 400 "code":"missing_field" & "field":"cost"
        POST /v1/reservations/AAAAAAAAAAAAAAAAAAAAAANhcGlr/commit {"cost":1} -> 409 not_reserved
        POST /v1/reservations/AAAAAAAAAAAAAAAAAAAAAANhcGxr/commit {"cost":1} -> 404 unknown_limiter
        POST /v1/hit {"limiter":"ten","key":"a","cost":0} -> 200 "remaining":10"#,
    );
}

/// Nobody else's name ends it: not one of another key, nor of another limiter.
#[test]
fn r1_a_forged_name_ends_nothing() {
    let (server, _) = door(HttpSettings::default());
    let id = reserve(&server, r#"{"limiter":"ten","key":"abc","cost":6}"#);
    for at in 0..id.len() {
        for other in ["A", "z", "_"] {
            let mut forged = id.clone();
            forged.replace_range(at..=at, other);
            if forged != id {
                let reply = server.ask(&format!("DELETE /v1/reservations/{forged}"));
                assert!([400, 404, 409].contains(&reply.status), "{forged}: {}", reply.body);
            }
        }
    }
    assert_eq!(server.ask(&format!("DELETE /v1/reservations/{id}")).status, 200);
}

#[test]
fn r1_whoever_unblocks_a_key_forgets_its_reservations() {
    let (server, _) = door(HttpSettings::default());
    let id = reserve(&server, r#"{"limiter":"ten","key":"a","cost":6}"#);
    assert_eq!(server.ask("DELETE /v1/limiters/ten/keys/a/block").status, 200);
    check_response(
        "its charge is forgotten",
        &server.ask(&format!("DELETE /v1/reservations/{id}")),
        "409 not_reserved & its key was unblocked",
    );
}

#[test]
fn m6_reservations_are_capped_in_all_and_per_address() {
    let (server, clock) = door(limited(Limits { reservations: 20, ..Limits::default() }));
    // One address leaves a tenth to others.
    let ids: Vec<String> =
        (0..18).map(|n| reserve(&server, &format!(r#"{{"limiter":"ten","key":"k{n}","for":"10s"}}"#))).collect();
    let more = r#"POST /v1/reserve {"limiter":"ten","key":"more"}"#;
    check_response(
        "one more",
        &server.ask(more),
        "503 too_many_reservations & your address has as many & (20 in all) & retry-after: 1",
    );
    check_response("is not charged", &server.ask("GET /v1/limiters/ten/keys/more?cost=0"), r#"200 "remaining":10"#);
    assert!(server.ask("GET /metrics").body.contains("tidegate_limits_taken{what=\"reservations\"} 18\n"));
    assert_eq!(server.ask(&format!("DELETE /v1/reservations/{}", ids[0])).status, 200);
    assert_eq!(server.ask(more).status, 200);
    assert_eq!(server.ask(more).status, 503);
    clock.set(server.gate.now().saturating_add(Micros::from_secs(10)));
    assert_eq!(server.ask(more).status, 200, "those whose time is over have no place");
    assert!(server.ask("GET /metrics").body.contains("tidegate_limits_taken{what=\"reservations\"} 2\n"));
}

#[test]
fn m6_reservations_are_capped_per_token() {
    let token = |name: &str| Token {
        name: name.to_owned(),
        hash: Hash::of(format!("tg_{name}").as_bytes()),
        grant: Grant { scopes: [Scope::Check].into_iter().collect(), ..Grant::default() },
        expires: None,
    };
    let tokens = Tokens::new(vec![token("one"), token("two")], Vec::new()).unwrap();
    let access = Access::new(Rules { tokens: Some(tokens), ..Rules::default() });
    let limits = Limits { reservations: 10, ..Limits::default() };
    let (server, _) = door(HttpSettings { access: access.into(), ..limited(limits) });
    let ask = |who: &str, address: &str, n: usize| {
        let mut client = server.connect_from(address);
        let request = format!("POST /v1/reserve {{\"limiter\":\"ten\",\"key\":\"k{n}\"}}");
        client.send(&request, &format!("Authorization: Bearer tg_{who}\r\n"));
        client.response().unwrap()
    };
    // Nine of ten for one token, wherever it comes from; the last is another's.
    for n in 0..9 {
        assert_eq!(ask("one", ["127.0.0.2", "127.0.0.3"][n % 2], n).status, 200);
    }
    check_response("the tenth", &ask("one", "127.0.0.4", 9), "503 too_many_reservations & your token has as many");
    assert_eq!(ask("two", "127.0.0.4", 9).status, 200);
    check_response("the eleventh", &ask("two", "127.0.0.4", 10), "503 too_many_reservations & all are taken");
}
