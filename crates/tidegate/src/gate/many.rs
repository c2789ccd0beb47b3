//! Many hits that came together and are answered together: doors that read in batches.

use super::Gate;
use super::limiter::{InForce, Limiter};
use super::plan::{Check, NEVER, Role, UNLIMITED, answered, unasked};
use crate::{Answer, AskError};
use std::borrow::Cow;
use std::sync::Arc;
use tidegate_core::all_or_nothing::{Intent, Ruling};
use tidegate_core::{KeyError, Micros, check_key};
use tidegate_store::Asked;
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
    pub(super) fn ruled(spec: &InForce<'_>, ruling: Ruling) -> HitAnswer {
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
        if let Some(runtime) = &self.0.runtime {
            let answers = runtime.block_on(self.ask_each(hits, cost, batch));
            return answers.into_iter().enumerate().for_each(|(place, answer)| each(place, answer));
        }
        let Some(first) = hits.first() else { return };
        if hits.iter().all(|hit| Arc::ptr_eq(&hit.limiter.table, &first.limiter.table)) {
            let keys = hits.iter().map(|hit| hit.key);
            return hit_all(first.limiter, keys, cost, batch.now, each);
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
            return Ok(keys.iter().map(|key| self.answer_by_standing(&limiter, key, cost, now)).collect());
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
        let check = Check::of(limiter, Cow::Borrowed(key), &[]);
        if let Some(answer) = unasked_hit(&check, batch.now) {
            return answer;
        }
        let spec = &check.spec;
        if limiter.is_shared() {
            let ruling = limiter.table.decide(&spec.rules, key, asked.cost, Intent::Hit, || batch.now);
            return HitAnswer::ruled(spec, ruling);
        }
        if !limiter.store.answers() {
            return self.hit_degraded(limiter, &check.basis, key, asked.cost);
        }
        let questions = [check.question()];
        let outcome = limiter.store.decide(&questions, asked).await;
        self.0.errors.note(&questions, Intent::Hit, &outcome);
        match outcome.as_ref().map(|(at, told)| (*at, told.as_slice())) {
            Ok((at, [told])) => {
                limiter.note(key, &told.ruling, told.ruling.is_allowed(), Intent::Hit, at);
                HitAnswer::ruled(spec, told.ruling)
            }
            _ => self.hit_degraded(limiter, &check.basis, key, asked.cost),
        }
    }

    /// A hit through a handle, where keys have different rules. `None`: no limit was asked.
    #[cold]
    pub(super) fn hit_by_standing(
        &self,
        limiter: &Limiter,
        key: &[u8],
        cost: u32,
        clock: impl Fn() -> Micros,
    ) -> Option<Ruling> {
        let check = Check::of(limiter, Cow::Borrowed(key), &[]);
        match unasked_hit(&check, clock()) {
            Some(HitAnswer::Ruled { ruling, .. }) => Some(ruling),
            Some(_) => None,
            None => Some(limiter.table.decide(&check.spec.rules, key, cost, Intent::Hit, clock)),
        }
    }

    /// The same as an answer.
    fn answer_by_standing(&self, limiter: &Limiter, key: &[u8], cost: u32, now: Micros) -> Answer {
        let check = Check::of(limiter, Cow::Borrowed(key), &[]);
        match unasked_hit(&check, now) {
            None => answered(&check.spec, &hit_one(&check, cost, now), now),
            Some(HitAnswer::Ruled { ruling, .. }) => answered(&check.spec, &ruling, now),
            Some(_) => unasked(Some((&limiter.spec, check.role)), now),
        }
    }
}

/// The answer to a hit whose limiter asks no store for it; `None`: limits decide.
fn unasked_hit(check: &Check<'_>, at: Micros) -> Option<HitAnswer> {
    match check.role {
        Role::Enforced => None,
        Role::Disabled => Some(HitAnswer::Disabled),
        Role::Unlimited => {
            check.note(&UNLIMITED, true, Intent::Hit, at);
            Some(HitAnswer::Unlimited)
        }
        Role::Denied => {
            check.note(&NEVER, false, Intent::Hit, at);
            Some(HitAnswer::ruled(&check.spec, NEVER))
        }
    }
}

/// One hit of a batch, on the embedded store.
fn hit_one(check: &Check<'_>, cost: u32, now: Micros) -> Ruling {
    let mut told = UNLIMITED;
    let keys = [&*check.key].into_iter();
    check.limiter.table.hit_many(&check.spec.rules, keys, cost, now, |ruling| told = ruling);
    told
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
        let check = Check::of(limiter, Cow::Borrowed(key), &[]);
        let decide = || HitAnswer::ruled(&check.spec, hit_one(&check, cost, now));
        each(place, unasked_hit(&check, now).unwrap_or_else(decide));
    }
}

/// Hits of one limiter whose keys have the same rules, on the embedded store, in their order; `each` gets a hit's place among `keys`.
#[inline]
fn hit_same<'k>(
    limiter: &Limiter,
    keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
    cost: u32,
    now: Micros,
    mut each: impl FnMut(usize, &InForce<'_>, Ruling),
) {
    let spec = limiter.in_force();
    let mut place = 0;
    limiter.table.hit_many(&spec.rules, keys, cost, now, |ruling| {
        each(place, &spec, ruling);
        place += 1;
    });
}
