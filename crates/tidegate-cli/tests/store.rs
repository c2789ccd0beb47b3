//! `tidegate serve` on a Redis: what it says when it starts, and while the store is away.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod server;

use server::{Folder, Server, TIDEGATE, eventually, stderr};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, Micros, Policy, Rules, Settings};
use tidegate_testkit::{faults, http, servers};

fn config(folder: &Folder, port: u16, more: &str) -> std::path::PathBuf {
    let text = format!(
        "[store]\nkind = \"redis\"\nurl = \"redis://:secret@127.0.0.1:{port}\"\n{more}\n[doors]\nhttp = \"127.0.0.1:0\"\n\
         [[limiter]]\nname = \"api\"\nlimits = [\"3 per hour\"]\n"
    );
    folder.write("tidegate.toml", &text)
}

fn get(server: &Server, path: &str) -> String {
    let mut wire = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    http::exchange(&mut wire, &format!("GET {path}"), "").1
}

const PASSWORD: [&str; 2] = ["--requirepass", "secret"];

#[test]
fn a_store_that_is_required_must_be_there() {
    let folder = Folder::new();
    let file = config(&folder, servers::free_port(), "required = true");
    let output = Command::new(TIDEGATE).args(["serve", "--config"]).arg(file).output().unwrap();
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains("[store] required = true, and the store at 127.0.0.1:"), "{said}");
    assert!(said.contains("start it, or correct its address in [store]") && !said.contains("secret"), "{said}");
}

#[test]
fn f2_a_store_that_is_not_required_may_come_later() {
    let folder = Folder::new();
    let mut redis = servers::Server::redis(&PASSWORD);
    redis.kill();
    let server = Server::start(&folder, Some(&config(&folder, redis.port, "on_failure = \"deny\"")));
    server.wait_for_log("until then decisions are made by on_failure = \"deny\"");
    let (code, answer) = server.json(&["hit", "api", "u"]);
    assert_eq!((code, answer["degraded"].as_str(), answer["allowed"].as_bool()), (1, Some("deny"), Some(false)));
    assert_eq!(
        get(&server, "/readyz"),
        "{\"status\":\"degraded\",\"store\":{\"answers\":false,\"error\":\"unreachable\",\"degraded_decisions\":1},\"reasons\":[\"decisions are made without the store: unreachable\"]}"
    );
    eventually("counted", || get(&server, "/metrics").contains("tidegate_store_errors_total{kind=\"unreachable\"}"));
    let metrics = get(&server, "/metrics");
    assert!(metrics.contains("tidegate_store_up 0") && metrics.contains("tidegate_degraded_total 1"), "{metrics}");
    redis.start_again(&["--maxmemory-policy", "allkeys-lru"]);
    eventually("service", || get(&server, "/readyz").contains("\"status\":\"ok\""));
    let (_, answer) = server.json(&["hit", "api", "u"]);
    assert_eq!((answer["degraded"].as_str(), answer["remaining"].as_u64()), (None, Some(2)));
    server.wait_for_log("answers again");
    // It was not there to be asked at the start.
    server.wait_for_log("the store has maxmemory-policy allkeys-lru");
    assert!(!server.log().contains("secret"), "{}", server.log());
}

/// Connecting had half a second: over a way that takes longer, a server that requires its store never started.
#[test]
fn f2_a_required_store_over_a_slow_way_is_waited_for() {
    let folder = Folder::new();
    let redis = servers::Server::redis(&PASSWORD);
    let slow = faults::Proxy::before(redis.port);
    slow.set(faults::Fault::Delay(Duration::from_millis(700)));
    let file = config(&folder, slow.port, "required = true\ndeadline = \"10s\"");
    let server = Server::start(&folder, Some(&file));
    assert_eq!(server.json(&["hit", "api", "u"]).1["degraded"].as_str(), None);
}

/// `tidegate hit` said "the cost is above the limit … and can never pass" and "no limit applies"; HTTP "ask for less".
#[test]
fn f2_degraded_answers_say_so_why_and_when_to_try_again() {
    for (settings, cost, code, said, detail) in [
        (
            "on_failure = \"deny\"",
            "1",
            1,
            "denied: api u, the store does not answer, and the limiter denies until it does; try again in 1 second",
            Some("the store does not answer, and limiter api denies until it does; try again in 1000 ms"),
        ),
        (
            "on_failure = \"allow\"",
            "1",
            0,
            "allowed: api u, the store does not answer, and the limiter allows everything until it does",
            None,
        ),
        (
            "local_share = 0.4",
            "1",
            0,
            "allowed: api u, 0 of 1 left; as new in 1 hour (by this server alone, as the store does not answer)",
            None,
        ),
        (
            "local_share = 0.4",
            "2",
            1,
            "denied: api u, the store does not answer, and this server's share of the limit is less than the cost; try again in 1 second",
            Some(
                "the store does not answer, and limiter api has a smaller share than this cost on this server: 1 per 1h; try again in 1000 ms",
            ),
        ),
        ("local_share = 0.4", "4", 1, "denied: api u, the cost is above the limit of 3 and can never pass", None),
    ] {
        let folder = Folder::new();
        let server = Server::start(&folder, Some(&config(&folder, servers::free_port(), settings)));
        let output = server.ask(&["hit", "api", "u", "--cost", cost]);
        assert_eq!(output.status.code(), Some(code), "{settings}");
        assert!(server::stdout(&output).starts_with(said), "{settings} {cost}: {}", server::stdout(&output));
        if let Some(detail) = detail {
            let answer = server.json(&["hit", "api", "u", "--cost", cost]).1;
            assert_eq!((answer["detail"].as_str(), answer["retry_after_ms"].as_u64()), (Some(detail), Some(1_000)));
            assert_eq!(
                (answer["reason"].as_str(), answer["violated-policies"].as_array().unwrap().len()),
                (Some("degraded"), 0)
            );
        }
    }
}

/// It showed 0 keys and the memory of a table that holds none of them.
#[test]
fn limiters_in_redis_have_no_keys_and_no_memory_here() {
    let folder = Folder::new();
    let redis = servers::Server::redis(&PASSWORD);
    let server = Server::start(&folder, Some(&config(&folder, redis.port, "required = true")));
    assert_eq!(server.json(&["hit", "api", "u"]).1["remaining"], 2);
    let (_, told) = server.json(&["limiters"]);
    let api = &told["limiters"][0];
    assert!(api["entries"].is_null() && api["bytes"].is_null(), "{api}");
    let output = server::stdout(&server.ask(&["limiters"]));
    let words: Vec<&str> = output.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(words, ["api", "enabled", "3", "per", "1h", "token-bucket", "name", "-", "-", "1", "0"], "{output}");
}

/// It was warned of twice at once: when it was opened, and when it was first looked at.
#[test]
fn f6_a_store_that_is_down_at_the_start_is_told_once() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, Some(&config(&folder, servers::free_port(), "")));
    assert_eq!(server.json(&["hit", "api", "u"]).0, 0);
    server.stop();
    let log = server.log();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("decisions are made")).collect();
    assert!(told.len() == 1 && told[0].contains("until then decisions are made by on_failure"), "{log}");
}

/// A machine that starts with its clock behind what was saved goes on from there, and says so.
#[test]
fn t1_a_clock_behind_the_saved_state_is_told() {
    let folder = Folder::new();
    let limiter = "[[limiter]]\nname = \"api\"\nlimits = [\"3 per hour\"]\n";
    let text = format!("[store]\npath = \"data\"\n[doors]\nhttp = \"127.0.0.1:0\"\n{limiter}");
    let ahead = Clock::process().now().saturating_add(Micros::from_secs(50));
    let settings = Settings { path: Some(folder.path("data")), ..Settings::default() };
    let rules = Rules::new(Algorithm::TokenBucket, &["3 per hour".parse().unwrap()]).unwrap();
    let policy = Policy::new(vec![LimiterSpec::new("api", rules)]).unwrap();
    let gate = Gate::open(policy, &settings, Clock::manual(ahead)).unwrap();
    assert!(gate.hit("api", "u").unwrap().allowed && gate.was_behind() == Micros::ZERO);
    gate.save().unwrap();
    drop(gate);
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", &text)));
    server.wait_for_log("behind the saved state; time goes on from there");
    assert!(
        server.log().contains("the clock is 50 seconds") || server.log().contains("the clock is 4"),
        "{}",
        server.log()
    );
}

#[test]
fn a_store_that_drops_keys_is_warned_of() {
    let folder = Folder::new();
    let redis = servers::Server::redis(&[&PASSWORD[..], &["--maxmemory-policy", "volatile-ttl"]].concat());
    let server = Server::start(&folder, Some(&config(&folder, redis.port, "required = true")));
    server.wait_for_log("the store has maxmemory-policy volatile-ttl: when its memory is full it drops counts");
    server.wait_for_log("set it to noeviction");
}

/// A store that is connected and refuses is told of like one that is gone.
#[test]
fn f3_a_refusal_is_in_the_log_and_at_readyz() {
    let folder = Folder::new();
    let redis = servers::Server::redis(&[&PASSWORD[..], &["--maxmemory", "1"]].concat());
    let server = Server::start(&folder, Some(&config(&folder, redis.port, "on_failure = \"allow\"")));
    // A server takes a moment to see that its memory is full; and on a slow machine the first answer may merely be late.
    eventually("a refusal", || {
        let (_, answer) = server.json(&["hit", "api", "u"]);
        (answer["degraded"].as_str(), answer["allowed"].as_bool()) == (Some("allow"), Some(true))
            && get(&server, "/readyz").contains("\"error\":\"oom\"")
    });
    assert!(get(&server, "/metrics").contains("tidegate_store_errors_total{kind=\"oom\"} "));
    server.wait_for_log("its maxmemory is reached; raise it; decisions are made without it");
}

/// A replica takes connections and refuses every write: that is no store to start on.
#[test]
fn f3_a_read_only_replica_is_no_store_that_is_required() {
    let folder = Folder::new();
    let nowhere = servers::free_port().to_string();
    let replica = servers::Server::redis(&[&PASSWORD[..], &["--replicaof", "127.0.0.1", &nowhere]].concat());
    let file = config(&folder, replica.port, "required = true");
    let output = Command::new(TIDEGATE).args(["serve", "--config"]).arg(file).output().unwrap();
    let said = stderr(&output);
    assert!(!output.status.success() && said.contains("[store] required = true, and the store at"), "{said}");
    assert!(said.contains("READONLY") && said.contains("it is a replica; point [store] url to the master"), "{said}");
    assert!(!said.contains("start it"), "{said}");
}

/// The lines of the guide's recipe that start so, as one command each.
fn recipe(start: &str) -> Vec<Vec<&'static str>> {
    let guide = include_str!("../../../docs/guide/redis.md");
    let lines = guide.lines().filter(|line| line.starts_with(start));
    lines.map(|line| line.split_whitespace().collect()).collect()
}

/// The user that the guide makes can do all that a server does, on database 1 and in Pause's layout.
#[test]
fn the_acl_recipe_of_the_guide_is_enough() {
    let folder = Folder::new();
    let redis = servers::Server::redis(&[]);
    let recipe = recipe("ACL SETUSER tidegate ");
    assert_eq!(recipe.len(), 1, "docs/guide/redis.md has one recipe");
    assert!(redis.command(&recipe[0]).starts_with("+OK"));
    let limiter = |name: &str, more: &str| {
        format!("[[limiter]]\nname = \"{name}\"\nalgorithm = \"buckets\"\nlimits = [\"1 per day\"]\n{more}\n")
    };
    let text = format!(
        "[store]\nkind = \"redis\"\nurl = \"redis://tidegate:PASSWORD@127.0.0.1:{}/1\"\non_failure = \"deny\"\n\
         required = true\n[doors]\nhttp = \"127.0.0.1:0\"\n[[stream]]\nname = \"orders\"\nmode = \"only-once\"\n{}{}",
        redis.port,
        limiter("own", ""),
        limiter("shared", "layout = \"pause\""),
    );
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", &text)));
    for limiter in ["own", "shared"] {
        let done = |words: &[&str]| {
            let (code, told) = server.json(&[&words[..1], &[limiter], &words[1..]].concat());
            assert!(code < 2 && told.get("degraded").is_none(), "{words:?}: {code} {told}");
            told
        };
        done(&["hit", "u"]);
        assert_eq!(done(&["hit", "u"])["allowed"], false);
        done(&["increment", "v"]);
        assert_eq!(done(&["analyze", "v"])["status"], "limited");
        done(&["block", "w", "--for", "1h"]);
        assert_eq!(done(&["blocked"])["keys"], serde_json::json!(["u", "v", "w"]));
        done(&["keys"]);
        done(&["unblock", "w"]);
        done(&["unblock-all"]);
        done(&["disable"]);
        done(&["enable"]);
    }
    assert!(server.ask(&["submit", "orders", "taco"]).status.success());
    assert!(!server.log().contains("NOPERM") && !server.log().contains("refused"), "{}", server.log());
}
