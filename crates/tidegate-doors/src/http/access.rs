//! A request's caller: who asks, checked against the rule of its route before anything of it is done.
//!
//! The rules are `crate::access`'s. What the path names is checked here; what a body or a query names, its action checks with the
//! caller, and listings leave out what the caller may not see.

use super::client::Client;
use super::limiters::name;
use super::percent::{Plus, decode};
use super::problem::Problem;
use super::reserve;
use super::routes::{Action, Route};
use crate::access::{Caller, Needs, Refusal, Rules, Scope, What};
use http::request::Parts;
use std::sync::Arc;
use tidegate::Micros;

/// The caller of a route whose path names this limiter or stream.
///
/// # Errors
/// 401, 403, or 503 past the connections of a token.
pub(crate) fn admit(
    client: &Client,
    rules: &Arc<Rules>,
    route: &Route,
    parts: &Parts,
    named: &str,
    now: Micros,
) -> Result<Caller, Problem> {
    let caller = rules.admit(route.needs, parts, client.connection.peer().ip(), &client.known, now)?;
    client.count_for(&caller)?;
    if caller.is_narrowed()
        && let Needs::Scope(scope) = route.needs
    {
        check_named(&caller, scope, route, named)?;
    }
    Ok(caller)
}

/// Whether there is such a limiter or stream, a caller that may not ask is not told.
#[cold]
fn check_named(caller: &Caller, scope: Scope, route: &Route, named: &str) -> Result<(), Problem> {
    if route.template.contains("{limiter}") {
        caller.check(scope, What::Limiter(&name(named)?))?;
    } else if route.template.contains("{reservation}") {
        caller.check(scope, What::Limiter(reserve::read(named)?.limiter()))?;
    } else if route.template.contains("{stream}") {
        let stream = decode(named, Plus::Plus, "stream")?;
        caller.check(scope, What::Stream(&String::from_utf8_lossy(&stream)))?;
    } else if matches!(route.action, Action::Metrics | Action::Audit) {
        caller.check(scope, What::Everything)?;
    }
    Ok(())
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let problem = Problem::new(refusal.status, refusal.code, refusal.detail);
        match refusal.field {
            Some(field) => problem.field(field),
            None => problem,
        }
    }
}
