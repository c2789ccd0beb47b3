//! Limits of single keys, set by hand: a hash for each limiter, `tg:overrides:LIMITER`, with a field for each key and one, the
//! empty one, for their version. It has no expiry, as an override may have none; what has expired is dropped with the next change.

use super::ask::{int, list, micros, now_argument};
use super::resp::Reply;
use super::script::{clear_override, list_overrides, set_override};
use super::{Redis, StoreError, names};
use crate::store::{NewOverride, Override, Overrides, Placed, When};
use crate::table::OVERRIDES_MAX;
use futures_util::future::try_join_all;
use tidegate_core::{Limit, Micros};

impl Redis {
    /// Gives one key other limits.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn set_override(
        &self,
        limiter: &str,
        key: &[u8],
        new: &NewOverride,
        when: When,
    ) -> Result<Placed, StoreError> {
        let keys = [names::overrides(limiter).into_bytes()];
        let reply = self.run(when.by, set_override(), &keys, 5, |args| {
            now_argument(args, when.now);
            args.part(key);
            args.number(new.span.unwrap_or(Micros::ZERO).get());
            args.number(OVERRIDES_MAX as u64);
            args.part(text_of(new).as_bytes());
        });
        let reply = reply.await?;
        match list(&reply) {
            Some([Reply::Int(0)]) => Ok(Placed::Full),
            Some([Reply::Int(1)]) => Ok(Placed::Until(None)),
            Some([Reply::Int(1), until]) => {
                micros(until).map(|until| Placed::Until(Some(until))).ok_or_else(|| self.garbled("not a time"))
            }
            _ => Err(self.garbled("not an answer")),
        }
    }

    /// Takes them back; were there any?
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn clear_override(&self, limiter: &str, key: &[u8], when: When) -> Result<bool, StoreError> {
        let keys = [names::overrides(limiter).into_bytes()];
        let reply = self.run(when.by, clear_override(), &keys, 2, |args| {
            now_argument(args, when.now);
            args.part(key);
        });
        int(&reply.await?).map(|was| was == 1).ok_or_else(|| self.garbled("not an answer"))
    }

    /// Of each limiter all overrides, if they have changed since the version that is known. One round trip where they have not.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn overrides(
        &self,
        limiters: &[(&str, Option<u64>)],
        when: When,
    ) -> Result<Vec<Option<Overrides>>, StoreError> {
        try_join_all(limiters.iter().map(|(limiter, known)| self.overrides_of(limiter, *known, when))).await
    }

    async fn overrides_of(
        &self,
        limiter: &str,
        known: Option<u64>,
        when: When,
    ) -> Result<Option<Overrides>, StoreError> {
        let name = names::overrides(limiter);
        let version = self.call(name.as_bytes(), &[b"HGET", name.as_bytes(), b""], when.by).await?;
        let version = match &version {
            Reply::Nil => Some(0),
            Reply::Text(text) => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()),
            _ => None,
        };
        if version.ok_or_else(|| self.garbled("not a version"))? == known.unwrap_or(u64::MAX) {
            return Ok(None);
        }
        let keys = [name.into_bytes()];
        let reply = self.run(when.by, list_overrides(), &keys, 1, |args| now_argument(args, when.now)).await?;
        parsed(&reply).map(Some).ok_or_else(|| self.garbled("not a list of overrides"))
    }
}

/// Limits, then the reason on a line of its own.
fn text_of(new: &NewOverride) -> String {
    let limits: Vec<String> = new.limits.iter().map(Limit::to_string).collect();
    format!("{}\n{}", limits.join(";"), new.reason.as_deref().unwrap_or_default())
}

/// Time, version, and for each key its name and `UNTIL LIMITS\nREASON`.
fn parsed(reply: &Reply) -> Option<Overrides> {
    let [at, Reply::Text(version), pairs @ ..] = list(reply)? else { return None };
    let version = std::str::from_utf8(version).ok()?.parse().ok()?;
    let (pairs, rest) = pairs.as_chunks::<2>();
    let keys = pairs.iter().map(|[key, value]| match (key, value) {
        (Reply::Text(key), Reply::Text(value)) => Some((key.clone(), parsed_value(std::str::from_utf8(value).ok()?)?)),
        _ => None,
    });
    let keys = keys.collect::<Option<_>>()?;
    rest.is_empty().then_some(Overrides { version, at: micros(at)?, keys })
}

fn parsed_value(text: &str) -> Option<Override> {
    let (until, text) = text.split_once(' ')?;
    let (limits, reason) = text.split_once('\n')?;
    let until = Micros::new(until.parse().ok()?)?;
    Some(Override {
        limits: limits.split(';').map(|limit| limit.parse().ok()).collect::<Option<_>>()?,
        until: (!until.is_zero()).then_some(until),
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
    })
}
