//! Counting and asking as separate steps: `…/keys/K/increment` and `…/keys/K/analyze`.

use super::door::Door;
use super::fields::{seconds_since_epoch, whole};
use super::json;
use super::keys::push_key;
use super::limiters::name;
use super::percent::{Plus, decode};
use super::problem::Problem;
use super::reply::{Reply, json_reply, seconds};
use tidegate::{OnFailure, Status};

/// Counts `{"count","timestamp"}`; both have defaults, and so has the body.
pub(crate) async fn increment(door: &Door, limiter: &str, key: &str, body: &[u8]) -> Result<Reply, Problem> {
    let (mut count, mut timestamp) = (1, None);
    let body = if body.is_empty() { b"{}" } else { body };
    json::read(body, &["count", "timestamp"], |index, value| {
        match index {
            0 => count = whole("count", "bad_count", &value.scalar())?,
            _ => timestamp = Some(seconds_since_epoch("timestamp", &value.scalar())?),
        }
        Ok(())
    })?;
    let (name, key) = (name(limiter)?, decode(key, Plus::Plus, "key")?);
    let told = door.gate.action(&name, &key).count(count, timestamp).await?;
    let mut text = format!("{{\"limiter\":\"{name}\",");
    push_key(&mut text, &key);
    let (timestamp, counted) = (seconds(told.timestamp), told.counted);
    text.push_str(&format!(",\"count\":{count},\"timestamp\":{timestamp},\"counted\":{counted}"));
    push_degraded(&mut text, told.degraded);
    text.push('}');
    Ok(json_reply(text))
}

/// Has the key reached a limit? Then it is blocked.
pub(crate) async fn analyze(door: &Door, limiter: &str, key: &str) -> Result<Reply, Problem> {
    let (name, key) = (name(limiter)?, decode(key, Plus::Plus, "key")?);
    let analyzed = door.gate.action(&name, &key).analyze().await?;
    let mut text = format!("{{\"limiter\":\"{name}\",");
    push_key(&mut text, &key);
    let at = seconds(analyzed.at);
    text.push_str(&match analyzed.status {
        Status::Ok => format!(",\"status\":\"ok\",\"timestamp\":{at}"),
        Status::Denied => format!(",\"status\":\"limited\",\"timestamp\":{at}"),
        Status::Blocked { until } => {
            format!(",\"status\":\"blocked\",\"timestamp\":{at},\"blocked_until\":{}", seconds(until))
        }
        Status::Limited(event) => format!(
            ",\"status\":\"limited\",\"sum\":{},\"limit\":\"{}\",\"timestamp\":{at},\"blocked_until\":{}",
            event.sum,
            event.check,
            seconds(event.blocked_until)
        ),
    });
    push_degraded(&mut text, analyzed.degraded);
    text.push('}');
    Ok(json_reply(text))
}

/// How it was decided without the store, if it was.
fn push_degraded(text: &mut String, degraded: Option<OnFailure>) {
    if let Some(mode) = degraded {
        text.push_str(&format!(",\"degraded\":\"{}\"", mode.as_str()));
    }
}
