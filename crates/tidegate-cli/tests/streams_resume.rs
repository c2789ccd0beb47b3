//! C5: a client that comes back to a stream after its server was restarted, with what it was given before.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::time::Duration;
use tidegate_testkit::stomp::{Client, Heard};

fn config(folder: &Folder, store: &str) -> PathBuf {
    let text = format!(
        "{store}[doors]\nhttp = \"127.0.0.1:0\"\n[[stream]]\nname = \"orders\"\nmode = \"only-once\"\nduration = \"1h\"\n\
         snapshot_every = \"1h\"\n"
    );
    folder.write("tidegate.toml", &text)
}

fn submit(server: &Server, count: usize) {
    for i in 0..count {
        let output = server.ask(&["submit", "orders", &format!("event {i} of {}", server.url)]);
        assert!(output.status.success(), "{output:?}");
    }
}

/// The ids and messages of a feed, the first so many.
fn feed(server: &Server, id: Option<&str>, count: usize) -> Vec<(String, String)> {
    let url = format!("{}/v1/streams/orders/feed", server.url);
    let mut request = ureq::get(&url).config().timeout_recv_body(Some(Duration::from_secs(20))).build();
    if let Some(id) = id {
        request = request.header("last-event-id", id);
    }
    let mut lines = BufReader::new(request.call().unwrap().into_body().into_reader()).lines().map(Result::unwrap);
    let mut next = |prefix: &str| lines.find_map(|line| line.strip_prefix(prefix).map(str::to_owned)).unwrap();
    (0..count).map(|_| (next("id: "), next("data: "))).collect()
}

/// Over STOMP: the headers of the first message and its body, as one text.
fn first_by_stomp(server: &Server, headers: &str) -> (Heard, String) {
    let mut client = Client::connected(server.url.strip_prefix("http://").unwrap().parse().unwrap());
    client.send(&format!("SUBSCRIBE\nid:1\ndestination:/topic/orders\n{headers}\n\0"));
    let heard = client.hear();
    let text = format!("{heard:?}");
    (heard, text)
}

/// Kept in memory only, the stream began from one again, and a client that resumed got the messages of the new history as if they
/// followed those of the old one, without a gap in the numbers.
#[test]
fn c5_two_histories_are_not_joined_when_a_server_without_a_path_is_restarted() {
    let folder = Folder::new();
    let path = config(&folder, "");
    let server = Server::start(&folder, Some(&path));
    submit(&server, 3);
    let (id, _) = feed(&server, None, 1).remove(0);
    let (heard, _) = first_by_stomp(&server, "");
    let headers = format!(
        "from-clock:{}\nepoch:{}\n",
        heard.header("message-id").unwrap(),
        heard.header("epoch").unwrap_or("none")
    );
    server.kill();
    let server = Server::start(&folder, Some(&path));
    submit(&server, 9);
    let (again, message) = feed(&server, Some(&id), 1).remove(0);
    assert!(message.contains("KEY_FRAME") && again != id, "{id} was followed by {again}: {message}");
    let (_, first) = first_by_stomp(&server, &headers);
    assert!(first.contains("KEY_FRAME"), "{headers} was followed by {first}");
}

#[test]
fn c5_a_restart_with_a_path_goes_on_in_the_same_history() {
    let folder = Folder::new();
    let path = config(&folder, "[store]\npath = \"data\"\n");
    let server = Server::start(&folder, Some(&path));
    submit(&server, 3);
    let (id, _) = feed(&server, None, 1).remove(0);
    server.kill();
    let server = Server::start(&folder, Some(&path));
    submit(&server, 1);
    let told = feed(&server, Some(&id), 2);
    assert!(told[0].1.contains("KEY_FRAME") && told[0].1.starts_with("{\"clock\":5,"), "at the start: {told:?}");
    assert!(told[1].1.contains("SUBMITTED_EVENT") && told[1].0.starts_with("6-"), "{told:?}");
    let epoch = |id: &str| id.split_once('-').unwrap().1.to_owned();
    assert_eq!(epoch(&told[1].0), epoch(&id));
}
