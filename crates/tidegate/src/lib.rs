//! Tidegate as a library: one rate limiter that answers "may this happen now?" exactly, explains
//! itself and stays within its memory.
//!
//! A [`Policy`] names limiters; a [`Gate`] holds one and answers [`Request`]s; a [`Clock`] comes in
//! from outside. Decisions take well under a microsecond and never wait for anything but a lock.

mod action;
mod answer;
mod gate;
pub mod headers;
#[cfg(feature = "tower")]
pub mod layer;
#[cfg(feature = "redis")]
mod ledger;
#[cfg(feature = "redis")]
mod membership;
mod policy;
#[cfg(feature = "redis")]
mod store_url;

pub use action::{Action, Actions, Analyzed, Event, Incremented, Unless};
pub use answer::{Answer, AskError, Explained, Reason, Request, Target};
pub use gate::{Batch, Cursor, Gate, Limiter, LimiterInfo, OpenError, Page, Reloaded, Saves, Settings, Usage};
#[cfg(feature = "redis")]
pub use gate::{StoreHealth, StoreSettings};
pub use headers::RateLimitHeaders;
#[cfg(feature = "redis")]
pub use ledger::{Ledger, Together};
#[cfg(feature = "redis")]
pub use membership::{Membership, Seen, Sharing};
pub use policy::{LIMITERS_MAX, LimiterSpec, NAME_LEN_MAX, OnFailure, Policy, PolicyError, PolicyProblem, Replicas};
#[cfg(feature = "redis")]
pub use store_url::StoreUrl;
pub use tidegate_core::all_or_nothing::{IfBlocked, Intent, Ruling};
pub use tidegate_core::buckets::{BLOCKS_MAX, Grid, GridError};
pub use tidegate_core::replicas::Schedule;
pub use tidegate_core::{
    Algorithm, Decision, KEY_LEN_MAX, KeyError, LIMITS_MAX, Limit, LimitError, Micros, Rules, RulesError, Verdict, text,
};
#[cfg(feature = "etcd")]
pub use tidegate_store::etcd::{self, Etcd, Url as EtcdUrl};
#[cfg(feature = "redis")]
pub use tidegate_store::redis::{Kind as RedisKind, Meaning, StoreError, Tls, TlsFiles, Url as RedisUrl, UrlError};
pub use tidegate_store::{Clock, Counts, EMPTY_TABLE_BYTES, KeyStats, SnapshotError, Which};
