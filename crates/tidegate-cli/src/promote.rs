//! `tidegate promote`: a limiter's candidate takes its place in the file. A server that watches the file takes it up by itself.

use crate::config::{load, promoted};
use crate::exit;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to promote.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The limiter's name
    limiter: String,
    /// The configuration file, which is changed
    #[arg(long, value_name = "FILE", default_value = "tidegate.toml")]
    config: PathBuf,
    /// Show the change and do not write it
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args, variables: Vec<(String, String)>) -> ExitCode {
    match promote(args, variables) {
        Ok(difference) => match crate::say(difference.trim_end()) {
            Ok(()) => exit::OK,
            Err(message) => failed(&message),
        },
        Err(message) => failed(&message),
    }
}

fn failed(message: &str) -> ExitCode {
    crate::say_error(&format!("error: {message}"));
    exit::error()
}

/// Writes the change, and tells the lines that differ.
fn promote(args: &Args, variables: Vec<(String, String)>) -> Result<String, String> {
    let file = &args.config;
    let cannot = |what: &str, error: std::io::Error| format!("{} cannot be {what}: {error}", file.display());
    // A file that is not valid now is not made another one.
    load(file, variables.clone()).map_err(|error| error.to_string())?;
    let text = fs::read_to_string(file).map_err(|error| cannot("read", error))?;
    let changed = promoted(&text, &args.limiter)?;
    if !args.dry_run {
        replace(file, &changed, variables).map_err(|error| cannot("written", error))?;
    }
    Ok(difference(&text, &changed))
}

/// The new text is checked beside the old file, and then takes its name: nobody ever reads half of it.
fn replace(file: &Path, text: &str, variables: Vec<(String, String)>) -> std::io::Result<()> {
    let real = fs::canonicalize(file)?;
    let beside = real.with_extension(format!("promoted-{}", std::process::id()));
    let written = || {
        let mut new = fs::OpenOptions::new().write(true).create_new(true).open(&beside)?;
        new.write_all(text.as_bytes())?;
        new.set_permissions(fs::metadata(&real)?.permissions())?;
        new.sync_all()?;
        load(&beside, variables).map_err(|error| std::io::Error::other(error.to_string()))?;
        fs::rename(&beside, &real)
    };
    written().inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Lines that went and lines that came, at the first and up to the last that differ.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[same..], &new[same..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let gone = old[..old.len() - tail].iter().map(|line| format!("- {line}\n"));
    let came = new[..new.len() - tail].iter().map(|line| format!("+ {line}\n"));
    gone.chain(came).collect()
}
