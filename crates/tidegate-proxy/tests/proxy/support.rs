//! An upstream that notes what it sees, a proxy in front of it, and clients that speak plain bytes.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate::{Algorithm, Gate, LimiterSpec, PROXY_LIMITER, Rules};
use tidegate_proxy::{Policy, Proxy, Settings, Upstream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long anything may take before a test gives up.
pub(crate) const WAIT_TIME_MAX: Duration = Duration::from_secs(20);

pub(crate) type Body = BoxBody<Bytes, Infallible>;
type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;
type Handler = Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>;

/// What an upstream saw of a request, and when.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) at: Duration,
}

impl Seen {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A hyper server with a runtime of its own; it ends with the value.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Origin {
    /// Answers `ok` to everything.
    pub(crate) fn start() -> Origin {
        Origin::with(|_| async { Response::new(text("ok")) })
    }

    pub(crate) fn with<F, Fut>(handler: F) -> Origin
    where
        F: Fn(Request<Incoming>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response<Body>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |request| Box::pin(handler(request)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<Seen>>>::default());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.spawn(serve(listener, handler, Arc::clone(&seen)));
        Origin { address, seen, runtime: Some(runtime) }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn policy(&self, limit: &str) -> Policy {
        policy(Upstream::new(&self.url(), None).unwrap(), limit)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

async fn serve(listener: TcpListener, handler: Handler, seen: Arc<Mutex<Vec<Seen>>>) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (handler, seen) = (Arc::clone(&handler), Arc::clone(&seen));
        let service = service_fn(move |request: Request<Incoming>| {
            seen.lock().unwrap().push(note(&request));
            let answering = handler(request);
            async move { Ok::<_, Infallible>(answering.await) }
        });
        let http = hyper::server::conn::http1::Builder::new();
        tokio::spawn(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
    }
}

fn note(request: &Request<Incoming>) -> Seen {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Seen {
        line: format!("{} {}", request.method(), request.uri()),
        fields: request.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap(),
    }
}

pub(crate) fn text(text: &'static str) -> Body {
    Full::new(Bytes::from_static(text.as_bytes())).boxed()
}

/// The defaults in front of an upstream, with this limit.
pub(crate) fn policy(upstream: Upstream, limit: &str) -> Policy {
    Policy::new(upstream, gate(limit).limiter(PROXY_LIMITER).unwrap())
}

/// A gate with the proxy's limiter, in memory.
pub(crate) fn gate(limit: &str) -> Gate {
    let rules = Rules::new(Algorithm::AlignedWindow, &[limit.parse().unwrap()]).unwrap();
    Gate::embedded(tidegate::Policy::new(vec![LimiterSpec::new(PROXY_LIMITER, rules)]).unwrap())
}

/// A proxy on any free port.
pub(crate) fn proxy(policy: Policy) -> Proxy {
    proxy_with(policy, Settings { workers: 2, ..Settings::default() })
}

pub(crate) fn proxy_with(policy: Policy, settings: Settings) -> Proxy {
    let gate = gate(&policy.limiter.spec().rules.limits()[0].to_string());
    let policy = Policy { limiter: gate.limiter(PROXY_LIMITER).unwrap(), ..policy };
    proxy_on(gate, policy, settings)
}

/// A proxy whose policy has a limiter of this gate.
pub(crate) fn proxy_on(gate: Gate, policy: Policy, settings: Settings) -> Proxy {
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    Proxy::start(listener(), Some(listener()), gate, policy, settings).unwrap()
}

/// Sends bytes on a connection of its own and reads to the end.
pub(crate) async fn send(address: SocketAddr, bytes: &[u8]) -> String {
    let work = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(WAIT_TIME_MAX, work).await.expect("an answer in time")
}

pub(crate) fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").into_bytes()
}

/// GET on a connection of its own: the whole answer.
pub(crate) async fn get(address: SocketAddr, path: &str) -> String {
    send(address, &request(path)).await
}

/// The status of an answer.
#[track_caller]
pub(crate) fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no status in {answer:?}"))
}

/// The JSON summary's number under a name.
pub(crate) async fn var(proxy: &Proxy, name: &str) -> u64 {
    let answer = get(proxy.admin().unwrap(), "/debug/vars").await;
    let (_, rest) = answer.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {answer}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// Polls until it is so.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let start = std::time::Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < WAIT_TIME_MAX, "not within {WAIT_TIME_MAX:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Sleeps until shortly after the next boundary of this period, so that a test has a window before it.
pub(crate) async fn next_window(period: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let period_us = u64::try_from(period.as_micros()).unwrap();
    let window = u64::try_from(now.as_micros()).unwrap() / period_us + 1;
    tokio::time::sleep(Duration::from_micros(window * period_us) - now + Duration::from_millis(20)).await;
    window
}

/// The machine was too slow to set a scene within its window.
pub(crate) struct TooSlow;

/// Plays a scene that must be set within one window: again with one twice as long if the machine was too slow for it.
/// What the scene shows is asserted each time, so that only slowness is tried again.
#[track_caller]
pub(crate) fn in_a_window(scene: impl Fn(Duration) -> Result<(), TooSlow>) {
    let is_played = [2, 4, 8, 16, 32].into_iter().any(|seconds| scene(Duration::from_secs(seconds)).is_ok());
    assert!(is_played, "the scene could not be set within a window of 32 s");
}

/// Polls until it is so; too slow when the window has ended before.
pub(crate) async fn within<F>(window: u64, period: Duration, mut is_so: impl FnMut() -> F) -> Result<(), TooSlow>
where
    F: Future<Output = bool>,
{
    while !is_so().await {
        still_in(window, period)?;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    still_in(window, period)
}

fn still_in(window: u64, period: Duration) -> Result<(), TooSlow> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    if window_of(now, period) == window { Ok(()) } else { Err(TooSlow) }
}

/// In which window a time falls.
pub(crate) fn window_of(at: Duration, period: Duration) -> u64 {
    u64::try_from(at.as_micros() / period.as_micros()).unwrap()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
