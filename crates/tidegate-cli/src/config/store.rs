//! `[store]`: where states live.

use super::section::{Known, Section};
use super::size;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate::text;

/// Where states live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Store {
    /// Hard budget of the table, in bytes.
    pub(crate) max_memory: usize,
    /// Where state is kept over restarts, if it is.
    pub(crate) path: Option<PathBuf>,
    /// How often it is saved there.
    pub(crate) snapshot_every: Duration,
}

impl Default for Store {
    fn default() -> Store {
        Store { max_memory: 256 << 20, path: None, snapshot_every: Duration::from_secs(10) }
    }
}

pub(super) const KNOWN: Known = Known {
    here: &["kind", "max_memory", "path", "snapshot_every"],
    later: &["url", "endpoints", "on_failure", "local_share", "deadline"],
};

/// Smallest budget: below it a table holds too few keys to be of use.
const MEMORY_MIN: u64 = 1 << 20;
/// Shortest and longest time between two snapshots, in milliseconds.
const SNAPSHOT_EVERY_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;

/// Reads the table; relative paths are seen from `folder`, the one of the file.
pub(super) fn read(section: &mut Section<'_>, folder: &Path) -> Store {
    let default = Store::default();
    section.parsed("kind", "memory", kind);
    let path = section.parsed("path", "data", path);
    if let (None, Some(every)) = (&path, section.node("snapshot_every"))
        && section.node("path").is_none()
    {
        let place = every.place;
        section.refuse(place, "snapshot_every", "it has no effect without path; add path = \"data\" or leave it out");
    }
    let from_file = section.node("path").is_some_and(|node| node.place.source == 0);
    Store {
        max_memory: section.parsed("max_memory", "256MiB", max_memory).unwrap_or(default.max_memory),
        path: path.map(|path| if from_file { folder.join(path) } else { path }),
        snapshot_every: section.parsed("snapshot_every", "10s", snapshot_every).unwrap_or(default.snapshot_every),
    }
}

fn kind(text: &str) -> Result<(), String> {
    match text {
        "memory" => Ok(()),
        "redis" | "etcd" => Err(format!("\"{text}\" is not in this version; use kind = \"memory\" or leave it out")),
        other => Err(format!("\"{}\" is no kind of store; use kind = \"memory\"", other.escape_debug())),
    }
}

fn max_memory(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text)?;
    if bytes < MEMORY_MIN {
        return Err(format!("\"{text}\" is below {}, the least; use \"{0}\" or more", size::show(MEMORY_MIN)));
    }
    usize::try_from(bytes).map_err(|_| format!("\"{text}\" is more than this machine can address; use less"))
}

fn path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("\"\" is no path; name a folder, such as \"data\", or leave it out".to_owned()),
        text if text.contains('\0') => {
            Err("a path cannot have a zero byte; name a folder, such as \"data\"".to_owned())
        }
        text => Ok(PathBuf::from(text)),
    }
}

fn snapshot_every(text: &str) -> Result<Duration, String> {
    let ms = text::duration(text)?.as_millis_ceil();
    if !SNAPSHOT_EVERY_MS.contains(&ms) {
        return Err(format!("\"{text}\" is outside 100ms to 1d; use one inside, such as \"10s\""));
    }
    Ok(Duration::from_millis(ms))
}
