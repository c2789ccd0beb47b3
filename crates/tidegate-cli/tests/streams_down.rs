//! F1, F6: a stream whose disk is full, or whose Redis was down at the start, is told to readers within a deadline, and to
//! people by the log, `/readyz` and a metric. Once they waited without end.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server};
use std::time::{Duration, Instant};

/// A status and a body.
fn get(server: &Server, path: &str) -> (u16, String) {
    let url = format!("{}{path}", server.url);
    let request = ureq::get(&url).config().http_status_as_error(false).timeout_global(Some(Duration::from_secs(15)));
    let mut response = request.build().call().unwrap();
    (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
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
    let (status, body) = get(&server, "/readyz");
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"status\":\"degraded\"") && body.contains("\"failing_streams\":[\"orders\"]"), "{body}");
    serde_json::from_str::<serde_json::Value>(&body).unwrap();
    let (_, metrics) = get(&server, "/metrics");
    assert!(metrics.contains("tidegate_stream_failing{stream=\"orders\"} 1"), "{metrics}");
    server.wait_for_log("the stream takes and shows nothing");
}
