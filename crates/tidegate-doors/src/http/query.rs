//! The query part of a path: named values, each at most once.

use super::json::{duplicate_field, shorten};
use super::percent::{Plus, decode};
use super::problem::Problem;
use std::borrow::Cow;

/// The values of `names`, in that order; a name that is not there is `None`. The query's bytes are
/// bounded with the request's head, so their number needs no bound of its own.
pub(crate) fn read<'q, const N: usize>(
    query: Option<&'q str>,
    names: [&'static str; N],
) -> Result<[Option<Cow<'q, [u8]>>; N], Problem> {
    let mut values = [const { None }; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(index) = names.iter().position(|known| *known == name) else {
            let list = if N == 0 { "none".to_owned() } else { names.join(", ") };
            let detail = format!("there is no parameter \"{}\"; the parameters are: {list}", shorten(name));
            return Err(Problem::new(400, "unknown_field", detail).field(shorten(name)));
        };
        if values[index].is_some() {
            return Err(duplicate_field(name));
        }
        values[index] = Some(decode(value, Plus::Space, names[index])?);
    }
    Ok(values)
}

/// A whole number between two bounds.
pub(crate) fn number(text: &[u8], field: &'static str, least: u64, most: u64) -> Result<u64, Problem> {
    let digits = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|text| text.parse().ok());
    number.filter(|number| (least..=most).contains(number)).ok_or_else(|| {
        let detail = format!("{field} must be a whole number from {least} to {most}");
        Problem::new(400, if field == "cost" { "bad_cost" } else { "bad_number" }, detail)
            .field(field)
            .value(super::percent::shown(text))
    })
}
