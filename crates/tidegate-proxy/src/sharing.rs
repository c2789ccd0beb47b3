//! This process's part of the limit, when replicas share it.
//!
//! A task keeps the membership and tells the queue what is promised. A request looks at the queue only: there
//! is no store on its path.

use crate::metrics::{push, seconds};
use crate::reply::LIMITER;
use crate::site::Site;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate::{Membership, Micros, Seen, Sharing};
use tidegate_core::replicas::Schedule;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// What was last seen of the other replicas.
#[derive(Default)]
pub(crate) struct Others(Mutex<Seen>);

/// How long taking leave may take.
const FAREWELL: Duration = Duration::from_secs(1);

impl Others {
    /// Why the register cannot be read, if it cannot.
    pub(crate) fn error(&self) -> Option<String> {
        self.seen().error.clone()
    }

    fn note(&self, seen: &Seen) {
        let mut known = self.seen();
        match (&known.error, &seen.error) {
            (None, Some(error)) => warn!("{error}; what is promised is kept to, and no more"),
            (Some(_), None) => info!("the register of the replicas is read again"),
            _ => {}
        }
        if known.members != seen.members {
            info!("replicas: {}; this one is {}", seen.members.join(" "), seen.me);
        }
        known.clone_from(seen);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this replica holds, how many members there are, and the horizon.
    fn figures(&self, part: Option<u32>) -> [(&'static str, &'static str, u64); 4] {
        let seen = self.seen();
        [
            ("share", "Starts per key that this replica holds in the current window.", part.unwrap_or(0).into()),
            ("promised", "1: the current window is promised; 0: nothing may start.", part.is_some().into()),
            ("replicas", "Replicas that share the limit, by what was last seen.", seen.members.len() as u64),
            ("horizon", "The first window, by number, that is not promised.", seen.horizon),
        ]
    }

    /// How long ago the register was last read.
    fn age(&self, now: Micros) -> Micros {
        now.saturating_sub(self.seen().at)
    }

    /// Who they are, as members of a JSON object.
    fn push_names(&self, text: &mut String) {
        let seen = self.seen();
        let members: Vec<String> = seen.members.iter().map(|member| format!("\"{member}\"")).collect();
        let _ = write!(text, ",\"replica\":\"{}\",\"members\":[{}]", seen.me, members.join(","));
    }
}

/// What this replica holds and who the others are, for Prometheus.
pub(crate) fn push_metrics(site: &Site, page: &mut String) {
    if site.settings.sharing.is_some() {
        for (name, help, value) in site.others.figures(site.queue.part()) {
            push(page, &format!("tidegate_proxy_{name}"), "gauge", help, value);
        }
        let age = seconds(site.others.age(site.clock.now()).get());
        let name = "tidegate_proxy_seen_seconds";
        let help = format!("# HELP {name} How long ago the register was last read.\n# TYPE {name} gauge");
        let _ = writeln!(page, "{help}\n{name}{{limiter=\"{LIMITER}\"}} {age}");
    }
}

/// The same in the JSON summary, with names.
pub(crate) fn push_json(site: &Site, page: &mut String) {
    if site.settings.sharing.is_some() {
        // The object's own brace.
        page.truncate(page.trim_end().len() - 1);
        for (name, _, value) in site.others.figures(site.queue.part()) {
            let _ = write!(page, ",\"{name}\":{value}");
        }
        let _ = write!(page, ",\"seen_us\":{}", site.others.age(site.clock.now()).get());
        site.others.push_names(page);
        page.push_str("}\n");
    }
}

/// Keeps this process's part until the proxy stops.
pub(crate) async fn share(site: Arc<Site>, sharing: Sharing) {
    let (url, name) = match sharing {
        Sharing::Fixed(..) => return,
        Sharing::Through(url, name) => (url, name),
    };
    while !site.is_stopping() {
        let period = site.rules.load().policy.limit.period();
        let clock = site.clock.clone();
        let membership = Membership::open(url.clone(), &name, period, move || clock.now()).await;
        renew(&site, membership, period).await;
    }
}

/// Until the proxy stops, or its windows get another length.
async fn renew(site: &Site, mut membership: Membership, period: Micros) {
    loop {
        membership.renew().await;
        if site.is_stopping() || site.rules.load().policy.limit.period() != period {
            break;
        }
        site.queue.set_parts(membership.schedule().clone());
        site.others.note(membership.seen());
        tokio::select! {
            () = sleep(membership.beat()) => {}
            () = site.stopped() => {}
        }
    }
    let _ = timeout(FAREWELL, membership.leave()).await;
}

/// What is known before anything was read.
pub(crate) fn at_first(sharing: &Sharing) -> Schedule {
    match sharing {
        Sharing::Fixed(rank, of) => Schedule::fixed(*rank, *of),
        Sharing::Through(..) => Schedule::NONE,
    }
}
