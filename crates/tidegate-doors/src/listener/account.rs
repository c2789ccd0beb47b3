//! Who is charged for what a client takes: its address, and the token or certificate that it has shown.
//!
//! Everything that is counted is charged to an [`Account`], so that a cap in all, one for each address and one for each token hold for it alike.
//! Invariant: whoever shows a token is charged for both, so that many addresses with one token have no more than the token may.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// An address, and the token of the client there, if it has shown one.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    address: IpAddr,
    token: Option<Arc<str>>,
}

impl Account {
    /// Of a client that has shown nothing, or not yet.
    pub(crate) fn of(address: IpAddr) -> Account {
        Account { address: network(address), token: None }
    }

    /// The same client with a token or a certificate, by a name that no other has.
    pub(crate) fn with(self, token: &str) -> Account {
        Account { token: Some(token.into()), ..self }
    }

    /// Those whose counts it adds to.
    pub(super) fn holders(&self) -> [Option<Holder>; 2] {
        [Some(Holder::Network(self.address)), self.token()]
    }

    pub(super) fn token(&self) -> Option<Holder> {
        self.token.clone().map(Holder::Token)
    }
}

/// One whose things are counted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Holder {
    Network(IpAddr),
    /// By its name.
    Token(Arc<str>),
}

/// Whoever has an IPv6 address has its whole /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}
