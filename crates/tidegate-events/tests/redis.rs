//! Streams that several servers share on a real Redis.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_core::Micros;
use tidegate_events::{Cut, Mode, Now, Outcome, StreamSpec, Streams, SubmitError, Subscription};
use tidegate_store::{Clock, Store};
use tidegate_testkit::servers::Server;
use tidegate_testkit::servers::cluster::Cluster;
use tokio::time::timeout;

fn spec(duration_ms: u64) -> StreamSpec {
    let mut spec = StreamSpec::new("orders", Mode::StrictlyOnce);
    (spec.rules.duration_ms, spec.rules.snapshot_every_ms) = (duration_ms, 3_600_000);
    spec
}

/// A clock that has nothing to do with the Redis's.
fn now() -> Now {
    let start = Instant::now();
    Arc::new(move || Micros::saturating(7_000_000 + u64::try_from(start.elapsed().as_micros()).unwrap()))
}

async fn open(server: &Server, spec: &StreamSpec) -> Streams {
    Streams::on_store(vec![spec.clone()], &store(&server.url()).await, &now()).await.unwrap()
}

async fn next(subscription: &mut Subscription) -> Result<Vec<String>, Cut> {
    let messages = timeout(Duration::from_secs(10), subscription.next()).await.expect("in time")?;
    Ok(messages.iter().map(|message| String::from_utf8(message.body.to_vec()).unwrap()).collect())
}

/// The next so many messages: clock and type.
async fn received(subscription: &mut Subscription, count: usize) -> Vec<String> {
    let mut received = Vec::new();
    while received.len() < count {
        for body in next(subscription).await.unwrap() {
            let clock = body.strip_prefix("{\"clock\":").unwrap().split(',').next().unwrap();
            let kind = body.rsplit("\"messageType\":\"").next().unwrap().trim_end_matches("\"}");
            received.push(format!("{clock} {kind}"));
        }
    }
    received
}

#[tokio::test]
async fn c1_c2_c3_e3_what_one_server_takes_all_push_in_order_and_on_time() {
    let server = Server::redis(&[]);
    let spec = spec(400);
    let (one, two) = (open(&server, &spec).await, open(&server, &spec).await);
    let (one, two) = (one.get("orders").unwrap(), two.get("orders").unwrap());
    let (mut at_one, mut at_two) = (one.subscribe(None).await.unwrap(), two.subscribe(None).await.unwrap());
    for subscription in [&mut at_one, &mut at_two] {
        assert_eq!(received(subscription, 1).await, ["1 KEY_FRAME"]);
    }
    let submitted = Instant::now();
    assert_eq!(one.submit(b"a").await, Ok(Outcome::Submitted { clock: 2 }));
    assert!(matches!(two.submit(b"a").await, Ok(Outcome::Conflict { .. })));
    assert_eq!(two.submit(b"b/\"\\\n\0b").await, Ok(Outcome::Submitted { clock: 4 }));
    for subscription in [&mut at_one, &mut at_two] {
        let expected = ["2 SUBMITTED_EVENT", "3 INVALIDATED_EVENT", "4 SUBMITTED_EVENT", "5 PUBLISHED_EVENT"];
        assert_eq!(received(subscription, 4).await, expected);
    }
    let took = submitted.elapsed();
    assert!(took >= Duration::from_millis(399) && took < Duration::from_millis(1_500), "{took:?}");
    // A third comes later: it has what followed the key frame, and the same snapshot.
    let three = open(&server, &spec).await;
    let three = three.get("orders").unwrap();
    let mut resumed = three.subscribe(Some(3.into())).await.unwrap();
    assert_eq!(received(&mut resumed, 2).await, ["4 SUBMITTED_EVENT", "5 PUBLISHED_EVENT"]);
    let _ = three.submit(b"c").await.unwrap();
    assert_eq!(received(&mut at_one, 1).await, ["6 SUBMITTED_EVENT"]);
    let (ours, theirs) = (one.snapshot().await.unwrap(), three.snapshot().await.unwrap());
    assert_eq!(ours.body, theirs.body);
    assert!(String::from_utf8(ours.body.to_vec()).unwrap().contains("\"event\":\"c\""));
}

#[tokio::test]
async fn a_redis_that_is_away_is_told_and_waited_for() {
    let server = Server::redis(&[]);
    let streams = open(&server, &spec(200)).await;
    let stream = streams.get("orders").unwrap();
    let mut subscription = stream.subscribe(None).await.unwrap();
    assert_eq!(received(&mut subscription, 1).await, ["1 KEY_FRAME"]);
    let _ = stream.submit(b"a").await.unwrap();
    server.signal("STOP");
    let away = timeout(Duration::from_secs(10), stream.submit(b"b")).await.expect("an answer in time");
    assert!(matches!(away, Err(SubmitError::Unavailable { .. })), "{away:?}");
    server.signal("CONT");
    // a is published late, b may or may not have been taken; then all is as before.
    let seen = received(&mut subscription, 2).await;
    assert_eq!(seen[0], "2 SUBMITTED_EVENT");
    let back = Instant::now();
    while stream.submit(format!("{:?}", back.elapsed()).as_bytes()).await.is_err() {
        assert!(back.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn c1_a_redis_that_lost_its_data_is_noticed_and_subscribers_begin_again() {
    let server = Server::redis(&[]);
    let streams = open(&server, &spec(60_000)).await;
    let stream = streams.get("orders").unwrap();
    let mut subscription = stream.subscribe(None).await.unwrap();
    let _ = stream.submit(b"a").await.unwrap();
    assert_eq!(received(&mut subscription, 2).await.last().unwrap(), "2 SUBMITTED_EVENT");
    server.command(&["FLUSHALL"]);
    // In the clock there is a gap, and right after it the key frame that heals it.
    let first = received(&mut subscription, 1).await.remove(0);
    let (clock, kind) = first.split_once(' ').unwrap();
    assert!(kind == "KEY_FRAME" && clock.parse::<u64>().unwrap() > 1_000_000, "{first}");
    let mut again = stream.subscribe(Some(2.into())).await.unwrap();
    assert_eq!(received(&mut again, 1).await, [first]);
    assert!(matches!(stream.submit(b"a").await, Ok(Outcome::Submitted { .. })), "what incubated is lost with the data");
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_c2_e3_two_servers_on_a_cluster() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let (url, spec) = (store(&cluster.url()).await, spec(400));
    let one = Streams::on_store(vec![spec.clone()], &url, &now()).await.unwrap();
    let two = Streams::on_store(vec![spec], &url, &now()).await.unwrap();
    let (one, two) = (one.get("orders").unwrap(), two.get("orders").unwrap());
    let mut at_two = two.subscribe(None).await.unwrap();
    assert_eq!(received(&mut at_two, 1).await, ["1 KEY_FRAME"]);
    assert_eq!(one.submit(b"a").await, Ok(Outcome::Submitted { clock: 2 }));
    assert!(matches!(two.submit(b"a").await, Ok(Outcome::Conflict { .. })));
    assert_eq!(two.submit(b"b").await, Ok(Outcome::Submitted { clock: 4 }));
    let expected = ["2 SUBMITTED_EVENT", "3 INVALIDATED_EVENT", "4 SUBMITTED_EVENT", "5 PUBLISHED_EVENT"];
    assert_eq!(received(&mut at_two, 4).await, expected);
}

#[tokio::test]
async fn twemproxy_is_refused() {
    let url = store("twemproxy://127.0.0.1:1").await;
    let error = Streams::on_store(vec![spec(1)], &url, &now()).await.unwrap_err();
    assert!(error.to_string().contains("twemproxy"), "{error}");
}

async fn store(url: &str) -> Store {
    Store::open(url.parse().unwrap(), &Clock::process()).await
}
