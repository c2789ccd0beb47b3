//! `tidegate simulate`: what would a policy have done to this traffic?
//!
//! A trace or a log is read in blocks ([`input`], [`reading`]), parsed by several threads ([`parser`]), put in order ([`order`])
//! and decided on the engine with a clock that follows it ([`lanes`], [`replay`]). Answers go to stdout, one line each; the
//! summary, problems and progress to stderr.

mod access_log;
mod at;
mod attributes;
mod compare;
#[cfg(test)]
mod exactness_tests;
mod format;
mod in_order;
mod input;
mod json_log;
mod lanes;
mod line;
mod log_policy;
mod order;
mod output;
mod parsed;
mod parser;
mod progress;
mod reading;
mod replay;
mod report;
#[cfg(test)]
mod steering_tests;
mod streams;
#[cfg(test)]
mod streams_tests;
pub(crate) mod suggest;
mod summary;
#[cfg(test)]
mod summary_tests;
mod tally;
#[cfg(test)]
mod tests;
mod timeline;
mod udp_log;
#[cfg(test)]
mod udp_tests;
mod when;

use crate::config::{self, Config};
use access_log::Attribute;
use format::Format;
use input::Input;
use lanes::{Lanes, OnFault, Replayed};
use order::{Order, Sequencer};
use parser::{Parser, Partition};
use replay::{Answers, MEMORY_MAX, Replay};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tally::Charts;
use tidegate::LimiterSpec;
use tidegate_doors::udp::Routing;

/// Replays a trace on a policy.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The configuration; without one, the example policy of `tidegate serve`
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Another configuration: what would become of the same requests under it, beside the first
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// The trace or log, which may be packed with gzip; "-" is standard input
    #[arg(long, short, value_name = "TRACE", default_value = "-")]
    input: PathBuf,
    /// How it is written; left out, its first line tells
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
    /// Logs: pass over lines that cannot be read, and count them
    #[arg(long)]
    skip_bad_lines: bool,
    /// Draw who was limited, when and by what, as one HTML page
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write no answers: the summary and the report alone
    #[arg(long)]
    no_answers: bool,
    /// Leave the summary and the progress bar out
    #[arg(long, short)]
    quiet: bool,
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
    /// The policy cannot be replayed on; the message is whole.
    Engine(String),
    /// The lanes have ended, and know why.
    Ended,
}

impl Stop {
    /// What stderr says. Empty: the reader of the answers has closed its end (`| head`).
    fn message(self, input: &str) -> String {
        match self {
            Stop::Line(number, message) => format!("error: line {number} of {input}: {message}"),
            Stop::Input(message) => format!("error: {message}"),
            Stop::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe => String::new(),
            Stop::Output(error) => format!("error: the answers cannot be written: {error}; is the disk full?"),
            Stop::Engine(message) => message,
            Stop::Ended => "error: the replay ended early".to_owned(),
        }
    }
}

/// Replays, and says what went wrong, if anything did.
///
/// # Errors
/// A message for stderr; what was answered before is written.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let mut policies = vec![config(args.config.as_deref())?];
    if let Some(file) = &args.compare {
        policies.push(config(Some(file))?);
    }
    let mut input = Input::open(&args.input, !args.quiet)?;
    let (name, format) = (input.name().to_owned(), format(args.format, &mut input)?);
    let charts = if args.report.is_some() { Charts::Wanted } else { Charts::Unwanted };
    let answers = if args.no_answers { Answers::Counted } else { Answers::Written };
    let setting = setting(args, format, policies)?;
    let how = How { setting, answers, charts, threads: threads() };
    let (replayed, notes) = replay(input, how, std::io::stdout()).map_err(|stop| stop.message(&name))?;
    let page = report::Page {
        input: &name,
        policy: args.config.as_deref(),
        compared: args.compare.as_deref(),
        replayed: &replayed,
    };
    if !args.quiet {
        crate::say_error(summary::text(&replayed, &notes).trim_end());
    }
    match &args.report {
        Some(file) => write_report(file, &page.html()),
        None => Ok(()),
    }
}

/// What is replayed, and on what.
struct Setting {
    parser: Parser,
    order: Order,
    /// The policy, and the one that it is compared with.
    policies: Vec<Config>,
}

/// A replay with all that it needs.
struct How {
    setting: Setting,
    answers: Answers,
    charts: Charts,
    threads: usize,
}

/// Replays an input; the answers go to `out`.
fn replay(input: Input, how: How, out: impl Write + Send + 'static) -> Result<(Replayed, Notes), Stop> {
    let How { setting: Setting { mut parser, order, policies }, answers, charts, threads } = how;
    let skip = if matches!(order, Order::Sorted { skip_bad_lines: true }) { OnFault::Skip } else { OnFault::Stop };
    let mut engines = Vec::new();
    for (index, config) in policies.iter().enumerate() {
        // What the old policy cannot be asked does not end the replay of the new one.
        let (answers, on_fault) = if index == 0 { (answers, skip) } else { (Answers::Counted, OnFault::Skip) };
        let alone = only_limiter(&parser, config);
        let lanes = if alone.is_some() { threads } else { 1 };
        let engine = || Replay::new(config, MEMORY_MAX / lanes / policies.len(), answers, charts);
        let built = (0..lanes).map(|_| engine()).collect::<Result<Vec<Replay>, String>>();
        engines.push((built.map_err(Stop::Engine)?, on_fault));
        let lanes = u8::try_from(lanes).unwrap_or(u8::MAX);
        parser.partitions.push(alone.map(|limiter| Partition { limiter, lanes }));
    }
    let mut lanes = Lanes::start(engines, charts, out)?;
    let mut sequencer = Sequencer::new(order);
    let read = reading::read(input, parser, threads, |block| sequencer.take(block, |batch| lanes.decide(batch)));
    let read = read.and_then(|()| sequencer.finish(|batch| lanes.decide(batch)));
    let replayed = lanes.finish();
    match read {
        Ok(()) | Err(Stop::Ended) => {
            let replayed = replayed?;
            let skipped = sequencer.notes.skipped + replayed.policies[0].skipped;
            Ok((replayed, Notes { skipped, ..sequencer.notes }))
        }
        // A line that was decided before is at fault first.
        Err(stop) => Err(replayed.err().unwrap_or(stop)),
    }
}

/// The limiter that is the only one to apply to any line, if there is such: then lines may be dealt out by its keys, unless some of them count together.
fn only_limiter(parser: &Parser, config: &Config) -> Option<Arc<LimiterSpec>> {
    if !matches!(parser.format, Format::Clf | Format::NginxJson) {
        return None;
    }
    let mut applying = applying(config, parser.domain.as_deref());
    let only = applying.next().filter(|_| applying.next().is_none());
    only.filter(|spec| spec.matches.iter().all(|one| one.together.is_empty())).cloned()
}

/// The limiters that requests of a domain may match.
fn applying<'c>(config: &'c Config, domain: Option<&str>) -> impl Iterator<Item = &'c Arc<LimiterSpec>> {
    config.policy.limiters().iter().filter(move |spec| !spec.by.is_empty() && spec.domain.as_deref() == domain)
}

/// Threads that parse, and that decide where several may: one for each core, within reason.
fn threads() -> usize {
    const THREADS_MAX: usize = 16;
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(THREADS_MAX))
}

/// The format that was asked for, or that the first line has. A file that is taken for a log is named as one in the output: the
/// user may have meant a trace.
fn format(asked: Option<Format>, input: &mut Input) -> Result<Format, String> {
    if let Some(format) = asked {
        return Ok(format);
    }
    let format = Format::of(&input.peek_line().map_err(|message| format!("error: {message}"))?);
    if format != Format::Ndjson {
        crate::say_error(&format!(
            "warning: {} begins like {} and is read as one; add --format {} to say so",
            input.name(),
            format.what(),
            format.name()
        ));
    }
    Ok(format)
}

/// Which limiters the lines match, and how they are read.
fn setting(args: &Args, format: Format, mut policies: Vec<Config>) -> Result<Setting, String> {
    let sorted = Order::Sorted { skip_bad_lines: args.skip_bad_lines };
    let mut parser = Parser { format, wanted: [false; 3], domain: None, partitions: Vec::new() };
    match format {
        Format::Ndjson => {
            refuse_log_arguments(args)?;
            return Ok(Setting { parser, order: Order::Strict, policies });
        }
        Format::Udp => {
            if args.limiter.is_some() || args.domain.is_some() {
                return Err(
                    "error: --limiter, --by and --domain are for access logs; the limiter of a datagram is what \
                            the file's [[udp.route]] says"
                        .to_owned(),
                );
            }
            return Ok(Setting { parser, order: sorted, policies });
        }
        Format::Clf | Format::NginxJson => {}
    }
    parser.domain.clone_from(&args.domain);
    for (config, file) in policies.iter_mut().zip([&args.config, &args.compare]) {
        let policy = std::mem::take(&mut config.policy);
        let selected = log_policy::select(policy, args.limiter.as_deref(), args.domain.as_deref(), &args.by);
        let of_file = |message: String| match file {
            Some(file) if args.compare.is_some() => format!("{message} ({})", file.display()),
            _ => message,
        };
        config.policy = selected.map_err(of_file)?;
        // A log has requests alone, and routes may name limiters that were not selected.
        (config.udp, config.streams) = (Routing::default(), Vec::new());
    }
    for limiter in policies.iter().flat_map(|config| applying(config, args.domain.as_deref())) {
        let wanted = parser.wanted.iter_mut().zip(Attribute::ALL);
        wanted.for_each(|(wanted, attribute)| *wanted |= limiter.by.iter().any(|name| name == attribute.name()));
    }
    Ok(Setting { parser, order: sorted, policies })
}

fn config(file: Option<&Path>) -> Result<Config, String> {
    match file {
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
