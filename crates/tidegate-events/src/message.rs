//! Messages as subscribers get them: one JSON object each, its fields in a fixed order.
//!
//! Encoded once, then shared by all subscribers.

use crate::Epoch;
use std::fmt::Write as _;
use tidegate_core::timeline::{Incubating, Step, Timeline};
use tidegate_wire::json::push_string;

/// The message of a step; `None`: the step is not published. Key frames name the epoch, if the stream's history has one.
#[must_use]
pub fn of_step(step: &Step, timeline: &Timeline, epoch: Option<Epoch>) -> Option<String> {
    match step {
        Step::Submitted { clock, event, time_ms } => Some(delta(*clock, event, *time_ms, "SUBMITTED_EVENT")),
        Step::Published { clock, event, time_ms } => Some(delta(*clock, event, *time_ms, "PUBLISHED_EVENT")),
        Step::Invalidated { clock, event, time_ms, .. } => Some(delta(*clock, event, *time_ms, "INVALIDATED_EVENT")),
        Step::KeyFrame { .. } => Some(key_frame(timeline, epoch)),
        Step::Rearmed { .. } => None,
    }
}

fn delta(clock: u64, event: &str, time_ms: u64, kind: &str) -> String {
    let mut text = String::with_capacity(event.len() + 110);
    let _ = write!(text, "{{\"clock\":{clock},\"eventTime\":{{\"event\":");
    push_string(&mut text, event);
    let _ = write!(text, ",\"time\":{time_ms}}},\"messageType\":\"{kind}\"}}");
    text
}

/// The snapshot at the timeline's clock value.
#[must_use]
pub fn key_frame(timeline: &Timeline, epoch: Option<Epoch>) -> String {
    snapshot(timeline.clock(), timeline.snapshot(), epoch)
}

/// These events at this clock value.
pub(crate) fn snapshot<'t>(
    clock: u64,
    events: impl ExactSizeIterator<Item = &'t Incubating>,
    epoch: Option<Epoch>,
) -> String {
    let mut text = String::with_capacity(96 + events.len() * 72);
    let _ = write!(text, "{{\"clock\":{clock},\"snapshot\":[");
    for (index, Incubating { event, time_ms, valid, .. }) in events.enumerate() {
        text.push_str(if index > 0 { ",{\"event\":" } else { "{\"event\":" });
        push_string(&mut text, event);
        let status = if *valid { "Valid" } else { "Invalid" };
        let _ = write!(text, ",\"time\":{time_ms},\"status\":\"{status}\"}}");
    }
    text.push(']');
    if let Some(epoch) = epoch {
        let _ = write!(text, ",\"epoch\":\"{epoch}\"");
    }
    text.push_str(",\"messageType\":\"KEY_FRAME\"}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Micros;
    use tidegate_core::timeline::{Mode, StreamRules};

    #[test]
    fn messages_are_byte_for_byte_as_stated() {
        let rules =
            StreamRules { mode: Mode::StrictlyOnce, duration_ms: 10_000, max_events: 10, snapshot_every_ms: 10_000 };
        let (mut timeline, mut messages) = (Timeline::default(), Vec::new());
        let now = Micros::from_millis(1_700_000_000_000);
        let mut note = |step: &Step, timeline: &Timeline| messages.extend(of_step(step, timeline, None));
        timeline.start(&rules, Default::default(), now, &mut note);
        for text in ["taco", "a\"\\\n\u{1}🌮", "taco"] {
            let _ = timeline.submit(&rules, text, now, &mut note);
        }
        timeline.advance(&rules, Micros::from_millis(1_700_000_009_999), &mut note);
        messages.push(key_frame(&timeline, "00000000a1b2c".parse().ok()));
        let expected = [
            r#"{"clock":1,"snapshot":[],"messageType":"KEY_FRAME"}"#,
            r#"{"clock":2,"eventTime":{"event":"taco","time":1700000000000},"messageType":"SUBMITTED_EVENT"}"#,
            r#"{"clock":3,"eventTime":{"event":"a\"\\\n\u0001🌮","time":1700000000000},"messageType":"SUBMITTED_EVENT"}"#,
            r#"{"clock":4,"eventTime":{"event":"taco","time":1700000000000},"messageType":"INVALIDATED_EVENT"}"#,
            r#"{"clock":4,"snapshot":[{"event":"taco","time":1700000000000,"status":"Invalid"},{"event":"a\"\\\n\u0001🌮","time":1700000000000,"status":"Valid"}],"epoch":"00000000a1b2c","messageType":"KEY_FRAME"}"#,
        ];
        assert_eq!(messages, expected);
    }
}
