//! `tidegate simulate`: what would a policy have done to this traffic?
//!
//! A trace ([`trace`]) or an access log ([`log`]) is replayed ([`replay`]) on the engine with a clock
//! that follows it. Answers go to stdout, one line each; the summary, problems and progress to stderr.

mod access_log;
mod at;
mod attributes;
mod in_order;
mod input;
mod line;
mod log;
mod log_policy;
mod output;
mod progress;
mod replay;
mod report;
mod streams;
#[cfg(test)]
mod streams_tests;
mod summary;
#[cfg(test)]
mod summary_tests;
mod tally;
#[cfg(test)]
mod tests;
mod timeline;
mod trace;

use crate::config::{self, Config};
use access_log::Attribute;
use input::Input;
use replay::{Replay, ReplayError};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use tally::Charts;
use tidegate_doors::udp::Routing;

/// Replays a trace on a policy.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The configuration; without one, the example policy of `tidegate serve`
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The trace; "-" is standard input
    #[arg(long, short, value_name = "TRACE", default_value = "-")]
    input: PathBuf,
    /// How the trace is written; left out, its first line tells
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Access logs: what makes a key, instead of the limiter's own "by"
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ATTRIBUTES", requires = "limiter")]
    by: Vec<Attribute>,
    /// Access logs: the limiter that every request meets
    #[arg(long, value_name = "NAME")]
    limiter: Option<String>,
    /// Access logs: the domain of every request, instead of one limiter
    #[arg(long, value_name = "NAME", conflicts_with = "limiter")]
    domain: Option<String>,
    /// Access logs: pass over lines that cannot be read, and count them
    #[arg(long)]
    skip_bad_lines: bool,
    /// Draw who was limited, when and by what, as one HTML page
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Leave the summary and the progress bar out
    #[arg(long, short)]
    quiet: bool,
}

/// How a trace is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Format {
    /// One JSON object on each line
    Ndjson,
    /// Common or Combined Log Format
    Clf,
}

/// Lines that were not answered as they stood.
#[derive(Clone, Copy, Default, Debug)]
struct Notes {
    skipped: u64,
    late: u64,
}

/// Why a replay ended early.
#[derive(Debug)]
enum Stop {
    /// A line is at fault: its number, and a sentence with the remedy.
    Line(u64, String),
    /// The trace cannot be read any further.
    Input(String),
    /// The answers cannot be written.
    Output(std::io::Error),
}

impl Stop {
    fn at(number: u64) -> impl Fn(ReplayError) -> Stop {
        move |error| match error {
            ReplayError::Line(message) => Stop::Line(number, message),
            ReplayError::Output(error) => Stop::Output(error),
        }
    }

    /// What stderr says. Empty: the reader of the answers has closed its end (`| head`).
    fn message(self, input: &str) -> String {
        match self {
            Stop::Line(number, message) => format!("error: line {number} of {input}: {message}"),
            Stop::Input(message) => format!("error: {message}"),
            Stop::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => String::new(),
            Stop::Output(error) => format!("error: the answers cannot be written: {error}; is the disk full?"),
        }
    }
}

/// Replays, and says what went wrong, if anything did.
///
/// # Errors
/// A message for stderr; what was answered before is written.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let Config { policy, udp: routing, streams, .. } = config(args)?;
    let mut input = Input::open(&args.input, !args.quiet)?;
    let name = input.name().to_owned();
    let charts = if args.report.is_some() { Charts::Wanted } else { Charts::Unwanted };
    let out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    let (replayed, replay) = match format(args, &mut input)? {
        Format::Ndjson => {
            refuse_log_arguments(args)?;
            let mut replay = Replay::new(policy, &routing, streams, out, charts)?;
            (trace::replay(&mut input, &mut replay).map(|()| Notes::default()), replay)
        }
        Format::Clf => {
            let selected = log_policy::select(policy, args.limiter.as_deref(), args.domain.as_deref(), &args.by)?;
            let mut replay = Replay::new(selected.policy, &Routing::default(), Vec::new(), out, charts)?;
            (log::replay(&mut input, &mut replay, selected.domain.as_deref(), args.skip_bad_lines), replay)
        }
    };
    drop(input); // The progress bar goes before the summary comes.
    let sketched = replay.sketched();
    // What was answered is written, however the replay ended.
    let written = replay.finish();
    let notes = replayed.map_err(|stop| stop.message(&name))?;
    let tally = written.map_err(|error| Stop::Output(error).message(&name))?;
    if !args.quiet {
        crate::say_error(summary::text(&tally, &notes, sketched).trim_end());
    }
    match &args.report {
        Some(file) => write_report(file, &report::page(&name, args.config.as_deref(), &tally)),
        None => Ok(()),
    }
}

/// The format that was asked for, or that the first line has. A file that is taken for a log is named as one in the output: the user may have meant a trace.
fn format(args: &Args, input: &mut Input) -> Result<Format, String> {
    if let Some(format) = args.format {
        return Ok(format);
    }
    if access_log::read(&input.peek_line()?).is_err() {
        return Ok(Format::Ndjson);
    }
    crate::say_error(&format!(
        "warning: {} begins like an access log and is read as one; add --format clf to say so",
        input.name()
    ));
    Ok(Format::Clf)
}

fn config(args: &Args) -> Result<Config, String> {
    match &args.config {
        // The environment changes no limiter, and a replay must depend on nothing else.
        Some(file) => config::load(file, Vec::new()).map_err(|error| error.to_string()),
        None => Ok(crate::example::config()),
    }
}

fn refuse_log_arguments(args: &Args) -> Result<(), String> {
    if args.limiter.is_none() && args.domain.is_none() && !args.skip_bad_lines {
        return Ok(());
    }
    Err("error: --limiter, --by, --domain and --skip-bad-lines are for access logs; add --format clf, or leave them out"
        .to_owned())
}

fn write_report(file: &Path, page: &str) -> Result<(), String> {
    std::fs::write(file, page).map_err(|error| {
        format!("error: the report {} cannot be written: {error}; choose another place", file.display())
    })
}
