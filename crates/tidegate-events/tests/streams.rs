//! Streams as a caller sees them: durable answers, restarts, subscribers that come back.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_events::{
    Cut, JournalError, Mode, Now, Opening, Outcome, Overdue, Seen, StreamSpec, Streams, Subscription,
};
use tokio::time::timeout;

/// A clock set by hand, in milliseconds.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn at(ms: u64) -> Hand {
        Hand(Arc::new(AtomicU64::new(ms)))
    }

    fn set(&self, ms: u64) {
        self.0.store(ms, Relaxed);
    }

    fn now(&self) -> Now {
        let hand = self.clone();
        Arc::new(move || Micros::from_millis(hand.0.load(Relaxed)))
    }
}

fn strictly() -> StreamSpec {
    let mut spec = StreamSpec::new("orders", Mode::StrictlyOnce);
    (spec.rules.duration_ms, spec.rules.snapshot_every_ms) = (3_000, 3_600_000);
    spec
}

fn open(spec: StreamSpec, folder: Option<&Path>, hand: &Hand) -> Streams {
    Opening::read(vec![spec], folder).unwrap().start(&hand.now()).unwrap()
}

/// The next messages, as text: `clock kind event…`.
async fn received(subscription: &mut Subscription, count: usize) -> Vec<String> {
    let mut received = Vec::new();
    while received.len() < count {
        let messages = timeout(Duration::from_secs(10), subscription.next()).await.expect("in time").unwrap();
        received.extend(messages.iter().map(|message| {
            let text = String::from_utf8(message.body.to_vec()).unwrap();
            let kind = text.rsplit("\"messageType\":\"").next().unwrap().trim_end_matches("\"}").to_owned();
            let events: Vec<&str> =
                text.split("\"event\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
            format!("{} {kind} {}", message.clock, events.join(" ")).trim_end().to_owned()
        }));
    }
    received
}

#[tokio::test]
async fn c2_c3_a_subscriber_gets_a_snapshot_then_deltas_and_resumes() {
    let hand = Hand::at(1_000);
    let streams = open(strictly(), None, &hand);
    let stream = streams.get("orders").unwrap();
    assert_eq!(stream.submit(b"a").await, Ok(Outcome::Submitted { clock: 2 }));
    let mut first = stream.subscribe(None).await.unwrap();
    assert_eq!(received(&mut first, 1).await, ["2 KEY_FRAME a"]);
    hand.set(2_000);
    let conflict = Outcome::Conflict { next: Micros::from_millis(5_000) };
    assert_eq!(stream.submit(b"a").await, Ok(conflict));
    assert_eq!(stream.submit(b"b").await, Ok(Outcome::Submitted { clock: 4 }));
    assert_eq!(received(&mut first, 2).await, ["3 INVALIDATED_EVENT a", "4 SUBMITTED_EVENT b"]);
    hand.set(5_000);
    assert_eq!(received(&mut first, 1).await, ["5 PUBLISHED_EVENT b"]);
    let mut resumed = stream.subscribe(Some(3.into())).await.unwrap();
    assert_eq!(received(&mut resumed, 2).await, ["4 SUBMITTED_EVENT b", "5 PUBLISHED_EVENT b"]);
    let mut from_the_future = stream.subscribe(Some(99.into())).await.unwrap();
    assert_eq!(received(&mut from_the_future, 1).await, ["5 KEY_FRAME"]);
    streams.stop();
    assert_eq!(resumed.next().await, Err(Cut::Closed(5)));
}

/// Where nothing is kept, a stream counts from one again: a clock value of the history before must not be taken for one of
/// this. Where something is kept, it is the same history.
#[tokio::test]
async fn c5_a_resume_with_another_epoch_begins_with_a_key_frame() {
    let (folder, hand) = (tempfile::tempdir().unwrap(), Hand::at(1_000));
    for (folder, expected) in [(None, "6 KEY_FRAME"), (Some(folder.path()), "4 SUBMITTED_EVENT")] {
        let submit = async |streams: &Streams, events: &[&str]| {
            for event in events {
                let _ = streams.get("orders").unwrap().submit(event.as_bytes()).await.unwrap();
            }
        };
        let streams = open(strictly(), folder, &hand);
        submit(&streams, &["a", "b", "c"]).await;
        let snapshot = streams.get("orders").unwrap().snapshot().await.unwrap();
        assert!(String::from_utf8_lossy(&snapshot.body).contains(&format!("\"epoch\":\"{}\"", snapshot.epoch)));
        drop(streams);
        let streams = open(strictly(), folder, &hand);
        submit(&streams, &["d", "e", "f", "g", "h"]).await;
        let seen = Seen { clock: 3, epoch: Some(snapshot.epoch) };
        let mut resumed = streams.get("orders").unwrap().subscribe(Some(seen)).await.unwrap();
        let first = received(&mut resumed, 1).await.remove(0);
        assert!(first.starts_with(expected), "{first}");
    }
}

#[tokio::test]
async fn e1_c1_a_restart_goes_on_exactly_and_overdue_events_end() {
    for (overdue, end) in [(Overdue::Publish, "PUBLISHED_EVENT"), (Overdue::Invalidate, "INVALIDATED_EVENT")] {
        let (folder, hand) = (tempfile::tempdir().unwrap(), Hand::at(1_000));
        let spec = StreamSpec { overdue, ..strictly() };
        let streams = open(spec.clone(), Some(folder.path()), &hand);
        let stream = streams.get("orders").unwrap();
        for event in ["a", "b", "b"] {
            let _ = stream.submit(event.as_bytes()).await.unwrap();
        }
        hand.set(3_000);
        let _ = stream.submit(b"c").await.unwrap();
        drop(streams);
        hand.set(4_500);
        let streams = open(spec, Some(folder.path()), &hand);
        let stream = streams.get("orders").unwrap();
        let mut resumed = stream.subscribe(Some(2.into())).await.unwrap();
        let expected = [
            "3 SUBMITTED_EVENT b",
            "4 INVALIDATED_EVENT b",
            "5 SUBMITTED_EVENT c",
            &format!("6 {end} a"),
            "7 KEY_FRAME c",
        ];
        assert_eq!(received(&mut resumed, 5).await, expected);
        let conflict = Outcome::Conflict { next: Micros::from_millis(7_500) };
        assert_eq!(stream.submit(b"c").await, Ok(conflict), "c was accepted before the restart");
        assert_eq!(received(&mut resumed, 1).await, ["8 INVALIDATED_EVENT c"]);
    }
}

#[tokio::test]
async fn e4_rejected_attempts_are_remembered_over_a_restart() {
    let (folder, hand) = (tempfile::tempdir().unwrap(), Hand::at(1_000));
    let streams = open(strictly(), Some(folder.path()), &hand);
    for at in [1_000, 2_000, 4_500] {
        hand.set(at);
        let _ = streams.get("orders").unwrap().submit(b"a").await.unwrap();
    }
    drop(streams);
    hand.set(7_000);
    let streams = open(strictly(), Some(folder.path()), &hand);
    let outcome = streams.get("orders").unwrap().submit(b"a").await;
    assert_eq!(outcome, Ok(Outcome::Conflict { next: Micros::from_millis(10_000) }));
}

#[tokio::test]
async fn t1_a_clock_behind_the_journal_is_told_where_to_start() {
    let (folder, hand) = (tempfile::tempdir().unwrap(), Hand::at(9_000));
    drop(open(strictly(), Some(folder.path()), &hand));
    let opening = Opening::read(vec![strictly()], Some(folder.path())).unwrap();
    assert_eq!(opening.horizon(), Micros::from_millis(9_001));
}

#[test]
fn one_process_holds_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let _streams = open(strictly(), Some(folder.path()), &Hand::at(1));
    let second = Opening::read(vec![strictly()], Some(folder.path()));
    assert!(matches!(second, Err(JournalError::InUse(_))), "{second:?}");
}

#[tokio::test]
async fn c4_one_who_does_not_read_is_cut_and_others_go_on() {
    let hand = Hand::at(1_000);
    let mut spec = strictly();
    spec.rules.max_events = 200_000;
    let streams = open(spec, None, &hand);
    let stream = streams.get("orders").unwrap();
    let (mut slow, mut fast) = (stream.subscribe(None).await.unwrap(), stream.subscribe(None).await.unwrap());
    let (mut seen, mut last) = (0_u64, 0);
    for i in 0..70_000 {
        let _ = stream.submit(format!("e{i}").as_bytes()).await.unwrap();
        if i % 1_000 == 999 {
            while last < i + 2 {
                for message in fast.next().await.unwrap() {
                    assert!(message.clock == last + 1 || seen == 0);
                    (last, seen) = (message.clock, seen + 1);
                }
            }
        }
    }
    assert_eq!(last, 70_001);
    assert_eq!(slow.next().await.unwrap().len(), 1, "its snapshot");
    assert_eq!(slow.next().await, Err(Cut::Behind(1)));
}
