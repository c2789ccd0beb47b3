//! `tidegate token`: makes, lists and revokes tokens. The file has their hashes; a token is shown once, when it is made.

mod file;

use crate::human::{Align, Columns};
use crate::{calendar, config, exit};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate::{Clock, Micros, text};
use tidegate_doors::access::{CertificatePattern, Pattern, Scope, Secret, Tokens};

/// What to do with tokens.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a token, and print it: the only time that it is shown
    New(New),
    /// Who is known, and what each may do
    List(At),
    /// Take a token out: the server refuses it within a second
    Revoke(Revoke),
}

/// A new token.
#[derive(clap::Args, Debug)]
pub(crate) struct New {
    /// Its name, for logs and for revoking it
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: String,
    /// What it may do: check, read, count, publish, subscribe, operate; several with commas or several times
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_delimiter = ',')]
    scopes: Vec<Scope>,
    /// Only for limiters of this name; * stands for any text
    #[arg(long = "limiter", value_name = "PATTERN")]
    limiters: Vec<Pattern>,
    /// Only for requests by attributes in this domain; * stands for any text
    #[arg(long = "domain", value_name = "PATTERN")]
    domains: Vec<Pattern>,
    /// Only for streams of this name; * stands for any text
    #[arg(long = "stream", value_name = "PATTERN")]
    streams: Vec<Pattern>,
    /// For how long, such as 90d; without, until it is revoked
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    expires: Option<Micros>,
    #[command(flatten)]
    at: At,
}

/// A token to be taken out.
#[derive(clap::Args, Debug)]
pub(crate) struct Revoke {
    /// Its name
    name: String,
    #[command(flatten)]
    at: At,
}

/// Where tokens are kept.
#[derive(clap::Args, Debug)]
pub(crate) struct At {
    /// The tokens file, the one that [access] tokens names
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
}

fn name(text: &str) -> Result<String, String> {
    config::token_name(text).map(|()| text.to_owned())
}

fn duration(written: &str) -> Result<Micros, String> {
    match text::duration(written) {
        Ok(span) if !span.is_zero() => Ok(span),
        Ok(_) => Err("it would have expired already; write a time such as 90d".to_owned()),
        Err(message) => Err(message),
    }
}

/// Does it, and gives the exit code.
pub(crate) fn run(command: &Command) -> ExitCode {
    let done = match command {
        Command::New(new) => make(new),
        Command::List(at) => list(at),
        Command::Revoke(revoke) => take_out(revoke),
    };
    match done {
        Ok(()) => exit::OK,
        Err(message) => {
            crate::say_error(&format!("error: {message}"));
            exit::error()
        }
    }
}

fn make(new: &New) -> Result<(), String> {
    let secret = Secret::random()?;
    let entry = entry(new, &secret);
    file::change(&new.at.file, |text| {
        let known = parsed(&new.at.file, text)?;
        if known.tokens().any(|token| token.name == new.name) || known.certificates().any(|one| one.name == new.name) {
            return Err(format!(
                "{} has \"{}\" already; choose another name, or revoke that one first",
                new.at.file.display(),
                new.name
            ));
        }
        let changed = if text.is_empty() { format!("{HEAD}{entry}") } else { format!("{}\n{entry}", text.trim_end()) };
        parsed(&new.at.file, &changed).map(|_| changed)
    })?;
    crate::say(secret.text())
        .map_err(|message| format!("{message} The token is lost; revoke \"{}\" and make another", new.name))?;
    crate::say_error(&format!(
        "{} has the hash of \"{}\"; the token itself is shown this once",
        new.at.file.display(),
        new.name
    ));
    Ok(())
}

/// What a new file begins with.
const HEAD: &str = "# Written by `tidegate token`: hashes only. The server reads this file again when it changes.\n";

fn entry(new: &New, secret: &Secret) -> String {
    let list = |patterns: &[Pattern]| patterns.iter().map(ToString::to_string).collect::<Vec<_>>();
    let scopes = Scope::ALL.into_iter().filter(|scope| new.scopes.contains(scope));
    let mut text = format!("\n[[token]]\nname = \"{}\"\nsha256 = \"{}\"\n", new.name, secret.hash());
    let lists = [
        ("scopes", scopes.map(|scope| scope.name().to_owned()).collect()),
        ("limiters", list(&new.limiters)),
        ("domains", list(&new.domains)),
        ("streams", list(&new.streams)),
    ];
    for (name, items) in lists.iter().filter(|(_, items)| !items.is_empty()) {
        let items: Vec<String> = items.iter().map(|item| quoted(item)).collect();
        let _ = writeln!(text, "{name} = [{}]", items.join(", "));
    }
    if let Some(span) = new.expires {
        let at = Clock::process().now().saturating_add(span);
        let _ = writeln!(text, "expires = {}", calendar::written(Micros::from_secs(at.as_secs_ceil())));
    }
    text
}

/// A TOML string. Patterns have no control characters.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn parsed(file: &Path, text: &str) -> Result<Tokens, String> {
    let parsed = config::parse_tokens(&file.display().to_string(), text.to_owned());
    parsed.map_err(|problems| problems.strip_prefix("error: ").unwrap_or(&problems).to_owned())
}

fn list(at: &At) -> Result<(), String> {
    let tokens = parsed(&at.file, &file::read(&at.file)?)?;
    let now = Clock::process().now();
    let mut columns = Columns::new(&[("NAME", Align::Left), ("MAY", Align::Left), ("UNTIL", Align::Left)]);
    for token in tokens.tokens() {
        let until = match token.expires {
            None => "it is revoked".to_owned(),
            Some(at) if token.has_expired(now) => format!("{}, expired", calendar::written(at)),
            Some(at) => calendar::written(at),
        };
        columns.row([token.name.clone(), token.grant.told(), until]);
    }
    for certificate in tokens.certificates() {
        let of = match &certificate.of {
            CertificatePattern::Subject(pattern) => format!("certificate with the subject {pattern}"),
            CertificatePattern::San(pattern) => format!("certificate with the name {pattern}"),
        };
        columns.row([certificate.name.clone(), certificate.grant.told(), of]);
    }
    crate::say(columns.to_string().trim_end())
}

fn take_out(revoke: &Revoke) -> Result<(), String> {
    let (file, name) = (&revoke.at.file, &revoke.name);
    file::change(file, |text| {
        let known = parsed(file, text)?;
        let Some(index) = known.tokens().position(|token| token.name == *name) else {
            let names: Vec<&str> = known.tokens().map(|token| token.name.as_str()).take(10).collect();
            let there =
                if names.is_empty() { "it has none".to_owned() } else { format!("there are: {}", names.join(", ")) };
            return Err(format!("{} has no token \"{}\"; {there}", file.display(), name.escape_debug()));
        };
        let changed = without(text, index);
        // What is left must be all the others, and nothing else.
        let rest = parsed(file, &changed)?;
        let expected = known.tokens().filter(|token| token.name != *name);
        if !rest.tokens().eq(expected) || !rest.certificates().eq(known.certificates()) {
            return Err(format!(
                "{} is written in another way than tidegate writes; take \"{name}\" out by hand",
                file.display()
            ));
        }
        Ok(changed)
    })?;
    crate::say(&format!("revoked: {name}; servers that read {} refuse it within a second", file.display()))
}

/// The text without its token of this number: from its header up to the next one, whose comment above it stays.
fn without(text: &str, index: usize) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_header = |line: &&str| line.trim_start().starts_with('[');
    let is_token = |at: &usize| lines[*at].trim_start().starts_with("[[token]]");
    let Some(start) = (0..lines.len()).filter(is_token).nth(index) else { return text.to_owned() };
    let behind = lines[start + 1..].iter().position(is_header).map(|at| start + 1 + at);
    let end = behind.map_or(lines.len(), |header| {
        let comment = lines[..header].iter().rev().take_while(|line| line.trim_start().starts_with('#')).count();
        header - comment
    });
    [&lines[..start], &lines[end..]].concat().concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_out_and_the_rest_stays_as_it_was() {
        let token =
            |name: &str, seed: &str| format!("[[token]]\nname = \"{name}\"\nsha256 = \"{}\"\n\n", seed.repeat(64));
        let (a, b) = (token("a", "a"), token("b", "b"));
        let certificate = "# by hand\n[[certificate]]\nname = \"c\"\nsan = \"x\"\n";
        let text = format!("# head\n{a}{certificate}{b}");
        assert_eq!(without(&text, 0), format!("# head\n{certificate}{b}"));
        assert_eq!(without(&text, 1), format!("# head\n{a}{certificate}"));
    }

    #[test]
    fn patterns_are_quoted() {
        assert_eq!(quoted(r#"a"\*"#), r#""a\"\\*""#);
    }
}
