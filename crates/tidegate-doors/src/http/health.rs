//! `/readyz`: what requests get.
//!
//! It is 200 as long as decisions are made, and says what is missing meanwhile: the store, a stream, the disk. The reasons are short and
//! have no paths and addresses in them; those are in the log.

use super::door::Door;
use super::json::push_list;
use super::problem::Problem;
use super::reply::{Reply, json_reply};
use std::sync::atomic::Ordering::Relaxed;
use tidegate::StoreHealth;

pub(crate) fn readyz(door: &Door) -> Result<Reply, Problem> {
    if door.draining.load(Relaxed) {
        return Err(Problem::new(503, "draining", "the door is closing; ask another replica"));
    }
    Ok(json_reply(text(door)))
}

/// The same for whoever knows that the door is open.
pub(crate) fn text(door: &Door) -> String {
    let (store, mut reasons, mut failing) = (door.gate.store_health(), Vec::new(), Vec::new());
    if let Some(error) = store.as_ref().and_then(|store| store.error.as_ref()) {
        reasons.push(format!("decisions are made without the store: {}", error.label()));
    }
    reasons.extend(door.gate.save_failure().map(|why| format!("state is not saved: {why}")));
    reasons.extend(door.settings.audit.failure().map(|why| format!("the audit is not kept: {why}")));
    for stream in door.settings.streams.all() {
        if let Some(failure) = stream.failure() {
            let name = &stream.spec().name;
            reasons.push(format!("stream {name}: {}", failure.what));
            failing.push(name.clone());
        }
    }
    body(store.as_ref(), failing, reasons)
}

fn body(store: Option<&StoreHealth>, failing: Vec<String>, reasons: Vec<String>) -> String {
    let status = if reasons.is_empty() { "ok" } else { "degraded" };
    let mut body = format!("{{\"status\":\"{status}\"");
    if let Some(store) = store {
        body.push_str(&format!(",\"store\":{{\"answers\":{}", store.error.is_none()));
        if let Some(error) = &store.error {
            body.push_str(&format!(",\"error\":\"{}\"", error.label()));
        }
        body.push_str(&format!(",\"degraded_decisions\":{}}}", store.degraded));
    }
    for (name, texts) in [("failing_streams", failing), ("reasons", reasons)] {
        if !texts.is_empty() {
            body.push_str(&format!(",\"{name}\":"));
            push_list(&mut body, texts.iter());
        }
    }
    body.push('}');
    body
}
