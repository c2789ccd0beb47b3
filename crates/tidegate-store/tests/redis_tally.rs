//! Redis against the core's tally: the same random questions at the same chosen times.
//!
//! `TIDEGATE_SEED=7 TIDEGATE_STEPS=100000 cargo nextest run -p tidegate-store --features redis --test redis_tally`
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::time::Duration;
use tidegate_core::replicas::{ReplicaId, Tally};
use tidegate_core::turnstile::{Grant, Name, Outlook, QuotaRequest};
use tidegate_core::{Micros, Windows};
use tidegate_store::redis::{Bought, Redis};
use tidegate_testkit::servers::Server;
use tidegate_testkit::{Random, number};

const STEPS: u64 = 5_000;
const WITHIN: Duration = Duration::from_secs(5);

#[tokio::test]
async fn redis_grants_as_the_core_does() {
    compare(&Server::redis(&[])).await;
}

#[tokio::test]
async fn valkey_grants_as_the_core_does() {
    compare(&Server::valkey()).await;
}

async fn compare(server: &Server) {
    let (seed, steps) = (number("TIDEGATE_SEED", 1), number("TIDEGATE_STEPS", STEPS));
    let redis = Redis::open(server.url().parse().unwrap()).await;
    let (mut random, mut tally, mut round, mut granted) = (Random(seed), Tally::default(), 0_u64, 0_u64);
    let mut now = 1_700_000_000_000_000_u64;
    for step in 0..steps {
        if random.below(500) == 0 {
            (tally, round) = (Tally::default(), round + 1);
        }
        now = now + random.below(400_000) - 100_000;
        // The server's clock is set ahead, and back.
        match random.below(100) {
            0 => now += 20_000_000,
            1 => now -= 20_000_000,
            _ => {}
        }
        // Weeks begin some days sooner than multiples of seven days since the epoch; here seconds do, by some milliseconds.
        let windows = Windows::of(Micros::from_secs(1)).sooner(Micros::from_millis(300 * (round % 3)));
        // Redis forgets by the machine's clock; these times only say what is compared.
        let request = QuotaRequest {
            name: Name::default(),
            windows,
            window: windows.number(Micros::new(now + random.below(200_000) - 100_000).unwrap()),
            limit: random.small(8),
            in_flight: random.small(6),
            held: random.small(4),
            want: random.small(5),
            unused: random.small(3),
        };
        let (me, number) = (ReplicaId(1 + random.below(3)), step + 3 - random.below(3));
        let at = Micros::new(now).unwrap();
        let expected = match tally.answer(me, number, &request, at) {
            None => Bought::OtherTime(at),
            Some(Grant { outlook: Outlook::Failed, .. }) => Bought::Overtaken,
            Some(grant) => Bought::Granted(grant),
        };
        let key = format!("tidegate:exact:{{{round}}}").into_bytes();
        let got = redis.buy(key, (me, number), &request, Some(at), WITHIN).await.unwrap();
        assert_eq!(got, expected, "seed {seed}, step {step}: {request:?}");
        granted += if let Bought::Granted(grant) = got { u64::from(grant.granted) } else { 0 };
    }
    println!("{steps} requests, {granted} granted, seed {seed}");
    assert!(granted > steps / 4, "{granted} granted");
    assert_eq!(server.keys_without_expiry(), Vec::<String>::new());
}
