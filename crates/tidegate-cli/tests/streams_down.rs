//! F1, F6: a stream whose disk is full, or whose Redis was down at the start, is told to readers within a deadline, and to
//! people by the log, `/readyz` and a metric. Once they waited without end.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server};
use std::time::{Duration, Instant};
use tidegate_testkit::stomp::Client;

/// A status and a body.
fn get(server: &Server, path: &str) -> (u16, String) {
    let url = format!("{}{path}", server.url);
    let request = ureq::get(&url).config().http_status_as_error(false).timeout_global(Some(Duration::from_secs(15)));
    let mut response = request.build().call().unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

fn post(server: &Server, path: &str, body: &str) -> (u16, String) {
    let url = format!("{}{path}", server.url);
    let request = ureq::post(&url).config().http_status_as_error(false).timeout_global(Some(Duration::from_secs(15)));
    let mut response = request.build().send(body).unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
}

/// What a SUBSCRIBE over STOMP is refused with, and how soon.
fn subscribe(server: &Server) -> (String, Duration) {
    let mut client = Client::connected(server.url.strip_prefix("http://").unwrap().parse().unwrap());
    let since = Instant::now();
    client.send("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0");
    (client.hear().error(), since.elapsed())
}

/// A real server whose files cannot grow: events are refused, readers are answered in time, decisions go on, people are told;
/// and all goes on when there is room again.
#[test]
fn f1_f6_a_server_on_a_full_disk_goes_on_and_says_so() {
    let folder = Folder::new();
    let config = folder.write(
        "config.toml",
        "[store]\npath = \"data\"\nsnapshot_every = \"1h\"\n[doors]\nhttp = \"127.0.0.1:0\"\n\
         [[limiter]]\nname = \"api\"\nlimits = [\"1000 per hour\"]\n\
         [[stream]]\nname = \"orders\"\nmode = \"only-once\"\nduration = \"1h\"\n",
    );
    let server = Server::start_on_a_small_disk(&folder, &config, 64 << 10);
    let submit = |i: usize| post(&server, "/v1/streams/orders/events", &format!("{i:0>1000}"));
    let taken = (0..100).take_while(|i| submit(*i).0 == 201).count();
    assert!((20..70).contains(&taken), "{taken} events of 1,000 bytes in 64 KiB");
    let mut slowest = Duration::ZERO;
    for (path, code) in [("/v1/streams/orders", "unavailable"), ("/v1/streams/orders/feed", "unavailable")] {
        let since = Instant::now();
        let (status, body) = get(&server, path);
        assert!(status == 503 && body.contains(code) && body.contains("journal cannot be written"), "{path}: {body}");
        slowest = slowest.max(since.elapsed());
    }
    let (error, took) = subscribe(&server);
    assert!(error.contains("message:unavailable") && error.contains("journal cannot be written"), "STOMP: {error}");
    slowest = slowest.max(took);
    let (since, (status, body)) = (Instant::now(), submit(500));
    assert!(status == 503 && body.contains("the journal cannot be written"), "{status} {body}");
    println!(
        "{taken} events taken; an event is refused in {:?}, GET, feed and SUBSCRIBE within {slowest:?}",
        since.elapsed()
    );
    assert!(slowest < Duration::from_secs(6), "{slowest:?}");
    let (status, body) = get(&server, "/readyz");
    assert!(status == 200 && body.contains("\"failing_streams\":[\"orders\"]"), "{status} {body}");
    assert!(get(&server, "/metrics").1.contains("tidegate_stream_failing{stream=\"orders\"} 1"));
    server.wait_for_log("the journal cannot be written");
    assert_eq!(post(&server, "/v1/hit", "{\"limiter\":\"api\",\"key\":\"u1\"}").0, 200, "decisions go on");

    server.let_files_grow();
    server::eventually("events are taken again", || submit(501).0 == 201);
    server::eventually("it is well", || get(&server, "/readyz").1.contains("\"status\":\"ok\""));
    server.wait_for_log("the stream goes on");
    server.kill();
    let server = Server::start(&folder, Some(&config));
    let (_, body) = get(&server, "/v1/streams/orders");
    let kept = body.matches("\"event\"").count();
    // Those that were answered, and the one whose fate was not known when the disk was full.
    assert!((taken + 1..=taken + 3).contains(&kept), "E1, E5: {kept} of {taken} and one");
}

#[test]
fn f1_f6_a_redis_that_was_down_at_the_start_is_told_in_time() {
    let folder = Folder::new();
    // Nobody listens there: the port was free a moment ago and is not given out again so soon.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = folder.write(
        "config.toml",
        &format!(
            "[store]\nkind = \"redis\"\nurl = \"redis://{free}\"\n[doors]\nhttp = \"127.0.0.1:0\"\n\
             [[stream]]\nname = \"orders\"\nmode = \"only-once\"\nduration = \"10s\"\n"
        ),
    );
    let server = Server::start(&folder, Some(&config));
    for path in ["/v1/streams/orders", "/v1/streams/orders/feed"] {
        let since = Instant::now();
        let (status, body) = get(&server, path);
        assert!(status == 503 && body.contains("\"code\":\"unavailable\""), "{path}: {status} {body}");
        assert!(body.contains("the store does not answer") && !body.contains(&free.to_string()), "{path}: {body}");
        assert!(since.elapsed() < Duration::from_secs(6), "{path}: {:?}", since.elapsed());
    }
    let (error, took) = subscribe(&server);
    assert!(error.contains("message:unavailable") && error.contains("the store does not answer"), "STOMP: {error}");
    assert!(!error.contains(&free.to_string()) && took < Duration::from_secs(6), "STOMP: {took:?} {error}");
    let (status, body) = get(&server, "/readyz");
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"status\":\"degraded\"") && body.contains("\"failing_streams\":[\"orders\"]"), "{body}");
    serde_json::from_str::<serde_json::Value>(&body).unwrap();
    let (_, metrics) = get(&server, "/metrics");
    assert!(metrics.contains("tidegate_stream_failing{stream=\"orders\"} 1"), "{metrics}");
    server.wait_for_log("the stream takes and shows nothing");
}
