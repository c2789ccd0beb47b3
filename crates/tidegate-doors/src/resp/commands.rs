//! Every command as one table: reading, access rules, `COMMAND` and the metrics' labels all read it.

use crate::access::Scope;

/// A command; its number is its place in [`COMMANDS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Throttle,
    Hit,
    Peek,
    Attributes,
    Block,
    Unblock,
    Increment,
    Analyze,
    Stats,
    Ping,
    Echo,
    Hello,
    Auth,
    Select,
    Client,
    Command,
    Info,
    Reset,
    Quit,
}

/// What a command asks of who sends it. Every command has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Needs {
    /// Saying who one is, and leaving.
    Nothing,
    /// To be known, if tokens are set.
    Caller,
    /// This scope.
    Scope(Scope),
}

/// One command.
pub(super) struct Spec {
    pub(super) kind: Kind,
    pub(super) name: &'static str,
    /// Parts, its name included: from, and to.
    pub(super) parts: (usize, usize),
    pub(super) needs: Needs,
    /// Does its reply change with what others do, or does it change something? As `COMMAND` tells it.
    pub(super) writes: bool,
    /// The part that is a key, from 1; 0: none.
    pub(super) key: i64,
}

pub(super) const COMMAND_COUNT: usize = 19;

const fn spec(kind: Kind, name: &'static str, parts: (usize, usize), needs: Needs, writes: bool, key: i64) -> Spec {
    Spec { kind, name, parts, needs, writes, key }
}

const MANY: usize = usize::MAX;

#[rustfmt::skip]
pub(super) static COMMANDS: [Spec; COMMAND_COUNT] = [
    spec(Kind::Throttle,   "cl.throttle",  (5, 6),    Needs::Scope(Scope::Check), true, 1),
    spec(Kind::Hit,        "tg.hit",       (3, 4),    Needs::Scope(Scope::Check), true, 2),
    spec(Kind::Peek,       "tg.peek",      (3, 4),    Needs::Scope(Scope::Check), false, 2),
    spec(Kind::Attributes, "tg.attr",      (5, MANY), Needs::Scope(Scope::Check), true, 0),
    spec(Kind::Block,      "tg.block",     (4, 4),    Needs::Scope(Scope::Operate), true, 2),
    spec(Kind::Unblock,    "tg.unblock",   (3, 3),    Needs::Scope(Scope::Operate), true, 2),
    spec(Kind::Increment,  "tg.increment", (3, 4),    Needs::Scope(Scope::Count), true, 2),
    spec(Kind::Analyze,    "tg.analyze",   (3, 3),    Needs::Scope(Scope::Count), true, 2),
    spec(Kind::Stats,      "tg.stats",     (1, 2),    Needs::Scope(Scope::Read), false, 0),
    spec(Kind::Ping,       "ping",         (1, 2),    Needs::Caller, false, 0),
    spec(Kind::Echo,       "echo",         (2, 2),    Needs::Caller, false, 0),
    spec(Kind::Hello,      "hello",        (1, MANY), Needs::Nothing, false, 0),
    spec(Kind::Auth,       "auth",         (2, 3),    Needs::Nothing, false, 0),
    spec(Kind::Select,     "select",       (2, 2),    Needs::Caller, false, 0),
    spec(Kind::Client,     "client",       (2, MANY), Needs::Caller, false, 0),
    spec(Kind::Command,    "command",      (1, MANY), Needs::Caller, false, 0),
    spec(Kind::Info,       "info",         (1, MANY), Needs::Caller, false, 0),
    spec(Kind::Reset,      "reset",        (1, 1),    Needs::Nothing, false, 0),
    spec(Kind::Quit,       "quit",         (1, MANY), Needs::Nothing, false, 0),
];

impl Spec {
    /// As Redis tells it: exactly so many parts, or with a minus at least so many.
    pub(super) fn arity(&self) -> i64 {
        let (from, to) = self.parts;
        let from = i64::try_from(from).unwrap_or(i64::MAX);
        if to == self.parts.0 { from } else { -from }
    }
}

/// Longest name of a command.
const NAME_LEN_MAX: usize = 12;

/// The command of this name, in any case of letters.
#[inline]
pub(super) fn find(name: &[u8]) -> Option<&'static Spec> {
    let mut small = [0; NAME_LEN_MAX];
    let small = small.get_mut(..name.len())?;
    small.copy_from_slice(name);
    small.make_ascii_lowercase();
    COMMANDS.iter().find(|command| command.name.as_bytes() == small)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_name_in_any_case() {
        for (place, command) in COMMANDS.iter().enumerate() {
            assert_eq!(command.kind as usize, place, "{}", command.name);
            for name in [command.name.to_owned(), command.name.to_uppercase()] {
                assert_eq!(find(name.as_bytes()).map(|found| found.kind), Some(command.kind));
            }
            assert!(command.name.len() <= NAME_LEN_MAX);
        }
        for name in [&b""[..], b"get", b"tg.hits", b"cl.throttle.", &[b'x'; 100]] {
            assert!(find(name).is_none());
        }
    }

    /// The scopes by what a command is called, beside those that the table states.
    #[test]
    fn s5_every_command_needs_the_scope_that_its_kind_needs() {
        for command in &COMMANDS {
            let expected = match command.name {
                "cl.throttle" | "tg.hit" | "tg.peek" | "tg.attr" => Needs::Scope(Scope::Check),
                "tg.block" | "tg.unblock" => Needs::Scope(Scope::Operate),
                "tg.increment" | "tg.analyze" => Needs::Scope(Scope::Count),
                "tg.stats" => Needs::Scope(Scope::Read),
                "hello" | "auth" | "reset" | "quit" => Needs::Nothing,
                _ => Needs::Caller,
            };
            assert_eq!(command.needs, expected, "{}", command.name);
        }
    }
}
