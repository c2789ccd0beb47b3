//! `tidegate suggest`: what should the limit be?
//!
//! The traffic itself tells: every key's requests with their times ([`traffic`]), and for each algorithm the smallest limit that
//! would have affected no more than a wanted share of the keys ([`search`]). A key is decided by the core's own arithmetic, each
//! from fresh, which is what the engine does while its table is not full; so the shares stated are what `simulate` finds.

mod page;
mod picture;
mod search;
#[cfg(test)]
mod tests;
mod text;
mod traffic;

use super::access_log::Attribute;
use super::format::Format;
use super::input::Input;
use super::order::{Order, Sequencer};
use super::parser::Parser;
use super::{Stop, reading};
use crate::share;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use picture::Picture;
use search::{Suggestion, suggest};
use std::path::PathBuf;
use tidegate::{Algorithm, Limit, LimiterSpec, Micros, Policy, Rules};
use traffic::Traffic;

/// Suggests limits from traffic.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What makes a key: ip, user or path of an access log, attributes of a trace; several are joined by commas
    #[arg(long, value_delimiter = ',', value_name = "ATTRIBUTES", required_unless_present = "limiter")]
    by: Vec<String>,
    /// Traces: requests that name this limiter, by their keys
    #[arg(long, value_name = "NAME", conflicts_with = "by")]
    limiter: Option<String>,
    /// Traces: requests of this domain
    #[arg(long, value_name = "NAME", requires = "by")]
    domain: Option<String>,
    /// The trace or log, which may be packed with gzip; "-" is standard input
    #[arg(long, short, value_name = "TRACE", default_value = "-")]
    input: PathBuf,
    /// How it is written; left out, its first line tells
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// At most this share of the keys may be affected
    #[arg(long, value_delimiter = ',', value_name = "PERCENT", default_values = ["1%", "0.1%"], value_parser = read_share)]
    share: Vec<Share>,
    /// The limit's period
    #[arg(long, value_delimiter = ',', value_name = "DURATION", default_values = ["1m"], value_parser = period)]
    per: Vec<Micros>,
    /// How the limit counts; left out, all algorithms
    #[arg(long, value_delimiter = ',', value_parser = algorithms())]
    algorithm: Vec<Algorithm>,
    /// Logs: pass over lines that cannot be read, and count them
    #[arg(long)]
    skip_bad_lines: bool,
    /// Draw the distribution and the suggestions as one HTML page
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// One JSON object, for machines
    #[arg(long)]
    json: bool,
    /// Leave the progress bar out
    #[arg(long, short)]
    quiet: bool,
}

/// A share of the keys, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Share(u32);

impl Share {
    /// The most keys of so many.
    fn of(self, keys: u64) -> u64 {
        u64::try_from(u128::from(keys) * u128::from(self.0) / 1_000_000).unwrap_or(keys)
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, rest) = (self.0 / 10_000, self.0 % 10_000);
        if rest == 0 {
            return write!(f, "{whole} %");
        }
        write!(f, "{whole}.{} %", format!("{rest:04}").trim_end_matches('0'))
    }
}

/// `0.1%`, from 0 to below 100.
fn read_share(text: &str) -> Result<Share, String> {
    match share::millionths(text) {
        Some(millionths @ ..1_000_000) => Ok(Share(millionths)),
        _ => Err("write a share of the keys below 100%, such as 0.1% or 1%".to_owned()),
    }
}

fn period(text: &str) -> Result<Micros, String> {
    let period = tidegate::text::duration(text)?;
    Limit::new(1, period).map(|_| period).map_err(|error| error.to_string())
}

/// The algorithms that are suggested for, by their words in the configuration.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow,
    Algorithm::FixedWindow,
    Algorithm::Buckets,
    Algorithm::LeakyAverage,
];

fn algorithms() -> impl clap::builder::TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(ALGORITHMS.map(Algorithm::name))
        .map(|word| ALGORITHMS.into_iter().find(|algorithm| algorithm.name() == word).unwrap_or_default())
}

/// What was found, for one period.
pub(super) struct Found {
    per: Micros,
    picture: Picture,
    suggestions: Vec<Suggestion>,
}

/// Reads the traffic and tells what it suggests.
///
/// # Errors
/// A message for stderr.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let mut input = Input::open(&args.input, !args.quiet)?;
    let (name, format) = (input.name().to_owned(), super::format(args.format, &mut input)?);
    let subject = Subject::new(args, format)?;
    let order = match format {
        Format::Ndjson => Order::Strict,
        _ => Order::Sorted { skip_bad_lines: args.skip_bad_lines },
    };
    let (traffic, skipped) = read(input, format, order, &subject).map_err(|stop| stop.message(&name))?;
    if traffic.keys() == 0 {
        return Err(format!("error: no request of {name} has {}, so that nothing can be suggested", subject.what()));
    }
    let algorithms = if args.algorithm.is_empty() { ALGORITHMS.to_vec() } else { args.algorithm.clone() };
    let threads = super::threads();
    let find = |per: &Micros| Found {
        per: *per,
        picture: Picture::of(&traffic, *per),
        suggestions: suggest(&traffic, &algorithms, *per, &args.share, threads),
    };
    let found: Vec<Found> = args.per.iter().map(find).collect();
    let findings = text::Findings { input: &name, subject: &subject, traffic: &traffic, found: &found, skipped };
    if let Some(file) = &args.report {
        super::write_report(file, &page::html(&findings))?;
    }
    crate::say(if args.json { findings.json() } else { findings.text() }.trim_end())
        .map_err(|message| format!("error: {message}"))
}

/// Whose requests are looked at.
pub(super) struct Subject {
    /// How keys are made, as the engine makes them.
    spec: LimiterSpec,
    /// Requests that name this limiter; `None`: those that have the attributes.
    limiter: Option<String>,
    skip_bad_lines: bool,
}

impl Subject {
    fn new(args: &Args, format: Format) -> Result<Subject, String> {
        let known = Attribute::ALL.map(Attribute::name);
        match format {
            Format::Udp => {
                return Err(
                    "error: the limiter of a datagram is what [[udp.route]] says, so that its log has no keys to \
                            suggest for; record the requests ([record]), and name a --limiter"
                        .to_owned(),
                );
            }
            Format::Ndjson => {}
            Format::Clf | Format::NginxJson => {
                if let Some(strange) = args.by.iter().find(|name| !known.contains(&name.as_str())) {
                    return Err(format!(
                        "error: --by: access logs have no \"{}\"; use ip, user or path",
                        strange.escape_debug()
                    ));
                }
                if args.limiter.is_some() || args.domain.is_some() {
                    return Err(
                        "error: --limiter and --domain are for traces; an access log has ip, user and path: use --by"
                            .to_owned(),
                    );
                }
            }
        }
        let by: Vec<&str> = args.by.iter().map(String::as_str).collect();
        let rules =
            Limit::new(1, Micros::from_secs(60)).ok().and_then(|limit| Rules::new(Algorithm::default(), &[limit]).ok());
        let rules = rules.ok_or("error: one per minute is no limit")?;
        let name = args.limiter.clone().unwrap_or_else(|| "suggested".to_owned());
        let mut spec = LimiterSpec::new(name, rules);
        if !by.is_empty() {
            spec = spec.by(args.domain.as_deref(), &by);
        }
        Policy::new(vec![spec.clone()]).map_err(|error| format!("error: --by: {error}"))?;
        Ok(Subject { spec, limiter: args.limiter.clone(), skip_bad_lines: args.skip_bad_lines })
    }

    /// `ip`, or `limiter api`.
    fn what(&self) -> String {
        match &self.limiter {
            Some(name) => format!("limiter {name}"),
            None => self.spec.by.join(" and "),
        }
    }

    /// A suggestion as the file has it.
    fn toml(&self, suggestion: &Suggestion) -> String {
        let mut out = format!("[[limiter]]\nname = \"{}\"\n", self.spec.name);
        if let Some(domain) = &self.spec.domain {
            out += &format!("domain = \"{domain}\"\n");
        }
        if !self.spec.by.is_empty() {
            out += &format!(
                "by = [{}]\n",
                self.spec.by.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
            );
        }
        out + &suggestion.toml()
    }
}

/// Reads all requests of the subject; gives the lines that were passed over, too.
fn read(input: Input, format: Format, order: Order, subject: &Subject) -> Result<(Traffic, u64), Stop> {
    let wanted = Attribute::ALL.map(|attribute| subject.spec.by.iter().any(|name| name == attribute.name()));
    let parser = Parser { format, wanted, domain: None, partitions: Vec::new() };
    let (mut traffic, mut sequencer) = (Traffic::default(), Sequencer::new(order));
    reading::read(input, parser, super::threads(), |block| {
        sequencer.take(block, |batch| batch.lines().try_for_each(|due| traffic.take(subject, due)))
    })?;
    sequencer.finish(|batch| batch.lines().try_for_each(|due| traffic.take(subject, due)))?;
    traffic.group();
    let skipped = sequencer.notes.skipped + traffic.skipped;
    Ok((traffic, skipped))
}
