//! Who asks for as long as a feed or a session lasts.

use super::caller::{Caller, NO_TOKEN};
use super::refusal::Refusal;
use super::scope::Scope;
use super::tokens::What;
use super::{Access, Rules, web};
use http::HeaderMap;
use std::net::IpAddr;
use std::sync::Arc;
use tidegate::Micros;

/// A caller whose feed or session lasts: the rules may change meanwhile, and its token expire.
#[derive(Clone, Debug)]
pub(crate) struct Lasting {
    access: Arc<Access>,
    /// By which the caller was last found, and their version; `None`: not since it was admitted.
    rules: Option<(u64, Arc<Rules>)>,
    caller: Caller,
}

impl Lasting {
    /// Who was admitted, by rules that may not be in force any more.
    pub(crate) fn new(access: &Arc<Access>, caller: Caller) -> Lasting {
        Lasting { access: Arc::clone(access), rules: None, caller }
    }

    /// # Errors
    /// It may not, or not any more.
    pub(crate) fn check(&mut self, scope: Scope, what: What<'_>, now: Micros) -> Result<(), Refusal> {
        self.renew(now)?;
        self.caller.check(scope, what)
    }

    /// # Errors
    /// The same, where it costs something to say what is asked about: only narrowed callers need it.
    pub(crate) fn check_with<'w>(
        &mut self,
        scope: Scope,
        now: Micros,
        what: impl FnOnce() -> What<'w>,
    ) -> Result<(), Refusal> {
        self.renew(now)?;
        if self.caller.is_narrowed() { self.caller.check(scope, what()) } else { self.caller.check_scope(scope) }
    }

    /// # Errors
    /// The same for what an operator does by hand, which without tokens answers to this machine only.
    pub(crate) fn check_operator(&mut self, what: What<'_>, peer: IpAddr, now: Micros) -> Result<(), Refusal> {
        self.check(Scope::Operate, what, now)?;
        if self.rules.as_ref().is_some_and(|(_, rules)| rules.tokens.is_none()) {
            web::check_local(&HeaderMap::new(), peer)?;
        }
        Ok(())
    }

    /// # Errors
    /// The same, for what is about no limiter and no stream.
    pub(crate) fn check_scope(&mut self, scope: Scope, now: Micros) -> Result<(), Refusal> {
        self.renew(now)?;
        self.caller.check_scope(scope)
    }

    fn renew(&mut self, now: Micros) -> Result<(), Refusal> {
        let version = self.access.version();
        if self.rules.as_ref().is_some_and(|(last, _)| *last == version) && !self.caller.has_expired(now) {
            return Ok(());
        }
        let rules = self.access.rules();
        let gone = || Refusal::unauthorized("the token was revoked or has expired; use another, and come again");
        self.caller = rules.renewed(&self.caller, now).ok_or_else(gone)?;
        self.rules = Some((version, rules));
        Ok(())
    }

    /// # Errors
    /// It has still to say who it is.
    pub(crate) fn check_known(&mut self, now: Micros) -> Result<(), Refusal> {
        self.renew(now)?;
        if self.caller.is_unknown() { Err(Refusal::unauthorized(NO_TOKEN)) } else { Ok(()) }
    }

    /// Who it is.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Must it still say who it is?
    pub(crate) fn is_unknown(&self) -> bool {
        self.caller.is_unknown()
    }

    /// Says who it is.
    ///
    /// # Errors
    /// 401: by a token that is none.
    pub(crate) fn identify(&mut self, token: &[u8], now: Micros) -> Result<(), Refusal> {
        let (version, rules) = (self.access.version(), self.access.rules());
        self.caller = rules.caller_of(token, now)?;
        self.rules = Some((version, rules));
        Ok(())
    }
}
