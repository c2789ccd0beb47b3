//! Which limiters the requests of an access log match.
//!
//! With a limiter's name the policy is reduced to it, keyed by what `--by` says; then the engine
//! makes the key as it does for any request by attributes.

use super::access_log::Attribute;
use crate::nearest;
use tidegate::{LimiterSpec, Policy};

/// The policy for a log: of one limiter, or the whole if one of its limiters has the domain.
pub(super) fn select(
    policy: Policy,
    limiter: Option<&str>,
    domain: Option<&str>,
    by: &[Attribute],
) -> Result<Policy, String> {
    if let Some(name) = limiter {
        return one_limiter(&policy, name, by);
    }
    if policy.limiters().iter().any(|spec| !spec.by.is_empty() && spec.domain.as_deref() == domain) {
        return Ok(policy);
    }
    Err(match domain {
        Some(domain) => {
            format!("error: no limiter has the domain \"{}\"; name another, or a --limiter", domain.escape_debug())
        }
        None => "error: no limiter has \"by\" and no domain, so none would apply; \
                 name one, such as --limiter api --by ip"
            .to_owned(),
    })
}

fn one_limiter(policy: &Policy, name: &str, by: &[Attribute]) -> Result<Policy, String> {
    let Some(spec) = policy.limiters().iter().find(|spec| spec.name == name) else {
        return Err(unknown(policy, name));
    };
    let by: Vec<&str> = match by {
        [] => spec.by.iter().map(String::as_str).collect(),
        given => given.iter().map(|attribute| attribute.name()).collect(),
    };
    let known = Attribute::ALL.map(Attribute::name);
    if let Some(strange) = by.iter().find(|name| !known.contains(name)) {
        return Err(format!(
            "error: limiter \"{name}\" is by \"{strange}\", which access logs do not have; add --by ip, user or path"
        ));
    }
    if by.is_empty() {
        return Err(format!("error: limiter \"{name}\" has no \"by\"; say what makes its key, such as --by ip"));
    }
    let spec = LimiterSpec::clone(spec).by(None, &by);
    Policy::new(vec![spec]).map_err(|error| format!("error: --by: {error}"))
}

fn unknown(policy: &Policy, name: &str) -> String {
    let names: Vec<&str> = policy.limiters().iter().map(|spec| spec.name.as_str()).collect();
    let remedy = match nearest::of(name, names.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None if names.is_empty() => "the policy has none".to_owned(),
        None => format!("there are: {}", names[..names.len().min(10)].join(", ")),
    };
    format!("error: no limiter is named \"{}\"; {remedy}", name.escape_debug())
}
