//! Many requests that came together and are answered together, each decided by itself: doors that read in batches.

use super::Gate;
use super::limiter::Limiter;
use super::plan::{Check, NEVER, Plan, Role, UNLIMITED, answered};
use crate::{Answer, AskError, Request};
use futures_util::future::join_all;
use std::borrow::Cow;
use std::sync::Arc;
use tidegate_core::all_or_nothing::{Demand, Intent, Ruling};
use tidegate_core::{KeyError, Micros, Rules, check_key};
use tidegate_store::{Asked, Door, Part, Question, Single, decide_all};
use tokio::time::Instant;

/// One hit of many: of cost 1, unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    limiter: &'a Limiter,
    key: &'a [u8],
    demand: Demand,
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
    /// The limiter does not limit this key.
    Unlimited,
}

/// The time of hits that came together: the clock's, and until when a store may answer them.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    now: Micros,
    /// `None`: the embedded store, which is not waited for.
    by: Option<Instant>,
    /// Where they came in.
    door: Door,
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
        Hit { limiter, key, demand: Demand { cost: 1, intent: Intent::Hit } }
    }

    /// The same at another cost.
    #[must_use]
    pub const fn cost(self, cost: u32) -> Hit<'a> {
        Hit { demand: Demand { cost, ..self.demand }, ..self }
    }

    /// The same, charging nothing.
    #[must_use]
    pub const fn peek(self) -> Hit<'a> {
        Hit { demand: Demand { intent: Intent::Peek, ..self.demand }, ..self }
    }

    fn plan(&self, door: Door) -> Plan<'a> {
        Plan::of_key(self.limiter, Cow::Borrowed(self.key), door)
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
        Batch { now, by: (!self.is_embedded()).then(|| self.deadline()), door: self.door() }
    }

    /// Hits many keys, each on its own; `each` gets a hit's place in `hits` and its answer. Hits on one key are decided in
    /// their order, but for the first ones that a Redis gets after its start, before it knows the script. On the embedded store, keys of one limiter are looked up side by side, several times as fast as one by
    /// one. For a store on other machines all are sent before any is waited for; that blocks the thread, until the batch's
    /// deadline at most: not for async code, which has [`Gate::ask_each`].
    #[inline]
    pub fn hit_each(&self, hits: &[Hit<'_>], batch: &Batch, mut each: impl FnMut(usize, HitAnswer)) {
        self.record_each(hits);
        // The common case, which `each` becomes a part of: one table, whose keys have the same rules.
        if self.0.runtime.is_none()
            && let Some(Hit { limiter, .. }) = hits.first()
            && limiter.is_uniform()
            && hits.iter().all(|hit| Arc::ptr_eq(&hit.limiter.table, &limiter.table))
        {
            return decide_uniform(limiter, hits.iter(), batch, each);
        }
        self.hit_each_at_length(hits, batch, &mut each);
    }

    /// The general case: a store on other machines, several limiters, or keys with different rules.
    #[inline(never)]
    fn hit_each_at_length(&self, hits: &[Hit<'_>], batch: &Batch, each: &mut dyn FnMut(usize, HitAnswer)) {
        if let Some(runtime) = &self.0.runtime {
            let answers = runtime.block_on(self.ask_store_each(hits, batch));
            return answers.into_iter().enumerate().for_each(|(place, answer)| each(place, answer));
        }
        decide_each(hits, batch, each);
    }

    /// The same for async code: on the embedded store it never waits, and a store on other machines is waited for without
    /// holding up the thread.
    pub async fn ask_each(&self, hits: &[Hit<'_>], batch: &Batch, mut each: impl FnMut(usize, HitAnswer)) {
        self.record_each(hits);
        if self.is_embedded() {
            return decide_each(hits, batch, each);
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
        keys.iter().for_each(|key| self.record_hit(&limiter, key, cost));
        let now = self.now();
        if !limiter.is_uniform() {
            let decide = |key: &Cow<'_, [u8]>| {
                let request = Request::hit(&limiter.spec.name, key).cost(cost);
                self.decide_plan(&Plan::of_key(&limiter, Cow::Borrowed(&**key), self.door()), &request)
            };
            return Ok(keys.iter().map(decide).collect());
        }
        let (spec, mut answers) = (limiter.in_force(), Vec::with_capacity(keys.len()));
        let hits = keys.iter().map(|key| Single::new(&spec.rules, key, cost, Intent::Hit).at(self.door()));
        limiter.table.decide_each(hits, now, |ruling| answers.push(answered(&spec, &ruling, now)));
        Ok(answers)
    }

    #[inline]
    fn record_each(&self, hits: &[Hit<'_>]) {
        if self.0.recorder.get().is_some() {
            let counted = hits.iter().filter(|hit| hit.demand.intent == Intent::Hit);
            counted.for_each(|hit| self.record_hit(hit.limiter, hit.key, hit.demand.cost));
        }
    }

    /// Hits on a store on other machines, all sent before any is waited for.
    async fn ask_store_each(&self, hits: &[Hit<'_>], batch: &Batch) -> Vec<HitAnswer> {
        let by = batch.by.unwrap_or_else(|| self.deadline());
        let now = self.0.clock.manual_now();
        let ask = async |hit: &Hit<'_>| {
            let Demand { cost, intent } = hit.demand;
            self.ask_one(hit, &Asked { now, cost, intent, explain: false, by }, batch).await
        };
        join_all(hits.iter().map(ask)).await
    }

    async fn ask_one(&self, hit: &Hit<'_>, asked: &Asked, batch: &Batch) -> HitAnswer {
        let plan = hit.plan(batch.door);
        let [check, ..] = plan.0.as_slice() else { return HitAnswer::Unlimited };
        if let Some(answer) = unasked_hit(check, asked.intent, batch.now) {
            return answer;
        }
        if hit.limiter.is_shared() {
            return hit_plan(&plan, hit.demand, batch.now);
        }
        let store = &hit.limiter.store;
        if !store.answers() {
            return self.hit_without_store(check, hit.demand);
        }
        let questions = plan.asked();
        let questions: Vec<Question<'_>> = questions.iter().map(|(check, role)| check.question(*role)).collect();
        let outcome = store.decide(&questions, asked).await;
        self.0.errors.note(&questions, asked.intent, &outcome);
        match outcome {
            Ok(answers) if answers.1.len() == questions.len() => {
                plan.note_all(&answers, asked.intent);
                hit_answer(check, answers.1[0].ruling)
            }
            _ => self.hit_without_store(check, hit.demand),
        }
    }

    /// A hit whose store does not answer. A candidate is not counted then.
    fn hit_without_store(&self, check: &Check<'_>, demand: Demand) -> HitAnswer {
        if check.is_candidate() { HitAnswer::Unlimited } else { self.hit_degraded(check, demand) }
    }

    /// A hit through a handle, where keys have different rules or there are candidates. `None`: no limit decided.
    #[cold]
    pub(super) fn hit_by_standing(&self, limiter: &Limiter, key: &[u8], cost: u32) -> Option<Ruling> {
        let demand = Demand { cost, intent: Intent::Hit };
        match hit_plan(&Plan::of_key(limiter, Cow::Borrowed(key), self.door()), demand, self.now()) {
            HitAnswer::Ruled { ruling, .. } => Some(ruling),
            HitAnswer::Disabled | HitAnswer::Unlimited => None,
        }
    }
}

/// The answer to a hit whose limiter asks no store for it; `None`: limits are asked.
pub(super) fn unasked_hit(check: &Check<'_>, intent: Intent, at: Micros) -> Option<HitAnswer> {
    let answer = match check.role {
        Role::Enforced => return None,
        Role::Disabled => HitAnswer::Disabled,
        Role::Replaced => HitAnswer::Unlimited,
        Role::Unlimited => {
            check.note(&UNLIMITED, true, intent, at);
            HitAnswer::Unlimited
        }
        Role::Denied => {
            check.note(&NEVER, false, intent, at);
            HitAnswer::ruled(&check.spec.rules, NEVER)
        }
    };
    Some(if check.is_candidate() { HitAnswer::Unlimited } else { answer })
}

/// What a ruling comes to: a candidate's limits nothing.
pub(super) fn hit_answer(check: &Check<'_>, ruling: Ruling) -> HitAnswer {
    if check.is_candidate() { HitAnswer::Unlimited } else { HitAnswer::ruled(&check.spec.rules, ruling) }
}

/// One hit of a batch by its plan, on the embedded store.
fn hit_plan(plan: &Plan<'_>, Demand { cost, intent }: Demand, now: Micros) -> HitAnswer {
    let [check, candidates @ ..] = plan.0.as_slice() else { return HitAnswer::Unlimited };
    if let Some(answer) = unasked_hit(check, intent, now) {
        return answer;
    }
    let mut told = UNLIMITED;
    if candidates.is_empty() {
        let hit = [Single::new(&check.spec.rules, &check.key, cost, intent).at(check.door)].into_iter();
        check.limiter.table.decide_each(hit, now, |ruling| told = ruling);
    } else {
        let asked = plan.asked();
        let parts: Vec<Part<'_>> = asked.iter().map(|(check, role)| check.part(*role)).collect();
        let (_, answers) = decide_all(&parts, cost, intent, false, || now);
        told = answers.first().map_or(told, |answer| answer.ruling);
    }
    hit_answer(check, told)
}

/// Hits on the embedded store.
#[inline]
fn decide_each(hits: &[Hit<'_>], batch: &Batch, mut each: impl FnMut(usize, HitAnswer)) {
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

/// Hits on one table of the embedded store, in their order, each by the rules of its own handle; `each` gets a hit's place among `hits`.
#[inline]
fn decide_same<'h>(
    first: &Limiter,
    hits: impl ExactSizeIterator<Item = &'h Hit<'h>> + Clone,
    batch: &Batch,
    mut each: impl FnMut(usize, HitAnswer),
) {
    if !first.is_uniform() {
        let decide = |hit: &Hit<'_>| hit_plan(&hit.plan(batch.door), hit.demand, batch.now);
        return hits.enumerate().for_each(|(place, hit)| each(place, decide(hit)));
    }
    decide_uniform(first, hits, batch, each);
}

/// The same where all keys have the rules of their handle.
#[inline]
fn decide_uniform<'h>(
    first: &Limiter,
    hits: impl ExactSizeIterator<Item = &'h Hit<'h>> + Clone,
    batch: &Batch,
    mut each: impl FnMut(usize, HitAnswer),
) {
    // A share changes while it is asked: the same for all of them.
    let share = first.share.as_ref().map(|_| first.in_force());
    let rules = |limiter: &'h Limiter| share.as_ref().map_or(&limiter.spec.rules, |spec| &spec.rules);
    let (mut place, mut told) = (0, hits.clone());
    let requests = hits.map(|hit| {
        let Demand { cost, intent } = hit.demand;
        Single::new(rules(hit.limiter), hit.key, cost, intent).at(batch.door)
    });
    first.table.decide_each(requests, batch.now, |ruling| {
        if let Some(hit) = told.next() {
            each(place, HitAnswer::ruled(rules(hit.limiter), ruling));
        }
        place += 1;
    });
}
