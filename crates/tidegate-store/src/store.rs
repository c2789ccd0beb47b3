//! The one store: what the engine, the proxy, the register of replicas and streams ask, whichever store answers.
//!
//! The questions and answers are in `question.rs`, what a store has to do in `backend.rs`. A new store is a folder
//! whose `Store` implements [`Backend`] and has `connect`, whose `Url` has `is_of` and `capabilities`, and a line in
//! `each_store!`. This is the one place where features are
//! looked at: past it no code knows which stores were compiled in, or which one is asked.

mod backend;
mod embedded;
mod error;
mod question;

pub(crate) use backend::Backend;
pub use embedded::Embedded;
pub use error::{Meaning, StoreError, UrlError};
pub use question::{
    Answers, Asked, Capabilities, Holder, Layout, NewOverride, Override, Overrides, Placed, Question, Register,
    Reserve, Reserved, Settled, Swap, When,
};

use crate::clock::Clock;
use crate::memory::Memory;
use crate::table::{Listing, PageOf, PartAnswer};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked};
use tidegate_core::turnstile::{Grant, QuotaRequest};

/// The stores on other machines: feature, name, folder. Calls `$then` with this list and what follows.
macro_rules! each_store {
    ($then:ident $($rest:tt)*) => {
        $then! { [("redis" Redis redis) ("etcd" Etcd etcd) ("remote-memory" RemoteMemory remote_memory)] $($rest)* }
    };
}

macro_rules! define {
    ([$(($feature:literal $name:ident $folder:ident))*]) => {
        /// Where states live. Opened once in a process; clones are the same store.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Store {
            /// In this process.
            Embedded(Embedded),
            $(
                /// On other machines.
                #[cfg(feature = $feature)]
                $name(Arc<crate::$folder::Store>),
            )*
        }

        /// Where a store on other machines is.
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub enum StoreUrl {
            $(
                #[doc = concat!("A store of kind \"", $feature, "\".")]
                #[cfg(feature = $feature)]
                $name(crate::$folder::Url),
            )*
        }

        $(
            #[cfg(feature = $feature)]
            impl From<crate::$folder::Url> for StoreUrl {
                fn from(url: crate::$folder::Url) -> StoreUrl {
                    StoreUrl::$name(url)
                }
            }
        )*

        impl fmt::Display for StoreUrl {
            #[cfg_attr(not(any($(feature = $feature),*)), expect(unused_variables, reason = "there is no such URL"))]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(
                        #[cfg(feature = $feature)]
                        StoreUrl::$name(ref url) => url.fmt(f),
                    )*
                }
            }
        }

        impl StoreUrl {
            /// What the store there can do.
            #[must_use]
            pub fn capabilities(&self) -> Capabilities {
                match *self {
                    $(
                        #[cfg(feature = $feature)]
                        StoreUrl::$name(ref url) => url.capabilities(),
                    )*
                }
            }
        }

        /// The kinds of store whose addresses begin so are tried in the order of the list.
        impl FromStr for StoreUrl {
            type Err = UrlError;

            fn from_str(text: &str) -> Result<StoreUrl, UrlError> {
                $(
                    #[cfg(feature = $feature)]
                    if crate::$folder::Url::is_of(text) {
                        return text.parse().map(StoreUrl::$name);
                    }
                )*
                Err(UrlError::new(format!("\"{}\" is the address of no store that is built in", text.escape_debug())))
            }
        }

        impl Store {
            /// Connects to a store on other machines, or goes on trying in the background; see [`Store::down`]. Needs a
            /// running tokio runtime.
            #[cfg_attr(not(any($(feature = $feature),*)), expect(unused_variables, reason = "there is no such URL"))]
            pub async fn open(url: StoreUrl, clock: &Clock) -> Store {
                match url {
                    $(
                        #[cfg(feature = $feature)]
                        StoreUrl::$name(url) => Store::$name(Arc::new(crate::$folder::Store::connect(url, clock).await)),
                    )*
                }
            }
        }
    };
}
each_store!(define);

/// Asks the store behind a [`Store`].
macro_rules! ask {
    ($store:expr, $backend:ident => $call:expr) => { each_store!(dispatch $store, $backend => $call) };
}

macro_rules! dispatch {
    ([$(($feature:literal $name:ident $folder:ident))*] $store:expr, $backend:ident => $call:expr) => {
        match $store {
            Store::Embedded($backend) => $call,
            $(
                #[cfg(feature = $feature)]
                Store::$name($backend) => $call,
            )*
        }
    };
}

impl Store {
    /// This process's tables, by this clock.
    #[must_use]
    pub fn embedded(memory: Arc<Memory>, clock: &Clock) -> Store {
        Store::Embedded(Embedded::new(memory, clock))
    }

    /// True when states are in this process: no question waits.
    #[must_use]
    #[inline]
    pub const fn is_embedded(&self) -> bool {
        matches!(self, Store::Embedded(_))
    }

    /// What it can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        ask!(self, store => store.capabilities())
    }

    /// Where it is; no password.
    #[must_use]
    pub fn address(&self) -> String {
        ask!(self, store => store.address())
    }

    /// False: do not ask it now, the answer would be an error. Costs next to nothing.
    #[must_use]
    #[inline]
    pub fn answers(&self) -> bool {
        ask!(self, store => store.answers())
    }

    /// Why it cannot be asked, if it cannot.
    #[must_use]
    pub fn down(&self) -> Option<StoreError> {
        ask!(self, store => store.down())
    }

    /// Decides a request of one or several keys, all or nothing. One round trip; see each store for where it is more.
    ///
    /// # Errors
    /// When the store does not answer; [`StoreError::is_ambiguous`] tells whether it may have been charged.
    pub async fn decide(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        ask!(self, store => store.decide(questions, asked).await)
    }

    /// Counts for a key of buckets at a time of the caller's, `None`: now; whatever its limits say. Returns the store's
    /// time, and whether it was counted: not when `at` is older than what is kept.
    ///
    /// # Errors
    /// When the store does not answer, or cannot do this; so do all that follow.
    pub async fn increment(
        &self,
        question: &Question<'_>,
        count: u32,
        at: Option<Micros>,
        when: When,
    ) -> Result<(Micros, bool), StoreError> {
        ask!(self, store => store.increment(question, count, at, when).await)
    }

    /// Has a key of buckets reached a limit? Blocks it then. Returns the store's time with the answer.
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn analyze(
        &self,
        question: &Question<'_>,
        if_blocked: IfBlocked,
        when: When,
    ) -> Result<(Micros, Analysis), StoreError> {
        ask!(self, store => store.analyze(question, if_blocked, when).await)
    }

    /// Gives back so much of what a key was charged, the latest first. Returns the store's time, and how the key stands
    /// then. Two round trips at most.
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn give_back(
        &self,
        question: &Question<'_>,
        cost: u32,
        when: When,
    ) -> Result<(Micros, PartAnswer), StoreError> {
        ask!(self, store => store.give_back(question, cost, when).await)
    }

    /// Charges a key if its limits allow it, and remembers how to give that back. Two round trips.
    ///
    /// # Errors
    /// As [`Store::increment`]; and when the limiter cannot give back.
    pub async fn reserve(
        &self,
        question: &Question<'_>,
        reserve: &Reserve,
        when: When,
    ) -> Result<Reserved, StoreError> {
        let algorithm = question.rules.algorithm();
        if !algorithm.gives_back() {
            let what = format!("{} gives nothing back; use another algorithm", algorithm.name());
            return Err(StoreError::Unsupported(what));
        }
        ask!(self, store => store.reserve(question, reserve, when).await)
    }

    /// Ends a reservation at its real cost: what was charged too much is given back where it was counted, what was charged too little
    /// is charged whatever the limits say. `None`: it is not open, as it has ended, or never was. Three round trips.
    ///
    /// # Errors
    /// As [`Store::increment`]; the charge stays then, and the reservation may have ended.
    pub async fn settle(
        &self,
        question: &Question<'_>,
        nonce: u128,
        cost: u32,
        when: When,
    ) -> Result<Option<Settled>, StoreError> {
        ask!(self, store => store.settle(question, nonce, cost, when).await)
    }

    /// Blocks a key for `span` from now, and says until when; `None`: the store is full of live keys.
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn block(&self, question: &Question<'_>, span: Micros, when: When) -> Result<Option<Micros>, StoreError> {
        ask!(self, store => store.block(question, span, when).await)
    }

    /// Forgets a key's history and block; was it blocked?
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn unblock(&self, question: &Question<'_>, when: When) -> Result<bool, StoreError> {
        ask!(self, store => store.unblock(question, when).await)
    }

    /// Forgets every blocked key of the question's limiter; how many were there?
    ///
    /// # Errors
    /// As [`Store::increment`]; some may be unblocked then.
    pub async fn unblock_all(&self, question: &Question<'_>, when: When) -> Result<u64, StoreError> {
        ask!(self, store => store.unblock_all(question, when).await)
    }

    /// Names of keys of the question's limiter.
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn list(&self, question: &Question<'_>, page: PageOf, when: When) -> Result<Listing, StoreError> {
        ask!(self, store => store.list(question, page, when).await)
    }

    /// Which of these limiters are disabled; one round trip for all.
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn disabled(&self, limiters: &[(&str, Layout)], when: When) -> Result<Vec<bool>, StoreError> {
        ask!(self, store => store.disabled(limiters, when).await)
    }

    /// Disables a limiter for every process, or enables it.
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn set_disabled(
        &self,
        limiter: &str,
        layout: Layout,
        disabled: bool,
        when: When,
    ) -> Result<(), StoreError> {
        ask!(self, store => store.set_disabled(limiter, layout, disabled, when).await)
    }

    /// Gives one key of a limiter other limits, for every process.
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn set_override(
        &self,
        limiter: &str,
        key: &[u8],
        new: &NewOverride,
        when: When,
    ) -> Result<Placed, StoreError> {
        ask!(self, store => store.set_override(limiter, key, new, when).await)
    }

    /// Takes a key's other limits back; were there any?
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn clear_override(&self, limiter: &str, key: &[u8], when: When) -> Result<bool, StoreError> {
        ask!(self, store => store.clear_override(limiter, key, when).await)
    }

    /// Of each limiter all limits of single keys, if they have changed since the version that is known; one round trip for all where
    /// they have not.
    ///
    /// # Errors
    /// As [`Store::increment`].
    pub async fn overrides(
        &self,
        limiters: &[(&str, Option<u64>)],
        when: When,
    ) -> Result<Vec<Option<Overrides>>, StoreError> {
        ask!(self, store => store.overrides(limiters, when).await)
    }

    /// Asks for starts of one key of a pool that replicas share, and for slots. One round trip, where replicas ask at the
    /// same time more.
    ///
    /// # Errors
    /// As [`Store::increment`]. The store may have counted all the same: then fewer start, not more.
    pub async fn grant(&self, holder: Holder<'_>, want: &QuotaRequest, within: Duration) -> Result<Grant, StoreError> {
        ask!(self, store => store.grant(holder, want, within).await)
    }

    /// Keeps the slots that a replica holds from being taken for lost.
    ///
    /// # Errors
    /// As [`Store::increment`], for any of them.
    pub async fn keep_slots(
        &self,
        holder: Holder<'_>,
        held: &[QuotaRequest],
        within: Duration,
    ) -> Result<(), StoreError> {
        ask!(self, store => store.keep_slots(holder, held, within).await)
    }

    /// Round trips that grants took so far, those that failed included.
    #[must_use]
    pub fn grant_round_trips(&self) -> u64 {
        ask!(self, store => store.grant_round_trips())
    }

    /// Writes a register's new text over the one that was read last, and returns what is there afterwards.
    ///
    /// # Errors
    /// As [`Store::increment`]. It may have been written all the same.
    pub async fn swap(&self, register: Register<'_>, swap: Swap<'_>, within: Duration) -> Result<String, StoreError> {
        ask!(self, store => store.swap(register, swap, within).await)
    }

    /// What people should know of the way the store is set up, if that puts limits at risk.
    pub async fn warning(&self) -> Option<String> {
        ask!(self, store => store.warning().await)
    }

    /// The Redis, for what is written as its scripts: event streams.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn scripts(&self) -> Option<&Arc<crate::redis::Redis>> {
        match self {
            Store::Redis(redis) => Some(redis),
            _ => None,
        }
    }
}
