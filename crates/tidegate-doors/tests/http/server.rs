//! A door under test, and `check`.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper::{Request, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tidegate::{
    Algorithm, Clock, Condition, Gate, Grid, LimiterSpec, Match, Micros, Outcome, Policy, Rules, Settings, Value,
};
use tidegate_doors::http::{HttpSettings, Limits, serve};
use tidegate_events::{Now, Opening, StreamSpec};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A door on port 0 with the policy of [`policy`] and a clock that stands at 1,000 s.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) gate: Gate,
    pub(crate) runtime: Runtime,
    /// With the settings of [`Server::start`], and nobody has asked it yet.
    is_new: AtomicBool,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

/// By default but for these limits.
pub(crate) fn limited(limits: Limits) -> HttpSettings {
    HttpSettings { limits, ..HttpSettings::default() }
}

pub(crate) fn limiter(name: &str, algorithm: Algorithm, limits: &[&str]) -> LimiterSpec {
    let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let rules = match algorithm {
        Algorithm::Buckets => {
            let grid = Grid::new(Micros::from_secs(10), Micros::from_secs(60)).unwrap();
            Rules::buckets(grid, &limits)
        }
        _ => Rules::new(algorithm, &limits),
    };
    LimiterSpec::new(name, rules.unwrap())
}

/// A limiter with other limits for certain values: `ATTRIBUTE=VALUE` and limits, `unlimited` or `deny`.
fn matching(spec: LimiterSpec, matches: &[(&str, &str)]) -> LimiterSpec {
    let one = |(condition, outcome): &(&str, &str)| {
        let (name, value) = condition.split_once('=').unwrap();
        let condition = Condition { attribute: name.to_owned(), values: vec![Value::of(name, value).unwrap()] };
        let outcome = match *outcome {
            "unlimited" => Outcome::Unlimited,
            "deny" => Outcome::Deny,
            limit => Outcome::Limits(spec.rules.with_limits(&[limit.parse().unwrap()]).unwrap()),
        };
        Match { conditions: vec![condition], together: Vec::new(), outcome, metadata: None }
    };
    LimiterSpec { matches: matches.iter().map(one).collect(), ..spec }
}

fn policy() -> Policy {
    let mut hashed = limiter("hashed", Algorithm::TokenBucket, &["5 per minute"]);
    hashed.names = false;
    let mut notify = limiter("notify", Algorithm::Buckets, &["5 per 20s block 40s", "7 per 40s block 40s"]);
    notify.last_decisions = 100;
    Policy::new(vec![
        limiter("api", Algorithm::SlidingLog, &["3 per minute"]),
        limiter("two", Algorithm::SlidingLog, &["2 per minute", "3 per hour"]),
        limiter("burst", Algorithm::TokenBucket, &["20 per minute burst 40"]),
        limiter("strict", Algorithm::FixedWindow, &["1 per minute block 10m"]),
        limiter("never", Algorithm::AlignedWindow, &["0 per day"]),
        notify,
        limiter("ten", Algorithm::SlidingLog, &["10 per hour"]),
        hashed,
        limiter("login-user", Algorithm::SlidingLog, &["2 per minute"]).by(Some("login"), &["user"]),
        limiter("login-ip", Algorithm::SlidingLog, &["3 per minute"]).by(Some("login"), &["ip"]),
        LimiterSpec {
            request_limits: true,
            metadata: Some(r#"{"team":"a","of":[1,true,null]}"#.to_owned()),
            ..limiter("brought", Algorithm::FixedWindow, &["5 per minute"]).by(Some("brought"), &["user"])
        },
        limiter("anywhere", Algorithm::SlidingLog, &["4 per minute"]).by(None, &["ip"]),
        matching(
            limiter("tiers", Algorithm::SlidingLog, &["2 per minute"]),
            &[("key=gold*", "20 per minute"), ("key=free", "unlimited"), ("key=bad", "deny")],
        ),
        limiter("tiers-user", Algorithm::SlidingLog, &["2 per minute"]).by(Some("tiers"), &["user"]),
        matching(
            limiter("tiers-ip", Algorithm::SlidingLog, &["9 per minute"]).by(Some("tiers"), &["ip"]),
            &[("ip=10.0.0.0/8", "deny")],
        ),
    ])
    .unwrap()
}

impl Server {
    pub(crate) fn start() -> Server {
        let server = Server::with(HttpSettings::default());
        server.is_new.store(true, Relaxed);
        server
    }

    pub(crate) fn with(settings: HttpSettings) -> Server {
        Server::with_memory(settings, Settings::default().max_memory)
    }

    pub(crate) fn with_memory(settings: HttpSettings, max_memory: usize) -> Server {
        let clock = Clock::manual(Micros::from_secs(1_000));
        let gate = Gate::open(policy(), &Settings { max_memory, path: None }, clock).unwrap();
        Server::on(gate, settings)
    }

    /// A door with these streams, on the gate's clock.
    pub(crate) fn with_streams(specs: Vec<StreamSpec>) -> Server {
        Server::with_streams_and(specs, HttpSettings::default())
    }

    pub(crate) fn with_streams_and(specs: Vec<StreamSpec>, settings: HttpSettings) -> Server {
        let clock = Clock::manual(Micros::from_secs(1_000));
        let gate = Gate::open(policy(), &Settings::default(), clock).unwrap();
        let time = gate.clone();
        let now: Now = Arc::new(move || time.now());
        let streams = Opening::read(specs, None).unwrap().start(&now).unwrap();
        Server::on(gate, HttpSettings { streams: Arc::new(streams), ..settings })
    }

    pub(crate) fn on(gate: Gate, settings: HttpSettings) -> Server {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            let _ = stopped.await;
        };
        let serving = runtime.spawn(serve(listener, gate.clone(), settings, shutdown));
        Server { address, gate, runtime, is_new: AtomicBool::new(false), stop: Some(stop), serving: Some(serving) }
    }

    pub(crate) fn connect(&self) -> Client {
        self.is_new.store(false, Relaxed);
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { stream, buffer: Vec::new(), bodiless: false }
    }

    /// The same, from another address of this machine.
    pub(crate) fn connect_from(&self, address: &str) -> Client {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let local: SocketAddr = format!("{address}:0").parse().unwrap();
        socket.bind(&local.into()).unwrap();
        socket.connect(&self.address.into()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { stream: socket.into(), buffer: Vec::new(), bodiless: false }
    }

    /// One request on a connection of its own: `METHOD PATH [BODY]`.
    pub(crate) fn ask(&self, request: &str) -> Response {
        self.ask_with(request, "")
    }

    /// The same, with header lines (`name: value\r\n` each).
    pub(crate) fn ask_with(&self, request: &str, headers: &str) -> Response {
        let mut client = self.connect();
        client.send(request, headers);
        let response = client.response().expect("an answer");
        documented(request, &response);
        response
    }

    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().expect("stopped once").send(());
    }

    /// Waits until `serve` has returned.
    pub(crate) fn ended(&mut self) {
        let serving = self.serving.take().expect("waited for once");
        self.runtime.block_on(serving).unwrap().unwrap();
    }
}

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) buffer: Vec<u8>,
    /// The responses to HEAD have no body, whatever their length says.
    bodiless: bool,
}

impl Client {
    pub(crate) fn send(&mut self, request: &str, headers: &str) {
        self.send_to("localhost", request, headers);
    }

    /// The same, under this name.
    pub(crate) fn send_to(&mut self, host: &str, request: &str, headers: &str) {
        let (line, body) = split_request(request);
        self.bodiless = line.starts_with("HEAD ");
        let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        let text = format!("{line} HTTP/1.1\r\nhost: {host}\r\n{length}{headers}\r\n{body}");
        // A server that refuses early may close before all is written.
        let _ = self.stream.write_all(text.as_bytes());
    }

    /// The next response, or `None` when the server closed.
    pub(crate) fn response(&mut self) -> Option<Response> {
        loop {
            if let Some((response, used)) = parse(&self.buffer, self.bodiless) {
                self.buffer.drain(..used);
                return Some(response);
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer and no end: {error}"),
            }
        }
    }
}

/// `METHOD PATH` and the body, which starts at the second space.
fn split_request(request: &str) -> (&str, &str) {
    let path = request.find(' ').expect("a method and a path") + 1;
    match request[path..].find(' ') {
        Some(end) => (&request[..path + end], &request[path + end + 1..]),
        None => (request, ""),
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Status line and header fields, names in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

pub(crate) fn parse(bytes: &[u8], bodiless: bool) -> Option<(Response, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).filter(|_| !bodiless);
    let length = length.map_or(0, |length| length.parse().unwrap());
    let body = bytes.get(end..end + length)?;
    let status = head[9..12].parse().unwrap();
    Some((Response { status, head, body: String::from_utf8(body.to_vec()).unwrap() }, end + length))
}

/// The same over HTTP/2, on a connection of its own; `None`: no client of HTTP/2 can ask that.
fn ask_over_http2(server: &Server, request: &str) -> Option<Response> {
    let (line, body) = split_request(request);
    let (method, path) = line.split_once(' ').unwrap();
    let uri: Uri = format!("http://localhost{path}").parse().ok()?;
    let request = Request::builder().method(method).uri(uri).body(Full::new(Bytes::from(body.to_owned()))).ok()?;
    server.runtime.block_on(async {
        let io = TokioIo::new(tokio::net::TcpStream::connect(server.address).await.unwrap());
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let mut head = format!("{:?} {}\r\n", parts.version, parts.status);
        parts.headers.iter().for_each(|(name, value)| head += &format!("{name}: {}\r\n", value.to_str().unwrap()));
        Some(Response { status: parts.status.as_u16(), head, body: String::from_utf8(body.to_vec()).unwrap() })
    })
}

/// Plays the same script to a new server over HTTP/2, whose answers are the same.
#[track_caller]
fn check_over_http2(script: &str) {
    let server = Server::with(HttpSettings::default());
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(seconds) = line.strip_prefix("at ") {
            server.gate.clock().set(Micros::from_secs(seconds.parse().unwrap()));
            continue;
        }
        let (request, expected) = line.rsplit_once(" -> ").expect("request -> expected");
        // HTTP/2 has no field of that name.
        let expected: Vec<&str> = expected.split(" & ").filter(|part| !part.starts_with("connection: ")).collect();
        let Some(response) = ask_over_http2(&server, request) else { continue };
        check_response(&format!("over HTTP/2: {line}"), &response, &expected.join(" & "));
    }
}

/// Lines of two kinds. `at SECONDS` sets the clock. `METHOD PATH [BODY] -> STATUS [PART & PART…]`
/// asks, and looks for each part in the response's head or body; `!PART` must not be there. If the server is new, another one is
/// asked the same over HTTP/2.
#[track_caller]
pub(crate) fn check(server: &Server, script: &str) {
    if server.is_new.swap(false, Relaxed) {
        check_over_http2(script);
    }
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(seconds) = line.strip_prefix("at ") {
            server.gate.clock().set(Micros::from_secs(seconds.parse().unwrap()));
            continue;
        }
        let (request, expected) = line.rsplit_once(" -> ").expect("request -> expected");
        check_response(line, &server.ask(request), expected);
    }
}

#[track_caller]
pub(crate) fn check_response(case: &str, response: &Response, expected: &str) {
    let (status, parts) = expected.split_once(' ').unwrap_or((expected, ""));
    assert_eq!(response.status.to_string(), status, "{case}\n   but got {} {}", response.head, response.body);
    for part in parts.split(" & ").filter(|part| !part.is_empty()) {
        let (part, wanted) = part.strip_prefix('!').map_or((part, true), |part| (part, false));
        let found = response.head.contains(part) || response.body.contains(part);
        assert_eq!(found, wanted, "{case}\n   part {part} in {}{}", response.head, response.body);
    }
}

/// Read once: a table of accesses asks thousands of times.
static OPENAPI: LazyLock<serde_json::Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../src/http/openapi.json")).unwrap());

/// Every answer of a known route has a status that the OpenAPI text lists for it. Only the refusal
/// of a connection is not any route's.
fn documented(request: &str, response: &Response) {
    if response.body.contains("too_many_connections") {
        return;
    }
    let (line, _) = split_request(request);
    let (method, target) = line.split_once(' ').unwrap();
    let path = target.split('?').next().unwrap();
    let pieces: Vec<&str> = path.split('/').collect();
    let item = OPENAPI["paths"].as_object().unwrap().iter().find(|(template, _)| {
        let template: Vec<&str> = template.split('/').collect();
        template.len() == pieces.len() && template.iter().zip(&pieces).all(|(t, p)| t.starts_with('{') || t == p)
    });
    let operation = item.map(|(_, item)| &item[method.to_lowercase()]).filter(|operation| operation.is_object());
    if let Some(operation) = operation {
        let statuses = operation["responses"].as_object().unwrap();
        assert!(statuses.contains_key(&response.status.to_string()), "{line}: {} is not documented", response.status);
    }
}
