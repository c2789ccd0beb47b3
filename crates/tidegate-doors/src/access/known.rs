//! Who asks on one connection: what it has shown already need not be looked up again.

use super::caller::Caller;
use super::refusal::Refusal;
use super::tokens::{Certificate, Token, Tokens};
use super::{Rules, secret, valid};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate::Micros;
use tidegate_wire::certificate::CertificateNames;

/// What a connection has shown of who it is, so that a token is hashed once for many requests.
#[derive(Debug, Default)]
pub struct Known {
    token: Mutex<Option<KnownToken>>,
    certificate: Option<Names>,
}

/// Valid for these rules only.
#[derive(Debug)]
struct KnownToken {
    rules: Arc<Rules>,
    text: Box<[u8]>,
    token: Arc<Token>,
}

/// What a client's certificate says: the common name of its subject, and its alternative names.
#[derive(Debug)]
struct Names {
    subject: Option<String>,
    sans: Vec<String>,
}

impl Known {
    /// A connection whose client has shown this certificate, or none.
    #[must_use]
    pub fn of(certificate: Option<&CertificateNames>) -> Known {
        certificate.map_or_else(Known::default, |names| {
            Known::by_certificate(names.common_name.clone(), names.alternative_names.clone())
        })
    }

    /// A connection whose client has shown a certificate of a trusted issuer.
    #[must_use]
    pub fn by_certificate(subject: Option<String>, sans: Vec<String>) -> Known {
        Known { token: Mutex::default(), certificate: Some(Names { subject, sans }) }
    }

    pub(super) fn certificate(&self, rules: &Rules) -> Option<Arc<Certificate>> {
        let names = self.certificate.as_ref()?;
        let sans = names.sans.iter().map(String::as_str);
        rules.tokens.as_ref()?.certificate(names.subject.as_deref(), sans).map(Arc::clone)
    }

    pub(super) fn caller(
        &self,
        rules: &Arc<Rules>,
        tokens: &Tokens,
        text: &[u8],
        now: Micros,
    ) -> Result<Caller, Refusal> {
        let mut last = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*last
            && Arc::ptr_eq(&known.rules, rules)
            // A proxy's connection has many clients: one must not learn another's token from the time that this takes.
            && secret::same(&known.text, text)
            && !known.token.has_expired(now)
        {
            return Ok(Caller::token(Arc::clone(&known.token)));
        }
        let token = Arc::clone(valid(tokens, text, now)?);
        *last = Some(KnownToken { rules: Arc::clone(rules), text: text.into(), token: Arc::clone(&token) });
        Ok(Caller::token(token))
    }
}
