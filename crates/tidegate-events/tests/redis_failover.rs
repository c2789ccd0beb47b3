//! Streams on a Redis that fails over or comes back with less: what a subscriber may see then (C1, C2, C3, E1, E2).
//!
//! Redis replicates after it has answered, so a failover may lose what was acknowledged and sent. What must hold all the
//! same: no clock value means two things, messages are contiguous from one key frame after a loss to the next loss, and
//! whatever was acknowledged while all was well comes to its end.
//!
//! `TIDEGATE_FAILOVERS=10 cargo nextest run -p tidegate-events --all-features --test redis_failover --no-capture`
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_core::Micros;
use tidegate_events::{Cut, Mode, Now, Outcome, Seen, Stream, StreamSpec, Streams, Subscription};
use tidegate_store::{Clock, Store};
use tidegate_testkit::number;
use tidegate_testkit::servers::cluster::Cluster;
use tidegate_testkit::servers::sentinel::{Watched, master_by};
use tidegate_testkit::servers::{MASTER, Server};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const DURATION_MS: u64 = 300;

fn spec(duration_ms: u64) -> StreamSpec {
    let mut spec = StreamSpec::new("orders", Mode::OnlyOnce);
    (spec.rules.duration_ms, spec.rules.snapshot_every_ms, spec.rules.max_events) = (duration_ms, 1_000, 100_000);
    spec
}

async fn open(url: &str, spec: StreamSpec) -> Streams {
    let start = Instant::now();
    let now: Now = Arc::new(move || Micros::saturating(u64::try_from(start.elapsed().as_micros()).unwrap()));
    Streams::on_store(vec![spec], &store(url).await, &now).await.unwrap()
}

async fn store(url: &str) -> Store {
    Store::open(url.parse().unwrap(), &Clock::process()).await
}

/// A message's kind, event and clock value.
fn parts(body: &str) -> (&str, Option<&str>) {
    let kind = body.rsplit("\"messageType\":\"").next().unwrap().trim_end_matches("\"}");
    let event = body.split("\"event\":\"").nth(1).map(|rest| rest.split('"').next().unwrap());
    (kind, event)
}

/// A subscriber that comes back when it is cut, and checks every message against the promises.
#[derive(Default)]
struct Listener {
    clock: Option<u64>,
    /// Texts that incubate, by its messages, with their order.
    state: BTreeMap<String, u64>,
    /// Everything with a clock value of its own, by it.
    seen: BTreeMap<u64, String>,
    cuts: Vec<Cut>,
    /// How often its stream began anew.
    anew: usize,
}

impl Listener {
    /// `begins`: the first message of a subscription.
    fn hear(&mut self, clock: u64, body: String, begins: bool) {
        let (kind, event) = parts(&body);
        let is_snapshot = kind == "KEY_FRAME";
        match self.clock {
            // C1, C2: contiguous; but a snapshot may begin a subscription, or, far above, the stream anew.
            Some(last) if begins && is_snapshot => assert!(clock >= last, "C1: {clock} after {last}"),
            Some(last) if is_snapshot && clock > last + 1 => {
                assert!(clock > last + 900_000, "C1: {clock} after {last}");
                self.anew += 1;
            }
            Some(last) => assert_eq!(clock, last + 1, "C2: {body}"),
            None => assert!(is_snapshot && begins),
        }
        let in_sync = self.clock == Some(clock.wrapping_sub(1));
        self.clock = Some(clock);
        match (kind, event) {
            ("KEY_FRAME", _) => {
                let listed = body.split("{\"event\":\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
                let listed: Vec<String> = listed.collect();
                if in_sync {
                    assert!(listed.iter().eq(self.in_order()), "C3: {body} but {:?}", self.state);
                }
                self.state = listed.into_iter().zip(0..).collect();
            }
            ("SUBMITTED_EVENT", Some(event)) => drop(self.state.insert(event.to_owned(), clock)),
            (_, Some(event)) => assert!(self.state.remove(event).is_some(), "C3: {body}"),
            (_, None) => panic!("{body}"),
        }
        if !begins || !is_snapshot {
            self.seen.insert(clock, body);
        }
    }

    fn in_order(&self) -> impl Iterator<Item = &String> {
        let mut all: Vec<(&String, &u64)> = self.state.iter().collect();
        all.sort_by_key(|(_, clock)| **clock);
        all.into_iter().map(|(event, _)| event)
    }
}

async fn listen(stream: Arc<Stream>, listener: Arc<Mutex<Listener>>) {
    loop {
        let from = listener.lock().unwrap().clock;
        let mut subscription = stream.subscribe(from.map(Seen::from)).await.unwrap();
        let mut begins = true;
        let cut = loop {
            match subscription.next().await {
                Ok(messages) => {
                    let mut listener = listener.lock().unwrap();
                    for message in messages {
                        listener.hear(message.clock, String::from_utf8(message.body.to_vec()).unwrap(), begins);
                        begins = false;
                    }
                }
                Err(cut) => break cut,
            }
        };
        listener.lock().unwrap().cuts.push(cut);
        if matches!(cut, Cut::Closed(_)) {
            return;
        }
    }
}

/// Two servers on one store, a listener and submitters at each.
struct Load {
    streams: Vec<Streams>,
    listeners: Vec<Arc<Mutex<Listener>>>,
    /// Acknowledged events, with when that was.
    acknowledged: Arc<Mutex<Vec<(String, Instant)>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    async fn start(url: &str) -> Load {
        let (mut streams, mut listeners, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        let (acknowledged, stop) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        for server in 0..2 {
            let opened = open(url, spec(DURATION_MS)).await;
            let stream = Arc::clone(opened.get("orders").unwrap());
            let listener = Arc::new(Mutex::new(Listener::default()));
            tasks.push(tokio::spawn(listen(Arc::clone(&stream), Arc::clone(&listener))));
            for submitter in 0..4 {
                let name = format!("{server}/{submitter}");
                let (stream, acknowledged, stop) = (Arc::clone(&stream), Arc::clone(&acknowledged), Arc::clone(&stop));
                tasks.push(tokio::spawn(submit(stream, name, acknowledged, stop)));
            }
            streams.push(opened);
            listeners.push(listener);
        }
        Load { streams, listeners, acknowledged, stop, tasks }
    }

    fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Until so many more are acknowledged.
    async fn more(&self, count: usize) {
        let (since, before) = (Instant::now(), self.acknowledged());
        while self.acknowledged() < before + count {
            assert!(since.elapsed() < Duration::from_secs(30), "no submissions: {before} were acknowledged");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops, and checks every promise. `outages`: from when to when the store was losing writes. Returns the messages that each listener got.
    async fn end(self, what: &str, outages: &[(Instant, Instant)]) -> Vec<BTreeMap<u64, String>> {
        self.stop.store(true, Relaxed);
        sleep(Duration::from_millis(DURATION_MS + 1_500)).await;
        for (streams, listener) in self.streams.iter().zip(&self.listeners) {
            let snapshot = streams.get("orders").unwrap().snapshot().await.unwrap();
            assert!(snapshot.body.starts_with(format!("{{\"clock\":{},\"snapshot\":[]", snapshot.clock).as_bytes()));
            assert!(listener.lock().unwrap().state.is_empty(), "C3: {:?}", listener.lock().unwrap().state);
        }
        let mut by_clock: BTreeMap<u64, String> = BTreeMap::new();
        for listener in &self.listeners {
            for (clock, body) in &listener.lock().unwrap().seen {
                let known = by_clock.entry(*clock).or_insert_with(|| body.clone());
                assert_eq!(known, body, "C1: two messages have the clock value {clock}");
            }
        }
        // Between two losses every event has one end. A publication that is lost is made again afterwards.
        let (mut ends, mut last, mut era, mut again): (HashMap<&str, u64>, _, _, _) = (HashMap::new(), 0, 0, 0);
        for (clock, body) in &by_clock {
            era += u64::from(*clock > last + 900_000);
            last = *clock;
            if let ("PUBLISHED_EVENT", Some(event)) = parts(body) {
                let before = ends.insert(event, era);
                assert_ne!(before, Some(era), "E2: {event} was published twice, and nothing was lost in between");
                again += u64::from(before.is_some());
            }
        }
        let acknowledged = self.acknowledged.lock().unwrap();
        let lost: Vec<_> = acknowledged.iter().filter(|(event, _)| !ends.contains_key(event.as_str())).collect();
        for (event, at) in &lost {
            let reach = Duration::from_millis(DURATION_MS + 1_000);
            let excused = outages.iter().any(|(from, to)| *at + reach > *from && *at < *to);
            assert!(excused, "E1: {event} was acknowledged while all was well, and is lost");
        }
        let anew: Vec<usize> = self.listeners.iter().map(|listener| listener.lock().unwrap().anew).collect();
        assert!(self.listeners.iter().all(|listener| listener.lock().unwrap().cuts.is_empty()), "no subscriber is cut");
        let (all, messages) = (acknowledged.len(), by_clock.len());
        println!(
            "{what}: {all} acknowledged, {} lost, {again} published again, {messages} messages, begun anew {anew:?}",
            lost.len()
        );
        self.tasks.iter().for_each(JoinHandle::abort);
        self.listeners.iter().map(|listener| std::mem::take(&mut listener.lock().unwrap().seen)).collect()
    }
}

async fn submit(
    stream: Arc<Stream>,
    name: String,
    acknowledged: Arc<Mutex<Vec<(String, Instant)>>>,
    stop: Arc<AtomicBool>,
) {
    for i in 0.. {
        if stop.load(Relaxed) {
            return;
        }
        let event = format!("{name} {i}");
        match stream.submit(event.as_bytes()).await {
            Ok(Outcome::Submitted { .. }) => acknowledged.lock().unwrap().push((event, Instant::now())),
            Ok(other) => panic!("{event}: {other:?}"),
            // Whether it was taken is not known.
            Err(_) => {}
        }
        sleep(Duration::from_millis(5)).await;
    }
}

fn failovers() -> u64 {
    number("TIDEGATE_FAILOVERS", 2)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_e2_c1_c2_c3_sentinel_failovers_under_load() {
    let watched = tokio::task::spawn_blocking(Watched::start).await.unwrap();
    let load = Load::start(&watched.url()).await;
    let mut outages = Vec::new();
    for round in 0..failovers() {
        watched.wait_until("settled", || watched.is_settled());
        load.more(300).await;
        let (old, from) = (watched.master(), Instant::now());
        match round % 2 {
            // A silent server that comes back, and what an operator does.
            0 => old.signal("STOP"),
            _ => drop(watched.sentinels[1].command(&["SENTINEL", "FAILOVER", MASTER])),
        }
        watched.wait_until("a switch", || master_by(&watched.sentinels[0]) != old.port);
        load.more(300).await;
        if round % 2 == 0 {
            old.signal("CONT");
        }
        outages.push((from, Instant::now()));
    }
    load.more(300).await;
    load.end("sentinel", &outages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_e2_c1_c2_c3_cluster_failovers_under_load() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let slot = cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", "{stream/orders}"]);
    let slot = slot.trim().trim_start_matches(':').parse().unwrap();
    let load = Load::start(&cluster.url()).await;
    let mut outages = Vec::new();
    for _ in 0..failovers() {
        cluster.wait_until_settled();
        load.more(300).await;
        let (old, from) = (cluster.owner(slot), Instant::now());
        old.signal("STOP");
        load.more(300).await;
        old.signal("CONT");
        outages.push((from, Instant::now()));
    }
    load.more(300).await;
    load.end("cluster", &outages).await;
}

/// A Redis that comes back with all its data loses nothing, and every server sends whatever stands in its log. Once
/// publications were in the log that no subscriber was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_c1_c2_c6_a_redis_that_is_restarted_with_its_data_under_load() {
    let mut server = Server::redis(&["--appendonly", "yes", "--appendfsync", "always"]);
    let load = Load::start(&server.url()).await;
    for _ in 0..failovers() {
        load.more(300).await;
        server.kill();
        server.start_again(&[]);
    }
    load.more(300).await;
    let received = load.end("restarted with its data", &[]).await;
    let log = server.command(&["XRANGE", "tg:{stream/orders}:log", "-", "+"]);
    let ids = log.lines().filter_map(|line| line.strip_suffix("-0")?.parse::<u64>().ok());
    let ids: Vec<u64> = ids.collect();
    for seen in received {
        let (first, last) = (*seen.keys().next().unwrap(), *seen.keys().next_back().unwrap());
        let missing: Vec<&u64> =
            ids.iter().filter(|id| (first..=last).contains(id) && !seen.contains_key(id)).collect();
        assert!(missing.is_empty(), "C6: {missing:?} stand in the log and were not sent");
    }
}

async fn next(subscription: &mut Subscription) -> Result<Vec<(u64, String)>, Cut> {
    let messages = timeout(Duration::from_secs(10), subscription.next()).await.expect("in time")?;
    Ok(messages.iter().map(|message| (message.clock, String::from_utf8(message.body.to_vec()).unwrap())).collect())
}

/// What a failover to a replica that lags does, without chance: a Redis comes back with what it had some writes ago.
/// The server that had sent those messages to its subscribers has gone with it; another takes new events, so that the clock
/// would come to the same values again with other messages. A subscriber that resumes must not be given those.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_c2_a_redis_that_came_back_with_less_than_was_told_goes_on_above_it() {
    let mut server = Server::redis(&[]);
    let (url, spec) = (server.url(), spec(60_000));
    let one = open(&url, spec.clone()).await;
    let stream = Arc::clone(one.get("orders").unwrap());
    let mut subscription = stream.subscribe(None).await.unwrap();
    let _ = stream.submit(b"kept").await.unwrap();
    server.command(&["SAVE"]);
    for event in ["lost 1", "lost 2", "lost 3"] {
        let _ = stream.submit(event.as_bytes()).await.unwrap();
    }
    let mut last = 0;
    let mut seen = String::new();
    while !seen.contains("lost 3") {
        for (clock, body) in next(&mut subscription).await.unwrap() {
            (last, seen) = (clock, body);
        }
    }
    drop((one, stream));
    server.kill();
    server.start_again(&[]);
    let two = open(&url, spec.clone()).await;
    let stream = two.get("orders").unwrap();
    for i in 0..8 {
        let outcome = stream.submit(format!("new {i}").as_bytes()).await.unwrap();
        assert!(matches!(outcome, Outcome::Submitted { clock } if clock > last), "C1: {outcome:?} after {last}");
    }
    let mut resumed = stream.subscribe(Some(last.into())).await.unwrap();
    let (clock, body) = next(&mut resumed).await.unwrap().remove(0);
    assert!(
        clock > last && body.contains("KEY_FRAME") && body.contains("\"kept\"") && !body.contains("lost"),
        "{body}"
    );
}

/// The same for a server that lives on: its subscribers see a gap in the clock, and then a key frame.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_c2_c3_subscribers_of_a_server_that_lives_on_begin_anew() {
    let mut server = Server::redis(&[]);
    let (url, spec) = (server.url(), spec(60_000));
    let (one, two) = (open(&url, spec.clone()).await, open(&url, spec).await);
    let (stream, other) = (one.get("orders").unwrap(), two.get("orders").unwrap());
    let listener = Arc::new(Mutex::new(Listener::default()));
    let listening = tokio::spawn(listen(Arc::clone(stream), Arc::clone(&listener)));
    let gets = async |event: &str| {
        let since = Instant::now();
        while !listener.lock().unwrap().state.contains_key(event) {
            assert!(since.elapsed() < Duration::from_secs(10), "{event} was not sent");
            sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = other.submit(b"kept").await.unwrap();
    gets("kept").await;
    server.command(&["SAVE"]);
    let _ = other.submit(b"lost").await.unwrap();
    gets("lost").await;
    server.kill();
    server.start_again(&[]);
    let since = Instant::now();
    while other.submit(b"new").await.is_err() {
        assert!(since.elapsed() < Duration::from_secs(10));
        sleep(Duration::from_millis(20)).await;
    }
    gets("new").await;
    let listener = listener.lock().unwrap();
    assert_eq!(listener.state.keys().collect::<Vec<_>>(), ["kept", "new"], "C3");
    assert_eq!((listener.anew, listener.cuts.len()), (1, 0));
    listening.abort();
}
