//! One member of an etcd: its connections, and whether it is worth asking.
//!
//! HTTP/1.1 carries one request at a time on a connection, so there are as many as there are requests under way,
//! up to a bound, and they are kept for the next ones. Invariant: a caller learns whether its request may have
//! reached the member ([`StoreError::Ambiguous`]) or cannot have ([`StoreError::Unreachable`]).

use super::error::{Then, garbled, understood};
use super::json::{Json, first_value};
use super::locked;
use crate::remote::breaker::{Breaker, PROBE_TIME_MAX};
use crate::remote::connect_time::{CONNECT_TIME_MAX, ConnectTime};
use crate::remote::{StoreError, Tls, reach, unreachable};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// A member of the cluster.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) address: String,
    tls: Option<Tls>,
    /// How long connecting may take.
    connect_time: ConnectTime,
    pub(crate) breaker: Breaker,
    /// Why it is not asked, while it is not.
    why: Mutex<StoreError>,
    idle: Mutex<Vec<Sender>>,
    /// One permit for each connection.
    room: Semaphore,
    since: Instant,
    /// When it last answered a request in time, in microseconds from `since`.
    heard_us: AtomicU64,
}

/// What is asked of a member.
pub(crate) struct Ask<'a> {
    pub(crate) path: &'static str,
    pub(crate) body: &'a Bytes,
    pub(crate) token: Option<Arc<str>>,
}

/// What it answers, or why not and what follows.
pub(crate) type Answer = Result<Json, (StoreError, Then)>;

type Sender = SendRequest<Full<Bytes>>;

/// Most connections to a member. More requests than these wait, until their deadline at most.
const CONNECTIONS_MAX: usize = 64;
/// The largest reply that is read. etcd's own bound on a request is 1.5 MiB.
const REPLY_BYTES_MAX: usize = 4 << 20;

impl Member {
    pub(crate) fn new(address: String, tls: Option<Tls>) -> Member {
        Member {
            breaker: Breaker::default(),
            connect_time: ConnectTime::default(),
            why: Mutex::new(unreachable(&address, "it is being connected".to_owned())),
            idle: Mutex::default(),
            room: Semaphore::new(CONNECTIONS_MAX),
            since: Instant::now(),
            heard_us: AtomicU64::new(0),
            address,
            tls,
        }
    }

    /// Why it is not asked, if it is not.
    pub(crate) fn down(&self) -> Option<StoreError> {
        (!self.breaker.answers()).then(|| locked(&self.why).clone())
    }

    /// Asks, and waits for the reply until the deadline.
    pub(crate) async fn ask(&self, ask: &Ask<'_>, by: Instant) -> Answer {
        let crowded = || {
            let why = format!("{CONNECTIONS_MAX} requests are under way to it already");
            (unreachable(&self.address, why), Then::Tell)
        };
        let _permit = timeout_at(by, self.room.acquire()).await.ok().and_then(Result::ok).ok_or_else(crowded)?;
        let since = Instant::now();
        match timeout_at(by, self.exchange(ask, by)).await {
            Ok(answer) => answer,
            Err(_) => {
                let error = self.ambiguous("its reply did not come before the deadline".to_owned());
                self.breaker.waited_in_vain(since.elapsed(), self.silence());
                if !self.breaker.answers() {
                    self.lost("it is silent, and is asked now and then".to_owned());
                }
                Err((error, Then::Unsure))
            }
        }
    }

    /// Is it there, and does it reach the others? A read that needs more than half of them, of a key that nobody
    /// has; being refused is an answer as well.
    pub(crate) async fn probe(&self, within: Duration) -> Option<bool> {
        let body = Bytes::from_static(b"{\"key\":\"dGlkZWdhdGUvcHJvYmU=\"}");
        let ask = Ask { path: "/v3/kv/range", body: &body, token: None };
        let mut within = within;
        // Connecting is not what callers wait for: it is done when they come.
        if locked(&self.idle).is_empty() {
            let since = Instant::now();
            let connected = self.connect(since + CONNECT_TIME_MAX).await.ok()?;
            locked(&self.idle).push(connected);
            // A reply takes as long as connecting did. With less time the connection would be given up at once, again and
            // again, as each new one that comes too late begins the probes from the shortest.
            within = within.max((since.elapsed() * 2).min(PROBE_TIME_MAX));
        }
        let answer = self.ask(&ask, Instant::now() + within).await;
        Some(matches!(answer, Ok(_) | Err((StoreError::Refused { .. }, Then::Tell | Then::LogIn))))
    }

    async fn exchange(&self, ask: &Ask<'_>, by: Instant) -> Answer {
        let (mut sender, reply) = self.send(ask, by).await?;
        let status = reply.status();
        let read = Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await;
        let bytes = read.map_err(|error| (self.ambiguous(format!("its reply broke off: {error}")), Then::Unsure))?;
        self.heard_us.store(micros(self.since.elapsed()), Relaxed);
        let json = self.parsed(&bytes.to_bytes(), status)?;
        if sender.ready().await.is_ok() {
            locked(&self.idle).push(sender);
        }
        if status == StatusCode::OK && json.get("error").is_none() {
            return Ok(json);
        }
        let (error, then) = understood(&self.address, &json);
        if then == Then::AskAnother {
            self.shun(error.clone());
        }
        Err((error, then))
    }

    fn parsed(&self, bytes: &[u8], status: StatusCode) -> Answer {
        first_value(bytes)
            .map_err(|why| (garbled(&self.address, &format!("{why} (HTTP status {})", status.as_u16())), Then::Unsure))
    }

    /// Sends on a connection that is kept, or on a new one. One that was closed meanwhile has sent nothing.
    async fn send(&self, ask: &Ask<'_>, by: Instant) -> Result<(Sender, Response<Incoming>), (StoreError, Then)> {
        loop {
            let kept = locked(&self.idle).pop();
            let is_new = kept.is_none();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connect(by).await?,
            };
            match sender.try_send_request(self.request(ask)).await {
                Ok(reply) => return Ok((sender, reply)),
                Err(mut broken) => {
                    let why = format!("the connection broke: {}", broken.error());
                    match broken.take_message() {
                        None => return Err((self.ambiguous(why), Then::Unsure)),
                        Some(_) if is_new => return Err((self.lost(why), Then::AskAnother)),
                        Some(_) => {}
                    }
                }
            }
        }
    }

    async fn connect(&self, by: Instant) -> Result<Sender, (StoreError, Then)> {
        let connected = async || {
            let stream = reach(&self.address, self.tls.as_ref()).await?;
            let made = handshake(TokioIo::new(stream)).await;
            made.map_err(|error| unreachable(&self.address, error.to_string()))
        };
        let within = self.connect_time.get();
        let late = || Err(unreachable(&self.address, format!("no connection within {within:?}")));
        // The caller's own time may be up before: it must learn that nothing was sent.
        let raced = timeout_at(by, self.connect_time.race(connected)).await;
        match raced.ok().flatten().unwrap_or_else(late) {
            Ok((sender, connection)) => {
                // It ends when its sender is dropped.
                tokio::spawn(connection);
                Ok(sender)
            }
            Err(error) => {
                self.shun(error.clone());
                Err((error, Then::AskAnother))
            }
        }
    }

    fn request(&self, ask: &Ask<'_>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(ask.body.clone()));
        *request.method_mut() = hyper::Method::POST;
        *request.uri_mut() = hyper::Uri::from_static(ask.path);
        let headers = request.headers_mut();
        let value = |text: &str| header::HeaderValue::from_str(text).unwrap_or(header::HeaderValue::from_static(""));
        headers.insert(header::HOST, value(&self.address));
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        // A member that lost its leader says so at once, instead of waiting for the next one.
        headers.insert("grpc-metadata-hasleader", header::HeaderValue::from_static("true"));
        if let Some(token) = &ask.token {
            let mut token = value(token);
            token.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, token);
        }
        request
    }

    /// There is no way to it now.
    fn lost(&self, why: String) -> StoreError {
        let error = unreachable(&self.address, why);
        locked(&self.idle).clear();
        self.shun(error.clone());
        error
    }

    /// It is not asked until a probe has found that it answers again.
    fn shun(&self, why: StoreError) {
        *locked(&self.why) = why;
        self.breaker.set(false);
    }

    fn ambiguous(&self, why: String) -> StoreError {
        StoreError::Ambiguous { address: self.address.clone(), why }
    }

    /// For how long it has answered no request in time.
    fn silence(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_micros(self.heard_us.load(Relaxed)))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
