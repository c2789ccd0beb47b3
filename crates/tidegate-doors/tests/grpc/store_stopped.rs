//! A store that stands still: every call is answered, by `on_failure`, before Envoy would give up.

use crate::server::{Sender, Server, ask, call, connect, ended, policy, request};
use std::time::Duration;
use tidegate::{Clock, Gate, OnFailure, StoreSettings};
use tidegate_doors::grpc::GrpcSettings;
use tidegate_doors::ratelimit::{HeaderNames, RateLimitSettings};
use tidegate_testkit::faults::{Fault, Proxy};
use tidegate_testkit::{Stopwatch, eventually, number, servers, slowness};
use tidegate_wire::grpc::framed;
use tidegate_wire::grpc::ratelimit::{Kind, REPORT, RateLimitResponse, ResponseCode, SHOULD_RATE_LIMIT};

/// What Envoy waits for is 20 ms.
const WITHIN: Duration = Duration::from_millis(15);

/// With `allow` nothing in the answer said that no limit was asked.
#[test]
fn f6_answers_without_the_store_say_so_where_headers_and_metadata_are_wanted() {
    for on_failure in [OnFailure::Allow, OnFailure::Deny, OnFailure::Local] {
        let redis = servers::Server::redis(&[]);
        let settings = StoreSettings { on_failure, ..StoreSettings::default() };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let url = format!("redis://127.0.0.1:{}", redis.port).parse().unwrap();
        let gate = runtime.block_on(Gate::connect(&policy(), url, settings, Clock::process()));
        let ratelimit = RateLimitSettings {
            headers: HeaderNames::standard(),
            dynamic_metadata: true,
            ..RateLimitSettings::default()
        };
        let server = Server::on(runtime, gate, Clock::process(), GrpcSettings { ratelimit, ..GrpcSettings::default() });
        let told = || {
            let asked =
                async { ask(&mut connect(server.address).await, SHOULD_RATE_LIMIT, &request("user=ann")).await };
            let said: RateLimitResponse = server.runtime.block_on(asked).said();
            let header = said.response_headers_to_add.iter().find(|field| field.key == "tidegate-degraded");
            let metadata = said.dynamic_metadata.unwrap().fields.remove("degraded").and_then(|value| value.kind);
            (header.map(|field| field.value.clone()), metadata)
        };
        assert_eq!(told(), (None, None), "the store answers at first");
        redis.signal("STOP");
        let by = on_failure.as_str().to_owned();
        assert_eq!(told(), (Some(by.clone()), Some(Kind::Text(by))));
        redis.signal("CONT");
    }
}

/// A door whose store is the Redis on this port.
fn server(port: u16, settings: StoreSettings) -> Server {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = format!("redis://127.0.0.1:{port}").parse().unwrap();
    let gate = runtime.block_on(Gate::connect(&policy(), url, settings, Clock::process()));
    Server::on(runtime, gate, Clock::process(), GrpcSettings::default())
}

/// Asks as a client that waits so long.
async fn asked_within(sender: &mut Sender, method: &str, asked: &str, timeout: &str) -> RateLimitResponse {
    let mut asked = call(method, framed(&request(asked)));
    asked.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
    ended(sender.send_request(asked).await.unwrap()).await.said()
}

#[test]
fn f1_a_store_that_stands_still_is_an_answer_within_15_ms() {
    for (on_failure, expected) in [(OnFailure::Allow, ResponseCode::Ok), (OnFailure::Deny, ResponseCode::OverLimit)] {
        let redis = servers::Server::redis(&[]);
        let server = server(redis.port, StoreSettings { on_failure, ..StoreSettings::default() });
        let (calls, asked) = (number("TIDEGATE_CALLS", 10_000), request("user=ann & path=/x cost=2"));
        let mut took: Vec<Duration> = server.runtime.block_on(async {
            let mut sender = connect(server.address).await;
            let said: RateLimitResponse = ask(&mut sender, SHOULD_RATE_LIMIT, &asked).await.said();
            assert_eq!(said.overall_code, i32::from(ResponseCode::Ok), "the store answers at first");
            redis.signal("STOP");
            let mut took = Vec::with_capacity(calls);
            for _ in 0..calls {
                let begun = Stopwatch::start();
                let said: RateLimitResponse = ask(&mut sender, SHOULD_RATE_LIMIT, &asked).await.said();
                took.push(begun.elapsed());
                assert_eq!(said.overall_code, i32::from(expected), "{on_failure:?}");
                assert_eq!(said.statuses.len(), 2);
            }
            took
        });
        redis.signal("CONT");
        took.sort_unstable();
        let (p999, most) = (took[calls * 999 / 1000], took[calls - 1]);
        println!("{on_failure:?}: {calls} calls, p99.9 {p999:?}, the longest {most:?}");
        assert!(p999 <= WITHIN * slowness(), "{p999:?}");
    }
}

/// The store may take 4 s by the settings, and three fifths of what the client waits by the call.
#[test]
fn f1_a_client_that_waits_less_long_is_answered_earlier() {
    let redis = servers::Server::redis(&[]);
    let settings =
        StoreSettings { on_failure: OnFailure::Deny, deadline: Duration::from_secs(5), ..StoreSettings::default() };
    let server = server(redis.port, settings);
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let said = asked_within(&mut sender, SHOULD_RATE_LIMIT, "user=ann", "20S").await;
        assert_eq!(said.overall_code, i32::from(ResponseCode::Ok), "the store answers at first");
        redis.signal("STOP");
        let begun = Stopwatch::start();
        let said = asked_within(&mut sender, SHOULD_RATE_LIMIT, "user=ann", "100m").await;
        let took = begun.elapsed();
        redis.signal("CONT");
        assert_eq!(said.overall_code, i32::from(ResponseCode::OverLimit), "by on_failure");
        assert!(took <= Duration::from_millis(100) * slowness(), "{took:?}");
    });
}

/// A store that takes 20 ms for every answer, and calls that ask it many times: the time is one for all of them, 60 ms of the client's 100.
/// Each step once had the whole of it.
#[test]
fn f1_the_stores_time_is_one_for_all_steps_of_a_call() {
    let redis = servers::Server::redis(&[]);
    let proxy = Proxy::before(redis.port);
    let settings = StoreSettings { deadline: Duration::from_secs(5), ..StoreSettings::default() };
    let server = server(proxy.port, settings);
    let given_back: Vec<String> = (0..20).map(|n| format!("user=u{n} back")).collect();
    let looked_at = format!("path=/x cost=9 & {}", given_back.join(" & "));
    let reported: Vec<String> = (0..20).map(|n| format!("user=u{n}")).collect();
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let calls = [
            (SHOULD_RATE_LIMIT, given_back.join(" & ")),
            (SHOULD_RATE_LIMIT, looked_at),
            (REPORT, reported.join(" & ")),
        ];
        // Redis knows the scripts then: each step is one round trip.
        for (method, asked) in &calls {
            asked_within(&mut sender, method, asked, "20S").await;
        }
        for (method, asked) in &calls {
            proxy.set(Fault::Delay(Duration::from_millis(20)));
            let begun = Stopwatch::start();
            let said = asked_within(&mut sender, method, asked, "100m").await;
            let took = begun.elapsed();
            assert_eq!(said.statuses.len(), asked.split('&').count());
            assert!(took <= Duration::from_millis(100) * slowness(), "{asked}: {took:?}");
            proxy.set(Fault::None);
            // Somebody was not answered in time, so that the store is not asked until it was heard again.
            eventually("the store is asked again", || server.gate.store().answers());
        }
    });
}
