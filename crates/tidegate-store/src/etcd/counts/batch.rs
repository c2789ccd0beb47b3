//! Requests that are decided together: on what was last seen, in one transaction, and again if that was out of date.

use super::entry::{Entry, name};
use super::seen::Sight;
use super::{Inner, is_as_seen, locked};
use crate::etcd::{LeaseId, Meaning, Operation, Outcome, StoreError, Txn};
use crate::remote::unreachable;
use crate::store::{Answers, Asked, Question};
use crate::table::{PartAnswer, answer_all};
use std::time::Duration;
use tidegate_core::all_or_nothing::{self, Demand, Intent, Role, Room};
use tidegate_core::{Micros, Rules};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A request that waits for its answer.
pub(super) struct Request {
    /// Its place in the order of coming; 0: it has none yet.
    pub(super) number: u64,
    purpose: Purpose,
    subjects: Vec<Subject>,
    asked: Asked,
    reply: oneshot::Sender<Result<Answers, StoreError>>,
}

/// What is asked of the keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Decide,
    GiveBack,
}

/// One key of a request.
pub(super) struct Subject {
    /// What it is called in etcd.
    name: Vec<u8>,
    rules: Rules,
    role: Role,
    own: Option<Demand>,
}

impl Subject {
    pub(super) fn of(question: &Question<'_>) -> Subject {
        let Question { limiter, key, rules, role, own, .. } = *question;
        Subject { name: name(limiter, key), rules: rules.clone(), role, own }
    }

    /// For how long what is written now can matter.
    fn need(&self) -> Duration {
        let longest = |limit: &tidegate_core::Limit| limit.period().get() + limit.block().map_or(0, Micros::get);
        Duration::from_micros(self.rules.limits().iter().map(longest).max().unwrap_or(0))
    }
}

impl Request {
    pub(super) fn new(
        purpose: Purpose,
        subjects: Vec<Subject>,
        asked: Asked,
        reply: oneshot::Sender<Result<Answers, StoreError>>,
    ) -> Request {
        Request { number: 0, purpose, subjects, asked, reply }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.subjects.iter().map(|subject| subject.name.as_slice())
    }

    /// Nobody waits for the answer any more: then nothing is charged.
    pub(super) fn is_given_up(&self) -> bool {
        self.reply.is_closed()
    }

    /// Decides on the entries, which are changed by it.
    fn decide(&self, keys: &mut [Key], now: Micros) -> Answers {
        let Asked { cost, intent, explain, .. } = self.asked;
        let places: Vec<usize> = self.keys().filter_map(|name| keys.iter().position(|key| key.name == name)).collect();
        let mut states: Vec<_> =
            self.subjects.iter().zip(&places).map(|(subject, at)| keys[*at].entry.states(&subject.rules)).collect();
        let parts = self.subjects.iter().zip(&places).zip(&mut states);
        let mut subjects: Vec<all_or_nothing::Subject<'_>> = parts
            .map(|((subject, at), states)| {
                let blocked_until = keys[*at].entry.blocked_until;
                let Subject { rules, role, own, .. } = subject;
                all_or_nothing::Subject { rules, blocked_until, states, room: Room::Free, role: *role, own: *own }
            })
            .collect();
        let answers = match self.purpose {
            Purpose::Decide => answer_all(&mut subjects, now, cost, intent, explain),
            Purpose::GiveBack => subjects.iter_mut().map(|subject| give_back(subject, now, cost)).collect(),
        };
        drop(subjects);
        for (index, at) in places.into_iter().enumerate() {
            let (subject, answer) = (&self.subjects[index], &answers[index]);
            if subject.own.map_or(intent, |own| own.intent) == Intent::Hit {
                keys[at].entry = Entry::of(&subject.rules, &states[index], answer.blocked_until, now);
            }
        }
        (now, answers)
    }
}

fn give_back(subject: &mut all_or_nothing::Subject<'_>, now: Micros, cost: u32) -> PartAnswer {
    let ruling = all_or_nothing::give_back(subject, now, cost);
    PartAnswer { ruling, blocked_until: subject.blocked_until, is_known: true, ..PartAnswer::UNKNOWN }
}

/// Requests that share keys.
#[derive(Default)]
pub(super) struct Batch {
    requests: Vec<Request>,
    keys: Vec<Key>,
}

/// A key of the batch, as it is thought to be.
struct Key {
    name: Vec<u8>,
    seen: Sight,
    /// What it is to become.
    entry: Entry,
    need: Duration,
}

impl Key {
    fn is_changed(&self) -> bool {
        self.entry != self.seen.entry
    }

    fn change(&self, lease: Option<LeaseId>) -> Operation {
        match self.entry.is_fresh() {
            true => Operation::Delete { key: self.name.clone() },
            false => Operation::Put { key: self.name.clone(), value: self.entry.to_text().into_bytes(), lease },
        }
    }
}

impl Batch {
    pub(super) fn add(&mut self, request: Request) {
        for subject in &request.subjects {
            let need = subject.need();
            match self.keys.iter_mut().find(|key| key.name == subject.name) {
                // Requests for one key may come with different limits.
                Some(key) => key.need = key.need.max(need),
                None => {
                    let (seen, entry) = (Sight::default(), Entry::default());
                    self.keys.push(Key { name: subject.name.clone(), seen, entry, need });
                }
            }
        }
        self.requests.push(request);
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter().map(|key| key.name.as_slice())
    }

    /// Decides all requests and answers them.
    pub(super) async fn settle(&mut self, inner: &Inner) {
        let mut tries = 0;
        loop {
            self.requests.retain(|request| !request.is_given_up());
            let Some(by) = self.requests.iter().map(|request| request.asked.by).max() else { return };
            if Instant::now() >= by {
                let why = format!("others wrote the same keys {tries} times meanwhile");
                return self.fail(&unreachable(&inner.etcd.url().to_string(), why));
            }
            tries += 1;
            self.look(inner);
            let now = inner.clock.now();
            let answers: Vec<Answers> =
                self.requests.iter().map(|request| request.decide(&mut self.keys, now)).collect();
            match self.write(inner, by).await {
                Ok(outcome) if outcome.held => {
                    self.note_written(inner, &outcome);
                    return self.answer(answers);
                }
                Ok(outcome) => {
                    if let Err(error) = self.note_found(inner, outcome) {
                        return self.fail(&error);
                    }
                }
                Err(Failed::LeaseGone) => {}
                Err(Failed::Store(error)) => {
                    // What is there is not known any more.
                    self.keys.iter().for_each(|key| locked(&inner.seen).forget(&key.name));
                    return self.fail(&error);
                }
            }
        }
    }

    fn look(&mut self, inner: &Inner) {
        let seen = locked(&inner.seen);
        for key in &mut self.keys {
            key.seen = seen.get(&key.name);
            key.entry = key.seen.entry.clone();
        }
    }

    async fn write(&self, inner: &Inner, by: Instant) -> Result<Outcome, Failed> {
        let changed: Vec<&Key> = self.keys.iter().filter(|key| key.is_changed()).collect();
        let lease = match changed.iter().map(|key| key.need).max() {
            Some(need) => {
                let writes = u32::try_from(changed.len()).unwrap_or(u32::MAX);
                Some(inner.leases.lease(&inner.etcd, need, writes, by).await?)
            }
            None => None,
        };
        let txn = Txn {
            when: self.keys.iter().map(|key| is_as_seen(&key.name, key.seen.revision)).collect(),
            then: changed.iter().map(|key| key.change(lease)).collect(),
            otherwise: self.keys.iter().map(|key| Operation::Get { key: key.name.clone() }).collect(),
        };
        inner.transact(&txn, by).await.map_err(|error| match (&error, lease) {
            (StoreError::Refused { meaning: Meaning::NoLease, .. }, Some(_)) => {
                inner.leases.forget();
                Failed::LeaseGone
            }
            _ => Failed::Store(error),
        })
    }

    fn note_written(&self, inner: &Inner, outcome: &Outcome) {
        let mut seen = locked(&inner.seen);
        for key in &self.keys {
            let revision = match (key.is_changed(), key.entry.is_fresh()) {
                (false, _) => key.seen.revision,
                (true, true) => 0,
                (true, false) => outcome.revision,
            };
            seen.note(&key.name, Sight { revision, entry: key.entry.clone() });
        }
    }

    /// Somebody else wrote: this is what is there now.
    fn note_found(&self, inner: &Inner, outcome: Outcome) -> Result<(), StoreError> {
        let mut seen = locked(&inner.seen);
        for (key, found) in self.keys.iter().zip(outcome.found) {
            let sight = match found.into_iter().next() {
                None => Sight::default(),
                Some(pair) => {
                    let entry = Entry::parse(&pair.value).ok_or_else(|| StoreError::Garbled {
                        address: inner.etcd.url().to_string(),
                        why: format!("no count, under the key {}; delete it", key.name.escape_ascii()),
                    })?;
                    Sight { revision: pair.revision, entry }
                }
            };
            seen.note(&key.name, sight);
        }
        Ok(())
    }

    fn answer(&mut self, answers: Vec<Answers>) {
        for (request, answers) in self.requests.drain(..).zip(answers) {
            // A caller that has given up meanwhile was charged all the same, as its ambiguous error says.
            let _ = request.reply.send(Ok(answers));
        }
    }

    fn fail(&mut self, error: &StoreError) {
        for request in self.requests.drain(..) {
            let _ = request.reply.send(Err(error.clone()));
        }
    }
}

/// Why a transaction was not done.
enum Failed {
    /// It was refused for its lease: with a new one it may do.
    LeaseGone,
    Store(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Store(error)
    }
}
