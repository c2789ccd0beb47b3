//! A door under test, a client, and `check`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tidegate::{Algorithm, Clock, Gate, Grid, LimiterSpec, Micros, Policy, Rules, Settings};
use tidegate_doors::resp::{Door, RespSettings, serve};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// A door on port 0 with the policy of [`policy`] and a clock that stands at 1,000 s.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) gate: Gate,
    pub(crate) door: Arc<Door>,
    pub(crate) runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

pub(crate) fn limiter(name: &str, algorithm: Algorithm, limits: &[&str]) -> LimiterSpec {
    let limits: Vec<_> = limits.iter().map(|text| text.parse().unwrap()).collect();
    let rules = match algorithm {
        Algorithm::Buckets => {
            let grid = Grid::new(Micros::from_secs(10), Micros::from_secs(60)).unwrap();
            Rules::buckets(grid, &limits)
        }
        _ => Rules::new(algorithm, &limits),
    };
    LimiterSpec::new(name, rules.unwrap())
}

pub(crate) fn policy(api: &str) -> Policy {
    Policy::new(vec![
        limiter("api", Algorithm::SlidingLog, &[api]),
        limiter("burst", Algorithm::TokenBucket, &["20 per minute burst 40"]),
        limiter("notify", Algorithm::Buckets, &["2 per 20s block 40s"]),
        limiter("login-user", Algorithm::SlidingLog, &["2 per minute"]).by(Some("login"), &["user"]),
        limiter("login-ip", Algorithm::SlidingLog, &["3 per minute"]).by(Some("login"), &["ip"]),
        limiter("anywhere", Algorithm::SlidingLog, &["4 per minute"]).by(None, &["ip"]),
        LimiterSpec::throttle(),
    ])
    .unwrap()
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::with(RespSettings::default())
    }

    pub(crate) fn with(settings: RespSettings) -> Server {
        let clock = Clock::manual(Micros::from_secs(1_000));
        Server::on(Gate::open(policy("3 per minute"), &Settings::default(), clock).unwrap(), settings)
    }

    pub(crate) fn with_memory(max_memory: usize) -> Server {
        let clock = Clock::manual(Micros::from_secs(1_000));
        let gate = Gate::open(policy("3 per minute"), &Settings { max_memory, path: None }, clock).unwrap();
        Server::on(gate, RespSettings::default())
    }

    pub(crate) fn on(gate: Gate, settings: RespSettings) -> Server {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let door = Arc::new(Door::new(gate.clone(), settings));
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = runtime.spawn(serve(listener, Arc::clone(&door), async {
            let _ = stopped.await;
        }));
        Server { address, gate, door, runtime, stop: Some(stop), serving: Some(serving) }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::of(TcpStream::connect(self.address).unwrap())
    }

    /// Sets the clock to so many milliseconds after its start.
    pub(crate) fn at(&self, ms: u64) {
        self.gate.clock().set(Micros::from_millis(1_000_000 + ms));
    }

    /// Ends it, and waits for it.
    pub(crate) fn stop(&mut self) {
        self.stop.take();
        if let Some(serving) = self.serving.take() {
            self.runtime.block_on(serving).unwrap().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A client that shares no code with the door.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    fn of(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, unread: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next reply, its lines joined by a space: `*2 :1 $2 hi`. `closed`: there is none.
    pub(crate) fn receive(&mut self) -> String {
        let (mut told, mut left) = (Vec::new(), 1_i64);
        while left > 0 {
            let Some(line) = self.line() else { return "closed".to_owned() };
            left -= 1;
            let (kind, rest) = line.split_at(1.min(line.len()));
            match kind {
                "*" => left += rest.parse::<i64>().unwrap().max(0),
                "%" => left += 2 * rest.parse::<i64>().unwrap(),
                "$" if rest != "-1" => left += 1,
                _ => {}
            }
            told.push(line);
        }
        told.join(" ")
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Some(String::from_utf8(line[..end].to_vec()).unwrap());
            }
            let mut buffer = [0; 4_096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(len) => self.unread.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    /// The same of a server that may have closed.
    pub(crate) fn ask_or_closed(&mut self, command: &str) -> String {
        let sent = self.stream.write_all(&encode(command));
        if sent.is_ok() { self.receive() } else { "closed".to_owned() }
    }

    /// Sends a command whose parts are parted by spaces, and receives its reply.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.send(&encode(command));
        self.receive()
    }
}

/// A command as clients send it; `''` stands for an empty part.
pub(crate) fn encode(command: &str) -> Vec<u8> {
    let parts: Vec<&str> = command.split(' ').map(|part| if part == "''" { "" } else { part }).collect();
    let mut bytes = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        bytes.extend_from_slice(format!("${}\r\n{part}\r\n", part.len()).as_bytes());
    }
    bytes
}

/// Lines of `[@MS] COMMAND -> REPLY` on a fresh door; `@` sets the clock. First one by one, then all at once on another fresh door, where
/// the clock stands still if there is none: the replies are the same. A reply that ends in `…` is compared up to there.
#[track_caller]
pub(crate) fn check(scenario: &str) {
    check_on(&Server::start(), scenario);
    if !scenario.contains('@') {
        let (server, mut all) = (Server::start(), Vec::new());
        let mut client = server.connect();
        lines(scenario).for_each(|(_, command, _)| all.extend(encode(command)));
        client.send(&all);
        for (_, command, expected) in lines(scenario) {
            compare(command, &client.receive(), expected);
        }
    }
}

#[track_caller]
pub(crate) fn check_on(server: &Server, scenario: &str) {
    let mut client = server.connect();
    for (at, command, expected) in lines(scenario) {
        if let Some(at) = at {
            server.at(at);
        }
        compare(command, &client.ask(command), expected);
    }
}

fn lines(scenario: &str) -> impl Iterator<Item = (Option<u64>, &str, &str)> {
    scenario.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| {
        let (asked, expected) = line.split_once(" -> ").unwrap_or_else(|| panic!("{line}"));
        match asked.strip_prefix('@').map(|rest| rest.split_once(' ').unwrap()) {
            Some((at, command)) => (Some(at.parse().unwrap()), command.trim(), expected),
            None => (None, asked.trim(), expected),
        }
    })
}

#[track_caller]
fn compare(command: &str, reply: &str, expected: &str) {
    match expected.strip_suffix('…') {
        Some(start) => assert!(reply.starts_with(start), "{command}: {reply}\nexpected {start}…"),
        None => assert_eq!(reply, expected, "{command}"),
    }
}
