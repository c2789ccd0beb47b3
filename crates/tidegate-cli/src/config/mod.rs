//! The configuration: one TOML file, every setting with a default, an empty file is valid.
//!
//! What comes out is plain: an engine's policy, a store's budget, the doors' addresses. TOML stops
//! in [`tree`]; places stop in [`problem`]. Invariant: no setting is ignored; one that is unknown,
//! or that this version does not have, is an error.

mod access;
mod audit;
mod doors;
mod grpc;
mod limiter;
mod limits;
mod matches;
mod metadata;
mod overrides;
mod problem;
mod promote;
mod proxy;
mod record;
mod replicas;
mod section;
mod size;
mod source;
mod store;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod tokens;
mod tree;
mod udp;

pub(crate) use access::{Access, Listening, TokensAt, exposed, load_tokens, told_open};
pub(crate) use doors::Doors;
pub(crate) use overrides::from_environment;
pub(crate) use problem::ConfigError;
pub(crate) use proxy::{Proxy, limit as proxy_limit};
pub(crate) use store::{Remote, Store};
pub(crate) use tls::Certificates;
pub(crate) use tokens::{name as token_name, parse as parse_tokens};

pub(crate) use promote::promoted;

use problem::Problem;
use section::{Known, Section};
use source::Source;
use std::io::Read as _;
use std::path::Path;
use tidegate::{
    Algorithm, Capabilities, EMPTY_TABLE_BYTES, LimiterSpec, PROXY_LIMITER, Policy, RecordSettings, Replicas,
    THROTTLE_LIMITER,
};
use tidegate_doors::access::Network;
use tidegate_doors::http::Limits;
use tidegate_doors::ratelimit::RateLimitSettings;
use tidegate_doors::udp::Routing;
use tidegate_events::StreamSpec;
use tls::Look;
use tree::{Entry, Table, Value};

/// What a file says.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Config {
    pub(crate) store: Store,
    pub(crate) doors: Doors,
    pub(crate) policy: Policy,
    pub(crate) udp: Routing,
    /// Networks that may ask over UDP; none: all that reach the door.
    pub(crate) allow: Vec<Network>,
    pub(crate) access: Access,
    /// The transparent proxy, if the file has one.
    pub(crate) proxy: Option<Proxy>,
    pub(crate) streams: Vec<StreamSpec>,
    pub(crate) audit: audit::Audit,
    /// What is recorded of the requests, if anything is.
    pub(crate) record: Option<RecordSettings>,
    /// How much clients of the HTTP door may take.
    pub(crate) limits: Limits,
    pub(crate) tls: Certificates,
    /// What answers of the rate limit service carry.
    pub(crate) grpc: RateLimitSettings,
}

impl Config {
    /// The certificates of the doors that `serve` opens.
    pub(crate) fn certificates(&self) -> Certificates {
        self.tls.in_use(Some(&self.doors), self.proxy.as_ref())
    }

    /// The policy that the engine gets: the file's, and the limiter of `CL.THROTTLE` where one of the doors asks it and the
    /// store can count so.
    pub(crate) fn policy_in_force(&self, doors: &Doors) -> Policy {
        let counts = self.store.capabilities().is_none_or(|store| store.counts(Algorithm::TokenBucket));
        match doors.resp.is_some() && counts {
            // Of this name the file has none: that is checked when it is read.
            true => self.policy.with(LimiterSpec::throttle()).unwrap_or_else(|_| self.policy.clone()),
            false => self.policy.clone(),
        }
    }
}

/// Largest file that is read, in bytes: a thousand limiters fit many times.
const FILE_MAX: u64 = 4 << 20;

const KNOWN: Known = Known {
    here: &[
        "store", "doors", "access", "limiter", "udp", "stream", "proxy", "audit", "record", "tls", "limits", "grpc",
    ],
    later: &["admin"],
};

/// Reads a file, with the environment's settings over it.
///
/// # Errors
/// The file cannot be read, or every problem found in it.
pub(crate) fn load(file: &Path, variables: Vec<(String, String)>) -> Result<Config, ConfigError> {
    load_and(Look::AtCertificates, file, variables)
}

/// The same for a server that runs, and looks at certificates itself: one that has expired is no reason to refuse a new limit.
///
/// # Errors
/// The file cannot be read, or every problem found in it.
pub(crate) fn load_again(file: &Path, variables: Vec<(String, String)>) -> Result<Config, ConfigError> {
    load_and(Look::Away, file, variables)
}

fn load_and(look: Look, file: &Path, variables: Vec<(String, String)>) -> Result<Config, ConfigError> {
    let name = file.display().to_string();
    let text = read_text(file).map_err(|message| ConfigError::whole(name.clone(), message))?;
    parse_and(look, &name, text, file.parent().unwrap_or(Path::new("")), variables)
}

/// Reads a text; `name` is what errors call it, and `folder` is where its relative paths start.
///
/// # Errors
/// Every problem found.
pub(crate) fn parse(
    name: &str,
    text: String,
    folder: &Path,
    variables: Vec<(String, String)>,
) -> Result<Config, ConfigError> {
    parse_and(Look::AtCertificates, name, text, folder, variables)
}

fn parse_and(
    look: Look,
    name: &str,
    text: String,
    folder: &Path,
    variables: Vec<(String, String)>,
) -> Result<Config, ConfigError> {
    let parsed = tree::parse(0, &text);
    let mut sources = vec![Source::File { name: name.to_owned(), text }];
    let mut problems = Vec::new();
    let config = match parsed {
        Ok(mut root) => {
            overrides::apply(variables, &mut root, &mut sources, &mut problems);
            let mut config = read(&root, look, folder, &sources, &mut problems);
            access::read_tokens(&mut config.access, &root, &mut sources, &mut problems);
            config
        }
        Err(syntax) => {
            problems = syntax;
            Config::default()
        }
    };
    if problems.is_empty() {
        return Ok(config);
    }
    problems.sort_by_key(|problem| problem.place.map(|place| (place.source, place.start)));
    Err(ConfigError { file: name.to_owned(), sources, problems })
}

fn read_text(file: &Path) -> Result<String, String> {
    let opened = std::fs::File::open(file);
    let opened = opened.map_err(|error| format!("cannot be read: {error}; check the path and its permissions"))?;
    let mut text = String::new();
    match opened.take(FILE_MAX + 1).read_to_string(&mut text) {
        Ok(_) if text.len() as u64 > FILE_MAX => {
            Err(format!("is larger than {}, the most; is it the right file?", size::show(FILE_MAX)))
        }
        Ok(_) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err("is not UTF-8 text; is it the right file?".to_owned())
        }
        Err(error) => Err(format!("cannot be read: {error}; check the path and its permissions")),
    }
}

fn read(root: &Table, look: Look, folder: &Path, sources: &[Source], problems: &mut Vec<Problem>) -> Config {
    let mut config = Config::default();
    // What is refused by itself is not reported a second time by what refers to it.
    let mut refused: Vec<&str> = Vec::new();
    for entry in &root.entries {
        let before = problems.len();
        match entry.name.as_str() {
            "store" => {
                if let Some(mut section) = open(entry, "[store]", &store::KNOWN, problems) {
                    config.store = store::read(&mut section, folder);
                }
            }
            "doors" => {
                if let Some(mut section) = open(entry, "[doors]", &doors::KNOWN, problems) {
                    config.doors = doors::read(&mut section, entry.name_place);
                }
            }
            "access" => {
                if let Some(mut section) = open(entry, "[access]", &access::KNOWN, problems) {
                    config.access = access::read(&mut section, folder);
                }
            }
            "grpc" => {
                if let Some(mut section) = open(entry, "[grpc]", &grpc::KNOWN, problems) {
                    config.grpc = grpc::read(&mut section);
                }
            }
            "audit" => {
                if let Some(mut section) = open(entry, "[audit]", &audit::KNOWN, problems) {
                    config.audit = audit::read(&mut section, folder);
                }
            }
            "record" => {
                if let Some(mut section) = open(entry, "[record]", &record::KNOWN, problems) {
                    config.record = record::read(&mut section, entry.name_place, folder);
                }
            }
            "limits" => {
                if let Some(mut section) = open(entry, "[limits]", &limits::KNOWN, problems) {
                    config.limits = limits::read(&mut section);
                }
            }
            "proxy" => {
                if let Some(mut section) = open(entry, "[proxy]", &proxy::KNOWN, problems) {
                    config.proxy = Some(proxy::read(&mut section, folder));
                }
            }
            "limiter" => config.policy = limiter::read(&entry.node, sources, problems),
            "stream" => config.streams = stream::read(&entry.node, problems),
            "tls" => config.tls = tls::read(entry, look, folder, problems),
            // Below, when all limiters are known.
            "udp" => {}
            other => problems.push(Problem { place: Some(entry.name_place), message: stranger(other) }),
        }
        if problems.len() > before {
            refused.push(&entry.name);
        }
    }
    let is_sound = |sections: &[&str]| !sections.iter().any(|section| refused.contains(section));
    if is_sound(&["proxy", "limiter"])
        && let Some(Err(message)) =
            config.proxy.as_ref().map(|proxy| proxy.join(&config.policy).map(|policy| config.policy = policy))
    {
        let place = root.entries.iter().find(|entry| entry.name == "proxy").map(|entry| entry.name_place);
        problems.push(Problem { place, message: format!("[proxy] {message}") });
    }
    if config.doors.resp.is_some() && config.policy.limiters().iter().any(|limiter| limiter.name == THROTTLE_LIMITER) {
        let place = root.entries.iter().find(|entry| entry.name == "limiter").map(|entry| entry.name_place);
        let message = format!(
            "limiter \"{THROTTLE_LIMITER}\": this name is CL.THROTTLE's own, which the RESP door answers; \
             choose another name, or leave resp out of [doors]"
        );
        problems.push(Problem { place, message });
    }
    if is_sound(&["store"])
        && let Some(message) = too_small(&config)
    {
        let place = root.entries.iter().find(|entry| entry.name == "store").map(|entry| entry.name_place);
        problems.push(Problem { place, message });
    }
    let unserved = if is_sound(&["store"]) { unserved(&config) } else { Vec::new() };
    for (limiter, message) in unserved {
        let (table, message) = match limiter.name == PROXY_LIMITER && config.proxy.is_some() {
            true => ("proxy", format!("[proxy] {message}")),
            false => ("limiter", format!("limiter \"{}\": {message}", limiter.name)),
        };
        let place = root.entries.iter().find(|entry| entry.name == table).map(|entry| entry.name_place);
        problems.push(Problem { place, message });
    }
    if is_sound(&["store"])
        && let Some(message) = homeless(&config)
    {
        let place = root.entries.iter().find(|entry| entry.name == "stream").map(|entry| entry.name_place);
        problems.push(Problem { place, message });
    }
    let before = problems.len();
    if let Some(at) = root.position("udp") {
        let made = config.proxy.as_ref().filter(|proxy| proxy.makes_limiter()).map(|_| PROXY_LIMITER);
        let limiters: Vec<&str> = limiter::names(root).into_iter().chain(made).collect();
        (config.udp, config.allow) = udp::read(&root.entries[at], &limiters, problems);
    }
    if is_sound(&["access", "doors", "proxy"]) && problems.len() == before {
        problems.extend(access::exposed_by_file(&config, root));
    }
    problems.extend(udp::without_a_door(root));
    config
}

/// Limiters that the store cannot serve, and why.
fn unserved(config: &Config) -> Vec<(&LimiterSpec, String)> {
    let limiters = config.policy.limiters();
    let store = config.store.capabilities();
    let mut problems = Vec::new();
    for limiter in limiters {
        let mut refuse = |message: String| problems.push((&**limiter, message));
        if !store.is_none_or(|store| store.counts(limiter.rules.algorithm())) {
            refuse(uncounted(store));
        }
        if limiter.replicas == Replicas::Share(None) && !store.is_some_and(|store| store.shared) {
            let remedy =
                "set kind = \"redis\" or \"etcd\" in [store], or number them: replica = \"1/3\" in the first of three";
            refuse(format!("with replicas = \"share\" servers find each other through a store; {remedy}"));
        }
        if limiter.pause_layout && !store.is_some_and(|store| store.pause_layout) {
            let remedy = "set kind = \"redis\" in [store], or leave it out";
            refuse(format!("layout = \"pause\" is a layout in Redis; {remedy}"));
        }
        let other = limiters.iter().find(|other| {
            !limiter.by.is_empty()
                && !other.by.is_empty()
                && other.domain == limiter.domain
                && limiter.pause_layout
                && !other.pause_layout
        });
        if let Some(other) = other {
            refuse(format!(
                "a request can match it together with \"{}\", which is in another layout; \
                 give both the same layout, or different domains",
                other.name
            ));
        }
    }
    problems
}

/// How the store can count, where it cannot count as asked.
fn uncounted(store: Option<Capabilities>) -> String {
    let (name, algorithms) = store.map_or(("the store", &Algorithm::ALL[..]), |store| (store.name, store.algorithms));
    if algorithms == [Algorithm::AlignedWindow] {
        return format!(
            "{name} counts in aligned windows only; write algorithm = \"fixed-window\" and aligned = true, \
             or set kind = \"redis\" in [store]"
        );
    }
    let words: Vec<&str> = algorithms.iter().map(|algorithm| algorithm.name()).collect();
    format!("{name} counts in {} only; use one of them, or set kind = \"redis\" in [store]", words.join(", "))
}

/// Streams that the store cannot keep.
fn homeless(config: &Config) -> Option<String> {
    let store = config.store.capabilities().filter(|store| !store.streams)?;
    (!config.streams.is_empty()).then(|| {
        format!(
            "[[stream]]: {} keeps no streams; set kind = \"redis\" or \"memory\" in [store], or have the streams \
             in a server of their own",
            store.name
        )
    })
}

/// Every limiter takes some memory before it has a key.
fn too_small(config: &Config) -> Option<String> {
    let (limiters, max) = (config.policy_in_force(&config.doors).limiters().len(), config.store.max_memory);
    let needed = limiters * EMPTY_TABLE_BYTES;
    (needed > max).then(|| {
        format!(
            "[store] max_memory: {limiters} limiters take {} before they have a key, more than {}; raise it, or have fewer limiters",
            size::show(needed as u64),
            size::show(max as u64)
        )
    })
}

fn open<'a>(entry: &'a Entry, title: &str, known: &Known, problems: &'a mut Vec<Problem>) -> Option<Section<'a>> {
    if let Value::Table(table) = &entry.node.value {
        return Some(Section::open(title.to_owned(), table, known, problems));
    }
    let message =
        format!("{title}: this is {}, not a table; write {title} and its settings below", entry.node.value.kind());
    problems.push(Problem { place: Some(entry.node.place), message });
    None
}

fn stranger(name: &str) -> String {
    if KNOWN.later.contains(&name) {
        return format!("[{name}] is not in this version; leave it out");
    }
    section::unknown(name, &KNOWN)
}
