//! The store that a gate asks: a Redis, whose scripts decide, or an etcd, whose counts are decided here.

use crate::StoreUrl;
use tidegate_core::Micros;
#[cfg(feature = "etcd")]
use tidegate_store::etcd::{self, Counts, Etcd};
use tidegate_store::redis::{Answers, Asked, Layout, Question, Redis, StoreError};

/// A store that was opened.
#[cfg_attr(feature = "etcd", expect(clippy::large_enum_variant, reason = "there is one, made at the start"))]
#[derive(Debug)]
pub(super) enum Remote {
    Redis(Redis),
    #[cfg(feature = "etcd")]
    Etcd(Counts),
}

/// What can be opened before there is a gate.
#[cfg_attr(feature = "etcd", expect(clippy::large_enum_variant, reason = "there is one, made at the start"))]
pub(super) enum Opened {
    Redis(Redis),
    #[cfg(feature = "etcd")]
    Etcd(Etcd),
}

impl Opened {
    pub(super) async fn at(url: StoreUrl) -> Opened {
        match url {
            StoreUrl::Redis(url) => Opened::Redis(Redis::open(url).await),
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd(url) => Opened::Etcd(Etcd::open(url).await),
        }
    }

    /// With the gate's clock; `None`: the gate is gone.
    pub(super) fn with_clock(self, now: impl Fn() -> Option<Micros> + Send + Sync + 'static) -> Remote {
        match self {
            Opened::Redis(redis) => {
                drop(now);
                Remote::Redis(redis)
            }
            #[cfg(feature = "etcd")]
            Opened::Etcd(etcd) => Remote::Etcd(Counts::new(etcd, std::sync::Arc::new(now))),
        }
    }
}

impl Remote {
    /// Where it is; no password.
    pub(super) fn url(&self) -> String {
        match self {
            Remote::Redis(redis) => redis.url().to_string(),
            #[cfg(feature = "etcd")]
            Remote::Etcd(counts) => counts.etcd().url().to_string(),
        }
    }

    /// False: do not ask it now.
    pub(super) fn answers(&self) -> bool {
        match self {
            Remote::Redis(redis) => redis.answers(),
            #[cfg(feature = "etcd")]
            Remote::Etcd(counts) => counts.etcd().answers(),
        }
    }

    /// Why it cannot be asked, if it cannot.
    pub(super) fn down(&self) -> Option<StoreError> {
        match self {
            Remote::Redis(redis) => redis.down(),
            #[cfg(feature = "etcd")]
            Remote::Etcd(counts) => counts.etcd().down(),
        }
    }

    pub(super) async fn decide(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        match self {
            Remote::Redis(redis) => redis.decide(questions, asked).await,
            #[cfg(feature = "etcd")]
            Remote::Etcd(counts) => {
                let Asked { cost, intent, explain, by, .. } = *asked;
                let questions: Vec<etcd::Question<'_>> = questions
                    .iter()
                    .map(|Question { limiter, rules, key, .. }| etcd::Question { limiter, rules, key })
                    .collect();
                counts.decide(&questions, &etcd::Asked { cost, intent, explain, by }).await
            }
        }
    }

    /// Which of these limiters are disabled.
    pub(super) async fn disabled(&self, limiters: &[(&str, Layout<'_>)]) -> Result<Vec<bool>, StoreError> {
        match self {
            Remote::Redis(redis) => redis.disabled(limiters).await,
            #[cfg(feature = "etcd")]
            Remote::Etcd(counts) => {
                let names: Vec<&str> = limiters.iter().map(|(name, _)| *name).collect();
                counts.disabled(&names).await
            }
        }
    }

    pub(super) async fn set_disabled(
        &self,
        limiter: &str,
        layout: Layout<'_>,
        disabled: bool,
    ) -> Result<(), StoreError> {
        match self {
            Remote::Redis(redis) => redis.set_disabled(limiter, layout, disabled).await,
            #[cfg(feature = "etcd")]
            Remote::Etcd(counts) => counts.set_disabled(limiter, disabled).await,
        }
    }

    /// For what only Redis can do.
    pub(super) fn redis(&self) -> Result<&Redis, StoreError> {
        match self {
            Remote::Redis(redis) => Ok(redis),
            #[cfg(feature = "etcd")]
            Remote::Etcd(_) => Err(StoreError::Unsupported(
                "etcd keeps counts only: no lists of keys, no blocks by hand, no increments; use kind = \"redis\" for these",
            )),
        }
    }
}
