//! What an operator and applications do besides asking: blocks, counts and figures.

use super::checks::{checked_key, whole};
use super::commands::Kind;
use super::session::{Error, Session, shown};
use crate::http::operate::{CHANGE_FAILED, Done, Operation, carry_out};
use std::sync::Arc;
use tidegate::{IfBlocked, LimiterInfo, Micros, Status};
use tidegate_wire::resp::answer::Answers;

/// Longest block by hand, as over HTTP.
const BLOCK_MS_MAX: u64 = 366 * 86_400_000;

/// `TG.BLOCK`, `TG.UNBLOCK`, `TG.INCREMENT` and `TG.ANALYZE`.
pub(super) async fn act(
    session: &Session,
    kind: Kind,
    parts: &[&[u8]],
    answers: &mut Answers<'_>,
) -> Result<(), Error> {
    let (limiter, key) = (String::from_utf8_lossy(parts[1]).into_owned(), checked_key(parts[2])?);
    let gate = &session.door.gate;
    match kind {
        Kind::Increment => {
            let count = parts.get(3).map_or(Ok(1), |text| whole("count", text))?;
            gate.increment(&limiter, key, count, None).await?;
            answers.status("OK");
        }
        Kind::Analyze => {
            let analyzed = gate.analyze(&limiter, key, IfBlocked::Tell).await?;
            answers.status(match analyzed.status {
                Status::Ok => "ok",
                Status::Limited(_) | Status::Denied => "limited",
                Status::Blocked { .. } => "blocked",
            });
        }
        Kind::Block => {
            change(session, Operation::block(span(parts[3])?), limiter, key).await?;
            answers.status("OK");
        }
        _ => {
            let done = change(session, Operation::Unblock, limiter, key).await?;
            answers.number(i64::from(matches!(done, Done::Unblocked(true))));
        }
    }
    Ok(())
}

/// A change by hand, which is noted.
async fn change(session: &Session, operation: Operation, limiter: String, key: &[u8]) -> Result<Done, Error> {
    let (gate, audit) = (session.door.gate.clone(), Arc::clone(&session.door.settings.audit));
    let changed = carry_out(gate, audit, session.caller.caller(), operation, limiter, key.to_vec(), None).await;
    Ok(changed.ok_or_else(|| Error::new(CHANGE_FAILED))??)
}

/// A time in milliseconds.
fn span(text: &[u8]) -> Result<Micros, Error> {
    let ms = std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
    let ms = ms.filter(|ms| (1..=BLOCK_MS_MAX).contains(ms));
    ms.map(Micros::from_millis).ok_or_else(|| {
        Error::new(format!("'{}' is no time in whole milliseconds from 1 to {BLOCK_MS_MAX}", shown(text)))
    })
}

/// `TG.STATS [limiter]`: how decisions went since the start, of one limiter or of all.
pub(super) fn stats(session: &Session, parts: &[&[u8]], answers: &mut Answers<'_>) -> Result<(), Error> {
    let gate = &session.door.gate;
    let infos: Vec<LimiterInfo> = match parts.get(1) {
        Some(name) => vec![gate.limiter_info(&String::from_utf8_lossy(name))?],
        None => gate.limiters(),
    };
    let sum = |of: &dyn Fn(&LimiterInfo) -> u64| i64::try_from(infos.iter().map(of).sum::<u64>()).unwrap_or(i64::MAX);
    // States on other machines are not asked for this.
    let here = |count: Option<usize>| count.map_or(0, |count| count as u64);
    let figures = [
        ("limiters", sum(&|_| 1)),
        ("enabled", sum(&|info| info.enabled.into())),
        ("allowed", sum(&|info| info.counts.allowed)),
        ("denied", sum(&|info| info.counts.denied)),
        ("peeked", sum(&|info| info.counts.peeked)),
        ("sketched_allowed", sum(&|info| info.counts.sketched_allowed)),
        ("sketched_denied", sum(&|info| info.counts.sketched_denied)),
        ("entries", sum(&|info| here(info.entries))),
        ("bytes", sum(&|info| here(info.bytes))),
    ];
    answers.map(9);
    for (name, figure) in figures {
        answers.text(name.as_bytes());
        answers.number(figure);
    }
    Ok(())
}
