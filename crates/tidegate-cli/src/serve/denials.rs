//! Denials in the log, of limiters with `log_denials`: a bounded number of lines, with what an operator asks for first.

use super::told_to_stop;
use crate::human;
use std::pin::pin;
use std::time::Duration;
use tidegate::{Denials, Denied, Gate, LimiterSpec, Reason, Verdict};
use tokio::sync::watch;
use tracing::info;

/// How often lines are written.
const EVERY: Duration = Duration::from_secs(1);
/// Lines each time, for all limiters.
const LINES_MAX: usize = 10;

/// Logs them until the server stops.
pub(super) async fn run(gate: Gate, stopped: watch::Receiver<bool>) -> Result<(), String> {
    let mut stop = pin!(told_to_stop(stopped));
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            () = tokio::time::sleep(EVERY) => {}
        }
        let all = gate.take_denials();
        // None is silent because another is loud.
        let lines = LINES_MAX.div_ceil(all.len().max(1));
        all.iter().take(LINES_MAX).for_each(|(spec, denials)| tell(spec, denials, lines));
    }
}

fn tell(spec: &LimiterSpec, Denials { first, more }: &Denials, lines: usize) {
    for (index, Denied { key, decided }) in first.iter().take(lines).enumerate() {
        let ruling = &decided.ruling;
        let limit = spec.rules.limits().get(usize::from(ruling.limit_index)).map(ToString::to_string);
        let retry_after_ms = match ruling.decision.verdict {
            Verdict::Deny { retry_after } => retry_after.map(|wait| wait.as_millis_ceil()),
            Verdict::Allow => None,
        };
        // The last line says what is not there.
        let is_last = index + 1 == lines.min(first.len());
        let left_out = if is_last { more + (first.len() - index - 1) as u64 } else { 0 };
        info!(
            limiter = spec.name,
            key = human::key(key),
            reason = Reason::from(ruling.reason).as_str(),
            limit = limit.unwrap_or_default(),
            cost = decided.cost,
            retry_after_ms,
            left_out,
            "denied"
        );
    }
}
