//! Tidegate as a library: one rate limiter that answers "may this happen now?" exactly, explains
//! itself and stays within its memory.
//!
//! A [`Policy`] names limiters; a [`Gate`] holds one and answers [`Request`]s; a [`Clock`] comes in
//! from outside. Decisions take well under a microsecond and never wait for anything but a lock.

mod action;
mod address;
mod answer;
mod gate;
pub mod headers;
#[cfg(feature = "tower")]
pub mod layer;
mod matching;
mod membership;
mod network;
mod pattern;
mod policy;
mod quota_client;
mod record;

pub use action::{Action, Actions, Analyzed, Event, Incremented, Status, Unless};
pub use address::{Ipv6Prefix, is_address};
pub use answer::{Answer, AskError, Explained, Reason, Request, Target};
pub use gate::{
    Batch, CommitAnswer, Cursor, Gate, Hit, HitAnswer, Limiter, LimiterInfo, OVERRIDE_REASON_MAX, OpenError,
    OverrideInfo, Page, RESERVATION_SPAN_MAX, Reloaded, Reservation, ReserveAnswer, Saves, Settings, StoreHealth,
    StoreSettings, Usage,
};
pub use headers::RateLimitHeaders;
pub use matching::{Condition, MATCH_VALUES_MAX, MATCHES_MAX, Match, Outcome, Value, WHOLE_KEY};
pub use membership::{Membership, Seen};
pub use network::Network;
pub use pattern::Pattern;
pub use policy::{
    LIMITERS_MAX, LimiterSpec, NAME_LEN_MAX, OnFailure, PROXY_LIMITER, Policy, PolicyError, PolicyProblem, Replicas,
    THROTTLE_LIMITER,
};
pub use quota_client::QuotaClient;
pub use record::{RECORD_BYTES_MIN, RecordSettings, RecordStats, RecordedKeys, Recording, Sample};
pub use tidegate_core::all_or_nothing::{IfBlocked, Intent, Ruling};
pub use tidegate_core::buckets::{BLOCKS_MAX, Grid, GridError};
pub use tidegate_core::replicas::Schedule;
pub use tidegate_core::top_keys::TopKey;
pub use tidegate_core::{
    Algorithm, Decision, KEY_LEN_MAX, KeyError, LIMITS_MAX, Limit, LimitError, Micros, Rules, RulesError, Verdict,
    Weekday, Windows, text,
};
#[cfg(feature = "etcd")]
pub use tidegate_store::etcd::{self, Url as EtcdUrl};
#[cfg(feature = "redis")]
pub use tidegate_store::redis::{Kind as RedisKind, Url as RedisUrl};
pub use tidegate_store::{
    ByDoor, Capabilities, Carried, Clock, Counts, DECISIONS_MAX, Decided, Denials, Denied, Door, EMPTY_TABLE_BYTES,
    KeyStats, Layout, Meaning, OVERRIDES_MAX, SnapshotError, Store, StoreError, StoreUrl, TopBy, TopListing, UrlError,
    Verdicts, Which, panic_point, private_file,
};
#[cfg(feature = "tls")]
pub use tidegate_store::{Tls, TlsFiles};
