//! Who asks, and what it may do.

use super::refusal::Refusal;
use super::scope::Scope;
use super::tokens::{Certificate, Grant, Token, What};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use tidegate::Micros;

/// Who asks: a token, a certificate, or an address where no tokens are set.
#[derive(Clone, Debug)]
pub struct Caller(Who);

#[derive(Clone, Debug)]
enum Who {
    /// No tokens are set: whoever reaches the door.
    Address(IpAddr),
    Token(Arc<Token>),
    Certificate(Arc<Certificate>),
    /// Tokens are set, and none was shown yet.
    Unknown(IpAddr),
}

impl Caller {
    /// Whoever reaches a door without tokens.
    #[must_use]
    pub fn address(address: IpAddr) -> Caller {
        Caller(Who::Address(address))
    }

    pub(super) fn token(token: Arc<Token>) -> Caller {
        Caller(Who::Token(token))
    }

    pub(super) fn certificate(certificate: Arc<Certificate>) -> Caller {
        Caller(Who::Certificate(certificate))
    }

    pub(crate) fn unknown(address: IpAddr) -> Caller {
        Caller(Who::Unknown(address))
    }

    /// Has it shown a token or a certificate?
    #[must_use]
    pub fn has_credential(&self) -> bool {
        matches!(self.0, Who::Token(_) | Who::Certificate(_))
    }

    /// Is it known by the same token or certificate, of one reading of the tokens?
    pub(crate) fn is_same(&self, other: &Caller) -> bool {
        match (&self.0, &other.0) {
            (Who::Token(token), Who::Token(other)) => Arc::ptr_eq(token, other),
            (Who::Certificate(certificate), Who::Certificate(other)) => Arc::ptr_eq(certificate, other),
            _ => false,
        }
    }

    /// Must it still say who it is?
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.0, Who::Unknown(_))
    }

    /// May it ask this kind of request at all?
    #[must_use]
    pub fn has(&self, scope: Scope) -> bool {
        match self.standing() {
            Standing::All => true,
            Standing::Grant(_, grant) => grant.scopes.has(scope),
            Standing::Nothing => false,
        }
    }

    /// May it ask this? Listings leave out what it may not.
    #[must_use]
    pub fn may(&self, scope: Scope, what: What<'_>) -> bool {
        match self.standing() {
            Standing::All => true,
            Standing::Grant(_, grant) => grant.opens(scope, what),
            Standing::Nothing => false,
        }
    }

    /// Are limiters, domains or streams a bound to it?
    #[must_use]
    pub fn is_narrowed(&self) -> bool {
        matches!(self.standing(), Standing::Grant(_, grant) if grant.is_narrowed())
    }

    /// # Errors
    /// It may not ask this kind of request, whatever it is about: 401 or 403.
    pub fn check_scope(&self, scope: Scope) -> Result<(), Refusal> {
        if self.has(scope) { Ok(()) } else { Err(self.refusal(scope, None)) }
    }

    /// # Errors
    /// It may not ask this: 401 or 403.
    pub fn check(&self, scope: Scope, what: What<'_>) -> Result<(), Refusal> {
        if self.may(scope, what) { Ok(()) } else { Err(self.refusal(scope, Some(what))) }
    }

    /// Its token has been valid until then.
    pub(super) fn has_expired(&self, now: Micros) -> bool {
        matches!(&self.0, Who::Token(token) if token.has_expired(now))
    }

    pub(super) fn credential(&self) -> Credential<'_> {
        match &self.0 {
            Who::Address(_) => Credential::Address,
            Who::Token(token) => Credential::Token(token),
            Who::Certificate(certificate) => Credential::Certificate(certificate),
            Who::Unknown(_) => Credential::Nothing,
        }
    }

    fn standing(&self) -> Standing<'_> {
        match &self.0 {
            Who::Address(_) => Standing::All,
            Who::Token(token) => Standing::Grant("token", &token.grant),
            Who::Certificate(certificate) => Standing::Grant("certificate", &certificate.grant),
            Who::Unknown(_) => Standing::Nothing,
        }
    }

    #[cold]
    fn refusal(&self, scope: Scope, what: Option<What<'_>>) -> Refusal {
        let Standing::Grant(kind, grant) = self.standing() else {
            return Refusal::unauthorized(NO_TOKEN);
        };
        let (name, needed, may) = (self.name(), scope.name(), grant.told());
        if !grant.scopes.has(scope) {
            let remedy = format!("use a token with it: tidegate token new --scope {needed}");
            return Refusal::forbidden(
                "forbidden",
                format!("this needs the scope {needed}; {kind} \"{name}\" may {may}; {remedy}"),
            );
        }
        let this = match what {
            Some(What::Limiter(limiter)) => format!("limiter \"{}\" is none of them", shown(limiter)),
            Some(What::Domain(Some(domain))) => format!("domain \"{}\" is none of them", shown(domain)),
            Some(What::Domain(None)) => "a request by attributes without a domain needs --domain '*'".to_owned(),
            Some(What::Stream(stream)) => format!("stream \"{}\" is none of them", shown(stream)),
            Some(What::Everything) | None => "this is about all there is".to_owned(),
        };
        Refusal::forbidden(
            "forbidden",
            format!("{kind} \"{name}\" may {may}; {this}; use a token that is not narrowed so"),
        )
    }

    fn name(&self) -> &str {
        match &self.0 {
            Who::Token(token) => &token.name,
            Who::Certificate(certificate) => &certificate.name,
            Who::Address(_) | Who::Unknown(_) => "",
        }
    }
}

/// Who it is, for the log and the audit: `token nginx`, `certificate orders`, `192.0.2.1`.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Who::Address(address) | Who::Unknown(address) => write!(f, "{}", address.to_canonical()),
            Who::Token(token) => write!(f, "token {}", token.name),
            Who::Certificate(certificate) => write!(f, "certificate {}", certificate.name),
        }
    }
}

/// What a request without a token is told.
pub(super) const NO_TOKEN: &str = "this server asks for a token; send Authorization: Bearer TOKEN (STOMP: the header passcode; RESP: AUTH TOKEN; the command tidegate: --token-file FILE or TIDEGATE_TOKEN)";

/// What a caller was known by.
pub(super) enum Credential<'c> {
    Address,
    Token(&'c Arc<Token>),
    Certificate(&'c Arc<Certificate>),
    Nothing,
}

enum Standing<'c> {
    All,
    /// What kind of credential has it.
    Grant(&'static str, &'c Grant),
    Nothing,
}

fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}
