//! Costs that are known later: a charge with the right to give back, and its end at the real cost (promise R1).
//!
//! The engine keeps nothing of a reservation: the store does, at its key, under a number that nobody guesses. What a caller
//! holds says where that is, so that any process on the same store can end it, once. Nothing is given back without having been taken out
//! there first. Without the store nothing is reserved: `on_failure` decides, and the charge that it may make stays.

use super::Gate;
use super::plan::{Check, Plan, answered, unasked};
use crate::{Answer, AskError, NAME_LEN_MAX, Request};
use std::hash::{BuildHasher, Hasher, RandomState};
use tidegate_core::all_or_nothing::{Intent, Role};
use tidegate_core::{Algorithm, Micros};
use tidegate_store::{Answers, PartAnswer, Reserve, Reserved, StoreError, When};

/// For how long something can be reserved at most: a day.
pub const RESERVATION_SPAN_MAX: Micros = Micros::from_secs(24 * 3_600);

/// An open reservation, as its holder knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reservation {
    nonce: u128,
    limiter: String,
    key: Vec<u8>,
}

/// The answer to a reservation.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct ReserveAnswer {
    /// As a hit is answered.
    pub answer: Answer,
    /// `None`: there is nothing to give back. It was denied, or allowed without a charge, or by this process alone as the store did not answer.
    pub reservation: Option<Reservation>,
    /// Until when it can be given back, by the store's clock.
    pub until: Option<Micros>,
}

/// What the end of a reservation has done.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct CommitAnswer {
    /// How the key stands now, as a peek of cost 0 is answered.
    pub answer: Answer,
    /// How much was given back: what was charged too much and was still counted.
    pub given_back: u32,
    /// How much was charged beyond what was reserved, whatever the limits say.
    pub excess: u32,
}

impl Reservation {
    /// The limiter that it was charged at.
    #[must_use]
    pub fn limiter(&self) -> &str {
        &self.limiter
    }

    /// For sending it elsewhere. Whoever has it can end it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let len = u8::try_from(self.limiter.len()).unwrap_or(u8::MAX);
        [&self.nonce.to_be_bytes(), &[len][..], self.limiter.as_bytes(), &self.key].concat()
    }

    /// What [`Reservation::to_bytes`] made; `None` for bytes that it does not make.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Reservation> {
        let (nonce, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first()?;
        let (limiter, key) = rest.split_at_checked(usize::from(*len))?;
        let limiter = std::str::from_utf8(limiter).ok()?.to_owned();
        let reservation = Reservation { nonce: u128::from_be_bytes(*nonce), limiter, key: key.to_vec() };
        tidegate_core::check_key(key).is_ok().then_some(reservation)
    }
}

const _: () = assert!(NAME_LEN_MAX <= u8::MAX as usize, "the length of a limiter's name is one byte of a reservation");

impl Gate {
    /// Charges a key if its limits allow it, as a hit does, with the right to give back for `span`: by [`Gate::commit`] or
    /// [`Gate::cancel`]. After that, and after a crash, the charge stays. On a store on other machines it takes two round trips.
    ///
    /// ```
    /// use tidegate::{Algorithm, Gate, LimiterSpec, Micros, Policy, Rules};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = Rules::new(Algorithm::FixedWindow, &["1000 per minute".parse()?])?;
    /// let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("tokens", rules)])?);
    /// let held = gate.reserve("tokens", b"user-1", 400, Micros::from_secs(30)).await?;
    /// assert_eq!(held.answer.remaining, Some(600));
    /// let done = gate.commit(&held.reservation.ok_or("denied")?, 150).await?;
    /// assert_eq!((done.given_back, done.answer.remaining), (250, Some(850)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When there is no such limiter, the key is bad, the span is 0 or longer than [`RESERVATION_SPAN_MAX`], or the store or the limiter's algorithm cannot
    /// give back. Nothing is charged then.
    pub async fn reserve(&self, limiter: &str, key: &[u8], cost: u32, span: Micros) -> Result<ReserveAnswer, AskError> {
        if span.is_zero() || span > RESERVATION_SPAN_MAX {
            return Err(AskError::ReservationSpan(span));
        }
        // Not the guard of a load: that belongs to a thread, and this may go on in another.
        let live = self.0.live.load_full();
        let request = Request::hit(limiter, key).cost(cost);
        let plan = Plan::of(&live, &request, self.door())?;
        self.record_request(&request, Some(&plan));
        if let Some(answer) = plan.denied(&request, || self.now()) {
            return Ok(unreserved(answer));
        }
        let reserve = Reserve { nonce: random(), cost, span, door: self.door() };
        let asked = plan.asked();
        let (at, mut answers, mut until) = (self.now(), Vec::with_capacity(asked.len()), None);
        // By name there is one limiter, and perhaps the candidate for its place: each depends on itself alone.
        for (index, (check, _)) in asked.iter().enumerate() {
            match self.reserve_at(check, &reserve).await {
                Ok(reserved) if index == 0 => {
                    until = reserved.until;
                    answers.push((reserved.at, reserved.answer));
                }
                Ok(reserved) => answers.push((reserved.at, reserved.answer)),
                // What becomes of a candidate changes no answer.
                Err(_) if index > 0 => answers.push((at, PartAnswer::UNKNOWN)),
                Err(error @ StoreError::Unsupported(_)) => return Err(error.into()),
                Err(error @ StoreError::Refused { .. }) if plan.is_local() => return Err(error.into()),
                Err(_) => {
                    drop(asked);
                    return Ok(unreserved(self.decide_degraded(plan, &request)));
                }
            }
        }
        drop(asked);
        let at = answers.first().map_or(at, |(at, _)| *at);
        let answers: Answers = (at, answers.into_iter().map(|(_, answer)| answer).collect());
        if !plan.is_local() {
            plan.note_all(&answers, Intent::Hit);
        }
        let answer = plan.combine(answers, &request);
        let reservation =
            until.map(|_| Reservation { nonce: reserve.nonce, limiter: limiter.to_owned(), key: key.to_vec() });
        Ok(ReserveAnswer { answer, reservation, until })
    }

    async fn reserve_at(&self, check: &Check<'_>, reserve: &Reserve) -> Result<Reserved, StoreError> {
        let (store, question) = (&check.limiter.store, check.question(Role::Enforced));
        let reserved = match store.down() {
            Some(error) if !store.answers() => return Err(error),
            _ => store.reserve(&question, reserve, self.reserve_when()).await,
        };
        self.0.errors.note(&[question], Intent::Hit, &reserved);
        reserved
    }

    /// Ends a reservation at its real cost. Of less than was reserved the rest is given back, where it was counted and as far as it still is; of more
    /// the excess is charged whatever the limits say. On a store on other machines it takes three round trips.
    ///
    /// # Errors
    /// [`AskError::NotReserved`] when it is not open, as it has ended before or its time is over. When the store does not answer the charge stays, and
    /// the reservation may have ended.
    pub async fn commit(&self, reservation: &Reservation, cost: u32) -> Result<CommitAnswer, AskError> {
        let Reservation { nonce, limiter, key } = reservation;
        let live = self.0.live.load_full();
        let request = Request::hit(limiter, key).cost(0).peek();
        let plan = Plan::of(&live, &request, self.door())?;
        let [first, candidates @ ..] = plan.0.as_slice() else { return Err(AskError::NotReserved) };
        let settle = async |check: &Check<'_>| {
            let question = check.question(Role::Enforced);
            check.limiter.store.settle(&question, *nonce, cost, self.reserve_when()).await
        };
        let settled = settle(first).await?.ok_or(AskError::NotReserved)?;
        for candidate in candidates {
            // What becomes of it changes no answer.
            drop(settle(candidate).await);
        }
        let answer = match plan.denied(&request, || settled.at) {
            Some(denied) => denied,
            None if first.is_enforced() => answered(&first.spec, &settled.answer.ruling, settled.at),
            None => unasked(Some((&first.limiter.spec, first.role)), settled.at),
        };
        Ok(CommitAnswer { answer, given_back: settled.given_back, excess: settled.excess })
    }

    /// Ends a reservation of which nothing was used: all of it is given back, as far as it is still counted.
    ///
    /// # Errors
    /// As [`Gate::commit`].
    pub async fn cancel(&self, reservation: &Reservation) -> Result<CommitAnswer, AskError> {
        self.commit(reservation, 0).await
    }

    /// Gives back what a key of a token bucket was charged by an ordinary hit, up to a full bucket. Other algorithms have to know when it
    /// was charged: for those there is [`Gate::reserve`].
    ///
    /// # Errors
    /// When there is no such limiter, the key is bad, or the limiter is no token bucket.
    pub async fn refund(&self, limiter: &str, key: &[u8], cost: u32) -> Result<crate::HitAnswer, AskError> {
        let (limiter, key) = self.limiter_of(limiter, key)?;
        limiter.check_has_limit()?;
        let algorithm = limiter.spec.rules.algorithm();
        if algorithm != Algorithm::TokenBucket {
            let what = format!("{} does not give back a hit, as it counts by time; reserve instead", algorithm.name());
            return Err(StoreError::Unsupported(what).into());
        }
        self.give_back(&limiter, &key, cost).await
    }

    fn reserve_when(&self) -> When {
        When { now: self.0.clock.manual_now(), by: self.deadline() }
    }
}

fn unreserved(answer: Answer) -> ReserveAnswer {
    ReserveAnswer { answer, reservation: None, until: None }
}

/// The standard library's map seeds are the operating system's randomness, hashed with a secret key.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().build_hasher().finish());
    half() << 64 | half()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_read_as_it_was_written_and_no_other_way() {
        let reservation = Reservation { nonce: random(), limiter: "api".to_owned(), key: vec![0, 255, 7] };
        let bytes = reservation.to_bytes();
        assert_eq!(Reservation::from_bytes(&bytes), Some(reservation));
        // Without its key it is none.
        assert!((0..=bytes.len() - 3).all(|end| Reservation::from_bytes(&bytes[..end]).is_none()));
        let long = [&bytes[..], &[b'k'; 510]].concat();
        assert_eq!(Reservation::from_bytes(&long), None, "a key of 513 bytes");
    }

    #[test]
    fn numbers_differ() {
        let all: std::collections::HashSet<u128> = (0..1_000).map(|_| random()).collect();
        assert_eq!(all.len(), 1_000);
    }
}
