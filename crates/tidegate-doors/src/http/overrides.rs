//! Limits of single keys: what the body that sets them says, and how they are listed.

use super::door::Door;
use super::fields::wrong_type;
use super::json::{self, Scalar, Value, push_list, push_string, shorten};
use super::keys::{push_key, span};
use super::operate;
use super::problem::Problem;
use super::reply::seconds;
use tidegate::{AskError, LIMITS_MAX, Limit, Micros, OverrideInfo};

/// What the body of an override says.
pub(crate) struct NewLimits {
    pub(crate) limits: Vec<Limit>,
    /// `None`: until they are cleared.
    pub(crate) span: Option<Micros>,
    pub(crate) reason: Option<String>,
}

/// Reads `{"limits":["100 per minute"],"for":"1h","reason":"…"}`; `for` and `reason` may be left out.
pub(crate) fn read(body: &[u8]) -> Result<NewLimits, Problem> {
    let (mut limits, mut lasts, mut reason) = (None, None, None);
    json::read(body, &["limits", "for", "reason"], |index, value| {
        match (index, value) {
            (0, Value::List(list, len)) => limits = Some(read_limits(list, len)?),
            (0, value) => return Err(wrong_type("limits", "an array such as [\"100 per minute\"]", &value.scalar())),
            (1, value) => lasts = Some(span(value.scalar())?),
            (_, value) => match value.scalar() {
                Scalar::Text(text) => reason = Some(operate::checked(&text)?),
                value => return Err(wrong_type("reason", "a text", &value)),
            },
        }
        Ok(())
    })?;
    let Some(limits) = limits else {
        let detail = "say which limits, such as {\"limits\":[\"100 per minute\"],\"for\":\"1h\"}";
        return Err(Problem::new(400, "missing_field", detail).field("limits"));
    };
    Ok(NewLimits { limits, span: lasts, reason })
}

fn read_limits(list: Vec<Scalar<'_>>, len: usize) -> Result<Vec<Limit>, Problem> {
    if len == 0 || len > LIMITS_MAX {
        let detail = format!("\"limits\" must have as many limits as the limiter, 1 to {LIMITS_MAX}, and has {len}");
        return Err(Problem::new(400, "bad_limits", detail).field("limits"));
    }
    let limit = |value: &Scalar<'_>| {
        let Scalar::Text(text) = value else { return Err(wrong_type("limits", "an array of texts", value)) };
        let text = shorten(text);
        text.parse()
            .map_err(|error| Problem::new(400, "bad_limits", format!("{error}")).field("limits").value(text.clone()))
    };
    list.iter().map(limit).collect()
}

/// Writes `"limits":[…],"until":…,"reason":…,"fits":…`.
pub(crate) fn push_members(body: &mut String, info: &OverrideInfo) {
    body.push_str("\"limits\":");
    push_list(body, info.limits.iter().map(ToString::to_string));
    body.push_str(&format!(",\"until\":{},\"reason\":", info.until.map_or("null".to_owned(), seconds)));
    match &info.reason {
        Some(reason) => push_string(body, reason),
        None => body.push_str("null"),
    }
    body.push_str(&format!(",\"fits\":{}", info.fits));
}

/// All overrides of a limiter, as the keys that have one and what each says.
pub(crate) fn list(door: &Door, limiter: &str) -> Result<String, AskError> {
    let all = door.gate.overrides(limiter)?;
    let mut body = String::from("{\"keys\":");
    push_list(&mut body, all.iter().filter_map(|info| std::str::from_utf8(&info.key).ok()));
    body.push_str(",\"overrides\":[");
    for (index, info) in all.iter().enumerate() {
        body.push_str(if index > 0 { ",{" } else { "{" });
        push_key(&mut body, &info.key);
        body.push(',');
        push_members(&mut body, info);
        body.push('}');
    }
    body.push_str("],\"next\":null}");
    Ok(body)
}
