//! `tidegate override`: other limits for one key, while the server runs.

use super::asking::{key_path, print};
use super::http::Failure;
use super::percent::encode;
use super::show::instant;
use super::{ChangeKey, Of, OfKey, To};
use crate::exit;
use crate::human::{self, Align, Columns};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;

/// What to do with limits of single keys.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Override {
    /// Give a key other limits, as many as its limiter has
    Set(Set),
    /// Let the limiter's own limits hold for a key again
    Clear(ChangeKey),
    /// The keys with limits of their own
    List(Of),
}

/// Other limits for a key.
#[derive(clap::Args, Debug)]
pub(crate) struct Set {
    #[command(flatten)]
    of: OfKey,
    /// The limits, by position, such as "100 per minute"
    #[arg(required = true)]
    limits: Vec<String>,
    /// For how long, such as 30s, 10m or 2h; left out: until they are cleared
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<String>,
    /// Why; kept with the limits, and in the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

type Answered = Result<ExitCode, Failure>;

impl Override {
    pub(super) fn to(&self) -> &To {
        match self {
            Override::Set(set) => &set.of.to,
            Override::Clear(change) => &change.of.to,
            Override::List(of) => &of.to,
        }
    }
}

pub(super) fn run(command: &Override) -> Answered {
    match command {
        Override::Set(set) => self::set(set),
        Override::Clear(change) => clear(change),
        Override::List(of) => list(of),
    }
}

fn set(Set { of, limits, span, reason }: &Set) -> Answered {
    #[derive(Serialize)]
    struct Body<'a> {
        limits: &'a [String],
        #[serde(skip_serializing_if = "Option::is_none")]
        r#for: Option<&'a str>,
    }
    #[derive(Deserialize)]
    struct Done {
        until: Option<serde_json::Number>,
    }
    let body = Body { limits, r#for: span.as_deref() };
    let body = serde_json::to_string(&body).map_err(|error| Failure::new(error.to_string()))?;
    let server = of.to.connect()?.because(reason.as_deref());
    let reply = server.put(&format!("{}/limits", key_path(of)), body)?;
    let Done { until } = reply.read()?;
    print(&of.to, &reply.body, || {
        let until =
            until.as_ref().map_or("until it is cleared".to_owned(), |until| format!("until {}", instant(until)));
        format!("overridden: {} {}, {}, {until}", of.limiter, human::key(of.key.as_bytes()), limits.join(", "))
    })?;
    Ok(exit::OK)
}

fn clear(ChangeKey { of, reason }: &ChangeKey) -> Answered {
    #[derive(Deserialize)]
    struct Done {
        cleared: bool,
    }
    let reply = of.to.connect()?.because(reason.as_deref()).delete(&format!("{}/limits", key_path(of)))?;
    let Done { cleared } = reply.read()?;
    print(&of.to, &reply.body, || {
        let done = if cleared { "cleared" } else { "no override" };
        format!("{done}: {} {}, the limiter's own limits hold", of.limiter, human::key(of.key.as_bytes()))
    })?;
    Ok(exit::OK)
}

#[derive(Deserialize)]
struct Page {
    overrides: Vec<One>,
}

#[derive(Deserialize)]
struct One {
    #[serde(default)]
    key: String,
    #[serde(default)]
    binary_key: String,
    limits: Vec<String>,
    until: Option<serde_json::Number>,
    reason: Option<String>,
    fits: bool,
}

fn list(of: &Of) -> Answered {
    let path = format!("/v1/limiters/{}/keys?state=overridden", encode(of.limiter.as_bytes()));
    let reply = of.to.connect()?.get(&path)?;
    let page: Page = reply.read()?;
    if page.overrides.is_empty() && !of.to.json {
        crate::say_error(&format!("no key has limits of its own at {}", of.limiter));
        return Ok(exit::OK);
    }
    print(&of.to, &reply.body, || {
        let mut columns = Columns::new(&[
            ("KEY", Align::Left),
            ("LIMITS", Align::Left),
            ("UNTIL", Align::Left),
            ("WHY", Align::Left),
        ]);
        for one in &page.overrides {
            let key = if one.key.is_empty() { one.binary_key.clone() } else { human::key(one.key.as_bytes()) };
            let until = one.until.as_ref().map_or("cleared".to_owned(), instant);
            let limits = one.limits.join(", ");
            let limits = if one.fits { limits } else { format!("{limits} (does not fit the limiter)") };
            columns.row([key, limits, until, one.reason.clone().unwrap_or_default()]);
        }
        columns.to_string()
    })?;
    Ok(exit::OK)
}
