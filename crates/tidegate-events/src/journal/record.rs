//! Steps as bytes: a tag, numbers of eight bytes in little-endian, a text behind its length.

use tidegate_core::timeline::{EVENT_LEN_MAX, Step};

const SUBMITTED: u8 = 1;
const PUBLISHED: u8 = 2;
const INVALIDATED: u8 = 3;
const REARMED: u8 = 4;
const KEY_FRAME: u8 = 5;

/// Appends a step.
pub(super) fn encode(out: &mut Vec<u8>, step: &Step) {
    let (tag, numbers, event): (u8, &[u64], Option<&str>) = match step {
        Step::Submitted { clock, event, time_ms } => (SUBMITTED, &[*clock, *time_ms], Some(event)),
        Step::Published { clock, event, time_ms } => (PUBLISHED, &[*clock, *time_ms], Some(event)),
        Step::Invalidated { clock, event, time_ms, last_ms } => {
            (INVALIDATED, &[*clock, *time_ms, *last_ms], Some(event))
        }
        Step::Rearmed { event, last_ms } => (REARMED, &[*last_ms], Some(event)),
        Step::KeyFrame { clock, time_ms } => (KEY_FRAME, &[*clock, *time_ms], None),
    };
    out.push(tag);
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    if let Some(event) = event {
        let len = u16::try_from(event.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(event.as_bytes());
    }
}

/// Takes a step off the front; `None`: these bytes are no step.
pub(super) fn decode(bytes: &mut &[u8]) -> Option<Step> {
    let (tag, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(match *tag {
        SUBMITTED => {
            let (clock, time_ms) = (number(bytes)?, number(bytes)?);
            Step::Submitted { clock, event: text(bytes)?.into(), time_ms }
        }
        PUBLISHED => {
            let (clock, time_ms) = (number(bytes)?, number(bytes)?);
            Step::Published { clock, event: text(bytes)?.into(), time_ms }
        }
        INVALIDATED => {
            let (clock, time_ms, last_ms) = (number(bytes)?, number(bytes)?, number(bytes)?);
            Step::Invalidated { clock, event: text(bytes)?.into(), time_ms, last_ms }
        }
        REARMED => {
            let last_ms = number(bytes)?;
            Step::Rearmed { event: text(bytes)?.into(), last_ms }
        }
        KEY_FRAME => Step::KeyFrame { clock: number(bytes)?, time_ms: number(bytes)? },
        _ => return None,
    })
}

pub(super) fn number(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

fn text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    let len = usize::from(u16::from_le_bytes(*len));
    if len > EVENT_LEN_MAX {
        return None;
    }
    let (text, rest) = rest.split_at_checked(len)?;
    *bytes = rest;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_comes_back_and_a_part_of_one_does_not() {
        let event: std::sync::Arc<str> = "taco 🌮".into();
        let steps = [
            Step::Submitted { clock: 1, event: event.clone(), time_ms: 2 },
            Step::Published { clock: u64::MAX, event: event.clone(), time_ms: 0 },
            Step::Invalidated { clock: 3, event: event.clone(), time_ms: 4, last_ms: 5 },
            Step::Rearmed { event, last_ms: 6 },
            Step::KeyFrame { clock: 7, time_ms: 8 },
        ];
        for step in &steps {
            let mut bytes = Vec::new();
            encode(&mut bytes, step);
            assert_eq!(decode(&mut &bytes[..]).as_ref(), Some(step));
            for len in 0..bytes.len() {
                assert_eq!(decode(&mut &bytes[..len]), None, "{step:?} cut to {len}");
            }
        }
        assert_eq!(decode(&mut &[9, 0, 0][..]), None);
    }
}
