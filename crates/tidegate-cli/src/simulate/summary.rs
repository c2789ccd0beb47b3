//! The replay in a few lines, for people.

use super::Notes;
use super::in_order::WINDOW;
use super::tally::{KEYS_MAX, Tally};
use crate::human::{self, Align, Columns};
use std::fmt::Write as _;

/// Most denied keys that are shown.
const TOP: usize = 10;

pub(super) fn text(tally: &Tally, notes: &Notes, sketched: u64) -> String {
    let (allowed, denied) = (tally.allowed(), tally.denied());
    let mut out = String::new();
    let _ = writeln!(
        out,
        "\n{} requests: {} allowed, {} denied ({}); keys limited: {}",
        human::count(allowed + denied),
        human::count(allowed),
        human::count(denied),
        human::percent(denied, allowed + denied),
        tally.keys_limited(),
    );
    if !tally.limiters.is_empty() {
        let _ = write!(out, "\n{}", by_limiter(tally));
    }
    if denied > 0 {
        let _ = write!(out, "\n{}", most_denied(tally));
    }
    remarks(&mut out, tally, notes, sketched);
    out
}

fn by_limiter(tally: &Tally) -> String {
    let mut table = Columns::new(&[
        ("LIMITER", Align::Left),
        ("ALLOWED", Align::Right),
        ("DENIED", Align::Right),
        ("DENIED %", Align::Right),
        ("KEYS LIMITED", Align::Right),
    ]);
    for limiter in &tally.limiters {
        table.row([
            limiter.spec.name.clone(),
            human::count(limiter.allowed),
            human::count(limiter.denied),
            human::percent(limiter.denied, limiter.allowed + limiter.denied),
            human::count(limiter.keys.len() as u64),
        ]);
    }
    if tally.unlimited > 0 {
        table.row(["(none applied)".into(), human::count(tally.unlimited), "0".into(), String::new(), String::new()]);
    }
    table.to_string()
}

fn most_denied(tally: &Tally) -> String {
    let mut table = Columns::new(&[("MOST DENIED", Align::Left), ("LIMITER", Align::Left), ("DENIED", Align::Right)]);
    for (limiter, key, counts) in tally.top(TOP) {
        table.row([human::key(key), limiter.name.clone(), human::count(counts.denied)]);
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
