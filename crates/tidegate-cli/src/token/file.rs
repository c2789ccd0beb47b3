//! Changing a file of secrets: whole or not at all, for its owner only, one change at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Largest file that is read, in bytes: a thousand tokens fit.
const FILE_MAX: u64 = 4 << 20;

/// What the file has.
///
/// # Errors
/// It cannot be read.
pub(super) fn read(file: &Path) -> Result<String, String> {
    read_if_there(file)?.ok_or_else(|| format!("{} is not there; make it with tidegate token new", file.display()))
}

/// Replaces the file's text by what `change` makes of it; a file that is not there is empty. It is written beside and moved over,
/// with mode 0600, and synced before, so that a server sees the old or the new one whole. A lock on the folder keeps two changes apart.
///
/// # Errors
/// What `change` says, or why it cannot be written; then nothing has changed.
pub(super) fn change(file: &Path, change: impl FnOnce(&str) -> Result<String, String>) -> Result<(), String> {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let failed = |what: &str, error: &std::io::Error| {
        format!("{} cannot be {what}: {error}; check the path and its permissions", file.display())
    };
    let handle = File::open(folder).map_err(|error| failed("written", &error))?;
    handle.lock().map_err(|error| failed("locked", &error))?;
    let text = change(&read_if_there(file)?.unwrap_or_default())?;
    let beside = beside(file)?;
    // Of a change that was killed: the lock is ours.
    let _ = fs::remove_file(&beside);
    let written = write_new(&beside, &text).and_then(|()| fs::rename(&beside, file)).and_then(|()| handle.sync_all());
    written.map_err(|error| {
        let _ = fs::remove_file(&beside);
        failed("written", &error)
    })
}

/// A link could lead the change to a file of somebody else's choice, so that none is followed.
fn read_if_there(file: &Path) -> Result<Option<String>, String> {
    let about = match fs::symlink_metadata(file) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(format!("{} cannot be read: {error}; check the path and its permissions", file.display()));
        }
    };
    if about.is_symlink() {
        return Err(format!("{} is a symbolic link; name the file that it leads to", file.display()));
    }
    if !about.is_file() || about.len() > FILE_MAX {
        return Err(format!("{} is no file of tokens, or larger than 4 MiB; is it the right one?", file.display()));
    }
    let mut text = String::new();
    let read = File::open(file).and_then(|opened| opened.take(FILE_MAX).read_to_string(&mut text));
    read.map(|_| Some(text))
        .map_err(|error| format!("{} cannot be read: {error}; check the path and its permissions", file.display()))
}

fn beside(file: &Path) -> Result<PathBuf, String> {
    let name =
        file.file_name().ok_or_else(|| format!("{} is no file; name one, such as tokens.toml", file.display()))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    Ok(file.with_file_name(hidden))
}

/// `create_new` follows no link either.
fn write_new(file: &Path, text: &str) -> std::io::Result<()> {
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    opened.write_all(text.as_bytes())?;
    opened.sync_all()
}
