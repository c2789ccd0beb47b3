//! `POST /v1/reserve`, `POST /v1/reservations/R/commit` and `DELETE /v1/reservations/R`: costs that are known later.
//!
//! A reservation is the store's. What is kept here is its place in the budget (`[limits]` reservations): who made it here has one less until
//! it ends here, or its time is over. Its name is opaque to clients, and says which limiter it belongs to, so that the access rules hold for it.

use super::client::Client;
use super::door::Door;
use super::fields::{cost, key, name};
use super::json::{self, shorten};
use super::keys::span;
use super::problem::Problem;
use super::reply::{DenyStatus, Explain, Reply, answer_reply_with, json_reply};
use crate::access::{Caller, Scope, What};
use crate::listener::Place;
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate::headers::push_answer_members;
use tidegate::{AskError, CommitAnswer, Micros, Reservation};

/// For how long, where a request does not say.
const SPAN_DEFAULT: Micros = Micros::from_secs(30);
/// Places of reservations whose time is over that a new one frees at most; it takes one.
const FREED_AT_ONCE: usize = 64;

/// Reserves what a body asks for.
pub(crate) async fn reserve(client: &Client, caller: &Caller, body: &[u8]) -> Result<Reply, Problem> {
    let door = &*client.door;
    let Asked { limiter, key, cost, span } = Asked::read(body)?;
    caller.check(Scope::Check, What::Limiter(&limiter))?;
    let place = place(client, caller)?;
    let reserved = door.gate.reserve(&limiter, key.as_bytes(), cost, span).await?;
    let id = reserved.reservation.map(|reservation| text_of(&reservation));
    let more = match &id {
        Some(id) => format!(",\"reservation\":\"{id}\""),
        None => ",\"reservation\":null".to_owned(),
    };
    if let Some(id) = id {
        door.reserved.keep(id, door.gate.now().saturating_add(span), place);
    }
    Ok(answer_reply_with(&reserved.answer, DenyStatus::DEFAULT, Explain::No, &more))
}

/// Ends a reservation at the cost that a body tells.
pub(crate) async fn commit(door: &Door, id: &str, body: &[u8]) -> Result<Reply, Problem> {
    let mut real = None;
    json::read(body, &["cost"], |_, value| {
        real = Some(cost(&value.scalar())?);
        Ok(())
    })?;
    let Some(real) = real else {
        let detail = "say what it has cost, such as {\"cost\":3}; 0 gives all of it back";
        return Err(Problem::new(400, "missing_field", detail).field("cost"));
    };
    end(door, id, real).await
}

/// Ends a reservation of which nothing was used.
pub(crate) async fn cancel(door: &Door, id: &str) -> Result<Reply, Problem> {
    end(door, id, 0).await
}

async fn end(door: &Door, id: &str, cost: u32) -> Result<Reply, Problem> {
    let reservation = read(id)?;
    let ended = door.gate.commit(&reservation, cost).await;
    if matches!(ended, Ok(_) | Err(AskError::NotReserved)) {
        door.reserved.free(id);
    }
    let CommitAnswer { answer, given_back, excess } = ended?;
    let mut text = String::from("{");
    push_answer_members(&mut text, &answer);
    text.push_str(&format!(",\"cost\":{cost},\"given_back\":{given_back},\"excess\":{excess}}}"));
    Ok(json_reply(text))
}

/// The reservation of this name.
pub(crate) fn read(id: &str) -> Result<Reservation, Problem> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(id).ok();
    bytes.as_deref().and_then(Reservation::from_bytes).ok_or_else(|| {
        let detail = "the path names no reservation; use the \"reservation\" of the answer to POST /v1/reserve";
        Problem::new(400, "bad_reservation", detail).field("reservation").value(shorten(id))
    })
}

fn text_of(reservation: &Reservation) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(reservation.to_bytes())
}

struct Asked {
    limiter: String,
    key: String,
    cost: u32,
    span: Micros,
}

impl Asked {
    fn read(body: &[u8]) -> Result<Asked, Problem> {
        let (mut limiter, mut whom, mut charge, mut time) = (None, None, 1, SPAN_DEFAULT);
        json::read(body, &["limiter", "key", "cost", "for"], |index, value| {
            match index {
                0 => limiter = Some(name("limiter", value.scalar())?.into_owned()),
                1 => whom = Some(key("key", value.scalar())?.into_owned()),
                2 => charge = cost(&value.scalar())?,
                _ => time = span(value.scalar())?,
            }
            Ok(())
        })?;
        let missing = |field, detail| Problem::new(400, "missing_field", detail).field(field);
        Ok(Asked {
            limiter: limiter.ok_or_else(|| missing("limiter", "name the limiter; GET /v1/limiters lists them"))?,
            key: whom.ok_or_else(|| missing("key", "say for whom: 1 to 512 bytes, such as a user or an address"))?,
            cost: charge,
            span: time,
        })
    }
}

/// A place in the budget, before anything is charged.
fn place(client: &Client, caller: &Caller) -> Result<Place, Problem> {
    let door = &client.door;
    door.reserved.free_ended(door.gate.now());
    door.budget.reservations.enter(&client.account(caller)).map_err(|taken| {
        let most = door.budget.limits.reservations;
        let detail = format!(
            "reservations: {taken} ({most} in all); commit or cancel those that are open, reserve for a shorter time, or raise \
             [limits] reservations"
        );
        Problem::new(503, "too_many_reservations", detail).retry_after(Micros::from_secs(1))
    })
}

/// The places of the reservations that were made here and have not ended here.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    by_id: HashMap<Arc<str>, (Micros, Place)>,
    ends: BTreeSet<(Micros, Arc<str>)>,
}

impl Places {
    fn keep(&self, id: String, until: Micros, place: Place) {
        let (mut held, id) = (self.held(), Arc::<str>::from(id));
        held.ends.insert((until, Arc::clone(&id)));
        held.by_id.insert(id, (until, place));
    }

    fn free(&self, id: &str) {
        drop(self.held().take(id));
    }

    fn free_ended(&self, now: Micros) {
        let mut held = self.held();
        for _ in 0..FREED_AT_ONCE {
            match held.ends.first() {
                Some((until, id)) if *until <= now => {
                    let id = Arc::clone(id);
                    drop(held.take(&id));
                }
                _ => return,
            }
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn take(&mut self, id: &str) -> Option<Place> {
        let (id, (until, place)) = self.by_id.remove_entry(id)?;
        self.ends.remove(&(until, id));
        Some(place)
    }
}
