//! The commands that ask a server: small requests, answers that are a pleasure to read.

mod asking;
mod audit;
mod http;
mod overrides;
mod percent;
mod show;
mod streams;
mod top;
mod trust;

use crate::exit;
use http::{Failure, Server};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use trust::Trust;

/// A command for a server.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Ask, and count it: exit 0 allowed, 1 denied
    Hit(Ask),
    /// Ask without counting: exit 0 if a hit would be allowed, 1 if not
    Peek(Ask),
    /// Count for a key, whatever its limits say (buckets)
    Increment(Increment),
    /// Ask if a key has reached a limit, and block it then: exit 0 if not, 1 if it is limited or blocked (buckets)
    Analyze(OfKey),
    /// All limiters, and what they did
    Limiters(To),
    /// The keys that a limiter holds
    Keys(Of),
    /// The keys that are blocked
    Blocked(Of),
    /// Block a key for some time
    Block(Block),
    /// Forget a key's block and history
    Unblock(ChangeKey),
    /// Forget all blocked keys of a limiter
    UnblockAll(Change),
    /// Give one key other limits than its limiter's, list them, take them back
    #[command(subcommand)]
    Override(overrides::Override),
    /// Let a limiter limit again
    Enable(Change),
    /// Let everything through a limiter, and count nothing
    Disable(Change),
    /// Who changed what, when and why, newest first
    Audit(Audit),
    /// Submit an event to a stream: exit 0 submitted, 1 conflict or full
    Submit(Submit),
    /// Show a stream's messages as they come
    Watch(Watch),
    /// Watch limiters and keys live in this terminal, unblock keys and give them other limits
    Top(top::Top),
}

/// Which server, and how to answer.
#[derive(clap::Args, Debug)]
pub(crate) struct To {
    #[command(flatten)]
    reach: Reach,
    /// Answer in JSON, as the server gives it
    #[arg(long)]
    json: bool,
}

/// Which server, and who asks.
#[derive(clap::Args, Debug)]
pub(crate) struct Reach {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7400", env = "TIDEGATE_SERVER")]
    server: String,
    /// A file with the token that the server asks for; without, the variable TIDEGATE_TOKEN has the token itself
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    trust: Trust,
}

/// A limiter.
#[derive(clap::Args, Debug)]
pub(crate) struct Of {
    /// The limiter's name
    limiter: String,
    #[command(flatten)]
    to: To,
}

/// A limiter and a key.
#[derive(clap::Args, Debug)]
pub(crate) struct OfKey {
    /// The limiter's name
    limiter: String,
    /// The key: 1 to 512 bytes
    key: OsString,
    #[command(flatten)]
    to: To,
}

/// A change of a limiter.
#[derive(clap::Args, Debug)]
pub(crate) struct Change {
    #[command(flatten)]
    of: Of,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// A change of a key.
#[derive(clap::Args, Debug)]
pub(crate) struct ChangeKey {
    #[command(flatten)]
    of: OfKey,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// How much of the audit.
#[derive(clap::Args, Debug)]
pub(crate) struct Audit {
    /// So many of the latest changes, up to 10,000, which is all that a server keeps
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    most: u16,
    #[command(flatten)]
    to: To,
}

/// A question: about a limiter and a key, or about attributes.
#[derive(clap::Args, Debug)]
pub(crate) struct Ask {
    /// The limiter's name
    #[arg(required_unless_present = "attributes", requires = "key", conflicts_with = "attributes")]
    limiter: Option<String>,
    /// The key: 1 to 512 bytes
    #[arg(required_unless_present = "attributes")]
    key: Option<OsString>,
    /// Instead of a limiter and a key: an attribute, such as user=u1 or ip=192.0.2.1; every limiter that it meets is asked
    #[arg(long = "attribute", short, value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// With attributes: the domain; without, limiters that have none are asked
    #[arg(long, value_name = "NAME", requires = "attributes")]
    domain: Option<String>,
    #[command(flatten)]
    to: To,
    /// How much; 0 looks only
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    cost: u32,
}

/// An increment.
#[derive(clap::Args, Debug)]
pub(crate) struct Increment {
    #[command(flatten)]
    of: OfKey,
    /// How much
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    count: u32,
    /// When, in seconds since the epoch; now if left out
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    timestamp: Option<serde_json::Number>,
}

/// A block.
#[derive(clap::Args, Debug)]
pub(crate) struct Block {
    #[command(flatten)]
    of: OfKey,
    /// For how long, such as 30s, 10m or 2h
    #[arg(long = "for", value_name = "DURATION")]
    span: String,
    /// Why, for the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// An event for a stream.
#[derive(clap::Args, Debug)]
pub(crate) struct Submit {
    /// The stream's name
    stream: String,
    /// The event: 1 to 1024 bytes of text
    event: String,
    #[command(flatten)]
    to: To,
}

/// A stream to look at.
#[derive(clap::Args, Debug)]
pub(crate) struct Watch {
    /// The stream's name
    stream: String,
    /// Go on after this clock value instead of beginning with a snapshot
    #[arg(long, value_name = "CLOCK")]
    from: Option<u64>,
    #[command(flatten)]
    to: To,
}

/// Asks, prints the answer and gives the exit code.
pub(crate) fn run(command: &Command) -> ExitCode {
    let answered = match command {
        Command::Hit(ask) => asking::hit(ask),
        Command::Peek(ask) => asking::peek(ask),
        Command::Increment(increment) => asking::increment(increment),
        Command::Analyze(of) => asking::analyze(of),
        Command::Limiters(to) => asking::limiters(to),
        Command::Keys(of) => asking::keys(of, "tracked"),
        Command::Blocked(of) => asking::keys(of, "blocked"),
        Command::Block(block) => asking::block(block),
        Command::Unblock(of) => asking::unblock(of),
        Command::UnblockAll(of) => asking::unblock_all(of),
        Command::Override(command) => overrides::run(command),
        Command::Enable(of) => asking::switch(of, "enable"),
        Command::Disable(of) => asking::switch(of, "disable"),
        Command::Audit(audit) => audit::show(audit),
        Command::Submit(submit) => streams::submit(submit),
        Command::Watch(watch) => streams::watch(watch),
        Command::Top(top) => top::run(top),
    };
    match answered {
        Ok(code) => code,
        Err(failure) => {
            if let (true, Some(body)) = (command.wants_json(), &failure.body) {
                // What is said next is about the same failure.
                let _ = crate::say(body);
            }
            crate::say_error(&format!("error: {}", failure.message));
            exit::error()
        }
    }
}

impl Command {
    fn wants_json(&self) -> bool {
        let to = match self {
            Command::Hit(ask) | Command::Peek(ask) => &ask.to,
            Command::Increment(increment) => &increment.of.to,
            Command::Analyze(of) => &of.to,
            Command::Limiters(to) => to,
            Command::Keys(of) | Command::Blocked(of) => &of.to,
            Command::UnblockAll(change) | Command::Enable(change) | Command::Disable(change) => &change.of.to,
            Command::Block(block) => &block.of.to,
            Command::Unblock(change) => &change.of.to,
            Command::Override(command) => command.to(),
            Command::Audit(audit) => &audit.to,
            Command::Submit(submit) => &submit.to,
            Command::Watch(watch) => &watch.to,
            Command::Top(_) => return false,
        };
        to.json
    }
}

/// `user=u1`: the name before the first equals sign, the value behind it.
fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it is no name and value; write one such as user=u1".to_owned()),
    }
}

impl To {
    fn connect(&self) -> Result<Server, Failure> {
        self.reach.connect()
    }
}

impl Reach {
    fn connect(&self) -> Result<Server, Failure> {
        Ok(Server::at(&self.server, &self.trust)?.with_token(self.token()?))
    }

    /// The token, if there is one. It is never shown.
    fn token(&self) -> Result<Option<String>, Failure> {
        let (told, name) = match &self.token_file {
            Some(file) => {
                let read = std::fs::read_to_string(file);
                let failed = |error| {
                    Failure::new(format!("--token-file {} cannot be read: {error}; check the path", file.display()))
                };
                (read.map_err(failed)?, format!("--token-file {}", file.display()))
            }
            None => match std::env::var("TIDEGATE_TOKEN") {
                Ok(token) if !token.is_empty() => (token, "TIDEGATE_TOKEN".to_owned()),
                _ => return Ok(None),
            },
        };
        match told.trim() {
            token if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Ok(Some(token.to_owned()))
            }
            _ => {
                Err(Failure::new(format!("{name} has no token; it must be one line, as tidegate token new prints it")))
            }
        }
    }
}
