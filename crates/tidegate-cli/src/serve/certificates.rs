//! The certificates of the doors while the server runs: read at the start, again when a file has changed or on SIGHUP, and
//! logged before they expire.
//!
//! A certificate and its key are two files, and are rarely replaced in one step. So a pair that does not fit is not complained of
//! until its files have stood still for one look; until then, and if it stays so, the old pair is in use.

use crate::calendar::date_and_time;
use crate::config::Certificates as Config;
use crate::watch::Watch;
use std::sync::Arc;
use tidegate::Micros;
use tidegate_doors::listener::{Speaks, Tls, TlsFiles};
use tracing::{error, info, warn};

/// The certificates of all doors.
pub(crate) struct Certificates {
    doors: Vec<Door>,
}

struct Door {
    name: &'static str,
    tls: Arc<Tls>,
    files: TlsFiles,
    watches: Vec<Watch>,
    /// The files have changed, and could not be used when they were last read.
    is_refused: bool,
    /// When its end was last logged.
    warned: Option<Micros>,
}

/// From so long before a certificate's end on it is logged, once a day.
const WARN_BEFORE: Micros = Micros::from_secs(14 * DAY_SECONDS);
const WARN_EVERY: Micros = Micros::from_secs(DAY_SECONDS);
const DAY_SECONDS: u64 = 86_400;

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// A message for stderr.
    pub(crate) fn open(config: &Config, now: Micros) -> Result<Certificates, String> {
        let mut doors = Vec::new();
        for (name, files, speaks) in each(config) {
            let Some(files) = files else { continue };
            // Made before the files are read, so that a change in between is seen.
            let watches = watches(files);
            let tls = Tls::load(files.clone(), speaks, now).map_err(|error| format!("error: [tls.{name}] {error}"))?;
            let (tls, files) = (Arc::new(tls), files.clone());
            doors.push(Door { name, tls, files, watches, is_refused: false, warned: None });
        }
        Ok(Certificates { doors })
    }

    /// Those of a door.
    pub(crate) fn of(&self, name: &str) -> Option<Arc<Tls>> {
        self.doors.iter().find(|door| door.name == name).map(|door| Arc::clone(&door.tls))
    }

    /// Reads the files that have changed, and logs certificates that will expire. To be called every second or so.
    pub(crate) fn look(&mut self, now: Micros) {
        for door in &mut self.doors {
            let mut has_changed = false;
            door.watches.iter_mut().for_each(|watch| has_changed |= watch.has_changed());
            if has_changed || door.is_refused {
                door.read(now, if has_changed { Complaint::Later } else { Complaint::Now });
            }
            door.warn(now);
        }
    }

    /// Reads all files again, where the configuration says that they are now.
    pub(crate) fn reload(&mut self, config: &Config, now: Micros) {
        for (name, files, _) in each(config) {
            match (self.doors.iter_mut().find(|door| door.name == name), files) {
                (Some(door), Some(files)) => {
                    (door.files, door.watches) = (files.clone(), watches(files));
                    door.read(now, Complaint::Now);
                }
                (None, None) => {}
                _ => warn!("[tls] for {name} has come or gone; it takes effect at the next start"),
            }
        }
    }

    /// The same, where the configuration is as it was.
    pub(crate) fn read_again(&mut self, now: Micros) {
        self.doors.iter_mut().for_each(|door| door.read(now, Complaint::Now));
    }
}

/// The doors, what each has and what each speaks.
fn each(config: &Config) -> [(&'static str, &Option<TlsFiles>, Speaks); 5] {
    [
        ("http", &config.http, Speaks::Http1And2),
        ("grpc", &config.grpc, Speaks::Http2),
        ("resp", &config.resp, Speaks::Resp),
        ("proxy", &config.proxy, Speaks::Http1And2),
        ("admin", &config.admin, Speaks::Http1),
    ]
}

fn watches(files: &TlsFiles) -> Vec<Watch> {
    let all = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
    all.into_iter().flatten().map(|file| Watch::new(file.clone())).collect()
}

/// When files that cannot be used are logged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Complaint {
    Now,
    /// Somebody may be in the middle of replacing them.
    Later,
}

impl Door {
    fn read(&mut self, now: Micros, complaint: Complaint) {
        let name = self.name;
        match self.tls.reload(self.files.clone(), now) {
            Ok(()) => {
                (self.is_refused, self.warned) = (false, None);
                info!("certificate of {name}: {} is in use, until {}", self.files.cert.display(), self.until());
            }
            Err(problem) if complaint == Complaint::Now => {
                self.is_refused = false;
                error!("[tls.{name}] {problem}; the certificate that was in use stays, until {}", self.until());
            }
            Err(_) => self.is_refused = true,
        }
    }

    fn warn(&mut self, now: Micros) {
        let left = self.tls.expires().saturating_sub(now);
        let is_told = self.warned.is_some_and(|warned| now < warned.saturating_add(WARN_EVERY));
        if left > WARN_BEFORE || is_told {
            return;
        }
        self.warned = Some(now);
        let (name, file) = (self.name, self.files.cert.display());
        if left.is_zero() {
            error!("certificate of {name}: {file} expired on {}; clients refuse it: renew it", self.until());
        } else {
            let days = left.get() / 1_000_000 / DAY_SECONDS;
            warn!("certificate of {name}: {file} expires on {}, in {days} days; renew it", self.until());
        }
    }

    fn until(&self) -> String {
        let (date, time) = date_and_time(self.tls.expires());
        format!("{date} {time} UTC")
    }
}
