//! Why a policy is refused: each sentence names the limiter or the word at fault, the bound and the remedy.

use super::{LIMITERS_MAX, NAME_LEN_MAX};
use std::fmt;

/// Why a policy was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyError {
    /// Which limiter, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub problem: PolicyProblem,
}

/// What is wrong with a limiter of a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PolicyProblem {
    /// More than [`LIMITERS_MAX`].
    TooMany(usize),
    /// A name, domain or attribute of other characters, or too long.
    Name(String),
    /// Another limiter has the name.
    Twice(String),
    /// A scope of other characters, or too long.
    Scope(String),
    /// Another limiter keeps its states under this scope.
    ScopeTwice {
        /// The scope.
        scope: String,
        /// The other limiter.
        of: String,
    },
    /// Another limiter's second, third… limit has the name in RateLimit headers.
    PolicyName {
        /// The name.
        name: String,
        /// The other limiter.
        of: String,
    },
    /// `by` names an attribute twice.
    AttributeTwice(String),
    /// A domain without `by` would match no request.
    DomainWithoutBy(String),
    /// It cannot be a candidate, or have one.
    Candidate {
        /// The limiter.
        name: String,
        /// Why, with the remedy.
        why: &'static str,
    },
    /// It replaces a limiter that is not there.
    Replaces {
        /// The limiter.
        name: String,
        /// The one that it would replace.
        other: String,
    },
    /// It replaces itself.
    ReplacesItself(String),
    /// Requests cannot bring limits for it.
    RequestLimits {
        /// The limiter.
        name: String,
        /// Why, with the remedy.
        why: &'static str,
    },
    /// A match that is empty, cannot hold, or whose limits do not suit the limiter.
    Match {
        /// Which match, from 0.
        at: usize,
        /// Why, with the remedy.
        why: String,
    },
    /// Not one limit of aligned windows: replicas cannot share it.
    NotShareable(String),
    /// A request would match a shared limiter together with another one.
    SharedWith {
        /// The limiter.
        name: String,
        /// The other.
        other: String,
    },
    /// A request would match a limiter in Pause's layout together with another one, and no script counts both.
    PauseWith {
        /// The limiter.
        name: String,
        /// The other.
        other: String,
    },
}

impl std::error::Error for PolicyError {}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            PolicyProblem::TooMany(n) => {
                write!(f, "{n} limiters are more than {LIMITERS_MAX}; limit by key instead of by limiter")
            }
            PolicyProblem::Name(name) => write!(
                f,
                "the name \"{}\" is not 1 to {NAME_LEN_MAX} of A-Z a-z 0-9 _ . -; choose another",
                name.escape_debug()
            ),
            PolicyProblem::Twice(name) => write!(f, "a second limiter is named \"{name}\"; names must differ"),
            PolicyProblem::Scope(scope) => write!(
                f,
                "the scope \"{}\" is not 1 to {NAME_LEN_MAX} of A-Z a-z 0-9 _ . - :; choose another",
                scope.escape_debug()
            ),
            PolicyProblem::ScopeTwice { scope, of } => {
                write!(
                    f,
                    "the scope \"{scope}\" is that of limiter \"{of}\", so that they would count together; choose another"
                )
            }
            PolicyProblem::PolicyName { name, of } => {
                write!(f, "in RateLimit headers \"{name}\" is a limit of limiter \"{of}\"; choose another name")
            }
            PolicyProblem::AttributeTwice(name) => write!(f, "\"by\" names \"{name}\" twice; once is enough"),
            PolicyProblem::DomainWithoutBy(domain) => write!(
                f,
                "domain \"{domain}\" has no effect without \"by\"; add by = [\"user\"] or leave the domain out"
            ),
            PolicyProblem::Candidate { name, why } | PolicyProblem::RequestLimits { name, why } => {
                write!(f, "\"{name}\": {why}")
            }
            PolicyProblem::Replaces { name, other } => write!(
                f,
                "\"{name}\" replaces \"{}\", and no limiter is named so; name another, or leave it out",
                other.escape_debug()
            ),
            PolicyProblem::ReplacesItself(name) => {
                write!(f, "\"{name}\" replaces itself, so that nothing would limit; name another limiter")
            }
            PolicyProblem::Match { at, why } => write!(f, "match {}: {why}", at + 1),
            PolicyProblem::NotShareable(name) => write!(
                f,
                "\"{name}\" cannot be shared: replicas = \"share\" needs algorithm = \"fixed-window\" with aligned = true, one limit, and no block"
            ),
            PolicyProblem::SharedWith { name, other } => write!(
                f,
                "\"{name}\" is shared between replicas, and a request would match \"{other}\" with it; give it a domain of its own"
            ),
            PolicyProblem::PauseWith { name, other } => write!(
                f,
                "\"{name}\" has layout = \"pause\", and a request would match \"{other}\" with it; give it a domain of its own, or both the layout"
            ),
        }
    }
}
