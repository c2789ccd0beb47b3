//! `[tls]`: the certificates of the TCP doors. The table itself is for all of them; `[tls.http]`, `[tls.grpc]`, `[tls.resp]`, `[tls.proxy]` and
//! `[tls.admin]` are for one each, and what such a table leaves out, `[tls]` says.
//!
//! What certificates can be used is checked by the doors, which read them; here their refusals are given a place.

use super::doors::Doors;
use super::problem::Problem;
use super::proxy::Proxy;
use super::section::{Known, Section};
use super::source::Place;
use super::tree::{Entry, Table, Value};
use std::path::{Path, PathBuf};
use tidegate::{Clock, Micros};
use tidegate_doors::listener::{Speaks, Tls, TlsFiles};

/// The certificates of each door that has any.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Certificates {
    pub(crate) http: Option<TlsFiles>,
    pub(crate) grpc: Option<TlsFiles>,
    pub(crate) resp: Option<TlsFiles>,
    pub(crate) proxy: Option<TlsFiles>,
    /// The proxy's admin address.
    pub(crate) admin: Option<TlsFiles>,
}

impl Certificates {
    /// Those of the doors that are open, and the proxy's, with or without its admin address.
    pub(crate) fn in_use(&self, doors: Option<&Doors>, proxy: Option<&Proxy>) -> Certificates {
        let has_admin = proxy.is_some_and(|proxy| proxy.admin.is_some());
        Certificates {
            http: self.http.clone().filter(|_| doors.is_some_and(|doors| doors.http.is_some())),
            grpc: self.grpc.clone().filter(|_| doors.is_some_and(|doors| doors.grpc.is_some())),
            resp: self.resp.clone().filter(|_| doors.is_some_and(|doors| doors.resp.is_some())),
            proxy: self.proxy.clone().filter(|_| proxy.is_some()),
            admin: self.admin.clone().filter(|_| has_admin),
        }
    }
}

const KNOWN: Known =
    Known { here: &["cert", "key", "client_ca", "http", "grpc", "resp", "proxy", "admin"], later: &[] };
const KNOWN_OF_A_DOOR: Known = Known { here: &["cert", "key", "client_ca"], later: &[] };

/// The files that a table names, each with its place.
#[derive(Clone, Default)]
struct Named {
    cert: Option<(PathBuf, Place)>,
    key: Option<(PathBuf, Place)>,
    client_ca: Option<(PathBuf, Place)>,
}

/// Whether files of certificates are looked at, too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    AtCertificates,
    Away,
}

/// Reads `[tls]`; relative paths are seen from `folder`, the one of the file.
pub(super) fn read(entry: &Entry, look: Look, folder: &Path, problems: &mut Vec<Problem>) -> Certificates {
    let now = (look == Look::AtCertificates).then(|| Clock::process().now());
    let Some(table) = as_table(entry, "[tls]", problems) else { return Certificates::default() };
    let general = named("[tls]", table, &KNOWN, folder, problems);
    let of_all = match general.is_empty() {
        true => None,
        false => checked("[tls]", entry.name_place, &general, now, problems),
    };
    let mut of_door = |door: &str| {
        let Some(at) = table.position(door) else { return of_all.clone() };
        let (title, entry) = (format!("[tls.{door}]"), &table.entries[at]);
        let own = named(&title, as_table(entry, &title, problems)?, &KNOWN_OF_A_DOOR, folder, problems);
        checked(&title, entry.name_place, &own.or(&general), now, problems)
    };
    let [http, grpc, resp, proxy, admin] = ["http", "grpc", "resp", "proxy", "admin"].map(&mut of_door);
    let certificates = Certificates { http, grpc, resp, proxy, admin };
    if table.entries.is_empty() {
        let message = "[tls]: it names no certificate; add cert = \"cert.pem\" and key = \"key.pem\", or leave it out";
        problems.push(Problem { place: Some(entry.name_place), message: message.to_owned() });
    }
    certificates
}

fn as_table<'a>(entry: &'a Entry, title: &str, problems: &mut Vec<Problem>) -> Option<&'a Table> {
    if let Value::Table(table) = &entry.node.value {
        return Some(table);
    }
    let kind = entry.node.value.kind();
    let message = format!("{title}: this is {kind}, not a table; write {title} and its settings below");
    problems.push(Problem { place: Some(entry.node.place), message });
    None
}

fn named(title: &str, table: &Table, known: &Known, folder: &Path, problems: &mut Vec<Problem>) -> Named {
    let mut section = Section::open(title.to_owned(), table, known, problems);
    let mut file = |setting: &str, example: &str| {
        let text = section.text(setting, example)?;
        if text.text.is_empty() {
            section.refuse(text.place, setting, &format!("\"\" is no path; name a file, such as \"{example}\""));
            return None;
        }
        // What a variable names is seen from where the process was started.
        let is_from_file = text.place.source == 0;
        let path = if is_from_file { folder.join(text.text) } else { PathBuf::from(text.text) };
        Some((path, text.place))
    };
    Named { cert: file("cert", "cert.pem"), key: file("key", "key.pem"), client_ca: file("client_ca", "ca.pem") }
}

/// The files of a table, if they are complete and, where they are looked at, can be used `now`.
fn checked(
    title: &str,
    place: Place,
    named: &Named,
    now: Option<Micros>,
    problems: &mut Vec<Problem>,
) -> Option<TlsFiles> {
    let (Some((cert, _)), Some((key, _))) = (&named.cert, &named.key) else {
        let missing = if named.cert.is_none() { "cert = \"cert.pem\"" } else { "key = \"key.pem\"" };
        let message = format!("{title}: a certificate and its key belong together; add {missing}");
        problems.push(Problem { place: Some(place), message });
        return None;
    };
    let client_ca = named.client_ca.as_ref().map(|(file, _)| file.clone());
    let files = TlsFiles { cert: cert.clone(), key: key.clone(), client_ca };
    match now.map(|now| Tls::load(files.clone(), Speaks::Http1, now)) {
        None | Some(Ok(_)) => Some(files),
        Some(Err(error)) => {
            let place = named.place(error.setting).unwrap_or(place);
            problems.push(Problem { place: Some(place), message: format!("{title} {error}") });
            None
        }
    }
}

impl Named {
    fn is_empty(&self) -> bool {
        self.cert.is_none() && self.key.is_none() && self.client_ca.is_none()
    }

    /// What it leaves out, the other says.
    fn or(self, other: &Named) -> Named {
        let other = other.clone();
        Named {
            cert: self.cert.or(other.cert),
            key: self.key.or(other.key),
            client_ca: self.client_ca.or(other.client_ca),
        }
    }

    fn place(&self, setting: &str) -> Option<Place> {
        let file = match setting {
            "cert" => &self.cert,
            "key" => &self.key,
            _ => &self.client_ca,
        };
        file.as_ref().map(|(_, place)| *place)
    }
}
