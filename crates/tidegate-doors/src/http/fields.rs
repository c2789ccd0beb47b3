//! The fields of request bodies, each with its type and bound.
//!
//! A refusal names the field, its value and what it must be.

use super::json::{Scalar, shorten};
use super::problem::Problem;
use std::borrow::Cow;
use tidegate::{KEY_LEN_MAX, Micros, NAME_LEN_MAX};

/// The key: 1 to 512 bytes.
pub(crate) fn key<'a>(field: &str, value: Scalar<'a>) -> Result<Cow<'a, str>, Problem> {
    let text = text(field, value)?;
    if (1..=KEY_LEN_MAX).contains(&text.len()) {
        return Ok(text);
    }
    let detail = match text.len() {
        0 => format!("\"{field}\" is empty; use 1 to {KEY_LEN_MAX} bytes"),
        len => format!("\"{field}\" has {len} bytes, more than {KEY_LEN_MAX}; use a shorter one, such as a hash of it"),
    };
    Err(Problem::new(400, "bad_key", detail).field(field.to_owned()).value(shorten(&text)))
}

/// A limiter's or domain's name; whether there is one is the engine's to say.
pub(crate) fn name<'a>(field: &str, value: Scalar<'a>) -> Result<Cow<'a, str>, Problem> {
    let text = text(field, value)?;
    if (1..=NAME_LEN_MAX).contains(&text.len()) {
        return Ok(text);
    }
    let detail = format!("\"{field}\" has {} bytes; names have 1 to {NAME_LEN_MAX}", text.len());
    Err(Problem::new(400, "bad_name", detail).field(field.to_owned()).value(shorten(&text)))
}

fn text<'a>(field: &str, value: Scalar<'a>) -> Result<Cow<'a, str>, Problem> {
    match value {
        Scalar::Text(text) => Ok(text),
        other => Err(wrong_type(field, "a string", &other)),
    }
}

pub(crate) fn truth(field: &str, value: &Scalar<'_>) -> Result<bool, Problem> {
    match value {
        Scalar::Truth(truth) => Ok(*truth),
        other => Err(wrong_type(field, "true or false", other)),
    }
}

/// From 0 to the largest `u32`.
pub(crate) fn cost(value: &Scalar<'_>) -> Result<u32, Problem> {
    whole_of("cost", "bad_cost", "a whole number from 0 (look only) to 4294967295", value)
}

/// The same for a field without a special meaning of 0.
pub(crate) fn whole(field: &'static str, code: &'static str, value: &Scalar<'_>) -> Result<u32, Problem> {
    whole_of(field, code, "a whole number from 0 to 4294967295", value)
}

fn whole_of(field: &'static str, code: &'static str, must: &str, value: &Scalar<'_>) -> Result<u32, Problem> {
    let number = match value {
        Scalar::Whole(number) => u32::try_from(*number).ok(),
        // JSON does not tell 2.0 from 2.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
        Scalar::Fraction(number) if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(number) => {
            Some(*number as u32)
        }
        Scalar::Negative(_) | Scalar::Fraction(_) => None,
        other => return Err(wrong_type(field, must, other)),
    };
    let refusal = || Problem::new(400, code, format!("\"{field}\" must be {must}")).field(field).value(value.shown());
    number.ok_or_else(refusal)
}

/// A time in seconds, to the nearest microsecond. A double holds as much of all times that we take.
pub(crate) fn seconds_since_epoch(field: &'static str, value: &Scalar<'_>) -> Result<Micros, Problem> {
    const MUST: &str = "seconds since the epoch from 0 to 4503599627, such as 1794778897.5";
    let refusal =
        || Problem::new(400, "bad_timestamp", format!("\"{field}\" must be {MUST}")).field(field).value(value.shown());
    let micros = match value {
        Scalar::Whole(seconds) => seconds.checked_mul(1_000_000),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
        Scalar::Fraction(seconds) if *seconds >= 0.0 => Some((seconds * 1e6).round() as u64),
        Scalar::Negative(_) | Scalar::Fraction(_) => None,
        other => return Err(wrong_type(field, MUST, other)),
    };
    micros.and_then(Micros::new).ok_or_else(refusal)
}

pub(crate) fn wrong_type(field: &str, expected: &str, got: &Scalar<'_>) -> Problem {
    let detail = format!("\"{field}\" must be {expected}");
    Problem::new(400, "wrong_type", detail).field(field.to_owned()).value(got.shown())
}
