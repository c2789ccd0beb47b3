//! The client commands against a real server: what they say, and their exit codes.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod server;

use server::{Folder, Server, stderr, stdout, tidegate};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use tidegate_testkit::http;

/// Each command gives this exit code, and says this on stdout, or on stderr when it fails.
#[track_caller]
fn check(server: &Server, cases: &[(&str, i32, &str)]) {
    for (command, code, part) in cases {
        let args: Vec<&str> = command.split_whitespace().collect();
        let output = server.ask(&args);
        let said = if *code == 2 { stderr(&output) } else { stdout(&output) };
        assert_eq!(output.status.code(), Some(*code), "{command}: {said}");
        assert!(said.contains(part), "{command} says: {said}");
    }
}

#[test]
fn without_a_file_it_serves_an_example_and_says_what_to_try() {
    let folder = Folder::new();
    let server = Server::start(&folder, None);
    let address = server.url.strip_prefix("http://").unwrap();
    for part in [
        "an example policy, 5 limiters, 1 UDP route, 1 stream; state: in memory only",
        &format!("curl -i http://{address}/v1/hit -d '{{\"limiter\":\"api\",\"key\":\"u1\"}}'"),
        &format!("curl -i 'http://{address}/v1/allowed?user=u1&ip=192.0.2.1'"),
        &format!("tidegate limiters --server http://{address}"),
    ] {
        assert!(server.banner.contains(part), "{}", server.banner);
    }
    check(
        &server,
        &[
            ("hit api u1", 0, "allowed: api u1, 4 of 5 left; as new in 12 seconds"),
            ("hit api u1 --cost 4", 0, "allowed: api u1, 0 of 5 left"),
            ("hit api u1", 1, "denied: api u1, 0 of 5 left; try again in 12 seconds"),
            ("peek api u1", 1, "denied: api u1, 0 of 5 left"),
            ("peek api u1 --cost 0", 0, "allowed: api u1, 0 of 5 left"),
            ("hit api u1 --cost 6", 1, "the cost is above the limit of 5 and can never pass"),
            ("peek login-user u1", 0, "100 per 1d block 1h  yes    100"),
            ("limiters", 0, "login-ip    enabled  20 per 1m"),
        ],
    );
}

#[test]
fn hit_and_peek_take_attributes_and_a_domain() {
    let folder = Folder::new();
    let server = Server::start(&folder, None);
    let login = "--domain login -a user=u1 --attribute ip=2001:db8::1";
    check(
        &server,
        &[
            (&format!("hit {login}"), 0, "allowed: login-user user=u1 ip=2001:db8::1, 4 of 5 left; as new in 1 minute"),
            (&format!("hit {login} --cost 4"), 0, "allowed: login-user user=u1 ip=2001:db8::1, 0 of 5 left"),
            (&format!("hit {login}"), 1, "denied: login-user user=u1 ip=2001:db8::1, 0 of 5 left; try again in"),
            (&format!("peek {login}"), 1, "login-user: 5 per 1m             no       0"),
            (&format!("peek {login}"), 1, "login-ip: 20 per 1m              yes     15"),
            ("hit -a ip=192.0.2.1", 0, "allowed: per-ip ip=192.0.2.1, 39 of 40 left"),
            ("hit -a path=/x", 0, "allowed: path=/x, no limiter without a domain applies"),
            ("hit --domain x -a user=u1", 0, "allowed: user=u1, no limiter of domain x applies"),
            ("hit -a user", 2, "it is no name and value; write one such as user=u1"),
            ("hit -a user=a -a user=b", 2, "the attribute \"user\" is there twice; write it once"),
            ("hit api", 2, "<KEY>"),
            ("hit", 2, "<LIMITER>"),
            ("hit api u1 -a user=a", 2, "cannot be used with"),
            ("hit --domain login", 2, "--attribute"),
        ],
    );
    assert_eq!(server.json(&["hit", "-a", "ip=192.0.2.9"]).1["limiter"], "per-ip");
}

#[test]
fn blocks_switches_and_lists() {
    let folder = Folder::new();
    let server = Server::start(&folder, None);
    check(
        &server,
        &[
            ("block api u2 --for 10m", 0, "blocked: api u2 for 10 minutes, until 20"),
            ("hit api u2", 1, "denied: api u2, blocked for another 10 minutes"),
            ("hit api u3", 0, "allowed"),
            ("blocked api", 0, "u2"),
            ("keys api", 0, "u2\nu3"),
            ("unblock api u2", 0, "unblocked: api u2"),
            ("unblock api u2", 0, "not blocked: api u2"),
            ("block api u4 --for 1h", 0, "for 1 hour"),
            ("unblock-all api", 0, "unblocked: api, 1 key"),
            ("disable api", 0, "api is disabled"),
            ("hit api u3 --cost 1000", 0, "the limiter is disabled and counts nothing"),
            ("limiters", 0, "api         disabled"),
            ("enable api", 0, "api is enabled"),
            ("hit api u3 --cost 1000", 1, "can never pass"),
        ],
    );
    assert_eq!(server.json(&["blocked", "api"]).1, serde_json::json!({ "keys": [], "next": null }));
    assert_eq!(server.json(&["unblock", "api", "x"]), (0, serde_json::json!({ "unblocked": false })));
}

#[test]
fn counting_and_asking_apart() {
    let folder = Folder::new();
    let limits = "algorithm = \"buckets\"\nlimits = [\"5 per hour\", \"7 per day block 2d\"]";
    let text = format!(
        "[doors]\nhttp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"notify\"\n{limits}\n[[limiter]]\nname = \"api\"\nlimits = [\"5 per minute\"]\n"
    );
    let server = Server::start(&folder, Some(&folder.write("t.toml", &text)));
    check(
        &server,
        &[
            ("analyze notify u1", 0, "ok: notify u1"),
            ("increment notify u1 --count 4", 0, "counted: notify u1, 4 at 20"),
            ("increment notify u1 --timestamp 0", 0, "not counted: notify u1, 1 at 1970-01-01 00:00:00 UTC"),
            ("analyze notify u1", 0, "ok: notify u1"),
            ("increment notify u1", 0, "counted: notify u1, 1 at 20"),
            ("analyze notify u1", 1, "limited: notify u1, 5 counted of 5 per 1h, blocked until 20"),
            ("analyze notify u1", 1, "blocked: notify u1, blocked until 20"),
            ("blocked notify", 0, "u1"),
            ("unblock-all notify", 0, "unblocked: notify, 1 key"),
            ("hit notify u1 --cost 5", 0, "allowed: notify u1, 0 of 5 left"),
            ("hit notify u1", 1, "denied: notify u1, 0 of 5 left; try again in"),
            (
                "increment api u1",
                2,
                "increment needs algorithm = \"buckets\", and limiter \"api\" has \"token-bucket\"",
            ),
            ("analyze api u1", 2, "analyze needs algorithm"),
            ("increment notify u1 --count -1", 2, "--count"),
            ("increment notify u1 --timestamp -1", 2, "\"timestamp\" must be seconds since the epoch"),
        ],
    );
    let (code, body) = server.json(&["analyze", "notify", "u1"]);
    assert_eq!((code, body["status"].as_str(), body["sum"].as_u64()), (1, Some("blocked"), None));
    let (code, body) = server.json(&["increment", "notify", "u2", "--count", "2"]);
    assert_eq!((code, body["count"].as_u64(), body["counted"].as_bool()), (0, Some(2), Some(true)));
}

#[test]
fn errors_say_what_to_do_and_exit_with_2() {
    let folder = Folder::new();
    let server = Server::start(&folder, None);
    check(
        &server,
        &[
            ("hit nope u1", 2, "error: no limiter is named \"nope\"; there are: api, per-user"),
            ("block api u1 --for 10", 2, "duration \"10\" has no unit; write 10s, 10m or 10h"),
            ("block api u1 --for 9999d", 2, "outside 1ms to 366d"),
            ("hit api u1 --cost -1", 2, "--cost"),
            ("hit api u1 --server https://127.0.0.1:1", 2, "no server listens at https://127.0.0.1:1"),
            ("hit api u1 --server nonsense", 2, "is no address; write http://HOST:PORT"),
            (
                "hit api u1 --server http://127.0.0.1:1",
                2,
                "start one with: tidegate serve, or name another with --server URL",
            ),
            ("keys nope", 2, "no limiter is named \"nope\""),
        ],
    );
    let (code, body) = server.json(&["hit", "nope", "u1"]);
    assert_eq!((code, body["code"].as_str()), (2, Some("unknown_limiter")));
    let long = "k".repeat(513);
    let output = server.ask(&["peek", "api", &long]);
    assert!(stderr(&output).contains("513 bytes, more than 512"), "{}", stderr(&output));
}

#[test]
fn a_key_is_any_bytes() {
    let folder = Folder::new();
    let server = Server::start(&folder, None);
    let keys: [&[u8]; 6] =
        [b"a/b?c=d&e#f", b"%41", b"..", "gr\u{fc}\u{df}e \u{1f30a}".as_bytes(), b"\xff\xfe", b"a+b c"];
    for key in keys {
        let ask = |command: &str, rest: &[&str]| {
            let key = OsStr::from_bytes(key);
            let mut asked = Command::new(server::TIDEGATE);
            let asked = asked.args([OsStr::new(command), OsStr::new("api"), key]).args(rest);
            asked.env("TIDEGATE_SERVER", &server.url).output().unwrap().status.code()
        };
        assert_eq!(ask("peek", &[]), Some(0), "{key:?}");
        assert_eq!(ask("block", &["--for", "1h"]), Some(0), "{key:?}");
        assert_eq!(ask("peek", &[]), Some(1), "{key:?}");
        if std::str::from_utf8(key).is_ok() {
            assert_eq!(ask("hit", &[]), Some(1), "the path and the body mean the same key: {key:?}");
        }
    }
    let (_, listed) = server.json(&["blocked", "api"]);
    assert_eq!(listed["binary_keys"], serde_json::json!(["%FF%FE"]));
    assert_eq!(listed["keys"], serde_json::json!(["%41", "..", "a+b c", "a/b?c=d&e#f", "gr\u{fc}\u{df}e \u{1f30a}"]));
}

#[test]
fn long_lists_come_whole() {
    let folder = Folder::new();
    // A key is listed until its window ends: not while it is still being filled.
    let config = folder
        .write("t.toml", "[doors]\nhttp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"api\"\nlimits = [\"1 per day\"]\n");
    let server = Server::start(&folder, Some(&config));
    let mut wire = std::net::TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    for i in 0..2_500 {
        let body = format!("{{\"limiter\":\"api\",\"key\":\"k{i:04}\"}}");
        assert_eq!(http::exchange(&mut wire, "POST /v1/hit", &body).0, 200);
    }
    let (_, listed) = server.json(&["keys", "api"]);
    let keys: Vec<String> = (0..2_500).map(|i| format!("k{i:04}")).collect();
    assert_eq!(listed["keys"], serde_json::json!(keys));
    assert_eq!(stdout(&server.ask(&["keys", "api"])).lines().count(), 2_500);
}

#[test]
fn help_names_every_command() {
    let output = tidegate(&["--help"]);
    for command in [
        "serve",
        "validate",
        "simulate",
        "hit",
        "peek",
        "limiters",
        "keys",
        "blocked",
        "block",
        "unblock",
        "unblock-all",
        "enable",
        "disable",
    ] {
        assert!(stdout(&output).contains(&format!("  {command} ")), "{command}");
    }
    assert_eq!(tidegate(&["dance"]).status.code(), Some(2));
}
