//! The replay in a few lines, for people.

use super::Notes;
use super::compare::{Comparison, KeysChanged};
use super::in_order::WINDOW;
use super::lanes::{Outcome, Replayed};
use super::tally::{CandidateTally, KEYS_MAX, Submissions, Tally};
use crate::human::{self, Align, Columns};
use std::fmt::Write as _;

/// Most denied keys that are shown.
const TOP: usize = 10;

pub(super) fn text(replayed: &Replayed, notes: &Notes) -> String {
    let Outcome { tally, candidates, sketched, .. } = &replayed.policies[0];
    let mut out = String::from("\n");
    let other = tally.submissions.all() + tally.operations;
    if tally.requests() > 0 || other == 0 {
        requests(&mut out, tally);
    }
    if tally.submissions.all() > 0 {
        let Submissions { submitted, conflict, full } = tally.submissions;
        let _ = writeln!(
            out,
            "{} submissions: {} submitted, {} conflict, {} full",
            human::count(tally.submissions.all()),
            human::count(submitted),
            human::count(conflict),
            human::count(full)
        );
    }
    if tally.operations > 0 {
        let _ = writeln!(out, "{} operations, such as blocks and increments", human::count(tally.operations));
    }
    if tally.requests() > 0 && tally.requests() == tally.unlimited {
        out.push_str(NOBODY_ASKED);
    }
    if !tally.limiters.is_empty() {
        let _ = write!(out, "\n{}", by_limiter(tally));
    }
    if candidates.iter().any(|one| one.allowed + one.denied > 0) {
        let _ = write!(out, "\n{}", by_candidate(candidates));
    }
    let deciding = tally.deciding_limits();
    // With one limit the table above says it all.
    if deciding.len() > 1 || deciding.iter().any(|(_, limit, _)| limit.is_none()) {
        let _ = write!(out, "\n{}", by_limit(tally));
    }
    if tally.limiters.iter().any(|limiter| limiter.denied > 0) {
        let _ = write!(out, "\n{}", most_denied(tally));
    }
    if let [new, old] = replayed.policies.as_slice() {
        let _ = write!(out, "\n{}", compared(&replayed.comparison, new, old));
    }
    remarks(&mut out, tally, notes, *sketched);
    out
}

/// Which limits denied requests.
fn by_limit(tally: &Tally) -> String {
    let columns =
        [("DENIED BY", Align::Left), ("LIMIT", Align::Left), ("DENIED", Align::Right), ("OF ALL", Align::Right)];
    let mut table = Columns::new(&columns);
    for (limiter, limit, denied) in tally.deciding_limits() {
        let limit = limit.unwrap_or_else(|| "(blocked)".to_owned());
        table.row([limiter.name.clone(), limit, human::count(denied), human::percent(denied, tally.requests())]);
    }
    table.to_string()
}

/// What changes from the old policy to the new one.
fn compared(comparison: &Comparison, new: &Outcome, old: &Outcome) -> String {
    let (changes, KeysChanged { newly_limited, no_longer }) = Comparison::keys(&new.tally, &old.tally, TOP);
    let Comparison { both_allow, both_deny, newly_denied, newly_allowed, .. } = comparison;
    let all = both_allow + both_deny + newly_denied + newly_allowed;
    let mut out = format!(
        "Compared with the old policy, which denies {} ({}):\n",
        human::count(old.tally.denied),
        human::percent(old.tally.denied, all)
    );
    for (count, what) in [
        (newly_denied, "requests are newly denied"),
        (newly_allowed, "requests are newly allowed"),
        (both_deny, "requests are denied by both"),
        (&newly_limited, "keys are newly limited"),
        (&no_longer, "keys are limited no longer"),
    ] {
        let _ = writeln!(out, "{:>11} {what}", human::count(*count));
    }
    if old.skipped > 0 {
        let lines = human::count(old.skipped);
        let _ =
            writeln!(out, "{lines:>11} lines cannot be asked of the old policy, which has no such limiter or stream");
    }
    if !changes.is_empty() {
        let columns = [
            ("CHANGED MOST", Align::Left),
            ("LIMITER", Align::Left),
            ("DENIED BEFORE", Align::Right),
            ("DENIED NOW", Align::Right),
        ];
        let mut table = Columns::new(&columns);
        for change in changes {
            let counts = [human::count(change.before), human::count(change.now)];
            table.row([human::short_key(change.key), change.limiter.to_owned()].into_iter().chain(counts));
        }
        let _ = write!(out, "\n{table}");
    }
    out
}

/// For a replay that says nothing of its policy.
const NOBODY_ASKED: &str = "\nwarning: no limiter applied to any request, so that all of them pass whatever the limits; a limiter applies to \
requests\nthat name it, or that have its domain and every attribute of its \"by\" (access logs have ip, user and path)\n";

fn requests(out: &mut String, tally: &Tally) {
    let all = tally.requests();
    let _ = write!(
        out,
        "{} requests: {} allowed, {} denied ({})",
        human::count(all),
        human::count(tally.allowed),
        human::count(tally.denied),
        human::percent(tally.denied, all),
    );
    if tally.unlimited > 0 {
        let _ = write!(out, ", {} without a limiter that applies", human::count(tally.unlimited));
    }
    let _ = writeln!(out, "; keys limited: {}", tally.keys_limited());
}

fn by_limiter(tally: &Tally) -> String {
    let mut table = Columns::new(&[
        ("LIMITER", Align::Left),
        ("REQUESTS", Align::Right),
        ("ALLOWED", Align::Right),
        ("DENIED", Align::Right),
        ("DENIED %", Align::Right),
        ("KEYS LIMITED", Align::Right),
    ]);
    for limiter in &tally.limiters {
        let all = limiter.allowed + limiter.denied;
        table.row([
            limiter.spec.name.clone(),
            human::count(all),
            human::count(limiter.allowed),
            human::count(limiter.denied),
            human::percent(limiter.denied, all),
            human::count(limiter.keys.len() as u64),
        ]);
    }
    if tally.unlimited > 0 {
        let none = String::new;
        table.row(["(none applied)".into(), human::count(tally.unlimited), none(), none(), none(), none()]);
    }
    table.to_string()
}

/// What candidates would have decided, beside what was.
fn by_candidate(candidates: &[CandidateTally]) -> String {
    let mut table = Columns::new(&[
        ("CANDIDATE", Align::Left),
        ("LIMITS", Align::Left),
        ("WOULD ALLOW", Align::Right),
        ("WOULD DENY", Align::Right),
        ("DENIED %", Align::Right),
    ]);
    for CandidateTally { limiter, limits, allowed, denied } in candidates {
        let share = human::percent(*denied, allowed + denied);
        table.row([limiter.clone(), limits.clone(), human::count(*allowed), human::count(*denied), share]);
    }
    table.to_string()
}

fn most_denied(tally: &Tally) -> String {
    let mut table = Columns::new(&[("MOST DENIED", Align::Left), ("LIMITER", Align::Left), ("DENIED", Align::Right)]);
    for (limiter, key, counts) in tally.top(TOP) {
        table.row([human::short_key(key), limiter.name.clone(), human::count(counts.denied)]);
    }
    table.to_string()
}

fn remarks(out: &mut String, tally: &Tally, notes: &Notes, sketched: u64) {
    if notes.skipped > 0 {
        let _ = writeln!(out, "\n{} lines could not be read and were passed over", human::count(notes.skipped));
    }
    if notes.late > 0 {
        let _ = writeln!(
            out,
            "\n{} lines came more than {WINDOW} late and were taken at the time that the replay had reached",
            human::count(notes.late),
        );
    }
    if tally.untold > 0 {
        let _ = writeln!(
            out,
            "\n{} denials were of keys past the first {KEYS_MAX}, which are counted as one",
            human::count(tally.untold)
        );
    }
    if sketched > 0 {
        let _ = writeln!(
            out,
            "\n{} decisions were made with the table full: such keys are counted together and may be denied early",
            human::count(sketched)
        );
    }
}
