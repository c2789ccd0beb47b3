//! `POST /v1/hit`: may this happen now?
//!
//! The body is checked field by field before the engine is asked, so a refusal charges nothing.

use super::body;
use super::bounds::{ATTRIBUTES_MAX, BODY_BYTES_MAX};
use super::door::Door;
use super::fields::{cost, key, name, truth, wrong_type};
use super::json::{self, Scalar, Value, duplicate_field, shorten};
use super::problem::Problem;
use super::reply::{DenyStatus, Explain, Reply, answer_reply};
use crate::access::{Caller, Scope, What};
use hyper::body::Incoming;
use std::borrow::Cow;
use tidegate::{Intent, Request, Target};

/// Reads the body and answers it.
pub(crate) async fn answer(door: &Door, caller: &Caller, body: &mut Incoming) -> Result<Reply, Problem> {
    let body = body::read(body, BODY_BYTES_MAX, door.settings.body_timeout).await?;
    answer_body(door, caller, &body).await
}

/// Answers one body.
pub(crate) async fn answer_body(door: &Door, caller: &Caller, body: &[u8]) -> Result<Reply, Problem> {
    let hit = Hit::read(body)?;
    let attributes = hit.attributes();
    let request = hit.request(&attributes)?;
    caller.check(Scope::Check, what(&request))?;
    // A denial names every limit that it violates.
    let request = Request { explain: hit.explain || door.gate.has_several_limits(&request), ..request };
    let answer = door.gate.ask(&request).await?;
    Ok(answer_reply(&answer, DenyStatus::DEFAULT, if hit.explain { Explain::Yes } else { Explain::No }))
}

/// What a request is about.
pub(crate) fn what<'r>(request: &Request<'r>) -> What<'r> {
    match request.target {
        Target::Limiter { name, .. } => What::Limiter(name),
        Target::Attributes { domain, .. } => What::Domain(domain),
        Target::Descriptor { domain, .. } => What::Domain(Some(domain)),
    }
}

pub(crate) const FIELDS: [&str; 7] = ["limiter", "key", "cost", "domain", "attributes", "peek", "explain"];

type Attributes<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// One request as its body has it.
pub(crate) struct Hit<'a> {
    limiter: Option<Cow<'a, str>>,
    key: Option<Cow<'a, str>>,
    domain: Option<Cow<'a, str>>,
    attributes: Option<Attributes<'a>>,
    cost: u32,
    pub(crate) peek: bool,
    pub(crate) explain: bool,
}

impl Default for Hit<'_> {
    fn default() -> Self {
        Hit { limiter: None, key: None, domain: None, attributes: None, cost: 1, peek: false, explain: false }
    }
}

impl<'a> Hit<'a> {
    fn read(body: &'a [u8]) -> Result<Hit<'a>, Problem> {
        let mut hit = Hit::default();
        json::read(body, &FIELDS, |index, value| hit.take(FIELDS[index], value))?;
        Ok(hit)
    }

    /// Its attributes, as a request borrows them.
    pub(crate) fn attributes(&self) -> Vec<(&str, &[u8])> {
        let named = self.attributes.iter().flatten();
        named.map(|(name, value)| (&**name, value.as_bytes())).collect()
    }

    /// The request; `attributes` are its own.
    pub(crate) fn request<'r>(&'r self, attributes: &'r [(&'r str, &'r [u8])]) -> Result<Request<'r>, Problem> {
        let target = match (&self.limiter, &self.key, &self.attributes) {
            (Some(name), Some(key), None) if self.domain.is_none() => Target::Limiter { name, key: key.as_bytes() },
            (None, None, Some(_)) => Target::Attributes { domain: self.domain.as_deref(), attributes },
            _ => return Err(self.unclear_target()),
        };
        let intent = if self.peek { Intent::Peek } else { Intent::Hit };
        Ok(Request { target, cost: self.cost, intent, explain: self.explain })
    }

    pub(crate) fn take(&mut self, field: &'static str, value: Value<'a>) -> Result<(), Problem> {
        match (field, value) {
            ("attributes", Value::Members(members)) => self.attributes = Some(read_attributes(members)?),
            ("attributes", other) => {
                return Err(wrong_type(
                    "attributes",
                    "an object of strings such as {\"user\":\"u1\"}",
                    &other.scalar(),
                ));
            }
            ("key", value) => self.key = Some(key(field, value.scalar())?),
            ("limiter", value) => self.limiter = Some(name(field, value.scalar())?),
            ("domain", value) => self.domain = Some(name(field, value.scalar())?),
            ("cost", value) => self.cost = cost(&value.scalar())?,
            ("peek", value) => self.peek = truth(field, &value.scalar())?,
            (_, value) => self.explain = truth(field, &value.scalar())?,
        }
        Ok(())
    }

    /// Neither a limiter and a key, nor attributes with or without a domain.
    fn unclear_target(&self) -> Problem {
        let missing = |field, detail| Problem::new(400, "missing_field", detail).field(field);
        match (&self.limiter, &self.key) {
            (Some(_), None) => {
                missing("key", "\"limiter\" needs a \"key\": 1 to 512 bytes, such as a user or an address")
            }
            (None, Some(_)) => {
                missing("limiter", "\"key\" needs a \"limiter\": the name of one; GET /v1/limiters lists them")
            }
            (None, None) => missing(
                "limiter",
                "the request names no limiter and no attributes; send \"limiter\" and \"key\", or \"attributes\" with or without \"domain\"",
            ),
            (Some(_), Some(_)) => Problem::new(
                400,
                "conflicting_fields",
                "\"limiter\" and \"key\" exclude \"domain\" and \"attributes\"; send the one pair or the other",
            )
            .field(if self.attributes.is_some() { "attributes" } else { "domain" }),
        }
    }
}

fn read_attributes<'a>(members: Vec<(Cow<'a, str>, Scalar<'a>)>) -> Result<Attributes<'a>, Problem> {
    if members.is_empty() || members.len() > ATTRIBUTES_MAX {
        let detail = format!("\"attributes\" must have 1 to {ATTRIBUTES_MAX} members, and has {}", members.len());
        return Err(Problem::new(400, "bad_attributes", detail).field("attributes"));
    }
    let mut attributes: Attributes<'a> = Vec::with_capacity(members.len());
    for (name, value) in members {
        if attributes.iter().any(|(other, _)| *other == name) {
            return Err(duplicate_field(&format!("attributes.{name}")));
        }
        let value = key(&format!("attributes.{}", shorten(&name)), value)?;
        attributes.push((name, value));
    }
    Ok(attributes)
}
