//! `[store]`: where states live.

use super::section::{Known, Section};
use super::size;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate::{OnFailure, RedisUrl, Tls, TlsFiles, text};

/// Where states live.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Store {
    /// Hard budget of the table, in bytes.
    pub(crate) max_memory: usize,
    /// Where state is kept over restarts, if it is.
    pub(crate) path: Option<PathBuf>,
    /// How often it is saved there.
    pub(crate) snapshot_every: Duration,
    /// A Redis, if states are there.
    pub(crate) redis: Option<Redis>,
}

/// `kind = "redis"`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Redis {
    pub(crate) url: RedisUrl,
    pub(crate) on_failure: OnFailure,
    pub(crate) local_share: f64,
    pub(crate) deadline: Duration,
    /// Refuse to start without it.
    pub(crate) required: bool,
}

impl Default for Store {
    fn default() -> Store {
        Store { max_memory: 256 << 20, path: None, snapshot_every: Duration::from_secs(10), redis: None }
    }
}

pub(super) const KNOWN: Known = Known {
    here: &[
        "kind",
        "max_memory",
        "path",
        "snapshot_every",
        "url",
        "on_failure",
        "local_share",
        "deadline",
        "required",
        "password_file",
        "ca_file",
        "client_cert",
        "client_key",
    ],
    later: &["endpoints"],
};

/// What the embedded store reads; all else is for a Redis.
const EMBEDDED: [&str; 4] = ["kind", "max_memory", "path", "snapshot_every"];
/// And what only it reads.
const EMBEDDED_ONLY: [&str; 2] = ["path", "snapshot_every"];

/// Smallest budget: below it a table holds too few keys to be of use.
const MEMORY_MIN: u64 = 1 << 20;
/// Shortest and longest time between two snapshots, in milliseconds.
const SNAPSHOT_EVERY_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;

/// Reads the table; relative paths are seen from `folder`, the one of the file.
pub(super) fn read(section: &mut Section<'_>, folder: &Path) -> Store {
    let default = Store::default();
    let kind = section.parsed("kind", "memory", kind).unwrap_or(Kind::Memory);
    let redis = read_redis(section, kind, folder);
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
        redis,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Memory,
    Redis,
}

fn kind(text: &str) -> Result<Kind, String> {
    match text {
        "memory" => Ok(Kind::Memory),
        "redis" => Ok(Kind::Redis),
        "etcd" => Err("\"etcd\" is not in this version; use kind = \"memory\" or \"redis\"".to_owned()),
        other => Err(format!("\"{}\" is no kind of store; use kind = \"memory\" or \"redis\"", other.escape_debug())),
    }
}

/// What is only for a Redis, or only for the embedded store, is refused with the other.
fn read_redis(section: &mut Section<'_>, kind: Kind, folder: &Path) -> Option<Redis> {
    let of_the_other = |setting: &&&str| match kind {
        Kind::Memory => !EMBEDDED.contains(setting),
        Kind::Redis => EMBEDDED_ONLY.contains(setting),
    };
    let remedy = if kind == Kind::Memory { "add kind = \"redis\"" } else { "Redis keeps the states" };
    for setting in KNOWN.here.iter().filter(of_the_other) {
        if let Some(place) = section.node(setting).map(|node| node.place) {
            section.refuse(place, setting, &format!("it has no effect here; {remedy}, or leave it out"));
        }
    }
    if kind == Kind::Memory {
        return None;
    }
    let url = section
        .parsed("url", "redis://127.0.0.1:6379", |text| text.parse::<RedisUrl>().map_err(|error| error.to_string()));
    let default = RedisUrl::local();
    let url = if section.node("url").is_none() { Some(default) } else { url };
    let on_failure = section.parsed("on_failure", "local", on_failure).unwrap_or_default();
    Some(Redis {
        url: with_files(section, url?, folder),
        on_failure,
        local_share: section.fraction("local_share").unwrap_or(1.0),
        deadline: section.parsed("deadline", "50ms", deadline).unwrap_or(DEADLINE),
        required: section.boolean("required").unwrap_or(false),
    })
}

/// The URL with what lies in files: the password, and certificates for TLS.
fn with_files(section: &mut Section<'_>, mut url: RedisUrl, folder: &Path) -> RedisUrl {
    let [password, ca, cert, key] = ["password_file", "ca_file", "client_cert", "client_key"]
        .map(|setting| section.parsed(setting, "redis.pem", path).map(|path| folder.join(path)));
    if let (Some(file), Some(place)) = (password, section.node("password_file").map(|node| node.place)) {
        match std::fs::read_to_string(&file) {
            Ok(text) if !text.trim().is_empty() => url.password = Some(text.trim_end_matches(['\r', '\n']).to_owned()),
            Ok(_) => section.refuse(place, "password_file", "the file is empty; write the password into it"),
            Err(error) => {
                section.refuse(place, "password_file", &format!("it cannot be read: {error}; check the path"))
            }
        }
    }
    let mut set = ["ca_file", "client_cert", "client_key"].into_iter();
    let Some((setting, place)) = set.find_map(|setting| Some((setting, section.node(setting)?.place))) else {
        return url;
    };
    if url.tls.is_none() {
        section.refuse(place, setting, "it has no effect without TLS; write url = \"rediss://…\", or leave it out");
        return url;
    }
    let client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => {
            section.refuse(place, setting, "client_cert and client_key belong together; set both or neither");
            return url;
        }
    };
    match Tls::load(TlsFiles { ca, client }) {
        Ok(tls) => url.tls = Some(tls),
        Err(problem) => section.refuse(place, setting, &problem),
    }
    url
}

pub(super) fn on_failure(text: &str) -> Result<OnFailure, String> {
    let all = [OnFailure::Local, OnFailure::Allow, OnFailure::Deny];
    all.into_iter()
        .find(|one| one.as_str() == text)
        .ok_or_else(|| format!("\"{}\" is no way to decide; use \"local\", \"allow\" or \"deny\"", text.escape_debug()))
}

/// How long a decision may take.
const DEADLINE: Duration = Duration::from_millis(50);
/// Shortest and longest, in milliseconds: below, a healthy store is late; above, clients have given up.
const DEADLINE_MS: std::ops::RangeInclusive<u64> = 5..=10_000;

fn deadline(text: &str) -> Result<Duration, String> {
    let ms = text::duration(text)?.as_millis_ceil();
    if !DEADLINE_MS.contains(&ms) {
        return Err(format!("\"{text}\" is outside 5ms to 10s; use one inside, such as \"50ms\""));
    }
    Ok(Duration::from_millis(ms))
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
