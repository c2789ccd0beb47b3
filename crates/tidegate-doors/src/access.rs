//! Who may ask what: tokens with scopes, and what holds where there are none.
//!
//! [`Rules`] are what the configuration and its tokens file say, and [`Access`] is where all doors read them, so that both can be
//! replaced while they are asked. [`Rules::admit`] is the one place where a request over HTTP becomes a [`Caller`]; what a
//! request is about, its action checks with the caller. All of it is pure: headers, addresses and the time come in.
//!
//! | file | holds |
//! |---|---|
//! | `scope` | the kinds of requests |
//! | `secret` | tokens as texts, and their hashes |
//! | `tokens` | who is known, and what each may do |
//! | `caller`, `refusal` | who asks, and why it may not |
//! | `known`, `lasting` | who asks on a connection, and for as long as a feed or session lasts |
//! | `web` | requests without a token: no web page of another origin, under no unknown name |
//!
//! Invariant: without tokens a caller is known by nothing but its address; with tokens nobody is, on loopback neither.

mod caller;
mod known;
mod lasting;
mod refusal;
mod scope;
mod secret;
mod tokens;
mod web;

#[cfg(test)]
mod tests;

pub use caller::Caller;
pub use known::Known;
pub(crate) use lasting::Lasting;
pub use refusal::Refusal;
pub use scope::{Scope, Scopes};
pub use secret::{Hash, Secret};
pub use tidegate::{Network, Pattern};
pub use tokens::{Certificate, CertificatePattern, Grant, TOKEN_NAME_LEN_MAX, TOKENS_MAX, Token, Tokens, What};
pub(crate) use web::allowed_origin;
pub use web::{HostName, WebOrigin};

use arc_swap::{ArcSwap, Guard};
use caller::{Credential, NO_TOKEN};
use http::header::{AUTHORIZATION, HeaderMap};
use http::request::Parts;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use tidegate::Micros;

/// What a route asks of who calls it. Every route has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Health and descriptions, the same for everybody and any web page.
    Nothing,
    /// This scope.
    Scope(Scope),
    /// A session, whose commands need scopes each; it may say who it is when it begins.
    Session,
}

/// Who may ask, as configured. The default: no tokens.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rules {
    /// Set: nobody asks without one.
    pub tokens: Option<Tokens>,
    /// Names that the Host of a request without a token may have, beside addresses and `localhost`.
    pub hosts: Vec<HostName>,
    /// Pages of other origins that may ask.
    pub origins: Vec<WebOrigin>,
}

impl Rules {
    /// Who asks, if it may ask what needs this.
    ///
    /// # Errors
    /// 401 when tokens are set and it shows none that is valid; 403 when its token has not the scope, or when without tokens a web page
    /// of another origin asks, under an unknown name, or from another machine for what an operator does.
    pub fn admit(
        self: &Arc<Rules>,
        needs: Needs,
        parts: &Parts,
        peer: IpAddr,
        known: &Known,
        now: Micros,
    ) -> Result<Caller, Refusal> {
        if needs == Needs::Nothing {
            return Ok(Caller::address(peer));
        }
        let Some(tokens) = &self.tokens else {
            web::check(self, parts)?;
            if needs == Needs::Scope(Scope::Operate) {
                web::check_local(&parts.headers, peer)?;
            }
            return Ok(Caller::address(peer));
        };
        let caller = match bearer(&parts.headers)? {
            Some(text) => known.caller(self, tokens, text, now)?,
            None => self.without_token(needs, parts, peer, known)?,
        };
        match needs {
            Needs::Scope(scope) => caller.check_scope(scope).map(|()| caller),
            Needs::Session | Needs::Nothing => Ok(caller),
        }
    }

    /// Who calls over gRPC, if it may ask what needs this scope. The Host is not looked at: clients of gRPC put the name of their
    /// own configuration there, and no web page can speak gRPC under a name of its choice, as it is HTTP/2 with a content type that
    /// browsers ask for first. What a browser sends all the same is refused.
    ///
    /// # Errors
    /// As [`Rules::admit`].
    pub fn admit_call(
        self: &Arc<Rules>,
        scope: Scope,
        headers: &HeaderMap,
        peer: IpAddr,
        known: &Known,
        now: Micros,
    ) -> Result<Caller, Refusal> {
        let Some(tokens) = &self.tokens else {
            return web::check_program(headers).map(|()| Caller::address(peer));
        };
        let caller = match bearer(headers)? {
            Some(text) => known.caller(self, tokens, text, now)?,
            None => {
                web::check_program(headers)?;
                known.certificate(self).map(Caller::certificate).ok_or_else(|| Refusal::unauthorized(NO_TOKEN))?
            }
        };
        caller.check_scope(scope).map(|()| caller)
    }

    /// Who asks on a connection that has shown no token, or not yet: a door whose protocol has sessions and no headers.
    pub(crate) fn on_connection(&self, peer: IpAddr, known: &Known) -> Caller {
        match (&self.tokens, known.certificate(self)) {
            (None, _) => Caller::address(peer),
            (Some(_), Some(certificate)) => Caller::certificate(certificate),
            (Some(_), None) => Caller::unknown(peer),
        }
    }

    /// A certificate of the connection, or a session that has still to say who it is.
    fn without_token(&self, needs: Needs, parts: &Parts, peer: IpAddr, known: &Known) -> Result<Caller, Refusal> {
        let certificate = known.certificate(self);
        if certificate.is_none() && needs != Needs::Session {
            return Err(Refusal::unauthorized(NO_TOKEN));
        }
        web::check(self, parts)?;
        Ok(certificate.map_or_else(|| Caller::unknown(peer), Caller::certificate))
    }

    /// Who has this token.
    ///
    /// # Errors
    /// 401: it is none of the tokens, or its time is up.
    pub fn caller_of(&self, token: &[u8], now: Micros) -> Result<Caller, Refusal> {
        let Some(tokens) = &self.tokens else {
            return Err(Refusal::unauthorized("this server has no tokens; send none"));
        };
        valid(tokens, token, now).map(|token| Caller::token(Arc::clone(token)))
    }

    /// The same caller by these rules, if it may still ask: its token was neither revoked nor has it expired.
    fn renewed(&self, caller: &Caller, now: Micros) -> Option<Caller> {
        let caller = match (caller.credential(), &self.tokens) {
            (Credential::Address, None) | (Credential::Nothing, Some(_)) => caller.clone(),
            (Credential::Token(token), Some(tokens)) => Caller::token(Arc::clone(tokens.find(&token.hash)?)),
            (Credential::Certificate(certificate), Some(tokens)) => {
                let same = |other: &&Arc<Certificate>| other.name == certificate.name && other.of == certificate.of;
                Caller::certificate(Arc::clone(tokens.certificate_where(same)?))
            }
            _ => return None,
        };
        (!caller.has_expired(now)).then_some(caller)
    }
}

/// The rules in force, for all doors of a process.
#[derive(Debug)]
pub struct Access {
    rules: ArcSwap<Rules>,
    /// How often they were replaced: cheaper to compare than the rules, for sessions that ask at every command.
    version: AtomicU64,
}

impl Access {
    /// These rules from the start.
    #[must_use]
    pub fn new(rules: Rules) -> Access {
        Access { rules: ArcSwap::from_pointee(rules), version: AtomicU64::new(0) }
    }

    /// Puts other rules in force: the next request is asked by them, and feeds and sessions are before their next message.
    pub fn replace(&self, rules: Rules) {
        self.rules.store(Arc::new(rules));
        // After them: a session that sees it finds these rules or later ones.
        self.version.fetch_add(1, Release);
    }

    /// The same for a moment, without a count: not to be kept while something is waited for.
    pub(crate) fn load(&self) -> Guard<Arc<Rules>> {
        self.rules.load()
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    fn version(&self) -> u64 {
        self.version.load(Acquire)
    }
}

/// No tokens.
impl Default for Access {
    fn default() -> Access {
        Access::new(Rules::default())
    }
}

/// The token of a request that has one.
fn bearer(headers: &HeaderMap) -> Result<Option<&[u8]>, Refusal> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let Some(field) = fields.next() else { return Ok(None) };
    let malformed = |what| Refusal::unauthorized(what).field("Authorization");
    if fields.next().is_some() {
        return Err(malformed("the request has more than one Authorization; send one: Bearer TOKEN"));
    }
    match field.as_bytes().split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => Ok(Some(token.trim_ascii())),
        _ => Err(malformed("the Authorization is of another scheme; send Bearer TOKEN")),
    }
}

fn valid<'t>(tokens: &'t Tokens, text: &[u8], now: Micros) -> Result<&'t Arc<Token>, Refusal> {
    let found = Hash::of_claimed(text).and_then(|hash| tokens.find(&hash)).filter(|token| !token.has_expired(now));
    found.ok_or_else(|| {
        // One text for both: whether an old token was ever valid is nobody's business.
        Refusal::unauthorized("the token is not known here, or has expired; ask whoever runs this server for another")
    })
}
