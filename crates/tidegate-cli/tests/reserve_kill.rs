//! R1: `kill -9` of servers while clients reserve, commit and cancel. What a client was told has happened, what it was not told has happened
//! once at most, and another server on the same Redis ends what the dead one left open.
//!
//! `TIDEGATE_KILLS=100 cargo nextest run -p tidegate-cli --test reserve_kill` for the long run.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tidegate_testkit::http::exchange;
use tidegate_testkit::{Random, number, servers};

const CLIENTS: u64 = 4;
/// Of a reservation.
const COST_MAX: u64 = 20;
const LIMIT: u64 = 1_000_000;
const ALGORITHMS: [&str; 4] = ["token-bucket", "fixed-window", "sliding-log", "buckets"];

/// Limits that nothing drains from while the test runs, and nobody meets.
fn limiters() -> String {
    let one = |name: &&str| {
        format!(
            "[[limiter]]\nname = \"{name}\"\nalgorithm = \"{name}\"\nlimits = [\"{LIMIT} per 365d\"]\n{}",
            grid(name)
        )
    };
    ALGORITHMS.iter().map(one).collect()
}

fn grid(name: &str) -> &'static str {
    if name == "buckets" { "resolution = \"1d\"\nhistory = \"365d\"\n" } else { "" }
}

/// What one client knows of its key: the cost that is certain, and what may have been charged or not, or given back or not.
struct Client {
    limiter: &'static str,
    key: String,
    dice: Random,
    open: Vec<(String, u64)>,
    least: u64,
    most: u64,
    /// The most that it ever was.
    peak: u64,
    ended: Vec<String>,
}

impl Client {
    fn new(number: u64, seed: u64) -> Client {
        let limiter = ALGORITHMS[usize::try_from(number).unwrap() % ALGORITHMS.len()];
        let (key, dice) = (format!("client-{number}"), Random(seed << 8 | number));
        Client { limiter, key, dice, open: Vec::new(), least: 0, most: 0, peak: 0, ended: Vec::new() }
    }

    /// Asks until the server is dead or it is told to stop.
    fn work(&mut self, url: &str, stop: &AtomicBool) {
        let Ok(mut wire) = TcpStream::connect(url.trim_start_matches("http://")) else { return };
        while !stop.load(Relaxed) {
            let goes_on = match self.dice.below(5) {
                0..2 => self.reserve(&mut wire),
                _ if self.open.is_empty() => self.reserve(&mut wire),
                _ => self.end(&mut wire),
            };
            if !goes_on {
                return;
            }
        }
    }

    fn reserve(&mut self, wire: &mut TcpStream) -> bool {
        let cost = 1 + self.dice.below(COST_MAX);
        let body =
            format!("{{\"limiter\":\"{}\",\"key\":\"{}\",\"cost\":{cost},\"for\":\"1h\"}}", self.limiter, self.key);
        let (status, told) = exchange(wire, "POST /v1/reserve", &body);
        self.most += cost;
        self.peak = self.peak.max(self.most);
        if status == 0 {
            return false;
        }
        assert_eq!(status, 200, "{told}");
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        self.least += cost;
        self.open.push((told["reservation"].as_str().unwrap().to_owned(), cost));
        true
    }

    fn end(&mut self, wire: &mut TcpStream) -> bool {
        let (id, reserved) = self.open.swap_remove(self.dice.index(self.open.len()));
        let cost = self.dice.below(reserved + 5);
        let (status, told) = match cost {
            0 => exchange(wire, &format!("DELETE /v1/reservations/{id}"), ""),
            _ => exchange(wire, &format!("POST /v1/reservations/{id}/commit"), &format!("{{\"cost\":{cost}}}")),
        };
        self.ended.push(id);
        if status == 0 {
            (self.least, self.most) =
                (self.least - reserved + cost.min(reserved), self.most - reserved + cost.max(reserved));
            return false;
        }
        assert_eq!(status, 200, "{told}");
        (self.least, self.most) = (self.least - reserved + cost, self.most - reserved + cost);
        true
    }

    /// What the server says was charged.
    fn used(&self, wire: &mut TcpStream) -> u64 {
        let body = format!("{{\"limiter\":\"{}\",\"key\":\"{}\",\"cost\":0}}", self.limiter, self.key);
        let (status, told) = exchange(wire, "POST /v1/hit", &body);
        assert_eq!(status, 200, "{told}");
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        LIMIT - told["remaining"].as_u64().unwrap()
    }

    #[track_caller]
    fn check(&self, wire: &mut TcpStream) {
        let used = self.used(wire);
        // A token bucket drains one in half a minute, and `remaining` is rounded down.
        let drained = if self.limiter == "token-bucket" { 4 } else { 0 };
        assert!((self.least.saturating_sub(drained)..=self.most).contains(&used), "{used} used: {}", self.told());
    }

    fn told(&self) -> String {
        format!("{} {}: {} to {}, {} at its peak", self.limiter, self.key, self.least, self.most, self.peak)
    }
}

/// Has clients work at a server until it is killed.
fn kill_at_work(server: Server, clients: &mut [Client], after: Duration) {
    let (stop, url) = (AtomicBool::new(false), server.url.clone());
    std::thread::scope(|scope| {
        for client in clients.iter_mut() {
            scope.spawn(|| client.work(&url, &stop));
        }
        std::thread::sleep(after);
        server.kill();
        stop.store(true, Relaxed);
    });
}

#[test]
fn r1_kill_9_of_one_server_on_a_redis_and_another_ends_what_it_left() {
    let (redis, folder, seed) = (servers::Server::redis(&[]), Folder::new(), number("TIDEGATE_SEED", 1));
    let store =
        format!("[store]\nkind = \"redis\"\nurl = \"{}\"\ndeadline = \"10s\"\non_failure = \"deny\"\n", redis.url());
    let file = folder.write("tidegate.toml", &format!("{store}[doors]\nhttp = \"127.0.0.1:0\"\n{}", limiters()));
    let other = Server::start(&folder, Some(&file));
    let mut wire = TcpStream::connect(other.url.trim_start_matches("http://")).unwrap();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(number, seed)).collect();
    let mut reserved = 0;
    for round in 0..number("TIDEGATE_KILLS", 4_u64) {
        let server = Server::start(&folder, Some(&file));
        let after = Duration::from_millis(100 + 37 * (round % 5));
        kill_at_work(server, &mut clients, after);
        for client in &mut clients {
            client.check(&mut wire);
            reserved += client.open.len() + client.ended.len();
            while !client.open.is_empty() {
                assert!(client.end(&mut wire));
            }
            client.check(&mut wire);
            let before = client.used(&mut wire);
            let ids: Vec<String> = client.ended.drain(..).collect();
            let again = ids.iter().map(|id| exchange(&mut wire, &format!("DELETE /v1/reservations/{id}"), "").0);
            // One whose end nobody was told of may be open still: then this is its end, the only one.
            let ended =
                again.inspect(|status| assert!([200, 409].contains(status))).filter(|status| *status == 200).count();
            let after = client.used(&mut wire);
            assert!(
                ended <= 1 && after + COST_MAX * ended as u64 >= before,
                "{before} before, {after} after: {}",
                client.told()
            );
            (client.least, client.most) = (after, after);
        }
    }
    assert!(reserved > 40, "{reserved} reservations are too few to show anything");
    assert_eq!(redis.keys_without_expiry(), Vec::<String>::new(), "A9");
}

/// What a snapshot held is charged after the kill, and nothing of it can be given back any more.
#[test]
fn r1_kill_9_of_an_embedded_server_leaves_the_charges() {
    let (folder, seed) = (Folder::new(), number("TIDEGATE_SEED", 1));
    let store = "[store]\npath = \"data\"\nsnapshot_every = \"100ms\"\n";
    let file = folder.write("tidegate.toml", &format!("{store}[doors]\nhttp = \"127.0.0.1:0\"\n{}", limiters()));
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(number, seed)).collect();
    for round in 0..number("TIDEGATE_KILLS", 3_u64) {
        let server = Server::start(&folder, Some(&file));
        kill_at_work(server, &mut clients, Duration::from_millis(250 + 41 * (round % 5)));
        let server = Server::start(&folder, Some(&file));
        let mut wire = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
        for client in &mut clients {
            let used = client.used(&mut wire);
            assert!(used <= client.peak + COST_MAX, "{used} used: {}", client.told());
            for id in client.ended.drain(..).chain(client.open.drain(..).map(|(id, _)| id)) {
                assert_eq!(exchange(&mut wire, &format!("DELETE /v1/reservations/{id}"), "").0, 409);
            }
            assert!(client.used(&mut wire) + 1 >= used, "nothing was given back");
            (client.least, client.most, client.peak) = (used, used, used);
        }
    }
}
