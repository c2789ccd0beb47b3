//! Datagrams in traces: answered as the UDP door answers them.

use super::tests::{EACH, check, limiter, run};

const MUSICBRAINZ: &str = include_str!("../../../../examples/musicbrainz.toml");

/// Datagrams at these seconds, and their replies; `None`: silence.
fn udp(config: &str, datagrams: impl IntoIterator<Item = (f64, String)>) -> Vec<Option<String>> {
    let line = |(at, text): (f64, String)| format!("{{\"at\":{at},\"udp\":{}}}", serde_json::json!(text));
    let trace: Vec<String> = datagrams.into_iter().map(line).collect();
    let (out, outcome) = run(config, &trace.join("\n"));
    outcome.unwrap();
    let reply = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["udp"].clone();
    out.lines().map(|line| reply(line).as_str().map(str::to_owned)).collect()
}

/// The first that is over, from 1, and how many are.
fn over(config: &str, key: &str, times: impl IntoIterator<Item = f64>) -> (Option<usize>, usize) {
    let replies = udp(config, times.into_iter().map(|at| (at, format!("1 over_limit {key}"))));
    let over = |reply: &Option<String>| reply.as_deref().unwrap().starts_with("1 ok Y ");
    (replies.iter().position(over).map(|at| at + 1), replies.iter().filter(|reply| over(reply)).count())
}

#[test]
fn udp_lines_are_answered_as_the_door_does() {
    check(
        MUSICBRAINZ,
        r#"
{"at":2,"udp":"78 over_limit ws ip=192.0.2.1"} -> {"at":2,"udp":"78 ok N 0.0 22.0 20"}
{"at":2,"udp":"over_limit ws ip=192.0.2.1\n"} -> {"at":2,"udp":"ok N 1.0 22.0 20"}
{"at":2,"udp":"over_limit\n\n"} -> {"at":2,"udp":null}
{"at":2.5,"udp":"1 over_limit ws ip=192.0.2.1"} -> {"at":2.5,"udp":"1 ok N 2.0 22.0 20"}
{"at":3,"udp":"over_limit ws ip=4.14.989.98"} -> {"at":3,"udp":"ok N 0.0 22.0 20"}
{"at":3,"udp":"over_limit ws ip=2001:db8::1"} -> {"at":3,"udp":"ok N 0.0 1.0 1"}
{"at":3,"udp":"over_limit nobody"} -> {"at":3,"udp":"ok N 0.0 1.0 1"}
{"at":3,"udp":"over_limit "} -> {"at":3,"udp":"ok N 0.0 1.0 1"}
{"at":3,"udp":"000867465 ping"} -> {"at":3,"udp":"000867465 pong"}
{"at":3,"udp":"PING"} -> {"at":3,"udp":null}
{"at":3,"udp":"get_stats"} -> {"at":3,"udp":null}
{"at":3,"udp":"7 get_stats some-key"} -> {"at":3,"udp":"7 n_req=0 n_over=0 last_max_rate=0 key=some-key"}"#,
    );
    let (out, _) = run(
        MUSICBRAINZ,
        r#"{"at":0,"udp":"over_limit ws ip=1.2.3.4"}
{"at":0,"udp":"get_size"}"#,
    );
    let size = out.lines().nth(1).unwrap();
    assert!(size.starts_with(r#"{"at":0,"udp":"size=1/"#) && size.ends_with(r#" keys=1"}"#), "{size}");
}

#[test]
fn udp_traces_of_the_original_come_out_the_same() {
    let leaky = MUSICBRAINZ.replace("strict = true\n", "");
    let (ip, twice) = ("ws ip=192.0.2.1", || (0..80).map(|i| f64::from(i) / 2.0));
    assert_eq!(over(MUSICBRAINZ, ip, [0.0; 25]), (Some(23), 3));
    assert_eq!(over(MUSICBRAINZ, ip, (0..60).map(f64::from)), (None, 0));
    assert_eq!(over(MUSICBRAINZ, ip, twice()), (Some(33), 48));
    assert_eq!(over(&leaky, ip, twice()), (Some(33), 22));
    let never = "[[limiter]]\nname = \"n\"\nalgorithm = \"average\"\nlimits = [\"0 per 10s\"]\n\
                 [[udp.route]]\nmatch = '^n$'\nlimiter = \"n\"\n";
    assert_eq!(udp(never, [(5.0, "over_limit n".to_owned())]), [Some("ok Y 0.0 0.0 10".to_owned())]);
}

#[test]
fn udp_statistics_live_under_the_rewritten_key() {
    let mut lines = vec![(10.0, "over_limit ws ip=132.185.7.9".to_owned()); 310];
    lines.push((10.0, "1 get_stats ws cust=bbc".to_owned()));
    lines.push((10.0, "2 get_stats ws ip=132.185.7.9".to_owned()));
    lines.push((300.0, "3 get_stats ws cust=bbc".to_owned()));
    lines.push((600.0, "4 get_stats ws cust=bbc".to_owned()));
    let replies = udp(MUSICBRAINZ, lines);
    let tail: Vec<&str> = replies[310..].iter().map(|reply| reply.as_deref().unwrap()).collect();
    assert_eq!(
        tail,
        [
            "1 n_req=310 n_over=10 last_max_rate=0 key=ws cust=bbc",
            "2 n_req=0 n_over=0 last_max_rate=0 key=ws ip=132.185.7.9",
            "3 n_req=310 n_over=10 last_max_rate=300 key=ws cust=bbc",
            "4 n_req=310 n_over=10 last_max_rate=0 key=ws cust=bbc",
        ]
    );
}

#[test]
fn udp_routes_take_every_algorithm() {
    for algorithm in EACH {
        let config = limiter(algorithm, "3 per minute") + "[[udp.route]]\nmatch = '^.*$'\nlimiter = \"api\"\n";
        let asked = ["over_limit ", "over_limit ", "over_limit ", "over_limit ", "get_stats "];
        let replies = udp(&config, asked.map(|text| (60.0, text.to_owned())));
        let replies: Vec<&str> = replies.iter().map(|reply| reply.as_deref().unwrap()).collect();
        assert_eq!(replies[..3], ["ok N 1.0 3.0 60", "ok N 2.0 3.0 60", "ok N 3.0 3.0 60"], "{algorithm}");
        assert_eq!(replies[3..], ["ok Y 3.0 3.0 60", "n_req=0 n_over=0 last_max_rate=0 key="]);
    }
    let disabled = limiter("average", "0 per 500ms") + "[[udp.route]]\nmatch = ''\nlimiter = \"api\"\n";
    check(
        &disabled,
        r#"
{"at":1,"udp":"over_limit k"} -> {"at":1,"udp":"ok Y 0.0 0.0 0"}
{"at":1,"op":"disable","limiter":"api"} -> {"at":1,"op":"disable","limiter":"api"}
{"at":1,"udp":"over_limit k"} -> {"at":1,"udp":"ok N 0.0 0.0 0"}"#,
    );
}

#[test]
fn udp_requests_are_in_the_tally() {
    let (_, outcome) = run(
        MUSICBRAINZ,
        &r#"{"at":0,"udp":"over_limit ws ip=1.2.3.4"}
"#
        .repeat(24),
    );
    let tally = outcome.unwrap();
    assert_eq!((tally.limiters[0].allowed, tally.limiters[0].denied), (22, 2));
    assert_eq!(tally.limiters[0].spec.name, "ws-ip");
}
