//! The policy: which limiters there are, and which of them a request meets.
//!
//! A policy is data, checked once when it is made; nothing here decides or stores.

mod error;
mod keys;

pub use error::{PolicyError, PolicyProblem};
pub(crate) use keys::no_value;

use crate::address::{Ipv6Prefix, is_address};
use crate::matching::{Match, Outcome};
use std::sync::Arc;
use tidegate_core::replicas::Schedule;
use tidegate_core::{KEY_LEN_MAX, Limit, PERIOD_MAX, Rules};
use tidegate_store::Shape;

/// One limiter of a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimiterSpec {
    /// Its name: 1 to 64 of `A–Z a–z 0–9 _ . -`, as it stands in paths, headers and metrics.
    pub name: String,
    /// The name under which a store keeps its states, if not its own. A limiter that is renamed keeps
    /// its counts if it keeps its scope.
    pub scope: Option<String>,
    /// Requests of this domain meet it; `None`: those without one.
    pub domain: Option<String>,
    /// The request attributes that make its key. None: a request matches it only by name.
    pub by: Vec<String>,
    /// How many bits of an IPv6 address in the attribute `ip` make its key: an IPv6 client can choose any address of its
    /// network.
    pub ipv6_prefix: Ipv6Prefix,
    /// What it allows.
    pub rules: Rules,
    /// Keep key names, so that they can be listed. Without, only hashes are kept.
    pub names: bool,
    /// Keep each key's numbers of hits and denials and its highest rate; see [`crate::KeyStats`].
    pub stats: bool,
    /// A disabled limiter allows everything; `false`: the flag is kept and not enforced.
    pub honour_disable: bool,
    /// False: the keys that come first are not told; see [`crate::Gate::top`].
    pub top_keys: bool,
    /// So many of the latest decisions are kept; see [`crate::Gate::latest_decisions`].
    pub last_decisions: usize,
    /// Denials are kept for a log, a few at a time; see [`crate::Gate::take_denials`]. Needs names.
    pub log_denials: bool,
    /// On Redis: keep states in the keys of Pause, which counts in buckets of whole seconds, so that an
    /// application that uses Pause shares them.
    pub pause_layout: bool,
    /// What it decides when a store on other machines does not answer; `None`: what the gate says.
    pub on_failure: Option<OnFailure>,
    /// How several processes keep it.
    pub replicas: Replicas,
    /// Other limits, or none, for certain values; the first that holds for a key decides.
    pub matches: Vec<Match>,
    /// It is counted and told, and decides nothing.
    pub candidate: bool,
    /// Of the alternatives that a request meets, one has to allow. Those that do are charged.
    pub alternative: bool,
    /// Limiters that are left out where a request meets them together with this one, and this one limits it.
    pub replaces: Vec<String>,
    /// What would take the place of its limits: counted and told beside them. They have states of their own.
    pub candidate_rules: Option<Rules>,
    /// A limit that a descriptor brings stands in for its own, and shares the key's counters.
    pub request_limits: bool,
    /// Costs are known only afterwards (bytes, tokens): a hit by Envoy's service that is more than what is left takes what is left, and
    /// is over the limit.
    pub overdraw: bool,
    /// Words for those who ask at Envoy's service, about requests that it lets pass: a JSON object as text.
    pub metadata: Option<String>,
    /// Each call brings the limit that it is decided by (see [`crate::Gate::with_limit`]); by its name alone it cannot be asked.
    pub limit_per_call: bool,
}

/// How several processes keep one limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Replicas {
    /// They share one count, in their store. In memory, that is this process alone.
    #[default]
    Exact,
    /// Each process holds a share and asks no store. It is this one (from 0) of so many; `None`: its share is assigned by
    /// [`crate::Gate::assign`].
    Share(Option<(u32, u32)>),
}

impl LimiterSpec {
    /// A limiter that requests match by its name; it keeps key names and enforces its disabled flag.
    #[must_use]
    pub fn new(name: impl Into<String>, rules: Rules) -> LimiterSpec {
        LimiterSpec {
            name: name.into(),
            scope: None,
            domain: None,
            by: Vec::new(),
            ipv6_prefix: Ipv6Prefix::default(),
            rules,
            names: true,
            stats: false,
            honour_disable: true,
            top_keys: true,
            last_decisions: 0,
            log_denials: false,
            pause_layout: false,
            on_failure: None,
            replicas: Replicas::Exact,
            matches: Vec::new(),
            candidate: false,
            alternative: false,
            replaces: Vec::new(),
            candidate_rules: None,
            request_limits: false,
            overdraw: false,
            metadata: None,
            limit_per_call: false,
        }
    }

    /// The limiter of `CL.THROTTLE`: one token bucket a key, by the limit that each call brings. Its own stands for all of them: it
    /// is so large that no state is capped by it.
    #[must_use]
    pub fn throttle() -> LimiterSpec {
        let limit = Limit::new(1, PERIOD_MAX).and_then(|limit| limit.with_burst(THROTTLE_BURST));
        let rules = Rules::per_call(limit.expect("the longest period is one"));
        let rules = rules.expect("so many of the longest periods fit 2^52 microseconds");
        LimiterSpec { limit_per_call: true, ..LimiterSpec::new(THROTTLE_LIMITER, rules) }
    }

    /// The same limiter, of which each process holds a share.
    #[must_use]
    pub fn shared(self, numbered: Option<(u32, u32)>) -> LimiterSpec {
        LimiterSpec { replicas: Replicas::Share(numbered), ..self }
    }

    /// The same limiter, matched by requests of `domain` that have all attributes of `by`.
    #[must_use]
    pub fn by(self, domain: Option<&str>, by: &[&str]) -> LimiterSpec {
        LimiterSpec {
            domain: domain.map(str::to_owned),
            by: by.iter().map(|name| (*name).to_owned()).collect(),
            ..self
        }
    }

    /// The same limiter, with its states under another name than its own.
    #[must_use]
    pub fn in_scope(self, scope: impl Into<String>) -> LimiterSpec {
        LimiterSpec { scope: Some(scope.into()), ..self }
    }

    /// The name under which a store keeps its states.
    #[must_use]
    pub fn scope(&self) -> &str {
        self.scope.as_deref().unwrap_or(&self.name)
    }

    /// The same limiter, in Pause's own keys where the store is Redis.
    #[must_use]
    pub fn in_pause_layout(self) -> LimiterSpec {
        LimiterSpec { pause_layout: true, ..self }
    }

    /// The same limiter, keeping statistics.
    #[must_use]
    pub fn with_stats(self) -> LimiterSpec {
        LimiterSpec { stats: true, ..self }
    }

    /// Is an address a part of its keys?
    #[must_use]
    pub fn is_by_address(&self) -> bool {
        self.by.iter().any(|name| is_address(name))
    }

    /// The name of its `index`-th limit in RateLimit headers: `name`, then `name-2`…
    #[must_use]
    pub fn policy_name(&self, index: usize) -> String {
        match index {
            0 => self.name.clone(),
            _ => format!("{}-{}", self.name, index + 1),
        }
    }

    /// The limiter that its `candidate_rules` make: it has its own states, and decides nothing.
    pub(crate) fn candidate_spec(&self) -> Option<LimiterSpec> {
        let rules = self.candidate_rules.clone()?;
        Some(LimiterSpec {
            rules,
            // No scope that can be chosen has a tilde.
            scope: Some(format!("{}~candidate", self.scope())),
            matches: Vec::new(),
            candidate: true,
            candidate_rules: None,
            pause_layout: false,
            stats: false,
            last_decisions: 0,
            log_denials: false,
            ..self.clone()
        })
    }

    /// Why it cannot be a candidate, or have one.
    fn unfit_candidate(&self) -> Option<&'static str> {
        let rules = self.candidate_rules.as_ref();
        if rules.is_some() && self.candidate {
            return Some("a candidate has no candidate of its own; leave out candidate or candidate_limits");
        }
        if (rules.is_some() || self.candidate) && self.alternative {
            return Some(
                "a candidate decides nothing, and one of the alternatives has to allow; leave one of them out",
            );
        }
        if (rules.is_some() || self.candidate) && self.replicas != Replicas::Exact {
            return Some("replicas share it, and a candidate is not shared; leave it out, or use replicas = \"exact\"");
        }
        if self.candidate && self.pause_layout {
            return Some("Pause's application would count and block by it; leave out layout or candidate");
        }
        let unlike = |other: &Rules| {
            other.algorithm() != self.rules.algorithm() || other.limits().len() != self.rules.limits().len()
        };
        rules.is_some_and(unlike).then_some("candidate_limits must be as many as limits, by position")
    }

    /// Why requests cannot bring their limits.
    fn unfit_request_limits(&self) -> Option<&'static str> {
        use tidegate_core::Algorithm::{Buckets, LeakyAverage, StrictAverage};
        let has_one = self.rules.limits().len() == 1;
        let counts = !matches!(self.rules.algorithm(), Buckets | LeakyAverage | StrictAverage);
        if !self.request_limits || has_one && counts && self.replicas == Replicas::Exact && !self.pause_layout {
            return None;
        }
        Some(
            "request_limits needs one limit, another algorithm than buckets or average, replicas = \"exact\" and no layout; leave it out, or them",
        )
    }

    /// The rules of its matches.
    pub(crate) fn other_rules(&self) -> impl Iterator<Item = &Rules> {
        self.matches.iter().filter_map(|one| if let Outcome::Limits(rules) = &one.outcome { Some(rules) } else { None })
    }

    /// What fixes the layout of its table.
    pub(crate) fn shape(&self) -> Shape {
        let (algorithm, limits) = (self.rules.algorithm(), self.rules.limits().len());
        Shape { algorithm, limits, names: self.names, stats: self.stats }
    }
}

/// What a decision is when the store does not answer in time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OnFailure {
    /// This process's own limiter decides, with its share of each limit.
    #[default]
    Local,
    /// Yes.
    Allow,
    /// No.
    Deny,
}

impl OnFailure {
    /// The word for it in every interface.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            OnFailure::Local => "local",
            OnFailure::Allow => "allow",
            OnFailure::Deny => "deny",
        }
    }
}

/// Limiters with distinct names, in definition order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    limiters: Vec<Arc<LimiterSpec>>,
}

/// Most limiters of a policy.
pub const LIMITERS_MAX: usize = 1_000;
/// The limiter that `[proxy] limit` makes.
pub const PROXY_LIMITER: &str = "proxy";
/// The limiter of `CL.THROTTLE`, whose calls bring their limits.
pub const THROTTLE_LIMITER: &str = "cl.throttle";
/// As many of the longest periods as 2^52 microseconds hold.
const THROTTLE_BURST: u32 = 142;
/// Longest name of a limiter, a domain or an attribute.
pub const NAME_LEN_MAX: usize = 64;

impl Policy {
    /// The policy, if all names are well formed and no two limiters share one.
    ///
    /// # Errors
    /// Names the limiter at fault by index.
    pub fn new(limiters: Vec<LimiterSpec>) -> Result<Policy, PolicyError> {
        if limiters.len() > LIMITERS_MAX {
            return Err(PolicyError { index: LIMITERS_MAX, problem: PolicyProblem::TooMany(limiters.len()) });
        }
        for (index, limiter) in limiters.iter().enumerate() {
            let fail = |problem| Err(PolicyError { index, problem });
            let attributes = limiter.by.iter().chain(&limiter.domain);
            if let Some(bad) = std::iter::once(&limiter.name).chain(attributes).find(|name| !is_name(name)) {
                return fail(PolicyProblem::Name(bad.clone()));
            }
            if limiters[..index].iter().any(|other| other.name == limiter.name) {
                return fail(PolicyProblem::Twice(limiter.name.clone()));
            }
            if limiter.scope.as_deref().is_some_and(|scope| !is_scope(scope)) {
                return fail(PolicyProblem::Scope(limiter.scope().to_owned()));
            }
            if let Some(other) = limiters[..index].iter().find(|other| other.scope() == limiter.scope()) {
                let (scope, of) = (limiter.scope().to_owned(), other.name.clone());
                return fail(PolicyProblem::ScopeTwice { scope, of });
            }
            let second =
                |other: &LimiterSpec| (1..other.rules.limits().len()).any(|i| other.policy_name(i) == limiter.name);
            if let Some(other) = limiters.iter().find(|other| second(other)) {
                return fail(PolicyProblem::PolicyName { name: limiter.name.clone(), of: other.name.clone() });
            }
            if let Some(twice) = limiter.by.iter().enumerate().find(|(i, name)| limiter.by[..*i].contains(name)) {
                return fail(PolicyProblem::AttributeTwice(twice.1.clone()));
            }
            if let (Some(domain), true) = (&limiter.domain, limiter.by.is_empty()) {
                return fail(PolicyProblem::DomainWithoutBy(domain.clone()));
            }
            let attributes =
                limiter.matches.iter().flat_map(|one| &one.conditions).map(|condition| &condition.attribute);
            if let Some(bad) = attributes.into_iter().find(|name| !is_name(name)) {
                return fail(PolicyProblem::Name(bad.clone()));
            }
            if let Some((at, why)) = limiter.unfit_match() {
                return fail(PolicyProblem::Match { at, why });
            }
            if let Some(other) = limiter.replaces.iter().find(|name| !limiters.iter().any(|one| one.name == **name)) {
                let (name, other) = (limiter.name.clone(), other.clone());
                return fail(PolicyProblem::Replaces { name, other });
            }
            if limiter.replaces.contains(&limiter.name) {
                return fail(PolicyProblem::ReplacesItself(limiter.name.clone()));
            }
            if let Some(why) = limiter.unfit_request_limits() {
                return fail(PolicyProblem::RequestLimits { name: limiter.name.clone(), why });
            }
            if let Some(why) = limiter.unfit_candidate() {
                return fail(PolicyProblem::Candidate { name: limiter.name.clone(), why });
            }
            let meets = |other: &&LimiterSpec| !other.by.is_empty() && other.domain == limiter.domain;
            let natively = |other: &&LimiterSpec| meets(other) && !other.pause_layout;
            if limiter.pause_layout
                && !limiter.by.is_empty()
                && let Some(other) = limiters.iter().find(natively)
            {
                return fail(PolicyProblem::PauseWith { name: limiter.name.clone(), other: other.name.clone() });
            }
            if limiter.replicas == Replicas::Exact {
                continue;
            }
            let unshareable = |rules: &Rules| rules.shared(&Schedule::NONE).is_none();
            if unshareable(&limiter.rules) || limiter.other_rules().any(unshareable) {
                return fail(PolicyProblem::NotShareable(limiter.name.clone()));
            }
            let others = limiters.iter().enumerate().filter(|(at, _)| *at != index).map(|(_, other)| other);
            if let (false, Some(other)) = (limiter.by.is_empty(), others.clone().find(meets)) {
                return fail(PolicyProblem::SharedWith { name: limiter.name.clone(), other: other.name.clone() });
            }
        }
        Ok(Policy { limiters: limiters.into_iter().map(Arc::new).collect() })
    }

    /// The same policy with one more limiter, or with another in place of the one of its name.
    ///
    /// # Errors
    /// As [`Policy::new`].
    pub fn with(&self, limiter: LimiterSpec) -> Result<Policy, PolicyError> {
        let others = self.limiters.iter().filter(|other| other.name != limiter.name);
        let mut limiters: Vec<LimiterSpec> = others.map(|other| LimiterSpec::clone(other)).collect();
        limiters.push(limiter);
        Policy::new(limiters)
    }

    /// The limiters that `candidate_rules` make.
    pub(crate) fn candidates(&self) -> Vec<LimiterSpec> {
        self.limiters.iter().filter_map(|limiter| limiter.candidate_spec()).collect()
    }

    /// The limiters, in definition order.
    #[must_use]
    pub fn limiters(&self) -> &[Arc<LimiterSpec>] {
        &self.limiters
    }
}

/// A name that may have colons, as scopes of other programs have.
fn is_scope(scope: &str) -> bool {
    scope.len() <= NAME_LEN_MAX
        && scope.split(':').any(is_name)
        && scope.split(':').all(|part| part.is_empty() || is_name(part))
}

fn is_name(name: &str) -> bool {
    let ok = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(ok)
}

const _: () = assert!(NAME_LEN_MAX < KEY_LEN_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Algorithm;

    fn spec(name: &str) -> LimiterSpec {
        LimiterSpec::new(name, Rules::new(Algorithm::TokenBucket, &["1 per day".parse().unwrap()]).unwrap())
    }

    #[track_caller]
    fn check(limiters: Vec<LimiterSpec>, index: usize, part: &str) {
        let error = Policy::new(limiters).unwrap_err();
        assert_eq!(error.index, index);
        assert!(error.to_string().contains(part), "{error}");
    }

    #[test]
    fn refusals_name_the_limiter_and_the_remedy() {
        check(vec![spec("a"), spec("")], 1, "1 to 64");
        check(vec![spec("a b")], 0, "the name \"a b\"");
        check(vec![spec("a"), spec("b"), spec("a")], 2, "named \"a\"");
        check(vec![spec("a"), spec("b").in_scope("a|b")], 1, "the scope \"a|b\" is not 1 to 64");
        check(vec![spec("a"), spec("b").in_scope("a")], 1, "the scope \"a\" is that of limiter \"a\"");
        check(vec![spec("a").in_scope("b"), spec("b")], 1, "the scope \"b\" is that of limiter \"a\"");
        check(vec![spec("a").by(None, &["ip", "ip"])], 0, "\"ip\" twice");
        let two = Rules::new(Algorithm::TokenBucket, &["1 per day".parse().unwrap(); 2]).unwrap();
        check(vec![LimiterSpec::new("a", two), spec("a-2")], 1, "\"a-2\" is a limit of limiter \"a\"");
        check(vec![spec("a").by(Some("login"), &[])], 0, "no effect without \"by\"");
        let aligned = Rules::new(Algorithm::AlignedWindow, &["9 per minute".parse().unwrap()]).unwrap();
        let shared = |name: &str| LimiterSpec::new(name, aligned.clone()).shared(Some((0, 3)));
        check(vec![spec("a").shared(None)], 0, "needs algorithm = \"fixed-window\" with aligned = true");
        check(
            vec![shared("a").by(None, &["ip"]), spec("b").by(None, &["user"])],
            0,
            "a request would match \"b\" with it",
        );
        assert!(Policy::new(vec![shared("a").by(Some("x"), &["ip"]), spec("b").by(None, &["user"])]).is_ok());
        check(
            vec![spec("a").by(None, &["user"]), spec("b").by(None, &["ip"]).in_pause_layout()],
            1,
            "a request would match \"a\" with it; give it a domain of its own",
        );
        let apart = vec![spec("a").by(Some("x"), &["ip"]), spec("b").by(None, &["ip"]).in_pause_layout()];
        assert!(Policy::new(apart).is_ok());
        check((0..1001).map(|i| spec(&format!("l{i}"))).collect(), 1000, "1001 limiters");
    }
}
