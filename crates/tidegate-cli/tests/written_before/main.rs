//! What versions before have written is read by this one: a snapshot, journals, and the keys of a Redis.
//!
//! A folder here is what `write.py` had the `tidegate` of that day write, by the policy of `policy.toml`: files as they lay on
//! its disk, its Redis as the commands that bring the keys back, and what it said of them itself. Here the same is asked of
//! this version, at the same time by a clock that stands still.
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tidegate::{
    Algorithm, Clock, Gate, Grid, LimiterSpec, Micros, Policy, Request, Rules, Settings, StoreSettings, Which,
};
use tidegate_events::{Mode, Now, Opening, Outcome, StreamSpec, Streams};
use tidegate_testkit::Folder;
use tidegate_testkit::servers::Server;
use tokio::time::timeout;

/// Each version whose files are kept here.
const VERSIONS: [&str; 1] = ["2026-11-16"];

const DAY: Micros = Micros::from_secs(86_400);

#[test]
fn f5_a_snapshot_of_a_version_before_is_read() {
    for version in VERSIONS {
        let (folder, said) = (Folder::new(), Said::read(version, "embedded.txt"));
        fs::create_dir(folder.path("data")).unwrap();
        fs::copy(at(version).join("snapshot"), folder.path("data").join("snapshot")).unwrap();
        let settings = Settings { path: Some(folder.path("data")), ..Settings::default() };
        let gate = Gate::open(Policy::new(limiters()).unwrap(), &settings, Clock::manual(said.at)).unwrap();
        runtime().block_on(said.check(&gate));
    }
}

#[test]
fn a9_keys_in_redis_of_a_version_before_are_read() {
    for version in VERSIONS {
        let (redis, said) = (restored(version), Said::read(version, "redis.txt"));
        runtime().block_on(async {
            let policy = Policy::new([limiters(), vec![paused()]].concat()).unwrap();
            let settings = StoreSettings { deadline: Duration::from_secs(5), ..StoreSettings::default() };
            let url = redis.url().parse().unwrap();
            said.check(&Gate::connect(&policy, url, settings, Clock::manual(said.at)).await).await;
        });
    }
}

#[test]
fn c1_journals_of_a_version_before_are_read() {
    for version in VERSIONS {
        let (folder, said) = (Folder::new(), Said::read(version, "embedded.txt"));
        for stream in ["orders", "once"] {
            let (from, to) = (at(version).join("streams").join(stream), folder.path("streams").join(stream));
            fs::create_dir_all(&to).unwrap();
            for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
                fs::copy(file.path(), to.join(file.file_name())).unwrap();
            }
        }
        let at = said.at;
        let now: Now = Arc::new(move || at);
        runtime().block_on(async {
            // The second time, what this version added to them.
            for time in ["first", "second"] {
                let streams = Opening::read(streams(), Some(&folder.path("streams"))).unwrap().start(&now).unwrap();
                said.check_streams(&streams, time).await;
                streams.stop();
            }
        });
    }
}

/// A Redis goes by its own clock, which is not that of the server that wrote. With a duration of a second what incubated then is due by
/// now, and is published.
#[test]
fn c1_e1_streams_in_redis_of_a_version_before_go_on() {
    for version in VERSIONS {
        let (redis, said) = (restored(version), Said::read(version, "redis.txt"));
        let now: Now = Arc::new(move || said.at);
        runtime().block_on(async {
            let settings = StoreSettings::default();
            let url = redis.url().parse().unwrap();
            let gate = Gate::connect(&Policy::new(Vec::new()).unwrap(), url, settings, Clock::process()).await;
            let mut specs = streams();
            specs.iter_mut().for_each(|spec| spec.rules.duration_ms = 1_000);
            let streams = Streams::on_store(specs, gate.store(), &now).await.unwrap();
            for (name, state) in &said.streams {
                let (clock, mut incubating) = incubating(state);
                incubating.retain(|(_, valid)| *valid);
                let stream = streams.get(name).unwrap();
                let mut subscription = stream.subscribe(Some(1.into())).await.unwrap();
                let (mut heard, mut last) = (Vec::new(), 1);
                while heard.len() < incubating.len() {
                    for message in timeout(Duration::from_secs(20), subscription.next()).await.unwrap().unwrap() {
                        assert!(message.clock > last, "{name}");
                        last = message.clock;
                        let body: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
                        if body["messageType"] == "PUBLISHED_EVENT" {
                            heard.push((body["eventTime"]["event"].as_str().unwrap().to_owned(), true));
                        }
                    }
                }
                assert_eq!(heard, incubating, "{name}");
                assert!(last > clock, "{name}");
            }
        });
    }
}

/// What a version said of its keys and streams.
struct Said {
    at: Micros,
    /// Limiter, key, and the answer to a look at it.
    keys: Vec<(String, String, String)>,
    /// Which keys, limiter, names.
    lists: Vec<(Which, String, String)>,
    /// Name, and state as JSON.
    streams: Vec<(String, String)>,
}

impl Said {
    fn read(version: &str, name: &str) -> Said {
        let (mut keys, mut lists, mut streams, mut at_us) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for line in fs::read_to_string(at(version).join(name)).unwrap().lines() {
            let (kind, rest) = line.split_once(' ').unwrap();
            let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            let (name, rest) = (name.to_owned(), rest.to_owned());
            match kind {
                "at" => at_us = name.parse().unwrap(),
                "key" => {
                    let (key, answer) = rest.split_once(' ').unwrap();
                    keys.push((name, key.to_owned(), answer.to_owned()));
                }
                "tracked" => lists.push((Which::Tracked, name, rest)),
                "blocked" => lists.push((Which::Blocked, name, rest)),
                "stream" => streams.push((name, rest)),
                other => panic!("{other}"),
            }
        }
        assert!(keys.len() > 40 && lists.len() > 20 && streams.len() == 2);
        Said { at: Micros::saturating(at_us), keys, lists, streams }
    }

    async fn check(&self, gate: &Gate) {
        for (limiter, key, expected) in &self.keys {
            let answer = gate.ask(&Request::hit(limiter, key.as_bytes()).peek()).await.unwrap();
            let number = |number: Option<u32>| number.map_or("none".to_owned(), |number| number.to_string());
            let (limit, remaining) = (number(answer.limit), number(answer.remaining));
            let told = format!("{} {limit} {remaining} {}", answer.allowed, answer.reason.as_str());
            assert_eq!(&told, expected, "{limiter} {key}");
        }
        for (which, limiter, expected) in &self.lists {
            let page = gate.keys(limiter, *which, None, 100).await.unwrap();
            let names = page.keys.iter().map(|name| str::from_utf8(name).unwrap()).collect::<Vec<_>>().join(" ");
            assert_eq!(&names, expected, "{which:?} of {limiter}");
        }
    }

    async fn check_streams(&self, streams: &Streams, time: &str) {
        for (name, state) in &self.streams {
            let stream = streams.get(name).unwrap();
            let (before, now) = (incubating(state), stream.snapshot().await.unwrap());
            let (clock, events) = incubating(str::from_utf8(&now.body).unwrap());
            // The conflict below makes one of them invalid in a stream that is strict.
            let names = |events: &[(String, bool)]| events.iter().map(|(event, _)| event.clone()).collect::<Vec<_>>();
            assert!(names(&events).starts_with(&names(&before.1)), "{name}, {time}: {events:?}");
            assert!(time != "first" || events == before.1, "{name}: {events:?}");
            assert!(clock >= before.0, "{name}, {time}");
            // Known for what it is, and the clock goes on.
            assert!(matches!(stream.submit(b"pizza").await, Ok(Outcome::Conflict { .. })), "{name}, {time}");
            let Ok(Outcome::Submitted { clock: next }) = stream.submit(time.as_bytes()).await else {
                panic!("{name}, {time}")
            };
            assert!(next > clock, "{name}, {time}");
        }
    }
}

/// Clock value and incubating events of a key frame, and whether each is valid.
fn incubating(state: &str) -> (u64, Vec<(String, bool)>) {
    let state: serde_json::Value = serde_json::from_str(state).unwrap();
    let event = |event: &serde_json::Value| (event["event"].as_str().unwrap().to_owned(), event["status"] == "Valid");
    (state["clock"].as_u64().unwrap(), state["snapshot"].as_array().unwrap().iter().map(event).collect())
}

/// A Redis with the keys of a version.
fn restored(version: &str) -> Server {
    let redis = Server::redis(&[]);
    let commands = File::open(at(version).join("redis.resp")).unwrap();
    let mut cli = Command::new("redis-cli");
    cli.args(["-p", &redis.port.to_string(), "--pipe"]).stdin(commands).stdout(Stdio::null());
    assert!(cli.status().unwrap().success());
    redis
}

fn at(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/written_before").join(version)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// As `policy.toml` has them.
fn limiters() -> Vec<LimiterSpec> {
    let one = |name: &str, algorithm| LimiterSpec::new(name, Rules::new(algorithm, &limits(&["10 per day"])).unwrap());
    let two = Rules::new(Algorithm::SlidingLog, &limits(&["10 per day block 2h", "50 per week"])).unwrap();
    vec![
        one("tokens", Algorithm::TokenBucket),
        one("fixed", Algorithm::FixedWindow),
        one("aligned", Algorithm::AlignedWindow),
        one("log", Algorithm::SlidingLog),
        one("sliding", Algorithm::SlidingWindow),
        one("strict", Algorithm::StrictAverage),
        one("leaky", Algorithm::LeakyAverage),
        buckets("buckets"),
        LimiterSpec::new("two", two),
        LimiterSpec { names: false, ..one("hashes", Algorithm::TokenBucket) },
        one("counting", Algorithm::TokenBucket).with_stats(),
        one("off", Algorithm::TokenBucket),
    ]
}

/// As `pause.toml` has it.
fn paused() -> LimiterSpec {
    buckets("paused").in_pause_layout()
}

fn buckets(name: &str) -> LimiterSpec {
    let grid = Grid::new(Micros::from_secs(600), DAY).unwrap();
    LimiterSpec::new(name, Rules::buckets(grid, &limits(&["10 per day block 2h"])).unwrap())
}

fn limits(texts: &[&str]) -> Vec<tidegate::Limit> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn streams() -> Vec<StreamSpec> {
    [("orders", Mode::StrictlyOnce), ("once", Mode::OnlyOnce)]
        .map(|(name, mode)| {
            let mut spec = StreamSpec::new(name, mode);
            (spec.rules.duration_ms, spec.rules.snapshot_every_ms) = (DAY.get() / 1_000, DAY.get() / 1_000);
            spec
        })
        .to_vec()
}
