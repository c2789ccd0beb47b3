//! Envoy's rate limit service, for the doors that have it: gRPC, and `/json` of the HTTP door.
//!
//! A request has a domain and descriptors; a descriptor meets the limiters of that domain whose `by` is exactly its keys. All descriptors are
//! charged together or none is, each at its own cost. Every descriptor has its status, in order, as the headers that Envoy makes depend on it.
//! Durations are whole seconds, rounded up: Envoy cuts fractions, and a client that waits too short would be denied again.
//! Invariant: what can be decided is an answer, never an error, as a proxy may take an error for a yes. So a key that is too long to be counted is
//! over its limit, and so is a message that is too long to be read.

mod counters;
mod metadata;
mod response;

pub use counters::RateLimitCounters;

use crate::access::{Caller, Scope, What};
use response::{response, uncounted};
use std::borrow::Cow;
use std::time::Duration;
use tidegate::{Answer, AskError, Gate, Intent, Limit, Micros, Reason, Request};
use tidegate_wire::grpc::ratelimit::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse, Unit};
use tidegate_wire::grpc::{Code, Status};
use tokio::time::Instant;

/// What an answer carries besides the statuses.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RateLimitSettings {
    /// Fields for the client's response. Default: none.
    pub headers: HeaderNames,
    /// The request, and the metadata of limiters that let it pass, for filters that come after. Default: no.
    pub dynamic_metadata: bool,
    /// Whatever the limiters say, the answer as a whole is OK: nothing is denied, and all is counted. Default: no.
    pub shadow: bool,
}

/// The names of the fields that an answer carries for the client's response; those without one are left out.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HeaderNames {
    /// `"user";r=1;t=60`: what is left, and until when.
    pub ratelimit: Option<String>,
    /// `"user";q=5;w=60`: the limits.
    pub policy: Option<String>,
    /// Seconds until it is worth asking again; on denials only.
    pub retry_after: Option<String>,
    /// The count of the limit that decided.
    pub limit: Option<String>,
    /// What is left of it.
    pub remaining: Option<String>,
    /// Seconds until it is as if never used, or until it is worth asking again.
    pub reset: Option<String>,
}

impl HeaderNames {
    /// The fields of the standard: `ratelimit`, `ratelimit-policy` and `retry-after`.
    #[must_use]
    pub fn standard() -> HeaderNames {
        let name = |name: &str| Some(name.to_owned());
        HeaderNames {
            ratelimit: name("ratelimit"),
            policy: name("ratelimit-policy"),
            retry_after: name("retry-after"),
            ..HeaderNames::default()
        }
    }
}

/// What is asked of the descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Decide, and charge.
    Decide,
    /// Decide.
    Check,
    /// They have happened: charge each on its own.
    Report,
}

/// Most descriptors of one request.
pub const DESCRIPTORS_MAX: usize = 32;
/// Most entries of one descriptor.
pub const ENTRIES_MAX: usize = 16;

/// Answers one request. The store has so long for all of it, however often it is asked, and never longer than for one decision.
pub(crate) async fn answer(
    gate: &Gate,
    caller: &Caller,
    (settings, counters): (&RateLimitSettings, &RateLimitCounters),
    purpose: Purpose,
    request: &RateLimitRequest,
    store_within: Duration,
) -> Result<RateLimitResponse, Status> {
    check(request)?;
    caller.check(Scope::Check, What::Domain(Some(&request.domain)))?;
    let names: Vec<Option<Vec<Cow<'_, str>>>> = request.descriptors.iter().map(numbered).collect();
    let entries: Vec<Vec<(&str, &[u8])>> = request.descriptors.iter().zip(&names).map(attributes).collect();
    let asked = request.descriptors.iter().zip(&entries);
    let asked: Vec<Asked<'_>> = asked.map(|(one, entries)| asked_of(request, one, entries, purpose)).collect();
    let store = Budget { gate, by: Instant::now() + store_within.min(gate.store_within()) };
    match answers(&store, purpose, &asked).await {
        Ok(answers) => {
            let is_charged = purpose != Purpose::Check && Answer::all_pass(&answers);
            counters.note(asked.iter().zip(&answers).map(|(one, answer)| (one.is_hit() && is_charged, answer)));
            Ok(response(settings, counters, request, &answers))
        }
        Err(error) => Ok(uncounted((settings, counters), request.descriptors.len(), "bad_key", &error.to_string())),
    }
}

/// The answer to a request that was too long to be read.
pub(crate) fn unread(settings: (&RateLimitSettings, &RateLimitCounters), why: &str) -> RateLimitResponse {
    uncounted(settings, 0, "message_too_long", why)
}

/// A descriptor without entries is no error: Envoy sends one where `skip_if_absent` skipped them all. Nothing limits it.
fn check(request: &RateLimitRequest) -> Result<(), Status> {
    let refuse = |code, message: String| Err(Status::new(code, message));
    if request.domain.is_empty() {
        return refuse(
            Code::InvalidArgument,
            "the request has no domain; name one, as [[limiter]] domain does".to_owned(),
        );
    }
    match request.descriptors.len() {
        0 => return refuse(Code::InvalidArgument, "the request has no descriptors; send one at least".to_owned()),
        1..=DESCRIPTORS_MAX => {}
        n => {
            return refuse(
                Code::ResourceExhausted,
                format!("{n} descriptors are more than {DESCRIPTORS_MAX}; send fewer"),
            );
        }
    }
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        let n = descriptor.entries.len();
        if n > ENTRIES_MAX {
            let message = format!("descriptor {index} has {n} entries, more than {ENTRIES_MAX}; send fewer");
            return refuse(Code::ResourceExhausted, message);
        }
    }
    Ok(())
}

/// The attribute that the entry at this place is: its key, and the second entry of a key is `key.2`, the third `key.3`.
#[must_use]
pub fn attribute<'k>(keys: &[&'k str], at: usize) -> Cow<'k, str> {
    match keys[..at].iter().filter(|key| **key == keys[at]).count() {
        0 => Cow::Borrowed(keys[at]),
        before => Cow::Owned(format!("{}.{}", keys[at], before + 1)),
    }
}

/// The attributes of a descriptor in which a key stands twice; `None`: its keys are its attributes.
fn numbered(descriptor: &RateLimitDescriptor) -> Option<Vec<Cow<'_, str>>> {
    let entries = &descriptor.entries;
    let stands_twice = |at: usize| entries[..at].iter().any(|other| other.key == entries[at].key);
    if !(1..entries.len()).any(stands_twice) {
        return None;
    }
    let keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    Some((0..keys.len()).map(|at| attribute(&keys, at)).collect())
}

fn attributes<'a>((of, names): (&'a RateLimitDescriptor, &'a Option<Vec<Cow<'_, str>>>)) -> Vec<(&'a str, &'a [u8])> {
    let name = |at: usize| names.as_ref().map_or(of.entries[at].key.as_str(), |names| &names[at]);
    of.entries.iter().enumerate().map(|(at, entry)| (name(at), &entry.value[..])).collect()
}

/// What is asked of a descriptor.
enum Asked<'a> {
    /// May it happen? It is charged then, unless it is a look.
    May(Request<'a>),
    /// Give its cost back.
    GiveBack(Request<'a>),
}

impl Asked<'_> {
    fn is_hit(&self) -> bool {
        matches!(self, Asked::May(request) if request.intent == Intent::Hit)
    }
}

/// What a descriptor asks: its own cost, else the request's, else 1. A cost of 0 of its own is a look: is there anything left? A negative one is given
/// back.
fn asked_of<'a>(
    request: &'a RateLimitRequest,
    descriptor: &RateLimitDescriptor,
    entries: &'a [(&'a str, &'a [u8])],
    purpose: Purpose,
) -> Asked<'a> {
    let cost = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend).max(1));
    let asked = Request::of_descriptor(&request.domain, entries).limit(brought(descriptor));
    let asked = asked.cost(u32::try_from(cost).unwrap_or(u32::MAX));
    match (cost, purpose) {
        (0, _) => Asked::May(asked.cost(1).peek()),
        _ if descriptor.is_negative_hits => Asked::GiveBack(asked),
        (_, Purpose::Check) => Asked::May(asked.peek()),
        (_, Purpose::Decide | Purpose::Report) => Asked::May(asked),
    }
}

/// The limit that a descriptor brings; `None`: none, or none that can be counted.
fn brought(descriptor: &RateLimitDescriptor) -> Option<Limit> {
    let limit = descriptor.limit.as_ref()?;
    let unit = Unit::try_from(limit.unit).ok()?.seconds()?;
    let seconds = unit.checked_mul(limit.unit_multiplier.unwrap_or(1).into())?;
    Limit::new(limit.requests_per_unit, Micros::new(seconds.checked_mul(1_000_000)?)?).ok()
}

/// The gate, and until when its store may answer: one time for all that is asked of it. What it has no time for is answered by `on_failure`.
struct Budget<'a> {
    gate: &'a Gate,
    by: Instant,
}

impl Budget<'_> {
    fn left(&self) -> Duration {
        self.by.saturating_duration_since(Instant::now())
    }

    async fn ask_together(&self, requests: &[Request<'_>]) -> Result<Vec<Answer>, AskError> {
        self.gate.answer_together(requests, self.left()).await
    }

    /// How a key stands.
    async fn look(&self, request: &Request<'_>) -> Result<Answer, AskError> {
        let told = self.ask_together(&[request.cost(0).peek()]).await?;
        told.into_iter().next().ok_or(AskError::Remote)
    }

    async fn give_back(&self, request: &Request<'_>) -> Result<Answer, AskError> {
        self.gate.give_back_all(request, self.left()).await
    }
}

/// Each descriptor's answer, in order. Those that may happen are decided together first: what is denied gives nothing back, or a client could fill
/// up one limit by running into another. What has happened already does.
async fn answers(store: &Budget<'_>, purpose: Purpose, asked: &[Asked<'_>]) -> Result<Vec<Answer>, AskError> {
    let may = asked.iter().filter_map(|one| if let Asked::May(request) = one { Some(*request) } else { None });
    let may: Vec<Request<'_>> = may.collect();
    let decided = match purpose {
        Purpose::Decide | Purpose::Check => store.ask_together(&may).await?,
        Purpose::Report => one_by_one(store, &may).await?,
    };
    use_up(store, purpose, &may, &decided).await;
    let gives = purpose != Purpose::Check
        && (Answer::all_pass(&decided)
            || decided.iter().all(|answer| answer.allowed || is_afterwards(purpose, answer)));
    let (mut decided, mut all) = (decided.into_iter(), Vec::with_capacity(asked.len()));
    for one in asked {
        all.extend(match one {
            Asked::May(_) => decided.next(),
            Asked::GiveBack(request) => Some(give_back(store, request, gives).await?),
        });
    }
    Ok(all)
}

/// Gives back, if it may, and says how the key stands then: nothing was asked that could be denied. A store that cannot give back keeps the charge.
async fn give_back(store: &Budget<'_>, request: &Request<'_>, gives: bool) -> Result<Answer, AskError> {
    let given = if gives { store.give_back(request).await } else { store.look(request).await };
    let told = match given {
        Err(AskError::Store(_)) => store.look(request).await?,
        told => told?,
    };
    Ok(if told.allowed { told } else { Answer { allowed: true, reason: Reason::Ok, retry_after: None, ..told } })
}

/// Has what was denied happened already? Reports have, and charges of limiters that are set so, as Envoy's call at the end of a stream is like any other.
fn is_afterwards(purpose: Purpose, answer: &Answer) -> bool {
    purpose == Purpose::Report || answer.limiter.as_ref().is_some_and(|spec| spec.overdraw)
}

async fn one_by_one(store: &Budget<'_>, asked: &[Request<'_>]) -> Result<Vec<Answer>, AskError> {
    let mut answers = Vec::with_capacity(asked.len());
    for one in asked {
        answers.extend(store.ask_together(std::slice::from_ref(one)).await?);
    }
    Ok(answers)
}

/// What has happened already counts as far as there is something left: else a cost that is always more than that would never count. Two steps, so that
/// another may come between; what is taken never exceeds what is left then.
async fn use_up(store: &Budget<'_>, purpose: Purpose, asked: &[Request<'_>], answers: &[Answer]) {
    if answers.iter().all(|answer| answer.allowed) {
        return;
    }
    for (request, answer) in asked.iter().zip(answers) {
        if let (false, true, Intent::Hit, Some(left @ 1..)) =
            (answer.allowed, is_afterwards(purpose, answer), request.intent, answer.remaining)
            && left < request.cost
        {
            // Whatever becomes of it, the answer is what it was: over.
            let _ = store.ask_together(&[request.cost(left)]).await;
        }
    }
}
