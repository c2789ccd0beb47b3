//! `check_limit JSON`: one datagram for the keys of origin, agent and address.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use tidegate::{Algorithm, Clock, Gate, LimiterSpec, Micros, Policy, Rules};
use tidegate_doors::udp::{Responder, Route, Routing, Scratch, Slot};
use tidegate_wire::udp::{Request, reply_room};

/// Agents, addresses and origins, each with its own limit.
fn responder() -> Responder {
    let limits = [("ua", "4 per hour"), ("ip", "3 per hour"), ("global", "9 per hour")];
    let rules = |limit: &str| Rules::new(Algorithm::FixedWindow, &[limit.parse().unwrap()]).unwrap();
    let limiters = limits.map(|(name, limit)| LimiterSpec::new(name, rules(limit)).with_stats());
    let patterns = [("^ws ua=.", "ua"), ("^ws ip=", "ip"), ("^ws global$", "global")];
    let route = |(pattern, limiter): (&str, &str)| Route {
        pattern: pattern.to_owned(),
        limiter: limiter.to_owned(),
        ipv6_prefix: None,
    };
    let routing = Routing { routes: patterns.map(route).to_vec(), ..Routing::default() };
    let gate = Gate::with_clock(Policy::new(limiters.to_vec()).unwrap(), Clock::manual(NOW));
    Responder::new(gate, &routing).unwrap()
}

/// When all datagrams come.
const NOW: Micros = Micros::from_secs(1_000);

fn ask(responder: &Responder, datagrams: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
    let (mut scratch, mut slots) = (Scratch::default(), vec![Slot::default(); datagrams.len()]);
    responder.answer(&mut scratch, datagrams, NOW, &mut slots);
    slots.iter().map(|slot| slot.reply().map(<[u8]>::to_vec)).collect()
}

/// Asks all in one batch; an empty reply is silence.
#[track_caller]
fn check(responder: &Responder, conversation: &[(&str, &str)]) {
    let datagrams: Vec<&[u8]> = conversation.iter().map(|(asked, _)| asked.as_bytes()).collect();
    for ((asked, expected), reply) in conversation.iter().zip(ask(responder, &datagrams)) {
        assert_eq!(String::from_utf8(reply.unwrap_or_default()).unwrap(), *expected, "{asked}");
    }
}

/// An agent that is long enough for the whole reply.
const AGENT: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

fn asked(ip: &str) -> String {
    format!(r#"7 check_limit {{"origin":"ws","ip":"{ip}","ua":"{AGENT}"}}"#)
}

fn told(ip: &str, last: &str, results: &[&str]) -> String {
    let keys = [format!("ws ua={AGENT}"), format!("ws ip={ip}"), "ws global".to_owned()];
    let results = keys.iter().zip(results).map(|(key, told)| format!(r#"{{"key":"{key}","over_limit":"{told}"}}"#));
    let results: Vec<String> = results.collect();
    format!(r#"7 {last}, ["{}"], [{}]"#, keys.join(r#"",""#), results.join(","))
}

#[test]
fn check_limit_uses_agent_address_and_origin_until_one_is_over() {
    let responder = responder();
    let all = |ua: u32, ip: u32, global: u32| {
        [format!("ok N {ua}.0 4.0 3600"), format!("ok N {ip}.0 3.0 3600"), format!("ok N {global}.0 9.0 3600")]
    };
    let passes = |ip: &str, replies: [String; 3]| {
        let reply = told(ip, &replies[2], &replies.each_ref().map(String::as_str));
        check(&responder, &[(&asked(ip), &reply)]);
    };
    passes("1", all(1, 1, 1));
    passes("1", all(2, 2, 2));
    passes("1", all(3, 3, 3));
    // The address is over: its origin is not used any more.
    let over = "ok Y 3.0 3.0 3600";
    check(&responder, &[(&asked("1"), &told("1", over, &["ok N 4.0 4.0 3600", over]))]);
    // The agent is over: nothing else is used.
    let over = "ok Y 4.0 4.0 3600";
    check(&responder, &[(&asked("2"), &told("2", over, &[over]))]);
    check(
        &responder,
        &[
            ("get_stats ws ip=1", "n_req=4 n_over=1 last_max_rate=0 key=ws ip=1"),
            ("get_stats ws ip=2", "n_req=0 n_over=0 last_max_rate=0 key=ws ip=2"),
            ("get_stats ws global", "n_req=3 n_over=0 last_max_rate=0 key=ws global"),
        ],
    );
}

#[test]
fn check_limit_is_answered_in_its_place_of_a_batch() {
    let agent = format!("over_limit ws ua={AGENT}");
    let replies = ["ok N 2.0 4.0 3600", "ok N 1.0 3.0 3600", "ok N 2.0 9.0 3600"];
    check(
        &responder(),
        &[
            (&agent, "ok N 1.0 4.0 3600"),
            ("over_limit ws global", "ok N 1.0 9.0 3600"),
            (&asked("1"), &told("1", replies[2], &replies)),
            ("get_stats ws global", "n_req=2 n_over=0 last_max_rate=0 key=ws global"),
            (&agent, "ok N 3.0 4.0 3600"),
            ("1 over_limit ws ip=1", "1 ok N 2.0 3.0 3600"),
        ],
    );
}

/// Of a short request, the reply leaves out what would make it more than three times as long.
#[test]
fn s3_check_limit_is_answered_in_at_most_three_times_its_request() {
    check(
        &responder(),
        &[
            ("check_limit {}", r#"ok N 0.0 1.0 1, ["unspecified ua=","unspecified ip=","unspecified global"]"#),
            (r#"3 check_limit {"origin":"ws"}"#, r#"3 ok N 1.0 9.0 3600, ["ws ua=","ws ip=","ws global"]"#),
        ],
    );
}

#[test]
fn check_limit_answers_no_bad_json_and_lives_on() {
    let deep = format!("check_limit {{\"ua\":{}", "[".repeat(900));
    let silent = [
        "check_limit ",
        "1 check_limit x",
        "check_limit []",
        "check_limit {\"ua\":\"\\ud800\"}",
        "check_limit {,}",
        &deep,
    ];
    let mut conversation: Vec<(&str, &str)> = silent.iter().map(|asked| (*asked, "")).collect();
    conversation.push(("ping", "pong"));
    check(&responder(), &conversation);
}

/// A datagram is cut at 1,000 bytes: a client cannot be admitted by sending a long agent.
#[test]
fn check_limit_of_an_agent_that_is_cut_counts_for_its_address() {
    let responder = responder();
    let long = format!(r#"check_limit {{"origin":"ws","ip":"1","ua":"{}"}}"#, "x".repeat(2_000));
    let replies = ask(&responder, &[long.as_bytes(); 4]);
    let over = |reply: &Option<Vec<u8>>| reply.as_ref().unwrap().starts_with(b"ok Y 3.0 3.0 3600");
    assert_eq!(replies.iter().map(over).collect::<Vec<_>>(), [false, false, false, true]);
}

/// S1, S3: whatever is done to a request, the reply is no request and at most three times as long.
#[test]
fn s1_s3_no_mangled_check_limit_breaks_the_door() {
    let (responder, mut seed, mut answered) = (responder(), 5_u64, 0);
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let words: [&[u8]; 12] =
        [b"\"", b"\\", b"\\u0001", b"{", b"}", b"[", b",", b":", b"\xff", b"\"ua\":", b"9", b"\"origin\":\"ws\","];
    for _ in 0..20_000 {
        let mut datagram = asked("192.0.2.1").into_bytes();
        for _ in 0..random(4) {
            let at = random(datagram.len() + 1);
            match random(4) {
                0 if at < datagram.len() => datagram[at] = u8::try_from(random(256)).unwrap(),
                1 => drop(datagram.splice(at..at, words[random(words.len())].repeat(1 + random(300)))),
                2 => datagram.truncate(at.max(30)),
                _ => datagram.extend_from_within(at..),
            }
        }
        let Some(reply) = &ask(&responder, &[&datagram])[0] else { continue };
        answered += 1;
        assert_eq!(Request::parse(reply), None, "{}", datagram.escape_ascii());
        assert!(reply.len() <= reply_room(datagram.len()), "{} to {}", reply.len(), datagram.escape_ascii());
    }
    assert!(answered > 5_000, "{answered}");
}
