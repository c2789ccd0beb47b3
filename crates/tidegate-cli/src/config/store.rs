//! `[store]`: where states live.

use super::section::{Known, Section};
use super::size;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate::{Capabilities, EtcdUrl, OnFailure, RedisUrl, StoreUrl, Tls, TlsFiles, text};

/// Where states live.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Store {
    /// Hard budget of the table, in bytes.
    pub(crate) max_memory: usize,
    /// Where state is kept over restarts, if it is.
    pub(crate) path: Option<PathBuf>,
    /// How often it is saved there.
    pub(crate) snapshot_every: Duration,
    /// A store on other machines, if states are there.
    pub(crate) remote: Option<Remote>,
}

/// `kind = "redis"` or `"etcd"`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Remote {
    pub(crate) url: StoreUrl,
    pub(crate) on_failure: OnFailure,
    pub(crate) local_share: f64,
    pub(crate) deadline: Duration,
    /// Refuse to start without it.
    pub(crate) required: bool,
}

impl Store {
    /// What a store on other machines can do; `None`: states are in this process, which can do everything alone.
    pub(crate) fn capabilities(&self) -> Option<Capabilities> {
        self.remote.as_ref().map(|store| store.url.capabilities())
    }
}

impl Default for Store {
    fn default() -> Store {
        Store { max_memory: 256 << 20, path: None, snapshot_every: Duration::from_secs(10), remote: None }
    }
}

pub(super) const KNOWN: Known = Known {
    here: &[
        "kind",
        "max_memory",
        "path",
        "snapshot_every",
        "url",
        "endpoints",
        "user",
        "password",
        "on_failure",
        "local_share",
        "deadline",
        "required",
        "password_file",
        "ca_file",
        "client_cert",
        "client_key",
    ],
    later: &[],
};

/// What only one kind of store reads.
const OF_ONE_KIND: [(&str, Kind); 6] = [
    ("path", Kind::Memory),
    ("snapshot_every", Kind::Memory),
    ("url", Kind::Redis),
    ("endpoints", Kind::Etcd),
    ("user", Kind::Etcd),
    ("password", Kind::Etcd),
];
/// What every kind reads. All else is for stores on other machines.
const OF_ALL_KINDS: [&str; 2] = ["kind", "max_memory"];

/// Smallest budget: below it a table holds too few keys to be of use.
const MEMORY_MIN: u64 = 1 << 20;
/// Shortest and longest time between two snapshots, in milliseconds.
const SNAPSHOT_EVERY_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;

/// Reads the table; relative paths are seen from `folder`, the one of the file.
pub(super) fn read(section: &mut Section<'_>, folder: &Path) -> Store {
    let default = Store::default();
    let kind = section.parsed("kind", "memory", kind).unwrap_or(Kind::Memory);
    refuse_others(section, kind);
    let remote = read_remote(section, kind, folder);
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
        remote,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Memory,
    Redis,
    Etcd,
}

fn kind(text: &str) -> Result<Kind, String> {
    match text {
        "memory" => Ok(Kind::Memory),
        "redis" => Ok(Kind::Redis),
        "etcd" => Ok(Kind::Etcd),
        other => Err(format!(
            "\"{}\" is no kind of store; use kind = \"memory\", \"redis\" or \"etcd\"",
            other.escape_debug()
        )),
    }
}

/// What only another kind of store reads has no effect, and is refused.
fn refuse_others(section: &mut Section<'_>, kind: Kind) {
    for setting in KNOWN.here {
        let owner = OF_ONE_KIND.iter().find(|(name, _)| name == setting).map(|(_, owner)| *owner);
        let is_read = match owner {
            Some(owner) => owner == kind,
            None => kind != Kind::Memory || OF_ALL_KINDS.contains(setting),
        };
        let remedy = match (owner, kind) {
            (Some(Kind::Etcd), _) => "add kind = \"etcd\"",
            (Some(Kind::Memory), Kind::Redis) => "Redis keeps the states",
            (Some(Kind::Memory), _) => "etcd keeps the states",
            _ => "add kind = \"redis\"",
        };
        if let (false, Some(node)) = (is_read, section.node(setting)) {
            section.refuse(node.place, setting, &format!("it has no effect here; {remedy}, or leave it out"));
        }
    }
}

fn read_remote(section: &mut Section<'_>, kind: Kind, folder: &Path) -> Option<Remote> {
    let url = match kind {
        Kind::Memory => return None,
        Kind::Redis => read_redis(section, folder).map(StoreUrl::Redis),
        Kind::Etcd => read_etcd(section, folder).map(StoreUrl::Etcd),
    };
    let on_failure = section.parsed("on_failure", "local", on_failure).unwrap_or_default();
    Some(Remote {
        on_failure,
        local_share: section.fraction("local_share").unwrap_or(1.0),
        deadline: section.parsed("deadline", "50ms", deadline).unwrap_or(DEADLINE),
        required: section.boolean("required").unwrap_or(false),
        url: url?,
    })
}

fn read_redis(section: &mut Section<'_>, folder: &Path) -> Option<RedisUrl> {
    let url = section
        .parsed("url", "redis://127.0.0.1:6379", |text| text.parse::<RedisUrl>().map_err(|error| error.to_string()));
    let mut url = if section.node("url").is_none() { RedisUrl::local() } else { url? };
    url.password = read_password(section, folder).or(url.password);
    read_tls(section, &mut url.tls, "url = \"rediss://…\"", folder);
    Some(url)
}

fn read_etcd(section: &mut Section<'_>, folder: &Path) -> Option<EtcdUrl> {
    let place = section.node("endpoints").map(|node| node.place);
    let mut url = match (section.texts("endpoints", "http://127.0.0.1:2379"), place) {
        (Some(endpoints), Some(place)) => match EtcdUrl::of(endpoints.iter().map(|endpoint| endpoint.text)) {
            Ok(url) => url,
            Err(error) => {
                section.refuse(place, "endpoints", &error.to_string());
                return None;
            }
        },
        _ => EtcdUrl::local(),
    };
    url.user = section.text("user", "tidegate").map(|user| user.text.to_owned());
    let password = section.text("password", "…").map(|password| password.text.to_owned());
    url.password = read_password(section, folder).or(password);
    for setting in ["password", "password_file"] {
        if let (Some(node), None) = (section.node(setting), &url.user) {
            section.refuse(node.place, setting, "it has no effect without a user; add user = \"tidegate\"");
        }
    }
    if let (Some(node), None) = (section.node("user"), &url.password) {
        section.refuse(node.place, "user", "it has no password; add password_file, or leave it out");
    }
    read_tls(section, &mut url.tls, "endpoints = [\"https://…\"]", folder);
    Some(url)
}

/// What stands in `password_file`.
fn read_password(section: &mut Section<'_>, folder: &Path) -> Option<String> {
    let file = section.parsed("password_file", "password", path).map(|path| folder.join(path))?;
    let place = section.node("password_file")?.place;
    match std::fs::read_to_string(&file) {
        Ok(text) if !text.trim().is_empty() => return Some(text.trim_end_matches(['\r', '\n']).to_owned()),
        Ok(_) => section.refuse(place, "password_file", "the file is empty; write the password into it"),
        Err(error) => section.refuse(place, "password_file", &format!("it cannot be read: {error}; check the path")),
    }
    None
}

/// Certificates for TLS; `how` is what turns TLS on.
fn read_tls(section: &mut Section<'_>, tls: &mut Option<Tls>, how: &str, folder: &Path) {
    let [ca, cert, key] = ["ca_file", "client_cert", "client_key"]
        .map(|setting| section.parsed(setting, "store.pem", path).map(|path| folder.join(path)));
    let mut set = ["ca_file", "client_cert", "client_key"].into_iter();
    let Some((setting, place)) = set.find_map(|setting| Some((setting, section.node(setting)?.place))) else {
        return;
    };
    if tls.is_none() {
        let remedy = format!("it has no effect without TLS; write {how}, or leave it out");
        return section.refuse(place, setting, &remedy);
    }
    let client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => {
            let message = "client_cert and client_key belong together; set both or neither";
            return section.refuse(place, setting, message);
        }
    };
    match Tls::load(TlsFiles { ca, client }) {
        Ok(loaded) => *tls = Some(loaded),
        Err(problem) => section.refuse(place, setting, &problem),
    }
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
