//! A store that stands still: every call is answered, by `on_failure`, before Envoy would give up.

use crate::server::{Server, ask, connect, policy, request};
use std::time::Duration;
use tidegate::{Clock, Gate, OnFailure, StoreSettings};
use tidegate_doors::grpc::GrpcSettings;
use tidegate_doors::ratelimit::RateLimitSettings;
use tidegate_testkit::{Stopwatch, number, servers, slowness};
use tidegate_wire::grpc::ratelimit::{Kind, RateLimitResponse, ResponseCode, SHOULD_RATE_LIMIT};

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
        let ratelimit = RateLimitSettings { headers: true, dynamic_metadata: true };
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

#[test]
fn f1_a_store_that_stands_still_is_an_answer_within_15_ms() {
    for (on_failure, expected) in [(OnFailure::Allow, ResponseCode::Ok), (OnFailure::Deny, ResponseCode::OverLimit)] {
        let redis = servers::Server::redis(&[]);
        let settings = StoreSettings { on_failure, ..StoreSettings::default() };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let url = format!("redis://127.0.0.1:{}", redis.port).parse().unwrap();
        let gate = runtime.block_on(Gate::connect(&policy(), url, settings, Clock::process()));
        let server = Server::on(runtime, gate, Clock::process(), GrpcSettings::default());
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
