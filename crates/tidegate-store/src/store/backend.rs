//! What a store has to do to be one.
//!
//! A store implements what it can; what it leaves out is refused with [`StoreError::Unsupported`], and its
//! [`Capabilities`] say so, so that a configuration that needs it is refused before.

use super::{
    Answers, Asked, Capabilities, Holder, Layout, NewOverride, Overrides, Placed, Question, Register, Reserve,
    Reserved, Settled, StoreError, Swap, When,
};
use crate::table::{Listing, PageOf, PartAnswer};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked};
use tidegate_core::turnstile::{Grant, QuotaRequest};

/// One store. The engine asks it through [`super::Store`].
pub(crate) trait Backend {
    fn capabilities(&self) -> Capabilities;

    /// Where it is; no password.
    fn address(&self) -> String;

    /// False: do not ask it now, the answer would be an error. Costs next to nothing.
    fn answers(&self) -> bool;

    /// Why it cannot be asked, if it cannot.
    fn down(&self) -> Option<StoreError>;

    /// Decides a request of one or several keys, all or nothing.
    async fn decide(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError>;

    /// Which of these limiters are disabled.
    async fn disabled(&self, limiters: &[(&str, Layout)], when: When) -> Result<Vec<bool>, StoreError>;

    /// Disables a limiter for every process, or enables it.
    async fn set_disabled(&self, limiter: &str, layout: Layout, disabled: bool, when: When) -> Result<(), StoreError>;

    /// Counts for a key of buckets at `at`, `None`: now, whatever its limits say. The store's time, and whether it was
    /// counted: not when `at` is older than what is kept.
    async fn increment(
        &self,
        _question: &Question<'_>,
        _count: u32,
        _at: Option<Micros>,
        _when: When,
    ) -> Result<(Micros, bool), StoreError> {
        Err(self.cannot("count without asking"))
    }

    /// Has a key of buckets reached a limit? Blocks it then.
    async fn analyze(
        &self,
        _question: &Question<'_>,
        _if_blocked: IfBlocked,
        _when: When,
    ) -> Result<(Micros, Analysis), StoreError> {
        Err(self.cannot("ask without counting"))
    }

    /// Gives back so much of what a key was charged, the latest first. How it stands then.
    async fn give_back(
        &self,
        _question: &Question<'_>,
        _cost: u32,
        _when: When,
    ) -> Result<(Micros, PartAnswer), StoreError> {
        Err(self.cannot("give back what was charged"))
    }

    /// Charges a key if its limits allow it, and remembers how to give that back.
    async fn reserve(&self, _question: &Question<'_>, _reserve: &Reserve, _when: When) -> Result<Reserved, StoreError> {
        Err(self.cannot("keep reservations"))
    }

    /// Ends a reservation at its real cost; `None`: it is not open.
    async fn settle(
        &self,
        _question: &Question<'_>,
        _nonce: u128,
        _cost: u32,
        _when: When,
    ) -> Result<Option<Settled>, StoreError> {
        Err(self.cannot("keep reservations"))
    }

    /// Blocks a key for `span` from now, and says until when; `None`: the store is full.
    async fn block(&self, _question: &Question<'_>, _span: Micros, _when: When) -> Result<Option<Micros>, StoreError> {
        Err(self.cannot("block keys by hand"))
    }

    /// Forgets a key's history and block; was it blocked?
    async fn unblock(&self, _question: &Question<'_>, _when: When) -> Result<bool, StoreError> {
        Err(self.cannot("unblock keys by hand"))
    }

    /// Forgets every blocked key of the question's limiter; how many were there?
    async fn unblock_all(&self, _question: &Question<'_>, _when: When) -> Result<u64, StoreError> {
        Err(self.cannot("unblock keys by hand"))
    }

    /// Names of keys of the question's limiter.
    async fn list(&self, _question: &Question<'_>, _page: PageOf, _when: When) -> Result<Listing, StoreError> {
        Err(self.cannot("list keys"))
    }

    /// Gives one key of a limiter other limits.
    async fn set_override(
        &self,
        _limiter: &str,
        _key: &[u8],
        _new: &NewOverride,
        _when: When,
    ) -> Result<Placed, StoreError> {
        Err(self.cannot("keep limits of single keys"))
    }

    /// Takes them back; were there any?
    async fn clear_override(&self, _limiter: &str, _key: &[u8], _when: When) -> Result<bool, StoreError> {
        Err(self.cannot("keep limits of single keys"))
    }

    /// Of each limiter all of them, if they have changed since the version that is known.
    async fn overrides(
        &self,
        _limiters: &[(&str, Option<u64>)],
        _when: When,
    ) -> Result<Vec<Option<Overrides>>, StoreError> {
        Err(self.cannot("keep limits of single keys"))
    }

    /// Asks for starts of one key of a pool, and for slots.
    async fn grant(&self, _holder: Holder<'_>, _want: &QuotaRequest, _within: Duration) -> Result<Grant, StoreError> {
        Err(self.cannot("let replicas count together"))
    }

    /// Keeps the slots that a replica holds from being taken for lost.
    async fn keep_slots(
        &self,
        _holder: Holder<'_>,
        _held: &[QuotaRequest],
        _within: Duration,
    ) -> Result<(), StoreError> {
        Err(self.cannot("let replicas count together"))
    }

    /// Round trips that grants took so far.
    fn grant_round_trips(&self) -> u64 {
        0
    }

    /// Writes a register's new text over the one that was read last, and returns what is there afterwards.
    async fn swap(&self, _register: Register<'_>, _swap: Swap<'_>, _within: Duration) -> Result<String, StoreError> {
        Err(self.cannot("keep a register of replicas"))
    }

    /// What people should know of the way it is set up, if that puts limits at risk.
    async fn warning(&self) -> Option<String> {
        None
    }

    /// Where to go for what it cannot do. A store that is a Redis itself has another remedy.
    fn remedy(&self) -> &'static str {
        "use kind = \"redis\" in [store] for that"
    }

    fn cannot(&self, what: &str) -> StoreError {
        StoreError::Unsupported(format!("{} does not {what}; {}", self.capabilities().name, self.remedy()))
    }
}
