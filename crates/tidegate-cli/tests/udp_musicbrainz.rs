//! `examples/musicbrainz.toml` is the whole policy of the server that the UDP protocol comes from: every
//! rewrite, every route, every name that its monitoring agent asks for.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod server;

use server::{Folder, stdout, tidegate};

const MUSICBRAINZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/musicbrainz.toml");

/// The replies to these requests, each at its second.
fn replies(requests: &[(u32, String)]) -> Vec<String> {
    let folder = Folder::new();
    let line = |(at, text): &(u32, String)| format!("{{\"at\":{at},\"udp\":{text:?}}}\n");
    let trace = folder.write("trace.ndjson", &requests.iter().map(line).collect::<String>());
    let output = tidegate(&["simulate", "--config", MUSICBRAINZ, "--input", trace.to_str().unwrap()]);
    let told = stdout(&output);
    let reply = |line: &str| line.split_once("\"udp\":\"").unwrap().1.strip_suffix("\"}").unwrap().to_owned();
    let replies: Vec<String> = told.lines().map(reply).collect();
    assert_eq!(replies.len(), requests.len(), "{}", server::stderr(&output));
    replies
}

/// Keys with the limit and the period that they are told, and that they reach in one instant; a limit of 1 is
/// what keys without a route are told, and never reach.
#[track_caller]
fn check(cases: &[(&str, u32, u32)]) {
    for (key, limit, period) in cases {
        let requests: Vec<_> = (0..=limit + 1).map(|_| (1_000, format!("over_limit {key}"))).collect();
        let replies = replies(&requests);
        let first_over = replies.iter().position(|reply| reply.starts_with("ok Y"));
        // The first request shows 0, the k-th of a burst k - 1 and a little less; equal to the limit is over.
        let limit_at = usize::try_from(*limit).unwrap();
        match first_over {
            None => assert_eq!(*limit, 1, "{key}"),
            Some(first_over) => assert!([limit_at, limit_at + 1].contains(&first_over), "{key}: {first_over}"),
        }
        assert_eq!(replies[0], format!("ok N 0.0 {limit}.0 {period}"), "{key}");
    }
}

#[test]
fn every_key_of_the_original_meets_its_limit() {
    check(&[
        ("ws ip=192.0.2.1", 22, 20),
        ("search ip=192.0.2.1", 22, 20),
        ("frontend ip=4.14.989.98", 45, 20),
        ("ws global", 2_500, 10),
        // Customers, by their addresses or by name; the origin stays.
        ("ws ip=132.185.1.255", 300, 20),
        ("search ip=212.58.220.1", 300, 20),
        ("ws ip=212.58.259.1", 300, 20),
        ("ws ip=212.58.219.1", 22, 20),
        ("ws cust=bbc", 300, 20),
        ("ws ip=207.241.224.7", 220, 20),
        ("frontend ip=207.241.239.7", 220, 20),
        ("ws ip=207.241.240.7", 22, 20),
        ("ws ip=84.45.16.4", 220, 20),
        ("ws ip=84.45.16.41", 22, 20),
        ("ws ip=81.153.103.174", 220, 20),
        ("ws ip=10.1.1.245", 2_000, 20),
        // Agents.
        ("ws ua=", 100, 10),
        ("ws ua=- -", 100, 10),
        ("ws ua=Java/1.7.0_51", 100, 10),
        ("ws ua=Python-urllib/2.7", 100, 10),
        ("ws ua=Jakarta Commons-HttpClient/3.1", 100, 10),
        ("ws ua=Apache-HttpClient/UNAVAILABLE (java 1.4)", 100, 10),
        ("ws ua=python-musicbrainz/0.7.3", 500, 10),
        ("ws ua=libvlc", 125, 10),
        ("ws ua=nsplayer", 125, 10),
        ("ws ua=Python-HeadPhones/0.7.3", 300, 10),
        ("ws ua=python-musicbrainzngs/0.3devMODIFIED", 300, 10),
        ("ws ua=python-musicbrainz-ngs/0.4devmodified x", 300, 10),
        // No rule.
        ("ws ua=Picard/2.1", 1, 1),
        ("ws ua=Java/1.7 x", 1, 1),
        ("ws ip=2001:db8::1", 1, 1),
        ("other", 1, 1),
    ]);
}

/// Customers share one key for each origin, whichever of their addresses asks.
#[test]
fn rewritten_keys_count_together() {
    let uses = [("ws ip=132.185.0.1", "ws ip=212.58.230.9"), ("ws ip=84.45.16.4", "ws ip=81.153.103.174")];
    for (one, other) in uses {
        let replies = replies(&[(1_000, format!("over_limit {one}")), (1_000, format!("over_limit {other}"))]);
        assert!(replies[1].starts_with("ok N 1.0 "), "{one}, {other}: {}", replies[1]);
    }
}

/// The names that the original's monitoring agent asks for, and what was counted under them.
#[test]
fn all_names_of_the_monitoring_agent_are_served() {
    let uses = [
        "ws global",
        "ws ua=libvlc",
        "ws ua=nsplayer",
        "ws ip=132.185.1.1",
        "ws ip=207.241.230.1",
        "ws ip=84.45.16.4",
        "ws ua=python-musicbrainz/0.7.3",
        "ws ua=-",
        "ws ua=python-headphones/0.7.3",
        "ws ua=Googlebot/2.1",
        "ws ua=Banshee 2.6",
        "ws ua=Picard/1.2",
        "ws ua=jaikoz",
        "ws ua=Abelssoft/1",
        "ws ua=python-musicbrainz-ngs/0.5",
        "ws ua=XBMC/12",
        "ws ua=VOX",
        "other",
    ];
    // What `get_stats` tells of each name after two uses; `ws ua=-` counts as a bad agent.
    let told = [
        ("ws global", 2),
        ("ws ua=-", 0),
        ("ws ua=libvlc", 2),
        ("ws ua=nsplayer", 2),
        ("ws cust=bbc", 2),
        ("ws cust=ia", 2),
        ("ws cust=7d", 2),
        ("ws ua=python-musicbrainz/0.7.3", 2),
        ("ws ua=generic-bad-ua", 2),
        ("ws ua=python-headphones/0.7.3", 2),
        ("ws headphones", 2),
        ("googlebot", 2),
        ("banshee", 2),
        ("picard", 2),
        ("jaikoz", 2),
        ("abelssoft", 2),
        ("python-musicbrainz-ngs", 2),
        ("xbmc", 2),
        ("vox", 2),
        // The agents above that have no limit, twice each, and `other`.
        ("default", 18),
    ];
    let mut requests: Vec<_> = uses.iter().flat_map(|key| vec![(1_000, format!("over_limit {key}")); 2]).collect();
    requests.extend(told.iter().map(|(name, _)| (1_300, format!("get_stats {name}"))));
    let replies = replies(&requests);
    for ((name, uses), reply) in told.iter().zip(&replies[2 * uses.len()..]) {
        // Two at once have a rate of 1; keys without a route have none.
        let rate = u32::from(*uses == 2);
        assert_eq!(*reply, format!("n_req={uses} n_over=0 last_max_rate={rate} key={name}"));
    }
}
