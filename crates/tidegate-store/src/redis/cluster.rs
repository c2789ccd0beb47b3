//! A Redis Cluster: which node answers for a slot, and a link to each.
//!
//! The map is asked for at start from any seed, and again whenever something is wrong with it: a node that
//! redirects, refuses or is lost. Single redirections are learned at once. Every script of ours has one key
//! here, so that a slot that moves key by key is no obstacle: its node has the key and answers, or has it
//! not and sends us on (ASK), and no key is ever at two, unless a redirection is followed too late.
//! Invariants: what was redirected was not executed and may be sent again; anything else may not. Nothing is
//! waited for, or sent again, past the deadline.

use super::dial::{Login, address_of, dial, talk};
use super::link::{Ahead, Endpoint, Link};
use super::resp::{Reply, command};
use super::slot::{SLOTS, slot};
use crate::remote::breaker::jittered;
use crate::remote::connect_time::CONNECT_TIME_MIN;
use crate::remote::{Meaning, StoreError, unreachable, unusable};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A cluster that is kept connected until this is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

struct Shared {
    seeds: Vec<String>,
    login: Login,
    map: Mutex<Map>,
    /// The map is to be asked for.
    wake: Notify,
    /// Maps that were asked for so far.
    asked: watch::Sender<u64>,
}

/// Which node answers for which slot.
struct Map {
    /// For each slot the place of its node below, or `NOBODY`.
    owners: Vec<u16>,
    nodes: Vec<Node>,
    /// Nodes that serve no slot, but know which node does.
    replicas: Vec<String>,
    /// Why there is no map, if there is none.
    error: Option<StoreError>,
}

#[derive(Clone)]
struct Node {
    address: String,
    link: Arc<Link>,
}

const NOBODY: u16 = u16::MAX;
/// How often the map is asked for when all is well, and when something is not.
const ASK_EVERY: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Nodes that are asked for the map at once; the first to answer is heard.
const ASKED_MAX: usize = 16;
/// Redirections without a pause between them; and the pause from then on.
const REDIRECTIONS_AT_ONCE: u32 = 3;
const PAUSE: Duration = Duration::from_millis(2);
/// A redirection of a single key (ASK) is followed for so long after its question was sent; later the owner is asked
/// again. By then the slot may have been moved back and be on its way once more, when the node that takes it in would
/// make a second copy of a key that is not there yet.
const REDIRECTION_AGE_MAX: Duration = Duration::from_secs(1);

impl Cluster {
    /// Asks the seeds and connects, or goes on trying in the background.
    pub(crate) async fn open(seeds: Vec<String>, login: Login) -> Cluster {
        let map = Map { owners: vec![NOBODY; SLOTS], nodes: Vec::new(), replicas: Vec::new(), error: None };
        let (map, wake, asked) = (Mutex::new(map), Notify::new(), watch::Sender::new(0));
        let shared = Arc::new(Shared { seeds, login, map, wake, asked });
        let keeper = tokio::spawn(keep(Arc::clone(&shared)));
        let _ = shared.asked.subscribe().wait_for(|asked| *asked > 0).await;
        let by = Instant::now() + CONNECT_TIME_MIN;
        futures_util::future::join_all(shared.links().iter().map(|link| link.tried(by))).await;
        Cluster { shared, keeper }
    }

    /// False: no node can be asked.
    pub(crate) fn answers(&self) -> bool {
        self.shared.map().nodes.iter().any(|node| node.link.answers())
    }

    /// Why some keys cannot be asked for, if there are such.
    pub(crate) fn down(&self) -> Option<StoreError> {
        let map = self.shared.map();
        map.error.clone().or_else(|| map.nodes.iter().find_map(|node| node.link.down()))
    }

    /// All nodes that answer for something.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.shared.links()
    }

    /// Sends a command to the node that answers for this key, wherever it is by now, and waits for its reply.
    pub(crate) async fn ask(
        &self,
        key: &[u8],
        by: Instant,
        write: &impl Fn(&mut Vec<u8>),
    ) -> Result<Reply, StoreError> {
        let slot = slot(key);
        let mut redirected: Option<(Arc<Link>, Instant)> = None;
        for turn in 0.. {
            let (link, ahead) = match redirected.take() {
                Some((link, asked_at)) if asked_at.elapsed() <= REDIRECTION_AGE_MAX => (link, Ahead::Asking),
                _ => (self.shared.tried_owner(slot, by).await?, Ahead::Nothing),
            };
            let asked_at = Instant::now();
            let answered = match link.send(ahead, by, write) {
                Ok(sent) => link.receive(sent, by).await,
                Err(error) => Err(error),
            };
            let Err(error) = answered else { return answered };
            let next = Next::after(&error);
            let at_once = turn < REDIRECTIONS_AT_ONCE && next != Next::Again;
            match next {
                Next::Owner(address) => self.shared.learn(slot, &address),
                Next::Once(address) => {
                    let link = self.shared.link_to(&address);
                    link.tried(by).await;
                    redirected = Some((link, asked_at));
                }
                Next::Again => {}
                Next::Stop => {
                    self.shared.wake.notify_one();
                    return Err(error);
                }
            }
            let soon = Instant::now() + if at_once { Duration::ZERO } else { jittered(PAUSE) };
            if soon >= by {
                return Err(error);
            }
            if !at_once {
                tokio::time::sleep_until(soon).await;
            }
        }
        unreachable!("the loop ends with an answer or with the deadline")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// What an error of a node asks us to do.
#[derive(PartialEq, Eq, Debug)]
enum Next {
    /// This node answers for the slot now.
    Owner(String),
    /// This node answers for this key, this time.
    Once(String),
    /// The same once more.
    Again,
    /// It is an error.
    Stop,
}

impl Next {
    fn after(error: &StoreError) -> Next {
        let StoreError::Refused { address, meaning, text } = error else { return Next::Stop };
        match (meaning, redirection(text, address)) {
            (Meaning::Moved, Some(there)) => Next::Owner(there),
            (Meaning::Ask, Some(there)) => Next::Once(there),
            (Meaning::TryAgain, _) => Next::Again,
            _ => Next::Stop,
        }
    }
}

/// `MOVED 3999 127.0.0.1:6381`; a node that does not know its host leaves it out: it is the one that we asked.
fn redirection(text: &str, asked: &str) -> Option<String> {
    let (host, port) = text.split(' ').nth(2)?.rsplit_once(':')?;
    Some(located(host, port, asked))
}

fn located(host: &str, port: &str, asked: &str) -> String {
    match host {
        "" | "?" => asked.rsplit_once(':').map_or_else(|| asked.to_owned(), |(host, _)| format!("{host}:{port}")),
        host => address_of(host, port),
    }
}

impl Shared {
    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.map().nodes.iter().map(|node| Arc::clone(&node.link)).collect()
    }

    fn owner(&self, slot: u16) -> Result<Arc<Link>, StoreError> {
        let map = self.map();
        let node = map.owners.get(usize::from(slot)).and_then(|owner| map.nodes.get(usize::from(*owner)));
        node.map(|node| Arc::clone(&node.link)).ok_or_else(|| {
            let no_node = || {
                let why = format!("no node of the cluster has slot {slot}; look at CLUSTER SLOTS");
                unusable(&self.seeds.join(","), why)
            };
            map.error.clone().unwrap_or_else(no_node)
        })
    }

    /// The same once it has been tried to connect it.
    async fn tried_owner(&self, slot: u16, by: Instant) -> Result<Arc<Link>, StoreError> {
        let link = self.owner(slot)?;
        link.tried(by).await;
        Ok(link)
    }

    /// A node that was named in a redirection.
    fn link_to(&self, address: &str) -> Arc<Link> {
        let mut map = self.map();
        let place = self.place_of(&mut map, address);
        Arc::clone(&map.nodes[place].link)
    }

    fn learn(&self, slot: u16, address: &str) {
        let mut map = self.map();
        let place = self.place_of(&mut map, address);
        map.owners[usize::from(slot)] = u16::try_from(place).unwrap_or(NOBODY);
        self.wake.notify_one();
    }

    /// The place of a node; one that was not known is connected.
    fn place_of(&self, map: &mut Map, address: &str) -> usize {
        let found = map.nodes.iter().position(|node| node.address == address);
        found.unwrap_or_else(|| {
            map.nodes.push(self.node(address));
            map.nodes.len() - 1
        })
    }

    fn node(&self, address: &str) -> Node {
        let link = Link::start(Endpoint::Address(address.to_owned()), self.login.clone());
        Node { address: address.to_owned(), link: Arc::new(link) }
    }

    /// Goes over to a new map; nodes that have no slots any more are let go.
    fn adopt(&self, slots: &SlotMap) {
        let mut map = self.map();
        let before = std::mem::take(&mut map.nodes);
        map.owners.fill(NOBODY);
        map.replicas.clone_from(&slots.replicas);
        map.error = None;
        for (range, address) in &slots.ranges {
            if !map.nodes.iter().any(|node| node.address == *address) {
                let known = before.iter().find(|node| node.address == *address).cloned();
                map.nodes.push(known.unwrap_or_else(|| self.node(address)));
            }
            let place = self.place_of(&mut map, address);
            map.owners[range.clone()].fill(u16::try_from(place).unwrap_or(NOBODY));
        }
    }

    /// Is there a slot without a node, or a node that does not answer?
    fn is_troubled(&self) -> bool {
        let map = self.map();
        map.owners.contains(&NOBODY) || map.nodes.iter().any(|node| !node.link.answers())
    }

    /// All nodes that may know the slot map.
    fn known(&self) -> Vec<String> {
        let map = self.map();
        let nodes = map.nodes.iter().map(|node| &node.address);
        let mut known: Vec<String> = Vec::new();
        for address in nodes.chain(&map.replicas).chain(&self.seeds) {
            if known.len() < ASKED_MAX && !known.contains(address) {
                known.push(address.clone());
            }
        }
        known
    }
}

/// Keeps the map up to date.
async fn keep(shared: Arc<Shared>) {
    loop {
        match discover(&shared).await {
            Ok(slots) => shared.adopt(&slots),
            // An old map is better than none.
            Err(error) if shared.map().nodes.is_empty() => shared.map().error = Some(error),
            Err(_) => {}
        }
        shared.asked.send_modify(|asked| *asked += 1);
        tokio::time::sleep(jittered(ASK_AGAIN)).await;
        if !shared.is_troubled() {
            let _ = tokio::time::timeout(jittered(ASK_EVERY), shared.wake.notified()).await;
        }
    }
}

/// What a node says of the cluster.
#[derive(Debug, Default)]
struct SlotMap {
    /// Slots, and the address of the master that has them.
    ranges: Vec<(std::ops::Range<usize>, String)>,
    replicas: Vec<String>,
}

async fn discover(shared: &Shared) -> Result<SlotMap, StoreError> {
    let known = shared.known();
    let mut asked: FuturesUnordered<_> = known.iter().map(|address| ask_node(address, &shared.login)).collect();
    let mut last = unreachable(&shared.seeds.join(","), "no node was asked".to_owned());
    while let Some(slots) = asked.next().await {
        match slots {
            Ok(slots) => return Ok(slots),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn ask_node(address: &str, login: &Login) -> Result<SlotMap, StoreError> {
    let mut stream = dial(address, login).await?;
    let question = [command(&[b"CLUSTER", b"SLOTS"])];
    let slots = tokio::time::timeout(login.time.get(), talk(&mut stream, address, &question)).await;
    let slots =
        slots.unwrap_or_else(|_| Err(unreachable(address, "it did not say which node has which slots".to_owned())))?;
    let garbled = || StoreError::Garbled { address: address.to_owned(), why: "not a map of slots".to_owned() };
    match slots.first() {
        Some(Reply::List(ranges)) if !ranges.is_empty() => SlotMap::parse(ranges, address).ok_or_else(garbled),
        _ => Err(unusable(address, "it knows of no node that has slots; look at CLUSTER SLOTS".to_owned())),
    }
}

impl SlotMap {
    /// For each range: first slot, last slot, master, replicas; of each its host, port and more.
    fn parse(ranges: &[Reply], asked: &str) -> Option<SlotMap> {
        let mut slots = SlotMap::default();
        for range in ranges {
            let Reply::List(parts) = range else { return None };
            let [Reply::Int(first), Reply::Int(last), master, replicas @ ..] = parts.as_slice() else { return None };
            let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
            if first > last || last >= SLOTS {
                return None;
            }
            slots.ranges.push((first..last + 1, node_address(master, asked)?));
            for replica in replicas {
                slots.replicas.push(node_address(replica, asked)?);
            }
        }
        Some(slots)
    }
}

fn node_address(node: &Reply, asked: &str) -> Option<String> {
    let Reply::List(parts) = node else { return None };
    let [host, Reply::Int(port), ..] = parts.as_slice() else { return None };
    let host = match host {
        Reply::Text(host) => std::str::from_utf8(host).ok()?,
        _ => "",
    };
    Some(located(host, &port.to_string(), asked))
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> StoreError {
        StoreError::Refused {
            address: "10.0.0.1:7000".to_owned(),
            meaning: crate::redis::error::meaning_of(text).0,
            text: text.to_owned(),
        }
    }

    #[test]
    fn f3_redirections_name_the_node_to_ask() {
        for (text, next) in [
            ("MOVED 3999 127.0.0.1:6381", Next::Owner("127.0.0.1:6381".to_owned())),
            ("MOVED 3999 :6381", Next::Owner("10.0.0.1:6381".to_owned())),
            ("MOVED 3999 ?:6381", Next::Owner("10.0.0.1:6381".to_owned())),
            ("ASK 3999 ::1:6381", Next::Once("[::1]:6381".to_owned())),
            ("ASK 3999", Next::Stop),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Next::Again),
            ("CLUSTERDOWN Hash slot not served", Next::Stop),
            ("OOM command not allowed", Next::Stop),
        ] {
            assert_eq!(Next::after(&refused(text)), next, "{text}");
        }
        let lost = StoreError::Ambiguous { address: String::new(), why: String::new() };
        assert_eq!(Next::after(&lost), Next::Stop, "A7: what may have been counted is not sent again");
    }

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        let node = || Reply::List(vec![Reply::Text(b"h".to_vec()), Reply::Int(1), Reply::Text(b"id".to_vec())]);
        let range = |first, last| Reply::List(vec![Reply::Int(first), Reply::Int(last), node(), node()]);
        let slots = SlotMap::parse(&[range(0, 16_383)], "a:1").unwrap();
        assert_eq!((slots.ranges, slots.replicas), (vec![(0..SLOTS, "h:1".to_owned())], vec!["h:1".to_owned()]));
        for (first, last) in [(5, 4), (0, 16_384), (-1, 3)] {
            assert!(SlotMap::parse(&[range(first, last)], "a:1").is_none(), "{first} {last}");
        }
        assert!(SlotMap::parse(&[Reply::Nil], "a:1").is_none());
    }
}
