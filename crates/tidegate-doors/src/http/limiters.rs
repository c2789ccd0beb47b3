//! `/v1/limiters`, and one limiter.

use super::door::Door;
use super::json::{push_list, push_string};
use super::percent::{Plus, decode};
use super::problem::Problem;
use super::reply::{Reply, json_reply};
use crate::access::{Caller, Scope, What};
use tidegate::{Algorithm, Counts, LimiterInfo};

/// Those that the caller may read.
pub(crate) fn list(door: &Door, caller: &Caller) -> Reply {
    json_reply(format!("{{\"limiters\":{}}}", array(door, caller)))
}

pub(crate) fn array(door: &Door, caller: &Caller) -> String {
    let mut body = String::from("[");
    let all = door.gate.limiters();
    let shown = all.iter().filter(|info| caller.may(Scope::Read, What::Limiter(&info.spec.name)));
    for (index, info) in shown.enumerate() {
        if index > 0 {
            body.push(',');
        }
        push_limiter(&mut body, info);
    }
    body.push(']');
    body
}

pub(crate) fn get(door: &Door, limiter: &str) -> Result<Reply, Problem> {
    let info = door.gate.limiter_info(&name(limiter)?)?;
    let mut body = String::new();
    push_limiter(&mut body, &info);
    Ok(json_reply(body))
}

/// A limiter's name from its piece of the path. Bytes that are no text are no limiter's name.
pub(crate) fn name(piece: &str) -> Result<String, Problem> {
    let bytes = decode(piece, Plus::Plus, "limiter")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn push_limiter(body: &mut String, info: &LimiterInfo) {
    let spec = &info.spec;
    body.push_str(&format!(
        "{{\"name\":\"{}\",\"enabled\":{},\"algorithm\":\"{}\",\"aligned\":{},\"limits\":",
        spec.name,
        info.enabled,
        spec.rules.algorithm().name(),
        spec.rules.algorithm() == Algorithm::AlignedWindow
    ));
    // A limit that each call brings is none of the limiter's own.
    let limits = if spec.limit_per_call { &[] } else { spec.rules.limits() };
    push_list(body, limits.iter().map(ToString::to_string));
    if spec.rules.algorithm() == Algorithm::Buckets {
        let grid = spec.rules.grid();
        body.push_str(&format!(",\"resolution\":\"{}\",\"history\":\"{}\"", grid.resolution(), grid.history()));
    }
    body.push_str(",\"domain\":");
    match &spec.domain {
        Some(domain) => push_string(body, domain),
        None => body.push_str("null"),
    }
    body.push_str(",\"by\":");
    push_list(body, spec.by.iter().cloned());
    if spec.is_by_address() {
        body.push_str(&format!(",\"ipv6_prefix\":{}", spec.ipv6_prefix.bits()));
    }
    body.push_str(&format!(
        ",\"names\":{},\"honour_disable\":{},\"entries\":{},\"bytes\":{}",
        spec.names,
        spec.honour_disable,
        number_or_null(info.entries),
        number_or_null(info.bytes),
    ));
    push_counts(body, &info.counts);
    body.push_str(&format!(",\"role\":\"{}\"", if spec.candidate { "candidate" } else { "enforced" }));
    if let (Some(rules), Some(counts)) = (&spec.candidate_rules, &info.candidate) {
        body.push_str(",\"candidate\":{\"limits\":");
        push_list(body, rules.limits().iter().map(ToString::to_string));
        push_counts(body, counts);
        body.push('}');
    }
    body.push('}');
}

fn push_counts(body: &mut String, counts: &Counts) {
    body.push_str(&format!(
        ",\"counts\":{{\"allowed\":{},\"denied\":{},\"peeked\":{},\"sketched_allowed\":{},\"sketched_denied\":{}}}",
        counts.allowed, counts.denied, counts.peeked, counts.sketched_allowed, counts.sketched_denied
    ));
}

fn number_or_null(number: Option<usize>) -> String {
    number.map_or("null".to_owned(), |number| number.to_string())
}
