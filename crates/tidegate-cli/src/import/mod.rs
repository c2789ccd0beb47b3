//! `tidegate import`: rate limit policies of other programs as one of ours.
//!
//! The TOML goes to stdout, complete and valid; what could not be carried over, or counts differently here, is on top of it as comments, and on stderr.
//! Nothing is guessed: a setting that is not known is an error, as it is where the file comes from.

mod envoy;
mod limitador;
mod metadata;
mod policy;
mod yaml;

use crate::{exit, say, say_error};
use policy::Role;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where a policy comes from.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// The configuration of envoyproxy/ratelimit
    Envoy {
        /// Its YAML files, or the folder that they are in
        #[arg(required = true, value_name = "FILE|FOLDER")]
        files: Vec<PathBuf>,
        /// As the service does with QUOTA_MODE=true: of the rules that a request meets, one has to allow
        #[arg(long)]
        quota_mode: bool,
    },
    /// The limits file of Limitador
    Limitador {
        /// The YAML file
        file: PathBuf,
    },
}

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Prints a policy, and exits with 2 if there is none.
pub(crate) fn run(command: &Command) -> ExitCode {
    let imported = match command {
        Command::Envoy { files, quota_mode } => {
            let enforced = if *quota_mode { Role::Alternative } else { Role::Enforced };
            read_all(files).and_then(|files| envoy::import(&files, enforced))
        }
        Command::Limitador { file } => read_all(std::slice::from_ref(file)).and_then(|files| limitador::import(&files)),
    };
    let outcome = imported.and_then(|imported| {
        imported.notes().for_each(|note| say_error(&format!("note: {note}")));
        say(imported.toml().trim_end())
    });
    match outcome {
        Ok(()) => exit::OK,
        Err(message) => {
            say_error(&format!("error: {message}"));
            exit::error()
        }
    }
}

/// A file's name, for people, and its text.
struct File {
    name: String,
    text: String,
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<File>, String> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let found = in_folder(path)?;
            files.extend(found.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>()?);
        } else {
            files.push(read(path)?);
        }
    }
    Ok(files)
}

/// The YAML files of a folder, by name.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let cannot = |error: std::io::Error| format!("{} cannot be read: {error}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let is_yaml = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
        if is_yaml && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(format!("{} has no .yaml files; name the files, or another folder", folder.display()));
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<File, String> {
    let name = path.display().to_string();
    let cannot = |error: std::io::Error| format!("{name} cannot be read: {error}");
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(cannot)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name} has more than {FILE_BYTES_MAX} bytes, the most; is it the right file?"));
    }
    Ok(File { name, text })
}

#[cfg(test)]
mod tests;
