//! From a key to its limiter: rewrite rules, then an ordered list of patterns, the first of which
//! decides. Beside that, rules that count keys by other names, as they came.
//!
//! All patterns are compiled into one automaton that reads a key once, whatever their number; only a
//! key that is rewritten is read again. Each pattern is given a lazy "anything" in front, so that all
//! matches start at the key's first byte: then the automaton's own rule, the earlier pattern first,
//! is the rule of the list. Patterns see bytes: `\d` is an ASCII digit, `.` any byte but a
//! newline. Everything has a bound, and matching takes time linear in the key.

use regex::bytes::{Regex, RegexBuilder};
use regex_automata::{Anchored, Input, meta};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir, Repetition};
use std::borrow::Cow;
use std::fmt;
use tidegate::Ipv6Prefix;
use tidegate_wire::udp::REQUEST_LEN_MAX;

/// What the configuration says, in order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Routing {
    /// Every one that matches a key as it came counts it, whatever its route.
    pub counts: Vec<Count>,
    /// Applied one after another, before the routes.
    pub rewrites: Vec<Rewrite>,
    /// The first that matches decides.
    pub routes: Vec<Route>,
}

/// Replaces the first match inside a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rewrite {
    /// What is replaced.
    pub pattern: String,
    /// By what; `$1` and `${name}` stand for groups of the pattern.
    pub replacement: String,
}

/// Counts keys under a name, for `get_stats`, and limits nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Count {
    /// Which keys.
    pub pattern: String,
    /// The name, in lower case; `$1` and `${name}` stand for groups of the pattern.
    pub name: String,
}

/// Sends keys to a limiter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Which keys.
    pub pattern: String,
    /// The limiter's name.
    pub limiter: String,
    /// The first IPv6 address in a key counts as its network of so many bits; `None`: as it stands.
    pub ipv6_prefix: Option<Ipv6Prefix>,
}

/// Most routes.
pub const ROUTES_MAX: usize = 1_000;
/// Most rewrite rules, and most rules that count.
pub const REWRITES_MAX: usize = 100;
/// Longest pattern, in bytes.
pub const PATTERN_LEN_MAX: usize = 1_024;
/// Longest replacement, in bytes.
pub const REPLACEMENT_LEN_MAX: usize = 256;
/// Memory of one compiled pattern, and of all of them together, in bytes.
const PATTERN_SIZE_MAX: usize = 1 << 20;
const SET_SIZE_MAX: usize = 16 << 20;
/// Memory of the states that matching keeps, for each thread that matches, in bytes.
const CACHE_MAX: usize = 4 << 20;

/// What is wrong with a rule, or with all of them together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RouteProblem {
    /// The pattern of this rewrite rule or route.
    Pattern(String),
    /// The replacement of a rewrite rule, or the name of a rule that counts.
    Replacement(String),
    /// All rules together.
    Whole(String),
}

impl std::error::Error for RouteProblem {}

impl fmt::Display for RouteProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteProblem::Pattern(message) | RouteProblem::Replacement(message) | RouteProblem::Whole(message) => {
                f.write_str(message)
            }
        }
    }
}

impl Rewrite {
    /// Checks it by itself.
    ///
    /// # Errors
    /// The pattern or the replacement, with the bound and the remedy.
    pub fn check(&self) -> Result<(), RouteProblem> {
        self.compiled().map(drop)
    }

    fn compiled(&self) -> Result<Template, RouteProblem> {
        Template::new(&self.pattern, &self.replacement)
    }
}

impl Count {
    /// Checks it by itself.
    ///
    /// # Errors
    /// The pattern or the name, with the bound and the remedy.
    pub fn check(&self) -> Result<(), RouteProblem> {
        self.compiled().map(drop)
    }

    fn compiled(&self) -> Result<Template, RouteProblem> {
        Template::new(&self.pattern, &self.name)
    }
}

impl Route {
    /// Checks its pattern by itself.
    ///
    /// # Errors
    /// The pattern, with the bound and the remedy.
    pub fn check(&self) -> Result<(), RouteProblem> {
        compile(&self.pattern).map(drop)
    }
}

/// A pattern, and a text that stands for what it matched.
#[derive(Clone, Debug)]
struct Template {
    regex: Regex,
    text: String,
}

impl Template {
    fn new(pattern: &str, text: &str) -> Result<Template, RouteProblem> {
        let regex = compile(pattern)?;
        let refuse = |message: String| Err(RouteProblem::Replacement(message));
        if text.len() > REPLACEMENT_LEN_MAX {
            return refuse(format!(
                "it has {} bytes, more than {REPLACEMENT_LEN_MAX}; choose a shorter one",
                text.len()
            ));
        }
        if let Some(digit) = escaped_digit(text) {
            return refuse(format!("\\{digit} stands for no group here; write ${{{digit}}}"));
        }
        if let Some(group) = unknown_group(text, &regex) {
            return refuse(format!(
                "it refers to the group \"{group}\", which the pattern does not have; write $$ for a dollar sign"
            ));
        }
        Ok(Template { regex, text: text.to_owned() })
    }

    /// The text for the first match inside a key, in lower case.
    fn name(&self, key: &[u8]) -> Option<Vec<u8>> {
        let groups = self.regex.captures(key)?;
        let mut name = Vec::new();
        groups.expand(self.text.as_bytes(), &mut name);
        name.make_ascii_lowercase();
        Some(name)
    }
}

/// The rules, compiled.
#[derive(Clone, Debug)]
pub struct Routes {
    /// All patterns that count, then those of rewrites, then all routes.
    all: meta::Regex,
    /// The routes alone.
    routes: meta::Regex,
    counts: Vec<Template>,
    rewrites: Vec<Template>,
    /// By route; empty: no route asks for networks.
    prefixes: Vec<Option<Ipv6Prefix>>,
}

/// What the rules say of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found<'k> {
    /// The key after all rewriting.
    pub key: Cow<'k, [u8]>,
    /// The number of its route.
    pub route: Option<usize>,
    /// Does a rule count it?
    pub counted: bool,
}

/// Where one thread's matching keeps its states. Threads that share one take turns at a lock, which
/// costs more than matching a key.
#[derive(Clone, Debug)]
pub struct Caches {
    all: meta::Cache,
    routes: meta::Cache,
}

impl Routes {
    /// Compiles all rules.
    ///
    /// # Errors
    /// The first rule that is refused, or all when they are too many or too large together.
    pub fn new(routing: &Routing) -> Result<Routes, RouteProblem> {
        let Routing { counts, rewrites, routes } = routing;
        if counts.len() > REWRITES_MAX || rewrites.len() > REWRITES_MAX || routes.len() > ROUTES_MAX {
            return Err(RouteProblem::Whole(format!(
                "{} rules that count, {} rewrite rules and {} routes are more than {REWRITES_MAX}, {REWRITES_MAX} and {ROUTES_MAX}; \
                 join some by |",
                counts.len(),
                rewrites.len(),
                routes.len()
            )));
        }
        routes.iter().try_for_each(Route::check)?;
        let counting = counts.iter().map(|rule| rule.pattern.as_str());
        let rewriting = rewrites.iter().map(|rule| rule.pattern.as_str());
        let routing: Vec<&str> = routes.iter().map(|route| route.pattern.as_str()).collect();
        let all: Vec<&str> = counting.chain(rewriting).chain(routing.iter().copied()).collect();
        Ok(Routes {
            all: first_of(&all)?,
            routes: first_of(&routing)?,
            counts: counts.iter().map(Count::compiled).collect::<Result<_, _>>()?,
            rewrites: rewrites.iter().map(Rewrite::compiled).collect::<Result<_, _>>()?,
            prefixes: match routes.iter().all(|route| route.ipv6_prefix.is_none()) {
                true => Vec::new(),
                false => routes.iter().map(|route| route.ipv6_prefix).collect(),
            },
        })
    }

    /// Caches for a thread that asks these rules, and no others.
    #[must_use]
    pub fn caches(&self) -> Caches {
        Caches { all: self.all.create_cache(), routes: self.routes.create_cache() }
    }

    /// What the rules say of a key as it came.
    #[must_use]
    #[inline]
    pub fn find<'k>(&self, caches: &mut Caches, key: &'k [u8]) -> Found<'k> {
        let mut found = self.find_address(caches, key);
        if let Some(Some(prefix)) = found.route.and_then(|route| self.prefixes.get(route)) {
            found.key = match found.key {
                Cow::Borrowed(key) => prefix.key_within(key),
                Cow::Owned(key) => Cow::Owned(prefix.key_within(&key).into_owned()),
            };
        }
        found
    }

    /// The same, with addresses as they stand.
    #[inline]
    fn find_address<'k>(&self, caches: &mut Caches, key: &'k [u8]) -> Found<'k> {
        let before_routes = self.counts.len() + self.rewrites.len();
        match first_match(&self.all, &mut caches.all, key) {
            Some(first) if first < before_routes => {
                let counted = first < self.counts.len();
                let key = self.rewritten(key);
                let route = self.find_plain(caches, &key);
                Found { key, route, counted }
            }
            first => {
                let route = first.map(|first| first - before_routes);
                Found { key: Cow::Borrowed(key), route, counted: false }
            }
        }
    }

    /// The names under which a key as it came is counted.
    pub fn names<'r>(&'r self, key: &'r [u8]) -> impl Iterator<Item = Vec<u8>> + 'r {
        self.counts.iter().filter_map(|rule| rule.name(key)).filter(|name| name.len() <= REQUEST_LEN_MAX)
    }

    /// The number of the route of a key as it stands.
    #[must_use]
    pub fn find_plain(&self, caches: &mut Caches, key: &[u8]) -> Option<usize> {
        first_match(&self.routes, &mut caches.routes, key)
    }

    /// A rule that would make a key longer than a request may be is passed over.
    fn rewritten<'k>(&self, key: &'k [u8]) -> Cow<'k, [u8]> {
        let mut key = Cow::Borrowed(key);
        for rule in &self.rewrites {
            let new = match rule.regex.replace(&key, rule.text.as_bytes()) {
                Cow::Owned(new) if new.len() <= REQUEST_LEN_MAX => new,
                _ => continue,
            };
            key = Cow::Owned(new);
        }
        key
    }
}

#[inline]
fn first_match(patterns: &meta::Regex, cache: &mut meta::Cache, key: &[u8]) -> Option<usize> {
    let input = Input::new(key).anchored(Anchored::Yes);
    patterns.search_half_with(cache, &input).map(|found| found.pattern().as_usize())
}

/// An automaton that tells the first of these patterns that matches anywhere.
fn first_of(patterns: &[&str]) -> Result<meta::Regex, RouteProblem> {
    let whole = |_| {
        let most = SET_SIZE_MAX >> 20;
        RouteProblem::Whole(format!(
            "all patterns together take more than {most} MiB; use fewer or simpler ones, without large repetitions"
        ))
    };
    let any_byte = Hir::class(Class::Bytes(ClassBytes::new([ClassBytesRange::new(0, u8::MAX)])));
    let anything = Hir::repetition(Repetition { min: 0, max: None, greedy: false, sub: Box::new(any_byte) });
    let mut parsed = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        // Checked by itself before, so that this does not fail.
        let mut parser = ParserBuilder::new().unicode(false).utf8(false).build();
        let hir = parser.parse(pattern).map_err(|error| RouteProblem::Pattern(error.to_string()))?;
        parsed.push(Hir::concat(vec![anything.clone(), hir]));
    }
    let config = meta::Config::new().nfa_size_limit(Some(SET_SIZE_MAX)).hybrid_cache_capacity(CACHE_MAX);
    meta::Builder::new().configure(config.utf8_empty(false)).build_many_from_hir(&parsed).map_err(whole)
}

fn compile(pattern: &str) -> Result<Regex, RouteProblem> {
    let refuse = |message: String| Err(RouteProblem::Pattern(message));
    if pattern.len() > PATTERN_LEN_MAX {
        return refuse(format!("it has {} bytes, more than {PATTERN_LEN_MAX}; use two rules", pattern.len()));
    }
    RegexBuilder::new(pattern).unicode(false).size_limit(PATTERN_SIZE_MAX).build().or_else(|error| match error {
        regex::Error::Syntax(text) => {
            let what = text.lines().last().unwrap_or_default();
            let what = what.strip_prefix("error: ").unwrap_or(what);
            refuse(format!("this is no regular expression: {what}; write one such as '^ws ip='"))
        }
        _ => refuse(format!("it is larger than {} MiB when compiled; use smaller repetitions", PATTERN_SIZE_MAX >> 20)),
    })
}

/// The digit of a `\1`, which is how other programs refer to a group; here it would be taken as it stands.
fn escaped_digit(text: &str) -> Option<char> {
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if char == '\\'
            && let Some(next) = chars.next()
            && next.is_ascii_digit()
        {
            return Some(next);
        }
    }
    None
}

/// A `$1` or `${name}` of a replacement that the pattern has no group for: it would be left out silently.
fn unknown_group(replacement: &str, regex: &Regex) -> Option<String> {
    let mut rest = replacement;
    while let Some(at) = rest.find('$') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            rest = after;
            continue;
        }
        let name = match rest.strip_prefix('{').and_then(|braced| braced.split_once('}')) {
            Some((name, _)) => name,
            None => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                &rest[..end]
            }
        };
        let known = match name.parse::<usize>() {
            Ok(number) => number < regex.captures_len(),
            Err(_) => regex.capture_names().flatten().any(|known| known == name),
        };
        if !known {
            return Some(name.to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(rewrites: &[(&str, &str)], routes: &[&str]) -> Routing {
        let rewrite = |(pattern, replacement): &(&str, &str)| Rewrite {
            pattern: (*pattern).to_owned(),
            replacement: (*replacement).to_owned(),
        };
        let route =
            |pattern: &&str| Route { pattern: (*pattern).to_owned(), limiter: "x".to_owned(), ipv6_prefix: None };
        let (rewrites, routes) = (rewrites.iter().map(rewrite).collect(), routes.iter().map(route).collect());
        Routing { rewrites, routes, ..Routing::default() }
    }

    fn count(pattern: &str, name: &str) -> Count {
        Count { pattern: pattern.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn s2_a_route_may_count_addresses_by_their_network() {
        let mut rules = routing(&[("^old ", "ws ")], &["^ws ip=", "^search ip="]);
        rules.routes[0].ipv6_prefix = Ipv6Prefix::new(64);
        let routes = Routes::new(&rules).unwrap();
        let mut caches = routes.caches();
        for (key, expected) in [
            ("ws ip=2001:db8:1:2:3::4", "ws ip=2001:db8:1:2::/64"),
            ("old ip=2001:db8:1:2:5::6", "ws ip=2001:db8:1:2::/64"),
            ("ws ip=192.0.2.1", "ws ip=192.0.2.1"),
            ("search ip=2001:db8:1:2:3::4", "search ip=2001:db8:1:2:3::4"),
            ("none ip=2001:db8:1:2:3::4", "none ip=2001:db8:1:2:3::4"),
        ] {
            assert_eq!(String::from_utf8_lossy(&routes.find(&mut caches, key.as_bytes()).key), expected, "{key}");
        }
    }

    #[test]
    fn the_first_match_decides_after_rewriting() {
        let rules = routing(
            &[(r" ip=132\.185\.\d+\.\d+$", " cust=bbc"), (r"^(\w+) cust=(\w+)$", "$1 customer=${2}")],
            &[r"^ws ip=\d+\.\d+\.\d+\.\d+$", "customer=bbc", "^ws ", r"ip=[0-9a-f:]+$", "\\xff"],
        );
        let routes = Routes::new(&rules).unwrap();
        let mut caches = routes.caches();
        let cases: [(&[u8], &str, Option<usize>); 9] = [
            (b"ws ip=192.0.2.1", "ws ip=192.0.2.1", Some(0)),
            (b"ws ip=4.14.989.98", "ws ip=4.14.989.98", Some(0)),
            (b"ws ip=132.185.0.1", "ws customer=bbc", Some(1)),
            (b"ws cust=ia", "ws customer=ia", Some(2)),
            (b"search ip=2001:db8::1", "search ip=2001:db8::1", Some(3)),
            (b"ws ip=1.2.3", "ws ip=1.2.3", Some(2)),
            (b"search", "search", None),
            (b"", "", None),
            (b"\xd9\xa1", "\u{661}", None),
        ];
        for (key, rewritten, route) in cases {
            let found = Found { key: Cow::Borrowed(rewritten.as_bytes()), route, counted: false };
            assert_eq!(routes.find(&mut caches, key), found, "{}", key.escape_ascii());
        }
        assert_eq!(routes.find(&mut caches, b"a\xffb").route, Some(4));
        assert_eq!(routes.find_plain(&mut caches, b"ws ip=132.185.0.1"), Some(0), "statistics do not rewrite");
        assert_eq!(routes.find_plain(&mut caches, b"x customer=bbc"), Some(1));
    }

    #[test]
    fn a_rewrite_that_grows_past_a_request_is_passed_over() {
        let routes = Routes::new(&routing(&[("^(.*)$", "$1$1")], &["x"])).unwrap();
        let mut caches = routes.caches();
        assert_eq!(routes.find(&mut caches, &[b'x'; 500]).key.len(), 1_000);
        let found = routes.find(&mut caches, &[b'x'; 501]);
        assert_eq!((found.key.as_ref(), found.route), (&[b'x'; 501][..], Some(0)));
    }

    #[test]
    fn rules_that_count_see_the_key_as_it_came_and_change_no_route() {
        let mut rules = routing(&[("headphones", "x")], &["^ws ua=x", "ip="]);
        rules.counts = vec![count(r"(?i)\b(picard|xbmc)\b", "$1"), count("^ws ua=headphones$", "all ${0}")];
        let routes = Routes::new(&rules).unwrap();
        let mut caches = routes.caches();
        let cases: [(&str, &[&str], Option<usize>); 6] = [
            ("ws ua=Picard/2.1", &["picard"], None),
            ("ws ua=XBMC picard", &["xbmc"], None),
            ("ws ua=headphones", &["all ws ua=headphones"], Some(0)),
            ("picard ip=1", &["picard"], Some(1)),
            ("ws ip=1", &[], Some(1)),
            ("nobody", &[], None),
        ];
        for (key, names, route) in cases {
            let found = routes.find(&mut caches, key.as_bytes());
            assert_eq!((found.route, found.counted), (route, !names.is_empty()), "{key}");
            let counted: Vec<String> =
                routes.names(key.as_bytes()).map(|name| String::from_utf8(name).unwrap()).collect();
            assert_eq!(counted, names);
        }
    }

    #[test]
    fn refusals_name_the_remedy() {
        #[track_caller]
        fn check(rules: &Routing, part: &str) {
            let error = Routes::new(rules).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        check(&routing(&[], &["a(b"]), "no regular expression: unclosed group");
        check(&routing(&[], &["a{99999}{99999}"]), "larger than 1 MiB");
        check(&routing(&[], &[&"a".repeat(1_025)]), "1025 bytes, more than 1024");
        check(&routing(&[("a", &"b".repeat(257))], &[]), "257 bytes, more than 256");
        check(&routing(&[("a", "$1")], &[]), "the group \"1\", which the pattern does not have");
        check(&routing(&[("(?<n>a)", "${n} $1 $$ $m")], &[]), "the group \"m\"");
        check(&routing(&[("(a)", r"\1")], &[]), r"\1 stands for no group here; write ${1}");
        check(&Routing { counts: vec![count("a", "$2")], ..Routing::default() }, "the group \"2\"");
        check(&Routing { counts: vec![count("a", "b"); 101], ..Routing::default() }, "101 rules that count");
        check(&routing(&[], &["a"; 1_001]), "1001 routes are more than");
        check(&routing(&[], &[r"[a-z]{1,2000}[0-9]{1,2000}x{1,999}"; 100]), "together take more than 16 MiB");
    }
}
