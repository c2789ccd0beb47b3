//! Which server answers for a key.

use super::cluster::Cluster;
use super::dial::Login;
use super::link::{Ahead, Endpoint, Link};
use super::resp::{Reply, Writer, command};
use super::script::Script;
use super::sentinel::Sentinels;
use super::{Kind, Meaning, Redis, StoreError, Url};
use std::sync::Arc;
use tokio::time::Instant;

/// The servers of a Redis.
#[derive(Debug)]
pub(crate) enum Route {
    /// All keys are on one, or behind one.
    One(Arc<Link>),
    /// Each slot is on one of several.
    Cluster(Cluster),
}

impl Route {
    pub(crate) async fn open(url: &Url) -> Route {
        let login = Login::of(url);
        let endpoint = match url.kind {
            Kind::Cluster => return Route::Cluster(Cluster::open(url.addresses.clone(), login).await),
            Kind::Sentinel => Endpoint::Sentinels(Sentinels {
                addresses: url.addresses.clone(),
                name: url.master.clone(),
                login: Login::at_sentinels(url),
            }),
            Kind::Standalone | Kind::Twemproxy => Endpoint::Address(url.addresses.first().cloned().unwrap_or_default()),
        };
        Route::One(Arc::new(Link::open(endpoint, login).await))
    }

    pub(crate) fn answers(&self) -> bool {
        match self {
            Route::One(link) => link.answers(),
            Route::Cluster(cluster) => cluster.answers(),
        }
    }

    pub(crate) fn down(&self) -> Option<StoreError> {
        match self {
            Route::One(link) => link.down(),
            Route::Cluster(cluster) => cluster.down(),
        }
    }

    /// Every server that holds keys.
    fn links(&self) -> Vec<Arc<Link>> {
        match self {
            Route::One(link) => vec![Arc::clone(link)],
            Route::Cluster(cluster) => cluster.links(),
        }
    }

    /// Sends a command to the server of this key, and waits for its reply.
    async fn ask(&self, key: &[u8], by: Instant, write: &impl Fn(&mut Vec<u8>)) -> Result<Reply, StoreError> {
        match self {
            Route::One(link) => link.receive(link.send(Ahead::Nothing, by, write)?, by).await,
            Route::Cluster(cluster) => cluster.ask(key, by, write).await,
        }
    }
}

impl Redis {
    /// Runs a script where its first key is: by its name, and whole if the server does not know it.
    pub(super) async fn run(
        &self,
        by: Instant,
        script: &Script,
        keys: &[Vec<u8>],
        count: usize,
        write: impl Fn(&mut Writer<'_>),
    ) -> Result<Reply, StoreError> {
        let first = keys.first().map_or(&[][..], Vec::as_slice);
        let written = |verb: &[u8], what: &[u8], bytes: &mut Vec<u8>| {
            let mut writer = Writer(bytes);
            writer.start(3 + keys.len() + count);
            writer.part(verb);
            writer.part(what);
            writer.number(keys.len() as u64);
            keys.iter().for_each(|key| writer.part(key));
            write(&mut writer);
        };
        let by_name = |bytes: &mut Vec<u8>| written(b"EVALSHA", script.sha.as_bytes(), bytes);
        let answered = match self.route.ask(first, by, &by_name).await {
            Err(StoreError::Refused { meaning: Meaning::NoScript, .. }) => {
                let whole = |bytes: &mut Vec<u8>| written(b"EVAL", script.source.as_bytes(), bytes);
                self.route.ask(first, by, &whole).await
            }
            answered => answered,
        };
        answered.map_err(|error| naming(error, keys))
    }

    /// Sends a command about a key, and waits for its reply.
    pub(super) async fn call(&self, key: &[u8], parts: &[&[u8]], by: Instant) -> Result<Reply, StoreError> {
        let answered = self.route.ask(key, by, &|bytes: &mut Vec<u8>| bytes.extend(command(parts))).await;
        answered.map_err(|error| naming(error, &[key.to_vec()]))
    }

    /// Sends a command to every server, and waits for all replies.
    pub(super) async fn call_all(&self, parts: &[&[u8]], by: Instant) -> Result<Vec<Reply>, StoreError> {
        let links = self.route.links();
        let call = async |link: &Arc<Link>| {
            let sent = link.send(Ahead::Nothing, by, |bytes| bytes.extend(command(parts)))?;
            link.receive(sent, by).await
        };
        futures_util::future::try_join_all(links.iter().map(call)).await
    }
}

/// A refusal of what lies at a key, with the keys that were asked about: the server does not say which it is.
fn naming(error: StoreError, keys: &[Vec<u8>]) -> StoreError {
    match error {
        StoreError::Refused { address, meaning: meaning @ Meaning::WrongType, text } => {
            let mut names: Vec<String> = keys.iter().map(|key| format!("\"{}\"", key.escape_ascii())).collect();
            names.dedup();
            // What follows the sentence is the script's name and line.
            let text = text.split(" script:").next().unwrap_or_default();
            StoreError::Refused { address, meaning, text: format!("{text}, at the key {}", names.join(" or ")) }
        }
        error => error,
    }
}
