//! Streams on a Redis that is restarted with all its data, and servers that are: subscribers get what Redis holds (C6).
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_core::Micros;
use tidegate_events::{Cut, Mode, Now, Seen, Stream, StreamSpec, Streams, Subscription};
use tidegate_store::{Clock, Store};
use tidegate_testkit::faults::{Fault, Proxy};
use tidegate_testkit::servers::Server;
use tokio::time::{sleep, timeout};

/// A Redis that keeps everything that it has answered.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn spec(snapshot_every_ms: u64) -> StreamSpec {
    let mut spec = StreamSpec::new("orders", Mode::OnlyOnce);
    (spec.rules.duration_ms, spec.rules.snapshot_every_ms) = (100, snapshot_every_ms);
    spec
}

async fn open(port: u16, spec: &StreamSpec) -> Streams {
    let start = Instant::now();
    let now: Now = Arc::new(move || Micros::saturating(u64::try_from(start.elapsed().as_micros()).unwrap()));
    let store = Store::open(format!("redis://127.0.0.1:{port}").parse().unwrap(), &Clock::process()).await;
    Streams::on_store(vec![spec.clone()], &store, &now).await.unwrap()
}

/// Messages as `KIND event`, with their clock values, until this one is there.
async fn received_until(subscription: &mut Subscription, last: &str) -> Vec<(u64, String)> {
    let (since, mut received): (_, Vec<(u64, String)>) = (Instant::now(), Vec::new());
    while !received.iter().any(|(_, text)| text == last) {
        assert!(since.elapsed() < Duration::from_secs(20), "{last} was not sent, but {received:?}");
        let next = timeout(Duration::from_secs(20), subscription.next()).await;
        let messages = next.unwrap_or_else(|_| panic!("{last} was not sent, but {received:?}")).unwrap();
        for message in messages {
            let body = String::from_utf8(message.body.to_vec()).unwrap();
            let kind = body.rsplit("\"messageType\":\"").next().unwrap().trim_end_matches("\"}");
            let event = body.split("\"event\":\"").nth(1).map_or("", |rest| rest.split('"').next().unwrap());
            let text = if kind == "KEY_FRAME" { kind.to_owned() } else { format!("{kind} {event}") };
            received.push((message.clock, text));
        }
    }
    received
}

async fn submit(stream: &Stream, event: &str) {
    let since = Instant::now();
    while stream.submit(event.as_bytes()).await.is_err() {
        assert!(since.elapsed() < Duration::from_secs(20), "{event} was not taken");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A server had not read the last messages when its Redis was killed. They stood in the log of the one that came back with
/// everything, before the jump that a restart makes, and were sent to no subscriber.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_what_was_not_read_before_a_restart_of_redis_is_told_before_the_jump() {
    let mut server = Server::redis(&DURABLE);
    let proxy = Proxy::before(server.port);
    let spec = spec(3_600_000);
    let (far, near) = (open(proxy.port, &spec).await, open(server.port, &spec).await);
    let (far, near) = (far.get("orders").unwrap(), near.get("orders").unwrap());
    let (mut at_far, mut at_near) = (far.subscribe(None).await.unwrap(), near.subscribe(None).await.unwrap());
    received_until(&mut at_far, "KEY_FRAME").await;
    proxy.set(Fault::Silence);
    submit(near, "unread").await;
    let before = received_until(&mut at_near, "PUBLISHED_EVENT unread").await;
    server.kill();
    server.start_again(&[]);
    submit(near, "after").await;
    proxy.set(Fault::None);
    let received = received_until(&mut at_far, "PUBLISHED_EVENT after").await;
    let texts: Vec<&str> = received.iter().map(|(_, text)| text.as_str()).collect();
    let expected = [
        "SUBMITTED_EVENT unread",
        "PUBLISHED_EVENT unread",
        "KEY_FRAME",
        "SUBMITTED_EVENT after",
        "PUBLISHED_EVENT after",
    ];
    assert_eq!(texts, expected, "{received:?}");
    assert!(received[1].0 == before.last().unwrap().0 && received[2].0 > received[1].0 + 1_000_000, "C1: {received:?}");
    let same = received_until(&mut at_near, "PUBLISHED_EVENT after").await;
    assert_eq!(received[2..], same, "C1: both servers send the same");
}

/// A Redis without data, and another server that is the first to come to it: the history there is another one, although
/// it has the same clock values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_a_history_that_another_server_began_is_not_joined_to_the_one_before() {
    let server = Server::redis(&[]);
    let proxy = Proxy::before(server.port);
    let spec = spec(3_600_000);
    let old = open(proxy.port, &spec).await;
    let old = old.get("orders").unwrap();
    let mut subscription = old.subscribe(None).await.unwrap();
    submit(old, "before").await;
    received_until(&mut subscription, "PUBLISHED_EVENT before").await;
    let epoch = old.snapshot().await.unwrap().epoch;
    proxy.set(Fault::Silence);
    // What it asked for before the silence is answered, too.
    sleep(Duration::from_millis(500)).await;
    server.command(&["FLUSHALL"]);
    let new = open(server.port, &spec).await;
    let new = new.get("orders").unwrap();
    let mut at_new = new.subscribe(None).await.unwrap();
    for event in ["one", "two", "three"] {
        submit(new, event).await;
        received_until(&mut at_new, &format!("PUBLISHED_EVENT {event}")).await;
    }
    let clock = new.snapshot().await.unwrap().clock;
    assert!(clock > 3 && new.snapshot().await.unwrap().epoch != epoch);
    let resumed = new.subscribe(Some(Seen { clock: 3, epoch: Some(epoch) })).await;
    assert_eq!(received_until(&mut resumed.unwrap(), "KEY_FRAME").await, [(clock, "KEY_FRAME".to_owned())]);
    proxy.set(Fault::None);
    // A subscriber of the old server goes on with a key frame: at once, or after it was cut and came back.
    let next = timeout(Duration::from_secs(20), subscription.next()).await.unwrap();
    assert!(next.as_ref().map_or_else(|cut| matches!(cut, Cut::Anew(3)), |all| all[0].is_key_frame), "{next:?}");
    assert_eq!(old.snapshot().await.unwrap().epoch, new.snapshot().await.unwrap().epoch);
}

/// A server that started knew the messages since the last key frame only: a subscriber that resumed there from before it
/// missed publications that Redis still held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c6_a_server_that_is_restarted_goes_on_from_wherever_redis_still_can() {
    let mut server = Server::redis(&DURABLE);
    let spec = spec(150);
    let streams = open(server.port, &spec).await;
    let stream = streams.get("orders").unwrap();
    let mut subscription = stream.subscribe(None).await.unwrap();
    let mut received = received_until(&mut subscription, "KEY_FRAME").await;
    for event in ["one", "two"] {
        submit(stream, event).await;
        received.extend(received_until(&mut subscription, &format!("PUBLISHED_EVENT {event}")).await);
        received.extend(received_until(&mut subscription, "KEY_FRAME").await);
        // Its jump, and what comes after it, are no less a part of what Redis holds.
        server.kill();
        server.start_again(&[]);
    }
    submit(stream, "three").await;
    received.extend(received_until(&mut subscription, "PUBLISHED_EVENT three").await);
    drop(subscription);
    drop(streams);
    let again = open(server.port, &spec).await;
    for from in 0..received.len() - 1 {
        let mut resumed = again.get("orders").unwrap().subscribe(Some(received[from].0.into())).await.unwrap();
        let rest = received_until(&mut resumed, "PUBLISHED_EVENT three").await;
        let expected = &received[from + 1..];
        assert_eq!(rest[..expected.len()], *expected, "after clock {}", received[from].0);
    }
}
