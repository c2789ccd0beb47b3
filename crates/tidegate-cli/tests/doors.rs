//! One limiter asked at every door of one server: decisions are counted for their doors, and a candidate changes none of them.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, eventually};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_testkit::http;
use tidegate_testkit::servers::free_port;

/// Hits at each door, each door with a key of its own.
const HITS: u64 = 5;
/// What the limiter allows of them.
const ALLOWED: u64 = 3;

/// Asks one limiter at one door, for one key; what came of it, without times.
type Ask = fn(&Asked, key: &str) -> String;

/// A server with all doors, and its proxy's address.
struct Asked {
    server: Server,
    proxy: SocketAddr,
}

const DOORS: [(&str, Ask); 5] =
    [("http", by_http), ("udp", by_udp), ("grpc", by_grpc), ("resp", by_resp), ("proxy", by_proxy)];

#[test]
fn a12_a_candidate_changes_no_decision_at_any_door_and_each_is_counted_for_its_door() {
    let plain = answers(&start(""));
    // The first of them would deny everything.
    for would_allow in [0, 1] {
        let server = start(&format!("candidate_limits = [\"{would_allow} per day\"]"));
        assert_eq!(answers(&server), plain, "a candidate of {would_allow} per day");
        for (door, _) in DOORS {
            if door == "proxy" {
                // Its limiter has no candidate, and its turnstile asks the gate for starts alone.
                assert_eq!(counted(&server, "proxy", "enforced", door), (ALLOWED, 0));
                continue;
            }
            assert_eq!(counted(&server, "api", "enforced", door), (ALLOWED, HITS - ALLOWED), "{door}");
            assert_eq!(counted(&server, "api", "candidate", door), (would_allow, HITS - would_allow), "{door}");
        }
        assert_eq!(counted(&server, "api", "enforced", "library"), (0, 0));
    }
    assert_eq!(plain.iter().filter(|line| line.ends_with("200") || line.contains("allowed")).count(), 15, "{plain:?}");
}

/// `tidegate_limits_…` told of the HTTP door alone, and the gRPC door nowhere how much it takes.
#[test]
fn m6_metrics_tell_what_clients_have_of_every_door() {
    let Asked { server, .. } = start("");
    let address = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    let told = |kind: &str, what: &str| -> u64 {
        let page = http::get(address, "/metrics", "").unwrap();
        let sample = format!("tidegate_limits_{kind}{{what=\"{what}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&sample)?.parse().ok());
        value.unwrap_or_else(|| panic!("{sample}: {page}"))
    };
    for what in [
        "connections",
        "http2_requests",
        "feeds_and_sessions",
        "idle_sessions",
        "subscriptions",
        "reservations",
        "unread_bytes",
        "grpc_connections",
        "grpc_waiting_calls",
        "grpc_waiting_health_calls",
        "resp_connections",
        "resp_buffers",
    ] {
        assert!(told("max", what) > 0, "{what}");
        let taken = told("taken", what);
        // The one that asks, and perhaps the one before.
        assert!(taken == 0 || what == "connections", "{taken} {what}");
        assert_eq!(told("refused_total", what), 0, "{what}");
    }
    let _open = [server.resp(), server.grpc()].map(|door| TcpStream::connect(door).unwrap());
    for what in ["resp_connections", "grpc_connections"] {
        eventually(what, || told("taken", what) == 1);
    }
}

/// What the doors say to the hits, in order.
fn answers(server: &Asked) -> Vec<String> {
    let of_door = |(door, ask): (&'static str, Ask)| (0..HITS).map(move |_| format!("{door}: {}", ask(server, door)));
    DOORS.into_iter().flat_map(of_door).collect()
}

fn start(candidate: &str) -> Asked {
    let (folder, proxy) = (Folder::new(), SocketAddr::from(([127, 0, 0, 1], free_port())));
    let text = format!(
        "[doors]\nhttp = \"127.0.0.1:0\"\nudp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\n\
         [[limiter]]\nname = \"api\"\ndomain = \"d\"\nby = [\"user\"]\nalgorithm = \"fixed-window\"\naligned = true\n\
         limits = [\"{ALLOWED} per day\"]\n{candidate}\n\
         [[udp.route]]\nmatch = '^udp$'\nlimiter = \"api\"\n\
         [proxy]\nlisten = \"{proxy}\"\nupstream = \"http://{}\"\nlimit = \"{ALLOWED} per day\"\nwhen_limited = \"reject\"\n",
        upstream()
    );
    Asked { server: Server::start(&folder, Some(&folder.write("tidegate.toml", &text))), proxy }
}

/// How many hits were allowed and denied, by the metrics.
fn counted(Asked { server, .. }: &Asked, limiter: &str, role: &str, door: &str) -> (u64, u64) {
    let page = http::get(server.url.strip_prefix("http://").unwrap().parse().unwrap(), "/metrics", "").unwrap();
    let value = |verdict: &str| {
        let labels = format!("limiter=\"{limiter}\",role=\"{role}\",verdict=\"{verdict}\",door=\"{door}\"");
        let sample = format!("tidegate_decisions_total{{{labels}}} ");
        page.lines()
            .find_map(|line| line.strip_prefix(&sample)?.parse().ok())
            .unwrap_or_else(|| panic!("{sample}: {page}"))
    };
    (value("allowed"), value("denied"))
}

fn by_http(Asked { server, .. }: &Asked, key: &str) -> String {
    let answer = server.json(&["hit", "api", key]).1;
    let verdict = if answer["allowed"] == true { "allowed" } else { "denied" };
    format!("{verdict} {} of {}, {}", answer["remaining"], answer["limit"], answer["reason"])
}

fn by_udp(Asked { server, .. }: &Asked, key: &str) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.send_to(format!("1 over_limit {key}").as_bytes(), server.udp()).unwrap();
    let mut reply = [0; 200];
    let length = socket.recv(&mut reply).unwrap();
    let reply = String::from_utf8_lossy(&reply[..length]).into_owned();
    if reply.starts_with("1 ok N") { format!("allowed {reply}") } else { format!("denied {reply}") }
}

fn by_resp(Asked { server, .. }: &Asked, key: &str) -> String {
    let mut wire = TcpStream::connect(server.resp()).unwrap();
    wire.write_all(format!("*3\r\n$6\r\nTG.HIT\r\n$3\r\napi\r\n${}\r\n{key}\r\n", key.len()).as_bytes()).unwrap();
    let (mut reply, mut bytes) = (String::new(), [0; 200]);
    while reply.matches("\r\n").count() < 6 {
        let length = wire.read(&mut bytes).unwrap();
        assert!(length > 0, "{reply}");
        reply += std::str::from_utf8(&bytes[..length]).unwrap();
    }
    let words: Vec<&str> = reply.lines().collect();
    let verdict = if words[1] == ":1" { "allowed" } else { "denied" };
    format!("{verdict} {} of {}", words[3], words[2])
}

/// The service's message is written by hand, and curl brings it over HTTP/2.
fn by_grpc(Asked { server, .. }: &Asked, key: &str) -> String {
    let field = |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).unwrap()], content].concat();
    let entry = [field(0x0a, b"user"), field(0x12, key.as_bytes())].concat();
    let message = [field(0x0a, b"d"), field(0x12, &field(0x0a, &entry))].concat();
    let frame = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message.as_slice()].concat();
    let url = format!("http://{}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", server.grpc());
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--http2-prior-knowledge", "--data-binary", "@-", "--header", "te: trailers"]);
    curl.args(["--header", "content-type: application/grpc", &url]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = curl.spawn().expect("curl");
    child.stdin.take().unwrap().write_all(&frame).unwrap();
    let reply = child.wait_with_output().unwrap().stdout;
    match reply.get(5..7) {
        Some([0x08, 1]) => "allowed".to_owned(),
        Some([0x08, 2]) => "denied".to_owned(),
        _ => panic!("{reply:?}"),
    }
}

fn by_proxy(asked: &Asked, key: &str) -> String {
    let mut answer = String::new();
    eventually("the proxy listens", || {
        http::get(asked.proxy, &format!("/{key}"), "connection: close\r\n").map(|text| answer = text).is_ok()
    });
    answer[..12].to_owned()
}

fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match stream.read(&mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => break,
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    address
}
