//! All members of an etcd: which one is asked, and when the next.
//!
//! Any of them answers for all. One is asked for as long as it answers; a request goes to another only if it
//! certainly changed nothing at the one before.

use super::error::Then;
use super::json::Json;
use super::member::{Answer, Ask, Member};
use super::url::Url;
use crate::remote::connect_time::CONNECT_TIME_MIN;
use crate::remote::{StoreError, unreachable};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The members, each with its connections.
#[derive(Debug)]
pub(crate) struct Members {
    members: Vec<Arc<Member>>,
    /// The one that is asked first.
    first: AtomicUsize,
}

impl Members {
    pub(crate) fn of(url: &Url) -> Members {
        let member = |address: &String| Arc::new(Member::new(address.clone(), url.tls.clone()));
        Members { members: url.addresses.iter().map(member).collect(), first: AtomicUsize::new(0) }
    }

    /// Looks for each member, and again whenever it is lost, as long as these tasks run. Returns when one has
    /// answered or all have been tried.
    pub(crate) async fn tend(&self) -> Vec<JoinHandle<()>> {
        let tried = watch::Sender::new(0);
        let mut trying = tried.subscribe();
        let tend = |member: &Arc<Member>| {
            let (member, tried) = (Arc::clone(member), tried.clone());
            tokio::spawn(async move {
                let answers = member.probe(CONNECT_TIME_MIN).await == Some(true);
                member.breaker.set(answers);
                tried.send_modify(|tried| *tried += 1);
                match member.breaker.probe(|within| member.probe(within)).await {}
            })
        };
        let tasks = self.members.iter().map(tend).collect();
        let _ = trying.wait_for(|tried| *tried == self.members.len() || self.answers()).await;
        tasks
    }

    pub(crate) fn answers(&self) -> bool {
        self.members.iter().any(|member| member.breaker.answers())
    }

    /// Why none can be asked, if none can.
    pub(crate) fn down(&self) -> Option<StoreError> {
        if self.answers() { None } else { self.in_turn().find_map(|(_, member)| member.down()) }
    }

    /// Asks one member, and the next as long as nothing was changed.
    pub(crate) async fn ask(
        &self,
        path: &'static str,
        body: &Bytes,
        token: Option<Arc<str>>,
        by: Instant,
    ) -> Result<Json, (StoreError, Then)> {
        let no_member = || unreachable(&self.addresses(), "it has no members".to_owned());
        let mut last = (self.down().unwrap_or_else(no_member), Then::Tell);
        for (index, member) in self.in_turn().filter(|(_, member)| member.breaker.answers()) {
            let answer: Answer = member.ask(&Ask { path, body, token: token.clone() }, by).await;
            match answer {
                Err((error, Then::AskAnother)) => last = (error, Then::Tell),
                answer => {
                    self.first.store(index, Relaxed);
                    return answer;
                }
            }
        }
        Err(last)
    }

    /// Every member once, beginning with the one that is asked first.
    fn in_turn(&self) -> impl Iterator<Item = (usize, &Member)> {
        let (len, first) = (self.members.len(), self.first.load(Relaxed));
        (0..len).map(move |step| (first + step) % len).map(|index| (index, &*self.members[index]))
    }

    pub(crate) fn addresses(&self) -> String {
        self.members.iter().map(|member| member.address.as_str()).collect::<Vec<_>>().join(",")
    }
}
