//! Limits by value: which of a limiter's `[[limiter.match]]` holds for a key.
//!
//! Attributes that make the key are read from the key itself, so that a request by name, a look, a block and an explanation
//! see the same rules as a request by attributes; other attributes count only in requests that bring them. The first match
//! in the order written decides. Nothing here decides on a request or stores anything.

use crate::address::{address, is_address, part_of};
use crate::policy::no_value;
use crate::{LimiterSpec, Network, Pattern, Rules};
use std::borrow::Cow;
use std::fmt;

/// Limits, or none, for keys and requests with certain values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Match {
    /// All of them must hold.
    pub conditions: Vec<Condition>,
    /// Attributes of the key whose values count together: those that match one pattern have one count.
    pub together: Vec<String>,
    /// What holds then.
    pub outcome: Outcome,
    /// In place of the limiter's [`LimiterSpec::metadata`].
    pub metadata: Option<String>,
}

/// An attribute that has one of these values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Condition {
    /// The attribute's name; `key` is the key of a limiter that is asked by name alone.
    pub attribute: String,
    /// Any of them.
    pub values: Vec<Value>,
}

/// A value, or values that belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A text, in which `*` stands for anything.
    Text(Pattern),
    /// Addresses, of the attribute `ip`.
    Network(Network),
}

/// What a match puts in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// These limits, in place of the limiter's own by position. They share the key's counters.
    Limits(Rules),
    /// No limit: allowed, and not counted.
    Unlimited,
    /// Nothing passes, and no store is asked.
    Deny,
}

/// Most matches of a limiter. They are tried one after another.
pub const MATCHES_MAX: usize = 100;
/// Most values of a condition.
pub const MATCH_VALUES_MAX: usize = 1_000;
/// The name of the whole key, for limiters that are asked by name alone.
pub const WHOLE_KEY: &str = "key";

impl Value {
    /// A value of this attribute as it is written: networks and addresses where values are addresses ([`is_address`]), patterns elsewhere.
    ///
    /// # Errors
    /// A sentence with the value and the remedy.
    pub fn of(attribute: &str, text: &str) -> Result<Value, String> {
        match is_address(attribute) && !text.contains('*') {
            true => text.parse().map(Value::Network),
            false => text.parse().map(Value::Text),
        }
    }

    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Value::Text(pattern) => pattern.matches(value),
            Value::Network(network) => address(value).is_some_and(|address| network.contains(address)),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(pattern) => pattern.fmt(f),
            Value::Network(network) => network.fmt(f),
        }
    }
}

impl LimiterSpec {
    /// The match that holds for a key in a request with these attributes, from 0.
    pub(crate) fn matched(&self, key: &[u8], attributes: &[(&str, &[u8])]) -> Option<usize> {
        let holds = |condition: &Condition| match self.value_of(&condition.attribute, key, attributes) {
            Some(value) => condition.values.iter().any(|wanted| wanted.matches(&value)),
            None => false,
        };
        self.matches.iter().position(|one| one.conditions.iter().all(holds))
    }

    /// The key that a key counts as: a value that its match counts together with others is the pattern that they match. That matches itself, and what else
    /// would match it matches all of its values: the key made of it has the same match.
    pub(crate) fn counted_key<'k>(&self, key: Cow<'k, [u8]>, attributes: &[(&str, &[u8])]) -> Cow<'k, [u8]> {
        if self.matches.iter().all(|one| one.together.is_empty()) {
            return key;
        }
        let matched = self.matched(&key, attributes).map(|index| &self.matches[index]);
        match matched.and_then(|one| self.joined_key(one, &key, attributes)) {
            Some(joined) => Cow::Owned(joined),
            None => key,
        }
    }

    fn joined_key(&self, one: &Match, key: &[u8], attributes: &[(&str, &[u8])]) -> Option<Vec<u8>> {
        let condition = |name: &str| {
            one.together.iter().find(|other| *other == name)?;
            one.conditions.iter().find(|condition| condition.attribute == name)
        };
        let counted = |name: &str| {
            let value = self.value_of(name, key, attributes)?;
            let pattern = condition(name).and_then(|one| one.values.iter().find(|wanted| wanted.matches(&value)));
            Some(pattern.map_or_else(|| value.into_owned(), |pattern| pattern.to_string().into_bytes()))
        };
        if one.together.is_empty() {
            return None;
        }
        if self.by.is_empty() {
            return counted(WHOLE_KEY);
        }
        let values: Vec<Vec<u8>> = self.by.iter().map(|name| counted(name)).collect::<Option<_>>()?;
        let entries: Vec<(&str, &[u8])> =
            self.by.iter().zip(&values).map(|(name, value)| (name.as_str(), &value[..])).collect();
        self.key_of_descriptor(&entries)
    }

    fn value_of<'k>(&self, name: &str, key: &'k [u8], attributes: &[(&str, &'k [u8])]) -> Option<Cow<'k, [u8]>> {
        match self.by.as_slice() {
            [] => (name == WHOLE_KEY).then_some(Cow::Borrowed(key)),
            [only] if only == name => Some(Cow::Borrowed(if key == no_value(only) { b"" } else { key })),
            by if by.iter().any(|part| part == name) => part_of(key, name),
            _ => attributes.iter().find(|(other, _)| *other == name).map(|(_, value)| Cow::Borrowed(*value)),
        }
    }

    /// What is wrong with its matches, if something is: which one, and why.
    pub(crate) fn unfit_match(&self) -> Option<(usize, String)> {
        if self.matches.len() > MATCHES_MAX {
            let count = self.matches.len();
            return Some((
                MATCHES_MAX,
                format!("{count} matches are more than {MATCHES_MAX}; join those with the same limits"),
            ));
        }
        self.matches.iter().enumerate().find_map(|(index, one)| Some((index, self.why_unfit(one)?)))
    }

    fn why_unfit(&self, one: &Match) -> Option<String> {
        if one.conditions.is_empty() {
            return Some("it has no condition; add one, such as user = \"gold*\"".to_owned());
        }
        if let Outcome::Limits(rules) = &one.outcome
            && (rules.algorithm() != self.rules.algorithm() || rules.limits().len() != self.rules.limits().len())
        {
            let wanted = self.rules.limits().len();
            return Some(format!("its limits cannot stand in for the limiter's {wanted}; write {wanted}, by position"));
        }
        one.conditions.iter().find_map(|condition| self.why_never(condition)).or_else(|| self.why_not_together(one))
    }

    /// Why values of a match cannot count together.
    fn why_not_together(&self, one: &Match) -> Option<String> {
        let is_of_key = |name: &String| if self.by.is_empty() { name == WHOLE_KEY } else { self.by.contains(name) };
        let condition = |name: &String| one.conditions.iter().find(|condition| condition.attribute == *name);
        let fits = |name: &String| {
            let texts =
                condition(name).is_some_and(|one| one.values.iter().all(|value| matches!(value, Value::Text(_))));
            texts && is_of_key(name)
        };
        if let Some(name) = one.together.iter().find(|name| !fits(name)) {
            let name = name.escape_debug();
            return Some(format!(
                "together names \"{name}\", and values count together that this match has patterns for, of attributes in \"by\"; add {name} = \"a*\", or leave it out"
            ));
        }
        let counts = matches!(one.outcome, Outcome::Limits(_));
        (!counts && !one.together.is_empty())
            .then(|| "without limits nothing counts together; leave out together".to_owned())
    }

    /// Why a condition would never hold, or not as it is meant.
    fn why_never(&self, Condition { attribute, values }: &Condition) -> Option<String> {
        if self.by.is_empty() && attribute != WHOLE_KEY {
            return Some(format!(
                "the limiter is asked by name, and a request by name has no \"{}\"; match key = \"…\", or add by = [\"user\"]",
                attribute.escape_debug()
            ));
        }
        if values.is_empty() || values.len() > MATCH_VALUES_MAX {
            let count = values.len();
            return Some(format!("{attribute} has {count} values; write 1 to {MATCH_VALUES_MAX}"));
        }
        let prefix = self.ipv6_prefix.bits();
        let finer = |value: &&Value| matches!(value, Value::Network(network) if network.ipv6_bits().is_some_and(|bits| bits > prefix));
        let counted = is_address(attribute) && self.by.iter().any(|name| name == attribute);
        let fine = values.iter().find(finer).filter(|_| counted)?;
        Some(format!(
            "\"{fine}\" is finer than the networks of {prefix} bits by which the limiter counts; write a network of {prefix} bits or fewer, or set ipv6_prefix"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Algorithm;

    fn spec(by: &[&str], conditions: &[&[(&str, &str)]]) -> LimiterSpec {
        let rules = Rules::new(Algorithm::TokenBucket, &["1 per day".parse().unwrap()]).unwrap();
        let one = |conditions: &&[(&str, &str)]| Match {
            conditions: conditions
                .iter()
                .map(|(name, values)| Condition {
                    attribute: (*name).to_owned(),
                    values: values.split(' ').map(|value| Value::of(name, value).unwrap()).collect(),
                })
                .collect(),
            together: Vec::new(),
            outcome: Outcome::Unlimited,
            metadata: None,
        };
        LimiterSpec { matches: conditions.iter().map(one).collect(), ..LimiterSpec::new("a", rules).by(None, by) }
    }

    /// A key, the attributes of its request, and what it is expected to match.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a [u8])], usize);

    /// The matches of a limiter by these attributes, and for each key and other attributes the one that holds, from 1.
    #[track_caller]
    fn check(by: &[&str], conditions: &[&[(&str, &str)]], cases: &[Case<'_>]) {
        let spec = spec(by, conditions);
        assert_eq!(spec.unfit_match(), None);
        for (key, attributes, expected) in cases {
            let found = spec.matched(key.as_bytes(), attributes).map_or(0, |index| index + 1);
            assert_eq!(found, *expected, "{key} {attributes:?} by {by:?}");
        }
    }

    #[test]
    fn a11_the_first_match_in_the_order_written_decides() {
        let rules: &[&[(&str, &str)]] =
            &[&[("user", "gold-vip")], &[("user", "gold* platinum")], &[("user", "*-test")]];
        check(
            &["user"],
            rules,
            &[
                ("gold-vip", &[], 1),
                ("gold-test", &[], 2),
                ("platinum", &[], 2),
                ("platinum2", &[], 0),
                ("x-test", &[("user", b"gold")], 3),
            ],
        );
        check(&[], &[&[("key", "ws-ip=10.*")]], &[("ws-ip=10.1.2.3", &[], 1), ("ws-ip=11.1.2.3", &[], 0)]);
    }

    #[test]
    fn a11_values_that_make_the_key_are_read_from_it_and_others_from_the_request() {
        let networks: &[&[(&str, &str)]] = &[&[("ip", "10.0.0.0/8 2001:db8::/32")], &[("ip", "192.0.2.*")]];
        check(
            &["ip"],
            networks,
            &[
                ("10.1.2.3", &[], 1),
                ("2001:db8:1:2::/64", &[], 1),
                ("2001:db9::/64", &[], 0),
                ("192.0.2.7", &[], 2),
                ("no address", &[], 0),
            ],
        );
        let both: &[&[(&str, &str)]] = &[&[("user", "a,b\\"), ("ip", "10.0.0.0/8")], &[("plan", "gold")]];
        check(
            &["user", "ip"],
            both,
            &[
                ("user=a\\,b\\\\,ip=10.1.2.3", &[], 1),
                ("user=a\\,b\\\\,ip=11.1.2.3", &[], 0),
                ("user=x,ip=10.1.2.3", &[("plan", b"gold")], 2),
                ("user=x,ip=10.1.2.3", &[("plan", b"silver")], 0),
                ("a key of no such parts", &[], 0),
            ],
        );
    }

    /// Values that match one pattern make one key, which makes itself.
    #[test]
    fn values_that_count_together_are_the_pattern_that_they_match() {
        let rules: &[&[(&str, &str)]] =
            &[&[("path", "/a/x")], &[("path", "/a/* *.png"), ("user", "*")], &[("user", "root"), ("path", "*")]];
        let mut spec = spec(&["user", "path"], rules);
        let limits = Outcome::Limits(spec.rules.clone());
        spec.matches[1] =
            Match { together: vec!["path".to_owned()], outcome: limits.clone(), ..spec.matches[1].clone() };
        let both = vec!["path".to_owned(), "user".to_owned()];
        spec.matches[2] = Match { together: both, outcome: limits.clone(), ..spec.matches[2].clone() };
        assert_eq!(spec.unfit_match(), None);
        for (user, path, expected) in [
            ("ann", "/a/x", "user=ann,path=/a/x"),
            ("ann", "/a/y", "user=ann,path=/a/*"),
            ("a,b", "/a/*", "user=a\\,b,path=/a/*"),
            ("ann", "/b.png", "user=ann,path=*.png"),
            ("ann", "/b", "user=ann,path=/b"),
            ("root", "/b,c", "user=root,path=*"),
            ("root", "", "user=root,path=*"),
        ] {
            let key = spec.key_of(&[("user", user.as_bytes()), ("path", path.as_bytes())]).unwrap();
            let counted = spec.counted_key(Cow::Owned(key), &[]).into_owned();
            assert_eq!(String::from_utf8_lossy(&counted), expected, "{user} {path}");
            assert_eq!(spec.counted_key(Cow::Borrowed(&counted), &[]), counted, "it makes itself");
        }
        let one = |by: &[&str], name: &str, value: &str, together: &str, outcome: &Outcome| {
            let mut spec = self::spec(by, &[&[(name, value)]]);
            let (together, outcome) = (vec![together.to_owned()], outcome.clone());
            spec.matches[0] = Match { together, outcome, ..spec.matches[0].clone() };
            spec
        };
        let whole = one(&[], "key", "ws-*", "key", &limits);
        assert_eq!(whole.counted_key(Cow::Borrowed(b"ws-7"), &[]), &b"ws-*"[..]);
        let empty = one(&["user"], "user", "*", "user", &limits);
        assert_eq!(empty.counted_key(Cow::Owned(no_value("user")), &[]), &b"*"[..]);
        for (unfit, part) in [
            (one(&["user"], "user", "a*", "path", &limits), "together names \"path\""),
            (one(&["user"], "plan", "a*", "plan", &limits), "of attributes in \"by\""),
            (one(&["ip"], "ip", "10.0.0.0/8", "ip", &limits), "together names \"ip\""),
            (one(&["user"], "user", "a*", "user", &Outcome::Unlimited), "without limits nothing counts"),
        ] {
            assert!(unfit.unfit_match().unwrap().1.contains(part), "{:?}", unfit.unfit_match());
        }
    }

    #[test]
    fn matches_that_can_never_hold_are_refused() {
        for (by, conditions, part) in [
            (&[][..], &[("user", "a")][..], "a request by name has no \"user\"; match key"),
            (&["ip"], &[("ip", "2001:db8::/65")], "finer than the networks of 64 bits"),
            (&["ip"], &[], "it has no condition"),
        ] {
            let (index, why) = spec(by, &[conditions]).unfit_match().unwrap();
            assert!(index == 0 && why.contains(part), "{why}");
        }
        let many: Vec<&[(&str, &str)]> = vec![&[("key", "a")]; 101];
        assert!(spec(&[], &many).unfit_match().unwrap().1.contains("101 matches are more than 100"));
    }
}
