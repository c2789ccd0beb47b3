//! One request: read, limited, forwarded, answered.
//!
//! Invariant: from the moment a slot is held until the request's head goes to the upstream, every way
//! out gives the slot back, also that of a future which is dropped; after that, the answer's body holds it
//! to its end.

mod half_closed;
mod waits;

use crate::body::{Answer, BodyError, ClientBody, Held, Reply};
use crate::client::{Busy, Client};
use crate::client_slots::{ClientSlots, UnderWay, Waits};
use crate::fields::{self, Survey};
use crate::incoming::{Head, SpeaksHttp2};
use crate::key::{self, KeyText, Origin};
use crate::link::{Link, Sent};
use crate::outgoing::Outgoing;
use crate::queue::{Slot, Waiting};
use crate::reply::{bad_request, refusal};
use crate::settings::Policy;
use crate::state::{Charge, ProxyState, Rules};
use crate::target::{self, Characters, Target};
use crate::tunnel;
use half_closed::Reads;
use http::header::{CONNECTION, HOST, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate::layer::client_address;
use tidegate::{Micros, Reason};
use tidegate_core::turnstile::{Closed, KeyHash, Name};
use tidegate_doors::listener::IdleTimeout;
use tracing::{debug, warn};

/// Answers one request.
///
/// Its head is read, and written anew, before the future is made: what waits, or is forwarded, keeps nothing of
/// the buffer that the head came in, and hyper reads on into it instead of a new one.
pub(crate) fn exchange(
    client: Arc<Client>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Reply>, Infallible>> {
    let begun = begin(Arc::clone(&client), request);
    async move {
        let outcome = match begun {
            Ok(begun) => begun.run().await,
            Err(refused) => Err(refused),
        };
        let response = outcome.unwrap_or_else(|refused| *refused);
        client.state.metrics.note_answer(response.status());
        Ok(response)
    }
}

type Outcome<T> = Result<T, Box<Response<Reply>>>;

/// A request that has its slot, or waits for it.
struct Begun {
    exchange: Exchange,
    request: Outgoing,
    on_upgrade: Option<OnUpgrade>,
    entry: Entry,
}

enum Entry {
    Passed(Slot),
    Waits(Waiting, Waits),
}

/// Reads a head, passes the turnstile or lines up, and makes ready what is sent. Boxed, as it is handed on
/// and on: moving it would cost more than the box.
fn begin(client: Arc<Client>, request: Request<Incoming>) -> Outcome<Box<Begun>> {
    let client = Busy::new(client);
    let state = &client.state;
    let arrived = state.clock.now();
    let rules = state.rules.load();
    let (mut parts, body) = request.into_parts();
    if parts.method == Method::CONNECT {
        let detail = "CONNECT is not forwarded; ask for a path";
        return Err(Box::new(refusal(StatusCode::METHOD_NOT_ALLOWED, "connect", detail)));
    }
    let target = target::read(&parts.method, &parts.uri);
    let target = target.map_err(|error| Box::new(bad_request("target", &error.to_string())))?;
    let survey = Survey::of(&parts.headers);
    let (roles, weight) = (survey.roles, u32::try_from(target.length() + survey.length).unwrap_or(u32::MAX));
    let length = settled_length(&survey)?;
    if let Some(host) = settled_host(&rules.policy, parts.version, &survey, &target)? {
        parts.headers.insert(HOST, host);
    }
    let from = Origin { peer: client.peer, trusted_hops: rules.policy.trusted_hops };
    let (parts_of_key, templates) = (&rules.policy.key, &rules.policy.templates);
    if let Some(name) = key::header_sent_twice(parts_of_key, &parts.headers) {
        let detail = format!("the field {name} is there twice, and is part of what is limited; send it once");
        return Err(Box::new(bad_request("key", &detail)));
    }
    let slots = match from.trusted_hops {
        0 => Arc::clone(&client.slots),
        hops => state.clients.at(client_address(&parts.headers, Some(from.peer), hops).unwrap_or(from.peer)),
    };
    let key = state.keys.key(parts_of_key, templates, &target, &parts, from);
    let name = state.shares_counts().then(|| key::name(parts_of_key, templates, &target, &parts, from));
    let text = key::text(parts_of_key, templates, &target, &parts, from);
    let is_empty = length.map_or_else(|| body.is_end_stream(), |length| length == 0);
    let body = (!is_empty).then(|| ClientBody::new(body, client.idle_timeout(client.state.client_ticks)));
    let exchange = Exchange {
        client,
        slots,
        arrived,
        upstream_ticks: rules.upstream_ticks,
        weight,
        has_body: body.is_some(),
        reads: Reads::unknown(parts.version),
        place: (key, name),
        key: text,
    };
    let (client, state) = (&exchange.client, &exchange.client.state);
    let entry = match state.queue.pass(key, arrived) {
        Ok(slot) => Entry::Passed(slot),
        Err(closed) => {
            let (waiting, place) = exchange.line_up(&rules, closed)?;
            Entry::Waits(waiting, place)
        }
    };
    let wants_websocket = parts.version == Version::HTTP_11 && fields::wants_websocket(&parts.headers, roles);
    let on_upgrade = wants_websocket.then(|| parts.extensions.remove::<OnUpgrade>()).flatten();
    let push_fields =
        |head: &mut Vec<u8>| fields::push_to_upstream(head, &parts.headers, roles, &client.hop, on_upgrade.is_some());
    let request = Outgoing::new(parts.method, &target, push_fields, length, body);
    drop(rules);
    Ok(Box::new(Begun { exchange, request, on_upgrade, entry }))
}

/// One Host, which is the target's if that names one; `None`: it is there already.
fn settled_host(
    policy: &Policy,
    version: Version,
    survey: &Survey<'_>,
    target: &Target<'_>,
) -> Outcome<Option<HeaderValue>> {
    let refused = |detail| Err(Box::new(bad_request("host", detail)));
    if survey.hosts > 1 || survey.host.is_some_and(|host| !is_host(host.as_bytes())) {
        return refused("the Host field is there twice or names no host; send one");
    }
    match (target.authority, survey.host) {
        (Some(authority), Some(host)) if version == Version::HTTP_2 && host != authority.as_str() => {
            refused("the Host field and :authority differ; send one of them")
        }
        (Some(authority), _) => {
            if !is_host(authority.as_str().as_bytes()) {
                return refused("the target names a user or no host");
            }
            let value = HeaderValue::from_str(authority.as_str());
            value.map(Some).or(refused("the target names no host"))
        }
        (None, Some(_)) => Ok(None),
        (None, None) if version == Version::HTTP_10 => {
            let value = HeaderValue::from_str(policy.upstream.authority());
            Ok(Some(value.unwrap_or_else(|_| HeaderValue::from_static("localhost"))))
        }
        (None, None) => refused("the Host field is missing; send one"),
    }
}

/// The body's length, if one is named. HTTP/1 was looked at before it was parsed; HTTP/2 comes here with whatever its
/// fields say.
fn settled_length(survey: &Survey<'_>) -> Outcome<Option<u64>> {
    match (survey.body_lengths, survey.body_length) {
        (0, _) => Ok(None),
        (1, Some(length)) => Ok(Some(length)),
        _ => {
            let detail = "the Content-Length field is there twice or is no number of 1 to 18 digits; send one";
            Err(Box::new(bad_request("length", detail)))
        }
    }
}

/// Characters of a host with an optional port that every reader takes for the same host.
static OF_A_HOST: Characters = Characters::unreserved_and(b":[]%!$&'()*+;=");

fn is_host(host: &[u8]) -> bool {
    !host.is_empty() && host.iter().all(|byte| OF_A_HOST.has(*byte))
}

/// The answer to a request that may not start: 429, or 503 when the store does not say whether it may.
fn deny(state: &ProxyState, rules: &Rules, closed: Closed) -> Response<Reply> {
    let now = state.clock.now();
    let denial = match closed {
        Closed::Limited(until) => {
            rules.denials.denied(Reason::Limited, until.map(|until| until.saturating_sub(now)), now)
        }
        Closed::Busy => rules.denials.busy(),
        Closed::Unknown | Closed::StoreFailed => return store_down(),
    };
    state.metrics.note_denied();
    denial
}

impl Begun {
    async fn run(self: Box<Self>) -> Outcome<Response<Reply>> {
        let Exchange { client, arrived, upstream_ticks, .. } = &self.exchange;
        let slot = match self.entry {
            Entry::Passed(slot) => slot,
            // Boxed, as it is rare: what a request's future holds is copied for every request.
            Entry::Waits(waiting, place) => {
                let slot = Box::pin(self.exchange.wait(waiting)).await?;
                drop(place);
                slot
            }
        };
        let Ready { mut link, mut slot, under_way } = match self.exchange.ready_at_once(slot) {
            Ok(ready) => ready,
            Err(missing) => Box::pin(self.exchange.ready_later(missing)).await?,
        };
        client.state.metrics.note_start(*arrived, slot.possible(), client.state.clock.now());
        slot.start();
        link.begin(self.request);
        let mut silence = client.idle_timeout(*upstream_ticks);
        let mut sent = poll_fn(|cx| link.poll_answer(cx, &mut silence)).await;
        if matches!(sent, Sent::UpstreamBroke(_)) {
            // Passed by value, so that the future keeps no room for it while it waits.
            (link, sent) = Box::pin(self.exchange.resend(link, sent, &slot, &mut silence)).await?;
        }
        match sent {
            Sent::Answered(head) => {
                silence.reset();
                answer(head, self.on_upgrade, Held { link, slot, under_way, client: self.exchange.client }, silence)
            }
            Sent::ClientBroke(error) => Err(Box::new(client_broke(&error))),
            Sent::UpstreamBroke(error) => Err(Box::new(upstream_broke(&client.state, &error))),
            Sent::Silence => {
                client.state.metrics.note_upstream_error();
                let detail = "the upstream does not answer; try again later";
                Err(Box::new(refusal(StatusCode::GATEWAY_TIMEOUT, "upstream_silent", detail)))
            }
        }
    }
}

/// One request on its way to the upstream.
struct Exchange {
    client: Busy,
    /// What its client has waiting and under way.
    slots: Arc<ClientSlots>,
    arrived: Micros,
    upstream_ticks: u64,
    /// What its head takes while it waits.
    weight: u32,
    has_body: bool,
    /// Does its client, when it has closed its side, still read?
    reads: Reads,
    /// Its key at the turnstile; with a name, it is counted at the store.
    place: (KeyHash, Option<Name>),
    /// Its key at the gate.
    key: KeyText,
}

/// What a request needs to be sent.
struct Ready {
    link: Box<Link>,
    slot: Slot,
    under_way: UnderWay,
}

/// What a request lacks to be sent, with what it has.
enum Missing {
    /// The client has as many under way as it may.
    UnderWay(Slot),
    /// No connection is idle, or the slot was waited for and has to be looked at again.
    Link(Slot, UnderWay),
    /// The gate's limiter did not allow the start.
    Charge(Charge, Ready),
}

/// How often a request with an unread body looks whether its client is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Exchange {
    /// What almost every request finds: few others of its client, an idle connection, and a limiter that allows.
    fn ready_at_once(&self, slot: Slot) -> Result<Ready, Missing> {
        let rules = self.state().rules.load();
        let Some(under_way) = self.slots.start(rules.policy.in_flight_per_client()) else {
            return Err(Missing::UnderWay(slot));
        };
        if slot.was_waited_for() || !slot.is_good(self.state().clock.now()) {
            return Err(Missing::Link(slot, under_way));
        }
        let Some(link) = self.client.pool().take(rules.generation) else {
            return Err(Missing::Link(slot, under_way));
        };
        let ready = Ready { link, slot, under_way };
        match self.charge(&rules) {
            Charge::Allowed => Ok(ready),
            denied => Err(Missing::Charge(denied, ready)),
        }
    }

    /// Waits for what is missing.
    async fn ready_later(&self, missing: Missing) -> Outcome<Ready> {
        let (slot, under_way) = match missing {
            Missing::UnderWay(slot) => self.start_later(slot).await?,
            Missing::Link(slot, under_way) => (slot, under_way),
            Missing::Charge(denied, ready) => return self.charged_later(denied, ready).await,
        };
        let (link, slot) = self.ready_to_send(slot).await?;
        let (ready, charge) = (Ready { link, slot, under_way }, self.charge(&self.state().rules.load()));
        match charge {
            Charge::Allowed => Ok(ready),
            denied => self.charged_later(denied, ready).await,
        }
    }

    fn state(&self) -> &ProxyState {
        &self.client.state
    }

    fn in_flight_per_client(&self) -> u32 {
        self.state().rules.load().policy.in_flight_per_client()
    }

    /// The client is gone: no one reads this answer.
    fn left(&self) -> Box<Response<Reply>> {
        self.state().metrics.note_left();
        Box::new(bad_request("left", "the client has left"))
    }

    /// A connection to the upstream, and a slot whose window has not passed when it is there.
    async fn ready_to_send(&self, mut slot: Slot) -> Outcome<(Box<Link>, Slot)> {
        loop {
            let link = self.connection().await?;
            if slot.was_waited_for() && self.client.has_left() && !self.still_reads().await {
                self.client.pool().put_unused(link);
                return Err(self.left());
            }
            if slot.is_good(self.state().clock.now()) {
                return Ok((link, slot));
            }
            self.state().metrics.note_again();
            self.client.pool().put_unused(link);
            let goes = self.state().rules.load().rejects();
            slot = self.wait(slot.again(self.arrived, self.weight, goes)).await?;
        }
    }

    /// Charges the start at the gate's limiter.
    fn charge(&self, rules: &Rules) -> Charge {
        self.state().charge(rules, &self.key)
    }

    /// 429: the key is blocked, for so long.
    fn blocked(&self, rules: &Rules, wait: Option<Micros>) -> Box<Response<Reply>> {
        self.state().metrics.note_denied();
        Box::new(rules.denials.denied(Reason::Blocked, wait, self.state().clock.now()))
    }

    /// Back into line until the gate allows the start, too. No other request of the key starts before the next window. A blocked key
    /// does not wait: a block may last for days.
    async fn charged_later(&self, mut denied: Charge, ready: Ready) -> Outcome<Ready> {
        let Ready { mut link, mut slot, under_way } = ready;
        loop {
            self.client.pool().put_unused(link);
            let (until, rules) = (slot.until(), self.state().rules.load_full());
            if let Charge::Blocked(wait) = denied {
                return Err(self.blocked(&rules, wait));
            }
            slot.exhaust();
            if rules.rejects() {
                return Err(Box::new(deny(self.state(), &rules, Closed::Limited(Some(until)))));
            }
            let waited = self.wait(slot.again(self.arrived, self.weight, false)).await?;
            (link, slot) = self.ready_to_send(waited).await?;
            denied = self.charge(&self.state().rules.load());
            if matches!(denied, Charge::Allowed) {
                return Ok(Ready { link, slot, under_way });
            }
        }
    }

    /// Sends a request on a new connection, if the upstream had closed the one that it was sent on. Not after the request's window, as the
    /// start would be counted in another.
    async fn resend(
        &self,
        mut link: Box<Link>,
        sent: Sent,
        slot: &Slot,
        silence: &mut IdleTimeout,
    ) -> Outcome<(Box<Link>, Sent)> {
        let Sent::UpstreamBroke(error) = &sent else { return Ok((link, sent)) };
        let Some(request) = link.take_unanswered(error) else { return Ok((link, sent)) };
        drop(link);
        let mut link = self.new_connection(&self.state().rules.load_full()).await?;
        if !slot.is_good(self.state().clock.now()) {
            self.client.pool().put_unused(link);
            return Err(Box::new(upstream_broke(self.state(), error)));
        }
        self.state().metrics.note_resent();
        link.begin(request);
        silence.reset();
        let sent = poll_fn(|cx| link.poll_answer(cx, silence)).await;
        Ok((link, sent))
    }

    /// An idle connection, or a new one.
    async fn connection(&self) -> Outcome<Box<Link>> {
        let rules = self.state().rules.load_full();
        match self.client.pool().take(rules.generation) {
            Some(link) => Ok(link),
            None => self.new_connection(&rules).await,
        }
    }

    async fn new_connection(&self, rules: &Rules) -> Outcome<Box<Link>> {
        match self.state().pools.connect(rules).await {
            Ok(link) => Ok(link),
            Err(error) => {
                self.state().metrics.note_upstream_error();
                warn!("the upstream {:?} cannot be reached: {error}", rules.policy.upstream);
                let detail = "the upstream cannot be reached; try again later";
                Err(Box::new(refusal(StatusCode::BAD_GATEWAY, "upstream_down", detail)))
            }
        }
    }
}

/// The upstream's answer as the client gets it.
fn answer(mut head: Head, on_upgrade: Option<OnUpgrade>, held: Held, silence: IdleTimeout) -> Outcome<Response<Reply>> {
    let reply = match (head.status, on_upgrade) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(on_upgrade)) => {
            // From here on bytes go both ways, until one side ends.
            held.client.switch_protocol();
            tunnel::open(on_upgrade, held);
            Reply::Own(None)
        }
        (StatusCode::SWITCHING_PROTOCOLS, None) => {
            return Err(Box::new(upstream_broke(
                &held.client.state,
                &io::Error::other("the upstream switched protocols unasked"),
            )));
        }
        _ => {
            fields::to_client(&mut head.headers);
            Reply::Forwarded(Answer::new(held, silence))
        }
    };
    let mut response = Response::new(reply);
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    Ok(response)
}

/// The answer did not begin, or cannot be read.
fn upstream_broke(state: &ProxyState, error: &io::Error) -> Response<Reply> {
    state.metrics.note_upstream_error();
    warn!("the upstream {:?} broke off: {error}", state.rules.load().policy.upstream);
    if error.get_ref().is_some_and(|why| why.is::<SpeaksHttp2>()) {
        let detail = "the upstream speaks HTTP/2 only, and requests are forwarded to it in HTTP/1.1; gRPC cannot pass";
        return refusal(StatusCode::BAD_GATEWAY, "upstream_http2", detail);
    }
    let detail = "the upstream broke off before it answered";
    refusal(StatusCode::BAD_GATEWAY, "upstream_broke_off", detail)
}

/// The request could not be sent to its end.
fn client_broke(error: &BodyError) -> Response<Reply> {
    debug!("{error}");
    let mut response = bad_request("body", "the body is broken, or was not sent in time");
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn store_down() -> Response<Reply> {
    let detail = "the replicas' store does not answer in time, so that it is not known whether this request may start; try again later";
    refusal(StatusCode::SERVICE_UNAVAILABLE, "store_down", detail)
}

fn stopping() -> Response<Reply> {
    let detail = "the proxy is stopping; try again later";
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
