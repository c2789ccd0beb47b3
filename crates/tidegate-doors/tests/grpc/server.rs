//! A door under test, a client for it, and `check`.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use tidegate::{
    Algorithm, Clock, Condition, Gate, LimiterSpec, Match, Micros, Outcome, Policy, Rules, Settings, Value,
};
use tidegate_doors::grpc::{GrpcSettings, serve};
use tidegate_wire::grpc::ratelimit::{
    DescriptorStatus, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse, ResponseCode,
    SHOULD_RATE_LIMIT, Unit,
};
use tidegate_wire::grpc::{Message, PREFIX_LEN, framed, read};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// A door on port 0 with the policy of [`policy`] and a clock that stands at 1,000 s.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) gate: Gate,
    pub(crate) clock: Clock,
    pub(crate) runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<std::io::Result<()>>>,
}

fn limiter(name: &str, algorithm: Algorithm, limit: &str, by: &[&str]) -> LimiterSpec {
    LimiterSpec::new(name, Rules::new(algorithm, &[limit.parse().unwrap()]).unwrap()).by(Some("d"), by)
}

pub(crate) fn policy() -> Policy {
    let mut two = limiter("two", Algorithm::SlidingLog, "2 per minute", &["two"]);
    two.rules =
        Rules::new(Algorithm::SlidingLog, &["2 per minute".parse().unwrap(), "3 per hour".parse().unwrap()]).unwrap();
    Policy::new(vec![
        limiter("user", Algorithm::FixedWindow, "5 per minute", &["user"]),
        limiter("path", Algorithm::FixedWindow, "3 per hour", &["path"]),
        limiter("user-path", Algorithm::FixedWindow, "2 per 30s", &["user", "path"]),
        limiter("inner", Algorithm::FixedWindow, "2 per minute", &["file", "file.2"]),
        limiter("bucket", Algorithm::TokenBucket, "3 per second burst 10", &["bucket"]),
        limiter("strict", Algorithm::FixedWindow, "1 per minute block 10m", &["strict"]),
        limiter("bytes", Algorithm::FixedWindow, "1000 per day", &["bytes"]),
        LimiterSpec { overdraw: true, ..limiter("spent", Algorithm::FixedWindow, "10 per hour", &["spent"]) },
        two,
        by_value(),
        LimiterSpec {
            request_limits: true,
            ..limiter("brought", Algorithm::FixedWindow, "5 per minute", &["brought"])
        },
        LimiterSpec { alternative: true, ..limiter("monthly", Algorithm::FixedWindow, "1 per hour", &["monthly"]) },
        LimiterSpec { alternative: true, ..limiter("bought", Algorithm::FixedWindow, "2 per hour", &["bought"]) },
        LimiterSpec {
            replaces: vec!["user".to_owned(), "tried".to_owned()],
            ..limiter("vip", Algorithm::FixedWindow, "9 per minute", &["vip"])
        },
        together(),
        LimiterSpec { candidate: true, ..limiter("tried", Algorithm::FixedWindow, "1 per minute", &["path"]) },
    ])
    .unwrap()
}

/// A limiter of which values under one path count together.
fn together() -> LimiterSpec {
    let values = vec![Value::of("file", "/a/*").unwrap(), Value::of("file", "/b/*").unwrap()];
    let conditions = vec![Condition { attribute: "file".to_owned(), values }];
    let own = limiter("file", Algorithm::FixedWindow, "2 per minute", &["file"]);
    let outcome = Outcome::Limits(own.rules.with_limits(&["3 per minute".parse().unwrap()]).unwrap());
    LimiterSpec {
        matches: vec![Match { conditions, together: vec!["file".to_owned()], outcome, metadata: None }],
        ..own
    }
}

/// A limiter with limits by value, and with candidate limits.
fn by_value() -> LimiterSpec {
    let rules = |limit: &str| Rules::new(Algorithm::FixedWindow, &[limit.parse().unwrap()]).unwrap();
    let of = |value: &str, outcome| Match {
        conditions: vec![Condition { attribute: "plan".to_owned(), values: vec![Value::of("plan", value).unwrap()] }],
        together: Vec::new(),
        outcome,
        metadata: None,
    };
    let words = |text: &str| Some(text.to_owned());
    LimiterSpec {
        metadata: words(r#"{"plan":"any","owner":{"team":"plans","room":2}}"#),
        matches: vec![
            Match {
                metadata: words(r#"{"plan":"gold","owner":{"desk":null}}"#),
                ..of("gold*", Outcome::Limits(rules("9 per minute")))
            },
            of("free", Outcome::Unlimited),
            of("bad", Outcome::Deny),
            of("p*", Outcome::Limits(rules("1 per minute"))),
        ],
        candidate_rules: Some(rules("1 per minute")),
        ..limiter("plan", Algorithm::FixedWindow, "2 per minute", &["plan"])
    }
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::with(GrpcSettings::default())
    }

    pub(crate) fn with(settings: GrpcSettings) -> Server {
        let clock = Clock::manual(Micros::from_secs(1_000));
        let gate = Gate::open(policy(), &Settings::default(), clock.clone()).unwrap();
        Server::on(Runtime::new().unwrap(), gate, clock, settings)
    }

    pub(crate) fn on(runtime: Runtime, gate: Gate, clock: Clock, settings: GrpcSettings) -> Server {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            let _ = stopped.await;
        };
        let serving = runtime.spawn(serve(listener, gate.clone(), settings, shutdown));
        Server { address, gate, clock, runtime, stop: Some(stop), serving: Some(serving) }
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

/// A body whose pieces come when they are sent.
pub(crate) struct Later(mpsc::Receiver<Bytes>);

pub(crate) fn later() -> (mpsc::Sender<Bytes>, Later) {
    let (sent, body) = mpsc::channel(1);
    (sent, Later(body))
}

impl Body for Later {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

pub(crate) type Sender = SendRequest<Full<Bytes>>;

pub(crate) async fn connect(address: SocketAddr) -> Sender {
    let stream = TcpStream::connect(address).await.unwrap();
    // A call's head and its message are two writes: the second would wait for the first to be acknowledged, 40 ms.
    stream.set_nodelay(true).unwrap();
    connect_over(stream).await.unwrap()
}

pub(crate) async fn connect_over(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Sender, hyper::Error> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(io)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// A call of a method, with these bytes as its body.
pub(crate) fn call(method: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let request = Request::post(format!("http://some-cluster{method}")).header("content-type", "application/grpc");
    request.header("te", "trailers").body(Full::new(body.into())).unwrap()
}

/// How a call ended: its `grpc-status`, its `grpc-message`, and the bytes of its body.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: u32,
    pub(crate) message: String,
    pub(crate) body: Bytes,
}

impl Ended {
    pub(crate) fn said<M: Message + Default>(&self) -> M {
        assert_eq!(self.status, 0, "{}", self.message);
        read(&self.body[PREFIX_LEN..]).unwrap()
    }
}

pub(crate) async fn ended(response: Response<Incoming>) -> Ended {
    assert_eq!(response.status(), 200);
    let (head, body) = response.into_parts();
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().unwrap_or(&head.headers).clone();
    let field = |name: &str| trailers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let status = field("grpc-status").expect("an end").parse().unwrap();
    Ended { status, message: field("grpc-message").unwrap_or_default(), body: collected.to_bytes() }
}

pub(crate) async fn ask<M: Message>(sender: &mut Sender, method: &str, message: &M) -> Ended {
    ended(sender.send_request(call(method, framed(message))).await.unwrap()).await
}

/// `user=a path=/x cost=2 back limit=3/60`: a descriptor, and a limit that it brings, of so many seconds. A value may be empty.
fn descriptor(text: &str) -> RateLimitDescriptor {
    let mut descriptor = RateLimitDescriptor::default();
    for word in text.split_whitespace() {
        match word.split_once('=') {
            Some(("cost", cost)) => descriptor.hits_addend = Some(cost.parse().unwrap()),
            Some(("limit", limit)) => {
                let (count, seconds) = limit.split_once('/').unwrap();
                descriptor.limit = Some(RateLimitOverride {
                    requests_per_unit: count.parse().unwrap(),
                    unit: Unit::Second.into(),
                    unit_multiplier: Some(seconds.parse().unwrap()),
                });
            }
            Some((key, value)) => {
                let value = Bytes::copy_from_slice(value.as_bytes());
                descriptor.entries.push(Entry { key: key.to_owned(), value });
            }
            None if word == "back" => descriptor.is_negative_hits = true,
            None => panic!("{word}"),
        }
    }
    descriptor
}

/// `user=a & path=/x cost=2`, with `hits=N` before it for the request's own addend.
pub(crate) fn request(text: &str) -> RateLimitRequest {
    let (hits_addend, text) = match text.strip_prefix("hits=") {
        Some(rest) => {
            let (hits, rest) = rest.split_once(' ').unwrap();
            (hits.parse().unwrap(), rest)
        }
        None => (0, text),
    };
    RateLimitRequest { domain: "d".to_owned(), descriptors: text.split('&').map(descriptor).collect(), hits_addend }
}

/// `ok user 4 of 5/MINUTE 60s`, or `ok` alone where nothing limits it.
fn told(status: &DescriptorStatus) -> String {
    let code = match ResponseCode::try_from(status.code).unwrap() {
        ResponseCode::Ok => "ok",
        ResponseCode::OverLimit => "over",
        ResponseCode::Unknown => "unknown",
    };
    let mut text = code.to_owned();
    if let Some(limit) = &status.current_limit {
        let unit = format!("{:?}", Unit::try_from(limit.unit).unwrap()).to_uppercase();
        let times = limit.unit_multiplier.map_or(String::new(), |times| format!("{times}x"));
        text += &format!(" {} {} of {}/{times}{unit}", limit.name, status.limit_remaining, limit.requests_per_unit);
    }
    if let Some(wait) = &status.duration_until_reset {
        text += &format!(" {}s", wait.seconds);
    }
    text
}

/// `AT descriptors -> status & status` for each line; the whole is over if one is, unless the line ends with `: ok`.
#[track_caller]
pub(crate) fn check(server: &Server, script: &str) {
    check_method(server, SHOULD_RATE_LIMIT, script);
}

#[track_caller]
pub(crate) fn check_method(server: &Server, method: &str, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (at, rest) = line.split_once(' ').unwrap();
        let (asked, expected) = rest.split_once(" -> ").unwrap();
        let (expected, passes) = expected.strip_suffix(" : ok").map_or((expected, false), |expected| (expected, true));
        let at: f64 = at.parse().unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
        server.clock.set(Micros::new(1_000_000_000 + (at * 1e6) as u64).unwrap());
        let ended = server
            .runtime
            .block_on(async { ask(&mut connect(server.address).await, method, &request(asked.trim())).await });
        let response: RateLimitResponse = ended.said();
        let statuses: Vec<String> = response.statuses.iter().map(told).collect();
        assert_eq!(statuses.join(" & "), expected, "{line}");
        let is_over = !passes && statuses.iter().any(|status| status.starts_with("over"));
        let overall = if is_over { ResponseCode::OverLimit } else { ResponseCode::Ok };
        assert_eq!(response.overall_code, i32::from(overall), "{line}");
        assert_eq!(response.raw_body.is_empty(), !is_over, "{line}: only a denial has a body");
        let types = response.response_headers_to_add.iter().filter(|field| field.key == "content-type").count();
        assert_eq!(types, usize::from(is_over), "{line}: only a denial tells its type");
    }
}
