//! Streams behind a real nginx, in Node and in a browser, with the lines of docs/guide/events.md as they are printed there.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server};
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tidegate_testkit::servers;
use tidegate_testkit::stomp::Client;

fn tidegate(folder: &Folder, address: &str) -> Server {
    let text = format!(
        "[doors]\nhttp = \"{address}\"\n[[stream]]\nname = \"orders\"\nmode = \"only-once\"\nduration = \"1h\"\n\
         snapshot_every = \"1h\"\n"
    );
    let path: PathBuf = folder.write("tidegate.toml", &text);
    Server::start(folder, Some(&path))
}

/// nginx as it comes, with the guide's locations.
fn nginx(tidegate: &str) -> servers::Server {
    let guide = include_str!("../../../docs/guide/events.md");
    let locations = guide.split("```nginx\n").nth(1).unwrap().split("```").next().unwrap();
    let locations = locations.replace("127.0.0.1:7400", tidegate);
    servers::Server::program(|port, folder| {
        let root = folder.display();
        let config = format!(
            "daemon off; master_process off; pid {root}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n\
             client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;\n\
             uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;\nlog_format said '$args';\n\
             server {{\nlisten 127.0.0.1:{port};\n{locations}\n\
             location /page/ {{ alias {root}/; types {{ text/html html; text/javascript js mjs; }} }}\n\
             location = /said {{ access_log {root}/said said; return 204; }}\n}}\n}}\n"
        );
        for (name, text) in PAGE {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let file = folder.join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command.args(["-e", "stderr", "-c"]).arg(file);
        command
    })
}

/// A page that follows the feed in a browser.
const PAGE: [(&str, &str); 3] = [
    ("feed.html", "<!doctype html><title>feed</title><script type=module src=feed-browser.mjs></script>"),
    ("feed-browser.mjs", include_str!("clients/feed-browser.mjs")),
    ("tidegate-events.js", include_str!("../../../clients/js/tidegate-events.js")),
];

/// A program that follows the feed; what it says, line by line.
struct Follower {
    child: Child,
    lines: Receiver<String>,
}

impl Follower {
    /// Chromium, whose page has nginx write down what it says.
    fn in_a_browser(nginx: &servers::Server, folder: &Folder) -> Follower {
        let mut chromium = Command::new("chromium");
        chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        chromium.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        chromium.args(["--remote-debugging-port=0", &format!("--user-data-dir={}", folder.path("browser").display())]);
        chromium.arg(format!("http://127.0.0.1:{}/page/feed.html", nginx.port));
        let child = chromium.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let (sender, lines) = channel();
        let said = nginx.directory().join("said");
        std::thread::spawn(move || {
            for read in 0.. {
                let next =
                    || std::fs::read_to_string(&said).ok()?.lines().nth(read).map(|line| line.replace("%20", " "));
                let line = std::iter::repeat_with(next).find_map(|line| {
                    std::thread::sleep(Duration::from_millis(20));
                    line
                });
                if line.is_none_or(|line| sender.send(line).is_err()) {
                    return;
                }
            }
        });
        Follower { child, lines }
    }

    /// Node, which prints.
    fn in_node(nginx: &servers::Server) -> Follower {
        let url = format!("http://127.0.0.1:{}", nginx.port);
        let mut node = Command::new("node");
        node.args(["--experimental-eventsource", "--no-warnings"]);
        node.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/feed.mjs")).arg(url);
        let mut child = node.stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let printed = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || printed.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Follower { child, lines }
    }

    /// What follows this word in the next line.
    #[track_caller]
    fn hears(&self, word: &str) -> String {
        let line = self.lines.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("{word} did not come"));
        line.strip_prefix(word).unwrap_or_else(|| panic!("{word} was to come, not {line}")).trim().to_owned()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn c5_a_feed_behind_nginx_comes_at_once_and_comes_back_after_a_502() {
    check(|nginx, _| Follower::in_node(nginx));
}

#[test]
fn c5_a_feed_in_a_browser_comes_at_once_and_comes_back_after_a_502() {
    check(Follower::in_a_browser);
}

/// Stock nginx held messages back until its buffer was full; and a feed in the browser was dead for good after one 502, as
/// nginx gives while the server behind it starts again.
#[track_caller]
fn check(follow: impl FnOnce(&servers::Server, &Folder) -> Follower) {
    let folder = Folder::new();
    let server = tidegate(&folder, "127.0.0.1:0");
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let nginx = nginx(&address);
    let follower = follow(&nginx, &folder);
    let epoch = follower.hears("KEY_FRAME");
    let submitted = Instant::now();
    assert!(server.ask(&["submit", "orders", "taco"]).status.success());
    assert_eq!(follower.hears("SUBMITTED_EVENT"), "taco");
    assert!(submitted.elapsed() < Duration::from_secs(5), "held back for {:?}", submitted.elapsed());
    let mut stomp = Client::connected(([127, 0, 0, 1], nginx.port).into());
    stomp.send("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0");
    assert_eq!(stomp.hear().header("message-id"), Some("2"), "/ws, too");
    server.kill();
    // Not once only: the next attempt meets a 502 as well.
    (0..2).for_each(|_| assert_eq!(follower.hears("closed"), ""));
    let server = tidegate(&folder, &address);
    let other = loop {
        let line = follower.lines.recv_timeout(Duration::from_secs(60)).expect("it comes back");
        if line != "closed" {
            break line.strip_prefix("KEY_FRAME ").unwrap().to_owned();
        }
    };
    assert_ne!(other, epoch, "the stream was kept in memory only");
    assert!(server.ask(&["submit", "orders", "nacho"]).status.success());
    assert_eq!(follower.hears("SUBMITTED_EVENT"), "nacho");
}
