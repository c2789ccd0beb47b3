//! Who may call: every method against every kind of caller, as one table; and what a browser may not.

use crate::server::{Server, call, connect, ended, later, request};
use bytes::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::sync::Arc;
use std::time::Duration;
use tidegate::Micros;
use tidegate_doors::access::{Access, Grant, Hash, Pattern, Rules, Scope, Token, Tokens};
use tidegate_doors::grpc::{GrpcSettings, Metrics};
use tidegate_doors::listener::Caps;
use tidegate_wire::grpc::framed;
use tidegate_wire::grpc::health::{self, HealthCheckRequest};
use tidegate_wire::grpc::ratelimit::{CHECK_RATE_LIMIT, REPORT, SHOULD_RATE_LIMIT};
use tokio::net::TcpStream;

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

/// A method, the scope that it needs (`-`: none). A new one fails [`s5_every_method_is_a_row_of_the_table`] until it has a row.
const ROWS: [(&str, &str); 5] = [
    (SHOULD_RATE_LIMIT, "check"),
    (CHECK_RATE_LIMIT, "check"),
    (REPORT, "check"),
    (health::CHECK, "-"),
    (health::WATCH, "-"),
];

fn token(name: &str, scope: Scope, domains: &[&str], expires: Option<Micros>) -> Token {
    let domains = domains.iter().map(|text| text.parse::<Pattern>().unwrap()).collect();
    let grant = Grant { scopes: [scope].into_iter().collect(), domains, ..Grant::default() };
    Token { name: name.to_owned(), hash: Hash::of(format!("tg_{name}").as_bytes()), grant, expires }
}

fn server() -> Server {
    let mut tokens = vec![token("expired", Scope::Check, &[], Some(Micros::from_secs(1_000)))];
    for scope in Scope::ALL {
        let name = scope.name();
        tokens.push(token(name, scope, &[], Some(Micros::from_secs(1_001))));
        tokens.push(token(&format!("narrowed-{name}"), scope, &["d*"], None));
        tokens.push(token(&format!("elsewhere-{name}"), scope, &["e*"], None));
    }
    let rules = Rules { tokens: Some(Tokens::new(tokens, Vec::new()).unwrap()), ..Rules::default() };
    Server::with(GrpcSettings { access: Arc::new(Access::new(rules)), ..GrpcSettings::default() })
}

/// Who asks, by the `authorization` that it sends, and the status that it has of a method that needs this scope.
fn callers(needs: &str) -> Vec<(Option<String>, u32)> {
    let mut all = vec![(None, 16)];
    for wrong in ["Bearer tg_nobody", "Bearer tg_expired", "Bearer ", "Basic dGc6dGc=", "Bearer tg_check tg_check"] {
        all.push((Some(wrong.to_owned()), 16));
    }
    for scope in Scope::ALL {
        let may = if scope.name() == needs { 0 } else { 7 };
        for (kind, status) in [("", may), ("narrowed-", may), ("elsewhere-", 7)] {
            all.push((Some(format!("Bearer tg_{kind}{}", scope.name())), status));
        }
    }
    if needs == "-" {
        all.iter_mut().for_each(|(_, status)| *status = 0);
    }
    all
}

/// All that a call could have changed or charged.
fn state(server: &Server) -> String {
    let told = server
        .gate
        .limiters()
        .into_iter()
        .map(|info| format!("{} {:?} {:?}", info.spec.name, info.counts, info.entries));
    told.collect::<Vec<_>>().join(", ")
}

#[test]
fn s5_every_method_refuses_whom_it_should_and_a_refusal_changes_nothing() {
    let server = server();
    for (method, needs) in ROWS {
        for (authorization, status) in callers(needs) {
            let before = state(&server);
            let seen = server.runtime.block_on(async {
                let body =
                    if needs == "-" { framed(&HealthCheckRequest::default()) } else { framed(&request("bytes=a")) };
                let mut asked = call(method, body);
                if let Some(field) = &authorization {
                    asked.headers_mut().insert("authorization", field.parse().unwrap());
                }
                let response = connect(server.address).await.send_request(asked).await.unwrap();
                match response.headers().get("grpc-status") {
                    Some(refused) => refused.to_str().unwrap().parse().unwrap(),
                    // A watch does not end.
                    None if method == health::WATCH => 0,
                    None => ended(response).await.status,
                }
            });
            assert_eq!(seen, status, "{method} by {authorization:?}");
            assert!(status == 0 || state(&server) == before, "{method} by {authorization:?} was refused, and charged");
        }
    }
    // A page that was given a token may use it.
    check(&server, &[("authorization", "Bearer tg_check"), ("origin", "http://app.example")], 0);
}

/// The refusal of an unknown method names those that there are.
#[test]
fn s5_every_method_is_a_row_of_the_table() {
    let server = Server::start();
    let refused = server.runtime.block_on(async {
        let asked = call("/none.None/None", framed(&HealthCheckRequest::default()));
        ended(connect(server.address).await.send_request(asked).await.unwrap()).await
    });
    let (_, known) = refused.message.split_once("this server has ").unwrap();
    let rows: Vec<&str> = ROWS.iter().map(|(method, _)| method.trim_start_matches('/')).collect();
    assert_eq!(known.split(", ").collect::<Vec<_>>(), rows);
}

#[test]
fn m6_one_token_does_not_get_every_connection() {
    let rules = Rules {
        tokens: Some(Tokens::new(vec![token("one", Scope::Check, &[], None)], Vec::new()).unwrap()),
        ..Rules::default()
    };
    let metrics = Arc::new(Metrics::new(Caps { all: 10, per_address: 10, per_token: 2 }));
    let server =
        Server::with(GrpcSettings { access: Arc::new(Access::new(rules)), metrics, ..GrpcSettings::default() });
    server.runtime.block_on(async {
        let mut senders = Vec::new();
        let mut statuses = Vec::new();
        for _ in 0..3 {
            senders.push(connect(server.address).await);
            let mut asked = call(SHOULD_RATE_LIMIT, framed(&request("bytes=a")));
            asked.headers_mut().insert("authorization", "Bearer tg_one".parse().unwrap());
            statuses.push(ended(senders.last_mut().unwrap().send_request(asked).await.unwrap()).await.status);
        }
        assert_eq!(statuses, [0, 0, 8]);
    });
}

/// Calls whose message does not come were counted by address alone.
#[test]
fn m6_one_token_does_not_have_all_calls_that_wait() {
    let metrics = Arc::new(Metrics::new(Caps { all: 20, per_address: 20, per_token: 3 }));
    let tokens = vec![token("greedy", Scope::Check, &[], None), token("other", Scope::Check, &[], None)];
    let rules = Rules { tokens: Some(Tokens::new(tokens, Vec::new()).unwrap()), ..Rules::default() };
    let server =
        Server::with(GrpcSettings { access: Arc::new(Access::new(rules)), metrics, ..GrpcSettings::default() });
    server.runtime.block_on(async {
        let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new()).handshake(io).await.unwrap();
        tokio::spawn(connection);
        let mut half = |name: &str| {
            let (sent, body) = later();
            sent.try_send(Bytes::from_static(&[0, 0, 0, 1, 0, 10])).unwrap();
            let mut asked = call(SHOULD_RATE_LIMIT, Vec::new()).map(|_| body);
            let field = format!("Bearer tg_{name}").parse().unwrap();
            asked.headers_mut().insert("authorization", field);
            (sent, tokio::spawn(sender.send_request(asked)))
        };
        let halves: Vec<_> = (0..4).map(|_| half("greedy")).collect();
        let (mut refused, mut waiting) = (Vec::new(), Vec::new());
        for (sent, mut asked) in halves {
            match tokio::time::timeout(Duration::from_millis(500), &mut asked).await {
                Ok(answer) => refused.push(answer.unwrap().unwrap().headers().clone()),
                Err(_) => waiting.push((sent, asked)),
            }
        }
        assert_eq!((refused.len(), waiting.len()), (1, 3), "{refused:?}");
        let message = refused[0]["grpc-message"].to_str().unwrap();
        assert!(refused[0]["grpc-status"] == "14" && message.contains("your token has as many"), "{message}");
        let (_sent, other) = half("other");
        assert!(tokio::time::timeout(Duration::from_millis(500), other).await.is_err(), "another token's call waits");
    });
}
