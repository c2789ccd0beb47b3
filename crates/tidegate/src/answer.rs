//! Questions to the engine and its answers.

use crate::LimiterSpec;
use std::{fmt, sync::Arc};
use tidegate_core::all_or_nothing::{self, Intent, Role};
use tidegate_core::{Algorithm, Decision, KeyError, Limit, Micros};
use tidegate_store::{OVERRIDES_MAX, StoreError};

/// What a request is checked for: a key of one limiter, or attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// One limiter, by name, and one key.
    Limiter {
        /// The limiter's name.
        name: &'a str,
        /// Whom.
        key: &'a [u8],
    },
    /// Every limiter of the domain whose attributes are there, all or nothing.
    Attributes {
        /// The domain; `None`: limiters with `by` and no domain.
        domain: Option<&'a str>,
        /// Attribute names and values.
        attributes: &'a [(&'a str, &'a [u8])],
    },
    /// Every limiter of the domain whose attributes are exactly these, in this order: a descriptor of Envoy.
    Descriptor {
        /// The domain.
        domain: &'a str,
        /// Attribute names and values.
        entries: &'a [(&'a str, &'a [u8])],
        /// What stands in for the limits of limiters that take it: [`LimiterSpec::request_limits`].
        limit: Option<Limit>,
    },
}

/// May this happen now?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Whom it concerns.
    pub target: Target<'a>,
    /// How much; 0 looks only.
    pub cost: u32,
    /// Does it count?
    pub intent: Intent,
    /// Should the answer carry every limiter that matched?
    pub explain: bool,
}

impl<'a> Request<'a> {
    /// A hit of cost 1 on one limiter.
    #[must_use]
    pub const fn hit(limiter: &'a str, key: &'a [u8]) -> Request<'a> {
        Request { target: Target::Limiter { name: limiter, key }, cost: 1, intent: Intent::Hit, explain: false }
    }

    /// A hit of cost 1 on all limiters of a domain that the attributes meet.
    #[must_use]
    pub const fn of(domain: Option<&'a str>, attributes: &'a [(&'a str, &'a [u8])]) -> Request<'a> {
        let target = Target::Attributes { domain, attributes };
        Request { target, cost: 1, intent: Intent::Hit, explain: false }
    }

    /// A hit of cost 1 on the limiters of a domain whose attributes are exactly these.
    #[must_use]
    pub const fn of_descriptor(domain: &'a str, entries: &'a [(&'a str, &'a [u8])]) -> Request<'a> {
        let target = Target::Descriptor { domain, entries, limit: None };
        Request { target, cost: 1, intent: Intent::Hit, explain: false }
    }

    /// The same descriptor with a limit that it brings; of another target nothing changes.
    #[must_use]
    pub const fn limit(self, limit: Option<Limit>) -> Request<'a> {
        match self.target {
            Target::Descriptor { domain, entries, .. } => {
                Request { target: Target::Descriptor { domain, entries, limit }, ..self }
            }
            Target::Limiter { .. } | Target::Attributes { .. } => self,
        }
    }

    /// The same request at another cost.
    #[must_use]
    pub const fn cost(self, cost: u32) -> Request<'a> {
        Request { cost, ..self }
    }

    /// The same request, charging nothing.
    #[must_use]
    pub const fn peek(self) -> Request<'a> {
        Request { intent: Intent::Peek, ..self }
    }

    /// The same request, with an explanation in its answer.
    #[must_use]
    pub const fn explained(self) -> Request<'a> {
        Request { explain: true, ..self }
    }
}

/// Why a request was answered as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// Allowed.
    Ok,
    /// A limit is used up.
    Limited,
    /// The key is blocked.
    Blocked,
    /// The limiter is disabled: allowed, not counted.
    Disabled,
    /// The cost is above what the limit ever allows.
    CostAboveLimit,
    /// The store did not answer, and it was not asked what the limits say; or this process's share of a limit is less than
    /// the cost.
    Degraded,
}

impl Reason {
    /// The word for it in every interface.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Ok => "ok",
            Reason::Limited => "limited",
            Reason::Blocked => "blocked",
            Reason::Disabled => "disabled",
            Reason::CostAboveLimit => "cost_above_limit",
            Reason::Degraded => "degraded",
        }
    }
}

impl From<all_or_nothing::Reason> for Reason {
    fn from(reason: all_or_nothing::Reason) -> Reason {
        match reason {
            all_or_nothing::Reason::Ok => Reason::Ok,
            all_or_nothing::Reason::Limited => Reason::Limited,
            all_or_nothing::Reason::Blocked => Reason::Blocked,
            all_or_nothing::Reason::CostAboveLimit => Reason::CostAboveLimit,
        }
    }
}

/// The answer. With several limits or limiters it describes the one that decided: the denying one
/// with the longest wait, or when all allow the one with the least remaining.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Answer {
    /// Yes or no.
    pub allowed: bool,
    /// Why.
    pub reason: Reason,
    /// The limiter that decided; `None`: none applied.
    pub limiter: Option<Arc<LimiterSpec>>,
    /// Which of its limits decided, from 0.
    pub limit_index: usize,
    /// The most that can pass at once; `None` when no limit was asked.
    pub limit: Option<u32>,
    /// What is left; `None` when no limit was asked.
    pub remaining: Option<u32>,
    /// On a denial, how long until the same request can pass; `None` then: it never can.
    pub retry_after: Option<Micros>,
    /// Until the limit is as if never used; `None` when no limit was asked.
    pub reset_after: Option<Micros>,
    /// The authority clock's time of this decision.
    pub at: Micros,
    /// The limiter that decided is an alternative: where requests are asked together, another one may have allowed them.
    pub alternative: bool,
    /// The store did not answer: how it was decided without it.
    pub degraded: Option<crate::OnFailure>,
    /// Every limiter that matched, if the request asked for it.
    pub explanation: Vec<Explained>,
}

impl Answer {
    /// Do requests pass that were asked together, by their answers? All have to be allowed, and of those by alternatives one.
    #[must_use]
    pub fn all_pass<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> bool {
        let role = |answer: &Answer| if answer.alternative { Role::Alternative } else { Role::Enforced };
        all_or_nothing::pass(answers.into_iter().map(|answer| (role(answer), answer.allowed)))
    }
}

/// What one limiter that matched had to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explained {
    /// The limiter.
    pub limiter: Arc<LimiterSpec>,
    /// The key it used.
    pub key: Vec<u8>,
    /// False: it is disabled and was not asked.
    pub enabled: bool,
    /// True: it is a candidate, which is counted and told, and decides nothing.
    pub candidate: bool,
    /// True for the one that decided.
    pub decided: bool,
    /// True: another limiter of the request replaces it, and it was not asked.
    pub replaced: bool,
    /// True: it does not limit this key, and was not asked.
    pub unlimited: bool,
    /// Which of its matches holds for the key, from 0; `None`: its own limits do.
    pub matched: Option<usize>,
    /// The limits that were set for the key by hand, if they hold.
    pub overridden: Option<crate::OverrideInfo>,
    /// Until when the key is blocked, if it is.
    pub blocked_until: Option<Micros>,
    /// True when the table was full and the over-counting sketch answered.
    pub sketched: bool,
    /// Each limit with its verdict on this request and its counters after it.
    pub limits: Vec<(Limit, Decision)>,
}

/// Why a question could not be answered. Nothing was charged.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AskError {
    /// No limiter has this name.
    UnknownLimiter {
        /// The name asked for.
        name: String,
        /// The names there are, at most ten.
        known: Vec<String>,
    },
    /// The key is empty or too long.
    Key(KeyError),
    /// The limiter keeps no names, so that its keys cannot be listed.
    NoNames(String),
    /// The states are not in this process: [`crate::Gate::ask`] can wait for them, this call cannot.
    Remote,
    /// The store did not answer, or refused.
    Store(StoreError),
    /// The limiter does not count in buckets, so that it cannot count and ask in separate steps.
    NeedsBuckets {
        /// The limiter.
        limiter: String,
        /// How it counts.
        algorithm: Algorithm,
        /// What was asked of it: `increment` or `analyze`.
        doing: &'static str,
    },
    /// Limits for one key do not suit its limiter.
    Override {
        /// The limiter.
        limiter: String,
        /// Why, with the remedy.
        why: String,
    },
    /// The limiter has as many limits of single keys as it may have.
    TooManyOverrides {
        /// The limiter.
        limiter: String,
    },
    /// Each call of this limiter brings its limit, so that it cannot be asked by its name alone.
    LimitPerCall {
        /// The limiter.
        limiter: String,
    },
    /// The reservation is not open.
    NotReserved,
    /// Something cannot be reserved for so long.
    ReservationSpan(Micros),
    /// The table is full of live keys, so that a block of a new one finds no place.
    Full {
        /// The limiter.
        limiter: String,
    },
}

impl From<KeyError> for AskError {
    fn from(error: KeyError) -> AskError {
        AskError::Key(error)
    }
}

impl From<StoreError> for AskError {
    fn from(error: StoreError) -> AskError {
        AskError::Store(error)
    }
}

impl std::error::Error for AskError {}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::UnknownLimiter { name, known } if known.is_empty() => {
                write!(f, "no limiter is named \"{}\"; the policy has none", name.escape_debug())
            }
            AskError::UnknownLimiter { name, known } => {
                write!(f, "no limiter is named \"{}\"; there are: {}", name.escape_debug(), known.join(", "))
            }
            AskError::Key(error) => error.fmt(f),
            AskError::NoNames(limiter) => write!(
                f,
                "limiter \"{limiter}\" keeps hashes only, so its keys cannot be listed; set names = true to list them"
            ),
            AskError::Remote => {
                write!(f, "the gate's states are in a store on other machines; use Gate::ask, which waits for it")
            }
            AskError::Store(error) => error.fmt(f),
            AskError::NeedsBuckets { limiter, algorithm, doing } => write!(
                f,
                "{doing} needs algorithm = \"buckets\", and limiter \"{limiter}\" has \"{}\"; use a hit, or change its algorithm",
                algorithm.name()
            ),
            AskError::Override { limiter, why } => write!(f, "limiter \"{limiter}\": {why}"),
            AskError::TooManyOverrides { limiter } => write!(
                f,
                "limiter \"{limiter}\" has {OVERRIDES_MAX} overrides, which is all it may have; clear some, or write a [[limiter.match]]"
            ),
            AskError::LimitPerCall { limiter } => write!(
                f,
                "limiter \"{limiter}\" is decided by the limit that each CL.THROTTLE brings; ask it with CL.THROTTLE, or name another limiter"
            ),
            AskError::NotReserved => f.write_str(
                "this reservation is not open: it was committed or canceled before, its time is over, its key was unblocked, or the server was \
                 restarted; what it had charged stays",
            ),
            AskError::ReservationSpan(span) => write!(
                f,
                "{span} is no time for a reservation; choose 1ms to {}",
                crate::RESERVATION_SPAN_MAX
            ),
            AskError::Full { limiter } => write!(
                f,
                "limiter \"{limiter}\" has no place for a new key: the table is full of live keys; raise [store] max_memory"
            ),
        }
    }
}
