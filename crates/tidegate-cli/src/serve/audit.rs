//! The audit: opening it, telling people how it does, and noting reloads.

use super::told_to_stop;
use crate::config::{Access, Config};
use crate::log;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tidegate::LimiterSpec;
use tidegate_doors::access::Tokens;
use tidegate_doors::audit::Audit;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// How often it is looked whether entries wait for the disk.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// In the folder of `[audit] path`, or of `[store] path`; without either in memory.
///
/// # Errors
/// A message for stderr, when its file cannot be used.
pub(super) fn open(config: &Config) -> Result<Arc<Audit>, String> {
    let say = say(config);
    let Some(folder) = config.audit.path.as_ref().or(config.store.path.as_ref()) else {
        return Ok(Arc::new(Audit::in_memory(say)));
    };
    let opened = Audit::open(folder, say);
    let (audit, note) = opened.map_err(|error| {
        format!("error: the audit in {} cannot be used: {error}; check the path and its owner", folder.display())
    })?;
    if let Some(note) = note {
        warn!("{note}");
    }
    Ok(Arc::new(audit))
}

/// For `tidegate proxy`, which has no door that tells it: in memory, for the log alone. The folders of `[audit]` and `[store]` are those of a
/// `serve` that may run beside it, from the same file.
pub(crate) fn for_the_log(config: &Config) -> Arc<Audit> {
    Arc::new(Audit::in_memory(say(config)))
}

/// Says each entry in the log, if that is wanted.
fn say(config: &Config) -> Option<fn(&str)> {
    config.audit.log.then_some(|entry| log::line(&format!("{{\"audit\":{entry}}}")))
}

/// Tries again what the disk refused, and tells when it begins and when it is over. Ends with the stop.
pub(super) async fn watch(audit: Arc<Audit>, stopped: watch::Receiver<bool>) -> Result<(), String> {
    let (mut stop, mut told) = (pin!(told_to_stop(stopped)), false);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        match (audit.failure(), told) {
            (Some(failure), false) => {
                error!(
                    "changes by hand are made and not kept: the audit cannot be written: {failure}; it is tried again"
                );
                told = true;
            }
            (None, true) => {
                info!("the audit is written again");
                told = false;
            }
            _ => {}
        }
        if told {
            let audit = Arc::clone(&audit);
            let _ = tokio::task::spawn_blocking(move || audit.write()).await;
        }
    }
}

/// What another configuration changes, in words.
pub(crate) fn difference(old: &Config, new: &Config) -> String {
    let (before, after) = (old.policy.limiters(), new.policy.limiters());
    let named = |all: &[Arc<LimiterSpec>], name: &str| all.iter().find(|limiter| limiter.name == name).cloned();
    let mut words = Vec::new();
    for limiter in after {
        match named(before, &limiter.name) {
            None => words.push(format!("limiter {} added", limiter.name)),
            Some(known) if known != *limiter => words.push(format!("limiter {} changed", limiter.name)),
            Some(_) => {}
        }
    }
    for limiter in before {
        if named(after, &limiter.name).is_none() {
            words.push(format!("limiter {} removed", limiter.name));
        }
    }
    let others = [
        ("[store]", old.store != new.store),
        ("[doors]", old.doors != new.doors),
        ("[udp]", (&old.udp, &old.allow) != (&new.udp, &new.allow)),
        ("[access]", access(old) != access(new)),
        ("[tls]", old.tls != new.tls),
        ("[limits]", old.limits != new.limits),
        ("[[stream]]", old.streams != new.streams),
        ("[proxy]", old.proxy != new.proxy),
        ("[audit]", old.audit != new.audit),
        ("[record]", old.record != new.record),
        ("[grpc]", old.grpc != new.grpc),
    ];
    words.extend(others.iter().filter(|(_, changed)| *changed).map(|(name, _)| format!("{name} changed")));
    if words.is_empty() { "nothing changed".to_owned() } else { words.join(", ") }
}

/// Access, but for the tokens: their changes are noted by name.
fn access(config: &Config) -> Access {
    let mut access = config.access.clone();
    access.rules.tokens = None;
    access
}

/// What another reading of the tokens changes, in words; `None`: nothing.
pub(super) fn tokens_difference(old: Option<&Tokens>, new: Option<&Tokens>) -> Option<String> {
    let (before, after) = (listed(old), listed(new));
    let mut words: Vec<String> = Vec::new();
    for (name, what) in &after {
        match before.iter().find(|(known, _)| known == name) {
            None => words.push(format!("{name} added")),
            Some((_, known)) if known != what => words.push(format!("{name} changed")),
            Some(_) => {}
        }
    }
    let gone = before.iter().filter(|(name, _)| !after.iter().any(|(known, _)| known == name));
    words.extend(gone.map(|(name, _)| format!("{name} revoked")));
    (!words.is_empty()).then(|| shortened(&words))
}

/// Each with everything of it: what differs has changed.
fn listed(tokens: Option<&Tokens>) -> Vec<(String, String)> {
    let Some(tokens) = tokens else { return Vec::new() };
    let of_tokens = tokens.tokens().map(|token| (format!("token {}", token.name), format!("{token:?}")));
    let certificates = tokens.certificates();
    let of_certificates =
        certificates.map(|certificate| (format!("certificate {}", certificate.name), format!("{certificate:?}")));
    of_tokens.chain(of_certificates).collect()
}

/// The first of many.
fn shortened(words: &[String]) -> String {
    const SHOWN: usize = 20;
    match words.len() {
        0..=SHOWN => words.join(", "),
        count => format!("{}, and {} more", words[..SHOWN].join(", "), count - SHOWN),
    }
}
