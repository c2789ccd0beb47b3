//! Servers that share a Redis or an etcd: exact together, and Pause's data read and written.
//!
//! `TIDEGATE_ROUNDS=1000 cargo nextest run -p tidegate-cli --test shared_store` for the long run.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, eventually};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Barrier, Mutex};
use std::time::Duration;
use tidegate_testkit::servers::cluster::Cluster;
use tidegate_testkit::{number, servers};

/// Every way to count, as settings of a limiter.
const ALGORITHMS: [(&str, &str); 8] = [
    ("token-bucket", ""),
    ("fixed-window", ""),
    ("fixed-window-aligned", "algorithm = \"fixed-window\"\naligned = true"),
    ("sliding-log", "algorithm = \"sliding-log\""),
    ("sliding-window", "algorithm = \"sliding-window\""),
    ("buckets", "algorithm = \"buckets\""),
    ("average", "algorithm = \"average\""),
    ("average-strict", "algorithm = \"average\"\nstrict = true"),
];
const CONNECTIONS: usize = 64;
const LIMIT: u32 = 10;

/// What etcd counts.
const ALIGNED: [(&str, &str); 1] = [ALGORITHMS[2]];

fn policy(limiters: &[(&str, &str)]) -> String {
    let one = |(name, settings): &(&str, &str)| {
        format!("[[limiter]]\nname = \"{name}\"\nlimits = [\"{LIMIT} per day\"]\n{settings}\n")
    };
    limiters.iter().map(one).collect()
}

/// A failing store must not look like a limit, hence a patient deadline and a denial.
fn config(url: &str, limiters: &str) -> String {
    let place = match url.starts_with("http") {
        true => format!("kind = \"etcd\"\nendpoints = [\"{}\"]", url.replace(',', "\", \"")),
        false => format!("kind = \"redis\"\nurl = \"{url}\""),
    };
    format!("[store]\n{place}\ndeadline = \"10s\"\non_failure = \"deny\"\n[doors]\nhttp = \"127.0.0.1:0\"\n{limiters}")
}

#[test]
fn a1_two_servers_on_one_redis_admit_exactly_the_limit() {
    let redis = servers::Server::redis(&[]);
    check_exact(&redis.url(), &[&redis], Plan::of(60, 1), |_| ());
}

#[test]
fn a1_two_servers_on_two_shards_admit_exactly_the_limit() {
    let shards = [servers::Server::redis(&[]), servers::Server::redis(&[])];
    let proxy = servers::Server::twemproxy(&[&shards[0], &shards[1]]);
    check_exact(&format!("twemproxy://127.0.0.1:{}", proxy.port), &[&shards[0], &shards[1]], Plan::of(60, 1), |_| ());
    for shard in &shards {
        assert!(!shard.command(&["DBSIZE"]).starts_with(":0"), "both shards have keys");
    }
}

#[test]
fn a2_two_servers_on_one_etcd_admit_exactly_the_limit() {
    let etcd = servers::etcd::Etcd::start();
    check_exact(&etcd.endpoints(), &[], Plan { limiters: &ALIGNED, ..Plan::of(60, 1) }, |_| ());
    assert_eq!(etcd.keys_without_lease(), Vec::<String>::new(), "A9");
}

/// Every way to count, denied and blocked keys, blocks by hand and a disabled limiter: only the flag may stay for ever.
#[test]
fn a9_what_redis_keeps_expires() {
    let redis = servers::Server::redis(&[]);
    let folder = Folder::new();
    let limiters = policy(&ALGORITHMS).replace("per day", "per day block 1h");
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", &config(&redis.url(), &limiters))));
    for (limiter, _) in ALGORITHMS {
        for cost in ["10", "1", "1"] {
            server.json(&["hit", limiter, "key", "--cost", cost]);
        }
        server.json(&["block", limiter, "another", "--for", "1d"]);
        server.json(&["disable", limiter]);
    }
    let kept: usize = redis.command(&["DBSIZE"]).trim().trim_start_matches(':').parse().unwrap();
    assert!(kept > 2 * ALGORITHMS.len(), "{kept} keys");
    let eternal = redis.keys_without_expiry();
    assert!(!eternal.is_empty() && eternal.iter().all(|key| key.contains("disabled")), "{eternal:?}");
}

/// What a server on etcd can do and what not; a second server follows.
#[test]
fn servers_on_etcd_share_flags_and_refuse_what_etcd_cannot_do() {
    let etcd = servers::etcd::Etcd::start();
    let folder = Folder::new();
    let file = folder.write("tidegate.toml", &config(&etcd.endpoints(), &policy(&ALIGNED)));
    let servers = [Server::start(&folder, Some(&file)), Server::start(&folder, Some(&file))];
    let name = ALIGNED[0].0;
    let hit = |server: &Server| server.json(&["hit", name, "k"]).1;
    assert_eq!(hit(&servers[0])["remaining"], 9);
    assert_eq!(hit(&servers[1])["remaining"], 8);
    assert_eq!(servers[0].json(&["peek", name, "k"]).1["remaining"], 8);
    servers[0].json(&["disable", name]);
    let reason = || servers[1].json(&["peek", name, "k"]).1["reason"].clone();
    eventually("the other server follows", || reason() == "disabled");
    servers[1].json(&["enable", name]);
    assert_eq!(hit(&servers[1])["remaining"], 7);
    for words in [vec!["block", name, "k", "--for", "1m"], vec!["keys", name], vec!["unblock", name, "k"]] {
        let (code, told) = servers[0].json(&words);
        let told = told.to_string();
        assert!(code == 2 && told.contains("operation not supported: etcd does not"), "{words:?}: {told}");
    }
}

/// The keys of a round are on their way to another node while they are hit.
#[test]
fn a5_two_servers_on_a_cluster_admit_exactly_the_limit_while_slots_move() {
    let cluster = Cluster::start();
    let moved = Mutex::new(0);
    let move_all = |round: usize| {
        for (limiter, _) in ALGORITHMS {
            // Once in a round: no request lives through three moves.
            if let Some(slot) = cluster.slot_of(limiter, &format!("round {round}")) {
                cluster.move_slot(slot, Duration::from_millis(1));
                *moved.lock().unwrap() += 1;
            }
        }
    };
    // Several hits each, so that each key is hit while it moves.
    check_exact(&cluster.url(), &cluster.masters(), Plan::of(10, 4), move_all);
    println!("{} slots moved", moved.into_inner().unwrap());
}

/// How many rounds, and how many hits of each connection in a round.
struct Plan {
    rounds: usize,
    hits: usize,
    limiters: &'static [(&'static str, &'static str)],
}

impl Plan {
    /// So many rounds, unless `TIDEGATE_ROUNDS` says otherwise.
    fn of(rounds: usize, hits: usize) -> Plan {
        let rounds = number("TIDEGATE_ROUNDS", rounds);
        Plan { rounds, hits, limiters: &ALGORITHMS }
    }
}

/// 64 connections to two servers, all at one key in each round: ten pass, whatever the algorithm, and whatever is
/// done `meanwhile`, which is told the round.
fn check_exact(url: &str, redises: &[&servers::Server], plan: Plan, meanwhile: impl Fn(usize) + Sync) {
    let Plan { rounds, hits, limiters } = plan;
    let folder = Folder::new();
    let file = folder.write("tidegate.toml", &config(url, &policy(limiters)));
    let servers = [Server::start(&folder, Some(&file)), Server::start(&folder, Some(&file))];
    let allowed = Mutex::new(HashMap::<(usize, &str), u32>::new());
    let barrier = Barrier::new(CONNECTIONS + 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                barrier.wait();
                meanwhile(round);
            }
        });
        for connection in 0..CONNECTIONS {
            let (servers, allowed, barrier) = (&servers, &allowed, &barrier);
            scope.spawn(move || {
                let mut connection = Connection::to(&servers[connection % 2].url);
                for round in 0..rounds {
                    barrier.wait();
                    for (limiter, _) in std::iter::repeat_n(limiters, hits).flatten() {
                        if connection.hit(limiter, &format!("round {round}")) {
                            *allowed.lock().unwrap().entry((round, limiter)).or_default() += 1;
                        }
                    }
                }
            });
        }
    });
    let allowed = allowed.into_inner().unwrap();
    for round in 0..rounds {
        for (limiter, _) in limiters {
            let passed = allowed.get(&(round, *limiter)).copied().unwrap_or_default();
            // An average fades from one microsecond to the next: the eleventh stands a little below ten.
            let right = if limiter.starts_with("average") { LIMIT..=LIMIT + 1 } else { LIMIT..=LIMIT };
            assert!(right.contains(&passed), "{limiter}, round {round}: {passed} passed");
        }
    }
    for redis in redises {
        assert_eq!(redis.keys_without_expiry(), Vec::<String>::new(), "A9");
    }
}

/// A connection that is kept open.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn to(url: &str) -> Connection {
        let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection(BufReader::new(stream))
    }

    fn hit(&mut self, limiter: &str, key: &str) -> bool {
        let body = format!("{{\"limiter\":\"{limiter}\",\"key\":\"{key}\"}}");
        let head = format!("POST /v1/hit HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        self.0.get_mut().write_all((head + &body).as_bytes()).unwrap();
        let (mut status, mut length) = (String::new(), 0);
        self.0.read_line(&mut status).unwrap();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        let body = String::from_utf8(body).unwrap();
        assert!(!body.contains("degraded"), "{body}");
        match status.split(' ').nth(1) {
            Some("200") => true,
            Some("429") => false,
            _ => panic!("{status}{body}"),
        }
    }
}

/// What a client says that knows nothing but the table of Pause's keys.
fn pause(redis: &servers::Server, resolution: Option<u32>, words: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pause_client.rb");
    let mut ruby = Command::new("ruby");
    if let Some(resolution) = resolution {
        ruby.env("RESOLUTION", resolution.to_string());
    }
    let output = ruby.arg(script).arg(redis.port.to_string()).args(words).output().unwrap();
    assert!(output.status.success(), "{}; see scripts/test", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn pause_and_tidegate_share_counts_blocks_and_flags() {
    let redis = servers::Server::redis(&[]);
    let folder = Folder::new();
    let limiter = "[[limiter]]\nname = \"notify\"\nscope = \"ruby:notify\"\nalgorithm = \"buckets\"\nlayout = \"pause\"\n\
                   resolution = \"10s\"\nhistory = \"600s\"\nlimits = [\"5 per 5m block 10m\"]\n";
    let file = folder.write("tidegate.toml", &config(&redis.url(), limiter));
    let server = Server::start(&folder, Some(&file));
    let ruby = |words: &[&str]| pause(&redis, None, &[&["ruby:notify"], words].concat());
    let status = |words: &[&str]| server.json(words).1["status"].as_str().unwrap().to_owned();

    // What Ruby counts, we count on; what we block, Ruby sees.
    ruby(&["increment", "u|1", "3"]);
    assert_eq!(status(&["analyze", "notify", "u|1"]), "ok");
    assert_eq!(server.json(&["increment", "notify", "u|1", "--count", "2"]).1["counted"], true);
    assert_eq!(ruby(&["sum", "u|1"]), "5");
    assert_eq!(ruby(&["starts", "u|1"]), "true");
    assert!((1..=600).contains(&ruby(&["ttl", "u|1"]).parse::<u32>().unwrap()));
    assert_eq!(server.json(&["analyze", "notify", "u|1"]).1["sum"], 5);
    assert!((590..=600).contains(&ruby(&["blocked", "u|1"]).parse::<u32>().unwrap()));

    // What Ruby blocks, we deny and list.
    ruby(&["block", "v", "100"]);
    let (code, denied) = server.json(&["hit", "notify", "v"]);
    assert_eq!((code, denied["reason"].as_str()), (1, Some("blocked")));
    let (_, blocked) = server.json(&["blocked", "notify"]);
    assert_eq!(blocked["keys"], serde_json::json!(["u|1", "v"]));
    assert_eq!(ruby(&["list"]), "u|1 v");

    // A hit is counted where Ruby looks; unblocking forgets for both.
    assert_eq!(server.json(&["hit", "notify", "w"]).0, 0);
    assert_eq!(ruby(&["sum", "w"]), "1");
    assert_eq!(server.json(&["unblock", "notify", "u|1"]).1["unblocked"], true);
    assert_eq!((ruby(&["sum", "u|1"]).as_str(), ruby(&["blocked", "u|1"]).as_str()), ("0", "0"));
    let (_, tracked) = server.json(&["keys", "notify"]);
    assert_eq!(tracked["keys"], serde_json::json!(["w"]), "v is blocked without counts, as in Pause");

    // One flag for both; a change reaches us within a second.
    ruby(&["disable"]);
    eventually("the flag is seen", || server.json(&["hit", "notify", "v"]).1["reason"] == "disabled");
    ruby(&["enable"]);
    eventually("the flag is gone", || server.json(&["hit", "notify", "v"]).1["reason"] == "blocked");
    server.ask(&["disable", "notify"]);
    assert_eq!(ruby(&["disabled"]), "true");
}

/// What the gem's own quick start has: blocks of ten minutes and a check of two minutes. Counts below zero and with
/// fractions are read as the gem reads them, and a block ends when it says.
#[test]
fn what_only_pause_has_is_served_as_it_does() {
    let redis = servers::Server::redis(&[]);
    let folder = Folder::new();
    let limiter = "[[limiter]]\nname = \"notify\"\nalgorithm = \"buckets\"\nlayout = \"pause\"\nresolution = \"10m\"\n\
                   limits = [\"5 per 2m block 10m\"]\n";
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", &config(&redis.url(), limiter))));
    let ruby = |words: &[&str]| pause(&redis, Some(600), &[&["notify"], words].concat());
    let status = |key: &str| server.json(&["analyze", "notify", key]).1["status"].as_str().unwrap().to_owned();

    ruby(&["increment", "u", "4"]);
    assert_eq!(status("u"), "ok");
    ruby(&["increment", "u", "1"]);
    assert_eq!(status("u"), "limited");

    // 2.5 are two, and a half more makes three: what we count leaves the fraction where it is.
    ruby(&["increment", "half", "2.5"]);
    assert_eq!(server.json(&["increment", "notify", "half"]).1["counted"], true);
    assert_eq!((ruby(&["sum", "half"]).as_str(), status("half").as_str()), ("3", "ok"));
    ruby(&["increment", "half", "1.5"]);
    assert_eq!((ruby(&["sum", "half"]).as_str(), status("half").as_str()), ("5", "limited"));

    // Two below zero leave room for seven.
    ruby(&["increment", "credit", "-2"]);
    let passed = (0..9).filter(|_| server.json(&["hit", "notify", "credit"]).0 == 0).count();
    assert_eq!((passed, ruby(&["sum", "credit"]).as_str()), (7, "5"));

    // Half a second is told as it is stored: until the next whole one.
    let (_, blocked) = server.json(&["block", "notify", "short", "--for", "500ms"]);
    let told = blocked["blocked_until"].as_f64().unwrap();
    assert_eq!(ruby(&["until", "short"]).parse::<f64>().unwrap(), told, "{blocked}");
    assert_eq!(told.fract(), 0.0);
}

/// The last step of the guide: what Pause's layout leaves without an expiry is deleted by the commands that it shows.
#[test]
fn a9_the_migration_from_pause_leaves_nothing_behind() {
    let redis = servers::Server::redis(&[]);
    let folder = Folder::new();
    let limiter = "[[limiter]]\nname = \"notify\"\nscope = \"ipn:follow\"\nalgorithm = \"buckets\"\nlayout = \"pause\"\n\
                   limits = [\"1 per 2h block 4h\"]\n";
    let url = format!("{}/1", redis.url());
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", &config(&url, limiter))));
    server.json(&["hit", "notify", "u"]);
    server.json(&["hit", "notify", "u"]);
    server.json(&["disable", "notify"]);
    let eternal = || {
        let script = "local found = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
                      if redis.call('PTTL', key) == -1 then found[#found + 1] = key end end return found";
        redis.database(1, &["EVAL", script, "0"])
    };
    assert!(eternal().contains("b:|ipn:follow|") && eternal().contains("internal:|ipn:follow|:disabled"));
    let guide = include_str!("../../../docs/guide/migrating-from-pause.md");
    let commands: Vec<&str> = guide.lines().filter(|line| line.starts_with("redis-cli ")).collect();
    assert!(!commands.is_empty());
    for command in commands {
        let command = command.replacen("-p 6379", &format!("-p {}", redis.port), 1);
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(eternal().starts_with("*0"), "{}", eternal());
}

#[test]
fn shards_list_no_tracked_keys_and_say_so() {
    let shards = [servers::Server::redis(&[]), servers::Server::redis(&[])];
    let proxy = servers::Server::twemproxy(&[&shards[0], &shards[1]]);
    let folder = Folder::new();
    let limiter = "[[limiter]]\nname = \"api\"\nlimits = [\"1 per minute block 1h\"]\n";
    let file = folder.write("tidegate.toml", &config(&format!("twemproxy://127.0.0.1:{}", proxy.port), limiter));
    let server = Server::start(&folder, Some(&file));
    assert_eq!((server.json(&["hit", "api", "u"]).0, server.json(&["hit", "api", "u"]).0), (0, 1));
    assert_eq!(server.json(&["blocked", "api"]).1["keys"], serde_json::json!(["u"]));
    let listed = server.ask(&["keys", "api"]);
    assert_eq!(listed.status.code(), Some(2));
    let told = String::from_utf8(listed.stderr).unwrap();
    assert!(
        told.contains("operation not supported: Redis behind twemproxy does not list tracked keys; use redis://"),
        "{told}"
    );
    assert_eq!(server.json(&["unblock-all", "api"]).1["unblocked"], 1);
    assert_eq!(server.json(&["hit", "api", "u"]).0, 0);
}
