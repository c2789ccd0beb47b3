//! A trace: NDJSON, one request on each line, in time order.

use super::input::Input;
use super::replay::{Replay, ReplayError};
use super::{Stop, line};
use std::io::Write;

/// Replays all lines; blank ones are passed over.
pub(super) fn replay<W: Write>(input: &mut Input, replay: &mut Replay<W>) -> Result<(), Stop> {
    while let Some((number, text)) = input.next_line().map_err(Stop::Input)? {
        if !text.trim_ascii().is_empty() {
            answer(text, replay).map_err(Stop::at(number))?;
        }
        if input.is_live() {
            replay.flush().map_err(Stop::Output)?;
        }
    }
    Ok(())
}

fn answer<W: Write>(text: &[u8], replay: &mut Replay<W>) -> Result<(), ReplayError> {
    let text = std::str::from_utf8(text).map_err(|error| {
        format!("byte {} is not UTF-8; write text as UTF-8 or with \\u escapes", error.valid_up_to() + 1)
    })?;
    replay.line(&line::read(text)?)
}
