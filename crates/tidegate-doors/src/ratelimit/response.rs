//! From answers to what Envoy is told: statuses, the body of a denial, and fields for the client's response.

use super::{HeaderNames, RateLimitCounters, RateLimitSettings, metadata};
use tidegate::headers::{push_answer_members, push_policy, push_problem_members, push_rate_limit, retry_after_s};
use tidegate::{Answer, Micros, OnFailure, Reason};
use tidegate_wire::grpc::ratelimit::{
    self, DescriptorStatus, HeaderValue, Kind, RateLimit, RateLimitRequest, RateLimitResponse, ResponseCode, Unit,
};

pub(super) fn response(
    settings: &RateLimitSettings,
    counters: &RateLimitCounters,
    request: &RateLimitRequest,
    answers: &[Answer],
) -> RateLimitResponse {
    let mut is_allowed = Answer::all_pass(answers);
    if !is_allowed && settings.shadow {
        counters.note_shadowed();
        is_allowed = true;
    }
    let mut response = RateLimitResponse {
        overall_code: code(is_allowed),
        statuses: answers.iter().map(status).collect(),
        ..RateLimitResponse::default()
    };
    // Also where no limit was asked, as with on_failure = "allow".
    let degraded = answers.iter().find_map(|answer| answer.degraded).map(OnFailure::as_str);
    if settings.headers != HeaderNames::default() {
        response.response_headers_to_add.extend(degraded.map(|by| header("tidegate-degraded", by)));
    }
    if settings.dynamic_metadata {
        let mut told = metadata::of(request, answers);
        told.fields.extend(degraded.map(|by| ("degraded".to_owned(), Kind::Text(by.to_owned()).into())));
        response.dynamic_metadata = Some(told);
    }
    let Some(deciding) = deciding(answers, is_allowed) else { return response };
    if !is_allowed {
        let body = problem(deciding);
        deny(&mut response, body);
    }
    response.response_headers_to_add.extend(headers(&settings.headers, deciding));
    response
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

fn headers(names: &HeaderNames, answer: &Answer) -> Vec<HeaderValue> {
    if *names == HeaderNames::default() {
        return Vec::new();
    }
    let (mut policy, mut rate_limit) = (String::new(), String::new());
    push_policy(&mut policy, answer);
    push_rate_limit(&mut rate_limit, answer);
    let DescriptorStatus { current_limit, limit_remaining, duration_until_reset, .. } = status(answer);
    let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    let is_limited = current_limit.is_some();
    let all = [
        (&names.policy, policy),
        (&names.ratelimit, rate_limit),
        (&names.retry_after, number(retry_after_s(answer))),
        (&names.limit, number(current_limit.map(|limit| limit.requests_per_unit.into()))),
        (&names.remaining, number(is_limited.then_some(limit_remaining.into()))),
        (&names.reset, number(duration_until_reset.and_then(|wait| u64::try_from(wait.seconds).ok()))),
    ];
    let said = all.iter().filter(|(_, value)| !value.is_empty());
    said.filter_map(|(name, value)| Some(header(name.as_ref()?, value))).collect()
}

fn header(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned() }
}

/// What cannot be counted is over its limit: an error would let it pass where errors do. So many descriptors are known of it.
pub(super) fn uncounted(
    (settings, counters): (&RateLimitSettings, &RateLimitCounters),
    descriptors: usize,
    code_word: &str,
    why: &str,
) -> RateLimitResponse {
    let status = DescriptorStatus { code: code(false), ..DescriptorStatus::default() };
    let mut response = RateLimitResponse {
        overall_code: code(settings.shadow),
        statuses: vec![status; descriptors],
        ..RateLimitResponse::default()
    };
    if settings.shadow {
        counters.note_shadowed();
        return response;
    }
    let mut body = r#"{"type":"about:blank","title":"Too Many Requests","status":429,"code":"#.to_owned();
    tidegate_wire::json::push_string(&mut body, code_word);
    body.push_str(r#","detail":"#);
    tidegate_wire::json::push_string(&mut body, why);
    body.push('}');
    deny(&mut response, body);
    response
}
