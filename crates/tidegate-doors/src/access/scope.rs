//! What can be asked of a door, in six kinds.

use std::str::FromStr;

/// A kind of request. Every route and every command that does anything belongs to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Decisions: hits, with or without charging.
    Check,
    /// Limiters, keys, streams' states and figures.
    Read,
    /// Increment and analyze, for work that is counted when it is done.
    Count,
    /// Events in.
    Publish,
    /// Messages out.
    Subscribe,
    /// What an operator does by hand: block, unblock, enable, disable.
    Operate,
}

impl Scope {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Scope; 6] =
        [Scope::Check, Scope::Read, Scope::Count, Scope::Publish, Scope::Subscribe, Scope::Operate];

    /// As files and command lines have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scope::Check => "check",
            Scope::Read => "read",
            Scope::Count => "count",
            Scope::Publish => "publish",
            Scope::Subscribe => "subscribe",
            Scope::Operate => "operate",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Scope, String> {
        Scope::ALL.into_iter().find(|scope| scope.name() == text).ok_or_else(|| {
            let names = Scope::ALL.map(Scope::name).join(", ");
            format!("\"{}\" is no scope; use some of {names}", text.escape_debug())
        })
    }
}

/// A set of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Scopes(u8);

impl Scopes {
    /// Is it one of them?
    #[must_use]
    pub fn has(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// Those that it has, in order.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.has(*scope))
    }

    /// `check, read`.
    #[must_use]
    pub fn names(self) -> String {
        self.iter().map(Scope::name).collect::<Vec<_>>().join(", ")
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Scopes {
        Scopes(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_go_by_their_names() {
        for scope in Scope::ALL {
            assert_eq!(scope.name().parse(), Ok(scope));
            let only: Scopes = [scope].into_iter().collect();
            assert_eq!(only.iter().collect::<Vec<_>>(), [scope]);
        }
        assert!("admin".parse::<Scope>().unwrap_err().contains("use some of check, read, count"));
    }
}
