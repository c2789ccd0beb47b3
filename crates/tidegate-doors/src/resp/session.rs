//! One client's session: what it has said of itself, and its commands in their order.

use super::checks::{self, Round};
use super::commands::{COMMANDS, Kind, Needs, Spec, find};
use super::counters::Tally;
use super::door::{Door, Live};
use super::throttle::Throttles;
use super::{operate, words};
use crate::access::{Caller, Known, Lasting, Refusal, Scope, What};
use crate::budget::Holder;
use crate::turns::in_turns;
use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;
use tidegate::Micros;
use tidegate_wire::resp::answer::{Answers, Protocol};
use tidegate_wire::resp::command::{Form, Read, read};

/// Longest name that a client may give itself.
pub(super) const CLIENT_NAME_LEN_MAX: usize = 64;

/// What a client has said of itself.
pub(super) struct Session {
    pub(super) door: Arc<Door>,
    pub(super) peer: IpAddr,
    known: Known,
    pub(super) id: u64,
    pub(super) protocol: Protocol,
    pub(super) name: Vec<u8>,
    pub(super) caller: Lasting,
    holder: Holder,
    live: Option<Arc<Live>>,
    throttles: Throttles,
    /// The door stops: this is the last that is answered.
    finishing: bool,
}

/// What became of bytes.
pub(super) struct Ran {
    /// So many of them were commands that are answered.
    pub(super) used: usize,
    pub(super) after: After,
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    /// Write the answers; there are more commands.
    GoOn,
    /// Write the answers and read on.
    Read,
    /// Write the answers and close.
    Close,
}

impl Session {
    pub(super) fn new(door: Arc<Door>, peer: IpAddr, known: Known) -> Session {
        let caller = Session::caller_on_connecting(&door, peer, &known);
        Session {
            id: door.next_id(),
            door,
            peer,
            known,
            protocol: Protocol::default(),
            name: Vec::new(),
            caller,
            holder: Holder::default(),
            live: None,
            throttles: Throttles::default(),
            finishing: false,
        }
    }

    fn caller_on_connecting(door: &Door, peer: IpAddr, known: &Known) -> Lasting {
        let access = &door.settings.access;
        let caller: Caller = access.load().on_connection(peer, known);
        Lasting::new(access, caller)
    }

    /// As after connecting.
    pub(super) fn reset(&mut self) {
        self.protocol = Protocol::default();
        self.name.clear();
        self.caller = Session::caller_on_connecting(&self.door, self.peer, &self.known);
        self.holder = Holder::default();
        // One too many has nobody's rights from here on, and is told so with its next command.
        drop(self.count());
    }

    /// Counts the connection for the token or certificate that it has shown.
    ///
    /// # Errors
    /// That one has as many connections as one may have. The session then has none of its own choice.
    pub(super) fn count(&mut self) -> Result<(), Error> {
        let census = self.door.counters().census();
        let Err(taken) = self.holder.count(census, self.caller.caller()) else { return Ok(()) };
        let most = census.caps().per_token;
        self.caller = Lasting::new(&self.door.settings.access, Caller::unknown(self.peer));
        let text = format!("connections: {taken}, {most}; close some, and keep connections open between commands");
        Err(Error::new(text))
    }

    /// What was read is answered, and no more is read.
    pub(super) fn finish(&mut self) {
        self.finishing = true;
    }

    /// Has it shown who it is, or need it not?
    pub(super) fn is_known(&self) -> bool {
        !self.caller.is_unknown()
    }

    /// Answers the commands that are all here, up to about `most` bytes of answers. Decisions that follow one another are made in one call.
    pub(super) async fn run(&mut self, input: &[u8], out: &mut Vec<u8>, most: usize) -> Ran {
        // Taken out while it is used: to count one more owner of it would cost every read a write that all threads contend for.
        let live = match self.door.live(self.live.take()) {
            Ok(same) => same,
            Err(other) => {
                self.throttles.forget();
                other
            }
        };
        let now = self.door.gate.now();
        let (mut round, mut tally, mut parts) = (Round::default(), Tally::default(), Vec::with_capacity(8));
        let mut used = 0;
        let after = loop {
            if out.len() >= most || round.is_full() {
                break After::GoOn;
            }
            let form = match read(&input[used..], &mut parts) {
                Ok(None) => break if self.finishing { After::Close } else { After::Read },
                Ok(Some(Read { len, form })) => {
                    used += len;
                    form
                }
                Err(malformed) => {
                    self.settle(&live, &mut round, out).await;
                    tally.errors += 1;
                    Answers::new(out, self.protocol).error("ERR", &format!("Protocol error: {malformed}"));
                    break After::Close;
                }
            };
            let Some(name) = parts.first() else { continue };
            let command = find(name);
            tally.note(command.map(|command| command.kind));
            let taken = loop {
                match command.map(|command| self.take(command, &parts, &live, &mut round, now)) {
                    Some(Ok(Taken::Full)) => self.settle(&live, &mut round, out).await,
                    Some(taken) => break taken,
                    None => break Err(unknown(&parts)),
                }
            };
            let outcome = match taken {
                Ok(Taken::Waits | Taken::Full) => continue,
                Ok(Taken::Other(kind)) => {
                    self.settle(&live, &mut round, out).await;
                    self.act(kind, &parts, &live, out).await
                }
                Err(error) => {
                    self.settle(&live, &mut round, out).await;
                    Err(error)
                }
            };
            if let Err(Error { code, text }) = outcome {
                tally.errors += 1;
                Answers::new(out, self.protocol).error(code, &text);
            }
            // What is no command of ours and came as a line may be HTTP: a web page that asks gets no further.
            if matches!(command, Some(Spec { kind: Kind::Quit, .. })) || (command.is_none() && form == Form::Inline) {
                break After::Close;
            }
        };
        self.settle(&live, &mut round, out).await;
        self.door.counters().add(&tally);
        self.live = Some(live);
        Ran { used, after }
    }

    /// Decides what waits, and answers it.
    async fn settle(&self, live: &Live, round: &mut Round<'_>, out: &mut Vec<u8>) {
        if !round.is_empty() {
            checks::decide(&self.door.gate, live, &self.throttles, round, self.protocol, out).await;
        }
    }

    /// Checks a command, and has it wait for the rest if it is one that can.
    #[inline]
    fn take<'i>(
        &mut self,
        command: &Spec,
        parts: &[&'i [u8]],
        live: &Live,
        round: &mut Round<'i>,
        now: Micros,
    ) -> Result<Taken, Error> {
        let (from, to) = command.parts;
        if parts.len() < from || parts.len() > to {
            let text = format!("wrong number of arguments for '{}' command", command.name);
            return Err(Error { code: "ERR", text });
        }
        match command.needs {
            Needs::Nothing => {}
            Needs::Caller => self.caller.check_known(now)?,
            Needs::Scope(scope) => self.check(command.kind, scope, parts, now)?,
        }
        match command.kind {
            Kind::Throttle => self.throttles.take(&self.door.gate, live, parts, round),
            Kind::Hit | Kind::Peek => checks::take_hit(command.kind, live, parts, round),
            Kind::Attributes => checks::take_attributes(parts, round),
            other => Ok(Taken::Other(other)),
        }
    }

    /// May this be asked of this limiter or domain?
    #[inline]
    fn check(&mut self, kind: Kind, scope: Scope, parts: &[&[u8]], now: Micros) -> Result<(), Error> {
        let named = |part: usize| parts.get(part).map(|name| String::from_utf8_lossy(name)).unwrap_or_default();
        let refused = match kind {
            Kind::Throttle => self.caller.check(scope, What::Limiter(tidegate::THROTTLE_LIMITER), now),
            Kind::Attributes => {
                let domain = named(1);
                let domain = (!domain.is_empty()).then_some(&*domain);
                self.caller.check(scope, What::Domain(domain), now)
            }
            Kind::Block | Kind::Unblock => self.caller.check_operator(What::Limiter(&named(1)), self.peer, now),
            Kind::Stats if parts.len() == 1 => self.caller.check(scope, What::Everything, now),
            _ => {
                let limiter = OnceCell::new();
                self.caller.check_with(scope, now, || What::Limiter(limiter.get_or_init(|| named(1))))
            }
        };
        refused.map_err(Error::from)
    }

    /// Does what waits for nothing.
    async fn act(&mut self, kind: Kind, parts: &[&[u8]], live: &Live, out: &mut Vec<u8>) -> Result<(), Error> {
        let mut answers = Answers::new(out, self.protocol);
        match kind {
            Kind::Block | Kind::Unblock | Kind::Increment | Kind::Analyze => {
                operate::act(self, kind, parts, &mut answers).await
            }
            Kind::Stats => in_turns(async { operate::stats(self, parts, &mut answers) }).await,
            Kind::Throttle => self.throttles.give_back(&self.door.gate, live, parts, &mut answers).await,
            _ => words::act(self, kind, parts, out),
        }
    }
}

/// What became of a command.
pub(super) enum Taken {
    /// It waits for the rest of what was read.
    Waits,
    /// It cannot wait together with those that do: decide them, and take it again.
    Full,
    /// It is done by itself.
    Other(Kind),
}

/// An error reply.
#[derive(Debug)]
pub(super) struct Error {
    pub(super) code: &'static str,
    pub(super) text: String,
}

impl Error {
    pub(super) fn new(text: impl Into<String>) -> Error {
        Error { code: "ERR", text: text.into() }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        let code = if refusal.status == 401 { "NOAUTH" } else { "NOPERM" };
        Error { code, text: refusal.detail }
    }
}

impl From<tidegate::AskError> for Error {
    fn from(error: tidegate::AskError) -> Error {
        Error::new(error.to_string())
    }
}

/// A text of a client's as an error shows it.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = bytes[..bytes.len().min(64)].escape_ascii().to_string();
    if bytes.len() > 64 { format!("{text}… ({} bytes)", bytes.len()) } else { text }
}

fn unknown(parts: &[&[u8]]) -> Error {
    let names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
    let name = parts.first().map(|name| shown(name)).unwrap_or_default();
    Error::new(format!("unknown command '{name}'; there are: {}", names.join(", ")))
}
