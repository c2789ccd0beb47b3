//! Limits of single keys on servers that share a store, and candidates: through the command, as people use them.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, eventually};
use std::fs;
use std::time::Duration;
use tidegate_testkit::servers::sentinel::{Watched, master_by};
use tidegate_testkit::{Stopwatch, servers};

const DOORS: &str = "[doors]\nhttp = \"127.0.0.1:0\"\n";

fn limit(server: &Server) -> u64 {
    server.json(&["peek", "api", "vip"]).1["limit"].as_u64().unwrap()
}

/// Set at one of three servers, in force at all of them within a second, and after a restart.
#[test]
fn a11_an_override_holds_on_three_servers_on_one_redis_within_a_second_and_after_a_restart() {
    let redis = servers::Server::redis(&[]);
    let folder = Folder::new();
    let url = redis.url();
    let file = folder.write(
        "tidegate.toml",
        &format!(
            "[store]\nkind = \"redis\"\nurl = \"{url}\"\ndeadline = \"10s\"\n{DOORS}[[limiter]]\nname = \"api\"\nlimits = [\"3 per hour\"]\n"
        ),
    );
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start(&folder, Some(&file))).collect();
    let override_it = ["override", "set", "api", "vip", "9 per hour", "--for", "1h", "--reason", "ticket 7"];
    assert!(servers[0].json(&override_it).1["until"].is_number());
    let since = Stopwatch::start();
    assert_eq!(limit(&servers[0]), 9, "at once where it is set");
    for server in &servers[1..] {
        eventually("the other servers follow", || limit(server) == 9);
    }
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    servers[2].stop();
    servers[2] = Server::start(&folder, Some(&file));
    assert_eq!(limit(&servers[2]), 9);
    let listed = servers[2].json(&["override", "list", "api"]).1;
    assert_eq!(
        (&listed["keys"][0], &listed["overrides"][0]["reason"]),
        (&"vip".into(), &"ticket 7".into()),
        "{listed}"
    );
    assert_eq!(servers[1].json(&["override", "clear", "api", "vip"]).1["cleared"], true);
    for server in &servers {
        eventually("it is gone everywhere", || limit(server) == 3);
    }
}

/// The master dies. What its replicas have holds at servers that ran through it, and at one that starts afterwards: the limits of a key as well as
/// a block.
#[test]
fn a11_an_override_survives_a_failover_as_a_block_does() {
    let (mut watched, folder) = (Watched::start(), Folder::new());
    let text = format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\ndeadline = \"10s\"\non_failure = \"deny\"\n{DOORS}[[limiter]]\nname = \"api\"\nlimits = [\"3 per hour\"]\n",
        watched.url()
    );
    let file = folder.write("tidegate.toml", &text);
    let mut servers: Vec<Server> = (0..2).map(|_| Server::start(&folder, Some(&file))).collect();
    servers[0].json(&["override", "set", "api", "vip", "9 per hour"]);
    servers[0].json(&["block", "api", "bad", "--for", "1h"]);
    let old = watched.master().port;
    let kept = |server: &servers::Server| server.command(&["DBSIZE"]);
    let all = kept(watched.master());
    watched.wait_until("the replicas have both", || watched.servers.iter().all(|server| kept(server) == all));
    watched.servers.iter_mut().filter(|server| server.port == old).for_each(servers::Server::kill);
    watched.wait_until("another master", || master_by(&watched.sentinels[0]) != old);
    let holds = |server: &Server| {
        let (vip, bad) = (server.json(&["peek", "api", "vip"]).1, server.json(&["peek", "api", "bad"]).1);
        vip["limit"] == 9 && vip["allowed"] == true && bad["reason"] == "blocked"
    };
    servers.iter().for_each(|server| eventually("a server that ran through it", || holds(server)));
    servers.push(Server::start(&folder, Some(&file)));
    eventually("a server that starts afterwards", || holds(&servers[2]));
    assert_eq!(servers[2].json(&["override", "clear", "api", "vip"]).1["cleared"], true);
    servers.iter().for_each(|server| eventually("it is gone everywhere", || limit(server) == 3));
}

#[test]
fn a12_a_candidate_that_denies_all_changes_nothing_until_it_is_promoted() {
    let folder = Folder::new();
    let text = format!(
        "{DOORS}# ours\n[[limiter]]\nname = \"api\"\nlimits = [\"3 per hour\"] # since 2024\ncandidate_limits = [\"0 per hour\"] # never\n"
    );
    let file = folder.write("tidegate.toml", &text);
    let server = Server::start(&folder, Some(&file));
    for left in [2, 1, 0] {
        let answer = server.json(&["hit", "api", "u"]).1;
        assert_eq!((&answer["allowed"], &answer["remaining"]), (&true.into(), &left.into()), "{answer}");
    }
    assert_eq!(server.json(&["hit", "api", "u"]).1["allowed"], false);
    let limiters = server.json(&["limiters"]).1;
    let one = &limiters["limiters"][0];
    assert_eq!((&one["counts"]["allowed"], &one["counts"]["denied"]), (&3.into(), &1.into()), "{one}");
    assert_eq!(
        (&one["candidate"]["counts"]["allowed"], &one["candidate"]["counts"]["denied"]),
        (&0.into(), &4.into()),
        "{one}"
    );

    let path = file.to_str().unwrap();
    let dry = server::stdout(&server::tidegate(&["promote", "api", "--config", path, "--dry-run"]));
    assert!(dry.contains("- candidate_limits = [\"0 per hour\"] # never"), "{dry}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    let done = server::stdout(&server::tidegate(&["promote", "api", "--config", path]));
    assert_eq!(done, dry);
    let changed = format!("{DOORS}# ours\n[[limiter]]\nname = \"api\"\nlimits = [\"0 per hour\"] # since 2024\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), changed);
    eventually("the server takes the file up", || server.json(&["peek", "api", "new"]).1["limit"] == 0);
}
