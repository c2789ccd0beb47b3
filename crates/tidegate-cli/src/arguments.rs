//! What can be typed.

use crate::{client, import, promote, proxy, serve, simulate, token, udp};
use std::path::PathBuf;

/// One rate limiter behind every door.
#[derive(clap::Parser, Debug)]
#[command(name = "tidegate", version, about, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done or allowed, 1 denied or not valid, 2 error, 101 a panic (a bug).")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Serve decisions; needs no file
    Serve(serve::Args),
    /// Forward requests to an upstream; those over the limit wait their turn
    Proxy(proxy::Args),
    /// Check a configuration: exit 0, or the errors and exit 1
    Validate {
        /// The configuration
        file: PathBuf,
    },
    /// Replay a trace or an access log on a policy, with a clock of its own
    Simulate(simulate::Args),
    /// Suggest limits from a trace or an access log
    Suggest(simulate::suggest::Args),
    /// Ask a server over UDP: over_limit KEY, get_stats KEY, get_size or ping
    Udp(udp::Args),
    /// Make a policy of another program's
    #[command(subcommand)]
    Import(import::Command),
    /// Make, list and revoke access tokens
    #[command(subcommand)]
    Token(token::Command),
    /// Put a limiter's candidate in force, in the file; its comments and layout stay
    Promote(promote::Args),
    #[command(flatten)]
    Client(client::Command),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }
}
