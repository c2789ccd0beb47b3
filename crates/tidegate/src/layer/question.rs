//! What is asked of the gate for one HTTP request.
//!
//! Values are owned, as they are made while the request is looked at. Nothing here decides.

use super::client_address::{client_address, key_of_address};
use crate::{Answer, AskError, Gate, Request};
use http::header::HeaderName;
use http::request::Parts;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// A question to the gate: a limiter and a key, or a domain and attributes; and a cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    target: Target,
    cost: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Target {
    Limiter { name: String, key: Vec<u8> },
    Attributes { domain: Option<String>, attributes: Vec<(String, Vec<u8>)> },
}

impl Question {
    /// One limiter and one key, at cost 1.
    pub fn limiter(name: impl Into<String>, key: impl Into<Vec<u8>>) -> Question {
        Question { target: Target::Limiter { name: name.into(), key: key.into() }, cost: 1 }
    }

    /// All limiters of a domain (`None`: those without one) whose attributes are there, at cost 1.
    #[must_use]
    pub fn attributes(domain: Option<&str>, attributes: Vec<(String, Vec<u8>)>) -> Question {
        Question { target: Target::Attributes { domain: domain.map(str::to_owned), attributes }, cost: 1 }
    }

    /// The same question at another cost; 0 looks only.
    #[must_use]
    pub fn cost(self, cost: u32) -> Question {
        Question { cost, ..self }
    }

    pub(super) fn put_to(&self, gate: &Gate) -> Result<Answer, AskError> {
        match &self.target {
            Target::Limiter { name, key } => gate.decide(&named(Request::hit(name, key).cost(self.cost), gate)),
            Target::Attributes { domain, attributes } => {
                gate.decide(&named(Request::of(domain.as_deref(), &borrowed(attributes)).cost(self.cost), gate))
            }
        }
    }

    /// The same, where the store may be on other machines.
    pub(super) async fn ask(&self, gate: &Gate) -> Result<Answer, AskError> {
        match &self.target {
            Target::Limiter { name, key } => gate.ask(&named(Request::hit(name, key).cost(self.cost), gate)).await,
            Target::Attributes { domain, attributes } => {
                let attributes = borrowed(attributes);
                gate.ask(&named(Request::of(domain.as_deref(), &attributes).cost(self.cost), gate)).await
            }
        }
    }
}

/// The request, explained where a denial may have to name several limits.
fn named<'a>(request: Request<'a>, gate: &Gate) -> Request<'a> {
    let explain = gate.has_several_limits(&request);
    Request { explain, ..request }
}

fn borrowed(attributes: &[(String, Vec<u8>)]) -> Vec<(&str, &[u8])> {
    attributes.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
}

type Value = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

/// Where the attributes of a request come from. A value that is missing or empty is left out, so
/// that limiters which need it do not apply.
#[derive(Clone, Default)]
pub struct Attributes {
    domain: Option<String>,
    sources: Vec<(String, Arc<Value>)>,
}

impl Attributes {
    /// For limiters with `by` and no domain.
    #[must_use]
    pub fn new() -> Attributes {
        Attributes::default()
    }

    /// For the limiters of this domain.
    pub fn of_domain(domain: impl Into<String>) -> Attributes {
        Attributes { domain: Some(domain.into()), sources: Vec::new() }
    }

    /// An attribute by a function of your own.
    #[must_use]
    pub fn value(
        mut self,
        attribute: impl Into<String>,
        value: impl Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Attributes {
        self.sources.push((attribute.into(), Arc::new(value)));
        self
    }

    /// An attribute from a header's first line.
    ///
    /// # Panics
    /// When `header` is not a lower-case header name: that is a slip in the program's text.
    #[must_use]
    pub fn header(self, attribute: impl Into<String>, header: &'static str) -> Attributes {
        let header = HeaderName::from_static(header);
        self.value(attribute, move |request| Some(request.headers.get(&header)?.as_bytes().to_vec()))
    }

    /// The client's address, see [`client_address`]: behind `trusted_hops` proxies of your own, with
    /// the peer's address from where your server keeps it.
    ///
    /// In axum that is
    /// `|request| request.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip())`.
    #[must_use]
    pub fn client_address(
        self,
        attribute: impl Into<String>,
        trusted_hops: usize,
        peer: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Attributes {
        self.value(attribute, move |request| {
            let address = client_address(&request.headers, peer(request), trusted_hops)?;
            Some(key_of_address(address).into_bytes())
        })
    }

    pub(super) fn question(&self, request: &Parts) -> Question {
        let values = self.sources.iter().filter_map(|(name, value)| {
            let value = value(request).filter(|value| !value.is_empty())?;
            Some((name.clone(), value))
        });
        Question::attributes(self.domain.as_deref(), values.collect())
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.sources.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Attributes").field("domain", &self.domain).field("attributes", &names).finish()
    }
}
