//! A real Envoy asks the gRPC door before it forwards: limits per descriptor, all or nothing, the headers that it makes, costs that are known at the end, and what
//! it does while Tidegate is away.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tidegate_testkit::{eventually, number, servers};

const POLICY: &str = r#"
[doors]
http = "127.0.0.1:0"
grpc = "127.0.0.1:GRPC"

[[limiter]]
name = "user"
domain = "shop"
by = ["user"]
algorithm = "fixed-window"
limits = ["4 per 40s"]

[[limiter]]
name = "path"
domain = "shop"
by = ["path"]
algorithm = "fixed-window"
limits = ["3 per hour"]

[[limiter]]
name = "weighed"
domain = "shop"
by = ["limiter", "weighed"]
algorithm = "fixed-window"
limits = ["6 per hour"]

[[limiter]]
name = "bytes"
domain = "shop"
by = ["bytes"]
algorithm = "fixed-window"
overdraw = true
limits = ["18 per hour"]
"#;

/// Descriptors of requests that have these headers; a descriptor whose header is not there is left out by Envoy.
const LIMITS: &str = r"
              - actions: [ { request_headers: { header_name: x-user, descriptor_key: user, skip_if_absent: true } } ]
              - actions: [ { request_headers: { header_name: x-path, descriptor_key: path, skip_if_absent: true } } ]
              - actions: [ { request_headers: { header_name: x-long, descriptor_key: user, skip_if_absent: true } } ]
              - actions: [ { request_headers: { header_name: x-long, descriptor_key: path, skip_if_absent: true } } ]
              - actions:
                - generic_key: { descriptor_key: limiter, descriptor_value: a }
                - request_headers: { header_name: x-weighed, descriptor_key: weighed, skip_if_absent: true }
                hits_addend: { number: 2 }
              - actions: [ { request_headers: { header_name: x-bytes, descriptor_key: bytes, skip_if_absent: true } } ]
                hits_addend: { number: 0 }
              - actions: [ { request_headers: { header_name: x-bytes, descriptor_key: bytes, skip_if_absent: true } } ]
                apply_on_stream_done: true
                hits_addend: { format: '%BYTES_SENT%' }
              - actions: [ { request_headers: { header_name: x-back, descriptor_key: user, skip_if_absent: true } } ]
                apply_on_stream_done: true
                hits_addend: { number: 1, is_negative_hits: true }";

fn envoy_config(port: u16, upstream: u16, tidegate: u16, deny: bool) -> String {
    let cluster = |name: &str, port: u16, more: &str| {
        format!(
            "  - name: {name}\n    type: STATIC\n    connect_timeout: 1s\n{more}    load_assignment: {{ cluster_name: {name}, endpoints: [ {{ \
             lb_endpoints: [ {{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }} }} ] }} ] }}\n"
        )
    };
    let h2 = "    typed_extension_protocol_options:\n      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n        \
              \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n        \
              explicit_http_config: { http2_protocol_options: {} }\n";
    format!(
        r#"static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [ {{ match: {{ prefix: "/" }}, route: {{ cluster: upstream }} }} ]
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: shop
              timeout: 2s
              failure_mode_deny: {deny}
              enable_x_ratelimit_headers: DRAFT_VERSION_03
              enable_retry_after_header: true
              rate_limits: {LIMITS}
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {{ envoy_grpc: {{ cluster_name: rls }} }}
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
  clusters:
{}{}"#,
        cluster("upstream", upstream, ""),
        cluster("rls", tidegate, h2)
    )
}

/// Five bytes for everybody.
fn upstream() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let (mut stream, mut came, mut chunk) = (stream.unwrap(), Vec::new(), [0; 4096]);
                while let Ok(read @ 1..) = stream.read(&mut chunk) {
                    came.extend_from_slice(&chunk[..read]);
                    if came.ends_with(b"\r\n\r\n") {
                        came.clear();
                        let _ = stream.write_all(
                            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello",
                        );
                    }
                }
            });
        }
    });
    port
}

struct World {
    _folder: Folder,
    config: std::path::PathBuf,
    tidegate: Option<Server>,
    envoy: servers::Server,
}

impl World {
    fn start(deny: bool) -> World {
        World::of(
            |port| POLICY.replace("GRPC", &port.to_string()),
            |own, upstream, port| envoy_config(own, upstream, port, deny),
        )
    }

    /// `examples/envoy/`, on other ports. Envoy waits longer there, too: a machine that is busy would let requests pass.
    fn example() -> World {
        let read = |name: &str| {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/envoy/").to_owned() + name;
            std::fs::read_to_string(path).unwrap()
        };
        let replaced = |mut text: String, parts: &[(&str, String)]| {
            for (old, new) in parts {
                assert!(text.contains(old), "{old} in {text}");
                text = text.replace(old, new);
            }
            text
        };
        World::of(
            |port| {
                let ports =
                    [("127.0.0.1:7400", "127.0.0.1:0".to_owned()), ("127.0.0.1:7402", format!("127.0.0.1:{port}"))];
                replaced(read("tidegate.toml"), &ports)
            },
            |own, upstream, port| {
                let ports = [("port_value: 10000", own), ("port_value: 9000", upstream), ("port_value: 7402", port)];
                let mut parts: Vec<_> = ports.map(|(old, new)| (old, format!("port_value: {new}"))).to_vec();
                parts.push(("timeout: 0.02s", "timeout: 2s".to_owned()));
                replaced(read("envoy.yaml"), &parts)
            },
        )
    }

    /// Tidegate on a port, and an Envoy on its own, in front of an upstream.
    fn of(policy: impl Fn(u16) -> String, envoy: impl Fn(u16, u16, u16) -> String) -> World {
        let folder = Folder::new();
        let port = servers::free_port();
        let config = folder.write("tidegate.toml", &policy(port));
        let tidegate = Some(Server::start(&folder, Some(&config)));
        let upstream = upstream();
        let envoy = servers::Server::envoy(|own| envoy(own, upstream, port));
        let world = World { _folder: folder, config, tidegate, envoy };
        // Envoy reaches a cluster when it is asked for the first time.
        eventually("Envoy forwards", || world.try_get("").is_some_and(|response| response.status == 200));
        world
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.envoy.port))
    }

    fn get(&self, fields: &str) -> Response {
        self.try_get(fields).expect("Envoy answers")
    }

    fn try_get(&self, fields: &str) -> Option<Response> {
        let fields: String = fields.split_whitespace().map(|field| field.replacen('=', ": ", 1) + "\r\n").collect();
        Response::parse(&tidegate_testkit::http::get(self.address(), "/", &fields).ok()?)
    }

    /// The calls so far, when no more come: Envoy calls for a request without a descriptor, too, and beside the answer.
    fn settled_calls(&self) -> u64 {
        let mut calls = self.calls();
        loop {
            std::thread::sleep(Duration::from_millis(200));
            match self.calls() {
                now if now == calls => return calls,
                now => calls = now,
            }
        }
    }

    /// Calls of Envoy that were answered.
    fn calls(&self) -> u64 {
        self.count("tidegate_grpc_calls_total{")
    }

    /// The sum of what `/metrics` tells under this name.
    fn count(&self, name: &str) -> u64 {
        let address = self.tidegate.as_ref().unwrap().url.strip_prefix("http://").unwrap().parse().unwrap();
        let page = tidegate_testkit::http::get(address, "/metrics", "").unwrap();
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    fn statuses(&self, fields: &str, times: usize) -> Vec<u16> {
        (0..times).map(|_| self.get(fields).status).collect()
    }
}

#[derive(Debug)]
struct Response {
    status: u16,
    fields: BTreeMap<String, String>,
    body: String,
}

impl Response {
    fn parse(text: &str) -> Option<Response> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let fields =
            lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_owned(), value.to_owned()));
        Some(Response { status, fields: fields.collect(), body: body.to_owned() })
    }

    fn number(&self, name: &str) -> u64 {
        let field = self.fields.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        field.split([',', ';']).next().unwrap().trim().parse().unwrap_or_else(|_| panic!("{name}: {field}"))
    }
}

#[test]
fn limits_hold_per_descriptor_and_two_are_charged_together_or_not_at_all() {
    let world = World::start(true);
    assert_eq!(world.statuses("x-user=ann", 5), [200, 200, 200, 200, 429]);
    assert_eq!(world.statuses("x-user=bob", 1), [200], "another user");
    assert_eq!(world.statuses("x-user=ann x-path=/a", 3), [429, 429, 429], "ann is over her limit");
    assert_eq!(world.statuses("x-path=/a", 4), [200, 200, 200, 429], "so that the path was not charged");
    assert_eq!(world.statuses("x-weighed=w", 4), [200, 200, 200, 429], "two at a time");
    assert_eq!(world.statuses("", 20), [200; 20], "no descriptor, no limit");
    // 1 of 4, 0 of 4 and the like; each request without a descriptor is one that nobody limits.
    let near = world.count("tidegate_near_limit_total{limiter=\"user\"}");
    assert_eq!(near, 1, "ann's fourth left nothing; her third left a fourth of the limit");
    assert!(world.count("tidegate_grpc_unmatched_descriptors_total") >= 20);
}

/// One field of 40 KB in two descriptors made a message that the door did not read; it answered an error, which was a yes.
#[test]
fn no_field_is_so_long_that_it_passes_every_limit() {
    let world = World::start(false);
    for length in [513, 5_000, 32_000, 33_000, 40_000] {
        let answer = world.get(&format!("x-long={}", "a".repeat(length)));
        assert_eq!(answer.status, 429, "{length} bytes: {answer:?}");
    }
    assert_eq!(world.statuses("x-long=short", 5), [200, 200, 200, 429, 429], "three for the path");
}

/// What its comments say.
#[test]
fn the_example_limits_as_it_says() {
    let world = World::example();
    assert_eq!(world.statuses("x-user=ann", 6), [200, 200, 200, 200, 200, 429]);
    assert_eq!(world.statuses("x-user=bob", 1), [200]);
    assert_eq!(world.statuses("x-plan=free", 21)[19..], [200, 429]);
    assert_eq!(world.statuses("x-budget=ann", 1), [200]);
    let server = world.tidegate.as_ref().unwrap();
    eventually("its five bytes are charged", || server.json(&["peek", "bytes", "ann"]).1["remaining"] == 995);
}

#[test]
fn what_envoy_tells_clients_is_right_to_the_second() {
    let world = World::start(true);
    let allowed = world.get("x-user=ann");
    assert_eq!((allowed.number("x-ratelimit-limit"), allowed.number("x-ratelimit-remaining")), (4, 3), "{allowed:?}");
    assert!((39..=40).contains(&allowed.number("x-ratelimit-reset")), "{allowed:?}");
    assert_eq!(allowed.fields["content-type"], "text/plain", "what upstream says stays");
    let limit = &allowed.fields["x-ratelimit-limit"];
    assert!(limit.contains("w=40"), "the window is told as it is: {limit}");
    assert_eq!(world.statuses("x-user=ann", 3), [200; 3]);
    let denied = world.get("x-user=ann");
    assert_eq!((denied.status, denied.fields["content-type"].as_str()), (429, "application/problem+json"));
    let body: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
    let wait_ms = body["retry_after_ms"].as_u64().unwrap();
    assert_eq!(denied.number("retry-after"), wait_ms.div_ceil(1_000), "{denied:?}");
    assert_eq!(denied.number("x-ratelimit-reset"), wait_ms.div_ceil(1_000), "{denied:?}");
    assert_eq!((denied.number("x-ratelimit-remaining"), &body["limiter"]), (0, &serde_json::json!("user")));
}

/// A look before the request, and the bytes that were sent after it: five each time, of which the last find only three.
#[test]
fn costs_that_are_known_at_the_end_count() {
    let world = World::start(true);
    for request in 1..=4 {
        assert_eq!(world.get("x-bytes=ann").status, 200, "request {request}");
        // The charge comes when the stream is done, beside the answer.
        let left = 18_u32.saturating_sub(5 * request);
        let server = world.tidegate.as_ref().unwrap();
        eventually("it is charged", || server.json(&["peek", "bytes", "ann"]).1["remaining"] == left);
    }
    assert_eq!(world.get("x-bytes=ann").status, 429);
}

/// Six requests of a user who has four: each is given back when it is done, and never more than was charged. Envoy gives back beside the answer,
/// so that what comes next waits until the call was counted: the last one once came among the five hits, and the fifth passed.
#[test]
fn what_is_given_back_at_the_end_can_be_used_again() {
    let world = World::start(true);
    let before = world.settled_calls();
    for request in 1..=6 {
        assert_eq!(world.get("x-user=eve x-back=eve").status, 200, "request {request}");
        eventually("it is charged and given back", || world.calls() == before + 2 * request);
    }
    // A call for the request, which has no descriptor but that one, and one at its end.
    assert_eq!(world.get("x-back=eve").status, 200);
    eventually("nothing is given back", || world.calls() == before + 14);
    assert_eq!(world.statuses("x-user=eve", 5), [200, 200, 200, 200, 429], "no more than the limit");
}

#[test]
fn while_tidegate_is_away_envoy_does_what_it_is_told() {
    for (deny, away) in [(false, 200), (true, 500)] {
        let mut world = World::start(deny);
        assert_eq!(world.statuses("x-user=ann", 5), [200, 200, 200, 200, 429]);
        world.tidegate.take().unwrap().kill();
        eventually("Envoy notices", || world.get("x-user=ann").status == away);
        assert_eq!(world.statuses("x-user=ann", 10), [away; 10], "failure_mode_deny: {deny}");
        world.tidegate = Some(Server::start(&Folder::new(), Some(&world.config)));
        eventually("limits hold again", || world.get("x-user=ann").status == 429);
    }
}

/// Restarts under load. With `failure_mode_deny: false` nobody sees an error: those who are over their limit are denied by every instance, the others pass
/// throughout.
#[test]
fn a_restart_under_load_is_no_error_to_clients() {
    let mut world = World::start(false);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4).map(|client| Client::start(client, world.address(), &stop)).collect();
    let sum = |count: fn(&Client) -> &AtomicUsize| clients.iter().map(|client| count(client).load(Relaxed)).sum();
    let (asked, denied) = (|| -> usize { sum(|client| &client.asked) }, || -> usize { sum(|client| &client.denied) });
    for restart in 0..number("TIDEGATE_RESTARTS", 20) {
        let (asked_before, denied_before) = (asked(), denied());
        eventually("clients go on", || asked() > asked_before + 50);
        eventually("this instance denies those who are over their limit", || denied() > denied_before);
        assert!(world.calls() > 0, "instance {restart} was called");
        world.tidegate.take().unwrap().stop();
        world.tidegate = Some(Server::start(&Folder::new(), Some(&world.config)));
    }
    stop.store(true, Relaxed);
    let all = asked();
    for client in clients {
        let others = client.thread.join().unwrap();
        assert!(others.is_empty(), "{} of {all} calls: {:?}", others.len(), others.first());
    }
}

/// Somebody who asks Envoy without pause.
struct Client {
    asked: Arc<AtomicUsize>,
    denied: Arc<AtomicUsize>,
    /// Ends with what was answered and should not have been.
    thread: std::thread::JoinHandle<Vec<(u16, String)>>,
}

impl Client {
    /// The first two are users, soon over their limit; the others ask for another path each time, which is limited and never over.
    fn start(client: usize, address: SocketAddr, stop: &Arc<AtomicBool>) -> Client {
        let (asked, denied) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (stop, counts) = (Arc::clone(stop), (Arc::clone(&asked), Arc::clone(&denied)));
        let thread = std::thread::spawn(move || {
            let connect = || {
                let wire = TcpStream::connect(address).unwrap();
                wire.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                wire
            };
            let (mut wire, mut others) = (connect(), Vec::new());
            for request in 0.. {
                if stop.load(Relaxed) {
                    break;
                }
                let field =
                    if client < 2 { format!("x-user: {client}") } else { format!("x-path: {client}-{request}") };
                let head = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{field}\r\n\r\n");
                let _ = wire.write_all(head.as_bytes());
                match tidegate_testkit::http::response(&mut wire) {
                    (200, _) => {}
                    (429, _) if client < 2 => _ = counts.1.fetch_add(1, Relaxed),
                    other => {
                        others.push(other);
                        wire = connect();
                    }
                }
                counts.0.fetch_add(1, Relaxed);
            }
            others
        });
        Client { asked, denied, thread }
    }
}
