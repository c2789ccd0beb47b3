//! Many hits that came together and are answered together: doors that read in batches.

use super::Gate;
use super::limiter::Limiter;
use super::plan::{Check, NEVER, Plan, Role, UNLIMITED, answered};
use crate::{Answer, AskError, LimiterSpec, Request};
use std::borrow::Cow;
use std::sync::Arc;
use tidegate_core::all_or_nothing::{Intent, Ruling};
use tidegate_core::{KeyError, Micros, check_key};
use tidegate_store::{Asked, Part, Question, decide_all};
use tokio::time::Instant;

/// One hit of many.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    limiter: &'a Limiter,
    key: &'a [u8],
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
}

impl<'a> Hit<'a> {
    /// A hit on a key of 1 to 512 bytes.
    ///
    /// # Errors
    /// When the key is empty or longer.
    pub fn new(limiter: &'a Limiter, key: &'a [u8]) -> Result<Hit<'a>, KeyError> {
        check_key(key)?;
        Ok(Hit { limiter, key })
    }

    /// The same for a door whose protocol has keys of any length, and bounds them itself.
    #[must_use]
    pub const fn from_door(limiter: &'a Limiter, key: &'a [u8]) -> Hit<'a> {
        Hit { limiter, key }
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
    /// A ruling by the rules of `spec`.
    #[inline]
    pub(super) fn ruled(spec: &LimiterSpec, ruling: Ruling) -> HitAnswer {
        let limit = spec.rules.limits().get(usize::from(ruling.limit_index));
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
    /// deadline at most: not for async code.
    #[inline]
    pub fn hit_each(&self, hits: &[Hit<'_>], cost: u32, batch: &Batch, mut each: impl FnMut(usize, HitAnswer)) {
        if self.0.recorder.get().is_some() {
            hits.iter().for_each(|hit| self.record_hit(hit.limiter, hit.key, cost));
        }
        // The common case, which `each` becomes a part of: one limiter, whose keys have the same rules.
        if self.0.runtime.is_none()
            && let Some(Hit { limiter, .. }) = hits.first()
            && limiter.is_uniform()
            && hits.iter().all(|hit| Arc::ptr_eq(&hit.limiter.table, &limiter.table))
        {
            let keys = hits.iter().map(|hit| hit.key);
            return hit_same(limiter, keys, cost, batch.now, |place, spec, ruling| {
                each(place, HitAnswer::ruled(spec, ruling));
            });
        }
        self.hit_each_at_length(hits, cost, batch, &mut each);
    }

    /// The general case: a store on other machines, several limiters, or keys with different rules.
    #[inline(never)]
    fn hit_each_at_length(&self, hits: &[Hit<'_>], cost: u32, batch: &Batch, each: &mut dyn FnMut(usize, HitAnswer)) {
        if let Some(runtime) = &self.0.runtime {
            let answers = runtime.block_on(self.ask_each(hits, cost, batch));
            return answers.into_iter().enumerate().for_each(|(place, answer)| each(place, answer));
        }
        // One pass for each limiter.
        let mut left: Vec<usize> = (0..hits.len()).collect();
        while let Some(limiter) = left.first().map(|place| hits[*place].limiter) {
            let same: Vec<usize> =
                left.extract_if(.., |place| Arc::ptr_eq(&hits[*place].limiter.table, &limiter.table)).collect();
            let keys = same.iter().map(|place| hits[*place].key);
            hit_all(limiter, keys, cost, batch.now, |index, answer| each(same[index], answer));
        }
    }

    /// Hits many keys of one limiter, each on its own, with one reading of the clock.
    ///
    /// # Errors
    /// As [`Gate::decide`], for the first bad key; nothing is charged then.
    pub fn hit_many(&self, limiter: &str, keys: &[&[u8]], cost: u32) -> Result<Vec<Answer>, AskError> {
        self.is_local()?;
        let limiter = self.limiter(limiter)?;
        let keys: Vec<Cow<'_, [u8]>> = keys.iter().map(|key| limiter.spec.key_by_name(key)).collect();
        keys.iter().try_for_each(|key| check_key(key))?;
        keys.iter().for_each(|key| self.record_hit(&limiter, key, cost));
        let now = self.now();
        if !limiter.is_uniform() {
            let decide = |key: &Cow<'_, [u8]>| {
                let request = Request::hit(&limiter.spec.name, key).cost(cost);
                self.decide_plan(&Plan::of_key(&limiter, Cow::Borrowed(&**key)), &request)
            };
            return Ok(keys.iter().map(decide).collect());
        }
        let mut answers = Vec::with_capacity(keys.len());
        hit_same(&limiter, keys.iter().map(|key| &**key), cost, now, |_, spec, ruling| {
            answers.push(answered(spec, &ruling, now));
        });
        Ok(answers)
    }

    /// Hits on a store on other machines, all sent before any is waited for.
    async fn ask_each(&self, hits: &[Hit<'_>], cost: u32, batch: &Batch) -> Vec<HitAnswer> {
        let by = batch.by.unwrap_or_else(|| self.deadline());
        let asked = Asked { now: self.0.clock.manual_now(), cost, intent: Intent::Hit, explain: false, by };
        futures_util::future::join_all(hits.iter().map(|hit| self.ask_one(hit, &asked, batch))).await
    }

    async fn ask_one(&self, Hit { limiter, key }: &Hit<'_>, asked: &Asked, batch: &Batch) -> HitAnswer {
        let plan = Plan::of_key(limiter, Cow::Borrowed(key));
        let [check, ..] = plan.0.as_slice() else { return HitAnswer::Unlimited };
        if let Some(answer) = unasked_hit(check, batch.now) {
            return answer;
        }
        if limiter.is_shared() {
            return hit_plan(&plan, asked.cost, batch.now);
        }
        if !limiter.store.answers() {
            return self.hit_without_store(check, asked.cost);
        }
        let questions = plan.asked();
        let questions: Vec<Question<'_>> = questions.iter().map(|(check, role)| check.question(*role)).collect();
        let outcome = limiter.store.decide(&questions, asked).await;
        self.0.errors.note(&questions, Intent::Hit, &outcome);
        match outcome {
            Ok(answers) if answers.1.len() == questions.len() => {
                plan.note_all(&answers, Intent::Hit);
                hit_answer(check, answers.1[0].ruling)
            }
            _ => self.hit_without_store(check, asked.cost),
        }
    }

    /// A hit whose store does not answer. A candidate is not counted then.
    fn hit_without_store(&self, check: &Check<'_>, cost: u32) -> HitAnswer {
        if check.is_candidate() {
            return HitAnswer::Unlimited;
        }
        self.hit_degraded(check.limiter, &check.basis, &check.key, cost)
    }

    /// A hit through a handle, where keys have different rules or there are candidates. `None`: no limit decided.
    #[cold]
    pub(super) fn hit_by_standing(&self, limiter: &Limiter, key: &[u8], cost: u32) -> Option<Ruling> {
        match hit_plan(&Plan::of_key(limiter, Cow::Borrowed(key)), cost, self.now()) {
            HitAnswer::Ruled { ruling, .. } => Some(ruling),
            HitAnswer::Disabled | HitAnswer::Unlimited => None,
        }
    }
}

/// The answer to a hit whose limiter asks no store for it; `None`: limits are asked.
fn unasked_hit(check: &Check<'_>, at: Micros) -> Option<HitAnswer> {
    let answer = match check.role {
        Role::Enforced => return None,
        Role::Disabled => HitAnswer::Disabled,
        Role::Unlimited => {
            check.note(&UNLIMITED, true, Intent::Hit, at);
            HitAnswer::Unlimited
        }
        Role::Denied => {
            check.note(&NEVER, false, Intent::Hit, at);
            HitAnswer::ruled(&check.spec, NEVER)
        }
    };
    Some(if check.is_candidate() { HitAnswer::Unlimited } else { answer })
}

/// What a ruling comes to: a candidate's limits nothing.
fn hit_answer(check: &Check<'_>, ruling: Ruling) -> HitAnswer {
    if check.is_candidate() { HitAnswer::Unlimited } else { HitAnswer::ruled(&check.spec, ruling) }
}

/// One hit of a batch by its plan, on the embedded store.
fn hit_plan(plan: &Plan<'_>, cost: u32, now: Micros) -> HitAnswer {
    let [check, candidates @ ..] = plan.0.as_slice() else { return HitAnswer::Unlimited };
    if let Some(answer) = unasked_hit(check, now) {
        return answer;
    }
    let mut told = UNLIMITED;
    if candidates.is_empty() {
        let keys = [&*check.key].into_iter();
        check.limiter.table.hit_many(&check.spec.rules, keys, cost, now, |ruling| told = ruling);
    } else {
        let asked = plan.asked();
        let parts: Vec<Part<'_>> = asked.iter().map(|(check, role)| check.part(*role)).collect();
        let (_, answers) = decide_all(&parts, cost, Intent::Hit, false, || now);
        told = answers.first().map_or(told, |answer| answer.ruling);
    }
    hit_answer(check, told)
}

/// Hits of one limiter on the embedded store, in their order.
#[inline]
fn hit_all<'k>(
    limiter: &Limiter,
    keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    cost: u32,
    now: Micros,
    mut each: impl FnMut(usize, HitAnswer),
) {
    if limiter.is_uniform() {
        return hit_same(limiter, keys, cost, now, |place, spec, ruling| each(place, HitAnswer::ruled(spec, ruling)));
    }
    for (place, key) in keys.enumerate() {
        each(place, hit_plan(&Plan::of_key(limiter, Cow::Borrowed(key)), cost, now));
    }
}

/// Hits of one limiter whose keys have the same rules, on the embedded store, in their order; `each` gets a hit's place among `keys`.
#[inline]
fn hit_same<'k>(
    limiter: &Limiter,
    keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    cost: u32,
    now: Micros,
    mut each: impl FnMut(usize, &Arc<LimiterSpec>, Ruling),
) {
    let spec: &Arc<LimiterSpec> = &limiter.in_force();
    let mut place = 0;
    limiter.table.hit_many(&spec.rules, keys, cost, now, |ruling| {
        each(place, spec, ruling);
        place += 1;
    });
}
