//! Who is known by name, and what each may do.
//!
//! Everything here is as the tokens file says it; the file itself is read by the command. Several tokens are valid at once, so that
//! one can be replaced before the old one is revoked.

use super::scope::{Scope, Scopes};
use super::secret::Hash;
use std::sync::Arc;
use tidegate::{Micros, Pattern};

/// Most tokens and certificates of a file: each wrong token is compared with all of them.
pub const TOKENS_MAX: usize = 1_000;
/// Longest name, in bytes.
pub const TOKEN_NAME_LEN_MAX: usize = 64;

/// What somebody may do: kinds of requests, and for which limiters, domains and streams.
///
/// Limiters and domains narrow together: with either, a request by a limiter's name needs a pattern in `limiters`, and one by
/// attributes needs its domain in `domains`. Attributes are matched by limiters that the caller does not name, so that a token for
/// some limiters could otherwise charge any. Streams narrow by themselves.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Grant {
    /// The kinds of requests.
    pub scopes: Scopes,
    /// Limiters that may be named.
    pub limiters: Vec<Pattern>,
    /// Domains that may be asked by attributes. A request without a domain has an empty one, which `*` matches.
    pub domains: Vec<Pattern>,
    /// Streams; none: all of them.
    pub streams: Vec<Pattern>,
}

/// What a request is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What<'a> {
    /// A limiter, by its name.
    Limiter(&'a str),
    /// The limiters that a request's attributes match, in a domain or outside of all.
    Domain(Option<&'a str>),
    /// A stream.
    Stream(&'a str),
    /// Everything at once, such as the metrics: for those whose grant is not narrowed.
    Everything,
}

impl Grant {
    /// Does it open this?
    #[must_use]
    pub fn opens(&self, scope: Scope, what: What<'_>) -> bool {
        let one_of = |patterns: &[Pattern], name| patterns.iter().any(|pattern| pattern.matches(name));
        self.scopes.has(scope)
            && match what {
                What::Limiter(name) => !self.narrows_limiters() || one_of(&self.limiters, name),
                What::Domain(name) => !self.narrows_limiters() || one_of(&self.domains, name.unwrap_or_default()),
                What::Stream(name) => self.streams.is_empty() || one_of(&self.streams, name),
                What::Everything => !self.is_narrowed(),
            }
    }

    fn narrows_limiters(&self) -> bool {
        !self.limiters.is_empty() || !self.domains.is_empty()
    }

    /// Is anything but its scopes a bound?
    #[must_use]
    pub fn is_narrowed(&self) -> bool {
        self.narrows_limiters() || !self.streams.is_empty()
    }

    /// `check, read for limiters login-* and streams orders`.
    #[must_use]
    pub fn told(&self) -> String {
        let list = |kind, patterns: &[Pattern]| {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            (!patterns.is_empty()).then(|| format!("{kind} {}", patterns.join(", ")))
        };
        let bounds = [("limiters", &self.limiters), ("domains", &self.domains), ("streams", &self.streams)];
        let bounds: Vec<String> = bounds.iter().filter_map(|(kind, patterns)| list(kind, patterns)).collect();
        match bounds.as_slice() {
            [] => self.scopes.names(),
            bounds => format!("{} for {}", self.scopes.names(), bounds.join(" and ")),
        }
    }
}

/// A token, without its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// For people: logs and the audit have it.
    pub name: String,
    /// Of its text.
    pub hash: Hash,
    /// What it opens.
    pub grant: Grant,
    /// From then on it opens nothing, by the gate's clock.
    pub expires: Option<Micros>,
}

impl Token {
    /// Is its time up?
    #[must_use]
    pub fn has_expired(&self, now: Micros) -> bool {
        self.expires.is_some_and(|expires| now >= expires)
    }
}

/// A client's certificate that is known, by what its issuer wrote into it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// For people, as a token's.
    pub name: String,
    /// Which certificates are meant.
    pub of: CertificatePattern,
    /// What it opens.
    pub grant: Grant,
}

/// What a certificate must say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CertificatePattern {
    /// The common name of its subject.
    Subject(Pattern),
    /// One of its alternative names: a DNS name, a URI, an address.
    San(Pattern),
}

/// Tokens and certificates: the content of the tokens file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tokens {
    tokens: Vec<Arc<Token>>,
    certificates: Vec<Arc<Certificate>>,
}

impl Tokens {
    /// # Errors
    /// More than [`TOKENS_MAX`] of them, or two with one name or one hash.
    pub fn new(tokens: Vec<Token>, certificates: Vec<Certificate>) -> Result<Tokens, String> {
        let count = tokens.len() + certificates.len();
        if count > TOKENS_MAX {
            return Err(format!("{count} tokens and certificates are more than {TOKENS_MAX}; revoke some"));
        }
        let mut names: Vec<&str> = tokens.iter().map(|token| token.name.as_str()).collect();
        names.extend(certificates.iter().map(|certificate| certificate.name.as_str()));
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|two| two[0] == two[1]) {
            return Err(format!("the name \"{}\" is there twice; give one of them another", twice[0].escape_debug()));
        }
        let mut hashes: Vec<(String, &str)> =
            tokens.iter().map(|token| (token.hash.to_string(), token.name.as_str())).collect();
        hashes.sort_unstable();
        if let Some(twice) = hashes.windows(2).find(|two| two[0].0 == two[1].0) {
            let (one, other) = (twice[0].1.escape_debug(), twice[1].1.escape_debug());
            return Err(format!("the tokens \"{one}\" and \"{other}\" have one hash; leave one of them out"));
        }
        Ok(Tokens {
            tokens: tokens.into_iter().map(Arc::new).collect(),
            certificates: certificates.into_iter().map(Arc::new).collect(),
        })
    }

    /// All tokens, in the order of the file.
    pub fn tokens(&self) -> impl ExactSizeIterator<Item = &Token> {
        self.tokens.iter().map(|token| &**token)
    }

    /// All certificates, in the order of the file.
    pub fn certificates(&self) -> impl ExactSizeIterator<Item = &Certificate> {
        self.certificates.iter().map(|certificate| &**certificate)
    }

    /// The token with this hash, expired or not. All are looked at, so that the time tells nothing.
    pub(super) fn find(&self, hash: &Hash) -> Option<&Arc<Token>> {
        self.tokens.iter().fold(None, |found, token| if token.hash == *hash { Some(token) } else { found })
    }

    pub(super) fn certificate_where(
        &self,
        wanted: impl FnMut(&&Arc<Certificate>) -> bool,
    ) -> Option<&Arc<Certificate>> {
        self.certificates.iter().find(wanted)
    }

    /// The first certificate of the file that a client's certificate matches; the connection has checked that its issuer
    /// is trusted.
    pub fn certificate<'n>(
        &self,
        subject: Option<&str>,
        sans: impl IntoIterator<Item = &'n str>,
    ) -> Option<&Arc<Certificate>> {
        let sans: Vec<&str> = sans.into_iter().collect();
        self.certificates.iter().find(|certificate| match &certificate.of {
            CertificatePattern::Subject(pattern) => subject.is_some_and(|subject| pattern.matches(subject)),
            CertificatePattern::San(pattern) => sans.iter().any(|san| pattern.matches(san)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(list: &[&str]) -> Vec<Pattern> {
        list.iter().map(|pattern| pattern.parse().unwrap()).collect()
    }

    fn grant(limiters: &[&str], domains: &[&str], streams: &[&str]) -> Grant {
        let scopes = [Scope::Check, Scope::Publish].into_iter().collect();
        Grant { scopes, limiters: patterns(limiters), domains: patterns(domains), streams: patterns(streams) }
    }

    #[track_caller]
    fn check(grant: &Grant, opened: &[What<'_>], shut: &[What<'_>]) {
        for what in opened {
            assert!(grant.opens(Scope::Check, *what), "{what:?}");
            assert!(!grant.opens(Scope::Operate, *what), "{what:?}: the scope is not there");
        }
        shut.iter().for_each(|what| assert!(!grant.opens(Scope::Check, *what), "{what:?}"));
    }

    #[test]
    fn s5_a_narrowed_grant_opens_what_it_names_and_no_more() {
        use What::{Domain, Everything, Limiter, Stream};
        check(&grant(&[], &[], &[]), &[Limiter("a"), Domain(None), Domain(Some("d")), Stream("s"), Everything], &[]);
        check(
            &grant(&["login-*"], &[], &[]),
            &[Limiter("login-ip"), Stream("s")],
            &[Limiter("api"), Domain(None), Domain(Some("login")), Everything],
        );
        check(
            &grant(&[], &["login"], &[]),
            &[Domain(Some("login"))],
            &[Domain(None), Domain(Some("other")), Limiter("login-ip"), Everything],
        );
        check(&grant(&["a"], &["*"], &[]), &[Domain(None), Domain(Some("d")), Limiter("a")], &[Limiter("b")]);
        check(
            &grant(&[], &[], &["orders"]),
            &[Stream("orders"), Limiter("a"), Domain(None)],
            &[Stream("x"), Everything],
        );
    }

    fn token(name: &str, text: &str, expires: Option<Micros>) -> Token {
        Token { name: name.to_owned(), hash: Hash::of(text.as_bytes()), grant: grant(&[], &[], &[]), expires }
    }

    #[test]
    fn tokens_are_found_by_their_text_and_expire_by_the_clock_that_is_passed_in() {
        let at = Micros::from_secs(10);
        let tokens = Tokens::new(vec![token("a", "x", None), token("b", "y", Some(at))], Vec::new()).unwrap();
        let find = |text: &str| tokens.find(&Hash::of(text.as_bytes())).map(|token| token.name.as_str());
        assert_eq!((find("x"), find("y"), find("z"), find("")), (Some("a"), Some("b"), None, None));
        let b = tokens.tokens().nth(1).unwrap();
        assert!(!b.has_expired(Micros::saturating(9_999_999)) && b.has_expired(at));
    }

    #[test]
    fn names_and_hashes_are_there_once() {
        let twice = |tokens| Tokens::new(tokens, Vec::new()).unwrap_err();
        assert!(twice(vec![token("a", "x", None), token("a", "y", None)]).contains("\"a\" is there twice"));
        assert!(twice(vec![token("a", "x", None), token("b", "x", None)]).contains("have one hash"));
        let many = (0..1_001).map(|n| token(&n.to_string(), &n.to_string(), None)).collect();
        assert!(twice(many).contains("more than 1000"));
    }

    #[test]
    fn certificates_are_known_by_their_subject_or_an_alternative_name() {
        let of = |name: &str, of| Certificate { name: name.to_owned(), of, grant: grant(&[], &[], &[]) };
        let san = CertificatePattern::San("spiffe://mesh/*/orders".parse().unwrap());
        let subject = CertificatePattern::Subject("monitor".parse().unwrap());
        let tokens = Tokens::new(Vec::new(), vec![of("orders", san), of("monitor", subject)]).unwrap();
        let find =
            |subject, sans: &[&str]| tokens.certificate(subject, sans.iter().copied()).map(|found| found.name.clone());
        assert_eq!(find(None, &["x", "spiffe://mesh/prod/orders"]).as_deref(), Some("orders"));
        assert_eq!(find(Some("monitor"), &[]).as_deref(), Some("monitor"));
        assert_eq!(find(Some("spiffe://mesh/prod/orders"), &["monitor"]), None, "each where its issuer wrote it");
    }

    #[test]
    fn a_grant_is_told_in_a_line() {
        assert_eq!(grant(&[], &[], &[]).told(), "check, publish");
        let narrowed = grant(&["a", "b-*"], &["login"], &["orders"]);
        assert_eq!(narrowed.told(), "check, publish for limiters a, b-* and domains login and streams orders");
    }
}
