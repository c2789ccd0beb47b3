//! Access while the server runs: the rules in force, replaced when the configuration or the tokens file changes.
//!
//! Invariant: what is put in force never opens a door that listens beyond loopback, whatever a new file says of addresses that take
//! effect at the next start.

use super::audit;
use crate::config::{self, Config, Listening, TokensAt};
use crate::human::plural;
use crate::watch::Watch;
use std::sync::Arc;
use tidegate_doors::access::{Access, Rules};
use tracing::{error, info, warn};

/// The rules of all doors, and where their tokens come from.
pub(crate) struct AccessReloader {
    access: Arc<Access>,
    /// Where the doors listen.
    listening: Listening,
    tokens: Option<TokensAt>,
    watch: Option<Watch>,
    /// What became of tokens since it was last asked, for the audit.
    changed: Option<String>,
    /// What the log has said is open.
    open: Vec<String>,
}

impl AccessReloader {
    /// The rules that the process starts with. The log says what is open, now and after every change.
    pub(crate) fn start(config: &Config, listening: Listening) -> AccessReloader {
        let access = Arc::new(Access::new(config.access.rules.clone()));
        let mut reloader =
            AccessReloader { access, listening, tokens: None, watch: None, changed: None, open: Vec::new() };
        reloader.tell_open(config);
        reloader.follow(config);
        reloader
    }

    /// For the doors.
    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// Puts a new configuration's rules in force, unless a door that listens now would be exposed; whether it did.
    pub(crate) fn replace(&mut self, config: &Config) -> bool {
        let exposed = config::exposed(config, &self.listening);
        if !exposed.is_empty() {
            let why: Vec<String> = exposed.into_iter().map(|(_, message)| message).collect();
            error!("[access] and [udp] allow stay as they were until the next start: {}", why.join("; "));
            return false;
        }
        if *self.access.rules() != config.access.rules {
            info!("access has changed: {}", told(&config.access.rules));
            self.put_in_force(config.access.rules.clone());
        }
        self.tell_open(config);
        self.follow(config);
        true
    }

    /// Logs what is open now and was not before.
    fn tell_open(&mut self, config: &Config) {
        let open = config::told_open(config, &self.listening);
        for new in open.iter().filter(|told| !self.open.contains(told)) {
            warn!("{new}");
        }
        self.open = open;
    }

    /// Reads the tokens file again if it has changed. A file that is refused changes nothing.
    pub(crate) fn look(&mut self) {
        let Some(TokensAt::File(file)) = self.tokens.clone() else { return };
        if !self.watch.as_mut().is_some_and(Watch::has_changed) {
            return;
        }
        match config::load_tokens(&file) {
            Ok(tokens) => {
                let rules = self.access.rules();
                if rules.tokens.as_ref() != Some(&tokens) {
                    let rules = Rules { tokens: Some(tokens), ..(*rules).clone() };
                    info!("reloaded {}: {}", file.display(), told(&rules));
                    self.put_in_force(rules);
                }
            }
            Err(problems) => error!("{} is refused, and the tokens stay as they were:\n{problems}", file.display()),
        }
    }

    fn put_in_force(&mut self, rules: Rules) {
        let changed = audit::tokens_difference(self.access.rules().tokens.as_ref(), rules.tokens.as_ref());
        self.changed = match (self.changed.take(), changed) {
            (Some(before), Some(changed)) => Some(format!("{before}, {changed}")),
            (before, changed) => before.or(changed),
        };
        self.access.replace(rules);
    }

    /// The tokens that came, went or changed since this was last asked.
    pub(crate) fn take_changes(&mut self) -> Option<String> {
        self.changed.take()
    }

    fn follow(&mut self, config: &Config) {
        self.tokens = config.access.tokens.clone();
        self.watch = match &self.tokens {
            // It was read before it is watched: the first look reads it once more.
            Some(TokensAt::File(file)) => Some(Watch::unseen(file.clone())),
            _ => None,
        };
    }
}

/// `2 tokens, 1 certificate`.
fn told(rules: &Rules) -> String {
    rules.tokens.as_ref().map_or("no tokens".to_owned(), |tokens| {
        let (tokens, certificates) = (tokens.tokens().len() as u64, tokens.certificates().len() as u64);
        match certificates {
            0 => plural(tokens, "token"),
            certificates => format!("{}, {}", plural(tokens, "token"), plural(certificates, "certificate")),
        }
    })
}
