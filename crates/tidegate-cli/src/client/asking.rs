//! What each command asks, and what it does with the answer.

use super::http::{Failure, Reply};
use super::percent::encode;
use super::show::{self, Analysis, Answer, Counted, Limiters};
use super::{Ask, Block, Change, ChangeKey, Increment, Of, OfKey, To};
use crate::{exit, human};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;

type Answered = Result<ExitCode, Failure>;

/// The body of a question.
#[derive(Serialize, Default)]
struct Question<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limiter: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a str>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    attributes: Map<String, Value>,
    cost: u32,
    peek: bool,
    explain: bool,
}

pub(super) fn hit(ask: &Ask) -> Answered {
    let (Some(limiter), Some(key)) = (&ask.limiter, &ask.key) else { return by_attributes(ask, false) };
    let Some(text) = key.to_str() else {
        return Err(Failure::new(
            "the key is not UTF-8, which a hit over HTTP must be; encode it, in hexadecimal say".into(),
        ));
    };
    let question = Question { limiter: Some(limiter), key: Some(text), cost: ask.cost, ..Question::default() };
    let reply = put(&ask.to, &question)?;
    decided(&ask.to, &reply, |answer| show::answer(&format!("{limiter} {}", human::key(key.as_bytes())), answer))
}

pub(super) fn peek(ask: &Ask) -> Answered {
    let (Some(limiter), Some(key)) = (&ask.limiter, &ask.key) else { return by_attributes(ask, true) };
    let path = format!("{}?cost={}", path_of(limiter, key.as_bytes()), ask.cost);
    let reply = ask.to.connect()?.get(&path)?;
    decided(&ask.to, &reply, |answer| show::answer(&format!("{limiter} {}", human::key(key.as_bytes())), answer))
}

/// Asks every limiter that the attributes meet; a peek tells what each has to say.
fn by_attributes(ask: &Ask, peek: bool) -> Answered {
    let mut attributes = Map::new();
    for (name, value) in &ask.attributes {
        if attributes.insert(name.clone(), value.as_str().into()).is_some() {
            return Err(Failure::new(format!(
                "the attribute \"{}\" is there twice; write it once",
                name.escape_debug()
            )));
        }
    }
    let domain = ask.domain.as_deref();
    let question = Question { domain, attributes, cost: ask.cost, peek, explain: peek, ..Question::default() };
    let reply = put(&ask.to, &question)?;
    decided(&ask.to, &reply, |answer| show::answer_by_attributes(&ask.attributes, domain, answer))
}

fn put(to: &To, question: &Question<'_>) -> Result<Reply, Failure> {
    let body = serde_json::to_string(question).map_err(|error| Failure::new(error.to_string()))?;
    to.connect()?.post("/v1/hit", body)
}

fn decided(to: &To, reply: &Reply, human: impl FnOnce(&Answer) -> String) -> Answered {
    let answer: Answer = reply.read()?;
    print(to, &reply.body, || human(&answer))?;
    Ok(if reply.status == 200 { exit::OK } else { exit::NO })
}

pub(super) fn increment(increment: &Increment) -> Answered {
    #[derive(Serialize)]
    struct Body<'a> {
        count: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        timestamp: Option<&'a serde_json::Number>,
    }
    let of = &increment.of;
    let body = serde_json::to_string(&Body { count: increment.count, timestamp: increment.timestamp.as_ref() });
    let body = body.map_err(|error| Failure::new(error.to_string()))?;
    let reply = of.to.connect()?.post(&format!("{}/increment", key_path(of)), body)?;
    let counted: Counted = reply.read()?;
    print(&of.to, &reply.body, || show::counted(&of.limiter, of.key.as_bytes(), &counted))?;
    Ok(exit::OK)
}

pub(super) fn analyze(of: &OfKey) -> Answered {
    let reply = of.to.connect()?.post(&format!("{}/analyze", key_path(of)), String::new())?;
    let analysis: Analysis = reply.read()?;
    print(&of.to, &reply.body, || show::analysis(&of.limiter, of.key.as_bytes(), &analysis))?;
    Ok(if analysis.is_ok() { exit::OK } else { exit::NO })
}

pub(super) fn limiters(to: &To) -> Answered {
    let reply = to.connect()?.get("/v1/limiters")?;
    let limiters: Limiters = reply.read()?;
    print(to, &reply.body, || show::limiters(&limiters))?;
    Ok(exit::OK)
}

/// One page of keys, or all of them.
#[derive(Deserialize, Serialize, Default)]
struct Keys {
    keys: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    binary_keys: Vec<String>,
    next: Option<String>,
}

/// Keys of a page: the most that a server gives.
const PAGE: usize = 1_000;

pub(super) fn keys(of: &Of, state: &str) -> Answered {
    let server = of.to.connect()?;
    let mut all = Keys::default();
    loop {
        let after = all.next.take().map_or(String::new(), |next| format!("&after={next}"));
        let path = format!("/v1/limiters/{}/keys?state={state}&most={PAGE}{after}", encode(of.limiter.as_bytes()));
        let page: Keys = server.get(&path)?.read()?;
        all.keys.extend(page.keys);
        all.binary_keys.extend(page.binary_keys);
        all.next = page.next;
        if all.next.is_none() {
            break;
        }
    }
    all.keys.sort_unstable();
    all.binary_keys.sort_unstable();
    let json = serde_json::to_string(&all).map_err(|error| Failure::new(error.to_string()))?;
    if all.keys.is_empty() && all.binary_keys.is_empty() && !of.to.json {
        crate::say_error(&format!("no key is {state} at {}", of.limiter));
        return Ok(exit::OK);
    }
    print(&of.to, &json, || show::keys(&all.keys, &all.binary_keys))?;
    Ok(exit::OK)
}

pub(super) fn block(block: &Block) -> Answered {
    let Block { of, span, reason } = block;
    #[derive(Serialize)]
    struct For<'a> {
        r#for: &'a str,
    }
    #[derive(Deserialize)]
    struct Blocked {
        blocked_until: serde_json::Number,
    }
    let body = serde_json::to_string(&For { r#for: span }).map_err(|error| Failure::new(error.to_string()))?;
    let server = of.to.connect()?.because(reason.as_deref());
    let reply = server.put(&format!("{}/block", key_path(of)), body)?;
    let blocked: Blocked = reply.read()?;
    print(&of.to, &reply.body, || show::blocked(&of.limiter, of.key.as_bytes(), span, &blocked.blocked_until))?;
    Ok(exit::OK)
}

pub(super) fn unblock(ChangeKey { of, reason }: &ChangeKey) -> Answered {
    #[derive(Deserialize)]
    struct Unblocked {
        unblocked: bool,
    }
    let server = of.to.connect()?.because(reason.as_deref());
    let reply = server.delete(&format!("{}/block", key_path(of)))?;
    let Unblocked { unblocked } = reply.read()?;
    print(&of.to, &reply.body, || show::unblocked(&of.limiter, of.key.as_bytes(), unblocked))?;
    Ok(exit::OK)
}

pub(super) fn unblock_all(Change { of, reason }: &Change) -> Answered {
    #[derive(Deserialize)]
    struct Unblocked {
        unblocked: u64,
    }
    let path = format!("/v1/limiters/{}/blocks", encode(of.limiter.as_bytes()));
    let reply = of.to.connect()?.because(reason.as_deref()).delete(&path)?;
    let Unblocked { unblocked } = reply.read()?;
    print(&of.to, &reply.body, || show::unblocked_all(&of.limiter, unblocked))?;
    Ok(exit::OK)
}

pub(super) fn switch(Change { of, reason }: &Change, to: &str) -> Answered {
    let path = format!("/v1/limiters/{}/{to}", encode(of.limiter.as_bytes()));
    let reply = of.to.connect()?.because(reason.as_deref()).post(&path, String::new())?;
    print(&of.to, &reply.body, || format!("{} is {to}d", of.limiter))?;
    Ok(exit::OK)
}

pub(super) fn key_path(of: &OfKey) -> String {
    path_of(&of.limiter, of.key.as_bytes())
}

fn path_of(limiter: &str, key: &[u8]) -> String {
    format!("/v1/limiters/{}/keys/{}", encode(limiter.as_bytes()), encode(key))
}

pub(super) fn print(to: &To, json: &str, human: impl FnOnce() -> String) -> Result<(), Failure> {
    let said = if to.json { crate::say(json) } else { crate::say(human().trim_end()) };
    said.map_err(Failure::new)
}
