//! Who may call: tokens by metadata, and what a browser may not.

use crate::server::{Server, call, connect, ended, request};
use std::sync::Arc;
use tidegate::Micros;
use tidegate_doors::access::{Access, Grant, Hash, Pattern, Rules, Scope, Token, Tokens};
use tidegate_doors::grpc::GrpcSettings;
use tidegate_wire::grpc::framed;
use tidegate_wire::grpc::health::{CHECK, HealthCheckRequest};
use tidegate_wire::grpc::ratelimit::SHOULD_RATE_LIMIT;

/// A call with these fields, and the status that it has.
#[track_caller]
fn check(server: &Server, fields: &[(&str, &str)], status: u32) {
    let ended = server.runtime.block_on(async {
        let mut asked = call(SHOULD_RATE_LIMIT, framed(&request("user=a")));
        for (name, value) in fields {
            asked.headers_mut().insert(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        ended(connect(server.address).await.send_request(asked).await.unwrap()).await
    });
    assert_eq!(ended.status, status, "{fields:?}: {}", ended.message);
}

#[test]
fn s2_without_tokens_programs_may_call_under_any_name_and_browsers_may_not() {
    let server = Server::start();
    check(&server, &[], 0);
    check(&server, &[("authorization", "Bearer of-another-server")], 0);
    check(&server, &[("origin", "http://evil.example")], 7);
    check(&server, &[("sec-fetch-site", "cross-site")], 7);
}

fn token(name: &str, scope: Scope, domains: &[&str], expires: Option<Micros>) -> Token {
    let domains = domains.iter().map(|text| text.parse::<Pattern>().unwrap()).collect();
    let grant = Grant { scopes: [scope].into_iter().collect(), domains, ..Grant::default() };
    Token { name: name.to_owned(), hash: Hash::of(format!("tg_{name}").as_bytes()), grant, expires }
}

#[test]
fn s5_with_tokens_a_call_needs_one_with_the_scope_and_the_domain() {
    let tokens = vec![
        token("check", Scope::Check, &[], None),
        token("read", Scope::Read, &[], None),
        token("mine", Scope::Check, &["d*"], None),
        token("other", Scope::Check, &["e*"], None),
        token("old", Scope::Check, &[], Some(Micros::from_secs(1_000))),
    ];
    let rules = Rules { tokens: Some(Tokens::new(tokens, Vec::new()).unwrap()), ..Rules::default() };
    let access = Arc::new(Access::new(rules));
    let server = Server::with(GrpcSettings { access, ..GrpcSettings::default() });
    let bearer = |text: &str| format!("Bearer {text}");
    check(&server, &[], 16);
    check(&server, &[("authorization", "Basic dGc6dGc=")], 16);
    for (name, status) in [("check", 0), ("read", 7), ("mine", 0), ("other", 7), ("old", 16), ("nobody", 16)] {
        check(&server, &[("authorization", &bearer(&format!("tg_{name}")))], status);
    }
    // A page that was given a token may use it.
    check(&server, &[("authorization", &bearer("tg_check")), ("origin", "http://app.example")], 0);
    let healthy = server.runtime.block_on(async {
        let asked = call(CHECK, framed(&HealthCheckRequest::default()));
        ended(connect(server.address).await.send_request(asked).await.unwrap()).await
    });
    assert_eq!(healthy.status, 0, "health needs none");
    assert_eq!(server.gate.peek("user", "a").unwrap().remaining, Some(2), "a refusal charges nothing");
}
