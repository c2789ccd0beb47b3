//! Who changed what: a table for people, a line of JSON each for machines.

use super::Audit;
use super::http::Failure;
use crate::human::{self, Align, Columns};
use crate::{calendar, exit};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::process::ExitCode;
use tidegate::Micros;

/// One page; entries stay as the server wrote them.
#[derive(Deserialize)]
struct Page {
    kept: bool,
    entries: Vec<Box<RawValue>>,
    next: Option<u64>,
}

/// One change.
#[derive(Deserialize)]
struct Entry {
    at: f64,
    who: String,
    what: String,
    #[serde(default)]
    limiter: String,
    #[serde(default)]
    key: String,
    #[serde(default)]
    binary_key: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    why: String,
}

/// Entries of a page: the most that a server gives.
const PAGE: usize = 1_000;

pub(super) fn show(args: &Audit) -> Result<ExitCode, Failure> {
    let (entries, kept) = read(args)?;
    if args.to.json {
        for entry in &entries {
            crate::say(entry.get()).map_err(Failure::new)?;
        }
        return Ok(exit::OK);
    }
    if entries.is_empty() {
        crate::say_error("nothing was changed by hand");
    } else {
        crate::say(table(&entries)?.trim_end()).map_err(Failure::new)?;
    }
    if !kept {
        crate::say_error("these are in the server's memory only; set [audit] path to keep them over a restart");
    }
    Ok(exit::OK)
}

/// The latest entries, newest first, and whether they are kept over a restart.
fn read(args: &Audit) -> Result<(Vec<Box<RawValue>>, bool), Failure> {
    let (server, wanted) = (args.to.connect()?, usize::from(args.most));
    let (mut entries, mut before) = (Vec::new(), String::new());
    loop {
        let most = PAGE.min(wanted - entries.len());
        let page: Page = server.get(&format!("/v1/audit?most={most}{before}"))?.read()?;
        entries.extend(page.entries);
        entries.truncate(wanted);
        match page.next {
            Some(next) if entries.len() < wanted => before = format!("&before={next}"),
            _ => return Ok((entries, page.kept)),
        }
    }
}

fn table(entries: &[Box<RawValue>]) -> Result<String, Failure> {
    let heads = ["WHEN", "WHO", "WHAT", "LIMITER", "KEY", "DETAIL", "WHY"].map(|head| (head, Align::Left));
    let mut table = Columns::new(&heads);
    for entry in entries {
        let unreadable = |error| Failure::new(format!("an entry cannot be read ({error}); is it a tidegate server?"));
        let Entry { at, who, what, limiter, key, binary_key, detail, why } =
            serde_json::from_str(entry.get()).map_err(unreadable)?;
        let key = if key.is_empty() { binary_key } else { human::key(key.as_bytes()) };
        let shown = |text: String| if text.is_empty() { "-".to_owned() } else { human::key(text.as_bytes()) };
        let (date, time) = calendar::date_and_time(whole_seconds(at));
        let when = format!("{date} {time} UTC");
        table.row([when, shown(who), what, shown(limiter), shown(key), shown(detail), shown(why)]);
    }
    Ok(table.to_string())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
fn whole_seconds(at: f64) -> Micros {
    Micros::from_secs((at as u64).min(Micros::MAX.get() / 1_000_000))
}
