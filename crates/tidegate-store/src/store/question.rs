//! What stores are asked, and what they answer. The same types for every store.

use crate::shard::Door;
use crate::table::PartAnswer;
use std::time::Duration;
use tidegate_core::all_or_nothing::{Demand, Intent, Role};
use tidegate_core::replicas::ReplicaId;
use tidegate_core::{Algorithm, Limit, Micros, Rules};
use tokio::time::Instant;

/// One key of a request, at one limiter.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The name under which the store keeps the limiter's states.
    pub limiter: &'a str,
    /// The rules in force.
    pub rules: &'a Rules,
    /// Keep the key's name, so that it can be listed.
    pub names: bool,
    /// What is counted for: a user, an address.
    pub key: &'a [u8],
    /// How the states lie in the store.
    pub layout: Layout,
    /// What its word counts for; a candidate's index of the one that it would replace is that of a question.
    pub role: Role,
    /// What is asked of this key, where it is not what the request asks of all its keys.
    pub own: Option<Demand>,
}

/// How a limiter's states lie in a store.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Layout {
    /// As the store likes it best.
    #[default]
    Native,
    /// The keys of Pause, to be shared with it: buckets of whole seconds, in Redis.
    Pause,
}

/// A request but for its keys.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The time of a manual clock, which takes the place of the store's; `None`: the store's own clock counts.
    pub now: Option<Micros>,
    /// How much, of each key that has no demand of its own.
    pub cost: u32,
    /// Hit or peek, likewise.
    pub intent: Intent,
    /// With what every limit says.
    pub explain: bool,
    /// Until when the answer is of use.
    pub by: Instant,
}

impl Asked {
    /// What is asked of this key.
    #[must_use]
    pub fn of(&self, question: &Question<'_>) -> Asked {
        let Demand { cost, intent } = question.own.unwrap_or(Demand { cost: self.cost, intent: self.intent });
        Asked { cost, intent, ..*self }
    }
}

/// The time of a question that is no decision, and its deadline.
#[derive(Clone, Copy, Debug)]
pub struct When {
    /// As [`Asked::now`].
    pub now: Option<Micros>,
    /// Until when the answer is of use.
    pub by: Instant,
}

/// A charge that is to be made, with the right to give back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve {
    /// By which it is known at its key; one that nobody guesses.
    pub nonce: u128,
    /// How much.
    pub cost: u32,
    /// For how long it can be given back.
    pub span: Micros,
    /// Where it was asked for.
    pub door: Door,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// The store's time.
    pub at: Micros,
    /// The decision.
    pub answer: PartAnswer,
    /// Until when it can be given back; `None`: nothing was reserved, as it was denied, or it was charged and could not be remembered.
    pub until: Option<Micros>,
}

/// What the end of a reservation has done.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The store's time.
    pub at: Micros,
    /// How the key stands then.
    pub answer: PartAnswer,
    /// How much was given back, to the limit that got back most.
    pub given_back: u32,
    /// How much was charged beyond what was reserved.
    pub excess: u32,
}

/// Limits of one key, set by hand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Override {
    /// In place of the limiter's, by position.
    pub limits: Vec<Limit>,
    /// Until when; `None`: until they are cleared.
    pub until: Option<Micros>,
    /// Why.
    pub reason: Option<String>,
}

impl Override {
    pub(crate) fn holds_at(&self, now: Micros) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

/// Limits of one key that are to be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewOverride {
    /// As [`Override::limits`].
    pub limits: Vec<Limit>,
    /// For how long from now; `None`: until they are cleared.
    pub span: Option<Micros>,
    /// Why.
    pub reason: Option<String>,
}

/// What became of limits that were to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    /// They hold until then; `None`: until they are cleared.
    Until(Option<Micros>),
    /// The limiter has as many as it may have.
    Full,
}

/// All limits of single keys that a limiter has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overrides {
    /// Another one after every change.
    pub version: u64,
    /// The store's time.
    pub at: Micros,
    /// By key.
    pub keys: Vec<(Vec<u8>, Override)>,
}

/// When it was decided, by the store's clock, and the answer for each key, in the order of the questions.
pub type Answers = (Micros, Vec<PartAnswer>);

/// The caller that asks a store for starts and slots: one replica of the replicas that share a pool of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder<'a> {
    /// What the replicas of one limit have in common.
    pub pool: &'a str,
    /// This replica.
    pub me: ReplicaId,
}

/// One register of members: a text that is written only over the text that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register<'a> {
    /// The limit whose members it lists.
    pub name: &'a str,
    /// The length of the limit's windows: windows of another length are other windows.
    pub period: Micros,
}

/// A new text for a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swap<'a> {
    /// The text that was read last; empty: there was none. It is written over this one only.
    pub expected: &'a str,
    /// The new text.
    pub new: &'a str,
    /// How long the new text stays at least.
    pub expiry: Duration,
}

/// What a store can do. Validation and refusals ask this; no code asks which store it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// The store's name, for people.
    pub name: &'static str,
    /// How limiters may count.
    pub algorithms: &'static [Algorithm],
    /// In which layouts names of tracked keys can be listed; those of blocked keys can wherever keys are blocked.
    pub lists: &'static [Layout],
    /// Keys can be blocked and unblocked by hand, and counted and analyzed apart.
    pub blocks: bool,
    /// What a key was charged can be given back, but by averages, which do not know what they are made of.
    pub gives_back: bool,
    /// Single keys can be given other limits.
    pub overrides: bool,
    /// Limiters may have [`Layout::Pause`].
    pub pause_layout: bool,
    /// Event streams can be kept where it is.
    pub streams: bool,
    /// Several processes count together in it.
    pub shared: bool,
}

impl Capabilities {
    /// May a limiter count in this way?
    #[must_use]
    pub fn counts(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Can the tracked keys of a limiter in this layout be listed?
    #[must_use]
    pub fn lists_in(&self, layout: Layout) -> bool {
        self.lists.contains(&layout)
    }
}
