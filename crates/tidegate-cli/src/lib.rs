//! The command `tidegate`: arguments, configuration, the server's wiring, the simulator and the
//! client. Nothing here decides: the engine does.
//!
//! | room | holds |
//! |---|---|
//! | `arguments` | what can be typed |
//! | `config` | the file, the environment, and what is wrong with them |
//! | `serve` | the doors on the engine, reload, snapshots, the stop |
//! | `proxy` | the transparent proxy |
//! | `simulate` | traces and access logs on a clock of their own |
//! | `client`, `udp` | the commands that ask a server |

mod arguments;
mod calendar;
mod client;
mod config;
mod example;
mod human;
mod log;
#[cfg(test)]
mod mangled;
mod nearest;
mod proxy;
mod serve;
mod simulate;
mod udp;
mod watch;

use arguments::{Arguments, Command};
use clap::Parser as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Exit codes of every command.
pub(crate) mod exit {
    use std::process::ExitCode;

    /// It went well; a hit was allowed.
    pub(crate) const OK: ExitCode = ExitCode::SUCCESS;
    /// A hit was denied, or a file is not valid.
    pub(crate) const NO: ExitCode = ExitCode::FAILURE;

    /// It could not be done.
    pub(crate) fn error() -> ExitCode {
        ExitCode::from(2)
    }
}

/// Runs the command with the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Serve(args) => done(serve::run(&args)),
        Command::Proxy(args) => done(proxy::run(&args)),
        Command::Validate { file } => validate(&file),
        Command::Simulate(args) => done(simulate::run(&args)),
        Command::Udp(args) => udp::run(&args),
        Command::Client(command) => client::run(&command),
    }
}

fn done(outcome: Result<(), String>) -> ExitCode {
    match outcome {
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
            let limiters = human::policy(&config);
            say(&format!("{} is valid: {limiters}", file.display()));
            exit::OK
        }
        Err(error) => {
            say_error(&format!("{error}\n\n{}", human::plural(error.count() as u64, "problem")));
            exit::NO
        }
    }
}

/// A line on stdout; a reader that has gone is no reason to panic.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// A line on stderr.
pub(crate) fn say_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
