//! Events in, and messages out.

use super::http::Failure;
use super::percent::encode;
use super::{Submit, Watch};
use crate::{calendar, exit, human};
use serde::Deserialize;
use std::io::{BufRead, ErrorKind, Write as _};
use std::process::ExitCode;
use std::time::Duration;
use tidegate::Micros;

/// How long to wait before a lost feed is asked for again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What the server says of an event.
#[derive(Deserialize)]
struct Answer {
    clock: Option<u64>,
    code: Option<String>,
    retry_after_ms: Option<u64>,
}

pub(super) fn submit(args: &Submit) -> Result<ExitCode, Failure> {
    let path = format!("/v1/streams/{}/events", encode(args.stream.as_bytes()));
    let reply = args.to.connect()?.post_text(&path, args.event.clone())?;
    let text = if args.to.json {
        reply.body.trim_end().to_owned()
    } else {
        let Answer { clock, code, retry_after_ms } = reply.read()?;
        let what = format!("{} {}", args.stream, human::key(args.event.as_bytes()));
        let wait = retry_after_ms.map_or(String::new(), |ms| format!("; try again in {}", human::duration_ms(ms)));
        match (clock, code.as_deref()) {
            (Some(clock), _) => format!("submitted: {what}, clock {clock}"),
            (None, code) => format!("{}: {what}{wait}", code.unwrap_or("refused")),
        }
    };
    crate::say(&text).map_err(Failure::new)?;
    Ok(if reply.status == 201 { exit::OK } else { exit::NO })
}

/// Goes on until the reader of the output closes its end, or the server refuses.
pub(super) fn watch(args: &Watch) -> Result<ExitCode, Failure> {
    let server = args.to.connect()?;
    let path = format!("/v1/streams/{}/feed", encode(args.stream.as_bytes()));
    let mut from = args.from.map(|clock| clock.to_string());
    let mut feed = server.open(&place(&path, from.as_deref()))?;
    loop {
        if show(feed, args.to.json, &mut from)? == Ended::NobodyReads {
            return Ok(exit::OK);
        }
        crate::say_error("the feed ended; asking for it again every second");
        feed = loop {
            std::thread::sleep(RETRY_AFTER);
            if let Ok(feed) = server.open(&place(&path, from.as_deref())) {
                break feed;
            }
        };
        crate::say_error("the feed is back");
    }
}

/// Where the feed goes on: after a clock value, or after an id, which is a clock value and the epoch.
fn place(path: &str, from: Option<&str>) -> String {
    match from.map(|id| id.split_once('-').unwrap_or((id, ""))) {
        None => path.to_owned(),
        Some((clock, "")) => format!("{path}?from_clock={clock}"),
        Some((clock, epoch)) => format!("{path}?from_clock={clock}&epoch={epoch}"),
    }
}

#[derive(PartialEq)]
enum Ended {
    Feed,
    NobodyReads,
}

/// Shows messages until the feed ends; `reached` follows.
fn show(feed: impl BufRead, json: bool, reached: &mut Option<String>) -> Result<Ended, Failure> {
    let mut is_error = false;
    for line in feed.lines() {
        let Ok(line) = line else { return Ok(Ended::Feed) };
        if let Some(id) = line.strip_prefix("id: ") {
            *reached = Some(id.to_owned());
        } else if let Some(event) = line.strip_prefix("event: ") {
            is_error = event == "error";
        } else if line.is_empty() {
            is_error = false;
        } else if let Some(data) = line.strip_prefix("data: ") {
            if is_error {
                crate::say_error(data);
                continue;
            }
            let text = if json { data.to_owned() } else { readable(data) };
            match writeln!(std::io::stdout(), "{text}") {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Ended::NobodyReads),
                Err(error) => return Err(Failure::new(format!("a message cannot be written to stdout: {error}"))),
            }
        }
    }
    Ok(Ended::Feed)
}

/// A message, as subscribers get it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    clock: u64,
    message_type: String,
    event_time: Option<EventTime>,
    snapshot: Option<Vec<EventTime>>,
}

#[derive(Deserialize)]
struct EventTime {
    event: String,
    time: u64,
    status: Option<String>,
}

/// `7  12:00:03.250  submitted    taco`
fn readable(data: &str) -> String {
    let Ok(Message { clock, message_type, event_time, snapshot }) = serde_json::from_str(data) else {
        return data.to_owned();
    };
    let word = match message_type.as_str() {
        "SUBMITTED_EVENT" => "submitted",
        "PUBLISHED_EVENT" => "published",
        "INVALIDATED_EVENT" => "invalidated",
        _ => "snapshot",
    };
    match (event_time, snapshot) {
        (Some(event), _) => format!("{clock:>8}  {}  {word:<12} {}", clock_face(event.time), name(&event)),
        (None, snapshot) => {
            let snapshot = snapshot.unwrap_or_default();
            let invalid = snapshot.iter().filter(|event| event.status.as_deref() == Some("Invalid")).count();
            let valid = snapshot.len() - invalid;
            let more = if invalid > 0 { format!(", {invalid} invalid") } else { String::new() };
            format!("{clock:>8}                {word:<12} {valid} incubating{more}")
        }
    }
}

fn name(event: &EventTime) -> String {
    human::key(event.event.as_bytes())
}

fn clock_face(ms: u64) -> String {
    let (_, time) = calendar::date_and_time(Micros::from_millis(ms));
    format!("{time}.{:03}", ms % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_for_people() {
        for (data, expected) in [
            (
                r#"{"clock":7,"eventTime":{"event":"taco","time":1700000000250},"messageType":"SUBMITTED_EVENT"}"#,
                "       7  22:13:20.250  submitted    taco",
            ),
            (
                r#"{"clock":8,"snapshot":[{"event":"a","time":1,"status":"Valid"},{"event":"b","time":2,"status":"Invalid"}],"messageType":"KEY_FRAME"}"#,
                "       8                snapshot     1 incubating, 1 invalid",
            ),
            ("what", "what"),
        ] {
            assert_eq!(readable(data), expected);
        }
    }

    #[test]
    fn the_place_in_the_feed_is_kept() {
        let mut reached = Some("3".to_owned());
        assert_eq!(place("/x", reached.as_deref()), "/x?from_clock=3");
        let feed = &b": quiet\n\nid: 4-00000000a1b2c\ndata: {}\n\nevent: error\ndata: too slow\n\n"[..];
        assert!(show(feed, true, &mut reached).is_ok_and(|ended| ended == Ended::Feed));
        assert_eq!(place("/x", reached.as_deref()), "/x?from_clock=4&epoch=00000000a1b2c");
    }
}
