//! The command `tidegate`: arguments, configuration, the server's wiring, the simulator and the
//! client. Nothing here decides: the engine does.
//!
//! | room | holds |
//! |---|---|
//! | `arguments` | what can be typed |
//! | `config` | the file, the environment, and what is wrong with them |
//! | `serve` | the doors on the engine, reload, snapshots, the stop |
//! | `proxy` | the transparent proxy |
//! | `simulate` | traces and access logs on a clock of their own; limits suggested from them |
//! | `import` | policies of other programs |
//! | `token` | the tokens file |
//! | `promote` | a candidate takes its place in the file |
//! | `client`, `udp` | the commands that ask a server |

mod arguments;
mod calendar;
mod client;
mod config;
mod example;
mod human;
mod import;
mod log;
#[cfg(test)]
mod mangled;
mod nearest;
mod panics;
mod promote;
mod proxy;
mod room;
mod serve;
mod share;
mod simulate;
mod token;
mod udp;
mod watch;

use arguments::{Arguments, Command};
use clap::Parser as _;
use config::Config;
use std::io::{ErrorKind, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;

/// Exit codes of every command.
pub(crate) mod exit {
    use std::process::ExitCode;

    /// It went well; a hit was allowed.
    pub(crate) const OK: ExitCode = ExitCode::SUCCESS;
    /// A hit was denied, or a file is not valid.
    pub(crate) const NO: ExitCode = ExitCode::FAILURE;

    /// A part of the process panicked. It is the code of a Rust program whose first thread panics, so that it means the same
    /// wherever a panic was.
    pub(crate) const PANICKED: u8 = 101;

    /// It could not be done.
    pub(crate) fn error() -> ExitCode {
        ExitCode::from(2)
    }
}

/// Runs the command with the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let code = catch_unwind(AssertUnwindSafe(|| run(Arguments::parse().command)));
    // What panicked here was logged by the hook, and the log has a thread of its own.
    log::flush();
    code.unwrap_or_else(|_| ExitCode::from(exit::PANICKED))
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(args) => done(serve::run(&args)),
        Command::Proxy(args) => done(proxy::run(&args)),
        Command::Validate { file } => validate(&file),
        Command::Simulate(args) => done(simulate::run(&args)),
        Command::Suggest(args) => done(simulate::suggest::run(&args)),
        Command::Udp(args) => udp::run(&args),
        Command::Import(command) => import::run(&command),
        Command::Token(command) => token::run(&command),
        Command::Promote(args) => promote::run(&args, config::from_environment()),
        Command::Client(command) => client::run(&command),
    }
}

fn done(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        _ if panics::happened() => {
            say_error(outcome.as_ref().err().map_or(panics::LAST_WORDS, String::as_str));
            ExitCode::from(exit::PANICKED)
        }
        Ok(()) => exit::OK,
        // An empty message: the reader of the output has closed its end, which is no error.
        Err(message) if message.is_empty() => exit::OK,
        Err(message) => {
            say_error(&message);
            exit::error()
        }
    }
}

fn validate(file: &Path) -> ExitCode {
    match config::load(file, config::from_environment()) {
        Ok(config) => {
            let (policy, counted) = (human::policy(&config), counted(&config));
            say_and(&format!("{} is valid: {policy}{counted}", file.display()), exit::OK)
        }
        Err(error) => {
            say_error(&format!("{error}\n\n{}", human::plural(error.count() as u64, "problem")));
            exit::NO
        }
    }
}

/// With whom it counts: a store that others use too, and the proxy's replicas. Nothing where a process counts alone anyway.
fn counted(config: &Config) -> String {
    let shared = config.store.remote.as_ref().map(|store| store.url.to_string());
    let with = shared.as_ref().map_or(String::new(), |url| format!("; counted at {url} with all that use it"));
    let proxy = config
        .proxy
        .as_ref()
        .and_then(|proxy| config.policy.limiters().iter().find(|l| l.name == proxy.limiter_name()));
    let proxy = proxy.map_or(String::new(), |limiter| {
        let limit = limiter.rules.limits().first().map(ToString::to_string).unwrap_or_default();
        format!("\nproxy: {limit} for each key, {}", human::counted_with(limiter.replicas, shared.as_deref()))
    });
    with + &proxy
}

/// The answer of a command, on stdout, and its exit code. An answer that cannot be written was not given: exit 2; but a reader
/// that has gone had enough.
pub(crate) fn say_and(text: &str, code: ExitCode) -> ExitCode {
    match say(text) {
        Ok(()) => code,
        Err(message) => {
            say_error(&format!("error: {message}"));
            exit::error()
        }
    }
}

/// A line on stdout; a reader that has gone is no error.
///
/// # Errors
/// What the operating system said, for a message on stderr.
pub(crate) fn say(text: &str) -> Result<(), String> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("the answer cannot be written to stdout: {error}; is the disk full?"))
        }
        _ => Ok(()),
    }
}

/// A line on stderr.
pub(crate) fn say_error(text: &str) {
    log::say_error(text);
}
