//! Many requests that came together and are answered together, each decided by itself: doors that read in batches.

use super::Gate;
use super::limiter::Limiter;
use super::plan::answered;
use crate::{Answer, AskError, Request};
use futures_util::future::join_all;
use std::borrow::Cow;
use std::sync::Arc;
use tidegate_core::all_or_nothing::{Intent, Ruling};
use tidegate_core::{KeyError, Limit, Micros, Rules, RulesError, check_key};
use tidegate_store::{Asked, Question, Single, When};
use tokio::time::Instant;

/// One hit of many: of cost 1, unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    pub(super) limiter: &'a Limiter,
    pub(super) key: &'a [u8],
    pub(super) cost: u32,
    pub(super) intent: Intent,
}

/// The answer to one hit of many.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum HitAnswer {
    /// A limit decided.
    Ruled {
        /// What it says.
        ruling: Ruling,
        /// The period of the limit that decided, as it was in force then.
        period: Micros,
    },
    /// The limiter is disabled.
    Disabled,
}

/// The time of hits that came together: the clock's, and until when a store may answer them.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    now: Micros,
    /// `None`: the embedded store, which is not waited for.
    by: Option<Instant>,
}

impl<'a> Hit<'a> {
    /// A hit on a key of 1 to 512 bytes.
    ///
    /// # Errors
    /// When the key is empty or longer.
    pub fn new(limiter: &'a Limiter, key: &'a [u8]) -> Result<Hit<'a>, KeyError> {
        check_key(key)?;
        Ok(Hit::from_door(limiter, key))
    }

    /// The same for a door whose protocol has keys of any length, and bounds them itself.
    #[must_use]
    pub const fn from_door(limiter: &'a Limiter, key: &'a [u8]) -> Hit<'a> {
        Hit { limiter, key, cost: 1, intent: Intent::Hit }
    }

    /// The same at another cost.
    #[must_use]
    pub const fn cost(self, cost: u32) -> Hit<'a> {
        Hit { cost, ..self }
    }

    /// The same, charging nothing.
    #[must_use]
    pub const fn peek(self) -> Hit<'a> {
        Hit { intent: Intent::Peek, ..self }
    }
}

impl Batch {
    /// The reading of the clock that it began at.
    #[must_use]
    pub const fn now(&self) -> Micros {
        self.now
    }
}

impl HitAnswer {
    /// A ruling by these rules.
    #[inline]
    pub(super) fn ruled(rules: &Rules, ruling: Ruling) -> HitAnswer {
        let limit = rules.limits().get(usize::from(ruling.limit_index));
        HitAnswer::Ruled { ruling, period: limit.map_or(Micros::ZERO, |limit| limit.period()) }
    }
}

impl Gate {
    /// Begins a batch at this reading of the clock.
    #[must_use]
    pub fn batch(&self, now: Micros) -> Batch {
        Batch { now, by: (!self.is_embedded()).then(|| self.deadline()) }
    }

    /// Hits many keys, each on its own; `each` gets a hit's place in `hits` and its answer. Hits on one key are decided in
    /// their order. On the embedded store, keys of one limiter are looked up side by side, several times as fast as one by
    /// one. For a store on other machines all are sent before any is waited for; that blocks the thread, until the batch's
    /// deadline at most: not for async code, which has [`Gate::ask_each`].
    #[inline]
    pub fn hit_each(&self, hits: &[Hit<'_>], batch: &Batch, mut each: impl FnMut(usize, HitAnswer)) {
        if let Some(runtime) = &self.0.runtime {
            let answers = runtime.block_on(self.ask_store_each(hits, batch));
            return answers.into_iter().enumerate().for_each(|(place, answer)| each(place, answer));
        }
        let Some(first) = hits.first() else { return };
        if hits.iter().all(|hit| Arc::ptr_eq(&hit.limiter.table, &first.limiter.table)) {
            return decide_same(first.limiter, hits.iter(), batch, each);
        }
        // One pass for each limiter.
        let mut left: Vec<usize> = (0..hits.len()).collect();
        while let Some(limiter) = left.first().map(|place| hits[*place].limiter) {
            let same: Vec<usize> =
                left.extract_if(.., |place| Arc::ptr_eq(&hits[*place].limiter.table, &limiter.table)).collect();
            let hits = same.iter().map(|place| &hits[*place]);
            decide_same(limiter, hits, batch, |index, answer| each(same[index], answer));
        }
    }

    /// The same for async code: on the embedded store it never waits, and a store on other machines is waited for without
    /// holding up the thread.
    pub async fn ask_each(&self, hits: &[Hit<'_>], batch: &Batch, mut each: impl FnMut(usize, HitAnswer)) {
        if self.is_embedded() {
            return self.hit_each(hits, batch, each);
        }
        let answers = self.ask_store_each(hits, batch).await;
        answers.into_iter().enumerate().for_each(|(place, answer)| each(place, answer));
    }

    /// Many requests, each decided by itself as [`Gate::ask`] would, in their order. On a store on other machines all are sent before any
    /// is waited for: about one round trip, and one deadline, for all of them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate::{Algorithm, Gate, LimiterSpec, Policy, Request, Rules};
    /// let rules = Rules::new(Algorithm::TokenBucket, &["2 per minute".parse()?])?;
    /// let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("api", rules)])?);
    /// let requests = [Request::hit("api", b"a"), Request::hit("api", b"a").cost(2), Request::hit("api", b"b")];
    /// let allowed = gate.ask_many(&requests).await.into_iter().map(|answer| answer.is_ok_and(|answer| answer.allowed));
    /// assert_eq!(allowed.collect::<Vec<_>>(), [true, false, true]);
    /// # Ok(()) }
    /// ```
    pub async fn ask_many(&self, requests: &[Request<'_>]) -> Vec<Result<Answer, AskError>> {
        if self.is_embedded() {
            return requests.iter().map(|request| self.decide(request)).collect();
        }
        join_all(requests.iter().map(|request| self.ask(request))).await
    }

    /// Hits many keys of one limiter, each on its own, on any store: as [`Gate::decide_many`] on the embedded one, and in about one
    /// round trip on one on other machines.
    ///
    /// # Errors
    /// An unknown limiter, or a bad key, of which the first is named; nothing is charged then.
    pub async fn hit_many(&self, limiter: &str, keys: &[&[u8]], cost: u32) -> Result<Vec<Answer>, AskError> {
        if self.is_embedded() {
            return self.decide_many(limiter, keys, cost);
        }
        keys.iter().try_for_each(|key| check_key(key))?;
        let requests: Vec<Request<'_>> = keys.iter().map(|key| Request::hit(limiter, key).cost(cost)).collect();
        self.ask_many(&requests).await.into_iter().collect()
    }

    /// Hits many keys of one limiter, each on its own, with one reading of the clock. For the embedded store, whose entries are then
    /// fetched side by side.
    ///
    /// # Errors
    /// As [`Gate::decide`], for the first bad key; nothing is charged then.
    pub fn decide_many(&self, limiter: &str, keys: &[&[u8]], cost: u32) -> Result<Vec<Answer>, AskError> {
        self.is_local()?;
        let limiter = self.limiter(limiter)?;
        limiter.check_has_limit()?;
        let keys: Vec<Cow<'_, [u8]>> = keys.iter().map(|key| limiter.spec.key_by_name(key)).collect();
        keys.iter().try_for_each(|key| check_key(key))?;
        let now = self.now();
        let Some(spec) = limiter.enforced() else { return Ok(vec![limiter.disabled_answer(now); keys.len()]) };
        let mut answers = Vec::with_capacity(keys.len());
        let hits = keys.iter().map(|key| Single { rules: &spec.rules, key, cost, intent: Intent::Hit });
        limiter.table.decide_each(hits, now, |ruling| answers.push(answered(&spec, &ruling, now)));
        Ok(answers)
    }

    /// A limiter by another limit, for one whose calls bring their limits; its keys keep their states. For a token bucket only.
    ///
    /// # Errors
    /// When the limit is too fine or too large to count exactly.
    pub fn with_limit(&self, limiter: &Limiter, limit: Limit) -> Result<Limiter, RulesError> {
        Ok(limiter.with_rules(Rules::per_call(limit)?, self.0.failure.local_share))
    }

    /// Gives back what a key of a token bucket was charged before, up to a full bucket, and says how it stands then.
    ///
    /// # Errors
    /// When the store cannot do it. One that does not answer leaves the charge; `on_failure` then says how things stand.
    pub async fn give_back(&self, limiter: &Limiter, key: &[u8], cost: u32) -> Result<HitAnswer, AskError> {
        let Some(spec) = limiter.enforced() else { return Ok(HitAnswer::Disabled) };
        if limiter.store.is_embedded() {
            return Ok(HitAnswer::ruled(&spec.rules, limiter.table.give_back(&spec.rules, key, cost, || self.now())));
        }
        if !limiter.store.answers() {
            return Ok(self.give_back_degraded(limiter, key, cost));
        }
        let question = Question { cost, ..limiter.question(&spec, key) };
        let when = When { now: self.0.clock.manual_now(), by: self.deadline() };
        match limiter.store.give_back(&question, when).await {
            Ok((_, told)) => Ok(HitAnswer::ruled(&spec.rules, told.ruling)),
            Err(error @ tidegate_store::StoreError::Unsupported(_)) => Err(error.into()),
            Err(_) => Ok(self.give_back_degraded(limiter, key, cost)),
        }
    }

    /// Hits on a store on other machines, all sent before any is waited for.
    async fn ask_store_each(&self, hits: &[Hit<'_>], batch: &Batch) -> Vec<HitAnswer> {
        let by = batch.by.unwrap_or_else(|| self.deadline());
        let now = self.0.clock.manual_now();
        join_all(hits.iter().map(|hit| {
            let asked = Asked { now, intent: hit.intent, explain: false, by };
            async move { self.ask_one(hit, &asked, batch).await }
        }))
        .await
    }

    async fn ask_one(&self, hit: &Hit<'_>, asked: &Asked, batch: &Batch) -> HitAnswer {
        let Hit { limiter, key, cost, intent } = *hit;
        let Some(spec) = limiter.enforced() else { return HitAnswer::Disabled };
        if limiter.is_shared() {
            let ruling = limiter.table.decide(&spec.rules, key, cost, intent, || batch.now);
            return HitAnswer::ruled(&spec.rules, ruling);
        }
        if !limiter.store.answers() {
            return self.hit_degraded(hit);
        }
        let questions = [Question { cost, ..limiter.question(&spec, key) }];
        let outcome = limiter.store.decide(&questions, asked).await;
        self.0.errors.note(&questions, intent, &outcome);
        match outcome.as_ref().map(|(at, told)| (*at, told.as_slice())) {
            Ok((at, [told])) => {
                limiter.note(key, &told.ruling, told.ruling.is_allowed(), intent, at);
                HitAnswer::ruled(&spec.rules, told.ruling)
            }
            _ => self.hit_degraded(hit),
        }
    }
}

impl Limiter {
    /// An error where each call brings the limit.
    ///
    /// # Errors
    /// [`AskError::LimitPerCall`].
    pub fn check_has_limit(&self) -> Result<(), AskError> {
        match self.spec.limit_per_call {
            true => Err(AskError::LimitPerCall { limiter: self.spec.name.clone() }),
            false => Ok(()),
        }
    }
}

/// Hits on one table of the embedded store, in their order, each by the rules of its own handle.
#[inline]
fn decide_same<'h>(
    first: &Limiter,
    hits: impl ExactSizeIterator<Item = &'h Hit<'h>> + Clone,
    batch: &Batch,
    mut each: impl FnMut(usize, HitAnswer),
) {
    if !first.is_enforced() {
        return (0..hits.len()).for_each(|place| each(place, HitAnswer::Disabled));
    }
    // A share changes while it is asked: the same for all of them.
    let share = first.share.as_ref().map(|_| first.in_force());
    let rules = |limiter: &'h Limiter| share.as_ref().map_or(&limiter.spec.rules, |spec| &spec.rules);
    let (mut place, mut told) = (0, hits.clone());
    let requests =
        hits.map(|hit| Single { rules: rules(hit.limiter), key: hit.key, cost: hit.cost, intent: hit.intent });
    first.table.decide_each(requests, batch.now, |ruling| {
        if let Some(hit) = told.next() {
            each(place, HitAnswer::ruled(rules(hit.limiter), ruling));
        }
        place += 1;
    });
}
