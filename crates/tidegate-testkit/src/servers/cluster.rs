//! A cluster of six: three masters, a replica each; slots that move, and masters that fail.

use super::Server;
use std::process::Command;
use std::time::{Duration, Instant};

/// A cluster that ends when it is dropped.
pub struct Cluster {
    /// Masters and replicas; a failover changes which is which.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts six nodes and waits until they serve all slots.
    pub fn start() -> Cluster {
        // The bus is at port + 10000, which must be a port as well, and free.
        let node = || loop {
            let node = Server::cluster_node();
            if node.port < 55_000 {
                return node;
            }
        };
        let nodes: Vec<Server> = (0..6).map(|_| node()).collect();
        let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]).args(&addresses).args(["--cluster-replicas", "1", "--cluster-yes"]);
        let made = command.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
        let cluster = Cluster { nodes };
        cluster.wait_until_settled();
        cluster
    }

    /// The addresses of all nodes, as a store's.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }

    /// All nodes see six, all slots served, and every replica in step with its master.
    pub fn wait_until_settled(&self) {
        let since = Instant::now();
        let is_settled = |node: &Server| {
            let info = node.command(&["CLUSTER", "INFO"]);
            let is_well = ["cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:6"];
            let role = node.command(&["INFO", "replication"]);
            is_well.iter().all(|line| info.contains(line))
                && (role.contains("role:master") || role.contains("master_link_status:up"))
        };
        while !self.nodes.iter().all(is_settled) || self.masters().len() != 3 {
            assert!(since.elapsed() < Duration::from_secs(60), "the cluster does not settle");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The nodes that say they are masters.
    pub fn masters(&self) -> Vec<&Server> {
        let is_master = |node: &&Server| node.command(&["ROLE"]).contains("master");
        self.nodes.iter().filter(is_master).collect()
    }

    /// The master that has a slot, by the word of the first that knows.
    pub fn owner(&self, slot: u16) -> &Server {
        self.masters().into_iter().find(|node| has(node, slot)).unwrap()
    }

    /// The slot of a limiter's key, which must be there. Its group is not public, so that its name is looked up.
    pub fn slot_of(&self, limiter: &str, key: &str) -> Option<u16> {
        let keys = self.masters().iter().map(|node| node.command(&["KEYS", "*"])).collect::<String>();
        let (start, end) = (format!("tg:{{{limiter}/"), format!(":s:{key}"));
        let name = keys.lines().find(|line| line.starts_with(&start) && line.ends_with(&end))?;
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", name]);
        slot.trim().trim_start_matches(':').parse().ok()
    }

    /// Moves a slot to the next master as operators' tools do, key by key, with a pause after each.
    ///
    /// The masters have it in turn, so that among three a node takes it in again after three moves at the earliest.
    /// A request that was sent there (ASK) the time before and comes only now would make a second copy of its key:
    /// Redis lets it. Let no request live through more than three moves of a slot.
    pub fn move_slot(&self, slot: u16, pause: Duration) {
        let masters = self.masters();
        let place = masters.iter().position(|node| has(node, slot)).unwrap();
        let (source, target) = (masters[place], masters[(place + 1) % masters.len()]);
        let (slot, port) = (slot.to_string(), target.port.to_string());
        let (of_source, of_target) = (id(source), id(target));
        let set = |node: &Server, words: [&str; 2]| {
            let done = node.command(&["CLUSTER", "SETSLOT", &slot, words[0], words[1]]);
            assert!(done.starts_with("+OK"), "{words:?} at {}: {done}", node.port);
        };
        set(target, ["IMPORTING", &of_source]);
        set(source, ["MIGRATING", &of_target]);
        loop {
            let keys = source.command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
            let Some(key) = keys.lines().nth(2).map(str::to_owned) else { break };
            let moved = source.command(&["MIGRATE", "127.0.0.1", &port, &key, "0", "1000"]);
            assert!(moved.starts_with("+OK") || moved.starts_with("+NOKEY"), "{key}: {moved}");
            std::thread::sleep(pause);
        }
        for node in [&[target, source], masters.as_slice()].concat() {
            set(node, ["NODE", &of_target]);
        }
        self.wait_until_agreed();
    }

    /// A slot that moves back before all know of its first move can lose its keys: its old owner's word, with an
    /// epoch that the new one has not heard of, makes that one drop them. Tools move a slot once.
    fn wait_until_agreed(&self) {
        let since = Instant::now();
        loop {
            let views: Vec<Vec<String>> = self.nodes.iter().map(view).collect();
            if views.iter().all(|view| *view == views[0]) {
                return;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "nodes do not agree: {views:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What a node knows of each: id, epoch, slots.
fn view(node: &Server) -> Vec<String> {
    let nodes = node.command(&["CLUSTER", "NODES"]);
    let known = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().filter(|word| !word.starts_with('[')).collect();
        (words.len() >= 8).then(|| [&[words[0], words[6]], &words[8..]].concat().join(" "))
    };
    let mut view: Vec<String> = nodes.lines().filter_map(known).collect();
    view.sort();
    view
}

fn id(node: &Server) -> String {
    node.command(&["CLUSTER", "MYID"]).lines().nth(1).unwrap().to_owned()
}

/// Does a master's own line list this slot?
fn has(node: &Server, slot: u16) -> bool {
    let nodes = node.command(&["CLUSTER", "NODES"]);
    let line = nodes.lines().find(|line| line.contains("myself")).unwrap();
    line.split_whitespace().skip(8).filter(|words| !words.starts_with('[')).any(|words| {
        let (first, last) = words.split_once('-').unwrap_or((words, words));
        (first.parse().unwrap()..=last.parse().unwrap()).contains(&slot)
    })
}
