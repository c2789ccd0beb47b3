//! `[audit]`: where changes by hand are noted.

use super::section::{Known, Section};
use std::path::{Path, PathBuf};

/// Where changes by hand are noted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Audit {
    /// The folder of its file, if it is not that of the store.
    pub(crate) path: Option<PathBuf>,
    /// One line of JSON for each in the log, too.
    pub(crate) log: bool,
}

pub(super) const KNOWN: Known = Known { here: &["path", "log"], later: &[] };

/// Reads the table; relative paths start in `folder`.
pub(super) fn read(section: &mut Section<'_>, folder: &Path) -> Audit {
    let path = section.parsed("path", "audit", |text| match text {
        "" => Err("it is empty; write a folder, or leave it out".to_owned()),
        text => Ok(folder.join(text)),
    });
    Audit { path, log: section.boolean("log").unwrap_or(false) }
}
