//! The fields of request bodies, each with its type and bound.
//!
//! A refusal names the field, its value and what it must be.

use super::json::{Scalar, shorten};
use super::problem::Problem;
use std::borrow::Cow;
use tidegate::{KEY_LEN_MAX, NAME_LEN_MAX};

/// Whom: 1 to 512 bytes.
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
    let cost = match value {
        Scalar::Whole(cost) => u32::try_from(*cost).ok(),
        // JSON does not tell 2.0 from 2.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
        Scalar::Fraction(cost) if cost.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(cost) => {
            Some(*cost as u32)
        }
        Scalar::Negative(_) | Scalar::Fraction(_) => None,
        other => return Err(wrong_type("cost", "a whole number from 0 (look only) to 4294967295", other)),
    };
    cost.ok_or_else(|| {
        let detail = format!("\"cost\" must be a whole number from 0 (look only) to {}", u32::MAX);
        Problem::new(400, "bad_cost", detail).field("cost").value(value.shown())
    })
}

pub(crate) fn wrong_type(field: &str, expected: &str, got: &Scalar<'_>) -> Problem {
    let detail = format!("\"{field}\" must be {expected}");
    Problem::new(400, "wrong_type", detail).field(field.to_owned()).value(got.shown())
}
