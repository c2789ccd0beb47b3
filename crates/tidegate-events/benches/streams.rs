//! How many events a stream takes, how late it publishes, and what a million of them weigh.
//!
//! `cargo bench -p tidegate-events --features redis --bench streams`; `-- --quick` for a short run. Without the
//! feature there is no Redis in it, with it a redis-server is started. Prints what it found; the floors of the
//! promises are checked at the end.
#![allow(clippy::unwrap_used, reason = "a bench that fails should say so")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidegate_core::Micros;
use tidegate_events::{Mode, Now, Opening, Outcome, Stream, StreamSpec, Streams};
#[cfg(feature = "redis")]
use tidegate_store::{Clock, Store};
use tidegate_testkit::servers;

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let seconds = if quick { 1 } else { 5 };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let memory = runtime.block_on(submissions("in memory", None, 4, seconds));
    let folder = tempfile::tempdir_in(".").unwrap();
    println!("the floor of one commit: {:.2} ms to write and sync 4 KiB", sync_ms(folder.path()));
    let durable = runtime.block_on(submissions("durable, group commit", Some(folder.path()), 1_024, seconds));
    runtime.block_on(lateness(if quick { 2_000 } else { 5_000 }, seconds));
    let bytes = if quick { 0.0 } else { runtime.block_on(weight(1_000_000)) };
    #[cfg(feature = "redis")]
    {
        let redis = runtime.block_on(shared(seconds));
        assert!(redis >= 5_000.0, "on Redis: {redis:.0} submissions/s, fewer than 5,000");
    }
    assert!(memory >= 50_000.0, "in memory: {memory:.0} submissions/s, fewer than 50,000");
    assert!(durable >= 10_000.0, "durable: {durable:.0} submissions/s, fewer than 10,000");
    assert!(bytes <= 300e6, "a million events take {:.0} MB, more than 300", bytes / 1e6);
}

/// The time since the start, far from the epoch.
fn now() -> Now {
    let start = Instant::now();
    Arc::new(move || Micros::saturating(1_700_000_000_000_000 + u64::try_from(start.elapsed().as_micros()).unwrap()))
}

fn open(duration_ms: u64, folder: Option<&std::path::Path>, now: &Now) -> (Streams, Arc<Stream>) {
    let mut spec = StreamSpec::new("bench", Mode::StrictlyOnce);
    spec.rules.max_events = 2_000_000;
    (spec.rules.duration_ms, spec.rules.snapshot_every_ms) = (duration_ms, 1_000);
    let streams = Opening::read(vec![spec], folder).unwrap().start(now).unwrap();
    let stream = Arc::clone(streams.get("bench").unwrap());
    (streams, stream)
}

#[cfg(feature = "redis")]
async fn store(url: &str) -> Store {
    Store::open(url.parse().unwrap(), &Clock::process()).await
}

/// Two servers, as it were, on one Redis.
#[cfg(feature = "redis")]
async fn shared(seconds: u64) -> f64 {
    let server = servers::Server::redis(&[]);
    let mut spec = StreamSpec::new("bench", Mode::StrictlyOnce);
    (spec.rules.duration_ms, spec.rules.max_events) = (2_000, 1_000_000);
    let now = now();
    let first = Streams::on_store(vec![spec.clone()], &store(&server.url()).await, &now).await.unwrap();
    let second = Streams::on_store(vec![spec], &store(&server.url()).await, &now).await.unwrap();
    let both = [first.get("bench").unwrap(), second.get("bench").unwrap()];
    drive("on one Redis, two servers", 64, seconds, |task| Arc::clone(both[usize::try_from(task % 2).unwrap()])).await
}

/// Many tasks, each submitting one event after another, one in eight for the second time.
async fn submissions(what: &str, folder: Option<&std::path::Path>, tasks: u64, seconds: u64) -> f64 {
    let (_streams, stream) = open(2_000, folder, &now());
    drive(what, tasks, seconds, |_| Arc::clone(&stream)).await
}

async fn drive(what: &str, tasks: u64, seconds: u64, stream: impl Fn(u64) -> Arc<Stream>) -> f64 {
    let (start, count) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let submit = |task: u64| {
        let (stream, count) = (stream(task), Arc::clone(&count));
        async move {
            let mut i = 0_u64;
            while start.elapsed() < Duration::from_secs(seconds) {
                i += 1;
                let text = format!("task {task} event {}", i - i % 8 / 7);
                let _ = stream.submit(text.as_bytes()).await.unwrap();
                count.fetch_add(1, Relaxed);
            }
        }
    };
    let running: Vec<_> = (0..tasks).map(|task| tokio::spawn(submit(task))).collect();
    for task in running {
        task.await.unwrap();
    }
    let rate = count.load(Relaxed) as f64 / start.elapsed().as_secs_f64();
    println!("{what}: {rate:.0} submissions/s by {tasks} tasks");
    rate
}

/// What the disk takes, on the average of twenty.
fn sync_ms(folder: &std::path::Path) -> f64 {
    use std::io::Write as _;
    let mut file = std::fs::File::create(folder.join("floor")).unwrap();
    let start = Instant::now();
    for _ in 0..20 {
        file.write_all(&[7; 4_096]).unwrap();
        file.sync_data().unwrap();
    }
    start.elapsed().as_secs_f64() * 1e3 / 20.0
}

/// At a steady rate: how long after t + D the message is there for a subscriber in this process.
async fn lateness(rate: u64, seconds: u64) {
    let now = now();
    let (_streams, stream) = open(1_000, None, &now);
    let mut subscription = stream.subscribe(None).await.unwrap();
    let total = rate * seconds;
    let submitting = tokio::spawn({
        let stream = Arc::clone(&stream);
        async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(2));
            for i in 0..total {
                if i % (rate / 500).max(1) == 0 {
                    ticks.tick().await;
                }
                let outcome = stream.submit(format!("event {i}").as_bytes()).await.unwrap();
                assert!(matches!(outcome, Outcome::Submitted { .. }));
            }
        }
    });
    let mut late_us = Vec::new();
    while (late_us.len() as u64) < total {
        for message in subscription.next().await.unwrap() {
            let text = std::str::from_utf8(&message.body).unwrap();
            if text.contains("PUBLISHED_EVENT") {
                let time = text.split("\"time\":").nth(1).unwrap().split('}').next().unwrap();
                let due = Micros::from_millis(time.parse::<u64>().unwrap() + 1_000);
                late_us.push(now().saturating_sub(due).get());
            }
        }
    }
    submitting.await.unwrap();
    late_us.sort_unstable();
    let at = |permille: usize| late_us[(late_us.len() - 1) * permille / 1_000] as f64 / 1e3;
    println!(
        "published at {rate}/s: late by p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, at most {:.2} ms",
        at(500),
        at(990),
        at(999),
        at(1_000)
    );
}

/// Resident memory for a million incubating events of 20 bytes, with a snapshot of all of them.
async fn weight(events: u64) -> f64 {
    let before = resident();
    let (_streams, stream) = open(86_400_000, None, &now());
    for i in 0..events {
        let _ = stream.submit(format!("event number {i:07}").as_bytes()).await.unwrap();
    }
    let after = resident();
    let snapshot = stream.snapshot().await.unwrap();
    println!(
        "{events} incubating events: {:.0} MB, with a snapshot of {:.0} MB {:.0} MB",
        (after - before) / 1e6,
        snapshot.body.len() as f64 / 1e6,
        (resident() - before) / 1e6
    );
    resident() - before
}

fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4_096.0
}
