//! `POST /json`: Envoy's rate limit request as JSON, as envoyproxy/ratelimit has it for people with curl; and `GET /healthcheck`.
//!
//! Names are those of protobuf's JSON, in either spelling. The status is 200, or 429 where one descriptor is over its limit.

use super::door::Door;
use super::problem::Problem;
use super::reply::{Reply, json_reply, text_reply};
use crate::access::Caller;
use crate::ratelimit::{self, Purpose};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use http::StatusCode;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tidegate_wire::grpc::ratelimit::{
    DescriptorStatus, Entry, Kind, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
    ResponseCode, Struct, Unit, Value as ProtobufValue,
};
use tidegate_wire::grpc::{Code, Status};

/// Answers one body.
pub(crate) async fn answer(door: &Door, caller: &Caller, body: &[u8]) -> Result<Reply, Problem> {
    let request = read(body)?;
    let settings = (&door.settings.ratelimit, &*door.settings.ratelimit_counters);
    let answered = ratelimit::answer(&door.gate, caller, settings, Purpose::Decide, &request, Duration::MAX).await;
    let response = answered.map_err(|status| problem(&status))?;
    let mut reply = json_reply(shown(&response).to_string());
    if response.overall_code != i32::from(ResponseCode::Ok) {
        *reply.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    Ok(reply)
}

/// `OK`, until the door closes.
pub(crate) fn healthcheck(door: &Door) -> Result<Reply, Problem> {
    match door.draining.load(Relaxed) {
        true => Err(Problem::new(503, "draining", "the door is closing; ask another replica")),
        false => Ok(text_reply("text/plain; charset=utf-8", "OK".to_owned())),
    }
}

fn problem(status: &Status) -> Problem {
    let (http, code) = match status.code {
        Code::Unauthenticated => (401, "unauthorized"),
        Code::PermissionDenied => (403, "forbidden"),
        Code::InvalidArgument | Code::ResourceExhausted => (400, "bad_request"),
        _ => (500, "internal"),
    };
    Problem::new(http, code, status.message.clone())
}

fn read(body: &[u8]) -> Result<RateLimitRequest, Problem> {
    let refuse = |detail: String| Problem::new(400, "bad_json", detail).field("body");
    let value: Value =
        serde_json::from_slice(body).map_err(|error| refuse(format!("the body is not JSON: {error}")))?;
    let mut members = Members::of("the body", value)?;
    let request = RateLimitRequest {
        domain: members.text("domain")?,
        descriptors: members.list("descriptors")?.into_iter().map(descriptor).collect::<Result<_, _>>()?,
        hits_addend: members.number("hitsAddend")?.map_or(Ok(0), |hits| {
            u32::try_from(hits).map_err(|_| refuse(format!("hitsAddend: {hits} is more than {}", u32::MAX)))
        })?,
    };
    members.end()?;
    Ok(request)
}

fn descriptor(value: Value) -> Result<RateLimitDescriptor, Problem> {
    let mut members = Members::of("a descriptor", value)?;
    let descriptor = RateLimitDescriptor {
        entries: members.list("entries")?.into_iter().map(entry).collect::<Result<_, _>>()?,
        limit: members.take("limit").map(limit).transpose()?,
        hits_addend: members.number("hitsAddend")?,
        is_negative_hits: members.is_true("isNegativeHits")?,
    };
    members.end()?;
    Ok(descriptor)
}

/// A limit that the descriptor brings. Its unit is a name, or protobuf's number for it.
fn limit(value: Value) -> Result<RateLimitOverride, Problem> {
    let mut members = Members::of("a limit", value)?;
    let whole = |members: &mut Members, name: &str| match members.number(name)? {
        None => Ok(None),
        Some(number) => u32::try_from(number).map(Some).map_err(|_| members.wrong(name, "at most 4294967295")),
    };
    let limit = RateLimitOverride {
        requests_per_unit: whole(&mut members, "requestsPerUnit")?.unwrap_or(0),
        unit: match members.take("unit") {
            None => Unit::Unknown,
            Some(value) => unit(&value)
                .ok_or_else(|| members.wrong("unit", "one of SECOND, MINUTE, HOUR, DAY, WEEK, MONTH and YEAR"))?,
        }
        .into(),
        unit_multiplier: whole(&mut members, "unitMultiplier")?,
    };
    members.end()?;
    Ok(limit)
}

fn unit(value: &Value) -> Option<Unit> {
    match value {
        Value::String(name) => {
            (0..=7).filter_map(|number| Unit::try_from(number).ok()).find(|unit| named(*unit) == *name)
        }
        value => Unit::try_from(i32::try_from(value.as_i64()?).ok()?).ok(),
    }
}

fn named(unit: Unit) -> String {
    format!("{unit:?}").to_uppercase()
}

fn entry(value: Value) -> Result<Entry, Problem> {
    let mut members = Members::of("an entry", value)?;
    let entry = Entry { key: members.text("key")?, value: members.text("value")?.into() };
    members.end()?;
    Ok(entry)
}

/// The members of an object, each to be taken once.
struct Members {
    what: &'static str,
    left: Map<String, Value>,
}

impl Members {
    fn of(what: &'static str, value: Value) -> Result<Members, Problem> {
        match value {
            Value::Object(left) => Ok(Members { what, left }),
            _ => Err(Problem::new(400, "bad_json", format!("{what} must be an object")).field("body")),
        }
    }

    /// `hitsAddend` or `hits_addend`.
    fn take(&mut self, name: &str) -> Option<Value> {
        let snake = name.chars().flat_map(|c| {
            let upper = c.is_ascii_uppercase();
            upper.then_some('_').into_iter().chain([c.to_ascii_lowercase()])
        });
        let snake: String = snake.collect();
        self.left.remove(name).or_else(|| self.left.remove(&snake)).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, wanted: &str) -> Problem {
        Problem::new(400, "bad_json", format!("{name} of {} must be {wanted}", self.what)).field(name.to_owned())
    }

    fn text(&mut self, name: &str) -> Result<String, Problem> {
        match self.take(name) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }

    fn list(&mut self, name: &str) -> Result<Vec<Value>, Problem> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list),
            Some(_) => Err(self.wrong(name, "an array")),
        }
    }

    fn is_true(&mut self, name: &str) -> Result<bool, Problem> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(is_true)) => Ok(is_true),
            Some(_) => Err(self.wrong(name, "true or false")),
        }
    }

    /// Protobuf's JSON has large numbers as texts.
    fn number(&mut self, name: &str) -> Result<Option<u64>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Number(number)) if number.is_u64() => Ok(number.as_u64()),
            Some(Value::String(text)) if text.parse::<u64>().is_ok() => Ok(text.parse().ok()),
            Some(_) => Err(self.wrong(name, "a whole number")),
        }
    }

    fn end(self) -> Result<(), Problem> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => {
                let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
                let detail = format!("{} has no \"{shown}\"; leave it out", self.what);
                Err(Problem::new(400, "unknown_field", detail).field("body"))
            }
        }
    }
}

fn shown(response: &RateLimitResponse) -> Value {
    let status = |status: &DescriptorStatus| {
        let mut shown = json!({ "code": code(status.code), "limitRemaining": status.limit_remaining });
        if let Some(limit) = &status.current_limit {
            let unit = Unit::try_from(limit.unit).unwrap_or(Unit::Unknown);
            let mut told = json!({
                "name": limit.name,
                "requestsPerUnit": limit.requests_per_unit,
                "unit": named(unit),
            });
            if let Some(times) = limit.unit_multiplier {
                told["unitMultiplier"] = times.into();
            }
            shown["currentLimit"] = told;
        }
        if let Some(wait) = &status.duration_until_reset {
            shown["durationUntilReset"] = format!("{}s", wait.seconds).into();
        }
        shown
    };
    let statuses: Vec<Value> = response.statuses.iter().map(status).collect();
    let mut shown = json!({ "overallCode": code(response.overall_code), "statuses": statuses });
    if !response.response_headers_to_add.is_empty() {
        let fields = response.response_headers_to_add.iter();
        shown["responseHeadersToAdd"] = fields.map(|field| json!({ "key": field.key, "value": field.value })).collect();
    }
    if !response.raw_body.is_empty() {
        shown["rawBody"] = BASE64.encode(&response.raw_body).into();
    }
    if let Some(metadata) = &response.dynamic_metadata {
        shown["dynamicMetadata"] = of_struct(metadata);
    }
    shown
}

/// Protobuf's objects are JSON's. They are ours, and not deep: what a policy says, in what `metadata.rs` makes of a request.
fn of_struct(object: &Struct) -> Value {
    Value::Object(object.fields.iter().map(|(name, value)| (name.clone(), of_value(value))).collect())
}

/// Protobuf's JSON writes 2 and not 2.0.
fn whole(number: f64) -> Value {
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole, and fits")]
    if number.fract() == 0.0 && number.abs() <= EXACT_MAX { json!(number as i64) } else { json!(number) }
}

fn of_value(value: &ProtobufValue) -> Value {
    match &value.kind {
        None | Some(Kind::Null(_)) => Value::Null,
        Some(Kind::Bool(is)) => (*is).into(),
        Some(Kind::Number(number)) => whole(*number),
        Some(Kind::Text(text)) => text.as_str().into(),
        Some(Kind::Object(inner)) => of_struct(inner),
        Some(Kind::List(list)) => list.values.iter().map(of_value).collect(),
    }
}

fn code(code: i32) -> &'static str {
    match ResponseCode::try_from(code) {
        Ok(ResponseCode::Ok) => "OK",
        Ok(ResponseCode::OverLimit) => "OVER_LIMIT",
        _ => "UNKNOWN",
    }
}
