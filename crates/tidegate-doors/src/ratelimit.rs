//! Envoy's rate limit service, for the doors that have it: gRPC, and `/json` of the HTTP door.
//!
//! A request has a domain and descriptors; a descriptor meets the limiters of that domain whose `by` is exactly its keys. All descriptors are
//! charged together or none is, each at its own cost. Every descriptor has its status, in order, as the headers that Envoy makes depend on it.
//! Durations are whole seconds, rounded up: Envoy cuts fractions, and a client that waits too short would be denied again.
//! Invariant: what can be decided is an answer, never an error, as a proxy may take an error for a yes. So a key that is too long to be counted is
//! over its limit.

use crate::access::{Caller, Scope, What};
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate::headers::{push_answer_members, push_policy, push_problem_members, push_rate_limit, retry_after_s};
use tidegate::{Answer, AskError, Gate, Intent, Limit, Micros, OnFailure, Reason, Request, StoreError};
use tidegate_wire::grpc::ratelimit::{
    self, DescriptorStatus, HeaderValue, Kind, ListValue, RateLimit, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse, ResponseCode, Struct, Unit, Value,
};
use tidegate_wire::grpc::{Code, Status};

/// What an answer carries besides the statuses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RateLimitSettings {
    /// `RateLimit`, `RateLimit-Policy` and, on a denial, `Retry-After`, for the client's response. Default: no.
    pub headers: bool,
    /// The request as metadata, for filters that come after. Default: no.
    pub dynamic_metadata: bool,
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

/// Answers one request, within a time that the store may take.
pub(crate) async fn answer(
    gate: &Gate,
    caller: &Caller,
    settings: RateLimitSettings,
    purpose: Purpose,
    request: &RateLimitRequest,
    store_within: Duration,
) -> Result<RateLimitResponse, Status> {
    check(request)?;
    caller.check(Scope::Check, What::Domain(Some(&request.domain)))?;
    let entries: Vec<Vec<(&str, &[u8])>> = request.descriptors.iter().map(attributes).collect();
    let asked = request.descriptors.iter().zip(&entries);
    let asked: Vec<Asked<'_>> = asked.map(|(one, entries)| asked_of(request, one, entries, purpose)).collect();
    match answers(gate, purpose, &asked, store_within).await {
        Ok(answers) => Ok(response(settings, request, &answers)),
        Err(AskError::Key(error)) => Ok(uncounted(request, &error.to_string())),
        Err(error) => Err(Status::new(Code::Internal, error.to_string())),
    }
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

fn attributes(descriptor: &RateLimitDescriptor) -> Vec<(&str, &[u8])> {
    descriptor.entries.iter().map(|entry| (entry.key.as_str(), &entry.value[..])).collect()
}

/// What is asked of a descriptor.
enum Asked<'a> {
    /// May it happen? It is charged then, unless it is a look.
    May(Request<'a>),
    /// Give its cost back.
    GiveBack(Request<'a>),
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

/// Each descriptor's answer, in order. Those that may happen are decided together first: what is denied gives nothing back, or a client could fill
/// up one limit by running into another. What has happened already does.
async fn answers(
    gate: &Gate,
    purpose: Purpose,
    asked: &[Asked<'_>],
    within: Duration,
) -> Result<Vec<Answer>, AskError> {
    let may = asked.iter().filter_map(|one| if let Asked::May(request) = one { Some(*request) } else { None });
    let may: Vec<Request<'_>> = may.collect();
    let decided = match purpose {
        Purpose::Decide | Purpose::Check => gate.ask_together(&may, within).await?,
        Purpose::Report => one_by_one(gate, &may, within).await?,
    };
    use_up(gate, purpose, &may, &decided, within).await;
    let gives = purpose != Purpose::Check
        && (Answer::all_pass(&decided)
            || decided.iter().all(|answer| answer.allowed || is_afterwards(purpose, answer)));
    let (mut decided, mut all) = (decided.into_iter(), Vec::with_capacity(asked.len()));
    for one in asked {
        all.extend(match one {
            Asked::May(_) => decided.next(),
            Asked::GiveBack(request) => Some(give_back(gate, request, gives, within).await?),
        });
    }
    Ok(all)
}

/// Gives back, if it may, and says how the key stands then: nothing was asked that could be denied. A store that cannot give back keeps the charge.
async fn give_back(gate: &Gate, request: &Request<'_>, gives: bool, within: Duration) -> Result<Answer, AskError> {
    let given = match gives {
        true => gate.give_back_all(request, within).await,
        false => gate.ask(&request.cost(0).peek()).await,
    };
    let told = match given {
        Err(AskError::Store(StoreError::Unsupported(_))) => gate.ask(&request.cost(0).peek()).await?,
        told => told?,
    };
    Ok(if told.allowed { told } else { Answer { allowed: true, reason: Reason::Ok, retry_after: None, ..told } })
}

/// Has what was denied happened already? Reports have, and charges of limiters that are set so, as Envoy's call at the end of a stream is like any other.
fn is_afterwards(purpose: Purpose, answer: &Answer) -> bool {
    purpose == Purpose::Report || answer.limiter.as_ref().is_some_and(|spec| spec.overdraw)
}

async fn one_by_one(gate: &Gate, asked: &[Request<'_>], within: Duration) -> Result<Vec<Answer>, AskError> {
    let mut answers = Vec::with_capacity(asked.len());
    for one in asked {
        answers.extend(gate.ask_together(std::slice::from_ref(one), within).await?);
    }
    Ok(answers)
}

/// What has happened already counts as far as there is something left: else a cost that is always more than that would never count. Two steps, so that
/// another may come between; what is taken never exceeds what is left then.
async fn use_up(gate: &Gate, purpose: Purpose, asked: &[Request<'_>], answers: &[Answer], within: Duration) {
    if answers.iter().all(|answer| answer.allowed) {
        return;
    }
    for (request, answer) in asked.iter().zip(answers) {
        if let (false, true, Intent::Hit, Some(left @ 1..)) =
            (answer.allowed, is_afterwards(purpose, answer), request.intent, answer.remaining)
            && left < request.cost
        {
            // Whatever becomes of it, the answer is what it was: over.
            let _ = gate.ask_together(&[request.cost(left)], within).await;
        }
    }
}

fn response(settings: RateLimitSettings, request: &RateLimitRequest, answers: &[Answer]) -> RateLimitResponse {
    let is_allowed = Answer::all_pass(answers);
    let mut response = RateLimitResponse {
        overall_code: code(is_allowed),
        statuses: answers.iter().map(status).collect(),
        ..RateLimitResponse::default()
    };
    // Also where no limit was asked, as with on_failure = "allow".
    tell_more(&mut response, settings, request, answers);
    let Some(deciding) = deciding(answers, is_allowed) else { return response };
    if !is_allowed {
        let body = problem(deciding);
        deny(&mut response, body);
    }
    if settings.headers {
        response.response_headers_to_add.extend(headers(deciding));
    }
    response
}

/// What the door is set to say besides the codes, whatever they are: what was asked, for filters, and that the store was not.
fn tell_more(
    response: &mut RateLimitResponse,
    settings: RateLimitSettings,
    request: &RateLimitRequest,
    answers: &[Answer],
) {
    let degraded = answers.iter().find_map(|answer| answer.degraded).map(OnFailure::as_str);
    if settings.headers {
        response.response_headers_to_add.extend(degraded.map(|by| header("tidegate-degraded", by)));
    }
    if settings.dynamic_metadata {
        let mut told = metadata(request);
        told.fields.extend(degraded.map(|by| ("degraded".to_owned(), Kind::Text(by.to_owned()).into())));
        response.dynamic_metadata = Some(told);
    }
}

fn code(is_allowed: bool) -> i32 {
    if is_allowed { ResponseCode::Ok.into() } else { ResponseCode::OverLimit.into() }
}

fn status(answer: &Answer) -> DescriptorStatus {
    let limit = answer.limiter.as_ref().filter(|_| answer.limit.is_some()).and_then(|spec| {
        let limit = spec.rules.limits().get(answer.limit_index)?;
        Some((limit, spec.name.clone()))
    });
    let wait = match (answer.allowed, answer.retry_after) {
        (true, _) => answer.reset_after,
        (false, Some(wait)) => Some(wait),
        // Waiting does not help; a period is as good a time as any to ask again.
        (false, None) => limit.as_ref().map(|(limit, _)| limit.period()),
    };
    DescriptorStatus {
        code: code(answer.allowed),
        current_limit: limit.map(|(limit, name)| {
            let (unit, multiplier) = Unit::of_seconds(limit.period().as_secs_ceil());
            let unit_multiplier = (multiplier > 1).then_some(multiplier);
            RateLimit { requests_per_unit: limit.count(), unit: unit.into(), name, unit_multiplier }
        }),
        limit_remaining: answer.remaining.unwrap_or(if is_unlimited(answer) { u32::MAX } else { 0 }),
        duration_until_reset: wait.map(seconds),
    }
}

/// Does a limiter know it, and not limit it? What no limiter knows has 0 left, as envoyproxy/ratelimit tells it.
fn is_unlimited(answer: &Answer) -> bool {
    answer.allowed && answer.reason == Reason::Ok && answer.limiter.is_some() && answer.limit.is_none()
}

fn seconds(wait: Micros) -> ratelimit::Duration {
    ratelimit::Duration { seconds: i64::try_from(wait.as_secs_ceil()).unwrap_or(i64::MAX) }
}

/// The answer that says most: the denial with the longest wait, or the one with the least left of those that allow.
fn deciding(answers: &[Answer], is_allowed: bool) -> Option<&Answer> {
    if is_allowed {
        let limited = answers.iter().filter(|answer| answer.allowed && answer.limit.is_some());
        return limited.min_by_key(|answer| answer.remaining);
    }
    let denials = answers.iter().filter(|answer| !answer.allowed);
    denials.max_by_key(|answer| answer.retry_after.map_or(u64::MAX, Micros::get))
}

/// The body of a denial. Its type is told only then: Envoy appends the field to whatever an allowed response has.
fn deny(response: &mut RateLimitResponse, body: String) {
    response.raw_body = body.into_bytes();
    response.response_headers_to_add.push(header("content-type", "application/problem+json"));
}

fn problem(answer: &Answer) -> String {
    let mut body = String::with_capacity(512);
    body.push('{');
    push_answer_members(&mut body, answer);
    body.push(',');
    push_problem_members(&mut body, answer, 429);
    body.push('}');
    body
}

fn headers(answer: &Answer) -> Vec<HeaderValue> {
    let (mut policy, mut rate_limit) = (String::new(), String::new());
    push_policy(&mut policy, answer);
    push_rate_limit(&mut rate_limit, answer);
    let retry_after = retry_after_s(answer).map(|wait| wait.to_string()).unwrap_or_default();
    let all = [("ratelimit-policy", policy), ("ratelimit", rate_limit), ("retry-after", retry_after)];
    all.iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| header(key, value)).collect()
}

fn header(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned() }
}

/// A key that cannot be counted is over its limit: an error would let it pass where errors do.
fn uncounted(request: &RateLimitRequest, why: &str) -> RateLimitResponse {
    let status = DescriptorStatus { code: code(false), ..DescriptorStatus::default() };
    let mut response = RateLimitResponse {
        overall_code: code(false),
        statuses: vec![status; request.descriptors.len()],
        ..RateLimitResponse::default()
    };
    let mut body =
        r#"{"type":"about:blank","title":"Too Many Requests","status":429,"code":"bad_key","detail":"#.to_owned();
    tidegate_wire::json::push_string(&mut body, why);
    body.push('}');
    deny(&mut response, body);
    response
}

/// What was asked, as Envoy's own service tells it.
fn metadata(request: &RateLimitRequest) -> Struct {
    let text = |text: &str| Value::from(Kind::Text(text.to_owned()));
    let object = |fields: Vec<(&str, Value)>| Struct {
        fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>(),
    };
    let descriptor = |descriptor: &RateLimitDescriptor| {
        let entry = |entry: &ratelimit::Entry| {
            let fields = vec![("key", text(&entry.key)), ("value", text(&String::from_utf8_lossy(&entry.value)))];
            Value::from(Kind::Object(object(fields)))
        };
        let values = descriptor.entries.iter().map(entry).collect();
        Value::from(Kind::Object(object(vec![("entries", Kind::List(ListValue { values }).into())])))
    };
    let values = request.descriptors.iter().map(descriptor).collect();
    object(vec![
        ("domain", text(&request.domain)),
        ("descriptors", Kind::List(ListValue { values }).into()),
        ("hitsAddend", Kind::Number(f64::from(request.hits_addend)).into()),
    ])
}
