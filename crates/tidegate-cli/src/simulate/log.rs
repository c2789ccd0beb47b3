//! An access log: every line is a hit, in the order of their times.

use super::access_log::{self, Entry};
use super::in_order::InOrder;
use super::input::Input;
use super::output::Head;
use super::replay::{Replay, ReplayError};
use super::{Notes, Stop, at};
use std::io::Write;
use tidegate::Request;

/// Replays all lines as requests of `domain`. With `skip_bad_lines`, those that cannot be read or
/// whose key is too long are counted instead of ending the replay.
pub(super) fn replay<W: Write>(
    input: &mut Input,
    replay: &mut Replay<W>,
    domain: Option<&str>,
    skip_bad_lines: bool,
) -> Result<Notes, Stop> {
    let mut notes = Notes::default();
    let mut order = InOrder::default();
    let mut decide = |number, entry: &Entry, notes: &mut Notes| match answer(replay, entry, domain) {
        Err(ReplayError::Line(_)) if skip_bad_lines => {
            notes.skipped += 1;
            Ok(())
        }
        done => done.map_err(Stop::at(number)),
    };
    while let Some((number, text)) = input.next_line().map_err(Stop::Input)? {
        if text.trim_ascii().is_empty() {
            continue;
        }
        match access_log::read(text) {
            Ok(entry) => order.push(number, entry),
            Err(_) if skip_bad_lines => notes.skipped += 1,
            Err(error) => return Err(Stop::Line(number, error.to_string())),
        }
        while let Some((number, entry)) = order.pop() {
            decide(number, &entry, &mut notes)?;
        }
    }
    notes.late = order.late;
    order.rest().try_for_each(|(number, entry)| decide(number, &entry, &mut notes))?;
    Ok(notes)
}

fn answer<W: Write>(replay: &mut Replay<W>, entry: &Entry, domain: Option<&str>) -> Result<(), ReplayError> {
    replay.advance(entry.at);
    let at = at::Seconds(entry.at).to_string();
    let attributes = entry.attributes();
    replay.attributes(&Head { at: &at, op: None }, &Request::of(domain, &attributes).explained())
}
