//! One request: read, limited, forwarded, answered.
//!
//! Invariant: from the moment a slot is held until the request's head goes to the upstream, every way
//! out gives the slot back; after that, the answer's body holds it to its end.

use crate::body::{Answer, BodyError, ClientBody, Held, Reply};
use crate::client::{Busy, Client};
use crate::fields;
use crate::incoming::Head;
use crate::key::Origin;
use crate::link::{Link, Sent};
use crate::patience::Patience;
use crate::pool::Pool;
use crate::queue::{Slot, Waiting};
use crate::reply::{bad_request, refusal};
use crate::settings::{Policy, WhenLimited};
use crate::site::{Rules, Site, ticks};
use crate::target::{self, Target};
use crate::tunnel;
use http::header::{CONNECTION, HOST, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tidegate::Micros;
use tidegate_core::turnstile::{Closed, KeyHash, LineFull};
use tokio::time::sleep;
use tracing::{debug, warn};

/// Answers one request.
pub(crate) async fn exchange(client: Arc<Client>, request: Request<Incoming>) -> Response<Reply> {
    let busy = client.busy();
    let site = Arc::clone(&client.site);
    let arrived = site.clock.now();
    let rules = site.rules.load_full();
    let (mut parts, body) = request.into_parts();
    let asked = match read(&client, &rules.policy, &mut parts) {
        Ok(asked) => asked,
        Err(response) => return site.metrics.note_refused(*response),
    };
    let exchange = Exchange { client, site, rules, arrived, asked };
    match exchange.run(parts, body, busy).await {
        Ok(response) => exchange.site.metrics.note_forwarded(response),
        Err(response) => exchange.site.metrics.note_refused(*response),
    }
}

type Outcome<T> = Result<T, Box<Response<Reply>>>;

/// What a request's head says of its way.
struct Asked {
    key: KeyHash,
    /// What its head takes while it waits.
    weight: u32,
    is_websocket: bool,
}

/// Reads a head, and leaves in it what is forwarded: a normal target, the Host.
fn read(client: &Client, policy: &Policy, parts: &mut Parts) -> Outcome<Asked> {
    if parts.method == Method::CONNECT {
        let detail = "CONNECT is not forwarded; ask for a path";
        return Err(Box::new(refusal(StatusCode::METHOD_NOT_ALLOWED, "connect", detail)));
    }
    let uri = std::mem::take(&mut parts.uri);
    let target =
        target::read(&parts.method, &uri).map_err(|error| Box::new(bad_request("target", &error.to_string())))?;
    settle_host(policy, parts, &target)?;
    let from = Origin { peer: client.peer, trusted_hops: policy.trusted_hops };
    let key = client.site.keys.key(&policy.key, &policy.templates, &target, parts, from);
    let fields: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let weight = u32::try_from(target.path.len() + fields).unwrap_or(u32::MAX);
    let is_websocket = parts.version == Version::HTTP_11 && fields::wants_websocket(&parts.headers);
    parts.uri = forwarded(&uri, &target)?;
    Ok(Asked { key, weight, is_websocket })
}

/// One Host, which is the target's if that names one.
fn settle_host(policy: &Policy, parts: &mut Parts, target: &Target<'_>) -> Outcome<()> {
    let refused = |detail| Err(Box::new(bad_request("host", detail)));
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() || host.is_some_and(|host| !is_host(host.as_bytes())) {
        return refused("the Host field is there twice or names no host; send one");
    }
    match (target.authority, host) {
        (Some(authority), Some(host)) if parts.version == Version::HTTP_2 && host != authority.as_str() => {
            refused("the Host field and :authority differ; send one of them")
        }
        (Some(authority), _) => {
            if !is_host(authority.as_str().as_bytes()) {
                return refused("the target names a user or no host");
            }
            let value = HeaderValue::from_str(authority.as_str());
            parts.headers.insert(HOST, value.or(Err(Box::new(bad_request("host", "the target names no host"))))?);
            Ok(())
        }
        (None, Some(_)) => Ok(()),
        (None, None) if parts.version == Version::HTTP_10 => {
            let value = HeaderValue::from_str(policy.upstream.authority());
            parts.headers.insert(HOST, value.unwrap_or_else(|_| HeaderValue::from_static("localhost")));
            Ok(())
        }
        (None, None) => refused("the Host field is missing; send one"),
    }
}

/// A host with an optional port, of characters that nobody reads as something else.
fn is_host(host: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_~:[]%!$&'()*+;=".contains(byte);
    !host.is_empty() && host.iter().all(plain)
}

/// The target as it is forwarded: path and query, without scheme and host.
fn forwarded(uri: &Uri, target: &Target<'_>) -> Outcome<Uri> {
    let as_it_is = uri.path_and_query().filter(|whole| whole.path() == target.path);
    let path = match as_it_is {
        Some(path) => path.clone(),
        None => PathAndQuery::try_from(target.line().into_owned())
            .map_err(|_| Box::new(bad_request("target", "the path has characters that cannot be forwarded")))?,
    };
    Ok(Uri::from(path))
}

struct Exchange {
    client: Arc<Client>,
    site: Arc<Site>,
    rules: Arc<Rules>,
    arrived: Micros,
    asked: Asked,
}

/// How often a request with an unread body looks whether its client is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Exchange {
    async fn run(&self, parts: Parts, body: Incoming, busy: Busy) -> Outcome<Response<Reply>> {
        let has_body = !body.is_end_stream();
        let slot = match self.site.queue.pass(self.asked.key) {
            Ok(slot) => slot,
            // Boxed, like all that is seldom: what a request's future holds is copied for every request.
            Err(closed) => Box::pin(self.line_up(closed, has_body)).await?,
        };
        let (request, on_upgrade) = self.rewrite(parts, body);
        let mut patience = self.patience(self.rules.policy.upstream_timeout);
        let (mut link, slot) = match self.take_link(slot) {
            Ok(ready) => ready,
            Err(slot) => Box::pin(self.ready_to_send(slot, has_body)).await?,
        };
        self.site.metrics.note_start(self.arrived, slot.possible(), self.site.clock.now());
        match link.send(request, &mut patience).await {
            Sent::Answered(answer) => {
                patience.heard();
                let held = Held { link, pool: self.pool(), slot, busy };
                self.answer(*answer, on_upgrade, held, patience)
            }
            Sent::ClientBroke(error) => Err(Box::new(client_broke(&error))),
            Sent::UpstreamBroke(error) => Err(Box::new(self.upstream_broke(&error))),
            Sent::Silence => {
                self.site.metrics.note_upstream_error();
                let detail = "the upstream does not answer; try again later";
                Err(Box::new(refusal(StatusCode::GATEWAY_TIMEOUT, "upstream_silent", detail)))
            }
        }
    }

    /// What almost every request finds: an idle connection, and a slot that it did not wait for.
    fn take_link(&self, slot: Slot) -> Result<(Box<Link>, Slot), Slot> {
        if slot.was_waited_for() || !slot.is_good(self.site.clock.now()) {
            return Err(slot);
        }
        match self.worker_pool().take(self.site.pools.generation.load(Relaxed)) {
            Some(link) => Ok((link, slot)),
            None => Err(slot),
        }
    }

    fn patience(&self, limit: Duration) -> Patience {
        Patience::new(Arc::clone(&self.worker_pool().alarms), ticks(limit))
    }

    fn worker_pool(&self) -> &Arc<Pool> {
        &self.site.pools.all[self.client.worker]
    }

    fn pool(&self) -> Arc<Pool> {
        Arc::clone(self.worker_pool())
    }

    /// The request as the upstream gets it.
    fn rewrite(&self, mut parts: Parts, body: Incoming) -> (Request<ClientBody>, Option<OnUpgrade>) {
        let on_upgrade = self.asked.is_websocket.then(|| parts.extensions.remove::<OnUpgrade>()).flatten();
        fields::to_upstream(&mut parts.headers, &self.client.hop, on_upgrade.is_some());
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        let body = ClientBody::new(body, self.patience(self.site.settings.client_timeout));
        (Request::from_parts(parts, body), on_upgrade)
    }

    /// No slot at once: waits, or is turned away.
    async fn line_up(&self, closed: Closed, has_body: bool) -> Outcome<Slot> {
        if self.site.queue.part().is_none() && self.site.others.error().is_some() {
            return Err(Box::new(store_down()));
        }
        if self.rules.policy.when_limited == WhenLimited::Reject {
            return Err(Box::new(self.deny(closed)));
        }
        if self.site.is_stopping() {
            return Err(Box::new(stopping()));
        }
        match self.site.queue.wait(self.asked.key, self.asked.weight) {
            Ok(waiting) => self.wait(waiting, has_body).await,
            Err(LineFull) => {
                self.site.metrics.note_line_full();
                let detail = "as many requests wait as may; try again later";
                Err(Box::new(refusal(StatusCode::SERVICE_UNAVAILABLE, "line_full", detail)))
            }
        }
    }

    fn deny(&self, closed: Closed) -> Response<Reply> {
        let now = self.site.clock.now();
        self.site.metrics.note_denied();
        match closed {
            Closed::Limited(until) => self.rules.denials.limited(until.map(|until| until.saturating_sub(now)), now),
            Closed::Busy => self.rules.denials.busy(),
            Closed::Unknown | Closed::StoreFailed => store_down(),
        }
    }

    /// Waits until it has a slot, the client has left, the time is over or the proxy stops.
    async fn wait(&self, mut waiting: Waiting, has_body: bool) -> Outcome<Slot> {
        let max_wait = self.rules.policy.max_wait;
        let too_long = async {
            match max_wait {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        // hyper drops this future when the client goes, but not while a body stands before the end.
        let gone = async {
            while has_body && !self.client.has_left() {
                sleep(LOOK_EVERY).await;
            }
            if !has_body {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            slot = &mut waiting => Ok(slot),
            () = self.site.stopped() => Err(Box::new(stopping())),
            () = gone => Err(self.left()),
            () = too_long => Err(Box::new(self.deny(Closed::Limited(None)))),
        }
    }

    /// The client is not there any more: what is answered, nobody reads.
    fn left(&self) -> Box<Response<Reply>> {
        self.site.metrics.note_left();
        Box::new(bad_request("left", "the client has left"))
    }

    /// A connection to the upstream, and a slot whose window has not passed when it is there.
    async fn ready_to_send(&self, mut slot: Slot, has_body: bool) -> Outcome<(Box<Link>, Slot)> {
        loop {
            let (link, is_new) = match self.connection().await {
                Ok(found) => found,
                Err(response) => {
                    slot.give_back();
                    return Err(response);
                }
            };
            if (is_new || slot.was_waited_for()) && self.client.has_left() {
                slot.give_back();
                self.pool().put_unused(link);
                return Err(self.left());
            }
            if slot.is_good(self.site.clock.now()) {
                return Ok((link, slot));
            }
            self.site.metrics.note_again();
            self.pool().put_unused(link);
            slot = self.wait(slot.again(self.arrived, self.asked.weight), has_body).await?;
        }
    }

    /// An idle connection, or a new one; true: it is new.
    async fn connection(&self) -> Outcome<(Box<Link>, bool)> {
        let generation = self.site.pools.generation.load(Relaxed);
        if let Some(link) = self.worker_pool().take(generation) {
            return Ok((link, false));
        }
        match self.site.pools.connect(&self.rules.policy).await {
            Ok(link) => Ok((link, true)),
            Err(error) => {
                self.site.metrics.note_upstream_error();
                warn!("the upstream {:?} cannot be reached: {error}", self.rules.policy.upstream);
                let detail = "the upstream cannot be reached; try again later";
                Err(Box::new(refusal(StatusCode::BAD_GATEWAY, "upstream_down", detail)))
            }
        }
    }

    /// The upstream's answer as the client gets it.
    fn answer(
        &self,
        mut head: Head,
        on_upgrade: Option<OnUpgrade>,
        held: Held,
        patience: Patience,
    ) -> Outcome<Response<Reply>> {
        let reply = match (head.status, on_upgrade) {
            (StatusCode::SWITCHING_PROTOCOLS, Some(on_upgrade)) => {
                // From here on bytes go both ways, until one side ends.
                self.client.switch_protocol();
                tunnel::open(Arc::clone(&self.site), on_upgrade, held);
                Reply::Own(None)
            }
            (StatusCode::SWITCHING_PROTOCOLS, None) => {
                return Err(Box::new(self.upstream_broke(&io::Error::other("it switched protocols unasked"))));
            }
            _ => {
                fields::to_client(&mut head.headers);
                Reply::Forwarded(Box::new(Answer::new(held, patience)))
            }
        };
        let mut response = Response::new(reply);
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(response)
    }

    /// The answer did not begin, or cannot be read.
    fn upstream_broke(&self, error: &io::Error) -> Response<Reply> {
        self.site.metrics.note_upstream_error();
        warn!("the upstream {:?} broke off: {error}", self.rules.policy.upstream);
        let detail = "the upstream broke off before it answered";
        refusal(StatusCode::BAD_GATEWAY, "upstream_broke_off", detail)
    }
}

/// The request could not be sent to its end.
fn client_broke(error: &BodyError) -> Response<Reply> {
    debug!("{error}");
    let mut response = bad_request("body", "the body is broken, or was not sent in time");
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn store_down() -> Response<Reply> {
    let detail = "the replicas cannot agree on who may start, as their store does not answer; try again later";
    refusal(StatusCode::SERVICE_UNAVAILABLE, "store_down", detail)
}

fn stopping() -> Response<Reply> {
    let detail = "the proxy stops; try again, it may be back";
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
