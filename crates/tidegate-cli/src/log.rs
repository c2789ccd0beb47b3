//! Log lines, on stderr.

use tracing_subscriber::fmt;

/// How log lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object on each line
    Json,
}

/// Starts logging. Called once.
pub(crate) fn start(format: LogFormat) {
    let builder = fmt().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    match format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
