//! `[access]`: who may ask what, and which doors may be open to whoever reaches them.
//!
//! A door beyond loopback must say who may ask: with tokens, with networks where the protocol has no tokens, or by being named in
//! `open`. Anything else is refused before it listens.

use super::problem::Problem;
use super::section::{Known, Section, Text};
use super::source::{Place, Source};
use super::tokens;
use super::tree::{Table, Value};
use super::{Config, read_text};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tidegate_doors::access::Rules;

/// What the file says of access.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Access {
    /// Where tokens are kept, if there are any.
    pub(crate) tokens: Option<TokensAt>,
    /// Doors that may be open to whoever reaches them.
    pub(crate) open: Vec<DoorName>,
    /// The rest, with the tokens.
    pub(crate) rules: Rules,
}

/// Where tokens are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TokensAt {
    File(PathBuf),
    /// In the variable itself.
    Variable,
}

/// A door that may face a network. `[proxy] listen` is for everybody, and is none of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DoorName {
    Http,
    Udp,
    Grpc,
    Resp,
    /// `[proxy] admin`.
    Admin,
}

impl DoorName {
    const ALL: [DoorName; 5] = [DoorName::Http, DoorName::Udp, DoorName::Grpc, DoorName::Resp, DoorName::Admin];

    pub(crate) fn name(self) -> &'static str {
        match self {
            DoorName::Http => "http",
            DoorName::Udp => "udp",
            DoorName::Grpc => "grpc",
            DoorName::Resp => "resp",
            DoorName::Admin => "admin",
        }
    }

    /// The table of its address.
    fn table(self) -> &'static str {
        match self {
            DoorName::Http | DoorName::Udp | DoorName::Grpc | DoorName::Resp => "doors",
            DoorName::Admin => "proxy",
        }
    }
}

pub(super) const KNOWN: Known = Known { here: &["tokens", "open", "allowed_origins", "hosts"], later: &[] };

/// Reads the table; relative paths of the file are seen from `folder`. The tokens are read by [`read_tokens`].
pub(super) fn read(section: &mut Section<'_>, folder: &Path) -> Access {
    let tokens = section.text("tokens", "tokens.toml");
    let tokens = tokens.and_then(|text| match place_of_tokens(text, folder) {
        Ok(at) => Some(at),
        Err(message) => {
            section.refuse(text.place, "tokens", &message);
            None
        }
    });
    let rules = Rules {
        tokens: None,
        hosts: each(section, "hosts", "tidegate.example", str::parse),
        origins: each(section, "allowed_origins", "https://app.example", str::parse),
    };
    Access { tokens, open: each(section, "open", "http", door), rules }
}

fn place_of_tokens(Text { text, place }: Text<'_>, folder: &Path) -> Result<TokensAt, String> {
    let is_from_file = place.source == 0;
    match text {
        "" => Err("\"\" is no file; name the one that tidegate token new wrote, such as \"tokens.toml\"".to_owned()),
        text if text.contains('\0') => Err("a path cannot have a zero byte".to_owned()),
        text if is_from_file => Ok(TokensAt::File(folder.join(text))),
        // A container has its secrets in variables.
        text if text.contains("[[") => Ok(TokensAt::Variable),
        text => Ok(TokensAt::File(PathBuf::from(text))),
    }
}

/// Every string of an array, each with its refusal.
pub(super) fn each<T>(
    section: &mut Section<'_>,
    name: &str,
    example: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Vec<T> {
    let texts = section.texts(name, example).unwrap_or_default();
    let mut all = Vec::with_capacity(texts.len());
    for text in texts {
        match parse(text.text) {
            Ok(parsed) => all.push(parsed),
            Err(message) => section.refuse(text.place, name, &message),
        }
    }
    all
}

fn door(text: &str) -> Result<DoorName, String> {
    DoorName::ALL.into_iter().find(|door| door.name() == text).ok_or_else(|| {
        let names = DoorName::ALL.map(|door| format!("\"{}\"", door.name())).join(", ");
        format!("no door is named \"{}\"; use some of {names}", text.escape_debug())
    })
}

/// Reads the tokens that the table names; what is wrong with them is shown where they stand.
pub(super) fn read_tokens(access: &mut Access, root: &Table, sources: &mut Vec<Source>, problems: &mut Vec<Problem>) {
    let Some(at) = &access.tokens else { return };
    let place = setting(root, "access", "tokens");
    let source = match at {
        TokensAt::Variable => place.map_or(0, |place| place.source),
        TokensAt::File(file) => match read_text(file) {
            Ok(text) => {
                sources.push(Source::File { name: file.display().to_string(), text });
                sources.len() - 1
            }
            Err(message) => {
                let message = format!(
                    "[access] tokens: {} {message}; make one with: tidegate token new --name NAME --scope check --file {}",
                    file.display(),
                    file.display()
                );
                problems.push(Problem { place, message });
                return;
            }
        },
    };
    access.rules.tokens = Some(tokens::read(source, sources[source].text(), problems));
}

/// Reads a tokens file again.
///
/// # Errors
/// Every problem found in it.
pub(crate) fn load_tokens(file: &Path) -> Result<tidegate_doors::access::Tokens, String> {
    tokens::load(file)
}

/// The place of a table's setting.
fn setting(root: &Table, table: &str, name: &str) -> Option<Place> {
    let Value::Table(table) = &root.entries[root.position(table)?].node.value else { return None };
    Some(table.entries[table.position(name)?].node.place)
}

/// The addresses of all doors that may face a network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listening {
    pub(crate) http: Option<SocketAddr>,
    pub(crate) udp: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    pub(crate) resp: Option<SocketAddr>,
    pub(crate) admin: Option<SocketAddr>,
}

impl Listening {
    /// Those of other addresses than this machine's own.
    fn beyond_loopback(&self) -> impl Iterator<Item = (DoorName, SocketAddr)> {
        let all = [
            (DoorName::Http, self.http),
            (DoorName::Udp, self.udp),
            (DoorName::Grpc, self.grpc),
            (DoorName::Resp, self.resp),
            (DoorName::Admin, self.admin),
        ];
        let all = all.into_iter().filter_map(|(door, address)| Some((door, address?)));
        all.filter(|(_, address)| !address.ip().to_canonical().is_loopback())
    }
}

/// Doors that are exposed without a word on who may ask, with what to do about each.
pub(crate) fn exposed(config: &Config, listening: &Listening) -> Vec<(DoorName, String)> {
    let is_guarded = |door| match door {
        DoorName::Http | DoorName::Grpc | DoorName::Resp | DoorName::Admin => config.access.tokens.is_some(),
        DoorName::Udp => !config.allow.is_empty(),
    };
    let exposed = listening
        .beyond_loopback()
        .filter(|(door, _)| !is_guarded(*door) && !config.access.open.contains(door))
        .map(|(door, address)| (door, exposure(door, address)));
    exposed.collect()
}

fn exposure(door: DoorName, address: SocketAddr) -> String {
    let name = door.name();
    let lead = format!("[{}] {name}: {address} can be reached from other machines", door.table());
    let guard = match door {
        DoorName::Http | DoorName::Grpc | DoorName::Resp | DoorName::Admin => {
            ", and nobody would be asked for a token; make one with tidegate token new --name NAME --scope check --file tokens.toml, \
             and set [access] tokens = \"tokens.toml\" or TIDEGATE_ACCESS__TOKENS"
        }
        DoorName::Udp => {
            ", and UDP has no tokens; name the networks that may ask: [udp] allow = [\"10.0.0.0/8\"] or TIDEGATE_UDP__ALLOW"
        }
    };
    format!(
        "{lead}{guard}; or leave it open on purpose: [access] open = [\"{name}\"] or TIDEGATE_ACCESS__OPEN='[\"{name}\"]'"
    )
}

/// The same for the addresses of a file, each at its place.
pub(super) fn exposed_by_file(config: &Config, root: &Table) -> Vec<Problem> {
    let admin = config.proxy.as_ref().and_then(|proxy| proxy.admin);
    let listening = config.doors.facing(admin);
    let problem = |(door, message): (DoorName, String)| {
        let place = setting(root, door.table(), door.name());
        Problem { place, message }
    };
    exposed(config, &listening).into_iter().map(problem).collect()
}

/// What is open to whoever reaches it, for the log.
pub(crate) fn told_open(config: &Config, listening: &Listening) -> Vec<String> {
    let open = listening.beyond_loopback().filter(|(door, _)| config.access.open.contains(door));
    let told = open.filter_map(|(door, address)| {
        let what = match door {
            DoorName::Http if config.access.tokens.is_none() => {
                "check, read, count, publish and subscribe; operate answers to this machine only"
            }
            DoorName::Grpc if config.access.tokens.is_none() => "check",
            DoorName::Resp if config.access.tokens.is_none() => {
                "check, read and count; operate answers to this machine only"
            }
            DoorName::Admin if config.access.tokens.is_none() => "metrics",
            DoorName::Udp if config.allow.is_empty() => "every command of UDP",
            _ => return None,
        };
        Some(format!("{} on {address} is open to whoever reaches it, as [access] open says: {what}", door.name()))
    });
    told.collect()
}
