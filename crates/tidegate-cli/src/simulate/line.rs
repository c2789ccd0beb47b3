//! One line of a trace: which request it is.
//!
//! Only the words are checked here, each with its bound; whether a limiter exists is the engine's
//! to say. Invariant: a field that has no meaning for the line's op is an error, but for `key`,
//! which is ignored where an op needs none.

use super::attributes::{self, Pairs};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use tidegate::{Intent, Limit, Micros, text};
use tidegate_core::PERIOD_MAX;

type Raw<'a> = Option<&'a RawValue>;

/// The fields as they stand.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"at\":0.5,\"limiter\":\"api\",\"key\":\"u1\"}")]
struct Fields<'a> {
    #[serde(borrow)]
    at: Raw<'a>,
    #[serde(borrow, default, deserialize_with = "even_null")]
    op: Raw<'a>,
    #[serde(borrow)]
    limiter: Raw<'a>,
    #[serde(borrow)]
    key: Raw<'a>,
    #[serde(borrow, default, deserialize_with = "even_null")]
    cost: Raw<'a>,
    #[serde(borrow)]
    domain: Raw<'a>,
    #[serde(borrow)]
    attributes: Raw<'a>,
    #[serde(borrow, rename = "for")]
    span: Raw<'a>,
    #[serde(borrow)]
    count: Raw<'a>,
    #[serde(borrow)]
    timestamp: Raw<'a>,
    #[serde(borrow)]
    limits: Raw<'a>,
    #[serde(borrow)]
    udp: Raw<'a>,
    #[serde(borrow)]
    stream: Raw<'a>,
    #[serde(borrow)]
    submit: Raw<'a>,
}

/// A field that is there, be it `null`: what would be a default must be left out, not be emptied.
fn even_null<'a, D: serde::Deserializer<'a>>(value: D) -> Result<Raw<'a>, D::Error> {
    <&RawValue>::deserialize(value).map(Some)
}

/// A line, read.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// The time's text, for its echo.
    pub(super) at_text: &'a str,
    pub(super) at: Micros,
    pub(super) ask: Ask<'a>,
}

/// What the line asks for.
#[derive(Debug)]
pub(super) enum Ask<'a> {
    /// A hit or a peek; `op` is `Some` when the line names it.
    Decide {
        target: Subject<'a>,
        cost: u32,
        intent: Intent,
        op: Option<&'static str>,
    },
    Block {
        limiter: Cow<'a, str>,
        key: Cow<'a, str>,
        span: Micros,
    },
    Unblock {
        limiter: Cow<'a, str>,
        key: Cow<'a, str>,
    },
    UnblockAll {
        limiter: Cow<'a, str>,
    },
    Increment {
        limiter: Cow<'a, str>,
        key: Cow<'a, str>,
        count: u32,
        /// `None`: the line's own time.
        timestamp: Option<Micros>,
    },
    Analyze {
        limiter: Cow<'a, str>,
        key: Cow<'a, str>,
    },
    Override {
        limiter: Cow<'a, str>,
        key: Cow<'a, str>,
        limits: Vec<Limit>,
        span: Option<Micros>,
    },
    ClearOverride {
        limiter: Cow<'a, str>,
        key: Cow<'a, str>,
    },
    Enable {
        limiter: Cow<'a, str>,
        yes: bool,
    },
    List {
        limiter: Cow<'a, str>,
        blocked: bool,
    },
    /// A datagram to the UDP door.
    Udp(Cow<'a, str>),
    /// A stream's time, and an event for it.
    Stream {
        name: Cow<'a, str>,
        submit: Option<Cow<'a, str>>,
    },
}

/// The key that a decision concerns: named, or made of attributes.
#[derive(Debug)]
pub(super) enum Subject<'a> {
    Limiter { name: Cow<'a, str>, key: Cow<'a, str> },
    Domain { domain: Option<Cow<'a, str>>, attributes: Pairs<'a> },
}

/// Reads one line.
///
/// # Errors
/// A sentence with the field, the value, the bound and the remedy.
pub(super) fn read(line: &str) -> Result<Line<'_>, String> {
    // An array would do for the fields in order, which no trace intends.
    if line.trim_start().starts_with('[') {
        return Err("this is a JSON array; write one object on each line".to_owned());
    }
    let fields: Fields<'_> = serde_json::from_str(line).map_err(|error| json_problem(&error))?;
    let at_text = fields.at.ok_or("at is missing; add the time in seconds, such as \"at\":0.5")?.get();
    let at = super::at::parse(at_text).map_err(|error| format!("at: {} {error}", shown(at_text)))?;
    Ok(Line { at_text, at, ask: fields.ask()? })
}

impl<'a> Fields<'a> {
    fn ask(&self) -> Result<Ask<'a>, String> {
        self.refuse_of_streams()?;
        if let Some(raw) = self.udp {
            return self.datagram(raw);
        }
        if let Some(raw) = self.stream {
            return self.event(raw);
        }
        let op = self.op.map(|raw| string("op", raw)).transpose()?;
        match op.as_deref() {
            None => self.decide(Intent::Hit, None),
            Some("hit") => self.decide(Intent::Hit, Some("hit")),
            Some("peek") => self.decide(Intent::Peek, Some("peek")),
            Some(op) => self.administer(op),
        }
    }

    fn datagram(&self, raw: &'a RawValue) -> Result<Ask<'a>, String> {
        self.refuse_requests("a line with udp has at and udp only")?;
        refuse("stream", self.stream, "a line with udp has at and udp only")?;
        string("udp", raw).map(Ask::Udp)
    }

    fn event(&self, raw: &'a RawValue) -> Result<Ask<'a>, String> {
        self.refuse_requests("a line with stream has at, stream and submit only")?;
        let submit = self.submit.map(|raw| string("submit", raw)).transpose()?;
        Ok(Ask::Stream { name: string("stream", raw)?, submit })
    }

    /// Fields of requests to limiters.
    fn refuse_requests(&self, why: &str) -> Result<(), String> {
        let fields = [
            ("op", self.op),
            ("limiter", self.limiter),
            ("key", self.key),
            ("cost", self.cost),
            ("domain", self.domain),
            ("attributes", self.attributes),
            ("for", self.span),
            ("count", self.count),
            ("timestamp", self.timestamp),
            ("limits", self.limits),
        ];
        fields.into_iter().try_for_each(|(name, raw)| refuse(name, raw, why))
    }

    fn decide(&self, intent: Intent, op: Option<&'static str>) -> Result<Ask<'a>, String> {
        refuse("for", self.span, "only ops \"block\" and \"override\" have it")?;
        refuse("limits", self.limits, "only op \"override\" has it")?;
        self.refuse_of_increment()?;
        let cost = self.cost.map_or(Ok(1), |raw| number("cost", raw))?;
        Ok(Ask::Decide { target: self.subject()?, cost, intent, op })
    }

    fn subject(&self) -> Result<Subject<'a>, String> {
        if self.limiter.is_some() {
            refuse("domain", self.domain, "a line names a limiter and a key, or a domain and attributes")?;
            refuse("attributes", self.attributes, "a line names a limiter and a key, or a domain and attributes")?;
            return Ok(Subject::Limiter { name: self.limiter()?, key: self.key()? });
        }
        let Some(raw) = self.attributes else {
            return Err(match self.domain {
                Some(_) => "attributes is missing; add \"attributes\":{\"ip\":\"192.0.2.1\"}".to_owned(),
                None => "limiter is missing; add \"limiter\" and \"key\", or \"attributes\"".to_owned(),
            });
        };
        let domain = self.domain.map(|raw| string("domain", raw)).transpose()?;
        Ok(Subject::Domain { domain, attributes: attributes::read(raw.get())? })
    }

    fn administer(&self, op: &str) -> Result<Ask<'a>, String> {
        if !OPS[2..].contains(&op) {
            return Err(unknown_op(op));
        }
        refuse("cost", self.cost, "only hits and peeks have it")?;
        refuse("domain", self.domain, "this op needs a limiter")?;
        refuse("attributes", self.attributes, "this op needs a limiter")?;
        if !["block", "override"].contains(&op) {
            refuse("for", self.span, "only ops \"block\" and \"override\" have it")?;
        }
        if op != "override" {
            refuse("limits", self.limits, "only op \"override\" has it")?;
        }
        if op != "increment" {
            self.refuse_of_increment()?;
        }
        let limiter = self.limiter()?;
        Ok(match op {
            "block" => Ask::Block { limiter, key: self.key()?, span: self.span()? },
            "unblock" => Ask::Unblock { limiter, key: self.key()? },
            "unblock_all" => Ask::UnblockAll { limiter },
            "override" => {
                let span = self.span.map(|_| self.span()).transpose()?;
                Ask::Override { limiter, key: self.key()?, limits: self.limits()?, span }
            }
            "clear_override" => Ask::ClearOverride { limiter, key: self.key()? },
            "increment" => {
                let count = self.count.map_or(Ok(1), |raw| number("count", raw))?;
                Ask::Increment { limiter, key: self.key()?, count, timestamp: self.timestamp()? }
            }
            "analyze" => Ask::Analyze { limiter, key: self.key()? },
            "keys" | "blocked" => Ask::List { limiter, blocked: op == "blocked" },
            _ => Ask::Enable { limiter, yes: op == "enable" },
        })
    }

    fn refuse_of_increment(&self) -> Result<(), String> {
        let fields = [("count", self.count), ("timestamp", self.timestamp)];
        fields.into_iter().try_for_each(|(name, raw)| refuse(name, raw, "only op \"increment\" has it"))
    }

    fn timestamp(&self) -> Result<Option<Micros>, String> {
        let Some(raw) = self.timestamp else { return Ok(None) };
        let time = super::at::parse(raw.get());
        time.map(Some).map_err(|error| format!("timestamp: {} {error}", shown(raw.get())))
    }

    fn refuse_of_streams(&self) -> Result<(), String> {
        if self.stream.is_none() {
            refuse("submit", self.submit, "only a line with stream has it")?;
        }
        Ok(())
    }

    fn limiter(&self) -> Result<Cow<'a, str>, String> {
        let raw = self.limiter.ok_or("limiter is missing; add its name, such as \"limiter\":\"api\"")?;
        string("limiter", raw)
    }

    fn key(&self) -> Result<Cow<'a, str>, String> {
        let raw = self.key.ok_or("key is missing; add a string of 1 to 512 bytes, such as \"key\":\"u1\"")?;
        string("key", raw)
    }

    fn limits(&self) -> Result<Vec<Limit>, String> {
        const REMEDY: &str = "write an array such as [\"100 per minute\"]";
        let raw = self.limits.ok_or("limits is missing; add \"limits\":[\"100 per minute\"]")?;
        let texts: Vec<Str<'_>> = serde_json::from_str(raw.get())
            .map_err(|_| format!("limits: {} is no array of strings; {REMEDY}", shown(raw.get())))?;
        let limit = |text: &Str<'_>| text.0.parse().map_err(|error| format!("limits: {}: {error}", shown(&text.0)));
        texts.iter().map(limit).collect()
    }

    fn span(&self) -> Result<Micros, String> {
        let raw = self.span.ok_or("for is missing; add how long, such as \"for\":\"10m\"")?;
        match text::duration(&string("for", raw)?) {
            Ok(span) if !span.is_zero() && span <= PERIOD_MAX => Ok(span),
            Ok(span) => Err(format!("for: {span} is outside 1ms to {PERIOD_MAX}; choose one inside")),
            Err(message) => Err(format!("for: {message}")),
        }
    }
}

/// Every op; the first two are decisions.
const OPS: [&str; 13] = [
    "hit",
    "peek",
    "increment",
    "analyze",
    "block",
    "unblock",
    "unblock_all",
    "override",
    "clear_override",
    "enable",
    "disable",
    "keys",
    "blocked",
];

fn unknown_op(op: &str) -> String {
    format!("op: \"{}\" is unknown; use one of {}", op.escape_debug(), OPS.join(", "))
}

fn refuse(name: &str, raw: Raw<'_>, why: &str) -> Result<(), String> {
    raw.map_or(Ok(()), |_| Err(format!("{name} does not belong here: {why}; leave it out")))
}

fn string<'a>(name: &str, raw: &'a RawValue) -> Result<Cow<'a, str>, String> {
    serde_json::from_str::<Str<'a>>(raw.get())
        .map(|text| text.0)
        .map_err(|_| format!("{name}: {} is not a string; write it in quotes", shown(raw.get())))
}

fn number(name: &str, raw: &RawValue) -> Result<u32, String> {
    whole(raw.get()).ok_or_else(|| {
        format!("{name}: {} is not a whole number from 0 to {}; write one such as 1", shown(raw.get()), u32::MAX)
    })
}

/// JSON does not tell 2.0 from 2.
fn whole(text: &str) -> Option<u32> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let number = text.parse::<f64>().ok().filter(|number| number.fract() == 0.0)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
    (0.0..=f64::from(u32::MAX)).contains(&number).then_some(number as u32)
}

/// A value in a message: short, and on one line.
fn shown(raw: &str) -> String {
    const SHOWN_MAX: usize = 60;
    match raw.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &raw[..end]),
        None => raw.to_owned(),
    }
}

fn json_problem(error: &serde_json::Error) -> String {
    let what = without_position(error);
    if error.is_data() {
        return format!("{what}; leave it out, or correct it");
    }
    format!("this is not JSON (column {}): {what}; write one object on each line", error.column())
}

pub(super) fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

/// A string that is borrowed from the line where it has no escapes.
#[derive(Deserialize)]
pub(super) struct Str<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);
