//! The keys of a limiter that come first: hit most, denied most, blocked longest.

use super::bounds::{TOP_KEYS_DEFAULT, TOP_KEYS_MAX};
use super::door::Door;
use super::keys::{bad, push_key};
use super::limiters::name;
use super::problem::Problem;
use super::query;
use super::reply::{Reply, json_reply, seconds};
use tidegate::TopBy;

pub(crate) fn answer(door: &Door, limiter: &str, query: Option<&str>) -> Result<Reply, Problem> {
    let [by, most] = query::read(query, ["by", "n"])?;
    let most = match most.as_deref() {
        None => TOP_KEYS_DEFAULT,
        Some(text) => query::number(text, "n", 1, TOP_KEYS_MAX as u64)?.try_into().unwrap_or(TOP_KEYS_MAX),
    };
    let limiter = name(limiter)?;
    match by.as_deref() {
        None | Some(b"hits") => counted(door, &limiter, ("hits", TopBy::Hits), most),
        Some(b"denials") => counted(door, &limiter, ("denials", TopBy::Denials), most),
        Some(b"blocked") => blocked(door, &limiter, most),
        Some(other) => Err(bad("bad_by", "by", other, "must be hits, denials or blocked")),
    }
}

fn counted(door: &Door, limiter: &str, (word, by): (&str, TopBy), most: usize) -> Result<Reply, Problem> {
    let top = door.gate.top(limiter, by, most)?;
    let keys = top.keys.iter().map(|key| (&*key.key, format!("\"count\":{},\"error\":{}", key.count, key.error)));
    let head = format!("{{\"by\":\"{word}\",\"since\":{}", seconds(top.since));
    Ok(json_reply(with_keys(head, keys)))
}

fn blocked(door: &Door, limiter: &str, most: usize) -> Result<Reply, Problem> {
    let longest = door.gate.longest_blocked(limiter, most)?;
    let keys = longest.iter().map(|(until, key)| (&**key, format!("\"blocked_until\":{}", seconds(*until))));
    Ok(json_reply(with_keys("{\"by\":\"blocked\"".to_owned(), keys)))
}

fn with_keys<'k>(mut body: String, keys: impl Iterator<Item = (&'k [u8], String)>) -> String {
    body.push_str(",\"keys\":[");
    for (index, (key, figures)) in keys.enumerate() {
        body.push_str(if index > 0 { ",{" } else { "{" });
        push_key(&mut body, key);
        body.push(',');
        body.push_str(&figures);
        body.push('}');
    }
    body.push_str("]}");
    body
}
